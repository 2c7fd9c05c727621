//! What a new configuration changes in a service that runs.

use super::Settings;

/// A difference between the configuration that is in force and a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Samples per second.
    Frequency,
    /// What the service may cost.
    Limits,
    /// Where windows go.
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

impl Settings {
    /// How `new` differs, each kind of difference once.
    pub fn changes(&self, new: &Self) -> Vec<Change> {
        // What can change while running is made equal, so that the rest is compared section by section.
        let mut rest = new.clone();
        let mut changes = Vec::new();
        let mut differs = |is_different: bool, change| {
            if is_different {
                changes.push(change);
            }
        };
        differs(self.sampling.frequency != new.sampling.frequency, Change::Frequency);
        rest.sampling.frequency = self.sampling.frequency;
        differs(self.limits != new.limits, Change::Limits);
        differs(self.push != new.push, Change::Push);
        let kept = |settings: &Self| (settings.storage.max_age, settings.storage.max_bytes, settings.storage.memory);
        differs(kept(self) != kept(new), Change::Retention);
        rest.storage.directory.clone_from(&self.storage.directory);
        differs(self.storage.directory != new.storage.directory, Change::Restart("storage.directory"));
        differs(self.log.level != new.log.level, Change::LogLevel);
        differs(self.log.format != new.log.format, Change::Restart("log.format"));
        differs(self.shutdown != new.shutdown, Change::Shutdown);
        differs(self.selection != new.selection, Change::Restart("selection"));
        differs(self.sampling != rest.sampling, Change::Restart("sampling"));
        differs(self.window != new.window, Change::Restart("window"));
        differs(self.http != new.http, Change::Restart("http"));
        differs(self.metrics != new.metrics, Change::Restart("metrics"));
        changes
    }

    /// These settings with what `new` may change while running.
    pub fn with_running_changes(&self, new: &Self) -> Self {
        let mut next = self.clone();
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
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::Time;
    use super::*;

    #[test]
    fn a_change_is_named_once_and_what_needs_a_restart_is_told_apart() {
        let old = Settings::default();
        assert_eq!(old.changes(&old), []);
        let mut new = old.clone();
        new.sampling.frequency = 99;
        new.storage.max_age = Time(Duration::from_secs(60));
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
