use std::collections::BTreeSet;
use std::fs::File;
use std::path::PathBuf;

use gimli::UnwindSection as _;

use super::*;
use crate::elf::{ElfError, Source};
use crate::{ElfRows, RowsError, functions_of_elf, rows_of_elf, rows_of_elf_bytes};

/// The files whose code this process maps: this test, libc, ld.so and what else there is; and those named in
/// `JITPROF_UNWIND_FILES`, separated by colons.
fn files() -> BTreeSet<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let executable =
        maps.lines().filter(|line| line.split_whitespace().nth(1).is_some_and(|flags| flags.contains('x')));
    let mapped = executable.filter_map(|line| line.find('/').map(|at| PathBuf::from(&line[at..])));
    let named = std::env::var("JITPROF_UNWIND_FILES").unwrap_or_default();
    mapped.chain(named.split(':').filter(|name| !name.is_empty()).map(PathBuf::from)).collect()
}

/// A section's address and bytes, read by other code than that under test.
fn section(image: &[u8], wanted: &str) -> Option<(u64, Vec<u8>)> {
    let u64_at = |at: usize| u64::from_le_bytes(image[at..at + 8].try_into().unwrap());
    let usize_at = |at| usize::try_from(u64_at(at)).unwrap();
    let (headers, count) = (usize_at(40), usize::from(u16::from_le_bytes(image[60..62].try_into().unwrap())));
    let names = usize_at(headers + usize::from(image[62]) * 64 + usize::from(image[63]) * 256 * 64 + 24);
    (0..count).map(|index| headers + index * 64).find_map(|at| {
        let name = names + usize::try_from(u32::from_le_bytes(image[at..at + 4].try_into().unwrap())).unwrap();
        let is_it = image[name..].starts_with(wanted.as_bytes()) && image[name + wanted.len()] == 0;
        is_it.then(|| (u64_at(at + 16), image[usize_at(at + 24)..usize_at(at + 24) + usize_at(at + 32)].to_vec()))
    })
}

/// Compares a file's rows with gimli's evaluation at the ends of every function and at random addresses. Returns
/// how many addresses were compared.
fn compare(image: &[u8], rows: &ElfRows, name: &str) -> u64 {
    let Some((address, bytes)) = section(image, ".eh_frame") else {
        assert!(rows.table.is_empty(), "{name}");
        return 0;
    };
    let bases = BaseAddresses::default().set_eh_frame(address);
    let eh = gimli::EhFrame::new(&bytes, LittleEndian);
    let mut context = gimli::UnwindContext::new();
    let (mut compared, mut seed) = (0, 0x2545_f491_4f6c_dd1d_u64);
    let mut entries = eh.entries(&bases);
    while let Some(entry) = entries.next().unwrap() {
        let gimli::CieOrFde::Fde(partial) = entry else { continue };
        let fde = partial.parse(gimli::EhFrame::cie_from_offset).unwrap();
        let start = fde.initial_address();
        if fde.len() == 0
            || !rows.segments.iter().any(|segment| (segment.svma..segment.svma + segment.file_size).contains(&start))
        {
            continue;
        }
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        for address in [start, start + fde.len() - 1, start + (seed >> 16) % fde.len()] {
            let row = fde.unwind_info_for_address(&eh, &bases, &mut context, address).unwrap();
            let expected = rule_by_gimli(row, &eh, fde.is_signal_trampoline());
            assert_eq!(rows.table.rule_at(address), expected, "{name} at {address:#x}");
            compared += 1;
        }
    }
    compared
}

#[test]
fn functions_of_real_files_are_those_that_gimli_finds() {
    for path in files() {
        let image = std::fs::read(&path).unwrap();
        let Some((address, bytes)) = section(&image, ".eh_frame") else { continue };
        let bases = BaseAddresses::default().set_eh_frame(address);
        let eh = gimli::EhFrame::new(&bytes, LittleEndian);
        let (mut expected, mut entries) = (Vec::new(), eh.entries(&bases));
        while let Some(entry) = entries.next().unwrap() {
            let gimli::CieOrFde::Fde(partial) = entry else { continue };
            let fde = partial.parse(gimli::EhFrame::cie_from_offset).unwrap();
            if fde.len() > 0 {
                expected.push(fde.initial_address()..fde.initial_address() + fde.len());
            }
        }
        expected.sort_by_key(|function| function.start);
        assert_eq!(functions_of_elf(&Source::File(&File::open(&path).unwrap()), 1 << 20), expected, "{path:?}");
        let some = functions_of_elf(&Source::Bytes(&image), 5);
        assert!(some.len() <= 5 && some.iter().all(|function| expected.contains(function)), "{path:?}");
    }
    assert_eq!(functions_of_elf(&Source::Bytes(b"\x7fELF"), 9), []);
}

