//! Where functions lie, as the file goes on: which addresses are used again, and which numbers.

use std::collections::BTreeMap;

/// Functions that are followed, and runs of numbers: some 60 MiB. Beyond, reuse is counted among these only.
const MAX_TRACKED: usize = 1 << 20;

/// What lies at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) end: u64,
    pub(super) code_index: u64,
}

/// What a new function took the place of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placed {
    /// No function was there.
    Free,
    /// A function that began at the same address.
    SameAddress,
    /// One or several that began elsewhere and reached into it.
    Overlap,
    /// It is not followed: there are too many.
    Untracked,
}

/// The functions that are there.
#[derive(Clone, Debug, Default)]
pub(super) struct Extents {
    live: BTreeMap<u64, Extent>,
}

impl Extents {
    /// A function of at least a byte comes.
    pub(super) fn load(&mut self, start: u64, extent: Extent) -> Placed {
        let same = self.live.contains_key(&start);
        let replaced = self.clear(start, extent.end);
        if self.live.len() >= MAX_TRACKED {
            return Placed::Untracked;
        }
        self.live.insert(start, extent);
        match (same, replaced) {
            (true, _) => Placed::SameAddress,
            (false, 0) => Placed::Free,
            (false, _) => Placed::Overlap,
        }
    }

    /// What began at this address is taken away.
    pub(super) fn take(&mut self, start: u64) -> Option<Extent> {
        self.live.remove(&start)
    }

    /// Whether more functions came than are followed.
    pub(super) fn is_full(&self) -> bool {
        self.live.len() >= MAX_TRACKED
    }

    /// Whatever lies in the range, wholly or in part, goes. Returns how many that were.
    pub(super) fn clear(&mut self, start: u64, end: u64) -> usize {
        let mut cleared = 0;
        // Those that are there do not overlap, so only the last one before the end can reach into the range, over and
        // over.
        while let Some((&first, extent)) = self.live.range(..end).next_back()
            && extent.end > start
        {
            self.live.remove(&first);
            cleared += 1;
        }
        cleared
    }

    /// How many there are, and their bytes.
    pub(super) fn living(&self) -> (u64, u64) {
        let bytes = self.live.iter().fold(0_u64, |sum, (start, extent)| sum.saturating_add(extent.end - start));
        (self.live.len() as u64, bytes)
    }
}

/// Numbers that were given, in runs.
#[derive(Clone, Debug, Default)]
pub(super) struct Numbers {
    /// First and last.
    runs: BTreeMap<u64, u64>,
}

impl Numbers {
    /// Whether the number is new. Beyond what is kept, every number is.
    pub(super) fn insert(&mut self, number: u64) -> bool {
        let before = self.runs.range(..=number).next_back().map(|(first, last)| (*first, *last));
        if before.is_some_and(|(_, last)| last >= number) {
            return false;
        }
        // Joined with the run behind it, if there is one.
        let behind = number.checked_add(1).and_then(|next| self.runs.remove(&next));
        let last = behind.unwrap_or(number);
        match before {
            Some((first, end)) if end.checked_add(1) == Some(number) => {
                self.runs.insert(first, last);
            }
            _ if self.runs.len() < MAX_TRACKED || behind.is_some() => {
                self.runs.insert(number, last);
            }
            _ => {}
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(extents: &mut Extents, start: u64, size: u64) -> Placed {
        extents.load(start, Extent { end: start + size, code_index: 0 })
    }

    #[test]
    fn a_function_ends_whatever_it_overlaps() {
        let mut extents = Extents::default();
        assert_eq!(load(&mut extents, 100, 10), Placed::Free);
        assert_eq!(load(&mut extents, 110, 10), Placed::Free, "they touch");
        assert_eq!(load(&mut extents, 100, 5), Placed::SameAddress);
        assert_eq!(load(&mut extents, 104, 10), Placed::Overlap, "the end of one, the start of the other");
        assert_eq!(extents.living(), (1, 10));
        assert_eq!(load(&mut extents, 0, 1000), Placed::Overlap);
        assert_eq!(extents.take(0).map(|extent| extent.end), Some(1000));
        assert_eq!(extents.living(), (0, 0));
    }

    #[test]
    fn numbers_are_kept_in_runs() {
        let mut numbers = Numbers::default();
        for number in [5, 7, 6, 0, u64::MAX, 1] {
            assert!(numbers.insert(number), "{number}");
            assert!(!numbers.insert(number), "{number}");
        }
        assert_eq!(numbers.runs.into_iter().collect::<Vec<_>>(), [(0, 1), (5, 7), (u64::MAX, u64::MAX)]);
    }
}
