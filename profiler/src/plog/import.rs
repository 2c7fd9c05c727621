//! A whole log: names, threads, spans in order, and what was found on the way.

use std::collections::BTreeMap;
use std::io::{Read, Seek};

use rustc_hash::FxHashMap;

use super::clock::Clock;
use super::error::PlogError;
use super::header::Header;
use super::kind::{Kind, KindRule};
use super::names::NameTable;
use super::nesting::{Nested, Segment, segments};
use super::order::{MAX_IN_MEMORY, Sorted, Sorter};
use super::pairs::{Item, Mark, PairCounts, Pairs, Span};
use super::reader::{Entry, Log};
use super::scan::{MAX_THREADS, Scan, ThreadSeen, Threads, scan};

/// Trace names that totals are kept for; all further ones are summed up under one.
const MAX_TOTALS: usize = 1 << 16;

/// What a timestamp says about its duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timestamps {
    /// The span goes from the timestamp on.
    Start,
    /// The span ends at the timestamp.
    End,
}

/// What the user decides because the description does not.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// What types mean, in place of what their names suggest.
    pub kinds: Vec<KindRule>,
    /// How timestamps are meant; `None`: as fewer spans cross each other.
    pub timestamps: Option<Timestamps>,
    /// Spans sorted in memory; more go through a temporary file.
    pub in_memory: usize,
}

impl Default for ImportOptions {
    /// What is right for a log of which the user has said nothing.
    fn default() -> Self {
        Self { kinds: Vec::new(), timestamps: None, in_memory: MAX_IN_MEMORY }
    }
}

/// How many of what. Every entry is one of `blank`, part of a span, a mark, a counter's value, `unopened` or `ignored`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Entries that are not blank.
    pub entries: u64,
    /// Entries that were never written.
    pub blank: u64,
    /// Spans that were made of entries.
    pub spans: u64,
    /// Marks: points in time without a duration.
    pub marks: u64,
    /// Entries that set a counter.
    pub counters: u64,
    /// Begins without an end, which end with their thread.
    pub unclosed: u64,
    /// Ends without a begin, left out.
    pub unopened: u64,
    /// Begins that are marks because too many were open.
    pub too_many_open: u64,
    /// Entries that the user does not want.
    pub ignored: u64,
    /// Spans left out of the nesting because too many were open in their thread.
    pub too_deep: u64,
    /// Spans without any length.
    pub zero_width: u64,
    /// Spans that overlap another one of their thread in part.
    pub crossings: u64,
    /// Most spans open at once in a thread.
    pub deepest: usize,
}

/// Sums of one trace name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NameTotals {
    /// Spans of the name.
    pub spans: u64,
    /// Nanoseconds of all spans; a span within one of the same name counts twice.
    pub total_ns: u64,
    /// Nanoseconds in which this was the innermost span.
    pub self_ns: u64,
    /// Nanoseconds of the longest span.
    pub longest_ns: u64,
    /// Marks of the name.
    pub marks: u64,
    /// Values of a counter.
    pub counters: u64,
}

/// A log that has been read.
#[derive(Debug)]
pub struct Trace {
    /// The header as read.
    pub header: Header,
    /// Names of trace ids.
    pub names: NameTable,
    /// The names of entry types.
    pub types: NameTable,
    /// Threads, by the indices of spans and marks.
    pub threads: Vec<ThreadSeen>,
    /// How timestamps are read.
    pub timestamps: Timestamps,
    /// Spans that cross, if timestamps are starts and if they are ends; `None` where this was not tried.
    pub crossings: [Option<u64>; 2],
    /// How many of what.
    pub counts: Counts,
    /// Entries of each type.
    pub type_counts: BTreeMap<u32, u64>,
    /// Sums by trace id; `u32::MAX` stands for all ids beyond a limit.
    pub totals: FxHashMap<u32, NameTotals>,
    spans: Sorted,
    kinds: Kinds,
}

