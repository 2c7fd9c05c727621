//! `jitprof jitdump`: what is in a dump, and what can be made of it.

mod disasm;
mod dump_summary;
mod elf;
mod filter;
mod follow;
mod item;
mod list;
mod listing;
mod repair;
mod report;
mod source;
#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;

use super::subcommand::SubcommandError;
use crate::output::{ElfError, OutputError, SamplesError};
use crate::record::RecordError;
use crate::times::DumpTime;
use filter::Filter;
use jitprof_common::units::Pid;
use jitprof_jitdump::{Inspection, Severity};
use listing::Syntax;
use report::{DumpReport, Report};
use source::Source;

/// The exit status of a check that found something.
const OUTSIDE: u8 = 4;

/// `jitdump` as typed.
#[derive(Debug, Args)]
#[command(after_help = "Without an option of what to do: the header and statistics.\n\n\
    Exit status: 0 done, 1 failed, 2 wrong usage, 4 --check found an error (with --strict: anything).")]
pub struct Arguments {
    /// A jitdump, or the pid of a process that writes one (a file that is named by a number alone is ./NUMBER)
    #[arg(value_name = "FILE|PID", required_unless_present = "process")]
    target: Option<String>,

    /// The process, as its number alone
    #[arg(short, value_name = "PID", conflicts_with = "target")]
    process: Option<u32>,

    /// List the records
    #[arg(long, group = "what", help_heading = "What to do")]
    records: bool,

    /// List the records as they come, until Ctrl-C or the end of the process
    #[arg(short, long, group = "what", help_heading = "What to do")]
    follow: bool,

    /// Name each deviation from the specification, where it is, and which producer is known to write so
    #[arg(long, group = "what", help_heading = "What to do")]
    check: bool,

    /// Disassemble the functions whose name contains this, or the code at an address (0x...), with source lines beside
    /// the instructions; x86 only
    #[arg(long, value_name = "NAME|ADDR", group = "what", help_heading = "What to do")]
    disasm: Option<String>,

    /// Write a copy that perf takes: whole records only, one header, lines right before their functions; - is
    /// standard output
    #[arg(long, value_name = "OUT", group = "what", help_heading = "What to do")]
    repair: Option<PathBuf>,

    /// Write the functions as an ELF file for objdump, gdb and perf: code, symbols, lines, unwinding data; - is
    /// standard output
    #[arg(long, value_name = "OUT", group = "what", help_heading = "What to do")]
    write_elf: Option<PathBuf>,

    /// With --write-elf: the code at this time instead of the last one: +DURATION after the first record (+1.5s), or
    /// as the dump has it, in nanoseconds or seconds
    #[arg(long, value_name = "TIME", requires = "write_elf", help_heading = "How")]
    at: Option<DumpTime>,

    /// JSON: one document, or for lists of records one line for each
    #[arg(long, help_heading = "How")]
    json: bool,

    /// With --disasm: samples beside the instructions, from a recording that jitprof wrote for pprof (-o FILE.pb.gz)
    #[arg(long, value_name = "FILE", requires = "disasm", help_heading = "How")]
    profile: Option<PathBuf>,

    /// With --disasm: how instructions are written
    #[arg(long, value_enum, default_value_t = Syntax::Intel, help_heading = "How")]
    syntax: Syntax,

    /// With --check: quirks of known producers fail, too
    #[arg(long, requires = "check", help_heading = "How")]
    strict: bool,

    /// With --check: how many places are named of each deviation
    #[arg(long, value_name = "N", default_value_t = 5, help_heading = "How")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=10_000), allow_negative_numbers = true)]
    places: u16,

    #[command(flatten)]
    filter: filter::Wanted,
}

