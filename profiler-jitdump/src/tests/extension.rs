//! The records of jitprof's agent.

use std::sync::Arc;

use crate::code::{CodeEvent, CodeMap};
use crate::writer::{DumpWriter, EntryFields, HeaderFields, InlineFields, LoadFields};
use crate::{AGENT_PAD1, ByteOrder, DumpStats};
use jitprof_common::units::{Avma, MonoNs};

use super::{loads, read};

const INLINE: InlineFields<'_> = InlineFields {
    start: 0x1010,
    size: 0x20,
    method: 12,
    parent: 10,
    name: b"inlined",
    source: b"lib.src",
    rows: &[(0, 7), (8, 0)],
};

/// A function with everything, another after it, and the end of the first.
fn dump(order: ByteOrder) -> Vec<u8> {
    let mut dump = DumpWriter::with_header(&HeaderFields { order, pad1: AGENT_PAD1, ..HeaderFields::default() });
    let entry = |addr, line| EntryFields { addr, line, discrim: 0, name: b"main.src" };
    dump.load(9, &LoadFields { code_addr: 0x800, code_index: 0, name: b"before", code: &[0x90; 0x10] });
    dump.method(10, 0x1000, 10, b"main.src", b"engine");
    dump.debug_info(10, 0x1000, &[entry(0x1000, 3), entry(0x1040, 0)], 0);
    dump.load(10, &LoadFields { code_addr: 0x1000, code_index: 1, name: b"method", code: &[0x90; 0x80] });
    dump.inline(11, &INLINE).lost(12, 13, 2);
    dump.load(13, &LoadFields { code_addr: 0x2000, code_index: 2, name: b"other", code: &[0x90; 0x40] });
    dump.unload(20, 0x1000, 0x80);
    dump.into_bytes()
}

fn map(events: Vec<CodeEvent>) -> CodeMap {
    let mut map = CodeMap::new();
    for event in events {
        map.apply(event);
    }
    map
}

#[test]
fn inlines_units_and_ends_reach_the_map_in_both_byte_orders() {
    for order in [ByteOrder::Little, ByteOrder::Big] {
        let (events, stats) = read(&dump(order));
        let counts = stats.records;
        assert_eq!((counts.method, counts.inline, counts.lost, counts.unload, counts.unknown), (1, 1, 1, 1, 0));
        let map = map(events);
        let hit = map.lookup(Avma(0x1012), MonoNs(15)).unwrap();
        assert_eq!(hit.module().map(|name| &**name), Some("engine"));
        assert_eq!(hit.source().map(|name| &**name), Some("main.src"));
        assert_eq!(hit.line(hit.offset).map(|(_, line)| line), Some(3));
        assert_eq!(hit.line(0x40), None, "a row of line 0 ends the lines");
        let parts: Vec<_> = hit.inlined(hit.offset).collect();
        assert_eq!(parts.len(), 1);
        assert_eq!((parts[0].name(), parts[0].source().map(|name| &**name)), ("inlined", Some("lib.src")));
        assert_eq!(parts[0].line(0x12), Some((&Arc::from("lib.src"), 7)));
        assert_eq!(parts[0].line(0x18), None);
        assert_eq!(hit.inlined(0x30).count(), 0);
        assert!(map.lookup(Avma(0x1012), MonoNs(19)).is_some() && map.lookup(Avma(0x1012), MonoNs(20)).is_none());
        let other = map.lookup(Avma(0x2000), MonoNs(30)).unwrap();
        assert_eq!((other.name(), other.module()), ("other", None), "a METHOD is for one function");
    }
}

#[test]
fn the_agent_s_debug_addresses_have_no_bias() {
    let mut dump = DumpWriter::with_header(&HeaderFields { pad1: AGENT_PAD1, ..HeaderFields::default() });
    for code_addr in [0x1000, 0x2000, 0x3000] {
        let entry = EntryFields { addr: code_addr + 0x40, line: 9, discrim: 0, name: b"f" };
        dump.debug_info(1, code_addr, &[entry], 0);
        dump.load(1, &LoadFields { code_addr, code_index: 1, name: b"f", code: &[0x90; 0x80] });
    }
    let (events, _) = read(&dump.into_bytes());
    assert!(loads(&events).iter().all(|load| load.lines.at(0x3f).is_none() && load.lines.at(0x40).is_some()));
}

