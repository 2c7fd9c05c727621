//! Generated code that is replaced thousands of times a second: no frame may get a caller that it did not have.
//!
//! It is a test of the tables, too: they change with every tick while they are read 999 times a second, and a reader that
//! saw half of a table would find a wrong caller.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::Result;
use jitprof_tests::{Jitprof, Recording, Scratch, Stack, Target, path_from};

/// Pairs of functions a second.
const PAIRS: &str = "1000";

fn record(slots: &str, further: &[&str]) -> Result<Recording> {
    let scratch = Scratch::new()?;
    let mut command = Command::new(path_from("JITPROF_DEMO")?);
    command.args(["--secs", "60", "--churn", PAIRS, "--slots", slots]).args(further);
    let target = Target::start(command, &scratch)?;
    Jitprof::recording_at(&scratch, "999", ["--pid", target.said("pid")?, "-d", "5s"])?.record()
}

/// What the stacks say about callers, whose names say the truth: `call -> outer_N -> inner_of_N`.
#[derive(Debug, Default)]
struct Callers {
    right: u64,
    /// The stack says that it ends there.
    missing: u64,
    wrong: BTreeMap<String, u64>,
}

impl Callers {
    fn of(recording: &Recording) -> Self {
        let mut callers = Self::default();
        for stack in &recording.folded.stacks {
            callers.add(stack);
        }
        callers
    }

    fn add(&mut self, stack: &Stack) {
        for pair in stack.frames.windows(2) {
            let (caller, callee) = (&pair[0], &pair[1]);
            let truth = match (callee.strip_prefix("inner_of_"), callee.starts_with("outer_")) {
                (Some(number), _) => format!("outer_{number}"),
                (None, true) => "jitdemo::churn::call".to_owned(),
                (None, false) => continue,
            };
            if *caller == truth {
                self.right += stack.count;
            } else if caller.starts_with("[cut: ") {
                self.missing += stack.count;
            } else {
                *self.wrong.entry(format!("{callee} called by {caller}")).or_default() += stack.count;
            }
        }
    }
}

#[track_caller]
fn assert_never_wrong(recording: &Recording) -> Callers {
    recording.assert_named();
    let callers = Callers::of(recording);
    assert!(callers.wrong.is_empty(), "wrong callers: {callers:#?}");
    assert!(callers.right + callers.missing > 200, "{callers:?} are few");
    let published = recording.number("/unwinding/jit_delays");
    assert!(published > 2000, "{published} functions were announced during the recording");
    let (median, longest) =
        (recording.number("/unwinding/jit_delay_median_ms"), recording.number("/unwinding/jit_delay_longest_ms"));
    println!(
        "{} callers right, {} missing; {published} functions in the tables after {median} ms (median), {longest} ms \
         (longest)",
        callers.right, callers.missing
    );
    callers
}

#[test]
fn code_replaced_twice_a_second_never_has_a_wrong_caller() -> Result<()> {
    let recording = record("512", &["--no-frame-pointer"])?;
    let callers = assert_never_wrong(&recording);
    let median = recording.number("/unwinding/jit_delay_median_ms");
    // Half a tick, and what reading takes. The goal is 100 ms; a machine with compilers on all CPUs needs longer.
    assert!(median < 200, "rows were usable {median} ms after their record");
    assert!(callers.right > callers.missing, "{callers:?}: most code is older than a tick");
    Ok(())
}

#[test]
fn code_replaced_before_its_rows_are_known_never_has_a_wrong_caller() -> Result<()> {
    // A pair lives 64 ms, and a tick is 100 ms.
    assert_never_wrong(&record("64", &["--no-frame-pointer"])?);
    Ok(())
}

#[test]
fn code_replaced_with_frame_pointers_never_has_a_wrong_caller() -> Result<()> {
    assert_never_wrong(&record("512", &[])?);
    Ok(())
}
