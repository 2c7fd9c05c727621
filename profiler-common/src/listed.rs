//! Frames that a runtime keeps in a list of its own, which a sample takes along.
//!
//! An interpreter runs many of the program's functions in one native frame; what it knows of them hangs on the thread, from
//! the innermost on. The sample walks that list while the thread is held by it. The BPF program knows no runtime: a
//! [`ListSpec`] says where the list begins, which bytes of an element are kept, and which of them leads to the next. An array
//! is such a list, whose elements lie side by side.
//!
//! ```text
//! SampleHeader (taken = LISTED) │ kernel frames │ user frames │ ListHeader 32 bytes │ count × Record 16 bytes │ …
//! ```
//!
//! Words of frames ([`taken`](crate::taken)) and a list exclude each other; a stack snapshot goes behind either.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// In [`SampleHeader::taken`](crate::sample::SampleHeader::taken): a list follows the frames.
pub const LISTED: u8 = 0x80;
/// Steps to the first element.
pub const MAX_STEPS: usize = 6;
/// Ways to the first element, of which the first that leads to one counts.
pub const MAX_BASES: usize = 2;
/// Behind them: the way to where an array ends, and the way to what is kept of the runtime's state.
pub const WAY_TO_END: usize = MAX_BASES;
/// See [`WAY_TO_END`].
pub const WAY_TO_STATE: usize = MAX_BASES + 1;
/// The way to the stack pointer that a thread parks while it runs on another stack, for rows of code there.
pub const WAY_TO_PARKED_SP: usize = MAX_BASES + 2;
/// All ways.
pub const WAYS: usize = MAX_BASES + 3;
/// Parts of an element that are kept.
pub const MAX_FIELDS: usize = 5;
/// Words of what is kept of an element.
pub const RECORD_WORDS: usize = 2;
/// Parts of the runtime's state that are kept, and in how many words.
pub const MAX_STATE_FIELDS: usize = 5;
/// See [`MAX_STATE_FIELDS`].
pub const STATE_WORDS: usize = 2;
/// Parts of what a record's first word points to that are kept.
pub const MAX_OF_FIRST: usize = 3;
/// Words of it that are read, from the first to the last of them.
pub const BEHIND_WORDS: usize = 32;
/// Bytes of an element that are read.
pub const MAX_SPAN: usize = 128;
/// Words that are read besides, where a word of the element points to: up to that place, with what is there.
pub const ASIDE_WORDS: usize = 3;
/// Where a field has the first of them: behind all that an element may have.
pub const ASIDE: u16 = MAX_SPAN as u16;
/// Words that fields are taken from: of an element, those beside it, and some that are none.
pub const ELEMENT_WORDS: usize = 32;
/// Where a word is that counts as 0.
const ZERO: u16 = ELEMENT_WORDS as u16 * 8 - 8;
/// In the second word of a [`Record`]: the element was met on a [`Detour`].
pub const DETOURED: u64 = 1 << 63;
/// The bits of the second word that say what an element is; of one that was met on a detour they say nothing.
const KIND: u64 = 0xff << 56;
/// Bytes of a [`Window`].
pub const WINDOW_BYTES: usize = 1024;
/// How far below what was read an element may begin for what lies below it to be read as well.
const NEAR: u64 = (WINDOW_BYTES - MAX_SPAN) as u64;
/// No page has fewer bytes.
const PAGE_BYTES: u64 = 4096;
/// Elements of a list.
pub const MAX_LISTED: usize = 1024;
/// Elements of a list, where the ring buffer is so full that a long one could cost another sample its place.
pub const MAX_LISTED_IN_FULL_RING: usize = 128;

/// A step to the first element, from a value to the next; the first one's is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Step {
    /// One of the constants; with another one the steps are at their end.
    pub op: u64,
    /// What it works with.
    pub operand: u64,
}

