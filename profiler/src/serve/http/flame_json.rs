//! A tree as compact JSON: a table of strings, columns of frames, columns of nodes in pre-order.

use indexmap::IndexSet;
use serde::Serialize;

use super::flame::{Flame, Origin};
use crate::output::color::Class;
use crate::output::look::Look;
use crate::profile::printable;
use crate::profile::{Both, TreeNode, Used};

/// Most nodes that are sent: the widest ones. Many more than a screen has room for, and a bound for the answer and the
/// page.
const MAX_SENT: usize = 40_000;
/// Functions that are sent beside those of the nodes: those with the most time of their own.
const MAX_TOP: usize = 1000;

/// The answer of `/api/flame` and `/api/diff`; see docs/reference/http.md.
#[derive(Serialize)]
pub(super) struct FlameJson {
    cpu_ns: Vec<u64>,
    samples: Vec<u64>,
    /// Nodes with a smaller share of either side are summed up.
    least_share: f64,
    kinds: Vec<Kind>,
    strings: Vec<String>,
    frames: Frames,
    nodes: Nodes,
}

#[derive(Serialize)]
struct Kind {
    label: &'static str,
    color: String,
}

/// CPU nanoseconds of each side.
type Weights = [u64; 2];

/// CPU time in the frame or node itself, and with what it called. Those of the second side are there in a comparison.
#[derive(Default, Serialize)]
struct Times {
    #[serde(rename = "self")]
    own: Vec<u64>,
    total: Vec<u64>,
    #[serde(rename = "self_b", skip_serializing_if = "Vec::is_empty")]
    own_b: Vec<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    total_b: Vec<u64>,
}

/// One entry for each frame; names, files and modules are positions in `strings`.
#[derive(Default, Serialize)]
struct Frames {
    name: Vec<usize>,
    kind: Vec<usize>,
    module: Vec<usize>,
    file: Vec<usize>,
    line: Vec<u32>,
    #[serde(flatten)]
    times: Times,
}

/// One entry for each node, callers before callees.
#[derive(Default, Serialize)]
struct Nodes {
    depth: Vec<usize>,
    frame: Vec<usize>,
    #[serde(flatten)]
    times: Times,
}

impl Times {
    fn push(&mut self, own: Weights, total: Weights, is_diff: bool) {
        self.own.push(own[0]);
        self.total.push(total[0]);
        if is_diff {
            self.own_b.push(own[1]);
            self.total_b.push(total[1]);
        }
    }
}

struct Writer<'a> {
    flame: &'a Flame<'a>,
    /// What each frame of the tree used, by its number.
    used: Vec<Used>,
    is_diff: bool,
    strings: IndexSet<String>,
    frames: IndexSet<FrameKey>,
    json: FlameJson,
}

/// A frame of the tree, or one that stands for so many that were too narrow.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum FrameKey {
    Look(usize),
    More(usize),
}

/// Writes a tree, without nodes whose share of their side is below `least_share`.
pub(super) fn flame_json(flame: &Flame<'_>, least_share: f64, is_diff: bool) -> FlameJson {
    let least_share = least_share.max(share_of_widest(flame));
    let all = flame.tree.all();
    let sides = if is_diff { 2 } else { 1 };
    let mut writer = Writer {
        flame,
        used: flame.tree.used(),
        is_diff,
        strings: IndexSet::from([String::new()]),
        frames: IndexSet::new(),
        json: FlameJson {
            cpu_ns: all.iter().take(sides).map(|amount| amount.cpu_ns).collect(),
            samples: all.iter().take(sides).map(|amount| amount.samples).collect(),
            least_share,
            kinds: Class::ALL.into_iter().map(|class| Kind { label: class.label(), color: class.hex() }).collect(),
            strings: Vec::new(),
            frames: Frames::default(),
            nodes: Nodes::default(),
        },
    };
    writer.nodes(least_share);
    writer.top();
    writer.frames();
    writer.json.strings = writer.strings.into_iter().collect();
    writer.json
}

/// The larger of the node's shares of either side.
fn share(node: &TreeNode, all: Both) -> f64 {
    let of = |side: usize| float(node.total[side].cpu_ns) / float(all[side].cpu_ns.max(1));
    of(0).max(of(1))
}

