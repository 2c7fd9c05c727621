//! When the tables of a runtime are read again before their rest is over.
//!
//! Code that has just been made has no rows until a reading finds it, and where it takes the place of other code, no name
//! either. So where samples meet code without a name in a heap of the runtime's, the next reading comes sooner. It is paid from
//! rest that was saved: in the long run readings cost no more than without.

use std::collections::BTreeMap;
use std::ops::Range;

use jitprof_common::units::{Avma, MonoNs};

/// Rest that is saved at most, and owed at most: 100 ms of CPU time.
const MAX_SAVED_NS: u64 = 5_000_000_000;
/// Least time between a reading and an early one. It doubles with each early one in turn that names nothing of what was met...
const LEAST_PAUSE_NS: u64 = 20_000_000;
/// ...so many times: then it is as long as the longest rest.
const MAX_DOUBLED: u32 = 8;
/// How long after a reading that has named what was met it is looked every [`LEAST_PAUSE_NS`] whether there is more: few samples
/// wait in the ring buffer until somebody looks.
const WATCHED_NS: u64 = 1_000_000_000;
/// Addresses that are remembered; one is enough for a reading, and the others are most often of the same code.
const MAX_MET: usize = 64;
/// Heaps of one runtime, as many as are read of a JVM.
const MAX_HEAPS: usize = 8;

/// What early readings of one process depend on.
#[derive(Debug, Default)]
pub(super) struct Early {
    /// Where the runtime puts code: first byte, length.
    heaps: Vec<(Avma, u64)>,
    /// Where samples have met code there that has no name, and when last.
    met: BTreeMap<u64, MonoNs>,
    /// When the process has last said that it has new code, if no reading was asked for since.
    told: Option<MonoNs>,
    /// The one that is on its way was asked for since.
    was_told: bool,
    /// Up to this time the rest after all readings is paid.
    paid_until: MonoNs,
    /// No early one before this time.
    not_before: MonoNs,
    /// Early ones in turn that have named nothing of what was met.
    in_vain: u32,
    /// The one that is on its way is early.
    is_early: bool,
    watched_until: MonoNs,
}

impl Early {
    /// The runtime puts its code there.
    pub(super) fn note_heaps(&mut self, heaps: &[(Avma, u64)]) {
        self.heaps.clear();
        self.heaps.extend(heaps.iter().take(MAX_HEAPS));
    }

    /// Whether the runtime has its code around an address.
    pub(super) fn has_heap_at(&self, address: u64) -> bool {
        let distance = |start: Avma| address.checked_sub(start.0);
        self.heaps.iter().any(|(start, size)| distance(*start).is_some_and(|distance| distance < *size))
    }

    /// A sample has met code in a heap that has no name.
    pub(super) fn meet(&mut self, address: u64, time: MonoNs) {
        if let Some(last) = self.met.get_mut(&address) {
            *last = time.max(*last);
        } else if self.met.len() < MAX_MET {
            self.met.insert(address, time);
        }
    }

    /// The process has said at a time that it has new code.
    pub(super) fn tell(&mut self, time: MonoNs) {
        self.told = self.told.max(Some(time));
    }

    /// When the next reading is due, which is at `next_at` if it is no early one.
    pub(super) fn due_at(&self, next_at: MonoNs) -> MonoNs {
        if self.has_none() { next_at } else { next_at.min(self.paid_until.max(self.not_before)) }
    }

    /// When it is to be looked whether there is something to be read, or more is met; the next reading is due at `due_at`.
    pub(super) fn look_at(&self, due_at: MonoNs, now: MonoNs) -> Option<MonoNs> {
        let soon = MonoNs(now.0.saturating_add(LEAST_PAUSE_NS));
        // Where a reading could not be paid, there is no hurry.
        let is_watched = now < self.watched_until && self.paid_until <= soon;
        if self.has_none() {
            return is_watched.then_some(soon);
        }
        // It may be due since long before, when there was nothing to be read.
        Some(self.told.map_or(due_at, |told| due_at.max(told)))
    }

    /// Whether nothing is known that an early reading could name.
    fn has_none(&self) -> bool {
        self.met.is_empty() && self.told.is_none()
    }

    /// A reading is asked for.
    pub(super) fn begin(&mut self, is_early: bool) {
        self.is_early = is_early;
        self.was_told = self.told.take().is_some();
    }

