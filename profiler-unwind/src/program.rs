//! Evaluates call frame instructions for the three registers that rows need.

use gimli::{
    BaseAddresses, CallFrameInstruction, CommonInformationEntry, FrameDescriptionEntry, Register, Section,
    UnwindExpression, UnwindSection,
};
use jitprof_common::machine::Machine;
use jitprof_common::row::{CfaKind, FpKind, Rule};

use super::eh_frame::Bytes;
use super::expression::{Known, classify};
use super::machine::Registers;
use super::stats::Unsupported;

/// States remembered at a time. Compilers nest one deep.
const MAX_REMEMBERED: usize = 16;

/// The most bytes of slots whose two rules are written out: 64 k slots.
const MAX_EXPANDED_PLT: u64 = 1 << 20;
/// Bytes of a slot of the procedure linkage table.
const PLT_SLOT: u64 = 16;
/// Where a push ends in slots that [`CfaKind::Plt`] describes.
const PLT_PUSH_END: u8 = 11;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cfa {
    Unset,
    Sum(Register, i64),
    Expression(Known),
}

/// How the caller's value of a register is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Saved {
    Unset,
    Undefined,
    Same,
    /// In memory at an offset from the CFA.
    AtCfa(i64),
    /// In memory at the address that an expression computes.
    At(Known),
    Other,
}

/// The rules in effect at an address.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    cfa: Cfa,
    return_address: Saved,
    frame_pointer: Saved,
}

impl State {
    const UNSET: Self = Self { cfa: Cfa::Unset, return_address: Saved::Unset, frame_pointer: Saved::Unset };
}

/// What one function's instructions are run with.
pub(super) struct Evaluation<'e> {
    pub(super) registers: Registers,
    pub(super) initial: State,
    /// Rules are wanted up to here.
    pub(super) end: u64,
    pub(super) budget: &'e mut u64,
    /// Rules of linkage slots that may still be written out.
    pub(super) slot_rules: &'e mut u64,
    /// Rules that a function may have.
    pub(super) max_rules: usize,
    pub(super) rules: &'e mut Vec<(u64, Rule)>,
    pub(super) unsupported: &'e mut Unsupported,
}

/// The state that a common entry's instructions leave; `None` if they make no sense.
pub(super) fn run_initial<'a, S>(
    section: &S,
    bases: &BaseAddresses,
    cie: &CommonInformationEntry<Bytes<'a>>,
    registers: Registers,
    budget: &mut u64,
) -> Option<State>
where
    S: Section<Bytes<'a>> + UnwindSection<Bytes<'a>>,
{
    if cie.return_address_register() != registers.return_address {
        return None;
    }
    let mut steps =
        Steps { section, registers, data_align: cie.data_alignment_factor(), initial: None, remembered: vec![] };
    let mut state = State::UNSET;
    let mut instructions = cie.instructions(section, bases);
    while let Some(instruction) = instructions.next().ok()? {
        *budget = budget.checked_sub(1)?;
        steps.apply(&mut state, instruction)?;
    }
    Some(state)
}

/// Writes a function's rules; `None` if its instructions make no sense or the budget ends.
pub(super) fn run_fde<'a, S>(
    section: &S,
    bases: &BaseAddresses,
    fde: &FrameDescriptionEntry<Bytes<'a>>,
    evaluation: &mut Evaluation<'_>,
) -> Option<()>
where
    S: Section<Bytes<'a>> + UnwindSection<Bytes<'a>>,
{
    let mut address = fde.initial_address();
    if fde.is_signal_trampoline() {
        evaluation.rules.push((address, Rule::SIGNAL));
        return Some(());
    }
    let cie = fde.cie();
    let mut state = evaluation.initial;
    let mut steps = Steps {
        section,
        registers: evaluation.registers,
        data_align: cie.data_alignment_factor(),
        initial: Some(state),
        remembered: Vec::new(),
    };
    let mut instructions = fde.instructions(section, bases);
    while let Some(instruction) = instructions.next().ok()? {
        *evaluation.budget = evaluation.budget.checked_sub(1)?;
        let next = match instruction {
            CallFrameInstruction::SetLoc { address: next } => Some(next).filter(|next| *next >= address)?,
            CallFrameInstruction::AdvanceLoc { delta } => {
                address.checked_add(u64::from(delta).wrapping_mul(cie.code_alignment_factor()))?
            }
            other => {
                steps.apply(&mut state, other)?;
                continue;
            }
        };
        evaluation.write(&state, address, next)?;
        address = next;
        if address >= evaluation.end {
            return Some(());
        }
    }
    evaluation.write(&state, address, evaluation.end)
}

