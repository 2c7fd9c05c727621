//! What each frame used: itself, and with what it called.

use indexmap::IndexSet;

use super::amount::{Amount, Both};
use super::forest::index;
use super::merge::{Direction, MergeBy, Paths};
use super::table::Profile;

/// What a frame used, wherever it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// In the frame itself: of stacks that end in it.
    pub own: Both,
    /// In it and in what it called; a frame that calls itself counts once.
    pub total: Both,
}

/// Merged frames with what they used in one profile or in two. The same samples give the same frames in the same order.
#[derive(Clone, Debug)]
pub struct FrameTotals<F> {
    frames: IndexSet<F>,
    used: Vec<Used>,
    /// The last path in which each frame was met, so that recursion counts once.
    met: Vec<usize>,
    paths: usize,
    all: Both,
}

impl<F> Default for FrameTotals<F> {
    fn default() -> Self {
        Self { frames: IndexSet::default(), used: Vec::new(), met: Vec::new(), paths: 0, all: Both::default() }
    }
}

impl<F> FrameTotals<F> {
    /// Sums up one or two profiles.
    ///
    /// Cost: sorts the profiles' rows and goes through the whole of every stack.
    pub fn of<'p, M: MergeBy<'p, Frame = F>>(sides: [Option<&'p Profile>; 2], by: &M) -> Self {
        let mut totals = Self::default();
        for (side, profile) in sides.into_iter().enumerate() {
            let mut paths = profile.map(|profile| Paths::new(profile, Direction::default()));
            while let Some((path, amount)) = paths.as_mut().and_then(|paths| paths.next(by, &mut totals.frames)) {
                totals.add(path, side, amount);
            }
        }
        totals
    }

    /// Adds samples to a side. All frames of the path must be known.
    fn add(&mut self, path: &[u32], side: usize, amount: Amount) {
        self.used.resize(self.frames.len(), Used::default());
        self.met.resize(self.frames.len(), 0);
        self.paths += 1;
        self.all[side] += amount;
        for frame in path.iter().copied().map(index) {
            if self.met[frame] != self.paths {
                self.met[frame] = self.paths;
                self.used[frame].total[side] += amount;
            }
        }
        if let Some(frame) = path.last() {
            self.used[index(*frame)].own[side] += amount;
        }
    }

    /// The frames, each with what it used.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&F, Used)> {
        self.frames.iter().zip(self.used.iter().copied())
    }

    /// All samples, those without a frame included.
    pub fn all(&self) -> Both {
        self.all
    }
}
