//! What runs on the machine, and what jitprof itself uses of it.

use crate::account::OwnCost;
use crate::units::Pid;

/// Every process that runs now.
pub(super) fn running_pids() -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Pid)).collect()
}

/// Blocks from this size on are mapped, and go back to the system when they are freed.
#[cfg(target_env = "gnu")]
const MAPPED_BYTES: libc::c_int = 256 << 10;

/// Heaps of all threads together: they allocate little at the same time, and each heap keeps what is free in it.
#[cfg(target_env = "gnu")]
const HEAPS: libc::c_int = 2;

/// Keeps the heap of a process that stays small; to be called before its threads are made. Large blocks go back to the
/// system when they are freed: glibc raises the size from which it maps a block to that of the largest one freed so far,
/// up to 32 MiB, and symbol tables are read in such. After 75 s under a build, the resident size is 88 MB instead of
/// 143 MB.
pub fn keep_heap_small() {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in [(libc::M_MMAP_THRESHOLD, MAPPED_BYTES), (libc::M_ARENA_MAX, HEAPS)] {
        // SAFETY: takes numbers; glibc guards its parameters itself.
        if unsafe { libc::mallopt(parameter, value) } == 0 {
            tracing::debug!("glibc's parameter {parameter} of the heap stays as it is");
        }
    }
}

/// Gives memory that is free back to the system: glibc keeps whole pages between blocks in use.
pub(super) fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number; glibc locks its arenas itself.
    if unsafe { libc::malloc_trim(0) } == 0 {
        tracing::trace!("no memory to give back");
    }
}

/// CPU time and memory of this process so far.
pub(super) fn own_cost() -> OwnCost {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    // Nanoseconds that all live threads have run, from the scheduler itself; ended threads are in /proc/self/stat only,
    // and jitprof's threads live as long as it does.
    let ran_ns: u64 = std::fs::read_dir("/proc/self/task").map_or(0, |tasks| {
        tasks
            .flatten()
            .filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok())
            .filter_map(|text| text.split_whitespace().next().and_then(|ns| ns.parse::<u64>().ok()))
            .sum()
    });
    OwnCost {
        #[expect(clippy::cast_precision_loss, reason = "CPU time for people")]
        cpu_s: ran_ns as f64 / 1e9,
        max_rss_bytes: kib.unwrap_or(0).saturating_mul(1024),
        ..OwnCost::default()
    }
}
