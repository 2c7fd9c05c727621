//! Erlang: named by its emulator's own tables, or by what it announces. With `+JPperf true` its generated code keeps frame
//! pointers.
//!
//! A complete stack is one of an Erlang process: it ends at the process' first function, not at the thread's.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use jitprof_tests::{
    Jitprof, Recording, Scratch, Share, Stack, Target, assert_at_least, assert_at_least_of_few, assert_enough,
    assert_share, compile, path_from, target_file,
};

fn record(flags: &[&str]) -> Result<Recording> {
    record_run("burn", flags)
}

fn record_with(flags: &[&str], how: &[&str]) -> Result<Recording> {
    record_module("burn", flags, how)
}

fn record_run(module: &str, flags: &[&str]) -> Result<Recording> {
    record_module(module, flags, &[])
}

/// Records a module's `main`.
fn record_module(module: &str, flags: &[&str], how: &[&str]) -> Result<Recording> {
    record_module_in(&Scratch::new()?, module, flags, how)
}

/// The same, with what lies in its directory.
fn record_module_in(scratch: &Scratch, module: &str, flags: &[&str], how: &[&str]) -> Result<Recording> {
    let sources = ["burn", "server", "builtins", "natives"].map(|name| target_file(&format!("erlang/{name}.erl")));
    let compiled = Command::new(path_from("JITPROF_ERLC")?)
        .args(sources.into_iter().collect::<Result<Vec<_>>>()?)
        .current_dir(scratch.path())
        .status()?;
    ensure!(compiled.success(), "erlc failed");
    let mut command = Command::new(path_from("JITPROF_ERL")?);
    command.arg("-noshell").args(flags).args(["+S", "1", "-pa", ".", "-run", module, "main", "600"]);
    let target = Target::start(command, scratch)?;
    let words = [&["--pid", target.said("pid")?], how].concat();
    let recording = Jitprof::recording(scratch, words)?.record_cpu(target.pid()?, 3);
    // Erlang writes to /tmp, whatever is asked for.
    for file in [format!("/tmp/jit-{}.dump", target.pid()?), format!("/tmp/perf-{}.map", target.pid()?)] {
        if std::fs::exists(&file)? {
            std::fs::remove_file(file)?;
        }
    }
    recording
}

#[track_caller]
fn assert_burns(recording: &Recording) {
    recording.assert_named();
    assert_share("leaf_hot", recording.folded.share("burn:leaf_hot/2", "burn:leaf_cold/2"), 0.75);
}

#[test]
fn a_jitdump_names_whole_chains() -> Result<()> {
    let recording = record(&["+JPperf", "true"])?;
    assert_burns(&recording);
    assert_eq!(recording.number("/jit/named/perf_map"), 0, "where a dump and a map have a name, the dump's is taken");
    let folded = &recording.folded;
    let leaves = ["burn:leaf_hot/2", "burn:leaf_cold/2"];
    assert_at_least("complete stacks", leaves.iter().map(|leaf| folded.complete_with(leaf)).sum(), 0.995);
    let outer = |leaf: &&str| Share {
        part: folded.count(|stack| stack.has_chain(&["burn:loop/3", "burn:outer/1"]) && stack.has(leaf)),
        whole: folded.count(|stack| stack.has(leaf)),
    };
    assert_at_least("callers", leaves.iter().map(outer).sum(), 0.995);
    // A leaf that has not built its frame yet, or has taken it down, has its caller's frame pointer: that caller is
    // skipped. This is the limit of frame pointers.
    assert_at_least("chain", folded.through(&["burn:outer/1", "burn:middle/1", "burn:leaf_hot/2"]), 0.85);
    Ok(())
}

#[test]
fn stacks_of_a_server_and_of_the_scheduler_between_its_calls_are_complete() -> Result<()> {
    let recording = record_run("server", &["+JPperf", "true"])?;
    assert_burns(&recording);
    // The scheduler runs between any two calls, 3 % of the time, and is where a stack begins.
    let in_scheduler = recording.folded.count(|stack| stack.has("global::process_main"));
    println!("{in_scheduler} samples in the scheduler");
    assert_at_least("complete stacks", recording.complete(), 0.99);
    Ok(())
}

#[test]
fn code_without_frame_pointers_has_its_callers() -> Result<()> {
    // OTP 25 keeps frame pointers with `true` only.
    let recording = record(&["+JPperf", "dump"])?;
    assert_burns(&recording);
    // The same chains as with frame pointers, down to the process' first function. Most of these functions never
    // return, and end with a jump: what begins with a return address at sp can be told although.
    let from = ["init:do_boot/3", "init:start_em/1", "burn:loop/3", "burn:outer/1"];
    let ends = [["burn:middle/1", "burn:leaf_hot/2"], ["burn:side_cold/1", "burn:leaf_cold/2"]];
    let chains = ends.iter().map(|end| recording.folded.through(&[&from[..], end].concat()));
    assert_at_least("chains", chains.sum(), 0.99);
    Ok(())
}

