//! Trees given by their edges, gone through in order.

/// A node with its caller, and where it stands among the callees: (parent, rank, node). All in 32 bits, as there are
/// millions.
pub(super) type Edge = (u32, u32, u32);

/// The children of every node, in the order of their ranks.
pub(super) struct Forest {
    edges: Vec<Edge>,
    /// Where each node's edges begin; they end where the next node's begin.
    first: Vec<u32>,
}

impl Forest {
    /// Nodes are numbered from 0 to below `nodes`. Costs a sort of the edges.
    pub(super) fn new(nodes: usize, mut edges: Vec<Edge>) -> Self {
        edges.sort_unstable();
        let mut first = vec![0; nodes + 1];
        for edge in &edges {
            first[index(edge.0) + 1] += 1;
        }
        for node in 0..nodes {
            first[node + 1] += first[node];
        }
        Self { edges, first }
    }

    /// Everything below node 0, callers before callees, siblings by rank.
    pub(super) fn preorder(self) -> Preorder {
        let mut open = Vec::new();
        open.extend(self.children(0).map(|child| (0, child)));
        Preorder { forest: self, open }
    }

    /// The last one first: what is put onto a stack comes off in order.
    fn children(&self, node: usize) -> impl Iterator<Item = u32> {
        let edges = index(self.first[node])..index(self.first[node + 1]);
        self.edges[edges].iter().rev().map(|edge| edge.2)
    }
}

/// Depth (from 0) and number of every node but the root.
pub(super) struct Preorder {
    forest: Forest,
    open: Vec<(usize, u32)>,
}

impl Iterator for Preorder {
    type Item = (usize, usize);

    fn next(&mut self) -> Option<Self::Item> {
        let (depth, node) = self.open.pop()?;
        let node = index(node);
        self.open.extend(self.forest.children(node).map(|child| (depth + 1, child)));
        Some((depth, node))
    }
}

/// From positions in order to the rank of each position.
pub(super) fn ranks(ordered: impl ExactSizeIterator<Item = usize>) -> Vec<u32> {
    let mut ranks = vec![0; ordered.len()];
    for (rank, position) in (0_u32..).zip(ordered) {
        ranks[position] = rank;
    }
    ranks
}

pub(super) fn index(number: u32) -> usize {
    usize::try_from(number).expect("invariant: usize has at least 32 bits on every supported target")
}

pub(super) fn number(index: usize) -> u32 {
    u32::try_from(index).expect("invariant: tables are limited to fewer than 2^32 entries")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_come_before_callees_and_siblings_by_rank() {
        // 0 has 3 and 1, in this order; 1 has 2 and 4.
        let forest = Forest::new(5, vec![(0, 7, 1), (1, 0, 2), (0, 5, 3), (1, 9, 4)]);
        assert_eq!(forest.preorder().collect::<Vec<_>>(), [(0, 3), (0, 1), (1, 2), (1, 4)]);
        assert_eq!(Forest::new(1, Vec::new()).preorder().count(), 0);
    }
}
