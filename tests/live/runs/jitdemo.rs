//! A program of our own, whose schedule says what ran when.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use jitprof_tests::{
    Jitprof, Recording, Scratch, Share, Stack, Target, assert_at_least, assert_at_least_of_few, assert_count,
    assert_enough, assert_share, path_from, timed_samples, unix_minus_monotonic_ns, wait_until,
};
use serde_json::Value;

fn demo(arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(path_from("JITPROF_DEMO")?);
    command.args(arguments);
    Ok(command)
}

/// Records three seconds of the target's CPU time.
fn record(target: &Target, scratch: &Scratch, arguments: &[&str]) -> Result<Recording> {
    Jitprof::recording(scratch, [&["--pid", target.said("pid")?], arguments].concat())?.record_cpu(target.pid()?, 3)
}

/// Records until the target ends.
fn record_all(target: &Target, scratch: &Scratch, arguments: &[&str]) -> Result<Recording> {
    Jitprof::recording(scratch, [&["--pid", target.said("pid")?], arguments].concat())?.record()
}

/// jitprof that launches the demo.
fn launch(scratch: &Scratch, arguments: &[&str], demo_arguments: &[&str]) -> Result<Recording> {
    let mut jitprof = Jitprof::recording(scratch, [arguments, &["--"]].concat())?;
    jitprof.command().arg(path_from("JITPROF_DEMO")?).args(demo_arguments);
    jitprof.record()
}

fn in_leaf(stack: &Stack, kind: &str) -> bool {
    stack.frames.iter().any(|frame| frame.contains(&format!("leaf_{kind}_g")))
}

#[track_caller]
fn assert_burns(recording: &Recording) {
    recording.assert_whole();
    assert_leaves(recording);
}

/// The same where most stacks are finished from copies. They may take 32 MiB, which two seconds of them are, and a machine
/// that keeps jitprof waiting leaves no room in the ring: stacks without a copy are as they were walked. Their number is
/// known, and has a bound of its own.
#[track_caller]
fn assert_burns_by_copies(recording: &Recording) {
    let refused = recording.number("/deferred/refused_by_rate") + recording.number("/deferred/refused_for_memory");
    let but_for_copies = |share: Share| Share { part: share.part + refused.min(share.whole - share.part), ..share };
    let whole = recording.complete().whole;
    assert_at_least("stacks whose copies had room", Share { part: whole - refused.min(whole), whole }, 0.75);
    // Two seconds less what the start takes: longer, and there is no room for the copies.
    assert_at_least_of_few("complete stacks, of those with copies", but_for_copies(recording.complete()), 0.995);
    let chains = [["outer", "middle", "leaf_hot_g0"], ["outer", "side", "leaf_cold_g0"]];
    let chains = chains.iter().map(|chain| recording.folded.through(chain)).sum();
    assert_at_least_of_few("chains, of those with copies", but_for_copies(chains), 0.995);
    recording.assert_named();
    assert_leaves(recording);
}

#[track_caller]
fn assert_leaves(recording: &Recording) {
    let hot = recording.folded.count(|stack| in_leaf(stack, "hot"));
    let cold = recording.folded.count(|stack| in_leaf(stack, "cold"));
    assert_share("hot leaf", Share { part: hot, whole: hot + cold }, 0.75);
}

/// When a leaf ran.
#[derive(Clone, Copy, Debug)]
struct Period {
    generation: u64,
    start_ns: u64,
    end_ns: u64,
}

fn schedule(path: &Path) -> Result<HashMap<String, Period>> {
    let mut periods = HashMap::new();
    let text = std::fs::read_to_string(path)?;
    // What is written while it is read may end within a line.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    for line in whole.lines() {
        let line: Value = serde_json::from_str(line)?;
        if let Some(name) = line["name"].as_str() {
            let number = |key: &str| line[key].as_u64().with_context(|| format!("no {key} in the schedule"));
            let period =
                Period { generation: number("gen")?, start_ns: number("start_ns")?, end_ns: number("end_ns")? };
            periods.insert(name.to_owned(), period);
        }
    }
    Ok(periods)
}

#[test]
fn every_sample_at_a_reused_address_has_the_name_that_was_right_then() -> Result<()> {
    let scratch = Scratch::new()?;
    let arguments = ["--secs", "3", "--cpu", "--generation-ms", "20", "--schedule", "schedule"];
    let mut target = Target::start(demo(&arguments)?, &scratch)?;
    let recording = record_all(&target, &scratch, &["-o", "out.json"])?;
    target.finish()?;
    assert_burns(&recording);

    let periods = schedule(&scratch.file("schedule"))?;
    let newest = assert_names_of_their_time(&recording, &periods, &scratch)?;
    let last = periods.values().map(|period| period.generation).max().unwrap_or(0);
    assert!(last > 10 && newest * 2 > last, "generation {newest} is the last one seen of {last}");
    Ok(())
}

