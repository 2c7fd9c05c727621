//! Whose loop it is that runs at an address of optimised code.
//!
//! V8's tables have the positions of calls. Between two calls nothing says which of the functions that were inlined runs:
//! a hot loop of theirs would be the outermost function's. But each loop asks in every turn whether it shall stop (it
//! compares the stack pointer with a limit), and the call that it makes if so has a position like any other: that of the
//! function whose loop it is. Whatever runs within the loop runs below that function.
//!
//! ```text
//! instructions ─▶ blocks ─▶ dominators ─▶ natural loops ─▶ the smallest with a check around each block
//! ```
//!
//! What was inlined into the loop's function and has no loop of its own is not told from it: its callers are right, and it
//! is not there.

use std::collections::{BTreeMap, BTreeSet};

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

/// Code with more blocks or loops has none.
const MAX_BLOCKS: usize = 1 << 13;
const MAX_LOOPS: usize = 1 << 8;
/// Steps of everything that is more than linear in the size of code.
const MAX_STEPS: u32 = 1 << 21;
/// Instructions between the check and the call for those that do not go on.
const MAX_SLOW: usize = 32;
/// Where code begins that is entered in the middle of a loop, what comes first is a call that ends the program, and a
/// breakpoint: the entry lies behind it. Within so many bytes.
const PROLOGUE: u32 = 64;
/// V8's register for what belongs to a thread, the limit of its stack among it.
const ROOT: Register = Register::R13;

/// A part of code that lies in a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InLoop {
    start: u32,
    end: u32,
    /// Where the call returns to that the smallest such loop makes where it shall stop.
    call: u32,
}

/// Where the call returns to whose position is that of the smallest loop around an offset.
pub(super) fn call_of_loop(parts: &[InLoop], offset: u64) -> Option<u32> {
    let behind = parts.partition_point(|part| u64::from(part.start) <= offset);
    let part = parts[..behind].last()?;
    (offset < u64::from(part.end)).then_some(part.call)
}

/// All parts of code that lie in loops, in their order. None of code that is not understood.
pub(super) fn loops(code: &[u8]) -> Box<[InLoop]> {
    let steps = decode(code);
    let mut budget = MAX_STEPS;
    Graph::of(&steps).and_then(|graph| graph.parts(&mut budget)).unwrap_or_default()
}

/// An instruction.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// Where it ends.
    end: u32,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Other,
    Call,
    /// Compares the stack pointer with a limit.
    Check,
    Jump {
        to: u32,
        condition: Condition,
    },
    /// Nothing that is known comes after it.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Always,
    /// Where the stack pointer is at or below the limit, if that was compared.
    Below,
    /// The opposite.
    Above,
    Other,
}

/// The instructions that can be reached from the first by jumps whose target is known.
fn decode(code: &[u8]) -> BTreeMap<u32, Step> {
    let mut steps = BTreeMap::new();
    let mut open = vec![0_u32];
    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    while let Some(mut at) = open.pop() {
        while !steps.contains_key(&at) && (at as usize) < code.len() && decoder.set_position(at as usize).is_ok() {
            decoder.set_ip(at.into());
            decoder.decode_out(&mut instruction);
            let step = step(&instruction);
            steps.insert(at, step);
            if let Kind::Jump { to, .. } = step.kind {
                open.push(to);
            }
            if matches!(step.kind, Kind::End | Kind::Jump { condition: Condition::Always, .. }) {
                break;
            }
            at = step.end;
        }
    }
    steps
}

fn step(instruction: &Instruction) -> Step {
    let target = || u32::try_from(instruction.near_branch_target()).ok();
    let jump = |condition| target().map_or(Kind::End, |to| Kind::Jump { to, condition });
    let kind = match instruction.flow_control() {
        FlowControl::Next if is_check(instruction) => Kind::Check,
        FlowControl::Next => Kind::Other,
        FlowControl::Interrupt if instruction.mnemonic() == Mnemonic::Int3 && instruction.ip() < PROLOGUE.into() => {
            Kind::Other
        }
        FlowControl::Call | FlowControl::IndirectCall => Kind::Call,
        FlowControl::UnconditionalBranch => jump(Condition::Always),
        FlowControl::ConditionalBranch => jump(match instruction.mnemonic() {
            Mnemonic::Jbe => Condition::Below,
            Mnemonic::Ja => Condition::Above,
            _ => Condition::Other,
        }),
        _ => Kind::End,
    };
    Step { end: u32::try_from(instruction.next_ip()).unwrap_or(u32::MAX), kind }
}

