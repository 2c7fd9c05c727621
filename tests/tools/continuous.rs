//! A continuous recording as the service makes it, whose inside can be looked at: the live tests of endurance run it.
//!
//! ```text
//! continuous [--hz N] [--window-ms N] [--grace-ms N] [--pid PID] [--cgroup PATH] [--max-cpu PERCENT] [--max-memory MIB]
//!            [--capture FILE] [--folded FILE]
//! ```
//!
//! Prints a line of JSON for each window, and one of the account at the end. Reads commands from stdin, a line each:
//! `frequency N`, `tight on`, `tight off`, `cut`, and `stop`, which the end of stdin means as well.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, Write};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use clap::Parser;
use jitprof::output::{Destination, Format, OutputOptions, write_file};
use jitprof::profile::{Profile, Row};
use jitprof::record::{CallGraph, InterpreterFrames, RecordOptions, Selector, Targets, Window, WindowOptions};
use jitprof::serve::{Governor, GovernorOptions, Handle, Recording};
use jitprof::symbol::FrameKind;
use jitprof_common::units::Pid;
use serde_json::{Value, json};

/// Windows that wait to be printed at most.
const MAX_WINDOWS: usize = 64;
/// Leaf functions shown of a window, those with the most CPU time.
const SHOWN: usize = 40;

#[derive(Parser)]
struct Arguments {
    #[arg(long, default_value_t = 99)]
    hz: u32,
    #[arg(long, default_value_t = 1000)]
    window_ms: u64,
    #[arg(long, default_value_t = 500)]
    grace_ms: u64,
    /// Only this process and its children; without it the whole machine
    #[arg(long)]
    pid: Option<u32>,
    /// Only what is in this control group
    #[arg(long, conflicts_with = "pid")]
    cgroup: Option<String>,
    #[arg(long)]
    max_cpu: Option<f64>,
    #[arg(long)]
    max_memory: Option<u64>,
    #[arg(long)]
    capture: Option<PathBuf>,
    /// Folded stacks of all windows together, as `jitprof replay` makes them of the capture
    #[arg(long)]
    folded: Option<PathBuf>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let (sender, windows) = sync_channel(MAX_WINDOWS);
    let (ended_sender, _ended) = tokio::sync::oneshot::channel();
    let window = WindowOptions {
        length: Duration::from_millis(arguments.window_ms),
        grace: Duration::from_millis(arguments.grace_ms),
    };
    let recording = Recording::start(options(&arguments), window, sender, ended_sender)?;
    let handle = recording.handle();
    let printer = std::thread::spawn(move || print(&windows, &handle));
    let limits = GovernorOptions {
        max_cpu_percent: arguments.max_cpu.unwrap_or(f64::INFINITY),
        max_memory_bytes: arguments.max_memory.map_or(u64::MAX, |mib| mib << 20),
    };
    let configured = NonZeroU32::new(arguments.hz).ok_or("--hz 0")?;
    let governor = Governor::start(recording.handle(), configured, limits, |_| {})?;
    obey(&recording.handle())?;
    let governed = governor.stats();
    drop(governor);
    let account = recording.stop()?;
    let whole = printer.join().map_err(|_| "the printing thread panicked")?;
    if let (Some(path), Some(whole)) = (&arguments.folded, whole) {
        write_file(&whole, Format::Folded, &OutputOptions::default(), &Destination::from_argument(path))?;
    }
    say(&json!({ "account": account, "governor": governed }));
    Ok(())
}

fn options(arguments: &Arguments) -> RecordOptions {
    RecordOptions {
        targets: targets(arguments),
        inherit: true,
        frequency_hz: arguments.hz,
        event: None,
        kernel_stack: true,
        user_stack: true,
        call_graph: CallGraph::Auto,
        unwind_mib: None,
        peek: true,
        read_runtime: true,
        probe_registrations: false,
        interpreter: InterpreterFrames::default(),
        verify_names: false,
        gsym: Vec::new(),
        title: "continuous".to_owned(),
        bucket: Duration::from_millis(100),
        labels: None,
        continuous: true,
        log_kernel: false,
        capture: arguments.capture.clone(),
    }
}

