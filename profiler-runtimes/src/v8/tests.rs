//! What was recorded of real processes: `recorded/tiers.js` under four versions of Node, by `recorded/record.sh`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::*;
use crate::recorded::{Counting, Recorded};
use crate::replay::budgets;
use crate::{Budget, Symbols};

const BUDGET: Budget = Budget { pages: 1 << 12, steps: 1 << 18 };
const VERSIONS: [&str; 4] = ["node20", "node22", "node24", "node26"];

/// Functions from the inside out, and what the program says of the line in which each calls the one before it.
const STACK: [(&str, &str); 7] = [
    ("pause", "// pause waits"),
    ("leaf", "// leaf calls pause"),
    ("closure", "// closure calls leaf"),
    ("method", "// method calls closure"),
    ("outer", "// outer calls method"),
    ("main", "// main calls outer"),
    ("", "main();"),
];

/// What each calls; nothing is said of the innermost.
const CALLED: [&str; 7] = ["", "pause(", "leaf(", "closure(", "method(", "outer(", "main("];

/// How the parameters of each begin.
const BEGINS: [&str; 6] =
    ["function pause(", "function leaf(", "closure: (", "  method(", "function outer(", "function main("];

struct Recording {
    memory: Recorded,
    frames: Vec<FrameWords>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("recorded")
}

fn recording(name: &str) -> Recording {
    let path = folder().join(format!("{name}.mem"));
    let memory = Recorded::read(fs::File::open(&path).unwrap()).unwrap();
    let words = fs::read_to_string(path.with_extension("mem.frames")).unwrap();
    let mut frames: Vec<FrameWords> = words.lines().map(frame).collect();
    // The files have not what was taken of the script's source and name: the memory has it.
    let capture = layout(&memory).capture();
    for frame in &mut frames {
        let of_function = |chain| follow(&memory, chain, frame.function);
        let (source, name) = (of_function(&capture.source), of_function(&capture.name));
        frame.taken = frame.taken.map(|taken| Taken { source, name, ..taken });
    }
    Recording { memory, frames }
}

/// What a chain ends at.
fn follow(memory: &Recorded, chain: &Chain, mut word: u64) -> Option<u64> {
    let reader = Reader::new(memory, BUDGET);
    for offset in chain.through.iter().chain([&chain.value]) {
        word = reader.u64(Avma(word.checked_sub(1)?.wrapping_add(u64::from(*offset)))).ok()?;
    }
    Some(word)
}

fn frame(line: &str) -> FrameWords {
    let words: Vec<&str> = line.split(' ').collect();
    let number = |at: usize| u64::from_str_radix(words[at], 16).ok();
    let all = |from: usize| -> Option<Vec<u64>> { (from..words.len()).map(number).collect() };
    FrameWords {
        pc: Avma(number(0).unwrap()),
        is_call: words[1] == "call",
        is_left: false,
        place: number(2).map_or(Where::Generated, |at| Where::Module(Avma(at))),
        context: number(3).unwrap(),
        function: number(4).unwrap(),
        bytecode_array: number(5).unwrap(),
        bytecode_offset: number(6).unwrap(),
        taken: number(7).map(|shared| Taken {
            shared,
            literal: number(8).unwrap() as u32,
            script: number(9).unwrap(),
            source: None,
            name: None,
        }),
        leaf: all(10).map(|leaf| LeafRegisters {
            function: leaf[0],
            bytecode_array: leaf[1],
            bytecode_offset: leaf[2],
        }),
    }
}

fn layout(memory: &Recorded) -> Layout {
    Layout::read(memory, &Reader::new(memory, BUDGET)).unwrap()
}

fn describe(recording: &Recording) -> Vec<Described> {
    let mut names = Names::new(layout(&recording.memory));
    let reader = Reader::new(&recording.memory, BUDGET);
    recording.frames.iter().map(|frame| names.describe(&reader, frame)).collect()
}

/// The program's own frames, from the inside out.
fn of_program(described: &[Described]) -> Vec<Frame> {
    let frames = described.iter().filter_map(|described| match described {
        Described::Functions(frames) => Some(frames.clone()),
        _ => None,
    });
    let scripts = ["/tmp/tiers/tiers.js", "in-context.js"];
    frames.flatten().filter(|frame| scripts.contains(&frame.function.script())).collect()
}

/// All functions, as they are written into dumps.
fn texts(described: &[Described]) -> Vec<String> {
    let functions = described.iter().filter_map(|described| match described {
        Described::Functions(frames) => Some(frames),
        _ => None,
    });
    functions.flatten().map(ToString::to_string).collect()
}

