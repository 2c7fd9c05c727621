//! Searches the unwind tables that userspace has published.

use core::cell::Cell;

use profiler_common::{
    row::Row,
    table::{MAX_PAGE_ROWS, MAX_REGIONS, PAGE_BITS, PageKey, REGION_STEPS, ROW_STEPS, Region, Span, pid_check},
    unwind::UnwindRules,
};

use crate::maps::{PAGES, PROCESS_REGIONS, REGIONS, ROWS, USE_ROWS};

/// Generated code that nothing is known about yet.
const NEW_CODE: u64 = 1;
/// An address that nothing is known to be mapped at.
const NEW_MAPPING: u64 = 2;

/// What the look-ups of one walk remember.
#[repr(C)]
pub struct Lookups {
    start: Cell<u64>,
    end: Cell<u64>,
    bias: Cell<u64>,
    object: Cell<u32>,
    flags: Cell<u32>,
    unknown: Cell<u64>,
}

// SAFETY: a value lives in a per-CPU map and is used by that CPU's program alone, which does not nest.
unsafe impl Sync for Lookups {}

impl Lookups {
    /// For a new walk: regions may have changed.
    #[inline(always)]
    pub fn reset(&mut self) {
        self.start.set(0);
        self.end.set(0);
    }

    /// Whether the frame looked up last is in code whose rows may come later. `sampled`: it is the innermost, so that
    /// there is code in any case, if only in a mapping too new to be known.
    #[inline(always)]
    pub fn unknown(&self, sampled: bool) -> bool {
        match self.unknown.get() {
            NEW_CODE => true,
            NEW_MAPPING => sampled,
            _ => false,
        }
    }
}

/// The tables of one process.
pub struct Tables<'a> {
    /// The process.
    pub pid: u32,
    /// Of this walk. A caller is looked up twice, as code and for its row; and most are in their callee's region.
    pub lookups: &'a Lookups,
}

impl UnwindRules for Tables<'_> {
    #[inline(always)]
    fn row(&self, lookup_pc: u64) -> Row {
        if USE_ROWS.load() == 0 {
            return Row::GAP;
        }
        self.lookups.unknown.set(0);
        if !self.find(lookup_pc) {
            self.lookups.unknown.set(NEW_MAPPING);
            return Row::GAP;
        }
        let (object, bias) = (self.lookups.object.get(), self.lookups.bias.get());
        let row = if object == 0 { None } else { row_at(object, lookup_pc.wrapping_sub(bias)) };
        let row = row.unwrap_or(Row::GAP);
        if row.is_unknown() && self.lookups.flags.get() & Region::LATE != 0 {
            self.lookups.unknown.set(NEW_CODE);
        }
        row
    }

    #[inline(always)]
    fn is_code(&self, lookup_pc: u64) -> bool {
        self.find(lookup_pc)
    }
}

impl Tables<'_> {
    /// Makes the region at an address the one that is remembered; false if there is none.
    #[inline(always)]
    fn find(&self, address: u64) -> bool {
        let last = self.lookups;
        if address >= last.start.get() && address < last.end.get() {
            return true;
        }
        let Some(region) = region(self.pid, address) else { return false };
        last.start.set(region.start);
        last.end.set(region.end);
        last.bias.set(region.bias);
        last.object.set(region.object);
        last.flags.set(region.flags);
        true
    }
}

/// The region that covers an address.
#[inline(always)]
fn region(pid: u32, address: u64) -> Option<&'static Region> {
    // SAFETY: the value is one word; a reused element is told by its check.
    let value = unsafe { PROCESS_REGIONS.get(pid) }?;
    let span = Span::decode(*value, pid_check(pid))?;
    let (mut low, mut high) = (span.first, span.first.wrapping_add(span.count.min(MAX_REGIONS)));
    // The first region that ends above the address.
    for _ in 0..REGION_STEPS {
        if low >= high {
            break;
        }
        let middle = low + (high - low) / 2;
        if REGIONS.get(middle)?.end <= address {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    let region: &Region = REGIONS.get(low)?;
    // Behind the span's end lies another process' region: its range is checked all the same, and `low` with it.
    if low >= span.first.wrapping_add(span.count) || address < region.start || address >= region.end {
        return None;
    }
    Some(region)
}

/// The row that holds at an address of an object.
#[inline(always)]
fn row_at(object: u32, address: u64) -> Option<Row> {
    let key = PageKey { object, page: (address >> PAGE_BITS) as u32 };
    // SAFETY: as in `region`.
    let value = unsafe { PAGES.get(key) }?;
    let span = Span::decode(*value, key.check())?;
    let pc_low = address as u16;
    let (mut low, mut high) = (span.first, span.first.wrapping_add(span.count.min(MAX_PAGE_ROWS)));
    // The first row above the address; the one before it holds.
    for _ in 0..ROW_STEPS {
        if low >= high {
            break;
        }
        let middle = low + (high - low) / 2;
        if Row(*ROWS.get(middle)?).pc_low() <= pc_low {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if low <= span.first {
        return None;
    }
    Some(Row(*ROWS.get(low - 1)?))
}
