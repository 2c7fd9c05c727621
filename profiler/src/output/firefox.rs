//! The Firefox Profiler's processed profile format, as JSON.

use std::io::{self, Write};
use std::time::{Duration, UNIX_EPOCH};

use fx::{
    CategoryColor, CategoryHandle, CategoryPairHandle, CpuDelta, FrameFlags, FrameInfo, MarkerFieldFlags,
    MarkerFieldFormat, MarkerTiming, ReferenceTimestamp, SamplingInterval, StackHandle, StaticSchemaMarker,
    StaticSchemaMarkerField, StringHandle, ThreadHandle, Timestamp,
};
use fxprof_processed_profile as fx;
use rustc_hash::FxHashMap;

use super::color::Class;
use super::frame_names::frame_name;
use super::options::OutputOptions;
use super::process_names::name_of;
use crate::profile::printable;
use crate::profile::{FrameId, Profile, Row, StackId, Task, TaskId};
use crate::symbol::FrameKind;
use jitprof_common::units::{Pid, Tid};

/// Modules that get a subcategory of their own; the format has room for 2^16 in a category.
const MAX_SUBCATEGORIES: usize = 1 << 12;

pub(super) fn write(profile: &Profile, options: &OutputOptions, mut writer: impl Write) -> io::Result<()> {
    let mut conversion = Conversion::new(profile, options);
    let rows = profile.rows();
    for row in &rows {
        conversion.add(row);
    }
    conversion.mark_recording();
    serde_json::to_writer(&mut writer, &conversion.out)?;
    writer.flush()
}

/// A process, as distinct from a later one with the same pid.
type Process = (Pid, u64);

struct Conversion<'a> {
    profile: &'a Profile,
    options: &'a OutputOptions,
    out: fx::Profile,
    categories: FxHashMap<Class, CategoryHandle>,
    /// The subcategory of a class and a module's file name.
    subcategories: FxHashMap<(Class, &'a str), CategoryPairHandle>,
    processes: FxHashMap<Process, fx::ProcessHandle>,
    threads: FxHashMap<(Process, Tid), ThreadHandle>,
    tasks: FxHashMap<TaskId, ThreadHandle>,
    stacks: FxHashMap<(ThreadHandle, StackId), StackHandle>,
    labels: FxHashMap<FrameId, FrameInfo>,
    first_thread: Option<ThreadHandle>,
}

impl<'a> Conversion<'a> {
    fn new(profile: &'a Profile, options: &'a OutputOptions) -> Self {
        let meta = profile.meta();
        let title = options.title.as_deref().unwrap_or(&meta.title);
        let since_1970 = meta.start_time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut out = fx::Profile::new(
            &printable(title),
            ReferenceTimestamp::from_duration_since_unix_epoch(since_1970),
            SamplingInterval::from_nanos(meta.period_ns()),
        );
        // Names are resolved; the profiler must not look for symbols.
        out.set_symbolicated(true);
        out.set_os_name("Linux");
        let categories =
            Class::ALL.into_iter().map(|class| (class, out.add_category(class.label(), category_color(class))));
        Self {
            profile,
            options,
            categories: categories.collect(),
            subcategories: FxHashMap::default(),
            processes: FxHashMap::default(),
            threads: FxHashMap::default(),
            tasks: FxHashMap::default(),
            stacks: FxHashMap::default(),
            labels: FxHashMap::default(),
            first_thread: None,
            out,
        }
    }

    fn add(&mut self, row: &Row) {
        let thread = self.thread(row.task);
        let stack = self.stack(thread, row.stack);
        let time = Timestamp::from_nanos_since_reference(row.time.0.saturating_sub(self.profile.meta().start.0));
        let cpu = CpuDelta::from_nanos(row.cpu_ns);
        // A weight is 32 bits: a month of one CPU at 800 Hz in one row.
        let weight = i32::try_from(row.count).unwrap_or(i32::MAX);
        self.out.add_sample(thread, time, stack, cpu, weight);
    }

    /// The thread of a task. A thread that renamed itself is one thread, under its first name.
    fn thread(&mut self, task: TaskId) -> ThreadHandle {
        if let Some(&thread) = self.tasks.get(&task) {
            return thread;
        }
        let value = self.profile.task_of(task);
        let process = (value.pid, value.process_start);
        let comm = printable(&value.comm);
        let process_handle = self.process(process, value);
        let thread = *self.threads.entry((process, value.tid)).or_insert_with(|| {
            let thread = self.out.add_thread(process_handle, value.tid.0, start(), value.tid.0 == value.pid.0);
            self.out.set_thread_name(thread, &comm);
            thread
        });
        if value.tid.0 == value.pid.0 {
            self.out.set_process_name(process_handle, &comm);
        }
        self.tasks.insert(task, thread);
        self.first_thread.get_or_insert(thread);
        thread
    }

    fn process(&mut self, process: Process, task: &Task) -> fx::ProcessHandle {
        let (out, name) = (&mut self.out, name_of(task).unwrap_or(&task.comm));
        *self.processes.entry(process).or_insert_with(|| out.add_process(&printable(name), process.0.0, start()))
    }

