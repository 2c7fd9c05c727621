use std::time::{Duration, Instant};

use super::*;
use crate::rows_of_elf_bytes;

/// A section like a compiler's: two common entries, functions with frames, an outermost one, a signal frame.
fn usual() -> Section {
    let mut section = Section::default();
    let cie = section.cie("zR", &USUAL);
    section.fde(cie, 0x1000..0x1010, &[0x07, 16]);
    section.fde(cie, 0x1010..0x1040, &[0x41, 0x0e, 16, 0x86, 2, 0x43, 0x0d, 6, 0x0a, 0x60, 0x0c, 7, 8, 0x41, 0x0b]);
    let signal = section.cie("zRS", &USUAL);
    section.fde(signal, 0x1040..0x1050, &[]);
    section.fde(cie, 0x1050..0x1060, &[0x42, 0x0e, 64, 0x4a, 0x0e, 8]);
    section.0.extend_from_slice(&[0; 4]);
    section
}

#[test]
fn each_function_has_its_rows() {
    let (table, stats) = usual().rows();
    let pushed = Rule::with_cfa(CfaKind::Sp, 16).with_fp(FpKind::AtCfa, -16);
    let left = Rule::ENTRY.with_fp(FpKind::AtCfa, -16);
    assert_eq!(
        table.rows().collect::<Vec<_>>(),
        [
            (0x1000, Rule::OUTERMOST),
            (0x1010, Rule::ENTRY),
            (0x1011, pushed),
            (0x1014, Rule::FRAME_POINTER),
            (0x1034, left),
            (0x1035, Rule::FRAME_POINTER),
            (0x1040, Rule::SIGNAL),
            (0x1050, Rule::ENTRY),
            (0x1052, Rule::with_cfa(CfaKind::Sp, 64)),
            (0x105c, Rule::ENTRY),
            (0x1060, Rule::GAP),
        ]
    );
    assert_eq!((stats.fdes, stats.corrupt, stats.over_limit), (4, 0, 0));
}

#[test]
fn a_section_cut_at_any_byte_keeps_the_functions_before_the_cut() {
    let section = usual();
    let (whole, _) = section.rows();
    for length in 0..section.0.len() {
        let (table, _) = compile(&section.0[..length], 0);
        for (address, rule) in table.rows().filter(|(_, rule)| *rule != Rule::GAP) {
            assert_eq!(whole.rule_at(address), rule, "cut at {length}, {address:#x}");
        }
    }
}

#[test]
fn any_flipped_byte_is_survived_and_leaves_functions_elsewhere() {
    let section = usual();
    let (whole, _) = section.rows();
    let last = section.0.len();
    let mut kept = 0;
    for at in 0..last {
        for flip in [0x01, 0x80, 0xff] {
            let mut damaged = section.0.clone();
            damaged[at] ^= flip;
            let (table, stats) = compile(&damaged, 0);
            assert!(stats.fdes <= 4);
            kept += usize::from(table.rule_at(0x1052) == whole.rule_at(0x1052));
        }
    }
    // What the last function does not depend on: the other functions' contents and the other common entry.
    assert!(kept > last * 3 / 2, "{kept} of {}", last * 3);
}

#[test]
fn a_corrupt_entry_costs_itself() {
    let mut section = Section::default();
    let good = section.cie("zR", &USUAL);
    let unknown = section.cie("?", &USUAL);
    let restores = section.cie("zR", &[0xc6]);
    section.fde(unknown, 0x1000..0x1010, &[]);
    section.fde(good, 0x1010..0x1020, &[]);
    section.fde(restores, 0x1020..0x1030, &[]);
    section.fde(good, 0x1030..0x1040, &[0x0b]);
    section.fde(good, 0x1040..0x1050, &[0x3f]);
    section.entry(&[1, 2]);
    section.fde(good, 0x1050..0x1060, &[]);
    let (table, stats) = section.rows();
    let gap = Rule::GAP;
    let rows: Vec<_> = table.rows().collect();
    assert_eq!(rows, [(0x1010, Rule::ENTRY), (0x1020, gap), (0x1050, Rule::ENTRY), (0x1060, gap)]);
    assert_eq!((stats.fdes, stats.corrupt), (2, 5));
}

#[test]
fn rules_that_rows_cannot_express_are_counted_by_reason() {
    let mut section = Section::default();
    let cie = section.cie("zR", &USUAL);
    let programs: [&[u8]; 8] = [
        &[0x0d, 10],
        &[0x0f, 3, 0x77, 0, 0x06],
        &[0x0e, 12],
        &[0x0e, 0x80, 0x80, 0x80, 0x01],
        &[0x09, 16, 1],
        &[0x90, 2],
        &[0x09, 6, 9],
        &[0x10, 6, 2, 0x77, 0],
    ];
    for (index, program) in (0_u64..).zip(programs) {
        section.fde(cie, index * 16 + 0x1000..index * 16 + 0x1010, program);
    }
    let (table, stats) = section.rows();
    assert_eq!(table.rows().collect::<Vec<_>>(), [(0x1000, Rule::UNSUPPORTED), (0x1080, Rule::GAP)]);
    let counts = stats.unsupported;
    assert_eq!((counts.cfa_register, counts.cfa_expression, counts.offset), (1, 1, 2));
    assert_eq!((counts.return_address, counts.frame_pointer), (2, 2));
}

