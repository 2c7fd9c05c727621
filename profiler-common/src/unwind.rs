//! One step from a frame to its caller: the code that runs in the kernel and in the host tests.
//!
//! The step is generic over the memory it reads and over the tables that give a rule for a pc, so that the BPF program
//! reads user memory through BPF helpers while tests read recorded stacks. The rules also say which machine they are
//! for: where that is a constant the other machine's part is compiled away.

use crate::limits::{MAX_FRAME_BYTES, MIN_CODE_ADDRESS, USER_ADDRESS_END};
use crate::machine::Machine;
use crate::row::{CfaKind, FpKind, RETURN_CODE_BELOW_CFA, RETURN_CODE_LINK_REGISTER, Row, SENDER_FROM_FP};
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
    /// Link register (x30), known only where [`Frame::kind`] is [`PcKind::Instruction`]; else, and on x86-64, 0.
    pub lr: u64,
}

/// Whether `Registers::pc` is the sampled instruction or a return address. A whole word: the BPF program would copy what is
/// unused of it byte by byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum PcKind {
    /// The instruction that the CPU was at.
    Instruction,
    /// The instruction after a call: rules and lines are looked up one byte before it, because the call may be the
    /// last instruction of its function.
    ReturnAddress,
    /// The same in a frame of AArch64 that was found by the frame pointer: its stack pointer is only known not to be
    /// below the one given, because the record that was followed lies anywhere in the callee's frame.
    ReturnAddressAbove,
}

