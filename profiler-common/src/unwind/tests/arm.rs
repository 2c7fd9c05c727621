use std::vec::Vec;

use super::*;
use crate::row::ReturnAddress;

/// Signatures stand above 48 bits of address.
const CODE_MASK: u64 = (1 << 48) - 1;
const SIGNED: u64 = 0x002a_0000_0000_0000;

/// Rules by range of pcs; code is where they are, and from 0x48_0000 on without any.
struct Rules(Vec<(core::ops::Range<u64>, Rule)>);

impl UnwindRules for Rules {
    fn row(&self, lookup_pc: u64) -> Row {
        let rule = self.0.iter().find(|(range, _)| range.contains(&lookup_pc));
        rule.map_or(Row::GAP, |(_, rule)| Row(rule.encode(0)))
    }

    fn is_code(&self, lookup_pc: u64) -> bool {
        (0x40_0000..0x50_0000).contains(&lookup_pc)
    }

    fn machine(&self) -> Machine {
        Machine::Aarch64
    }

    fn code_mask(&self) -> u64 {
        CODE_MASK
    }
}

fn one(rule: Rule) -> Rules {
    Rules(std::vec![(0x40_0000..0x40_0100, rule)])
}

fn words(words: &[(u64, u64)]) -> Words {
    Words(words.iter().copied().collect())
}

fn leaf(pc: u64, sp: u64, fp: u64, lr: u64) -> Frame {
    Frame::sampled(Registers { pc, sp, fp, lr })
}

/// `stp x29, x30, [sp, #-size]!` has run.
fn record(size: i64) -> Rule {
    Rule::with_cfa(CfaKind::Sp, size).with_fp(FpKind::AtCfa, -size).with_return_address(8 - size)
}

#[test]
fn a_leafs_caller_is_in_the_link_register() {
    let caller = step(leaf(0x40_0000, 0x7000, 0x7abc, 0x40_1000), &words(&[]), &one(Rule::LINK_ENTRY));
    assert_eq!(caller, Ok(called(0x40_1000, 0x7000, 0x7abc)));
    // With some stack of its own.
    let rule = Rule::with_cfa(CfaKind::Sp, 0x20).with_link_register();
    let caller = step(leaf(0x40_0000, 0x7000, 0x7abc, 0x40_1000), &words(&[]), &one(rule));
    assert_eq!(caller, Ok(called(0x40_1000, 0x7020, 0x7abc)));
}

#[test]
fn the_link_register_of_a_caller_is_not_believed() {
    // What has called cannot have its return address in the register still; the frame pointer may lead on.
    let frame = Frame { kind: PcKind::ReturnAddress, ..leaf(0x40_0010, 0x7000, 0x7010, 0) };
    assert_eq!(step(frame, &words(&[]), &one(Rule::LINK_ENTRY)), Err(StopReason::UnsupportedRule));
    let memory = words(&[(0x7010, 0x7100), (0x7018, 0x40_1000)]);
    let caller = step(frame, &memory, &one(Rule::LINK_ENTRY)).unwrap();
    assert_eq!(caller, Frame { kind: PcKind::ReturnAddressAbove, ..called(0x40_1000, 0x7020, 0x7100) });
}

#[test]
fn two_functions_that_only_name_the_link_register_do_not_run_in_a_circle() {
    let frame = leaf(0x40_0000, 0x7000, 0, 0x40_0010);
    let (pcs, reason) = walk(frame, &words(&[]), &one(Rule::LINK_ENTRY));
    assert_eq!((pcs.as_slice(), reason), (&[0x40_0000, 0x40_0010][..], StopReason::UnsupportedRule));
}

#[test]
fn a_saved_return_address_is_found_anywhere_in_the_frame() {
    // gcc: sub sp, sp, #0x1000; stp x29, x30, [sp]
    let memory = words(&[(0x7000, 0x9000), (0x7008, 0x40_1000)]);
    let caller = step(leaf(0x40_0000, 0x7000, 0x7000, 1), &memory, &one(record(0x1000)));
    assert_eq!(caller, Ok(called(0x40_1000, 0x8000, 0x9000)));
    // LLVM without frame pointers: stp x30, x19, [sp, #-16]!
    let rule = Rule::with_cfa(CfaKind::Sp, 16).with_return_address(-16);
    assert_eq!(rule.return_address, ReturnAddress::NearFp(0));
    let memory = words(&[(0x7000, 0x40_1000)]);
    assert_eq!(step(leaf(0x40_0000, 0x7000, 0x1234, 1), &memory, &one(rule)), Ok(called(0x40_1000, 0x7010, 0x1234)));
    // A record at the frame's end, found by the frame pointer.
    let memory = words(&[(0x7040, 0x9000), (0x7048, 0x40_1000)]);
    let caller = step(leaf(0x40_0000, 0x7000, 0x7040, 1), &memory, &one(Rule::FRAME_POINTER));
    assert_eq!(caller, Ok(called(0x40_1000, 0x7050, 0x9000)));
}

#[test]
fn signatures_are_taken_off_return_addresses() {
    let memory = words(&[(0x7000, 0x9000), (0x7008, SIGNED | 0x40_1000)]);
    let caller = step(leaf(0x40_0000, 0x7000, 0x7000, 0), &memory, &one(record(32)));
    assert_eq!(caller, Ok(called(0x40_1000, 0x7020, 0x9000)));
    // paciasp has run, nothing is saved yet.
    let caller = step(leaf(0x40_0004, 0x7000, 0x7000, SIGNED | 0x40_1000), &memory, &one(Rule::LINK_ENTRY));
    assert_eq!(caller.unwrap().registers.pc, 0x40_1000);
    // In a frame without rows.
    let caller = step(leaf(0x48_0000, 0x7000, 0x7000, 0), &memory, &one(record(32)));
    assert_eq!(caller.unwrap().registers.pc, 0x40_1000);
}

