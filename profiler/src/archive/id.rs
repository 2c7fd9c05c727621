//! Blocks of the archive: their numbers and the names of their files.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Bits of the counter that tells blocks of one millisecond apart.
const COUNTER_BITS: u32 = 12;
/// Longest host name in a file name.
const MAX_HOST_BYTES: usize = 64;
const EXTENSION: &str = ".pb.gz";
const MERGED: &str = ".merged";
/// What unfinished files begin with.
pub(super) const TEMPORARY: &str = ".tmp-";

/// Milliseconds since 1970 of a block's start, and a counter: no two blocks of an archive have the same, also if the
/// clock was set back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Id(pub(super) u64);

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Level {
    /// One window as it was recorded.
    Window,
    /// Some minutes of windows as one profile, for questions about hours.
    Merged,
}

/// What the name of a file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) id: Id,
    pub(super) level: Level,
    pub(super) length_ms: u64,
}

impl Id {
    /// The first number of a start time that is not taken.
    pub(super) fn free(start_ms: u64, is_taken: impl Fn(Self) -> bool) -> Self {
        let first = start_ms.min(u64::MAX >> COUNTER_BITS) << COUNTER_BITS;
        let mut id = Self(first);
        while is_taken(id) {
            id = Self(id.0.saturating_add(1));
        }
        id
    }

    pub(super) fn start_ms(self) -> u64 {
        self.0 >> COUNTER_BITS
    }

    fn counter(self) -> u64 {
        self.0 & ((1 << COUNTER_BITS) - 1)
    }
}

impl Name {
    /// The day's folder, and the file in it: `2026-11-21/031210.250-10000ms-web1.pb.gz`, in UTC.
    pub(super) fn path(&self, host: &str) -> Option<String> {
        let start_ms = i64::try_from(self.id.start_ms()).ok()?;
        let start = jiff::Timestamp::from_millisecond(start_ms).ok()?.to_zoned(jiff::tz::TimeZone::UTC);
        let counter = match self.id.counter() {
            0 => String::new(),
            counter => format!("_{counter}"),
        };
        let merged = if self.level == Level::Merged { MERGED } else { "" };
        Some(format!(
            "{:04}-{:02}-{:02}/{:02}{:02}{:02}.{:03}{counter}-{}ms{merged}-{host}{EXTENSION}",
            start.year(),
            start.month(),
            start.day(),
            start.hour(),
            start.minute(),
            start.second(),
            start.millisecond(),
            self.length_ms
        ))
    }

    /// Reads a name back; `None` for every file that is not the archive's.
    pub(super) fn parse(day: &str, file: &str) -> Option<Self> {
        let (time, rest) = file.strip_suffix(EXTENSION)?.split_once('-')?;
        let (length, host) = rest.split_once("ms")?;
        let (level, host) = match host.strip_prefix(MERGED) {
            Some(host) => (Level::Merged, host),
            None => (Level::Window, host),
        };
        let host = host.strip_prefix('-')?;
        let (clock, counter) = time.split_once('_').unwrap_or((time, "0"));
        let (seconds, millis) = clock.split_once('.')?;
        if seconds.len() != 6 || millis.len() != 3 || length.len() > 12 || host != host_word(host) {
            return None;
        }
        let (seconds, millis) = (number(seconds)?, number(millis)?);
        let second = |divisor: u64| i8::try_from(seconds / divisor % 100).ok();
        let nanosecond = i32::try_from(millis.checked_mul(1_000_000)?).ok()?;
        let time = jiff::civil::Time::new(second(10_000)?, second(100)?, second(1)?, nanosecond).ok()?;
        let start = parse_day(day)?.to_datetime(time).to_zoned(jiff::tz::TimeZone::UTC).ok()?;
        let start_ms = u64::try_from(start.timestamp().as_millisecond()).ok()?;
        let counter = number(counter).filter(|counter| counter >> COUNTER_BITS == 0)?;
        let id = Id(start_ms.checked_shl(COUNTER_BITS)? | counter);
        Some(Self { id, level, length_ms: number(length)? })
    }
}

/// The date of a day's folder; `None` for every other name.
pub(super) fn parse_day(day: &str) -> Option<jiff::civil::Date> {
    let is_date = day.len() == 10
        && day
            .bytes()
            .enumerate()
            .all(|(at, byte)| if matches!(at, 4 | 7) { byte == b'-' } else { byte.is_ascii_digit() });
    if is_date { day.parse().ok() } else { None }
}

/// A host name as it stands in file names.
pub(super) fn host_word(host: &str) -> String {
    let word = host.chars().map(|c| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') { c } else { '_' });
    let word: String = word.take(MAX_HOST_BYTES).collect();
    if word.is_empty() { "host".to_owned() } else { word }
}

fn number(digits: &str) -> Option<u64> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// A time as the archive counts it; times before 1970 are 1970.
pub(super) fn milliseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The other direction of [`milliseconds`].
pub(super) fn system_time(milliseconds: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_millis(milliseconds)).unwrap_or(UNIX_EPOCH)
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.start_ms(), self.counter())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_says_when_how_long_and_where() {
        let name = Name { id: Id::free(1_795_230_730_250, |_| false), level: Level::Window, length_ms: 10_000 };
        assert_eq!(name.path("web1").unwrap(), "2026-11-21/031210.250-10000ms-web1.pb.gz");
        let merged = Name { id: Id(name.id.0 + 2), level: Level::Merged, length_ms: 600_000 };
        assert_eq!(merged.path("ms-a.b").unwrap(), "2026-11-21/031210.250_2-600000ms.merged-ms-a.b.pb.gz");
    }

    #[test]
    fn names_of_others_are_no_names() {
        for (day, file) in [
            ("2026-11-21", "031210.250-10000ms-web1.pb"),
            ("2026-11-21", "031210.250-10000ms-we/b1.pb.gz"),
            ("2026-11-21", "031210-10000ms-web1.pb.gz"),
            ("2026-11-21", "991210.250-10000ms-web1.pb.gz"),
            ("2026-11-21", "031210.250-+10000ms-web1.pb.gz"),
            ("2026-11-21", "031210.250_4096-10ms-web1.pb.gz"),
            ("2026-13-21", "031210.250-10000ms-web1.pb.gz"),
            ("1969-11-21", "031210.250-10000ms-web1.pb.gz"),
            ("..", "031210.250-10000ms-web1.pb.gz"),
        ] {
            assert_eq!(Name::parse(day, file), None, "{day}/{file}");
        }
    }

    proptest! {
        #[test]
        fn names_are_read_back(ms in 0_u64..4_000_000_000_000, counter in 0_u64..4096, length_ms in 0_u64..1 << 39,
                               is_merged: bool, host in "[^\\x00]{0,80}") {
            let level = if is_merged { Level::Merged } else { Level::Window };
            let name = Name { id: Id(ms << COUNTER_BITS | counter), level, length_ms };
            let path = name.path(&host_word(&host)).unwrap();
            let (day, file) = path.split_once('/').unwrap();
            prop_assert_eq!(Name::parse(day, file), Some(name));
        }

        #[test]
        fn any_text_is_a_name_or_none(day in "\\PC{0,12}", file in "[0-9._a-z-]{0,40}(\\.pb\\.gz)?") {
            if let Some(name) = Name::parse(&day, &file) {
                prop_assert!(name.path("host").is_some());
            }
        }
    }
}
