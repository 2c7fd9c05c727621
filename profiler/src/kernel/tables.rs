//! The BPF program's tables, of which the [engine](crate::engine::tables) decides what is written where: the memory of rows
//! and regions, and the maps that lead to it.
//!
//! A reader never sees a half-written table: an update of a map is a system call, which orders the writes into the memory
//! before it. Behind each, the process' new epoch begins.

use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use aya::Ebpf;
use aya::maps::{Array, HashMap, Map, MapData};
use jitprof_common::table::{EPOCH_SLOTS, PageKey, Region, Span, epoch_slot, pid_check};
use jitprof_common::taken::FrameSpec;
use jitprof_common::units::Pid;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::error::KernelError;
use super::shared_memory::SharedMemory;
use crate::engine::border::{Refused, TableUpdate};
use crate::engine::tables::{TableMemory, TableSizes, search_rows};
use crate::process::open::FileId;

/// The memory of rows and regions. Dropping it unmaps; the BPF program keeps the maps as long as it is loaded.
pub struct SharedTables {
    rows: Mapped<u64>,
    regions: Mapped<Region>,
}

/// The maps that lead to rows and regions, and the epochs.
pub struct TableMaps {
    epochs: Mapped<u64>,
    pages: HashMap<MapData, [u32; 2], u64>,
    processes: HashMap<MapData, u32, u64>,
    specs: Array<MapData, [u64; SPEC_WORDS]>,
    takes: HashMap<MapData, u32, u32>,
}

/// Words of a description of what is taken along with frames.
const SPEC_WORDS: usize = size_of::<FrameSpec>() / size_of::<u64>();

/// Takes the tables' maps out of a loaded object.
pub(super) fn take(ebpf: &mut Ebpf, sizes: TableSizes) -> Result<(SharedTables, TableMaps), KernelError> {
    let mut take = |name| ebpf.take_map(name).ok_or(KernelError::Mismatch { name });
    let memory = SharedTables {
        rows: Mapped::new(take("ROWS")?, sizes.rows)?,
        regions: Mapped::new(take("REGIONS")?, sizes.regions)?,
    };
    let maps = TableMaps {
        epochs: Mapped::new(take("EPOCHS")?, EPOCH_SLOTS)?,
        pages: HashMap::try_from(take("PAGES")?)?,
        processes: HashMap::try_from(take("PROCESS_REGIONS")?)?,
        specs: Array::try_from(take("SPECS")?)?,
        takes: HashMap::try_from(take("TAKES")?)?,
    };
    Ok((memory, maps))
}

impl TableMemory for SharedTables {
    fn write_rows(&mut self, first: u32, rows: &[u64]) {
        self.rows.write(first, rows);
    }

    fn write_regions(&mut self, first: u32, regions: &[Region]) {
        self.regions.write(first, regions);
    }

    fn find_row(&self, _file: FileId, address: u64, span: Span) -> Option<u64> {
        search_rows(span, address, |index| self.rows.read(index))
    }
}

impl TableMaps {
    /// Brings an update into force. If the kernel does not take it, there is nothing in its place.
    ///
    /// # Errors
    /// The kernel has no memory for it.
    pub fn apply(&mut self, update: TableUpdate) -> Result<(), Refused> {
        match update {
            TableUpdate::Page(key, span) => self.set_page(key, span).map_err(|_| Refused::Page(key.into())),
            TableUpdate::Regions(pid, span) => self.set_regions(pid, span).map_err(|_| Refused::Regions(pid)),
            TableUpdate::Epoch(pid, change) => {
                self.epochs.counter(epoch_slot(pid.0)).fetch_add(change, Ordering::SeqCst);
                Ok(())
            }
            // An element of an array is there already. Without the description a process' words are not taken.
            TableUpdate::Spec(index, spec) => {
                let words: [u64; SPEC_WORDS] = zerocopy::transmute!(*spec);
                self.specs.set(index, words, 0).or(Ok(()))
            }
            TableUpdate::Take(pid, index) => self.set_take(pid, index).map_err(|_| Refused::Take(pid)),
        }
    }

    fn set_take(&mut self, pid: Pid, index: Option<u32>) -> Result<(), aya::maps::MapError> {
        match index {
            Some(index) => self.takes.insert(pid.0, index + 1, 0),
            None => {
                drop(self.takes.remove(&pid.0));
                Ok(())
            }
        }
    }

    fn set_page(&mut self, key: PageKey, span: Option<Span>) -> Result<(), aya::maps::MapError> {
        let map_key = [key.object, key.page];
        let Some(span) = span else {
            // An entry that is not there need not go.
            drop(self.pages.remove(&map_key));
            return Ok(());
        };
        self.pages.insert(map_key, span.encode(key.check()), 0).inspect_err(|_| drop(self.pages.remove(&map_key)))
    }

    fn set_regions(&mut self, pid: Pid, span: Option<Span>) -> Result<(), aya::maps::MapError> {
        let Some(span) = span else {
            drop(self.processes.remove(&pid.0));
            return Ok(());
        };
        let value = span.encode(pid_check(pid.0));
        self.processes.insert(pid.0, value, 0).inspect_err(|_| drop(self.processes.remove(&pid.0)))
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
    /// An element that the BPF program reads while it changes. An index beyond the array would be a bug of the caller's.
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
