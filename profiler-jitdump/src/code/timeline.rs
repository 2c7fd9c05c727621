//! Disjoint rectangles in address and time.
//!
//! Every announcement puts a *piece* over a range of addresses from a time on. It ends when the next announcement
//! touches any of its bytes, so at each time no two pieces share an address:
//!
//! ```text
//! address
//!    ▲      ┌───────── B
//!    │  ┌───┤             A ends wholly when B takes its upper half:
//!    │  │ A └─────────    the bytes below B are no longer A's function
//!    │  └───┐
//!    └──┴───┴────────────▶ time
//! ```
//!
//! The end of a piece is a function of the set of announcements, not of their order of arrival:
//!
//! ```text
//! end(P) = min { from(Q) : Q follows P and overlaps P }   where "follows" compares (from, arrival)
//! ```
//!
//! Pieces that have not ended are kept by address. Ended pieces are kept by *(size class, cell, from)*: class k holds
//! sizes in (2^(k-1), 2^k] and its cells are 2^(k-1) wide, so two pieces that start in the same cell overlap, hence
//! never coexist, hence are ordered in time. A look-up among the ended therefore inspects one candidate in each of
//! three cells a class, however long the history of an address is.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::object::CodeObject;

mod collisions;

pub(super) use collisions::Crowded;

/// The end of a piece that has not ended.
pub(super) const NEVER: u64 = u64::MAX;

/// User addresses end below this on every supported machine (x86-64 with five-level paging: 2^56).
pub(super) const MAX_ADDRESS: u64 = 1 << 56;

/// Size classes: sizes up to 2^31.
const CLASSES: usize = 32;

/// A piece, wherever it is stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct PieceRef<'a> {
    pub(super) start: u64,
    pub(super) size: u32,
    pub(super) from: u64,
    pub(super) end: u64,
    pub(super) order: u64,
    /// `None`: known to hold no known object (the place something moved away from).
    pub(super) object: Option<&'a Arc<CodeObject>>,
}

/// What finds a piece again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PieceId {
    pub(super) start: u64,
    pub(super) size: u32,
    pub(super) from: u64,
    pub(super) order: u64,
}

impl PieceRef<'_> {
    pub(super) fn id(&self) -> PieceId {
        PieceId { start: self.start, size: self.size, from: self.from, order: self.order }
    }
}

/// A piece to put in.
#[derive(Debug)]
pub(super) struct NewPiece {
    pub(super) start: u64,
    pub(super) size: u32,
    pub(super) from: u64,
    /// Arrival; decides between equal times. Greater than that of every piece put in before.
    pub(super) order: u64,
    /// The piece ends here at the latest.
    pub(super) ceiling: u64,
    pub(super) object: Option<Arc<CodeObject>>,
}

#[derive(Clone, Debug)]
struct Alive {
    from: u64,
    order: u64,
    size: u32,
    object: Option<Arc<CodeObject>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    place: u64,
    from: u64,
    order: u64,
}

#[derive(Clone, Debug)]
struct Ended {
    start: u64,
    end: u64,
    size: u32,
    object: Option<Arc<CodeObject>>,
}

/// The numbers of the bits that are set, the least first.
fn bits(mut left: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = usize::try_from(left.trailing_zeros()).ok().filter(|_| left != 0);
        left &= left.wrapping_sub(1);
        bit
    })
}

/// The pieces of one input layer.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    alive: BTreeMap<u64, Alive>,
    ended: BTreeMap<Key, Ended>,
    /// How many ended pieces each size class holds; a look-up skips the empty ones.
    classes: [u32; CLASSES],
    /// A bit for each class that holds any.
    used: u32,
    /// Addresses between which all ended pieces lie, for code that is elsewhere. It never becomes narrower.
    ended_within: Range<u64>,
    /// The greatest `from` or end of any piece so far: an announcement at or after it is in order.
    newest: u64,
    /// Before this time no piece has ended, and none without an object has begun: there is nothing to prune.
    prune_from: u64,
}

