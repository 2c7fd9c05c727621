//! Samples that wait until it is certain what ran at their addresses.
//!
//! The newest records of a jitdump reach the file late, so a sample is resolved when every record up to its time has
//! been seen, not when it arrives. Stacks repeat: each distinct one is kept once, a waiting sample is a few words.

use std::collections::VecDeque;
use std::ops::Range;

use indexmap::IndexSet;
use jitprof_common::limits::COMM_LEN;
use jitprof_common::sample::FramePc;
use jitprof_common::stop::StopReason;
use jitprof_common::units::{MonoNs, Tid};
use jitprof_common::unwind::PcKind;
use rustc_hash::FxHashSet;

use crate::engine::border::{FrameList, Sample, TakenWords};
use crate::engine::deferred::Snapshot;
use crate::engine::frames::Asked;
use crate::engine::listed::Listed;
use crate::process::ProcessId;

/// Samples that wait at most; beyond it the oldest of who has the most are resolved with what is known. Tests wait for fewer.
pub(super) const MAX_PENDING: usize = if cfg!(test) { 2 << 10 } else { 256 << 10 };
/// Frames of lists that waiting samples keep at most, 16 bytes each until they are asked about, then 8; beyond it those of the
/// largest processes of who has the most are resolved with what is known.
pub(super) const MAX_LISTED_FRAMES: usize = if cfg!(test) { 4 << 10 } else { 4 << 20 };
/// Words of distinct stacks kept at most, 64 MiB; beyond it the samples of the largest processes of who has the most are
/// resolved with what is known. Tests keep fewer.
pub(super) const MAX_STACK_WORDS: usize = if cfg!(test) { 64 << 10 } else { 8 << 20 };
/// Words of stacks that are kept when no sample waits, 1 MiB: a program comes back to the same ones. Tests keep fewer.
pub(super) const KEPT_STACK_WORDS: usize = if cfg!(test) { 32 << 10 } else { 128 << 10 };
/// Stacks that are known to have been asked for, by process; beyond it all are asked for again.
const MAX_ASKED: usize = 64 << 10;

/// Index of a stack in [`Stacks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RawStack(usize);

/// Distinct stacks of raw addresses.
#[derive(Debug, Default)]
pub(super) struct Stacks {
    // The target chooses what stands on its stack: hashed with std's keyed hasher.
    known: IndexSet<Box<[u64]>>,
    words: usize,
    /// Kernel and user stacks of a process whose addresses have been asked for. They are void without the stacks, and so
    /// stand here and not with the process.
    asked: FxHashSet<(ProcessId, RawStack, RawStack)>,
}

impl Stacks {
    /// The stack's index.
    pub(super) fn intern(&mut self, frames: &[u64]) -> RawStack {
        if let Some(index) = self.known.get_index_of(frames) {
            return RawStack(index);
        }
        self.words = self.words.saturating_add(frames.len());
        RawStack(self.known.insert_full(frames.into()).0)
    }

    /// The words, innermost first.
    pub(super) fn words_of(&self, stack: RawStack) -> &[u64] {
        self.known.get_index(stack.0).map_or(&[], |frames| frames)
    }

    /// The user frames, innermost first.
    pub(super) fn frames(
        &self,
        stack: RawStack,
    ) -> impl DoubleEndedIterator<Item = FramePc> + ExactSizeIterator + Clone {
        let words = self.words_of(stack);
        words.iter().enumerate().map(|(index, word)| match (FramePc(*word), words.get(index + 1)) {
            // Who returns to what has been interrupted is what a signal handler returns to, and nobody has called it: its name
            // begins there, and the byte before is another one's.
            (frame, Some(caller)) if FramePc(*caller).is_interrupted() && !frame.is_doubted() => {
                FramePc::new(frame.pc(), PcKind::Instruction)
            }
            (frame, _) => frame,
        })
    }

    /// Whether names for a sample's stacks have to be asked for, once for all samples that are alike.
    pub(super) fn is_new_to(&mut self, process: ProcessId, kernel: RawStack, user: RawStack) -> bool {
        if self.asked.len() >= MAX_ASKED {
            self.asked.clear();
        }
        self.asked.insert((process, kernel, user))
    }

    /// Processes were evicted.
    pub(super) fn remove_gone(&mut self, gone: &FxHashSet<ProcessId>) {
        self.asked.retain(|(process, ..)| !gone.contains(process));
    }

    /// How many stacks of processes are known to have been asked for.
    #[cfg(test)]
    pub(super) fn asked(&self) -> usize {
        self.asked.len()
    }

    /// Whether the waiting samples must be resolved to make room.
    pub(super) fn is_full(&self) -> bool {
        self.words >= MAX_STACK_WORDS
    }

    /// How many words are kept.
    pub(super) fn words(&self) -> usize {
        self.words
    }

    /// Drops all stacks. Indices given out before are void.
    pub(super) fn clear(&mut self) {
        self.known.clear();
        self.asked.clear();
        self.words = 0;
    }
}

/// A sample that waits.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) time: MonoNs,
    pub(super) tid: Tid,
    pub(super) comm: [u8; COMM_LEN],
    pub(super) kernel: RawStack,
    pub(super) user: RawStack,
    pub(super) stop: StopReason,
    /// Words that it has brought along, until its process is known, and what was asked about them.
    pub(super) taken: Option<Box<TakenWords>>,
    pub(super) asked: Asked,
    /// The list of its runtime's frames that it has brought along, until its process is known, and what was asked about them.
    pub(super) list: Option<Box<FrameList>>,
    pub(super) listed: Option<Box<Listed>>,
    /// Words of a stack that is not the thread's, from the innermost on, which may be returned to.
    pub(super) parked: Box<[u64]>,
    /// The user frame behind which others of that stack are missing.
    pub(super) parked_cut: Option<usize>,
    /// What the walk can be finished from.
    pub(super) snapshot: Option<Box<Snapshot>>,
    /// The user frames whose callers were found by the rows of the sample's time, and not by those that the tables had.
    pub(super) by_rows: Range<usize>,
}

