//! What frames look like: what a flamegraph, the page and folded lines tell them apart by.

use super::color::Class;
use super::frame_names::{frame_name, merge_tiers, task_frames};
use super::options::OutputOptions;
use super::process_names::ProcessNames;
use crate::profile::{FrameRef, MergeBy, Profile, Task};

/// Stands for callees that did not fit into a tree.
pub(crate) const TOO_MANY_FRAMES: &str = "[too many frames]";

/// What one frame looks like. Frames that look alike are one, whatever their address or module.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Look {
    /// The name, made printable.
    pub(crate) name: String,
    /// Which colour it gets.
    pub(crate) class: Class,
}

impl Look {
    /// A word of jitprof's own.
    pub(crate) fn note(name: &str) -> Self {
        Self { name: name.to_owned(), class: Class::Note }
    }
}

/// Merges frames that look alike in an output.
pub(super) struct Looks<'o> {
    options: &'o OutputOptions,
    processes: ProcessNames,
    dress: fn(Look) -> Look,
}

impl<'o> Looks<'o> {
    /// For an output of these profiles. `dress` makes a look fit for the format before it is compared, so that what it
    /// makes equal is merged.
    pub(super) fn new(profiles: &[&Profile], options: &'o OutputOptions, dress: fn(Look) -> Look) -> Self {
        Self { options, processes: ProcessNames::of(profiles), dress }
    }
}

impl<'p> MergeBy<'p> for Looks<'_> {
    type Frame = Look;

    fn frame(&self, frame: FrameRef<'p>) -> Look {
        let frame = if self.options.merge_tiers { merge_tiers(frame) } else { frame };
        (self.dress)(Look { name: frame_name(frame, self.options.lines), class: Class::of(frame) })
    }

    fn task(&self, task: &Task) -> Vec<Look> {
        let names = task_frames(task, self.options, &self.processes).into_iter();
        names.map(|name| (self.dress)(Look { name, class: Class::Task })).collect()
    }
}
