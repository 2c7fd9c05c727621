//! Rows of generated code that runs within an interpreter's loop: all of it has frames of one size, except where they are
//! made and given up. Such code calls itself by jumps, has no functions, and says nowhere where it begins.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use jitprof_common::row::{CfaKind, FpKind, Rule};

use super::builder::RowTableBuilder;
use super::rows::RowTable;

/// Bytes of a word.
const WORD: i64 = 8;
/// From an instruction that pushes a register, in its last byte, to the one that pops it.
const TO_POP: u8 = 8;
/// Without operands.
const RETURN: u8 = 0xc3;
/// Bytes from the last register that is popped to the return: a value may be loaded in between.
const MAX_BEFORE_RETURN: usize = 16;
/// push rbp; mov rbp, rsp; push rbp.
const KEEPS_FRAME_POINTER: &[u8] = &[0x55, 0x48, 0x89, 0xe5, 0x55];
/// What a call has returned is pushed twice, so that the stack stays aligned: YJIT keeps a new hash so, and the parts of a
/// regular expression, while it fills them. The calls that come before: by a distance, or by rax.
const RESULT_TWICE: [u8; 2] = [0x50, 0x50];
const CALL: u8 = 0xe8;
const CALL_BYTES: usize = 5;
const CALL_BY_REGISTER: [u8; 2] = [0xff, 0xd0];
/// push rsi; push rdi; push r8; push r9; push r10; push rax: what Ruby 3.3's stubs keep while they have code made.
const SIX_REGISTERS: [u8; 9] = [0x56, 0x57, 0x41, 0x50, 0x41, 0x51, 0x41, 0x52, 0x50];
/// sub rsp, by a byte or by four: what PHP's stubs do before they call.
const ROOM: [u8; 3] = [0x48, 0x83, 0xec];
const MORE_ROOM: [u8; 3] = [0x48, 0x81, 0xec];
/// Bytes of code that are followed from there on. The one that keeps all registers, PHP's for leaving a trace, has 234.
pub const MAX_HELD_BYTES: usize = 512;
/// Instructions that are followed in one piece of code; of 4 KiB of PHP's stubs it is some hundred.
const MAX_FOLLOWED: usize = 4096;

/// The frame of such code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopFrame<'a> {
    /// Bytes of it, the return address included.
    pub bytes: u32,
    /// How far below the caller's stack pointer the caller's frame pointer is; nothing where code leaves that alone.
    pub fp_below: Option<u32>,
    /// The instructions by which it is made where the loop calls the code, each one that pushes a register; none where the
    /// loop jumps there, whose own frame it is then.
    pub pushes: &'a [&'a [u8]],
}

impl LoopFrame<'_> {
    /// Where so many bytes are held besides it.
    fn rule(&self, more: i64) -> Rule {
        let rule = Rule::with_cfa(CfaKind::Sp, i64::from(self.bytes).saturating_add(more));
        match self.fp_below {
            Some(below) => rule.with_fp(FpKind::AtCfa, -i64::from(below)),
            None => rule,
        }
    }
}

/// The rows of a part of such code, for x86-64: of the addresses `within`, of which `code`, from `start` on, shows what is
/// around, too.
pub fn rows_of_loop_code(start: u64, code: &[u8], within: Range<u64>, frame: LoopFrame<'_>) -> Option<RowTable> {
    let end = start.checked_add(code.len() as u64)?;
    let mut rules = vec![(0, frame.rule(0))];
    rules.extend(where_more_is_held(code, frame));
    rules.extend(where_frames_are_made(code, frame));
    rules.sort_by_key(|(at, _)| *at);
    let mut builder = RowTableBuilder::within(within);
    builder.add(start..end, rules.into_iter().map(|(at, rule)| (start.saturating_add(at as u64), rule)));
    Some(builder.finish().0)
}

/// Whether such code keeps the frame pointer, which is made as any function's is and pushed once more: the one of
/// `--yjit-perf`. All of it is walked by that.
pub fn loop_code_keeps_frame_pointer(code: &[u8], frame: LoopFrame<'_>) -> bool {
    let begin = [&[KEEPS_FRAME_POINTER][..], frame.pushes].concat().concat();
    !frame.pushes.is_empty() && memchr::memmem::find(code, &begin).is_some()
}

