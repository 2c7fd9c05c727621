//! The records that are written, as bytes in this machine's order.
//!
//! LOAD, DEBUG_INFO and UNWINDING_INFO are the format's own. The others are extensions, which readers that do not know
//! them skip by their size; `docs/reference/jit-api.md` specifies them:
//!
//! ```text
//! every record  id total_size u32 | timestamp u64                                                    16
//!   0 LOAD            pid tid u32 | vma code_addr code_size code_index u64 | name NUL | code         56 fixed
//!   2 DEBUG_INFO      code_addr nr_entry u64 | nr_entry x { addr u64, line discrim i32, name NUL }   32 fixed
//!   4 UNWINDING_INFO  unwind_data_size eh_frame_hdr_size mapped_size u64 | data                      40 fixed
//! 240 UNLOAD          code_addr code_size u64                                                        32
//! 241 INLINE          start u64 | size method parent nr_row u32 | name NUL source NUL | nr_row x { offset line u32 }
//! 242 METHOD          code_addr u64 | method u32, 0 u32 | source NUL module NUL                      32 fixed
//! 243 LOST            event reason u32                                                               24
//! ```

use crate::rows::Row;

/// Marks the dumps of this library, in the header's `pad1`: `jpag`.
pub(crate) const PAD1: u32 = u32::from_le_bytes(*b"jpag");

/// DEBUG_INFO is cut at this size, like every record that is no LOAD bounded.
const MAX_DEBUG_BYTES: usize = 4 << 20;

const PREFIX: usize = 16;

/// What an event lost, and why. The number stands in the LOST record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// No name, no address or a size of 0: what the API rejects.
    Rejected,
    /// A pointer leads nowhere.
    Unreadable,
    /// Larger than any function.
    TooLarge,
    /// Memory is short.
    Memory,
    /// What it refers to is not known.
    Unknown,
    /// The object of an ITT module is damaged.
    Damaged,
}

impl Loss {
    fn number(self) -> u32 {
        match self {
            Self::Rejected => 1,
            Self::Unreadable => 2,
            Self::TooLarge => 3,
            Self::Memory => 4,
            Self::Unknown => 5,
            Self::Damaged => 6,
        }
    }
}

/// A range of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) size: u32,
}

