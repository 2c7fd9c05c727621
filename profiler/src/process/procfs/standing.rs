//! Where a thread stands that does not run.

use std::path::PathBuf;

use super::{MAX_STATUS_BYTES, ProcError, proc_path, read_bounded};
use jitprof_common::units::{Pid, Tid};

/// Frames of a kernel stack that are read at most; the kernel writes 64.
const MAX_KERNEL_FRAMES: usize = 128;

/// What the kernel says of a thread at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It runs, or waits for a CPU.
    Running,
    /// It waits for something: in a system call, or elsewhere in the kernel.
    Blocked {
        /// Its user stack pointer.
        sp: u64,
        /// The user instruction that is run next.
        pc: u64,
    },
    /// It has no user code: a thread of the kernel, or one that ends.
    NoUserCode,
}

impl Standing {
    /// Reads the text of `/proc/PID/task/TID/syscall`: `running`, or numbers of which the last two are sp and pc.
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace().rev();
        let last = words.next()?;
        if last == "running" {
            return Some(Self::Running);
        }
        let number = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
        let (pc, sp) = (number(last)?, number(words.next()?)?);
        Some(if sp == 0 || pc == 0 { Self::NoUserCode } else { Self::Blocked { sp, pc } })
    }
}

/// Reads `/proc/PID/task/TID/syscall`.
///
/// # Errors
/// [`ProcError`].
pub fn standing(pid: Pid, tid: Tid) -> Result<Standing, ProcError> {
    let (path, text) = thread_file(pid, tid, "syscall")?;
    Standing::parse(&text).ok_or(ProcError::Malformed { path })
}

/// The number of a thread in its own namespace.
///
/// # Errors
/// [`ProcError`].
pub fn own_tid(pid: Pid, tid: Tid) -> Result<u32, ProcError> {
    let (path, text) = thread_file(pid, tid, "status")?;
    parse_own_tid(&text).ok_or(ProcError::Malformed { path })
}

fn parse_own_tid(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_whitespace().next_back()?.parse().ok()
}

/// How often a thread has left its CPU: as long as the number is the same and it does not run, it has not run.
///
/// # Errors
/// [`ProcError`].
pub fn context_switches(pid: Pid, tid: Tid) -> Result<u64, ProcError> {
    let (path, text) = thread_file(pid, tid, "status")?;
    parse_switches(&text).ok_or(ProcError::Malformed { path })
}

fn parse_switches(status: &str) -> Option<u64> {
    let value = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse::<u64>().ok()
    };
    value("voluntary_ctxt_switches:")?.checked_add(value("nonvoluntary_ctxt_switches:")?)
}

/// A thread's state as `ps` has it: R, S, D, T, Z.
///
/// # Errors
/// [`ProcError`].
pub fn thread_state(pid: Pid, tid: Tid) -> Result<char, ProcError> {
    let (path, text) = thread_file(pid, tid, "stat")?;
    // The name before it may have any characters in it.
    let state = text.rfind(')').and_then(|end| text[end + 1..].trim_start().chars().next());
    state.ok_or(ProcError::Malformed { path })
}

/// The kernel functions in which a thread waits, innermost first, as `/proc/PID/task/TID/stack` has them.
///
/// # Errors
/// [`ProcError`]; only root may read it.
pub fn kernel_stack(pid: Pid, tid: Tid) -> Result<Vec<String>, ProcError> {
    Ok(parse_kernel_stack(&thread_file(pid, tid, "stack")?.1))
}

/// Of `[<0>] ep_poll+0x2b0/0x3f0` the name.
fn parse_kernel_stack(text: &str) -> Vec<String> {
    let name = |line: &str| {
        let place = line.split_once("] ").map_or(line, |(_, place)| place).trim();
        place.split_once('+').map_or(place, |(name, _)| name).to_owned()
    };
    text.lines().take(MAX_KERNEL_FRAMES).map(name).filter(|name| !name.is_empty()).collect()
}

fn thread_file(pid: Pid, tid: Tid, name: &str) -> Result<(PathBuf, String), ProcError> {
    let path = proc_path(pid, "task").join(tid.0.to_string()).join(name);
    let (bytes, _) = read_bounded(pid, &path, MAX_STATUS_BYTES)?;
    Ok((path, String::from_utf8_lossy(&bytes).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes_of_a_thread_is_read() {
        let text = "232 0xd 0x7ffc2e0f5f30 0x400 0xffffffff 0x0 0x8 0x7ffc2e0f5e40 0x7f3b5c1a2b46\n";
        assert_eq!(Standing::parse(text), Some(Standing::Blocked { sp: 0x7ffc_2e0f_5e40, pc: 0x7f3b_5c1a_2b46 }));
        let fault = Some(Standing::Blocked { sp: 0x7ffe_8e8c_d4b0, pc: 0x7f12 });
        assert_eq!(Standing::parse("-1 0x7ffe8e8cd4b0 0x7f12"), fault);
        assert_eq!(Standing::parse("running\n"), Some(Standing::Running));
        assert_eq!(Standing::parse("-1 0x0 0x0"), Some(Standing::NoUserCode));
        for text in ["", "0 0x1", "x y z", "7 0x1 nonsense"] {
            assert_eq!(Standing::parse(text), None, "{text}");
        }
        let stack = "[<0>] ep_poll+0x2b0/0x3f0\n[<ffffffff81000000>] do_syscall_64+0x35/0x80 [module]\n\n";
        assert_eq!(parse_kernel_stack(stack), ["ep_poll", "do_syscall_64"]);
        assert_eq!(parse_switches("a:\t1\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t2\n"), Some(7));
        assert_eq!(parse_switches("voluntary_ctxt_switches:\t5\n"), None);
    }

    #[test]
    fn a_thread_of_this_process_stands_where_it_waits() {
        let pid = Pid(std::process::id());
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid()).unwrap();
            receiver.recv().unwrap_err();
        });
        let tid = Tid(told.recv().unwrap().as_raw_nonzero().get().unsigned_abs());
        let standing = loop {
            match standing(pid, tid) {
                Ok(Standing::Running) => std::thread::yield_now(),
                // Its own threads a process may look at, where the kernel is built to say it.
                other => break other,
            }
        };
        if let Ok(standing) = standing {
            assert!(matches!(standing, Standing::Blocked { .. }), "{standing:?}");
        }
        assert_eq!(thread_state(pid, tid).unwrap(), 'S');
        assert!(context_switches(pid, tid).unwrap() > 0);
        drop(sender);
        thread.join().unwrap();
    }
}