    /// Interns the part of a stack that the thread does not have yet.
    fn stack(&mut self, thread: ThreadHandle, stack: StackId) -> Option<StackHandle> {
        let mut missing = Vec::new();
        let mut rest = stack;
        let mut handle = None;
        while let Some((prefix, frame)) = self.profile.pop(rest) {
            if let Some(&known) = self.stacks.get(&(thread, rest)) {
                handle = Some(known);
                break;
            }
            missing.push((rest, frame));
            rest = prefix;
        }
        for (stack, frame) in missing.into_iter().rev() {
            let info = self.label(frame);
            let frame = self.out.intern_frame(thread, info);
            let known = self.out.intern_stack(thread, handle, frame);
            self.stacks.insert((thread, stack), known);
            handle = Some(known);
        }
        handle
    }

    fn label(&mut self, id: FrameId) -> FrameInfo {
        if let Some(info) = self.labels.get(&id) {
            return info.clone();
        }
        let frame = self.profile.frame(id);
        let class = Class::of(frame);
        let name = frame_name(frame, self.options.lines);
        let info = FrameInfo {
            frame: fx::Frame::Label(self.out.intern_string(&name)),
            category_pair: self.category(class, frame.module.map(|module| module.path)),
            flags: flags(frame.kind),
        };
        self.labels.insert(id, info.clone());
        info
    }

    fn category(&mut self, class: Class, module: Option<&'a str>) -> CategoryPairHandle {
        let category = self.categories.get(&class).copied().unwrap_or(CategoryHandle::OTHER);
        let Some(file) = module.and_then(|path| path.rsplit('/').next()) else {
            return category.into();
        };
        if let Some(&pair) = self.subcategories.get(&(class, file)) {
            return pair;
        }
        if self.subcategories.len() >= MAX_SUBCATEGORIES {
            return category.into();
        }
        let pair = self.out.add_subcategory(category, &printable(file));
        self.subcategories.insert((class, file), pair);
        pair
    }

    /// One marker over the whole recording says how it was taken.
    fn mark_recording(&mut self) {
        let Some(thread) = self.first_thread else {
            return;
        };
        let meta = self.profile.meta();
        let text = format!("{} samples at {} Hz ({})", self.profile.total(), meta.frequency_hz, meta.event.name());
        let end = Timestamp::from_nanos_since_reference(nanos(meta.duration));
        let marker = RecordingMarker {
            name: self.out.intern_string(RECORDING),
            text: self.out.intern_string(&text),
            start_ns: self.out.intern_string(&meta.start.0.to_string()),
        };
        self.out.add_marker(thread, MarkerTiming::Interval(start(), end), marker);
    }
}

fn start() -> Timestamp {
    Timestamp::from_nanos_since_reference(0)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The profiler's "JavaScript" view shows what the user's own program does, in whatever language; what was inlined, too.
fn flags(kind: FrameKind) -> FrameFlags {
    match kind {
        FrameKind::Jit | FrameKind::Interpreter => FrameFlags::IS_JS,
        FrameKind::Builtin => FrameFlags::IS_RELEVANT_FOR_JS,
        FrameKind::Kernel | FrameKind::Native | FrameKind::Span | FrameKind::Note => FrameFlags::empty(),
    }
}

/// The nearest of the profiler's few colours.
fn category_color(class: Class) -> CategoryColor {
    match class {
        Class::Task => CategoryColor::Transparent,
        Class::Kernel => CategoryColor::Orange,
        Class::Native => CategoryColor::Yellow,
        Class::Inlined | Class::Guess => CategoryColor::Magenta,
        Class::Jit | Class::Mid => CategoryColor::LightGreen,
        Class::Optimized => CategoryColor::Green,
        Class::Baseline => CategoryColor::LightBlue,
        Class::Interpreted => CategoryColor::Blue,
        Class::Builtin => CategoryColor::Purple,
        Class::Span => CategoryColor::LightRed,
        Class::Note => CategoryColor::Gray,
    }
}

/// Name and type of the marker.
pub(super) const RECORDING: &str = "Recording";

struct RecordingMarker {
    name: StringHandle,
    text: StringHandle,
    /// On CLOCK_MONOTONIC, the clock of trace logs; text, because JavaScript's numbers are too short.
    start_ns: StringHandle,
}

impl StaticSchemaMarker for RecordingMarker {
    const UNIQUE_MARKER_TYPE_NAME: &'static str = RECORDING;
    const TOOLTIP_LABEL: Option<&'static str> = Some("{marker.data.how}");
    const TABLE_LABEL: Option<&'static str> = Some("{marker.data.how}");
    const FIELDS: &'static [StaticSchemaMarkerField] = &[
        StaticSchemaMarkerField {
            key: "how",
            label: "How",
            format: MarkerFieldFormat::String,
            flags: MarkerFieldFlags::SEARCHABLE,
        },
        StaticSchemaMarkerField {
            key: "startNs",
            label: "Start on CLOCK_MONOTONIC (ns)",
            format: MarkerFieldFormat::String,
            flags: MarkerFieldFlags::empty(),
        },
    ];

    fn name(&self, _profile: &mut fx::Profile) -> StringHandle {
        self.name
    }

    fn category(&self, _profile: &mut fx::Profile) -> CategoryHandle {
        CategoryHandle::OTHER
    }

    fn string_field_value(&self, field_index: u32) -> StringHandle {
        if field_index == 0 { self.text } else { self.start_ns }
    }

    fn number_field_value(&self, _field_index: u32) -> f64 {
        0.0
    }
}
