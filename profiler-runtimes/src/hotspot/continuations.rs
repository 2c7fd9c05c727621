//! Where the stack of a virtual thread goes on in the heap.
//!
//! Of a virtual thread that is continued only the innermost frames are put onto its carrier's stack. The outermost of these
//! returns to the *return barrier*, a stub that fetches further ones from the heap. It begins with the place on the stack
//! where the continuation was entered, which every thread keeps: `mov rsp, [r15 + JavaThread::_cont_entry]`. There lies a
//! `ContinuationEntry`, in the frame that `enterSpecial` has made below its caller's.

use jitprof_common::units::Avma;

use super::code_cache::{Blob, BlobName};
use super::layout::{Layout, plus};
use crate::{Memory, Reader};

/// What the name of a blob with these stubs has in it.
const NAME: &str = "ontinuation";
/// Bytes of stubs that are searched; those of continuations have 2 KiB.
const MAX_STUBS: usize = 64 << 10;
/// `ret`, which the stub before ends with, then `mov rsp, [r15 + disp32]`.
const BARRIER: [u8; 4] = [0xc3, 0x49, 0x8b, 0xa7];
/// Of a thread, where that is not said.
const MAX_OFFSET: u32 = 4 << 10;
/// Bytes of the second instruction.
const FIRST_BYTES: u32 = 7;
/// What is aligned to two words, and what lies above it in the frame: the frame pointer and the return address.
const ALIGNMENT: u32 = 16;
const LINK_BYTES: u32 = 16;

/// A return barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReturnBarrier {
    /// Its first byte. What returns to it is looked up one before.
    pub start: Avma,
    /// Bytes of its first instruction. So far the stack pointer leads on, later it does not.
    pub bytes: u32,
    /// From where the stack pointer is when it has been returned to, to that of the continuation's caller. The frame pointer
    /// of that lies below its return address.
    pub frame_bytes: u32,
}

impl ReturnBarrier {
    /// Whether a blob has it, once its code is there.
    pub fn is_in(blob: &Blob, layout: &Layout) -> bool {
        layout.continuation.is_some() && matches!(&blob.name, BlobName::Blob(name) if name.contains(NAME))
    }

    /// Looks for it in a blob.
    pub fn find<M: Memory>(blob: &Blob, layout: &Layout, reader: &Reader<M>) -> Option<Self> {
        let size = usize::try_from(blob.code_bytes).ok().filter(|size| *size <= MAX_STUBS)?;
        let continuation = layout.continuation.filter(|_| Self::is_in(blob, layout))?;
        let mut code = vec![0; size];
        reader.bytes(blob.code, &mut code).ok()?;
        // The stub for exceptions begins in the same way, and comes behind.
        let at = code.windows(BARRIER.len() + 4).position(|bytes| {
            let (begin, offset) = bytes.split_at(BARRIER.len());
            let offset = offset.first_chunk().map_or(0, |offset| u32::from_le_bytes(*offset));
            begin == BARRIER && continuation.entry.map_or(offset <= MAX_OFFSET, |entry| offset == entry.into())
        })?;
        Some(Self {
            start: plus(blob.code, u64::try_from(at + 1).ok()?).ok()?,
            bytes: FIRST_BYTES,
            frame_bytes: continuation.bytes.checked_next_multiple_of(ALIGNMENT)?.checked_add(LINK_BYTES)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::Budget;
    use crate::hotspot::tests::layout_and_stubs;

    /// Stubs at an address.
    struct Stubs(Avma, Vec<u8>);

    impl Memory for Stubs {
        fn read(&self, address: Avma, into: &mut [u8]) -> io::Result<usize> {
            for (at, byte) in (address.0..).zip(into.iter_mut()) {
                let from = at.checked_sub(self.0.0).and_then(|from| usize::try_from(from).ok());
                *byte = from.and_then(|from| self.1.get(from)).copied().unwrap_or(0xcc);
            }
            Ok(into.len())
        }
    }

    #[test]
    fn the_barrier_is_where_a_stub_begins_with_the_place_at_which_the_thread_was_entered() {
        for (recording, is_said) in [("jdk21", false), ("jdk25", true), ("jdk26", true)] {
            let (layout, mut blob) = layout_and_stubs(recording);
            let continuation = layout.continuation.unwrap();
            assert_eq!(continuation.entry.is_some(), is_said, "{recording}");
            // pop rbp; ret; mov rsp, [r15 + another]; pop rbp; ret; mov rsp, [r15 + entry]; push rax; ret; the same.
            let load = |offset: u16| [&[0x49, 0x8b, 0xa7][..], &u32::from(offset).to_le_bytes()].concat();
            let entry = load(continuation.entry.unwrap_or(0x5f0));
            let another = load(if is_said { 0x28 } else { 0x4028 });
            let code = [&[0x5d, 0xc3][..], &another, &[0x5d, 0xc3], &entry, &[0x50, 0xc3], &entry].concat();
            blob.code_bytes = u32::try_from(code.len()).unwrap();
            blob.name = BlobName::Blob("StubRoutines (continuationstubs)".into());
            let find = |blob: &Blob, code: &[u8]| {
                let budget = Budget { pages: 100, steps: 100 };
                ReturnBarrier::find(blob, &layout, &Reader::new(Stubs(blob.code, code.to_vec()), budget))
            };
            let barrier = find(&blob, &code).unwrap();
            assert_eq!((barrier.start.0 - blob.code.0, barrier.bytes), (11, 7), "{recording}");
            // So is the frame of `enterSpecial` in these versions: 64 bytes, the frame pointer, the return address.
            assert_eq!(barrier.frame_bytes, 80, "{recording}");
            assert_eq!(find(&blob, &code[..9]), None);
            assert_eq!(find(&Blob { name: BlobName::Blob("StubRoutines (2)".into()), ..blob }, &code), None);
        }
        assert_eq!(layout_and_stubs("jdk17").0.continuation, None);
    }
}
