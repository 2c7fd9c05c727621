//! How a recording is asked to end.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// Says to a recording on another thread that it is to end, and how.
#[derive(Debug, Default)]
pub struct End {
    asked: AtomicU8,
    /// When it took the last sample, whoever wanted that.
    begun: OnceLock<Instant>,
}

const WANTED: u8 = 1;
const URGENT: u8 = 2;

impl End {
    /// No more samples; what there is is named.
    pub fn want(&self) {
        self.asked.fetch_or(WANTED, Ordering::AcqRel);
    }

    /// The same, and what has no name by now is waited for no longer. Returns whether that was said for the first time.
    pub fn hasten(&self) -> bool {
        self.asked.fetch_or(WANTED | URGENT, Ordering::AcqRel) & URGENT == 0
    }

    /// For how long it has been ending, if it has begun to.
    pub fn lasts(&self) -> Option<Duration> {
        self.begun.get().map(Instant::elapsed)
    }

    pub(super) fn begin(&self) {
        self.begun.get_or_init(Instant::now);
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.asked.load(Ordering::Acquire) & WANTED != 0
    }

    pub(super) fn is_urgent(&self) -> bool {
        self.asked.load(Ordering::Acquire) & URGENT != 0
    }
}
