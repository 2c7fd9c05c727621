//! Who is running, and what is mapped where: what /proc and the sideband say of it.
//!
//! ```text
//! apart     work that may never end                              -> HeldFile
//! procfs    bounded readers of /proc/PID, pure parsers            -> Maps, Stat, Status, ...
//! event     what the kernel's sideband reports                   -> TaskEvent
//! open      the file behind a mapping, through the target's root  -> TargetFile
//! access    what a process may read                           -> Credentials
//! user      whose a process is, whatever subordinate id it has
//! labels    name, user, control group, container, unit            -> Identity
//! hierarchy control groups as directories                         -> Group
//! discover  which mappings are jitdump markers                    -> DumpMapping
//! ```
//!
//! Everything read here is chosen by the target: its comm, its paths, the number of its mappings. Every reader has a
//! bound and says when it was reached.

mod access;
pub mod apart;
pub mod discover;
mod errno;
pub mod event;
pub mod hierarchy;
mod id;
pub mod labels;
mod mapping;
pub mod open;
pub mod procfs;
mod sys;
mod user;
mod vdso;

pub use errno::Errno;
pub use id::ProcessId;
pub use mapping::{Device, Mapping, MappingKind, Prot};
pub use sys::{monotonic_now, note_suspension};
pub use user::{Ids, status_and_user, user_of};
pub use vdso::own_vdso;
