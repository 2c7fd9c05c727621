//! Writing the code of a process as GSYM.

use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use super::report::{Figure, Goal, Report, Spread};
use super::{Bench, json};
use crate::command;

const FUNCTIONS: u32 = 200_000;

pub(crate) fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    for shape in ["node", "erlang"] {
        let file = bench.scratch.join(format!("gsym-{shape}.dump"));
        command::output(Command::new(&bench.ingest).args(["make", shape, &FUNCTIONS.to_string()]).arg(&file))?;
        let mut measure = Command::new(&bench.gsym);
        measure.arg(&file).arg(bench.lengths.ingest_rounds.to_string());
        let measured = json(&mut measure)?;
        let seconds = |key: &str| {
            let times = measured[key].as_array().context("no times")?;
            let times: Vec<f64> = times.iter().filter_map(Value::as_f64).collect();
            Ok::<_, anyhow::Error>(Spread::of(&times).context("no times")?.median)
        };
        let (ours, alone) = (seconds("export")?, seconds("gsym_rs")?);
        let megabytes = measured["bytes"].as_f64().context("no size")? / 1e6;
        report.add(Figure {
            what: format!(
                "{} functions as {shape}'s with {} source rows ({megabytes:.1} MB), dump to file",
                measured["functions"], measured["rows"]
            ),
            ours: format!("{ours:.3} s"),
            peer: format!("{alone:.3} s"),
            ratio: format!("{:.2} ×", ours / alone),
            goal: Goal::at_most(ours, 1.0, " s"),
            commands: vec![command::shown(&measure)],
        });
        std::fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
    }
    Ok(())
}
