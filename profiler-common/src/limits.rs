//! Bounds that BPF programs and userspace agree on.

/// Kernel frames kept per sample. The kernel's own default limit (`kernel.perf_event_max_stack`) is 127.
pub const MAX_KERNEL_FRAMES: usize = 127;

/// User frames kept per sample. A JavaScript program that recurses 400 deep has some 420 native frames; perf's limit
/// of 127 cuts it.
pub const MAX_USER_FRAMES: usize = 1024;

/// Slots of a sample's frame array.
pub const MAX_FRAMES: usize = MAX_KERNEL_FRAMES + MAX_USER_FRAMES;

/// Bytes of a thread's name, NUL included (the kernel's `TASK_COMM_LEN`).
pub const COMM_LEN: usize = 16;

/// Control groups of version 2 that the BPF program compares a task's with; each costs a call a sample.
pub const MAX_CGROUPS: u32 = 16;

/// Farthest that a frame pointer may lie above the stack pointer of its frame, in bytes. Larger frames do not occur in
/// practice; a register that holds some other pointer mostly fails this check.
pub const MAX_FRAME_BYTES: u64 = 1 << 20;

/// Lowest address that can be code: nothing may be mapped below `vm.mmap_min_addr` (4096 and more in practice).
pub const MIN_CODE_ADDRESS: u64 = 4096;

/// First address that user code cannot have: x86-64 with 5-level paging has 56 bits of user space, arm64 at most 52.
pub const USER_ADDRESS_END: u64 = 1 << 56;

/// Ring-buffer bytes that must wait before userspace is woken early; it looks every tick in any case.
pub const WAKE_UP_BYTES: u64 = 128 << 10;
