//! Objects on V8's heap: what they are, and their strings and arrays.

use jitprof_common::units::Avma;

use super::Unknown;
use super::layout::{Layout, WORD, small_integer};
use crate::{Memory, Reader};

/// Bits of a tagged word that say what it is.
const TAG_MASK: u64 = 3;
/// A pointer to an object.
const POINTER: u64 = 1;
/// A pointer that does not keep its object alive.
const WEAK_POINTER: u64 = 3;
/// Bytes that are looked at for a step of a reading's budget.
const WORK_OF_A_STEP: u64 = 64;
/// Strings that a string may be put together from; a script's source is never rope, a name has a few parts.
const MAX_PIECES: usize = 256;
/// Characters that are fetched at once.
const CHUNK: u32 = 2048;
/// Bit of a string's type that says that an external string's characters are found over its resource only.
const UNCACHED: u16 = 0x10;

/// An object's address, without its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Object(pub(super) u64);

impl Object {
    /// What a tagged word points to, if it is a pointer.
    pub(super) fn of(word: u64) -> Option<Self> {
        (word & TAG_MASK == POINTER && word > WORD).then_some(Self(word & !TAG_MASK))
    }

    /// What a tagged word points to, be it weakly.
    pub(super) fn of_weak(word: u64) -> Option<Self> {
        (matches!(word & TAG_MASK, POINTER | WEAK_POINTER) && word > WORD).then_some(Self(word & !TAG_MASK))
    }

    fn field(self, offset: u64) -> Avma {
        Avma(self.0.wrapping_add(offset))
    }
}

/// Memory that has a V8 heap, laid out as this build does.
pub(super) struct Heap<'a, M> {
    pub(super) layout: &'a Layout,
    pub(super) reader: &'a Reader<M>,
}

