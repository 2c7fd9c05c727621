//! Which functions use the most.

use std::collections::HashMap;
use std::ops::AddAssign;

use super::table::{FrameId, FrameRef, Profile};
use crate::symbol::{FrameKind, Tier};

/// A function, wherever in it a sample was taken. Each tier of a function is one of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Function<'p> {
    /// Name, unsanitized.
    pub name: &'p str,
    /// Which world the code belongs to.
    pub kind: FrameKind,
    /// The runtime's optimisation tier, where known.
    pub tier: Option<Tier>,
    /// Path of the module, or a bracketed name.
    pub module: Option<&'p str>,
    /// Source file.
    pub file: Option<&'p str>,
}

/// Samples, and the CPU time that they stand for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount {
    /// Samples.
    pub samples: u64,
    /// Nanoseconds.
    pub cpu_ns: u64,
}

/// What a function used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopRow<'p> {
    /// The function.
    pub function: Function<'p>,
    /// In the function itself.
    pub own: Amount,
    /// In it and in what it called; a function that calls itself counts once.
    pub total: Amount,
}

/// Functions by what they used, the one with the most of its own first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Top<'p> {
    /// One for each function.
    pub rows: Vec<TopRow<'p>>,
    /// All samples, those without a frame included.
    pub all: Amount,
}

impl<'p> Function<'p> {
    /// The function of a frame.
    pub fn of(frame: FrameRef<'p>) -> Self {
        Self {
            name: frame.name,
            kind: frame.kind,
            tier: frame.tier,
            module: frame.module.map(|module| module.path),
            file: frame.source.map(|(file, _)| file),
        }
    }
}

impl AddAssign for Amount {
    fn add_assign(&mut self, more: Self) {
        self.samples = self.samples.saturating_add(more.samples);
        self.cpu_ns = self.cpu_ns.saturating_add(more.cpu_ns);
    }
}

/// The functions of a profile by frame.
pub(super) struct Functions<'p> {
    pub(super) list: Vec<Function<'p>>,
    known: HashMap<Function<'p>, usize>,
}

impl<'p> Functions<'p> {
    pub(super) fn new() -> Self {
        Self { list: Vec::new(), known: HashMap::new() }
    }

    /// The position of each frame's function, by the frame's handle.
    pub(super) fn of_frames(&mut self, profile: &'p Profile) -> Vec<usize> {
        profile
            .frame_ids()
            .map(|frame: FrameId| {
                let function = Function::of(profile.frame(frame));
                *self.known.entry(function).or_insert_with(|| {
                    self.list.push(function);
                    self.list.len() - 1
                })
            })
            .collect()
    }
}

impl Profile {
    /// What each function used. The same samples give the same table, in whatever order they were added.
    pub fn top(&self) -> Top<'_> {
        let mut functions = Functions::new();
        let of_frame = functions.of_frames(self);
        let none = Amount::default();
        let mut rows: Vec<_> =
            functions.list.iter().map(|&function| TopRow { function, own: none, total: none }).collect();
        // The last row in which a function was met, so that recursion counts once.
        let mut met = vec![usize::MAX; rows.len()];
        let (mut all, mut frames) = (none, Vec::new());
        for (at, row) in self.rows_without_time().into_iter().enumerate() {
            let amount = Amount { samples: row.count, cpu_ns: row.cpu_ns };
            all += amount;
            self.frames_of(row.stack, &mut frames);
            for frame in &frames {
                let function = of_frame[frame.index()];
                if met[function] != at {
                    met[function] = at;
                    rows[function].total += amount;
                }
            }
            if let Some(leaf) = frames.last() {
                rows[of_frame[leaf.index()]].own += amount;
            }
        }
        rows.retain(|row| row.total.samples > 0);
        rows.sort_unstable_by(|one, other| {
            (other.own, other.total, &one.function).cmp(&(one.own, one.total, &other.function))
        });
        Top { rows, all }
    }
}
