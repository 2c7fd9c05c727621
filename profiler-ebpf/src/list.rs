//! Frames that a runtime keeps in a list of its own; see `jitprof_common::listed`.

use core::ffi::c_void;
use core::mem::offset_of;

use aya_ebpf::helpers::{
    bpf_probe_read_kernel, bpf_probe_read_user,
    generated::{bpf_get_current_task, bpf_loop, bpf_probe_read_user as read_user},
};
use jitprof_common::{
    limits::MIN_CODE_ADDRESS,
    listed::{
        ASIDE, ASIDE_WORDS, BEHIND_WORDS, DETOURED, ELEMENT_WORDS, Field, LISTED, ListEnd, ListHeader, ListSpec,
        MAX_BASES, MAX_FIELDS, MAX_LISTED, MAX_LISTED_IN_FULL_RING, MAX_OF_FIRST, MAX_STATE_FIELDS, MAX_STEPS, Record,
        Step, WAY_TO_END, WAY_TO_PARKED_SP, WAY_TO_STATE, WAYS, WINDOW_BYTES,
    },
    sample::{Counter, SampleBuffer},
};

use crate::FRAMES_END;
use crate::maps::{SPECS, STATE, TASK_THREAD_POINTER, Walk, clear, count, is_roomy};
use crate::take::frames_end;

/// The words of an element, those beside it, and some that are none.
type Element = [u64; ELEMENT_WORDS];

/// What was read last, and so many words that each of its elements has all of its own.
type Window = [u64; WINDOW_BYTES / 8 + ELEMENT_WORDS];

/// The words that a record's first word points to.
type Behind = [u64; BEHIND_WORDS];

/// A list that is being walked.
#[repr(C)]
pub struct List {
    header: ListHeader,
    /// The next element, or 0.
    at: u64,
    /// Where an array ends.
    end: u64,
    /// The object that a detour is at, or 0; and what a record has by which it is known that it was met on one.
    object: u64,
    detoured: u64,
    /// Where in the sample the next record goes.
    to: u64,
    /// Where the window begins in the process, and up to how many bytes behind an element may begin that lies in it.
    from: u64,
    held: u64,
    window: Window,
    behind: Behind,
    /// By the bits of the place: what this sample has already read of one.
    known: [Known; KNOWN],
}

/// What is kept of words that the record's first word points to, for the next element of the same function.
#[derive(Clone, Copy)]
#[repr(C)]
struct Known {
    place: u64,
    words: Record,
    reserved: u64,
}

/// A power of two.
const KNOWN: usize = 4;

impl List {
    /// For a new sample.
    #[inline(always)]
    pub fn reset(&mut self) {
        const WORDS: usize = offset_of!(List, window) / 8;
        // SAFETY: all before the window is words, and may be 0.
        unsafe { clear((&raw mut *self).cast::<[u64; WORDS]>()) }
    }
}

const _: () = assert!(ListEnd::Empty as u32 == 0);

/// Takes the list of the thread along, if one is asked for and no words of frames were taken. It goes behind the frames.
#[inline(always)]
pub fn records(walk: &mut Walk) {
    if walk.take == 0 || walk.noted != 0 || begin() == 0 {
        return;
    }
    // SAFETY: it is words, and may be 0.
    unsafe { clear((&raw mut walk.list.known).cast::<[u64; size_of::<[Known; KNOWN]>() / 8]>()) };
    walk.list.to = u64::from(frames_end(walk)) + size_of::<ListHeader>() as u64;
    // One turn more than there is room for shows whether there are more. The turns themselves know of no limit but that of
    // memory: a comparison more in them, and LLVM keeps the place in two registers, of which 6.1 bounds one.
    let most = if is_roomy() { MAX_LISTED } else { MAX_LISTED_IN_FULL_RING } as u32;
    // SAFETY: the callback keeps to the signature that bpf_loop calls.
    unsafe { bpf_loop(most + 1, next_element as *mut c_void, core::ptr::null_mut(), 0) };
    if most < MAX_LISTED as u32 && walk.list.header.count > most {
        walk.list.header.count = 0;
        walk.list.header.end = ListEnd::Refused as u32;
        count(Counter::ListsRefused, 1);
    }
}