fn is_check(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Cmp
        && instruction.op0_kind() == OpKind::Register
        && instruction.op0_register() == Register::RSP
        && instruction.op1_kind() == OpKind::Memory
        && instruction.memory_base() == ROOT
        && instruction.memory_index() == Register::None
}

/// Instructions that run one after the other.
#[derive(Clone, Debug, Default)]
struct Block {
    start: u32,
    end: u32,
    next: Vec<usize>,
    before: Vec<usize>,
    /// Where the calls return to that are made instead of going on, by the checks in it.
    checks: Vec<u32>,
}

/// Blocks in reverse postorder: the first is the entry, and each that can be reached by no jump back comes after those
/// that lead to it.
struct Graph(Vec<Block>);

impl Graph {
    fn of(steps: &BTreeMap<u32, Step>) -> Option<Self> {
        let mut leaders = BTreeSet::from([0]);
        for step in steps.values() {
            if let Kind::Jump { to, .. } = step.kind {
                leaders.extend([to, step.end]);
            }
        }
        leaders.retain(|leader| steps.contains_key(leader));
        if leaders.len() > MAX_BLOCKS {
            return None;
        }
        let leaders: Vec<u32> = leaders.into_iter().collect();
        let index = |at: u32| leaders.binary_search(&at).ok();
        let blocks: Vec<Block> = leaders.iter().map(|leader| block(steps, *leader, &index)).collect();
        Some(Self::in_order(&blocks))
    }

    /// Leaves out what is not reached from the first.
    fn in_order(blocks: &[Block]) -> Self {
        let mut order = Vec::new();
        let mut seen = vec![false; blocks.len()];
        let mut open = vec![(0, 0)];
        while let Some((block, child)) = open.pop() {
            let Some(of) = blocks.get(block) else { continue };
            seen[block] = true;
            match of.next.get(child) {
                Some(next) => {
                    open.push((block, child + 1));
                    if !seen[*next] {
                        open.push((*next, 0));
                    }
                }
                None => order.push(block),
            }
        }
        order.reverse();
        let mut number = vec![None; blocks.len()];
        for (new, old) in order.iter().enumerate() {
            number[*old] = Some(new);
        }
        let mut sorted: Vec<Block> = order.iter().map(|old| blocks[*old].clone()).collect();
        for block in &mut sorted {
            block.next = block.next.iter().filter_map(|old| number[*old]).collect();
        }
        for block in 0..sorted.len() {
            for next in sorted[block].next.clone() {
                sorted[next].before.push(block);
            }
        }
        Self(sorted)
    }

    /// For each block the one that is always run before it and comes last of all such. `None` if that takes too long.
    fn dominators(&self, budget: &mut u32) -> Option<Vec<usize>> {
        const UNKNOWN: usize = usize::MAX;
        let mut dominators = vec![UNKNOWN; self.0.len()];
        *dominators.first_mut()? = 0;
        let mut changed = true;
        while changed {
            changed = false;
            for (index, block) in self.0.iter().enumerate().skip(1) {
                let mut found = UNKNOWN;
                for before in &block.before {
                    if dominators[*before] == UNKNOWN {
                        continue;
                    }
                    if found == UNKNOWN {
                        found = *before;
                    }
                    let mut other = *before;
                    while found != other {
                        spend(budget)?;
                        let later = if found > other { &mut found } else { &mut other };
                        *later = dominators[*later];
                    }
                    spend(budget)?;
                }
                changed |= dominators[index] != found;
                dominators[index] = found;
            }
        }
        Some(dominators)
    }

