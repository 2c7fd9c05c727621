//! glibc's `FILE`, as it lies in the memory of another process. 64-bit, little endian, glibc ≥ 2.1 (the layout is ABI):
//!
//! ```text
//!   0  i32 _flags         0xfbad in the upper half; 0x0800 currently writing
//!   8  u64 _IO_read_ptr, _IO_read_end, _IO_read_base
//!  32  u64 _IO_write_base  first byte that is not yet in the file
//!  40  u64 _IO_write_ptr   one past the last such byte
//!  48  u64 _IO_write_end
//!  56  u64 _IO_buf_base    the buffer; malloc'ed, st_blksize or 8192 bytes, whatever setvbuf(NULL, n) asked for
//!  64  u64 _IO_buf_end
//! 112  i32 _fileno
//! ```
//!
//! glibc copies the bytes of an fwrite into the buffer before it moves `_IO_write_ptr`, and writes the buffer out before
//! it sets both pointers back: what lies between the two is always the next piece of the file.

use std::io;

use jitprof_common::units::Avma;

/// Where bytes of a process come from.
pub(super) trait Memory {
    /// Reads as many bytes as are mapped from `addr` on, at least one.
    fn read(&self, addr: Avma, into: &mut [u8]) -> io::Result<usize>;

    /// Reads all of `into`, or fails.
    fn read_exact(&self, addr: Avma, into: &mut [u8]) -> io::Result<()> {
        if into.is_empty() || self.read(addr, into)? == into.len() {
            return Ok(());
        }
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

/// The bytes of a FILE that are looked at.
pub(super) const FILE_BYTES: usize = 116;
/// Bytes that are looked over at once; a multiple of the alignment.
const LINE: usize = 512;
/// malloc aligns to 16; a FILE in static memory is aligned to 8 at least.
const FILE_ALIGN: usize = 8;
const MAGIC: u32 = 0xfbad_0000;
const MAGIC_MASK: u32 = 0xffff_0000;
/// The largest buffer that is believed; producers get 4 or 8 KiB.
const MAX_BUFFER_BYTES: u64 = 1 << 20;

/// What a FILE says about its unwritten bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct StdioFile {
    /// Its descriptor.
    pub(super) fd: u32,
    /// The buffer's first byte.
    pub(super) buffer: Avma,
    /// The buffer's length in bytes; 0 before the first write.
    pub(super) capacity: usize,
    /// How many bytes at its start are not yet in the file.
    pub(super) pending: usize,
}

impl StdioFile {
    /// Understands the first [`FILE_BYTES`] bytes of a FILE; `None` if they are none, or one that reads.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        if u32_at(bytes, 0)? & MAGIC_MASK != MAGIC {
            return None;
        }
        let (write_base, write_ptr, write_end) = (u64_at(bytes, 32)?, u64_at(bytes, 40)?, u64_at(bytes, 48)?);
        let (buf_base, buf_end) = (u64_at(bytes, 56)?, u64_at(bytes, 64)?);
        let capacity = buf_end.checked_sub(buf_base).filter(|len| *len <= MAX_BUFFER_BYTES)?;
        let pending = write_ptr.checked_sub(write_base).filter(|len| *len <= capacity)?;
        // In the middle of a seek or of wide-character output the pointers are elsewhere: no case of a jitdump.
        if pending != 0 && (write_base != buf_base || write_end < write_ptr || write_end > buf_end) {
            return None;
        }
        Some(Self {
            fd: u32::try_from(u32_at(bytes, 112)?.cast_signed()).ok()?,
            buffer: Avma(buf_base),
            capacity: usize::try_from(capacity).ok()?,
            pending: usize::try_from(pending).ok()?,
        })
    }

    /// Where in `bytes` (the memory from an aligned address on) FILEs of these descriptors begin.
    pub(super) fn find(bytes: &[u8], fds: &[u32]) -> Vec<usize> {
        let is_file = |at: usize| {
            let file = bytes.get(at..at.checked_add(FILE_BYTES)?)?;
            Self::parse(file).filter(|file| fds.contains(&file.fd))
        };
        let lines = bytes.chunks(LINE).enumerate().filter(|(_, line)| has_magic(line));
        lines
            .flat_map(|(index, line)| (0..line.len()).step_by(FILE_ALIGN).map(move |at| index * LINE + at))
            .filter(|at| is_file(*at).is_some())
            .collect()
    }
}

/// Whether a word of the line looks like the start of a FILE. Without an early exit, so that it compiles to vector code.
fn has_magic(line: &[u8]) -> bool {
    let (words, _) = line.as_chunks::<FILE_ALIGN>();
    words.iter().fold(false, |found, word| found | (u64::from_le_bytes(*word) & 0xffff_0000 == u64::from(MAGIC)))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}
