//! Spans around samples.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::*;
use crate::profile::{Profile, ProfileMeta, SampledEvent, Task};
use crate::symbol::{Frame, FrameKind};
use jitprof_common::units::{MonoNs, Pid, Tid};

/// Samples of `work` at these times of these threads, in a recording from 1000 to 2000.
fn recorded(samples: &[(u64, u32)]) -> Profile {
    let meta = ProfileMeta {
        title: String::new(),
        start_time: SystemTime::UNIX_EPOCH,
        start: MonoNs(1000),
        duration: Duration::from_nanos(1000),
        frequency_hz: NonZeroU32::MIN,
        event: SampledEvent::CpuClock,
    };
    let mut profile = Profile::new(meta, 0);
    let name = Arc::from("work");
    let work =
        Frame { name, kind: FrameKind::Native, tier: None, inlined: false, module: None, source: None, address: 1 };
    let frame = profile.intern_frame(&work);
    for &(time, tid) in samples {
        let stack = profile.push(profile.stack_root(), frame);
        let task = profile.task(Task {
            pid: Pid(1),
            process_start: 0,
            tid: Tid(tid),
            comm: Arc::from("t"),
            labels: Arc::default(),
        });
        profile.add(MonoNs(time), stack, task, 1);
    }
    profile
}

/// `tid A;B;work` with counts, sorted.
fn stacks(profile: &Profile) -> Vec<String> {
    let mut frames = Vec::new();
    let rows = profile.rows();
    let mut lines: Vec<_> = rows
        .iter()
        .map(|row| {
            profile.frames_of(row.stack, &mut frames);
            let path: Vec<_> = frames.iter().map(|frame| profile.frame(*frame).name).collect();
            format!("{} {} {}", profile.task_of(row.task).tid, path.join(";"), row.count)
        })
        .collect();
    lines.sort();
    lines
}

fn log(start: u64) -> Vec<u8> {
    let entries =
        [entry(1100, 100, 0xa0, 1, ACQUIRE), entry(1120, 20, 0xa0, 2, ACQUIRE), entry(1100, 500, 0xb0, 3, ACQUIRE)];
    LogFields { start, ..fields(ByteOrder::Big) }.log(&entries)
}

fn placed(log: &[u8], profile: &mut Profile, rules: &[&str], offset_ns: i64) -> Placed {
    let rules: Vec<ThreadRule> = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    let (trace, _) = import(log).unwrap();
    let times = SampleTimes { offset_ns, slack_ns: 0, bucket_ns: u64::MAX };
    place(profile, &trace, &mut ThreadMap::told(&rules), times).unwrap()
}

const SAMPLES: [(u64, u32); 7] = [(1099, 5), (1100, 5), (1119, 5), (1120, 5), (1150, 5), (1200, 5), (1130, 6)];
const EXPECTED: [&str; 4] = ["5 JOB;INTERPRET;work 1", "5 JOB;work 3", "5 work 2", "6 work 1"];

#[test]
fn spans_stand_around_samples_of_their_thread_and_time() {
    let mut profile = recorded(&SAMPLES);
    let placed = placed(&log(0), &mut profile, &["0xa0=5"], 0);
    assert_eq!(stacks(&profile), EXPECTED);
    assert_eq!((placed.samples, placed.of_known_threads, placed.of_all, profile.total()), (4, 6, 7, 7));
    assert_eq!(placed.unknown_threads, [0xb0]);
    assert!(placed.overlaps);
}

#[test]
fn a_start_time_is_added_only_where_that_meets_the_recording() {
    let mut profile = recorded(&SAMPLES);
    let with_start = placed(&log(1_000_000), &mut profile, &["0xa0=5"], 0);
    assert!(!with_start.start_added && with_start.overlaps);
    assert_eq!(stacks(&profile), EXPECTED);
    let relative = LogFields { start: 1000, ..fields(ByteOrder::Little) }.log(&[entry(100, 100, 0xa0, 1, ACQUIRE)]);
    let mut profile = recorded(&SAMPLES);
    assert!(placed(&relative, &mut profile, &["0xa0=5"], 0).start_added);
    assert_eq!(stacks(&profile), ["5 JOB;work 4", "5 work 2", "6 work 1"]);
}

#[test]
fn an_offset_moves_the_log_and_a_log_of_another_time_places_nothing() {
    let far =
        LogFields { start: 5_000_000, ..fields(ByteOrder::Little) }.log(&[entry(5_000_100, 100, 0xa0, 1, ACQUIRE)]);
    let mut profile = recorded(&SAMPLES);
    let missed = placed(&far, &mut profile, &["0xa0=5"], 0);
    assert_eq!((missed.overlaps, missed.samples), (false, 0));
    let mut profile = recorded(&SAMPLES);
    let moved = placed(&far, &mut profile, &["0xa0=5"], -9_999_000);
    assert_eq!((moved.overlaps, moved.samples), (true, 4));
}

#[test]
fn one_thread_on_both_sides_needs_no_map() {
    let mut profile = recorded(&SAMPLES[..6]);
    let one = fields(ByteOrder::Little).log(&[entry(1100, 100, 0xa0, 1, ACQUIRE)]);
    assert_eq!(placed(&one, &mut profile, &[], 0).samples, 4);
    let mut profile = recorded(&SAMPLES);
    assert_eq!(placed(&one, &mut profile, &[], 0).samples, 0, "which of two threads it is cannot be known");
    let mut profile = recorded(&SAMPLES);
    assert_eq!(placed(&one, &mut profile, &["0xa0=5"], 0).samples, 4);
}

#[test]
fn a_descriptor_used_by_two_threads_serves_both() {
    let entries = [entry(1100, 50, 0xa0, 1, ACQUIRE), entry(1300, 50, 0xa0, 2, ACQUIRE)];
    let mut profile = recorded(&[(1110, 5), (1310, 6)]);
    placed(&fields(ByteOrder::Little).log(&entries), &mut profile, &["0xa0=5", "0xa0=6"], 0);
    assert_eq!(stacks(&profile), ["5 JOB;work 1", "6 INTERPRET;work 1"]);
}
