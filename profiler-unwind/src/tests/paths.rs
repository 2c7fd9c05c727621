//! Rows from code bytes against every path through real functions.
//!
//! The functions of recorded dumps are run on a machine whose words are symbols: where the stack pointer came from, what
//! the caller's frame pointer and the return address are, and else numbers that nothing else equals. Each branch is taken
//! both ways. At each instruction that a path reaches, what the row finds must be what the machine knows.
//!
//! The machine is written for this alone: it takes what an instruction writes from iced, and knows of no frames.

use std::collections::{BTreeMap, HashMap, HashSet};

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register,
};
use jitprof_common::row::{Row, Rule};

use super::*;
use crate::{RowTable, rows_of_called_code, rows_of_code, rows_of_jit, rows_of_sized_code};

/// A word: a symbol and what is added to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Value(u32, i64);

const ENTRY_SP: u32 = 0;
const CALLERS_FP: Value = Value(1, 0);
const RETURN: Value = Value(2, 0);
/// States looked at for an instruction.
const MOST_STATES: usize = 6;
/// States in all.
const MOST_STEPS: usize = 60_000;

/// How callees of a producer's code leave the stack pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Calls {
    /// As it was.
    Keep,
    /// They take their arguments off the stack, and those that deoptimise do not return (V8).
    PopArguments,
    /// As it was, and one that follows the reason of an error, which is written to the process, does not return (Erlang).
    RaiseErrors,
}

/// Bytes behind the last instruction of a function, which may be a call that raises an error.
const LAST_PADDING: usize = 16;

/// Instructions between an error's reason and the call that raises it, at most.
const RAISED_WITHIN: u8 = 2;

/// The first bytes of a call to V8's deoptimiser.
const DEOPTIMISATION: &[u8] = &[0x41, 0xff, 0x55];

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Machine86 {
    registers: [Value; 16],
    vectors: BTreeMap<usize, [Value; 2]>,
    memory: BTreeMap<Value, Value>,
    /// Instructions since a number was written to the process, if that was a moment ago.
    since_reason: Option<u8>,
}

/// What came of the comparison, in instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) functions: u64,
    /// The row finds the caller and its frame pointer.
    pub(super) right: u64,
    /// It finds the caller, and says that its frame pointer is lost.
    pub(super) without_fp: u64,
    /// It says that nothing is known.
    pub(super) none: u64,
    /// A gap, where the checked frame pointer finds the caller.
    pub(super) gap_right: u64,
    /// A gap, where it finds none.
    pub(super) gap_none: u64,
    /// A gap, where it finds something else: a caller is skipped, as by frame pointers alone.
    pub(super) gap_other: u64,
    /// A row's wrong caller.
    pub(super) wrong: u64,
    /// The checked frame pointer finds the caller, and the row finds none.
    pub(super) worse: u64,
    /// What frame pointers alone find.
    pub(super) by_fp: u64,
    /// Instructions whose stack the machine itself has lost.
    pub(super) unknown: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.functions += other.functions;
        self.right += other.right;
        self.without_fp += other.without_fp;
        self.none += other.none;
        self.gap_right += other.gap_right;
        self.gap_none += other.gap_none;
        self.gap_other += other.gap_other;
        self.wrong += other.wrong;
        self.worse += other.worse;
        self.by_fp += other.by_fp;
        self.unknown += other.unknown;
    }
}

/// What a way of unwinding finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Caller,
    CallerWithoutFp,
    Nothing,
    Other,
}

impl Machine86 {
    fn new() -> Self {
        let mut registers = [Value(0, 0); 16];
        for (symbol, register) in (100..).zip(&mut registers) {
            *register = Value(symbol, 0);
        }
        registers[4] = Value(ENTRY_SP, 0);
        registers[5] = CALLERS_FP;
        Self {
            registers,
            vectors: BTreeMap::new(),
            memory: BTreeMap::from([(Value(ENTRY_SP, 0), RETURN)]),
            since_reason: None,
        }
    }

