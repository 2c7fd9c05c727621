//! What must hold on every kernel.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;

use anyhow::{Context, Result, bail};
use jitprof_tests::{
    Jitprof, Recording, Scratch, Share, Target, assert_at_least, assert_at_least_of_few, verified_programs,
};
use serde_json::json;

use crate::machine::{mount_all, stay_on, switch_cpu, uptime_s};
use crate::targets::DEPTH;

/// Samples a second. Everything is some ten times slower in an emulated machine, jitprof itself included.
const FREQUENCY: &str = "99";
/// Seconds of a recording: 99 samples a second and CPU are enough to tell 99.5 %.
const RECORD: &str = "4s";
/// Of one that is made instead if there were fewer samples than this: where the emulator gets a tenth of a CPU.
const RECORD_LONGER: &str = "40s";
const ENOUGH: u64 = 60;
/// Longer than a recording with all that comes before and after it.
const TARGET_SECONDS: &str = "120";
/// Stacks that are shown of each recording.
const SHOWN_STACKS: usize = 10;

/// Returns a note for the summary.
type Check = fn() -> Result<String>;

/// In order; one that fails does not stop the others.
const ALL: [(&str, Check); 6] = [
    ("programs", programs),
    ("jitdemo", jitdemo),
    ("jitdemo-nofp", jitdemo_nofp),
    ("syscalls", syscalls),
    ("deep", deep),
    ("hotplug", hotplug),
];

/// Runs them and prints a line for each.
pub(crate) fn run_all() {
    let mut failed = 0;
    let outcome = mount_all().and_then(|()| {
        set_up();
        say(&json!({ "up_s": uptime_s()?, "kernel": kernel() }));
        Ok(())
    });
    if let Err(error) = outcome {
        say(&json!({ "check": "mount", "ok": false, "note": format!("{error:#}") }));
        failed += 1;
    }
    for (name, check) in ALL {
        // Assertions of the harness panic, and print what they saw.
        let outcome = catch_unwind(AssertUnwindSafe(check)).unwrap_or_else(|panic| bail!("{}", assertion(&*panic)));
        let (ok, note) = match outcome {
            Ok(note) => (true, note),
            Err(error) => (false, format!("{error:#}")),
        };
        failed += u32::from(!ok);
        say(&json!({ "check": name, "ok": ok, "note": note }));
    }
    say(&json!({ "end_s": uptime_s().unwrap_or(f64::NAN), "failed": failed }));
}

/// What a failed assertion said.
fn assertion(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without words")
}

fn say(line: &serde_json::Value) {
    println!("\nGUEST {line}");
}

fn kernel() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

/// The harness finds programs by variables.
fn set_up() {
    // SAFETY: no other thread has been started yet.
    unsafe {
        std::env::set_var("JITPROF_BIN", "/bin/jitprof");
        std::env::set_var("TMPDIR", "/tmp");
    }
}

/// Every program that this kernel should take loads, and is verified within its ceiling.
fn programs() -> Result<String> {
    let output = Command::new("/bin/jitprof").arg("--check").output().context("cannot start jitprof")?;
    let said = String::from_utf8_lossy(&output.stdout);
    eprint!("{said}{}", String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        bail!("jitprof --check failed ({})", output.status);
    }
    let fact = |word: &str| said.lines().find_map(|line| line.strip_prefix(word)).map_or("?", str::trim).to_owned();
    let programs = verified_programs(&said)?;
    let sizes = programs.iter().map(|program| {
        let count = program.instructions.map_or_else(|| "?".to_owned(), |count| count.to_string());
        format!("{} {count}/{}", program.name, program.ceiling)
    });
    Ok(format!("{}; {}; {}", fact("walk "), fact("event "), sizes.collect::<Vec<_>>().join(", ")))
}

fn record(program: &str, arguments: &[&str]) -> Result<Recording> {
    let recording = record_for(RECORD, program, arguments)?;
    let recording = match recording.number("/samples/delivered") {
        ENOUGH.. => recording,
        _ => record_for(RECORD_LONGER, program, arguments)?,
    };
    // On the console, where a share that is too small is explained.
    eprint!("{}", recording.folded.largest(SHOWN_STACKS));
    Ok(recording)
}

fn record_for(time: &str, program: &str, arguments: &[&str]) -> Result<Recording> {
    let scratch = Scratch::new()?;
    let mut command = Command::new(program);
    command.args(arguments);
    let target = Target::start(command, &scratch)?;
    Jitprof::recording_at(&scratch, FREQUENCY, ["-v", "--pid", target.said("pid")?, "-d", time])?.record()
}

/// [`Recording`] has checked that taken = delivered + lost.
fn figures(recording: &Recording) -> String {
    format!(
        "{} taken = {} delivered + {} lost, {} of {} stacks complete, {} of {} JIT frames named",
        recording.number("/samples/taken"),
        recording.number("/samples/delivered"),
        recording.number("/samples/taken") - recording.number("/samples/delivered"),
        recording.complete().part,
        recording.complete().whole,
        recording.named_frames().part,
        recording.named_frames().whole,
    )
}

