//! How much is kept of what processes announce.

/// Bounds of one process' announced code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CodeBounds {
    /// Memory of the code map, in bytes.
    pub(super) map_bytes: usize,
    /// Functions with unwind rows.
    pub(super) functions: usize,
}

impl CodeBounds {
    /// Of a recording without end. A large Node or JVM announces 20,000 to 50,000 functions, and 120 bytes of map and
    /// 200 of rows for each.
    pub(super) const ENDLESS: Self = Self { map_bytes: 24 << 20, functions: 1 << 16 };
    /// What every process may have even when all together have too much.
    pub(super) const LEAST: Self = Self { map_bytes: 2 << 20, functions: 1 << 13 };
}

/// Memory that the announced code of all processes may take in a recording without end; beyond it, the process that
/// takes the most takes up no more.
pub(super) const ALL_CODE_BYTES: usize = 40 << 20;
