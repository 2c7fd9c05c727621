//! On memory made by hand, as each version lays it out.

use std::collections::BTreeMap;
use std::io;

use jitprof_common::listed::ListEnd;
use proptest::prelude::*;

use super::*;
use crate::replay::budgets;
use crate::{Budget, Symbols, walk};

const BUDGET: Budget = Budget { pages: 1 << 12, steps: 1 << 18 };
const VARIABLES_AT: u64 = 0x1_0000;
const CODE: u64 = 0x2_0000;
const TEXT: u64 = 0x2_0800;
/// Frames, functions, their instructions and strings.
const HEAP: u64 = 0x10_0000;
/// Of each version: the engine's, and where a function has its count, instructions, file and lines.
const VERSIONS: [(&str, &str, [u64; 4]); 6] = [
    ("7.4.33", "3.4.33", [60, 64, 136, 144]),
    ("8.0.30", "4.0.30", [68, 72, 144, 152]),
    ("8.1.2", "4.1.2", [68, 72, 144, 152]),
    ("8.2.36", "4.2.36", [80, 88, 152, 160]),
    ("8.3.0", "4.3.0-dev", [76, 80, 144, 152]),
    ("8.4.11", "4.4.11", [96, 104, 168, 176]),
];

/// Pages that are there once something was put into them.
#[derive(Clone, Default)]
struct Memory(BTreeMap<u64, Vec<u8>>);

impl crate::Memory for Memory {
    fn read(&self, address: Avma, into: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < into.len() {
            let at = address.0.wrapping_add(done as u64);
            let page = self.0.get(&(at & !4095)).ok_or(io::ErrorKind::NotFound);
            let page = match page {
                Ok(page) => &page[(at & 4095) as usize..],
                Err(_) if done > 0 => break,
                Err(error) => return Err(error.into()),
            };
            let count = page.len().min(into.len() - done);
            into[done..done + count].copy_from_slice(&page[..count]);
            done += count;
        }
        Ok(done)
    }
}

impl Symbols for Memory {
    fn address_of(&self, name: &str) -> Option<Avma> {
        match name {
            "executor_globals" => Some(Avma(VARIABLES_AT)),
            "get_zend_version" => Some(Avma(CODE)),
            _ => None,
        }
    }
}

impl Memory {
    fn put(&mut self, at: u64, bytes: &[u8]) {
        for (at, byte) in (at..).zip(bytes) {
            self.0.entry(at & !4095).or_insert_with(|| vec![0; 4096])[(at & 4095) as usize] = *byte;
        }
    }

    fn word(&mut self, at: u64, word: u64) {
        self.put(at, &word.to_le_bytes());
    }

    fn half(&mut self, at: u64, half: u32) {
        self.put(at, &half.to_le_bytes());
    }
}

/// A process of a version in the making.
#[derive(Clone)]
struct Process {
    memory: Memory,
    offsets: [u64; 4],
    next: u64,
}

/// What a function is made of.
struct Made {
    function: u64,
    instructions: u64,
}

impl Process {
    fn new(engine: &str, offsets: [u64; 4]) -> Self {
        let mut memory = Memory::default();
        // mov rax, [rip + x]; ret
        let variable = CODE + 0x100;
        memory.put(CODE, &[0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x8b, 0x05, 0xf5, 0, 0, 0, 0xc3]);
        memory.word(variable, TEXT);
        memory.put(TEXT, format!("Zend Engine v{engine}, Copyright (c) Zend Technologies\n\0").as_bytes());
        memory.word(VARIABLES_AT, 0);
        memory.word(HEAP, 0);
        Self { memory, offsets, next: HEAP }
    }

    fn room(&mut self, bytes: u64) -> u64 {
        let at = self.next;
        self.next += bytes.next_multiple_of(8);
        // All of it is there.
        (at..self.next).step_by(8).for_each(|at| self.memory.word(at, 0));
        at
    }

    fn string(&mut self, text: &str) -> u64 {
        let at = self.room(32 + text.len() as u64);
        let step = |hash: u64, byte: u8| hash.wrapping_mul(33).wrapping_add(byte.into());
        self.memory.word(at, 0x46 << 32 | 1);
        self.memory.word(at + 8, text.bytes().fold(5381, step) | 1 << 63);
        self.memory.word(at + 16, text.len() as u64);
        self.memory.put(at + 24, text.as_bytes());
        at
    }

