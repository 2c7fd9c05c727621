//! CPython `-X perf_jit`: names that the runtime keeps in its stdio buffer.
//!
//! CPython's own code keeps no frame pointers, and its generated code (a trampoline for each function, around the
//! interpreter) is hardly ever innermost: whole stacks take the rows of the interpreter and of every trampoline.

use std::os::unix::fs::MetadataExt;
use std::process::Command;

use anyhow::Result;
use jitprof_tests::{
    Jitprof, Leftover, Load, Recording, Scratch, Share, Stack, Target, assert_at_least, assert_share, loads, path_from,
    target_file,
};

/// The dump of a process: CPython writes to /tmp, whatever is asked for.
fn dump_of(target: &Target) -> Result<Leftover> {
    Ok(Leftover::dump(target.pid()?))
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
        Share { part, whole }
    };
    let chains = [chain("middle", "leaf_hot"), chain("side_cold", "leaf_cold")];
    assert_at_least("chains", chains.into_iter().sum(), 0.995);
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
    let mut target = Target::start(python("600")?, &scratch)?;
    let dump = dump_of(&target)?;
    let pid = target.pid()?;
    let recording = Jitprof::recording(&scratch, ["--pid", target.said("pid")?])?.record_cpu(target.pid()?, 3)?;
    let written = usize::try_from(std::fs::metadata(dump.path())?.len())?;
    target.interrupt()?;
    target.wait()?;

    let all = loads(dump.path())?;
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
    let dump = dump_of(&target)?;
    let recording = Jitprof::recording(&scratch, ["--pid", target.said("pid")?, "--no-peek"])?.record()?;
    target.finish()?;
    let all = loads(dump.path())?;
    assert_announced(&all);
    assert_eq!(functions(&recording, target.pid()?), u64::try_from(all.len()).ok(), "all functions are known");
    Ok(())
}

#[test]
fn stacks_are_whole_and_shares_are_true() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = Target::start(python("600")?, &scratch)?;
    let dump = dump_of(&target)?;
    let recording = Jitprof::recording(&scratch, ["--pid", target.said("pid")?])?.record_cpu(target.pid()?, 3)?;
    assert_burns(&recording);
    drop((target, dump));
    Ok(())
}

#[test]
fn what_a_perf_map_names_is_walked_by_rows_of_its_code_in_memory() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut command = Command::new(path_from("JITPROF_PYTHON")?);
    command.args(["-X", "perf"]).arg(target_file("python/burn.py")?).arg("600");
    let target = Target::start(command, &scratch)?;
    let map = Leftover::perf_map(target.pid()?);
    let recording = Jitprof::recording(&scratch, ["--pid", target.said("pid")?])?.record_cpu(target.pid()?, 3)?;
    assert_burns(&recording);
    assert!(recording.number("/learned/listed_with_rows") >= 5, "one trampoline for each of its functions");
    assert_eq!(recording.number("/learned/listed_without_rows"), 0);
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
    let dump = Leftover::dump(u32::try_from(pid)?);
    assert_at_least("named frames", recording.named_frames(), 0.995);
    // Start-up has the dynamic linker's resolver, whose rule rows cannot express.
    assert_at_least("complete stacks", recording.complete(), 0.99);
    assert_share("leaf_hot", recording.folded.share("leaf_hot", "leaf_cold"), 0.75);
    assert!(recording.number("/deferred/finished_by_rows") > 0, "the interpreter runs before its rows are built");
    drop(dump);
    Ok(())
}

/// Workers that were forked before the recording began; `whom` of the ready line is recorded.
fn record_workers(flag: &str, whom: &str) -> Result<()> {
    let scratch = Scratch::new()?;
    let mut command = Command::new(path_from("JITPROF_PYTHON")?);
    command.args(["-X", flag]).arg(target_file("python/prefork.py")?).arg("600");
    let target = Target::start(command, &scratch)?;
    let pids = [target.pid()?, target.said("child")?.parse()?, target.said("other")?.parse()?];
    let leftovers = pids.map(|pid| (Leftover::dump(pid), Leftover::perf_map(pid)));
    let recording = Jitprof::recording(&scratch, ["--pid", target.said(whom)?])?.record_cpu(pids[1], 3)?;
    assert_at_least("complete stacks", recording.complete(), 0.995);
    assert_at_least("named frames", recording.named_frames(), 0.995);
    let folded = &recording.folded;
    assert_share("leaf_hot", folded.share("leaf_hot", "leaf_cold"), 0.75);
    // What runs since before the fork is the parent's code, what was called since is the worker's.
    let whole = folded.count(|stack| stack.has("leaf_hot"));
    let chain = ["_start", "<module>", "serve", "work", "main", "outer", "middle", "leaf_hot"];
    let part = folded.count(|stack| in_order(stack, &chain));
    assert_at_least("the chain through the fork", Share { part, whole }, 0.995);
    drop((target, leftovers));
    Ok(())
}

