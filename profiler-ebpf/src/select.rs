//! Which tasks are sampled. Decided in the kernel: a sample that nobody asked for costs map look-ups, and where children are
//! sampled some reads of its task and its parents.

use aya_ebpf::helpers::bpf_get_current_uid_gid;
use jitprof_common::{
    config::Select,
    limits::{COMM_LEN, MAX_CGROUPS},
};

use crate::kin::is_child_of_followed;
use crate::maps::{CGROUPS, PROCESSES, SELECT, SELECT_COMM, SELECT_MEMBERS, SELECT_USERS, SELF_PID, THREADS, USERS};

const PROCESSES_ONLY: u32 = Select::Processes as u32;
const THREADS_ONLY: u32 = Select::Threads as u32;
const COMM: u32 = Select::Comm as u32;
const MATCHING: u32 = Select::Matching as u32;

/// Whether the current task is to be sampled.
#[inline(always)]
pub fn wanted(pid: u32, tid: u32, comm: &[u8; COMM_LEN]) -> bool {
    // The idle task of each CPU has pid 0.
    if pid == 0 || pid == SELF_PID.load() {
        return false;
    }
    match SELECT.load() {
        PROCESSES_ONLY => is_member_or_child(pid),
        THREADS_ONLY => THREADS.get_ptr(tid).is_some(),
        COMM => same_name(comm) || is_member_or_child(pid),
        MATCHING => has_user() && is_member(pid),
        _ => true,
    }
}

#[inline(always)]
fn is_member_or_child(pid: u32) -> bool {
    PROCESSES.get_ptr(pid).is_some() || is_child_of_followed()
}

/// Whether the task's real user is one of those asked for.
#[inline(always)]
fn has_user() -> bool {
    SELECT_USERS.load() == 0 || USERS.get_ptr(bpf_get_current_uid_gid() as u32).is_some()
}

#[inline(always)]
fn is_member(pid: u32) -> bool {
    SELECT_MEMBERS.load() == 0 || is_below_cgroup() || is_member_or_child(pid)
}

/// Whether the task is in one of the cgroups or below. The helper for it is there from 4.9 on; those that give the ids
/// of a task's cgroups are not for these programs before 5.15.
#[inline(always)]
fn is_below_cgroup() -> bool {
    for index in 0..MAX_CGROUPS {
        match CGROUPS.current_task_under_cgroup(index) {
            Ok(true) => return true,
            Ok(false) => {}
            // Nothing in this place, nor behind it.
            Err(_) => return false,
        }
    }
    false
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
