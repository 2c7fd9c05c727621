//! AArch64: its own registers, and return addresses that are in a register or anywhere in the frame.

use proptest::prelude::*;

use super::properties::{ARM, Op, compare_with_gimli, encode, op};
use super::recorded_frames;
use super::*;
use crate::{rows_of_code, rows_of_jit};

const X29: Register = Register(29);
const X30: Register = Register(30);
const SP: Register = Register(31);
/// `cfa = sp`: what every common entry begins with.
const USUAL_ARM: [u8; 3] = [0x0c, 31, 0];

fn compile_arm(bytes: &[u8]) -> (RowTable, RowStats) {
    compile_for(Machine::Aarch64, bytes, 0)
}

/// What gimli's own evaluation says, as a rule: written without the code under test.
fn arm_rule_by_gimli(row: &UnwindTableRow<usize>, section: &gimli::EhFrame<Slice<'_>>) -> Rule {
    if matches!(row.register(X30), Some(RegisterRule::Undefined)) {
        return Rule::OUTERMOST;
    }
    // One register and an offset, and what is done with such an address.
    enum Then {
        Nothing,
        Deref,
        DerefPlus8,
    }
    let operand = |expression: &gimli::UnwindExpression<usize>| {
        let bytes = expression.get(section).unwrap().0;
        let encoding = gimli::Encoding { address_size: 8, format: gimli::Format::Dwarf32, version: 4 };
        let mut operations = gimli::Expression(bytes).operations(encoding);
        let first = operations.next().unwrap();
        let gimli::Operation::RegisterOffset { register, offset, .. } = first? else { return None };
        let rest: Vec<_> = std::iter::from_fn(|| operations.next().unwrap()).collect();
        match rest.as_slice() {
            [] => Some((register, offset, Then::Nothing)),
            [gimli::Operation::Deref { .. }] => Some((register, offset, Then::Deref)),
            [gimli::Operation::Deref { .. }, gimli::Operation::PlusConstant { value: 8 }] => {
                Some((register, offset, Then::DerefPlus8))
            }
            _ => None,
        }
    };
    let of_register = |register, offset| match register {
        SP => Rule::with_cfa(CfaKind::Sp, offset),
        X29 => Rule::with_cfa(CfaKind::Fp, offset),
        _ => Rule::UNSUPPORTED,
    };
    let cfa = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => of_register(*register, *offset),
        CfaRule::Expression(expression) => match operand(expression) {
            Some((register, offset, Then::Nothing)) => of_register(register, offset),
            Some((X29, offset, Then::Deref)) => Rule::with_cfa(CfaKind::FpDeref, offset),
            Some((SP, offset, Then::DerefPlus8)) => Rule::with_cfa(CfaKind::SpDeref, offset),
            _ => Rule::UNSUPPORTED,
        },
    };
    if cfa.cfa == CfaKind::Unsupported {
        return Rule::UNSUPPORTED;
    }
    let with_fp = match row.register(X29) {
        None | Some(RegisterRule::Undefined | RegisterRule::SameValue) => cfa,
        Some(RegisterRule::Offset(offset)) => cfa.with_fp(FpKind::AtCfa, offset),
        Some(RegisterRule::Expression(expression)) => match operand(&expression) {
            Some((X29, offset, Then::Nothing)) => cfa.with_fp(FpKind::AtFp, offset),
            _ => Rule::UNSUPPORTED,
        },
        Some(_) => Rule::UNSUPPORTED,
    };
    match row.register(X30) {
        None | Some(RegisterRule::SameValue) => with_fp.with_link_register(),
        Some(RegisterRule::Offset(offset)) => with_fp.with_return_address(offset),
        Some(_) => Rule::UNSUPPORTED,
    }
}

fn compare(section: &Section, code: &Range<u64>) -> Result<(), TestCaseError> {
    let mut eh = gimli::EhFrame::new(&section.0, LittleEndian);
    eh.set_vendor(gimli::Vendor::AArch64);
    compare_with_gimli(&compile_arm(&section.0).0, &eh, code, arm_rule_by_gimli)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn random_arm_programs_give_the_rows_that_gimli_gives(
        initial in proptest::collection::vec(op(ARM), 0..3),
        ops in proptest::collection::vec(op(ARM), 0..24),
        length in 1..0x400_u64,
    ) {
        let mut section = Section::default();
        let mut first = USUAL_ARM.to_vec();
        let initial: Vec<Op> = initial.into_iter().filter(|op| !matches!(op, Op::Restore(_) | Op::RestoreExtended(_) | Op::Remembered(_))).collect();
        encode(&initial, &mut first);
        let cie = section.cie_of(30, "zR", &first);
        let mut instructions = Vec::new();
        encode(&ops, &mut instructions);
        let code = 0xfff0..0xfff0 + length;
        section.fde(cie, code.clone(), &instructions);
        compare(&section, &code)?;
    }
}

