//! `bench`: what jitprof costs beside what the others cost, measured in one run.
//!
//! Nothing here asserts: a benchmark on a shared machine that fails is a benchmark that is switched off. Each figure is
//! printed with its peer's, the ratio, the goal, and the command that made it.

mod agent;
mod bare;
mod compare;
mod flags;
mod gsym;
mod ingest;
mod jitdump;
mod kernel;
mod linked;
mod plog;
mod profilers;
mod recording;
pub(crate) mod report;
mod running;
mod serve;
mod slowdown;
pub(crate) mod target;
mod watcher;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::build::{self, Profile};
use crate::command::{self, Root};
use crate::workspace::Workspace;
use report::Report;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Shorter recordings and fewer rounds: two minutes instead of eight, with a larger spread
    #[arg(long, conflicts_with = "long")]
    quick: bool,
    /// A recording of 60 s besides, for the time from stop to finished flamegraph
    #[arg(long)]
    long: bool,
    /// Only these parts
    #[arg(long, value_enum, value_name = "PART", value_delimiter = ',')]
    only: Vec<Part>,
    /// Measure the binaries of an earlier run
    #[arg(long)]
    no_build: bool,
    /// Write the figures into docs/measurements, each part between its markers
    #[arg(long)]
    write: bool,
    /// Measure nothing: write the Markdown table of standard input into this block of docs/measurements
    #[arg(long, value_name = "NAME")]
    block: Option<String>,
    /// Only what runtimes' flags cost, as a table for --block flags; needs no root
    #[arg(long)]
    flags: bool,
    #[command(flatten)]
    serve: serve::ServeArguments,
    /// A jitdump to read besides those that are made in the shape of Node's and Erlang's
    #[arg(value_name = "DUMP")]
    dump: Option<PathBuf>,
}

/// A part of the run, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Reading dumps, and loading 200,000 functions; needs no root
    Ingest,
    /// A sample in the kernel beside `bpf_get_stack`, and what unwind rows cost
    Kernel,
    /// Writing the code of 200,000 functions as GSYM; needs no root
    Gsym,
    /// What an announcement through Intel's JIT profiling API costs the runtime; needs no root
    Agent,
    /// Reading trace logs; needs no root
    Plog,
    /// Checking dumps; needs no root
    Jitdump,
    /// The static program beside the one that is linked to glibc; needs no root
    Static,
    /// CPU, memory, bytes written and time to the flamegraph, of jitprof and of its peers
    Recording,
    /// What names without a flag cost, beside the same program with its flag, or without the names
    Bare,
    /// Iterations of the target with and without profilers
    Slowdown,
    /// Stacks beside those of `perf record --call-graph dwarf`
    Accuracy,
}

impl Part {
    const ALL: [Self; 11] = [
        Self::Ingest,
        Self::Jitdump,
        Self::Gsym,
        Self::Plog,
        Self::Agent,
        Self::Static,
        Self::Kernel,
        Self::Recording,
        Self::Bare,
        Self::Slowdown,
        Self::Accuracy,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Ingest => "ingest",
            Self::Kernel => "kernel",
            Self::Gsym => "gsym",
            Self::Agent => "agent",
            Self::Plog => "plog",
            Self::Jitdump => "jitdump",
            Self::Static => "static",
            Self::Recording => "recording",
            Self::Bare => "bare",
            Self::Slowdown => "slowdown",
            Self::Accuracy => "accuracy",
        }
    }
}

/// What the parts share.
struct Bench {
    jitprof: PathBuf,
    ingest: PathBuf,
    plog: PathBuf,
    gsym: PathBuf,
    targets: PathBuf,
    /// Whose unwind rows are made.
    files: Vec<PathBuf>,
    /// For dumps and recordings; removed at the end.
    scratch: PathBuf,
    lengths: Lengths,
}

/// How much is measured.
struct Lengths {
    ingest_rounds: u32,
    kernel_rounds: u32,
    recording: Duration,
    long_recording: Option<Duration>,
    slowdown_rounds: u32,
    slowdown_phase: Duration,
}

