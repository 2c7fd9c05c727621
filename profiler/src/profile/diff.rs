//! What changed between two profiles: by function, and by stack.

use rustc_hash::FxHashMap;
use std::time::Duration;

use super::significance::{Counts, float};
use super::table::Profile;
use super::top::{Amount, Function, Functions};

/// Nodes of the tree of stacks at most; what does not fit counts for the last caller that did.
const MAX_NODES: usize = 1 << 20;

/// What the two sides are measured in, so that they can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Normalize {
    /// Parts of all CPU time of each side: what changed in how the time is spent.
    #[default]
    Total,
    /// CPUs: CPU time by recorded time. What changed in what it costs.
    Duration,
    /// CPU seconds as they are.
    None,
}

/// One of the two profiles as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side {
    /// All samples.
    pub all: Amount,
    /// How long was recorded.
    pub duration: Duration,
}

/// A value in the first and in the second profile.
pub type Both = [Amount; 2];

/// What a function used in both.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change<'p> {
    /// The function.
    pub function: Function<'p>,
    /// In the function itself.
    pub own: Both,
    /// In it and in what it called.
    pub total: Both,
    /// How sure it is that `own` changed, from 0 to 1, over all functions that were compared (Bonferroni).
    pub own_confidence: f64,
    /// The same of `total`.
    pub total_confidence: f64,
}

/// A frame under its callers, in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiffNode {
    /// The caller's position in [`Diff::nodes`]; smaller than the node's own. The root, at 0, is its own.
    pub parent: usize,
    /// Position in [`Diff::functions`]; meaningless for the root.
    pub function: usize,
    /// Samples that end here.
    pub own: Both,
    /// Samples that end here or further in.
    pub total: Both,
}

/// Two profiles beside each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Diff<'p> {
    /// The first and the second.
    pub sides: [Side; 2],
    /// How they are compared.
    pub normalize: Normalize,
    /// The functions of both.
    pub functions: Vec<Function<'p>>,
    /// The stacks of both, as a tree: callers before callees.
    pub nodes: Vec<DiffNode>,
    /// The functions whose own use changed most first, in the unit of `normalize`.
    pub changes: Vec<Change<'p>>,
}

impl<'p> Diff<'p> {
    /// Compares `b` with `a`.
    pub fn new(a: &'p Profile, b: &'p Profile, normalize: Normalize) -> Self {
        let mut functions = Functions::new();
        let mut tree = Tree::default();
        let mut sides = [Side { all: Amount::default(), duration: Duration::ZERO }; 2];
        for (side, profile) in [a, b].into_iter().enumerate() {
            let of_frame = functions.of_frames(profile);
            sides[side] = Side { all: tree.add(profile, side, &of_frame), duration: profile.meta().duration };
        }
        tree.sum_up();
        let functions = functions.list;
        let changes = changes(&tree, &functions);
        let mut diff = Self { sides, normalize, functions, nodes: tree.nodes, changes };
        diff.judge();
        diff
    }

    /// An amount of one side (0 or 1) in the unit of the comparison: a part of 1, CPUs, or seconds.
    pub fn value(&self, amount: Amount, side: usize) -> f64 {
        let Side { all, duration } = self.sides[side];
        let unit = match self.normalize {
            Normalize::Total => float(all.cpu_ns),
            Normalize::Duration => duration.as_secs_f64() * 1e9,
            Normalize::None => 1e9,
        };
        if unit > 0.0 { float(amount.cpu_ns) / unit } else { 0.0 }
    }

    /// By how much the second is more than the first.
    pub fn change(&self, both: Both) -> f64 {
        self.value(both[1], 1) - self.value(both[0], 0)
    }

    /// How many samples of the second one sample of the first stands for.
    pub fn factor(&self) -> f64 {
        let [a, b] = self.sides;
        let weight = |side: Side| float(side.all.cpu_ns) / float(side.all.samples);
        let factor = match self.normalize {
            Normalize::Total => float(b.all.samples) / float(a.all.samples),
            Normalize::Duration => weight(a) / weight(b) * (b.duration.as_secs_f64() / a.duration.as_secs_f64()),
            Normalize::None => weight(a) / weight(b),
        };
        if factor.is_finite() { factor } else { 1.0 }
    }

