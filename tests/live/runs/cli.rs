//! The command line: targets, ends, outputs, errors and exit statuses.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use jitprof_tests::{
    Finished, Folded, Jitprof, Scratch, Share, Stack, Target, assert_at_least, path_from, verified_programs, wait_until,
};

/// Status of a run that failed, of a wrong command line, and of a run without samples.
const FAILED: Option<i32> = Some(1);
const USAGE: Option<i32> = Some(2);
const NO_SAMPLES: Option<i32> = Some(3);

fn start(scratch: &Scratch) -> Result<Target> {
    let mut command = Command::new(path_from("JITPROF_DEMO")?);
    command.args(["--secs", "600", "--generations", "1"]);
    Target::start(command, scratch)
}

fn run(arguments: &[&str]) -> Result<Finished> {
    Jitprof::new(&Scratch::new()?, arguments)?.run()
}

/// The one line that it said.
#[track_caller]
fn assert_fails(finished: &Finished, status: Option<i32>, words: &[&str]) {
    assert_eq!(finished.status.code(), status, "{}", finished.stderr);
    let lines: Vec<&str> = finished.stderr.lines().collect();
    assert_eq!(lines.len(), 1, "one sentence: {}", finished.stderr);
    for word in words {
        assert!(finished.stderr.contains(word), "{word:?} in: {}", finished.stderr);
    }
    assert_eq!(finished.stdout, "");
}

#[test]
fn a_pid_of_nobody_is_one_sentence() -> Result<()> {
    // Above the largest pid that Linux gives.
    assert_fails(&run(&["--pid", "4194305"])?, FAILED, &["no process 4194305", "(os error 2)"]);
    Ok(())
}

#[test]
fn a_tid_of_nobody_is_one_sentence() -> Result<()> {
    assert_fails(&run(&["--tid", "4194305"])?, FAILED, &["no thread 4194305"]);
    Ok(())
}

#[test]
fn a_name_of_nobody_is_one_sentence() -> Result<()> {
    assert_fails(&run(&["--comm", "no-such-program"])?, FAILED, &["no process or thread is called no-such-program"]);
    Ok(())
}

#[test]
fn a_kernel_thread_is_refused_with_what_to_do() -> Result<()> {
    // kthreadd
    assert_fails(&run(&["--pid", "2"])?, FAILED, &["kernel thread", "--all"]);
    Ok(())
}

#[test]
fn a_process_that_has_ended_is_told_from_one_that_waits() -> Result<()> {
    let mut zombie = Command::new("true").spawn()?;
    let pid = zombie.id().to_string();
    let state = format!("/proc/{pid}/stat");
    wait_until("the zombie", || Ok(std::fs::read_to_string(&state)?.contains(") Z ").then_some(())))?;
    let finished = run(&["--pid", &pid])?;
    zombie.wait()?;
    assert_fails(&finished, FAILED, &["has ended", "zombie", &std::process::id().to_string()]);
    Ok(())
}

#[test]
fn a_user_without_rights_is_told_which_are_missing() -> Result<()> {
    const NOBODY: u32 = 65534;
    let scratch = Scratch::new()?;
    let target = start(&scratch)?;
    // The build directory may be closed to other users.
    let binary = scratch.file("jitprof");
    std::fs::copy(path_from("JITPROF_BIN")?, &binary)?;
    let directory = scratch.file("of-nobody");
    std::fs::create_dir(&directory)?;
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o777))?;
    let mut jitprof = Jitprof::at(&binary, &scratch, ["--pid", target.said("pid")?, "-d", "1s"]);
    jitprof.command().uid(NOBODY).gid(NOBODY).current_dir(&directory);
    assert_fails(&jitprof.run()?, FAILED, &["not permitted", "CAP_BPF", "CAP_PERFMON", "sudo"]);
    Ok(())
}

#[test]
fn diagnostics_say_what_the_verifier_and_the_bpf_programs_say() -> Result<()> {
    let scratch = Scratch::new()?;
    // Tasks that are exiting have no user registers, which is one of the rare events.
    let mut storm = std::process::Command::new("sh");
    storm.args(["-c", "echo ready pid=$$; while :; do /bin/true; done"]);
    let target = Target::start(storm, &scratch)?;
    let finished = Jitprof::new(&scratch, ["-vv", "--all", "-F", "1999", "-d", "4s", "-o", "all.svg"])?.run()?;
    drop(target);
    assert!(finished.status.success(), "{}", finished.stderr);
    for expected in ["instructions verified", "has no user registers"] {
        assert!(finished.stderr.contains(expected), "{expected} in:\n{}", finished.stderr);
    }
    Ok(())
}

