//! `jitprof gsym show`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use super::super::address::parse_address;
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
    #[arg(value_name = "ADDR", value_parser = parse_address)]
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
    let gsym = read(path)?;
    let mut reporter = Reporter::new(&gsym);
    let head = FileReport::of(gsym.header());
    if !arguments.addresses.is_empty() {
        let found: Vec<AddressReport> = arguments.addresses.iter().map(|address| reporter.at(*address)).collect();
        if arguments.json {
            json_addresses(&head, &found, out)?;
        } else {
            found.iter().try_for_each(|address| write!(out, "{address}"))?;
        }
        return fail_if_any(path, found.iter().filter(|address| address.error.is_some()).count());
    }
    if arguments.json {
        // One function after the other: a file may hold millions.
        write!(out, "{{\"file\":{},\"functions\":[", serde_json::to_string(&head).map_err(io::Error::from)?)?;
    } else {
        write!(out, "{head}")?;
    }
    let mut failed = 0_usize;
    for index in 0..gsym.header().num_addresses {
        let read = reporter.function(index);
        failed += usize::from(read.is_err());
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
    fail_if_any(path, failed)
}

/// What could be read is shown all the same.
fn fail_if_any(path: &Path, count: usize) -> Result<(), SubcommandError> {
    match count {
        0 => Ok(()),
        count => Err(GsymCommandError::Functions { path: path.to_owned(), count }.into()),
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

fn read(path: &Path) -> Result<Gsym, GsymCommandError> {
    let file = super::open(path)?;
    Gsym::open(file).map_err(|source| GsymCommandError::Damaged { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use gsym_rs::{
        AddressRange, CallSite, CallSiteFlags, FileEntry, Function, FunctionSetPolicy, GsymBuilder, InlineNode,
        LineEntry,
    };

    use super::*;

    fn file() -> tempfile::NamedTempFile {
        let mut builder = GsymBuilder::new().build_id([0xab; 4]).function_set(FunctionSetPolicy::Preserve);
        let source = builder.add_file(FileEntry::new("/src", "a.c")).unwrap();
        let range = AddressRange::new(0x1000, 0x1020);
        let child = InlineNode {
            ranges: vec![AddressRange::new(0x1008, 0x1010)],
            name: b"small".to_vec(),
            call_file: source,
            call_line: 7,
            children: Vec::new(),
        };
        let root =
            InlineNode { ranges: vec![range], name: b"big".to_vec(), children: vec![child], ..InlineNode::default() };
        let call = CallSite {
            return_offset: 0x15,
            flags: CallSiteFlags::from_bits_retain(3),
            match_regex: vec![b"^callee$".to_vec()],
        };
        let function = Function {
            lines: vec![LineEntry::new(0x1000, source, 6), LineEntry::new(0x1008, source, 2)],
            inline: Some(root),
            merged: vec![Function::new(range, "alias\x1b[2J")],
            call_sites: vec![call],
            ..Function::new(range, "big")
        };
        builder.add_function(function).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), builder.to_bytes().unwrap()).unwrap();
        file
    }

    fn shown(file: &Path, addresses: &[u64], json: bool) -> (String, Result<(), SubcommandError>) {
        let mut out = Vec::new();
        let arguments = Arguments { file: file.to_owned(), addresses: addresses.to_vec(), json };
        let result = run(&arguments, &mut out);
        (String::from_utf8(out).unwrap(), result)
    }

    #[test]
    fn everything_that_a_file_says_is_shown_and_nothing_of_it_reaches_the_terminal_raw() {
        let file = file();
        let (text, result) = shown(file.path(), &[], false);
        result.unwrap();
        let expected = "\
GSYM version 1, little endian, uuid abababab
1 functions from 0x1000 (offsets of 1 bytes), 2 files, 39 bytes of strings
0x1000..0x1020 big
    0x1000 /src/a.c:6
    0x1008 /src/a.c:2
    inlined 0x1008..0x1010 small, called at /src/a.c:7
    call that returns to 0x1015, internal, external, to ^callee$
    merged into it:
        0x1000..0x1020 alias\\x1b[2J
";
        assert_eq!(text, expected);
    }

    #[test]
    fn an_address_has_its_frames_other_names_and_calls() {
        let file = file();
        let (text, result) = shown(file.path(), &[0x1008, 0x1015, 0x2000], false);
        result.unwrap();
        let expected = "\
0x1008 small at /src/a.c:2, inlined
       big+0x8 at /src/a.c:7
       merged into it: alias\\x1b[2J
0x1015 big+0x15 at /src/a.c:2
       merged into it: alias\\x1b[2J
       a call returns here, internal, external, to ^callee$
0x2000 is in no function
";
        assert_eq!(text, expected);
    }

    #[test]
    fn json_says_the_same() {
        let file = file();
        let parse = |addresses: &[u64]| -> serde_json::Value {
            serde_json::from_str(&shown(file.path(), addresses, true).0).unwrap()
        };
        let all = parse(&[]);
        assert_eq!(all["file"]["uuid"], "abababab");
        let function = &all["functions"][0];
        assert_eq!(function["merged"][0]["name"], "alias\u{1b}[2J");
        assert_eq!(function["call_sites"][0]["patterns"][0], "^callee$");
        assert_eq!(function["inline"]["children"][0]["call_line"], 7);
        let found = parse(&[0x1008]);
        assert_eq!(found["addresses"][0]["found"]["frames"][0]["name"], "small");
    }

    #[test]
    fn a_damaged_function_is_marked_and_the_others_are_shown() {
        let file = file();
        let mut bytes = std::fs::read(file.path()).unwrap();
        let end = bytes.len();
        // The end of the list of what is known.
        bytes[end - 8] = 9;
        bytes[end - 4] = 0xff;
        std::fs::write(file.path(), &bytes).unwrap();
        for (addresses, json) in [(&[][..], false), (&[], true), (&[0x1000], false), (&[0x1000], true)] {
            let (text, result) = shown(file.path(), addresses, json);
            assert!(text.contains("InfoData: 255 bytes are needed and 0 are left"), "{text}");
            assert!(result.unwrap_err().to_string().contains("1 functions cannot be read"));
        }
    }
}
