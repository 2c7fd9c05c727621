//! The order in which outputs see a profile: by value, never by the order in which samples came.

use super::forest::{Forest, number, ranks};
use super::handle::{StackId, TaskId};
use super::table::Profile;
use jitprof_common::units::MonoNs;

/// Samples of one stack of one task in one time bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// When the time bucket begins; the start of the run in [`Profile::rows_without_time`].
    pub time: MonoNs,
    /// The thread that was sampled.
    pub task: TaskId,
    /// Its stack at that time.
    pub stack: StackId,
    /// Samples, at least 1.
    pub count: u64,
    /// The CPU time that they stand for, in nanoseconds.
    pub cpu_ns: u64,
}

/// Orders rows of `profile` by time, then by the task's value, then by the stack's frames from the root.
pub(super) fn sort_rows(profile: &Profile, rows: &mut [Row]) {
    let stack_ranks = stack_ranks(profile);
    let mut tasks: Vec<_> = profile.task_ids().collect();
    tasks.sort_unstable_by_key(|&id| profile.task_of(id));
    let task_ranks = ranks(tasks.iter().map(|id| id.index()));
    rows.sort_unstable_by_key(|row| (row.time, task_ranks[row.task.index()], stack_ranks[row.stack.index()]));
}

/// The position of each stack when all are ordered by their frames from the root. Walks the tree of prefixes in
/// pre-order with the children of each node in order of their frames, which gives just that order without ever
/// comparing two whole stacks.
fn stack_ranks(profile: &Profile) -> Vec<u32> {
    let mut frames: Vec<_> = profile.frame_ids().collect();
    frames.sort_unstable_by_key(|&id| profile.frame(id));
    let frame_ranks = ranks(frames.iter().map(|id| id.index()));

    let edges = profile.stack_ids().filter_map(|stack| {
        let (prefix, frame) = profile.pop(stack)?;
        Some((number(prefix.index()), frame_ranks[frame.index()], number(stack.index())))
    });
    let forest = Forest::new(profile.stack_count(), edges.collect());
    // The empty stack, which is the root of all, comes first.
    let mut stack_ranks = vec![0; profile.stack_count()];
    for (rank, (_, stack)) in (1..).zip(forest.preorder()) {
        stack_ranks[stack] = rank;
    }
    stack_ranks
}
