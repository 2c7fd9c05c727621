//! Rows for generated code that nothing has recorded, from the code itself, read from the target's memory.
//!
//! Five kinds of code are looked at, and only where a walk has met it: what a perf map names (it has neither rules nor
//! bytes), copies of a template that has been recorded once, what the runtime has said the place of when it was asked about
//! a frame, what runs within an interpreter's loop, whose frames are all alike, and what the runtime's own tables name: these
//! say how large a frame is, and not where in the code it is made and given up. What was read is compared with memory again from time
//! to time: code that has changed loses its rows. Of the tables' code it is known when it goes, and it changes itself.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use jitprof_common::machine::Machine;
use jitprof_common::row::Row;
use jitprof_common::units::{Avma, MonoNs};
use jitprof_jitdump::code::{CodeHit, CodeOrigin};
use jitprof_unwind::{
    JitSpace, LoopFrame, MAX_HELD_BYTES, loop_code_keeps_frame_pointer, rows_of_called_code, rows_of_code,
    rows_of_loop_code, rows_of_sized_code,
};

use serde_bytes::ByteBuf;

use crate::account::LearnStats;
use crate::engine::border::Request;
use crate::engine::generated::{CodeBounds, GeneratedCode};
use crate::engine::place::Place;
use crate::engine::process::Process;
use crate::engine::requests::{Purpose, Requests};
use crate::engine::space::Mapped;
use crate::symbol::{Digest, digest};

/// Longest function of a perf map that is read, in bytes.
const MAX_FUNCTION_BYTES: u64 = 64 << 10;
/// Addresses looked at in one turn; each costs a system call and some microseconds.
const MAX_PER_TURN: usize = 256;
/// Bytes read in one turn.
const MAX_BYTES_PER_TURN: u64 = 1 << 20;
/// Pieces of code of one process that have rows by this.
const MAX_LEARNED: usize = 16 << 10;
/// Code of the runtime's tables that is known to have its rows: as much as has rows at all.
const MAX_REFINED: usize = CodeBounds::CONTINUOUS.functions;
/// Addresses in vain that are remembered, so that they are not read again before the next check.
const MAX_TRIED: usize = 16 << 10;
/// Bytes of code within an interpreter's loop that get rows together, and that are read around them: what such code holds
/// may have been begun before.
const LOOP_CODE_BYTES: u64 = 4096;
const AROUND_LOOP_CODE: u64 = MAX_HELD_BYTES as u64;
/// Bytes of memory that such code lies in where its runtime does not say where: closures and compiled patterns have less.
const MIN_LOOP_CODE: u64 = if cfg!(test) { 4096 } else { 1 << 20 };
/// Pieces compared with memory in one check.
const MAX_CHECKED: usize = 512;
/// Addresses of unknown code that are remembered in one turn.
const MAX_WANTED: usize = 256;

/// What was read of one process.
#[derive(Debug, Default)]
pub(super) struct Learned {
    /// Generated code that walks have met and nothing is known about.
    wanted: BTreeSet<u64>,
    /// Code of which the runtime has said where it is: length by address.
    places: BTreeMap<u64, u32>,
    /// Length and digest by address.
    pieces: BTreeMap<u64, (u32, Digest)>,
    /// By address of such pieces as are of an interpreter's loop: where the innermost frame of its list is not what it says yet.
    making: BTreeMap<u64, Vec<Range<u64>>>,
    /// Such code keeps the frame pointer, by which it is walked.
    keeps_frame_pointer: bool,
    /// Addresses whose code has been asked for since the last check; those of the value are not answered.
    tried: HashMap<u64, bool>,
    /// Code of the runtime's tables that has been read, by address: since when it is there.
    refined: HashMap<u64, MonoNs>,
    checked_up_to: u64,
    is_checking: bool,
    stats: LearnStats,
}

impl Learned {
    /// A walk has met code at an address of which nothing is known.
    pub(super) fn want(&mut self, address: u64) {
        if self.wanted.len() < MAX_WANTED {
            self.wanted.insert(address);
        }
    }

