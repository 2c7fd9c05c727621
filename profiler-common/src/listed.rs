//! Frames that a runtime keeps in a list of its own, which a sample takes along.
//!
//! An interpreter runs many of the program's functions in one native frame; what it knows of them hangs on the thread, from
//! the innermost on. The sample walks that list while the thread is held by it. The BPF program knows no runtime: a
//! [`ListSpec`] says where the list begins, which bytes of an element are kept, and which of them leads to the next.
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
pub const MAX_STEPS: usize = 8;
/// Ways to the first element, of which the first that leads to one counts.
pub const MAX_BASES: usize = 2;
/// Parts of an element that are kept.
pub const MAX_FIELDS: usize = 4;
/// Words of what is kept of an element.
pub const RECORD_WORDS: usize = 2;
/// Bytes of an element that are read.
pub const MAX_SPAN: usize = 128;
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

    /// Adds a number.
    pub const fn add(operand: u64) -> Self {
        Self { op: Self::ADD, operand }
    }

    /// Adds the thread pointer, and a number.
    pub const fn add_thread_pointer(operand: u64) -> Self {
        Self { op: Self::ADD_THREAD_POINTER, operand }
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
    /// Where in the element the word begins, in bytes: a multiple of 8, at most [`MAX_SPAN`] - 8.
    pub offset: u16,
    /// The word of the record that the bits are added to.
    pub to: u8,
    /// By how many bits they are shifted to the left.
    pub shift: u8,
    reserved: [u8; 4],
}

impl Field {
    /// The bits `mask` of the word at `offset`, shifted to the left, in word `to` of the record.
    pub const fn new(offset: u16, mask: u64, to: u8, shift: u8) -> Self {
        Self { mask, offset, to, shift, reserved: [0; 4] }
    }
}

/// How a list is walked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ListSpec {
    /// Ways to the first element.
    pub bases: [[Step; MAX_STEPS]; MAX_BASES],
    /// What is kept of each.
    pub fields: [Field; MAX_FIELDS],
    /// Bytes that are read of each, at most [`MAX_SPAN`]; 0: there is no list.
    pub span: u32,
    /// Where in them the address of the next element is: a multiple of 8. The last one has 0.
    pub next: u32,
}

impl ListSpec {
    /// From the ways to the first element, what is kept, and where the next one's address is. Nothing if it is more than
    /// can be walked.
    pub fn new(bases: &[&[Step]], fields: &[Field], next: u16) -> Option<Self> {
        let mut spec = Self { next: next.into(), ..Self::default() };
        for (to, from) in spec.bases.get_mut(..bases.len())?.iter_mut().zip(bases) {
            to.get_mut(..from.len())?.copy_from_slice(from);
        }
        spec.fields.get_mut(..fields.len())?.copy_from_slice(fields);
        let ends = fields.iter().map(|field| field.offset).chain([next]);
        spec.span = u32::from(ends.max()?) + 8;
        let is_possible =
            |field: &Field| usize::from(field.to) < RECORD_WORDS && field.shift < 64 && field.offset.is_multiple_of(8);
        let is_within = spec.span as usize <= MAX_SPAN && next.is_multiple_of(8);
        (is_within && fields.iter().all(is_possible)).then_some(spec)
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
}
