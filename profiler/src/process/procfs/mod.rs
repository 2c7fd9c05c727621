//! Readers of `/proc/PID`: bounded, tolerant, and clear about why they failed.
//!
//! The parsers take bytes and are pure ([`parse_maps`], [`Stat::parse`], [`Status::parse`]); the functions that take a
//! [`Pid`] read. `/proc` must be that of the initial pid namespace.

mod id_map;
mod maps;
mod standing;
mod stat;
#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub(in crate::process) use id_map::{IdMap, Mapped};
pub use maps::{Maps, parse_maps};
pub use standing::{Standing, context_switches, kernel_stack, own_tid, standing, thread_state};
pub use stat::{Credentials, Stat, Status};

use rustix::fs::{AtFlags, Mode, OFlags, openat, statat};

use crate::process::Errno;
use jitprof_common::units::{Pid, Tid};

/// The largest `/proc/PID/maps` that is read: room for `MAX_MAPPINGS` lines with long paths.
const MAX_MAPS_BYTES: u64 = 32 << 20;
/// The largest `status`: a process is in 65,536 groups at most, each with 11 bytes, and what tells of its capabilities and of its
/// number in its own namespace comes after them.
const MAX_STATUS_BYTES: u64 = 1 << 20;
/// `stat` and others without lists are below 4 KiB on every kernel.
const MAX_STAT_BYTES: u64 = 16 << 10;
/// A line for each hierarchy, each with a path of 4 KiB at most.
const MAX_CGROUP_BYTES: u64 = 64 << 10;
/// Some ten thousand mounts.
const MAX_MOUNTS_BYTES: u64 = 4 << 20;
/// Bytes that are read at once: what most files say of a process is less.
const AT_ONCE: usize = 4096;
/// As much of a command line as is of use to tell runtimes apart.
const MAX_CMDLINE_BYTES: u64 = 64 << 10;
/// More threads than any live process has; `pid_max` itself goes to 4 million.
const MAX_THREADS: usize = 1 << 16;

/// Why something about a process could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ProcError {
    /// The process is gone, or was never there.
    #[error("there is no process {0}: it has exited, or the number is of another pid namespace{1}")]
    NoSuchProcess(Pid, Errno),
    /// The kernel refuses.
    #[error("not permitted to read {}: {source}; run as root, or with CAP_SYS_PTRACE", path.display())]
    PermissionDenied {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Another failure.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel's text has another form than all kernels since 4.1 write.
    #[error("{} does not have the form that Linux writes; is /proc the real one?", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
    },
}

/// A namespace of a process: the device and inode of its `/proc/PID/ns/*` file. Equal means the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Namespace {
    /// `st_dev` of nsfs.
    pub device: u64,
    /// The namespace's inode.
    pub inode: u64,
}

/// Reads `/proc/PID/maps`. Cost: about 0.5 ms per thousand mappings, nearly all of it the kernel's.
///
/// # Errors
/// [`ProcError`]; a line that cannot be understood is counted in [`Maps`] and is no error.
pub fn maps(pid: Pid) -> Result<Maps, ProcError> {
    let (bytes, cut) = read_bounded(pid, &proc_path(pid, "maps"), MAX_MAPS_BYTES)?;
    let mut maps = parse_maps(&bytes);
    maps.truncated |= cut;
    Ok(maps)
}

/// Whether `/proc/PID/maps` may be read. Nothing is: reading waits for whoever holds the process' memory, for which it can
/// choose somebody who never lets go; opening waits only where another program is being started.
///
/// # Errors
/// [`ProcError`].
pub fn may_read_maps(pid: Pid) -> Result<(), ProcError> {
    let path = proc_path(pid, "maps");
    File::open(&path).map(drop).map_err(|error| classify(pid, &path, error))
}

/// Reads `/proc/PID/stat`.
///
/// # Errors
/// [`ProcError`].
pub fn stat(pid: Pid) -> Result<Stat, ProcError> {
    let path = proc_path(pid, "stat");
    let (bytes, _) = read_bounded(pid, &path, MAX_STAT_BYTES)?;
    Stat::parse(&bytes).ok_or(ProcError::Malformed { path })
}

/// Reads `/proc/PID/status`.
///
/// # Errors
/// [`ProcError`].
pub fn status(pid: Pid) -> Result<Status, ProcError> {
    let path = proc_path(pid, "status");
    let (bytes, _) = read_bounded(pid, &path, MAX_STATUS_BYTES)?;
    Status::parse(&bytes).ok_or(ProcError::Malformed { path })
}