fn targets(arguments: &Arguments) -> Targets {
    if let Some(path) = &arguments.cgroup {
        let mut selector = Selector { may_come_later: true, ..Selector::default() };
        selector.groups.paths.push(path.clone());
        return Targets::Matching(selector);
    }
    arguments.pid.map_or(Targets::All, |pid| Targets::Processes(vec![Pid(pid)]))
}

fn obey(handle: &Handle) -> Result<(), Box<dyn Error>> {
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let heard = match *words.as_slice() {
            ["frequency", hz] => handle.set_frequency(hz.parse()?),
            ["tight", tight] => handle.set_tight(tight == "on"),
            ["cut"] => handle.close_window(),
            ["stop"] => break,
            _ => return Err(format!("`{line}` is no command").into()),
        };
        if !heard {
            return Err("the recording does not listen".into());
        }
    }
    Ok(())
}

/// Prints the windows; returns what all of them hold.
fn print(windows: &Receiver<Window>, handle: &Handle) -> Option<Profile> {
    let mut whole: Option<Profile> = None;
    for window in windows {
        let mut shown = shown(&window);
        shown["spent_ns"] = json!(handle.ledger().costs());
        say(&shown);
        match &mut whole {
            Some(whole) => whole.absorb(&window.profile, |row| Some(row.time)),
            None => whole = Some(window.profile),
        }
    }
    whole
}

fn shown(window: &Window) -> Value {
    let (profile, health) = (&window.profile, &window.health);
    let cpu_ns: u64 = profile.rows().iter().map(|row| row.cpu_ns).sum();
    json!({
        "start_ns": profile.meta().start.0,
        "end_ns": window.end.0,
        "samples": profile.total(),
        "cpu_ns": cpu_ns,
        "leaves": leaves(profile),
        "comms": sums(profile, |profile, row| Some(profile.task_of(row.task).comm.to_string())),
        "whole": sums(profile, |profile, row| is_whole(profile, row).then(|| profile.task_of(row.task).comm.to_string())),
        "taken": health.taken,
        "delivered": health.delivered,
        "lost": health.lost,
        "kernel_ns": health.kernel_ns,
        "waiting": health.waiting,
        "processes": health.processes,
        "functions": health.functions,
        "frequency_hz": health.frequency_hz,
        "overflowed": health.overflowed,
        "own_cpu_ms": own_cpu_ms(),
        "resident_kib": status_kib("VmRSS:"),
        "descriptors": std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count),
    })
}

/// CPU time by innermost function, the largest.
fn leaves(profile: &Profile) -> BTreeMap<String, u64> {
    let all = sums(profile, |profile, row| {
        let frame = profile.pop(row.stack).map(|(_, frame)| profile.frame(frame).name.to_owned());
        Some(frame.unwrap_or_default())
    });
    let mut all: Vec<(String, u64)> = all.into_iter().collect();
    all.sort_by_key(|(_, cpu_ns)| std::cmp::Reverse(*cpu_ns));
    all.into_iter().take(SHOWN).collect()
}

/// Whether a stack has user frames, reaches its end, and all of it has names: what says otherwise stands in brackets.
fn is_whole(profile: &Profile, row: &Row) -> bool {
    let frames = std::iter::successors(profile.pop(row.stack), |(rest, _)| profile.pop(*rest));
    let mut has_user = false;
    let are_named = frames.into_iter().all(|(_, frame)| {
        let frame = profile.frame(frame);
        has_user |= frame.kind != FrameKind::Kernel;
        !frame.name.starts_with('[')
    });
    are_named && has_user
}

/// CPU time by a key, of what has one.
fn sums(profile: &Profile, key: impl Fn(&Profile, &Row) -> Option<String>) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for row in profile.rows() {
        if let Some(key) = key(profile, &row) {
            *sums.entry(key).or_default() += row.cpu_ns;
        }
    }
    sums
}

fn own_cpu_ms() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let ran = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok());
    let ns = ran.filter_map(|text| text.split_whitespace().next()?.parse::<u64>().ok());
    ns.sum::<u64>() / 1_000_000
}

fn status_kib(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn say(value: &Value) {
    let mut out = std::io::stdout().lock();
    if writeln!(out, "{value}").and_then(|()| out.flush()).is_err() {
        eprintln!("nobody listens any more");
    }
}
