use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use proptest::prelude::*;

use super::*;
use crate::profile::{Profile, ProfileMeta, SampledEvent, Task, Top, label_of};
use crate::symbol::{Frame, FrameKind, Module, SourceLine, Tier};
use jitprof_common::units::{MonoNs, Pid, Tid};

const START_S: u64 = 1_700_006_400;

/// Windows of a host, as one profile: a sample of each function every ten seconds.
fn profile(minutes: u64, functions: &[(&str, u64)]) -> Profile {
    labelled([("comm", "node"), ("unit", "web.service"), ("runtime", "node")], minutes, functions)
}

fn labelled(labels: [(&'static str, &str); 3], minutes: u64, functions: &[(&str, u64)]) -> Profile {
    let meta = ProfileMeta {
        title: "t".to_owned(),
        start_time: UNIX_EPOCH + Duration::from_secs(START_S),
        start: MonoNs(0),
        duration: Duration::from_secs(minutes * 60),
        frequency_hz: NonZeroU32::new(100).unwrap(),
        event: SampledEvent::CpuClock,
    };
    let mut profile = Profile::new(meta, 1_000_000);
    let task = profile.task(Task {
        pid: Pid(7),
        process_start: 1,
        tid: Tid(8),
        comm: Arc::from("worker"),
        labels: Arc::new(labels.into_iter().collect()),
    });
    for (name, samples) in functions {
        let mut stack = profile.stack_root();
        for (name, kind) in [("main", FrameKind::Native), (name, FrameKind::Jit)] {
            let frame = profile.intern_frame(&Frame {
                name: (*name).into(),
                kind,
                tier: (kind == FrameKind::Jit).then_some(Tier::Optimized),
                inlined: false,
                module: Some(Arc::new(Module { path: "/usr/bin/node".into(), build_id: Some("ab".into()) })),
                source: Some(SourceLine::new("a.js".into(), 3)),
                address: 0x1000 + *samples,
            });
            stack = profile.push(stack, frame);
        }
        for second in (0..minutes * 60).step_by(10) {
            profile.add(MonoNs(second * 1_000_000_000), stack, task, *samples);
        }
    }
    profile
}

/// Writes a host's profile into a dataset.
fn put(store: &Store, host: &str, version: &str, profile: &Profile) {
    let add = BTreeMap::from([("version".to_owned(), version.to_owned())]);
    let (frames, numbers) = frames_of(profile);
    let rows = rows_of(profile, 60_000, |task| Tags::of(task, host, &add), &numbers);
    let part = Part { host: host.to_owned(), slot_ms: START_S * 1000, first: 1 };
    store.put(&part.path(Table::Frames, 0), write_frames(&frames).unwrap()).unwrap();
    for (number, file) in write_samples(&rows, 1 << 20).unwrap().into_iter().enumerate() {
        store.put(&part.path(Table::Samples, number), file).unwrap();
    }
}

fn at(second: u64) -> Option<std::time::SystemTime> {
    Some(UNIX_EPOCH + Duration::from_secs(START_S + second))
}

#[test]
fn a_profile_becomes_rows_by_step_and_comes_back_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&Location::Directory(folder.path().to_owned()), &[]).unwrap();
    put(&store, "web1", "1.0", &profile(10, &[("f", 3), ("g", 1)]));
    put(&store, "web2", "1.1", &profile(10, &[("f", 5)]));
    let read = load(&store, None, &DatasetQuery::default()).unwrap().unwrap();
    assert_eq!(read.total(), 60 * 9);
    assert_eq!((read.meta().duration, read.meta().frequency_hz.get()), (Duration::from_secs(600), 100));
    let top = Top::of(&read);
    let row = top.rows.iter().find(|row| row.function.name == "f").unwrap();
    assert_eq!((row.own.samples, row.own.cpu_ns), (480, 480 * 10_000_000));
    assert_eq!((row.function.file, row.function.module), (Some("a.js"), Some("/usr/bin/node")));
    let original = profile(10, &[("f", 3), ("g", 1)]);
    let frames: Vec<_> = original.frame_ids().map(|id| FrameRow::of(&original.frame(id))).collect();
    let again: Vec<_> = read.frame_ids().map(|id| FrameRow::of(&read.frame(id))).collect();
    assert!(frames.iter().all(|frame| again.contains(frame)), "{again:?}");

    // A time of three minutes, one host, one version; and nothing.
    let total = |query: &DatasetQuery| load(&store, None, query).unwrap().map_or(0, |profile| profile.total());
    let mut query = DatasetQuery { from: at(120), to: at(300), ..DatasetQuery::default() };
    assert_eq!(total(&query), 3 * 6 * 9);
    query.filter.want("host", "web2");
    assert_eq!(total(&query), 3 * 6 * 5);
    query.filter.want("version", "1.0");
    assert_eq!(total(&query), 0);
    let mut query = DatasetQuery::default();
    for (name, value) in [("service", "web.service"), ("runtime", "node"), ("pid", "7"), ("thread", "worker")] {
        query.filter.want(name, value);
    }
    assert_eq!(total(&query), 60 * 9);
    let task = read.rows()[0].task;
    assert_eq!(label_of(read.task_of(task), "host").as_deref(), Some("web1"));
    assert_eq!(total(&DatasetQuery { from: at(86_400), ..DatasetQuery::default() }), 0);
}