#[test]
fn a_dump_cut_anywhere_gives_the_events_before_the_cut() {
    let bytes = dump(ByteOrder::Little);
    let (whole, _) = read(&bytes);
    for cut in 0..bytes.len() {
        let (events, stats) = read(&bytes[..cut]);
        assert_eq!(events, whole[..events.len()], "cut at {cut}");
        assert_eq!(stats.corrupt_bytes, 0, "cut at {cut}");
    }
}

#[test]
fn a_flipped_byte_in_an_extension_record_loses_no_function() {
    let mut bytes = dump(ByteOrder::Little);
    let unload = bytes.len() - 32..bytes.len();
    // A record of a doubtful size is judged by what follows it, within 4 KiB.
    let mut rest = DumpWriter::new(1);
    rest.load(30, &LoadFields { code_addr: 0x9000, code_index: 3, name: b"last", code: &[0x90; 8192] });
    bytes.extend(&rest.into_bytes()[40..]);
    let intact = |bytes: &[u8]| -> (usize, DumpStats) {
        let (events, stats) = read(bytes);
        (loads(&events).len(), stats)
    };
    // The records by their places: METHOD behind the first LOAD, INLINE behind the second, UNLOAD at the end.
    let method = 40 + 56 + 7 + 0x10;
    let method = method..method + 32 + 9 + 7;
    let inline = bytes.windows(7).position(|window| window == b"inlined").unwrap();
    let inline = inline - 40..inline + 8 + 8 + 16;
    for at in method.chain(inline).chain(unload) {
        for flip in [0x01, 0x80, 0xff] {
            let mut damaged = bytes.clone();
            damaged[at] ^= flip;
            let (found, stats) = intact(&damaged);
            assert_eq!(found, 4, "byte {at} ^ {flip:#x}: {stats:?}");
        }
    }
}

#[test]
fn counts_that_contradict_the_record_cost_it_alone() {
    let mut dump = DumpWriter::with_header(&HeaderFields { pad1: AGENT_PAD1, ..HeaderFields::default() });
    dump.load(10, &LoadFields { code_addr: 0x1000, code_index: 1, name: b"method", code: &[0x90; 0x80] });
    let start = dump.len();
    dump.inline(11, &INLINE).unload(12, 0x5000, 1);
    let bytes = dump.into_bytes();
    for rows in [0_u32, 1, 3, 0xffff_ffff] {
        let mut damaged = bytes.clone();
        damaged[start + 36..start + 40].copy_from_slice(&rows.to_le_bytes());
        let (_, stats) = read(&damaged);
        assert_eq!((stats.skipped.bad_record, stats.records.unload, stats.records.inline), (1, 1, 0), "{rows} rows");
    }
}

#[test]
fn parts_are_bounded_and_those_without_a_function_are_counted() {
    let mut dump = DumpWriter::with_header(&HeaderFields { pad1: AGENT_PAD1, ..HeaderFields::default() });
    dump.inline(9, &INLINE);
    dump.load(10, &LoadFields { code_addr: 0x1000, code_index: 1, name: b"method", code: &[0x90; 0x80] });
    dump.inline(11, &InlineFields { size: 0x1000, ..INLINE });
    // Of one range there are fewer.
    for method in 0..5000 {
        dump.inline(11, &InlineFields { method, size: 1 + method % 64, ..INLINE });
    }
    dump.inline(11, &InlineFields { method: 5, size: 6, ..INLINE });
    let map = map(read(&dump.into_bytes()).0);
    let stats = map.stats();
    assert_eq!((stats.inlines, stats.dropped_without_function, stats.duplicates), (4096, 2 + 5000 - 4096, 1));
}
