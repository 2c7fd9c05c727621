//! Captures: what `jitprof replay` makes of one is what the recording itself wrote, byte for byte.
//!
//! With `JITPROF_KEEP_CAPTURES=FOLDER` each capture stays there, under its test's name: `profiler/tests/captures` is made
//! so. What runs is copied into the scratch directory first, for the paths are in the capture.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use jitprof_tests::{
    Continuous, Finished, Jitprof, Leftover, Recording, Running, Scratch, Target, compile, path_from, target_file,
};

/// The file that recordings here write.
const CAPTURE: &str = "run.capture";
/// Samples per second: captures are to be small.
const FREQUENCY: &str = "99";

/// Takes this machine's environment away from a program: what lies on its stack may be in the capture.
fn neutral(command: &mut Command) -> &mut Command {
    let libraries = std::env::var_os("LD_LIBRARY_PATH").map(|path| ("LD_LIBRARY_PATH", path));
    command.env_clear().env("PATH", "/usr/bin:/bin").envs(libraries)
}

/// Starts a recording that is captured.
fn record<'a>(scratch: &'a Scratch, frequency: &str, arguments: &[&str]) -> Result<Running<'a>> {
    let mut jitprof = Jitprof::recording_at(scratch, frequency, [&["--capture", CAPTURE], arguments].concat())?;
    neutral(jitprof.command());
    jitprof.spawn()
}

/// Ends a recording, and checks its capture.
fn finish(running: Running<'_>, scratch: &Scratch, name: &str) -> Result<Recording> {
    running.signal(libc::SIGINT)?;
    let recording = running.record()?;
    assert_replays(scratch, name)?;
    Ok(recording)
}

/// Records a target until it has used so much CPU time, and checks the capture.
fn record_cpu(target: &Target, scratch: &Scratch, name: &str, cpu_ms: u64) -> Result<Recording> {
    let mut running = record(scratch, FREQUENCY, &["--pid", target.said("pid")?])?;
    running.wait_for_samples(target.pid()?, cpu_ms)?;
    finish(running, scratch, name)
}

/// Replays the capture: every output is the same as that of the recording.
fn assert_replays(scratch: &Scratch, name: &str) -> Result<()> {
    keep(scratch, name)?;
    let outputs = ["-o", "again.folded", "-o", "again.pb.gz", "-o", "again.svg", "--account", "again.account"];
    replay(scratch, &outputs)?;
    for kind in ["folded", "pb.gz", "svg", "account"] {
        assert_same(scratch, kind)?;
    }
    Ok(())
}

fn replay(scratch: &Scratch, outputs: &[&str]) -> Result<Finished> {
    let finished = Jitprof::new(scratch, [&["replay", CAPTURE], outputs].concat())?.run()?;
    let said = &finished.stderr;
    assert!(finished.status.success(), "{said}");
    assert!(!said.contains("asks for more") && !said.contains("ends before"), "{said}");
    Ok(finished)
}

fn assert_same(scratch: &Scratch, kind: &str) -> Result<()> {
    let read = |name: &str| fs::read(scratch.file(&format!("{name}.{kind}"))).with_context(|| format!("{name}.{kind}"));
    let (recorded, again) = (read("out")?, read("again")?);
    if recorded != again {
        let (recorded, again) = (String::from_utf8_lossy(&recorded), String::from_utf8_lossy(&again));
        let differing: Vec<_> =
            recorded.lines().zip(again.lines()).filter(|(one, other)| one != other).take(5).collect();
        panic!("{kind}: {} bytes were recorded, {} replayed: {differing:#?}", recorded.len(), again.len());
    }
    Ok(())
}

fn keep(scratch: &Scratch, name: &str) -> Result<()> {
    let capture = scratch.file(CAPTURE);
    println!("{name}: {} bytes", fs::metadata(&capture)?.len());
    if let Some(folder) = std::env::var_os("JITPROF_KEEP_CAPTURES") {
        fs::create_dir_all(&folder)?;
        fs::copy(capture, Path::new(&folder).join(format!("{name}.capture")))?;
    }
    Ok(())
}

/// Whether the capture holds these bytes anywhere.
fn is_in_capture(scratch: &Scratch, wanted: &[u8]) -> Result<bool> {
    let capture = fs::read(scratch.file(CAPTURE))?;
    let line = capture.iter().position(|&byte| byte == b'\n').context("no first line")?;
    let held = zstd::decode_all(&capture[line + 1..])?;
    Ok(held.windows(wanted.len()).any(|window| window == wanted))
}

/// A copy of a program or a script.
fn copy(scratch: &Scratch, file: &Path) -> Result<PathBuf> {
    let copy = scratch.file(&file.file_name().context("no file")?.to_string_lossy());
    fs::copy(file, &copy).with_context(|| format!("copying {}", file.display()))?;
    Ok(copy)
}

fn jitdemo(scratch: &Scratch, arguments: &[&str]) -> Result<Target> {
    let mut command = Command::new(copy(scratch, &path_from("JITPROF_DEMO")?)?);
    neutral(&mut command).args(["--secs", "600"]).args(arguments);
    Target::start(command, scratch)
}

