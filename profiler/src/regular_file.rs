//! Files that a user names as input, and what a regular file is.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::StatFs;

/// `f_type` of file systems whose files are the kernel's own.
const KERNELS_OWN: [u32; 28] = [
    0x9fa0,      // proc
    0x9fa1,      // openprom
    0x1cd1,      // devpts
    0x0027_e0eb, // cgroup
    0x0765_5821, // resctrl
    0x0904_1934, // anonymous inodes
    0x1980_0202, // mqueue
    0x4249_4e4d, // binfmt_misc
    0x4341_5d53, // smack
    0x5049_4446, // pidfs
    0x534f_434b, // sockets
    0x5345_434d, // secretmem
    0x6165_676c, // pstore
    0x6265_6570, // configfs
    0x6265_6572, // sysfs
    0x6367_7270, // cgroup2
    0x6462_6720, // debugfs
    0x6573_5543, // fusectl
    0x6759_6969, // rpc_pipefs
    0x6c6f_6f70, // binderfs
    0x6e66_7364, // nfsd
    0x6e73_6673, // nsfs
    0x7363_6673, // securityfs
    0x7472_6163, // tracefs
    0xabba_1974, // xenfs
    0xcafe_4a11, // bpf
    0xde5e_81e4, // efivarfs
    0xf97c_ff8c, // selinux
];

/// Whether the files of a file system are the kernel's own, whatever they look like: what is read of them is made for whoever
/// reads it, and may be gone for all others, as the log is.
pub(crate) fn is_kernels_own(system: &StatFs) -> bool {
    u32::try_from(system.f_type).is_ok_and(|kind| KERNELS_OWN.contains(&kind))
}

/// The same of what fstatfs(2) says of a file. The kernel's own always answer: where there is none it is a file system in userspace.
pub(crate) fn is_found_kernels_own(system: rustix::io::Result<StatFs>) -> bool {
    system.is_ok_and(|system| is_kernels_own(&system))
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
    fn what_the_kernel_makes_up_is_known_by_its_file_system_which_always_says_what_it_is() {
        let mut system = rustix::fs::statfs("/").unwrap();
        assert!(!is_found_kernels_own(Ok(system)), "{:x}", system.f_type);
        assert!(is_found_kernels_own(rustix::fs::statfs("/proc/version")));
        assert!(!is_found_kernels_own(Err(rustix::io::Errno::NOSYS)));
        // cgroup, configfs, efivarfs, pstore, selinux, fusectl, binfmt_misc, mqueue and nsfs.
        let kinds = [0x0027_e0eb, 0x6265_6570, 0xde5e_81e4, 0x6165_676c, 0xf97c_ff8c, 0x6573_5543, 0x4249_4e4d];
        for kind in kinds.into_iter().chain([0x1980_0202_i64, 0x6e73_6673]) {
            system.f_type = kind;
            assert!(is_kernels_own(&system), "{kind:x}");
        }
        // tmpfs, ext4, overlayfs.
        for kind in [0x0102_1994, 0xef53, 0x794c_7630] {
            system.f_type = kind;
            assert!(!is_kernels_own(&system), "{kind:x}");
        }
    }

    #[test]
    fn directories_and_devices_are_told_from_files_that_are_not_there() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(open_regular(file.path()).unwrap().is_some());
        assert!(open_regular(Path::new("/dev/null")).unwrap().is_none());
        assert!(open_regular(Path::new("/tmp")).unwrap().is_none());
        assert_eq!(open_regular(Path::new("/no/such")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