/// The records of the last generations are in no file when the recording ends: who leaves them there takes the code for
/// the one before.
#[test]
fn the_name_is_right_at_the_end_too_though_its_record_is_in_a_stdio_buffer() -> Result<()> {
    let scratch = Scratch::new()?;
    let arguments =
        ["--secs", "600", "--stdio", "--functions", "100", "--generation-ms", "20", "--schedule", "schedule"];
    let target = Target::start(demo(&arguments)?, &scratch)?;
    let jitprof = Jitprof::recording(&scratch, ["--pid", target.said("pid")?, "-o", "out.json"])?;
    let mut running = jitprof.spawn()?;
    running.wait_for_samples(target.pid()?, 2000)?;
    // It writes no more, as a program that has compiled what it runs.
    target.signal(libc::SIGSTOP)?;
    running.signal(libc::SIGINT)?;
    let recording = running.record()?;
    target.signal(libc::SIGCONT)?;
    // A generation is in the schedule once it has ended.
    let mut periods = HashMap::new();
    wait_until("the last generation's end", || {
        periods = schedule(&scratch.file("schedule"))?;
        let is_in = |stack: &Stack| stack.frames.iter().any(|frame| periods.contains_key(frame));
        let is_leaf = |stack: &Stack| in_leaf(stack, "hot") || in_leaf(stack, "cold");
        Ok((recording.folded.count(|stack| is_leaf(stack) && !is_in(stack)) == 0).then_some(()))
    })?;
    drop(target);
    assert_burns(&recording);
    let newest = assert_names_of_their_time(&recording, &periods, &scratch)?;
    assert!(newest > 50, "generation {newest} is the last one seen");
    assert!(recording.number("/jit/named/peeked") > 0, "some of these names are in no file yet");
    Ok(())
}

/// Each sample in a leaf has the name of the generation that ran at its time. Returns the latest generation seen.
#[track_caller]
fn assert_names_of_their_time(
    recording: &Recording,
    periods: &HashMap<String, Period>,
    scratch: &Scratch,
) -> Result<u64> {
    // A sample's time is known to a millisecond; the clocks of wall and samples are read one after the other.
    const SLACK_NS: u64 = 1_500_000;
    let offset = unix_minus_monotonic_ns();
    let mut checked = 0;
    let mut newest = 0;
    for sample in timed_samples(&scratch.file("out.json"))? {
        let Some((name, period)) = sample.frames.iter().find_map(|frame| periods.get_key_value(frame)) else {
            continue;
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "times of this century")]
        let time_ns = (sample.unix_ms * 1e6) as u64 - offset;
        assert!(
            time_ns + 1_000_000 + SLACK_NS >= period.start_ns && time_ns <= period.end_ns + SLACK_NS,
            "sample at {time_ns} named {name}, which ran from {} to {}",
            period.start_ns,
            period.end_ns
        );
        // Within a millisecond two generations may stand in any order.
        assert!(period.generation + 1 >= newest, "{name} after generation {newest}");
        newest = newest.max(period.generation);
        checked += sample.weight;
    }
    let leaves = recording.folded.count(|stack| in_leaf(stack, "hot") || in_leaf(stack, "cold"));
    assert_eq!(checked, leaves, "every leaf is of a generation in the schedule");
    Ok(newest)
}

#[test]
fn the_number_of_samples_is_the_cpu_time_times_the_rate() -> Result<()> {
    let scratch = Scratch::new()?;
    let recording = launch(&scratch, &[], &["--secs", "3", "--cpu", "--schedule", "schedule"])?;
    assert_burns(&recording);
    let text = std::fs::read_to_string(scratch.file("schedule"))?;
    let totals: Value = serde_json::from_str(text.lines().last().context("no totals")?)?;
    let cpu_s = totals["cpu_ns"].as_f64().context("no CPU time")? / 1e9;
    let rate = recording.account["frequency_hz"].as_f64().context("no frequency")?;
    let expected = cpu_s * rate;
    let in_loop = recording.folded.count(|stack| stack.has("outer"));
    assert_count(&format!("samples in {cpu_s} CPU seconds at {rate} Hz"), in_loop, expected);
    Ok(())
}

