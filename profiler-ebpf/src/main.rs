//! The sampler: on each perf event, filter, take the kernel stack, walk the user stack, hand the sample over.
#![no_std]
#![no_main]

mod chained;
mod kin;
mod list;
mod maps;
mod registrations;
mod select;
mod snapshot;
mod tables;
mod take;
mod user;

use core::ffi::c_void;
use core::mem::MaybeUninit;

use aya_ebpf::{
    EbpfContext,
    bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP},
    helpers::{
        bpf_get_current_pid_tgid, bpf_get_smp_processor_id, bpf_ktime_get_ns,
        generated::{bpf_get_current_comm, bpf_get_stack, bpf_loop},
    },
    macros::perf_event,
    programs::PerfEventContext,
};
use aya_log_ebpf::debug;
use jitprof_common::{
    limits::{COMM_LEN, MAX_KERNEL_FRAMES, MAX_USER_FRAMES, WAKE_UP_BYTES},
    sample::{Counter, FramePc, SampleBuffer, SampleHeader},
    stop::StopReason,
    unwind::{Frame, lookup_pc, step},
};

use crate::maps::{KERNEL_STACK, LOG_RARE, SAMPLES, STATE, USER_STACK, Walk, count};
use crate::tables::Tables;
use crate::user::{SampledRegisters, UserMemory};

/// Takes one sample of the current task. Needs `bpf_loop` (5.17) and `bpf_task_pt_regs` (5.15); `chained` has the
/// programs for older kernels.
#[perf_event]
pub fn sampler(ctx: PerfEventContext) -> u32 {
    let Some((walk, has_user_stack)) = begin(&ctx, user::registers) else { return 0 };
    if has_user_stack {
        take::begin(&ctx, walk);
        // SAFETY: the callback keeps to the signature that bpf_loop calls.
        unsafe { bpf_loop(MAX_USER_FRAMES as u32, walk_frame as *mut c_void, core::ptr::null_mut(), 0) };
        take::words(walk);
        list::records(walk);
    }
    let taken = take::bytes(walk);
    hand_over::<true>(walk, taken);
    0
}

/// Begins a sample: filter, header, kernel stack, and the registers that the walk starts with. `None` if nobody asked
/// for it; false if there is no user stack to walk.
#[inline(always)]
fn begin(
    ctx: &PerfEventContext,
    registers: impl FnOnce(&PerfEventContext) -> SampledRegisters,
) -> Option<(&'static mut Walk, bool)> {
    let started_ns = unsafe { bpf_ktime_get_ns() };
    let ids = bpf_get_current_pid_tgid();
    let (pid, tid) = ((ids >> 32) as u32, ids as u32);
    // In one place: of a copy LLVM would keep each byte for itself.
    let mut comm = MaybeUninit::<[u8; COMM_LEN]>::uninit();
    // SAFETY: the helper writes all bytes, zeros if it fails.
    let comm = unsafe {
        bpf_get_current_comm(comm.as_mut_ptr().cast(), COMM_LEN as u32);
        comm.assume_init_ref()
    };
    if !select::wanted(pid, tid, comm) {
        return None;
    }
    count(Counter::Taken, 1);
    // SAFETY: the per-CPU entry is this program's alone: perf events do not nest on a CPU.
    let walk = unsafe { &mut *STATE.get_ptr_mut(0)? };

    let registers = registers(ctx);
    walk.sample.header = SampleHeader {
        time_ns: started_ns,
        pid,
        tid,
        cpu: unsafe { bpf_get_smp_processor_id() },
        cost_ns: 0,
        kernel_frames: kernel_stack(ctx, walk),
        user_frames: 0,
        stop: StopReason::NotAsked as u8,
        in_kernel: registers.in_kernel as u8,
        snapshot: 0,
        taken: 0,
        comm: *comm,
    };
    walk.user_frames = 0;
    (walk.take, walk.noted, walk.taken) = (0, 0, 0);
    walk.list.reset();
    walk.snapshot.reset();
    walk.stop = StopReason::NotAsked as u8;
    if USER_STACK.load() == 0 {
        return Some((walk, false));
    }
    let Some(user) = registers.user else {
        walk.stop = StopReason::NoUserRegisters as u8;
        if LOG_RARE.load() != 0 {
            debug!(ctx, "task {} of {} has no user registers", tid, pid);
        }
        return Some((walk, false));
    };
    walk.tables_of = kin::tables_of(pid);
    tables::begin(walk.tables_of);
    walk.frame = Frame::sampled(user);
    // What holds unless a step says otherwise.
    walk.stop = StopReason::DepthLimit as u8;
    Some((walk, true))
}

/// Writes the kernel stack, innermost first, to the front of the frames; returns how many there are.
#[inline(always)]
fn kernel_stack(ctx: &PerfEventContext, walk: &mut Walk) -> u16 {
    if KERNEL_STACK.load() == 0 {
        return 0;
    }
    // SAFETY: the buffer has room for MAX_KERNEL_FRAMES words.
    let bytes = unsafe {
        bpf_get_stack(ctx.as_ptr(), walk.sample.frames.as_mut_ptr().cast(), (MAX_KERNEL_FRAMES * 8) as u32, 0)
    };
    if bytes <= 0 { 0 } else { ((bytes as u64 >> 3) & 0x7f) as u16 }
}

