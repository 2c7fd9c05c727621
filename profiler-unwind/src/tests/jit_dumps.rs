use std::sync::Arc;

use gimli::UnwindSection as _;

use super::recorded_frames;
use super::*;
use crate::rows_of_jit;
use jitprof_common::units::Avma;
use jitprof_jitdump::code::EhFrame;

/// Every function's recorded rules at every address, by gimli.
fn by_gimli(load: &CodeLoad, eh: &EhFrame, address: u64) -> Rule {
    let bases = BaseAddresses::default().set_eh_frame(eh.section_start.0);
    // gimli does not decode V8's declaration of omitted language-specific data.
    let mut bytes = eh.bytes.to_vec();
    let declared = bytes.windows(4).position(|window| window == b"zLR\0").filter(|at| *at < 16);
    if let Some(at) = declared {
        bytes[at + 1] = b'R';
    }
    let section = gimli::EhFrame::new(&bytes, LittleEndian);
    let mut context = gimli::UnwindContext::new();
    let Ok(fde) = section.fde_for_address(&bases, address, gimli::EhFrame::cie_from_offset) else { return Rule::GAP };
    assert_eq!(fde.initial_address(), load.start.0);
    let row = fde.unwind_info_for_address(&section, &bases, &mut context, address).unwrap();
    rule_by_gimli(row, &section, fde.is_signal_trampoline())
}

/// A dump whose functions have EH frames, and those named in `JITPROF_UNWIND_DUMPS`, with how many must have one.
fn recorded_dumps() -> Vec<(String, Vec<CodeLoad>, usize)> {
    let name = "cpython3.13.0-burn";
    let named = named_dumps().map(|(path, loads)| (path, loads, 0));
    [(name.to_owned(), fixture(name), 210)].into_iter().chain(named).collect()
}

#[test]
fn recorded_eh_frames_give_the_rows_that_gimli_gives() {
    for (name, loads, least) in recorded_dumps() {
        let mut with_rows = 0;
        for load in &loads {
            let Some(eh) = &load.eh_frame else { continue };
            let table = rows_of_jit(Machine::X86_64, load.start.0, load.size, recorded_frames(eh)).expect("rows");
            for address in load.start.0.saturating_sub(1)..=load.start.0 + load.size {
                let inside = (load.start.0..load.start.0 + load.size).contains(&address);
                let expected = if inside { by_gimli(load, eh, address) } else { Rule::GAP };
                assert_eq!(table.rule_at(address), expected, "{name} {} at {address:#x}", load.name);
            }
            with_rows += 1;
        }
        println!("{name}: {with_rows} of {}", loads.len());
        assert!(with_rows >= least, "{name}: {with_rows} of {}", loads.len());
    }
}

/// A function at `start`, 0x20 bytes of which are covered, with its section right behind 0x40 bytes of code.
fn recorded(start: u64, instructions: &[u8]) -> EhFrame {
    let mut section = Section::default();
    let cie = section.cie("zR", &USUAL);
    section.fde(cie, start..start + 0x20, instructions);
    EhFrame { bytes: Arc::from(section.0), section_start: Avma(start + 0x40) }
}

#[test]
fn behind_the_recorded_range_the_frame_pointer_is_used() {
    // push: advance 1, cfa offset 16, rbp at cfa - 16.
    let eh = recorded(0x7000, &[0x41, 0x0e, 16, 0x86, 2]);
    let table = rows_of_jit(Machine::X86_64, 0x7000, 0x40, recorded_frames(&eh)).unwrap();
    let pushed = Rule::with_cfa(CfaKind::Sp, 16).with_fp(FpKind::AtCfa, -16);
    let rows: Vec<_> = table.rows().collect();
    assert_eq!(rows, [(0x7000, Rule::ENTRY), (0x7001, pushed), (0x7020, Rule::GAP)]);
    // Shorter code than recorded.
    let rows: Vec<_> = rows_of_jit(Machine::X86_64, 0x7000, 1, recorded_frames(&eh)).unwrap().rows().collect();
    assert_eq!(rows, [(0x7000, Rule::ENTRY), (0x7001, Rule::GAP)]);
}

