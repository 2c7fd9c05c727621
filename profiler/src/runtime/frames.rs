//! What is asked of a runtime about single frames, and what it answers.
//!
//! Some runtimes list their code, and an address says what it is, down to the functions that were inlined there. Of others,
//! and of what is interpreted, a frame is known by words of it, which the sample takes along as a [`Capture`] says.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::num::NonZeroU32;
use std::ops::Range;

use jitprof_common::listed::{ListSpec, Step};
use jitprof_common::sample::FramePc;
use jitprof_common::taken::{FrameSpec, Read};
use jitprof_common::units::{Avma, MonoNs};
use jitprof_runtimes::{ReadError, Unknown};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_bytes::ByteBuf;
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of names of one answer.
const MAX_NAME_BYTES: usize = 1 << 20;
/// Bytes of instructions in which a frame is made; Ruby 3.1 takes 50.
const MAX_MAKING_BYTES: usize = 96;
/// Frames that are made in one part of the code: of 5 KiB, as much as is read together, Ruby 3.1 has place for a hundred. All
/// that is read of a process stays known.
const MAX_MAKING: usize = 128;

/// Which words samples take along with frames of a runtime's code.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capture {
    /// In this order. What those behind the first give goes to the last words that there can be.
    pub reads: Vec<TakeRead>,
    /// The word of the first read that a function's frames have in common, and no other's.
    pub key: u8,
    /// Of which frames, besides those of generated code: where the runtime's module has code that runs the program's
    /// functions, and its length. Other mappings of the same bytes count as well.
    pub code: Vec<(Avma, u64)>,
    /// Where the runtime's module has what generated code calls to be left for good: as such a call goes nowhere else, where it
    /// would return to says nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_by: Vec<(Avma, u64)>,
    /// The generated code whose frames are meant: first byte, length; nothing if all of it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generated: Option<(Avma, u64)>,
    /// The list in which the runtime keeps the frames of each thread; no words of frames are read then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list: Option<ListCapture>,
    /// The way to the stack pointer that a thread parks while it runs on another stack, in steps of operation and operand;
    /// nothing if there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parked_sp: Vec<(u64, u64)>,
    /// The stack of what a thread runs that has none of its own there; no list is walked then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parked_stack: Option<ParkedStack>,
}

/// A stack that is not the thread's: it is what it has called that runs on the thread's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParkedStack {
    /// How its words are taken, up to behind its end: the first function's own caller says where that is.
    #[serde(serialize_with = "write_walk", deserialize_with = "read_walk")]
    pub words: ListSpec,
    /// Where the runtime's module has what calls the program's functions for it, and the length of each part. Other mappings of
    /// the same bytes count as well.
    pub calls: Vec<(Avma, u64)>,
}

/// A list of frames that samples take along, and how it goes with the native stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListCapture {
    /// How it is walked.
    #[serde(serialize_with = "write_walk", deserialize_with = "read_walk")]
    pub walk: ListSpec,
    /// Which of its elements say that an evaluation loop has begun.
    pub mark: EntryMark,
    /// Where the runtime's module has the loop, and the length of each part. Other mappings of the same bytes count as well.
    pub loops: Vec<(Avma, u64)>,
    /// The same of a function that the loop has called to run instructions: as its callee, it is the part of the loop that the
    /// functions stand in.
    #[serde(default)]
    pub within: Vec<(Avma, u64)>,
    /// If samples have the runtime's state: bits of a record's second word. Where all are set, it does not matter what the first
    /// word of the state is. All else is asked about with what it was.
    #[serde(default)]
    pub lasting: u64,
    /// Whether it matters which record is the innermost: a third word says so then when it is asked about.
    #[serde(default)]
    pub tells_innermost: bool,
    /// There is one in the process, and its first thread has it.
    #[serde(default)]
    pub of_first_thread: bool,
    /// A thread that runs several interpreters is found by the state that it had first: the list is of the outermost loops.
    #[serde(default)]
    pub keeps_first: bool,
    /// The code that the runtime generates for its functions, if that runs within the loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generated: Option<LoopCode>,
}