impl Pending {
    /// Of a sample, without its snapshot. A reason to stop that this build does not know is none that can be relied on.
    pub(super) fn new(sample: &Sample<'_>, stacks: &mut Stacks) -> Self {
        Self {
            time: sample.time,
            tid: sample.tid,
            comm: sample.comm,
            kernel: stacks.intern(&sample.kernel),
            user: stacks.intern(&sample.user),
            stop: StopReason::from_code(sample.stop).unwrap_or(StopReason::BadFrame),
            taken: sample.taken.clone(),
            asked: Asked::default(),
            list: sample.listed.clone(),
            listed: None,
            parked: Box::default(),
            parked_cut: None,
            snapshot: None,
            by_rows: 0..0,
        }
    }

    /// Frames of a list that it keeps, and words of a parked stack.
    pub(super) fn listed_frames(&self) -> usize {
        let arrived = self.list.as_ref().map_or(0, |list| list.records.len());
        arrived + self.listed.as_ref().map_or(0, |listed| listed.asked.frames.len()) + self.parked.len()
    }

    /// What was asked about its frames.
    pub(super) fn asked_mut(&mut self) -> impl Iterator<Item = &mut Asked> {
        let of_list = self.listed.as_mut().map(|listed| &mut listed.asked);
        std::iter::once(&mut self.asked).chain(of_list)
    }
}

/// The waiting samples of one process.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Oldest first as they arrived.
    pub(super) samples: VecDeque<Pending>,
    /// Put aside until the end: they have code without a name.
    pub(super) unnamed: Vec<Pending>,
}

impl Queue {
    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.samples.is_empty() && self.unnamed.is_empty()
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.samples.len() + self.unnamed.len()
    }

    /// When the oldest one was taken.
    pub(super) fn oldest(&self) -> Option<MonoNs> {
        self.iter().map(|sample| sample.time).min()
    }

    /// When the one that came first was taken; the oldest, but for the order in which CPUs hand over theirs.
    pub(super) fn first(&self) -> Option<MonoNs> {
        let first = [self.samples.front(), self.unnamed.first()];
        first.into_iter().flatten().map(|sample| sample.time).min()
    }

    /// When the newest one was taken.
    pub(super) fn newest(&self) -> Option<MonoNs> {
        self.iter().map(|sample| sample.time).max()
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Pending> {
        self.samples.iter().chain(&self.unnamed)
    }

    /// All of them, to be changed.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Pending> {
        self.samples.iter_mut().chain(&mut self.unnamed)
    }

    /// Takes those out that were taken before `time`.
    pub(super) fn take_before(&mut self, time: MonoNs) -> Vec<Pending> {
        let (mut due, rest) =
            std::mem::take(&mut self.samples).into_iter().partition::<Vec<_>, _>(|sample| sample.time < time);
        self.samples = rest.into();
        due.extend(self.unnamed.extract_if(.., |sample| sample.time < time));
        due
    }
}

#[cfg(test)]
mod tests {
    use jitprof_common::units::Pid;

    use super::*;

    #[test]
    fn equal_stacks_share_an_index() {
        let mut stacks = Stacks::default();
        let first = stacks.intern(&[1, 2]);
        assert_eq!(stacks.intern(&[1, 2]), first);
        let second = stacks.intern(&[1]);
        assert_ne!(second, first);
        assert_eq!(stacks.words_of(first), [1, 2]);
        assert_eq!((stacks.words_of(second), stacks.words()), ([1].as_slice(), 3));
    }

    #[test]
    fn what_a_handler_returns_to_is_looked_up_where_it_begins() {
        let mut stacks = Stacks::default();
        let [leaf, spin] = [0x1000, 0x4000].map(|pc| FramePc::new(pc, PcKind::Instruction).0);
        let stack = stacks.intern(&[leaf, 0x2000, 0x3000, spin, 0x5000]);
        let looked_up: Vec<u64> = stacks.frames(stack).map(FramePc::lookup).collect();
        assert_eq!(looked_up, [0x1000, 0x1fff, 0x3000, 0x4000, 0x4fff]);
    }

    #[test]
    fn a_stack_is_new_once_to_each_process() {
        let mut stacks = Stacks::default();
        let (kernel, user) = (stacks.intern(&[]), stacks.intern(&[1, 2]));
        let process = |pid| ProcessId { pid: Pid(pid), start: MonoNs(7) };
        assert!(stacks.is_new_to(process(1), kernel, user));
        assert!(!stacks.is_new_to(process(1), kernel, user));
        assert!(stacks.is_new_to(process(2), kernel, user));
        stacks.clear();
        let (kernel, user) = (stacks.intern(&[]), stacks.intern(&[3]));
        assert!(stacks.is_new_to(process(1), kernel, user), "the index means another stack now");
    }

    #[test]
    fn a_cleared_table_gives_no_frames_for_old_indices() {
        let mut stacks = Stacks::default();
        let stack = stacks.intern(&[1, 2]);
        stacks.clear();
        assert!(stacks.words_of(stack).is_empty());
    }
}
