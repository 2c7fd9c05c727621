//! File systems: who runs a program from one that does not answer pays for it alone, and one whose programs have ended can
//! be unmounted.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use jitprof_tests::{Jitprof, Recording, Running, Scratch, Share, Target, assert_at_least, assert_in_time, compile};

/// Programs on the file system: more than any kind of work has threads.
const PROGRAMS: &str = "6";
/// Whose files they are.
const TENANT: &str = "65534";
/// Longest time from SIGINT to the end: the last names have 20 s, the last reads 10 s. The rest is for a busy machine.
const END_LIMIT: Duration = Duration::from_secs(60);
/// The same from a second SIGINT on: names have a second, and without it would have some 17. The rest is as above.
const HASTY_END_LIMIT: Duration = Duration::from_secs(12);

/// Longest time until a file system is let go of whose last program has ended; some 3 s, and the rest is for a busy
/// machine.
const UNMOUNT_LIMIT: Duration = Duration::from_secs(10);

/// The tenant, whose file system answers until his programs run; then `what` is left for ever. It lies on the directory in
/// which perf maps are looked for, if `what` is the asking for names.
fn tenant(scratch: &Scratch, what: &str) -> Result<Target> {
    let program = compile(scratch, "cc", "native/silent.c", &["-O1", "-g", "-fno-omit-frame-pointer"])?;
    let mount = if what == "lookup" { PathBuf::from("/tmp") } else { scratch.file("mount") };
    std::fs::create_dir_all(&mount)?;
    let mut command = Command::new(program);
    command.arg(mount).args([what, PROGRAMS, TENANT]);
    Target::start(command, scratch)
}

/// A program of somebody else, that starts while the tenant's hold whoever reads them.
fn neighbour(scratch: &Scratch) -> Result<Target> {
    let program = compile(scratch, "cc", "native/silent.c", &["-O1", "-g", "-fno-omit-frame-pointer"])?;
    let mut command = Command::new(program);
    command.args(["burn", "1"]);
    Target::start(command, scratch)
}

fn end(running: Running<'_>) -> Result<(Recording, Duration)> {
    let began = Instant::now();
    running.signal(libc::SIGINT)?;
    let recording = running.record()?;
    let took = began.elapsed();
    assert_in_time("its end", took, END_LIMIT);
    Ok((recording, took))
}

/// Ends it, and does not want to wait for the names that it says are missing.
fn hasten(mut running: Running<'_>) -> Result<(Recording, Duration)> {
    running.signal(libc::SIGINT)?;
    let file = running.said_file().to_owned();
    running.wait_for("jitprof to say what it waits for", || {
        Ok(std::fs::read_to_string(&file)?.contains("samples wait for names").then_some(()))
    })?;
    let (recording, took) = end(running)?;
    assert_in_time("its end, which is not waited for", took, HASTY_END_LIMIT);
    Ok((recording, took))
}

