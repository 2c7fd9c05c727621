//! Frames that an interpreter keeps in a list of its own, in the stack of the native ones.
//!
//! Each run of its evaluation loop is a native frame, and in the list there is a mark where one began. So what the list has
//! up to its first mark ran in the innermost loop, and so on. Where there are not as many marks as loops, nothing is guessed:
//! both parts are shown apart.

use jitprof_common::listed::Record;
use jitprof_common::sample::FramePc;
use jitprof_common::units::MonoNs;

use crate::engine::border::FrameList;
use crate::engine::exchanged::Exchanged;
use crate::engine::frames::{Asked, Frames};
use crate::runtime::{EntryMark, FrameAsk, ListCapture};

/// Bits of the second word of a record that are an address; those above say whose the frame is.
const ADDRESS_BITS: u32 = 56;
/// Bits of it that are the place in the function; between them is what is kept of the function itself.
const PLACE_BITS: u32 = 48;

/// The list of a sample, with what was asked about its frames.
#[derive(Debug, Default)]
pub(super) struct Listed {
    /// By record.
    pub(super) asked: Asked,
    /// Those records that say something, from the innermost.
    elements: Box<[Element]>,
    /// Elements that are marks are frames themselves.
    marks_are_frames: bool,
    is_whole: bool,
    /// It has more elements than a sample holds.
    is_cut: bool,
}

/// The loops in a sample's native stack.
#[derive(Clone, Copy, Debug)]
pub(super) struct NativeLoops<'a> {
    /// The user frames in one, from the innermost.
    pub(super) frames: &'a [usize],
    /// The stack may have more frames than those.
    pub(super) goes_on: bool,
    /// The innermost frame is in the first instructions of one, and may not be in the list yet.
    pub(super) begins: bool,
    /// Where others may have another list.
    pub(super) exchanged: &'a Exchanged,
}

impl<'a> NativeLoops<'a> {
    /// The loops of a list that has begun in so many, and those of other lists; nothing if it may be one or the other.
    fn of_list(&self, count: usize, may_be_late: bool) -> Option<(&'a [usize], &'a [usize])> {
        if self.exchanged.is_unsure() {
            return None;
        }
        if self.exchanged.keeps_outermost() {
            let (inner, own) = self.frames.split_at_checked(self.frames.len().checked_sub(count)?)?;
            let is_late = may_be_late && inner.len() == 1;
            let elsewhere = if self.exchanged.is_behind(inner.len()) { inner } else { &[] };
            return (!self.goes_on && (is_late || !elsewhere.is_empty())).then_some((own, elsewhere));
        }
        let ends_behind = |inner| inner == self.frames.len() || self.exchanged.is_behind(inner);
        let skipped = match (ends_behind(count), may_be_late && ends_behind(count + 1)) {
            (true, false) => 0,
            (false, true) => 1,
            (true, true) | (false, false) => return None,
        };
        let (own, elsewhere) = self.frames.split_at_checked(count + skipped)?;
        Some((own.get(skipped..)?, elsewhere))
    }
}

/// Which elements belong to which user frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Placed {
    /// Of each, its index and its part of the list, from the innermost.
    pub(super) parts: Vec<(usize, Part)>,
    /// User frames that are loops of another list, which is not there.
    pub(super) elsewhere: Vec<usize>,
}

impl Placed {
    fn of(loops: &[usize], parts: Vec<Part>, elsewhere: &[usize]) -> Self {
        Self { parts: loops.iter().copied().zip(parts).collect(), elsewhere: elsewhere.to_vec() }
    }

    /// What belongs to a user frame.
    pub(super) fn part_of(&self, index: usize) -> Option<Part> {
        self.parts.iter().find(|(at, _)| *at == index).map(|(_, part)| *part)
    }

    /// Whether a user frame has the outermost elements.
    pub(super) fn is_last(&self, index: usize) -> bool {
        self.parts.last().is_some_and(|(at, _)| *at == index)
    }
}

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Element {
    record: u16,
    /// A frame of the program, or of a function of the runtime's own.
    is_frame: bool,
    /// A loop has begun here, unless it is the frame of a function that runs in none.
    is_mark: bool,
}