    fn class(&mut self, name: &str) -> u64 {
        let (name, at) = (self.string(name), self.room(16));
        self.memory.word(at + 8, name);
        at
    }

    /// A function of a kind whose instructions are on these lines.
    fn function(&mut self, kind: u8, name: Option<&str>, class: Option<&str>, lines: &[u32]) -> Made {
        let name = name.map_or(0, |name| self.string(name));
        let class = class.map_or(0, |class| self.class(class));
        let file = self.string("/srv/app.php");
        let instructions = self.room(32 * lines.len() as u64);
        for (at, line) in (instructions..).step_by(32).zip(lines) {
            self.memory.half(at + 24, *line);
        }
        // Between two others.
        let at = self.room(256);
        let [count, code, of_file, of_lines] = self.offsets;
        self.memory.put(at, &[kind]);
        self.memory.word(at + 8, name);
        self.memory.word(at + 16, class);
        if kind != INTERNAL {
            self.memory.word(at + code, instructions);
            self.memory.half(at + count, lines.len() as u32);
            self.memory.word(at + of_file, file);
            self.memory.half(at + of_lines, lines.iter().copied().min().unwrap_or(0));
            self.memory.half(at + of_lines + 4, lines.iter().copied().max().unwrap_or(0));
        }
        Made { function: at, instructions }
    }

    /// A frame above the last one, which becomes the innermost.
    fn frame(&mut self, function: u64, instruction: u64, call: u32, caller: u64) -> u64 {
        let at = self.room(80);
        for (offset, word) in [(0, instruction), (24, function), (48, caller)] {
            self.memory.word(at + offset, word);
        }
        self.memory.half(at + 40, call);
        self.memory.word(VARIABLES_AT + 488, at);
        at
    }

    /// The words that a sample would have of a frame of a function with this instruction.
    fn asked(&self, function: u64, instruction: u64) -> (u64, u64) {
        let mut process = self.clone();
        process.frame(function, instruction, 0, 0);
        let reader = Reader::new(&process.memory, BUDGET);
        let [function, instruction] = walk(process.layout().walk(), 0, &reader).records[0];
        (function, instruction)
    }

    fn layout(&self) -> Layout {
        Layout::read(&self.memory, &Reader::new(&self.memory, BUDGET)).unwrap()
    }

    /// As `name file line` and the mark, from the innermost.
    fn stack(&self) -> Vec<String> {
        let (mut functions, reader) = (Functions::new(self.layout()), Reader::new(&self.memory, BUDGET));
        let walked = walk(functions.layout().walk(), 0, &reader);
        assert_eq!(walked.end, ListEnd::Last);
        let mut line = |(at, [function, instruction]): (usize, &[u64; 2])| {
            let mark = instruction >> 56;
            match functions.describe(&reader, (*function, *instruction), at == 0) {
                Ok(Described { function: Function { name, file, .. }, line }) => format!("{name} {file} {line} {mark}"),
                Err(error) => format!("{error} {mark}"),
            }
        };
        walked.records.iter().enumerate().map(&mut line).collect()
    }
}

const TOP: u32 = 1 << 17;

/// A closure that PHP's own function calls, in a method that the script calls.
fn nested(engine: &str, offsets: [u64; 4]) -> Process {
    let mut process = Process::new(engine, offsets);
    let main = process.function(USER, None, None, &[1, 40, 41]);
    let method = process.function(USER, Some("work"), Some("App\\Job"), &[10, 12]);
    let own = process.function(INTERNAL, Some("array_map"), None, &[]);
    let closure = process.function(USER, Some("App\\{closure}"), Some("App\\Job"), &[11, 11]);
    let outer = process.frame(main.function, main.instructions + 64, TOP | 1 << 16, 0);
    let middle = process.frame(method.function, method.instructions + 32, 0, outer);
    let inner = process.frame(own.function, 0x1234, 0, middle);
    process.frame(closure.function, closure.instructions, TOP | 1 << 22, inner);
    process
}

#[test]
fn each_version_has_its_frames_from_the_innermost() {
    for (version, engine, offsets) in VERSIONS {
        let process = nested(engine, offsets);
        assert_eq!(process.layout().version().to_string(), version);
        let expected = [
            "App\\Job::App\\{closure:app.php:11} /srv/app.php 0 1",
            "array_map  0 0",
            "App\\Job::work /srv/app.php 12 0",
            "app.php /srv/app.php 41 1",
        ];
        assert_eq!(process.stack(), expected, "{version}");
    }
}

