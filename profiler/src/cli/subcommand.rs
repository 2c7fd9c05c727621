//! What jitprof does besides recording.
//!
//! A further subcommand is a module of its own beside this one, with its `Arguments` and a `run` that writes to the
//! given writer; here it gets a variant and an arm.

use std::io::{self, Write};

use clap::Subcommand as ClapSubcommand;

use super::gsym::{self, GsymCommandError};
use super::jitdump::{self, JitdumpError};
use super::report::{self, ReportError};
use super::serve;
use super::snapshot::{self, SnapshotError};
use super::trace::{self, TraceError};
use super::unwind_info::{self, UnwindInfoError};
use crate::serve::ServeError;

/// A subcommand as typed.
#[derive(Debug, ClapSubcommand)]
pub enum Subcommand {
    /// Shows by which rows stacks are unwound in a program, a library or a process, and where they are not
    UnwindInfo(unwind_info::Arguments),
    /// Shows what is in an HQNplog trace log, draws its spans, or puts them around the samples of a saved recording
    Trace(trace::Arguments),
    /// Writes generated code as a GSYM file for other tools, or shows what a GSYM file says
    Gsym(gsym::Arguments),
    /// Reads recordings back: tables and flamegraphs of files or of the directory of `serve`, merged, selected, compared
    Report(report::Arguments),
    /// Profiles all the time at low cost, keeps the last hours, and answers in a browser
    Serve(Box<serve::Arguments>),
    /// Writes what a running service has sampled in the last minutes
    Snapshot(snapshot::Arguments),
    /// Shows what is in a jitdump, checks it, disassembles its functions, mends it, or writes it as an ELF file
    Jitdump(Box<jitdump::Arguments>),
}

/// Why a subcommand failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum SubcommandError {
    /// `unwind-info`.
    #[error(transparent)]
    UnwindInfo(#[from] UnwindInfoError),
    /// `trace`.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// `gsym`.
    #[error(transparent)]
    Gsym(#[from] GsymCommandError),
    /// `report`.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// `serve`.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// `jitdump`.
    #[error(transparent)]
    Jitdump(#[from] JitdumpError),
    /// `snapshot`.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// Its output cannot be written.
    #[error("cannot write to standard output: {0}")]
    Stdout(#[from] io::Error),
}

impl SubcommandError {
    /// Whether the reader of standard output has seen enough.
    pub(super) fn is_broken_pipe(&self) -> bool {
        match self {
            Self::Stdout(error) => error.kind() == io::ErrorKind::BrokenPipe,
            Self::Trace(error) => error.is_broken_pipe(),
            Self::Gsym(error) => error.is_broken_pipe(),
            Self::Jitdump(error) => error.is_broken_pipe(),
            Self::Report(error) => error.is_broken_pipe(),
            Self::Snapshot(SnapshotError::Output(error)) => error.is_broken_pipe(),
            Self::UnwindInfo(_) | Self::Serve(_) | Self::Snapshot(_) => false,
        }
    }

    /// The exit status, if it is not that of a failure.
    pub(super) fn status(&self) -> Option<u8> {
        match self {
            Self::Jitdump(error) => error.status(),
            _ => None,
        }
    }
}

impl Subcommand {
    /// Runs it to its end; what it has to say goes to standard output.
    ///
    /// # Errors
    /// [`SubcommandError`], in one sentence.
    pub(super) fn run(self) -> Result<(), SubcommandError> {
        let mut out = io::BufWriter::new(io::stdout().lock());
        match self {
            Self::UnwindInfo(arguments) => unwind_info::run(&arguments, &mut out)?,
            Self::Trace(arguments) => trace::run(&arguments, &mut out)?,
            Self::Gsym(arguments) => gsym::run(&arguments, &mut out)?,
            Self::Report(arguments) => report::run(&arguments, &mut out)?,
            Self::Snapshot(arguments) => snapshot::run(&arguments)?,
            Self::Serve(arguments) => serve::run(*arguments, &mut out)?,
            Self::Jitdump(arguments) => {
                // What was found is shown whether it is an error or not.
                let ran = jitdump::run(&arguments, &mut out);
                out.flush()?;
                ran?;
            }
        }
        Ok(out.flush()?)
    }
}
