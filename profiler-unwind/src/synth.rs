//! Rows from code bytes, for jitted code without a usable EH frame.
//!
//! A plain walk of frame pointers loses the caller of the innermost function whenever the sample hit its prologue or
//! its epilogue, and everything if the code keeps no frame pointer. The bytes that a dump recorded say where the
//! stack pointer is at each instruction: this module follows every path from the first one through direct jumps and
//! keeps, for each instruction, which registers and places in memory hold an address of the frame or the caller's frame
//! pointer. Both ways to the CFA are kept, the frame pointer's and the stack pointer's.
//!
//! ```text
//! entry                 cfa = sp + 8
//! push, pop, add, sub   cfa = sp + n                 (and lea n(%rsp), %rsp)
//! push rbp              fp = *(cfa - n) from here on (and mov [rsp + m], rbp: HotSpot's C2)
//! mov rbp, rsp          cfa = fp + n from here on, whatever happens to sp
//! mov rsp, rbp          cfa = sp + n again           (V8, wasmtime: then pop rbp; BEAM: back from the C stack)
//! leave, pop rbp        cfa = sp + n - 8, fp is the caller's
//! and rsp, -64          sp is anywhere, rbp still leads to the CFA
//! mov [rsp + m], rbp    cfa = *(sp + m) + n from here on, whatever happens to rbp (oneDNN)
//! mov rsp, [rsp + m]    cfa = sp + n again           (and [r13 + m], where BEAM has saved it, also by a vector register)
//! mov rbp, rax          fp is lost, if it has not been saved
//! mov rbp, [rsp + m]    where it was stored if calls keep sp (HotSpot's stubs): they do, and cfa = sp + n again
//! ret                   must find cfa = sp + 8
//! ```
//!
//! What cannot be followed is a gap, where the checked frame pointer is used, unless the frame pointer may be the
//! caller's own, which would lead past the caller, or the stack is another one, by which it cannot be checked.
//!
//! A function is recognised only if that adds up: a frame is set up in the standard way, or a `ret` is reached with
//! the stack as it was at the entry, and no instruction is reached with two different stacks. Otherwise nothing is
//! said about it. That keeps out code that is jumped into in the middle of another frame (PHP's traces, which end
//! with a jump), where the first instruction's CFA would be wrong. Of runtimes whose code always begins with a return
//! address at `sp` the caller can say so: then a jump out of the function with the entry's stack counts like a `ret`
//! (Erlang's functions mostly end with one, V8's bytecode handlers all do).
//!
//! Bytes that no path reaches are gaps: jump tables, constants, targets of indirect jumps.

mod arm;
mod instruction;
mod places;
mod stack;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;

use foldhash::fast::RandomState;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic};
use jitprof_common::machine::Machine;
use jitprof_common::row::Rule;

use super::builder::RowTableBuilder;
use super::rows::RowTable;
use instruction::{Next, next_of};
use stack::Stack;

/// The longest function that is looked at. V8's largest builtins have 60 kB.
const MAX_CODE_BYTES: usize = 1 << 20;

/// Different stacks in one function; two bytes for each byte of code number them.
const MAX_STACKS: usize = 4096;

/// Instructions that are looked at, for each byte of code: each is a few times at most, and takes some bytes.
const STEPS_PER_BYTE: usize = 2;
/// The same for functions of a few bytes.
const LEAST_STEPS: usize = 1024;

/// `nop`.
const NOP: u8 = 0x90;

/// Nothing known yet about a byte.
const UNSEEN: u16 = u16::MAX;

/// The rows of the function whose bytes these are and that runs at `start`; `None` if its frame is not recognised.
///
/// Cost: each instruction is decoded once for each thing that a path shows not to hold, two instructions for each byte of
/// code at most, and that twice if both pointers do not add up (0.1 µs each time); memory of two bytes for each byte of
/// code.
pub fn rows_of_code(machine: Machine, start: u64, code: &[u8]) -> Option<RowTable> {
    rows_of(machine, start, code, Convention::Unknown)
}

/// The same for runtimes all of whose functions begin with their return address at `sp`, also those that are jumped
/// to (Erlang, V8; not PHP): recognises functions that only ever end with a jump. Calls are taken to return with the
/// stack as it was.
pub fn rows_of_called_code(machine: Machine, start: u64, code: &[u8]) -> Option<RowTable> {
    rows_of(machine, start, code, Convention::Called)
}

