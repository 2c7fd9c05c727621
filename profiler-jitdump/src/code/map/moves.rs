//! Moved code: what a move carries from one place to another.
//!
//! A move is two pieces at one time: one without an object over the old place, and its target. What the target carries
//! is looked up when the move is applied. An announcement that comes later but is older can change that; then the
//! targets after it are in doubt, and are resolved by walking back at each look-up until the next pruning relinks them.

use std::sync::Arc;

use super::super::object::CodeObject;
use super::super::outcome::{Applied, DropReason};
use super::super::timeline::{NEVER, PieceId, PieceRef};
use super::{CodeMap, object_bytes, plausible_size};
use jitprof_common::units::{Avma, MonoNs};

/// Steps back through a chain of moves in doubt.
const MAX_HOPS: usize = 64;

/// The target of a move.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moved {
    pub(super) old_start: u64,
    pub(super) to: PieceId,
}

impl CodeMap {
    pub(super) fn relocate(&mut self, time: MonoNs, old_start: Avma, new_start: Avma, size: u64) -> Applied {
        let size = match plausible_size(old_start, size).and_then(|_| plausible_size(new_start, size)) {
            Ok(size) => size,
            Err(reason) => return self.drop_event(reason),
        };
        let from = time.0.min(NEVER - 1);
        let repeated = self
            .announced
            .same(new_start.0, size, from)
            .find(|piece| self.moves.get(&piece.order).is_some_and(|moved| moved.old_start == old_start.0));
        if let Some(piece) = repeated {
            let id = self.object_of(&piece).map(|object| object.id);
            self.stats.duplicates += 1;
            return Applied::Moved(id);
        }
        if !self.has_room() {
            return self.drop_event(DropReason::Full);
        }
        // Leaving is a piece of its own without an object: whatever lay in the old place is gone from then on,
        // also when its announcement comes only later.
        let left = self.piece(old_start.0, size, from, None);
        let left_order = left.order;
        let object = self.source_of(old_start.0, from, left_order).cloned();
        let id = object.as_ref().map(|object| object.id);
        let bytes = object_bytes(object.as_ref());
        if self.announced.insert(left).is_err() {
            return self.drop_event(DropReason::Crowded);
        }
        self.note_time(from);
        self.version += 1;
        let arrived = self.piece(new_start.0, size, from, object);
        let to = PieceId { start: arrived.start, size, from, order: arrived.order };
        if self.announced.insert(arrived).is_err() {
            return self.drop_event(DropReason::Crowded);
        }
        self.object_bytes = self.object_bytes.saturating_add(bytes);
        self.moves.insert(to.order, Moved { old_start: old_start.0, to });
        self.newest_move = self.newest_move.max(from);
        self.stats.moves += 1;
        self.stats.moves_of_unknown += u64::from(id.is_none());
        Applied::Moved(id)
    }

    /// The object in a piece of either layer; for the target of a move in doubt, found by walking back.
    pub(super) fn object_of<'a>(&'a self, piece: &PieceRef<'a>) -> Option<&'a Arc<CodeObject>> {
        let mut piece = *piece;
        for _ in 0..MAX_HOPS {
            if piece.from <= self.doubt_after {
                return piece.object;
            }
            let Some(moved) = self.moves.get(&piece.order) else {
                return piece.object;
            };
            // The order before that of the target is that of the piece that was left behind.
            piece = self.announced.before(moved.old_start, piece.from, piece.order.saturating_sub(1))?;
            if piece.start != moved.old_start {
                return None;
            }
        }
        None
    }

    /// The object that lies exactly at `start` until `time`.
    fn source_of(&self, start: u64, time: u64, order: u64) -> Option<&Arc<CodeObject>> {
        let piece = self.announced.before(start, time, order).filter(|piece| piece.start == start)?;
        self.object_of(&piece)
    }

    /// Gives inherited move targets the objects that the parent would find now. The child keeps no move of its
    /// parent: a later announcement from before the move renames its target in the parent only.
    pub(super) fn relink_from(&mut self, parent: &Self) {
        self.doubt_after = NEVER;
        if parent.moves.is_empty() {
            return;
        }
        let targets: Vec<PieceId> = self.announced.pieces().map(|piece| piece.id()).collect();
        for id in targets.iter().filter(|id| parent.moves.contains_key(&id.order)) {
            let object = parent.moved_object(id);
            if let Some(slot) = self.announced.object_mut(id) {
                *slot = object;
            }
        }
    }

    fn moved_object(&self, id: &PieceId) -> Option<Arc<CodeObject>> {
        let piece = self.announced.same(id.start, id.size, id.from).find(|piece| piece.order == id.order)?;
        self.object_of(&piece).cloned()
    }

    /// Looks up again what the moves in doubt carry, before what they depend on is removed.
    pub(super) fn relink(&mut self) {
        let mut doubtful: Vec<Moved> =
            self.moves.values().filter(|moved| moved.to.from > self.doubt_after).copied().collect();
        doubtful.sort_by_key(|moved| (moved.to.from, moved.to.order));
        for moved in doubtful {
            // In time order, so that everything before this move is certain and one step suffices.
            self.doubt_after = moved.to.from.saturating_sub(1);
            let object = self.moved_object(&moved.to);
            let new_bytes = object_bytes(object.as_ref());
            if let Some(slot) = self.announced.object_mut(&moved.to) {
                let old_bytes = object_bytes(slot.as_ref());
                self.object_bytes = self.object_bytes.saturating_sub(old_bytes).saturating_add(new_bytes);
                *slot = object;
            }
        }
        self.doubt_after = NEVER;
    }
}
