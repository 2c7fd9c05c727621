//! What has to be taken with a sample for frames to be named later.

use std::cell::Cell;

use jitprof_common::units::Avma;

use super::layout::Layout;

/// Registers of x86-64 by the number that instructions have for them: rdi, r12 and r9.
const LEAF_REGISTERS: [u8; 3] = [7, 12, 9];

/// Which words are taken along with each frame in code of V8, while the thread that runs it is held by the sample.
///
/// The collector moves objects, and functions among them. It updates the stack then, but not the words of a sample. So
/// a sample has to have, besides the words, what stays the same wherever a function is moved to: the number of its
/// script, and its own within the script; and the hashes and lengths of the script's source and name, for the isolate of
/// a worker that comes when one has ended puts its objects to the same places, and counts its scripts likewise. They are
/// a few dereferences away ([`Chain`]), and are followed at once, while the collector cannot move anything of this
/// thread's: it moves objects only while all threads of the isolate wait for it, at points where they have called it.
/// (A sample within the collector itself sees frames whose objects are being moved. What was moved keeps all but its
/// first word, and no chain reads that.)
///
/// What is read later, and why that can do no harm:
///
/// * *Generated code* is found by the address, which the sample has. V8 moves code rarely, and frees it after its
///   last frame is gone; what lies there later is compared with the function of the frame, and that with what was
///   taken. A frame that no longer fits is [`Unknown::Replaced`](super::Unknown::Replaced).
/// * *Interpreted frames and baseline code* need the function's description, to which the first chain leads; not the
///   function itself, which is often young and moves. If the description was moved before it was read, its old place
///   is no description any more, or another one, whose numbers differ from those that were taken.
///
/// Per frame: four words below the frame pointer, and eight words along the chains, whose beginnings are the same. In the
/// leaf, three registers as well.
///
/// Not needed: the word of the arguments' count (between the function's and the bytecodes'), and anything above.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureSpec {
    /// Offsets from the frame pointer of the context, the function, the array of bytecodes and the offset within it.
    pub slots: [i16; 4],
    /// From the function's slot: the function's description.
    pub shared: Chain,
    /// From the function's slot: the function's number within its script.
    pub literal: Chain,
    /// From the function's slot: the number of its script.
    pub script: Chain,
    /// From the function's slot: of its script's source and name, the word with the string's hash and length.
    pub source: Chain,
    /// See `source`.
    pub name: Chain,
    /// Of the leaf: the registers (as instructions number them) in which a function finds itself at its start, and the
    /// interpreter has the array of bytecodes and the offset within it. See [`LeafRegisters`].
    pub leaf_registers: [u8; 3],
    /// Where V8's own compiled code lies in the module, and its length. A copy of it can be mapped elsewhere from the
    /// same file. Frames outside of it and of generated code need no words.
    pub own_code: Option<(Avma, u64)>,
    /// The part of it that exits of optimised code call. See [`FrameWords::is_left`].
    pub left_by: Option<(Avma, u64)>,
}

/// Dereferences from a slot. Each word has to be a tagged pointer (its low two bits are 1); the tag is taken off, and
/// the next word is read at the offset. The chain ends without a value at the first that is none, or is unreadable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The slot's offset from the frame pointer.
    pub slot: i16,
    /// Offset of the next word within each object on the way, of which there are at most three.
    pub through: Vec<u16>,
    /// Offset of the value within the last object.
    pub value: u16,
    /// Bytes of the value: four or eight.
    pub bytes: u8,
}

impl Layout {
    /// What is to be taken along with each frame.
    pub fn capture(&self) -> CaptureSpec {
        let part = |(start, end): (u64, u64)| (Avma(start), end - start);
        // Every offset of a layout is below 4096.
        let near = |offset: u64| u16::try_from(offset).unwrap_or(u16::MAX);
        let slot = self.frame.function;
        let shared = near(self.function.shared);
        let of_script = |through: &[u64], value| Chain {
            slot,
            through: [shared, near(self.shared.script)].into_iter().chain(through.iter().copied().map(near)).collect(),
            value: near(value),
            bytes: 8,
        };
        CaptureSpec {
            slots: [self.frame.context, slot, self.frame.bytecode_array, self.frame.bytecode_offset],
            shared: Chain { slot, through: Vec::new(), value: shared, bytes: 8 },
            literal: Chain { slot, through: vec![shared], value: near(self.shared.literal), bytes: 4 },
            script: of_script(&[], self.script.id),
            source: of_script(&[self.script.source], self.strings.print()),
            name: of_script(&[self.script.name], self.strings.print()),
            leaf_registers: LEAF_REGISTERS,
            own_code: self.own.all.map(part),
            left_by: self.own.left_by.map(part),
        }
    }
}

/// Whose code a frame's address lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    /// The runtime's module, or another mapping of the same bytes of its file: the address at which the first one has
    /// them. (V8 maps its own code a second time, near to generated code.)
    Module(Avma),
    /// Code that belongs to no file.
    Generated,
}

/// What was taken at the ends of the chains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The function's description, which the collector moves far more rarely than functions.
    pub shared: u64,
    /// The function's number within its script.
    pub literal: u32,
    /// The script's number, as it stands in memory.
    pub script: u64,
    /// Of its source, the word with the string's hash and length, if it could be taken.
    pub source: Option<u64>,
    /// The same of its name.
    pub name: Option<u64>,
}

