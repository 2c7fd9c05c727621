//! What an init does.

use std::ffi::CStr;
use std::io;

use anyhow::{Context, Result};

/// Mounts the file systems that jitprof and its targets use. No tracefs: it must do without.
///
/// # Errors
/// One cannot be mounted.
pub(crate) fn mount_all() -> Result<()> {
    for (kind, at) in [(c"proc", c"/proc"), (c"sysfs", c"/sys"), (c"devtmpfs", c"/dev"), (c"tmpfs", c"/tmp")] {
        mount(kind, at).with_context(|| format!("cannot mount {at:?}"))?;
    }
    Ok(())
}

fn mount(kind: &CStr, at: &CStr) -> io::Result<()> {
    // SAFETY: three strings that end with NUL and outlive the call; no flags, no data.
    let result = unsafe { libc::mount(kind.as_ptr(), at.as_ptr(), kind.as_ptr(), 0, std::ptr::null()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Seconds since the kernel started.
///
/// # Errors
/// /proc is not mounted.
pub(crate) fn uptime_s() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/uptime")?;
    text.split(' ').next().context("no uptime")?.parse().context("no uptime")
}

/// Turns the machine off. If that fails the loop ends with the virtual machine's time limit.
pub(crate) fn turn_off() -> ! {
    loop {
        // SAFETY: takes a number only.
        if unsafe { libc::reboot(libc::RB_POWER_OFF) } != 0 {
            eprintln!("cannot turn the machine off: {}", io::Error::last_os_error());
        }
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
}
