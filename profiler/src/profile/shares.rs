//! Room in a table that several share who do not trust each other.

use rustc_hash::FxHashMap;

use super::limits::fnv1a;
use super::meta::Task;
use crate::owners::Holder;

/// What is free counts so many times as what one may have: who is alone gets two thirds of a table, and each of two who
/// want all of it three eighths.
const FREE_FACTOR: usize = 3;
/// This part of a table is for those who have no more than one [`SMALL`] of it with what they ask for, however many others
/// want everything (root's processes are holders each, and one container may have many).
const RESERVE: usize = 8;
const SMALL: usize = 64;

impl Holder {
    /// Whose a task is, as far as its labels say.
    pub fn of_task(task: &Task) -> Self {
        let user = task.labels.get("user").filter(|user| user.as_ref() != "root");
        user.map_or(Self::Process(task.pid, task.process_start), |user| Self::Named(fnv1a(user.as_bytes())))
    }
}

/// How much of a table each has.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Shares {
    of: FxHashMap<Holder, usize>,
}

impl Shares {
    /// Whether somebody may have so much more of a table of which so much is used. `None` is nobody in particular.
    pub fn may_take(&self, holder: Option<Holder>, more: usize, (used, limit): (usize, usize)) -> bool {
        let own = holder.map_or(0, |holder| self.of.get(&holder).copied().unwrap_or(0));
        let is_small = own.saturating_add(more) <= limit / SMALL;
        let reserve = if holder.is_some() && !is_small { limit / RESERVE } else { 0 };
        let free = limit.saturating_sub(used).saturating_sub(reserve);
        let most = if holder.is_some() { free.saturating_mul(FREE_FACTOR) } else { usize::MAX };
        more <= free && own.saturating_add(more) <= most
    }

    /// How much more somebody may have of a table of which so much is used: the most that he [may take](Self::may_take).
    pub fn room(&self, holder: Option<Holder>, (used, limit): (usize, usize)) -> usize {
        let free = limit.saturating_sub(used);
        let Some(holder) = holder else { return free };
        let own = self.of.get(&holder).copied().unwrap_or(0);
        let within = |free: usize| free.min(free.saturating_mul(FREE_FACTOR).saturating_sub(own));
        let small = (limit / SMALL).saturating_sub(own).min(within(free));
        small.max(within(free.saturating_sub(limit / RESERVE)))
    }

    /// He has it.
    pub fn take(&mut self, holder: Option<Holder>, more: usize) {
        if let Some(holder) = holder {
            let own = self.of.entry(holder).or_default();
            *own = own.saturating_add(more);
        }
    }

    /// He has given it back.
    pub fn give_back(&mut self, holder: Option<Holder>, less: usize) {
        let Some(holder) = holder else { return };
        let Some(own) = self.of.get_mut(&holder) else { return };
        *own = own.saturating_sub(less);
        if *own == 0 {
            self.of.remove(&holder);
        }
    }
}

#[cfg(test)]
mod tests {
    use jitprof_common::units::Pid;

    use super::*;

    #[test]
    fn who_wants_everything_leaves_a_part_to_the_next_one() {
        let (mut shares, mut used, limit) = (Shares::default(), 0, 1000);
        let mut fill = |holder| {
            let mut taken = 0;
            while shares.may_take(holder, 1, (used, limit)) {
                shares.take(holder, 1);
                (taken, used) = (taken + 1, used + 1);
            }
            taken
        };
        let holder = |number| Some(Holder::User(number));
        assert_eq!([fill(holder(1)), fill(holder(2)), fill(holder(1))], [657, 164, 0]);
        // Seven more who want everything do not get what is there for those who have little.
        for greedy in 3..10 {
            fill(holder(greedy));
        }
        let modest = fill(holder(100));
        assert_eq!((modest, limit / SMALL), (15, 15));
        shares.give_back(holder(1), 657);
        assert!(shares.may_take(holder(1), 1, (used - 657, limit)) && !shares.of.contains_key(&Holder::User(1)));
    }

    #[test]
    fn there_is_as_much_room_as_somebody_may_take() {
        let holder = |number| Some(Holder::User(number));
        let (mut shares, limit) = (Shares::default(), 1000);
        let mut used = 0;
        for more in [0, 10, 300, 340, 120, 100] {
            shares.take(holder(1), more);
            used += more;
            for somebody in [holder(1), holder(2), None] {
                let room = shares.room(somebody, (used, limit));
                assert!(room == 0 || shares.may_take(somebody, room, (used, limit)), "{used} {somebody:?} {room}");
                assert!(!shares.may_take(somebody, room + 1, (used, limit)), "{used} {somebody:?} {room}");
            }
        }
        assert_eq!([shares.room(holder(1), (used, limit)), shares.room(holder(2), (used, limit))], [0, limit / SMALL]);
    }

    #[test]
    fn who_asks_for_much_at_once_leaves_what_is_there_for_those_who_have_little() {
        let (mut shares, mut used, limit) = (Shares::default(), 0, 1 << 17);
        let large = 1 << 13;
        for number in 0..32 {
            let holder = Some(Holder::Process(Pid(number), 0));
            if shares.may_take(holder, large, (used, limit)) {
                shares.take(holder, large);
                used += large;
            }
        }
        assert_eq!(used, limit - limit / RESERVE);
        let modest = Some(Holder::User(1000));
        assert!(shares.may_take(modest, limit / SMALL, (used, limit)));
        assert!(!shares.may_take(modest, limit / SMALL + 1, (used, limit)));
    }
}
