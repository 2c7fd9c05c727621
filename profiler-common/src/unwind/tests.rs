extern crate std;

mod arm;

use std::collections::BTreeMap;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::row::{CfaKind, FpKind, Rule};

/// Stack words by address; everything else faults.
struct Words(BTreeMap<u64, u64>);

impl StackMemory for Words {
    fn read_u64(&self, address: u64) -> Result<u64, ReadFault> {
        self.0.get(&address).copied().ok_or(ReadFault)
    }
}

/// One rule for a range of pcs, frame pointers elsewhere.
struct OneRule(core::ops::Range<u64>, Rule);

impl UnwindRules for OneRule {
    fn row(&self, lookup_pc: u64) -> Row {
        if self.0.contains(&lookup_pc) { Row(self.1.encode(0)) } else { Row::GAP }
    }

    fn is_code(&self, lookup_pc: u64) -> bool {
        (0x40_0000..0x50_0000).contains(&lookup_pc)
    }

    fn machine(&self) -> Machine {
        Machine::X86_64
    }

    fn code_mask(&self) -> u64 {
        u64::MAX
    }
}

const X86_FRAME_POINTERS: FramePointers = FramePointers(Machine::X86_64);

fn instruction(pc: u64, sp: u64, fp: u64) -> Frame {
    Frame::sampled(Registers { pc, sp, fp, lr: 0 })
}

fn called(pc: u64, sp: u64, fp: u64) -> Frame {
    Frame { registers: Registers { pc, sp, fp, lr: 0 }, kind: PcKind::ReturnAddress }
}

/// A chain of frames, innermost first: (frame pointer, return address), as `push rbp; mov rbp, rsp` leaves it.
fn chain(frames: &[(u64, u64)]) -> Words {
    let mut words = BTreeMap::new();
    for (index, &(fp, return_address)) in frames.iter().enumerate() {
        let caller_fp = frames.get(index + 1).map_or(0, |next| next.0);
        words.insert(fp, caller_fp);
        words.insert(fp + 8, return_address);
    }
    Words(words)
}

fn walk<R: UnwindRules>(mut frame: Frame, memory: &Words, rules: &R) -> (Vec<u64>, StopReason) {
    let mut pcs = std::vec![frame.registers.pc];
    loop {
        match step(frame, memory, rules) {
            Ok(caller) => {
                pcs.push(caller.registers.pc);
                frame = caller;
            }
            Err(reason) => return (pcs, reason),
        }
    }
}

#[test]
fn a_frame_pointer_chain_is_walked_to_its_zero() {
    let memory = chain(&[(0x7000, 0x40_1000), (0x7040, 0x40_2000), (0x7100, 0x40_3000)]);
    let registers = instruction(0x40_0000, 0x6ff0, 0x7000);
    let (pcs, reason) = walk(registers, &memory, &X86_FRAME_POINTERS);
    assert_eq!(pcs, [0x40_0000, 0x40_1000, 0x40_2000, 0x40_3000]);
    // Whether that is the end is not the walk's to say.
    assert_eq!(reason, StopReason::ZeroFramePointer);
}

#[test]
fn a_frame_pointer_below_the_stack_pointer_is_not_followed() {
    let memory = chain(&[(0x7000, 0x40_1000)]);
    let registers = instruction(0x40_0000, 0x7008, 0x7000);
    assert_eq!(step(registers, &memory, &X86_FRAME_POINTERS), Err(StopReason::NoFramePointer));
}

#[test]
fn a_frame_pointer_far_above_the_stack_pointer_is_not_followed() {
    let far = 0x7000 + MAX_FRAME_BYTES;
    let memory = chain(&[(far, 0x40_1000)]);
    let registers = instruction(0x40_0000, 0x7000, far);
    assert_eq!(step(registers, &memory, &X86_FRAME_POINTERS), Err(StopReason::NoFramePointer));
}

#[test]
fn an_unreadable_frame_is_a_fault_not_data() {
    let registers = instruction(0x40_0000, 0x7000, 0x7010);
    let memory = Words(BTreeMap::new());
    assert_eq!(step(registers, &memory, &X86_FRAME_POINTERS), Err(StopReason::ReadFault));
    let only_fp = Words(BTreeMap::from([(0x7010, 0)]));
    assert_eq!(step(registers, &only_fp, &X86_FRAME_POINTERS), Err(StopReason::ReadFault));
}

