//! Which method's code lies where now: disjoint ranges of addresses.
//!
//! A sorted array in pieces instead of a B-tree, because a B-tree of std ends the process when memory is short. 16
//! bytes a region, two thirds of them used; an insertion moves at most a piece.

/// Regions in a piece: 8 KiB.
const PIECE: usize = 512;

/// One stretch of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    /// First byte.
    pub(crate) start: u64,
    /// Bytes, not 0.
    pub(crate) size: u32,
    /// The method's number; 0 for code that has none.
    pub(crate) method: u32,
}

impl Region {
    /// The first byte behind it.
    pub(crate) fn end(&self) -> u64 {
        self.start.saturating_add(u64::from(self.size))
    }
}

/// All regions, by address.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    /// None is empty.
    pieces: Vec<Vec<Region>>,
    len: usize,
}

impl Regions {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds a region that overlaps none; false if memory is short.
    pub(crate) fn insert(&mut self, region: Region) -> bool {
        let index = self.piece_of(region.start);
        if self.pieces.is_empty() {
            if self.pieces.try_reserve(1).is_err() {
                return false;
            }
            self.pieces.push(Vec::new());
        }
        if self.pieces.get(index).is_some_and(|piece| piece.len() >= PIECE) && !self.split(index) {
            return false;
        }
        let index = self.piece_of(region.start);
        let Some(piece) = self.pieces.get_mut(index) else { return false };
        if piece.try_reserve(1).is_err() {
            return false;
        }
        let at = piece.partition_point(|known| known.start < region.start);
        piece.insert(at, region);
        self.len += 1;
        true
    }

    /// Takes out the region that begins at `start`.
    pub(crate) fn remove(&mut self, start: u64) -> Option<Region> {
        let index = self.piece_of(start);
        let piece = self.pieces.get_mut(index)?;
        let at = piece.binary_search_by_key(&start, |region| region.start).ok()?;
        let region = piece.remove(at);
        if piece.is_empty() {
            self.pieces.remove(index);
        }
        self.len -= 1;
        Some(region)
    }

    /// The region that holds `address`.
    pub(crate) fn at(&self, address: u64) -> Option<Region> {
        let piece = self.pieces.get(self.piece_of(address))?;
        let after = piece.partition_point(|region| region.start <= address);
        let region = *piece.get(after.checked_sub(1)?)?;
        (address < region.end()).then_some(region)
    }

    /// The first region that shares a byte with `start..end`.
    pub(crate) fn first_in(&self, start: u64, end: u64) -> Option<Region> {
        if let Some(region) = self.at(start) {
            return Some(region);
        }
        let index = self.piece_of(start);
        let piece = self.pieces.get(index)?;
        let at = piece.partition_point(|region| region.start < start);
        let next = piece.get(at).or_else(|| self.pieces.get(index + 1)?.first());
        next.filter(|region| region.start < end).copied()
    }

    /// The piece that holds `start`, or would.
    fn piece_of(&self, start: u64) -> usize {
        let after = self.pieces.partition_point(|piece| piece.first().is_some_and(|region| region.start <= start));
        after.saturating_sub(1)
    }

    fn split(&mut self, index: usize) -> bool {
        let mut upper = Vec::new();
        if upper.try_reserve(PIECE).is_err() || self.pieces.try_reserve(1).is_err() {
            return false;
        }
        let Some(piece) = self.pieces.get_mut(index) else { return false };
        upper.extend(piece.drain(PIECE / 2..));
        self.pieces.insert(index + 1, upper);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn it_says_what_an_ordered_map_says() {
        const LONGEST: u64 = 40;
        let (mut regions, mut model) = (Regions::default(), BTreeMap::new());
        let mut seed = 1_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for _ in 0..60_000 {
            let start = random(20_000) * 16;
            let size = u32::try_from(random(LONGEST)).unwrap() + 1;
            let end = start + u64::from(size);
            // What begins further below is too short to reach up to here.
            let near = model.range(start.saturating_sub(LONGEST)..end);
            let overlapped: Vec<u64> =
                near.filter(|(at, size)| *at + u64::from(**size) > start).map(|(at, _)| *at).collect();
            assert_eq!(regions.first_in(start, end).map(|region| region.start), overlapped.first().copied());
            for at in overlapped {
                assert!(regions.remove(at).is_some());
                model.remove(&at);
            }
            if random(5) > 0 {
                assert!(regions.insert(Region { start, size, method: 1 }));
                model.insert(start, size);
            }
            assert_eq!(regions.len(), model.len());
            let probe = random(320_000);
            let known = model.range(..=probe).next_back().filter(|(at, size)| probe < *at + u64::from(**size));
            assert_eq!(regions.at(probe).map(|region| region.start), known.map(|(at, _)| *at));
        }
        assert!(regions.pieces.len() > 3, "pieces were split");
    }
}
