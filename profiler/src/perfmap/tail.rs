//! Reads a perf map while it grows.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use serde::Serialize;

use super::line::parse_line;
use crate::code::{CodeEvent, CodeLoad, CodeOrigin, SourceRows};
use crate::units::MonoNs;

/// Bytes asked of the file at once.
const CHUNK_BYTES: usize = 64 << 10;

/// Bytes read in one poll: about 20,000 lines, a few milliseconds of work, so that a target that writes faster than we
/// read delays nothing else.
const POLL_BYTES: u64 = 1 << 20;

/// A longer line keeps this much of its beginning: far more than the code map keeps of a name.
const MAX_LINE_BYTES: usize = 4 << 10;

/// Bytes before the read position that are compared at each poll. A file rewritten in place to more than its former
/// length looks like one that grew, but for these.
const TRAIL_BYTES: usize = 64;

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

/// What one poll did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes read.
    pub bytes: u64,
    /// Events appended.
    pub events: usize,
    /// The budget of the poll ended before the file did: poll again soon.
    pub more: bool,
    /// The file had been truncated, rewritten or replaced and was read from its beginning.
    pub restarted: bool,
}

/// The reader of one perf map.
///
/// # The time of a line
///
/// A line has no time of its own. Each event carries the last time at which the file was seen to end *before* the line,
/// hence the earliest time at which the line can have been written; 0 for all that was there at the first poll. The
/// code map uses it only for a line over code that an earlier line listed; see `docs/perf-map.md`.
#[derive(Debug)]
pub struct PerfMapTail {
    file: File,
    offset: u64,
    torn: Vec<u8>,
    /// The current line is longer than is kept of it.
    overlong: bool,
    trail: Vec<u8>,
    ended_at: MonoNs,
    stats: PerfMapStats,
}

impl PerfMapTail {
    /// Reads `file` from its beginning. The caller has checked that it is a regular file of the expected owner.
    pub fn new(file: File) -> Self {
        Self {
            file,
            offset: 0,
            torn: Vec::new(),
            overlong: false,
            trail: Vec::new(),
            ended_at: MonoNs(0),
            stats: PerfMapStats::default(),
        }
    }

    /// Appends an event for each complete line written since the last poll, at most about 1 MiB of them.
    ///
    /// `observed` is the time before the call. A last line without newline is kept for the next poll.
    ///
    /// # Errors
    /// What `fstat` or `pread` answer; the position is kept, and the next poll goes on from there.
    pub fn poll(&mut self, observed: MonoNs, out: &mut Vec<CodeEvent>) -> io::Result<Progress> {
        let mut progress = Progress { restarted: self.rewritten()?, ..Progress::default() };
        if progress.restarted {
            self.restart();
        }
        let before = out.len();
        let mut chunk = vec![0; CHUNK_BYTES];
        progress.more = true;
        while progress.bytes < POLL_BYTES {
            let read = read_at(&self.file, &mut chunk, self.offset)?;
            if read == 0 {
                progress.more = false;
                self.ended_at = observed.max(self.ended_at);
                break;
            }
            self.take(&chunk[..read], out);
            // A usize of at most CHUNK_BYTES.
            let read = u64::try_from(read).unwrap_or(u64::MAX);
            self.offset = self.offset.saturating_add(read);
            progress.bytes = progress.bytes.saturating_add(read);
        }
        self.stats.bytes = self.stats.bytes.saturating_add(progress.bytes);
        progress.events = out.len() - before;
        Ok(progress)
    }

    /// Takes up a last line without newline as it is; for after the target's exit.
    pub fn finish(&mut self, out: &mut Vec<CodeEvent>) {
        let torn = std::mem::take(&mut self.torn);
        self.line(&torn, out);
        self.overlong = false;
    }

    /// Goes on with another file if it is not the one being read: the path was seen to lead elsewhere.
    ///
    /// # Errors
    /// What `fstat` answers.
    pub fn reopen(&mut self, file: File) -> io::Result<()> {
        if !self.is_same(&file.metadata()?)? {
            self.file = file;
            self.restart();
        }
        Ok(())
    }

    /// Whether `metadata`, of the path, is that of the file being read.
    ///
    /// # Errors
    /// What `fstat` answers.
    pub fn is_same(&self, metadata: &Metadata) -> io::Result<bool> {
        let own = self.file.metadata()?;
        Ok((own.dev(), own.ino()) == (metadata.dev(), metadata.ino()))
    }

    /// What has been met so far.
    pub fn stats(&self) -> &PerfMapStats {
        &self.stats
    }

    fn restart(&mut self) {
        self.offset = 0;
        self.torn.clear();
        self.overlong = false;
        self.trail.clear();
        self.stats.restarts += 1;
    }

    fn rewritten(&self) -> io::Result<bool> {
        if self.file.metadata()?.len() < self.offset {
            return Ok(true);
        }
        let mut now = vec![0; self.trail.len()];
        let start = self.offset.saturating_sub(u64::try_from(now.len()).unwrap_or(u64::MAX));
        let read = read_at(&self.file, &mut now, start)?;
        Ok(now[..read] != *self.trail)
    }

    fn take(&mut self, mut bytes: &[u8], out: &mut Vec<CodeEvent>) {
        self.remember(bytes);
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            let (line, rest) = bytes.split_at(end);
            bytes = &rest[1..];
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

/// Reads what is there at `offset`, up to the buffer's length; 0 at the end.
fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        let at = offset.saturating_add(u64::try_from(filled).unwrap_or(u64::MAX));
        match file.read_at(&mut buffer[filled..], at) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests;
