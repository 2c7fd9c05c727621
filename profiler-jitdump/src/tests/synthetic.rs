//! Dumps that no known producer writes today, and the ones that are hard to get hold of.

use crate::code::{CodeEvent, CodeOrigin};
use crate::writer::{DumpWriter, EntryFields, HeaderFields, LoadFields};
use crate::{ByteOrder, Field, Parser, ParserOptions, ReaderOptions, Step, V8_PAD1};
use jitprof_common::units::{Avma, MonoNs};

use super::{load_named, loads, read, read_with};

const CODE: &[u8] = &[0x90; 0x100];

fn function(code_addr: u64, name: &[u8]) -> LoadFields<'_> {
    LoadFields { code_addr, name, code: CODE, code_index: 0 }
}

fn entry(addr: u64, line: i32, name: &[u8]) -> EntryFields<'_> {
    EntryFields { addr, line, discrim: 0, name }
}

fn rows(events: &[CodeEvent], name: &str) -> Vec<(u32, u32, String)> {
    let load = load_named(events, name);
    load.lines.iter().map(|row| (row.offset, row.line, row.file.to_string())).collect()
}

#[test]
fn both_byte_orders_versions_and_long_headers_read_the_same() {
    let mut seen = Vec::new();
    for order in [ByteOrder::Little, ByteOrder::Big] {
        for (version, total_size) in [(1, 40), (2, 40), (1, 72)] {
            let header = HeaderFields { order, version, total_size, ..HeaderFields::default() };
            let mut dump = DumpWriter::with_header(&header);
            dump.debug_info(7, 0x1000, &[entry(0x1004, 3, b"a.c")], 0)
                .load(8, &function(0x1000, b"f"))
                .moved(9, 0x1000, 0x5000, 0x100, 0)
                .close(10);
            let (events, stats) = read(&dump.into_bytes());
            assert_eq!(stats.corrupt, []);
            seen.push(events);
        }
    }
    assert!(seen.iter().all(|events| *events == seen[0]));
    assert_eq!(rows(&seen[0], "f"), [(4, 3, "a.c".to_owned())]);
    let tail = &seen[0][1..];
    let moved = CodeEvent::Move { time: MonoNs(9), old_start: Avma(0x1000), new_start: Avma(0x5000), size: 0x100 };
    assert_eq!(tail, [moved, CodeEvent::Close { time: MonoNs(10) }]);
}

#[test]
fn an_unknown_type_is_skipped_by_its_size() {
    let mut dump = DumpWriter::new(1);
    dump.record(9, 5, b"something new").load(6, &function(0x1000, b"f"));
    let (events, stats) = read(&dump.into_bytes());
    assert_eq!(loads(&events).len(), 1);
    assert_eq!((stats.records.unknown, stats.resyncs), (1, 0));
}

#[test]
fn the_same_file_marker_repeats_the_name_before() {
    let mut dump = DumpWriter::new(1);
    let entries =
        [entry(0x1000, 1, b"a.c"), entry(0x1008, 2, &[0xff]), entry(0x1010, 3, b"b.c"), entry(0x1018, 4, &[0xff])];
    dump.debug_info(5, 0x1000, &entries, 0).load(6, &function(0x1000, b"f"));
    let (events, _) = read(&dump.into_bytes());
    let files: Vec<_> = rows(&events, "f").into_iter().map(|row| row.2).collect();
    assert_eq!(files, ["a.c", "a.c", "b.c", "b.c"]);
}

#[test]
fn a_load_with_unwanted_code_is_given_before_its_code_is_there() {
    let mut dump = DumpWriter::new(1);
    dump.load(5, &function(0x1000, b"f"));
    let end = dump.len() as u64;
    let bytes = dump.into_bytes();
    let mut parser = Parser::new(ParserOptions::default());
    assert!(matches!(parser.step(&bytes), Step::Header(_)));
    let name_end = 40 + 56 + 2;
    assert!(matches!(parser.clone().step(&bytes[40..name_end - 1]), Step::NeedMore { at_least: 58 }));
    assert!(matches!(parser.step(&bytes[40..name_end]), Step::Record(_)));
    assert_eq!(parser.offset().0, end);
}

