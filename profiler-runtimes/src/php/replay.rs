//! What was recorded of real processes: `recorded/php/stacks.php`, by `recorded/record_stacks.sh`.

use jitprof_common::listed::{ListEnd, ListSpec, MAX_LISTED, Record};
use proptest::prelude::*;

use super::*;
use crate::listed::follow;
use crate::recorded::{Counting, Recorded};
use crate::replay::{beside, budgets, damage, damages, memory, taken, version_of, with_each_word_damaged};
use crate::{Budget, walk};

const BUDGET: Budget = Budget { pages: 1 << 12, steps: 1 << 18 };
/// Each with what the program said of its stack.
const RECORDINGS: [&str; 1] = ["php/debian-8.2"];
/// What the recorded program is.
const PROGRAM: &str = "/tmp/stacks/stacks.php";
/// Bytes of a name with its class and its file, and of the file, all of them badly decoded.
const MAX_TEXT: usize = 4 * 3 * 1024 + 64;
/// Bytes of closures that are remembered.
const MAX_BYTES: usize = 5 << 20;

fn layout(memory: &Recorded) -> Layout {
    Layout::read(memory, &Reader::new(memory, BUDGET)).unwrap()
}

fn word(memory: &Recorded, at: u64) -> u64 {
    Reader::new(memory, BUDGET).u64(Avma(at)).unwrap()
}

/// The frames that are functions', innermost first.
fn frames(memory: &Recorded, functions: &mut Functions) -> Vec<(Record, Described)> {
    let reader = Reader::new(memory, BUDGET);
    let walked = walk(functions.layout().walk(), 0, &reader);
    assert_eq!(walked.end, ListEnd::Last);
    let mut frames = Vec::new();
    for (at, record) in walked.records.into_iter().enumerate() {
        let [function, instruction] = record;
        if function & ADDRESS == 0 {
            continue;
        }
        let described = functions.describe(&reader, (function, instruction), at == 0).unwrap();
        // What a fiber begins with is none of the program's.
        if !described.function.name.is_empty() {
            frames.push((record, described));
        }
    }
    frames
}

/// A frame as the program says it, which does not know where its closures begin.
fn as_said(Described { function, line }: &Described) -> String {
    let Function { name, file, first_line } = function;
    let base = file.rsplit_once('/').map_or(&**file, |(_, base)| base);
    let name = name.replace(&format!("{CLOSURE_AT}{base}:{first_line}}}"), CLOSURE);
    format!("{name}\t{file}\t{line}")
}

/// What a new look says of a frame that is not the innermost one, with nothing known of closures.
fn describe(memory: &Recorded, layout: &Layout, [function, instruction]: Record) -> Result<Described, Unknown> {
    Functions::new(layout.clone()).describe(&Reader::new(memory, BUDGET), (function, instruction), false)
}

#[test]
fn the_functions_of_a_stack_are_those_that_the_program_says() {
    for name in RECORDINGS {
        let memory = memory(name);
        let layout = layout(&memory);
        let version = layout.version().to_string();
        assert!(version.starts_with(&format!("{}.", version_of(name))), "{name}: {version}");
        let mut functions = Functions::new(layout);
        // The second time, closures are known.
        for _ in 0..2 {
            let stack: Vec<String> =
                frames(&memory, &mut functions).iter().map(|(_, described)| as_said(described)).collect();
            assert_eq!(stack, beside(name, "said").lines().collect::<Vec<_>>(), "{name}");
            functions.begin();
        }
    }
}

#[test]
fn a_function_begins_on_its_first_line() {
    let source = beside("php/stacks", "php");
    let lines: Vec<&str> = source.lines().collect();
    for name in RECORDINGS {
        let memory = memory(name);
        let frames = frames(&memory, &mut Functions::new(layout(&memory)));
        let of_program = frames.iter().filter(|(_, described)| &*described.function.file == PROGRAM);
        let begins: Vec<u32> = of_program.map(|(_, described)| described.function.first_line).collect();
        assert!(begins.len() > 10 && begins.last() == Some(&1), "{name}: {begins:?}");
        for begin in &begins[..begins.len() - 1] {
            let line = lines[*begin as usize - 1];
            assert!(line.contains("function") || line.contains("fn ("), "{name}: {line}");
        }
    }
}

