//! `fleet`: generates a fleet's dataset, and asks it the questions of contrib/queries in each engine.
//!
//! Nothing here asserts; the time of each answer is printed.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::workspace::Workspace;
use crate::{build, command, prepare};

/// What is asked, in order.
const QUERIES: [&str; 5] = ["top-functions", "by-version", "deploy-diff", "outlier-hosts", "flame"];

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Hosts of the generated fleet; a day of 1000 takes about 0.6 GB, with what is put together
    #[arg(long, default_value_t = 1000)]
    hosts: u32,
    /// Engines; spark wants the wheel pyspark in JITPROF_FLEET_PYTHON, and Java 17
    #[arg(long, value_delimiter = ',', default_value = "duckdb,clickhouse")]
    engines: Vec<String>,
    /// Spark's master
    #[arg(long, default_value = "local-cluster[2,1,2048]")]
    master: String,
    /// Leave the dataset in the target folder
    #[arg(long)]
    keep: bool,
}

pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    let python = prepare::engines(workspace)?.into_iter().next().context("no Python")?.1;
    build::continuous(workspace)?;
    let folder = workspace.target.join("fleet");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    let (raw, compacted) = (folder.join("raw"), folder.join("compacted"));
    let mut fleet = Command::new(workspace.target.join("release/fleet"));
    command::run(fleet.arg(&raw).args(["--hosts", &arguments.hosts.to_string()]))?;
    let began = Instant::now();
    std::fs::create_dir_all(&compacted).with_context(|| format!("cannot create {}", compacted.display()))?;
    let script = workspace.root.join("contrib/queries/run.py");
    let replace = format!("COMPACTED={}", compacted.display());
    command::run(Command::new(&python).arg(&script).args(["--replace", &replace]).arg(&raw).arg("compact"))?;
    println!("put together in {:.1} s", began.elapsed().as_secs_f64());
    for dataset in [&raw, &compacted] {
        println!("{}: {} files, {:.0} MB", dataset.display(), count(dataset)?.0, count(dataset)?.1 as f64 / 1e6);
    }
    for engine in &arguments.engines {
        for dataset in [&raw, &compacted] {
            let mut asked = Command::new(&python);
            asked.arg(&script).args(["--engine", engine, "--master", &arguments.master]).arg(dataset).args(QUERIES);
            let output = asked.output().with_context(|| format!("cannot run {}", python.to_string_lossy()))?;
            let said = String::from_utf8_lossy(&output.stderr);
            if !output.status.success() {
                bail!("{engine}: {said}");
            }
            let times =
                said.lines().filter(|line| QUERIES.iter().chain(["setup"].iter()).any(|name| line.starts_with(name)));
            let name = dataset.file_name().unwrap_or_default().to_string_lossy();
            println!("{engine}, {name}: {}", times.collect::<Vec<_>>().join("; "));
        }
    }
    if !arguments.keep {
        std::fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    Ok(())
}

/// Files below a folder, and their bytes.
fn count(folder: &Path) -> Result<(u64, u64)> {
    let (mut files, mut bytes) = (0, 0);
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let (more_files, more_bytes) =
            if entry.file_type()?.is_dir() { count(&entry.path())? } else { (1, entry.metadata()?.len()) };
        files += more_files;
        bytes += more_bytes;
    }
    Ok((files, bytes))
}
