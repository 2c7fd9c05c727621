//! Keeps the labels of processes: read when a process is first sampled or attached to, again when it runs another
//! program, and once more after a while. Never for each sample.

use std::cell::LazyCell;
use std::collections::HashSet;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use super::Recorder;
use crate::advice::{Clues, main_runtime, version_files, version_in_paths};
use crate::process::labels::Identity;
use crate::process::{MappingKind, Process, ProcessId, monotonic_now};
use crate::profile::Labels;
use crate::record::labels::{History, ShownRuntime};
use crate::record::versions::{Program, Versions};
use crate::units::{MonoNs, Pid, Tid};

/// Processes with labels at most: as many as can be followed.
const MAX_LABELLED: usize = 64 << 10;
/// Executable mappings in which a runtime is looked for.
const MAX_FILES: usize = 1024;
/// When a process is looked at for a second time: by then its runtime's libraries are loaded, and whoever started it
/// has given it its user and its control group.
const LOOK_AGAIN_NS: u64 = 2_000_000_000;
/// Second looks in one turn of a second; each takes some 100 µs.
const MAX_LOOKS: usize = 128;
/// Forks between a process and the relative whose labels it gets.
const MAX_GENERATIONS: usize = 16;

impl Recorder {
    /// Reads a process' labels unless they are known.
    pub(super) fn ensure_labels(&mut self, id: ProcessId) {
        let known = self.labels.get(&id);
        if self.labeller.is_none() || known.is_some_and(|known| known.stale_since().is_none()) {
            return;
        }
        if known.is_none() && self.labels.len() >= MAX_LABELLED {
            self.account.remark(format!("further processes have no labels: {MAX_LABELLED} have some already"));
            return;
        }
        let since = known.and_then(History::stale_since).unwrap_or(id.start);
        self.look(id, since, true);
    }

    /// Looks at a process; if it has gone, takes what its relatives tell.
    fn look(&mut self, id: ProcessId, since: MonoNs, again: bool) {
        let read = Identity::read(id.pid).ok().filter(|read| id.has_start(read.start));
        let labels = match read {
            Some(identity) => {
                let runtime = self.runtime_of(id, &identity);
                self.labeller.as_mut().map(|labeller| labeller.of(&identity, runtime))
            }
            None => {
                let comm = self.processes.get(id).and_then(|process| process.comm(Tid(id.pid.0)));
                let comm = comm.map(|comm| comm.to_string()).unwrap_or_default();
                let kin = self.kin_of(id);
                self.labeller.as_mut().map(|labeller| labeller.of_lost(kin.as_deref(), &comm))
            }
        };
        let Some(labels) = labels else { return };
        let history = match self.labels.entry(id) {
            Entry::Occupied(known) => {
                let history = known.into_mut();
                history.add(since, labels);
                history
            }
            Entry::Vacant(free) => free.insert(History::new(since, labels)),
        };
        history.look_again(again.then(|| MonoNs(monotonic_now().0.saturating_add(LOOK_AGAIN_NS))));
    }

    /// The labels of the process' earlier program, or of the nearest ancestor that is known or can be read.
    fn kin_of(&mut self, id: ProcessId) -> Option<Arc<Labels>> {
        if let Some(known) = self.labels.get(&id) {
            return Some(Arc::clone(known.latest()));
        }
        let mut child = id;
        for _ in 0..MAX_GENERATIONS {
            let (parent, made) = self.parent_of(child)?;
            if let Some(known) = self.labels.get(&parent) {
                return Some(Arc::clone(known.latest()));
            }
            // A parent is older than its child; a process that has its number since is not.
            if let Some(read) = Identity::read(parent.pid).ok().filter(|read| read.start <= made) {
                return self.labeller.as_mut().map(|labeller| labeller.of(&read, None));
            }
            child = parent;
        }
        None
    }

