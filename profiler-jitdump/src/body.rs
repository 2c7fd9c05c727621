//! The bodies of the record types, and whether their own counts agree with the record's size.

use memchr::memchr;

use super::byte_order::ByteOrder;
use super::debug_info::{DebugInfo, ENTRY_MIN};
use super::extension;
use super::parser::{Field, ParserOptions};
use super::record::{Body, Load, Move, RecordId, UnwindingInfo};

/// The longest function name; a LOAD without a NUL within it is damaged. JVM signatures and regular expressions in V8
/// reach a few kB.
pub const MAX_NAME: usize = 64 << 10;

/// Code bytes are kept of LOAD records up to this size.
pub const MAX_KEPT_CODE: usize = 4 << 20;

/// V8 pads DEBUG_INFO and UNWINDING_INFO to 8 bytes, CPython the latter; nobody pads more.
const MAX_PADDING: usize = 7;

/// File names longer than a path can be are damage.
const MAX_PATH: usize = 4096;

/// What the body of a record turned out to be.
pub(super) enum Parsed<'a> {
    /// A whole record without contradictions.
    Body(Body<'a>),
    /// Whole, if a record follows where the size says and none where the data ends, at the offset given: it is longer
    /// than its data, so the size may be damaged.
    Doubtful(Body<'a>, usize),
    /// Whole, if a record follows where the size says: it is of no use before the LOAD is there that it announces.
    Announcing(Body<'a>),
    /// It contradicts itself.
    Bad(Field),
    /// The window has to hold this many bytes.
    NeedMore(usize),
}

/// One record whose prefix was read.
#[derive(Clone, Copy)]
pub(super) struct RawRecord<'a> {
    pub(super) order: ByteOrder,
    pub(super) options: ParserOptions,
    /// From the prefix on, as far as it is there.
    pub(super) window: &'a [u8],
    /// Whether V8 wrote it.
    pub(super) of_v8: bool,
    /// The record's size, at least its type's fixed size.
    pub(super) total: usize,
}

impl<'a> RawRecord<'a> {
    /// Reads the body. A size that contradicts the record's own counts is told before its bytes are waited for, so
    /// that one damaged size does not stall the dump.
    pub(super) fn body(self, id: RecordId) -> Parsed<'a> {
        let fixed = id.fixed_size();
        if self.window.len() < fixed {
            return Parsed::NeedMore(fixed);
        }
        let (parsed, field) = match id {
            RecordId::Load => (self.load(), Field::TotalSize),
            RecordId::Close => (Some(self.ending_at(fixed, Body::Close)), Field::TotalSize),
            RecordId::Move => (self.moved(), Field::TotalSize),
            RecordId::DebugInfo => (self.debug_info(), Field::NrEntry),
            RecordId::UnwindingInfo => (self.unwinding(), Field::UnwindSize),
            RecordId::Unload | RecordId::Inline | RecordId::Method | RecordId::Lost => {
                (Some(extension::body(id, self.order, self.window, self.total)), Field::TotalSize)
            }
        };
        match parsed.unwrap_or(Parsed::Bad(field)) {
            Parsed::Body(_) if id != RecordId::Load && self.is_torn() => Parsed::NeedMore(self.total),
            other => other,
        }
    }

    fn is_torn(self) -> bool {
        self.window.len() < self.total
    }

    fn u32(self, at: usize) -> Option<u32> {
        self.order.u32(self.window, at)
    }

    fn u64(self, at: usize) -> Option<u64> {
        self.order.u64(self.window, at)
    }

    /// A body whose data ends at `end`.
    fn ending_at(self, end: usize, body: Body<'a>) -> Parsed<'a> {
        if self.total > end { Parsed::Doubtful(body, end) } else { Parsed::Body(body) }
    }

    fn load(self) -> Option<Parsed<'a>> {
        let fixed = RecordId::Load.fixed_size();
        let code_size = self.u64(40)?;
        // A code size that does not fit usize cannot fit the record.
        let code_len = usize::try_from(code_size).unwrap_or(usize::MAX);
        let seen = self.total.min(self.window.len()).min(fixed + MAX_NAME);
        let Some(name_len) = memchr(0, self.window.get(fixed..seen)?) else {
            return Some(self.without_name_end(code_len, seen - fixed));
        };
        let payload = self.total - (fixed + name_len + 1);
        if payload != 0 && payload < code_len {
            return Some(Parsed::Bad(Field::CodeSize));
        }
        let code_addr = self.u64(32)?;
        if code_addr.checked_add(code_size).is_none() {
            return Some(Parsed::Bad(Field::CodeRange));
        }
        let data_end = fixed + name_len + 1 + code_len.min(payload);
        let doubtful = payload != 0 && data_end < self.total;
        let keep = self.options.want_code && self.total <= MAX_KEPT_CODE;
        if !doubtful && (keep || self.options.whole_records) && self.is_torn() {
            return Some(Parsed::NeedMore(self.total));
        }
        let body = Body::Load(Load {
            pid: self.u32(16)?,
            tid: self.u32(20)?,
            vma: self.u64(24)?,
            code_addr,
            code_size,
            code_index: self.u64(48)?,
            name: self.window.get(fixed..fixed + name_len)?,
            code: self.code(code_len).filter(|_| keep && payload >= code_len),
        });
        Some(if doubtful { Parsed::Doubtful(body, data_end) } else { Parsed::Body(body) })
    }

    /// As perf reads it: the code is the record's end. A record without payload (the JVM agent, code == NULL) has none.
    fn code(self, code_len: usize) -> Option<&'a [u8]> {
        self.window.get(self.total.checked_sub(code_len)?..self.total)
    }

    /// There is no NUL in the `seen` bytes of the name.
    fn without_name_end(self, code_len: usize, seen: usize) -> Parsed<'a> {
        let room = self.total - RecordId::Load.fixed_size();
        let most = room.min(MAX_NAME);
        if seen >= most {
            return Parsed::Bad(Field::Name);
        }
        // The name ends where the code begins; if the code is left out, at the record's end.
        let expected = room.checked_sub(code_len).filter(|size| *size > seen).map_or(most, |size| size.min(most));
        Parsed::NeedMore(RecordId::Load.fixed_size() + expected)
    }

    fn moved(self) -> Option<Parsed<'a>> {
        let body = Move {
            pid: self.u32(16)?,
            tid: self.u32(20)?,
            vma: self.u64(24)?,
            old_code_addr: self.u64(32)?,
            new_code_addr: self.u64(40)?,
            code_size: self.u64(48)?,
            code_index: self.u64(56)?,
        };
        if body.new_code_addr.checked_add(body.code_size).is_none() {
            return Some(Parsed::Bad(Field::CodeRange));
        }
        Some(self.ending_at(RecordId::Move.fixed_size(), Body::Move(body)))
    }

    fn debug_info(self) -> Option<Parsed<'a>> {
        let fixed = RecordId::DebugInfo.fixed_size();
        let nr_entry = usize::try_from(self.u64(24)?).ok()?;
        let room = self.total - fixed;
        let most = nr_entry.saturating_mul(ENTRY_MIN + MAX_PATH).saturating_add(MAX_PADDING);
        if room < nr_entry.checked_mul(ENTRY_MIN)? || room > most {
            return None;
        }
        let info = DebugInfo {
            code_addr: self.u64(16)?,
            nr_entry,
            bytes: self.window.get(fixed..self.total.min(self.window.len()))?,
            order: self.order,
        };
        if !self.is_torn() {
            return Some(Parsed::Announcing(Body::DebugInfo(info)));
        }
        // Its end is not there yet: it is not waited for if the entries end long before. V8's broken names end early
        // in good records, too.
        let data_end = if self.of_v8 { None } else { info.walked_len() };
        if data_end.is_some_and(|len| room - len > MAX_PADDING) {
            return None;
        }
        Some(Parsed::NeedMore(self.total))
    }

    fn unwinding(self) -> Option<Parsed<'a>> {
        let fixed = RecordId::UnwindingInfo.fixed_size();
        let size = self.u64(16)?;
        let hdr_size = self.u64(24)?;
        let end = usize::try_from(size).ok()?.checked_add(fixed)?;
        if end > self.total || self.total - end > MAX_PADDING || hdr_size > size {
            return None;
        }
        let Some(bytes) = self.window.get(fixed..end) else {
            return Some(Parsed::NeedMore(end));
        };
        let body = UnwindingInfo { bytes, hdr_size, mapped_size: self.u64(32)? };
        Some(Parsed::Announcing(Body::UnwindingInfo(body)))
    }
}
