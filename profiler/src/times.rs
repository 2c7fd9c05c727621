//! Times and durations as people write them: on the command line, in the configuration file, in a request.
//!
//! | what | forms |
//! |---|---|
//! | [duration](parse_duration) | `10s`, `5m`, `1h30m`, `2 days`, `1.5h`: numbers with units, in any order, which add up |
//! | [time](parse_time) | `2026-11-21T03:12:00Z` with any offset, `2026-11-21 03:12`, `03:12` (the last time it was so), `-15m` (so long ago), `now` |
//! | [time of a dump](DumpTime) | `+1.5s` (after the first record), `81234567890` (nanoseconds), `81.234567890` (seconds) |
//!
//! Units are words of [jiff's](jiff::fmt::friendly) from nanoseconds to hours, and days, weeks, months (of 30.44 days)
//! and years (of 365.25 days), which jiff measures on a calendar only.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::civil::{DateTime, Time};
use jiff::{SignedDuration, Timestamp, ToSpan, Zoned};

use jitprof_common::units::MonoNs;

/// The units above jiff's, in seconds.
const LONG_UNITS: [(&[&str], i32); 4] = [
    (&["d", "day", "days"], 86_400),
    (&["w", "wk", "wks", "week", "weeks"], 604_800),
    (&["M", "month", "months"], 2_630_016),
    (&["y", "yr", "yrs", "year", "years"], 31_557_600),
];

/// Forms of a time, for a sentence that says what is accepted.
pub const TIME_FORMS: &str = "2026-11-21T03:12:00Z, 03:12, -15m, or now";

/// A text that is neither a time nor a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimeError {
    /// The text is no duration.
    #[error("`{0}` is no duration; write it as 10s, 5m, 1h30m or 2 days")]
    Duration(String),
    /// The text is a number without a unit.
    #[error("`{0}` has no unit; write it as 10s, 5m, 1h30m or 2 days")]
    NoUnit(String),
    /// Zero or less where something must take time.
    #[error("wants more than no time at all, such as 10s")]
    NotPositive,
    /// The text is no time.
    #[error("{0:?} is no time; write {TIME_FORMS}")]
    Time(String),
    /// No time of a dump.
    #[error(
        "`{0}` is neither a time after the first record, such as +1500ms or +2m, nor one in nanoseconds or seconds, \
             such as 81234567890 or 81.234567890"
    )]
    DumpTime(String),
}

/// Reads a duration. `0` needs no unit.
///
/// # Errors
/// [`TimeError::Duration`] or [`TimeError::NoUnit`].
pub fn parse_duration(text: &str) -> Result<Duration, TimeError> {
    let trimmed = text.trim();
    if trimmed == "0" {
        return Ok(Duration::ZERO);
    }
    if !trimmed.is_empty() && trimmed.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(TimeError::NoUnit(text.to_owned()));
    }
    duration_of(trimmed).ok_or_else(|| TimeError::Duration(text.to_owned()))
}

fn duration_of(text: &str) -> Option<Duration> {
    let (mut sum, mut rest) = (SignedDuration::ZERO, text);
    loop {
        let (number, after) = rest.split_at(rest.find(char::is_alphabetic)?);
        let (unit, after) = after.split_at(after.find(|letter: char| !letter.is_alphabetic()).unwrap_or(after.len()));
        sum = sum.checked_add(amount_of(number, unit)?)?;
        rest = after.trim_start();
        if rest.is_empty() {
            return sum.try_into().ok();
        }
    }
}

/// One number with its unit.
fn amount_of(number: &str, unit: &str) -> Option<SignedDuration> {
    let number: String = number.split_whitespace().collect();
    // Without a sign: what is asked for is a length.
    if !number.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    let long = LONG_UNITS.iter().find(|(names, _)| names.contains(&unit));
    let (unit, factor) = long.map_or((unit, 1), |(_, seconds)| ("s", *seconds));
    format!("{number}{unit}").parse::<SignedDuration>().ok()?.checked_mul(factor)
}

/// Reads a time. One without an offset is of the time zone of `now`, and `03:12` the last time that it was so there.
///
/// # Errors
/// [`TimeError::Time`].
pub fn parse_time(text: &str, now: &Zoned) -> Result<SystemTime, TimeError> {
    time_of(text.trim(), now).ok_or_else(|| TimeError::Time(text.to_owned()))
}

fn time_of(text: &str, now: &Zoned) -> Option<SystemTime> {
    if text == "now" {
        return Some(now.timestamp().into());
    }
    if let Some(ago) = text.strip_prefix('-') {
        let ago = SignedDuration::try_from(parse_duration(ago).ok()?).ok()?;
        return Some(now.timestamp().checked_sub(ago).ok()?.into());
    }
    if let Ok(timestamp) = text.parse::<Timestamp>() {
        return Some(timestamp.into());
    }
    // A date first: jiff reads the time out of a whole date, too.
    let zoned = if let Ok(datetime) = text.parse::<DateTime>() {
        datetime.to_zoned(now.time_zone().clone()).ok()?
    } else {
        let time = text.parse::<Time>().ok()?;
        let today = now.date().to_datetime(time).to_zoned(now.time_zone().clone()).ok()?;
        if today > *now { today.checked_sub(1.day()).ok()? } else { today }
    };
    Some(zoned.timestamp().into())
}