#[test]
fn code_is_kept_on_request() {
    let mut dump = DumpWriter::new(1);
    dump.load(5, &LoadFields { code_addr: 0x1000, name: b"f", code: &[1, 2, 3], code_index: 0 });
    let bytes = dump.into_bytes();
    let (events, _) = read_with(&bytes, ReaderOptions { keep_code: true, ..ReaderOptions::default() });
    assert_eq!(load_named(&events, "f").code.as_deref(), Some(&[1, 2, 3][..]));
    assert_eq!(load_named(&read(&bytes).0, "f").code, None);
}

#[test]
fn a_load_without_payload_keeps_its_size() {
    // The JVM agent writes these when it is given no code.
    let mut body = Vec::new();
    for word in [1_u32, 1] {
        body.extend(word.to_le_bytes());
    }
    for word in [0x1000_u64, 0x1000, 0x80, 3] {
        body.extend(word.to_le_bytes());
    }
    body.extend(b"stub\0");
    let mut dump = DumpWriter::new(1);
    dump.record(0, 5, &body).load(6, &function(0x2000, b"next"));
    let (events, stats) = read(&dump.into_bytes());
    assert_eq!(load_named(&events, "stub").size, 0x80);
    assert_eq!((loads(&events).len(), stats.corrupt_bytes), (2, 0));
}

#[test]
fn llvm_vma_zero_is_no_address() {
    let mut dump = DumpWriter::new(1);
    dump.load(5, &function(0x7000, b"f"));
    let mut bytes = dump.into_bytes();
    bytes[40 + 24..40 + 32].fill(0);
    assert_eq!(load_named(&read(&bytes).0, "f").start, Avma(0x7000));
}

#[test]
fn a_second_header_in_the_file_is_no_damage() {
    let mut dump = DumpWriter::new(1);
    dump.load(5, &function(0x1000, b"first"))
        .header(&HeaderFields { pid: 1, ..HeaderFields::default() })
        .load(6, &function(0x2000, b"second"));
    let (events, stats) = read(&dump.into_bytes());
    assert_eq!(loads(&events).len(), 2);
    assert_eq!((stats.headers, stats.corrupt_bytes), (2, 0));
}

#[test]
fn records_of_another_pid_are_dropped_with_what_announces_them() {
    let mut dump = DumpWriter::new(7);
    dump.set_pid(6)
        .debug_info(5, 0x1000, &[entry(0x1000, 1, b"stale.c")], 0)
        .load(5, &function(0x1000, b"stale"))
        .set_pid(7)
        .load(6, &function(0x1000, b"own"));
    let options = ReaderOptions { namespace_pid: Some(7), ..ReaderOptions::default() };
    let (events, stats) = read_with(&dump.into_bytes(), options);
    assert_eq!(loads(&events).len(), 1);
    assert_eq!(rows(&events, "own"), []);
    assert_eq!(stats.skipped.other_pid, 1);
}

#[test]
fn lines_are_matched_by_address_and_not_by_order() {
    let mut dump = DumpWriter::new(1);
    dump.debug_info(5, 0x1000, &[entry(0x1000, 1, b"a.c")], 0)
        .debug_info(5, 0x2000, &[entry(0x2000, 2, b"b.c")], 0)
        .debug_info(5, 0x3000, &[entry(0x3000, 3, b"c.c")], 0)
        .load(6, &function(0x1000, b"first"))
        .load(6, &function(0x4000, b"lineless"))
        .load(6, &function(0x2000, b"second"));
    let (events, stats) = read(&dump.into_bytes());
    assert_eq!(rows(&events, "first"), [(0, 1, "a.c".to_owned())]);
    assert_eq!(rows(&events, "second"), [(0, 2, "b.c".to_owned())]);
    assert_eq!(rows(&events, "lineless"), []);
    assert_eq!(stats.bias, Some(0));
}

