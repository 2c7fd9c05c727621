//! What looking into files may cost, for each owner of files: who maps dear ones waits for his own. And the same of anything
//! else that somebody causes.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Instant;

use jitprof_common::units::Pid;

use crate::process::open::FileIdentity;

/// Owners that are known; with more, those that have earned again all that they spent are evicted, and then who is least ahead.
const MAX_OWNERS: usize = 1024;

/// Who takes up room: a user, whatever processes he starts, or one process of root's, for containers are root's as a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Holder {
    /// A user other than root.
    User(u32),
    /// One of whom the name is known, as a hash.
    Named(u64),
    /// A process, by its start.
    Process(Pid, u64),
}

impl Holder {
    /// Whose a process is.
    pub fn of_process(uid: Option<u32>, pid: Pid, start: u64) -> Self {
        uid.filter(|uid| *uid != 0).map_or(Self::Process(pid, start), Self::User)
    }
}

/// One part of so many of what can be held is left to root by all users, and to them by root's containers; and as much of what
/// either may hold is left to those of them who hold none, or little.
const LEFT_TO_OTHERS: usize = 4;

/// How much is held of what may never come back, as whoever wants more of it sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    /// By him.
    pub(crate) own: usize,
    /// By all users, or by all that is root's, whichever he is.
    pub(crate) kind: usize,
    /// By all.
    pub(crate) all: usize,
}

impl Held {
    /// Whether he may have one more, of `most` in all. Less than `first` he may have while there is any; with as much, he leaves to
    /// the others what he has himself: each holds the half of what is left at most, whatever those before him hold.
    pub(crate) fn leaves_room(self, most: usize, first: usize) -> bool {
        let part = most / LEFT_TO_OTHERS;
        let (of_kind, free) = ((most - part).saturating_sub(self.kind), most.saturating_sub(self.all));
        match self.own < first {
            true => of_kind > 0 && free > 0,
            false => self.own < of_kind.saturating_sub(part).min(free),
        }
    }
}

/// Whose files: a user's on one file system, so that containers are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Owner {
    device: u64,
    uid: u32,
}

impl Owner {
    /// Of what is in no file.
    pub(crate) const NOBODY: Self = Self { device: 0, uid: u32::MAX };

    /// A user's, on some device.
    #[cfg(test)]
    pub(crate) fn test(uid: u32) -> Self {
        Self { device: 1, uid }
    }

    /// A user's, on this device.
    #[cfg(test)]
    pub(crate) fn test_on(device: u64, uid: u32) -> Self {
        Self { device, uid }
    }

    /// Who pays: a user for all his file systems, for he may mount as many as he likes. Root's are of many containers.
    pub(crate) fn payer(self) -> Self {
        let device = if self.uid == 0 || self.uid == Self::NOBODY.uid { self.device } else { 0 };
        Self { device, ..self }
    }

    /// Whether one user may be behind both.
    pub(crate) fn may_be_of_one_user(self, other: Self) -> bool {
        self.payer() == other.payer()
    }

    /// Of a file for which this user pays.
    pub(crate) fn of(identity: &FileIdentity, uid: u32) -> Self {
        Self { device: identity.st_dev, uid }
    }

    /// Of what a process of this user has made. Each of root's is one of its own, for it may be a container's.
    pub(crate) fn of_process(user: Option<u32>, pid: Pid) -> Self {
        Self { device: u64::MAX - u64::from(pid.0), uid: user.unwrap_or(Self::NOBODY.uid) }
    }

    /// Whether both are root's, or neither is.
    pub(crate) fn is_of_kind(self, other: Self) -> bool {
        (self.uid == 0) == (other.uid == 0)
    }
}

/// How far somebody is ahead of what he has earned at some time, in seconds at his rate. Rates may change: what is owed stays
/// so many seconds.
#[derive(Clone, Copy, Debug)]
struct Account {
    ahead_s: f64,
    /// When something was spent last.
    at: Instant,
}

/// What each owner has left.
#[derive(Debug)]
pub(crate) struct Owners<K = Owner> {
    accounts: HashMap<K, Account>,
    /// The account of who was evicted last, where whoever is not known counts as he: nobody who is known is less ahead.
    evicted: Option<Account>,
    are_in_turns: bool,
    /// CPU seconds that an owner may use at once.
    start_s: f64,
    /// What an owner may owe at most, as seconds at his rate.
    owed_s: f64,
}

impl<K: Copy + Eq + Hash> Owners<K> {
    /// Each may use so many seconds at once, and owe at most what he earns in so many.
    pub(crate) fn starting_with(start_s: f64, owed_s: f64) -> Self {
        Self { accounts: HashMap::new(), evicted: None, are_in_turns: false, start_s, owed_s }
    }

    /// Says in which order they are served: nobody comes sooner for having been evicted.
    pub(crate) fn in_turns(self) -> Self {
        Self { are_in_turns: true, ..self }
    }

    /// Whether an owner's files may be looked into, if each may use `rate` seconds a second.
    pub(crate) fn may_spend(&self, owner: K, rate: f64, now: Instant) -> bool {
        self.ahead_s(owner, rate, now) <= 0.0
    }

    /// What an owner has spent and not earned again, in seconds.
    pub(crate) fn spent_s(&self, owner: K, rate: f64, now: Instant) -> f64 {
        self.ahead_s(owner, rate, now) * rate + self.start_s
    }