    /// The runtime says that there is code. What was read of other code in its place is void.
    pub(super) fn note_place(process: &mut Process, start: Avma, size: u32) {
        let (learned, code) = (&mut process.learned, &mut process.code);
        let end = start.0.saturating_add(u64::from(size));
        if learned.places.get(&start.0) == Some(&size) || !code.wants_code() {
            return;
        }
        let overlapped = |all: &mut dyn Iterator<Item = (u64, u32)>| -> Vec<(u64, u32)> {
            all.filter(|(at, size)| at.saturating_add(u64::from(*size)) > start.0).collect()
        };
        let near = start.0.saturating_sub(MAX_FUNCTION_BYTES)..end;
        for (at, _) in overlapped(&mut learned.places.range(near.clone()).map(|(at, size)| (*at, *size))) {
            learned.places.remove(&at);
        }
        for (at, size) in overlapped(&mut learned.pieces.range(near).map(|(at, (size, _))| (*at, *size))) {
            learned.pieces.remove(&at);
            learned.making.remove(&at);
            code.remove_unrecorded(at, u64::from(size));
        }
        learned.tried.retain(|at, outstanding| *outstanding || !(start.0..end).contains(at));
        if learned.places.len() < MAX_LEARNED && (1..=MAX_FUNCTION_BYTES).contains(&u64::from(size)) {
            learned.places.insert(start.0, size);
        }
    }

    /// Its process has the code of the one that it is a copy of, with the rows of what was read there. What was read in between
    /// has lost its own.
    pub(super) fn inherit(&mut self, parent: &Self) {
        self.pieces.clone_from(&parent.pieces);
        self.making.clone_from(&parent.making);
        self.keeps_frame_pointer = parent.keeps_frame_pointer;
    }

    /// The code at an address, where the runtime has said that there is some.
    fn place_of(&self, address: u64) -> Option<(u64, u32)> {
        let (start, size) = self.places.range(..=address).next_back()?;
        (address - start < u64::from(*size)).then_some((*start, *size))
    }

    /// The rows of code of the runtime's tables, which is there since a time, are as exact as they will be.
    pub(super) fn note_read(&mut self, start: Avma, since: MonoNs) {
        if self.refined.len() < MAX_REFINED {
            self.refined.insert(start.0, since);
        }
    }

    /// Nobody has made rows of code of the runtime's tables, or there was no room for them: it is read where it is met.
    pub(super) fn note_unmade(&mut self, starts: &[u64]) {
        starts.iter().for_each(|start| self.note_gone(Avma(*start)));
        self.stats.given_up += starts.len() as u64;
    }

    /// Code of the runtime's tables is there no more.
    pub(super) fn note_gone(&mut self, start: Avma) {
        self.refined.remove(&start.0);
    }

    /// Whether code that the runtime's tables name is to be read: where it was interrupted, or nothing is said of its frame.
    pub(super) fn wants_found(&self, process: &Process, hit: &CodeHit<'_>, is_innermost: bool) -> bool {
        let is_new = || self.refined.len() < MAX_REFINED && self.refined.get(&hit.start().0) != Some(&hit.since());
        let is_open = |rows: &JitSpace| rows.row_at(hit.start().0, hit.since()).is_none_or(Row::is_gap);
        hit.origin() == CodeOrigin::Runtime
            && process.code.wants_code()
            && (is_innermost || process.code.rows().is_some_and(is_open))
            && is_new()
    }

    /// Whether the code at an address is being read, or can be with the next call of [`Learned::ask`].
    pub(super) fn awaits(&self, process: &Process, address: u64, time: MonoNs) -> bool {
        match self.tried.get(&address) {
            Some(outstanding) => *outstanding,
            None => {
                let has_place = || self.place_of(address).is_some() || place(process, address, time).is_some();
                process.is_live() && !self.is_full() && (has_place() || may_be_loop_code(process, address, time))
            }
        }
    }

    fn is_full(&self) -> bool {
        self.pieces.len() >= MAX_LEARNED || self.tried.len() >= MAX_TRIED
    }