/// The same, or a number: seconds since 1970, for programs.
///
/// # Errors
/// [`TimeError::Time`].
pub fn parse_time_or_seconds(text: &str, now: &Zoned) -> Result<SystemTime, TimeError> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds >= 0.0 => Duration::try_from_secs_f64(seconds)
            .ok()
            .and_then(|since| UNIX_EPOCH.checked_add(since))
            .ok_or_else(|| TimeError::Time(text.to_owned())),
        _ => parse_time(text, now),
    }
}

/// A length of time that is asked for; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Period(pub Duration);

impl FromStr for Period {
    type Err = TimeError;

    fn from_str(text: &str) -> Result<Self, TimeError> {
        let less = text.trim_start().strip_prefix('-').and_then(|length| parse_duration(length).ok());
        match less.map_or_else(|| parse_duration(text), |_| Ok(Duration::ZERO))? {
            Duration::ZERO => Err(TimeError::NotPositive),
            duration => Ok(Self(duration)),
        }
    }
}

impl fmt::Display for Period {
    /// As it is read: `1h 30m`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match SignedDuration::try_from(self.0) {
            Ok(duration) => write!(formatter, "{duration:#}"),
            // Longer than jiff knows, and than anybody can write.
            Err(_) => write!(formatter, "{}s", self.0.as_secs()),
        }
    }
}

/// A time as dumps have it, on CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpTime {
    /// So long after the first record.
    AfterFirst(Duration),
    /// On the clock itself.
    At(MonoNs),
}

impl DumpTime {
    /// On the clock, if the first record is of `first`.
    pub fn on_clock(self, first: MonoNs) -> MonoNs {
        match self {
            Self::At(time) => time,
            Self::AfterFirst(after) => first.after(after),
        }
    }
}

impl FromStr for DumpTime {
    type Err = TimeError;

    /// `+1.5s`, nanoseconds, or seconds with a decimal point; those may do without their unit.
    fn from_str(text: &str) -> Result<Self, TimeError> {
        let time = match text.strip_prefix('+') {
            Some(after) => decimal_seconds(after).or_else(|| parse_duration(after).ok()).map(Self::AfterFirst),
            None if text.contains('.') => decimal_seconds(text)
                .and_then(|time| u64::try_from(time.as_nanos()).ok())
                .map(|time| Self::At(MonoNs(time))),
            None => text.parse().ok().map(|time| Self::At(MonoNs(time))),
        };
        time.ok_or_else(|| TimeError::DumpTime(text.to_owned()))
    }
}

