//! Numbers in place of paths, where a path is part of what is looked up for each frame of each sample.

use std::collections::HashMap;
use std::sync::Arc;

/// Paths that were asked for last, about: those of the files of a few processes.
const RECENT: usize = 64;
/// Bytes between the beginnings of two texts at least.
const APART: usize = 16;

/// A number for each path: equal paths have the same, others another one, until all are dropped.
#[derive(Debug, Default)]
pub(super) struct PathNumbers {
    // The target chooses its paths: hashed with std's keyed hasher.
    numbers: HashMap<Arc<str>, usize>,
    /// By where their text lies, which stays there as long as it is held here: a mapping has the same from sample to
    /// sample.
    recent: Vec<Option<(Arc<str>, usize)>>,
}

impl PathNumbers {
    /// A path's number, from 1 on.
    pub(super) fn of(&mut self, path: &Arc<str>) -> usize {
        let slot = (path.as_ptr().addr() / APART) % RECENT;
        if let Some(Some((known, number))) = self.recent.get(slot)
            && Arc::ptr_eq(known, path)
        {
            return *number;
        }
        let number = self.look_up(path);
        self.recent.resize(RECENT, None);
        self.recent[slot] = Some((Arc::clone(path), number));
        number
    }

    fn look_up(&mut self, path: &Arc<str>) -> usize {
        if let Some(number) = self.numbers.get(path) {
            return *number;
        }
        let number = self.numbers.len() + 1;
        self.numbers.insert(Arc::clone(path), number);
        number
    }

    /// How many paths have one.
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Drops all: numbers that were given out are void.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_paths_have_one_number_wherever_their_text_lies() {
        let mut paths = PathNumbers::default();
        let path = |number: usize| -> Arc<str> { format!("/usr/lib/lib{number}.so").into() };
        // More than are remembered by their place, of which some lie where others' slots are.
        let all: Vec<Arc<str>> = (0..8 * RECENT).map(path).collect();
        let first: Vec<usize> = all.iter().map(|path| paths.of(path)).collect();
        assert_eq!(first, (1..=8 * RECENT).collect::<Vec<_>>());
        let again: Vec<usize> = all.iter().rev().flat_map(|path| [paths.of(path), paths.of(path)]).collect();
        assert!(again.chunks(2).zip(first.iter().rev()).all(|(pair, first)| pair == [*first, *first]), "{again:?}");
        // Texts that are made anew, each perhaps where the one before has lain.
        let others: Vec<usize> = (0..8 * RECENT).map(|number| paths.of(&path(number))).collect();
        assert_eq!((others, paths.len()), (first, 8 * RECENT));
    }

    #[test]
    fn a_text_that_is_gone_lends_its_number_to_none_that_comes_to_its_place() {
        let mut paths = PathNumbers::default();
        for number in 1..=100 {
            // The second text is not the one that is held with its number.
            let pair = [(), ()].map(|()| paths.of(&format!("/srv/{number:03}").into()));
            assert_eq!(pair, [number, number]);
        }
        paths.clear();
        assert_eq!((paths.of(&"/srv/007".into()), paths.len()), (1, 1));
    }
}