#[test]
fn a_perf_map_is_enough() -> Result<()> {
    let recording = record(&["+JPperf", "map"])?;
    assert_burns(&recording);
    assert_eq!(recording.number("/jit/named/jitdump"), 0);
    Ok(())
}

#[test]
fn without_any_flag_the_emulators_own_tables_name_whole_chains_with_their_lines() -> Result<()> {
    let recording = record_with(&[], &["--lines"])?;
    recording.assert_named();
    let named = |origin: &str| recording.number(&format!("/jit/named/{origin}"));
    assert_eq!((named("jitdump"), named("perf_map"), recording.number("/jit/named/peeked")), (0, 0, 0));
    assert_enough("frames by the runtime's own tables", named("runtime"), 100);
    assert_at_least("complete stacks", recording.complete(), 0.995);
    let source = std::fs::read_to_string(target_file("erlang/burn.erl")?)?;
    let line = |text: &str| source.lines().position(|line| line.trim() == text).map_or(0, |at| at + 1);
    let file = target_file("erlang/burn.erl")?;
    let call = |function: &str, text: &str| format!("{function} ({}:{})", file.display(), line(text));
    let (hot, cold) = (
        call("burn:middle/1", "R = leaf_hot(N * 3, 88172645),"),
        call("burn:side_cold/1", "R = leaf_cold(N, 12345678),"),
    );
    let whole = recording.folded.count(|stack| stack.has_prefix("burn:leaf_"));
    let loops = call("burn:loop/3", "outer(2000 + (Next bsr 8) rem 36001),");
    let callers = ["A = middle(N),", "B = side_cold(N),"].map(|text| call("burn:outer/1", text));
    let chains = [[&*loops, &*callers[0], &*hot], [&*loops, &*callers[1], &*cold]];
    let has_chain = |stack: &Stack, chain: &[&str]| stack.frames.windows(chain.len()).any(|frames| frames == chain);
    let part = recording
        .folded
        .count(|stack| stack.has("init:start_em/1") && chains.iter().any(|chain| has_chain(stack, chain)));
    assert_at_least("chains with lines down to the process' first functions", Share { part, whole }, 0.995);
    let count = |caller: &str| recording.folded.count(|stack| has_chain(stack, &[caller]));
    assert_share("middle", Share { part: count(&hot), whole: count(&hot) + count(&cold) }, 0.75);
    Ok(())
}

#[test]
fn a_server_without_any_flag_has_whole_stacks_and_so_has_the_scheduler() -> Result<()> {
    let recording = record_run("server", &[])?;
    assert_burns(&recording);
    assert_at_least("complete stacks", recording.complete(), 0.995);
    let served = ["proc_lib:init_p_do_apply/3", "gen_server:try_handle_call/4", "server:handle_call/3", "burn:outer/1"];
    let whole = recording.folded.count(|stack| stack.has("burn:outer/1"));
    let part = recording.folded.count(|stack| served.iter().all(|function| stack.has(function)));
    assert_at_least("callers", Share { part, whole }, 0.995);
    Ok(())
}

#[test]
fn what_is_written_in_c_has_its_erlang_callers() -> Result<()> {
    const WORK: [&str; 8] =
        ["sorts/0", "tables/1", "binaries/0", "expressions/0", "errors/0", "numbers/0", "spawns/0", "garbage/1"];
    let recording = record_run("builtins", &[])?;
    recording.assert_named();
    // While the collector moves a stack, the process still says that it is where it was: what is read there is no return
    // address, or was one, so that such a stack is cut.
    assert_at_least("complete stacks", recording.complete(), 0.99);
    let folded = &recording.folded;
    // The function itself, or what it has no frame beside: a list comprehension or a function within it.
    let is_in = |stack: &Stack, work: &str| {
        stack.has_prefix(&format!("builtins:{work}")) || stack.has_prefix(&format!("builtins:'-{work}-"))
    };
    let works = |stack: &Stack| WORK.iter().filter(|work| is_in(stack, work)).count();
    assert_eq!(folded.count(|stack| works(stack) > 1), 0, "none of them calls another one");
    // A built-in function, the garbage collector, what these call.
    let is_in_c = |stack: &Stack| stack.frames.last().is_some_and(|leaf| !leaf.contains(':'));
    let called = |work: &str| folded.count(|stack| is_in_c(stack) && is_in(stack, work));
    // Spawned functions are called by nobody, and who raises errors is back in Erlang soon.
    let counts: Vec<u64> = WORK.iter().filter(|work| **work != "spawns/0").map(|work| called(work)).collect();
    println!("in C: {counts:?}");
    assert!(counts.iter().filter(|count| **count >= 5).count() >= 5, "{counts:?}");
    let is_whole = |stack: &Stack| stack.has("builtins:work/1") && !stack.is_cut();
    let part = folded.count(|stack| is_in_c(stack) && works(stack) == 1 && is_whole(stack));
    let spawned = folded.count(|stack| is_in_c(stack) && is_in(stack, "spawns/0") && !is_whole(stack));
    let whole = folded.count(|stack| is_in_c(stack) && works(stack) == 1) - spawned;
    assert_at_least("callers of what is written in C", Share { part, whole }, 0.99);
    Ok(())
}

