//! Frames that an interpreter keeps in a list of its own, in the stack of the native ones.
//!
//! Each run of its evaluation loop is a native frame, and in the list there is a mark where one began. So what the list has
//! up to its first mark ran in the innermost loop, and so on. Where there are not as many marks as loops, nothing is guessed:
//! both parts are shown apart.

use jitprof_common::listed::Record;
use jitprof_common::sample::FramePc;
use jitprof_common::units::MonoNs;

use crate::engine::border::FrameList;
use crate::engine::frames::{Asked, Frames};
use crate::runtime::{EntryMark, FrameAsk};

/// Bits of the second word of a record that are an address; those above say whose the frame is.
const ADDRESS_BITS: u32 = 56;

/// The list of a sample, with what was asked about its frames.
#[derive(Debug, Default)]
pub(super) struct Listed {
    /// By record.
    pub(super) asked: Asked,
    /// Which records are the frames of each loop, from the innermost.
    loops: Box<[(u16, u16)]>,
    /// Frames without a loop are left, or records.
    is_torn: bool,
}

impl Listed {
    /// Asks about the frames of a list.
    pub(super) fn ask(list: &FrameList, mark: EntryMark, time: MonoNs, frames: &mut Frames) -> Self {
        let (loops, rest) = loops(&list.records, mark);
        let ask = |at: u16| {
            let [code, place] = *list.records.get(usize::from(at))?;
            let words = [code, place & ((1 << ADDRESS_BITS) - 1)];
            Some((at, FrameAsk { words: words.into(), ..FrameAsk::of_list() }))
        };
        let records = loops.iter().chain([&rest]).flat_map(|(from, to)| *from..*to);
        let asked = frames.want_records(records.filter_map(ask), time);
        Self { asked, is_torn: !list.is_whole || rest.0 < rest.1, loops: with_rest(loops, rest).into() }
    }

    /// Which records belong to which user frames: of each, its index and its records, from the innermost; `in_loop` are the
    /// user frames in an evaluation loop. Nothing if that cannot be known.
    pub(super) fn placed(&self, in_loop: &[usize]) -> Option<Vec<(usize, (u16, u16))>> {
        if self.is_torn {
            return None;
        }
        let own = match in_loop.len().checked_sub(self.loops.len())? {
            0 => in_loop,
            // It is about to begin, and has no frame yet, or about to end.
            1 => in_loop.strip_prefix(&[0])?,
            _ => return None,
        };
        Some(own.iter().copied().zip(self.loops.iter().copied()).collect())
    }

    /// All frames, from the innermost.
    pub(super) fn all(&self) -> impl Iterator<Item = u16> {
        self.loops.iter().flat_map(|(from, to)| *from..*to)
    }
}

fn with_rest(mut loops: Vec<(u16, u16)>, rest: (u16, u16)) -> Vec<(u16, u16)> {
    if rest.0 < rest.1 {
        loops.push(rest);
    }
    loops
}

/// The records of each loop, and those outside of any.
fn loops(records: &[Record], mark: EntryMark) -> (Vec<(u16, u16)>, (u16, u16)) {
    let count = u16::try_from(records.len()).unwrap_or(u16::MAX);
    let is_mark = |[_, place]: &Record| place >> ADDRESS_BITS >= u64::from(mark.least);
    // The outermost is no frame, and no loop has begun at it.
    let has_base = mark.has_base && records.last().is_some_and(is_mark);
    let count = if has_base { count.saturating_sub(1) } else { count };
    let (mut loops, mut from) = (Vec::new(), 0);
    for (at, record) in (0..count).zip(records) {
        if is_mark(record) {
            loops.push((from, if mark.is_frame { at + 1 } else { at }));
            from = at + 1;
        }
    }
    (loops, (from, count))
}

/// Whether a list is to be waited for.
pub(super) fn is_settled(listed: Option<&Listed>, frames: &Frames, time: MonoNs) -> bool {
    listed.is_none_or(|listed| frames.is_settled(&listed.asked, time))
}

impl FrameAsk {
    /// A frame of a list, without what was taken along of it.
    fn of_list() -> Self {
        Self { pc: FramePc(0), in_module: None, reads: 0, words: Box::default(), registers: None, code: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHIM: EntryMark = EntryMark { least: 3, is_frame: false, has_base: false };

    fn records(owners: &[u64]) -> Vec<Record> {
        owners.iter().map(|owner| [0x1000, owner << ADDRESS_BITS | 0x2000]).collect()
    }

    #[test]
    fn what_lies_before_a_mark_ran_in_the_loop_that_began_there() {
        assert_eq!(loops(&records(&[0, 1, 3, 0, 3, 3]), SHIM), (vec![(0, 2), (3, 4), (5, 5)], (6, 6)));
        assert_eq!(loops(&records(&[0, 3, 0]), SHIM), (vec![(0, 1)], (2, 3)));
        assert_eq!(loops(&[], SHIM), (vec![], (0, 0)));
    }

    #[test]
    fn a_mark_may_be_a_frame_and_the_outermost_one_none_at_all() {
        let of_311 = EntryMark { least: 1, is_frame: true, has_base: false };
        assert_eq!(loops(&records(&[0, 1, 0, 0, 1]), of_311), (vec![(0, 2), (2, 5)], (5, 5)));
        let of_315 = EntryMark { has_base: true, ..SHIM };
        assert_eq!(loops(&records(&[0, 3, 0, 4, 3]), of_315), (vec![(0, 1), (2, 3)], (4, 4)));
        assert_eq!(loops(&records(&[0, 3, 0]), of_315), (vec![(0, 1)], (2, 3)));
    }

    #[test]
    fn as_many_marks_as_loops_are_placed_and_a_loop_that_has_no_frame_yet() {
        let listed = |owners: &[u64], is_whole: bool| {
            let list = FrameList { records: records(owners), is_whole };
            Listed::ask(&list, SHIM, MonoNs(1), &mut Frames::default())
        };
        let two = listed(&[0, 3, 0, 0, 3], true);
        assert_eq!(two.placed(&[1, 4]), Some(vec![(1, (0, 1)), (4, (2, 4))]));
        assert_eq!(two.placed(&[0, 1, 4]), Some(vec![(1, (0, 1)), (4, (2, 4))]));
        for apart in [&[2, 3, 4][..], &[1], &[], &[0, 1, 2, 3]] {
            assert_eq!(two.placed(apart), None, "{apart:?}");
        }
        assert_eq!(two.all().collect::<Vec<_>>(), [0, 2, 3]);
        assert_eq!(listed(&[0, 3], false).placed(&[1]), None, "there may be more");
        let torn = listed(&[0, 3, 0], true);
        assert_eq!((torn.placed(&[1]), torn.all().collect::<Vec<_>>()), (None, vec![0, 2]));
    }
}