/// Generated code that runs within an interpreter's loop: which of the listed functions it is of, only the list says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoopCode {
    /// What it is called.
    pub name: String,
    /// Bytes of its frame, the return address included.
    pub bytes: u32,
    /// How far below the caller's stack pointer the caller's frame pointer is, if it has a place there.
    pub fp_below: Option<u32>,
    /// By which instructions the frame is made where the loop calls the code. None: the frame is the loop's own.
    pub pushes: Vec<ByteBuf>,
    /// Where it makes a frame for the list that does not say yet whose it is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub making: Vec<Making>,
    /// It lies in memory that processes share; other generated code does not.
    pub is_shared: bool,
    /// The runtime says of functions where it begins: in memory where none does, there is other code.
    #[serde(default)]
    pub is_shown: bool,
}

/// Instructions behind which generated code has a frame in the list, and those behind which that says whose it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Making {
    /// The former.
    pub begins: ByteBuf,
    /// The latter: the next ones.
    pub ends: ByteBuf,
}

impl LoopCode {
    /// Where the innermost frame of the list is not what it says, in a part of the code.
    pub fn making_in(&self, code: &[u8]) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        for Making { begins, ends } in self.making.iter().filter(|making| !making.begins.is_empty()) {
            for at in memchr::memmem::find_iter(code, &**begins) {
                let from = at + begins.len();
                let rest = code.get(from..).unwrap_or_default();
                let window = rest.get(..MAX_MAKING_BYTES).unwrap_or(rest);
                let end = memchr::memmem::find(window, ends);
                found.extend(end.map(|end| from..from + end + ends.len()));
            }
        }
        found.truncate(MAX_MAKING);
        found
    }
}

/// Which elements of a list say that an evaluation loop has begun. Each has a byte in the upper end of its second word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryMark {
    /// Those in which it has this value at least.
    pub least: u8,
    /// They are frames of the program themselves, but for those without a first word, which are nothing; those of the
    /// runtime's own functions say nothing of loops.
    pub is_frame: bool,
    /// The outermost element is one that no loop has begun at.
    pub has_base: bool,
    /// Those are nothing of which this bit is set of the number in the byte's lower half.
    #[serde(default)]
    pub no_frames: u16,
}

fn write_walk<S: Serializer>(walk: &ListSpec, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(walk.as_bytes())
}

fn read_walk<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ListSpec, D::Error> {
    let bytes = ByteBuf::deserialize(deserializer)?;
    ListSpec::read_from_bytes(&bytes).map_err(|_| D::Error::custom("no description of a list"))
}

/// One read: so many words from an address on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakeRead {
    /// Begins at the value of this word, or at the frame pointer.
    pub base: Option<u8>,
    /// Added to that.
    pub offset: i32,
    /// Words.
    pub words: u8,
    /// The index of the first.
    pub to: u8,
    /// What it begins at has to be a tagged pointer.
    pub tagged: bool,
}

impl Capture {
    /// As the BPF program has it. What is too much for it is left out.
    pub fn spec(&self) -> FrameSpec {
        let parked = self.parked_stack.as_ref().map(|stack| stack.words);
        let list = self.list.as_ref().map(|list| list.walk).or(parked).unwrap_or_default();
        let way: Vec<Step> = self.parked_sp.iter().map(|(op, operand)| Step { op: *op, operand: *operand }).collect();
        let list = list.with_parked_sp(&way).unwrap_or(list);
        let mut spec = FrameSpec { key: u64::from(self.key), list, ..FrameSpec::default() };
        for (to, read) in spec.reads.iter_mut().zip(&self.reads) {
            *to = Read {
                offset: read.offset,
                base: read.base.map_or(0, |word| word.saturating_add(1)),
                words: read.words,
                to: read.to,
                tagged: u8::from(read.tagged),
            };
        }
        spec
    }