/// What each type means, and whether the user said so.
#[derive(Debug)]
struct Kinds {
    named: Vec<(Kind, bool)>,
    /// What the user says of types without a name.
    numbered: FxHashMap<u32, Kind>,
}

impl Kinds {
    fn new(types: &NameTable, rules: &[KindRule]) -> Self {
        let number = |rule: &KindRule| rule.name.strip_prefix("type#").unwrap_or(&rule.name).parse::<u32>().ok();
        let numbered: FxHashMap<_, _> =
            rules.iter().filter_map(|rule| number(rule).map(|number| (number, rule.kind))).collect();
        let kind_of = |(index, name): (usize, &String)| {
            let by_name = rules.iter().rev().find(|rule| rule.name.eq_ignore_ascii_case(name)).map(|rule| rule.kind);
            let by_number = || u32::try_from(index).ok().and_then(|index| numbered.get(&index).copied());
            by_name.or_else(by_number).map_or_else(|| (Kind::of_name(name), false), |kind| (kind, true))
        };
        Self { named: types.names().iter().enumerate().map(kind_of).collect(), numbered }
    }

    fn get(&self, type_id: u32) -> (Kind, bool) {
        let named = usize::try_from(type_id).ok().and_then(|index| self.named.get(index)).copied();
        named.unwrap_or_else(|| self.numbered.get(&type_id).map_or((Kind::Unknown, false), |kind| (*kind, true)))
    }
}

/// One pass over the log: what it gives under one reading of timestamps.
struct Pass {
    spans: Sorted,
    pairs: PairCounts,
    nested: Nested,
}

impl Trace {
    /// Reads a log. Warnings are added to the log's own.
    ///
    /// Cost: three passes over the entries; up to two more if spans cross and timestamps may be ends. Memory: see the
    /// [module](super).
    ///
    /// # Errors
    /// The log, or the temporary file of a large one, cannot be read.
    pub fn import<R: Read + Seek>(log: &mut Log<R>, options: &ImportOptions) -> Result<Self, PlogError> {
        let mut scan = scan(log)?;
        let (names, types) = log.names(scan.largest_id, scan.largest_type)?;
        let kinds = Kinds::new(&types, &options.kinds);
        let clock = Clock::new(log.header().ticks_per_second);
        let mut pass = |log: &mut Log<R>, timestamps| Pass::run(log, &mut scan, &kinds, clock, timestamps, options);

        let first = options.timestamps.unwrap_or(Timestamps::Start);
        let mut best = (first, pass(log, first)?);
        let mut crossings = [None, None];
        crossings[usize::from(first == Timestamps::End)] = Some(best.1.nested.crossings);
        if options.timestamps.is_none() && best.1.nested.crossings > 0 {
            let other = pass(log, Timestamps::End)?;
            crossings[1] = Some(other.nested.crossings);
            if other.nested.crossings < best.1.nested.crossings {
                best = (Timestamps::End, other);
            }
        }
        let (timestamps, pass) = best;
        let mut trace = Self {
            header: *log.header(),
            names,
            types,
            threads: scan.threads.seen.clone(),
            timestamps,
            crossings,
            counts: Counts { entries: scan.entries, blank: scan.blank, ..Counts::default() },
            type_counts: scan.types,
            totals: FxHashMap::default(),
            spans: pass.spans,
            kinds,
        };
        trace.count(&pass.pairs, &pass.nested);
        trace.sum_up(log)?;
        trace.warn(log, scan.threads.full);
        Ok(trace)
    }

    /// Nanoseconds of the header's start time, which is added to a log's own times where several are compared.
    pub fn start_ns(&self) -> u64 {
        Clock::new(self.header.ticks_per_second).ns(self.header.start)
    }

    /// The earliest and the latest time of the log, in nanoseconds of its own clock; `None` without entries.
    pub fn range_ns(&self) -> Option<(u64, u64)> {
        let clock = Clock::new(self.header.ticks_per_second);
        let first = self.threads.iter().map(|thread| thread.first).min()?;
        let last = self.threads.iter().map(|thread| self.last_of(thread)).max()?;
        Some((clock.ns(first), clock.ns(last)))
    }

