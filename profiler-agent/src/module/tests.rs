//! An object as LLVM compiles it.

use gimli::NativeEndian;

use super::*;
use crate::rows::Row;

/// An object of numba 0.68 (LLVM 22, large code model): `leaf_hot` of `tests/targets/numba/burn.py` with its wrappers.
const NUMBA: &[u8] = include_bytes!("../../fixtures/numba-leaf_hot.o");

/// `tests/targets/jit_api/inlined.c`, compiled by gcc 12 (DWARF 5): parts with several ranges.
///
/// ```text
/// gcc -g -O2 -fomit-frame-pointer -ffile-prefix-map=$PWD=. -c tests/targets/jit_api/inlined.c
/// ```
const INLINED: &[u8] = include_bytes!("../../fixtures/gcc12-inlined.o");
/// The same in DWARF 4 by clang 14.
///
/// ```text
/// clang-14 -gdwarf-4 -O2 -fomit-frame-pointer -fno-unroll-loops -ffile-prefix-map=$PWD=. -c tests/targets/jit_api/inlined.c
/// ```
const INLINED_4: &[u8] = include_bytes!("../../fixtures/clang14-inlined-dwarf4.o");

/// Where the object's sections would lie.
const TEXT: u64 = 0x7f00_0000_1000;
const FRAME: u64 = 0x7f00_0001_2088;

fn object() -> Object {
    object_of(NUMBA, ".ltext")
}

fn object_of(bytes: &[u8], text: &str) -> Object {
    let file = File::parse(bytes).unwrap();
    let section = |name: &str, start| {
        let section = file.section_by_name(name).unwrap();
        let file_offset = section.file_range().unwrap().0;
        Section { name: name.into(), start, size: section.size(), file_offset }
    };
    Object {
        name: b"m".to_vec(),
        file: bytes.to_vec(),
        sections: vec![section(text, TEXT), section(".eh_frame", FRAME)],
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
        functions.levels(&functions.list[0]).0.iter().map(|(row, _)| (row.offset, row.line)).take(4).collect();
    assert_eq!(rows, [(0, 5), (10, 7), (34, 0), (44, 7)]);
    assert!(functions.levels(&functions.list[0]).0.iter().all(|(_, file)| file.ends_with(b"nb.py")));
    assert_eq!(functions.levels(&functions.list[1]).0.len(), 0, "the wrapper has no lines");
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

/// For an offset into the function: the functions that it is in, outermost first, each with its line.
fn frames_at(functions: &Functions, offset: u32) -> Vec<(String, u32)> {
    let function = &functions.list[0];
    let (rows, inlined, complete) = functions.levels(function);
    assert!(complete);
    let line = |rows: &mut dyn Iterator<Item = Row>, offset: u32| {
        rows.take_while(|row| row.offset <= offset).last().map_or(0, |row| row.line)
    };
    let text = |name: &[u8]| String::from_utf8(name.to_vec()).unwrap();
    let mut frames = vec![(text(&function.name), line(&mut rows.iter().map(|(row, _)| *row), offset))];
    let mut innermost = None;
    for (index, part) in inlined.iter().enumerate() {
        let start = u32::try_from(part.range.start - function.start).unwrap();
        if (start..start + part.range.size).contains(&offset) {
            assert_eq!(part.parent, innermost, "each lies in the one before");
            innermost = Some(index);
            frames.push((text(part.name), line(&mut part.rows.iter().copied(), offset - start)));
        }
    }
    frames
}

#[test]
fn inlined_functions_are_frames_with_lines_of_their_own_and_calls_around_them() {
    for (file, hot, cold) in [(INLINED, 0x2e, 0x6e), (INLINED_4, 0x2d, 0x6d)] {
        let functions = functions(&object_of(file, ".text")).unwrap();
        let frame = |name: &str, line| (name.to_owned(), line);
        assert_eq!(frames_at(&functions, hot), [frame("run", 35), frame("outer_part", 21), frame("hot_part", 15)]);
        assert_eq!(frames_at(&functions, cold)[..], [frame("run", 37), frame("cold_part", 28)]);
        let (_, inlined, _) = functions.levels(&functions.list[0]);
        assert!(inlined.iter().filter(|part| part.name == b"hot_part").all(|part| part.source.ends_with(b"inlined.c")));
    }
}

#[test]
fn objects_do_not_say_where_they_were_built() {
    for file in [INLINED, INLINED_4] {
        let places = [&b"/root/"[..], b"/home/", b"/tmp/", b"/work/"];
        assert!(places.iter().all(|place| file.windows(place.len()).all(|bytes| bytes != *place)));
    }
}

#[test]
fn a_cut_or_changed_object_crashes_nothing() {
    let all = |object: &Object| {
        let Some(functions) = functions(object) else { return };
        for function in &functions.list {
            functions.levels(function);
        }
    };
    for whole in [object(), object_of(INLINED, ".text"), object_of(INLINED_4, ".text")] {
        for length in (0..whole.file.len()).step_by(7) {
            let file = whole.file[..length].to_vec();
            all(&Object { file, ..whole.clone() });
        }
        // Each field has a byte among them.
        for at in (0..whole.file.len()).step_by(3) {
            for flip in [0x01, 0xff] {
                let mut file = whole.file.clone();
                file[at] ^= flip;
                all(&Object { file, ..whole.clone() });
            }
        }
    }
}