impl Evaluation<'_> {
    /// The state holds from `from` up to `to`, as far as rules are wanted; `None` if there are too many. Each rule counts
    /// like an instruction.
    fn write(&mut self, state: &State, from: u64, to: u64) -> Option<()> {
        let to = to.min(self.end);
        if to <= from {
            return Some(());
        }
        *self.budget = self.budget.checked_sub(1).filter(|_| self.rules.len() < self.max_rules)?;
        if let Cfa::Expression(Known::Plt(push_end)) = state.cfa
            && push_end != PLT_PUSH_END
            && to - from <= MAX_EXPANDED_PLT
        {
            return self.write_slots(push_end, from, to);
        }
        let rule = state.rule(self.registers).unwrap_or_else(|reason| {
            let count = reason(self.unsupported);
            *count = count.saturating_add(1);
            Rule::UNSUPPORTED
        });
        self.rules.push((from, rule));
        Some(())
    }

    /// Slots whose push ends elsewhere have two rules each.
    fn write_slots(&mut self, push_end: u8, from: u64, to: u64) -> Option<()> {
        let pushed = Rule::with_cfa(CfaKind::Sp, 16);
        let mut slot = from & !(PLT_SLOT - 1);
        while slot < to {
            *self.slot_rules = self.slot_rules.checked_sub(2)?;
            let push = slot.saturating_add(u64::from(push_end));
            let next = slot.saturating_add(PLT_SLOT);
            if push > from {
                self.rules.push((slot.max(from), Rule::ENTRY));
            }
            if push < to && next > from {
                self.rules.push((push.max(from), pushed));
            }
            slot = next;
        }
        Some(())
    }
}

/// Where a reason is counted.
type Reason = fn(&mut Unsupported) -> &mut u64;

impl State {
    fn rule(&self, registers: Registers) -> Result<Rule, Reason> {
        if self.return_address == Saved::Undefined {
            return Ok(Rule::OUTERMOST);
        }
        let cfa = self.cfa_rule(registers)?;
        let rule = match self.frame_pointer {
            // A frame pointer without a rule has not been touched; one that is undefined is of no use to any caller.
            Saved::Unset | Saved::Same | Saved::Undefined => cfa,
            Saved::AtCfa(offset) => cfa.with_fp(FpKind::AtCfa, offset),
            Saved::At(Known::Sum(register, offset)) if register == registers.frame_pointer => {
                cfa.with_fp(FpKind::AtFp, offset)
            }
            Saved::At(_) | Saved::Other => return Err(|counts| &mut counts.frame_pointer),
        };
        let rule = match (self.return_address, registers.machine) {
            // What `call` does.
            (Saved::AtCfa(-8), Machine::X86_64) => rule,
            (Saved::AtCfa(offset), Machine::Aarch64) => rule.with_return_address(offset),
            // A link register without a rule has not been touched.
            (Saved::Unset | Saved::Same, Machine::Aarch64) => rule.with_link_register(),
            _ => return Err(|counts| &mut counts.return_address),
        };
        if rule.cfa == CfaKind::Unsupported { Err(|counts| &mut counts.offset) } else { Ok(rule) }
    }

    fn cfa_rule(&self, registers: Registers) -> Result<Rule, Reason> {
        let (kind, offset) = match self.cfa {
            Cfa::Sum(register, offset) | Cfa::Expression(Known::Sum(register, offset)) => {
                (sum_kind(register, registers).ok_or::<Reason>(|counts| &mut counts.cfa_register)?, offset)
            }
            Cfa::Expression(Known::Deref(register, offset)) if register == registers.frame_pointer => {
                (CfaKind::FpDeref, offset)
            }
            Cfa::Expression(Known::DerefBehind(register, offset)) if register == registers.stack_pointer => {
                (CfaKind::SpDeref, offset)
            }
            Cfa::Expression(Known::Plt(PLT_PUSH_END)) => return Ok(Rule::PLT),
            Cfa::Expression(_) => return Err(|counts| &mut counts.cfa_expression),
            Cfa::Unset => return Err(|counts| &mut counts.cfa_register),
        };
        let rule = Rule::with_cfa(kind, offset);
        let is_too_far = rule.cfa == CfaKind::SpFar && registers.machine == Machine::Aarch64;
        if rule.cfa == CfaKind::Unsupported || is_too_far { Err(|counts| &mut counts.offset) } else { Ok(rule) }
    }
}

