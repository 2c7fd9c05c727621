//! Rows from pieces of code that come in any order and may overlap.

use std::ops::Range;

use jitprof_common::row::Rule;

use super::rows::{PageWriter, RowTable};

/// Most rows of a table. Node 20 has 374 k, Chromium about 2 M; 4 Mi rows take 32 MiB.
pub(super) const MAX_ROWS: usize = 4 << 20;

/// Most pieces of code of a table (24 bytes each while it is built). Chromium has about 700 k.
const MAX_SPANS: usize = 2 << 20;

/// A piece of code and where its rows are in [`RowTableBuilder::rows`].
#[derive(Clone, Copy, Debug)]
struct Span {
    start: u64,
    end: u64,
    first: u32,
    count: u32,
}

/// Collects the rows of pieces of code (FDEs, functions) and makes a [`RowTable`].
///
/// Pieces may come in any order. Where they overlap, **the piece that begins last wins from there on**, up to its own
/// end, and the piece before it does not resume: what libgcc and the kernel's own ORC search do, which find the last
/// start at or below the address and then look whether it reaches that far. Of pieces with the same start the one
/// added first wins. Behind each piece that no other follows immediately stands a [`Rule::GAP`].
#[derive(Debug)]
pub struct RowTableBuilder {
    within: Range<u64>,
    spans: Vec<Span>,
    /// Offset from the piece's start and the rule from there on.
    rows: Vec<(u32, Rule)>,
    max_spans: usize,
    max_rows: usize,
    overflow: u64,
}

impl Default for RowTableBuilder {
    fn default() -> Self {
        Self::within(0..u64::MAX)
    }
}

impl RowTableBuilder {
    /// A builder that cuts every piece to a range of addresses: the pages of a JIT space that changed, for example.
    pub fn within(within: Range<u64>) -> Self {
        let (max_spans, max_rows) = (MAX_SPANS, MAX_ROWS);
        Self { within, spans: Vec::new(), rows: Vec::new(), max_spans, max_rows, overflow: 0 }
    }

    /// A builder for a file with so many bytes of code, of which each begins one piece and one row at most.
    pub(super) fn for_code(bytes: u64) -> Self {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        Self { max_spans: bytes.min(MAX_SPANS), max_rows: bytes.min(MAX_ROWS), ..Self::default() }
    }

    /// Adds a piece of code with rules by address, ascending; of two at one address the later counts. What lies
    /// outside of the piece is cut off; a piece before its first rule is a gap. Pieces longer than 4 GiB end there.
    pub fn add(&mut self, code: Range<u64>, rules: impl IntoIterator<Item = (u64, Rule)>) {
        let start = code.start.max(self.within.start);
        let end = code.end.min(self.within.end).min(start.saturating_add(u64::from(u32::MAX)));
        if start >= end {
            return;
        }
        if self.spans.len() >= self.max_spans {
            self.overflow = self.overflow.saturating_add(1);
            return;
        }
        let first = self.rows.len();
        for (address, rule) in rules {
            if address >= end {
                break;
            }
            let offset = u32::try_from(address.saturating_sub(start)).unwrap_or(u32::MAX);
            if !self.add_row(first, offset, rule) {
                self.rows.truncate(first);
                self.overflow = self.overflow.saturating_add(1);
                return;
            }
        }
        let (Ok(first), Ok(count)) = (u32::try_from(first), u32::try_from(self.rows.len().saturating_sub(first)))
        else {
            return;
        };
        self.spans.push(Span { start, end, first, count });
    }

    /// Adds every covered stretch of another table.
    pub fn add_table(&mut self, table: &RowTable) {
        let mut stretch: Vec<(u64, Rule)> = Vec::new();
        for (address, rule) in table.rows() {
            if rule == Rule::GAP {
                if let Some((start, _)) = stretch.first() {
                    self.add(*start..address, stretch.iter().copied());
                }
                stretch.clear();
            } else {
                stretch.push((address, rule));
            }
        }
    }

    /// The stretches of `code` (ascending, without overlap) that no piece covers, of so many bytes at least. Costs a sort
    /// if the pieces came unsorted.
    pub(super) fn gaps(&mut self, code: &[Range<u64>], least: u64) -> Vec<Range<u64>> {
        self.sort();
        let mut gaps = Vec::new();
        let mut add = |start: u64, end: u64| gaps.extend((end.saturating_sub(start) >= least).then_some(start..end));
        let (mut spans, mut covered) = (self.spans.iter().peekable(), 0);
        for range in code {
            while let Some(span) = spans.next_if(|span| span.start < range.end) {
                add(range.start.max(covered), span.start);
                // None resumes behind one that begins later.
                covered = span.end.min(spans.peek().map_or(u64::MAX, |next| next.start));
            }
            add(range.start.max(covered), range.end);
        }
        gaps
    }

    /// By start; of those with the same one the first that was added.
    fn sort(&mut self) {
        if !self.spans.is_sorted_by_key(|span| span.start) {
            self.spans.sort_by_key(|span| span.start);
        }
        self.spans.dedup_by_key(|span| span.start);
    }

    /// Pieces that did not fit: a table holds 4 Mi rows of 2 Mi pieces.
    pub fn overflow(&self) -> u64 {
        self.overflow
    }

    /// Sorts the pieces and writes the table. Costs a sort if they came unsorted.
    ///
    /// The second value says that the table was full: pages from there on are not there.
    pub fn finish(mut self) -> (RowTable, bool) {
        self.sort();
        let mut writer = PageWriter::new(self.max_rows.saturating_mul(2).saturating_add(64).min(MAX_ROWS));
        let mut spans = self.spans.iter().peekable();
        while let Some(span) = spans.next() {
            let next = spans.peek().map(|next| next.start);
            self.write_span(&mut writer, span, next.map_or(span.end, |next| span.end.min(next)));
            if next.is_none_or(|next| span.end < next) {
                writer.push(span.end, Rule::GAP);
            }
        }
        writer.finish_counted()
    }

    fn write_span(&self, writer: &mut PageWriter, span: &Span, end: u64) {
        let first = span.first as usize;
        let rows = self.rows.get(first..first.saturating_add(span.count as usize)).unwrap_or_default();
        if rows.first().is_none_or(|(offset, _)| *offset != 0) {
            writer.push(span.start, Rule::GAP);
        }
        for (offset, rule) in rows {
            let address = span.start.saturating_add(u64::from(*offset));
            if address >= end {
                break;
            }
            writer.push(address, *rule);
        }
    }

    /// Adds a row to the piece whose rows begin at `first`; false if there is no room.
    fn add_row(&mut self, first: usize, offset: u32, rule: Rule) -> bool {
        if let Some(piece) = self.rows.get_mut(first..)
            && let Some(last) = piece.last_mut()
        {
            if last.1 == rule {
                return true;
            }
            if last.0 == offset {
                last.1 = rule;
                return true;
            }
        }
        if self.rows.len() >= self.max_rows {
            return false;
        }
        self.rows.push((offset, rule));
        true
    }
}
