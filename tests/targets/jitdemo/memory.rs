//! Memory for generated code: writable or executable, and both only where functions are replaced all the time.

use std::ptr::NonNull;

use anyhow::{Context, Result, bail};

/// A run of anonymous pages.
pub(crate) struct Region {
    start: NonNull<u8>,
    size: usize,
}

impl Region {
    /// Maps at least `size` bytes, writable.
    pub(crate) fn new(size: usize) -> Result<Self> {
        let size = size.max(1).next_multiple_of(page_size());
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error()).with_context(|| format!("cannot map {size} bytes for code"));
        }
        let start = NonNull::new(start.cast()).context("the kernel mapped code at address 0")?;
        Ok(Self { start, size })
    }

    /// The address of a byte of the region.
    pub(crate) fn address(&self, offset: usize) -> usize {
        self.start.as_ptr().addr() + offset
    }

    /// Copies the bytes to the offset; the region must be writable.
    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        if offset.checked_add(bytes.len()).is_none_or(|end| end > self.size) {
            bail!("{} bytes of code at {offset} do not fit into {}", bytes.len(), self.size);
        }
        // SAFETY: the range lies in this region, by the check above; `&mut self` and the callers' order (writable,
        // write, executable, call) mean that nobody else uses it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.as_ptr().add(offset), bytes.len()) };
        #[cfg(target_arch = "aarch64")]
        self.synchronise(offset, bytes.len());
        Ok(())
    }

    /// Makes the region writable and not executable; no thread may be running in it.
    pub(crate) fn make_writable(&mut self) -> Result<()> {
        self.protect(libc::PROT_READ | libc::PROT_WRITE)
    }

    /// Makes the region executable and not writable.
    pub(crate) fn make_executable(&mut self) -> Result<()> {
        self.protect(libc::PROT_READ | libc::PROT_EXEC)
    }

    /// Makes the region writable and executable, as JITs have it that replace one function while others run.
    pub(crate) fn make_writable_and_executable(&mut self) -> Result<()> {
        self.protect(libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC)
    }

    /// Makes the CPUs fetch what has been written: AArch64 keeps instruction and data caches apart.
    #[cfg(target_arch = "aarch64")]
    fn synchronise(&self, offset: usize, length: usize) {
        let (start, end) = (self.address(offset), self.address(offset + length));
        // Line sizes are powers of two.
        let lines = |bytes: usize| (start & !(bytes - 1)..end).step_by(bytes);
        let line_sizes: usize;
        // SAFETY: reads CTR_EL0, which Linux lets user code read.
        unsafe { std::arch::asm!("mrs {}, ctr_el0", out(reg) line_sizes, options(nomem, nostack, preserves_flags)) };
        for line in lines(4 << (line_sizes >> 16 & 15)) {
            // SAFETY: cleans a data cache line of this region.
            unsafe { std::arch::asm!("dc cvau, {}", in(reg) line, options(nostack, preserves_flags)) };
        }
        // SAFETY: a barrier.
        unsafe { std::arch::asm!("dsb ish", options(nostack, preserves_flags)) };
        for line in lines(4 << (line_sizes & 15)) {
            // SAFETY: invalidates an instruction cache line of this region.
            unsafe { std::arch::asm!("ic ivau, {}", in(reg) line, options(nostack, preserves_flags)) };
        }
        // SAFETY: barriers.
        unsafe { std::arch::asm!("dsb ish", "isb", options(nostack, preserves_flags)) };
    }

    fn protect(&mut self, protection: libc::c_int) -> Result<()> {
        // SAFETY: the range is this region's own mapping.
        if unsafe { libc::mprotect(self.start.as_ptr().cast(), self.size, protection) } != 0 {
            return Err(std::io::Error::last_os_error()).context(
                "cannot change the protection of generated code; a security module may forbid it (SELinux: execmem)",
            );
        }
        Ok(())
    }
}

// Regions stay mapped until the process ends: other threads may be running in them.

/// The size of a page in bytes.
pub(crate) fn page_size() -> usize {
    // SAFETY: sysconf reads no memory of ours.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).expect("invariant: Linux knows its page size")
}