    fn address(&self, instruction: &Instruction, at: usize) -> Value {
        let other = Value(1_000_000 + at as u32, 0);
        let base = instruction.memory_base();
        if !base.is_gpr64()
            || instruction.memory_index() != Register::None
            || instruction.segment_prefix() != Register::None
        {
            return if base == Register::RIP { Value(3, instruction.memory_displacement64() as i64) } else { other };
        }
        let Value(symbol, offset) = self.registers[base.number()];
        Value(symbol, offset.wrapping_add(instruction.memory_displacement64() as i64))
    }

    /// A word of memory; one that nobody has written is its address' own.
    fn load(&self, address: Value) -> Value {
        let mixed = u64::from(address.0).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ address.1.cast_unsigned().wrapping_mul(0xff51_afd7);
        self.memory.get(&address).copied().unwrap_or(Value(1 << 31 | (mixed >> 20) as u32, 0))
    }

    fn store(&mut self, address: Value, bytes: i64, word: Option<Value>) {
        let near = Value(address.0, address.1 - 7)..Value(address.0, address.1 + bytes.max(1));
        let gone: Vec<Value> = self.memory.range(near).map(|(at, _)| *at).collect();
        for at in gone {
            self.memory.remove(&at);
        }
        if let Some(word) = word.filter(|_| bytes == 8) {
            self.memory.insert(address, word);
        } else {
            self.memory.insert(address, Value(3_000_000 + (address.1.unsigned_abs() as u32 & 0xffff), 0));
        }
    }

    fn word(&self, instruction: &Instruction, operand: u32, at: usize) -> Option<Value> {
        match instruction.op_kind(operand) {
            OpKind::Register => {
                let register = instruction.op_register(operand);
                if register.is_xmm() {
                    return Some(self.vectors.get(&register.number())?[0]);
                }
                register.is_gpr64().then(|| self.registers[register.number()])
            }
            OpKind::Memory if instruction.memory_size().size() == 8 => Some(self.load(self.address(instruction, at))),
            _ => None,
        }
    }

    /// Notes the reasons of errors.
    fn note_reason(&mut self, instruction: &Instruction) {
        let is_reason = instruction.mnemonic() == Mnemonic::Mov
            && instruction.op0_kind() == OpKind::Memory
            && instruction.memory_base() == Register::R13
            && instruction.op1_kind() == OpKind::Immediate32to64;
        let since = self.since_reason.map(|since| since + 1).filter(|since| *since <= RAISED_WITHIN);
        self.since_reason = if is_reason { Some(0) } else { since };
    }

