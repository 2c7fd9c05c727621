//! The executable mappings of one process, with the times at which each of them held.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use jitprof_common::units::{Avma, MonoNs};
use rustc_hash::FxHashMap;

use crate::engine::entry::is_c_library;
use crate::engine::link::{Link, Linked};
use crate::engine::mapped_paths::{PathUse, PathsOf};
use crate::process::{Mapping, MappingKind};

/// Ended mappings that are remembered for late samples. A look-up that finds no mapping walks those that ended later (4 µs
/// at most); a target that remaps faster loses the oldest, counted.
const MAX_ENDED: usize = 4096;
/// Live executable mappings that are kept of one process. The kernel allows 65,530 mappings of all kinds by default;
/// the largest seen (a .NET server) has 3,000 executable ones. They take 2.5 MB.
const MAX_LIVE: usize = 16 << 10;

/// Mappings that a process may make in a second, on average over one, before they are not followed one by one. A JIT that
/// maps pages one by one makes hundreds, the start of a large program 3,000.
const MAX_A_SECOND: u32 = 4096;
const SECOND_NS: u64 = 1_000_000_000;
/// How often a process that maps faster all the time is read as a whole.
const READ_AGAIN_NS: u64 = 5_000_000_000;

/// How fast a process maps.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    /// When the second began that is counted.
    begun: MonoNs,
    count: u32,
    is_too_fast: bool,
}

impl Pace {
    /// It maps something at `time`. Returns whether that is too much.
    fn note(&mut self, time: MonoNs) -> bool {
        if time.0.saturating_sub(self.begun.0) >= SECOND_NS {
            // Who has stopped for a second begins anew.
            let is_next = time.0.saturating_sub(self.begun.0) < 2 * SECOND_NS;
            let was_too_fast = self.count > MAX_A_SECOND / 2 && self.is_too_fast;
            *self = Self { begun: time, count: 0, is_too_fast: is_next && was_too_fast };
        }
        self.count = self.count.saturating_add(1);
        self.is_too_fast |= self.count > MAX_A_SECOND;
        self.is_too_fast
    }

    fn is_calm(&self, now: MonoNs) -> bool {
        !self.is_too_fast || now.0.saturating_sub(self.begun.0) >= 2 * SECOND_NS
    }
}

/// What is mapped where, at any time since the process was first seen. Only executable mappings are kept: samples
/// point at nothing else, and the sideband reports nothing else.
#[derive(Clone, Debug, Default)]
pub(super) struct AddressSpace {
    /// Keyed by start address; never overlapping. A child has its parent's until one of them changes it: most children
    /// call exec at once.
    live: Arc<BTreeMap<Avma, Mapped>>,
    /// In the order in which they ended: what a process had mapped at a time is what ended next, if it ended.
    ended: VecDeque<Ended>,
    /// Since when the BPF program goes by what is mapped at all.
    known_since: Option<MonoNs>,
    /// The sideband's reports from before this time are part of the snapshot.
    snapshot_time: MonoNs,
    /// What a child has inherited was there before its first sample.
    inherited_until: MonoNs,
    evicted: u64,
    /// When something that it had mapped was last left out, or its report lost, if it was not read as a whole since.
    left_out: Option<MonoNs>,
    /// Before this time, too, it may have had something mapped that is not known.
    unknown_until: MonoNs,
    pace: Pace,
    /// It has mapped faster than it is followed: what it has mapped since it was read is not known.
    is_incomplete: bool,
    /// When it was read again because of that.
    read_at: MonoNs,
    /// Whether the program has ever mapped a C library.
    has_mapped_c_library: bool,
}

/// A mapping, and the link to its file: one for each time that something was mapped. Parts of it have the same.
#[derive(Clone, Debug)]
pub(super) struct Mapped {
    pub(super) mapping: Mapping,
    pub(super) link: Arc<Link>,
    /// `None` where another path stands for it.
    path_use: Option<PathUse>,
    from: MonoNs,
}

impl Mapped {
    fn holds_file(&self) -> bool {
        matches!(self.link.get(), Some(Linked::File(_)))
    }

    fn release(&mut self) {
        if let Some(released) = self.link.released() {
            self.link = Arc::new(released);
        }
    }

    /// When it was mapped; `None` if it was there before anybody looked.
    pub(super) fn since(&self) -> Option<MonoNs> {
        (self.from.0 > 0).then_some(self.from)
    }
}

