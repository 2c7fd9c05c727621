//! `jitprof jitdump` on the dump of a real Node, checked against a reader of the harness' own and against binutils.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use jitprof_tests::{
    Finished, Jitprof, Scratch, Share, Target, assert_at_least, assert_share, loads, path_from, target_file, wait_until,
};
use serde_json::Value;

const FLAGS: [&str; 4] =
    ["--perf-prof", "--perf-prof-unwinding-info", "--interpreted-frames-native-stack", "--no-turbo-inlining"];

fn node(seconds: &str) -> Result<Command> {
    let mut command = Command::new(path_from("JITPROF_NODE")?);
    command.args(FLAGS).arg(target_file("node/burn.js")?).arg(seconds);
    Ok(command)
}

fn jitdump(scratch: &Scratch, arguments: &[&str]) -> Result<Finished> {
    Jitprof::new(scratch, [&["jitdump"], arguments].concat())?.run()
}

fn succeeds(scratch: &Scratch, arguments: &[&str]) -> Result<String> {
    let finished = jitdump(scratch, arguments)?;
    ensure!(finished.status.success(), "{arguments:?}: {}{}", finished.stdout, finished.stderr);
    Ok(finished.stdout)
}

/// Names and how often each is announced.
fn counted<'a>(names: impl Iterator<Item = &'a str>) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    for name in names {
        *counts.entry(name.to_owned()).or_default() += 1;
    }
    counts
}

/// The name of the one dump in the scratch directory.
fn only_dump(scratch: &Scratch) -> Result<String> {
    let names = std::fs::read_dir(scratch.path())?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let names = names.collect::<Result<Vec<_>>>()?;
    let mut dumps = names.into_iter().filter(|name| name.ends_with(".dump"));
    let dump = dumps.next().context("no dump")?;
    ensure!(dumps.next().is_none(), "several dumps");
    Ok(dump)
}

/// Runs Node to its end; the name of its dump in the scratch directory.
fn finished_dump(scratch: &Scratch) -> Result<String> {
    let mut target = Target::start(node("2")?, scratch)?;
    let name = format!("jit-{}.dump", target.said("pid")?);
    target.wait()?;
    Ok(name)
}

#[test]
fn every_record_of_a_finished_dump_is_there_and_nothing_is_an_error() -> Result<()> {
    let scratch = Scratch::new()?;
    let dump = finished_dump(&scratch)?;
    let truth = loads(&scratch.file(&dump))?;
    let listed = succeeds(&scratch, &[&dump, "--records", "--kind", "load", "--json"])?;
    let listed: Vec<Value> = listed.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let names = listed.iter().filter_map(|line| line["name"].as_str());
    assert_eq!(counted(names), counted(truth.iter().map(|load| load.name.as_str())));
    let summary: Value = serde_json::from_str(&succeeds(&scratch, &[&dump, "--json"])?)?;
    let summary = &summary["dumps"][0];
    assert_eq!(summary["statistics"]["functions"], truth.len());
    assert_eq!(summary["survey"]["last_time"], truth.iter().map(|load| load.time_ns).max().unwrap_or(0));
    let check = succeeds(&scratch, &[&dump, "--check"])?;
    assert!(check.contains(": 0 errors, "), "{check}");
    assert!(check.contains("quirk  header-padding  1 ×"), "V8 says who it is: {check}");
    let strict = jitdump(&scratch, &[&dump, "--check", "--strict"])?;
    assert_eq!(strict.status.code(), Some(4), "{}", strict.stderr);
    Ok(())
}

#[test]
fn hot_instructions_are_those_of_the_hot_loop() -> Result<()> {
    let scratch = Scratch::new()?;
    let launched = node("4")?;
    let mut jitprof = Jitprof::recording(&scratch, ["--"])?;
    jitprof.command().arg(launched.get_program()).args(launched.get_args());
    let recording = jitprof.record()?;
    // Now it is whole: what the runtime had in its buffer is written.
    let dump = only_dump(&scratch)?;
    let text = succeeds(&scratch, &[&dump, "--disasm", "leafHot", "--profile", "out.pb.gz", "--json"])?;
    let report: Value = serde_json::from_str(&text)?;
    let functions = report["dumps"][0]["functions"].as_array().context("no functions")?;
    let hot = functions.first().context("no leafHot")?;
    assert!(hot["name"].as_str().is_some_and(|name| name.starts_with("JS:*leafHot")), "{hot}");
    let instructions = hot["instructions"].as_array().context("no code")?;
    let samples = |line: &Value| line["samples"].as_u64().unwrap_or(0);
    let sum: u64 = instructions.iter().map(samples).sum();
    assert_eq!(hot["samples"], sum, "every sample is at an instruction");
    // V8 can optimise it more than once.
    let optimised = functions.iter().filter(|function| function["name"] == hot["name"]);
    let all: u64 = optimised.map(samples).sum();
    let is_leaf = |frames: &[String]| frames.last().is_some_and(|frame| frame == "*leafHot");
    let leaves = recording.folded.count(|stack| is_leaf(&stack.frames));
    assert_eq!(all, leaves, "samples by instruction are those of the flamegraph");
    // The loop is one line of the program: three shifts, three exclusive ors, a counter and a comparison.
    let looped = |line: &&Value| line["line"] == 11 || line["line"].is_null();
    let in_loop: u64 = instructions.iter().filter(looped).map(samples).sum();
    assert_at_least("samples in the loop's line", Share { part: in_loop, whole: sum }, 0.95);
    let hottest = instructions.iter().max_by_key(|line| samples(line)).context("no instruction")?;
    assert!(hottest["text"].as_str().is_some_and(|text| !text.contains("(bad)")), "{hottest}");
    assert_share("leafHot", recording.folded.share("leafHot", "leafCold"), 0.75);
    Ok(())
}

