//! Frames that a runtime keeps in a list of its own, which a sample takes along.
//!
//! An interpreter runs many of the program's functions in one native frame; what it knows of them hangs on the thread, from
//! the innermost on. The sample walks that list while the thread is held by it. The BPF program knows no runtime: a
//! [`ListSpec`] says where the list begins, which bytes of an element are kept, and which of them leads to the next. An array
//! is such a list, whose elements lie side by side.
//!
//! ```text
//! SampleHeader (taken = LISTED) │ kernel frames │ user frames │ ListHeader 16 bytes │ count × Record 16 bytes │ …
//! ```
//!
//! Words of frames ([`taken`](crate::taken)) and a list exclude each other; a stack snapshot goes behind either.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// In [`SampleHeader::taken`](crate::sample::SampleHeader::taken): a list follows the frames.
pub const LISTED: u8 = 0x80;
/// Steps to the first element.
pub const MAX_STEPS: usize = 6;
/// Ways to the first element, of which the first that leads to one counts.
pub const MAX_BASES: usize = 2;
/// Parts of an element that are kept.
pub const MAX_FIELDS: usize = 5;
/// Words of what is kept of an element.
pub const RECORD_WORDS: usize = 2;
/// Bytes of an element that are read.
pub const MAX_SPAN: usize = 128;
/// Words that are read besides, where a word of the element points to: up to that place, with what is there.
pub const ASIDE_WORDS: usize = 3;
/// Where a field has the first of them: behind all that an element may have.
pub const ASIDE: u16 = MAX_SPAN as u16;
/// Words that fields are taken from: of an element, those beside it, and some that are 0.
pub const ELEMENT_WORDS: usize = 32;
/// Where a word is that is always 0.
const ZERO: u16 = ELEMENT_WORDS as u16 * 8 - 8;
/// Elements of a list.
pub const MAX_LISTED: usize = 1024;
/// Elements of a list, where the ring buffer is so full that a long one could cost another sample its place.
pub const MAX_LISTED_IN_FULL_RING: usize = 128;

/// A step to the first element, from a value to the next; the first one's is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Step {
    /// One of the constants; with another one the steps are at their end.
    pub op: u64,
    /// What it works with.
    pub operand: u64,
}

impl Step {
    /// The operand is added.
    pub const ADD: u64 = 1;
    /// The thread pointer and the operand are added.
    pub const ADD_THREAD_POINTER: u64 = 2;
    /// The operand is added, and the word there is read. If that is 0, the way ends nowhere.
    pub const LOAD: u64 = 3;
    /// Two words there are read, and the second one, so many times as the operand says, is added to the first.
    pub const EXTENT: u64 = 4;

    /// Adds a number.
    pub const fn add(operand: u64) -> Self {
        Self { op: Self::ADD, operand }
    }

    /// Adds the thread pointer, and a number.
    pub const fn add_thread_pointer(operand: u64) -> Self {
        Self { op: Self::ADD_THREAD_POINTER, operand }
    }

    /// Reads where something begins, and how many items it has, each of so many bytes: the value is where it ends.
    pub const fn extent(item_bytes: u64) -> Self {
        Self { op: Self::EXTENT, operand: item_bytes }
    }

    /// Reads the word so many bytes behind the value.
    pub const fn load(operand: u64) -> Self {
        Self { op: Self::LOAD, operand }
    }
}

/// A part of an element, and where in the record it goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Field {
    /// The bits of the word that are kept, before they are shifted.
    pub mask: u64,
    /// Where in the element the word begins, in bytes: a multiple of 8, at most [`MAX_SPAN`] - 8; from [`ASIDE`] on, the words
    /// beside it.
    pub offset: u16,
    /// The word of the record that the bits are added to.
    pub to: u8,
    /// By how many bits they are shifted to the left.
    pub shift: u8,
    /// Where a word is that has to be 0 for anything to be kept.
    pub unless: u16,
    reserved: [u8; 2],
}

