//! Opens files that a target has chosen, as root, without doing what the target wants.
//!
//! * A mapping's file is opened through `/proc/PID/map_files`: that is the very file, also when it was deleted or lies
//!   in another mount namespace. It needs CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN.
//! * Else its path is resolved inside the target's root (openat2 with RESOLVE_IN_ROOT), so that no symbolic link
//!   reaches a file that the target itself could not name, and the inode is compared with the mapping's. A target can bind any
//!   file or directory over a path: one that it could not read, or search, itself is not for it, unless it may read all.
//! * Every file is first opened with O_PATH, which has no effect on devices and does not wait for FIFOs, and is opened
//!   for reading only after fstat has called it a regular file, and fstatfs none of the kernel's own, such as its log.
//!
//! The files are for bounded reads; mapping one would let its owner kill jitprof by truncating it.

#[cfg(test)]
mod tests;
mod walk;

use std::cell::OnceCell;
use std::ffi::CString;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, fstatfs, openat};
use serde::{Deserialize, Serialize};

use crate::process::Errno;
use crate::process::access::Access;
use crate::process::discover::perf_map_name;
use crate::process::mapping::{Device, Mapping};
use crate::process::procfs::{self, Credentials, credentials_in, proc_path};
use crate::process::sys;
use crate::regular_file::is_found_kernels_own;
use jitprof_common::units::{Avma, Pid};
use walk::{Obstacle, walk};

/// Names a file for as long as a recording, or a look at a process, takes: whoever asks for it to be opened chooses the
/// number. Numbers are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileId(pub u32);

/// The vDSO's name. It needs not be opened.
pub const VDSO: FileId = FileId(0);

/// Where a mapping is, and what is known of its file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MapPlace {
    /// First byte.
    pub start: Avma,
    /// One past the last byte.
    pub end: Avma,
    /// As the process sees it.
    pub path: Arc<str>,
    /// 0 if it is not known.
    pub inode: u64,
    /// As the kernel says it of the mapping, which is not what stat(2) says on every file system. It tells whose answer is
    /// waited for; no identity is made of it.
    #[serde(skip)]
    pub device: Device,
}

impl MapPlace {
    /// Of a mapping.
    pub fn of(mapping: &Mapping) -> Self {
        let Mapping { start, end, inode, device, .. } = *mapping;
        Self { start, end, path: Arc::clone(&mapping.path), inode, device }
    }
}

/// A target's file, open for reading.
#[derive(Debug)]
pub struct TargetFile {
    /// The file, regular, non-blocking.
    pub file: File,
    /// Which file it is.
    pub identity: FileIdentity,
    /// How it was found.
    pub via: OpenedVia,
}

/// What fstat(2) says about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileIdentity {
    /// Its device, as stat(2) reports it.
    pub device: Device,
    /// The same, unsplit.
    pub st_dev: u64,
    /// Its inode.
    pub inode: u64,
    /// Its owner.
    pub uid: u32,
    /// Its length in bytes when it was looked at.
    pub len: u64,
    /// When its inode was last changed, in seconds and nanoseconds: an inode may be used again, or written anew.
    pub changed: (i64, i64),
    /// When its contents were last changed, in seconds and nanoseconds; its owner can set it.
    #[serde(default)]
    pub modified: (i64, i64),
    /// The block size that the file system recommends, which stdio buffers take theirs from.
    pub block_size: u64,
}

/// How a file was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpenedVia {
    /// Through `/proc/PID/map_files`: it is the mapped file without doubt.
    MapFiles,
    /// By its path in the target's root.
    Root,
}