    /// Whether words of frames are read.
    pub fn has_words(&self) -> bool {
        !self.reads.is_empty()
    }

    /// How many words there are.
    pub fn word_count(&self) -> usize {
        self.reads.iter().map(|read| usize::from(read.to) + usize::from(read.words)).max().unwrap_or(0)
    }
}

/// A frame that is asked about.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FrameAsk {
    /// Its address, and what that is.
    #[serde(serialize_with = "write_pc", deserialize_with = "read_pc")]
    pub pc: FramePc,
    /// If it is in the runtime's module: where the first mapping of it has the same code.
    pub in_module: Option<Avma>,
    /// The innermost frame is its callee, and in [`Capture::left_by`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_left: bool,
    /// Reads that succeeded.
    pub reads: u8,
    /// What was taken along.
    pub words: Box<[u64]>,
    /// rdi, r9 and r12, if it is the innermost frame.
    pub registers: Option<[u64; 3]>,
    /// The listed code that it is in, if what is asked is which functions were inlined there. It has no words then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<ListedCode>,
}

/// A piece of code that the runtime has in its lists under a number, which it gives to no other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ListedCode {
    /// First byte.
    pub start: Avma,
    /// See [`FoundCode::number`](super::FoundCode::number).
    pub number: u32,
}

impl FrameAsk {
    /// Which functions are at an address of listed code.
    pub fn of_listed(pc: FramePc, code: ListedCode) -> Self {
        Self { pc, in_module: None, is_left: false, reads: 0, words: Box::default(), registers: None, code: Some(code) }
    }
}

fn write_pc<S: Serializer>(pc: &FramePc, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(pc.0)
}

fn read_pc<'de, D: Deserializer<'de>>(deserializer: D) -> Result<FramePc, D::Error> {
    u64::deserialize(deserializer).map(FramePc)
}

/// What of a frame's words an answer depends on: whatever the others are, it is the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DependsOn {
    /// The words, a bit for each.
    pub words: u16,
    /// Of which words only the two lowest bits.
    pub tags: u16,
    /// The registers, a bit for each.
    pub registers: u8,
}

impl DependsOn {
    /// The question as far as an answer depends on it.
    pub fn of(self, ask: &FrameAsk) -> FrameAsk {
        let mut narrowed = ask.clone();
        self.narrow(ask, &mut narrowed);
        narrowed
    }

    /// Makes of a copy of a question the question as far as an answer depends on it, whatever it was made of it before.
    pub fn narrow(self, ask: &FrameAsk, copy: &mut FrameAsk) {
        let has = |bits: u16, at: usize| u32::try_from(at).is_ok_and(|at| bits.checked_shr(at).unwrap_or(0) & 1 == 1);
        for (at, (to, word)) in copy.words.iter_mut().zip(&ask.words).enumerate() {
            *to = match *word {
                word if has(self.words, at) => word,
                word if has(self.tags, at) => word & 3,
                _ => 0,
            };
        }
        copy.registers = ask.registers.filter(|_| self.registers != 0).map(|mut registers| {
            let unseen = registers.iter_mut().enumerate().filter(|(at, _)| !has(self.registers.into(), *at));
            unseen.for_each(|(_, register)| *register = 0);
            registers
        });
    }
}

/// What frames are, in the order in which they were asked about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DescribedFrames {
    /// Names of functions and files.
    pub names: Vec<String>,
    /// Each.
    pub frames: Vec<DescribedFrame>,
    /// What each answer depends on; all of the words where nothing is said.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<Option<DependsOn>>,
    /// Since when each answer holds; of earlier samples nothing is known. Always, where nothing is said.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub since: Vec<MonoNs>,
    /// See [`RuntimeRead::unloads`](super::RuntimeRead::unloads).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unloads: Option<u64>,
    /// The generated code that they are in: first byte, length.
    pub code: Vec<(Avma, u32)>,
    /// Where code of functions may begin that runs within an interpreter's loop: what is no place of generated code is nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<Avma>,
    /// What it has cost, in nanoseconds of CPU time.
    pub cpu_ns: u64,
}

