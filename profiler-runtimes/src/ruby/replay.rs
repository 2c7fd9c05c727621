//! What was recorded of real processes: `recorded/ruby/stacks.rb`, by `recorded/record_stacks.sh`.

use jitprof_common::listed::{ListEnd, ListSpec, MAX_LISTED, Step};
use proptest::prelude::*;

use super::*;
use crate::listed::follow;
use crate::recorded::{Counting, Recorded};
use crate::replay::{beside, budgets, damage, damages, memory, taken, version_of, with_each_word_damaged};
use crate::{Budget, Walked};

const BUDGET: Budget = Budget { pages: 1 << 12, steps: 1 << 18 };
/// Each with its threads, and what the program said of their stacks.
const RECORDINGS: [&str; 1] = ["ruby/debian-3.1"];
/// In the uppermost byte of a record's second word: the kind of frame.
const KIND_BITS: u64 = 15;
/// The kinds of frames of functions and of blocks that are written in C.
const KINDS_IN_C: [u64; 2] = [5, 6];
/// Bytes of a name, or of a path, that is badly decoded.
const MAX_TEXT: usize = 3 * 1024;

struct Thread {
    pointer: u64,
    /// What the program says of its stack, innermost first: name, file and line.
    said: Vec<String>,
}

/// The threads of which the program says anything.
fn threads(name: &str) -> Vec<Thread> {
    let said = beside(name, "said");
    let stack = |tid: &str| {
        let lines = said.lines().skip_while(|line| line.strip_prefix("thread ") != Some(tid)).skip(1);
        lines.take_while(|line| !line.starts_with("thread ")).map(str::to_owned).collect()
    };
    let thread = |line: &str| {
        let (tid, pointer) = line.split_once(' ').unwrap();
        Thread { pointer: u64::from_str_radix(pointer, 16).unwrap(), said: stack(tid) }
    };
    beside(name, "mem.threads").lines().map(thread).filter(|thread| !thread.said.is_empty()).collect()
}

/// The thread that the process has begun with.
fn first_thread(name: &str) -> Thread {
    let is_first = |thread: &Thread| thread.said.last().is_some_and(|outermost| outermost.starts_with("<main>\t"));
    threads(name).into_iter().find(is_first).unwrap()
}

fn functions(memory: &Recorded) -> Functions {
    Functions::new(Layout::read(memory, &Reader::new(memory, BUDGET)).unwrap())
}

fn word(memory: &Recorded, at: u64) -> u64 {
    Reader::new(memory, BUDGET).u64(Avma(at)).unwrap()
}

fn walked(memory: &Recorded, functions: &Functions, pointer: u64) -> Walked {
    walk(functions.layout().walk(), pointer, &Reader::new(memory, BUDGET))
}

fn kind([_, place]: Record) -> u64 {
    place >> OLD_TO & KIND_BITS
}

/// The frames that are functions'.
fn of_functions(functions: &Functions, walked: &Walked) -> Vec<Record> {
    let EntryMark { no_frames, .. } = functions.layout().entry();
    let is_function = |record: &Record| no_frames >> kind(*record) & 1 == 0;
    walked.records.iter().copied().filter(is_function).collect()
}

/// A thread's functions, as the program says them.
fn stack(memory: &Recorded, functions: &Functions, pointer: u64) -> Vec<String> {
    let reader = Reader::new(memory, BUDGET);
    let walked = walk(functions.layout().walk(), pointer, &reader);
    assert_eq!(walked.end, ListEnd::Last);
    let now = functions.progress(&reader).unwrap();
    let line = |[code, place]: Record| {
        let looked = functions.describe(&reader, (code, place)).unwrap();
        assert!(looked.is_of((place, walked.state), now), "nothing was collected since: {looked:?}");
        let Described { function: Function { name, file, .. }, line } = looked.described;
        format!("{name}\t{file}\t{line}")
    };
    of_functions(functions, &walked).into_iter().map(line).collect()
}