/// Why a target's file was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It is not there (any more), or the process is not.
    #[error("{} is not there{errno}", path.display())]
    NotFound {
        /// The path, in the target's root.
        path: PathBuf,
        /// What the kernel said.
        errno: Errno,
    },
    /// The kernel refuses.
    #[error("not permitted to open {}: {source}; run as root, or with CAP_SYS_ADMIN and CAP_SYS_PTRACE", path.display())]
    PermissionDenied {
        /// The path, in the target's root.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A directory, device, FIFO, socket or symbolic link, or a file of the kernel's own.
    #[error("{} is no regular file{errno}", path.display())]
    NotRegular {
        /// The path, in the target's root.
        path: PathBuf,
        /// What the kernel said.
        errno: Errno,
    },
    /// The path leads to another file than the mapping's by now.
    #[error("{} has been replaced since it was mapped (inode {found}, mapped was {mapped})", path.display())]
    Replaced {
        /// The path, in the target's root.
        path: PathBuf,
        /// The inode now.
        found: u64,
        /// The inode of the mapping.
        mapped: u64,
    },
    /// Somebody else than the target or root wrote it.
    #[error("{} belongs to uid {owner}, not to the target's uid {target}: ignored", path.display())]
    ForeignOwner {
        /// The path, in the target's root.
        path: PathBuf,
        /// Who owns it.
        owner: u32,
        /// Who should.
        target: u32,
    },
    /// The target has the file in its root, and could not read it itself.
    #[error(
        "{} is uid {owner}'s with mode {mode:o}, which the target may not read: ignored; \
         if it is the target's, let its user own it or `chmod o+r` it",
        path.display()
    )]
    Private {
        /// The path, in the target's root.
        path: PathBuf,
        /// Who owns it.
        owner: u32,
        /// Who may do what with it.
        mode: u32,
    },
    /// The target has a directory in its root in which it could find nothing itself.
    #[error(
        "{} is behind a directory, or a link in one for all, that the target may not use: ignored; \
         if it is the target's, `chmod o+x` the directories on the way",
        path.display()
    )]
    Hidden {
        /// The path, in the target's root.
        path: PathBuf,
    },
    /// Another failure.
    #[error("cannot open {}: {source}", path.display())]
    Io {
        /// The path, in the target's root.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

impl OpenError {
    /// Whether the target itself could not have read it.
    pub fn is_private(&self) -> bool {
        matches!(self, Self::Private { .. } | Self::Hidden { .. })
    }
}

/// Which file is behind a mapping, without opening it: whoever knows the file need not.
///
/// # Errors
/// [`OpenError`], also where [`open_mapping`] finds a second way.
pub fn identify_mapping(pid: Pid, mapping: &MapPlace) -> Result<FileIdentity, OpenError> {
    let shown = Path::new(&*mapping.path);
    let meta = std::fs::metadata(map_file(pid, mapping)).map_err(|error| failed(shown, error))?;
    if !meta.is_file() {
        return Err(OpenError::NotRegular { path: shown.to_owned(), errno: Errno::NONE });
    }
    Ok(FileIdentity::of(&meta))
}

/// Opens the file behind a mapping. Whatever the kernel shows as mapped is read, whoever the process is by now: it may
/// have been root when it mapped that.
///
/// # Errors
/// [`OpenError`] of the last way, if all fail.
pub fn open_mapping(pid: Pid, mapping: &MapPlace) -> Result<TargetFile, OpenError> {
    open_mapped(pid, mapping).or_else(|error| open_otherwise(pid, mapping, error))
}

/// The same as what is mapped there. Refused without the capability; absent when an event's mapping has been split or unmapped
/// since. Goes no way of the target's.
///
/// # Errors
/// [`OpenError`].
pub fn open_mapped(pid: Pid, mapping: &MapPlace) -> Result<TargetFile, OpenError> {
    reopen(&reach(&map_file(pid, mapping), 0)?, Path::new(&*mapping.path), None)
}

/// The same where that has failed. Whoever goes to where the mapping's path leads may be held there, whatever device its file is
/// on: [`way_to`] says it.
///
/// # Errors
/// [`OpenError`] of the last way, if all fail.
pub fn open_otherwise(pid: Pid, mapping: &MapPlace, error: OpenError) -> Result<TargetFile, OpenError> {
    open_found(&MappedNow::of(pid), mapping, error)
}

/// By its path if that leads to the same file, for all that is mapped takes 50 ms to read where it is much; else by what is mapped
/// of it now.
fn open_found(now: &MappedNow, mapping: &MapPlace, error: OpenError) -> Result<TargetFile, OpenError> {
    match TargetRoot::of(now.pid).and_then(|root| root.open_mapped(now, mapping)) {
        Ok(found) if found.identity.is_of(mapping) => Ok(found),
        by_path => open_rest(now, mapping, error).or(by_path),
    }
}

/// Opens the file of a mapping that is not there by what else is mapped of it now.
fn open_rest(now: &MappedNow, mapping: &MapPlace, error: OpenError) -> Result<TargetFile, OpenError> {
    if mapping.inode == 0 || !matches!(error, OpenError::NotFound { .. }) {
        return Err(error);
    }
    // Another file may have the inode's number since.
    let rest = now.find((mapping.device, mapping.inode)).filter(|rest| rest.path == mapping.path).ok_or(error)?;
    check_inode(open_mapped(now.pid, &rest)?, mapping)
}

/// What a process has mapped now: read where it is asked for, and once.
struct MappedNow {
    pid: Pid,
    mappings: OnceCell<Vec<Mapping>>,
}

impl MappedNow {
    fn of(pid: Pid) -> Self {
        Self { pid, mappings: OnceCell::new() }
    }

    /// Where a file is mapped, if it is.
    fn find(&self, file: (Device, u64)) -> Option<MapPlace> {
        let read = || procfs::maps(self.pid).map(|maps| maps.mappings).unwrap_or_default();
        self.mappings.get_or_init(read).iter().find(|now| (now.device, now.inode) == file).map(MapPlace::of)
    }
}

fn check_inode(file: TargetFile, mapping: &MapPlace) -> Result<TargetFile, OpenError> {
    // The device is not compared: overlayfs and btrfs report another one to stat(2) than in maps.
    if mapping.inode == 0 || file.identity.inode == mapping.inode {
        return Ok(file);
    }
    let path = PathBuf::from(&*mapping.path);
    Err(OpenError::Replaced { path, found: file.identity.inode, mapped: mapping.inode })
}

/// A handle on the file behind a mapping, if it is the one that was looked at; it is not open for reading. Asks no file system.
///
/// # Errors
/// [`OpenError`].
pub fn handle_of_mapping(pid: Pid, mapping: &MapPlace, identity: &FileIdentity) -> Result<File, OpenError> {
    let shown = Path::new(&*mapping.path);
    let handle = reach(&map_file(pid, mapping), 0)?;
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(&handle, c"", flags, StatxFlags::INO).map_err(|error| failed(shown, error.into()))?;
    let device = Device { major: found.stx_dev_major, minor: found.stx_dev_minor };
    if (device, found.stx_ino) != (identity.device, identity.inode) {
        let (found, mapped) = (found.stx_ino, identity.inode);
        return Err(OpenError::Replaced { path: shown.to_owned(), found, mapped });
    }
    Ok(handle)
}

fn map_file(pid: Pid, mapping: &MapPlace) -> PathBuf {
    proc_path(pid, &format!("map_files/{:x}-{:x}", mapping.start.0, mapping.end.0))
}

/// Whether files can be opened inside another root at all: a seccomp filter may forbid openat2, as systemd's
/// `RestrictSUIDSGID=` does.
///
/// # Errors
/// Its refusal.
pub fn check_open_in_root() -> io::Result<()> {
    let root = OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open("/")?;
    sys::open_in_root(root.as_fd(), c".", OFlags::PATH).map(drop)
}

/// Opens a path as the target itself would resolve it from its root directory, if the target may read what is there.
///
/// # Errors
/// [`OpenError`].
pub fn open_in_root(pid: Pid, path: &Path) -> Result<TargetFile, OpenError> {
    let root = TargetRoot::of(pid)?;
    root.open(&root.find(path, OFlags::empty())?, path)
}

/// Opens `/tmp/perf-N.map` of the target's root, N being its pid in its own namespace. The directory is writable for
/// all, so the file must belong to root or one of `users`, those that the target is or has
/// been, and be no symbolic link; and be one that the target may read.
///
/// # Errors
/// [`OpenError`]; mostly [`OpenError::NotFound`].
pub fn open_perf_map(pid: Pid, own_pid: u32, users: &[u32]) -> Result<TargetFile, OpenError> {
    let path = perf_map_path(own_pid);
    let root = TargetRoot::of(pid)?;
    let root = TargetRoot { credentials: root.credentials.also(users), ..root };
    root.open(&root.find_of(&path, OFlags::NOFOLLOW, users)?, &path)
}

/// The path of a process' perf map, in its root; `own_pid` is its pid in its own namespace.
pub fn perf_map_path(own_pid: u32) -> PathBuf {
    Path::new("/tmp").join(perf_map_name(own_pid))
}

/// Where a path in a process' root leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Through nothing that may hold whoever asks for something there, as far as is known.
    Clear,
    /// The same, and there is nothing at its end.
    Nowhere,
    /// Through a device that may, or a symbolic link, of which that is not known.
    Uncertain,
}