    /// The blocks of each natural loop. `None` if there are too many.
    fn natural_loops(&self, budget: &mut u32) -> Option<Vec<Vec<bool>>> {
        let dominators = self.dominators(budget)?;
        let mut loops: BTreeMap<usize, Vec<bool>> = BTreeMap::new();
        for (index, block) in self.0.iter().enumerate() {
            for header in &block.next {
                let mut above = index;
                while above > *header {
                    spend(budget)?;
                    above = dominators[above];
                }
                if above != *header {
                    continue;
                }
                let body = loops.entry(*header).or_insert_with(|| vec![false; self.0.len()]);
                body[*header] = true;
                let mut open = vec![index];
                while let Some(member) = open.pop() {
                    spend(budget)?;
                    if !std::mem::replace(&mut body[member], true) {
                        open.extend(&self.0[member].before);
                    }
                }
                if loops.len() > MAX_LOOPS {
                    return None;
                }
            }
        }
        Some(loops.into_values().collect())
    }

    fn parts(&self, budget: &mut u32) -> Option<Box<[InLoop]>> {
        let mut loops = self.natural_loops(budget)?;
        loops.sort_by_key(|body| body.iter().filter(|is_member| **is_member).count());
        // A check is of the smallest loop that it is in. Where a loop has several, they may be of functions that had loops
        // before these were unrolled or taken apart: then nothing is said.
        let mut calls: Vec<BTreeSet<u32>> = vec![BTreeSet::new(); loops.len()];
        for (index, block) in self.0.iter().enumerate().filter(|(_, block)| !block.checks.is_empty()) {
            if let Some(smallest) = loops.iter().position(|body| body[index]) {
                calls[smallest].extend(&block.checks);
            }
        }
        let only = |calls: &BTreeSet<u32>| if calls.len() == 1 { calls.first().copied() } else { None };
        let mut parts: Vec<InLoop> = Vec::new();
        for (index, block) in self.0.iter().enumerate() {
            let around = loops.iter().zip(&calls).filter(|(body, _)| body[index]);
            if let Some(call) = around.into_iter().find_map(|(_, calls)| only(calls)) {
                parts.push(InLoop { start: block.start, end: block.end, call });
            }
        }
        parts.sort_by_key(|part| part.start);
        Some(parts.into())
    }
}

/// The instructions from a leader to the next.
fn block(steps: &BTreeMap<u32, Step>, leader: u32, index: &impl Fn(u32) -> Option<usize>) -> Block {
    let mut block = Block { start: leader, end: leader, ..Block::default() };
    let mut is_compared = false;
    let mut at = leader;
    while let Some(step) = steps.get(&at) {
        block.end = step.end;
        if let Kind::Jump { to, condition } = step.kind {
            let slow = match condition {
                Condition::Below if is_compared => Some(to),
                Condition::Above if is_compared => Some(step.end),
                _ => None,
            };
            block.checks.extend(slow.and_then(|slow| first_call(steps, slow)));
            block.next.extend(index(to));
            if condition != Condition::Always {
                block.next.extend(index(step.end));
            }
            break;
        }
        if step.kind == Kind::End {
            break;
        }
        is_compared = step.kind == Kind::Check;
        at = step.end;
        if let Some(next) = index(at) {
            block.next.push(next);
            break;
        }
    }
    block
}

/// Where the first call returns to that is made from an instruction on, whatever else holds.
fn first_call(steps: &BTreeMap<u32, Step>, mut at: u32) -> Option<u32> {
    for _ in 0..MAX_SLOW {
        let step = steps.get(&at)?;
        match step.kind {
            Kind::Call => return Some(step.end),
            Kind::Other | Kind::Check => at = step.end,
            Kind::Jump { to, condition: Condition::Always } => at = to,
            Kind::Jump { .. } | Kind::End => return None,
        }
    }
    None
}

