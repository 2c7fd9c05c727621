use jitprof_common::machine::Machine;
use jitprof_common::row::{CfaKind, Rule};
use jitprof_common::unwind::{LOST_FP, PcKind, Registers};

use super::*;
use crate::runtime::TakeRead;

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

impl Snapshot {
    /// Walks, and chooses the chain that counts.
    fn finish(
        &self,
        walked: (&[u64], StopReason),
        rules: &impl UnwindRules,
        capture: Option<&Capture>,
    ) -> Option<(usize, Option<Chain>, Vec<FrameWords>)> {
        self.chain(self.walk(rules), walked, capture)
    }
}

const SP: u64 = 0x7000;
/// The innermost frame: its pc is that of an instruction.
const INNERMOST: u64 = FramePc::new(0x1010, PcKind::Instruction).0;

/// A stack of these words, at the innermost frame of code without rows.
fn snapshot(index: usize, stack: &[u64]) -> Snapshot {
    let registers = Registers { pc: 0x1010, sp: SP, fp: 77, lr: 0 };
    let bytes = stack.iter().flat_map(|word| word.to_ne_bytes()).collect();
    Snapshot {
        at: Frame { registers, kind: PcKind::Instruction },
        index,
        base: SP,
        bytes,
        holder: None,
        in_vain: false,
        loading: false,
        asked: None,
    }
}

/// A chain of which every caller was found anew.
fn all(frames: Vec<u64>, stop: StopReason) -> Option<(usize, Option<Chain>, Vec<FrameWords>)> {
    Some((usize::MAX, Some((frames, stop)), Vec::new()))
}

#[test]
fn rows_lead_to_the_callers_that_the_frame_pointer_does_not_know() {
    let stack = [0, 0x1020, 0, 0x1030, 0, 0x2000 + 5];
    let finished = snapshot(0, &stack).finish((&[INNERMOST], StopReason::NoFramePointer), &Rows, None);
    assert_eq!(finished, all(vec![INNERMOST, 0x1020, 0x1030, 0x2005], StopReason::EndOfStack));
}

#[test]
fn frames_below_the_snapshot_are_kept() {
    let stack = [0, 0x2005];
    let finished = snapshot(2, &stack).finish((&[8, 9, INNERMOST, 0x1333], StopReason::EndOfStack), &Rows, None);
    assert_eq!(finished, all(vec![8, 9, INNERMOST, 0x2005], StopReason::EndOfStack));
}

#[test]
fn words_of_frames_lie_at_their_frame_pointers() {
    let mut snapshot = snapshot(0, &[5, 0x1020, 7, 0x2005]);
    snapshot.at.registers.fp = SP + 16;
    let read = TakeRead { base: None, offset: -16, words: 2, to: 1, tagged: false };
    let capture = Capture { reads: vec![read], ..Capture::default() };
    let taken = |snapshot: &Snapshot, capture: &Capture, stop| {
        let Some((.., words)) = snapshot.finish((&[INNERMOST], stop), &Rows, Some(capture)) else {
            panic!("walked anew")
        };
        words
    };
    let of = |frame: &FrameWords| (frame.index, frame.reads, frame.words[..4].to_vec());
    let words = [1, 2].map(|index| (index, 1, vec![0, 5, 0x1020, 0]));
    let stands = taken(&snapshot, &capture, StopReason::SnapshotEnd);
    assert_eq!(stands.iter().map(of).collect::<Vec<_>>(), words);
    // What runs may have had its function moved, unless it is generated code that says where its frames have it.
    assert_eq!(taken(&snapshot, &capture, StopReason::NoFramePointer), []);
    let generated = Capture { generated: Some((Avma(0x1020 - 1), 1)), ..capture.clone() };
    let runs = taken(&snapshot, &generated, StopReason::NoFramePointer);
    assert_eq!(runs.iter().map(of).collect::<Vec<_>>(), words[..1]);
    // Beyond what was read of the stack, and where no frame pointer is known, there are none.
    for fp in [SP + 8, SP + 48, LOST_FP] {
        snapshot.at.registers.fp = fp;
        assert_eq!(taken(&snapshot, &capture, StopReason::SnapshotEnd), [], "{fp:x}");
    }
}

#[test]
fn a_snapshot_that_is_too_short_says_so() {
    let finished = snapshot(0, &[0, 0x1020, 0]).finish((&[INNERMOST], StopReason::NoFramePointer), &Rows, None);
    assert_eq!(finished, all(vec![INNERMOST, 0x1020], StopReason::SnapshotEnd));
}

