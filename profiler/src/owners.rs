//! What looking into files may cost, for each owner of files: who maps dear ones waits for his own. And the same of anything
//! else that somebody causes.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Instant;

use crate::process::open::FileIdentity;

/// Owners that are known; with more, those that owe nothing are evicted.
const MAX_OWNERS: usize = 1024;

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

    /// Whether one user may be behind both: he may mount as many file systems as he likes. Root's are of many containers.
    pub(crate) fn may_be_of_one_user(self, other: Self) -> bool {
        self == other || (self.uid == other.uid && self.uid != 0 && self.uid != Self::NOBODY.uid)
    }

    /// Of a file.
    pub(crate) fn of(identity: &FileIdentity) -> Self {
        Self { device: identity.st_dev, uid: identity.uid }
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
    /// CPU seconds that an owner may use at once.
    start_s: f64,
    /// What an owner may owe at most, as seconds at his rate.
    owed_s: f64,
}

impl<K: Copy + Eq + Hash> Owners<K> {
    /// Each may use so many seconds at once, and owe at most what he earns in so many.
    pub(crate) fn starting_with(start_s: f64, owed_s: f64) -> Self {
        Self { accounts: HashMap::new(), start_s, owed_s }
    }

    /// Whether an owner's files may be looked into, if each may use `rate` seconds a second.
    pub(crate) fn may_spend(&self, owner: K, rate: f64, now: Instant) -> bool {
        self.ahead_s(owner, rate, now) <= 0.0
    }

    /// A file of his has taken so many seconds.
    pub(crate) fn spend(&mut self, owner: K, rate: f64, now: Instant, seconds: f64) {
        let ahead_s = (self.ahead_s(owner, rate, now) + seconds / rate).min(self.owed_s);
        self.accounts.insert(owner, Account { ahead_s, at: now });
        if self.accounts.len() > MAX_OWNERS {
            self.accounts.retain(|_, account| account.owes(now));
        }
    }

    /// Those who have spent something in as long as anybody may owe something.
    pub(crate) fn active(&self, now: Instant) -> impl Iterator<Item = K> {
        let is_active = move |account: &Account| now.saturating_duration_since(account.at).as_secs_f64() < self.owed_s;
        self.accounts.iter().filter(move |(_, account)| is_active(account)).map(|(owner, _)| *owner)
    }

    fn ahead_s(&self, owner: K, rate: f64, now: Instant) -> f64 {
        let least = -self.start_s / rate;
        self.accounts.get(&owner).map_or(least, |account| account.ahead_s(now).max(least))
    }
}

impl Account {
    fn ahead_s(&self, now: Instant) -> f64 {
        self.ahead_s - now.saturating_duration_since(self.at).as_secs_f64()
    }

    fn owes(&self, now: Instant) -> bool {
        self.ahead_s(now) > 0.0
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
        owners.spend(dear, rate, start, 30.0);
        assert!(!owners.may_spend(dear, rate, start) && owners.may_spend(other, rate, start));
        // And not for good.
        assert!(!owners.may_spend(dear, rate, start + Duration::from_secs(59)));
        assert!(owners.may_spend(dear, rate, start + Duration::from_secs(61)));
    }
}
