//! A GSYM file, of which only what is asked for is read.

use std::fs::File;

use super::bytes::{Bytes, length_of};
use super::cursor::Cursor;
use super::error::GsymError;
use super::function::{self, FunctionInfo};
use super::header::Header;
use super::lookup::Lookup;

/// Longest FunctionInfo that is read. The largest of clang 14's own has 300 KB.
pub const MAX_FUNCTION_BYTES: usize = 4 << 20;
/// Longer names and paths are truncated to this.
pub const MAX_STRING_BYTES: usize = 64 << 10;
/// Read at once of a FunctionInfo; nearly all are shorter.
const FIRST_READ: usize = 4 << 10;
/// Functions at the same address that are looked at; LLVM makes them one, except with `--merged-functions`.
const MAX_SAME_START: u32 = 1024;

/// A GSYM file. Every look-up reads the file anew, unless it is kept whole (see
/// [`MAX_RESIDENT_BYTES`](super::MAX_RESIDENT_BYTES)); nothing is cached.
#[derive(Debug)]
pub struct Gsym {
    bytes: Bytes,
    header: Header,
}

impl Gsym {
    /// Takes an open regular file.
    ///
    /// # Errors
    /// It cannot be read, is none of GSYM's, or its header contradicts its length.
    pub fn open(file: File) -> Result<Self, GsymError> {
        let bytes = Bytes::open(file);
        Self::new(bytes.map_err(|source| GsymError { offset: 0, field: "file", problem: source.into() })?)
    }

