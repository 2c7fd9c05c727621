//! Events as a runtime sends them, read back as the profiler reads them.

use std::ffi::CString;

use jitprof_common::units::{Avma, MonoNs};
use jitprof_jitdump::code::{CodeMap, CodeOrigin};
use jitprof_jitdump::{DumpReader, DumpStats, ReaderOptions};
use proptest::prelude::*;

use super::*;

const PID: u32 = 77;
const BAD: u64 = 0x1000;

/// A runtime with memory for its code, and what it has announced.
struct Runtime {
    collector: Collector,
    directory: tempfile::TempDir,
    /// What it "generates": each byte is its offset.
    code: Vec<u8>,
    texts: Vec<CString>,
}

/// The fields of one event.
#[derive(Clone, Copy, Debug, Default)]
struct Fields<'a> {
    method: u32,
    parent: u32,
    name: &'a str,
    offset: u64,
    size: u32,
    lines: &'a [(u32, u32)],
    class: Option<&'a str>,
    source: Option<&'a str>,
    module: Option<&'a str>,
}

impl Runtime {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut collector = Collector::new(PID);
        collector.dump = Some(Dump::create_in(directory.path().as_os_str(), PID).unwrap());
        let code = (0..4096_u32).map(|offset| offset.to_le_bytes()[0]).collect();
        Self { collector, directory, code, texts: Vec::new() }
    }

    fn base(&self) -> u64 {
        self.code.as_ptr() as u64
    }

    fn text(&mut self, text: Option<&str>) -> u64 {
        let Some(text) = text else { return 0 };
        self.texts.push(CString::new(text).unwrap());
        self.texts.last().unwrap().as_ptr() as u64
    }

    /// The structure of event `number`.
    fn structure(&mut self, number: u32, fields: &Fields<'_>, table: &[u8]) -> Vec<u8> {
        let (class, source) = if number == 13 { (48, 56) } else { (40, 48) };
        let mut bytes = vec![0; 72];
        let mut long = |at: usize, value: u64| bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        long(0, u64::from(fields.method) | u64::from(fields.parent) << 32);
        long(8, self.text(Some(fields.name)));
        long(16, self.base() + fields.offset);
        long(24, u64::from(fields.size) | (fields.lines.len() as u64) << 32);
        long(32, table.as_ptr() as u64);
        long(class, self.text(fields.class));
        long(source, self.text(fields.source));
        if number > 16 {
            long(56, self.text(fields.module));
        }
        bytes
    }

    fn send(&mut self, number: u32, fields: &Fields<'_>) {
        let table: Vec<u8> =
            fields.lines.iter().flat_map(|(end, line)| [end.to_ne_bytes(), line.to_ne_bytes()].concat()).collect();
        let bytes = self.structure(number, fields, &table);
        self.send_bytes(number, &bytes);
    }

    fn send_bytes(&mut self, number: u32, bytes: &[u8]) {
        self.collector.event(number, bytes.as_ptr() as u64).unwrap();
    }

    fn load(&mut self, method: u32, name: &str, offset: u64, size: u32) {
        self.send(13, &Fields { method, name, offset, size, ..Fields::default() });
    }

    /// What the profiler makes of it.
    fn read(&self) -> (CodeMap, DumpStats) {
        let bytes = std::fs::read(self.directory.path().join(format!("jit-{PID}.dump"))).unwrap();
        let mut map = CodeMap::new();
        let mut reader = DumpReader::new(ReaderOptions { namespace_pid: Some(PID), ..ReaderOptions::default() });
        reader.read(&bytes, &mut |event| {
            map.apply(event);
        });
        assert_eq!(reader.offset().0, bytes.len() as u64, "every record is whole");
        (map, reader.stats().clone())
    }

    /// The frames at an offset now, outermost first, each with its line.
    fn frames(&self, offset: u64) -> Vec<(String, Option<u32>)> {
        let (map, _) = self.read();
        let Some(hit) = map.lookup(Avma(self.base() + offset), MonoNs(u64::MAX >> 1)) else { return Vec::new() };
        let mut frames = vec![(hit.name().to_owned(), hit.line(hit.offset).map(|(_, line)| line))];
        frames.extend(hit.inlined(hit.offset).map(|part| {
            let line = part.line(hit.offset).map(|(_, line)| line);
            (part.name().to_owned(), line)
        }));
        frames
    }

    fn name(&self, offset: u64) -> Option<String> {
        self.frames(offset).first().map(|(name, _)| name.clone())
    }

    fn lost(&self) -> u64 {
        self.read().1.records.lost
    }
}

