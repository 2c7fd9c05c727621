//! Who used how much CPU in a block: what timelines are drawn from.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crate::profile::{Filter, Labels, Profile, Task};
use jitprof_common::units::{Pid, Tid};

/// Processes that are kept apart in one block. Beyond, those with the least CPU time are summed up by their labels.
const MAX_PROCESSES: usize = 256;
/// Groups of processes that are kept apart then; what is still beyond is one group without labels.
const MAX_GROUPS: usize = 256;
/// The name of all others together.
pub(super) const OTHERS: &str = "[others]";
/// What an entry costs beside its group.
pub(super) const ENTRY_BYTES: usize = 16;
/// What a group costs beside its text: the task, its counts, and its place in the table.
const GROUP_BYTES: usize = 192;

/// CPU time by process.
#[derive(Debug, Default)]
pub(super) struct Usage {
    /// A process is a task without a thread: its `tid` is 0 and its `comm` that of the process.
    pub(super) entries: Vec<(Arc<Task>, u64)>,
    /// Whether every process has an entry of its own.
    pub(super) is_complete: bool,
    /// Whether there is one of which no labels are known.
    pub(super) has_others: bool,
}

/// Processes as they occur in many blocks, each kept once.
#[derive(Debug, Default)]
pub(super) struct Groups {
    known: HashSet<Arc<Task>>,
    bytes: usize,
}

/// Sums by process, from tasks.
#[derive(Debug, Default)]
pub(super) struct Sums(HashMap<Task, u64>);

/// Whether a label belongs to a thread, which [`Usage`] does not know.
pub(super) fn is_of_thread(label: &str) -> bool {
    matches!(label, "tid" | "thread")
}

/// What of a filter can be asked of processes.
pub(super) fn of_process(filter: &Filter) -> Filter {
    let mut part = Filter::default();
    for (name, values) in filter.iter().filter(|(name, _)| !is_of_thread(name)) {
        values.iter().for_each(|value| part.want(name, value));
    }
    part
}

impl Sums {
    pub(super) fn of(profile: &Profile) -> Self {
        let mut sums = Self::default();
        profile.cpu_by_task().into_iter().for_each(|(task, cpu_ns)| sums.add(profile.task_of(task), cpu_ns));
        sums
    }

    pub(super) fn add(&mut self, task: &Task, cpu_ns: u64) {
        let comm = task.labels.get("comm").unwrap_or(&task.comm);
        let process = Task { tid: Tid(0), comm: Arc::clone(comm), ..task.clone() };
        let sum = self.0.entry(process).or_default();
        *sum = sum.saturating_add(cpu_ns);
    }

    /// What is kept of the sums, the largest first.
    pub(super) fn into_usage(self) -> Usage {
        let mut entries: Vec<_> = self.0.into_iter().collect();
        entries.sort_unstable_by(|one, other| (other.1, &one.0).cmp(&(one.1, &other.0)));
        let is_complete = entries.len() <= MAX_PROCESSES;
        let (mut groups, mut has_others): (BTreeMap<Task, u64>, bool) = (BTreeMap::new(), false);
        for (process, cpu_ns) in entries.drain(MAX_PROCESSES.min(entries.len())..) {
            let mut group = Task { pid: Pid(0), process_start: 0, ..process };
            if groups.len() >= MAX_GROUPS && !groups.contains_key(&group) {
                group = Task { comm: Arc::from(OTHERS), labels: Arc::<Labels>::default(), ..group };
                has_others = true;
            }
            let sum = groups.entry(group).or_default();
            *sum = sum.saturating_add(cpu_ns);
        }
        entries.extend(groups);
        let entries = entries.into_iter().map(|(process, cpu_ns)| (Arc::new(process), cpu_ns)).collect();
        Usage { entries, is_complete, has_others }
    }
}

impl Usage {
    pub(super) fn bytes(&self) -> usize {
        self.entries.len().saturating_mul(ENTRY_BYTES)
    }

    /// Whether a process may pass: `false` only if it is certain that none does.
    pub(super) fn may_pass(&self, process_filter: &Filter) -> bool {
        !self.is_complete || self.entries.iter().any(|(process, _)| process_filter.passes(process))
    }
}

impl Groups {
    /// Makes equal processes of different blocks one.
    pub(super) fn share(&mut self, usage: &mut Usage) {
        for (process, _) in &mut usage.entries {
            match self.known.get(process) {
                Some(known) => *process = Arc::clone(known),
                None => {
                    self.bytes = self.bytes.saturating_add(group_bytes(process));
                    self.known.insert(Arc::clone(process));
                }
            }
        }
    }

    /// Releases processes that no block has any more.
    pub(super) fn release_unused(&mut self) {
        let bytes = &mut self.bytes;
        self.known.retain(|process| {
            let is_used = Arc::strong_count(process) > 1;
            if !is_used {
                *bytes = bytes.saturating_sub(group_bytes(process));
            }
            is_used
        });
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

fn group_bytes(process: &Task) -> usize {
    let labels: usize = process.labels.iter().map(|(name, value)| name.len() + value.len() + 64).sum();
    GROUP_BYTES + process.comm.len() + labels
}
