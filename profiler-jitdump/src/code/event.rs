//! Announcements of generated code, the same for every input (jitdump, perf map, peeked buffer, agent).

use std::sync::Arc;

use super::lines::SourceRows;
use jitprof_common::units::{Avma, MonoNs};

/// One announcement by a runtime. Times are on CLOCK_MONOTONIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CodeEvent {
    /// New code at an address; ends whatever was announced over the same bytes before.
    Load(CodeLoad),
    /// The code that starts at `old_start` now starts at `new_start`.
    Move {
        /// When it moved.
        time: MonoNs,
        /// Where the code began before.
        old_start: Avma,
        /// Where the code begins from `time` on.
        new_start: Avma,
        /// Its length in bytes.
        size: u64,
    },
    /// The code in this range is gone, wholly where a part of it lies in the range.
    Unload {
        /// Since when.
        time: MonoNs,
        /// First byte.
        start: Avma,
        /// Length in bytes.
        size: u64,
    },
    /// A part of the code that lies there was inlined from another method.
    Inline(CodeInline),
    /// The producer closed its file in order.
    Close {
        /// When it did so.
        time: MonoNs,
    },
}

impl CodeEvent {
    /// When it happened.
    pub fn time(&self) -> MonoNs {
        match self {
            Self::Load(load) => load.time,
            Self::Inline(inline) => inline.time,
            Self::Move { time, .. } | Self::Unload { time, .. } | Self::Close { time } => *time,
        }
    }

    /// The first byte of the code that it is about, if it is about any.
    pub fn start(&self) -> Option<Avma> {
        match self {
            Self::Load(load) => Some(load.start),
            Self::Inline(inline) => Some(inline.start),
            Self::Move { new_start, .. } => Some(*new_start),
            Self::Unload { start, .. } => Some(*start),
            Self::Close { .. } => None,
        }
    }
}

/// A piece of generated code with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeLoad {
    /// Since when the code is there; 0 when the source has no times (perf maps): always.
    pub time: MonoNs,
    /// First byte.
    pub start: Avma,
    /// Length in bytes; 0 is kept, and never covers an address.
    pub size: u64,
    /// The runtime's name for it, lossily decoded, unsanitized, possibly empty.
    pub name: String,
    /// The runtime's index of the code; not unique, never a key.
    pub code_index: u64,
    /// Source rows; may be empty.
    pub lines: SourceRows,
    /// Source file and module, from producers that say them apart from the lines.
    pub unit: Option<Arc<CodeUnit>>,
    /// Recorded unwinding data, if there is more than a header.
    pub eh_frame: Option<EhFrame>,
    /// The code bytes, when the reader was asked to keep them.
    pub code: Option<Box<[u8]>>,
    /// Where the announcement came from.
    pub origin: CodeOrigin,
}

/// Where generated code comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CodeUnit {
    /// The source file.
    pub source: Option<Arc<str>>,
    /// The module, or the engine.
    pub module: Option<Arc<str>>,
}

/// A part of a code object that was inlined from another method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeInline {
    /// A time at which the object is there. The part belongs to the object for all of its life.
    pub time: MonoNs,
    /// First byte.
    pub start: Avma,
    /// Length in bytes.
    pub size: u64,
    /// The inlined method's number.
    pub method: u32,
    /// The number of the method around it, which may be inlined itself. Tells the outer of two equal parts.
    pub parent: u32,
    /// The inlined method's name, lossily decoded, unsanitized, possibly empty.
    pub name: String,
    /// Its source file, if that is known.
    pub source: Option<Arc<str>>,
    /// Source rows of the part, by offset from its start; may be empty.
    pub lines: SourceRows,
}

/// From this offset on, the code belongs to this source line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineRow {
    /// Bytes from the start of the code object.
    pub offset: u32,
    /// Line, from 1.
    pub line: u32,
    /// Source file as the runtime names it.
    pub file: Arc<str>,
}

/// `.eh_frame` bytes as the runtime recorded them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EhFrame {
    /// The section's bytes, without the `.eh_frame_hdr`.
    pub bytes: Arc<[u8]>,
    /// The address at which pc-relative values in `bytes` resolve.
    pub section_start: Avma,
}

/// Which input announced a piece of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CodeOrigin {
    /// A record of a jitdump file.
    Jitdump,
    /// A record read from the runtime's stdio buffer before it reached the file.
    Peeked,
    /// A line of a perf map.
    PerfMap,
    /// The runtime's own tables, read from its memory.
    Runtime,
}
