//! Code whose rows are made elsewhere, one part of it after the other.
//!
//! An Erlang has thousands of functions when it begins, and to follow the code of all of them takes half a second. So that
//! nobody's samples wait for that, only a little of what one reading finds has rows at once. The rest is ordered in the order in
//! which it was found, and while its rows are made, nothing is known of it: what meets it brings a snapshot, and waits.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use jitprof_common::units::MonoNs;
use serde_bytes::ByteBuf;

/// Bytes of code of one reading that have rows at once: some 2 ms.
const AT_ONCE_BYTES: usize = 32 << 10;
/// Bytes of an order, and of one function more: some 20 ms.
const ORDER_BYTES: usize = 256 << 10;
/// Orders of one process that are not answered: with one alone, builders would rest until the next turn.
const MAX_ORDERS: usize = 4;
/// Memory of one process' code that waits; what finds no room is read where it is met. OTP's own modules have 6 MB when all are
/// loaded, a large application three times as much.
const MAX_KEPT_BYTES: usize = 24 << 20;
/// What a function takes beside its code.
const FUNCTION_BYTES: usize = 64;

/// A function whose rows are awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) start: u64,
    pub(super) size: u32,
    /// Since when it is there.
    pub(super) since: MonoNs,
}

impl Piece {
    fn end(&self) -> u64 {
        self.start.saturating_add(u64::from(self.size))
    }
}

/// The functions of one process whose rows are awaited.
#[derive(Debug)]
pub(super) struct Unmade {
    /// By address; they do not overlap.
    pieces: BTreeMap<u64, Piece>,
    /// Those that are not ordered, with their code; some of them may be there no more.
    waiting: VecDeque<(Piece, ByteBuf)>,
    waiting_bytes: usize,
    orders: usize,
    at_once: usize,
    /// How much more of the reading that is taken up may wait.
    room: usize,
}

impl Default for Unmade {
    fn default() -> Self {
        let (pieces, waiting, waiting_bytes, orders) = Default::default();
        Self { pieces, waiting, waiting_bytes, orders, at_once: AT_ONCE_BYTES, room: MAX_KEPT_BYTES }
    }
}

impl Unmade {
    /// Another reading is taken up; others have left so much room for its code.
    pub(super) fn begin_reading(&mut self, room: usize) {
        (self.at_once, self.room) = (AT_ONCE_BYTES, room);
    }

    /// Whether rows of so many further bytes are made at once. What comes behind others that wait does so, too.
    pub(super) fn makes_at_once(&mut self, bytes: usize) -> bool {
        let left = self.at_once.checked_sub(bytes);
        self.at_once = left.unwrap_or(0);
        left.is_some()
    }

    /// Awaits rows of a function in a place that has been made; false if there is no room for its code.
    pub(super) fn add(&mut self, piece: Piece, code: ByteBuf) -> bool {
        let bytes = room_of(&code).saturating_add(FUNCTION_BYTES);
        let has_room = bytes <= self.room && self.bytes().saturating_add(bytes) <= MAX_KEPT_BYTES;
        if has_room {
            self.room -= bytes;
            self.waiting_bytes += room_of(&code);
            self.waiting.push_back((piece, code));
            self.pieces.insert(piece.start, piece);
        }
        has_room
    }

    /// There is other code in a range since a time: what is not newer is awaited no more. Returns whether nothing is.
    pub(super) fn make_place(&mut self, range: &Range<u64>, time: MonoNs) -> bool {
        let reaching: Vec<Piece> = self.within(range).copied().collect();
        for piece in reaching.iter().filter(|piece| piece.since <= time) {
            self.pieces.remove(&piece.start);
        }
        reaching.iter().all(|piece| piece.since <= time)
    }

    /// Whether rows are awaited of anything that reaches into a range.
    pub(super) fn reaches_into(&self, range: &Range<u64>) -> bool {
        self.within(range).next().is_some()
    }

    fn within(&self, range: &Range<u64>) -> impl Iterator<Item = &Piece> {
        let start = range.start;
        self.pieces.range(..range.end).rev().map(|(_, piece)| piece).take_while(move |piece| piece.end() > start)
    }

