//! Object files as compilers write them. What compilers and flags they are of is said where the agent reads the same.

use gimli::{BaseAddresses, EhFrame, LittleEndian, UnwindSection};
use jitprof_common::units::Avma;
use object::read::elf::SectionHeader;

use super::*;
use crate::gdb_jit::object_file::Elf;
use crate::gdb_jit::{Extent, MAX_FUNCTIONS, MAX_NAMES, functions_in};
use crate::recorded::Recorded;
use crate::{Budget, Reader};

const NUMBA: &[u8] = include_bytes!("../../../../profiler-agent/fixtures/numba-leaf_hot.o");
/// DWARF 5: parts with several ranges.
const GCC: &[u8] = include_bytes!("../../../../profiler-agent/fixtures/gcc12-inlined.o");
const CLANG: &[u8] = include_bytes!("../../../../profiler-agent/fixtures/clang14-inlined-dwarf4.o");

/// Where the sections would lie.
const TEXT: u64 = 0x7f00_0000_1000;
const FRAME: u64 = 0x7f00_0001_2088;
const ENOUGH: u64 = 100_000;

/// The file with the addresses of sections in their headers, as it is registered.
fn placed(file: &[u8], places: &[(&str, u64)]) -> Vec<u8> {
    let mut bytes = file.to_vec();
    let elf = Elf::parse(file).unwrap();
    let headers = usize::try_from(u64::from_le_bytes(file[40..48].try_into().unwrap())).unwrap();
    for (index, header) in elf.elf_section_table().enumerate() {
        let name = elf.elf_section_table().section_name(elf.endian(), header).unwrap();
        if let Some((_, place)) = places.iter().find(|(known, _)| known.as_bytes() == name) {
            assert_eq!(header.sh_addr(elf.endian()), 0);
            let at = headers + index.0 * 64 + 16;
            bytes[at..at + 8].copy_from_slice(&place.to_le_bytes());
        }
    }
    bytes
}

fn files() -> [Vec<u8>; 3] {
    [(NUMBA, ".ltext"), (GCC, ".text"), (CLANG, ".text")]
        .map(|(file, text)| placed(file, &[(text, TEXT), (".eh_frame", FRAME)]))
}

/// Its functions by their addresses, with what is said of each.
fn read(file: &[u8]) -> Vec<(Function, Details)> {
    let reader = Reader::new(Recorded::default(), Budget { pages: 0, steps: ENOUGH });
    let (functions, _) = functions_in(file, &reader, (MAX_FUNCTIONS, MAX_NAMES)).unwrap();
    let details = of_functions(file, &functions, &mut Steps::new(ENOUGH));
    let mut all: Vec<_> = functions.into_iter().zip(details).collect();
    all.sort_by_key(|(function, _)| function.address.0);
    all
}

fn line_at(lines: &Lines, offset: u32) -> (u32, &str) {
    let row = lines.rows.iter().rfind(|row| row.0 <= offset);
    row.filter(|row| row.1 != 0).map_or((0, ""), |row| (row.1, &*lines.files[row.2 as usize]))
}

/// For an offset into the function: the functions that it is in, outermost first, each with its line.
fn frames_at((function, details): &(Function, Details), offset: u32) -> Vec<(String, u32)> {
    let mut frames = vec![(function.name.to_string(), line_at(&details.lines, offset).0)];
    let mut innermost = None;
    for (index, part) in (0..).zip(&details.inlined) {
        if (part.start..part.start + part.size).contains(&offset) {
            assert_eq!(part.around, innermost, "each lies in the one before");
            innermost = Some(index);
            let (line, file) = line_at(&part.lines, offset - part.start);
            assert!(file.ends_with("inlined.c"), "{file}");
            frames.push((part.name.to_string(), line));
        }
    }
    frames
}

#[test]
fn inlined_functions_are_parts_with_lines_of_their_own_and_calls_around_them() {
    let [_, gcc, clang] = files();
    for (file, hot, cold) in [(gcc, 0x2e, 0x6e), (clang, 0x2d, 0x6d)] {
        let all = read(&file);
        assert_eq!(all[0].0.address, Avma(TEXT));
        let frame = |name: &str, line| (name.to_owned(), line);
        assert_eq!(frames_at(&all[0], hot), [frame("run", 35), frame("outer_part", 21), frame("hot_part", 15)]);
        assert_eq!(frames_at(&all[0], cold), [frame("run", 37), frame("cold_part", 28)]);
    }
}

