//! Follows a dump while it is written: as a stream that others read for it, or as an opened file.

use std::fs::File;
use std::io;

use crate::code::{CodeEvent, CodeOrigin};
use jitprof_common::units::{FileOffset, MonoNs};

use super::clock::TscConversion;
use super::header::AGENT_PAD1;
use super::options::ReaderOptions;
use super::reader::DumpReader;
use super::stats::DumpStats;
use super::window::{FileBytes, FileLook, FileWindow, NextRead, Taken};

/// What a poll did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes read from the file, those of the check of its header not counted.
    pub bytes_read: u64,
    /// There is more to read than was read: go on soon.
    pub more: bool,
    /// The file was truncated or rewritten, and is read anew from its start.
    pub restarted: bool,
}

impl Progress {
    /// As much of the next read as the budget leaves; at least a byte, so that a poll gets on.
    pub(super) fn within(&self, next: NextRead, budget: u64) -> NextRead {
        let left = usize::try_from(budget.saturating_sub(self.bytes_read)).unwrap_or(usize::MAX);
        NextRead { len: next.len.min(left.max(1)), ..next }
    }

    /// Counts what was taken; returns whether to end, because of the file's or the budget's end.
    pub(super) fn go_on(&mut self, taken: Taken, at_end: bool, budget: u64) -> bool {
        self.bytes_read = self.bytes_read.saturating_add(taken.bytes as u64);
        self.restarted |= taken.restarted;
        // Nothing read means that the file ends here, whatever its length said, unless it has just begun anew.
        let ended = at_end || (taken.bytes == 0 && !taken.restarted);
        self.more = !ended && self.bytes_read >= budget;
        ended || self.more
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

/// Follows one dump without I/O: whoever reads the file asks where to read on, and hands over what was there.
///
/// Memory: the torn record at the end and one chunk.
#[derive(Debug)]
pub struct DumpStream {
    window: FileWindow,
    options: ReaderOptions,
    reader: DumpReader,
}

impl DumpStream {
    /// At the start of a file of which nothing is known.
    pub fn new(options: ReaderOptions) -> Self {
        Self { window: FileWindow::new(), reader: DumpReader::new(options.clone()), options }
    }

    /// Where to read on.
    pub fn next_read(&self) -> NextRead {
        self.window.next_read()
    }

    /// Sets how counter ticks become times from now on: the longer the counter has been watched, the better its rate is
    /// known, and a dump is followed for weeks.
    pub fn set_ticks(&mut self, tsc: TscConversion) {
        if let Some(clock) = &mut self.options.clock {
            clock.tsc = Some(tsc);
        }
        self.reader.set_ticks(tsc);
    }

    /// Takes what was read at `now` or before, and gives the events of every record that is complete, in the file's
    /// order. Bytes of another place than [`DumpStream::next_read`]'s are left out.
    pub fn take(&mut self, look: FileLook<'_>, now: MonoNs, out: &mut impl FnMut(CodeEvent)) -> Progress {
        let mut progress = Progress::default();
        let taken = self.take_bytes(look, now, out);
        progress.go_on(taken, self.window.is_at_end(), 0);
        progress
    }

    fn take_bytes(&mut self, look: FileLook<'_>, now: MonoNs, out: &mut impl FnMut(CodeEvent)) -> Taken {
        let taken = self.window.take(look);
        if taken.restarted {
            self.reader.restart(&self.options);
        }
        // No record is from the future, so the reader has to know the present.
        self.reader.set_now(now);
        if self.window.is_ready() {
            let needed = self.reader.read(self.window.bytes(), out);
            self.window.go_on(self.reader.offset().0, needed);
        }
        taken
    }

    /// The account so far.
    pub fn stats(&self) -> &DumpStats {
        self.reader.stats()
    }

    /// The account of the file as it is: damage at its end, which no record has followed, included.
    pub fn stats_so_far(&self) -> DumpStats {
        self.reader.stats_up_to(self.window.file_len())
    }

    /// The file's length when it was last looked at.
    pub fn file_len(&self) -> u64 {
        self.window.file_len()
    }

    /// The parser and assembler behind it.
    pub fn reader(&self) -> &DumpReader {
        &self.reader
    }

    /// Whether everything that was announced before the last look has been read, because the producer is jitprof's
    /// agent: it keeps nothing back.
    pub fn is_complete(&self) -> bool {
        let of_agent = self.reader.parser().header().is_some_and(|header| header.pad1 == AGENT_PAD1);
        of_agent && !self.reader.parser().is_lost() && self.torn_tail().bytes.is_empty()
    }

    /// Bytes of memory that hold what is not yet part of a record.
    pub fn held_bytes(&self) -> usize {
        self.window.held_bytes()
    }

    /// Gives up the incomplete record at the end, and the memory that it takes. It is counted as `given_up`; what comes
    /// behind it is read on.
    pub fn give_up_torn(&mut self) {
        if self.reader.give_up_torn(self.window.bytes()) {
            self.window.go_on(self.reader.offset().0, 1);
            self.window.give_back();
        }
    }

    /// The incomplete record at the end.
    pub fn torn_tail(&self) -> TornTail<'_> {
        TornTail {
            start: FileOffset(self.window.start()),
            bytes: self.window.bytes(),
            owed: self.window.start().saturating_sub(self.window.file_len()),
        }
    }

    /// Reads the torn tail continued by `extra` (bytes that the target has not written yet), and leaves this stream as
    /// it is. Gives the events of the complete records with [`CodeOrigin::Peeked`], and how many bytes of
    /// `torn_tail().bytes ++ extra` they are; owed code bytes count, too.
    ///
    /// Nothing is read behind damage, nor while the stream itself is looking for the next record. Cost: a copy of the
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
}

/// A [`DumpStream`] and the opened file that it follows.
///
/// Reads with `pread` only and never maps: a truncation then is a short read, not a SIGBUS. How the file is found and
/// opened safely is the caller's matter.
#[derive(Debug)]
pub struct DumpTail {
    file: File,
    stream: DumpStream,
    poll_budget: u64,
}

impl DumpTail {
    /// Follows `file` from its start. Reads nothing yet.
    pub fn new(file: File, options: ReaderOptions) -> Self {
        Self { file, poll_budget: options.poll_budget, stream: DumpStream::new(options) }
    }

    /// What has been read of it.
    pub fn stream(&self) -> &DumpStream {
        &self.stream
    }

    /// See [`DumpStream::give_up_torn`].
    pub fn give_up_torn(&mut self) {
        self.stream.give_up_torn();
    }

    /// Reads what is new, up to [`ReaderOptions::poll_budget`] bytes, and gives the events of every record that is
    /// complete, in the file's order. `now` is asked after each read: no record is from the
    /// future; of a file from elsewhere that is not known, and it says `MonoNs(u64::MAX)`. A poll without news costs one
    /// `fstat` and one read of 40 bytes.
    ///
    /// # Errors
    /// The file cannot be read any more. What was given out before stays true.
    pub fn poll(&mut self, now: impl Fn() -> MonoNs, out: &mut impl FnMut(CodeEvent)) -> io::Result<Progress> {
        let mut progress = Progress::default();
        loop {
            let next = progress.within(self.stream.next_read(), self.poll_budget);
            let look = FileBytes::read(&self.file, next)?;
            let taken = self.stream.take_bytes(look.as_look(), now(), out);
            if progress.go_on(taken, self.stream.window.is_at_end(), self.poll_budget) {
                return Ok(progress);
            }
        }
    }
}
