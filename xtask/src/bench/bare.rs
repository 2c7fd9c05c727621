//! What it costs to name the code of a program that was started without a flag: attaching to it, memory, and a sample
//! in the kernel, which takes words of the stack along.
//!
//! The peer is the same program with its flag where there is one, or the same process without the names; both are
//! recorded in turns.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::Bench;
use super::profilers::{self, Profilers};
use super::recording::Recording;
use super::report::{Figure, Goal, Report, Spread, ratio};
use super::target::Target;
use super::watcher::Watcher;
use crate::command;
use crate::prepare::RUNTIMES;
use crate::workspace::Workspace;

/// As often as a second look at a function is likely.
const FREQUENCY: u32 = 999;
/// Of one recording.
const LENGTH: Duration = Duration::from_secs(4);
/// How often py-spy, which stops the process for a sample, is told to take one.
const PY_SPY_FREQUENCY: u32 = 99;

/// A program, and what it is compared with.
struct Subject {
    name: &'static str,
    /// The runtime's name in `prepare`, and the variable that leads to its program.
    runtime: (&'static str, &'static str),
    /// Below the targets, with its arguments.
    program: &'static [&'static str],
    /// Of the runtime, in any case.
    always: &'static [&'static str],
    /// Of the runtime, for the peer.
    flags: &'static [&'static str],
    /// A program beside the runtime's that makes the peer write what it has compiled, and what is told to it behind the
    /// process id: `/tmp/perf-PID.map` then has it.
    lists: &'static [&'static str],
    /// Of jitprof, for the peer.
    options: &'static [&'static str],
    /// The peer, as it is called in the table.
    peer: &'static str,
    /// How much more a sample may cost in the kernel.
    most_in_kernel: f64,
    /// CPU time of reading its tables.
    most_ms: f64,
}

const SUBJECTS: [Subject; 5] = [
    Subject {
        name: "Node, 20,000 functions",
        runtime: ("node", "JITPROF_NODE"),
        program: &["node/many.js", "1200"],
        always: &[],
        flags: &["--perf-prof", "--perf-prof-unwinding-info", "--interpreted-frames-native-stack"],
        lists: &[],
        options: &[],
        peer: "with --perf-prof",
        most_in_kernel: 1.3,
        most_ms: 200.0,
    },
    Subject {
        name: "JVM, 20,000 methods",
        runtime: ("java", "JITPROF_JAVA"),
        program: &["java/Many.java", "1200"],
        always: &["-XX:TieredStopAtLevel=1", "-XX:-Inline"],
        flags: &["-XX:+PreserveFramePointer"],
        lists: &["jcmd", "Compiler.perfmap"],
        options: &["--no-read-runtime"],
        peer: "with frame pointers and jcmd's map",
        most_in_kernel: 1.3,
        most_ms: 200.0,
    },
    Subject {
        name: "CPython, 30 functions deep",
        runtime: ("python", "JITPROF_PYTHON"),
        program: &["python/deep.py", "1200", "30"],
        always: &[],
        flags: &[],
        lists: &[],
        options: &["--no-vm-frames"],
        peer: "native frames only",
        most_in_kernel: 2.0,
        most_ms: 100.0,
    },
    Subject {
        name: "PHP",
        runtime: ("php", "JITPROF_PHP"),
        program: &["php/burn.php", "1200"],
        always: &[],
        flags: &[],
        lists: &[],
        options: &["--no-vm-frames"],
        peer: "native frames only",
        most_in_kernel: 2.0,
        most_ms: 100.0,
    },
    Subject {
        name: "Ruby",
        runtime: ("ruby", "JITPROF_RUBY"),
        program: &["ruby/burn.rb", "1200"],
        always: &[],
        flags: &[],
        lists: &[],
        options: &["--no-vm-frames"],
        peer: "native frames only",
        most_in_kernel: 2.0,
        most_ms: 100.0,
    },
];

pub(super) fn run(workspace: &Workspace, bench: &Bench, profilers: &Profilers, report: &mut Report) -> Result<()> {
    for subject in &SUBJECTS {
        match subject.find(workspace) {
            Ok(runtime) => measure(bench, subject, &runtime, report)?,
            Err(error) => report.skip(subject.name, &format!("needs its runtime: {error:#}")),
        }
    }
    if let Some(py_spy) = &profilers.py_spy {
        beside_py_spy(workspace, bench, py_spy, report)?;
    }
    Ok(())
}

impl Subject {
    /// The runtime's program.
    fn find(&self, workspace: &Workspace) -> Result<PathBuf> {
        let (name, variable) = self.runtime;
        let recipe = RUNTIMES.iter().find(|runtime| runtime.name == name).context("no recipe for it")?;
        let found = recipe.prepare(workspace)?.into_iter().find(|(of, _)| *of == variable);
        found.map(|(_, path)| path.into()).context("its recipe does not say where it is")
    }

    fn start(&self, bench: &Bench, runtime: &Path, flags: &[&str]) -> Result<Target> {
        let mut start = Command::new(runtime);
        start.args(self.always).args(flags).arg(bench.targets.join(self.program[0])).args(&self.program[1..]);
        Target::start(&mut start, &bench.scratch)
    }

    /// Has the target write its map, which is removed with what is returned.
    fn list(&self, runtime: &Path, target: &Target) -> Result<Option<Watcher>> {
        let [program, told @ ..] = self.lists else { return Ok(None) };
        let map = Watcher::start(&format!("rm -f /tmp/perf-{}.map", target.pid))?;
        let program = runtime.canonicalize().context("no such runtime")?.with_file_name(program);
        command::output(Command::new(program).arg(&target.pid).args(told))?;
        Ok(Some(map))
    }