    /// Whether walks have met such code since the last call of [`Learned::ask`].
    pub(super) fn is_wanting(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// What was read so far.
    pub(super) fn stats(&self) -> LearnStats {
        self.stats
    }

    /// Has compared what was read with memory. Call it about every second.
    pub(super) fn check(process: &mut Process, requests: &mut Requests) {
        let learned = &mut process.learned;
        learned.tried.retain(|_, outstanding| *outstanding);
        if learned.pieces.is_empty() || std::mem::replace(&mut learned.is_checking, true) {
            return;
        }
        let due = learned.pieces.range(learned.checked_up_to..).take(MAX_CHECKED);
        let pieces: Vec<(Avma, u32)> = due.map(|(at, (size, _))| (Avma(*at), *size)).collect();
        learned.checked_up_to = match pieces.last() {
            Some((at, _)) if pieces.len() == MAX_CHECKED => at.0.saturating_add(1),
            _ => 0,
        };
        if pieces.is_empty() {
            learned.is_checking = false;
            return;
        }
        let starts = pieces.iter().map(|(at, _)| *at).collect();
        requests.ask(Purpose::Check(process.id, starts), Request::Digests { via: process.via, pieces });
    }

    /// Takes up what memory holds now.
    pub(super) fn take_check(process: &mut Process, starts: &[Avma], digests: &[Option<Digest>]) {
        let (learned, code) = (&mut process.learned, &mut process.code);
        learned.is_checking = false;
        for (start, now) in starts.iter().zip(digests) {
            let Some((size, known)) = learned.pieces.get(&start.0).copied() else { continue };
            learned.stats.read_errors += u64::from(now.is_none());
            learned.stats.bytes_read += if now.is_some() { u64::from(size) } else { 0 };
            if *now != Some(known) {
                learned.pieces.remove(&start.0);
                learned.making.remove(&start.0);
                learned.stats.changed += 1;
                code.remove_unrecorded(start.0, u64::from(size));
            }
        }
    }

    /// Has the code read that walks have met.
    pub(super) fn ask(process: &mut Process, requests: &mut Requests) {
        let wanted = std::mem::take(&mut process.learned.wanted);
        let (mut met, mut pieces, mut bytes) = (Vec::new(), Vec::new(), 0);
        for address in wanted.into_iter().take(MAX_PER_TURN) {
            let learned = &mut process.learned;
            if learned.is_full() || bytes >= MAX_BYTES_PER_TURN || learned.tried.contains_key(&address) {
                continue;
            }
            let found = process.code.map.lookup(Avma(address), requests.now);
            let found = found.filter(|hit| hit.origin() == CodeOrigin::Runtime);
            let is_known = match &found {
                // As long as there is no room for it, nothing waits for it either.
                Some(hit) if !process.code.has_place_for(hit) => {
                    learned.tried.insert(address, false);
                    true
                }
                Some(hit) => process.learned.refined.insert(hit.start().0, hit.since()) == Some(hit.since()),
                None => process.code.rows().is_some_and(|rows| rows.row_at(address, requests.now).is_some()),
            };
            if is_known {
                continue;
            }
            if let Some((start, size)) = place(process, address, requests.now) {
                bytes += u64::from(size);
                process.learned.tried.insert(address, true);
                met.push((Avma(address), Avma(start)));
                pieces.push((Avma(start), size));
            }
        }
        if !met.is_empty() {
            requests.ask(Purpose::Learn(process.id, met), Request::Memory { via: process.via, pieces });
        }
    }

    /// Takes up code that was read. Returns whether any of it has rows now, or is known to have none.
    pub(super) fn take(process: &mut Process, met: &[(Avma, Avma)], read: Vec<Option<ByteBuf>>, now: MonoNs) -> bool {
        let mut learned = false;
        // The answer may be that there is none.
        process.learned.tried.extend(met.iter().map(|(address, _)| (address.0, false)));
        if read.len() < met.len() {
            met.iter().for_each(|(_, read_from)| process.learned.note_gone(*read_from));
        }
        for ((address, read_from), bytes) in met.iter().zip(read) {
            let Some(bytes) = bytes else {
                process.learned.stats.read_errors += 1;
                // It may be read the next time.
                process.learned.refined.remove(&read_from.0);
                continue;
            };
            process.learned.stats.bytes_read += bytes.len() as u64;
            // What it is may have become known meanwhile.
            let Some((start, size)) = place(process, address.0, now) else { continue };
            if start != read_from.0 || bytes.len() != size as usize {
                continue;
            }
            let is_in_loop = is_in_loop_frame(process, *address, now);
            let named = listed(&process.code, address.0, now).filter(|_| !is_in_loop);
            let named = named.map(|hit| (hit.origin(), hit.since()));
            let mapped = Place::mapped(&process.space, *address, now);
            let is_of_loop = matches!(mapped, Place::Generated(mapped) if is_loop_code(process, mapped));
            let (of, code) = (&mut process.learned, &mut process.code);
            learned |= match named {
                Some((CodeOrigin::Runtime, since)) => take_found(code, start, since, &bytes),
                Some(_) => take_listed(of, code, start, &bytes),
                None if of.place_of(address.0).is_some() => take_listed(of, code, start, &bytes),
                None if is_of_loop => take_loop_code(process, (start, &bytes[..]), address.0),
                None => take_copy(of, code, start, &bytes, address.0),
            };
        }
        learned
    }

    /// Whether the code at an address has made a frame for its interpreter's list that does not say yet whose it is.
    pub(super) fn is_making_frame(&self, address: u64) -> bool {
        let piece = self.making.range(..=address).next_back();
        piece.is_some_and(|(_, ranges)| ranges.iter().any(|range| range.contains(&address)))
    }

    /// It has become known which code runs in the frame of its interpreter's loop: rows that it has were made for functions
    /// with frames of their own. What is announced elsewhere keeps its rows.
    pub(super) fn give_up_in_loop_frames(process: &mut Process) {
        let latest = MonoNs(u64::MAX);
        let live = process.space.live().map(|mapped| &mapped.mapping);
        let in_loops = live.filter(|mapping| is_in_loop_frame(process, mapping.start, latest));
        let ranges: Vec<Range<u64>> = in_loops.map(|mapping| mapping.start.0..mapping.end.0).collect();
        let (learned, code) = (&mut process.learned, &mut process.code);
        // They ascend, and a process may have as many as it likes.
        let is_in = |at: &u64| {
            let next = ranges.partition_point(|range| range.end <= *at);
            ranges.get(next).is_some_and(|range| range.contains(at))
        };
        learned.pieces.retain(|at, _| !is_in(at));
        learned.making.retain(|at, _| !is_in(at));
        learned.tried.retain(|at, outstanding| *outstanding || !is_in(at));
        ranges.iter().for_each(|range| code.remove_rows(range));
    }

    /// Drops all pieces: their rows were made for another kind of code.
    fn drop_pieces(&mut self, code: &mut GeneratedCode) {
        self.making.clear();
        for (start, (size, _)) in std::mem::take(&mut self.pieces) {
            code.remove_unrecorded(start, u64::from(size));
        }
    }

    fn note(&mut self, start: u64, code: &[u8]) {
        let size = u32::try_from(code.len()).unwrap_or(u32::MAX);
        self.pieces.insert(start, (size, digest(code)));
    }
}

/// Of what no return shows it, the tables' adapters, every entry finds a return address all the same. Where the tables
/// give the frame's size, rows go by it, too: samples taken by the size alone stay true wherever both say the same.
fn take_found(code: &mut GeneratedCode, start: u64, since: MonoNs, bytes: &[u8]) -> bool {
    let sized = code.is_sized(start, since).then(|| rows_of_sized_code(Machine::NATIVE, start, bytes)).flatten();
    let rows = sized.or_else(|| rows_of_code(Machine::NATIVE, start, bytes));
    let rows = rows.or_else(|| rows_of_called_code(Machine::NATIVE, start, bytes));
    code.take_shown((start, bytes.len() as u64), since, rows)
}

fn take_listed(learned: &mut Learned, code: &mut GeneratedCode, start: u64, bytes: &[u8]) -> bool {
    let rows = rows_of_code(Machine::NATIVE, start, bytes);
    let has_rows = rows.is_some();
    if !code.load_unrecorded(start, bytes.len() as u64, rows) {
        return false;
    }
    learned.note(start, bytes);
    learned.stats.listed_with_rows += u64::from(has_rows);
    learned.stats.listed_without_rows += u64::from(!has_rows);
    true
}

/// Takes up the piece around an address, of code that was read with what lies around it.
fn take_loop_code(process: &mut Process, (start, bytes): (u64, &[u8]), address: u64) -> bool {
    let Some(loop_code) = process.tables.list().and_then(|list| list.generated.as_ref()) else { return false };
    let (learned, code) = (&mut process.learned, &mut process.code);
    let pushes: Vec<&[u8]> = loop_code.pushes.iter().map(|push| &***push).collect();
    let frame = LoopFrame { bytes: loop_code.bytes, fp_below: loop_code.fp_below, pushes: &pushes };
    if !learned.keeps_frame_pointer && loop_code_keeps_frame_pointer(bytes, frame) {
        learned.keeps_frame_pointer = true;
        learned.drop_pieces(code);
    }
    let piece = piece_around(address);
    let (from, to) = (piece.start.max(start), piece.end.min(start.saturating_add(bytes.len() as u64)));
    let offset = |at: u64| usize::try_from(at.saturating_sub(start)).unwrap_or(usize::MAX);
    let Some(own) = bytes.get(offset(from)..offset(to)) else { return false };
    let rows = if learned.keeps_frame_pointer { None } else { rows_of_loop_code(start, bytes, from..to, frame) };
    if !code.load_unrecorded(from, own.len() as u64, rows) {
        return false;
    }
    let making = loop_code.making_in(bytes).into_iter();
    let making = making.map(|range| start.saturating_add(range.start as u64)..start.saturating_add(range.end as u64));
    let making: Vec<Range<u64>> = making.filter(|range| range.end > from && range.start < to).collect();
    if !making.is_empty() {
        learned.making.insert(from, making);
    }
    learned.note(from, own);
    learned.stats.of_loops += 1;
    true
}

/// The addresses that get rows together with one.
fn piece_around(address: u64) -> Range<u64> {
    let start = address & !(LOOP_CODE_BYTES - 1);
    start..start.saturating_add(LOOP_CODE_BYTES)
}

fn take_copy(learned: &mut Learned, code: &mut GeneratedCode, start: u64, bytes: &[u8], address: u64) -> bool {
    let Some(copy) = code.templates().find(start, bytes, address) else { return false };
    if !code.load_unrecorded(copy.start, copy.size as u64, Some(copy.rows)) {
        return false;
    }
    let found = usize::try_from(copy.start - start).ok().and_then(|at| bytes.get(at..at + copy.size));
    learned.note(copy.start, found.unwrap_or_default());
    learned.stats.copies += 1;
    true
}

/// What is to be read for an address: the function of a perf map, or what a copy of a template around it may take.
fn place(process: &Process, address: u64, now: MonoNs) -> Option<(u64, u32)> {
    // Whatever names code in the frame of an interpreter's loop, it is read as all of that is.
    let hit = listed(&process.code, address, now).filter(|_| !is_in_loop_frame(process, Avma(address), now));
    if let Some(hit) = hit {
        return Some((hit.start().0, u32::try_from(hit.size()).ok()?));
    }
    if let Some(place) = process.learned.place_of(address) {
        return Some(place);
    }
    let Place::Generated(mapped) = Place::mapped(&process.space, Avma(address), now) else { return None };
    let (from, to) = if is_loop_code(process, mapped) {
        let piece = piece_around(address);
        (piece.start.saturating_sub(AROUND_LOOP_CODE), piece.end.saturating_add(AROUND_LOOP_CODE))
    } else {
        let reach = process.code.templates().reach() as u64;
        (address.saturating_sub(reach), address.saturating_add(reach))
    };
    let (start, end) = (from.max(mapped.mapping.start.0), to.min(mapped.mapping.end.0));
    if start == end {
        return None;
    }
    Some((start, u32::try_from(end.saturating_sub(start)).ok()?))
}

/// Whether generated code that nothing names in a mapping runs within the loop of the process' interpreter.
pub(super) fn is_loop_code(process: &Process, mapped: &Mapped) -> bool {
    let Some(code) = process.tables.list().and_then(|list| list.generated.as_ref()) else { return false };
    let mapping = &mapped.mapping;
    if code.is_shown {
        return process.tables.has_entry_in(mapping);
    }
    (mapping.prot.shared || !code.is_shared) && mapping.end.0.saturating_sub(mapping.start.0) >= MIN_LOOP_CODE
}

/// Whether an address is in such code as has no frame but the loop's, whatever names it: PHP's JIT makes it.
pub(super) fn is_in_loop_frame(process: &Process, address: Avma, time: MonoNs) -> bool {
    let code = process.tables.list().and_then(|list| list.generated.as_ref());
    let place = || Place::mapped(&process.space, address, time);
    code.is_some_and(|code| code.pushes.is_empty())
        && matches!(place(), Place::Generated(mapped) if is_loop_code(process, mapped))
}

/// Whether code may turn out to be such code, once the first frames of the process were looked at, which is under way.
fn may_be_loop_code(process: &Process, address: u64, time: MonoNs) -> bool {
    process.tables.may_show_entries()
        && (process.frames.is_wanting() || process.frames.is_asked())
        && matches!(Place::mapped(&process.space, Avma(address), time), Place::Generated(_))
}

/// The function of a perf map, or of the runtime's tables, that covers an address.
fn listed(code: &GeneratedCode, address: u64, now: MonoNs) -> Option<CodeHit<'_>> {
    let hit = code.map.lookup(Avma(address), now)?;
    let is_without_code = matches!(hit.origin(), CodeOrigin::PerfMap | CodeOrigin::Runtime);
    (is_without_code && (1..=MAX_FUNCTION_BYTES).contains(&hit.size())).then_some(hit)
}