/// A turn as `bpf_loop` calls it. Not by way of a global function, of whose result the verifier would know nothing.
unsafe extern "C" fn walk_frame(_index: u64, _ctx: *mut c_void) -> i64 {
    i64::from(turn::<true>())
}

/// One turn of the walk: notes the frame at hand and steps to its caller. Returns whether the walk has ended.
#[inline(always)]
fn turn<const TAKES: bool>() -> bool {
    // A pointer kept across the border of bpf_loop or of a tail call would be unknown to the verifier: the state is
    // fetched again.
    let Some(walk) = STATE.get_ptr_mut(0) else { return true };
    // SAFETY: as in `begin`.
    let walk = unsafe { &mut *walk };
    // Frames that were doubted count, too.
    if walk.user_frames as usize >= MAX_USER_FRAMES {
        return true;
    }
    let slot = usize::from(walk.sample.header.kernel_frames & 0x7f) + walk.user_frames as usize;
    let Some(frame) = walk.sample.frames.get_mut(slot) else { return true };
    *frame = FramePc::new(walk.frame.registers.pc, walk.frame.kind).0;
    walk.user_frames += 1;
    let tables = Tables { pid: walk.tables_of };
    let stepped = step(walk.frame, &UserMemory, &tables);
    let Some(cache) = tables::cache() else { return true };
    walk.snapshot.note(&walk.frame, walk.user_frames - 1, cache);
    if TAKES {
        take::note(walk, cache);
    }
    match stepped {
        Ok(caller) => {
            note_doubted(walk, &caller, cache.doubted());
            walk.frame = caller;
            false
        }
        Err(reason) => {
            walk.stop = reason as u8;
            true
        }
    }
}

/// Notes where a row has led that was not followed, before the caller that the frame pointer has found instead: it may be
/// memory that was mapped a moment ago.
#[inline(always)]
fn note_doubted(walk: &mut Walk, caller: &Frame, doubted: u64) {
    let has_room = (walk.user_frames as usize) < MAX_USER_FRAMES;
    if doubted == 0 || !has_room || doubted == lookup_pc(caller.registers.pc, caller.kind) {
        return;
    }
    let slot = usize::from(walk.sample.header.kernel_frames & 0x7f) + walk.user_frames as usize;
    if let Some(frame) = walk.sample.frames.get_mut(slot) {
        // The address was looked up one byte before the one that is returned to.
        *frame = FramePc::doubted(doubted.wrapping_add(1)).0;
        walk.user_frames += 1;
    }
}

/// Where the frames end at most.
const FRAMES_END: usize = core::mem::offset_of!(SampleBuffer, rest);

/// The size of a sample, compared with what there is: the verifier does not follow how frames, words and snapshot are
/// bounded. What it can follow differs: 6.1 does not know of a second load what it has found out of the first, so the size is
/// loaded once; 5.10, which runs the program without words, loses it then, and takes it as a value that it knows nothing of.
#[inline(always)]
fn bounded(size: usize, takes: bool) -> usize {
    let size = if takes {
        // SAFETY: a variable can be read.
        unsafe { core::ptr::read_volatile(&raw const size) }
    } else {
        core::hint::black_box(size)
    };
    size.min(size_of::<SampleBuffer>())
}

/// Puts the sample into the ring buffer, with so many bytes of words behind its frames; userspace is woken only when much
/// is waiting.
#[inline(always)]
fn hand_over<const TAKES: bool>(walk: &mut Walk, taken: usize) {
    walk.sample.header.stop = walk.stop;
    let user_frames = (walk.user_frames as usize).min(MAX_USER_FRAMES);
    walk.sample.header.user_frames = user_frames as u16;
    let frames = usize::from(walk.sample.header.kernel_frames & 0x7f) + user_frames;
    let size = (size_of::<SampleHeader>() + (frames & 0x7ff) * 8).min(FRAMES_END);
    let waiting = SAMPLES.query(u64::from(BPF_RB_AVAIL_DATA));
    let size = size + taken;
    let size = bounded(size + snapshot::append(walk, size), TAKES);
    let wake = if waiting >= WAKE_UP_BYTES { BPF_RB_FORCE_WAKEUP } else { BPF_RB_NO_WAKEUP };
    // SAFETY: a helper without arguments.
    let cost_ns = unsafe { bpf_ktime_get_ns() }.saturating_sub(walk.sample.header.time_ns);
    walk.sample.header.cost_ns = cost_ns.min(u64::from(u32::MAX)) as u32;
    count(Counter::CostNs, cost_ns);
    // SAFETY: `size` is at most the size of the sample that the pointer leads to.
    let bytes = unsafe { core::slice::from_raw_parts((&raw const walk.sample).cast::<u8>(), size) };
    if SAMPLES.output::<[u8]>(bytes, u64::from(wake)).is_err() {
        count(Counter::RingFull, 1);
    }
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
