//! What an instruction of x86-64 does to the stack.
//!
//! A few words are followed by value, wherever they are copied to: addresses at a known distance from the CFA, and the
//! caller's frame pointer. They are looked for in registers, in the halves of vector registers and in memory at a
//! constant distance from the CFA or from a register. What a store through another register may hit is not known and
//! taken to be something else.

use iced_x86::{Code, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};
use jitprof_common::row::{CfaKind, FpKind, Rule};

use super::places::{Base, Places};
use super::{Effect, StackState};

/// Bytes that a push takes.
const SLOT: i32 = 8;

/// Depths beyond are no functions' frames, and rows could not express them.
pub(super) const MAX_DEPTH: i32 = 256 << 10;

/// Numbers of registers.
const RSP: usize = 4;
const RBP: usize = 5;
/// Where an Erlang process keeps its stack pointer while its code is not running: r13 leads to the process.
const PARKED: (Base, i32) = (Base::Register(13), 88);
/// rax, rcx, rdx, rsi, rdi, r8 to r11: what a call does not keep.
const OF_CALLEE: [usize; 9] = [0, 1, 2, 6, 7, 8, 9, 10, 11];
/// Vector registers that are followed. BEAM uses the first two.
const VECTORS: usize = 4;

/// What is known of a word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Word {
    /// Nothing.
    #[default]
    Other,
    /// It depends on the path; of the stack pointer only.
    Mixed,
    /// On another stack; of the stack pointer only.
    Elsewhere,
    /// So many bytes above the CFA, if what was called has taken nothing off the stack; of the stack pointer only.
    Kept(i32),
    /// Perhaps what it was at the entry; of the frame pointer only.
    Doubtful,
    /// So many bytes above the CFA, mostly below it.
    Cfa(i32),
    /// What the frame pointer was at the entry.
    CallersFp,
}

impl Word {
    fn plus(self, bytes: i64) -> Self {
        let Self::Cfa(at) = self else { return Self::Other };
        let sum = i64::from(at).checked_add(bytes).and_then(|sum| i32::try_from(sum).ok());
        sum.filter(|sum| (-MAX_DEPTH..MAX_DEPTH).contains(sum)).map_or(Self::Other, Self::Cfa)
    }

    fn is_cfa(self) -> bool {
        matches!(self, Self::Cfa(_))
    }

    fn meet(self, other: Self) -> Self {
        if self == other { self } else { Self::Other }
    }

    /// The same of the frame pointer: what it may be on one path it may be.
    fn meet_fp(self, other: Self) -> Self {
        let is_callers = |word| matches!(word, Self::CallersFp | Self::Doubtful);
        match self.meet(other) {
            Self::Other if is_callers(self) || is_callers(other) => Self::Doubtful,
            met => met,
        }
    }

    /// The same of the stack pointer.
    fn meet_sp(self, other: Self) -> Self {
        let is_lost = |word| matches!(word, Self::Kept(_) | Self::Other);
        match (self, other) {
            _ if self == other => self,
            (Self::Elsewhere, _) | (_, Self::Elsewhere) => Self::Elsewhere,
            _ if is_lost(self) && is_lost(other) => Self::Other,
            _ => Self::Mixed,
        }
    }
}

/// Where the CFA and the caller's frame pointer are before an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stack {
    registers: [Word; 16],
    /// The low halves of vector registers.
    vectors: [[Word; 2]; VECTORS],
    memory: Places,
}

impl StackState for Stack {
    const ENTRY: Self = {
        let mut registers = [Word::Other; 16];
        registers[RSP] = Word::Cfa(-SLOT);
        registers[RBP] = Word::CallersFp;
        Self { registers, vectors: [[Word::Other; 2]; VECTORS], memory: Places::NONE }
    };

    fn is_known(&self) -> bool {
        self.registers.iter().chain(self.vectors.iter().flatten()).any(|word| word.is_cfa()) || self.memory.has_cfa()
    }

    fn contradicts_return(&self) -> bool {
        match self.sp() {
            Word::Cfa(at) => at != -SLOT,
            _ => self.fp().is_cfa(),
        }
    }

    fn is_at_return(&self) -> bool {
        self.sp() == Word::Cfa(-SLOT)
    }