#[test]
fn lines_of_a_relocatable_file_are_of_the_code_where_it_was_put() {
    let all = read(&files()[0]);
    let starts: Vec<u64> = all.iter().map(|(function, _)| function.address.0 - TEXT).collect();
    assert_eq!(starts, [0, 240, 528]);
    let lines: Vec<(u32, u32)> = all[0].1.lines.rows.iter().map(|row| (row.0, row.1)).take(4).collect();
    assert_eq!(lines, [(0, 5), (10, 7), (34, 0), (44, 7)]);
    assert!(all[0].1.lines.files.iter().all(|file| file.ends_with("nb.py")));
    assert_eq!(all[1].1.lines, Lines::default(), "the wrapper has none");
}

/// Which code a function's unwinding data is of.
fn code_of(frame: &Frame, address: u64) -> Option<(u64, u64)> {
    let bases = BaseAddresses::default().set_eh_frame(frame.section_start.0);
    let section = EhFrame::new(&frame.bytes, LittleEndian);
    let entry = section.fde_for_address(&bases, address, EhFrame::cie_from_offset).ok()?;
    Some((entry.initial_address(), entry.len()))
}

#[test]
fn unwinding_data_is_of_one_function_alone_wherever_its_section_was_put() {
    let mut files = files().to_vec();
    files.extend([placed(GCC, &[(".text", TEXT)]), placed(NUMBA, &[(".ltext", TEXT)])]);
    for file in files {
        for (function, details) in read(&file) {
            let frame = details.frame.unwrap();
            assert_eq!(code_of(&frame, function.address.0), Some((function.address.0, function.size)));
            assert!(frame.bytes.len() < 128, "{}", frame.bytes.len());
        }
    }
}

#[test]
fn a_file_that_was_put_nowhere_has_no_functions() {
    let reader = Reader::new(Recorded::default(), Budget { pages: 0, steps: ENOUGH });
    assert_eq!(functions_in(GCC, &reader, (MAX_FUNCTIONS, MAX_NAMES)), Ok((Vec::new(), Extent::Part)));
    assert!(of_functions(GCC, &[], &mut Steps::new(ENOUGH)).is_empty());
}

#[test]
fn what_is_too_dear_is_not_said_and_no_more_is_taken_than_there_is() {
    for file in files() {
        let all = read(&file);
        let functions: Vec<Function> = all.iter().map(|(function, _)| function.clone()).collect();
        let whole: Vec<Details> = all.into_iter().map(|(_, details)| details).collect();
        let mut less = 0;
        for budget in (0..4000).step_by(13) {
            let mut steps = Steps::new(budget);
            let details = of_functions(&file, &functions, &mut steps);
            assert_eq!(details.len(), functions.len());
            assert!(steps.left() <= budget);
            less += usize::from(details != whole);
            if budget == 0 {
                assert_eq!(details, vec![Details::default(); functions.len()]);
            }
        }
        assert!(less > 5, "{less}");
    }
}

#[test]
fn a_cut_or_changed_file_crashes_nothing() {
    for whole in files() {
        let functions: Vec<Function> = read(&whole).into_iter().map(|(function, _)| function).collect();
        let all = |file: &[u8]| of_functions(file, &functions, &mut Steps::new(ENOUGH));
        for length in (0..whole.len()).step_by(7) {
            all(&whole[..length]);
        }
        // Each field has a byte among them.
        for at in (0..whole.len()).step_by(3) {
            for flip in [0x01, 0xff] {
                let mut file = whole.clone();
                file[at] ^= flip;
                all(&file);
            }
        }
    }
}

/// Steps that are taken for a file of these sections, with one function.
fn steps_for(sections: &[(&str, &[u8])]) -> u64 {
    use object::write::Object;
    let mut file = Object::new(object::BinaryFormat::Elf, object::Architecture::X86_64, object::Endianness::Little);
    for (name, bytes) in sections {
        let section = file.add_section(Vec::new(), name.as_bytes().to_vec(), object::SectionKind::Debug);
        file.append_section_data(section, bytes, 1);
    }
    let function = Function { name: "function".into(), address: Avma(TEXT), size: 16 };
    let mut steps = Steps::new(ENOUGH);
    of_functions(&file.write().unwrap(), &[function], &mut steps);
    ENOUGH - steps.left()
}

