//! Words that are followed in memory.

use super::stack::{MAX_DEPTH, Word};

/// Places that are followed at a time. BEAM's switch of stacks takes three beside the frame's own.
const MAX_PLACES: usize = 6;

/// What a place is counted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Base {
    Cfa,
    /// A register of which no more is known.
    Register(u8),
}

/// The stack pointer.
const SP: Base = Base::Register(4);

impl Base {
    /// A register by its number, which is small: many of these are copied and compared.
    pub(super) fn register(number: usize) -> Self {
        Self::Register(u8::try_from(number).unwrap_or(u8::MAX))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Place {
    base: Base,
    at: i32,
    word: Word,
}

/// Places that hold what is followed, ascending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Places([Option<Place>; MAX_PLACES]);

impl Places {
    pub(super) const NONE: Self = Self([None; MAX_PLACES]);

    fn iter(&self) -> impl Iterator<Item = &Place> {
        self.0.iter().flatten()
    }

    /// The word of 8 bytes at a place.
    pub(super) fn get(&self, base: Base, at: i32) -> Word {
        self.iter().find(|place| (place.base, place.at) == (base, at)).map_or(Word::Other, |place| place.word)
    }

    /// Whether a followed word overlaps so many bytes.
    pub(super) fn holds(&self, base: Base, at: i32, bytes: i32) -> bool {
        let end = at.saturating_add(bytes);
        self.iter().any(|place| place.base == base && place.at.saturating_add(8) > at && place.at < end)
    }

    /// So many bytes are written; what overlaps is gone. Beyond the room for it a word is not followed.
    pub(super) fn set(&mut self, base: Base, at: i32, bytes: i32, word: Word) {
        let end = at.saturating_add(bytes);
        self.retain(|place| place.base != base || place.at.saturating_add(8) <= at || end <= place.at);
        if matches!(word, Word::Cfa(_) | Word::CallersFp)
            && let Some(free) = self.0.iter_mut().find(|place| place.is_none())
        {
            *free = Some(Place { base, at, word });
            self.sort();
        }
    }

    /// The register that leads to them has changed.
    pub(super) fn remove_base(&mut self, base: Base) {
        self.retain(|place| place.base != base);
    }

    /// A callee overwrites what lies below.
    pub(super) fn remove_below(&mut self, base: Base, at: i32) {
        self.retain(|place| place.base != base || place.at >= at);
    }

    /// The register that leads to them has been moved.
    pub(super) fn shift(&mut self, base: Base, bytes: i64) {
        for place in &mut self.0 {
            if let Some(moved) = place.as_mut().filter(|place| place.base == base) {
                let at = i64::from(moved.at).saturating_sub(bytes);
                match i32::try_from(at).ok().filter(|at| (0..MAX_DEPTH).contains(at)) {
                    Some(at) => moved.at = at,
                    None => *place = None,
                }
            }
        }
        self.sort();
    }

    /// What holds on both paths.
    pub(super) fn meet(&self, other: &Self) -> Self {
        let mut met = *self;
        met.retain(|place| other.get(place.base, place.at) == place.word);
        met
    }

    /// Addresses of the frame that are kept at a distance from the stack pointer on both paths, wherever it is on each.
    pub(super) fn meet_by_sp(
        &self,
        sp: Word,
        (other, other_sp): (&Self, Word),
    ) -> impl Iterator<Item = (Base, i32, Word)> {
        let met = self.by_sp(sp).meet(&other.by_sp(other_sp));
        met.0.into_iter().flatten().map(|place| (place.base, place.at, place.word))
    }

    /// These alone, counted from the stack pointer.
    fn by_sp(&self, sp: Word) -> Self {
        let mut places = *self;
        if let Word::Cfa(sp) = sp {
            for place in places.0.iter_mut().flatten().filter(|place| place.base == Base::Cfa && place.at >= sp) {
                (place.base, place.at) = (SP, place.at.saturating_sub(sp));
            }
        }
        places.retain(|place| place.base == SP && matches!(place.word, Word::Cfa(_)));
        places.sort();
        places
    }

    /// Where an address of the frame is kept at a distance from an unknown stack pointer, and which.
    pub(super) fn saved_sp(&self) -> Option<(i32, i32)> {
        self.iter().filter(|place| place.base == SP).find_map(|place| match place.word {
            Word::Cfa(at) => Some((place.at, at)),
            _ => None,
        })
    }

    /// The highest place in the frame with the caller's frame pointer, not below the lowest that counts.
    pub(super) fn saved_fp(&self, lowest: i32) -> Option<i32> {
        let saved = self.iter().filter(|place| place.base == Base::Cfa && place.word == Word::CallersFp);
        saved.map(|place| place.at).filter(|at| *at >= lowest).max()
    }

    pub(super) fn has_cfa(&self) -> bool {
        self.iter().any(|place| matches!(place.word, Word::Cfa(_)))
    }

    pub(super) fn depends_on_registers(&self) -> bool {
        self.iter().any(|place| place.base != Base::Cfa)
    }

    fn retain(&mut self, keep: impl Fn(&Place) -> bool) {
        let mut changed = false;
        for place in &mut self.0 {
            if place.as_ref().is_some_and(|place| !keep(place)) {
                *place = None;
                changed = true;
            }
        }
        if changed {
            self.sort();
        }
    }

    /// Equal contents are to be equal.
    fn sort(&mut self) {
        self.0.sort_unstable_by_key(|place| place.map_or((true, Base::Cfa, 0), |place| (false, place.base, place.at)));
    }
}
