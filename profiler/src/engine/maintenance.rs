//! Keeps a recording small: what belongs to processes that have gone goes, what nobody asks for any more is evicted, and
//! no process takes the room of the others.

use std::collections::VecDeque;
use std::time::Duration;

use jitprof_common::units::{MonoNs, Pid};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::account::LearnStats;
use crate::engine::border::{Output, Request};
use crate::engine::files::Files;
use crate::engine::generated::CodeBounds;
use crate::engine::process::Process;
use crate::engine::requests::{Purpose, Requests};
use crate::engine::resolving::Resolving;
use crate::engine::space::Released;
use crate::engine::tracking::{Parts, Tracking};
use crate::process::ProcessId;
use crate::symbol::SymbolBudget;

/// Code that ended this long ago is evicted when no waiting sample is older.
const KEEP_ENDED_NS: u64 = 10_000_000_000;
/// How long ago code must have ended so that no sample that is still on its way asks for it.
const ON_ITS_WAY_NS: u64 = 1_000_000_000;
/// How long a process is remembered after its end: its last samples come with the next tick.
const KEEP_PAST_NS: u64 = 3_000_000_000;
/// Between two looks at the names that nobody has asked for, and at who is running.
const NAMES_EVERY_NS: u64 = 10_000_000_000;
const SWEEP_EVERY_NS: u64 = 60_000_000_000;
/// How long after its end a process still holds its files: samples of it may come.
const RELEASE_NS: u64 = 500_000_000;
/// How long after a look for those that run that did not come to an end.
const RUNNING_AGAIN_NS: u64 = 5_000_000_000;
/// Between two times that all processes are read again because task events were lost, and how many a tick: each takes
/// up to a millisecond.
const REFRESH_EVERY_NS: u64 = 5_000_000_000;
const REFRESH_PER_TICK: usize = 8;
/// Names that are kept, used or not; each takes some 300 bytes.
const KEPT_NAMES: usize = 16 << 10;
/// Looks after which a name that nobody has asked for goes: five minutes.
const NAME_TURNS: u32 = 30;
/// Bytes of the profile's tables, and frames remembered for it, above which they are made anew after a window.
const MAX_PROFILE_BYTES: usize = 8 << 20;
const MAX_REMEMBERED: usize = 64 << 10;
/// Memory that the announced code of all processes may take in a continuous recording; beyond it, the process that
/// takes the most takes up no more. Tests have less.
pub(super) const ALL_CODE_BYTES: usize = if cfg!(test) { 10 << 20 } else { 40 << 20 };
/// Bytes of records that are not whole, of the dumps of all processes, and how many are given up in a tick. One record has
/// 16 MiB at most.
pub(super) const MAX_TORN_BYTES: usize = if cfg!(test) { 2 << 20 } else { 64 << 20 };
const MAX_GIVEN_UP: usize = 256;
/// Under pressure, a part of everything that can be had again.
const TIGHT: u64 = 4;

/// What is due.
#[derive(Debug, Default)]
pub(super) struct Maintenance {
    continuous: bool,
    /// Memory is short.
    is_tight: bool,
    names_at: MonoNs,
    swept_at: MonoNs,
    /// Processes to be read again: a work list.
    refresh: VecDeque<Pid>,
    refreshed_at: MonoNs,
    /// When those were asked for again that could not be read in time.
    reread_at: MonoNs,
    /// Task events were lost.
    is_stale: bool,
    /// When it is asked again who runs, because there was no answer.
    running_at: Option<MonoNs>,
    learned: LearnStats,
}

impl Maintenance {
    /// From here on the recording is continuous.
    pub(super) fn begin_continuous(&mut self, requests: &mut Requests) {
        (self.continuous, self.names_at, self.swept_at) = (true, requests.now, requests.now);
        requests.output(Output::SymbolBudget(SymbolBudget::CONTINUOUS));
        requests.output(Output::BuildInBackground);
    }

    /// About every second.
    pub(super) fn run(&mut self, tracking: &mut Tracking, resolving: &mut Resolving, parts: &mut Parts<'_>) {
        let now = parts.requests.now;
        evict_code(tracking, now);
        release_files(tracking, now);
        if self.continuous || tracking.processes.is_crowded() {
            self.evict_processes(tracking, resolving, parts);
        }
        tracking.processes.sweep_paths();
        if !self.continuous {
            return;
        }
        resolving.compact_stacks(&mut tracking.processes);
        self.bound_code(tracking, parts.requests);
        if now.0.saturating_sub(self.names_at.0) >= NAMES_EVERY_NS {
            self.names_at = now;
            resolving.names.evict_unused(KEPT_NAMES, NAME_TURNS);
        }
        if now.0.saturating_sub(self.swept_at.0) >= SWEEP_EVERY_NS {
            self.swept_at = now;
            parts.requests.ask(Purpose::Running, Request::Running);
            parts.requests.output(Output::GiveMemoryBack);
        }
    }

