//! Stacks merged by what is shown: the tree behind the SVG and the folded lines.
//!
//! A profile keeps frames apart by address and module; a flamegraph merges all frames that look alike.

use indexmap::IndexSet;
use rustc_hash::FxHashMap;

use super::color::Class;
use super::options::OutputOptions;
use super::text;
use crate::profile::{FrameId, Profile, TaskId};

/// Most nodes of a tree. The stacks of a run fit by far (the very varied 12,000 samples of the speed test have 113,000),
/// and a target that recurses through ever new names cannot make an output take more than about 200 MiB for them.
const MAX_NODES: usize = 2 << 20;

/// Stands for the callees that did not fit into the tree.
const TREE_FULL: &str = "[too many frames]";

/// What one frame looks like.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Look {
    /// Printable name.
    pub(super) name: String,
    /// Which colour it gets.
    pub(super) class: Class,
}

/// An index into [`Tree::looks`].
pub(super) type Token = usize;

/// One frame with everything called from it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    /// The caller's position in [`Tree::nodes`]; smaller than the node's own. The root is its own parent.
    pub(super) parent: usize,
    /// How it looks; meaningless for the root.
    pub(super) token: Token,
    /// Samples that end here.
    pub(super) own: u64,
    /// Samples that end here or further down.
    pub(super) total: u64,
}

/// The merged stacks of a profile.
#[derive(Debug)]
pub(super) struct Tree {
    /// How frames look, by token.
    pub(super) looks: IndexSet<Look>,
    /// The root, which has no frame, and everything below. Their order, and that of the tokens, means nothing: outputs
    /// sort by look.
    pub(super) nodes: Vec<Node>,
    /// For a comparison, what the earlier profile has in each node, in samples of the later one; else empty.
    pub(super) before: Vec<Earlier>,
    children: FxHashMap<(usize, Token), usize>,
    dress: fn(Look) -> Look,
    max_nodes: usize,
}

/// What a node had in the earlier of two profiles.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Earlier {
    /// Samples that end here.
    pub(super) own: u64,
    /// Samples that end here or further down.
    pub(super) total: u64,
}

impl Tree {
    /// Merges all rows of a profile, without time. With `reverse`, the leaves become the roots. `dress` makes looks fit
    /// for a format before they are compared, so that what it makes equal is merged.
    pub(super) fn new(profile: &Profile, options: &OutputOptions, reverse: bool, dress: fn(Look) -> Look) -> Self {
        Self::with_max_nodes(profile, options, reverse, dress, MAX_NODES)
    }

    pub(super) fn with_max_nodes(
        profile: &Profile,
        options: &OutputOptions,
        reverse: bool,
        dress: fn(Look) -> Look,
        max_nodes: usize,
    ) -> Self {
        let mut tree = Self::empty(dress, max_nodes);
        tree.add_profile(profile, options, reverse);
        tree.sum_up();
        tree
    }

    /// Merges two profiles into one tree. A sample of the earlier one counts `factor` times.
    pub(super) fn of_both(
        [before, after]: [&Profile; 2],
        factor: f64,
        options: &OutputOptions,
        reverse: bool,
        dress: fn(Look) -> Look,
    ) -> Self {
        let mut tree = Self::empty(dress, MAX_NODES);
        tree.add_profile(before, options, reverse);
        tree.before = tree.nodes.iter().map(|node| Earlier { own: scaled(node.own, factor), total: 0 }).collect();
        tree.nodes.iter_mut().for_each(|node| node.own = 0);
        tree.add_profile(after, options, reverse);
        tree.before.resize_with(tree.nodes.len(), Earlier::default);
        tree.sum_up();
        tree
    }

    fn empty(dress: fn(Look) -> Look, max_nodes: usize) -> Self {
        Self {
            looks: IndexSet::new(),
            dress,
            nodes: vec![Node { parent: 0, token: 0, own: 0, total: 0 }],
            before: Vec::new(),
            children: FxHashMap::default(),
            max_nodes,
        }
    }

    fn add_profile(&mut self, profile: &Profile, options: &OutputOptions, reverse: bool) {
        let tree = self;
        let frame_tokens: Vec<_> = profile.frame_ids().map(|frame| tree.frame_token(profile, options, frame)).collect();
        let mut task_tokens: FxHashMap<TaskId, Vec<Token>> = FxHashMap::default();
        let (mut frames, mut path, mut last) = (Vec::new(), Vec::new(), Vec::new());
        // In the profile's order, so that the same nodes fit for the same samples.
        for row in profile.rows_without_time() {
            path.clear();
            let tokens = task_tokens.entry(row.task).or_insert_with(|| tree.task_tokens(profile, options, row.task));
            path.extend_from_slice(tokens);
            profile.frames_of(row.stack, &mut frames);
            path.extend(frames.iter().map(|frame| frame_tokens[frame.index()]));
            if reverse {
                path.reverse();
            }
            tree.add(&path, row.count, &mut last);
        }
    }

