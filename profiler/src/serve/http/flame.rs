//! Stacks of one or two profiles merged by what is shown: the tree behind the page's flamegraph and its tables.

use std::borrow::Cow;

use indexmap::IndexMap;
use rustc_hash::FxHashMap;

use crate::output::{Class, frame_name, printable};
use crate::profile::{FrameId, Profile, Task, TaskId, label_of, shorten};

/// Most nodes of a tree: 2^20 of 48 bytes and as much for finding them, about 100 MiB. What does not fit is counted
/// under a note, at most one for each node.
const MAX_NODES: usize = 1 << 20;
const TREE_FULL: &str = "[too many frames]";
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
}

/// What one frame looks like. Frames that look alike are one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Look {
    pub(super) name: String,
    pub(super) class: Class,
}

/// CPU nanoseconds of each side; a tree of one profile has the first only.
pub(super) type Weights = [u64; 2];

/// What is known about all frames that look alike.
#[derive(Clone, Debug, Default)]
pub(super) struct Details {
    /// The file of the code, of the frame that came first.
    pub(super) module: String,
    /// Source file and line of the same; 0 where the line is not known.
    pub(super) source: Option<(String, u32)>,
    /// CPU time of stacks that end here.
    pub(super) own: Weights,
    /// CPU time of stacks that it is in, recursion counted once.
    pub(super) total: Weights,
}

/// One frame with everything called from it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Node {
    /// Position of the caller, smaller than the node's own; the root's is 0.
    pub(super) parent: usize,
    /// Position among the looks; meaningless for the root.
    pub(super) look: usize,
    /// CPU time that ends here.
    pub(super) own: Weights,
    /// CPU time here or further down.
    pub(super) total: Weights,
}

/// Merged stacks.
pub(super) struct Flame {
    pub(super) looks: IndexMap<Look, Details>,
    pub(super) nodes: Vec<Node>,
    /// Samples of each side.
    pub(super) samples: Weights,
    children: FxHashMap<(usize, usize), usize>,
    shape: Shape,
}

impl Flame {
    /// An empty tree.
    pub(super) fn new(shape: Shape) -> Self {
        Self {
            looks: IndexMap::new(),
            nodes: vec![Node::default()],
            samples: [0; 2],
            children: FxHashMap::default(),
            shape,
        }
    }

    /// Adds all rows of a profile to a side.
    pub(super) fn add(&mut self, profile: &Profile, side: usize) {
        let frame_looks: Vec<usize> = profile.frame_ids().map(|frame| self.frame_look(profile, frame)).collect();
        let mut task_looks: FxHashMap<TaskId, Vec<usize>> = FxHashMap::default();
        let (mut frames, mut path) = (Vec::new(), Vec::new());
        for row in profile.rows_without_time() {
            path.clear();
            let task = task_looks.entry(row.task).or_insert_with(|| self.task_looks(profile.task_of(row.task)));
            path.extend_from_slice(task);
            profile.frames_of(row.stack, &mut frames);
            let shown = frames.iter().map(|frame| frame_looks[frame.index()]);
            if self.shape.reverse {
                path.extend(shown.rev());
            } else {
                path.extend(shown);
            }
            let node = self.node_of(&path);
            let own = &mut self.nodes[node].own[side];
            *own = own.saturating_add(row.cpu_ns);
            self.samples[side] = self.samples[side].saturating_add(row.count);
        }
    }

    /// Sums up; call it once, behind the last [`Self::add`].
    pub(super) fn finish(&mut self) {
        for index in (0..self.nodes.len()).rev() {
            let Node { parent, own, .. } = self.nodes[index];
            add(&mut self.nodes[index].total, own);
            if index != parent {
                let total = self.nodes[index].total;
                add(&mut self.nodes[parent].total, total);
            }
        }
        self.sum_up_looks();
    }