/// The same for runtimes whose frames have one size from the prologue to the epilogue (HotSpot): what is called takes
/// nothing off the stack, and rows go by `sp` wherever it is known. So they equal what the runtime says of the frame's size.
pub fn rows_of_sized_code(machine: Machine, start: u64, code: &[u8]) -> Option<RowTable> {
    rows_of(machine, start, code, Convention::Sized)
}

/// What is known of a runtime's functions beside their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Convention {
    Unknown,
    /// All begin with their return address at `sp`.
    Called,
    /// Their frames have one size.
    Sized,
}

fn rows_of(machine: Machine, start: u64, code: &[u8], convention: Convention) -> Option<RowTable> {
    let jumps_confirm = convention == Convention::Called;
    if code.is_empty() || code.len() > MAX_CODE_BYTES {
        return None;
    }
    let end = start.checked_add(u64::try_from(code.len()).ok()?)?;
    let mut builder = RowTableBuilder::default();
    match machine {
        Machine::X86_64 => {
            if let Some(call) = v8_baseline_call(code) {
                builder.add(start..end, [(start, Rule::ENTRY), (start.saturating_add(call), Rule::GAP)]);
                return Some(builder.finish().0);
            }
            if let Some(jump) = erlang_entry_jump(code) {
                let first = start.saturating_add(jump);
                builder.add(first..end, [(first, Rule::ENTRY)]);
                return Some(builder.finish().0);
            }
            // Code with a frame pointer may do with sp what does not add up, and with another one what does: only sp
            // leads on where it then uses the frame pointer for something else.
            let decoder = |both| X86::new(start, code, both, convention);
            let walk = |both| Walk::new(decoder(both), start, code.len(), jumps_confirm).rules();
            builder.add(start..end, walk(true).or_else(|| walk(false))?);
        }
        Machine::Aarch64 => {
            builder.add(start..end, Walk::new(arm::Code { start, code }, start, code.len(), jumps_confirm).rules()?);
        }
    }
    Some(builder.finish().0)
}

/// Where the CFA and what has been saved are before an instruction.
trait StackState: Copy + Eq + Hash {
    /// The first instruction of a function.
    const ENTRY: Self;

    /// Whether the CFA can be found, now or later.
    fn is_known(&self) -> bool;

    /// Whether the function cannot return like this.
    fn contradicts_return(&self) -> bool;

    /// Whether the return address is where the entry has found it, and the frame pointer no longer the function's own.
    fn is_at_return(&self) -> bool;

    /// What holds on two paths that come together, both known; `None` if that is too little.
    fn meet(self, other: Self) -> Option<Self>;

    /// The same where the other path's stack is not known: it is taken to be the same, but for what a wrong guess would
    /// make a claim about the caller of.
    fn meet_unknown(self, unknown: Self) -> Self;

    fn rule(&self) -> Rule;
}

/// What an instruction has shown about the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    None,
    /// The frame pointer, saved before, now points to where it was saved.
    FrameSetUp,
    /// Where the CFA is from here on depends on the path.
    Unclear,
}

/// An instruction that a path has reached.
struct Decoded<S> {
    length: usize,
    after: S,
    effect: Effect,
    next: Next,
}

/// A machine's instructions.
trait Instructions {
    type Stack: StackState;

    /// The instruction at an offset, reached with a stack; `None` if it is none, or cut off.
    fn decode(&mut self, at: usize, stack: Self::Stack) -> Option<Decoded<Self::Stack>>;

    /// How it goes on from an instruction with such a stack.
    fn rule(&self, stack: &Self::Stack) -> Rule {
        stack.rule()
    }
}

struct X86<'a> {
    start: u64,
    decoder: Decoder<'a>,
    infos: InstructionInfoFactory,
    /// Whether `sp` is followed also where the frame pointer leads to the CFA.
    follows_both: bool,
    code: &'a [u8],
    convention: Convention,
}

impl<'a> X86<'a> {
    fn new(start: u64, code: &'a [u8], follows_both: bool, convention: Convention) -> Self {
        let decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
        Self { start, decoder, infos: InstructionInfoFactory::new(), follows_both, code, convention }
    }