fn where_frames_are_made(code: &[u8], frame: LoopFrame<'_>) -> Vec<(usize, Rule)> {
    let mut rules = Vec::new();
    if frame.pushes.is_empty() {
        return rules;
    }
    let whole = frame.rule(0);
    let of_depth = |depth: usize| Rule::with_cfa(CfaKind::Sp, (depth as i64 + 1) * WORD);
    for at in memchr::memmem::find_iter(code, &frame.pushes.concat()) {
        let ends = frame.pushes.iter().scan(at, |end, push| {
            *end += push.len();
            Some(*end)
        });
        let depths = std::iter::once(at).chain(ends).enumerate();
        rules.extend(depths.map(|(depth, at)| (at, if depth == frame.pushes.len() { whole } else { of_depth(depth) })));
    }
    let pops: Vec<Vec<u8>> = frame.pushes.iter().rev().map(|push| popping(push)).collect();
    for at in memchr::memmem::find_iter(code, &pops.concat()) {
        let mut end = at;
        for (popped, pop) in (1..).zip(&pops) {
            end += pop.len();
            rules.push((end, of_depth(frame.pushes.len() - popped)));
        }
        let rest = code.get(end..).unwrap_or_default();
        let returns = rest.iter().take(MAX_BEFORE_RETURN).position(|byte| *byte == RETURN);
        rules.push((end + returns.map_or(0, |at| at + 1), whole));
    }
    rules
}

/// The rules of the instructions while code holds more than its frame, around calls; where it is not certain how much, of
/// all that was followed from there, that it is not known.
fn where_more_is_held(code: &[u8], frame: LoopFrame<'_>) -> Vec<(usize, Rule)> {
    let mut held: BTreeMap<usize, (Rule, usize)> = BTreeMap::new();
    let mut followed_in_all = 0;
    for from in begins_to_hold(code) {
        if held.contains_key(&from) {
            continue;
        }
        if followed_in_all > MAX_FOLLOWED {
            held.insert(from, (Rule::UNSUPPORTED, code.len()));
            break;
        }
        let (followed, certain) = follow(code, from);
        followed_in_all += followed.len();
        let rule = |more: i64| match certain {
            None => Rule::UNSUPPORTED,
            Some(Certain { before, is_called: true }) => Rule::with_cfa(CfaKind::Sp, WORD + before + more),
            Some(Certain { before, is_called: false }) => frame.rule(before + more),
        };
        for (at, (more, end)) in followed {
            held.entry(at).or_insert((rule(more), end));
        }
    }
    // Of two at one address the later counts.
    let ends = held.values().map(|(_, end)| (*end, frame.rule(0)));
    ends.chain(held.iter().map(|(at, (rule, _))| (*at, *rule))).collect()
}

/// Where code may begin to hold more, ascending.
fn begins_to_hold(code: &[u8]) -> BTreeSet<usize> {
    let is_result = |at: &usize| {
        let before = code.get(..*at).unwrap_or_default();
        before.ends_with(&CALL_BY_REGISTER) || before.len().checked_sub(CALL_BYTES).is_some_and(|at| before[at] == CALL)
    };
    let results = memchr::memmem::find_iter(code, &RESULT_TWICE).filter(is_result);
    let others = [&SIX_REGISTERS[..], &ROOM[..], &MORE_ROOM[..]];
    results.chain(others.iter().flat_map(|begin| memchr::memmem::find_iter(code, *begin))).collect()
}

/// Instructions by the offset of their first byte: how many bytes are held before each of them, since those began, and its end.
type Followed = BTreeMap<usize, (i64, usize)>;

/// What is certain of code that was followed: it gives up as much everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Certain {
    /// Bytes that were held before.
    before: i64,
    /// It returns then, to such code, and had no frame before but the return address.
    is_called: bool,
}