    /// Own and total time of each look. A look's total is counted at its outermost frame on each path.
    fn sum_up_looks(&mut self) {
        let order = self.preorder(|_, _| true);
        let mut on_path = vec![0_u32; self.looks.len()];
        let mut path: Vec<usize> = Vec::new();
        for (depth, index) in order {
            for look in path.drain(depth.min(path.len())..) {
                on_path[look] -= 1;
            }
            let Node { look, own, total, .. } = self.nodes[index];
            let details = &mut self.looks[look];
            add(&mut details.own, own);
            if on_path[look] == 0 {
                add(&mut details.total, total);
            }
            on_path[look] += 1;
            path.push(look);
        }
    }

    /// Depth (from 0) and position of every node but the root, callers before callees, siblings by name. What `keep`
    /// (given parent and node) does not want is left out with everything below.
    pub(super) fn preorder(&self, keep: impl Fn(&Node, &Node) -> bool) -> Vec<(usize, usize)> {
        let mut by_name: Vec<usize> = (0..self.looks.len()).collect();
        by_name.sort_unstable_by_key(|&look| self.looks.get_index(look).map(|(look, _)| look));
        let mut ranks = vec![0; by_name.len()];
        for (rank, look) in by_name.into_iter().enumerate() {
            ranks[look] = rank;
        }
        let mut edges: Vec<(usize, usize, usize)> = (1..self.nodes.len())
            .filter(|&index| keep(&self.nodes[self.nodes[index].parent], &self.nodes[index]))
            .map(|index| (self.nodes[index].parent, ranks[self.nodes[index].look], index))
            .collect();
        edges.sort_unstable();
        let mut first = vec![0; self.nodes.len() + 1];
        for edge in &edges {
            first[edge.0 + 1] += 1;
        }
        for index in 0..self.nodes.len() {
            first[index + 1] += first[index];
        }
        let children = |index: usize| edges[first[index]..first[index + 1]].iter().rev().map(|edge| edge.2);
        let mut open: Vec<(usize, usize)> = children(0).map(|index| (0, index)).collect();
        let mut order = Vec::with_capacity(edges.len());
        while let Some((depth, index)) = open.pop() {
            order.push((depth, index));
            open.extend(children(index).map(|child| (depth + 1, child)));
        }
        order
    }

    fn frame_look(&mut self, profile: &Profile, frame: FrameId) -> usize {
        let frame = profile.frame(frame);
        let name = named(&frame_name(frame, self.shape.lines)).into_owned();
        let look = Look { name, class: Class::of(frame) };
        let index = self.look(look);
        let details = &mut self.looks[index];
        if details.module.is_empty()
            && let Some(module) = frame.module
        {
            details.module = printable(module.path).into_owned();
        }
        if details.source.is_none()
            && let Some((file, line)) = frame.source
        {
            details.source = Some((printable(file).into_owned(), line));
        }
        index
    }

    fn task_looks(&mut self, task: &Task) -> Vec<usize> {
        let names: Vec<String> = self.shape.group.iter().map(|label| group_name(task, label)).collect();
        names.into_iter().map(|name| self.look(Look { name, class: Class::Task })).collect()
    }

    fn look(&mut self, look: Look) -> usize {
        let entry = self.looks.entry(look);
        let index = entry.index();
        entry.or_default();
        index
    }

    fn node_of(&mut self, path: &[usize]) -> usize {
        let mut node = 0;
        for &look in path {
            node = match self.children.get(&(node, look)) {
                Some(&child) => child,
                None if self.nodes.len() < MAX_NODES => self.new_child(node, look),
                None => return self.full_child(node),
            };
        }
        node
    }

    fn full_child(&mut self, parent: usize) -> usize {
        let look = self.look(Look { name: TREE_FULL.to_owned(), class: Class::Note });
        let known = self.children.get(&(parent, look)).copied();
        known.unwrap_or_else(|| self.new_child(parent, look))
    }

    fn new_child(&mut self, parent: usize, look: usize) -> usize {
        let child = self.nodes.len();
        self.nodes.push(Node { parent, look, ..Node::default() });
        self.children.insert((parent, look), child);
        child
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

fn add(sum: &mut Weights, more: Weights) {
    for (sum, more) in sum.iter_mut().zip(more) {
        *sum = sum.saturating_add(more);
    }
}
