//! Keys and values of the maps that unwind tables are found by.
//!
//! A value that readers see while it is replaced must be whole: hash values are single `u64`s, which are copied in one
//! piece. Elements of BPF hash maps may be reused while a reader still looks at them, so each value carries a check
//! of its key.
//!
//! ```text
//! pid ──PROCESSES_REGIONS──▶ Span of REGIONS, sorted by address; each: range, bias, object
//! (object, 64 KiB page) ──PAGES──▶ Span of ROWS, sorted by pc_low; the first row holds at the page's start
//! ```

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bits of an address within a page of rows.
pub const PAGE_BITS: u32 = 16;
/// Rows of a page: one for each address, at most.
pub const MAX_PAGE_ROWS: u32 = 1 << PAGE_BITS;
/// Executable mappings of a process that the kernel part knows.
pub const MAX_REGIONS: u32 = 8192;
/// Steps of a search over `MAX_REGIONS`.
pub const REGION_STEPS: u32 = 14;
/// Steps of a search over `MAX_PAGE_ROWS`.
pub const ROW_STEPS: u32 = 17;

const COUNT_BITS: u32 = 17;
const FIRST_BITS: u32 = 27;
const CHECK_BITS: u32 = 20;
const _: () = assert!(COUNT_BITS + FIRST_BITS + CHECK_BITS == 64);

/// A run of elements in an array map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Index of the first.
    pub first: u32,
    /// How many.
    pub count: u32,
}

impl Span {
    /// Largest `first + count` that can be written.
    pub const MAX_ELEMENTS: u32 = 1 << FIRST_BITS;

    /// As a map value, for the key whose check this is.
    #[inline(always)]
    pub fn encode(self, check: u32) -> u64 {
        u64::from(self.count & ((1 << COUNT_BITS) - 1))
            | u64::from(self.first & ((1 << FIRST_BITS) - 1)) << COUNT_BITS
            | u64::from(check) << (COUNT_BITS + FIRST_BITS)
    }

    /// From a map value; `None` if it belongs to another key.
    #[inline(always)]
    pub fn decode(value: u64, check: u32) -> Option<Self> {
        if value >> (COUNT_BITS + FIRST_BITS) != u64::from(check) {
            return None;
        }
        Some(Self {
            count: (value & ((1 << COUNT_BITS) - 1)) as u32,
            first: (value >> COUNT_BITS & ((1 << FIRST_BITS) - 1)) as u32,
        })
    }
}

/// A page of an object's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PageKey {
    /// The object; see `Region::object`.
    pub object: u32,
    /// Address in the object, shifted right by `PAGE_BITS`.
    pub page: u32,
}

impl PageKey {
    /// Tells values of different keys apart.
    #[inline(always)]
    pub fn check(self) -> u32 {
        (self.object.wrapping_mul(0x9e37_79b1) ^ self.page.wrapping_mul(0x85eb_ca6b)) >> (32 - CHECK_BITS)
    }
}

/// Tells values of different processes apart.
#[inline(always)]
pub fn pid_check(pid: u32) -> u32 {
    pid.wrapping_mul(0x9e37_79b1) >> (32 - CHECK_BITS)
}

/// An executable mapping. Writer: userspace. Reader: the kernel part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Region {
    /// First address.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// Address in the process minus address in the object; wraps.
    pub bias: u64,
    /// Which rows; 0 for none.
    pub object: u32,
    /// [`Region::LATE`] or 0.
    pub flags: u32,
}

impl Region {
    /// Generated code that may get rows later, or a file whose rows are being built: a frame in it without a row is
    /// worth a piece of the stack.
    pub const LATE: u32 = 1;
}

const _: () = assert!(size_of::<Region>() == 32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_survives_its_encoding_and_another_key_is_refused() {
        let key = PageKey { object: 7, page: 0x7f_1234 };
        let span = Span { first: Span::MAX_ELEMENTS - 1, count: MAX_PAGE_ROWS };
        let value = span.encode(key.check());
        assert_eq!(Span::decode(value, key.check()), Some(span));
        let other = PageKey { object: 7, page: 0x7f_1235 };
        assert_eq!(Span::decode(value, other.check()), None);
    }
}