/// Follows code that begins to hold more to where it gives that up.
fn follow(code: &[u8], from: usize) -> (Followed, Option<Certain>) {
    let window = code.get(..from.saturating_add(MAX_HELD_BYTES)).unwrap_or(code);
    let (mut followed, mut ends, mut is_certain) = (Followed::new(), BTreeSet::new(), true);
    let mut paths = vec![(from, 0_i64)];
    while let Some((mut at, mut more)) = paths.pop() {
        while let Some(rest) = window.get(at..).filter(|rest| !rest.is_empty() && at >= from) {
            if let Some((known, _)) = followed.get(&at) {
                is_certain &= *known == more;
                break;
            }
            let instruction = Decoder::with_ip(64, rest, at as u64, DecoderOptions::NONE).decode();
            let end = at + instruction.len().max(1);
            followed.insert(at, (more, end));
            let Some(change) = change_of_depth(&instruction) else {
                is_certain = false;
                break;
            };
            more += change;
            if change < 0 && more <= 0 {
                let is_called = code.get(end) == Some(&RETURN);
                ends.insert(Certain { before: -more, is_called });
                if is_called {
                    followed.insert(end, (more, end + 1));
                }
                break;
            }
            match leads_to(&instruction) {
                (None, false) => break,
                (Some(target), false) => at = target,
                (target, true) => {
                    paths.extend(target.map(|target| (target, more)));
                    at = end;
                }
            }
        }
    }
    is_certain &= ends.len() == 1 && followed.values().any(|(more, _)| *more > 0);
    let certain = ends.first().copied().filter(|end| is_certain && end.before <= WORD);
    (followed, certain)
}

/// Where an instruction jumps to, if it is known, and whether the next one may come behind it.
fn leads_to(instruction: &Instruction) -> (Option<usize>, bool) {
    let target = || usize::try_from(instruction.near_branch_target()).ok();
    match instruction.flow_control() {
        FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall => (None, true),
        FlowControl::ConditionalBranch => (target(), true),
        FlowControl::UnconditionalBranch => (target(), false),
        _ => (None, false),
    }
}

/// How many bytes more are held behind an instruction; nothing if it moves the stack pointer anywhere else, or is none.
fn change_of_depth(instruction: &Instruction) -> Option<i64> {
    let is_of_sp = instruction.op0_kind() == OpKind::Register && instruction.op0_register() == Register::RSP;
    let room = || instruction.try_immediate(1).ok().map(u64::cast_signed);
    match (instruction.mnemonic(), instruction.flow_control()) {
        (Mnemonic::INVALID, _) | (_, FlowControl::Return) => None,
        (Mnemonic::Sub, _) if is_of_sp => room(),
        (Mnemonic::Add, _) if is_of_sp => room().map(i64::wrapping_neg),
        (Mnemonic::Cmp | Mnemonic::Test, _) => Some(0),
        _ if is_of_sp => None,
        (_, FlowControl::Next) => Some(-i64::from(instruction.stack_pointer_increment())),
        _ => Some(0),
    }
}

