//! What the archive knows of its blocks: all of it in memory, and bounded.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;
use std::sync::Arc;

use super::id::{Id, Level, Name, milliseconds, system_time};
use super::usage::{Groups, Usage};
use crate::profile::Filter;

/// What a block costs beside its bytes and its usage.
const BLOCK_BYTES: usize = 200;
/// How far windows may stand apart and still be merged.
const MAX_GAP_MS: u64 = 2_000;
/// Windows that become one block at most, and at least if a gap follows.
const MAX_PARTS: usize = 240;
const MIN_PARTS: usize = 6;
/// How long a merged block is.
pub(super) const MERGED_MS: u64 = 600_000;

/// One window, or some minutes of them.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) id: Id,
    pub(super) level: Level,
    pub(super) length_ms: u64,
    /// When it ended, on the steady clock: its age does not change when the clock of the calendar is set.
    pub(super) ended_ms: i64,
    /// The encoded profile, as long as it is kept in memory.
    pub(super) bytes: Option<Arc<[u8]>>,
    /// The path of its file in the archive's folder, and its size.
    pub(super) file: Option<(Arc<str>, u64)>,
    /// Who used the CPU; absent until the file was looked at, or when there is no room for it.
    pub(super) usage: Option<Arc<Usage>>,
    /// The windows that a merged block holds.
    pub(super) parts: Arc<[Id]>,
    /// Whether it cannot be read.
    pub(super) is_damaged: bool,
    /// Whether it was tried in vain to merge it.
    pub(super) is_apart: bool,
    /// Whether its file could not be written, and it is not the disk's room that was missing.
    pub(super) is_unwritable: bool,
}

/// Blocks in the order in which they go, and in which they are written: the oldest first.
type Age = (i64, Level, Id);

/// Blocks by level and time.
#[derive(Debug, Default)]
pub(super) struct Index {
    windows: BTreeMap<Id, Block>,
    merged: BTreeMap<Id, Block>,
    /// Those that are in memory alone and should be in files.
    unwritten: BTreeSet<Age>,
    groups: Groups,
    block_bytes: u64,
    pub(super) file_bytes: u64,
}

impl Block {
    pub(super) fn new(id: Id, level: Level, length_ms: u64, ended_ms: i64) -> Self {
        Self {
            id,
            level,
            length_ms,
            ended_ms,
            bytes: None,
            file: None,
            usage: None,
            parts: Arc::from([]),
            is_damaged: false,
            is_apart: false,
            is_unwritable: false,
        }
    }

    fn age(&self) -> Age {
        (self.ended_ms, self.level, self.id)
    }

    fn is_unwritten(&self) -> bool {
        self.file.is_none() && self.bytes.is_some() && !self.is_unwritable
    }

    pub(super) fn start_ms(&self) -> u64 {
        self.id.start_ms()
    }

    pub(super) fn end_ms(&self) -> u64 {
        self.start_ms().saturating_add(self.length_ms)
    }

    fn middle_ms(&self) -> u64 {
        self.start_ms().saturating_add(self.length_ms / 2)
    }

    pub(super) fn name(&self) -> Name {
        Name { id: self.id, level: self.level, length_ms: self.length_ms }
    }

    fn cost(&self) -> u64 {
        let bytes = self.bytes.as_ref().map_or(0, |bytes| bytes.len());
        let usage = self.usage.as_ref().map_or(0, |usage| usage.bytes());
        let parts = self.parts.len().saturating_mul(8);
        u64::try_from(bytes.saturating_add(usage).saturating_add(parts).saturating_add(BLOCK_BYTES)).unwrap_or(u64::MAX)
    }
}

impl Index {
    fn level(&self, level: Level) -> &BTreeMap<Id, Block> {
        match level {
            Level::Window => &self.windows,
            Level::Merged => &self.merged,
        }
    }

    fn level_mut(&mut self, level: Level) -> &mut BTreeMap<Id, Block> {
        match level {
            Level::Window => &mut self.windows,
            Level::Merged => &mut self.merged,
        }
    }

    /// A number for a block that begins then.
    pub(super) fn free_id(&self, level: Level, start_ms: u64) -> Id {
        Id::free(start_ms, |id| self.level(level).contains_key(&id))
    }

    pub(super) fn insert(&mut self, mut block: Block) {
        if let Some(usage) = block.usage.take() {
            block.usage = Some(self.shared(usage));
        }
        self.place(block);
    }

