//! Deferred unwinding: finishes walks that met code before its rows had come.
//!
//! The BPF program has walked such a frame by frame pointer, and has sent along the registers at it and a snapshot of
//! the stack. Once everything announced up to the sample's time is known, the same step function walks on from there, by
//! the rows of that time. Rows are right as far as they lead, so their chain takes the place of the BPF program's, with
//! two exceptions: where it says the same and less, the longer one stays; and where it leaves the snapshot at a frame
//! that the other chain has, too, once, it goes on as that one.

use std::cell::Cell;
use std::ops::Range;

use jitprof_common::limits::MAX_USER_FRAMES;
use jitprof_common::machine::Machine;
use jitprof_common::row::Row;
use jitprof_common::sample::FramePc;
use jitprof_common::snapshot::StackBytes;
use jitprof_common::stop::StopReason;
use jitprof_common::taken::MAX_WORDS;
use jitprof_common::units::{Avma, MonoNs};
use jitprof_common::unwind::{Frame, StackMemory, UnwindRules, lookup_pc, step};

use crate::account::DeferredStats;
use crate::engine::border::{FrameWords, StackSnapshot};
use crate::engine::files::Files;
use crate::engine::learned::{Learned, is_loop_code};
use crate::engine::pending::Pending;
use crate::engine::place::Place;
use crate::engine::process::Process;
use crate::engine::row_cache::{RowCache, RowsOf};
use crate::engine::tables::Tables;
use crate::profile::{Holder, Shares};
use crate::runtime::Capture;

/// Bytes of snapshots kept at most: 2048 whole ones, which is 20 seconds of one CPU at 99 Hz.
const MAX_BYTES: usize = 32 << 20;
/// The same of a continuous recording.
const CONTINUOUS_BYTES: usize = 8 << 20;
/// Snapshots at code that never gets rows after which a process sends none any more, unless a fifth were of use.
const MAX_IN_VAIN: u64 = 256;

/// What can be walked on from.
#[derive(Debug)]
pub(super) struct Snapshot {
    at: Frame,
    index: usize,
    base: u64,
    bytes: Box<[u8]>,
    /// Whose room it takes.
    holder: Option<Holder>,
    /// Everything up to its time is known, and this code is not.
    in_vain: bool,
    /// Rows that it leads through are being made, or its code is being read.
    loading: bool,
    /// The unknown code that its walk has met last.
    asked: Option<u64>,
}

/// What snapshots were good for in one process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SnapshotUse {
    by_rows: u64,
    in_vain: u64,
}

impl SnapshotUse {
    /// Whether a process that announces code with rows is to send snapshots: not if hardly any was of use.
    pub(super) fn is_worth_it(self) -> bool {
        self.in_vain < MAX_IN_VAIN || self.in_vain / 4 <= self.by_rows
    }
}

/// Where a walk leads.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Finished {
    /// Its code may still be announced.
    NotYet,
    /// Where the BPF program's did, by frame pointer.
    AsWalked,
    /// By rows, which have found the callers of these user frames; the chain, if it is another one; and what the snapshot has
    /// of words that samples take along of such frames.
    ByRows(Range<usize>, Option<Chain>, Vec<FrameWords>),
}

/// All user frames, innermost first, each as [`FramePc`] encodes it, and why they end.
type Chain = (Vec<u64>, StopReason);

/// What finishing looks things up in.
#[derive(Clone, Copy)]
pub(super) struct Lookup<'a> {
    pub(super) files: &'a Files,
    pub(super) rows: &'a RowCache,
    pub(super) tables: &'a Tables,
    /// See [`UnwindRules::code_mask`].
    pub(super) code_mask: u64,
}

/// The rows of one process at the time of one sample.
pub(super) struct RowsThen<'a> {
    process: &'a Process,
    lookup: Lookup<'a>,
    time: MonoNs,
    /// Set when a row was wanted of a file, or of code, whose rows are being made.
    loading: Cell<bool>,
    /// Set to the address of generated code that nothing is known about.
    unknown: Cell<Option<u64>>,
    /// Whether the last row was one of a file, or of code that runs within an interpreter's loop.
    is_certain: Cell<bool>,
}

impl<'a> RowsThen<'a> {
    /// Of a process at a time.
    pub(super) fn new(process: &'a Process, lookup: Lookup<'a>, time: MonoNs) -> Self {
        Self {
            process,
            lookup,
            time,
            loading: Cell::new(false),
            unknown: Cell::new(None),
            is_certain: Cell::new(false),
        }
    }
}

