//! Readings of recorded processes: LLVM's `lli` with both of its engines, and numba. `functions` has what another source
//! says of the same process: LLVM's own jitdump, or numba's library of compiled functions.

use std::fs;
use std::path::PathBuf;

use jitprof_common::units::Avma;
use proptest::prelude::*;

use super::*;
use crate::Budget;
use crate::recorded::{Counting, Recorded};

const RECORDINGS: [&str; 3] = ["lli14-mcjit", "lli14-orc", "numba"];
const ENOUGH: Budget = Budget { pages: 10_000, steps: 100_000 };
/// How far into an entry its parts are, after the next one.
const ADDRESS: u64 = 16;
const SIZE: u64 = 24;

fn path(recording: &str, file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("recorded/gdb_jit").join(recording).join(file)
}

fn memory(recording: &str) -> Recorded {
    Recorded::read(fs::File::open(path(recording, "memory")).unwrap()).unwrap()
}

fn read(memory: &Recorded) -> Images {
    let mut images = Images::find(memory).unwrap();
    let update = images.update(&Reader::new(memory, ENOUGH));
    assert_eq!((update.incomplete, update.damaged), (None, 0));
    images
}

/// In the order of the list.
fn in_order(images: &Images) -> Vec<Arc<Image>> {
    let mut all: Vec<_> = images.images().cloned().collect();
    all.sort_by_key(|image| image.id);
    all
}

fn functions(images: &Images) -> Vec<(u64, u64, String)> {
    let all = in_order(images);
    let functions = all.iter().flat_map(|image| image.functions());
    let mut functions: Vec<_> = functions.map(|f| (f.address.0, f.size, f.name.to_string())).collect();
    functions.sort();
    functions
}

fn number(word: &str) -> u64 {
    u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap()
}

#[test]
fn functions_are_where_llvms_own_dump_has_them() {
    let ours = functions(&read(&memory("lli14-mcjit")));
    let theirs = fs::read_to_string(path("lli14-mcjit", "functions")).unwrap();
    let theirs = theirs.lines().map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        (number(words[0]), number(words[1]), words[2].to_owned())
    });
    assert_eq!(ours, theirs.collect::<Vec<_>>());
    // The other engine, which writes no dump, had the same object file.
    let shifted = |functions: &[(u64, u64, String)]| -> Vec<_> {
        functions.iter().map(|(address, size, name)| (address - functions[0].0, *size, name.clone())).collect()
    };
    let orc = functions(&read(&memory("lli14-orc")));
    assert_eq!((orc.len(), shifted(&orc)), (6, shifted(&ours)));
    assert_ne!(orc[0].0, ours[0].0);
}

#[test]
fn functions_are_where_numba_has_them() {
    let ours = functions(&read(&memory("numba")));
    let theirs = fs::read_to_string(path("numba", "functions")).unwrap();
    for line in theirs.lines() {
        let (address, name) = line.split_once(' ').unwrap();
        assert!(ours.iter().any(|ours| (ours.0, ours.2.as_str()) == (number(address), name)), "{line}");
    }
    assert_eq!((theirs.lines().count(), ours.len()), (10, 22));
    assert!(ours.iter().all(|(_, size, _)| *size > 0));
}

/// What object files say of their functions at the first reading.
fn details(recording: &str) -> Vec<(Function, Details)> {
    let memory = memory(recording);
    let update = Images::find(&memory).unwrap().update(&Reader::new(&memory, ENOUGH));
    let loaded = update.changes.into_iter().filter_map(|change| match change {
        Change::Loaded(image, details) => Some((image, details)),
        Change::Unloaded(_) => None,
    });
    loaded.flat_map(|(image, details)| image.functions().to_vec().into_iter().zip(details)).collect()
}

