//! The two system calls that the standard library has no safe form of, and that reading /proc safely needs.
#![expect(unsafe_code, reason = "openat2 and clock_gettime have no safe wrapper among the dependencies")]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::units::MonoNs;

/// Opens `path` relative to `root`, which is the root directory of the whole resolution: neither `..` nor an absolute
/// symbolic link leads out of it, and magic links of a /proc inside of it are refused. Linux ≥ 5.6.
pub(super) fn open_in_root(root: BorrowedFd<'_>, path: &CStr, flags: i32) -> io::Result<OwnedFd> {
    let how = OpenHow {
        flags: u64::try_from(flags).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?,
        mode: 0,
        resolve: libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_MAGICLINKS,
    };
    // SAFETY: `path` is NUL-terminated and `how` is a struct open_how of the size passed along; both outlive the call.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_openat2,
            root.as_raw_fd(),
            path.as_ptr(),
            std::ptr::from_ref(&how),
            size_of::<OpenHow>(),
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    let fd = i32::try_from(fd).map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?;
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `struct open_how`, whose libc counterpart is non-exhaustive and cannot be written as a literal.
#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

const _: () = assert!(size_of::<OpenHow>() == 24);

/// Now on CLOCK_MONOTONIC.
pub fn monotonic_now() -> MonoNs {
    MonoNs(clock_ns(libc::CLOCK_MONOTONIC))
}

/// CLOCK_BOOTTIME minus CLOCK_MONOTONIC in ns: the time that the machine has spent suspended.
pub(super) fn suspended_ns() -> u64 {
    // Monotonic is read first, so that the difference is never negative; a few hundred ns too much do not matter
    // beside the 10 ms ticks that it is used with.
    let mono = clock_ns(libc::CLOCK_MONOTONIC);
    clock_ns(libc::CLOCK_BOOTTIME).saturating_sub(mono)
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut at = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `at` is a valid timespec that the call fills in.
    let failed = unsafe { libc::clock_gettime(clock, &raw mut at) };
    assert_eq!(failed, 0, "both clocks exist on every Linux since 2.6.39");
    let secs = u64::try_from(at.tv_sec).unwrap_or(0);
    secs.saturating_mul(1_000_000_000).saturating_add(u64::try_from(at.tv_nsec).unwrap_or(0))
}