/// A unit of DWARF 4 with these entries, whose abbreviations are at an offset.
fn unit(abbreviations: u32, entries: &[u8]) -> Vec<u8> {
    let length = u32::try_from(entries.len() + 7).unwrap();
    [&length.to_le_bytes()[..], &[4, 0], &abbreviations.to_le_bytes(), &[8], entries].concat()
}

/// Abbreviations 1: a unit; 2: an inlined part with its origin; 22: a function with a name of a form that the entry says.
const ABBREVIATIONS: [u8; 22] =
    [1, 0x11, 1, 0, 0, 2, 0x1d, 0, 0x31, 0x13, 0, 0, 22, 0x2e, 0, 0x03, 0x16, 0, 0, 0, 0, 0];

#[test]
fn entries_that_have_bytes_in_common_are_paid_for_one_by_one() {
    const PARTS: u32 = 1000;
    const BYTES: usize = 4096;
    let shared = 11 + 1 + PARTS * 5;
    let parts = |distance: u32| {
        let part = |part: u32| [&[2_u8][..], &(shared + part * distance).to_le_bytes()].concat();
        // Each byte says that the next one says the form, up to one that has no bytes: a flag.
        let form = [vec![22_u8; BYTES], vec![0x19]].concat();
        [vec![1_u8], (0..PARTS).flat_map(part).collect(), form].concat()
    };
    let steps = |distance| {
        let units = unit(0, &parts(distance));
        steps_for(&[(".debug_abbrev", &ABBREVIATIONS[..]), (".debug_info", &units[..])])
    };
    assert!(steps(0) < 10_000, "all are of one entry: {}", steps(0));
    assert!(steps(1) > 40_000, "all that there are: {}", steps(1));
}

#[test]
fn abbreviations_are_paid_for_by_the_byte_and_once() {
    let abbreviations = [&ABBREVIATIONS[..], &[0; 20_000]].concat();
    let steps =
        |units: &[Vec<u8>]| steps_for(&[(".debug_abbrev", &abbreviations[..]), (".debug_info", &units.concat()[..])]);
    let (one, same, other) = (unit(0, &[1]), unit(0, &[1, 0]), unit(5, &[2, 0, 0, 0, 0]));
    let first = steps(std::slice::from_ref(&one));
    assert!(first > 20_000, "{first}");
    let (same, other) = (steps(&[one.clone(), same]) - first, steps(&[one, other]) - first);
    assert!(same < 1000 && other > 20_000, "{same} {other}");
}

#[test]
fn a_common_entry_is_paid_for_by_what_is_kept_of_it() {
    // Each entry has the one before it for a common one.
    let frames = |distance: &dyn Fn(u32) -> u32| -> Vec<u8> {
        (0..1000).flat_map(|entry| [4, distance(entry)].map(u32::to_le_bytes)).flatten().collect()
    };
    let (one, many) = (frames(&|entry| entry * 8 + 4), frames(&|_| 12));
    let steps = |frames: &[u8]| steps_for(&[(".eh_frame", frames)]);
    assert!(steps(&one) < 2000 && steps(&many) > 16_000, "{} {}", steps(&one), steps(&many));
}

#[test]
fn unwinding_data_is_paid_for_by_what_it_costs_to_run_it() {
    let steps = |instructions: u32| {
        let common = [&[12_u8, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0x78, 16][..], &[0; 3]].concat();
        let lengths = [20 + instructions, 20].map(u32::to_le_bytes);
        let function = [lengths.as_flattened(), &TEXT.to_le_bytes(), &16_u64.to_le_bytes()].concat();
        let instructions = vec![0_u8; usize::try_from(instructions).unwrap()];
        steps_for(&[(".eh_frame", &[common, function, instructions].concat()[..])])
    };
    let dearer = steps(4000) - steps(0);
    assert!((1000..1200).contains(&dearer), "{dearer}");
}
