//! Stacks as paths of frames that are one where they look alike.
//!
//! A profile keeps frames apart by address, line and module. What is shown of it tells them apart by less: by name and
//! kind in a flamegraph, by function in a table. Everything that adds up stacks begins here, so frames are merged, and
//! rows are gone through, in one way.

use std::hash::Hash;

use indexmap::IndexSet;
use rustc_hash::FxHashMap;

use super::amount::Amount;
use super::forest::number;
use super::frames::FrameRef;
use super::handle::{FrameId, TaskId};
use super::meta::Task;
use super::order::Row;
use super::table::Profile;

/// What frames are told apart by.
pub trait MergeBy<'p> {
    /// What is left of a frame. Those of which the same is left are one.
    type Frame: Eq + Hash;

    /// What is left of this one. Asked once for each frame of a profile.
    fn frame(&self, frame: FrameRef<'p>) -> Self::Frame;

    /// Frames that stand for a task beside its stacks, the outermost first. Asked once for each task.
    fn task(&self, _task: &Task) -> Vec<Self::Frame> {
        Vec::new()
    }
}

/// Which end of a stack is the root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// The task, then the stack from its outermost frame.
    #[default]
    RootFirst,
    /// The task, then the stack from its innermost frame: who calls the hot functions of each task.
    LeafFirst,
    /// The stack from its innermost frame, and the task behind it: who calls the hot functions of all tasks.
    LeafFirstTaskLast,
}

/// Stands for a frame that no row had so far.
pub(super) const UNSEEN: u32 = u32::MAX;

/// The rows of a profile as paths of numbers of merged frames, in the profile's order. A frame gets its number when a
/// row has it for the first time, so the same samples give the same numbers.
pub(super) struct Paths<'p> {
    profile: &'p Profile,
    direction: Direction,
    rows: std::vec::IntoIter<Row>,
    /// The number that each frame of the profile was given, by its handle.
    numbers: Vec<u32>,
    tasks: FxHashMap<TaskId, Vec<u32>>,
    frames: Vec<FrameId>,
    path: Vec<u32>,
}

impl<'p> Paths<'p> {
    pub(super) fn new(profile: &'p Profile, direction: Direction) -> Self {
        Self {
            profile,
            direction,
            rows: profile.rows_without_time().into_iter(),
            numbers: vec![UNSEEN; profile.frame_count()],
            tasks: FxHashMap::default(),
            frames: Vec::new(),
            path: Vec::new(),
        }
    }

    /// The next row. New frames get their numbers in `known`.
    pub(super) fn next<M: MergeBy<'p>>(&mut self, by: &M, known: &mut IndexSet<M::Frame>) -> Option<(&[u32], Amount)> {
        let row = self.rows.next()?;
        let profile = self.profile;
        let numbers = &mut self.numbers;
        let task = self.tasks.entry(row.task).or_insert_with(|| {
            let frames = by.task(profile.task_of(row.task));
            frames.into_iter().map(|frame| number(known.insert_full(frame).0)).collect()
        });
        profile.frames_of(row.stack, &mut self.frames);
        let frames = self.frames.iter().map(|&id| {
            let known_as = &mut numbers[id.index()];
            if *known_as == UNSEEN {
                *known_as = number(known.insert_full(by.frame(profile.frame(id))).0);
            }
            *known_as
        });
        self.path.clear();
        self.path.extend_from_slice(task);
        self.path.extend(frames);
        match self.direction {
            Direction::RootFirst => {}
            Direction::LeafFirst => self.path[task.len()..].reverse(),
            Direction::LeafFirstTaskLast => self.path.reverse(),
        }
        Some((&self.path, Amount { samples: row.count, cpu_ns: row.cpu_ns }))
    }

    /// The numbers by the profile's handles of frames; [`UNSEEN`] for those that no row has.
    pub(super) fn into_numbers(self) -> Vec<u32> {
        self.numbers
    }
}