impl Lengths {
    fn of(arguments: &Arguments) -> Self {
        let seconds = Duration::from_secs;
        let long_recording = arguments.long.then_some(seconds(60));
        if arguments.quick {
            let (recording, phase) = (seconds(5), seconds(3));
            Self {
                ingest_rounds: 3,
                kernel_rounds: 2,
                recording,
                long_recording,
                slowdown_rounds: 2,
                slowdown_phase: phase,
            }
        } else {
            let (recording, phase) = (seconds(20), seconds(5));
            Self {
                ingest_rounds: 11,
                kernel_rounds: 7,
                recording,
                long_recording,
                slowdown_rounds: 6,
                slowdown_phase: phase,
            }
        }
    }
}

pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    if let Some(block) = &arguments.block {
        let table = std::io::read_to_string(std::io::stdin()).context("cannot read standard input")?;
        return report::write_table(&workspace.root, block, &table);
    }
    if arguments.flags {
        return flags::run(workspace, if arguments.quick { 3 } else { 7 });
    }
    let parts: Vec<Part> =
        Part::ALL.into_iter().filter(|p| arguments.only.is_empty() || arguments.only.contains(p)).collect();
    let [jitprof, ingest, gsym, plog] = binaries(workspace, arguments)?;
    let scratch = workspace.target.join("bench");
    std::fs::create_dir_all(&scratch).with_context(|| format!("cannot create {}", scratch.display()))?;
    let lengths = Lengths::of(arguments);
    let bench =
        Bench { jitprof, ingest, gsym, plog, targets: workspace.targets(), files: large_files(), scratch, lengths };
    let mut report = Report::begin(&workspace.root);
    let outcome = if arguments.serve.wanted() {
        report.begin_part("serve");
        serve::run(workspace, &bench, &arguments.serve, &mut report)
    } else {
        measure(workspace, &bench, arguments, &parts, &mut report)
    };
    std::fs::remove_dir_all(&bench.scratch).with_context(|| format!("cannot remove {}", bench.scratch.display()))?;
    print!("\n{report}");
    outcome?;
    if arguments.write {
        report.write(&workspace.root.join("docs/measurements"), if arguments.quick { ", a quick run" } else { "" })?;
    }
    Ok(())
}

fn measure(
    workspace: &Workspace,
    bench: &Bench,
    arguments: &Arguments,
    parts: &[Part],
    report: &mut Report,
) -> Result<()> {
    if parts.contains(&Part::Ingest) {
        report.begin_part(Part::Ingest.name());
        ingest::run(bench, arguments.dump.as_deref(), report)?;
    }
    if parts.contains(&Part::Jitdump) {
        report.begin_part(Part::Jitdump.name());
        jitdump::run(bench, report)?;
    }
    if parts.contains(&Part::Plog) {
        report.begin_part(Part::Plog.name());
        plog::run(bench, report)?;
    }
    if parts.contains(&Part::Gsym) {
        report.begin_part(Part::Gsym.name());
        gsym::run(bench, report)?;
    }
    if parts.contains(&Part::Agent) {
        report.begin_part(Part::Agent.name());
        agent::run(workspace, bench, report)?;
    }
    if parts.contains(&Part::Static) {
        report.begin_part(Part::Static.name());
        linked::run(workspace, bench, arguments.no_build, report)?;
    }
    let needs_root = |part: &Part| {
        !matches!(part, Part::Ingest | Part::Gsym | Part::Plog | Part::Jitdump | Part::Agent | Part::Static)
    };
    let recorded: Vec<Part> = parts.iter().copied().filter(needs_root).collect();
    if recorded.is_empty() {
        return Ok(());
    }
    match Root::detect() {
        Root::Already => {}
        Root::Sudo => return as_root(arguments, &recorded),
        Root::Unavailable => {
            for part in recorded {
                report.begin_part(part.name());
                report.skip(part.name(), "needs root, and sudo asks for a password here; run `sudo -v` first");
            }
            return Ok(());
        }
    }
    let profilers = profilers::find(workspace, report)?;
    if recorded.contains(&Part::Kernel) {
        report.begin_part(Part::Kernel.name());
        let peers = kernel::Peers {
            getstack: workspace.target.join("bpf/getstack.bpf.o"),
            loader: workspace.target.join("release/bench_kernel"),
        };
        kernel::run(bench, &peers, report)?;
    }
    if recorded.contains(&Part::Recording) {
        report.begin_part(Part::Recording.name());
        recording::run(bench, &profilers, report)?;
    }
    if recorded.contains(&Part::Bare) {
        report.begin_part(Part::Bare.name());
        bare::run(workspace, bench, &profilers, report)?;
    }
    if recorded.contains(&Part::Slowdown) {
        report.begin_part(Part::Slowdown.name());
        slowdown::run(bench, &profilers, report)?;
    }
    if recorded.contains(&Part::Accuracy) {
        report.begin_part(Part::Accuracy.name());
        compare::run(bench, &profilers, &workspace.target.join("compare"), report)?;
    }
    Ok(())
}

