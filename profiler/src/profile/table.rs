//! A profile: its frames, stacks, tasks and counts.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use indexmap::{IndexMap, IndexSet};
use rustc_hash::FxHashMap;

use super::IdHash;
use super::frames::{FrameRef, FrameTable, PROFILE_FULL};
use super::handle::{FrameId, StackId, TaskId};
use super::limits::{Limits, Overflow};
use super::meta::{ProfileMeta, Task};
use super::order::{Row, sort_rows};
use super::shares::Shares;
use super::transfer::Transfer;
use crate::owners::Holder;
use crate::symbol::Frame;
use jitprof_common::units::{MonoNs, Pid, Tid};

/// Handles are 32 bits; half of that leaves room for the entries that stand for what did not fit.
const MAX_ENTRIES: usize = 1 << 31;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct StackNode {
    prefix: StackId,
    frame: FrameId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct RowKey {
    bucket: u64,
    stack: StackId,
    task: TaskId,
}

/// How often a row was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    samples: u64,
    cpu_ns: u64,
}

/// Interned stacks and counts of one run.
#[derive(Debug)]
pub struct Profile {
    meta: ProfileMeta,
    bucket_ns: u64,
    limits: Limits,
    /// Of stacks, tasks and rows.
    overflow: Overflow,
    frames: FrameTable,
    stacks: IndexSet<StackNode, IdHash>,
    tasks: IndexSet<Task>,
    /// Whose each of them is, by handle.
    holders: Vec<Option<Holder>>,
    /// Who takes up what is new.
    holder: Option<Holder>,
    stack_shares: Shares,
    counts: IndexMap<RowKey, Count, IdHash>,
    total: u64,
    /// The CPU time that one sample stands for from each of these times on, ascending; `meta` says it for earlier ones.
    periods: Vec<(MonoNs, u64)>,
}

impl Profile {
    /// An empty profile. Counts are kept apart for each `bucket_ns` nanoseconds since the start (`u64::MAX`: one
    /// bucket for the whole run, 0 means 1: the exact time of every sample).
    pub fn new(meta: ProfileMeta, bucket_ns: u64) -> Self {
        Self::with_limits(meta, bucket_ns, Limits::default())
    }

    /// An empty profile with limits of the caller's choice.
    pub fn with_limits(meta: ProfileMeta, bucket_ns: u64, limits: Limits) -> Self {
        let limits = Limits {
            frames: limits.frames.min(MAX_ENTRIES),
            stacks: limits.stacks.min(MAX_ENTRIES),
            tasks: limits.tasks.min(MAX_ENTRIES),
            string_bytes: limits.string_bytes.min(MAX_ENTRIES),
            ..limits
        };
        Self {
            meta,
            bucket_ns: bucket_ns.max(1),
            limits,
            overflow: Overflow::default(),
            frames: FrameTable::new(limits),
            stacks: IndexSet::default(),
            tasks: IndexSet::default(),
            holders: Vec::new(),
            holder: None,
            stack_shares: Shares::default(),
            counts: IndexMap::default(),
            total: 0,
            periods: Vec::new(),
        }
    }

    /// An empty profile of the same run, with its own start.
    pub(super) fn empty_like(&self, start: MonoNs) -> Self {
        let since = Duration::from_nanos(start.0.saturating_sub(self.meta.start.0));
        let start_time = self.meta.start_time.checked_add(since).unwrap_or(self.meta.start_time);
        let mut empty =
            Self::with_limits(ProfileMeta { start, start_time, ..self.meta.clone() }, self.bucket_ns, self.limits);
        empty.periods.clone_from(&self.periods);
        empty
    }

    /// What the profile says about the run.
    pub fn meta(&self) -> &ProfileMeta {
        &self.meta
    }

    /// Sets how long the recording took, which is known only at its end.
    pub fn set_duration(&mut self, duration: Duration) {
        self.meta.duration = duration;
    }

    /// Says when the recording began, for a clock that was set meanwhile.
    pub fn set_start_time(&mut self, start_time: SystemTime) {
        self.meta.start_time = start_time;
    }

    /// When something was by the wall clock, as the recording began by it.
    pub fn wall_time(&self, time: MonoNs) -> SystemTime {
        self.meta.start_time + Duration::from_nanos(time.0.saturating_sub(self.meta.start.0))
    }

    /// From `from` on, samples are taken at another frequency. Times must ascend.
    pub fn set_frequency(&mut self, from: MonoNs, frequency_hz: NonZeroU32) {
        self.periods.push((from, 1_000_000_000 / u64::from(frequency_hz.get())));
    }

    /// The CPU time that one sample taken at `time` stands for, in nanoseconds.
    pub fn period_at(&self, time: MonoNs) -> u64 {
        let known = self.periods.iter().rev().find(|(from, _)| *from <= time);
        known.map_or_else(|| self.meta.period_ns(), |(_, period)| *period)
    }

