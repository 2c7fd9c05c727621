//! Whether code may have come and gone between two readings, so that neither has seen it.

use foldhash::HashSet;

/// The numbers of the compilations that were seen. The runtime counts them, and numbers each when it is asked for: it may
/// be there only after the next reading.
#[derive(Debug, Default)]
pub(super) struct Turnover {
    /// The highest that the reading before the last has seen, and the last. Those that come soon after another one are none.
    before: u32,
    last: u32,
    /// All above the first of them that were seen.
    seen: HashSet<u32>,
    highest: u32,
    is_soon: bool,
}

impl Turnover {
    /// This one is there.
    pub(super) fn see(&mut self, number: u32) {
        if number > self.before {
            self.seen.insert(number);
            self.highest = self.highest.max(number);
        }
    }

    /// Whether the next reading comes so soon after the last that what was asked for then may be there only after it.
    pub(super) fn comes_soon(&mut self, is_soon: bool) {
        self.is_soon = is_soon;
    }

    /// A reading has come to its end. Returns whether a number is missing of those that were given since the reading before
    /// the last: of code that is not there yet, that was never made, or that is there no more.
    pub(super) fn end_reading(&mut self) -> bool {
        let given = self.highest.saturating_sub(self.before);
        let is_missing = u32::try_from(self.seen.len()).is_ok_and(|seen| seen < given);
        if !self.is_soon {
            (self.before, self.last) = (self.last, self.highest);
            let before = self.before;
            self.seen.retain(|number| *number > before);
        }
        is_missing
    }

    /// Bytes that are kept, nearly.
    pub(super) fn bytes(&self) -> usize {
        self.seen.capacity() * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(readings: &[&[u32]]) -> Vec<bool> {
        let mut turnover = Turnover::default();
        let read = |numbers: &&[u32]| {
            numbers.iter().for_each(|number| turnover.see(*number));
            turnover.end_reading()
        };
        readings.iter().map(read).collect()
    }

    #[test]
    fn a_number_that_no_reading_has_seen_is_missing_until_it_is_old() {
        assert_eq!(missing(&[&[1, 2], &[4, 3], &[5], &[]]), [false; 4]);
        assert_eq!(missing(&[&[1, 2], &[3, 5], &[6], &[7], &[8]]), [false, true, true, false, false]);
    }

    #[test]
    fn what_was_on_its_way_at_the_last_reading_is_missing_till_it_is_there() {
        assert_eq!(missing(&[&[1], &[3], &[2, 4], &[5]]), [false, true, false, false]);
    }

    #[test]
    fn readings_that_come_soon_make_no_missing_number_old() {
        let mut turnover = Turnover::default();
        let mut read = |number: u32, is_soon: bool| {
            turnover.see(number);
            turnover.comes_soon(is_soon);
            turnover.end_reading()
        };
        assert!(!read(1, false));
        for number in 3..9 {
            assert!(read(number, true), "2 may come and go at any time");
        }
        assert_eq!([9, 10, 11].map(|number| read(number, false)), [true, true, false]);
    }

    #[test]
    fn no_number_is_too_high() {
        assert_eq!(missing(&[&[u32::MAX], &[7], &[0, u32::MAX]]), [true, true, false]);
    }
}