fn sp(offset: i64) -> Rule {
    Rule::with_cfa(CfaKind::Sp, offset)
}

/// gcc's `paciasp; stp x29, x30, [sp, #-32]!; ...; ldp x29, x30, [sp], #32; autiasp; ret`.
fn signed_function() -> Vec<u8> {
    let mut program = Vec::new();
    encode(&[Op::Advance(4), Op::NegateReturnAddress, Op::Advance(4)], &mut program);
    encode(&[Op::DefCfaOffset(32), Op::Offset(29, 4), Op::Offset(30, 3), Op::Advance(16)], &mut program);
    encode(&[Op::Restore(30), Op::Restore(29), Op::DefCfaOffset(0), Op::Advance(4)], &mut program);
    encode(&[Op::NegateReturnAddress], &mut program);
    program
}

const SIGNED_ROWS: fn(u64) -> [(u64, Rule); 4] = |start| {
    let saved = sp(32).with_fp(FpKind::AtCfa, -32).with_return_address(-24);
    [(start, Rule::LINK_ENTRY), (start + 8, saved), (start + 24, Rule::LINK_ENTRY), (start + 0x30, Rule::GAP)]
};

#[test]
fn signed_return_addresses_change_no_row() {
    let mut section = Section::default();
    let cie = section.cie_of(30, "zR", &USUAL_ARM);
    section.fde(cie, 0x1000..0x1030, &signed_function());
    let (table, stats) = compile_arm(&section.0);
    assert_eq!((stats.corrupt, stats.unsupported), (0, Default::default()));
    assert_eq!(table.rows().collect::<Vec<_>>(), SIGNED_ROWS(0x1000));
}

#[test]
fn letters_for_the_second_key_and_tagged_frames_are_passed_over() {
    for letters in ["zRB", "zBR", "zRBG", "zGRB"] {
        let mut section = Section::default();
        let plain = section.cie_of(30, "zR", &USUAL_ARM);
        let lettered = section.cie_of(30, letters, &USUAL_ARM);
        section.fde(plain, 0x2000..0x2030, &signed_function());
        section.fde(lettered, 0x1000..0x1030, &signed_function());
        let bytes = crate::augmentation::without_unknown_letters(&section.0, Machine::Aarch64);
        let (table, stats) = compile_arm(&bytes);
        assert_eq!((stats.fdes, stats.corrupt), (2, 0), "{letters}");
        let expected = [SIGNED_ROWS(0x1000), SIGNED_ROWS(0x2000)].concat();
        assert_eq!(table.rows().collect::<Vec<_>>(), expected, "{letters}");
        // The same from a dump.
        let eh = jitprof_jitdump::code::EhFrame {
            bytes: section.0.clone().into(),
            section_start: jitprof_common::units::Avma(0),
        };
        let recorded = rows_of_jit(Machine::Aarch64, 0x1000, 0x30, recorded_frames(&eh)).unwrap();
        assert_eq!(recorded.rows().collect::<Vec<_>>(), SIGNED_ROWS(0x1000), "{letters}");
    }
}

#[test]
fn a_return_address_in_another_register_is_unsupported_and_counted() {
    let mut section = Section::default();
    let cie = section.cie_of(30, "zR", &USUAL_ARM);
    section.fde(cie, 0x1000..0x1030, &[0x09, 30, 15]);
    let (table, stats) = compile_arm(&section.0);
    assert_eq!(table.rule_at(0x1000), Rule::UNSUPPORTED);
    assert_eq!(stats.unsupported.return_address, 1);
}

#[test]
fn entries_of_the_other_machine_are_refused() {
    let mut section = Section::default();
    let cie = section.cie("zR", &USUAL);
    section.fde(cie, 0x1000..0x1030, &[]);
    let (table, stats) = compile_arm(&section.0);
    assert!(table.is_empty());
    assert_eq!(stats.corrupt, 1);
}

/// Rows by offset of AArch64 instructions.
fn from_code(words: &[u32]) -> Option<Vec<(u64, Rule)>> {
    let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let table = rows_of_code(Machine::Aarch64, 0x1000, &code)?;
    Some(table.rows().map(|(address, rule)| (address - 0x1000, rule)).collect())
}

