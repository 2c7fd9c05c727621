//! Writes logs, for tests, benchmarks and programs that want to be read by jitprof: both byte orders, any header and
//! entry size, every encoding of names that the reader knows.

use super::header::{BYTE_ORDER_MARK, ENTRY_SIZE, HEADER_SIZE, MAGIC};
use super::names::Encoding;
use super::reader::Entry;
use jitprof_jitdump::ByteOrder;

/// What a log is made of. The default is what the description suggests, in this machine's byte order, without names.
#[derive(Clone, Debug)]
pub struct LogFields<'a> {
    /// The byte order of all integers.
    pub order: ByteOrder,
    /// Bytes of the header; at least 80, a multiple of 8.
    pub header_size: usize,
    /// Bytes of an entry; at least 40, a multiple of 8.
    pub entry_size: usize,
    /// Frequency of the timestamps' clock, in ticks per second.
    pub ticks_per_second: u64,
    /// The start time in ticks.
    pub start: u64,
    /// Trace names by id.
    pub names: &'a [&'a str],
    /// Type names by number.
    pub types: &'a [&'a str],
    /// How names are encoded.
    pub encoding: Encoding,
}

impl Default for LogFields<'_> {
    fn default() -> Self {
        Self {
            order: ByteOrder::NATIVE,
            header_size: HEADER_SIZE,
            entry_size: ENTRY_SIZE,
            ticks_per_second: 1_000_000_000,
            start: 0,
            names: &[],
            types: &[],
            encoding: Encoding::Strings,
        }
    }
}

impl LogFields<'_> {
    /// Everything in front of the entries, for `entry_count` of them; entries follow at its end.
    ///
    /// # Panics
    /// If a size is less than documented or no multiple of 8.
    pub fn head(&self, entry_count: u64) -> Vec<u8> {
        assert!(self.header_size >= HEADER_SIZE && self.header_size.is_multiple_of(8), "header size");
        assert!(self.entry_size >= ENTRY_SIZE && self.entry_size.is_multiple_of(8), "entry size");
        let names_offset = self.header_size;
        let names = name_table(self.order, self.names, self.encoding, names_offset);
        let types_offset = names_offset + names.len();
        let types = name_table(self.order, self.types, self.encoding, types_offset);
        let entries_offset = types_offset + types.len();
        let mut head = MAGIC.to_vec();
        let sizes = [names_offset, types_offset, entries_offset, self.entry_size].map(|size| size as u64);
        let before = [BYTE_ORDER_MARK, self.header_size as u64, self.ticks_per_second, self.start];
        for field in before.into_iter().chain(sizes).chain([entry_count]) {
            head.extend(self.order.u64_bytes(field));
        }
        head.resize(self.header_size, 0);
        head.extend(names);
        head.extend(types);
        head
    }

    /// The bytes of one entry.
    pub fn entry(&self, entry: &Entry) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.entry_size);
        for field in [entry.timestamp, entry.duration, entry.thread] {
            bytes.extend(self.order.u64_bytes(field));
        }
        bytes.extend(self.order.u32_bytes(entry.trace_id));
        bytes.extend(self.order.u32_bytes(entry.type_id));
        bytes.extend(self.order.u64_bytes(entry.designator));
        bytes.resize(self.entry_size, 0);
        bytes
    }

    /// Writes a whole log, header, tables and entries.
    ///
    /// # Panics
    /// As [`head`](Self::head).
    pub fn log(&self, entries: &[Entry]) -> Vec<u8> {
        let mut log = self.head(entries.len() as u64);
        for entry in entries {
            log.extend(self.entry(entry));
        }
        log
    }
}

/// A name table that begins at `base` in the file, rounded up to 8 bytes.
fn name_table(order: ByteOrder, names: &[&str], encoding: Encoding, base: usize) -> Vec<u8> {
    let count = order.u64_bytes(names.len() as u64);
    let terminated = || names.iter().flat_map(|name| name.bytes().chain([0]));
    let offsets = |begin: usize| {
        let mut at = begin;
        let mut table = Vec::new();
        for name in names {
            table.extend(order.u64_bytes(at as u64));
            at += name.len() + 1;
        }
        table
    };
    let mut table = match encoding {
        // Relative to the file here and to the table below, so that both are written by something.
        Encoding::CountedOffsets => {
            let mut table = count.to_vec();
            table.extend(offsets(base + 8 + names.len() * 8));
            table.extend(terminated());
            table
        }
        Encoding::CountedStrings => count.into_iter().chain(terminated()).collect(),
        Encoding::LengthPrefixed { width, nul, align } => {
            let mut table = Vec::new();
            for name in names {
                match width {
                    4 => table.extend(order.u32_bytes(u32::try_from(name.len()).unwrap_or(u32::MAX))),
                    _ => table.extend(order.u64_bytes(name.len() as u64)),
                }
                table.extend(name.bytes());
                table.extend(nul.then_some(0));
                table.resize(table.len().next_multiple_of(align), 0);
            }
            table
        }
        Encoding::Offsets => offsets(names.len() * 8).into_iter().chain(terminated()).collect(),
        Encoding::Strings => terminated().collect(),
    };
    table.resize(table.len().next_multiple_of(8), 0);
    table
}
