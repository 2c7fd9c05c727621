//! Searches the unwind tables that userspace has published.

use profiler_common::{
    machine::Machine,
    row::Row,
    table::{MAX_PAGE_ROWS, MAX_REGIONS, PAGE_BITS, PageKey, REGION_STEPS, ROW_STEPS, Region, Span, pid_check},
    unwind::UnwindRules,
};

use crate::maps::{CACHE, CODE_MASK, PAGES, PROCESS_REGIONS, REGIONS, ROWS, USE_ROWS};

/// Where the last look-ups of a walk ended: the next frame is mostly in the same mapping, often in the same page, and
/// each caller's address is looked up twice, as code and for its row. What it holds stays true for as long as a sample
/// takes: elements that were replaced are not used again for a second.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Cache {
    start: u64,
    end: u64,
    bias: u64,
    object: u32,
    page_object: u32,
    page: u32,
    page_span: Span,
    reserved: u32,
}

impl Cache {
    /// No mapping, and no page of any object.
    pub const EMPTY: Self = Self {
        start: 0,
        end: 0,
        bias: 0,
        object: 0,
        page_object: 0,
        page: 0,
        page_span: Span { first: 0, count: 0 },
        reserved: 0,
    };
}

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
        Row(find_row(self.pid, lookup_pc))
    }

    #[inline(always)]
    fn is_code(&self, lookup_pc: u64) -> bool {
        find_region(self.pid, lookup_pc) != 0
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

/// The encoded row that holds at an address of a process. Exported, and so a global function for the verifier, who
/// walks through it once and not at every call.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn find_row(pid: u32, address: u64) -> u64 {
    let Some(cache) = cache() else { return Row::GAP.0 };
    match region(pid, address, cache) {
        Some((object, address)) if object != 0 => row_at(object, address, cache).unwrap_or(Row::GAP).0,
        _ => Row::GAP.0,
    }
}

/// 1 if code is mapped at an address of a process, else 0. A global function, like `find_row`.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn find_region(pid: u32, address: u64) -> u64 {
    let Some(cache) = cache() else { return 0 };
    u64::from(region(pid, address, cache).is_some())
}

/// Forgets what the walk before has looked up.
#[inline(always)]
pub fn begin() {
    if let Some(cache) = cache() {
        *cache = Cache::EMPTY;
    }
}

/// The cache of the walk in progress on this CPU.
#[inline(always)]
fn cache() -> Option<&'static mut Cache> {
    // SAFETY: the entry of this CPU is the walk's alone, and no caller keeps it across another call.
    Some(unsafe { &mut *CACHE.get_ptr_mut(0)? })
}

/// The object that is mapped at an address, and the address in the object.
#[inline(always)]
fn region(pid: u32, address: u64, cache: &mut Cache) -> Option<(u32, u64)> {
    if address >= cache.start && address < cache.end {
        return Some((cache.object, address.wrapping_sub(cache.bias)));
    }
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
    *cache = Cache { start: region.start, end: region.end, bias: region.bias, object: region.object, ..*cache };
    Some((region.object, address.wrapping_sub(region.bias)))
}

/// The row that holds at an address of an object.
#[inline(always)]
fn row_at(object: u32, address: u64, cache: &mut Cache) -> Option<Row> {
    let key = PageKey { object, page: (address >> PAGE_BITS) as u32 };
    if cache.page_object != object || cache.page != key.page {
        // SAFETY: as in `region`.
        let value = unsafe { PAGES.get(key) }?;
        cache.page_span = Span::decode(*value, key.check())?;
        (cache.page_object, cache.page) = (object, key.page);
    }
    let span = cache.page_span;
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