#[test]
fn one_unbiased_function_ends_the_belief_in_a_bias() {
    let mut dump = DumpWriter::new(1);
    for (start, name) in [(0x1000, b"f0"), (0x2000, b"f1")] {
        dump.debug_info(5, start, &[entry(start + 0x40, 1, b"a.c")], 0).load(6, &function(start, name));
    }
    dump.debug_info(5, 0x3000, &[entry(0x3004, 1, b"a.c"), entry(0x3050, 2, b"a.c")], 0)
        .load(6, &function(0x3000, b"f2"));
    let (events, stats) = read(&dump.into_bytes());
    assert_eq!(rows(&events, "f1")[0].0, 0);
    assert_eq!(rows(&events, "f2"), [(4, 1, "a.c".to_owned()), (0x50, 2, "a.c".to_owned())]);
    assert_eq!(stats.bias, Some(0));
}

#[test]
fn thirty_two_bit_v8_has_a_smaller_bias() {
    let header = HeaderFields { pad1: V8_PAD1, elf_mach: 40, ..HeaderFields::default() };
    let mut dump = DumpWriter::with_header(&header);
    dump.debug_info(5, 0x1000, &[entry(0x1038, 1, b"a.js")], 6).load(6, &function(0x1000, b"f"));
    let (events, stats) = read(&dump.into_bytes());
    assert_eq!((rows(&events, "f")[0].0, stats.bias), (4, Some(0x34)));
}

#[test]
fn a_size_beyond_reason_costs_one_record_and_no_wait() {
    let mut dump = DumpWriter::new(1);
    dump.load(5, &function(0x1000, b"before"));
    let broken = dump.len();
    dump.load(6, &function(0x2000, b"broken")).load(7, &function(0x3000, b"after"));
    let mut bytes = dump.into_bytes();
    bytes[broken + 4..broken + 8].copy_from_slice(&0x7fff_ffff_u32.to_le_bytes());
    let (events, stats) = read(&bytes);
    let names: Vec<_> = loads(&events).into_iter().map(|load| load.name.as_str()).collect();
    assert_eq!(names, ["before", "after"]);
    assert_eq!(stats.corrupt.len(), 1);
    assert_eq!(stats.corrupt[0].offset.0, broken as u64);
    assert_eq!(stats.corrupt[0].what, Field::TotalSize);
}

#[test]
fn waiting_lines_are_bounded() {
    let mut dump = DumpWriter::new(1);
    let entries: Vec<_> = (0..1000).map(|line| entry(0x1000, line + 1, b"a.c")).collect();
    for function in 0..600_u64 {
        dump.debug_info(5, 0x1000 + function * 0x1000, &entries, 0);
    }
    dump.load(6, &function(0x0, b"f"));
    let (_, stats) = read(&dump.into_bytes());
    assert!(stats.debug_unclaimed >= 262, "{stats:?}");
}

#[test]
fn tentative_events_say_that_they_were_peeked() {
    let mut dump = DumpWriter::new(1);
    dump.load(5, &function(0x1000, b"f"));
    let options = ReaderOptions { origin: CodeOrigin::Peeked, ..ReaderOptions::default() };
    let (events, _) = read_with(&dump.into_bytes(), options);
    assert_eq!(load_named(&events, "f").origin, CodeOrigin::Peeked);
}

/// LLVM ORC's batches: one UNWINDING_INFO, every DEBUG_INFO, every LOAD.
mod orc_batch {
    use super::*;
    use crate::code::EhFrame;

    const SECTION: u64 = 0x9000;

