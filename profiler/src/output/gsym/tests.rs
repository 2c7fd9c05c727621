//! Exports of real dumps, read back by three readers; and code that overlaps.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use blazesym::symbolize::source::{Gsym as GsymSource, GsymData, Source};
use blazesym::symbolize::{Input, Symbolizer};

use super::*;
use crate::gsym::Gsym;
use crate::symbol::names;
use jitprof_common::units::{Avma, MonoNs};
use jitprof_jitdump::code::{CodeEvent, CodeInline, CodeLoad, CodeMap, CodeOrigin, LineRow, SourceRows};
use jitprof_jitdump::{DumpReader, ReaderOptions};

const LAST: MonoNs = MonoNs(u64::MAX - 1);

fn events_of(fixture: &str) -> Vec<CodeEvent> {
    let bytes = jitprof_jitdump::test_data::fixture(fixture);
    let mut events = Vec::new();
    DumpReader::new(ReaderOptions::default()).read(&bytes, &mut |event| events.push(event));
    events
}

fn map_of(events: &[CodeEvent]) -> CodeMap {
    let mut map = CodeMap::new();
    for event in events {
        map.apply(event.clone());
    }
    map
}

fn export(map: &CodeMap, at: MonoNs) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&Snapshot::of(map, at), Uuid([5; 16]), &mut bytes).unwrap();
    bytes
}

/// What the events say is there at the end, worked out as simply as possible: the latest over each byte.
fn living(events: &[CodeEvent]) -> Vec<&CodeLoad> {
    let mut loads: Vec<(usize, &CodeLoad)> = Vec::new();
    for (order, event) in events.iter().enumerate() {
        if let CodeEvent::Load(load) = event {
            loads.push((order, load));
        }
    }
    loads.sort_by_key(|(order, load)| (load.time, *order));
    let mut living: BTreeMap<u64, &CodeLoad> = BTreeMap::new();
    for (_, load) in loads.into_iter().filter(|(_, load)| load.size > 0) {
        let end = load.start.0 + load.size;
        let overlaps = |start: u64, old: &CodeLoad| start < end && start + old.size > load.start.0;
        living.retain(|start, old| !overlaps(*start, old));
        living.insert(load.start.0, load);
    }
    living.into_values().collect()
}

/// File and line of a byte, from the rows as they are announced, else from the name. Rows without a line are rows of the
/// name's, if it has one.
fn place_of(load: &CodeLoad, offset: u64) -> Option<(String, u32)> {
    let named = names::classify(&load.name, load.origin, None).source;
    if load.lines.is_empty() {
        return named.map(|place| (place.file.to_string(), place.line));
    }
    let of_name = |row: LineRow| match (row.line, &named) {
        (0, named) => named.as_ref().map(|place| LineRow { file: Arc::clone(&place.file), line: place.line, ..row }),
        _ => Some(row),
    };
    let rows: Vec<LineRow> =
        load.lines.iter().filter_map(of_name).filter(|row| u64::from(row.offset) < load.size).collect();
    let reached = rows.iter().rev().find(|row| u64::from(row.offset) <= offset).or(rows.first());
    reached.map(|row| (row.file.to_string(), row.line))
}

fn joined(directory: &[u8], name: &[u8]) -> String {
    let (directory, name) = (String::from_utf8_lossy(directory), String::from_utf8_lossy(name));
    match &*directory {
        "" => name.into_owned(),
        "/" => format!("/{name}"),
        _ => format!("{directory}/{name}"),
    }
}

