//! Spans in order: by thread, then start, then the longer first, then their place in the file.
//!
//! Up to [`MAX_IN_MEMORY`] spans are sorted in memory. Of more, runs of that many are sorted and written to an unlinked
//! temporary file, and merged when they are read.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;

use zerocopy::{FromBytes, IntoBytes};

use super::error::PlogError;
use super::pairs::Span;

/// Spans sorted in memory at once: 48 MiB.
pub const MAX_IN_MEMORY: usize = 1 << 20;
/// Memory of all read buffers of a merge together.
const MERGE_BYTES: usize = 32 << 20;
/// Spans in the read buffer of one run, at least and at most.
const RUN_BUFFER: (usize, usize) = (64, 4096);

const SPAN_BYTES: usize = size_of::<Span>();

type Key = (u32, u64, Reverse<u64>, u64);

fn key(span: &Span) -> Key {
    (span.thread, span.start, Reverse(span.end), span.place)
}

/// Takes spans in any order.
#[derive(Debug)]
pub(super) struct Sorter {
    limit: usize,
    buffer: Vec<Span>,
    /// Where each run begins and ends in the file, in spans.
    runs: Vec<(u64, u64)>,
    file: Option<File>,
    written: u64,
}

impl Sorter {
    /// An empty one that holds `limit` spans in memory.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit: limit.max(1), buffer: Vec::new(), runs: Vec::new(), file: None, written: 0 }
    }

    /// Takes the next span in.
    ///
    /// # Errors
    /// The temporary file cannot be made or written.
    pub(super) fn push(&mut self, span: Span) -> Result<(), PlogError> {
        self.buffer.push(span);
        if self.buffer.len() >= self.limit { self.spill() } else { Ok(()) }
    }

    fn spill(&mut self) -> Result<(), PlogError> {
        self.buffer.sort_unstable_by_key(key);
        let failed = PlogError::io("write the temporary file that spans are sorted in (TMPDIR says where)");
        let mut write = || {
            let file = match &mut self.file {
                Some(file) => file,
                None => self.file.insert(tempfile::tempfile()?),
            };
            file.write_all(self.buffer.as_bytes())
        };
        write().map_err(failed)?;
        let end = self.written + self.buffer.len() as u64;
        self.runs.push((self.written, end));
        self.written = end;
        self.buffer.clear();
        Ok(())
    }

    /// All spans, in order.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub(super) fn finish(mut self) -> Result<Sorted, PlogError> {
        if let Some(file) = self.file.take() {
            self.file = Some(file);
            if !self.buffer.is_empty() {
                self.spill()?;
            }
        } else {
            self.buffer.sort_unstable_by_key(key);
        }
        let count = self.written + self.buffer.len() as u64;
        Ok(Sorted { memory: self.buffer, runs: self.runs, file: self.file, count })
    }
}

/// Spans in order; they can be read any number of times.
#[derive(Debug)]
pub(super) struct Sorted {
    memory: Vec<Span>,
    runs: Vec<(u64, u64)>,
    file: Option<File>,
    count: u64,
}

impl Sorted {
    /// How many there are.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Calls `visit` with every span.
    ///
    /// # Errors
    /// The temporary file cannot be read, or what `visit` returns.
    pub(super) fn each<E: From<PlogError>>(&self, mut visit: impl FnMut(&Span) -> Result<(), E>) -> Result<(), E> {
        let Some(file) = &self.file else {
            return self.memory.iter().try_for_each(visit);
        };
        let buffer = (MERGE_BYTES / SPAN_BYTES / self.runs.len().max(1)).clamp(RUN_BUFFER.0, RUN_BUFFER.1);
        let mut runs: Vec<Run> = self.runs.iter().map(|&(next, end)| Run::new(next, end, buffer)).collect();
        let mut heads = BinaryHeap::with_capacity(runs.len());
        for (index, run) in runs.iter_mut().enumerate() {
            if let Some(span) = run.next(file)? {
                heads.push(Reverse((key(&span), index)));
            }
        }
        while let Some(Reverse((_, index))) = heads.pop() {
            let run = &mut runs[index];
            visit(&run.head)?;
            if let Some(span) = run.next(file)? {
                heads.push(Reverse((key(&span), index)));
            }
        }
        Ok(())
    }
}

/// A sorted run while it is read.
struct Run {
    next: u64,
    end: u64,
    buffer: Vec<Span>,
    at: usize,
    capacity: usize,
    /// What [`next`](Self::next) returned last.
    head: Span,
}

impl Run {
    fn new(next: u64, end: u64, capacity: usize) -> Self {
        Self { next, end, buffer: Vec::new(), at: 0, capacity, head: Span::new_zeroed_span() }
    }

    fn next(&mut self, file: &File) -> Result<Option<Span>, PlogError> {
        if self.at == self.buffer.len() {
            let left = usize::try_from(self.end - self.next).unwrap_or(usize::MAX).min(self.capacity);
            if left == 0 {
                return Ok(None);
            }
            self.buffer.resize(left, Span::new_zeroed_span());
            file.read_exact_at(self.buffer.as_mut_bytes(), self.next * SPAN_BYTES as u64)
                .map_err(PlogError::io("read the temporary file that spans are sorted in"))?;
            self.next += left as u64;
            self.at = 0;
        }
        self.head = self.buffer[self.at];
        self.at += 1;
        Ok(Some(self.head))
    }
}

impl Span {
    fn new_zeroed_span() -> Self {
        Self::read_from_bytes(&[0; SPAN_BYTES]).expect("invariant: the array is as long as the span")
    }
}
