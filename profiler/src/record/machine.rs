//! What runs on the machine, and what jitprof itself uses of it.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use jitprof_common::units::{Pid, Tid};

use crate::engine::same_comm;
use crate::process::procfs;

/// Every process that runs now.
pub(super) fn running_pids() -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Pid)).collect()
}

/// The processes that these have made, and those have, as far as they run now; without them themselves.
pub(super) fn descendants_of(pids: &[Pid]) -> Vec<Pid> {
    let parents: Vec<(Pid, Pid)> =
        running_pids().into_iter().filter_map(|pid| Some((pid, procfs::stat(pid).ok()?.parent))).collect();
    descendants(pids, &parents)
}

/// Of processes and their parents. A number that was used again while they were read can make a circle.
fn descendants(of: &[Pid], parents: &[(Pid, Pid)]) -> Vec<Pid> {
    let mut found: Vec<Pid> = of.to_vec();
    let mut seen: HashSet<Pid> = of.iter().copied().collect();
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        next += 1;
        let children = parents.iter().filter(|(_, of)| *of == parent).map(|(child, _)| *child);
        found.extend(children.filter(|child| seen.insert(*child)));
    }
    found.split_off(of.len())
}

/// Whether a process has a name, or runs a program of that name: runtimes call their first thread as they like, Node from
/// 24 on `MainThread`.
pub(super) fn is_called(pid: Pid, name: &str) -> bool {
    if procfs::comm(pid).is_ok_and(|comm| same_comm(&comm, name)) {
        return true;
    }
    procfs::exe(pid).ok().flatten().is_some_and(|exe| is_program(&exe, name))
}

/// Whether what `/proc/PID/exe` leads to is a program of this name, also one that was replaced by an upgrade since it was
/// started: the kernel appends a word then.
fn is_program(exe: &Path, name: &str) -> bool {
    let file = exe.file_name().map(|file| file.as_encoded_bytes()).unwrap_or_default();
    file.strip_suffix(b" (deleted)").unwrap_or(file) == name.as_bytes()
}

/// The processes that have a name now, or run a program of that name; without this one.
pub fn processes_called(name: &str) -> Vec<Pid> {
    let own = Pid(std::process::id());
    running_pids().into_iter().filter(|pid| *pid != own && is_called(*pid, name)).collect()
}

/// Whether any thread of any process has this name.
pub(super) fn is_a_thread_called(name: &str) -> bool {
    let own = Pid(std::process::id());
    let mut processes = running_pids().into_iter().filter(|pid| *pid != own);
    let is_called = |pid: Pid, tid: Tid| procfs::thread_comm(pid, tid).is_ok_and(|comm| same_comm(&comm, name));
    processes.any(|pid| procfs::threads(pid).unwrap_or_default().into_iter().any(|tid| is_called(pid, tid)))
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

/// Device and inode of this program's file, and its process.
pub(super) fn own_file() -> Option<(u64, u64, Pid)> {
    let own = std::fs::metadata("/proc/self/exe").ok()?;
    Some((own.dev(), own.ino(), Pid(std::process::id())))
}

/// CPU time in seconds and the largest resident size in bytes of this process so far.
pub(super) fn own_cost() -> (f64, u64) {
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
    #[expect(clippy::cast_precision_loss, reason = "CPU time for people")]
    let cpu_s = ran_ns as f64 / 1e9;
    (cpu_s, kib.unwrap_or(0).saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_keeps_its_name_when_its_file_is_replaced() {
        assert!(is_program(Path::new("/usr/bin/node"), "node"));
        assert!(is_program(Path::new("/usr/bin/node (deleted)"), "node"));
        assert!(!is_program(Path::new("/usr/bin/nodejs"), "node") && !is_program(Path::new("/"), "node"));
    }

    #[test]
    fn descendants_are_all_generations_once() {
        let parents = [(2, 1), (3, 2), (4, 2), (5, 4), (6, 1), (7, 8), (8, 7)].map(|(pid, of)| (Pid(pid), Pid(of)));
        assert_eq!(descendants(&[Pid(2)], &parents), [3, 4, 5].map(Pid));
        assert_eq!(descendants(&[Pid(4), Pid(2)], &parents), [5, 3].map(Pid));
        assert_eq!(descendants(&[Pid(7)], &parents), [Pid(8)]);
        assert_eq!(descendants(&[], &parents), []);
    }

    #[test]
    fn a_process_is_called_as_its_thread_or_its_program_is() {
        let scratch = tempfile::tempdir().unwrap();
        let script = scratch.path().join("wrapper");
        std::fs::write(&script, "#!/bin/sh\nread line\n").unwrap();
        std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let mut child = std::process::Command::new(&script).stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pid = Pid(child.id());
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
        assert!(is_called(pid, "wrapper"));
        assert!(is_called(pid, program.file_name().unwrap().to_str().unwrap()));
        assert!(!is_called(pid, "MainThread"));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