#[test]
fn a_child_runs_its_parents_code_under_its_names() -> Result<()> {
    let scratch = Scratch::new()?;
    let recording = launch(&scratch, &["--per-thread"], &["--secs", "3", "--cpu", "--fork", "--schedule", "schedule"])?;
    recording.assert_whole();
    let child = recording.stdout.trim().rsplit_once("child=").context("no child")?.1;
    let child = format!("jitdemo-{child}");
    let of_child = recording.folded.count(|stack| stack.has(&child) && stack.has("outer"));
    let parents = recording.folded.count(|stack| !stack.has(&child) && stack.has("outer"));
    assert_enough("samples of the child", of_child, 50);
    assert_enough("samples of its parent", parents, 50);
    // It runs the first generation to the end, whatever its parent announces afterwards.
    let first = |stack: &Stack| stack.has_chain(&["outer", "middle", "leaf_hot_g0"]);
    let any = |stack: &Stack| in_leaf(stack, "hot");
    assert_at_least(
        "the child's generation",
        Share {
            part: recording.folded.count(|stack| stack.has(&child) && first(stack)),
            whole: recording.folded.count(|stack| stack.has(&child) && any(stack)),
        },
        0.98,
    );
    Ok(())
}

#[test]
fn a_child_that_runs_when_jitprof_comes_has_its_parents_names() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = Target::start(demo(&["--secs", "600", "--fork"])?, &scratch)?;
    let pids = format!("{},{}", target.said("pid")?, target.said("child")?);
    let recording = Jitprof::recording(&scratch, ["--pid", &pids])?.record_cpu(target.said("child")?.parse()?, 3)?;
    assert_burns(&recording);
    let child = format!("pid-{}", target.said("child")?);
    let of_child = |stack: &Stack| stack.has(&child) && in_leaf(stack, "hot");
    let first = Share {
        part: recording.folded.count(|stack| of_child(stack) && stack.has("leaf_hot_g0")),
        whole: recording.folded.count(of_child),
    };
    assert_at_least("the child's generation", first, 0.995);
    Ok(())
}

#[test]
fn no_inherit_leaves_children_out() -> Result<()> {
    let scratch = Scratch::new()?;
    let arguments = ["--secs", "2", "--fork", "--schedule", "schedule"];
    let recording = launch(&scratch, &["--per-thread", "--no-inherit"], &arguments)?;
    let child = recording.stdout.trim().rsplit_once("child=").context("no child")?.1;
    assert!(recording.folded.total() > 0);
    assert_eq!(recording.folded.count(|stack| stack.has(&format!("jitdemo-{child}"))), 0);
    Ok(())
}

#[test]
fn threads_that_run_when_jitprof_comes_are_recorded() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = Target::start(demo(&["--secs", "600", "--threads", "2"])?, &scratch)?;
    let recording = Jitprof::recording(&scratch, ["--pid", target.said("pid")?])?.record_cpu(target.pid()?, 5)?;
    recording.assert_whole();
    assert_share("worker's hot leaf", recording.folded.share("worker_leaf_hot", "worker_leaf_cold"), 0.75);
    let chain = ["worker_outer", "worker_middle", "worker_leaf_hot"];
    assert_at_least("chain", recording.folded.through(&chain), 0.98);
    Ok(())
}

#[test]
fn a_perf_map_names_what_no_dump_does() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = Target::start(demo(&["--secs", "600", "--perf-map", "--generations", "1"])?, &scratch)?;
    let recording = record(&target, &scratch, &[])?;
    std::fs::remove_file(target.said("dump")?)?;
    assert_burns(&recording);
    assert_eq!(recording.number("/jit/named/jitdump"), 0);
    Ok(())
}

#[test]
fn a_dump_without_a_name_is_read() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = Target::start(demo(&["--secs", "600", "--delete"])?, &scratch)?;
    assert_burns(&record(&target, &scratch, &[])?);
    Ok(())
}

#[test]
fn code_that_runs_before_its_record_has_its_callers_although_it_keeps_no_frame_pointer() -> Result<()> {
    let scratch = Scratch::new()?;
    let delayed = ["--delay-ms", "1500", "--generations", "1", "--no-frame-pointer"];
    let recording =
        launch(&scratch, &[], &[&["--secs", "3", "--cpu", "--schedule", "schedule"], &delayed[..]].concat())?;
    assert_burns_by_copies(&recording);
    // rbp holds a number: no frame pointer has led anywhere.
    // 1.5 of 3 seconds; a busy machine reads the records later still, and only so many samples a second bring a stack.
    let (changed, all) = (recording.number("/deferred/changed"), recording.number("/samples/delivered"));
    assert!(changed * 20 >= all, "{changed} walks of {all} finished by rows that came later");
    assert_deferred_adds_up(&recording);
    Ok(())
}

