//! Puts spans around the samples of the same thread and time.

use std::collections::{BTreeMap, BTreeSet};

use super::error::PlogError;
use super::import::Trace;
use super::nesting::Segment;
use super::profile::span_frame;
use super::threads::ThreadMap;
use crate::profile::{Profile, StackId};
use jitprof_common::units::{MonoNs, Tid};

/// What placing spans around samples did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// Samples that got at least one span.
    pub samples: u64,
    /// Samples of threads that the log has under a known kernel id.
    pub of_known_threads: u64,
    /// How many samples the recording has.
    pub of_all: u64,
    /// Whether the header's start time was added to the log's times.
    pub start_added: bool,
    /// Whether the times of log and recording overlap.
    pub overlaps: bool,
    /// The log's times on the clock of the samples.
    pub log_range: Option<(MonoNs, MonoNs)>,
    /// Ids of the log's threads whose kernel thread is not known.
    pub unknown_threads: Vec<u64>,
}

/// How exact the times of the samples are, and how they are kept.
#[derive(Clone, Copy, Debug, Default)]
pub struct SampleTimes {
    /// Added to the log's times, to bring them onto the clock of the samples.
    pub offset_ns: i64,
    /// What the samples' times may be early; 0 if they are exact.
    pub slack_ns: u64,
    /// The time buckets in which samples are counted afterwards; 0 means 1.
    pub bucket_ns: u64,
}

/// Puts the spans of a log as callers around the samples of the same thread and time, and counts the samples anew in
/// the time buckets that are asked for. Samples outside of any span stay as they are. The profile must have been
/// counted with the time of each sample.
///
/// The log's times are taken for start time + timestamp on the clock of the samples, CLOCK_MONOTONIC; if that does not
/// meet the recording and the timestamps alone do, for these.
///
/// Cost: one pass over the spans, and a sort of the samples. Memory: 40 bytes a sample.
///
/// # Errors
/// The temporary file of a large log cannot be read.
pub fn place(
    profile: &mut Profile,
    trace: &Trace,
    map: &mut ThreadMap,
    times: SampleTimes,
) -> Result<Placed, PlogError> {
    let rows = profile.rows();
    let mut by_tid: BTreeMap<Tid, Vec<usize>> = BTreeMap::new();
    for (index, row) in rows.iter().enumerate() {
        by_tid.entry(profile.task_of(row.task).tid).or_default().push(index);
    }
    let ids: Vec<u64> = trace.threads.iter().map(|thread| thread.id).collect();
    map.complete(&ids, &by_tid.keys().copied().collect::<Vec<_>>());
    let shift = Shift::choose(profile, trace, times.offset_ns);
    // A time that may be early is taken for the middle of what it may be.
    let time_of = |index: usize| rows[index].time.0.saturating_add(times.slack_ns / 2);

    let mut outside: Vec<Option<StackId>> = vec![None; rows.len()];
    trace.segments(|segment| {
        let (start, end) = (shift.apply(segment.start).0, shift.apply(segment.end).0);
        let id = usize::try_from(segment.thread).ok().and_then(|index| ids.get(index)).copied().unwrap_or(0);
        for indices in map.get(id).iter().filter_map(|(tid, _)| by_tid.get(tid)) {
            let from = indices.partition_point(|&index| time_of(index) < start);
            let inside = indices[from..].iter().take_while(|index| time_of(**index) < end);
            let mut stack = None;
            for &index in inside {
                outside[index] = Some(*stack.get_or_insert_with(|| stack_of(profile, trace, segment)));
            }
        }
        Ok::<(), PlogError>(())
    })?;
    let known = ids.iter().flat_map(|id| map.get(*id)).filter_map(|(tid, _)| by_tid.get(tid)).flatten();
    // Several of the log's threads may have one kernel id.
    let known: BTreeSet<usize> = known.copied().collect();
    let mut placed = Placed {
        samples: rows.iter().zip(&outside).filter(|(_, stack)| stack.is_some()).map(|(row, _)| row.count).sum(),
        of_known_threads: known.iter().map(|index| rows[*index].count).sum(),
        of_all: profile.total(),
        start_added: shift.start_added,
        overlaps: shift.overlaps,
        log_range: shift.range(trace),
        unknown_threads: ids,
    };
    placed.unknown_threads.retain(|id| map.get(*id).is_empty());
    let mut frames = Vec::new();
    profile.restack(times.bucket_ns, &rows, |profile, index| {
        let Some(outside) = outside[index] else {
            return rows[index].stack;
        };
        profile.frames_of(rows[index].stack, &mut frames);
        frames.iter().fold(outside, |prefix, frame| profile.push(prefix, *frame))
    });
    Ok(placed)
}

/// The open spans of a segment as a stack.
fn stack_of(profile: &mut Profile, trace: &Trace, segment: &Segment<'_>) -> StackId {
    segment.path.iter().fold(profile.stack_root(), |prefix, span| {
        let frame = span_frame(profile, trace, span.trace_id);
        profile.push(prefix, frame)
    })
}

/// Relates the log's clock to that of the samples.
#[derive(Clone, Copy, Debug)]
struct Shift {
    add: i128,
    start_added: bool,
    overlaps: bool,
}

impl Shift {
    fn choose(profile: &Profile, trace: &Trace, offset_ns: i64) -> Self {
        let meta = profile.meta();
        let begin = i128::from(meta.start.0);
        let end = begin + i128::try_from(meta.duration.as_nanos()).unwrap_or(i128::MAX / 2);
        let (first, last) = trace.range_ns().unwrap_or((0, 0));
        let offset = i128::from(offset_ns);
        let meets = |add: i128| i128::from(first) + add <= end && i128::from(last) + add >= begin;
        let with_start = offset + i128::from(trace.start_ns());
        if !meets(with_start) && meets(offset) {
            return Self { add: offset, start_added: false, overlaps: true };
        }
        Self { add: with_start, start_added: true, overlaps: meets(with_start) }
    }

    fn apply(self, ns: u64) -> MonoNs {
        let shifted = (i128::from(ns) + self.add).max(0);
        MonoNs(u64::try_from(shifted).unwrap_or(u64::MAX))
    }

    fn range(self, trace: &Trace) -> Option<(MonoNs, MonoNs)> {
        trace.range_ns().map(|(first, last)| (self.apply(first), self.apply(last)))
    }
}