fn marks(frames: &[Frame]) -> String {
    frames.iter().map(|frame| if frame.inlined { 'i' } else { frame.tier.mark() }).collect()
}

/// Checks names and places against the program, and returns the frames.
fn check(name: &str) -> Vec<Frame> {
    let source = fs::read_to_string(folder().join("tiers.js")).unwrap();
    let lines: Vec<&str> = source.lines().collect();
    let line_of = |text: &str| lines.iter().position(|line| line.contains(text)).map(|line| line as u32 + 1);
    let described = describe(&recording(name));
    let unknown = described.iter().find(|described| matches!(described, Described::Unknown(_)));
    assert_eq!(unknown, None, "{name}");
    let frames = of_program(&described);
    let names: Vec<&str> = frames.iter().map(|frame| frame.function.name()).collect();
    let whole: Vec<&str> = STACK.iter().map(|(name, _)| *name).collect();
    assert!(names.len() >= 4 && names == whole[..names.len()], "{name}: {names:?}");
    for (frame, (function, marker)) in frames.iter().zip(STACK) {
        let at = frame.at.map(|at| at.line);
        match function {
            // In a context of its own, the program's end is another.
            "" if frame.function.script() == "in-context.js" => assert_eq!(at, line_of("if (process"), "{name}"),
            "" => assert!(at.is_some_and(|at| lines[at as usize - 1].contains(marker)), "{name}: {at:?}"),
            // The innermost was taken wherever it was in its loop; where there is no call, the line may not be known.
            "pause" => assert!(at.is_none_or(|at| (13..=18).contains(&at)), "{name}: {at:?}"),
            // Maglev of Node 24 takes loops apart, and then has the loop's line for calls that it inlined in the second
            // copy: V8's own table says so, to its own profiler as well.
            "main" if frame.tier == Tier::Mid && at == line_of("for (;;)") => {}
            _ => assert_eq!(at, line_of(marker), "{name}: {function}"),
        }
    }
    check_columns(name, &frames, &lines);
    for (frame, begins) in frames.iter().zip(BEGINS) {
        let line = line_of(begins).unwrap();
        let column = lines[line as usize - 1].find('(').unwrap() as u32 + 1;
        assert_eq!(frame.function.begins(), Some(Place { line, column }), "{name}: {}", frame.function.name());
    }
    frames
}

/// Of the calls, the column is that of the name that is called, as in a stack trace of V8's own.
fn check_columns(name: &str, frames: &[Frame], lines: &[&str]) {
    for (frame, called) in frames.iter().zip(CALLED).skip(1) {
        let Some(Place { line, column }) = frame.at else { continue };
        // In a context of its own the program's last line is another, and a loop calls nothing.
        let begin = lines[line as usize - 1].find(called).map_or(1, |at| at as u32 + 1);
        if !lines[line as usize - 1].contains("for (;;)") {
            assert_eq!(column, begin, "{name}: {} at {line}", frame.function.name());
        }
    }
}

#[test]
fn interpreted_functions_have_their_names_and_lines() {
    for version in VERSIONS {
        let frames = check(&format!("{version}-interpreted"));
        assert_eq!(marks(&frames).trim_matches('~'), "", "{version}");
    }
}

#[test]
fn baseline_code_has_its_functions_names_and_lines() {
    for version in VERSIONS {
        let frames = check(&format!("{version}-baseline"));
        assert_eq!(marks(&frames).trim_matches('^'), "", "{version}");
    }
}

#[test]
fn functions_inlined_by_turbofan_are_frames_with_their_lines() {
    for version in VERSIONS {
        let marks = marks(&check(&format!("{version}-default")));
        assert!(marks.contains("i*"), "{version}: {marks}");
    }
}

#[test]
fn functions_inlined_by_maglev_are_frames_with_their_lines() {
    // Node 20 and 22 are built without Maglev.
    for version in ["node24", "node26"] {
        let marks = marks(&check(&format!("{version}-maglev")));
        assert!(marks.contains("i+"), "{version}: {marks}");
    }
}

#[test]
fn worker_threads_and_contexts_are_read_like_the_first() {
    for version in VERSIONS {
        assert!(marks(&check(&format!("{version}-thread"))).contains("i*"), "{version}");
        let in_context = check(&format!("{version}-context"));
        assert!(marks(&in_context).contains("i*"), "{version}");
        assert_eq!(in_context[0].function.script(), "in-context.js");
    }
}

#[test]
fn without_what_was_taken_the_function_is_asked() {
    for name in ["node20-default", "node22-baseline", "node24-interpreted", "node26-maglev"] {
        let mut recording = recording(name);
        let before = describe(&recording);
        recording.frames.iter_mut().for_each(|frame| frame.taken = None);
        assert_eq!(of_program(&describe(&recording)), of_program(&before), "{name}");
    }
}

