//! Writes dumps, for tests and benchmarks: every record type, in both byte orders.
//!
//! The bytes are the format's without corrections: a caller that wants a producer's deviation writes it.

use super::byte_order::ByteOrder;
use super::header::MAGIC;
use super::record::RecordId;

/// A dump in memory.
#[derive(Clone, Debug)]
pub struct DumpWriter {
    order: ByteOrder,
    bytes: Vec<u8>,
    pid: u32,
}

/// A file header. The default is what most producers on x86-64 write.
#[derive(Clone, Debug)]
pub struct HeaderFields {
    /// The byte order of the whole dump.
    pub order: ByteOrder,
    /// 1 or 2.
    pub version: u32,
    /// Bytes up to the first record; above 40, zeros are added.
    pub total_size: u32,
    /// The ELF machine.
    pub elf_mach: u32,
    /// 0, or [`V8_PAD1`](super::V8_PAD1).
    pub pad1: u32,
    /// The pid, of the records, too.
    pub pid: u32,
    /// Creation time.
    pub time: u64,
    /// Flag bits.
    pub flags: u64,
}

impl Default for HeaderFields {
    fn default() -> Self {
        Self { order: ByteOrder::Little, version: 1, total_size: 40, elf_mach: 62, pad1: 0, pid: 1, time: 0, flags: 0 }
    }
}

/// A LOAD record; its pid is the dump's.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadFields<'a> {
    /// First byte of the code, also written as `vma`.
    pub code_addr: u64,
    /// Any number.
    pub code_index: u64,
    /// Without its NUL.
    pub name: &'a [u8],
    /// The code.
    pub code: &'a [u8],
}

/// An entry of a DEBUG_INFO record.
#[derive(Clone, Copy, Debug, Default)]
pub struct EntryFields<'a> {
    /// Address, bias included.
    pub addr: u64,
    /// Source line, from 1; 0 and less for none.
    pub line: i32,
    /// Discriminator or column.
    pub discrim: i32,
    /// File without its NUL.
    pub name: &'a [u8],
}

/// An INLINE record of jitprof's agent.
#[derive(Clone, Copy, Debug, Default)]
pub struct InlineFields<'a> {
    /// First byte.
    pub start: u64,
    /// Length of the inlined part in bytes.
    pub size: u32,
    /// The inlined method.
    pub method: u32,
    /// The method around it.
    pub parent: u32,
    /// Without its NUL.
    pub name: &'a [u8],
    /// Without its NUL.
    pub source: &'a [u8],
    /// Offsets and lines.
    pub rows: &'a [(u32, u32)],
}

impl DumpWriter {
    /// A little-endian dump of version 1 with its header.
    pub fn new(pid: u32) -> Self {
        Self::with_header(&HeaderFields { pid, ..HeaderFields::default() })
    }

    /// A dump with this header.
    pub fn with_header(header: &HeaderFields) -> Self {
        let mut dump = Self { order: header.order, bytes: Vec::new(), pid: header.pid };
        dump.header(header);
        dump
    }

    /// Another header; its byte order must be the dump's.
    pub fn header(&mut self, header: &HeaderFields) -> &mut Self {
        let start = self.bytes.len();
        for word in [MAGIC, header.version, header.total_size, header.elf_mach, header.pad1, header.pid] {
            self.u32(word);
        }
        self.u64(header.time).u64(header.flags);
        let size = usize::try_from(header.total_size).unwrap_or(usize::MAX).clamp(40, 1 << 20);
        self.bytes.resize(start + size, 0);
        self
    }

    /// The pid of the following records.
    pub fn set_pid(&mut self, pid: u32) -> &mut Self {
        self.pid = pid;
        self
    }

    /// Appends a LOAD record.
    pub fn load(&mut self, time: u64, load: &LoadFields<'_>) -> &mut Self {
        let size = RecordId::Load.fixed_size() + load.name.len() + 1 + load.code.len();
        self.prefix(RecordId::Load.number(), size, time).pids();
        self.u64(load.code_addr).u64(load.code_addr).u64(load.code.len() as u64).u64(load.code_index);
        self.raw(load.name).raw(&[0]).raw(load.code)
    }

