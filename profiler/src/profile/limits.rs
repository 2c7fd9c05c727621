//! How large a profile may grow, and what is done about the rest.

use std::borrow::Cow;

/// Longest string that a profile keeps, in bytes; see [`shorten`]. Long enough for symbols of templates and
/// generics, and short enough that one task cannot take the whole text table with a few names.
pub const MAX_STRING_BYTES: usize = 4096;

/// Upper bounds of a profile's tables.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Memory of distinct names, files and paths, in bytes.
    pub string_bytes: usize,
    /// Distinct frames, and distinct modules.
    pub frames: usize,
    /// Distinct stack prefixes.
    pub stacks: usize,
    /// Distinct tasks.
    pub tasks: usize,
    /// Distinct (time bucket, stack, task).
    pub rows: usize,
    /// Of names, frames and stacks, whoever's samples they are of leaves room for the others' (see [`Shares`](super::Shares)).
    pub in_shares: bool,
}

impl Limits {
    /// Those of a recording of processes that do not trust each other.
    pub fn in_shares() -> Self {
        Self { in_shares: true, ..Self::default() }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            string_bytes: 64 << 20,
            frames: 1 << 19,
            stacks: 1 << 21,
            tasks: 1 << 16,
            rows: 1 << 21,
            in_shares: false,
        }
    }
}

/// How often something did not fit. Every event is one look-up that was answered with a note instead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Overflow {
    /// Strings replaced by `[name table full]`.
    pub strings: u64,
    /// Frames whose module was left out because the table was full.
    pub modules: u64,
    /// Frames replaced by `[profile full]`.
    pub frames: u64,
    /// Stacks replaced by `[profile full]`.
    pub stacks: u64,
    /// Tasks replaced by one that stands for all of them.
    pub tasks: u64,
    /// Additions whose row was replaced by the `[profile full]` row.
    pub rows: u64,
}

impl Overflow {
    /// Whether nothing was left out.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Truncates a text to at most `max_bytes` bytes at a character boundary. A truncated text ends in `…#` and eight hex digits of
/// the whole text's hash, so that two long names with the same beginning stay two names.
///
/// `max_bytes` must be at least 16.
pub fn shorten(text: &str, max_bytes: usize) -> Cow<'_, str> {
    const MARK_BYTES: usize = "…#".len() + 8;
    assert!(max_bytes >= 16, "a shortened text needs room for its mark");
    if text.len() <= max_bytes {
        return Cow::Borrowed(text);
    }
    let kept = text.floor_char_boundary(max_bytes - MARK_BYTES);
    Cow::Owned(format!("{}…#{:08x}", &text[..kept], fnv1a(text.as_bytes()) >> 32))
}

/// FNV-1a, because the hash is written into outputs and must not change between runs or versions of a hasher.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