#[test]
fn of_a_function_that_was_moved_the_numbers_that_were_taken_are_enough() {
    for version in VERSIONS {
        let mut recording = recording(&format!("{version}-interpreted"));
        let before = describe(&recording);
        for frame in recording.frames.iter_mut().filter(|frame| frame.taken.is_some()) {
            frame.taken = frame.taken.map(|taken| Taken { source: None, name: None, ..taken });
            frame.function = 0x4001;
        }
        assert_eq!(of_program(&describe(&recording)), of_program(&before), "{version}");
        for frame in &mut recording.frames {
            frame.taken = frame.taken.map(|taken| Taken { literal: 77, ..taken });
        }
        assert_eq!(of_program(&describe(&recording)), [], "{version}");
    }
}

#[test]
fn a_frame_is_written_as_v8_does_into_dumps() {
    let described = describe(&recording("node24-interpreted"));
    let written: Vec<String> = of_program(&described).iter().map(ToString::to_string).collect();
    assert_eq!(
        written[..3],
        [
            "JS:~pause /tmp/tiers/tiers.js:12:15",
            "JS:~leaf /tmp/tiers/tiers.js:4:14",
            "JS:~closure /tmp/tiers/tiers.js:21:12"
        ]
    );
}

#[test]
fn the_chains_lead_from_the_function_to_what_was_taken() {
    for version in VERSIONS {
        let recording = recording(&format!("{version}-interpreted"));
        let capture = layout(&recording.memory).capture();
        let described = describe(&recording);
        let functions = recording.frames.iter().zip(described).filter(|(_, is)| matches!(is, Described::Functions(_)));
        let mut checked = 0;
        for (frame, _) in functions {
            let end = |chain| follow(&recording.memory, chain, frame.function).unwrap();
            let taken = Taken {
                shared: end(&capture.shared),
                literal: end(&capture.literal) as u32,
                script: end(&capture.script),
                source: Some(end(&capture.source)),
                name: Some(end(&capture.name)),
            };
            assert_eq!(frame.taken, Some(taken));
            checked += 1;
        }
        assert!(checked >= 4, "{version}: {checked}");
    }
}

/// The same frames, where something was changed in memory after the first time.
fn change(name: &str, change: impl Fn(&Layout, &mut Recorded, &FrameWords)) -> (Vec<Described>, Vec<Described>) {
    let mut recording = recording(name);
    let mut names = Names::new(layout(&recording.memory));
    let mut describe = |recording: &Recording| -> Vec<Described> {
        let reader = Reader::new(&recording.memory, BUDGET);
        recording.frames.iter().map(|frame| names.describe(&reader, frame)).collect()
    };
    let before = describe(&recording);
    let layout = layout(&recording.memory);
    let innermost = before.iter().position(|is| matches!(is, Described::Functions(_))).unwrap();
    let frame = recording.frames[innermost];
    change(&layout, &mut recording.memory, &frame);
    let after = describe(&recording);
    (before[innermost..].to_vec(), after[innermost..].to_vec())
}

#[test]
fn a_name_that_is_known_is_not_given_to_another_function() {
    // Another function stands where the frame's was: its number within the script differs.
    for name in ["node20-default", "node24-baseline", "node26-interpreted"] {
        let (before, after) = change(name, |layout, memory, frame| {
            let word = |memory: &Recorded, at: u64| Reader::new(memory, BUDGET).u64(Avma(at)).unwrap();
            let shared = word(memory, frame.function - 1 + layout.function.shared);
            memory.overwrite(Avma(shared - 1 + layout.shared.literal), &77_u32.to_le_bytes());
        });
        assert!(matches!(before[0], Described::Functions(_)));
        assert_eq!(after[0], Described::Unknown(Unknown::Replaced), "{name}");
    }
}

#[test]
fn a_name_that_is_known_is_not_given_to_what_another_isolate_has_put_into_its_place() {
    // The same numbers and lengths at the same addresses, and other characters.
    for name in ["node20-default", "node22-baseline", "node24-interpreted", "node26-interpreted"] {
        for (text, other) in [("pause", "dwell"), ("tiers.js", "other.js")] {
            let (before, after) = change(name, |_, memory, _| {
                let pages: Vec<Avma> = memory.page_addresses().collect();
                let mut page = vec![0; 4096];
                for start in pages {
                    let count = Memory::read(&*memory, start, &mut page).unwrap();
                    let found = page[..count].windows(text.len()).enumerate().filter(|(_, at)| *at == text.as_bytes());
                    let found: Vec<usize> = found.map(|(at, _)| at).collect();
                    found.iter().for_each(|at| memory.overwrite(Avma(start.0 + *at as u64), other.as_bytes()));
                }
            });
            let [before, after] = [before, after].map(|described| texts(&described));
            assert!(before[0].contains(text), "{before:?}");
            let renamed: Vec<String> = before.iter().map(|before| before.replace(text, other)).collect();
            assert_eq!(after, renamed, "{name}");
        }
    }
}

