//! Generated code that is replaced thousands of times a second: no frame may get a caller that it did not have.
//!
//! It is a test of the tables, too: they change with every tick while they are read 999 times a second, and a reader that
//! saw half of a table would find a wrong caller.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;
use jitprof_tests::{
    Jitprof, Recording, Scratch, Share, Stack, Target, assert_at_least, assert_enough, assert_in_time, path_from,
};

/// Pairs of functions a second.
const PAIRS: u64 = 1000;
/// How often rows of new functions are published.
const TICK: Duration = Duration::from_millis(100);

/// A recording, and what it was up against.
struct Churned {
    recording: Recording,
    /// Pairs that live at a time.
    slots: u64,
    /// How much longer than meant a turn of jitprof's took, because it waited for a CPU.
    behind: Duration,
}

fn record(slots: u64, further: &[&str]) -> Result<Churned> {
    let scratch = Scratch::new()?;
    let mut command = Command::new(path_from("JITPROF_DEMO")?);
    command.args(["--secs", "600", "--churn", &PAIRS.to_string(), "--slots", &slots.to_string()]).args(further);
    let target = Target::start(command, &scratch)?;
    let mut running = Jitprof::recording_at(&scratch, "999", ["--pid", target.said("pid")?])?.spawn()?;
    let start = Instant::now();
    running.wait_for_samples(target.pid()?, 3000)?;
    let turns = u32::try_from(start.elapsed().as_millis() / TICK.as_millis())?;
    let behind = running.waited_for_cpu()? / turns.max(1);
    running.signal(libc::SIGINT)?;
    Ok(Churned { recording: running.record()?, slots, behind })
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
fn assert_never_wrong(Churned { recording, slots, behind }: &Churned) -> Callers {
    recording.assert_named();
    let callers = Callers::of(recording);
    assert!(callers.wrong.is_empty(), "wrong callers: {callers:#?}");
    assert_enough("frames of replaced code", callers.right + callers.missing, 200);
    let published = recording.number("/unwinding/jit_delays");
    assert_enough("functions announced meanwhile, so that each place was used again", published, 2 * slots);
    let (median, longest) =
        (recording.number("/unwinding/jit_delay_median_ms"), recording.number("/unwinding/jit_delay_longest_ms"));
    println!(
        "{} callers right, {} missing; {published} functions in the tables after {median} ms (median), {longest} ms \
         (longest); {behind:?} of each turn waited for a CPU",
        callers.right, callers.missing
    );
    callers
}

/// Walks that went by the rows of what was there before are made anew from snapshots. Those for which there was no room,
/// because jitprof waited for a CPU, are cut, and so are those from before it saw that code is replaced.
#[track_caller]
fn assert_nearly_all_right(Churned { recording, .. }: &Churned, callers: &Callers) {
    let refused = recording.number("/deferred/refused_by_rate") + recording.number("/deferred/refused_for_memory");
    let missing = callers.missing.saturating_sub(refused);
    let share = Share { part: callers.right, whole: callers.right + missing };
    assert_at_least("right callers, of those with a snapshot", share, 0.97);
    assert!(refused < recording.folded.total() / 2, "{refused} snapshots refused, {callers:?}");
}

#[test]
fn code_replaced_twice_a_second_never_has_a_wrong_caller() -> Result<()> {
    let churned = record(512, &["--no-frame-pointer"])?;
    let callers = assert_never_wrong(&churned);
    let median = Duration::from_millis(churned.recording.number("/unwinding/jit_delay_median_ms"));
    // Half a tick, and what reading takes; the goal is a tick. What jitprof waits for a CPU is not its doing.
    let allowed = 2 * TICK + 2 * churned.behind;
    assert_in_time("rows usable after their record", median, allowed);
    assert_nearly_all_right(&churned, &callers);
    Ok(())
}

#[test]
fn code_replaced_before_its_rows_are_known_never_has_a_wrong_caller() -> Result<()> {
    // A pair lives 64 ms, and a tick is 100 ms.
    let churned = record(64, &["--no-frame-pointer"])?;
    let callers = assert_never_wrong(&churned);
    assert_nearly_all_right(&churned, &callers);
    Ok(())
}

#[test]
fn code_replaced_with_frame_pointers_never_has_a_wrong_caller() -> Result<()> {
    assert_never_wrong(&record(512, &[])?);
    Ok(())
}
