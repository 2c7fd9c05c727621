//! What a sample costs that the kernel itself unwinds: the peer of `cargo xtask bench`, and no part of jitprof.
//!
//! It does what the sampler does, with `bpf_get_stack` in place of the walk: filter, kernel stack, user stack by frame
//! pointers, and into the ring.
#![no_std]
#![no_main]

use aya_ebpf::{
    EbpfContext, Global,
    bindings::{BPF_F_USER_STACK, BPF_RB_NO_WAKEUP},
    helpers::{
        bpf_get_current_comm, bpf_get_current_pid_tgid, bpf_get_smp_processor_id, bpf_ktime_get_ns,
        generated::bpf_get_stack,
    },
    macros::{map, perf_event},
    maps::{PerCpuArray, RingBuf},
    programs::PerfEventContext,
};
use jitprof_common::{
    limits::{COMM_LEN, MAX_KERNEL_FRAMES},
    sample::{SampleBuffer, SampleHeader},
};

/// User frames that `bpf_get_stack` gives at most (`kernel.perf_event_max_stack`).
const MAX_USER_FRAMES: usize = 127;

#[map]
static SAMPLES: RingBuf = RingBuf::with_byte_size(1 << 22, 0);

#[map]
static STATE: PerCpuArray<SampleBuffer> = PerCpuArray::with_max_entries(1, 0);

/// Samples, nanoseconds, user frames.
#[map]
static COUNTERS: PerCpuArray<u64> = PerCpuArray::with_max_entries(3, 0);

#[unsafe(no_mangle)]
static PID: Global<u32> = Global::new(0);

/// Takes one sample of the chosen process.
#[perf_event]
pub fn getstack(ctx: PerfEventContext) -> u32 {
    // SAFETY: helpers without arguments.
    let started_ns = unsafe { bpf_ktime_get_ns() };
    let ids = bpf_get_current_pid_tgid();
    let (pid, tid) = ((ids >> 32) as u32, ids as u32);
    let comm = bpf_get_current_comm().unwrap_or([0; COMM_LEN]);
    if pid != PID.load() {
        return 0;
    }
    let Some(sample) = STATE.get_ptr_mut(0) else { return 0 };
    // SAFETY: the per-CPU entry is this program's alone: perf events do not nest on a CPU.
    let sample = unsafe { &mut *sample };
    let frames = sample.frames.as_mut_ptr();
    // SAFETY: the buffer has room for both stacks.
    let (kernel, user) = unsafe {
        let kernel = bpf_get_stack(ctx.as_ptr(), frames.cast(), (MAX_KERNEL_FRAMES * 8) as u32, 0);
        let kernel = if kernel <= 0 { 0 } else { (kernel as usize >> 3) & 0x7f };
        let flags = u64::from(BPF_F_USER_STACK);
        let user = bpf_get_stack(ctx.as_ptr(), frames.add(kernel).cast(), (MAX_USER_FRAMES * 8) as u32, flags);
        (kernel, if user <= 0 { 0 } else { (user as usize >> 3) & 0x7f })
    };
    sample.header = SampleHeader {
        time_ns: started_ns,
        pid,
        tid,
        // SAFETY: a helper without arguments.
        cpu: unsafe { bpf_get_smp_processor_id() },
        cost_ns: 0,
        kernel_frames: kernel as u16,
        user_frames: user as u16,
        stop: 0,
        in_kernel: 0,
        snapshot: 0,
        taken: 0,
        comm,
    };
    let size = (size_of::<SampleHeader>() + (kernel + user) * 8).min(size_of::<SampleBuffer>());
    // SAFETY: as above.
    let cost_ns = unsafe { bpf_ktime_get_ns() }.saturating_sub(started_ns);
    for (index, amount) in [1, cost_ns, user as u64].into_iter().enumerate() {
        if let Some(counter) = COUNTERS.get_ptr_mut(index as u32) {
            // SAFETY: a per-CPU slot, written by this program only.
            unsafe { *counter += amount }
        }
    }
    // SAFETY: `size` is at most the size of the sample that the pointer leads to.
    let bytes = unsafe { core::slice::from_raw_parts((&raw const *sample).cast::<u8>(), size) };
    // A full ring costs less than one with room; the reader keeps it empty.
    let _full = SAMPLES.output::<[u8]>(bytes, u64::from(BPF_RB_NO_WAKEUP)).is_err();
    0
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