impl Step {
    /// The operand is added.
    pub const ADD: u64 = 1;
    /// The thread pointer and the operand are added.
    pub const ADD_THREAD_POINTER: u64 = 2;
    /// The operand is added, and the word there is read. If that is 0, the way ends nowhere.
    pub const LOAD: u64 = 3;
    /// Two words there are read, and the second one, so many times as the operand says, is added to the first.
    pub const EXTENT: u64 = 4;

    /// Adds a number.
    pub const fn add(operand: u64) -> Self {
        Self { op: Self::ADD, operand }
    }

    /// Adds the thread pointer, and a number.
    pub const fn add_thread_pointer(operand: u64) -> Self {
        Self { op: Self::ADD_THREAD_POINTER, operand }
    }

    /// Reads where something begins, and how many items it has, each of so many bytes: the value is where it ends.
    pub const fn extent(item_bytes: u64) -> Self {
        Self { op: Self::EXTENT, operand: item_bytes }
    }

    /// Reads the word so many bytes behind the value.
    pub const fn load(operand: u64) -> Self {
        Self { op: Self::LOAD, operand }
    }
}

/// A part of an element, and where in the record it goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Field {
    /// The bits of the word that are kept, before they are shifted. The first field without any ends them.
    pub mask: u64,
    /// Where in the element the word begins, in bytes: a multiple of 8, at most [`MAX_SPAN`] - 8; from [`ASIDE`] on, the words
    /// beside it.
    pub offset: u16,
    /// The word of the record that the bits are added to.
    pub to: u8,
    /// By how many bits they are shifted to the left, and around.
    pub shift: u8,
    /// Where a word is that has to be 0 for anything to be kept.
    pub unless: u16,
    /// 1 if the bits are subtracted. They are of the runtime's state then, of which parts are added up.
    pub minus: u8,
    /// 0: the bits are of the word itself. Else that is an address, and they are of a word there: of the first one with 1. Only
    /// of what a record's first word points to.
    pub through: u8,
}

impl Field {
    /// The bits `mask` of the word at `offset`, shifted to the left, in word `to` of the record.
    pub const fn new(offset: u16, mask: u64, to: u8, shift: u8) -> Self {
        Self { mask, offset, to, shift, unless: ZERO, minus: 0, through: 0 }
    }

    /// The same of the word so many words behind the place that the word is the address of.
    pub const fn through(self, words: u8) -> Self {
        Self { through: words + 1, ..self }
    }

    /// The same, kept only of elements whose word at `unless` is 0.
    pub const fn unless(self, unless: u16) -> Self {
        Self { unless, ..self }
    }

    /// The same, subtracted.
    pub const fn minus(self) -> Self {
        Self { minus: 1, ..self }
    }

    /// The bits of a word that are kept, where they belong: shifted to the left, and around.
    #[inline(always)]
    pub const fn of(&self, word: u64) -> u64 {
        let (bits, sign) =
            ((word & self.mask).rotate_left((self.shift & 63) as u32), (self.minus as u64).wrapping_neg());
        (bits ^ sign).wrapping_sub(sign)
    }

    /// Whether a word has to be 0 for anything to be kept.
    #[inline(always)]
    pub const fn is_conditional(&self) -> bool {
        self.unless != ZERO
    }

    const fn is_possible(&self) -> bool {
        let is_word = self.offset.is_multiple_of(8) && self.unless.is_multiple_of(8);
        is_word && (self.to as usize) < RECORD_WORDS && self.shift < 64
    }

    /// The same, and it ends no others.
    const fn is_kept(&self) -> bool {
        self.is_possible() && self.mask != 0
    }
}

/// Where an element stands for others, which hang on an object of its own, outermost first: before it goes on, the walk follows
/// the objects from that one to the next, up to the last, whose element it has met already. All in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Detour {
    /// Where in such an element the object's address is: a multiple of 8.
    pub object: u16,
    /// Where in it a word is that is 0: a multiple of 8. With both 0 there is no detour.
    pub unless: u16,
    /// Where in the object the element is that stands for others: another one does not.
    pub own: u16,
    /// Where in an object the address of its element is.
    pub element: u16,
    /// Where in it the address of the next object is; the last one has 0.
    pub next: u16,
    /// 0.
    pub reserved: u16,
}

