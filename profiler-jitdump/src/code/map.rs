//! The code of one process over time.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::event::{CodeEvent, CodeLoad, CodeOrigin};
use super::object::{CodeHit, CodeId, CodeObject};
use super::outcome::{Applied, CodeMapStats, DropReason};
use super::timeline::{MAX_ADDRESS, NEVER, NewPiece, PieceRef, Timeline};
use jitprof_common::units::{Avma, MonoNs};

mod inlining;
mod moves;

use moves::Moved;

/// Longer names are cut here. The longest seen are .NET signatures of about 700 bytes; a name is drawn in a box of a
/// flamegraph, and at 4 KiB a name a hostile target would fill the map's memory with 64 k functions.
pub const MAX_NAME_BYTES: usize = 1024;

/// Longer code objects are refused: no runtime's whole code space is larger (V8 128 MiB, HotSpot 2 GiB reserved but
/// 240 MiB used by default).
pub const MAX_CODE_BYTES: u64 = 1 << 30;

/// Source rows kept of one object; later ones are dropped and counted.
pub const MAX_LINE_ROWS: usize = 1 << 16;

/// Memory at which a map drops its ended objects and then refuses new ones: 1.3 million functions of 40-byte names.
const DEFAULT_LIMIT_BYTES: usize = 256 << 20;
/// How long a full map keeps what has ended, if others ended longer ago.
const ASKED_FOR_NS: u64 = 10_000_000_000;

/// A look-up's answer that may begin only after the sample.
#[derive(Clone, Copy, Debug)]
pub struct Nearest<'a> {
    /// What lies at the address then.
    pub hit: CodeHit<'a>,
    /// Nanoseconds from the sample to the announcement; 0 when it was announced before the sample.
    pub later_by_ns: u64,
}

/// Which code object lies at an address at a time, for one process.
///
/// Order of arrival does not matter: the answers depend on the set of events. Between events with equal times the one
/// that came later wins. A look-up costs a descent of one B-tree when the address holds living code, and up to three
/// more for each size class in use when it does not.
#[derive(Debug)]
pub struct CodeMap {
    announced: Timeline,
    listed: Timeline,
    /// Move targets by the order of their piece.
    moves: BTreeMap<u64, Moved>,
    newest_move: u64,
    /// What moves after this time carry has to be looked up again: something older came after them.
    doubt_after: u64,
    /// Times at which the whole address space was replaced, ascending.
    ends: Vec<u64>,
    next_id: u64,
    next_order: u64,
    version: u64,
    object_bytes: usize,
    limit_bytes: usize,
    /// Nobody asks for what ended before.
    asked_from: u64,
    /// What ended before went when the map was full last.
    evicted_until: u64,
    newest_event: u64,
    stats: CodeMapStats,
}

impl Default for CodeMap {
    fn default() -> Self {
        Self::new()
    }
}

impl CodeMap {
    /// An empty map that may grow to 256 MiB.
    pub fn new() -> Self {
        Self::with_limit(DEFAULT_LIMIT_BYTES)
    }

    /// An empty map that may grow to `limit_bytes` by its own estimate ([`bytes`](Self::bytes)).
    pub fn with_limit(limit_bytes: usize) -> Self {
        Self {
            announced: Timeline::default(),
            listed: Timeline::default(),
            moves: BTreeMap::new(),
            newest_move: 0,
            doubt_after: NEVER,
            ends: Vec::new(),
            next_id: 0,
            next_order: 0,
            version: 0,
            object_bytes: 0,
            limit_bytes,
            asked_from: NEVER,
            evicted_until: 0,
            newest_event: 0,
            stats: CodeMapStats::default(),
        }
    }

    /// Lets the map grow to another size from now on. What is there already stays.
    pub fn set_limit(&mut self, limit_bytes: usize) {
        self.limit_bytes = limit_bytes;
    }

    /// Nobody asks for what ended before a time, and for the rest somebody may: a full map gives up what ended before, and
    /// refuses new objects if that is not enough. As long as this is not said, everything that has ended may go.
    pub fn keep_from(&mut self, time: MonoNs) {
        self.asked_from = time.0;
    }

