//! Words that a sample takes along with its frames.
//!
//! What a runtime knows of a frame is often reached over an object that its collector may move: the function in a slot of
//! the frame, of which its description is a word. The sample follows such a way at once, while the thread that runs the
//! frame is held by it; what it ends at stays the same, wherever the object is moved to. The BPF program knows no runtime:
//! a [`FrameSpec`] says what is read.
//!
//! ```text
//! SampleHeader (taken = n) │ kernel frames │ user frames │ TakenHeader 32 bytes │ n × TakenFrame │ …
//! ```
//!
//! A stack snapshot goes behind them.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::listed::ListSpec;

/// Reads of one frame.
pub const MAX_READS: usize = 8;
/// Words of one frame; a power of two.
pub const MAX_WORDS: usize = 16;
/// Words of one read.
pub const MAX_READ_WORDS: u8 = 8;
/// Words that are kept for the thread's next frame at the same address: the last ones.
pub const KEPT_WORDS: usize = 8;
/// How long they are, in nanoseconds.
pub const KEPT_NS: u64 = 1_000_000_000;
/// Frames with words: those nearest to the leaf, and of deeper stacks the [`OUTER_TAKEN`] outermost, in any order.
pub const MAX_TAKEN: usize = 112;
/// A power of two.
pub const OUTER_TAKEN: usize = 32;
/// Descriptions at a time.
pub const MAX_SPECS: u32 = 256;
/// Processes of whose frames words are taken.
pub const MAX_TAKES: u32 = 1024;

/// One read: so many words from an address on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Read {
    /// Added to what the read begins at.
    pub offset: i32,
    /// Where it begins: 0 at the frame pointer, `n` at the value of the word `n - 1`.
    pub base: u8,
    /// Words, at most [`MAX_READ_WORDS`]; 0 ends the description.
    pub words: u8,
    /// Where they go: the index of the first.
    pub to: u8,
    /// 1 if what it begins at has to be a tagged pointer: its low two bits are 1, and taken off.
    pub tagged: u8,
}

/// What is read of each frame in a region with [`Region::TAKE`](crate::table::Region::TAKE). A read that fails leaves the
/// later ones out.
///
/// The first read is made of every frame. What the others give goes to the last [`KEPT_WORDS`] words, and is kept for as
/// long as [`KEPT_NS`]: a frame of the same thread at the same address with the same key gets it again. Who reads the
/// words has to find out by those of the first read, and by the address, if it is not true any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FrameSpec {
    /// In this order.
    pub reads: [Read; MAX_READS],
    /// Which word of the first read is the key.
    pub key: u64,
    /// A list of frames that is taken along besides, of the thread; not if words of a frame were.
    pub list: ListSpec,
}

/// What lies before the words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TakenHeader {
    /// 1 if the registers are known: the thread was in user mode.
    pub has_registers: u64,
    /// Of the innermost frame on x86-64: rdi, r9 and r12. A runtime's interpreter keeps in them what it will store.
    pub registers: [u64; 3],
}

/// The words of one frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TakenFrame {
    /// Which user frame it is, from the innermost.
    pub index: u32,
    /// Reads that succeeded.
    pub reads: u32,
    /// What was read; 0 where nothing was.
    pub words: [u64; MAX_WORDS],
}

const _: () = assert!(size_of::<TakenHeader>() == 32 && size_of::<TakenFrame>() == 136);
