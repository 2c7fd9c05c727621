//! A log that cannot be read at all.

use std::io;

/// Why nothing can be read from a log. What is wrong with a part of it is a warning of the [`Log`](super::Log).
#[derive(Debug, thiserror::Error)]
pub enum PlogError {
    /// Too short for a header, or another magic.
    #[error("byte {offset}, {field}: {what}; this is no HQNplog trace log")]
    NoLog {
        /// Where in the file.
        offset: u64,
        /// Which field of the header.
        field: &'static str,
        /// What stands there instead.
        what: String,
    },
    /// A field without which no entry can be found.
    #[error("byte {offset}, {field}: {what}; no entry can be read")]
    Field {
        /// Where in the file.
        offset: u64,
        /// Which field of the header.
        field: &'static str,
        /// What stands there instead.
        what: String,
    },
    /// The file, or the temporary file that spans are sorted in, cannot be read or written.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was tried, for the message.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl PlogError {
    /// Makes an error of the system's, for `map_err`.
    pub(super) fn io(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, source }
    }
}
