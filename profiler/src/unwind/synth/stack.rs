//! What an instruction does to the stack.

use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};
use profiler_common::row::{CfaKind, FpKind, Rule};

use super::{Effect, StackState};

/// Bytes that a push takes.
const SLOT: i64 = 8;

/// Depths beyond are no functions' frames, and rows could not express them.
const MAX_DEPTH: i64 = 256 << 10;

/// Where the CFA and the caller's frame pointer are before an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stack {
    sp: Sp,
    /// `cfa = rbp + n`.
    frame: Option<i64>,
    /// Where the caller's frame pointer has been pushed, in bytes below the CFA.
    fp_below_cfa: Option<i64>,
}

/// Where the stack pointer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sp {
    /// `cfa = sp + n`.
    At(i64),
    /// It points to another stack; once it is loaded back, the CFA is at `sp + n`.
    Away(i64),
    /// Anywhere, but `cfa = *(sp + slot) + beyond`.
    Saved {
        slot: i64,
        beyond: i64,
    },
    /// That depends on the path.
    Mixed,
    Unknown,
}

impl StackState for Stack {
    const ENTRY: Self = Self { sp: Sp::At(SLOT), frame: None, fp_below_cfa: None };

    fn is_known(&self) -> bool {
        self.frame.is_some() || !matches!(self.sp, Sp::Mixed | Sp::Unknown)
    }

    fn meet(self, other: Self) -> Option<Self> {
        let sp = if self.sp == other.sp { self.sp } else { Sp::Mixed };
        let met = Self { sp, frame: self.frame.filter(|_| self.frame == other.frame), ..self };
        (self.fp_below_cfa == other.fp_below_cfa && met.is_known()).then_some(met)
    }

    fn rule(&self) -> Rule {
        let rule = match (self.frame, self.sp) {
            // Whatever a call of unknown code does to sp.
            (Some(offset), _) => Rule::with_cfa(CfaKind::Fp, offset),
            (None, Sp::At(offset)) => Rule::with_cfa(CfaKind::Sp, offset),
            (None, Sp::Saved { slot, beyond }) => Rule::with_saved_sp(slot, beyond),
            (None, Sp::Away(_) | Sp::Mixed | Sp::Unknown) => return Rule::UNSUPPORTED,
        };
        if rule == Rule::UNSUPPORTED {
            return rule;
        }
        self.fp_below_cfa.map_or(rule, |below| rule.with_fp(FpKind::AtCfa, -below))
    }
}

impl Stack {
    /// The stack behind an instruction.
    pub(super) fn after(self, instruction: &Instruction) -> (Self, Effect) {
        let stack = if self.is_saved_in(instruction) { self.sp_lost() } else { self };
        let target = written(instruction);
        let after = match instruction.code() {
            Code::Push_r64 if instruction.op0_register() == Register::RBP => stack.push_fp(),
            Code::Leaveq => return stack.back_from_fp(0).pop_fp(),
            Code::Pop_r64 if target == Register::RBP => return stack.pop_fp(),
            Code::Mov_r64_rm64 | Code::Mov_rm64_r64 if is_move(instruction, Register::RBP, Register::RSP) => {
                return stack.set_fp();
            }
            Code::Mov_r64_rm64 | Code::Mov_rm64_r64 if is_move(instruction, Register::RSP, Register::RBP) => {
                stack.back_from_fp(0)
            }
            Code::Mov_rm64_r64 if stored_fp(instruction).is_some() => stack.store_fp(stored_fp(instruction)),
            _ => match (instruction.mnemonic(), target) {
                (Mnemonic::Push | Mnemonic::Pushfq, _) => stack.moved(push_bytes(instruction)),
                (Mnemonic::Pop | Mnemonic::Popfq, target) if target != Register::RSP => {
                    stack.moved(-push_bytes(instruction))
                }
                (Mnemonic::Call, _) => stack.called(),
                (Mnemonic::Xchg, _) if touches_second(instruction, Register::RSP) => Self::UNKNOWN,
                (Mnemonic::Xchg | Mnemonic::Xadd, target) if touches_second(instruction, Register::RBP) => {
                    return if target == Register::RSP { (Self::UNKNOWN, Effect::None) } else { stack.write_fp() };
                }
                (Mnemonic::Enter, _) => Self::UNKNOWN,
                (_, Register::RSP) => stack.write_sp(instruction),
                (_, Register::RBP) => return stack.write_fp(),
                _ => stack,
            },
        };
        (after, Effect::None)
    }

