//! The tree of calls: the stacks of one or two profiles, merged where their frames look alike from the root on.
//!
//! The flamegraph, the folded lines, the page and comparisons are drawn from it. Frames and nodes are numbered in the
//! order in which the profiles' rows have them, and [`preorder`](CallTree::preorder) orders siblings by value, so the
//! same samples give the same tree.

use std::hash::Hash;

use indexmap::IndexSet;
use rustc_hash::FxHashMap;

use super::amount::{Amount, Both, add_both};
use super::forest::{Forest, index, number, ranks};
use super::handle::FrameId;
use super::merge::{Direction, MergeBy, Paths, UNSEEN};
use super::table::Profile;
use super::totals::Used;

/// How stacks become a tree.
#[derive(Clone, Debug)]
pub struct TreeLayout<F> {
    /// Which end of a stack is the root.
    pub direction: Direction,
    /// Nodes at most: 72 bytes each, and as much again while the tree grows. A target that recurses through ever new
    /// names chooses how many it would like.
    pub max_nodes: usize,
    /// Stands for the callees of a node that did not fit; at most one for each node, beyond the limit.
    pub rest: F,
}

/// One frame under its callers.
#[derive(Clone, Copy, Debug)]
pub struct TreeNode {
    parent: u32,
    frame: u32,
    /// Samples and CPU time of stacks that end here.
    pub own: Both,
    /// Samples and CPU time of stacks that end here or further down.
    pub total: Both,
}

const _: () = assert!(size_of::<TreeNode>() == 72, "what TreeLayout says of memory rests on it");

/// Merged stacks of one profile, or of two beside each other.
#[derive(Debug)]
pub struct CallTree<F> {
    frames: IndexSet<F>,
    nodes: Vec<TreeNode>,
    /// For each side, the number that each frame of the profile has here.
    numbers: [Vec<u32>; 2],
}

impl TreeNode {
    fn new(parent: u32, frame: u32) -> Self {
        Self { parent, frame, own: Both::default(), total: Both::default() }
    }

    /// Position of the caller, smaller than the node's own; the root's is 0.
    pub fn parent(&self) -> usize {
        index(self.parent)
    }

    /// Number of the frame; meaningless for the root.
    pub fn frame(&self) -> usize {
        index(self.frame)
    }
}