impl UnwindRules for RowsThen<'_> {
    fn row(&self, lookup_pc: u64) -> Row {
        self.is_certain.set(false);
        let mapped = match Place::mapped(&self.process.space, Avma(lookup_pc), self.time) {
            Place::File(mapped) => mapped,
            Place::Generated(mapped) => {
                let row = self.process.code.rows().and_then(|rows| rows.row_at(lookup_pc, self.time));
                // Such code leaves the frame pointer alone: where its row leads to no code, that would skip its caller.
                let has_row = row.is_some_and(|row| !row.is_gap());
                self.is_certain.set(has_row && is_loop_code(self.process, mapped));
                match row {
                    None if self.process.code.awaits_rows(lookup_pc, self.time) => self.loading.set(true),
                    None => self.unknown.set(Some(lookup_pc)),
                    Some(_) => {}
                }
                return row.unwrap_or(Row::GAP);
            }
            _ => return Row::GAP,
        };
        match self.lookup.rows.known(self.lookup.files, mapped) {
            RowsOf::Object { file, object, bias } => {
                let row = self.lookup.tables.row((file, object), lookup_pc.wrapping_sub(bias));
                self.is_certain.set(!row.is_gap());
                row
            }
            RowsOf::NotYet => {
                self.loading.set(true);
                Row::GAP
            }
            // Who lives will have asked by now.
            RowsOf::Unasked | RowsOf::Nothing => Row::GAP,
        }
    }

    fn is_code(&self, lookup_pc: u64) -> bool {
        self.process.space.lookup(Avma(lookup_pc), self.time).is_some()
    }

    fn is_certain(&self) -> bool {
        self.is_certain.get()
    }

    fn machine(&self) -> Machine {
        Machine::NATIVE
    }

    fn code_mask(&self) -> u64 {
        self.lookup.code_mask
    }
}

/// The snapshots of waiting samples: how much they take, and what became of them.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    kept: usize,
    bytes: usize,
    shares: Shares,
    /// Keeps less.
    continuous: bool,
    stats: DeferredStats,
}

impl Deferred {
    /// Keeps what a sample brought along, if there is room, and its holder leaves some to the others.
    pub(super) fn keep(&mut self, raw: &StackSnapshot<'_>, holder: Holder) -> Option<Box<Snapshot>> {
        self.stats.snapshots += 1;
        self.stats.bytes += raw.bytes.len() as u64;
        let at = raw.frame();
        // What lies below the stack pointer is nobody's frame.
        let below = at.registers.sp.saturating_sub(raw.base) & !7;
        let bytes = usize::try_from(below).ok().and_then(|below| raw.bytes.get(below..)).unwrap_or_default();
        let limit = if self.continuous { CONTINUOUS_BYTES } else { MAX_BYTES };
        let holder = Some(holder);
        if !self.shares.may_take(holder, bytes.len(), (self.bytes, limit)) {
            self.stats.refused_for_memory += 1;
            return None;
        }
        self.shares.take(holder, bytes.len());
        self.bytes += bytes.len();
        self.kept += 1;
        Some(Box::new(Snapshot {
            at,
            index: usize::from(raw.index),
            base: raw.base.saturating_add(below),
            bytes: bytes.into(),
            holder,
            in_vain: false,
            loading: false,
            asked: None,
        }))
    }