/// Where a path in a process' root leads; `may_hold` says of a device whether it may hold whoever asks for something there. Asks
/// none of those devices.
pub fn way_to(pid: Pid, path: &Path, may_hold: impl Fn(Device) -> bool) -> Way {
    way_and_end(pid, path, may_hold).0
}

/// The same, and the device and inode of what is at the end of a way that is clear.
pub fn way_and_end(pid: Pid, path: &Path, may_hold: impl Fn(Device) -> bool) -> (Way, Option<(Device, u64)>) {
    let certain = |at: &File| {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let known = rustix::fs::statx(at, c"", flags, StatxFlags::TYPE | StatxFlags::INO).ok()?;
        let is_link = u32::from(known.stx_mode) & libc::S_IFMT == libc::S_IFLNK;
        let device = Device { major: known.stx_dev_major, minor: known.stx_dev_minor };
        (!is_link && !may_hold(device)).then_some((device, known.stx_ino))
    };
    let Ok(mut at) = reach(&proc_path(pid, "root"), libc::O_DIRECTORY) else { return (Way::Clear, None) };
    let Some(mut end) = certain(&at) else { return (Way::Uncertain, None) };
    let names = path.components().filter(|part| !matches!(part, Component::RootDir | Component::CurDir));
    for name in names {
        let Component::Normal(name) = name else { return (Way::Uncertain, None) };
        match openat(&at, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
            Ok(found) => at = File::from(found),
            Err(rustix::io::Errno::NOENT) => return (Way::Nowhere, None),
            Err(_) => return (Way::Uncertain, None),
        }
        match certain(&at) {
            Some(found) => end = found,
            None => return (Way::Uncertain, None),
        }
    }
    (Way::Clear, Some(end))
}