#[test]
fn a_damaged_dump_is_mended_for_readers_that_stop_at_damage() -> Result<()> {
    let scratch = Scratch::new()?;
    let dump = finished_dump(&scratch)?;
    let truth = loads(&scratch.file(&dump))?;
    let mut bytes = std::fs::read(scratch.file(&dump))?;
    // Bytes in the middle of a record's code are overwritten, and more are put in; another record loses its size.
    let (torn, resized) = (truth[truth.len() / 3].end - 8, truth[truth.len() / 2].end);
    bytes[resized + 4..resized + 8].fill(0xee);
    bytes.splice(torn..torn, [0xee; 77]);
    std::fs::write(scratch.file("broken.dump"), &bytes)?;
    assert!(loads(&scratch.file("broken.dump")).is_err(), "a simple reader cannot read it");
    let check = jitdump(&scratch, &["broken.dump", "--check"])?;
    assert_eq!(check.status.code(), Some(4));
    assert!(check.stdout.contains("error  lost-sequence  2 ×"), "{}", check.stdout);
    succeeds(&scratch, &["broken.dump", "--repair", "mended.dump"])?;
    let mended = loads(&scratch.file("mended.dump"))?;
    assert!(mended.len() + 3 >= truth.len(), "{} of {} functions", mended.len(), truth.len());
    assert!(mended.iter().all(|load| truth.iter().any(|known| known.name == load.name)));
    assert!(succeeds(&scratch, &["mended.dump", "--check"])?.contains(": 0 errors, "));
    Ok(())
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && !said.contains("Error"), "{command:?}: {said}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn binutils_read_the_elf_file_of_a_running_node() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = Target::start(node("600")?, &scratch)?;
    let pid = target.said("pid")?;
    let file: &Path = &scratch.file("node.elf");
    // The first optimised functions, and Node's first records with EH frames, reach the dump a moment after the start.
    wait_until("a function with EH frames is in the dump", || {
        succeeds(&scratch, &[pid, "--write-elf", "node.elf"])?;
        Ok(output(Command::new("readelf").arg("--debug-dump=frames").arg(file))?.contains(" FDE cie=").then_some(()))
    })?;
    let symbols = output(Command::new("readelf").args(["-sW"]).arg(file))?;
    let functions = symbols.lines().filter(|line| line.contains(" FUNC ")).count();
    assert!(functions > 1000, "{functions} functions are few for Node");
    let wanted = |line: &&str| line.contains("JS:") && line.contains("leafHot");
    let line = symbols.lines().find(wanted).context("no leafHot among the symbols")?;
    let start = line.split_whitespace().nth(1).context("no address")?;
    let code = output(Command::new("objdump").arg("-d").arg(file))?;
    assert!(code.contains(&format!("{start} <JS:")), "objdump shows code at {start}");
    let lines = output(Command::new("objdump").arg("--dwarf=decodedline").arg(file))?;
    assert!(lines.contains("node:internal/"), "Node's own files have lines");
    let frames = output(Command::new("readelf").arg("--debug-dump=frames").arg(file))?;
    assert!(frames.contains(" FDE cie=") && frames.contains("DW_CFA_def_cfa"), "{frames}");
    Ok(())
}

#[test]
fn a_dump_is_followed_until_its_process_ends() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = Target::start(node("600")?, &scratch)?;
    let pid = target.said("pid")?;
    let jitprof = Jitprof::new(&scratch, ["jitdump", pid, "--follow", "--json", "--name", "leafHot"])?.spawn()?;
    wait_until("leafHot in the dump", || {
        let listed = std::fs::read_to_string(scratch.file("jitprof.stdout"))?;
        Ok(listed.contains("leafHot").then_some(()))
    })?;
    drop(target);
    let finished = jitprof.finish()?;
    assert!(finished.status.success(), "{}", finished.stderr);
    let all: Vec<Value> = finished.stdout.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    assert!(all.iter().all(|line| line["kind"] == "load"), "{}", finished.stdout);
    Ok(())
}