#[derive(Clone, Debug)]
struct Ended {
    mapped: Mapped,
    until: MonoNs,
    withdrawn: Withdrawn,
}

/// Until when the BPF program goes by an ended mapping: it learns of the end some milliseconds later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Withdrawn {
    /// Nothing has been published since.
    NotYet,
    /// With this publication, which is on its way.
    With(u64),
    /// Since then.
    At(MonoNs),
}

impl Withdrawn {
    fn by(self, time: MonoNs) -> bool {
        matches!(self, Self::At(at) if at <= time)
    }
}

/// Lists of mappings that hold no file any more, by the lists in whose place they stand: for one pass over processes.
#[derive(Debug, Default)]
pub(super) struct Released(FxHashMap<usize, Arc<BTreeMap<Avma, Mapped>>>);

/// Whether what was found at a place in some time is what was mapped there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// It was there all the time.
    Throughout,
    /// It began or ended in that time.
    InPart,
    /// It was not there.
    NotAtAll,
}

impl AddressSpace {
    /// From a snapshot begun at `time`. The mappings count from the beginning of time, because earlier samples have
    /// no better account of their addresses.
    pub(super) fn from_mappings(mappings: &[Mapping], time: MonoNs, paths: &mut PathsOf<'_>) -> Self {
        let mut space = Self { snapshot_time: time, ..Self::default() };
        for mapping in mappings.iter().filter(|mapping| mapping.prot.execute) {
            space.take_up(mapping.clone(), (MonoNs(0), time), paths);
        }
        space
    }

    /// What has ended holds no file any more.
    pub(super) fn release_ended(&mut self) {
        self.ended.iter_mut().for_each(|ended| ended.mapped.release());
    }

    /// Nor does what lives. However many have the list, it is copied once at most, and they have one still.
    pub(super) fn release_live(&mut self, released: &mut Released) {
        let (_, list) = self.shared();
        if let Some(known) = released.0.get(&list) {
            self.live = Arc::clone(known);
            return;
        }
        if self.live.values().any(Mapped::holds_file) {
            Arc::make_mut(&mut self.live).values_mut().for_each(Mapped::release);
        }
        released.0.insert(list, Arc::clone(&self.live));
    }

    /// Brings what is known in line with a snapshot begun at `time`, after events were lost: what is gone ends then,
    /// what is new begins then. What has changed since the snapshot is left as it is.
    pub(super) fn reconcile(&mut self, mappings: &[Mapping], time: MonoNs, paths: &mut PathsOf<'_>) {
        self.know_all(time);
        let mut fresh: BTreeMap<Avma, &Mapping> = BTreeMap::new();
        for mapping in mappings.iter().filter(|mapping| mapping.prot.execute) {
            fresh.insert(mapping.start, mapping);
        }
        let gone: Vec<Avma> = self
            .live
            .iter()
            .filter(|(_, live)| live.from <= time)
            .filter(|(start, live)| !fresh.get(start).is_some_and(|now| same_object(now, &live.mapping)))
            .map(|(start, _)| *start)
            .collect();
        for start in gone {
            self.end_at(start, time);
        }
        for (start, mapping) in fresh {
            let changed = self.overlapping(start, mapping.end).next().is_some()
                || self.ended.iter().rev().any(|old| {
                    old.until > time && old.mapped.mapping.start < mapping.end && start < old.mapped.mapping.end
                });
            if !changed {
                self.take_up(mapping.clone(), (time, time), paths);
            }
        }
        self.snapshot_time = self.snapshot_time.max(time);
    }

    fn overlapping(&self, start: Avma, end: Avma) -> impl Iterator<Item = Avma> {
        // Mappings do not overlap, so everything before the first that ends before `start` does so, too.
        let before = self.live.range(..end).rev();
        before.take_while(move |(_, live)| live.mapping.end > start).map(|(at, _)| *at)
    }

    /// Something was mapped at `time` over whatever was there; older mappings end or keep their other parts. Reports
    /// from before the snapshot are in it already and are left out, as are mappings that are not executable (whose
    /// only effect is that they end what they cover).
    pub(super) fn mmap(&mut self, mapping: Mapping, time: MonoNs, paths: &mut PathsOf<'_>) {
        if time < self.snapshot_time || mapping.is_empty() || self.is_made_executable_again(&mapping) {
            return;
        }
        self.unmap(mapping.start, mapping.end, time);
        if !mapping.prot.execute {
            return;
        }
        if self.pace.note(time) {
            // Whoever maps ten thousand times a second would use up what following all the others may cost.
            self.is_incomplete = true;
            self.leave_out(time);
            return;
        }
        self.take_up(mapping, (time, time), paths);
    }

