//! Follows a perf map while it grows, without I/O: it says what to read next, and takes what was read.

use serde::Serialize;

use super::line::parse_line;
use crate::code::{CodeEvent, CodeLoad, CodeOrigin, SourceRows};
use crate::{FileLook, NextRead};
use jitprof_common::units::MonoNs;

/// Bytes asked of the file at once: about 5,000 lines, a millisecond of work.
const CHUNK_BYTES: usize = 256 << 10;

/// A longer line keeps this much of its beginning: far more than the code map keeps of a name.
const MAX_LINE_BYTES: usize = 4 << 10;

/// A file with so many bytes and no end of a line, or with so many lines that are no entries and fewer that are, is no perf
/// map. It may be as long as its owner likes, and costs him nothing on the disk.
const MAX_UNENDED_BYTES: u64 = 4 << 20;
const MAX_BAD_LINES: u64 = 1 << 16;

/// Bytes before the read position that are compared at each poll. A file rewritten in place to more than its former
/// length looks like one that grew, but for these.
pub const TRAIL_BYTES: usize = 64;

/// What reading the map has met so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PerfMapStats {
    /// Bytes read; those compared at each poll not counted.
    pub bytes: u64,
    /// Lines taken up.
    pub lines: u64,
    /// Lines lost because they are no entry.
    pub bad_lines: u64,
    /// Lines of more than 4 KiB, whose names were cut.
    pub long_lines: u64,
    /// Times the file was truncated, rewritten or replaced.
    pub restarts: u64,
}

/// What one look did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes read.
    pub bytes: u64,
    /// Events appended.
    pub events: usize,
    /// The file does not end behind what was read: go on soon.
    pub more: bool,
    /// The file had been truncated, rewritten or replaced and is read from its beginning.
    pub restarted: bool,
    /// It is no perf map, and nothing more of it is to be read.
    pub is_hopeless: bool,
}

/// The reader of one perf map.
///
/// # The time of a line
///
/// A line has no time of its own. Each event carries the last time at which the file was seen to end *before* the line,
/// hence the earliest time at which the line can have been written; 0 for all that was there at the first look. The
/// code map uses it only for a line over code that an earlier line listed; see `docs/reference/perf-map.md`.
#[derive(Debug, Default)]
pub struct PerfMapStream {
    offset: u64,
    torn: Vec<u8>,
    /// The current line is longer than is kept of it.
    overlong: bool,
    /// Bytes since the last end of a line.
    unended: u64,
    trail: Vec<u8>,
    ended_at: MonoNs,
    stats: PerfMapStats,
}

impl PerfMapStream {
    /// At the beginning of a file of which nothing is known.
    pub fn new() -> Self {
        Self::default()
    }

    /// In a file of which only what lies behind `offset` counts; `trail` is what stands right before, so that a file that
    /// was written anew is known as such.
    pub fn beginning_at(offset: u64, trail: &[u8]) -> Self {
        let mut stream = Self { offset, ..Self::default() };
        stream.remember(trail);
        stream
    }

    /// In the same file, where this one has read to: for somebody else whose lines begin there.
    pub fn behind(&self) -> Self {
        Self::beginning_at(self.offset, &self.trail)
    }

    /// Where to read on: the last bytes that were read, which are compared, and what follows.
    pub fn next_read(&self) -> NextRead {
        NextRead { offset: self.trail_start(), len: self.trail.len() + CHUNK_BYTES }
    }

    /// Takes what was read, and appends an event for each complete line. `observed` is a time before the file was looked
    /// at. A last line without newline is kept for the next look. Bytes of another place than
    /// [`PerfMapStream::next_read`]'s are left out.
    pub fn take(&mut self, look: FileLook<'_>, observed: MonoNs, out: &mut Vec<CodeEvent>) -> Progress {
        if look.offset != self.trail_start() {
            return Progress { more: true, ..Progress::default() };
        }
        let Some(bytes) = look.bytes.strip_prefix(&*self.trail).filter(|_| look.file_len >= self.offset) else {
            self.restart();
            return Progress { restarted: true, more: true, ..Progress::default() };
        };
        if self.is_hopeless() {
            return Progress { is_hopeless: true, ..Progress::default() };
        }
        let before = out.len();
        self.take_bytes(bytes, out);
        let read = bytes.len() as u64;
        self.offset = self.offset.saturating_add(read);
        self.stats.bytes = self.stats.bytes.saturating_add(read);
        let is_hopeless = self.is_hopeless();
        let more = read > 0 && self.offset < look.file_len && !is_hopeless;
        if !more {
            self.ended_at = observed.max(self.ended_at);
        }
        Progress { bytes: read, events: out.len() - before, more, restarted: false, is_hopeless }
    }

