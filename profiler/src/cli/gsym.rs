//! `jitprof gsym`: generated code out, and a look into GSYM files.

mod export;
mod report;
mod show;
mod symbol_listing;

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use super::subcommand::SubcommandError;
use crate::gsym::GsymError;
use crate::output::OutputError;
use crate::output::gsym::WriteError;
use crate::record::RecordError;
use crate::regular_file::open_regular;
use jitprof_common::units::Pid;

/// `gsym` as typed.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Writes the generated code of a process, a jitdump or a perf map at one time
    Export(export::Arguments),
    /// Shows what a GSYM file says: everything, or what lies at addresses
    Show(show::Arguments),
}

/// Why there is nothing to show or to write.
#[derive(Debug, thiserror::Error)]
pub(super) enum GsymCommandError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is no regular file", path.display())]
    NotRegular { path: PathBuf },
    #[error("{}: {source}", path.display())]
    Damaged { path: PathBuf, source: GsymError },
    #[error("{}: {count} functions cannot be read; they are marked", path.display())]
    Functions { path: PathBuf, count: usize },
    #[error("{} is neither a jitdump nor a perf map", path.display())]
    NothingKnown { path: PathBuf },
    #[error(
        "process {0} announces no generated code: it maps no jitdump and has no perf map; jitprof --pid {0} says how to make it do so"
    )]
    NoCode(Pid),
    #[error("--at: a perf map has no times")]
    Timeless,
    #[error("{what}: {source}")]
    Write { what: String, source: WriteError },
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error(transparent)]
    Announced(#[from] RecordError),
}

impl GsymCommandError {
    /// Whether the reader of standard output has seen enough.
    pub(super) fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.is_broken_pipe())
    }
}

fn open(path: &Path) -> Result<File, GsymCommandError> {
    let opened = open_regular(path).map_err(|source| GsymCommandError::Read { path: path.to_owned(), source })?;
    opened.ok_or_else(|| GsymCommandError::NotRegular { path: path.to_owned() })
}

/// Does what was asked for.
///
/// # Errors
/// The input cannot be read, or the output not be written.
pub(super) fn run(arguments: &Arguments, out: &mut impl Write) -> Result<(), SubcommandError> {
    match &arguments.command {
        Command::Export(arguments) => Ok(export::run(arguments)?),
        Command::Show(arguments) => show::run(arguments, out),
    }
}
