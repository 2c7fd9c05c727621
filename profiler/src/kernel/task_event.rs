//! What happens to tasks while they are watched: the kernel's perf sideband, parsed.
//!
//! Layouts: `include/uapi/linux/perf_event.h`, records of type `PERF_RECORD_*` opened with `sample_id_all` and
//! `sample_type = TID | TIME`, so that each record but those of sampling ends with `{pid u32, tid u32, time u64}`.
//! Native byte order. The kernel writes these bytes, but paths and names in them are the target's choice.

use std::sync::Arc;

use crate::process::event::{FileKey, MmapEvent, TaskChange, TaskEvent};
use crate::process::{Device, Prot};
use jitprof_common::units::{Avma, FileOffset, MonoNs, Pid, Tid};

const PERF_RECORD_LOST: u32 = 2;
const PERF_RECORD_COMM: u32 = 3;
const PERF_RECORD_EXIT: u32 = 4;
const PERF_RECORD_FORK: u32 = 7;
const PERF_RECORD_MMAP2: u32 = 10;
const PERF_RECORD_MISC_COMM_EXEC: u16 = 1 << 13;
/// `{pid u32, tid u32, time u64}` at the end of each record.
const TRAILER_BYTES: usize = 16;

/// Parses one record, header included. `None` for records that say nothing about tasks, and for malformed ones.
pub(super) fn parse(record: &[u8]) -> Option<TaskEvent> {
    let kind = u32_at(record, 0)?;
    let misc = u16_at(record, 4)?;
    let body_end = record.len().checked_sub(TRAILER_BYTES)?;
    let time = MonoNs(u64_at(record, body_end + 8)?);
    let body = record.get(8..body_end)?;
    let change = match kind {
        PERF_RECORD_MMAP2 => TaskChange::Mmap(mmap2(body)?),
        PERF_RECORD_COMM => TaskChange::Comm {
            pid: Pid(u32_at(body, 0)?),
            tid: Tid(u32_at(body, 4)?),
            comm: text(body.get(8..)?),
            exec: misc & PERF_RECORD_MISC_COMM_EXEC != 0,
        },
        PERF_RECORD_FORK => TaskChange::Fork {
            pid: Pid(u32_at(body, 0)?),
            parent_pid: Pid(u32_at(body, 4)?),
            tid: Tid(u32_at(body, 8)?),
            parent_tid: Tid(u32_at(body, 12)?),
        },
        PERF_RECORD_EXIT => TaskChange::Exit { pid: Pid(u32_at(body, 0)?), tid: Tid(u32_at(body, 8)?) },
        PERF_RECORD_LOST => TaskChange::Lost { count: u64_at(body, 8)? },
        _ => return None,
    };
    Some(TaskEvent { time, change })
}

