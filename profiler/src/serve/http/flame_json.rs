//! A tree as compact JSON: a table of strings, columns of frames, columns of nodes in pre-order.

use indexmap::IndexSet;
use serde::Serialize;

use super::flame::{Details, Flame, Look, Node, Weights};
use crate::output::Class;

/// Most nodes that are sent: the widest ones. Many more than a screen has room for, and a bound for the answer and the
/// page.
const MAX_SENT: usize = 40_000;
/// Functions that are sent beside those of the nodes: those with the most time of their own.
const MAX_TOP: usize = 1000;

/// The answer of `/api/flame` and `/api/diff`; see docs/http.md.
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

/// One entry for each frame; names, files and modules are positions in `strings`.
#[derive(Default, Serialize)]
struct Frames {
    name: Vec<usize>,
    kind: Vec<usize>,
    module: Vec<usize>,
    file: Vec<usize>,
    line: Vec<u32>,
    #[serde(rename = "self")]
    own: Vec<u64>,
    total: Vec<u64>,
    #[serde(rename = "self_b", skip_serializing_if = "Vec::is_empty")]
    own_b: Vec<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    total_b: Vec<u64>,
}

/// One entry for each node, callers before callees.
#[derive(Default, Serialize)]
struct Nodes {
    depth: Vec<usize>,
    frame: Vec<usize>,
    #[serde(rename = "self")]
    own: Vec<u64>,
    total: Vec<u64>,
    #[serde(rename = "self_b", skip_serializing_if = "Vec::is_empty")]
    own_b: Vec<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    total_b: Vec<u64>,
}

struct Writer<'a> {
    flame: &'a Flame,
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
pub(super) fn flame_json(flame: &Flame, least_share: f64, is_diff: bool) -> FlameJson {
    let least_share = least_share.max(share_of_widest(flame));
    let total = flame.nodes[0].total;
    let sides = if is_diff { 2 } else { 1 };
    let mut writer = Writer {
        flame,
        is_diff,
        strings: IndexSet::from([String::new()]),
        frames: IndexSet::new(),
        json: FlameJson {
            cpu_ns: total[..sides].to_vec(),
            samples: flame.samples[..sides].to_vec(),
            least_share,
            kinds: Class::ALL.into_iter().map(|class| Kind { label: class.label(), color: color(class) }).collect(),
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
fn share(node: &Node, total: Weights) -> f64 {
    let of = |side: usize| float(node.total[side]) / float(total[side].max(1));
    of(0).max(of(1))
}

/// The share of the narrowest of the nodes that may be sent.
fn share_of_widest(flame: &Flame) -> f64 {
    if flame.nodes.len() <= MAX_SENT {
        return 0.0;
    }
    let total = flame.nodes[0].total;
    let mut shares: Vec<f64> = flame.nodes.iter().map(|node| share(node, total)).collect();
    let (_, least, _) = shares.select_nth_unstable_by(MAX_SENT, |one, other| other.total_cmp(one));
    // Those that are just as wide are left out with it.
    least.next_up()
}

impl Writer<'_> {
    fn nodes(&mut self, least_share: f64) {
        let flame = self.flame;
        let total = flame.nodes[0].total;
        let is_wide = |node: &Node| share(node, total) >= least_share;
        // A child is never wider than its parent, so whole subtrees go.
        let mut left_out: Vec<(usize, Weights)> = vec![(0, [0; 2]); flame.nodes.len()];
        for node in flame.nodes.iter().skip(1).filter(|node| !is_wide(node)) {
            if node.parent == 0 || is_wide(&flame.nodes[node.parent]) {
                let (count, weights) = &mut left_out[node.parent];
                *count += 1;
                weights.iter_mut().zip(node.total).for_each(|(sum, more)| *sum = sum.saturating_add(more));
            }
        }
        let order = flame.preorder(|_, node| is_wide(node));
        // The nodes of the path, whose narrow children come behind the wide ones.
        let mut path: Vec<usize> = vec![0];
        for (depth, index) in order {
            while path.len() > depth + 1 {
                self.more(&left_out, &mut path);
            }
            let Node { look, own, total, .. } = flame.nodes[index];
            self.node(depth, FrameKey::Look(look), own, total);
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
        nodes.own.push(own[0]);
        nodes.total.push(total[0]);
        if self.is_diff {
            nodes.own_b.push(own[1]);
            nodes.total_b.push(total[1]);
        }
    }

    /// The functions with the most time of their own, also if they are narrow wherever they stand.
    fn top(&mut self) {
        let mut looks: Vec<usize> = (0..self.flame.looks.len()).collect();
        let own = |look: usize| self.flame.looks[look].own.into_iter().max();
        looks.sort_by_key(|&look| (std::cmp::Reverse(own(look)), look));
        looks.truncate(MAX_TOP);
        self.frames.extend(looks.into_iter().filter(|&look| own(look) > Some(0)).map(FrameKey::Look));
    }

    fn frames(&mut self) {
        let keys: Vec<FrameKey> = self.frames.iter().copied().collect();
        let flame = self.flame;
        let note = Details::default();
        for key in keys {
            let more;
            let (look, details) = match key {
                FrameKey::Look(index) => match flame.looks.get_index(index) {
                    Some(entry) => entry,
                    None => continue,
                },
                FrameKey::More(count) => {
                    more = Look { name: format!("({count} more)"), class: Class::Note };
                    (&more, &note)
                }
            };
            let (file, line) = details.source.as_ref().map_or(("", 0), |(file, line)| (file, *line));
            let [name, module, file] = [look.name.as_str(), &details.module, file].map(|text| self.string(text));
            let frames = &mut self.json.frames;
            frames.name.push(name);
            frames.kind.push(Class::ALL.iter().position(|class| *class == look.class).unwrap_or(0));
            frames.module.push(module);
            frames.file.push(file);
            frames.line.push(line);
            frames.own.push(details.own[0]);
            frames.total.push(details.total[0]);
            if self.is_diff {
                frames.own_b.push(details.own[1]);
                frames.total_b.push(details.total[1]);
            }
        }
    }

    fn string(&mut self, text: &str) -> usize {
        match self.strings.get_index_of(text) {
            Some(index) => index,
            None => self.strings.insert_full(text.to_owned()).0,
        }
    }
}

fn color(class: Class) -> String {
    let color = class.color();
    format!("#{:02x}{:02x}{:02x}", color.r, color.g, color.b)
}

#[expect(clippy::cast_precision_loss, reason = "shares of CPU time need no more than 53 bits")]
fn float(number: u64) -> f64 {
    number as f64
}