    fn record(&self, bench: &Bench, target: &Target, options: &[&str]) -> Result<Recording> {
        let output = bench.scratch.join("out.folded");
        Recording::of_jitprof_with(bench, target, (FREQUENCY, LENGTH), output, options)
    }
}

/// Both in turns, each turn with a process of its own: they would share the scratch folder.
fn measure(bench: &Bench, subject: &Subject, runtime: &Path, report: &mut Report) -> Result<()> {
    let (mut ours, mut peers) = (Vec::new(), Vec::new());
    for _ in 0..bench.lengths.kernel_rounds.div_ceil(2) {
        ours.push(subject.record(bench, &subject.start(bench, runtime, &[])?, &[])?);
        let peer = subject.start(bench, runtime, subject.flags)?;
        let _map = subject.list(runtime, &peer)?;
        peers.push(subject.record(bench, &peer, subject.options)?);
    }
    let figure = |what: &str, of: &dyn Fn(&Recording) -> f64, unit: &str| -> Result<(f64, Figure)> {
        let spread = |recordings: &[Recording]| {
            Spread::of(&recordings.iter().map(of).collect::<Vec<_>>()).context("nothing was recorded")
        };
        let (own, peer) = (spread(&ours)?, spread(&peers)?);
        let text = |of: &Spread| format!("{:.2} {unit} ({:.2} to {:.2})", of.median, of.least, of.most);
        let compared = peer.median > 0.0;
        let figure = Figure {
            what: format!("{}: {what}", subject.name),
            ours: text(&own),
            peer: if compared { format!("{} {}", subject.peer, text(&peer)) } else { String::new() },
            ratio: if compared { ratio(own.median, peer.median) } else { String::new() },
            goal: None,
            commands: vec![ours[0].command.clone(), peers[0].command.clone()],
        };
        Ok((if compared { own.median / peer.median } else { own.median }, figure))
    };
    let (times, in_kernel) =
        figure("a sample in the kernel", &|one| one.count("/own/kernel_ns_per_sample") / 1e3, "µs")?;
    report.add(Figure { goal: Goal::at_most(times, subject.most_in_kernel, " ×"), ..in_kernel });
    report.add(figure("profiler CPU in all", &|one| one.used.cpu_s, "s")?.1);
    report.add(figure("resident, at most", &|one| one.used.rss_bytes / 1_048_576.0, "MiB")?.1);
    attached(subject, &ours, report)
}

/// What its own tables cost to read and to keep.
fn attached(subject: &Subject, ours: &[Recording], report: &mut Report) -> Result<()> {
    let mut figure = |what: String, of: &dyn Fn(&Recording) -> f64, unit: &str, most: f64| -> Result<()> {
        let spread = Spread::of(&ours.iter().map(of).collect::<Vec<_>>()).context("nothing was recorded")?;
        report.add(Figure {
            what: format!("{}: {what}", subject.name),
            ours: format!("{:.2} {unit} ({:.2} to {:.2})", spread.median, spread.least, spread.most),
            peer: String::new(),
            ratio: String::new(),
            goal: Goal::at_most(spread.median, most, &format!(" {unit}")),
            commands: vec![ours[0].command.clone()],
        });
        Ok(())
    };
    let named = ours[0].count("/sources/0/functions");
    let listed = if named > 0.0 { format!(", which list {named} functions") } else { String::new() };
    let read = format!("CPU of reading its tables in {} s{listed}", LENGTH.as_secs());
    figure(read, &|one| one.count("/sources/0/tables/cpu_ns") / 1e6, "ms", subject.most_ms)?;
    if named > 1000.0 {
        let bytes = |one: &Recording| one.count("/sources/0/map_bytes") / one.count("/sources/0/functions");
        figure("memory of a function".to_owned(), &bytes, "bytes", 300.0)?;
    }
    Ok(())
}

/// CPU time of the two profilers for as many samples a second of the same process.
fn beside_py_spy(workspace: &Workspace, bench: &Bench, py_spy: &Path, report: &mut Report) -> Result<()> {
    let subject = &SUBJECTS[2];
    let runtime = subject.find(workspace)?;
    let target = subject.start(bench, &runtime, &[])?;
    let length = bench.lengths.recording;
    let output = bench.scratch.join("out.svg");
    let ours = Recording::of_jitprof_with(bench, &target, (PY_SPY_FREQUENCY, length), output.clone(), &[])?;
    let command = profilers::py_spy(py_spy, &target.pid, PY_SPY_FREQUENCY, &output);
    let theirs = Recording::make(bench, command, &target, PY_SPY_FREQUENCY, length, output)?;
    for (what, of) in [
        ("profiler CPU in all, s", (|one| one.used.cpu_s) as fn(&Recording) -> f64),
        ("CPU after start-up, of one CPU, %", |one| one.steady),
        ("resident, at most, MiB", |one| one.used.rss_bytes / 1_048_576.0),
    ] {
        report.add(Figure {
            what: format!("{}, {} s at {PY_SPY_FREQUENCY} Hz: {what}", subject.name, length.as_secs()),
            ours: format!("{:.2}", of(&ours)),
            peer: format!("py-spy {:.2}", of(&theirs)),
            ratio: ratio(of(&ours), of(&theirs)),
            goal: None,
            commands: vec![ours.command.clone(), theirs.command.clone()],
        });
    }
    Ok(())
}
