//! Whether a place in Ruby's heap still has what it had when a sample was taken.
//!
//! Code that nothing calls any more is freed, and other code is put at its place. A sample is named later, so it takes along
//! how many collections have marked what lives, how many of them were major ones, and whether the code was old. What is young
//! is freed by the next one at the earliest; what is put there then is young until the one after that marks it. What is old is
//! freed by a major one alone, bit by bit until the next one begins, or moved by one that compacts.

use jitprof_common::listed::{Field, STATE_WORDS, Step};
use jitprof_common::units::Avma;

use crate::listed::follow;
use crate::{Memory, Reader};

/// Where in the collector its flags are.
const FLAGS: u16 = 0x10;
/// Of the flags: objects are being moved.
const IS_MOVING: u64 = 1 << 6;
/// Where in a sample's second word the number of major collections ends, and how often objects were moved begins.
const MOVED_AT: u8 = 48;
const MAJOR_BITS: u64 = (1 << MOVED_AT) - 1;
const MOVED_BITS: u64 = u64::MAX >> MOVED_AT;

/// What versions have differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CollectorOffsets {
    /// Where in the collector the number of minor collections is; behind it is that of major ones, and how often objects were
    /// moved.
    minor: u16,
    /// The bit of the flags that the last collection is a minor one, and the one that what lives is being marked step by step,
    /// while the program runs.
    is_minor: u8,
    is_marking: u8,
}

impl CollectorOffsets {
    pub(super) const OF_31: Self = Self { minor: 0x180, is_minor: 9, is_marking: 10 };
    pub(super) const OF_33: Self = Self { minor: 0x538, is_minor: 10, is_marking: 11 };

    fn major(self) -> u16 {
        self.minor + 8
    }

    fn moved(self) -> u16 {
        self.minor + 16
    }
}

/// Where the collector is, and how it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Collector {
    /// The steps to it.
    way: Vec<Step>,
    /// Where in it the number of collections is.
    count: u16,
    offsets: CollectorOffsets,
}

/// Collections that have marked what lives, as samples have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marked {
    count: u64,
    major: u64,
    moved: u64,
}

/// How far the collector is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    marked: Marked,
    is_moving: bool,
    is_minor: bool,
    is_marking: bool,
}

impl Collector {
    /// One that counts: the number of collections is the sum of two others, but while it is being changed.
    pub(super) fn new<M: Memory>(
        reader: &Reader<M>,
        (way, count): (Vec<Step>, u16),
        offsets: CollectorOffsets,
    ) -> Option<Self> {
        let place = follow(&way, 0, reader)?;
        let word = |at: u16| reader.u64(Avma(place.checked_add(at.into())?)).ok();
        let sum = word(offsets.minor)?.wrapping_add(word(offsets.major())?);
        (word(count)?.wrapping_sub(sum) <= 1).then_some(Self { way, count, offsets })
    }

    /// The steps to it.
    pub(super) fn way(&self) -> &[Step] {
        &self.way
    }

    /// What samples have of it, as [`Marked`].
    pub(super) fn fields(&self) -> [Field; 5] {
        let CollectorOffsets { is_marking, .. } = self.offsets;
        let marking = |to: u8| Field::new(FLAGS, 1 << is_marking, to, 64 - is_marking).minus();
        [
            Field::new(self.count, u64::MAX, 0, 0),
            marking(0),
            Field::new(self.offsets.major(), MAJOR_BITS, 1, 0),
            marking(1),
            Field::new(self.offsets.moved(), MOVED_BITS, 1, MOVED_AT),
        ]
    }

    /// How far it is now.
    pub(super) fn now<M: Memory>(&self, reader: &Reader<M>) -> Option<Progress> {
        let place = follow(&self.way, 0, reader)?;
        let word = |at: u16| {
            let mut word = [0; 8];
            let read = reader.now(Avma(place.checked_add(at.into())?), &mut word).ok()?;
            (read == word.len()).then(|| u64::from_le_bytes(word))
        };
        let (flags, offsets) = (word(FLAGS)?, self.offsets);
        let numbers = [word(self.count)?, word(offsets.major())?, word(offsets.moved())?];
        Some(Progress::of(flags, offsets, numbers))
    }
}

