//! Which mappings mark a jitdump.
//!
//! Every producer maps page 0 of its dump `r-xp`, once, so that perf sees it; the mapping stays while the process
//! lives, also after the file was unlinked. Names seen: `jit-PID.dump` (all), `jit-<n>-PID.dump` (Bun), `jit-1.dump`
//! in a pid namespace, in /tmp, the working directory or `.debug/jit/*/`. So the name only proposes and the file's
//! magic decides ([`is_jitdump`]).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::process::mapping::{Mapping, MappingKind};

/// The magic as the file's first bytes: little endian, big endian.
const MAGICS: [[u8; 4]; 2] = [*b"DTiJ", *b"JiTD"];
/// Producers map one page, wasmtime and .NET less; 64 KiB is the largest page of any architecture.
const MAX_MARKER_BYTES: u64 = 64 << 10;

/// Whether this mapping may mark a jitdump: small, private, executable, of page 0 of a file with `jit` and `.dump` in its
/// name.
pub fn is_marker(mapping: &Mapping) -> bool {
    let name = mapping.basename();
    mapping.kind == MappingKind::File
        && mapping.prot.execute
        && !mapping.prot.shared
        && mapping.file_offset.0 == 0
        && mapping.len() <= MAX_MARKER_BYTES
        && name.find("jit").is_some_and(|at| name[at..].ends_with(".dump"))
}

/// Whether these are the first bytes of a jitdump, in either byte order.
pub fn begins_dump(head: &[u8]) -> bool {
    MAGICS.iter().any(|magic| head.starts_with(magic))
}

/// Whether the file begins with jitdump's magic, in either byte order. A file that is still empty is none yet: ask
/// again.
///
/// # Errors
/// What reading four bytes fails with.
pub fn is_jitdump(file: &File) -> io::Result<bool> {
    let mut magic = [0; 4];
    match file.read_exact_at(&mut magic, 0) {
        Ok(()) => Ok(begins_dump(&magic)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// The name of the perf map that a process writes into /tmp of its own root: its pid there is the last of `NSpid`.
pub fn perf_map_name(own_pid: u32) -> String {
    format!("perf-{own_pid}.map")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::procfs::parse_maps;

    #[test]
    fn dumps_are_marked_by_small_private_executable_mappings_of_page_0() {
        let maps = parse_maps(
            b"1000-2000 r-xp 00000000 08:01 1 /tmp/jit-77.dump\n\
              3000-4000 r-xp 00000000 08:01 2 /home/u/.debug/jit/x/jit-5-1234.dump (deleted)\n\
              4000-5000 r--p 00000000 08:01 3 /tmp/jit-78.dump\n\
              5000-6000 r-xp 00001000 08:01 4 /tmp/jit-79.dump\n\
              6000-7000 r-xs 00000000 08:01 5 /tmp/jit-80.dump\n\
              7000-8000 r-xp 00000000 08:01 6 /usr/lib/libjit.so\n\
              10000-90000 r-xp 00000000 08:01 7 /tmp/jit-81.dump\n\
              a0000-a1000 r-xp 00000000 08:01 8 /tmp/jitter.dump/core\n",
        );
        assert_eq!(maps.bad_lines, 0);
        let marking: Vec<u64> =
            maps.mappings.iter().filter(|mapping| is_marker(mapping)).map(|mapping| mapping.inode).collect();
        assert_eq!(marking, [1, 2]);
    }
}
