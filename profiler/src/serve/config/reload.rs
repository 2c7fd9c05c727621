//! What a new configuration changes in a service that runs.

use super::{SamplingSettings, Settings};

/// A difference between the configuration that is in force and a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The sampling frequency.
    Frequency,
    /// What the service may cost.
    Limits,
    /// The targets that windows are sent to.
    Push,
    /// How much is kept.
    Retention,
    /// What is worth a line.
    LogLevel,
    /// How long the end may take.
    Shutdown,
    /// Something that only a new start can change: its key.
    Restart(&'static str),
}

/// How `new` differs from `old`, each kind of difference once.
pub(super) fn changes(old: &Settings, new: &Settings) -> Vec<Change> {
    // The frequency can change while running; only the rest of its section cannot.
    let sampling = SamplingSettings { frequency: old.sampling.frequency, ..new.sampling.clone() };
    let mut changes = Vec::new();
    let mut differs = |is_different: bool, change| {
        if is_different {
            changes.push(change);
        }
    };
    differs(old.sampling.frequency != new.sampling.frequency, Change::Frequency);
    differs(old.limits != new.limits, Change::Limits);
    differs(old.push != new.push, Change::Push);
    let kept = |settings: &Settings| (settings.storage.max_age, settings.storage.max_bytes, settings.storage.memory);
    differs(kept(old) != kept(new), Change::Retention);
    differs(old.storage.directory != new.storage.directory, Change::Restart("storage.directory"));
    differs(old.log.level != new.log.level, Change::LogLevel);
    differs(old.log.format != new.log.format, Change::Restart("log.format"));
    differs(old.shutdown != new.shutdown, Change::Shutdown);
    differs(old.selection != new.selection, Change::Restart("selection"));
    differs(old.sampling != sampling, Change::Restart("sampling"));
    differs(old.window != new.window, Change::Restart("window"));
    differs(old.http != new.http, Change::Restart("http"));
    differs(old.metrics != new.metrics, Change::Restart("metrics"));
    #[cfg(feature = "parquet")]
    differs(old.archive != new.archive, Change::Restart("archive"));
    changes
}

/// The settings `old` with what `new` may change while running.
pub(super) fn with_running_changes(old: &Settings, new: &Settings) -> Settings {
    let mut next = old.clone();
    next.sampling.frequency = new.sampling.frequency;
    next.limits = new.limits;
    next.push.clone_from(&new.push);
    next.storage.max_age = new.storage.max_age;
    next.storage.max_bytes = new.storage.max_bytes;
    next.storage.memory = new.storage.memory;
    next.log.level = new.log.level;
    next.shutdown = new.shutdown;
    next
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::times::Period;

    #[test]
    fn a_change_is_named_once_and_what_needs_a_restart_is_told_apart() {
        let old = Settings::default();
        assert_eq!(old.changes(&old), []);
        let mut new = old.clone();
        new.sampling.frequency = 99;
        new.storage.max_age = Period(Duration::from_secs(60));
        new.http.hosts.push("a".to_owned());
        assert_eq!(old.changes(&new), [Change::Frequency, Change::Retention, Change::Restart("http")]);
        new.sampling.peek = false;
        assert!(old.changes(&new).contains(&Change::Restart("sampling")));
        let next = old.with_running_changes(&new);
        assert_eq!(next.sampling.frequency, 99);
        assert_eq!(next.http, old.http);
        assert!(next.changes(&new).iter().all(|change| matches!(change, Change::Restart(_))));
    }
}
