use gimli::UnwindSection as _;
use proptest::prelude::*;

use super::*;

/// An instruction of a random program; registers are those that matter and one that does not.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Advance(u8),
    Advance1(u8),
    Advance2(u16),
    DefCfa(u8, u8),
    DefCfaRegister(u8),
    DefCfaOffset(u8),
    DefCfaSf(u8, i8),
    DefCfaOffsetSf(i8),
    DefCfaExpression(Vec<u8>),
    Offset(u8, u8),
    OffsetSf(u8, i8),
    Undefined(u8),
    Same(u8),
    Register(u8, u8),
    Expression(u8, Vec<u8>),
    ValOffset(u8, u8),
    Restore(u8),
    RestoreExtended(u8),
    Remembered(Vec<Op>),
    ArgsSize(u8),
    /// `DW_CFA_AARCH64_negate_ra_state`.
    NegateReturnAddress,
    Nop,
}

/// The frame pointer, the stack pointer, the return address, and one that rows do not speak of.
type Registers = [u8; 4];
const X86: Registers = [6, 7, 16, 3];
pub(super) const ARM: Registers = [29, 31, 30, 3];

fn register([fp, sp, return_address, other]: Registers) -> impl Strategy<Value = u8> {
    prop_oneof![5 => Just(fp), 5 => Just(sp), 2 => Just(return_address), 1 => Just(other)]
}

/// Mostly offsets of whole slots, in groups of LEB128's 7 bits.
fn small() -> impl Strategy<Value = u8> {
    prop_oneof![4 => (0..16_u8).prop_map(|slots| slots * 8), 1 => 0..128_u8]
}

