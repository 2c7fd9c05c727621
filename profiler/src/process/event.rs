//! What the kernel's sideband reports about tasks, in the initial pid namespace.

use serde::{Deserialize, Serialize};
use std::sync::Arc;

use crate::process::mapping::{Device, Mapping, MappingKind, Prot};
use jitprof_common::units::{Avma, FileOffset, MonoNs, Pid, Tid};

/// One report, with the time at which it happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskEvent {
    /// When.
    pub time: MonoNs,
    /// What.
    pub change: TaskChange,
}

/// What a [`TaskEvent`] reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaskChange {
    /// PERF_RECORD_MMAP2: something was mapped, or made executable. Unmapping is never reported.
    Mmap(MmapEvent),
    /// PERF_RECORD_COMM: a thread has a new name, or the process runs a new program.
    Comm {
        /// The process.
        pid: Pid,
        /// The thread.
        tid: Tid,
        /// The name, lossily decoded.
        comm: Arc<str>,
        /// Set by exec(2): every mapping before it is gone.
        exec: bool,
    },
    /// PERF_RECORD_FORK: a new process (`pid != parent_pid`) or a new thread.
    Fork {
        /// The process of the new task.
        pid: Pid,
        /// The process that made it.
        parent_pid: Pid,
        /// The new task.
        tid: Tid,
        /// The thread that made it.
        parent_tid: Tid,
    },
    /// PERF_RECORD_EXIT: a thread has ended.
    Exit {
        /// The process.
        pid: Pid,
        /// The thread.
        tid: Tid,
    },
    /// PERF_RECORD_LOST: the sideband's buffer was full; what is known may be stale.
    Lost {
        /// How many records were lost.
        count: u64,
    },
}

/// The fields of a PERF_RECORD_MMAP2.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MmapEvent {
    /// The process.
    pub pid: Pid,
    /// The thread that mapped it.
    pub tid: Tid,
    /// First byte.
    pub start: Avma,
    /// Length in bytes.
    pub len: u64,
    /// Offset into the file in **bytes** (the record's field is in bytes too, despite its name `pgoff`).
    pub file_offset: FileOffset,
    /// What identifies the file.
    pub file: FileKey,
    /// Protection and sharing.
    pub prot: Prot,
    /// The path as the target sees it; `//anon`, `[vdso]` and the like where there is none.
    pub path: Arc<str>,
}

/// How an MMAP2 event identifies its file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileKey {
    /// Device, inode and the inode's generation.
    Inode {
        /// Device numbers.
        device: Device,
        /// Inode number.
        inode: u64,
        /// Inode generation.
        generation: u64,
    },
    /// The GNU build id (PERF_RECORD_MISC_MMAP_BUILD_ID), up to 20 bytes.
    BuildId(Arc<[u8]>),
}

impl MmapEvent {
    /// As a mapping; `None` when the range is empty or runs over the end of the address space.
    pub fn to_mapping(&self) -> Option<Mapping> {
        let end = self.start.0.checked_add(self.len).filter(|end| *end > self.start.0)?;
        let (device, inode, generation) = match &self.file {
            FileKey::Inode { device, inode, generation } => (*device, *inode, Some(*generation)),
            FileKey::BuildId(_) => (Device::default(), 0, None),
        };
        let kind = MappingKind::of_path(&self.path, inode);
        let path: Arc<str> = if kind == MappingKind::Anonymous { Arc::from("") } else { Arc::clone(&self.path) };
        Some(Mapping {
            start: self.start,
            end: Avma(end),
            file_offset: self.file_offset,
            device,
            inode,
            generation,
            path,
            deleted: false,
            prot: self.prot,
            kind,
        })
    }
}
