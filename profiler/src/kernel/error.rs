//! Why a recording cannot start, and what to do about it.

use std::io;

use aya::EbpfError;
use aya::maps::MapError;
use aya::programs::ProgramError;

use crate::causes::chain;
use crate::process::Errno;

/// The BPF programs cannot run. Each message is one sentence with a remedy.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The binary was built by plain cargo.
    #[error("this jitprof was built without its BPF programs; build it with `cargo xtask build`")]
    NotEmbedded,
    /// Capabilities are missing.
    #[error("not permitted: {missing} missing; run jitprof as root (sudo jitprof …) or grant it these capabilities")]
    NotPermitted {
        /// Names, separated by commas.
        missing: String,
    },
    /// Pids seen here are not the kernel's.
    #[error(
        "jitprof runs inside a pid namespace, where pids are not the kernel's own; \
         run it on the host, or its container with the host's pid namespace (docker run --pid=host, hostPID: true)"
    )]
    NestedPidNamespace,
    /// No perf events in this kernel or container.
    #[error(
        "this kernel offers no perf events (no /proc/sys/kernel/perf_event_paranoid); jitprof needs CONFIG_PERF_EVENTS"
    )]
    NoPerfEvents,
    /// The kernel is older than the program needs.
    #[error("this kernel is {release}; jitprof needs 5.10 or later")]
    KernelTooOld {
        /// As uname says.
        release: String,
    },
    /// The kernel has no BPF type information.
    #[error("this kernel has no BTF (/sys/kernel/btf/vmlinux); jitprof needs CONFIG_DEBUG_INFO_BTF")]
    NoBtf,
    /// perf_event_open was refused.
    #[error("perf_event_open failed: {source}; {advice}")]
    PerfEventOpen {
        /// What the kernel said.
        source: io::Error,
        /// What to do.
        advice: &'static str,
    },
    /// No uprobes in this kernel.
    #[error(
        "this kernel offers no uprobes (/sys/bus/event_source/devices/uprobe/type: {source}); leave out --probe-registrations"
    )]
    NoUprobes {
        /// What the kernel said.
        source: io::Error,
    },
    /// The sampling frequency is above the machine's limit.
    #[error(
        "the kernel allows at most {limit} samples a second{errno}; use a lower --freq, or raise \
         kernel.perf_event_max_sample_rate"
    )]
    FrequencyTooHigh {
        /// `kernel.perf_event_max_sample_rate`.
        limit: u64,
        /// What the kernel said.
        errno: Errno,
    },
    /// bpf(2) refused the object.
    #[error("the kernel refused the BPF object: {}", chain(.0))]
    Load(#[from] EbpfError),
    /// The verifier refused a program.
    #[error(
        "this kernel's verifier refused the program {program} ({source}): {reason}; please report this line with the \
         kernel's version (uname -r), `jitprof -v` shows the verifier's whole log"
    )]
    Refused {
        /// The program.
        program: &'static str,
        /// What the kernel said.
        source: io::Error,
        /// The line of the verifier's log that says why.
        reason: String,
    },
    /// A program cannot be used or attached.
    #[error("the kernel refused the BPF program: {}", chain(.0))]
    Program(#[from] ProgramError),
    /// A map operation failed.
    #[error("a BPF map operation failed: {}", chain(.0))]
    Map(#[from] MapError),
    /// The object does not have what the loader expects: they are of different builds.
    #[error("the embedded BPF object has no {name}; rebuild with `cargo xtask build`")]
    Mismatch {
        /// Of the map or program.
        name: &'static str,
    },
    /// The tables' memory cannot be mapped.
    #[error("cannot map the memory of the unwind tables: {source}; free memory, or use --call-graph fp")]
    TableMemory {
        /// What the kernel said.
        source: io::Error,
    },
    /// The list of CPUs cannot be read.
    #[error("cannot read the list of online CPUs ({path}): {source}; is /sys mounted?")]
    Cpus {
        /// File that was read.
        path: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// More processes than the kernel's filter holds.
    #[error("too many processes to follow one by one (at most {limit}); use --all or --comm")]
    TooManyProcesses {
        /// Size of the map.
        limit: usize,
    },
}

impl KernelError {
    /// Says what a refusal of perf_event_open means.
    pub(super) fn perf_event_open(source: io::Error) -> Self {
        let advice = match source.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => {
                "run jitprof as root, or grant CAP_PERFMON and set kernel.perf_event_paranoid to 2 or lower; \
                 in a container also allow the perf_event_open system call"
            }
            Some(libc::EMFILE | libc::ENFILE) => "raise the limit of open files (ulimit -n)",
            Some(libc::ENOSYS) => "the kernel was built without perf events",
            Some(libc::EBUSY) => "another profiler holds the counter; try --event cpu-clock",
            Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV) => {
                "this machine does not count that event; try --event cpu-clock"
            }
            _ => "see perf_event_open(2)",
        };
        Self::PerfEventOpen { source, advice }
    }
}
