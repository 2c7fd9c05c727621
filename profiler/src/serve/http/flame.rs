//! The call tree behind the page's flamegraph and its tables, and what is known of its frames.

use std::borrow::Cow;

use crate::output::color::Class;
use crate::output::frame_names::{frame_name, merge_tiers};
use crate::output::look::{Look, TOO_MANY_FRAMES};
use crate::profile::printable;
use crate::profile::{CallTree, Direction, FrameRef, MergeBy, Profile, Task, TreeLayout, label_of, shorten};

/// Most nodes of a tree: about 100 MiB while it grows.
const MAX_NODES: usize = 1 << 20;
/// Longest name, in bytes.
const MAX_NAME_BYTES: usize = 512;

/// How stacks are merged.
#[derive(Clone, Debug, Default)]
pub(super) struct Shape {
    /// Labels that stand as outermost frames.
    pub(super) group: Vec<String>,
    /// The leaf becomes the root.
    pub(super) reverse: bool,
    /// Keeps the lines of a function apart.
    pub(super) lines: bool,
    /// A function is one frame whatever its tier.
    pub(super) merge_tiers: bool,
}

impl<'p> MergeBy<'p> for Shape {
    type Frame = Look;

    fn frame(&self, frame: FrameRef<'p>) -> Look {
        let frame = if self.merge_tiers { merge_tiers(frame) } else { frame };
        Look { name: named(&frame_name(frame, self.lines)).into_owned(), class: Class::of(frame) }
    }

    fn task(&self, task: &Task) -> Vec<Look> {
        self.group.iter().map(|label| Look { name: group_name(task, label), class: Class::Task }).collect()
    }
}

/// Where the code of frames that look alike comes from. Of several places it is the first by name, so that it does not
/// depend on the order of the samples.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Origin<'p> {
    /// The file of the code.
    pub(super) module: Option<&'p str>,
    /// Source file and line; 0 where the line is not known.
    pub(super) source: Option<(&'p str, u32)>,
}

/// Merged stacks of one profile, or of two.
pub(super) struct Flame<'p> {
    pub(super) tree: CallTree<Look>,
    /// What each frame came from, by number of the frame.
    pub(super) origins: Vec<Origin<'p>>,
}

impl<'p> Flame<'p> {
    /// A side that is not there has no samples.
    pub(super) fn new(sides: [Option<&'p Profile>; 2], shape: &Shape) -> Self {
        let direction = if shape.reverse { Direction::LeafFirst } else { Direction::RootFirst };
        let layout = TreeLayout { direction, max_nodes: MAX_NODES, rest: Look::note(TOO_MANY_FRAMES) };
        let tree = CallTree::new(sides, shape, layout);
        let mut origins = vec![Origin::default(); tree.frames().len()];
        for (side, profile) in sides.into_iter().enumerate() {
            let Some(profile) = profile else { continue };
            for id in profile.frame_ids() {
                if let Some(number) = tree.number_of(side, id) {
                    origins[number].add(profile.frame(id));
                }
            }
        }
        Self { tree, origins }
    }
}

impl<'p> Origin<'p> {
    fn add(&mut self, frame: FrameRef<'p>) {
        let module = frame.module.map(|module| module.path);
        let source = frame.source.filter(|source| !source.file.is_empty()).map(|source| (source.file, source.line));
        self.module = self.module.into_iter().chain(module).min();
        self.source = self.source.into_iter().chain(source).min();
    }
}

/// What a task's outermost frame says about a label of it.
fn group_name(task: &Task, label: &str) -> String {
    let value = label_of(task, label);
    let shown = value.as_deref().map(printable);
    let name: Cow<'_, str> = match (label, shown) {
        ("pid", _) => {
            let comm = label_of(task, "comm").unwrap_or_default();
            format!("{} ({})", printable(&comm), task.pid).into()
        }
        ("comm" | "thread", Some(value)) => value,
        (_, Some(value)) => format!("{label} {value}").into(),
        (_, None) => format!("no {label}").into(),
    };
    named(&name).into_owned()
}

/// A name as it is sent.
pub(super) fn named(name: &str) -> Cow<'_, str> {
    shorten(name, MAX_NAME_BYTES)
}