impl<M: Memory> Heap<'_, M> {
    /// A word of an object.
    pub(super) fn word(&self, object: Object, offset: u64) -> Result<u64, Unknown> {
        Ok(self.reader.u64(object.field(offset))?)
    }

    pub(super) fn u32(&self, object: Object, offset: u64) -> Result<u32, Unknown> {
        Ok(self.reader.u32(object.field(offset))?)
    }

    /// An object that an object points to.
    pub(super) fn object(&self, object: Object, offset: u64, what: &'static str) -> Result<Object, Unknown> {
        Object::of(self.word(object, offset)?).ok_or(Unknown::No(what))
    }

    /// A small integer within an object.
    pub(super) fn small(&self, object: Object, offset: u64, what: &'static str) -> Result<i32, Unknown> {
        small_integer(self.word(object, offset)?).ok_or(Unknown::No(what))
    }

    /// A count within an object.
    pub(super) fn count(&self, object: Object, offset: u64, what: &'static str) -> Result<u32, Unknown> {
        u32::try_from(self.small(object, offset, what)?).map_err(|_| Unknown::No(what))
    }

    /// The instance type of an object.
    ///
    /// While the collector moves objects, an object's old place has the address of the new one instead of the map, and
    /// all else as it was. The new place has the map.
    pub(super) fn type_of(&self, object: Object) -> Result<u16, Unknown> {
        let word = self.word(object, 0)?;
        let moved = || if word & TAG_MASK == 0 { self.reader.u64(Avma(word)).ok() } else { None };
        let map = Object::of(word).or_else(|| Object::of(moved()?)).ok_or(Unknown::Moving)?;
        Ok(self.reader.u16(map.field(self.layout.map_type))?)
    }

    /// The object, if it has the type.
    pub(super) fn typed(&self, object: Object, wanted: u16, what: &'static str) -> Result<Object, Unknown> {
        if self.type_of(object)? == wanted { Ok(object) } else { Err(Unknown::No(what)) }
    }

    /// The object that a word points to, if it is a function.
    pub(super) fn function(&self, word: u64) -> Result<Object, Unknown> {
        let object = Object::of(word).ok_or(Unknown::No("function"))?;
        let (first, last) = self.layout.types.functions;
        let of_type = (first..=last).contains(&self.type_of(object)?);
        of_type.then_some(object).ok_or(Unknown::No("function"))
    }

    pub(super) fn is_string(&self, object: Object) -> Result<bool, Unknown> {
        Ok(self.type_of(object)? < self.layout.types.first_nonstring)
    }

    /// Charges the reading for work on so many bytes that were read, now or before.
    pub(super) fn work(&self, bytes: usize) -> Result<(), Unknown> {
        Ok(self.reader.spend(bytes as u64 / WORK_OF_A_STEP)?)
    }

    /// The bytes of an array of bytes.
    pub(super) fn bytes(&self, object: Object, max: u32, what: &'static str) -> Result<Vec<u8>, Unknown> {
        if !self.layout.types.bytes.contains(&self.type_of(object)?) {
            return Err(Unknown::No(what));
        }
        let count = self.count(object, self.layout.deopt.length, what)?;
        if count > max {
            return Err(Unknown::TooLarge(what));
        }
        let mut bytes = vec![0; usize::try_from(count).map_err(|_| Unknown::TooLarge(what))?];
        self.work(bytes.len())?;
        self.reader.bytes(object.field(self.layout.deopt.data), &mut bytes)?;
        Ok(bytes)
    }

    /// How many words an array of tagged words has.
    pub(super) fn array(&self, object: Object, what: &'static str) -> Result<u32, Unknown> {
        if !self.layout.types.arrays.contains(&self.type_of(object)?) {
            return Err(Unknown::No(what));
        }
        self.count(object, self.layout.deopt.length, what)
    }

    /// A word of an array whose length was asked for.
    pub(super) fn element(&self, array: Object, index: u64) -> Result<u64, Unknown> {
        self.word(array, self.layout.deopt.data.saturating_add(index.saturating_mul(WORD)))
    }

    /// A string's text, at most `max` characters of it.
    pub(super) fn text(&self, string: Object, max: u32) -> Result<String, Unknown> {
        let mut units = Vec::new();
        self.characters(string, max, true, &mut |unit| units.push(unit))?;
        Ok(String::from_utf16_lossy(&units))
    }

    /// A string's length in characters, without reading them.
    pub(super) fn length(&self, string: Object) -> Result<u32, Unknown> {
        self.u32(string, self.layout.strings.length)
    }

    /// Gives a string's characters to `each`, in UTF-16, at most `max` of them.
    ///
    /// With `cut`, a longer string is cut; else it is an error.
    pub(super) fn characters(
        &self,
        string: Object,
        max: u32,
        cut: bool,
        each: &mut dyn FnMut(u16),
    ) -> Result<(), Unknown> {
        let length = self.length(string)?;
        if length > max && !cut {
            return Err(Unknown::TooLarge("string"));
        }
        self.part(string, (0, length.min(max)), each)
    }

    /// The same of some of its characters: the first, and how many.
    pub(super) fn part(
        &self,
        string: Object,
        (from, count): (u32, u32),
        each: &mut dyn FnMut(u16),
    ) -> Result<(), Unknown> {
        let strings = &self.layout.strings;
        // What is still to be written: the string, its first character, how many.
        let mut rest = vec![(string, from, count)];
        for _ in 0..MAX_PIECES {
            let Some((string, from, count)) = rest.pop() else { return Ok(()) };
            if count == 0 {
                continue;
            }
            let kind = self.type_of(string)?;
            let end = from.checked_add(count).filter(|end| self.length(string).is_ok_and(|length| *end <= length));
            if kind >= self.layout.types.first_nonstring || end.is_none() {
                return Err(Unknown::No("string"));
            }
            let representation = kind & strings.representation;
            let one_byte = kind & strings.encoding == strings.one_byte;
            if representation == 0 {
                self.flat(string.field(strings.chars), one_byte, (from, count), each)?;
            } else if representation == strings.external && kind & UNCACHED == 0 {
                let characters = self.word(string, strings.resource + WORD)?;
                self.flat(Avma(characters), one_byte, (from, count), each)?;
            } else if representation == strings.thin {
                rest.push((self.object(string, strings.actual, "string")?, from, count));
            } else if representation == strings.sliced {
                let offset = self.count(string, strings.offset, "string")?;
                let from = from.checked_add(offset).ok_or(Unknown::No("string"))?;
                rest.push((self.object(string, strings.parent, "string")?, from, count));
            } else if representation == strings.cons {
                let first = self.object(string, strings.first, "string")?;
                let first_length = self.length(first)?;
                let of_first = first_length.saturating_sub(from).min(count);
                if count > of_first {
                    let second = self.object(string, strings.second, "string")?;
                    rest.push((second, from.saturating_sub(first_length), count - of_first));
                }
                rest.push((first, from.min(first_length), of_first));
            } else {
                return Err(Unknown::No("string"));
            }
        }
        if rest.is_empty() { Ok(()) } else { Err(Unknown::TooLarge("string")) }
    }

    /// Characters that lie one behind the other.
    fn flat(
        &self,
        characters: Avma,
        one_byte: bool,
        (from, count): (u32, u32),
        each: &mut dyn FnMut(u16),
    ) -> Result<(), Unknown> {
        let width = if one_byte { 1 } else { 2 };
        let end = from.saturating_add(count);
        let mut at = from;
        while at < end {
            let part = CHUNK.min(end - at);
            let mut bytes = vec![0; usize::try_from(part * width).unwrap_or(0)];
            let start = characters.0.wrapping_add(u64::from(at) * u64::from(width));
            self.reader.bytes(Avma(start), &mut bytes)?;
            self.work(bytes.len())?;
            if one_byte {
                bytes.iter().for_each(|byte| each(u16::from(*byte)));
            } else {
                bytes.chunks_exact(2).for_each(|pair| each(u16::from_le_bytes([pair[0], pair[1]])));
            }
            at += part;
        }
        Ok(())
    }
}
