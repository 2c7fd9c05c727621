//! What a recording without end hands out, and what it is told meanwhile.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::profile::Profile;
use crate::units::MonoNs;

/// How a recording without end is cut.
#[derive(Clone, Copy, Debug)]
pub struct WindowOptions {
    /// Length of a window.
    pub length: Duration,
    /// How long a window stays open after its end for names that come late.
    pub grace: Duration,
}

/// What was sampled between two times, every sample named as well as it ever will be. A sample that came later than the
/// grace is in the next window, under its own time.
#[derive(Debug)]
pub struct Window {
    /// Begins at `meta().start`.
    pub profile: Profile,
    /// Where it ends.
    pub end: MonoNs,
    /// How the recording stood when it was cut.
    pub health: Health,
}

/// Counts since the start of the recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Samples taken by the kernel part.
    pub taken: u64,
    /// Of these, brought to userspace.
    pub delivered: u64,
    /// Of these, lost because the ring was full, or not readable.
    pub lost: u64,
    /// Nanoseconds that the kernel part spent on samples.
    pub kernel_ns: u64,
    /// Samples that wait for names now.
    pub waiting: usize,
    /// User stacks that reached their entry point.
    pub complete_stacks: u64,
    /// User stacks that did not.
    pub cut_stacks: u64,
    /// Frames of generated code with a name.
    pub named_jit_frames: u64,
    /// Frames of generated code without one.
    pub unnamed_jit_frames: u64,
    /// Processes known to run.
    pub processes: usize,
    /// Functions announced by runtimes that live now.
    pub functions: usize,
    /// Samples per second and busy CPU that are asked for now.
    pub frequency_hz: u32,
    /// What the profile had no room for.
    pub overflowed: u64,
}

/// What a recording without end is told.
pub enum Command {
    /// Copy what was sampled in `from..to` and is in no window yet. Answered when all of it is named. The copy begins
    /// at `from`, or where the last window ended if that is later.
    Snapshot {
        /// First moment.
        from: MonoNs,
        /// First moment that is not wanted.
        to: MonoNs,
        /// How long after `to` names are waited for at most.
        patience: Duration,
        /// Takes the copy. Called on the recording's thread: it must not wait.
        reply: Box<dyn FnOnce(Profile) + Send>,
    },
    /// Sample at another frequency from now on.
    Frequency(NonZeroU32),
    /// Memory is short, or is so no longer: keep less of what can be had again.
    Tight(bool),
    /// Hand out what there is now as a window, without a grace.
    Cut,
}
