//! Dumps of real runtimes.

use std::collections::BTreeSet;

use crate::code::CodeEvent;

use super::{ALL, fixture, load_named, loads, read};

#[test]
fn every_function_of_every_runtime_is_read() {
    let expected = [48, 7, 6, 6, 6, 210, 39, 0];
    for (name, expected) in ALL.into_iter().zip(expected) {
        let (events, stats) = read(&fixture(name));
        assert_eq!((stats.corrupt_bytes, stats.skipped.bad_record), (0, 0), "{name}");
        assert_eq!((stats.debug_unclaimed, stats.debug_cut), (0, 0), "{name}: {stats:?}");
        assert_eq!(stats.functions, stats.records.load, "{name}");
        if expected != 0 {
            assert_eq!(loads(&events).len(), expected, "{name}");
        }
    }
}

#[test]
fn php_closes_its_dump() {
    let (events, _) = read(&fixture("php-tracing"));
    assert!(matches!(events.last(), Some(CodeEvent::Close { .. })));
}

#[test]
fn cpython_has_an_eh_frame_behind_every_function() {
    let (events, stats) = read(&fixture("cpython3.13.0-burn"));
    assert_eq!((stats.eh.perf_order, stats.eh.attached, stats.eh.rebased), (210, 210, 0));
    for load in loads(&events) {
        let frame = load.eh_frame.as_ref().unwrap();
        assert_eq!(frame.section_start.0, load.start.0 + load.size.next_multiple_of(8));
    }
}

#[test]
fn node_marks_most_code_as_keeping_frame_pointers() {
    let (events, stats) = read(&fixture("node20-lines"));
    let with_rules = loads(&events).iter().filter(|load| load.eh_frame.is_some()).count() as u64;
    assert_eq!(stats.eh.header_only + stats.eh.perf_order, 39);
    assert_eq!((stats.eh.attached, stats.eh.unmatched), (with_rules, 0));
    assert_eq!((with_rules, stats.eh.rebased), (5, 0));
}

#[test]
fn node_names_from_freed_memory_are_repaired() {
    let (events, stats) = read(&fixture("node20-lines"));
    assert_eq!((stats.debug_repaired, stats.debug_cut, stats.bias), (11, 0, Some(0x40)));
    let files: BTreeSet<String> =
        loads(&events).iter().flat_map(|load| load.lines.iter().map(|row| row.file.to_string())).collect();
    let user: Vec<_> = files.iter().filter(|file| !file.starts_with("node:")).collect();
    assert_eq!(user, ["burn.js"], "{files:?}");
}

#[test]
fn node_lines_begin_within_the_function() {
    let (events, _) = read(&fixture("node20-lines"));
    let with_lines: Vec<_> = loads(&events).into_iter().filter(|load| !load.lines.is_empty()).collect();
    // Of 29; the others are baseline code of more than one line, and Node's own functions without any.
    assert_eq!(with_lines.len(), 16);
    for load in &with_lines {
        assert!(load.lines.iter().is_sorted_by_key(|row| row.offset));
        assert!(load.lines.iter().all(|row| u64::from(row.offset) < load.size), "{load:?}");
    }
    // The bias hides the first instructions of nearly all.
    assert!(with_lines.iter().filter(|load| load.lines.iter().next().unwrap().offset == 0).count() > 10);
}

/// `node --perf-prof tests/targets/node/lines.js`: what is inlined there begins below that file's last line.
#[test]
fn node_lines_are_of_the_function_that_has_them() {
    let functions = [("work", 12..=22), ("near", 7..=10), ("drive", 24..=32), ("mix", 40..=45), ("fold", 47..=52)];
    let (events, stats) = read(&fixture("node20-inlined"));
    let loads = loads(&events);
    assert_eq!(loads.len(), 13);
    let mut believed = 0;
    for load in &loads {
        let named = functions.iter().find(|(name, _)| load.name[4..].starts_with(name));
        let (_, lines) = named.unwrap_or_else(|| panic!("{}", load.name));
        let own: Vec<u32> = load.lines.iter().map(|row| row.line).filter(|line| *line != 0).collect();
        assert!(own.iter().all(|line| lines.contains(line)), "{}: {own:?}", load.name);
        believed += own.len();
    }
    assert!(believed > 60, "{believed} rows of what runs optimised");
    assert!(stats.rows_doubtful > 150, "{} rows of what is inlined", stats.rows_doubtful);
    // Between the rows of what is inlined and its own next one no line is said.
    let work = loads.iter().rfind(|load| load.name.starts_with("JS:*work")).unwrap();
    let gaps = work.lines.iter().filter(|row| row.line == 0).count();
    assert!(gaps > 3 && work.lines.at(0).is_some_and(|(_, line)| line == 12), "{:?}", work.lines);
    let gap = work.lines.iter().find(|row| row.line == 0).unwrap().offset;
    assert_eq!(work.lines.at(u64::from(gap)), None);
}

#[test]
fn llvm_lines_are_unbiased() {
    for name in ["llvm14-nofp-g", "llvm19-nofp-g"] {
        let (events, stats) = read(&fixture(name));
        assert_eq!(stats.bias, Some(0x40), "{name}");
        for load in loads(&events) {
            assert_eq!(load.lines.iter().next().unwrap().offset, 0, "{name}: {load:?}");
        }
        let rows: Vec<_> = load_named(&events, "leaf_hot").lines.iter().map(|row| (row.offset, row.line)).collect();
        assert_eq!(rows[0], (0, 7), "{name}: {rows:?}");
    }
}

#[test]
fn erlang_rows_end_with_a_terminator_and_begin_before_the_function() {
    let (events, stats) = read(&fixture("otp25-lines"));
    assert_eq!(stats.bias, Some(0));
    assert_eq!(stats.debug_repaired, 0);
    let with_lines: Vec<_> = loads(&events).into_iter().filter(|load| !load.lines.is_empty()).collect();
    assert!(with_lines.len() > 50, "{}", with_lines.len());
    assert!(with_lines.iter().any(|load| load.lines.iter().next().unwrap().offset == 0));
    for load in with_lines {
        assert!(load.lines.iter().all(|row| row.line > 0 && !row.file.is_empty()), "{load:?}");
    }
}