/// Starts this program again as root for the parts that need it: the account of a root process (`/proc/PID/io`) is
/// open to root alone. The build stays this user's.
fn as_root(arguments: &Arguments, parts: &[Part]) -> Result<()> {
    let own = std::env::current_exe().context("cannot find this program's own path")?;
    let mut again = Root::Sudo.command(&own).context("sudo has gone")?;
    again.args(["bench", "--no-build", "--only"]);
    again.arg(parts.iter().map(|part| part.name()).collect::<Vec<_>>().join(","));
    for (flag, given) in [("--quick", arguments.quick), ("--long", arguments.long), ("--write", arguments.write)] {
        if given {
            again.arg(flag);
        }
    }
    command::run(&mut again)
}

/// The release binaries: jitprof with its BPF programs, and the programs that measure its library.
fn binaries(workspace: &Workspace, arguments: &Arguments) -> Result<[PathBuf; 4]> {
    let binaries = ["jitprof", "bench_ingest", "bench_gsym", "bench_plog"];
    let mut binaries = binaries.map(|name| workspace.target.join("release").join(name));
    // The service is measured without the others, and its binary may be given.
    let needed = if arguments.serve.wanted() { &mut binaries[..1] } else { &mut binaries[..] };
    if let Some(given) = arguments.serve.binary() {
        given.clone_into(&mut needed[0]);
    } else if !arguments.no_build {
        build::jitprof(workspace, Profile::Release)?;
    }
    if !arguments.no_build && !arguments.serve.wanted() {
        build::getstack(workspace)?;
        build::jitdemo(workspace)?;
        build::benchmarks(workspace)?;
    }
    for binary in needed {
        if !binary.is_file() {
            anyhow::bail!("there is no {}; run without --no-build and --binary", binary.display());
        }
    }
    Ok(binaries)
}

/// libc, Node and the Python library of this machine, as far as they are there.
fn large_files() -> Vec<PathBuf> {
    let libraries = Path::new("/usr/lib").join(format!("{}-linux-gnu", std::env::consts::ARCH));
    let mut files = vec![libraries.join("libc.so.6")];
    files.extend(command::in_path("node"));
    let pythons = (8..20).map(|minor| libraries.join(format!("libpython3.{minor}.so.1.0")));
    files.extend(pythons.rev().find(|file| file.is_file()));
    files.retain(|file| file.is_file());
    files
}

/// Runs a command that prints one JSON value.
fn json(command: &mut Command) -> Result<serde_json::Value> {
    let line = command::shown(command);
    serde_json::from_str(command::output(command)?.trim()).with_context(|| format!("`{line}` printed no JSON"))
}

/// A path as it is shown: relative to the current folder where that is shorter.
fn short(path: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    path.strip_prefix(&here).unwrap_or(path).display().to_string()
}
