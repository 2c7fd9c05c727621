//! The threads of a process, held.

use std::error::Error;
use std::fs;

use nix::sys::{ptrace, wait};
use nix::unistd::Pid;

/// A thread that is held, and its thread pointer.
pub(crate) type Thread = (Pid, u64);

/// Holds all threads.
pub(crate) fn hold(pid: &str) -> Result<Vec<Thread>, Box<dyn Error>> {
    let mut threads = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let tid = Pid::from_raw(entry?.file_name().to_str().ok_or("no TID")?.parse()?);
        ptrace::seize(tid, ptrace::Options::empty())?;
        ptrace::interrupt(tid)?;
        wait::waitpid(tid, Some(wait::WaitPidFlag::__WALL))?;
        threads.push((tid, ptrace::getregs(tid)?.fs_base));
    }
    threads.sort();
    Ok(threads)
}
