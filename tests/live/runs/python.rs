//! CPython `-X perf_jit`: names that the runtime keeps in its stdio buffer.
//!
//! CPython's own code keeps no frame pointers, and its generated code (a trampoline for each function, around the
//! interpreter) is hardly ever innermost: whole stacks take the rows of the interpreter and of every trampoline.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use jitprof_tests::{
    Jitprof, Load, Recording, Scratch, Share, Stack, Target, assert_at_least, assert_share, loads, path_from,
    target_file,
};

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

/// Every stack complete, every function under its caller, and the shares that burn.py has.
#[track_caller]
fn assert_burns(recording: &Recording) {
    assert_at_least("complete stacks", recording.complete(), 0.995);
    assert_at_least("named frames", recording.named_frames(), 0.995);
    let folded = &recording.folded;
    assert_share("leaf_hot", folded.share("leaf_hot", "leaf_cold"), 0.75);
    let chain = |caller: &str, leaf: &str| {
        let whole = folded.count(|stack| stack.has(leaf));
        let part = folded.count(|stack| in_order(stack, &["_start", "<module>", "main", "outer", caller, leaf]));
        assert_at_least(leaf, Share { part, whole }, 0.995);
    };
    chain("middle", "leaf_hot");
    chain("side_cold", "leaf_cold");
}

/// Whether these frames follow each other, with the interpreter's between them.
fn in_order(stack: &Stack, names: &[&str]) -> bool {
    let mut frames = stack.frames.iter().map(|frame| frame.trim_start_matches('~'));
    names.iter().all(|name| frames.any(|frame| frame.split(" (").next() == Some(name)))
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
fn stacks_are_whole_and_shares_are_true() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = Target::start(python("60")?, &scratch)?;
    let dump = Dump::of(&target)?;
    let recording = Jitprof::recording(&scratch, ["--pid", target.said("pid")?, "-d", "3s"])?.record()?;
    assert_burns(&recording);
    drop((target, dump));
    Ok(())
}

#[test]
fn what_a_perf_map_names_is_walked_by_rows_of_its_code_in_memory() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut command = Command::new(path_from("JITPROF_PYTHON")?);
    command.args(["-X", "perf"]).arg(target_file("python/burn.py")?).arg("60");
    let target = Target::start(command, &scratch)?;
    let map = Dump(PathBuf::from(format!("/tmp/perf-{}.map", target.pid()?)));
    let recording = Jitprof::recording(&scratch, ["--pid", target.said("pid")?, "-d", "3s"])?.record()?;
    assert_burns(&recording);
    assert!(recording.number("/copies/listed_with_rows") >= 5, "one trampoline for each of its functions");
    assert_eq!(recording.number("/copies/listed_without_rows"), 0);
    drop((target, map));
    Ok(())
}

#[test]
fn stacks_are_whole_from_the_first_instruction() -> Result<()> {
    let scratch = Scratch::new()?;
    let launched = python("4")?;
    let mut jitprof = Jitprof::recording(&scratch, ["--"])?;
    jitprof.command().arg(launched.get_program()).args(launched.get_args());
    let recording = jitprof.record()?;
    let pid = recording.account["sources"][0]["pid"].as_u64().unwrap_or_default();
    let dump = Dump(PathBuf::from(format!("/tmp/jit-{pid}.dump")));
    assert_at_least("named frames", recording.named_frames(), 0.995);
    // Start-up has the dynamic linker's resolver, whose rule rows cannot express.
    assert_at_least("complete stacks", recording.complete(), 0.99);
    assert_share("leaf_hot", recording.folded.share("leaf_hot", "leaf_cold"), 0.75);
    assert!(recording.number("/late/finished_by_rows") > 0, "the interpreter runs before its rows are built");
    drop(dump);
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
