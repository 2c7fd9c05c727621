//! Stack snapshots for frames in generated code whose rows have not come yet; see `jitprof_common::snapshot`.

use core::ffi::c_void;

use aya_ebpf::helpers::{
    bpf_probe_read_kernel,
    generated::{bpf_get_current_task, bpf_probe_read_user},
};
use jitprof_common::{
    allowance::Allowance,
    sample::{Counter, SampleBuffer},
    snapshot::{CHUNK_BYTES, MAX_CHUNKS, MAX_SNAPSHOT_BYTES, MAX_SNAPSHOTS_IN_WINDOW, SnapshotHeader, WINDOW_NS},
    stop::StopReason,
    unwind::Frame,
};

use crate::maps::{MM_START_STACK, STATE, TASK_MM, USE_ROWS, Walk, count, is_roomy};
use crate::tables::Cache;

/// What a walk remembers about unknown code, and what this CPU may still hand over.
#[repr(C)]
pub struct Snapshot {
    noted: u64,
    at: SnapshotHeader,
    allowance: Allowance,
}

impl Snapshot {
    /// For a new walk.
    #[inline(always)]
    pub fn reset(&mut self) {
        self.noted = 0;
    }

    /// Remembers the frame if it is the first one in unknown code.
    #[inline(always)]
    pub fn note(&mut self, frame: &Frame, index: u32, cache: &Cache) {
        if USE_ROWS.load() == 0 || self.noted != 0 || !cache.is_unknown(index == 0) {
            return;
        }
        self.noted = 1;
        self.at.pc = frame.registers.pc;
        self.at.sp = frame.registers.sp;
        self.at.fp = frame.registers.fp;
        self.at.lr = frame.registers.lr;
        self.at.index = index as u16;
        self.at.kind = SnapshotHeader::code_of(frame.kind);
    }
}

/// Appends registers and stack behind the `size` bytes that the sample has, as far as there is room; returns how many bytes
/// it took.
#[inline(always)]
pub fn append(walk: &mut Walk, size: usize) -> usize {
    if USE_ROWS.load() == 0 || walk.snapshot.noted == 0 {
        return 0;
    }
    let window = (MAX_SNAPSHOTS_IN_WINDOW, WINDOW_NS);
    if !is_roomy() || !walk.snapshot.allowance.take(walk.sample.header.time_ns, window) {
        count(Counter::SnapshotsRefused, 1);
        return 0;
    }
    // At most where the words end, and room for a header follows.
    copy_stack(size as u64);
    let bytes = (walk.snapshot.at.bytes as usize).min(MAX_SNAPSHOT_BYTES);
    // SAFETY: as above.
    unsafe {
        let header = (&raw mut walk.sample).cast::<u8>().add(size).cast::<SnapshotHeader>();
        header.write(walk.snapshot.at);
    }
    walk.sample.header.snapshot = 1;
    size_of::<SnapshotHeader>() + bytes
}

/// Copies the stack, behind room for a header at `size`, and notes from where and how many bytes. A global function: the
/// verifier walks through it once, and knows nothing of what it notes, so that it does not follow the rest for each length.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn copy_stack(size: u64) -> u64 {
    // SAFETY: as in `begin` of the sampler.
    let Some(walk) = STATE.get_ptr_mut(0).map(|walk| unsafe { &mut *walk }) else { return 0 };
    let base = walk.snapshot.at.sp & !(CHUNK_BYTES as u64 - 1);
    (walk.snapshot.at.base, walk.snapshot.at.bytes) = (base, 0);
    // Where the walk has found the stack's end, what other rows may find lies below.
    let to_last = walk.frame.registers.sp.wrapping_sub(base);
    let to_last = if walk.stop == StopReason::EndOfStack as u8 { to_last } else { u64::MAX };
    let to_start = stack_start().checked_sub(base).filter(|&bytes| bytes != 0).unwrap_or(u64::MAX) & !7;
    let mut chunk = 0;
    while chunk < MAX_CHUNKS && ((chunk + 1) * CHUNK_BYTES) as u64 <= to_start {
        if (chunk * CHUNK_BYTES) as u64 > to_last || !copy(walk, size as usize, chunk, CHUNK_BYTES as u64) {
            return 0;
        }
        chunk += 1;
    }
    if chunk < MAX_CHUNKS {
        copy(walk, size as usize, chunk, to_start % CHUNK_BYTES as u64);
    }
    0
}

/// Copies a chunk, or the beginning of one; false if that is not to be had.
#[inline(always)]
fn copy(walk: &mut Walk, size: usize, chunk: usize, bytes: u64) -> bool {
    let before = (chunk * CHUNK_BYTES) as u64;
    // Hidden from LLVM, which would compare something else than what the address is made of: the verifier refuses that.
    let at = core::hint::black_box(size + size_of::<SnapshotHeader>() + chunk * CHUNK_BYTES);
    if at > size_of::<SampleBuffer>() - CHUNK_BYTES {
        return false;
    }
    // SAFETY: as above; the helper checks the user address and never faults.
    let failed = unsafe {
        let to = (&raw mut walk.sample).cast::<u8>().add(at);
        let from = walk.snapshot.at.base.wrapping_add(before) as *const c_void;
        bpf_probe_read_user(to.cast(), bytes as u32, from) != 0
    };
    if !failed {
        walk.snapshot.at.bytes = (before + bytes) as u32;
    }
    !failed
}

/// Where the stack of the current process's first thread began; 0 if it is not known. Above lie arguments and environment.
#[inline(always)]
fn stack_start() -> u64 {
    let (mm, start) = (TASK_MM.load(), MM_START_STACK.load());
    if mm == 0 || start == 0 {
        return 0;
    }
    // SAFETY: both addresses are only read by bpf_probe_read_kernel, which checks them and never faults.
    unsafe {
        let mm = bpf_probe_read_kernel(bpf_get_current_task().wrapping_add(mm) as *const u64).unwrap_or(0);
        bpf_probe_read_kernel(mm.wrapping_add(start) as *const u64).unwrap_or(0)
    }
}