    /// Whether a call does not return: Erlang's to what raises errors, each with one `nop` behind it, which keeps the return
    /// address in the function. What follows it belongs to another path, and may have another stack.
    fn never_returns(&self, instruction: &Instruction, next: usize) -> bool {
        let leads_out = || {
            let target = instruction.near_branch_target().wrapping_sub(self.start);
            usize::try_from(target).map_or(true, |target| target >= self.code.len())
        };
        self.convention == Convention::Called
            && instruction.flow_control() == FlowControl::Call
            && self.code.get(next) == Some(&NOP)
            && leads_out()
    }
}

impl Instructions for X86<'_> {
    type Stack = Stack;

    fn decode(&mut self, at: usize, stack: Stack) -> Option<Decoded<Stack>> {
        self.decoder.set_position(at).ok()?;
        self.decoder.set_ip(self.start.wrapping_add(u64::try_from(at).ok()?));
        let instruction = self.decoder.decode();
        if instruction.is_invalid() {
            return None;
        }
        let (mut after, effect) = stack.after(&instruction, &mut self.infos);
        if self.convention == Convention::Sized && instruction.mnemonic() == Mnemonic::Call {
            after.keep_sp(&stack);
        }
        let after = if self.follows_both { after } else { after.by_frame_alone() };
        let never_returns = self.never_returns(&instruction, at.saturating_add(instruction.len()));
        let next = if never_returns { Next::Nowhere } else { next_of(&instruction) };
        Some(Decoded { length: instruction.len(), after, effect, next })
    }

    fn rule(&self, stack: &Stack) -> Rule {
        match self.convention {
            Convention::Sized => stack.rule_by_sp(),
            Convention::Called => stack.rule_of_called(),
            Convention::Unknown => stack.rule(),
        }
    }
}

/// Where V8's baseline code calls the builtin that sets up its frame: the one call known that returns with another
/// stack. Until it, the return address is at `sp`; behind it, the frame pointer leads on. Node 20 writes
///
/// ```text
/// mov $size, %ebx (or xor %ebx, %ebx);  movabs $closure, %r12;  call BaselineOutOfLinePrologue
/// ```
fn v8_baseline_call(code: &[u8]) -> Option<u64> {
    let (size_bytes, rest) = match code {
        [0xbb, _, _, _, _, rest @ ..] => (5, rest),
        [0x33, 0xdb, rest @ ..] => (2, rest),
        _ => return None,
    };
    matches!(rest, [0x49, 0xbc, _, _, _, _, _, _, _, _, 0xe8, _, _, _, _, ..]).then_some(size_bytes + 10)
}

/// Where the head of an Erlang function ends with its only instructions that run: a jump over a call that a breakpoint
/// turns on, to the function behind. Calls from other modules and loops enter here, with the stack of an entry: 3 % of
/// the samples of a tight loop. Before it stand a call to the error of no matching clause, and data. OTP 25 writes
///
/// ```text
/// call func_info;  align 8;  40 bytes of data;  jmp +6;  flag;  call breakpoint;  (the function)
/// ```
fn erlang_entry_jump(code: &[u8]) -> Option<u64> {
    let head = code.len().checked_sub(8)?;
    let (before, jump) = code.split_at(head);
    let is_head = matches!(jump, [0xeb, 6, _, 0xe8, ..]) && before.first() == Some(&0xe8) && head == 40;
    is_head.then(|| u64::try_from(head).ok()).flatten()
}

/// Follows the paths through a function.
struct Walk<I: Instructions> {
    start: u64,
    instructions: I,
    /// For each byte of an instruction that a path reached, which stack it has.
    seen: Vec<u16>,
    stacks: Vec<I::Stack>,
    /// The stacks' numbers. The hash has a seed: who writes the code shall not choose what collides.
    numbers: HashMap<I::Stack, u16, RandomState>,
    /// The number that was asked for last: most instructions leave all that is followed as it is.
    latest: u16,
    /// Where paths go on, and with which stack.
    pending: Vec<(usize, I::Stack)>,
    steps_left: usize,
    /// A jump out of the function with the entry's stack shows as much as a return.
    jumps_confirm: bool,
    recognised: bool,
}

impl<I: Instructions> Walk<I> {
    fn new(instructions: I, start: u64, length: usize, jumps_confirm: bool) -> Self {
        Self {
            start,
            instructions,
            seen: vec![UNSEEN; length],
            stacks: Vec::new(),
            numbers: HashMap::default(),
            latest: 0,
            steps_left: length.saturating_mul(STEPS_PER_BYTE).max(LEAST_STEPS),
            pending: vec![(0, I::Stack::ENTRY)],
            jumps_confirm,
            recognised: false,
        }
    }