    /// Runs an instruction that does not jump.
    fn run(&mut self, instruction: &Instruction, at: usize, calls: Calls, infos: &mut InstructionInfoFactory) {
        use Mnemonic as M;
        let fresh = Value(10_000_000 + at as u32 * 32, 0);
        let op0 = instruction.op0_kind();
        let target = (instruction.op_count() > 0 && op0 == OpKind::Register && instruction.op0_register().is_gpr64())
            .then(|| instruction.op0_register().number());
        let immediate = matches!(instruction.op1_kind(), OpKind::Immediate8to64 | OpKind::Immediate32to64)
            .then(|| instruction.immediate(1) as i64);
        match (instruction.mnemonic(), target) {
            (M::Push | M::Pushfq, _) => {
                let word = if instruction.op_count() > 0 { self.word(instruction, 0, at) } else { None };
                let bytes = i64::from(-instruction.stack_pointer_increment());
                self.registers[4].1 -= bytes;
                self.store(self.registers[4], bytes, Some(word.unwrap_or(fresh)));
            }
            (M::Pop, Some(target)) => {
                let word = self.load(self.registers[4]);
                self.registers[4].1 += 8;
                self.registers[target] = word;
            }
            (M::Leave, _) => {
                self.registers[4] = self.registers[5];
                self.registers[5] = self.load(self.registers[4]);
                self.registers[4].1 += 8;
            }
            (M::Enter, _) => {
                self.registers[4].1 -= 8;
                self.store(self.registers[4], 8, Some(self.registers[5]));
                self.registers[5] = self.registers[4];
                self.registers[4].1 -= i64::from(instruction.immediate16());
            }
            (M::Mov, Some(target)) => self.registers[target] = self.word(instruction, 1, at).unwrap_or(fresh),
            (M::Mov, None) if op0 == OpKind::Memory => {
                let word =
                    if instruction.op1_kind() == OpKind::Register { self.word(instruction, 1, at) } else { None };
                self.store(self.address(instruction, at), instruction.memory_size().size() as i64, word);
            }
            (M::Lea, Some(target)) => self.registers[target] = self.address(instruction, at),
            (M::Add, Some(target)) if immediate.is_some() => self.registers[target].1 += immediate.unwrap(),
            (M::Sub, Some(target)) if immediate.is_some() => self.registers[target].1 -= immediate.unwrap(),
            (M::Xchg, Some(target)) if instruction.op1_kind() == OpKind::Register => {
                self.registers.swap(target, instruction.op1_register().number());
            }
            (M::Call, _) => {
                for register in [0, 1, 2, 6, 7, 8, 9, 10, 11] {
                    self.registers[register] = Value(fresh.0 + register as u32, 0);
                }
                self.vectors.clear();
                if calls == Calls::PopArguments {
                    self.registers[4] = Value(fresh.0 + 4, 0);
                }
            }
            (M::Movq | M::Vmovq, _) if instruction.op0_register().is_xmm() => {
                let word = self.word(instruction, 1, at).unwrap_or(fresh);
                self.vectors.insert(instruction.op0_register().number(), [word, fresh]);
            }
            (M::Punpcklqdq | M::Vpunpcklqdq, _) => {
                let last = instruction.op_count() - 1;
                let low = |machine: &Self, operand| machine.word(instruction, operand, at).unwrap_or(fresh);
                let words = [low(self, last - 1), low(self, last)];
                self.vectors.insert(instruction.op0_register().number(), words);
            }
            (M::Vpinsrq | M::Pinsrq, _) => {
                let last = instruction.op_count() - 1;
                let mut words = *self.vectors.get(&instruction.op_register(last - 2).number()).unwrap_or(&[fresh; 2]);
                words[usize::from(instruction.immediate8() & 1)] =
                    self.word(instruction, last - 1, at).unwrap_or(fresh);
                self.vectors.insert(instruction.op0_register().number(), words);
            }
            (M::Movups | M::Vmovups | M::Movaps | M::Vmovaps | M::Movdqu | M::Vmovdqu, _)
                if op0 == OpKind::Memory && instruction.op1_register().is_xmm() =>
            {
                let words = self.vectors.get(&instruction.op1_register().number()).copied().unwrap_or([fresh; 2]);
                let to = self.address(instruction, at);
                self.store(to, 8, Some(words[0]));
                self.store(Value(to.0, to.1 + 8), 8, Some(words[1]));
            }
            _ => self.clobber(instruction, at, infos),
        }
    }

    fn clobber(&mut self, instruction: &Instruction, at: usize, infos: &mut InstructionInfoFactory) {
        let info = infos.info(instruction);
        let writes = |access| !matches!(access, OpAccess::None | OpAccess::Read | OpAccess::CondRead);
        for used in info.used_registers().iter().filter(|used| writes(used.access())) {
            let register = used.register().full_register();
            if register.is_gpr64() && !(register == Register::RSP && instruction.is_stack_instruction()) {
                let number = register.number();
                self.registers[number] = Value(10_000_000 + (at * 32 + number) as u32, 0);
            } else if register.is_vector_register() {
                self.vectors.remove(&register.number());
            }
        }
        self.registers[4].1 += i64::from(instruction.stack_pointer_increment());
        let is_stored = info.used_memory().iter().any(|used| writes(used.access()) && used.base() != Register::RSP)
            || instruction.op_count() > 0
                && instruction.op0_kind() == OpKind::Memory
                && info.used_memory().iter().any(|used| writes(used.access()));
        if is_stored {
            self.store(self.address(instruction, at), instruction.memory_size().size() as i64, None);
        }
    }

