//! Samples that wait until it is certain what ran at their addresses.
//!
//! The newest records of a jitdump reach the file late, so a sample is resolved when every record up to its time has
//! been seen, not when it arrives. Stacks repeat: each distinct one is kept once, a waiting sample is a few words.

use std::collections::VecDeque;

use indexmap::IndexSet;
use profiler_common::limits::COMM_LEN;
use profiler_common::stop::StopReason;
use rustc_hash::FxHashSet;

use crate::process::ProcessId;
use crate::record::late::LateId;
use crate::units::{MonoNs, Tid};

/// Samples that wait at most; beyond it the oldest is resolved with what is known.
pub(super) const MAX_WAITING: usize = 256 << 10;
/// Words of distinct stacks kept at most, 64 MiB.
const MAX_STACK_WORDS: usize = 8 << 20;
/// Words of stacks that are kept when no sample waits, 1 MiB: a program comes back to the same ones.
pub(super) const KEPT_STACK_WORDS: usize = 128 << 10;
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
    /// Kernel and user stacks of a process whose addresses have been asked for.
    asked: FxHashSet<(ProcessId, RawStack, RawStack)>,
}

impl Stacks {
    /// The stack's index, and whether it is new.
    pub(super) fn intern(&mut self, frames: &[u64]) -> (RawStack, bool) {
        if let Some(index) = self.known.get_index_of(frames) {
            return (RawStack(index), false);
        }
        self.words = self.words.saturating_add(frames.len());
        (RawStack(self.known.insert_full(frames.into()).0), true)
    }

    /// The addresses, innermost first.
    pub(super) fn frames(&self, stack: RawStack) -> &[u64] {
        self.known.get_index(stack.0).map_or(&[], |frames| frames)
    }

    /// Whether names for a sample's stacks have to be asked for, once for all samples that are alike.
    pub(super) fn is_new_to(&mut self, process: ProcessId, kernel: RawStack, user: RawStack) -> bool {
        if self.asked.len() >= MAX_ASKED {
            self.asked.clear();
        }
        self.asked.insert((process, kernel, user))
    }

    /// Whether the waiting samples must be resolved to make room.
    pub(super) fn is_full(&self) -> bool {
        self.words >= MAX_STACK_WORDS
    }

    /// How many words are kept.
    pub(super) fn words(&self) -> usize {
        self.words
    }

    /// Forgets all stacks. Indices given out before are void.
    pub(super) fn clear(&mut self) {
        self.known.clear();
        self.asked.clear();
        self.words = 0;
    }
}

/// A sample that has been assigned to its process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) time: MonoNs,
    pub(super) process: ProcessId,
    pub(super) tid: Tid,
    pub(super) comm: [u8; COMM_LEN],
    pub(super) kernel: RawStack,
    pub(super) user: RawStack,
    pub(super) stop: StopReason,
    /// What the walk can be finished from.
    pub(super) late: Option<LateId>,
    /// From this user frame on, the rows of the sample's time were used; `usize::MAX` if not.
    pub(super) true_from: usize,
}

/// The waiting samples, oldest first as they arrived.
pub(super) type Queue = VecDeque<Waiting>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Pid;

    #[test]
    fn equal_stacks_share_an_index() {
        let mut stacks = Stacks::default();
        let (first, new) = stacks.intern(&[1, 2]);
        assert!(new);
        assert_eq!(stacks.intern(&[1, 2]), (first, false));
        let (second, new) = stacks.intern(&[1]);
        assert!(new && second != first);
        assert_eq!(stacks.frames(first), [1, 2]);
        assert_eq!(stacks.frames(second), [1]);
    }

    #[test]
    fn a_stack_is_new_once_to_each_process() {
        let mut stacks = Stacks::default();
        let (kernel, user) = (stacks.intern(&[]).0, stacks.intern(&[1, 2]).0);
        let process = |pid| ProcessId { pid: Pid(pid), start: MonoNs(7) };
        assert!(stacks.is_new_to(process(1), kernel, user));
        assert!(!stacks.is_new_to(process(1), kernel, user));
        assert!(stacks.is_new_to(process(2), kernel, user));
        stacks.clear();
        let (kernel, user) = (stacks.intern(&[]).0, stacks.intern(&[3]).0);
        assert!(stacks.is_new_to(process(1), kernel, user), "the index means another stack now");
    }

    #[test]
    fn a_cleared_table_gives_no_frames_for_old_indices() {
        let mut stacks = Stacks::default();
        let (stack, _) = stacks.intern(&[1, 2]);
        stacks.clear();
        assert!(stacks.frames(stack).is_empty());
    }
}
