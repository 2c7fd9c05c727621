//! The parameters of a request, each checked before it is used.

use std::fmt::{self, Display};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::fault::Fault;
use crate::profile::{Filter, LABEL_NAMES};
use crate::times::{TIME_FORMS, parse_time_or_seconds};

/// Parameters of one request at most.
const MAX_PARAMETERS: usize = 100;
/// What the parameters of a comparison's second side begin with.
pub(super) const SECOND: &str = "b.";
/// The range that is meant if none is given.
const DEFAULT_RANGE: Duration = Duration::from_secs(300);

/// Names and values, in the order of the request.
#[derive(Debug)]
pub(super) struct Params(Vec<(String, String)>);

/// A range of time and whose samples in it.
#[derive(Clone, Debug)]
pub(super) struct Selection {
    pub(super) from: SystemTime,
    pub(super) to: SystemTime,
    pub(super) filter: Filter,
}

impl Params {
    /// # Errors
    /// More parameters than any question needs.
    pub(super) fn parse(query: Option<&str>) -> Result<Self, Fault> {
        let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
        let pairs: Vec<_> =
            pairs.take(MAX_PARAMETERS + 1).map(|(name, value)| (name.into_owned(), value.into_owned())).collect();
        match pairs.get(MAX_PARAMETERS) {
            Some((name, _)) => Err(Fault::parameter(name, format!("more than {MAX_PARAMETERS} parameters"))),
            None => Ok(Self(pairs)),
        }
    }

    /// Takes a parameter out.
    ///
    /// # Errors
    /// The parameter is given twice.
    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>, Fault> {
        let mut values = self.0.extract_if(.., |(known, _)| known == name).map(|(_, value)| value);
        let first = values.next();
        match values.next() {
            Some(_) => Err(Fault::parameter(name, "is given more than once")),
            None => Ok(first),
        }
    }

    /// Whether a parameter begins with `prefix`.
    pub(super) fn has(&self, prefix: &str) -> bool {
        self.0.iter().any(|(name, _)| name.starts_with(prefix))
    }

    /// Takes a number out.
    ///
    /// # Errors
    /// The value is no number, or out of range.
    pub(super) fn number<T>(&mut self, name: &str, range: RangeInclusive<T>) -> Result<Option<T>, Fault>
    where
        T: FromStr + PartialOrd + Display,
    {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let number = text.parse().ok().filter(|number| range.contains(number));
        let expected = || format!("must be a number from {} to {}", range.start(), range.end());
        number.map(Some).ok_or_else(|| Fault::parameter(name, expected()))
    }

    /// Takes a switch out: 1 or true, 0 or false.
    ///
    /// # Errors
    /// The value is something else than on or off.
    pub(super) fn switch(&mut self, name: &str) -> Result<bool, Fault> {
        match self.text(name)?.as_deref() {
            None | Some("0" | "false") => Ok(false),
            Some("1" | "true") => Ok(true),
            Some(_) => Err(Fault::parameter(name, "must be 1 or 0")),
        }
    }

    /// Takes range and labels out: `from`, `to`, [`LABEL_NAMES`], and `label.NAME`, each behind `prefix`.
    ///
    /// # Errors
    /// A time that is none, or a range that is empty.
    pub(super) fn selection(&mut self, prefix: &str, now: SystemTime) -> Result<Selection, Fault> {
        let (from, to) = (format!("{prefix}from"), format!("{prefix}to"));
        let to_time = self.time(&to, now)?.unwrap_or(now);
        let from_time = match self.time(&from, now)? {
            Some(time) => time,
            None => to_time.checked_sub(DEFAULT_RANGE).unwrap_or(UNIX_EPOCH),
        };
        if from_time >= to_time {
            return Err(Fault::parameter(&from, format!("must lie before `{to}`")));
        }
        Ok(Selection { from: from_time, to: to_time, filter: self.filter(prefix)? })
    }

    /// Takes the labels out of the parameters.
    ///
    /// # Errors
    /// A number that is none.
    pub(super) fn filter(&mut self, prefix: &str) -> Result<Filter, Fault> {
        let mut filter = Filter::default();
        let mut kept = Vec::with_capacity(self.0.len());
        for (full, value) in std::mem::take(&mut self.0) {
            let name = full.strip_prefix(prefix).map(|name| name.strip_prefix("label.").unwrap_or(name));
            match name {
                Some("pid" | "tid") if value.parse::<u32>().is_err() => {
                    return Err(Fault::parameter(&full, "must be the number of a process or thread"));
                }
                Some(name) if LABEL_NAMES.contains(&name) || full[prefix.len()..].starts_with("label.") => {
                    filter.want(name, &value);
                }
                _ => kept.push((full, value)),
            }
        }
        self.0 = kept;
        Ok(filter)
    }

    /// Ends the reading of parameters.
    ///
    /// # Errors
    /// One is left: most likely misspelt, and not to be ignored.
    pub(super) fn end(self) -> Result<(), Fault> {
        match self.0.first() {
            Some((name, _)) => Err(Fault::parameter(
                name,
                format!("is not known here; labels other than {} are given as label.NAME", LABEL_NAMES.join(", ")),
            )),
            None => Ok(()),
        }
    }