/// A generator that has one run in its place, which has another one run.
#[test]
fn generators_that_delegate_stand_between_the_one_that_runs_and_its_caller() {
    for (version, engine, offsets) in VERSIONS {
        for own in [184, 192] {
            let mut process = Process::new(engine, offsets);
            let main = process.function(USER, None, None, &[1, 40, 41]);
            let outer = process.frame(main.function, main.instructions + 64, TOP | 1 << 16, 0);
            let objects = [0; 3].map(|_| process.room(own + 80));
            let mut frame = |(name, caller): (&str, u64)| {
                let made = process.function(USER, Some(name), None, &[10, 12]);
                process.frame(made.function, made.instructions + 32, TOP | 1 << 24, caller)
            };
            let stands_in = objects[0] + own;
            let frames = [("outermost", 0), ("middle", 0), ("inner", stands_in)].map(&mut frame);
            for (at, (object, frame)) in objects.iter().zip(frames).enumerate() {
                process.memory.word(object + 56, frame);
                process.memory.word(object + 152, objects.get(at + 1).copied().unwrap_or(0));
            }
            process.memory.word(stands_in + 32, objects[0]);
            process.memory.word(stands_in + 48, outer);
            let known = own == 184 && version != "7.4.33";
            let between = ["middle /srv/app.php 12 0", "outermost /srv/app.php 12 0"];
            let between = if known { &between[..] } else { &[] };
            let expected = [&["inner /srv/app.php 0 1"][..], between, &["app.php /srv/app.php 41 1"]].concat();
            let (stack, nothing) = (process.stack(), format!("{} 0", Unknown::No("function")));
            assert_eq!(stack.iter().filter(|line| **line != nothing).collect::<Vec<_>>(), expected, "{version} {own}");
        }
    }
}

#[test]
fn what_is_no_function_of_the_frame_is_not_named() {
    for (_, engine, offsets) in VERSIONS {
        let mut process = Process::new(engine, offsets);
        let Made { function, instructions } = process.function(USER, Some("f"), None, &[10, 12]);
        let (layout, reader) = (process.layout(), Reader::new(process.memory.clone(), BUDGET));
        let layout = || Functions::new(layout.clone());
        let describe = |instruction: u64| {
            let (asked, print) = process.asked(function, 0);
            layout().describe(&reader, (asked, print | instruction), false)
        };
        assert_eq!(describe((instructions + 32) | (1 << 56)).unwrap().line, 12, "what is above is left out");
        for outside in [instructions - 32, instructions + 64, instructions + 8, 0, ADDRESS] {
            assert_eq!(describe(outside), Err(Unknown::No("instruction of the function")), "{outside:#x}");
        }
        // It handles an exception.
        assert_eq!(describe(VARIABLES_AT + 1200).unwrap().line, 0);
        for function in [0, 4, function + 4] {
            assert_eq!(layout().describe(&reader, (function, instructions), false), Err(Unknown::No("function")));
        }
        let after = |change: &dyn Fn(&mut Memory)| {
            let mut memory = process.memory.clone();
            change(&mut memory);
            layout().describe(&Reader::new(memory, BUDGET), process.asked(function, instructions), true)
        };
        let [count, _, of_file, _] = offsets;
        assert!(after(&|_| ()).is_ok());
        assert_eq!(after(&|memory| memory.put(function, &[3])), Err(Unknown::No("function")));
        let line = after(&|memory| memory.half(instructions + 24, 9));
        assert_eq!(line, Err(Unknown::No("line of the function")));
        assert_eq!(after(&|memory| memory.half(function + count, u32::MAX)), Err(Unknown::TooLarge("function")));
        assert_eq!(after(&|memory| memory.word(function + of_file, 0)), Err(Unknown::No("function's file")));
    }
}