#[test]
fn an_output_that_cannot_be_written_is_found_before_recording() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = start(&scratch)?;
    for output in ["-o", "--account"] {
        // Without --duration it would go on for ever if it began.
        let arguments = ["--pid", target.said("pid")?, output, "no/such/directory/x.svg"];
        assert_fails(&Jitprof::new(&scratch, arguments)?.run()?, FAILED, &["no/such/directory/x.svg"]);
    }
    Ok(())
}

#[test]
fn a_wrong_command_line_is_status_2() -> Result<()> {
    for arguments in [
        &["--no-such-option"][..],
        &[],
        &["--pid", "1", "--all"],
        &["--pid", "x"],
        &["--pid", "1", "-o", "x.unknown"],
        &["--pid", "1", "-o", "-"],
        &["--pid", "1", "-U", "-K"],
        &["--pid", "1", "-d", "10x"],
        &["servee"],
    ] {
        let finished = run(arguments)?;
        assert_eq!(finished.status.code(), USAGE, "{arguments:?}: {}", finished.stderr);
        assert_eq!(finished.stdout, "", "{arguments:?}");
    }
    Ok(())
}

#[test]
fn a_command_that_does_not_exist_is_one_sentence() -> Result<()> {
    assert_fails(&run(&["--", "/no/such/program"])?, FAILED, &["cannot start /no/such/program"]);
    Ok(())
}

#[test]
fn an_idle_target_is_status_3_and_leaves_no_file() -> Result<()> {
    let scratch = Scratch::new()?;
    let arguments = ["-d", "1s", "-o", "idle.svg", "--", "sleep", "60"];
    let finished = Jitprof::new(&scratch, ["-F", "1"].into_iter().chain(arguments))?.run()?;
    assert_eq!(finished.status.code(), NO_SAMPLES, "{}", finished.stderr);
    assert!(finished.stderr.contains("no samples: the target used no CPU"), "{}", finished.stderr);
    let files: Vec<_> = std::fs::read_dir(scratch.path())?.filter_map(|entry| Some(entry.ok()?.file_name())).collect();
    assert!(files.iter().all(|name| name.to_string_lossy().starts_with("jitprof.std")), "{files:?}");
    Ok(())
}

#[test]
fn a_target_that_exits_at_once_ends_the_run() -> Result<()> {
    let finished = run(&["-F", "9973", "-o", "-", "--format", "folded", "--", "true"])?;
    let status = finished.status.code();
    assert!(status == Some(0) || status == NO_SAMPLES, "{status:?}: {}", finished.stderr);
    assert!(!finished.stderr.contains("panicked"), "{}", finished.stderr);
    Ok(())
}

#[test]
fn signals_end_the_run_and_the_default_output_is_written() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = start(&scratch)?;
    let svg = scratch.file(&format!("jitprof-jitdemo-{}.svg", target.pid()?));
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let mut running = Jitprof::new(&scratch, ["--pid", target.said("pid")?, "-F", "499"])?.spawn()?;
        running.wait_for_samples(target.pid()?, 300)?;
        running.signal(signal)?;
        let finished = running.finish()?;
        assert!(finished.status.success(), "signal {signal}: {}", finished.stderr);
        let text = std::fs::read_to_string(&svg).with_context(|| format!("signal {signal}"))?;
        assert!(text.contains("leaf_hot_g0"), "signal {signal}");
        std::fs::remove_file(&svg)?;
    }
    Ok(())
}

#[test]
fn a_terminal_that_is_closed_loses_no_recording() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = start(&scratch)?;
    let jitprof = Jitprof::new(&scratch, ["--pid", target.said("pid")?, "-F", "499", "-o", "x.folded"])?;
    let (reader, writer) = std::io::pipe()?;
    let mut running = jitprof.spawn_saying_to(writer)?;
    running.wait_for_samples(target.pid()?, 1000)?;
    // From now on nobody reads what it says: the account, at least.
    drop(reader);
    running.signal(libc::SIGHUP)?;
    assert!(running.wait()?.success());
    let folded = Folded::parse(&std::fs::read_to_string(scratch.file("x.folded"))?)?;
    assert!(folded.count(|stack| stack.has("leaf_hot_g0")) > 0);
    Ok(())
}

