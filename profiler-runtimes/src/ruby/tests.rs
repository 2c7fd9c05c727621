//! On memory made by hand, as 3.1 and 3.3 lay it out.

use std::collections::BTreeMap;
use std::io;

use jitprof_common::listed::ListEnd;
use proptest::prelude::*;

use super::*;
use crate::{Budget, Symbols, walk};

const BUDGET: Budget = Budget { pages: 1 << 12, steps: 1 << 18 };
const VERSION_AT: u64 = 0x1_0000;
const ERRINFO: u64 = 0x2_0000;
const ID2STR: u64 = 0x2_0100;
const LOOK_UP: u64 = 0x2_0200;
const GC_COUNT: u64 = 0x2_0300;
/// The collector, and in it its flags; of 3.1, minor and major collections, how often it has moved objects, and all.
const COLLECTOR: u64 = 0x3_2000;
const FLAGS: u64 = COLLECTOR + 0x10;
const MINOR: u64 = COLLECTOR + 0x180;
const COUNT: u64 = COLLECTOR + 0x1b8;
/// The table of symbols.
const TABLE: u64 = 0x3_0000;
/// What is the process' own.
const PROCESS: u64 = 0x3_1000;
/// A thread's own variables end here; the last one is its state.
const THREAD_POINTER: u64 = 0x4_0100;
const STATE: u64 = 0x5_0000;
/// The array of frames, and its words.
const STACK: u64 = 0x6_0000;
const STACK_WORDS: u64 = 256;
/// Objects and bodies.
const HEAP: u64 = 0x10_0000;
/// Frames of kinds, and that a loop has begun at one.
const METHOD: u64 = 0x1111_0001;
const BLOCK: u64 = 0x2222_0001;
const C_FUNCTION: u64 = 0x5555_0081;
const C_BLOCK: u64 = 0x6666_0081;
const DUMMY: u64 = 0x7999_0001;
const FINISH: u64 = 0x20;

/// Pages that are there once something was put into them.
#[derive(Clone, Default)]
struct Memory(BTreeMap<u64, Vec<u8>>);

