//! Output files: whole or not at all, and never through somebody else's link.
//!
//! A file is written under a temporary name in the directory where it will stand, and renamed when it is complete, so
//! nobody ever sees half a profile and an old profile survives a failed run. The temporary file is created with
//! `O_EXCL`, which follows no link, and a rename replaces a link instead of following it: a link planted in a
//! world-writable directory cannot direct a root process to another file. There is no `fsync`: a profile can be taken
//! again, and a rename after a crash may cost it.
//!
//! An output path that is a FIFO or a character device (`/dev/null`, `/dev/tty`) is written directly; renaming over it
//! would, as root, replace the device. A FIFO that somebody else has put there is refused. Names of jitprof's own
//! descriptors (`/dev/stdout`, a shell's `>(…)`) are links that nobody can have planted, and a link of one's own that leads to
//! a FIFO of one's own is followed.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process;

use super::error::OutputError;

/// Where an output goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The standard output; `-` on the command line.
    Stdout,
    /// A file, made beside its place and renamed when it is whole.
    File(PathBuf),
}

impl Destination {
    /// `-` and the names that the system has for it are stdout, everything else a path.
    pub fn from_argument(argument: &Path) -> Self {
        let is_stdout = argument.as_os_str() == "-" || own_descriptor(argument) == Some(1);
        if is_stdout { Self::Stdout } else { Self::File(argument.to_owned()) }
    }
}

/// What stands at an output path now.
enum Existing {
    /// Nothing, or a regular file that will be replaced.
    Replaceable,
    /// A FIFO or a character device.
    Direct,
    /// An own link to an own FIFO.
    LinkToFifo,
    /// A descriptor that jitprof was started with.
    Own,
}

/// The descriptor of this process that a path names, as `/dev/stdout` does, or what a shell makes of `>(…)`.
fn own_descriptor(path: &Path) -> Option<u32> {
    match path.to_str()? {
        "/dev/stdout" => Some(1),
        "/dev/stderr" => Some(2),
        path => path.strip_prefix("/dev/fd/").or_else(|| path.strip_prefix("/proc/self/fd/"))?.parse().ok(),
    }
}

/// Writes to a new file of the same name in a directory of its own below the system's temporary one, for what cannot be
/// written to its place. Returns where it is.
///
/// # Errors
/// It cannot be written there either.
pub fn write_aside(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> Result<(), OutputError>,
) -> Result<PathBuf, OutputError> {
    let failed = |path: &Path, source| OutputError::File { action: "create", path: path.to_owned(), source };
    let name = path.file_name().ok_or_else(|| failed(path, io::Error::from(io::ErrorKind::IsADirectory)))?;
    for attempt in 0..100_u32 {
        let directory = std::env::temp_dir().join(format!("jitprof-{}-{attempt}", process::id()));
        match DirBuilder::new().mode(0o700).create(&directory) {
            Ok(()) => {
                let aside = directory.join(name);
                let written = write_to(&Destination::File(aside.clone()), write);
                if written.is_err()
                    && let Err(error) = fs::remove_dir(&directory)
                {
                    tracing::warn!("cannot remove {}: {error}", directory.display());
                }
                return written.map(|()| aside);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(&directory, error)),
        }
    }
    Err(failed(&std::env::temp_dir(), io::Error::from(io::ErrorKind::AlreadyExists)))
}

/// Checks before a recording that [`write_to`] will be able to create the file. Leaves nothing behind.
///
/// # Errors
/// [`OutputError::WrongKind`] for a directory, a symbolic link, a socket or a block device; [`OutputError::File`] when
/// no file can be created in the directory.
pub fn check_writable(destination: &Destination) -> Result<(), OutputError> {
    let Destination::File(path) = destination else {
        return Ok(());
    };
    match existing(path)? {
        Existing::Replaceable => TemporaryFile::create(path).map(drop),
        Existing::Direct | Existing::LinkToFifo | Existing::Own => Ok(()),
    }
}

/// Calls `write` with a buffered writer and puts what it wrote at the destination if it succeeded. If it failed, an
/// earlier file of that name is as it was and no temporary file stays.
///
/// # Errors
/// What `write` returned, with the path added to errors of the writer; as [`check_writable`]; and
/// [`OutputError::File`] when the last write or the rename fails.
pub fn write_to(
    destination: &Destination,
    write: impl FnOnce(&mut dyn Write) -> Result<(), OutputError>,
) -> Result<(), OutputError> {
    match destination {
        Destination::Stdout => buffered(io::stdout().lock(), write).map(drop),
        Destination::File(path) => write_path(path, write).map_err(|error| match error {
            OutputError::Write(source) => OutputError::File { action: "write", path: path.clone(), source },
            other => other,
        }),
    }
}

