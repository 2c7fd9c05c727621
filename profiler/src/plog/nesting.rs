//! Which spans a thread was in, at every time.
//!
//! ```text
//! A ├──────────────────────┤
//! B    ├────────┤                segments: A · A;B · A;B;C · A;B · A
//! C       ├──┤
//! ```
//!
//! The span that opened last is innermost. Spans that overlap without one holding the other (which a log of one thread
//! should not have) are counted; each still ends at its own time.

use super::error::PlogError;
use super::order::Sorted;
use super::pairs::Span;

/// Spans that may be open at once in a thread; deeper ones are left out and counted.
pub const MAX_DEPTH: usize = 256;

/// A stretch of time during which a thread's open spans stay the same.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// Index into [`Trace::threads`](super::Trace::threads).
    pub thread: u32,
    /// Nanoseconds of the log's own clock.
    pub start: u64,
    /// Likewise, where the stretch ends; after the start.
    pub end: u64,
    /// The open spans, outermost first; never empty. The time is the last one's own.
    pub path: &'a [Span],
    /// How many of them, from the outermost on, are those of the segment before.
    pub kept: usize,
}

/// What the nesting shows about the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Nested {
    /// Spans that overlap another one in part.
    pub(super) crossings: u64,
    /// Spans left out because [`MAX_DEPTH`] were open.
    pub(super) too_deep: u64,
    /// Spans without any length, which have no place.
    pub(super) zero_width: u64,
    /// Most spans open at once.
    pub(super) deepest: usize,
}

/// Calls `visit` with every segment: thread by thread, in the order of time.
///
/// Cost: a step for each start and end; up to [`MAX_DEPTH`] where spans cross.
pub(super) fn segments<E: From<PlogError>>(
    spans: &Sorted,
    mut visit: impl FnMut(&Segment<'_>) -> Result<(), E>,
) -> Result<Nested, E> {
    let mut sweep = Sweep::default();
    spans.each::<E>(|span| {
        if sweep.thread != span.thread {
            sweep.advance(u64::MAX, &mut visit)?;
            sweep.thread = span.thread;
            sweep.kept = 0;
        }
        sweep.advance(span.start, &mut visit)?;
        sweep.push(span);
        Ok(())
    })?;
    sweep.advance(u64::MAX, &mut visit)?;
    Ok(sweep.found)
}

#[derive(Default)]
struct Sweep {
    thread: u32,
    now: u64,
    path: Vec<Span>,
    /// For each open span, the earliest end of it and those outside of it.
    ends: Vec<u64>,
    kept: usize,
    found: Nested,
}

impl Sweep {
    fn push(&mut self, span: &Span) {
        if span.end <= span.start {
            self.found.zero_width += 1;
        } else if self.path.len() >= MAX_DEPTH {
            self.found.too_deep += 1;
        } else {
            let outside = self.ends.last().copied().unwrap_or(u64::MAX);
            self.found.crossings += u64::from(outside < span.end);
            self.path.push(*span);
            self.ends.push(outside.min(span.end));
            self.found.deepest = self.found.deepest.max(self.path.len());
        }
    }

    /// Goes on to `time`, and closes what ends until then.
    fn advance<E>(&mut self, time: u64, visit: &mut impl FnMut(&Segment<'_>) -> Result<(), E>) -> Result<(), E> {
        while let Some(&end) = self.ends.last()
            && end <= time
        {
            self.emit(end, visit)?;
            self.close(end);
        }
        if !self.path.is_empty() {
            self.emit(time, visit)?;
        }
        self.now = time;
        Ok(())
    }

    fn emit<E>(&mut self, end: u64, visit: &mut impl FnMut(&Segment<'_>) -> Result<(), E>) -> Result<(), E> {
        if end > self.now {
            visit(&Segment { thread: self.thread, start: self.now, end, path: &self.path, kept: self.kept })?;
            self.kept = self.path.len();
            self.now = end;
        }
        Ok(())
    }

    /// Removes the innermost span that ends at `end`.
    fn close(&mut self, end: u64) {
        let Some(index) = self.path.iter().rposition(|span| span.end == end) else {
            return;
        };
        self.path.remove(index);
        self.ends.truncate(index);
        for span in &self.path[index..] {
            let outside = self.ends.last().copied().unwrap_or(u64::MAX);
            self.ends.push(outside.min(span.end));
        }
        self.kept = self.kept.min(index);
    }
}