/// The same of the process whose directory in `/proc` this is, which is no other's once it has gone.
pub(in crate::process) fn status_in(directory: &File) -> Option<Status> {
    Status::parse(&status_text(directory)?)
}

/// With which ids this process reads files.
pub(in crate::process) fn credentials_in(directory: &File) -> Option<Credentials> {
    let credentials = Credentials::parse(&status_text(directory)?)?;
    // A kernel without such namespaces has none to show.
    if users_in(directory) == users_in(&File::open("/proc/self").ok()?) {
        return Some(credentials);
    }
    Some(match Mapped::read(directory) {
        Some(mapped) => credentials.within(mapped),
        None => credentials.without_capabilities(),
    })
}

/// The user namespace of this process.
fn users_in(directory: &File) -> Option<Namespace> {
    let found = statat(directory, "ns/user", AtFlags::empty()).ok()?;
    Some(Namespace { device: found.st_dev, inode: found.st_ino })
}

fn status_text(directory: &File) -> Option<Vec<u8>> {
    let status = openat(directory, "status", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    Some(read_up_to(File::from(status), MAX_STATUS_BYTES).ok()?.0)
}

/// The process' threads in no particular order, 65,536 at most.
///
/// # Errors
/// [`ProcError`].
pub fn threads(pid: Pid) -> Result<Vec<Tid>, ProcError> {
    let path = proc_path(pid, "task");
    let entries = fs::read_dir(&path).map_err(|error| classify(pid, &path, error))?;
    let tids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).map(Tid);
    Ok(tids.take(MAX_THREADS).collect())
}

/// The process' name: that of its first thread.
///
/// # Errors
/// [`ProcError`].
pub fn comm(pid: Pid) -> Result<String, ProcError> {
    let (bytes, _) = read_bounded(pid, &proc_path(pid, "comm"), MAX_STAT_BYTES)?;
    Ok(comm_text(&bytes))
}

/// A thread's name.
///
/// # Errors
/// [`ProcError`].
pub fn thread_comm(pid: Pid, tid: Tid) -> Result<String, ProcError> {
    let path = proc_path(pid, "task").join(tid.0.to_string()).join("comm");
    let (bytes, _) = read_bounded(pid, &path, MAX_STAT_BYTES)?;
    Ok(comm_text(&bytes))
}

/// The executable's path in the target's view, perhaps with ` (deleted)`; `None` for kernel threads and zombies.
///
/// # Errors
/// [`ProcError`].
pub fn exe(pid: Pid) -> Result<Option<PathBuf>, ProcError> {
    let path = proc_path(pid, "exe");
    match fs::read_link(&path) {
        Ok(target) => Ok(Some(target)),
        // Also what the kernel answers for a task without memory, so the process itself has to be asked.
        Err(error) if error.kind() == io::ErrorKind::NotFound && proc_path(pid, "").exists() => Ok(None),
        Err(error) => Err(classify(pid, &path, error)),
    }
}

/// The command line's words, lossily decoded, of its first 64 KiB; empty for kernel threads and zombies.
///
/// # Errors
/// [`ProcError`].
pub fn cmdline(pid: Pid) -> Result<Vec<String>, ProcError> {
    let (mut bytes, _) = read_bounded(pid, &proc_path(pid, "cmdline"), MAX_CMDLINE_BYTES)?;
    if bytes.last() == Some(&0) {
        bytes.pop();
    }
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    Ok(bytes.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect())
}

/// The bytes of `/proc/PID/cgroup`, 64 KiB at most.
///
/// # Errors
/// [`ProcError`].
pub fn cgroup(pid: Pid) -> Result<Vec<u8>, ProcError> {
    Ok(read_bounded(pid, &proc_path(pid, "cgroup"), MAX_CGROUP_BYTES)?.0)
}

/// The bytes of `/proc/PID/mountinfo`, 4 MiB at most.
///
/// # Errors
/// [`ProcError`].
pub fn mounts(pid: Pid) -> Result<Vec<u8>, ProcError> {
    Ok(read_bounded(pid, &proc_path(pid, "mountinfo"), MAX_MOUNTS_BYTES)?.0)
}

