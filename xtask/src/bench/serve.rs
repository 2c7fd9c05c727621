//! `bench --serve`: what the service costs while it stays on, under a load of real runtimes, and perf beside it.

mod chart;
mod load;
mod meter;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use self::chart::{Line, Panel};
use self::load::Load;
use self::meter::{Meter, Usage};
use super::Bench;
use super::report::{Figure, Goal, Report};
use super::running::Running;
use crate::command::{self, Root};
use crate::workspace::Workspace;

/// Between two lines of the table.
const STEP: Duration = Duration::from_secs(5);
/// Symbol tables are loaded and rows built in this time; it is in the chart, and not in the mean.
const WARM_UP: Duration = Duration::from_secs(60);
/// How long the peer is measured at most.
const PEER: Duration = Duration::from_secs(120);
/// Where the service listens meanwhile.
const LISTEN: &str = "127.0.0.1:17878";
/// Goals of the service by its frequency, in percent of one CPU with two busy ones, and its memory.
const CPU_GOALS: [(u32, f64); 2] = [(19, 0.5), (99, 1.0)];
const MEMORY_GOAL_MIB: f64 = 128.0;

/// What `--serve` takes.
#[derive(clap::Args)]
pub(crate) struct ServeArguments {
    /// Measure the service under a mixed load instead
    #[arg(long)]
    serve: bool,
    /// How long at each frequency
    #[arg(long, requires = "serve", default_value_t = 10, value_name = "N")]
    minutes: u64,
    /// At which frequencies
    #[arg(long, requires = "serve", value_delimiter = ',', default_values_t = [19, 99], value_name = "HZ")]
    hz: Vec<u32>,
    /// Write the chart here as well
    #[arg(long, requires = "serve", value_name = "FILE")]
    chart: Option<PathBuf>,
    /// Measure this binary
    #[arg(long, requires = "serve", value_name = "FILE")]
    binary: Option<PathBuf>,
}

impl ServeArguments {
    /// Whether the service is to be measured.
    pub(crate) fn wanted(&self) -> bool {
        self.serve
    }
}

/// The figures at one frequency.
struct Series {
    hz: u32,
    steps: Vec<Usage>,
}

pub(crate) fn run(workspace: &Workspace, bench: &Bench, arguments: &ServeArguments, report: &mut Report) -> Result<()> {
    if !matches!(Root::detect(), Root::Already) {
        bail!("the service is measured as root: start `cargo xtask bench --serve` as root");
    }
    let load = Load::start(workspace, &bench.scratch, report)?;
    let length = Duration::from_secs(60 * arguments.minutes.max(2));
    let binary = arguments.binary.as_ref().unwrap_or(&bench.jitprof);
    let mut all = Vec::new();
    for &hz in &arguments.hz {
        let series = measure(binary, bench, hz, length)?;
        let peer = peer(bench, hz, length.min(PEER))?;
        add(report, &series, peer, binary, arguments.minutes, &load);
        all.push(series);
    }
    write_results(workspace, &all, arguments.chart.as_deref())
}

fn measure(binary: &Path, bench: &Bench, hz: u32, length: Duration) -> Result<Series> {
    let mut command = Command::new(binary);
    command.args(["serve", "-F", &hz.to_string(), "--listen", LISTEN]);
    let mut service = Running::start(&mut command, &bench.scratch.join("serve.log"))?;
    service.wait_for_events()?;
    let mut meter = Meter::start(service.pid())?;
    let start = Instant::now();
    let mut steps = Vec::new();
    while start.elapsed() < length {
        std::thread::sleep(STEP);
        steps.push(meter.step()?);
    }
    service.stop()?;
    Ok(Series { hz, steps })
}

/// `perf record` of the same load, which writes what it has read nowhere. Percent of one CPU.
fn peer(bench: &Bench, hz: u32, length: Duration) -> Result<Option<f64>> {
    let Some(perf) = command::in_path("perf") else { return Ok(None) };
    let mut command = Command::new(perf);
    command.args(["record", "-F", &hz.to_string(), "-a", "-g", "-o", "/dev/null"]);
    let mut running = Running::start(&mut command, &bench.scratch.join("perf.log"))?;
    running.wait_for_events()?;
    let (start, before) = (Instant::now(), running.cpu_s()?);
    std::thread::sleep(length);
    let percent = 100.0 * (running.cpu_s()? - before) / start.elapsed().as_secs_f64();
    running.stop()?;
    Ok(Some(percent))
}

