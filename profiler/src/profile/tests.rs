use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use proptest::prelude::*;

use super::*;
use crate::symbol::{Frame, FrameKind, Module, SourceLine};
use jitprof_common::units::{MonoNs, Pid, Tid};

fn meta() -> ProfileMeta {
    ProfileMeta {
        title: "test".to_owned(),
        start_time: SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000),
        start: MonoNs(1_000),
        duration: Duration::from_secs(1),
        frequency_hz: NonZeroU32::new(99).unwrap(),
        event: SampledEvent::CpuClock,
    }
}

fn frame(name: &str, address: u64) -> Frame {
    Frame {
        name: Arc::from(name),
        kind: FrameKind::Native,
        tier: None,
        inlined: false,
        module: Some(Arc::new(Module { path: Arc::from("/bin/x"), build_id: None })),
        source: Some(SourceLine::new(Arc::from("x.c"), 3)),
        address,
    }
}

fn task(tid: u32) -> Task {
    Task { pid: Pid(7), process_start: 1, tid: Tid(tid), comm: Arc::from("x"), labels: Arc::default() }
}

fn push_all(profile: &mut Profile, names: &[&str]) -> StackId {
    names.iter().fold(profile.stack_root(), |prefix, name| {
        let frame = profile.intern_frame(&frame(name, 0));
        profile.push(prefix, frame)
    })
}

/// Rows by value: what they say without the handles.
fn values(profile: &Profile) -> Vec<(u64, Task, Vec<String>, u64)> {
    let mut frames = Vec::new();
    let value = |row: Row| {
        profile.frames_of(row.stack, &mut frames);
        let names = frames.iter().map(|&id| profile.frame(id).name.to_owned()).collect();
        (row.time.0, profile.task_of(row.task).clone(), names, row.count)
    };
    profile.rows().into_iter().map(value).collect()
}

#[test]
fn a_copied_frame_says_the_same_whatever_numbers_its_texts_have_there() {
    let module = Arc::new(Module { path: Arc::from("/bin/y"), build_id: Some(Arc::from("ab12")) });
    let source = SourceLine { column: NonZeroU32::new(5), ..SourceLine::new(Arc::from("y.c"), 9) };
    let one = Frame { module: Some(module), source: Some(source), inlined: true, ..frame("one", 17) };
    let two = Frame { module: None, source: None, ..frame("two", 0) };
    let (mut from, mut to) = (Profile::new(meta(), u64::MAX), Profile::new(meta(), u64::MAX));
    let known = to.intern_frame(&one);
    for own in [&two, &frame("x", 1), &one] {
        let id = from.intern_frame(own);
        let copy = to.copy_frame(&from, id);
        assert_eq!(to.frame(copy), from.frame(id));
        assert_eq!((copy == known, to.copy_frame(&from, id)), (*own == one, copy));
    }
}

#[test]
fn equal_frames_and_stacks_have_one_handle() {
    let mut profile = Profile::new(meta(), u64::MAX);
    let first = push_all(&mut profile, &["main", "work"]);
    let again = push_all(&mut profile, &["main", "work"]);
    let sibling = push_all(&mut profile, &["main", "rest"]);
    assert_eq!(first, again);
    assert_ne!(first, sibling);
    assert_eq!(profile.pop(first).unwrap().0, profile.pop(sibling).unwrap().0);
}

#[test]
fn frames_come_back_as_they_went_in() {
    let mut profile = Profile::new(meta(), u64::MAX);
    let id = profile.intern_frame(&frame("main", 0x40));
    let got = profile.frame(id);
    assert_eq!((got.name, got.kind, got.address), ("main", FrameKind::Native, 0x40));
    assert_eq!(got.module, Some(ModuleRef { path: "/bin/x", build_id: None }));
    assert_eq!(got.source, Some(SourceRef::new("x.c", 3)));
}

#[test]
fn the_same_stack_in_two_buckets_is_two_rows_and_one_without_time() {
    let mut profile = Profile::new(meta(), 100);
    let stack = push_all(&mut profile, &["main"]);
    let task = profile.task(task(7));
    profile.add(MonoNs(1_099), stack, task, 2);
    profile.add(MonoNs(1_100), stack, task, 3);
    profile.add(MonoNs(0), stack, task, 1);
    let rows: Vec<_> = profile.rows().iter().map(|row| (row.time.0, row.count)).collect();
    assert_eq!(rows, [(1_000, 3), (1_100, 3)]);
    assert_eq!(profile.rows_without_time().iter().map(|row| row.count).collect::<Vec<_>>(), [6]);
    assert_eq!(profile.total(), 6);
}