/// The address at which rules, symbols and lines of a frame are looked up.
#[inline(always)]
pub fn lookup_pc(pc: u64, kind: PcKind) -> u64 {
    match kind {
        PcKind::Instruction => pc,
        PcKind::ReturnAddress | PcKind::ReturnAddressAbove => pc.wrapping_sub(1),
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

    /// Reads the two words at `address`: a saved frame pointer mostly lies below the return address, and one read costs
    /// the BPF program half of two.
    ///
    /// # Errors
    /// As [`StackMemory::read_u64`], for either.
    #[inline(always)]
    fn read_pair(&self, address: u64) -> Result<(u64, u64), ReadFault> {
        Ok((self.read_u64(address)?, self.read_u64(address.wrapping_add(8))?))
    }

    /// Reads the three words at `address`, for the same reason.
    ///
    /// # Errors
    /// As [`StackMemory::read_u64`], for any.
    #[inline(always)]
    fn read_three(&self, address: u64) -> Result<[u64; 3], ReadFault> {
        let (first, second) = self.read_pair(address)?;
        Ok([first, second, self.read_u64(address.wrapping_add(16))?])
    }

    /// The stack pointer of the thread's own stack while it runs on another one, if it is known where that is parked.
    ///
    /// # Errors
    /// It is not.
    #[inline(always)]
    fn parked_sp(&self) -> Result<u64, ReadFault> {
        Err(ReadFault)
    }
}

/// Where rules come from.
pub trait UnwindRules {
    /// The row that holds at `lookup_pc`, see [`lookup_pc`]; [`Row::GAP`] for code without rows.
    fn row(&self, lookup_pc: u64) -> Row;

    /// Whether code can be at `lookup_pc`, as far as is known.
    fn is_code(&self, lookup_pc: u64) -> bool;

    /// Whether the row that was asked for last is one of a file, which hold whatever happens: where it leads is where
    /// the code goes on, also if nothing is known to be mapped there yet.
    fn is_certain(&self) -> bool {
        false
    }

    /// Whose code it is.
    fn machine(&self) -> Machine;

    /// Bits of a return address that are address, on AArch64: pointer authentication signs in the others. All ones
    /// where nothing is known about it.
    fn code_mask(&self) -> u64;
}

/// Every function keeps a frame pointer.
#[derive(Clone, Copy, Debug)]
pub struct FramePointers(pub Machine);

impl UnwindRules for FramePointers {
    #[inline(always)]
    fn row(&self, _lookup_pc: u64) -> Row {
        Row::GAP
    }

    #[inline(always)]
    fn is_code(&self, _lookup_pc: u64) -> bool {
        true
    }

    #[inline(always)]
    fn machine(&self) -> Machine {
        self.0
    }

    #[inline(always)]
    fn code_mask(&self) -> u64 {
        USER_ADDRESS_END - 1
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

impl Frame {
    /// The innermost frame: registers as they were when the sample was taken.
    #[inline(always)]
    pub const fn sampled(registers: Registers) -> Self {
        Self { registers, kind: PcKind::Instruction }
    }
}

const GAP: u8 = CfaKind::Gap as u8;
const SP: u8 = CfaKind::Sp as u8;
const FP: u8 = CfaKind::Fp as u8;
const FP_DEREF: u8 = CfaKind::FpDeref as u8;
const SP_DEREF: u8 = CfaKind::SpDeref as u8;
const SP_FAR: u8 = CfaKind::SpFar as u8;
/// This kind and those above it lead back from another stack, or, from far, always up.
const SP_SAVED: u8 = CfaKind::SpSaved as u8;
const FP_AWAY: u8 = CfaKind::FpAway as u8;
const FP_SENDER: u8 = CfaKind::FpSender as u8;
const PARKED: u8 = CfaKind::Parked as u8;
const PLT: u8 = CfaKind::Plt as u8;
const SIGNAL: u8 = CfaKind::Signal as u8;
const OUTERMOST: u8 = CfaKind::Outermost as u8;
const AT_CFA: u8 = FpKind::AtCfa as u8;
const AT_FP: u8 = FpKind::AtFp as u8;
const LOST: u8 = FpKind::Lost as u8;

/// The frame pointer of a caller whose is not known: aligned to nothing, so that no rule and no check believes it. A zero
/// would look like the end of a chain.
pub const LOST_FP: u64 = 1;

const BAD_FRAME: u8 = StopReason::BadFrame as u8;
const BAD_RETURN_ADDRESS: u8 = StopReason::BadReturnAddress as u8;
const ZERO_RETURN_ADDRESS: u8 = StopReason::ZeroReturnAddress as u8;
const UNSUPPORTED: u8 = StopReason::UnsupportedRule as u8;

/// Offset of `gregs` in the `ucontext` that a signal frame begins with, and the indices of three registers in it
/// (`arch/x86/include/uapi/asm/sigcontext.h`).
const X86_SIGNAL_REGISTERS: u64 = 40;
const X86_SIGNAL_RBP: u64 = X86_SIGNAL_REGISTERS + 10 * 8;
const X86_SIGNAL_RSP: u64 = X86_SIGNAL_REGISTERS + 15 * 8;
const X86_SIGNAL_RIP: u64 = X86_SIGNAL_REGISTERS + 16 * 8;

/// Offset of `regs` in the `rt_sigframe` at the stack pointer: 128 bytes of `siginfo`, 176 of the `ucontext`'s own, the
/// fault address; then x0 to x30, sp and pc (`arch/arm64/kernel/signal.c`, `include/uapi/asm/{ucontext,sigcontext}.h`).
const ARM_SIGNAL_REGISTERS: u64 = 128 + 176 + 8;
const ARM_SIGNAL_X29: u64 = ARM_SIGNAL_REGISTERS + 29 * 8;
const ARM_SIGNAL_X30: u64 = ARM_SIGNAL_REGISTERS + 30 * 8;
const ARM_SIGNAL_SP: u64 = ARM_SIGNAL_REGISTERS + 31 * 8;
const ARM_SIGNAL_PC: u64 = ARM_SIGNAL_REGISTERS + 32 * 8;

/// `mov x8, #139; svc #0`: what a signal handler of AArch64 returns to. Neither the kernel's vDSO (since 5.8) nor musl
/// describes it with call frame information; libgcc and libunwind know it by these bytes, too.
const ARM_SIGRETURN: u64 = 0xd400_0001_d280_1168;

/// The caller's frame, or why there is none.
///
/// Every accepted step but one over a signal frame, one back to the stack that code has left, and one from AArch64 code
/// that has no stack frame yet to what its link register holds, moves up the stack. The link register is known in the
/// frames that such a step can start from only, so that a walk cannot run in a circle; the limit on frames ends one over
/// forged signal frames and saved stack pointers.
///
/// Where there is no row, the frame pointer is believed only if `sp <= fp`, `fp - sp < MAX_FRAME_BYTES` and it is
/// 8-byte aligned. The same is tried where a row of generated code leads to no code: what has just been replaced still
/// has its predecessor's rows for some milliseconds, and most of it keeps frame pointers. Where the row has led is for whoever
/// answers [`UnwindRules::is_code`] to remember: it may be memory that is too new to be known
/// ([`FramePc::doubted`](crate::sample::FramePc::doubted)).
///
/// # Errors
/// The reason to stop.
#[inline(always)]
pub fn step<M: StackMemory, R: UnwindRules>(frame: Frame, memory: &M, rules: &R) -> Result<Frame, StopReason> {
    let Registers { pc, fp, .. } = frame.registers;
    let walk = Walk { memory, machine: rules.machine(), code_mask: rules.code_mask() };
    let row = rules.row(lookup_pc(pc, frame.kind));
    if row.cfa_kind() == GAP {
        return walk.without_row(frame);
    }
    // A failure keeps the frame at hand: the compiler would save registers without a value across the second attempt,
    // which the verifier refuses.
    let (caller, failed) = match walk.by_row(row, frame) {
        Ok(caller) => (caller, None),
        Err(reason) => (frame, Some(reason)),
    };
    let by_row = failed.map_or(Ok(caller), Err);
    let believed = match failed {
        None => rules.is_certain() || rules.is_code(lookup_pc(caller.registers.pc, caller.kind)),
        // A word that cannot be read is no sign of a wrong row: the frame pointer would skip callers in silence.
        // On AArch64 an unsupported rule mostly is one that names the link register in a caller.
        Some(reason) => match reason as u8 {
            BAD_FRAME | BAD_RETURN_ADDRESS | ZERO_RETURN_ADDRESS => false,
            UNSUPPORTED => walk.machine == Machine::X86_64,
            _ => true,
        },
    };
    if believed || (fp == 0 && walk.machine == Machine::X86_64) {
        return by_row;
    }
    match walk.without_row(frame) {
        Ok(caller) if rules.is_code(lookup_pc(caller.registers.pc, caller.kind)) => Ok(caller),
        _ => by_row,
    }
}

/// What a step reads and for which machine.
struct Walk<'m, M> {
    memory: &'m M,
    machine: Machine,
    code_mask: u64,
}

impl<M: StackMemory> Walk<'_, M> {
    #[inline(always)]
    fn by_row(&self, row: Row, frame: Frame) -> Result<Frame, StopReason> {
        let Registers { pc, sp, fp, .. } = frame.registers;
        let cfa = match row.cfa_kind() {
            SP if self.machine == Machine::X86_64 || frame.kind != PcKind::ReturnAddressAbove => {
                sp.wrapping_add_signed(row.cfa_offset_bytes())
            }
            // The frame pointer leads to where the caller's has been saved, which the row places in the frame.
            SP if row.fp_kind() == AT_CFA => fp.wrapping_sub(row.fp_offset_bytes().cast_unsigned()),
            SP => return Err(StopReason::NoFramePointer),
            SP_FAR if self.machine == Machine::X86_64 => sp.saturating_add(row.far_offset_bytes()),
            FP | FP_AWAY => fp.wrapping_add_signed(row.cfa_offset_bytes()),
            FP_DEREF => self.read(fp.wrapping_add_signed(row.cfa_offset_bytes()))?,
            SP_DEREF => self.read(sp.wrapping_add_signed(row.cfa_offset_bytes()))?.wrapping_add(8),
            SP_SAVED => {
                let (slot, beyond) = row.saved_sp_bytes();
                self.read(sp.wrapping_add(slot))?.wrapping_add(beyond)
            }
            // Behind the slot's push the return address is one word further up.
            PLT => sp.wrapping_add(if pc & 15 >= 11 { 16 } else { 8 }),
            SIGNAL => return self.over_signal(sp),
            FP_SENDER if self.machine == Machine::X86_64 => return self.by_sender(row, sp, fp),
            PARKED if self.machine == Machine::X86_64 => match self.memory.parked_sp() {
                Ok(parked) => parked.wrapping_add_signed(row.cfa_offset_bytes()),
                Err(ReadFault) => return Err(StopReason::UnsupportedRule),
            },
            OUTERMOST => return Err(StopReason::EndOfStack),
            _ => return Err(StopReason::UnsupportedRule),
        };
        match self.machine {
            Machine::X86_64 => {
                // A stack that code has moved to may lie anywhere.
                if cfa <= sp && row.cfa_kind() < SP_SAVED {
                    return Err(StopReason::BadFrame);
                }
                if row.fp_kind() == AT_CFA && row.fp_offset_bytes() == -16 {
                    let (caller_fp, return_address) = self.read_pair(cfa.wrapping_sub(16))?;
                    return self.caller(return_address, cfa, caller_fp);
                }
                let caller_fp = self.caller_fp(row, cfa, fp)?;
                self.caller(self.read(cfa.wrapping_sub(8))?, cfa, caller_fp)
            }
            Machine::Aarch64 => self.by_arm_row(row, cfa, frame),
        }
    }

    #[inline(always)]
    fn by_sender(&self, row: Row, sp: u64, fp: u64) -> Result<Frame, StopReason> {
        if row.cfa_offset_bytes() != SENDER_FROM_FP {
            return Err(StopReason::UnsupportedRule);
        }
        let words = self.memory.read_three(fp.wrapping_add_signed(SENDER_FROM_FP));
        let [sender, caller_fp, return_address] = words.map_err(|ReadFault| StopReason::ReadFault)?;
        // Before the frame is made the frame pointer is somebody else's, and anything lies there.
        if fp < sp || sender <= fp || sender.wrapping_sub(fp) >= MAX_FRAME_BYTES {
            return Err(StopReason::BadFrame);
        }
        self.caller(return_address, sender, caller_fp)
    }

    #[inline(always)]
    fn by_arm_row(&self, row: Row, cfa: u64, frame: Frame) -> Result<Frame, StopReason> {
        let Registers { sp, fp, lr, .. } = frame.registers;
        let in_register = row.return_code() == RETURN_CODE_LINK_REGISTER;
        if in_register && frame.kind != PcKind::Instruction {
            // It has called, and so overwritten, what the row says is still there.
            return Err(StopReason::UnsupportedRule);
        }
        if cfa < sp || (cfa == sp && !in_register) {
            return Err(StopReason::BadFrame);
        }
        let caller_fp = self.caller_fp(row, cfa, fp)?;
        let return_address = match row.return_code() {
            RETURN_CODE_BELOW_CFA => self.read(cfa.wrapping_sub(8))?,
            RETURN_CODE_LINK_REGISTER => lr,
            _ => self.read(cfa.wrapping_add_signed(row.return_offset_bytes()))?,
        };
        self.caller(return_address, cfa, caller_fp)
    }

    #[inline(always)]
    fn caller_fp(&self, row: Row, cfa: u64, fp: u64) -> Result<u64, StopReason> {
        match row.fp_kind() {
            AT_CFA => self.read(cfa.wrapping_add_signed(row.fp_offset_bytes())),
            AT_FP => self.read(fp.wrapping_add_signed(row.fp_offset_bytes())),
            LOST => Ok(LOST_FP),
            _ => Ok(fp),
        }
    }

    /// By what code that nothing describes can be recognised, or by the frame pointer.
    #[inline(always)]
    fn without_row(&self, frame: Frame) -> Result<Frame, StopReason> {
        let Registers { pc, sp, fp, .. } = frame.registers;
        match self.machine {
            Machine::X86_64 => self.by_frame_pointer(sp, fp),
            Machine::Aarch64 => {
                if self.is_sigreturn(pc, frame.kind) {
                    return self.over_signal(sp);
                }
                let caller = self.by_frame_pointer(sp, fp)?;
                Ok(Frame { kind: PcKind::ReturnAddressAbove, ..caller })
            }
        }
    }

    /// Whether a handler returns to here, or what it has returned to is at its second instruction or in its system call.
    ///
    /// One read for all three places: that is asked of every frame without a row, and the verifier walks through what
    /// follows for each way that a read can end. At the last word that is mapped it is not seen.
    #[inline(always)]
    fn is_sigreturn(&self, pc: u64, kind: PcKind) -> bool {
        let behind = match kind {
            PcKind::Instruction => 8,
            PcKind::ReturnAddress => 0,
            PcKind::ReturnAddressAbove => return false,
        };
        let Ok((first, second)) = self.memory.read_pair(pc.wrapping_sub(behind)) else { return false };
        first == ARM_SIGRETURN
            || (behind != 0 && (second == ARM_SIGRETURN || (first >> 32 | second << 32) == ARM_SIGRETURN))
    }

    /// `ra = *(fp + 8); fp = *fp`, and on x86-64 `cfa = fp + 16`, which elsewhere is the least that it can be.
    #[inline(always)]
    fn by_frame_pointer(&self, sp: u64, fp: u64) -> Result<Frame, StopReason> {
        if fp == 0 {
            return Err(StopReason::ZeroFramePointer);
        }
        if fp < sp || fp.wrapping_sub(sp) >= MAX_FRAME_BYTES || fp & 7 != 0 {
            return Err(StopReason::NoFramePointer);
        }
        let (saved, return_address) = self.read_pair(fp)?;
        self.caller(return_address, fp.wrapping_add(16), saved)
    }

    /// The frame that a signal interrupted, from the registers that the kernel has left at the stack pointer.
    #[inline(always)]
    fn over_signal(&self, sp: u64) -> Result<Frame, StopReason> {
        let at = |offset| self.read(sp.wrapping_add(offset));
        Ok(Frame::sampled(match self.machine {
            Machine::X86_64 => {
                Registers { pc: at(X86_SIGNAL_RIP)?, sp: at(X86_SIGNAL_RSP)?, fp: at(X86_SIGNAL_RBP)?, lr: 0 }
            }
            Machine::Aarch64 => Registers {
                pc: at(ARM_SIGNAL_PC)?,
                sp: at(ARM_SIGNAL_SP)?,
                fp: at(ARM_SIGNAL_X29)?,
                lr: at(ARM_SIGNAL_X30)?,
            },
        }))
    }

    #[inline(always)]
    fn caller(&self, return_address: u64, cfa: u64, fp: u64) -> Result<Frame, StopReason> {
        let pc = match self.machine {
            Machine::X86_64 => return_address,
            Machine::Aarch64 => return_address & self.code_mask,
        };
        if pc == 0 {
            return Err(StopReason::ZeroReturnAddress);
        }
        if !(MIN_CODE_ADDRESS..USER_ADDRESS_END).contains(&pc) {
            return Err(StopReason::BadReturnAddress);
        }
        Ok(Frame { registers: Registers { pc, sp: cfa, fp, lr: 0 }, kind: PcKind::ReturnAddress })
    }

    #[inline(always)]
    fn read(&self, address: u64) -> Result<u64, StopReason> {
        self.memory.read_u64(address).map_err(|ReadFault| StopReason::ReadFault)
    }

    #[inline(always)]
    fn read_pair(&self, address: u64) -> Result<(u64, u64), StopReason> {
        self.memory.read_pair(address).map_err(|ReadFault| StopReason::ReadFault)
    }
}

#[cfg(test)]
mod tests;
