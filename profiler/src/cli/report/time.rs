//! Times as people write them.

use std::time::{Duration, SystemTime};

use jiff::civil::{DateTime, Time};
use jiff::{Timestamp, ToSpan, Zoned};

use super::ReportError;

/// `2026-11-21T03:12:00Z` (any offset; without one, local time), `2026-11-21 03:12`, `03:12` or `03:12:30` (the last
/// time that it was so here), `-15m` (so long ago), `now`.
pub(super) fn parse(text: &str, now: &Zoned) -> Result<SystemTime, ReportError> {
    let wrong = || ReportError::Time { text: text.to_owned() };
    let text = text.trim();
    if text == "now" {
        return Ok(now.timestamp().into());
    }
    if let Some(ago) = text.strip_prefix('-') {
        let ago: Duration = humantime::parse_duration(ago).map_err(|_| wrong())?;
        return SystemTime::from(now.timestamp()).checked_sub(ago).ok_or_else(wrong);
    }
    if let Ok(timestamp) = text.parse::<Timestamp>() {
        return Ok(timestamp.into());
    }
    // A date first: jiff reads the time out of a whole date, too.
    let zoned = if let Ok(datetime) = text.parse::<DateTime>() {
        datetime.to_zoned(now.time_zone().clone()).map_err(|_| wrong())?
    } else {
        let time = text.parse::<Time>().map_err(|_| wrong())?;
        let today = now.date().to_datetime(time).to_zoned(now.time_zone().clone()).map_err(|_| wrong())?;
        if today > *now { today.checked_sub(1.day()).map_err(|_| wrong())? } else { today }
    };
    Ok(zoned.timestamp().into())
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;

    use super::*;

    /// 10:30 in a zone two hours east of UTC.
    fn at(text: &str) -> Result<String, String> {
        let now: Timestamp = "2026-11-21T08:30:00Z".parse().unwrap();
        let now = now.to_zoned(TimeZone::fixed(jiff::tz::offset(2)));
        let time = parse(text, &now).map_err(|error| error.to_string())?;
        Ok(Timestamp::try_from(time).unwrap().to_string())
    }

    #[test]
    fn times_are_absolute_local_or_ago() {
        for (text, want) in [
            ("2026-11-21T03:12:00Z", "2026-11-21T03:12:00Z"),
            ("2026-11-21T03:12:00+02:00", "2026-11-21T01:12:00Z"),
            ("2026-11-20 03:12", "2026-11-20T01:12:00Z"),
            ("03:12", "2026-11-21T01:12:00Z"),
            ("10:29:59", "2026-11-21T08:29:59Z"),
            ("10:31", "2026-11-20T08:31:00Z"),
            ("-15m", "2026-11-21T08:15:00Z"),
            ("-1h 30m", "2026-11-21T07:00:00Z"),
            ("now", "2026-11-21T08:30:00Z"),
        ] {
            assert_eq!(at(text).as_deref(), Ok(want), "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_refused_in_a_sentence() {
        for text in ["", "yesterday", "25:00", "-15", "-", "2026-13-01"] {
            let error = at(text).unwrap_err();
            assert!(error.ends_with("is no time; write 2026-11-21T03:12:00Z, 03:12, -15m, or now"), "{error}");
        }
    }
}
