//! The record that the BPF program puts into the ring buffer for each sample.
//!
//! ```text
//! SampleHeader   48 bytes
//! u64 × kernel_frames   innermost first
//! u64 × user_frames     innermost first, each a `FramePc`
//! TakenHeader and words of frames, or ListHeader and records, if `taken` is not 0: see `taken` and `listed`
//! SnapshotHeader and stack bytes, if `snapshot` is set: see `snapshot`
//! ```

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::limits::{COMM_LEN, MAX_FRAMES};
use crate::listed::{LISTED, ListHeader, MAX_LISTED, Record};
use crate::snapshot::{MAX_SNAPSHOT_BYTES, SnapshotHeader};
use crate::taken::{MAX_TAKEN, TakenFrame, TakenHeader};
use crate::unwind::PcKind;

/// A user frame's program counter, and what it is, in one word: user addresses leave the upper bits free.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct FramePc(pub u64);

impl FramePc {
    /// Set where the frame was interrupted at its program counter: the innermost one, and one below a signal handler.
    const INTERRUPTED: u64 = 1 << 63;
    /// Set where the walk went on past the frame, because nothing was known to be mapped there.
    const DOUBTED: u64 = 1 << 62;

    /// From what a walk has found.
    #[inline(always)]
    pub const fn new(pc: u64, kind: PcKind) -> Self {
        match kind {
            PcKind::Instruction => Self(pc | Self::INTERRUPTED),
            PcKind::ReturnAddress | PcKind::ReturnAddressAbove => Self(pc),
        }
    }

    /// Where a rule has led, and nothing is known to be mapped: memory that is too new to be known, or a word that is no return
    /// address. The walk has gone on by the frame pointer to the next frame; whether this one belongs before it is for whoever
    /// knows what was mapped at the time.
    #[inline(always)]
    pub const fn doubted(return_address: u64) -> Self {
        Self(return_address | Self::DOUBTED)
    }

    /// The program counter.
    #[inline(always)]
    pub const fn pc(self) -> u64 {
        self.0 & !(Self::INTERRUPTED | Self::DOUBTED)
    }

    /// Whether it counts only if memory was mapped there: see [`doubted`](Self::doubted).
    #[inline(always)]
    pub const fn is_doubted(self) -> bool {
        self.0 & Self::DOUBTED != 0
    }

    /// Whether the CPU was at the program counter, or would have gone on there without a call's return.
    #[inline(always)]
    pub const fn is_interrupted(self) -> bool {
        self.0 & Self::INTERRUPTED != 0
    }

    /// The address at which rules, names and lines of the frame are looked up: of a return address one byte before it,
    /// because the call may be the last instruction of its function.
    #[inline(always)]
    pub const fn lookup(self) -> u64 {
        if self.is_interrupted() { self.pc() } else { self.pc().wrapping_sub(1) }
    }
}

impl core::fmt::Debug for FramePc {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mark = if self.is_interrupted() { "!" } else { "" };
        write!(f, "{:#x}{mark}{}", self.pc(), if self.is_doubted() { "?" } else { "" })
    }
}

/// The fixed part of a sample. Writer: the BPF program. Reader: userspace, once, in ring order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SampleHeader {
    /// When, in nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Process (tgid) in the initial pid namespace.
    pub pid: u32,
    /// Thread in the initial pid namespace.
    pub tid: u32,
    /// CPU number.
    pub cpu: u32,
    /// What the sample cost in the BPF program until it was handed over, in nanoseconds; saturates.
    pub cost_ns: u32,
    /// Kernel frames that follow, 0 to `MAX_KERNEL_FRAMES`.
    pub kernel_frames: u16,
    /// User frames that follow the kernel's, 0 to `MAX_USER_FRAMES`.
    pub user_frames: u16,
    /// A [`StopReason`](crate::stop::StopReason) code.
    pub stop: u8,
    /// 1 when the CPU was in the kernel, else 0.
    pub in_kernel: u8,
    /// 1 when a [`SnapshotHeader`] and bytes of the stack follow behind all else, else 0.
    pub snapshot: u8,
    /// Frames whose words follow the frames, or [`LISTED`].
    pub taken: u8,
    /// The thread's name, NUL-terminated.
    pub comm: [u8; COMM_LEN],
}

const _: () = assert!(size_of::<SampleHeader>() == 48);
const _: () = assert!(size_of::<SampleHeader>().is_multiple_of(8));

/// A sample with room for all frames: what the BPF program fills in its per-CPU state.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct SampleBuffer {
    /// The fixed part.
    pub header: SampleHeader,
    /// Kernel frames, directly followed by user frames.
    pub frames: [u64; MAX_FRAMES],
    /// Room for what follows the frames; it begins where they end.
    pub rest: [u8; REST_BYTES],
}

/// Room for a whole snapshot without words, or for all words and a short one. The kernel refuses a per-CPU map value above
/// 32 KiB, and what a walk needs besides lies in the same.
const REST_BYTES: usize = 21 << 10;
const _: () = assert!(size_of::<TakenHeader>() + MAX_TAKEN * size_of::<TakenFrame>() + 4096 <= REST_BYTES);
const _: () = assert!(size_of::<ListHeader>() + MAX_LISTED * size_of::<Record>() + 4096 <= REST_BYTES);
const _: () = assert!(MAX_TAKEN < LISTED as usize);
const _: () = assert!(size_of::<SnapshotHeader>() + MAX_SNAPSHOT_BYTES <= REST_BYTES);
const _: () = assert!(size_of::<SampleBuffer>() <= (32 << 10) - 512);

/// What the BPF program counts per CPU; indices of the COUNTERS map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Counter {
    /// Samples that passed the filter.
    Taken = 0,
    /// Samples that found no room in the ring buffer.
    RingFull = 1,
    /// Nanoseconds spent on taken samples.
    CostNs = 2,
    /// Stack snapshots left out because there were too many, or the ring too full.
    SnapshotsRefused = 3,
    /// Lists of frames left out because they were long, and the ring too full.
    ListsRefused = 4,
    /// Calls that register code and are not told.
    RegistrationsMissed = 5,
}

/// Entries of the COUNTERS map.
pub const COUNTERS: u32 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_counter_keeps_what_it_is() {
        let (interrupted, called) =
            (FramePc::new(0x7000, PcKind::Instruction), FramePc::new(0x7000, PcKind::ReturnAddress));
        let doubted = FramePc::doubted(0x7000);
        assert_eq!([interrupted, called, doubted].map(FramePc::pc), [0x7000; 3]);
        assert_eq!([interrupted, called, doubted].map(FramePc::lookup), [0x7000, 0x6fff, 0x6fff]);
        assert_eq!([interrupted, called, doubted].map(FramePc::is_interrupted), [true, false, false]);
        assert_eq!([interrupted, called, doubted].map(FramePc::is_doubted), [false, false, true]);
    }
}
