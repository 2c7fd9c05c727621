//! The one line that a failure costs, and the silence after it.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sys;

/// Set by the first failure; nothing is done after it.
static DEAD: AtomicBool = AtomicBool::new(false);

/// Why nothing more is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    what: String,
    errno: i32,
}

impl Failure {
    /// `errno` 0: none.
    pub(crate) fn new(what: impl Into<String>, errno: i32) -> Self {
        Self { what: what.into(), errno }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.what)?;
        if self.errno == 0 { Ok(()) } else { write!(f, ": {}", std::io::Error::from_raw_os_error(self.errno)) }
    }
}

/// Whether something has failed before.
pub(crate) fn is_dead() -> bool {
    DEAD.load(Ordering::Relaxed)
}

/// Says why, once in the life of the process, and ends the work of this library in it.
pub(crate) fn die(failure: &Failure) {
    if !DEAD.swap(true, Ordering::Relaxed) {
        sys::say(format!("jitprof agent: {failure}; generated code is not announced from here on\n").as_bytes());
    }
}
