//! Keys and values of the maps that unwind tables are found by.
//!
//! A value that readers see while it is replaced must be whole: hash values are single `u64`s, which are copied in one
//! piece. Elements of BPF hash maps may be reused while a reader still looks at them, so each value carries a check
//! of its key.
//!
//! ```text
//! pid ──PROCESS_REGIONS──▶ Span of REGIONS, sorted by address; each: range, bias, object
//! (object, 64 KiB page) ──PAGES──▶ Span of ROWS, sorted by pc_low; the first row holds at the page's start
//! ```
//!
//! In front of many rows lies an index, see [`crate::page`].
//!
//! The walk keeps the rows that it has found, by process and address, in a row cache of each CPU: a table that is out of
//! the CPU's caches costs several misses a frame, the row cache one. A row in it is believed as long as its process' epoch
//! is the one it was found in; the writer begins a new epoch *after* each change it has published. A walk that reads the
//! old epoch keeps what it finds under the old one, where nobody looks for it again. That one that reads the new epoch sees
//! the new tables is the order of loads on x86-64; on AArch64 it rests on the end of a system call between the two writes.
//!
//! ```text
//! pid, cut to EPOCH_SLOTS ──EPOCHS──▶ how often its mappings and its generated code have changed
//! ```

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bits of an address within a page of rows.
pub const PAGE_BITS: u32 = 16;
/// Rows of a page: one for each address, at most.
pub const MAX_PAGE_ROWS: u32 = 1 << PAGE_BITS;
/// Executable mappings of a process that the BPF program knows.
pub const MAX_REGIONS: u32 = 8192;
/// Pages of rows that all objects together have.
pub const MAX_PAGES: u32 = 65_536;
/// Processes whose mappings are known.
pub const MAX_PROCESSES: u32 = 16_384;
/// Steps of a search over `MAX_REGIONS`.
pub const REGION_STEPS: u32 = 14;
/// Steps of a search over `MAX_PAGE_ROWS`: with an index most addresses take four.
pub const ROW_STEPS: u32 = 17;

/// Slots of epochs. Processes that share one begin each other's epochs, which costs time and nothing else.
pub const EPOCH_SLOTS: u32 = 4096;

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

/// How often the tables of a process have changed; wraps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epochs {
    /// Its list of mappings.
    pub mappings: u32,
    /// The rows of its generated code.
    pub code: u32,
}

impl Epochs {
    /// What a change of the mappings adds to an encoded slot.
    pub const MAPPINGS: u64 = 1;
    /// What a change of the generated code adds. The mappings' carry begins a needless epoch once in 2^32.
    pub const CODE: u64 = 1 << 32;

    /// From an element of the array.
    #[inline(always)]
    pub fn decode(value: u64) -> Self {
        Self { mappings: value as u32, code: (value >> 32) as u32 }
    }
}

/// The slot of a process' epochs.
#[inline(always)]
pub fn epoch_slot(pid: u32) -> u32 {
    pid & (EPOCH_SLOTS - 1)
}

/// A row that a walk has found. Writer and reader: the BPF program, on one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct CachedRow {
    /// Where the row holds, in the process.
    pub address: u64,
    /// The encoded row.
    pub row: u64,
    /// For whom, see [`cached_row_key`].
    pub key: u64,
}

/// Set in the key of a cached row if words are taken along with frames there; not compared.
pub const CACHED_TAKE: u64 = 1 << 30;

/// What must be equal for a cached row to be believed: the process, and the epoch of its mappings or, for generated code, also
/// of that. A process id has 22 bits at most.
#[inline(always)]
pub fn cached_row_key(pid: u32, epochs: Epochs, is_generated: bool) -> u64 {
    let (epoch, kind) = match is_generated {
        // Both only grow, and so does their sum.
        true => (epochs.mappings.wrapping_add(epochs.code), 1 << 31),
        false => (epochs.mappings, 0),
    };
    u64::from(epoch) << 32 | u64::from(pid & 0x3fff_ffff) | kind
}

/// An executable mapping. Writer: userspace. Reader: the BPF program.
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
    /// [`Region::SNAPSHOT`], [`Region::GENERATED`], [`Region::REPLACED`] and [`Region::TAKE`], or 0.
    pub flags: u32,
}

impl Region {
    /// Generated code that may get rows later, or a file whose rows are being built: a frame in it without a row is
    /// worth a stack snapshot.
    pub const SNAPSHOT: u32 = 1;
    /// Its rows are those of the process' generated code, and change with it.
    pub const GENERATED: u32 = 2;
    /// Code that is replaced all the time: with [`Region::SNAPSHOT`] also a frame that has a row is worth one, for the row
    /// may be that of what was there before.
    pub const REPLACED: u32 = 4;
    /// Words are taken along with frames in it; see [`taken`](crate::taken).
    pub const TAKE: u32 = 8;
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

    #[test]
    fn a_cached_row_is_refused_for_another_process_and_after_each_change() {
        let key = |pid, slot, is_generated| cached_row_key(pid, Epochs::decode(slot), is_generated);
        let slot = 7 * Epochs::MAPPINGS + 9 * Epochs::CODE;
        assert_eq!(Epochs::decode(slot), Epochs { mappings: 7, code: 9 });
        assert_ne!(key(1, slot, false), key(1 + EPOCH_SLOTS, slot, false));
        assert_ne!(key(1, slot, false), key(1, slot, true));
        for is_generated in [false, true] {
            assert_ne!(key(1, slot, is_generated), key(1, slot + Epochs::MAPPINGS, is_generated));
        }
        assert_ne!(key(1, slot, true), key(1, slot + Epochs::CODE, true));
        // A file's rows stay while code is announced.
        assert_eq!(key(1, slot, false), key(1, slot + Epochs::CODE, false));
        assert_eq!(Epochs::decode((u64::from(u32::MAX)) + Epochs::MAPPINGS).mappings, 0);
    }
}
