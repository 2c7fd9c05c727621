//! PHP: a dump or a map names the code that runs, and its own list of frames has the callers.

use std::process::Command;

use anyhow::Result;
use jitprof_tests::{
    Jitprof, Recording, Scratch, Target, assert_at_least, assert_enough, assert_share, path_from, target_file,
};

/// Two workers.
const PREFORK: &str = "php/prefork.php";
/// Settings of opcache.jit.
const FUNCTIONS: &str = "1205";
const TRACES: &str = "1254";
/// Callers that have to be there.
const PROMISED: f64 = 0.99;
/// Settings of opcache.jit_debug.
const MAP: &str = "0x10";
const DUMP_AND_MAP: &str = "0x20";

fn record(jit: &str, debug: Option<&str>) -> Result<Recording> {
    record_script("php/burn.php", (jit, debug), &[])
}

fn record_script(script: &str, (jit, debug): (&str, Option<&str>), how: &[&str]) -> Result<Recording> {
    let scratch = Scratch::new()?;
    let mut command = Command::new(path_from("JITPROF_PHP")?);
    let jit = format!("opcache.jit={jit}");
    for setting in ["opcache.enable=1", "opcache.enable_cli=1", "opcache.jit_buffer_size=64M", &jit] {
        command.args(["-d", setting]);
    }
    if let Some(debug) = debug {
        command.args(["-d", &format!("opcache.jit_debug={debug}")]);
    }
    command.arg(target_file(script)?).arg("600");
    let target = Target::start(command, &scratch)?;
    let jitprof = Jitprof::recording(&scratch, [&["--pid", target.said("pid")?], how].concat())?;
    let recording = match script {
        // The master sleeps.
        PREFORK => jitprof.record_cpu_of(&target.children()?, 6),
        _ => jitprof.record_cpu(target.pid()?, 3),
    };
    // PHP writes to /tmp, whatever is asked for.
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
    assert_share("leaf_hot", recording.folded.share("leaf_hot", "leaf_cold"), 0.75);
}

#[test]
fn compiled_functions_keep_their_leaf() -> Result<()> {
    let recording = record(FUNCTIONS, Some(DUMP_AND_MAP))?;
    assert_burns(&recording);
    assert_eq!(recording.number("/jit/named/perf_map"), 0, "where a dump and a map have a name, the dump's is taken");
    Ok(())
}

#[test]
fn workers_have_the_names_of_what_they_compile_for_each_other() -> Result<()> {
    let recording = record_script(PREFORK, (FUNCTIONS, Some(DUMP_AND_MAP)), &[])?;
    assert_burns(&recording);
    assert_at_least("named leaves", recording.named_leaves(), 0.99);
    assert_eq!(recording.number("/jit/named/perf_map"), 0, "the dump has them all");
    Ok(())
}

#[test]
fn compiled_traces_keep_their_leaf() -> Result<()> {
    assert_burns(&record(TRACES, Some(DUMP_AND_MAP))?);
    Ok(())
}

#[test]
fn a_perf_map_is_enough() -> Result<()> {
    let recording = record(TRACES, Some(MAP))?;
    assert_burns(&recording);
    assert_eq!(recording.number("/jit/named/jitdump"), 0);
    Ok(())
}

#[track_caller]
fn assert_callers(what: &str, recording: &Recording) {
    assert_burns(recording);
    assert_at_least(&format!("{what}: complete stacks"), recording.complete(), PROMISED);
    let folded = &recording.folded;
    let chains = [["burn.php", "outer", "middle", "leaf_hot"], ["burn.php", "outer", "side_cold", "leaf_cold"]];
    let shares = chains.map(|chain| folded.through(&chain));
    assert_at_least(&format!("{what}: chains"), shares.into_iter().sum(), PROMISED);
    let [once, twice] = [1, 2].map(|times| folded.count(|stack| stack.number_of("leaf_hot") == times));
    assert_enough(&format!("{what}: samples of leaf_hot"), once, 100);
    assert_eq!(twice, 0, "{what}: a function is one frame\n{}", folded.largest(5));
}

/// Its code leaves its callers on no native stack.
#[test]
fn announced_functions_have_their_callers_and_one_frame_each() -> Result<()> {
    for (what, debug) in [("a dump", DUMP_AND_MAP), ("a map", MAP)] {
        assert_callers(what, &record(FUNCTIONS, Some(debug))?);
        assert_callers(&format!("{what} of traces"), &record(TRACES, Some(debug))?);
    }
    Ok(())
}

#[test]
fn workers_share_a_dump_and_have_their_own_callers() -> Result<()> {
    let recording = record_script(PREFORK, (FUNCTIONS, Some(DUMP_AND_MAP)), &[])?;
    assert_callers("workers", &recording);
    Ok(())
}

#[test]
fn a_stack_of_one_frame_is_not_called_complete() -> Result<()> {
    let recording = record_script("php/burn.php", (TRACES, Some(MAP)), &["--no-read-runtime"])?;
    let folded = &recording.folded;
    let complete = folded.complete_with("leaf_hot");
    assert_eq!(complete.part, 0, "PHP's native callers are missing");
    assert_enough("samples of leaf_hot", complete.whole, 500);
    Ok(())
}

#[test]
fn without_a_dump_the_exact_settings_are_named_where_its_tables_are_not_read() -> Result<()> {
    let recording = record(FUNCTIONS, None)?;
    assert_eq!(recording.account["advice"].as_array().map(Vec::len), Some(0), "{}", recording.account["advice"]);
    let recording = record_script("php/burn.php", (FUNCTIONS, None), &["--no-read-runtime"])?;
    let advice = recording.account["advice"][0]["advice"].as_str().unwrap_or_default();
    assert!(advice.contains("-d opcache.jit_debug=0x20"), "{advice}");
    Ok(())
}
