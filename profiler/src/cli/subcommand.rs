//! What jitprof does besides recording.
//!
//! A further subcommand is a module of its own beside this one, with its `Arguments` and a `run` that writes to the
//! given writer; here it gets a variant and an arm.

use std::io::{self, Write};

use clap::Subcommand as ClapSubcommand;

use super::gsym::{self, GsymCommandError};
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
    /// Profiles all the time at low cost, keeps the last hours, and answers in a browser
    Serve(Box<serve::Arguments>),
    /// Writes what a running service has sampled in the last minutes
    Snapshot(snapshot::Arguments),
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
    /// `serve`.
    #[error(transparent)]
    Serve(#[from] ServeError),
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
            Self::Snapshot(SnapshotError::Output(error)) => error.is_broken_pipe(),
            Self::UnwindInfo(_) | Self::Serve(_) | Self::Snapshot(_) => false,
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
            Self::Snapshot(arguments) => snapshot::run(&arguments)?,
            Self::Serve(arguments) => serve::run(*arguments, &mut out)?,
        }
        Ok(out.flush()?)
    }
}
