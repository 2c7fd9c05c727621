//! Finishes walks that met generated code before its rows had come.
//!
//! The kernel part has walked such a frame by frame pointer, and has sent along the registers at it and a piece of the
//! stack. Once everything announced up to the sample's time is known, the same step function walks on from there, by
//! the rows of that time. Rows are right as far as they lead, so their chain takes the place of the kernel part's,
//! with two exceptions: where it says the same and less, the longer one stays; and where it leaves the piece at a
//! frame that the other chain has, too, once, it goes on as that one.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};

use profiler_common::late::StackPiece;
use profiler_common::limits::MAX_USER_FRAMES;
use profiler_common::machine::Machine;
use profiler_common::row::Row;
use profiler_common::stop::StopReason;
use profiler_common::unwind::{Frame, StackMemory, UnwindRules, lookup_pc, step};

use crate::account::LateStats;
use crate::kernel::{RawPiece, Tables};
use crate::process::{Process, ProcessId};
use crate::record::announced::Announced;
use crate::record::unwinding::Unwinding;
use crate::record::waiting::Waiting;
use crate::units::{Avma, MonoNs};

/// Bytes of pieces kept at most: 2048 whole ones, which is 20 seconds of one CPU at 99 Hz.
const MAX_BYTES: usize = 32 << 20;
/// The same of a recording without end.
const ENDLESS_BYTES: usize = 8 << 20;
/// Pieces of code that never gets rows after which a process sends none any more, unless a fifth were of use.
const MAX_IN_VAIN: u64 = 256;

/// Addresses of unknown code that are remembered of one process in one turn.
const MAX_WANTED: usize = 256;

/// Names a kept piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LateId(u64);

/// What can be walked on from.
#[derive(Debug)]
struct Piece {
    at: Frame,
    index: usize,
    base: u64,
    bytes: Box<[u8]>,
    /// Everything up to its time is known, and this code is not.
    in_vain: bool,
    /// Rows of a file that it leads through are being built.
    loading: bool,
    /// The unknown code that its walk has met last.
    asked: Option<u64>,
}

/// What pieces were good for in one process.
#[derive(Clone, Copy, Debug, Default)]
struct Use {
    by_rows: u64,
    in_vain: u64,
}

/// The pieces of waiting samples.
#[derive(Debug, Default)]
pub(super) struct LateSamples {
    pieces: HashMap<LateId, Piece>,
    bytes: usize,
    /// Keeps less, because it has no end.
    endless: bool,
    next: u64,
    uses: HashMap<ProcessId, Use>,
    /// Generated code that walks have met and nothing is known about.
    wanted: HashMap<ProcessId, BTreeSet<u64>>,
    stats: LateStats,
}

/// Where a walk leads.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Finished {
    /// Its code may still be announced.
    NotYet,
    /// Where the kernel part's did, by frame pointer.
    AsWalked,
    /// By rows from this user frame on.
    ByRows(usize, Option<Chain>),
}

/// All user frames, innermost first, and why they end, if that is not as the kernel part had it.
type Chain = (Vec<u64>, StopReason);

/// The rows of one process at the time of one sample.
pub(super) struct RowsThen<'a> {
    pub(super) process: &'a Process,
    pub(super) code: &'a Announced,
    pub(super) unwinding: &'a Unwinding,
    pub(super) tables: &'a Tables,
    pub(super) time: MonoNs,
    /// See [`UnwindRules::code_mask`].
    pub(super) code_mask: u64,
    /// Set when a row was wanted of a file whose rows are being built.
    pub(super) loading: Cell<bool>,
    /// Set to the address of generated code that nothing is known about.
    pub(super) unknown: Cell<Option<u64>>,
}

