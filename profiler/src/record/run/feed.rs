//! Keeps the kernel part's unwind tables up to what is known.

use std::time::Duration;

use super::Recorder;
use crate::process::{ProcessId, monotonic_now};
use crate::record::options::Targets;
use crate::record::waiting::RawStack;
use crate::units::{Avma, MonoNs, Pid};

/// How long the start of a run waits for the rows of the targets' files. Large executables take a second.
const FIRST_ROWS_LIMIT: Duration = Duration::from_secs(3);

impl Recorder {
    /// Before the first sample: the rows of everything that the targets map and have announced.
    pub(super) fn prepare_rows(&mut self) {
        self.publish_mappings();
        if let (Some(unwinding), Some(tables)) = (&mut self.unwinding, self.sampler.tables()) {
            unwinding.wait(FIRST_ROWS_LIMIT, tables, monotonic_now());
        }
        self.publish_rows(monotonic_now());
    }

    /// Publishes the mappings of processes that have changed.
    pub(super) fn publish_mappings(&mut self) {
        if let (Some(unwinding), Some(tables)) = (&mut self.unwinding, self.sampler.tables()) {
            unwinding.publish(tables, monotonic_now(), &self.processes);
        }
    }

    /// Publishes the rows that files and announcements have given since the last call, and makes room.
    pub(super) fn publish_rows(&mut self, now: MonoNs) {
        let (Some(unwinding), Some(tables)) = (&mut self.unwinding, self.sampler.tables()) else { return };
        tables.reclaim(now);
        unwinding.collect(tables, now);
        for sources in self.sources.values_mut() {
            let alive = self.processes.get(sources.id).is_some_and(|process| process.exit_time.is_none());
            if alive {
                unwinding
                    .set_late(sources.id, sources.may_bring_rows(self.options.peek) && self.late.wants(sources.id));
                unwinding.publish_code(sources, tables, now);
            }
        }
        unwinding.publish(tables, now, &self.processes);
        let remarks = unwinding.take_remarks();
        self.remark_all(remarks);
    }

    /// Rows that a sample waits for are built sooner: those of its innermost frame and of the one it ended at.
    pub(super) fn note_demand(&mut self, id: ProcessId, user: RawStack, time: MonoNs) {
        let Some(unwinding) = self.unwinding.as_mut().filter(|unwinding| unwinding.is_wanting(id)) else { return };
        let Some(process) = self.processes.get(id) else { return };
        let user = self.stacks.frames(user);
        for pc in user.iter().take(1).chain(user.last()) {
            if let Some(mapping) = process.space.lookup(Avma(*pc), time) {
                unwinding.meet(id, mapping);
            }
        }
    }

    /// What a process maps has changed.
    pub(super) fn mappings_changed(&mut self, pid: Pid, time: MonoNs) {
        let Some(unwinding) = &mut self.unwinding else { return };
        // Which processes the kernel part lets through is not known here beforehand.
        let any = matches!(self.options.targets, Targets::All | Targets::Matching(_));
        let sampled = any || self.followed.contains(&pid);
        if let Some(id) = self.processes.at(pid, time).map(|process| process.id)
            && (sampled || unwinding.has_published(id))
        {
            unwinding.change(id);
        }
    }

    /// A process has ended.
    pub(super) fn withdraw_rows(&mut self, id: ProcessId) {
        if let (Some(unwinding), Some(tables)) = (&mut self.unwinding, self.sampler.tables()) {
            unwinding.end(id, tables, monotonic_now());
        }
    }
}
