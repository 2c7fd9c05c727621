//! Whether the compilers have made code that no reading has seen.
//!
//! A number of a compilation that is missing may be of code that was never made: most are, where the compilers have much to
//! do or little room. What they have made the runtime counts for its tools, in `PerfMemory`, a moment after the code is there.
//! As long as as much more is counted than was seen as there was before, none has come and gone.

use foldhash::HashSet;
use jitprof_common::units::Avma;

use super::code_cache::{Blob, Change, Kind, Update};
use super::layout::Layout;
use super::unloads::find_counters;
use crate::{Memory, Reader};

/// Compilations that have led to code, by all compilers.
const NAME: &[u8] = b"sun.ci.totalCompiles";

/// What was compiled, and how much of it was seen.
#[derive(Debug, Default)]
pub struct Compilations {
    counter: Option<Avma>,
    /// Compiled methods that readings have found.
    seen: u64,
    /// The numbers of those that the last reading has found gone: one that it has passed over is found again.
    gone: HashSet<u32>,
    /// How many more were counted than seen, at least, by a reading that had them all before it.
    unseen: Option<i64>,
    /// How many the last reading has seen by then, and how many were counted afterwards.
    last: Option<(u64, u64)>,
}

impl Compilations {
    /// Bytes that are kept, nearly.
    pub fn bytes(&self) -> usize {
        self.gone.capacity() * 8
    }

    /// How many there were by now. Nothing if the runtime does not count, or that cannot be read.
    pub fn count<M: Memory>(&mut self, layout: &Layout, reader: &Reader<M>) -> Option<u64> {
        if self.counter.is_none() {
            [self.counter] = find_counters(layout, reader, [NAME]).ok()?;
        }
        let mut word = [0; 8];
        let count = reader.now(self.counter?, &mut word).ok()?;
        (count == word.len()).then_some(u64::from_le_bytes(word))
    }

    /// Whether compiled methods may have come and gone between a reading and the one before, with what was counted before it
    /// and afterwards. Each reading is to be said, in order.
    pub fn may_hide(&mut self, update: &Update, counts: [Option<u64>; 2]) -> bool {
        self.see(&update.changes);
        if update.incomplete.is_some() {
            return true;
        }
        let [Some(before), Some(after)] = counts else {
            self.unseen = None;
            return true;
        };
        let seen = self.seen;
        let unseen = |count: u64| count.wrapping_sub(seen).cast_signed();
        // Fewer are as little known as more: one that was seen is not counted yet, and another one may stand for it.
        let may_hide = self.unseen != Some(unseen(after));
        if (update.damaged, update.unsettled) == (0, 0) {
            // Where nothing has changed nothing is on its way: what is still not counted never will be.
            let is_still = self.last.replace((seen, after)) == Some((seen, after));
            self.unseen = self.unseen.filter(|_| !is_still).max(Some(unseen(before)));
        }
        may_hide
    }