#[test]
fn every_function_of_a_dump_is_found_at_its_first_middle_and_last_byte_by_every_reader() {
    for fixture in ["node20-lines", "otp25-lines", "cpython3.13.0-burn", "php-tracing", "wasmtime50", "llvm14-nofp-g"] {
        let events = events_of(fixture);
        let bytes = export(&map_of(&events), LAST);
        let ours = Gsym::parse(bytes.clone()).unwrap();
        let theirs = gsym_rs::Gsym::parse(bytes.as_slice()).unwrap();
        theirs.verify().unwrap();
        let symbolizer = Symbolizer::builder().enable_demangling(false).build();
        let source = Source::Gsym(GsymSource::Data(GsymData::new(&bytes)));
        let living = living(&events);
        assert_eq!(ours.header().num_addresses as usize, living.len(), "{fixture}");
        assert_eq!(ours.header().uuid, [5; 16]);
        let mut with_lines = 0;
        for load in &living {
            for offset in [0, load.size / 2, load.size - 1] {
                let (address, place) = (load.start.0 + offset, place_of(load, offset));
                with_lines += usize::from(place.is_some());
                let (file, line) = place.clone().unwrap_or_default();
                let context = format!("{fixture} {address:#x} {}", load.name);
                let found = ours.lookup(address).unwrap().unwrap().places;
                assert_eq!((found.len(), &found[0].name), (1, &load.name), "{context}");
                assert_eq!(found[0].file.clone().map(|file| (file, found[0].line)), place, "{context}");
                let found = theirs.lookup(address).unwrap().unwrap();
                let frame = &found.frames()[0];
                assert_eq!(frame.name, load.name.as_bytes(), "{context}");
                assert_eq!((joined(frame.directory, frame.basename), frame.line), (file, line), "{context}");
                let found = symbolizer.symbolize_single(&source, Input::VirtOffset(address)).unwrap();
                let found = found.as_sym().unwrap_or_else(|| panic!("blazesym: {context}"));
                assert_eq!((&*found.name, found.addr), (&*load.name, load.start.0), "{context}");
                let seen =
                    found.code_info.as_ref().map(|info| (info.to_path().display().to_string(), info.line.unwrap()));
                assert_eq!(seen, place, "{context}");
            }
        }
        println!("{fixture}: {} functions, {with_lines} of {} places with lines", living.len(), 3 * living.len());
    }
}

