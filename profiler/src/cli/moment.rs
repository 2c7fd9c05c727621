//! Moments on the command line.

use std::time::Duration;

use crate::units::MonoNs;

/// A moment as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// So long after the first announcement.
    AfterFirst(Duration),
    /// On CLOCK_MONOTONIC.
    At(MonoNs),
}

impl Moment {
    /// The time, if the first announcement was at `first`.
    pub(super) fn after(self, first: MonoNs) -> MonoNs {
        match self {
            Self::At(time) => time,
            Self::AfterFirst(after) => {
                MonoNs(first.0.saturating_add(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX)))
            }
        }
    }
}

/// Reads `+1.5s`, nanoseconds or seconds with a decimal point.
pub(super) fn moment(text: &str) -> Result<Moment, String> {
    if let Some(after) = text.strip_prefix('+') {
        let after = humantime::parse_duration(after).or_else(|error| seconds(after).ok_or(error));
        return after.map(Moment::AfterFirst).map_err(|error| format!("{error}; write it as +1500ms or +2m"));
    }
    let time = if text.contains('.') {
        seconds(text.strip_suffix('s').unwrap_or(text)).and_then(|time| u64::try_from(time.as_nanos()).ok())
    } else {
        text.parse().ok()
    };
    time.map(|time| Moment::At(MonoNs(time))).ok_or_else(|| format!("{text} is neither +DURATION nor a time"))
}

/// Decimal seconds, exactly: `81.234567890`, with or without an `s`.
fn seconds(text: &str) -> Option<Duration> {
    let (whole, part) = text.strip_suffix('s').unwrap_or(text).split_once('.')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(part) || part.len() > 9 {
        return None;
    }
    Some(Duration::new(whole.parse().ok()?, format!("{part:0<9}").parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_durations_after_the_first_or_times_of_the_clock() {
        assert_eq!(moment("+2s"), Ok(Moment::AfterFirst(Duration::from_secs(2))));
        assert_eq!(moment("+1.5s"), Ok(Moment::AfterFirst(Duration::from_millis(1500))));
        assert_eq!(moment("81234567890"), Ok(Moment::At(MonoNs(81_234_567_890))));
        assert_eq!(moment("81.234567890"), Ok(Moment::At(MonoNs(81_234_567_890))));
        assert_eq!(moment("81.5s"), Ok(Moment::At(MonoNs(81_500_000_000))));
        for text in ["", "+", "-1", "1.", ".5", "1.2.3", "+x", "99999999999999999999"] {
            assert!(moment(text).is_err(), "{text}");
        }
    }
}
