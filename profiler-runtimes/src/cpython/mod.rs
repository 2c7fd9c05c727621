//! CPython: the functions of its interpreter, by what lies in its frames.
//!
//! The interpreter runs all Python functions that call each other in one native frame (up to 3.10 each has one); its own
//! frames hang on the thread's state, innermost first. A [`Layout`] is read once for each process, and has how they are
//! walked. From then on, [`Functions::describe`] says which function a frame is of, and which line of it runs.
//!
//! A frame is known by its code object and by the instruction in it. Of what was read before, only the text of strings is
//! kept, and used again where a string of the same type, length, kind and hash is at its place; all else is read anew each
//! time. Code objects are numbered from 3.12 on: a frame has a part of the number, too, and what was freed since then and
//! replaced by another is told from it. Up to 3.11 it has parts of the hash of the function's name, of where the name of its
//! file is, and of its first line instead. That does not always tell one module from another: their code objects come one after
//! the other to one place, all have one name and begin on line 1, and the name of the file goes with the code if no function of
//! the module is left to keep it. Then a module is said without its file.

mod layout;
mod lines;
mod strings;
mod threads;

#[cfg(test)]
mod tests;

use jitprof_common::units::Avma;

pub use layout::{EntryMark, Layout, LayoutError};
pub(crate) use threads::variable_of;

pub use crate::described::{Described, Function, INSTRUCTION, Unknown, Version};
use crate::{Memory, ReadError, Reader};
use layout::Instructions;
use lines::line_of;
use strings::{HASH, Strings};

/// The bits of a frame's first word that are the code object's address...
const CODE: u64 = (1 << NUMBER_AT) - 1;
/// ...and how many of its number, or of its name's hash, stand above them: those that are lowest. 0: they are, or it could not
/// be read.
const NUMBER_AT: u8 = 48;
const NUMBER: u64 = u64::MAX >> NUMBER_AT;
/// Bits of the file's address below those that are exclusively ored to the hash: the allocator leaves them 0.
const FILE_BITS: u8 = 4;
/// What the code of a module is called.
const MODULE: &str = "<module>";
/// The bits of the first line that stand above the instruction, where there is no number.
const FIRST_LINE: u64 = 0xff;
/// Instructions are two bytes, and so are what is kept between them.
const UNIT: u64 = 2;
/// The distance of the instruction that runs from the first, before the function has begun: -1.
const NOT_BEGUN: u64 = u32::MAX as u64;
/// Where in an object of bytes they begin.
const DATA: usize = 32;
/// Bytes of one function's code. The largest that compilers of tables make have some MiB.
const MAX_CODE: u64 = 64 << 20;

/// The functions of one process's frames, with what was read for them.
#[derive(Debug)]
pub struct Functions {
    layout: Layout,
    strings: Strings,
}

impl Functions {
    /// Nothing is known yet.
    pub fn new(layout: Layout) -> Self {
        Self { layout, strings: Strings::default() }
    }

    /// The layout.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Bytes that are remembered, nearly.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.strings.bytes()
    }

    /// Drops what is remembered; it is read again where it is met.
    pub fn clear(&mut self) {
        self.strings = Strings::default();
    }

    /// Says which function a frame is of, by the words that a [walk](Layout::walk) has kept of it: its code object with a
    /// part of its number, and the address of the instruction, or its distance from the first; what is said of an entry is
    /// left out of account.
    ///
    /// The reader holds pages: it is to be refreshed, or a new one, for each batch of frames.
    ///
    /// # Errors
    /// There is no code object, another one, none with this instruction, or something in it is not what it should be.
    pub fn describe<M: Memory>(&mut self, reader: &Reader<M>, code: u64, ip: u64) -> Result<Described, Unknown> {
        let Self { layout, strings } = self;
        let (code, number) = (code & CODE, code >> NUMBER_AT);
        let (ip, line_bits) = (ip & CODE, ip >> NUMBER_AT & FIRST_LINE);
        let object = Words::read(reader, code, layout.code.span)?;
        if object.word(layout::TYPE) != layout.types.code {
            return Err(Unknown::No("code object"));
        }
        let version = layout.code.version.map(|at| (at, object.word(at) as u32));
        // It keeps its number, and what its name was is another string by now.
        if version.is_some() && is_freed(object.word(REFERENCES)) {
            return Err(Unknown::Replaced("code object"));
        }
        match version {
            // The sample could not read it: it may be any object's that was there.
            Some((at, version)) if number == 0 && u64::from(version) & NUMBER != 0 => {
                return Err(ReadError::Unreadable(code.wrapping_add(at)).into());
            }
            Some((_, version)) if u64::from(version) & NUMBER != number => {
                return Err(Unknown::Replaced("code object"));
            }
            _ => {}
        }
        let first_line = u32::try_from(object.word(layout.code.first_line) & u64::from(u32::MAX)).unwrap_or(0);
        let [name_at, file_at] = [layout.code.name, layout.code.file].map(|at| object.word(at));
        let hash = match version {
            Some(_) => None,
            None => Some(reader.u64(Avma(name_at.wrapping_add(HASH)))?),
        };
        let printed = hash.map(|hash| (hash ^ file_at >> FILE_BITS) & NUMBER);
        match printed {
            Some(printed) if number == 0 && printed != 0 => {
                return Err(ReadError::Unreadable(code.wrapping_add(layout.code.name)).into());
            }
            Some(printed) if printed != number || u64::from(first_line) & FIRST_LINE != line_bits => {
                return Err(Unknown::Replaced("code object"));
            }
            _ => {}
        }
        let unit = match layout.code.instructions {
            Instructions::Within(offset) => {
                let size = object.word(layout::SIZE).checked_mul(UNIT).filter(|size| *size <= MAX_CODE);
                unit_of(code.wrapping_add(offset), size.ok_or(Unknown::TooLarge("function"))?, ip)?
            }
            Instructions::Apart(offset, bytes) => {
                let size = bytes_of(reader, layout, object.word(offset), "function's code")?;
                match ip {
                    NOT_BEGUN => None,
                    at => unit_of(0, size, at.saturating_mul(bytes))?,
                }
            }
        };
        let name = strings.read(reader, layout, name_at, "function's name")?;
        let file = strings.read(reader, layout, file_at, "function's file")?;
        let is_unsure = version.is_none() && &*name == MODULE && !is_kept(reader, file_at, &object)?;
        let line = match unit {
            Some(unit) => line_of(reader, layout, object.word(layout.code.lines), first_line, unit)?,
            None => first_line,
        };
        // What it leads to was its own if it is still there.
        let now = |at: u64| {
            let mut word = [0; 8];
            let count = reader.now(Avma(at), &mut word)?;
            Ok::<_, Unknown>(Some(u64::from_le_bytes(word)).filter(|_| count == word.len()))
        };
        if let Some((at, version)) = version {
            let mut half = [0; 4];
            let count = reader.now(Avma(code.wrapping_add(at)), &mut half)?;
            let is_same = count == half.len() && u32::from_le_bytes(half) == version;
            if !is_same || now(code.wrapping_add(REFERENCES))?.is_none_or(is_freed) {
                return Err(Unknown::Replaced("code object"));
            }
        }
        if let Some(hash) = hash
            && (now(code.wrapping_add(layout.code.name))? != Some(name_at)
                || now(code.wrapping_add(layout.code.file))? != Some(file_at)
                || now(name_at.wrapping_add(HASH))? != Some(hash))
        {
            return Err(Unknown::Replaced("code object"));
        }
        let (file, line) = if is_unsure { ("".into(), 0) } else { (file, line) };
        Ok(Described { function: Function { name, file, first_line }, line })
    }
}

