//! What was recorded of real processes: `recorded/cpython/stacks.py` under nine builds, by `recorded/record_stacks.sh`.

use std::cell::Cell;
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use jitprof_common::listed::{ListEnd, ListSpec, MAX_BASES, MAX_STEPS, Step, WAYS};
use proptest::prelude::*;

use super::layout::{Instructions, SIZE, TYPE};
use super::*;
use crate::listed::follow;
use crate::recorded::{Counting, Recorded};
use crate::replay::budgets;
use crate::{Budget, Symbols, Walked, walk};

const BUDGET: Budget = Budget { pages: 1 << 12, steps: 1 << 18 };
const BUILDS: [&str; 9] = [
    "pyenv-3.8",
    "pyenv-3.9",
    "pyenv-3.10",
    "debian-3.11",
    "pyenv-3.11",
    "pyenv-3.12",
    "pyenv-3.13",
    "debian-3.14",
    "debian-3.15",
];

struct Thread {
    tid: u32,
    pointer: u64,
    /// What the program says of its stack, innermost first: name, file and line.
    said: Vec<String>,
}

struct Recording {
    memory: Recorded,
    threads: Vec<Thread>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("recorded/cpython")
}

fn recording(name: &str) -> Recording {
    let path = folder().join(format!("{name}.mem"));
    let memory = Recorded::read(fs::File::open(&path).unwrap()).unwrap();
    let said = fs::read_to_string(path.with_extension("said")).unwrap();
    let stack = |tid: &str| {
        let lines = said.lines().skip_while(|line| line.strip_prefix("thread ") != Some(tid)).skip(1);
        lines.take_while(|line| !line.starts_with("thread ")).map(str::to_owned).collect()
    };
    let threads = fs::read_to_string(path.with_extension("mem.threads")).unwrap();
    let thread = |line: &str| {
        let (tid, pointer) = line.split_once(' ').unwrap();
        Thread { tid: tid.parse().unwrap(), pointer: u64::from_str_radix(pointer, 16).unwrap(), said: stack(tid) }
    };
    Recording { memory, threads: threads.lines().map(thread).collect() }
}

fn layout(memory: &Recorded) -> Layout {
    Layout::read(memory, Some(memory), &Reader::new(memory, BUDGET)).unwrap()
}

/// The uppermost byte.
fn mark(record: [u64; 2]) -> u8 {
    record[1].to_be_bytes()[0]
}

/// The functions of a thread, as the program says them, and how many entries there are.
fn stack(recording: &Recording, functions: &mut Functions, pointer: u64) -> (Vec<String>, usize) {
    let reader = Reader::new(&recording.memory, BUDGET);
    let entry = functions.layout().entry();
    let mut walked = walk(functions.layout().walk(), pointer, &reader);
    assert_eq!(walked.end, ListEnd::Last);
    if entry.has_base {
        walked.records.pop();
    }
    let is_entry = |record: &&[u64; 2]| mark(**record) >= entry.least;
    let of_functions = walked.records.iter().filter(|record| entry.is_frame || !is_entry(record));
    let line = |[code, instruction]: &[u64; 2]| {
        let Described { function: Function { name, file, .. }, line } =
            functions.describe(&reader, *code, *instruction).unwrap();
        format!("{name}\t{file}\t{line}")
    };
    (of_functions.map(line).collect(), walked.records.iter().filter(is_entry).count())
}

