//! The windows by slots of time, for who sends them elsewhere.

use std::collections::BTreeMap;
use std::io;

use super::id::Level;
use super::index::Block;
use super::store::Times;
use super::{Archive, ArchiveError};
use crate::profile::{Filter, Profile};

/// The windows that begin in a slot of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// When the slot begins, in milliseconds since 1970.
    pub start_ms: u64,
    /// How many windows the archive has of it.
    pub windows: usize,
    /// The number of the first one. No other window of this archive has it, not of one directory in all its time.
    pub first: u64,
}

impl Archive {
    /// The slots of a length that have windows, the oldest first.
    pub fn slots(&self, length_ms: u64) -> Vec<Slot> {
        let mut slots: BTreeMap<u64, Slot> = BTreeMap::new();
        let index = self.store.index();
        for block in index.iter().filter(|block| block.level == Level::Window && !block.is_damaged) {
            let start_ms = slot_of(block, length_ms);
            let slot = slots.entry(start_ms).or_insert(Slot { start_ms, windows: 0, first: block.id.0 });
            slot.windows += 1;
            slot.first = slot.first.min(block.id.0);
        }
        slots.into_values().collect()
    }

    /// The windows of a slot as one profile, with the samples of each at the start of its step.
    ///
    /// # Errors
    /// [`ArchiveError::Nothing`] if they have no samples.
    pub fn read_slot(&self, start_ms: u64, length_ms: u64, step_ms: u64) -> Result<Profile, ArchiveError> {
        let of_slot = |block: &&Block| block.level == Level::Window && slot_of(block, length_ms) == start_ms;
        let mut blocks: Vec<Block> = self.store.index().iter().filter(of_slot).cloned().collect();
        blocks.retain(|block| !block.is_damaged);
        self.store.merge(&blocks, &Filter::default(), Times::Steps(step_ms))
    }

    /// What was kept beside the windows under this name; nothing without a directory.
    ///
    /// # Errors
    /// The system says no.
    pub fn note(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        self.store.directory.as_ref().map_or(Ok(None), |directory| directory.read_note(name))
    }

    /// Keeps something beside the windows; nothing without a directory.
    ///
    /// # Errors
    /// The system says no.
    pub fn keep_note(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.store.directory.as_ref().map_or(Ok(()), |directory| directory.write_note(name, bytes))
    }
}

fn slot_of(block: &Block, length_ms: u64) -> u64 {
    block.start_ms() / length_ms.max(1) * length_ms
}
