//! What to record.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::kernel::Event;
use crate::process::hierarchy::GroupQuery;
use crate::units::{Pid, Tid};

/// Who is profiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Targets {
    /// Every process.
    All,
    /// These, with their threads.
    Processes(Vec<Pid>),
    /// These threads only.
    Threads(Vec<Tid>),
    /// Processes and threads of this name.
    Comm(String),
    /// Processes that answer every question that is asked, now or later.
    Matching(Selector),
}

/// Questions about processes. Of each kind, one value is enough; kinds without any are not asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    pub(super) fn names_processes(&self) -> bool {
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallGraph {
    /// By unwind rows: those of mapped files, those that runtimes record, and those made from code bytes; by frame
    /// pointers where there are none.
    Auto,
    /// The same without rows from code bytes.
    EhFrame,
    /// By frame pointers alone.
    FramePointers,
}

/// How a run is made.
#[derive(Clone, Debug)]
pub struct RecordOptions {
    /// Who.
    pub targets: Targets,
    /// Follow the children of processes that were chosen by number or name.
    pub inherit: bool,
    /// Samples per second and busy CPU.
    pub frequency_hz: u32,
    /// The event; `None`: cycles where there are any, else the CPU clock.
    pub event: Option<Event>,
    /// Kernel frames.
    pub kernel_stack: bool,
    /// User frames.
    pub user_stack: bool,
    /// How user stacks are walked.
    pub call_graph: CallGraph,
    /// Kernel memory for unwind rows in MiB, 1 to 1024; `None`: as much as the targets may need.
    pub unwind_mib: Option<u32>,
    /// Read names from the target's memory that its runtime has not written yet.
    pub peek: bool,
    /// GSYM files, and directories of such, that name programs without debug information by their build id.
    pub gsym: Vec<PathBuf>,
    /// Title of the profile.
    pub title: String,
    /// Width of the profile's time buckets; [`Duration::MAX`] for one.
    pub bucket: Duration,
    /// Say more about each process than its number and names; `None`: do not.
    pub labels: Option<LabelOptions>,
    /// Log rare events of the kernel part.
    pub log_kernel: bool,
}

/// How processes are labelled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelOptions {
    /// What the host is called; empty for no such label.
    pub host: String,
}

impl LabelOptions {
    /// With the name that the kernel has for this host. In a container without the host's UTS namespace it is the
    /// container's.
    pub fn of_this_host() -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Self { host: host.trim().to_owned() }
    }
}