#[test]
fn the_functions_of_a_stack_are_those_that_the_program_says() {
    // The entries were counted as native frames of the interpreter's, with a debugger.
    let entries = [[8, 6], [8, 6], [7, 4], [7, 4], [7, 5], [7, 5]].map(Some);
    for (name, entries) in BUILDS.into_iter().zip([None; 3].into_iter().chain(entries)) {
        let recording = recording(name);
        let mut functions = Functions::new(layout(&recording.memory));
        assert_eq!(recording.threads.len(), 2, "{name}");
        for (at, thread) in recording.threads.iter().enumerate() {
            assert!(thread.said.len() > 10, "{name}");
            // Up to 3.10 each function has a native frame.
            let expected = (thread.said.clone(), entries.map_or(thread.said.len(), |entries| entries[at]));
            assert_eq!(stack(&recording, &mut functions, thread.pointer), expected, "{name}");
            let remembered = functions.bytes();
            assert_eq!(stack(&recording, &mut functions, thread.pointer), expected, "{name}: what is remembered");
            assert_eq!(functions.bytes(), remembered);
        }
        functions.clear();
        assert_eq!(functions.bytes(), size_of::<Functions>());
    }
}

#[test]
fn a_thread_is_found_by_its_number() {
    // From 3.15 on no way to the frames needs the lists of threads, so that they were not recorded.
    for name in BUILDS.into_iter().filter(|name| *name != "debian-3.15") {
        let recording = recording(name);
        let found = layout(&recording.memory).thread_pointers(&Reader::new(&recording.memory, BUDGET)).unwrap();
        for Thread { tid, pointer, .. } in &recording.threads {
            assert!(found.contains(&(*tid, *pointer)), "{name}: {tid} is not among {found:x?}");
        }
    }
}

#[test]
fn a_function_begins_on_its_first_line() {
    for name in BUILDS {
        let recording = recording(name);
        let mut functions = Functions::new(layout(&recording.memory));
        let reader = Reader::new(&recording.memory, BUDGET);
        let [code, instruction] = walk(functions.layout().walk(), recording.threads[0].pointer, &reader).records[0];
        let function = functions.describe(&reader, code, instruction).unwrap().function;
        assert_eq!((&*function.name, function.first_line), ("pause", 23), "{name}");
        // Before it has begun, the frame has what stands before the first instruction.
        // Where nothing says that the function is resumed, the first instruction is of the line behind.
        let (start, before, outside) = match functions.layout().code.instructions {
            Instructions::Within(offset) => {
                let start = (code & CODE) + offset;
                (start, start - 2, [start - 4, start + 1, start + 2000, 0, u64::MAX])
            }
            Instructions::Apart(..) => (0, NOT_BEGUN, [2000, 4001, NOT_BEGUN - 1, 1 << 31, 1 << 33]),
        };
        // What the sample has besides its address.
        let rest = instruction & !CODE;
        let mut describe = |code, instruction| functions.describe(&reader, code, rest | (instruction & CODE));
        assert_eq!(describe(code, before), Ok(Described { function, line: 23 }));
        // What is above the instruction is said of the entry.
        let first = 23 + u32::from(start == 0);
        assert_eq!(describe(code, start).unwrap().line, first);
        for instruction in outside {
            let unknown = Err(Unknown::No("instruction of the code object"));
            assert_eq!(describe(code, instruction), unknown, "{name}");
        }
    }
}

/// The innermost frame of the first thread, before and after a change of memory.
fn change(
    name: &str,
    change: impl Fn(&Layout, &mut Recorded, u64),
) -> (Result<Described, Unknown>, Result<Described, Unknown>) {
    let mut recording = recording(name);
    let mut functions = Functions::new(layout(&recording.memory));
    let walked = |memory: &Recorded, spec: &ListSpec| {
        walk(spec, recording.threads[0].pointer, &Reader::new(memory, BUDGET)).records[0]
    };
    let [code, instruction] = walked(&recording.memory, functions.layout().walk());
    let before = functions.describe(&Reader::new(&recording.memory, BUDGET), code, instruction);
    change(&functions.layout, &mut recording.memory, code & CODE);
    (before, functions.describe(&Reader::new(&recording.memory, BUDGET), code, instruction))
}

fn word(memory: &Recorded, at: u64) -> u64 {
    Reader::new(memory, BUDGET).u64(Avma(at)).unwrap()
}