#[test]
fn the_functions_of_a_stack_are_those_that_the_program_says() {
    for name in RECORDINGS {
        let (memory, threads) = (memory(name), threads(name));
        let functions = functions(&memory);
        let version = functions.layout().version().to_string();
        assert!(version.starts_with(&format!("{}.", version_of(name))), "{name}: {version}");
        assert_eq!(threads.len(), 2, "{name}");
        for thread in threads {
            assert!(thread.said.len() > 10, "{name}");
            assert_eq!(stack(&memory, &functions, thread.pointer), thread.said, "{name}");
        }
    }
}

#[test]
fn the_first_thread_is_found_without_a_thread_pointer() {
    for name in RECORDINGS {
        let memory = memory(name);
        let functions = functions(&memory);
        let reader = Reader::new(&memory, BUDGET);
        let first = walk(functions.layout().walk_of_first_thread().unwrap(), 0, &reader);
        assert_eq!(first, walked(&memory, &functions, first_thread(name).pointer), "{name}");
        assert!(functions.first_handler(&reader).is_some(), "{name}");
    }
}

#[test]
fn a_function_that_one_in_c_has_called_begins_a_loop() {
    for name in RECORDINGS {
        let memory = memory(name);
        let functions = functions(&memory);
        let EntryMark { least, no_frames } = functions.layout().entry();
        let is_entry = |[_, place]: Record| place >> OLD_TO >= u64::from(least);
        let is_in_c = |record: Record| KINDS_IN_C.contains(&kind(record));
        let is_function = |record: Record| no_frames >> kind(record) & 1 == 0;
        for thread in threads(name) {
            let records = walked(&memory, &functions, thread.pointer).records;
            let mut called_by_c = 0;
            for pair in records.windows(2).filter(|pair| is_function(pair[0]) && !is_in_c(pair[0])) {
                let [function, caller] = [pair[0], pair[1]];
                if is_in_c(caller) {
                    called_by_c += 1;
                    assert!(is_entry(function), "{name}: {function:x?} of {records:x?}");
                }
                if function[0] == caller[0] {
                    assert!(!is_entry(function), "{name}: {function:x?} of {records:x?}");
                }
            }
            assert!(called_by_c > 1, "{name}");
        }
        let outermost = walked(&memory, &functions, first_thread(name).pointer).records.last().copied();
        assert!(outermost.is_some_and(is_entry), "{name}");
    }
}

#[test]
fn what_was_freed_is_not_named() {
    for name in RECORDINGS {
        let memory = memory(name);
        let functions = functions(&memory);
        let of_first = walked(&memory, &functions, first_thread(name).pointer);
        let describe = |memory: &Recorded, [code, place]: Record| {
            functions.describe(&Reader::new(memory, BUDGET), (code, place)).map(|looked| looked.described)
        };
        for record in of_functions(&functions, &of_first) {
            let before = describe(&memory, record).unwrap();
            let without = |at: u64| {
                let mut changed = memory.clone();
                changed.overwrite(Avma(at), &[0; 8]);
                describe(&changed, record)
            };
            assert_eq!(without(record[0]), Err(Unknown::No("function")), "{name}: {before:?}");
            if !before.function.is_internal() {
                let body = word(&memory, record[0] + BODY);
                let label = word(&memory, body + LABEL as u64);
                assert_eq!(without(label), Err(Unknown::No("function's name")), "{name}: {before:?}");
            }
        }
    }
}

/// Where a thread's state has the address of the innermost frame.
fn place_of_innermost(spec: &ListSpec, pointer: u64, memory: &Recorded) -> u64 {
    let way = &spec.ways[0];
    let last = way.iter().rposition(|step| step.op == Step::LOAD).unwrap();
    follow(&way[..last], pointer, &Reader::new(memory, BUDGET)).unwrap() + way[last].operand
}

