//! Reads this process' own memory through pointers that may be wrong.
//!
//! `process_vm_readv` on the own pid copies like a load does, but answers EFAULT where a load would be a SIGSEGV. A
//! seccomp filter may forbid it (Docker before 2020 does): then a memfd takes the bytes, because `pwrite` checks the
//! pointer just as well.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sys;

/// The smallest page: a copy that ends on such a border never fails because of what lies behind it.
const PAGE: u64 = 4096;

/// Bytes that are looked at first for a string's end. Most names fit.
const FIRST_CHUNK: u64 = 256;

/// Whether `process_vm_readv` was refused.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Copies `out.len()` bytes from `address`; false if one of them cannot be read.
pub(crate) fn read(address: u64, out: &mut [u8]) -> bool {
    if address == 0 || address.checked_add(out.len() as u64).is_none() {
        return out.is_empty();
    }
    if !REFUSED.load(Ordering::Relaxed) {
        match vm_read(address, out) {
            Ok(copied) => return copied == out.len(),
            Err(libc::EPERM | libc::ENOSYS | libc::EACCES) => REFUSED.store(true, Ordering::Relaxed),
            Err(_) => return false,
        }
    }
    memfd_read(address, out)
}

/// Copies `length` bytes from `address` behind `out`'s; false, and `out` as it was, if that is not possible.
pub(crate) fn append(address: u64, length: usize, out: &mut Vec<u8>) -> bool {
    let before = out.len();
    if out.try_reserve(length).is_err() {
        return false;
    }
    out.resize(before + length, 0);
    let copied = out.get_mut(before..).is_some_and(|room| read(address, room));
    if !copied {
        out.truncate(before);
    }
    copied
}

/// The bytes of a NUL-terminated string, without the NUL, cut at `limit`. `None` if it cannot be read up to there.
pub(crate) fn string(address: u64, limit: usize) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    let mut at = address;
    let mut chunk = FIRST_CHUNK;
    while text.len() < limit {
        let to_border = PAGE - at % PAGE;
        let wanted = usize::try_from(to_border.min(chunk)).ok()?.min(limit - text.len());
        let start = text.len();
        if !append(at, wanted, &mut text) {
            return None;
        }
        if let Some(end) = text.get(start..)?.iter().position(|byte| *byte == 0) {
            text.truncate(start + end);
            return Some(text);
        }
        at = at.checked_add(wanted as u64)?;
        chunk = PAGE;
    }
    Some(text)
}

/// Writes one pointer; false where a store would crash.
pub(crate) fn write_pointer(address: u64, value: u64) -> bool {
    let mut bytes = value.to_ne_bytes();
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: address as *mut c_void, iov_len: bytes.len() };
    // SAFETY: the local range is `bytes`; the kernel checks the remote one.
    let written = unsafe { libc::process_vm_writev(sys::known_pid(), &raw const local, 1, &raw const remote, 1, 0) };
    usize::try_from(written).is_ok_and(|written| written == bytes.len())
}

fn vm_read(address: u64, out: &mut [u8]) -> Result<usize, i32> {
    let local = libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: out.len() };
    let remote = libc::iovec { iov_base: address as *mut c_void, iov_len: out.len() };
    // SAFETY: the local range is `out`; the kernel checks the remote one.
    let copied = unsafe { libc::process_vm_readv(sys::known_pid(), &raw const local, 1, &raw const remote, 1, 0) };
    usize::try_from(copied).map_err(|_| sys::errno())
}

/// The same through a file in memory.
fn memfd_read(address: u64, out: &mut [u8]) -> bool {
    let Some(file) = sys::memfd() else { return false };
    let mut done = 0;
    while let Some(rest) = out.get_mut(done..).filter(|rest| !rest.is_empty()) {
        let from = address.wrapping_add(done as u64) as *const c_void;
        // SAFETY: the kernel checks the range that it reads from, and answers EFAULT.
        let written = unsafe { libc::pwrite(file.number(), from, rest.len(), 0) };
        let Some(written) = usize::try_from(written).ok().filter(|written| *written > 0) else { return false };
        let Some(room) = rest.get_mut(..written) else { return false };
        // SAFETY: `room` is as long as said.
        let read = unsafe { libc::pread(file.number(), room.as_mut_ptr().cast(), room.len(), 0) };
        if usize::try_from(read).ok() != Some(written) {
            return false;
        }
        done += written;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::Pages;

    fn address_of<T>(value: &[T]) -> u64 {
        value.as_ptr() as u64
    }

    #[test]
    fn a_bad_pointer_is_told_and_does_not_crash() {
        let mut out = [0; 8];
        for address in [0, 1, 0x1000, 0x0000_7fff_ffff_f000, 0xffff_8000_0000_0000, u64::MAX - 7, u64::MAX] {
            assert!(!read(address, &mut out), "{address:#x}");
            assert!(!memfd_read(address, &mut out), "{address:#x}");
            assert_eq!(string(address, 64), None);
        }
    }

    #[test]
    fn both_ways_copy_the_same_bytes() {
        let bytes: Vec<u8> = (0..200_000_u32).map(|index| index.to_le_bytes()[0] ^ index.to_le_bytes()[1]).collect();
        let (mut first, mut second) = (vec![0; bytes.len()], vec![0; bytes.len()]);
        assert!(read(address_of(&bytes), &mut first) && memfd_read(address_of(&bytes), &mut second));
        assert!(first == bytes && second == bytes);
    }

    #[test]
    fn a_string_that_ends_at_the_last_readable_byte_is_read() {
        let pages = Pages::with_guard().unwrap();
        for length in [0, 1, 255, 256, 257, 4095] {
            let start = pages.fill_end_with(&[vec![b'x'; length], vec![0]].concat());
            assert_eq!(string(start, 1 << 16), Some(vec![b'x'; length]));
            assert!(!read(start, &mut vec![0; length + 2]), "one byte beyond");
        }
        let start = pages.fill_end_with(&[b'x'; 100]);
        assert_eq!(string(start, 1 << 16), None, "no end before the memory ends");
        assert_eq!(string(start, 100), Some(vec![b'x'; 100]), "as far as is wanted");
    }

    #[test]
    fn a_pointer_is_written_only_where_that_is_possible() {
        let mut word = [0_u64; 1];
        assert!(write_pointer(word.as_mut_ptr() as u64, 7));
        assert_eq!(word, [7]);
        assert!(!write_pointer(0x1000, 7) && !write_pointer(0, 7));
    }
}
