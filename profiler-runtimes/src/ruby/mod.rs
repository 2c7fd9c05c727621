//! Ruby: the functions of its interpreter, by what lies in its frames.
//!
//! The interpreter runs all functions of the program that call each other in one native frame; its own frames are an array,
//! of each thread or fiber, innermost first. A [`Layout`] is read once for each process, and has how they are walked. From
//! then on, [`Functions::describe`] says which function a frame is of, and which line of it runs.
//!
//! A frame is known by its code and by the instruction in it, or by its method if that is written in C. Both are objects of
//! Ruby's, which a collector may free once nothing calls them any more: they are believed only if they are of their kind, and
//! code only if the instruction is one of its own, and either only if it has been there since the sample: [`Looked::is_of`].

mod collector;
mod layout;
mod lines;
mod objects;

#[cfg(test)]
mod replay;
#[cfg(test)]
mod tests;

use jitprof_common::units::Avma;

pub use crate::described::{Described, Function, INSTRUCTION, Unknown, Version};
pub use layout::{EntryMark, Layout, LayoutError};

use crate::{Memory, Reader, walk};
use collector::Marked;
pub use collector::Progress;
use jitprof_common::listed::{Record, STATE_WORDS};
use lines::{Lines, line_at};
use objects::{Kind, element, internal, is_array, string};

/// By how many bits those are shifted that a record's second word has of its code.
const OLD_TO: u32 = 56;
/// Words of one function's instructions. The largest that generators of code make have some hundred thousand.
const MAX_WORDS: u64 = 1 << 24;
/// Where code has its body.
const BODY: u64 = 16;
/// Bytes of a body that are read.
const BODY_BYTES: usize = 160;
/// In a body: how many words of instructions it has, where they are, its file and its name, and its first line as a number of
/// Ruby's.
const WORD_COUNT: usize = 4;
const INSTRUCTIONS: usize = 8;
const FILE: usize = 64;
const LABEL: usize = 80;
const FIRST_LINE: usize = 88;
/// Of a method, where it is defined; of that, which kind of method it is in its first bits, and the number of its name. Kinds
/// whose frames are of a C function: what is written in C, and what this machine does not have.
const DEFINITION: u64 = 16;
const DEFINED_AS: u64 = 32;
const METHOD_KIND_BITS: u64 = 15;
const METHOD_KINDS_IN_C: [u64; 2] = [1, 8];
/// Below there is no code: what is less counts something.
const LEAST_CODE: u64 = 1 << 16;
/// Of a file that has two paths, the one from the root.
const REAL_PATH: u64 = 1;

/// The functions of one process' frames.
#[derive(Debug)]
pub struct Functions {
    layout: Layout,
}

/// What is at a place, as it was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Looked {
    /// The function.
    pub described: Described,
    /// Where the code may begin that was generated for it: what is no place of code is something else that the function has.
    pub entries: Vec<Avma>,
    /// It has outlived collections.
    is_old: bool,
    /// The bits of a record's second word that say this.
    old_bits: u64,
}

impl Looked {
    /// Whether a sample has met it, whose record has this second word, and which has this state; how far the collector was then
    /// was read after the function. Of what was old, the first word of the state does not matter.
    pub fn is_of(&self, (instruction, state): (u64, [u64; STATE_WORDS]), now: Progress) -> bool {
        Marked::of(state).is_same(instruction & self.old_bits == self.old_bits, now, self.is_old)
    }
}

impl Functions {
    /// Nothing but the layout is known.
    pub fn new(layout: Layout) -> Self {
        Self { layout }
    }

    /// The layout.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Says which function a frame is of, by its code or method and the address of the instruction; what is above
    /// [`INSTRUCTION`] is left out of account.
    ///
    /// # Errors
    /// There is no function, or something in it is not what it should be.
    pub fn describe<M: Memory>(&self, reader: &Reader<M>, (code, instruction): (u64, u64)) -> Result<Looked, Unknown> {
        let internal = internal(&self.layout.offsets, reader, code)?;
        let (described, entries) = match (internal.kind, instruction & INSTRUCTION) {
            // YJIT leaves there what was there before.
            (Some(Kind::Method), _) => (self.method(reader, code)?, Vec::new()),
            (Some(Kind::Code), instruction) => self.code(reader, code, instruction)?,
            _ => return Err(Unknown::No("function")),
        };
        Ok(Looked { described, entries, is_old: internal.is_old, old_bits: self.layout.was_old() })
    }