    fn place(&mut self, block: Block) {
        self.block_bytes = self.block_bytes.saturating_add(block.cost());
        self.file_bytes = self.file_bytes.saturating_add(block.file.as_ref().map_or(0, |(_, bytes)| *bytes));
        let unwritten = block.is_unwritten().then(|| block.age());
        if let Some(replaced) = self.level_mut(block.level).insert(block.id, block) {
            self.uncount(&replaced);
        }
        self.unwritten.extend(unwritten);
    }

    /// Changes a block that is still there.
    pub(super) fn update(&mut self, level: Level, id: Id, change: impl FnOnce(&mut Block)) {
        if let Some(mut block) = self.remove(level, id) {
            let had_usage = block.usage.is_some();
            change(&mut block);
            if had_usage { self.place(block) } else { self.insert(block) }
        }
    }

    pub(super) fn remove(&mut self, level: Level, id: Id) -> Option<Block> {
        let block = self.level_mut(level).remove(&id)?;
        self.uncount(&block);
        Some(block)
    }

    fn uncount(&mut self, block: &Block) {
        self.unwritten.remove(&block.age());
        self.block_bytes = self.block_bytes.saturating_sub(block.cost());
        self.file_bytes = self.file_bytes.saturating_sub(block.file.as_ref().map_or(0, |(_, bytes)| *bytes));
    }

    fn shared(&mut self, usage: Arc<Usage>) -> Arc<Usage> {
        match Arc::try_unwrap(usage) {
            Ok(mut usage) => {
                self.groups.share(&mut usage);
                Arc::new(usage)
            }
            // Somebody reads it, so it was here before.
            Err(usage) => usage,
        }
    }

    pub(super) fn get(&self, level: Level, id: Id) -> Option<&Block> {
        self.level(level).get(&id)
    }

    /// The oldest block that should be in a file and is not.
    pub(super) fn next_unwritten(&self) -> Option<&Block> {
        self.unwritten.first().and_then(|&(_, level, id)| self.get(level, id))
    }

    /// Windows that should be in files and are not.
    pub(super) fn unwritten_windows(&self) -> usize {
        self.unwritten.iter().filter(|(_, level, _)| *level == Level::Window).count()
    }