fn expression(registers: Registers) -> impl Strategy<Value = Vec<u8>> {
    let register = move || register(registers);
    let plt = vec![0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
    prop_oneof![
        Just(plt),
        (register(), small()).prop_map(|(register, offset)| vec![0x70 + register, offset]),
        (register(), small()).prop_map(|(register, offset)| vec![0x70 + register, offset, 0x06]),
        (register(), small()).prop_map(|(register, offset)| vec![0x70 + register, offset, 0x06, 0x23, 8]),
    ]
}

/// An instruction about these registers.
pub(super) fn op(registers: Registers) -> impl Strategy<Value = Op> {
    let register = move || register(registers);
    let expression = move || expression(registers);
    let leaf = prop_oneof![
        4 => (1..64_u8).prop_map(Op::Advance),
        1 => any::<u8>().prop_map(Op::Advance1),
        1 => (0..0x800_u16).prop_map(Op::Advance2),
        3 => (register(), small()).prop_map(|(register, offset)| Op::DefCfa(register, offset)),
        2 => register().prop_map(Op::DefCfaRegister),
        3 => small().prop_map(Op::DefCfaOffset),
        1 => (register(), -64..64_i8).prop_map(|(register, offset)| Op::DefCfaSf(register, offset)),
        1 => (-64..64_i8).prop_map(Op::DefCfaOffsetSf),
        1 => expression().prop_map(Op::DefCfaExpression),
        3 => (register(), 0..6_u8).prop_map(|(register, offset)| Op::Offset(register, offset)),
        1 => (register(), -3..3_i8).prop_map(|(register, offset)| Op::OffsetSf(register, offset)),
        1 => register().prop_map(Op::Undefined),
        1 => register().prop_map(Op::Same),
        1 => (register(), register()).prop_map(|(to, from)| Op::Register(to, from)),
        1 => (register(), expression()).prop_map(|(register, bytes)| Op::Expression(register, bytes)),
        1 => (register(), small()).prop_map(|(register, offset)| Op::ValOffset(register, offset)),
        2 => register().prop_map(Op::Restore),
        1 => register().prop_map(Op::RestoreExtended),
        1 => any::<u8>().prop_map(Op::ArgsSize),
        1 => Just(Op::Nop),
    ];
    leaf.prop_recursive(2, 12, 6, |inner| proptest::collection::vec(inner, 0..6).prop_map(Op::Remembered))
}

fn leb(value: u64, bytes: &mut Vec<u8>) {
    gimli::leb128::write::unsigned(bytes, value).unwrap();
}

pub(super) fn encode(ops: &[Op], out: &mut Vec<u8>) {
    let signed = |value: i8| value.cast_unsigned() & 0x7f;
    for op in ops {
        match op {
            Op::Advance(delta) => out.push(0x40 | delta),
            Op::Advance1(delta) => out.extend([0x02, *delta]),
            Op::Advance2(delta) => {
                out.push(0x03);
                out.extend(delta.to_le_bytes());
            }
            Op::DefCfa(register, offset) => out.extend([0x0c, *register, *offset]),
            Op::DefCfaRegister(register) => out.extend([0x0d, *register]),
            Op::DefCfaOffset(offset) => out.extend([0x0e, *offset]),
            Op::DefCfaSf(register, offset) => out.extend([0x12, *register, signed(*offset)]),
            Op::DefCfaOffsetSf(offset) => out.extend([0x13, signed(*offset)]),
            Op::DefCfaExpression(bytes) => {
                out.push(0x0f);
                leb(bytes.len() as u64, out);
                out.extend(bytes);
            }
            Op::Offset(register, offset) => out.extend([0x80 | register, *offset]),
            Op::OffsetSf(register, offset) => out.extend([0x11, *register, signed(*offset)]),
            Op::Undefined(register) => out.extend([0x07, *register]),
            Op::Same(register) => out.extend([0x08, *register]),
            Op::Register(to, from) => out.extend([0x09, *to, *from]),
            Op::Expression(register, bytes) => {
                out.extend([0x10, *register]);
                leb(bytes.len() as u64, out);
                out.extend(bytes);
            }
            Op::ValOffset(register, offset) => out.extend([0x14, *register, *offset]),
            Op::Restore(register) => out.push(0xc0 | register),
            Op::RestoreExtended(register) => out.extend([0x06, *register]),
            Op::Remembered(inner) => {
                out.push(0x0a);
                encode(inner, out);
                out.push(0x0b);
            }
            Op::ArgsSize(size) => {
                out.push(0x2e);
                leb(u64::from(*size), out);
            }
            Op::NegateReturnAddress => out.push(0x2d),
            Op::Nop => out.push(0),
        }
    }
}

/// Compares a function, address by address; one that gimli refuses must have no rows.
pub(super) fn compare_with_gimli(
    table: &RowTable,
    eh: &gimli::EhFrame<Slice<'_>>,
    code: &Range<u64>,
    rule: impl Fn(&UnwindTableRow<usize>, &gimli::EhFrame<Slice<'_>>) -> Rule,
) -> Result<(), TestCaseError> {
    let bases = BaseAddresses::default().set_eh_frame(0);
    let fde = eh.fde_for_address(&bases, code.start, gimli::EhFrame::cie_from_offset).unwrap();
    let mut context = gimli::UnwindContext::new();
    let mut expected = Vec::new();
    if let Ok(mut rows) = fde.rows(eh, &bases, &mut context) {
        while let Ok(Some(row)) = rows.next_row() {
            let range = row.start_address().max(code.start)..row.end_address().min(code.end);
            expected.push((range, rule(row, eh)));
        }
    }
    // What gimli reads up to an error is a prefix of what the program says; here one error drops the function.
    if expected.last().is_none_or(|(range, _)| range.end < code.end) {
        prop_assert!(table.is_empty());
        return Ok(());
    }
    for (range, rule) in expected {
        for address in range {
            prop_assert_eq!(table.rule_at(address), rule, "at {:#x}", address);
        }
    }
    Ok(())
}

fn compare(section: &Section, code: &Range<u64>) -> Result<(), TestCaseError> {
    let eh = gimli::EhFrame::new(&section.0, LittleEndian);
    compare_with_gimli(&section.rows().0, &eh, code, |row, eh| rule_by_gimli(row, eh, false))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn random_programs_give_the_rows_that_gimli_gives(
        initial in proptest::collection::vec(op(X86), 0..3),
        ops in proptest::collection::vec(op(X86), 0..24),
        length in 1..0x400_u64,
    ) {
        let mut section = Section::default();
        let mut first = USUAL.to_vec();
        let initial: Vec<Op> = initial.into_iter().filter(|op| !matches!(op, Op::Restore(_) | Op::RestoreExtended(_) | Op::Remembered(_))).collect();
        encode(&initial, &mut first);
        let cie = section.cie("zR", &first);
        let mut instructions = Vec::new();
        encode(&ops, &mut instructions);
        let code = 0xfff0..0xfff0 + length;
        section.fde(cie, code.clone(), &instructions);
        compare(&section, &code)?;
    }

    #[test]
    fn arbitrary_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let (_, stats) = compile(&bytes, 0x1000);
        prop_assert!(stats.fdes <= bytes.len() as u64 / 8);
    }

    #[test]
    fn arbitrary_instructions_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..300), start: u64, length: u64) {
        let mut section = Section::default();
        let cie = section.cie("zR", &USUAL);
        let end = start.saturating_add(length);
        section.fde(cie, start..end, &bytes);
        let (table, _) = section.rows();
        prop_assert!(start == 0 || table.rule_at(start - 1) == Rule::GAP);
        prop_assert_eq!(table.rule_at(end), Rule::GAP);
    }
}
