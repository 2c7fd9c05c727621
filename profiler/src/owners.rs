//! What looking into files may cost, for each owner of files: who maps dear ones waits for his own.

use std::collections::HashMap;
use std::time::Instant;

use crate::process::open::FileIdentity;

/// Owners that are known at most; then those that owe nothing are evicted.
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

    /// Of a file.
    pub(crate) fn of(identity: &FileIdentity) -> Self {
        Self { device: identity.st_dev, uid: identity.uid }
    }
}

#[derive(Clone, Copy, Debug)]
struct Account {
    left_s: f64,
    at: Instant,
}

/// What each owner has left.
#[derive(Debug)]
pub(crate) struct Owners {
    accounts: HashMap<Owner, Account>,
    /// CPU seconds that an owner may use at once.
    start_s: f64,
    /// What an owner may owe at most, as seconds at his rate.
    owed_s: f64,
}

impl Owners {
    /// Each may use so many seconds at once, and owe at most what he earns in so many.
    pub(crate) fn starting_with(start_s: f64, owed_s: f64) -> Self {
        Self { accounts: HashMap::new(), start_s, owed_s }
    }

    /// Whether an owner's files may be looked into, if each may use `rate` seconds a second.
    pub(crate) fn may_spend(&mut self, owner: Owner, rate: f64, now: Instant) -> bool {
        self.account(owner, rate, now).left_s >= 0.0
    }

    /// A file of his has taken so many seconds.
    pub(crate) fn spend(&mut self, owner: Owner, rate: f64, now: Instant, seconds: f64) {
        let owed_s = self.owed_s;
        let account = self.account(owner, rate, now);
        account.left_s = (account.left_s - seconds).max(-owed_s * rate);
        if self.accounts.len() > MAX_OWNERS {
            self.accounts.retain(|_, account| account.left_s < 0.0);
        }
    }

    fn account(&mut self, owner: Owner, rate: f64, now: Instant) -> &mut Account {
        let start_s = self.start_s;
        let account = self.accounts.entry(owner).or_insert(Account { left_s: start_s, at: now });
        let earned = now.saturating_duration_since(account.at).as_secs_f64() * rate;
        *account = Account { left_s: (account.left_s + earned).min(start_s), at: now };
        account
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