    /// Removes everything but what it says about the run; all handles become void.
    pub fn clear(&mut self) {
        let empty = self.empty_like(self.meta.start);
        self.replace_tables(empty);
    }

    /// Removes frames, stacks, tasks and names that no row refers to; all handles become void.
    pub fn compact(&mut self) {
        let compact = self.select(self.meta.start, |_| true);
        self.replace_tables(compact);
    }

    /// Becomes `other`, but for what did not fit so far.
    fn replace_tables(&mut self, mut other: Self) {
        other.overflow = self.overflow;
        other.frames.set_overflow(self.frames.overflow());
        *self = other;
    }

    /// Drops the frequencies that were in force before `time`, for which no sample will be added any more.
    pub fn drop_frequencies_before(&mut self, time: MonoNs) {
        let holding = self.periods.partition_point(|(from, _)| *from <= time).saturating_sub(1);
        self.periods.drain(..holding);
    }

    /// Bytes of all tables, estimated.
    pub fn bytes(&self) -> usize {
        // An entry of an index map is the key, its hash and an index.
        let entry = |key: usize| key + 3 * size_of::<usize>();
        self.frames.bytes(entry)
            + self.stacks.len() * entry(size_of::<StackNode>())
            + self.tasks.len() * entry(size_of::<Task>())
            + self.counts.len() * entry(size_of::<(RowKey, Count)>())
    }

    /// What did not fit.
    pub fn overflow(&self) -> Overflow {
        let Overflow { strings, modules, frames, .. } = self.frames.overflow();
        Overflow { strings, modules, frames, ..self.overflow }
    }

    /// The handle of a frame; the same for equal frames. Strings are shared with the caller, not copied, unless they
    /// are longer than [`MAX_STRING_BYTES`](super::MAX_STRING_BYTES).
    pub fn intern_frame(&mut self, frame: &Frame) -> FrameId {
        self.frames.intern(frame)
    }

    /// The same for borrowed strings, which are copied when they are new.
    pub fn intern_frame_ref(&mut self, frame: &FrameRef<'_>) -> FrameId {
        self.frames.intern_ref(frame)
    }

    /// The handle here of another profile's frame.
    pub(super) fn copy_frame(&mut self, other: &Self, frame: FrameId) -> FrameId {
        self.frames.copy(&other.frames, frame)
    }

    /// Whose samples are added from now on. Where [`Limits::in_shares`] says so, names, frames and stacks that are new are
    /// his, and he leaves room for the others'.
    pub fn set_holder(&mut self, holder: Option<Holder>) {
        self.holder = holder.filter(|_| self.limits.in_shares);
        self.frames.set_holder(self.holder);
    }

    /// Whose a task is, if that was said or its labels say so.
    pub fn holder_of(&self, task: TaskId) -> Holder {
        let told = self.holders.get(task.index()).copied().flatten();
        told.unwrap_or_else(|| Holder::of_task(self.task_of(task)))
    }

    /// The stack without frames, from which all others grow.
    pub fn stack_root(&self) -> StackId {
        StackId::new(0)
    }

    /// The stack `prefix` with `frame` called from its last frame: frames are added root first.
    pub fn push(&mut self, prefix: StackId, frame: FrameId) -> StackId {
        let node = StackNode { prefix, frame };
        if let Some(index) = self.stacks.get_index_of(&node) {
            return StackId::new(index + 1);
        }
        if !self.stack_shares.may_take(self.holder, 1, (self.stacks.len(), self.limits.stacks)) {
            self.overflow.stacks += 1;
            return self.full_stack();
        }
        self.stack_shares.take(self.holder, 1);
        StackId::new(self.stacks.insert_full(node).0 + 1)
    }

    /// The handle of a task; the same for equal tasks.
    pub fn task(&mut self, task: Task) -> TaskId {
        if let Some(index) = self.tasks.get_index_of(&task) {
            return TaskId::new(index);
        }
        if self.tasks.len() >= self.limits.tasks {
            self.overflow.tasks += 1;
            return self.full_task();
        }
        let (index, is_new) = self.tasks.insert_full(task);
        if is_new {
            self.holders.resize(index, None);
            self.holders.push(self.holder);
        }
        TaskId::new(index)
    }

    /// Counts `count` samples of a stack. Times before the start belong to the first bucket.
    pub fn add(&mut self, time: MonoNs, stack: StackId, task: TaskId, count: u64) {
        self.add_row(Row { time, task, stack, count, cpu_ns: count.saturating_mul(self.period_at(time)) });
    }

