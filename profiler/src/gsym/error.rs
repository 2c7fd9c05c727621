//! What is wrong with a GSYM file, and where.

use std::io;

/// A place in a GSYM file that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("at offset {offset:#x}, {field}: {problem}")]
pub struct GsymError {
    /// The field's offset from the start of the file.
    pub offset: u64,
    /// The field's name in the format's description.
    pub field: &'static str,
    /// What is wrong there.
    pub problem: Problem,
}

/// What is wrong with a field.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The file, or the part that the field belongs to, ends before the field does.
    #[error("{needed} bytes are needed and {left} are left")]
    Truncated {
        /// Bytes of the field.
        needed: u64,
        /// Bytes that are there.
        left: u64,
    },
    /// A value that cannot be.
    #[error("{value:#x} {why}")]
    Value {
        /// The value as read.
        value: u64,
        /// What is wrong with it, as the end of a sentence.
        why: &'static str,
    },
    /// The file cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl GsymError {
    pub(super) fn value(offset: u64, field: &'static str, value: u64, why: &'static str) -> Self {
        Self { offset, field, problem: Problem::Value { value, why } }
    }

    pub(super) fn truncated(offset: u64, field: &'static str, needed: u64, left: u64) -> Self {
        Self { offset, field, problem: Problem::Truncated { needed, left } }
    }
}