/// Runs one of LLVM's own, which says what is wrong in its output only: it exits with 0 all the same.
fn gsymutil(tool: &Path, arguments: &[&str], input: Option<&str>) -> String {
    use std::io::Write as _;
    let mut command = Command::new(tool);
    command.args(arguments).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    let input = input.unwrap_or_default().to_owned();
    let writer = std::thread::spawn(move || pipe.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    String::from_utf8(output.stdout).unwrap()
}

/// Needs the tools: `JITPROF_GSYMUTIL=/usr/lib/llvm-14/bin/llvm-gsymutil:/usr/lib/llvm-19/bin/llvm-gsymutil`.
#[test]
#[ignore = "needs llvm-gsymutil; run by `cargo xtask test`, which installs it"]
fn every_function_of_a_dump_is_found_by_llvm() {
    let tools = std::env::var("JITPROF_GSYMUTIL").expect("JITPROF_GSYMUTIL names llvm-gsymutil");
    for tool in tools.split(':').map(Path::new) {
        for fixture in ["node20-lines", "otp25-lines"] {
            let events = events_of(fixture);
            let file = tempfile::NamedTempFile::new().unwrap();
            let path = file.path().to_str().unwrap();
            std::fs::write(path, export(&map_of(&events), LAST)).unwrap();
            let living = living(&events);
            let dump = gsymutil(tool, &[path], None);
            let infos: Vec<&str> = dump.lines().filter(|line| line.starts_with("FunctionInfo @ ")).collect();
            assert_eq!(infos.len(), living.len(), "{}", tool.display());
            let bad = infos.iter().find(|line| !line.contains(": [0x"));
            assert_eq!(bad, None, "{}", tool.display());
            let places: Vec<(&CodeLoad, u64)> = living
                .iter()
                .flat_map(|load| [0, load.size / 2, load.size - 1].map(|offset| (*load, offset)))
                .collect();
            let asked: String =
                places.iter().map(|(load, offset)| format!("{:#x} {path}\n", load.start.0 + offset)).collect();
            let answers = gsymutil(tool, &["--addresses-from-stdin"], Some(&asked));
            let mut answers = answers.lines().filter(|line| !line.is_empty());
            for (load, offset) in places {
                let address = load.start.0 + offset;
                let distance = if offset == 0 { String::new() } else { format!(" + {offset}") };
                let place = match place_of(load, offset) {
                    Some((file, line)) => format!(" @ {file}:{line}"),
                    None => String::new(),
                };
                let expected = format!("{address:#018x}: {}{distance}{place}", load.name);
                assert_eq!(answers.next(), Some(&*expected), "{}", tool.display());
            }
            println!("{}: {fixture}: {} functions", tool.display(), living.len());
        }
        inlined_functions_are_found_by(tool);
    }
}

/// LLVM has the innermost function first, `NAME + OFFSET @ FILE:LINE [inlined]`, and the ones around it below.
fn inlined_functions_are_found_by(tool: &Path) {
    let map = map_with_inlines();
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    std::fs::write(path, export(&map, LAST)).unwrap();
    for address in 0x1000..0x1040 {
        let answer = gsymutil(tool, &[&format!("--address={address:#x}"), path], None);
        let lines = answer.lines().filter(|line| line.contains(" @ "));
        let found = lines.map(|line| {
            let (head, place) = line.split_once(" @ ").unwrap();
            let name = head.rsplit(": ").next().unwrap().split(" + ").next().unwrap().trim();
            (name.to_owned(), place.trim_end_matches(" [inlined]").to_owned())
        });
        let expected = recorded(&map, address).into_iter().map(|(name, place)| {
            let (file, line) = place.unwrap();
            (name, format!("{file}:{line}"))
        });
        assert_eq!(found.collect::<Vec<_>>(), expected.collect::<Vec<_>>(), "{}: {answer}", tool.display());
    }
}

fn load(time: u64, start: u64, size: u64, name: &str, origin: CodeOrigin) -> CodeEvent {
    CodeEvent::Load(CodeLoad {
        time: MonoNs(time),
        start: Avma(start),
        size,
        name: name.to_owned(),
        code_index: 0,
        lines: SourceRows::default(),
        unit: None,
        eh_frame: None,
        code: None,
        origin,
    })
}

/// start, size, name of each function.
fn functions(bytes: &[u8]) -> Vec<(u64, u32, String)> {
    let gsym = Gsym::parse(bytes.to_vec()).unwrap();
    let function = |index| {
        let function = gsym.function(index).unwrap();
        (function.start, function.size, gsym.string(function.name).unwrap())
    };
    (0..gsym.header().num_addresses).map(function).collect()
}

fn named(list: &[(u64, u32, &str)]) -> Vec<(u64, u32, String)> {
    list.iter().map(|(start, size, name)| (*start, *size, (*name).to_owned())).collect()
}

#[test]
fn the_last_writer_wins_and_an_earlier_time_has_the_earlier_code() {
    let events = [
        load(10, 0x1000, 0x100, "old", CodeOrigin::Jitdump),
        load(10, 0x2000, 0x10, "stays", CodeOrigin::Jitdump),
        load(20, 0x1080, 0x100, "new", CodeOrigin::Jitdump),
        load(20, 0x3000, 0, "empty", CodeOrigin::Jitdump),
    ];
    let map = map_of(&events);
    assert_eq!(functions(&export(&map, LAST)), named(&[(0x1080, 0x100, "new"), (0x2000, 0x10, "stays")]));
    assert_eq!(functions(&export(&map, MonoNs(19))), named(&[(0x1000, 0x100, "old"), (0x2000, 0x10, "stays")]));
    assert!(matches!(write(&Snapshot::of(&map, MonoNs(9)), Uuid([0; 16]), Vec::new()), Err(WriteError::Empty)));
}

#[test]
fn a_perf_maps_line_is_cut_to_where_the_dump_says_nothing() {
    let events = [
        load(0, 0x1000, 0x100, "listed", CodeOrigin::PerfMap),
        load(0, 0x1200, 0x10, "covered", CodeOrigin::PerfMap),
        load(0, 0x1300, 0x10, "alone", CodeOrigin::PerfMap),
        load(1, 0x1010, 0x10, "a", CodeOrigin::Jitdump),
        load(1, 0x1080, 0x100, "b", CodeOrigin::Jitdump),
        load(1, 0x1200, 0x10, "c", CodeOrigin::Jitdump),
    ];
    let map = map_of(&events);
    let snapshot = Snapshot::of(&map, LAST);
    assert_eq!((snapshot.stats.cut, snapshot.stats.covered), (1, 1));
    let bytes = export(&map, LAST);
    assert_eq!(
        functions(&bytes),
        named(&[
            (0x1000, 0x10, "listed"),
            (0x1010, 0x10, "a"),
            (0x1020, 0x60, "listed"),
            (0x1080, 0x100, "b"),
            (0x1200, 0x10, "c"),
            (0x1300, 0x10, "alone")
        ])
    );
    // Byte by byte what the code map itself answers.
    let gsym = Gsym::parse(bytes).unwrap();
    for address in 0xff0..0x1320 {
        let expected = map.lookup(Avma(address), LAST).map(|hit| hit.name().to_owned());
        let found = gsym.lookup(address).unwrap().map(|found| found.places[0].name.clone());
        assert_eq!(found, expected, "{address:#x}");
    }
}

#[test]
fn rows_without_a_line_go_and_the_first_line_holds_from_the_start() {
    let row = |offset, line| LineRow { offset, line, file: "/src/a.erl".into() };
    let CodeEvent::Load(plain) = load(1, 0x1000, 0x20, "f", CodeOrigin::Jitdump) else { unreachable!() };
    let lines = [row(0, 0), row(4, 7), row(8, 0), row(12, 9), row(0x20, 0)].into_iter().collect();
    let map = map_of(&[CodeEvent::Load(CodeLoad { lines, ..plain })]);
    let gsym = Gsym::parse(export(&map, LAST)).unwrap();
    let rows: Vec<_> = gsym.function(0).unwrap().lines.iter().map(|row| (row.address, row.line)).collect();
    assert_eq!(rows, [(0x1000, 7), (0x100c, 9)]);
}

/// Frames of a byte as a recording has them, innermost first: name, file, line.
fn recorded(map: &CodeMap, address: u64) -> Vec<(String, Option<(String, u32)>)> {
    let hit = map.lookup(Avma(address), LAST).unwrap();
    let shown = |place: Option<(&std::sync::Arc<str>, u32)>| place.map(|(file, line)| (file.to_string(), line));
    let mut frames = vec![(hit.name().to_owned(), shown(hit.line(hit.offset)))];
    frames.extend(hit.inlined(hit.offset).map(|inlined| (inlined.name().to_owned(), shown(inlined.line(hit.offset)))));
    frames.reverse();
    frames
}

/// `inner` in `middle` in `outer`, and `inner` in `outer`.
fn map_with_inlines() -> CodeMap {
    let rows = |list: &[(u32, u32)], file: &str| -> SourceRows {
        list.iter().map(|(offset, line)| LineRow { offset: *offset, line: *line, file: file.into() }).collect()
    };
    let CodeEvent::Load(plain) = load(1, 0x1000, 0x40, "outer", CodeOrigin::Jitdump) else { unreachable!() };
    let outer = CodeLoad { lines: rows(&[(0, 10), (8, 11), (0x20, 12), (0x38, 13)], "/src/outer.c"), ..plain };
    let inline = |start, size, method, parent, name: &str, lines| {
        CodeEvent::Inline(CodeInline {
            time: MonoNs(1),
            start: Avma(start),
            size,
            method,
            parent,
            name: name.to_owned(),
            source: None,
            lines,
        })
    };
    map_of(&[
        CodeEvent::Load(outer),
        inline(0x1008, 0x18, 2, 1, "middle", rows(&[(0, 20), (4, 21), (0x10, 22)], "/src/middle.h")),
        inline(0x100c, 0xc, 3, 2, "inner", rows(&[(0, 30), (6, 31)], "/src/inner.h")),
        inline(0x1020, 8, 3, 1, "inner", rows(&[(0, 30)], "/src/inner.h")),
    ])
}

#[test]
fn inlined_functions_come_out_as_a_recording_has_them_for_every_reader() {
    let map = map_with_inlines();
    let bytes = export(&map, LAST);
    let ours = Gsym::parse(bytes.clone()).unwrap();
    let theirs = gsym_rs::Gsym::parse(bytes.as_slice()).unwrap();
    theirs.verify().unwrap();
    let symbolizer = Symbolizer::builder().enable_demangling(false).build();
    let source = Source::Gsym(GsymSource::Data(GsymData::new(&bytes)));
    let mut deepest = 0;
    for address in 0x1000..0x1040 {
        let expected = recorded(&map, address);
        deepest = deepest.max(expected.len());
        let found = ours.lookup(address).unwrap().unwrap().places;
        let found: Vec<_> =
            found.into_iter().map(|place| (place.name, place.file.map(|file| (file, place.line)))).collect();
        assert_eq!(found, expected, "{address:#x}");
        let found = theirs.lookup(address).unwrap().unwrap();
        let shown = |frame: &gsym_rs::LookupFrame<'_>| {
            let file = joined(frame.directory, frame.basename);
            (String::from_utf8_lossy(frame.name).into_owned(), (!file.is_empty()).then_some((file, frame.line)))
        };
        assert_eq!(found.frames().iter().map(shown).collect::<Vec<_>>(), expected, "{address:#x}");
        let found = symbolizer.symbolize_single(&source, Input::VirtOffset(address)).unwrap();
        let found = found.as_sym().unwrap();
        let names = found.inlined.iter().rev().map(|inlined| &*inlined.name).chain([&*found.name]);
        assert!(names.eq(expected.iter().map(|(name, _)| name.as_str())), "{address:#x}");
    }
    assert_eq!(deepest, 3);
}

