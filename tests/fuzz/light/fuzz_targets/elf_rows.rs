//! Rows of a program of any bytes, and of one with any call frame information: no panic, no more rows than the file may have,
//! and none but of its code.
//!
//! The first byte says which of the two the rest is; of the other one, two bytes more say how far from its code the section lies,
//! for its addresses are relative. Good seeds are small programs, and `.eh_frame` sections cut short, with such a head.
#![no_main]

use std::fs::File;
use std::os::unix::fs::FileExt;

use jitprof_common::row::Rule;
use jitprof_unwind::elf::Segment;
use jitprof_unwind::{Coverage, ElfRows, rows_of_elf, rows_of_elf_bytes};
use libfuzzer_sys::fuzz_target;

/// Where the made-up program says that its code is.
const BASE: u64 = 0x40_0000;
const HEADERS: usize = 128;

thread_local! {
    static FILE: File = unnamed().expect("a file");
}

fuzz_target!(|input: &[u8]| {
    let Some((control, bytes)) = input.split_first() else {
        return;
    };
    let image = match control & 3 {
        0 => bytes,
        kind => {
            let Some((distance, frames)) = bytes.split_first_chunk() else { return };
            &program(frames, u16::from_le_bytes(*distance), kind == 1, control & 4 != 0, control >> 3)
        }
    };
    // A target's programs are files; the image in memory that jitprof reads is its own kernel's.
    let rows = FILE.with(|file| {
        file.set_len(0).and_then(|()| file.write_all_at(image, 0)).expect("a file in memory");
        rows_of_elf(file)
    });
    let Ok(elf) = rows else {
        assert!(rows_of_elf_bytes(image).is_err());
        return;
    };
    check(&elf, image.len());
});

/// A file that goes with this process.
fn unnamed() -> std::io::Result<File> {
    let path = std::env::temp_dir().join(format!("jitprof-fuzz-{}", std::process::id()));
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
    std::fs::remove_file(path)?;
    Ok(file)
}

fn check(elf: &ElfRows, length: usize) {
    // Each byte of code begins one row at most, and each row may take another at a page's beginning.
    assert!(elf.table.len() <= 2 * length + 64, "{} rows of a file of {length} bytes", elf.table.len());
    assert!(elf.table.bytes() <= 48 * length + 4096, "{} bytes", elf.table.bytes());
    assert!(elf.stats.fdes <= length as u64);
    let mut covered = 0;
    let mut before: Option<(u64, Rule)> = None;
    for (address, rule) in elf.table.rows() {
        if let Some((start, rule)) = before {
            assert!(start < address, "ascending");
            if rule != Rule::GAP {
                covered += address - start;
                assert!(is_code(&elf.segments, start, address), "{start:#x}..{address:#x} is no code");
            }
        }
        assert_eq!(elf.table.rule_at(address), rule);
        before = Some((address, rule));
    }
    assert!(before.is_none_or(|(_, rule)| rule == Rule::GAP), "the last row is a gap");
    assert!(covered <= length as u64, "{covered} bytes of code with rows in {length} bytes");
    let code: Vec<_> = elf.segments.iter().map(Segment::addresses).collect();
    let share = Coverage::of(&elf.table, &code, 0).share();
    assert!((0.0..=1.0).contains(&share));
}

/// Whether each byte of a range is in an executable segment, one behind the other or not.
fn is_code(segments: &[Segment], mut at: u64, end: u64) -> bool {
    while at < end {
        let reach =
            segments.iter().map(Segment::addresses).filter(|code| code.contains(&at)).map(|code| code.end).max();
        match reach {
            Some(reach) => at = reach,
            None => return false,
        }
    }
    true
}

/// A program of one executable segment and one section with call frame information.
fn program(frames: &[u8], distance: u16, eh: bool, arm: bool, claims: u8) -> Vec<u8> {
    let names: &[u8] = if eh { b"\0.eh_frame\0.shstrtab\0" } else { b"\0.debug_frame\0.shstrtab\0" };
    let second = if eh { 11 } else { 14 };
    let names_at = HEADERS + frames.len();
    let (headers_at, machine) = (names_at + names.len(), if arm { 183_u16 } else { 62 });
    // How much code it says there is: of the file's size, or of any power of two.
    let claimed = if claims == 0 { headers_at as u64 } else { 1 << (u64::from(claims) * 2) };
    let mut image = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0".to_vec();
    image.extend(machine.to_le_bytes());
    image.extend([1, 0, 0, 0]);
    image.extend([0, 64, headers_at as u64].iter().flat_map(|field: &u64| field.to_le_bytes()));
    image.extend([0, 0, 64, 56, 1, 64, 3, 2].iter().flat_map(|field: &u16| field.to_le_bytes()));
    image.extend([1_u32, 5].iter().flat_map(|field| field.to_le_bytes()));
    image.extend([0, BASE, BASE, claimed, claimed, 0x1000].iter().flat_map(|field: &u64| field.to_le_bytes()));
    image.resize(HEADERS, 0);
    image.extend(frames);
    image.extend(names);
    image.resize(image.len() + 64, 0);
    for (name, offset, size) in [(1_u32, HEADERS, frames.len()), (second, names_at, names.len())] {
        image.extend([name, 1].iter().flat_map(|field| field.to_le_bytes()));
        let fields = [2, BASE + u64::from(distance), offset as u64, size as u64, 0, 0, 0];
        image.extend(fields.iter().flat_map(|field: &u64| field.to_le_bytes()));
    }
    image
}
