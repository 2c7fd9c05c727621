//! pprof: gzipped protobuf.
//!
//! Samples are written one by one ahead of the tables they refer to, which protobuf allows, so that only the tables are
//! held in memory. The gzip header has no time, so equal profiles are equal files.

use std::io::{self, Write};
use std::time::UNIX_EPOCH;

use flate2::Compression;
use flate2::write::GzEncoder;
use indexmap::IndexMap;
use prost::Message;
use prost::encoding::message;
use rustc_hash::{FxBuildHasher, FxHashMap};

mod error;
mod kinds;
mod labels;
pub(crate) mod read;
pub(crate) mod sources;
mod tables;
mod values;
mod wire;

pub use error::PprofError;
pub(super) use kinds::guessed as guessed_kind;
pub use read::read_pprof;

use super::frame_names::frame_name;
use super::options::OutputOptions;
use super::proto::{
    Label, Line, Location, Mapping, Profile as ProtoProfile, ProtoFunction, SAMPLE_TAG, Sample, VERSION, ValueType,
};
use crate::profile::printable;
use crate::profile::{FrameId, FrameRef, ModuleRef, Profile, Row, SampledEvent, TaskId};
use crate::symbol::FrameKind;

/// zlib's default compromise of speed and size.
const GZIP_LEVEL: u32 = 6;

/// Choices about the bytes of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Encoding<'a> {
    pub(crate) gzip_level: u32,
    /// Whether samples have labels: thread, process, container and so on.
    pub(crate) with_labels: bool,
    /// The archive's numbers of what was merged into the profile.
    pub(crate) parts: &'a [u64],
}

impl Default for Encoding<'_> {
    fn default() -> Self {
        Self { gzip_level: GZIP_LEVEL, with_labels: true, parts: &[] }
    }
}

pub(super) fn write(profile: &Profile, options: &OutputOptions, writer: impl Write) -> io::Result<()> {
    encode(profile, Encoding { with_labels: !options.without_labels, ..Encoding::default() }, writer).map(drop)
}

/// What a reader of a file has to take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Written {
    /// Bytes before they were packed.
    bytes: u64,
    /// Entries of the largest table.
    entries: usize,
    /// Frames of all samples together.
    frames: u64,
}

impl Written {
    /// Whether a reader that takes so much takes it.
    #[cfg_attr(not(feature = "serve"), expect(dead_code, reason = "the archive asks"))]
    pub(crate) fn is_within(&self, limits: &sources::ReadLimits) -> bool {
        self.bytes <= limits.bytes && self.entries <= limits.entries && self.frames <= limits.frames
    }
}

/// Writes a profile, also one without samples.
pub(crate) fn encode(profile: &Profile, encoding: Encoding<'_>, writer: impl Write) -> io::Result<Written> {
    let mut written = Written::default();
    let mut gzip = GzEncoder::new(writer, Compression::new(encoding.gzip_level));
    let mut tables = Tables::new(profile);
    let mut frames = Vec::new();
    let mut encoded = Vec::new();
    for row in profile.rows_without_time() {
        profile.frames_of(row.stack, &mut frames);
        let labels = if encoding.with_labels { tables.labels(row.task) } else { Vec::new() };
        let sample = tables.sample(&row, &frames, labels);
        encoded.clear();
        message::encode(SAMPLE_TAG, &sample, &mut encoded);
        written.bytes += encoded.len() as u64;
        written.frames += frames.len() as u64;
        gzip.write_all(&encoded)?;
    }
    let tables = tables.finish(encoding.parts);
    let lengths = [tables.string_table.len(), tables.location.len(), tables.function.len(), tables.mapping.len()];
    let lines = tables.location.iter().map(|location| location.line.len()).sum();
    written.entries = lengths.into_iter().chain([lines, tables.parts.len()]).max().unwrap_or(0);
    let encoded = tables.encode_to_vec();
    written.bytes += encoded.len() as u64;
    gzip.write_all(&encoded)?;
    gzip.finish()?.flush()?;
    Ok(written)
}

/// When the process started, which tells two processes of one pid apart.
const PROCESS_START: &str = "process_start";

/// Labels that say something of the task itself.
const RESERVED: [&str; 4] = ["pid", "tid", "thread", PROCESS_START];

/// A file's range of addresses in the profile.
#[derive(Debug)]
struct Extent {
    lowest: u64,
    highest: u64,
    /// How often a sample has a frame there, to find the main binary.
    weight: u64,
}

