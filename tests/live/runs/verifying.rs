//! Names beside a second source that was made by somebody else.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jitprof_tests::{
    Jitprof, Leftover, Recording, Scratch, Share, Target, assert_at_least_of_few, assert_enough, path_from, target_file,
};

/// Records what a target does in so much CPU time, and removes what it leaves in /tmp.
fn record_verified(command: Command, scratch: &Scratch, cpu_s: u64) -> Result<Recording> {
    let target = Target::start(command, scratch)?;
    let _left = [Leftover::perf_map(target.pid()?), Leftover::dump(target.pid()?)];
    let words = ["--pid", target.said("pid")?, "--verify-names"];
    let recording = Jitprof::recording(scratch, words)?.record_cpu(target.pid()?, cpu_s)?;
    println!("{}", recording.account["verified"]);
    Ok(recording)
}

/// With methods that are compiled again and again, code that is given up, and a collector that moves what it uses.
#[test]
fn what_the_tables_of_a_jvm_name_its_own_perf_map_names_so_too() -> Result<()> {
    let scratch = Scratch::new()?;
    let java = path_from("JITPROF_JAVA")?;
    let jcmd = std::fs::canonicalize(&java)?.with_file_name("jcmd");
    ensure!(jcmd.exists(), "{} is not there: it comes with a JDK, not with a runtime alone", jcmd.display());
    let mut command = Command::new(java);
    command.arg(target_file("java/Mixed.java")?).arg("600").current_dir(scratch.path());
    let target = Target::start(command, &scratch)?;
    std::thread::sleep(Duration::from_secs(2));
    let pid = target.said("pid")?.to_owned();
    let map = format!("/tmp/perf-{pid}.map");
    let lister = {
        let pid = pid.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(2));
            Command::new(jcmd).args([&*pid, "Compiler.perfmap"]).output()
        })
    };
    let recorded = Jitprof::recording(&scratch, ["--pid", &*pid, "--verify-names"])?.record_cpu(target.pid()?, 10);
    let listed = lister.join().ok().context("jcmd is run")??;
    ensure!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    std::fs::remove_file(&map).with_context(|| format!("{map} was written"))?;
    let recording = recorded?;
    recording.assert_whole();
    let of = |name: &str| recording.number(&format!("/verified/{name}"));
    println!("{}", recording.account["verified"]);
    assert_enough("names of two sources", of("agreed"), 1000);
    assert_eq!((of("disagreed"), of("only_perf_map")), (0, 0), "{}", recording.account["verified"]);
    Ok(())
}

/// With functions that are made and dropped all the time, so that addresses are used again and what lies there is moved.
#[test]
fn what_is_read_of_a_node_its_own_dump_names_so_too() -> Result<()> {
    for script in ["gc.js", "pressure.js"] {
        let scratch = Scratch::new()?;
        let mut command = Command::new(path_from("JITPROF_NODE")?);
        command.args(["--perf-prof", "--expose-gc"]).arg(target_file(&format!("node/{script}"))?).arg("600");
        command.current_dir(scratch.path());
        let target = Target::start(command, &scratch)?;
        let pid = target.said("pid")?.to_owned();
        let recording =
            Jitprof::recording(&scratch, ["--pid", &*pid, "--verify-names"])?.record_cpu(target.pid()?, 4)?;
        recording.assert_whole();
        let of = |name: &str| recording.number(&format!("/verified/{name}"));
        println!("{script}: {}", recording.account["verified"]);
        assert_enough("names of two sources", of("agreed"), 100);
        assert_eq!(of("disagreed"), 0, "{}", recording.account["verified"]);
    }
    Ok(())
}

/// Each function of CPython's is begun by code of its own, which the perf map names; its list of frames names the function.
#[test]
fn what_the_list_of_a_cpython_names_its_own_perf_map_names_so_too() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut command = Command::new(path_from("JITPROF_PYTHON")?);
    command.args(["-X", "perf"]).arg(target_file("python/shapes.py")?).arg("600");
    let target = Target::start(command, &scratch)?;
    let _map = Leftover::perf_map(target.pid()?);
    let words = ["--pid", target.said("pid")?, "--verify-names"];
    let recording = Jitprof::recording(&scratch, words)?.record_cpu(target.pid()?, 4)?;
    let of = |name: &str| recording.number(&format!("/verified/{name}"));
    println!("{}", recording.account["verified"]);
    assert_enough("names of two sources", of("agreed"), 1000);
    assert_eq!(of("disagreed"), 0, "{}", recording.account["verified"]);
    Ok(())
}

/// Its modules are found by address in both; the tables are read beside a dump, too.
#[test]
fn what_the_tables_of_an_erlang_name_its_own_dump_and_perf_map_name_so_too() -> Result<()> {
    for (flag, named) in [("true", "jitdump"), ("map", "runtime")] {
        let scratch = Scratch::new()?;
        let compiled = Command::new(path_from("JITPROF_ERLC")?)
            .arg(target_file("erlang/builtins.erl")?)
            .current_dir(scratch.path())
            .status()?;
        ensure!(compiled.success(), "erlc failed");
        let mut command = Command::new(path_from("JITPROF_ERL")?);
        command.args(["-noshell", "+JPperf", flag, "+S", "1", "-pa", ".", "-run", "builtins", "main", "600"]);
        let recording = record_verified(command, &scratch, 3)?;
        let of = |name: &str| recording.number(&format!("/verified/{name}"));
        assert_enough("frames that are named so", recording.number(&format!("/jit/named/{named}")), 1000);
        assert_enough("names of two sources", of("agreed"), 1000);
        assert_eq!(of("disagreed"), 0, "{flag}: {}", recording.account["verified"]);
    }
    Ok(())
}

/// Where a function is jitted as a whole. In a trace the innermost function may be any that the trace goes through.
#[test]
fn what_the_list_of_a_php_has_innermost_its_own_dump_and_perf_map_name_so_too() -> Result<()> {
    const FUNCTIONS: &str = "opcache.jit=1205";
    const TRACES: &str = "opcache.jit=1254";
    const MAP: &str = "opcache.jit_debug=0x10";
    const DUMP_AND_MAP: &str = "opcache.jit_debug=0x20";
    for (jit, debug) in [(FUNCTIONS, MAP), (FUNCTIONS, DUMP_AND_MAP), (TRACES, MAP)] {
        let scratch = Scratch::new()?;
        let mut command = Command::new(path_from("JITPROF_PHP")?);
        for setting in ["opcache.enable=1", "opcache.enable_cli=1", "opcache.jit_buffer_size=64M", jit, debug] {
            command.args(["-d", setting]);
        }
        command.arg(target_file("php/burn.php")?).arg("600");
        let recording = record_verified(command, &scratch, 2)?;
        let of = |name: &str| recording.number(&format!("/verified/{name}"));
        if jit == TRACES {
            assert_enough("leaves of traces", of("incomparable"), 500);
            assert_eq!((of("agreed"), of("disagreed")), (0, 0), "{}", recording.account["verified"]);
            continue;
        }
        assert_enough("names of two sources", of("agreed"), 500);
        // A function that returns is in the list no more while its last instructions run.
        let agreed = Share { part: of("agreed"), whole: of("agreed") + of("disagreed") };
        assert_at_least_of_few("names that agree", agreed, 0.995);
    }
    Ok(())
}