    /// By a row.
    fn by_row(&self, row: Row) -> Found {
        let plus = |value: Value, bytes| Value(value.0, value.1 + bytes);
        let cfa = match row.cfa_kind() {
            kind if kind == CfaKind::Sp as u8 => plus(self.registers[4], row.cfa_offset_bytes()),
            kind if [CfaKind::Fp as u8, CfaKind::FpAway as u8].contains(&kind) => {
                plus(self.registers[5], row.cfa_offset_bytes())
            }
            kind if kind == CfaKind::SpSaved as u8 => {
                let (slot, beyond) = row.saved_sp_bytes();
                plus(self.load(plus(self.registers[4], slot as i64)), beyond as i64)
            }
            _ => return Found::Nothing,
        };
        // V8 pops its return address to push arguments below it: the CFA moves with it. HotSpot's stubs and BEAM's
        // replace the return address: where they will return to is their caller then.
        if self.load(plus(cfa, -8)) != RETURN && cfa != Value(ENTRY_SP, 8) {
            return Found::Other;
        }
        let fp = match row.fp_kind() {
            kind if kind == FpKind::Same as u8 => self.registers[5],
            kind if kind == FpKind::AtCfa as u8 => self.load(plus(cfa, row.fp_offset_bytes())),
            _ => return Found::CallerWithoutFp,
        };
        if fp == CALLERS_FP { Found::Caller } else { Found::Other }
    }

    /// By the checked frame pointer.
    fn by_frame_pointer(&self) -> Found {
        let (sp, fp) = (self.registers[4], self.registers[5]);
        // The caller's own frame, when this one has not been set up.
        if fp == CALLERS_FP {
            return Found::Other;
        }
        if fp.0 != ENTRY_SP || (sp.0 == ENTRY_SP && fp.1 < sp.1) || fp.1 % 8 != 0 {
            return Found::Nothing;
        }
        let is_caller = self.load(Value(fp.0, fp.1 + 8)) == RETURN && self.load(fp) == CALLERS_FP;
        if is_caller { Found::Caller } else { Found::Other }
    }
}

