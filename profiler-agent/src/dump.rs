//! The dump's file.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use crate::record;
use crate::report::Failure;
use crate::sys::{self, Fd, Identity};

/// Where dumps go, instead of a directory of the user's own below the one for temporary files.
const DIRECTORY: &str = "JITPROF_AGENT_DIR";
/// The largest a dump may become, in MiB.
const LIMIT: &str = "JITPROF_AGENT_MAX_MB";
/// The same without it: 20 times what a Node server of 50,000 functions writes.
const DEFAULT_LIMIT: u64 = 1 << 30;

/// An open dump.
#[derive(Debug)]
pub(crate) struct Dump {
    file: Fd,
    /// Which file it is: its descriptor may have been closed by the program and be another file's now.
    identity: Identity,
    path: CString,
    limit: u64,
}

impl Dump {
    /// Creates the dump of this process, with its header and its marker.
    ///
    /// # Errors
    /// The directory or the file cannot be made, or not be mapped executable.
    pub(crate) fn create(pid: u32) -> Result<Self, Failure> {
        let directory = directory()?;
        Self::create_in(&directory, pid)
    }

    pub(crate) fn create_in(directory: &OsStr, pid: u32) -> Result<Self, Failure> {
        let path = [directory.as_bytes(), format!("/jit-{pid}.dump").as_bytes()].concat();
        let path = CString::new(path).map_err(|_| Failure::new(format!("{DIRECTORY} has a NUL in it"), 0))?;
        let fail = |what: &str, errno| Failure::new(format!("cannot {what} {}", path.to_string_lossy()), errno);
        let file = sys::create_anew(&path).map_err(|errno| fail("create", errno))?;
        // The header first: who finds the marker looks at it at once.
        sys::append(&file, &record::header(pid, sys::monotonic_ns())).map_err(|errno| fail("write", errno))?;
        sys::map_marker(&file).map_err(|errno| {
            let advice = format!("map executable (a file system mounted noexec? {DIRECTORY} names another directory)");
            fail(&advice, errno)
        })?;
        let identity = sys::identity(&file).ok_or_else(|| fail("look at", sys::errno()))?;
        Ok(Self { file, identity, path, limit: limit() })
    }

    /// Appends records with one write(2).
    ///
    /// # Errors
    /// The file is full, as large as it may be, or not this dump any more.
    pub(crate) fn append(&self, bytes: &[u8]) -> Result<(), Failure> {
        let name = || self.path.to_string_lossy();
        let now = sys::identity(&self.file);
        let same = |now: &Identity| now.device == self.identity.device && now.inode == self.identity.inode;
        let Some(length) = now.filter(same).map(|now| now.length) else {
            return Err(Failure::new(format!("the program has closed {}", name()), 0));
        };
        let end = length.saturating_add(bytes.len() as u64);
        // The kernel would end the program with SIGXFSZ.
        if end > self.limit.min(sys::file_size_limit()) {
            return Err(Failure::new(format!("{} is as large as it may be ({LIMIT}, ulimit -f)", name()), 0));
        }
        sys::append(&self.file, bytes).map_err(|errno| {
            // What a full disk took of the records would be a torn record for good.
            let cut = sys::truncate(&self.file, length);
            let torn = if cut { "" } else { " (its end is torn)" };
            let errno = if errno == 0 { libc::ENOSPC } else { errno };
            Failure::new(format!("cannot write {}{torn}", name()), errno)
        })
    }
}

impl Drop for Dump {
    fn drop(&mut self) {
        // The number may be the program's own by now: then it is not ours to close.
        let ours = sys::identity(&self.file)
            .is_some_and(|now| now.device == self.identity.device && now.inode == self.identity.inode);
        if !ours {
            self.file.give_up();
        }
    }
}

fn limit() -> u64 {
    let given = std::env::var(LIMIT).ok().and_then(|text| text.trim().parse::<u64>().ok());
    given.map_or(DEFAULT_LIMIT, |mib| mib.saturating_mul(1 << 20))
}

/// Where dumps go. A directory of the user's own: other producers write `/tmp/jit-PID.dump` for the same process.
fn directory() -> Result<OsString, Failure> {
    if let Some(given) = std::env::var_os(DIRECTORY).filter(|given| !given.is_empty()) {
        return Ok(given);
    }
    let below = std::env::var_os("TMPDIR").filter(|given| !given.is_empty()).unwrap_or_else(|| "/tmp".into());
    let directory = [below.as_bytes(), format!("/jitprof-{}", sys::effective_user()).as_bytes()].concat();
    let path = CString::new(directory).map_err(|_| Failure::new("TMPDIR has a NUL in it", 0))?;
    sys::make_private_directory(&path).map_err(|errno| {
        let what = format!("cannot use {} ({DIRECTORY} names another directory)", path.to_string_lossy());
        Failure::new(what, errno)
    })?;
    Ok(OsString::from_vec(path.into_bytes()))
}