    fn meet(self, other: Self) -> Option<Self> {
        let mut met = Self { memory: self.memory.meet(&other.memory), ..self };
        if self.sp() != other.sp() {
            for (base, at, word) in self.memory.meet_by_sp(self.sp(), (&other.memory, other.sp())) {
                met.memory.set(base, at, SLOT, word);
            }
        }
        for (word, other) in met.registers.iter_mut().zip(other.registers) {
            *word = word.meet(other);
        }
        for (word, other) in met.vectors.iter_mut().flatten().zip(other.vectors.iter().flatten()) {
            *word = word.meet(*other);
        }
        met.registers[RBP] = self.fp().meet_fp(other.fp());
        met.registers[RSP] = self.sp().meet_sp(other.sp());
        // A copy of the stack pointer in another register may be saved yet, and read back: until then there is no row.
        let is_lost = self.leads_on() && other.leads_on() && !met.leads_on() && !met.is_known();
        (!is_lost && met.is_known()).then_some(met)
    }

    fn meet_unknown(self, unknown: Self) -> Self {
        let mut met = self;
        // A frame pointer in the standard way stays one. Others are only kept for a few instructions.
        if !self.is_standard() {
            met.registers[RBP] = self.fp().meet_fp(unknown.fp());
        }
        met
    }

    fn rule(&self) -> Rule {
        let rule = match (self.fp(), self.sp()) {
            (Word::Cfa(at), Word::Elsewhere) => Rule::with_cfa(CfaKind::FpAway, -i64::from(at)),
            // Whatever a call of unknown code does to sp.
            (Word::Cfa(at), _) => Rule::with_cfa(CfaKind::Fp, -i64::from(at)),
            (_, Word::Cfa(at)) => Rule::with_cfa(CfaKind::Sp, -i64::from(at)),
            _ => match self.memory.saved_sp() {
                Some((slot, at)) => Rule::with_saved_sp(slot.into(), -i64::from(at)),
                None => Rule::UNSUPPORTED,
            },
        };
        self.with_callers_fp(rule)
    }
}

impl Stack {
    /// The stack behind an instruction.
    pub(super) fn after(self, instruction: &Instruction, infos: &mut InstructionInfoFactory) -> (Self, Effect) {
        let mut after = self;
        after.run(instruction, infos);
        if after.fp() == self.fp() {
            return (after, Effect::None);
        }
        let effect = if after.is_standard() {
            Effect::FrameSetUp
        } else if self.sp() == Word::Mixed && self.fp().is_cfa() && !after.fp().is_cfa() && !after.sp().is_cfa() {
            // What follows would depend on the path, too.
            Effect::Unclear
        } else {
            Effect::None
        };
        (after, effect)
    }

    /// The rule by `sp`, where it is known, whatever the frame pointer is.
    pub(super) fn rule_by_sp(&self) -> Rule {
        match self.sp() {
            Word::Cfa(at) => self.with_callers_fp(Rule::with_cfa(CfaKind::Sp, -i64::from(at))),
            _ => self.rule(),
        }
    }

    /// The rule of code that is called as Erlang's: a frame pointer in no standard frame is a copy for a call on the C stack,
    /// which Erlang's own calls do not keep; or that copy is in the process' memory.
    pub(super) fn rule_of_called(&self) -> Rule {
        let rule = if self.is_standard() { self.rule() } else { self.rule_by_sp() };
        let is_away = matches!(self.sp(), Word::Elsewhere | Word::Other);
        match self.memory.get(PARKED.0, PARKED.1) {
            Word::Cfa(at) if rule.cfa == CfaKind::Unsupported && is_away => {
                Rule { fp: FpKind::Lost, ..Rule::with_cfa(CfaKind::Parked, -i64::from(at)) }
            }
            _ => rule,
        }
    }

    /// A rule for the CFA, and where the caller's frame pointer is.
    fn with_callers_fp(&self, rule: Rule) -> Rule {
        match (rule, self.fp(), self.saved_fp()) {
            // The caller's own frame pointer would lead past the caller.
            (Rule::UNSUPPORTED, Word::CallersFp | Word::Doubtful, _) => Rule::UNSUPPORTED,
            // There the frame pointer cannot be checked against the stack pointer.
            (Rule::UNSUPPORTED, ..) if self.sp() == Word::Elsewhere => Rule::UNSUPPORTED,
            (Rule::UNSUPPORTED, ..) => Rule::GAP,
            (rule, _, Some(at)) => rule.with_fp(FpKind::AtCfa, at.into()),
            (rule, Word::CallersFp, None) => rule,
            (rule, _, None) => Rule { fp: FpKind::Lost, ..rule },
        }
    }

