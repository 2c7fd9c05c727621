//! PHP: the functions of its interpreter, by what lies in its frames.
//!
//! The interpreter runs all functions of the program that call each other in one native frame; its own frames hang on a
//! variable of the process, innermost first. A [`Layout`] is read once for each process, and has how they are walked. From
//! then on, [`Functions::describe`] says which function a frame is of, and which line of it runs.
//!
//! A frame is known by its function and by the instruction in it. A function of the program is believed only if the
//! instruction is one of its own, on one of its own lines, and a name only if it is the string whose hash stands before it:
//! without a cache of compiled scripts, functions are freed at the end of each request, and the next one has others at the
//! same places, while what is left of the former still refers to it. So a sample takes parts of a function's first line and of
//! the hashes of its path and its name along, and what is there later is believed only if it has the same ones, and if all of
//! it is the same once more when it is read again. One of PHP's own functions that lies in a request's memory, as its copy in a
//! closure does, is believed likewise. What was read is kept for samples of functions that are gone when they are asked about,
//! which have to have the same parts of it.

mod closures;
mod layout;
mod met;

#[cfg(test)]
mod replay;
#[cfg(test)]
mod tests;

use std::collections::HashSet;

use jitprof_common::units::Avma;

pub use layout::{EntryMark, Layout, LayoutError};

pub use crate::described::{Described, Function, Unknown, Version};
use crate::{Memory, ReadError, Reader};
use closures::Closures;
use met::Met;

/// The bits of a record's words that are addresses, of which a program has no more on x86-64, for which alone the layouts are
/// known. In the first word the next bit says that its path's hash was read. From the one behind it on are parts of the hashes of
/// the function's path and name, one exclusively ored to the other, and in the second word one of its first line.
const ADDRESS: u64 = (1 << 47) - 1;
const PATH_READ: u64 = 1 << 47;
const PRINT_AT: u8 = 48;
/// These parts. The highest bit of a hash is always set: turned as they are, that of the path is the bit which says so.
const HASHES: u64 = 0xffff;
const HASHED: u64 = 1 << 63;
const FIRST_LINE: u64 = 0xff;
/// Bytes of an instruction, and where in it its line is.
const INSTRUCTION_BYTES: u64 = 32;
const LINE: u64 = 24;
/// Instructions of one function. The largest that generators of code make have some hundred thousand.
const MAX_INSTRUCTIONS: u64 = 1 << 24;
/// Bytes of a string: of a name, or of a path.
const MAX_LENGTH: u64 = 1024;
/// Bytes of a function that are read: all that is needed of it in any version.
const FUNCTION_BYTES: usize = 208;
/// Bytes of one of PHP's own, which has fewer.
const INTERNAL_BYTES: usize = 24;
/// Closures that are looked for in a function, and those in them, and so on.
const MAX_CLOSURES: u64 = 64;
const MAX_DEPTH: usize = 3;
/// Closures that are looked for in all functions whose frames are asked about together, and bytes of their code.
const MAX_LEARNT: u64 = 256;
const MAX_LEARNT_BYTES: u64 = 1 << 20;
/// Where in any function its kind, its name and its class are; where in a class its name is.
const KIND: usize = 0;
const NAME: usize = 8;
const CLASS: usize = 16;
const CLASS_NAME: u64 = 8;
/// Where what is said of it is; of that, the bits that it is in the cache of compiled scripts, and a closure.
const FLAGS: usize = 4;
const IS_CACHED: u32 = 1 << 7;
const IS_CLOSURE: u32 = 1 << 22;
/// The kinds: PHP's own, the program's, and what `eval` has compiled.
const INTERNAL: u8 = 1;
const USER: u8 = 2;
const EVAL: u8 = 4;
/// Where in a string its hash is.
const HASH: u64 = 8;
/// Memory for requests comes in parts of so many bytes, each at a multiple of them. The first word of each leads to the heap, so
/// far into the first part (7.4 to 8.4; not with `USE_ZEND_ALLOC=0`).
const CHUNK: u64 = 2 << 20;
const HEAP_AT: u64 = 64;
/// Bytes of a string before its text, and of its type the bits that say that it is one, and how.
const STRING_HEAD: usize = 24;
const TYPE_BITS: u32 = 15;
const STRING: u32 = 6;
/// What closures are called, up to 8.3 and from 8.4 on.
const CLOSURE: &str = "{closure}";
const CLOSURE_AT: &str = "{closure:";
/// Bytes behind the begin of the interpreter's variables in which the instructions are by which it handles exceptions.
const VARIABLES: u64 = 4096;
/// Bytes before and behind it that are PHP's own variables.
const STATIC: u64 = 512 << 10;

