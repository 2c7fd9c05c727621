//! A snapshot as a GSYM file. The encoding is gsym-rs' work; here is what it is given.

use std::io::{self, Write};
use std::sync::Arc;

use gsym_rs::{AddressRange, FileEntry, FileIndex, Function, GsymBuilder, LineEntry};
use rustc_hash::FxHashMap;

use super::inlines;
use super::snapshot::{Part, Snapshot};
use crate::symbol::names;
use jitprof_jitdump::code::CodeOrigin;

/// Identifies what a file describes: 16 bytes, for the header's uuid. Equal parts give an equal uuid, on every machine
/// and in every version: it is FNV-1a of 128 bits over the parts, each with its length before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// Of these parts, such as a pid and a start time.
    pub fn of(parts: &[&[u8]]) -> Self {
        const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
        const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
        let add = |hash: u128, byte: &u8| (hash ^ u128::from(*byte)).wrapping_mul(PRIME);
        let hash = parts.iter().fold(OFFSET, |hash, part| {
            let length = u64::try_from(part.len()).unwrap_or(u64::MAX).to_le_bytes();
            part.iter().fold(length.iter().fold(hash, add), add)
        });
        Self(hash.to_be_bytes())
    }
}

/// Why a snapshot could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// GSYM has no empty files.
    #[error("there is no generated code at that time")]
    Empty,
    /// Beyond what version 1 can say, which is 4 GiB.
    #[error("the code does not fit into a GSYM file: {0}")]
    Format(gsym_rs::Error),
    /// The output cannot be written.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Writes version 1, which all readers know, in little-endian order.
///
/// The base address is the lowest start. Functions have the names that the runtime gave them, with U+FFFD for NUL, and
/// the source rows that it recorded; where it recorded none, one row of the place that its name tells. A function that
/// begins before its first row gets that row's line from its start on: LLVM's readers fail on an address before the
/// first row. Rows without a line are left out, but within a function with inlined ones, where they part two of them.
///
/// Memory: about twice the file's size beside the code map.
///
/// # Errors
/// There is no function, they do not fit into version 1, or the output cannot be written.
pub fn write(snapshot: &Snapshot<'_>, uuid: Uuid, out: impl Write) -> Result<(), WriteError> {
    if snapshot.parts.is_empty() {
        return Err(WriteError::Empty);
    }
    // Parts are disjoint: there is nothing to merge, and a function may have the same name and size as the next one.
    let builder = GsymBuilder::new().build_id(uuid.0).function_set(gsym_rs::FunctionSetPolicy::Preserve);
    let mut writer = Writer { builder, last: None, known: FxHashMap::default() };
    for part in &snapshot.parts {
        let function = function_of(part, &mut writer).map_err(WriteError::Format)?;
        writer.builder.add_function(function).map_err(WriteError::Format)?;
    }
    writer.builder.write_to(out).map_err(|error| match error {
        gsym_rs::Error::Io(error) => WriteError::Io(error),
        other => WriteError::Format(other),
    })
}

fn function_of(part: &Part<'_>, writer: &mut Writer) -> gsym_rs::Result<Function> {
    let (hit, range) = (part.function, AddressRange::new(part.start, part.start.saturating_add(part.size.into())));
    let (inline, lines) = match hit.inlines().next() {
        Some(_) => {
            let (root, lines) = inlines::build(part, writer)?;
            (Some(root), lines)
        }
        None => (None, lines_of(part, range.end, writer)?),
    };
    Ok(Function { lines, inline, ..Function::new(range, name_of(hit.name(), hit.origin())) })
}

fn lines_of(part: &Part<'_>, end: u64, writer: &mut Writer) -> gsym_rs::Result<Vec<LineEntry>> {
    let hit = part.function;
    let mut lines: Vec<LineEntry> = Vec::new();
    let named = names::classify(hit.name(), hit.origin(), None).source.map(|place| (place.file, place.line));
    let Some(rows) = hit.rows() else {
        let source = || hit.source().map(|file| (Arc::clone(file), 0));
        if let Some((file, line)) = named.or_else(source) {
            lines.push(LineEntry::new(part.start, writer.file(&file)?, line));
        }
        return Ok(lines);
    };
    for row in rows.iter() {
        // Where no line is known it is the one on which the function begins, as in a profile.
        let (file, line) = match (row.line, &named) {
            (0, Some((file, line))) => (file, *line),
            (0, None) => continue,
            (line, _) => (&row.file, line),
        };
        let address = hit.start().0.saturating_add(row.offset.into()).max(part.start);
        if address >= end {
            break;
        }
        // Of several rows before the part, the last one holds at its start.
        if lines.last().is_some_and(|last| last.address == address) {
            lines.pop();
        }
        lines.push(LineEntry::new(address, writer.file(file)?, line));
    }
    if let Some(first) = lines.first_mut() {
        first.address = part.start;
    }
    Ok(lines)
}

/// A string of GSYM ends at its first NUL, and one that is empty is no name.
pub(super) fn name_of(name: &str, origin: CodeOrigin) -> Vec<u8> {
    match name {
        "" => names::classify("", origin, None).display.into_bytes(),
        name if name.contains('\0') => name.replace('\0', "\u{fffd}").into_bytes(),
        name => name.into(),
    }
}

/// gsym-rs' builder, and the numbers of files by path.
pub(super) struct Writer {
    builder: GsymBuilder,
    /// Consecutive rows are nearly always of the same file.
    last: Option<(Arc<str>, FileIndex)>,
    known: FxHashMap<Arc<str>, FileIndex>,
}

impl Writer {
    /// The number of a file.
    pub(super) fn file(&mut self, path: &Arc<str>) -> gsym_rs::Result<FileIndex> {
        if let Some((last, index)) = &self.last
            && Arc::ptr_eq(last, path)
        {
            return Ok(*index);
        }
        let index = match self.known.get(path) {
            Some(index) => *index,
            None => {
                let index = self.builder.add_file(entry_of(path))?;
                self.known.insert(Arc::clone(path), index);
                index
            }
        };
        self.last = Some((Arc::clone(path), index));
        Ok(index)
    }

    /// File and line; no file and line 0 where there is no place.
    pub(super) fn place(&mut self, place: Option<(&Arc<str>, u32)>) -> gsym_rs::Result<(FileIndex, u32)> {
        place.map_or(Ok((FileIndex::ZERO, 0)), |(file, line)| Ok((self.file(file)?, line)))
    }
}

/// Directory and name, so that joining them with a slash gives the path again.
fn entry_of(path: &str) -> FileEntry {
    let path = path.replace('\0', "\u{fffd}");
    match path.rsplit_once('/') {
        Some(("", name)) => FileEntry::new("/", name),
        Some((directory, name)) => FileEntry::new(directory, name),
        None => FileEntry::new("", path),
    }
}