/// How a list is walked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ListSpec {
    /// Ways to the first element, and to what else is read.
    pub ways: [[Step; MAX_STEPS]; WAYS],
    /// What is kept of each.
    pub fields: [Field; MAX_FIELDS],
    /// What is kept of words that the record's first word points to, `offset` bytes behind. The bits are exclusively ored to
    /// those that are there: two may have the same place.
    pub of_first: [Field; MAX_OF_FIRST],
    /// What is kept of the runtime's state before the first element is looked at: words behind the end of their way. Whether
    /// something has changed between then and a later look is known by it.
    pub state: [Field; MAX_STATE_FIELDS],
    /// Bytes that are read of each, at most [`MAX_SPAN`]; 0: there is no list.
    pub span: u32,
    /// Where in them the address of the next element is: a multiple of 8. The last one has 0.
    pub next: u32,
    /// From an element of an array to the next one, in bytes; 0: it is no array.
    pub stride: u32,
    /// Where in an element the address is up to which further words are read, and 1; 0: there are none.
    pub aside: u32,
    /// Elements that stand for others.
    pub detour: Detour,
    /// Where the words that a record's first word points to are read from on, in bytes behind it, and how many bytes: all that
    /// `of_first` names, at most [`BEHIND_WORDS`]; 0: there are none.
    pub behind: u16,
    /// See [`behind`](Self::behind).
    pub behind_span: u16,
}

/// How the elements of an array lie.
#[derive(Clone, Copy, Debug)]
pub struct Array<'a> {
    /// From one to the next, in bytes.
    pub stride: u16,
    /// Where they end.
    pub end: &'a [Step],
    /// Where in each the address is up to which [`ASIDE_WORDS`] further words are read: a multiple of 8.
    pub aside: u16,
}

impl ListSpec {
    /// From the ways to the first element, what is kept, and where the next one's address is. Nothing if it is more than
    /// can be walked.
    pub fn new(bases: &[&[Step]], fields: &[Field], next: u16) -> Option<Self> {
        Self { next: next.into(), ..Self::default() }.with(bases, fields, next)
    }

    /// The same of an array.
    pub fn of_array(bases: &[&[Step]], fields: &[Field], array: Array<'_>) -> Option<Self> {
        let mut spec = Self { stride: array.stride.into(), aside: u32::from(array.aside) + 1, ..Self::default() };
        spec.set_way(WAY_TO_END, array.end)?;
        if array.stride == 0 { None } else { spec.with(bases, fields, array.aside) }
    }

    /// The same of an array of words, of which each is kept.
    pub fn of_words(bases: &[&[Step]], end: &[Step]) -> Option<Self> {
        let mut spec = Self { stride: 8, ..Self::default() };
        spec.set_way(WAY_TO_END, end)?;
        spec.with(bases, &[Field::new(0, u64::MAX, 0, 0)], 0)
    }

    /// With words of the runtime's state, and the way to what they are counted from.
    pub fn with_state(mut self, way: &[Step], fields: &[Field]) -> Option<Self> {
        self.set_way(WAY_TO_STATE, way)?;
        self.state.get_mut(..fields.len())?.copy_from_slice(fields);
        fields.iter().all(Field::is_possible).then_some(self)
    }

    /// With the way to the parked stack pointer. There need be no list.
    pub fn with_parked_sp(mut self, way: &[Step]) -> Option<Self> {
        self.set_way(WAY_TO_PARKED_SP, way)?;
        Some(self)
    }

    /// With what is kept of words that a record's first word points to; 0 where they cannot be read. Samples read them at once:
    /// where one cannot be read they have none.
    pub fn with_first(mut self, of_first: &[Field]) -> Option<Self> {
        self.of_first.get_mut(..of_first.len())?.copy_from_slice(of_first);
        let offsets = of_first.iter().map(|field| field.offset);
        self.behind = offsets.clone().min()?;
        self.behind_span = (offsets.max()? - self.behind).checked_add(8)?;
        let is_possible = usize::from(self.behind_span) <= BEHIND_WORDS * 8;
        (is_possible && of_first.iter().all(Field::is_kept)).then_some(self)
    }

