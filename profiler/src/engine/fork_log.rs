//! Who made which process a short while ago: what is left of those that end at once.

use std::collections::HashMap;

use jitprof_common::units::{MonoNs, Pid};

/// Forks that are kept at least; twice as many at most. Tests keep fewer.
pub(super) const MAX_FORKS: usize = if cfg!(test) { 1 << 8 } else { 16 << 10 };

/// The latest forks.
#[derive(Debug, Default)]
pub(super) struct ForkLog {
    recent: HashMap<Pid, (Pid, MonoNs)>,
    older: HashMap<Pid, (Pid, MonoNs)>,
}

impl ForkLog {
    /// A process has made another one.
    pub(super) fn note(&mut self, child: Pid, parent: Pid, time: MonoNs) {
        if self.recent.len() >= MAX_FORKS {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(child, (parent, time));
    }

    /// The parent, and when it made this process.
    pub(super) fn parent(&self, child: Pid) -> Option<(Pid, MonoNs)> {
        self.recent.get(&child).or_else(|| self.older.get(&child)).copied()
    }

    /// How many are kept.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.recent.len() + self.older.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_forks_are_known_and_never_too_many() {
        let mut forks = ForkLog::default();
        let known = u32::try_from(MAX_FORKS).unwrap();
        for child in 0..10 * known {
            forks.note(Pid(child), Pid(1), MonoNs(child.into()));
            let earlier = child.saturating_sub(known - 1);
            assert_eq!(forks.parent(Pid(earlier)), Some((Pid(1), MonoNs(earlier.into()))));
        }
        assert!(forks.len() <= 2 * MAX_FORKS);
        assert_eq!(forks.parent(Pid(0)), None);
    }
}