/// Node with names of JavaScript alone: V8's builtins are 2 MB of a dump.
fn node(scratch: &Scratch, flag: &str, script: &str, arguments: &[&str]) -> Result<(Target, Leftover)> {
    copy(scratch, &target_file(&format!("node/{script}"))?)?;
    let mut command = Command::new(path_from("JITPROF_NODE")?);
    neutral(&mut command)
        .args([flag, "--perf-basic-prof-only-functions", "--expose-gc", script, "600"])
        .args(arguments);
    let target = Target::start(command, scratch)?;
    let map = Leftover::perf_map(target.pid()?);
    Ok((target, map))
}

fn native(scratch: &Scratch, source: &str, arguments: &[&str]) -> Result<Target> {
    let flags = ["-O1", "-g", "-fno-omit-frame-pointer", "-pthread"];
    let mut command = Command::new(compile(scratch, "cc", source, &flags)?);
    neutral(&mut command).args(arguments);
    Target::start(command, scratch)
}

#[track_caller]
fn assert_has(recording: &Recording, names: &[&str]) {
    for name in names {
        assert!(recording.folded.count(|stack| stack.has(name)) > 0, "{name} was sampled");
    }
}

#[test]
fn node_code_reuse() -> Result<()> {
    let scratch = Scratch::new()?;
    let (target, map) = node(&scratch, "--perf-prof", "gc.js", &["20000", "10"])?;
    let recording = record_cpu(&target, &scratch, "node_code_reuse", 1000)?;
    assert!(recording.number("/jit/named/jitdump") > 0);
    drop((target, map));
    Ok(())
}

#[test]
fn jitdemo_generations() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = jitdemo(&scratch, &["--generation-ms", "200"])?;
    let recording = record_cpu(&target, &scratch, "jitdemo_generations", 1500)?;
    let generations = (0..1000).filter(|number| {
        let name = format!("leaf_hot_g{number}");
        recording.folded.count(|stack| stack.has(&name)) > 0
    });
    assert!(generations.count() > 2, "each at the addresses of the one before");
    Ok(())
}

#[test]
fn fork_storm() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = native(&scratch, "native/storm.c", &["forks", "600", "200"])?;
    let recording = record_cpu(&target, &scratch, "fork_storm", 500)?;
    assert!(recording.number("/processes/events") > 100);
    assert_has(&recording, &["storm_burn"]);
    Ok(())
}

#[test]
fn exec_of_another_program() -> Result<()> {
    let scratch = Scratch::new()?;
    compile(&scratch, "cc", "native/storm.c", &["-O1", "-g", "-fno-omit-frame-pointer"])?;
    let mut command = Command::new("sh");
    neutral(&mut command)
        .args(["-c", "trap 'exec ./storm burn 600' USR1; echo ready pid=$$; while :; do i=$((i + 1)); done"]);
    let target = Target::start(command, &scratch)?;
    let mut running = record(&scratch, FREQUENCY, &["--pid", target.said("pid")?])?;
    running.wait_for_samples(target.pid()?, 500)?;
    target.signal(libc::SIGUSR1)?;
    running.wait_for_samples(target.pid()?, 700)?;
    let recording = finish(running, &scratch, "exec_of_another_program")?;
    assert_has(&recording, &["storm_burn"]);
    let shell = recording.folded.count(|stack| stack.frames.first().is_some_and(|name| name == "sh"));
    assert!(shell > 0 && shell < recording.folded.total(), "{shell} samples of the shell");
    Ok(())
}

#[test]
fn lost_samples() -> Result<()> {
    let scratch = Scratch::new()?;
    // Samples of some 4 KiB, of which the ring holds a few hundred.
    let target = native(&scratch, "native/depth.c", &["500", "600"])?;
    let mut running = record(&scratch, "997", &["--pid", target.said("pid")?])?;
    running.wait_for_samples(target.pid()?, 100)?;
    running.signal(libc::SIGSTOP)?;
    running.wait_for_samples(target.pid()?, 1500)?;
    running.signal(libc::SIGCONT)?;
    running.wait_for_samples(target.pid()?, 100)?;
    let recording = finish(running, &scratch, "lost_samples")?;
    assert!(recording.number("/samples/lost_ring_full") > 0, "the ring was full");
    Ok(())
}

#[test]
fn python_deferred() -> Result<()> {
    let scratch = Scratch::new()?;
    copy(&scratch, &target_file("python/burn.py")?)?;
    let python = path_from("JITPROF_PYTHON")?;
    let python = python.to_str().context("JITPROF_PYTHON is no text")?;
    // Often, for the time until the interpreter's rows are built is short.
    let arguments = ["--capture", CAPTURE, "--", python, "-X", "perf_jit", "burn.py", "1"];
    let mut jitprof = Jitprof::recording_at(&scratch, "997", arguments)?;
    // Secrets are handed over so; the copies of stacks, which lie just below, are to end before.
    let secret = "not-for-others".repeat(100);
    neutral(jitprof.command()).env("SECRET", &secret);
    let recording = jitprof.spawn()?.record()?;
    let pid = recording.account["sources"][0]["pid"].as_u64().context("no announcements")?;
    let dump = Leftover::dump(u32::try_from(pid)?);
    assert_replays(&scratch, "python_deferred")?;
    assert!(recording.number("/deferred/finished_by_rows") > 0, "the interpreter runs before its rows are built");
    // A vector register that a function has saved may have some of it, 64 bytes at most.
    assert!(!is_in_capture(&scratch, &b"not-for-others".repeat(6))?, "the environment is in the capture");
    assert!(is_in_capture(&scratch, b"burn.py")?, "what is in it can be looked for");
    drop(dump);
    Ok(())
}

