//! The tail of a dump that is still being written.

use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use crate::code::{CodeEvent, CodeOrigin};
use crate::units::{FileOffset, MonoNs};

use super::header::AGENT_PAD1;
use super::options::ReaderOptions;
use super::reader::DumpReader;
use super::stats::DumpStats;
use super::window::FileWindow;

/// Follows one opened dump.
///
/// Reads with `pread` only and never maps: a truncation then is a short read, not a SIGBUS. How the file is found and
/// opened safely is the caller's matter. Memory: the torn record at the end and one chunk.
#[derive(Debug)]
pub struct DumpTail {
    window: FileWindow,
    options: ReaderOptions,
    reader: DumpReader,
    made: Instant,
}

/// What a poll did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes read from the file, those of the check of its header not counted.
    pub bytes_read: u64,
    /// The budget ended before the file did: poll again soon.
    pub more: bool,
    /// The file was truncated or rewritten, and is read anew from its start.
    pub restarted: bool,
}

impl Progress {
    /// Reads the next chunk, unless the budget or the file is at its end.
    pub(super) fn read_on(&mut self, window: &mut FileWindow, budget: u64) -> io::Result<bool> {
        if window.is_at_end() {
            return Ok(false);
        }
        let left = budget.max(1).saturating_sub(self.bytes_read);
        if left == 0 {
            self.more = true;
            return Ok(false);
        }
        let got = window.read_chunk(left)?;
        self.bytes_read = self.bytes_read.saturating_add(got as u64);
        Ok(got > 0)
    }
}

/// The end of the file that is not yet a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TornTail<'a> {
    /// Where `bytes` begin in the file.
    pub start: FileOffset,
    /// The beginning of an incomplete record, empty if the file ends with a record.
    pub bytes: &'a [u8],
    /// Code bytes of the last record that are still to come: they follow the file's end, before the next record.
    /// Only without [`ReaderOptions::keep_code`], and then `bytes` is empty.
    pub owed: u64,
}

impl DumpTail {
    /// Follows `file` from its start. Reads nothing yet.
    pub fn new(file: File, options: ReaderOptions) -> Self {
        Self { window: FileWindow::new(file), reader: DumpReader::new(options.clone()), options, made: Instant::now() }
    }

    /// The account so far.
    pub fn stats(&self) -> &DumpStats {
        self.reader.stats()
    }

    /// The account of the file as it is: damage at its end, which no record has followed, included.
    pub fn stats_so_far(&self) -> DumpStats {
        self.reader.stats_up_to(self.window.file_len())
    }

    /// The file's length at the last poll.
    pub fn file_len(&self) -> u64 {
        self.window.file_len()
    }

    /// The parser and assembler behind it.
    pub fn reader(&self) -> &DumpReader {
        &self.reader
    }

    /// Reads what is new, up to [`ReaderOptions::poll_budget`] bytes, and gives the events of every record that is
    /// complete, in the file's order. A poll without news costs one `fstat` and one read of 40 bytes.
    ///
    /// # Errors
    ///
    /// The file cannot be read any more. What was given out before stays true.
    pub fn poll(&mut self, out: &mut impl FnMut(CodeEvent)) -> io::Result<Progress> {
        let restarted = self.window.look_again()?;
        if restarted {
            self.reader.restart(&self.options);
        }
        let mut progress = Progress { restarted, ..Progress::default() };
        loop {
            // After each read: with a busy machine much time may pass between two of these lines, and a record from
            // the future has no time that counts.
            self.advance_now();
            self.read_records(out);
            if !progress.read_on(&mut self.window, self.options.poll_budget)? {
                return Ok(progress);
            }
        }
    }

    /// Whether everything that was announced before the last poll began has been read, because the producer is jitprof's
    /// agent: it keeps nothing back.
    pub fn is_complete(&self) -> bool {
        let of_agent = self.reader.parser().header().is_some_and(|header| header.pad1 == AGENT_PAD1);
        of_agent && !self.reader.parser().is_lost() && self.torn_tail().bytes.is_empty()
    }

    /// The incomplete record at the end, after a poll.
    pub fn torn_tail(&self) -> TornTail<'_> {
        TornTail {
            start: FileOffset(self.window.start()),
            bytes: self.window.bytes(),
            owed: self.window.start().saturating_sub(self.window.file_len()),
        }
    }

    /// Reads the torn tail continued by `extra` (bytes that the target has not written yet), and leaves this tail as
    /// it is. Gives the events of the complete records with [`CodeOrigin::Peeked`], and how many bytes of
    /// `torn_tail().bytes ++ extra` they are; owed code bytes count, too.
    ///
    /// Nothing is read behind damage, nor while the tail itself is looking for the next record. Cost: a copy of the
    /// torn bytes and `extra`.
    pub fn tentative(&self, extra: &[u8]) -> (Vec<CodeEvent>, usize) {
        let torn = self.torn_tail();
        let Some(owed) = usize::try_from(torn.owed).ok().filter(|owed| *owed <= extra.len()) else {
            return (Vec::new(), 0);
        };
        let window = [torn.bytes, extra.get(owed..).unwrap_or(&[])].concat();
        let options = ReaderOptions { origin: CodeOrigin::Peeked, ..self.options.clone() };
        let mut events = Vec::new();
        let parsed = self.reader.read_tentatively(options, &window, &mut |event| events.push(event));
        (events, parsed.saturating_add(owed))
    }

    /// No record is from the future, so the reader has to know the present. `Instant` is CLOCK_MONOTONIC.
    fn advance_now(&mut self) {
        if let Some(clock) = &self.options.clock {
            let passed: Duration = self.made.elapsed();
            let passed_ns = u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX);
            self.reader.set_now(MonoNs(clock.now.0.saturating_add(passed_ns)));
        }
    }

    fn read_records(&mut self, out: &mut impl FnMut(CodeEvent)) {
        if self.window.is_ready() {
            let needed = self.reader.read(self.window.bytes(), out);
            self.window.go_on(self.reader.offset().0, needed);
        }
    }
}
