//! The header of a log.

use super::error::PlogError;
use jitprof_jitdump::ByteOrder;

/// The first eight bytes, the same in both byte orders.
pub const MAGIC: [u8; 8] = *b"HQNplog\n";
/// The second field, an integer in the producer's byte order.
pub const BYTE_ORDER_MARK: u64 = 0x0807_0605_0403_0201;
/// Bytes of the documented fields; a header may be larger.
pub const HEADER_SIZE: usize = 80;
/// Bytes of an entry's documented fields; an entry may be larger.
pub const ENTRY_SIZE: usize = 40;

/// What the header says, unchecked but for what makes it a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The producer's byte order.
    pub order: ByteOrder,
    /// Size of the header in bytes.
    pub header_size: u64,
    /// Ticks per second of every time.
    pub ticks_per_second: u64,
    /// Ticks since a reference that logs of one boot share.
    pub start: u64,
    /// Offset of the trace name table from the start of the file.
    pub names_offset: u64,
    /// Offset of the trace type name table.
    pub types_offset: u64,
    /// Offset of the entry table.
    pub entries_offset: u64,
    /// Bytes from one entry to the next.
    pub entry_size: u64,
    /// How many entries the log says it has.
    pub entry_count: u64,
}

impl Header {
    /// Reads the documented fields from the beginning of a file.
    ///
    /// # Errors
    /// [`PlogError::NoLog`]: fewer than [`HEADER_SIZE`] bytes, another magic, or a byte-order mark that is one in
    /// neither order.
    pub fn parse(bytes: &[u8]) -> Result<Self, PlogError> {
        let no_log = |offset, field, what| PlogError::NoLog { offset, field, what };
        if !bytes.starts_with(&MAGIC) {
            let what =
                format!("{:?} instead of \"HQNplog\\n\"", bytes.get(..8).unwrap_or(bytes).escape_ascii().to_string());
            return Err(no_log(0, "magic", what));
        }
        let short =
            || no_log(bytes.len() as u64, "header", format!("it ends after {} of {HEADER_SIZE} bytes", bytes.len()));
        let orders = [ByteOrder::Little, ByteOrder::Big];
        let mark = |order: ByteOrder| order.u64(bytes, 8).ok_or_else(short);
        let mut order = None;
        for candidate in orders {
            if mark(candidate)? == BYTE_ORDER_MARK {
                order = Some(candidate);
            }
        }
        let Some(order) = order else {
            let what = format!("{:#018x} is {BYTE_ORDER_MARK:#018x} in no byte order", mark(ByteOrder::Little)?);
            return Err(no_log(8, "byte-order mark", what));
        };
        let field = |at| order.u64(bytes, at).ok_or_else(short);
        Ok(Self {
            order,
            header_size: field(16)?,
            ticks_per_second: field(24)?,
            start: field(32)?,
            names_offset: field(40)?,
            types_offset: field(48)?,
            entries_offset: field(56)?,
            entry_size: field(64)?,
            entry_count: field(72)?,
        })
    }
}