/// The functions of one process's frames.
#[derive(Debug)]
pub struct Functions {
    layout: Layout,
    closures: Closures,
    met: Met,
    learnt: Learnt,
}

/// What was learnt of closures for the frames that are asked about together. It is no more than a part of what describing
/// them may cost.
#[derive(Debug, Default)]
struct Learnt {
    /// Lists that were gone through.
    lists: HashSet<u64>,
    closures: u64,
    bytes: u64,
}

/// A function of the program, with what its frames are compared with.
#[derive(PartialEq, Eq)]
struct Own {
    function: Function,
    /// Where its instructions begin, and how many there are.
    instructions: (u64, u64),
    lines: (u32, u32),
    /// It stays where it is for as long as the process runs.
    is_lasting: bool,
    /// Where the closures that stand in it are listed, and how many there are.
    closures: (u64, u64),
    printed: Printed,
}

/// What a sample has of a function besides its address: parts of the number of its first line, and of its hashes, and whether
/// that of its path is among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Print {
    has_path: bool,
    hashes: u64,
    first_line: u64,
}

/// What it is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Printed {
    path: u64,
    /// 0: it has no name.
    name: u64,
    first_line: u32,
}

impl Print {
    fn of((function, instruction): (u64, u64)) -> Self {
        Self {
            has_path: function & PATH_READ != 0,
            hashes: function >> PRINT_AT & HASHES,
            first_line: instruction >> PRINT_AT & FIRST_LINE,
        }
    }

    /// Whether it is that of a function of the program, which may be one that stays where it is.
    ///
    /// The path of a file has its hash before anything of it runs; only what comes by `php -r` or the standard input has none.
    /// Where the sample has none of what has one, the function was not read for it, or was none of the program: then only what
    /// stays is believed.
    fn is(self, printed: Printed, is_lasting: bool) -> bool {
        let Printed { path, name, .. } = printed;
        let is_one_of = |hashes: [u64; 2]| self.is_line_of(printed) && hashes.iter().any(|hash| self.is_hash(*hash));
        let (is_hashed, is_nothing) = (path & HASHED != 0, self.hashes == 0 && self.first_line == 0);
        if self.has_path || !is_hashed {
            // A name has no hash until somebody asks for it.
            let is_read = self.has_path == is_hashed && (self.has_path || !is_nothing);
            return is_read && is_one_of([path ^ name, path]);
        }
        is_lasting && (is_nothing || is_one_of([name, 0]))
    }

    /// Whether it is what a walk takes along where there is this, whatever that is.
    fn is_read_of(self, printed: Printed) -> bool {
        let Printed { path, name, .. } = printed;
        self.has_path == (path & HASHED != 0) && self.is_hash(path ^ name) && self.is_line_of(printed)
    }

    fn is_hash(self, hash: u64) -> bool {
        self.hashes == hash & HASHES
    }

    fn is_line_of(self, printed: Printed) -> bool {
        self.first_line == u64::from(printed.first_line) & FIRST_LINE
    }
}

#[derive(PartialEq, Eq)]
enum Either {
    /// With the hash of its name; 0: it has none.
    Internal(Function, u64),
    Own(Own),
}

impl Functions {
    /// Nothing is known yet.
    pub fn new(layout: Layout) -> Self {
        Self { layout, closures: Closures::default(), met: Met::default(), learnt: Learnt::default() }
    }

