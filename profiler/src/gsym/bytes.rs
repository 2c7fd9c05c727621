//! The bytes of a GSYM file: in memory if there are few, read where they are needed if not.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::error::GsymError;

/// Files up to this size are read at once and kept; larger ones are read piece by piece for each look-up. LLVM 14's
/// own GSYM has 40 MB.
pub const MAX_RESIDENT_BYTES: u64 = 64 << 20;

/// Never mapped: whoever may truncate a mapped file may end us.
#[derive(Debug)]
pub(super) enum Bytes {
    Memory(Vec<u8>),
    /// With its length when it was opened; a file that has shrunk since is truncated wherever it ends now.
    File(File, u64),
}

impl Bytes {
    /// Takes an open regular file.
    pub(super) fn open(file: File) -> io::Result<Self> {
        let length = file.metadata()?.len();
        if length > MAX_RESIDENT_BYTES {
            return Ok(Self::File(file, length));
        }
        let mut bytes = vec![0; usize::try_from(length).map_err(|_| io::ErrorKind::FileTooLarge)?];
        let filled = read_at(&file, &mut bytes, 0)?;
        bytes.truncate(filled);
        Ok(Self::Memory(bytes))
    }

    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Memory(bytes) => length_of(bytes),
            Self::File(_, length) => *length,
        }
    }

    /// Bytes that are kept in memory.
    pub(super) fn resident(&self) -> u64 {
        match self {
            Self::Memory(bytes) => length_of(bytes),
            Self::File(..) => 0,
        }
    }

    /// Exactly `length` bytes, which the caller has bounded.
    pub(super) fn read(&self, offset: u64, length: usize, field: &'static str) -> Result<Cow<'_, [u8]>, GsymError> {
        let bytes = self.read_up_to(offset, length, field)?;
        if bytes.len() < length {
            return Err(GsymError::truncated(
                offset,
                field,
                u64::try_from(length).unwrap_or(u64::MAX),
                length_of(&bytes),
            ));
        }
        Ok(bytes)
    }

    /// As many bytes as there are, `length` at most.
    pub(super) fn read_up_to(
        &self,
        offset: u64,
        length: usize,
        field: &'static str,
    ) -> Result<Cow<'_, [u8]>, GsymError> {
        match self {
            Self::Memory(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
                let end = start.saturating_add(length).min(bytes.len());
                Ok(Cow::Borrowed(bytes.get(start..end).unwrap_or_default()))
            }
            Self::File(file, end) => {
                let there = usize::try_from(end.saturating_sub(offset)).unwrap_or(usize::MAX);
                let mut bytes = vec![0; length.min(there)];
                let filled = read_at(file, &mut bytes, offset).map_err(|source| GsymError {
                    offset,
                    field,
                    problem: source.into(),
                })?;
                bytes.truncate(filled);
                Ok(Cow::Owned(bytes))
            }
        }
    }
}

/// A length as the format counts.
pub(super) fn length_of(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(room) = buffer.get_mut(filled..).filter(|room| !room.is_empty()) {
        let at = offset.saturating_add(u64::try_from(filled).unwrap_or(u64::MAX));
        match file.read_at(room, at) {
            Ok(0) => break,
            Ok(read) => filled = filled.saturating_add(read),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