#[test]
fn functions_have_the_lines_and_what_was_inlined_of_their_debug_information() {
    for recording in ["lli14-mcjit", "lli14-orc"] {
        let all = details(recording);
        let of = |name: &str| &all.iter().find(|(function, _)| &*function.name == name).unwrap().1;
        let first = |name: &str| of(name).lines.rows[0];
        assert_eq!((first("leaf_hot"), first("leaf_cold"), first("middle")), ((0, 26, 0), (0, 27, 0), (0, 30, 0)));
        assert_eq!(of("leaf_hot").lines.rows.len(), 1, "all of it is a line of a macro");
        assert!(of("leaf_hot").lines.files[0].ends_with("/burn.c") && of("leaf_hot").inlined.is_empty());
        let parts: Vec<_> = of("main").inlined.iter().map(|part| (&*part.name, part.start, part.size)).collect();
        assert_eq!(parts, [("now", 0x55, 0x3c), ("atof", 0x9a, 0x22), ("now", 0x126, 0x2f)]);
        let line = |offset: u32| of("main").lines.rows.iter().rfind(|row| row.0 <= offset).map(|row| row.1);
        assert_eq!([0, 0x60, 0x9a, 0x126].map(line), [42, 45, 45, 53].map(Some), "where they are called");
    }
    // Without debug information there are none.
    assert!(details("numba").iter().all(|(_, details)| details.lines == Lines::default()));
}

#[test]
fn functions_have_the_unwinding_data_that_was_registered() {
    // What cannot throw has none of it in numba.
    for (recording, with_frames) in [("lli14-mcjit", 6), ("lli14-orc", 6), ("numba", 9)] {
        let all = details(recording);
        assert_eq!(all.iter().filter(|(_, details)| details.frame.is_some()).count(), with_frames, "{recording}");
    }
}

#[test]
fn only_what_changed_is_read_again() {
    let mut memory = memory("numba");
    let mut images = read(&memory);
    let update = images.update(&Reader::new(&memory, ENOUGH));
    assert_eq!(update, Update { changes: Vec::new(), damaged: 0, without_room: 0, incomplete: None });

    // Another object file of the same size in the same place: names are different.
    let all = in_order(&images);
    let second = all.iter().position(|image| image.functions().iter().any(|f| f.name.contains("side_cold"))).unwrap();
    let (first, third, second) = (all[second - 1].clone(), all[second + 1].clone(), all[second].clone());
    let mut bytes = vec![0; second.size];
    Reader::new(&memory, ENOUGH).bytes(second.address, &mut bytes).unwrap();
    for (at, _) in bytes.windows(9).enumerate().filter(|(_, bytes)| bytes == b"side_cold") {
        memory.overwrite(Avma(second.address.0 + at as u64), b"S");
    }
    let update = images.update(&Reader::new(&memory, ENOUGH));
    let [Change::Unloaded(gone), Change::Loaded(new, _)] = update.changes.as_slice() else { panic!("{update:?}") };
    assert_eq!((gone.id, new.entry), (second.id, second.entry));
    assert!(new.id > gone.id && new.functions().iter().any(|function| function.name.contains("Side_cold")));

    // The third one is taken out of the list.
    let after = Reader::new(&memory, ENOUGH).u64(third.entry).unwrap();
    memory.overwrite(second.entry, &after.to_le_bytes());
    let update = images.update(&Reader::new(&memory, ENOUGH));
    assert_eq!(update.changes, [Change::Unloaded(third)]);
    assert_eq!(images.images().count(), 6);
    assert!(images.images().any(|image| image.id == first.id));
}

#[test]
fn what_was_registered_anew_is_read_again_though_it_is_the_same() {
    let memory = memory("numba");
    let mut images = read(&memory);
    let all = in_order(&images);
    images.read_anew(all[1].entry);
    images.read_anew(Avma(all[1].entry.0 + 1));
    let update = images.update(&Reader::new(&memory, ENOUGH));
    let [Change::Unloaded(gone), Change::Loaded(new, _)] = update.changes.as_slice() else { panic!("{update:?}") };
    assert_eq!((gone.id, new.entry, new.functions()), (all[1].id, all[1].entry, all[1].functions()));
    assert!(images.update(&Reader::new(&memory, ENOUGH)).changes.is_empty(), "once");
}

#[test]
fn a_circle_ends_and_nothing_counts_as_gone() {
    let mut memory = memory("numba");
    let mut images = read(&memory);
    let all = in_order(&images);
    memory.overwrite(all[6].entry, &all[2].entry.0.to_le_bytes());
    let update = images.update(&Reader::new(&memory, ENOUGH));
    let malformed = ReadError::Malformed { what: "list of a debugger's object files", address: all[2].entry.0 };
    assert_eq!((update.incomplete, update.changes.len(), images.images().count()), (Some(malformed), 0, 7));
    // So does a list that is too dear.
    let update = images.update(&Reader::new(&memory, Budget { pages: 4, steps: 1000 }));
    assert_eq!((update.incomplete, update.changes.len()), (Some(ReadError::OverBudget), 0));
}