#[test]
fn a_sample_of_a_worker_that_has_ended_is_not_named_by_the_one_that_came_to_its_place() {
    // The same numbers at the same addresses, of a script of another length, or whose name has another length or hash.
    type Change = fn(u64) -> u64;
    let (length, hash): (Change, Change) = (|print| print - (1 << 32), |print| print ^ 0x40);
    for name in ["node20-default", "node22-baseline", "node24-interpreted", "node26-interpreted"] {
        // Node 20 has made no hash of the source.
        let of_source = (!name.starts_with("node20")).then_some((false, hash));
        for (of_name, other) in [(false, length), (true, length), (true, hash)].into_iter().chain(of_source) {
            let (before, after) = change(name, |layout, memory, frame| {
                let word = |at: u64| Reader::new(&*memory, BUDGET).u64(Avma(at)).unwrap();
                let shared = word(frame.function - 1 + layout.function.shared);
                let script = word(shared - 1 + layout.shared.script);
                let string = word(script - 1 + if of_name { layout.script.name } else { layout.script.source });
                let at = string - 1 + layout.strings.print();
                let print = other(word(at));
                memory.overwrite(Avma(at), &print.to_le_bytes());
            });
            assert!(matches!(before[0], Described::Functions(_)));
            assert_eq!(after[0], Described::Unknown(Unknown::Replaced), "{name}, name: {of_name}");
        }
    }
}

/// A function's script and the script's source, without tags.
fn script_and_source(layout: &Layout, memory: &Recorded, function: u64) -> [u64; 2] {
    let word = |at: u64| Reader::new(memory, BUDGET).u64(Avma(at)).unwrap();
    let shared = word(function - 1 + layout.function.shared) - 1;
    let script = word(shared + layout.shared.script) - 1;
    [script, word(script + layout.script.source) - 1]
}

#[test]
fn a_source_whose_hash_came_in_between_is_another_one_unless_the_name_vouches_for_it() {
    const NO_HASH: u64 = 3;
    for (also_name, is_same) in [(false, true), (true, false)] {
        let (before, after) = change("node24-interpreted", |layout, memory, frame| {
            let word = |at: u64| Reader::new(&*memory, BUDGET).u64(Avma(at)).unwrap();
            let [script, source] = script_and_source(layout, memory, frame.function);
            let name = word(script + layout.script.name) - 1;
            let strings = [Some(source), Some(name).filter(|_| also_name)].map(|string| {
                let at = string? + layout.strings.print();
                Some((at, (word(at) >> 32 << 32) | NO_HASH))
            });
            for (at, print) in strings.into_iter().flatten() {
                memory.overwrite(Avma(at), &print.to_le_bytes());
            }
        });
        assert!(matches!(before[0], Described::Functions(_)));
        let replaced = Described::Unknown(Unknown::Replaced);
        assert_eq!(after[0], if is_same { before[0].clone() } else { replaced }, "name: {also_name}");
    }
}

#[test]
fn lines_and_bytecodes_of_a_script_without_a_hash_are_those_that_are_there_now() {
    let Recording { mut memory, frames } = recording("node20-interpreted");
    let layout = layout(&memory);
    let mut names = Names::new(layout.clone());
    let mut lines = |memory: &Recorded| -> Vec<Option<u32>> {
        let reader = Reader::new(memory, BUDGET);
        let described: Vec<Described> = frames.iter().map(|frame| names.describe(&reader, frame)).collect();
        of_program(&described).iter().map(|frame| frame.at.map(|at| at.line)).collect()
    };
    let before = lines(&memory);
    assert!(before.iter().flatten().count() > 3, "{before:?}");
    // The first two lines become one.
    let taken: Vec<FrameWords> = frames.iter().copied().filter(|frame| frame.taken.is_some()).collect();
    let [_, source] = script_and_source(&layout, &memory, taken[0].function);
    let newline = fs::read_to_string(folder().join("tiers.js")).unwrap().find('\n').unwrap() as u64;
    memory.overwrite(Avma(source + layout.strings.chars + newline), b" ");
    let after = lines(&memory);
    assert_eq!(after, before.iter().map(|line| line.map(|line| line - 1)).collect::<Vec<_>>());
    // The tables of positions become empty.
    for frame in taken {
        let positions = frame.bytecode_array - 1 + layout.bytecode.positions;
        let positions = Reader::new(&memory, BUDGET).u64(Avma(positions)).unwrap();
        memory.overwrite(Avma(positions - 1 + layout.deopt.length), &[0; 8]);
    }
    assert_eq!(lines(&memory).iter().flatten().count(), 0);
}

