//! Targets with pid, mount and root of their own, as containers have them.

use anyhow::Result;
use jitprof_tests::{Jitprof, Recording, Scratch, Target, assert_at_least, assert_share, container, path_from};

fn record(arguments: &[&str]) -> Result<Recording> {
    let scratch = Scratch::new()?;
    let demo = path_from("JITPROF_DEMO")?;
    let run = format!("/app/jitdemo --secs 600 --dir /tmp {}", arguments.join(" "));
    let command = container(&scratch, [(demo.as_path(), "jitdemo")], &run)?;
    let target = Target::start(command, &scratch)?;
    assert_eq!(target.pid()?, 1, "it has a pid namespace of its own");
    let pid = target.only_child()?;
    Jitprof::recording(&scratch, ["--pid", &pid.to_string()])?.record_cpu(pid, 3)
}

#[track_caller]
fn assert_burns(recording: &Recording) {
    recording.assert_whole();
    assert_share("leaf_hot", recording.folded.share("leaf_hot_g0", "leaf_cold_g0"), 0.75);
    assert_at_least("chain", recording.folded.through(&["outer", "middle", "leaf_hot_g0"]), 0.98);
    let native = recording.folded.count(|stack| stack.has_prefix("jitdemo::run::"));
    assert!(native > 0, "native frames come from the binary in the container");
}

#[test]
fn a_dump_is_found_by_the_targets_own_pid_and_root() -> Result<()> {
    let recording = record(&["--generations", "1"])?;
    assert_burns(&recording);
    assert_eq!(recording.account["sources"][0]["dumps"][0]["path"], "/tmp/jit-1.dump");
    Ok(())
}

#[test]
fn a_deleted_dump_is_found_too() -> Result<()> {
    assert_burns(&record(&["--generations", "1", "--delete"])?);
    Ok(())
}

#[test]
fn a_perf_map_is_found_by_the_targets_own_pid_and_root() -> Result<()> {
    let recording = record(&["--generations", "1", "--perf-map"])?;
    assert_burns(&recording);
    assert!(recording.number("/jit/named/perf_map") > 0);
    Ok(())
}