fn spend(budget: &mut u32) -> Option<()> {
    *budget = budget.checked_sub(1)?;
    Some(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A loop that begins with its check; behind its end, the call and the way back.
    const LOOP: [u8; 28] = [
        0x90, // 0: nop
        0x49, 0x3b, 0x65, 0xa0, // 1: cmp rsp, [r13-0x60]
        0x0f, 0x86, 0x07, 0x00, 0x00, 0x00, // 5: jbe 18
        0x90, // 11: nop
        0x83, 0xe8, 0x01, // 12: sub eax, 1
        0x75, 0xf0, // 15: jnz 1
        0xc3, // 17: ret
        0xe8, 0x00, 0x00, 0x00, 0x00, // 18: call
        0xe9, 0xef, 0xff, 0xff, 0xff, // 23: jmp 11
    ];

    #[test]
    fn what_lies_in_a_loop_has_the_call_of_its_check() {
        let parts = loops(&LOOP);
        let call = |offset: u64| call_of_loop(&parts, offset);
        assert_eq!((call(0), call(17), call(28)), (None, None, None), "{parts:?}");
        for offset in [1, 5, 11, 15, 16, 18, 27] {
            assert_eq!(call(offset), Some(23), "{offset} of {parts:?}");
        }
    }

    /// As TurboFan writes loops whose check comes last: back if there is room, and far away if there is none.
    #[test]
    fn a_check_at_the_end_leads_to_its_call_by_a_jump() {
        let code = [
            0x90, // 0: nop
            0x83, 0xe8, 0x01, // 1: sub eax, 1
            0x74, 0x0b, // 4: jz 17
            0x49, 0x3b, 0x65, 0xa0, // 6: cmp rsp, [r13-0x60]
            0x77, 0xf5, // 10: ja 1
            0xe9, 0x01, 0x00, 0x00, 0x00, // 12: jmp 18
            0xc3, // 17: ret
            0xe8, 0x00, 0x00, 0x00, 0x00, // 18: call
            0xe9, 0xe5, 0xff, 0xff, 0xff, // 23: jmp 1
        ];
        let parts = loops(&code);
        let call = |offset: u64| call_of_loop(&parts, offset);
        assert_eq!((call(0), call(17)), (None, None), "{parts:?}");
        for offset in [1, 4, 6, 10, 12, 18, 23] {
            assert_eq!(call(offset), Some(23), "{offset} of {parts:?}");
        }
    }

    #[test]
    fn code_that_is_entered_within_a_loop_goes_on_behind_its_breakpoint() {
        let mut replaced = vec![
            0xe8, 0x00, 0x00, 0x00, 0x00, // 0: call
            0xcc, // 5: int3
        ];
        replaced.extend(LOOP);
        assert_eq!(call_of_loop(&loops(&replaced), 6 + 12), Some(6 + 23));
    }

    #[test]
    fn a_jump_back_into_what_was_left_for_a_moment_is_no_loop() {
        // The same without the jump back.
        let mut straight = LOOP;
        straight[15..17].fill(0x90);
        assert!(loops(&straight).is_empty());
    }

    #[test]
    fn a_loop_without_a_check_is_its_surrounding_loops() {
        let mut nested = LOOP.to_vec();
        // Instead of the subtraction: 12: dec eax, 14: back to 12 while it is not 0 has no place, so the loop around it
        // is made of a longer jump.
        nested.splice(12..17, [0xff, 0xc8, 0x75, 0xfc, 0x75, 0xef]);
        // 12: dec eax; 14: jnz 12; 16: jnz 1; 18: ret; 19: call; 24: jmp 11
        nested[7..11].copy_from_slice(&8_i32.to_le_bytes());
        nested[25..29].copy_from_slice(&(-18_i32).to_le_bytes());
        let parts = loops(&nested);
        assert_eq!(call_of_loop(&parts, 12), Some(24), "{parts:?}");
        assert_eq!((call_of_loop(&parts, 1), call_of_loop(&parts, 18)), (Some(24), None), "{parts:?}");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_fail(code in proptest::collection::vec(any::<u8>(), 0..4000)) {
            for part in &loops(&code) {
                prop_assert!(part.start < part.end);
            }
        }

        #[test]
        fn no_jumps_make_it_fail(jumps in proptest::collection::vec((any::<bool>(), any::<i8>()), 0..2000)) {
            let code: Vec<u8> = jumps.iter().flat_map(|(always, to)| {
                [if *always { 0xeb } else { 0x75 }, to.cast_unsigned()]
            }).collect();
            loops(&code);
        }
    }
}