const fn class_of(size: u32) -> usize {
    // size is 1 or more; ceil(log2(size)) is at most 32 - 1 because the map caps sizes at 2^30.
    (u32::BITS - size.saturating_sub(1).leading_zeros()) as usize
}

const fn shift_of(class: usize) -> u32 {
    class.saturating_sub(1) as u32
}

const fn place_of(class: usize, cell: u64) -> u64 {
    ((class as u64) << 56) | cell
}

impl Alive {
    fn end_address(&self, start: u64) -> u64 {
        start.saturating_add(u64::from(self.size))
    }

    fn view(&self, start: u64) -> PieceRef<'_> {
        PieceRef {
            start,
            size: self.size,
            from: self.from,
            end: NEVER,
            order: self.order,
            object: self.object.as_ref(),
        }
    }
}

impl Ended {
    fn covers(&self, addr: u64) -> bool {
        addr.checked_sub(self.start).is_some_and(|offset| offset < u64::from(self.size))
    }

    fn overlaps(&self, range: &Range<u64>) -> bool {
        self.start < range.end && range.start < self.start.saturating_add(u64::from(self.size))
    }

    fn view(&self, key: &Key) -> PieceRef<'_> {
        PieceRef {
            start: self.start,
            size: self.size,
            from: key.from,
            end: self.end,
            order: key.order,
            object: self.object.as_ref(),
        }
    }
}

impl Timeline {
    /// Puts a piece in, ends what it overlaps, and ends it where a later piece already overlaps it.
    ///
    /// In time order: O(log n) and O(log n) for each piece ended. Out of order: bounded, see [`Crowded`].
    pub(super) fn insert(&mut self, piece: NewPiece) -> Result<(), Crowded> {
        let range = piece.start..piece.start.saturating_add(u64::from(piece.size));
        let mut end = piece.ceiling;
        if piece.from < self.newest {
            let collisions = self.collisions(&range, piece.from)?;
            end = end.min(collisions.end);
            for key in collisions.cut {
                if let Some(ended) = self.ended.get_mut(&key) {
                    ended.end = piece.from;
                    self.prune_from = self.prune_from.min(piece.from);
                }
            }
        }
        self.end_alive(&range, piece.from);
        self.newest = self.newest.max(piece.from);
        let alive = Alive { from: piece.from, order: piece.order, size: piece.size, object: piece.object };
        if end == NEVER {
            if alive.object.is_none() {
                self.prune_from = self.prune_from.min(alive.from);
            }
            self.alive.insert(piece.start, alive);
        } else {
            self.put_ended(piece.start, alive, end);
        }
        Ok(())
    }

    /// Ends the living pieces in `range` that are not younger than `time`.
    fn end_alive(&mut self, range: &Range<u64>, time: u64) {
        let overlapped: Vec<u64> = self
            .alive
            .range(..range.end)
            .rev()
            .take_while(|(start, alive)| alive.end_address(**start) > range.start)
            .filter(|(_, alive)| alive.from <= time)
            .map(|(start, _)| *start)
            .collect();
        for start in overlapped {
            if let Some(alive) = self.alive.remove(&start) {
                self.put_ended(start, alive, time);
            }
        }
    }

    fn put_ended(&mut self, start: u64, Alive { size, from, order, object }: Alive, end: u64) {
        let class = class_of(size);
        let key = Key { place: place_of(class, start >> shift_of(class)), from, order };
        let (within, end_address) = (&mut self.ended_within, start.saturating_add(u64::from(size)));
        *within = match within.is_empty() {
            true => start..end_address,
            false => within.start.min(start)..within.end.max(end_address),
        };
        self.ended.insert(key, Ended { start, end, size, object });
        self.classes[class] = self.classes[class].saturating_add(1);
        self.used |= 1 << class;
        self.newest = self.newest.max(end);
        self.prune_from = self.prune_from.min(end);
    }

    fn used_classes(&self) -> impl Iterator<Item = usize> + use<> {
        bits(self.used)
    }

