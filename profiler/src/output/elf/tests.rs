//! Files read back by other readers: `object` for the file, gimli for lines and unwinding data.

use std::sync::Arc;

use gimli::{BaseAddresses, UnwindSection};
use object::read::{Object, ObjectSection, ObjectSymbol};

use super::{ElfFunction, ElfKind, write_elf};
use jitprof_common::units::Avma;
use jitprof_jitdump::ByteOrder;
use jitprof_jitdump::code::{EhFrame, LineRow};
use jitprof_jitdump::test_data as examples;

/// Names, addresses and code of the functions in a file, by address.
pub(crate) fn symbols(bytes: &[u8]) -> Vec<(String, u64, Vec<u8>)> {
    let file = object::File::parse(bytes).unwrap();
    let mut found: Vec<_> = file
        .symbols()
        .filter(|symbol| symbol.is_definition())
        .map(|symbol| {
            let section = file.section_by_index(symbol.section_index().unwrap()).unwrap();
            let code = section.data_range(symbol.address(), symbol.size()).unwrap().unwrap();
            (symbol.name().unwrap().to_owned(), symbol.address(), code.to_vec())
        })
        .collect();
    found.sort_by_key(|(_, address, _)| *address);
    found
}

fn function(start: u64, name: &str) -> ElfFunction {
    let row = |offset, line, file: &str| LineRow { offset, line, file: file.into() };
    // As V8 and CPython write it: relative to the place behind the code.
    let frame = EhFrame { bytes: Arc::from(examples::eh_frame(-32, 32)), section_start: Avma(start + 32) };
    ElfFunction {
        start,
        size: 32,
        name: name.into(),
        lines: [row(0, 3, "a.js"), row(8, 4, "b\u{1b}.js"), row(40, 5, "a.js")].into_iter().collect(),
        eh_frame: Some(frame),
    }
}

fn written(order: ByteOrder, functions: &[ElfFunction]) -> Vec<u8> {
    let mut out = Vec::new();
    let kind = ElfKind { machine: 62, order };
    let mut code = |function: &ElfFunction, give: &mut dyn FnMut(&[u8])| {
        let half = usize::try_from(function.size / 2).unwrap();
        give(&vec![0x90; half]);
        give(&vec![0xc3; half]);
        Ok(())
    };
    let account = write_elf(kind, functions, &mut code, &mut out).unwrap();
    assert_eq!(account.functions, functions.len());
    out
}

#[test]
fn functions_lie_at_their_addresses_with_their_code_and_printable_names() {
    let functions = [function(0x1000, "f"), function(0x1040, "ev\nil"), function(0x7f00_0000_0000, "")];
    for order in [ByteOrder::Little, ByteOrder::Big] {
        let bytes = written(order, &functions);
        let code = [vec![0x90; 16], vec![0xc3; 16]].concat();
        let expected = [("f", 0x1000), ("ev\\nil", 0x1040), ("[empty]", 0x7f00_0000_0000)];
        let expected = expected.map(|(name, address)| (name.to_owned(), address, code.clone()));
        assert_eq!(symbols(&bytes), expected);
        let file = object::File::parse(bytes.as_slice()).unwrap();
        let text: Vec<_> = file.sections().filter(|section| section.name() == Ok(".text")).collect();
        assert_eq!(text.len(), 2, "the first two are near each other");
        assert_eq!(text[0].data().unwrap()[32..64], [0xcc; 32], "the gap is filled");
    }
}

#[test]
fn lines_are_those_of_the_functions() {
    let bytes = written(ByteOrder::Little, &[function(0x1000, "f"), function(0x2000, "g")]);
    let file = object::File::parse(bytes.as_slice()).unwrap();
    let section = |id: gimli::SectionId| -> Result<_, gimli::Error> {
        let data = file.section_by_name(id.name()).map_or(&[][..], |section| section.data().unwrap());
        Ok(gimli::EndianSlice::new(data, gimli::LittleEndian))
    };
    let dwarf = gimli::Dwarf::load(section).unwrap();
    let header = dwarf.units().next().unwrap().unwrap();
    let unit = dwarf.unit(header).unwrap();
    let mut rows = unit.line_program.clone().unwrap().rows();
    let mut found = Vec::new();
    while let Some((header, row)) = rows.next_row().unwrap() {
        let file = row.file(header).map(|file| dwarf.attr_string(&unit, file.path_name()).unwrap().to_string_lossy());
        let line = row.line().map_or(0, |line| line.get());
        found.push((row.address(), line, row.end_sequence(), file.unwrap().into_owned()));
    }
    let of = |start: u64| {
        let evil = "b\\x1b.js".to_owned();
        [(start, 3, false, "a.js".into()), (start + 8, 4, false, evil.clone()), (start + 32, 4, true, evil)]
    };
    assert_eq!(found, [of(0x1000), of(0x2000)].concat());
    let mut ranges = dwarf.unit_ranges(&unit).unwrap();
    assert_eq!(ranges.next().unwrap().map(|range| (range.begin, range.end)), Some((0x1000, 0x1020)));
}

#[test]
fn unwinding_data_covers_the_functions_where_they_are() {
    let bytes = written(ByteOrder::Little, &[function(0x1000, "f"), function(0x7f00_0000_0000, "g")]);
    let file = object::File::parse(bytes.as_slice()).unwrap();
    let section = file.section_by_name(".eh_frame").unwrap();
    let frame = gimli::EhFrame::new(section.data().unwrap(), gimli::LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(section.address());
    for start in [0x1000, 0x7f00_0000_0000] {
        let fde = frame.fde_for_address(&bases, start + 31, gimli::EhFrame::cie_from_offset).unwrap();
        assert_eq!((fde.initial_address(), fde.len()), (start, 32));
    }
    assert!(frame.fde_for_address(&bases, 0x1020, gimli::EhFrame::cie_from_offset).is_err());
}