    /// The layout.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Bytes that are remembered, nearly.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.closures.bytes() + self.met.bytes()
    }

    /// Drops what is remembered; it is read again where it is met.
    pub fn clear(&mut self) {
        self.closures = Closures::default();
        self.met = Met::default();
    }

    /// Other frames are asked about: what has changed of closures since is learnt.
    pub fn begin(&mut self) {
        self.learnt = Learnt::default();
    }

    /// Says which function a frame is of, by the words that a [walk](Layout::walk) has kept of it.
    ///
    /// The innermost frame's instruction is the last one that could have thrown: neither the interpreter nor jitted code notes
    /// another. So it does not show the line; and where there was none yet, it is what another frame has left there: then only a
    /// function is believed that the cache of compiled scripts has. What handles an exception is an instruction of no function.
    ///
    /// # Errors
    /// There is no function, none with this instruction, or something in it is not what it should be.
    pub fn describe<M: Memory>(
        &mut self,
        reader: &Reader<M>,
        (function, instruction): (u64, u64),
        is_innermost: bool,
    ) -> Result<Described, Unknown> {
        let print = Print::of((function, instruction));
        let (function, instruction) = (function & ADDRESS, instruction & ADDRESS);
        let described = match self.of_function(reader, (function, instruction), print, is_innermost) {
            Err(error @ Unknown::Read(ReadError::OverBudget)) => Err(error),
            Err(error) => match self.met.find((function, print), instruction) {
                Some(described) => Ok(described),
                None if is_innermost => Err(error),
                // Of a closure that was freed the code is still there.
                None => {
                    let closure = self.closures.of(reader, instruction)?;
                    closure
                        .filter(|(_, printed)| print.is(*printed, false))
                        .map(|(described, _)| described)
                        .ok_or(error)
                }
            },
            described => described,
        }?;
        Ok(Described { line: if is_innermost { 0 } else { described.line }, ..described })
    }

    fn of_function<M: Memory>(
        &mut self,
        reader: &Reader<M>,
        (at, instruction): (u64, u64),
        print: Print,
        is_innermost: bool,
    ) -> Result<Described, Unknown> {
        let read = self.layout.read_function(reader, at)?;
        let line = match &read {
            Either::Own(own) if !print.is(own.printed, own.is_lasting) => return Err(Unknown::Replaced("function")),
            Either::Own(own) => self.layout.line_of(reader, own, instruction, is_innermost)?,
            Either::Internal(_, name) if self.layout.may_be(reader, at, *name, print)? => 0,
            Either::Internal(..) => return Err(Unknown::Replaced("function")),
        };
        let is_still = reader.afresh(|fresh| {
            let is_line = match &read {
                Either::Own(own) => self.layout.line_of(fresh, own, instruction, is_innermost) == Ok(line),
                Either::Internal(..) => true,
            };
            Ok::<_, Unknown>(is_line && self.layout.is_still(fresh, at, &read)?)
        })?;
        if !is_still {
            return Err(Unknown::Replaced("function"));
        }
        let own = match read {
            Either::Internal(function, _) => return Ok(Described { function, line }),
            Either::Own(own) => own,
        };
        self.learn(reader, &own, 0);
        self.met.note((at, print), &own, (instruction, line));
        Ok(Described { function: own.function, line })
    }

    /// Remembers a function that is a closure, and those that stand in it.
    fn learn<M: Memory>(&mut self, reader: &Reader<M>, own: &Own, depth: usize) {
        let bytes = own.instructions.1 * INSTRUCTION_BYTES;
        if own.function.name.contains(CLOSURE_AT) && self.learnt.bytes + bytes <= MAX_LEARNT_BYTES {
            self.learnt.bytes += bytes;
            self.closures.learn(reader, own.instructions, &own.function, own.printed, own.lines);
        }
        let (list, count) = own.closures;
        if depth >= MAX_DEPTH || list == 0 || !self.learnt.lists.insert(list) {
            return;
        }
        for at in 0..count.min(MAX_CLOSURES) {
            self.learnt.closures += 1;
            if self.learnt.closures > MAX_LEARNT {
                return;
            }
            let Ok(function) = reader.u64(Avma(list.saturating_add(at * 8))) else { return };
            let Ok(read) = self.layout.read_function(reader, function) else { continue };
            let is_still = reader.afresh(|fresh| self.layout.is_still(fresh, function, &read));
            if let (Either::Own(inner), Ok(true)) = (read, is_still) {
                self.learn(reader, &inner, depth + 1);
            }
        }
    }
}