fn check_owner(path: &Path, owner: u32, users: &[u32]) -> Result<(), OpenError> {
    if owner == 0 || users.contains(&owner) {
        return Ok(());
    }
    let target = users.last().copied().unwrap_or(0);
    Err(OpenError::ForeignOwner { path: path.to_owned(), owner, target })
}

/// A process' root directory, and what it may read there.
#[derive(Debug)]
pub struct TargetRoot {
    directory: File,
    credentials: Credentials,
}

impl TargetRoot {
    /// Of a process.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn of(pid: Pid) -> Result<Self, OpenError> {
        // What lies below it is gone with the process: nobody else's root is looked into with what this one may.
        let process = reach(&proc_path(pid, ""), libc::O_DIRECTORY)?;
        let place = proc_path(pid, "root");
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(&process, "root", flags, Mode::empty()).map_err(|error| failed(&place, error.into()))?;
        let gone = || OpenError::NotFound { path: proc_path(pid, "status"), errno: Errno::NONE };
        Ok(Self::new(File::from(root), credentials_in(&process).ok_or_else(gone)?))
    }

    /// A directory, for whoever has these credentials.
    pub(crate) fn new(directory: File, credentials: Credentials) -> Self {
        Self { directory, credentials }
    }

    /// A directory in which jitprof looks by its own right.
    pub(crate) fn unrestricted(directory: File) -> Self {
        Self::new(directory, Credentials::of_all())
    }

    /// A handle on the directory.
    pub(crate) fn directory(&self) -> &File {
        &self.directory
    }

    /// A handle on what is there.
    pub(crate) fn find(&self, path: &Path, extra_flags: OFlags) -> Result<File, OpenError> {
        let text = CString::new(path.as_os_str().as_encoded_bytes())
            .map_err(|_| OpenError::NotFound { path: path.to_owned(), errno: Errno::NONE })?;
        if self.credentials.reads_all {
            let found = sys::open_in_root(self.directory.as_fd(), &text, OFlags::PATH | extra_flags);
            return found.map(File::from).map_err(|error| failed(path, error));
        }
        let follows = !extra_flags.contains(OFlags::NOFOLLOW);
        walk(&self.directory, path, follows, &self.credentials).map_err(|obstacle| match obstacle {
            Obstacle::Refused => OpenError::Hidden { path: path.to_owned() },
            Obstacle::Failed(error) => failed(path, error),
        })
    }

    /// The same, if it is root's or one of these users'.
    pub(crate) fn find_of(&self, path: &Path, extra_flags: OFlags, users: &[u32]) -> Result<File, OpenError> {
        let found = self.find(path, extra_flags)?;
        check_owner(path, found.metadata().map_err(|error| failed(path, error))?.uid(), users)?;
        Ok(found)
    }

    /// Opens a mapping's file by its path.
    fn open_mapped(&self, now: &MappedNow, mapping: &MapPlace) -> Result<TargetFile, OpenError> {
        let path = Path::new(&*mapping.path);
        let opened = self.find(path, OFlags::empty()).and_then(|found| self.open(&found, path));
        let opened = match opened {
            Err(refused) if refused.is_private() => self.open_seen(now, path).ok_or(refused)?,
            opened => opened?,
        };
        check_inode(opened, mapping)
    }

    /// The same of one that it could not read itself, but has mapped.
    fn open_seen(&self, now: &MappedNow, path: &Path) -> Option<TargetFile> {
        let own = Self::unrestricted(self.directory.try_clone().ok()?);
        // The handle keeps the file's number from being used for another one.
        let found = own.find(path, OFlags::empty()).ok()?;
        let meta = found.metadata().ok()?;
        now.find((Device::from_st_dev(meta.dev()), meta.ino()))?;
        own.open(&found, path).ok()
    }

    /// Opens what was found for reading.
    pub(crate) fn open(&self, found: &File, path: &Path) -> Result<TargetFile, OpenError> {
        reopen(found, path, Some(&self.credentials))
    }
}

