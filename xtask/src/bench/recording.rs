//! What a recording costs: CPU, memory, bytes written, the time to the flamegraph, and a sample in the kernel.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::profilers::{self, Profilers};
use super::report::{Figure, Goal, Report, ratio};
use super::running::{Running, Used};
use super::target::Target;
use super::{Bench, short};
use crate::command;

const MB: f64 = 1e6;
const MIB: f64 = 1_048_576.0;
/// Between the first perf event and the steady state: attaching, reading the dump so far, names of node.
const START_UP: Duration = Duration::from_secs(2);
/// Recordings of which only the kernel's figures are used.
const SHORT: Duration = Duration::from_secs(5);
const FLOOD_FUNCTIONS: u32 = 100_000;

pub(crate) fn run(bench: &Bench, profilers: &Profilers, report: &mut Report) -> Result<()> {
    for hz in [99, 999] {
        compared(bench, profilers, hz, report)?;
    }
    if let Some(length) = bench.lengths.long_recording {
        let target = Target::deep(&profilers.node, &bench.targets, &bench.scratch, 0)?;
        let ours = Recording::of_jitprof(bench, &target, 99, length, "svg")?;
        finished(&ours, None, report);
    }
    recursion(bench, profilers, report)?;
    flood(bench, report)
}

/// One profiler's recording.
pub(super) struct Recording {
    /// What was recorded, for how long.
    what: String,
    pub(super) used: Used,
    /// CPU in the steady state, in percent of one CPU.
    pub(super) steady: f64,
    pub(super) command: String,
    output: PathBuf,
    /// jitprof's account.
    account: Value,
}

impl Recording {
    fn of_jitprof(bench: &Bench, target: &Target, hz: u32, length: Duration, extension: &str) -> Result<Self> {
        let output = bench.scratch.join(format!("out.{extension}"));
        Self::of_jitprof_with(bench, target, (hz, length), output, &[])
    }

    /// With further options.
    pub(super) fn of_jitprof_with(
        bench: &Bench,
        target: &Target,
        (hz, length): (u32, Duration),
        output: PathBuf,
        options: &[&str],
    ) -> Result<Self> {
        let account = bench.scratch.join("account.json");
        let mut command = profilers::jitprof(&bench.jitprof, &target.pid, hz, &account, &output);
        command.args(options);
        let mut recording = Self::make(bench, command, target, hz, length, output)?;
        let text = fs::read_to_string(&account).with_context(|| format!("cannot read {}", account.display()))?;
        recording.account = serde_json::from_str(&text).context("the account is no JSON")?;
        Ok(recording)
    }

    pub(super) fn make(
        bench: &Bench,
        mut command: Command,
        target: &Target,
        hz: u32,
        length: Duration,
        output: PathBuf,
    ) -> Result<Self> {
        let mut running = Running::start(&mut command, &bench.scratch.join("log"))?;
        running.wait_for_events()?;
        std::thread::sleep(START_UP);
        let before = running.cpu_s()?;
        std::thread::sleep(length.saturating_sub(START_UP));
        let after = running.cpu_s()?;
        let used = running.stop()?;
        let steady = (after - before) / length.saturating_sub(START_UP).as_secs_f64() * 100.0;
        let shown = command::shown(&command).replace(&format!(" {} ", target.pid), " PID ");
        let command = format!("{}, SIGINT after {} s; PID: {}", shown, length.as_secs(), target.line);
        let what = format!("{} s at {hz} Hz", length.as_secs());
        Ok(Self { what, used, steady, command, output, account: Value::Null })
    }

    /// A number of jitprof's account.
    pub(super) fn count(&self, path: &str) -> f64 {
        self.account.pointer(path).and_then(Value::as_f64).unwrap_or(f64::NAN)
    }
}