    /// The same where `rbp` leads to the CFA, without knowing `sp` beside it.
    pub(super) fn by_frame_alone(self) -> Self {
        if self.frame.is_some() { Self { sp: Sp::Unknown, ..self } } else { self }
    }

    const UNKNOWN: Self = Self { sp: Sp::Unknown, frame: None, fp_below_cfa: None };

    fn sp_lost(self) -> Self {
        if self.frame.is_some() { Self { sp: Sp::Unknown, ..self } } else { Self::UNKNOWN }
    }

    /// `sp` is so many bytes below the CFA. Beyond its own frame a function has given up the return address.
    fn at(self, offset: i64) -> Self {
        if (SLOT..MAX_DEPTH).contains(&offset) { Self { sp: Sp::At(offset), ..self } } else { self.sp_lost() }
    }

    /// `sp` goes down by so many bytes.
    fn moved(self, bytes: i64) -> Self {
        match self.sp {
            Sp::At(offset) => self.at(offset.saturating_add(bytes)),
            Sp::Saved { slot, beyond } => match slot.saturating_add(bytes) {
                slot @ 0..MAX_DEPTH => Self { sp: Sp::Saved { slot, beyond }, ..self },
                _ => self.sp_lost(),
            },
            Sp::Away(_) | Sp::Mixed | Sp::Unknown => self,
        }
    }

    fn push_fp(self) -> Self {
        let pushed = self.moved(SLOT);
        match pushed.sp {
            Sp::At(offset) if pushed.fp_below_cfa.is_none() && pushed.frame.is_none() => {
                Self { fp_below_cfa: Some(offset), ..pushed }
            }
            Sp::Mixed | Sp::Unknown => pushed.store_fp(Some(0)),
            _ => pushed,
        }
    }

    /// `rbp` is stored so many bytes above `sp`, which nothing else leads from to the CFA.
    fn store_fp(self, slot: Option<i64>) -> Self {
        match (slot, self.frame, self.sp) {
            (Some(slot), Some(beyond), Sp::Mixed | Sp::Unknown) if (0..MAX_DEPTH).contains(&slot) => {
                Self { sp: Sp::Saved { slot, beyond }, ..self }
            }
            _ => self,
        }
    }

    /// Whether the instruction writes to where the stack pointer is kept.
    fn is_saved_in(&self, instruction: &Instruction) -> bool {
        let Sp::Saved { slot, .. } = self.sp else { return false };
        let bytes = i64::try_from(instruction.memory_size().size()).unwrap_or(0).max(SLOT);
        stored_at(instruction).is_some_and(|at| at < slot.saturating_add(SLOT) && slot < at.saturating_add(bytes))
    }

    /// V8's callees take their arguments off the stack. Its functions have a standard frame.
    fn called(self) -> Self {
        let is_standard = self.frame.is_some() && self.frame == self.fp_below_cfa;
        if is_standard { self.sp_lost() } else { self }
    }

    fn set_fp(self) -> (Self, Effect) {
        let Sp::At(offset) = self.sp else { return self.write_fp() };
        let effect = if self.fp_below_cfa == Some(offset) { Effect::FrameSetUp } else { Effect::None };
        (Self { frame: Some(offset), ..self }, effect)
    }

    /// `sp = rbp + bytes`.
    fn back_from_fp(self, bytes: i64) -> Self {
        match self.frame {
            Some(offset) if bytes == 0 => Self { sp: Sp::At(offset), frame: None, ..self },
            Some(offset) => self.at(offset.saturating_sub(bytes)),
            None => Self::UNKNOWN,
        }
    }

    /// Where only the frame pointer leads to the CFA, `sp` is back at the frame's own end: popping it means that.
    fn pop_fp(self) -> (Self, Effect) {
        let sp = match self.sp {
            Sp::At(offset) => Some(offset),
            Sp::Mixed | Sp::Unknown => self.frame,
            Sp::Away(_) | Sp::Saved { .. } => None,
        };
        let end = sp.filter(|_| sp == self.fp_below_cfa);
        match end {
            Some(offset) => {
                let restored = Self { sp: Sp::At(offset), frame: None, fp_below_cfa: None };
                (restored.moved(-SLOT), Effect::None)
            }
            None => self.moved(-SLOT).write_fp(),
        }
    }