/// How many bytes the list takes up behind the frames, which end at `from`.
#[inline(always)]
pub fn bytes(walk: &mut Walk, from: usize) -> usize {
    if walk.list.header.base == 0 {
        return 0;
    }
    walk.sample.header.taken = LISTED;
    // SAFETY: behind the frames is room for a header and all records.
    unsafe {
        let to = (&raw mut walk.sample).cast::<u8>().add(from.min(FRAMES_END));
        to.cast::<ListHeader>().write(walk.list.header);
    }
    size_of::<ListHeader>() + (walk.list.header.count as usize).min(MAX_LISTED) * size_of::<Record>()
}

/// Finds the first element; 0 if there is no list to be walked. A global function: the verifier walks through it once.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn begin_list() -> u64 {
    let Some((walk, spec)) = at_hand() else { return 0 };
    if !spec.is_some() {
        return 0;
    }
    if spec.stride != 0 {
        walk.list.end = way(WAY_TO_END as u64);
        if walk.list.end == 0 {
            return 0;
        }
    }
    for base in 0..MAX_BASES {
        let value = way(base as u64);
        if value != 0 {
            (walk.list.header.base, walk.list.at) = (base as u32 + 1, value);
            break;
        }
    }
    let state = way(WAY_TO_STATE as u64);
    if state != 0 {
        for at in 0..MAX_STATE_FIELDS {
            let field = &spec.state[at];
            let address = state.wrapping_add(field.offset.into());
            // SAFETY: the helper checks the address and never faults.
            let word = unsafe { bpf_probe_read_user(address as *const u64) }.unwrap_or(0);
            let sum = &mut walk.list.header.state[usize::from(field.to & 1)];
            *sum = sum.wrapping_add(field.of(word));
        }
    }
    walk.list.at
}

/// The stack pointer of the thread's own stack while it runs on another one; 0 if that is not known.
#[inline(always)]
pub fn parked_sp() -> u64 {
    way(WAY_TO_PARKED_SP as u64)
}

#[inline(always)]
fn way(index: u64) -> u64 {
    // Hidden from LLVM: the verifier knows nothing of the result.
    core::hint::black_box(list_way(index))
}

/// Where a way leads, or 0. A global function, like `begin_list`, so that one walk of the verifier's is for all ways.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn list_way(index: u64) -> u64 {
    let Some((_, spec)) = at_hand() else { return 0 };
    // Hidden from LLVM, which would compare something else than what is added.
    let index = core::hint::black_box(index);
    if index >= WAYS as u64 {
        return 0;
    }
    // SAFETY: there are so many ways.
    first(unsafe { spec.ways.get_unchecked(index as usize) })
}

#[inline(always)]
fn begin() -> u64 {
    // Hidden from LLVM: the verifier knows nothing of the result.
    core::hint::black_box(begin_list())
}

/// Where a way leads, or 0.
#[inline(always)]
fn first(steps: &[Step; MAX_STEPS]) -> u64 {
    let mut value = 0_u64;
    for step in steps {
        match step.op {
            Step::ADD => value = value.wrapping_add(step.operand),
            Step::ADD_THREAD_POINTER => match thread_pointer() {
                0 => return 0,
                pointer => value = value.wrapping_add(pointer).wrapping_add(step.operand),
            },
            Step::LOAD => {
                let address = value.wrapping_add(step.operand);
                // SAFETY: the helper checks the address and never faults.
                value = unsafe { bpf_probe_read_user(address as *const u64) }.unwrap_or(0);
                if value == 0 {
                    return 0;
                }
            }
            Step::EXTENT => {
                // SAFETY: as above.
                let count = unsafe { bpf_probe_read_user(value.wrapping_add(8) as *const u64) }.unwrap_or(0);
                // SAFETY: as above.
                let begin = unsafe { bpf_probe_read_user(value as *const u64) }.unwrap_or(0);
                value = begin.wrapping_add(count.wrapping_mul(step.operand));
            }
            _ => return value,
        }
    }
    value
}

