//! Keeps a recording without end small: what belongs to processes that have gone goes, what nobody asks for any more is
//! forgotten, and no process takes the room of the others.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use super::Recorder;
use crate::process::{ProcessId, monotonic_now};
use crate::record::bounds::{ALL_CODE_BYTES, CodeBounds};
use crate::record::machine::{give_memory_back, running_pids};
use crate::record::waiting::{KEPT_STACK_WORDS, Stacks};
use crate::symbol::SymbolBudget;
use crate::units::{MonoNs, Pid};

/// How long a process is remembered after its end: its last samples come with the next tick.
const KEEP_PAST_NS: u64 = 3_000_000_000;
/// Between two looks at the names that nobody has asked for, and at who is running.
const NAMES_EVERY_NS: u64 = 10_000_000_000;
const SWEEP_EVERY_NS: u64 = 60_000_000_000;
/// Between two times that all processes are read again because task events were lost, and how many a tick: each takes
/// up to a millisecond.
const REFRESH_EVERY_NS: u64 = 5_000_000_000;
const REFRESH_PER_TICK: usize = 8;
/// A process that was gone when its sample came is looked for again after this: another one may have its pid.
const GONE_NS: u64 = 1_000_000_000;
/// Names that are kept, used or not; each takes some 300 bytes.
const KEPT_NAMES: usize = 16 << 10;
/// Looks after which a name that nobody has asked for goes: five minutes.
const NAME_TURNS: u32 = 30;
/// Bytes of the profile's tables, and frames remembered for it, above which they are made anew after a window.
const MAX_PROFILE_BYTES: usize = 8 << 20;
const MAX_REMEMBERED: usize = 64 << 10;
/// Under pressure, a part of everything that can be had again.
const TIGHT: u64 = 4;

/// What only a recording without end needs to know.
#[derive(Debug, Default)]
pub(super) struct Tidy {
    names_at: MonoNs,
    swept_at: MonoNs,
    /// Processes to be read again.
    refresh: VecDeque<Pid>,
    refreshed_at: MonoNs,
    /// More events were lost meanwhile.
    stale: bool,
    next_compaction: usize,
    /// Memory is short.
    tight: bool,
}

impl Recorder {
    /// From here on the recording has no end.
    pub(super) fn begin_endless(&mut self) {
        let now = monotonic_now();
        self.endless = Some(Tidy { names_at: now, swept_at: now, ..Tidy::default() });
        self.symbols.set_budget(SymbolBudget::ENDLESS);
        self.late.begin_endless();
        for sources in self.sources.values_mut() {
            sources.code.set_bounds(CodeBounds::ENDLESS);
        }
        if let Some(unwinding) = &self.unwinding {
            unwinding.work_in_background();
        }
    }

    /// About every second.
    pub(super) fn tidy(&mut self, now: MonoNs) {
        self.gone.retain(|_, since| now.0.saturating_sub(since.0) < GONE_NS);
        let Some(tidy) = &mut self.endless else { return };
        let names = now.0.saturating_sub(tidy.names_at.0) >= NAMES_EVERY_NS;
        let sweep = now.0.saturating_sub(tidy.swept_at.0) >= SWEEP_EVERY_NS;
        if names {
            tidy.names_at = now;
        }
        if sweep {
            tidy.swept_at = now;
            self.end_missing();
        }
        self.forget_processes(now);
        self.compact_stacks();
        self.bound_code();
        if names {
            self.symbols.forget_unused(KEPT_NAMES, NAME_TURNS);
        }
        if sweep {
            self.symbols.forget_objects(&self.files.objects());
            give_memory_back();
        }
    }

    /// Forgets everything about processes that have ended and have no sample waiting.
    fn forget_processes(&mut self, now: MonoNs) {
        let waiting: HashSet<ProcessId> =
            self.queues.keys().copied().chain(self.unnamed.iter().map(|sample| sample.process)).collect();
        let before = MonoNs(now.0.saturating_sub(KEEP_PAST_NS));
        let oldest = self.oldest_waiting().unwrap_or(before).min(before);
        self.processes.forget_before(oldest, |id| waiting.contains(&id));
        let mut known = waiting;
        known.extend(self.processes.ids());
        self.sources.retain(|id, _| known.contains(id));
        self.clues.retain(|id, _| known.contains(id));
        self.labels.retain(|id, _| known.contains(id));
        self.files.retain(|id| known.contains(&id));
        self.late.retain(|id| known.contains(&id));
        self.resolver.retain(|id| known.contains(&id));
        if let Some(unwinding) = &mut self.unwinding {
            unwinding.retain_ended(|id| known.contains(&id));
        }
    }

    fn oldest_waiting(&self) -> Option<MonoNs> {
        let queued = self.queues.values().filter_map(|queue| queue.front());
        queued.chain(&self.unnamed).map(|sample| sample.time).min()
    }

