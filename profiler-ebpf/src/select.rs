//! Which tasks are sampled. Decided in the kernel: a sample that nobody asked for costs a map look-up.

use profiler_common::{config::Select, limits::COMM_LEN};

use crate::maps::{PROCESSES, SELECT, SELECT_COMM, SELF_PID, THREADS};

const PROCESSES_ONLY: u32 = Select::Processes as u32;
const THREADS_ONLY: u32 = Select::Threads as u32;
const COMM: u32 = Select::Comm as u32;

/// Whether the current task is to be sampled.
#[inline(always)]
pub fn wanted(pid: u32, tid: u32, comm: &[u8; COMM_LEN]) -> bool {
    // The idle task of each CPU has pid 0.
    if pid == 0 || pid == SELF_PID.load() {
        return false;
    }
    match SELECT.load() {
        PROCESSES_ONLY => followed(pid),
        THREADS_ONLY => THREADS.get_ptr(tid).is_some(),
        COMM => followed(pid) || same_name(comm),
        _ => true,
    }
}

#[inline(always)]
fn followed(pid: u32) -> bool {
    PROCESSES.get_ptr(pid).is_some()
}

#[inline(always)]
fn same_name(comm: &[u8; COMM_LEN]) -> bool {
    let wanted = SELECT_COMM.load();
    for index in 0..COMM_LEN {
        if wanted[index] != comm[index] {
            return false;
        }
        if comm[index] == 0 {
            return true;
        }
    }
    true
}