#[test]
fn rows_of_real_files_equal_gimlis_evaluation() {
    for path in files() {
        let name = path.display().to_string();
        let started = std::time::Instant::now();
        let rows = rows_of_elf(&File::open(&path).unwrap()).unwrap();
        let elapsed = started.elapsed();
        let compared = compare(&std::fs::read(&path).unwrap(), &rows, &name);
        println!(
            "{name}: {compared} addresses, {} rows, {} pages, {} bytes, {elapsed:?}, {:?}",
            rows.stats.rows,
            rows.table.page_count(),
            rows.table.bytes(),
            rows.stats
        );
        assert!(compared > 0, "{name}");
        assert_eq!((rows.stats.corrupt, rows.stats.over_limit, rows.stats.cut), (0, 0, false), "{name}");
        // Hand-written assembly (system calls that block signals, cryptography) is all that remains.
        let unsupported = rows.table.rows().filter(|(_, rule)| *rule == Rule::UNSUPPORTED).count();
        assert!(unsupported * 100 < rows.table.len(), "{name}: {unsupported}");
    }
}

#[test]
fn the_vdso_has_rows() {
    let image = vdso();
    let rows = rows_of_elf_bytes(&image).unwrap();
    assert!(compare(&image, &rows, "vdso") > 0);
}

/// The address of a dynamic symbol, by libc's own tables.
fn in_libc(rows: &ElfRows, base: u64, address: u64) -> Rule {
    assert!(
        rows.segments
            .iter()
            .any(|segment| (segment.svma..segment.svma + segment.file_size).contains(&(address - base)))
    );
    rows.table.rule_at(address - base)
}

#[test]
fn threads_and_programs_begin_with_an_outermost_row() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.contains("/libc.so") || line.contains("/libc-")).unwrap();
    let base = u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
    let libc = rows_of_elf(&File::open(&line[line.find('/').unwrap()..]).unwrap()).unwrap();
    // In glibc's clone the child begins behind the system call, within the function's first 128 bytes.
    let clone = libc::clone as *const () as u64;
    let rules: BTreeSet<_> = (clone..clone + 128).map(|address| in_libc(&libc, base, address)).collect();
    assert!(rules.contains(&Rule::OUTERMOST), "{rules:?}");

    let exe = std::fs::read("/proc/self/exe").unwrap();
    let rows = rows_of_elf(&File::open("/proc/self/exe").unwrap()).unwrap();
    let entry = u64::from_le_bytes(exe[24..32].try_into().unwrap());
    assert_eq!(rows.table.rule_at(entry), Rule::OUTERMOST);
    assert_eq!(rows.table.rule_at(entry + 0x20), Rule::OUTERMOST);
}

/// Overwrites bytes of a header field.
fn with(image: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut changed = image.to_vec();
    changed[at..at + bytes.len()].copy_from_slice(bytes);
    changed
}

#[test]
fn without_section_headers_the_program_headers_suffice() {
    let image = vdso();
    let stripped = with(&image, 40, &[0; 8]);
    let (whole, stripped) = (rows_of_elf_bytes(&image).unwrap(), rows_of_elf_bytes(&stripped).unwrap());
    assert_eq!(whole.segments, stripped.segments);
    assert_eq!(whole.table, stripped.table);
}

#[test]
fn what_is_no_program_for_this_machine_is_refused_with_its_reason() {
    let image = vdso();
    assert!(matches!(rows_of_elf_bytes(&[]), Err(RowsError::Elf(ElfError::NotElf))));
    assert!(matches!(rows_of_elf_bytes(&with(&image, 4, &[1])), Err(RowsError::Elf(ElfError::NotElf))));
    assert!(matches!(rows_of_elf_bytes(&with(&image, 16, &[1])), Err(RowsError::Elf(ElfError::NotElf))));
    let other = rows_of_elf_bytes(&with(&image, 18, &[243]));
    assert!(matches!(other, Err(RowsError::Machine(243))));
    assert_eq!(
        other.unwrap_err().to_string(),
        "ELF machine 243 is not supported: rows are made for x86-64 (62) and AArch64 (183)"
    );
    let directory = rows_of_elf(&File::open("/").unwrap());
    assert!(matches!(directory, Err(RowsError::Elf(ElfError::Read(_)))));
}
