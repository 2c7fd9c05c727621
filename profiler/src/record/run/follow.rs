//! Follows what the watched tasks do: new children, programs, mappings, ends.

use rustc_hash::FxHashMap;

use super::{Clues, KEEP_ENDED_NS, Recorder, is_alive};
use crate::process::discover::is_marker;
use crate::process::event::{FileKey, MmapEvent, TaskChange, TaskEvent};
use crate::process::procfs::{self, ProcError};
use crate::process::{ProcessId, monotonic_now};
use crate::record::bounds::CodeBounds;
use crate::record::members::same_comm;
use crate::record::options::{CallGraph, Targets};
use crate::record::sources::Sources;
use crate::units::{MonoNs, Pid};

/// Bytes of a command line that are remembered: the flags stand at its beginning.
const MAX_CLUE_BYTES: usize = 16 << 10;
/// Programs remembered at most.
const MAX_CLUES: usize = 16 << 10;

impl Recorder {
    /// Follows what a task did.
    pub(super) fn apply(&mut self, event: &TaskEvent) {
        if let TaskChange::Fork { pid, parent_pid, .. } = event.change
            && pid != parent_pid
            && self.followed.contains(&parent_pid)
            && (self.options.inherit || self.members.keeps_children())
        {
            self.follow_child(pid);
        }
        if let TaskChange::Comm { pid, comm, .. } = &event.change
            && let Targets::Comm(name) = &self.options.targets
            && same_comm(comm, name)
        {
            self.follow_child(*pid);
        }
        if let TaskChange::Comm { pid, comm, exec, .. } = &event.change
            && self.members.is_renamed(*pid, comm, *exec)
        {
            self.follow_child(*pid);
        }
        self.processes.apply(event);
        if let TaskChange::Comm { pid, tid, comm, exec } = &event.change {
            self.renamed(*pid, *tid, comm, *exec, event.time);
        }
        match &event.change {
            TaskChange::Fork { pid, parent_pid, .. } if pid != parent_pid => {
                self.births.note(*pid, *parent_pid, event.time);
                self.inherit(*pid, *parent_pid, event.time);
                self.borrow_rows(*pid, event.time);
                self.mappings_changed(*pid, event.time);
            }
            TaskChange::Comm { pid, exec: true, .. } => {
                let Some(id) = self.processes.at(*pid, event.time).map(|process| process.id) else { return };
                self.forked.remove(&id);
                self.copies.end(id);
                self.settle_heirs(id);
                if let Some(unwinding) = &mut self.unwinding {
                    unwinding.exec(id);
                }
                self.mappings_changed(*pid, event.time);
                if let Some(sources) = self.sources.get_mut(&id) {
                    sources.exec(event.time);
                }
                self.clues.remove(&id);
                self.note_program(id);
            }
            TaskChange::Mmap(mmap) => {
                self.note_mapping(mmap, event.time);
                self.mappings_changed(mmap.pid, event.time);
                self.note_file(mmap, event.time);
            }
            TaskChange::Exit { pid, .. } => self.note_exit(*pid, event.time),
            _ => {}
        }
    }

    /// A new mapping may mark a dump.
    fn note_mapping(&mut self, mmap: &MmapEvent, time: MonoNs) {
        let Some(mapping) = mmap.to_mapping().filter(is_marker) else { return };
        // Not the event's time: the tail counts on from the moment at which it is made, and one that is behind takes
        // every later record for one from the future.
        let context = self.read_context(monotonic_now());
        let Some(id) = self.processes.at(mmap.pid, time).map(|process| process.id) else { return };
        self.take_inheritance(id);
        let mut remarks = Vec::new();
        if let Some(process) = self.processes.get(id) {
            let sources = Self::sources_of(&mut self.sources, id, self.options.call_graph, self.endless.is_some());
            sources.mapped(process, &mapping, context, &mut remarks);
            self.late.hope_anew(id);
            if let Some(unwinding) = &mut self.unwinding {
                // The code that runs next may be older than its record.
                unwinding.set_late(id, sources.may_bring_rows(self.options.peek) && self.late.wants(id));
            }
        }
        self.remark_all(remarks);
    }