/// Why there is nothing to show, or what is shown is bad.
#[derive(Debug, thiserror::Error)]
pub(super) enum JitdumpError {
    #[error("cannot read {path}: {source}")]
    Read { path: String, source: io::Error },
    #[error("{path} is no regular file")]
    NotRegular { path: String },
    #[error("{path} is no jitdump: it does not begin with the magic; --check looks at it all the same")]
    NoDump { path: String },
    #[error("{path} is empty: its producer has written nothing yet")]
    Empty { path: String },
    #[error("process {0} maps no jitdump; jitprof --pid {0} says how to make it write one")]
    NothingMapped(Pid),
    #[error("process {pid} maps several dumps; name one of them: {}", paths.join(", "))]
    Several { pid: Pid, paths: Vec<String> },
    #[error("no function is called {wanted} or lies there")]
    NoFunction { wanted: String },
    #[error(
        "code for {machine} is not disassembled here; --write-elf OUT writes a file that its own binutils' objdump -d \
         reads"
    )]
    Machine { machine: String },
    #[error("the dump is of {machine}; ELF files are written for machines of 64 bits only")]
    NoElf { machine: String },
    #[error("no function with its code is there at that time")]
    NothingThere,
    #[error(transparent)]
    Elf(ElfError),
    #[error("{path}: {source}")]
    Profile { path: String, source: Box<SamplesError> },
    #[error("{0} of a list of records needs --records or --follow")]
    FilterOfNothing(&'static str),
    #[error("the check found {} and {} of known producers", dump_summary::counted(*.errors, "error"), dump_summary::counted(*.quirks, "quirk"))]
    Outside { errors: u64, quirks: u64 },
    #[error("{what}: {source}")]
    System { what: &'static str, source: io::Error },
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error(transparent)]
    Announced(#[from] RecordError),
}

impl JitdumpError {
    /// Whether the reader of standard output has seen enough.
    pub(super) fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.is_broken_pipe())
    }

    /// The exit status, if it is not that of a failure.
    pub(super) fn status(&self) -> Option<u8> {
        matches!(self, Self::Outside { .. }).then_some(OUTSIDE)
    }
}

/// Does what was asked for.
///
/// # Errors
/// The dump cannot be read, an output not be written, or a check found something.
pub(super) fn run(arguments: &Arguments, out: &mut impl Write) -> Result<(), SubcommandError> {
    let filter = Filter::new(&arguments.filter);
    if let Some(name) = filter.given()
        && !(arguments.records || arguments.follow)
    {
        return Err(JitdumpError::FilterOfNothing(name).into());
    }
    let process = arguments.process.map(|pid| pid.to_string());
    let target = arguments.target.as_ref().or(process.as_ref()).map_or("", String::as_str);
    let sources = Source::open(target, !arguments.check && arguments.repair.is_none())?;
    if let Some(output) = &arguments.repair {
        return Ok(repair::run(Source::only(&sources)?, output)?);
    }
    if let Some(output) = &arguments.write_elf {
        return Ok(elf::run(Source::only(&sources)?, output, arguments.at)?);
    }
    if let Some(wanted) = &arguments.disasm {
        let profile = arguments.profile.as_deref();
        let options = disasm::Options { wanted, profile, syntax: arguments.syntax, json: arguments.json };
        return disasm::run(&sources, &options, out);
    }
    match () {
        () if arguments.follow => follow::run(sources, &filter, arguments.json, out),
        () if arguments.records => list::run(sources, &filter, arguments.json, out),
        () => report(arguments, sources, out),
    }
}

/// The summary or the check.
fn report(arguments: &Arguments, sources: Vec<Source>, out: &mut impl Write) -> Result<(), SubcommandError> {
    let mut dumps = Vec::with_capacity(sources.len());
    let (mut errors, mut quirks) = (0_u64, 0_u64);
    for source in sources {
        let inspection = source.inspect(usize::from(arguments.places))?;
        errors = errors.saturating_add(inspection.findings.count(Severity::Error));
        quirks = quirks.saturating_add(inspection.findings.count(Severity::Quirk));
        dumps.push(report_of(&source, inspection));
    }
    let report = Report { dumps };
    if arguments.json {
        serde_json::to_writer_pretty(&mut *out, &report).map_err(io::Error::from)?;
        writeln!(out)?;
    } else if arguments.check {
        dump_summary::check(&report, out)?;
    } else {
        dump_summary::summary(&report, out)?;
    }
    if arguments.check && (errors > 0 || arguments.strict && quirks > 0) {
        return Err(JitdumpError::Outside { errors, quirks }.into());
    }
    Ok(())
}

fn report_of(source: &Source, inspection: Inspection) -> DumpReport {
    DumpReport { path: source.path.clone(), process: source.process.map(|process| process.pid.0), inspection }
}