#[test]
fn behind_a_frame_without_rows_the_frame_pointer_places_the_caller() {
    // A frame without rows, whose record is at 0x7000 below 0x50 bytes of its own, then one with rows by its stack
    // pointer and 0x30 bytes, then the outermost.
    let memory = words(&[(0x7000, 0x7060), (0x7008, 0x40_0010), (0x7060, 0x7100), (0x7068, 0x40_0210)]);
    let rules = Rules(std::vec![(0x40_0000..0x40_0100, record(0x30)), (0x40_0200..0x40_0300, Rule::OUTERMOST)]);
    let inner = step(leaf(0x48_0000, 0x6ff0, 0x7000, 0), &memory, &rules).unwrap();
    assert_eq!(inner, Frame { kind: PcKind::ReturnAddressAbove, ..called(0x40_0010, 0x7010, 0x7060) });
    let middle = step(inner, &memory, &rules).unwrap();
    assert_eq!(middle, called(0x40_0210, 0x7090, 0x7100));
    assert_eq!(step(middle, &memory, &rules), Err(StopReason::EndOfStack));
}

#[test]
fn a_frame_whose_place_is_unknown_is_not_guessed() {
    let frame = Frame { kind: PcKind::ReturnAddressAbove, ..called(0x40_0010, 0x7010, 0x1001) };
    let rule = Rule::with_cfa(CfaKind::Sp, 16).with_return_address(-16);
    let memory = words(&[(0x7010, 0x40_1000)]);
    assert_eq!(step(frame, &memory, &one(rule)), Err(StopReason::NoFramePointer));
}

/// A signal's frame on the stack, and code from 0x48_0000 on in which a handler returns to 0x48_0010. Reads are counted.
struct Interrupted {
    stack: Words,
    reads: core::cell::Cell<u32>,
}

impl Interrupted {
    fn new() -> Self {
        let saved = [(544, 0x9100), (552, 0x40_2000), (560, 0x9000), (568, 0x40_1234)];
        let stack = Words(saved.iter().map(|&(offset, word)| (0x7000 + offset, word)).collect());
        Self { stack, reads: core::cell::Cell::new(0) }
    }

    fn bytes(&self, address: u64) -> Result<u64, ReadFault> {
        const NOP: u32 = 0xd503_201f;
        let mut code = [NOP; 12];
        (code[4], code[5]) = (ARM_SIGRETURN as u32, (ARM_SIGRETURN >> 32) as u32);
        let Some(at) = address.checked_sub(0x48_0000) else { return self.stack.read_u64(address) };
        let at = (at / 4) as usize;
        let two = code.get(at..at + 2).ok_or(ReadFault)?;
        Ok(u64::from(two[0]) | u64::from(two[1]) << 32)
    }
}

impl StackMemory for Interrupted {
    fn read_u64(&self, address: u64) -> Result<u64, ReadFault> {
        self.reads.set(self.reads.get() + 1);
        self.bytes(address)
    }

    fn read_pair(&self, address: u64) -> Result<(u64, u64), ReadFault> {
        self.reads.set(self.reads.get() + 1);
        Ok((self.bytes(address)?, self.bytes(address.wrapping_add(8))?))
    }
}

#[test]
fn a_signal_frame_is_told_by_the_code_that_it_returns_to() {
    let memory = Interrupted::new();
    let interrupted = leaf(0x40_1234, 0x9000, 0x9100, 0x40_2000);
    assert_eq!(step(called(0x48_0010, 0x7000, 0x7800), &memory, &one(Rule::GAP)), Ok(interrupted));
    // The function before it has rows that lead nowhere, and there is no frame pointer.
    let rules = Rules(std::vec![(0x48_0000..0x48_0010, Rule::LINK_ENTRY)]);
    assert_eq!(step(called(0x48_0010, 0x7000, 0), &memory, &rules), Ok(interrupted));
    // The sample hit it, at its second instruction or in the system call.
    for pc in [0x48_0010, 0x48_0014, 0x48_0018] {
        assert_eq!(step(leaf(pc, 0x7000, 0x7800, 0), &memory, &one(Rule::GAP)), Ok(interrupted), "{pc:#x}");
    }
    // What has called one instruction behind it, or is one before it, is another function.
    for frame in [called(0x48_0014, 0x7000, 0), leaf(0x48_000c, 0x7000, 0, 0), leaf(0x48_001c, 0x7000, 0, 0)] {
        assert_eq!(step(frame, &memory, &one(Rule::GAP)), Err(StopReason::ZeroFramePointer));
    }
    // A row may say so, too.
    assert_eq!(step(called(0x40_0010, 0x7000, 0), &memory, &one(Rule::SIGNAL)), Ok(interrupted));
}

#[test]
fn that_a_frame_without_rows_is_no_signals_is_known_after_one_read() {
    for frame in [called(0x48_0008, 0x7000, 0), leaf(0x48_0008, 0x7000, 0, 0)] {
        let memory = Interrupted::new();
        assert_eq!(step(frame, &memory, &one(Rule::GAP)), Err(StopReason::ZeroFramePointer));
        assert_eq!(memory.reads.get(), 1);
    }
}

#[test]
fn a_frame_below_its_callee_ends_the_stack() {
    let memory = words(&[(0x6ff8, 0x40_1000)]);
    for rule in [Rule::with_cfa(CfaKind::Sp, 0), Rule::with_cfa(CfaKind::Sp, -8).with_link_register()] {
        assert_eq!(step(leaf(0x40_0000, 0x7000, 0, 0x40_1000), &memory, &one(rule)), Err(StopReason::BadFrame));
    }
}
