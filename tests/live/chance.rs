//! Failures that chance can cause, told from those that it cannot.
//!
//! A share has a sampling error, a promise has misses, a busy machine is slow. What fails for such a reason is tried again
//! by `cargo xtask test`; everything else (a wrong name, a sum that does not add up, a panic, what a test left behind) is
//! not. Only this harness makes the difference: a test that asserts something itself fails for good.

use std::fs::OpenOptions;
use std::io::Write;
use std::time::Duration;

/// The file that the words of such failures are written to, a line each; `cargo xtask test` sets and reads it.
const VARIABLE: &str = "JITPROF_CHANCE";
/// The file that what was counted of promises is written to.
const PROMISES: &str = "JITPROF_PROMISES";

/// Fails with words that say what chance may have done.
///
/// # Panics
/// Always.
#[track_caller]
pub(crate) fn fail(words: &str) -> ! {
    note(words);
    panic!("{words}")
}

/// Says that a failure with these words is one that chance can cause. The words have to be part of what the test says when
/// it fails, or they excuse nothing.
pub(crate) fn note(words: &str) {
    append(VARIABLE, words.lines().next().unwrap_or_default());
}

/// Says how often a promise was kept, for the sum over all tests. What stands behind a semicolon explains this one run.
pub(crate) fn promise(what: &str, part: u64, whole: u64) {
    let what = what.split([';', '\n']).next().unwrap_or_default();
    append(PROMISES, &format!("{part}\t{whole}\t{what}"));
}

fn append(variable: &str, line: &str) {
    let Some(path) = std::env::var_os(variable) else { return };
    let written = OpenOptions::new().create(true).append(true).open(path).and_then(|mut file| writeln!(file, "{line}"));
    if let Err(error) = written {
        eprintln!("{variable} cannot be written: {error}");
    }
}

/// Asserts that there are as many samples, frames or events as it takes to tell something.
///
/// # Panics
/// If there are not.
#[track_caller]
pub fn assert_enough(what: &str, count: u64, least: u64) {
    if count < least {
        fail(&format!("{what}: {count} are too few, {least} are needed"));
    }
}

/// Asserts that something took no longer than a machine with other work may take.
///
/// # Panics
/// If it did.
#[track_caller]
pub fn assert_in_time(what: &str, took: Duration, limit: Duration) {
    if took > limit {
        fail(&format!("{what}: after {took:?}, not within {limit:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enough_and_in_time_are_told_from_too_few_and_too_late() {
        assert_enough("samples", 10, 10);
        assert!(std::panic::catch_unwind(|| assert_enough("samples", 9, 10)).is_err());
        assert_in_time("rows", Duration::from_secs(1), Duration::from_secs(1));
        assert!(
            std::panic::catch_unwind(|| assert_in_time("rows", Duration::from_secs(2), Duration::from_secs(1)))
                .is_err()
        );
    }
}