/// Decimal seconds, exactly: `81.234567890`, with or without an `s`.
fn decimal_seconds(text: &str) -> Option<Duration> {
    let (whole, part) = text.strip_suffix('s').unwrap_or(text).split_once('.')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_exact = is_number(whole) && is_number(part) && part.len() <= 9;
    is_exact.then(|| duration_of(&format!("{whole}.{part}s")))?
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;
    use proptest::prelude::*;

    use super::*;

    /// 10:30 in a zone two hours east of UTC.
    fn now() -> Zoned {
        let now: Timestamp = "2026-11-21T08:30:00Z".parse().unwrap();
        now.to_zoned(TimeZone::fixed(jiff::tz::offset(2)))
    }

    fn at(text: &str) -> Result<String, String> {
        let time = parse_time(text, &now()).map_err(|error| error.to_string())?;
        Ok(Timestamp::try_from(time).unwrap().to_string())
    }

    #[test]
    fn a_duration_is_a_sum_of_numbers_with_units() {
        let day = 86_400.0;
        for (text, seconds) in [
            ("10s", 10.0),
            (" 10 s ", 10.0),
            ("5m", 300.0),
            ("1h30m", 5400.0),
            ("1h 30min", 5400.0),
            ("30m 1h", 5400.0),
            ("1 hour 12 mins 5 seconds", 4325.0),
            ("2 days", 2.0 * day),
            ("1.5d", 1.5 * day),
            ("1w", 7.0 * day),
            ("2 weeks 1 day", 15.0 * day),
            ("1month", 30.44 * day),
            ("1M", 30.44 * day),
            ("1y", 365.25 * day),
            ("1.5h", 5400.0),
            ("1500ms", 1.5),
            ("4.2s", 4.2),
            ("250 millis", 0.25),
            ("20usec", 2e-5),
            ("20µs", 2e-5),
            ("7ns", 7e-9),
            ("0", 0.0),
            ("0s", 0.0),
            ("1 000s", 1000.0),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_secs_f64(seconds)), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused_in_a_sentence() {
        for text in
            ["", " ", "s", "m s", "5 m s", "-5s", "+5s", "1..5s", "1.s", ".5s", "5x", "5S", "5s x", "5s 7", "5,"]
        {
            let error = parse_duration(text).unwrap_err().to_string();
            assert_eq!(error, format!("`{text}` is no duration; write it as 10s, 5m, 1h30m or 2 days"));
        }
        for text in ["99999999999999999999s", "9999999999999y", "9223372036854775807s 1s"] {
            assert!(matches!(parse_duration(text), Err(TimeError::Duration(_))), "{text}");
        }
        let error = parse_duration("10").unwrap_err().to_string();
        assert_eq!(error, "`10` has no unit; write it as 10s, 5m, 1h30m or 2 days");
        for text in ["0s", "0", "-5s", " -1h30m"] {
            assert_eq!(text.parse::<Period>(), Err(TimeError::NotPositive), "{text}");
        }
        assert_eq!("-5".parse::<Period>(), Err(TimeError::Duration("-5".to_owned())));
    }

    #[test]
    fn times_are_absolute_local_or_ago() {
        for (text, want) in [
            ("2026-11-21T03:12:00Z", "2026-11-21T03:12:00Z"),
            ("2026-11-21T03:12:00+02:00", "2026-11-21T01:12:00Z"),
            ("2026-11-21T03:12:00.5Z", "2026-11-21T03:12:00.5Z"),
            ("2026-11-20 03:12", "2026-11-20T01:12:00Z"),
            ("2026-11-20T03:12:10", "2026-11-20T01:12:10Z"),
            ("2026-11-20", "2026-11-19T22:00:00Z"),
            ("03:12", "2026-11-21T01:12:00Z"),
            ("10:29:59", "2026-11-21T08:29:59Z"),
            ("10:31", "2026-11-20T08:31:00Z"),
            ("-15m", "2026-11-21T08:15:00Z"),
            ("-1h 30m", "2026-11-21T07:00:00Z"),
            ("-2 days", "2026-11-19T08:30:00Z"),
            ("now", "2026-11-21T08:30:00Z"),
        ] {
            assert_eq!(at(text).as_deref(), Ok(want), "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_refused_in_a_sentence() {
        for text in ["", "yesterday", "25:00", "-15", "-", "--5m", "2026-13-01", "-99999999999h", "7"] {
            let error = at(text).unwrap_err();
            assert!(error.ends_with("is no time; write 2026-11-21T03:12:00Z, 03:12, -15m, or now"), "{error}");
        }
    }

    #[test]
    fn numbers_are_seconds_where_programs_ask() {
        let since = |text| parse_time_or_seconds(text, &now()).map(|time| time.duration_since(UNIX_EPOCH).unwrap());
        assert_eq!(since("5.5"), Ok(Duration::from_millis(5500)));
        assert_eq!(since("0"), Ok(Duration::ZERO));
        assert_eq!(since("1970-01-01T00:01:00Z"), Ok(Duration::from_secs(60)));
        for text in ["1e400", "nan", "inf", "1e30", "x"] {
            assert_eq!(since(text), Err(TimeError::Time(text.to_owned())), "{text}");
        }
    }

    #[test]
    fn times_of_a_dump_are_durations_after_the_first_or_times_of_the_clock() {
        let first = MonoNs(1_000_000_000);
        for (text, want) in [
            ("+2s", 3_000_000_000),
            ("+1.5s", 2_500_000_000),
            ("+1.5", 2_500_000_000),
            ("+2m", 121_000_000_000),
            ("81234567890", 81_234_567_890),
            ("81.234567890", 81_234_567_890),
            ("81.5s", 81_500_000_000),
        ] {
            assert_eq!(text.parse::<DumpTime>().map(|time| time.on_clock(first)), Ok(MonoNs(want)), "{text}");
        }
        for text in ["", "+", "-1", "1.", ".5", "1.2.3", "+x", "+7", "99999999999999999999", "1.0123456789"] {
            assert_eq!(text.parse::<DumpTime>(), Err(TimeError::DumpTime(text.to_owned())), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_period_is_read_as_it_is_shown(seconds in 0_u64..100_000_000_000, nanos in 1_u32..1_000_000_000) {
            let period = Period(Duration::new(seconds, nanos));
            prop_assert_eq!(period.to_string().parse(), Ok(period));
        }

        #[test]
        fn any_text_is_a_time_or_refused(text in "\\PC{0,24}|[-+0-9a-z :.]{0,16}") {
            for refused in [parse_duration(&text).err(), parse_time_or_seconds(&text, &now()).err()] {
                prop_assert!(refused.is_none_or(|error| error.to_string().contains("write")));
            }
        }
    }
}