#[test]
fn return_addresses_that_cannot_be_code_end_the_stack() {
    for (word, reason) in [
        (0, StopReason::ZeroReturnAddress),
        (1, StopReason::BadReturnAddress),
        (u64::MAX, StopReason::BadReturnAddress),
    ] {
        let memory = chain(&[(0x7000, word)]);
        let registers = instruction(0x40_0000, 0x7000, 0x7000);
        assert_eq!(step(registers, &memory, &X86_FRAME_POINTERS), Err(reason));
    }
}

/// As the rule says, and the rule is a file's.
struct OfFile(OneRule);

impl UnwindRules for OfFile {
    fn row(&self, lookup_pc: u64) -> Row {
        self.0.row(lookup_pc)
    }

    fn is_code(&self, lookup_pc: u64) -> bool {
        self.0.is_code(lookup_pc)
    }

    fn is_certain(&self) -> bool {
        true
    }

    fn machine(&self) -> Machine {
        Machine::X86_64
    }

    fn code_mask(&self) -> u64 {
        u64::MAX
    }
}

#[test]
fn a_caller_in_memory_that_nothing_is_known_of_is_skipped_only_where_the_row_may_be_another_functions() {
    // By the row the caller is in fresh memory; by the frame pointer there is one further up, in known code.
    let memory = Words(BTreeMap::from([(0x7000, 0x90_1000), (0x7040, 0x7080), (0x7048, 0x40_3000)]));
    let rule = || OneRule(0x40_0000..0x40_0100, Rule::with_cfa(CfaKind::Sp, 8));
    let leaf = instruction(0x40_0010, 0x7000, 0x7040);
    assert_eq!(step(leaf, &memory, &OfFile(rule())).map(|caller| caller.registers.pc), Ok(0x90_1000));
    assert_eq!(step(leaf, &memory, &rule()).map(|caller| caller.registers.pc), Ok(0x40_3000));
}

#[test]
fn a_stack_pointer_rule_recovers_the_saved_frame_pointer() {
    let memory = Words(BTreeMap::from([(0x7018, 0x40_1000), (0x7010, 0x7abc)]));
    let rules = OneRule(0x40_0000..0x40_0100, Rule::with_cfa(CfaKind::Sp, 0x20).with_fp(FpKind::AtCfa, -16));
    let registers = instruction(0x40_0000, 0x7000, 0x1234);
    assert_eq!(step(registers, &memory, &rules), Ok(called(0x40_1000, 0x7020, 0x7abc)));
}

#[test]
fn a_frame_pointer_that_is_lost_leads_to_no_caller() {
    let memory = Words(BTreeMap::from([(0x7018, 0x40_1000), (0x7020, 0x7abc)]));
    let lost = Rule { fp: FpKind::Lost, ..Rule::with_cfa(CfaKind::Sp, 0x20) };
    let caller = step(instruction(0x40_0000, 0x7000, 0x7040), &memory, &OneRule(0x40_0000..0x40_0100, lost)).unwrap();
    assert_eq!(caller.registers.pc, 0x40_1000);
    assert_eq!(step(caller, &memory, &X86_FRAME_POINTERS), Err(StopReason::NoFramePointer));
    let by_fp = OneRule(0x40_0000..0x40_2000, Rule::FRAME_POINTER);
    assert_eq!(step(caller, &memory, &by_fp), Err(StopReason::BadFrame));
}

#[test]
fn a_stack_pointer_kept_on_the_stack_is_read_from_there() {
    let memory = Words(BTreeMap::from([(0x7010, 0x7100), (0x7100, 0x40_1000), (0x70f8, 0x7abc)]));
    let rules = OneRule(0x40_0000..0x40_0100, Rule::with_cfa(CfaKind::SpDeref, 0x10).with_fp(FpKind::AtCfa, -16));
    let registers = instruction(0x40_0000, 0x7000, 0x1234);
    assert_eq!(
        step(registers, &memory, &rules),
        Ok(Frame {
            registers: Registers { pc: 0x40_1000, sp: 0x7108, fp: 0x7abc, lr: 0 },
            kind: PcKind::ReturnAddress
        })
    );
    let forged = Words(BTreeMap::from([(0x7010, u64::MAX)]));
    assert_eq!(step(registers, &forged, &rules), Err(StopReason::BadFrame));
}

