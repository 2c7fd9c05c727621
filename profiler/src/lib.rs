//! jitprof shows where a program with a JIT spends its CPU: live, with every frame named.
//!
//! The modules stand in the order in which data flows; a module uses only the types of modules above it.
//!
//! ```text
//! kernel    the eBPF sampler, its ring buffer, the side band of task events   -> RawSample, TaskEvent
//! process   who is running, and what is mapped where, over time               -> ProcessId, AddressSpace
//! code      what runtimes announce: (address, time) -> code object            -> CodeEvent, CodeMap
//! jitdump   the dump format, its deviations, and the tail of a growing file   -> CodeEvent
//! perfmap   the perf-PID.map format and its tail                              -> CodeEvent
//! peek      records that still sit in the target's stdio buffer               -> CodeEvent
//! elf       headers of ELF files, for rows and for names
//! gsym      LLVM's symbol files: reading them, and finding them by build id
//! unwind    .eh_frame, recorded EH frames, code bytes -> rows that the kernel part searches
//! symbol    (process, address, time) -> named frames                          -> Frame
//! profile   interned stacks and counts                                        -> Profile
//! plog      a trace log beside the samples: spans, which go around them         -> Trace, Profile
//! output    Profile -> SVG, folded, pprof, Firefox JSON; code of a moment -> GSYM, ELF
//! account   what was taken, delivered, lost and why
//! advice    which flag makes a runtime announce its code
//! record    one run, or a recording without end in windows: wires the stages together
//! archive   windows of the last hours, in memory and on disk                   -> Profile
//! serve     the service: HTTP, push, metrics, its own limits
//! cli       arguments, status line, exit codes
//! ```

pub mod account;
pub mod advice;
pub mod archive;
pub mod cli;
pub mod code;
pub mod elf;
pub mod gsym;
pub mod jitdump;
pub mod kernel;
pub mod output;
pub mod peek;
pub mod perfmap;
pub mod plog;
pub mod process;
pub mod profile;
pub mod record;
pub mod serve;
pub mod symbol;
pub mod units;
pub mod unwind;