    fn last_of(&self, thread: &ThreadSeen) -> u64 {
        last_of(thread, self.timestamps)
    }

    /// What a type means, and whether the user said so.
    pub fn kind_of(&self, type_id: u32) -> (Kind, bool) {
        self.kinds.get(type_id)
    }

    /// Calls `visit` with every stretch of time in which a thread was in spans: thread by thread, in the order of time.
    ///
    /// # Errors
    /// The temporary file of a large log cannot be read, or what `visit` returns.
    pub fn segments<E: From<PlogError>>(&self, visit: impl FnMut(&Segment<'_>) -> Result<(), E>) -> Result<(), E> {
        segments(&self.spans, visit).map(drop)
    }

    /// Calls `visit` with every span: thread by thread, by their starts, the longer first.
    ///
    /// # Errors
    /// As [`segments`](Self::segments).
    pub fn spans<E: From<PlogError>>(&self, visit: impl FnMut(&Span) -> Result<(), E>) -> Result<(), E> {
        self.spans.each(visit)
    }

    /// Calls `visit` with every mark and every value of a counter, in file order. `log` is the one that was imported.
    ///
    /// # Errors
    /// The log cannot be read, or what `visit` returns.
    pub fn marks<R: Read + Seek, E: From<PlogError>>(
        &self,
        log: &mut Log<R>,
        mut visit: impl FnMut(&Mark) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut threads = Threads::of(&self.threads);
        let mut pairs = Pairs::new(Clock::new(self.header.ticks_per_second), self.timestamps);
        let mut place = 0;
        log.entries(|entry| {
            let (kind, chosen) = self.kinds.get(entry.type_id);
            let thread = threads.index(entry.thread);
            place += 1;
            match pairs.take(&entry, thread, place, kind, chosen) {
                Some(Item::Mark(mark)) => visit(&mark),
                _ => Ok(()),
            }
        })?;
        Ok(())
    }

    fn count(&mut self, pairs: &PairCounts, nested: &Nested) {
        self.counts = Counts {
            spans: self.spans.count(),
            unclosed: pairs.unclosed,
            unopened: pairs.unopened,
            too_many_open: pairs.too_many_open,
            ignored: pairs.ignored,
            too_deep: nested.too_deep,
            zero_width: nested.zero_width,
            crossings: nested.crossings,
            deepest: nested.deepest,
            ..self.counts
        };
    }

    fn sum_up<R: Read + Seek>(&mut self, log: &mut Log<R>) -> Result<(), PlogError> {
        let mut totals: FxHashMap<u32, NameTotals> = FxHashMap::default();
        self.spans(|span| {
            let sums = entry_of(&mut totals, span.trace_id);
            let length = span.end - span.start;
            sums.spans += 1;
            sums.total_ns = sums.total_ns.saturating_add(length);
            sums.longest_ns = sums.longest_ns.max(length);
            Ok::<(), PlogError>(())
        })?;
        self.segments(|segment| {
            if let Some(innermost) = segment.path.last() {
                let sums = entry_of(&mut totals, innermost.trace_id);
                sums.self_ns = sums.self_ns.saturating_add(segment.end - segment.start);
            }
            Ok::<(), PlogError>(())
        })?;
        let (mut marks, mut counters) = (0, 0);
        self.marks(log, |mark| {
            let sums = entry_of(&mut totals, mark.trace_id);
            let is_counter = mark.kind == Kind::Counter;
            sums.counters += u64::from(is_counter);
            sums.marks += u64::from(!is_counter);
            counters += u64::from(is_counter);
            marks += u64::from(!is_counter);
            Ok::<(), PlogError>(())
        })?;
        (self.counts.marks, self.counts.counters) = (marks, counters);
        self.totals = totals;
        Ok(())
    }

    fn warn<R: Read + Seek>(&self, log: &mut Log<R>, threads_full: bool) {
        let counts = &self.counts;
        let found = [
            (counts.blank, "entries are blank and left out"),
            (counts.unclosed, "begins have no end; they last until their thread's last entry"),
            (counts.unopened, "ends have no begin and are left out"),
            (counts.too_many_open, "begins are shown as marks: too many were open"),
            (counts.crossings, "spans overlap another one of their thread in part"),
            (counts.too_deep, "spans are left out of flamegraphs: too many were open in their thread"),
        ];
        for (count, what) in found.into_iter().filter(|(count, _)| *count > 0) {
            log.warn(format!("{count} {what}"));
        }
        if threads_full {
            log.warn(format!("more than {MAX_THREADS} threads; the rest is shown as one"));
        }
    }
}

/// The last tick of a thread.
fn last_of(thread: &ThreadSeen, timestamps: Timestamps) -> u64 {
    match timestamps {
        Timestamps::Start => thread.last_end,
        Timestamps::End => thread.last,
    }
}

fn entry_of(totals: &mut FxHashMap<u32, NameTotals>, trace_id: u32) -> &mut NameTotals {
    let known = totals.len() < MAX_TOTALS || totals.contains_key(&trace_id);
    totals.entry(if known { trace_id } else { u32::MAX }).or_default()
}

impl Pass {
    fn run<R: Read + Seek>(
        log: &mut Log<R>,
        scan: &mut Scan,
        kinds: &Kinds,
        clock: Clock,
        timestamps: Timestamps,
        options: &ImportOptions,
    ) -> Result<Self, PlogError> {
        let mut pairs = Pairs::new(clock, timestamps);
        let mut sorter = Sorter::new(options.in_memory);
        // Begins and ends that are not in the order of time, which they must be in to be matched.
        let mut unordered = Sorter::new(options.in_memory);
        let mut place = 0;
        log.entries(|entry| {
            let (kind, chosen) = kinds.get(entry.type_id);
            let thread = scan.threads.index(entry.thread);
            place += 1;
            if !scan.in_order && matches!(kind, Kind::Begin | Kind::End) {
                return unordered.push(as_span(&entry, thread, place));
            }
            match pairs.take(&entry, thread, place, kind, chosen) {
                Some(Item::Span(span)) => sorter.push(span),
                _ => Ok(()),
            }
        })?;
        unordered.finish()?.each(|span| {
            let (kind, chosen) = kinds.get(span.type_id);
            match pairs.take(&as_entry(span), span.thread, span.place, kind, chosen) {
                Some(Item::Span(span)) => sorter.push(span),
                _ => Ok(()),
            }
        })?;
        let last = |thread: u32| {
            let seen = usize::try_from(thread).ok().and_then(|index| scan.threads.seen.get(index));
            seen.map_or(0, |thread| clock.ns(last_of(thread, timestamps)))
        };
        let mut left = Vec::new();
        pairs.close(last, |span| left.push(span));
        left.into_iter().try_for_each(|span| sorter.push(span))?;
        let spans = sorter.finish()?;
        let nested = segments(&spans, |_| Ok::<(), PlogError>(()))?;
        Ok(Self { spans, pairs: pairs.counts, nested })
    }
}

/// An entry in the shape that the sorter takes: ticks in place of nanoseconds.
fn as_span(entry: &Entry, thread: u32, place: u64) -> Span {
    Span {
        start: entry.timestamp,
        end: entry.timestamp.saturating_add(entry.duration),
        designator: entry.designator,
        place,
        thread,
        trace_id: entry.trace_id,
        type_id: entry.type_id,
        padding: 0,
    }
}

fn as_entry(span: &Span) -> Entry {
    Entry {
        timestamp: span.start,
        duration: span.end - span.start,
        thread: 0,
        trace_id: span.trace_id,
        type_id: span.type_id,
        designator: span.designator,
    }
}
