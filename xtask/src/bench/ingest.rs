//! Reading dumps, and what a code map of 200,000 functions costs.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use super::report::{Figure, Goal, Report, Spread};
use super::{Bench, json, short};
use crate::command;

const FUNCTIONS: u32 = 200_000;
const MIB: f64 = 1_048_576.0;

pub(crate) fn run(bench: &Bench, given: Option<&Path>, report: &mut Report) -> Result<()> {
    for shape in ["node", "erlang"] {
        let file = bench.scratch.join(format!("{shape}.dump"));
        command::output(Command::new(&bench.ingest).args(["make", shape, &FUNCTIONS.to_string()]).arg(&file))?;
        read(bench, &format!("{FUNCTIONS} functions as {shape}'s"), &file, report)?;
        load(bench, shape, &file, report)?;
        std::fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
    }
    if let Some(file) = given {
        read(bench, &short(file), file, report)?;
    }
    Ok(())
}

fn read(bench: &Bench, name: &str, file: &Path, report: &mut Report) -> Result<()> {
    let mut command = Command::new(&bench.ingest);
    command.arg("read").arg(file).arg(bench.lengths.ingest_rounds.to_string());
    let measured = json(&mut command)?;
    let bytes = number(&measured["bytes"])?;
    let seconds = |reader: &str| {
        let times = measured[reader]["seconds"].as_array().context("no times")?;
        let times: Vec<f64> = times.iter().filter_map(Value::as_f64).collect();
        Ok::<_, anyhow::Error>(Spread::of(&times).context("no times")?.median)
    };
    let rate = |seconds: f64| format!("{:.2} GB/s", bytes / seconds / 1e9);
    let pairs = [
        ("parsed", "parser", "peer_parser"),
        ("kept", "tail", "peer_owned"),
        ("kept, by the peer only parsed", "tail", "peer_parser"),
    ];
    for (what, own, peer) in pairs {
        let (ours, theirs) = (seconds(own)?, seconds(peer)?);
        report.add(Figure {
            what: format!("{name}, {:.0} MB: {what}", bytes / 1e6),
            ours: rate(ours),
            peer: rate(theirs),
            ratio: format!("{:.2} ×", theirs / ours),
            goal: Goal::at_least(theirs / ours, 3.0, " ×"),
            commands: vec![command::shown(&command)],
        });
    }
    for reader in ["parser", "peer_parser"] {
        if measured[reader]["functions"] != measured["tail"]["functions"] {
            report.skip(&format!("{name}, {reader}"), &format!("counts other functions than the tail: {measured}"));
        }
    }
    Ok(())
}

fn load(bench: &Bench, shape: &str, file: &Path, report: &mut Report) -> Result<()> {
    let mut command = Command::new(&bench.ingest);
    command.arg("load").arg(file);
    // A process for each round: memory is only comparable from a fresh start.
    let runs = (0..bench.lengths.ingest_rounds).map(|_| json(&mut command)).collect::<Result<Vec<_>>>()?;
    let median = |key: &str| {
        let values = runs.iter().map(|run| number(&run[key])).collect::<Result<Vec<_>>>()?;
        Ok::<_, anyhow::Error>(Spread::of(&values).context("no runs")?.median)
    };
    let (functions, seconds) = (median("functions")?, median("seconds")?);
    let map = median("map_bytes")?;
    let beyond = (median("peak_bytes")? - map).max(0.0) / MIB;
    let mut figure = |what: &str, ours: String, goal| {
        report.add(Figure {
            what: format!("{functions} functions as {shape}'s to code map, {what}"),
            ours,
            peer: String::new(),
            ratio: String::new(),
            goal,
            commands: vec![command::shown(&command)],
        });
    };
    figure("time", format!("{seconds:.3} s"), Goal::at_most(seconds, 1.0, " s"));
    let each = map / functions.max(1.0);
    let ours = format!("{beyond:.1} MiB beyond the map's own {:.1} MiB, {each:.0} bytes a function", map / MIB);
    figure("most memory", ours, Goal::at_most(beyond, 64.0, " MiB beyond"));
    Ok(())
}

fn number(value: &Value) -> Result<f64> {
    value.as_f64().with_context(|| format!("{value} is no number"))
}
