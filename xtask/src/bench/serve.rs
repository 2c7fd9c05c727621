//! `bench --serve`: what the service costs over time, under a load of real runtimes, and perf beside it.

mod chart;
mod load;
mod meter;

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use self::chart::{Line, Panel};
use self::load::Load;
use self::meter::{Meter, Statistics, Usage};
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
/// Where the first service listens meanwhile, the next one at the next port.
const PORT: u16 = 17878;
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
    /// Services at all frequencies at the same time, on one load: an hour measures all of them
    #[arg(long, requires = "serve")]
    together: bool,
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

    /// Which binary is to be measured instead of the one that is built.
    pub(crate) fn binary(&self) -> Option<&Path> {
        self.binary.as_deref()
    }
}

/// The figures at one frequency.
struct Series {
    hz: u32,
    /// The frequencies of the services that ran at the same time.
    beside: Vec<u32>,
    steps: Vec<Usage>,
}

pub(crate) fn run(workspace: &Workspace, bench: &Bench, arguments: &ServeArguments, report: &mut Report) -> Result<()> {
    if !matches!(Root::detect(), Root::Already) {
        bail!("the service is measured as root: start `cargo xtask bench --serve` as root");
    }
    let load = Load::start(workspace, &bench.scratch, report)?;
    let length = Duration::from_secs(60 * arguments.minutes.max(2));
    let binary = &bench.jitprof;
    let mut csv = Csv::create(workspace)?;
    let mut all = Vec::new();
    let at_a_time = if arguments.together { arguments.hz.len().max(1) } else { 1 };
    for frequencies in arguments.hz.chunks(at_a_time) {
        let measured = measure(binary, bench, frequencies, length, &mut csv)?;
        let peers = peers(bench, frequencies, length.min(PEER))?;
        for (series, peer) in measured.iter().zip(peers) {
            add_cpu(report, series, peer, arguments, binary, &load);
            add_memory(report, series, arguments, binary);
        }
        all.extend(measured);
    }
    command::progress(&format!("written {}", csv.path.display()));
    write_chart(workspace, &all, arguments.chart.as_deref())
}

/// One service at each frequency, all at the same time.
fn measure(binary: &Path, bench: &Bench, hz: &[u32], length: Duration, csv: &mut Csv) -> Result<Vec<Series>> {
    let _statistics = Statistics::start()?;
    let mut services = Vec::new();
    for (&hz, port) in hz.iter().zip(PORT..) {
        let mut command = Command::new(binary);
        command.args(["serve", "-F", &hz.to_string(), "--token", "none", "--listen", &format!("127.0.0.1:{port}")]);
        let mut service = Running::start(&mut command, &bench.scratch.join(format!("serve-{port}.log")))?;
        service.wait_for_events()?;
        services.push(service);
    }
    let mut meters = services.iter().map(|service| Meter::start(service.pid())).collect::<Result<Vec<_>>>()?;
    let others = |own: usize| hz.iter().enumerate().filter(move |(index, _)| *index != own).map(|(_, hz)| *hz);
    let mut all: Vec<Series> = hz
        .iter()
        .enumerate()
        .map(|(index, &hz)| Series { hz, beside: others(index).collect(), steps: Vec::new() })
        .collect();
    let start = Instant::now();
    while start.elapsed() < length {
        std::thread::sleep(STEP);
        for (series, meter) in all.iter_mut().zip(&mut meters) {
            let usage = meter.step()?;
            csv.add(series, &usage)?;
            series.steps.push(usage);
        }
    }
    for service in services {
        service.stop()?;
    }
    Ok(all)
}