fn write_path(path: &Path, write: impl FnOnce(&mut dyn Write) -> Result<(), OutputError>) -> Result<(), OutputError> {
    match existing(path)? {
        Existing::Direct => {
            let device = OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW).open(path)?;
            buffered(device, write)
        }
        Existing::LinkToFifo => {
            // Where the link leads may have changed since it was looked at; opening alone changes nothing there.
            let fifo = OpenOptions::new().write(true).open(path)?;
            let metadata = fifo.metadata()?;
            if !metadata.file_type().is_fifo() || !is_own(&metadata) {
                return Err(linked(path));
            }
            buffered(fifo, write)
        }
        Existing::Own => buffered(OpenOptions::new().append(true).open(path)?, write),
        Existing::Replaceable => {
            let temporary = TemporaryFile::create(path)?;
            buffered(&temporary.file, write)?;
            temporary.rename_to(path)
        }
    }
}

fn buffered<W: Write>(
    writer: W,
    write: impl FnOnce(&mut dyn Write) -> Result<(), OutputError>,
) -> Result<(), OutputError> {
    let mut writer = BufWriter::with_capacity(1 << 16, writer);
    write(&mut writer)?;
    writer.flush()?;
    Ok(())
}

/// Whether a file is root's or the user's own.
fn is_own(metadata: &fs::Metadata) -> bool {
    [0, rustix::process::geteuid().as_raw()].contains(&metadata.uid())
}

fn linked(path: &Path) -> OutputError {
    let advice = "name the file itself, or - for stdout";
    OutputError::WrongKind { path: path.to_owned(), what: "a symbolic link, which is not followed", advice }
}

fn existing(path: &Path) -> Result<Existing, OutputError> {
    if own_descriptor(path).is_some() {
        return match fs::metadata(path) {
            Ok(_) => Ok(Existing::Own),
            Err(source) => Err(OutputError::File { action: "look at", path: path.to_owned(), source }),
        };
    }
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Existing::Replaceable),
        Err(source) => {
            return Err(OutputError::File { action: "look at", path: path.to_owned(), source });
        }
    };
    let wrong = |what, advice| Err(OutputError::WrongKind { path: path.to_owned(), what, advice });
    let kind = metadata.file_type();
    if kind.is_file() {
        Ok(Existing::Replaceable)
    } else if kind.is_fifo() && !is_own(&metadata) {
        wrong("a FIFO of another user, who would read the profile", "remove it, or name another file")
    } else if kind.is_fifo() || kind.is_char_device() {
        Ok(Existing::Direct)
    } else if kind.is_dir() {
        wrong("a directory", "name a file in it")
    } else if kind.is_symlink() {
        let leads_to = fs::metadata(path).ok().filter(|fifo| fifo.file_type().is_fifo() && is_own(fifo));
        leads_to.filter(|_| is_own(&metadata)).map_or_else(|| Err(linked(path)), |_| Ok(Existing::LinkToFifo))
    } else {
        wrong("a socket or a block device", "name a file")
    }
}

/// A new file beside the output, removed unless it was renamed.
struct TemporaryFile {
    file: File,
    path: PathBuf,
}

impl TemporaryFile {
    fn create(output: &Path) -> Result<Self, OutputError> {
        let failed = |source| OutputError::File { action: "create", path: output.to_owned(), source };
        // A slash at the end is of no file, and a rename alone would say so, after the recording.
        if output.file_name().is_none() || output.as_os_str().as_bytes().ends_with(b"/") {
            return Err(failed(io::Error::from(io::ErrorKind::IsADirectory)));
        }
        // A file of that name can only be left over from a killed run with the same pid, or be planted: the next
        // number will do.
        for attempt in 0..100_u32 {
            let path = output.with_file_name(format!(".jitprof-{}-{attempt}.tmp", process::id()));
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => return Ok(Self { file, path }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Err(failed(io::Error::from(io::ErrorKind::AlreadyExists)))
    }

    fn rename_to(self, output: &Path) -> Result<(), OutputError> {
        fs::rename(&self.path, output).map_err(|source| OutputError::File {
            action: "rename the finished file to",
            path: output.to_owned(),
            source,
        })
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        match fs::remove_file(&self.path) {
            // After a rename the temporary name is gone.
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!("cannot remove {}: {error}", self.path.display()),
        }
    }
}
