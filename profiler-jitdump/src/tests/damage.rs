//! Truncations, flipped bytes, and the damage that real producers do.

use std::collections::BTreeSet;

use crate::code::CodeEvent;
use crate::writer::{DumpWriter, EntryFields, LoadFields};
use crate::{Body, Parser, ParserOptions, ReaderOptions, Step};

use super::{SMALL, fixture, loads, read, read_in_chunks};

/// The records of an intact dump: (start, end, start address if it is a LOAD).
fn extents(bytes: &[u8]) -> Vec<(usize, usize, Option<u64>)> {
    let mut parser = Parser::new(ParserOptions::default());
    let mut all = Vec::new();
    loop {
        let start = usize::try_from(parser.offset().0).unwrap();
        let addr = match parser.step(bytes.get(start..).unwrap_or(&[])) {
            Step::Record(record) => match record.body {
                Body::Load(load) => Some(load.code_addr),
                _ => None,
            },
            Step::Header(_) => None,
            Step::NeedMore { .. } => return all,
            other => panic!("an intact dump: {other:?}"),
        };
        all.push((start, usize::try_from(parser.offset().0).unwrap(), addr));
    }
}

fn starts(events: &[CodeEvent]) -> BTreeSet<u64> {
    loads(events).iter().map(|load| load.start.0).collect()
}

#[test]
fn a_dump_cut_anywhere_has_every_whole_record_and_goes_on() {
    for name in SMALL {
        let bytes = fixture(name);
        let (whole, _) = read(&bytes);
        let extents = extents(&bytes);
        for cut in 0..bytes.len() {
            let (events, stats) = read(&bytes[..cut]);
            assert_eq!(stats.corrupt_bytes, 0, "{name} cut at {cut}");
            assert_eq!(events, whole[..events.len()], "{name} cut at {cut}");
            let complete = extents.iter().filter(|(_, end, addr)| *end <= cut && addr.is_some()).count();
            assert!(loads(&events).len() >= complete, "{name} cut at {cut}");
            let (resumed, _) = read_in_chunks(&bytes, &[cut, bytes.len()], ReaderOptions::default());
            assert_eq!(resumed, whole, "{name} cut at {cut}");
        }
    }
}

#[test]
fn a_flipped_byte_costs_its_record_only() {
    for name in SMALL {
        let bytes = fixture(name);
        let extents = extents(&bytes);
        for at in 0..bytes.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut damaged = bytes.clone();
                damaged[at] ^= flip;
                let (events, _) = read(&damaged);
                let found = starts(&events);
                for (start, end, addr) in &extents {
                    let Some(addr) = addr.filter(|_| !(*start..*end).contains(&at)) else {
                        continue;
                    };
                    assert!(found.contains(&addr), "{name}: byte {at} ^ {flip:#x} lost the record at {start}");
                }
            }
        }
    }
}

#[test]
fn a_damaged_time_of_the_first_record_costs_that_record_only() {
    let rows: Vec<EntryFields<'_>> = (0..3)
        .map(|row| EntryFields { addr: 0x1040 + row, line: 1, name: b"file", ..EntryFields::default() })
        .collect();
    let mut dump = DumpWriter::new(1);
    // The first one's own announcement, whose time is what is damaged.
    dump.debug_info(5_000_000_000, 0x1000, &rows, 0).unwinding_info(5_000_000_000, &[0; 24], 8, 0);
    for index in 0..4 {
        let time = 5_000_000_000 + index;
        dump.load(time, &LoadFields { code_addr: 0x1000 + 64 * index, name: b"f", code: &[0; 64], code_index: index });
        dump.debug_info(time, 0x1040 + 64 * index, &rows, 0);
    }
    let bytes = dump.into_bytes();
    for at in 48..56 {
        for flip in 1..=255 {
            let mut damaged = bytes.clone();
            damaged[at] ^= flip;
            let (events, stats) = read(&damaged);
            assert_eq!((loads(&events).len(), stats.corrupt_bytes), (4, 0), "byte {at} ^ {flip:#x}: {stats:?}");
        }
    }
}

#[test]
fn flips_in_large_dumps_are_survived() {
    for name in ["cpython3.13.0-burn", "node20-lines", "otp25-lines"] {
        let bytes = fixture(name);
        let all = starts(&read(&bytes).0).len();
        for at in (0..bytes.len()).step_by(101) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0xff;
            let (events, _) = read(&damaged);
            assert!(starts(&events).len() + 2 >= all, "{name}: byte {at}");
        }
    }
}

