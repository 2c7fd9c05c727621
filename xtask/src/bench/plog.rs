//! Reading trace logs.

use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use super::report::{Figure, Goal, Report, Spread};
use super::{Bench, json};
use crate::command;

/// 40 MB, which is sorted in memory, and 400 MB, which is not.
const ENTRIES: [u64; 2] = [1_000_000, 10_000_000];
/// What reading may take of memory, whatever the log's size.
const MEMORY_MIB: f64 = 200.0;
const MIB: f64 = 1_048_576.0;

pub(crate) fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    for entries in ENTRIES {
        for order in ["little", "big"] {
            measure(bench, order, entries, report)?;
        }
    }
    Ok(())
}

fn measure(bench: &Bench, order: &str, entries: u64, report: &mut Report) -> Result<()> {
    let file = bench.scratch.join(format!("{order}.plog"));
    command::output(Command::new(&bench.plog).args(["make", order, &entries.to_string()]).arg(&file))?;
    let mut command = Command::new(&bench.plog);
    command.arg("read").arg(&file).arg(bench.lengths.ingest_rounds.to_string());
    let measured = json(&mut command)?;
    let number = |key: &str| measured[key].as_f64().with_context(|| format!("no {key}"));
    let (bytes, peak) = (number("bytes")?, number("peak_bytes")? / MIB);
    let times: Vec<f64> =
        measured["seconds"].as_array().context("no times")?.iter().filter_map(Value::as_f64).collect();
    let seconds = Spread::of(&times).context("no times")?.median;
    let spans = number("spans")?;
    report.add(Figure {
        what: format!("trace log import, {order}-endian, {:.0} MB, {spans} spans put in order and nested", bytes / 1e6),
        ours: format!("{:.0} MB/s, {peak:.0} MiB at most", bytes / seconds / 1e6),
        peer: String::new(),
        ratio: String::new(),
        goal: Goal::at_most(peak, MEMORY_MIB, " MiB"),
        commands: vec![command::shown(&command)],
    });
    std::fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))
}
