//! CPython without any flag where programs are not one thread with one stack: asyncio with its executor, and interpreters
//! within others.

use std::process::Command;

use anyhow::{Context, Result};
use jitprof_tests::{
    Jitprof, Recording, Scratch, Share, Stack, Target, assert_at_least, assert_at_least_of_few, assert_enough,
    assert_share, path_from, target_file,
};

use super::python_bare::{FREQUENCY, PROMISED, assert_bare, assert_placed, chain, function};

/// What stands for the functions of a loop whose list samples do not have.
const UNLISTED: &str = "[interpreted functions that were not looked at]";
const LOOP: &str = "_PyEval_EvalFrameDefault";

#[test]
fn a_service_has_its_tasks_its_executor_and_what_handlers_go_through() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut command = Command::new(path_from("JITPROF_PYTHON")?);
    command.arg(target_file("python/service.py")?).arg("600");
    let target = Target::start(command, &scratch)?;
    let words = ["--pid", target.said("pid")?];
    let recording = Jitprof::recording_at(&scratch, FREQUENCY, words)?.record_cpu(target.pid()?, 6)?;
    assert_bare(&recording);
    assert_share("leaf_hot", recording.folded.share("leaf_hot", "leaf_cold"), 0.75);
    let asyncio = ["BaseEventLoop.run_until_complete", "BaseEventLoop.run_forever", "BaseEventLoop._run_once"];
    let begun = ["_start", "<module>", "main", "run", "Runner.run"];
    let handled = [&begun[..], &asyncio, &["Handle._run", LOOP, "timed.<locals>.within", "handle"]].concat();
    let hot = [&handled[..], &[LOOP, "rows", "leaf_hot"]].concat();
    assert_at_least_of_few("generators in tasks", chain(&recording, &hot), PROMISED);
    let flushed = [&handled[..], &["Session.__exit__", "flush", "leaf_cold"]].concat();
    let thread = ["Thread._bootstrap", "Thread._bootstrap_inner", "Thread.run", "_worker", "_WorkItem.run"];
    let rendered = [&thread[..], &["render", "leaf_cold"]].concat();
    let [flushed, rendered] = [flushed, rendered].map(|names| chain(&recording, &names));
    assert_enough("in sessions", flushed.part, 100);
    assert_enough("in the executor", rendered.part, 100);
    let cold = Share { part: flushed.part + rendered.part, whole: flushed.whole };
    assert_at_least_of_few("sessions and the executor", cold, PROMISED);
    Ok(())
}

/// The functions of the innermost interpreter are there, and the loop of the one that has called it says that its are not.
#[track_caller]
fn assert_inner(version: &str, recording: &Recording) {
    assert_share(version, recording.folded.share("leaf_hot", "leaf_cold"), 0.75);
    let outer = ["_start", LOOP, UNLISTED, LOOP, "<module>", "main", "outer"];
    let chains: [&[&str]; 2] = [&["middle", "leaf_hot"], &["through_c", LOOP, "by_c", "leaf_cold"]];
    let chains = chains.map(|inner| chain(recording, &[&outer[..], inner].concat()));
    assert_at_least(&format!("{version}: chains"), chains.into_iter().sum(), PROMISED);
}

/// Those of the outermost one are there, and the other's loops say that theirs are not.
#[track_caller]
fn assert_outer(version: &str, recording: &Recording) {
    let names = ["_start", LOOP, "<module>", "serve", LOOP, UNLISTED];
    assert_at_least(&format!("{version}: chains"), chain(recording, &names), PROMISED);
    assert!(!recording.folded.stacks.iter().any(|stack| stack.has("leaf_hot")), "{version}: its list is not there");
}

#[test]
fn interpreters_within_others_have_their_functions_in_their_own_loops_or_it_is_said() -> Result<()> {
    let pythons = std::env::var_os("JITPROF_PYTHONS").context("`cargo xtask prepare python` finds them")?;
    for python in std::env::split_paths(&pythons) {
        let scratch = Scratch::new()?;
        let mut command = Command::new(&python);
        command.arg(target_file("python/subinterpreters.py")?).arg("600");
        let target = Target::start(command, &scratch)?;
        let words = ["--pid", target.said("pid")?];
        let recording = Jitprof::recording_at(&scratch, FREQUENCY, words)?.record_cpu(target.pid()?, 5)?;
        let minor: u32 = target.said("minor")?.parse()?;
        let version = format!("3.{minor}");
        assert_placed(&recording);
        // Until 3.12 a thread was found by the state that it had first.
        if minor < 12 {
            assert_outer(&version, &recording);
        } else {
            assert_inner(&version, &recording);
        }
        let folded = &recording.folded;
        let is_said = |stack: &Stack| stack.frames.iter().any(|frame| function(frame) == UNLISTED);
        let said = Share { part: folded.count(is_said), whole: folded.total() };
        assert_at_least(&format!("{version}: what the other interpreter runs is said"), said, PROMISED);
        let missing = recording.number("/jit/unnamed/the frames of its interpreter were not taken along");
        assert!(missing >= said.part, "{version}: {missing} loops in {} stacks", said.part);
    }
    Ok(())
}
