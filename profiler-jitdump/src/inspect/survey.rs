//! Statistics of a dump beyond what its reader counts.

use std::collections::BTreeMap;

use serde::Serialize;

use super::extents::{Extent, Extents, Placed};
use crate::record::{Body, Record};

/// What is in a dump. Times are as written.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Survey {
    /// The earliest time of a record other than 0.
    pub first_time: Option<u64>,
    /// The latest time of a record.
    pub last_time: Option<u64>,
    /// Records with an earlier time than one before them in the file.
    pub late_records: u64,
    /// By how much, at most.
    pub latest_by: u64,
    /// Functions that took the place of one at the same address.
    pub same_address: u64,
    /// Functions that took the place of others, whole or in part.
    pub overlapping: u64,
    /// Functions beyond the 1,048,576 that are followed: whether they take the place of others is not known.
    pub untracked: u64,
    /// Functions that are there at the end.
    pub living: u64,
    /// Their bytes.
    pub living_bytes: u64,
    /// Functions without a byte.
    pub empty_functions: u64,
    /// The longest function.
    pub largest_function: u64,
    /// Entries of all DEBUG_INFO records, as those say.
    pub debug_entries: u64,
    /// Records of types that this reader does not know, by number.
    pub unknown_types: BTreeMap<u32, u64>,
    #[serde(skip)]
    extents: Extents,
}

/// What the check wants to know about a record from here.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Surveyed {
    /// How much earlier it is than a record before it.
    pub(super) late_by: u64,
    /// For a MOVE: what was at its old address.
    pub(super) moved: Option<Extent>,
    /// Whether everything that is there is known.
    pub(super) all_known: bool,
}

impl Survey {
    pub(super) fn record(&mut self, record: &Record<'_>) -> Surveyed {
        let late_by = self.time(record.raw_time);
        let all_known = self.untracked == 0 && !self.extents.is_full();
        let mut surveyed = Surveyed { late_by, moved: None, all_known };
        match &record.body {
            Body::Load(load) => self.load(load.code_addr, load.code_size, load.code_index),
            Body::Move(moved) => {
                surveyed.moved = self.extents.take(moved.old_code_addr);
                self.load(moved.new_code_addr, moved.code_size, moved.code_index);
            }
            Body::Unload(gone) => {
                self.extents.clear(gone.code_addr, gone.code_addr.saturating_add(gone.code_size));
            }
            Body::DebugInfo(info) => self.debug_entries = self.debug_entries.saturating_add(info.nr_entry as u64),
            Body::Unknown { id } => *self.unknown_types.entry(*id).or_default() += 1,
            Body::Close | Body::UnwindingInfo(_) | Body::Inline(_) | Body::Method(_) | Body::Lost(_) => {}
        }
        surveyed
    }

    fn time(&mut self, time: u64) -> u64 {
        if time == 0 {
            return 0;
        }
        self.first_time = Some(self.first_time.map_or(time, |first| first.min(time)));
        let late_by = self.last_time.map_or(0, |last| last.saturating_sub(time));
        self.last_time = self.last_time.max(Some(time));
        self.late_records += u64::from(late_by > 0);
        self.latest_by = self.latest_by.max(late_by);
        late_by
    }

    fn load(&mut self, start: u64, size: u64, code_index: u64) {
        self.largest_function = self.largest_function.max(size);
        if size == 0 {
            self.empty_functions += 1;
            return;
        }
        match self.extents.load(start, Extent { end: start.saturating_add(size), code_index }) {
            Placed::Free => {}
            Placed::SameAddress => self.same_address += 1,
            Placed::Overlap => self.overlapping += 1,
            Placed::Untracked => self.untracked += 1,
        }
    }

    pub(super) fn finish(&mut self) {
        (self.living, self.living_bytes) = self.extents.living();
    }
}
