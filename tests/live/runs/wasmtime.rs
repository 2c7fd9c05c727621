//! wasmtime: frame pointers in all generated code, an exact split.

use std::process::Command;

use anyhow::Result;
use jitprof_tests::{Jitprof, Recording, Scratch, Target, assert_at_least, assert_share, path_from, target_file};

fn start(profiler: &str, scratch: &Scratch) -> Result<Target> {
    let mut command = Command::new(path_from("JITPROF_WASMTIME_PYTHON")?);
    command.arg(target_file("wasmtime/burn.py")?).args([profiler, "600"]);
    Target::start(command, scratch)
}

fn record(target: &Target, scratch: &Scratch) -> Result<Recording> {
    Jitprof::recording(scratch, ["--pid", target.said("pid")?])?.record_cpu(target.pid()?, 3)
}

#[track_caller]
fn assert_burns(recording: &Recording) {
    recording.assert_named();
    let folded = &recording.folded;
    assert_share("leaf_hot", folded.share("leaf_hot", "spin"), 0.75);
    let entry = "wasm[0]::array_to_wasm_trampoline[4]";
    let chains = [["middle", "leaf_hot"], ["side_cold", "spin"]];
    let chains = chains.iter().map(|end| folded.through(&[&[entry, "outer"], &end[..]].concat()));
    assert_at_least("chains", chains.sum(), 0.99);
}

#[test]
fn a_jitdump_names_whole_chains() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = start("jitdump", &scratch)?;
    let recording = record(&target, &scratch)?;
    assert_burns(&recording);
    assert_eq!(recording.number("/jit/named/perf_map"), 0);
    Ok(())
}

#[test]
fn a_perf_map_names_whole_chains() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = start("perfmap", &scratch)?;
    let recording = record(&target, &scratch)?;
    std::fs::remove_file(format!("/tmp/perf-{}.map", target.pid()?))?;
    assert_burns(&recording);
    assert_eq!(recording.number("/jit/named/jitdump"), 0);
    Ok(())
}

#[test]
fn without_either_the_exact_setting_is_named() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = start("none", &scratch)?;
    let recording = record(&target, &scratch)?;
    let advice = recording.account["advice"][0]["advice"].as_str().unwrap_or_default();
    assert!(advice.contains(r#"config.profiler = "jitdump""#), "{advice}");
    Ok(())
}