/// Follows every path through a function; `wrong` is told of each row that finds something else, gaps included.
pub(super) fn compare(
    code: &[u8],
    rule_at: impl Fn(usize) -> Rule,
    calls: Calls,
    mut wrong: impl FnMut(usize, Rule),
) -> Counts {
    let mut counts = Counts { functions: 1, ..Counts::default() };
    let mut infos = InstructionInfoFactory::new();
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    let mut seen: HashMap<usize, HashSet<Machine86>> = HashMap::new();
    let mut verdicts: BTreeMap<usize, (Found, Found, bool, Rule)> = BTreeMap::new();
    let mut pending = vec![(0_usize, Machine86::new())];
    let mut steps = 0;
    while let Some((at, mut machine)) = pending.pop() {
        let states = seen.entry(at).or_default();
        if at >= code.len() || steps > MOST_STEPS || states.len() >= MOST_STATES || !states.insert(machine.clone()) {
            continue;
        }
        steps += 1;
        decoder.set_position(at).unwrap();
        decoder.set_ip(at as u64);
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            continue;
        }
        let rule = rule_at(at);
        let (by_row, by_fp) = (machine.by_row(Row(rule.encode(0))), machine.by_frame_pointer());
        // Where the machine has lost both pointers it cannot tell a wrong row: V8's copy of the arguments moves the return
        // address word by word.
        let lost = machine.registers[4].0 != ENTRY_SP && machine.registers[5].0 != ENTRY_SP;
        let verdict = (by_row, by_fp, lost, rule);
        let is_wrong = |verdict: &(Found, Found, bool, Rule)| verdict.0 == Found::Other && !verdict.2;
        match verdicts.get(&at) {
            Some(known) if is_wrong(known) || !is_wrong(&verdict) => {}
            _ => drop(verdicts.insert(at, verdict)),
        }
        let next = at + instruction.len();
        let target = instruction.near_branch_target() as usize;
        match instruction.flow_control() {
            FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall if instruction.code() != Code::Hlt => {
                let is_call = instruction.flow_control() != FlowControl::Next;
                let is_last = code.len() - next < LAST_PADDING;
                let raises = calls == Calls::RaiseErrors && is_call && (is_last || machine.since_reason.is_some());
                let deoptimises = calls == Calls::PopArguments && is_call && is_deoptimisation(code, at, next);
                machine.run(&instruction, at, calls, &mut infos);
                machine.note_reason(&instruction);
                if !raises && !deoptimises {
                    pending.push((next, machine));
                }
            }
            FlowControl::UnconditionalBranch => pending.push((target, machine)),
            FlowControl::ConditionalBranch => {
                pending.push((target, machine.clone()));
                pending.push((next, machine));
            }
            _ => {}
        }
    }
    for (at, (by_row, by_fp, lost, rule)) in verdicts {
        counts.by_fp += u64::from(by_fp == Found::Caller);
        counts.unknown += u64::from(lost);
        let is_gap = rule.cfa == CfaKind::Gap;
        match by_row {
            Found::Other if lost => {}
            Found::Caller => counts.right += 1,
            Found::CallerWithoutFp => counts.without_fp += 1,
            Found::Nothing if is_gap => match by_fp {
                Found::Caller | Found::CallerWithoutFp => counts.gap_right += 1,
                Found::Nothing => counts.gap_none += 1,
                Found::Other => {
                    counts.gap_other += 1;
                    wrong(at, rule);
                }
            },
            Found::Nothing => {
                counts.none += 1;
                counts.worse += u64::from(by_fp == Found::Caller);
            }
            Found::Other => {
                counts.wrong += 1;
                wrong(at, rule);
            }
        }
    }
    counts
}

/// Whether a call is one of V8's exits to the deoptimiser. They stand in a row behind a function's code, do not return, and what
/// follows the last one is a jump table.
fn is_deoptimisation(code: &[u8], at: usize, next: usize) -> bool {
    // call [r13 + disp8]: from the table of builtins.
    let is_exit = |at: usize| code.get(at..at + DEOPTIMISATION.len()) == Some(DEOPTIMISATION);
    let before = at.checked_sub(next - at);
    is_exit(at) && (is_exit(next) || before.is_some_and(is_exit))
}

/// The functions of a dump by their producer's ways: whether all are called, and how callees leave the stack.
fn ways(name: &str) -> (bool, Calls) {
    let file = name.rsplit('/').next().unwrap_or(name);
    let is_erlang = file.starts_with("otp") || file.contains("erlang");
    let calls = match file {
        _ if is_erlang => Calls::RaiseErrors,
        file if file.starts_with("node") => Calls::PopArguments,
        _ => Calls::Keep,
    };
    (is_erlang, calls)
}

type RowsOfCode = fn(Machine, u64, &[u8]) -> Option<RowTable>;

/// Compares all functions of a dump that are recognised, and counts those that are not.
fn compare_dump(name: &str, loads: &[CodeLoad]) -> (Counts, u64) {
    compare_rows(name, loads, if ways(name).0 { rows_of_called_code } else { rows_of_code })
}

