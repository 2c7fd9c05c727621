//! What jitprof does besides recording.
//!
//! A further subcommand is a module of its own beside this one, with its `Arguments` and a `run` that writes to the
//! given writer; here it gets a variant and an arm.

use std::io::{self, Write};

use clap::Subcommand as ClapSubcommand;

use super::unwind_info::{self, UnwindInfoError};

/// A subcommand as typed.
#[derive(Debug, ClapSubcommand)]
pub enum Subcommand {
    /// Shows by which rows stacks are unwound in a program, a library or a process, and where they are not
    UnwindInfo(unwind_info::Arguments),
}

/// Why a subcommand failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum SubcommandError {
    /// `unwind-info`.
    #[error(transparent)]
    UnwindInfo(#[from] UnwindInfoError),
    /// Its output cannot be written.
    #[error("cannot write to standard output: {0}")]
    Stdout(#[from] io::Error),
}

impl SubcommandError {
    /// Whether the reader of standard output has seen enough.
    pub(super) fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Stdout(error) if error.kind() == io::ErrorKind::BrokenPipe)
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
        }
        Ok(out.flush()?)
    }
}
