//! Targets with pid, mount and root of their own, as containers have them.

use std::process::Command;

use anyhow::Result;
use jitprof_tests::{Jitprof, Recording, Scratch, Target, assert_at_least, assert_share, path_from};

/// Makes a root with nothing but the system's libraries, and runs the demo in it.
const CONTAINER: &str = r#"
set -e
mount -t tmpfs tmpfs "$1"
cd "$1"
for directory in usr lib lib64; do
    if [ -d /$directory ]; then mkdir $directory; mount --rbind /$directory $directory; fi
done
mkdir proc tmp demo old
cp "$2" demo/jitdemo
mount -t proc proc proc
shift 2
pivot_root . old
exec chroot . /usr/bin/sh -c 'umount -l /old; exec /demo/jitdemo --secs 60 --dir /tmp "$@"' sh "$@"
"#;

fn record(arguments: &[&str]) -> Result<Recording> {
    let scratch = Scratch::new()?;
    let root = scratch.file("root");
    std::fs::create_dir(&root)?;
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount", "sh", "-c", CONTAINER, "sh"]);
    command.arg(&root).arg(path_from("JITPROF_DEMO")?).args(arguments);
    let target = Target::start(command, &scratch)?;
    assert_eq!(target.pid()?, 1, "it has a pid namespace of its own");
    let pid = target.only_child()?.to_string();
    Jitprof::recording(&scratch, ["--pid", &pid, "-d", "3s"])?.record()
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