impl Marked {
    pub(super) fn of([count, rest]: [u64; STATE_WORDS]) -> Self {
        Self { count, major: rest & MAJOR_BITS, moved: rest >> MOVED_AT }
    }

    /// Whether what a stack had then, and was old or not, is what there is now.
    pub(super) fn is_same(self, was_old: bool, now: Progress, is_old: bool) -> bool {
        let since =
            if was_old { now.marked.major.checked_sub(self.major) } else { now.marked.count.checked_sub(self.count) };
        let is_same = match since {
            Some(0) => true,
            // What has come since then is young until the next one marks it.
            Some(1) => is_old && !now.is_marking && !(was_old && now.is_minor),
            _ => false,
        };
        is_same && self.moved == now.marked.moved && !now.is_moving
    }
}

impl Progress {
    /// From its flags and how many collections have begun, major ones of them, and how often objects were moved.
    fn of(flags: u64, offsets: CollectorOffsets, [count, major, moved]: [u64; 3]) -> Self {
        let [is_minor, is_marking] = [offsets.is_minor, offsets.is_marking].map(|bit| flags >> bit & 1 == 1);
        let [count, major] = [count, major & MAJOR_BITS].map(|begun| begun.saturating_sub(is_marking.into()));
        let marked = Marked { count, major, moved: moved & MOVED_BITS };
        Self { marked, is_moving: flags & IS_MOVING != 0, is_minor, is_marking }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const IS_MINOR: u64 = 1 << 9;
    const IS_MARKING: u64 = 1 << 10;

    fn at(count: u64, major: u64, flags: u64) -> Progress {
        Progress::of(flags, CollectorOffsets::OF_31, [count, major, 0])
    }

    /// What there is now, compared with what was there then.
    fn is_same(then: Progress, was_old: bool, now: Progress, is_old: bool) -> bool {
        then.marked.is_same(was_old, now, is_old)
    }

    #[test]
    fn what_is_young_is_the_same_before_the_next_collection_has_marked() {
        let of_young = |then, now, is_old| is_same(then, false, now, is_old);
        assert!(of_young(at(7, 1, 0), at(7, 1, 0), false));
        assert!(of_young(at(7, 1, 0), at(8, 2, IS_MARKING), false), "nothing is freed yet");
        assert!(of_young(at(8, 2, IS_MARKING), at(8, 2, IS_MARKING), false));
        assert!(!of_young(at(7, 1, 0), at(8, 1, IS_MINOR), false), "freed by it, and young");
        assert!(of_young(at(7, 1, 0), at(8, 1, IS_MINOR), true), "what is old now was there before");
        assert!(!of_young(at(7, 1, 0), at(9, 1, IS_MINOR), true), "or has grown old since");
        assert!(!of_young(at(7, 1, 0), at(9, 2, IS_MARKING), true), "or does just now");
        assert!(!of_young(at(8, 2, IS_MARKING), at(8, 2, 0), false), "its marking has gone on without it");
        assert!(of_young(at(8, 2, IS_MARKING), at(8, 2, 0), true));
        assert!(!of_young(at(8, 1, 0), at(7, 1, 0), true), "a collector does not go back");
    }

    #[test]
    fn what_is_old_is_the_same_before_the_next_major_collection_has_marked() {
        let of_old = |then, now, is_old| is_same(then, true, now, is_old);
        assert!(of_old(at(7, 1, 0), at(99, 1, IS_MINOR), true));
        assert!(of_old(at(7, 1, 0), at(99, 2, IS_MARKING), true), "nothing is freed yet");
        assert!(of_old(at(7, 1, 0), at(99, 2, 0), true), "what has come then is young");
        assert!(!of_old(at(7, 1, 0), at(99, 2, 0), false));
        assert!(!of_old(at(7, 1, 0), at(99, 2, IS_MINOR), true), "or has grown old since");
        assert!(!of_old(at(7, 1, 0), at(99, 3, IS_MARKING), true), "a second one");
        let moved = Progress::of(IS_MINOR, CollectorOffsets::OF_31, [7, 1, 1]);
        assert!(!of_old(at(7, 1, 0), moved, true) && !of_old(at(7, 1, 0), at(7, 1, IS_MOVING), true));
    }

    /// A collector with one place, as Ruby's works.
    #[derive(Clone, Debug, Default)]
    struct Heap {
        count: u64,
        major: u64,
        is_minor: bool,
        /// 0: not at work; 1: marks step by step; 2: sweeps.
        phase: u8,
        /// What is there, how many collections have marked it, and whether the one at work has.
        object: Option<(u32, u8, bool)>,
        /// A stack or a class has it.
        is_held: bool,
        made: u32,
    }

    impl Heap {
        fn step(&mut self, what: u8) {
            match what % 8 {
                // A minor collection marks at once, and so do some major ones.
                0 | 1 if self.phase != 1 => {
                    self.finish();
                    self.begin(what % 8 == 1);
                    self.mark();
                    self.phase = 2;
                }
                2 if self.phase != 1 => {
                    self.finish();
                    self.begin(true);
                    self.phase = 1;
                }
                3 if self.phase == 1 => self.mark(),
                4 if self.phase == 1 => {
                    self.mark();
                    self.phase = 2;
                }
                5 => self.finish(),
                6 => self.is_held = false,
                7 if self.object.is_none() => {
                    self.made += 1;
                    // What is being swept is swept already where something is made.
                    (self.object, self.is_held) = (Some((self.made, 0, self.phase == 2)), true);
                }
                _ => {}
            }
        }

        fn begin(&mut self, is_major: bool) {
            self.count += 1;
            self.major += u64::from(is_major);
            self.is_minor = !is_major;
            // A minor one takes what is old as marked.
            self.object = self.object.map(|(id, age, _)| (id, age, age > 0 && !is_major));
        }

        fn mark(&mut self) {
            if let Some((_, age, is_marked)) = &mut self.object
                && self.is_held
                && !*is_marked
            {
                (*age, *is_marked) = (1, true);
            }
        }

        /// Sweeps to the end.
        fn finish(&mut self) {
            if self.phase == 2 && self.object.is_some_and(|(_, _, is_marked)| !is_marked) {
                self.object = None;
            }
            if self.phase == 2 {
                self.phase = 0;
            }
        }

        fn progress(&self) -> Progress {
            let flag = |is_set, bit| if is_set { bit } else { 0 };
            at(self.count, self.major, flag(self.is_minor, IS_MINOR) | flag(self.phase == 1, IS_MARKING))
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2048))]
        #[test]
        fn nothing_is_taken_for_another_thing(
            steps in prop::collection::vec((any::<u8>(), any::<u8>()), 1..400),
        ) {
            let (mut heap, mut samples, mut lasting) = (Heap::default(), Vec::new(), Vec::new());
            for (what, which) in steps {
                heap.step(what);
                let Some((id, age, _)) = heap.object else { continue };
                if heap.is_held {
                    samples.push((heap.progress().marked, age > 0, id));
                }
                if which % 3 > 0 && !samples.is_empty() {
                    let (then, was_old, sampled) = samples[samples.len() - 1 - usize::from(which) % samples.len().min(16)];
                    let is_same = then.is_same(was_old, heap.progress(), age > 0);
                    prop_assert!(!is_same || sampled == id, "{sampled} was taken for {id}");
                    if is_same && was_old {
                        lasting.push((then, id));
                    }
                }
            }
            // Of what was old, after any number of minor collections.
            for (then, id) in lasting {
                let is_like = |other: &Marked| (other.major, other.moved) == (then.major, then.moved);
                let mut others = samples.iter().filter(|(other, was_old, _)| *was_old && is_like(other));
                prop_assert!(others.all(|(_, _, other)| *other == id), "another was like {id}");
            }
        }
    }
}
