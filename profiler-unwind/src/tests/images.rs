use std::io::Write;

use super::*;
use crate::rows_of_elf_bytes;

/// Where the only segment, which is executable and holds the whole file, lies.
const BASE: u64 = 0x40_0000;

/// Assembles a program of one segment with these sections: name, flags, contents. Gives the image and the sections'
/// offsets.
fn image(sections: &[(&str, u64, &[u8])]) -> (Vec<u8>, Vec<u64>) {
    let mut names = vec![0];
    let mut body = Vec::new();
    let mut offsets = Vec::new();
    let mut headers = vec![0; 64];
    let mut header = |name: &str, flags: u64, offset: u64, size: usize, names: &mut Vec<u8>| {
        let name_at = u32::try_from(names.len()).unwrap();
        names.extend_from_slice(name.as_bytes());
        names.push(0);
        headers.extend_from_slice(&name_at.to_le_bytes());
        headers.extend_from_slice(&1_u32.to_le_bytes());
        for field in [flags, BASE + offset, offset, size as u64, 0, 0, 0] {
            headers.extend_from_slice(&field.to_le_bytes());
        }
    };
    for (name, flags, contents) in sections {
        body.resize(body.len().next_multiple_of(16), 0);
        offsets.push(128 + body.len() as u64);
        header(name, *flags, 128 + body.len() as u64, contents.len(), &mut names);
        body.extend_from_slice(contents);
    }
    let names_at = 128 + body.len() as u64;
    let length = names.len() + ".shstrtab".len() + 1;
    header(".shstrtab", 0, names_at, length, &mut names);
    body.extend_from_slice(&names);
    let headers_at = 128 + body.len() as u64;
    let mut image = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0".to_vec();
    for field in [0, 64, headers_at] {
        image.extend_from_slice(&u64::to_le_bytes(field));
    }
    for field in [0, 0, 64, 56, 1, 64, sections.len() + 2, sections.len() + 1] {
        image.extend_from_slice(&u16::try_from(field).unwrap().to_le_bytes());
    }
    // The program header: loaded, readable and executable.
    image.extend_from_slice(&[1, 0, 0, 0, 5, 0, 0, 0]);
    for field in [0, BASE, BASE, headers_at, headers_at, 0x1000] {
        image.extend_from_slice(&u64::to_le_bytes(field));
    }
    image.resize(128, 0);
    image.extend_from_slice(&body);
    image.extend_from_slice(&headers);
    (image, offsets)
}

/// A `.debug_frame` with one function that pushes a register after two bytes.
fn debug_frame(code: Range<u64>) -> Vec<u8> {
    let mut section = Section::default();
    section.entry(&[&[0xff, 0xff, 0xff, 0xff, 1, 0, 1, 0x78, 16][..], &USUAL].concat());
    let fde = [&[0; 4][..], &code.start.to_le_bytes(), &(code.end - code.start).to_le_bytes(), &[0x42, 0x0e, 16]];
    section.entry(&fde.concat());
    section.0
}

fn rows(image: &[u8]) -> Vec<(u64, Rule)> {
    let rows = rows_of_elf_bytes(image).unwrap();
    assert_eq!((rows.stats.corrupt, rows.stats.outside_code), (0, 0));
    rows.table.rows().map(|(address, rule)| (address - BASE, rule)).collect()
}

#[test]
fn functions_that_only_debug_frame_knows_have_rows() {
    let plain = debug_frame(BASE + 0x10..BASE + 0x20);
    let expected = [(0x10, Rule::ENTRY), (0x12, Rule::with_cfa(CfaKind::Sp, 16)), (0x20, Rule::GAP)];
    assert_eq!(rows(&image(&[(".debug_frame", 0, &plain)]).0), expected);

    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(&plain).unwrap();
    let zlib = [
        &[1, 0, 0, 0, 0, 0, 0, 0][..],
        &(plain.len() as u64).to_le_bytes(),
        &[1, 0, 0, 0, 0, 0, 0, 0],
        &encoder.finish().unwrap(),
    ];
    assert_eq!(rows(&image(&[(".debug_frame", 0x800, &zlib.concat())]).0), expected);
    let zstd = [
        &[2, 0, 0, 0, 0, 0, 0, 0][..],
        &(plain.len() as u64).to_le_bytes(),
        &[1, 0, 0, 0, 0, 0, 0, 0],
        &zstd::encode_all(&plain[..], 0).unwrap(),
    ];
    assert_eq!(rows(&image(&[(".debug_frame", 0x800, &zstd.concat())]).0), expected);
}

