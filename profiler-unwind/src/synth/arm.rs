//! AArch64: what its instructions do to the stack and where they go on.
//!
//! All are four bytes and few touch the stack, so the forms are told apart here (Arm Architecture Reference Manual,
//! C4.1). What a form does not cover leaves the stack as it is, unless it writes x29, x30 or sp: then what depended on
//! that register is unknown from there on.
//!
//! ```text
//! entry                       cfa = sp; ra = lr
//! stp x29, x30, [sp, #-n]!    cfa = sp + n; fp = *(cfa - n); ra = *(cfa - n + 8)
//! add x29, sp, #n             cfa = fp + m from here on, whatever happens to sp
//! add sp, x29, #n             cfa = sp + m again
//! ldp x29, x30, [sp], #n      cfa = sp; ra = lr
//! bl, blr                     lr is the callee's: it must have been saved
//! ret                         must find cfa = sp, ra = lr and the caller's fp
//! ```

use jitprof_common::row::{CfaKind, FpKind, Rule};

use super::instruction::Next;
use super::{Decoded, Effect, Instructions, StackState};

const FP: u32 = 29;
const LR: u32 = 30;
const SP: u32 = 31;
/// Depths beyond are no functions' frames, and rows could not express them.
const MAX_DEPTH: i64 = 256 << 10;

/// A function's bytes.
pub(super) struct Code<'a> {
    pub(super) start: u64,
    pub(super) code: &'a [u8],
}

impl Instructions for Code<'_> {
    type Stack = Stack;

    fn decode(&mut self, at: usize, stack: Stack) -> Option<Decoded<Stack>> {
        let word = u32::from_le_bytes(*self.code.get(at..)?.first_chunk()?);
        // Permanently undefined: what stands between functions and behind constants.
        if word >> 16 == 0 {
            return None;
        }
        let pc = self.start.wrapping_add(u64::try_from(at).ok()?);
        let (after, effect) = stack.after(word);
        Some(Decoded { length: 4, after, effect, next: next_of(word, pc) })
    }
}

/// Where the CFA and what has been saved are before an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stack {
    /// `cfa = sp + n`.
    sp: Option<i64>,
    /// `cfa = x29 + n`.
    frame: Option<i64>,
    fp: Saved,
    lr: Saved,
}

/// Where the caller's value of a register is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Saved {
    /// In the register.
    Not,
    /// So many bytes below the CFA.
    Below(i64),
    /// Nowhere that is known.
    Lost,
}

impl StackState for Stack {
    const ENTRY: Self = Self { sp: Some(0), frame: None, fp: Saved::Not, lr: Saved::Not };

    fn is_known(&self) -> bool {
        self.sp.is_some() || self.frame.is_some()
    }

    fn contradicts_return(&self) -> bool {
        self.is_known() && *self != Self::ENTRY
    }

    fn is_at_return(&self) -> bool {
        *self == Self::ENTRY
    }

    fn meet(self, other: Self) -> Option<Self> {
        (self == other).then_some(self)
    }

    fn meet_unknown(self, _: Self) -> Self {
        self
    }

    fn rule(&self) -> Rule {
        let rule = match (self.frame, self.sp) {
            // Whatever a call of unknown code does to sp.
            (Some(offset), _) => Rule::with_cfa(CfaKind::Fp, offset),
            (None, Some(offset)) => Rule::with_cfa(CfaKind::Sp, offset),
            (None, None) => return Rule::UNSUPPORTED,
        };
        let rule = match self.fp {
            Saved::Not => rule,
            Saved::Lost => Rule { fp: FpKind::Lost, ..rule },
            Saved::Below(below) => rule.with_fp(FpKind::AtCfa, -below),
        };
        match self.lr {
            Saved::Not => rule.with_link_register(),
            Saved::Below(below) => rule.with_return_address(-below),
            Saved::Lost => Rule::UNSUPPORTED,
        }
    }
}

impl Stack {
    /// The stack behind an instruction.
    fn after(self, word: u32) -> (Self, Effect) {
        if let Some(transfer) = Transfer::of(word) {
            return (self.transferred(transfer), Effect::None);
        }
        if is_call(word) {
            let lr = if self.lr == Saved::Not { Saved::Lost } else { self.lr };
            return (Self { lr, ..self }, Effect::None);
        }
        if let Some((target, source, amount)) = add_immediate(word) {
            return self.added(target, source, amount);
        }
        // What is left of data processing writes its lowest five bits, of which sp is one for a few forms only.
        let is_data_processing = matches!(word >> 25 & 0xf, 0b1000 | 0b1001 | 0b0101 | 0b1101);
        if !is_data_processing || is_signature(word) {
            return (self, Effect::None);
        }
        (self.written(word & 31, writes_sp(word)), Effect::None)
    }