/// What a frame is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DescribedFrame {
    /// Functions of the program, innermost first: more than one where functions were inlined.
    Functions(Vec<DescribedFunction>),
    /// The same, if the answer is no other one when it is asked about once more: it may have been in the making.
    Unsure(Vec<DescribedFunction>),
    /// The runtime's own code, which its module's symbols name.
    Own,
    /// What it is cannot be known.
    Unnamed(WhyUnnamed),
}

/// A function of the program in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DescribedFunction {
    /// Its name among the names, as the runtime's announcements have it.
    pub name: u32,
    /// Its file among the names, if that is known.
    pub file: Option<u32>,
    /// The line that runs; 0 if it is not known.
    pub line: u32,
    /// The column in it, if it is known: from 1, as V8's own stack traces have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<NonZeroU32>,
    /// Whether it was inlined into the next one.
    pub inlined: bool,
    /// Whether it is a guess: the runtime has it at a place near the address, and not at all places around it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub guessed: bool,
}

/// Why it cannot be known what a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WhyUnnamed {
    /// No words of it were taken.
    NoWords,
    /// It was sampled before it was known what words to take.
    TooEarly,
    /// Memory could not be read.
    Unreadable,
    /// Something is not what it should be.
    Implausible,
    /// It would have cost too much.
    TooMuch,
    /// The collector was moving it.
    Moving,
    /// There is no code around the address.
    NoCode,
    /// The function had not made its frame yet, or had taken it down.
    NoFrame,
    /// Other code or another function is there now.
    Replaced,
    /// A collection has begun before it was looked at, which may have put other code there.
    Collected,
    /// WebAssembly's functions are not read.
    WebAssembly,
    /// The process has ended, and its memory with it.
    Ended,
    /// Nobody has answered in time: the process' memory does not, another program runs, or too much was asked.
    NoAnswer,
    /// There were too many frames to be asked about.
    TooMany,
    /// Classes were unloaded, or may have been, before it was looked at, and what is there now may be of another one.
    Unloaded,
    /// The frame is no longer valid, and where it would have returned to is in a word of it that is not taken along.
    Deoptimized,
}

impl WhyUnnamed {
    /// In words, for the account.
    pub fn describe(self) -> &'static str {
        match self {
            Self::NoWords => "no words of the frame were taken",
            Self::TooEarly => "sampled before its runtime was looked at",
            Self::Unreadable => "the runtime's memory could not be read",
            Self::Implausible => "the runtime's memory makes no sense there",
            Self::TooMuch => "more was to be read than a reading may cost",
            Self::Moving => "the collector was moving it",
            Self::NoCode => "no code of the runtime's around the address",
            Self::NoFrame => "the function had no frame at this instruction",
            Self::Replaced => "replaced before it was looked at",
            Self::Unloaded => "classes may have been unloaded before it was looked at",
            Self::Deoptimized => "deoptimised, where it goes on is in the frame",
            Self::Collected => "a garbage collection ran before it was looked at",
            Self::WebAssembly => "WebAssembly, whose names are not read",
            Self::Ended => "the process ended before it was looked at",
            Self::NoAnswer => "there was no answer in time",
            Self::TooMany => "too many frames to be looked at",
        }
    }
}

/// Why a frame of a list is not known. `not_there`: what it means that something is not what it should be.
pub(super) fn why_unknown(unknown: &Unknown, not_there: WhyUnnamed) -> WhyUnnamed {
    match unknown {
        Unknown::Read(ReadError::OverBudget) | Unknown::TooLarge(_) => WhyUnnamed::TooMuch,
        Unknown::Read(_) => WhyUnnamed::Unreadable,
        Unknown::Replaced(_) => WhyUnnamed::Replaced,
        Unknown::No(_) => not_there,
    }
}