/// The instruction that undoes one.
fn popping(push: &[u8]) -> Vec<u8> {
    let mut pop = push.to_vec();
    if let Some(last) = pop.last_mut() {
        *last = last.wrapping_add(TO_POP);
    }
    pop
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUSHES: [&[u8]; 3] = [&[0x41, 0x55], &[0x41, 0x54], &[0x53]];

    fn cfa_at(rows: &RowTable, address: u64) -> Option<i16> {
        let rule = rows.rule_at(address);
        (rule.cfa == CfaKind::Sp && rule.fp == FpKind::Same).then_some(rule.cfa_offset)
    }

    #[test]
    fn frames_are_made_and_given_up_by_the_code_that_does_so() {
        let frame = LoopFrame { bytes: 32, fp_below: None, pushes: &PUSHES };
        // What ran before; push r13; push r12; push rbx; nop; pop rbx; pop r12; pop r13; mov eax, 52; ret; what is behind.
        let code = b"\x90\x90\x41\x55\x41\x54\x53\x90\x5b\x41\x5c\x41\x5d\xb8\x34\0\0\0\xc3\x90";
        let rows = rows_of_loop_code(0x1000, code, 0..u64::MAX, frame).unwrap();
        let expected =
            [(0, 4), (1, 4), (2, 1), (4, 2), (6, 3), (7, 4), (8, 4), (9, 3), (11, 2), (13, 1), (18, 1), (19, 4)];
        for (at, words) in expected {
            assert_eq!(cfa_at(&rows, 0x1000 + at), Some(words), "at {at}");
        }
        assert_eq!(cfa_at(&rows, 0x1000 + code.len() as u64), None, "nothing is known behind");
    }

    #[test]
    fn a_frame_that_is_the_loops_own_is_there_everywhere() {
        let frame = LoopFrame { bytes: 160, fp_below: Some(32), pushes: &[] };
        let rows = rows_of_loop_code(0x1000, &[0x41, 0x55, 0xc3, 0x90], 0..u64::MAX, frame).unwrap();
        for at in 0..4 {
            let rule = rows.rule_at(0x1000 + at);
            assert_eq!((rule.cfa, rule.cfa_offset, rule.fp, rule.fp_offset), (CfaKind::Sp, 20, FpKind::AtCfa, -4));
        }
        assert!(rows_of_loop_code(u64::MAX, &[0x90; 2], 0..u64::MAX, frame).is_none());
    }

    const YJIT: LoopFrame<'_> = LoopFrame { bytes: 32, fp_below: None, pushes: &PUSHES };
    const PHP: LoopFrame<'_> = LoopFrame { bytes: 160, fp_below: Some(32), pushes: &[] };
    /// call; push rax; push rax; mov edi, 4; lea rsi, [rbx - 0x20]; mov rdx, rax; call; pop rax; pop rax; mov [rbx - 0x20], rax
    const NEW_HASH: &[u8] = b"\xe8\xc0\x18\xa6\xff\x50\x50\xbf\x04\0\0\0\x48\x8d\x73\xe0\x48\x89\xc2\xe8\x2d\x3f\xa6\xff\x58\x58\x48\x89\x43\xe0";

    /// Words from the stack pointer to the caller's, at offsets of code.
    fn words_at(code: &[u8], frame: LoopFrame<'_>, at: &[u64]) -> Vec<i16> {
        let rows = rows_of_loop_code(0x1000, code, 0..u64::MAX, frame).unwrap();
        let words = |at: &u64| {
            let rule = rows.rule_at(0x1000 + at);
            if rule.cfa == CfaKind::Sp { rule.cfa_offset } else { -1 }
        };
        at.iter().map(words).collect()
    }

    #[test]
    fn what_yjit_keeps_around_a_call_is_above_its_frame() {
        let at = [0, 5, 6, 7, 12, 19, 24, 25, 26, 29];
        assert_eq!(words_at(NEW_HASH, YJIT, &at), [4, 4, 5, 6, 6, 6, 6, 5, 4, 4]);
        // call; push rax; push rax; mov rdi, rax; mov esi, 0; call; pop rcx; pop rdi; mov [rbx - 0x18], rax
        let regexp =
            b"\xe8\x30\xc1\x9c\xff\x50\x50\x48\x89\xc7\xbe\0\0\0\0\xe8\x71\xa7\xb3\xff\x59\x5f\x48\x89\x43\xe8";
        assert_eq!(words_at(regexp, YJIT, &[5, 6, 7, 15, 20, 21, 22]), [4, 5, 6, 6, 6, 5, 4]);
        // push rsi; push rdi; push r8; push r9; push r10; push rax; mov rdi, rax; call rax; and back; jmp rax
        let stub =
            b"\x56\x57\x41\x50\x41\x51\x41\x52\x50\x48\x89\xc7\xff\xd0\x58\x41\x5a\x41\x59\x41\x58\x5f\x5e\xff\xe0";
        let at = [0, 1, 2, 4, 6, 8, 9, 14, 15, 17, 19, 21, 22, 23];
        assert_eq!(words_at(stub, YJIT, &at), [4, 5, 6, 7, 8, 9, 10, 10, 9, 8, 7, 6, 5, 4]);
    }

    #[test]
    fn bytes_that_no_call_comes_before_are_no_pushes_of_its_result() {
        // mov rax, 0x5050; nop
        assert_eq!(words_at(b"\x48\xb8\x50\x50\0\0\0\0\0\0\x90", YJIT, &[0, 3, 4, 10]), [4; 4]);
    }

    #[test]
    fn where_it_is_not_certain_how_much_is_held_it_is_not_known() {
        let unsupported = |code: &[u8], at: u64| {
            let rows = rows_of_loop_code(0x1000, code, 0..u64::MAX, YJIT).unwrap();
            rows.rule_at(0x1000 + at).cfa == CfaKind::Unsupported
        };
        // call; push rax; push rax; ret; nop
        let never = b"\xe8\0\0\0\0\x50\x50\xc3\x90";
        assert_eq!([0, 4, 6, 7, 8].map(|at| unsupported(never, at)), [false, false, true, true, false]);
        // call; push rax; push rax; mov rsp, rdi; nop
        assert!(unsupported(b"\xe8\0\0\0\0\x50\x50\x48\x89\xfc\x90", 7));
        // call; push rax; push rax; je to the second pop; pop rax; pop rax; nop
        assert!(unsupported(b"\xe8\0\0\0\0\x50\x50\x74\x01\x58\x58\x90", 9));
    }

    #[test]
    fn a_stub_that_is_called_has_its_return_address_and_what_it_made_room_for() {
        // sub rsp, 8; je behind the return; nop; add rsp, 8; ret; xor edi, edi; jmp to the addition; nop
        let stub = b"\x48\x83\xec\x08\x74\x06\x90\x48\x83\xc4\x08\xc3\x31\xff\xeb\xf7\x90";
        assert_eq!(words_at(stub, PHP, &[0, 4, 6, 7, 11, 12, 14, 16]), [1, 2, 2, 2, 1, 2, 2, 20]);
        // sub rsp, 0xf8; call rax; add rsp, 0x100; test eax, eax: with a number that was pushed before.
        let trace_exit = b"\x48\x81\xec\xf8\0\0\0\xff\xd0\x48\x81\xc4\0\x01\0\0\x85\xc0";
        assert_eq!(words_at(trace_exit, PHP, &[0, 7, 9, 16, 17]), [21, 52, 52, 20, 20]);
    }

    #[test]
    fn rows_are_of_what_was_asked_for_by_what_is_around() {
        let rows = rows_of_loop_code(0x1000, NEW_HASH, 0x100c..0x1013, YJIT).unwrap();
        assert_eq!([0x100b, 0x100c, 0x1012, 0x1013].map(|at| cfa_at(&rows, at)), [None, Some(6), Some(6), None]);
    }

    #[test]
    fn code_that_keeps_the_frame_pointer_is_known_by_its_beginning() {
        // push rbp; mov rbp, rsp; push rbp; push r13; push r12; push rbx
        let perf = b"\x90\x55\x48\x89\xe5\x55\x41\x55\x41\x54\x53";
        assert!(loop_code_keeps_frame_pointer(perf, YJIT) && !loop_code_keeps_frame_pointer(&perf[6..], YJIT));
        assert!(!loop_code_keeps_frame_pointer(perf, PHP));
    }

    #[test]
    fn code_cut_or_changed_anywhere_has_rows_and_costs_no_more() {
        for at in 0..NEW_HASH.len() {
            assert!(rows_of_loop_code(0x1000, &NEW_HASH[..at], 0..u64::MAX, YJIT).is_some());
            for bit in 0..8 {
                let mut code = NEW_HASH.to_vec();
                code[at] ^= 1 << bit;
                assert!(rows_of_loop_code(0x1000, &code, 0..u64::MAX, YJIT).is_some());
            }
        }
        // sub rsp, 8; jmp behind the next two: each is followed for itself.
        let hostile = [0x48, 0x83, 0xec, 0x08, 0xeb, 0x06].repeat(4096);
        assert!(rows_of_loop_code(0x1000, &hostile, 0..u64::MAX, PHP).is_some());
    }
}