    fn see(&mut self, changes: &[Change]) {
        let number = |blob: &Blob| matches!(blob.kind, Kind::Method(_)).then_some(blob.compile_id);
        let gone = changes.iter().filter_map(|change| match change {
            Change::Unloaded(blob) => number(blob),
            Change::Loaded(_) => None,
        });
        let gone: HashSet<u32> = gone.collect();
        let new = changes.iter().filter_map(|change| match change {
            Change::Loaded(blob) => number(blob),
            Change::Unloaded(_) => None,
        });
        let new = new.filter(|number| !gone.contains(number) && !self.gone.contains(number)).count();
        self.seen = self.seen.saturating_add(new as u64);
        self.gone = gone;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::hotspot::tests::layout_with_counters;
    use crate::hotspot::unloads::tests::{AT, Bytes, ENOUGH, counters};
    use crate::hotspot::{BlobName, FrameShape, Tier};

    fn compiled(number: u32) -> Arc<Blob> {
        Arc::new(Blob {
            id: 0,
            header: Avma(0x1000),
            code: Avma(0x1100),
            code_bytes: 16,
            kind: Kind::Method(Tier::C1),
            compile_id: number,
            frame: FrameShape::Unknown,
            verified_entry: 0,
            osr_bci: None,
            deopt_handlers: [None; 3],
            original_pc: None,
            method: Avma(8),
            name: BlobName::Blob("nmethod".into()),
        })
    }

    fn update(gone: &[u32], new: &[u32]) -> Update {
        let gone = gone.iter().map(|number| Change::Unloaded(compiled(*number)));
        let changes = gone.chain(new.iter().map(|number| Change::Loaded(compiled(*number)))).collect();
        Update { changes, damaged: 0, unsettled: 0, unseen: true, incomplete: None }
    }

    /// What readings say, of which each has found so many counted, and these methods gone and new.
    fn hides(compilations: &mut Compilations, readings: &[(u64, &[u32], &[u32])]) -> Vec<bool> {
        let hides = |(count, gone, new): &(u64, &[u32], &[u32])| {
            compilations.may_hide(&update(gone, new), [Some(*count), Some(*count)])
        };
        readings.iter().map(hides).collect()
    }

    #[test]
    fn code_has_come_and_gone_where_more_was_made_than_was_found() {
        let mut compilations = Compilations::default();
        // Of what was freed before the first reading nothing is known.
        assert_eq!(hides(&mut compilations, &[(10, &[], &[1, 2, 3, 4]), (10, &[], &[])]), [true, false]);
        // Numbers 6 and 7 were never made.
        assert_eq!(hides(&mut compilations, &[(12, &[2], &[5, 8])]), [false]);
        assert_eq!(
            hides(&mut compilations, &[(14, &[], &[9]), (14, &[], &[]), (15, &[], &[11])]),
            [true, false, false]
        );
    }

    #[test]
    fn what_is_not_counted_yet_hides_nothing_later() {
        let mut compilations = Compilations::default();
        hides(&mut compilations, &[(4, &[], &[1, 2])]);
        assert_eq!(hides(&mut compilations, &[(4, &[], &[3]), (5, &[], &[]), (6, &[], &[])]), [true, false, true]);
    }

    #[test]
    fn what_is_never_counted_is_left_out_once_nothing_changes() {
        let mut compilations = Compilations::default();
        hides(&mut compilations, &[(4, &[], &[1, 2])]);
        let readings: [(u64, &[u32], &[u32]); 4] = [(4, &[], &[3]), (4, &[], &[]), (4, &[], &[]), (5, &[], &[4])];
        assert_eq!(hides(&mut compilations, &readings), [true, true, false, false]);
    }

    #[test]
    fn code_that_a_reading_has_passed_over_or_not_named_is_one_all_the_same() {
        let mut compilations = Compilations::default();
        let readings: [(u64, &[u32], &[u32]); 4] = [(2, &[], &[1, 2]), (2, &[1], &[]), (2, &[], &[1]), (2, &[2], &[2])];
        assert_eq!(hides(&mut compilations, &readings), [true, false, false, false]);
    }

    #[test]
    fn what_a_reading_did_not_come_to_or_nobody_counts_may_hide_anything() {
        let mut compilations = Compilations::default();
        hides(&mut compilations, &[(2, &[], &[1, 2])]);
        let cut = Update { incomplete: Some(crate::ReadError::OverBudget), ..update(&[], &[3]) };
        assert!(compilations.may_hide(&cut, [Some(3); 2]));
        assert_eq!(hides(&mut compilations, &[(4, &[], &[4])]), [false]);
        // One that was there and could not be read is counted, and not found.
        let damaged = Update { damaged: 1, ..update(&[], &[]) };
        assert!(compilations.may_hide(&damaged, [Some(5); 2]));
        assert_eq!(hides(&mut compilations, &[(5, &[], &[5])]), [false]);
        assert!(compilations.may_hide(&update(&[], &[]), [None, Some(5)]));
        assert_eq!(hides(&mut compilations, &[(5, &[], &[]), (5, &[], &[])]), [true, false]);
    }

    #[test]
    fn the_runtime_is_asked_what_it_counts() {
        let bytes = counters(&[("sun.ci.totalTime", 7), ("sun.ci.totalCompiles", 812), ("sun.ci.osrCompiles", 9)]);
        let (layout, reader) = (layout_with_counters(Some(Avma(AT))), Reader::new(Bytes(bytes), ENOUGH));
        assert_eq!(Compilations::default().count(&layout, &reader), Some(812));
        let without = Reader::new(Bytes(counters(&[("sun.ci.totalTime", 7)])), ENOUGH);
        assert_eq!(Compilations::default().count(&layout, &without), None);
        assert_eq!(Compilations::default().count(&layout_with_counters(None), &reader), None);
    }
}