impl UnwindRules for RowsThen<'_> {
    fn row(&self, lookup_pc: u64) -> Row {
        let Some(mapping) = self.process.space.lookup(Avma(lookup_pc), self.time) else { return Row::GAP };
        if mapping.may_hold_generated_code() {
            let row = self.code.rows().and_then(|rows| rows.row_at(lookup_pc, self.time));
            if row.is_none() {
                self.unknown.set(Some(lookup_pc));
            }
            return row.unwrap_or(Row::GAP);
        }
        match self.unwinding.known_object(self.process.id, mapping) {
            Some((object, bias)) => self.tables.row(object, lookup_pc.wrapping_sub(bias)),
            None => {
                self.loading.set(self.loading.get() || self.unwinding.is_loading(self.process.id, mapping));
                Row::GAP
            }
        }
    }

    fn is_code(&self, lookup_pc: u64) -> bool {
        self.process.space.lookup(Avma(lookup_pc), self.time).is_some()
    }

    fn machine(&self) -> Machine {
        Machine::NATIVE
    }

    fn code_mask(&self) -> u64 {
        self.code_mask
    }
}

impl LateSamples {
    /// Keeps what a sample brought along, if there is room.
    pub(super) fn keep(&mut self, raw: &RawPiece<'_>) -> Option<LateId> {
        self.stats.pieces += 1;
        self.stats.bytes += raw.bytes.len() as u64;
        let header = raw.header;
        // What lies below the stack pointer is nobody's frame.
        let below = header.sp.saturating_sub(header.base) & !7;
        let bytes = usize::try_from(below).ok().and_then(|below| raw.bytes.get(below..)).unwrap_or_default();
        let limit = if self.endless { ENDLESS_BYTES } else { MAX_BYTES };
        if self.bytes.saturating_add(bytes.len()) > limit {
            self.stats.refused_for_memory += 1;
            return None;
        }
        self.bytes += bytes.len();
        let id = LateId(self.next);
        self.next += 1;
        let base = header.base.saturating_add(below);
        let (at, index, asked) = (header.frame(), usize::from(header.index), None);
        self.pieces.insert(id, Piece { at, index, base, bytes: bytes.into(), in_vain: false, loading: false, asked });
        Some(id)
    }

    /// From now on less is kept.
    pub(super) fn begin_endless(&mut self) {
        self.endless = true;
    }

    /// Whether none is kept.
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Whether a process that announces code with rows is to send pieces: not if hardly any was of use.
    pub(super) fn wants(&self, process: ProcessId) -> bool {
        let used = self.uses.get(&process).copied().unwrap_or_default();
        used.in_vain < MAX_IN_VAIN || used.in_vain / 4 <= used.by_rows
    }

    /// Walks on from a sample's piece if its code has rows; `walked` are the user frames that the sample has. With
    /// `last`, nothing will be announced any more. The piece is gone unless the answer is [`Finished::NotYet`].
    pub(super) fn finish(
        &mut self,
        sample: &Waiting,
        walked: &[u64],
        rows: Option<&RowsThen<'_>>,
        last: bool,
    ) -> Finished {
        let Some(id) = sample.late else { return Finished::AsWalked };
        let Some(piece) = self.pieces.get_mut(&id) else { return Finished::AsWalked };
        let address = lookup_pc(piece.at.registers.pc, piece.at.kind);
        let row = rows.map_or(Row::GAP, |rows| rows.row(address));
        let by_rows = row.cfa_kind() != Row::GAP.cfa_kind();
        let finished = match rows.filter(|_| by_rows) {
            Some(rows) => Finished::ByRows(piece.index, piece.finish(walked, sample.stop, rows)),
            None => Finished::AsWalked,
        };
        piece.loading = rows.is_some_and(|rows| rows.loading.get());
        let wanted = rows.and_then(|rows| rows.unknown.get()).filter(|_| !last);
        // It waits once for each address: then that is as much as will be known.
        let asks = wanted.is_some() && std::mem::replace(&mut piece.asked, wanted) != wanted;
        if let Some(address) = wanted {
            let wanted = self.wanted.entry(sample.process).or_default();
            if wanted.len() < MAX_WANTED {
                wanted.insert(address);
            }
        }
        if row.is_unknown() && !piece.loading && !last && !std::mem::replace(&mut piece.in_vain, true) {
            self.uses.entry(sample.process).or_default().in_vain += 1;
        }
        if !last && (row.is_unknown() || piece.loading || asks) {
            return Finished::NotYet;
        }
        self.drop_piece(id);
        if by_rows {
            self.stats.finished_by_rows += 1;
            self.stats.changed += u64::from(matches!(finished, Finished::ByRows(_, Some(_))));
            self.uses.entry(sample.process).or_default().by_rows += 1;
        } else {
            self.stats.finished_by_frame_pointer += 1;
        }
        finished
    }

