//! One mapping of a process.

use serde::{Deserialize, Serialize};
use std::sync::Arc;

use jitprof_common::units::{Avma, FileOffset};

/// A block device by its numbers; 0:0 for memory without a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Device {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

impl Device {
    /// Splits a `st_dev` as glibc's `gnu_dev_major` and `gnu_dev_minor` do.
    pub const fn from_st_dev(dev: u64) -> Self {
        // The masks leave at most 32 bits, so that the narrowing loses nothing.
        let major = ((dev >> 8) & 0xfff) | ((dev >> 32) & 0xffff_f000);
        let minor = (dev & 0xff) | ((dev >> 12) & 0xffff_ff00);
        Self { major: (major & 0xffff_ffff) as u32, minor: (minor & 0xffff_ffff) as u32 }
    }
}

/// What a mapping may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Prot {
    /// PROT_READ.
    pub read: bool,
    /// PROT_WRITE.
    pub write: bool,
    /// PROT_EXEC.
    pub execute: bool,
    /// MAP_SHARED.
    pub shared: bool,
}

/// What lies behind a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum MappingKind {
    /// A file, perhaps deleted since.
    File,
    /// Memory without a file, named ones (`[anon:...]`, `//anon`) and memfds excepted.
    Anonymous,
    /// Anonymous memory that the target has named with prctl(PR_SET_VMA), or a memfd, `/dev/zero`, SysV memory.
    NamedMemory,
    /// `[heap]`: the brk area.
    Heap,
    /// `[stack]` of the main thread.
    Stack,
    /// `[vdso]`.
    Vdso,
    /// `[vsyscall]`.
    Vsyscall,
    /// Another bracketed name, such as `[vvar]` or `[uprobes]`.
    Special,
}

/// A range of addresses of one process and what is behind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapping {
    /// First byte.
    pub start: Avma,
    /// One past the last byte.
    pub end: Avma,
    /// Where in the file `start` lies; 0 without a file.
    pub file_offset: FileOffset,
    /// The device of the file. On overlayfs and btrfs it differs from what stat(2) reports.
    pub device: Device,
    /// The inode; 0 without a file, and in events that carry a build id in its place.
    pub inode: u64,
    /// The inode's generation, which only sideband events know.
    pub generation: Option<u64>,
    /// The path in the target's own mount namespace without ` (deleted)`, lossily decoded; empty for anonymous memory.
    pub path: Arc<str>,
    /// Whether the kernel marked the path as deleted (a file whose name ends in ` (deleted)` looks the same).
    pub deleted: bool,
    /// What the mapping may be used for.
    pub prot: Prot,
    /// What lies behind it.
    pub kind: MappingKind,
}

impl Mapping {
    /// Whether the mapping covers this address.
    pub fn contains(&self, addr: Avma) -> bool {
        self.start <= addr && addr < self.end
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.end.0.saturating_sub(self.start.0)
    }

    /// Whether it covers no address at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where in the file an address lies; `None` outside of the mapping and when the sum overflows.
    pub fn file_offset_of(&self, addr: Avma) -> Option<FileOffset> {
        if !self.contains(addr) {
            return None;
        }
        (addr.0 - self.start.0).checked_add(self.file_offset.0).map(FileOffset)
    }

    /// Whether code that the process has generated may lie in it: memory without a file on disk.
    pub fn may_hold_generated_code(&self) -> bool {
        use MappingKind::{Anonymous, Heap, NamedMemory, Stack};
        matches!(self.kind, Anonymous | NamedMemory | Heap | Stack)
    }

    /// The path's last component; the whole of bracketed names.
    pub fn basename(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// The part of this mapping in `start..end`, with the file offset moved along; `None` if that is empty.
    pub(crate) fn clipped(&self, start: Avma, end: Avma) -> Option<Self> {
        let start = start.max(self.start);
        let end = end.min(self.end);
        if start >= end {
            return None;
        }
        let moved = start.0 - self.start.0;
        let file_offset = FileOffset(match self.kind {
            MappingKind::File | MappingKind::NamedMemory => self.file_offset.0.wrapping_add(moved),
            _ => self.file_offset.0,
        });
        Some(Self { start, end, file_offset, ..self.clone() })
    }
}

impl MappingKind {
    /// Judges by the path, as /proc/PID/maps and MMAP2 events write it.
    pub(super) fn of_path(path: &str, inode: u64) -> Self {
        match path {
            "" => Self::Anonymous,
            "[heap]" => Self::Heap,
            "[vdso]" => Self::Vdso,
            "[vsyscall]" => Self::Vsyscall,
            _ if path.starts_with("[stack") => Self::Stack,
            // MMAP2 events name plain anonymous memory `//anon`.
            "//anon" => Self::Anonymous,
            _ if path.starts_with("[anon") => Self::NamedMemory,
            _ if path.starts_with("/memfd:") || path.starts_with("/SYSV") || path.starts_with("/anon_hugepage") => {
                Self::NamedMemory
            }
            "/dev/zero" => Self::NamedMemory,
            _ if path.starts_with('[') && inode == 0 => Self::Special,
            _ => Self::File,
        }
    }
}
