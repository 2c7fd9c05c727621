//! Machine code for the demo's functions.

#[cfg(target_arch = "aarch64")]
mod arm;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "aarch64")]
pub(crate) use arm::Assembler;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::Assembler;

use crate::eh_frame::Unwinding;

/// How a function's callers are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frames {
    /// Through the chain of frame pointers, or the unwinding information.
    Pointer,
    /// Through the unwinding information only; the frame pointer's register holds a number.
    CfiOnly,
}

/// A finished function.
pub(crate) struct Function {
    /// Its machine code; position-independent but for the absolute addresses of what it calls.
    pub(crate) code: Vec<u8>,
    /// How to unwind from each of its instructions.
    pub(crate) unwinding: Unwinding,
    /// (offset, line) in ascending order of offset.
    pub(crate) lines: Vec<(usize, i32)>,
}
