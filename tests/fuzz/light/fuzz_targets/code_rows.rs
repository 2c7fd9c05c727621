//! Rows from any bytes that are said to be code: no panic, and no row but of this code.
//!
//! The first byte says where the code lies and for which machine it is. Good seeds are the code bytes of real dumps with such
//! a head.
#![no_main]

use jitprof_common::machine::Machine;
use jitprof_common::row::Rule;
use jitprof_unwind::{RowTable, rows_of_called_code, rows_of_code, rows_of_sized_code};
use libfuzzer_sys::fuzz_target;

/// Where code may lie: at the ends of everything, across the ends of pages of rows, anywhere.
const PLACES: u64 = 8;

fuzz_target!(|input: &[u8]| {
    let Some((control, code)) = input.split_first() else {
        return;
    };
    let machine = if control & 1 == 0 { Machine::X86_64 } else { Machine::Aarch64 };
    let length = code.len() as u64;
    let start = match u64::from(control >> 1) % PLACES {
        0 => 0,
        1 => u64::MAX - length,
        2 => u64::MAX - length / 2,
        3 => 0x7f00_0001_0000 - length / 2,
        4 => 0x7f00_0001_0000 - length,
        5 => 0xffff,
        6 => 0x7f00_0000_0000,
        _ => 0x7f12_3456_7890,
    };
    for rows_of in [rows_of_code, rows_of_called_code, rows_of_sized_code] {
        let rows = rows_of(machine, start, code);
        assert_eq!(rows, rows_of(machine, start, code));
        if let Some(rows) = rows {
            check(&rows, start, length);
            // The same code elsewhere has the same rows there.
            if let Some(other) = rows_of(machine, 0x5000_0000, code) {
                for offset in 0..length {
                    assert_eq!(rows.rule_at(start + offset), other.rule_at(0x5000_0000 + offset));
                }
            }
        }
    }
});

/// A row begins where an instruction does, so a table has no more of them than bytes, but for the ends of its pages.
fn check(rows: &RowTable, start: u64, length: u64) {
    let end = start.checked_add(length).expect("code that does not end has no rows");
    assert!(rows.len() as u64 <= length + 2 + length / 0x8000, "{} rows of {length} bytes", rows.len());
    let mut last = None;
    for (address, rule) in rows.rows() {
        assert!(last.is_none_or(|last| last < address), "ascending");
        assert!((start..=end).contains(&address), "{address:#x} is not in {start:#x}..{end:#x}");
        assert_eq!(rows.rule_at(address), rule);
        last = Some(address);
    }
    assert_eq!(rows.rule_at(end), Rule::GAP);
    assert_eq!(rows.rule_at(start.wrapping_sub(1)), Rule::GAP);
}
