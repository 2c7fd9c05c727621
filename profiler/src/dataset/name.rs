//! Where files stand in a dataset: the partitions that engines and `report` leave out without opening anything.

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Longest part of a host's name in a path.
const MAX_HOST: usize = 64;
pub(super) const SUFFIX: &str = ".parquet";

/// One of the two tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// Who used the CPU.
    Samples,
    /// What the numbers in stacks stand for.
    Frames,
}

impl Table {
    /// The directory's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Samples => "samples",
            Self::Frames => "frames",
        }
    }
}

/// What one host sends at a time: the windows of a slot of time, which does not cross an hour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The machine's name.
    pub host: String,
    /// When the slot begins, in milliseconds since 1970.
    pub slot_ms: u64,
    /// The archive's number of the slot's first window: the same whenever the slot is sent again.
    pub first: u64,
}

impl Part {
    /// The path of its `number`th file, from the dataset's root.
    pub fn path(&self, table: Table, number: usize) -> String {
        let time = Timestamp::from_millisecond(i64::try_from(self.slot_ms).unwrap_or(i64::MAX)).unwrap_or_default();
        let time = time.to_zoned(TimeZone::UTC);
        let (day, host) = (time.strftime("%Y-%m-%d"), path_word(&self.host));
        let partition = match table {
            Table::Samples => format!("day={day}/hour={}/host={host}", time.strftime("%H")),
            Table::Frames => format!("day={day}/host={host}"),
        };
        let slot = time.strftime("%Y%m%dT%H%M%SZ");
        format!("{}/{partition}/{slot}-{:x}-{number}{SUFFIX}", table.name(), self.first)
    }
}

/// A name as part of a path: engines take what stands there for the column's value, so only what must change does.
pub(super) fn path_word(name: &str) -> String {
    let kept = |letter: char| if letter.is_ascii_alphanumeric() || ".-_".contains(letter) { letter } else { '_' };
    let word: String = name.chars().take(MAX_HOST).map(kept).collect();
    // `.` and `..` are no names, and engines leave out what begins with either of these.
    match word.strip_prefix(['.', '_']) {
        Some(rest) => format!("x{rest}"),
        None if word.is_empty() => "x".to_owned(),
        None => word,
    }
}

/// What a path says of the time and the host of the rows in its file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Partition<'p> {
    /// `2026-11-21`.
    pub(super) day: Option<&'p str>,
    /// `03`.
    pub(super) hour: Option<&'p str>,
    pub(super) host: Option<&'p str>,
}

impl<'p> Partition<'p> {
    pub(super) fn of(path: &'p str) -> Self {
        let mut partition = Self::default();
        for part in path.split('/') {
            match part.split_once('=') {
                Some(("day", day)) => partition.day = Some(day),
                Some(("hour", hour)) => partition.hour = Some(hour),
                Some(("host", host)) => partition.host = Some(host),
                _ => {}
            }
        }
        partition
    }

    /// The times that rows may have, in milliseconds since 1970, as far as the path says it.
    pub(super) fn range_ms(&self) -> Option<std::ops::Range<i64>> {
        let day: jiff::civil::Date = self.day?.parse().ok()?;
        let start = day.to_zoned(TimeZone::UTC).ok()?.timestamp().as_millisecond();
        match self.hour.map(str::parse::<u8>) {
            Some(Ok(hour @ 0..24)) => {
                let start = start + i64::from(hour) * 3_600_000;
                Some(start..start + 3_600_000)
            }
            Some(_) => None,
            None => Some(start..start + 86_400_000),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_says_the_time_and_the_host_and_no_name_leads_out_of_the_dataset() {
        let part = Part { host: "web 1/é".to_owned(), slot_ms: 1_700_006_400_000, first: 0xabc };
        let samples = part.path(Table::Samples, 2);
        assert_eq!(samples, "samples/day=2023-11-15/hour=00/host=web_1__/20231115T000000Z-abc-2.parquet");
        assert_eq!(part.path(Table::Frames, 0), "frames/day=2023-11-15/host=web_1__/20231115T000000Z-abc-0.parquet");
        let partition = Partition::of(&samples);
        assert_eq!(partition.range_ms(), Some(1_700_006_400_000..1_700_010_000_000));
        assert_eq!(partition.host, Some("web_1__"));
        for (name, word) in [("..", "x."), ("", "x"), ("_h", "xh"), ("../../etc", "x._.._etc"), ("a=b", "a_b")] {
            assert_eq!(path_word(name), word);
        }
        for path in ["day=x/hour=1", "hour=03", "day=2023-11-15/hour=99", "day=99999-01-01"] {
            assert_eq!(Partition::of(path).range_ms(), None, "{path}");
        }
    }
}
