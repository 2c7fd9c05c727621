//! What it costs a runtime to be started so that it announces its code.
//!
//! A program that does nothing but call is the worst case of a flag that changes how functions are entered; it does a
//! fixed amount of work, and its CPU time is compared with and without the flag, in turns.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};

use super::report::Spread;
use super::running::Running;
use crate::command;
use crate::prepare::RUNTIMES;
use crate::workspace::Workspace;

/// A runtime with and without its flag.
struct Flagged {
    /// Its name in `prepare`, and the variable that leads to it.
    runtime: &'static str,
    variable: &'static str,
    flag: &'static [&'static str],
    /// Between the flag and the program.
    always: &'static [&'static str],
    /// The program and how much it does, about a second of it.
    program: &'static [&'static str],
}

const FLAGGED: [Flagged; 5] = [
    Flagged {
        runtime: "node",
        variable: "JITPROF_NODE",
        flag: &["--perf-prof", "--perf-prof-unwinding-info", "--interpreted-frames-native-stack"],
        always: &[],
        program: &["fib.js", "1500"],
    },
    Flagged {
        runtime: "python",
        variable: "JITPROF_PYTHON",
        flag: &["-X", "perf_jit"],
        always: &[],
        program: &["fib.py", "80"],
    },
    Flagged {
        runtime: "php",
        variable: "JITPROF_PHP",
        flag: &["-d", "opcache.jit_debug=0x20"],
        always: &["-d", "opcache.enable_cli=1", "-d", "opcache.jit_buffer_size=64M", "-d", "opcache.jit=1205"],
        program: &["fib.php", "600"],
    },
    Flagged {
        runtime: "java",
        variable: "JITPROF_JAVA",
        flag: &["-XX:+PreserveFramePointer"],
        always: &[],
        program: &["Fib.java", "3000"],
    },
    Flagged {
        runtime: "erlang",
        variable: "JITPROF_ERL",
        flag: &["+JPperf", "true"],
        always: &["-noshell", "-run"],
        program: &["fib", "main", "1000"],
    },
];

/// Measures all runtimes and prints a table for the documents.
pub(super) fn run(workspace: &Workspace, rounds: u32) -> Result<()> {
    let scratch = workspace.target.join("bench-flags");
    fs::create_dir_all(&scratch).with_context(|| format!("cannot create {}", scratch.display()))?;
    let sources = workspace.targets().join("calls");
    for entry in fs::read_dir(&sources).with_context(|| format!("cannot list {}", sources.display()))? {
        let path = entry?.path();
        fs::copy(&path, scratch.join(path.file_name().unwrap_or_default()))
            .with_context(|| format!("cannot copy {}", path.display()))?;
    }
    let mut table =
        "| runtime | flag | CPU without | with | difference | noise |\n|---|---|---|---|---|---|\n".to_owned();
    for flagged in &FLAGGED {
        let row = row(workspace, flagged, &scratch, rounds)
            .with_context(|| format!("{} was not measured", flagged.runtime))?;
        table.push_str(&row);
    }
    fs::remove_dir_all(&scratch).with_context(|| format!("cannot remove {}", scratch.display()))?;
    print!("{table}");
    Ok(())
}

fn row(workspace: &Workspace, flagged: &Flagged, scratch: &Path, rounds: u32) -> Result<String> {
    let recipe = RUNTIMES.iter().find(|runtime| runtime.name == flagged.runtime).context("no recipe for it")?;
    let found = recipe.prepare(workspace)?;
    let path = |name: &str| found.iter().find(|(variable, _)| *variable == name).map(|(_, path)| path);
    if let Some(compiler) = path("JITPROF_ERLC") {
        command::run(Command::new(compiler).arg("fib.erl").current_dir(scratch))?;
    }
    let program = path(flagged.variable).context("its recipe does not say where it is")?;
    let start = |flag: &[&str]| {
        let mut command = Command::new(program);
        command.args(flag).args(flagged.always).args(flagged.program).current_dir(scratch);
        command
    };
    // Without it twice: what these two differ by is noise.
    let (mut without, mut with, mut again) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        command::progress(&format!("{}, round {} of {rounds}", flagged.runtime, round + 1));
        without.push(cpu_s(&mut start(&[]), scratch)?);
        with.push(cpu_s(&mut start(flagged.flag), scratch)?);
        again.push(cpu_s(&mut start(&[]), scratch)?);
    }
    // The least is what the program takes; all else is the machine's.
    let least = |seconds: &[f64]| Spread::of(seconds).map(|spread| spread.least).context("no rounds");
    let (without, with, again) = (least(&without)?, least(&with)?, least(&again)?);
    let base = without.min(again);
    let percent = |seconds: f64| format!("{:+.1} %", 100.0 * (seconds / base - 1.0));
    let mut row = String::new();
    writeln!(
        row,
        "| {} | `{}` | {base:.2} s | {with:.2} s | {} | {} |",
        flagged.runtime,
        flagged.flag.join(" "),
        percent(with),
        percent(without.max(again)),
    )?;
    Ok(row)
}

/// CPU seconds of one run; what it has announced is removed.
fn cpu_s(command: &mut Command, scratch: &Path) -> Result<f64> {
    let started = Instant::now();
    let running = Running::start(command, &scratch.join("log"))?;
    let pid = running.pid();
    let used = running.ended(started)?;
    let left = [
        scratch.join(format!("jit-{pid}.dump")),
        format!("/tmp/jit-{pid}.dump").into(),
        format!("/tmp/perf-{pid}.map").into(),
    ];
    for file in left.iter().filter(|file| file.exists()) {
        fs::remove_file(file).with_context(|| format!("cannot remove {}", file.display()))?;
    }
    Ok(used.cpu_s)
}
