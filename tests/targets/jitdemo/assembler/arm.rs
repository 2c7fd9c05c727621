//! The few AArch64 instructions that the demo needs, each with its effect on the frame and its source line.
//!
//! A leaf has no frame at all: its return address stays in the link register. Other functions keep a frame record at
//! the bottom of their frame, as gcc does, or, without frame pointers, save the registers apart from each other:
//!
//! ```text
//! with frame pointers          sp + 0 x29   8 x30   16 x19                      (32 bytes)
//! by call frame information                 8 x29   16 x19   32 x30             (48 bytes)
//! ```

use super::{Frames, Function};
use crate::eh_frame::{SP, Unwinding, X19, X29, X30};

const RET: u32 = 0xd65f_03c0;
const NOP: u32 = 0xd503_201f;

/// Assembles one function, `extern "C" fn(u32) -> u32`.
pub(crate) struct Assembler {
    /// `None` in a leaf.
    frames: Option<Frames>,
    /// Bytes of locals below the saved registers, a multiple of 16.
    room: u32,
    code: Vec<u8>,
    unwinding: Unwinding,
    lines: Vec<(usize, i32)>,
}

impl Assembler {
    /// Starts with a prologue that keeps the argument in w19; line 1 of the function is `first_line`.
    pub(crate) fn new(frames: Frames, first_line: i32) -> Self {
        Self::with_room(frames, first_line, 0)
    }

    /// The same with at least so many bytes of locals, 4080 at most.
    pub(crate) fn with_room(frames: Frames, first_line: i32, room: u32) -> Self {
        let room = room.next_multiple_of(16);
        assert!(room < 1 << 12, "one instruction makes room");
        let mut new = Self { frames: Some(frames), room, ..Self::leaf(frames, first_line) };
        match frames {
            Frames::Pointer => {
                new.emit(0xa9be_7bfd); // stp x29, x30, [sp, #-32]!
                new.unwinding.saved(new.code.len(), X29, 32);
                new.unwinding.saved_only(new.code.len(), X30, 24);
                new.emit(0x9100_03fd); // mov x29, sp
                new.unwinding.cfa_register(new.code.len(), X29);
                new.emit(0xf900_0bf3); // str x19, [sp, #16]
                new.unwinding.saved_only(new.code.len(), X19, 16);
            }
            Frames::CfiOnly => {
                new.emit(0xd100_c3ff); // sub sp, sp, #48
                new.unwinding.cfa_offset(new.code.len(), 48);
                new.emit(0xf900_13fe); // str x30, [sp, #32]
                new.unwinding.saved_only(new.code.len(), X30, 16);
                new.emit(0xa900_cffd); // stp x29, x19, [sp, #8]
                new.unwinding.saved_only(new.code.len(), X29, 40);
                new.unwinding.saved_only(new.code.len(), X19, 32);
                new.emit(0x2a00_03fd); // mov w29, w0: x29 is no frame pointer from here on
            }
        }
        if room > 0 {
            new.emit(0xd100_03ff | room << 10); // sub sp, sp, room
            if frames == Frames::CfiOnly {
                new.unwinding.cfa_offset(new.code.len(), 48 + room);
            }
        }
        new.emit(0x2a00_03f3); // mov w19, w0
        new
    }

    /// A function that calls nothing: its argument stays in w0.
    pub(crate) fn leaf(_frames: Frames, first_line: i32) -> Self {
        let mut new =
            Self { frames: None, room: 0, code: Vec::new(), unwinding: Unwinding::default(), lines: Vec::new() };
        new.line(first_line);
        new
    }

    /// What follows belongs to this source line.
    pub(crate) fn line(&mut self, line: i32) {
        self.lines.push((self.code.len(), line));
    }

    /// `callee(argument)`
    pub(crate) fn call(&mut self, callee: usize) {
        self.emit(0x2a13_03e0); // mov w0, w19
        self.call_w0(callee);
    }

    /// Puts the argument back to where a loop expects it.
    pub(crate) fn argument_again(&mut self) {
        self.emit(0x2a13_03e0); // mov w0, w19
    }

    /// `callee(3 * argument)`
    pub(crate) fn call_with_triple(&mut self, callee: usize) {
        self.emit(0x0b13_0660); // add w0, w19, w19, lsl #1
        self.call_w0(callee);
    }

    fn call_w0(&mut self, callee: usize) {
        let address = callee as u64;
        for (move_part, shift) in [(0xd280_0010, 0), (0xf2a0_0010, 16), (0xf2c0_0010, 32), (0xf2e0_0010, 48)] {
            self.emit(move_part | immediate((address >> shift) & 0xffff)); // movz or movk x16, part, lsl #shift
        }
        self.emit(0xd63f_0200); // blr x16
    }

    /// Leaves the result of `argument` rounds of xorshift32 in w0; a round takes the same time in every function.
    pub(crate) fn xorshift_loop(&mut self, seed: u32) {
        self.emit(0x2a00_03e1); // mov w1, w0
        self.emit(0x5280_0000 | immediate(u64::from(seed & 0xffff))); // movz w0, seed
        self.emit(0x72a0_0000 | immediate(u64::from(seed >> 16))); // movk w0, seed, lsl #16
        self.emit(0x4a00_3400); // eor w0, w0, w0, lsl #13
        self.emit(0x4a40_4400); // eor w0, w0, w0, lsr #17
        self.emit(0x4a00_1400); // eor w0, w0, w0, lsl #5
        self.emit(0x7100_0421); // subs w1, w1, #1
        self.emit(0x54ff_ff81); // b.ne: four instructions back
    }

    /// `count` bytes that do nothing, in whole instructions.
    pub(crate) fn nops(&mut self, count: usize) {
        for _ in 0..count / 4 {
            self.emit(NOP);
        }
    }

    /// Ends with the epilogue.
    pub(crate) fn finish(mut self, last_line: i32) -> Function {
        self.line(last_line);
        if self.room > 0 {
            self.emit(0x9100_03ff | self.room << 10); // add sp, sp, room
            if self.frames == Some(Frames::CfiOnly) {
                self.unwinding.cfa_offset(self.code.len(), 48);
            }
        }
        match self.frames {
            None => {}
            Some(Frames::Pointer) => {
                self.emit(0xf940_0bf3); // ldr x19, [sp, #16]
                self.unwinding.restored(self.code.len(), X19);
                self.emit(0xa8c2_7bfd); // ldp x29, x30, [sp], #32
            }
            Some(Frames::CfiOnly) => {
                self.emit(0xa940_cffd); // ldp x29, x19, [sp, #8]
                self.unwinding.restored(self.code.len(), X19);
                self.unwinding.restored(self.code.len(), X29);
                self.emit(0xf940_13fe); // ldr x30, [sp, #32]
                self.unwinding.restored(self.code.len(), X30);
                self.emit(0x9100_c3ff); // add sp, sp, #48
            }
        }
        if self.frames.is_some() {
            self.unwinding.restored(self.code.len(), X29);
            self.unwinding.restored(self.code.len(), X30);
            self.unwinding.cfa(self.code.len(), SP, 0);
        }
        self.emit(RET);
        Function { code: self.code, unwinding: self.unwinding, lines: self.lines }
    }

    fn emit(&mut self, instruction: u32) {
        self.code.extend(instruction.to_le_bytes());
    }
}

/// 16 bits where movz and movk have them.
fn immediate(value: u64) -> u32 {
    u32::try_from(value).expect("invariant: 16 bits") << 5
}
