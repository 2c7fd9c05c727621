//! Pid to process, over pid reuse, fork and exec.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use jitprof_common::units::{MonoNs, Pid, Tid};
use rustc_hash::FxHashMap;

use crate::account::ProcessStats;
use crate::engine::border::ProcessRead;
use crate::engine::generated::{CodeBounds, CodeOptions, GeneratedCode};
use crate::engine::mapped_paths::{MappedPaths, PathsOf};
use crate::engine::past::Past;
use crate::engine::pending::Pending;
use crate::engine::process::{Process, ProgramState};
use crate::engine::space::AddressSpace;
use crate::process::ProcessId;
use crate::process::event::{MmapEvent, TaskChange, TaskEvent};

/// Processes that have ended and are kept for samples that arrive late: those of two seconds at 2,000 forks a second.
const MAX_PAST: usize = 4096;
/// Their mappings together, 20 MB: a child that calls exec leaves its parent's behind, 30 or so. What they share counts once.
const MAX_PAST_MAPPINGS: usize = 1 << 17;
/// Live processes; more than `pid_max`'s default.
const MAX_LIVE: usize = 1 << 16;
/// Processes that are being read for the first time.
const MAX_ARRIVING: usize = 1 << 14;
/// Task events that are kept for one of them.
const MAX_EARLY_EVENTS: usize = 4096;
/// A process that was gone when its sample came is looked for again after this: another one may have its pid.
const GONE_NS: u64 = 1_000_000_000;
/// How long after the end of a process its pid is sampled on its way out. A later sample is of another process that has
/// the pid by now, or shows that the end was seen too early.
const LATE_NS: u64 = 100_000_000;

/// A process that samples or orders have named and that nothing is known of yet.
#[derive(Debug, Default)]
pub(super) struct Arriving {
    /// What it did meanwhile.
    pub(super) events: Vec<TaskEvent>,
    /// Its samples.
    pub(super) samples: Vec<Pending>,
    /// Somebody wants to know that it is there.
    pub(super) awaited: bool,
}

/// Every process that is or was followed.
#[derive(Default)]
pub(super) struct Processes {
    /// By pid and start: the last one of a pid is the one that may be alive.
    all: BTreeMap<ProcessId, Box<Process>>,
    /// Those that a tick may have something to do for: whoever is changed is among them, until a tick finds him idle. Most
    /// processes of a host are, and are left alone.
    busy: BTreeSet<ProcessId>,
    /// Those that have ended, in the order in which they did: a work list, for who goes first.
    past: BTreeMap<u64, ProcessId>,
    /// Ends up to now.
    ends: u64,
    live: usize,
    arriving: FxHashMap<Pid, Arriving>,
    /// Processes that were gone before they could be read, and since when that is known.
    gone: FxHashMap<Pid, MonoNs>,
    /// Of these, the one that stands for each pid's samples.
    ghosts: FxHashMap<Pid, ProcessId>,
    /// Of what they have mapped.
    paths: MappedPaths,
    code: CodeOptions,
    stats: ProcessStats,
    stale: bool,
    /// When events were last lost, if the processes that may have made them have not noted it.
    lost_at: Option<MonoNs>,
    /// Ended because another one has their number, and nobody has taken note of it.
    replaced: Vec<ProcessId>,
}

impl Processes {
    /// Without any process.
    pub(super) fn new(code: CodeOptions) -> Self {
        Self { code, ..Self::default() }
    }

    /// Of each process so much code is kept from now on.
    pub(super) fn set_bounds(&mut self, bounds: CodeBounds) {
        self.code.bounds = Some(bounds);
        self.all.values_mut().for_each(|process| process.code.set_bounds(bounds));
    }

    /// The process that had this pid at `time`. Samples with a time just outside of every known life (the start is known
    /// to 10 ms only) get the nearest one.
    pub(super) fn at(&self, pid: Pid, time: MonoNs) -> Option<&Process> {
        let (first, then) = (ProcessId { pid, start: MonoNs(0) }, ProcessId { pid, start: time });
        let before = self.all.range(first..=then).rev().find(|(_, process)| !process.is_gone);
        let last = ProcessId { pid, start: MonoNs(u64::MAX) };
        let later = || self.all.range(then..=last).find(|(_, process)| !process.is_gone);
        before.or_else(later).map(|(_, process)| &**process)
    }

