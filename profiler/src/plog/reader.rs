//! Reads a log in blocks: the header, checked; the name tables; the entries, in file order.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use super::error::PlogError;
use super::header::{ENTRY_SIZE, HEADER_SIZE, Header};
use super::names::NameTable;
use crate::regular_file::open_regular;
use jitprof_jitdump::ByteOrder;

/// Bytes read at once.
const BLOCK: usize = 1 << 20;
/// Largest entry that is believed; the documented fields take 40 bytes.
const MAX_ENTRY_SIZE: u64 = 1 << 16;
/// Longest name table that is read.
const MAX_TABLE_BYTES: u64 = 4 << 20;

/// One record of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// When it was written, in ticks of the log's clock.
    pub timestamp: u64,
    /// How long what it stands for took, in ticks.
    pub duration: u64,
    /// Which thread; a `pthread_t` on Unix.
    pub thread: u64,
    /// Index into the trace names.
    pub trace_id: u32,
    /// Index into the type names.
    pub type_id: u32,
    /// Object, count, amount or value, as the type has it.
    pub designator: u64,
}

impl Entry {
    /// Reads the documented fields. `None` if there are fewer than [`ENTRY_SIZE`] bytes.
    pub fn parse(order: ByteOrder, bytes: &[u8]) -> Option<Self> {
        Some(Self {
            timestamp: order.u64(bytes, 0)?,
            duration: order.u64(bytes, 8)?,
            thread: order.u64(bytes, 16)?,
            trace_id: order.u32(bytes, 24)?,
            type_id: order.u32(bytes, 28)?,
            designator: order.u64(bytes, 32)?,
        })
    }

    /// Whether nothing was ever written here: logs are mapped, and grow in steps.
    fn is_blank(&self) -> bool {
        *self == Self::default()
    }
}

/// Where the entries lie.
#[derive(Clone, Copy, Debug)]
struct Extent {
    offset: u64,
    entry_size: usize,
    count: u64,
}

/// An open log: anything that can be read and sought in, so that parsing needs no file.
#[derive(Debug)]
pub struct Log<R> {
    source: R,
    length: u64,
    header: Header,
    entries: Extent,
    warnings: Vec<String>,
}

impl Log<File> {
    /// Opens a regular file that is to be a log.
    ///
    /// # Errors
    /// There is none, or it may not be read, or as for [`Self::open`].
    pub fn open_path(path: &Path) -> Result<Self, PlogError> {
        let file = open_regular(path).map_err(PlogError::io("open it"))?;
        let no_file = || PlogError::Io { action: "read it", source: io::Error::other("it is no regular file") };
        Self::open(file.ok_or_else(no_file)?)
    }
}

impl<R: Read + Seek> Log<R> {
    /// Reads and checks the header.
    ///
    /// # Errors
    /// It is no log, its entries cannot be found, or the source cannot be read.
    pub fn open(mut source: R) -> Result<Self, PlogError> {
        let length = source.seek(SeekFrom::End(0)).map_err(PlogError::io("find the log's length"))?;
        source.rewind().map_err(PlogError::io("read the log"))?;
        let mut bytes = Vec::with_capacity(HEADER_SIZE);
        source.by_ref().take(HEADER_SIZE as u64).read_to_end(&mut bytes).map_err(PlogError::io("read the log"))?;
        let header = Header::parse(&bytes)?;
        let mut warnings = Vec::new();
        let entries = check(&header, length, &mut warnings)?;
        Ok(Self { source, length, header, entries, warnings })
    }

    /// What the header says.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The file's length in bytes when it was opened.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// How many entries there is room for and a reason to read.
    pub fn entry_count(&self) -> u64 {
        self.entries.count
    }

    /// What is wrong with the log, each with offset and field.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Adds what was found wrong on the way.
    pub(super) fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    /// Calls `visit` with every entry that is not blank, in file order, and returns how many were blank. Entries that
    /// the file has lost since it was opened are left out.
    ///
    /// # Errors
    /// The source cannot be read, or what `visit` returns.
    pub fn entries<E: From<PlogError>>(&mut self, visit: impl FnMut(Entry) -> Result<(), E>) -> Result<u64, E> {
        self.entries_from(0, u64::MAX, visit).map(|(_, blank)| blank)
    }

    /// The same from entry number `first` on, `most` of them. Returns the number after the last entry that was read, and how many were
    /// blank.
    ///
    /// # Errors
    /// As [`entries`](Self::entries).
    pub fn entries_from<E: From<PlogError>>(
        &mut self,
        first: u64,
        most: u64,
        mut visit: impl FnMut(Entry) -> Result<(), E>,
    ) -> Result<(u64, u64), E> {
        let size = self.entries.entry_size;
        let end = self.entries.count.min(first.saturating_add(most));
        let whole = usize::try_from(end.saturating_sub(first)).unwrap_or(usize::MAX);
        let per_block = (BLOCK / size).clamp(1, whole.max(1));
        let mut block = vec![0; per_block * size];
        let (mut next, mut blank) = (first, 0_u64);
        while next < end {
            let wanted = usize::try_from(end - next).map_or(per_block, |left| left.min(per_block));
            let at = self.entries.offset.saturating_add(next.saturating_mul(size as u64));
            let got =
                read_at(&mut self.source, at, &mut block[..wanted * size]).map_err(PlogError::io("read the log"))?;
            for bytes in block[..got].chunks_exact(size) {
                match Entry::parse(self.header.order, bytes) {
                    Some(entry) if !entry.is_blank() => visit(entry)?,
                    _ => blank += 1,
                }
                next += 1;
            }
            if got < wanted * size {
                break;
            }
        }
        Ok((next, blank))
    }