    /// Takes a file's contents.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn parse(bytes: Vec<u8>) -> Result<Self, GsymError> {
        Self::new(Bytes::Memory(bytes))
    }

    fn new(bytes: Bytes) -> Result<Self, GsymError> {
        let header = Header::read(&bytes)?;
        Ok(Self { bytes, header })
    }

    /// What the file says about itself.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Bytes that it keeps in memory.
    pub fn resident_bytes(&self) -> u64 {
        self.bytes.resident()
    }

    /// Where the function at `index` begins.
    ///
    /// # Errors
    /// There is no such function, or it would begin beyond the last address.
    pub fn address(&self, index: u32) -> Result<u64, GsymError> {
        let width = self.header.addr_off_size;
        let at = self.entry(self.header.tables.addresses, index, width)?;
        let raw = self.bytes.read(at, width.into(), "address offsets")?;
        let offset = Cursor::new(&raw, at, self.header.order).uint(width, "address offsets")?;
        let address = self.header.base_address.checked_add(offset);
        address.ok_or(GsymError::value(at, "address offsets", offset, "leads beyond the last address"))
    }

    /// The function at `index`, with everything that is known about it.
    ///
    /// # Errors
    /// Its FunctionInfo is damaged, or larger than [`MAX_FUNCTION_BYTES`]. Other functions can be read all the same.
    pub fn function(&self, index: u32) -> Result<FunctionInfo, GsymError> {
        let start = self.address(index)?;
        self.with_info(index, |mut cursor| function::read(&mut cursor, start, self.header.tables.string_width))
    }

    /// The function that covers an address: the last one that begins at or before it, if it reaches that far. Of
    /// several that begin there the first that does; a function without a size reaches to the next one.
    ///
    /// # Errors
    /// One of these functions is damaged.
    pub fn find(&self, address: u64) -> Result<Option<u32>, GsymError> {
        let Some(last) = self.last_at_or_before(address)? else {
            return Ok(None);
        };
        let start = self.address(last)?;
        let mut first = last;
        while let Some(before) = first.checked_sub(1)
            && last - before < MAX_SAME_START
            && self.address(before)? == start
        {
            first = before;
        }
        for index in first..=last {
            let size = self.head(index, start)?.0;
            if size == 0 || address - start < u64::from(size) {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    /// What lies at an address; `None` if no function covers it.
    ///
    /// Costs some 25 reads of the file, if it is not kept in memory. A line table that begins behind the address
    /// gives no line. Merged functions are not looked at: they are other names of the same code.
    ///
    /// # Errors
    /// What is known about the function is damaged.
    pub fn lookup(&self, address: u64) -> Result<Option<Lookup>, GsymError> {
        Lookup::of(self, address)
    }

    /// Size and name of a function, without the rest.
    ///
    /// # Errors
    /// As [`function`](Self::function).
    pub fn size_and_name(&self, index: u32) -> Result<(u32, u64), GsymError> {
        self.head(index, self.address(index)?)
    }

    fn head(&self, index: u32, start: u64) -> Result<(u32, u64), GsymError> {
        let at = self.info_offset(index)?;
        let raw = self.bytes.read_up_to(at, 12, "FunctionInfo")?;
        function::read_head(&mut Cursor::new(&raw, at, self.header.order), start, self.header.tables.string_width)
    }

    /// The text at an offset of the string table: lossily decoded, truncated to [`MAX_STRING_BYTES`].
    ///
    /// # Errors
    /// The offset lies outside the table, or the text does not end in it.
    pub fn string(&self, offset: u64) -> Result<String, GsymError> {
        let table = &self.header.tables.strings;
        let start = table.start.checked_add(offset).filter(|start| *start < table.end);
        let start = start.ok_or(GsymError::value(table.start, "string table", offset, "lies beyond its end"))?;
        let left = usize::try_from(table.end - start).unwrap_or(usize::MAX);
        // Nearly every name is found by the first reading.
        for length in [256, MAX_STRING_BYTES] {
            let raw = self.bytes.read_up_to(start, length.min(left), "string table")?;
            let text = memchr::memchr(0, &raw).and_then(|end| raw.get(..end));
            if text.is_none() && (raw.len() >= left || raw.len() < length.min(left)) {
                return Err(GsymError::truncated(start, "string table", length_of(&raw) + 1, length_of(&raw)));
            }
            if let Some(text) = text.or((length == MAX_STRING_BYTES).then_some(&raw)) {
                return Ok(String::from_utf8_lossy(text).into_owned());
            }
        }
        Ok(String::new())
    }

    /// The path of a file, directory and name joined; `None` for the file without a name.
    ///
    /// # Errors
    /// There is no such file, or its strings are damaged.
    pub fn file(&self, index: u32) -> Result<Option<String>, GsymError> {
        let Header { order, num_files, tables, .. } = &self.header;
        if index >= *num_files {
            return Err(GsymError::value(tables.files, "file table", index.into(), "is no file of it"));
        }
        let width = tables.string_width;
        let at = self.entry(tables.files, index, width.saturating_mul(2))?;
        let raw = self.bytes.read(at, usize::from(width) * 2, "file table")?;
        let mut cursor = Cursor::new(&raw, at, *order);
        let directory = self.string(cursor.uint(width, "file table, directory")?)?;
        let name = self.string(cursor.uint(width, "file table, name")?)?;
        Ok(match (directory.as_str(), name.as_str()) {
            ("", "") => None,
            ("", _) => Some(name),
            (directory, name) if directory.ends_with('/') => Some(format!("{directory}{name}")),
            (directory, name) => Some(format!("{directory}/{name}")),
        })
    }

    /// Gives the FunctionInfo's bytes to `read`, as many as belong to it.
    pub(super) fn with_info<T>(
        &self,
        index: u32,
        read: impl Fn(Cursor<'_>) -> Result<T, GsymError>,
    ) -> Result<T, GsymError> {
        let at = self.info_offset(index)?;
        let mut length = FIRST_READ;
        loop {
            let raw = self.bytes.read_up_to(at, length, "FunctionInfo")?;
            let cursor = Cursor::new(&raw, at, self.header.order);
            let needed = self.info_length(cursor);
            if raw.len() < length || needed.is_ok_and(|needed| needed <= length_of(&raw)) {
                return read(cursor);
            }
            if length >= MAX_FUNCTION_BYTES {
                return Err(GsymError::value(at, "FunctionInfo", length_of(&raw), "bytes, and no end"));
            }
            length = length.saturating_mul(8).min(MAX_FUNCTION_BYTES);
        }
    }

    /// Bytes up to the end of the list, if it is reached.
    fn info_length(&self, mut cursor: Cursor<'_>) -> Result<u64, GsymError> {
        let start = cursor.offset();
        cursor.take(u64::from(self.header.tables.string_width) + 4, "FunctionInfo")?;
        while function::next_info(&mut cursor)?.is_some() {}
        Ok(cursor.offset() - start)
    }

    fn info_offset(&self, index: u32) -> Result<u64, GsymError> {
        let tables = &self.header.tables;
        let at = self.entry(tables.infos, index, tables.info_width)?;
        let raw = self.bytes.read(at, tables.info_width.into(), "address-info offsets")?;
        let offset = Cursor::new(&raw, at, self.header.order).uint(tables.info_width, "address-info offsets")?;
        let place = tables.info_base.checked_add(offset).filter(|place| tables.functions.contains(place));
        place.ok_or(GsymError::value(at, "address-info offsets", offset, "leads to no FunctionInfo"))
    }

    /// Where an entry of a table lies.
    fn entry(&self, table: u64, index: u32, width: u8) -> Result<u64, GsymError> {
        let offset = u64::from(index).saturating_mul(width.into());
        let place = table.checked_add(offset);
        place.ok_or(GsymError::value(table, "table", index.into(), "is no entry of it"))
    }

    fn last_at_or_before(&self, address: u64) -> Result<Option<u32>, GsymError> {
        let (mut low, mut high) = (0, self.header.num_addresses);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.address(middle)? <= address { low = middle + 1 } else { high = middle }
        }
        Ok(low.checked_sub(1))
    }
}
