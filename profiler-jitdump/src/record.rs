//! Records, borrowed from the bytes that they were read from.

use jitprof_common::units::FileOffset;

use super::debug_info::DebugInfo;
use super::extension::{Inline, Lost, Method, Unload};

/// The bytes of the prefix that every record begins with.
pub(super) const PREFIX_SIZE: usize = 16;

/// The five types of the format, and those of jitprof's agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordId {
    /// New code.
    Load,
    /// Moved code. No producer was ever seen writing it.
    Move,
    /// Source lines of code that is about to be loaded.
    DebugInfo,
    /// The producer ended in order.
    Close,
    /// Unwinding data of code that is about to be loaded.
    UnwindingInfo,
    /// The agent: code is gone.
    Unload,
    /// The agent: a part of a function was inlined.
    Inline,
    /// The agent: where the next function comes from.
    Method,
    /// The agent: an announcement could not be written.
    Lost,
}

impl RecordId {
    /// The type that the number stands for.
    pub fn from_number(id: u32) -> Option<Self> {
        Some(match id {
            0 => Self::Load,
            1 => Self::Move,
            2 => Self::DebugInfo,
            3 => Self::Close,
            4 => Self::UnwindingInfo,
            240 => Self::Unload,
            241 => Self::Inline,
            242 => Self::Method,
            243 => Self::Lost,
            _ => return None,
        })
    }

    /// The number in the file.
    pub fn number(self) -> u32 {
        match self {
            Self::Load => 0,
            Self::Move => 1,
            Self::DebugInfo => 2,
            Self::Close => 3,
            Self::UnwindingInfo => 4,
            Self::Unload => 240,
            Self::Inline => 241,
            Self::Method => 242,
            Self::Lost => 243,
        }
    }

    /// The bytes that a record of this type has at least, its prefix included.
    pub fn fixed_size(self) -> usize {
        match self {
            Self::Load => 56,
            Self::Move => 64,
            Self::DebugInfo => 32,
            Self::Close => 16,
            Self::UnwindingInfo | Self::Inline => 40,
            Self::Unload | Self::Method => 32,
            Self::Lost => 24,
        }
    }
}

/// One record.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Where its prefix begins.
    pub offset: FileOffset,
    /// The time as written: nanoseconds or ticks, and not always ascending.
    pub raw_time: u64,
    /// Its length, prefix included.
    pub total_size: u32,
    /// What it says.
    pub body: Body<'a>,
}

/// What a record says.
#[derive(Clone, Copy, Debug)]
pub enum Body<'a> {
    /// New code.
    Load(Load<'a>),
    /// Moved code.
    Move(Move),
    /// Source lines.
    DebugInfo(DebugInfo<'a>),
    /// The end.
    Close,
    /// Unwinding data.
    UnwindingInfo(UnwindingInfo<'a>),
    /// Code is gone.
    Unload(Unload),
    /// Inlined code.
    Inline(Inline<'a>),
    /// Where the next function comes from.
    Method(Method<'a>),
    /// An announcement was lost.
    Lost(Lost),
    /// A type this reader does not know, skipped by its size.
    Unknown {
        /// Its number.
        id: u32,
    },
}

/// New code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load<'a> {
    /// The producer's pid in its own pid namespace.
    pub pid: u32,
    /// A thread id, except from Erlang (a truncated `pthread_t`).
    pub tid: u32,
    /// The same as `code_addr`, or 0 from LLVM before 19: never a key.
    pub vma: u64,
    /// The first byte of the code.
    pub code_addr: u64,
    /// Bytes of code.
    pub code_size: u64,
    /// The producer's number for it; not unique.
    pub code_index: u64,
    /// The name without its NUL.
    pub name: &'a [u8],
    /// The code, if the parser was asked for it and the record carries it.
    pub code: Option<&'a [u8]>,
}

/// Moved code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The producer's pid in its own pid namespace.
    pub pid: u32,
    /// A thread id.
    pub tid: u32,
    /// As `new_code_addr`.
    pub vma: u64,
    /// Where the code began.
    pub old_code_addr: u64,
    /// Where it begins now.
    pub new_code_addr: u64,
    /// Bytes of code.
    pub code_size: u64,
    /// The number of the LOAD record.
    pub code_index: u64,
}

/// Unwinding data: an `.eh_frame` and an `.eh_frame_hdr`, in an order that the producers do not agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnwindingInfo<'a> {
    /// Both sections.
    pub bytes: &'a [u8],
    /// The bytes of the `.eh_frame_hdr`, not more than there are in `bytes`.
    pub hdr_size: u64,
    /// As written; means nothing reliable (LLVM writes 0 with valid data, CPython a rounded size of unmapped data).
    pub mapped_size: u64,
}