    /// A call that has returned with `sp` as it was.
    pub(super) fn keep_sp(&mut self, before: &Self) {
        self.set(RSP, before.sp());
    }

    /// The same where the frame pointer leads to the CFA, without knowing `sp` beside it.
    pub(super) fn by_frame_alone(mut self) -> Self {
        if self.is_standard() {
            self.lose_sp();
        }
        self
    }

    fn sp(&self) -> Word {
        self.registers[RSP]
    }

    fn fp(&self) -> Word {
        self.registers[RBP]
    }

    /// Whether a row can say where the CFA is.
    fn leads_on(&self) -> bool {
        self.fp().is_cfa() || self.sp().is_cfa() || self.memory.saved_sp().is_some()
    }

    /// The frame pointer points to where the caller's has been saved.
    fn is_standard(&self) -> bool {
        matches!(self.fp(), Word::Cfa(at) if self.memory.get(Base::Cfa, at) == Word::CallersFp)
    }

    /// Where the caller's frame pointer is in the frame, from the CFA. What lies below `sp` may be overwritten.
    fn saved_fp(&self) -> Option<i32> {
        let lowest = if let Word::Cfa(at) = self.sp() { at } else { -MAX_DEPTH };
        self.memory.saved_fp(lowest)
    }

    fn run(&mut self, instruction: &Instruction, infos: &mut InstructionInfoFactory) {
        let (target, source) = (general(instruction, 0), general(instruction, 1));
        match (instruction.mnemonic(), target, source) {
            (Mnemonic::Push | Mnemonic::Pushfq, ..) => {
                let word = self.word_of(instruction, 0);
                self.push(word, push_bytes(instruction));
            }
            (Mnemonic::Pop, Some(target), _) if push_bytes(instruction) == SLOT => self.pop(target),
            (Mnemonic::Pop | Mnemonic::Popfq, ..) => {
                self.clobber(instruction, infos);
                self.move_sp(push_bytes(instruction).into());
            }
            (Mnemonic::Leave, ..) if instruction.code() == Code::Leaveq => {
                self.set(RSP, self.fp());
                self.pop(RBP);
            }
            (Mnemonic::Enter, ..) => self.enter(instruction),
            (Mnemonic::Call, ..) => self.call(),
            (Mnemonic::Mov, Some(target), _) => {
                if target == RBP {
                    self.confirm_sp(instruction);
                }
                self.load(target, self.word_of(instruction, 1), source.is_none());
                self.note_switch(target);
            }
            (Mnemonic::Mov, None, Some(_)) => self.store(instruction, &[self.word_of(instruction, 1)]),
            (Mnemonic::Xchg, Some(target), Some(source)) => {
                let words = (self.registers[target], self.registers[source]);
                self.set(target, words.1);
                self.set(source, words.0);
            }
            (Mnemonic::Xchg, None, Some(source)) => {
                let word = self.word_of(instruction, 0);
                self.store(instruction, &[self.registers[source]]);
                self.set(source, word);
            }
            (Mnemonic::Lea, Some(target), _) => self.lea(instruction, target),
            (Mnemonic::Add, Some(target), None) if is_immediate(instruction) => {
                self.add(target, instruction.immediate(1).cast_signed());
            }
            (Mnemonic::Sub, Some(target), None) if is_immediate(instruction) => {
                self.add(target, instruction.immediate(1).cast_signed().saturating_neg());
            }
            _ if self.run_vector(instruction) => {}
            _ => self.clobber(instruction, infos),
        }
    }

    fn push(&mut self, word: Word, bytes: i32) {
        self.move_sp(-i64::from(bytes));
        let (base, at) = self.place(RSP, 0);
        self.write(base, at, bytes, if bytes == SLOT { word } else { Word::Other });
    }

    /// Where only the frame pointer leads to the CFA, `sp` is back at the frame's own end: popping it means that.
    fn pop(&mut self, target: usize) {
        let (base, at) = self.place(RSP, 0);
        let word = self.memory.get(base, at);
        if target == RBP && base != Base::Cfa && self.memory.saved_sp().is_none() && self.is_standard() {
            self.set(RSP, self.fp());
            return self.pop(RBP);
        }
        self.move_sp(SLOT.into());
        self.load(target, word, true);
    }

    /// A word of memory that is not followed may be the caller's frame pointer.
    fn load(&mut self, target: usize, word: Word, is_memory: bool) {
        self.set(target, if target == RBP && is_memory && word == Word::Other { Word::Doubtful } else { word });
    }

