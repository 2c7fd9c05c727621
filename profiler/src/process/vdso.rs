//! The code that the kernel maps into every process.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

/// The vDSO is 8 KiB on Linux 6.18.
const MAX_BYTES: u64 = 1 << 20;

/// A copy of this process' vDSO, an ELF image that all 64-bit processes share.
///
/// # Errors
/// There is none, or /proc does not tell.
pub fn own_vdso() -> io::Result<Vec<u8>> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let range = maps.lines().find(|line| line.ends_with("[vdso]")).and_then(|line| {
        let (start, end) = line.split_whitespace().next()?.split_once('-')?;
        Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
    });
    let (start, end) = range.ok_or(io::ErrorKind::NotFound)?;
    let mut memory = File::open("/proc/self/mem")?;
    memory.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    memory.take(end.saturating_sub(start).min(MAX_BYTES)).read_to_end(&mut bytes)?;
    Ok(bytes)
}
