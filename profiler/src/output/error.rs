//! Why an output could not be written, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

use super::format::Format;
use crate::regular_file::is_kernels_own;

/// An output that could not be written.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// The profile is empty.
    #[error("no samples were taken, so there is nothing to write")]
    NoSamples,
    /// pprof has no form of a difference.
    #[error(
        "a difference is written as svg, folded or json; for pprof write both sides with -o and give them to \
         `go tool pprof -diff_base BEFORE AFTER`"
    )]
    NoDiff,
    /// Neither an extension nor a name of a format.
    #[error(
        "{name:?} is no output format; give --format one of {}, or an extension of .svg, .folded, \
         .txt, .pb.gz, .pprof, .json",
        Format::NAMES.join(", ")
    )]
    UnknownFormat {
        /// The extension, file name or format name that was given.
        name: String,
    },
    /// Not a colour scheme.
    #[error("no colour scheme is called {name:?}; give one of kind, {}", inferno::flamegraph::Palette::VARIANTS.join(", "))]
    UnknownColors {
        /// The name that was given.
        name: String,
    },
    /// The smallest width shown is not a percentage.
    #[error("a minimal width of {percent} is not a percentage from 0 to 100")]
    MinWidth {
        /// The width that was given.
        percent: f64,
    },
    /// The output path is something that a profile cannot be written to.
    #[error("cannot write {}: it is {what}; {advice}", path.display())]
    WrongKind {
        /// The path to write to.
        path: PathBuf,
        /// What it is instead of a file.
        what: &'static str,
        /// What the user can do about it.
        advice: &'static str,
    },
    /// The operating system refused.
    #[error("cannot {action} {}: {source}; {}", path.display(), advice(source, path))]
    File {
        /// What was tried: `create a file beside`, `write`, `rename the finished file to`, ...
        action: &'static str,
        /// The path to write to.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// The trace log that the output is made from.
    #[cfg(feature = "plog")]
    #[error(transparent)]
    Trace(#[from] crate::plog::PlogError),
    /// A writer that has no path failed.
    #[error("cannot write the output: {0}")]
    Write(#[from] io::Error),
}

impl OutputError {
    /// Whether the reader of a pipe went away, which is no failure of ours.
    pub fn is_broken_pipe(&self) -> bool {
        match self {
            Self::File { source, .. } | Self::Write(source) => source.kind() == io::ErrorKind::BrokenPipe,
            _ => false,
        }
    }
}

/// What to do about an error of the file system.
fn advice(error: &io::Error, path: &Path) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound if can_be_created(path) => "create the directory first",
        io::ErrorKind::NotFound => "nobody can create files there; give another path with -o",
        io::ErrorKind::NotADirectory => "a part of the path is a file; give another path with -o",
        io::ErrorKind::IsADirectory => "name a file in it",
        io::ErrorKind::PermissionDenied => "give a path with -o in a directory where you may create files",
        io::ErrorKind::ReadOnlyFilesystem => "give a path with -o on a file system that is mounted writable",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free some space, or give another path with -o",
        io::ErrorKind::InvalidFilename => "give a shorter name with -o",
        _ => "give another path with -o, or - for stdout",
    }
}

/// Whether a directory is missing that can be made. Where the directory is there, and yet the new file is said not to
/// be, nobody can create one: it was removed, or is the kernel's own.
fn can_be_created(path: &Path) -> bool {
    let above = path.ancestors().skip(1).map(|above| if above.as_os_str().is_empty() { Path::new(".") } else { above });
    match above.enumerate().find(|(_, directory)| directory.exists()) {
        Some((0, _)) => false,
        Some((_, nearest)) => !rustix::fs::statfs(nearest).is_ok_and(|system| is_kernels_own(&system)),
        None => true,
    }
}
