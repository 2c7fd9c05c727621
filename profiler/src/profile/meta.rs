//! What a profile says about the run as a whole, and about the tasks in it.

use std::hash::{Hash, Hasher};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::labels::Labels;
use jitprof_common::units::{MonoNs, Pid, Tid};

/// What the sampling timer counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampledEvent {
    /// The kernel's high-resolution timer while the task ran (`cpu-clock`).
    CpuClock,
    /// Hardware cycles, with the period adjusted by the kernel to reach the frequency.
    Cycles,
    /// No timer: counts are nanoseconds spent in the spans of a trace log.
    SpanTime,
}

impl SampledEvent {
    /// The name that `--event` takes and that outputs show.
    pub fn name(self) -> &'static str {
        match self {
            Self::CpuClock => "cpu-clock",
            Self::Cycles => "cycles",
            Self::SpanTime => "span time",
        }
    }
}

/// The run that a profile comes from.
#[derive(Clone, Debug)]
pub struct ProfileMeta {
    /// Title for outputs that show one, unsanitized.
    pub title: String,
    /// Wall-clock time at which the recording began.
    pub start_time: SystemTime,
    /// The same time as a timestamp of the samples' clock.
    pub start: MonoNs,
    /// How long the recording took.
    pub duration: Duration,
    /// Samples per second and busy CPU that were asked for.
    pub frequency_hz: NonZeroU32,
    /// What the timer counted.
    pub event: SampledEvent,
}

impl ProfileMeta {
    /// The CPU time that one sample stands for, in nanoseconds.
    pub fn period_ns(&self) -> u64 {
        1_000_000_000 / u64::from(self.frequency_hz.get())
    }
}

/// A thread under one name. A thread that renames itself is a new task.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Task {
    /// The process that the thread belongs to.
    pub pid: Pid,
    /// When that process started. It tells two processes with the same pid apart, and is only ever compared, so any
    /// unit will do as long as a run keeps to it.
    pub process_start: u64,
    /// The thread's kernel id.
    pub tid: Tid,
    /// The thread's name, unsanitized.
    pub comm: Arc<str>,
    /// What else is known about the process.
    pub labels: Arc<Labels>,
}

impl Hash for Task {
    /// Without the labels: a task is looked up for every sample, and a thread under one name has few sets of them.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.pid, self.process_start, self.tid, &self.comm).hash(state);
    }
}