impl Field {
    /// The bits `mask` of the word at `offset`, shifted to the left, in word `to` of the record.
    pub const fn new(offset: u16, mask: u64, to: u8, shift: u8) -> Self {
        Self { mask, offset, to, shift, unless: ZERO, reserved: [0; 2] }
    }

    /// The same, kept only of elements whose word at `unless` is 0.
    pub const fn unless(self, unless: u16) -> Self {
        Self { unless, ..self }
    }

    const fn is_possible(&self) -> bool {
        let is_word = self.offset.is_multiple_of(8) && self.unless.is_multiple_of(8);
        is_word && (self.to as usize) < RECORD_WORDS && self.shift < 64
    }
}

/// How a list is walked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ListSpec {
    /// Ways to the first element.
    pub bases: [[Step; MAX_STEPS]; MAX_BASES],
    /// The way to where an array ends.
    pub end: [Step; MAX_STEPS],
    /// What is kept of each.
    pub fields: [Field; MAX_FIELDS],
    /// Bytes that are read of each, at most [`MAX_SPAN`]; 0: there is no list.
    pub span: u32,
    /// Where in them the address of the next element is: a multiple of 8. The last one has 0.
    pub next: u32,
    /// From an element of an array to the next one, in bytes; 0: it is no array.
    pub stride: u32,
    /// Where in an element the address is up to which further words are read, and 1; 0: there are none.
    pub aside: u32,
}

/// How the elements of an array lie.
#[derive(Clone, Copy, Debug)]
pub struct Array<'a> {
    /// From one to the next, in bytes.
    pub stride: u16,
    /// Where they end.
    pub end: &'a [Step],
    /// Where in each the address is up to which [`ASIDE_WORDS`] further words are read: a multiple of 8.
    pub aside: u16,
}

impl ListSpec {
    /// From the ways to the first element, what is kept, and where the next one's address is. Nothing if it is more than
    /// can be walked.
    pub fn new(bases: &[&[Step]], fields: &[Field], next: u16) -> Option<Self> {
        let spec = Self { next: next.into(), ..Self::default() };
        let has_aside = fields.iter().any(|field| field.offset >= ASIDE);
        if has_aside { None } else { spec.with(bases, fields, next) }
    }

    /// The same of an array.
    pub fn of_array(bases: &[&[Step]], fields: &[Field], array: Array<'_>) -> Option<Self> {
        let mut spec = Self { stride: array.stride.into(), aside: u32::from(array.aside) + 1, ..Self::default() };
        spec.end.get_mut(..array.end.len())?.copy_from_slice(array.end);
        if array.stride == 0 { None } else { spec.with(bases, fields, array.aside) }
    }

    /// With these ways and fields, and a word at `also` that is read as well.
    fn with(mut self, bases: &[&[Step]], fields: &[Field], also: u16) -> Option<Self> {
        for (to, from) in self.bases.get_mut(..bases.len())?.iter_mut().zip(bases) {
            to.get_mut(..from.len())?.copy_from_slice(from);
        }
        self.fields.get_mut(..fields.len())?.copy_from_slice(fields);
        let used = fields.iter().flat_map(|field| [field.offset, field.unless]);
        let is_there = |offset: &u16| *offset < ASIDE + ASIDE_WORDS as u16 * 8 || *offset == ZERO;
        if !used.clone().all(|offset| is_there(&offset)) || !fields.iter().all(Field::is_possible) {
            return None;
        }
        let own = used.filter(|offset| *offset < ASIDE).chain([also]);
        self.span = u32::from(own.max()?) + 8;
        (self.span as usize <= MAX_SPAN && also.is_multiple_of(8)).then_some(self)
    }

    /// Whether there is a list to be walked.
    pub const fn is_some(&self) -> bool {
        self.span != 0
    }
}

/// What is kept of an element.
pub type Record = [u64; RECORD_WORDS];