    /// Appends a MOVE record.
    pub fn moved(&mut self, time: u64, old: u64, new: u64, size: u64, code_index: u64) -> &mut Self {
        self.prefix(RecordId::Move.number(), RecordId::Move.fixed_size(), time).pids();
        self.u64(new).u64(old).u64(new).u64(size).u64(code_index)
    }

    /// Appends a DEBUG_INFO record, padded with `pad` zeros.
    pub fn debug_info(&mut self, time: u64, code_addr: u64, entries: &[EntryFields<'_>], pad: usize) -> &mut Self {
        let names: usize = entries.iter().map(|entry| entry.name.len() + 17).sum();
        self.prefix(RecordId::DebugInfo.number(), RecordId::DebugInfo.fixed_size() + names + pad, time);
        self.u64(code_addr).u64(entries.len() as u64);
        for entry in entries {
            self.u64(entry.addr).u32(entry.line.cast_unsigned()).u32(entry.discrim.cast_unsigned());
            self.raw(entry.name).raw(&[0]);
        }
        self.raw(&vec![0; pad])
    }

    /// Appends an UNWINDING_INFO record, padded to 8 bytes.
    pub fn unwinding_info(&mut self, time: u64, bytes: &[u8], hdr_size: u64, mapped_size: u64) -> &mut Self {
        let size = RecordId::UnwindingInfo.fixed_size() + bytes.len();
        let padded = size.next_multiple_of(8);
        self.prefix(RecordId::UnwindingInfo.number(), padded, time);
        self.u64(bytes.len() as u64).u64(hdr_size).u64(mapped_size);
        self.raw(bytes).raw(&vec![0; padded - size])
    }

    /// Appends a CLOSE record.
    pub fn close(&mut self, time: u64) -> &mut Self {
        self.prefix(RecordId::Close.number(), RecordId::Close.fixed_size(), time)
    }

    /// Appends an UNLOAD record of jitprof's agent.
    pub fn unload(&mut self, time: u64, code_addr: u64, code_size: u64) -> &mut Self {
        self.prefix(RecordId::Unload.number(), RecordId::Unload.fixed_size(), time);
        self.u64(code_addr).u64(code_size)
    }

    /// Appends an INLINE record of jitprof's agent.
    pub fn inline(&mut self, time: u64, inline: &InlineFields<'_>) -> &mut Self {
        let texts = inline.name.len() + inline.source.len() + 2;
        let size = RecordId::Inline.fixed_size() + texts + 8 * inline.rows.len();
        self.prefix(RecordId::Inline.number(), size, time);
        self.u64(inline.start).u32(inline.size).u32(inline.method).u32(inline.parent);
        self.u32(u32::try_from(inline.rows.len()).unwrap_or(u32::MAX));
        self.raw(inline.name).raw(&[0]).raw(inline.source).raw(&[0]);
        for (offset, line) in inline.rows {
            self.u32(*offset).u32(*line);
        }
        self
    }

    /// Appends a METHOD record of jitprof's agent.
    pub fn method(&mut self, time: u64, code_addr: u64, method: u32, source: &[u8], module: &[u8]) -> &mut Self {
        let size = RecordId::Method.fixed_size() + source.len() + module.len() + 2;
        self.prefix(RecordId::Method.number(), size, time);
        self.u64(code_addr).u32(method).u32(0);
        self.raw(source).raw(&[0]).raw(module).raw(&[0])
    }

    /// Appends a LOST record of jitprof's agent.
    pub fn lost(&mut self, time: u64, event: u32, reason: u32) -> &mut Self {
        self.prefix(RecordId::Lost.number(), RecordId::Lost.fixed_size(), time);
        self.u32(event).u32(reason)
    }

    /// Appends a record of any type.
    pub fn record(&mut self, id: u32, time: u64, body: &[u8]) -> &mut Self {
        self.prefix(id, 16 + body.len(), time).raw(body)
    }

    /// Appends bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// Bytes so far: the offset of the next record.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Never: a dump has its header.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The dump.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn prefix(&mut self, id: u32, size: usize, time: u64) -> &mut Self {
        self.u32(id).u32(u32::try_from(size).unwrap_or(u32::MAX)).u64(time)
    }

    fn pids(&mut self) -> &mut Self {
        let pid = self.pid;
        self.u32(pid).u32(pid)
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        let bytes = self.order.u32_bytes(value);
        self.raw(&bytes)
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        let bytes = self.order.u64_bytes(value);
        self.raw(&bytes)
    }
}
