//! CPython `-X perf_jit`: names that the runtime keeps in its stdio buffer.
//!
//! CPython's own code keeps no frame pointers, so that its stacks are cut after the innermost frame and generated code,
//! which is a few instructions around the interpreter, is hardly ever innermost. What is known of it is checked by
//! counting: every function that the finished dump has must have been known when the recording ended.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use jitprof_tests::{Jitprof, Load, Recording, Scratch, Target, loads, path_from, target_file};

/// The dump of a process, which is removed with the value: CPython writes to /tmp, whatever is asked for.
struct Dump(PathBuf);

impl Dump {
    fn of(target: &Target) -> Result<Self> {
        Ok(Self(PathBuf::from(format!("/tmp/jit-{}.dump", target.pid()?))))
    }
}

impl Drop for Dump {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            eprintln!("{} not removed: {error}", self.0.display());
        }
    }
}

fn python(seconds: &str) -> Result<Command> {
    let mut command = Command::new(path_from("JITPROF_PYTHON")?);
    command.args(["-X", "perf_jit"]).arg(target_file("python/burn.py")?).arg(seconds);
    Ok(command)
}

/// The functions that burn.py spends its time in.
const HOT: [&str; 5] = ["py::leaf_hot:", "py::leaf_cold:", "py::middle:", "py::side_cold:", "py::outer:"];

#[track_caller]
fn assert_announced(loads: &[Load]) {
    for name in HOT {
        assert!(loads.iter().any(|load| load.name.starts_with(name)), "{name} is in the finished dump");
    }
}

fn functions(recording: &Recording, pid: u32) -> Option<u64> {
    recording.source(pid)["functions"].as_u64()
}

#[test]
fn names_that_are_not_written_yet_are_known_while_it_runs() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut target = Target::start(python("60")?, &scratch)?;
    let dump = Dump::of(&target)?;
    let pid = target.pid()?;
    let recording = Jitprof::recording(&scratch, ["--pid", target.said("pid")?, "-d", "3s"])?.record()?;
    let written = usize::try_from(std::fs::metadata(&dump.0)?.len())?;
    target.interrupt()?;
    target.wait()?;

    let all = loads(&dump.0)?;
    let unwritten: Vec<Load> = all.iter().filter(|load| load.end > written).cloned().collect();
    assert_announced(&unwritten);
    // What it runs only at its end is announced after the recording.
    let end_ns = recording_end(&all, written);
    let known = all.iter().filter(|load| load.time_ns <= end_ns).count();
    assert_eq!(
        functions(&recording, pid),
        u64::try_from(known).ok(),
        "all functions are known, {} by peeking",
        unwritten.len()
    );
    let verified = recording.source(pid)["dumps"][0]["peek"]["verified_records"].as_u64();
    assert!(verified > Some(0), "records verified in memory: {verified:?}");
    Ok(())
}

/// When the last function before the measured loop was announced: `main` itself, which runs until the end.
fn recording_end(loads: &[Load], written: usize) -> u64 {
    loads
        .iter()
        .filter(|load| load.end > written && load.name.starts_with("py::main:"))
        .map(|load| load.time_ns)
        .max()
        .unwrap_or(0)
}

#[test]
fn names_that_are_written_at_exit_are_read_after_exit() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut target = Target::start(python("3")?, &scratch)?;
    let dump = Dump::of(&target)?;
    let recording = Jitprof::recording(&scratch, ["--pid", target.said("pid")?, "--no-peek"])?.record()?;
    target.finish()?;
    let all = loads(&dump.0)?;
    assert_announced(&all);
    assert_eq!(functions(&recording, target.pid()?), u64::try_from(all.len()).ok(), "all functions are known");
    Ok(())
}

#[test]
fn a_cut_stack_says_why() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = Target::start(python("60")?, &scratch)?;
    let dump = Dump::of(&target)?;
    let recording = Jitprof::recording(&scratch, ["--pid", target.said("pid")?, "-d", "2s"])?.record()?;
    let shown = recording.folded.count(jitprof_tests::Stack::is_cut);
    assert_eq!(shown, recording.sum("/stacks/cut"), "each cut stack has a frame that says so");
    drop((target, dump));
    Ok(())
}