#[test]
fn forked_workers_have_their_parents_frames() -> Result<()> {
    record_workers("perf_jit", "pid")
}

#[test]
fn a_forked_worker_alone_has_its_parents_frames() -> Result<()> {
    record_workers("perf_jit", "child")
}

#[test]
fn forked_workers_that_write_perf_maps_have_their_parents_frames() -> Result<()> {
    record_workers("perf", "pid")
}

/// Whom a program becomes.
const USER: u32 = 65534;

/// A program that becomes another user and begins a map then, and the map.
fn as_another_user(scratch: &Scratch, more: &[&str]) -> Result<(Target, Leftover)> {
    let mut command = Command::new(path_from("JITPROF_PYTHON")?);
    command.arg(target_file("python/setuid.py")?).args([&*USER.to_string(), "600"]).args(more);
    let target = Target::start(command, scratch)?;
    let map = Leftover::perf_map(target.pid()?);
    Ok((target, map))
}

/// Who has become another user begins a map that is that user's.
#[test]
fn a_map_that_is_begun_as_another_user_is_read() -> Result<()> {
    let scratch = Scratch::new()?;
    let (target, map) = as_another_user(&scratch, &[])?;
    let words = ["--pid", target.said("pid")?, "--no-read-runtime"];
    let recording = Jitprof::recording(&scratch, words)?.record_cpu(target.pid()?, 4)?;
    assert_eq!(std::fs::metadata(map.path())?.uid(), USER);
    let named =
        Share { part: recording.folded.count(|stack| in_order(stack, &["as_other"])), whole: recording.folded.total() };
    println!("{named:?} are of functions that were announced as the other user");
    assert!(named.fraction() > 0.5, "{}", recording.folded.largest(10));
    Ok(())
}

/// Who executes another program as that user goes on in the map, and what was announced before is still what ran then.
#[test]
fn a_map_is_gone_on_with_by_what_another_user_executes() -> Result<()> {
    let scratch = Scratch::new()?;
    let (target, map) = as_another_user(&scratch, &["exec"])?;
    let words = ["--pid", target.said("pid")?, "--no-read-runtime"];
    // A second as root, three as the other user, and four of what that one has executed.
    let recording = Jitprof::recording(&scratch, words)?.record_cpu(target.pid()?, 8)?;
    assert_eq!(std::fs::metadata(map.path())?.uid(), USER);
    let (folded, whole) = (&recording.folded, recording.folded.total());
    let [before, after] =
        ["as_other", "executed"].map(|name| Share { part: folded.count(|stack| in_order(stack, &[name])), whole });
    println!("{before:?} are of what was announced before, {after:?} after it has executed itself");
    assert!(before.fraction() > 0.1 && after.fraction() > 0.35, "{}", folded.largest(10));
    assert_eq!(folded.count(|stack| stack.has("as_other") && stack.has("executed")), 0, "{}", folded.largest(10));
    Ok(())
}

#[test]
fn without_its_flag_it_is_told_the_flag_where_its_memory_is_not_read() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut command = Command::new(path_from("JITPROF_PYTHON")?);
    command.arg(target_file("python/burn.py")?).arg("600");
    let target = Target::start(command, &scratch)?;
    let words = ["--pid", target.said("pid")?, "--no-read-runtime"];
    let recording = Jitprof::recording(&scratch, words)?.record_cpu(target.pid()?, 1)?;
    let advice = recording.account["advice"].as_array().cloned().unwrap_or_default();
    assert_eq!(advice.len(), 1, "{advice:?}");
    assert!(advice[0]["advice"].as_str().is_some_and(|text| text.contains("-X perf_jit")), "{advice:?}");
    let interpreted = advice[0]["interpreted_samples"].as_u64().unwrap_or_default();
    assert_at_least("in the loop", Share { part: interpreted, whole: recording.number("/samples/delivered") }, 0.9);
    Ok(())
}

#[test]
fn a_cut_stack_says_why() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = Target::start(python("600")?, &scratch)?;
    let dump = dump_of(&target)?;
    let recording = Jitprof::recording(&scratch, ["--pid", target.said("pid")?])?.record_cpu(target.pid()?, 2)?;
    let shown = recording.folded.count(jitprof_tests::Stack::is_cut);
    assert_eq!(shown, recording.sum("/stacks/cut"), "each cut stack has a frame that says so");
    drop((target, dump));
    Ok(())
}