/// Answers in the making: each name is kept once.
#[derive(Default)]
pub(super) struct Answers {
    names: Vec<String>,
    known: HashMap<String, u32>,
    bytes: usize,
    /// Generated code that frames are in.
    pub(super) code: BTreeMap<Avma, u32>,
    /// Where generated code of functions begins.
    pub(super) entries: BTreeSet<Avma>,
    /// The answers so far.
    pub(super) frames: Vec<DescribedFrame>,
    /// What they depend on, where that is known.
    pub(super) depends_on: Vec<Option<DependsOn>>,
    /// Since when they hold, where that is known.
    pub(super) since: Vec<MonoNs>,
    /// How many classes were unloaded when they were read.
    pub(super) unloads: Option<u64>,
}

impl Answers {
    /// Whether there are more names than one answer may have.
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= MAX_NAME_BYTES
    }

    /// A function, with the file and line that run. A file without a line is none.
    pub(super) fn function(&mut self, name: &str, (file, line): (&str, u32), inlined: bool) -> DescribedFunction {
        let file = if line > 0 { file } else { "" };
        self.function_in(name, (file, line), inlined)
    }

    /// The same, with the file whose line may not be known.
    pub(super) fn function_in(&mut self, name: &str, (file, line): (&str, u32), inlined: bool) -> DescribedFunction {
        let file = (!file.is_empty()).then(|| self.name(file));
        DescribedFunction { name: self.name(name), file, line, column: None, inlined, guessed: false }
    }

    fn name(&mut self, name: &str) -> u32 {
        if let Some(known) = self.known.get(name) {
            return *known;
        }
        let number = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        self.bytes += name.len();
        self.names.push(name.to_owned());
        self.known.insert(name.to_owned(), number);
        number
    }

    /// All of them.
    pub(super) fn finish(self, cpu_ns: u64) -> DescribedFrames {
        DescribedFrames {
            names: self.names,
            frames: self.frames,
            depends_on: self.depends_on,
            since: self.since,
            unloads: self.unloads,
            code: self.code.into_iter().collect(),
            entries: self.entries.into_iter().collect(),
            cpu_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_in_the_making_until_it_says_whose_it_is() {
        let [begins, ends] = [b"\x49\x83\xed\x40", b"\x49\x89\x45\x10"].map(|code| ByteBuf::from(code.to_vec()));
        let making = vec![Making { begins, ends }];
        let (name, bytes, pushes) = (String::new(), 32, Vec::new());
        let code = LoopCode { name, bytes, fp_below: None, pushes, making, is_shared: false, is_shown: true };
        // sub r13, 0x40; nop; mov [r13 + 0x10], rax; and the former again, without the latter.
        let made = b"\x90\x49\x83\xed\x40\x90\x49\x89\x45\x10\x90\x49\x83\xed\x40\x90";
        let found = code.making_in(made);
        assert!(found.len() == 1 && found[0] == (5..10), "{found:?}");
        for cut in 0..made.len() {
            assert!(code.making_in(&made[..cut]).len() <= 1);
        }
        let far = [&made[..5], &[0x90; MAX_MAKING_BYTES], &made[6..10]].concat();
        assert!(code.making_in(&far).is_empty(), "that is another one's");
        assert_eq!(code.making_in(&made[1..10].repeat(1000)).len(), MAX_MAKING);
    }

    #[test]
    fn why_a_frame_of_a_list_has_no_name_is_said() {
        let why = |unknown| why_unknown(&unknown, WhyUnnamed::Replaced);
        assert_eq!(why(Unknown::No("function")), WhyUnnamed::Replaced);
        assert_eq!(why(Unknown::TooLarge("function")), WhyUnnamed::TooMuch);
        assert_eq!(why(Unknown::Read(ReadError::OverBudget)), WhyUnnamed::TooMuch);
        assert_eq!(why(Unknown::Read(ReadError::Unreadable(8))), WhyUnnamed::Unreadable);
    }
}
