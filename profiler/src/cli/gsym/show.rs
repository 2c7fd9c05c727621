//! `jitprof gsym show`.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use super::super::subcommand::SubcommandError;
use super::GsymCommandError;
use super::report::{AddressReport, FileReport, FunctionReport, Reporter};
use crate::gsym::{Gsym, GsymError};

/// `gsym show` as typed.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// A GSYM file
    file: PathBuf,

    /// What lies at these addresses of the program (hexadecimal, with or without 0x), instead of everything
    #[arg(value_name = "ADDR", value_parser = address)]
    addresses: Vec<u64>,

    /// As JSON
    #[arg(long)]
    json: bool,
}

/// A function or address, or why it cannot be read.
#[derive(Serialize)]
#[serde(untagged)]
enum Item<T> {
    Read(T),
    Damaged { index: u32, error: String },
}

pub(super) fn run(arguments: &Arguments, out: &mut impl Write) -> Result<(), SubcommandError> {
    let path = &arguments.file;
    let gsym = open(path)?;
    let mut reporter = Reporter::new(&gsym);
    let damaged = |source| GsymCommandError::Damaged { path: path.clone(), source };
    let head = FileReport::of(gsym.header());
    if !arguments.addresses.is_empty() {
        let found = arguments.addresses.iter().map(|address| reporter.at(*address)).collect::<Result<Vec<_>, _>>();
        let found = found.map_err(damaged)?;
        let written = if arguments.json { json_addresses(&head, &found, out) } else { text_addresses(&found, out) };
        return Ok(written?);
    }
    if arguments.json {
        // One function after the other: a file may hold millions.
        write!(out, "{{\"file\":{},\"functions\":[", serde_json::to_string(&head).map_err(io::Error::from)?)?;
    } else {
        write!(out, "{head}")?;
    }
    let mut failed = 0_u64;
    for index in 0..gsym.header().num_addresses {
        let read = reporter.function(index);
        failed += u64::from(read.is_err());
        if arguments.json {
            let separator = if index == 0 { "\n" } else { ",\n" };
            write!(out, "{separator}{}", json_item(index, read)?)?;
        } else {
            match read {
                Ok(function) => write!(out, "{function}")?,
                Err(error) => writeln!(out, "function {index}: {error}")?,
            }
        }
    }
    if arguments.json {
        writeln!(out, "\n]}}")?;
    }
    match failed {
        0 => Ok(()),
        count => {
            out.flush()?;
            Err(GsymCommandError::Functions { path: path.clone(), count }.into())
        }
    }
}

fn json_item(index: u32, read: Result<FunctionReport, GsymError>) -> io::Result<String> {
    let item = match read {
        Ok(function) => Item::Read(function),
        Err(error) => Item::Damaged { index, error: error.to_string() },
    };
    Ok(serde_json::to_string(&item)?)
}

fn json_addresses(head: &FileReport, found: &[AddressReport], out: &mut impl Write) -> io::Result<()> {
    #[derive(Serialize)]
    struct Addresses<'a> {
        file: &'a FileReport,
        addresses: &'a [AddressReport],
    }
    serde_json::to_writer_pretty(&mut *out, &Addresses { file: head, addresses: found })?;
    writeln!(out)
}

fn text_addresses(found: &[AddressReport], out: &mut impl Write) -> io::Result<()> {
    found.iter().try_for_each(|address| write!(out, "{address}"))
}

fn open(path: &Path) -> Result<Gsym, GsymCommandError> {
    let read = |source| GsymCommandError::Read { path: path.to_owned(), source };
    // A FIFO does not block, and a device is not read from.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(read)?;
    if !file.metadata().map_err(read)?.is_file() {
        return Err(GsymCommandError::NotRegular { path: path.to_owned() });
    }
    Gsym::open(file).map_err(|source| GsymCommandError::Damaged { path: path.to_owned(), source })
}

fn address(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    // from_str_radix would take a sign.
    let hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let address = u64::from_str_radix(digits, 16).ok().filter(|_| hex);
    address.ok_or_else(|| format!("{text} is no hexadecimal address"))
}
