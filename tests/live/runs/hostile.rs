//! Targets that write nonsense, or names that are more than names.

use std::process::Command;

use anyhow::{Context, Result};
use jitprof_tests::{Jitprof, Recording, Scratch, Target, path_from};
use quick_xml::events::Event;

fn record(scratch: &Scratch, arguments: &[&str]) -> Result<Recording> {
    let mut command = Command::new(path_from("JITPROF_DEMO")?);
    command.args(["--secs", "600", "--generations", "1"]).args(arguments);
    let target = Target::start(command, scratch)?;
    Jitprof::recording(scratch, ["--pid", target.said("pid")?])?.record_cpu(target.pid()?, 2)
}

/// The counts of the first dump.
fn records(recording: &Recording) -> &serde_json::Value {
    &recording.account["sources"][0]["dumps"][0]["records"]
}

#[test]
fn a_file_of_noise_names_nothing_and_is_said_to_be_none() -> Result<()> {
    let recording = record(&Scratch::new()?, &["--damage", "noise"])?;
    assert_eq!(recording.number("/jit/leaves_named"), 0);
    assert!(recording.number("/jit/leaves_unnamed") > 0);
    let remarks = recording.account["remarks"].to_string();
    assert!(remarks.contains("is mapped like a jitdump and is none"), "{remarks}");
    Ok(())
}

#[test]
fn noise_between_records_costs_no_function() -> Result<()> {
    let recording = record(&Scratch::new()?, &["--damage", "gaps"])?;
    recording.assert_whole();
    let counts = records(&recording);
    assert_eq!(counts["functions"], 10, "every LOAD is found again");
    assert!(counts["resyncs"].as_u64() >= Some(10), "{}", counts["resyncs"]);
    // Three records a function, 333 bytes behind each.
    assert!(counts["corrupt_bytes"].as_u64() >= Some(10 * 333), "{}", counts["corrupt_bytes"]);
    Ok(())
}

#[test]
fn records_that_lie_about_their_size_cost_themselves() -> Result<()> {
    let recording = record(&Scratch::new()?, &["--damage", "sizes"])?;
    recording.assert_whole();
    let skipped = records(&recording)["corrupt_bytes"].as_u64();
    assert!(skipped > Some(0), "{skipped:?}");
    Ok(())
}

/// A name that breaks XML, folded lines, terminals and the direction of text, if it is written as it is.
const NAME: &str = "<script>alert(\"&'\")</script>;]]>\n\t\u{1b}[31m\u{202e}\u{7f} 42 ";

#[test]
fn names_that_would_take_for_ever_to_demangle_stay_as_they_are() -> Result<()> {
    let name = format!("_Z1fA{}", "na".repeat(50));
    let recording = record(&Scratch::new()?, &["--name-prefix", &name])?;
    recording.assert_whole();
    let whole = recording.folded.count(|stack| stack.frames.iter().any(|frame| frame.contains(&name)));
    assert!(whole > 0, "the name is shown");
    Ok(())
}

#[test]
fn hostile_names_of_functions_stay_names() -> Result<()> {
    let scratch = Scratch::new()?;
    let recording = record(&scratch, &["--name-prefix", NAME])?;
    recording.assert_whole();
    assert_is_xml(&recording)?;
    let printable = |stack: &jitprof_tests::Stack| stack.frames.iter().all(|frame| !frame.contains(char::is_control));
    assert_eq!(recording.folded.count(|stack| !printable(stack)), 0, "no control characters in folded lines");
    let whole = recording
        .folded
        .count(|stack| stack.frames.iter().any(|frame| frame.contains("</script>") && frame.ends_with("leaf_hot_g0")));
    assert!(whole > 0, "the name is shown in one frame");
    Ok(())
}

#[test]
fn hostile_names_of_processes_stay_names() -> Result<()> {
    let scratch = Scratch::new()?;
    // A process' first name is its file's, cut after 15 bytes.
    let binary = scratch.file("<&\";\u{1b}]0;x\n--]]>");
    std::fs::copy(path_from("JITPROF_DEMO")?, &binary)?;
    let mut command = Command::new(&binary);
    command.args(["--secs", "600", "--generations", "1"]);
    let target = Target::start(command, &scratch)?;
    let recording = Jitprof::recording(&scratch, ["--pid", target.said("pid")?])?.record_cpu(target.pid()?, 2)?;
    recording.assert_whole();
    assert_is_xml(&recording)?;
    assert!(!recording.stderr.contains('\u{1b}'), "no escape sequence reaches the terminal: {:?}", recording.stderr);

    // The name becomes part of the default output's.
    let mut running = Jitprof::new(&scratch, ["--pid", target.said("pid")?, "-F", "997"])?.spawn()?;
    running.wait_for_samples(target.pid()?, 500)?;
    running.signal(libc::SIGINT)?;
    let finished = running.finish()?;
    assert!(finished.status.success(), "{}", finished.stderr);
    let written = finished.stderr.lines().find_map(|line| line.strip_prefix("written")).context("nothing written")?;
    let name = written.trim();
    assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)), "{name:?}");
    assert!(scratch.file(name).exists(), "{name}");
    Ok(())
}

/// Reads the whole flamegraph.
fn assert_is_xml(recording: &Recording) -> Result<()> {
    let text = std::fs::read_to_string(&recording.svg)?;
    let mut reader = quick_xml::Reader::from_str(&text);
    reader.config_mut().check_end_names = true;
    let mut titles = 0;
    loop {
        match reader.read_event().context("the flamegraph is no XML")? {
            Event::Eof => break,
            Event::Start(tag) if tag.name().as_ref() == b"title" => titles += 1,
            Event::Start(tag) => {
                for attribute in tag.attributes() {
                    attribute.context("a broken attribute")?;
                }
            }
            Event::Text(text) => {
                text.decode()?;
            }
            _ => {}
        }
    }
    assert!(titles > 10, "{titles} frames");
    Ok(())
}