    /// The process that a sample is of: as [`Processes::at`], but none that had ended long before.
    pub(super) fn sampled(&self, pid: Pid, time: MonoNs) -> Option<&Process> {
        let has_ended = |exit: MonoNs| time.0.saturating_sub(exit.0) > LATE_NS;
        self.at(pid, time).filter(|process| !process.exit_time.is_some_and(has_ended))
    }

    /// The process by its identity, alive or ended.
    pub(super) fn get(&self, id: ProcessId) -> Option<&Process> {
        self.all.get(&id).map(|process| &**process)
    }

    /// The same, to be changed.
    pub(super) fn get_mut(&mut self, id: ProcessId) -> Option<&mut Process> {
        let process = self.all.get_mut(&id)?;
        self.busy.insert(id);
        Some(process)
    }

    /// The same, with what room it has for the paths of what it maps.
    fn with_paths(&mut self, id: ProcessId) -> Option<(&mut Process, PathsOf<'_>)> {
        let process = &mut **self.all.get_mut(&id)?;
        self.busy.insert(id);
        let paths = self.paths.of(process.holder());
        Some((process, paths))
    }

    /// Two processes at once.
    pub(super) fn pair_mut(&mut self, a: ProcessId, b: ProcessId) -> Option<(&mut Process, &mut Process)> {
        if a == b {
            return None;
        }
        let (low, high) = if a < b { (a, b) } else { (b, a) };
        let mut range = self.all.range_mut(low..=high);
        let (first, second) = (range.next()?, range.next_back()?);
        if *first.0 != low || *second.0 != high {
            return None;
        }
        let (first, second) = (&mut **first.1, &mut **second.1);
        self.busy.extend([a, b]);
        Some(if a < b { (first, second) } else { (second, first) })
    }

    /// Whether a process is known and has not ended.
    pub(super) fn is_live(&self, id: ProcessId) -> bool {
        self.get(id).is_some_and(Process::is_live)
    }

    /// The live process of a pid.
    pub(super) fn live_of(&self, pid: Pid) -> Option<&Process> {
        self.at(pid, MonoNs(u64::MAX)).filter(|process| process.is_live())
    }

