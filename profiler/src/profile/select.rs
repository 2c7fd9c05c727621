//! Parts of a profile, and several profiles as one.

use rustc_hash::FxHashMap;

use super::order::Row;
use super::table::{FrameId, Profile, RowKey, StackId, TaskId};
use crate::units::MonoNs;

/// The handles that another profile's handles have become in this one.
#[derive(Default)]
struct Moved {
    frames: FxHashMap<FrameId, FrameId>,
    stacks: FxHashMap<StackId, StackId>,
    tasks: FxHashMap<TaskId, TaskId>,
}

impl Profile {
    /// Moves all counts from before `end` into a profile of their own, which holds only what they refer to and begins
    /// at `start`. Stacks, frames and tasks stay known here, so handles stay valid. `end` is taken as the start of its
    /// time bucket.
    pub fn take_before(&mut self, start: MonoNs, end: MonoNs) -> Self {
        let mut taken = self.empty_like(start);
        let keys: Vec<RowKey> = self.counts.keys().filter(|key| self.bucket_start(key.bucket) < end).copied().collect();
        let mut moved = Moved::default();
        for key in keys {
            let Some(count) = self.counts.swap_remove(&key) else { continue };
            self.uncount(count.samples);
            let time = self.bucket_start(key.bucket);
            taken.take_over(self, &mut moved, Row::new(time, key.task, key.stack, count));
        }
        taken
    }

    /// A copy of the rows that `keep` wants; begins at `start`.
    pub fn select(&self, start: MonoNs, mut keep: impl FnMut(&Row) -> bool) -> Self {
        let mut selected = self.empty_like(start);
        selected.absorb(self, |row| keep(row).then_some(row.time));
        selected
    }

    /// Adds another profile's rows. `place` gives the time that a row has on this profile's clock, or `None` to leave
    /// it out.
    pub fn absorb(&mut self, other: &Self, mut place: impl FnMut(&Row) -> Option<MonoNs>) {
        let mut moved = Moved::default();
        for (key, &count) in &other.counts {
            let mut row = Row::new(other.bucket_start(key.bucket), key.task, key.stack, count);
            if let Some(time) = place(&row) {
                row.time = time;
                self.take_over(other, &mut moved, row);
            }
        }
    }

    fn take_over(&mut self, other: &Self, moved: &mut Moved, row: Row) {
        let stack = self.stack_from(other, moved, row.stack);
        let task = match moved.tasks.get(&row.task) {
            Some(task) => *task,
            None => {
                let task = self.task(other.task_of(row.task).clone());
                moved.tasks.insert(row.task, task);
                task
            }
        };
        self.add_weighted(row.time, stack, task, row.count, row.cpu_ns);
    }

    fn stack_from(&mut self, other: &Self, moved: &mut Moved, stack: StackId) -> StackId {
        // Up to the first prefix that is known here, then down again.
        let mut missing = Vec::new();
        let mut rest = stack;
        let mut here = loop {
            if let Some(known) = moved.stacks.get(&rest) {
                break *known;
            }
            match other.pop(rest) {
                Some((prefix, frame)) => {
                    missing.push((rest, frame));
                    rest = prefix;
                }
                None => break self.stack_root(),
            }
        };
        for (theirs, frame) in missing.into_iter().rev() {
            let frame = match moved.frames.get(&frame) {
                Some(frame) => *frame,
                None => {
                    let copy = self.copy_frame(other, frame);
                    moved.frames.insert(frame, copy);
                    copy
                }
            };
            here = self.push(here, frame);
            moved.stacks.insert(theirs, here);
        }
        here
    }
}