/// What has taken the place of another has another name, another file or begins on another line; and whose name the sample could
/// not read is nobody's.
fn has_another_name_file_or_line(build: &str) {
    let (before, after) = change(build, |layout, memory, code| {
        let name = word(memory, code + layout.code.name);
        memory.overwrite(Avma(name + 24), &[word(memory, name + 24) as u8 ^ 1]);
    });
    assert_eq!((before.is_ok(), after), (true, Err(Unknown::Replaced("code object"))), "{build}");
    let (_, after) = change(build, |layout, memory, code| {
        let at = code + layout.code.first_line;
        memory.overwrite(Avma(at), &[word(memory, at) as u8 ^ 1]);
    });
    assert_eq!(after, Err(Unknown::Replaced("code object")), "{build}");
    // The same text, which another module has at another place.
    let (_, after) = change(build, |layout, memory, code| {
        let at = code + layout.code.file;
        memory.overwrite(Avma(at), &(word(memory, at) ^ 1 << FILE_BITS).to_le_bytes());
    });
    assert_eq!(after, Err(Unknown::Replaced("code object")), "{build}");
    let recording = recording(build);
    let reader = Reader::new(&recording.memory, BUDGET);
    let layout = layout(&recording.memory);
    let [code, instruction] = walk(layout.walk(), recording.threads[0].pointer, &reader).records[0];
    let at = (code & CODE) + layout.code.name;
    let unread = Functions::new(layout).describe(&reader, code & CODE, instruction);
    assert_eq!(unread, Err(Unknown::Read(ReadError::Unreadable(at))), "{build}");
}

#[test]
fn a_code_object_that_has_taken_another_ones_place_has_another_number() {
    for name in BUILDS {
        let recording = recording(name);
        let layout = layout(&recording.memory);
        let reader = Reader::new(&recording.memory, BUDGET);
        let walked = recording.threads.iter().flat_map(|thread| walk(layout.walk(), thread.pointer, &reader).records);
        let is_code = |code: &u64| reader.u64(Avma((code & CODE) + TYPE)) == Ok(layout.types.code);
        let codes: HashSet<u64> = walked.map(|[code, _]| code).filter(is_code).collect();
        let numbers: HashSet<u64> = codes.iter().map(|code| code >> NUMBER_AT).collect();
        if ["3.8", "3.9", "3.10", "3.11"].iter().any(|version| name.ends_with(version)) {
            assert!(numbers.len() > 5 && layout.code.version.is_none(), "{name}: {codes:x?}");
            has_another_name_file_or_line(name);
            continue;
        }
        assert!(codes.len() > 5 && numbers.len() == codes.len() && !numbers.contains(&0), "{name}: {codes:x?}");
        let (before, after) = change(name, |layout, memory, code| {
            let at = code + layout.code.version.unwrap();
            memory.overwrite(Avma(at), &[word(memory, at) as u8 ^ 1]);
        });
        assert_eq!((before.is_ok(), after), (true, Err(Unknown::Replaced("code object"))), "{name}");
        // Memory that was given back keeps the number, but not what it was referred to by.
        for freed in [0, 0x7f12_3456_7890_u64] {
            let (before, after) = change(name, |_, memory, code| memory.overwrite(Avma(code), &freed.to_le_bytes()));
            assert_eq!((before.is_ok(), after), (true, Err(Unknown::Replaced("code object"))), "{name}");
        }
        // Whose number the sample could not read is nobody's.
        let [code, instruction] = walk(layout.walk(), recording.threads[0].pointer, &reader).records[0];
        let mut functions = Functions::new(layout.clone());
        let at = (code & CODE) + layout.code.version.unwrap();
        let unread = functions.describe(&reader, code & CODE, instruction);
        assert_eq!(unread, Err(Unknown::Read(ReadError::Unreadable(at))), "{name}");
    }
}