    /// With elements that stand for others.
    pub fn with_detour(mut self, detour: Detour) -> Option<Self> {
        let read = [detour.object, detour.unless];
        let is_read = |at: u16| at.is_multiple_of(8) && u32::from(at) + 8 <= self.span;
        self.detour = detour;
        (read.into_iter().all(is_read) && self.stride == 0).then_some(self)
    }

    /// Whether words of the runtime's state are kept.
    pub fn has_state(&self) -> bool {
        self.state.iter().any(|field| field.mask != 0)
    }

    fn set_way(&mut self, way: usize, steps: &[Step]) -> Option<()> {
        self.ways.get_mut(way)?.get_mut(..steps.len())?.copy_from_slice(steps);
        Some(())
    }

    /// With these ways and fields, and a word at `also` that is read as well.
    fn with(mut self, bases: &[&[Step]], fields: &[Field], also: u16) -> Option<Self> {
        for (base, steps) in bases.iter().enumerate() {
            self.set_way(Some(base).filter(|base| *base < MAX_BASES)?, steps)?;
        }
        self.fields.get_mut(..fields.len())?.copy_from_slice(fields);
        let conditions = fields.iter().filter(|field| field.is_conditional()).map(|field| field.unless);
        let used = fields.iter().map(|field| field.offset).chain(conditions);
        // What lies behind was not read for the element: samples have there what they have read before.
        let end = if self.aside == 0 { ASIDE } else { ASIDE + ASIDE_WORDS as u16 * 8 };
        if !used.clone().all(|offset| offset < end) || !fields.iter().all(Field::is_kept) {
            return None;
        }
        let own = used.filter(|offset| *offset < ASIDE).chain([also]);
        self.span = u32::from(own.max()?) + 8;
        (self.span as usize <= MAX_SPAN && also.is_multiple_of(8)).then_some(self)
    }

    /// Whether there is a list to be walked.
    pub const fn is_some(&self) -> bool {
        self.span != 0
    }

    /// What is read for an element at `at` that is not in the last window, which began at `last`; 0 if there was none. A read
    /// costs the BPF program more than what it reads: of a list that comes down a stack it reads what is below, too, and of an
    /// array what is behind, but for one with words beside its elements, which take the place of that. Where the element can be
    /// read all of it can: it has no other pages.
    #[inline(always)]
    pub fn window(&self, at: u64, last: u64) -> Window {
        let (span, in_page) = (u64::from(self.span), at & (PAGE_BYTES - 1));
        let (below, from_it) = if self.stride != 0 {
            (0, if self.aside == 0 { (PAGE_BYTES - in_page).min(WINDOW_BYTES as u64) } else { 0 })
        } else if last.wrapping_sub(at) <= NEAR {
            (in_page.min(NEAR) & !7, 0)
        } else {
            (0, 0)
        };
        Window { from: at.wrapping_sub(below), bytes: below + span.max(from_it) }
    }
}

/// What is read at once: an element, and what is likely to be the next ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Where it begins: a multiple of 8 below the element, or there.
    pub from: u64,
    /// How many bytes it has: at least those of the element, at most [`WINDOW_BYTES`].
    pub bytes: u64,
}

/// What is kept of an element.
pub type Record = [u64; RECORD_WORDS];

/// What lies before the records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ListHeader {
    /// Records that follow, innermost first.
    pub count: u32,
    /// A [`ListEnd`] code.
    pub end: u32,
    /// Which way has led to the first: its index and 1, or 0 if none has.
    pub base: u32,
    /// 1 if the walk has made a detour: the records are to be [straightened](straighten).
    pub detoured: u32,
    /// The runtime's state before; 0 where it could not be read.
    pub state: [u64; STATE_WORDS],
}

