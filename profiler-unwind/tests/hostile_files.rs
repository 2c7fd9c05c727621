//! Memory and time that rows of crafted ELF files take. A test binary of its own, so that the process' memory is theirs.

use std::time::{Duration, Instant};

use jitprof_unwind::rows_of_elf_bytes;

const BASE: u64 = 0x40_0000;
const FILE_BYTES: usize = 54 << 10;
/// Slots whose push ends at 9.
const SLOTS: [u8; 13] = [0x0f, 11, 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x39, 0x2a, 0x33, 0x24, 0x22];

/// The most memory that this process has had, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("VmHWM");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number of KiB") * 1024
}

fn entry(section: &mut Vec<u8>, body: &[&[u8]]) {
    let body = body.concat();
    section.extend(u32::try_from(body.len()).unwrap().to_le_bytes());
    section.extend(body);
}

/// An `.eh_frame` of functions that begin one after another and reach to the end of everything.
fn eh_frame(functions: usize, instructions: &[u8]) -> Vec<u8> {
    let mut section = Vec::new();
    entry(&mut section, &[&[0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0, 0x0c, 7, 8, 0x90, 1]]);
    for function in 0..functions as u64 {
        let back = u32::try_from(section.len() + 4).unwrap().to_le_bytes();
        let (start, length) = (BASE + function, (1_u64 << 47) - BASE);
        entry(&mut section, &[&back, &start.to_le_bytes(), &length.to_le_bytes(), &[0], instructions]);
    }
    section
}

/// A program of one executable segment, which says that the file has `claimed` bytes, and this `.eh_frame`.
fn program(claimed: u64, eh_frame: &[u8]) -> Vec<u8> {
    let names = b"\0.eh_frame\0.shstrtab\0";
    let (frame_at, names_at) = (128_u64, 128 + eh_frame.len() as u64);
    let headers_at = names_at + names.len() as u64;
    let mut image = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0".to_vec();
    image.extend([0, 64, headers_at].iter().flat_map(|field: &u64| field.to_le_bytes()));
    image.extend([0, 0, 64, 56, 1, 64, 3, 2].iter().flat_map(|field: &u16| field.to_le_bytes()));
    image.extend([1_u32, 5].iter().flat_map(|field| field.to_le_bytes()));
    image.extend([0, BASE, BASE, claimed, claimed, 0x1000].iter().flat_map(|field| field.to_le_bytes()));
    image.resize(128, 0);
    image.extend(eh_frame);
    image.extend(names);
    image.resize(image.len() + 64, 0);
    for (name, offset, size) in [(1_u32, frame_at, eh_frame.len()), (11, names_at, names.len())] {
        image.extend([name, 1].iter().flat_map(|field| field.to_le_bytes()));
        let fields = [2, BASE + offset, offset, size as u64, 0, 0, 0];
        image.extend(fields.iter().flat_map(|field| field.to_le_bytes()));
    }
    image
}

#[test]
fn a_crafted_file_takes_no_more_than_a_file_of_its_size_may() {
    let advance = [0x04, 0, 0, 0x10, 0];
    let per_function = |instructions: &[u8]| FILE_BYTES / (29 + instructions.len());
    let nested = [0x0a, 0x41, 0x0e, 16, 0x0b];
    let cases = [
        ("rows without end", 1, [0x41, 0x0e, 16, 0x41, 0x0e, 24].repeat(FILE_BYTES / 6 - 20)),
        ("states that are remembered and restored", 40, nested.repeat(FILE_BYTES / 40 / 5 - 8)),
        ("functions without instructions", per_function(&[]), vec![]),
        ("functions over linkage slots", per_function(&SLOTS), SLOTS.to_vec()),
        ("one function over linkage slots", 1, [&SLOTS[..], &advance.repeat((FILE_BYTES - 100) / 5)].concat()),
    ];
    for claimed in [FILE_BYTES as u64, 1 << 40] {
        for (what, functions, instructions) in &cases {
            let image = program(claimed, &eh_frame(*functions, instructions));
            let (started, before) = (Instant::now(), peak());
            let rows = rows_of_elf_bytes(&image).expect("an ELF file");
            // The kernel counts pages per thread and sums them up roughly: the peak may seem to shrink.
            let (took, grown) = (started.elapsed(), peak().saturating_sub(before));
            println!("{what}, {} bytes: {} rows, {took:?}, {} KiB", image.len(), rows.table.len(), grown >> 10);
            assert!(rows.table.len() <= image.len() + 16 && rows.table.page_count() <= 2, "{what}");
            assert!(grown < 16 << 20, "{what}: {grown} bytes");
            assert!(took < Duration::from_secs(2), "{what}: {took:?}");
        }
    }
}
