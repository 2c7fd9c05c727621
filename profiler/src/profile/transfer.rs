//! Rows of one profile into another, with what they refer to.

use rustc_hash::FxHashMap;

use super::frames::FrameRef;
use super::handle::{FrameId, StackId, TaskId};
use super::order::Row;
use super::table::Profile;

/// Copies rows of one profile into one other, and remembers which handles its frames, stacks and tasks have there.
pub(super) struct Transfer<'p> {
    from: &'p Profile,
    frames: FxHashMap<FrameId, FrameId>,
    stacks: FxHashMap<StackId, StackId>,
    tasks: FxHashMap<TaskId, TaskId>,
    /// By the handles of frames, which ones are not copied; none of those that it does not have.
    left_out: Vec<bool>,
    /// What is missing there of the stack at hand: kept for its room.
    missing: Vec<(StackId, FrameId)>,
    /// What frames are there, if something else than here.
    shown: Option<Shown>,
}

/// What is made of a frame.
pub(super) type Shown = for<'f> fn(FrameRef<'f>) -> FrameRef<'f>;

impl<'p> Transfer<'p> {
    pub(super) fn new(from: &'p Profile) -> Self {
        Self {
            from,
            frames: FxHashMap::default(),
            stacks: FxHashMap::default(),
            tasks: FxHashMap::default(),
            left_out: Vec::new(),
            missing: Vec::new(),
            shown: None,
        }
    }

    /// The same with other frames.
    pub(super) fn showing(from: &'p Profile, shown: Shown) -> Self {
        Self { shown: Some(shown), ..Self::new(from) }
    }

    /// The same without frames that `is_left_out`: what they called, their callers called.
    pub(super) fn without(from: &'p Profile, is_left_out: impl Fn(FrameRef<'p>) -> bool) -> Self {
        let left_out = from.frame_ids().map(|id| is_left_out(from.frame(id))).collect();
        Self { left_out, ..Self::new(from) }
    }

    /// Adds a row to `to`, which must be the same profile every time. The row's time is on that profile's clock, its
    /// handles are those of the profile that it comes from.
    pub(super) fn add(&mut self, to: &mut Profile, row: Row) {
        to.set_holder(Some(self.from.holder_of(row.task)));
        let stack = self.stack(to, row.stack);
        let task = self.task(to, row.task);
        to.add_row(Row { stack, task, ..row });
    }

    /// The same without its stack, for which there is no room.
    pub(super) fn add_full(&mut self, to: &mut Profile, row: Row) {
        to.set_holder(Some(self.from.holder_of(row.task)));
        let (stack, task) = (to.full_stack(), self.task(to, row.task));
        to.add_row(Row { stack, task, ..row });
    }

    fn task(&mut self, to: &mut Profile, task: TaskId) -> TaskId {
        *self.tasks.entry(task).or_insert_with(|| to.task(self.from.task_of(task).clone()))
    }

    fn stack(&mut self, to: &mut Profile, stack: StackId) -> StackId {
        // Up to the first prefix that is known there, then down again.
        let mut missing = std::mem::take(&mut self.missing);
        let mut rest = stack;
        let mut there = loop {
            if let Some(known) = self.stacks.get(&rest) {
                break *known;
            }
            match self.from.pop(rest) {
                Some((prefix, frame)) => {
                    missing.push((rest, frame));
                    rest = prefix;
                }
                None => break to.stack_root(),
            }
        };
        for (here, frame) in missing.drain(..).rev() {
            if self.left_out.get(frame.index()).is_some_and(|left_out| *left_out) {
                self.stacks.insert(here, there);
                continue;
            }
            let frame = match self.frames.get(&frame) {
                Some(frame) => *frame,
                None => {
                    let copy = match self.shown {
                        Some(shown) => to.intern_frame_ref(&shown(self.from.frame(frame))),
                        None => to.copy_frame(self.from, frame),
                    };
                    self.frames.insert(frame, copy);
                    copy
                }
            };
            there = to.push(there, frame);
            self.stacks.insert(here, there);
        }
        self.missing = missing;
        there
    }
}
