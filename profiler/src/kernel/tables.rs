//! Unwind tables in memory that the kernel part reads.
//!
//! A reader never sees a half-written table: rows are written into elements that no reader knows, then published by
//! one hash update whose value is a single word, and the elements they replace are used again only after a grace of a
//! second, longer than any sample takes. The update is a system call, which orders the writes before it. Behind it a new
//! epoch begins: rows that walks have kept from the tables before are not believed any more.

use std::collections::HashMap as Index;
use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use aya::Ebpf;
use aya::maps::{HashMap, Map, MapData};
use profiler_common::row::Row;
use profiler_common::table::{
    EPOCH_SLOTS, Epochs, MAX_PAGE_ROWS, MAX_REGIONS, PAGE_BITS, PageKey, Region, Span, epoch_slot, pid_check,
};
use serde::Serialize;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::error::KernelError;
use super::shared_memory::SharedMemory;
use super::space::Space;
use crate::units::{MonoNs, Pid};

/// Entries of the PAGES map.
const MAX_PAGES: usize = 65536;

/// Use of the tables, and what did not fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TableStats {
    /// Unwind rows in use, those in their grace included.
    pub rows: u32,
    /// Unwind rows that fit.
    pub rows_capacity: u32,
    /// Pages of rows published.
    pub pages: usize,
    /// Executable mappings published.
    pub regions: u32,
    /// Kernel memory of the row and region arrays, in bytes.
    pub bytes: u64,
    /// Pages that were not published because rows or page entries were used up: their code is walked by frame pointer.
    pub pages_refused: u64,
    /// Lists of a process' mappings that were not published, likewise; each is tried again.
    pub processes_refused: u64,
}

/// The tables of all processes. Dropping them unmaps; the kernel part keeps the maps as long as it is loaded.
pub struct Tables {
    rows: Mapped<u64>,
    regions: Mapped<Region>,
    epochs: Mapped<u64>,
    pages: HashMap<MapData, [u32; 2], u64>,
    processes: HashMap<MapData, u32, u64>,
    row_space: Space,
    region_space: Space,
    page_spans: Index<PageKey, Span>,
    region_spans: Index<Pid, Span>,
    stats: TableStats,
}

impl Tables {
    /// Takes the tables' maps out of a loaded object.
    pub(super) fn take(ebpf: &mut Ebpf, rows: u32, regions: u32) -> Result<Self, KernelError> {
        let mut take = |name| ebpf.take_map(name).ok_or(KernelError::Mismatch { name });
        let (row_map, region_map, epoch_map) = (take("ROWS")?, take("REGIONS")?, take("EPOCHS")?);
        let pages = HashMap::try_from(take("PAGES")?)?;
        let processes = HashMap::try_from(take("PROCESS_REGIONS")?)?;
        let bytes = u64::from(rows) * 8 + u64::from(regions) * size_of::<Region>() as u64;
        Ok(Self {
            rows: Mapped::new(row_map, rows)?,
            regions: Mapped::new(region_map, regions)?,
            epochs: Mapped::new(epoch_map, EPOCH_SLOTS)?,
            pages,
            processes,
            row_space: Space::new(rows),
            region_space: Space::new(regions),
            page_spans: Index::new(),
            region_spans: Index::new(),
            stats: TableStats { rows_capacity: rows, bytes, ..TableStats::default() },
        })
    }

    /// Publishes the rows of a page, encoded and sorted, in place of those before. Without rows, or when there is no
    /// room, the page has none. Returns whether it has what was asked for. A process that has the object mapped goes by
    /// what it had until [`Tables::change_code`] or [`Tables::set_regions`] is called for it.
    pub fn set_page(&mut self, key: PageKey, rows: &[u64], now: MonoNs) -> bool {
        let span = match u32::try_from(rows.len()) {
            Ok(0) => None,
            Ok(count) if count <= MAX_PAGE_ROWS => self.row_space.take(count),
            _ => None,
        };
        let map_key = [key.object, key.page];
        let published = span.is_some_and(|span| {
            self.rows.write(span.first, rows);
            self.pages.insert(map_key, span.encode(key.check()), 0).is_ok()
        });
        let old = match span.filter(|_| published) {
            Some(span) => self.page_spans.insert(key, span),
            None => {
                if let Some(span) = span {
                    self.row_space.retire(span, now);
                }
                // An entry that is not there need not go.
                drop(self.pages.remove(&map_key));
                self.page_spans.remove(&key)
            }
        };
        if let Some(old) = old {
            self.row_space.retire(old, now);
        }
        let complete = published || rows.is_empty();
        self.stats.pages_refused += u64::from(!complete);
        complete
    }

    /// Pages of a process' generated code have changed.
    pub fn change_code(&self, pid: Pid) {
        self.begin_epoch(pid, Epochs::CODE);
    }

    fn begin_epoch(&self, pid: Pid, change: u64) {
        self.epochs.counter(epoch_slot(pid.0)).fetch_add(change, Ordering::SeqCst);
    }

