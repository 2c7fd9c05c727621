//! The order in which outputs see a profile: by value, never by the order in which samples came.

use rustc_hash::FxHashMap;

use super::table::{Count, Profile, StackId, TaskId};
use crate::units::MonoNs;

/// Samples of one stack of one task in one time bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// When the time bucket begins; the start of the run in [`Profile::rows_without_time`].
    pub time: MonoNs,
    /// The task.
    pub task: TaskId,
    /// The stack.
    pub stack: StackId,
    /// Samples, at least 1.
    pub count: u64,
    /// The CPU time that they stand for, in nanoseconds.
    pub cpu_ns: u64,
}

impl Row {
    pub(super) fn new(time: MonoNs, task: TaskId, stack: StackId, count: Count) -> Self {
        Self { time, task, stack, count: count.samples, cpu_ns: count.cpu_ns }
    }
}

impl Profile {
    /// Every row, ordered by time bucket, then by the task's value, then by the stack's frames from the root. Two
    /// profiles of the same samples give rows with the same values in the same order, whatever the order in which the
    /// samples were added; only the handles differ.
    ///
    /// Cost: sorts the frames, the stacks and the rows.
    pub fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<_> = self
            .counts
            .iter()
            .map(|(key, &count)| Row::new(self.bucket_start(key.bucket), key.task, key.stack, count))
            .collect();
        self.sort(&mut rows);
        rows
    }

    /// Calls `visit` with every row, in no order: for sums, without the cost of sorting.
    pub(crate) fn visit_rows(&self, mut visit: impl FnMut(Row)) {
        for (key, &count) in &self.counts {
            visit(Row::new(self.bucket_start(key.bucket), key.task, key.stack, count));
        }
    }

    /// The CPU time of each task in nanoseconds, in no order.
    pub(crate) fn cpu_by_task(&self) -> FxHashMap<TaskId, u64> {
        let mut sums: FxHashMap<TaskId, u64> = FxHashMap::default();
        self.visit_rows(|row| {
            let sum = sums.entry(row.task).or_default();
            *sum = sum.saturating_add(row.cpu_ns);
        });
        sums
    }

    /// The same as [`Self::rows`] with all time buckets summed up.
    pub fn rows_without_time(&self) -> Vec<Row> {
        let mut sums: FxHashMap<(StackId, TaskId), Count> = FxHashMap::default();
        for (key, &count) in &self.counts {
            let sum = sums.entry((key.stack, key.task)).or_default();
            sum.samples = sum.samples.saturating_add(count.samples);
            sum.cpu_ns = sum.cpu_ns.saturating_add(count.cpu_ns);
        }
        let time = self.meta().start;
        let mut rows: Vec<_> =
            sums.into_iter().map(|((stack, task), count)| Row::new(time, task, stack, count)).collect();
        self.sort(&mut rows);
        rows
    }

    fn sort(&self, rows: &mut [Row]) {
        let stack_ranks = self.stack_ranks();
        let mut tasks: Vec<_> = self.task_ids().collect();
        tasks.sort_unstable_by_key(|&id| self.task_of(id));
        let task_ranks = ranks(tasks.iter().map(|id| id.index()));
        rows.sort_unstable_by_key(|row| (row.time, task_ranks[row.task.index()], stack_ranks[row.stack.index()]));
    }

    /// The position of each stack when all are ordered by their frames from the root. Walks the tree of prefixes in
    /// pre-order with the children of each node in order of their frames, which gives just that order without ever
    /// comparing two whole stacks.
    fn stack_ranks(&self) -> Vec<usize> {
        let mut frames: Vec<_> = self.frame_ids().collect();
        frames.sort_unstable_by_key(|&id| self.frame(id));
        let frame_ranks = ranks(frames.iter().map(|id| id.index()));

        // (prefix, rank of the frame, stack): sorted, the children of a prefix lie together and in order.
        let mut edges: Vec<_> = self
            .stack_ids()
            .filter_map(|stack| self.pop(stack).map(|(prefix, frame)| (prefix, frame_ranks[frame.index()], stack)))
            .collect();
        edges.sort_unstable();

        // Where each stack's children begin; they end where the next stack's begin.
        let mut first = vec![0; self.stack_count() + 1];
        for edge in &edges {
            first[edge.0.index() + 1] += 1;
        }
        for stack in 0..self.stack_count() {
            first[stack + 1] += first[stack];
        }

        let mut stack_ranks = vec![0; self.stack_count()];
        let mut rank = 0;
        let mut open = vec![self.stack_root()];
        while let Some(stack) = open.pop() {
            stack_ranks[stack.index()] = rank;
            rank += 1;
            let children = first[stack.index()]..first[stack.index() + 1];
            open.extend(edges[children].iter().rev().map(|edge| edge.2));
        }
        stack_ranks
    }
}

/// From positions in order to the rank of each position.
fn ranks(ordered: impl ExactSizeIterator<Item = usize>) -> Vec<usize> {
    let mut ranks = vec![0; ordered.len()];
    for (rank, index) in ordered.enumerate() {
        ranks[index] = rank;
    }
    ranks
}
