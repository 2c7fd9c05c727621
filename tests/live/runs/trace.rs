//! A trace log beside the samples: the demo logs its generations and calls, and announces its code, at once.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use jitprof_tests::{
    Folded, Jitprof, Recording, Scratch, Share, Stack, Target, assert_at_least, assert_enough, assert_share, path_from,
};

fn demo(scratch: &Scratch, arguments: &[&str]) -> Result<(Command, PathBuf)> {
    let log = scratch.file("demo.plog");
    let mut command = Command::new(path_from("JITPROF_DEMO")?);
    command.args(["--schedule", "schedule", "--trace-log"]).arg(&log).args(arguments);
    Ok((command, log))
}

/// The generation that a leaf belongs to.
fn generation(stack: &Stack) -> Option<u64> {
    stack.frames.iter().find_map(|frame| frame.strip_prefix("leaf_hot_g")?.parse().ok())
}

fn logged(stack: &Stack) -> Option<u64> {
    ["GENERATION_EVEN", "GENERATION_ODD"].iter().position(|name| stack.has(name)).map(|parity| parity as u64)
}

/// What is known of the demo: which span its code runs in.
#[track_caller]
fn assert_true(folded: &Folded, within: f64) {
    // Every jitted frame of the first thread runs in a call, and each call in a generation.
    let first = |stack: &Stack| stack.has("outer");
    let in_span = |stack: &Stack| {
        let calls = ["RENDER", "INTERPRET"]
            .iter()
            .any(|call| ["GENERATION_EVEN", "GENERATION_ODD"].iter().any(|parity| stack.has_chain(&[parity, call])));
        first(stack) && calls
    };
    let all = Share { part: folded.count(in_span), whole: folded.count(first) };
    assert_at_least("calls of outer in spans", all, 0.98);
    // The leaves' generations, by the dump's record, are those that the log has at the sample's time.
    let known = |stack: &Stack| generation(stack).is_some() && logged(stack).is_some();
    let right = |stack: &Stack| generation(stack).zip(logged(stack)).is_some_and(|(leaf, span)| leaf % 2 == span);
    assert_at_least("right generation", Share { part: folded.count(right), whole: folded.count(known) }, within);
    assert_enough("odd ones", folded.count(|stack| right(stack) && stack.has("GENERATION_ODD")), 50);
    assert_enough("even ones", folded.count(|stack| right(stack) && stack.has("GENERATION_EVEN")), 50);
    // Three calls of four are RENDER, and all calls are as long on average.
    let render = folded.count(|stack| first(stack) && stack.has("RENDER"));
    let interpret = folded.count(|stack| first(stack) && stack.has("INTERPRET"));
    assert_share("time in RENDER", Share { part: render, whole: render + interpret }, 0.75);
    // Spans are callers: everything of a stack that runs in one stands further in.
    for stack in &folded.stacks {
        let is_span = |frame: &String| frame.starts_with("GENERATION_") || ["RENDER", "INTERPRET"].contains(&&**frame);
        let spans = stack.frames.iter().filter(|frame| is_span(frame)).count();
        assert!(stack.frames.iter().skip(1).take(spans).all(is_span), "{:?}", stack.frames);
    }
}

/// What is known of the other threads.
#[track_caller]
fn assert_workers(folded: &Folded) {
    let worker = |stack: &Stack| stack.has("worker_outer");
    let in_span = |stack: &Stack| worker(stack) && stack.has("WORKER");
    let in_any_other = |stack: &Stack| worker(stack) && (logged(stack).is_some() || stack.has("RENDER"));
    assert_enough("samples of workers", folded.count(worker), 100);
    assert_at_least("workers in spans", Share { part: folded.count(in_span), whole: folded.count(worker) }, 0.95);
    assert_eq!(folded.count(in_any_other), 0, "no thread is in another one's span");
}

fn record_live(scratch: &Scratch, arguments: &[&str]) -> Result<Recording> {
    let (command, log) = demo(scratch, &[&["--secs", "600", "--generation-ms", "200"], arguments].concat())?;
    let target = Target::start(command, scratch)?;
    let log = log.to_str().context("the scratch folder's name is no text")?;
    Jitprof::recording(scratch, ["--pid", target.said("pid")?, "--trace", log])?.record_cpu(target.pid()?, 9)
}