/// The tables that samples refer to, filled in the order of need.
struct Tables<'a> {
    profile: &'a Profile,
    strings: IndexMap<String, ()>,
    /// Functions by name, system name, file and kind.
    functions: IndexMap<(i64, i64, i64, u64), (), FxBuildHasher>,
    /// Locations by the frames they stand for, one function and those inlined into it, with their samples. Its keys are
    /// numbers of ours, which nobody outside can choose.
    locations: IndexMap<Vec<FrameId>, u64, FxBuildHasher>,
    labels: FxHashMap<TaskId, Vec<Label>>,
}

impl<'a> Tables<'a> {
    fn new(profile: &'a Profile) -> Self {
        let mut tables = Self {
            profile,
            strings: IndexMap::new(),
            functions: IndexMap::default(),
            locations: IndexMap::default(),
            labels: FxHashMap::default(),
        };
        tables.string("");
        tables
    }

    fn string(&mut self, text: &str) -> i64 {
        let index = match self.strings.get_index_of(text) {
            Some(index) => index,
            None => self.strings.insert_full(text.to_owned(), ()).0,
        };
        signed(index)
    }

    fn sample(&mut self, row: &Row, frames: &[FrameId], label: Vec<Label>) -> Sample {
        let mut location_id: Vec<_> =
            physical_frames(self.profile, frames).map(|group| self.location(group, row.count)).collect();
        location_id.reverse();
        let time = signed(row.cpu_ns);
        let value = if self.is_span_time() { vec![time] } else { vec![signed(row.count), time] };
        Sample { location_id, value, label }
    }

    /// Whether there are no samples, but nanoseconds only.
    fn is_span_time(&self) -> bool {
        self.profile.meta().event == SampledEvent::SpanTime
    }

    fn labels(&mut self, task: TaskId) -> Vec<Label> {
        if let Some(labels) = self.labels.get(&task) {
            return labels.clone();
        }
        let task_value = self.profile.task_of(task);
        let comm = printable(&task_value.comm);
        let (pid, tid) = (task_value.pid.0, task_value.tid.0);
        let text = |tables: &mut Self, key: &str, value: &str| Label {
            key: tables.string(key),
            str: tables.string(value),
            num: 0,
            num_unit: 0,
        };
        let number =
            |tables: &mut Self, key: &str, num: i64| Label { key: tables.string(key), str: 0, num, num_unit: 0 };
        let mut labels = vec![number(self, "pid", pid.into()), number(self, "tid", tid.into())];
        if task_value.process_start != 0 {
            labels.push(number(self, PROCESS_START, task_value.process_start.cast_signed()));
        }
        // The process' name if it is known, else the thread's, which then stands before `thread`.
        if task_value.labels.get("comm").is_none() {
            labels.push(text(self, "comm", &comm));
        }
        labels.push(text(self, "thread", &format!("{comm}-{tid}")));
        let known = task_value.labels.iter().filter(|(name, _)| !RESERVED.contains(&&***name));
        let mut others: Vec<_> = known.map(|(name, value)| (printable(name), printable(value))).collect();
        // As they will be sorted when they are read back.
        others.sort_by(|one, other| one.0.cmp(&other.0));
        others.dedup_by(|later, kept| later.0 == kept.0);
        for (name, value) in others {
            labels.push(text(self, &name, &value));
        }
        self.labels.insert(task, labels.clone());
        labels
    }

    fn location(&mut self, group: &[FrameId], count: u64) -> u64 {
        let index = match self.locations.get_full_mut(group) {
            Some((index, _, samples)) => {
                *samples = samples.saturating_add(count);
                index
            }
            None => self.locations.insert_full(group.to_vec(), count).0,
        };
        id(index)
    }

    fn line(&mut self, frame: FrameRef<'_>) -> Line {
        let name = self.string(&frame_name(frame, false));
        let system_name = self.string(&printable(frame.name));
        let source = frame.source.unwrap_or_default();
        let file = if source.file.is_empty() { 0 } else { self.string(&printable(source.file)) };
        let kind = kinds::code(frame.kind, frame.tier);
        let function = self.functions.insert_full((name, system_name, file, kind), ()).0;
        let column = source.column.map_or(0, |column| column.get().into());
        Line { function_id: id(function), line: source.line.into(), column }
    }

