//! What became of the call frame information of one file.

use serde::Serialize;

/// Counts of one `.eh_frame` or `.debug_frame`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RowStats {
    /// Bytes of the section.
    pub section_bytes: u64,
    /// Entries of functions that were read to their end.
    pub fdes: u64,
    /// Encoded rows in the table.
    pub rows: u64,
    /// Entries that make no sense, or whose common part does not.
    pub corrupt: u64,
    /// Entries for addresses that no executable segment has: functions that the linker dropped.
    pub outside_code: u64,
    /// Entries beyond the limits: 2 Mi functions, 4 Mi rows, as many instructions as the section has bytes.
    pub over_limit: u64,
    /// Whether the table ends early because it was full.
    pub cut: bool,
    /// Bytes of code without rows that were not searched for what signal handlers return to.
    pub unsearched: u64,
    /// Rows that the BPF program cannot use.
    pub unsupported: Unsupported,
}

/// Rows of kind [`Unsupported`](jitprof_common::row::CfaKind::Unsupported) by reason, as they are in the section:
/// before equal neighbours are joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Unsupported {
    /// The CFA is an offset from a register other than the stack and the frame pointer.
    pub cfa_register: u64,
    /// The CFA is an expression that is not among those known.
    pub cfa_expression: u64,
    /// An offset is no multiple of 8 or beyond 256 KiB.
    pub offset: u64,
    /// The return address is not where rows can say: on x86-64 not at `cfa - 8`, on AArch64 in another register.
    pub return_address: u64,
    /// The caller's frame pointer is in another register or the result of an unknown expression.
    pub frame_pointer: u64,
}
