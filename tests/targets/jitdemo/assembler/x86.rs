//! The few x86-64 instructions that the demo needs, each with its effect on the frame and its source line.

use super::{Frames, Function};
use crate::eh_frame::{RBP, RBX, RSP, Unwinding};

/// Assembles one function, `extern "C" fn(u32) -> u32`.
pub(crate) struct Assembler {
    frames: Frames,
    /// Bytes below the saved registers: 8 more than a multiple of 16, so that rsp is aligned to 16 at calls.
    room: u32,
    code: Vec<u8>,
    unwinding: Unwinding,
    lines: Vec<(usize, i32)>,
}

impl Assembler {
    /// Starts with a prologue that keeps the argument in ebx; line 1 of the function is `first_line`.
    pub(crate) fn new(frames: Frames, first_line: i32) -> Self {
        Self::with_room(frames, first_line, 8)
    }

    /// The same with so many bytes of locals: 8 more than a multiple of 16.
    pub(crate) fn with_room(frames: Frames, first_line: i32, room: u32) -> Self {
        assert_eq!(room % 16, 8, "calls need an aligned stack");
        let mut new = Self { frames, room, code: Vec::new(), unwinding: Unwinding::default(), lines: Vec::new() };
        new.line(first_line);
        new.emit(&[0x55]); // push rbp
        new.unwinding.saved(new.code.len(), RBP, 16);
        if frames == Frames::Pointer {
            new.emit(&[0x48, 0x89, 0xe5]); // mov rbp, rsp
            new.unwinding.cfa_register(new.code.len(), RBP);
        }
        new.emit(&[0x53]); // push rbx
        match frames {
            Frames::Pointer => new.unwinding.saved_only(new.code.len(), RBX, 24),
            Frames::CfiOnly => new.unwinding.saved(new.code.len(), RBX, 24),
        }
        new.emit(&[0x48, 0x81, 0xec]); // sub rsp, room
        new.emit(&room.to_le_bytes());
        if frames == Frames::CfiOnly {
            new.unwinding.cfa_offset(new.code.len(), 24 + room);
            new.emit(&[0x89, 0xfd]); // mov ebp, edi: rbp is no frame pointer from here on
        }
        new.emit(&[0x89, 0xfb]); // mov ebx, edi
        new
    }

    /// A function that calls nothing; it has the same frame as any other.
    pub(crate) fn leaf(frames: Frames, first_line: i32) -> Self {
        Self::new(frames, first_line)
    }

    /// What follows belongs to this source line.
    pub(crate) fn line(&mut self, line: i32) {
        self.lines.push((self.code.len(), line));
    }

    /// `callee(argument)`
    pub(crate) fn call(&mut self, callee: usize) {
        self.emit(&[0x89, 0xdf]); // mov edi, ebx
        self.call_edi(callee);
    }

    /// Puts the argument back to where a loop expects it.
    pub(crate) fn argument_again(&mut self) {
        self.emit(&[0x89, 0xdf]); // mov edi, ebx
    }

    /// `callee(3 * argument)`
    pub(crate) fn call_with_triple(&mut self, callee: usize) {
        self.emit(&[0x8d, 0x3c, 0x5b]); // lea edi, [rbx + rbx * 2]
        self.call_edi(callee);
    }

    fn call_edi(&mut self, callee: usize) {
        self.emit(&[0x48, 0xb8]); // mov rax, callee
        self.emit(&(callee as u64).to_le_bytes());
        self.emit(&[0xff, 0xd0]); // call rax
    }

    /// Leaves the result of `argument` rounds of xorshift32 in eax; a round takes the same time in every function.
    pub(crate) fn xorshift_loop(&mut self, seed: u32) {
        self.emit(&[0xb8]); // mov eax, seed
        self.emit(&seed.to_le_bytes());
        let top = self.code.len();
        for shift in [[0xc1, 0xe1, 13], [0xc1, 0xe9, 17], [0xc1, 0xe1, 5]] {
            self.emit(&[0x89, 0xc1]); // mov ecx, eax
            self.emit(&shift); // shl or shr ecx
            self.emit(&[0x31, 0xc8]); // xor eax, ecx
        }
        self.emit(&[0xff, 0xcf]); // dec edi
        let back = i8::try_from(top as i64 - (self.code.len() as i64 + 2)).expect("invariant: the loop is short");
        self.emit(&[0x75, back.to_le_bytes()[0]]); // jnz top
    }

    /// `count` bytes that do nothing.
    pub(crate) fn nops(&mut self, count: usize) {
        self.code.extend(std::iter::repeat_n(0x90, count));
    }

    /// Ends with the epilogue.
    pub(crate) fn finish(mut self, last_line: i32) -> Function {
        self.line(last_line);
        self.emit(&[0x48, 0x81, 0xc4]); // add rsp, room
        self.emit(&self.room.to_le_bytes());
        if self.frames == Frames::CfiOnly {
            self.unwinding.cfa_offset(self.code.len(), 24);
        }
        self.emit(&[0x5b]); // pop rbx
        self.unwinding.restored(self.code.len(), RBX);
        if self.frames == Frames::CfiOnly {
            self.unwinding.cfa_offset(self.code.len(), 16);
        }
        self.emit(&[0x5d]); // pop rbp
        self.unwinding.restored(self.code.len(), RBP);
        self.unwinding.cfa(self.code.len(), RSP, 8);
        self.emit(&[0xc3]); // ret
        Function { code: self.code, unwinding: self.unwinding, lines: self.lines }
    }

    fn emit(&mut self, bytes: &[u8]) {
        self.code.extend_from_slice(bytes);
    }
}