    /// All blocks, windows before merged ones, each by time.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Block> {
        self.windows.values().chain(self.merged.values())
    }

    /// What everything here takes of the memory.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.block_bytes.saturating_add(u64::try_from(self.groups.bytes()).unwrap_or(u64::MAX))
    }

    /// Makes everything fit, and returns how many windows went that are in no file. First the bytes go of what has a
    /// file, then its usage, then blocks that are nowhere else; the oldest first each time.
    pub(super) fn evict(&mut self, limit_bytes: u64) -> u64 {
        let ages = |index: &Self| {
            let mut order: Vec<Age> = index.iter().map(Block::age).collect();
            order.sort_unstable();
            order
        };
        if self.memory_bytes() <= limit_bytes {
            return 0;
        }
        let order = ages(self);
        for stage in [drop_bytes as fn(&mut Block), drop_usage] {
            for &(_, level, id) in &order {
                if self.memory_bytes() <= limit_bytes {
                    break;
                }
                if self.get(level, id).is_some_and(|block| block.file.is_some()) {
                    self.update(level, id, stage);
                }
            }
            self.groups.release_unused();
        }
        let mut lost = 0;
        for (_, level, id) in order {
            if self.memory_bytes() <= limit_bytes {
                break;
            }
            if self.get(level, id).is_some_and(|block| block.file.is_none()) {
                lost += u64::from(level == Level::Window);
                self.remove(level, id);
                self.groups.release_unused();
            }
        }
        lost
    }

    /// The blocks that answer for a time, each instant by one of them: a merged block where the whole of it is asked
    /// for, windows else. A block belongs to a range if its middle does; a range without a middle gets what overlaps it.
    pub(super) fn plan(&self, range_ms: &Range<u64>, use_merged: bool) -> Vec<Block> {
        let inside = |block: &&Block| range_ms.contains(&block.middle_ms());
        let usable = |block: &&Block| !block.is_damaged;
        let mut plan: Vec<&Block> = Vec::new();
        let mut covered: HashSet<Id> = HashSet::new();
        // What a merged block holds is known when it was looked into.
        for block in self.merged.values().filter(usable).filter(|block| !block.parts.is_empty()) {
            let is_whole = use_merged && range_ms.start <= block.start_ms() && block.end_ms() <= range_ms.end;
            let has_windows = block.parts.iter().any(|part| self.windows.contains_key(part));
            let is_new = block.parts.iter().all(|part| !covered.contains(part));
            if is_new && (is_whole || (!has_windows && inside(&block))) {
                plan.push(block);
                covered.extend(block.parts.iter());
            }
        }
        let is_free = |block: &&Block| !covered.contains(&block.id);
        plan.extend(self.windows.values().filter(usable).filter(inside).filter(is_free));
        if plan.is_empty() {
            let overlaps = |block: &&Block| block.start_ms() < range_ms.end && block.end_ms() > range_ms.start;
            plan.extend(self.windows.values().filter(usable).filter(overlaps));
            if plan.is_empty() {
                plan.extend(self.merged.values().filter(usable).filter(overlaps));
            }
        }
        plan.sort_by_key(|block| block.id);
        plan.into_iter().cloned().collect()
    }

    /// Everything that overlaps a time.
    pub(super) fn overlapping(&self, range_ms: &Range<u64>) -> Vec<Block> {
        let overlaps = |block: &&Block| block.start_ms() < range_ms.end && block.end_ms() > range_ms.start;
        self.iter().filter(overlaps).cloned().collect()
    }

    /// The next windows that can become one block: they follow each other, and none will come between them.
    pub(super) fn mergeable(&self) -> Option<Vec<Block>> {
        let mut covered: Vec<Id> = self.merged.values().flat_map(|block| block.parts.iter().copied()).collect();
        covered.sort_unstable();
        let mut run: Vec<&Block> = Vec::new();
        for block in self.windows.values() {
            let follows = run.last().is_none_or(|last| block.start_ms().abs_diff(last.end_ms()) <= MAX_GAP_MS);
            let is_free = covered.binary_search(&block.id).is_err() && !block.is_damaged && !block.is_apart;
            if !(follows && is_free) {
                if run.len() >= MIN_PARTS {
                    break;
                }
                run.clear();
            }
            if is_free {
                run.push(block);
            }
            let length_ms = run.first().map_or(0, |first| block.end_ms().saturating_sub(first.start_ms()));
            if run.len() >= MAX_PARTS || length_ms >= MERGED_MS {
                return (run.len() > 1).then(|| run.into_iter().cloned().collect());
            }
        }
        // A run at the end may go on; one before a gap will not.
        let last = self.windows.last_key_value()?.0;
        (run.len() >= MIN_PARTS && run.last()?.id != *last).then(|| run.into_iter().cloned().collect())
    }

    /// Tries no more to merge these windows.
    pub(super) fn keep_apart(&mut self, parts: &[Id]) {
        parts.iter().for_each(|&part| self.update(Level::Window, part, |block| block.is_apart = true));
    }

    /// The oldest file that has to go: too old by the steady clock, or because all together are too large.
    pub(super) fn expired(&self, steady_ms: i64, max_age_ms: u64, max_bytes: u64) -> Option<(Level, Id)> {
        let with_file = self.iter().filter(|block| block.file.is_some());
        let oldest = with_file.min_by_key(|block| block.age())?;
        let is_old = oldest.ended_ms.saturating_add_unsigned(max_age_ms) < steady_ms;
        (is_old || self.file_bytes > max_bytes).then_some((oldest.level, oldest.id))
    }

    /// Whether a file holds samples of somebody whom the filter wants, as far as is known.
    pub(super) fn may_pass(block: &Block, process_filter: &Filter) -> bool {
        block.usage.as_ref().is_none_or(|usage| usage.may_pass(process_filter))
    }

    /// When the oldest block begins.
    pub(super) fn oldest(&self) -> Option<std::time::SystemTime> {
        self.iter().map(Block::start_ms).min().map(system_time)
    }
}

fn drop_bytes(block: &mut Block) {
    block.bytes = None;
}

fn drop_usage(block: &mut Block) {
    block.usage = None;
}

/// A range of time as the index counts it.
pub(super) fn range_ms(from: std::time::SystemTime, to: std::time::SystemTime) -> Range<u64> {
    milliseconds(from)..milliseconds(to)
}
