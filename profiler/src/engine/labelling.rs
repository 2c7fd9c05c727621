//! Keeps the labels of processes: read when a process is first sampled or attached to, again when it runs another
//! program, and once more after a while. Never for each sample.

use std::sync::Arc;

use jitprof_common::units::{MonoNs, Pid, Tid};

use crate::advice::{Clues, Runtime, detect, main_runtime, version_files, version_in_paths};
use crate::engine::border::{ProcessRead, Request};
use crate::engine::fork_log::ForkLog;
use crate::engine::labels::{Labeller, ShownRuntime};
use crate::engine::process::{Process, ProgramState};
use crate::engine::processes::Processes;
use crate::engine::requests::{Purpose, Requests};
use crate::engine::versions::{ProgramFile, Versions};
use crate::process::{Mapping, MappingKind, ProcessId};
use crate::profile::Labels;

/// How long after a reading that did not come to an end a process is read again, when it is sampled.
const AGAIN_NS: u64 = 5_000_000_000;
/// Executable mappings in which a runtime is looked for.
const MAX_FILES: usize = 1024;
/// When a process is looked at for a second time: by then its runtime's libraries are loaded, and whoever started it
/// has given it its user and its control group.
const LOOK_AGAIN_NS: u64 = 2_000_000_000;
/// Second looks in one turn of a second; each takes some 100 µs.
const MAX_LOOKS: usize = 128;
/// Forks between a process and the relative whose labels it gets.
const MAX_GENERATIONS: usize = 16;

/// Makes labels, if they are wanted.
#[derive(Debug, Default)]
pub(super) struct Labelling {
    labeller: Option<Labeller>,
    versions: Versions,
}

impl Labelling {
    /// For a host; without one, for nobody.
    pub(super) fn new(host: Option<&str>) -> Self {
        Self { labeller: host.map(Labeller::new), versions: Versions::default() }
    }

    /// Whether anybody wants labels.
    pub(super) fn is_wanted(&self) -> bool {
        self.labeller.is_some()
    }

    /// A process has been read for its program.
    pub(super) fn take(&mut self, process: &mut Process, read: &ProcessRead, again: bool, requests: &mut Requests) {
        if self.labeller.is_none() {
            return;
        }
        let runtime = self.runtime_of(process, requests);
        let Some(labeller) = &mut self.labeller else { return };
        let labels = labeller.of(read, runtime);
        let since = process.labels.stale_since().unwrap_or(process.id.start);
        process.labels.add(if again { requests.now } else { since }, labels);
        process.labels.look_again((!again).then(|| MonoNs(requests.now.0.saturating_add(LOOK_AGAIN_NS))));
    }

    /// A process has ended before it could be read: it gets what its relatives have in common with it.
    pub(super) fn take_lost(&mut self, processes: &mut Processes, id: ProcessId, forks: &ForkLog) {
        if self.labeller.is_none() {
            return;
        }
        let ancestor = self.ancestor_of(processes, id, forks);
        let (Some(labeller), Some(process)) = (&mut self.labeller, processes.get_mut(id)) else { return };
        let comm = process.comm(Tid(id.pid.0)).map(|comm| comm.to_string()).unwrap_or_default();
        let labels = labeller.of_lost(ancestor.as_deref(), &comm);
        let since = process.labels.stale_since().unwrap_or(id.start);
        process.labels.add(since, labels);
        process.labels.look_again(None);
    }

    /// The labels of the process' earlier program, or of the nearest ancestor that is known.
    fn ancestor_of(&self, processes: &Processes, id: ProcessId, forks: &ForkLog) -> Option<Arc<Labels>> {
        let known = |id| processes.get(id).filter(|process| process.labels.is_known());
        if let Some(process) = known(id) {
            return Some(Arc::clone(process.labels.latest()));
        }
        let mut child = id;
        for _ in 0..MAX_GENERATIONS {
            let parent = processes.get(child).and_then(|process| process.parent);
            let parent = match parent {
                Some(parent) => parent,
                None => {
                    let (pid, made) = forks.parent(child.pid)?;
                    processes.at(pid, made).map_or(ProcessId { pid, start: MonoNs(0) }, |process| process.id)
                }
            };
            if let Some(process) = known(parent) {
                return Some(Arc::clone(process.labels.latest()));
            }
            child = parent;
        }
        None
    }

    /// The runtime, and its version as far as it is known yet.
    fn runtime_of(&mut self, process: &Process, requests: &mut Requests) -> Option<ShownRuntime> {
        let exe = process.known_program()?.exe.clone()?;
        let mapped_files = executable_files(process);
        let clues = Clues { exe: &exe, mapped_files: &mapped_files, ..Clues::default() };
        let runtime = main_runtime(&clues)?.runtime;
        let in_paths = version_in_paths(runtime, &clues);
        let is_exact = in_paths.as_ref().is_some_and(|version| version.split('.').count() > 2);
        let may_be_more_exact = in_paths.is_none() || !version_files(runtime, &clues).is_empty();
        let asked = (!is_exact && may_be_more_exact)
            .then(|| self.versions.ask(process, program_of(process, &exe), (runtime, &clues), requests))
            .flatten();
        Some(ShownRuntime { name: runtime.label(), version: asked.or(in_paths) })
    }

