use std::collections::BTreeMap;
use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use prost::Message;

use super::super::proto::{self, Label, Line, Location, Mapping, ProtoFunction, Sample, ValueType};
use super::*;
use crate::output::pprof::read::PprofFile;
use crate::output::pprof::sources::{ReadLimits, unpack};
use crate::profile::{FrameId, Row};

fn written(profile: &Profile) -> Vec<u8> {
    bytes(profile, Format::Pprof, &OutputOptions::default())
}

fn raw(gzipped: &[u8]) -> Vec<u8> {
    let mut raw = Vec::new();
    GzDecoder::new(gzipped).read_to_end(&mut raw).unwrap();
    raw
}

/// Everything that a profile says, by value.
fn values(profile: &Profile) -> Vec<(Task, Vec<String>, u64, u64)> {
    let mut frames: Vec<FrameId> = Vec::new();
    let value = |row: Row| {
        profile.frames_of(row.stack, &mut frames);
        let frames = frames.iter().map(|&id| format!("{:?}", profile.frame(id))).collect();
        (profile.task_of(row.task).clone(), frames, row.count, row.cpu_ns)
    };
    profile.rows_without_time().into_iter().map(value).collect()
}

fn labelled(tid: u32, labels: &[(&str, &str)]) -> Task {
    Task { labels: Arc::new(labels.iter().copied().collect()), ..task(tid, "node") }
}

#[test]
fn jitprofs_own_file_comes_back_as_it_was() {
    let mut samples = service();
    samples.push(TestSample {
        time_ns: 0,
        task: labelled(1, &[("comm", "node"), ("container", "c1"), ("unit", "a.service")]),
        frames: vec![
            inlined(jit("inlined elsewhere", Some(Tier::Optimized), 0x10, 3)),
            inlined(native("std::swap", "/lib/libc.so.6", 0x44)),
            jit("*marked already", Some(Tier::Optimized), 0x20, 3),
            of_kind(FrameKind::Span, "GET /"),
        ],
        count: 3,
    });
    let mut other = samples[0].clone();
    other.task.process_start = u64::MAX - 4;
    samples.push(other);
    let profile = profile(&samples);
    let file = written(&profile);
    let back = read_pprof(&*file).unwrap();
    assert_eq!(values(&back), values(&profile));
    let (meta, back_meta) = (profile.meta(), back.meta());
    assert_eq!((&back_meta.title, back_meta.start_time), (&meta.title, meta.start_time));
    assert_eq!((back_meta.duration, back_meta.frequency_hz), (meta.duration, meta.frequency_hz));
    assert_eq!(back_meta.event, meta.event);
    assert_eq!(written(&back), file);
    assert_eq!(values(&read_pprof(&*raw(&file)).unwrap()), values(&profile), "without gzip");
}

#[test]
fn frequencies_and_events_come_back() {
    for (hz, event) in [(19, SampledEvent::Cycles), (99, SampledEvent::CpuClock), (999_983, SampledEvent::Cycles)] {
        let meta = ProfileMeta { frequency_hz: NonZeroU32::new(hz).unwrap(), event, ..meta() };
        let mut profile = Profile::new(meta, u64::MAX);
        let (stack, task) = (profile.stack_root(), profile.task(task(1, "x")));
        profile.add(MonoNs(0), stack, task, 5);
        let back = read_pprof(&*written(&profile)).unwrap();
        assert_eq!((back.meta().frequency_hz.get(), back.meta().event), (hz, event));
        assert_eq!(values(&back), values(&profile));
    }
}

#[test]
fn span_time_comes_back_as_span_time() {
    let meta =
        ProfileMeta { event: SampledEvent::SpanTime, frequency_hz: NonZeroU32::new(1_000_000_000).unwrap(), ..meta() };
    let mut profile = Profile::new(meta, u64::MAX);
    let (stack, task) = (profile.stack_root(), profile.task(task(1, "x")));
    profile.add(MonoNs(0), stack, task, 123_456);
    let back = read_pprof(&*written(&profile)).unwrap();
    assert_eq!(back.meta().event, SampledEvent::SpanTime);
    assert_eq!((back.total(), written(&back)), (123_456, written(&profile)));
}