    /// Whether it is to be read as a whole, because it has mapped faster than it is followed: when it does so no more, and
    /// now and then while it does.
    pub(super) fn take_incomplete(&mut self, now: MonoNs) -> bool {
        let is_due = self.pace.is_calm(now) || now.0.saturating_sub(self.read_at.0) >= READ_AGAIN_NS;
        if !(self.is_incomplete && is_due) {
            return false;
        }
        (self.is_incomplete, self.read_at) = (false, now);
        true
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
    pub(super) fn unmap(&mut self, start: Avma, end: Avma, time: MonoNs) {
        for at in self.overlapping(start, end).collect::<Vec<_>>() {
            let Some(old) = Arc::make_mut(&mut self.live).remove(&at) else {
                continue;
            };
            let (link, path_use) = (&old.link, &old.path_use);
            let part = |mapping| Mapped { mapping, link: Arc::clone(link), path_use: path_use.clone(), from: old.from };
            let rest = [(Avma(0), start), (end, Avma(u64::MAX))];
            for mapping in rest.into_iter().filter_map(|(from, to)| old.mapping.clipped(from, to)) {
                self.insert(part(mapping), time);
            }
            if let Some(mapping) = old.mapping.clipped(start, end) {
                self.remember(part(mapping), time);
            }
        }
    }

    /// Ends every mapping: a new program begins at `time`.
    pub(super) fn exec(&mut self, time: MonoNs) {
        if time < self.snapshot_time {
            return;
        }
        for old in std::mem::take(&mut self.live).values() {
            self.remember(old.clone(), time);
        }
        self.know_all(time);
        (self.pace, self.is_incomplete, self.has_mapped_c_library) = (Pace::default(), false, false);
    }

    /// What a child made at `time` inherits. The past is not copied: the child has no samples from before.
    pub(super) fn fork(&self, time: MonoNs) -> Self {
        let inherited_until = time.max(self.snapshot_time);
        Self {
            live: Arc::clone(&self.live),
            snapshot_time: time,
            inherited_until,
            left_out: self.left_out,
            is_incomplete: self.is_incomplete,
            has_mapped_c_library: self.has_mapped_c_library,
            ..Self::default()
        }
    }

    /// What covered `addr` at `time`. Live mappings cost a tree look-up; the past is walked from `time` on.
    pub(super) fn lookup(&self, addr: Avma, time: MonoNs) -> Option<&Mapped> {
        let live = self.live.range(..=addr).next_back().map(|(_, live)| live);
        let known = time.max(self.inherited_until);
        if let Some(live) = live.filter(|live| live.mapping.contains(addr) && live.from <= known) {
            return Some(live);
        }
        let mut later = self.ended.range(self.ended.partition_point(|old| old.until <= time)..);
        later.find(|old| old.mapped.from <= known && old.mapped.mapping.contains(addr)).map(|old| &old.mapped)
    }

    /// Whether it may have had something mapped at `time` that is not known: more than the bounds allow, or by a report that
    /// was lost.
    pub(super) fn may_lack(&self, time: MonoNs) -> bool {
        self.left_out.is_some() || time < self.unknown_until
    }

    /// What it has mapped until `time` may not be known.
    pub(super) fn lose(&mut self, time: MonoNs) {
        self.left_out = self.left_out.max(Some(time));
    }

    /// What it has mapped at `time` is known, but for what is left out from then on.
    fn know_all(&mut self, time: MonoNs) {
        if self.left_out.is_some_and(|at| at < time) {
            (self.left_out, self.unknown_until) = (None, self.unknown_until.max(time));
        }
    }

    fn leave_out(&mut self, time: MonoNs) {
        self.evicted += 1;
        self.lose(time);
    }

    /// Whether the BPF program went by another mapping when it unwound the code at `addr` at `time`: what is mapped there has
    /// taken the place of something else, and that was not known to it yet.
    ///
    /// Cost: a look at each of those that ended some milliseconds before `time`, which are mostly none, and a look-up if
    /// one of them had the address.
    pub(super) fn was_walked_as_another(&self, addr: Avma, time: MonoNs) -> bool {
        if self.known_since.is_none_or(|since| since > time) {
            return false;
        }
        let ended_by_then = self.ended.partition_point(|old| old.until <= time);
        // What ended first is withdrawn first.
        let mut known = self.ended.iter().take(ended_by_then).rev().take_while(|old| !old.withdrawn.by(time));
        let Some(old) = known.find(|old| old.mapped.mapping.contains(addr)) else { return false };
        let mapped = self.lookup(addr, time).filter(|mapped| mapped.since().is_some());
        mapped.is_some_and(|mapped| !has_same_rows(&old.mapped.mapping, &mapped.mapping))
    }

    /// What has ended is not in the list that becomes known with a publication.
    pub(super) fn withdraw_with(&mut self, publication: u64) {
        for old in self.ended.iter_mut().rev().take_while(|old| old.withdrawn == Withdrawn::NotYet) {
            old.withdrawn = Withdrawn::With(publication);
        }
    }

    /// Everything up to a publication is known since `at`; with the first one, so is what there was before.
    pub(super) fn confirm(&mut self, publication: u64, at: MonoNs) {
        self.known_since.get_or_insert(at);
        for old in self.ended.iter_mut().rev().take_while(|old| !matches!(old.withdrawn, Withdrawn::At(_))) {
            if matches!(old.withdrawn, Withdrawn::With(with) if with <= publication) {
                old.withdrawn = Withdrawn::At(at);
            }
        }
    }

    /// The mapping at `start` that a link belongs to, now or before.
    pub(super) fn of_link(&self, start: Avma, link: &Arc<Link>) -> Option<&Mapped> {
        let is_it = |mapped: &&Mapped| mapped.mapping.contains(start) && Arc::ptr_eq(&mapped.link, link);
        let live = self.live.range(..=start).next_back().map(|(_, live)| live).filter(is_it);
        let ended = || self.ended.iter().rev().map(|old| &old.mapped).find(is_it);
        live.or_else(ended)
    }

    /// By when the mapping that has this link had been mapped, if that is known: when it was, or when the process was read that
    /// had it already.
    pub(super) fn was_mapped_by(&self, start: Avma, link: &Arc<Link>) -> Option<MonoNs> {
        let read = Some(self.snapshot_time).filter(|time| time.0 > 0);
        self.of_link(start, link)?.since().or(read)
    }

    /// Gives a mapping that is still there a new link in place of one that led nowhere. Returns whether it is.
    pub(super) fn renew_link(&mut self, old: &Arc<Link>, new: &Arc<Link>) -> bool {
        let is_its = |mapped: &Mapped| Arc::ptr_eq(&mapped.link, old);
        if !self.live.values().any(is_its) {
            return false;
        }
        let live = Arc::make_mut(&mut self.live).values_mut();
        live.filter(|mapped| is_its(mapped)).for_each(|mapped| mapped.link = Arc::clone(new));
        true
    }

    /// Whether what the link belongs to was mapped at `start` from `begun` to `done`.
    pub(super) fn held(&self, start: Avma, link: &Arc<Link>, begun: MonoNs, done: MonoNs) -> Held {
        let is_it = |mapped: &Mapped| mapped.mapping.contains(start) && Arc::ptr_eq(&mapped.link, link);
        let known = begun.max(self.inherited_until);
        let live = self.live.range(..=start).next_back().map(|(_, live)| live).filter(|live| is_it(live));
        let (from, until) = match (live, self.ended.iter().rev().find(|old| is_it(&old.mapped))) {
            (Some(live), _) => (live.from, MonoNs(u64::MAX)),
            (None, Some(old)) => (old.mapped.from, old.until),
            (None, None) => return Held::NotAtAll,
        };
        if from <= known && until > done {
            Held::Throughout
        } else if from <= done && until > begun {
            Held::InPart
        } else {
            Held::NotAtAll
        }
    }

    /// Whether another file with the number of what the link belongs to was mapped there, too, in that time: the number was used
    /// again. What was read from `/proc` says nothing of that.
    pub(super) fn held_its_number_too(&self, start: Avma, link: &Arc<Link>, begun: MonoNs, done: MonoNs) -> bool {
        let Some(own) = self.of_link(start, link).map(|mapped| &mapped.mapping) else { return false };
        let is_another = |other: &Mapping| {
            let differs = own.generation.zip(other.generation).is_some_and(|(one, other)| one != other);
            (other.device, other.inode) == (own.device, own.inode) && differs
        };
        let live = self.live.range(..=start).next_back().map(|(_, live)| (live, MonoNs(u64::MAX)));
        let ended = self.ended.iter().map(|old| (&old.mapped, old.until));
        live.into_iter().chain(ended).any(|(mapped, until)| {
            let was_there = mapped.mapping.contains(start) && mapped.from <= done && until > begun;
            was_there && is_another(&mapped.mapping)
        })
    }

    /// The executable mappings of now, by ascending address.
    pub(super) fn live(&self) -> impl Iterator<Item = &Mapped> {
        self.live.values()
    }

    /// Mappings that were evicted because more than the bounds allow ended or lived, and those without their paths.
    pub(super) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Whether the program that runs has mapped a C library: then none is linked into it.
    pub(super) fn has_mapped_c_library(&self) -> bool {
        self.has_mapped_c_library
    }

    /// Takes up what is mapped since `from`, at `time`. Without room for its path another one stands for that, which is counted.
    fn take_up(&mut self, mut mapping: Mapping, (from, time): (MonoNs, MonoNs), paths: &mut PathsOf<'_>) {
        self.has_mapped_c_library |= is_c_library(&mapping.path);
        let path_use = paths.share(&mut mapping.path);
        self.evicted += u64::from(path_use.is_none());
        self.insert(Mapped { mapping, link: Arc::default(), path_use, from }, time);
    }

    fn insert(&mut self, mapped: Mapped, time: MonoNs) {
        if self.live.len() >= MAX_LIVE {
            self.leave_out(time);
            return;
        }
        Arc::make_mut(&mut self.live).insert(mapped.mapping.start, mapped);
    }

    fn end_at(&mut self, start: Avma, time: MonoNs) {
        if let Some(mapped) = Arc::make_mut(&mut self.live).remove(&start) {
            self.remember(mapped, time);
        }
    }

    /// Mappings that are remembered, living and ended.
    pub(super) fn size(&self) -> usize {
        self.live.len() + self.ended.len()
    }

    /// The living ones of them, which others may have, too, and which list they are: one for all who share it.
    pub(super) fn shared(&self) -> (usize, usize) {
        (self.live.len(), Arc::as_ptr(&self.live).addr())
    }

    /// How many have that list.
    pub(super) fn sharers(&self) -> usize {
        Arc::strong_count(&self.live)
    }

    /// Evicts mappings that ended before `time`.
    pub(super) fn evict_before(&mut self, time: MonoNs) {
        while self.ended.front().is_some_and(|old| old.until < time) {
            self.ended.pop_front();
        }
        if self.ended.capacity() > 64 && self.ended.len() < self.ended.capacity() / 4 {
            self.ended.shrink_to_fit();
        }
    }

    fn remember(&mut self, mapped: Mapped, until: MonoNs) {
        if self.ended.len() == MAX_ENDED
            && let Some(oldest) = self.ended.pop_front()
        {
            self.evicted += 1;
            self.unknown_until = self.unknown_until.max(oldest.until);
        }
        // Only the time of a snapshot may lie before that of the last event.
        let at = self.ended.iter().rposition(|old| old.until <= until).map_or(0, |last| last + 1);
        let withdrawn = self.ended.get(at).map_or(Withdrawn::NotYet, |next| next.withdrawn);
        self.ended.insert(at, Ended { mapped, until, withdrawn });
    }
}

/// Whether two mappings are walked by the same rules: those of generated code go by addresses, those of files by the file and
/// where it lies.
fn has_same_rows(a: &Mapping, b: &Mapping) -> bool {
    if a.may_hold_generated_code() && b.may_hold_generated_code() {
        return true;
    }
    let bias = |mapping: &Mapping| mapping.start.0.wrapping_sub(mapping.file_offset.0);
    // Only events know the generation; those with build ids do not know the inode.
    let is_same_file = if a.inode == 0 || b.inode == 0 { a.path == b.path } else { a.inode == b.inode };
    let is_same_generation = a.generation.zip(b.generation).is_none_or(|(a, b)| a == b);
    a.kind == b.kind && is_same_file && is_same_generation && bias(a) == bias(b)
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
