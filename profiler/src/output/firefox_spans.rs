//! A trace log for the Firefox Profiler: a marker for each span, and the spans as stacks, so that stack chart, call tree
//! and flamegraph work as well.
//!
//! The weight of a stack is its time in microseconds: the format has whole numbers only.

use std::io::{self, Write};
use std::time::Duration;

use fx::{
    CategoryColor, CategoryHandle, CpuDelta, FrameFlags, FrameHandle, FrameInfo, MarkerFieldFlags, MarkerFieldFormat,
    MarkerTiming, ReferenceTimestamp, SamplingInterval, StackHandle, StaticSchemaMarker, StaticSchemaMarkerField,
    StringHandle, ThreadHandle, Timestamp,
};
use fxprof_processed_profile as fx;
use rustc_hash::FxHashMap;

use super::chrome::tid;
use super::error::OutputError;
use crate::plog::{PlogError, Segment, ThreadMap, Trace, thread_name};
use crate::profile::printable;

/// Spans that are written; the page that shows them gets slow far below. Beyond it the shortest are left out.
const MAX_SPANS: u64 = 1 << 18;
/// Longest stretch with one weight, in microseconds: weights are 32 bits, signed.
const MAX_WEIGHT: u64 = 1 << 30;

/// Writes the spans. Returns how many were left out because there are too many.
///
/// # Errors
/// The temporary file of a large log cannot be read, or the writer fails.
pub fn write_firefox_spans(
    trace: &Trace,
    map: &ThreadMap,
    title: &str,
    writer: impl Write,
) -> Result<u64, OutputError> {
    write_at_most(MAX_SPANS, trace, map, title, writer)
}

/// As [`write_firefox_spans`], with `most` spans at most.
pub(super) fn write_at_most(
    most: u64,
    trace: &Trace,
    map: &ThreadMap,
    title: &str,
    mut writer: impl Write,
) -> Result<u64, OutputError> {
    let (least_ns, left_out) = least_shown(trace, most)?;
    let mut conversion = Conversion::new(trace, map, title, least_ns);
    trace.spans(|span| {
        if span.end - span.start >= least_ns {
            let thread = conversion.thread(span.thread);
            let timing = MarkerTiming::Interval(conversion.time(span.start), conversion.time(span.end));
            let name = conversion.name(span.trace_id);
            let kind = conversion.type_name(span.type_id);
            let designator = conversion.out.intern_string(&format!("{:#x}", span.designator));
            let category = conversion.category;
            conversion.out.add_marker(thread, timing, SpanMarker { name, kind, designator, category });
        }
        Ok::<(), PlogError>(())
    })?;
    trace.segments(|segment| {
        conversion.take(segment);
        Ok::<(), PlogError>(())
    })?;
    conversion.flush();
    serde_json::to_writer(&mut writer, &conversion.out).map_err(io::Error::from)?;
    writer.flush()?;
    Ok(left_out)
}

/// The least length of a span so that no more than `most` are at least so long, and how many are shorter.
fn least_shown(trace: &Trace, most: u64) -> Result<(u64, u64), PlogError> {
    // By powers of two: one pass, and no list of lengths.
    let mut by_bits = [0_u64; 65];
    trace.spans(|span| {
        let bits = u64::BITS - (span.end - span.start).leading_zeros();
        if let Some(count) = usize::try_from(bits).ok().and_then(|bits| by_bits.get_mut(bits)) {
            *count += 1;
        }
        Ok::<(), PlogError>(())
    })?;
    let total: u64 = by_bits.iter().sum();
    let (mut shown, mut least) = (0, 0);
    for (bits, count) in by_bits.iter().enumerate().rev() {
        if shown + count > most {
            // Of `bits` bits, so less than 2 to the power of it.
            least = u32::try_from(bits).ok().and_then(|bits| 1_u64.checked_shl(bits)).unwrap_or(u64::MAX);
            break;
        }
        shown += count;
    }
    Ok((least, total - shown))
}

/// A stretch of time that has not been written yet.
struct Pending {
    thread: u32,
    start: u64,
    end: u64,
    /// Places of the spans that are shown.
    path: Vec<(u64, u32)>,
}

struct Conversion<'a> {
    trace: &'a Trace,
    least_ns: u64,
    first_ns: u64,
    out: fx::Profile,
    category: CategoryHandle,
    threads: Vec<ThreadHandle>,
    frames: FxHashMap<(u32, u32), FrameHandle>,
    pending: Option<Pending>,
    /// Thread and end of the last stack, after which the thread is idle unless another follows at once.
    last: Option<(u32, u64)>,
}

