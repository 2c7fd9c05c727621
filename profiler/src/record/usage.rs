//! What reading costs, by whose it is, and who may go on while more is wanted than reading may cost.
//!
//! Then each user has the same part of what may be spent, and of it each of his processes and files the same. Who keeps
//! within his part goes on, whatever the others want; all together use no more in this way than what may be spent.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use jitprof_common::units::Pid;

use crate::cost::Activity;
use crate::owners::Owners;
use crate::process::open::FileId;

/// What somebody owes at most, as seconds at his rate: what was dear once is not paid for ever.
const OWED_S: f64 = 60.0;
/// How long it holds how many there are among whom something is parted.
const COUNTED_FOR: Duration = Duration::from_millis(100);

/// Who can make a read wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Subject {
    Process(Pid),
    File(FileId),
    Host,
}

/// Whose a read is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Payer {
    /// Nobody's is what is the host's.
    pub(super) user: Option<u32>,
    pub(super) subject: Subject,
}

/// What an answer is put down to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Charge {
    pub(super) payer: Payer,
    pub(super) activity: Activity,
    /// It was read although all was spent, within the payer's part.
    pub(super) granted: bool,
}

/// What one kind of reading has cost.
#[derive(Debug)]
pub(super) struct Usage {
    /// All of it, by whose it was.
    used: Owners<Payer>,
    /// What was granted, by users: who has ever new processes gets no more than the others by that.
    granted: Owners<Option<u32>>,
    counted: Option<Counted>,
}

/// Among how many something is parted.
#[derive(Debug)]
struct Counted {
    at: Instant,
    /// Of each user who has spent something lately, how many processes and files have.
    subjects: HashMap<Option<u32>, u32>,
}

impl Default for Usage {
    fn default() -> Self {
        let (used, granted) = (Owners::starting_with(0.0, OWED_S), Owners::starting_with(0.0, OWED_S));
        Self { used, granted, counted: None }
    }
}

impl Usage {
    /// Puts down what was read, where `rate` seconds a second may be spent by all together.
    pub(super) fn add(&mut self, charge: Charge, spent: Duration, rate: f64, now: Instant) {
        let Charge { payer, granted, .. } = charge;
        self.count(now);
        let (user, subject) = self.parts(payer, rate);
        self.used.spend(payer, subject, now, spent.as_secs_f64());
        if granted {
            self.granted.spend(payer.user, user, now, spent.as_secs_f64());
        }
    }

    /// Whether somebody may go on although all is spent.
    pub(super) fn is_within_part(&self, payer: Payer, rate: f64, now: Instant) -> bool {
        let (user, subject) = self.parts(payer, rate);
        self.used.may_spend(payer, subject, now) && self.granted.may_spend(payer.user, user, now)
    }

    /// Looks among how many there is something to be parted, if that was long ago.
    pub(super) fn count(&mut self, now: Instant) {
        let holds = |counted: &Counted| now.saturating_duration_since(counted.at) < COUNTED_FOR;
        if !self.counted.as_ref().is_some_and(holds) {
            self.counted = Some(Counted::of(&self.used, now));
        }
    }

    /// What a user and one of his subjects may spend a second.
    fn parts(&self, payer: Payer, rate: f64) -> (f64, f64) {
        let subjects = self.counted.as_ref().and_then(|counted| counted.subjects.get(&payer.user)).copied();
        let others =
            self.counted.as_ref().map_or(0, |counted| counted.subjects.len()) - usize::from(subjects.is_some());
        let users = u32::try_from(others + 1).unwrap_or(u32::MAX);
        let user = rate / f64::from(users);
        (user, user / f64::from(subjects.unwrap_or(1)))
    }
}

impl Counted {
    fn of(used: &Owners<Payer>, now: Instant) -> Self {
        let mut subjects: HashMap<Option<u32>, u32> = HashMap::new();
        used.active(now).for_each(|payer| *subjects.entry(payer.user).or_default() += 1);
        Self { at: now, subjects }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds a second.
    const RATE: f64 = 0.002;
    const STEP: Duration = Duration::from_millis(10);

    fn process(user: u32, pid: u32) -> Payer {
        Payer { user: Some(user), subject: Subject::Process(Pid(pid)) }
    }

    fn charge(payer: Payer, granted: bool) -> Charge {
        Charge { payer, activity: Activity::Announcements, granted }
    }

    /// What these get in 300 seconds in which nothing is left, if each wants something again as soon as it has it: seconds of
    /// CPU time. Each is asked in turn; a read takes so long.
    fn granted(wanting: &[Payer], takes: Duration) -> HashMap<Payer, f64> {
        let (mut usage, start) = (Usage::default(), Instant::now());
        let mut got = HashMap::new();
        for step in 0..3_000 {
            let now = start + COUNTED_FOR * step;
            usage.count(now);
            for payer in wanting {
                if usage.is_within_part(*payer, RATE, now) {
                    usage.add(charge(*payer, true), takes, RATE, now);
                    *got.entry(*payer).or_default() += takes.as_secs_f64();
                }
            }
        }
        got
    }

    #[test]
    fn however_many_processes_want_more_than_there_is_all_together_get_no_more_than_may_be_spent() {
        let many: Vec<Payer> = (0..64).map(|pid| process(1000, 100 + pid)).collect();
        let others: Vec<Payer> = (0..4).map(|pid| process(0, 10 + pid)).collect();
        let wanting = [&many[..], &others].concat();
        let got = granted(&wanting, Duration::from_millis(2));
        let of = |payers: &[Payer]| payers.iter().filter_map(|payer| got.get(payer)).sum::<f64>();
        let (his, theirs) = (of(&many), of(&others));
        assert!(his + theirs < RATE * 300.0 * 1.3, "{his} {theirs}");
        // Sixteen times as many processes are no reason to get more.
        assert!((0.8..1.25).contains(&(his / theirs)), "{his} {theirs}");
    }

    #[test]
    fn who_starts_ever_new_processes_gets_no_more_by_that() {
        let (mut usage, start) = (Usage::default(), Instant::now());
        let takes = Duration::from_millis(2);
        let mut got = 0.0;
        for step in 0..30_000_u32 {
            let (now, payer) = (start + STEP * step, process(1000, 100 + step));
            usage.count(now);
            if usage.is_within_part(payer, RATE, now) {
                usage.add(charge(payer, true), takes, RATE, now);
                got += takes.as_secs_f64();
            }
        }
        assert!(got < RATE * 300.0 * 1.3, "{got}");
    }

    #[test]
    fn who_wants_little_goes_on_beside_him_and_beside_his_own_that_want_much() {
        let (mut usage, now) = (Usage::default(), Instant::now());
        let (dear, own, other) = (process(1000, 7), process(1000, 8), process(0, 9));
        usage.add(charge(dear, false), Duration::from_secs(9), RATE, now);
        let of = |usage: &mut Usage, now| {
            usage.count(now);
            [dear, own, other].map(|payer| usage.is_within_part(payer, RATE, now))
        };
        assert_eq!(of(&mut usage, now), [false, true, true]);
        usage.add(charge(own, false), Duration::from_micros(10), RATE, now);
        assert_eq!(of(&mut usage, now + Duration::from_secs(1)), [false, true, true]);
        // And not for good.
        assert_eq!(of(&mut usage, now + Duration::from_secs(61)), [true, true, true]);
    }
}
