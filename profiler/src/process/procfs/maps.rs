//! `/proc/PID/maps`, line by line:
//!
//! ```text
//! 7f05c3a1d000-7f05c3b72000 r-xp 00026000 08:01 262157                     /usr/lib/x86_64-linux-gnu/libc.so.6
//! start        end          prot offset   dev   inode (decimal)            path to the end of the line
//! ```
//! All numbers but the inode are hexadecimal. The kernel escapes only the newline in paths, as `\012` (seq_path with
//! "\n", fs/proc/task_mmu.c): a backslash in a name is written as it is, so no other escape is decoded. Unlinked files
//! carry ` (deleted)` at the end.

use serde::{Deserialize, Serialize};
use std::sync::Arc;

use crate::process::mapping::{Device, Mapping, MappingKind, Prot};
use jitprof_common::units::{Avma, FileOffset};

/// More than `vm.max_map_count`'s default (65,530) allows.
const MAX_MAPPINGS: usize = 100_000;
/// The kernel's own limit on a path in this file is a page.
const MAX_PATH_BYTES: usize = 4096;

/// What `/proc/PID/maps` held, in ascending order of addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Maps {
    /// Every understood line.
    pub mappings: Vec<Mapping>,
    /// Lines that were not understood.
    pub bad_lines: u64,
    /// Whether there was more than is read (100,000 lines, 32 MiB).
    pub truncated: bool,
}

/// Parses the text of `/proc/PID/maps`. Neighbours with the same path share its allocation.
pub fn parse_maps(text: &[u8]) -> Maps {
    let mut maps = Maps::default();
    let mut last_path: Arc<str> = Arc::from("");
    for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        if maps.mappings.len() == MAX_MAPPINGS {
            maps.truncated = true;
            break;
        }
        match parse_line(line, &last_path) {
            Some(mapping) => {
                last_path = Arc::clone(&mapping.path);
                maps.mappings.push(mapping);
            }
            None => maps.bad_lines += 1,
        }
    }
    maps
}

fn parse_line(line: &[u8], last_path: &Arc<str>) -> Option<Mapping> {
    let (range, rest) = split_field(line)?;
    let (prot, rest) = split_field(rest)?;
    let (offset, rest) = split_field(rest)?;
    let (device, rest) = split_field(rest)?;
    let (inode, rest) = split_field(rest).unwrap_or((rest, b""));
    let dash = range.iter().position(|byte| *byte == b'-')?;
    let (start, end) = (hex(&range[..dash])?, hex(&range[dash + 1..])?);
    let colon = device.iter().position(|byte| *byte == b':')?;
    let device = Device {
        major: u32::try_from(hex(&device[..colon])?).ok()?,
        minor: u32::try_from(hex(&device[colon + 1..])?).ok()?,
    };
    let inode: u64 = std::str::from_utf8(inode).ok()?.parse().ok()?;
    if start >= end || rest.len() > MAX_PATH_BYTES {
        return None;
    }
    let (path, deleted) = match rest.strip_suffix(b" (deleted)") {
        Some(path) => (path, true),
        None => (rest, false),
    };
    let path = unescape(path);
    let path = if *path == **last_path { Arc::clone(last_path) } else { Arc::from(path) };
    let kind = MappingKind::of_path(&path, inode);
    Some(Mapping {
        start: Avma(start),
        end: Avma(end),
        file_offset: FileOffset(hex(offset)?),
        device,
        inode,
        generation: None,
        path,
        deleted,
        prot: parse_prot(prot)?,
        kind,
    })
}

fn parse_prot(text: &[u8]) -> Option<Prot> {
    let [read, write, execute, share] = *text else {
        return None;
    };
    Some(Prot { read: read == b'r', write: write == b'w', execute: execute == b'x', shared: share == b's' })
}

/// Splits at the first space and skips further ones: only the path is preceded by more than one, and no path of this
/// file begins with a space (it begins with `/`, `[`, or a memfd's or aio's name).
fn split_field(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = line.iter().position(|byte| *byte == b' ')?;
    let rest = &line[end..];
    let skip = rest.iter().position(|byte| *byte != b' ').unwrap_or(rest.len());
    Some((&line[..end], &rest[skip..]))
}

fn hex(digits: &[u8]) -> Option<u64> {
    // from_str_radix would take a sign.
    if !digits.first()?.is_ascii_hexdigit() {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

fn unescape(path: &[u8]) -> String {
    String::from_utf8_lossy(path).replace("\\012", "\n")
}