#[test]
fn linkage_tables_without_entries_have_their_known_rows() {
    let first = [0xff, 0x35, 0, 0, 0, 0, 0xff, 0x25, 0, 0, 0, 0, 0x0f, 0x1f, 0x40, 0];
    let slot = [0xff, 0x25, 0, 0, 0, 0, 0x68, 0, 0, 0, 0, 0xe9, 0, 0, 0, 0];
    let table = [first, slot, slot].concat();
    let (bytes, offsets) = image(&[(".plt", 6, &table), (".plt.got", 6, &[0xff, 0x25, 0, 0, 0, 0, 0x66, 0x90])]);
    let (plt, got) = (offsets[0], offsets[1]);
    let pushed = |words: i64| Rule::with_cfa(CfaKind::Sp, words * 8);
    assert_eq!(
        rows(&bytes),
        [(plt, pushed(2)), (plt + 6, pushed(3)), (plt + 16, Rule::PLT), (got, Rule::ENTRY), (got + 8, Rule::GAP),]
    );
    // Slots of another form have rules that are not known.
    let other = [first, [0x90; 16]].concat();
    assert_eq!(rows(&image(&[(".plt", 6, &other)]).0), []);
}

#[test]
fn what_a_handler_returns_to_has_a_signal_frames_row_where_nothing_describes_it() {
    let restorer = [0x90, 0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05, 0xc3];
    let text = [&[0xc3; 64][..], &restorer, &[0xc3; 64]].concat();
    let (bytes, offsets) = image(&[(".text", 6, &text)]);
    let at = offsets[0] + 65;
    assert_eq!(rows(&bytes), [(at - 1, Rule::SIGNAL), (at + 9, Rule::GAP)]);
    // The function that it is a part of is described.
    let described = debug_frame(BASE + 128..BASE + 512);
    let (bytes, offsets) = image(&[(".text", 6, &text), (".debug_frame", 0, &described)]);
    assert!(offsets[0] == 128 && rows(&bytes).iter().all(|(_, rule)| *rule != Rule::SIGNAL));
    // Where one read ends and the next one begins.
    let text = [&[0xc3; (256 << 10) - 6][..], &restorer, &[0xc3; 64]].concat();
    for before in 0..24 {
        let (bytes, offsets) = image(&[(".text", 6, &text[before..])]);
        let at = offsets[0] + (256 << 10) - 6 + 1 - before as u64;
        assert_eq!(rows(&bytes), [(at - 1, Rule::SIGNAL), (at + 9, Rule::GAP)], "{before}");
    }
}

#[test]
fn not_more_is_searched_for_what_handlers_return_to_than_a_library_has() {
    let restorer = [0x90, 0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05];
    let signals = |bytes: &[u8]| {
        let rows = rows_of_elf_bytes(bytes).unwrap();
        (rows.table.rows().filter(|(_, rule)| *rule == Rule::SIGNAL).count(), rows.stats.unsearched)
    };
    let many = image(&[(".text", 6, &[&restorer[..], &[0xc3; 64]].concat().repeat(100))]).0;
    assert_eq!(signals(&many).0, 8);
    let far = [&vec![0xc3; 16 << 20][..], &restorer, &[0xc3; 64]].concat();
    let (count, unsearched) = signals(&image(&[(".text", 6, &far)]).0);
    assert_eq!(count, 0);
    assert!((64..4096).contains(&unsearched), "{unsearched}");
}

#[test]
fn a_sections_size_is_no_reason_to_take_memory() {
    let plain = debug_frame(BASE + 0x10..BASE + 0x20);
    let (mut bytes, _) = image(&[(".eh_frame", 0, &plain)]);
    // The size of the second section header.
    let size_at = usize::try_from(u64::from_le_bytes(bytes[40..48].try_into().unwrap())).unwrap() + 64 + 32;
    bytes[size_at..size_at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
    let damaged = rows_of_elf_bytes(&bytes).unwrap();
    assert!(damaged.table.is_empty() && damaged.stats.cut);
}