#[test]
fn a_load_has_name_code_lines_source_and_module() {
    let mut runtime = Runtime::new();
    let lines = [(1, 2), (12, 4), (15, 2), (18, 1), (21, 30)];
    let fields = Fields {
        method: 1,
        name: "run",
        offset: 64,
        size: 32,
        lines: &lines,
        class: Some("Task"),
        source: Some("task.src"),
        module: Some("engine"),
        parent: 0,
    };
    for number in [13, 21, 22] {
        runtime.send(number, &fields);
        let (map, stats) = runtime.read();
        let hit = map.lookup(Avma(runtime.base() + 64), MonoNs(u64::MAX >> 1)).unwrap();
        assert_eq!((hit.name(), hit.size(), hit.origin()), ("Task::run", 32, CodeOrigin::Jitdump));
        assert_eq!(hit.source().map(|source| &**source), Some("task.src"));
        let line = |offset| hit.line(offset).map(|(file, line)| (&**file, line));
        let expected = [(0, 2), (1, 4), (11, 4), (12, 2), (15, 1), (18, 30), (20, 30)];
        assert!(expected.iter().all(|(offset, number)| line(*offset) == Some(("task.src", *number))), "{number}");
        assert_eq!(line(21), None, "behind the table there is no line");
        assert_eq!(stats.corrupt_bytes + stats.records.lost + stats.records.unknown, 0);
        assert_eq!(hit.module().map(|module| &**module), (number > 13).then_some("engine"));
        runtime.send(14, &fields);
    }
    assert_eq!(runtime.name(64), None);
}

#[test]
fn the_code_bytes_are_those_in_memory() {
    let mut runtime = Runtime::new();
    runtime.load(1, "f", 100, 50);
    let bytes = std::fs::read(runtime.directory.path().join("jit-77.dump")).unwrap();
    assert_eq!(bytes[bytes.len() - 50..], runtime.code[100..150]);
}

#[test]
fn inlined_methods_may_be_announced_in_any_order() {
    let part = |method, parent, name, offset, size| Fields { method, parent, name, offset, size, ..Fields::default() };
    let inner = Fields { lines: &[(4, 70), (8, 71)], source: Some("lib.src"), ..part(12, 11, "inner", 20, 8) };
    let (outer, sibling, whole) =
        (part(11, 10, "outer", 16, 16), part(13, 10, "sibling", 40, 8), part(14, 11, "same", 16, 16));
    let method = |runtime: &mut Runtime| {
        runtime.send(13, &Fields { lines: &[(64, 5)], source: Some("main.src"), ..part(10, 0, "method", 0, 64) });
    };
    let mut before = Runtime::new();
    for fields in [&inner, &sibling, &whole, &outer] {
        before.send(16, fields);
    }
    method(&mut before);
    let mut after = Runtime::new();
    method(&mut after);
    for fields in [&outer, &whole, &sibling, &inner] {
        after.send(16, fields);
    }
    for runtime in [before, after] {
        let names = |offset| runtime.frames(offset).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(0), ["method"]);
        assert_eq!(names(16), ["method", "outer", "same"]);
        assert_eq!(names(47), ["method", "sibling"]);
        assert_eq!(names(48), ["method"]);
        let lines: Vec<_> = runtime.frames(25).into_iter().map(|(_, line)| line).collect();
        assert_eq!(lines, [Some(5), None, None, Some(71)]);
        assert_eq!(runtime.lost(), 0);
    }
}

#[test]
fn an_inlined_method_does_not_go_into_the_code_that_is_about_to_be_replaced() {
    let mut runtime = Runtime::new();
    runtime.load(1, "old", 0, 64);
    runtime.send(16, &Fields { method: 3, parent: 2, name: "part", offset: 8, size: 8, ..Fields::default() });
    assert_eq!(runtime.frames(8).len(), 1, "it belongs to method 2");
    runtime.load(2, "new", 0, 64);
    let names: Vec<String> = runtime.frames(8).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["new", "part"]);
}

