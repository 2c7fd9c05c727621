//! What jitprof does besides recording.
//!
//! A further subcommand is a module of its own beside this one, with its `Arguments` and a `run` that writes to the
//! given writer; here it gets a variant and an arm.

use std::io::{self, Write};

use clap::Subcommand as ClapSubcommand;

use super::dump::{self, DumpError};
use super::generate::{self, GenerateError};
#[cfg(feature = "gsym")]
use super::gsym::{self, GsymCommandError};
use super::jitdump::{self, JitdumpError};
use super::replay::{self, ReplayError};
use super::report::{self, ReportError};
#[cfg(feature = "serve")]
use super::serve;
#[cfg(feature = "serve")]
use super::snapshot::{self, SnapshotError};
#[cfg(feature = "top")]
use super::top::{self, TopError};
#[cfg(feature = "plog")]
use super::trace::{self, TraceError};
use super::unwind_info::{self, UnwindInfoError};
#[cfg(feature = "serve")]
use crate::serve::ServeError;

/// A subcommand as typed.
#[derive(Debug, ClapSubcommand)]
pub enum Subcommand {
    /// Shows by which rows stacks are unwound in a program, a library or a process, and where they are not
    UnwindInfo(unwind_info::Arguments),
    /// Shows what is in an HQNplog trace log, draws its spans, or puts them around the samples of a saved recording
    #[cfg(feature = "plog")]
    Trace(trace::Arguments),
    /// Writes generated code as a GSYM file for other tools, or shows what a GSYM file says
    #[cfg(feature = "gsym")]
    Gsym(gsym::Arguments),
    /// Shows in the terminal what uses the CPU now: functions, threads and the tree of calls, live
    #[cfg(feature = "top")]
    Top(Box<top::Arguments>),
    /// Shows what every thread of a process does now: those that run, and those that wait, which are not stopped for it
    Dump(dump::Arguments),
    /// Reads recordings back: tables and flamegraphs of files or of the directory of `serve`, merged, selected, compared
    Report(Box<report::Arguments>),
    /// Profiles all the time at low cost, keeps the last hours, and answers in a browser
    #[cfg(feature = "serve")]
    Serve(Box<serve::Arguments>),
    /// Writes what a running service has sampled in the last minutes
    #[cfg(feature = "serve")]
    Snapshot(Box<snapshot::Arguments>),
    /// Makes the profile of a capture again, without the target: byte for byte with the same version
    Replay(Box<replay::Arguments>),
    /// Shows what is in a jitdump, checks it, disassembles its functions, mends it, or writes it as an ELF file
    Jitdump(Box<jitdump::Arguments>),
    /// Writes completions for bash, zsh and fish, or manual pages
    Generate(generate::Arguments),
}

/// Why a subcommand failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum SubcommandError {
    /// What `unwind-info` cannot do.
    #[error(transparent)]
    UnwindInfo(#[from] UnwindInfoError),
    /// What `trace` cannot do.
    #[cfg(feature = "plog")]
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// What `gsym` cannot do.
    #[cfg(feature = "gsym")]
    #[error(transparent)]
    Gsym(#[from] GsymCommandError),
    /// What `top` cannot do.
    #[cfg(feature = "top")]
    #[error(transparent)]
    Top(#[from] TopError),
    /// What `dump` cannot do.
    #[error(transparent)]
    Dump(#[from] DumpError),
    /// What `report` cannot do.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// What `replay` cannot do.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// What `serve` cannot do.
    #[cfg(feature = "serve")]
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// What `jitdump` cannot do.
    #[error(transparent)]
    Jitdump(#[from] JitdumpError),
    /// What `generate` cannot do.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// What `snapshot` cannot do.
    #[cfg(feature = "serve")]
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
            #[cfg(feature = "plog")]
            Self::Trace(error) => error.is_broken_pipe(),
            #[cfg(feature = "gsym")]
            Self::Gsym(error) => error.is_broken_pipe(),
            Self::Jitdump(error) => error.is_broken_pipe(),
            Self::Generate(error) => error.is_broken_pipe(),
            Self::Report(error) => error.is_broken_pipe(),
            Self::Replay(error) => error.is_broken_pipe(),
            #[cfg(feature = "serve")]
            Self::Snapshot(SnapshotError::Output(error)) => error.is_broken_pipe(),
            #[cfg(feature = "serve")]
            Self::Serve(_) | Self::Snapshot(_) => false,
            #[cfg(feature = "top")]
            Self::Top(_) => false,
            Self::Dump(DumpError::Stdout(error)) => error.kind() == io::ErrorKind::BrokenPipe,
            Self::Dump(_) | Self::UnwindInfo(_) => false,
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
    /// Whether it says on its own what it does: the service writes a log.
    pub(super) fn has_own_log(&self) -> bool {
        match self {
            #[cfg(feature = "serve")]
            Self::Serve(_) => true,
            // Its screen must not be written over.
            #[cfg(feature = "top")]
            Self::Top(_) => true,
            _ => false,
        }
    }

    /// Runs it to its end; what it has to say goes to standard output.
    ///
    /// # Errors
    /// [`SubcommandError`], in one sentence.
    pub(super) fn run(self) -> Result<(), SubcommandError> {
        let mut out = io::BufWriter::new(io::stdout().lock());
        match self {
            Self::UnwindInfo(arguments) => unwind_info::run(&arguments, &mut out)?,
            #[cfg(feature = "plog")]
            Self::Trace(arguments) => trace::run(&arguments, &mut out)?,
            #[cfg(feature = "gsym")]
            Self::Gsym(arguments) => gsym::run(&arguments, &mut out)?,
            #[cfg(feature = "top")]
            Self::Top(arguments) => {
                // It writes to the terminal itself.
                drop(out);
                return Ok(top::run(&arguments)?);
            }
            Self::Dump(arguments) => dump::run(&arguments, &mut out)?,
            Self::Report(arguments) => report::run(&arguments, &mut out)?,
            Self::Replay(arguments) => replay::run(&arguments)?,
            Self::Generate(arguments) => generate::run(&arguments, &mut out)?,
            #[cfg(feature = "serve")]
            Self::Snapshot(arguments) => snapshot::run(&arguments)?,
            #[cfg(feature = "serve")]
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