impl<F: Eq + Hash> CallTree<F> {
    /// Merges the stacks of one or two profiles; a profile that is not there has no samples.
    ///
    /// Cost: sorts the profiles' rows, and a look-up for each frame that the row before did not have.
    pub fn new<'p, M: MergeBy<'p, Frame = F>>(sides: [Option<&'p Profile>; 2], by: &M, layout: TreeLayout<F>) -> Self {
        let direction = layout.direction;
        let mut builder = Builder::new(layout);
        for (side, profile) in sides.into_iter().enumerate() {
            let Some(profile) = profile else { continue };
            let mut paths = Paths::new(profile, direction);
            while let Some((path, amount)) = paths.next(by, &mut builder.tree.frames) {
                builder.add(path, side, amount);
            }
            builder.tree.numbers[side] = paths.into_numbers();
        }
        builder.finish()
    }

    /// The root, which has no frame, and everything below; a caller stands before its callees.
    pub fn nodes(&self) -> &[TreeNode] {
        &self.nodes
    }

    /// What the root has: all samples of each side.
    pub fn all(&self) -> Both {
        self.nodes[0].total
    }

    /// The frames in the order of their numbers, which count from 0.
    pub fn frames(&self) -> impl ExactSizeIterator<Item = &F> {
        self.frames.iter()
    }

    /// The frame of a number.
    ///
    /// # Panics
    /// There is no such frame.
    pub fn frame(&self, number: usize) -> &F {
        &self.frames[number]
    }

    /// The frame of a node.
    ///
    /// # Panics
    /// It is the root of an empty tree.
    pub fn frame_of(&self, node: usize) -> &F {
        self.frame(self.nodes[node].frame())
    }

    /// What each frame used, by its number: with all that it called, wherever it stands.
    ///
    /// Cost: sorts the nodes.
    pub fn used(&self) -> Vec<Used> {
        let mut used = vec![Used::default(); self.frames.len()];
        // The frames of the path, and how often each is on it: in recursion the outermost counts.
        let mut path: Vec<usize> = Vec::new();
        let mut on_path = vec![0_u32; self.frames.len()];
        let edges = (0..).zip(&self.nodes).skip(1).map(|(position, node)| (node.parent, position, position));
        for (depth, node) in Forest::new(self.nodes.len(), edges.collect()).preorder() {
            for left in path.drain(depth..) {
                on_path[left] -= 1;
            }
            let TreeNode { own, total, .. } = self.nodes[node];
            let frame = self.nodes[node].frame();
            add_both(&mut used[frame].own, own);
            if on_path[frame] == 0 {
                add_both(&mut used[frame].total, total);
            }
            on_path[frame] += 1;
            path.push(frame);
        }
        used
    }

    /// The number that a frame of a side's profile has here; `None` if no row of it has the frame.
    pub fn number_of(&self, side: usize, frame: FrameId) -> Option<usize> {
        self.numbers[side].get(frame.index()).filter(|&&number| number != UNSEEN).map(|&number| index(number))
    }
}

impl<F: Ord> CallTree<F> {
    /// Depth (from 0) and position of every node but the root: callers before callees, siblings in the order of their
    /// frames.
    ///
    /// Cost: sorts frames and nodes.
    pub fn preorder(&self) -> impl Iterator<Item = (usize, usize)> + use<F> {
        let mut in_order: Vec<usize> = (0..self.frames.len()).collect();
        in_order.sort_unstable_by_key(|&frame| &self.frames[frame]);
        let ranks = ranks(in_order.into_iter());
        let edge = |(position, node): (u32, &TreeNode)| (node.parent, ranks[node.frame()], position);
        let edges = (0..).zip(&self.nodes).skip(1).map(edge).collect();
        Forest::new(self.nodes.len(), edges).preorder()
    }
}

/// A tree that grows.
struct Builder<F> {
    tree: CallTree<F>,
    max_nodes: usize,
    /// [`TreeLayout::rest`] until it is needed, then its number.
    rest: Option<F>,
    rest_number: u32,
    children: FxHashMap<(u32, u32), u32>,
    /// The frames of the path added last, each with its node: rows come in order, so most of a path is the last one's.
    last: Vec<(u32, u32)>,
}

impl<F: Eq + Hash> Builder<F> {
    fn new(layout: TreeLayout<F>) -> Self {
        let root = TreeNode::new(0, 0);
        Self {
            tree: CallTree { frames: IndexSet::default(), nodes: vec![root], numbers: Default::default() },
            max_nodes: layout.max_nodes,
            rest: Some(layout.rest),
            rest_number: UNSEEN,
            children: FxHashMap::default(),
            last: Vec::new(),
        }
    }

    /// Counts samples at the end of a path.
    fn add(&mut self, path: &[u32], side: usize, amount: Amount) {
        let common = path.iter().zip(&self.last).take_while(|(frame, entry)| **frame == entry.0).count();
        self.last.truncate(common);
        let mut node = self.last.last().map_or(0, |entry| entry.1);
        for &frame in &path[common..] {
            let Some(child) = self.child(node, frame) else {
                let rest = self.rest_number();
                node = self.known_child(node, rest).unwrap_or_else(|| self.new_child(node, rest));
                break;
            };
            self.last.push((frame, child));
            node = child;
        }
        self.tree.nodes[index(node)].own[side] += amount;
    }

    /// `None` if it is not there and there is no room for it.
    fn child(&mut self, parent: u32, frame: u32) -> Option<u32> {
        let has_room = self.tree.nodes.len() < self.max_nodes;
        self.known_child(parent, frame).or_else(|| has_room.then(|| self.new_child(parent, frame)))
    }

    fn known_child(&self, parent: u32, frame: u32) -> Option<u32> {
        self.children.get(&(parent, frame)).copied()
    }

    fn new_child(&mut self, parent: u32, frame: u32) -> u32 {
        let child = number(self.tree.nodes.len());
        self.tree.nodes.push(TreeNode::new(parent, frame));
        self.children.insert((parent, frame), child);
        child
    }

    fn rest_number(&mut self) -> u32 {
        if let Some(rest) = self.rest.take() {
            self.rest_number = number(self.tree.frames.insert_full(rest).0);
        }
        self.rest_number
    }