    /// The same for samples of which it is known what CPU time they stand for.
    pub fn add_row(&mut self, row: Row) {
        let Row { time, task, stack, count, cpu_ns } = row;
        if count == 0 {
            return;
        }
        let bucket = time.0.saturating_sub(self.meta.start.0) / self.bucket_ns;
        let mut key = RowKey { bucket, stack, task };
        if self.counts.len() >= self.limits.rows && !self.counts.contains_key(&key) {
            self.overflow.rows += 1;
            key = RowKey { bucket: 0, stack: self.full_stack(), task: self.full_task() };
        }
        let row = self.counts.entry(key).or_default();
        row.samples = row.samples.saturating_add(count);
        row.cpu_ns = row.cpu_ns.saturating_add(cpu_ns);
        self.total = self.total.saturating_add(count);
    }

    /// Adds another profile's rows. `place` gives the time that a row has on this profile's clock, or `None` to leave
    /// it out.
    pub fn absorb(&mut self, other: &Self, mut place: impl FnMut(&Row) -> Option<MonoNs>) {
        let mut transfer = Transfer::new(other);
        other.visit_rows(|row| {
            if let Some(time) = place(&row) {
                transfer.add(self, Row { time, ..row });
            }
        });
    }

    /// A copy of the rows that `keep` wants; begins at `start`.
    pub fn select(&self, start: MonoNs, mut keep: impl FnMut(&Row) -> bool) -> Self {
        let mut selected = self.empty_like(start);
        selected.absorb(self, |row| keep(row).then_some(row.time));
        selected
    }

    /// A copy without frames that `is_left_out`: their samples and what they called are their callers'.
    pub fn without(&self, is_left_out: impl Fn(FrameRef<'_>) -> bool) -> Self {
        let mut copy = self.empty_like(self.meta.start);
        let mut transfer = Transfer::without(self, is_left_out);
        self.visit_rows(|row| transfer.add(&mut copy, row));
        copy
    }

    /// A copy with what is `shown` of each frame.
    pub fn showing(&self, shown: for<'f> fn(FrameRef<'f>) -> FrameRef<'f>) -> Self {
        let mut copy = self.empty_like(self.meta.start);
        let mut transfer = Transfer::showing(self, shown);
        self.visit_rows(|row| transfer.add(&mut copy, row));
        copy
    }

    /// A copy within other limits, of which the stacks of all rows together have no more than so many frames. Rows with the
    /// most samples come first; the stacks of those that do not fit are `[profile full]`, and the total stays the same.
    pub fn within(&self, limits: Limits, mut stack_frames: usize) -> Self {
        let mut copy = Self::with_limits(self.meta.clone(), u64::MAX, limits);
        let mut rows = self.rows_without_time();
        rows.sort_by_key(|row| std::cmp::Reverse(row.count));
        let (mut transfer, mut frames) = (Transfer::new(self), Vec::new());
        for row in rows {
            self.frames_of(row.stack, &mut frames);
            match stack_frames.checked_sub(frames.len() + 1) {
                Some(left) => {
                    stack_frames = left;
                    transfer.add(&mut copy, row);
                }
                None => transfer.add_full(&mut copy, row),
            }
        }
        copy
    }

    /// Moves all counts from before `end` into a profile of their own, which holds only what they refer to and begins
    /// at `start`. Stacks, frames and tasks stay known here, so handles stay valid. `end` is taken as the start of its
    /// time bucket.
    pub fn take_before(&mut self, start: MonoNs, end: MonoNs) -> Self {
        let keys: Vec<RowKey> = self.counts.keys().filter(|key| self.bucket_start(key.bucket) < end).copied().collect();
        let mut rows = Vec::with_capacity(keys.len());
        for key in keys {
            let Some(count) = self.counts.swap_remove(&key) else { continue };
            self.total = self.total.saturating_sub(count.samples);
            rows.push(self.row(&key, count));
        }
        let mut taken = self.empty_like(start);
        let mut transfer = Transfer::new(self);
        for row in rows {
            transfer.add(&mut taken, row);
        }
        taken
    }

    /// Counts all samples anew: those of `rows[i]` under the stack that `stack(i)` gives, in time buckets of
    /// `bucket_ns` (0 means 1). `rows` must be all rows of this profile; the total stays the same.
    pub fn restack(&mut self, bucket_ns: u64, rows: &[Row], mut stack: impl FnMut(&mut Self, usize) -> StackId) {
        self.bucket_ns = bucket_ns.max(1);
        self.counts.clear();
        self.total = 0;
        for (index, row) in rows.iter().enumerate() {
            let stack = stack(self, index);
            self.add_row(Row { stack, ..*row });
        }
    }

