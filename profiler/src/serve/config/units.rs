//! Values that are texts in the file and on the command line: `64MiB`, `10s`, `127.0.0.1:7878`.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::serve::http::Listen;
use crate::times::Period;

/// Suffixes of byte counts, the longest first, so that none hides another.
const SUFFIXES: [(&str, u64); 8] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("B", 1),
];

/// What is read by `FromStr` and shown by `Display` on the command line is the same text in the file.
macro_rules! as_text {
    ($($value:ty),*) => {$(
        impl Serialize for $value {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $value {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
            }
        }
    )*};
}

as_text!(Bytes, Period, ListenAt);

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no number of bytes; write it as 64MiB or 2GiB");
        let text = text.trim();
        let (number, unit) = SUFFIXES
            .iter()
            .find_map(|(suffix, unit)| text.strip_suffix(suffix).map(|number| (number, *unit)))
            .ok_or_else(wrong)?;
        let number: u64 = number.trim().parse().map_err(|_| wrong())?;
        number.checked_mul(unit).map(Self).ok_or_else(wrong)
    }
}

impl fmt::Display for Bytes {
    /// Writes it in the largest binary unit that divides it.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let binary = SUFFIXES[..4].iter().rev().find(|(_, unit)| self.0 != 0 && self.0.is_multiple_of(*unit));
        let (suffix, unit) = binary.copied().unwrap_or(("B", 1));
        write!(formatter, "{}{suffix}", self.0 / unit)
    }
}

/// Where to listen: `127.0.0.1:7878`, or `unix:/run/jitprof/http.sock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenAt(pub Listen);

impl FromStr for ListenAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match Path::new(path).is_absolute() {
                true => Ok(Self(Listen::Unix(path.into()))),
                false => Err(format!("`{text}` wants an absolute path, such as unix:/run/jitprof/http.sock")),
            };
        }
        let wrong = |_| format!("`{text}` is neither an address with a port, such as 127.0.0.1:7878, nor unix:/a/path");
        text.parse().map(|address| Self(Listen::Tcp(address))).map_err(wrong)
    }
}

impl fmt::Display for ListenAt {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Listen::Tcp(address) => address.fmt(formatter),
            Listen::Unix(path) => write!(formatter, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_units_and_are_shown_as_they_were_written() {
        for (text, bytes) in [("64MiB", 64 << 20), ("2 GiB", 2 << 30), ("1500kB", 1_500_000), ("7B", 7), ("0B", 0)] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        assert_eq!(Bytes(64 << 20).to_string(), "64MiB");
        assert_eq!(Bytes(1_500_000).to_string(), "1500000B");
        for text in ["64", "", "MiB", "-1MiB", "99999999999TiB", "1.5GiB"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_place_to_listen_at_is_an_address_or_a_path() {
        for text in ["127.0.0.1:7878", "[::1]:1", "unix:/run/jitprof/http.sock"] {
            assert_eq!(text.parse::<ListenAt>().unwrap().to_string(), text);
        }
        for text in ["localhost:7878", "7878", "unix:http.sock", "unix:", ""] {
            assert!(text.parse::<ListenAt>().is_err(), "{text}");
        }
    }
}