/// `perf record` of the same load, which writes what it has read nowhere; as many at a time as services before.
/// Percent of one CPU.
fn peers(bench: &Bench, hz: &[u32], length: Duration) -> Result<Vec<Option<f64>>> {
    let Some(perf) = command::in_path("perf") else { return Ok(vec![None; hz.len()]) };
    let mut peers = Vec::new();
    for hz in hz {
        let mut command = Command::new(&perf);
        command.args(["record", "-F", &hz.to_string(), "-a", "-g", "-o", "/dev/null"]);
        let mut running = Running::start(&mut command, &bench.scratch.join(format!("perf-{hz}.log")))?;
        running.wait_for_events()?;
        peers.push(running);
    }
    let before = peers.iter().map(Running::cpu_s).collect::<Result<Vec<_>>>()?;
    let start = Instant::now();
    std::thread::sleep(length);
    let mut used = Vec::new();
    for (running, before) in peers.into_iter().zip(before) {
        used.push(Some(100.0 * (running.cpu_s()? - before) / start.elapsed().as_secs_f64()));
        running.stop()?;
    }
    Ok(used)
}

impl Series {
    /// What was used once the first minute is over.
    fn steady(&self) -> impl Iterator<Item = &Usage> {
        self.steps.iter().filter(|usage| usage.at > WARM_UP)
    }

    /// How it is called in the report.
    fn name(&self) -> String {
        let beside: Vec<String> = self.beside.iter().map(|hz| format!("{hz} Hz")).collect();
        match beside.is_empty() {
            true => format!("service at {} Hz", self.hz),
            false => format!("service at {} Hz beside one at {}", self.hz, beside.join(" and one at ")),
        }
    }

    fn commands(&self, arguments: &ServeArguments, binary: &Path) -> Vec<String> {
        let hz: Vec<String> = arguments.hz.iter().map(u32::to_string).collect();
        let together = if arguments.together { " --together" } else { "" };
        vec![
            format!("cargo xtask bench --serve --minutes {} --hz {}{together}", arguments.minutes, hz.join(",")),
            format!("{} serve -F {}", super::short(binary), self.hz),
        ]
    }
}

fn add_cpu(
    report: &mut Report,
    series: &Series,
    peer: Option<f64>,
    arguments: &ServeArguments,
    binary: &Path,
    load: &Load,
) {
    let mean = |value: fn(&Usage) -> f64| mean(series.steady().map(value));
    let (own, kernel) = (mean(|usage| usage.own_percent), mean(|usage| usage.kernel_percent));
    let steps: Vec<f64> = series.steady().map(Usage::cpu_percent).collect();
    let goal = CPU_GOALS.iter().find(|(goal_hz, _)| *goal_hz == series.hz);
    report.add(Figure {
        what: format!(
            "{}, {:.1} CPUs' worth of load ({}), {} min after the first: CPU, mean; and of steps of {} s",
            series.name(),
            mean(|usage| usage.busy_percent) / 100.0,
            load.names(),
            arguments.minutes.saturating_sub(1),
            STEP.as_secs()
        ),
        ours: format!(
            "{:.2} % = {own:.2} + {kernel:.2}; p50 {:.2} %, p95 {:.2} %",
            own + kernel,
            percentile(&steps, 50),
            percentile(&steps, 95)
        ),
        peer: peer.map_or_else(String::new, |percent| {
            format!("{percent:.2} % (perf record -g, without what it costs in the kernel)")
        }),
        ratio: peer.map_or_else(String::new, |percent| format!("{:.2} (own : perf)", own / percent)),
        goal: goal.and_then(|(_, limit)| Goal::at_most(own + kernel, *limit, " %")),
        commands: series.commands(arguments, binary),
    });
}

/// Flat: the last third against the one before it.
fn add_memory(report: &mut Report, series: &Series, arguments: &ServeArguments, binary: &Path) {
    let resident: Vec<f64> = series.steps.iter().map(|usage| usage.resident_mib).collect();
    let third = resident.len() / 3;
    let [middle, last] = [&resident[third..2 * third], &resident[2 * third..]].map(|part| mean(part.iter().copied()));
    let largest = resident.iter().copied().fold(0.0, f64::max);
    report.add(Figure {
        what: format!("{}: resident memory", series.name()),
        ours: format!("largest {largest:.0} MiB; mean of the second third {middle:.0}, of the last {last:.0} MiB"),
        peer: String::new(),
        ratio: String::new(),
        goal: Goal::at_most(largest, MEMORY_GOAL_MIB, " MiB"),
        commands: series.commands(arguments, binary),
    });
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    sum / f64::from(count.max(1))
}

