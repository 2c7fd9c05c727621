//! Names beside a second source that was made by somebody else.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jitprof_tests::{Jitprof, Leftover, Scratch, Target, assert_enough, path_from, target_file};

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
