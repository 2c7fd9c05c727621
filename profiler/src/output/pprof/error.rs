//! Why a pprof file cannot be read.

use std::io;

/// A pprof file that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PprofError {
    /// The system says no, or the gzip data is damaged.
    #[error("cannot read it: {0}")]
    Read(#[from] io::Error),
    /// It is larger than the reader takes, packed or unpacked.
    #[error("it is larger than {} MiB unpacked; profile for a shorter time", limit_bytes >> 20)]
    TooLarge {
        /// The most that the reader takes.
        limit_bytes: u64,
    },
    /// It is no protobuf of this shape.
    #[error("it is no pprof file, or damaged: {field} at byte {offset}: {what}")]
    Wire {
        /// The message or field that is damaged.
        field: &'static str,
        /// Where, in the unpacked file.
        offset: usize,
        /// What is wrong there.
        what: &'static str,
    },
    /// An index leads nowhere.
    #[error("it is damaged: {field} at byte {offset}: there is no {what} {index}")]
    Index {
        /// The field that holds the index.
        field: &'static str,
        /// Where, in the unpacked file.
        offset: usize,
        /// What the index is of.
        what: &'static str,
        /// The index as read.
        index: u64,
    },
    /// A table has more entries than the reader takes.
    #[error("{field} at byte {offset}: there are more than {limit} of them, which is more than jitprof takes")]
    TooMany {
        /// The table's name in the format.
        field: &'static str,
        /// Where, in the unpacked file.
        offset: usize,
        /// How many are taken.
        limit: usize,
    },
    /// The samples measure something else.
    #[error("it has neither CPU time nor counts of samples, but {0}")]
    Values(String),
    /// A sample counts downwards.
    #[error("sample at byte {offset}: a value is negative; a file that is a difference cannot be read")]
    Negative {
        /// Where, in the unpacked file.
        offset: usize,
    },
}
