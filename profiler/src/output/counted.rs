//! A call tree as flamegraph and folded lines count it: samples of one profile, or of the later of two beside the
//! earlier one's.

use super::look::{Look, Looks, TOO_MANY_FRAMES};
use crate::profile::{CallTree, Direction, Profile, TreeLayout, TreeNode};

/// Most nodes of a tree. The stacks of a run fit by far (the very varied 12,000 samples of the speed test have 113,000),
/// and a target that recurses through ever new names cannot make an output take more than about 200 MiB for them.
const MAX_NODES: usize = 2 << 20;

/// Samples of a node: that end there, and that end there or further down.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Samples {
    pub(super) own: u64,
    pub(super) total: u64,
}

/// Merged stacks with their samples.
pub(super) struct CountedTree {
    pub(super) tree: CallTree<Look>,
    /// What each node's frame has by itself and with its callees, by number of the node.
    pub(super) samples: Vec<Samples>,
    /// For a comparison, what the earlier profile has in each node, in samples of the later one; else empty.
    pub(super) before: Vec<Samples>,
}

impl CountedTree {
    /// Merges all stacks of a profile. With `reverse`, the leaves become the roots.
    pub(super) fn new(profile: &Profile, looks: &Looks<'_>, reverse: bool) -> Self {
        Self::with_max_nodes(profile, looks, reverse, MAX_NODES)
    }

    pub(super) fn with_max_nodes(profile: &Profile, looks: &Looks<'_>, reverse: bool, max_nodes: usize) -> Self {
        let tree = CallTree::new([Some(profile), None], looks, layout(reverse, max_nodes));
        Self { samples: of_side(&tree, 0), before: Vec::new(), tree }
    }

    /// Merges two profiles into one tree. A sample of the earlier one counts `factor` times.
    pub(super) fn of_both([before, after]: [&Profile; 2], factor: f64, looks: &Looks<'_>, reverse: bool) -> Self {
        let tree = CallTree::new([Some(before), Some(after)], looks, layout(reverse, MAX_NODES));
        let scale = |node: &TreeNode| Samples { own: scaled(node.own[0].samples, factor), total: 0 };
        let mut before: Vec<Samples> = tree.nodes().iter().map(scale).collect();
        // Each node is rounded by itself, so totals are sums of what is shown.
        for node in (0..before.len()).rev() {
            let total = before[node].total.saturating_add(before[node].own);
            before[node].total = total;
            let parent = tree.nodes()[node].parent();
            if node > 0 {
                before[parent].total = before[parent].total.saturating_add(total);
            }
        }
        Self { samples: of_side(&tree, 1), before, tree }
    }

    /// How a node looks.
    pub(super) fn look(&self, node: usize) -> &Look {
        self.tree.frame_of(node)
    }

    /// The caller of a node.
    pub(super) fn parent(&self, node: usize) -> usize {
        self.tree.nodes()[node].parent()
    }

    /// The samples of the whole tree.
    pub(super) fn total(&self) -> u64 {
        self.samples[0].total
    }
}

fn layout(reverse: bool, max_nodes: usize) -> TreeLayout<Look> {
    let direction = if reverse { Direction::LeafFirstTaskLast } else { Direction::RootFirst };
    TreeLayout { direction, max_nodes, rest: Look::note(TOO_MANY_FRAMES) }
}

fn of_side(tree: &CallTree<Look>, side: usize) -> Vec<Samples> {
    let samples = |node: &TreeNode| Samples { own: node.own[side].samples, total: node.total[side].samples };
    tree.nodes().iter().map(samples).collect()
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
