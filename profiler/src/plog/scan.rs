//! The first pass over a log: which threads, ids and times there are.

use std::collections::BTreeMap;
use std::io::{Read, Seek};

use rustc_hash::FxHashMap;

use super::error::PlogError;
use super::reader::{Entry, Log};

/// Threads that are kept apart; further ones are one thread, with a warning.
pub const MAX_THREADS: usize = 4096;
/// Types whose entries are counted.
const MAX_TYPES: usize = 1024;

/// A thread as the log has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadSeen {
    /// The log's id, a pointer on Unix; 0 for the rest beyond [`MAX_THREADS`].
    pub id: u64,
    /// How many entries the thread wrote.
    pub entries: u64,
    /// Ticks of the earliest timestamp.
    pub first: u64,
    /// Ticks of the latest timestamp.
    pub last: u64,
    /// Ticks of the latest timestamp with its duration.
    pub last_end: u64,
    /// Timestamp of the last entry without duration in file order.
    newest: u64,
}

/// What the first pass found.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub(super) entries: u64,
    pub(super) blank: u64,
    pub(super) largest_id: u32,
    pub(super) largest_type: u32,
    /// Entries of each type, as far as [`MAX_TYPES`] goes.
    pub(super) types: BTreeMap<u32, u64>,
    /// Whether the entries without duration of each thread are in the order of time.
    pub(super) in_order: bool,
    pub(super) threads: Threads,
}

/// Threads by the log's id.
#[derive(Debug, Default)]
pub(super) struct Threads {
    pub(super) seen: Vec<ThreadSeen>,
    by_id: FxHashMap<u64, u32>,
    /// Entries often follow one of the same thread.
    last: Option<(u64, u32)>,
    /// Whether there were more than [`MAX_THREADS`].
    pub(super) full: bool,
}

impl Threads {
    /// The index of a thread, which is made if there is room.
    fn intern(&mut self, id: u64) -> u32 {
        if let Some((last, index)) = self.last
            && last == id
        {
            return index;
        }
        let index = match self.by_id.get(&id) {
            Some(index) => *index,
            None => self.add(id),
        };
        self.last = Some((id, index));
        index
    }

    fn add(&mut self, id: u64) -> u32 {
        let fresh = ThreadSeen { id, entries: 0, first: u64::MAX, last: 0, last_end: 0, newest: 0 };
        if self.seen.len() < MAX_THREADS {
            self.seen.push(fresh);
            let index = u32::try_from(self.seen.len() - 1).expect("invariant: MAX_THREADS fits 32 bits");
            self.by_id.insert(id, index);
            return index;
        }
        if !self.full {
            self.full = true;
            self.seen.push(ThreadSeen { id: 0, ..fresh });
        }
        u32::try_from(self.seen.len() - 1).expect("invariant: MAX_THREADS fits 32 bits")
    }

    /// The same threads under the same numbers, for looking them up.
    pub(super) fn of(seen: &[ThreadSeen]) -> Self {
        let mut threads = Self::default();
        for thread in seen.iter().take(MAX_THREADS) {
            threads.intern(thread.id);
        }
        threads
    }

    /// The index of a thread that the scan has seen.
    pub(super) fn index(&mut self, id: u64) -> u32 {
        self.intern(id)
    }
}

/// Reads all entries once.
pub(super) fn scan<R: Read + Seek>(log: &mut Log<R>) -> Result<Scan, PlogError> {
    let mut scan = Scan { in_order: true, ..Scan::default() };
    let blank = log.entries(|entry| {
        scan.take(&entry);
        Ok::<(), PlogError>(())
    })?;
    scan.blank = blank;
    Ok(scan)
}

impl Scan {
    fn take(&mut self, entry: &Entry) {
        self.entries += 1;
        self.largest_id = self.largest_id.max(entry.trace_id);
        self.largest_type = self.largest_type.max(entry.type_id);
        if self.types.len() < MAX_TYPES || self.types.contains_key(&entry.type_id) {
            *self.types.entry(entry.type_id).or_default() += 1;
        }
        let index = self.threads.intern(entry.thread);
        let Some(thread) = usize::try_from(index).ok().and_then(|index| self.threads.seen.get_mut(index)) else {
            return;
        };
        thread.entries += 1;
        thread.first = thread.first.min(entry.timestamp);
        thread.last = thread.last.max(entry.timestamp);
        thread.last_end = thread.last_end.max(entry.timestamp.saturating_add(entry.duration));
        if entry.duration == 0 {
            self.in_order &= thread.newest <= entry.timestamp;
            thread.newest = entry.timestamp;
        }
    }
}
