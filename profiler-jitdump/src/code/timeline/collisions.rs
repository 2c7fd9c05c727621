//! Announcements out of order: what one that is older than something already known collides with.

use std::ops::Range;

use super::{Key, NEVER, Timeline, first_of, last_of, place_of, shift_of};

/// Pieces inspected for one announcement out of order before it is given up.
///
/// Only an announcement older than something already known needs the search. Real ones are a function's size and
/// meet a handful of pieces; a target that writes huge records with old times over a dense map would cost a full scan
/// for each.
/// 4096 inspections are about 50 µs.
const SEARCH_BUDGET: usize = 4096;

/// An announcement out of order met more pieces than [`SEARCH_BUDGET`]; nothing was changed.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::code) struct Crowded;

/// What an announcement out of order runs into.
#[derive(Debug)]
pub(super) struct Collisions {
    /// The first later announcement over the range.
    pub(super) end: u64,
    /// Ended pieces that the announcement ends earlier.
    pub(super) cut: Vec<Key>,
}

/// The first and the last place at which a piece of this class that overlaps `range` can start.
const fn places_in(class: usize, range: &Range<u64>) -> (u64, u64) {
    let reach = (1_u64 << class) - 1;
    let shift = shift_of(class);
    let first = range.start.saturating_sub(reach) >> shift;
    (place_of(class, first), place_of(class, range.end.saturating_sub(1) >> shift))
}

impl Timeline {
    /// What a piece over `range` from `time` on collides with, for a `time` that is not the newest.
    pub(super) fn collisions(&self, range: &Range<u64>, time: u64) -> Result<Collisions, Crowded> {
        let mut found = Collisions { end: NEVER, cut: Vec::new() };
        let mut budget = SEARCH_BUDGET;
        let overlapped =
            self.alive.range(..range.end).rev().take_while(|(start, alive)| alive.end_address(**start) > range.start);
        for (_, alive) in overlapped {
            budget = budget.checked_sub(1).ok_or(Crowded)?;
            if alive.from > time {
                found.end = found.end.min(alive.from);
            }
        }
        for class in self.used_classes() {
            let (mut place, last) = places_in(class, range);
            while let Some((key, _)) = self.ended.range(first_of(place)..=last_of(last)).next() {
                budget = budget.checked_sub(1).ok_or(Crowded)?;
                self.cell_collisions(key.place, range, time, &mut found, &mut budget)?;
                place = key.place + 1;
                if place > last {
                    break;
                }
            }
        }
        Ok(found)
    }

    fn cell_collisions(
        &self,
        place: u64,
        range: &Range<u64>,
        time: u64,
        found: &mut Collisions,
        budget: &mut usize,
    ) -> Result<(), Crowded> {
        let upto = Key { place, from: time, order: u64::MAX };
        if let Some((key, piece)) = self.ended.range(first_of(place)..=upto).next_back()
            && piece.end > time
            && piece.overlaps(range)
        {
            found.cut.push(*key);
        }
        let after = Key { place, from: time.saturating_add(1), order: 0 };
        for (key, piece) in self.ended.range(after..=last_of(place)) {
            *budget = budget.checked_sub(1).ok_or(Crowded)?;
            if piece.overlaps(range) {
                found.end = found.end.min(key.from);
                break;
            }
        }
        Ok(())
    }

    /// The newest `from` among the living pieces in `range`, and whether any piece lies or lay there for a while.
    /// Answers yes where the history is too long to search.
    pub(in crate::code) fn overlap(&self, range: &Range<u64>) -> (u64, bool) {
        let living =
            self.alive.range(..range.end).rev().take_while(|(start, alive)| alive.end_address(**start) > range.start);
        let (newest, any) = living.fold((0, false), |(newest, _), (_, alive)| (newest.max(alive.from), true));
        (newest, any || self.overlaps_ended(range))
    }

    /// Whether something with a name lives in a range.
    pub(in crate::code) fn names_living(&self, range: &Range<u64>) -> bool {
        let mut living =
            self.alive.range(..range.end).rev().take_while(|(start, alive)| alive.end_address(**start) > range.start);
        living.any(|(_, alive)| alive.object.is_some())
    }

    fn overlaps_ended(&self, range: &Range<u64>) -> bool {
        let mut budget = SEARCH_BUDGET;
        self.used_classes().any(|class| {
            let (first, last) = places_in(class, range);
            self.ended.range(first_of(first)..=last_of(last)).any(|(key, piece)| {
                budget = budget.saturating_sub(1);
                budget == 0 || (piece.end > key.from && piece.overlaps(range))
            })
        })
    }
}