const RET: u32 = 0xd65f_03c0;
const BL: u32 = 0x9400_0000;

/// The frame record at the bottom of a frame of so many bytes.
fn record(size: i64) -> Rule {
    sp(size).with_fp(FpKind::AtCfa, -size).with_return_address(8 - size)
}

#[test]
fn a_frame_with_its_record_at_the_bottom_has_a_row_for_each_state() {
    // stp x29, x30, [sp, #-32]!; mov x29, sp; str x19, [sp, #16]; bl; ldr x19, [sp, #16]; ldp x29, x30, [sp], #32; ret
    let rows = from_code(&[0xa9be_7bfd, 0x9100_03fd, 0xf900_0bf3, BL, 0xf940_0bf3, 0xa8c2_7bfd, RET]).unwrap();
    let frame = Rule::with_cfa(CfaKind::Fp, 32).with_fp(FpKind::AtCfa, -32).with_return_address(-24);
    let expected = [(0, Rule::LINK_ENTRY), (4, record(32)), (8, frame), (24, Rule::LINK_ENTRY), (28, Rule::GAP)];
    assert_eq!(rows, expected);
}

#[test]
fn registers_saved_apart_from_each_other_are_followed() {
    // sub sp, sp, #48; str x30, [sp, #32]; stp x29, x19, [sp, #8]; mov w29, w0; bl; ldp x29, x19, [sp, #8];
    // ldr x30, [sp, #32]; add sp, sp, #48; ret
    let words = [0xd100_c3ff, 0xf900_13fe, 0xa900_cffd, 0x2a00_03fd, BL, 0xa940_cffd, 0xf940_13fe, 0x9100_c3ff, RET];
    let saved = sp(48).with_fp(FpKind::AtCfa, -40).with_return_address(-16);
    let expected = [
        (0, Rule::LINK_ENTRY),
        (4, sp(48).with_link_register()),
        (8, sp(48).with_return_address(-16)),
        (12, saved),
        (24, sp(48).with_return_address(-16)),
        (28, sp(48).with_link_register()),
        (32, Rule::LINK_ENTRY),
        (36, Rule::GAP),
    ];
    assert_eq!(from_code(&words).unwrap(), expected);
}

#[test]
fn v8s_frames_and_signed_ones_end_as_they_began() {
    // paciasp; stp x29, x30, [sp, #-16]!; mov x29, sp; sub sp, sp, x16 (extended); bl; mov sp, x29;
    // ldp x29, x30, [sp], #16; autiasp; ret
    let words = [0xd503_233f, 0xa9bf_7bfd, 0x9100_03fd, 0xcb30_63ff, BL, 0x9100_03bf, 0xa8c1_7bfd, 0xd503_23bf, RET];
    let expected =
        [(0, Rule::LINK_ENTRY), (8, record(16)), (12, Rule::FRAME_POINTER), (28, Rule::LINK_ENTRY), (36, Rule::GAP)];
    assert_eq!(from_code(&words).unwrap(), expected);
}

#[test]
fn a_leaf_with_a_loop_keeps_its_return_address_in_the_register() {
    // mov w1, w0; subs w1, w1, #1; b.ne 1b; cbz w0, 2f; ret; 2: ret
    let words = [0x2a00_03e1, 0x7100_0421, 0x54ff_ffe1, 0x3400_0040, RET, RET];
    assert_eq!(from_code(&words).unwrap(), [(0, Rule::LINK_ENTRY), (24, Rule::GAP)]);
}

#[test]
fn arm_code_that_does_not_add_up_is_left_alone() {
    let cases: [(&str, &[u32]); 6] = [
        ("a return behind a call that overwrote the link register", &[BL, RET]),
        ("a return with something left on the stack", &[0xd100_43ff, RET]),
        ("a jump to where only the run shows", &[0xd61f_0200]),
        ("two stacks at one address: cbz x0, 1f; sub sp; 1: ret", &[0xb400_0040, 0xd100_43ff, RET]),
        ("no code", &[0, 0]),
        ("the caller's frame pointer is lost", &[0x9100_03fd, RET]),
    ];
    for (what, words) in cases {
        assert_eq!(from_code(words), None, "{what}");
    }
}

proptest! {
    #[test]
    fn any_arm_words_are_survived(words in proptest::collection::vec(any::<u32>(), 0..200)) {
        if let Some(rows) = from_code(&words) {
            prop_assert!(rows.iter().all(|(offset, _)| offset % 4 == 0 && *offset <= words.len() as u64 * 4));
        }
    }
}