impl crate::Memory for Memory {
    fn read(&self, address: Avma, into: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < into.len() {
            let at = address.0.wrapping_add(done as u64);
            let page = match self.0.get(&(at & !4095)) {
                Some(page) => &page[(at & 4095) as usize..],
                None if done > 0 => break,
                None => return Err(io::ErrorKind::NotFound.into()),
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
            "ruby_version" => Some(Avma(VERSION_AT)),
            "rb_errinfo" => Some(Avma(ERRINFO)),
            "rb_id2str" => Some(Avma(ID2STR)),
            "rb_gc_count" => Some(Avma(GC_COUNT)),
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

    fn words(&mut self, at: u64, words: &[u64]) {
        words.iter().enumerate().for_each(|(index, word)| self.put(at + 8 * index as u64, &word.to_le_bytes()));
    }
}

/// A process in the making.
struct Process {
    memory: Memory,
    next: u64,
    innermost: u64,
    is_33: bool,
    /// Where code begins that was generated for functions made from now on; 0 for none.
    entry: u64,
}

impl Process {
    fn new(version: &str) -> Self {
        let mut memory = Memory::default();
        memory.put(VERSION_AT, version.as_bytes());
        // mov rax, fs:[-8]; mov rax, [rax + 0x70]; ret
        memory.put(ERRINFO, &[0x64, 0x48, 0x8b, 0x04, 0x25, 0xf8, 0xff, 0xff, 0xff, 0x48, 0x8b, 0x40, 0x70, 0xc3]);
        // jmp; there: cmp [rip + x], edi; mov rdi, [rip + x]; ret
        memory.put(ID2STR, &[0xe9, 0xfb, 0, 0, 0]);
        let from = |instruction: u64, target: u64| u32::try_from(target - instruction).unwrap().to_le_bytes();
        let look_up =
            [&[0x39, 0x3d], &from(LOOK_UP + 6, TABLE)[..], &[0x48, 0x8b, 0x3d], &from(LOOK_UP + 13, TABLE + 16)];
        memory.put(LOOK_UP, &[&look_up.concat()[..], &[0xc3]].concat());
        let is_33 = version.starts_with("3.3");
        let at_process = from(GC_COUNT + 7, PROCESS);
        if is_33 {
            // lea rax, [rip + x]; mov rax, [rax]; mov rax, [rax + 0x518]; mov rax, [rax + 0x570]; ret
            let count = [0x48, 0x8b, 0, 0x48, 0x8b, 0x80, 0x18, 5, 0, 0, 0x48, 0x8b, 0x80, 0x70, 5, 0, 0, 0xc3];
            memory.put(GC_COUNT, &[&[0x48, 0x8d, 5], &at_process[..], &count].concat());
            memory.words(PROCESS + 8 + 0x518, &[COLLECTOR]);
            memory.words(FLAGS, &[0x1400]);
            memory.words(COLLECTOR + 0x538, &[29, 6, 0]);
            memory.words(COLLECTOR + 0x570, &[35]);
        } else {
            // mov rax, [rip + x]; mov rax, [rax + 0x450]; mov rax, [rax + 0x1b8]; ret
            let count = [0x48, 0x8b, 0x80, 0x50, 4, 0, 0, 0x48, 0x8b, 0x80, 0xb8, 1, 0, 0, 0xc3];
            memory.put(GC_COUNT, &[&[0x48, 0x8b, 5], &at_process[..], &count].concat());
            memory.words(PROCESS + 8 + 0x450, &[COLLECTOR]);
            memory.words(FLAGS, &[0xa02]);
            memory.words(MINOR, &[29, 6, 0]);
            memory.words(COUNT, &[35]);
        }
        memory.words(THREAD_POINTER - 8, &[STATE]);
        // It has the first thread, which has its state.
        memory.words(PROCESS, &[PROCESS + 8, 0, 0, 0, 0, 0, PROCESS + 64]);
        memory.words(PROCESS + 64 + if is_33 { 48 } else { 40 }, &[STATE]);
        let end = STACK + STACK_WORDS * 8;
        memory.words(STACK, &[0; STACK_WORDS as usize + 64]);
        memory.words(STATE, &[STACK, STACK_WORDS, end]);
        let mut process = Self { memory, next: HEAP, innermost: end, is_33, entry: 0 };
        process.frame(0, 0, 0, DUMMY | FINISH);
        process
    }

    fn room(&mut self, words: &[u64]) -> u64 {
        let at = self.next;
        self.next += 8 * words.len() as u64;
        self.memory.words(at, words);
        at
    }

    /// A string that lies within the object, or elsewhere.
    fn string(&mut self, text: &str) -> u64 {
        let length = text.len() as u64;
        if self.is_33 && length < 24 {
            let at = self.room(&[5, 0, length, 0, 0, 0]);
            self.memory.put(at + 24, text.as_bytes());
            return at;
        }
        if length < 24 {
            let at = self.room(&[5 | length << 14, 0, 0, 0, 0]);
            self.memory.put(at + 16, text.as_bytes());
            return at;
        }
        let bytes = self.room(&vec![0; text.len() / 8 + 1]);
        self.memory.put(bytes, text.as_bytes());
        self.room(&[5 | 1 << 13, 0, length, bytes, 0])
    }

    /// Code on these lines, an instruction of a word for each.
    fn code(&mut self, label: &str, path: &str, lines: &[u32]) -> (u64, u64) {
        let instructions = self.room(&vec![0; lines.len()]);
        let entries = self.room(&vec![0; lines.len() * 2]);
        for (at, line) in (entries..).step_by(12).zip(lines) {
            self.memory.put(at, &line.to_le_bytes());
        }
        // As many as are in the first words, 9 to each, with an entry for each instruction.
        let first = |word: u64| (0..9).fold(0, |bits, at| bits | (word * 9 + at + 1) << (7 * at));
        let index = self.room(&std::array::from_fn::<_, 6, _>(|word| first(word as u64)));
        // 10 more, in words of a block of which each instruction has an entry.
        self.room(&[54, 64, u64::MAX, u64::MAX, 0, 0, 0, 0, 0, 0]);
        // What was evaluated has no path from the root, but nil.
        let real = if path.starts_with('/') { self.string(path) } else { 8 };
        let (label, relative) = (self.string(label), self.string(if real == 8 { path } else { "app.rb" }));
        let paths = self.room(&[7 | 1 << 13 | 2 << 15, 0, relative, real, 0]);
        let mut body = [0; 40];
        body[0] = (lines.len() as u64) << 32;
        (body[1], body[8], body[10], body[11]) = (instructions, paths, label, u64::from(lines[0]) << 1 | 1);
        let at = if self.is_33 { 14 } else { 15 };
        (body[at], body[at + 2], body[at + 3]) = (entries, lines.len() as u64, index);
        body[if self.is_33 { 37 } else { 35 }] = self.entry;
        let body = self.room(&body);
        (self.room(&[26 | 7 << 12, 0, body, 0, 0]), instructions)
    }

    /// A method in C, whose name is the symbol of a number.
    fn method(&mut self, name: &str, number: u64) -> u64 {
        let text = self.string(name);
        let count = number >> 4;
        let mut part = vec![8; 1024];
        part[usize::try_from(count % 512 * 2).unwrap()] = text;
        let elements = self.room(&part);
        let part = self.room(&[7, 0, 1024, 0, elements]);
        let parts = self.room(&vec![part; usize::try_from(count / 512 + 1).unwrap()]);
        let symbols = self.room(&[7, 0, count / 512 + 1, 0, parts]);
        self.memory.words(TABLE, &[count, 0, symbols]);
        // Of the kind 1, in C, and under 3 names.
        let definition = self.room(&[1 | 3 << 4, 0, 0, 0, number]);
        self.room(&[26 | 6 << 12, 0, definition, 0, 0])
    }

    /// Calls one more function.
    fn frame(&mut self, instruction: u64, code: u64, method: u64, flags: u64) {
        let environment = self.room(&[method, 0, flags]) + 16;
        let frame = [instruction, 0, code, 0, environment, 0, 0, 0];
        let frame = if self.is_33 { &frame[..7] } else { &frame[..] };
        self.innermost -= 8 * frame.len() as u64;
        self.memory.words(self.innermost, frame);
        self.memory.words(STATE + 16, &[self.innermost]);
    }

    fn layout(&self) -> Layout {
        Layout::read(&self.memory, &Reader::new(&self.memory, BUDGET)).unwrap()
    }

    /// Of each record the name, file, line and the byte with its kind and whether it is an entry.
    fn stack(&self) -> Vec<(String, String, u32, u64)> {
        let reader = Reader::new(&self.memory, BUDGET);
        let functions = Functions::new(self.layout());
        let walked = walk(functions.layout().walk(), THREAD_POINTER, &reader);
        assert_eq!(walked.end, ListEnd::Last);
        let frame = |[code, place]: [u64; 2]| match functions.describe(&reader, (code, place)) {
            Ok(Looked { described: Described { function, line }, .. }) => {
                (function.name.to_string(), function.file.to_string(), line, place >> 56)
            }
            Err(unknown) => (unknown.to_string(), String::new(), 0, place >> 56),
        };
        walked.records.into_iter().map(frame).collect()
    }
}

/// `<main>` calls `each`, which is in C and calls a block, by a block in C.
fn nested() -> Process {
    nested_in("3.1.2\0")
}

fn nested_in(version: &str) -> Process {
    let mut process = Process::new(version);
    let (main, first) = process.code("<main>", "/srv/a_directory_with_a_long_name/app.rb", &[1, 2, 3]);
    let lines: Vec<u32> = (100..164).collect();
    let (block, begin) = process.code("block in <main>", "(eval)", &lines);
    let each = process.method("each", (700 << 4) | 1);
    process.frame(first + 16, main, 0, METHOD | FINISH);
    process.frame(0, 0, each, C_FUNCTION);
    process.frame(0, 0x7777_0000, 0, C_BLOCK);
    process.frame(begin + 8 * 60, block, 0, BLOCK | FINISH);
    process
}

fn frame(name: &str, file: &str, line: u32, byte: u64) -> (String, String, u32, u64) {
    (name.to_owned(), file.to_owned(), line, byte)
}

#[test]
fn frames_are_described_from_the_innermost() {
    for version in ["3.1.2", "3.3.8"] {
        let mut process = nested_in(&format!("{version}\0"));
        let expected = [
            frame("block in <main>", "(eval)", 159, 0x82),
            frame("no memory to be read at 0x77770000", "", 0, 6),
            frame("each", "", 0, 5),
            frame("<main>", "/srv/a_directory_with_a_long_name/app.rb", 2, 0x81),
        ];
        assert_eq!(process.stack(), expected, "{version}");
        let layout = process.layout();
        let reader = Reader::new(&process.memory, BUDGET);
        let first = walk(layout.walk_of_first_thread().unwrap(), 0, &reader);
        assert_eq!(first, walk(layout.walk(), THREAD_POINTER, &reader));
        assert_eq!(first.state, [35, 6]);
        let EntryMark { least, no_frames } = layout.entry();
        assert_eq!((layout.version().to_string(), least, no_frames), (version.to_owned(), 0x80, 1 << 6 | 1 << 9));
        // The first instruction of `<main>` is where the interpreter runs it.
        let begin = first.records[3][1] & INSTRUCTION;
        process.memory.words(begin - 16, &[0x7777_1234]);
        let handler =
            |process: &Process| Functions::new(layout.clone()).first_handler(&Reader::new(&process.memory, BUDGET));
        assert_eq!(handler(&process), Some(Avma(0x7777_1234)));
        process.memory.words(STATE + 16, &[STACK + STACK_WORDS * 8]);
        assert_eq!(handler(&process), None, "nothing runs yet");
    }
}

#[test]
fn a_function_says_where_the_code_begins_that_was_generated_for_it() {
    for version in ["3.1.2\0", "3.3.8\0"] {
        let mut process = nested_in(version);
        process.entry = 0x7000_0040;
        let (code, begin) = process.code("hot", "/srv/app.rb", &[7, 8]);
        process.frame(begin + 8, code, 0, METHOD);
        let reader = Reader::new(&process.memory, BUDGET);
        let functions = Functions::new(process.layout());
        assert_eq!(functions.describe(&reader, (code, begin)).unwrap().entries, [Avma(0x7000_0040)]);
        assert_eq!(functions.first_entries(&reader), [Avma(0x7000_0040)], "of the others there is none");
    }
}

#[test]
fn a_method_that_is_not_written_in_c_is_no_c_function() {
    let mut process = nested();
    let method = process.method("each", (700 << 4) | 1);
    let definition = Reader::new(&process.memory, BUDGET).u64(Avma(method + DEFINITION)).unwrap();
    let functions = Functions::new(process.layout());
    for (kind, is_in_c) in [(0, false), (1, true), (2, false), (4, false), (8, true), (9, false)] {
        process.memory.words(definition, &[kind | 1 << 4]);
        let described = functions.describe(&Reader::new(&process.memory, BUDGET), (method, 0));
        assert_eq!(described.is_ok(), is_in_c, "{kind}");
    }
}

#[test]
fn what_is_no_instruction_of_the_function_is_no_line_of_it() {
    let mut process = nested();
    let (code, begin) = process.code("other", "/srv/app.rb", &[7, 8]);
    let functions = Functions::new(process.layout());
    let name = |instruction: u64| {
        let described = functions.describe(&Reader::new(&process.memory, BUDGET), (code, instruction));
        described.map(|Looked { described, .. }| (described.function.name.to_string(), described.line))
    };
    assert_eq!([begin, begin + 8, begin + 16].map(|at| name(at).unwrap().1), [7, 7, 8]);
    for at in [0, begin - 8, begin + 4, begin + 24, u64::MAX >> 8] {
        assert_eq!(name(at), Ok(("other".to_owned(), 0)), "{at:#x}");
    }
    // Neither code nor a method.
    process.memory.words(code, &[26 | 5 << 12]);
    let described = functions.describe(&Reader::new(&process.memory, BUDGET), (code, begin));
    assert_eq!(described, Err(Unknown::No("function")));
}

#[test]
fn an_array_that_has_no_end_in_reach_is_cut() {
    let mut process = nested();
    process.memory.words(STATE + 8, &[u64::MAX >> 4]);
    let layout = process.layout();
    let walked = walk(layout.walk(), THREAD_POINTER, &Reader::new(&process.memory, BUDGET));
    assert!(walked.records.len() < 100 && walked.end != ListEnd::Empty, "{:?}", walked.end);
    // A thread without a state has no frames.
    process.memory.words(THREAD_POINTER - 8, &[0]);
    let walked = walk(layout.walk(), THREAD_POINTER, &Reader::new(&process.memory, BUDGET));
    assert_eq!((walked.records.len(), walked.end, walked.base), (0, ListEnd::Empty, None));
}

#[test]
fn what_is_no_ruby_or_an_unknown_one_is_told() {
    let read = |version: &str| {
        let process = Process::new(version);
        Layout::read(&process.memory, &Reader::new(&process.memory, BUDGET)).unwrap_err()
    };
    assert_eq!(read("nothing\0"), LayoutError::NoVersion);
    assert_eq!(read("3.4.0\0").to_string(), "the frames of Ruby 3.4.0 are not known");
    let mut process = Process::new("3.1.7\0");
    process.memory.put(ERRINFO, &[0x31, 0xc0, 0xc3]);
    let error = Layout::read(&process.memory, &Reader::new(&process.memory, BUDGET)).unwrap_err();
    assert_eq!(error.to_string(), "Ruby 3.1.7 does not show where its threads' frames are");
    let mut process = Process::new("3.1.7\0");
    process.memory.words(MINOR, &[29, 7]);
    let error = Layout::read(&process.memory, &Reader::new(&process.memory, BUDGET)).unwrap_err();
    assert_eq!(error.to_string(), "Ruby 3.1.7 does not show what its collector does");
}

#[test]
fn how_far_the_collector_is_stands_before_the_frames_and_what_it_may_have_replaced_is_not_confirmed() {
    let mut process = nested();
    let (code, begin) = process.code("evaluated", "(eval)", &[7, 8]);
    let functions = Functions::new(process.layout());
    let state = |process: &Process| {
        walk(functions.layout().walk(), THREAD_POINTER, &Reader::new(&process.memory, BUDGET)).state
    };
    let progress = |process: &Process| functions.progress(&Reader::new(&process.memory, BUDGET)).unwrap();
    let (sample, then) = (state(&process), progress(&process));
    assert_eq!(sample, [35, 6]);
    // What a major one is still marking, it has not marked.
    process.memory.words(FLAGS, &[0x802 | 1 << 10]);
    process.memory.words(MINOR, &[29, 7, 3]);
    process.memory.words(COUNT, &[36]);
    assert_eq!(state(&process), [35, 3 << 48 | 6]);
    process.memory.words(MINOR, &[30, 6, 0]);
    process.memory.words(FLAGS, &[0xa02]);
    let later = progress(&process);
    let look = |process: &Process, functions: &Functions| {
        functions.describe(&Reader::new(&process.memory, BUDGET), (code, begin)).unwrap()
    };
    let young = look(&process, &functions);
    let is_of = |looked: &Looked, instruction: u64, now| looked.is_of((instruction, sample), now);
    assert!(is_of(&young, begin, then));
    assert!(!is_of(&young, begin, later));
    // It grows old.
    process.memory.words(code, &[26 | 7 << 12 | 3 << 5]);
    let old = look(&process, &functions);
    assert!(is_of(&old, begin, later));
    process.frame(begin, code, 0, METHOD | FINISH);
    let walked = walk(functions.layout().walk(), THREAD_POINTER, &Reader::new(&process.memory, BUDGET));
    let [first, instruction] = walked.records[0];
    assert_eq!((first, instruction), (code, 0xe1 << 56 | begin), "of a method, an entry, and old");
    assert!(is_of(&old, instruction, later));
}

proptest! {
    #[test]
    fn hostile_memory_costs_a_bounded_reading(
        changes in prop::collection::vec((0..0x3000_u64, any::<u64>(), 0..4_u8), 1..40),
    ) {
        let mut process = nested();
        let places = [VERSION_AT, STATE & !0xfff, STACK, HEAP];
        for (at, word, place) in changes {
            let at = places[usize::from(place)] + at / 8 * 8;
            // Some lead to what is there.
            let word = if word % 3 == 0 { HEAP + word % 0x2000 / 8 * 8 } else { word };
            process.memory.words(at, &[word]);
        }
        let reader = Reader::new(&process.memory, BUDGET);
        if let Ok(layout) = Layout::read(&process.memory, &reader) {
            let functions = Functions::new(layout);
            let walked = walk(functions.layout().walk(), THREAD_POINTER, &reader);
            for [code, place] in walked.records {
                if let Ok(Looked { described, .. }) = functions.describe(&reader, (code, place)) {
                    prop_assert!(described.function.name.len() <= 3 * 1024);
                }
            }
        }
        prop_assert!(reader.left().pages <= BUDGET.pages);
    }
}
