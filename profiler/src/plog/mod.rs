//! The HQNplog trace log: spans, marks and counters that a raster image processor writes about itself.
//!
//! ```text
//! header, 80 bytes or more, every field 64-bit           entry, 40 bytes or more
//!   0 magic "HQNplog\n", bytes                             0 u64 timestamp, ticks
//!   8 0x0807060504030201 in the producer's byte order      8 u64 duration, ticks
//!  16 size of the header                                  16 u64 thread id, a pointer on Unix
//!  24 ticks per second                                    24 u32 trace id, index into the trace names
//!  32 start time, ticks                                   28 u32 trace type, index into the type names
//!  40 offset of the trace name table                      32 u64 designator
//!  48 offset of the trace type name table
//!  56 offset of the entry table
//!  64 size of an entry
//!  72 number of entries
//! ```
//!
//! The public description names these fields and nothing else. How names are encoded, what types mean, and whether a
//! timestamp is the start or the end of its duration is not public; docs/reference/hqnplog.md says what is certain, what is
//! inferred, and which option decides. No log of a real producer was at hand: what is read here are logs of our own
//! [`writer`] and whatever agrees with the description.
//!
//! # Memory
//! A log is read in blocks of 1 MiB, never mapped. Spans are put in order in memory up to [`MAX_IN_MEMORY`] of them
//! (48 MiB); the rest is sorted through an unlinked temporary file as large as the spans (48 bytes each, in `TMPDIR`).
//! Every table (names, threads, open spans) has a bound of its own, so a log of any size takes less than 200 MiB.

mod clock;
mod error;
mod header;
mod import;
mod kind;
mod live;
mod names;
mod nesting;
mod order;
mod overlay;
mod pairs;
mod profile;
mod reader;
mod scan;
mod threads;
pub mod writer;

#[cfg(test)]
mod tests;

pub use clock::Clock;
pub use error::PlogError;
pub use header::{BYTE_ORDER_MARK, ENTRY_SIZE, HEADER_SIZE, Header, MAGIC};
pub use import::{Counts, ImportOptions, NameTotals, Timestamps, Trace};
pub use kind::{Kind, KindRule};
pub use live::LiveThreads;
pub use names::{Encoding, NameTable};
pub use nesting::{MAX_DEPTH, Segment};
pub use order::MAX_IN_MEMORY;
pub use overlay::{Placed, SampleTimes, place};
pub use pairs::{Mark, Span};
pub use profile::span_profile;
pub(crate) use profile::thread_name;
pub use reader::{Entry, Log};
pub use scan::{MAX_THREADS, ThreadSeen};
pub use threads::{ThreadMap, ThreadRule, ThreadSource, tid_of_pthread};
