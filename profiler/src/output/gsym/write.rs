//! A snapshot as a GSYM file. The encoding is gsym-rs' work; here is what it is given.

use std::io::{self, Write};
use std::sync::Arc;

use gsym_rs::{AddressRange, FileEntry, FileIndex, Function, GsymBuilder, LineEntry};
use rustc_hash::FxHashMap;

use super::snapshot::{Part, Snapshot};
use crate::symbol::names;

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
    /// The output.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Writes version 1, which all readers know, in little-endian order.
///
/// The base address is the lowest start. Functions have the names that the runtime gave them, with U+FFFD for NUL, and
/// the source rows that it recorded; where it recorded none, one row of the place that its name tells. A function that
/// begins before its first row gets that row's line from its start on: LLVM's readers fail on an address before the
/// first row. Rows without a line are left out.
///
/// Memory: about twice the file's size beside the code map.
///
/// # Errors
/// There is no function, they do not fit into version 1, or the output cannot be written.
pub fn write(snapshot: &Snapshot<'_>, uuid: Uuid, out: impl Write) -> Result<(), WriteError> {
    if snapshot.parts.is_empty() {
        return Err(WriteError::Empty);
    }
    let mut files = Files::default();
    // Parts are disjoint: there is nothing to merge, and a function may have the same name and size as the next one.
    let mut builder = GsymBuilder::new().build_id(uuid.0).function_set(gsym_rs::FunctionSetPolicy::Preserve);
    for part in &snapshot.parts {
        let function = function_of(part, &mut files, &mut builder).map_err(WriteError::Format)?;
        builder.add_function(function).map_err(WriteError::Format)?;
    }
    builder.write_to(out).map_err(|error| match error {
        gsym_rs::Error::Io(error) => WriteError::Io(error),
        other => WriteError::Format(other),
    })
}

fn function_of(part: &Part<'_>, files: &mut Files, builder: &mut GsymBuilder) -> gsym_rs::Result<Function> {
    let (hit, range) = (part.function, AddressRange::new(part.start, part.start.saturating_add(part.size.into())));
    let mut lines: Vec<LineEntry> = Vec::new();
    match hit.rows() {
        Some(rows) => {
            for row in rows.iter().filter(|row| row.line > 0) {
                let address = hit.start().0.saturating_add(row.offset.into()).max(part.start);
                if address >= range.end {
                    break;
                }
                // Of several rows before the part, the last one holds at its start.
                if lines.last().is_some_and(|last| last.address == address) {
                    lines.pop();
                }
                lines.push(LineEntry::new(address, files.index(&row.file, builder)?, row.line));
            }
            if let Some(first) = lines.first_mut() {
                first.address = part.start;
            }
        }
        None => {
            if let Some(place) = names::classify(hit.name(), hit.origin()).source {
                lines.push(LineEntry::new(part.start, files.index(&place.file, builder)?, place.line));
            }
        }
    }
    Ok(Function { lines, ..Function::new(range, name_of(hit.name(), part)) })
}

/// A string of GSYM ends at its first NUL, and one that is empty is no name.
fn name_of(name: &str, part: &Part<'_>) -> Vec<u8> {
    match name {
        "" => names::classify("", part.function.origin()).display.into_bytes(),
        name if name.contains('\0') => name.replace('\0', "\u{fffd}").into_bytes(),
        name => name.into(),
    }
}

/// Numbers of files by path. Consecutive rows are nearly always of the same one.
#[derive(Default)]
struct Files {
    last: Option<(Arc<str>, FileIndex)>,
    known: FxHashMap<Arc<str>, FileIndex>,
}

impl Files {
    fn index(&mut self, path: &Arc<str>, builder: &mut GsymBuilder) -> gsym_rs::Result<FileIndex> {
        if let Some((last, index)) = &self.last
            && Arc::ptr_eq(last, path)
        {
            return Ok(*index);
        }
        let index = match self.known.get(path) {
            Some(index) => *index,
            None => {
                let index = builder.add_file(entry_of(path))?;
                self.known.insert(Arc::clone(path), index);
                index
            }
        };
        self.last = Some((Arc::clone(path), index));
        Ok(index)
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