/// Node 24 calls its main thread so.
#[test]
fn a_program_is_found_by_the_name_of_its_file_too() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&Location::Directory(folder.path().to_owned()), &[]).unwrap();
    let labels = [("comm", "MainThread"), ("exe", "/usr/bin/node"), ("runtime", "node")];
    put(&store, "web1", "1.0", &labelled(labels, 10, &[("f", 3)]));
    let total = |comm: &str| {
        let mut query = DatasetQuery::default();
        query.filter.want("comm", comm);
        load(&store, None, &query).unwrap().map_or(0, |profile| profile.total())
    };
    assert_eq!(["node", "MainThread", "python"].map(total), [60 * 3, 60 * 3, 0]);
}

#[test]
fn one_file_is_read_alone_and_a_file_that_is_sent_again_takes_its_own_place() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&Location::Directory(folder.path().to_owned()), &[]).unwrap();
    put(&store, "web1", "1.0", &profile(1, &[("f", 3)]));
    put(&store, "web1", "1.0", &profile(1, &[("f", 3)]));
    put(&store, "web2", "1.0", &profile(1, &[("g", 4)]));
    let files = store.list("samples", &|_| true).unwrap();
    assert_eq!(files.len(), 2);
    let only = load(&store, Some(&files[1].path), &DatasetQuery::default()).unwrap().unwrap();
    assert_eq!(only.total(), 24);
    // What others put there, and what is not finished, is no part of it.
    let below = folder.path().join("samples");
    std::fs::write(below.join("_SUCCESS"), "").unwrap();
    std::fs::write(below.join(".x.parquet.partial"), "").unwrap();
    std::os::unix::fs::symlink(&below, below.join("loop")).unwrap();
    assert_eq!(load(&store, None, &DatasetQuery::default()).unwrap().unwrap().total(), 42);
}

#[test]
fn frames_that_are_missing_and_files_that_are_damaged_are_said() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&Location::Directory(folder.path().to_owned()), &[]).unwrap();
    put(&store, "web1", "1.0", &profile(1, &[("f", 3)]));
    std::fs::remove_dir_all(folder.path().join("frames")).unwrap();
    let read = load(&store, None, &DatasetQuery::default()).unwrap().unwrap();
    assert!(Top::of(&read).rows[0].function.name.ends_with("is not in the dataset]"));
    std::fs::write(folder.path().join("samples/a.parquet"), "PAR1, but not").unwrap();
    let error = load(&store, None, &DatasetQuery::default()).unwrap_err().to_string();
    assert_eq!(error, "samples/a.parquet: it is no Parquet file, or not whole");
}

#[test]
fn rows_beyond_the_target_begin_a_new_file() {
    let tags = Arc::new(Tags { host: "h".to_owned(), ..Tags::default() });
    let row = |at: i64| SampleRow {
        time_us: at,
        length_ms: 1,
        tags: Arc::clone(&tags),
        stack: Arc::from([at.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64.cast_signed())]),
        samples: 1,
        cpu_ns: 1,
    };
    let rows: Vec<_> = (0..MAX_GROUP_ROWS as i64 + 1).map(row).collect();
    assert_eq!(write_samples(&rows, 1 << 30).unwrap().len(), 1);
    let files = write_samples(&rows, 1 << 12).unwrap();
    assert_eq!(files.len(), 2);
    assert_eq!(files, write_samples(&rows, 1 << 12).unwrap(), "the same rows, the same files");
    assert!(write_samples(&[], 1).unwrap().is_empty());
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), "[a-z]{1,3}", any::<String>()]
}

fn sample() -> impl Strategy<Value = SampleRow> {
    let tags =
        (text(), text(), text(), text(), text(), any::<i32>(), prop::collection::btree_map(text(), text(), 0..4))
            .prop_map(|(host, service, version, comm, thread, pid, labels)| {
                Arc::new(Tags { host, service, version, comm, thread, pid, labels })
            });
    let stack = prop::collection::vec(prop_oneof![0..5_i64, any::<i64>()], 0..12);
    (any::<i64>(), any::<i32>(), tags, stack, any::<i64>(), any::<i64>()).prop_map(
        |(time_us, length_ms, tags, stack, samples, cpu_ns)| SampleRow {
            time_us,
            length_ms,
            tags,
            stack: stack.into(),
            samples,
            cpu_ns,
        },
    )
}

fn frame() -> impl Strategy<Value = FrameRow> {
    let texts = (text(), text(), text(), text(), text(), text());
    (any::<i64>(), any::<bool>(), any::<i32>(), texts).prop_map(
        |(frame, inlined, line, (name, kind, tier, module, build_id, file))| FrameRow {
            frame,
            name,
            kind,
            tier,
            inlined,
            module,
            build_id,
            file,
            line,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn rows_written_are_the_rows_read(rows in prop::collection::vec(sample(), 1..80)) {
        let files = write_samples(&rows, 1 << 20).unwrap();
        prop_assert_eq!(files.len(), 1);
        prop_assert_eq!(load::sample_rows(&files[0]).unwrap(), rows);
    }

    #[test]
    fn frames_written_are_the_frames_read(rows in prop::collection::vec(frame(), 1..80)) {
        prop_assert_eq!(load::frame_rows(&write_frames(&rows).unwrap()).unwrap(), rows);
    }

    /// Whatever stands in a file, reading it ends, with rows or with an error.
    #[test]
    fn a_file_with_changed_bytes_is_read_or_refused(
        rows in prop::collection::vec(sample(), 1..40),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut file = write_samples(&rows, 1 << 20).unwrap().remove(0);
        for (place, byte) in changes {
            let at = place.index(file.len());
            file[at] = byte;
        }
        if let Some(cut) = cut {
            file.drain(..cut.index(file.len()));
        }
        if let Err(error) = load::sample_rows(&file) {
            prop_assert!(matches!(error, DatasetError::Damaged { .. }), "{}", error);
        }
    }
}
