//! `/proc/PID/stat` and `/proc/PID/status`.

use std::time::Duration;

use super::Mapped;
use crate::process::sys;
use jitprof_common::units::{MonoNs, Pid};
use serde::{Deserialize, Serialize};

/// `PF_KTHREAD` of the kernel's `task_struct.flags`.
const KERNEL_THREAD: u64 = 0x0020_0000;
/// A clock tick of /proc: USER_HZ is 100 on every architecture that eBPF profiling runs on, whatever CONFIG_HZ is.
const TICK_NS: u64 = 10_000_000;
/// CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH.
const READ_ALL: u64 = (1 << 1) | (1 << 2);
/// Groups of a process that are remembered, for as long as its root is held: it may be in 65,536.
const MAX_GROUPS: usize = 4096;

/// What `/proc/PID/stat` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The process (or thread) id.
    pub pid: Pid,
    /// Its name, lossily decoded; may hold spaces, parentheses and newlines.
    pub comm: String,
    /// The state's letter: `R`, `S`, `Z` for a zombie, `X` for a dead one.
    pub state: char,
    /// The parent; 0 for the first process and for kernel threads' parent.
    pub parent: Pid,
    /// The kernel's task flags.
    pub flags: u64,
    /// When it started, in ticks of 10 ms of CLOCK_BOOTTIME. With the pid it identifies a process.
    pub start_ticks: u64,
}

impl Stat {
    /// Parses the file's text; `None` if it is none.
    pub fn parse(text: &[u8]) -> Option<Self> {
        // The name may itself hold `) R 1`, so it ends at the last parenthesis.
        let open = text.iter().position(|byte| *byte == b'(')?;
        let close = text.iter().rposition(|byte| *byte == b')').filter(|close| *close > open)?;
        let pid = std::str::from_utf8(&text[..open]).ok()?.trim().parse().ok()?;
        let rest = std::str::from_utf8(&text[close + 1..]).ok()?;
        // Fields are numbered from 1 in proc(5); field 3 is the first after the name.
        let fields: Vec<&str> = rest.split_ascii_whitespace().take(20).collect();
        Some(Self {
            pid: Pid(pid),
            comm: String::from_utf8_lossy(&text[open + 1..close]).into_owned(),
            state: fields.first()?.chars().next()?,
            parent: Pid(fields.get(1)?.parse().ok()?),
            flags: fields.get(6)?.parse().ok()?,
            start_ticks: fields.get(19)?.parse().ok()?,
        })
    }

    /// Whether it is a thread of the kernel, without user memory.
    pub fn is_kernel_thread(&self) -> bool {
        self.flags & KERNEL_THREAD != 0
    }

    /// Whether it has ended and only waits to be reaped.
    pub fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }

    /// The start on CLOCK_MONOTONIC, up to 10 ms early:
    /// `start_ticks * 10 ms - (CLOCK_BOOTTIME - CLOCK_MONOTONIC)`, the difference being what it was then, or when it was
    /// first looked at.
    pub fn start(&self) -> MonoNs {
        MonoNs(sys::boot_to_mono_ns(self.start_ticks.saturating_mul(TICK_NS)))
    }

    /// How long ago it started, times of suspension included.
    pub fn age(&self) -> Duration {
        Duration::from_nanos(sys::since_boot_ns().saturating_sub(self.start_ticks.saturating_mul(TICK_NS)))
    }
}

/// What `/proc/PID/status` says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The process id in the reader's pid namespace.
    pub tgid: Pid,
    /// Its ids from the reader's namespace to its own; never empty.
    pub ns_pids: Vec<u32>,
    /// Real user id in the reader's user namespace.
    pub real_uid: u32,
    /// Effective user id.
    pub effective_uid: u32,
    /// File-system user id: the owner of the files that it creates.
    pub fs_uid: u32,
}

impl Status {
    /// Parses the file's text; `None` without `Tgid` or `Uid`.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(text);
        let tgid = *numbers(&text, "Tgid")?.first()?;
        let uids = numbers(&text, "Uid")?;
        let ns_pids = numbers(&text, "NSpid").filter(|pids| !pids.is_empty()).unwrap_or_else(|| vec![tgid]);
        Some(Self {
            tgid: Pid(tgid),
            ns_pids,
            real_uid: *uids.first()?,
            effective_uid: *uids.get(1)?,
            fs_uid: *uids.get(3)?,
        })
    }

    /// The process id in its own namespace: what it writes into its dumps and into the name of its perf map.
    pub fn own_pid(&self) -> u32 {
        self.ns_pids.last().copied().unwrap_or(self.tgid.0)
    }
}

fn numbers(text: &str, name: &str) -> Option<Vec<u32>> {
    line(text, name)?.split_ascii_whitespace().map(|word| word.parse().ok()).collect()
}

fn line<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    // The first line holds the name, in which the kernel escapes newlines: no other line can be forged.
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

/// With which ids a process reads files, as they are numbered in the reader's user namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// Real, effective, saved, and that of the file system: any of them it may be again.
    pub(in crate::process) uids: Vec<u32>,
    /// Its groups, but for what is beyond a bound.
    pub(in crate::process) gids: Vec<u32>,
    /// It has a capability to read whatever it can name, or may take it up again.
    pub(in crate::process) reads_all: bool,
    /// The same in a user namespace that is not jitprof's, for what has its owner and its group there.
    pub(in crate::process) reads_mapped: Option<Mapped>,
}

impl Credentials {
    /// Parses the text of `/proc/PID/status`; `None` without `Uid` or `Gid`.
    pub fn parse(text: &[u8]) -> Option<Self> {
        // Its groups may be more than are read: a line that is cut is none, for its last number may be another one's beginning.
        let whole = text.iter().rposition(|byte| *byte == b'\n')?;
        let text = String::from_utf8_lossy(text.get(..whole)?);
        let (uids, mut gids) = (numbers(&text, "Uid")?, numbers(&text, "Gid")?);
        gids.extend(numbers(&text, "Groups").unwrap_or_default().into_iter().take(MAX_GROUPS));
        let permitted = line(&text, "CapPrm").and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
        let reads_all = permitted.is_some_and(|permitted| permitted & READ_ALL != 0);
        Some(Self { uids, gids, reads_all, reads_mapped: None })
    }

    /// Those of jitprof's own right: for what no target has named.
    pub(crate) fn of_all() -> Self {
        Self { reads_all: true, ..Self::default() }
    }

    /// Its capabilities are those in another user namespace than jitprof's, where they end at what has ids of that one.
    #[must_use]
    pub(in crate::process) fn within(self, mapped: Mapped) -> Self {
        let reads_mapped = self.reads_all.then_some(mapped);
        Self { reads_mapped, ..self.without_capabilities() }
    }

    /// The same where nothing is known of that namespace.
    #[must_use]
    pub(in crate::process) fn without_capabilities(self) -> Self {
        Self { reads_all: false, reads_mapped: None, ..self }
    }

    /// It has been these users as well. That it was root once is not counted: it may have been for the time of `su`.
    pub fn also(mut self, users: &[u32]) -> Self {
        self.uids.extend(users.iter().filter(|user| **user != 0));
        self
    }
}
