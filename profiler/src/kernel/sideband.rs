//! The sideband: mappings, names, forks and exits of all tasks, as they happen.
//!
//! A dummy software event on each CPU with `mmap2`, `comm` and `task` set, on CLOCK_MONOTONIC. No tracefs, no
//! tracepoints. Kernel 4.3 or later.

use std::io;
use std::os::fd::BorrowedFd;

use perf_event_open_sys::bindings::{
    PERF_COUNT_SW_DUMMY, PERF_SAMPLE_TID, PERF_SAMPLE_TIME, PERF_TYPE_SOFTWARE, perf_event_attr,
};

use super::error::KernelError;
use super::perf_ring::PerfRing;
use super::task_event;
use crate::process::event::TaskEvent;

/// Pages of each CPU's ring. 512 KiB hold some 4000 mappings; a process start makes about 30 records.
const RING_PAGES: usize = 128;

/// The open sideband of all CPUs.
#[derive(Debug)]
pub struct SideBand {
    rings: Vec<PerfRing>,
    scratch: Vec<u8>,
}

impl SideBand {
    /// Opens it on these CPUs.
    ///
    /// # Errors
    /// `perf_event_open` was refused.
    pub fn open(cpus: &[u32]) -> Result<Self, KernelError> {
        let rings = cpus
            .iter()
            .map(|&cpu| PerfRing::open(attributes(), cpu, RING_PAGES))
            .collect::<io::Result<Vec<_>>>()
            .map_err(KernelError::perf_event_open)?;
        Ok(Self { rings, scratch: Vec::new() })
    }

    /// Descriptors that tell when events come.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.rings.iter().map(PerfRing::fd)
    }

    /// Appends all waiting events to `out`, ordered by time among themselves.
    pub fn drain(&mut self, out: &mut Vec<TaskEvent>) {
        let first = out.len();
        for ring in &mut self.rings {
            ring.drain(&mut self.scratch, |record| out.extend(task_event::parse(record)));
        }
        // Each ring is in order; the tasks of a process may have run on several CPUs.
        out[first..].sort_by_key(|event| event.time);
    }

    pub(super) fn first_ring(&self) -> Option<&PerfRing> {
        self.rings.first()
    }
}

fn attributes() -> perf_event_attr {
    let mut attributes = perf_event_attr {
        type_: PERF_TYPE_SOFTWARE,
        config: PERF_COUNT_SW_DUMMY.into(),
        sample_type: (PERF_SAMPLE_TID | PERF_SAMPLE_TIME).into(),
        clockid: libc::CLOCK_MONOTONIC,
        ..perf_event_attr::default()
    };
    attributes.set_mmap(1);
    attributes.set_mmap2(1);
    attributes.set_comm(1);
    attributes.set_comm_exec(1);
    attributes.set_task(1);
    attributes.set_sample_id_all(1);
    attributes.set_use_clockid(1);
    // One byte of data is enough to wake the reader, who paces itself: a new child should be followed at once.
    attributes.set_watermark(1);
    attributes.__bindgen_anon_2.wakeup_watermark = 1;
    attributes
}
