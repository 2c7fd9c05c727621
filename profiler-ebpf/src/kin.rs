//! Whose child the current process is.
//!
//! Userspace hears of a process that was made a moment after it runs. Until then it has its parent's memory, and it is
//! sampled, walked and read as its parent is.

use aya_ebpf::helpers::{bpf_ktime_get_ns, bpf_probe_read_kernel, generated::bpf_get_current_task};

use crate::maps::{
    MM_START_STACK, PROCESS_REGIONS, PROCESSES, SELECT_CHILDREN, SELF_PID, TASK_FLAGS, TASK_GROUP_LEADER, TASK_MM,
    TASK_REAL_PARENT, TASK_START_TIME, TASK_TGID,
};

/// Processes that are made in turn before userspace hears of the first.
const GENERATIONS: u32 = 3;
/// How long after it was made a process is taken for its parent's copy: later userspace knows it, and both have mapped other
/// things.
const NEW_NS: u64 = 1_000_000_000;
/// In the flags of a task: it was made by `fork` and has started no program since.
const FORKED: u32 = 0x40;

/// Whether the current process is new, and sampled because one of those that have made it is.
#[inline(always)]
pub fn is_child_of_followed() -> bool {
    // Hidden from LLVM: the verifier knows nothing of the result.
    SELECT_CHILDREN.load() != 0 && core::hint::black_box(has_followed_parent()) != 0
}

/// A global function: the verifier walks through it once.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn has_followed_parent() -> u64 {
    // SAFETY: a helper without arguments.
    let mut task = unsafe { bpf_get_current_task() };
    for _ in 0..GENERATIONS {
        let Some((parent, pid)) = parent_of(task) else { return 0 };
        // What this program starts itself is nobody's.
        if pid == SELF_PID.load() {
            return 0;
        }
        if PROCESSES.get_ptr(pid).is_some() {
            return 1;
        }
        task = parent;
    }
    0
}

/// The process whose tables hold for the current one: its own, or of the one that has made it, as long as there are none of
/// its own, and it is new and a copy.
#[inline(always)]
pub fn tables_of(pid: u32) -> u32 {
    if PROCESS_REGIONS.get_ptr(pid).is_some() {
        return pid;
    }
    match core::hint::black_box(parent_with_tables()) as u32 {
        0 => pid,
        parent => parent,
    }
}

/// As [`tables_of`]; 0 if there is none. A global function: the verifier walks through it once.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn parent_with_tables() -> u64 {
    // SAFETY: a helper without arguments.
    let mut task = unsafe { bpf_get_current_task() };
    let own = start_stack(task);
    if own == 0 {
        return 0;
    }
    for _ in 0..GENERATIONS {
        let flags = half(word(task.wrapping_add(TASK_GROUP_LEADER.load())).wrapping_add(TASK_FLAGS.load()));
        let Some((parent, pid)) = parent_of(task) else { return 0 };
        // Of whom it is a copy is not its parent if that has ended, or has it made for another one.
        if flags & FORKED == 0 || start_stack(parent) != own {
            return 0;
        }
        if PROCESS_REGIONS.get_ptr(pid).is_some() {
            return pid.into();
        }
        task = parent;
    }
    0
}

/// The parent of a task's process, if that is new: a task, and the number of its process. It is who has made it, or has taken it
/// over from that one.
#[inline(always)]
fn parent_of(task: u64) -> Option<(u64, u32)> {
    let offset = TASK_REAL_PARENT.load();
    if offset == 0 || age_ns(task) > NEW_NS {
        return None;
    }
    let parent = word(task.wrapping_add(offset));
    Some((parent, half(parent.wrapping_add(TASK_TGID.load()))))
}

/// How long ago a task's process was made.
#[inline(always)]
fn age_ns(task: u64) -> u64 {
    let leader = word(task.wrapping_add(TASK_GROUP_LEADER.load()));
    let began = word(leader.wrapping_add(TASK_START_TIME.load()));
    // SAFETY: a helper without arguments.
    unsafe { bpf_ktime_get_ns() }.wrapping_sub(began)
}

/// Where the stack of the first thread of a task's process began; 0 if it is not known. A copy has it in the same place.
#[inline(always)]
fn start_stack(task: u64) -> u64 {
    match (TASK_MM.load(), MM_START_STACK.load()) {
        (0, _) | (_, 0) => 0,
        (in_task, in_mm) => match word(task.wrapping_add(in_task)) {
            0 => 0,
            mm => word(mm.wrapping_add(in_mm)),
        },
    }
}

/// A word of the kernel's; 0 if it cannot be read.
#[inline(always)]
fn word(address: u64) -> u64 {
    // SAFETY: the helper checks the address and never faults.
    unsafe { bpf_probe_read_kernel(address as *const u64) }.unwrap_or(0)
}

/// The same of half a word.
#[inline(always)]
fn half(address: u64) -> u32 {
    // SAFETY: as above.
    unsafe { bpf_probe_read_kernel(address as *const u32) }.unwrap_or(0)
}