/// The share of the narrowest of the nodes that may be sent.
fn share_of_widest(flame: &Flame<'_>) -> f64 {
    let nodes = flame.tree.nodes();
    if nodes.len() <= MAX_SENT {
        return 0.0;
    }
    let all = flame.tree.all();
    let mut shares: Vec<f64> = nodes.iter().map(|node| share(node, all)).collect();
    let (_, least, _) = shares.select_nth_unstable_by(MAX_SENT, |one, other| other.total_cmp(one));
    // Those that are just as wide are left out with it.
    least.next_up()
}

impl Writer<'_> {
    fn nodes(&mut self, least_share: f64) {
        let tree = &self.flame.tree;
        let (nodes, all) = (tree.nodes(), tree.all());
        let is_wide = |node: &TreeNode| share(node, all) >= least_share;
        // A child is never wider than its parent, so whole subtrees go.
        let mut left_out: Vec<(usize, Weights)> = vec![(0, [0; 2]); nodes.len()];
        for node in nodes.iter().skip(1).filter(|node| !is_wide(node)) {
            if node.parent() == 0 || is_wide(&nodes[node.parent()]) {
                let (count, weights) = &mut left_out[node.parent()];
                *count += 1;
                weights.iter_mut().zip(cpu_ns(node.total)).for_each(|(sum, more)| *sum = sum.saturating_add(more));
            }
        }
        // The nodes of the path, whose narrow children come behind the wide ones.
        let mut path: Vec<usize> = vec![0];
        for (depth, index) in tree.preorder().filter(|&(_, index)| is_wide(&nodes[index])) {
            while path.len() > depth + 1 {
                self.more(&left_out, &mut path);
            }
            let node = &nodes[index];
            self.node(depth, FrameKey::Look(node.frame()), cpu_ns(node.own), cpu_ns(node.total));
            path.push(index);
        }
        while !path.is_empty() {
            self.more(&left_out, &mut path);
        }
    }

    /// Leaves the last node of the path.
    fn more(&mut self, left_out: &[(usize, Weights)], path: &mut Vec<usize>) {
        let Some(index) = path.pop() else { return };
        let (count, weights) = left_out[index];
        if count > 0 {
            self.node(path.len(), FrameKey::More(count), weights, weights);
        }
    }

    fn node(&mut self, depth: usize, frame: FrameKey, own: Weights, total: Weights) {
        let frame = self.frames.insert_full(frame).0;
        let nodes = &mut self.json.nodes;
        nodes.depth.push(depth);
        nodes.frame.push(frame);
        nodes.times.push(own, total, self.is_diff);
    }

    /// The functions with the most time of their own, also if they are narrow wherever they stand.
    fn top(&mut self) {
        let own = |number: usize| cpu_ns(self.used[number].own).into_iter().max();
        let mut numbers: Vec<usize> = (0..self.used.len()).collect();
        numbers.sort_by_key(|&number| (std::cmp::Reverse(own(number)), number));
        numbers.truncate(MAX_TOP);
        numbers.retain(|&number| own(number) > Some(0));
        self.frames.extend(numbers.into_iter().map(FrameKey::Look));
    }

    fn frames(&mut self) {
        let keys: Vec<FrameKey> = self.frames.iter().copied().collect();
        let flame = self.flame;
        for key in keys {
            match key {
                FrameKey::Look(number) => {
                    self.frame(flame.tree.frame(number), flame.origins[number], self.used[number]);
                }
                FrameKey::More(count) => {
                    self.frame(&Look::note(&format!("({count} more)")), Origin::default(), Used::default());
                }
            }
        }
    }

    fn frame(&mut self, look: &Look, origin: Origin<'_>, used: Used) {
        let (file, line) = origin.source.map_or(("".into(), 0), |(file, line)| (printable(file), line));
        let module = origin.module.map_or("".into(), printable);
        let [name, module, file] = [look.name.as_str(), &module, &file].map(|text| self.string(text));
        let frames = &mut self.json.frames;
        frames.name.push(name);
        frames.kind.push(Class::ALL.iter().position(|class| *class == look.class).unwrap_or(0));
        frames.module.push(module);
        frames.file.push(file);
        frames.line.push(line);
        frames.times.push(cpu_ns(used.own), cpu_ns(used.total), self.is_diff);
    }

    fn string(&mut self, text: &str) -> usize {
        match self.strings.get_index_of(text) {
            Some(index) => index,
            None => self.strings.insert_full(text.to_owned()).0,
        }
    }
}

fn cpu_ns(both: Both) -> Weights {
    both.map(|amount| amount.cpu_ns)
}

#[expect(clippy::cast_precision_loss, reason = "shares of CPU time need no more than 53 bits")]
fn float(number: u64) -> f64 {
    number as f64
}