impl Layout {
    fn read_function<M: Memory>(&self, reader: &Reader<M>, function: u64) -> Result<Either, Unknown> {
        if function == 0 || !function.is_multiple_of(8) {
            return Err(Unknown::No("function"));
        }
        let mut bytes = [0; FUNCTION_BYTES];
        reader.bytes(Avma(function), &mut bytes[..INTERNAL_BYTES])?;
        let kind = bytes.get(KIND).copied().unwrap_or(0);
        if matches!(kind, USER | EVAL) {
            reader.bytes(Avma(function), &mut bytes)?;
        } else if kind != INTERNAL {
            return Err(Unknown::No("function"));
        }
        let object = Words(&bytes);
        let [name_at, class] = [NAME, CLASS].map(|at| object.word(at));
        let name = if name_at == 0 { None } else { Some(string(reader, name_at, "function's name")?) };
        let name_hash = name.as_ref().map_or(Ok(0), |name| hash_at(reader, name_at, name))?;
        let name = match (name, class) {
            (Some(name), 0) => Some(name),
            (Some(name), class) => Some(format!("{}::{name}", class_name(reader, class)?)),
            (None, _) => None,
        };
        if kind == INTERNAL {
            // What a fiber begins with, which is no function, lies beside the interpreter's variables and has none.
            let is_stub = || function.abs_diff(self.variables) < STATIC;
            let name = name.or_else(|| is_stub().then(String::new)).ok_or(Unknown::No("function's name"))?;
            return Ok(Either::Internal(Function { name: name.into(), file: "".into(), first_line: 0 }, name_hash));
        }
        let offsets = &self.function;
        let path = object.word(offsets.file);
        let file = string(reader, path, "function's file")?;
        let path_hash = reader.u64(Avma(path.saturating_add(HASH)))?;
        if file.is_empty() {
            return Err(Unknown::No("function's file"));
        }
        let lines @ (first, last) = (object.half(offsets.lines), object.half(offsets.lines + 4));
        let instructions @ (_, count) = (object.word(offsets.instructions), object.half(offsets.count).into());
        if count > MAX_INSTRUCTIONS {
            return Err(Unknown::TooLarge("function"));
        }
        if first > last {
            return Err(Unknown::No("function"));
        }
        // What a file has outside of functions is copied for each run.
        let is_named = name.is_some();
        let base = file.rsplit_once('/').map_or(&*file, |(_, base)| base);
        let name = match name {
            // Nearly as PHP itself calls them from 8.4 on: else all of a program would be one.
            Some(name) => match name.strip_suffix(CLOSURE) {
                Some(before) => format!("{before}{CLOSURE_AT}{base}:{first}}}"),
                None => name,
            },
            None => base.to_owned(),
        };
        let closures = offsets.closures.map_or((0, 0), |(count, list)| (object.word(list), object.half(count).into()));
        let function = Function { name: name.into(), file: file.into(), first_line: first };
        let printed = Printed { path: path_hash, name: name_hash, first_line: first };
        let is_lasting = object.half(FLAGS) & (IS_CACHED | IS_CLOSURE) == IS_CACHED && is_named;
        Ok(Either::Own(Own { function, instructions, lines, is_lasting, closures, printed }))
    }

    /// The line of a function that an instruction is on; 0 if it does not tell.
    fn line_of<M: Memory>(
        &self,
        reader: &Reader<M>,
        own: &Own,
        instruction: u64,
        is_innermost: bool,
    ) -> Result<u32, Unknown> {
        let from = |start: u64| instruction.checked_sub(start);
        let handles = from(self.variables).is_some_and(|offset| offset < VARIABLES);
        let (start, count) = own.instructions;
        let is_its = |offset: u64| offset < count * INSTRUCTION_BYTES && offset.is_multiple_of(INSTRUCTION_BYTES);
        match from(start) {
            _ if handles => Ok(0),
            _ if is_innermost && own.is_lasting => Ok(0),
            Some(offset) if is_its(offset) => line_at(reader, instruction, own.lines),
            _ => Err(Unknown::No("instruction of the function")),
        }
    }