    /// Processes with such code.
    pub(super) fn wanting(&self) -> Vec<ProcessId> {
        self.wanted.keys().copied().collect()
    }

    /// A process has begun to announce code: what was in vain before says nothing.
    pub(super) fn hope_anew(&mut self, process: ProcessId) {
        self.uses.remove(&process);
    }

    /// Forgets what pieces were good for in other processes.
    pub(super) fn retain(&mut self, wanted: impl Fn(ProcessId) -> bool) {
        self.uses.retain(|process, _| wanted(*process));
        self.wanted.retain(|process, _| wanted(*process));
    }

    /// Generated code that walks have met and nothing is known about, by process. It is forgotten with this.
    pub(super) fn take_wanted(&mut self) -> HashMap<ProcessId, BTreeSet<u64>> {
        std::mem::take(&mut self.wanted)
    }

    /// Wants the code of a sample's piece to be read if nothing is known about it by now, although it may still be
    /// announced: what is met next need not be walked by frame pointer until then.
    pub(super) fn ask(&mut self, sample: &Waiting, rows: &RowsThen<'_>) {
        let Some(piece) = sample.late.and_then(|id| self.pieces.get_mut(&id)) else { return };
        let address = lookup_pc(piece.at.registers.pc, piece.at.kind);
        if piece.asked.is_some() || !rows.row(address).is_unknown() {
            return;
        }
        piece.asked = Some(address);
        let wanted = self.wanted.entry(sample.process).or_default();
        if rows.unknown.get() == Some(address) && wanted.len() < MAX_WANTED {
            wanted.insert(address);
        }
    }

    /// Whether a sample must not be resolved yet, because rows that its walk needs are being built.
    pub(super) fn holds(&self, sample: &Waiting) -> bool {
        sample.late.and_then(|id| self.pieces.get(&id)).is_some_and(|piece| piece.loading)
    }

    /// A sample is resolved with its piece unused: nothing waits for its code any more.
    pub(super) fn give_up(&mut self, sample: &Waiting) {
        if sample.late.is_some_and(|id| self.drop_piece(id)) {
            self.stats.finished_by_frame_pointer += 1;
        }
    }

    fn drop_piece(&mut self, id: LateId) -> bool {
        let Some(piece) = self.pieces.remove(&id) else { return false };
        self.bytes = self.bytes.saturating_sub(piece.bytes.len());
        true
    }

    /// What became of all pieces so far; those that still wait are in none of the counts but the first.
    pub(super) fn stats(&self) -> LateStats {
        LateStats { processes_given_up: self.uses.keys().filter(|id| !self.wants(**id)).count(), ..self.stats }
    }
}

impl Piece {
    /// The chain that counts, if it is another one than the kernel part's.
    fn finish(&self, walked: &[u64], stop: StopReason, rules: &impl UnwindRules) -> Option<Chain> {
        let (before, rest) = walked.split_at_checked(self.index)?;
        let memory = StackPiece::new(self.base, &self.bytes);
        let limit = MAX_USER_FRAMES.saturating_sub(before.len());
        let (mut anew, mut end) = walk(self.at, &memory, rules, limit);
        if end == StopReason::ReadFault && memory.was_left() {
            end = StopReason::PieceEnd;
        }
        let no_more = rest.starts_with(&anew) && (rest.len() > anew.len() || end == StopReason::PieceEnd);
        if no_more || (rest == anew && end == stop) {
            return None;
        }
        if end == StopReason::PieceEnd
            && let Some(tail) = anew.last().and_then(|last| behind_only(rest, *last))
        {
            anew.extend(tail);
            end = stop;
        }
        Some(([before, &anew].concat(), end))
    }
}

/// The frames from `at` on, innermost first, `limit` at most, and why they end.
fn walk(at: Frame, memory: &impl StackMemory, rules: &impl UnwindRules, limit: usize) -> (Vec<u64>, StopReason) {
    let mut frames = vec![at.registers.pc];
    let mut frame = at;
    while frames.len() < limit {
        match step(frame, memory, rules) {
            Ok(caller) => frame = caller,
            Err(reason) => return (frames, reason),
        }
        frames.push(frame.registers.pc);
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
mod tests;
