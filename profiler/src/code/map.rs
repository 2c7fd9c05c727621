//! The code of one process over time.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::event::{CodeEvent, CodeLoad, CodeOrigin};
use super::function::{CodeHit, CodeId, Function};
use super::outcome::{Applied, CodeMapStats, DropReason};
use super::timeline::{MAX_ADDRESS, NEVER, NewPiece, PieceRef, Timeline};
use crate::units::{Avma, MonoNs};

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

/// A look-up's answer that may begin only after the sample.
#[derive(Clone, Copy, Debug)]
pub struct Nearest<'a> {
    /// What lies at the address then.
    pub hit: CodeHit<'a>,
    /// Nanoseconds from the sample to the announcement; 0 when it was announced before the sample.
    pub later_by_ns: u64,
}

/// Which function's code lies at an address at a time, for one process.
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
    /// What moves after this time carry has to be looked up again: something older came late.
    doubt_after: u64,
    /// Times at which the whole address space was replaced, ascending.
    ends: Vec<u64>,
    next_id: u64,
    next_order: u64,
    version: u64,
    function_bytes: usize,
    limit_bytes: usize,
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
            function_bytes: 0,
            limit_bytes,
            newest_event: 0,
            stats: CodeMapStats::default(),
        }
    }

    /// Lets the map grow to another size from now on. What is there already stays.
    pub fn set_limit(&mut self, limit_bytes: usize) {
        self.limit_bytes = limit_bytes;
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
            CodeOrigin::Jitdump | CodeOrigin::Peeked => load.time.0.min(NEVER - 1),
        };
        if let Some(known) = self.known(&mut load, size, from) {
            return known;
        }
        self.add(load, size, from)
    }

    fn add(&mut self, load: CodeLoad, size: u32, from: u64) -> Applied {
        if !self.has_room() {
            return self.drop_event(DropReason::Full);
        }
        let id = CodeId(self.next_id);
        let function = Arc::new(Function {
            id,
            loaded: from,
            name: load.name.into_boxed_str(),
            lines: load.lines.kept(),
            inlines: None,
            unit: load.unit,
            origin: load.origin,
        });
        let piece = self.piece(load.start.0, size, from, Some(function));
        let bytes = function_bytes(piece.function.as_ref());
        let listed = load.origin == CodeOrigin::PerfMap;
        let layer = if listed { &mut self.listed } else { &mut self.announced };
        if layer.insert(piece).is_err() {
            return self.drop_event(DropReason::Crowded);
        }
        self.next_id += 1;
        self.function_bytes = self.function_bytes.saturating_add(bytes);
        self.stats.loads += 1;
        if !listed {
            self.note_time(from);
        }
        self.version += 1;
        Applied::Loaded(id)
    }

    /// Ends what lies in the range, by a piece without a function over it.
    fn unload(&mut self, time: MonoNs, start: Avma, size: u64) -> Applied {
        let size = match plausible_size(start, size) {
            Ok(size) => size,
            Err(reason) => return self.drop_event(reason),
        };
        let from = time.0.min(NEVER - 1);
        // The same again, from a dump that is read anew.
        if self.announced.same(start.0, size, from).any(|piece| piece.function.is_none()) {
            self.stats.duplicates += 1;
            return Applied::Unloaded;
        }
        if !self.has_room() {
            return self.drop_event(DropReason::Full);
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

    /// Since when a line of a perf map holds: always, unless something lies there already; then since the line was
    /// seen, so that samples taken before keep the older name. A repeated line is known.
    fn listed_since(&mut self, load: &CodeLoad, size: u32) -> Result<u64, Applied> {
        let start = load.start.0;
        let repeated = self
            .listed
            .alive_from(start)
            .filter(|piece| piece.size == size && piece.function.is_some_and(|function| *function.name == *load.name));
        if let Some(function) = repeated.and_then(|piece| piece.function) {
            self.stats.duplicates += 1;
            return Err(Applied::Known { id: function.id, upgraded: false });
        }
        let image_start = self.ends.last().copied().unwrap_or(0);
        let range = start..start + u64::from(size);
        let (newest, overlaps) = self.listed.overlap(&range);
        Ok(if overlaps { load.time.0.min(NEVER - 1).max(newest).max(image_start) } else { image_start })
    }

    /// The object that this load announces again, if there is one.
    fn known(&mut self, load: &mut CodeLoad, size: u32, from: u64) -> Option<Applied> {
        let layer = if load.origin == CodeOrigin::PerfMap { &mut self.listed } else { &mut self.announced };
        let found = layer.same(load.start.0, size, from).find(|piece| {
            !self.moves.contains_key(&piece.order)
                && piece.function.is_some_and(|function| *function.name == *load.name)
        })?;
        let (piece, known) = (found.id(), found.function?);
        let id = known.id;
        let better_origin = load.origin < known.origin;
        let better_lines = known.lines.is_none() && !load.lines.is_empty();
        let upgraded = better_origin || better_lines;
        if upgraded && let Some(Some(function)) = layer.function_mut(&piece) {
            let old_bytes = function_bytes(Some(function));
            let function = Arc::make_mut(function);
            function.origin = function.origin.min(load.origin);
            if better_lines {
                function.lines = std::mem::take(&mut load.lines).kept();
            }
            let new_bytes = function.bytes();
            self.function_bytes = self.function_bytes.saturating_sub(old_bytes).saturating_add(new_bytes);
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
        Some(CodeHit::new(self.function_of(piece)?, piece, addr))
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
        self.announced.bytes() + self.listed.bytes() + self.function_bytes + self.moves.len() * size_of::<[Moved; 2]>()
    }

    /// The code of a child process forked at `time`: what is there then, under the same ids.
    ///
    /// Names and lines are shared; the cost is a copy of two trees, about 80 bytes a function. An event that arrives
    /// later with an earlier time is to be applied to the child as well.
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
            newest_event: self.newest_event.min(time.0),
            ..Self::with_limit(self.limit_bytes)
        };
        child.settle_from(self);
        let pieces = child.announced.pieces().chain(child.listed.pieces());
        child.function_bytes = pieces.map(|piece| function_bytes(piece.function)).sum();
        child
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

    /// Forgets what ended at or before `time`, the time of the oldest sample that may still be looked up.
    ///
    /// Costs a pass over the ended objects; meant for once a second. An event older than `time` that comes afterwards
    /// is still taken up, but it does not know of the forgotten ones that may have ended it.
    pub fn prune_before(&mut self, time: MonoNs) {
        let pruned = self.forget(time.0);
        self.stats.pruned = self.stats.pruned.saturating_add(pruned);
    }

    fn forget(&mut self, time: u64) -> u64 {
        self.settle();
        let (moves, bytes, mut count) = (&mut self.moves, &mut self.function_bytes, 0);
        let mut gone = |piece: PieceRef<'_>| {
            moves.remove(&piece.order);
            *bytes = bytes.saturating_sub(function_bytes(piece.function));
            count += 1;
        };
        self.announced.prune(time, &mut gone);
        self.listed.prune(time, &mut gone);
        let obsolete = self.ends.partition_point(|end| *end <= time).saturating_sub(1);
        self.ends.drain(..obsolete);
        count
    }

    fn piece(&mut self, start: u64, size: u32, from: u64, function: Option<Arc<Function>>) -> NewPiece {
        let order = self.next_order;
        self.next_order += 1;
        let later_end = self.ends.partition_point(|end| *end <= from);
        let ceiling = self.ends.get(later_end).copied().unwrap_or(NEVER);
        NewPiece { start, size, from, order, ceiling, function }
    }

    fn note_time(&mut self, time: u64) {
        if time < self.newest_event {
            self.stats.late += 1;
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
        // Evicting is a pass over all that ended: only worth it when it frees at least a quarter.
        if self.ended() > self.living() / 3 {
            let evicted = self.forget(NEVER);
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
            DropReason::Homeless => &mut self.stats.dropped_homeless,
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

fn function_bytes(function: Option<&Arc<Function>>) -> usize {
    function.map_or(0, |function| function.bytes())
}

#[cfg(test)]
mod tests;