#[test]
fn what_a_fiber_begins_with_has_no_name_and_is_none_of_the_programs_functions() {
    for (_, engine, offsets) in VERSIONS {
        let mut process = Process::new(engine, offsets);
        let far = process.function(INTERNAL, None, None, &[]).function;
        let beside = VARIABLES_AT + 0x800;
        process.memory.put(beside, &[INTERNAL]);
        process.memory.word(beside + 8, 0);
        process.memory.word(beside + 16, 0);
        let reader = Reader::new(process.memory.clone(), BUDGET);
        let describe = |function| Functions::new(process.layout()).describe(&reader, (function, 0x1234), false);
        assert_eq!(describe(far), Err(Unknown::No("function's name")));
        assert_eq!(describe(beside).map(|described| described.function.name.is_empty()), Ok(true));
    }
}

/// As without a cache of compiled scripts: the next request has put another function, of another file or line, to the same
/// place.
#[test]
fn what_another_request_has_put_to_the_same_place_is_not_named() {
    for (version, engine, offsets) in VERSIONS {
        let mut process = Process::new(engine, offsets);
        let made = process.function(USER, Some("work"), None, &[10, 12]);
        let outer = process.frame(made.function, made.instructions + 32, TOP, 0);
        process.frame(made.function, made.instructions, TOP, outer);
        let reader = Reader::new(process.memory.clone(), BUDGET);
        let layout = process.layout();
        let records = walk(layout.walk(), 0, &reader).records;
        let [_, _, of_file, of_lines] = offsets;
        let [path, other] = ["/srv/other.php", "play"].map(|text| process.string(text));
        let after = |change: &dyn Fn(&mut Memory)| {
            let mut memory = process.memory.clone();
            change(&mut memory);
            let (mut functions, reader) = (Functions::new(layout.clone()), Reader::new(memory, BUDGET));
            let mut name = |(at, [function, instruction]): (usize, &[u64; 2])| {
                let described = functions.describe(&reader, (*function, *instruction), at == 0);
                described.map(|described| described.function.name.to_string())
            };
            records.iter().enumerate().map(&mut name).collect::<Vec<_>>()
        };
        assert_eq!(after(&|_| ()), [Ok("work".to_owned()), Ok("work".to_owned())], "{version}");
        let replaced = [const { Err(Unknown::Replaced("function")) }; 2];
        assert_eq!(after(&|memory| memory.half(made.function + of_lines, 9)), replaced, "{version}");
        assert_eq!(after(&|memory| memory.word(made.function + of_file, path)), replaced, "{version}");
        // The place of its name is another one's before the function's own is.
        assert_eq!(after(&|memory| memory.word(made.function + 8, other)), replaced, "{version}");
        // Paths of one shape have hashes that are alike.
        let [function, instruction] = records[0];
        for bit in [0, 8, 15] {
            let asked = (function ^ 1 << (PRINT_AT + bit), instruction);
            let described = Functions::new(layout.clone()).describe(&reader, asked, true);
            assert_eq!(described, Err(Unknown::Replaced("function")), "{version}");
        }
        // Of what the sample could not read, or has but the first line of, only what stays where it is may be believed.
        let second = made.instructions + 32;
        for asked in [(made.function, second), (made.function, 10 << PRINT_AT | second)] {
            let unread = |memory: &Memory| {
                let described = Functions::new(layout.clone()).describe(&Reader::new(memory, BUDGET), asked, false);
                described.map(|described| described.line)
            };
            assert_eq!(unread(&process.memory), Err(Unknown::Replaced("function")), "{version}");
            let mut cached = process.memory.clone();
            cached.half(made.function + 4, IS_CACHED);
            assert_eq!(unread(&cached), Ok(12), "{version}");
        }
        // A name that nobody has asked for its hash has none, in the sample and later.
        let mut unasked = process.clone();
        let name = Reader::new(&unasked.memory, BUDGET).u64(Avma(made.function + 8)).unwrap();
        unasked.memory.word(name + 8, 0);
        let asked = unasked.asked(made.function, second);
        let described = Functions::new(layout.clone()).describe(&reader, asked, false).unwrap();
        assert_eq!((&*described.function.name, described.line), ("work", 12), "{version}");
        // Nor has the path of what comes by no file.
        let mut fileless = process.clone();
        let path = Reader::new(&fileless.memory, BUDGET).u64(Avma(made.function + of_file)).unwrap();
        fileless.memory.word(path + 8, 0);
        let (function, place) = fileless.asked(made.function, second);
        let reader = Reader::new(&fileless.memory, BUDGET);
        let describe = |function| Functions::new(layout.clone()).describe(&reader, (function, place), false);
        assert_eq!(describe(function).map(|described| described.line), Ok(12), "{version}");
        for other in [function ^ 1 << PRINT_AT, function | PATH_READ] {
            assert_eq!(describe(other), Err(Unknown::Replaced("function")), "{version}");
        }
    }
}