    /// Raw stacks of samples that have been resolved go. On a busy machine some sample waits always.
    fn compact_stacks(&mut self) {
        let Some(tidy) = &mut self.endless else { return };
        if self.stacks.words() < tidy.next_compaction.max(KEPT_STACK_WORDS) || !self.arrived.is_empty() {
            return;
        }
        let mut kept = Stacks::default();
        for sample in self.queues.values_mut().flatten().chain(&mut self.unnamed) {
            sample.kernel = kept.intern(self.stacks.frames(sample.kernel)).0;
            sample.user = kept.intern(self.stacks.frames(sample.user)).0;
        }
        tidy.next_compaction = kept.words() * 2;
        self.stacks = kept;
    }

    /// No process takes the room that the others need for their code.
    fn bound_code(&mut self) {
        let tight = self.endless.as_ref().is_some_and(|tidy| tidy.tight);
        let limit = if tight { ALL_CODE_BYTES / 2 } else { ALL_CODE_BYTES };
        let total: usize = self.sources.values().map(|sources| sources.code.bytes()).sum();
        let mut remarks = Vec::new();
        if total > limit {
            if let Some(greediest) = self.sources.values_mut().max_by_key(|sources| sources.code.bytes()) {
                greediest.code.set_bounds(CodeBounds::LEAST);
                greediest.bounded = true;
            }
        } else if total < limit / 2 {
            for sources in self.sources.values_mut().filter(|sources| sources.bounded) {
                sources.code.set_bounds(CodeBounds::ENDLESS);
                sources.bounded = false;
            }
        }
        for sources in self.sources.values_mut() {
            if sources.code.is_full() && !std::mem::replace(&mut sources.refusal_said, true) {
                remarks.push(format!(
                    "process {} has announced more code than is kept of one process; its newest functions have no names or \
                     no rows until it gives up others",
                    sources.id.pid
                ));
            }
        }
        for remark in &remarks {
            tracing::warn!("{remark}");
        }
        self.remark_all(remarks);
    }

    /// After a window: what its frames and stacks were made of goes, if it is much.
    pub(super) fn tidy_profile(&mut self, begin: MonoNs) {
        self.profile.forget_frequencies_before(MonoNs(begin.0.saturating_sub(2 * NAMES_EVERY_NS)));
        let tight = self.endless.as_ref().is_some_and(|tidy| tidy.tight);
        let part = if tight { 4 } else { 1 };
        if self.profile.bytes() > MAX_PROFILE_BYTES / part || self.resolver.remembered() > MAX_REMEMBERED / part {
            self.profile.compact();
            self.resolver.forget_frames();
        }
    }

    /// Memory is short, or is so no longer: what can be had again is kept less of.
    pub(super) fn set_tight(&mut self, tight: bool) {
        let Some(tidy) = &mut self.endless else { return };
        tidy.tight = tight;
        let all = SymbolBudget::ENDLESS;
        if !tight {
            self.symbols.set_budget(all);
            return;
        }
        let less = SymbolBudget {
            loaded: all.loaded / TIGHT,
            symbols: all.symbols / TIGHT,
            debug: all.debug / TIGHT,
            idle: Duration::from_secs(10),
            ..all
        };
        self.symbols.set_budget(less);
        self.symbols.unload();
        self.symbols.forget_unused(0, 1);
        self.symbols.forget_objects(&self.files.objects());
        self.profile.compact();
        self.resolver.forget_frames();
        self.compact_stacks();
        self.bound_code();
        give_memory_back();
    }

    /// Task events were lost: what is known of running processes is read again, in a run at once, in a recording without
    /// end a few at a time, for events are lost when there is much to do.
    pub(super) fn refresh(&mut self, now: MonoNs) {
        let lost = self.processes.take_stale();
        let Some(tidy) = &mut self.endless else {
            if lost {
                self.end_missing();
                self.attach_again();
            }
            return;
        };
        tidy.stale |= lost;
        let due = now.0.saturating_sub(tidy.refreshed_at.0) >= REFRESH_EVERY_NS;
        if tidy.stale && tidy.refresh.is_empty() && due {
            (tidy.stale, tidy.refreshed_at) = (false, now);
            // Those that run now first.
            let mut live: Vec<Pid> = self.processes.live().map(|process| process.id.pid).collect();
            let queues = &self.queues;
            live.sort_by_key(|pid| !queues.keys().any(|id| id.pid == *pid));
            tidy.refresh = live.into();
            self.end_missing();
        }
        for _ in 0..REFRESH_PER_TICK {
            let Some(pid) = self.endless.as_mut().and_then(|tidy| tidy.refresh.pop_front()) else { break };
            self.attach_quietly(pid);
        }
    }

    /// Ends processes whose exits were lost.
    fn end_missing(&mut self) {
        let now = monotonic_now();
        let running: HashSet<Pid> = running_pids().into_iter().collect();
        for id in self.processes.end_missing(&running, now) {
            self.end_process(id, now);
        }
        let unfollowed: Vec<Pid> = self.followed.iter().filter(|pid| !running.contains(pid)).copied().collect();
        for pid in unfollowed {
            self.followed.remove(&pid);
            self.sampler.unfollow(pid);
        }
    }
}
