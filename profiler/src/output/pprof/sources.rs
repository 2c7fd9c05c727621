//! Bytes of a pprof file, unpacked and bounded.

use std::io::{self, Read};

use flate2::bufread::MultiGzDecoder;

use super::error::PprofError;

/// What a reader takes. Sizes and counts in a file are never believed: tables grow by what is really there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadLimits {
    /// Bytes of the file after gzip.
    pub(crate) bytes: u64,
    /// Entries of each table.
    pub(crate) entries: usize,
    /// Frames of one stack; those nearest to the leaf count.
    pub(crate) stack_frames: usize,
    /// Frames of all samples together, which bounds the time.
    pub(crate) frames: u64,
}

impl ReadLimits {
    /// For files that the user names: hours of a large host, within some hundred MiB of memory.
    pub(crate) const FILE: Self = Self { bytes: 512 << 20, entries: 4 << 20, stack_frames: 16 << 10, frames: 1 << 28 };
}

/// Replaces `raw` by the unpacked bytes of a file that is gzipped or plain.
///
/// # Errors
/// It cannot be read, its gzip data is damaged or truncated, or it is larger than `limits` allow.
pub(crate) fn unpack(mut source: impl Read, limits: &ReadLimits, raw: &mut Vec<u8>) -> Result<(), PprofError> {
    raw.clear();
    let mut start = Vec::with_capacity(2);
    source.by_ref().take(2).read_to_end(&mut start)?;
    let is_gzip = start == [0x1f, 0x8b];
    let whole = io::Cursor::new(start).chain(source);
    let most = limits.bytes.saturating_add(1);
    if is_gzip {
        MultiGzDecoder::new(io::BufReader::with_capacity(1 << 16, whole)).take(most).read_to_end(raw)?;
    } else {
        whole.take(most).read_to_end(raw)?;
    }
    if raw.len() as u64 > limits.bytes {
        return Err(PprofError::TooLarge { limit_bytes: limits.bytes });
    }
    Ok(())
}