/// Puts records that were met on detours where they belong, innermost first. Returns how many of them count: of a detour that
/// the walk was ended on, none, for the innermost are missing.
pub fn straighten(records: &mut [Record], end: ListEnd) -> usize {
    let is_detoured = |record: &Record| record[1] & DETOURED != 0;
    let lacking = records.iter().rev().take_while(|record| is_detoured(record)).count();
    let count = records.len() - if matches!(end, ListEnd::Last) { 0 } else { lacking };
    for run in records.chunk_by_mut(|one, next| is_detoured(one) == is_detoured(next)) {
        if run.first().is_some_and(is_detoured) {
            run.reverse();
            run.iter_mut().for_each(|record| record[1] &= !KIND);
        }
    }
    count
}

/// Why a list was walked no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ListEnd {
    /// It has no elements: no way leads to one.
    Empty = 0,
    /// Its last element was met.
    Last = 1,
    /// It has more elements than are kept.
    TooLong = 2,
    /// An element could not be read.
    Unreadable = 3,
    /// It has more elements than there is room for in the ring buffer, and nothing of it is kept.
    Refused = 4,
}

impl ListEnd {
    /// From its code.
    pub const fn from_code(code: u32) -> Option<Self> {
        match code {
            0 => Some(Self::Empty),
            1 => Some(Self::Last),
            2 => Some(Self::TooLong),
            3 => Some(Self::Unreadable),
            4 => Some(Self::Refused),
            _ => None,
        }
    }
}

