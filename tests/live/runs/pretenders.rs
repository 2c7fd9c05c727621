//! Programs that pretend to have a runtime, and lie about where it has its code: that costs their own names, and nobody else
//! anything.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use jitprof_tests::{Jitprof, Recording, Scratch, Share, Stack, Target, assert_at_least, assert_in_time, compile};

/// Longest time from SIGINT to the end: the last readings have 10 s. The rest is for a busy machine.
const END_LIMIT: Duration = Duration::from_secs(30);
/// Most CPU time that jitprof may use in the three seconds or so of the recording: two readings that use up their budgets, and
/// what is found in them put in order, take half of it.
const CPU_LIMIT_S: f64 = 6.0;
/// Most memory: what is kept of all runtimes may take 256 MiB, and what is made of it as much again.
const MEMORY_LIMIT: u64 = 1 << 30;

/// Programs of one kind, each of which lies in one of its ways, see there.
fn pretenders(scratch: &Scratch, flags: &[&str], lies: &[&str]) -> Result<Vec<Target>> {
    let flags = [&["-O1", "-g", "-fno-omit-frame-pointer", "-rdynamic"][..], flags].concat();
    let program = compile(scratch, "cc", "native/false_tables.c", &flags)?;
    let start = |lie: &&str| {
        let mut command = Command::new(&program);
        command.arg(lie);
        Target::start(command, scratch)
    };
    lies.iter().map(start).collect()
}

fn neighbour(scratch: &Scratch) -> Result<Target> {
    let program = compile(scratch, "cc", "native/silent.c", &["-O1", "-g", "-fno-omit-frame-pointer"])?;
    let mut command = Command::new(program);
    command.args(["burn", "1"]);
    Target::start(command, scratch)
}

/// Asserts that all stacks of the process are named and complete.
#[track_caller]
fn assert_named(recording: &Recording, pid: u32) {
    let of_it = |stack: &Stack| stack.is_of(pid);
    let is_named = |stack: &Stack| stack.has("silent_burn") && stack.frames.iter().all(|frame| !frame.starts_with('['));
    let whole = recording.folded.count(of_it);
    let part = recording.folded.count(|stack| of_it(stack) && is_named(stack));
    assert_at_least("the neighbour's stacks", Share { part, whole }, 0.995);
}

#[test]
fn programs_that_lie_about_a_runtime_cost_their_own_names_and_no_more_than_a_budget() -> Result<()> {
    let (tables, v8, other) = (Scratch::new()?, Scratch::new()?, Scratch::new()?);
    let of_tables = pretenders(&tables, &[], &["many", "endless", "anywhere"])?;
    let of_v8 = pretenders(&v8, &["-DOF_V8"], &["v8"])?;
    let neighbour = neighbour(&other)?;
    let pids = of_tables.iter().chain(&of_v8).chain([&neighbour]).map(|target| target.said("pid"));
    let pids = pids.collect::<Result<Vec<_>>>()?.join(",");
    let mut running = Jitprof::recording(&other, ["--pid", &*pids])?.spawn()?;
    running.wait_for_samples(neighbour.pid()?, 3000)?;
    let began = Instant::now();
    running.signal(libc::SIGINT)?;
    let recording = running.record()?;
    assert_in_time("its end", began.elapsed(), END_LIMIT);

    let many = of_tables.first().context("the one with many pieces of code")?.pid()?;
    let read = &recording.source(many)["tables"];
    println!("{read}; {}", recording.account["own"]);
    ensure!(read["runtime"] == "HotSpot 25.0.0+pretended" && read["readings"].as_u64() > Some(0), "not read: {read}");
    let remarks = recording.account["remarks"].to_string();
    ensure!(remarks.contains("V8 12.4.254"), "nothing is said of a V8 that cannot be: {remarks}");

    assert_named(&recording, neighbour.pid()?);
    assert_eq!(recording.number("/samples/lost_ring_full"), 0);
    let cpu_s = recording.account["own"]["cpu_s"].as_f64().context("no CPU time")?;
    ensure!(cpu_s < CPU_LIMIT_S, "{cpu_s} s of CPU time");
    let used = recording.account["own"]["max_rss_bytes"].as_u64().context("no memory")?;
    ensure!(used < MEMORY_LIMIT, "{used} bytes");
    Ok(())
}