/// `pid, tid u32; addr, len, pgoff u64; maj, min u32; ino, ino_generation u64; prot, flags u32; filename`. Build ids in
/// place of the inode were not asked for.
fn mmap2(body: &[u8]) -> Option<MmapEvent> {
    let prot = i32::from_ne_bytes(u32_at(body, 56)?.to_ne_bytes());
    let flags = i32::from_ne_bytes(u32_at(body, 60)?.to_ne_bytes());
    Some(MmapEvent {
        pid: Pid(u32_at(body, 0)?),
        tid: Tid(u32_at(body, 4)?),
        start: Avma(u64_at(body, 8)?),
        len: u64_at(body, 16)?,
        file_offset: FileOffset(u64_at(body, 24)?),
        file: FileKey::Inode {
            device: Device { major: u32_at(body, 32)?, minor: u32_at(body, 36)? },
            inode: u64_at(body, 40)?,
            generation: u64_at(body, 48)?,
        },
        prot: Prot {
            read: prot & libc::PROT_READ != 0,
            write: prot & libc::PROT_WRITE != 0,
            execute: prot & libc::PROT_EXEC != 0,
            shared: flags & libc::MAP_SHARED != 0,
        },
        path: text(body.get(64..)?),
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().copied().map(u64::from_ne_bytes)
}

/// The text up to its NUL; the kernel pads it to 8 bytes.
fn text(bytes: &[u8]) -> Arc<str> {
    let end = memchr::memchr(0, bytes).unwrap_or(bytes.len());
    Arc::from(String::from_utf8_lossy(&bytes[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Assembles a record as the kernel lays it out.
    struct Record(Vec<u8>);

    impl Record {
        fn new(kind: u32, misc: u16) -> Self {
            let mut bytes = kind.to_ne_bytes().to_vec();
            bytes.extend(misc.to_ne_bytes());
            bytes.extend([0; 2]);
            Self(bytes)
        }
        fn u32(mut self, value: u32) -> Self {
            self.0.extend(value.to_ne_bytes());
            self
        }
        fn u64(mut self, value: u64) -> Self {
            self.0.extend(value.to_ne_bytes());
            self
        }
        fn text(mut self, text: &str) -> Self {
            self.0.extend(text.as_bytes());
            self.0.push(0);
            while !self.0.len().is_multiple_of(8) {
                self.0.push(0);
            }
            self
        }
        fn end(self, time: u64) -> Vec<u8> {
            self.u32(7).u32(8).u64(time).0
        }
    }

    fn mmap2_record() -> Vec<u8> {
        Record::new(PERF_RECORD_MMAP2, 0)
            .u32(7)
            .u32(8)
            .u64(0x7000)
            .u64(0x1000)
            .u64(0x200)
            .u32(8)
            .u32(1)
            .u64(42)
            .u64(0)
            .u32(5)
            .u32(2)
            .text("/lib/libc.so.6")
            .end(99)
    }

    #[test]
    fn a_mapping_is_read_with_its_file() {
        let event = parse(&mmap2_record()).unwrap();
        assert_eq!(event.time, MonoNs(99));
        assert_eq!(
            event.change,
            TaskChange::Mmap(MmapEvent {
                pid: Pid(7),
                tid: Tid(8),
                start: Avma(0x7000),
                len: 0x1000,
                file_offset: FileOffset(0x200),
                file: FileKey::Inode { device: Device { major: 8, minor: 1 }, inode: 42, generation: 0 },
                prot: Prot { read: true, write: false, execute: true, shared: false },
                path: "/lib/libc.so.6".into(),
            })
        );
    }

    #[test]
    fn an_exec_is_told_from_a_renaming() {
        let record = |misc| Record::new(PERF_RECORD_COMM, misc).u32(7).u32(8).text("node").end(5);
        let exec_of = |bytes: &[u8]| match parse(bytes).unwrap().change {
            TaskChange::Comm { exec, .. } => exec,
            other => panic!("{other:?}"),
        };
        assert!(exec_of(&record(PERF_RECORD_MISC_COMM_EXEC)));
        assert!(!exec_of(&record(0)));
    }

    #[test]
    fn forks_exits_and_losses_are_read() {
        let fork = Record::new(PERF_RECORD_FORK, 0).u32(10).u32(7).u32(11).u32(8).u64(1).end(5);
        assert_eq!(
            parse(&fork).unwrap().change,
            TaskChange::Fork { pid: Pid(10), parent_pid: Pid(7), tid: Tid(11), parent_tid: Tid(8) }
        );
        let exit = Record::new(PERF_RECORD_EXIT, 0).u32(10).u32(7).u32(11).u32(8).u64(1).end(5);
        assert_eq!(parse(&exit).unwrap().change, TaskChange::Exit { pid: Pid(10), tid: Tid(11) });
        let lost = Record::new(PERF_RECORD_LOST, 0).u64(1).u64(3).end(5);
        assert_eq!(parse(&lost).unwrap().change, TaskChange::Lost { count: 3 });
    }

    #[test]
    fn a_truncated_record_is_refused_at_every_length() {
        let whole = mmap2_record();
        for length in 0..whole.len() {
            // Shorter records lose their path or fields; none may panic.
            let event = parse(&whole[..length]);
            assert!(length >= 8 + 64 + TRAILER_BYTES || event.is_none(), "length {length}");
        }
    }
}