    /// All processes, alive and ended, by pid.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Process> {
        self.all.values().map(|process| &**process)
    }

    /// The same, to be changed in what makes none of them busy that is not, see [`Process::is_idle`].
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Process> {
        self.all.values_mut().map(|process| &mut **process)
    }

    /// Those that a tick may have something to do for, by pid.
    pub(super) fn busy(&self) -> impl Iterator<Item = &Process> {
        self.busy.iter().filter_map(|id| self.get(*id))
    }

    /// The same, to be changed.
    pub(super) fn busy_mut(&mut self) -> impl Iterator<Item = &mut Process> {
        let mut busy = self.busy.iter().peekable();
        self.all.iter_mut().filter_map(move |(id, process)| {
            while busy.next_if(|next| *next < id).is_some() {}
            let is_busy = busy.next_if(|next| *next == id).is_some();
            is_busy.then_some(&mut **process)
        })
    }

    /// Leaves those alone from now on that there is nothing to do for. With every tick.
    pub(super) fn leave_idle(&mut self) {
        let all = &self.all;
        self.busy.retain(|id| all.get(id).is_some_and(|process| !process.is_idle()));
    }

    /// There is something to do for all of them.
    pub(super) fn make_all_busy(&mut self) {
        self.busy.extend(self.all.keys());
    }

    /// How many have not ended.
    pub(super) fn live_count(&self) -> usize {
        self.live
    }

    /// Whether an event is about a process that is known or will be.
    pub(super) fn concern(&self, event: &TaskEvent) -> bool {
        let known = |pid: &Pid| self.live_of(*pid).is_some() || self.arriving.contains_key(pid);
        match &event.change {
            TaskChange::Mmap(mmap) => known(&mmap.pid),
            TaskChange::Comm { pid, .. } | TaskChange::Exit { pid, .. } => known(pid),
            TaskChange::Fork { pid, parent_pid, .. } => known(pid) || known(parent_pid),
            TaskChange::Lost { .. } => true,
        }
    }

    /// Events of processes that are not known.
    pub(super) fn count_unconcerned(&mut self, events: u64) {
        self.stats.events += events;
        self.stats.events_unknown_process += events;
    }

    /// A child was refused a copy of its parent's code. Returns whether it is the first one.
    pub(super) fn count_refused_copy(&mut self) -> bool {
        self.stats.copies_refused += 1;
        self.stats.copies_refused == 1
    }

    /// Waits for a process to be read; returns what waits for it, and whether it has to be asked for. `None` if there are
    /// too many, or it was gone a moment ago.
    pub(super) fn arrive(&mut self, pid: Pid, now: MonoNs) -> Option<(&mut Arriving, bool)> {
        let gone = self.gone.get(&pid).is_some_and(|since| now.0.saturating_sub(since.0) < GONE_NS);
        let asked = self.arriving.contains_key(&pid);
        if gone || (!asked && self.arriving.len() >= MAX_ARRIVING) {
            return None;
        }
        Some((self.arriving.entry(pid).or_default(), !asked))
    }

    /// Every sample that waits, those of processes that are being read included.
    pub(super) fn pending_mut(&mut self) -> impl Iterator<Item = &mut Pending> {
        let arriving = self.arriving.values_mut().flat_map(|arriving| &mut arriving.samples);
        self.all.values_mut().flat_map(|process| process.queue.iter_mut()).chain(arriving)
    }

    /// Those samples of processes that are being read for the first time which are meant, by pid.
    pub(super) fn take_arriving_samples(&mut self, is_meant: impl Fn(&Pending) -> bool) -> Vec<(Pid, Pending)> {
        let mut taken: Vec<(Pid, Pending)> = Vec::new();
        for (pid, arriving) in &mut self.arriving {
            let meant = arriving.samples.extract_if(.., |sample| is_meant(sample));
            taken.extend(meant.map(|sample| (*pid, sample)));
        }
        taken.sort_by_key(|(pid, sample)| (*pid, sample.time));
        taken
    }

    /// The samples of processes that are being read for the first time.
    pub(super) fn arriving_samples(&self) -> impl Iterator<Item = &Pending> {
        self.arriving.values().flat_map(|arriving| &arriving.samples)
    }

    /// Whether samples from before a time wait for their process to be read.
    pub(super) fn awaits_before(&self, time: MonoNs) -> bool {
        self.arriving.values().any(|arriving| arriving.samples.iter().any(|sample| sample.time < time))
    }

    /// Processes that are being read for the first time.
    pub(super) fn arriving(&self) -> usize {
        self.arriving.len()
    }

    /// Takes up a process that was read at `time`. A process that is known already is brought up to date. Returns it, and
    /// what has waited for it, whose events are to be applied now.
    pub(super) fn take(&mut self, pid: Pid, read: &ProcessRead, time: MonoNs) -> (Option<ProcessId>, Option<Arriving>) {
        let arriving = self.arriving.remove(&pid);
        let mappings = read.mappings.as_deref().unwrap_or_default();
        let last = self.at(pid, MonoNs(u64::MAX)).filter(|known| is_same_start(known.id.start, read.start));
        let known = last.map(|known| known.id);
        if let Some(ended) = last.filter(|known| !known.is_live()) {
            if read.is_dead || ended.exit_time.is_some_and(|exit| time <= exit) {
                // It was read before its end came.
                return (known, arriving);
            }
            // Its end was seen too early: not all of its threads were known.
            known.into_iter().for_each(|id| self.revive(id));
        }
        if let Some((process, mut paths)) = known.and_then(|id| self.with_paths(id)) {
            if process.runs_since() < time {
                process.take_program(read);
            }
            if read.mappings.is_some() {
                process.space.reconcile(mappings, time, &mut paths);
                process.take_threads(read);
            }
            return (known, arriving);
        }
        if read.mappings.is_none() {
            return (None, arriving);
        }
        let id = ProcessId { pid, start: read.start };
        let mut process = Process::new(id, AddressSpace::default(), GeneratedCode::new(self.code));
        process.name_thread(Tid(pid.0), Arc::from(&*read.comm));
        process.take_program(read);
        process.take_threads(read);
        process.space = AddressSpace::from_mappings(mappings, time, &mut self.paths.of(process.holder()));
        let added = self.add(process, time);
        (added.then_some(id), arriving)
    }

    /// A process was gone before it could be read. Returns what has waited for it.
    pub(super) fn take_gone(&mut self, pid: Pid, now: MonoNs) -> Option<Arriving> {
        let arriving = self.arriving.remove(&pid)?;
        self.gone.insert(pid, now);
        Some(arriving)
    }

    /// A process of which nothing is known but that it is gone, for samples of it that were taken at `time`. One that is being
    /// read may well be there: what is sampled of it next waits for that.
    pub(super) fn add_gone(&mut self, pid: Pid, time: MonoNs, now: MonoNs) -> ProcessId {
        let id = ProcessId { pid, start: time };
        let known = self.ghosts.get(&pid).filter(|id| self.all.contains_key(id)).copied();
        if let Some(known) = known.or_else(|| self.all.contains_key(&id).then_some(id)) {
            return known;
        }
        let mut process = Process::new(id, AddressSpace::default(), GeneratedCode::new(self.code));
        process.is_gone = true;
        process.exit_time = Some(now);
        process.program = ProgramState::Unreadable;
        if !self.arriving.contains_key(&pid) {
            self.gone.insert(pid, now);
        }
        self.ghosts.insert(pid, id);
        self.ends += 1;
        process.ended_as = self.ends;
        self.past.insert(self.ends, id);
        self.all.insert(id, Box::new(process));
        self.busy.insert(id);
        id
    }

    /// Applies what a process did while it was read.
    pub(super) fn apply_early(&mut self, event: &TaskEvent) -> Option<ProcessId> {
        // It was counted when it came.
        let stats = self.stats;
        let ended = self.apply(event);
        self.stats = stats;
        ended
    }

    /// Applies one report of the sideband. Reports should come in the order of their times. Returns the process that has
    /// ended by it.
    pub(super) fn apply(&mut self, event: &TaskEvent) -> Option<ProcessId> {
        let time = event.time;
        self.stats.events += 1;
        if let Some(pid) = subject(event)
            && let Some(arriving) = self.arriving.get_mut(&pid)
        {
            // It is being read: whether the snapshot has this already, its time will tell.
            if arriving.events.len() < MAX_EARLY_EVENTS {
                arriving.events.push(event.clone());
            } else {
                self.stale = true;
            }
        }
        match &event.change {
            TaskChange::Mmap(mmap) => self.apply_mmap(mmap, time),
            TaskChange::Comm { pid, tid, comm, exec } => {
                let process = self.known(*pid)?;
                if *exec {
                    process.exec(time);
                }
                let named = process.name_thread(*tid, Arc::clone(comm));
                self.stats.over_limit += u64::from(!named);
            }
            TaskChange::Fork { pid, parent_pid, tid, parent_tid } => {
                self.apply_fork((*pid, *tid), (*parent_pid, *parent_tid), time);
            }
            TaskChange::Exit { pid, tid } => {
                let process = self.known(*pid)?;
                let id = process.id;
                if process.end_thread(*tid) {
                    self.end(id, time);
                    return Some(id);
                }
            }
            TaskChange::Lost { count } => {
                self.stats.events_lost = self.stats.events_lost.saturating_add(*count);
                (self.stale, self.lost_at) = (true, self.lost_at.max(Some(time)));
            }
        }
        None
    }

    /// Asserts that the counts are those of what they count, and within their bounds.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn assert_sound(&self) {
        assert_eq!(self.live, self.iter().filter(|process| process.is_live()).count());
        let ended = self.iter().filter(|process| !process.is_live());
        let ended: BTreeMap<u64, ProcessId> = ended.map(|process| (process.ended_as, process.id)).collect();
        assert_eq!(self.past, ended, "every ended process can be evicted, and no other one");
        let is_left = |process: &Process| !self.busy.contains(&process.id);
        let mut left_alone = self.iter().filter(|process| is_left(process));
        assert!(left_alone.all(Process::is_idle), "who has something to do is known");
        assert!(self.busy.iter().all(|id| self.all.contains_key(id)));
        assert!(self.live <= MAX_LIVE && self.arriving.len() <= MAX_ARRIVING);
        assert!(self.arriving.values().all(|arriving| arriving.events.len() <= MAX_EARLY_EVENTS));
        self.paths.assert_sound();
    }

    /// Ends a process at `time`, if it has not ended.
    pub(super) fn end(&mut self, id: ProcessId, time: MonoNs) {
        let Some(process) = self.all.get_mut(&id).filter(|process| process.is_live()) else { return };
        process.exit_time = Some(time);
        self.ends += 1;
        process.ended_as = self.ends;
        self.past.insert(self.ends, id);
        self.live = self.live.saturating_sub(1);
    }

    /// A process has not ended after all.
    fn revive(&mut self, id: ProcessId) {
        let Some(process) = self.all.get_mut(&id).filter(|process| !process.is_live()) else { return };
        (process.exit_time, process.has_released) = (None, false);
        process.begin_anew();
        self.busy.insert(id);
        self.past.remove(&process.ended_as);
        self.live += 1;
    }

    /// Processes whose exits were lost: those that are not among `running`, which was read after `time`. Those that began
    /// since are left alone.
    pub(super) fn missing(&self, running: &HashSet<Pid>, time: MonoNs) -> Vec<ProcessId> {
        let live = self.iter().filter(|process| process.is_live());
        let missing = live.filter(|process| !running.contains(&process.id.pid) && process.id.start < time);
        missing.map(|process| process.id).collect()
    }

    /// Ended processes without which it goes on: those that ended before `time` and have no samples, and, if the others are
    /// too many, some of whoever has the most of them.
    pub(super) fn evictable(&self, time: MonoNs) -> Vec<ProcessId> {
        let is_old = |process: &&Process| process.exit_time.is_none_or(|exit| exit < time) && process.queue.is_empty();
        let (old, others): (Vec<&Process>, Vec<&Process>) = self.ended().partition(is_old);
        let mut found: Vec<ProcessId> = old.into_iter().map(|process| process.id).collect();
        found.extend(Past::of(others.into_iter()).surplus(MAX_PAST, MAX_PAST_MAPPINGS));
        found
    }

    /// Whether ended processes take more room than they may, or room that others need.
    pub(super) fn is_crowded(&self) -> bool {
        let has_too_many = self.past.len() > MAX_PAST || Past::of(self.ended()).mappings() > MAX_PAST_MAPPINGS;
        has_too_many || self.paths.is_short()
    }

    /// Drops paths that nobody has mapped any more. About every second.
    pub(super) fn sweep_paths(&mut self) {
        self.paths.sweep();
    }

    /// Those that have ended, in the order in which they did.
    fn ended(&self) -> impl Iterator<Item = &Process> {
        self.past.values().filter_map(|id| self.get(*id))
    }

    /// Processes in whose place another one with their number was found since the last call, and which have ended by it.
    pub(super) fn take_replaced(&mut self) -> Vec<ProcessId> {
        std::mem::take(&mut self.replaced)
    }

    /// Evicts a process that has ended, and everything that is known of it.
    pub(super) fn evict(&mut self, id: ProcessId) {
        self.busy.remove(&id);
        if let Some(process) = self.all.remove(&id) {
            self.stats.mappings_evicted += process.space.evicted();
            self.past.remove(&process.ended_as);
        }
    }

    /// Evicts mappings that ended before `time`, and pids that were gone long ago.
    pub(super) fn evict_before(&mut self, time: MonoNs, now: MonoNs) {
        self.gone.retain(|_, since| now.0.saturating_sub(since.0) < GONE_NS);
        self.ghosts.retain(|pid, _| self.gone.contains_key(pid));
        for process in self.all.values_mut().filter(|process| process.is_live()) {
            process.space.evict_before(time);
        }
    }

    /// Whether events were lost since the last call: then every process should be read again.
    pub(super) fn take_stale(&mut self) -> bool {
        if let Some(time) = self.lost_at.take() {
            let live = self.all.values_mut().filter(|process| process.is_live());
            live.for_each(|process| process.space.lose(time));
        }
        std::mem::take(&mut self.stale)
    }

    /// What was seen, and what was lost.
    pub(super) fn stats(&self) -> ProcessStats {
        let evicted = self.all.values().map(|process| process.space.evicted());
        ProcessStats { mappings_evicted: self.stats.mappings_evicted + evicted.sum::<u64>(), ..self.stats }
    }

    fn known(&mut self, pid: Pid) -> Option<&mut Process> {
        let id = self.live_of(pid).map(|process| process.id);
        if id.is_none() {
            self.stats.events_unknown_process += 1;
        }
        self.get_mut(id?)
    }

    fn apply_mmap(&mut self, mmap: &MmapEvent, time: MonoNs) {
        let Some(mapping) = mmap.to_mapping() else {
            self.stats.bad_mappings += 1;
            return;
        };
        let Some(id) = self.known(mmap.pid).map(|process| process.id) else { return };
        if let Some((process, mut paths)) = self.with_paths(id) {
            process.space.mmap(mapping, time, &mut paths);
        }
    }

    fn apply_fork(&mut self, new: (Pid, Tid), parent: (Pid, Tid), time: MonoNs) {
        let Some(maker) = self.known(parent.0) else {
            return;
        };
        let comm = maker.comm(parent.1).map_or_else(|| Arc::from(""), Arc::clone);
        if new.0 == parent.0 {
            let named = maker.name_thread(new.1, comm);
            self.stats.over_limit += u64::from(!named);
            return;
        }
        let (parent_id, payer, space) = (maker.id, maker.payer, maker.space.fork(time));
        // A snapshot of /proc may have been quicker than this report of the same fork.
        if self.live_of(new.0).is_some_and(|known| is_same_start(known.id.start, time)) {
            return;
        }
        let id = ProcessId { pid: new.0, start: time };
        let mut child = Process::new(id, space, GeneratedCode::new(self.code));
        child.parent = Some(parent_id);
        child.parent_pid = parent_id.pid;
        child.payer = payer;
        child.name_thread(new.1, comm);
        self.add(child, time);
    }

    /// Returns whether there was room for it.
    fn add(&mut self, mut process: Process, time: MonoNs) -> bool {
        let pid = process.id.pid;
        // Its exit was lost, or not yet read.
        if let Some(before) = self.live_of(pid).map(|process| process.id) {
            self.end(before, time);
            self.replaced.push(before);
        }
        if self.live >= MAX_LIVE {
            self.stats.over_limit += 1;
            return false;
        }
        // What stands for samples of a process that was gone may have the same time.
        self.revive(process.id);
        match self.all.get_mut(&process.id) {
            Some(before) => process.queue = std::mem::take(&mut before.queue),
            None => self.live += 1,
        }
        self.gone.remove(&pid);
        self.ghosts.remove(&pid);
        self.busy.insert(process.id);
        self.all.insert(process.id, Box::new(process));
        true
    }

    /// What names processes here, and how many.
    #[cfg(test)]
    pub(super) fn rooms(&self) -> [(&'static str, usize); 8] {
        let children = self.iter().map(|process| process.children.len() + process.waiting_children.len());
        [
            ("processes", self.all.len()),
            ("busy processes", self.busy.len()),
            ("ended processes", self.past.len()),
            ("children", children.sum()),
            ("arriving", self.arriving.len()),
            ("gone", self.gone.len()),
            ("ghosts", self.ghosts.len()),
            ("replaced", self.replaced.len()),
        ]
    }
}

/// The process that an event is about, apart from one that is made by it.
fn subject(event: &TaskEvent) -> Option<Pid> {
    match &event.change {
        TaskChange::Mmap(mmap) => Some(mmap.pid),
        TaskChange::Comm { pid, .. } | TaskChange::Exit { pid, .. } => Some(*pid),
        TaskChange::Fork { pid, parent_pid, .. } => (pid == parent_pid).then_some(*pid),
        TaskChange::Lost { .. } => None,
    }
}

/// Whether two start times are the same but for the 10 ms steps in which /proc gives them.
fn is_same_start(a: MonoNs, b: MonoNs) -> bool {
    a.0.abs_diff(b.0) <= 20_000_000
}