/// The least value that at least `percent` of all do not exceed.
fn percentile(values: &[f64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// One line for each step, written as soon as it is measured: a run that is cut short has measured something, too.
struct Csv {
    path: PathBuf,
    file: File,
}

impl Csv {
    fn create(workspace: &Workspace) -> Result<Self> {
        let path = workspace.target.join("serve.csv");
        let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        let mut csv = Self { path, file };
        csv.line("hz,services,time_s,own_cpu_percent,kernel_cpu_percent,resident_mib,descriptors,load_cpu_percent")?;
        Ok(csv)
    }

    /// `services` is how many ran at the same time.
    fn add(&mut self, series: &Series, usage: &Usage) -> Result<()> {
        self.line(&format!(
            "{},{},{:.1},{:.3},{:.3},{:.1},{},{:.1}",
            series.hz,
            1 + series.beside.len(),
            usage.at.as_secs_f64(),
            usage.own_percent,
            usage.kernel_percent,
            usage.resident_mib,
            usage.descriptors,
            usage.busy_percent
        ))
    }

    fn line(&mut self, line: &str) -> Result<()> {
        writeln!(self.file, "{line}").with_context(|| format!("cannot write {}", self.path.display()))
    }
}

fn write_chart(workspace: &Workspace, all: &[Series], chart: Option<&Path>) -> Result<()> {
    let line = |series: &Series, what: &str, value: fn(&Usage) -> f64| Line {
        name: format!("{what} {} Hz", series.hz),
        points: series.steps.iter().map(|usage| (usage.at.as_secs_f64() / 60.0, value(usage))).collect(),
    };
    let cpu = all.iter().map(|series| line(series, "CPU at", Usage::cpu_percent));
    let memory = all.iter().map(|series| line(series, "resident at", |usage| usage.resident_mib));
    let together = match all.iter().any(|series| !series.beside.is_empty()) {
        true => "; the services ran at the same time",
        false => "",
    };
    let panels = [
        Panel {
            title: format!("CPU time, percent of one CPU (goals: 0.5 at 19 Hz, 1 at 99 Hz){together}"),
            lines: cpu.collect(),
            goal: None,
        },
        Panel {
            title: format!("Resident memory, MiB (goal: {MEMORY_GOAL_MIB}){together}"),
            lines: memory.collect(),
            goal: Some(MEMORY_GOAL_MIB),
        },
    ];
    let svg = chart::svg(&panels);
    let targets = [Some(workspace.target.join("serve.svg")), chart.map(Path::to_owned)];
    for path in targets.into_iter().flatten() {
        fs::write(&path, &svg).with_context(|| format!("cannot write {}", path.display()))?;
        command::progress(&format!("written {}", path.display()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_value_that_was_measured() {
        let values: Vec<f64> = (1..=20).rev().map(f64::from).collect();
        assert_eq!([5, 50, 95, 100].map(|percent| percentile(&values, percent)), [1.0, 10.0, 19.0, 20.0]);
        assert_eq!(percentile(&[7.0], 50), 7.0);
        assert!(percentile(&[], 50).is_nan());
    }

    #[test]
    fn the_report_says_what_ran_at_the_same_time() {
        let series = |beside| Series { hz: 19, beside, steps: Vec::new() };
        assert_eq!(series(Vec::new()).name(), "service at 19 Hz");
        let name = series(vec![49, 99]).name();
        assert!(name.contains("beside one at 49 Hz and one at 99 Hz"), "{name}");
    }
}