#[test]
fn the_same_is_so_if_the_records_come_with_its_end() -> Result<()> {
    let scratch = Scratch::new()?;
    let delayed = ["--stdio", "--generations", "1", "--no-frame-pointer"];
    let demo = [&["--secs", "2", "--iterations", "2000", "--schedule", "schedule"], &delayed[..]].concat();
    let recording = launch(&scratch, &["--no-peek"], &demo)?;
    assert_burns_by_copies(&recording);
    assert_deferred_adds_up(&recording);
    Ok(())
}

#[test]
fn copies_of_announced_code_have_its_rows() -> Result<()> {
    let scratch = Scratch::new()?;
    let target =
        Target::start(demo(&["--secs", "600", "--copies", "--generations", "1", "--no-frame-pointer"])?, &scratch)?;
    let recording = record(&target, &scratch, &[])?;
    const COPY: &str = "[JIT code without a name]";
    assert_at_least("complete stacks", recording.complete(), 0.995);
    let folded = &recording.folded;
    let through = |caller: &str| folded.count(|stack| stack.has_chain(&["outer", caller, COPY]));
    let (hot, cold) = (through("middle"), through("side"));
    assert_share("the hot leaf's copy", Share { part: hot, whole: hot + cold }, 0.75);
    // A wrong caller would show as a chain that the program does not have.
    let whole = folded.count(|stack| stack.has(COPY));
    assert_at_least("chain", Share { part: hot + cold, whole }, 0.995);
    assert_eq!(recording.number("/learned/copies"), 2);
    assert_eq!(folded.count(|stack| in_leaf(stack, "hot")), 0, "the announced leaves do not run");
    Ok(())
}

/// Every stack snapshot has been of use, or is counted as not.
#[track_caller]
fn assert_deferred_adds_up(recording: &Recording) {
    let deferred = |what: &str| recording.number(&format!("/deferred/{what}"));
    let finished =
        deferred("finished_by_rows") + deferred("finished_by_frame_pointer") + deferred("refused_for_memory");
    assert_eq!(deferred("snapshots"), finished, "each snapshot is accounted for");
    assert!(deferred("bytes") >= deferred("snapshots") * 1024 && deferred("bytes") <= deferred("snapshots") * 16384);
}

#[test]
fn names_in_a_stdio_buffer_are_known_while_it_runs() -> Result<()> {
    let scratch = Scratch::new()?;
    // Enough functions that the buffer was flushed before, which is what it is found by.
    let arguments = ["--secs", "600", "--stdio", "--functions", "100", "--generations", "1"];
    let target = Target::start(demo(&arguments)?, &scratch)?;
    let recording = record(&target, &scratch, &[])?;
    assert_burns(&recording);
    assert!(recording.number("/jit/named/peeked") > 0, "some of these names are in no file yet");
    Ok(())
}

#[test]
fn names_in_a_stdio_buffer_are_known_after_its_exit() -> Result<()> {
    let scratch = Scratch::new()?;
    let arguments = ["--secs", "3", "--cpu", "--stdio", "--functions", "100", "--generations", "1"];
    let target = Target::start(demo(&arguments)?, &scratch)?;
    let recording = record_all(&target, &scratch, &["--no-peek"])?;
    assert_burns(&recording);
    assert_eq!(recording.number("/jit/named/peeked"), 0);
    Ok(())
}

#[test]
fn exec_ends_all_names_and_the_new_program_brings_its_own() -> Result<()> {
    let scratch = Scratch::new()?;
    let recording = launch(&scratch, &[], &["--secs", "5", "--exec-again", "--schedule", "schedule"])?;
    recording.assert_whole();
    let again = |stack: &Stack| stack.has_prefix("again_leaf_hot_g");
    let folded = &recording.folded;
    let before = folded.count(|stack| stack.has_chain(&["outer", "middle"]) && stack.has_prefix("leaf_hot_g"));
    let after = folded.count(|stack| stack.has_chain(&["again_outer", "again_middle"]) && again(stack));
    assert_enough("samples before exec", before, 20);
    assert_enough("samples after exec", after, 20);
    assert_eq!(folded.count(|stack| stack.has("outer") && stack.has_prefix("again_")), 0, "no stack has both");
    Ok(())
}

#[test]
fn a_hundred_thousand_functions_are_read_in_time() -> Result<()> {
    let scratch = Scratch::new()?;
    let arguments = ["--secs", "600", "--functions", "100000", "--generations", "1"];
    let target = Target::start(demo(&arguments)?, &scratch)?;
    let recording = record(&target, &scratch, &[])?;
    assert_burns(&recording);
    let functions = recording.source(target.pid()?)["functions"].as_u64();
    assert!(functions >= Some(100_000), "{functions:?}");
    Ok(())
}
