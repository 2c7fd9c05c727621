//! What jitprof itself uses, from /proc.

use std::fs;

/// What `/proc/self` says of this process now.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Own {
    /// Nanoseconds that each thread has run, by its name; threads of one name are added up.
    pub(super) cpu_ns: Vec<(String, u64)>,
    /// Resident memory, as `top` shows it.
    pub(super) resident_bytes: u64,
    /// The most that it ever was.
    pub(super) peak_resident_bytes: u64,
    /// Open file descriptors; `None` if there is not even one left to count them by.
    pub(super) open_files: Option<usize>,
    /// How many file descriptors are allowed.
    pub(super) max_files: Option<u64>,
}

impl Own {
    pub(super) fn now() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self {
            cpu_ns: cpu_by_thread(),
            resident_bytes: status_bytes(&status, "VmRSS:"),
            peak_resident_bytes: status_bytes(&status, "VmHWM:"),
            open_files: open_files(),
            max_files: rustix::process::getrlimit(rustix::process::Resource::Nofile).current,
        }
    }
}

/// How many file descriptors are open; `None` if that cannot be found out.
pub(in crate::serve) fn open_files() -> Option<usize> {
    // One of them reads the directory.
    Some(fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1))
}

fn cpu_by_thread() -> Vec<(String, u64)> {
    let mut by_name: Vec<(String, u64)> = Vec::new();
    for task in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        // A thread that ends meanwhile has no files any more.
        let Ok(name) = fs::read_to_string(task.path().join("comm")) else { continue };
        let Ok(ran) = fs::read_to_string(task.path().join("schedstat")) else { continue };
        let ran_ns = ran.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0_u64);
        match by_name.iter_mut().find(|(known, _)| *known == name.trim_end()) {
            Some((_, sum)) => *sum = sum.saturating_add(ran_ns),
            None => by_name.push((name.trim_end().to_owned(), ran_ns)),
        }
    }
    by_name.sort();
    by_name
}

fn status_bytes(status: &str, key: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_run_and_holds_memory_and_files() {
        let own = Own::now();
        assert!(own.cpu_ns.iter().any(|(_, ns)| *ns > 0), "{own:?}");
        assert!(own.resident_bytes > 1 << 20 && own.peak_resident_bytes >= own.resident_bytes, "{own:?}");
        let before = open_files().unwrap();
        let more: Vec<_> = (0..10).map(|_| fs::File::open("/dev/null").unwrap()).collect();
        assert!(open_files().unwrap() + 5 >= before + more.len(), "other tests open and close files meanwhile");
    }

    #[test]
    fn sizes_are_read_from_status() {
        assert_eq!(status_bytes("VmPeak:\t 1 kB\nVmRSS:\t   12 kB\n", "VmRSS:"), 12 << 10);
        assert_eq!(status_bytes("", "VmRSS:"), 0);
    }
}