    fn time(&mut self, name: &str, now: SystemTime) -> Result<Option<SystemTime>, Fault> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let why = || format!("must be a time: seconds since 1970, {TIME_FORMS}; without an offset it is in UTC");
        time_of(&text, now).map(Some).ok_or_else(|| Fault::parameter(name, why()))
    }
}

fn time_of(text: &str, now: SystemTime) -> Option<SystemTime> {
    let now = Timestamp::try_from(now).ok()?.to_zoned(TimeZone::UTC);
    parse_time_or_seconds(text, &now).ok().filter(|time| *time >= UNIX_EPOCH)
}

impl fmt::Display for Selection {
    /// For a title: `2026-01-31 03:12:00 to 03:14:00 UTC, comm=node`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = (day_and_time(self.from), day_and_time(self.to));
        match (&from, &to) {
            (Some((day, from)), Some((end, to))) if day == end => write!(f, "{day} {from} to {to} UTC")?,
            (Some((day, from)), Some((end, to))) => write!(f, "{day} {from} to {end} {to} UTC")?,
            _ => write!(f, "{:.0} to {:.0} s since 1970", unix_seconds(self.from), unix_seconds(self.to))?,
        }
        self.filter.iter().try_for_each(|(name, values)| write!(f, ", {name}={}", values.join("|")))
    }
}

/// `None` beyond the year 9999.
fn day_and_time(time: SystemTime) -> Option<(String, String)> {
    let time = Timestamp::try_from(time).ok()?;
    Some((time.strftime("%Y-%m-%d").to_string(), time.strftime("%H:%M:%S").to_string()))
}

/// Seconds since 1970.
pub(super) fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_000_000)
    }

    fn why(query: &str) -> String {
        let mut params = Params::parse(Some(query)).unwrap();
        params.selection("", now()).and_then(|_| params.end()).unwrap_err().to_string()
    }

    #[test]
    fn times_are_seconds_dates_or_relative() {
        // It is 13:46:40 on the 12th.
        for (text, seconds) in [
            ("now", 1_000_000.0),
            ("-1m", 999_940.0),
            ("5.5", 5.5),
            ("1970-01-01T00:01:00Z", 60.0),
            ("1970-01-01 00:01:00", 60.0),
            ("1970-01-01T02:01:00+02:00", 60.0),
            ("13:46", 999_960.0),
            ("0", 0.0),
        ] {
            assert_eq!(time_of(text, now()).map(unix_seconds), Some(seconds), "{text}");
        }
        for text in ["", "-", "x", "1e400", "nan", "inf", "-99999999999h", "1e30", "2026-13-01T00:00:00Z"] {
            assert_eq!(time_of(text, now()), None, "{text}");
        }
    }

    #[test]
    fn a_selection_takes_its_own_names_and_leaves_the_rest() {
        let mut params = Params::parse(Some("from=-2m&comm=a+b&comm=c&label.app=%3Cx%3E&b.pid=7&format=svg")).unwrap();
        let one = params.selection("", now()).unwrap();
        assert_eq!((unix_seconds(one.from), unix_seconds(one.to)), (999_880.0, 1_000_000.0));
        let wanted: Vec<_> = one.filter.iter().map(|(name, values)| (name, values.join("|"))).collect();
        assert_eq!(wanted, [("comm", "a b|c".to_owned()), ("app", "<x>".to_owned())]);
        let other = params.selection("b.", now()).unwrap();
        assert_eq!(other.filter.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["pid"]);
        assert_eq!(params.text("format").unwrap().as_deref(), Some("svg"));
        params.end().unwrap();
    }

    #[test]
    fn a_selection_says_what_it_is() {
        let shown = |query| Params::parse(Some(query)).unwrap().selection("", now()).unwrap().to_string();
        assert_eq!(shown("from=-1m&comm=a&comm=b&pid=7"), "1970-01-12 13:45:40 to 13:46:40 UTC, comm=a|b, pid=7");
        assert_eq!(shown("from=-1d"), "1970-01-11 13:46:40 to 1970-01-12 13:46:40 UTC");
        assert_eq!(shown("from=7&to=1e18"), "7 to 1000000000000000000 s since 1970");
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        assert!(why("from=yesterday").starts_with("parameter `from`: must be a time"));
        assert_eq!(why("from=-1m&to=-2m"), "parameter `from`: must lie before `to`");
        assert_eq!(why("to=5&to=6"), "parameter `to`: is given more than once");
        assert!(why("pid=seven").starts_with("parameter `pid`: must be the number"));
        assert!(why("form=svg").starts_with("parameter `form`: is not known here"));
        let many = "a=1&".repeat(MAX_PARAMETERS + 1);
        assert!(Params::parse(Some(&many)).unwrap_err().to_string().contains("more than 100"));
    }
}