    /// The first thread's name has changed, or the process runs another program.
    pub(super) fn rename(&mut self, process: &mut Process, tid: Tid, comm: &str, exec: bool, time: MonoNs) {
        let Some(labeller) = self.labeller.as_mut().filter(|_| process.labels.is_known()) else { return };
        if exec {
            process.labels.renew(time);
        } else if tid.0 == process.id.pid.0 && process.labels.rename(time) {
            let renamed = labeller.with(process.labels.latest(), "comm", comm);
            process.labels.add(time, renamed);
        }
    }

    /// Takes up a version that was looked for.
    pub(super) fn take_version(&mut self, processes: &mut Processes, question: u64, found: Option<Option<String>>) {
        // Who runs another program by now has a version of its own, and what was read through him may be that program's.
        let runs_since = |id| processes.get(id).map(Process::runs_since);
        for (id, version) in self.versions.take(question, found, |(id, since)| runs_since(*id) == Some(*since)) {
            let (Some(process), Some(labeller)) = (processes.get_mut(id), &mut self.labeller) else { continue };
            let latest = Arc::clone(process.labels.latest());
            if latest.get("runtime").is_some() {
                process.labels.amend(labeller.with(&latest, "runtime_version", &version));
            }
        }
    }

    /// Label sets that were made and are not evicted.
    #[cfg(test)]
    pub(super) fn set_count(&self) -> usize {
        self.labeller.as_ref().map_or(0, Labeller::set_count)
    }

    /// Second looks that are due, and names of those who rename themselves all the time. About every second.
    pub(super) fn check(&mut self, processes: &mut Processes, requests: &mut Requests) {
        let Some(labeller) = &mut self.labeller else { return };
        labeller.evict_unused();
        let now = requests.now;
        for process in processes.iter_mut() {
            if let Some(time) = process.labels.take_renamed() {
                let renamed = labeller.with(process.labels.latest(), "comm", &process.name());
                process.labels.add(time, renamed);
            }
        }
        let due = processes.iter_mut().filter(|process| process.labels.is_due(now));
        for process in due.take(MAX_LOOKS) {
            process.labels.look_again(None);
            if process.is_live() {
                requests.ask(
                    Purpose::Labels(process.id, process.runs_since()),
                    request_program(process.id.pid, true, false),
                );
            }
        }
    }
}

/// Asks what program a process runs, unless that is known or has been asked.
pub(super) fn ask_program(process: &mut Process, labels: bool, command_line: bool, requests: &mut Requests) {
    let is_due = match process.program {
        ProgramState::Unasked => true,
        ProgramState::Stalled(at) => requests.now.0.saturating_sub(at.0) >= AGAIN_NS,
        ProgramState::Asked | ProgramState::Known(_) | ProgramState::Unreadable => false,
    };
    if is_due {
        process.program = ProgramState::Asked;
        let purpose = Purpose::Program(process.id, process.runs_since());
        requests.ask(purpose, request_program(process.id.pid, labels, command_line));
    }
}

fn request_program(pid: Pid, cgroup: bool, command_line: bool) -> Request {
    Request::Process { pid, maps: false, cgroup, command_line }
}

/// The runtime that a process is, if one is known in it.
pub(super) fn runtime_of(process: &Process) -> Option<Runtime> {
    let exe = process.known_program()?.exe.clone()?;
    let mapped_files = executable_files(process);
    main_runtime(&Clues { exe: &exe, mapped_files: &mapped_files, ..Clues::default() }).map(|found| found.runtime)
}

/// Whether a runtime is in a process that keeps frames of the program's functions in a list.
pub(super) fn keeps_frames(process: &Process) -> bool {
    has_any(process, &[Runtime::CPython, Runtime::Php, Runtime::Ruby])
}

/// Whether one of these runtimes is in a process, be it a library of another program.
pub(super) fn has_any(process: &Process, runtimes: &[Runtime]) -> bool {
    let Some(exe) = process.known_program().and_then(|program| program.exe.clone()) else { return false };
    let mapped_files = executable_files(process);
    let found = detect(&Clues { exe: &exe, mapped_files: &mapped_files, ..Clues::default() });
    found.iter().any(|detected| runtimes.contains(&detected.runtime))
}

/// The executable files that a process has mapped, and memory by the name that it was given as a file.
pub(super) fn executable_files(process: &Process) -> Vec<String> {
    let mapped = process.space.live().map(|mapped| &mapped.mapping);
    let names_runtime = |mapping: &Mapping| match mapping.kind {
        MappingKind::File => true,
        MappingKind::NamedMemory => mapping.path.starts_with("/memfd:"),
        _ => false,
    };
    let files = mapped.filter(|mapping| mapping.prot.execute && names_runtime(mapping));
    files.take(MAX_FILES).map(|mapping| mapping.path.to_string()).collect()
}

fn program_of(process: &Process, exe: &str) -> ProgramFile {
    let mut mapped = process.space.live().map(|mapped| &mapped.mapping);
    let mapping = mapped.find(|mapping| mapping.kind == MappingKind::File && *mapping.path == *exe);
    let (device, inode) = mapping.map_or_else(Default::default, |mapping| (mapping.device, mapping.inode));
    ProgramFile { device, inode, path: exe.to_owned() }
}