/// Records a module that calls functions of its own in C.
fn record_natives() -> Result<Recording> {
    let scratch = Scratch::new()?;
    let headers = format!("-I{}", path_from("JITPROF_ERL_INCLUDE")?.display());
    let library = compile(&scratch, "cc", "erlang/natives.c", &["-O1", "-g", "-shared", "-fPIC", &headers])?;
    std::fs::rename(library, scratch.file("natives.so"))?;
    record_module_in(&scratch, "natives", &[], &["--lines"])
}

/// The line of `natives.erl` that reads so, as frames of a function have it.
fn at_line(function: &str, text: &str) -> Result<String> {
    let file = target_file("erlang/natives.erl")?;
    let source = std::fs::read_to_string(&file)?;
    let line = source.lines().position(|line| line.trim() == text).context("no such line")? + 1;
    Ok(format!("natives:{function} ({}:{line})", file.display()))
}

/// Asserts that a function in C was called by two of Erlang in the shares that are known, and that nearly every stack of it
/// has one of them, with the line of the call, and who has called that.
fn assert_called(recording: &Recording, (native, spins): (&str, &str), [hot, cold]: [[&str; 3]; 2]) -> Result<()> {
    let chain = |[function, call, in_loop]: [&str; 3]| -> Result<_> {
        Ok([at_line("loop/2", in_loop)?, at_line(&format!("{function}/1"), call)?])
    };
    let chains = [chain(hot)?, chain(cold)?];
    let is_by = |stack: &Stack, chain: &[String; 2]| {
        let caller = stack.frames.windows(chain.len()).position(|frames| frames == chain);
        let called = stack.frames.windows(2).position(|frames| is_call(frames, native, spins));
        caller.zip(called).is_some_and(|(caller, called)| caller + 1 < called)
    };
    let count = |meant: &[[String; 2]]| {
        recording.folded.count(|stack| stack.has(spins) && meant.iter().any(|chain| is_by(stack, chain)))
    };
    let whole = recording.folded.count(|stack| stack.has(spins));
    assert_enough(native, whole, 100);
    assert_at_least_of_few(&format!("callers of {native}"), Share { part: count(&chains), whole }, 0.98);
    assert_share(hot[0], Share { part: count(&chains[..1]), whole: count(&chains) }, 0.75);
    Ok(())
}

/// Whether one frame is of `native`, and the next one, inward, of `spins`.
fn is_call(frames: &[String], native: &str, spins: &str) -> bool {
    let is_of = |frame: &String, name: &str| frame.split(' ').next() == Some(name);
    matches!(frames, [outer, inner] if is_of(outer, native) && is_of(inner, spins))
}

#[test]
fn functions_in_c_of_a_module_have_their_erlang_callers_and_lines_on_dirty_schedulers_as_well() -> Result<()> {
    let recording = record_natives()?;
    // Nearly all time is in C: there are no leaves of Erlang's to speak of.
    assert_at_least("named frames", recording.named_frames(), 0.995);
    assert_at_least("complete stacks", recording.complete(), 0.98);
    let [hot, cold] = [["hot", "R = ordinary(N * 3),", "A = hot(N),"], ["cold", "R = ordinary(N),", "B = cold(N),"]];
    assert_called(&recording, ("ordinary_function", "spin_ordinary"), [hot, cold])?;
    let hot = ["dirty_hot", "R = dirty(N * 3),", "C = dirty_hot(N),"];
    let cold = ["dirty_cold", "R = dirty(N),", "D = dirty_cold(N),"];
    assert_called(&recording, ("dirty_function", "spin_dirty"), [hot, cold])?;
    let is_dirty = |stack: &Stack| stack.has("spin_dirty");
    let called = |stack: &Stack| stack.frames.windows(2).any(|frames| is_call(frames, "dirty_function", "spin_dirty"));
    let whole = recording.folded.count(is_dirty);
    let part = recording.folded.count(|stack| is_dirty(stack) && called(stack) && !stack.is_cut());
    assert_at_least_of_few("whole stacks of dirty work", Share { part, whole }, 0.98);
    // One runs on the thread that runs Erlang, the other on a thread that runs nothing else.
    let on_dirty = |spins: &str| Share {
        part: recording.folded.count(|stack| stack.has(spins) && stack.has("erts_dirty_process_main")),
        whole: recording.folded.count(|stack| stack.has(spins)),
    };
    assert_at_least_of_few("dirty work on dirty schedulers", on_dirty("spin_dirty"), 0.98);
    assert_eq!(on_dirty("spin_ordinary").part, 0);
    Ok(())
}

#[test]
fn where_its_tables_are_not_read_the_exact_flag_is_named() -> Result<()> {
    let recording = record_with(&[], &["--no-read-runtime"])?;
    let advice = recording.account["advice"][0]["advice"].as_str().unwrap_or_default();
    assert!(advice.contains("erl +JPperf true"), "{advice}");
    Ok(())
}