#[test]
fn what_cannot_be_an_object_file_is_passed_over() {
    let mut memory = memory("numba");
    let all = in_order(&read(&memory));
    memory.overwrite(Avma(all[0].entry.0 + SIZE), &u64::MAX.to_le_bytes());
    memory.overwrite(Avma(all[1].entry.0 + SIZE), &0_u64.to_le_bytes());
    memory.overwrite(Avma(all[2].entry.0 + ADDRESS), &8_u64.to_le_bytes());
    memory.overwrite(all[3].address, b"no ELF");
    let mut images = Images::find(&memory).unwrap();
    let update = images.update(&Reader::new(&memory, ENOUGH));
    assert_eq!((update.incomplete, update.damaged, update.changes.len()), (None, 3, 4));
    let unknown = images.images().find(|image| image.entry == all[3].entry).unwrap();
    assert!(unknown.functions().is_empty() && !unknown.names_all());
    assert!(images.images().any(|image| image.names_all()));
    // A version of the interface that there is not.
    memory.overwrite(images.descriptor, &2_u32.to_le_bytes());
    assert!(images.update(&Reader::new(&memory, ENOUGH)).incomplete.is_some());
    assert!(Images::find(Recorded::default()).is_none());
}

/// A relocatable file whose text section lies at an address, with functions there that all have this name.
fn object_file(functions: u32, name: &str) -> Vec<u8> {
    object_file_of(functions, name, 16)
}

/// The same with functions of this size.
fn object_file_of(functions: u32, name: &str, size: u64) -> Vec<u8> {
    use object::write::{Object, Symbol, SymbolSection};
    let mut file = Object::new(object::BinaryFormat::Elf, object::Architecture::X86_64, object::Endianness::Little);
    let text = file.section_id(object::write::StandardSection::Text);
    file.append_section_data(text, &[0xc3; 64], 16);
    for number in 0..functions {
        file.add_symbol(Symbol {
            name: name.as_bytes().to_vec(),
            value: 0x7f00_0000 + u64::from(number) * 16,
            size,
            kind: SymbolKind::Text,
            scope: object::SymbolScope::Dynamic,
            weak: false,
            section: SymbolSection::Section(text),
            flags: object::SymbolFlags::None,
        });
    }
    file.write().unwrap()
}

#[test]
fn names_without_end_take_no_more_than_there_is_room_for() {
    let cut = Extent::NoRoom(MAX_NAME);
    let file = object_file(300, &"n".repeat(200_000));
    let reader = Reader::new(Recorded::default(), ENOUGH);
    let (functions, extent) = functions_in(&file, &reader, (MAX_FUNCTIONS, 100_000)).unwrap();
    assert_eq!((functions.len(), functions[0].name.len(), extent), (100_000 / MAX_NAME, MAX_NAME, cut));
    let (functions, extent) = functions_in(&file, &reader, (7, MAX_NAMES)).unwrap();
    assert_eq!((functions.len(), extent), (7, cut));
    // Each symbol costs a step, whatever comes of it.
    let poor = Reader::new(Recorded::default(), Budget { pages: 1, steps: 100 });
    assert_eq!(functions_in(&file, &poor, (MAX_FUNCTIONS, MAX_NAMES)), Err(ReadError::OverBudget));
}

#[test]
fn object_files_whose_functions_find_no_room_are_counted_as_long_as_they_are_there() {
    let mut memory = memory("numba");
    let all = in_order(&read(&memory));
    let mut left = 3;
    let is_cut = |image: &&Arc<Image>| {
        let is_cut = image.functions().len() > left;
        left = left.saturating_sub(image.functions().len());
        is_cut
    };
    let cut: Vec<Arc<Image>> = all.iter().filter(is_cut).cloned().collect();
    assert!(cut.len() > 1, "{}", cut.len());
    let mut images = Images { functions: MAX_FUNCTIONS - 3, ..Images::find(&memory).unwrap() };
    for _ in 0..2 {
        let update = images.update(&Reader::new(&memory, ENOUGH));
        assert_eq!((update.damaged, update.incomplete), (0, None));
        assert_eq!(update.without_room as usize, cut.len());
    }
    assert_eq!(images.functions, MAX_FUNCTIONS);
    // The last of all is taken out of the list.
    memory.overwrite(all[all.len() - 2].entry, &0_u64.to_le_bytes());
    let is_last = cut.iter().any(|image| image.entry == all[all.len() - 1].entry);
    let update = images.update(&Reader::new(&memory, ENOUGH));
    assert_eq!(update.without_room as usize, cut.len() - usize::from(is_last));
}