#[test]
fn an_output_that_has_lost_its_place_gets_another_and_takes_no_other_with_it() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = start(&scratch)?;
    let gone = scratch.file("gone");
    std::fs::create_dir(&gone)?;
    let arguments = ["--pid", target.said("pid")?, "-F", "499", "-q", "-o", "gone/x.folded", "-o", "y.folded"];
    let mut jitprof = Jitprof::new(&scratch, arguments)?;
    jitprof.command().env("TMPDIR", scratch.path());
    let mut running = jitprof.spawn()?;
    running.wait_for_samples(target.pid()?, 1000)?;
    std::fs::remove_dir(&gone)?;
    running.signal(libc::SIGINT)?;
    let finished = running.finish()?;
    assert_eq!(finished.status.code(), FAILED, "{}", finished.stderr);
    let aside = finished.stderr.lines().find_map(|line| line.strip_prefix("written    ")?.strip_suffix(" instead"));
    let aside = std::fs::read_to_string(aside.context("nothing is said of another place")?)?;
    assert!(!aside.is_empty() && aside == std::fs::read_to_string(scratch.file("y.folded"))?);
    Ok(())
}

#[test]
fn a_run_that_is_interrupted_at_any_time_ends_with_what_it_says() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = start(&scratch)?;
    for delay in [20, 60, 120, 200, 400, 800] {
        let running = Jitprof::new(&scratch, ["--pid", target.said("pid")?, "-F", "499", "-o", "x.folded"])?.spawn()?;
        std::thread::sleep(Duration::from_millis(delay));
        running.signal(libc::SIGINT)?;
        let finished = running.finish()?;
        let is_written = scratch.file("x.folded").exists();
        match finished.status.code() {
            Some(0) => assert!(is_written, "{}", finished.stderr),
            FAILED => assert!(finished.stderr.contains("interrupted while attaching"), "{}", finished.stderr),
            NO_SAMPLES => assert!(!is_written, "{}", finished.stderr),
            // Before it has come to its own code.
            None => assert_eq!(finished.stderr, "", "after {delay} ms"),
            other => panic!("{other:?} after {delay} ms: {}", finished.stderr),
        }
        if is_written {
            std::fs::remove_file(scratch.file("x.folded"))?;
        }
    }
    Ok(())
}

#[test]
fn a_target_that_exits_ends_the_run() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = start(&scratch)?;
    let mut running = Jitprof::recording(&scratch, ["--pid", target.said("pid")?])?.spawn()?;
    running.wait_for_samples(target.pid()?, 2000)?;
    target.signal(libc::SIGTERM)?;
    running.record()?.assert_whole();
    Ok(())
}

#[test]
fn standard_output_has_the_profile_and_nothing_else() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = start(&scratch)?;
    let arguments = ["--pid", target.said("pid")?, "-d", "1s", "-F", "997", "-o", "-", "--format", "folded"];
    let finished = Jitprof::new(&scratch, arguments)?.run()?;
    assert!(finished.status.success(), "{}", finished.stderr);
    let folded = Folded::parse(&finished.stdout)?;
    assert!(folded.count(|stack| stack.has("leaf_hot_g0")) > 0);
    assert!(finished.stderr.contains("taken ="), "the account goes to stderr: {}", finished.stderr);
    assert!(!finished.stderr.contains('\r'), "no status line when stderr is no terminal");
    Ok(())
}

#[test]
fn quiet_says_nothing() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = start(&scratch)?;
    let finished = Jitprof::new(&scratch, ["--pid", target.said("pid")?, "-d", "1s", "-q", "-o", "x.folded"])?.run()?;
    assert!(finished.status.success(), "{}", finished.stderr);
    assert_eq!((finished.stdout.as_str(), finished.stderr.as_str()), ("", ""));
    Ok(())
}

