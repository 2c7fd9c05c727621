//! Where announcements go: straight to the file, or through C's stdio as CPython and V8 do.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::path::Path;
use std::ptr::NonNull;

use anyhow::{Context, Result};

use crate::memory::page_size;

/// An open dump or perf map.
pub(crate) enum Output {
    /// One write(2) a record.
    Direct(File),
    /// glibc's buffer of 4096 bytes on the heap; a record reaches the file when it is full, or at the end.
    Stdio(Stream),
}

impl Output {
    /// Creates or truncates the file.
    pub(crate) fn create(path: &Path, stdio: bool) -> Result<Self> {
        let options = || File::options().read(true).write(true).create(true).truncate(true).open(path);
        let file = options().with_context(|| format!("cannot create {}; choose another --dir", path.display()))?;
        Ok(if stdio { Self::Stdio(Stream::new(file)?) } else { Self::Direct(file) })
    }

    /// Maps the file's first page executable: the mark by which profilers find a jitdump.
    pub(crate) fn map_marker(&self) -> Result<()> {
        let fd = match self {
            Self::Direct(file) => file.as_raw_fd(),
            Self::Stdio(stream) => stream.fd(),
        };
        let protection = libc::PROT_READ | libc::PROT_EXEC;
        // SAFETY: a new mapping at an address of the kernel's choice; it is never read.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), page_size(), protection, libc::MAP_PRIVATE, fd, 0) };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error())
                .context("cannot map the dump executable; choose a --dir that is not mounted noexec");
        }
        Ok(())
    }

    /// Writes one record.
    pub(crate) fn write(&mut self, record: &[u8]) -> Result<()> {
        match self {
            Self::Direct(file) => file.write_all(record),
            Self::Stdio(stream) => stream.write(record),
        }
        .context("cannot write an announcement")
    }
}

/// A `FILE *`.
pub(crate) struct Stream(NonNull<libc::FILE>);

impl Stream {
    fn new(file: File) -> Result<Self> {
        let mode = CString::new("w").expect("invariant: no NUL");
        // SAFETY: the descriptor is open and given away here; the mode is a C string.
        let stream = unsafe { libc::fdopen(file.into_raw_fd(), mode.as_ptr()) };
        NonNull::new(stream).map(Self).context("fdopen failed")
    }

    fn fd(&self) -> i32 {
        // SAFETY: the stream is open until drop.
        unsafe { libc::fileno(self.0.as_ptr()) }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        // SAFETY: the stream is open until drop; pointer and length are a slice's.
        let written = unsafe { libc::fwrite(bytes.as_ptr().cast(), 1, bytes.len(), self.0.as_ptr()) };
        if written == bytes.len() { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: opened by fdopen, closed here once.
        if unsafe { libc::fclose(self.0.as_ptr()) } != 0 {
            eprintln!("jitdemo: the last announcements were lost: {}", io::Error::last_os_error());
        }
    }
}