#[test]
fn functions_that_have_found_no_room_are_there_when_there_is_some() {
    let memory = memory("numba");
    let mut images = Images { functions: MAX_FUNCTIONS - 3, ..Images::find(&memory).unwrap() };
    let cut = images.update(&Reader::new(&memory, ENOUGH)).without_room as usize;
    // Those of other object files are gone.
    images.functions -= MAX_FUNCTIONS / 2;
    let update = images.update(&Reader::new(&memory, ENOUGH));
    assert_eq!((update.changes.len(), update.without_room, update.incomplete), (2 * cut, 0, None));
    assert_eq!(functions(&images), functions(&read(&memory)));
    assert!(images.update(&Reader::new(&memory, ENOUGH)).changes.is_empty());
}

#[test]
fn a_long_name_is_paid_for_whether_it_is_kept_or_not() {
    let steps = |name: &str| {
        let reader = Reader::new(Recorded::default(), ENOUGH);
        functions_in(&object_file(100, name), &reader, (MAX_FUNCTIONS, MAX_NAMES)).unwrap();
        ENOUGH.steps - reader.left().steps
    };
    let long = "n".repeat(2 * MAX_NAME);
    assert_eq!(steps(&long), steps("n") + 100 * MAX_NAME as u64 / NAME_BYTES_A_STEP);
    assert_eq!(steps(&format!("\n{long}")), steps(&long), "it cannot be printed");
}

#[test]
fn a_buffer_for_code_is_no_function() {
    let sizes = [MAX_FUNCTION, MAX_FUNCTION + 1].map(|size| {
        let file = object_file_of(1, "code_gen_buffer", size);
        let reader = Reader::new(Recorded::default(), ENOUGH);
        let (functions, extent) = functions_in(&file, &reader, (MAX_FUNCTIONS, MAX_NAMES)).unwrap();
        (functions.len(), extent)
    });
    assert_eq!(sizes, [(1, Extent::All), (0, Extent::Part)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn whatever_a_process_registers_is_read_within_the_budget(
        recording in 0..RECORDINGS.len(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), 0..512_u64, 0..4, any::<u64>()), 1..60),
        budget in (1..2000_u32, 1..10_000_u64).prop_map(|(pages, steps)| Budget { pages, steps }),
    ) {
        let mut memory = memory(RECORDINGS[recording]);
        let pages: Vec<Avma> = memory.page_addresses().collect();
        let entries: Vec<Avma> = read(&memory).images().map(|image| image.entry).collect();
        for (page, word, kind, value) in changes {
            let at = Avma(page.get(&pages).0 + word * 8);
            let entry = entries[usize::try_from(value % entries.len() as u64).unwrap()];
            match kind {
                0 => memory.overwrite(at, &(value % 65536).to_le_bytes()),
                1 => memory.overwrite(at, &entry.0.to_le_bytes()),
                2 => memory.overwrite(Avma(entry.0 + (value >> 32) % 4 * 8), &(value % 100_000).to_le_bytes()),
                _ => memory.overwrite(at, &value.to_le_bytes()),
            }
        }
        let mut images = Images::find(&memory).unwrap();
        let counting = Counting::new(&memory);
        let reader = Reader::new(&counting, budget);
        for _ in 0..2 {
            images.update(&reader);
        }
        for image in images.images() {
            for function in image.functions() {
                prop_assert!(!function.name.is_empty() && function.address.0 >= MIN_ADDRESS);
            }
        }
        // What is fetched is paid for, and an object file is kept only if it could be.
        let left = reader.left();
        prop_assert!(counting.bytes() > 0 && counting.bytes() <= u64::from(budget.pages - left.pages) * 4096);
        let functions: u64 = images.images().map(|image| image.functions().len() as u64).sum();
        prop_assert!(functions <= budget.steps - left.steps);
    }
}
