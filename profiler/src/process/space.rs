//! The executable mappings of one process, with the times at which each of them held.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::process::mapping::{Mapping, MappingKind};
use crate::process::procfs::Maps;
use crate::units::{Avma, MonoNs};

/// Ended mappings that are remembered for late samples. A look-up that finds no live mapping walks them (about 4 µs
/// when full); a target that remaps faster loses the oldest, counted.
const MAX_ENDED: usize = 4096;
/// Live executable mappings that are kept of one process. The kernel allows 65,530 mappings of all kinds by default;
/// the largest seen (a .NET server) has 3,000 executable ones. They take 2.5 MB.
const MAX_LIVE: usize = 16 << 10;

/// What is mapped where, at any time since the process was first seen. Only executable mappings are kept: samples
/// point at nothing else, and the side band reports nothing else.
#[derive(Clone, Debug, Default)]
pub struct AddressSpace {
    /// Keyed by start address; never overlapping. A child has its parent's until one of them changes it: most children
    /// call exec at once.
    live: Arc<BTreeMap<Avma, Live>>,
    /// In the order in which they ended.
    ended: VecDeque<Ended>,
    /// The side band's reports from before this time are part of the snapshot.
    snapshot_time: MonoNs,
    /// What a child has inherited was there before its first sample.
    inherited_until: MonoNs,
    forgotten: u64,
}

#[derive(Clone, Debug)]
struct Live {
    mapping: Mapping,
    from: MonoNs,
}

#[derive(Clone, Debug)]
struct Ended {
    mapping: Mapping,
    from: MonoNs,
    until: MonoNs,
}

impl AddressSpace {
    /// From a snapshot begun at `time`. The mappings count from the beginning of time, because earlier samples have
    /// no better account of their addresses.
    pub fn from_maps(maps: &Maps, time: MonoNs) -> Self {
        let mut space = Self { snapshot_time: time, ..Self::default() };
        for mapping in maps.mappings.iter().filter(|mapping| mapping.prot.execute) {
            space.insert(mapping.clone(), MonoNs(0));
        }
        space
    }

    /// Brings what is known in line with a snapshot begun at `time`, after events were lost: what is gone ends then,
    /// what is new begins then.
    pub fn reconcile(&mut self, maps: &Maps, time: MonoNs) {
        let mut fresh: BTreeMap<Avma, &Mapping> = BTreeMap::new();
        for mapping in maps.mappings.iter().filter(|mapping| mapping.prot.execute) {
            fresh.insert(mapping.start, mapping);
        }
        let gone: Vec<Avma> = self
            .live
            .iter()
            .filter(|(start, live)| !fresh.get(start).is_some_and(|now| same_object(now, &live.mapping)))
            .map(|(start, _)| *start)
            .collect();
        for start in gone {
            self.end_at(start, time);
        }
        for (start, mapping) in fresh {
            if !self.live.contains_key(&start) {
                self.insert(mapping.clone(), time);
            }
        }
        self.snapshot_time = self.snapshot_time.max(time);
    }

    /// Something was mapped at `time` over whatever was there; older mappings end or keep their other parts. Reports
    /// from before the snapshot are in it already and are left out, as are mappings that are not executable (whose
    /// only effect is that they end what they cover).
    pub fn mmap(&mut self, mapping: Mapping, time: MonoNs) {
        if time < self.snapshot_time || mapping.is_empty() || self.is_made_executable_again(&mapping) {
            return;
        }
        self.unmap(mapping.start, mapping.end, time);
        if mapping.prot.execute {
            self.insert(mapping, time);
        }
    }

    /// Whether generated code is reported where generated code is known to be: a runtime flips its pages between writable
    /// and executable, thousands of times a second and in pieces. What is there has not changed.
    fn is_made_executable_again(&self, mapping: &Mapping) -> bool {
        let known = self.live.range(..=mapping.start).next_back().map(|(_, live)| &live.mapping);
        mapping.kind == MappingKind::Anonymous
            && known.is_some_and(|known| {
                known.kind == mapping.kind && known.prot == mapping.prot && known.end >= mapping.end
            })
    }

