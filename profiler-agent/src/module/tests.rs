//! An object as LLVM compiles it.

use super::*;

/// An object of numba 0.68 (LLVM 22, large code model): `leaf_hot` of `tests/targets/numba/burn.py` with its wrappers.
const NUMBA: &[u8] = include_bytes!("../../fixtures/numba-leaf_hot.o");

/// Where the object's sections would lie.
const TEXT: u64 = 0x7f00_0000_1000;
const FRAME: u64 = 0x7f00_0001_2088;

fn object() -> Object {
    let file = File::parse(NUMBA).unwrap();
    let section = |name: &str, start| {
        let section = file.section_by_name(name).unwrap();
        let file_offset = section.file_range().unwrap().0;
        Section { name: name.into(), start, size: section.size(), file_offset }
    };
    Object {
        name: b"m".to_vec(),
        file: NUMBA.to_vec(),
        sections: vec![section(".ltext", TEXT), section(".eh_frame", FRAME)],
    }
}

#[test]
fn functions_lie_where_their_section_was_loaded() {
    let functions = functions(&object()).unwrap();
    let places: Vec<(u64, u32)> =
        functions.list.iter().map(|function| (function.start - TEXT, function.size)).collect();
    assert_eq!(places, [(0, 233), (240, 274), (528, 33)]);
    assert!(functions.list[0].name.starts_with(b"_ZN8__main__8leaf_hot"));
}

#[test]
fn lines_of_relocatable_debug_sections_are_relocated() {
    let functions = functions(&object()).unwrap();
    let rows: Vec<(u32, u32)> =
        functions.rows_of(&functions.list[0]).map(|(row, _)| (row.offset, row.line)).take(4).collect();
    assert_eq!(rows, [(0, 5), (10, 7), (34, 0), (44, 7)]);
    assert!(functions.rows_of(&functions.list[0]).all(|(_, file)| file.ends_with(b"nb.py")));
    assert_eq!(functions.rows_of(&functions.list[1]).count(), 0, "the wrapper has no lines");
}

#[test]
fn unwinding_data_leads_from_behind_the_code_to_the_function() {
    use gimli::{BaseAddresses, EhFrame, UnwindSection};
    for function in functions(&object()).unwrap().list {
        let (data, header) = function.unwinding.unwrap();
        let section = function.start + u64::from(function.size).next_multiple_of(8);
        let bases = BaseAddresses::default().set_eh_frame(section);
        let frame = EhFrame::new(&data[..data.len() - header], NativeEndian);
        let fde = frame.fde_for_address(&bases, function.start, EhFrame::cie_from_offset).unwrap();
        assert_eq!((fde.initial_address(), fde.len()), (function.start, u64::from(function.size)));
        let header_bases = bases.set_eh_frame_hdr(section + (data.len() - header) as u64);
        let parsed =
            gimli::EhFrameHdr::new(&data[data.len() - header..], NativeEndian).parse(&header_bases, 8).unwrap();
        assert_eq!(parsed.eh_frame_ptr(), gimli::Pointer::Direct(section));
        let found = parsed.table().unwrap().lookup(function.start, &header_bases).unwrap();
        assert_eq!(found, gimli::Pointer::Direct(section + fde.offset() as u64));
    }
}

#[test]
fn a_cut_or_changed_object_crashes_nothing() {
    let whole = object();
    for length in (0..NUMBA.len()).step_by(7) {
        let file = NUMBA[..length].to_vec();
        functions(&Object { file, ..whole.clone() });
    }
    // Each field has a byte among them.
    for at in (0..NUMBA.len()).step_by(3) {
        for flip in [0x01, 0xff] {
            let mut file = NUMBA.to_vec();
            file[at] ^= flip;
            functions(&Object { file, ..whole.clone() });
        }
    }
}
