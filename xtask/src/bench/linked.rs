//! The static program beside the one that is linked to glibc: musl's own heap and string functions are slower, so it has
//! another heap, and this shows what is left. One round of both after the other, as a shared machine gets faster and slower
//! by the minute.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::Bench;
use super::report::{Figure, Goal, Report, Spread, ratio};
use crate::build::{self, Profile};
use crate::command;
use crate::platform::Platform;
use crate::workspace::Workspace;

const FUNCTIONS: u32 = 200_000;
/// What users of the static program may lose.
const LIMIT: f64 = 1.25;
/// What is done: each makes a string or more of each function.
const JOBS: [(&str, &[&str]); 3] = [
    ("checks a dump of", &["--check"]),
    ("lists the records of", &["--records", "--json"]),
    ("writes as ELF", &["--write-elf", "-"]),
];

/// Builds the static program, unless an earlier build is to be measured, and measures both.
pub(crate) fn run(workspace: &Workspace, bench: &Bench, no_build: bool, report: &mut Report) -> Result<()> {
    let platform = Platform::of_triple(&format!("{}-unknown-linux-musl", std::env::consts::ARCH))?;
    let left = platform.folder(&workspace.target).join(Profile::Shipped.folder()).join("jitprof");
    let linked = if no_build { left } else { build::jitprof_for(workspace, &platform, Profile::Shipped)? };
    ensure!(linked.is_file(), "there is no {}; run without --no-build", linked.display());
    let programs = [linked.as_path(), bench.jitprof.as_path()];
    let dump = bench.scratch.join("node.dump");
    command::output(Command::new(&bench.ingest).args(["make", "node", &FUNCTIONS.to_string()]).arg(&dump))?;
    for (what, flags) in JOBS {
        let mut times = [Vec::new(), Vec::new()];
        let mut commands = Vec::new();
        for _ in 0..bench.lengths.ingest_rounds {
            commands.clear();
            for (program, times) in programs.iter().zip(&mut times) {
                let mut job = Command::new(program);
                job.arg("jitdump").args(flags).arg(&dump).stdout(Stdio::null()).stderr(Stdio::null());
                commands.push(command::shown(&job));
                times.push(seconds(&mut job, program)?);
            }
        }
        let [ours, theirs] = [&times[0], &times[1]].map(|times| Spread::of(times));
        let (ours, theirs) = (ours.context("no times")?.median, theirs.context("no times")?.median);
        report.add(Figure {
            what: format!("the static program {what} {FUNCTIONS} functions"),
            ours: format!("{:.0} ms", ours * 1e3),
            peer: format!("{:.0} ms (linked to glibc)", theirs * 1e3),
            ratio: ratio(ours, theirs),
            goal: Goal::at_most(ours / theirs, LIMIT, " ×"),
            commands,
        });
    }
    std::fs::remove_file(&dump).with_context(|| format!("cannot remove {}", dump.display()))
}

fn seconds(job: &mut Command, program: &Path) -> Result<f64> {
    let begun = Instant::now();
    let status = job.status().with_context(|| format!("cannot start {}", program.display()))?;
    let took = begun.elapsed().as_secs_f64();
    ensure!(status.success(), "{} ended with {status}", command::shown(job));
    Ok(took)
}