    /// Whether one of PHP's own functions, whose name has this hash, may be what a sample has a print of.
    ///
    /// Most stay where they are. What lies in a request's memory gives its place to others: then the print has to be the one
    /// that a walk would take now. Where those of the program have path and lines, closures have 0, and others anything.
    fn may_be<M: Memory>(&self, reader: &Reader<M>, function: u64, name: u64, print: Print) -> Result<bool, Unknown> {
        let word = |at: u64| match reader.u64(Avma(at)) {
            Err(ReadError::OverBudget) => Err(Unknown::Read(ReadError::OverBudget)),
            read => Ok(read.unwrap_or(0)),
        };
        if word(function & !(CHUNK - 1))? % CHUNK != HEAP_AT {
            return Ok(true);
        }
        let mut bytes = [0; FUNCTION_BYTES];
        reader.bytes(Avma(function), &mut bytes)?;
        let object = Words(&bytes);
        let path = word(object.word(self.function.file).wrapping_add(HASH))?;
        Ok(print.is_read_of(Printed { path, name, first_line: object.half(self.function.lines) }))
    }

    /// Whether a function is the one that was read: what it leads to was its own if all of it is still the same.
    fn is_still<M: Memory>(&self, fresh: &Reader<M>, function: u64, read: &Either) -> Result<bool, Unknown> {
        match self.read_function(fresh, function) {
            Err(error @ Unknown::Read(ReadError::OverBudget)) => Err(error),
            now => Ok(now.is_ok_and(|now| now == *read)),
        }
    }
}

/// The line of an instruction of a function that has these lines.
fn line_at<M: Memory>(reader: &Reader<M>, instruction: u64, (first, last): (u32, u32)) -> Result<u32, Unknown> {
    let at = instruction.checked_add(LINE).ok_or(Unknown::No("instruction of the function"))?;
    let line = reader.u32(Avma(at))?;
    if (first..=last).contains(&line) { Ok(line) } else { Err(Unknown::No("line of the function")) }
}

/// The name of a class; of one without a name, what stands for it: behind that is where it was declared.
fn class_name<M: Memory>(reader: &Reader<M>, class: u64) -> Result<String, Unknown> {
    let at = class.checked_add(CLASS_NAME).ok_or(Unknown::No("class"))?;
    let mut name = string(reader, reader.u64(Avma(at))?, "class's name")?;
    if let Some(end) = name.find('\0') {
        name.truncate(end);
    }
    Ok(name)
}

/// The text of the string at an address, which is `what`.
fn string<M: Memory>(reader: &Reader<M>, address: u64, what: &'static str) -> Result<String, Unknown> {
    if address == 0 || !address.is_multiple_of(8) {
        return Err(Unknown::No(what));
    }
    let mut head = [0; STRING_HEAD];
    reader.bytes(Avma(address), &mut head)?;
    let object = Words(&head);
    let (hash, length) = (object.word(8), object.word(16));
    if object.half(4) & TYPE_BITS != STRING {
        return Err(Unknown::No(what));
    }
    if length > MAX_LENGTH {
        return Err(Unknown::TooLarge(what));
    }
    let text = address.checked_add(STRING_HEAD as u64).ok_or(Unknown::No(what))?;
    let mut bytes = vec![0; usize::try_from(length).map_err(|_| Unknown::TooLarge(what))? + 1];
    reader.bytes(Avma(text), &mut bytes)?;
    // A NUL stands behind the text.
    if bytes.pop() != Some(0) || !may_have_hash(&bytes, hash) {
        return Err(Unknown::No(what));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The hash of the string at an address, which has this text: what it will be if nobody has asked for it yet.
fn hash_at<M: Memory>(reader: &Reader<M>, address: u64, text: &str) -> Result<u64, Unknown> {
    Ok(match reader.u64(Avma(address.saturating_add(HASH)))? {
        0 if text.is_ascii() => hash(text.as_bytes()),
        hash => hash,
    })
}

fn hash(text: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| hash.wrapping_mul(33).wrapping_add(u64::from(*byte));
    text.iter().fold(5381, step) | 1 << 63
}

/// Whether a text may be that of a string with this hash; 0: nobody has asked for it yet. Bytes beyond ASCII have a sign or
/// none, as the compiler would have it.
fn may_have_hash(text: &[u8], expected: u64) -> bool {
    expected == 0 || !text.is_ascii() || expected == hash(text)
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