/// deep.js under each profiler in turn, each with a target of its own.
fn compared(bench: &Bench, profilers: &Profilers, hz: u32, report: &mut Report) -> Result<()> {
    let length = bench.lengths.recording;
    let start = || Target::deep(&profilers.node, &bench.targets, &bench.scratch, 0);
    let ours = Recording::of_jitprof(bench, &start()?, hz, length, "svg")?;
    sample_in_kernel(&ours, "deep.js", report);
    let mut peers = Vec::new();
    let mut picture = None;
    if let Some(perf) = &profilers.perf {
        let (target, output) = (start()?, bench.scratch.join("perf.data"));
        let command = profilers::perf_record(perf, &target.pid, hz, &output);
        let recording = Recording::make(bench, command, &target, hz, length, output)?;
        picture = Some(perf_names(bench, perf, &recording)?);
        peers.push(("perf record", recording));
    }
    if let Some(samply) = &profilers.samply {
        let (target, output) = (start()?, bench.scratch.join("samply.json.gz"));
        let command = profilers::samply(samply, &target.pid, hz, &output);
        peers.push(("samply", Recording::make(bench, command, &target, hz, length, output)?));
    }
    if peers.is_empty() {
        costs(&ours, None, hz, report);
    }
    for (name, peer) in &peers {
        costs(&ours, Some((name, peer)), hz, report);
    }
    finished(&ours, picture.as_ref(), report);
    Ok(())
}

/// CPU, memory and bytes, beside a peer's if there is one.
fn costs(ours: &Recording, peer: Option<(&str, &Recording)>, hz: u32, report: &mut Report) {
    let mut figure = |what: &str, of: fn(&Recording) -> f64, text: &dyn Fn(f64) -> String, goal| {
        let own = of(ours);
        let (theirs, ratio) = match peer {
            Some((name, peer)) => (format!("{name} {}", text(of(peer))), ratio(own, of(peer))),
            None => (String::new(), String::new()),
        };
        let recordings = [Some(ours), peer.map(|peer| peer.1)].into_iter().flatten();
        let commands = recordings.map(|recording| recording.command.clone()).collect();
        let what = format!("{}: {what}", ours.what);
        report.add(Figure { what, ours: text(own), peer: theirs, ratio, goal, commands });
    };
    figure("profiler CPU in all", |r| r.used.cpu_s, &|s| format!("{s:.2} s"), None);
    let goal = if hz == 99 { Goal::at_most(ours.steady, 0.3, " %") } else { None };
    figure("CPU after start-up, of one CPU", |r| r.steady, &|percent| format!("{percent:.2} %"), goal);
    figure("resident, at most", |r| r.used.rss_bytes / MIB, &|mib| format!("{mib:.1} MiB"), None);
    figure("written to disk", |r| r.used.written_bytes / MB, &|mb| format!("{mb:.3} MB"), None);
}

/// What perf needs until its frames have names.
struct Names {
    commands: Vec<String>,
    wall_s: f64,
    text: String,
}

fn perf_names(bench: &Bench, perf: &std::path::Path, recorded: &Recording) -> Result<Names> {
    let (injected, log) = (bench.scratch.join("perf.jit.data"), bench.scratch.join("log"));
    let mut inject = profilers::perf_inject(perf, &recorded.output, &injected, &bench.scratch);
    let injection = Running::complete(&mut inject, &log)?;
    let mut script = profilers::perf_script(perf, &injected, &bench.scratch);
    let naming = Running::complete(&mut script, &log)?;
    let wall_s = recorded.used.wall_s + injection.wall_s + naming.wall_s;
    let text = format!(
        "no picture yet: {wall_s:.2} s, CPU {:.2} s, {:.0} MiB resident, {:.1} MB written",
        injection.cpu_s + naming.cpu_s,
        injection.rss_bytes.max(naming.rss_bytes) / MIB,
        injection.written_bytes / MB
    );
    let after = [&inject, &script].map(command::shown);
    let commands = std::iter::once(recorded.command.clone()).chain(after).collect();
    Ok(Names { commands, wall_s, text })
}

/// From the stop to the picture.
fn finished(ours: &Recording, peer: Option<&Names>, report: &mut Report) {
    let seconds = ours.used.wall_s;
    report.add(Figure {
        what: format!("{}: SIGINT to finished SVG and exit", ours.what),
        ours: format!("{seconds:.3} s"),
        peer: peer.map(|names| names.text.clone()).unwrap_or_default(),
        ratio: peer.map(|names| ratio(seconds, names.wall_s)).unwrap_or_default(),
        goal: Goal::at_most(seconds, 0.3, " s (for 60 s at 99 Hz)"),
        commands: std::iter::once(ours.command.clone())
            .chain(peer.map(|n| n.commands.clone()).unwrap_or_default())
            .collect(),
    });
}

