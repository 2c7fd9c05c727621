//! PHP: the functions of its interpreter, by what lies in its frames.
//!
//! The interpreter runs all functions of the program that call each other in one native frame; its own frames hang on a
//! variable of the process, innermost first. A [`Layout`] is read once for each process, and has how they are walked. From
//! then on, [`Layout::describe`] says which function a frame is of, and which line of it runs.
//!
//! A frame is known by its function and by the instruction in it. A function of the program is believed only if the
//! instruction is one of its own, on one of its own lines, and a name only if it is the string whose hash stands before it:
//! without a cache of compiled scripts, functions are freed at the end of each request. Nothing that was read is kept.

mod layout;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use jitprof_common::units::Avma;

pub use layout::{EntryMark, Layout, LayoutError, Version};

use crate::{Memory, ReadError, Reader};

/// The bits of a record's second word that have the address of the instruction; above is what is said of an entry.
pub const INSTRUCTION: u64 = (1 << 56) - 1;
/// Bytes of an instruction, and where in it its line is.
const INSTRUCTION_BYTES: u64 = 32;
const LINE: u64 = 24;
/// Instructions of one function. The largest that generators of code make have some hundred thousand.
const MAX_INSTRUCTIONS: u64 = 1 << 24;
/// Bytes of a string: of a name, or of a path.
const MAX_LENGTH: u64 = 1024;
/// Bytes of a function that are read: all that any version has before the number of its last line, and that number.
const FUNCTION_BYTES: usize = 184;
/// Where in any function its kind, its name and its class are; where in a class its name is.
const KIND: usize = 0;
const NAME: usize = 8;
const CLASS: usize = 16;
const CLASS_NAME: u64 = 8;
/// The kinds: PHP's own, the program's, and what `eval` has compiled.
const INTERNAL: u8 = 1;
const USER: u8 = 2;
const EVAL: u8 = 4;
/// Bytes of a string before its text, and of its type the bits that say that it is one, and how.
const STRING_HEAD: usize = 24;
const TYPE_BITS: u32 = 15;
const STRING: u32 = 6;
/// What closures are called.
const CLOSURE: &str = "{closure}";
/// Bytes behind the begin of the interpreter's variables in which the instructions are by which it handles exceptions.
const VARIABLES: u64 = 4096;

/// A function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name: `function`, `Class::method`, `{closure:FILE:LINE}`, or the file if it is what that has outside of functions.
    pub name: Arc<str>,
    /// The file that it was compiled from; empty if it is one of PHP's own, whose code is native.
    pub file: Arc<str>,
    /// The line on which it begins; 0 if it is one of PHP's own.
    pub first_line: u32,
}

impl Function {
    /// Whether it is one of PHP's own.
    pub fn is_internal(&self) -> bool {
        self.file.is_empty()
    }
}

/// What a frame is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// Whose it is.
    pub function: Function,
    /// The line that runs, or that the call is on; 0 if that is not known.
    pub line: u32,
}

/// Why it cannot be known what a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    /// Memory could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Something is not what it should be.
    #[error("there is no {0} where it should be")]
    No(&'static str),
    /// Something is larger than can be read.
    #[error("there is a {0} that is too large")]
    TooLarge(&'static str),
}

impl Layout {
    /// Says which function a frame is of, by the function's description and the address of the instruction; what is above
    /// [`INSTRUCTION`] is left out of account.
    ///
    /// The innermost frame's instruction is the last one that could have thrown: the interpreter notes no other. That shows
    /// the function, and not the line. What handles an exception is an instruction of no function.
    ///
    /// # Errors
    /// There is no function, none with this instruction, or something in it is not what it should be.
    pub fn describe<M: Memory>(
        &self,
        reader: &Reader<M>,
        (function, instruction): (u64, u64),
        is_innermost: bool,
    ) -> Result<Described, Unknown> {
        if function == 0 || !function.is_multiple_of(8) {
            return Err(Unknown::No("function"));
        }
        let mut bytes = [0; FUNCTION_BYTES];
        reader.bytes(Avma(function), &mut bytes)?;
        let object = Words(&bytes);
        let [name, class] = [NAME, CLASS].map(|at| object.word(at));
        let name = if name == 0 { None } else { Some(string(reader, name, "function's name")?) };
        let name = match (name, class) {
            (Some(name), 0) => Some(name),
            (Some(name), class) => Some(format!("{}::{name}", class_name(reader, class)?)),
            (None, _) => None,
        };
        match bytes.get(KIND) {
            Some(&INTERNAL) => {
                let name = name.ok_or(Unknown::No("function's name"))?;
                Ok(Described { function: Function { name: name.into(), file: "".into(), first_line: 0 }, line: 0 })
            }
            Some(&(USER | EVAL)) => {
                let file = string(reader, object.word(self.function.file), "function's file")?;
                if file.is_empty() {
                    return Err(Unknown::No("function's file"));
                }
                let lines = self.function.lines;
                let (first, last) = (object.half(lines), object.half(lines + 4));
                let line = self.line(reader, &object, instruction & INSTRUCTION, (first, last))?;
                let name = match name {
                    // As PHP itself calls them from 8.4 on: else all of a program would be one.
                    Some(name) if name.ends_with(CLOSURE) => {
                        format!("{}{{closure:{file}:{first}}}", name.strip_suffix(CLOSURE).unwrap_or(""))
                    }
                    Some(name) => name,
                    None => file.clone(),
                };
                let function = Function { name: name.into(), file: file.into(), first_line: first };
                Ok(Described { function, line: if is_innermost { 0 } else { line } })
            }
            _ => Err(Unknown::No("function")),
        }
    }

    /// The line of an instruction of a function that has these lines; 0 if it is of those that handle exceptions.
    fn line<M: Memory>(
        &self,
        reader: &Reader<M>,
        object: &Words<'_>,
        instruction: u64,
        (first, last): (u32, u32),
    ) -> Result<u32, Unknown> {
        if first > last {
            return Err(Unknown::No("function"));
        }
        let from = |start: u64| instruction.checked_sub(start);
        if from(self.variables).is_some_and(|offset| offset < VARIABLES) {
            return Ok(0);
        }
        let count = u64::from(object.half(self.function.count));
        if count > MAX_INSTRUCTIONS {
            return Err(Unknown::TooLarge("function"));
        }
        let offset = from(object.word(self.function.instructions));
        offset
            .filter(|offset| *offset < count * INSTRUCTION_BYTES && offset.is_multiple_of(INSTRUCTION_BYTES))
            .ok_or(Unknown::No("instruction of the function"))?;
        let line = reader.u32(Avma(instruction.checked_add(LINE).ok_or(Unknown::No("instruction of the function"))?))?;
        if (first..=last).contains(&line) { Ok(line) } else { Err(Unknown::No("line of the function")) }
    }
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

/// Whether a text may be that of a string with this hash; 0: nobody has asked for it yet. Bytes beyond ASCII have a sign or
/// none, as the compiler would have it.
fn may_have_hash(text: &[u8], hash: u64) -> bool {
    let step = |hash: u64, byte: &u8| hash.wrapping_mul(33).wrapping_add(u64::from(*byte));
    hash == 0 || !text.is_ascii() || hash == text.iter().fold(5381, step) | 1 << 63
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
