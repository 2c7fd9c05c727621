//! What has to be taken with a sample for frames to be named later.

use jitprof_common::units::Avma;

use super::layout::Layout;

/// Registers of x86-64 by the number that instructions have for them: rdi, r12 and r9.
const LEAF_REGISTERS: [u8; 3] = [7, 12, 9];

/// Which words are taken along with each frame in code of V8, while the thread that runs it is held by the sample.
///
/// The collector moves objects, and functions among them. It updates the stack then, but not the words of a sample. So
/// a sample has to have, besides the words, what stays the same wherever a function is moved to: the number of its
/// script, and its own within the script. They are a few dereferences away ([`Chain`]), and are followed at once, while
/// the collector cannot move anything of this thread's: it moves objects only while all threads of the isolate wait
/// for it, at points where they have called it. (A sample within the collector itself sees frames whose objects are
/// being moved. What was moved keeps all but its first word, and no chain reads that.)
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
/// Per frame: four words below the frame pointer, and five reads along the chains, whose beginnings are the same. In the leaf, three registers as well.
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
    /// Of the leaf: the registers (as instructions number them) in which a function finds itself at its start, and the
    /// interpreter has the array of bytecodes and the offset within it. See [`LeafRegisters`].
    pub leaf_registers: [u8; 3],
    /// Where V8's own compiled code lies in the module, and its length. A copy of it can be mapped elsewhere from the
    /// same file. Frames outside of it and of generated code need no words.
    pub own_code: Option<(Avma, u64)>,
}

/// Dereferences from a slot. Each word has to be a tagged pointer (its low two bits are 1); the tag is taken off, and
/// the next word is read at the offset. The chain ends without a value at the first that is none, or is unreadable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The slot's offset from the frame pointer.
    pub slot: i16,
    /// Offset of the next word within each object on the way, of which there are at most two.
    pub through: Vec<u16>,
    /// Offset of the value within the last object.
    pub value: u16,
    /// Bytes of the value: four or eight.
    pub bytes: u8,
}

impl Layout {
    /// What is to be taken along with each frame.
    pub fn capture(&self) -> CaptureSpec {
        // Every offset of a layout is below 4096.
        let near = |offset: u64| u16::try_from(offset).unwrap_or(u16::MAX);
        let slot = self.frame.function;
        let shared = near(self.function.shared);
        CaptureSpec {
            slots: [self.frame.context, slot, self.frame.bytecode_array, self.frame.bytecode_offset],
            shared: Chain { slot, through: Vec::new(), value: shared, bytes: 8 },
            literal: Chain { slot, through: vec![shared], value: near(self.shared.literal), bytes: 4 },
            script: Chain {
                slot,
                through: vec![shared, near(self.shared.script)],
                value: near(self.script.id),
                bytes: 8,
            },
            leaf_registers: LEAF_REGISTERS,
            own_code: self.own.all.map(|(start, end)| (Avma(start), end - start)),
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
    /// What the chains ended at, if all did.
    pub taken: Option<Taken>,
    /// Of the leaf: its registers.
    pub leaf: Option<LeafRegisters>,
}
