//! Which elements of an array map are free, in use, or in their grace.

use std::collections::{BTreeMap, VecDeque};

use jitprof_common::table::Span;

use jitprof_common::units::MonoNs;

/// How long a span that was given back may still be read: far longer than any sample takes.
const GRACE_NS: u64 = 1_000_000_000;

/// First-fit allocation of element ranges, with a grace before a range is used again.
#[derive(Debug)]
pub(super) struct Extents {
    /// Free ranges: first element, count. Neighbours are joined.
    free: BTreeMap<u32, u32>,
    retired: VecDeque<(MonoNs, Span)>,
    used: u32,
}

impl Extents {
    /// All `capacity` elements are free.
    pub(super) fn new(capacity: u32) -> Self {
        Self { free: BTreeMap::from([(0, capacity)]), retired: VecDeque::new(), used: 0 }
    }

    /// A range of `count` elements, or `None` if there is none.
    pub(super) fn take(&mut self, count: u32) -> Option<Span> {
        let (first, found) = self.free.iter().find(|(_, free)| **free >= count).map(|(first, free)| (*first, *free))?;
        self.free.remove(&first);
        if found > count {
            self.free.insert(first + count, found - count);
        }
        self.used += count;
        Some(Span { first, count })
    }

    /// Gives a range back; readers may still look at it for a while.
    pub(super) fn retire(&mut self, span: Span, now: MonoNs) {
        if span.count > 0 {
            self.retired.push_back((now, span));
        }
    }

    /// Frees what no reader can look at any more, and tells of it.
    pub(super) fn reclaim(&mut self, now: MonoNs, mut freed: impl FnMut(Span)) {
        while let Some((since, span)) = self.retired.front().copied() {
            if now.0.saturating_sub(since.0) < GRACE_NS {
                break;
            }
            self.retired.pop_front();
            self.release(span);
            freed(span);
        }
    }

    /// Asserts that what is used is these spans and those in their grace, and that none overlap.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn assert_owned<'a>(&'a self, owned: impl Iterator<Item = &'a Span>) {
        let retired = self.retired.iter().map(|(_, span)| span);
        let mut all: Vec<(u32, u32)> = owned.chain(retired).map(|span| (span.first, span.count)).collect();
        assert_eq!(self.used, all.iter().map(|(_, count)| count).sum::<u32>());
        all.extend(self.free.iter().map(|(first, count)| (*first, *count)));
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0].0 + pair[0].1 == pair[1].0), "every element is somewhere, once");
    }

    /// Elements in use, retired ones included.
    pub(super) fn used(&self) -> u32 {
        self.used
    }

    /// Whether ranges are in their grace.
    pub(super) fn is_returning(&self) -> bool {
        !self.retired.is_empty()
    }

    fn release(&mut self, span: Span) {
        self.used = self.used.saturating_sub(span.count);
        let (mut first, mut count) = (span.first, span.count);
        if let Some((before, free)) = self.free.range(..first).next_back().map(|(a, b)| (*a, *b))
            && before + free == first
        {
            self.free.remove(&before);
            first = before;
            count += free;
        }
        if let Some(free) = self.free.remove(&(first + count)) {
            count += free;
        }
        self.free.insert(first, count);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_retired_range_is_not_used_again_before_its_grace_is_over() {
        let mut space = Extents::new(10);
        let span = space.take(10).unwrap();
        space.retire(span, MonoNs(0));
        space.reclaim(MonoNs(GRACE_NS - 1), |_| {});
        assert_eq!(space.take(1), None);
        space.reclaim(MonoNs(GRACE_NS), |_| {});
        assert_eq!(space.take(10), Some(span));
    }

    proptest! {
        #[test]
        fn ranges_never_overlap_and_all_come_back(sizes in proptest::collection::vec(1u32..50, 1..100)) {
            let mut space = Extents::new(1000);
            let mut held: Vec<Span> = Vec::new();
            for (turn, size) in sizes.iter().enumerate() {
                if turn % 3 == 2 && !held.is_empty() {
                    space.retire(held.swap_remove(turn % held.len()), MonoNs(0));
                    space.reclaim(MonoNs(GRACE_NS), |_| {});
                }
                if let Some(span) = space.take(*size) {
                    for other in &held {
                        prop_assert!(span.first + span.count <= other.first || other.first + other.count <= span.first);
                    }
                    held.push(span);
                }
            }
            for span in held {
                space.retire(span, MonoNs(0));
            }
            space.reclaim(MonoNs(GRACE_NS), |_| {});
            prop_assert_eq!(space.used(), 0);
            prop_assert!(space.take(1000).is_some());
        }
    }
}