    /// Asserts that these are the snapshots that are kept, and not too many.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn assert_sound<'a>(&self, kept: impl Iterator<Item = &'a Snapshot>) {
        let (count, bytes) = kept.fold((0, 0), |(count, bytes), one| (count + 1, bytes + one.bytes.len()));
        assert_eq!((self.kept, self.bytes), (count, bytes));
        assert!(self.bytes <= MAX_BYTES);
    }

    /// From now on less is kept.
    pub(super) fn begin_continuous(&mut self) {
        self.continuous = true;
    }

    /// Whether none is kept.
    pub(super) fn is_empty(&self) -> bool {
        self.kept == 0
    }

    /// Walks on from a sample's snapshot if its code has rows; `walked` are the user frames that the sample has. With
    /// `last`, nothing will be announced any more. The snapshot is gone unless the answer is [`Finished::NotYet`].
    pub(super) fn finish(
        &mut self,
        sample: &mut Pending,
        walked: &[u64],
        (rules, learned): (&RowsThen<'_>, &Learned),
        last: bool,
    ) -> (Finished, Effects) {
        let capture = rules.process.capture();
        let mut effects = Effects::default();
        let Some(snapshot) = &mut sample.snapshot else { return (Finished::AsWalked, effects) };
        let address = lookup_pc(snapshot.at.registers.pc, snapshot.at.kind);
        let row = rules.row(address);
        let by_rows = row.cfa_kind() != Row::GAP.cfa_kind();
        // Announced code without rows was walked by frame pointer, or by the rows of what it has replaced.
        let anew = (!row.is_unknown()).then(|| snapshot.walk(rules));
        let wanted = rules.unknown.get().filter(|_| !last);
        // Nothing known yet is one thing, and nothing to be known another: what can be read is waited for.
        let asks = wanted.is_some() && std::mem::replace(&mut snapshot.asked, wanted) != wanted;
        let reads = wanted.is_some_and(|address| learned.awaits(rules.process, address, rules.time));
        snapshot.loading = rules.loading.get() || reads;
        effects.wanted = wanted;
        if row.is_unknown() && !snapshot.loading && !last && !std::mem::replace(&mut snapshot.in_vain, true) {
            effects.in_vain = true;
        }
        if !last && (row.is_unknown() || snapshot.loading || asks) {
            return (Finished::NotYet, effects);
        }
        let from = snapshot.index;
        let finished = match anew.and_then(|anew| snapshot.chain(anew, (walked, sample.stop), capture)) {
            Some((until, chain, words)) => Finished::ByRows(from..until, chain, words),
            None => Finished::AsWalked,
        };
        self.drop_snapshot(sample);
        self.stats.changed += u64::from(matches!(finished, Finished::ByRows(_, Some(_), _)));
        if by_rows {
            self.stats.finished_by_rows += 1;
            effects.by_rows = true;
        } else {
            self.stats.finished_by_frame_pointer += 1;
        }
        (finished, effects)
    }

    /// Wants the code of a sample's snapshot to be read if nothing is known about it by now, although it may still be
    /// announced: what is met next need not be walked by frame pointer until then.
    pub(super) fn ask(&mut self, sample: &mut Pending, rules: &RowsThen<'_>) -> Effects {
        let mut effects = Effects::default();
        let Some(snapshot) = &mut sample.snapshot else { return effects };
        let address = lookup_pc(snapshot.at.registers.pc, snapshot.at.kind);
        if snapshot.asked.is_some() || !rules.row(address).is_unknown() {
            return effects;
        }
        snapshot.asked = Some(address);
        effects.wanted = rules.unknown.get().filter(|unknown| *unknown == address);
        effects
    }

    /// Whether a sample must not be resolved yet, because rows that its walk needs are being built.
    pub(super) fn holds(sample: &Pending) -> bool {
        sample.snapshot.as_ref().is_some_and(|snapshot| snapshot.loading)
    }

    /// A sample is resolved with its snapshot unused: nothing waits for its code any more.
    pub(super) fn give_up(&mut self, sample: &mut Pending) {
        if sample.snapshot.is_some() {
            self.drop_snapshot(sample);
            self.stats.finished_by_frame_pointer += 1;
        }
    }

    fn drop_snapshot(&mut self, sample: &mut Pending) {
        if let Some(snapshot) = sample.snapshot.take() {
            self.shares.give_back(snapshot.holder, snapshot.bytes.len());
            self.bytes = self.bytes.saturating_sub(snapshot.bytes.len());
            self.kept = self.kept.saturating_sub(1);
        }
    }

    /// What became of all snapshots so far; those that still wait are in none of the counts but the first.
    pub(super) fn stats(&self) -> DeferredStats {
        self.stats
    }
}

/// What a walk has found out about its process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Effects {
    wanted: Option<u64>,
    in_vain: bool,
    by_rows: bool,
}

impl Effects {
    /// Notes it.
    pub(super) fn note(self, learned: &mut Learned, of_use: &mut SnapshotUse) {
        if let Some(address) = self.wanted {
            learned.want(address);
        }
        of_use.in_vain += u64::from(self.in_vain);
        of_use.by_rows += u64::from(self.by_rows);
    }
}

