//! The files of an archive. Every name comes from [`Name`](super::id::Name): nothing that anybody asks for is a path.
//!
//! A file is written under a temporary name, flushed to the disk, renamed, and the folder's entry is flushed too. So
//! after a crash or a power loss a file is whole or not there. What a killed writer left is removed at the next start.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{self, AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::ArchiveError;
use super::id::{Name, TEMPORARY, host_word, parse_day};

const LOCK: &str = "lock";
/// Folders of days that are looked at, and files of one.
const MAX_DAYS: usize = 4096;
const MAX_FILES: usize = 1 << 20;
/// A block's file is not larger than this.
const MAX_FILE_BYTES: u64 = 64 << 20;
const FOLDER_MODE: Mode = Mode::RWXU;
const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// A file that was found.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) name: Name,
    pub(super) path: String,
    pub(super) bytes: u64,
}

/// The folder of an archive that keeps files, opened once; files are reached relative to it.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    folder: OwnedFd,
    host: String,
    /// Held as long as this lives; absent when only reading.
    lock: Option<OwnedFd>,
}

impl Directory {
    /// Opens a folder for one writer, and makes it if it is not there.
    ///
    /// # Errors
    /// It is not safe to write there, or another jitprof does.
    pub(super) fn open(path: &Path) -> Result<Self, ArchiveError> {
        match fs::mkdir(path, FOLDER_MODE) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(failed("create the directory", path, error.into())),
        }
        let mut directory = Self::open_folder(path)?;
        directory.check()?;
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let lock = fs::openat(&directory.folder, LOCK, flags, FILE_MODE)
            .map_err(|error| failed("create the lock file in", path, error.into()))?;
        match fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => directory.lock = Some(lock),
            Err(Errno::WOULDBLOCK) => return Err(directory.unsafe_because("another jitprof writes there")),
            Err(error) => return Err(failed("lock", path, error.into())),
        }
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        directory.host = host_word(host.trim());
        Ok(directory)
    }

    /// Opens a folder to read it, whoever writes there.
    ///
    /// # Errors
    /// There is no such folder.
    pub(super) fn open_to_read(path: &Path) -> Result<Self, ArchiveError> {
        Self::open_folder(path)
    }

    fn open_folder(path: &Path) -> Result<Self, ArchiveError> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
        let folder = match fs::open(path, flags, Mode::empty()) {
            Ok(folder) => folder,
            Err(Errno::NOTDIR | Errno::LOOP) => {
                let path = path.to_owned();
                return Err(ArchiveError::Unsafe { path, why: "it is no directory, or a symbolic link to one" });
            }
            Err(error) => return Err(failed("open", path, error.into())),
        };
        Ok(Self { path: path.to_owned(), folder, host: String::new(), lock: None })
    }

    /// Nobody else may be able to put files there.
    fn check(&self) -> Result<(), ArchiveError> {
        let status = fs::fstat(&self.folder).map_err(|error| failed("look at", &self.path, error.into()))?;
        if status.st_uid != rustix::process::geteuid().as_raw() {
            return Err(self.unsafe_because("it belongs to another user"));
        }
        if status.st_mode & 0o022 != 0 {
            return Err(self.unsafe_because("others may write there"));
        }
        Ok(())
    }

    fn unsafe_because(&self, why: &'static str) -> ArchiveError {
        ArchiveError::Unsafe { path: self.path.clone(), why }
    }

    /// Where it is, for messages.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// All files of the archive; everything else is left alone, but unfinished files go if `clean`.
    pub(super) fn list(&self, clean: bool) -> io::Result<Vec<Found>> {
        let mut found = Vec::new();
        for day in names(&self.folder)?.into_iter().filter(|day| parse_day(day).is_some()).take(MAX_DAYS) {
            let Ok(folder) = self.day(&day) else { continue };
            for file in names(&folder)? {
                if clean && file.starts_with(TEMPORARY) {
                    fs::unlinkat(&folder, file.as_str(), AtFlags::empty())?;
                } else if let Some(name) = Name::parse(&day, &file)
                    && let Ok(status) = fs::statat(&folder, file.as_str(), AtFlags::SYMLINK_NOFOLLOW)
                    && FileType::from_raw_mode(status.st_mode) == FileType::RegularFile
                    && found.len() < MAX_FILES
                {
                    let bytes = u64::try_from(status.st_size).unwrap_or(0);
                    found.push(Found { name, path: format!("{day}/{file}"), bytes });
                }
            }
        }
        Ok(found)
    }

    /// Writes a file, whole or not at all, and returns its path. It must not be there yet.
    pub(super) fn write(&self, name: &Name, bytes: &[u8]) -> io::Result<String> {
        let path = name.path(&self.host).ok_or(Errno::OVERFLOW)?;
        let (day, file) = path.split_once('/').ok_or(Errno::INVAL)?;
        match fs::mkdirat(&self.folder, day, FOLDER_MODE) {
            Ok(()) => fs::fsync(&self.folder)?,
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let folder = self.day(day)?;
        if fs::statat(&folder, file, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            return Err(Errno::EXIST.into());
        }
        let temporary = format!("{TEMPORARY}{file}");
        let written = write_file(&folder, &temporary, bytes)
            .and_then(|()| Ok(fs::renameat(&folder, temporary.as_str(), &folder, file)?));
        if let Err(error) = written {
            // On a full disk the folder of a new day may have been all that there was room for.
            let removed = fs::unlinkat(&folder, temporary.as_str(), AtFlags::empty());
            if removed.is_err_and(|error| error != Errno::NOENT) {
                tracing::debug!("an unfinished file stays in {}/{day}", self.path.display());
            }
            return Err(error);
        }
        fs::fsync(&folder)?;
        Ok(path)
    }

    /// The bytes of a file that [`Self::list`] or [`Self::write`] named.
    pub(super) fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        let (day, file) = path.split_once('/').ok_or(Errno::INVAL)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = File::from(fs::openat(self.day(day)?, file, flags, Mode::empty())?);
        let metadata = file.metadata()?;
        if !metadata.is_file() || metadata.len() > MAX_FILE_BYTES {
            return Err(Errno::FBIG.into());
        }
        let mut bytes = Vec::new();
        file.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Removes a file, and its day's folder with the last one.
    pub(super) fn remove(&self, path: &str) -> io::Result<()> {
        let (day, file) = path.split_once('/').ok_or(Errno::INVAL)?;
        match fs::unlinkat(self.day(day)?, file, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        match fs::unlinkat(&self.folder, day, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// What stands in a small file of the folder that is no window; `None` if there is none.
    #[cfg(feature = "parquet")]
    pub(super) fn read_note(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = match fs::openat(&self.folder, name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if !file.metadata()?.is_file() {
            return Err(Errno::INVAL.into());
        }
        let mut bytes = Vec::new();
        file.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    /// Writes such a file, whole or not at all, over what it was.
    #[cfg(feature = "parquet")]
    pub(super) fn write_note(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let temporary = format!("{TEMPORARY}{name}");
        match fs::unlinkat(&self.folder, temporary.as_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        write_file(&self.folder, &temporary, bytes)?;
        fs::renameat(&self.folder, temporary.as_str(), &self.folder, name)?;
        Ok(fs::fsync(&self.folder)?)
    }

    fn day(&self, day: &str) -> io::Result<OwnedFd> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
        Ok(fs::openat(&self.folder, day, flags, Mode::empty())?)
    }
}

fn write_file(folder: &OwnedFd, name: &str, bytes: &[u8]) -> io::Result<()> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(fs::openat(folder, name, flags, FILE_MODE)?);
    file.write_all(bytes)?;
    file.sync_all()
}

/// Names in a folder that are UTF-8; the archive's all are.
fn names(folder: impl AsFd) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::Dir::read_from(folder)?.take(MAX_FILES) {
        if let Ok(name) = entry?.file_name().to_str() {
            names.push(name.to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn failed(action: &'static str, path: &Path, source: io::Error) -> ArchiveError {
    ArchiveError::Directory { action, path: path.to_owned(), source }
}
