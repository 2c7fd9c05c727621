//! Memory that is shared with the kernel through a descriptor: rings and the elements of array maps.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

/// A shared mapping of a descriptor from its start, readable and writable. Dropping it unmaps.
#[derive(Debug)]
pub(super) struct SharedMemory {
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone; who dereferences the address says why it may.
unsafe impl Send for SharedMemory {}

impl SharedMemory {
    /// Maps `bytes`, rounded up to pages.
    ///
    /// # Errors
    /// As `mmap(2)`.
    pub(super) fn map(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        let bytes = bytes.checked_next_multiple_of(page_size()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: a fresh mapping at an address of the kernel's choice, which is checked.
        let address = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, fd.as_raw_fd(), 0)
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let address = NonNull::new(address.cast()).expect("invariant: mmap returns no null address");
        Ok(Self { address, bytes })
    }

    /// Where it begins, at a page.
    pub(super) fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// Its length in bytes, whole pages.
    pub(super) fn len(&self) -> usize {
        self.bytes
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own and nothing points into it any more.
        let unmapped = unsafe { libc::munmap(self.address.as_ptr().cast(), self.bytes) };
        debug_assert_eq!(unmapped, 0);
    }
}

/// The machine's page size in bytes.
pub(super) fn page_size() -> usize {
    // SAFETY: no pointers involved.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}