    /// `None` if something does not add up.
    fn run(&mut self) -> Option<()> {
        while let Some((mut at, mut stack)) = self.pending.pop() {
            while let Some(news) = self.news(at, stack)? {
                let Some((next, after)) = self.step(at, news)? else { break };
                (at, stack) = (next, after);
            }
        }
        Some(())
    }

    /// The stack with which an instruction has to be looked at (again), if it has; `None` if it has been seen with another
    /// that does not go with this one.
    ///
    /// What is known about an instruction only becomes less, so this ends.
    fn news(&self, at: usize, stack: I::Stack) -> Option<Option<I::Stack>> {
        let Some(index) = self.seen.get(at) else { return Some(None) };
        let Some(known) = self.stacks.get(usize::from(*index)) else { return Some(Some(stack)) };
        Some(match (known.is_known(), stack.is_known()) {
            (false, false) => None,
            (true, false) => Some(known.meet_unknown(stack)).filter(|met| met != known),
            (false, true) => Some(stack.meet_unknown(*known)),
            (true, true) => Some(known.meet(stack)?).filter(|met| met != known),
        })
    }

    /// Decodes one instruction; says where the path goes on, if it does.
    fn step(&mut self, at: usize, stack: I::Stack) -> Option<Option<(usize, I::Stack)>> {
        self.steps_left = self.steps_left.checked_sub(1)?;
        let Some(instruction) = self.instructions.decode(at, stack) else {
            // Not code, or the function is cut off: nothing is known from here on.
            return Some(None);
        };
        self.mark(at, instruction.length, stack)?;
        match instruction.effect {
            Effect::None => {}
            Effect::FrameSetUp => self.recognised = true,
            Effect::Unclear => return None,
        }
        self.go_on(at, &instruction)
    }

    fn go_on(&mut self, at: usize, instruction: &Decoded<I::Stack>) -> Option<Option<(usize, I::Stack)>> {
        let following = at.checked_add(instruction.length)?;
        let after = instruction.after;
        Some(match instruction.next {
            Next::Following => Some((following, after)),
            Next::Nowhere => None,
            Next::Return => {
                if after.contradicts_return() {
                    return None;
                }
                self.recognised |= after.is_at_return();
                None
            }
            Next::Jump(target) => match self.inside(target) {
                // A call of itself that takes the place of its own: servers never do anything else.
                Some(target) => {
                    self.recognised |= target < at && self.jumps_confirm && after.is_at_return();
                    Some((target, after))
                }
                None => self.leave(after),
            },
            Next::Leave => self.leave(after),
            Next::Branch(target) => {
                if let Some(target) = self.inside(target) {
                    self.pending.push((target, after));
                }
                Some((following, after))
            }
        })
    }

    /// A jump out of the function, or to where only the run shows.
    fn leave<T>(&mut self, after: I::Stack) -> Option<T> {
        self.recognised |= self.jumps_confirm && after.is_at_return();
        None
    }

    fn inside(&self, target: u64) -> Option<usize> {
        let offset = usize::try_from(target.wrapping_sub(self.start)).ok()?;
        (offset < self.seen.len()).then_some(offset)
    }

    fn mark(&mut self, at: usize, length: usize, stack: I::Stack) -> Option<()> {
        let index = self.number(stack)?;
        self.seen.get_mut(at..at.checked_add(length)?)?.fill(index);
        Some(())
    }

    fn number(&mut self, stack: I::Stack) -> Option<u16> {
        if self.stacks.get(usize::from(self.latest)) == Some(&stack) {
            return Some(self.latest);
        }
        self.latest = match self.numbers.entry(stack) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(unknown) => {
                let number =
                    u16::try_from(self.stacks.len()).ok().filter(|number| usize::from(*number) < MAX_STACKS)?;
                self.stacks.push(stack);
                *unknown.insert(number)
            }
        };
        Some(self.latest)
    }

    /// The rule at each byte; `None` if the function is not recognised.
    fn rules(mut self) -> Option<impl Iterator<Item = (u64, Rule)>> {
        self.run()?;
        let rules: Vec<Rule> = self.stacks.iter().map(|stack| self.instructions.rule(stack)).collect();
        let rule = move |index: u16| rules.get(usize::from(index)).copied().unwrap_or(Rule::GAP);
        self.recognised.then(|| (self.start..=u64::MAX).zip(self.seen.into_iter().map(rule)))
    }
}
