//! Searches the unwind tables that userspace has published.

use profiler_common::{
    machine::Machine,
    row::Row,
    table::{MAX_PAGE_ROWS, MAX_REGIONS, PAGE_BITS, PageKey, REGION_STEPS, ROW_STEPS, Region, Span, pid_check},
    unwind::UnwindRules,
};

use crate::maps::{CODE_MASK, PAGES, PROCESS_REGIONS, REGIONS, ROWS, USE_ROWS};

/// The tables of one process.
pub struct Tables {
    /// The process.
    pub pid: u32,
}

impl UnwindRules for Tables {
    #[inline(always)]
    fn row(&self, lookup_pc: u64) -> Row {
        if USE_ROWS.load() == 0 {
            return Row::GAP;
        }
        match region(self.pid, lookup_pc) {
            Some((object, address)) if object != 0 => row_at(object, address).unwrap_or(Row::GAP),
            _ => Row::GAP,
        }
    }

    #[inline(always)]
    fn is_code(&self, lookup_pc: u64) -> bool {
        region(self.pid, lookup_pc).is_some()
    }

    #[inline(always)]
    fn machine(&self) -> Machine {
        Machine::NATIVE
    }

    #[inline(always)]
    fn code_mask(&self) -> u64 {
        match Machine::NATIVE {
            Machine::X86_64 => u64::MAX,
            Machine::Aarch64 => CODE_MASK.load(),
        }
    }
}

/// The object that is mapped at an address, and the address in the object.
#[inline(always)]
fn region(pid: u32, address: u64) -> Option<(u32, u64)> {
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
    Some((region.object, address.wrapping_sub(region.bias)))
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