    /// Where the frame pointer is loaded from where it was stored if calls keep the stack pointer, they do.
    fn confirm_sp(&mut self, instruction: &Instruction) {
        if let (Word::Kept(sp), Some((RSP, bytes))) = (self.sp(), based(instruction))
            && self.fp().is_cfa()
            && i32::try_from(bytes).is_ok_and(|at| self.memory.get(Base::Cfa, sp.saturating_add(at)) == self.fp())
        {
            self.set(RSP, Word::Cfa(sp));
        }
    }

    /// `enter bytes, 0`: what pushes the frame pointer and sets it.
    fn enter(&mut self, instruction: &Instruction) {
        self.push(self.fp(), SLOT);
        if instruction.code() == Code::Enterq_imm16_imm8 && instruction.immediate8_2nd() == 0 {
            self.set(RBP, self.sp());
            self.move_sp(-i64::from(instruction.immediate16()));
        } else {
            self.set(RBP, Word::Other);
            self.lose_sp();
        }
    }

    /// V8's callees take their arguments off the stack. Its functions have a standard frame.
    fn call(&mut self) {
        OF_CALLEE.into_iter().for_each(|register| self.set(register, Word::Other));
        self.vectors = Default::default();
        let (base, at) = self.place(RSP, 0);
        self.memory.remove_below(base, at);
        if self.is_standard() {
            let kept = if let Word::Cfa(at) | Word::Kept(at) = self.sp() { Word::Kept(at) } else { self.lost_sp() };
            self.set(RSP, kept);
        }
    }

    fn lea(&mut self, instruction: &Instruction, target: usize) {
        let word = match based(instruction) {
            Some((base, bytes)) if base == target => return self.add(target, bytes),
            Some((base, bytes)) => self.registers[base].plus(bytes),
            None => Word::Other,
        };
        // Other registers hold addresses of variables, which nothing depends on, or the entry's stack.
        let is_kept = matches!(target, RSP | RBP) || matches!(word, Word::Cfa(-8..=0));
        self.set(target, if is_kept { word } else { Word::Other });
        self.note_switch(target);
    }

    /// A stack pointer that has been set to what is not known: another stack's.
    fn note_switch(&mut self, target: usize) {
        if target == RSP && self.sp() == Word::Other {
            self.set(RSP, Word::Elsewhere);
        }
    }

    fn add(&mut self, target: usize, bytes: i64) {
        match target {
            RSP => self.move_sp(bytes),
            _ => self.set(target, self.registers[target].plus(bytes)),
        }
    }

    /// Vector registers that carry two words; whether the instruction was such a one.
    fn run_vector(&mut self, instruction: &Instruction) -> bool {
        let vector = |operand| vector(instruction, operand);
        let to_general = general(instruction, 0);
        let low = |stack: &Self, operand| vector(operand).map_or(Word::Other, |from| stack.vectors[from][0]);
        let is_memory = |operand| instruction.op_kind(operand) == OpKind::Memory;
        let last = instruction.op_count().saturating_sub(1);
        match (instruction.mnemonic(), vector(0)) {
            (Mnemonic::Movq | Mnemonic::Vmovq, Some(to)) => {
                let word =
                    if is_memory(1) { self.word_of(instruction, 1) } else { self.general_or(instruction, 1, low) };
                self.vectors[to] = [word, Word::Other];
            }
            (Mnemonic::Movq | Mnemonic::Vmovq, None) => match to_general {
                Some(to) => self.set(to, low(self, 1)),
                None => self.store(instruction, &[low(self, 1)]),
            },
            (Mnemonic::Punpcklqdq | Mnemonic::Vpunpcklqdq, Some(to)) => {
                self.vectors[to] = [low(self, last.saturating_sub(1)), low(self, last)];
            }
            (Mnemonic::Pinsrq | Mnemonic::Vpinsrq, Some(to)) => {
                let from = vector(last.saturating_sub(2)).map_or([Word::Other; 2], |from| self.vectors[from]);
                let (word, half) = (self.word_of(instruction, last.saturating_sub(1)), instruction.immediate8() & 1);
                self.vectors[to] = if half == 0 { [word, from[1]] } else { [from[0], word] };
            }
            (Mnemonic::Pextrq | Mnemonic::Vpextrq, None) => {
                let from = vector(1).map_or([Word::Other; 2], |from| self.vectors[from]);
                let word = from[usize::from(instruction.immediate8() & 1)];
                match to_general {
                    Some(to) => self.set(to, word),
                    None => self.store(instruction, &[word]),
                }
            }
            (mnemonic, to) if is_whole_move(mnemonic) && instruction.op_count() == 2 => match to {
                Some(to) if is_memory(1) => {
                    let at = self.address(instruction);
                    self.vectors[to] = at.map_or_else(Default::default, |(base, at)| {
                        [self.memory.get(base, at), self.memory.get(base, at.saturating_add(SLOT))]
                    });
                }
                Some(to) => self.vectors[to] = vector(1).map_or([Word::Other; 2], |from| self.vectors[from]),
                None if is_memory(0) => match vector(1).filter(|_| instruction.memory_size().size() == 16) {
                    Some(from) => self.store(instruction, &self.vectors[from].clone()),
                    None => self.remove_stored(instruction),
                },
                None => return false,
            },
            _ => return false,
        }
        true
    }