    /// Who made a process, and when.
    fn parent_of(&self, id: ProcessId) -> Option<(ProcessId, MonoNs)> {
        if let Some(process) = self.processes.get(id)
            && let Some(parent) = process.parent
        {
            return Some((parent, id.start));
        }
        let (pid, made) = self.births.parent(id.pid)?;
        let known = self.processes.at(pid, made).map(|process| process.id);
        Some((known.unwrap_or(ProcessId { pid, start: MonoNs(0) }), made))
    }

    /// The runtime, and its version as far as it is known yet.
    fn runtime_of(&mut self, id: ProcessId, identity: &Identity) -> Option<ShownRuntime> {
        let exe = identity.exe.as_ref()?.to_string_lossy();
        let process = self.processes.get(id)?;
        let mapped_files = executable_files(process);
        let clues = Clues { exe: &exe, mapped_files: &mapped_files, cmdline: &[] };
        let runtime = main_runtime(&clues)?.runtime;
        let in_paths = version_in_paths(runtime, &clues);
        let is_exact = in_paths.as_ref().is_some_and(|version| version.split('.').count() > 2);
        let may_be_more_exact = in_paths.is_none() || !version_files(runtime, &clues).is_empty();
        let asked = match &mut self.versions {
            Some(versions) if !is_exact && may_be_more_exact => {
                versions.ask(id, program_of(process, &exe), runtime, &clues)
            }
            _ => None,
        };
        Some(ShownRuntime { name: runtime.label(), version: asked.or(in_paths) })
    }

    /// The first thread's name has changed, or the process runs another program.
    pub(super) fn renamed(&mut self, pid: Pid, tid: Tid, comm: &str, exec: bool, time: MonoNs) {
        let Some(id) = self.processes.at(pid, time).map(|process| process.id) else { return };
        let (Some(history), Some(labeller)) = (self.labels.get_mut(&id), &mut self.labeller) else { return };
        if exec {
            history.renew(time);
        } else if tid.0 == pid.0 {
            history.add(time, labeller.with(history.latest(), "comm", comm));
        }
    }

    /// Takes versions that have been found.
    pub(super) fn take_versions(&mut self) {
        let found = self.versions.as_mut().map(Versions::found);
        for (id, version) in found.into_iter().flatten() {
            let (Some(history), Some(labeller)) = (self.labels.get_mut(&id), &mut self.labeller) else { continue };
            if history.latest().get("runtime").is_some() {
                history.amend(labeller.with(history.latest(), "runtime_version", &version));
            }
        }
    }

    /// Second looks that are due; forgets processes that have ended and have no samples any more.
    pub(super) fn check_labels(&mut self, now: MonoNs) {
        let due = self.labels.iter().filter(|(_, history)| history.is_due(now)).map(|(id, _)| *id);
        for id in due.take(MAX_LOOKS).collect::<Vec<_>>() {
            if self.processes.is_live(id) {
                self.look(id, now, false);
            } else if let Some(history) = self.labels.get_mut(&id) {
                history.look_again(None);
            }
        }
        let (processes, queues) = (&self.processes, &self.queues);
        // There may be many, and mostly nobody asks.
        let unnamed = LazyCell::new(|| self.unnamed.iter().map(|sample| sample.process).collect::<HashSet<_>>());
        self.labels.retain(|id, _| processes.is_live(*id) || queues.contains_key(id) || unnamed.contains(id));
        if let Some(labeller) = &mut self.labeller {
            labeller.forget_unused();
        }
    }
}

/// The executable files that a process has mapped.
fn executable_files(process: &Process) -> Vec<String> {
    let mapped = process.space.live().filter(|mapping| mapping.prot.execute && mapping.kind == MappingKind::File);
    mapped.take(MAX_FILES).map(|mapping| mapping.path.to_string()).collect()
}

fn program_of(process: &Process, exe: &str) -> Program {
    let mapping = process.space.live().find(|mapping| mapping.kind == MappingKind::File && *mapping.path == *exe);
    let (device, inode) = mapping.map_or_else(Default::default, |mapping| (mapping.device, mapping.inode));
    Program { device, inode, path: exe.to_owned() }
}
