//! Words that a sample takes along with its frames; see `jitprof_common::taken`.

use core::ffi::c_void;

use aya_ebpf::{
    helpers::generated::{bpf_loop, bpf_probe_read_user},
    programs::PerfEventContext,
};
use jitprof_common::{
    listed::{ListHeader, MAX_LISTED, Record},
    sample::{FramePc, SampleHeader},
    taken::{
        FrameSpec, KEPT_NS, KEPT_WORDS, MAX_READ_WORDS, MAX_READS, MAX_TAKEN, MAX_WORDS, OUTER_TAKEN, Read, TakenFrame,
        TakenHeader,
    },
};

use crate::FRAMES_END;
use crate::list;
use crate::maps::{KEPT, KEPT_FRAMES, NOTED, SPECS, STATE, TAKES, Walk, clear};
use crate::tables::Cache;
use crate::user;

/// A frame of which words are taken.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Noted {
    frame_pointer: u64,
    index: u64,
}

/// Words of a frame that were taken before, of an address and one of the words in its frame. Another thread may be a worker
/// that has an ended one's addresses.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Kept {
    pc: u64,
    word: u64,
    until_ns: u64,
    tid: u32,
    reads: u32,
    words: [u64; KEPT_WORDS],
}

/// Sees whether something is taken along with this process' frames, and notes the registers of the innermost one.
#[inline(always)]
pub fn begin(ctx: &PerfEventContext, walk: &mut Walk) {
    // SAFETY: the value is one word.
    walk.take = unsafe { TAKES.get(walk.tables_of) }.copied().unwrap_or(0);
    if walk.take != 0 {
        walk.leaf = user::leaf_registers(ctx);
    }
}

/// Notes the frame at hand, of which the walk has just looked for the caller, if words are taken of it.
#[inline(always)]
pub fn note(walk: &mut Walk, cache: &Cache) {
    if walk.take == 0 || !cache.takes() {
        return;
    }
    if let Some(noted) = NOTED.get_ptr_mut(0) {
        // SAFETY: the entry of this CPU is the walk's alone.
        const INNER: usize = MAX_TAKEN - OUTER_TAKEN;
        let nth = walk.noted as usize;
        // The outermost take each other's place.
        let nth = if nth < INNER { nth } else { INNER + ((nth - INNER) & (OUTER_TAKEN - 1)) };
        if let Some(slot) = unsafe { &mut *noted }.get_mut(nth) {
            *slot = Noted { frame_pointer: walk.frame.registers.fp, index: u64::from(walk.user_frames - 1) };
            walk.noted += 1;
        }
    }
}

/// Takes the words of the noted frames. They go behind the frames.
#[inline(always)]
pub fn words(walk: &mut Walk) {
    if walk.noted == 0 {
        return;
    }
    walk.take_from = frames_end(walk);
    // SAFETY: behind the frames is room for a header and all words.
    unsafe {
        let from = (walk.take_from as usize).min(FRAMES_END);
        (&raw mut walk.sample).cast::<u8>().add(from).cast::<TakenHeader>().write(walk.leaf);
    }
    // SAFETY: the callback keeps to the signature that bpf_loop calls.
    unsafe { bpf_loop(MAX_TAKEN as u32, take_frame as *mut c_void, core::ptr::null_mut(), 0) };
}

/// Where the frames end.
#[inline(always)]
pub fn frames_end(walk: &Walk) -> u32 {
    let frames = usize::from(walk.sample.header.kernel_frames & 0x7f) + walk.user_frames as usize;
    ((size_of::<SampleHeader>() + (frames & 0x7ff) * 8).min(FRAMES_END)) as u32
}

/// Bytes of the words of all frames, or of a whole list.
const MAX_TAKEN_BYTES: usize = size_of::<ListHeader>() + MAX_LISTED * size_of::<Record>();
const _: () = assert!(size_of::<TakenHeader>() + MAX_TAKEN * size_of::<TakenFrame>() <= MAX_TAKEN_BYTES);

/// How many bytes were taken, of words or of a list.
#[inline(always)]
pub fn bytes(walk: &mut Walk) -> usize {
    let taken = (walk.taken as usize).min(MAX_TAKEN);
    walk.sample.header.taken = taken as u8;
    // Without a branch, behind which the verifier would walk through everything twice.
    let any = core::hint::black_box((taken as u64).wrapping_neg()) >> 63;
    let words = any as usize * size_of::<TakenHeader>() + taken * size_of::<TakenFrame>();
    // One of both is nothing, which the verifier does not see.
    core::hint::black_box(words + list::bytes(walk, frames_end(walk) as usize)).min(MAX_TAKEN_BYTES)
}

/// A turn as `bpf_loop` calls it: one frame.
unsafe extern "C" fn take_frame(_index: u64, _ctx: *mut c_void) -> i64 {
    // Hidden from LLVM, which would leave out the comparison: the verifier knows nothing of the result.
    i64::from(core::hint::black_box(take_next()) != 0)
}

/// Takes the words of the next frame; 1 if there is none. A global function: the verifier walks through it once.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn take_next() -> u64 {
    u64::from(turn())
}