    /// A general register's word, or what `otherwise` says.
    fn general_or(&self, instruction: &Instruction, operand: u32, otherwise: impl Fn(&Self, u32) -> Word) -> Word {
        match general(instruction, operand) {
            Some(register) => self.registers[register],
            None => otherwise(self, operand),
        }
    }

    /// What an operand of 8 bytes holds.
    fn word_of(&self, instruction: &Instruction, operand: u32) -> Word {
        if let Some(register) = general(instruction, operand) {
            return self.registers[register];
        }
        let is_word = instruction.op_kind(operand) == OpKind::Memory && instruction.memory_size().size() == 8;
        match self.address(instruction).filter(|_| is_word) {
            Some((base, at)) => self.memory.get(base, at),
            None => Word::Other,
        }
    }

    /// Stores words at the instruction's address, which takes as many bytes.
    fn store(&mut self, instruction: &Instruction, words: &[Word]) {
        self.remove_stored(instruction);
        if instruction.memory_size().size() != words.len().saturating_mul(8) {
            return;
        }
        let Some((base, at)) = self.address(instruction) else { return };
        for (offset, word) in (0..).step_by(8).zip(words) {
            self.write(base, at.saturating_add(offset), SLOT, *word);
        }
    }

    fn remove_stored(&mut self, instruction: &Instruction) {
        let bytes = i32::try_from(instruction.memory_size().size()).unwrap_or(MAX_DEPTH).max(1);
        if let Some((base, at)) = self.address(instruction) {
            self.write(base, at, bytes, Word::Other);
        }
    }

    /// Writes to memory. If that is where something of the frame was, as far as calls have kept the stack pointer, it is
    /// taken that they have not.
    fn write(&mut self, base: Base, at: i32, bytes: i32, word: Word) {
        if let (Word::Kept(sp), Base::Register(4)) = (self.sp(), base)
            && self.memory.holds(Base::Cfa, sp.saturating_add(at), bytes)
        {
            self.registers[RSP] = Word::Other;
        }
        self.memory.set(base, at, bytes, word);
    }

    /// Any other instruction: what it writes is something else.
    fn clobber(&mut self, instruction: &Instruction, infos: &mut InstructionInfoFactory) {
        let first = instruction.op_count() > 0 && !reads_only(instruction.mnemonic());
        if first && instruction.op0_kind() == OpKind::Memory {
            self.remove_stored(instruction);
        }
        if first && instruction.op0_kind() == OpKind::Register {
            self.clear_register(instruction.op0_register());
        }
        if !self.follows_more() {
            if matches!(instruction.mnemonic(), Mnemonic::Xchg | Mnemonic::Xadd | Mnemonic::Mulx) {
                self.clear_register(instruction.op1_register());
            }
            return;
        }
        for used in infos.info(instruction).used_registers() {
            let is_written = !matches!(used.access(), OpAccess::None | OpAccess::Read | OpAccess::CondRead);
            if is_written && used.register().full_register() != Register::RSP {
                self.clear_register(used.register());
            }
        }
    }

    /// Whether anything but the two pointers is followed.
    fn follows_more(&self) -> bool {
        let others = self.registers.iter().enumerate().filter(|(register, _)| !matches!(*register, RSP | RBP));
        others.map(|(_, word)| word).chain(self.vectors.iter().flatten()).any(|word| *word != Word::Other)
            || self.memory.depends_on_registers()
    }

    fn clear_register(&mut self, register: Register) {
        let full = register.full_register();
        if let Some(register) = number(full) {
            self.set(register, Word::Other);
        }
        if register.is_vector_register()
            && let Some(words) = self.vectors.get_mut(register.number())
        {
            *words = Default::default();
        }
    }