    /// The cells in which an ended piece that covers `addr` can start.
    fn cells(&self, addr: u64) -> impl Iterator<Item = u64> + '_ {
        let used = if self.ended_within.contains(&addr) { self.used } else { 0 };
        bits(used).flat_map(move |class| {
            let cell = addr >> shift_of(class);
            (cell.saturating_sub(2)..=cell).map(move |cell| place_of(class, cell))
        })
    }

    fn alive_at(&self, addr: u64) -> Option<PieceRef<'_>> {
        let (&start, alive) = self.alive.range(..=addr).next_back()?;
        (addr < alive.end_address(start)).then(|| alive.view(start))
    }

    /// The piece that covers `addr` at `time`.
    pub(super) fn at(&self, addr: u64, time: u64) -> Option<PieceRef<'_>> {
        if let Some(alive) = self.alive_at(addr).filter(|piece| piece.from <= time) {
            return Some(alive);
        }
        self.cells(addr).find_map(|place| {
            let upto = Key { place, from: time, order: u64::MAX };
            let (key, piece) = self.ended.range(first_of(place)..=upto).next_back()?;
            (piece.end > time && piece.covers(addr)).then(|| piece.view(key))
        })
    }

    /// The last piece over `addr` that precedes `(time, order)` and that nothing ended before `time`.
    pub(super) fn before(&self, addr: u64, time: u64, order: u64) -> Option<PieceRef<'_>> {
        let alive = self.alive_at(addr).filter(|piece| (piece.from, piece.order) < (time, order));
        let ended = self.cells(addr).filter_map(|place| {
            let (key, piece) = self.ended.range(first_of(place)..Key { place, from: time, order }).next_back()?;
            (piece.end >= time && piece.covers(addr)).then(|| piece.view(key))
        });
        ended.chain(alive).max_by_key(|piece| (piece.from, piece.order))
    }

    /// The first piece over `addr` that begins after `time` and holds an object.
    pub(super) fn after(&self, addr: u64, time: u64) -> Option<PieceRef<'_>> {
        /// Later pieces of a cell looked at; the candidates all overlap each other, so the first nearly always covers.
        const TRIES: usize = 16;
        let alive = self.alive_at(addr).filter(|piece| piece.from > time);
        let ended = self.cells(addr).filter_map(|place| {
            let next = Key { place, from: time.checked_add(1)?, order: 0 };
            let mut later = self.ended.range(next..=last_of(place)).take(TRIES);
            later
                .find(|(key, piece)| piece.object.is_some() && piece.covers(addr) && piece.end > key.from)
                .map(|(key, piece)| piece.view(key))
        });
        ended.chain(alive).filter(|piece| piece.object.is_some()).min_by_key(|piece| piece.from)
    }

    /// The pieces that begin at exactly this address and time with exactly this size.
    ///
    /// The last of many in one cell only: all of one time, a hostile dump's, would be compared with each other.
    pub(super) fn same(&self, start: u64, size: u32, from: u64) -> impl Iterator<Item = PieceRef<'_>> {
        const MOST: usize = 256;
        let alive = self.alive.get(&start).map(|alive| alive.view(start));
        let class = class_of(size);
        let place = place_of(class, start >> shift_of(class));
        let ended = self.ended.range(Key { place, from, order: 0 }..=Key { place, from, order: u64::MAX });
        alive
            .into_iter()
            .chain(ended.rev().take(MOST).map(|(key, piece)| piece.view(key)))
            .filter(move |piece| piece.start == start && piece.size == size && piece.from == from)
    }

    /// The living piece that begins at `start`.
    pub(super) fn alive_from(&self, start: u64) -> Option<PieceRef<'_>> {
        self.alive.get(&start).map(|alive| alive.view(start))
    }

    /// Where the object of a known piece is kept, to exchange it.
    pub(super) fn object_mut(&mut self, piece: &PieceId) -> Option<&mut Option<Arc<CodeObject>>> {
        let class = class_of(piece.size);
        let place = place_of(class, piece.start >> shift_of(class));
        match self.ended.get_mut(&Key { place, from: piece.from, order: piece.order }) {
            Some(ended) => Some(&mut ended.object),
            None => {
                let alive = self.alive.get_mut(&piece.start).filter(|alive| alive.order == piece.order)?;
                Some(&mut alive.object)
            }
        }
    }

    /// Ends at `time` everything that began before.
    pub(super) fn end_all(&mut self, time: u64) {
        self.newest = self.newest.max(time);
        self.prune_from = self.prune_from.min(time);
        for piece in self.ended.iter_mut().filter(|(key, _)| key.from < time).map(|(_, piece)| piece) {
            piece.end = piece.end.min(time);
        }
        for (start, alive) in std::mem::take(&mut self.alive) {
            if alive.from < time {
                self.put_ended(start, alive, time);
            } else {
                self.alive.insert(start, alive);
            }
        }
    }

    /// A timeline of what is there at `time`, going on from then.
    pub(super) fn fork(&self, time: u64) -> Self {
        let living = self.alive.iter().filter(|(_, alive)| alive.from <= time);
        let mut alive: BTreeMap<u64, Alive> = living.map(|(start, alive)| (*start, alive.clone())).collect();
        let then = self.ended.iter().filter(|(key, piece)| key.from <= time && piece.end > time);
        alive.extend(then.map(|(key, piece)| {
            let object = piece.object.clone();
            (piece.start, Alive { from: key.from, order: key.order, size: piece.size, object })
        }));
        let newest = alive.values().map(|alive| alive.from).max().unwrap_or(0);
        Self { alive, newest, ..Self::default() }
    }

    /// Removes the pieces that ended at or before `time`, and those without an object that say no more than that nothing is
    /// there since; returns them through `gone`. Costs a pass over all pieces, if there are such.
    pub(super) fn prune(&mut self, time: u64, mut gone: impl FnMut(PieceRef<'_>)) {
        if time < self.prune_from {
            return;
        }
        let (classes, used, mut next) = (&mut self.classes, &mut self.used, NEVER);
        self.ended.retain(|key, piece| {
            let keep = piece.end > time;
            if keep {
                next = next.min(piece.end);
            } else {
                gone(piece.view(key));
                let class = class_of(piece.size);
                classes[class] = classes[class].saturating_sub(1);
                if classes[class] == 0 {
                    *used &= !(1 << class);
                }
            }
            keep
        });
        self.alive.retain(|start, alive| {
            let keep = alive.object.is_some() || alive.from > time;
            if !keep {
                gone(alive.view(*start));
            } else if alive.object.is_none() {
                next = next.min(alive.from);
            }
            keep
        });
        self.prune_from = next;
    }

    /// Every piece, those without an object too: the living by address, then the ended.
    pub(super) fn pieces(&self) -> impl Iterator<Item = PieceRef<'_>> {
        let alive = self.alive.iter().map(|(start, alive)| alive.view(*start));
        alive.chain(self.ended.iter().map(|(key, piece)| piece.view(key)))
    }

    /// How many pieces live, and how many have ended.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.alive.len(), self.ended.len())
    }

    /// Memory of the two trees in bytes, from the measured filling of B-tree nodes (6 to 8 of 11 slots).
    pub(super) fn bytes(&self) -> usize {
        /// Slots that a B-tree node keeps for each entry it holds, in sixteenths: 11 / 6.5.
        const SLOTS_16: usize = 27;
        let alive = self.alive.len() * (size_of::<u64>() + size_of::<Alive>());
        let ended = self.ended.len() * (size_of::<Key>() + size_of::<Ended>());
        (alive + ended) * SLOTS_16 / 16
    }
}

fn first_of(place: u64) -> Key {
    Key { place, from: 0, order: 0 }
}

fn last_of(place: u64) -> Key {
    Key { place, from: u64::MAX, order: u64::MAX }
}