    /// `target = source + amount`.
    fn added(self, target: u32, source: u32, amount: i64) -> (Self, Effect) {
        let less = |offset: Option<i64>| offset.map(|offset| offset.saturating_sub(amount));
        let after = match (target, source) {
            (SP, SP) => self.moved(amount.saturating_neg()),
            (SP, FP) => Self { sp: less(self.frame), ..self },
            (FP, SP) if self.frame.is_none() => {
                let is_record = match (self.fp, self.lr, less(self.sp)) {
                    (Saved::Below(fp), Saved::Below(lr), Some(below)) => fp == below && lr == below.saturating_sub(8),
                    _ => false,
                };
                let effect = if is_record { Effect::FrameSetUp } else { Effect::None };
                return (Self { frame: less(self.sp), ..self.written(FP, false) }, effect);
            }
            _ => self.written(target, true),
        };
        (after, Effect::None)
    }

    /// `sp` goes down by so many bytes.
    fn moved(self, bytes: i64) -> Self {
        let sp = self.sp.map(|offset| offset.saturating_add(bytes)).filter(|offset| (0..MAX_DEPTH).contains(offset));
        Self { sp, ..self }
    }

    /// A register holds something else.
    fn written(self, register: u32, can_be_sp: bool) -> Self {
        let lost = |saved| if saved == Saved::Not { Saved::Lost } else { saved };
        match register {
            FP => Self { frame: None, fp: lost(self.fp), ..self },
            LR => Self { lr: lost(self.lr), ..self },
            SP if can_be_sp => Self { sp: None, ..self },
            _ => self,
        }
    }

    fn transferred(self, transfer: Transfer) -> Self {
        let moved =
            |stack: Self| if transfer.base == SP { stack.moved(transfer.moves.saturating_neg()) } else { stack };
        // Offsets are from the base after a move before the access, and from the one before a move behind it.
        let mut stack = if transfer.moves_first { moved(self) } else { self };
        for (index, register) in (0..).zip(transfer.registers) {
            let at = transfer.offset.saturating_add(8 * index);
            let base = match transfer.base {
                SP => stack.sp,
                FP => stack.frame,
                _ => None,
            };
            let below = base.map(|offset| offset.saturating_sub(at));
            if let Some(register) = register {
                stack = if transfer.is_load { stack.loaded(register, below) } else { stack.stored(register, below) };
            }
        }
        if transfer.moves_first { stack } else { moved(stack) }
    }

    fn stored(self, register: u32, below: Option<i64>) -> Self {
        let Some(below) = below.filter(|below| *below > 0) else { return self };
        match register {
            FP if self.fp == Saved::Not => Self { fp: Saved::Below(below), ..self },
            LR if self.lr == Saved::Not => Self { lr: Saved::Below(below), ..self },
            _ => self,
        }
    }

    fn loaded(self, register: u32, below: Option<i64>) -> Self {
        let is_back = |saved| below.is_some_and(|below| saved == Saved::Below(below));
        match register {
            FP if is_back(self.fp) => Self { frame: None, fp: Saved::Not, ..self },
            LR if is_back(self.lr) => Self { lr: Saved::Not, ..self },
            other => self.written(other, false),
        }
    }
}

/// A load or store of one or two registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Transfer {
    is_load: bool,
    /// `None` for what is not a whole general register.
    registers: [Option<u32>; 2],
    base: u32,
    /// Of the first register's place, in bytes from the base.
    offset: i64,
    /// What is added to the base, and whether before the access.
    moves: i64,
    moves_first: bool,
}