/// A closure has a copy of its function; when it was freed, the next one has the place.
#[test]
fn a_closure_is_not_called_by_one_of_phps_own_functions_that_has_its_place_nor_that_by_it() {
    for (version, engine, offsets) in VERSIONS {
        let mut process = Process::new(engine, offsets);
        process.memory.word(2 * CHUNK, CHUNK + HEAP_AT);
        process.next = 2 * CHUNK + 64;
        let of_program = process.function(USER, Some("{closure}"), None, &[256, 258]);
        let of_php = process.function(INTERNAL, Some("strlen"), None, &[]);
        let of_other = process.function(INTERNAL, Some("strrev"), None, &[]);
        let instruction = of_program.instructions + 32;
        let all = [of_program.function, of_php.function, of_other.function];
        for (at, place) in all.into_iter().enumerate() {
            let asked = process.asked(place, instruction);
            for (other, from) in all.into_iter().enumerate() {
                let mut copy = [0; 256];
                Reader::new(&process.memory, BUDGET).bytes(Avma(from), &mut copy).unwrap();
                let mut memory = process.memory.clone();
                memory.put(place, &copy);
                let (reader, mut functions) = (Reader::new(&memory, BUDGET), Functions::new(process.layout()));
                for (asked, is_known) in [(asked, at == other), ((place, instruction), false)] {
                    let described = functions.describe(&reader, asked, true);
                    let expected = (!is_known).then_some(Unknown::Replaced("function"));
                    assert_eq!(described.err(), expected, "{version}: {other} at the place of {at}");
                }
            }
        }
        // What a request has not made stays where it is, whatever a walk has read behind it.
        process.memory.word(2 * CHUNK, 0);
        let reader = Reader::new(&process.memory, BUDGET);
        let mut functions = Functions::new(process.layout());
        let named = functions.describe(&reader, (of_php.function | 0x1234 << PRINT_AT, instruction), false).unwrap();
        assert_eq!(&*named.function.name, "strlen", "{version}");
    }
}

/// Two requests of the same shape, of which the second begins after so many reads.
struct Switching<'a> {
    before: &'a Memory,
    after: &'a Memory,
    reads: std::cell::Cell<u32>,
}

impl crate::Memory for Switching<'_> {
    fn read(&self, address: Avma, into: &mut [u8]) -> io::Result<usize> {
        let left = self.reads.get();
        self.reads.set(left.saturating_sub(1));
        if left > 0 { self.before } else { self.after }.read(address, into)
    }
}

#[test]
fn a_function_is_not_put_together_from_those_of_two_requests() {
    // The names, the paths, the functions and the instructions are on pages of their own.
    let request = |number: u32| {
        let mut process = Process::new("4.2.36", VERSIONS[3].2);
        let of_page = |process: &mut Process| process.next = process.next.next_multiple_of(4096);
        of_page(&mut process);
        let [first, second] = ["met", "in"].map(|name| process.string(&format!("{name}_{number}")));
        of_page(&mut process);
        let path = process.string(&format!("/srv/s_{number}.php"));
        let made = [first, second].map(|name| {
            of_page(&mut process);
            let made = process.function(USER, None, None, &[10 * number, 10 * number + 2]);
            process.memory.word(made.function + 8, name);
            process.memory.word(made.function + process.offsets[2], path);
            made
        });
        (process, made)
    };
    let (before, after) = (request(1), request(2));
    let outer = after.1.each_ref().map(|made| (made.function, made.instructions + 32));
    let mut process = request(2).0;
    process.frame(outer[0].0, outer[0].1, TOP, 0);
    let layout = process.layout();
    let names = ["met_2", "in_2"];
    let asked = [0, 1].map(|at| {
        let (function, instruction) = outer[at];
        let print = (hash(b"/srv/s_2.php") ^ hash(names[at].as_bytes())) & HASHES;
        (function | PATH_READ | print << PRINT_AT, instruction | 20 << PRINT_AT)
    });
    let mut named = 0;
    for reads in 0..60 {
        let memory = Switching { before: &before.0.memory, after: &after.0.memory, reads: reads.into() };
        let reader = Reader::new(&memory, BUDGET);
        let mut functions = Functions::new(layout.clone());
        for (asked, name) in asked.into_iter().zip(names) {
            if let Ok(described) = functions.describe(&reader, asked, false) {
                assert_eq!(&*described.function.name, name, "after {reads} reads");
                named += 1;
            }
        }
    }
    assert!(named > 0);
}

