//! Captures: everything that went into the engine, in one compressed file, to be [replayed](replay()) without a kernel.
//!
//! ```text
//! "jitprof capture 1\n", zstd of: { length u32 LE, record } …
//!   first record    Header
//!   the others      Entry: an input; what an answer answers; what was found in the rows of files meanwhile
//!   last record     Trailer: what had not been answered when the run ended
//! ```
//!
//! Records are MessagePack with field names, so that a later version reads what an earlier one has written. The stream is
//! flushed every second: what was written before a crash can be read. It has a checksum at its end. Rows of files are not in it, only those that were
//! looked at.
//!
//! An engine that is not the one that was captured may ask for more, or earlier or later. Answers are therefore known by
//! what was asked, and kept until they are asked for; a file is known by how it was opened.

mod matching;
mod reader;
mod replay;
mod writer;

#[cfg(test)]
mod tests;

use jitprof_common::machine::Machine;
use jitprof_common::units::MonoNs;
use serde::{Deserialize, Serialize};

use crate::engine::{EngineOptions, Input};
use crate::process::open::FileId;
pub use matching::RequestName;
pub use reader::CaptureReader;
pub use replay::{Replayed, Strayed, replay};
pub use writer::{CaptureWriter, Witness};

/// What a capture begins with; the number of its format and the end of the line follow.
const MAGIC: &str = "jitprof capture ";
/// The format that is written and read here.
const FORMAT: u32 = 1;
/// Bytes of one record; the largest hold a chunk of a dump, or the mappings of a process.
const MAX_RECORD_BYTES: usize = 64 << 20;
/// Bytes of a capture: beyond it nothing more is written.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// How the engine was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Of jitprof.
    pub version: String,
    /// On what kind of machine.
    pub machine: String,
    /// The engine's options.
    pub options: EngineOptions,
    /// The time at which it was made.
    pub now: MonoNs,
}

/// An input, and what belongs to it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Entry<'a> {
    /// The input.
    #[serde(borrow)]
    pub input: Input<'a>,
    /// If it is an answer: to what, and what the file is called that may have been opened for it.
    pub answers: Option<(RequestName, Option<FileId>)>,
    /// Rows of files that were looked up for the first time while it was taken up.
    pub found: Vec<FoundRow>,
}

/// What is known at the end alone. A capture that was cut has none.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Trailer {
    /// Requests that were given up: nobody had answered them when the run ended.
    unanswered: Vec<RequestName>,
}

/// A row of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundRow {
    /// Of which file.
    pub file: FileId,
    /// At which address of the file.
    pub address: u64,
    /// The encoded row; nothing: there is none.
    pub row: Option<u64>,
}

/// What is wrong with a capture.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// It cannot be read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// It is something else.
    #[error("it is no capture: it does not begin with \"{MAGIC}\", as what `jitprof --capture` writes does")]
    NotACapture,
    /// It is of another format.
    #[error(
        "it is a capture of format {format}, and jitprof {} reads format {FORMAT}; replay it with the version that made it",
        env!("CARGO_PKG_VERSION")
    )]
    OtherFormat {
        /// Which.
        format: String,
    },
    /// It was made on another kind of machine.
    #[error(
        "it was made on {machine}, whose stacks cannot be unwound on {}; replay it on such a machine",
        machine_name()
    )]
    OtherMachine {
        /// Which.
        machine: String,
    },
    /// A record is not what it should be.
    #[error(
        "it is damaged, or jitprof {} cannot read what {version} has written: record {index}: {reason}",
        env!("CARGO_PKG_VERSION")
    )]
    Damaged {
        /// Counted from 0, the header's.
        index: u64,
        /// Why.
        reason: String,
        /// Who has written it.
        version: String,
    },
    /// It ends before the header does.
    #[error("it ends before it has begun: nothing was recorded yet when it was cut")]
    Empty,
}

/// The machine whose rows and registers this build knows.
fn machine_name() -> &'static str {
    match Machine::NATIVE {
        Machine::X86_64 => "x86-64",
        Machine::Aarch64 => "AArch64",
    }
}