/// From an element of a list to the one before which another loop has begun.
pub(super) type Part = (u16, u16);

impl Listed {
    /// Asks about the frames of a list.
    pub(super) fn ask(list: &FrameList, capture: &ListCapture, time: MonoNs, frames: &mut Frames) -> Self {
        let elements = elements(&list.records, capture.mark);
        let innermost = elements.first().map(|element| element.record).filter(|_| capture.tells_innermost);
        let ask = |element: &Element| {
            let [code, place] = *list.records.get(usize::from(element.record))?;
            let mut words = vec![code, place & ((1 << ADDRESS_BITS) - 1)];
            if capture.walk.has_state() {
                let [passing, lasting] = list.state;
                let is_lasting = place & capture.lasting == capture.lasting;
                words = vec![code, place, if is_lasting { 0 } else { passing }, lasting];
            } else if innermost == Some(element.record) {
                words.push(1);
            }
            Some((element.record, FrameAsk { words: words.into(), ..FrameAsk::of_list() }))
        };
        let wanted = elements.iter().filter(|element| element.is_frame).filter_map(ask);
        let asked = frames.want_records(wanted, time);
        let marks_are_frames = capture.mark.is_frame;
        let (is_whole, is_cut) = (list.is_whole, list.is_cut);
        Self { asked, elements: elements.into(), marks_are_frames, is_whole, is_cut }
    }

    /// Whether the outermost elements are missing, of which a sample holds no more.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Which elements belong to which user frames; `is_own` tells of a record whether it is a function of the runtime's own,
    /// which runs in none. Nothing if that cannot be known.
    pub(super) fn placed(&self, native: NativeLoops<'_>, is_own: impl Fn(u16) -> bool) -> Option<Placed> {
        let NativeLoops { frames: in_loop, goes_on, begins, exchanged } = native;
        let (mut loops, rest) = self.loops(&is_own);
        // The innermost loop may have no frame yet, which as many loops as parts rule out, if these are all.
        let may_be_late = in_loop.starts_with(&[0]);
        if self.is_cut {
            // Of the outermost loop that it reaches, the last elements are missing, and all of further ones.
            loops.push(rest);
            let are_as_many = in_loop.len() == loops.len() && !(may_be_late && goes_on);
            let is_sure = are_as_many || (in_loop.len() > loops.len() && !may_be_late);
            let is_innermost = !exchanged.keeps_outermost() && !exchanged.is_unsure();
            let is_sure = is_sure && is_innermost && self.frames(rest).next().is_some();
            return is_sure.then(|| Placed::of(in_loop, loops, &[]));
        }
        if !self.is_whole || !self.frames(rest).all(&is_own) {
            return None;
        }
        // What a fiber has begun with, before any loop: it stands with the first one.
        if let Some(outermost) = loops.last_mut() {
            outermost.1 = rest.1;
        }
        let (own, elsewhere) = match in_loop.len().checked_sub(loops.len())? {
            // The one that is about to be exchanged, or the first one's of which the outer loops lie behind the cut.
            0 if exchanged.is_unsure() || (goes_on && (may_be_late || exchanged.keeps_outermost())) => return None,
            0 => (in_loop, &[][..]),
            // It is about to begin, and has no frame yet, or about to end. In its midst it has one where marks are none. Where
            // marks are frames, a loop that ends looks like that one.
            _ => native.of_list(loops.len(), may_be_late && (begins || self.marks_are_frames))?,
        };
        Some(Placed::of(own, loops, elsewhere))
    }

    /// In how many loops its elements have begun.
    pub(super) fn loop_count(&self, is_own: impl Fn(u16) -> bool) -> usize {
        self.loops(&is_own).0.len()
    }

    /// Whether it has elements of more loops than so many; not if it is not whole.
    pub(super) fn has_more_loops_than(&self, count: usize, is_own: impl Fn(u16) -> bool) -> bool {
        self.is_whole && self.loop_count(is_own) > count
    }