    fn finish(mut self, parts: &[u64]) -> ProtoProfile {
        let meta = self.profile.meta();
        let modules = self.modules();
        let groups: Vec<_> = self.locations.keys().cloned().collect();
        let location = groups.iter().enumerate().map(|(index, group)| {
            let frame = self.profile.frame(group[0]);
            Location {
                id: id(index),
                mapping_id: frame.module.and_then(|module| modules.get_index_of(&module)).map_or(0, id),
                address: frame.address,
                line: group.iter().rev().map(|&frame| self.line(self.profile.frame(frame))).collect(),
                inlined: frame.inlined,
            }
        });
        let location = location.collect();
        let mapping = self.mappings(&modules);
        let (samples, count) = (self.string("samples"), self.string("count"));
        let is_span_time = self.is_span_time();
        let (time, nanoseconds) = (self.string(if is_span_time { "span" } else { "cpu" }), self.string("nanoseconds"));
        let time_value = ValueType { r#type: time, unit: nanoseconds };
        let counted = (!is_span_time).then_some(ValueType { r#type: samples, unit: count });
        let comment = vec![self.string(&printable(&meta.title)), {
            let event = match meta.event {
                SampledEvent::SpanTime => "time in the spans of a trace log".to_owned(),
                event => format!("event: {}, {} Hz", event.name(), meta.frequency_hz),
            };
            self.string(&event)
        }];
        let since_1970 = meta.start_time.duration_since(UNIX_EPOCH).unwrap_or_default();
        ProtoProfile {
            sample_type: counted.into_iter().chain([time_value.clone()]).collect(),
            mapping,
            location,
            function: self.function_table(),
            string_table: self.strings.into_keys().collect(),
            time_nanos: signed(since_1970.as_nanos()),
            duration_nanos: signed(meta.duration.as_nanos()),
            period_type: Some(time_value),
            period: signed(meta.period_ns()),
            comment,
            default_sample_type: time,
            jitprof: VERSION,
            parts: parts.to_vec(),
        }
    }

    /// Modules in the order of the file: pprof takes the first one for the main binary, so the file with the most
    /// samples stands first, and what is no file stands last.
    fn modules(&self) -> IndexMap<ModuleRef<'a>, Extent> {
        let mut modules: IndexMap<ModuleRef<'a>, Extent> = IndexMap::new();
        for (group, samples) in &self.locations {
            let frame = self.profile.frame(group[0]);
            let Some(module) = frame.module else { continue };
            let extent = modules.entry(module).or_insert(Extent { lowest: u64::MAX, highest: 0, weight: 0 });
            extent.lowest = extent.lowest.min(frame.address);
            extent.highest = extent.highest.max(frame.address);
            extent.weight = extent.weight.saturating_add(*samples);
        }
        modules.sort_by_cached_key(|module, extent| {
            (module.path.starts_with('['), std::cmp::Reverse(extent.weight), *module)
        });
        modules
    }

    /// The range of a file is that of the addresses seen in it, in whole pages: what was really mapped is not known
    /// here. For ELF code the addresses are file offsets, so its range begins at offset 0.
    fn mappings(&mut self, modules: &IndexMap<ModuleRef<'a>, Extent>) -> Vec<Mapping> {
        const PAGE: u64 = 0x1000;
        let mut mappings = Vec::with_capacity(modules.len());
        for (index, (module, extent)) in modules.iter().enumerate() {
            let is_file = !module.path.starts_with('[');
            mappings.push(Mapping {
                id: id(index),
                memory_start: if is_file { 0 } else { extent.lowest & !(PAGE - 1) },
                memory_limit: (extent.highest | (PAGE - 1)).saturating_add(1),
                file_offset: 0,
                filename: self.string(&printable(module.path)),
                build_id: module.build_id.map_or(0, |build_id| self.string(&printable(build_id))),
                has_functions: true,
                has_filenames: true,
                has_line_numbers: true,
                has_inline_frames: true,
            });
        }
        mappings
    }

    fn function_table(&self) -> Vec<ProtoFunction> {
        let table = self.functions.keys().enumerate();
        table
            .map(|(index, &(name, system_name, filename, kind))| ProtoFunction {
                id: id(index),
                name,
                system_name,
                filename,
                kind,
            })
            .collect()
    }
}

/// Splits frames (root first) into what is one place in the code each: a function and those inlined into it there.
fn physical_frames<'f>(profile: &'f Profile, frames: &'f [FrameId]) -> impl Iterator<Item = &'f [FrameId]> {
    frames.chunk_by(|&outer, &inner| {
        let (outer, inner) = (profile.frame(outer), profile.frame(inner));
        inner.inlined && inner.kind != FrameKind::Note && (inner.module, inner.address) == (outer.module, outer.address)
    })
}

/// pprof's ids count from 1.
fn id(index: usize) -> u64 {
    u64::try_from(index).map_or(u64::MAX, |index| index.saturating_add(1))
}

/// pprof's numbers are signed.
fn signed(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}
