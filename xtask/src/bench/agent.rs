//! What the agent costs the process that it lives in.

use std::process::Command;

use anyhow::{Context, Result};

use super::report::{Figure, Report, Spread};
use super::{Bench, json};
use crate::build::{self, Profile};
use crate::command;
use crate::prepare::RUNTIMES;
use crate::workspace::Workspace;

const METHODS: u32 = 100_000;

pub(crate) fn run(workspace: &Workspace, bench: &Bench, report: &mut Report) -> Result<()> {
    let agent = build::agent(workspace, Profile::Release)?;
    let runtime = RUNTIMES.iter().find(|runtime| runtime.name == "ittapi").context("no recipe for ittapi")?;
    let program = runtime.prepare(workspace)?.into_iter().next().context("no path to the program")?.1;
    let bytes = std::fs::metadata(&agent).with_context(|| format!("cannot look at {}", agent.display()))?.len();
    let mut command = Command::new(&program);
    command.args(["many", &METHODS.to_string()]);
    let alone = rounds(bench, &mut command)?;
    command.env("INTEL_JIT_PROFILER64", &agent).env("JITPROF_AGENT_DIR", &bench.scratch);
    let with = rounds(bench, &mut command)?;
    let shown = format!("INTEL_JIT_PROFILER64={} {}", agent.display(), command::shown(&command));
    let mut figure = |what: &str, ours: String| {
        report.add(Figure {
            what: format!("Intel JIT profiling API, {METHODS} methods of 500 bytes and 10 lines, {what}"),
            ours,
            peer: String::new(),
            ratio: String::new(),
            goal: None,
            commands: vec![shown.clone()],
        });
    };
    let each = |seconds: f64| seconds * 1e6 / f64::from(METHODS);
    let added = each(with.0.median - alone.0.median);
    let spread =
        format!("{added:.1} µs of CPU ({:.1} to {:.1} with the program's own)", each(with.0.least), each(with.0.most));
    figure("time of an announcement", spread);
    let resident = with.1.median - alone.1.median;
    figure(
        "resident memory",
        format!("{:.1} MiB, {:.0} bytes a method", resident / 1_048_576.0, resident / f64::from(METHODS)),
    );
    figure("size of libjitprof_agent.so", format!("{:.0} kB", as_f64(bytes) / 1e3));
    Ok(())
}

/// CPU seconds and growth of the resident memory. Each round's dump is removed.
fn rounds(bench: &Bench, command: &mut Command) -> Result<(Spread, Spread)> {
    let (mut seconds, mut resident) = (Vec::new(), Vec::new());
    for _ in 0..bench.lengths.ingest_rounds {
        let measured = json(command)?;
        seconds.push(measured["cpu_seconds"].as_f64().context("no CPU time")?);
        resident.push(measured["resident_bytes"].as_f64().context("no memory")?);
        for entry in std::fs::read_dir(&bench.scratch).context("cannot list the scratch folder")? {
            let path = entry.context("cannot list the scratch folder")?.path();
            if path.extension().is_some_and(|extension| extension == "dump") {
                std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
            }
        }
    }
    Ok((Spread::of(&seconds).context("no rounds")?, Spread::of(&resident).context("no rounds")?))
}

fn as_f64(bytes: u64) -> f64 {
    u32::try_from(bytes).map_or(f64::INFINITY, f64::from)
}
