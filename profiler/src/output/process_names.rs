//! What processes are called in front of their threads' stacks.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use crate::profile::{Profile, Task, printable};
use jitprof_common::units::Pid;

/// What Node calls its first thread from 24 on, whatever the program is: that says nothing of the process.
const MAIN_THREAD: &str = "MainThread";

/// A process, as distinct from a later one with the same pid.
type Process = (Pid, u64);

/// The names of processes, worked out once for an output.
#[derive(Debug, Default)]
pub(super) struct ProcessNames {
    /// One for each, whatever others it had meanwhile, so that it is one frame.
    names: BTreeMap<Process, String>,
    /// Whether there are samples of several.
    are_several: bool,
}

impl ProcessNames {
    /// Of a process that had several names, the one with the most CPU time counts.
    pub(super) fn of(profiles: &[&Profile]) -> Self {
        let mut used: BTreeMap<(Process, &str), u64> = BTreeMap::new();
        let mut processes = BTreeSet::new();
        for &profile in profiles {
            for (id, cpu_ns) in profile.cpu_by_task() {
                let task = profile.task_of(id);
                let name = name_of(task);
                // No process has the number 0: what it stands for did not fit, or nobody said whose it was.
                if task.pid != Pid(0) {
                    processes.insert((process_of(task), name.filter(|_| !is_known(task))));
                }
                if let Some(name) = name.filter(|_| is_known(task)) {
                    let sum = used.entry((process_of(task), name)).or_default();
                    *sum = sum.saturating_add(cpu_ns);
                }
            }
        }
        let names = most_used(used).into_iter().map(|(process, name)| (process, printable(name).into_owned()));
        Self { names: names.collect(), are_several: processes.len() > 1 }
    }

    /// The frame of a process that is kept apart from all others: `pid-7821 (node)`. Scripts look for the number, so it
    /// stands first; and what ends in a bracket is never taken for a count.
    pub(super) fn root(&self, task: &Task) -> String {
        match self.name(task) {
            Some(name) => format!("pid-{} ({name})", task.pid),
            None => format!("pid-{}", task.pid),
        }
    }

    /// The process' one name; where its number may be another's, too, the name that the sample itself has.
    fn name<'a>(&'a self, task: &'a Task) -> Option<Cow<'a, str>> {
        if is_known(task) {
            return self.names.get(&process_of(task)).map(|name| Cow::Borrowed(name.as_str()));
        }
        name_of(task).map(printable)
    }

    /// The process' name at that time, in front of a thread that is called otherwise, if there are several processes. Those
    /// of one name are not kept apart: a build runs thousands of them.
    pub(super) fn in_front<'a>(&'a self, task: &'a Task) -> Option<Cow<'a, str>> {
        // The first thread has its process' name, also from before an exec that its labels are of.
        if !self.are_several || (is_first(task) && *task.comm != *MAIN_THREAD) {
            return None;
        }
        let name = name_of(task).map(printable).or_else(|| self.name(task))?;
        (name != printable(&task.comm)).then_some(name)
    }
}

/// What a process was called when it was sampled, unsanitized: the name of its first thread, which its labels or that
/// thread's own samples say.
pub(super) fn name_of(task: &Task) -> Option<&str> {
    let own = is_first(task).then_some(&task.comm);
    let name: &str = task.labels.get("comm").or(own)?;
    let program = task.labels.get("exe").filter(|_| *name == *MAIN_THREAD);
    program.and_then(|exe| exe.rsplit('/').next()).or(Some(name))
}

fn process_of(task: &Task) -> Process {
    (task.pid, task.process_start)
}

/// Whether its number tells the process from all others. A dataset of many hosts, or a file of another profiler, does not say
/// when a process began: there processes of one number are told apart by the name that each sample has, if it has one.
fn is_known(task: &Task) -> bool {
    task.pid != Pid(0) && (task.process_start != 0 || task.labels.get("comm").is_none())
}

/// Whether it is the process' first thread. A dataset, which does not say when a process began, has no numbers of threads.
fn is_first(task: &Task) -> bool {
    is_known(task) && task.tid.0 == task.pid.0
}

/// The name with the most time of each process; of several, the first one.
fn most_used(used: BTreeMap<(Process, &str), u64>) -> BTreeMap<Process, &str> {
    let mut most: BTreeMap<Process, (u64, &str)> = BTreeMap::new();
    for ((process, name), cpu_ns) in used {
        let known = most.entry(process).or_insert((cpu_ns, name));
        if cpu_ns > known.0 {
            *known = (cpu_ns, name);
        }
    }
    most.into_iter().map(|(process, (_, name))| (process, name)).collect()
}