#[test]
fn a_module_is_said_without_its_file_where_another_one_may_have_been_at_its_place() {
    for name in BUILDS {
        let mut recording = recording(name);
        let mut functions = Functions::new(layout(&recording.memory));
        let (walk_by, at) = (*functions.layout().walk(), functions.layout().code.file);
        let is_numbered = functions.layout().code.version.is_some();
        let records = walk(&walk_by, recording.threads[0].pointer, &Reader::new(&recording.memory, BUDGET)).records;
        let mut module = |memory: &Recorded| {
            let reader = Reader::new(memory, BUDGET);
            records.iter().find_map(|[code, instruction]| {
                let described = functions.describe(&reader, *code, *instruction).ok()?;
                let Described { function: Function { name, file, .. }, line } = described;
                (&*name == MODULE).then(|| (code & CODE, file.to_string(), line))
            })
        };
        let (code, file, line) = module(&recording.memory).unwrap();
        assert_eq!((&*file, line), ("/tmp/stacks/stacks.py", 109), "{name}");
        let known = Some((code, file, line));
        let (unsure, kept) = (Some((code, String::new(), 0)), known.clone());
        let unsure = if is_numbered { known } else { unsure };
        let text = word(&recording.memory, code + at);
        for (references, expected) in [(1, &unsure), (2, &kept), (0, &unsure), (0x7f12_3456_7890, &unsure)] {
            recording.memory.overwrite(Avma(text), &u64::to_le_bytes(references));
            assert_eq!(module(&recording.memory), *expected, "{name}: {references:#x}");
        }
        if is_numbered {
            continue;
        }
        // The code was given back, and a function of its has the text.
        recording.memory.overwrite(Avma(text), &1_u64.to_le_bytes());
        recording.memory.overwrite(Avma(code), &0x7f12_3456_7890_u64.to_le_bytes());
        assert_eq!(module(&recording.memory), kept, "{name}");
    }
}

#[test]
fn a_code_object_that_is_being_made_has_the_number_of_what_was_there_before() {
    for name in BUILDS {
        let mut recording = recording(name);
        let mut functions = Functions::new(layout(&recording.memory));
        let pointer = recording.threads[0].pointer;
        let [code, instruction] =
            walk(functions.layout().walk(), pointer, &Reader::new(&recording.memory, BUDGET)).records[0];
        let mut ask = |memory: &Recorded| {
            let reader = Reader::new(memory, BUDGET);
            (functions.may_be_unfinished(&reader, code), functions.describe(&reader, code, instruction).is_ok())
        };
        assert_eq!(ask(&recording.memory), (false, true), "{name}: its frame and its function refer to it");
        recording.memory.overwrite(Avma(code & CODE), &1_u32.to_le_bytes());
        let version = layout(&recording.memory).code.version;
        assert_eq!(ask(&recording.memory), (version.is_some(), true), "{name}");
        let Some(at) = version else { continue };
        let number = Avma((code & CODE) + at);
        recording.memory.overwrite(number, &[word(&recording.memory, number.0) as u8 ^ 1]);
        assert_eq!(ask(&recording.memory), (true, false), "{name}: now it is made");
    }
}

/// Memory in which the code object is replaced while its name is being read.
struct Replaced<'a> {
    memory: &'a Recorded,
    version: u64,
    reads: Cell<u32>,
}

impl Memory for Replaced<'_> {
    fn read(&self, address: Avma, into: &mut [u8]) -> std::io::Result<usize> {
        let count = self.memory.read(address, into)?;
        // It is read alone when everything else has been.
        if address.0 == self.version && into.len() == 4 {
            self.reads.set(self.reads.get() + 1);
            into[0] ^= 1;
        }
        Ok(count)
    }
}

