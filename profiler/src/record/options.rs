//! What to record.

use std::path::PathBuf;
use std::time::Duration;

use jitprof_common::units::{Pid, Tid};

use crate::engine::{CallGraph, InterpreterFrames, Selector};
use crate::kernel::Event;

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
    /// Read what targets' runtimes know of their own code.
    pub read_runtime: bool,
    /// Set breakpoints in targets where they register code with a debugger, so that it is known when they do.
    pub probe_registrations: bool,
    /// Which frames of interpreters are wanted.
    pub interpreter: InterpreterFrames,
    /// Compare each name of generated code with a second source, where there is one.
    pub verify_names: bool,
    /// GSYM files, and directories of such, that name programs without debug information by their build id.
    pub gsym: Vec<PathBuf>,
    /// Title of the profile.
    pub title: String,
    /// Width of the profile's time buckets; [`Duration::MAX`] for one.
    pub bucket: Duration,
    /// Say more about each process than its number and names; `None`: do not.
    pub labels: Option<LabelOptions>,
    /// It is recorded in windows, without an end: nobody waits for what a single process does.
    pub continuous: bool,
    /// Log rare events of the BPF program.
    pub log_kernel: bool,
    /// Write down everything that goes into the engine, see [`capture`](crate::capture).
    pub capture: Option<PathBuf>,
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
