//! Stack snapshots for frames in generated code whose rows have not come yet; see `jitprof_common::snapshot`.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_probe_read_user;
use jitprof_common::{
    sample::{Counter, SampleBuffer},
    snapshot::{Allowance, CHUNK_BYTES, MAX_CHUNKS, MAX_SNAPSHOT_BYTES, SnapshotHeader},
    stop::StopReason,
    unwind::Frame,
};

use crate::maps::{STATE, USE_ROWS, Walk, count, is_roomy};
use crate::tables::is_unknown;

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
    pub fn note(&mut self, frame: &Frame, index: u32) {
        if USE_ROWS.load() == 0 || self.noted != 0 || !is_unknown(index == 0) {
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
    if !is_roomy() || !walk.snapshot.allowance.take(walk.sample.header.time_ns) {
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
    let length = if walk.stop == StopReason::EndOfStack as u8 { to_last } else { u64::MAX };
    for chunk in 0..MAX_CHUNKS {
        // Hidden from LLVM, which would compare something else than what the address is made of: the verifier refuses that.
        let at = core::hint::black_box(size as usize + size_of::<SnapshotHeader>() + chunk * CHUNK_BYTES);
        if (chunk * CHUNK_BYTES) as u64 > length || at > size_of::<SampleBuffer>() - CHUNK_BYTES {
            break;
        }
        // SAFETY: as above; the helper checks the user address and never faults.
        let failed = unsafe {
            let to = (&raw mut walk.sample).cast::<u8>().add(at);
            let from = base.wrapping_add((chunk * CHUNK_BYTES) as u64) as *const c_void;
            bpf_probe_read_user(to.cast(), CHUNK_BYTES as u32, from) != 0
        };
        if failed {
            break;
        }
        walk.snapshot.at.bytes = ((chunk + 1) * CHUNK_BYTES) as u32;
    }
    0
}