    /// Ends whatever lies in `start..end`; mappings that reach out of it keep the rest, with its file offset.
    pub fn unmap(&mut self, start: Avma, end: Avma, time: MonoNs) {
        let mut touched: Vec<Avma> = Vec::new();
        for (at, live) in self.live.range(..end).rev() {
            if live.mapping.end <= start {
                // Mappings do not overlap, so everything before this one ends before it, too.
                break;
            }
            touched.push(*at);
        }
        for at in touched {
            let Some(old) = Arc::make_mut(&mut self.live).remove(&at) else {
                continue;
            };
            let parts = [(Avma(0), start), (end, Avma(u64::MAX))];
            for part in parts.into_iter().filter_map(|(from, to)| old.mapping.clipped(from, to)) {
                self.insert(part, old.from);
            }
            if let Some(mapping) = old.mapping.clipped(start, end) {
                self.remember(Ended { mapping, from: old.from, until: time });
            }
        }
    }

    /// Ends every mapping: a new program begins at `time`.
    pub fn exec(&mut self, time: MonoNs) {
        if time < self.snapshot_time {
            return;
        }
        for old in std::mem::take(&mut self.live).values() {
            self.remember(Ended { mapping: old.mapping.clone(), from: old.from, until: time });
        }
    }

    /// What a child made at `time` inherits. The past is not copied: the child has no samples from before.
    pub fn fork(&self, time: MonoNs) -> Self {
        let inherited_until = time.max(self.snapshot_time);
        Self { live: Arc::clone(&self.live), snapshot_time: time, inherited_until, ..Self::default() }
    }

    /// The mapping that covered `addr` at `time`. Live mappings cost a tree look-up; the past is walked from its end.
    pub fn lookup(&self, addr: Avma, time: MonoNs) -> Option<&Mapping> {
        let live = self.live.range(..=addr).next_back().map(|(_, live)| live);
        let known = time.max(self.inherited_until);
        if let Some(live) = live.filter(|live| live.mapping.contains(addr) && live.from <= known) {
            return Some(&live.mapping);
        }
        self.ended
            .iter()
            .rev()
            .find(|old| old.from <= known && time < old.until && old.mapping.contains(addr))
            .map(|old| &old.mapping)
    }

    /// The executable mappings of now, by ascending address.
    pub fn live(&self) -> impl Iterator<Item = &Mapping> {
        self.live.values().map(|live| &live.mapping)
    }

    /// Mappings that were forgotten because more than the bounds allow ended or lived.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    fn insert(&mut self, mapping: Mapping, from: MonoNs) {
        if self.live.len() >= MAX_LIVE {
            self.forgotten += 1;
            return;
        }
        Arc::make_mut(&mut self.live).insert(mapping.start, Live { mapping, from });
    }

    fn end_at(&mut self, start: Avma, time: MonoNs) {
        if let Some(old) = Arc::make_mut(&mut self.live).remove(&start) {
            self.remember(Ended { mapping: old.mapping, from: old.from, until: time });
        }
    }

    /// Mappings that are remembered, living and ended.
    pub fn size(&self) -> usize {
        self.live.len() + self.ended.len()
    }

    /// Forgets mappings that ended before `time`.
    pub fn forget_before(&mut self, time: MonoNs) {
        while self.ended.front().is_some_and(|old| old.until < time) {
            self.ended.pop_front();
        }
        if self.ended.capacity() > 64 && self.ended.len() < self.ended.capacity() / 4 {
            self.ended.shrink_to_fit();
        }
    }

    fn remember(&mut self, old: Ended) {
        if self.ended.len() == MAX_ENDED {
            self.ended.pop_front();
            self.forgotten += 1;
        }
        self.ended.push_back(old);
    }
}

/// Whether two descriptions mean the same mapping, although only one of them may know the generation, or the deletion.
fn same_object(a: &Mapping, b: &Mapping) -> bool {
    a.start == b.start
        && a.end == b.end
        && a.kind == b.kind
        && a.file_offset == b.file_offset
        // Events with build ids do not know the inode.
        && (a.inode == b.inode || a.inode == 0 || b.inode == 0)
}
