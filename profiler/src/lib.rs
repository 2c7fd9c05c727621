//! jitprof shows where a program with a JIT spends its CPU: live, with every frame named.
//!
//! The modules stand in the order in which data flows; a module uses only the types of modules above it.
//!
//! ```text
//! process   who is running, and what is mapped where: the kernel's answers, parsed and checked
//! cost      what jitprof's own work costs, by what causes it, and what it may
//! peek      records that still sit in the target's stdio buffer               -> CodeEvent
//! runtime   what a runtime's own tables say of its code
//! gsym      LLVM's symbol files: reading them, and finding them by build id
//! symbol    a place in a file, or in the kernel -> named frames                -> Frame
//! profile   interned stacks and counts                                        -> Profile
//! account   what was taken, delivered, lost and why
//! advice    which flag makes a runtime announce its code
//! engine    everything between what comes in and what goes out, without I/O   -> Output
//! capture   what comes in, in a file; and the engine driven by it
//! kernel    the BPF sampler, its ring buffer, the sideband of task events     -> Sample, TaskEvent
//! record    the engine driven by a kernel: one run, or a continuous recording
//! plog      a trace log beside the samples: spans, which go around them         -> Trace, Profile
//! output    Profile -> SVG, folded, pprof, Firefox JSON; code at one time -> GSYM, ELF
//! client    HTTP and TLS outwards
//! dataset   profiles of many hosts as Parquet                                   <-> Profile
//! archive   windows of the last hours, in memory and on disk                   -> Profile
//! serve     the service: HTTP, push, metrics, its own limits
//! cli       arguments, status line, exit codes
//! ```
//!
//! Beside it, as crates of their own: `jitprof-jitdump` reads what runtimes announce, `jitprof-unwind` makes unwind rows,
//! `jitprof-common` is what the BPF program and userspace share, the step of the unwinder among it.

pub mod account;
pub mod advice;
#[cfg(feature = "serve")]
pub mod archive;
pub mod capture;
mod causes;
pub mod cli;
#[cfg(feature = "serve")]
pub mod client;
pub mod cost;
#[cfg(feature = "parquet")]
pub mod dataset;
pub mod engine;
#[cfg(feature = "gsym")]
pub mod gsym;
#[cfg(not(feature = "gsym"))]
#[path = "without_gsym.rs"]
pub mod gsym;
pub mod kernel;
pub mod output;
mod owners;
pub mod peek;
#[cfg(feature = "plog")]
pub mod plog;
pub mod process;
pub mod profile;
pub mod record;
pub mod regular_file;
pub mod runtime;
#[cfg(feature = "serve")]
pub mod serve;
pub mod symbol;
pub mod times;