    /// Whether more than half of what the map may take up is taken up.
    pub fn is_half_full(&self) -> bool {
        self.bytes() > self.limit_bytes / 2
    }

    /// Takes up one announcement.
    ///
    /// A load ends every object that it overlaps, wholly, from its time on: a runtime frees code objects whole, so one
    /// of which a part has been overwritten is gone, and what is left of its bytes must not be named after it.
    pub fn apply(&mut self, event: CodeEvent) -> Applied {
        match event {
            CodeEvent::Load(load) => self.load(load),
            CodeEvent::Move { time, old_start, new_start, size } => self.relocate(time, old_start, new_start, size),
            CodeEvent::Unload { time, start, size } => self.unload(time, start, size),
            CodeEvent::Inline(inline) => self.inline(inline),
            CodeEvent::Close { .. } => {
                self.stats.closes += 1;
                Applied::Closed
            }
        }
    }

    fn load(&mut self, mut load: CodeLoad) -> Applied {
        let size = match plausible_size(load.start, load.size) {
            Ok(size) => size,
            Err(reason) => return self.drop_event(reason),
        };
        if load.lines.len() > MAX_LINE_ROWS {
            let over = load.lines.len() - MAX_LINE_ROWS;
            self.stats.line_rows_dropped = self.stats.line_rows_dropped.saturating_add(over as u64);
            load.lines.truncate(MAX_LINE_ROWS);
        }
        if load.name.len() > MAX_NAME_BYTES {
            load.name.truncate(load.name.floor_char_boundary(MAX_NAME_BYTES));
            self.stats.names_cut += 1;
        }
        let from = match load.origin {
            CodeOrigin::PerfMap => match self.listed_since(&load, size) {
                Ok(from) => from,
                Err(known) => return known,
            },
            CodeOrigin::Jitdump | CodeOrigin::Peeked | CodeOrigin::Runtime => load.time.0.min(NEVER - 1),
        };
        if let Some(known) = self.known(&mut load, size, from) {
            return known;
        }
        self.add(load, size, from)
    }

    fn add(&mut self, load: CodeLoad, size: u32, from: u64) -> Applied {
        if !self.has_room() {
            // It has no name, and what it takes the place of has none any more.
            if load.origin != CodeOrigin::PerfMap && self.ends_something(load.start.0, size) {
                let end = self.piece(load.start.0, size, from, None);
                let ended = self.announced.insert(end);
                self.version += u64::from(ended.is_ok());
            }
            return self.drop_event(DropReason::Full);
        }
        let id = CodeId(self.next_id);
        let object = Arc::new(CodeObject {
            id,
            loaded: from,
            name: load.name.into_boxed_str(),
            lines: load.lines.kept(),
            inlines: None,
            unit: load.unit,
            origin: load.origin,
            number: match load.origin {
                CodeOrigin::Runtime => u32::try_from(load.code_index).unwrap_or(0),
                CodeOrigin::Jitdump | CodeOrigin::Peeked | CodeOrigin::PerfMap => 0,
            },
        });
        let piece = self.piece(load.start.0, size, from, Some(object));
        let bytes = object_bytes(piece.object.as_ref());
        let listed = load.origin == CodeOrigin::PerfMap;
        let layer = if listed { &mut self.listed } else { &mut self.announced };
        if layer.insert(piece).is_err() {
            return self.drop_event(DropReason::Crowded);
        }
        self.next_id += 1;
        self.object_bytes = self.object_bytes.saturating_add(bytes);
        self.stats.loads += 1;
        if !listed {
            self.note_time(from);
        }
        self.version += 1;
        Applied::Loaded(id)
    }