/// The thread pointer of the current task, as it was when it was switched to last; 0 if it is not known.
#[inline(always)]
fn thread_pointer() -> u64 {
    let offset = TASK_THREAD_POINTER.load();
    if offset == 0 {
        return 0;
    }
    // SAFETY: the address is only read by bpf_probe_read_kernel, which checks it and never faults.
    unsafe { bpf_probe_read_kernel(bpf_get_current_task().wrapping_add(offset) as *const u64) }.unwrap_or(0)
}

/// A turn as `bpf_loop` calls it: one element.
unsafe extern "C" fn next_element(_index: u64, _ctx: *mut c_void) -> i64 {
    i64::from(core::hint::black_box(list_element()) != 0)
}

/// Keeps what is wanted of the element at hand, and goes to the next; 1 if there is none. A global function, like
/// `begin_list`.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn list_element() -> u64 {
    let Some((walk, spec)) = at_hand() else { return 1 };
    let end = element(walk, spec);
    if let Some(end) = end {
        walk.list.header.end = end as u32;
    }
    u64::from(end.is_some())
}

/// Where the element at hand is, or 0; of a detour, the next object's. A global function, like `begin_list`.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn list_place() -> u64 {
    let Some((walk, spec)) = at_hand() else { return 0 };
    walk.list.detoured = 0;
    let object = walk.list.object;
    if object != 0 {
        let word = |at: u16| {
            // SAFETY: the helper checks the address and never faults.
            unsafe { bpf_probe_read_user(object.wrapping_add(at.into()) as *const u64) }.unwrap_or(0)
        };
        walk.list.object = word(spec.detour.next);
        if walk.list.object != 0 {
            walk.list.detoured = DETOURED;
            return word(spec.detour.element);
        }
    }
    walk.list.at
}

/// Where the element at hand is, or 0, and what its record has besides if it was met on a detour. Off a detour without a call.
#[inline(always)]
fn place(walk: &mut Walk) -> (u64, u64) {
    let from = if walk.list.object == 0 {
        walk.list.detoured = 0;
        walk.list.at
    } else {
        // Hidden from LLVM: the verifier knows nothing of the result.
        core::hint::black_box(list_place())
    };
    // From memory: the function has written it, and the verifier would walk through all that follows for a 0 that it knows.
    // SAFETY: a variable can be read.
    (from, unsafe { (&raw const walk.list.detoured).read_volatile() })
}

#[inline(always)]
fn element(walk: &mut Walk, spec: &ListSpec) -> Option<ListEnd> {
    let count = walk.list.header.count as usize;
    let stride = u64::from(spec.stride);
    let (from, detoured) = place(walk);
    if (from | detoured) == 0 || (stride != 0 && from >= walk.list.end) {
        return Some(ListEnd::Last);
    }
    if count >= MAX_LISTED {
        return Some(ListEnd::TooLong);
    }
    if !has(&walk.list, from) {
        return Some(ListEnd::Unreadable);
    }
    let element = in_window(&mut walk.list, from);
    if spec.aside != 0 && !read_aside(element, spec.aside - 1) {
        return Some(ListEnd::Unreadable);
    }
    let mut record: Record = [0; 2];
    for at in 0..MAX_FIELDS {
        let field = &spec.fields[at];
        if field.mask == 0 {
            break;
        }
        let kept = word(element, field.offset.into()) & field.mask & condition(element, field);
        let kept = kept << (field.shift & 63);
        // Without a branch, as in `all_if_zero`.
        let second = u64::from(field.to & 1).wrapping_neg();
        record = [record[0] | (kept & !second), record[1] | (kept & second)];
    }
    let words = of_first(&mut walk.list, spec, record[0]);
    record = [record[0] ^ words[0], (record[1] ^ words[1]) | detoured];
    // Hidden from LLVM, which would compare something else than what is added; the verifier needs the comparison.
    let to = core::hint::black_box(walk.list.to as usize);
    if to > size_of::<SampleBuffer>() - size_of::<Record>() {
        return Some(ListEnd::TooLong);
    }
    // SAFETY: the record lies within the sample.
    unsafe { (&raw mut walk.sample).cast::<u8>().add(to).cast::<Record>().write(record) };
    walk.list.header.count = count as u32 + 1;
    // Not from what was compared, which LLVM would keep in two registers, of which 6.1 bounds one.
    walk.list.to += size_of::<Record>() as u64;
    if detoured == 0 {
        walk.list.at = if stride != 0 { from.wrapping_add(stride) } else { word(element, spec.next) };
        if (spec.detour.object | spec.detour.unless) != 0 {
            walk.list.object = detour(element, spec, from);
            walk.list.header.detoured |= u32::from(walk.list.object != 0);
        }
    }
    None
}

