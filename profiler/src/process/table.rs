//! Pid to process, over pid reuse, fork and exec.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::process::event::{MmapEvent, TaskChange, TaskEvent};
use crate::process::procfs::{self, ProcError};
use crate::process::space::AddressSpace;
use crate::process::sys;
use crate::units::{MonoNs, Pid, Tid};

/// Processes that have ended and are kept for samples that arrive late: those of two seconds at 2,000 forks a second.
const MAX_PAST: usize = 4096;
/// Their mappings together, 20 MB: a child that calls exec leaves its parent's behind, 30 or so.
const MAX_PAST_MAPPINGS: usize = 1 << 17;
/// Live processes; more than `pid_max`'s default.
const MAX_LIVE: usize = 1 << 16;
/// Threads that are kept of one process; the end of one with more may be seen early, and it is then attached again.
const MAX_THREADS: usize = 1 << 14;

/// Which process: pids are reused, so a pid alone is none.
///
/// `start` is as first learned in this run (from /proc in steps of 10 ms, from a fork event exactly) and does not
/// change afterwards; compare it only with ids from the same [`Processes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessId {
    /// The number.
    pub pid: Pid,
    /// When it started.
    pub start: MonoNs,
}

impl ProcessId {
    /// Whether a process with this number and this start, as /proc gives it, is the same.
    pub fn has_start(self, start: MonoNs) -> bool {
        is_same_start(self.start, start)
    }

    /// Whether it still runs: asks /proc, and is not deceived by another process of the same number.
    pub fn runs(self) -> bool {
        procfs::stat(self.pid).is_ok_and(|stat| !stat.is_dead() && self.has_start(stat.start()))
    }
}

/// One process, alive or ended.
#[derive(Clone, Debug)]
pub struct Process {
    /// Its identity.
    pub id: ProcessId,
    /// Its parent at the time it was first seen, if it was seen to be made.
    pub parent: Option<ProcessId>,
    /// What it has mapped.
    pub space: AddressSpace,
    /// When it last ran exec(2), if that was seen.
    pub exec_time: Option<MonoNs>,
    /// When its last thread ended.
    pub exit_time: Option<MonoNs>,
    threads: HashMap<Tid, Arc<str>>,
    /// The name of the first thread when it ended; it may end before the other threads do.
    last_name: Option<Arc<str>>,
}

/// What was seen, and what was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProcessStats {
    /// Side-band events applied.
    pub events: u64,
    /// Side-band events that the kernel could not deliver.
    pub events_lost: u64,
    /// Events about processes that are not known.
    pub events_unknown_process: u64,
    /// Mappings whose range made no sense.
    pub bad_mappings: u64,
    /// Processes or threads left out because there were too many.
    pub over_limit: u64,
}

/// Every process that is or was followed.
#[derive(Debug, Default)]
pub struct Processes {
    live: FxHashMap<Pid, Process>,
    past: VecDeque<Process>,
    past_mappings: usize,
    stats: ProcessStats,
    stale: bool,
}

impl Processes {
    /// Without any process.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads a running process from /proc and follows it from now on. The side band must have been switched on
    /// before, so that nothing falls between the two. A process that is followed already is brought up to date.
    /// Cost: /proc/PID/maps, and a directory entry a thread.
    ///
    /// # Errors
    /// [`ProcError`]: it has gone, or may not be read.
    pub fn attach(&mut self, pid: Pid) -> Result<ProcessId, ProcError> {
        let time = sys::monotonic_now();
        let stat = procfs::stat(pid)?;
        let maps = procfs::maps(pid)?;
        let start = stat.start();
        let known = self.live.get_mut(&pid).filter(|known| is_same_start(known.id.start, start));
        if let Some(known) = known {
            known.space.reconcile(&maps, time);
            known.read_threads();
            return Ok(known.id);
        }
        let id = ProcessId { pid, start };
        let mut process = Process::new(id, AddressSpace::from_maps(&maps, time));
        process.threads.insert(Tid(pid.0), Arc::from(stat.comm));
        process.read_threads();
        self.add(process, time);
        Ok(id)
    }

