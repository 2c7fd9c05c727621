//! `jitprof unwind-info`: by which rows stacks are unwound, and where they are not.

mod generated;
mod image;
mod names;
mod process;
mod rule_tables;
mod rules;

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::address::parse_address;
use super::subcommand::SubcommandError;
use crate::process::procfs::ProcError;
use crate::record::RecordError;
use jitprof_common::units::Pid;
use jitprof_unwind::RowsError;

/// `unwind-info` as typed.
#[derive(Debug, Args)]
pub struct Arguments {
    /// A program or library, or the pid of a process (a file that is named by a number alone is ./NUMBER)
    #[arg(value_name = "PATH|PID", required_unless_present = "pid")]
    target: Option<String>,

    /// The process, as its number alone
    #[arg(short, long, value_name = "PID", conflicts_with = "target")]
    pid: Option<u32>,

    /// Also the rows around an address, and how the step to the caller goes there: an address of the file, or of the
    /// process; hexadecimal with or without 0x
    #[arg(long, value_name = "ADDR", value_parser = parse_address)]
    at: Option<u64>,

    /// How many of the largest stretches that no row covers are shown
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(0..=10_000))]
    #[arg(allow_negative_numbers = true)]
    gaps: u16,

    /// As JSON
    #[arg(long)]
    json: bool,
}

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnwindInfoError {
    #[error("cannot open {}: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("{} is no regular file", path.display())]
    NotRegular { path: PathBuf },
    #[error("{}: {source}", path.display())]
    Rows { path: PathBuf, source: RowsError },
    #[error(transparent)]
    Process(#[from] ProcError),
    #[error(transparent)]
    Announced(#[from] RecordError),
    #[error("process {0} has no user memory: it is a kernel thread, or it has ended and waits for its parent")]
    NoMemory(Pid),
    #[error("starting a thread failed: {0}")]
    Thread(io::Error),
}

/// What is shown of a file, or of a process.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Report {
    File(Box<image::FileReport>),
    Process(Box<process::ProcessReport>),
}

/// Shows what was asked for on `out`.
///
/// # Errors
/// The file or process cannot be read, or `out` not be written.
pub(super) fn run(arguments: &Arguments, out: &mut impl Write) -> Result<(), SubcommandError> {
    let most = usize::from(arguments.gaps);
    let target = arguments.target.as_deref().unwrap_or_default();
    let report = match arguments.pid.or_else(|| target.parse().ok()) {
        Some(pid) => Report::Process(Box::new(process::report(Pid(pid), arguments.at, most)?)),
        None => Report::File(Box::new(image::report(&PathBuf::from(target), arguments.at, most)?)),
    };
    if arguments.json {
        serde_json::to_writer_pretty(&mut *out, &report).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        write!(out, "{report}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn a_process_is_chosen_with_and_without_an_option() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id().to_string();
        let report = |words: &[&str]| {
            let line = Line::try_parse_from([&["unwind-info"], words].concat()).map_err(|error| error.to_string())?;
            let mut out = Vec::new();
            run(&line.arguments, &mut out).map_err(|error| error.to_string())?;
            String::from_utf8(out).map_err(|error| error.to_string())
        };
        let whose = format!("process {pid} ");
        let reports = [&[pid.as_str()][..], &["--pid", &pid], &["-p", &pid]].map(report);
        let refused = [&[][..], &["--pid", &pid, "/bin/true"]].map(report);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(reports.iter().all(|report| report.as_ref().is_ok_and(|text| text.starts_with(&whose))), "{reports:?}");
        assert!(refused.iter().all(Result::is_err), "{refused:?}");
    }
}
