//! Windows of a continuous recording, and copies of what is in none yet.

use std::time::Duration;

use jitprof_common::units::MonoNs;

use crate::account::{Naming, ProcessNaming};
use crate::cost::Costs;
use crate::profile::Profile;

/// Snapshots that wait at most; further ones are answered at once, with what there is.
const MAX_SNAPSHOTS: usize = 64;

/// Counts since the start of the recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Samples taken by the BPF program.
    pub taken: u64,
    /// Of these, brought to userspace.
    pub delivered: u64,
    /// Of these, lost because the ring was full, or not readable.
    pub lost: u64,
    /// Nanoseconds that the BPF program spent on samples.
    pub kernel_ns: u64,
    /// CPU time by what it was for.
    pub costs: Costs,
    /// Samples that wait for names now.
    pub waiting: usize,
    /// User stacks that reached their entry point.
    pub complete_stacks: u64,
    /// User stacks that did not.
    pub cut_stacks: u64,
    /// Frames of generated code, by what named them or why they have no name.
    pub jit_frames: Naming,
    /// The same of single processes, those with the most unnamed ones first.
    pub naming: Vec<ProcessNaming>,
    /// Processes known to run.
    pub processes: usize,
    /// Functions announced by runtimes that live now.
    pub functions: usize,
    /// Samples per second and busy CPU that are asked for now.
    pub frequency_hz: u32,
    /// What the profile had no room for.
    pub overflowed: u64,
}

/// A copy that somebody waits for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) token: u64,
    pub(super) from: MonoNs,
    pub(super) to: MonoNs,
    pub(super) patience: Duration,
}

/// What has become due.
#[derive(Clone, Copy, Debug)]
pub(super) enum Due {
    /// A copy: all that it is of has its names, or has waited long enough.
    Snapshot(Wanted),
    /// The open window, at its end.
    Window,
}

/// Windows as long as this have the tables of runtimes read once more at their end. A reading rests for 49 times what it
/// has taken, five seconds at most: this makes it a tenth more at most.
const LAST_LOOK_LENGTH: Duration = Duration::from_secs(50);

/// Where the windows stand.
#[derive(Debug)]
pub(super) struct Windows {
    length: Duration,
    grace: Duration,
    /// Where the open window begins.
    begin: MonoNs,
    /// What its last samples were named by has been looked at again.
    looked: bool,
    snapshots: Vec<Wanted>,
}

impl Windows {
    /// The first window begins at a time.
    pub(super) fn new(length: Duration, grace: Duration, begin: MonoNs) -> Self {
        Self { length, grace, begin, looked: false, snapshots: Vec::new() }
    }

    /// Where the open window begins.
    pub(super) fn begin(&self) -> MonoNs {
        self.begin
    }

    /// Where it ends.
    pub(super) fn end(&self) -> MonoNs {
        self.begin.after(self.length)
    }

    /// The open window has been closed at `end`.
    pub(super) fn close(&mut self, end: MonoNs) {
        (self.begin, self.looked) = (end, false);
    }

    /// Whether the open window has just ended, and is long enough for one more reading of the tables of runtimes: its last
    /// samples would otherwise wait for it longer than for everything else that comes late.
    pub(super) fn takes_last_look(&mut self, now: MonoNs) -> bool {
        let is_due = now >= self.end() && self.length >= LAST_LOOK_LENGTH;
        is_due && !std::mem::replace(&mut self.looked, true)
    }

    /// When the last window has ended, closed or not, if what processes announce may be read seldom: nobody waits for a copy.
    pub(super) fn calm_since(&self, now: MonoNs) -> Option<MonoNs> {
        let ended = if now >= self.end() { self.end() } else { self.begin };
        (!self.has_snapshots()).then_some(ended)
    }

    /// Whether a copy is waited for.
    pub(super) fn has_snapshots(&self) -> bool {
        !self.snapshots.is_empty()
    }

    /// Waits for a copy; returns it if there are too many.
    pub(super) fn want(&mut self, wanted: Wanted) -> Option<Wanted> {
        if self.snapshots.len() >= MAX_SNAPSHOTS {
            return Some(wanted);
        }
        self.snapshots.push(wanted);
        None
    }

    /// Everything that is waited for: the recording ends.
    pub(super) fn take_all(&mut self) -> Vec<Wanted> {
        std::mem::take(&mut self.snapshots)
    }

    /// What has become due. `is_resolved` says whether every sample before a time is in the profile.
    pub(super) fn due(&mut self, now: MonoNs, is_resolved: impl Fn(MonoNs) -> bool) -> Vec<Due> {
        let is_due = |wanted: &Wanted| {
            let latest = wanted.to.after(wanted.patience);
            now >= wanted.to && (now >= latest || is_resolved(wanted.to))
        };
        let mut due: Vec<Due> = self.snapshots.extract_if(.., |wanted| is_due(wanted)).map(Due::Snapshot).collect();
        if now >= self.end().after(self.grace) {
            due.push(Due::Window);
        }
        due
    }

    /// A copy of what was sampled in a time and is in no window yet: what was sampled earlier is in those that were
    /// handed out.
    pub(super) fn copy(&self, profile: &Profile, wanted: &Wanted) -> Profile {
        let start = wanted.from.max(self.begin);
        let mut copy = profile.select(start, |row| row.time >= wanted.from && row.time < wanted.to);
        copy.set_duration(Duration::from_nanos(wanted.to.0.saturating_sub(start.0)));
        copy
    }
}