    /// A file that was mapped again may be another one.
    fn note_file(&mut self, mmap: &MmapEvent, time: MonoNs) {
        let Some(id) = self.processes.at(mmap.pid, time).map(|process| process.id) else { return };
        if let (Some(unwinding), FileKey::Inode { device, inode: inode @ 1.., .. }) = (&mut self.unwinding, &mmap.file)
        {
            unwinding.map_file(id, *device, *inode);
        }
    }

    /// Remembers what tells the runtime of a process: when advice is given, it may have ended.
    fn note_program(&mut self, id: ProcessId) {
        // A recording without end tells of those that are there in the end, and reads it then.
        if self.endless.is_some() {
            return;
        }
        if self.clues.len() >= MAX_CLUES {
            self.clues.clear();
        }
        self.clues.insert(id, Clues::read(id.pid));
    }

    pub(super) fn follow_child(&mut self, pid: Pid) {
        if self.followed.insert(pid)
            && let Err(error) = self.sampler.follow(pid)
        {
            self.account.remark(format!("process {pid} not followed: {error}"));
        }
    }

    /// Remembers that a child begins with its parent's code.
    fn inherit(&mut self, child: Pid, parent: Pid, time: MonoNs) {
        let (Some(child), Some(parent)) = (self.processes.at(child, time), self.processes.at(parent, time)) else {
            return;
        };
        if child.id.pid == parent.id.pid || self.sources.contains_key(&child.id) {
            return;
        }
        // A child of a child that has not been sampled has its code from the same ancestor.
        let (ancestor, time) = self.forked.get(&parent.id).copied().unwrap_or((parent.id, time));
        if self.sources.get(&ancestor).is_some_and(Sources::any) {
            self.forked.insert(child.id, (ancestor, time));
        }
    }

    /// Until a child has rows of its own, its parent's are right for the code that it was made with.
    fn borrow_rows(&mut self, child: Pid, time: MonoNs) {
        let Some(child) = self.processes.at(child, time).map(|child| child.id) else { return };
        if let (Some(unwinding), Some((parent, _))) = (&mut self.unwinding, self.forked.get(&child)) {
            unwinding.share_code(child, *parent);
        }
    }

    /// Code of a process is about to go: children that have not been sampled yet get their copy, and its rows, before.
    fn settle_heirs(&mut self, parent: ProcessId) {
        let heirs: Vec<ProcessId> =
            self.forked.iter().filter(|(_, (from, _))| *from == parent).map(|(child, _)| *child).collect();
        if heirs.is_empty() {
            return;
        }
        let now = monotonic_now();
        for heir in heirs {
            self.take_inheritance(heir);
            if let (Some(unwinding), Some(tables), Some(sources)) =
                (&mut self.unwinding, self.sampler.tables(), self.sources.get_mut(&heir))
            {
                unwinding.publish_code(sources, tables, now);
            }
        }
        self.publish_mappings();
    }

    /// Gives a child its parent's code, if it has not been done.
    pub(super) fn take_inheritance(&mut self, child: ProcessId) {
        let Some((parent, time)) = self.forked.remove(&child) else { return };
        let Some(parent) = self.sources.get_mut(&parent) else { return };
        let forked = parent.forked(child, time);
        self.sources.entry(child).or_insert(forked);
    }

    /// Children that live on without a sample get their code before the parent forgets it; those that ended need none.
    pub(super) fn settle_forks(&mut self, now: MonoNs) {
        let processes = &self.processes;
        self.forked.retain(|child, _| processes.get(*child).is_some_and(|child| child.exit_time.is_none()));
        let due: Vec<ProcessId> = self
            .forked
            .iter()
            .filter(|(_, (_, time))| now.0.saturating_sub(time.0) > KEEP_ENDED_NS / 2)
            .map(|(child, _)| *child)
            .collect();
        for child in due {
            self.take_inheritance(child);
        }
    }

    /// The end of a process: its last announcements are read while its files are still known.
    fn note_exit(&mut self, pid: Pid, time: MonoNs) {
        let Some(process) = self.processes.at(pid, time).filter(|process| process.exit_time.is_some()) else { return };
        let id = process.id;
        self.followed.remove(&pid);
        self.members.forget(pid);
        self.end_process(id, time);
    }