fn sum_kind(register: Register, registers: Registers) -> Option<CfaKind> {
    if register == registers.stack_pointer {
        Some(CfaKind::Sp)
    } else if register == registers.frame_pointer {
        Some(CfaKind::Fp)
    } else {
        None
    }
}

/// Applies instructions other than those that advance the address.
struct Steps<'s, S> {
    section: &'s S,
    registers: Registers,
    data_align: i64,
    /// What `restore` goes back to; `None` in a common entry.
    initial: Option<State>,
    remembered: Vec<State>,
}

impl<'a, S> Steps<'_, S>
where
    S: Section<Bytes<'a>> + UnwindSection<Bytes<'a>>,
{
    fn apply(&mut self, state: &mut State, instruction: CallFrameInstruction<usize>) -> Option<()> {
        use CallFrameInstruction as I;
        match instruction {
            I::DefCfa { register, offset } => state.cfa = Cfa::Sum(register, offset.cast_signed()),
            I::DefCfaSf { register, factored_offset } => state.cfa = Cfa::Sum(register, self.scaled(factored_offset)),
            I::DefCfaRegister { register } => match &mut state.cfa {
                Cfa::Sum(current, _) => *current = register,
                Cfa::Unset | Cfa::Expression(_) => return None,
            },
            I::DefCfaOffset { offset } => *cfa_offset(state)? = offset.cast_signed(),
            I::DefCfaOffsetSf { factored_offset } => *cfa_offset(state)? = self.scaled(factored_offset),
            I::DefCfaExpression { expression } => state.cfa = Cfa::Expression(self.known(&expression)),
            I::Undefined { register } => self.save(state, register, Saved::Undefined),
            I::SameValue { register } => self.save(state, register, Saved::Same),
            I::Offset { register, factored_offset } => {
                self.save(state, register, Saved::AtCfa(self.scaled(factored_offset.cast_signed())));
            }
            I::OffsetExtendedSf { register, factored_offset } => {
                self.save(state, register, Saved::AtCfa(self.scaled(factored_offset)));
            }
            I::Expression { register, expression } => {
                let address = if self.is_kept(register) { self.known(&expression) } else { Known::Other };
                self.save(state, register, Saved::At(address));
            }
            I::ValOffset { register, .. }
            | I::ValOffsetSf { register, .. }
            | I::ValExpression { register, .. }
            | I::Register { dest_register: register, .. } => self.save(state, register, Saved::Other),
            I::Restore { register } => self.restore(state, register)?,
            I::RememberState if self.remembered.len() < MAX_REMEMBERED => self.remembered.push(*state),
            I::RememberState => return None,
            I::RestoreState => *state = self.remembered.pop()?,
            // In a common entry nothing is advanced; the sizes of arguments concern exceptions.
            I::SetLoc { .. } | I::AdvanceLoc { .. } | I::ArgsSize { .. } | I::NegateRaState | I::Nop => {}
        }
        Some(())
    }

    fn scaled(&self, factored: i64) -> i64 {
        factored.wrapping_mul(self.data_align)
    }

    fn known(&self, expression: &UnwindExpression<usize>) -> Known {
        let known = expression.get(self.section).map_or(Known::Other, |expression| classify(expression.0.slice()));
        // The slots' form names registers by the numbers of x86-64.
        let is_foreign = matches!(known, Known::Plt(_)) && self.registers.machine != Machine::X86_64;
        if is_foreign { Known::Other } else { known }
    }

    fn is_kept(&self, register: Register) -> bool {
        register == self.registers.return_address || register == self.registers.frame_pointer
    }

    fn save(&self, state: &mut State, register: Register, saved: Saved) {
        if register == self.registers.return_address {
            state.return_address = saved;
        } else if register == self.registers.frame_pointer {
            state.frame_pointer = saved;
        }
    }

    fn restore(&self, state: &mut State, register: Register) -> Option<()> {
        let initial = self.initial?;
        if register == self.registers.return_address {
            state.return_address = initial.return_address;
        } else if register == self.registers.frame_pointer {
            state.frame_pointer = initial.frame_pointer;
        }
        Some(())
    }
}

fn cfa_offset(state: &mut State) -> Option<&mut i64> {
    match &mut state.cfa {
        Cfa::Sum(_, offset) => Some(offset),
        Cfa::Unset | Cfa::Expression(_) => None,
    }
}