    /// Ends what lies in the range, by a piece without an object over it.
    fn unload(&mut self, time: MonoNs, start: Avma, size: u64) -> Applied {
        let size = match plausible_size(start, size) {
            Ok(size) => size,
            Err(reason) => return self.drop_event(reason),
        };
        let from = time.0.min(NEVER - 1);
        // The same again, from a dump that is read anew.
        if self.announced.same(start.0, size, from).any(|piece| piece.object.is_none()) {
            self.stats.duplicates += 1;
            return Applied::Unloaded;
        }
        if !self.has_room() && !self.ends_something(start.0, size) {
            self.stats.unloads += 1;
            return Applied::Unloaded;
        }
        let piece = self.piece(start.0, size, from, None);
        if self.announced.insert(piece).is_err() {
            return self.drop_event(DropReason::Crowded);
        }
        self.note_time(from);
        self.version += 1;
        self.stats.unloads += 1;
        Applied::Unloaded
    }

    /// Whether an end in a range is to be kept though the map is full: if it ends something that lives, which there cannot
    /// be more of than that. What came late may end what has ended since; of that a few are kept.
    fn ends_something(&self, start: u64, size: u32) -> bool {
        let range = start..start.saturating_add(u64::from(size));
        let has_some = self.bytes() < self.limit_bytes.saturating_add(self.limit_bytes / 16);
        self.announced.names_living(&range) || (has_some && self.announced.overlap(&range).1)
    }

    /// Since when a line of a perf map holds: as long as the program whose it is, by its time or else the present one,
    /// unless something lies there already; then since the line was seen, so that samples taken before keep the older
    /// name. A repeated line is known.
    fn listed_since(&mut self, load: &CodeLoad, size: u32) -> Result<u64, Applied> {
        let start = load.start.0;
        let seen = load.time.0.min(NEVER - 1);
        let later = if seen == 0 { self.ends.len() } else { self.ends.partition_point(|end| *end <= seen) };
        let is_over = later < self.ends.len();
        let repeated = self.listed.alive_from(start).filter(|piece| {
            !is_over && piece.size == size && piece.object.is_some_and(|object| *object.name == *load.name)
        });
        if let Some(object) = repeated.and_then(|piece| piece.object) {
            self.stats.duplicates += 1;
            return Err(Applied::Known { id: object.id, upgraded: false });
        }
        let image_start = later.checked_sub(1).and_then(|at| self.ends.get(at)).copied().unwrap_or(0);
        let range = start..start + u64::from(size);
        let (newest, overlaps) = self.listed.overlap(&range);
        Ok(match overlaps {
            false => image_start,
            // What came later does not matter to a program that is over.
            true if is_over => seen,
            true => seen.max(newest).max(image_start),
        })
    }

    /// The object that this load announces again, if there is one.
    fn known(&mut self, load: &mut CodeLoad, size: u32, from: u64) -> Option<Applied> {
        let layer = if load.origin == CodeOrigin::PerfMap { &mut self.listed } else { &mut self.announced };
        let found = layer.same(load.start.0, size, from).find(|piece| {
            !self.moves.contains_key(&piece.order) && piece.object.is_some_and(|object| *object.name == *load.name)
        })?;
        let (piece, known) = (found.id(), found.object?);
        let id = known.id;
        let better_origin = load.origin < known.origin;
        let better_lines = known.lines.is_none() && !load.lines.is_empty();
        let upgraded = better_origin || better_lines;
        if upgraded && let Some(Some(object)) = layer.object_mut(&piece) {
            let old_bytes = object_bytes(Some(object));
            let object = Arc::make_mut(object);
            object.origin = object.origin.min(load.origin);
            if better_lines {
                object.lines = std::mem::take(&mut load.lines).kept();
            }
            let new_bytes = object.bytes();
            self.object_bytes = self.object_bytes.saturating_sub(old_bytes).saturating_add(new_bytes);
            self.version += 1;
        }
        self.stats.duplicates += 1;
        Some(Applied::Known { id, upgraded })
    }

