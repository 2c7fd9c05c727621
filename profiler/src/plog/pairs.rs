//! From entries to spans and marks: entries with a duration are spans, begins and ends are matched.

use rustc_hash::FxHashMap;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::clock::Clock;
use super::import::Timestamps;
use super::kind::Kind;
use super::reader::Entry;

/// Begins that wait for their end; further ones become marks, which are counted.
const MAX_OPEN: usize = 1 << 18;

/// A time that a thread spent in something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Span {
    /// Nanoseconds of the log's own clock, its start time left out.
    pub start: u64,
    /// Likewise, when it ended; not before the start.
    pub end: u64,
    /// The designator of the entry, or of the begin.
    pub designator: u64,
    /// The entry's number in the file, or the begin's.
    pub place: u64,
    /// Index into [`Trace::threads`](super::Trace::threads).
    pub thread: u32,
    /// Index into the trace names.
    pub trace_id: u32,
    /// Index into the type names, of the entry or of the begin.
    pub type_id: u32,
    pub(super) padding: u32,
}

const _: () = assert!(size_of::<Span>() == 48);

/// An entry that is no span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// [`Kind::Counter`] or [`Kind::Mark`].
    pub kind: Kind,
    /// Nanoseconds of the log's own clock.
    pub time: u64,
    /// Index into [`Trace::threads`](super::Trace::threads).
    pub thread: u32,
    /// Index into the trace names.
    pub trace_id: u32,
    /// Index into the type names.
    pub type_id: u32,
    /// The entry's designator.
    pub designator: u64,
}

/// What an entry, or the end of all, gives.
#[derive(Clone, Copy, Debug)]
pub(super) enum Item {
    Span(Span),
    Mark(Mark),
}

/// Begins and ends that did not find each other, and what was left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PairCounts {
    pub(super) unclosed: u64,
    pub(super) unopened: u64,
    pub(super) too_many_open: u64,
    pub(super) ignored: u64,
}

/// Matches begins and ends, thread by thread; entries of a thread must come in the order of time.
pub(super) struct Pairs {
    clock: Clock,
    timestamps: Timestamps,
    /// By thread, trace id and designator, the one opened last at the end.
    open: FxHashMap<(u32, u32, u64), Vec<Span>>,
    open_count: usize,
    pub(super) counts: PairCounts,
}

impl Pairs {
    pub(super) fn new(clock: Clock, timestamps: Timestamps) -> Self {
        Self { clock, timestamps, open: FxHashMap::default(), open_count: 0, counts: PairCounts::default() }
    }

    /// Takes one entry. `kind` is what the type means, `chosen` whether the user said so.
    pub(super) fn take(&mut self, entry: &Entry, thread: u32, place: u64, kind: Kind, chosen: bool) -> Option<Item> {
        let mark = |kind| {
            let time = self.clock.ns(entry.timestamp);
            let Entry { trace_id, type_id, designator, .. } = *entry;
            Some(Item::Mark(Mark { kind, time, thread, trace_id, type_id, designator }))
        };
        match kind {
            Kind::Ignored => {
                self.counts.ignored += 1;
                None
            }
            Kind::Begin if chosen || entry.duration == 0 => self.begin(entry, thread, place),
            Kind::End if chosen || entry.duration == 0 => self.end(entry, thread),
            // An exit may carry the time since its enter.
            Kind::End => Some(Item::Span(self.end_with_duration(entry, thread, place))),
            Kind::Counter if chosen || entry.duration == 0 => mark(Kind::Counter),
            Kind::Mark if chosen => mark(Kind::Mark),
            Kind::Span => Some(Item::Span(self.whole(entry, thread, place))),
            _ if entry.duration > 0 => Some(Item::Span(self.whole(entry, thread, place))),
            _ => mark(Kind::Mark),
        }
    }

    /// Closes what is still open at its thread's last time.
    pub(super) fn close(&mut self, last_ns: impl Fn(u32) -> u64, mut take: impl FnMut(Span)) {
        let mut left: Vec<Span> = self.open.drain().flat_map(|(_, spans)| spans).collect();
        left.sort_unstable_by_key(|span| span.place);
        for span in left {
            self.counts.unclosed += 1;
            take(Span { end: last_ns(span.thread).max(span.start), ..span });
        }
        self.open_count = 0;
    }

    fn whole(&self, entry: &Entry, thread: u32, place: u64) -> Span {
        let (start, end) = match self.timestamps {
            Timestamps::Start => (entry.timestamp, entry.timestamp.saturating_add(entry.duration)),
            Timestamps::End => (entry.timestamp.saturating_sub(entry.duration), entry.timestamp),
        };
        let Entry { trace_id, type_id, designator, .. } = *entry;
        let (start, end) = (self.clock.ns(start), self.clock.ns(end));
        Span { start, end, designator, place, thread, trace_id, type_id, padding: 0 }
    }

    fn begin(&mut self, entry: &Entry, thread: u32, place: u64) -> Option<Item> {
        let opened = Entry { duration: 0, ..*entry };
        let span = self.whole(&opened, thread, place);
        if self.open_count >= MAX_OPEN {
            self.counts.too_many_open += 1;
            let Span { start: time, trace_id, type_id, designator, .. } = span;
            return Some(Item::Mark(Mark { kind: Kind::Mark, time, thread, trace_id, type_id, designator }));
        }
        self.open.entry((thread, entry.trace_id, entry.designator)).or_default().push(span);
        self.open_count += 1;
        None
    }

    fn pop(&mut self, entry: &Entry, thread: u32) -> Option<Span> {
        let key = (thread, entry.trace_id, entry.designator);
        let spans = self.open.get_mut(&key)?;
        let span = spans.pop();
        if spans.is_empty() {
            self.open.remove(&key);
        }
        self.open_count -= usize::from(span.is_some());
        span
    }

    fn end(&mut self, entry: &Entry, thread: u32) -> Option<Item> {
        let Some(begin) = self.pop(entry, thread) else {
            self.counts.unopened += 1;
            return None;
        };
        let end = self.clock.ns(entry.timestamp).max(begin.start);
        Some(Item::Span(Span { end, ..begin }))
    }

    /// The matching begin, if there is one, says when it started; else the duration does.
    fn end_with_duration(&mut self, entry: &Entry, thread: u32, place: u64) -> Span {
        let whole = self.whole(entry, thread, place);
        match self.pop(entry, thread) {
            Some(begin) => {
                let stamp = self.clock.ns(entry.timestamp);
                // Stamped with the begin's time, the entry ends after its duration.
                let end = if stamp > begin.start { stamp } else { whole.end };
                Span { end: end.max(begin.start), ..begin }
            }
            None => whole,
        }
    }
}
