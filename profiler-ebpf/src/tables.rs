//! Searches the unwind tables that userspace has published.

use jitprof_common::{
    machine::Machine,
    page::Search,
    row::Row,
    table::{
        CACHED_TAKE, CachedRow, Epochs, MAX_REGIONS, PAGE_BITS, PageKey, REGION_STEPS, ROW_STEPS, Region, Span,
        cached_row_key, epoch_slot, pid_check,
    },
    unwind::UnwindRules,
};

use crate::maps::{
    CACHE, CACHED_ROWS_OF_A_BLOCK, CODE_MASK, EPOCHS, PAGES, PROCESS_REGIONS, REGIONS, ROW_CACHE, ROW_CACHE_BLOCK_BITS,
    ROWS, USE_ROWS, clear,
};

/// Generated code that nothing is known about yet or that is replaced all the time, or a file whose rows are being built.
const NEW_CODE: u32 = 1;
/// An address that nothing is known to be mapped at.
const NEW_MAPPING: u32 = 2;

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
    /// The region's.
    flags: u32,
    /// What is unknown about the code whose row was looked up last: `NEW_CODE`, `NEW_MAPPING` or 0.
    unknown: u32,
    /// 1 if words are taken along with frames where a row was looked up last, else 0.
    take: u32,
    reserved: u32,
    /// 1 if the row that was looked up last is of a file and leads to a caller, else 0.
    by_file: u32,
    /// The keys of cached rows that may be believed: of rows of files, and of generated code.
    file_key: u64,
    code_key: u64,
    /// The first address since a row was looked up last that nothing is known to be mapped at, or 0.
    doubted: u64,
}

impl Cache {
    /// No mapping, and no page of any object.
    #[inline(always)]
    fn reset(&mut self) {
        const WORDS: usize = size_of::<Cache>() / 8;
        // SAFETY: it is nothing but numbers.
        unsafe { clear((&raw mut *self).cast::<[u64; WORDS]>()) }
    }

    /// Where the row that was looked up last led and nothing is known to be mapped, or 0.
    #[inline(always)]
    pub fn doubted(&self) -> u64 {
        self.doubted
    }

    /// Whether words are taken along with frames where a row was looked up last.
    #[inline(always)]
    pub fn takes(&self) -> bool {
        self.take != 0
    }

    /// Whether the frame whose row was looked up last is in code whose rows may come later. `sampled`: it is the innermost,
    /// so that there is code in any case, if only in a mapping too new to be known.
    #[inline(always)]
    pub fn is_unknown(&self, sampled: bool) -> bool {
        match self.unknown {
            NEW_CODE => true,
            NEW_MAPPING => sampled,
            _ => false,
        }
    }

    /// Whether an address is in the mapping that was looked up last.
    #[inline(always)]
    fn is_within(&self, address: u64) -> bool {
        address >= self.start && address < self.end
    }

    /// Whether a cached row is of this address, of the walk's process, and of what its tables are now.
    #[inline(always)]
    fn believes(&self, cached: &CachedRow, address: u64) -> bool {
        let key = cached.key & !CACHED_TAKE;
        cached.address == address && (key == self.file_key || key == self.code_key)
    }
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
    fn is_certain(&self) -> bool {
        cache().is_some_and(|cache| cache.by_file != 0)
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
    (cache.unknown, cache.doubted) = (0, 0);
    let came_by_file = core::mem::replace(&mut cache.by_file, 0);
    let cached = cached(pid, address);
    if let Some(cached) = &cached
        && cache.believes(cached, address)
    {
        cache.take = u32::from(cached.key & CACHED_TAKE != 0);
        cache.by_file = u32::from(cached.key & !CACHED_TAKE == cache.file_key && !Row(cached.row).is_gap());
        return cached.row;
    }
    cache.take = 0;
    let Some((object, in_object)) = region(pid, address, cache) else {
        // Where the row of a file leads there is code: in a mapping that is not known yet.
        cache.unknown = if came_by_file != 0 { NEW_CODE } else { NEW_MAPPING };
        return Row::GAP.0;
    };
    let row = if object == 0 { None } else { row_at(object, in_object, cache) };
    let row = row.unwrap_or(Row::GAP);
    let flags = cache.flags;
    cache.take = u32::from(flags & Region::TAKE != 0);
    if flags & Region::SNAPSHOT != 0 && (row.is_unknown() || flags & Region::REPLACED != 0) {
        // What comes late is looked for again, and so is what may be out of date.
        cache.unknown = NEW_CODE;
    } else if let Some(cached) = cached {
        let key = if cache.flags & Region::GENERATED != 0 { cache.code_key } else { cache.file_key };
        let take = if cache.take != 0 { CACHED_TAKE } else { 0 };
        *cached = CachedRow { address, row: row.0, key: key | take };
    }
    cache.by_file = u32::from(cache.flags & Region::GENERATED == 0 && !row.is_gap());
    row.0
}

/// 1 if code is mapped at an address of a process, else 0. A global function, like `find_row`.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn find_region(pid: u32, address: u64) -> u64 {
    let Some(cache) = cache() else { return 0 };
    // Mostly it is where the frame before was. Only where code is mapped is a row kept.
    if cache.is_within(address) || cached(pid, address).is_some_and(|cached| cache.believes(cached, address)) {
        return 1;
    }
    let is_known = region(pid, address, cache).is_some();
    if !is_known && cache.doubted == 0 {
        cache.doubted = address;
    }
    u64::from(is_known)
}

/// Drops what the walk before has looked up, and sees what of the cached rows of a process still holds.
#[inline(always)]
pub fn begin(pid: u32) {
    let epochs = Epochs::decode(EPOCHS.get(epoch_slot(pid)).copied().unwrap_or(0));
    if let Some(cache) = cache() {
        cache.reset();
        (cache.file_key, cache.code_key) = (cached_row_key(pid, epochs, false), cached_row_key(pid, epochs, true));
    }
}

/// Where the row of an address of a process is kept.
#[inline(always)]
fn cached(pid: u32, address: u64) -> Option<&'static mut CachedRow> {
    let hash = (address ^ u64::from(pid) << 44).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let block = (hash >> (64 - ROW_CACHE_BLOCK_BITS)) as u32;
    let at = ((hash >> (32 - ROW_CACHE_BLOCK_BITS) & 0xffff_ffff) * CACHED_ROWS_OF_A_BLOCK as u64) >> 32;
    // Hidden from LLVM, which would add the distance first and compare with null afterwards: the verifier refuses that.
    let block = core::hint::black_box(ROW_CACHE.get_ptr_mut(block)?);
    // SAFETY: as in `cache`.
    unsafe { &mut *block }.get_mut(at as usize)
}

/// The cache of the walk in progress on this CPU.
#[inline(always)]
pub fn cache() -> Option<&'static mut Cache> {
    // SAFETY: the entry of this CPU is the walk's alone, and no caller keeps it across another call.
    Some(unsafe { &mut *CACHE.get_ptr_mut(0)? })
}

/// The object that is mapped at an address, and the address in the object.
#[inline(always)]
fn region(pid: u32, address: u64, cache: &mut Cache) -> Option<(u32, u64)> {
    if cache.is_within(address) {
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
    *cache = Cache {
        start: region.start,
        end: region.end,
        bias: region.bias,
        object: region.object,
        flags: region.flags,
        ..*cache
    };
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
    let pc_low = address as u16;
    let Search { first, mut low, mut high } = Search::of(cache.page_span, pc_low, |at| ROWS.get(at).copied())?;
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
    if low <= first {
        return None;
    }
    Some(Row(*ROWS.get(low - 1)?))
}