    /// Code that waiting samples may ask for stays where there is little room; they do not wait for answers while new code
    /// finds none.
    pub(super) fn keep_code(tracking: &mut Tracking, resolving: &mut Resolving, files: &Files, now: MonoNs) {
        let recent = MonoNs(now.0.saturating_sub(ON_ITS_WAY_NS));
        let mut full = Vec::new();
        for process in tracking.processes.busy_mut() {
            // To look at all that wait is only worth it where something may have to go.
            let queue = &process.queue;
            let oldest = if process.code.is_half_full() { queue.oldest() } else { queue.first() };
            let from = oldest.map_or(recent, |oldest| oldest.min(recent));
            process.code.keep_from(from);
            if process.code.refuses_more() && from < recent {
                full.push(process.id);
            }
        }
        for id in full {
            resolving.resolve_all_of(&mut tracking.processes, id, files);
            if let Some(process) = tracking.processes.get_mut(id) {
                process.code.keep_from(recent);
            }
        }
    }

    /// What waits for the rest of records that are not whole has one bound. Who has the most of it gives up first.
    pub(super) fn bound_torn(tracking: &mut Tracking) {
        let mut held: usize = tracking.processes.busy().map(|process| process.announcements.held_bytes()).sum();
        for _ in 0..MAX_GIVEN_UP {
            if held <= MAX_TORN_BYTES {
                return;
            }
            let most = tracking.processes.busy_mut().max_by_key(|process| process.announcements.held_bytes());
            let Some(greediest) = most else { return };
            let before = greediest.announcements.held_bytes();
            greediest.announcements.give_up_largest();
            let after = greediest.announcements.held_bytes();
            // What is being read is a record soon, or torn.
            if after >= before {
                return;
            }
            held -= before - after;
        }
    }

    /// Evicts everything about processes that have ended and have no sample waiting.
    fn evict_processes(&mut self, tracking: &mut Tracking, resolving: &mut Resolving, parts: &mut Parts<'_>) {
        let now = parts.requests.now;
        let before = MonoNs(now.0.saturating_sub(KEEP_PAST_NS));
        let oldest = tracking.processes.busy().filter_map(|process| process.queue.oldest()).min();
        let before = oldest.unwrap_or(before).min(before);
        let evictable = tracking.processes.evictable(before);
        if !evictable.is_empty() {
            self.remove_gone(&evictable, tracking, resolving, parts);
        }
        tracking.processes.evict_before(before, now);
    }

    /// Drops processes. All that names processes beside their table is told here, and here alone; several at a time,
    /// for some of it has to be looked through.
    fn remove_gone(
        &mut self,
        ids: &[ProcessId],
        tracking: &mut Tracking,
        resolving: &mut Resolving,
        parts: &mut Parts<'_>,
    ) {
        for id in ids {
            // Only where they are too many some still have samples; those are resolved with what is known.
            resolving.resolve_all_of(&mut tracking.processes, *id, parts.files);
            self.learned = self.learned + tracking.evict(*id, parts);
        }
        let gone: FxHashSet<ProcessId> = ids.iter().copied().collect();
        tracking.remove_gone(&gone);
        resolving.remove_gone(&gone);
        if let Some(unwinding) = &mut parts.unwinding {
            unwinding.remove_gone(&gone);
        }
    }

    /// No process takes the room that the others need for their code.
    fn bound_code(&self, tracking: &mut Tracking, requests: &mut Requests) {
        let limit = if self.is_tight { ALL_CODE_BYTES / 2 } else { ALL_CODE_BYTES };
        let total: usize = tracking.processes.iter().map(|process| process.code.bytes()).sum();
        if total > limit {
            // One that is bounded grows no more; the next ones do.
            let growing = tracking.processes.iter_mut().filter(|process| !process.code.is_bounded());
            if let Some(greediest) = growing.max_by_key(|process| process.code.bytes()) {
                greediest.code.set_bounds(CodeBounds::LEAST);
            }
        } else if total < limit / 2 {
            for process in tracking.processes.iter_mut().filter(|process| process.code.is_bounded()) {
                process.code.set_bounds(CodeBounds::CONTINUOUS);
            }
        }
        for process in tracking.processes.iter_mut() {
            if process.code.refuses_first() {
                let remark = format!(
                    "process {} has announced more code than is kept of one process; its newest functions have no \
                     names or no rows until it gives up others",
                    process.id.pid
                );
                tracing::warn!("{remark}");
                requests.remark(remark);
            }
        }
    }

    /// After a window: what its frames and stacks were made of goes, if it is much.
    pub(super) fn after_window(&self, resolving: &mut Resolving, end: MonoNs) {
        resolving.profile.drop_frequencies_before(MonoNs(end.0.saturating_sub(2 * NAMES_EVERY_NS)));
        let part = if self.is_tight { 4 } else { 1 };
        if resolving.profile.bytes() > MAX_PROFILE_BYTES / part || resolving.remembered() > MAX_REMEMBERED / part {
            resolving.compact_profile();
        }
    }