    /// The elements of each loop, and those outside of any.
    fn loops(&self, is_own: &impl Fn(u16) -> bool) -> (Vec<Part>, Part) {
        let (mut loops, mut from) = (Vec::new(), 0);
        let count = u16::try_from(self.elements.len()).unwrap_or(u16::MAX);
        for (at, element) in (0..count).zip(&self.elements) {
            if element.is_mark && !(element.is_frame && is_own(element.record)) {
                loops.push((from, if self.marks_are_frames { at + 1 } else { at }));
                from = at + 1;
            }
        }
        (loops, (from, count))
    }

    /// The records of the frames of a part, from the innermost.
    pub(super) fn frames(&self, (from, to): Part) -> impl Iterator<Item = u16> {
        let part = self.elements.get(from.into()..to.into()).unwrap_or(&[]);
        part.iter().filter(|element| element.is_frame).map(|element| element.record)
    }

    /// Those of all frames.
    pub(super) fn all(&self) -> impl Iterator<Item = u16> {
        self.elements.iter().filter(|element| element.is_frame).map(|element| element.record)
    }
}

/// What the records of a list are.
fn elements(records: &[Record], mark: EntryMark) -> Vec<Element> {
    let is_mark = |[_, place]: &Record| place >> ADDRESS_BITS >= u64::from(mark.least);
    let is_nothing = |[_, place]: &Record| mark.no_frames >> (place >> ADDRESS_BITS & 15) & 1 == 1;
    // The outermost is no frame, and no loop has begun at it.
    let has_base = mark.has_base && records.last().is_some_and(is_mark);
    let records = if has_base { records.split_last().map_or(&[][..], |(_, rest)| rest) } else { records };
    let element = |(at, record): (u16, &Record)| {
        let is_mark = is_mark(record);
        let is_nothing = mark.is_frame && record[0] == 0 || is_nothing(record);
        (!is_nothing).then_some(Element { record: at, is_frame: mark.is_frame || !is_mark, is_mark })
    };
    (0..).zip(records).filter_map(element).collect()
}

/// Whether a list is to be waited for.
pub(super) fn is_settled(listed: Option<&Listed>, frames: &Frames, time: MonoNs) -> bool {
    listed.is_none_or(|listed| frames.is_settled(&listed.asked, time))
}

impl FrameAsk {
    /// A frame of a list, without what was taken along of it.
    fn of_list() -> Self {
        Self {
            pc: FramePc(0),
            in_module: None,
            is_left: false,
            reads: 0,
            words: Box::default(),
            registers: None,
            code: None,
        }
    }

