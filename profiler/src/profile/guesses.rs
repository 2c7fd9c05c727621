//! Samples of which it is not certain which method they are of.

use std::collections::HashMap;

use rustc_hash::FxHashMap;

use super::amount::Amount;
use super::table::Profile;
use crate::symbol::{FrameKind, is_guess};
use jitprof_common::units::Pid;

/// What a runtime that knows only at some places what is inlined leaves open of the innermost frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guesses<'p> {
    /// Samples that end in a guess.
    pub marked: Amount,
    /// Samples of the same processes that end in other jitted code: what has no such place counts as it.
    pub unmarked: Amount,
    /// The guesses with what each has of its own, the one with the most first.
    pub names: Vec<(&'p str, Amount)>,
}

impl<'p> Guesses<'p> {
    /// Those of a profile.
    pub fn of(profile: &'p Profile) -> Self {
        let mut processes: FxHashMap<(Pid, u64), [Amount; 2]> = FxHashMap::default();
        // The target chooses the names.
        let mut names: HashMap<&'p str, Amount> = HashMap::new();
        profile.visit_rows(|row| {
            let Some((_, leaf)) = profile.pop(row.stack) else { return };
            let (frame, task) = (profile.frame(leaf), profile.task_of(row.task));
            if frame.kind != FrameKind::Jit {
                return;
            }
            let amount = Amount { samples: row.count, cpu_ns: row.cpu_ns };
            let is_guess = is_guess(frame.name, frame.kind, frame.inlined);
            processes.entry((task.pid, task.process_start)).or_default()[usize::from(is_guess)] += amount;
            if is_guess {
                *names.entry(frame.name).or_default() += amount;
            }
        });
        let mut guesses = Self::default();
        for [unmarked, marked] in processes.into_values().filter(|[_, marked]| marked.samples > 0) {
            guesses.marked += marked;
            guesses.unmarked += unmarked;
        }
        guesses.names = names.into_iter().collect();
        guesses.names.sort_unstable_by(|one, other| (other.1, one.0).cmp(&(one.1, other.0)));
        guesses
    }
}
