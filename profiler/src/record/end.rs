//! How a recording is asked to end.

use std::sync::atomic::{AtomicU8, Ordering};

/// Says to a recording on another thread that it is to end, and how.
#[derive(Debug, Default)]
pub struct End(AtomicU8);

const WANTED: u8 = 1;
const URGENT: u8 = 2;

impl End {
    /// No more samples; what there is is named.
    pub fn want(&self) {
        self.0.fetch_or(WANTED, Ordering::AcqRel);
    }

    /// The same, and what has no name by now is waited for no longer. Returns whether that was said for the first time.
    pub fn hasten(&self) -> bool {
        self.0.fetch_or(WANTED | URGENT, Ordering::AcqRel) & URGENT == 0
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.0.load(Ordering::Acquire) & WANTED != 0
    }

    pub(super) fn is_urgent(&self) -> bool {
        self.0.load(Ordering::Acquire) & URGENT != 0
    }
}