#[test]
fn beyond_the_snapshot_both_chains_go_on_as_one_if_they_have_met() {
    let stack = [0, 0x1020, 0, 0x1030];
    let walked = [INNERMOST, 0x1030, 0x1040, 0x2005];
    let finished = snapshot(0, &stack).finish((&walked, StopReason::EndOfStack), &Rows, None);
    let met = (vec![INNERMOST, 0x1020, 0x1030, 0x1040, 0x2005], StopReason::EndOfStack);
    assert_eq!(
        finished,
        Some((2, Some(met), Vec::new())),
        "what follows the third frame was found by the tables' rows"
    );
    // Of a recursive function nobody knows which frame it is.
    let walked = [INNERMOST, 0x1030, 0x1030, 0x2005];
    let finished = snapshot(0, &stack).finish((&walked, StopReason::EndOfStack), &Rows, None);
    assert_eq!(finished, all(vec![INNERMOST, 0x1020, 0x1030], StopReason::SnapshotEnd));
}

#[test]
fn a_walk_that_says_the_same_and_less_changes_nothing() {
    let walked = [INNERMOST, 0x1020, 0x1030, 0x2005];
    let finished = snapshot(0, &[0, 0x1020]).finish((&walked, StopReason::EndOfStack), &Rows, None);
    assert_eq!(finished, Some((1, None, Vec::new())), "the second frame's caller lies beyond the snapshot");
    let stack = [0, 0x1020, 0, 0x1030, 0, 0x2005];
    let finished = snapshot(0, &stack).finish((&walked, StopReason::EndOfStack), &Rows, None);
    assert_eq!(finished, Some((usize::MAX, None, Vec::new())), "both have found all callers");
}

#[test]
fn a_stack_without_end_ends_at_the_limit_of_frames() {
    let stack: Vec<u64> = [0, 0x1020].repeat(3000);
    let Some((_, Some((frames, stop)), _)) =
        snapshot(1, &stack).finish((&[8, INNERMOST], StopReason::ReadFault), &Rows, None)
    else {
        panic!("walked anew");
    };
    assert_eq!((frames.len(), stop), (MAX_USER_FRAMES, StopReason::DepthLimit));
}

#[test]
fn an_index_beyond_the_frames_changes_nothing() {
    let finished = snapshot(3, &[0, 0x1020]).finish((&[1, 2], StopReason::ReadFault), &Rows, None);
    assert_eq!(finished, None);
}

#[test]
fn kept_snapshots_are_bounded_and_those_refused_are_counted() {
    let bytes = vec![0; 1 << 20];
    let raw = StackSnapshot { registers: [0x1010, SP + 9, 0, 0], kind: 0, index: 0, base: SP, bytes: bytes.into() };
    let mut deferred = Deferred::default();
    let kept = (0..40).filter(|user| deferred.keep(&raw, Holder::User(*user)).is_some()).count();
    // What is below the stack pointer takes no room; an eighth is for those who take less at a time.
    assert_eq!(kept, 28);
    assert_eq!((deferred.stats().snapshots, deferred.stats().refused_for_memory), (40, 12));
}

#[test]
fn whose_snapshots_wait_leaves_room_for_those_of_the_others() {
    let raw = StackSnapshot {
        registers: [0x1010, SP, 77, 0],
        kind: jitprof_common::snapshot::SnapshotHeader::code_of(PcKind::Instruction),
        index: 0,
        base: SP,
        bytes: vec![0; 16 << 10].into(),
    };
    let (mut deferred, greedy) = (Deferred::default(), Holder::User(1000));
    deferred.begin_continuous();
    let mut kept: Vec<_> = std::iter::from_fn(|| deferred.keep(&raw, greedy)).collect();
    assert_eq!(kept.len(), 336, "two thirds of what a continuous recording keeps");
    let other = deferred.keep(&raw, Holder::User(1001));
    assert!(other.is_some(), "nobody's snapshots take the room of all others'");
    kept.extend(other);
    // What is given up makes room.
    for snapshot in kept.drain(..2) {
        let mut sample = Pending::new(
            &crate::engine::world::raw_sample(MonoNs(0), 1, &[], None),
            &mut crate::engine::pending::Stacks::default(),
        );
        sample.snapshot = Some(snapshot);
        deferred.give_up(&mut sample);
    }
    assert!(deferred.keep(&raw, greedy).is_some());
}