/// What lies before the records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ListHeader {
    /// Records that follow, innermost first.
    pub count: u32,
    /// A [`ListEnd`] code.
    pub end: u32,
    /// Which way has led to the first: its index and 1, or 0 if none has.
    pub base: u32,
    /// 0.
    pub reserved: u32,
}

/// Why a list was walked no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ListEnd {
    /// It has no elements: no way leads to one.
    Empty = 0,
    /// Its last element was met.
    Last = 1,
    /// It has more elements than are kept.
    TooLong = 2,
    /// An element could not be read.
    Unreadable = 3,
    /// It has more elements than there is room for in the ring buffer, and nothing of it is kept.
    Refused = 4,
}

impl ListEnd {
    /// From its code.
    pub const fn from_code(code: u32) -> Option<Self> {
        match code {
            0 => Some(Self::Empty),
            1 => Some(Self::Last),
            2 => Some(Self::TooLong),
            3 => Some(Self::Unreadable),
            4 => Some(Self::Refused),
            _ => None,
        }
    }
}

// `end` is one more way behind the bases.
const _: () = assert!(core::mem::offset_of!(ListSpec, end) == MAX_BASES * size_of::<[Step; MAX_STEPS]>());
const _: () = assert!(MAX_SPAN + ASIDE_WORDS * 8 < ZERO as usize && ELEMENT_WORDS.is_power_of_two());
const _: () = assert!(size_of::<ListHeader>() == 16 && size_of::<Step>() == 16 && size_of::<Field>() == 16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_more_than_can_be_walked_is_no_list() {
        let (steps, field) = ([Step::add_thread_pointer(8), Step::load(0)], Field::new(56, u64::MAX, 1, 0));
        let spec = ListSpec::new(&[&steps], &[Field::new(0, !3, 0, 0), field], 8).unwrap();
        assert_eq!((spec.span, spec.next, spec.bases[0][1], spec.is_some()), (64, 8, Step::load(0), true));
        assert_eq!(spec.bases[0][2], Step::default());
        assert!(!ListSpec::default().is_some());
        let too_many = [Step::load(0); MAX_STEPS + 1];
        assert_eq!(ListSpec::new(&[&too_many], &[field], 8), None);
        assert_eq!(ListSpec::new(&[&steps[..]; MAX_BASES + 1], &[field], 8), None);
        assert_eq!(ListSpec::new(&[&steps], &[field; MAX_FIELDS + 1], 8), None);
        for field in [Field::new(128, 1, 0, 0), Field::new(4, 1, 0, 0), Field::new(0, 1, 2, 0), Field::new(0, 1, 0, 64)]
        {
            assert_eq!(ListSpec::new(&[&steps], &[field], 8), None, "{field:?}");
        }
    }
    #[test]
    fn an_array_has_a_stride_and_words_beside_its_elements() {
        let (steps, end) = ([Step::load(0x100)], [Step::extent(8), Step::add(56_u64.wrapping_neg())]);
        let array = Array { stride: 64, end: &end, aside: 32 };
        let beside = Field::new(ASIDE + 16, 0x20, 1, 58);
        let spec = ListSpec::of_array(&[&steps], &[Field::new(16, u64::MAX, 0, 0), beside.unless(16)], array).unwrap();
        assert_eq!((spec.span, spec.stride, spec.aside, spec.end[1]), (40, 64, 33, end[1]));
        assert_eq!(ListSpec::new(&[&steps], &[beside], 8), None, "a list has none");
        assert_eq!(ListSpec::of_array(&[&steps], &[beside], Array { stride: 0, ..array }), None);
        assert_eq!(ListSpec::of_array(&[&steps], &[beside], Array { aside: 33, ..array }), None);
        for field in [Field::new(ASIDE + 24, 1, 0, 0), beside.unless(4), beside.unless(ASIDE + 24)] {
            assert_eq!(ListSpec::of_array(&[&steps], &[field], array), None, "{field:?}");
        }
    }
}
