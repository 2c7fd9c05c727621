//! Checking dumps.

use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use super::report::{Figure, Goal, Report, Spread};
use super::{Bench, json};
use crate::command;

const FUNCTIONS: u32 = 200_000;
/// A dump of 2 GB in four seconds.
const GIGABYTES_PER_SECOND: f64 = 0.5;

pub(crate) fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    for shape in ["node", "erlang"] {
        let file = bench.scratch.join(format!("{shape}.dump"));
        command::output(Command::new(&bench.ingest).args(["make", shape, &FUNCTIONS.to_string()]).arg(&file))?;
        let mut command = Command::new(&bench.ingest);
        command.arg("check").arg(&file).arg(bench.lengths.ingest_rounds.to_string());
        let measured = json(&mut command)?;
        let bytes = measured["bytes"].as_f64().context("no bytes")?;
        let rate = |reader: &str| {
            let times = measured[reader]["seconds"].as_array().context("no times")?;
            let times: Vec<f64> = times.iter().filter_map(Value::as_f64).collect();
            Ok::<_, anyhow::Error>(bytes / Spread::of(&times).context("no times")?.median / 1e9)
        };
        let peer = rate("peer_parser")?;
        for (what, reader) in [("--check", "check"), ("--records", "records")] {
            let ours = rate(reader)?;
            report.add(Figure {
                what: format!("`{what}`, {FUNCTIONS} functions as {shape}'s ({:.0} MB)", bytes / 1e6),
                ours: format!("{ours:.2} GB/s"),
                peer: format!("{peer:.2} GB/s"),
                ratio: format!("{:.2} ×", ours / peer),
                goal: Goal::at_least(ours, GIGABYTES_PER_SECOND, " GB/s"),
                commands: vec![command::shown(&command)],
            });
        }
        std::fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
    }
    Ok(())
}
