//! A copy of a dump that readers take which cannot find their way through damage.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Serialize;

use super::byte_order::ByteOrder;
use super::debug_info::{DebugInfo, intact_part, name_is_overwritten};
use super::header::{FLAG_ARCH_TIMESTAMP, FileHeader, HEADER_SIZE, MAGIC, V8_PAD1};
use super::parser::Step;
use super::record::{Body, PREFIX_SIZE, Record, RecordId};
use jitprof_common::units::FileOffset;

/// Announcements that wait for their function, and the bytes of those that were written anew.
const MAX_WAITING: usize = 1 << 16;
const MAX_WAITING_BYTES: usize = 64 << 20;

/// What comes next in the copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// These bytes of the dump.
    Copy {
        /// The first.
        offset: FileOffset,
        /// How many.
        len: u64,
    },
    /// New ones.
    Bytes(Vec<u8>),
}

/// What became of the dump.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RepairAccount {
    /// Records in the copy.
    pub records: u64,
    /// Stretches without records that are left out.
    pub lost_stretches: u64,
    /// Records that contradict themselves, left out.
    pub damaged: u64,
    /// Further file headers, left out.
    pub headers: u64,
    /// Records of another byte order or clock than the first header's, left out.
    pub other_format: u64,
    /// DEBUG_INFO and UNWINDING_INFO whose function is not there, left out.
    pub unclaimed: u64,
    /// The last record, of which the end is not there.
    pub torn: u64,
    /// DEBUG_INFO of which nothing can be read, left out.
    pub unreadable_lines: u64,
    /// DEBUG_INFO with names from freed memory, written anew.
    pub names_mended: u64,
    /// DEBUG_INFO moved to right before its function.
    pub moved: u64,
}

/// Makes the copy from the parser's steps. Pure: gives out pieces in the copy's order.
///
/// The copy has one header of 40 bytes, of version 1 and without reserved flags, and every record that is whole. A
/// DEBUG_INFO stands right before its function, because perf gives it to the next one whatever its address; what was
/// announced for a function that is lost is left out, because perf would give it to the next one, too.
#[derive(Debug)]
pub struct Repairer {
    file_len: u64,
    header: Option<FileHeader>,
    header_written: bool,
    /// Whether records are of the first header's format.
    same_format: bool,
    of_v8: bool,
    order: ByteOrder,
    debug: BTreeMap<u64, Piece>,
    other: Vec<Piece>,
    waiting_bytes: usize,
    /// Code address of the last DEBUG_INFO.
    last_debug: Option<u64>,
    account: RepairAccount,
}

impl Repairer {
    /// For a dump that ends at `file_len`.
    pub fn new(file_len: u64) -> Self {
        Self {
            file_len,
            header: None,
            header_written: false,
            same_format: true,
            of_v8: false,
            order: ByteOrder::NATIVE,
            debug: BTreeMap::new(),
            other: Vec::new(),
            waiting_bytes: 0,
            last_debug: None,
            account: RepairAccount::default(),
        }
    }

    /// Takes the next step.
    pub fn step(&mut self, step: &Step<'_>, out: &mut impl FnMut(Piece)) {
        match step {
            Step::Header(header) => self.header(header),
            Step::Record(record) => self.record(record, out),
            Step::BadRecord { .. } => {
                self.account.damaged += 1;
                self.drop_waiting();
            }
            Step::Corrupt { .. } => {
                self.account.lost_stretches += 1;
                self.drop_waiting();
            }
            Step::Resynced { .. } | Step::Scanned | Step::NeedMore { .. } => {}
        }
    }

    /// The dump is over; the parser stands at `reached`, which is lost or not.
    pub fn finish(mut self, reached: FileOffset, lost: bool, out: &mut impl FnMut(Piece)) -> RepairAccount {
        self.write_header(0, out);
        self.drop_waiting();
        self.account.torn += u64::from(!lost && reached.0 < self.file_len);
        self.account
    }

    fn header(&mut self, header: &FileHeader) {
        let ticks = |header: &FileHeader| header.flags & FLAG_ARCH_TIMESTAMP;
        if let Some(first) = &self.header {
            self.account.headers += 1;
            self.same_format = first.order == header.order && ticks(first) == ticks(header);
        } else {
            // Records before the first header, behind damage, are written in this machine's order.
            self.same_format = !self.header_written || header.order == self.order;
            self.header = Some(*header);
            self.order = header.order;
        }
        self.of_v8 = header.pad1 == V8_PAD1;
        self.drop_waiting();
    }

