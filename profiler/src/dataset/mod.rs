//! Profiles of many hosts as tables: Parquet files that other engines read, and that `jitprof report` reads.
//!
//! ```text
//! ROOT/samples/day=2026-11-21/hour=03/host=web1/20261121T031000Z-….parquet   who used the CPU, by minute and stack
//! ROOT/frames/day=2026-11-21/host=web1/20261121T031000Z-….parquet            what the numbers in stacks stand for
//! ```
//!
//! A frame's number is a digest of what it says, the same on every host, so the tables of all hosts are joined by it.
//! What is read may come from anybody: see [`vet`].

mod load;
mod name;
mod query;
mod read;
#[cfg(feature = "cloud")]
mod remote;
mod rows;
mod schema;
mod store;
#[cfg(test)]
mod tests;
mod vet;
mod write;

use std::io;

pub use load::load;
pub use name::{Part, Table};
pub use query::DatasetQuery;
pub use rows::{FrameRow, SampleRow, Tags, frames_of, rows_of};
pub use store::{Location, Store};
pub use write::{MAX_GROUP_ROWS, empty_samples, write_frames, write_samples};

/// What goes wrong with a dataset.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// A file or a directory.
    #[error("{name}: {source}")]
    File {
        /// Its path.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// A file that is no Parquet, damaged, or made to do harm.
    #[error("{name}: {why}")]
    Damaged {
        /// The file's name.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// It has more than this program reads at once.
    #[error("{what}: more than {limit}; choose a shorter time, or ask a query engine (contrib/queries)")]
    TooMuch {
        /// What there is too much of.
        what: &'static str,
        /// How much is read.
        limit: usize,
    },
    /// A file of samples whose frames are nowhere.
    #[error("{name} is in no dataset: no directory above it is called `samples`")]
    NoFrames {
        /// The file's name.
        name: String,
    },
    /// A URL that nothing here can reach.
    #[error("`{url}`: {why}")]
    Url {
        /// As given.
        url: String,
        /// What is wrong with it.
        why: String,
    },
    /// The object store does not answer, or says no.
    #[error("{0}")]
    Remote(String),
}

impl DatasetError {
    fn damaged(name: &str, why: impl ToString) -> Self {
        Self::Damaged { name: name.to_owned(), why: why.to_string() }
    }

    fn file(name: impl ToString, source: io::Error) -> Self {
        Self::File { name: name.to_string(), source }
    }
}