/// The record of an optimised function of Node 20.20.2, 504 bytes of which 501 are covered.
#[test]
fn v8s_record_with_omitted_language_specific_data_is_read() {
    const RECORD: [u8; 76] = [
        0x18, 0, 0, 0, 0, 0, 0, 0, 3, b'z', b'L', b'R', 0, 1, 0x78, 0x10, 2, 0xff, 0x1b, 0x0c, 7, 8, 0x90, 1, 0, 0, 0,
        0, 0x28, 0, 0, 0, 0x20, 0, 0, 0, 0xe4, 0xfd, 0xff, 0xff, 0xf5, 1, 0, 0, 0, 0x4f, 0x0e, 0x10, 0x86, 2, 0x43,
        0x0d, 6, 3, 0x12, 1, 0x0d, 7, 0x41, 0x0e, 8, 0x52, 0x0c, 6, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    let start = 0x7f20_edfc_6900;
    let eh = EhFrame { bytes: Arc::from(RECORD), section_start: Avma(start + 504) };
    let pushed = Rule::with_cfa(CfaKind::Sp, 16).with_fp(FpKind::AtCfa, -16);
    let rows: Vec<_> = rows_of_jit(Machine::X86_64, start, 504, recorded_frames(&eh))
        .unwrap()
        .rows()
        .map(|(at, rule)| (at - start, rule))
        .collect();
    assert_eq!(
        rows,
        [
            (0, Rule::ENTRY),
            (15, pushed),
            (18, Rule::FRAME_POINTER),
            (292, pushed),
            (293, Rule::ENTRY.with_fp(FpKind::AtCfa, -16)),
            (311, Rule::FRAME_POINTER),
            (501, Rule::GAP),
        ]
    );
}

#[test]
fn a_frame_of_another_function_is_not_used() {
    let eh = recorded(0x7000, &[]);
    for (start, size) in [(0x6fff, 0x40), (0x7001, 0x40), (0x8000, 0x40), (0x7000, 0), (u64::MAX, 2)] {
        assert_eq!(rows_of_jit(Machine::X86_64, start, size, recorded_frames(&eh)), None, "{start:#x} {size:#x}");
    }
}

#[test]
fn only_the_functions_own_entries_of_a_batch_count() {
    let mut section = Section::default();
    let cie = section.cie("zR", &USUAL);
    for function in 0..8_u64 {
        section.fde(cie, 0x7000 + function * 0x20..0x7020 + function * 0x20, &[0x41, 0x0e, 16]);
    }
    let eh = EhFrame { bytes: Arc::from(section.0), section_start: Avma(0) };
    let rows: Vec<_> = rows_of_jit(Machine::X86_64, 0x7040, 0x20, recorded_frames(&eh)).unwrap().rows().collect();
    assert_eq!(rows, [(0x7040, Rule::ENTRY), (0x7041, Rule::with_cfa(CfaKind::Sp, 16)), (0x7060, Rule::GAP)]);
}

#[test]
fn a_functions_rows_take_microseconds() {
    let loads = fixture("cpython3.13.0-burn");
    let rounds = 20;
    let started = std::time::Instant::now();
    let mut rows = 0;
    for _ in 0..rounds {
        for load in &loads {
            rows +=
                rows_of_jit(Machine::X86_64, load.start.0, load.size, recorded_frames(load.eh_frame.as_ref().unwrap()))
                    .unwrap()
                    .len();
        }
    }
    let each = started.elapsed() / (rounds * u32::try_from(loads.len()).unwrap());
    println!("{each:?} a function, {rows} rows");
    // Unoptimised, on a machine that does other things: a bound against growth with the wrong thing only.
    assert!(each < std::time::Duration::from_millis(1), "{each:?}");
}