#[test]
fn a_name_chooses_processes_that_run_and_that_start() -> Result<()> {
    let scratch = Scratch::new()?;
    // Longer than the 15 bytes that the kernel keeps.
    let name = "jitdemo-of-this-test";
    let binary = scratch.file(name);
    std::fs::copy(path_from("JITPROF_DEMO")?, &binary)?;
    let command = || {
        let mut command = Command::new(&binary);
        command.args(["--secs", "600", "--generations", "1"]);
        command
    };
    let first = Target::start(command(), &scratch)?;
    let other = start(&scratch)?;
    let mut running = Jitprof::recording(&scratch, ["--comm", name])?.spawn()?;
    running.wait_for_samples(first.pid()?, 300)?;
    let second = Target::start(command(), &scratch)?;
    running.wait_for_samples(second.pid()?, 2000)?;
    running.signal(libc::SIGINT)?;
    let recording = running.record()?;
    recording.assert_whole();
    let of = |target: &Target| -> Result<u64> {
        let pid = format!("pid-{}", target.pid()?);
        Ok(recording.folded.count(|stack| stack.has(&pid)))
    };
    assert!(of(&first)? > 0 && of(&second)? > 0, "both of this name");
    assert_eq!(of(&other)?, 0, "nobody else");
    Ok(())
}

#[test]
fn several_processes_are_kept_apart() -> Result<()> {
    let scratch = Scratch::new()?;
    let (first, second) = (start(&scratch)?, start(&scratch)?);
    let pids = format!("{},{}", first.pid()?, second.pid()?);
    let recording = Jitprof::recording(&scratch, ["--pid", &pids])?.record_cpu_of(&[first.pid()?, second.pid()?], 3)?;
    recording.assert_whole();
    for target in [&first, &second] {
        let pid = format!("pid-{}", target.pid()?);
        assert!(recording.folded.count(|stack| stack.has(&pid) && stack.has("leaf_hot_g0")) > 0, "{pid}");
    }
    Ok(())
}

#[test]
fn the_whole_machine_includes_the_target() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = start(&scratch)?;
    let recording = Jitprof::recording(&scratch, ["--all"])?.record_cpu(target.pid()?, 2)?;
    let pid = format!("pid-{}", target.pid()?);
    assert!(recording.folded.count(|stack| stack.has(&pid) && stack.has("leaf_hot_g0")) > 0, "with its names");
    assert!(recording.folded.count(|stack| !stack.has(&pid)) > 0, "and others");
    Ok(())
}

/// A program that is mostly in the kernel, for some 2 s of CPU time. It ends by itself, whatever becomes of jitprof.
const SYSCALLS: [&str; 6] = ["--", "dd", "if=/dev/zero", "of=/dev/null", "bs=1", "count=2500000"];
/// A frame of every sample of it that was taken in a system call.
fn in_kernel(stack: &Stack) -> bool {
    stack.has_prefix("entry_SYSCALL_64") || stack.has_prefix("do_syscall_64") || stack.has("el0t_64_sync")
}

#[test]
fn kernel_and_user_frames_stand_in_one_stack() -> Result<()> {
    let scratch = Scratch::new()?;
    let recording = Jitprof::recording(&scratch, SYSCALLS)?.record()?;
    let (part, whole) = (recording.folded.count(in_kernel), recording.folded.total());
    assert_at_least("dd is mostly in the kernel", Share { part, whole }, 0.5);
    Ok(())
}

#[test]
fn user_only_has_no_kernel_frames() -> Result<()> {
    let scratch = Scratch::new()?;
    let recording = Jitprof::recording(&scratch, ["-U"].into_iter().chain(SYSCALLS))?.record()?;
    assert!(recording.folded.total() > 0);
    assert_eq!(recording.folded.count(in_kernel), 0);
    Ok(())
}

#[test]
fn kernel_only_has_no_user_frames() -> Result<()> {
    let scratch = Scratch::new()?;
    let recording = Jitprof::recording(&scratch, ["-K"].into_iter().chain(SYSCALLS))?.record()?;
    assert!(recording.folded.count(in_kernel) > 0);
    assert_eq!(recording.number("/stacks/without_user_part"), recording.number("/samples/delivered"));
    assert_eq!(recording.number("/stacks/complete"), 0);
    Ok(())
}

#[test]
fn every_program_is_verified_within_its_committed_ceiling() -> Result<()> {
    let scratch = Scratch::new()?;
    let check = Jitprof::new(&scratch, ["--check"])?.run()?;
    assert!(check.status.success(), "{}", check.stderr);
    let programs = verified_programs(&check.stdout)?;
    for name in ["sampler", "sampler_chained", "sampler_oldest", "walker", "registrations"] {
        let program = programs.iter().find(|program| program.name == name);
        // Every kernel that live tests run on tells (5.16).
        assert!(program.is_some_and(|program| program.instructions.is_some()), "{name} in {}", check.stdout);
    }
    Ok(())
}