#[inline(always)]
fn turn() -> bool {
    // SAFETY: as in `begin` of the sampler.
    let Some(walk) = STATE.get_ptr_mut(0).map(|walk| unsafe { &mut *walk }) else { return true };
    if walk.taken >= walk.noted {
        return true;
    }
    let Some((record, frame_pointer, spec)) = at_hand(walk) else { return true };
    // SAFETY: the record is the walk's alone.
    unsafe { clear(&raw mut record.words) };
    record.reads = u32::from(read_one(&spec.reads[0], frame_pointer, record));
    if record.reads == 1 {
        let slot = usize::from(walk.sample.header.kernel_frames & 0x7f) + (record.index & 0x3ff) as usize;
        let pc = FramePc(walk.sample.frames.get(slot).copied().unwrap_or(0)).pc();
        let word = record.words[spec.key as usize & (MAX_WORDS - 1)];
        if !recall(walk, record, pc, word) {
            take_rest(pc, word);
        }
    }
    walk.taken += 1;
    false
}

/// The record that is next, its frame pointer, and what is read.
#[inline(always)]
fn at_hand(walk: &mut Walk) -> Option<(&'static mut TakenFrame, u64, &'static FrameSpec)> {
    let taken = walk.taken as usize;
    if taken >= MAX_TAKEN {
        return None;
    }
    let spec = SPECS.get(walk.take.wrapping_sub(1))?;
    // SAFETY: the entry of this CPU is the walk's alone.
    let noted = unsafe { &*NOTED.get_ptr(0)? }.get(taken)?;
    let from = (walk.take_from as usize).min(FRAMES_END) + size_of::<TakenHeader>() + taken * size_of::<TakenFrame>();
    // SAFETY: behind the frames is room for a header and the words of MAX_TAKEN frames.
    let record = unsafe { &mut *(&raw mut walk.sample).cast::<u8>().add(from).cast::<TakenFrame>() };
    record.index = noted.index as u32;
    Some((record, noted.frame_pointer, spec))
}

/// Where words are kept for an address and a word of the frame.
#[inline(always)]
fn kept(pc: u64, word: u64) -> Option<&'static mut Kept> {
    let hash = (pc ^ word.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // SAFETY: the entry of this CPU is the walk's alone.
    unsafe { &mut *KEPT.get_ptr_mut(0)? }.get_mut((hash >> 40) as usize & (KEPT_FRAMES - 1))
}

/// Gives the record what was taken lately for the same.
#[inline(always)]
fn recall(walk: &Walk, record: &mut TakenFrame, pc: u64, word: u64) -> bool {
    let Some(kept) = kept(pc, word) else { return false };
    let header = &walk.sample.header;
    let same = kept.pc == pc && kept.word == word && kept.tid == header.tid && header.time_ns < kept.until_ns;
    if same {
        record.words[MAX_WORDS - KEPT_WORDS..].copy_from_slice(&kept.words);
        record.reads = kept.reads;
    }
    same
}

/// Makes the reads behind the first, and keeps what they give if all succeed. A global function: the verifier walks
/// through it once.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn take_rest(pc: u64, word: u64) -> u64 {
    // SAFETY: as in `begin` of the sampler.
    let Some(walk) = STATE.get_ptr_mut(0).map(|walk| unsafe { &mut *walk }) else { return 0 };
    let Some((record, frame_pointer, spec)) = at_hand(walk) else { return 0 };
    let mut done = 1;
    for read in 1..MAX_READS {
        let read = &spec.reads[read];
        if read.words == 0 {
            break;
        }
        if !read_one(read, frame_pointer, record) {
            record.reads = done;
            return 0;
        }
        done += 1;
    }
    record.reads = done;
    if let Some(kept) = kept(pc, word) {
        let header = &walk.sample.header;
        (kept.pc, kept.word, kept.tid, kept.reads) = (pc, word, header.tid, done);
        kept.until_ns = header.time_ns.wrapping_add(KEPT_NS);
        kept.words.copy_from_slice(&record.words[MAX_WORDS - KEPT_WORDS..]);
    }
    0
}

/// One read; returns whether it succeeds.
#[inline(always)]
fn read_one(read: &Read, frame_pointer: u64, record: &mut TakenFrame) -> bool {
    let words = read.words;
    if words == 0 || words > MAX_READ_WORDS {
        return false;
    }
    let mut base = match read.base {
        0 => frame_pointer,
        word => record.words[usize::from(word.wrapping_sub(1)) & (MAX_WORDS - 1)],
    };
    if read.tagged != 0 {
        if base & 3 != 1 {
            return false;
        }
        base -= 1;
    }
    let to = usize::from(read.to) & (MAX_WORDS - 1);
    if to + usize::from(words) > MAX_WORDS {
        return false;
    }
    let address = base.wrapping_add(read.offset as i64 as u64);
    // SAFETY: the words lie within the record; the helper checks the user address and never faults.
    unsafe {
        let to = record.words.as_mut_ptr().add(to);
        bpf_probe_read_user(to.cast(), u32::from(words) * 8, address as *const c_void) == 0
    }
}