/// Whether the element at a place is in the window, or can be read into it.
#[inline(always)]
fn has(list: &List, at: u64) -> bool {
    let behind = at.wrapping_sub(list.from);
    // Hidden from LLVM: the verifier knows nothing of the result.
    (behind < list.held && behind & 7 == 0) || core::hint::black_box(list_window(at)) != 0
}

/// The element at a place in the window.
#[inline(always)]
fn in_window(list: &mut List, at: u64) -> &'static mut Element {
    // From memory, as in `place`.
    // SAFETY: a variable can be read.
    let from = unsafe { (&raw const list.from).read_volatile() };
    let behind = at.wrapping_sub(from) as usize & (WINDOW_BYTES - 8);
    // SAFETY: from each word of what is read on, the window has room for an element; the entry of this CPU is the walk's alone.
    unsafe { &mut *(&raw mut list.window).cast::<u8>().add(behind).cast() }
}

/// Reads the element at a place, with what may be the next ones; 0 if it cannot be read. A global function, like `begin_list`.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn list_window(at: u64) -> u64 {
    let Some((walk, spec)) = at_hand() else { return 0 };
    let list = &mut walk.list;
    let window = spec.window(at, list.from);
    list.held = 0;
    // Hidden from LLVM, which would compare something else than what is handed over.
    let bytes = core::hint::black_box(window.bytes as u32);
    if bytes > WINDOW_BYTES as u32 {
        return 0;
    }
    let from = window.from as *const c_void;
    // SAFETY: the window has room for so many bytes; the helper checks the user address and never faults.
    if unsafe { read_user(list.window.as_mut_ptr().cast(), bytes, from) } != 0 {
        return 0;
    }
    list.from = window.from;
    list.held = (window.bytes + 1).wrapping_sub(spec.span.into());
    1
}

/// What is kept of the words that a record's first word, `place`, points to: the same for all elements of one function, which
/// a program that recurses has many of.
#[inline(always)]
fn of_first(list: &mut List, spec: &ListSpec, place: u64) -> Record {
    let known = &raw mut list.known[nth(place)];
    // From memory, as in `place`: without any such words it stays 0.
    // SAFETY: the entry of this CPU is the walk's alone.
    unsafe {
        if (*known).place != place && spec.behind_span != 0 {
            list_behind(place);
        }
        [(&raw const (*known).words[0]).read_volatile(), (&raw const (*known).words[1]).read_volatile()]
    }
}

/// Which of the known words are those of a place.
#[inline(always)]
fn nth(place: u64) -> usize {
    (place >> 5) as usize & (KNOWN - 1)
}

