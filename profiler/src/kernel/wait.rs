//! Waiting for samples and events.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

/// Waits until one of the descriptors is readable or the time is up. Returns whether one is readable. A signal ends
/// the wait early.
///
/// # Errors
/// As `poll(2)`; the descriptors were closed.
pub fn wait_readable(fds: &[RawFd], timeout: Duration) -> io::Result<bool> {
    let mut polled: Vec<libc::pollfd> =
        fds.iter().map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    let timeout_ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    let count = libc::nfds_t::try_from(polled.len()).unwrap_or(libc::nfds_t::MAX);
    // SAFETY: the array lives through the call and has `count` entries.
    let ready = unsafe { libc::poll(polled.as_mut_ptr(), count, timeout_ms) };
    if ready >= 0 {
        return Ok(ready > 0);
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::Interrupted { Ok(false) } else { Err(error) }
}