#[test]
fn the_stack_that_code_has_left_is_found_where_it_keeps_it() {
    let rules = OneRule(0x40_0000..0x40_0100, Rule::with_saved_sp(0x98, 56).with_fp(FpKind::AtCfa, -24));
    // The present stack lies below the other one, then above it.
    for (sp, left) in [(0x7000, 0x9000), (0x9000, 0x7000)] {
        let memory = Words(BTreeMap::from([(sp + 0x98, left), (left + 48, 0x40_1000), (left + 32, 0x7abc)]));
        let registers = instruction(0x40_0000, sp, 0x1234);
        assert_eq!(step(registers, &memory, &rules), Ok(called(0x40_1000, left + 56, 0x7abc)));
    }
}

#[test]
fn a_frame_of_half_a_megabyte_is_stepped_over() {
    let rules = OneRule(0x40_0000..0x40_0100, Rule::with_cfa(CfaKind::Sp, 540_080).with_fp(FpKind::AtCfa, -16));
    let cfa = 0x7000 + 540_080;
    let memory = Words(BTreeMap::from([(cfa - 8, 0x40_1000), (cfa - 16, 0x7abc)]));
    let registers = instruction(0x40_0000, 0x7000, 0x1234);
    assert_eq!(step(registers, &memory, &rules), Ok(called(0x40_1000, cfa, 0x7abc)));
    // Where the stack would end behind the end of memory nothing is read.
    assert!(step(instruction(0x40_0000, u64::MAX - 7, 0), &memory, &rules).is_err());
}

#[test]
fn a_frame_pointer_leads_back_from_another_stack() {
    let rules = OneRule(0x40_0000..0x40_0100, Rule::with_cfa(CfaKind::FpAway, 16).with_fp(FpKind::AtCfa, -16));
    for (sp, left) in [(0x7000, 0x9000), (0x9000, 0x7000)] {
        let memory = Words(BTreeMap::from([(left, 0x7abc), (left + 8, 0x40_1000)]));
        assert_eq!(step(instruction(0x40_0000, sp, left), &memory, &rules), Ok(called(0x40_1000, left + 16, 0x7abc)));
    }
}

#[test]
fn an_interpreter_keeps_its_callers_stack_pointer_beside_the_return_address() {
    let rules = OneRule(0x40_0000..0x40_0100, Rule::INTERPRETER);
    let saved = |sender| Words(BTreeMap::from([(0x7ff8, sender), (0x8000, 0x7abc), (0x8008, 0x40_1000)]));
    let registers = instruction(0x40_0000, 0x7000, 0x8000);
    assert_eq!(step(registers, &saved(0x8050), &rules), Ok(called(0x40_1000, 0x8050, 0x7abc)));
    // What is no stack pointer of a caller is not believed: then only the frame pointer is left.
    for sender in [0, 0x8000, 0x7000, 0x8000 + MAX_FRAME_BYTES] {
        assert_eq!(step(registers, &saved(sender), &rules), Ok(called(0x40_1000, 0x8010, 0x7abc)), "{sender:#x}");
    }
}

/// Words, and the parked stack pointer.
struct Left(Words, Option<u64>);

impl StackMemory for Left {
    fn read_u64(&self, address: u64) -> Result<u64, ReadFault> {
        self.0.read_u64(address)
    }

    fn parked_sp(&self) -> Result<u64, ReadFault> {
        self.1.ok_or(ReadFault)
    }
}

#[test]
fn code_on_another_stack_returns_to_where_the_own_stack_pointer_is_parked() {
    let rules = OneRule(0x40_0000..0x40_0100, Rule { fp: FpKind::Lost, ..Rule::with_cfa(CfaKind::Parked, 16) });
    let words = || Words(BTreeMap::from([(0x5008, 0x40_1000)]));
    let registers = instruction(0x40_0000, 0x7000, 0x7777);
    // The own stack may lie below the other one.
    assert_eq!(step(registers, &Left(words(), Some(0x5000)), &rules), Ok(called(0x40_1000, 0x5010, LOST_FP)));
    assert_eq!(step(registers, &Left(words(), Some(u64::MAX)), &rules), Err(StopReason::ReadFault));
    assert_eq!(step(registers, &Left(words(), None), &rules), Err(StopReason::UnsupportedRule));
    assert_eq!(step(registers, &words(), &rules), Err(StopReason::UnsupportedRule), "nobody says where");
}

