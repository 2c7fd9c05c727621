//! One step from a frame to its caller: the code that runs in the kernel and in the host tests.
//!
//! The step is generic over the memory it reads and over the tables that give a rule for a pc, so that the kernel part
//! reads user memory through BPF helpers while tests read recorded stacks.

use crate::limits::{MAX_FRAME_BYTES, MIN_CODE_ADDRESS, USER_ADDRESS_END};
use crate::row::{CfaKind, FpKind, Row};
use crate::stop::StopReason;

/// The registers that a step needs and recovers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// Instruction pointer of the innermost frame, return address of every other one.
    pub pc: u64,
    /// Stack pointer.
    pub sp: u64,
    /// Frame pointer (rbp, x29); any value where the code uses it for something else.
    pub fp: u64,
}

/// Whether `Registers::pc` is the sampled instruction or a return address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PcKind {
    /// The instruction that the CPU was at.
    Instruction,
    /// The instruction after a call: rules and lines are looked up one byte before it, because the call may be the
    /// last instruction of its function.
    ReturnAddress,
}

/// The address at which rules, symbols and lines of a frame are looked up.
#[inline(always)]
pub fn lookup_pc(pc: u64, kind: PcKind) -> u64 {
    match kind {
        PcKind::Instruction => pc,
        PcKind::ReturnAddress => pc.wrapping_sub(1),
    }
}

/// A word of the target's memory could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadFault;

/// The target's memory.
pub trait StackMemory {
    /// Reads the 8 bytes at `address`.
    ///
    /// # Errors
    /// The address is not mapped, not readable or, in the kernel, not resident.
    fn read_u64(&self, address: u64) -> Result<u64, ReadFault>;
}

/// Where rules come from.
pub trait UnwindRules {
    /// The row that holds at `lookup_pc`, see [`lookup_pc`]; [`Row::GAP`] for code without rows.
    fn row(&self, lookup_pc: u64) -> Row;

    /// Whether code can be at `lookup_pc`, as far as is known.
    fn is_code(&self, lookup_pc: u64) -> bool;
}

/// Every function keeps a frame pointer.
#[derive(Clone, Copy, Debug)]
pub struct FramePointers;

impl UnwindRules for FramePointers {
    #[inline(always)]
    fn row(&self, _lookup_pc: u64) -> Row {
        Row::GAP
    }

    #[inline(always)]
    fn is_code(&self, _lookup_pc: u64) -> bool {
        true
    }
}

/// A frame on the way up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its registers.
    pub registers: Registers,
    /// What its pc is.
    pub kind: PcKind,
}

const GAP: u8 = CfaKind::Gap as u8;
const SP: u8 = CfaKind::Sp as u8;
const FP: u8 = CfaKind::Fp as u8;
const FP_DEREF: u8 = CfaKind::FpDeref as u8;
const SP_DEREF: u8 = CfaKind::SpDeref as u8;
const PLT: u8 = CfaKind::Plt as u8;
const SIGNAL: u8 = CfaKind::Signal as u8;
const OUTERMOST: u8 = CfaKind::Outermost as u8;
const AT_CFA: u8 = FpKind::AtCfa as u8;
const AT_FP: u8 = FpKind::AtFp as u8;

const BAD_FRAME: u8 = StopReason::BadFrame as u8;
const BAD_RETURN_ADDRESS: u8 = StopReason::BadReturnAddress as u8;
const ZERO_RETURN_ADDRESS: u8 = StopReason::ZeroReturnAddress as u8;

/// Offset of `gregs` in the `ucontext` that a signal frame begins with, and the indices of three registers in it
/// (`arch/x86/include/uapi/asm/sigcontext.h`).
const SIGNAL_REGISTERS: u64 = 40;
const SIGNAL_RBP: u64 = SIGNAL_REGISTERS + 10 * 8;
const SIGNAL_RSP: u64 = SIGNAL_REGISTERS + 15 * 8;
const SIGNAL_RIP: u64 = SIGNAL_REGISTERS + 16 * 8;