    /// How far Ruby's collector is now: read after frames were described, it says whether they are a sample's.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn progress<M: Memory>(&self, reader: &Reader<M>) -> Result<Progress, Unknown> {
        self.layout.collector.now(reader).ok_or(Unknown::No("collector"))
    }

    /// Where the interpreter runs the first instruction of the outermost function of the first thread: within its loop. Nothing
    /// if no function runs yet.
    pub fn first_handler<M: Memory>(&self, reader: &Reader<M>) -> Option<Avma> {
        let walked = walk(self.layout.walk_of_first_thread()?, 0, reader);
        let code = |[code, _]: &Record| {
            let internal = internal(&self.layout.offsets, reader, *code).ok()?;
            (internal.kind? == Kind::Code).then_some(*code)
        };
        let code = walked.records.iter().rev().find_map(code)?;
        let body = reader.pointer(Avma(code.saturating_add(BODY))).ok()?;
        let instructions = reader.pointer(Avma(body.0.saturating_add(INSTRUCTIONS as u64))).ok()?;
        reader.pointer(instructions).ok()
    }

    /// Where code may begin that was generated for functions which the first thread runs.
    pub fn first_entries<M: Memory>(&self, reader: &Reader<M>) -> Vec<Avma> {
        let Some(of_first_thread) = self.layout.walk_of_first_thread() else { return Vec::new() };
        let entries = |[code, _]: &Record| {
            let internal = internal(&self.layout.offsets, reader, *code).ok()?;
            let body = (internal.kind? == Kind::Code).then_some(Avma(code.saturating_add(BODY)))?;
            Some(self.entries(reader, reader.pointer(body).ok()?))
        };
        walk(of_first_thread, 0, reader).records.iter().filter_map(entries).flatten().collect()
    }

    /// Where the code may begin that was generated for the function with a body.
    fn entries<M: Memory>(&self, reader: &Reader<M>, body: Avma) -> Vec<Avma> {
        let entry = |offset: &u64| reader.pointer(Avma(body.0.saturating_add(*offset))).ok();
        self.layout.offsets.entries.iter().filter_map(entry).filter(|entry| entry.0 >= LEAST_CODE).collect()
    }

    /// A function that is written in C.
    fn method<M: Memory>(&self, reader: &Reader<M>, method: u64) -> Result<Described, Unknown> {
        let definition = reader.u64(Avma(method.saturating_add(DEFINITION)))?;
        if !METHOD_KINDS_IN_C.contains(&(reader.u64(Avma(definition))? & METHOD_KIND_BITS)) {
            return Err(Unknown::No("method in C"));
        }
        let number = reader.u64(Avma(definition.checked_add(DEFINED_AS).ok_or(Unknown::No("method"))?))?;
        let name = self.layout.symbol(reader, number)?;
        Ok(Described { function: Function { name: name.into(), file: "".into(), first_line: 0 }, line: 0 })
    }

    /// One of the program, or of Ruby's own that are written in Ruby, with where its generated code may begin.
    fn code<M: Memory>(
        &self,
        reader: &Reader<M>,
        code: u64,
        instruction: u64,
    ) -> Result<(Described, Vec<Avma>), Unknown> {
        let offsets = &self.layout.offsets;
        let mut body = [0; BODY_BYTES];
        let at = reader.pointer(Avma(code.saturating_add(BODY)))?;
        reader.bytes(at, &mut body)?;
        let body = Words(&body);
        let count = u64::from(body.half(WORD_COUNT));
        if count > MAX_WORDS {
            return Err(Unknown::TooLarge("function"));
        }
        let position = position(instruction, body.word(INSTRUCTIONS), count);
        let name = string(offsets, reader, body.word(LABEL), "function's name")?;
        let file = self.file(reader, body.word(FILE))?;
        let lines = Lines {
            entries: body.word(offsets.lines),
            count: body.half(offsets.line_count),
            index: body.word(offsets.line_index),
        };
        // What YJIT runs has the place of a call once it makes one, and until then that of what was there before.
        let line = position.map_or(Ok(0), |position| line_at(reader, lines, position))?;
        let first_line = u32::try_from(body.word(FIRST_LINE) >> 1).unwrap_or(0);
        let function = Function { name: name.into(), file: file.into(), first_line };
        Ok((Described { function, line }, self.entries(reader, at)))
    }

    /// The file of a function: a path, or an array of the path as it was given and the one from the root.
    fn file<M: Memory>(&self, reader: &Reader<M>, paths: u64) -> Result<String, Unknown> {
        const WHAT: &str = "function's file";
        let offsets = &self.layout.offsets;
        if !is_array(reader, paths) {
            return string(offsets, reader, paths, WHAT);
        }
        let of = |index| string(offsets, reader, element(offsets, reader, (paths, index), WHAT)?, WHAT);
        // What was evaluated has no path from the root.
        match of(REAL_PATH) {
            Err(Unknown::No(_)) => of(0),
            path => path,
        }
    }
}

/// How many words stand before the instruction that runs: what a frame has is the one behind it, but where none has run yet.
/// Nothing if it is none of the function.
fn position(instruction: u64, begin: u64, count: u64) -> Option<u64> {
    let offset = instruction.checked_sub(begin)?;
    let words = offset / 8;
    (offset.is_multiple_of(8) && words <= count).then(|| words.saturating_sub(1))
}

/// Bytes of an object.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    /// Eight bytes; 0 if they are not there.
    fn word(&self, at: usize) -> u64 {
        self.0.get(at..).and_then(<[u8]>::first_chunk).copied().map_or(0, u64::from_le_bytes)
    }

    /// Four of them.
    fn half(&self, at: usize) -> u32 {
        self.0.get(at..).and_then(<[u8]>::first_chunk).copied().map_or(0, u32::from_le_bytes)
    }
}