    /// A file of his has taken so many seconds.
    pub(crate) fn spend(&mut self, owner: K, rate: f64, now: Instant, seconds: f64) {
        let ahead_s = (self.ahead_s(owner, rate, now) + seconds / rate).min(self.owed_s);
        self.accounts.insert(owner, Account { ahead_s, at: now });
        if self.accounts.len() > MAX_OWNERS {
            let least = self.least_s(rate);
            self.accounts.retain(|_, account| account.ahead_s(now) > least);
        }
        if self.accounts.len() > MAX_OWNERS {
            self.evict(now);
        }
    }

    /// Evicts who is least ahead.
    fn evict(&mut self, now: Instant) {
        let ahead = |account: &Account| account.ahead_s(now);
        let least = self.accounts.iter().min_by(|(_, a), (_, b)| ahead(a).total_cmp(&ahead(b)));
        if let Some(least) = least.map(|(owner, _)| *owner) {
            self.evicted = self.accounts.remove(&least).filter(|_| self.are_in_turns);
        }
    }

    /// Counts an owner as one who has spent so many seconds, if he has spent less.
    pub(crate) fn raise(&mut self, owner: K, spent_s: f64, rate: f64, now: Instant) {
        let missing = spent_s - self.spent_s(owner, rate, now);
        if missing > 0.0 {
            self.spend(owner, rate, now, missing);
        }
    }

    /// Those who have spent something in as long as anybody may owe something.
    pub(crate) fn active(&self, now: Instant) -> impl Iterator<Item = K> {
        let is_active = move |account: &Account| now.saturating_duration_since(account.at).as_secs_f64() < self.owed_s;
        self.accounts.iter().filter(move |(_, account)| is_active(account)).map(|(owner, _)| *owner)
    }

    fn ahead_s(&self, owner: K, rate: f64, now: Instant) -> f64 {
        let (account, least) = (self.accounts.get(&owner).or(self.evicted.as_ref()), self.least_s(rate));
        account.map_or(least, |account| account.ahead_s(now).max(least))
    }

    /// How far ahead is who has spent nothing.
    fn least_s(&self, rate: f64) -> f64 {
        -self.start_s / rate
    }
}

impl Account {
    fn ahead_s(&self, now: Instant) -> f64 {
        self.ahead_s - now.saturating_duration_since(self.at).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn who_has_dear_files_waits_and_nobody_else() {
        let (dear, other) = (Owner::test(1000), Owner::test(0));
        let (mut owners, start, rate) = (Owners::starting_with(5.0, 60.0), Instant::now(), 0.005);
        assert!(owners.may_spend(dear, rate, start));
        owners.spend(dear, rate, start, 0.5);
        let spent_s = |after| owners.spent_s(dear, rate, start + Duration::from_secs(after));
        assert!((spent_s(0) - 0.5).abs() < 1e-9 && (spent_s(60) - 0.2).abs() < 1e-9 && spent_s(600).abs() < 1e-9);
        owners.spend(dear, rate, start, 30.0);
        assert!(!owners.may_spend(dear, rate, start) && owners.may_spend(other, rate, start));
        // And not for good.
        assert!(!owners.may_spend(dear, rate, start + Duration::from_secs(59)));
        assert!(owners.may_spend(dear, rate, start + Duration::from_secs(61)));
    }

    #[test]
    fn a_user_pays_for_all_his_file_systems_and_containers_of_root_for_themselves() {
        let of = |uid| (Owner::test_on(1, uid), Owner::test_on(2, uid));
        let is_one = |(one, other): (Owner, Owner)| one.may_be_of_one_user(other);
        assert!(is_one(of(1000)) && !is_one(of(0)) && !is_one(of(Owner::NOBODY.uid)));
        assert!(!Owner::test(1000).may_be_of_one_user(Owner::test(1001)));
    }

    #[test]
    fn where_all_owe_the_owners_that_are_known_are_bounded() {
        let (mut owners, start, rate) = (Owners::starting_with(0.0, 60.0), Instant::now(), 0.005);
        for uid in 0..2 * MAX_OWNERS as u32 {
            owners.spend(Owner::test(uid), rate, start, if uid == 7 { 0.2 } else { 0.1 });
        }
        assert_eq!(owners.accounts.len(), MAX_OWNERS);
        assert!(!owners.may_spend(Owner::test(7), rate, start), "who owes most stays");
    }

    #[test]
    fn with_too_many_owners_who_has_spent_least_is_evicted_and_in_turns_comes_no_sooner_for_it() {
        let (rate, now) = (0.005, Instant::now());
        let starting = || Owners::starting_with(5.0, 60.0);
        for (mut owners, evicted_s) in [(starting(), 0.0), (starting().in_turns(), 0.001)] {
            for uid in 0..=MAX_OWNERS as u32 {
                owners.spend(Owner::test(uid), rate, now, f64::from(uid + 1) * 0.001);
            }
            let has_spent =
                |uid: u32, seconds: f64| (owners.spent_s(Owner::test(uid), rate, now) - seconds).abs() < 1e-9;
            assert!(has_spent(0, evicted_s) && has_spent(1, 0.002), "{owners:?}");
            owners.spend(Owner::test(0), rate, now, 1.0);
            assert!((owners.spent_s(Owner::test(0), rate, now) - evicted_s - 1.0).abs() < 1e-9);
        }
    }
}