    /// Totals from the leaves up: a node stands behind its caller.
    fn finish(mut self) -> CallTree<F> {
        let nodes = &mut self.tree.nodes;
        for node in (0..nodes.len()).rev() {
            let own = nodes[node].own;
            add_both(&mut nodes[node].total, own);
            if node > 0 {
                let (parent, total) = (nodes[node].parent(), nodes[node].total);
                add_both(&mut nodes[parent].total, total);
            }
        }
        self.tree
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::sync::Arc;
    use std::time::{Duration, UNIX_EPOCH};

    use proptest::prelude::*;

    use super::super::totals::FrameTotals;
    use super::*;
    use crate::profile::{FrameRef, ProfileMeta, SampledEvent, Task};
    use crate::symbol::FrameKind;
    use jitprof_common::units::{MonoNs, Pid, Tid};

    /// Merges frames by name, under their task's.
    struct ByName;

    impl<'p> MergeBy<'p> for ByName {
        type Frame = String;

        fn frame(&self, frame: FrameRef<'p>) -> String {
            frame.name.to_owned()
        }

        fn task(&self, task: &Task) -> Vec<String> {
            vec![task.comm.to_string()]
        }
    }

    /// A thread, its stack from the root, and how often.
    type Sample<'a> = (&'a str, &'a [&'a str], u64);