#[test]
fn frames_that_are_left_out_give_what_they_have_to_their_callers() {
    let mut profile = Profile::new(meta(), 100);
    for (names, count) in [(&["main", "loop", "f", "loop"][..], 2), (&["main", "loop"], 3), (&["loop", "g"], 5)] {
        let stack = push_all(&mut profile, names);
        let task = profile.task(task(7));
        profile.add(MonoNs(1_099), stack, task, count);
    }
    let without = profile.without(|frame| frame.name == "loop");
    let mut stacks: Vec<(String, u64)> = Vec::new();
    without.visit_rows(|row| {
        let mut frames = Vec::new();
        without.frames_of(row.stack, &mut frames);
        let names: Vec<&str> = frames.iter().map(|id| without.frame(*id).name).collect();
        stacks.push((names.join(";"), row.count));
    });
    stacks.sort();
    assert_eq!(stacks, [("g".to_owned(), 5), ("main".to_owned(), 3), ("main;f".to_owned(), 2)]);
    assert_eq!((without.total(), without.rows()[0].time.0), (10, 1_000));
}

#[test]
fn names_that_are_too_long_stay_distinct() {
    let mut profile = Profile::new(meta(), u64::MAX);
    let long = "é".repeat(MAX_STRING_BYTES);
    let a = profile.intern_frame(&frame(&format!("{long}a"), 0));
    let b = profile.intern_frame(&frame(&format!("{long}b"), 0));
    assert_ne!(a, b);
    assert!(profile.frame(a).name.len() <= MAX_STRING_BYTES);
    assert!(profile.overflow().is_empty());
}

#[test]
fn what_does_not_fit_is_counted_under_a_note_and_the_total_stays_true() {
    let tight = Limits { frames: 3, stacks: 4, tasks: 2, rows: 1, string_bytes: 1_000, in_shares: false };
    let mut profile = Profile::with_limits(meta(), u64::MAX, tight);
    for i in 0..50_u32 {
        let name = format!("function number {i}");
        let stack = push_all(&mut profile, &["main", &name, "leaf"]);
        let task = profile.task(task(i));
        profile.add(MonoNs(1_000 + u64::from(i)), stack, task, 1);
    }
    let overflow = profile.overflow();
    assert!(overflow.frames > 0 && overflow.stacks > 0 && overflow.tasks > 0 && overflow.rows > 0);
    assert!(overflow.strings > 0);
    assert_eq!(profile.total(), 50);
    assert_eq!(profile.rows().iter().map(|row| row.count).sum::<u64>(), 50);
    assert!(profile.frame_count() <= 4 && profile.stack_count() <= 6 && profile.rows().len() <= 2);
    assert!(values(&profile).iter().any(|(_, _, names, _)| names == &["[profile full]"]));
}

type Sample = (u64, u32, Vec<usize>);

fn fill(samples: &[Sample]) -> Profile {
    const NAMES: [&str; 4] = ["a", "b", "c", "d"];
    let mut profile = Profile::new(meta(), 50);
    for (time, tid, stack) in samples {
        let names: Vec<_> = stack.iter().map(|&i| NAMES[i]).collect();
        let stack = push_all(&mut profile, &names);
        let task = profile.task(task(*tid));
        profile.add(MonoNs(1_000 + time), stack, task, 1);
    }
    profile
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn rows_do_not_depend_on_the_order_of_samples(
        samples in prop::collection::vec((0..200_u64, 0..3_u32, prop::collection::vec(0..4_usize, 0..5)), 0..40),
        seed in any::<prop::sample::Index>(),
    ) {
        let mut other = samples.clone();
        other.reverse();
        let middle = seed.index(other.len().max(1)).min(other.len());
        other.rotate_left(middle);
        let (one, two) = (values(&fill(&samples)), values(&fill(&other)));
        prop_assert_eq!(&one, &two);
        let mut sorted = one.clone();
        sorted.sort();
        prop_assert_eq!(one, sorted, "rows are ordered by time, task, frames");
    }
}

