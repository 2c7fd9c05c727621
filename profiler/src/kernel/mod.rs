//! The border to the kernel: loads the eBPF sampler, opens perf events, reads the ring buffer and the sideband.
//!
//! Minimum kernel: 5.10, with BTF; [`Variant`] says what differs below 5.17. Needs CAP_BPF and CAP_PERFMON, or
//! CAP_SYS_ADMIN on kernels whose `kernel.perf_event_paranoid` is above 2. This is the only module of the library with
//! `unsafe` code that talks to perf and BPF.

mod access;
mod bpf_log;
mod btf;
mod clock;
mod code_mask;
mod error;
mod launch;
mod perf_ring;
mod probe;
mod program;
mod sampler;
mod shared_memory;
mod sideband;
mod tables;
mod task_event;
mod wait;

pub use access::{Access, has_capability};
pub use clock::{TickAnchor, TickClock};
pub use code_mask::code_mask;
pub use error::KernelError;
pub use launch::{CommandOutput, Launch, terminate};
pub use probe::{Probe, ProbeAt, Prober};
pub use program::{Variant, Verified};
pub use sampler::{Event, MAX_CGROUPS, Sampler, SamplerCounts, SamplerOptions, Selection};
pub use sideband::{Sideband, Wakes};
pub use tables::{SharedTables, TableMaps};
pub use wait::{Arrivals, Waker};
