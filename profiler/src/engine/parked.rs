//! Stacks that are not the thread's: on a dirty scheduler's thread runs what an Erlang process has called, and the process'
//! own stack lies in memory.
//!
//! ```text
//! thread:  function in C ← erts_call_dirty_nif                ← erts_dirty_process_main ← …
//! sample:  function in C ← erts_call_dirty_nif ← m:f/1 ← … ← normal_exit/0 ← erts_dirty_process_main ← …
//! ```
//!
//! Of Erlang's words none but a return address has its two lowest bits clear: such a word that leads to generated code is a
//! frame.

use std::ops::Range;

use jitprof_common::sample::FramePc;
use jitprof_common::unwind::PcKind;

use crate::engine::border::FrameList;
use crate::engine::entry::Entry;
use crate::engine::frames::in_module;
use crate::engine::pending::{Pending, Stacks};
use crate::engine::place::Place;
use crate::engine::process::Process;

/// Those bits: what is no return address is tagged by them.
const TAG: u64 = 3;

/// A user stack with the frames of another one in it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Parked {
    /// All of it, innermost first.
    pub(super) user: Vec<u64>,
    /// Which are the other one's.
    pub(super) frames: Range<usize>,
    /// Its outermost is among them.
    pub(super) is_whole: bool,
}

/// What of the words of a stack may be returned to.
pub(super) fn words_of(list: &FrameList) -> Box<[u64]> {
    list.records.iter().map(|[word, _]| *word).filter(|word| *word != 0 && word & TAG == 0).collect()
}

/// The user stack of a sample with the frames of the stack that its work was called from; nothing if there are none, or what
/// runs is not called from there.
pub(super) fn placed(sample: &Pending, process: &Process, stacks: &Stacks) -> Option<Parked> {
    let stack = process.tables.parked_stack().filter(|_| !sample.parked.is_empty())?;
    let is_call = |pc: FramePc| in_module(&process.space, &stack.calls, pc, sample.time).is_some();
    let from = stacks.frames(sample.user).position(is_call)? + 1;
    let (inner, is_whole) = returned_to(sample, process);
    let (before, behind) = stacks.words_of(sample.user).split_at_checked(from)?;
    let frames = from..from + inner.len();
    let user = [before, inner.as_slice(), behind].concat();
    (!inner.is_empty()).then_some(Parked { user, frames, is_whole })
}

/// The frames among a sample's words, up to where the first function returns to, and whether that was met: behind it is what
/// happens to lie there.
fn returned_to(sample: &Pending, process: &Process) -> (Vec<u64>, bool) {
    let mut found = Vec::new();
    for word in &sample.parked {
        let pc = FramePc::new(*word, PcKind::ReturnAddress);
        let is_last = match Place::of(process, pc, sample.time) {
            Place::Announced { hit, .. } => Entry::of_generated(hit.name(), process.code.is_of_beam()) == Entry::Yes,
            Place::Generated(_) => false,
            Place::File(_) | Place::Special(_) | Place::Unmapped | Place::NotKnown | Place::Gone => continue,
        };
        found.push(pc.0);
        if is_last {
            return (found, true);
        }
    }
    (found, false)
}