#[test]
fn what_is_replaced_while_it_is_read_is_not_named() {
    for name in BUILDS {
        let recording = recording(name);
        let layout = layout(&recording.memory);
        let reader = Reader::new(&recording.memory, BUDGET);
        let [code, instruction] = walk(layout.walk(), recording.threads[0].pointer, &reader).records[0];
        let version = layout.code.version.map_or(0, |at| (code & CODE) + at);
        let memory = Replaced { memory: &recording.memory, version, reads: Cell::new(0) };
        let described = Functions::new(layout).describe(&Reader::new(&memory, BUDGET), code, instruction);
        let is_told = if version == 0 { described.is_ok() } else { described == Err(Unknown::Replaced("code object")) };
        assert!(is_told && memory.reads.get() == u32::from(version != 0), "{name}: {described:?}");
    }
}

#[test]
fn what_was_freed_is_not_named() {
    for name in BUILDS {
        let (before, after) = change(name, |_, memory, code| memory.overwrite(Avma(code + TYPE), &[0; 8]));
        assert!(before.is_ok(), "{name}");
        assert_eq!(after, Err(Unknown::No("code object")));
        let (_, after) = change(name, |layout, memory, code| {
            let name = word(memory, code + layout.code.name);
            memory.overwrite(Avma(name + TYPE), &[0; 8]);
        });
        assert_eq!(after, Err(Unknown::No("function's name")));
        let (_, after) = change(name, |layout, memory, code| {
            let name = word(memory, code + layout.code.file);
            memory.overwrite(Avma(name + SIZE), &1025_u64.to_le_bytes());
        });
        assert_eq!(after, Err(Unknown::TooLarge("function's file")));
        let (_, after) = change(name, |layout, memory, code| {
            let table = word(memory, code + layout.code.lines);
            memory.overwrite(Avma(table + SIZE), &u64::MAX.to_le_bytes());
        });
        assert_eq!(after, Err(Unknown::TooLarge("table of lines")));
    }
}

#[test]
fn a_name_that_is_remembered_is_not_given_to_what_has_taken_its_place() {
    for name in BUILDS {
        let (before, after) = change(name, |layout, memory, code| {
            let name = word(memory, code + layout.code.name);
            memory.overwrite(Avma(name + layout.strings.ascii), b"dwell");
            // A string of the same length at the same place, of whose hash the sample has a part: the rest is its own.
            memory.overwrite(Avma(name + 30), &[word(memory, name + 24).to_le_bytes()[6] ^ 1]);
        });
        assert_eq!((&*before.unwrap().function.name, &*after.unwrap().function.name), ("pause", "dwell"), "{name}");
    }
}

#[test]
fn what_the_build_lacks_is_told() {
    /// Symbols without some.
    struct Without<'a>(&'a Recorded, &'static [&'static str]);

    impl Symbols for Without<'_> {
        fn address_of(&self, name: &str) -> Option<Avma> {
            self.0.address_of(name).filter(|_| !self.1.contains(&name))
        }
    }

    let Recording { memory, .. } = recording("pyenv-3.13");
    let read = |without| {
        let symbols = Without(&memory, without);
        Layout::read(&symbols, Some(&symbols), &Reader::new(&memory, BUDGET))
    };
    let version = Version { major: 3, minor: 13, micro: Some(0) };
    assert_eq!(read(&["Py_Version"]), Err(LayoutError::NoVersion));
    let missing = |what| Err(LayoutError::Missing { version, what });
    assert_eq!(read(&["PyCode_Type"]), missing("PyCode_Type"));
    assert_eq!(read(&["_PyRuntime"]).unwrap_err().to_string(), "CPython 3.13.0 does not say _PyRuntime");
    // One way to the thread's state is enough.
    let bases = |without| {
        let [one, other, ..] = read(without).unwrap().walk().ways;
        [one[0].operand, other[0].operand]
    };
    let [of_module, of_key] = bases(&[]);
    assert_eq!(of_module, 8);
    assert_eq!(bases(&["_PyThreadState_GetCurrent"]), [of_key, 0]);
    // Without glibc's symbol, it is another C library, with other blocks.
    assert_eq!(read(&["_thread_db_pthread_specific"]), missing("_PyThreadState_GetCurrent"));
    let neither = &["_PyThreadState_GetCurrent", "_thread_db_pthread_specific"];
    assert_eq!(read(neither), missing("_PyThreadState_GetCurrent"));
}