/// The header of a dump.
pub(crate) fn header(pid: u32, time: u64) -> Vec<u8> {
    let machine: u32 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    let mut bytes = Vec::with_capacity(40);
    for word in [0x4a69_5444, 1, 40, machine, PAD1, pid] {
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    bytes.extend_from_slice(&time.to_ne_bytes());
    bytes.extend_from_slice(&0_u64.to_ne_bytes());
    bytes
}

/// Records that are written together.
#[derive(Debug)]
pub(crate) struct Group {
    bytes: Vec<u8>,
    time: u64,
    /// Where the record under construction begins.
    start: usize,
    memory_short: bool,
}

impl Group {
    /// None yet, all of this time; `bytes` are room to use again.
    pub(crate) fn new(mut bytes: Vec<u8>, time: u64) -> Self {
        bytes.clear();
        Self { bytes, time, start: 0, memory_short: false }
    }

    /// The bytes, if there was memory for all of them.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        (!self.memory_short).then_some(&self.bytes)
    }

    /// Gives the room back.
    pub(crate) fn into_room(self) -> Vec<u8> {
        self.bytes
    }

    /// A function and its code.
    pub(crate) fn load(&mut self, (pid, tid): (u32, u32), address: u64, index: u64, name: &[u8], code: &[u8]) {
        let fixed = PREFIX + 40;
        self.begin(0, fixed + name.len() + 1 + code.len());
        self.word(pid).word(tid).long(address).long(address).long(code.len() as u64).long(index);
        self.text(name).raw(code).end();
    }

    /// Source rows of the next function. Readers that do not know the rule for equal names exist, so each is written.
    pub(crate) fn debug_info<'a>(&mut self, address: u64, rows: impl Iterator<Item = (Row, &'a [u8])> + Clone) {
        let entry = |name: &[u8]| 17 + name.len();
        let mut room = MAX_DEBUG_BYTES;
        let fitting = rows.clone().take_while(|(_, name)| {
            room = room.saturating_sub(entry(name));
            room > 0
        });
        let (count, size) = fitting.fold((0_usize, 0), |(count, size), (_, name)| (count + 1, size + entry(name)));
        if count == 0 {
            return;
        }
        self.begin(2, PREFIX + 16 + size);
        self.long(address).long(count as u64);
        for (row, name) in rows.take(count) {
            self.long(address.saturating_add(u64::from(row.offset))).word(row.line).word(0).text(name);
        }
        self.end();
    }

    /// Unwinding data of the next function: `.eh_frame`, then a header of `header` bytes.
    pub(crate) fn unwinding_info(&mut self, data: &[u8], header: usize) {
        self.begin(4, PREFIX + 24 + data.len());
        // mapped_size 0: perf takes more for memory behind the code, where other functions are.
        self.long(data.len() as u64).long(header as u64).long(0).raw(data).end();
    }

    /// Code that is gone.
    pub(crate) fn unload(&mut self, range: Range) {
        self.begin(240, PREFIX + 16);
        self.long(range.start).long(u64::from(range.size)).end();
    }

    /// Code that was inlined.
    pub(crate) fn inline(
        &mut self,
        range: Range,
        (method, parent): (u32, u32),
        name: &[u8],
        source: &[u8],
        rows: &[Row],
    ) {
        self.begin(241, PREFIX + 24 + name.len() + source.len() + 2 + 8 * rows.len());
        let count = u32::try_from(rows.len()).unwrap_or(0);
        self.long(range.start).word(range.size).word(method).word(parent).word(count).text(name).text(source);
        for row in rows {
            self.word(row.offset).word(row.line);
        }
        self.end();
    }

    /// Where the next function comes from.
    pub(crate) fn method(&mut self, address: u64, method: u32, source: &[u8], module: &[u8]) {
        self.begin(242, PREFIX + 16 + source.len() + module.len() + 2);
        self.long(address).word(method).word(0).text(source).text(module).end();
    }

    /// An event that was lost.
    pub(crate) fn lost(&mut self, event: u32, loss: Loss) {
        self.begin(243, PREFIX + 8);
        self.word(event).word(loss.number()).end();
    }

    /// Appends a record that was made before, with this group's time.
    pub(crate) fn again(&mut self, record: &[u8]) {
        if self.bytes.try_reserve(record.len()).is_err() {
            self.memory_short = true;
            return;
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(record);
        let time = self.time.to_ne_bytes();
        if let Some(field) = self.bytes.get_mut(start + 8..start + PREFIX) {
            field.copy_from_slice(&time);
        }
    }

    fn begin(&mut self, id: u32, size: usize) {
        self.start = self.bytes.len();
        match u32::try_from(size) {
            Ok(total) if self.bytes.try_reserve(size).is_ok() => {
                let time = self.time;
                self.word(id).word(total).long(time);
            }
            _ => self.memory_short = true,
        }
    }

    fn end(&mut self) {
        let written = self.bytes.len() - self.start;
        let said = self.bytes.get(self.start + 4..self.start + 8).and_then(|size| size.try_into().ok());
        debug_assert!(self.memory_short || said.map(u32::from_ne_bytes) == u32::try_from(written).ok());
    }

    fn word(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_ne_bytes())
    }

    fn long(&mut self, value: u64) -> &mut Self {
        self.raw(&value.to_ne_bytes())
    }

    fn text(&mut self, text: &[u8]) -> &mut Self {
        self.raw(text).raw(&[0])
    }

    fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        if !self.memory_short {
            // The record's room was reserved when it was begun.
            self.bytes.extend_from_slice(bytes);
        }
        self
    }
}
