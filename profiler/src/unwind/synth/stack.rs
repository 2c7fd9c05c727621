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
    cfa: Cfa,
    /// Where the caller's frame pointer has been pushed, in bytes below the CFA.
    fp_below_cfa: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cfa {
    /// `sp + n`.
    Sp(i64),
    /// `fp + n`.
    Fp(i64),
    /// `sp` points to another stack; once it is loaded back, the CFA is at `sp + n`.
    Away(i64),
    Unknown,
}

impl StackState for Stack {
    const ENTRY: Self = Self { cfa: Cfa::Sp(SLOT), fp_below_cfa: None };

    fn is_known(&self) -> bool {
        self.cfa != Cfa::Unknown
    }

    fn rule(&self) -> Rule {
        let rule = match self.cfa {
            Cfa::Sp(offset) => Rule::with_cfa(CfaKind::Sp, offset),
            Cfa::Fp(offset) => Rule::with_cfa(CfaKind::Fp, offset),
            Cfa::Away(_) | Cfa::Unknown => return Rule::UNSUPPORTED,
        };
        self.fp_below_cfa.map_or(rule, |below| rule.with_fp(FpKind::AtCfa, -below))
    }
}

impl Stack {
    /// The stack behind an instruction.
    pub(super) fn after(self, instruction: &Instruction) -> (Self, Effect) {
        let first = if instruction.op_count() > 0 { instruction.op0_kind() } else { OpKind::NearBranch16 };
        let writes_first = !matches!(instruction.mnemonic(), Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push);
        let target =
            if first == OpKind::Register && writes_first { instruction.op0_register() } else { Register::None };
        let after = match instruction.code() {
            Code::Push_r64 if instruction.op0_register() == Register::RBP => self.push_fp(),
            Code::Leaveq => self.leave(),
            Code::Pop_r64 if target == Register::RBP => self.pop_fp(),
            Code::Mov_r64_rm64 | Code::Mov_rm64_r64 if is_move(instruction, Register::RBP, Register::RSP) => {
                return self.set_fp();
            }
            Code::Mov_r64_rm64 | Code::Mov_rm64_r64 if is_move(instruction, Register::RSP, Register::RBP) => {
                self.back_from_fp()
            }
            _ => match (instruction.mnemonic(), target.full_register()) {
                (Mnemonic::Push | Mnemonic::Pushfq, _) => self.moved(push_bytes(instruction)),
                (Mnemonic::Pop | Mnemonic::Popfq, target) if target != Register::RSP => {
                    self.moved(-push_bytes(instruction))
                }
                (Mnemonic::Xchg, _) if touches_second(instruction, Register::RSP) => Self::UNKNOWN,
                (Mnemonic::Enter, _) => Self::UNKNOWN,
                (_, Register::RSP) => self.write_sp(instruction),
                (_, Register::RBP) => self.write_fp(),
                _ => self,
            },
        };
        (after, Effect::None)
    }

    const UNKNOWN: Self = Self { cfa: Cfa::Unknown, fp_below_cfa: None };

    /// `sp` goes down by so many bytes.
    fn moved(self, bytes: i64) -> Self {
        let Cfa::Sp(offset) = self.cfa else { return self };
        let offset = offset.saturating_add(bytes);
        // Beyond its own frame a function has given up the return address.
        if (SLOT..MAX_DEPTH).contains(&offset) { Self { cfa: Cfa::Sp(offset), ..self } } else { Self::UNKNOWN }
    }

    fn push_fp(self) -> Self {
        let pushed = self.moved(SLOT);
        match pushed.cfa {
            Cfa::Sp(offset) if pushed.fp_below_cfa.is_none() => Self { fp_below_cfa: Some(offset), ..pushed },
            _ => pushed,
        }
    }

    fn set_fp(self) -> (Self, Effect) {
        let Cfa::Sp(offset) = self.cfa else { return (self.write_fp(), Effect::None) };
        let effect = if self.fp_below_cfa == Some(offset) { Effect::FrameSetUp } else { Effect::None };
        (Self { cfa: Cfa::Fp(offset), ..self }, effect)
    }

    fn back_from_fp(self) -> Self {
        match self.cfa {
            Cfa::Fp(offset) => Self { cfa: Cfa::Sp(offset), ..self },
            _ => Self::UNKNOWN,
        }
    }

    fn leave(self) -> Self {
        self.back_from_fp().pop_fp()
    }

    /// With the CFA at `fp + n`, `sp` is back at the frame's own end: that is what popping it means.
    fn pop_fp(self) -> Self {
        let offset = match self.cfa {
            Cfa::Sp(offset) | Cfa::Fp(offset) => offset,
            Cfa::Away(_) | Cfa::Unknown => return self,
        };
        match self.fp_below_cfa {
            Some(below) if below == offset => Self { cfa: Cfa::Sp(offset), fp_below_cfa: None }.moved(-SLOT),
            _ if self.cfa == Cfa::Fp(offset) => Self::UNKNOWN,
            _ => self.moved(-SLOT),
        }
    }

    fn write_fp(self) -> Self {
        if matches!(self.cfa, Cfa::Fp(_)) { Self::UNKNOWN } else { self }
    }

    fn write_sp(self, instruction: &Instruction) -> Self {
        let by_immediate = || instruction.immediate(1).cast_signed();
        match instruction.mnemonic() {
            Mnemonic::Sub if has_immediate(instruction) => self.moved(by_immediate()),
            Mnemonic::Add if has_immediate(instruction) => self.moved(by_immediate().saturating_neg()),
            Mnemonic::Lea if is_sp_relative(instruction) => {
                self.moved(instruction.memory_displacement64().cast_signed().saturating_neg())
            }
            mnemonic => match self.cfa {
                Cfa::Fp(_) => self,
                Cfa::Sp(offset) if matches!(mnemonic, Mnemonic::Mov | Mnemonic::Lea) => {
                    Self { cfa: Cfa::Away(offset), ..self }
                }
                Cfa::Away(offset) if mnemonic == Mnemonic::Mov => Self { cfa: Cfa::Sp(offset), ..self },
                _ => Self::UNKNOWN,
            },
        }
    }
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

fn is_sp_relative(instruction: &Instruction) -> bool {
    instruction.op0_register() == Register::RSP
        && instruction.memory_base() == Register::RSP
        && instruction.memory_index() == Register::None
}

/// 8, or 2 with an operand-size prefix.
fn push_bytes(instruction: &Instruction) -> i64 {
    i64::from(instruction.stack_pointer_increment()).abs()
}