/// Registers of the leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafRegisters {
    /// The function, until it has made its frame.
    pub function: u64,
    /// The interpreter's array of bytecodes.
    pub bytecode_array: u64,
    /// The interpreter's offset within it.
    pub bytecode_offset: u64,
}

/// A frame as it was when the sample was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameWords {
    /// The address: of the next instruction in the leaf, else of where the call returns to.
    pub pc: Avma,
    /// Whether it is where a call returns to.
    pub is_call: bool,
    /// Whether that call has led to [`CaptureSpec::left_by`], which is about to begin.
    pub is_left: bool,
    /// What it lies in.
    pub place: Where,
    /// The word in the context's slot, or what stands there for frames that are no function's.
    pub context: u64,
    /// The word in the function's slot.
    pub function: u64,
    /// The word in the slot of the bytecodes.
    pub bytecode_array: u64,
    /// The word in the slot of the offset within them.
    pub bytecode_offset: u64,
    /// What the chains ended at, if those for the description and the numbers did.
    pub taken: Option<Taken>,
    /// Of the leaf: its registers.
    pub leaf: Option<LeafRegisters>,
}

/// Which parts of a frame's words an answer depends on: whatever the others are, it is the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Looked(u16);

impl Looked {
    /// The context's slot.
    pub const CONTEXT: Self = Self(1);
    /// Of the context's slot, whether it is an object, and no number.
    pub const CONTEXT_TAG: Self = Self(1 << 1);
    /// The function's slot.
    pub const FUNCTION: Self = Self(1 << 2);
    /// The slot of the bytecodes.
    pub const BYTECODE_ARRAY: Self = Self(1 << 3);
    /// The slot of the offset within them.
    pub const BYTECODE_OFFSET: Self = Self(1 << 4);
    /// [`Taken::shared`].
    pub const SHARED: Self = Self(1 << 5);
    /// [`Taken::literal`], [`Taken::script`], [`Taken::source`] and [`Taken::name`].
    pub const IDENTITY: Self = Self(1 << 6);
    /// [`LeafRegisters::function`].
    pub const LEAF_FUNCTION: Self = Self(1 << 7);
    /// [`LeafRegisters::bytecode_array`].
    pub const LEAF_ARRAY: Self = Self(1 << 8);
    /// [`LeafRegisters::bytecode_offset`].
    pub const LEAF_OFFSET: Self = Self(1 << 9);

    /// Whether all of these are among them.
    pub fn has(self, parts: Self) -> bool {
        self.0 & parts.0 == parts.0
    }

    /// With these.
    #[must_use]
    pub fn with(self, parts: Self) -> Self {
        Self(self.0 | parts.0)
    }
}

/// A frame's words, which note what is looked at.
pub(super) struct Seen<'a> {
    words: &'a FrameWords,
    looked: Cell<Looked>,
}

impl<'a> Seen<'a> {
    pub(super) fn new(words: &'a FrameWords) -> Self {
        Self { words, looked: Cell::default() }
    }

    /// What was looked at so far.
    pub(super) fn looked(&self) -> Looked {
        self.looked.get()
    }

    fn look(&self, parts: Looked) -> &'a FrameWords {
        self.looked.set(self.looked.get().with(parts));
        self.words
    }

    pub(super) fn pc(&self) -> Avma {
        self.words.pc
    }

    pub(super) fn is_call(&self) -> bool {
        self.words.is_call
    }

    pub(super) fn is_left(&self) -> bool {
        self.words.is_left
    }

    pub(super) fn place(&self) -> Where {
        self.words.place
    }

    /// Whether a context is in its slot. A frame that is no function's has a number there.
    pub(super) fn has_context(&self) -> bool {
        self.look(Looked::CONTEXT_TAG).context & 1 == 1
    }

    /// Whether this number is in the context's slot.
    pub(super) fn is_marked(&self, marker: Option<u64>) -> bool {
        !self.has_context() && Some(self.look(Looked::CONTEXT).context) == marker
    }

    pub(super) fn function(&self) -> u64 {
        self.look(Looked::FUNCTION).function
    }

    pub(super) fn bytecode_array(&self) -> u64 {
        self.look(Looked::BYTECODE_ARRAY).bytecode_array
    }

    pub(super) fn bytecode_offset(&self) -> u64 {
        self.look(Looked::BYTECODE_OFFSET).bytecode_offset
    }

    /// Whether the chains for the description and the numbers were followed to their ends.
    pub(super) fn is_taken(&self) -> bool {
        self.words.taken.is_some()
    }

    /// The function's description, as it was taken.
    pub(super) fn taken_shared(&self) -> Option<u64> {
        self.words.taken.and_then(|_| self.look(Looked::SHARED).taken).map(|taken| taken.shared)
    }

    /// What was taken of the function and its script.
    pub(super) fn taken_identity(&self) -> Option<Taken> {
        self.words.taken.and_then(|_| self.look(Looked::IDENTITY).taken)
    }

    pub(super) fn leaf_function(&self) -> Option<u64> {
        self.look(Looked::LEAF_FUNCTION).leaf.map(|leaf| leaf.function)
    }

    /// Whether the leaf's register has the bytecodes that its frame has.
    pub(super) fn runs_bytecodes(&self) -> bool {
        let leaf = self.look(Looked::LEAF_ARRAY).leaf;
        leaf.is_some_and(|leaf| leaf.bytecode_array == self.bytecode_array())
    }

    pub(super) fn leaf_offset(&self) -> Option<u64> {
        self.look(Looked::LEAF_OFFSET).leaf.map(|leaf| leaf.bytecode_offset)
    }
}
