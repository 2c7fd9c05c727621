//! What a sample must bring along, so that a reader can name a frame afterwards.

use jitprof_common::units::Avma;

/// Words that are to be taken from each frame whose address is in a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureSpec {
    /// From here...
    pub start: Avma,
    /// ...to here, where it is no longer.
    pub end: Avma,
    /// The words, in the order in which the reader expects them.
    pub words: Vec<Take>,
}

/// A word to be taken: of a register, or of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Take {
    /// Where to begin.
    pub base: Base,
    /// The way from there: at each step so many bytes are added and what lies there is read. Without a step it is the
    /// base itself.
    pub steps: Vec<i32>,
}

/// Where the way to a word begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The frame pointer of the frame.
    FramePointer,
    /// The stack pointer of the frame.
    StackPointer,
    /// A register by its number in DWARF. Only the frame that was interrupted has it.
    Register(u8),
}