    /// A CIE (20 bytes) and one FDE (20 bytes) for each function, resolving from `SECTION`.
    fn eh_frame(functions: &[(u64, u32)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend([16, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8]);
        for (start, size) in functions {
            let field = SECTION + bytes.len() as u64 + 8;
            bytes.extend(16_u32.to_le_bytes());
            bytes.extend(u32::try_from(bytes.len()).unwrap().to_le_bytes());
            bytes.extend(i32::try_from(start.wrapping_sub(field).cast_signed()).unwrap().to_le_bytes());
            bytes.extend(size.to_le_bytes());
            bytes.extend([0, 0, 0, 0]);
        }
        bytes
    }

    fn absolute_hdr() -> Vec<u8> {
        [&[1, 0x0c, 0xff, 0xff][..], &SECTION.to_le_bytes()].concat()
    }

    fn dump(hdr: &[u8], functions: &[(u64, u32)]) -> Vec<u8> {
        let mut dump = DumpWriter::new(1);
        let data = [hdr, &eh_frame(functions)].concat();
        dump.unwinding_info(5, &data, hdr.len() as u64, 0);
        for (start, _) in functions {
            dump.debug_info(5, *start, &[entry(start + 0x40, 1, b"a.c")], 0);
        }
        for (start, size) in functions {
            let code = vec![0; usize::try_from(*size).unwrap()];
            let name = format!("f{start:x}");
            dump.load(6, &LoadFields { code_addr: *start, name: name.as_bytes(), code: &code, code_index: 0 });
        }
        dump.into_bytes()
    }

    /// The address that the first FDE behind the CIE resolves to.
    fn resolved(frame: &EhFrame) -> u64 {
        let at = |at: usize| i32::from_le_bytes(frame.bytes[at..at + 4].try_into().unwrap());
        assert_eq!(at(24), 24, "the FDE's distance to its CIE");
        frame.section_start.0.wrapping_add(28).wrapping_add_signed(i64::from(at(28)))
    }

    #[test]
    fn every_function_gets_its_own_fde_at_its_real_address() {
        let functions = [(0x3000, 0x10), (0x1000, 0x20), (0x2000, 0x10)];
        let (events, stats) = read(&dump(&absolute_hdr(), &functions));
        let loads = loads(&events);
        assert_eq!(loads.len(), 3);
        for load in loads {
            assert_eq!(resolved(load.eh_frame.as_ref().unwrap()), load.start.0);
            assert_eq!(load.lines.len(), 1);
        }
        assert_eq!((stats.eh.batches, stats.eh.absolute, stats.eh.attached), (1, 1, 3));
        assert_eq!((stats.bias, stats.debug_unclaimed), (Some(0x40), 0));
    }

    #[test]
    fn the_section_is_placed_by_the_only_function_of_its_size() {
        let functions = [(0x1000, 0x30), (0x3000, 0x10), (0x2000, 0x10)];
        let hdr = [&[1, 0x1b, 0x03, 0x3b][..], &[0; 16]].concat();
        let (events, stats) = read(&dump(&hdr, &functions));
        for load in loads(&events) {
            assert_eq!(resolved(load.eh_frame.as_ref().unwrap()), load.start.0);
        }
        assert_eq!((stats.eh.absolute, stats.eh.attached), (0, 3));
    }

    #[test]
    fn a_function_outside_of_the_batch_gets_nothing() {
        let mut bytes = dump(&absolute_hdr(), &[(0x1000, 0x10)]);
        let mut stray = DumpWriter::new(1);
        stray.load(7, &function(0x8000, b"stray"));
        bytes.extend(&stray.into_bytes()[40..]);
        let (events, stats) = read(&bytes);
        assert_eq!(load_named(&events, "stray").eh_frame, None);
        assert_eq!(stats.eh.unmatched, 1);
    }

    #[test]
    fn the_next_batch_replaces_the_one_before() {
        let mut bytes = dump(&absolute_hdr(), &[(0x1000, 0x10)]);
        bytes.extend(&dump(&absolute_hdr(), &[(0x2000, 0x10)])[40..]);
        let (events, stats) = read(&bytes);
        assert_eq!((loads(&events).len(), stats.eh.attached, stats.unwinding_unclaimed), (2, 2, 0));
    }
}
