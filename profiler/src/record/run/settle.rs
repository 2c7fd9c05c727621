//! Resolves waiting samples, as soon as it is certain what ran at their addresses.

use super::Recorder;
use crate::record::resolve::{Context, Readiness};
use crate::record::sources::Sources;
use crate::record::waiting::{KEPT_STACK_WORDS, Queue, Waiting};
use crate::units::MonoNs;

/// Samples resolved with what is known when too many wait.
const EARLY_BATCH: usize = 64 << 10;
/// Longest wait for records that may still come. They arrive 2.3 s late at most in a running Node or JVM; only code
/// without any name waits longer.
const MAX_WAIT_NS: u64 = 30_000_000_000;
/// Samples with unnamed code that are put aside at most; further ones stay unnamed.
const MAX_UNNAMED: usize = 64 << 10;

/// Samples from before this time can be resolved: every record up to it is known, or was waited for long enough.
pub(super) fn settled_until(sources: Option<&Sources>, now: MonoNs) -> MonoNs {
    let waited_enough = MonoNs(now.0.saturating_sub(MAX_WAIT_NS));
    sources.and_then(Sources::known_until).map_or(now, |until| until.max(waited_enough))
}

impl Recorder {
    /// Resolves samples whose every announcement is known; with `last`, all. A sample with unnamed code is put aside:
    /// its name may come as late as the runtime's exit.
    pub(super) fn settle(&mut self, now: MonoNs, last: bool) {
        let mut remarks = Vec::new();
        for (id, queue) in &mut self.queues {
            let context = Context {
                process: self.processes.get(*id),
                sources: self.sources.get(id),
                symbols: &self.symbols,
                unwinding: self.unwinding.as_ref(),
                stacks: &self.stacks,
                labels: self.labels.get(id).unwrap_or(&self.no_labels),
            };
            let limit = settled_until(context.sources, now);
            while let Some(sample) = queue.front() {
                if !last {
                    let in_time = now.0.saturating_sub(sample.time.0) < MAX_WAIT_NS;
                    if sample.time >= limit || (in_time && self.late.holds(sample)) {
                        break;
                    }
                    match self.resolver.readiness(sample, &context, &mut self.files, &mut remarks) {
                        Readiness::NotYet => break,
                        // A walk that may still be finished goes with it.
                        Readiness::Unnamed if self.unnamed.len() < MAX_UNNAMED => {
                            self.unnamed.extend(queue.pop_front());
                            continue;
                        }
                        Readiness::Unnamed | Readiness::Ready => {}
                    }
                }
                self.late.give_up(sample);
                self.resolver.resolve(sample, &context, &mut self.files, &mut self.profile, &mut self.account);
                queue.pop_front();
                self.waiting -= 1;
            }
        }
        self.queues.retain(|_, queue| !queue.is_empty());
        self.remark_all(remarks);
        if last {
            self.settle_unnamed();
        }
        self.forget_stacks();
    }

    /// Resolves what was put aside.
    fn settle_unnamed(&mut self) {
        for sample in std::mem::take(&mut self.unnamed) {
            let context = Context {
                process: self.processes.get(sample.process),
                sources: self.sources.get(&sample.process),
                symbols: &self.symbols,
                unwinding: self.unwinding.as_ref(),
                stacks: &self.stacks,
                labels: self.labels.get(&sample.process).unwrap_or(&self.no_labels),
            };
            self.resolver.resolve(&sample, &context, &mut self.files, &mut self.profile, &mut self.account);
            self.waiting -= 1;
        }
    }

    /// Whether every sample taken before `time` is in the profile.
    pub(super) fn is_settled_before(&self, time: MonoNs) -> bool {
        let mut waiting = self.queues.values().flatten().chain(&self.unnamed);
        waiting.all(|sample| sample.time >= time)
    }

    /// Resolves all samples taken before `time` with what is known now.
    pub(super) fn settle_before(&mut self, time: MonoNs) {
        let queued = self.queues.values_mut().flat_map(|queue| {
            let (due, rest) = queue.drain(..).partition::<Queue, _>(|sample| sample.time < time);
            *queue = rest;
            due
        });
        let mut due: Vec<Waiting> = queued.collect();
        due.extend(self.unnamed.extract_if(.., |sample| sample.time < time));
        for sample in due {
            let context = Context {
                process: self.processes.get(sample.process),
                sources: self.sources.get(&sample.process),
                symbols: &self.symbols,
                unwinding: self.unwinding.as_ref(),
                stacks: &self.stacks,
                labels: self.labels.get(&sample.process).unwrap_or(&self.no_labels),
            };
            self.late.give_up(&sample);
            self.resolver.resolve(&sample, &context, &mut self.files, &mut self.profile, &mut self.account);
            self.waiting -= 1;
        }
        self.queues.retain(|_, queue| !queue.is_empty());
        self.forget_stacks();
    }

    /// Raw stacks are needed as long as a sample waits; a few are kept, because they come again.
    fn forget_stacks(&mut self) {
        if self.waiting == 0 && self.arrived.is_empty() && self.stacks.words() >= KEPT_STACK_WORDS {
            self.stacks.clear();
        }
    }

    /// Makes room: the oldest samples are resolved with what is known now.
    pub(super) fn settle_early(&mut self) {
        self.finish_late(MonoNs(u64::MAX), true);
        let mut left = if self.stacks.is_full() { usize::MAX } else { EARLY_BATCH };
        for (id, queue) in &mut self.queues {
            let context = Context {
                process: self.processes.get(*id),
                sources: self.sources.get(id),
                symbols: &self.symbols,
                unwinding: self.unwinding.as_ref(),
                stacks: &self.stacks,
                labels: self.labels.get(id).unwrap_or(&self.no_labels),
            };
            while left > 0
                && let Some(sample) = queue.pop_front()
            {
                self.resolver.resolve(&sample, &context, &mut self.files, &mut self.profile, &mut self.account);
                self.account.samples.resolved_early += 1;
                self.waiting -= 1;
                left -= 1;
            }
        }
        self.queues.retain(|_, queue| !queue.is_empty());
        if left > 0 {
            self.account.samples.resolved_early += self.unnamed.len() as u64;
            self.settle_unnamed();
        }
        self.forget_stacks();
    }
}
