//! Copies of generated code for children that are sampled: how much of it is made for whom.

use jitprof_common::units::MonoNs;
use rustc_hash::FxHashMap;

use crate::engine::generated::CodeBounds;
use crate::engine::process::Process;
use crate::profile::{Holder, Shares};

/// Bytes that are copied for one holder at once, and those of each second beyond it: a copy takes some 8 ms a MiB, of the
/// thread that records everybody.
pub(super) const COPIED_AT_ONCE: usize = 32 << 20;
pub(super) const COPIED_A_SECOND: usize = 1 << 20;
/// So many times of it in a run that ends, which is made for what it records.
pub(super) const IN_A_RUN: usize = 16;
/// Copies that each holder may have whatever the others have: as much as any process may announce.
const OF_EACH: usize = CodeBounds::LEAST.map_bytes;

const SECOND_NS: u64 = 1_000_000_000;

/// What was copied for a holder and he has not earned again.
#[derive(Clone, Copy, Debug)]
struct Spent {
    bytes: usize,
    at: MonoNs,
}

impl Spent {
    fn left(self, rate: usize, now: MonoNs) -> usize {
        let earned = now.0.saturating_sub(self.at.0).saturating_mul(rate as u64) / SECOND_NS;
        self.bytes.saturating_sub(usize::try_from(earned).unwrap_or(usize::MAX))
    }
}

/// Who has how much code, and what was copied of late.
#[derive(Debug)]
pub(super) struct Copies {
    /// All code, announced or copied.
    shares: Shares,
    used: usize,
    /// As much as there may be of it; nothing: it has no bound.
    limit: Option<usize>,
    /// Copies alone.
    held: FxHashMap<Holder, usize>,
    spent: FxHashMap<Holder, Spent>,
}

impl Copies {
    /// In a run that ends, none yet.
    pub(super) fn new() -> Self {
        Self {
            shares: Shares::default(),
            used: 0,
            limit: None,
            held: FxHashMap::default(),
            spent: FxHashMap::default(),
        }
    }

    /// Takes up who has how much now, of so much at most. About every second.
    pub(super) fn renew<'a>(
        &mut self,
        processes: impl Iterator<Item = &'a Process>,
        limit: Option<usize>,
        now: MonoNs,
    ) {
        (self.shares, self.used, self.limit) = (Shares::default(), 0, limit);
        self.held.clear();
        for process in processes {
            let bytes = process.code.bytes();
            if bytes > 0 {
                self.note(process.code_holder(), bytes, process.has_copied_code());
            }
        }
        let rate = self.times(COPIED_A_SECOND);
        self.spent.retain(|_, spent| spent.left(rate, now) > 0);
    }

    /// Whether so many bytes are copied now; then whoever it is done for has them.
    pub(super) fn take(&mut self, holder: Holder, bytes: usize, now: MonoNs) -> bool {
        let rate = self.times(COPIED_A_SECOND);
        let spent = self.spent.get(&holder).map_or(0, |spent| spent.left(rate, now));
        let after = spent.saturating_add(bytes);
        // What is more than that in itself is copied when he owes nothing.
        let is_in_time = spent == 0 || after <= self.times(COPIED_AT_ONCE);
        if !is_in_time || !self.has_room(holder, bytes) {
            return false;
        }
        self.note(holder, bytes, true);
        self.spent.insert(holder, Spent { bytes: after, at: now });
        true
    }

    fn has_room(&self, holder: Holder, bytes: usize) -> bool {
        let Some(limit) = self.limit else { return true };
        let held = self.held.get(&holder).copied().unwrap_or(0);
        held.saturating_add(bytes) <= OF_EACH || self.shares.may_take(Some(holder), bytes, (self.used, limit))
    }

    fn note(&mut self, holder: Holder, bytes: usize, is_copied: bool) {
        self.used = self.used.saturating_add(bytes);
        self.shares.take(Some(holder), bytes);
        if is_copied {
            let held = self.held.entry(holder).or_default();
            *held = held.saturating_add(bytes);
        }
    }

    fn times(&self, bytes: usize) -> usize {
        if self.limit.is_some() { bytes } else { bytes * IN_A_RUN }
    }
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;

    const MIB: usize = 1 << 20;

    fn limited(limit: usize) -> Copies {
        let mut copies = Copies::new();
        copies.renew(iter::empty(), Some(limit), MonoNs(0));
        copies
    }

    fn at(seconds: u64) -> MonoNs {
        MonoNs(seconds * SECOND_NS)
    }

    #[test]
    fn who_forks_all_the_time_has_so_much_copied_in_a_second_and_others_wait_for_nothing() {
        let mut copies = limited(1 << 40);
        let mut taken = |user, now| {
            let more = iter::repeat_with(|| copies.take(Holder::User(user), MIB, now));
            more.take_while(|is_taken| *is_taken).take(1000).count()
        };
        assert_eq!([taken(1000, at(1)), taken(1000, at(1))], [COPIED_AT_ONCE / MIB, 0]);
        assert_eq!([taken(1000, at(3)), taken(1001, at(3))], [2 * COPIED_A_SECOND / MIB, COPIED_AT_ONCE / MIB]);
        // What he has earned meanwhile is known when others are looked at, too.
        copies.renew(iter::empty(), Some(1 << 40), at(1000));
        assert!(copies.spent.is_empty());
        assert!(copies.take(Holder::User(1000), 2 * COPIED_AT_ONCE, at(1000)), "it would never be copied else");
        assert!(!copies.take(Holder::User(1000), 1, at(1000)));
    }

    #[test]
    fn copies_leave_room_and_each_may_have_some() {
        let mut copies = limited(30 * MIB);
        let mut take = |user, bytes| copies.take(Holder::User(user), bytes, at(1));
        let taken = (0..5).filter(|_| take(1000, 5 * MIB)).count();
        assert_eq!(taken, 4, "a part is left to the others");
        assert!((1001..1100).all(|user| take(user, OF_EACH)));
        assert!(!take(1001, 1), "there is no room, and he has what each may have");
        let mut copies = Copies::new();
        assert!((0..9).all(|_| copies.take(Holder::User(1000), 5 * MIB, at(1))), "a run has no bound");
    }
}