#[test]
fn a_call_in_the_last_instruction_is_looked_up_in_its_own_function() {
    // The return address 0x40_0100 is the first byte of the next function, which is marked as outermost.
    let rules = OneRule(0x40_0100..0x40_0200, Rule::OUTERMOST);
    let memory = chain(&[(0x7000, 0x40_1000)]);
    let registers = instruction(0x40_0100, 0x7000, 0x7000);
    assert!(step(Frame { kind: PcKind::ReturnAddress, ..registers }, &memory, &rules).is_ok());
    assert_eq!(step(registers, &memory, &rules), Err(StopReason::EndOfStack));
}

#[test]
fn a_signal_frame_gives_back_the_interrupted_registers() {
    let memory = Words(BTreeMap::from([
        (0x7000 + X86_SIGNAL_RIP, 0x40_1234),
        (0x7000 + X86_SIGNAL_RSP, 0x9000),
        (0x7000 + X86_SIGNAL_RBP, 0x9100),
    ]));
    let rules = OneRule(0x40_0000..0x40_0100, Rule::SIGNAL);
    assert_eq!(step(instruction(0x40_0000, 0x7000, 0), &memory, &rules), Ok(instruction(0x40_1234, 0x9000, 0x9100)));
}

#[test]
fn a_plt_slot_is_told_before_and_behind_its_push() {
    let memory = Words(BTreeMap::from([(0x7000, 0x40_1000), (0x7008, 0x40_2000)]));
    let rules = OneRule(0x40_0000..0x40_0100, Rule::PLT);
    let caller = |pc| step(instruction(pc, 0x7000, 1), &memory, &rules).unwrap().registers;
    assert_eq!(caller(0x40_0016), Registers { pc: 0x40_1000, sp: 0x7008, fp: 1, lr: 0 });
    assert_eq!(caller(0x40_001b), Registers { pc: 0x40_2000, sp: 0x7010, fp: 1, lr: 0 });
}

#[test]
fn a_row_of_code_that_was_replaced_gives_way_to_the_frame_pointer() {
    // The row says that nothing was pushed yet; the new code has its frame, and its saved frame pointer at sp.
    let memory = chain(&[(0x7000, 0x40_1000), (0x7040, 0x40_2000)]);
    let rules = OneRule(0x40_0000..0x40_0100, Rule::ENTRY);
    assert_eq!(
        step(instruction(0x40_0010, 0x7000, 0x7000), &memory, &rules).unwrap().registers,
        Registers { pc: 0x40_1000, sp: 0x7010, fp: 0x7040, lr: 0 }
    );
    // Without a frame pointer that leads to code, the row has the last word.
    let no_chain = Words(BTreeMap::from([(0x7000, 0x7040)]));
    assert_eq!(step(instruction(0x40_0010, 0x7000, 0x7001), &no_chain, &rules).unwrap().registers.pc, 0x7040);
}

#[test]
fn a_rule_that_does_not_move_up_the_stack_ends_it() {
    let memory = chain(&[(0x7000, 0x40_1000)]);
    let rules = OneRule(0x40_0000..0x40_0100, Rule::with_cfa(CfaKind::Fp, 16));
    assert_eq!(step(instruction(0x40_0000, 0x7010, 0x7000), &memory, &rules), Err(StopReason::BadFrame));
}

proptest! {
    #[test]
    fn a_walk_over_any_memory_ends(words in proptest::collection::vec(any::<u64>(), 1..512), sp in 0u64..4096, fp in any::<u64>()) {
        let base = 0x7000_0000u64;
        // Half of the words point back into the stack, to give cycles a chance.
        let size = words.len() as u64 * 8;
        let memory = Words(
            words
                .iter()
                .enumerate()
                .map(|(index, word)| {
                    (base + index as u64 * 8, if word & 1 == 0 { base + (word % size) / 8 * 8 } else { *word })
                })
                .collect(),
        );
        let registers = instruction(0x40_0000, base + sp % size, if fp & 1 == 0 { base + fp % size } else { fp });
        for machine in [Machine::X86_64, Machine::Aarch64] {
            let (pcs, _) = walk(registers, &memory, &FramePointers(machine));
            prop_assert!(pcs.len() <= words.len() + 1);
        }
    }
}