#[test]
fn what_was_inlined_into_code_of_a_script_without_a_hash_is_what_its_tables_say_now() {
    let Recording { mut memory, frames } = recording("node20-default");
    let layout = layout(&memory);
    let mut names = Names::new(layout.clone());
    let mut describe = |memory: &Recorded, frame: &FrameWords| names.describe(&Reader::new(memory, BUDGET), frame);
    let inlined = |described: Described| match described {
        Described::Functions(functions) => Some(functions).filter(|functions| functions.len() > 1),
        _ => None,
    };
    let (frame, before) = frames.iter().find_map(|frame| Some((frame, inlined(describe(&memory, frame))?))).unwrap();
    let reader = Reader::new(&memory, BUDGET);
    let heap = Heap { layout: &layout, reader: &reader };
    let code = Codes::default().around(&heap, frame.pc, heap.function(frame.function).ok()).unwrap();
    let positions = heap.object(code.object, layout.code.positions, "table of positions").unwrap();
    drop(reader);
    memory.overwrite(Avma(positions.0 + layout.deopt.length), &[0; 8]);
    let outermost = Frame { at: None, ..before.last().unwrap().clone() };
    assert_eq!(describe(&memory, frame), Described::Functions(vec![outermost]));
}

#[test]
fn of_a_long_script_without_a_hash_some_lines_are_looked_at_again() {
    let Recording { mut memory, frames } = recording("node20-default");
    let layout = layout(&memory);
    let mut names = Names::new(layout.clone());
    let mut function = |memory: &Recorded, frame: &FrameWords| {
        let described = names.describe(&Reader::new(memory, BUDGET), frame);
        if let Described::Functions(functions) = described { Some(functions[0].function.clone()) } else { None }
    };
    let is_of_node = |function: &Arc<Function>| function.script().starts_with("node:");
    let found = frames.iter().find_map(|frame| Some((frame, function(&memory, frame).filter(is_of_node)?)));
    let (frame, before) = found.unwrap();
    assert!(before.begins().unwrap().line > 1);
    // Its text lies outside of the heap.
    let [_, source] = script_and_source(&layout, &memory, frame.function);
    let word = |at: u64| Reader::new(&memory, BUDGET).u64(Avma(at)).unwrap();
    let (length, text) = (word(source + layout.strings.print()) >> 32, word(source + layout.strings.resource + 8));
    assert!(length > 16_383);
    memory.overwrite(Avma(text), &vec![b' '; length as usize]);
    assert_eq!(function(&memory, frame).unwrap().begins().unwrap().line, 1);
}

/// Memory of which some bytes are others, and what was not recorded is 0.
struct With<'a>(&'a Recorded, BTreeMap<u64, u8>);

impl Memory for With<'_> {
    fn read(&self, address: Avma, into: &mut [u8]) -> io::Result<usize> {
        into.fill(0);
        // What is not there stays 0.
        let _ = self.0.read(address, into);
        for (at, byte) in self.1.range(address.0..address.0 + into.len() as u64) {
            into[(at - address.0) as usize] = *byte;
        }
        Ok(into.len())
    }
}

/// The innermost frame of generated code, of a function that was optimised, and the deoptimisation exits of that.
struct Deoptimizable {
    recording: Recording,
    frame: FrameWords,
    functions: Vec<Frame>,
    /// Where the first exit begins.
    exits: u64,
    eager: u64,
    /// Where calls return to, of the exits behind those.
    returns: Vec<u64>,
}

impl Deoptimizable {
    fn of(name: &str) -> Self {
        let recording = recording(name);
        let layout = layout(&recording.memory);
        let innermost = recording.frames.iter().position(|frame| frame.place == Where::Generated).unwrap();
        let frame = recording.frames[innermost];
        let Described::Functions(functions) = describe(&recording).swap_remove(innermost) else { panic!("{name}") };
        let reader = Reader::new(&recording.memory, BUDGET);
        let heap = Heap { layout: &layout, reader: &reader };
        let code = Codes::default().around(&heap, frame.pc, heap.function(frame.function).ok()).unwrap();
        let data = heap.object(code.object, layout.code.deopt, "data").unwrap();
        let number = |index: u64| small_integer(heap.element(data, layout.deopt.exits + index).unwrap()).unwrap();
        let [exits, eager, lazy] = [0, 1, 2].map(|index| number(index) as u64);
        let returns = (eager..eager + lazy).map(|exit| code.start + number(3 + 3 * exit + 2) as u64).collect();
        drop(reader);
        Self { frame, functions, exits: code.start + exits, eager, returns, recording }
    }