    fn profile(samples: &[Sample<'_>]) -> Profile {
        let meta = ProfileMeta {
            title: String::new(),
            start_time: UNIX_EPOCH,
            start: MonoNs(0),
            duration: Duration::from_secs(1),
            frequency_hz: NonZeroU32::new(100).unwrap(),
            event: SampledEvent::CpuClock,
        };
        let mut profile = Profile::new(meta, u64::MAX);
        for &(comm, names, count) in samples {
            // Stacks of different lengths have the same names at other addresses: only what is merged makes them one.
            let address = 100 - u64::try_from(names.len()).unwrap();
            let stack = names.iter().fold(profile.stack_root(), |prefix, name| {
                let (kind, tier) = (FrameKind::Native, None);
                let frame = FrameRef { name, kind, tier, inlined: false, module: None, source: None, address };
                let frame = profile.intern_frame_ref(&frame);
                profile.push(prefix, frame)
            });
            let task =
                Task { pid: Pid(1), process_start: 0, tid: Tid(1), comm: Arc::from(comm), labels: Arc::default() };
            let task = profile.task(task);
            profile.add(MonoNs(0), stack, task, count);
        }
        profile
    }

    fn layout(direction: Direction, max_nodes: usize) -> TreeLayout<String> {
        TreeLayout { direction, max_nodes, rest: "[rest]".to_owned() }
    }

    /// `depth name own/total` of the first side, a line for each node.
    fn lines(tree: &CallTree<String>) -> Vec<String> {
        let line = |(depth, node): (usize, usize)| {
            let TreeNode { own, total, .. } = tree.nodes()[node];
            format!("{depth} {} {}/{}", tree.frame_of(node), own[0].samples, total[0].samples)
        };
        tree.preorder().map(line).collect()
    }

    const SAMPLES: [Sample<'static>; 4] =
        [("t", &["main", "b"], 5), ("t", &["main", "a", "b"], 2), ("u", &["main"], 1), ("t", &[], 3)];

    #[test]
    fn stacks_are_merged_from_either_end() {
        let profile = profile(&SAMPLES);
        let of = |direction| lines(&CallTree::new([Some(&profile), None], &ByName, layout(direction, 100)));
        let from_root = ["0 t 3/10", "1 main 0/7", "2 a 0/2", "3 b 2/2", "2 b 5/5", "0 u 0/1", "1 main 1/1"];
        assert_eq!(of(Direction::RootFirst), from_root);
        let by_task = ["0 t 3/10", "1 b 0/7", "2 a 0/2", "3 main 2/2", "2 main 5/5", "0 u 0/1", "1 main 1/1"];
        assert_eq!(of(Direction::LeafFirst), by_task);
        let task_last = [
            "0 b 0/7",
            "1 a 0/2",
            "2 main 0/2",
            "3 t 2/2",
            "1 main 0/5",
            "2 t 5/5",
            "0 main 0/1",
            "1 u 1/1",
            "0 t 3/3",
        ];
        assert_eq!(of(Direction::LeafFirstTaskLast), task_last);
    }

    #[test]
    fn two_sides_stand_in_one_tree_and_one_may_be_missing() {
        let (before, after) = (profile(&SAMPLES), profile(&[("t", &["main", "c"], 7)]));
        let tree = CallTree::new([Some(&before), Some(&after)], &ByName, layout(Direction::RootFirst, 100));
        let samples = |both: Both| both.map(|amount| amount.samples);
        assert_eq!(samples(tree.nodes()[0].total), [11, 7]);
        let main = tree.preorder().find(|&(_, node)| tree.frame_of(node) == "main").unwrap().1;
        assert_eq!(samples(tree.nodes()[main].total), [7, 7]);
        let alone = CallTree::new([None, Some(&after)], &ByName, layout(Direction::RootFirst, 100));
        assert_eq!(samples(alone.all()), [0, 7]);
        let nothing = CallTree::new([None, None], &ByName, layout(Direction::RootFirst, 100));
        assert_eq!((nothing.nodes().len(), nothing.preorder().count()), (1, 0));
    }

    #[test]
    fn what_has_no_room_is_counted_under_the_last_caller_that_had() {
        let deep: Sample<'_> = ("t", &["a", "b", "c", "d"], 4);
        let profile = profile(&[deep, ("t", &["a", "x"], 2), ("t", &["a", "y", "z"], 1)]);
        let tree = CallTree::new([Some(&profile), None], &ByName, layout(Direction::RootFirst, 4));
        assert_eq!(lines(&tree), ["0 t 0/7", "1 a 0/7", "2 [rest] 3/3", "2 b 0/4", "3 [rest] 4/4"]);
        let used = tree.used();
        let of = |name: &str| tree.frames().position(|frame| frame == name).map(|number| used[number].total[0]);
        assert_eq!(of("[rest]").map(|amount| amount.samples), Some(7));
        assert_eq!(of("d"), Some(Amount::default()), "nothing is said of what is not shown");
    }

    #[test]
    fn recursion_counts_once_and_frames_are_found_by_handle() {
        let profile = profile(&[("t", &["f", "g", "f", "f"], 3), ("t", &["g", "f"], 1)]);
        let tree = CallTree::new([Some(&profile), None], &ByName, layout(Direction::RootFirst, 100));
        let used = tree.used();
        let of = |name: &str| {
            let used = used[tree.frames().position(|frame| frame == name).unwrap()];
            (used.own[0].samples, used.total[0].samples)
        };
        assert_eq!((of("f"), of("g"), of("t")), ((4, 4), (0, 4), (0, 4)));
        for id in profile.frame_ids() {
            let number = tree.number_of(0, id).unwrap();
            assert_eq!(tree.frame(number), profile.frame(id).name);
            assert_eq!(tree.number_of(1, id), None);
        }
    }

    proptest! {
        #[test]
        fn frames_use_the_same_in_the_tree_as_in_the_rows(
            picks in prop::collection::vec((prop::collection::vec(0..3_usize, 0..6), 1..5_u64), 0..12),
        ) {
            const NAMES: [&str; 3] = ["f", "g", "t"];
            let stacks: Vec<(Vec<&'static str>, u64)> =
                picks.iter().map(|(stack, count)| (stack.iter().map(|&name| NAMES[name]).collect(), *count)).collect();
            let samples: Vec<_> = stacks.iter().map(|(stack, count)| ("t", stack.as_slice(), *count)).collect();
            let profile = profile(&samples);
            let totals = FrameTotals::of([None, Some(&profile)], &ByName);
            for direction in [Direction::RootFirst, Direction::LeafFirst, Direction::LeafFirstTaskLast] {
                let tree = CallTree::new([None, Some(&profile)], &ByName, layout(direction, 1000));
                let used = tree.used();
                prop_assert_eq!(tree.all(), totals.all());
                for (name, in_rows) in totals.iter() {
                    let in_tree = used[tree.frames().position(|frame| frame == name).unwrap()];
                    prop_assert_eq!(in_tree.total, in_rows.total, "{} {:?}", name, direction);
                    if direction == Direction::RootFirst {
                        prop_assert_eq!(in_tree.own, in_rows.own, "{}", name);
                    }
                }
            }
        }

        #[test]
        fn the_tree_adds_up_and_does_not_depend_on_the_order_of_samples(
            picks in prop::collection::vec(0..SAMPLES.len(), 0..20),
            max_nodes in 1_usize..12,
        ) {
            let samples: Vec<Sample<'_>> = picks.iter().map(|&pick| SAMPLES[pick]).collect();
            let backwards: Vec<Sample<'_>> = samples.iter().rev().copied().collect();
            let of = |samples: &[Sample<'_>]| {
                let profile = profile(samples);
                CallTree::new([Some(&profile), None], &ByName, layout(Direction::RootFirst, max_nodes))
            };
            let tree = of(&samples);
            prop_assert_eq!(lines(&tree), lines(&of(&backwards)));
            let all: u64 = samples.iter().map(|sample| sample.2).sum();
            prop_assert_eq!(tree.nodes()[0].total[0].samples, all);
            let own: u64 = tree.nodes().iter().map(|node| node.own[0].samples).sum();
            prop_assert_eq!(own, all);
            let frames: u64 = tree.used().iter().map(|used| used.own[0].samples).sum();
            prop_assert_eq!(frames, all);
        }
    }
}