    fn frame_token(&mut self, profile: &Profile, options: &OutputOptions, frame: FrameId) -> Token {
        let frame = profile.frame(frame);
        let name = text::frame_name(frame, options.lines);
        self.token(Look { name, class: Class::of(frame) })
    }

    fn token(&mut self, look: Look) -> Token {
        self.looks.insert_full((self.dress)(look)).0
    }

    fn task_tokens(&mut self, profile: &Profile, options: &OutputOptions, task: TaskId) -> Vec<Token> {
        text::task_frames(profile.task_of(task), options)
            .into_iter()
            .map(|name| self.token(Look { name, class: Class::Task }))
            .collect()
    }

    /// Counts samples at the end of a path. `last` holds the nodes of the path added before, each with its token: rows
    /// come in order, so most of a path is the last one's.
    fn add(&mut self, path: &[Token], count: u64, last: &mut Vec<(Token, usize)>) {
        let common = path.iter().zip(&*last).take_while(|(token, entry)| **token == entry.0).count();
        last.truncate(common);
        let mut node = last.last().map_or(0, |entry| entry.1);
        for &token in &path[common..] {
            let Some(child) = self.child(node, token) else {
                node = self.full_child(node);
                break;
            };
            node = child;
            last.push((token, node));
        }
        self.nodes[node].own = self.nodes[node].own.saturating_add(count);
    }

    fn child(&mut self, parent: usize, token: Token) -> Option<usize> {
        if let Some(&child) = self.children.get(&(parent, token)) {
            return Some(child);
        }
        (self.nodes.len() < self.max_nodes).then(|| self.new_child(parent, token))
    }

    /// The child for what did not fit: beyond the limit, but at most one a node.
    fn full_child(&mut self, parent: usize) -> usize {
        let token = self.token(Look { name: TREE_FULL.to_owned(), class: Class::Note });
        match self.children.get(&(parent, token)) {
            Some(&child) => child,
            None => self.new_child(parent, token),
        }
    }

    fn new_child(&mut self, parent: usize, token: Token) -> usize {
        let child = self.nodes.len();
        self.nodes.push(Node { parent, token, own: 0, total: 0 });
        self.children.insert((parent, token), child);
        child
    }

    /// Totals from the leaves up: a node stands behind its parent.
    fn sum_up(&mut self) {
        for node in (0..self.nodes.len()).rev() {
            let Node { parent, own, .. } = self.nodes[node];
            self.nodes[node].total = self.nodes[node].total.saturating_add(own);
            if node != parent {
                let total = self.nodes[node].total;
                self.nodes[parent].total = self.nodes[parent].total.saturating_add(total);
            }
            if let Some(Earlier { own, total }) = self.before.get(node).copied() {
                let total = total.saturating_add(own);
                self.before[node].total = total;
                if node != parent {
                    self.before[parent].total = self.before[parent].total.saturating_add(total);
                }
            }
        }
    }

    /// Calls `visit` with the depth (from 0) and the position of every node but the root: callers before callees, and
    /// siblings in the order of their looks.
    pub(super) fn walk<E>(&self, mut visit: impl FnMut(usize, usize) -> Result<(), E>) -> Result<(), E> {
        let mut by_look: Vec<Token> = (0..self.looks.len()).collect();
        by_look.sort_unstable_by_key(|&token| &self.looks[token]);
        let mut ranks = vec![0; by_look.len()];
        for (rank, token) in by_look.into_iter().enumerate() {
            ranks[token] = rank;
        }
        let mut edges: Vec<_> =
            (1..self.nodes.len()).map(|node| (self.nodes[node].parent, ranks[self.nodes[node].token], node)).collect();
        edges.sort_unstable();
        // Where each node's children begin; they end where the next node's begin.
        let mut first = vec![0; self.nodes.len() + 1];
        for edge in &edges {
            first[edge.0 + 1] += 1;
        }
        for node in 0..self.nodes.len() {
            first[node + 1] += first[node];
        }
        let children = |node: usize| edges[first[node]..first[node + 1]].iter().rev().map(|edge| edge.2);
        let mut open: Vec<_> = children(0).map(|node| (0, node)).collect();
        while let Some((depth, node)) = open.pop() {
            visit(depth, node)?;
            open.extend(children(node).map(|child| (depth + 1, child)));
        }
        Ok(())
    }

    /// How a node looks.
    pub(super) fn look(&self, node: usize) -> &Look {
        &self.looks[self.nodes[node].token]
    }
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from f64 saturates; the standard library has no checked one, and counts are far below 2^53"
)]
fn scaled(count: u64, factor: f64) -> u64 {
    (count as f64 * factor).round() as u64
}