    /// After a reading of a program that began at a time, so much rest is owed. Before it began it has saved nothing: who starts
    /// programs again and again has no more than others.
    pub(super) fn owe(&mut self, rest_ns: u64, began: MonoNs, now: MonoNs) {
        let saved_since = MonoNs(now.0.saturating_sub(MAX_SAVED_NS)).max(began);
        let paid_until = self.paid_until.max(saved_since).0.saturating_add(rest_ns);
        self.paid_until = MonoNs(paid_until.min(now.0.saturating_add(MAX_SAVED_NS)));
    }

    /// A reading that was begun at a time has found new code at these places.
    pub(super) fn settle(&mut self, found: impl Iterator<Item = Range<u64>>, begun: MonoNs, now: MonoNs) {
        let (mut named, mut is_new) = (0, false);
        for place in found {
            named += self.met.extract_if(place, |_, _| true).count();
            is_new = true;
        }
        // What it has not found of the time before no other one will find.
        self.met.retain(|_, time| begun < *time);
        if named > 0 {
            self.in_vain = 0;
            self.watched_until = MonoNs(now.0.saturating_add(WATCHED_NS));
        } else if is_new && self.was_told {
            self.in_vain = 0;
        } else if self.is_early {
            self.in_vain = MAX_DOUBLED.min(self.in_vain + 1);
        }
        self.is_early = false;
        self.not_before = MonoNs(now.0.saturating_add(LEAST_PAUSE_NS << self.in_vain));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: u64 = 0x7000_0000;
    const SIZE: u64 = 0x1000;

    /// A time in ms since a process is looked at.
    fn ms(time: u64) -> MonoNs {
        MonoNs(1_000_000_000_000 + time * 1_000_000)
    }

    /// What happens to a process, by the time in ms.
    struct Story {
        /// How long it has run before.
        age_ms: u64,
        /// When it runs.
        runs: fn(u64) -> bool,
        /// When it is in new code.
        meets: fn(u64) -> bool,
        /// Whether readings name that.
        names: fn(u64) -> bool,
        /// CPU time of a reading, in ms.
        costs: fn(u64) -> u64,
    }

    const BUSY: Story = Story { age_ms: 10_000, runs: |_| true, meets: |at| at > 0, names: |_| true, costs: |_| 10 };

    /// When its tables are read until a time. Without early ones it is after 49 times the cost of the one before, 5 s at most.
    fn readings(story: &Story, until: u64) -> Vec<u64> {
        let (mut early, mut next_at, mut read_at) = (Early::default(), ms(0), Vec::new());
        early.note_heaps(&[(Avma(CODE), SIZE)]);
        for at in (0..until).filter(|at| (story.runs)(*at)) {
            let now = ms(at);
            let address = CODE + at % SIZE;
            if (story.meets)(at) && early.has_heap_at(address) {
                early.meet(address, now);
            }
            if now >= early.due_at(next_at) {
                early.begin(now < next_at);
                let rest_ns = (story.costs)(at) * 49 * 1_000_000;
                next_at = MonoNs(now.0 + rest_ns.clamp(100_000_000, 5_000_000_000));
                early.owe(rest_ns, MonoNs(ms(0).0 - story.age_ms * 1_000_000), now);
                let all = CODE..CODE + SIZE;
                early.settle((story.names)(at).then_some(all).into_iter(), now, now);
                read_at.push(at);
            }
        }
        read_at
    }

    #[test]
    fn a_reading_comes_sooner_where_code_without_a_name_is_met() {
        assert_eq!(readings(&Story { meets: |at| at == 100, ..BUSY }, 1100), [0, 100, 590, 1080]);
        assert_eq!(readings(&Story { meets: |at| at == 5, ..BUSY }, 600), [0, 20, 510], "not at once after the last");
    }

    #[test]
    fn without_such_code_the_rest_is_what_it_was() {
        assert_eq!(readings(&Story { meets: |_| false, ..BUSY }, 1500), [0, 490, 980, 1470]);
        let mut early = Early::default();
        early.note_heaps(&[(Avma(CODE), SIZE)]);
        let places = [CODE - 1, CODE, CODE + SIZE - 1, CODE + SIZE];
        assert_eq!(places.map(|at| early.has_heap_at(at)), [false, true, true, false]);
        assert_eq!(early.due_at(ms(7)), ms(7));
    }

    #[test]
    fn readings_that_name_nothing_of_it_come_less_and_less_often() {
        let nothing = Story { names: |_| false, ..BUSY };
        assert_eq!(readings(&nothing, 2000), [0, 20, 60, 140, 300, 620, 1110, 1600]);
        // One that comes in its own time names it.
        let later = Story { names: |at| at >= 1600, ..BUSY };
        assert_eq!(readings(&later, 1650), [0, 20, 60, 140, 300, 620, 1110, 1600, 1620, 1640]);
    }

    #[test]
    fn saved_rest_is_used_up_and_saved_again_while_nothing_is_read() {
        let story = Story { runs: |at| !(2000..5000).contains(&at), ..BUSY };
        let read_at = readings(&story, 5200);
        let early: Vec<u64> = (0..=200).step_by(20).collect();
        assert_eq!(read_at[..11], early);
        assert_eq!(read_at[11..15], [390, 880, 1370, 1860], "nothing is left");
        assert_eq!(read_at[15..], [5000, 5020, 5040, 5060, 5080, 5100]);
    }

    #[test]
    fn in_the_long_run_readings_cost_no_more_than_their_rest_allows() {
        let all: [fn(u64) -> u64; 2] = [|_| 1, |at| 1 + at % 30];
        for costs in all {
            let until = 60_000;
            let spent: u64 = readings(&Story { costs, ..BUSY }, until).into_iter().map(costs).sum();
            let (saved, last) = (5000, 30 * 49);
            assert!(spent * 49 <= until + saved + last, "{spent} ms");
        }
    }

    #[test]
    fn a_dear_reading_is_not_owed_for_longer_than_the_longest_rest() {
        let story = Story {
            runs: |at| at <= 5000 || at >= 8000,
            meets: |at| at >= 8000,
            costs: |at| if at == 0 { 300 } else { 10 },
            ..BUSY
        };
        assert_eq!(readings(&story, 8050), [0, 5000, 8000, 8020, 8040]);
        let mut early = Early::default();
        early.owe(u64::MAX, MonoNs(0), ms(0));
        early.meet(CODE, ms(1));
        assert_eq!(early.due_at(MonoNs(u64::MAX)), ms(5000));
    }

    #[test]
    fn what_has_just_begun_has_saved_nothing() {
        assert_eq!(readings(&Story { age_ms: 0, ..BUSY }, 1000), [0, 490, 980]);
        assert_eq!(readings(&Story { age_ms: 500, ..BUSY }, 600), [0, 20, 480]);
    }

    #[test]
    fn it_is_looked_for_more_between_ticks_only_while_there_is_more_and_rest_is_saved() {
        let mut early = Early::default();
        assert_eq!(early.look_at(ms(490), ms(0)), None);
        early.meet(CODE, ms(1));
        assert_eq!(early.look_at(ms(490), ms(1)), Some(ms(490)));
        early.settle(std::iter::once(CODE..CODE + SIZE), ms(2), ms(3));
        assert_eq!([3, 1002, 1003].map(|at| early.look_at(ms(490), ms(at))), [Some(ms(23)), Some(ms(1022)), None]);
        early.owe(5_490_000_000, MonoNs(0), ms(3));
        assert_eq!([3, 472, 473].map(|at| early.look_at(ms(490), ms(at))), [None, None, Some(ms(493))]);
    }

    #[test]
    fn a_reading_comes_sooner_once_where_the_process_says_that_it_has_new_code() {
        let mut early = Early::default();
        early.tell(ms(1));
        assert_eq!(early.due_at(ms(490)), MonoNs(0));
        assert_eq!([0, 20].map(|due| early.look_at(ms(due), ms(1))), [Some(ms(1)), Some(ms(20))]);
        early.begin(true);
        assert_eq!(early.due_at(ms(490)), ms(490));
        early.tell(ms(2));
        early.settle(std::iter::once(CODE..CODE + SIZE), ms(2), ms(3));
        assert_eq!(early.due_at(ms(490)), ms(23), "said while it was read");
        early.begin(true);
        early.settle(std::iter::empty(), ms(24), ms(25));
        early.tell(ms(26));
        assert_eq!(early.due_at(ms(490)), ms(65), "who says so in vain is heard less often");
    }

    #[test]
    fn what_was_met_after_a_reading_began_is_met_still() {
        let mut early = Early::default();
        early.meet(CODE, ms(1));
        early.meet(CODE + 1, ms(5));
        early.settle(std::iter::empty(), ms(5), ms(6));
        assert_eq!(early.due_at(ms(490)), ms(490), "it has looked at both");
        early.meet(CODE, ms(7));
        early.meet(CODE, ms(6));
        early.settle(std::iter::empty(), ms(6), ms(8));
        assert_eq!(early.due_at(ms(490)), ms(28));
        (0..200).for_each(|at| early.meet(CODE + at, ms(9)));
        assert_eq!(early.met.len(), MAX_MET);
    }
}
