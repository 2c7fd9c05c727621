//! The tail of a dump that is still being written.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use crate::code::{CodeEvent, CodeOrigin};
use crate::units::{FileOffset, MonoNs};

use super::header::{AGENT_PAD1, HEADER_SIZE};
use super::options::ReaderOptions;
use super::reader::DumpReader;
use super::stats::DumpStats;

/// Bytes of one read. Larger reads are not faster (page cache), and the buffer stays in L2.
const CHUNK: usize = 256 << 10;

/// Follows one opened dump.
///
/// Reads with `pread` only and never maps: a truncation then is a short read, not a SIGBUS. How the file is found and
/// opened safely is the caller's matter. Memory: the torn record at the end and one chunk.
#[derive(Debug)]
pub struct DumpTail {
    file: File,
    options: ReaderOptions,
    reader: DumpReader,
    /// Bytes of the file that are read and not yet part of a record, from `buffer_start` on: the first `filled` ones.
    /// The rest is room for reading, which is zeroed only once.
    buffer: Vec<u8>,
    filled: usize,
    buffer_start: u64,
    /// The buffer's length before which the reader cannot go on.
    needed: usize,
    /// The first bytes as they were: another header is another file.
    head: Vec<u8>,
    file_len: u64,
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
        Self {
            file,
            reader: DumpReader::new(options.clone()),
            options,
            buffer: Vec::new(),
            filled: 0,
            buffer_start: 0,
            needed: HEADER_SIZE,
            head: Vec::new(),
            file_len: 0,
            made: Instant::now(),
        }
    }

    /// The account so far.
    pub fn stats(&self) -> &DumpStats {
        self.reader.stats()
    }

    /// The account of the file as it is: damage at its end, which no record has followed, included.
    pub fn stats_so_far(&self) -> DumpStats {
        self.reader.stats_up_to(self.file_len)
    }

    /// The file's length at the last poll.
    pub fn file_len(&self) -> u64 {
        self.file_len
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
        let mut progress = Progress { restarted: self.check_identity()?, ..Progress::default() };
        loop {
            // After each read: with a busy machine much time may pass between two of these lines, and a record from
            // the future has no time that counts.
            self.advance_now();
            self.read_records(out);
            let position = self.read_position();
            if position >= self.file_len {
                return Ok(progress);
            }
            let budget = self.options.poll_budget.max(1).saturating_sub(progress.bytes_read);
            if budget == 0 {
                progress.more = true;
                return Ok(progress);
            }
            let got = self.read_chunk(position, budget)?;
            if got == 0 {
                return Ok(progress);
            }
            progress.bytes_read = progress.bytes_read.saturating_add(got as u64);
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
            start: FileOffset(self.buffer_start),
            bytes: self.window(),
            owed: self.buffer_start.saturating_sub(self.file_len),
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

    /// Whether the file is another one than at the last poll; then everything begins anew.
    fn check_identity(&mut self) -> io::Result<bool> {
        let len = self.file.metadata()?.len();
        let mut head = [0; HEADER_SIZE];
        let got = self.file.read_at(&mut head, 0)?;
        let head = head.get(..got).unwrap_or(&[]);
        let same = len >= self.file_len && head.starts_with(&self.head);
        if !same {
            self.reader.restart(&self.options);
            self.filled = 0;
            self.buffer_start = 0;
            self.needed = HEADER_SIZE;
        }
        self.head = head.to_vec();
        self.file_len = len;
        Ok(!same)
    }

    /// What is read and not yet part of a record.
    fn window(&self) -> &[u8] {
        self.buffer.get(..self.filled).unwrap_or(&[])
    }

    /// The file offset behind the window.
    fn read_position(&self) -> u64 {
        self.buffer_start.saturating_add(self.filled as u64)
    }

    fn read_records(&mut self, out: &mut impl FnMut(CodeEvent)) {
        if self.filled < self.needed {
            return;
        }
        let window = self.buffer.get(..self.filled).unwrap_or(&[]);
        self.needed = self.reader.read(window, out);
        let offset = self.reader.offset().0;
        let used = usize::try_from(offset.saturating_sub(self.buffer_start)).unwrap_or(usize::MAX);
        let used = used.min(self.filled);
        self.buffer.copy_within(used..self.filled, 0);
        self.filled -= used;
        self.buffer_start = offset;
    }

    fn read_chunk(&mut self, position: u64, budget: u64) -> io::Result<usize> {
        let missing = self.file_len.saturating_sub(position).min(budget);
        let want = usize::try_from(missing).unwrap_or(usize::MAX).min(CHUNK);
        let end = self.filled.saturating_add(want);
        if self.buffer.len() < end {
            self.buffer.resize(end, 0);
        } else if self.buffer.len() > 4 * CHUNK && end < CHUNK {
            // A large record is over.
            self.buffer.truncate(CHUNK);
            self.buffer.shrink_to_fit();
        }
        let Some(room) = self.buffer.get_mut(self.filled..end) else {
            return Ok(0);
        };
        let got = self.file.read_at(room, position)?;
        self.filled = self.filled.saturating_add(got).min(end);
        Ok(got)
    }
}