fn assert_jitdemo(recording: &Recording) -> String {
    assert_at_least_of_few("complete stacks", recording.complete(), 0.995);
    assert_at_least_of_few("named leaves", recording.named_leaves(), 0.995);
    assert_at_least_of_few("named frames", recording.named_frames(), 0.995);
    let whole = recording.folded.count(|stack| stack.has_prefix("leaf_hot_g") || stack.has_prefix("leaf_cold_g"));
    let part = recording.folded.count(|stack| {
        let leaf = |caller: &str, leaf: &str| {
            stack.frames.windows(3).any(|three| {
                three[0].starts_with("outer") && three[1].starts_with(caller) && three[2].starts_with(leaf)
            })
        };
        leaf("middle", "leaf_hot_g") || leaf("side", "leaf_cold_g")
    });
    assert_at_least_of_few("leaves below their callers", Share { part, whole }, 0.995);
    figures(recording)
}

/// Generated code with frame pointers.
fn jitdemo() -> Result<String> {
    let arguments = ["--secs", TARGET_SECONDS, "--schedule", "/dev/null"];
    Ok(assert_jitdemo(&record("/bin/jitdemo", &arguments)?))
}

/// Generated code without frame pointers: by its unwinding information alone. It is not replaced while it runs: until
/// the rows of new code are there it has no caller, and how long that takes is a matter of the machine's speed.
fn jitdemo_nofp() -> Result<String> {
    let arguments = ["--secs", TARGET_SECONDS, "--schedule", "/dev/null", "--no-frame-pointer", "--generations", "1"];
    Ok(assert_jitdemo(&record("/bin/jitdemo", &arguments)?))
}

/// Samples that hit the kernel have named kernel frames, and the user's stack below them.
fn syscalls() -> Result<String> {
    let recording = record("/init", &["syscalls", TARGET_SECONDS])?;
    assert_at_least_of_few("complete stacks", recording.complete(), 0.995);
    let whole = recording.number("/samples/delivered");
    let part = recording.folded.count(|stack| stack.has("vfs_read") && stack.has_prefix("kernel_guest::"));
    // The rest enters or leaves a system call.
    assert_at_least("stacks from main to vfs_read", Share { part, whole }, 0.6);
    Ok(format!("{part} of {whole} stacks in vfs_read; {}", figures(&recording)))
}

/// A deep stack is whole, so that a chain of tail calls must have been gone through.
fn deep() -> Result<String> {
    let recording = record("/init", &["deep", TARGET_SECONDS])?;
    assert_at_least_of_few("complete stacks", recording.complete(), 0.995);
    let whole = recording.number("/samples/delivered");
    let depth = usize::try_from(DEPTH)?;
    let part = recording.folded.count(|stack| stack.number_of("kernel_guest::targets::descend_to") > depth);
    assert_at_least("stacks with all frames", Share { part, whole }, 0.9);
    Ok(format!("{part} of {whole} stacks {DEPTH} deep; {}", figures(&recording)))
}

/// A CPU that was away takes jitprof's events along, and is sampled again when it is back.
fn hotplug() -> Result<String> {
    /// CPU time before the CPU goes, which is all that there are samples of if jitprof does not see it come back; and
    /// behind, of which two seconds may go by until it looks.
    const CPU_MS: [u64; 2] = [2000, 6000];
    let scratch = Scratch::new()?;
    let mut command = Command::new("/init");
    command.args(["deep", TARGET_SECONDS]);
    let target = Target::start(command, &scratch)?;
    let pid = target.pid()?;
    let mut running = Jitprof::recording_at(&scratch, FREQUENCY, ["-v", "--pid", target.said("pid")?])?.spawn()?;
    // Before 5.15 nothing but time tells that it has begun.
    let begun = target.cpu_ms()? + CPU_MS[0];
    running.wait_for("the target to use CPU time", || Ok((target.cpu_ms()? >= begun).then_some(())))?;
    switch_cpu(1, false)?;
    switch_cpu(1, true)?;
    stay_on(pid, 1)?;
    let end = target.cpu_ms()? + CPU_MS[1];
    running.wait_for("the target to use CPU time", || Ok((target.cpu_ms()? >= end).then_some(())))?;
    running.signal(libc::SIGINT)?;
    let recording = running.record()?;
    let (part, whole) =
        (recording.number("/samples/delivered"), CPU_MS.iter().sum::<u64>() * FREQUENCY.parse::<u64>()? / 1000);
    assert_at_least_of_few("samples on a CPU that came back", Share { part, whole }, 0.38);
    Ok(format!("{part} samples of {whole}; {}", figures(&recording)))
}