#[test]
fn spans_stand_around_the_code_that_ran_in_them() -> Result<()> {
    for order in [&[][..], &["--trace-big-endian"]] {
        let scratch = Scratch::new()?;
        let recording = record_live(&scratch, &[order, &["--threads", "2"]].concat())?;
        recording.assert_whole();
        assert_true(&recording.folded, 0.995);
        assert_workers(&recording.folded);
        assert!(recording.stderr.contains("read from its descriptor"), "threads are found without help");
    }
    Ok(())
}

#[test]
fn the_log_of_a_program_that_has_ended_is_read_whole() -> Result<()> {
    let scratch = Scratch::new()?;
    let (command, log) = demo(&scratch, &["--secs", "9", "--generation-ms", "200", "--threads", "1"])?;
    let mut jitprof = Jitprof::recording(&scratch, ["--trace"])?;
    jitprof.command().arg(&log).arg("--").arg(command.get_program()).args(command.get_args());
    let recording = jitprof.record()?;
    assert_true(&recording.folded, 0.995);
    assert_workers(&recording.folded);
    Ok(())
}

#[test]
fn a_saved_recording_takes_the_spans_afterwards() -> Result<()> {
    let scratch = Scratch::new()?;
    let (command, log) = demo(&scratch, &["--secs", "600", "--generation-ms", "200"])?;
    let target = Target::start(command, &scratch)?;
    let recording =
        Jitprof::recording(&scratch, ["--pid", target.said("pid")?, "-o", "out.json"])?.record_cpu(target.pid()?, 4)?;
    assert_eq!(recording.folded.count(|stack| stack.has("RENDER")), 0);
    let mut jitprof = Jitprof::new(&scratch, ["trace"])?;
    jitprof.command().arg(log).args(["--profile", "out.json", "-o", "combined.folded", "-o", "combined.svg"]);
    let finished = jitprof.run()?;
    assert!(finished.status.success(), "{}", finished.stderr);
    let combined = Folded::parse(&std::fs::read_to_string(scratch.file("combined.folded"))?)?;
    assert_eq!(combined.total(), recording.folded.total(), "no sample is lost");
    // Times in a saved profile are whole milliseconds: calls are as short, generations are not.
    let first = |stack: &Stack| stack.has("outer");
    let in_generation = |stack: &Stack| first(stack) && logged(stack).is_some();
    assert_at_least(
        "in generations",
        Share { part: combined.count(in_generation), whole: combined.count(first) },
        0.98,
    );
    let known = |stack: &Stack| generation(stack).is_some() && logged(stack).is_some();
    let right = |stack: &Stack| generation(stack).zip(logged(stack)).is_some_and(|(leaf, span)| leaf % 2 == span);
    assert_at_least("right generation", Share { part: combined.count(right), whole: combined.count(known) }, 0.98);
    Ok(())
}

#[test]
fn a_log_that_is_none_costs_the_spans_and_not_the_recording() -> Result<()> {
    let scratch = Scratch::new()?;
    let (command, _) = demo(&scratch, &["--secs", "600"])?;
    let target = Target::start(command, &scratch)?;
    std::fs::write(scratch.file("no.plog"), "this is not a trace log")?;
    let arguments = [
        "--pid",
        target.said("pid")?,
        "-d",
        "2s",
        "--trace",
        "no.plog",
        "-F",
        "997",
        "-o",
        "out.folded",
        "-o",
        "out.svg",
    ];
    let finished = Jitprof::new(&scratch, arguments)?.run()?;
    assert_eq!(finished.status.code(), Some(1));
    assert!(finished.stderr.contains("byte 0, magic"), "{}", finished.stderr);
    let folded = Folded::parse(&std::fs::read_to_string(scratch.file("out.folded"))?)?;
    assert!(folded.count(|stack| stack.has("outer")) > 20);
    Ok(())
}
