//! CPU time for loading files that names are read from, in all and for each owner of files.

use std::time::Instant;

use super::worker::Lane;
use crate::owners::{Owner, Owners};

/// CPU time that may be saved up for loading, in seconds. The programs of a machine take a second or two of it at the
/// start (node 60 ms, a debug build of 500 MB 4 s); names that are missing then would be missing from what is looked at
/// first.
const MAX_CREDIT_S: f64 = 30.0;
/// The same for files that were loaded before and had to go for others: a build's programs do not fit into the memory
/// together, and would take turns in it at the price of a table for every new address.
const MAX_AGAIN_S: f64 = 3.0;
/// What loading again may take of the CPU time that loading may take.
const AGAIN_PART: f64 = 0.4;
/// What one owner's files may take in a row of what is left for the others.
const MAX_OWNER_S: f64 = 10.0;
/// What he may owe at most, as seconds at his rate.
const OWNER_OWED_S: f64 = 3600.0;
/// What one owner's files may take over time, of the CPU time that loading may take.
const OWNER_PART: f64 = 0.5;
/// With more than this saved up, it is nobody's loss if one owner's files take more than his part.
const PLENTY_S: f64 = 15.0;

/// What a worker has used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Use {
    /// For whose files.
    pub(super) lane: Lane,
    /// For a file that was loaded before.
    pub(super) again: bool,
    pub(super) seconds: f64,
}

/// CPU time that may be spent on loading.
#[derive(Debug)]
pub(super) struct Credits {
    left_s: f64,
    /// Of it, for files that were loaded before.
    again_s: f64,
    owners: Owners,
    at: Instant,
}

impl Default for Credits {
    fn default() -> Self {
        let owners = Owners::starting_with(MAX_OWNER_S, OWNER_OWED_S);
        Self { left_s: MAX_CREDIT_S, again_s: MAX_AGAIN_S, owners, at: Instant::now() }
    }
}

/// Who pays for them. Nobody's are the kernel's symbols and the vDSO.
pub(super) fn payer(lane: Lane) -> Owner {
    lane.map_or(Owner::NOBODY, Owner::payer)
}

impl Credits {
    /// Takes up what was earned since the last call, at so many seconds a second.
    pub(super) fn settle(&mut self, rate: f64, now: Instant) {
        let passed_s = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = now;
        self.left_s = (self.left_s + passed_s * rate).min(MAX_CREDIT_S);
        self.again_s = (self.again_s + passed_s * rate * AGAIN_PART).min(MAX_AGAIN_S);
    }

    /// A worker has used something.
    pub(super) fn spend(&mut self, used: Use, rate: f64, now: Instant) {
        self.left_s -= used.seconds;
        if used.again {
            self.again_s -= used.seconds;
        }
        self.owners.spend(payer(used.lane), rate * OWNER_PART, now, used.seconds);
    }

    /// Whether a file may be loaded, for the first time or again.
    pub(super) fn is_left(&mut self, lane: Lane, again: bool, rate: f64, now: Instant) -> bool {
        let is_his = self.left_s > PLENTY_S || self.owners.may_spend(payer(lane), rate * OWNER_PART, now);
        is_his && self.left_s > 0.0 && (!again || self.again_s > 0.0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const RATE: f64 = 0.005;

    fn used(lane: Lane, again: bool, seconds: f64) -> Use {
        Use { lane, again, seconds }
    }

    #[test]
    fn what_was_loaded_before_does_not_use_up_what_new_files_need() {
        let (mut credits, now) = (Credits::default(), Instant::now());
        credits.settle(RATE, now);
        credits.spend(used(None, true, 4.0), RATE, now);
        assert!(!credits.is_left(None, true, RATE, now) && credits.is_left(None, false, RATE, now));
        // It comes back slowly, and never above its limit.
        let later = now + Duration::from_secs(400);
        credits.settle(RATE, later);
        assert!(!credits.is_left(None, true, RATE, later), "{credits:?}");
        let much_later = now + Duration::from_secs(400_000);
        credits.settle(RATE, much_later);
        assert!((credits.again_s - MAX_AGAIN_S).abs() < 1e-9 && credits.is_left(None, true, RATE, much_later));
    }

    #[test]
    fn who_has_dear_files_leaves_the_others_what_they_need() {
        let other = Some(Owner::test(0));
        let (mut credits, start) = (Credits::default(), Instant::now());
        let mut taken_s = 0.0;
        // A file of 5 seconds whenever he may, for an hour, each on a file system of its own.
        for second in 0..3600 {
            let now = start + Duration::from_secs(second);
            let dear = Some(Owner::test_on(second, 1000));
            credits.settle(RATE, now);
            if credits.is_left(dear, false, RATE, now) {
                credits.spend(used(dear, false, 5.0), RATE, now);
                taken_s += 5.0;
            }
            assert!(credits.is_left(other, false, RATE, now), "after {second} s {credits:?}");
        }
        // What was saved up but for what others may need, and what is earned in an hour.
        assert!((15.0..=MAX_CREDIT_S - PLENTY_S + 3600.0 * RATE + 5.0).contains(&taken_s), "{taken_s}");
    }
}