/// The caller's frame, or why there is none.
///
/// Every accepted step but one over a signal frame moves up the stack, so that a walk cannot run in a circle; the
/// limit on frames ends one over forged signal frames.
///
/// Where there is no row, the frame pointer is believed only if `sp <= fp`, `fp - sp < MAX_FRAME_BYTES` and it is
/// 8-byte aligned. The same is tried where a row leads to no code: generated code that has just been replaced still
/// has its predecessor's rows for some milliseconds, and most of it keeps frame pointers.
///
/// # Errors
/// The reason to stop.
#[inline(always)]
pub fn step<M: StackMemory, R: UnwindRules>(frame: Frame, memory: &M, rules: &R) -> Result<Frame, StopReason> {
    let Registers { pc, sp, fp } = frame.registers;
    let row = rules.row(lookup_pc(pc, frame.kind));
    if row.cfa_kind() == GAP {
        return by_frame_pointer(sp, fp, memory);
    }
    // A failure keeps the frame at hand: the compiler would save registers without a value across the second attempt,
    // which the verifier refuses.
    let (caller, failed) = match by_row(row, frame.registers, memory) {
        Ok(caller) => (caller, None),
        Err(reason) => (frame, Some(reason)),
    };
    let by_row = failed.map_or(Ok(caller), Err);
    let believed = match failed {
        None => rules.is_code(lookup_pc(caller.registers.pc, caller.kind)),
        // A word that cannot be read is no sign of a wrong row: the frame pointer would skip callers in silence.
        Some(reason) => !matches!(reason as u8, BAD_FRAME | BAD_RETURN_ADDRESS | ZERO_RETURN_ADDRESS),
    };
    if believed || fp == 0 {
        return by_row;
    }
    match by_frame_pointer(sp, fp, memory) {
        Ok(caller) if rules.is_code(lookup_pc(caller.registers.pc, caller.kind)) => Ok(caller),
        _ => by_row,
    }
}

#[inline(always)]
fn by_row<M: StackMemory>(row: Row, registers: Registers, memory: &M) -> Result<Frame, StopReason> {
    let Registers { pc, sp, fp } = registers;
    let cfa = match row.cfa_kind() {
        SP => sp.wrapping_add_signed(row.cfa_offset_bytes()),
        FP => fp.wrapping_add_signed(row.cfa_offset_bytes()),
        FP_DEREF => read(memory, fp.wrapping_add_signed(row.cfa_offset_bytes()))?,
        SP_DEREF => read(memory, sp.wrapping_add_signed(row.cfa_offset_bytes()))?.wrapping_add(8),
        // Behind the slot's push the return address is one word further up.
        PLT => sp.wrapping_add(if pc & 15 >= 11 { 16 } else { 8 }),
        SIGNAL => {
            let registers = Registers {
                pc: read(memory, sp.wrapping_add(SIGNAL_RIP))?,
                sp: read(memory, sp.wrapping_add(SIGNAL_RSP))?,
                fp: read(memory, sp.wrapping_add(SIGNAL_RBP))?,
            };
            return Ok(Frame { registers, kind: PcKind::Instruction });
        }
        OUTERMOST => return Err(StopReason::EndOfStack),
        _ => return Err(StopReason::UnsupportedRule),
    };
    if cfa <= sp {
        return Err(StopReason::BadFrame);
    }
    let caller_fp = match row.fp_kind() {
        AT_CFA => read(memory, cfa.wrapping_add_signed(row.fp_offset_bytes()))?,
        AT_FP => read(memory, fp.wrapping_add_signed(row.fp_offset_bytes()))?,
        _ => fp,
    };
    caller(cfa, caller_fp, memory)
}

/// `cfa = fp + 16; ra = *(fp + 8); fp = *fp`.
#[inline(always)]
fn by_frame_pointer<M: StackMemory>(sp: u64, fp: u64, memory: &M) -> Result<Frame, StopReason> {
    if fp == 0 {
        return Err(StopReason::EndOfStack);
    }
    if fp < sp || fp.wrapping_sub(sp) >= MAX_FRAME_BYTES || fp & 7 != 0 {
        return Err(StopReason::NoFramePointer);
    }
    let saved = read(memory, fp)?;
    caller(fp.wrapping_add(16), saved, memory)
}

#[inline(always)]
fn caller<M: StackMemory>(cfa: u64, fp: u64, memory: &M) -> Result<Frame, StopReason> {
    let pc = read(memory, cfa.wrapping_sub(8))?;
    if pc == 0 {
        return Err(StopReason::ZeroReturnAddress);
    }
    if !(MIN_CODE_ADDRESS..USER_ADDRESS_END).contains(&pc) {
        return Err(StopReason::BadReturnAddress);
    }
    Ok(Frame { registers: Registers { pc, sp: cfa, fp }, kind: PcKind::ReturnAddress })
}

#[inline(always)]
fn read<M: StackMemory>(memory: &M, address: u64) -> Result<u64, StopReason> {
    memory.read_u64(address).map_err(|ReadFault| StopReason::ReadFault)
}

#[cfg(test)]
mod tests;
