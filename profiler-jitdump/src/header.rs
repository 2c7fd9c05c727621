//! The file header.

use super::byte_order::ByteOrder;

/// The fixed part of the file header in bytes.
pub const HEADER_SIZE: usize = 40;

/// Header flag: times are ticks of the CPU's counter. Producers set it wrongly, see
/// [`ClockContext`](super::ClockContext).
pub const FLAG_ARCH_TIMESTAMP: u64 = 1;

/// What V8 writes into `pad1`. Nobody else does, so it tells V8's dumps.
pub const V8_PAD1: u32 = 0xdead_beef;

/// What jitprof's agent writes into `pad1`: `jpag`. Its debug addresses have no bias, its rows of line 0 count, and each
/// of its records reaches the file as soon as it exists.
pub const AGENT_PAD1: u32 = u32::from_le_bytes(*b"jpag");

/// The magic as an integer in the producer's byte order: a little-endian file begins with the bytes `DTiJ`.
pub(super) const MAGIC: u32 = 0x4a69_5444;

/// A header that claims to be longer is damaged: the format's own is 40 bytes, in both versions.
pub(super) const MAX_HEADER_SIZE: u32 = 4096;

/// The header of a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct FileHeader {
    /// The byte order of everything in the file.
    #[serde(rename = "byte_order")]
    pub order: ByteOrder,
    /// 1 from every producer, 2 from old Mono. It decides nothing: version 1 files carry version 2 records.
    pub version: u32,
    /// Bytes before the first record, as written. Outside of 40 to 4096 it is damaged, and 40 is assumed.
    pub total_size: u32,
    /// The ELF machine; Erlang always writes 62, CPython 0.
    pub elf_mach: u32,
    /// 0, [`V8_PAD1`] or [`AGENT_PAD1`].
    pub pad1: u32,
    /// The producer's pid in its own pid namespace.
    pub pid: u32,
    /// When the file was made. Producers disagree on the clock (V8 and CPython write wall-clock microseconds), so
    /// nothing can be concluded from it.
    pub timestamp: u64,
    /// Flag bits; all are accepted, LLVM left them uninitialised until January 2026.
    pub flags: u64,
}

impl FileHeader {
    /// Reads the 40 bytes at the start of `bytes`: `None` if there are fewer or the magic is not there.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..HEADER_SIZE)?;
        let order = [ByteOrder::Little, ByteOrder::Big].into_iter().find(|order| order.u32(bytes, 0) == Some(MAGIC))?;
        Some(Self {
            order,
            version: order.u32(bytes, 4)?,
            total_size: order.u32(bytes, 8)?,
            elf_mach: order.u32(bytes, 12)?,
            pad1: order.u32(bytes, 16)?,
            pid: order.u32(bytes, 20)?,
            timestamp: order.u64(bytes, 24)?,
            flags: order.u64(bytes, 32)?,
        })
    }

    /// Whether these first bytes of a file can be, or become, those of a dump.
    pub fn may_begin(bytes: &[u8]) -> bool {
        [ByteOrder::Little, ByteOrder::Big].into_iter().any(|order| {
            let mut both = order.u32_bytes(MAGIC).into_iter().zip(bytes);
            both.all(|(magic, byte)| magic == *byte)
        })
    }

    /// Whether the size and the version are ones that producers write.
    pub(super) fn is_plausible(&self) -> bool {
        (1..=2).contains(&self.version) && self.size_is_plausible()
    }

    pub(super) fn size_is_plausible(&self) -> bool {
        self.total_size >= 40 && self.total_size <= MAX_HEADER_SIZE
    }
}