impl Transfer {
    fn of(word: u32) -> Option<Self> {
        let (base, first) = (word >> 5 & 31, word & 31);
        let is_vector = word >> 26 & 1 == 1;
        // Pairs: post-index, offset, pre-index.
        if word >> 27 & 7 == 0b101 && matches!(word >> 23 & 7, 0b001..=0b011) {
            let size = word >> 30;
            let bytes = if is_vector { 4 << size } else { 4 << (size >> 1) };
            let amount = signed(word >> 15, 7).saturating_mul(bytes);
            let whole = |register| (!is_vector && size == 0b10).then_some(register);
            let registers = [whole(first), whole(word >> 10 & 31)];
            return Some(Self::indexed(word >> 22 & 1 == 1, registers, base, amount, word >> 23 & 3));
        }
        if word >> 27 & 7 != 0b111 {
            return None;
        }
        let is_whole = !is_vector && word >> 30 == 0b11 && word >> 23 & 1 == 0;
        let registers = [is_whole.then_some(first), None];
        let is_load = word >> 22 & 1 == 1;
        match (word >> 24 & 3, word >> 21 & 1, word >> 10 & 3) {
            // Unsigned offset.
            (1, ..) => {
                let offset = i64::from(word >> 10 & 0xfff).saturating_mul(8);
                Some(Self { is_load, registers, base, offset, moves: 0, moves_first: false })
            }
            // Unscaled, post-index, pre-index.
            (0, 0, 0b00) => Some(Self::indexed(is_load, registers, base, signed(word >> 12, 9), 0b10)),
            (0, 0, index @ (0b01 | 0b11)) => {
                Some(Self::indexed(is_load, registers, base, signed(word >> 12, 9), index))
            }
            _ => None,
        }
    }

    /// `index`: 1 behind the access, 2 not at all, 3 before it.
    fn indexed(is_load: bool, registers: [Option<u32>; 2], base: u32, amount: i64, index: u32) -> Self {
        let (offset, moves) = match index {
            0b01 => (0, amount),
            0b10 => (amount, 0),
            _ => (0, amount),
        };
        Self { is_load, registers, base, offset, moves, moves_first: index == 0b11 }
    }
}

/// `target = source + amount`, 64 bits wide, with sp as a possible target: add and sub of an immediate.
fn add_immediate(word: u32) -> Option<(u32, u32, i64)> {
    if word & 0xbf80_0000 != 0x9100_0000 {
        return None;
    }
    let amount = i64::from(word >> 10 & 0xfff) << (12 * (word >> 22 & 1));
    let amount = if word >> 30 & 1 == 1 { -amount } else { amount };
    Some((word & 31, word >> 5 & 31, amount))
}

/// `bl`, `blr`, `blraa` and its like.
fn is_call(word: u32) -> bool {
    word >> 26 == 0b10_0101 || word & 0xfeff_f000 == 0xd63f_0000
}

/// Signs or authenticates a pointer in its register: `pacia x30, sp` and its like. What signs x30 by name is a hint.
fn is_signature(word: u32) -> bool {
    word & 0xffff_c000 == 0xdac1_0000
}

/// Whether 31 as a target means sp: immediate logic without flags, addition of an extended register without flags.
fn writes_sp(word: u32) -> bool {
    let is_logic = word & 0x1f80_0000 == 0x1200_0000 && word >> 29 & 3 != 0b11;
    let is_extended = word & 0x1fe0_0000 == 0x0b20_0000 && word >> 29 & 1 == 0;
    is_logic || is_extended
}

fn next_of(word: u32, pc: u64) -> Next {
    let to = |value: u32, bits: u32| pc.wrapping_add_signed(signed(value, bits).wrapping_mul(4));
    if word >> 26 == 0b00_0101 {
        return Next::Jump(to(word, 26));
    }
    // b.cond; cbz and cbnz; tbz and tbnz.
    if word >> 24 == 0x54 || word & 0x7e00_0000 == 0x3400_0000 {
        return Next::Branch(to(word >> 5, 19));
    }
    if word & 0x7e00_0000 == 0x3600_0000 {
        return Next::Branch(to(word >> 5, 14));
    }
    match word & 0xfeff_f000 {
        // br and ret, also with authentication.
        0xd61f_0000 => Next::Leave,
        _ if word & 0xffff_f000 == 0xd65f_0000 => Next::Return,
        // hlt and brk.
        _ if matches!(word >> 21, 0x6a1 | 0x6a2) => Next::Nowhere,
        _ => Next::Following,
    }
}

/// The low bits as a signed number.
fn signed(value: u32, bits: u32) -> i64 {
    let unused = 64_u32.saturating_sub(bits);
    (i64::from(value) << unused) >> unused
}