impl Functions {
    /// Whether a code object that was [described](Self::describe) may be one that is being made, and has to be described once
    /// more a while later: its number is the last that it gets, and memory that is used again has the one of what was there
    /// before. Nothing but what makes it refers to it.
    pub fn may_be_unfinished<M: Memory>(&self, reader: &Reader<M>, code: u64) -> bool {
        let references = || reader.u32(Avma(code & CODE));
        self.layout.code.version.is_some() && references() == Ok(1)
    }
}

/// Where in an object it is said how often it is referred to.
const REFERENCES: u64 = 0;

/// Whether memory has been given back, by its first word: that is how often it is referred to, in the lower half, and from 3.14
/// on flags in the highest bits; or nothing, or where the next such memory is.
fn is_freed(references: u64) -> bool {
    references & u64::from(u32::MAX) == 0 || references >> 32 & 0xffff != 0
}

/// Whether somebody else than a code object refers to the name of its file: else another one may have come to its place, too.
fn is_kept<M: Memory>(reader: &Reader<M>, file_at: u64, code: &Words) -> Result<bool, Unknown> {
    let references = reader.u64(Avma(file_at.wrapping_add(REFERENCES)))?;
    // Memory of a code object that was given back refers to nothing.
    let own = u64::from(!is_freed(code.word(REFERENCES)));
    Ok(!is_freed(references) && references > own)
}

/// How many bytes are in an object of bytes, which is `what`.
fn bytes_of<M: Memory>(reader: &Reader<M>, layout: &Layout, at: u64, what: &'static str) -> Result<u64, Unknown> {
    let object = Words::read(reader, at, DATA)?;
    if layout.types.bytes.is_some_and(|bytes| bytes != object.word(layout::TYPE)) {
        return Err(Unknown::No(what));
    }
    Some(object.word(layout::SIZE)).filter(|size| *size <= MAX_CODE).ok_or(Unknown::TooLarge(what))
}

/// Which of the instructions from `start` on is meant; none if it is what stands before the first: the function has not
/// begun.
fn unit_of(start: u64, size: u64, ip: u64) -> Result<Option<u64>, Unknown> {
    if ip.checked_add(UNIT) == Some(start) {
        return Ok(None);
    }
    let offset = ip.checked_sub(start).filter(|offset| *offset < size && offset % UNIT == 0);
    offset.map(|offset| Some(offset / UNIT)).ok_or(Unknown::No("instruction of the code object"))
}

/// The first words of an object.
struct Words([u64; MAX_WORDS]);

/// Words of an object that are read at once.
const MAX_WORDS: usize = 64;

impl Words {
    /// The first `span` bytes of what is at an address.
    fn read<M: Memory>(reader: &Reader<M>, address: u64, span: usize) -> Result<Self, Unknown> {
        // Objects are where the allocator has put them, and it puts none there.
        if address == 0 || !address.is_multiple_of(8) {
            return Err(Unknown::No("object"));
        }
        let mut bytes = [0; MAX_WORDS * 8];
        let part = bytes.get_mut(..span).ok_or(Unknown::TooLarge("object"))?;
        reader.bytes(Avma(address), part)?;
        let mut words = [0; MAX_WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        Ok(Self(words))
    }

    /// The eight bytes from an offset on; 0 if they are not among them.
    fn word(&self, offset: u64) -> u64 {
        let at = usize::try_from(offset / 8).unwrap_or(usize::MAX);
        let word = |at: usize| self.0.get(at).copied().unwrap_or(0);
        match offset % 8 * 8 {
            0 => word(at),
            bits => word(at) >> bits | word(at.saturating_add(1)) << (64 - bits),
        }
    }
}