#[test]
fn a_compacted_profile_has_the_same_rows_and_nothing_else() {
    let mut profile = Profile::new(meta(), 1000);
    for at in 0..100_u64 {
        let stack = push_all(&mut profile, &["main", &format!("f{at}")]);
        let task = profile.task(task(u32::try_from(at).unwrap()));
        profile.add(MonoNs(1_000 + at * 1000), stack, task, at + 1);
    }
    let taken = profile.take_before(MonoNs(1_000), MonoNs(91_000));
    assert_eq!(taken.total() + profile.total(), 5050);
    let shown = |profile: &Profile| -> Vec<(MonoNs, Tid, u64, String)> {
        let row = |row: &Row| {
            let name = profile.pop(row.stack).map(|(_, frame)| profile.frame(frame).name.to_owned());
            (row.time, profile.task_of(row.task).tid, row.cpu_ns, name.unwrap())
        };
        profile.rows().iter().map(row).collect()
    };
    let (before, bytes) = (shown(&profile), profile.bytes());
    profile.compact();
    assert_eq!(shown(&profile), before);
    assert_eq!((profile.stack_count(), profile.frame_count()), (12, 11), "the empty stack, main, and ten leaves");
    assert!(profile.bytes() < bytes / 4, "{} of {bytes} bytes", profile.bytes());
}

#[test]
fn samples_weigh_what_they_stood_for_when_they_were_taken() {
    let mut profile = Profile::new(meta(), 1000);
    let (stack, task) = (push_all(&mut profile, &["main"]), profile.task(task(1)));
    let hz = |hz| NonZeroU32::new(hz).unwrap();
    for (from, frequency) in [(10_000, 10), (20_000, 1), (30_000, 1000)] {
        profile.set_frequency(MonoNs(from), hz(frequency));
    }
    profile.drop_frequencies_before(MonoNs(25_000));
    for time in [26_000, 31_000] {
        profile.add(MonoNs(time), stack, task, 2);
    }
    let weights: Vec<u64> = profile.rows().iter().map(|row| row.cpu_ns).collect();
    assert_eq!(weights, [2_000_000_000, 2_000_000], "the frequency that held at the border is remembered");
}

#[test]

fn functions_are_in_the_order_of_their_time_not_of_their_samples() {
    let mut profile = Profile::new(meta(), 1000);
    let task = profile.task(task(1));
    let [seldom, often] = ["seldom", "often"].map(|name| push_all(&mut profile, &[name]));
    for (from, frequency, stack, count) in [(10_000, 1, seldom, 10), (20_000, 1000, often, 100)] {
        profile.set_frequency(MonoNs(from), NonZeroU32::new(frequency).unwrap());
        profile.add(MonoNs(from), stack, task, count);
    }
    let top = Top::of(&profile);
    let rows: Vec<_> = top.rows.iter().map(|row| (row.function.name, row.own.samples)).collect();
    assert_eq!(rows, [("seldom", 10), ("often", 100)]);
}

#[test]
fn whose_names_are_endless_loses_his_own_and_nobody_else_s() {
    let limits = Limits { string_bytes: 200_000, frames: 1_000, stacks: 5_000, ..Limits::in_shares() };
    let mut profile = Profile::with_limits(meta(), u64::MAX, limits);
    let (greedy, other) = (Holder::User(1000), Holder::User(1001));
    profile.set_holder(Some(greedy));
    let task_of = |profile: &mut Profile, pid| profile.task(Task { pid: Pid(pid), ..task(pid) });
    let of_greedy = task_of(&mut profile, 1);
    for number in 0..2_000 {
        let name = format!("{number:0>500}");
        let stack = push_all(&mut profile, &["main", &name, "leaf"]);
        profile.add(MonoNs(1_000), stack, of_greedy, 1);
    }
    profile.set_holder(Some(other));
    let of_other = task_of(&mut profile, 2);
    let stack = push_all(&mut profile, &["main", "victim", "work"]);
    profile.add(MonoNs(1_000), stack, of_other, 1);
    let check = |profile: &Profile| {
        let of = |pid| values(profile).into_iter().filter(move |(_, task, ..)| task.pid == Pid(pid));
        assert_eq!(of(2).map(|(_, _, names, _)| names).collect::<Vec<_>>(), [["main", "victim", "work"]]);
        let full = of(1).filter(|(_, _, names, _)| names.iter().any(|name| name == "[name table full]"));
        assert!(full.count() > 0, "the other one's did not all fit");
        assert_eq!(profile.total(), 2_001);
    };
    check(&profile);
    // So it stays when the tables are made anew, and in what is taken out of them.
    profile.compact();
    check(&profile);
    check(&profile.take_before(MonoNs(0), MonoNs(u64::MAX)));
}