#[test]
fn a_name_is_believed_if_its_hash_stands_before_it() {
    let mut process = Process::new("4.2.36", VERSIONS[3].2);
    let Made { function, instructions } = process.function(USER, Some("leaf_hot"), None, &[10]);
    // It stays where it is, so that the sample need not have read it.
    process.memory.half(function + 4, IS_CACHED);
    let at = process.memory.clone();
    let reader = Reader::new(at, BUDGET);
    let name = reader.u64(Avma(function + 8)).unwrap();
    let layout = process.layout();
    let after = |change: &dyn Fn(&mut Memory)| {
        let mut memory = process.memory.clone();
        change(&mut memory);
        let reader = Reader::new(memory, BUDGET);
        let described = Functions::new(layout.clone()).describe(&reader, (function, instructions), true);
        described.map(|described| described.function.name.to_string())
    };
    let none = Err(Unknown::No("function's name"));
    assert_eq!(after(&|memory| memory.put(name + 24, b"LEAF")), none);
    assert_eq!(after(&|memory| memory.half(name + 4, 7)), none, "no string");
    assert_eq!(after(&|memory| memory.word(name + 16, 7)), none, "no end");
    assert_eq!(after(&|memory| memory.word(name + 16, 1025)), Err(Unknown::TooLarge("function's name")));
    let unasked = after(&|memory| {
        memory.word(name + 8, 0);
        memory.put(name + 24, b"LEAF");
    });
    assert_eq!(unasked.as_deref(), Ok("LEAF_hot"), "nobody has asked for its hash");
}

#[test]
fn a_class_without_a_name_ends_before_its_place() {
    let mut process = Process::new("4.2.36", VERSIONS[3].2);
    let made = process.function(USER, Some("run"), Some("class@anonymous\0/srv/app.php:5$0"), &[6]);
    process.frame(made.function, made.instructions, TOP, 0);
    assert_eq!(process.stack(), ["class@anonymous::run /srv/app.php 0 1"]);
}

#[test]
fn the_innermost_function_needs_no_instruction_of_its_own_if_it_is_cached() {
    for (_, engine, offsets) in VERSIONS {
        let mut process = Process::new(engine, offsets);
        let other = process.function(USER, Some("other"), None, &[20]).instructions;
        let cached = process.function(USER, Some("cached"), None, &[10]).function;
        let closure = process.function(USER, Some("{closure}"), None, &[10]).function;
        let main = process.function(USER, None, None, &[10]).function;
        let loose = process.function(USER, Some("loose"), None, &[10]).function;
        for (function, flags) in [(cached, IS_CACHED), (closure, IS_CACHED | IS_CLOSURE), (main, IS_CACHED)] {
            process.memory.half(function + 4, flags);
        }
        let (mut functions, reader) = (Functions::new(process.layout()), Reader::new(&process.memory, BUDGET));
        let mut describe =
            |function, is_innermost| functions.describe(&reader, process.asked(function, other), is_innermost);
        let named = describe(cached, true).unwrap();
        assert_eq!((&*named.function.name, named.line), ("cached", 0));
        for (function, is_innermost) in [(cached, false), (closure, true), (main, true), (loose, true)] {
            let unknown = Err(Unknown::No("instruction of the function"));
            assert_eq!(describe(function, is_innermost), unknown);
        }
    }
}