    /// The trace name table and the type name table, given the largest index that entries use of each.
    ///
    /// # Errors
    /// The source cannot be read.
    pub fn names(&mut self, largest_id: u32, largest_type: u32) -> Result<(NameTable, NameTable), PlogError> {
        let names = self.table(self.header.names_offset, "trace", largest_id)?;
        let types = self.table(self.header.types_offset, "type", largest_type)?;
        Ok((names, types))
    }

    /// The table that begins at `offset` and ends where the next part of the file begins.
    fn table(&mut self, offset: u64, what: &'static str, largest: u32) -> Result<NameTable, PlogError> {
        let header = &self.header;
        let parts = [header.names_offset, header.types_offset, header.entries_offset, self.length];
        let end = parts.into_iter().filter(|part| *part > offset && *part <= self.length).min().unwrap_or(offset);
        let length = (end - offset).min(MAX_TABLE_BYTES);
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        let got = read_at(&mut self.source, offset, &mut bytes).map_err(PlogError::io("read the log"))?;
        bytes.truncate(got);
        let (table, warning) = NameTable::read(self.header.order, &bytes, offset, what, largest);
        if let Some(warning) = warning {
            self.warnings.push(format!("byte {offset}, {what} name table: {warning}"));
        }
        Ok(table)
    }
}

/// Reads until `into` is full or the source ends.
fn read_at(source: &mut (impl Read + Seek), at: u64, into: &mut [u8]) -> io::Result<usize> {
    source.seek(SeekFrom::Start(at))?;
    let mut got = 0;
    while got < into.len() {
        match source.read(&mut into[got..]) {
            Ok(0) => break,
            Ok(more) => got += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}

/// Where the entries are, as far as header and length agree.
fn check(header: &Header, length: u64, warnings: &mut Vec<String>) -> Result<Extent, PlogError> {
    if header.header_size < HEADER_SIZE as u64 {
        warnings.push(format!("byte 16, size of the header: {} is less than {HEADER_SIZE}", header.header_size));
    }
    if header.ticks_per_second == 0 {
        warnings.push("byte 24, ticks per second: 0; times are taken for nanoseconds".to_owned());
    }
    let tables = [
        (40, "offset of the trace names", header.names_offset),
        (48, "offset of the type names", header.types_offset),
        (56, "offset of the entries", header.entries_offset),
    ];
    for (at, field, offset) in tables {
        if offset > length || offset < HEADER_SIZE as u64 {
            warnings
                .push(format!("byte {at}, {field}: {offset} is not between the header and the file's end, {length}"));
        } else if !offset.is_multiple_of(8) {
            warnings.push(format!("byte {at}, {field}: {offset} is not a multiple of 8"));
        }
    }
    if !(ENTRY_SIZE as u64..=MAX_ENTRY_SIZE).contains(&header.entry_size) {
        let what = format!("{} is not from {ENTRY_SIZE} to {MAX_ENTRY_SIZE}", header.entry_size);
        return Err(PlogError::Field { offset: 64, field: "size of an entry", what });
    }
    if !header.entry_size.is_multiple_of(8) {
        warnings.push(format!("byte 64, size of an entry: {} is not a multiple of 8", header.entry_size));
    }
    let room = match header.entries_offset >= HEADER_SIZE as u64 {
        true => length.saturating_sub(header.entries_offset) / header.entry_size,
        false => 0,
    };
    let count = count(header, room, warnings);
    let entry_size = usize::try_from(header.entry_size).unwrap_or(ENTRY_SIZE);
    Ok(Extent { offset: header.entries_offset, entry_size, count })
}

/// How many entries to read: those that are counted and fit. A producer that was killed, or that still runs, may not
/// have counted any; then whatever stands at the end of the file is read.
fn count(header: &Header, room: u64, warnings: &mut Vec<String>) -> u64 {
    let last = header.entries_offset > header.names_offset.max(header.types_offset);
    if header.entry_count > room {
        warnings.push(format!(
            "byte 72, number of entries: {} are counted, and the file has room for {room}: the log is truncated, or \
             still written",
            header.entry_count
        ));
    } else if header.entry_count == 0 && room > 0 && last {
        warnings.push(format!(
            "byte 72, number of entries: none is counted, as in a log that was not closed; the {room} that the file \
             has room for are read"
        ));
        return room;
    }
    header.entry_count.min(room)
}