    /// Applies one report of the side band. Reports should come in the order of their times; the kernel module sorts
    /// them across CPUs.
    pub fn apply(&mut self, event: &TaskEvent) {
        self.stats.events += 1;
        let time = event.time;
        match &event.change {
            TaskChange::Mmap(mmap) => self.apply_mmap(mmap, time),
            TaskChange::Comm { pid, tid, comm, exec } => {
                let Some(process) = self.known(*pid) else {
                    return;
                };
                if *exec {
                    process.exec(time);
                }
                let named = process.name_thread(*tid, Arc::clone(comm));
                self.stats.over_limit += u64::from(!named);
            }
            TaskChange::Fork { pid, parent_pid, tid, parent_tid } => {
                self.apply_fork((*pid, *tid), (*parent_pid, *parent_tid), time);
            }
            TaskChange::Exit { pid, tid } => self.apply_exit(*pid, *tid, time),
            TaskChange::Lost { count } => {
                self.stats.events_lost = self.stats.events_lost.saturating_add(*count);
                self.stale = true;
            }
        }
    }

    /// The process that had this pid at `time`. Samples that arrive with a time just outside of every known life (the
    /// start is known to 10 ms only) get the nearest one.
    pub fn at(&self, pid: Pid, time: MonoNs) -> Option<&Process> {
        let live = self.live.get(&pid);
        if let Some(live) = live.filter(|live| live.id.start <= time) {
            return Some(live);
        }
        let mut past = self.past.iter().filter(|old| old.id.pid == pid);
        past.clone().rfind(|old| old.id.start <= time).or(live).or_else(|| past.next())
    }

    /// The process by its identity, alive or ended.
    pub fn get(&self, id: ProcessId) -> Option<&Process> {
        let live = self.live.get(&id.pid).filter(|live| live.id == id);
        live.or_else(|| self.past.iter().rev().find(|old| old.id == id))
    }

    /// Whether a process is known and has not ended.
    pub fn is_live(&self, id: ProcessId) -> bool {
        self.live.get(&id.pid).is_some_and(|live| live.id == id)
    }

    /// The processes that have not ended, in no particular order.
    pub fn live(&self) -> impl Iterator<Item = &Process> {
        self.live.values()
    }

    /// Forgets processes that ended before `time`, but for those that `keep` names, and the mappings of living ones that
    /// ended before.
    pub fn forget_before(&mut self, time: MonoNs, keep: impl Fn(ProcessId) -> bool) {
        let mappings = &mut self.past_mappings;
        self.past.retain(|old| {
            let keeps = old.exit_time.is_none_or(|exit| exit >= time) || keep(old.id);
            if !keeps {
                *mappings = mappings.saturating_sub(old.space.size());
            }
            keeps
        });
        for process in self.live.values_mut() {
            process.space.forget_before(time);
        }
    }

    /// Ends the processes that are not among `running`, which was read after `time`: their exits were lost. Those that
    /// began since are left alone.
    pub fn end_missing(&mut self, running: &HashSet<Pid>, time: MonoNs) -> Vec<ProcessId> {
        let missing = |process: &&Process| !running.contains(&process.id.pid) && process.id.start < time;
        let ended: Vec<ProcessId> = self.live.values().filter(missing).map(|process| process.id).collect();
        for id in &ended {
            self.end(id.pid, time);
        }
        ended
    }

    /// All processes that are known, alive and ended.
    pub fn ids(&self) -> impl Iterator<Item = ProcessId> {
        self.live.values().chain(&self.past).map(|process| process.id)
    }

    /// Whether events were lost since the last call: then every process should be attached again.
    pub fn take_stale(&mut self) -> bool {
        std::mem::take(&mut self.stale)
    }

    /// What was seen, and what was lost.
    pub fn stats(&self) -> ProcessStats {
        self.stats
    }

    fn known(&mut self, pid: Pid) -> Option<&mut Process> {
        let process = self.live.get_mut(&pid);
        if process.is_none() {
            self.stats.events_unknown_process += 1;
        }
        process
    }