    fn write_fp(self) -> (Self, Effect) {
        let after = Self { frame: None, ..self };
        match self.sp {
            // What follows would depend on the path, too.
            Sp::Mixed => (Self::UNKNOWN, Effect::Unclear),
            Sp::Unknown => (Self::UNKNOWN, Effect::None),
            Sp::At(_) | Sp::Away(_) | Sp::Saved { .. } => (after, Effect::None),
        }
    }

    fn write_sp(self, instruction: &Instruction) -> Self {
        let by_immediate = || instruction.immediate(1).cast_signed();
        let displacement = instruction.memory_displacement64().cast_signed();
        match (instruction.mnemonic(), self.sp) {
            (Mnemonic::Sub, _) if has_immediate(instruction) => self.moved(by_immediate()),
            (Mnemonic::Add, _) if has_immediate(instruction) => self.moved(by_immediate().saturating_neg()),
            (Mnemonic::Lea, _) if is_relative(instruction, Register::RSP) => self.moved(displacement.saturating_neg()),
            (Mnemonic::Lea, _) if is_relative(instruction, Register::RBP) && self.frame.is_some() => {
                self.back_from_fp(displacement)
            }
            (Mnemonic::Mov, Sp::Saved { slot, beyond })
                if is_relative(instruction, Register::RSP) && displacement == slot =>
            {
                self.at(beyond)
            }
            (Mnemonic::Pop, Sp::Saved { slot: 0, beyond }) => self.at(beyond),
            _ if self.frame.is_some() => self.sp_lost(),
            (Mnemonic::Mov | Mnemonic::Lea, Sp::At(offset)) => Self { sp: Sp::Away(offset), ..self },
            (Mnemonic::Mov, Sp::Away(offset)) => Self { sp: Sp::At(offset), ..self },
            _ => Self::UNKNOWN,
        }
    }
}

/// The register that an instruction writes first of all, as a whole.
fn written(instruction: &Instruction) -> Register {
    let reads_only = matches!(
        instruction.mnemonic(),
        Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push | Mnemonic::Call | Mnemonic::Jmp | Mnemonic::Bt
    );
    let is_register = instruction.op_count() > 0 && instruction.op0_kind() == OpKind::Register;
    if is_register && !reads_only { instruction.op0_register().full_register() } else { Register::None }
}

/// Where an instruction stores, in bytes from `sp`.
fn stored_at(instruction: &Instruction) -> Option<i64> {
    let is_store = instruction.op_count() > 0
        && instruction.op0_kind() == OpKind::Memory
        && !matches!(instruction.mnemonic(), Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push | Mnemonic::Bt);
    let is_there = is_store && instruction.memory_base() == Register::RSP;
    (is_there && instruction.memory_index() == Register::None)
        .then(|| instruction.memory_displacement64().cast_signed())
}

/// Where an instruction stores `rbp`, in bytes from `sp`.
fn stored_fp(instruction: &Instruction) -> Option<i64> {
    stored_at(instruction).filter(|_| touches_second(instruction, Register::RBP))
}

fn is_move(instruction: &Instruction, target: Register, source: Register) -> bool {
    instruction.op0_kind() == OpKind::Register
        && instruction.op1_kind() == OpKind::Register
        && instruction.op0_register() == target
        && instruction.op1_register() == source
}

fn touches_second(instruction: &Instruction, register: Register) -> bool {
    instruction.op1_kind() == OpKind::Register && instruction.op1_register().full_register() == register
}

fn has_immediate(instruction: &Instruction) -> bool {
    instruction.op0_register() == Register::RSP
        && matches!(instruction.op1_kind(), OpKind::Immediate8to64 | OpKind::Immediate32to64)
}

/// `target, [base + n]`.
fn is_relative(instruction: &Instruction, base: Register) -> bool {
    instruction.op0_register() == Register::RSP
        && instruction.op1_kind() == OpKind::Memory
        && instruction.memory_base() == base
        && instruction.memory_index() == Register::None
        && instruction.segment_prefix() == Register::None
}

/// 8, or 2 with an operand-size prefix.
fn push_bytes(instruction: &Instruction) -> i64 {
    i64::from(instruction.stack_pointer_increment()).abs()
}