/// A handle on a path of ours (which may go through magic links of /proc) without opening what it leads to.
fn reach(path: &Path, extra_flags: i32) -> Result<File, OpenError> {
    let flags = libc::O_PATH | libc::O_CLOEXEC | extra_flags;
    OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(|error| failed(path, error))
}

/// Opens for reading what a handle leads to, if it is a regular file, and none that the kernel makes up: a target may bind such
/// over any path in its root. For the same reason it is one that the target may read, unless it has mapped it. `shown` is its name
/// in errors.
fn reopen(handle: &File, shown: &Path, target: Option<&Credentials>) -> Result<TargetFile, OpenError> {
    let meta = handle.metadata().map_err(|error| failed(shown, error))?;
    if !meta.is_file() || is_found_kernels_own(fstatfs(handle)) {
        return Err(OpenError::NotRegular { path: shown.to_owned(), errno: Errno::NONE });
    }
    let (owner, mode) = (meta.uid(), meta.mode() & 0o7777);
    if target.is_some_and(|target| !target.may(Access::Read, handle, &meta)) {
        return Err(OpenError::Private { path: shown.to_owned(), owner, mode });
    }
    let via = if target.is_some() { OpenedVia::Root } else { OpenedVia::MapFiles };
    let own = format!("/proc/self/fd/{}", handle.as_raw_fd());
    let flags = libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(own);
    let file = file.map_err(|error| failed(shown, error))?;
    Ok(TargetFile { file, identity: FileIdentity::of(&meta), via })
}

impl FileIdentity {
    /// Whether it is a mapping's file without doubt: overlayfs and btrfs report another device to stat(2) than in maps.
    fn is_of(&self, mapping: &MapPlace) -> bool {
        mapping.inode != 0 && (self.device, self.inode) == (mapping.device, mapping.inode)
    }

    /// Whether the same contents are behind two looks at a file: what else of its inode has changed, such as its number
    /// of links, says nothing of them.
    pub fn has_contents_of(&self, other: &Self) -> bool {
        let of = |one: &Self| (one.st_dev, one.inode, one.uid, one.len, one.modified);
        of(self) == of(other)
    }

    /// From what was read of an open file.
    pub fn of(meta: &Metadata) -> Self {
        Self {
            device: Device::from_st_dev(meta.dev()),
            st_dev: meta.dev(),
            inode: meta.ino(),
            uid: meta.uid(),
            len: meta.len(),
            changed: (meta.ctime(), meta.ctime_nsec()),
            modified: (meta.mtime(), meta.mtime_nsec()),
            block_size: meta.blksize(),
        }
    }
}

fn failed(path: &Path, source: io::Error) -> OpenError {
    let (path, errno) = (path.to_owned(), Errno::from(&source));
    match source.raw_os_error() {
        Some(libc::ENOENT | libc::ESRCH | libc::ENOTDIR) => OpenError::NotFound { path, errno },
        // ELOOP is also what openat2 says about magic links.
        Some(libc::EACCES | libc::EPERM) => OpenError::PermissionDenied { path, source },
        Some(libc::ELOOP) => OpenError::NotRegular { path, errno },
        _ => OpenError::Io { path, source },
    }
}