    /// Takes leave of a process that has ended.
    pub(super) fn end_process(&mut self, id: ProcessId, time: MonoNs) {
        self.sampler.unfollow(id.pid);
        self.settle_heirs(id);
        self.withdraw_rows(id);
        self.copies.end(id);
        if let Some(sources) = self.sources.get_mut(&id) {
            let polled = sources.poll(time, false);
            self.take_up(polled);
        }
    }

    /// A process runs: what it announces is looked at more often. One that was seen to be made is looked at for the first
    /// time with its first sample.
    pub(super) fn note_ran(&mut self, id: ProcessId, time: MonoNs) {
        self.take_inheritance(id);
        let new = !self.sources.contains_key(&id);
        let sources = Self::sources_of(&mut self.sources, id, self.options.call_graph, self.endless.is_some());
        sources.ran(time);
        if new {
            let mut remarks = Vec::new();
            if sources.look_for_perf_map(&mut remarks) {
                let polled = sources.poll(monotonic_now(), true);
                self.take_up(polled);
            }
            self.remark_all(remarks);
            if !self.clues.contains_key(&id) {
                self.note_program(id);
            }
        }
    }

    fn sources_of(
        all: &mut FxHashMap<ProcessId, Sources>,
        id: ProcessId,
        call_graph: CallGraph,
        endless: bool,
    ) -> &mut Sources {
        all.entry(id).or_insert_with(|| {
            let mut sources = Sources::new(id, call_graph);
            if endless {
                sources.code.set_bounds(CodeBounds::ENDLESS);
            }
            sources
        })
    }

    /// Reads a process that was not known before.
    pub(super) fn attach(&mut self, pid: Pid) -> Result<ProcessId, ProcError> {
        let id = self.processes.attach(pid)?;
        self.note_program(id);
        let context = self.read_context(monotonic_now());
        let Some(process) = self.processes.get(id) else { return Ok(id) };
        let mut remarks = Vec::new();
        let sources = Self::sources_of(&mut self.sources, id, self.options.call_graph, self.endless.is_some());
        sources.discover(process, context, &mut remarks);
        sources.look_for_perf_map(&mut remarks);
        let polled = sources.poll(context.now, true);
        self.remark_all(remarks);
        self.take_up(polled);
        if let Some(unwinding) = &mut self.unwinding {
            unwinding.change(id);
            if let (Some(sources), Some(tables)) = (self.sources.get_mut(&id), self.sampler.tables()) {
                unwinding.publish_code(sources, tables, context.now);
            }
        }
        Ok(id)
    }

    pub(super) fn look_for_perf_maps(&mut self) {
        let mut remarks = Vec::new();
        for (id, sources) in &mut self.sources {
            let looks = self.endless.is_none() || sources.ran_since_look();
            if looks && is_alive(&self.processes, *id) && sources.look_for_perf_map(&mut remarks) {
                self.late.hope_anew(*id);
            }
        }
        self.remark_all(remarks);
    }

    /// Reads what is known of all processes again.
    pub(super) fn attach_again(&mut self) {
        let live: Vec<Pid> = self.processes.live().map(|process| process.id.pid).collect();
        live.into_iter().for_each(|pid| self.attach_quietly(pid));
    }

    /// Reads a process again that may have ended by now.
    pub(super) fn attach_quietly(&mut self, pid: Pid) {
        if let Err(error) = self.attach(pid) {
            tracing::debug!("process {pid} not read again: {error}");
        }
    }
}

impl Clues {
    pub(super) fn read(pid: Pid) -> Self {
        Self {
            comm: procfs::comm(pid).unwrap_or_default(),
            exe: procfs::exe(pid).ok().flatten(),
            command_line: beginning(procfs::cmdline(pid).unwrap_or_default()),
        }
    }
}

/// The first words of a command line.
fn beginning(mut words: Vec<String>) -> Vec<String> {
    let mut bytes = 0;
    let fitting = words.iter().take_while(|word| {
        bytes += word.len();
        bytes <= MAX_CLUE_BYTES
    });
    let kept = fitting.count();
    words.truncate(kept);
    words
}