    /// What of a frame of a list says which function it is of: its code, with what the sample has of that besides its address.
    /// Nothing where that depends on the runtime's state, of the innermost frame of which less is known, or where the sample has
    /// no more of the function than where it is.
    pub(super) fn listed_function(&self) -> Option<(u64, u64)> {
        match *self.words {
            [code, place] if self.code.is_none() && self.pc == FramePc(0) && code >> PLACE_BITS != 0 => {
                Some((code, place >> PLACE_BITS))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use jitprof_common::listed::{ListEnd, ListSpec};

    use super::*;
    use crate::engine::exchanged::ExchangedBy;

    const SHIM: EntryMark = EntryMark { least: 3, is_frame: false, has_base: false, no_frames: 0 };

    fn records(owners: &[u64]) -> Vec<Record> {
        owners.iter().map(|owner| [0x1000, owner << ADDRESS_BITS | 0x2000]).collect()
    }

    fn of(owners: &[u64], mark: EntryMark, end: ListEnd) -> Listed {
        let list = FrameList::new(records(owners), end, [0; 2]);
        let capture = ListCapture {
            walk: ListSpec::default(),
            mark,
            loops: Vec::new(),
            within: Vec::new(),
            lasting: 0,
            tells_innermost: false,
            of_first_thread: false,
            keeps_first: false,
            generated: None,
        };
        Listed::ask(&list, &capture, MonoNs(1), &mut Frames::default())
    }

    /// All loops of one list.
    fn native(frames: &[usize], begins: bool) -> NativeLoops<'_> {
        static NOTHING: Exchanged = Exchanged::new(false);
        NativeLoops { frames, goes_on: false, begins, exchanged: &NOTHING }
    }

    fn exchanged(keeps_first: bool, noted: &[(ExchangedBy, usize)]) -> Exchanged {
        let mut exchanged = Exchanged::new(keeps_first);
        noted.iter().for_each(|(by, inner)| exchanged.note(*by, *inner));
        exchanged
    }

    /// The records of the frames that are put to each user frame.
    fn put(listed: &Listed, native: &NativeLoops<'_>, is_own: impl Fn(u16) -> bool) -> Option<Vec<(usize, Vec<u16>)>> {
        let placed = listed.placed(*native, is_own)?;
        Some(placed.parts.into_iter().map(|(at, part)| (at, listed.frames(part).collect())).collect())
    }

    /// The records of the frames of each loop, and those of none.
    fn loops(listed: &Listed, own: &[u16]) -> (Vec<Vec<u16>>, Vec<u16>) {
        let (loops, rest) = listed.loops(&|record| own.contains(&record));
        let frames = |part| listed.frames(part).collect();
        (loops.into_iter().map(frames).collect(), frames(rest))
    }

    #[test]
    fn what_lies_before_a_mark_ran_in_the_loop_that_began_there() {
        let shim = |owners: &[u64]| loops(&of(owners, SHIM, ListEnd::Last), &[]);
        assert_eq!(shim(&[0, 1, 3, 0, 3, 3]), (vec![vec![0, 1], vec![3], vec![]], vec![]));
        assert_eq!(shim(&[0, 3, 0]), (vec![vec![0]], vec![2]));
        assert_eq!(shim(&[]), (vec![], vec![]));
    }

    #[test]
    fn a_mark_may_be_a_frame_and_the_outermost_one_none_at_all() {
        let frames = EntryMark { least: 1, is_frame: true, has_base: false, no_frames: 0 };
        assert_eq!(loops(&of(&[0, 1, 0, 0, 1], frames, ListEnd::Last), &[]), (vec![vec![0, 1], vec![2, 3, 4]], vec![]));
        let of_315 = EntryMark { has_base: true, ..SHIM };
        let with_base = |owners: &[u64]| loops(&of(owners, of_315, ListEnd::Last), &[]);
        assert_eq!(with_base(&[0, 3, 0, 4, 3]), (vec![vec![0], vec![2]], vec![]));
        assert_eq!(with_base(&[0, 3, 0]), (vec![vec![0]], vec![2]));
    }

    #[test]
    fn no_loop_begins_at_a_function_of_the_runtimes_own_and_what_has_no_function_is_nothing() {
        let frames = EntryMark { least: 1, is_frame: true, has_base: false, no_frames: 0 };
        let listed = of(&[1, 0, 1, 0, 1], frames, ListEnd::Last);
        assert_eq!(loops(&listed, &[0, 3]), (vec![vec![0, 1, 2], vec![3, 4]], vec![]));
        assert_eq!(loops(&listed, &[4]), (vec![vec![0], vec![1, 2]], vec![3, 4]));
        let mut list = FrameList::new(records(&[0, 1, 1]), ListEnd::Last, [0; 2]);
        list.records[1][0] = 0;
        let found = elements(&list.records, frames);
        assert_eq!(found.iter().map(|element| element.record).collect::<Vec<_>>(), [0, 2]);
    }

    #[test]
    fn as_many_marks_as_loops_are_placed_and_a_loop_that_has_no_frame_yet() {
        let placed = |listed: &Listed, in_loop: &[usize]| put(listed, &native(in_loop, true), |_| false);
        let two = of(&[0, 3, 0, 0, 3], SHIM, ListEnd::Last);
        let expected: Option<Vec<(usize, Vec<u16>)>> = Some(vec![(1, vec![0]), (4, vec![2, 3])]);
        assert_eq!(placed(&two, &[1, 4]), expected);
        assert_eq!(placed(&two, &[0, 1, 4]), expected);
        for apart in [&[2, 3, 4][..], &[1], &[], &[0, 1, 2, 3]] {
            assert_eq!(placed(&two, apart), None, "{apart:?}");
        }
        let in_its_midst = native(&[0, 1, 4], false);
        assert_eq!(two.placed(in_its_midst, |_| false), None, "of which loops the list is, is not known");
        assert_eq!(two.all().collect::<Vec<_>>(), [0, 2, 3]);
        assert_eq!(placed(&of(&[0, 3], SHIM, ListEnd::Unreadable), &[1]), None, "there may be more");
        let torn = of(&[0, 3, 0], SHIM, ListEnd::Last);
        assert_eq!((placed(&torn, &[1]), torn.all().collect::<Vec<_>>()), (None, vec![0, 2]));
    }

    /// As many loops as parts are no proof where a loop may be missing at one end and a frame at the other.
    #[test]
    fn the_innermost_loop_of_a_stack_that_goes_on_is_not_taken_for_one_with_a_frame() {
        let placed = |listed: &Listed, in_loop: &[usize], goes_on: bool| {
            put(listed, &NativeLoops { goes_on, ..native(in_loop, true) }, |_| false)
        };
        let two = of(&[0, 3, 0, 3], SHIM, ListEnd::Last);
        let sure: Option<Vec<(usize, Vec<u16>)>> = Some(vec![(0, vec![0]), (4, vec![2])]);
        assert_eq!((placed(&two, &[0, 4], false), placed(&two, &[0, 4], true)), (sure, None));
        let called: Option<Vec<(usize, Vec<u16>)>> = Some(vec![(1, vec![0]), (4, vec![2])]);
        assert_eq!(placed(&two, &[1, 4], true), called, "somebody has been called from the innermost loop");
        assert_eq!(placed(&two, &[0, 1, 4], true), called, "the list has no frame of the innermost loop");
        let cut = of(&[0, 3, 0], SHIM, ListEnd::TooLong);
        assert!(placed(&cut, &[0, 4], false).is_some() && placed(&cut, &[1, 4], true).is_some());
        assert_eq!(placed(&cut, &[0, 4], true), None);
    }

    /// A greenlet's list has the frames of its own loops, and the native stack those of who has started it besides.
    #[test]
    fn a_loop_that_is_missing_is_not_the_innermost_one_where_lists_are_exchanged() {
        let frames = EntryMark { least: 1, is_frame: true, has_base: false, no_frames: 0 };
        for (mark, records, begins) in [(frames, [0, 1], false), (SHIM, [0, 3], true)] {
            let one = of(&records, mark, ListEnd::Last);
            let exchanged = exchanged(false, &[(ExchangedBy::Greenlets, 1)]);
            let (alone, among) =
                (native(&[0, 4], begins), NativeLoops { exchanged: &exchanged, ..native(&[0, 4], begins) });
            let placed = |native| one.placed(native, |_| false).map(|placed| placed.parts.len());
            assert_eq!((placed(alone), placed(among)), (Some(1), None), "{mark:?}");
        }
    }

    /// Of five loops, the inner ones and the outer ones are of two lists.
    #[test]
    fn a_list_is_of_the_loops_within_the_call_that_has_exchanged_it() {
        let two = of(&[0, 3, 0, 3], SHIM, ListEnd::Last);
        let frames = [1, 3, 5, 7, 9];
        for by in [ExchangedBy::Interpreters, ExchangedBy::Greenlets] {
            let placed = |after: &[usize], keeps_first: bool| {
                let noted: Vec<_> = after.iter().map(|inner| (by, *inner)).collect();
                let exchanged = exchanged(keeps_first, &noted);
                let placed = two.placed(NativeLoops { exchanged: &exchanged, ..native(&frames, false) }, |_| false)?;
                Some((placed.parts.iter().map(|(at, _)| *at).collect::<Vec<_>>(), placed.elsewhere))
            };
            let inner = Some((vec![1, 3], vec![5, 7, 9]));
            assert_eq!(placed(&[2], false), inner);
            assert_eq!(placed(&[2, 2, 4], false), inner, "one within another one");
            for apart in [&[][..], &[1], &[3], &[1, 3, 4]] {
                assert_eq!(placed(apart, false), None, "{apart:?}");
            }
            let is_other = by == ExchangedBy::Greenlets;
            assert_eq!(placed(&[3], true), if is_other { None } else { Some((vec![7, 9], vec![1, 3, 5])) });
            assert_eq!(placed(&[2], true), if is_other { inner } else { None }, "the first list is of the outer ones");
        }
    }

    #[test]
    fn a_loop_that_begins_within_such_a_call_is_told_from_what_has_called_it_or_not_placed() {
        let (one, two) = (of(&[0, 3], SHIM, ListEnd::Last), of(&[0, 3, 0, 3], SHIM, ListEnd::Last));
        let placed = |listed: &Listed, frames: &[usize], after: usize| {
            let exchanged = exchanged(false, &[(ExchangedBy::Interpreters, after)]);
            let placed = listed.placed(NativeLoops { exchanged: &exchanged, ..native(frames, true) }, |_| false)?;
            Some((placed.parts.iter().map(|(at, _)| *at).collect::<Vec<_>>(), placed.elsewhere))
        };
        assert_eq!(placed(&one, &[0, 3, 5, 7], 2), Some((vec![3], vec![5, 7])));
        assert_eq!(placed(&two, &[0, 3, 5, 7], 2), Some((vec![0, 3], vec![5, 7])));
        assert_eq!(
            placed(&one, &[0, 3], 1),
            None,
            "the inner loop's list, or the outer one's and the inner has no frame yet"
        );
    }

    /// What is cut has lost its outermost elements, and the list of a first state is of the outermost loops.
    #[test]
    fn the_first_list_is_not_put_anywhere_if_it_or_the_stack_is_cut() {
        let exchanged = exchanged(true, &[(ExchangedBy::Interpreters, 1)]);
        let placed = |records: &[u64], end, goes_on| {
            let native = NativeLoops { goes_on, exchanged: &exchanged, ..native(&[1, 3, 5], false) };
            of(records, SHIM, end).placed(native, |_| false).map(|placed| placed.elsewhere)
        };
        assert_eq!(placed(&[0, 3, 0, 3], ListEnd::Last, false), Some(vec![1]));
        assert_eq!(placed(&[0, 3, 0, 3], ListEnd::Last, true), None);
        let as_many = [0, 3, 0, 3, 0, 3];
        assert_eq!(placed(&as_many, ListEnd::Last, false), Some(vec![]));
        assert_eq!(placed(&as_many, ListEnd::Last, true), None, "some may be of loops behind the cut");
        assert_eq!(placed(&[0, 3, 0, 3, 0], ListEnd::TooLong, false), None);
    }

    #[test]
    fn elements_of_some_kinds_are_nothing_and_what_a_fiber_has_begun_with_stands_with_its_first_loop() {
        let ruby = EntryMark { least: 0x80, is_frame: true, has_base: false, no_frames: 1 << 6 };
        let listed = of(&[1, 0x82, 5, 6, 0x82, 5, 5], ruby, ListEnd::Last);
        assert_eq!(listed.all().collect::<Vec<_>>(), [0, 1, 2, 4, 5, 6]);
        let placed = |own: &[u16]| put(&listed, &native(&[3, 7], false), |record| own.contains(&record));
        let expected: Vec<(usize, Vec<u16>)> = vec![(3, vec![0, 1]), (7, vec![2, 4, 5, 6])];
        assert_eq!(placed(&[2, 5, 6]), Some(expected));
        assert_eq!(placed(&[2, 5]), None);
    }
}
