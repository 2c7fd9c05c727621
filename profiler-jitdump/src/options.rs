//! What a reader is told about the process whose dump it reads.

use std::ops::Range;
use std::sync::Arc;

use crate::code::CodeOrigin;

use super::clock::ClockContext;

/// What the reader keeps, and what it knows of the process.
#[derive(Clone, Debug)]
pub struct ReaderOptions {
    /// Keep the code bytes of every function (up to [`MAX_KEPT_CODE`](super::MAX_KEPT_CODE) each) in its event.
    pub keep_code: bool,
    /// The process' pid in its innermost pid namespace. Records of another pid are dropped and counted: a recycled
    /// pid's file that is appended to, or a forked child that writes into its parent's file.
    pub namespace_pid: Option<u32>,
    /// Memory for code that the process has in common with others (php-fpm's workers compile for each other): records of
    /// code in it count whoever has written them.
    pub shared_code: Arc<[Range<u64>]>,
    /// What times can be true. Without it, times are taken as written and nothing is dropped as stale.
    pub clock: Option<ClockContext>,
    /// The debug-address bias, when the caller knows it: 0x40 for a dump in a directory named `llvm-IR-jit-*`.
    /// Without it the bias is inferred from the dump.
    pub debug_bias: Option<u64>,
    /// The most bytes that one [`DumpTail::poll`](super::DumpTail::poll) reads, so that a huge dump is read in
    /// turns with the samples.
    pub poll_budget: u64,
    /// The origin written into each event.
    pub origin: CodeOrigin,
}

impl ReaderOptions {
    /// Whether the code at an address is of more processes than one.
    pub fn is_shared(&self, address: u64) -> bool {
        self.shared_code.iter().any(|range| range.contains(&address))
    }
}

impl Default for ReaderOptions {
    fn default() -> Self {
        Self {
            keep_code: false,
            namespace_pid: None,
            shared_code: Arc::default(),
            clock: None,
            debug_bias: None,
            poll_budget: 8 << 20,
            origin: CodeOrigin::Jitdump,
        }
    }
}