/// What a sample costs in the kernel, and how many frames it had.
fn sample_in_kernel(ours: &Recording, target: &str, report: &mut Report) {
    let (delivered, complete) = (ours.count("/samples/delivered"), ours.count("/stacks/complete"));
    let depth = match fs::read_to_string(&ours.output) {
        Ok(text) if ours.output.extension().is_some_and(|e| e == "folded") => {
            format!(", {:.0} frames in the mean", mean_depth(&text))
        }
        _ => String::new(),
    };
    report.add(Figure {
        what: format!(
            "{}, {target}: a sample in the kernel, {delivered} of {}, {:.1} % complete{depth}",
            ours.what,
            ours.count("/samples/taken"),
            complete / delivered * 100.0
        ),
        ours: format!("{:.2} µs", ours.count("/own/kernel_ns_per_sample") / 1e3),
        peer: String::new(),
        ratio: String::new(),
        goal: None,
        commands: vec![ours.command.clone()],
    });
}

/// The kernel's work by depth.
fn recursion(bench: &Bench, profilers: &Profilers, report: &mut Report) -> Result<()> {
    for depth in [0, 400] {
        let target = Target::deep(&profilers.node, &bench.targets, &bench.scratch, depth)?;
        let ours = Recording::of_jitprof(bench, &target, 999, SHORT, "folded")?;
        let name = if depth == 0 { "deep.js".to_owned() } else { format!("deep.js with {depth} frames of recursion") };
        sample_in_kernel(&ours, &name, report);
    }
    Ok(())
}

/// Frames of a folded profile, weighted by samples. inferno's lines are `process;frame;frame count`.
fn mean_depth(folded: &str) -> f64 {
    let (mut frames, mut samples) = (0.0, 0.0);
    for line in folded.lines() {
        let Some((stack, count)) = line.rsplit_once(' ') else { continue };
        let Ok(count) = count.parse::<f64>() else { continue };
        frames += count * stack.matches(';').count() as f64;
        samples += count;
    }
    frames / samples
}

/// A process with 100,000 functions in its dump.
fn flood(bench: &Bench, report: &mut Report) -> Result<()> {
    let source = bench.targets.join("native/jitflood.c");
    let program = bench.scratch.join("jitflood");
    let mut compile = Command::new("cc");
    compile.args(["-O2", "-o"]).arg(&program).arg(&source);
    if !command::succeeds(&mut compile) {
        report
            .skip("a dump of 100,000 functions", &format!("needs a C compiler: `{}` failed", command::shown(&compile)));
        return Ok(());
    }
    let mut start = Command::new(&program);
    start.args([&FLOOD_FUNCTIONS.to_string(), "512", "1200"]);
    let target = Target::start(&mut start, &bench.scratch)?;
    let ours = Recording::of_jitprof(bench, &target, 99, SHORT, "svg")?;
    let known = ours.count("/sources/0/functions");
    let (named, unnamed) = (ours.count("/jit/leaves_named"), ours.count("/jit/leaves_unnamed"));
    let what = format!(
        "attached to {}, {known} functions in its dump, {}, {:.1} % of JIT leaves named",
        short(&source),
        ours.what,
        named / (named + unnamed) * 100.0
    );
    let resident = ours.used.rss_bytes / MIB;
    let figures = [
        ("resident, at most", format!("{resident:.1} MiB"), Goal::at_most(resident, 64.0, " MiB")),
        ("profiler CPU in all", format!("{:.2} s", ours.used.cpu_s), None),
        ("SIGINT to finished SVG", format!("{:.3} s", ours.used.wall_s), None),
    ];
    for (name, figure, goal) in figures {
        report.add(Figure {
            what: format!("{name}, {what}"),
            ours: figure,
            peer: String::new(),
            ratio: String::new(),
            goal,
            commands: vec![ours.command.clone()],
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_is_weighted_by_samples_and_leaves_the_process_out() {
        assert_eq!(mean_depth("node;a;b;c 3\nnode;a 1\nno count\n"), 2.5);
    }
}