    /// What the frame is at an exit, if instructions with these bytes are there.
    fn at(&self, exit: u64, bytes: [u8; 3], is_call: bool) -> Described {
        self.of_frame(bytes, FrameWords { pc: Avma(self.exits + 4 * exit), is_call, ..self.frame })
    }

    /// What a frame is, if instructions with these bytes are there.
    fn of_frame(&self, bytes: [u8; 3], frame: FrameWords) -> Described {
        let memory = With(&self.recording.memory, (frame.pc.0..).zip(bytes).collect());
        Names::new(layout(&self.recording.memory)).describe(&Reader::new(&memory, BUDGET), &frame)
    }

    fn outermost(&self) -> Described {
        let function = self.functions.last().unwrap().clone();
        Described::Functions(vec![Frame { at: None, ..function }])
    }
}

const CALL: [u8; 3] = [0x41, 0xff, 0x55];

#[test]
fn a_caller_whose_code_is_given_up_has_the_functions_and_lines_of_its_call() {
    for version in VERSIONS {
        let caller = Deoptimizable::of(&format!("{version}-context"));
        assert!(caller.frame.is_call && caller.functions.len() > 1, "{version}");
        // V8 has put the address of the call's exit into the place of the return address.
        let nth = caller.returns.iter().position(|returns_to| *returns_to == caller.frame.pc.0).unwrap() as u64;
        let exit = caller.eager + nth;
        assert_eq!(caller.at(exit, CALL, true), Described::Functions(caller.functions.clone()), "{version}");
        // The exit itself is run when the call has returned.
        let mut left = caller.functions.clone();
        left[0].at = None;
        assert_eq!(caller.at(exit, CALL, false), Described::Functions(left), "{version}");
    }
}

#[test]
fn at_an_exit_that_does_not_say_its_call_there_is_the_outermost_function_alone() {
    for version in VERSIONS {
        let caller = Deoptimizable::of(&format!("{version}-context"));
        // The code itself goes there; it is no exit of this processor; there are no more of them.
        let (eager, lazy) = (caller.eager, caller.returns.len() as u64);
        for (exit, bytes) in [(0, CALL), (eager, [0; 3]), (eager + lazy, CALL)] {
            for is_call in [false, true] {
                assert_eq!(caller.at(exit, bytes, is_call), caller.outermost(), "{version} {exit} {is_call}");
            }
        }
    }
    // Maglev's have their own place where those of TurboFan have that of the call.
    for version in ["node24", "node26"] {
        let caller = Deoptimizable::of(&format!("{version}-maglev"));
        assert_eq!(caller.functions.last().unwrap().tier, Tier::Mid);
        assert_eq!(caller.at(caller.eager, CALL, true), caller.outermost(), "{version}");
    }
}

#[test]
fn what_an_exit_has_called_does_not_return_to_the_call_of_the_next_exit() {
    for version in VERSIONS {
        let caller = Deoptimizable::of(&format!("{version}-context"));
        for exit in caller.eager..=caller.eager + caller.returns.len() as u64 {
            let left = FrameWords { pc: Avma(caller.exits + 4 * exit), is_left: true, ..caller.frame };
            assert_eq!(caller.of_frame(CALL, left), caller.outermost(), "{version} {exit}");
        }
        // A call elsewhere is one.
        let left = FrameWords { is_left: true, ..caller.frame };
        assert_eq!(caller.of_frame([0; 3], left), Described::Functions(caller.functions.clone()), "{version}");
    }
}

/// Symbols, and two more.
struct WithExits<'a>(&'a Recorded, [u64; 2]);

impl Symbols for WithExits<'_> {
    fn address_of(&self, name: &str) -> Option<Avma> {
        match name.strip_prefix("Builtins_DeoptimizationEntry_") {
            Some("Eager") => Some(Avma(self.1[0])),
            Some("Lazy") => Some(Avma(self.1[1])),
            _ => self.0.address_of(name),
        }
    }
}

#[test]
fn what_exits_call_is_two_neighbours_of_one_length() {
    let Recording { memory, .. } = recording("node24-interpreted");
    let left_by = |exits| {
        let symbols = WithExits(&memory, exits);
        Layout::read(&symbols, &Reader::new(&memory, BUDGET)).unwrap().capture().left_by
    };
    assert_eq!(left_by([0x18c_4000, 0x18c_4340]), Some((Avma(0x18c_4000), 0x680)));
    for apart in [[0x18c_4340, 0x18c_4000], [0x18c_4000, 0x18d_4000], [0x18c_4000; 2], [u64::MAX - 8, u64::MAX]] {
        assert_eq!(left_by(apart), None);
    }
}

