//! What a sample carries when its walk met generated code whose rows had not come yet.
//!
//! A runtime runs a function before its record reaches the dump. Such a frame is walked by frame pointer, which may be
//! wrong; so the sample brings along what a walk by rows needs: the registers at that frame and a snapshot of the stack.
//! Userspace finishes the walk with the same step function once the rows are there.
//!
//! Where the walk has come to the end of the stack nonetheless, the snapshot ends there, too; and where arguments and
//! environment begin: they hold secrets, and no frames.
//!
//! ```text
//! SampleHeader (snapshot = 1) │ kernel frames │ user frames │ SnapshotHeader 48 bytes │ stack bytes from `base` on
//! ```

use core::cell::Cell;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::unwind::{Frame, PcKind, ReadFault, Registers, StackMemory};

/// Stack is read in chunks of so many bytes, aligned to it: none crosses a page, so that the last page of a stack is
/// read to its end.
pub const CHUNK_BYTES: usize = 1024;
/// Chunks of a piece. CPython needs about 1 KiB of stack for each Python function; 16 KiB end most stacks.
pub const MAX_CHUNKS: usize = 16;
/// Bytes of a piece.
pub const MAX_SNAPSHOT_BYTES: usize = CHUNK_BYTES * MAX_CHUNKS;
/// Pieces that a CPU hands over in `WINDOW_NS`: 1024 a second, 16 MiB, some 3 ms of work.
pub const MAX_SNAPSHOTS_IN_WINDOW: u64 = 128;
/// Over what time pieces are counted, in nanoseconds.
pub const WINDOW_NS: u64 = 125_000_000;

/// Where the walk was at the first such frame. Writer: the sampler. Reader: userspace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SnapshotHeader {
    /// Instruction pointer or return address of the frame.
    pub pc: u64,
    /// Its stack pointer.
    pub sp: u64,
    /// Its frame pointer register.
    pub fp: u64,
    /// Its link register, where it is known; see `Registers::lr`.
    pub lr: u64,
    /// Address of the first stack byte: `sp` rounded down to `CHUNK_BYTES`.
    pub base: u64,
    /// Stack bytes that follow, a multiple of 8, `MAX_SNAPSHOT_BYTES` at most.
    pub bytes: u32,
    /// Which user frame it is, from the innermost.
    pub index: u16,
    /// What `pc` is: 0 a return address, 1 the instruction of the innermost or of a signal frame, 2 a return address
    /// whose `sp` is only a lower bound.
    pub kind: u8,
    /// Zero.
    pub reserved: u8,
}

const _: () = assert!(size_of::<SnapshotHeader>() == 48);

impl SnapshotHeader {
    /// The frame to go on from.
    pub fn frame(&self) -> Frame {
        Frame {
            registers: Registers { pc: self.pc, sp: self.sp, fp: self.fp, lr: self.lr },
            kind: match self.kind {
                1 => PcKind::Instruction,
                2 => PcKind::ReturnAddressAbove,
                _ => PcKind::ReturnAddress,
            },
        }
    }

    /// `kind` for what a pc is.
    #[inline(always)]
    pub fn code_of(kind: PcKind) -> u8 {
        match kind {
            PcKind::ReturnAddress => 0,
            PcKind::Instruction => 1,
            PcKind::ReturnAddressAbove => 2,
        }
    }
}

/// A stack snapshot.
#[derive(Debug)]
pub struct StackBytes<'a> {
    base: u64,
    bytes: &'a [u8],
    above: Cell<bool>,
}

impl<'a> StackBytes<'a> {
    /// The bytes from `base` on.
    pub fn new(base: u64, bytes: &'a [u8]) -> Self {
        Self { base, bytes, above: Cell::new(false) }
    }

    /// Whether a read wanted what lies above the piece.
    pub fn was_left(&self) -> bool {
        self.above.get()
    }
}

impl StackMemory for StackBytes<'_> {
    fn read_u64(&self, address: u64) -> Result<u64, ReadFault> {
        let offset = address.checked_sub(self.base).ok_or(ReadFault)?;
        let word = usize::try_from(offset).ok().and_then(|offset| self.bytes.get(offset..)?.first_chunk());
        self.above.set(self.above.get() || word.is_none());
        word.map(|word| u64::from_ne_bytes(*word)).ok_or(ReadFault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_read_up_to_its_last_byte_and_no_further() {
        let bytes: [u8; 24] = core::array::from_fn(|index| index as u8);
        let piece = StackBytes::new(0x1000, &bytes);
        assert_eq!(piece.read_u64(0x1010), Ok(u64::from_ne_bytes([16, 17, 18, 19, 20, 21, 22, 23])));
        assert_eq!(piece.read_u64(0xfff), Err(ReadFault));
        assert!(!piece.was_left(), "below is no sign that the piece is too short");
        assert_eq!(piece.read_u64(0x1011), Err(ReadFault));
        assert!(piece.was_left());
        assert_eq!(piece.read_u64(u64::MAX), Err(ReadFault));
    }
}