#[test]
fn damaged_dump() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = jitdemo(&scratch, &["--generations", "3", "--damage", "gaps"])?;
    let recording = record_cpu(&target, &scratch, "damaged_dump", 1000)?;
    let records = &recording.source(target.pid()?)["dumps"][0]["records"];
    assert!(records["resyncs"].as_u64() > Some(0), "{records}");
    Ok(())
}

#[test]
fn replaced_library() -> Result<()> {
    let scratch = Scratch::new()?;
    let library = |name: &str| -> Result<PathBuf> {
        let name = format!("-DWORK={name}");
        let flags = ["-O1", "-g", "-fno-omit-frame-pointer", "-shared", "-fPIC", &name];
        compile(&scratch, "cc", "native/work.c", &flags)
    };
    let place = scratch.file("libwork.so");
    fs::rename(library("old_work")?, &place)?;
    let target = native(&scratch, "native/lives.c", &["library"])?;
    let mut running = record(&scratch, FREQUENCY, &["--pid", target.said("pid")?])?;
    running.wait_for_samples(target.pid()?, 500)?;
    fs::rename(library("new_work")?, &place)?;
    target.signal(libc::SIGUSR1)?;
    let child = running.wait_for("the new process", || Ok(target.only_child().ok()))?;
    running.wait_for_samples(child, 500)?;
    let recording = finish(running, &scratch, "replaced_library")?;
    assert_has(&recording, &["old_work", "new_work"]);
    Ok(())
}

#[test]
fn threads_that_come_and_go() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = native(&scratch, "native/lives.c", &["threads"])?;
    let recording = record_cpu(&target, &scratch, "threads_that_come_and_go", 700)?;
    assert_has(&recording, &["thread_work"]);
    Ok(())
}

#[test]
fn leader_ends_before_its_threads() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = native(&scratch, "native/lives.c", &["leader"])?;
    let recording = record_cpu(&target, &scratch, "leader_ends_before_its_threads", 3000)?;
    assert_has(&recording, &["outlives_leader"]);
    // It is looked at each second whether the process is there yet.
    let lasted = recording.account["duration_s"].as_f64();
    assert!(lasted.is_some_and(|seconds| seconds > 2.8), "the recording ended with the first thread: {lasted:?}");
    Ok(())
}

#[test]
fn setuid() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = native(&scratch, "native/lives.c", &["setuid"])?;
    let recording = record_cpu(&target, &scratch, "setuid", 1500)?;
    assert_has(&recording, &["as_nobody"]);
    Ok(())
}

#[test]
fn node_perf_map() -> Result<()> {
    let scratch = Scratch::new()?;
    let (target, map) = node(&scratch, "--perf-basic-prof", "burn.js", &[])?;
    let recording = record_cpu(&target, &scratch, "node_perf_map", 1000)?;
    assert_has(&recording, &["leafHot"]);
    assert!(recording.number("/jit/named/perf_map") > 0);
    drop((target, map));
    Ok(())
}

#[test]
fn ittapi_announcements() -> Result<()> {
    let scratch = Scratch::new()?;
    let agent = copy(&scratch, &path_from("JITPROF_AGENT")?)?;
    let mut command = Command::new(copy(&scratch, &path_from("JITPROF_JIT_API")?)?);
    neutral(&mut command).arg("600").env("INTEL_JIT_PROFILER64", agent).env("JITPROF_AGENT_DIR", scratch.path());
    let target = Target::start(command, &scratch)?;
    let recording = record_cpu(&target, &scratch, "ittapi_announcements", 1500)?;
    assert_has(&recording, &["two_loops", "hot_part"]);
    Ok(())
}

#[test]
fn continuous_windows() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = jitdemo(&scratch, &["--generation-ms", "300"])?;
    let capture = ["--capture", CAPTURE, "--folded", "out.folded", "--window-ms", "400", "--grace-ms", "200"];
    let arguments = [&["--hz", FREQUENCY, "--pid", target.said("pid")?], &capture[..]].concat();
    let mut continuous = Continuous::start(&scratch, &arguments)?;
    continuous.skip(3)?;
    let ended = continuous.stop()?;
    keep(&scratch, "continuous_windows")?;
    replay(&scratch, &["-o", "again.folded", "--account", "again.account"])?;
    assert_same(&scratch, "folded")?;
    let again: serde_json::Value = serde_json::from_slice(&fs::read(scratch.file("again.account"))?)?;
    assert_eq!(again, ended.account);
    Ok(())
}
