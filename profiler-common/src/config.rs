//! Names and values that userspace sets in the eBPF object before it is loaded.
//!
//! They are read-only globals: the verifier sees constants and drops the branches that a run does not need.

/// Name of the `u32` global with a [`Select`] code.
pub const SELECT: &str = "SELECT";
/// Name of the `[u8; 16]` global with the thread name that [`Select::Comm`] looks for, NUL-padded.
pub const SELECT_COMM: &str = "SELECT_COMM";
/// Name of the `u32` global that is 1 when [`Select::Matching`] asks for users in the USERS map.
pub const SELECT_USERS: &str = "SELECT_USERS";
/// Name of the `u32` global that is 1 when [`Select::Matching`] asks for processes in the PROCESSES map or below a
/// cgroup of the CGROUPS map.
pub const SELECT_MEMBERS: &str = "SELECT_MEMBERS";
/// Name of the `u32` global that is 1 when the children of processes in the PROCESSES map are sampled before userspace has
/// put them there.
pub const SELECT_CHILDREN: &str = "SELECT_CHILDREN";
/// Name of the `u32` global that is 1 when kernel frames are wanted.
pub const KERNEL_STACK: &str = "KERNEL_STACK";
/// Name of the `u32` global that is 1 when user frames are wanted.
pub const USER_STACK: &str = "USER_STACK";
/// Name of the `u32` global with userspace's own process id, which is never sampled; 0 for none.
pub const SELF_PID: &str = "SELF_PID";
/// Name of the `u32` global that is 1 when unwind rows are used; else the walk goes by frame pointers alone.
pub const USE_ROWS: &str = "USE_ROWS";
/// Name of the `u64` global with the bits of a return address that are address, where pointer authentication signs in
/// the others; only objects built for AArch64 have it.
pub const CODE_MASK: &str = "CODE_MASK";
/// Name of the `u32` global that is 1 when rare events are logged.
pub const LOG_RARE: &str = "LOG_RARE";
/// Name of the `u64` global with the offset of `stack` in the kernel's `task_struct`, in bytes. Only for kernels
/// without `bpf_task_pt_regs`.
pub const TASK_STACK: &str = "TASK_STACK";
/// Name of the `u64` global with the offset of a task's user registers from the start of its kernel stack, in bytes; 0
/// if it is not known. Likewise.
pub const ENTRY_REGISTERS: &str = "ENTRY_REGISTERS";
/// Name of the `u64` global with the offset of the thread pointer in the kernel's `task_struct`, in bytes; 0 if it is not
/// known.
pub const TASK_THREAD_POINTER: &str = "TASK_THREAD_POINTER";
/// Name of the `u64` global with the offset of the parent's task in the kernel's `task_struct`, in bytes; 0 if it is not
/// known.
pub const TASK_REAL_PARENT: &str = "TASK_REAL_PARENT";
/// Name of the `u64` global with the offset of the process id in the kernel's `task_struct`, in bytes.
pub const TASK_TGID: &str = "TASK_TGID";
/// Name of the `u64` global with the offset of a task's flags in the kernel's `task_struct`, in bytes.
pub const TASK_FLAGS: &str = "TASK_FLAGS";
/// Name of the `u64` global with the offset of the first thread's task in the kernel's `task_struct`, in bytes.
pub const TASK_GROUP_LEADER: &str = "TASK_GROUP_LEADER";
/// Name of the `u64` global with the offset, in the kernel's `task_struct`, of when the task was made, in bytes. That is a time
/// of CLOCK_MONOTONIC.
pub const TASK_START_TIME: &str = "TASK_START_TIME";
/// Name of the `u64` global with the offset of the address space in the kernel's `task_struct`, in bytes; 0 if it is not
/// known.
pub const TASK_MM: &str = "TASK_MM";
/// Name of the `u64` global with the offset, in the kernel's `mm_struct`, of where the stack of the process's first thread
/// began, in bytes; 0 if it is not known.
pub const MM_START_STACK: &str = "MM_START_STACK";

/// Which tasks are sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Select {
    /// Every task but the idle one.
    All = 0,
    /// Processes in the PROCESSES map.
    Processes = 1,
    /// Threads in the THREADS map.
    Threads = 2,
    /// Processes in the PROCESSES map, and threads whose name is `SELECT_COMM`.
    Comm = 3,
    /// Tasks that have one of the users and are members, as far as `SELECT_USERS` and `SELECT_MEMBERS` ask for it.
    Matching = 4,
}