const _: () = assert!(MAX_SPAN + ASIDE_WORDS * 8 < ZERO as usize && ELEMENT_WORDS.is_power_of_two());
const _: () = assert!(size_of::<ListHeader>() == 32 && size_of::<Step>() == 16 && size_of::<Field>() == 16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_more_than_can_be_walked_is_no_list() {
        let (steps, field) = ([Step::add_thread_pointer(8), Step::load(0)], Field::new(56, u64::MAX, 1, 0));
        let spec = ListSpec::new(&[&steps], &[Field::new(0, !3, 0, 0), field], 8).unwrap();
        assert_eq!((spec.span, spec.next, spec.ways[0][1], spec.is_some()), (64, 8, Step::load(0), true));
        assert_eq!(spec.ways[0][2], Step::default());
        assert!(!ListSpec::default().is_some());
        let too_many = [Step::load(0); MAX_STEPS + 1];
        assert_eq!(ListSpec::new(&[&too_many], &[field], 8), None);
        assert_eq!(ListSpec::new(&[&steps[..]; MAX_BASES + 1], &[field], 8), None);
        assert_eq!(ListSpec::new(&[&steps], &[field; MAX_FIELDS + 1], 8), None);
        let out_of_place = [Field::new(128, 1, 0, 0), Field::new(4, 1, 0, 0), Field::new(0, 1, 2, 0)];
        let unread = [Field::new(ZERO, 1, 0, 0), Field::new(0, 1, 0, 0).unless(ASIDE)];
        let not_kept = [Field::new(0, 1, 0, 64), Field::new(0, 0, 0, 0)];
        for field in out_of_place.into_iter().chain(unread).chain(not_kept) {
            assert_eq!(ListSpec::new(&[&steps], &[field], 8), None, "{field:?}");
        }
    }

    #[test]
    fn the_runtimes_state_has_a_way_of_its_own() {
        let (steps, field) = ([Step::add(8), Step::load(0)], Field::new(0x188, 1 << 10, 1, 3));
        let spec = ListSpec::new(&[&steps], &[Field::new(0, !3, 0, 0)], 8).unwrap();
        assert!(!spec.has_state());
        let with_state = spec.with_state(&steps, &[field]).unwrap();
        assert_eq!(
            (with_state.has_state(), with_state.state[0], with_state.ways[WAY_TO_STATE][1]),
            (true, field, steps[1])
        );
        assert_eq!(with_state.ways[..WAY_TO_STATE], spec.ways[..WAY_TO_STATE]);
        assert_eq!(spec.with_state(&steps, &[field; MAX_STATE_FIELDS + 1]), None);
        assert_eq!(spec.with_state(&steps, &[Field::new(4, 1, 0, 0)]), None);
        assert_eq!(spec.with_state(&[steps[0]; MAX_STEPS + 1], &[field]), None);
        assert_eq!((field.of(0xffff), Field::new(0, 1 << 10, 0, 54).minus().of(0xffff)), (1 << 13, u64::MAX));
        let parked = ListSpec::default().with_parked_sp(&steps).unwrap();
        assert_eq!((parked.ways[WAY_TO_PARKED_SP], parked.has_state()), (with_state.ways[WAY_TO_STATE], false));
        assert_eq!(spec.with_parked_sp(&[steps[0]; MAX_STEPS + 1]), None);
        let second = field.through(1);
        assert_eq!(spec.with_first(&[field, second]).unwrap().of_first, [field, second, Field::default()]);
        assert_eq!((second.through, spec.with_first(&[field]).unwrap().of_first[1].mask), (2, 0));
        assert_eq!(spec.with_first(&[field; MAX_OF_FIRST + 1]), None);
        assert_eq!(spec.with_first(&[Field::new(0, 1, 2, 0)]), None);
        assert_eq!(spec.with_first(&[Field::new(0, 0, 0, 0)]), None);
        let apart = |first, last| spec.with_first(&[Field::new(last, 1, 0, 0), Field::new(first, 1, 0, 0)]);
        let read = |spec: ListSpec| (spec.behind, spec.behind_span);
        assert_eq!((read(spec), apart(8, 152).map(read)), ((0, 0), Some((8, 152))));
        assert_eq!(apart(8, 256).map(read), Some((8, 256)));
        assert_eq!((apart(8, 264), apart(0, 65_528)), (None, None));
    }

    #[test]
    fn what_a_detour_has_met_is_turned_round() {
        let kept = |place: u64| [place, 0x0100_0000_0000_0000 | place];
        let met = |place: u64| [place, DETOURED | 0x0100_0000_0000_0000 | place];
        let mut records = [kept(1), kept(0), met(4), met(3), met(2), kept(5), kept(0), met(6), kept(7)];
        let cut = records;
        assert_eq!(straighten(&mut records, ListEnd::Last), 9);
        let plain = |place: u64| [place, place];
        let expected = [kept(1), kept(0), plain(2), plain(3), plain(4), kept(5), kept(0), plain(6), kept(7)];
        assert_eq!(records, expected);
        for (count, whole) in [(9, 9), (8, 7), (5, 2), (2, 2)] {
            assert_eq!(straighten(&mut { cut }[..count], ListEnd::TooLong), whole);
        }
        assert_eq!(straighten(&mut [], ListEnd::Last), 0);
    }

    #[test]
    fn a_detour_begins_in_what_is_read_of_an_element_of_a_list() {
        let spec = ListSpec::new(&[&[Step::load(0)]], &[Field::new(0, !3, 0, 0)], 48).unwrap();
        let detour = Detour { object: 32, unless: 24, own: 192, element: 56, next: 152, ..Detour::default() };
        assert_eq!(spec.with_detour(detour).unwrap().detour, detour);
        for wrong in [Detour { object: 56, ..detour }, Detour { unless: 4, ..detour }] {
            assert_eq!(spec.with_detour(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn an_array_of_words_has_nothing_beside_them() {
        let (begin, end) = ([Step::load(8)], [Step::load(8), Step::add(4096)]);
        let spec = ListSpec::of_words(&[&begin, &begin], &end).unwrap();
        assert_eq!((spec.span, spec.stride, spec.aside, spec.ways[WAY_TO_END][1]), (8, 8, 0, end[1]));
        assert_eq!((spec.ways[1][0], spec.fields[0]), (begin[0], Field::new(0, u64::MAX, 0, 0)));
        assert_eq!(ListSpec::of_words(&[&begin[..]; MAX_BASES + 1], &end), None);
        assert_eq!(ListSpec::of_words(&[&begin], &[begin[0]; MAX_STEPS + 1]), None);
    }

    #[test]
    fn what_is_read_with_an_element_lies_on_its_pages() {
        let word = Field::new(0, u64::MAX, 0, 0);
        let list = ListSpec::new(&[&[Step::load(0)]], &[word], 72).unwrap();
        let words = ListSpec::of_words(&[&[Step::load(0)]], &[Step::load(8)]).unwrap();
        let array = Array { stride: 56, end: &[Step::load(8)], aside: 32 };
        let aside = ListSpec::of_array(&[&[Step::load(0)]], &[word, Field::new(ASIDE, 1, 1, 0)], array).unwrap();
        let window = |spec: &ListSpec, at, last| {
            let Window { from, bytes } = spec.window(at, last);
            (from, bytes)
        };
        assert_eq!(window(&list, 0x7f00, 0), (0x7f00, 80), "the first one");
        assert_eq!(window(&list, 0x7f00, 0x7f80), (0x7f00 - 896, 976));
        assert_eq!(window(&list, 0x7f04, 0x7f80), (0x7f04 - 896, 976));
        assert_eq!(window(&list, 0x7104, 0x7180), (0x7004, 0x100 + 80), "no further than to the page's beginning");
        assert_eq!(window(&list, 0x7fff, 0x8000 + 896), (0x7fff, 80), "too far below");
        assert_eq!(window(&list, 0x7f00, 0x7e00), (0x7f00, 80), "above");
        assert_eq!(window(&words, 0x7000, 0), (0x7000, WINDOW_BYTES as u64));
        assert_eq!(window(&words, 0x7f80, 0), (0x7f80, 128), "no further than to the page's end");
        assert_eq!(window(&words, 0x7ffc, 0), (0x7ffc, 8), "but all of the element");
        assert_eq!(window(&aside, 0x7000, 0x7000), (0x7000, 40));
        for at in (0x10_0000..0x10_2000).chain(0..64).chain(u64::MAX - 64..=u64::MAX) {
            for (spec, last) in [&list, &words, &aside].into_iter().flat_map(|spec| [(spec, at), (spec, 0)]) {
                let Window { from, bytes } = spec.window(at, last);
                let below = at.wrapping_sub(from);
                assert!(below.is_multiple_of(8) && below + u64::from(spec.span) <= bytes, "{at:#x}: {from:#x} {bytes}");
                assert!(bytes <= WINDOW_BYTES as u64 && below <= at % PAGE_BYTES, "{at:#x}: {from:#x} {bytes}");
                let behind = bytes - below - u64::from(spec.span);
                assert!(behind == 0 || at % PAGE_BYTES + (bytes - below) <= PAGE_BYTES, "{at:#x}: {from:#x} {bytes}");
            }
        }
    }

    #[test]
    fn an_array_has_a_stride_and_words_beside_its_elements() {
        let (steps, end) = ([Step::load(0x100)], [Step::extent(8), Step::add(56_u64.wrapping_neg())]);
        let array = Array { stride: 64, end: &end, aside: 32 };
        let beside = Field::new(ASIDE + 16, 0x20, 1, 58);
        let spec = ListSpec::of_array(&[&steps], &[Field::new(16, u64::MAX, 0, 0), beside.unless(16)], array).unwrap();
        assert_eq!((spec.span, spec.stride, spec.aside, spec.ways[WAY_TO_END][1]), (40, 64, 33, end[1]));
        assert_eq!(ListSpec::new(&[&steps], &[beside], 8), None, "a list has none");
        assert_eq!(ListSpec::of_array(&[&steps], &[beside], Array { stride: 0, ..array }), None);
        assert_eq!(ListSpec::of_array(&[&steps], &[beside], Array { aside: 33, ..array }), None);
        let unread = [Field::new(ASIDE + 24, 1, 0, 0), Field::new(ZERO, 1, 0, 0), beside.unless(ASIDE + 24)];
        for field in unread.into_iter().chain([beside.unless(4)]) {
            assert_eq!(ListSpec::of_array(&[&steps], &[field], array), None, "{field:?}");
        }
    }
}