    fn apply_mmap(&mut self, mmap: &MmapEvent, time: MonoNs) {
        let Some(mapping) = mmap.to_mapping() else {
            self.stats.bad_mappings += 1;
            return;
        };
        if let Some(process) = self.known(mmap.pid) {
            process.space.mmap(mapping, time);
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
        let (parent_id, space) = (maker.id, maker.space.fork(time));
        // A snapshot of /proc may have been quicker than this report of the same birth.
        if self.live.get(&new.0).is_some_and(|known| is_same_start(known.id.start, time)) {
            return;
        }
        let mut child = Process::new(ProcessId { pid: new.0, start: time }, space);
        child.parent = Some(parent_id);
        child.threads.insert(new.1, comm);
        self.add(child, time);
    }

    fn apply_exit(&mut self, pid: Pid, tid: Tid, time: MonoNs) {
        let Some(process) = self.known(pid) else {
            return;
        };
        let name = process.threads.remove(&tid);
        if tid.0 == pid.0 {
            process.last_name = name;
        }
        if process.threads.is_empty() {
            self.end(pid, time);
        }
    }

    /// Moves a process to the past.
    fn end(&mut self, pid: Pid, time: MonoNs) {
        let Some(mut process) = self.live.remove(&pid) else {
            return;
        };
        process.exit_time = Some(time);
        self.past_mappings += process.space.size();
        self.past.push_back(process);
        while self.past.len() > MAX_PAST || (self.past_mappings > MAX_PAST_MAPPINGS && self.past.len() > 1) {
            let Some(oldest) = self.past.pop_front() else { break };
            self.past_mappings = self.past_mappings.saturating_sub(oldest.space.size());
        }
    }

    fn add(&mut self, process: Process, time: MonoNs) {
        let pid = process.id.pid;
        // Its exit was lost, or not yet read.
        self.end(pid, time);
        if self.live.len() >= MAX_LIVE {
            self.stats.over_limit += 1;
            return;
        }
        self.live.insert(pid, process);
    }
}

impl Process {
    fn new(id: ProcessId, space: AddressSpace) -> Self {
        Self { id, parent: None, space, exec_time: None, exit_time: None, threads: HashMap::new(), last_name: None }
    }

    /// The latest name of a thread; of the first thread also after its end.
    pub fn comm(&self, tid: Tid) -> Option<&Arc<str>> {
        let ended = self.last_name.as_ref().filter(|_| tid.0 == self.id.pid.0);
        self.threads.get(&tid).or(ended)
    }

    /// The threads that have not ended, in no particular order.
    pub fn threads(&self) -> impl Iterator<Item = Tid> {
        self.threads.keys().copied()
    }

    fn exec(&mut self, time: MonoNs) {
        self.space.exec(time);
        self.exec_time = Some(time);
        // exec ends every other thread, and the one that calls it becomes the leader.
        let leader = Tid(self.id.pid.0);
        self.threads.retain(|tid, _| *tid == leader);
    }

    /// Whether there was room for it.
    fn name_thread(&mut self, tid: Tid, comm: Arc<str>) -> bool {
        if self.threads.len() >= MAX_THREADS && !self.threads.contains_key(&tid) {
            return false;
        }
        self.threads.insert(tid, comm);
        true
    }

    /// A thread that is new here has its process' name until an event says otherwise: samples bring their own. That the
    /// process itself may have ended is for its exit event to say.
    fn read_threads(&mut self) {
        let Ok(tids) = procfs::threads(self.id.pid) else {
            return;
        };
        let name = self.comm(Tid(self.id.pid.0)).map_or_else(|| Arc::from(""), Arc::clone);
        for tid in tids.into_iter().take(MAX_THREADS) {
            self.threads.entry(tid).or_insert_with(|| Arc::clone(&name));
        }
    }
}

/// Whether two start times are the same but for the 10 ms steps in which /proc gives them.
fn is_same_start(a: MonoNs, b: MonoNs) -> bool {
    a.0.abs_diff(b.0) <= 20_000_000
}