    /// Takes up a last line without newline as it is; for after the target's exit.
    pub fn finish(&mut self, out: &mut Vec<CodeEvent>) {
        let torn = std::mem::take(&mut self.torn);
        self.line(&torn, out);
        self.overlong = false;
    }

    /// How far the file has been read, and what was read of a line that has not ended; nothing while more of that line
    /// has been read than is kept.
    pub fn read_to(&self) -> Option<(u64, &[u8])> {
        (!self.overlong).then_some((self.offset, &*self.torn))
    }

    /// The lines that `extra` would bring if it came next, without taking it up.
    pub fn tentative(&self, extra: &[u8]) -> Vec<CodeEvent> {
        let (torn, ended_at) = (self.torn.clone(), self.ended_at);
        let mut ahead = Self { torn, ended_at, overlong: self.overlong, ..Self::default() };
        let mut events = Vec::new();
        ahead.take_bytes(extra, &mut events);
        events
    }

    /// What has been met so far.
    pub fn stats(&self) -> &PerfMapStats {
        &self.stats
    }

    /// Goes on with another file, from its beginning: the path was seen to lead elsewhere, or the file was written anew.
    pub fn restart(&mut self) {
        self.offset = 0;
        self.torn.clear();
        (self.overlong, self.unended) = (false, 0);
        self.trail.clear();
        self.stats.restarts += 1;
    }

    fn is_hopeless(&self) -> bool {
        let PerfMapStats { bad_lines, lines, .. } = self.stats;
        self.unended > MAX_UNENDED_BYTES || (bad_lines > MAX_BAD_LINES && bad_lines > lines)
    }

    fn trail_start(&self) -> u64 {
        self.offset.saturating_sub(self.trail.len() as u64)
    }

    fn take_bytes(&mut self, mut bytes: &[u8], out: &mut Vec<CodeEvent>) {
        self.remember(bytes);
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            let (line, rest) = bytes.split_at(end);
            bytes = &rest[1..];
            self.unended = 0;
            if self.torn.is_empty() && line.len() <= MAX_LINE_BYTES {
                self.line(line, out);
                continue;
            }
            self.keep(line);
            let whole = std::mem::take(&mut self.torn);
            self.line(&whole, out);
            // Its memory serves the next torn line.
            self.torn = whole;
            self.torn.clear();
            self.overlong = false;
        }
        self.keep(bytes);
        self.unended = self.unended.saturating_add(bytes.len() as u64);
    }

    /// Adds to the line that has not ended yet, as far as it is kept.
    fn keep(&mut self, bytes: &[u8]) {
        let room = MAX_LINE_BYTES.saturating_sub(self.torn.len());
        let kept = bytes.len().min(room);
        self.torn.extend_from_slice(&bytes[..kept]);
        if kept < bytes.len() && !self.overlong {
            self.overlong = true;
            self.stats.long_lines += 1;
        }
    }

    fn remember(&mut self, bytes: &[u8]) {
        let tail = &bytes[bytes.len().saturating_sub(TRAIL_BYTES)..];
        let keep = TRAIL_BYTES - tail.len();
        let drop = self.trail.len().saturating_sub(keep);
        self.trail.drain(..drop);
        self.trail.extend_from_slice(tail);
    }

    fn line(&mut self, line: &[u8], out: &mut Vec<CodeEvent>) {
        if line.trim_ascii().is_empty() {
            return;
        }
        let Ok(entry) = parse_line(line) else {
            self.stats.bad_lines += 1;
            return;
        };
        self.stats.lines += 1;
        out.push(CodeEvent::Load(CodeLoad {
            time: self.ended_at,
            start: entry.start,
            size: entry.size,
            name: String::from_utf8_lossy(entry.name).into_owned(),
            code_index: 0,
            lines: SourceRows::default(),
            unit: None,
            eh_frame: None,
            code: None,
            origin: CodeOrigin::PerfMap,
        }));
    }
}

#[cfg(test)]
mod tests;