    /// What lies at an address at a time: announced code first, a perf map's line where there is none.
    pub fn lookup(&self, addr: Avma, time: MonoNs) -> Option<CodeHit<'_>> {
        let announced = self.announced.at(addr.0, time.0).and_then(|piece| self.hit(&piece, addr.0));
        announced.or_else(|| self.hit(&self.listed.at(addr.0, time.0)?, addr.0))
    }

    /// What a perf map lists at an address at a time, whatever is announced there.
    pub fn listed(&self, addr: Avma, time: MonoNs) -> Option<CodeHit<'_>> {
        self.hit(&self.listed.at(addr.0, time.0)?, addr.0)
    }

    /// Like [`lookup`](Self::lookup); where nothing is known yet at that time, the first code announced later.
    ///
    /// Runtimes take the record's time before or after the code can run. V8 logs a function after installing it, so a
    /// sample can precede its record by microseconds; the caller decides which distance it believes.
    pub fn lookup_nearest(&self, addr: Avma, time: MonoNs) -> Option<Nearest<'_>> {
        if let Some(hit) = self.lookup(addr, time) {
            return Some(Nearest { hit, later_by_ns: 0 });
        }
        let announced = self.announced.after(addr.0, time.0).and_then(|piece| self.hit(&piece, addr.0));
        let hit = announced.or_else(|| self.hit(&self.listed.after(addr.0, time.0)?, addr.0))?;
        Some(Nearest { hit, later_by_ns: hit.from.saturating_sub(time.0) })
    }

    fn hit<'a>(&'a self, piece: &PieceRef<'a>, addr: u64) -> Option<CodeHit<'a>> {
        Some(CodeHit::new(self.object_of(piece)?, piece, addr))
    }

    /// A counter that changes whenever an answer may have changed. Pruning does not change it.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// What has been taken up and dropped so far.
    pub fn stats(&self) -> &CodeMapStats {
        &self.stats
    }

    /// All known code in both layers, living and ended, in no particular order; a moved object once for each place.
    pub fn functions(&self) -> impl Iterator<Item = CodeHit<'_>> {
        let pieces = self.announced.pieces().chain(self.listed.pieces());
        pieces.filter_map(|piece| self.hit(&piece, piece.start))
    }

    /// How many objects live (places that code was moved away from included).
    pub fn living(&self) -> usize {
        self.announced.counts().0.saturating_add(self.listed.counts().0)
    }

    /// How many ended objects are kept for samples still to be resolved.
    pub fn ended(&self) -> usize {
        self.announced.counts().1.saturating_add(self.listed.counts().1)
    }

    /// The map's memory in bytes, estimated: exact for names and lines, by the measured filling of B-tree nodes for
    /// the rest. What a forked map shares with its parent counts in both.
    pub fn bytes(&self) -> usize {
        self.announced.bytes() + self.listed.bytes() + self.object_bytes + self.moves.len() * size_of::<[Moved; 2]>()
    }

    /// The code of a child process forked at `time`: what is there then, under the same ids.
    ///
    /// Names and lines are shared; the cost is a copy of two trees, about 80 bytes a function. An event that arrives
    /// later with an earlier time is to be applied to the child as well. Where this map has been told what to
    /// [keep](Self::keep_from), the child keeps what has ended since `time` until it is told more.
    pub fn fork(&self, time: MonoNs) -> Self {
        let announced = self.announced.fork(time.0);
        let listed = self.listed.fork(time.0);
        let ends = self.ends.iter().copied().rfind(|end| *end <= time.0);
        let mut child = Self {
            announced,
            listed,
            doubt_after: self.doubt_after,
            ends: ends.into_iter().collect(),
            next_id: self.next_id,
            next_order: self.next_order,
            asked_from: if self.asked_from == NEVER { NEVER } else { time.0 },
            newest_event: self.newest_event.min(time.0),
            ..Self::with_limit(self.limit_bytes)
        };
        child.relink_from(self);
        let pieces = child.announced.pieces().chain(child.listed.pieces());
        child.object_bytes = pieces.map(|piece| object_bytes(piece.object)).sum();
        child
    }

    /// Drops what perf maps have listed so far: it turned out to be another process'.
    pub fn drop_listed(&mut self) {
        let bytes: usize = self.listed.pieces().map(|piece| object_bytes(piece.object)).sum();
        self.object_bytes = self.object_bytes.saturating_sub(bytes);
        self.listed = Timeline::default();
        self.version += 1;
    }

    /// Ends everything that began before `time`: the process executed another program.
    pub fn end_all(&mut self, time: MonoNs) {
        let time = time.0.min(NEVER - 1);
        let at = self.ends.partition_point(|end| *end < time);
        if self.ends.get(at) != Some(&time) {
            self.ends.insert(at, time);
        }
        self.announced.end_all(time);
        self.listed.end_all(time);
        self.note_time(time);
        self.version += 1;
    }

    /// Removes what ended at or before `time`, the time of the oldest sample that may still be looked up.
    ///
    /// Costs a pass over all objects where some have ended; meant for once a second. An event older than `time` that comes
    /// afterwards is still taken up, but it does not know of the removed ones that may have ended it.
    pub fn prune_before(&mut self, time: MonoNs) {
        let pruned = self.remove_ended(time.0);
        self.stats.pruned = self.stats.pruned.saturating_add(pruned);
    }

    fn remove_ended(&mut self, time: u64) -> u64 {
        self.relink();
        let (moves, bytes, mut count) = (&mut self.moves, &mut self.object_bytes, 0);
        let mut gone = |piece: PieceRef<'_>| {
            moves.remove(&piece.order);
            *bytes = bytes.saturating_sub(object_bytes(piece.object));
            count += 1;
        };
        self.announced.prune(time, &mut gone);
        self.listed.prune(time, &mut gone);
        let obsolete = self.ends.partition_point(|end| *end <= time).saturating_sub(1);
        self.ends.drain(..obsolete);
        count
    }

    fn piece(&mut self, start: u64, size: u32, from: u64, object: Option<Arc<CodeObject>>) -> NewPiece {
        let order = self.next_order;
        self.next_order += 1;
        let later_end = self.ends.partition_point(|end| *end <= from);
        let ceiling = self.ends.get(later_end).copied().unwrap_or(NEVER);
        NewPiece { start, size, from, order, ceiling, object }
    }

    fn note_time(&mut self, time: u64) {
        if time < self.newest_event {
            self.stats.out_of_order += 1;
        }
        self.newest_event = self.newest_event.max(time);
        if time < self.newest_move {
            self.doubt_after = self.doubt_after.min(time);
        }
    }

    /// Whether another object may be added; drops the ended ones for it where that frees a good part.
    fn has_room(&mut self) -> bool {
        if self.bytes() < self.limit_bytes {
            return true;
        }
        // Evicting is a pass over all that ended: only worth it when it frees at least a quarter, and if more may go than
        // the last time.
        let may_go = self.asked_from == NEVER || self.asked_from > self.evicted_until;
        if may_go && self.ended() > self.living() / 3 {
            // Somebody may look back for some seconds: what ended within them goes last.
            let before = self.ended();
            let long_ago = self.newest_event.saturating_sub(ASKED_FOR_NS).min(self.asked_from);
            let mut evicted = self.remove_ended(long_ago);
            if self.ended() > before / 2 {
                evicted += self.remove_ended(self.asked_from);
                self.evicted_until = self.asked_from;
            }
            self.stats.evicted = self.stats.evicted.saturating_add(evicted);
        }
        self.bytes() < self.limit_bytes
    }

    fn drop_event(&mut self, reason: DropReason) -> Applied {
        let counter = match reason {
            DropReason::Empty => &mut self.stats.dropped_empty,
            DropReason::Implausible => &mut self.stats.dropped_implausible,
            DropReason::Full => &mut self.stats.dropped_full,
            DropReason::Crowded => &mut self.stats.dropped_crowded,
            DropReason::WithoutFunction => &mut self.stats.dropped_without_function,
        };
        *counter += 1;
        Applied::Dropped(reason)
    }
}

fn plausible_size(start: Avma, size: u64) -> Result<u32, DropReason> {
    if size == 0 {
        return Err(DropReason::Empty);
    }
    let fits = start.0.checked_add(size).is_some_and(|end| end <= MAX_ADDRESS);
    match u32::try_from(size) {
        Ok(small) if fits && size <= MAX_CODE_BYTES => Ok(small),
        _ => Err(DropReason::Implausible),
    }
}

fn object_bytes(object: Option<&Arc<CodeObject>>) -> usize {
    object.map_or(0, |object| object.bytes())
}

#[cfg(test)]
mod tests;
