//! The output formats and how they are chosen.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use super::error::OutputError;

/// A format that a profile can be written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// A flamegraph for a browser.
    Svg,
    /// One line a stack: `comm;outer;inner 42`.
    Folded,
    /// gzipped protobuf for `go tool pprof` and its relatives.
    Pprof,
    /// The Firefox Profiler's processed profile, for profiler.firefox.com.
    Firefox,
}

impl Format {
    /// The names that [`FromStr`] takes, and `--format` with it.
    pub const NAMES: [&'static str; 4] = ["svg", "folded", "pprof", "firefox"];

    /// The format that a file's extension asks for: `.svg`, `.folded` or `.txt`, `.pb.gz` or `.pprof`, `.json`.
    ///
    /// # Errors
    /// [`OutputError::UnknownFormat`] for anything else.
    pub fn from_path(path: &Path) -> Result<Self, OutputError> {
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        let lower = name.to_ascii_lowercase();
        let by_extension = [
            (".svg", Self::Svg),
            (".folded", Self::Folded),
            (".txt", Self::Folded),
            (".pb.gz", Self::Pprof),
            (".pprof", Self::Pprof),
            (".json", Self::Firefox),
        ];
        by_extension
            .into_iter()
            .find(|(extension, _)| lower.ends_with(extension))
            .map(|(_, format)| format)
            .ok_or_else(|| OutputError::UnknownFormat { name: name.into_owned() })
    }
}

impl FromStr for Format {
    type Err = OutputError;

    fn from_str(name: &str) -> Result<Self, OutputError> {
        match name {
            "svg" => Ok(Self::Svg),
            "folded" => Ok(Self::Folded),
            "pprof" => Ok(Self::Pprof),
            "firefox" => Ok(Self::Firefox),
            _ => Err(OutputError::UnknownFormat { name: name.to_owned() }),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Svg => "svg",
            Self::Folded => "folded",
            Self::Pprof => "pprof",
            Self::Firefox => "firefox",
        })
    }
}
