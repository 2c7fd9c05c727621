//! Harness of the live tests: starts a target, waits until it says that it is ready, lets jitprof record it, and reads
//! what jitprof wrote.
//!
//! Nothing here sleeps for a guessed time: every wait is for something observable, with a [limit](WAIT_LIMIT) after
//! which the test fails. A test that fails prints jitprof's own words, its account and its largest stacks, because
//! [`Recording`] says them when it is dropped by a panic.

mod chance;
mod clock;
mod compiled;
mod container;
mod continuous;
mod control;
mod dump;
mod firefox;
mod folded;
mod pprof;
mod profiler;
mod receiver;
mod recording;
mod scratch;
mod share;
mod target;
mod truth;
mod verified;
mod wait;

use std::path::PathBuf;

use anyhow::{Context, Result};

pub use chance::{assert_enough, assert_in_time};
pub use clock::unix_minus_monotonic_ns;
pub use compiled::compile;
pub use container::container;
pub use continuous::{Continuous, Ended};
pub use control::ControlGroup;
pub use dump::{Leftover, Load, loads};
pub use firefox::{TimedSample, timed_samples};
pub use folded::{Folded, Stack};
pub use pprof::Pprof;
pub use profiler::{Finished, Jitprof, Running};
pub use receiver::{Kept, Manner, Receiver, Request, free_address, get};
pub use recording::Recording;
pub use scratch::Scratch;
pub use share::{Share, WeightedShare, assert_at_least, assert_at_least_of_few, assert_count, assert_share};
pub use target::Target;
pub use truth::{Agreement, Truth};
pub use verified::{VerifiedProgram, verified_programs};
pub use wait::{WAIT_LIMIT, wait_until};

/// The path in an environment variable that `cargo xtask test` sets.
///
/// # Errors
/// It is not set; the error says what to run.
pub fn path_from(variable: &str) -> Result<PathBuf> {
    std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from).with_context(|| {
        format!("{variable} is not set; run `cargo xtask test`, or set what `cargo xtask prepare` prints")
    })
}

/// A file among the targets, such as `node/burn.js`.
///
/// # Errors
/// Like [`path_from`].
pub fn target_file(name: &str) -> Result<PathBuf> {
    Ok(path_from("JITPROF_TARGETS")?.join(name))
}