    fn set(&mut self, register: usize, word: Word) {
        self.memory.remove_base(Base::register(register));
        let word = match (register, word) {
            // Beyond its own frame a function has given up the return address.
            (RSP, Word::Cfa(at)) if !(-MAX_DEPTH..=-SLOT).contains(&at) => Word::Other,
            // It points to another function's frame, or to anything.
            (RSP, Word::CallersFp) => Word::Other,
            (register, Word::Mixed | Word::Elsewhere | Word::Kept(_)) if register != RSP => Word::Other,
            (register, Word::Doubtful) if register != RBP => Word::Other,
            (_, word) => word,
        };
        if let Some(known) = self.registers.get_mut(register) {
            *known = word;
        }
    }

    /// `sp` goes up by so many bytes.
    fn move_sp(&mut self, bytes: i64) {
        match self.sp() {
            Word::Cfa(_) => return self.set(RSP, self.sp().plus(bytes)),
            Word::Kept(at) => {
                let moved = Word::Cfa(at).plus(bytes);
                self.registers[RSP] = if let Word::Cfa(at) = moved { Word::Kept(at) } else { Word::Other };
            }
            _ => {}
        }
        self.memory.shift(Base::register(RSP), bytes);
    }

    fn lose_sp(&mut self) {
        self.set(RSP, self.lost_sp());
    }

    fn lost_sp(&self) -> Word {
        if self.sp() == Word::Elsewhere { Word::Elsewhere } else { Word::Other }
    }

    /// A place by a register: where it leads to the CFA, from there.
    fn place(&self, register: usize, displacement: i32) -> (Base, i32) {
        match self.registers[register] {
            Word::Cfa(at) => (Base::Cfa, at.saturating_add(displacement)),
            _ => (Base::register(register), displacement),
        }
    }

    /// Where an instruction's memory operand is, if it is at a constant distance from a register.
    fn address(&self, instruction: &Instruction) -> Option<(Base, i32)> {
        let (register, displacement) = based(instruction)?;
        Some(self.place(register, i32::try_from(displacement).ok()?))
    }
}

/// A general register of 8 bytes.
fn general(instruction: &Instruction, operand: u32) -> Option<usize> {
    let is_register = operand < instruction.op_count() && instruction.op_kind(operand) == OpKind::Register;
    is_register.then(|| number(instruction.op_register(operand))).flatten()
}

fn number(register: Register) -> Option<usize> {
    register.is_gpr64().then(|| register.number())
}

/// A vector register that is followed.
fn vector(instruction: &Instruction, operand: u32) -> Option<usize> {
    let is_register = operand < instruction.op_count() && instruction.op_kind(operand) == OpKind::Register;
    let register = if is_register { instruction.op_register(operand) } else { Register::None };
    (register.is_xmm() && register.number() < VECTORS).then(|| register.number())
}

/// `[base + n]`.
fn based(instruction: &Instruction) -> Option<(usize, i64)> {
    let is_plain = instruction.memory_index() == Register::None && instruction.segment_prefix() == Register::None;
    let base = number(instruction.memory_base()).filter(|_| is_plain)?;
    Some((base, instruction.memory_displacement64().cast_signed()))
}

fn is_immediate(instruction: &Instruction) -> bool {
    matches!(instruction.op1_kind(), OpKind::Immediate8to64 | OpKind::Immediate32to64)
}

/// Moves of a whole vector register.
fn is_whole_move(mnemonic: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(
        mnemonic,
        M::Movups
            | M::Movaps
            | M::Movupd
            | M::Movapd
            | M::Movdqu
            | M::Movdqa
            | M::Vmovups
            | M::Vmovaps
            | M::Vmovupd
            | M::Vmovapd
            | M::Vmovdqu
            | M::Vmovdqa
    )
}

/// Instructions that do not write their first operand.
fn reads_only(mnemonic: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(mnemonic, M::Cmp | M::Test | M::Push | M::Call | M::Jmp | M::Bt | M::Nop | M::Comiss | M::Comisd)
        || matches!(mnemonic, M::Ucomiss | M::Ucomisd | M::Vucomiss | M::Vucomisd | M::Vcomiss | M::Vcomisd | M::Ptest)
}

/// 8, or 2 with an operand-size prefix.
fn push_bytes(instruction: &Instruction) -> i32 {
    instruction.stack_pointer_increment().abs()
}