#[test]
fn slots_with_a_longer_prologue_have_two_rows_each() {
    let mut section = Section::default();
    let cie = section.cie("zR", &USUAL);
    // ld's .eh_frame for slots that begin with endbr64: the push ends at 9.
    let program =
        [0x0e, 16, 0x46, 0x0e, 24, 0x4a, 0x0f, 11, 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x39, 0x2a, 0x33, 0x24, 0x22];
    section.fde(cie, 0x1000..0x1030, &program);
    let pushed = Rule::with_cfa(CfaKind::Sp, 16);
    assert_eq!(
        section.rows().0.rows().collect::<Vec<_>>(),
        [
            (0x1000, pushed),
            (0x1006, Rule::with_cfa(CfaKind::Sp, 24)),
            (0x1010, Rule::ENTRY),
            (0x1019, pushed),
            (0x1020, Rule::ENTRY),
            (0x1029, pushed),
            (0x1030, Rule::GAP),
        ]
    );
}

/// Compiles a crafted section; the bound is far above what it takes and far below what quadratic work would.
fn in_time(section: &Section) -> (RowTable, RowStats) {
    let started = Instant::now();
    let result = section.rows();
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    result
}

#[test]
fn work_does_not_grow_faster_than_the_section() {
    // A megabyte of instructions in one common entry, and ten thousand functions that use it.
    let mut shared = Section::default();
    let cie = shared.cie("zR", &[&USUAL[..], &vec![0; 1 << 20]].concat());
    for function in 0..10_000_u64 {
        shared.fde(cie, function * 16 + 0x1000..function * 16 + 0x1010, &[]);
    }
    let (table, stats) = in_time(&shared);
    assert_eq!((stats.fdes, table.len()), (10_000, 5));

    // A million rows, a million remembered states, and states remembered without end.
    let mut long = Section::default();
    let cie = long.cie("zR", &USUAL);
    let rows: Vec<u8> = (0..1 << 20).flat_map(|row| [0x41, 0x0e, if row % 2 == 0 { 16 } else { 24 }]).collect();
    long.fde(cie, 0x1_0000..0x1000_0000, &rows);
    long.fde(cie, 0x1000_0000..0x1000_0010, &[0x0a, 0x0b].repeat(1 << 20));
    long.fde(cie, 0x1000_0010..0x1000_0020, &vec![0x0a; 1 << 20]);
    let (table, stats) = in_time(&long);
    assert_eq!((stats.fdes, stats.corrupt), (2, 1));
    assert!(table.len() > 1 << 20);
}

#[test]
fn overlapping_common_entries_do_not_multiply_the_work() {
    // Each common entry begins in the operand of an instruction of the one before, and shares its half a megabyte of
    // instructions with all the others.
    let mut section = Section::default();
    let header = [&(1_u32 << 19).to_le_bytes()[..], &[0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0]].concat();
    let expression = [0x10, 3, u8::try_from(header.len()).unwrap()];
    let mut starts = Vec::new();
    for _ in 0..2000 {
        starts.push(section.0.len());
        section.0.extend_from_slice(&header);
        section.0.extend_from_slice(&expression);
    }
    section.0.resize(section.0.len() + (1 << 19), 0);
    for (function, cie) in (0_u64..).zip(&starts[..1999]) {
        section.fde(*cie, 0x1000 + function..0x1001 + function, &[]);
    }
    let (_, stats) = in_time(&section);
    assert_eq!(stats.fdes + stats.corrupt + stats.over_limit, 1999);
    assert!(stats.fdes > 0 && stats.over_limit > 1900, "{stats:?}");
}

/// `DW_CFA_def_cfa_expression` of slots whose push ends at 9, then as many advances over a megabyte as there is room for.
fn slots_without_end(bytes: usize) -> Vec<u8> {
    let expression = [0x0f, 11, 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x39, 0x2a, 0x33, 0x24, 0x22];
    [&expression[..], &[0x04, 0, 0, 0x10, 0].repeat(bytes / 5)].concat()
}

#[test]
fn rules_count_as_they_are_made() {
    // Each advance of 5 bytes made 131,072 rules: 2.1 GB for 9 kB.
    let mut section = Section::default();
    let cie = section.cie("zR", &USUAL);
    section.fde(cie, 0x1000..0x1_0000_0000, &slots_without_end(9000));
    for function in 0..500 {
        section.fde(cie, 0x2000 + function..0x1_0000_0000, &[0x0a, 0x41, 0x0e, 16, 0x0b].repeat(8));
    }
    let started = Instant::now();
    let (table, stats) = super::compile_within(Machine::X86_64, &section.0, 0, 0x1000..0xe000);
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    assert!(table.len() <= 0xd000, "{}", table.len());
    assert_eq!(stats.fdes + stats.corrupt + stats.over_limit, 501);
}

#[test]
fn a_function_of_any_size_takes_a_bounded_table() {
    let mut section = Section::default();
    let cie = section.cie("zR", &USUAL);
    for function in 0..200_u64 {
        section.fde(cie, function << 40..u64::MAX, &[]);
    }
    let (table, _) = in_time(&section);
    assert!(table.len() <= 4 << 20);
}

#[test]
fn a_damaged_image_gives_rows_or_an_error() {
    let image = vdso();
    for length in (0..image.len()).step_by(7) {
        drop(rows_of_elf_bytes(&image[..length]));
    }
    let headers = 0..0x400.min(image.len());
    for at in headers.chain((0x400..image.len()).step_by(5)) {
        for flip in [0x01, 0xff] {
            let mut damaged = image.clone();
            damaged[at] ^= flip;
            if let Ok(rows) = rows_of_elf_bytes(&damaged) {
                assert!(rows.table.len() <= 4 << 20);
            }
        }
    }
}
