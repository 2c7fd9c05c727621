//! The part of a growing file that is read and not yet part of a record.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::header::HEADER_SIZE;

/// Bytes of one read. Larger reads are not faster (page cache), and the buffer stays in L2.
const CHUNK: usize = 256 << 10;

/// Reads a file from its start to its end as it grows, with `pread` only: a truncation is a short read, not a SIGBUS.
/// Memory: the record that is not complete yet and one chunk.
#[derive(Debug)]
pub(super) struct FileWindow {
    file: File,
    /// Bytes of the file from `start` on: the first `filled` ones. The rest is room for reading, which is zeroed only
    /// once.
    buffer: Vec<u8>,
    filled: usize,
    start: u64,
    /// The window's length before which its reader cannot go on.
    needed: usize,
    /// The first bytes as they were: another header is another file.
    head: Vec<u8>,
    file_len: u64,
}

impl FileWindow {
    /// Reads nothing yet.
    pub(super) fn new(file: File) -> Self {
        Self { file, buffer: Vec::new(), filled: 0, start: 0, needed: HEADER_SIZE, head: Vec::new(), file_len: 0 }
    }

    /// Looks at the file's length and header again: whether it is another file than before, which is then read from
    /// its start. Costs one `fstat` and a read of 40 bytes.
    pub(super) fn look_again(&mut self) -> io::Result<bool> {
        let len = self.file.metadata()?.len();
        let mut head = [0; HEADER_SIZE];
        let got = self.file.read_at(&mut head, 0)?;
        let head = head.get(..got).unwrap_or(&[]);
        let same = len >= self.file_len && head.starts_with(&self.head);
        if !same {
            self.filled = 0;
            self.start = 0;
            self.needed = HEADER_SIZE;
        }
        self.head = head.to_vec();
        self.file_len = len;
        Ok(!same)
    }

    /// The file's length when it was last looked at.
    pub(super) fn file_len(&self) -> u64 {
        self.file_len
    }

    /// Where the window begins; beyond the file's end if code is skipped that is not written yet.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// What is read and not yet part of a record.
    pub(super) fn bytes(&self) -> &[u8] {
        self.buffer.get(..self.filled).unwrap_or(&[])
    }

    /// Whether there are as many bytes as the reader last asked for.
    pub(super) fn is_ready(&self) -> bool {
        self.filled >= self.needed
    }

    /// The reader goes on at `offset`, when there are `needed` bytes from there on.
    pub(super) fn go_on(&mut self, offset: u64, needed: usize) {
        let used = usize::try_from(offset.saturating_sub(self.start)).unwrap_or(usize::MAX).min(self.filled);
        self.buffer.copy_within(used..self.filled, 0);
        self.filled -= used;
        self.start = offset;
        self.needed = needed;
    }

    /// Whether everything up to the known length is read.
    pub(super) fn is_at_end(&self) -> bool {
        self.position() >= self.file_len
    }

    /// The file offset behind the window.
    fn position(&self) -> u64 {
        self.start.saturating_add(self.filled as u64)
    }

    /// Reads a chunk, of `budget` bytes at most. Nothing read means that the file ends here.
    pub(super) fn read_chunk(&mut self, budget: u64) -> io::Result<usize> {
        let position = self.position();
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
