//! Which process.

use jitprof_common::units::{MonoNs, Pid};
use serde::{Deserialize, Serialize};

use crate::process::procfs;

/// Which process: pids are reused, so a pid alone is none.
///
/// `start` is as first learned in this run (from /proc in steps of 10 ms, from a fork event exactly) and does not
/// change afterwards; compare it only with ids from the same recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessId {
    /// The number.
    pub pid: Pid,
    /// When it started.
    pub start: MonoNs,
}

impl ProcessId {
    /// Whether a process with this number and this start, as /proc gives it, is the same: /proc tells it in steps of
    /// 10 ms.
    pub fn has_start(self, start: MonoNs) -> bool {
        self.start.0.abs_diff(start.0) <= 20_000_000
    }

    /// Whether it still runs: asks /proc, and is not deceived by another process of the same number.
    pub fn runs(self) -> bool {
        procfs::stat(self.pid).is_ok_and(|stat| !stat.is_dead() && self.has_start(stat.start()))
    }
}
