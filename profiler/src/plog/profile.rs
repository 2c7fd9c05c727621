//! Spans as a profile: nanoseconds in place of samples.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::error::PlogError;
use super::import::Trace;
use super::threads::ThreadMap;
use crate::profile::{FrameId, Profile, ProfileMeta, SampledEvent, StackId, Task, TaskId};
use crate::symbol::{Frame, FrameKind};
use jitprof_common::units::{MonoNs, Pid, Tid};

/// Every span's own time in nanoseconds, under its thread and the spans around it. A thread has the kernel's id where
/// the map has one, else its number in the log, from 1.
///
/// # Errors
/// The temporary file of a large log cannot be read.
pub fn span_profile(trace: &Trace, map: &ThreadMap, title: &str) -> Result<Profile, PlogError> {
    let (first, last) = trace.range_ns().unwrap_or((0, 0));
    let mut profile = Profile::new(
        ProfileMeta {
            title: title.to_owned(),
            // The log knows the time since boot at best.
            start_time: SystemTime::UNIX_EPOCH,
            start: MonoNs(first),
            duration: Duration::from_nanos(last.saturating_sub(first)),
            // A sample stands for a nanosecond.
            frequency_hz: NonZeroU32::new(1_000_000_000).expect("invariant: not zero"),
            event: SampledEvent::SpanTime,
        },
        u64::MAX,
    );
    let tasks: Vec<TaskId> = (0..trace.threads.len()).map(|index| profile.task(task(trace, map, index))).collect();
    // The stack of each open span of the segment before.
    let mut stacks: Vec<StackId> = Vec::new();
    trace.segments(|segment| {
        stacks.truncate(segment.kept);
        for span in &segment.path[stacks.len()..] {
            let frame = span_frame(&mut profile, trace, span.trace_id);
            let prefix = stacks.last().copied().unwrap_or(profile.stack_root());
            stacks.push(profile.push(prefix, frame));
        }
        let task = usize::try_from(segment.thread).ok().and_then(|index| tasks.get(index));
        if let (Some(&stack), Some(&task)) = (stacks.last(), task) {
            profile.add(MonoNs(segment.start), stack, task, segment.end - segment.start);
        }
        Ok::<(), PlogError>(())
    })?;
    Ok(profile)
}

/// The frame of a span.
pub(super) fn span_frame(profile: &mut Profile, trace: &Trace, trace_id: u32) -> FrameId {
    profile.intern_frame(&Frame {
        name: Arc::from(trace.names.name(trace_id)),
        kind: FrameKind::Span,
        tier: None,
        inlined: false,
        module: None,
        source: None,
        address: 0,
    })
}

fn task(trace: &Trace, map: &ThreadMap, index: usize) -> Task {
    let id = trace.threads.get(index).map_or(0, |thread| thread.id);
    let number = u32::try_from(index).map_or(u32::MAX, |index| index.saturating_add(1));
    let tid = map.get(id).first().map_or(Tid(number), |(tid, _)| *tid);
    Task { pid: Pid(0), process_start: 0, tid, comm: Arc::from(thread_name(id)), labels: Arc::default() }
}

/// How a thread of a log is shown.
pub(crate) fn thread_name(id: u64) -> String {
    format!("thread {id:#x}")
}
