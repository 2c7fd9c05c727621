//! What the engine is told before it begins.

use std::fmt;
use std::num::NonZeroU32;

use jitprof_common::units::Pid;
use serde::{Deserialize, Serialize};

use crate::engine::selection::Who;
use crate::engine::tables::TableSizes;
use crate::process::hierarchy::GroupQuery;

/// Questions about processes. Of each kind, one value is enough; kinds without any are not asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selector {
    /// Processes, and the children that they start.
    pub pids: Vec<Pid>,
    /// Names of processes, of which the kernel keeps 15 bytes, and the children that they start.
    pub comms: Vec<String>,
    /// Real users, by name or number.
    pub users: Vec<String>,
    /// Control groups, containers and units, with what lies below.
    pub groups: GroupQuery,
    /// That nothing matches at the start is no error.
    pub may_come_later: bool,
}

impl Selector {
    /// Whether processes are asked for one by one.
    pub(crate) fn names_processes(&self) -> bool {
        !self.pids.is_empty() || !self.comms.is_empty()
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pids: Vec<String> = self.pids.iter().map(Pid::to_string).collect();
        let groups = &self.groups;
        let kinds = [
            ("pid", &pids),
            ("comm", &self.comms),
            ("user", &self.users),
            ("cgroup", &groups.paths),
            ("container", &groups.containers),
            ("unit", &groups.units),
        ];
        let asked = kinds.into_iter().filter(|(_, values)| !values.is_empty());
        for (index, (kind, values)) in asked.enumerate() {
            write!(f, "{}{kind} {}", if index == 0 { "" } else { " and " }, values.join(" or "))?;
        }
        Ok(())
    }
}

/// How user stacks are walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallGraph {
    /// By unwind rows: those of mapped files, those that runtimes record, and those made from code bytes; by frame
    /// pointers where there are none.
    Auto,
    /// The same without rows from code bytes.
    EhFrame,
    /// By frame pointers alone.
    FramePointers,
}

/// Which frames of programs that an interpreter runs are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterpreterFrames {
    /// The native ones of its evaluation loop.
    pub native: bool,
    /// Those that it keeps in a list of its own, which samples take along.
    pub listed: bool,
}

impl Default for InterpreterFrames {
    /// All of them.
    fn default() -> Self {
        Self { native: true, listed: true }
    }
}

/// How a recording is made, as far as it is decided without a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineOptions {
    /// Whose samples are taken.
    pub who: Who,
    /// Follow the children of processes that were chosen by number or name.
    pub inherit: bool,
    /// Samples per second and busy CPU.
    pub frequency_hz: NonZeroU32,
    /// How user stacks are walked.
    pub call_graph: CallGraph,
    /// How large the BPF program's tables are; without any, it walks by frame pointers alone.
    pub tables: Option<TableSizes>,
    /// Read names and code from targets' memory.
    pub peek: bool,
    /// Read what targets' runtimes know of their own code.
    #[serde(default)]
    pub read_runtime: bool,
    /// Which frames of interpreters are wanted.
    #[serde(default)]
    pub interpreter: InterpreterFrames,
    /// The BPF program walks lists of frames, and samples take them along.
    #[serde(default)]
    pub walks_lists: bool,
    /// Compare each name of generated code with a second source, where there is one.
    #[serde(default)]
    pub verify_names: bool,
    /// Say more about each process than its number and names; what the host is called, empty for no such label.
    pub labels_host: Option<String>,
    /// Title of the profile.
    pub title: String,
    /// Width of the profile's time buckets in nanoseconds; `u64::MAX` for one.
    pub bucket_ns: u64,
    /// Device and inode of jitprof's own file, and its process.
    pub own: Option<(u64, u64, Pid)>,
    /// Bits of a return address that are address, see `UnwindRules::code_mask`.
    pub code_mask: u64,
}