impl Snapshot {
    /// The frames from that at which it was taken on, innermost first, and why they end.
    fn walk(&self, rules: &impl UnwindRules) -> (Vec<Frame>, StopReason) {
        let memory = StackBytes::new(self.base, &self.bytes);
        let (frames, end) = walk(self.at, &memory, rules, MAX_USER_FRAMES.saturating_sub(self.index));
        let is_left = end == StopReason::ReadFault && memory.was_left();
        (frames, if is_left { StopReason::SnapshotEnd } else { end })
    }

    /// Of the frames of a walk and those of the BPF program, the chain that counts, if it is another one than the latter,
    /// behind the first frame whose caller was not looked for here; with the words of its frames. `None` if the sample has no
    /// such frame.
    fn chain(
        &self,
        (frames, mut end): (Vec<Frame>, StopReason),
        (walked, stop): (&[u64], StopReason),
        capture: Option<&Capture>,
    ) -> Option<(usize, Option<Chain>, Vec<FrameWords>)> {
        let (before, rest) = walked.split_at_checked(self.index)?;
        let mut anew: Vec<u64> = frames.iter().copied().map(pc_of).collect();
        let last = before.len() + anew.len().saturating_sub(1);
        // A stack that was read as it stands comes without any walk.
        let stands = stop == StopReason::SnapshotEnd && self.index == 0;
        let memory = StackBytes::new(self.base, &self.bytes);
        let words = capture.map(|capture| words((capture, stands), (before.len(), &frames), &memory));
        let words = words.unwrap_or_default();
        if rest == anew && end == stop {
            return Some((usize::MAX, None, words));
        }
        if rest.starts_with(&anew) && (rest.len() > anew.len() || end == StopReason::SnapshotEnd) {
            return Some((last, None, words));
        }
        let mut until = usize::MAX;
        if end == StopReason::SnapshotEnd
            && let Some(tail) = anew.last().and_then(|last| behind_only(rest, *last))
        {
            anew.extend(tail);
            (until, end) = (last, stop);
        }
        Some((until, Some(([before, &anew].concat(), end)), words))
    }
}

fn pc_of(frame: Frame) -> u64 {
    FramePc::new(frame.registers.pc, frame.kind).0
}

/// What stands on the stack of the words that samples take along of a runtime's frames, of those that are called; the first
/// frame has the number `from`. Elsewhere nothing is read: it is too late for that. So frames whose function a collector may
/// have moved are left out, but of a thread that stands.
fn words(
    (capture, stands): (&Capture, bool),
    (from, frames): (usize, &[Frame]),
    memory: &impl StackMemory,
) -> Vec<FrameWords> {
    let Some(read) = capture.reads.first().filter(|read| read.base.is_none()) else { return Vec::new() };
    let is_meant = |frame: &Frame| match capture.generated {
        Some((start, size)) => lookup_pc(frame.registers.pc, frame.kind).wrapping_sub(start.0) < size,
        None => stands,
    };
    let of = |(at, frame): (usize, &Frame)| {
        let mut words = [0; MAX_WORDS];
        let mut address = frame.registers.fp.checked_add_signed(read.offset.into()).filter(|_| is_meant(frame))?;
        for word in words.iter_mut().skip(read.to.into()).take(read.words.into()) {
            *word = memory.read_u64(address).ok()?;
            address = address.checked_add(size_of::<u64>() as u64)?;
        }
        Some(FrameWords { index: u16::try_from(from + at).ok()?, reads: 1, words })
    };
    frames.iter().enumerate().skip(1).filter_map(of).collect()
}

/// The frames from `at` on, innermost first, `limit` at most, and why they end.
fn walk(at: Frame, memory: &impl StackMemory, rules: &impl UnwindRules, limit: usize) -> (Vec<Frame>, StopReason) {
    let mut frames = vec![at];
    let mut frame = at;
    while frames.len() < limit {
        match step(frame, memory, rules) {
            Ok(caller) => frame = caller,
            Err(reason) => return (frames, reason),
        }
        frames.push(frame);
    }
    (frames, StopReason::DepthLimit)
}

/// What follows the only occurrence of `wanted`.
fn behind_only(frames: &[u64], wanted: u64) -> Option<&[u64]> {
    let at = frames.iter().position(|frame| *frame == wanted)?;
    let tail = frames.get(at + 1..)?;
    (!tail.contains(&wanted)).then_some(tail)
}

#[cfg(test)]
#[path = "deferred_tests.rs"]
mod tests;