#[test]
fn inlined_parts_that_overlap_are_cut_to_the_one_around_them() {
    let inline = |start, size, method, name: &str| {
        CodeEvent::Inline(CodeInline {
            time: MonoNs(1),
            start: Avma(start),
            size,
            method,
            parent: 1,
            name: name.to_owned(),
            source: None,
            lines: SourceRows::default(),
        })
    };
    let map = map_of(&[
        load(1, 0x1000, 0x40, "outer", CodeOrigin::Jitdump),
        inline(0x1000, 0x20, 2, "first"),
        inline(0x1010, 0x20, 3, "crosses"),
    ]);
    let gsym = Gsym::parse(export(&map, LAST)).unwrap();
    let names = |address| -> Vec<String> {
        gsym.lookup(address).unwrap().unwrap().places.into_iter().map(|place| place.name).collect()
    };
    assert_eq!(names(0x100f), ["first", "outer"]);
    assert_eq!(names(0x1010), ["crosses", "first", "outer"]);
    assert_eq!(names(0x1020), ["outer"]);
}

#[test]
fn names_that_the_format_cannot_hold_are_made_to_fit() {
    let map = map_of(&[
        load(1, 0x1000, 1, "", CodeOrigin::Jitdump),
        load(1, 0x2000, 1, "a\0b", CodeOrigin::Jitdump),
        load(1, 0x3000, 1, "JS:*f /s/\0x.js:3:1", CodeOrigin::Jitdump),
    ]);
    let found: Vec<String> = functions(&export(&map, LAST)).into_iter().map(|(_, _, name)| name).collect();
    assert_eq!(found, ["[unnamed code]", "a\u{fffd}b", "JS:*f /s/\u{fffd}x.js:3:1"]);
}

#[test]
fn the_uuid_is_the_same_everywhere() {
    assert_eq!(Uuid::of(&[]).0, 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128.to_be_bytes());
    assert_ne!(Uuid::of(&[b"ab", b"c"]), Uuid::of(&[b"a", b"bc"]));
    assert_eq!(Uuid::of(&[b"a"]), Uuid::of(&[b"a"]));
}