#[test]
fn a_closure_that_was_freed_is_known_by_its_code() {
    for (version, engine, offsets) in &VERSIONS[2..] {
        let mut process = Process::new(engine, *offsets);
        let outer = process.function(USER, Some("outer"), None, &[5, 9]);
        let closure = process.function(USER, Some("{closure}"), None, &[7, 8]);
        let list = process.room(8);
        process.memory.word(list, closure.function);
        let lines = offsets[3];
        let [count, at] =
            if *version == "8.4.11" { [12, 24] } else { [20, 32] }.map(|behind| outer.function + lines + behind);
        process.memory.half(count, 1);
        process.memory.word(at, list);
        // What it is a copy of stays where it is; here nothing stands where the copy was.
        let mut functions = Functions::new(process.layout());
        let freed = process.room(256);
        let [of_outer, of_closure] = [&outer, &closure].map(|made| process.asked(made.function, made.instructions));
        let [print, line] = [of_closure.0, of_closure.1].map(|word| word & !ADDRESS);
        let described = |functions: &mut Functions, memory: &Memory, instruction: u64| {
            let asked = (freed | print, instruction | line);
            let described = functions.describe(&Reader::new(memory, BUDGET), asked, false);
            described.map(|is| (is.function.name.to_string(), is.line))
        };
        let second = closure.instructions + 32;
        assert_eq!(described(&mut functions, &process.memory, second), Err(Unknown::No("function")));
        let reader = Reader::new(&process.memory, BUDGET);
        functions.describe(&reader, of_outer, false).unwrap();
        let expected = Ok(("{closure:app.php:7}".to_owned(), 8));
        assert_eq!(described(&mut functions, &process.memory, second), expected, "{version}");
        let known = functions.bytes();
        let innermost = functions.describe(&reader, (freed, second), true);
        assert_eq!(innermost, Err(Unknown::No("function")), "the instruction may be another frame's");
        for outside in [second + 32, second + 8, closure.instructions - 32, 0] {
            assert!(described(&mut functions, &process.memory, outside).is_err());
        }
        // Other code is there now.
        process.memory.half(closure.instructions + 28, 77);
        assert_eq!(described(&mut functions, &process.memory, second), Err(Unknown::No("function")));
        functions.clear();
        assert!(functions.bytes() < known);
    }
}

/// As between two requests of the same script.
#[test]
fn a_function_that_was_met_is_known_when_it_was_freed() {
    for (version, engine, offsets) in VERSIONS {
        let mut process = Process::new(engine, offsets);
        let made = process.function(USER, Some("work"), None, &[10, 12, 13]);
        let asked = |at: u64| process.asked(made.function, made.instructions + 32 * at);
        let mut freed = process.memory.clone();
        freed.put(made.function, &[0; 256]);
        let [alive, freed] = [&process.memory, &freed].map(|memory| Reader::new(memory, BUDGET));
        let mut functions = Functions::new(process.layout());
        let gone = Err(Unknown::No("function"));
        assert_eq!(functions.describe(&freed, asked(1), false), gone, "{version}: nobody has met it");
        let met = functions.describe(&alive, asked(1), false);
        assert_eq!(met.as_ref().map(|met| (&*met.function.name, met.line)), Ok(("work", 12)), "{version}");
        let known = functions.bytes();
        assert_eq!(functions.describe(&freed, asked(1), false), met, "{version}");
        // Of another instruction nobody has read the line; the innermost one's does not show it.
        let elsewhere = functions.describe(&freed, asked(2), false).unwrap();
        assert_eq!((&*elsewhere.function.name, elsewhere.line), ("work", 0), "{version}");
        assert_eq!(functions.describe(&freed, asked(1), true).unwrap().line, 0, "{version}");
        // It is another one's: by its hashes, by its line, by its place, by its instructions.
        let (function, instruction) = asked(1);
        let others = [
            (function ^ 1 << PRINT_AT, instruction),
            (function & !PATH_READ, instruction),
            (function, instruction ^ 1 << PRINT_AT),
            (function, instruction ^ 1 << (PRINT_AT + 7)),
            (function + 8, instruction),
            (function, instruction + 8),
            asked(3),
        ];
        for other in others {
            assert!(functions.describe(&freed, other, true).is_err(), "{version}: {other:x?}");
        }
        functions.clear();
        assert!(functions.bytes() < known, "{version}");
        assert_eq!(functions.describe(&freed, asked(1), false), gone, "{version}");
    }
}

#[test]
fn what_stays_where_it_is_is_not_remembered() {
    let mut process = Process::new("4.2.36", VERSIONS[3].2);
    let made = process.function(USER, Some("work"), None, &[10, 12]);
    process.memory.half(made.function + 4, IS_CACHED);
    let mut functions = Functions::new(process.layout());
    let before = functions.bytes();
    functions
        .describe(&Reader::new(&process.memory, BUDGET), process.asked(made.function, made.instructions), false)
        .unwrap();
    assert_eq!(functions.bytes(), before);
}