fn compare_rows(name: &str, loads: &[CodeLoad], of_code: RowsOfCode) -> (Counts, u64) {
    let (_, calls) = ways(name);
    let (mut counts, mut unrecognised, mut shown) = (Counts::default(), 0, 0);
    let mut seen = HashSet::new();
    for load in loads {
        let Some(code) = load.code.as_deref() else { continue };
        let what = std::env::var("JITPROF_PATHS_RECORDED").is_ok();
        let recorded = load.eh_frame.as_ref().filter(|_| what);
        let table = match recorded {
            Some(eh) => rows_of_jit(Machine::X86_64, load.start.0, load.size, recorded_frames(eh)),
            None => of_code(Machine::X86_64, load.start.0, code),
        };
        let Some(table) = table else {
            unrecognised += 1;
            continue;
        };
        // The head of an Erlang function begins with what is not run there, and a module with data; V8's baseline code
        // calls its own prologue.
        let head = table.rule_at(load.start.0) == Rule::GAP || load.name.starts_with("JS:^");
        if head || load.name.ends_with("::codeHeader") || !seen.insert(code.to_vec()) {
            continue;
        }
        let rule_at = |at: usize| table.rule_at(load.start.0 + at as u64);
        counts += compare(code, rule_at, calls, |at, rule| {
            shown += 1;
            if shown <= 12 {
                println!("    wrong: {name} {} at {at:#x}: {rule:?}", load.name);
            }
        });
    }
    (counts, unrecognised)
}

fn show(name: &str, (counts, unrecognised): (Counts, u64)) {
    let Counts { functions, right, without_fp, none, gap_right, gap_none, gap_other, wrong, worse, by_fp, unknown } =
        counts;
    println!(
        "{name}: {functions} functions ({unrecognised} not recognised): right {right} (+{without_fp} without fp), none \
         {none}, gap {gap_right}/{gap_none}/{gap_other}, wrong {wrong}; frame pointers right {by_fp}, rows worse {worse}; \
         lost {unknown}"
    );
}

#[test]
fn rows_of_real_functions_are_right_on_every_path() {
    let dumps = ["wasmtime50", "cpython3.13.0-burn", "llvm14-nofp-g", "llvm14-fp", "node20-lines", "otp25-lines"];
    let picked = [
        "hotspot17-paths",
        "hotspot17-gaps",
        "node20-paths",
        "node24-paths",
        "node26-paths",
        "otp25-paths",
        "otp25fp-paths",
        "otp25-gaps",
        "ryujit10-paths",
    ];
    for name in dumps.into_iter().chain(picked) {
        let (counts, unrecognised) = compare_dump(name, &fixture(name));
        show(name, (counts, unrecognised));
        assert_eq!(counts.wrong, 0, "{name}");
        assert_eq!(counts.worse, 0, "{name}");
        assert_eq!(counts.gap_other, 0, "{name}");
        assert!(counts.right > 0, "{name}");
    }
}

#[test]
fn rows_by_the_stack_pointer_of_frames_of_one_size_are_right_on_every_path() {
    let name = "hotspot17-paths";
    let (by_either, by_sp) =
        (compare_dump(name, &fixture(name)), compare_rows(name, &fixture(name), rows_of_sized_code));
    show(name, by_sp);
    assert_eq!((by_sp.0.wrong, by_sp.0.worse), (0, 0));
    assert!(by_sp.0.right >= by_either.0.right && by_sp.1 <= by_either.1);
}

/// Prints the figures of the dumps named in `JITPROF_UNWIND_DUMPS`; the first part of a file's name is the producer.
///
/// ```text
/// JITPROF_UNWIND_DUMPS=a.dump.gz:b.dump.gz cargo test -p jitprof-unwind --release paths -- --ignored --nocapture
/// ```
#[test]
#[ignore = "a measurement"]
fn rows_of_named_dumps_are_right_on_every_path() {
    let (mut wrong, mut gap_other) = (0, 0);
    for (path, loads) in named_dumps() {
        let started = std::time::Instant::now();
        let found = compare_dump(&path, &loads);
        wrong += found.0.wrong;
        gap_other += found.0.gap_other;
        show(&path, found);
        println!("    {:?}", started.elapsed());
    }
    assert_eq!((wrong, gap_other), (0, 0));
}
