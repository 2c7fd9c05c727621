//! The part of a growing file that is read and not yet part of a record. It does no I/O: it says what to read next, and
//! takes what was read.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::header::HEADER_SIZE;

/// Bytes of one read. Larger reads are not faster (page cache), and the buffer stays in L2.
const CHUNK: usize = 256 << 10;

/// Where to read on in a followed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct NextRead {
    /// Offset in the file.
    pub offset: u64,
    /// Bytes that are of use at most; there may be fewer.
    pub len: usize,
}

/// What was read of a followed file, and how the file was then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLook<'a> {
    /// The file's length before the bytes were read.
    pub file_len: u64,
    /// Its first bytes, as many as a dump's header has, or as there are: another header is another file.
    pub head: &'a [u8],
    /// Where `bytes` were read.
    pub offset: u64,
    /// What was read there; empty at the end of the file.
    pub bytes: &'a [u8],
}

/// The bytes of a [`FileLook`].
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct FileBytes {
    /// See [`FileLook::file_len`].
    pub file_len: u64,
    /// See [`FileLook::head`].
    #[serde(with = "serde_bytes")]
    pub head: Vec<u8>,
    /// See [`FileLook::offset`].
    pub offset: u64,
    /// See [`FileLook::bytes`].
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
}

impl FileBytes {
    /// Looks at a file with `pread` only: a truncation is a short read, not a SIGBUS. One `fstat` and two reads.
    ///
    /// # Errors
    /// The file cannot be read any more.
    pub fn read(file: &File, next: NextRead) -> io::Result<Self> {
        let file_len = file.metadata()?.len();
        let mut head = vec![0; HEADER_SIZE];
        let got = read_up_to(file, &mut head, 0)?;
        head.truncate(got);
        let left = usize::try_from(file_len.saturating_sub(next.offset)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; next.len.min(left)];
        let got = read_up_to(file, &mut bytes, next.offset)?;
        bytes.truncate(got);
        Ok(Self { file_len, head, offset: next.offset, bytes })
    }

    /// As a look.
    pub fn as_look(&self) -> FileLook<'_> {
        FileLook { file_len: self.file_len, head: &self.head, offset: self.offset, bytes: &self.bytes }
    }
}

/// Reads what is there at `offset`, up to the buffer's length.
fn read_up_to(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(room) = buffer.get_mut(filled..).filter(|room| !room.is_empty()) {
        match file.read_at(room, offset.saturating_add(filled as u64)) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// A growing file from its start to its end. Memory: the record that is not complete yet and one chunk.
#[derive(Debug)]
pub(super) struct FileWindow {
    /// Bytes of the file from `start` on.
    buffer: Vec<u8>,
    start: u64,
    /// The window's length before which its reader cannot go on.
    needed: usize,
    /// The first bytes as they were: another header is another file.
    head: Vec<u8>,
    file_len: u64,
}

/// What a look at the file brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    /// It is another file than before, which is read from its start.
    pub(super) restarted: bool,
    /// Bytes taken into the window.
    pub(super) bytes: usize,
}

impl FileWindow {
    /// At the start of a file of which nothing is known.
    pub(super) fn new() -> Self {
        Self { buffer: Vec::new(), start: 0, needed: 1, head: Vec::new(), file_len: 0 }
    }

    /// What to read next.
    pub(super) fn next_read(&self) -> NextRead {
        NextRead { offset: self.position(), len: CHUNK }
    }

    /// Takes what was read. Bytes of another place than the next one are left out.
    pub(super) fn take(&mut self, look: FileLook<'_>) -> Taken {
        let same = look.file_len >= self.file_len && look.head.starts_with(&self.head);
        if !same {
            self.buffer.clear();
            self.start = 0;
            self.needed = 1;
        }
        self.head = look.head.to_vec();
        self.file_len = look.file_len;
        let fits = look.offset == self.position();
        let bytes = if fits { look.bytes } else { &[] };
        if self.buffer.capacity() > 4 * CHUNK && self.buffer.len() + bytes.len() < CHUNK {
            // A large record is over.
            self.buffer.shrink_to(CHUNK);
        }
        self.buffer.extend_from_slice(bytes);
        Taken { restarted: !same, bytes: bytes.len() }
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
        &self.buffer
    }

    /// Bytes of memory that the window takes.
    pub(super) fn held_bytes(&self) -> usize {
        self.buffer.capacity()
    }

    /// Gives back the memory that it does not need.
    pub(super) fn give_back(&mut self) {
        self.buffer.shrink_to(CHUNK);
    }

    /// Whether there are as many bytes as the reader last asked for.
    pub(super) fn is_ready(&self) -> bool {
        self.buffer.len() >= self.needed
    }

    /// The reader goes on at `offset`, when there are `needed` bytes from there on.
    pub(super) fn go_on(&mut self, offset: u64, needed: usize) {
        let used = usize::try_from(offset.saturating_sub(self.start)).unwrap_or(usize::MAX).min(self.buffer.len());
        self.buffer.drain(..used);
        self.start = offset;
        self.needed = needed;
    }

    /// Whether everything up to the known length is read.
    pub(super) fn is_at_end(&self) -> bool {
        self.position() >= self.file_len
    }

    /// The file offset behind the window.
    fn position(&self) -> u64 {
        self.start.saturating_add(self.buffer.len() as u64)
    }
}
