//! Stack snapshots for frames in generated code whose rows have not come yet; see `jitprof_common::snapshot`.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_probe_read_user;
use jitprof_common::{
    sample::{Counter, SampleBuffer},
    snapshot::{Allowance, CHUNK_BYTES, MAX_CHUNKS, SnapshotHeader},
    stop::StopReason,
    unwind::Frame,
};

use crate::maps::{USE_ROWS, Walk, count, is_roomy};
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
    let base = walk.snapshot.at.sp & !(CHUNK_BYTES as u64 - 1);
    // The outermost function stands at the end of the stack, and what other rows may find lies below it.
    let is_whole = walk.stop == StopReason::EndOfStack as u8 && walk.frame.registers.sp >= base;
    let length = if is_whole { walk.frame.registers.sp - base } else { u64::MAX };
    // SAFETY: `size` is at most where the words end, and room for a header follows.
    let header = unsafe { (&raw mut walk.sample).cast::<u8>().add(size) };
    let mut bytes = 0;
    for chunk in 0..MAX_CHUNKS {
        // Hidden from LLVM, which would compare something else than what the address is made of: the verifier refuses that.
        let at = core::hint::black_box(size + size_of::<SnapshotHeader>() + chunk * CHUNK_BYTES);
        if at > size_of::<SampleBuffer>() - CHUNK_BYTES || (chunk * CHUNK_BYTES) as u64 > length {
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
        bytes += CHUNK_BYTES;
    }
    walk.snapshot.at.base = base;
    walk.snapshot.at.bytes = bytes as u32;
    // SAFETY: as above.
    unsafe { header.cast::<SnapshotHeader>().write(walk.snapshot.at) };
    walk.sample.header.snapshot = 1;
    size_of::<SnapshotHeader>() + bytes
}
