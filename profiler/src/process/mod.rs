//! Who is running, and what is mapped where, over time.
//!
//! ```text
//! procfs    bounded readers of /proc/PID, pure parsers            -> Maps, Stat, Status, ...
//! event     what the kernel's side band reports                   -> TaskEvent
//! space     executable mappings of one process, with their times  -> (address, time) -> Mapping
//! table     pid -> process, over pid reuse, fork and exec         -> (pid, time) -> Process
//! open      the file behind a mapping, through the target's root  -> TargetFile
//! labels    name, user, control group, container, unit            -> Identity
//! hierarchy control groups as directories                         -> Group
//! discover  which mappings are jitdump markers                    -> DumpMapping
//! ```
//!
//! Everything read here is chosen by the target: its comm, its paths, the number of its mappings. Every reader has a
//! bound and says when it was reached.

pub mod discover;
pub mod event;
pub mod hierarchy;
pub mod labels;
mod mapping;
pub mod open;
pub mod procfs;
mod space;
mod sys;
mod table;
#[cfg(test)]
mod tests;
mod vdso;

pub use mapping::{Device, Mapping, MappingKind, Prot};
pub use space::AddressSpace;
pub use sys::monotonic_now;
pub use table::{Process, ProcessId, ProcessStats, Processes};
pub use vdso::own_vdso;
