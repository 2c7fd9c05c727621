//! What the BPF program tells of each call by which a process registers code with a debugger.
//!
//! The interface is GDB's: a process writes into its `__jit_debug_descriptor` what it does to which entry of a list, and calls
//! `__jit_debug_register_code`, where a debugger has a breakpoint. Here a uprobe has it.
//!
//! ```text
//! descriptor   version u32 │ action u32 │ entry u64 │ first entry u64
//! entry        next u64 │ previous u64 │ address of an object file u64 │ its size u64
//! ```

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::allowance::Allowance;

/// Nobody could read what was registered, or nobody knows where it stands.
pub const UNREADABLE: u32 = u32::MAX;
/// An entry has come.
pub const REGISTER: u32 = 1;
/// An entry is gone.
pub const UNREGISTER: u32 = 2;

/// Calls of one process that are told in `WINDOW_NS`. LLVM compiles no more than some dozens of object files in that time.
pub const MAX_CALLS_IN_WINDOW: u64 = 256;
/// Over what time calls are counted, in nanoseconds.
pub const WINDOW_NS: u64 = 100_000_000;

/// A call. Writer: the BPF program. Reader: userspace, once, in ring order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RegistrationRecord {
    /// When, in nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Process (tgid) in the initial pid namespace.
    pub pid: u32,
    /// What the descriptor says of it: [`REGISTER`], [`UNREGISTER`] or anything else; [`UNREADABLE`].
    pub action: u32,
    /// Calls of the process so far that are not told.
    pub missed: u64,
    /// Address of the entry in the process; 0 if it could not be read.
    pub entry: u64,
    /// Address of the object file; 0 if it could not be read.
    pub image: u64,
    /// Its size in bytes.
    pub size: u64,
}

const _: () = assert!(size_of::<RegistrationRecord>() == 48);

/// Where a process is probed; a key of the PROBED map, whose values are addresses of descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ProbeKey {
    /// Address of `__jit_debug_register_code` in the process.
    pub function: u64,
    /// Process (tgid) in the initial pid namespace.
    pub pid: u64,
}

/// Calls of a process: a value of the CALLS map, by its tgid. Writer: the BPF program. Threads may write at the same time: then
/// one of two is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CallCount {
    allowance: Allowance,
    /// Calls that were not told, in all windows.
    pub missed: u64,
}

impl CallCount {
    /// Counts a call at this time of CLOCK_MONOTONIC; false if it is one too many to be told.
    #[inline(always)]
    pub fn take(&mut self, now_ns: u64) -> bool {
        self.allowance.take(now_ns, (MAX_CALLS_IN_WINDOW, WINDOW_NS))
    }
}