/// The bytes of the environment that the process was started with, 64 KiB at most. Reads its memory, and may wait for
/// what it has mapped there.
///
/// # Errors
/// [`ProcError`].
pub fn environment(pid: Pid) -> Result<Vec<u8>, ProcError> {
    Ok(read_bounded(pid, &proc_path(pid, "environ"), MAX_CMDLINE_BYTES)?.0)
}

/// The pid namespace.
///
/// # Errors
/// [`ProcError`].
pub fn pid_namespace(pid: Pid) -> Result<Namespace, ProcError> {
    namespace(pid, "ns/pid")
}

/// The mount namespace.
///
/// # Errors
/// [`ProcError`].
pub fn mount_namespace(pid: Pid) -> Result<Namespace, ProcError> {
    namespace(pid, "ns/mnt")
}

/// Which of the process' descriptors are open on this file (by `st_dev` and inode), in ascending order.
///
/// # Errors
/// [`ProcError`]; descriptors that close meanwhile are left out.
pub fn fds_of_file(pid: Pid, st_dev: u64, inode: u64) -> Result<Vec<u32>, ProcError> {
    let path = proc_path(pid, "fd");
    let entries = fs::read_dir(&path).map_err(|error| classify(pid, &path, error))?;
    let mut fds: Vec<u32> = entries
        .take(MAX_THREADS)
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let meta = fs::metadata(entry.path()).ok()?;
            (meta.dev() == st_dev && meta.ino() == inode).then(|| entry.file_name().to_str()?.parse().ok())?
        })
        .collect();
    fds.sort_unstable();
    Ok(fds)
}

/// The file position of a descriptor of the process.
///
/// # Errors
/// [`ProcError`], also when the descriptor has been closed.
pub fn fd_position(pid: Pid, fd: u32) -> Result<u64, ProcError> {
    let path = proc_path(pid, &format!("fdinfo/{fd}"));
    let (bytes, _) = read_bounded(pid, &path, MAX_STAT_BYTES)?;
    let text = String::from_utf8_lossy(&bytes);
    let position = text.lines().find_map(|line| line.strip_prefix("pos:")?.trim().parse().ok());
    position.ok_or(ProcError::Malformed { path })
}

/// The `st_dev` and inode of what a descriptor of the process is open on.
///
/// # Errors
/// [`ProcError`], also when the descriptor has been closed.
pub fn fd_target(pid: Pid, fd: u32) -> Result<(u64, u64), ProcError> {
    let path = proc_path(pid, &format!("fd/{fd}"));
    let meta = fs::metadata(&path).map_err(|error| classify(pid, &path, error))?;
    Ok((meta.dev(), meta.ino()))
}

fn namespace(pid: Pid, name: &str) -> Result<Namespace, ProcError> {
    let path = proc_path(pid, name);
    let meta = fs::metadata(&path).map_err(|error| classify(pid, &path, error))?;
    Ok(Namespace { device: meta.dev(), inode: meta.ino() })
}

/// `/proc/PID/name`.
pub(crate) fn proc_path(pid: Pid, name: &str) -> PathBuf {
    Path::new("/proc").join(pid.to_string()).join(name)
}

/// The bytes, and whether there were more than `limit`.
fn read_bounded(pid: Pid, path: &Path, limit: u64) -> Result<(Vec<u8>, bool), ProcError> {
    let file = File::open(path).map_err(|error| classify(pid, path, error))?;
    read_up_to(file, limit).map_err(|error| classify(pid, path, error))
}

/// The same of what is open. An empty buffer would be filled bit by bit, with eight calls for a process' status.
fn read_up_to(from: impl Read, limit: u64) -> io::Result<(Vec<u8>, bool)> {
    let mut bytes = Vec::with_capacity(AT_ONCE);
    from.take(limit).read_to_end(&mut bytes)?;
    let cut = u64::try_from(bytes.len()).is_ok_and(|len| len >= limit);
    Ok((bytes, cut))
}

pub(crate) fn classify(pid: Pid, path: &Path, source: io::Error) -> ProcError {
    match source.raw_os_error() {
        // Opening fails with ENOENT once the process is gone, reading an open file with ESRCH.
        Some(libc::ENOENT | libc::ESRCH) => ProcError::NoSuchProcess(pid, Errno::from(&source)),
        Some(libc::EACCES | libc::EPERM) => ProcError::PermissionDenied { path: path.to_owned(), source },
        _ => ProcError::Io { path: path.to_owned(), source },
    }
}

fn comm_text(bytes: &[u8]) -> String {
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    String::from_utf8_lossy(bytes).into_owned()
}
