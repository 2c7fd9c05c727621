//! The record that the kernel part puts into the ring buffer for each sample.
//!
//! ```text
//! SampleHeader   48 bytes
//! u64 × kernel_frames   innermost first
//! u64 × user_frames     innermost first; [0] is the instruction pointer, the others are return addresses
//! LateHeader and stack bytes, if `late` is set: see `late`
//! ```

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::late::{LateHeader, MAX_PIECE_BYTES};
use crate::limits::{COMM_LEN, MAX_FRAMES};

/// The fixed part of a sample. Writer: the sampler in the kernel. Reader: userspace, once, in ring order.
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
    /// What the sample cost in the kernel part until it was handed over, in nanoseconds; saturates.
    pub cost_ns: u32,
    /// Kernel frames that follow, 0 to `MAX_KERNEL_FRAMES`.
    pub kernel_frames: u16,
    /// User frames that follow the kernel's, 0 to `MAX_USER_FRAMES`.
    pub user_frames: u16,
    /// A [`StopReason`](crate::stop::StopReason) code.
    pub stop: u8,
    /// 1 when the CPU was in the kernel, else 0.
    pub in_kernel: u8,
    /// 1 when a [`LateHeader`] and a piece of the stack follow the frames, else 0.
    pub late: u8,
    /// Zero.
    pub reserved: u8,
    /// The thread's name, NUL-terminated.
    pub comm: [u8; COMM_LEN],
}

const _: () = assert!(size_of::<SampleHeader>() == 48);
const _: () = assert!(size_of::<SampleHeader>().is_multiple_of(8));

/// A sample with room for all frames: what the kernel part fills in its per-CPU state.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct SampleBuffer {
    /// The fixed part.
    pub header: SampleHeader,
    /// Kernel frames, directly followed by user frames.
    pub frames: [u64; MAX_FRAMES],
    /// Room for what follows the frames; it begins where they end.
    pub late: [u8; size_of::<LateHeader>() + MAX_PIECE_BYTES],
}

// The kernel refuses a per-CPU map value above 32 KiB.
const _: () = assert!(size_of::<SampleBuffer>() <= 32 << 10);

/// What the kernel part counts per CPU; indices of the COUNTERS map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Counter {
    /// Samples that passed the filter.
    Taken = 0,
    /// Samples that found no room in the ring buffer.
    RingFull = 1,
    /// Nanoseconds spent on taken samples.
    CostNs = 2,
    /// Pieces of stacks left out because there were too many, or the ring too full.
    LateRefused = 3,
}

/// Entries of the COUNTERS map.
pub const COUNTERS: u32 = 4;