/// Keeps what is wanted of the words that a record's first word, `place`, points to. A global function, like `begin_list`.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn list_behind(place: u64) -> u64 {
    let Some((walk, spec)) = at_hand() else { return 0 };
    let words = read_of_first(&mut walk.list.behind, spec, place);
    let known = &mut walk.list.known[nth(place)];
    (known.place, known.words) = (place, words);
    0
}

#[inline(always)]
fn read_of_first(behind: &mut Behind, spec: &ListSpec, place: u64) -> Record {
    let mut record: Record = [0; 2];
    // Hidden from LLVM, which would compare something else than what is handed over.
    let bytes = core::hint::black_box(u32::from(spec.behind_span));
    let from = place.wrapping_add(spec.behind.into()) as *const c_void;
    // SAFETY: there is room for so many bytes; the helper checks the user address and never faults.
    if bytes > size_of::<Behind>() as u32 || unsafe { read_user(behind.as_mut_ptr().cast(), bytes, from) } != 0 {
        return record;
    }
    for at in 0..MAX_OF_FIRST {
        let field = &spec.of_first[at];
        if field.mask == 0 {
            break;
        }
        let distance = usize::from(field.offset.wrapping_sub(spec.behind));
        let mut word = behind[(distance >> 3) & (behind.len() - 1)];
        if field.through != 0 {
            word = read_through(word, field);
        }
        if field.to & 1 == 0 {
            record[0] ^= field.of(word);
        } else {
            record[1] ^= field.of(word);
        }
    }
    record
}

/// The word that a field has of what a word is the address of; 0 if it cannot be read. A fault costs more than a read: where
/// nothing is mapped, as with a null pointer, none is tried.
#[inline(always)]
fn read_through(word: u64, field: &Field) -> u64 {
    if word < MIN_CODE_ADDRESS {
        return 0;
    }
    let address = word.wrapping_add(u64::from(field.through) * 8 - 8);
    // SAFETY: the helper checks the address and never faults.
    unsafe { bpf_probe_read_user(address as *const u64) }.unwrap_or(0)
}

/// The object whose others an element stands for, or 0.
#[inline(always)]
fn detour(element: &Element, spec: &ListSpec, from: u64) -> u64 {
    let object = word(element, spec.detour.object.into());
    let is_own = object.wrapping_add(spec.detour.own.into()) ^ from;
    object & all_if_zero(word(element, spec.detour.unless.into())) & all_if_zero(is_own)
}

/// Reads the words up to where a word of the element points; false if they cannot be read.
#[inline(always)]
fn read_aside(element: &mut Element, pointer: u32) -> bool {
    const BYTES: u64 = ASIDE_WORDS as u64 * 8;
    let from = word(element, pointer).wrapping_sub(BYTES - 8);
    let to = (&raw mut element[usize::from(ASIDE) / 8]).cast();
    // SAFETY: behind an element is room for the words beside it; the helper checks the user address and never faults.
    unsafe { read_user(to, BYTES as u32, from as *const c_void) == 0 }
}

/// All bits if something of a field is kept, and none else.
#[inline(always)]
fn condition(element: &Element, field: &Field) -> u64 {
    if field.is_conditional() { all_if_zero(word(element, field.unless.into())) } else { u64::MAX }
}

/// All bits if a word is 0, and none else: without a branch, of which the verifier would walk both sides.
#[inline(always)]
fn all_if_zero(word: u64) -> u64 {
    ((word | word.wrapping_neg()) >> 63).wrapping_sub(1)
}

/// The word at an offset of an element.
#[inline(always)]
fn word(element: &Element, offset: u32) -> u64 {
    element[(offset >> 3) as usize & (element.len() - 1)]
}

/// The walk, and what list is asked for.
#[inline(always)]
fn at_hand() -> Option<(&'static mut Walk, &'static ListSpec)> {
    // SAFETY: as in `begin` of the sampler.
    let walk = unsafe { &mut *STATE.get_ptr_mut(0)? };
    let spec = SPECS.get(walk.take.wrapping_sub(1))?;
    Some((walk, &spec.list))
}
