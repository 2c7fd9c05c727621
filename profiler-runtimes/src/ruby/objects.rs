//! Ruby's own objects: strings, arrays, symbols.

use jitprof_common::units::Avma;

use super::Unknown;
use super::layout::{Layout, Offsets};
use crate::{Memory, Reader};

/// Bytes of a string: of a name, or of a path.
const MAX_LENGTH: u64 = 1024;
/// The bits of an object's flags that say its kind, and kinds.
const KIND_BITS: u64 = 31;
const STRING: u64 = 5;
const ARRAY: u64 = 7;
/// The kind of what only the interpreter uses, and the bits that say which of that it is.
const INTERNAL: u64 = 26;
const INTERNAL_AT: u32 = 12;
const INTERNAL_BITS: u64 = 15;
/// Of strings and arrays: that the contents lie elsewhere, and that they lie within.
const IS_ELSEWHERE: u64 = 1 << 13;
const IS_WITHIN: u64 = 1 << 13;
/// In the flags: where the length of a short string begins, and of a short array.
const LENGTH_AT: u32 = 14;
const LENGTH_BITS: u64 = 31;
const COUNT_AT: u32 = 15;
/// In a string or an array: its length. Behind that, where a string's text is, and two words behind it an array's elements.
const LENGTH: u64 = 16;
const TEXT: u64 = 24;
const ELEMENTS: u64 = 32;
const WITHIN: u64 = 16;
/// No object lies below.
const LEAST_OBJECT: u64 = 4096;
/// Symbols of one part of the table, of which each has two words.
const PART: u64 = 512;
/// Bits of a symbol's number below those by which it is counted.
const SCOPE_BITS: u32 = 4;

/// What of the interpreter's own something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A method.
    Method,
    /// The code of a function.
    Code,
}

/// An object that only the interpreter uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Internal {
    pub(super) kind: Option<Kind>,
    /// It has outlived a collection.
    pub(super) is_old: bool,
}

/// Of which kind an object is that only the interpreter uses, and how old.
pub(super) fn internal<M: Memory>(offsets: &Offsets, reader: &Reader<M>, object: u64) -> Result<Internal, Unknown> {
    if !is_object(object) {
        return Ok(Internal { kind: None, is_old: false });
    }
    let flags = reader.u64(Avma(object))?;
    let kind = match (flags & KIND_BITS, flags >> INTERNAL_AT & INTERNAL_BITS) {
        (INTERNAL, 6) => Some(Kind::Method),
        (INTERNAL, 7) => Some(Kind::Code),
        _ => None,
    };
    Ok(Internal { kind, is_old: flags & offsets.old == offsets.old })
}

/// The text of a string, which is `what`.
pub(super) fn string<M: Memory>(
    offsets: &Offsets,
    reader: &Reader<M>,
    object: u64,
    what: &'static str,
) -> Result<String, Unknown> {
    let flags = flags_of(reader, (object, STRING), what)?;
    let at = |offset: u64| object.checked_add(offset).map(Avma).ok_or(Unknown::No(what));
    let (length, text) = match flags & IS_ELSEWHERE {
        0 if offsets.is_length_in_flags => (flags >> LENGTH_AT & LENGTH_BITS, at(offsets.text)?),
        0 => (reader.u64(at(LENGTH)?)?, at(offsets.text)?),
        _ => (reader.u64(at(LENGTH)?)?, reader.pointer(at(TEXT)?)?),
    };
    if length > MAX_LENGTH {
        return Err(Unknown::TooLarge(what));
    }
    let mut bytes = vec![0; usize::try_from(length).map_err(|_| Unknown::TooLarge(what))?];
    reader.bytes(text, &mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// An element of an array; nothing if the object is none.
pub(super) fn element<M: Memory>(
    offsets: &Offsets,
    reader: &Reader<M>,
    (object, index): (u64, u64),
    what: &'static str,
) -> Result<u64, Unknown> {
    let flags = flags_of(reader, (object, ARRAY), what)?;
    let at = |offset: u64| object.checked_add(offset).map(Avma).ok_or(Unknown::No(what));
    let (count, elements) = match flags & IS_WITHIN {
        0 => (reader.u64(at(LENGTH)?)?, reader.pointer(at(ELEMENTS)?)?),
        _ => (flags >> COUNT_AT & offsets.array_bits, at(WITHIN)?),
    };
    if index >= count {
        return Err(Unknown::No(what));
    }
    let place = index.checked_mul(8).and_then(|offset| elements.0.checked_add(offset));
    Ok(reader.u64(Avma(place.ok_or(Unknown::No(what))?))?)
}

/// Whether a value may be an object: `nil` and its like are small numbers.
fn is_object(value: u64) -> bool {
    value >= LEAST_OBJECT && value.is_multiple_of(8)
}

/// Whether an object is an array.
pub(super) fn is_array<M: Memory>(reader: &Reader<M>, object: u64) -> bool {
    flags_of(reader, (object, ARRAY), "array").is_ok()
}

fn flags_of<M: Memory>(reader: &Reader<M>, (object, kind): (u64, u64), what: &'static str) -> Result<u64, Unknown> {
    if !is_object(object) {
        return Err(Unknown::No(what));
    }
    let flags = reader.u64(Avma(object))?;
    if flags & KIND_BITS == kind { Ok(flags) } else { Err(Unknown::No(what)) }
}

impl Layout {
    /// The text of the symbol that has a number.
    pub(super) fn symbol<M: Memory>(&self, reader: &Reader<M>, number: u64) -> Result<String, Unknown> {
        const WHAT: &str = "method's name";
        let symbols = reader.u64(Avma(self.symbols.ok_or(Unknown::No("table of symbols"))?))?;
        let count = if number > self.offsets.last_operator { number >> SCOPE_BITS } else { number };
        let part = element(&self.offsets, reader, (symbols, count / PART), WHAT)?;
        let text = element(&self.offsets, reader, (part, count % PART * 2), WHAT)?;
        string(&self.offsets, reader, text, WHAT)
    }
}
