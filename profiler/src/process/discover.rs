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

/// A mapping that may mark a jitdump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpMapping {
    /// The mapping; open it with [`open_mapping`](crate::process::open::open_mapping).
    pub mapping: Mapping,
    /// The last number in the name: the writer's pid in its own namespace, if the name tells the truth.
    pub named_pid: Option<u32>,
}

/// The mappings that may mark a jitdump: small, private, executable, of page 0 of a file with `jit` and `.dump` in its
/// name. One entry a file.
pub fn find_dumps<'a>(mappings: impl IntoIterator<Item = &'a Mapping>) -> Vec<DumpMapping> {
    let mut found: Vec<DumpMapping> = Vec::new();
    for mapping in mappings {
        let seen = |old: &DumpMapping| old.mapping.inode == mapping.inode && old.mapping.device == mapping.device;
        if is_marker(mapping) && !found.iter().any(seen) {
            found.push(DumpMapping { mapping: mapping.clone(), named_pid: named_pid(mapping.basename()) });
        }
    }
    found
}

/// Whether this mapping may mark a jitdump.
pub fn is_marker(mapping: &Mapping) -> bool {
    let name = mapping.basename();
    mapping.kind == MappingKind::File
        && mapping.prot.execute
        && !mapping.prot.shared
        && mapping.file_offset.0 == 0
        && mapping.len() <= MAX_MARKER_BYTES
        && name.find("jit").is_some_and(|at| name[at..].ends_with(".dump"))
}

/// Whether the file begins with jitdump's magic, in either byte order. A file that is still empty is none yet: ask
/// again.
///
/// # Errors
/// What reading four bytes fails with.
pub fn is_jitdump(file: &File) -> io::Result<bool> {
    let mut magic = [0; 4];
    match file.read_exact_at(&mut magic, 0) {
        Ok(()) => Ok(MAGICS.contains(&magic)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// The name of the perf map that a process writes into /tmp of its own root: its pid there is the last of `NSpid`.
pub fn perf_map_name(own_pid: u32) -> String {
    format!("perf-{own_pid}.map")
}

fn named_pid(name: &str) -> Option<u32> {
    let stem = name.strip_suffix(".dump")?;
    stem.rsplit('-').next()?.parse().ok()
}