    fn record(&mut self, record: &Record<'_>, out: &mut impl FnMut(Piece)) {
        if !self.same_format {
            self.account.other_format += 1;
            return;
        }
        let len = u64::from(record.total_size);
        if record.offset.0.saturating_add(len) > self.file_len {
            self.account.torn += 1;
            return;
        }
        let copy = Piece::Copy { offset: record.offset, len };
        match &record.body {
            Body::DebugInfo(info) => self.debug_info(record, info, copy),
            Body::UnwindingInfo(_) | Body::Method(_) => {
                if self.other.len() >= MAX_WAITING {
                    self.drop_waiting();
                }
                self.other.push(copy);
            }
            Body::Load(load) => {
                self.write_header(load.pid, out);
                for piece in std::mem::take(&mut self.other) {
                    self.write(piece, out);
                }
                if let Some(piece) = self.debug.remove(&load.code_addr) {
                    let last = self.last_debug.take();
                    self.account.moved += u64::from(last != Some(load.code_addr));
                    self.waiting_bytes = self.waiting_bytes.saturating_sub(bytes_of(&piece));
                    self.write(piece, out);
                }
                self.write(copy, out);
            }
            Body::Move(moved) => {
                self.write_header(moved.pid, out);
                self.write(copy, out);
            }
            Body::Close | Body::Unload(_) | Body::Inline(_) | Body::Lost(_) | Body::Unknown { .. } => {
                self.write_header(0, out);
                self.write(copy, out);
            }
        }
    }

    fn debug_info(&mut self, record: &Record<'_>, info: &DebugInfo<'_>, copy: Piece) {
        let mut walked = info.entries();
        walked.by_ref().for_each(drop);
        let piece = if walked.is_sound() {
            copy
        } else if let Some(bytes) = mended(record, info, self.of_v8) {
            self.account.names_mended += 1;
            Piece::Bytes(bytes)
        } else {
            self.account.unreadable_lines += 1;
            return;
        };
        if self.debug.len() >= MAX_WAITING || self.waiting_bytes >= MAX_WAITING_BYTES {
            self.drop_waiting();
        }
        self.waiting_bytes = self.waiting_bytes.saturating_add(bytes_of(&piece));
        self.last_debug = Some(info.code_addr);
        if self.debug.insert(info.code_addr, piece).is_some() {
            self.account.unclaimed += 1;
        }
    }

    /// What waits belongs to something that is lost.
    fn drop_waiting(&mut self) {
        self.account.unclaimed += (self.debug.len() + self.other.len()) as u64;
        self.debug.clear();
        self.other.clear();
        self.waiting_bytes = 0;
        self.last_debug = None;
    }

    fn write(&mut self, piece: Piece, out: &mut impl FnMut(Piece)) {
        self.account.records += 1;
        out(piece);
    }

    /// Before the first record. Without one in the dump, a header is made up from what is known.
    fn write_header(&mut self, pid: u32, out: &mut impl FnMut(Piece)) {
        if std::mem::replace(&mut self.header_written, true) {
            return;
        }
        let (order, header) = (self.order, self.header);
        let size = u32::try_from(HEADER_SIZE).unwrap_or(u32::MAX);
        let known = |field: fn(&FileHeader) -> u32| header.as_ref().map_or(0, field);
        let pid = header.as_ref().map_or(pid, |header| header.pid);
        let words = [MAGIC, 1, size, known(|header| header.elf_mach), known(|header| header.pad1), pid];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| order.u32_bytes(*word)).collect();
        let (timestamp, flags) = header.as_ref().map_or((0, 0), |header| (header.timestamp, header.flags));
        bytes.extend(order.u64_bytes(timestamp));
        bytes.extend(order.u64_bytes(flags & FLAG_ARCH_TIMESTAMP));
        out(Piece::Bytes(bytes));
    }
}

fn bytes_of(piece: &Piece) -> usize {
    match piece {
        Piece::Copy { .. } => 0,
        Piece::Bytes(bytes) => bytes.len(),
    }
}

/// The record with what is left of its names, if its entries can be told apart.
fn mended(record: &Record<'_>, info: &DebugInfo<'_>, of_v8: bool) -> Option<Vec<u8>> {
    let order = info.order;
    let mut body = Vec::new();
    for entry in info.repaired()? {
        let name =
            if of_v8 && name_is_overwritten(entry.name) { intact_part(entry.name) } else { Cow::Borrowed(entry.name) };
        // A NUL that is left would end the name.
        let name = name.rsplit(|byte| *byte == 0).next().unwrap_or(&name);
        body.extend(order.u64_bytes(entry.addr));
        body.extend(order.u32_bytes(entry.line.cast_unsigned()));
        body.extend(order.u32_bytes(entry.discrim.cast_unsigned()));
        body.extend(name);
        body.push(0);
    }
    let total = u32::try_from(RecordId::DebugInfo.fixed_size() + body.len()).ok()?;
    let mut bytes = Vec::with_capacity(PREFIX_SIZE + 16 + body.len());
    bytes.extend(order.u32_bytes(RecordId::DebugInfo.number()));
    bytes.extend(order.u32_bytes(total));
    bytes.extend(order.u64_bytes(record.raw_time));
    bytes.extend(order.u64_bytes(info.code_addr));
    bytes.extend(order.u64_bytes(info.nr_entry as u64));
    bytes.extend(body);
    Some(bytes)
}
