//! Copies of generated code for children: for whom how much is copied.

use jitprof_common::units::MonoNs;
use rustc_hash::FxHashMap;

use crate::profile::Holder;

/// Bytes of code that are copied for one holder at once, and in each second beyond it. A copy takes the thread that records
/// everybody some 8 ms a MiB, so this is two seconds of it, and an eighth of its time; 80 workers with 3 MiB each, or ten with as much
/// as is kept of one process, may begin together.
pub(super) const COPIED_AT_ONCE: u64 = 256 << 20;
pub(super) const COPIED_A_SECOND: u64 = 16 << 20;
/// So many times both in a run that ends: it is made for what it records.
pub(super) const IN_A_RUN: u64 = 4;
/// So many times both for all of root's processes together, which are holders each.
const OF_ALL_ROOTS: u64 = 4;

const SECOND_NS: u64 = 1_000_000_000;
/// As long as a holder has to earn what is copied for him at once.
const AT_ONCE_NS: u64 = COPIED_AT_ONCE / COPIED_A_SECOND * SECOND_NS;

/// Who has had more copied than he has earned again.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// When each will have earned all of it. Nobody stays for longer than that: they are as many as have made children of late.
    earned_at: FxHashMap<Holder, MonoNs>,
    /// When all of root's processes together will have.
    roots_earned_at: MonoNs,
    is_continuous: bool,
}

impl Copies {
    /// From here on the recording is continuous.
    pub(super) fn begin_continuous(&mut self) {
        self.is_continuous = true;
    }

    /// Whether so many bytes are copied now for a holder, who then owes them, as do all of root's processes for each of them. For
    /// those who owe nothing they always are, however many they are: else there would be code that nobody's children can have.
    pub(super) fn take(&mut self, holder: Holder, bytes: usize, now: MonoNs) -> bool {
        let earning_ns = self.earning_ns(bytes as u64);
        let owed = self.earned_at.get(&holder).copied().unwrap_or(now);
        let Some(earned_at) = earned_after(owed, earning_ns, now) else { return false };
        if matches!(holder, Holder::Process(..)) {
            match earned_after(self.roots_earned_at, earning_ns / OF_ALL_ROOTS, now) {
                Some(earned_at) => self.roots_earned_at = earned_at,
                None => return false,
            }
        }
        self.earned_at.insert(holder, earned_at);
        true
    }

    /// How long a holder has to earn so many bytes.
    fn earning_ns(&self, bytes: u64) -> u64 {
        let times = if self.is_continuous { 1 } else { IN_A_RUN };
        bytes.saturating_mul(SECOND_NS) / (COPIED_A_SECOND * times)
    }

    /// Drops those who have earned everything again. About every second.
    pub(super) fn drop_earned(&mut self, now: MonoNs) {
        self.earned_at.retain(|_, earned_at| *earned_at > now);
    }

    /// How many holders owe something, as far as that was looked at.
    #[cfg(test)]
    pub(super) fn holders(&self) -> usize {
        self.earned_at.len()
    }
}

/// When everything will have been earned if so much more is copied for who will have earned what he owes at a time; `None` if that
/// is too much.
fn earned_after(owed: MonoNs, more_ns: u64, now: MonoNs) -> Option<MonoNs> {
    let earned_at = MonoNs(owed.max(now).0.saturating_add(more_ns));
    (owed <= now || earned_at.0.saturating_sub(now.0) <= AT_ONCE_NS).then_some(earned_at)
}

#[cfg(test)]
mod tests {
    use std::iter;

    use jitprof_common::units::Pid;

    use super::*;

    const MIB: usize = 1 << 20;
    const GREEDY: Holder = Holder::User(1000);

    fn continuous() -> Copies {
        let mut copies = Copies::default();
        copies.begin_continuous();
        copies
    }

    fn at(seconds: u64) -> MonoNs {
        MonoNs(seconds * SECOND_NS)
    }

    /// How many copies of a size are made for a holder until one is refused.
    fn taken(copies: &mut Copies, holder: Holder, bytes: usize, now: MonoNs) -> usize {
        let more = iter::repeat_with(|| copies.take(holder, bytes, now));
        more.take_while(|is_copied| *is_copied).take(100_000).count()
    }

    #[test]
    fn who_forks_all_the_time_has_so_much_copied_at_once_and_in_a_second() {
        for (mut copies, times) in [(continuous(), 1), (Copies::default(), IN_A_RUN as usize)] {
            let mut taken = |now| taken(&mut copies, GREEDY, MIB, now);
            let (at_once, a_second) = (256 * times, 16 * times);
            assert_eq!([taken(at(1)), taken(at(1)), taken(at(2))], [at_once, 0, a_second]);
            assert_eq!([taken(at(4)), taken(at(1000)), taken(at(1000))], [2 * a_second, at_once, 0]);
        }
    }

    #[test]
    fn who_copies_little_has_all_of_it_whatever_others_have_copied() {
        let mut copies = continuous();
        let others = (0..64).map(Holder::User).chain([Holder::Process(Pid(7), 7)]);
        others.for_each(|other| assert_eq!(taken(&mut copies, other, 20 * MIB, at(1)), 12));
        for second in 1..100 {
            assert!((0..4).all(|_| copies.take(Holder::User(1001), 4 * MIB, at(second))));
        }
    }

    #[test]
    fn all_of_roots_processes_have_four_times_as_much_copied_as_one() {
        let mut copies = continuous();
        let mut roots = |now| [1, 2, 3, 4, 5, 6].map(|pid| taken(&mut copies, Holder::Process(Pid(pid), 0), MIB, now));
        assert_eq!([roots(at(1)), roots(at(2))], [[256, 256, 256, 256, 0, 0], [16, 16, 16, 16, 0, 0]]);
        // Who was refused owes nothing by that.
        assert_eq!(roots(at(4)), [32, 32, 32, 32, 0, 0]);
        assert_eq!(taken(&mut copies, GREEDY, MIB, at(4)), 256, "nobody else's");
    }

    #[test]
    fn the_first_copy_of_who_owes_nothing_is_made_whatever_its_size() {
        let mut copies = continuous();
        assert!(copies.take(GREEDY, 592 * MIB, at(1)));
        assert!(!copies.take(GREEDY, MIB, at(1)) && !copies.take(GREEDY, MIB, at(21)));
        assert!(copies.take(GREEDY, MIB, at(23)), "a part of it has been earned");
        assert!(!copies.take(GREEDY, 592 * MIB, at(38)), "not all of it");
        assert!(copies.take(GREEDY, 592 * MIB, at(39)));
        assert!(copies.take(Holder::User(1), usize::MAX, at(1)) && !copies.take(Holder::User(1), 1, at(1)));
    }

    #[test]
    fn who_has_earned_everything_is_known_no_more() {
        let mut copies = continuous();
        let who = [Holder::User(1), Holder::Process(Pid(1), 1)];
        assert!(copies.take(who[0], MIB, at(1)) && copies.take(who[1], 16 * MIB, at(1)));
        let mut left = |now| {
            copies.drop_earned(now);
            copies.holders()
        };
        assert_eq!([left(at(1)), left(MonoNs(1_500_000_000)), left(at(2))], [2, 1, 0]);
    }
}