#[test]
fn what_is_no_php_or_has_not_started_is_told() {
    let read = |change: &dyn Fn(&mut Memory)| {
        let mut memory = Process::new("4.2.36", VERSIONS[3].2).memory;
        change(&mut memory);
        Layout::read(&memory, &Reader::new(&memory, BUDGET)).map(|layout| layout.version())
    };
    assert_eq!(read(&|_| ()), Ok(Version { major: 8, minor: 2, micro: Some(36) }));
    assert_eq!(read(&|memory| memory.word(CODE + 0x100, 0)), Err(LayoutError::NotStarted));
    assert_eq!(read(&|memory| memory.put(TEXT, b"Zen")), Ok(Version { major: 8, minor: 2, micro: Some(36) }));
    for other in [&b"zend"[..], b"Zend Engine v", b"Zend Engine v4.", b"Zend Engine v4.x", b"Zend Engine v4.999"] {
        let text = read(&|memory| memory.put(TEXT, &[other, &[0]].concat()));
        assert_eq!(text, Err(LayoutError::NoVersion), "{other:?}");
    }
    // It calls another function; it returns nothing of the kind.
    for code in [&[0xe8, 0, 0, 0, 0, 0xc3][..], &[0xc3], &[0x31, 0xc0, 0xc3]] {
        assert_eq!(read(&|memory| memory.put(CODE, code)), Err(LayoutError::NoVersion));
    }
    let unknown = read(&|memory| memory.put(TEXT, b"Zend Engine v4.5.1,")).unwrap_err();
    assert_eq!(unknown.to_string(), "the frames of PHP 8.5.1 are not known");
}

#[test]
fn a_list_that_is_a_circle_ends() {
    let mut process = Process::new("4.2.36", VERSIONS[3].2);
    let frame = process.frame(0x1000, 0, 0, 0);
    process.memory.word(frame + 48, frame);
    let walked = walk(process.layout().walk(), 0, &Reader::new(&process.memory, BUDGET));
    assert_eq!((walked.end, walked.records.len()), (ListEnd::TooLong, 1024));
    process.memory.word(VARIABLES_AT + 488, 0);
    let walked = walk(process.layout().walk(), 0, &Reader::new(&process.memory, BUDGET));
    assert_eq!((walked.end, walked.base), (ListEnd::Empty, None));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Whatever stands in memory, a reading ends, within its budget.
    #[test]
    fn hostile_memory_costs_a_bounded_reading(
        version in 0..VERSIONS.len(),
        places in prop::collection::vec((any::<prop::sample::Index>(), 0_u64..512, any::<u64>(), 0..5_u8), 1..500),
        asked in any::<(u64, u64)>(),
        budget in budgets(BUDGET, 20, 2000),
    ) {
        let (_, engine, offsets) = VERSIONS[version];
        let mut process = nested(engine, offsets);
        let honest = process.layout();
        let pages: Vec<u64> = process.memory.0.keys().copied().collect();
        for (page, word_of_page, value, how) in places {
            let at = page.get(&pages) + word_of_page * 8;
            let before = Reader::new(&process.memory, BUDGET).u64(Avma(at)).unwrap();
            let with = match how {
                0 => value,
                // An object of some other place.
                1 => page.get(&pages) ^ (value & 0xff8),
                // A pointer to itself.
                2 => at,
                // A length.
                3 => value & 0xfffff,
                _ => before ^ 1 << (value % 64),
            };
            process.memory.word(at, with);
        }
        let lying = Layout::read(&process.memory, &Reader::new(&process.memory, budget));
        for layout in [Some(honest), lying.ok()].into_iter().flatten() {
            let reader = Reader::new(&process.memory, budget);
            let mut functions = Functions::new(layout);
            let walked = walk(functions.layout().walk(), 0, &reader);
            prop_assert!(walked.records.len() <= 1024);
            for [function, instruction] in walked.records.into_iter().chain([[asked.0, asked.1]]) {
                let described = functions.describe(&reader, (function, instruction), asked.0 & 1 == 1);
                let text = described.map_or(0, |is| is.function.name.len() + is.function.file.len());
                prop_assert!(text <= 4 * 3 * 1024 + 64);
            }
        }
    }
}
