//! What this process may do, checked before the kernel refuses it with a bare errno.

use std::fs;

/// Capability numbers, from `include/uapi/linux/capability.h`.
const CAP_SYS_PTRACE: u32 = 19;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

/// Inode of the initial pid namespace (`PROC_PID_INIT_INO` in `include/linux/proc_ns.h`).
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// What the kernel will let this process do.
#[derive(Clone, Debug)]
pub struct Access {
    /// Effective capabilities, one bit each.
    capabilities: u64,
    /// `kernel.perf_event_paranoid`; `None` without perf events.
    pub perf_event_paranoid: Option<i32>,
    /// Whether pids here are the kernel's own.
    pub in_initial_pid_namespace: bool,
}

impl Access {
    /// Reads /proc.
    pub fn of_this_process() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self {
            capabilities: effective_capabilities(&status),
            perf_event_paranoid: fs::read_to_string("/proc/sys/kernel/perf_event_paranoid")
                .ok()
                .and_then(|text| text.trim().parse().ok()),
            in_initial_pid_namespace: fs::read_link("/proc/self/ns/pid")
                .is_ok_and(|link| link.as_os_str() == INITIAL_PID_NAMESPACE),
        }
    }

    /// The capabilities that are missing for a recording, by name.
    pub fn missing(&self) -> Vec<&'static str> {
        if self.has(CAP_SYS_ADMIN) && self.has(CAP_SYS_PTRACE) {
            return Vec::new();
        }
        let mut missing = Vec::new();
        if !self.has(CAP_SYS_ADMIN) {
            if self.perf_event_paranoid.is_some_and(|level| level > 2) {
                // Debian's kernels: perf_event_open wants CAP_SYS_ADMIN there, whatever else one has.
                missing.push("CAP_SYS_ADMIN (kernel.perf_event_paranoid is above 2; at 2, CAP_BPF and CAP_PERFMON do)");
            } else {
                for (number, name) in [(CAP_BPF, "CAP_BPF"), (CAP_PERFMON, "CAP_PERFMON")] {
                    if !self.has(number) {
                        missing.push(name);
                    }
                }
            }
        }
        if !self.has(CAP_SYS_PTRACE) {
            missing.push("CAP_SYS_PTRACE");
        }
        missing
    }

    fn has(&self, capability: u32) -> bool {
        self.capabilities & (1 << capability) != 0
    }
}

/// Whether this process has the capability with that number.
pub fn has_capability(number: u32) -> bool {
    number < 64 && Access::of_this_process().has(number)
}

fn effective_capabilities(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(capabilities: &[u32], paranoid: i32) -> Access {
        Access {
            capabilities: capabilities.iter().fold(0, |mask, number| mask | 1 << number),
            perf_event_paranoid: Some(paranoid),
            in_initial_pid_namespace: true,
        }
    }

    #[test]
    fn each_missing_capability_is_named() {
        assert!(access(&[CAP_SYS_ADMIN, CAP_SYS_PTRACE], 4).missing().is_empty());
        assert!(access(&[CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE], 2).missing().is_empty());
        assert_eq!(access(&[CAP_BPF], 2).missing(), ["CAP_PERFMON", "CAP_SYS_PTRACE"]);
        assert_eq!(
            access(&[CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE], 3).missing(),
            ["CAP_SYS_ADMIN (kernel.perf_event_paranoid is above 2; at 2, CAP_BPF and CAP_PERFMON do)"]
        );
    }

    #[test]
    fn the_mask_is_read_from_status() {
        assert_eq!(effective_capabilities("Name:\tx\nCapEff:\t000001ffffffffff\n"), 0x1ff_ffff_ffff);
        assert_eq!(effective_capabilities("Name:\tx\n"), 0);
    }
}