#[test]
fn zeroed_stretches_cost_what_they_cover() {
    let bytes = fixture("php-tracing");
    let extents = extents(&bytes);
    for at in (40..bytes.len() - 300).step_by(7) {
        let mut damaged = bytes.clone();
        damaged[at..at + 300].fill(0);
        let found = starts(&read(&damaged).0);
        for (start, end, addr) in &extents {
            let touched = *start < at + 300 && *end > at;
            if let Some(addr) = addr.filter(|_| !touched) {
                assert!(found.contains(&addr), "zeros at {at} lost the record at {start}");
            }
        }
    }
}

/// `os.fork()` under CPython's `-X perf_jit`: the child flushes the stdio bytes that the parent flushes again, and they
/// begin inside of a record.
#[test]
fn a_stdio_block_written_twice_costs_the_bytes_up_to_the_next_record() {
    let bytes = fixture("cpython3.13.0-burn");
    let (whole, _) = read(&bytes);
    for fork_at in [4096 + 1500, 8192 + 77, 20480 + 4000] {
        let record_end = extents(&bytes).iter().map(|extent| extent.1).find(|end| *end >= fork_at).unwrap();
        let block = record_end / 4096 * 4096;
        let forked = [&bytes[..record_end], &bytes[block..]].concat();
        let (events, stats) = read(&forked);
        assert_eq!(starts(&events), starts(&whole), "fork at {fork_at}");
        assert_eq!(stats.resyncs, 1);
        assert!(stats.corrupt_bytes < 300, "{stats:?}");
        // The UNWINDING_INFO before the break announces nothing, so it is part of it.
        let before_break = record_end as u64 - stats.corrupt[0].offset.0;
        assert!([0, 112].contains(&before_break), "{before_break}");
        // The second copy of a function may lack what announced it; the first has it.
        let with_rules = loads(&events).into_iter().filter(|load| load.eh_frame.is_some());
        assert_eq!(with_rules.map(|load| load.start.0).collect::<BTreeSet<_>>(), starts(&whole));
    }
}

#[test]
fn a_torn_record_before_an_appended_dump_costs_that_record() {
    // wasmtime appends to the file of a process that had the same pid and was killed in a write.
    let bytes = fixture("wasmtime50");
    let cut = extents(&bytes)[3].1 - 20;
    let appended = [&bytes[..cut], &bytes[..]].concat();
    let (events, _) = read(&appended);
    assert_eq!(starts(&events), starts(&read(&bytes).0));
}

#[test]
fn a_file_that_is_no_dump_gives_nothing() {
    for bytes in [vec![0; 100_000], b"text ".repeat(10_000), vec![0xff; 70_000]] {
        let (events, stats) = read(&bytes);
        assert_eq!((events.len(), stats.resyncs), (0, 0));
    }
}

#[test]
fn a_torn_record_is_retried_not_skipped() {
    let mut dump = DumpWriter::new(1);
    dump.load(5, &LoadFields { code_addr: 0x1000, name: b"first", code: &[0; 64], code_index: 0 });
    let start = dump.len();
    dump.load(6, &LoadFields { code_addr: 0x2000, name: b"second", code: &[0; 64], code_index: 0 });
    let bytes = dump.into_bytes();
    let mut parser = Parser::new(ParserOptions { want_code: true, whole_records: true });
    for len in 0..64 {
        while !matches!(
            parser.step(&bytes[usize::try_from(parser.offset().0).unwrap()..start + len]),
            Step::NeedMore { .. }
        ) {}
        assert_eq!(parser.offset().0, start as u64);
    }
    assert!(matches!(parser.step(&bytes[start..]), Step::Record(_)));
}

#[test]
fn damage_that_no_record_follows_is_counted_up_to_the_end() {
    let mut bytes = crate::writer::DumpWriter::new(7).into_bytes();
    let header = bytes.len();
    bytes.extend(std::iter::repeat_n(0xa5, 5000));
    let mut reader = crate::DumpReader::new(crate::ReaderOptions::default());
    reader.read(&bytes, &mut |event| panic!("{event:?}"));
    let stats = reader.stats_up_to(bytes.len() as u64);
    assert_eq!(stats.corrupt_bytes, 5000);
    assert_eq!(stats.corrupt.first().map(|stretch| stretch.offset.0), Some(header as u64));
}
