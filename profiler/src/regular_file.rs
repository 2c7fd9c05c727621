//! Files that a user names as input, and what a regular file is.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::StatFs;

/// `f_type` of file systems whose files are the kernel's own: proc, sysfs, debugfs, tracefs, securityfs, cgroup2,
/// bpf and devpts.
const KERNELS_OWN: [u32; 8] =
    [0x9fa0, 0x6265_6572, 0x6462_6720, 0x7472_6163, 0x7363_6673, 0x6367_7270, 0xcafe_4a11, 0x1cd1];

/// Whether the files of a file system are the kernel's own, whatever they look like: what is read of them is made for whoever
/// reads it, and may be gone for all others, as the log is.
pub(crate) fn is_kernels_own(system: &StatFs) -> bool {
    u32::try_from(system.f_type).is_ok_and(|kind| KERNELS_OWN.contains(&kind))
}

/// Opens a file to read it; `None` if it is no regular file. A FIFO or a device is not opened, as that could block or
/// act; and if one takes the file's place just then, opening it does not block, and nothing is read from it.
///
/// # Errors
/// There is none, or it may not be read.
pub fn open_regular(path: &Path) -> io::Result<Option<File>> {
    if !std::fs::metadata(path)?.is_file() {
        return Ok(None);
    }
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    let is_regular = file.metadata()?.is_file();
    Ok(is_regular.then_some(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_and_devices_are_told_from_files_that_are_not_there() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(open_regular(file.path()).unwrap().is_some());
        assert!(open_regular(Path::new("/dev/null")).unwrap().is_none());
        assert!(open_regular(Path::new("/tmp")).unwrap().is_none());
        assert_eq!(open_regular(Path::new("/no/such")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
