//! Puts spans around the samples of the same thread and time.

use std::collections::BTreeMap;

use super::error::PlogError;
use super::import::Trace;
use super::profile::span_frame;
use super::threads::ThreadMap;
use crate::profile::{Profile, StackId};
use crate::units::{MonoNs, Tid};

/// What placing spans around samples did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// Samples that got at least one span.
    pub samples: u64,
    /// Samples of threads that the log has under a known kernel id.
    pub of_known_threads: u64,
    /// All samples.
    pub of_all: u64,
    /// Whether the header's start time was added to the log's times.
    pub start_added: bool,
    /// Whether log and recording have a moment in common.
    pub overlaps: bool,
    /// The log's times on the clock of the samples.
    pub log_range: Option<(MonoNs, MonoNs)>,
    /// Ids of the log's threads whose kernel thread is not known.
    pub unknown_threads: Vec<u64>,
}

/// Puts the spans of a log as callers around the samples of the same thread and time, and counts the samples anew in
/// buckets of `bucket_ns`. Samples outside of any span stay as they are. The profile must have been counted with the
/// time of each sample; `slack_ns` is what its times may be early (0 if they are exact).
///
/// The log's times are taken for start time + timestamp on the clock of the samples, CLOCK_MONOTONIC; if that does not
/// meet the recording and the timestamps alone do, for these. `offset_ns` is added to either.
///
/// Cost: one pass over the spans, and a sort of the samples. Memory: 40 bytes a sample.
///
/// # Errors
/// The temporary file of a large log cannot be read.
pub fn place(
    profile: &mut Profile,
    trace: &Trace,
    map: &mut ThreadMap,
    offset_ns: i64,
    bucket_ns: u64,
    slack_ns: u64,
) -> Result<Placed, PlogError> {
    let rows = profile.rows();
    let mut by_tid: BTreeMap<Tid, Vec<usize>> = BTreeMap::new();
    for (index, row) in rows.iter().enumerate() {
        by_tid.entry(profile.task_of(row.task).tid).or_default().push(index);
    }
    let ids: Vec<u64> = trace.threads.iter().map(|thread| thread.id).collect();
    map.complete(&ids, &by_tid.keys().copied().collect::<Vec<_>>());

    let shift = Shift::choose(profile, trace, offset_ns);
    let mut placed = Placed {
        of_all: profile.total(),
        start_added: shift.start_added,
        overlaps: shift.overlaps,
        log_range: shift.range(trace),
        unknown_threads: ids.iter().copied().filter(|id| map.get(*id).is_empty()).collect(),
        ..Placed::default()
    };
    let middle = slack_ns / 2;
    let time_of = |index: usize| rows[index].time.0.saturating_add(middle);
    let mut known_rows = vec![false; rows.len()];
    let mut stacks: Vec<Option<StackId>> = vec![None; rows.len()];
    trace.segments(|segment| {
        let (start, end) = (shift.apply(segment.start).0, shift.apply(segment.end).0);
        let id = usize::try_from(segment.thread).ok().and_then(|index| ids.get(index)).copied().unwrap_or(0);
        for indices in map.get(id).iter().filter_map(|(tid, _)| by_tid.get(tid)) {
            let from = indices.partition_point(|&index| time_of(index) < start);
            let inside = indices[from..].iter().take_while(|index| time_of(**index) < end);
            let mut stack = None;
            for &index in inside {
                let stack = *stack.get_or_insert_with(|| {
                    segment.path.iter().fold(profile.stack_root(), |prefix, span| {
                        let frame = span_frame(profile, trace, span.trace_id);
                        profile.push(prefix, frame)
                    })
                });
                stacks[index] = Some(stack);
            }
        }
        Ok::<(), PlogError>(())
    })?;
    for indices in ids.iter().flat_map(|id| map.get(*id)).filter_map(|(tid, _)| by_tid.get(tid)) {
        indices.iter().for_each(|&index| known_rows[index] = true);
    }
    let count = |chosen: &dyn Fn(usize) -> bool| {
        rows.iter().enumerate().filter(|(index, _)| chosen(*index)).map(|(_, row)| row.count).sum()
    };
    placed.samples = count(&|index| stacks[index].is_some());
    placed.of_known_threads = count(&|index| known_rows[index]);
    let mut frames = Vec::new();
    profile.restack(bucket_ns, &rows, |profile, index| {
        let Some(outside) = stacks[index] else {
            return rows[index].stack;
        };
        profile.frames_of(rows[index].stack, &mut frames);
        frames.iter().fold(outside, |prefix, frame| profile.push(prefix, *frame))
    });
    Ok(placed)
}

/// From the log's clock to that of the samples.
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
