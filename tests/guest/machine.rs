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

/// Takes a CPU away, or brings it back.
///
/// # Errors
/// The kernel cannot.
pub(crate) fn switch_cpu(cpu: usize, online: bool) -> Result<()> {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/online");
    std::fs::write(&path, if online { "1" } else { "0" }).with_context(|| format!("cannot switch {path}"))
}

/// From now on a process runs on this CPU only.
///
/// # Errors
/// It has ended, or there is no such CPU.
pub(crate) fn stay_on(pid: u32, cpu: usize) -> Result<()> {
    // SAFETY: a set of bits, which no CPU is in; the kernel reads as many bytes as it is told.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(i32::try_from(pid)?, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()).context("cannot choose a CPU") }
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
