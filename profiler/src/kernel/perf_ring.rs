//! A perf event's memory-mapped ring of records.
//!
//! Protocol (`include/uapi/linux/perf_event.h`, `struct perf_event_mmap_page`): the kernel writes records and then
//! advances `data_head`; the reader loads `data_head` with acquire order, reads the records, and stores `data_tail`
//! with release order so that the kernel does not overwrite what is still being read.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use perf_event_open_sys::bindings::{perf_event_attr, perf_event_mmap_page};

use super::shared_memory::{SharedMemory, page_size};

/// Bytes of a record's `{type u32, misc u16, size u16}`.
const RECORD_HEADER_BYTES: usize = 8;

/// One event's ring.
#[derive(Debug)]
pub(super) struct PerfRing {
    event: File,
    memory: SharedMemory,
    data_bytes: usize,
}

impl PerfRing {
    /// Opens the event on one CPU for all tasks and maps a ring of `pages` (a power of two) pages.
    ///
    /// # Errors
    /// As `perf_event_open(2)` and `mmap(2)`.
    pub(super) fn open(mut attributes: perf_event_attr, cpu: u32, pages: usize) -> io::Result<Self> {
        let cpu = i32::try_from(cpu).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        attributes.size = u32::try_from(size_of::<perf_event_attr>()).expect("invariant: attribute sizes are small");
        // SAFETY: the attributes live through the call; the result is checked before it becomes a file.
        let event = unsafe {
            let fd = perf_event_open_sys::perf_event_open(
                &mut attributes,
                -1,
                cpu,
                -1,
                perf_event_open_sys::bindings::PERF_FLAG_FD_CLOEXEC.into(),
            );
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            File::from(<OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd))
        };
        let page_bytes = page_size();
        let data_bytes = pages * page_bytes;
        let memory = SharedMemory::map(event.as_fd(), data_bytes + page_bytes)?;
        Ok(Self { event, memory, data_bytes })
    }

    /// The descriptor that tells when records come.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// For how long the event has been enabled, in nanoseconds; the event must say so when it is read.
    ///
    /// # Errors
    /// As `read(2)`.
    pub(super) fn enabled_ns(&self) -> io::Result<u64> {
        // The count, and the time: `PERF_FORMAT_TOTAL_TIME_ENABLED`.
        let mut words = [0; 16];
        (&self.event).read_exact(&mut words)?;
        let [.., a, b, c, d, e, f, g, h] = words;
        Ok(u64::from_ne_bytes([a, b, c, d, e, f, g, h]))
    }

    /// The control page, for its clock fields.
    pub(super) fn page(&self) -> NonNull<perf_event_mmap_page> {
        self.memory.address().cast()
    }

    /// Hands each waiting record, header included, to `visit`, and frees its room.
    pub(super) fn drain(&mut self, scratch: &mut Vec<u8>, mut visit: impl FnMut(&[u8])) {
        // SAFETY: both counters lie in the mapped control page and are naturally aligned u64s that the kernel reads
        // and writes with matching barriers.
        let (head, tail) = unsafe {
            let page = self.page().as_ptr();
            (AtomicU64::from_ptr(&raw mut (*page).data_head), AtomicU64::from_ptr(&raw mut (*page).data_tail))
        };
        let end = head.load(Ordering::Acquire);
        let mut at = tail.load(Ordering::Relaxed);
        while end.wrapping_sub(at) >= RECORD_HEADER_BYTES as u64 {
            self.copy(at, RECORD_HEADER_BYTES, scratch);
            let size = usize::from(u16::from_ne_bytes([scratch[6], scratch[7]]));
            if size < RECORD_HEADER_BYTES || size as u64 > end.wrapping_sub(at) {
                // Only a broken kernel writes such a record; what is left cannot be told apart.
                at = end;
                break;
            }
            self.copy(at, size, scratch);
            visit(scratch);
            at = at.wrapping_add(size as u64);
        }
        tail.store(at, Ordering::Release);
    }

    /// Copies `len` bytes at ring position `at` out of the ring, across its end if need be.
    fn copy(&self, at: u64, len: usize, out: &mut Vec<u8>) {
        let offset = usize::try_from(at % self.data_bytes as u64).expect("invariant: smaller than the ring");
        let first = len.min(self.data_bytes - offset);
        out.clear();
        // SAFETY: the data area lies one page behind the control page and has `data_bytes` bytes; both parts end
        // inside it. The kernel does not write between tail and head.
        unsafe {
            let data = self.memory.address().as_ptr().add(self.memory.len() - self.data_bytes);
            out.extend_from_slice(std::slice::from_raw_parts(data.add(offset), first));
            out.extend_from_slice(std::slice::from_raw_parts(data, len - first));
        }
    }
}
