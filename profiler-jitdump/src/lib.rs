#![doc = include_str!("../README.md")]
//!
//! # The format
//!
//! A jitdump is a 40-byte file header and a sequence of unaligned, self-sized records in the producer's byte order:
//!
//! ```text
//! file header   magic version total_size elf_mach pad1 pid | timestamp flags            6 x u32, 2 x u64 = 40
//! every record  id total_size | timestamp                                               2 x u32, u64    = 16
//!   0 LOAD            pid tid | vma code_addr code_size code_index | name NUL | code    56 fixed
//!   1 MOVE            pid tid | vma old_addr new_addr code_size code_index              64
//!   2 DEBUG_INFO      code_addr nr_entry | nr_entry x { addr u64, line, discrim i32, name NUL }  32 fixed
//!   3 CLOSE           nothing                                                           16
//!   4 UNWINDING_INFO  unwind_data_size eh_frame_hdr_size mapped_size | data             40 fixed
//! 240 to 243          what jitprof's agent adds, see `extension.rs`
//! ```
//!
//! What producers do differently, each with its version, is in
//! [docs/reference/jitdump.md](https://github.com/jitprof/jitprof/blob/main/docs/reference/jitdump.md).
//!
//! # Layers
//!
//! Three, each usable alone:
//!
//! * [`Parser`] takes bytes and gives borrowed records. It allocates nothing and does no I/O. Damage costs the damaged
//!   record: the parser finds the next plausible chain of records by itself.
//! * [`Assembler`] joins DEBUG_INFO and UNWINDING_INFO records to the LOAD they belong to, undoes what producers do
//!   differently, converts times to CLOCK_MONOTONIC and gives [`CodeEvent`](crate::code::CodeEvent)s. [`DumpReader`] is
//!   the two together.
//! * [`DumpStream`] follows a growing file without I/O and keeps the torn end until it is complete; [`DumpTail`] is a
//!   stream with its opened file.
//!
//! [`Inspector`] looks at a dump as a thing of its own: figures, and every deviation from the specification.
//! [`RecordTail`] walks through a file's records for it.
//!
//! [`writer`] makes such files. [`perfmap`] has the same layers for perf maps, and [`code`] is what both lead to: events,
//! and the map that answers (address, time).

mod assembler;
mod bias;
mod body;
mod byte_order;
mod clock;
pub mod code;
mod debug_info;
mod eh_absolute;
mod eh_frame;
mod extension;
mod header;
mod inspect;
mod living;
mod options;
mod own_rows;
mod parser;
pub mod perfmap;
mod reader;
mod record;
mod records;
mod repair;
mod resync;
mod rows;
mod stats;
mod tail;
mod window;
pub mod writer;

#[cfg(any(test, feature = "test-data"))]
#[doc(hidden)]
pub mod test_data;
#[cfg(test)]
mod tests;

pub use assembler::Assembler;
pub use bias::bias_of_path;
pub use body::{MAX_KEPT_CODE, MAX_NAME};
pub use byte_order::ByteOrder;
pub use clock::{ClockContext, ClockKind, TscConversion};
pub use debug_info::{DebugEntries, DebugEntry, DebugInfo};
pub use eh_absolute::AbsoluteFrames;
pub use extension::{Inline, Lost, Method, Unload};
pub use header::{AGENT_PAD1, FLAG_ARCH_TIMESTAMP, FileHeader, HEADER_SIZE, V8_PAD1};
pub use inspect::{Deviation, Findings, Found, Inspection, Inspector, Place, Severity, Survey};
pub use living::{Living, LivingCode};
pub use options::ReaderOptions;
pub use parser::{Field, MAX_BUFFERED_RECORD, MAX_LOAD, Parser, ParserOptions, Step};
pub use reader::DumpReader;
pub use record::{Body, Load, Move, Record, RecordId, UnwindingInfo};
pub use records::RecordTail;
pub use repair::{Piece, RepairAccount, Repairer};
pub use stats::{CorruptStretch, DumpStats, EhCounts, RecordCounts, SkipCounts};
pub use tail::{DumpStream, DumpTail, Progress, TornTail};
pub use window::{FileBytes, FileLook, NextRead};