/// A file as the Go runtime writes it: sparse ids, unpacked numbers allowed, no labels but strings, leaf first.
fn go_file() -> Vec<u8> {
    let strings = ["", "samples", "count", "cpu", "nanoseconds", "main.main", "main.go", "runtime.mcall", "/bin/srv"];
    let number = |text: &str| i64::try_from(strings.iter().position(|known| *known == text).unwrap()).unwrap();
    let value = |kind, unit| ValueType { r#type: number(kind), unit: number(unit) };
    let function = |id, name| ProtoFunction {
        id,
        name: number(name),
        system_name: number(name),
        filename: number("main.go"),
        kind: 0,
    };
    let location = |id, lines: &[(u64, i64)]| Location {
        id,
        mapping_id: 7,
        address: 0x40_0000 + id,
        line: lines.iter().map(|&(function_id, line)| Line { function_id, line, column: 0 }).collect(),
        inlined: false,
    };
    let mapping = Mapping { id: 7, filename: number("/bin/srv"), has_functions: true, ..Mapping::default() };
    let tables = proto::Profile {
        sample_type: vec![value("samples", "count"), value("cpu", "nanoseconds")],
        mapping: vec![mapping],
        location: vec![location(90, &[(11, 5), (12, 9)]), location(3, &[(12, 10)]), location(4, &[])],
        function: vec![function(12, "main.main"), function(11, "runtime.mcall")],
        string_table: strings.iter().map(|&text| text.to_owned()).collect(),
        time_nanos: 1_700_000_000_000_000_000,
        duration_nanos: 2_000_000_000,
        period_type: Some(value("cpu", "nanoseconds")),
        period: 10_000_000,
        ..proto::Profile::default()
    };
    let label = Label { key: number("main.go"), str: number("/bin/srv"), num: 0, num_unit: 0 };
    let samples = [
        Sample { location_id: vec![90, 3], value: vec![2, 20_000_000], label: vec![label] },
        Sample { location_id: vec![4, 3], value: vec![1, 10_000_000], label: vec![] },
    ];
    let mut file = tables.encode_to_vec();
    for sample in samples {
        prost::encoding::message::encode(proto::SAMPLE_TAG, &sample, &mut file);
    }
    file
}

#[test]
fn another_programs_file_is_read_for_what_it_says() {
    let profile = read_pprof(&*go_file()).unwrap();
    let rows = values(&profile);
    assert_eq!(rows.iter().map(|row| (row.2, row.3)).collect::<Vec<_>>(), [(1, 10_000_000), (2, 20_000_000)]);
    assert_eq!(profile.meta().frequency_hz.get(), 100);
    assert_eq!(profile.meta().duration, Duration::from_secs(2));
    let folded = string(&profile, Format::Folded, &OutputOptions::default());
    assert_eq!(folded, "srv;main.main;[srv] 1\nsrv;main.main;main.main;runtime.mcall 2\n");
    assert_eq!(rows[1].0.labels.get("main.go").map(|value| &**value), Some("/bin/srv"));
}

#[test]
fn what_measures_no_time_and_differences_are_refused_in_a_sentence() {
    let mut heap = Vec::new();
    let strings = ["", "inuse_space", "bytes"].map(str::to_owned).to_vec();
    let sample_type = vec![ValueType { r#type: 1, unit: 2 }];
    proto::Profile { sample_type, string_table: strings, ..proto::Profile::default() }.encode(&mut heap).unwrap();
    let error = read_pprof(&*heap).unwrap_err().to_string();
    assert_eq!(error, "it has neither CPU time nor counts of samples, but inuse_space/bytes");

    let mut file = go_file();
    let sample = Sample { location_id: vec![3], value: vec![-1, -10_000_000], label: vec![] };
    prost::encoding::message::encode(proto::SAMPLE_TAG, &sample, &mut file);
    assert!(matches!(read_pprof(&*file), Err(PprofError::Negative { .. })));
}

#[test]
fn an_error_names_field_and_place() {
    let mut file = go_file();
    let at = file.len();
    let sample = Sample { location_id: vec![5], value: vec![1, 1], label: vec![] };
    prost::encoding::message::encode(proto::SAMPLE_TAG, &sample, &mut file);
    let error = read_pprof(&*file).unwrap_err().to_string();
    assert_eq!(error, format!("it is damaged: sample at byte {}: there is no location 5", at + 2));
    let error = read_pprof(&b"#!/bin/sh\n"[..]).unwrap_err().to_string();
    assert!(error.starts_with("it is no pprof file, or damaged: profile at byte 1: "), "{error}");
    assert!(read_pprof(&b""[..]).is_err());
}

#[test]
fn a_file_that_unpacks_without_end_is_refused() {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    gzip.write_all(&vec![0_u8; 4 << 20]).unwrap();
    let bomb = gzip.finish().unwrap();
    assert!(bomb.len() < 8192);
    let limits = ReadLimits { bytes: 1 << 20, ..ReadLimits::FILE };
    let mut raw = Vec::new();
    let result = unpack(&*bomb, &limits, &mut raw);
    assert!(matches!(result, Err(PprofError::TooLarge { limit_bytes: 1_048_576 })));
    assert!(raw.capacity() <= 4 << 20);
    // Several members, as `cat a.gz b.gz` makes them, count together.
    let result = unpack(&*[&*bomb, &*bomb].concat(), &ReadLimits { bytes: 6 << 20, ..limits }, &mut raw);
    assert!(matches!(result, Err(PprofError::TooLarge { .. })));
}

#[test]
fn labels_that_would_contradict_the_task_are_left_out() {
    let samples = [TestSample {
        time_ns: 0,
        task: labelled(7, &[("thread", "other-9"), ("pid", "1"), ("process_start", "x"), ("unit", "u")]),
        frames: Vec::new(),
        count: 1,
    }];
    let back = read_pprof(&*written(&profile(&samples))).unwrap();
    let task = back.task_of(back.rows()[0].task).clone();
    assert_eq!(task, labelled(7, &[("unit", "u")]));
}

#[test]
fn frames_that_multiply_are_bounded() {
    // One location of many lines, called from itself many times, in many samples.
    let lines = vec![Line { function_id: 1, line: 1, column: 0 }; 10_000];
    let location = vec![Location { id: 1, line: lines, ..Location::default() }];
    let sample_type = vec![ValueType { r#type: 1, unit: 2 }];
    let strings = ["", "samples", "count", "f"].map(str::to_owned).to_vec();
    let function = vec![ProtoFunction { id: 1, name: 3, ..ProtoFunction::default() }];
    let tables = proto::Profile { sample_type, location, function, string_table: strings, ..proto::Profile::default() };
    let mut file = tables.encode_to_vec();
    let sample = Sample { location_id: vec![1; 1000], value: vec![1], label: vec![] };
    prost::encoding::message::encode(proto::SAMPLE_TAG, &sample, &mut file);
    let profile = read_pprof(&*file).unwrap();
    let mut frames = Vec::new();
    profile.frames_of(profile.rows()[0].stack, &mut frames);
    assert_eq!(frames.len(), 20_001);
    assert_eq!(profile.frame(frames[0]).name, "[stack too deep to be read]");

    let limits = ReadLimits { frames: 100_000, ..ReadLimits::FILE };
    for _ in 0..20 {
        prost::encoding::message::encode(proto::SAMPLE_TAG, &sample, &mut file);
    }
    let parsed = PprofFile::parse(&file, limits).unwrap();
    let result = parsed.merge_into(&mut Profile::new(meta(), u64::MAX), MonoNs(0), |_| true);
    assert!(matches!(result, Err(PprofError::TooMany { .. })));
}

#[test]
fn a_file_cut_or_changed_at_any_byte_crashes_nothing() {
    // A function in a file with a line, inlined and in its own right, of a module and of none, and a stack without frames.
    let samples = service();
    let mut few = vec![samples[7].clone(), samples[9].clone()];
    few[0].frames.extend([samples[5].frames[3].clone(), samples[0].frames[5].clone()]);
    few[1].task = labelled(4242, &[("unit", "u")]);
    let gzipped = written(&profile(&few));
    let plain = raw(&gzipped);
    for file in [&gzipped, &plain] {
        for cut in 0..file.len() {
            let read = read_pprof(&file[..cut]);
            assert!(file == &plain || read.is_err(), "gzip has a sum of its own");
        }
    }
    for at in 0..plain.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut changed = plain.clone();
            changed[at] ^= flip;
            if let Ok(profile) = read_pprof(&*changed) {
                assert!(profile.total() == 0 || !written(&profile).is_empty());
            }
        }
    }
}

fn name() -> BoxedStrategy<String> {
    prop_oneof![
        "[a-d]",
        "\\*[ab]",
        Just("std::vector<int; 3>".to_owned()),
        Just("ünïcode\\n".to_owned()),
        Just("x".repeat(5000)),
        Just("[empty]".to_owned()),
    ]
    .boxed()
}

/// A text that outputs have to escape.
fn awkward() -> BoxedStrategy<String> {
    prop_oneof![name(), Just(String::new()), Just(" a\n".to_owned()), "\\PC{0,3}", "[\\x00-\\x20]{0,2}"].boxed()
}

fn frames(text: fn() -> BoxedStrategy<String>) -> impl Strategy<Value = Frame> {
    let kinds = [
        FrameKind::Kernel,
        FrameKind::Native,
        FrameKind::Jit,
        FrameKind::Interpreter,
        FrameKind::Builtin,
        FrameKind::Span,
        FrameKind::Note,
    ];
    let tiers = [None, Some(Tier::Interpreted), Some(Tier::Baseline), Some(Tier::Mid), Some(Tier::Optimized)];
    let module = proptest::option::of((text(), proptest::option::of("[0-9a-f]{1,2}")));
    let source = proptest::option::of((name(), 0_u32..3, 0_u32..3));
    let address = prop_oneof![0_u64..3, Just(u64::MAX)];
    (text(), 0..kinds.len(), 0..tiers.len(), any::<bool>(), module, source, address).prop_map(
        move |(name, kind, tier, inlined, module, source, address)| Frame {
            name: Arc::from(name),
            kind: kinds[kind],
            tier: tiers[tier],
            inlined,
            module: module
                .map(|(path, build_id)| Arc::new(Module { path: Arc::from(path), build_id: build_id.map(Arc::from) })),
            source: source.map(|(file, line, column)| {
                let column = NonZeroU32::new(column);
                SourceLine { file: Arc::from(file), line, column }
            }),
            address,
        },
    )
}

fn tasks(text: fn() -> BoxedStrategy<String>) -> impl Strategy<Value = Task> {
    let keys = prop_oneof![Just("comm"), Just("container"), Just("unit"), Just("a b")];
    let labels = proptest::collection::vec((keys, text()), 0..4);
    (0_u32..3, prop_oneof![Just(0), any::<u64>()], 0_u32..3, text(), labels).prop_map(
        |(pid, process_start, tid, comm, labels)| Task {
            pid: Pid(pid),
            process_start,
            tid: Tid(tid),
            comm: Arc::from(comm),
            labels: Arc::new(labels.iter().map(|(key, value)| (*key, value.as_str())).collect()),
        },
    )
}

fn samples(text: fn() -> BoxedStrategy<String>) -> impl Strategy<Value = Vec<TestSample>> {
    let stack = proptest::collection::vec(frames(text), 0..5);
    let sample =
        (tasks(text), stack, 1_u64..5).prop_map(|(task, frames, count)| TestSample { time_ns: 0, task, frames, count });
    proptest::collection::vec(sample, 1..12)
}

/// Totals by name, which survive whatever outputs do to names.
fn totals(profile: &Profile) -> (u64, u64, BTreeMap<(u32, u32), u64>) {
    let mut by_task = BTreeMap::new();
    let mut cpu_ns = 0;
    for row in profile.rows_without_time() {
        let task = profile.task_of(row.task);
        *by_task.entry((task.pid.0, task.tid.0)).or_default() += row.count;
        cpu_ns += row.cpu_ns;
    }
    (profile.total(), cpu_ns, by_task)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn written_read_and_written_again_gives_equal_bytes(samples in samples(name)) {
        let profile = profile(&samples);
        let file = written(&profile);
        let back = read_pprof(&*file).unwrap();
        prop_assert_eq!(totals(&back), totals(&profile));
        prop_assert_eq!(raw(&written(&back)), raw(&file));
    }

    #[test]
    fn awkward_names_come_back_as_outputs_show_them(samples in samples(awkward)) {
        let profile = profile(&samples);
        let once = read_pprof(&*written(&profile)).unwrap();
        prop_assert_eq!(totals(&once), totals(&profile));
        let file = written(&once);
        let twice = read_pprof(&*file).unwrap();
        prop_assert_eq!(values(&twice), values(&once));
        prop_assert_eq!(raw(&written(&twice)), raw(&file));
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(profile) = read_pprof(&*bytes) {
            prop_assert!(profile.overflow().is_empty());
        }
    }
}
