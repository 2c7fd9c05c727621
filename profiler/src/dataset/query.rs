//! What is wanted of a dataset.

use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

use super::name::{Partition, path_word};
use crate::profile::Filter;

/// Labels that have columns with statistics, by which whole row groups are left out. Not `comm`, which a program's file
/// answers to as well.
const COLUMNS: [&str; 3] = ["host", "service", "version"];

/// A time and a selection. A row belongs to the time in which its step begins.
#[derive(Clone, Debug, Default)]
pub struct DatasetQuery {
    /// From when on.
    pub from: Option<SystemTime>,
    /// Until when.
    pub to: Option<SystemTime>,
    /// Labels, `host`, `service` and `version` among them.
    pub filter: Filter,
}

impl DatasetQuery {
    pub(super) fn range_us(&self) -> Range<i64> {
        let us = |time: SystemTime| {
            let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
            i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
        };
        self.from.map_or(i64::MIN, us)..self.to.map_or(i64::MAX, us)
    }

    /// Values of columns of which rows must have one.
    pub(super) fn texts(&self) -> Vec<(&str, &[String])> {
        self.filter.iter().filter(|(name, _)| COLUMNS.contains(name)).collect()
    }

    /// Whether files below such a path may have rows that are wanted.
    pub(super) fn may_hold(&self, path: &str) -> bool {
        let partition = Partition::of(path);
        let range = self.range_us();
        // A step that began before the hour belongs to the hour before; days and hours are whole milliseconds.
        let in_time = partition
            .range_ms()
            .is_none_or(|has| has.start.saturating_mul(1000) < range.end && has.end.saturating_mul(1000) > range.start);
        let wants = self.filter.iter().find(|(name, _)| *name == "host");
        let of_host = partition
            .host
            .zip(wants)
            .is_none_or(|(has, (_, wanted))| wanted.iter().any(|wanted| path_word(wanted) == has));
        in_time && of_host
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn partitions_that_cannot_hold_what_is_wanted_are_left_out() {
        let time = |hour: u64| Some(UNIX_EPOCH + Duration::from_secs(1_700_006_400 + hour * 3600));
        let mut query = DatasetQuery { from: time(3), to: time(4), ..DatasetQuery::default() };
        query.filter.want("host", "web 1");
        for (path, is_held) in [
            ("samples", true),
            ("samples/day=2023-11-15", true),
            ("samples/day=2023-11-14", false),
            ("samples/day=2023-11-15/hour=03", true),
            ("samples/day=2023-11-15/hour=04", false),
            ("samples/day=2023-11-15/hour=02", false),
            ("samples/day=2023-11-15/hour=03/host=web_1/a.parquet", true),
            ("samples/day=2023-11-15/hour=03/host=web_2", false),
            ("frames/day=2023-11-15/host=web_1", true),
            ("samples/day=?/hour=99", true),
        ] {
            assert_eq!(query.may_hold(path), is_held, "{path}");
        }
        assert_eq!(query.texts(), [("host", &["web 1".to_owned()][..])]);
    }
}