fn add(report: &mut Report, series: &Series, peer: Option<f64>, binary: &Path, minutes: u64, load: &Load) {
    let steady: Vec<&Usage> = series.steps.iter().filter(|usage| usage.at > WARM_UP).collect();
    let mean =
        |value: fn(&Usage) -> f64| steady.iter().map(|usage| value(usage)).sum::<f64>() / steady.len().max(1) as f64;
    let largest = series.steps.iter().map(|usage| usage.resident_mib).fold(0.0, f64::max);
    let (own, kernel) = (mean(|usage| usage.own_percent), mean(|usage| usage.kernel_percent));
    let hz = series.hz;
    let goal = CPU_GOALS.iter().find(|(goal_hz, _)| *goal_hz == hz);
    let commands = vec![
        format!("cargo xtask bench --serve --minutes {minutes} --hz {hz}"),
        format!("{} serve -F {hz}", super::short(binary)),
    ];
    report.add(Figure {
        what: format!(
            "service at {hz} Hz, {} CPUs' worth of load ({}), {} min after the first: CPU of one CPU, user and system \
             + kernel part",
            (mean(|usage| usage.busy_percent) / 100.0 * 10.0).round() / 10.0,
            load.names(),
            minutes.saturating_sub(1)
        ),
        ours: format!("{:.2} % = {own:.2} + {kernel:.2}", own + kernel),
        peer: peer
            .map_or_else(String::new, |percent| format!("{percent:.2} % (perf record -g, without its kernel part)")),
        ratio: peer.map_or_else(String::new, |percent| format!("{:.2} (own : perf)", own / percent)),
        goal: goal.and_then(|(_, limit)| Goal::at_most(own + kernel, *limit, " %")),
        commands: commands.clone(),
    });
    // Flat: the last third against the one before it.
    let third = series.steps.len() / 3;
    let part = |steps: &[Usage]| steps.iter().map(|usage| usage.resident_mib).sum::<f64>() / steps.len().max(1) as f64;
    let (middle, last) = (part(&series.steps[third..2 * third]), part(&series.steps[2 * third..]));
    report.add(Figure {
        what: format!(
            "the same: resident memory, largest (mean of the second and of the last third: {middle:.0}, {last:.0} MiB)"
        ),
        ours: format!("{largest:.0} MiB"),
        peer: String::new(),
        ratio: String::new(),
        goal: Goal::at_most(largest, MEMORY_GOAL_MIB, " MiB"),
        commands,
    });
}

fn write_results(workspace: &Workspace, all: &[Series], chart: Option<&Path>) -> Result<()> {
    let mut csv =
        String::from("hz,time_s,own_cpu_percent,kernel_cpu_percent,resident_mib,descriptors,load_cpu_percent\n");
    for series in all {
        for usage in &series.steps {
            writeln!(
                csv,
                "{},{:.1},{:.3},{:.3},{:.1},{},{:.1}",
                series.hz,
                usage.at.as_secs_f64(),
                usage.own_percent,
                usage.kernel_percent,
                usage.resident_mib,
                usage.descriptors,
                usage.busy_percent
            )?;
        }
    }
    let line = |series: &Series, what: &str, value: fn(&Usage) -> f64| Line {
        name: format!("{what} {} Hz", series.hz),
        points: series.steps.iter().map(|usage| (usage.at.as_secs_f64() / 60.0, value(usage))).collect(),
    };
    let cpu = all.iter().map(|series| line(series, "CPU at", |usage| usage.own_percent + usage.kernel_percent));
    let memory = all.iter().map(|series| line(series, "resident at", |usage| usage.resident_mib));
    let panels = [
        Panel {
            title: "CPU time, percent of one CPU (goals: 0.5 at 19 Hz, 1 at 99 Hz)",
            lines: cpu.collect(),
            goal: None,
        },
        Panel { title: "Resident memory, MiB (goal: 128)", lines: memory.collect(), goal: Some(MEMORY_GOAL_MIB) },
    ];
    let svg = chart::svg(&panels);
    let targets = [Some(workspace.target.join("serve.svg")), chart.map(Path::to_owned)];
    for path in targets.into_iter().flatten() {
        fs::write(&path, &svg).with_context(|| format!("cannot write {}", path.display()))?;
        command::progress(&format!("written {}", path.display()));
    }
    let path = workspace.target.join("serve.csv");
    fs::write(&path, csv).with_context(|| format!("cannot write {}", path.display()))?;
    command::progress(&format!("written {}", path.display()));
    Ok(())
}