    /// Every row, ordered by time bucket, then by the task's value, then by the stack's frames from the root. Two
    /// profiles of the same samples give rows with the same values in the same order, whatever the order in which the
    /// samples were added; only the handles differ.
    ///
    /// Cost: sorts the frames, the stacks and the rows.
    pub fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<_> = self.counts.iter().map(|(key, &count)| self.row(key, count)).collect();
        sort_rows(self, &mut rows);
        rows
    }

    /// The same as [`Self::rows`] with all time buckets summed up.
    pub fn rows_without_time(&self) -> Vec<Row> {
        let mut sums: FxHashMap<(StackId, TaskId), Count> = FxHashMap::default();
        for (key, &count) in &self.counts {
            let sum = sums.entry((key.stack, key.task)).or_default();
            sum.samples = sum.samples.saturating_add(count.samples);
            sum.cpu_ns = sum.cpu_ns.saturating_add(count.cpu_ns);
        }
        let row = |((stack, task), count)| self.row(&RowKey { bucket: 0, stack, task }, count);
        let mut rows: Vec<_> = sums.into_iter().map(row).collect();
        sort_rows(self, &mut rows);
        rows
    }

    /// Calls `visit` with every row, in no order: for sums, without the cost of sorting.
    pub fn visit_rows(&self, mut visit: impl FnMut(Row)) {
        for (key, &count) in &self.counts {
            visit(self.row(key, count));
        }
    }

    fn row(&self, key: &RowKey, count: Count) -> Row {
        let Count { samples, cpu_ns } = count;
        Row { time: self.bucket_start(key.bucket), task: key.task, stack: key.stack, count: samples, cpu_ns }
    }

    /// The CPU time of each task in nanoseconds, in no order.
    pub fn cpu_by_task(&self) -> FxHashMap<TaskId, u64> {
        let mut sums: FxHashMap<TaskId, u64> = FxHashMap::default();
        self.visit_rows(|row| {
            let sum = sums.entry(row.task).or_default();
            *sum = sum.saturating_add(row.cpu_ns);
        });
        sums
    }

    /// The samples of all rows together.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The frame behind a handle.
    ///
    /// # Panics
    /// If the handle comes from another profile. The same holds for every handle below.
    pub fn frame(&self, id: FrameId) -> FrameRef<'_> {
        self.frames.get(id)
    }

    /// How many frames there are; handles count from 0.
    pub fn frame_count(&self) -> usize {
        self.frames.len()
    }

    /// How many stacks there are, the empty one included; handles count from 0.
    pub fn stack_count(&self) -> usize {
        self.stacks.len() + 1
    }

    /// All frames in order of their handles.
    pub(crate) fn frame_ids(&self) -> impl Iterator<Item = FrameId> + use<> {
        (0..self.frames.len()).map(FrameId::new)
    }

    /// All stacks but the empty one in order of their handles: a prefix comes before what was pushed onto it.
    pub(crate) fn stack_ids(&self) -> impl Iterator<Item = StackId> + use<> {
        (1..=self.stacks.len()).map(StackId::new)
    }

    /// All tasks in order of their handles.
    pub(super) fn task_ids(&self) -> impl Iterator<Item = TaskId> + use<> {
        (0..self.tasks.len()).map(TaskId::new)
    }

    /// The stack without its last frame, and that frame; `None` for the empty stack.
    pub fn pop(&self, stack: StackId) -> Option<(StackId, FrameId)> {
        let node = &self.stacks[stack.index().checked_sub(1)?];
        Some((node.prefix, node.frame))
    }

    /// Replaces the contents of `frames` by the stack's frames, root first.
    pub fn frames_of(&self, stack: StackId, frames: &mut Vec<FrameId>) {
        frames.clear();
        let mut rest = stack;
        while let Some((prefix, frame)) = self.pop(rest) {
            frames.push(frame);
            rest = prefix;
        }
        frames.reverse();
    }

    /// The task behind a handle.
    pub fn task_of(&self, id: TaskId) -> &Task {
        &self.tasks[id.index()]
    }

    /// When a time bucket begins.
    fn bucket_start(&self, bucket: u64) -> MonoNs {
        MonoNs(self.meta.start.0.saturating_add(bucket.saturating_mul(self.bucket_ns)))
    }

    // The entries below stand for everything that did not fit, so they themselves are exempt from the limits: each adds
    // at most one entry to its table.

    pub(super) fn full_stack(&mut self) -> StackId {
        let node = StackNode { prefix: self.stack_root(), frame: self.frames.full() };
        StackId::new(self.stacks.insert_full(node).0 + 1)
    }

    fn full_task(&mut self) -> TaskId {
        let task =
            Task { pid: Pid(0), process_start: 0, tid: Tid(0), comm: Arc::from(PROFILE_FULL), labels: Arc::default() };
        TaskId::new(self.tasks.insert_full(task).0)
    }
}
