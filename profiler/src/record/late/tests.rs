use profiler_common::late::LateHeader;
use profiler_common::machine::Machine;
use profiler_common::row::{CfaKind, Rule};
use profiler_common::unwind::{PcKind, Registers};

use super::*;

/// Code at 0x1000 with frames of 16 bytes, code at 0x2000 that begins a thread, and nothing else.
struct Rows;

impl UnwindRules for Rows {
    fn row(&self, lookup_pc: u64) -> Row {
        match lookup_pc >> 12 {
            1 => Row(Rule::with_cfa(CfaKind::Sp, 16).encode(0)),
            2 => Row(Rule::OUTERMOST.encode(0)),
            _ => Row::GAP,
        }
    }

    fn is_code(&self, lookup_pc: u64) -> bool {
        matches!(lookup_pc >> 12, 1 | 2)
    }

    fn machine(&self) -> Machine {
        Machine::X86_64
    }

    fn code_mask(&self) -> u64 {
        u64::MAX
    }
}

const SP: u64 = 0x7000;

/// A stack of these words, at the innermost frame of code without rows.
fn piece(index: usize, stack: &[u64]) -> Piece {
    let registers = Registers { pc: 0x1010, sp: SP, fp: 77, lr: 0 };
    let bytes = stack.iter().flat_map(|word| word.to_ne_bytes()).collect();
    Piece {
        at: Frame { registers, kind: PcKind::Instruction },
        index,
        base: SP,
        bytes,
        in_vain: false,
        loading: false,
        asked: None,
    }
}

#[test]
fn rows_lead_to_the_callers_that_the_frame_pointer_does_not_know() {
    let stack = [0, 0x1020, 0, 0x1030, 0, 0x2000 + 5];
    let finished = piece(0, &stack).finish(&[0x1010], StopReason::NoFramePointer, &Rows);
    assert_eq!(finished, Some((vec![0x1010, 0x1020, 0x1030, 0x2005], StopReason::EndOfStack)));
}

#[test]
fn frames_below_the_late_one_are_kept() {
    let stack = [0, 0x2005];
    let finished = piece(2, &stack).finish(&[8, 9, 0x1010, 0x1333], StopReason::EndOfStack, &Rows);
    assert_eq!(finished, Some((vec![8, 9, 0x1010, 0x2005], StopReason::EndOfStack)));
}

#[test]
fn a_piece_that_is_too_short_says_so() {
    let finished = piece(0, &[0, 0x1020, 0]).finish(&[0x1010], StopReason::NoFramePointer, &Rows);
    assert_eq!(finished, Some((vec![0x1010, 0x1020], StopReason::PieceEnd)));
}

#[test]
fn beyond_the_piece_both_chains_go_on_as_one_if_they_have_met() {
    let stack = [0, 0x1020, 0, 0x1030];
    let walked = [0x1010, 0x1030, 0x1040, 0x2005];
    let finished = piece(0, &stack).finish(&walked, StopReason::EndOfStack, &Rows);
    assert_eq!(finished, Some((vec![0x1010, 0x1020, 0x1030, 0x1040, 0x2005], StopReason::EndOfStack)));
    // Of a recursive function nobody knows which frame it is.
    let walked = [0x1010, 0x1030, 0x1030, 0x2005];
    let finished = piece(0, &stack).finish(&walked, StopReason::EndOfStack, &Rows);
    assert_eq!(finished, Some((vec![0x1010, 0x1020, 0x1030], StopReason::PieceEnd)));
}

#[test]
fn a_walk_that_says_the_same_and_less_changes_nothing() {
    let walked = [0x1010, 0x1020, 0x1030, 0x2005];
    let finished = piece(0, &[0, 0x1020]).finish(&walked, StopReason::EndOfStack, &Rows);
    assert_eq!(finished, None);
}

#[test]
fn a_stack_without_end_ends_at_the_limit_of_frames() {
    let stack: Vec<u64> = [0, 0x1020].repeat(3000);
    let Some((frames, stop)) = piece(1, &stack).finish(&[8, 0x1010], StopReason::ReadFault, &Rows) else {
        panic!("walked anew");
    };
    assert_eq!((frames.len(), stop), (MAX_USER_FRAMES, StopReason::DepthLimit));
}

#[test]
fn an_index_beyond_the_frames_changes_nothing() {
    let finished = piece(3, &[0, 0x1020]).finish(&[1, 2], StopReason::ReadFault, &Rows);
    assert_eq!(finished, None);
}

#[test]
fn kept_pieces_are_bounded_and_those_refused_are_counted() {
    let bytes = vec![0; 1 << 20];
    let header = LateHeader { pc: 0x1010, sp: SP + 9, base: SP, ..LateHeader::default() };
    let mut late = LateSamples::default();
    let kept = (0..40).filter(|_| late.keep(&RawPiece { header: &header, bytes: &bytes }).is_some()).count();
    assert_eq!(kept, 32, "what is below the stack pointer takes no room");
    assert_eq!((late.stats().pieces, late.stats().refused_for_memory), (40, 8));
}