impl<'a> Conversion<'a> {
    fn new(trace: &'a Trace, map: &ThreadMap, title: &str, least_ns: u64) -> Self {
        let mut out = fx::Profile::new(
            &printable(title),
            // The log knows no time of day.
            ReferenceTimestamp::from_duration_since_unix_epoch(Duration::ZERO),
            SamplingInterval::from_nanos(1000),
        );
        out.set_symbolicated(true);
        let category = out.add_category("span", CategoryColor::LightRed);
        let start = Timestamp::from_nanos_since_reference(0);
        let process = out.add_process(&printable(title), 1, start);
        let threads = trace.threads.iter().enumerate().map(|(index, seen)| {
            // A main thread would be shown under the name of its process.
            let thread = out.add_thread(process, tid(trace, map, index), start, false);
            out.set_thread_name(thread, &thread_name(seen.id));
            out.set_thread_show_markers_in_timeline(thread, true);
            thread
        });
        Self {
            trace,
            least_ns,
            first_ns: trace.range_ns().map_or(0, |(first, _)| first),
            threads: threads.collect(),
            category,
            frames: FxHashMap::default(),
            pending: None,
            last: None,
            out,
        }
    }

    fn time(&self, ns: u64) -> Timestamp {
        Timestamp::from_nanos_since_reference(ns.saturating_sub(self.first_ns))
    }

    fn thread(&self, index: u32) -> ThreadHandle {
        self.threads[usize::try_from(index).expect("invariant: a thread's index is one of the trace's threads")]
    }

    fn name(&mut self, trace_id: u32) -> StringHandle {
        self.out.intern_string(&printable(&self.trace.names.name(trace_id)))
    }

    fn type_name(&mut self, type_id: u32) -> StringHandle {
        self.out.intern_string(&printable(&self.trace.types.name(type_id)))
    }

    fn take(&mut self, segment: &Segment<'_>) {
        let shown = segment.path.iter().take_while(|span| span.end - span.start >= self.least_ns);
        let path: Vec<_> = shown.map(|span| (span.place, span.trace_id)).collect();
        if let Some(pending) = &mut self.pending
            && (pending.thread, pending.end) == (segment.thread, segment.start)
            && pending.path == path
        {
            pending.end = segment.end;
            return;
        }
        self.flush();
        let Segment { thread, start, end, .. } = *segment;
        self.pending = Some(Pending { thread, start, end, path });
    }

    /// Writes the stack of a stretch, and before it that the thread was idle.
    fn flush(&mut self) {
        let next = self.pending.take();
        if let Some((thread, end)) = self.last
            && next.as_ref().is_none_or(|next| (next.thread, next.start) != (thread, end))
        {
            self.out.add_sample(self.thread(thread), self.time(end), None, CpuDelta::ZERO, 0);
        }
        self.last = None;
        let Some(Pending { thread, start, end, path }) = next.filter(|next| !next.path.is_empty()) else {
            return;
        };
        let stack = self.stack(thread, &path);
        let mut from = start;
        while from < end {
            let to = end.min(from.saturating_add(MAX_WEIGHT * 1000));
            // Differences of rounded times add up to the whole.
            let weight = i32::try_from(to / 1000 - from / 1000).unwrap_or(i32::MAX);
            self.out.add_sample(self.thread(thread), self.time(from), stack, CpuDelta::from_nanos(to - from), weight);
            from = to;
        }
        self.last = Some((thread, end));
    }

    fn stack(&mut self, thread: u32, path: &[(u64, u32)]) -> Option<StackHandle> {
        let handle = self.thread(thread);
        let mut stack = None;
        for &(_, trace_id) in path {
            let frame = match self.frames.get(&(thread, trace_id)) {
                Some(frame) => *frame,
                None => {
                    let label = self.name(trace_id);
                    let category_pair = self.category.into();
                    let info = FrameInfo { frame: fx::Frame::Label(label), category_pair, flags: FrameFlags::empty() };
                    let frame = self.out.intern_frame(handle, info);
                    self.frames.insert((thread, trace_id), frame);
                    frame
                }
            };
            stack = Some(self.out.intern_stack(handle, stack, frame));
        }
        stack
    }
}

struct SpanMarker {
    name: StringHandle,
    kind: StringHandle,
    designator: StringHandle,
    category: CategoryHandle,
}

impl StaticSchemaMarker for SpanMarker {
    const UNIQUE_MARKER_TYPE_NAME: &'static str = "Span";
    const TOOLTIP_LABEL: Option<&'static str> = Some("{marker.name}");
    const TABLE_LABEL: Option<&'static str> = Some("{marker.data.kind} {marker.data.designator}");
    const FIELDS: &'static [StaticSchemaMarkerField] = &[
        StaticSchemaMarkerField {
            key: "kind",
            label: "Type",
            format: MarkerFieldFormat::String,
            flags: MarkerFieldFlags::SEARCHABLE,
        },
        StaticSchemaMarkerField {
            key: "designator",
            label: "Designator",
            format: MarkerFieldFormat::String,
            flags: MarkerFieldFlags::SEARCHABLE,
        },
    ];

    fn name(&self, _profile: &mut fx::Profile) -> StringHandle {
        self.name
    }

    fn category(&self, _profile: &mut fx::Profile) -> CategoryHandle {
        self.category
    }

    fn string_field_value(&self, field_index: u32) -> StringHandle {
        if field_index == 0 { self.kind } else { self.designator }
    }

    fn number_field_value(&self, _field_index: u32) -> f64 {
        0.0
    }
}