#[test]
fn a_function_that_one_of_phps_own_has_called_begins_a_loop() {
    for name in RECORDINGS {
        let memory = memory(name);
        let frames = frames(&memory, &mut Functions::new(layout(&memory)));
        let is_entry = |(record, _): &(Record, Described)| record[1] >> 56 != 0;
        let mut called_by_php = 0;
        for pair in frames.windows(2) {
            let [(_, function), (_, caller)] = [&pair[0], &pair[1]];
            if caller.function.is_internal() {
                called_by_php += 1;
                assert!(is_entry(&pair[0]), "{name}: {function:?}");
            }
            if function.function == caller.function {
                assert!(!is_entry(&pair[0]), "{name}: {function:?}");
            }
        }
        assert!(called_by_php > 1 && frames.last().is_some_and(is_entry), "{name}");
    }
}

#[test]
fn a_closure_whose_description_was_freed_is_known_by_its_code() {
    for name in RECORDINGS {
        let mut memory = memory(name);
        let layout = layout(&memory);
        let mut functions = Functions::new(layout.clone());
        let mut closures = frames(&memory, &mut functions);
        closures.retain(|(_, described)| described.function.name.contains(CLOSURE_AT));
        assert!(closures.len() > 2, "{name}");
        for (record, before) in closures {
            let [function, instruction] = record;
            // It begins with its kind.
            memory.overwrite(Avma(function & ADDRESS), &[0]);
            assert_eq!(describe(&memory, &layout, record), Err(Unknown::No("function")), "{name}");
            let reader = Reader::new(&memory, BUDGET);
            let after = functions.describe(&reader, (function, instruction), false).unwrap();
            let place = |Described { function, line }: &Described| (function.file.clone(), function.first_line, *line);
            assert_eq!(place(&after), place(&before), "{name}");
            // Its code does not say of which class it is.
            assert!(before.function.name.ends_with(&*after.function.name), "{name}: {before:?} {after:?}");
        }
    }
}

#[test]
fn what_has_another_name_or_begins_on_another_line_is_not_named() {
    for name in RECORDINGS {
        let memory = memory(name);
        let layout = layout(&memory);
        let frames = frames(&memory, &mut Functions::new(layout.clone()));
        let (pause, of_pause) = &frames[1];
        assert_eq!(&*of_pause.function.name, "pause", "{name}");
        let other = word(&memory, (pause[0] & ADDRESS) + NAME as u64);
        for (record, described) in frames.iter().filter(|(_, described)| !described.function.is_internal()) {
            assert!(describe(&memory, &layout, *record).is_ok(), "{name}: {described:?}");
            let place = record[0] & ADDRESS;
            let mut changed = memory.clone();
            let line = described.function.first_line ^ 1;
            changed.overwrite(Avma(place + layout.function.lines as u64), &line.to_le_bytes());
            assert!(describe(&changed, &layout, *record).is_err(), "{name}: {described:?}");
            let name_at = place + NAME as u64;
            // What has none may have got one since.
            if [0, other].contains(&word(&memory, name_at)) {
                continue;
            }
            let mut changed = memory.clone();
            changed.overwrite(Avma(name_at), &other.to_le_bytes());
            let replaced = Err(Unknown::Replaced("function"));
            assert_eq!(describe(&changed, &layout, *record), replaced, "{name}: {described:?}");
        }
    }
}

/// The object on which those frames hang that one of the list stands for.
fn object_of_stand_in(spec: &ListSpec, memory: &Recorded) -> u64 {
    let of = |at: u64, offset: u16| word(memory, at + u64::from(offset));
    let (detour, next) = (spec.detour, u64::from(spec.next));
    let mut at = follow(&spec.ways[0], 0, &Reader::new(memory, BUDGET)).unwrap();
    while of(at, detour.unless) != 0 || of(at, detour.object).wrapping_add(detour.own.into()) != at {
        at = word(memory, at + next);
    }
    of(at, detour.object)
}