/// Records the machine, with the tenant and a neighbour on it.
fn record_beside(what: &str, end: impl FnOnce(Running<'_>) -> Result<(Recording, Duration)>) -> Result<Recording> {
    let (scratch, other) = (Scratch::new()?, Scratch::new()?);
    let tenant = tenant(&scratch, what)?;
    let mut running = Jitprof::recording(&other, ["--all"])?.spawn()?;
    running.wait_for_samples(tenant.pid()?, 0)?;
    let neighbour = neighbour(&other)?;
    let pid = neighbour.pid()?;
    running.wait_for_samples(pid, 2500)?;
    let (recording, took) = end(running)?;
    println!("{what}: ended after {took:?}");
    println!("{what}:");
    assert_named(&recording, pid);
    Ok(recording)
}

/// Asserts that all stacks of the process are named and complete.
fn assert_named(recording: &Recording, pid: u32) {
    let (mut named, mut whole) = (0, 0);
    for stack in recording.folded.stacks.iter().filter(|stack| stack.is_of(pid)) {
        whole += stack.count;
        let is_named = stack.has("silent_burn") && stack.frames.iter().all(|frame| !frame.starts_with('['));
        named += if is_named { stack.count } else { 0 };
    }
    println!("{named} of {whole} stacks of process {pid} are named and complete");
    assert_at_least("its stacks", Share { part: named, whole }, 0.99);
}

#[test]
fn files_that_cannot_be_opened_cost_only_who_runs_them() -> Result<()> {
    let recording = record_beside("open", end)?;
    let remarks = recording.account["remarks"].to_string();
    assert!(remarks.contains("its file system does not answer"), "{remarks}");
    Ok(())
}

#[test]
fn rows_that_cannot_be_read_cost_only_who_runs_them() -> Result<()> {
    record_beside(".eh_frame", end).map(drop)
}

#[test]
fn names_that_cannot_be_read_cost_only_who_runs_them_and_are_not_waited_for_by_who_interrupts_twice() -> Result<()> {
    let recording = record_beside(".symtab", hasten)?;
    assert!(recording.stderr.contains("writes without the names that are missing"), "{}", recording.stderr);
    let remarks = recording.account["remarks"].to_string();
    assert!(remarks.contains("were not named in time"), "{remarks}");
    Ok(())
}

#[test]
fn perf_maps_that_cannot_be_asked_for_cost_only_who_would_have_one() -> Result<()> {
    record_beside("lookup", end).map(drop)
}

/// A file system in memory, as long as the value lives.
struct Mounted(PathBuf);

impl Mounted {
    fn new(at: PathBuf) -> Result<Self> {
        std::fs::create_dir_all(&at)?;
        let status = Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(&at).status()?;
        ensure!(status.success(), "mount: {status}");
        Ok(Self(at))
    }

    /// Whether nobody uses it any more.
    fn is_let_go(&self) -> Result<bool> {
        Ok(Command::new("umount").arg(&self.0).output()?.status.success())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = Command::new("umount").arg("-l").arg(&self.0).output() {
            eprintln!("{} stays mounted: {error}", self.0.display());
        }
    }
}

#[test]
fn a_file_system_can_be_unmounted_soon_after_its_last_program_has_ended() -> Result<()> {
    let (scratch, other) = (Scratch::new()?, Scratch::new()?);
    let mounted = Mounted::new(scratch.file("mount"))?;
    let program = mounted.0.join("program");
    std::fs::copy(compile(&scratch, "cc", "native/silent.c", &["-O1", "-g", "-fno-omit-frame-pointer"])?, &program)?;
    let mut running = Jitprof::recording(&other, ["--all"])?.spawn()?;
    let mut command = Command::new(&program);
    command.args(["burn", "1"]);
    let target = Target::start(command, &scratch)?;
    let pid = target.pid()?;
    running.wait_for_samples(pid, 2500)?;
    drop(target);
    let began = Instant::now();
    while !mounted.is_let_go()? {
        assert!(
            began.elapsed() < UNMOUNT_LIMIT,
            "it is in use {:?} after the end of its last program",
            began.elapsed()
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    println!("unmounted after {:?}", began.elapsed());
    let (recording, _) = end(running)?;
    assert_named(&recording, pid);
    Ok(())
}

/// File systems of one user, each with a library of so many symbols.
const FILE_SYSTEMS: &str = "8";
const SYMBOLS: &str = "3600000";
/// Most memory that jitprof may use beside them.
const MEMORY_LIMIT: u64 = 1 << 30;

#[test]
fn files_of_many_symbols_on_many_file_systems_cost_no_more_than_those_on_one() -> Result<()> {
    let (scratch, other) = (Scratch::new()?, Scratch::new()?);
    let source = "native/manysymbols.c";
    let library =
        compile(&other, "cc", source, &["-O1", "-shared", "-fPIC", "-DLIBRARY", "-Wl,--no-warn-rwx-segments"])?;
    let program = compile(&scratch, "cc", source, &["-O1", "-g", "-fno-omit-frame-pointer"])?;
    let mut command = Command::new(program);
    command.arg(scratch.path()).arg(library).args([FILE_SYSTEMS, SYMBOLS, TENANT]);
    let tenant = Target::start(command, &scratch)?;
    let mut running = Jitprof::recording(&other, ["--all"])?.spawn()?;
    running.wait_for_samples(tenant.pid()?, 500)?;
    let neighbour = neighbour(&other)?;
    let pid = neighbour.pid()?;
    running.wait_for_samples(pid, 2500)?;
    let (recording, took) = end(running)?;
    println!("ended after {took:?}, {} of memory", recording.account["own"]["max_rss_bytes"]);
    assert_in_time("its end", took, END_LIMIT);
    assert_named(&recording, pid);
    let used = recording.account["own"]["max_rss_bytes"].as_u64().unwrap_or(u64::MAX);
    assert!(used < MEMORY_LIMIT, "{used} bytes");
    Ok(())
}