#[test]
fn code_that_was_freed_is_not_named() {
    // The header of the code is gone, as that of a free place is.
    let (before, after) = change("node24-default", |layout, memory, frame| {
        let heap = Heap { layout, reader: &Reader::new(&*memory, BUDGET) };
        let code = Codes::default().around(&heap, frame.pc, None).unwrap();
        memory.overwrite(Avma(code.start - layout.code.header), &[0; 8]);
    });
    assert!(matches!(before[0], Described::Functions(_)));
    assert_eq!(after[0], Described::Unknown(Unknown::NoCode));
}

#[test]
fn an_object_that_is_being_moved_is_said_to_be() {
    // The collector puts the new address in the place of the map.
    let (_, after) = change("node22-interpreted", |layout, memory, frame| {
        let shared = Reader::new(&*memory, BUDGET).u64(Avma(frame.function - 1 + layout.function.shared)).unwrap();
        memory.overwrite(Avma(shared - 1), &0x7777_0000_u64.to_le_bytes());
    });
    assert_eq!(after[0], Described::Unknown(Unknown::Moving));
}

#[test]
fn an_object_that_was_moved_is_told_by_the_map_at_its_new_place() {
    for (name, moved_to) in [("node22-interpreted", 0), ("node26-baseline", 0), ("node26-baseline", 8)] {
        let (before, after) = change(name, |layout, memory, frame| {
            let word = |at: u64| Reader::new(&*memory, BUDGET).u64(Avma(at)).unwrap();
            let shared = word(frame.function - 1 + layout.function.shared);
            // Of the page, some other word takes the map.
            let map = word(shared - 1);
            let place = (shared - 1) & !0xfff;
            memory.overwrite(Avma(place), &map.to_le_bytes());
            memory.overwrite(Avma(shared - 1), &(place + moved_to).to_le_bytes());
        });
        if moved_to == 0 {
            assert_eq!(before[0], after[0], "{name}");
        } else {
            assert!(matches!(after[0], Described::Unknown(_)), "{name}");
        }
    }
}

#[test]
fn an_answer_depends_on_nothing_that_was_not_looked_at() {
    let (mut optimized, mut by_register) = (0, 0);
    for version in VERSIONS {
        for kind in ["default", "baseline", "interpreted"] {
            let Recording { memory, frames } = recording(&format!("{version}-{kind}"));
            let mut names = Names::new(layout(&memory));
            let reader = Reader::new(&memory, BUDGET);
            for frame in frames {
                let described = names.describe(&reader, &frame);
                let looked = names.looked();
                let other = |parts: Looked, word: u64, or: u64| if looked.has(parts) { word } else { or };
                let context = if looked.has(Looked::CONTEXT_TAG) { 0x40 | frame.context & 3 } else { 0x77 };
                let of_taken = |taken: Taken| Taken {
                    shared: other(Looked::SHARED, taken.shared, 0x1001),
                    literal: if looked.has(Looked::IDENTITY) { taken.literal } else { 77 },
                    script: other(Looked::IDENTITY, taken.script, 0x7_0000_0000),
                    source: taken.source.map(|source| other(Looked::IDENTITY, source, 0x7_0000_0003)),
                    name: taken.name.map(|name| other(Looked::IDENTITY, name, 0x7_0000_0003)),
                };
                let of_leaf = |leaf: LeafRegisters| LeafRegisters {
                    function: other(Looked::LEAF_FUNCTION, leaf.function, 0x2001),
                    bytecode_array: other(Looked::LEAF_ARRAY, leaf.bytecode_array, 0x3001),
                    bytecode_offset: other(Looked::LEAF_OFFSET, leaf.bytecode_offset, 99),
                };
                let altered = FrameWords {
                    context: other(Looked::CONTEXT, frame.context, context),
                    function: other(Looked::FUNCTION, frame.function, 0x4001),
                    bytecode_array: other(Looked::BYTECODE_ARRAY, frame.bytecode_array, 0x5001),
                    bytecode_offset: other(Looked::BYTECODE_OFFSET, frame.bytecode_offset, 0x5_0000_0000),
                    taken: frame.taken.map(of_taken),
                    leaf: frame.leaf.map(of_leaf),
                    ..frame
                };
                assert_eq!(names.describe(&reader, &altered), described, "{version}-{kind} {frame:?}");
                assert_eq!(names.looked(), looked);
                if let Described::Functions(functions) = &described
                    && !matches!(functions[0].tier, Tier::Interpreted | Tier::Baseline)
                {
                    optimized += 1;
                    by_register += usize::from(looked.has(Looked::LEAF_FUNCTION));
                    assert!(!looked.has(Looked::BYTECODE_ARRAY) && !looked.has(Looked::BYTECODE_OFFSET));
                }
            }
        }
    }
    assert!(optimized > 3 && by_register < optimized, "{by_register} of {optimized}");
}