    /// Publishes a process' executable mappings, sorted by address and without overlap. Without any, or when there is
    /// no room, the process is walked by frame pointers. Returns whether it has what was asked for.
    pub fn set_regions(&mut self, pid: Pid, regions: &[Region], now: MonoNs) -> bool {
        let span = match u32::try_from(regions.len()) {
            Ok(0) => None,
            Ok(count) if count <= MAX_REGIONS => self.region_space.take(count),
            _ => None,
        };
        let published = span.is_some_and(|span| {
            self.regions.write(span.first, regions);
            self.processes.insert(pid.0, span.encode(pid_check(pid.0)), 0).is_ok()
        });
        let old = match span.filter(|_| published) {
            Some(span) => self.region_spans.insert(pid, span),
            None => {
                if let Some(span) = span {
                    self.region_space.retire(span, now);
                }
                drop(self.processes.remove(&pid.0));
                self.region_spans.remove(&pid)
            }
        };
        self.begin_epoch(pid, Epochs::MAPPINGS);
        if let Some(old) = old {
            self.region_space.retire(old, now);
        }
        let complete = published || regions.is_empty();
        self.stats.processes_refused += u64::from(!complete);
        complete
    }

    /// The row that holds at an address of an object, as the kernel part finds it; [`Row::GAP`] without one.
    pub fn row(&self, object: u32, address: u64) -> Row {
        let Ok(page) = u32::try_from(address >> PAGE_BITS) else { return Row::GAP };
        let Some(span) = self.page_spans.get(&PageKey { object, page }) else { return Row::GAP };
        let (mut low, mut high) = (0, span.count);
        while low < high {
            let middle = low + (high - low) / 2;
            if u64::from(Row(self.rows.read(span.first + middle)).pc_low()) <= address & ((1 << PAGE_BITS) - 1) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        if low == 0 { Row::GAP } else { Row(self.rows.read(span.first + low - 1)) }
    }

    /// Makes room of what was replaced a while ago.
    pub fn reclaim(&mut self, now: MonoNs) {
        self.row_space.reclaim(now);
        self.region_space.reclaim(now);
    }

    /// Rows that can be taken now.
    pub fn free_rows(&self) -> u32 {
        self.stats.rows_capacity.saturating_sub(self.row_space.used())
    }

    /// Whether this many rows in this many pages have room now. In pieces they may not: the room may be in pieces, too.
    pub fn has_room(&self, rows: u32, pages: usize) -> bool {
        self.free_rows() >= rows && MAX_PAGES.saturating_sub(self.page_spans.len()) >= pages
    }

    /// Whether rows have been given back that can be taken when their grace is over.
    pub fn is_returning(&self) -> bool {
        self.row_space.is_returning()
    }

    /// Use of the tables.
    pub fn stats(&self) -> TableStats {
        TableStats {
            rows: self.row_space.used(),
            regions: self.region_space.used(),
            pages: self.page_spans.len(),
            ..self.stats
        }
    }
}

/// The elements of an array map, mapped for writing.
struct Mapped<T> {
    memory: SharedMemory,
    capacity: u32,
    elements: PhantomData<T>,
    // Keeps the map's descriptor open.
    _map: MapData,
}

impl<T: IntoBytes + Immutable> Mapped<T> {
    fn new(map: Map, capacity: u32) -> Result<Self, KernelError> {
        const { assert!(size_of::<T>().is_multiple_of(8), "the kernel pads elements to 8 bytes") };
        let Map::Array(map) = map else { return Err(KernelError::Mismatch { name: "array of rows" }) };
        let memory = SharedMemory::map(map.fd().as_fd(), capacity as usize * size_of::<T>())
            .map_err(|source| KernelError::TableMemory { source })?;
        Ok(Self { memory, capacity, elements: PhantomData, _map: map })
    }

    /// Writes elements from `first` on. What does not fit the array would be a bug of the caller's allocation.
    fn write(&mut self, first: u32, elements: &[T]) {
        let fits = (first as usize).checked_add(elements.len()).is_some_and(|end| end <= self.capacity as usize);
        assert!(fits, "elements {first} and {} more do not fit {}", elements.len(), self.capacity);
        // SAFETY: the range was just checked; the kernel only reads, and only spans that have been published.
        unsafe {
            let start = self.memory.address().as_ptr().cast::<T>().add(first as usize);
            std::ptr::copy_nonoverlapping(elements.as_ptr(), start, elements.len());
        }
    }
}

impl Mapped<u64> {
    /// An element that the kernel part reads while it changes. An index beyond the array would be a bug of the caller's.
    fn counter(&self, index: u32) -> &AtomicU64 {
        assert!(index < self.capacity, "element {index} of {}", self.capacity);
        // SAFETY: the index was just checked, elements are aligned to 8 bytes, and no reference to them is ever made
        // that is not to an atomic.
        unsafe { AtomicU64::from_ptr(self.memory.address().as_ptr().cast::<u64>().add(index as usize)) }
    }
}

impl<T: FromBytes + Copy> Mapped<T> {
    /// One element. An index beyond the array would be a bug of the caller's allocation.
    fn read(&self, index: u32) -> T {
        assert!(index < self.capacity, "element {index} of {}", self.capacity);
        // SAFETY: the index was just checked; any bytes are an element, and they are written through `&mut self` only.
        unsafe { self.memory.address().as_ptr().cast::<T>().add(index as usize).read() }
    }
}