#[test]
fn regions_of_one_method_have_its_first_name_and_their_own_lines() {
    let mut runtime = Runtime::new();
    runtime.send(
        13,
        &Fields {
            method: 5,
            name: "first",
            offset: 0,
            size: 16,
            source: Some("a.src"),
            lines: &[(16, 1)],
            ..Fields::default()
        },
    );
    runtime.send(
        13,
        &Fields {
            method: 5,
            name: "ignored",
            offset: 100,
            size: 16,
            source: Some("b.src"),
            lines: &[(16, 9)],
            ..Fields::default()
        },
    );
    assert_eq!(runtime.frames(4), [("first".to_owned(), Some(1))]);
    assert_eq!(runtime.frames(104), [("first".to_owned(), Some(9))]);
    runtime.send(14, &Fields { method: 5, ..Fields::default() });
    assert_eq!((runtime.name(4), runtime.name(104)), (None, None));
}

#[test]
fn an_overlap_ends_the_older_method_in_all_its_regions() {
    let mut runtime = Runtime::new();
    runtime.load(1, "old", 0, 32);
    runtime.load(1, "old", 100, 32);
    runtime.load(2, "other", 200, 32);
    runtime.load(3, "new", 16, 32);
    let names = [0, 20, 110, 210].map(|offset| runtime.name(offset));
    assert_eq!(names, [None, Some("new".into()), None, Some("other".into())]);
}

#[test]
fn an_update_announces_the_region_again_without_its_lines_and_inlines() {
    for number in [15, 17] {
        let mut runtime = Runtime::new();
        runtime.send(
            13,
            &Fields {
                method: 1,
                name: "f",
                offset: 32,
                size: 32,
                source: Some("a.src"),
                lines: &[(32, 3)],
                ..Fields::default()
            },
        );
        runtime.send(16, &Fields { method: 2, parent: 1, name: "part", offset: 40, size: 8, ..Fields::default() });
        assert_eq!(runtime.frames(40).len(), 2);
        runtime.code[40..44].fill(0xcc);
        let mut update = vec![0; 72];
        let address = (runtime.base() + 40).to_ne_bytes();
        if number == 15 {
            update[0] = 1;
            update[16..24].copy_from_slice(&address);
            update[24] = 4;
        } else {
            update[..8].copy_from_slice(&address);
            update[8] = 4;
            update[12] = 1;
        }
        runtime.send_bytes(number, &update);
        assert_eq!(runtime.frames(40), [("f".to_owned(), None)]);
        let (map, _) = runtime.read();
        let hit = map.lookup(Avma(runtime.base() + 40), MonoNs(u64::MAX >> 1)).unwrap();
        assert_eq!((hit.offset, hit.size()), (8, 32), "the whole region");
        let bytes = std::fs::read(runtime.directory.path().join("jit-77.dump")).unwrap();
        assert_eq!(bytes[bytes.len() - 32..], runtime.code[32..64], "with its new bytes");
    }
}

#[test]
fn a_class_that_is_the_engine_s_name_is_a_module() {
    let mut runtime = Runtime::new();
    let fields = Fields {
        method: 1,
        name: "fib",
        size: 8,
        class: Some("wasmtime"),
        source: Some("<unknown wasm filename>"),
        ..Fields::default()
    };
    runtime.send(13, &fields);
    let (map, _) = runtime.read();
    let hit = map.lookup(Avma(runtime.base()), MonoNs(u64::MAX >> 1)).unwrap();
    assert_eq!((hit.name(), hit.module().map(|module| &**module), hit.source()), ("fib", Some("wasmtime"), None));
}

#[test]
fn what_the_api_rejects_is_lost_alone() {
    let mut runtime = Runtime::new();
    let good = Fields { method: 1, name: "f", size: 8, ..Fields::default() };
    runtime.send(13, &Fields { method: 0, ..good });
    runtime.send(13, &Fields { size: 0, ..good });
    runtime.send(13, &Fields { size: u32::MAX, ..good });
    for at in [8, 16] {
        let mut bytes = runtime.structure(13, &good, &[]);
        bytes[at..at + 8].fill(0);
        runtime.send_bytes(13, &bytes);
    }
    runtime.send(16, &Fields { parent: 0, ..good });
    runtime.send(15, &good);
    assert_eq!(runtime.lost(), 7);
    runtime.send(13, &good);
    assert_eq!(runtime.name(0).as_deref(), Some("f"));
}