/// Symbols without some.
struct Without<'a>(&'a Recorded, &'static str, RefCell<u32>);

impl Symbols for Without<'_> {
    fn address_of(&self, name: &str) -> Option<Avma> {
        if name.contains(self.1) {
            *self.2.borrow_mut() += 1;
            return None;
        }
        self.0.address_of(name)
    }
}

#[test]
fn a_build_without_what_is_needed_is_told() {
    let Recording { memory, .. } = recording("node24-interpreted");
    let read = |without| {
        let symbols = Without(&memory, without, RefCell::default());
        let read = Layout::read(&symbols, &Reader::new(&memory, BUDGET));
        assert!(*symbols.2.borrow() > 0, "{without}");
        read
    };
    assert_eq!(read("7Version6build_E"), Err(LayoutError::NoVersion));
    let version = Version { major: 13, minor: 6, build: 233 };
    let missing = LayoutError::Missing { version, what: "scopeinfo_idx_first_vars" };
    assert_eq!(read("scopeinfo_idx_first_vars"), Err(missing.clone()));
    assert_eq!(missing.to_string(), "V8 13.6.233 does not say scopeinfo_idx_first_vars");
    // Without the sizes of bytecodes, baseline code lacks its lines only.
    assert!(!read("kBytecodeSizes").unwrap().has_bytecode_sizes());
    assert!(layout(&memory).has_bytecode_sizes());
}

#[test]
fn a_version_that_is_not_known_is_told() {
    let Recording { mut memory, .. } = recording("node24-interpreted");
    let major = memory.address_of("_ZN2v88internal7Version6major_E").unwrap();
    memory.overwrite(major, &15_u32.to_le_bytes());
    let unknown = Layout::read(&memory, &Reader::new(&memory, BUDGET));
    assert_eq!(unknown, Err(LayoutError::UnknownVersion(Version { major: 15, minor: 6, build: 233 })));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Whatever stands in memory, a reading ends, within its budget.
    #[test]
    fn hostile_memory_costs_a_bounded_reading(
        version in 0..VERSIONS.len(),
        kind in 0..3_usize,
        places in prop::collection::vec((any::<prop::sample::Index>(), 0_u64..512, any::<u64>(), 0..4_u8), 1..2000),
        words in any::<(u64, u64, u64, u64)>(),
        budget in budgets(BUDGET, 200, 20_000),
    ) {
        let kinds = ["default", "baseline", "interpreted"];
        let mut recording = recording(&format!("{}-{}", VERSIONS[version], kinds[kind]));
        let honest = layout(&recording.memory);
        let pages: Vec<Avma> = recording.memory.page_addresses().collect();
        for (page, word, value, how) in places {
            let at = Avma(page.get(&pages).0 + word * 8);
            let with = match how {
                0 => value,
                // An object of some other place.
                1 => (page.get(&pages).0 ^ (value & 0xff8)) | 1,
                // A pointer to itself.
                2 => at.0 | 1,
                _ => value << 32,
            };
            recording.memory.overwrite(at, &with.to_le_bytes());
        }
        let counting = Counting::new(&recording.memory);
        let reader = Reader::new(&counting, budget);
        let lying = Layout::read(&recording.memory, &Reader::new(&recording.memory, BUDGET));
        for layout in [Some(honest), lying.ok()].into_iter().flatten() {
            let mut names = Names::new(layout);
            for frame in recording.frames.clone() {
                // The words of a frame are the target's as well.
                let others = [
                    frame,
                    FrameWords { function: words.0, context: words.1 | 1, taken: None, ..frame },
                    FrameWords { pc: Avma(words.2), bytecode_offset: words.3, ..frame },
                ];
                for frame in others {
                    let (before, fetched) = (reader.left(), counting.bytes());
                    let described = names.describe(&reader, &frame);
                    let left = reader.left();
                    // What is fetched is paid for, and what is said of it is no more than was read.
                    prop_assert!(counting.bytes() - fetched <= u64::from(before.pages - left.pages) * 4096);
                    let text: usize = texts(&[described]).iter().map(String::len).sum();
                    prop_assert!(text as u64 <= (before.steps - left.steps) * 4096, "{text} bytes of text");
                }
            }
            prop_assert!(names.bytes() <= 80 << 20);
        }
    }
}