#[test]
fn an_array_without_an_end_in_reach_is_cut_and_one_that_begins_behind_its_end_is_empty() {
    for name in RECORDINGS {
        let memory = memory(name);
        let functions = functions(&memory);
        let pointer = first_thread(name).pointer;
        let whole = walked(&memory, &functions, pointer).records;
        let place = place_of_innermost(functions.layout().walk(), pointer, &memory);
        let after = |at: u64, with: u64| {
            let mut changed = memory.clone();
            changed.overwrite(Avma(at), &with.to_le_bytes());
            let Walked { records, end, .. } = walked(&changed, &functions, pointer);
            (records, end)
        };
        // Before the innermost frame's address stands how many words there are.
        let (records, end) = after(place - 8, u64::MAX >> 4);
        assert!(records.starts_with(&whole), "{name}: {records:x?}");
        assert!(matches!(end, ListEnd::Unreadable | ListEnd::TooLong), "{name}: {end:?}");
        assert_eq!(after(place, u64::MAX), (Vec::new(), ListEnd::Last), "{name}");
        assert_eq!(after(place, 0), (Vec::new(), ListEnd::Empty), "{name}");
        assert_eq!(after(place, 8), (Vec::new(), ListEnd::Unreadable), "{name}");
    }
}

/// Asks for all frames of threads, and for one more.
fn ask<M: Memory>(layout: Layout, reader: &Reader<M>, threads: &[Thread], also: Record) {
    let functions = Functions::new(layout);
    let of_threads = threads.iter().map(|thread| (*functions.layout().walk(), thread.pointer));
    let of_first = functions.layout().walk_of_first_thread().map(|spec| (*spec, 0));
    for (spec, pointer) in of_threads.chain(of_first) {
        let records = walk(&spec, pointer, reader).records;
        assert!(records.len() <= MAX_LISTED);
        for [code, place] in records.into_iter().chain([also]) {
            let described = functions.describe(reader, (code, place)).map(|looked| looked.described.function);
            let text = described.map_or(0, |function| function.name.len().max(function.file.len()));
            assert!(text <= MAX_TEXT, "{text}");
        }
    }
    // That they end is all that counts.
    drop((functions.progress(reader), functions.first_handler(reader), functions.first_entries(reader)));
}

/// The words that are read of a recording, its layout included.
fn all_taken(memory: &Recorded, threads: &[Thread]) -> Vec<u64> {
    taken(memory, BUDGET, |reader| ask(Layout::read(memory, reader).unwrap(), reader, threads, [0; 2]))
}

#[test]
fn each_word_that_is_read_may_be_anything() {
    for name in RECORDINGS {
        let (memory, threads) = (memory(name), threads(name));
        let honest = functions(&memory).layout().clone();
        let of_frames = taken(&memory, BUDGET, |reader| ask(honest.clone(), reader, &threads, [0; 2]));
        with_each_word_damaged(&memory, &of_frames, |damaged| {
            ask(honest.clone(), &Reader::new(damaged, BUDGET), &threads, [0; 2]);
        });
        // Any other word leaves the layout as it is.
        let of_layout = taken(&memory, BUDGET, |reader| {
            Layout::read(&memory, reader).unwrap();
        });
        with_each_word_damaged(&memory, &of_layout, |damaged| {
            let reader = Reader::new(damaged, BUDGET);
            if let Some(lying) = Layout::read(damaged, &reader).ok().filter(|lying| *lying != honest) {
                ask(lying, &reader, &threads, [0; 2]);
            }
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Whatever stands in memory, a reading ends, within its budget.
    #[test]
    fn hostile_memory_costs_a_bounded_reading(
        recording in 0..RECORDINGS.len(),
        damages in damages(),
        also in any::<Record>(),
        budget in budgets(BUDGET, 40, 2000),
    ) {
        let (mut memory, threads) = (memory(RECORDINGS[recording]), threads(RECORDINGS[recording]));
        let honest = functions(&memory).layout().clone();
        let taken = all_taken(&memory, &threads);
        damage(&mut memory, &taken, &damages);
        let lying = Layout::read(&memory, &Reader::new(&memory, budget));
        for layout in [Some(honest), lying.ok()].into_iter().flatten() {
            let counting = Counting::new(&memory);
            ask(layout, &Reader::new(&counting, budget), &threads, also);
            prop_assert!(counting.bytes() <= u64::from(budget.pages) * 4096);
        }
    }
}
