//! Reads another process' memory. It never writes, and it does not stop the process.
#![expect(unsafe_code, reason = "process_vm_readv has no safe wrapper among the dependencies")]

use std::io;

use crate::peek::stdio::Memory;
use jitprof_common::units::{Avma, Pid};

/// The memory of a running process, by process_vm_readv(2). Needs CAP_SYS_PTRACE or the same user.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remote(pub(super) Pid);

impl Memory for Remote {
    fn read(&self, addr: Avma, into: &mut [u8]) -> io::Result<usize> {
        let pid = libc::pid_t::try_from(self.0.0).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
        let start = usize::try_from(addr.0).map_err(|_| io::Error::from_raw_os_error(libc::EFAULT))?;
        let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(start), iov_len: into.len() };
        // SAFETY: the kernel writes at most `into.len()` bytes to `into`, which is borrowed for the call; the remote
        // address is not dereferenced here, and a bad one fails with EFAULT.
        let read = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
        usize::try_from(read).map_err(|_| io::Error::last_os_error())
    }
}