    /// Memory is short, or is so no longer: what can be had again is kept less of.
    pub(super) fn set_tight(
        &mut self,
        tight: bool,
        tracking: &mut Tracking,
        resolving: &mut Resolving,
        requests: &mut Requests,
    ) {
        if !self.continuous {
            return;
        }
        self.is_tight = tight;
        let all = SymbolBudget::CONTINUOUS;
        if !tight {
            requests.output(Output::SymbolBudget(all));
            return;
        }
        requests.output(Output::SymbolBudget(SymbolBudget {
            loaded: all.loaded / TIGHT,
            symbols: all.symbols / TIGHT,
            debug: all.debug / TIGHT,
            idle: Duration::from_secs(10),
            ..all
        }));
        requests.output(Output::UnloadSymbols);
        resolving.names.evict_unused(0, 1);
        resolving.compact_profile();
        resolving.compact_stacks(&mut tracking.processes);
        self.bound_code(tracking, requests);
        requests.output(Output::GiveMemoryBack);
    }

    /// Task events were lost: what is known of running processes is read again, in a run at once, in a continuous
    /// recording a few at a time, for events are lost when there is much to do.
    pub(super) fn refresh(&mut self, tracking: &mut Tracking, requests: &mut Requests) {
        let now = requests.now;
        self.is_stale |= tracking.processes.take_stale();
        if self.running_at.is_some_and(|at| at <= now) {
            self.running_at = None;
            requests.ask(Purpose::Running, Request::Running);
        }
        let due = !self.continuous || now.0.saturating_sub(self.refreshed_at.0) >= REFRESH_EVERY_NS;
        if self.is_stale && self.refresh.is_empty() && due {
            (self.is_stale, self.refreshed_at) = (false, now);
            requests.ask(Purpose::Running, Request::Running);
            // Those that run now first.
            let live = tracking.processes.iter().filter(|process| process.is_live());
            let mut live: Vec<(bool, ProcessId)> = live.map(|process| (process.queue.is_empty(), process.id)).collect();
            live.sort_unstable();
            self.refresh = live.into_iter().map(|(_, id)| id.pid).collect();
        }
        if self.refresh.is_empty() && now.0.saturating_sub(self.reread_at.0) >= REFRESH_EVERY_NS {
            self.reread_at = now;
            self.refresh.extend(tracking.take_unread());
        }
        let most = if self.continuous { REFRESH_PER_TICK } else { usize::MAX };
        for _ in 0..most.min(self.refresh.len()) {
            if let Some(pid) = self.refresh.pop_front() {
                tracking.ask_process(pid, requests);
            }
        }
    }

    /// Who runs could not be found out: it is asked again after a while.
    pub(super) fn ask_running_again(&mut self, now: MonoNs) {
        self.running_at = Some(MonoNs(now.0.saturating_add(RUNNING_AGAIN_NS)));
    }

    /// Code that was read from the memory of evicted processes.
    pub(super) fn learned(&self) -> LearnStats {
        self.learned
    }

    /// What names processes here, and how many.
    #[cfg(test)]
    pub(super) fn rooms(&self) -> [(&'static str, usize); 1] {
        [("to be read again", self.refresh.len())]
    }
}

/// Lets go of the files of processes that have ended: their file systems may be unmounted. Where somebody has a process' list of
/// mappings who may still need it, the files are held for him, and the list stays as it is: a server's children that end, each
/// with its parent's, cost nothing.
fn release_files(tracking: &mut Tracking, now: MonoNs) {
    let before = MonoNs(now.0.saturating_sub(RELEASE_NS));
    // How many of them have each list, and how many have it in all.
    let mut lists: FxHashMap<usize, (usize, usize)> = FxHashMap::default();
    for process in tracking.processes.iter().filter(|process| has_left(process, before)) {
        let (_, list) = process.space.shared();
        let (of_them, of_all) = lists.entry(list).or_default();
        (*of_them, *of_all) = (*of_them + 1, process.space.sharers());
    }
    lists.retain(|_, (of_them, of_all)| of_them == of_all);
    let mut released = Released::default();
    let holding = |process: &&mut Process| has_left(process, before) && !process.has_released;
    for process in tracking.processes.iter_mut().filter(holding) {
        process.space.release_ended();
        let (_, list) = process.space.shared();
        if lists.contains_key(&list) {
            process.has_released = true;
            process.space.release_live(&mut released);
        }
    }
}

/// Whether a process ended before `before`, and no sample of it waits.
fn has_left(process: &Process, before: MonoNs) -> bool {
    process.exit_time.is_some_and(|time| time < before) && process.queue.is_empty()
}

/// Evicts code that ended before every waiting sample.
fn evict_code(tracking: &mut Tracking, now: MonoNs) {
    let recent = MonoNs(now.0.saturating_sub(KEEP_ENDED_NS));
    for process in tracking.processes.iter_mut() {
        let oldest = process.queue.oldest().map_or(recent, |oldest| oldest.min(recent));
        process.code.evict_before(oldest);
    }
}
