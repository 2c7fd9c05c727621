//! Waiting for what can be observed.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::chance;

/// How long anything may take before a test fails. Much more than needed: the machine may be busy, and a target gets a
/// fifth of a CPU for its 12 seconds of it. But less than a whole test may take (`LIMIT` in `xtask/src/test/live.rs`), so
/// that what was waited for is said.
pub const WAIT_LIMIT: Duration = Duration::from_secs(75);
/// Pause between two looks.
const POLL: Duration = Duration::from_millis(5);

/// Looks until `look` finds something.
///
/// # Errors
/// It fails, or finds nothing within [`WAIT_LIMIT`].
pub fn wait_until<T>(what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + WAIT_LIMIT;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if Instant::now() >= deadline {
            let words = format!("waited {} s for {what}", WAIT_LIMIT.as_secs());
            chance::note(&words);
            bail!(words);
        }
        std::thread::sleep(POLL);
    }
}