#[test]
fn a_list_that_is_a_circle_ends() {
    for name in RECORDINGS {
        let memory = memory(name);
        let layout = layout(&memory);
        let spec = layout.walk();
        let walked = |memory: &Recorded| walk(spec, 0, &Reader::new(memory, BUDGET));
        let whole = walked(&memory);
        let first = follow(&spec.ways[0], 0, &Reader::new(&memory, BUDGET)).unwrap();
        let next = Avma(first + u64::from(spec.next));
        let mut circle = memory.clone();
        circle.overwrite(next, &first.to_le_bytes());
        let around = walked(&circle);
        assert_eq!((around.end, around.records.len()), (ListEnd::TooLong, MAX_LISTED), "{name}");
        circle.overwrite(next, &8_u64.to_le_bytes());
        let cut = walked(&circle);
        assert_eq!((cut.end, &cut.records[..]), (ListEnd::Unreadable, &whole.records[..1]), "{name}");
        // Generators that wait for each other: those that are met before are there, and none of these.
        let object = object_of_stand_in(spec, &memory);
        let mut circle = memory.clone();
        circle.overwrite(Avma(object + u64::from(spec.detour.next)), &object.to_le_bytes());
        let around = walked(&circle);
        assert_eq!(around.end, ListEnd::TooLong, "{name}");
        assert!(whole.records.starts_with(&around.records) && around.records.len() < whole.records.len(), "{name}");
    }
}

/// Asks for all frames, and for one more.
fn ask<M: Memory>(layout: Layout, reader: &Reader<M>, also: (u64, u64)) {
    let mut functions = Functions::new(layout);
    let walked = walk(functions.layout().walk(), 0, reader);
    assert!(walked.records.len() <= MAX_LISTED);
    let asked = walked.records.into_iter().map(|[function, instruction]| (function, instruction)).chain([also]);
    for (at, frame) in asked.enumerate() {
        let described = functions.describe(reader, frame, at == 0);
        let text = described.map_or(0, |is| is.function.name.len() + is.function.file.len());
        assert!(text <= MAX_TEXT, "{text}");
    }
    assert!(functions.bytes() <= MAX_BYTES);
}

/// The words that are read of a recording, its layout included.
fn all_taken(memory: &Recorded) -> Vec<u64> {
    taken(memory, BUDGET, |reader| ask(Layout::read(memory, reader).unwrap(), reader, (0, 0)))
}

#[test]
fn each_word_that_is_read_may_be_anything() {
    for name in RECORDINGS {
        let memory = memory(name);
        let honest = layout(&memory);
        let of_frames = taken(&memory, BUDGET, |reader| ask(honest.clone(), reader, (0, 0)));
        with_each_word_damaged(&memory, &of_frames, |damaged| {
            ask(honest.clone(), &Reader::new(damaged, BUDGET), (0, 0));
        });
        // Any other word leaves the layout as it is.
        let of_layout = taken(&memory, BUDGET, |reader| {
            Layout::read(&memory, reader).unwrap();
        });
        with_each_word_damaged(&memory, &of_layout, |damaged| {
            let reader = Reader::new(damaged, BUDGET);
            if let Some(lying) = Layout::read(damaged, &reader).ok().filter(|lying| *lying != honest) {
                ask(lying, &reader, (0, 0));
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
        also in any::<(u64, u64)>(),
        budget in budgets(BUDGET, 20, 2000),
    ) {
        let mut memory = memory(RECORDINGS[recording]);
        let honest = layout(&memory);
        let taken = all_taken(&memory);
        damage(&mut memory, &taken, &damages);
        let lying = Layout::read(&memory, &Reader::new(&memory, budget));
        for layout in [Some(honest), lying.ok()].into_iter().flatten() {
            let counting = Counting::new(&memory);
            ask(layout, &Reader::new(&counting, budget), also);
            prop_assert!(counting.bytes() <= u64::from(budget.pages) * 4096);
        }
    }
}
