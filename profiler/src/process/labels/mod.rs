//! What tells a process apart from others, beyond its number: its name, user, control group, container and unit.
//!
//! The parsers take text and are pure; [`Identity::read`] reads.

mod cgroup;
#[cfg(test)]
mod tests;
mod users;

use std::path::PathBuf;

pub use cgroup::{Cgroup, unescape_unit};
pub(super) use cgroup::{container, unit};
pub use users::{Users, parse_passwd};

use crate::process::Errno;
use crate::process::procfs::{self, ProcError};
use jitprof_common::units::{MonoNs, Pid};

/// Who a process is, as /proc says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The name of its first thread.
    pub comm: String,
    /// When it started.
    pub start: MonoNs,
    /// The real user id; `None` if `status` may not be read.
    pub uid: Option<u32>,
    /// Where it stands among the control groups.
    pub cgroup: Cgroup,
    /// Its executable in its own view; `None` for kernel threads and where it may not be read.
    pub exe: Option<PathBuf>,
}

impl Identity {
    /// Reads three small files and a link of `/proc/PID`, none of which the process can hold up.
    ///
    /// # Errors
    /// [`ProcError`]: it has gone.
    pub fn read(pid: Pid) -> Result<Self, ProcError> {
        let stat = procfs::stat(pid)?;
        // What is left of it has no executable, and in hierarchies of version 1 no control group any more.
        if stat.is_dead() {
            return Err(ProcError::NoSuchProcess(pid, Errno::NONE));
        }
        Ok(Self {
            start: stat.start(),
            uid: procfs::status(pid).ok().map(|status| status.real_uid),
            cgroup: Cgroup::parse(&procfs::cgroup(pid)?),
            exe: procfs::exe(pid).ok().flatten(),
            comm: stat.comm,
        })
    }

    /// The file name of its executable.
    pub fn exe_name(&self) -> Option<String> {
        let path = self.exe.as_ref()?.to_string_lossy();
        // What the kernel appends when the file was replaced.
        let path = path.strip_suffix(" (deleted)").unwrap_or(&path);
        path.rsplit('/').next().filter(|name| !name.is_empty()).map(str::to_owned)
    }
}