#[test]
fn versions_and_builds_that_are_not_known_are_told() {
    let read = |build, at: u64, with: &[u8]| {
        let Recording { mut memory, .. } = recording(build);
        let runtime = memory.address_of("_PyRuntime").unwrap();
        memory.overwrite(Avma(runtime.0 + at), with);
        Layout::read(&memory, Some(&memory), &Reader::new(&memory, BUDGET)).unwrap_err()
    };
    let version = Version { major: 3, minor: 13, micro: Some(0) };
    assert_eq!(read("pyenv-3.13", 16, &[1]), LayoutError::FreeThreaded(version));
    assert_eq!(read("pyenv-3.13", 0, b"y"), LayoutError::Implausible { version, what: "_PyRuntime" });
    let version = Version { major: 3, minor: 12, micro: Some(1) };
    // There is no interpreter yet.
    assert_eq!(read("pyenv-3.12", 40, &[0; 8]), LayoutError::NotStarted(version));
    let Recording { mut memory, .. } = recording("pyenv-3.12");
    let at = memory.address_of("Py_Version").unwrap();
    memory.overwrite(at, &0x0310_00f0_u32.to_le_bytes());
    let unknown = Layout::read(&memory, Some(&memory), &Reader::new(&memory, BUDGET)).unwrap_err();
    assert_eq!(unknown.to_string(), "the frames of CPython 3.16.0 are not known");
}

/// Where the first way that leads to a frame has its address from.
fn place_of_innermost(spec: &ListSpec, pointer: u64, memory: &Recorded) -> u64 {
    let reader = Reader::new(memory, BUDGET);
    let leads = |way: &&[Step; MAX_STEPS]| follow(&way[..], pointer, &reader).is_some_and(|frame| frame != 0);
    let way = spec.ways.iter().take(MAX_BASES).find(leads).unwrap();
    let last = way.iter().rposition(|step| step.op == Step::LOAD).unwrap();
    follow(&way[..last], pointer, &reader).unwrap() + way[last].operand
}

/// In 3.11 and 3.12 a loop that begins links a part of its C stack, and says there only then which frame is the innermost. What
/// lies there before is anything, also a frame from before.
#[test]
fn a_loop_that_is_linked_and_has_no_frame_yet_hides_frames_or_is_called_torn() {
    for name in ["debian-3.11", "pyenv-3.11", "pyenv-3.12"] {
        let mut recording = recording(name);
        let (layout, pointer) = (layout(&recording.memory), recording.threads[0].pointer);
        let spec = layout.walk();
        let place = place_of_innermost(spec, pointer, &recording.memory);
        let whole = walk(spec, pointer, &Reader::new(&recording.memory, BUDGET)).records;
        let caller = word(&recording.memory, word(&recording.memory, place) + u64::from(spec.next));
        let mut begun = |frame: u64| {
            recording.memory.overwrite(Avma(place), &frame.to_le_bytes());
            let Walked { records, end, .. } = walk(spec, pointer, &Reader::new(&recording.memory, BUDGET));
            (records, end)
        };
        assert_eq!(begun(0), (Vec::new(), ListEnd::Empty), "{name}");
        assert_eq!(begun(0xdead_0000_0000), (Vec::new(), ListEnd::Unreadable), "{name}");
        assert_eq!(begun(caller), (whole[1..].to_vec(), ListEnd::Last), "{name}");
    }
}