    /// Whether rows are awaited of a function that is there since a time.
    pub(super) fn has(&self, start: u64, since: MonoNs) -> bool {
        self.pieces.get(&start).is_some_and(|piece| piece.since == since)
    }

    /// Whether, at a time, there was a function at an address whose rows are awaited.
    pub(super) fn covers(&self, address: u64, time: MonoNs) -> bool {
        let last = self.pieces.range(..=address).next_back();
        last.is_some_and(|(_, piece)| address < piece.end() && piece.since <= time)
    }

    /// The next part of what waits, if one may be ordered now.
    pub(super) fn next_order(&mut self) -> Option<Vec<(Piece, ByteBuf)>> {
        let (mut order, mut bytes) = (Vec::new(), 0);
        while self.orders < MAX_ORDERS
            && bytes < ORDER_BYTES
            && let Some((piece, code)) = self.waiting.pop_front()
        {
            self.waiting_bytes = self.waiting_bytes.saturating_sub(room_of(&code));
            if self.pieces.get(&piece.start) == Some(&piece) {
                bytes += code.len();
                order.push((piece, code));
            }
        }
        self.orders += usize::from(!order.is_empty());
        (!order.is_empty()).then_some(order)
    }

    /// An order has been answered, or nobody will.
    pub(super) fn end_order(&mut self) {
        self.orders = self.orders.saturating_sub(1);
    }

    /// Whether the rows of exactly this function are awaited. They are no more.
    pub(super) fn take(&mut self, piece: &Piece) -> bool {
        let is_there = self.pieces.get(&piece.start) == Some(piece);
        if is_there {
            self.pieces.remove(&piece.start);
        }
        is_there
    }

    /// Awaits nothing more of what is not ordered. Returns what that was.
    pub(super) fn give_up_waiting(&mut self) -> Vec<Piece> {
        self.waiting_bytes = 0;
        let waiting = std::mem::take(&mut self.waiting);
        waiting.into_iter().map(|(piece, _)| piece).filter(|piece| self.take(piece)).collect()
    }

    /// Awaits nothing more. What is ordered is being made all the same, and counts until it is answered.
    pub(super) fn cancel(&mut self) {
        *self = Self { orders: self.orders, ..Self::default() };
    }

    /// Memory, estimated.
    pub(super) fn bytes(&self) -> usize {
        self.waiting_bytes + self.pieces.len() * FUNCTION_BYTES + self.orders * ORDER_BYTES
    }
}