    fn counts(&self, both: Both) -> Counts {
        let is_share = self.normalize == Normalize::Total;
        let out_of = |side: Side| match self.normalize {
            Normalize::Total => float(side.all.samples),
            // Samples that one busy CPU would have given in the time; without normalising, both had the same.
            Normalize::Duration => side.duration.as_secs_f64() * 1e9 * float(side.all.samples) / float(side.all.cpu_ns),
            Normalize::None => 1e9 * float(side.all.samples) / float(side.all.cpu_ns),
        };
        let [out_of_a, out_of_b] = self.sides.map(out_of);
        Counts { a: both[0].samples, b: both[1].samples, out_of_a, out_of_b, is_share }
    }

    fn judge(&mut self) {
        let mut changes = std::mem::take(&mut self.changes);
        let compared = changes.len().max(1);
        #[expect(clippy::cast_precision_loss, reason = "a number of functions")]
        let confidence = |both| 1.0 - (self.counts(both).chance() * compared as f64).min(1.0);
        for change in &mut changes {
            change.own_confidence = confidence(change.own);
            change.total_confidence = confidence(change.total);
        }
        let sizes = |change: &Change<'_>| (self.change(change.own).abs(), self.change(change.total).abs());
        changes.sort_by(|one, other| {
            let ((own, total), (other_own, other_total)) = (sizes(one), sizes(other));
            let by_size = other_own.total_cmp(&own).then(other_total.total_cmp(&total));
            by_size.then(one.function.cmp(&other.function))
        });
        self.changes = changes;
    }
}

/// The stacks of both profiles by function.
struct Tree {
    nodes: Vec<DiffNode>,
    children: FxHashMap<(usize, usize), usize>,
    /// By function: itself and what it called, once for each sample.
    totals: Vec<Both>,
}

impl Default for Tree {
    fn default() -> Self {
        let none = [Amount::default(); 2];
        let root = DiffNode { parent: 0, function: 0, own: none, total: none };
        Self { nodes: vec![root], children: FxHashMap::default(), totals: Vec::new() }
    }
}

impl Tree {
    /// Adds a profile's samples, and returns their sum.
    fn add(&mut self, profile: &Profile, side: usize, of_frame: &[usize]) -> Amount {
        let (mut all, mut frames) = (Amount::default(), Vec::new());
        let functions = of_frame.iter().max().map_or(0, |last| last + 1).max(self.totals.len());
        self.totals.resize(functions, [Amount::default(); 2]);
        // The last row in which a function was met, so that recursion counts once.
        let mut met = vec![usize::MAX; functions];
        for (at, row) in profile.rows_without_time().into_iter().enumerate() {
            let amount = Amount { samples: row.count, cpu_ns: row.cpu_ns };
            all += amount;
            profile.frames_of(row.stack, &mut frames);
            let (mut node, mut is_full) = (0, false);
            for frame in &frames {
                let function = of_frame[frame.index()];
                if met[function] != at {
                    met[function] = at;
                    self.totals[function][side] += amount;
                }
                match self.child(node, function) {
                    Some(child) if !is_full => node = child,
                    _ => is_full = true,
                }
            }
            self.nodes[node].own[side] += amount;
        }
        all
    }

    fn child(&mut self, parent: usize, function: usize) -> Option<usize> {
        if let Some(&child) = self.children.get(&(parent, function)) {
            return Some(child);
        }
        if self.nodes.len() >= MAX_NODES {
            return None;
        }
        let none = [Amount::default(); 2];
        self.nodes.push(DiffNode { parent, function, own: none, total: none });
        self.children.insert((parent, function), self.nodes.len() - 1);
        Some(self.nodes.len() - 1)
    }

    fn sum_up(&mut self) {
        for at in (0..self.nodes.len()).rev() {
            let DiffNode { parent, own, .. } = self.nodes[at];
            for (side, own) in own.into_iter().enumerate() {
                self.nodes[at].total[side] += own;
                let total = self.nodes[at].total[side];
                if at != parent {
                    self.nodes[parent].total[side] += total;
                }
            }
        }
    }
}

fn changes<'p>(tree: &Tree, functions: &[Function<'p>]) -> Vec<Change<'p>> {
    let own = [Amount::default(); 2];
    let change = |(&function, &total)| Change { function, own, total, own_confidence: 0.0, total_confidence: 0.0 };
    let mut changes: Vec<_> = functions.iter().zip(&tree.totals).map(change).collect();
    for node in &tree.nodes[1..] {
        let own = &mut changes[node.function].own;
        own.iter_mut().zip(node.own).for_each(|(own, more)| *own += more);
    }
    changes.retain(|change| change.total.iter().any(|amount| amount.samples > 0));
    changes
}
