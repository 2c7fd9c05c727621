//! Rows of generated code that runs within an interpreter's loop: all of it has frames of one size, except where they are
//! made and given up. Such code calls itself by jumps, has no functions, and says nowhere where it begins.

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

/// The rows of a part of such code, for x86-64.
pub fn rows_of_loop_code(start: u64, code: &[u8], frame: LoopFrame<'_>) -> Option<RowTable> {
    let end = start.checked_add(code.len() as u64)?;
    let whole = Rule::with_cfa(CfaKind::Sp, frame.bytes.into());
    let whole = match frame.fp_below {
        Some(below) => whole.with_fp(FpKind::AtCfa, -i64::from(below)),
        None => whole,
    };
    let mut rules = vec![(0, whole)];
    let of_depth = |depth: usize| Rule::with_cfa(CfaKind::Sp, (depth as i64 + 1) * WORD);
    if !frame.pushes.is_empty() {
        let made = frame.pushes.concat();
        for at in memchr::memmem::find_iter(code, &made) {
            let ends = frame.pushes.iter().scan(at, |end, push| {
                *end += push.len();
                Some(*end)
            });
            let depths = std::iter::once(at).chain(ends).enumerate();
            rules.extend(
                depths.map(|(depth, at)| (at, if depth == frame.pushes.len() { whole } else { of_depth(depth) })),
            );
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
    }
    rules.sort_by_key(|(at, _)| *at);
    let mut builder = RowTableBuilder::default();
    builder.add(start..end, rules.into_iter().map(|(at, rule)| (start.saturating_add(at as u64), rule)));
    Some(builder.finish().0)
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
        let rows = rows_of_loop_code(0x1000, code, frame).unwrap();
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
        let rows = rows_of_loop_code(0x1000, &[0x41, 0x55, 0xc3, 0x90], frame).unwrap();
        for at in 0..4 {
            let rule = rows.rule_at(0x1000 + at);
            assert_eq!((rule.cfa, rule.cfa_offset, rule.fp, rule.fp_offset), (CfaKind::Sp, 20, FpKind::AtCfa, -4));
        }
        assert!(rows_of_loop_code(u64::MAX, &[0x90; 2], frame).is_none());
    }
}