/// What a function takes while it waits.
fn room_of(code: &ByteBuf) -> usize {
    code.len().saturating_add(FUNCTION_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u32 = 0x8000;

    fn piece(number: u64, since: u64) -> Piece {
        Piece { start: number * u64::from(SIZE), size: SIZE, since: MonoNs(since) }
    }

    fn code() -> ByteBuf {
        vec![0x90; SIZE as usize].into()
    }

    fn waiting(count: u64) -> Unmade {
        let mut unmade = Unmade::default();
        (0..count).for_each(|number| assert!(unmade.add(piece(number, 1), code())));
        unmade
    }

    fn numbers(order: Option<Vec<(Piece, ByteBuf)>>) -> Vec<u64> {
        order.into_iter().flatten().map(|(piece, _)| piece.start / u64::from(SIZE)).collect()
    }

    #[test]
    fn a_little_of_each_reading_has_rows_at_once_and_nothing_behind_what_waits() {
        let mut unmade = Unmade::default();
        let at_once =
            |unmade: &mut Unmade| [AT_ONCE_BYTES / 2, AT_ONCE_BYTES, 1].map(|bytes| unmade.makes_at_once(bytes));
        assert_eq!(at_once(&mut unmade), [true, false, false]);
        unmade.begin_reading(0);
        assert_eq!(at_once(&mut unmade), [true, false, false]);
    }

    #[test]
    fn parts_are_ordered_as_they_were_found_and_some_at_a_time() {
        let mut unmade = waiting(40);
        let orders: Vec<Vec<u64>> = (0..5).map(|_| numbers(unmade.next_order())).collect();
        assert_eq!(orders.iter().map(Vec::len).collect::<Vec<_>>(), [8, 8, 8, 8, 0]);
        assert_eq!(orders.concat(), (0..32).collect::<Vec<_>>());
        assert_eq!(unmade.bytes(), 8 * (SIZE as usize + FUNCTION_BYTES) + 40 * FUNCTION_BYTES + 4 * ORDER_BYTES);
        unmade.end_order();
        assert_eq!(numbers(unmade.next_order()), (32..40).collect::<Vec<_>>());
        assert!(unmade.take(&piece(0, 1)) && !unmade.take(&piece(0, 1)));
    }

    #[test]
    fn what_is_given_up_is_what_is_not_ordered_and_not_replaced() {
        let mut unmade = waiting(12);
        assert_eq!(numbers(unmade.next_order()), (0..8).collect::<Vec<_>>());
        let range = |number: u64| piece(number, 0).start..piece(number, 0).end();
        assert!(unmade.make_place(&range(9), MonoNs(2)));
        assert_eq!(unmade.give_up_waiting(), [8, 10, 11].map(|number| piece(number, 1)));
        assert_eq!((unmade.bytes(), unmade.next_order()), (8 * FUNCTION_BYTES + ORDER_BYTES, None));
        assert!(unmade.take(&piece(7, 1)) && !unmade.covers(piece(8, 1).start, MonoNs(1)), "it is under way");
    }

    #[test]
    fn what_is_ordered_counts_until_it_is_answered_also_when_nobody_awaits_it() {
        let mut unmade = waiting(40);
        (0..MAX_ORDERS).for_each(|_| assert!(unmade.next_order().is_some()));
        unmade.cancel();
        assert_eq!(unmade.bytes(), MAX_ORDERS * ORDER_BYTES);
        assert!(unmade.add(piece(0, 2), code()) && unmade.next_order().is_none() && !unmade.take(&piece(0, 1)));
        unmade.end_order();
        assert_eq!(numbers(unmade.next_order()), [0]);
        (0..MAX_ORDERS).for_each(|_| unmade.end_order());
        assert!(unmade.take(&piece(0, 2)) && unmade.bytes() == 0);
    }

    #[test]
    fn what_gives_way_is_neither_ordered_nor_taken() {
        let mut unmade = waiting(4);
        let range = |number: u64| piece(number, 0).start..piece(number, 0).end();
        assert!(unmade.make_place(&range(1), MonoNs(2)) && !unmade.reaches_into(&range(1)));
        assert!(!unmade.make_place(&range(2), MonoNs(0)), "it is newer");
        assert!(unmade.make_place(&range(3), MonoNs(2)) && unmade.add(piece(3, 2), code()));
        assert_eq!([0, 1, 2].map(|time| unmade.covers(piece(3, 0).start, MonoNs(time))), [false, false, true]);
        assert_eq!(numbers(unmade.next_order()), [0, 2, 3]);
        assert!(!unmade.take(&piece(1, 1)) && !unmade.take(&piece(3, 1)) && unmade.take(&piece(3, 2)));
        assert!(unmade.has(0, MonoNs(1)) && !unmade.has(0, MonoNs(2)));
    }

    #[test]
    fn no_more_code_waits_than_there_is_room_for() {
        let mut unmade = Unmade::default();
        let taken = (0..1000).take_while(|number| unmade.add(piece(*number, 1), code())).count();
        assert!((750..768).contains(&taken), "{taken}");
        assert!(unmade.bytes() <= MAX_KEPT_BYTES);
        let mut unmade = Unmade::default();
        let of_one = SIZE as usize + 2 * FUNCTION_BYTES;
        unmade.begin_reading(2 * of_one - 1);
        assert_eq!([0, 1].map(|number| unmade.add(piece(number, 1), code())), [true, false], "others have the rest");
        unmade.begin_reading(of_one);
        assert_eq!([1, 2].map(|number| unmade.add(piece(number, 1), code())), [true, false]);
        // Nor where ever new code takes the place of the old.
        let mut unmade = Unmade::default();
        let replaced = (0..1000)
            .take_while(|since| unmade.make_place(&(0..1), MonoNs(*since)) && unmade.add(piece(0, *since), code()));
        assert!((750..768).contains(&replaced.count()));
    }
}