#[test]
fn a_list_that_is_a_circle_ends() {
    let mut recording = recording("pyenv-3.13");
    let layout = layout(&recording.memory);
    let first = |memory: &Recorded| {
        let reader = Reader::new(memory, BUDGET);
        let steps = layout.walk().ways.into_iter().take(MAX_BASES).find(|steps| {
            let mut ways = [[Step::default(); MAX_STEPS]; WAYS];
            ways[0] = *steps;
            let way = ListSpec { ways, ..*layout.walk() };
            walk(&way, recording.threads[0].pointer, &reader).base.is_some()
        });
        let mut value = 0_u64;
        for step in steps.unwrap().into_iter().filter(|step| step.op != 0) {
            let sum = value.wrapping_add(step.operand);
            value = match step.op {
                Step::ADD_THREAD_POINTER => sum + recording.threads[0].pointer,
                Step::LOAD => reader.u64(Avma(sum)).unwrap(),
                _ => sum,
            };
        }
        value
    };
    let first = first(&recording.memory);
    let previous = u64::from(layout.walk().next);
    recording.memory.overwrite(Avma(first + previous), &first.to_le_bytes());
    let walked = walk(layout.walk(), recording.threads[0].pointer, &Reader::new(&recording.memory, BUDGET));
    assert_eq!((walked.end, walked.records.len()), (ListEnd::TooLong, 1024));
    recording.memory.overwrite(Avma(first + previous), &8_u64.to_le_bytes());
    let walked = walk(layout.walk(), recording.threads[0].pointer, &Reader::new(&recording.memory, BUDGET));
    assert_eq!((walked.end, walked.records.len()), (ListEnd::Unreadable, 1));
    let walked = walk(layout.walk(), 0x1000, &Reader::new(&recording.memory, BUDGET));
    assert_eq!(walked, Walked { records: Vec::new(), end: ListEnd::Empty, base: None, state: [0; 2] });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Whatever stands in memory, a reading ends, within its budget.
    #[test]
    fn hostile_memory_costs_a_bounded_reading(
        build in 0..BUILDS.len(),
        places in prop::collection::vec((any::<prop::sample::Index>(), 0_u64..512, any::<u64>(), 0..5_u8), 1..2000),
        asked in any::<(u64, u64)>(),
        budget in budgets(BUDGET, 200, 20_000),
    ) {
        let mut recording = recording(BUILDS[build]);
        let honest = layout(&recording.memory);
        let pages: Vec<Avma> = recording.memory.page_addresses().collect();
        for (page, word_of_page, value, how) in places {
            let at = Avma(page.get(&pages).0 + word_of_page * 8);
            let with = match how {
                0 => value,
                // An object of some other place.
                1 => page.get(&pages).0 ^ (value & 0xff8),
                // A pointer to itself.
                2 => at.0,
                // A length.
                3 => value & 0xfffff,
                _ => word(&recording.memory, at.0) ^ 1 << (value % 64),
            };
            recording.memory.overwrite(at, &with.to_le_bytes());
        }
        let counting = Counting::new(&recording.memory);
        let lying = Layout::read(&recording.memory, Some(&recording.memory), &Reader::new(&counting, budget));
        prop_assert!(counting.bytes() <= u64::from(budget.pages) * 4096);
        for layout in [Some(honest), lying.ok()].into_iter().flatten() {
            let counting = Counting::new(&recording.memory);
            let reader = Reader::new(&counting, budget);
            let mut functions = Functions::new(layout);
            for thread in &recording.threads {
                let walked = walk(functions.layout().walk(), thread.pointer, &reader);
                prop_assert!(walked.records.len() <= 1024);
                for [code, instruction] in walked.records.into_iter().chain([[asked.0, asked.1]]) {
                    let described = functions.describe(&reader, code, instruction);
                    let text = described.map_or(0, |is| is.function.name.len() + is.function.file.len());
                    prop_assert!(text <= 2 * 4 * 1024);
                }
            }
            prop_assert!(counting.bytes() <= u64::from(budget.pages) * 4096);
            prop_assert!(functions.bytes() <= 17 << 20);
        }
    }
}