#[test]
fn a_bad_pointer_costs_what_it_points_to() {
    let mut runtime = Runtime::new();
    let good = Fields { method: 1, name: "f", size: 8, lines: &[(8, 1)], ..Fields::default() };
    for number in [13, 14, 15, 16, 17, 21, 22] {
        runtime.collector.event(number, BAD).unwrap();
        runtime.collector.event(number, 0).unwrap();
    }
    assert_eq!(runtime.lost(), 14);
    // Name and code are needed; lines, class and source are not.
    for (at, named) in [(8, false), (16, false), (32, true), (48, true), (56, true)] {
        let mut bytes = runtime.structure(13, &good, &[]);
        bytes[at..at + 8].copy_from_slice(&BAD.to_ne_bytes());
        let lost = runtime.lost();
        runtime.send_bytes(13, &bytes);
        assert_eq!(runtime.name(0).is_some(), named, "pointer at {at}");
        assert_eq!(runtime.lost(), lost + 1);
        runtime.send(14, &good);
    }
}

#[test]
fn legacy_and_unknown_events_write_nothing() {
    let mut runtime = Runtime::new();
    let before = runtime.read().1;
    for number in [0, 1, 2, 3, 12, 18, 19, 20, 23, 1000, u32::MAX] {
        runtime.collector.event(number, BAD).unwrap();
    }
    assert_eq!(runtime.read().1, before);
}

proptest! {
    /// Any structure, whose pointers are good, near the end of memory, or anything: nothing crashes, and what is
    /// written stays a dump in which every record is whole.
    #[test]
    fn any_events_leave_a_whole_dump(
        events in prop::collection::vec(
            (
                prop::sample::select(vec![2_u32, 13, 14, 15, 16, 17, 19, 21, 22, 23]),
                prop::collection::vec(any::<u8>(), 72),
                prop::collection::vec((0_usize..9, 0_u64..5000), 0..9),
                any::<bool>(),
            ),
            1..40,
        ),
    ) {
        let mut runtime = Runtime::new();
        for (number, mut bytes, good, small) in events {
            if small {
                // Numbers that meet each other, and sizes that fit.
                let words = [(0, 0x07), (4, 0x07), (24, 0x3f), (28, 0x0f)];
                for (at, mask) in words {
                    bytes[at] &= mask;
                    bytes[at + 1..at + 4].fill(0);
                }
            }
            for (field, offset) in good {
                bytes[field * 8..field * 8 + 8].copy_from_slice(&(runtime.base() + offset % 4096).to_ne_bytes());
            }
            runtime.send_bytes(number, &bytes);
        }
        let (_, stats) = runtime.read();
        prop_assert_eq!(stats.corrupt_bytes + stats.skipped.bad_record + stats.records.unknown, 0);
    }

    /// A good structure with one byte changed costs at most what it announced.
    #[test]
    fn a_flipped_byte_costs_its_event(at in 0_usize..64, flip in 1_u8.., number in prop::sample::select(vec![13_u32, 16, 21, 22])) {
        let mut runtime = Runtime::new();
        runtime.load(9, "around", 1000, 100);
        let fields = Fields {
            method: 1,
            parent: 9,
            name: "f",
            offset: 1010,
            size: 8,
            lines: &[(4, 1), (8, 2)],
            class: Some("C"),
            source: Some("s"),
            module: Some("m"),
        };
        let table = [4_u32, 1, 8, 2].map(u32::to_ne_bytes).concat();
        let mut bytes = runtime.structure(number, &fields, &table);
        bytes[at] ^= flip;
        runtime.send_bytes(number, &bytes);
        // A number that no changed byte makes of the others: of one method there would be two regions, under its first name.
        runtime.load(0x5050_5050, "after", 3000, 16);
        let name = runtime.name(3000);
        prop_assert_eq!(name.as_deref(), Some("after"));
    }
}
