//! Reads back a profile that jitprof wrote for the Firefox Profiler: the one output that keeps thread and time of the
//! samples. Frames come back by name and kind; files, lines, build ids and addresses do not.

use std::io::Read;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::Deserialize;
use serde_json::Value;

use super::color::Class;
use super::firefox::RECORDING;
use super::pprof::guessed_kind;
use crate::profile::{FrameId, Profile, ProfileMeta, Row, SampledEvent, StackId, Task};
use crate::symbol::{Frame, FrameKind, Tier};
use jitprof_common::units::{MonoNs, Pid, Tid};

/// Largest file that is read. It takes about as much memory as it is long.
const MAX_BYTES: u64 = 256 << 20;

/// A saved profile that cannot be read back.
#[derive(Debug, thiserror::Error)]
pub enum SavedError {
    /// The system says no, or it is no JSON, or not of this shape.
    #[error("it is no profile that jitprof saved for the Firefox Profiler: {0}")]
    Json(#[from] serde_json::Error),
    /// It is larger than [`MAX_BYTES`].
    #[error("it is larger than {} MiB", MAX_BYTES >> 20)]
    TooLarge,
    /// It was written by another program, or by a jitprof that did not say when it began.
    #[error(
        "it does not say when it began on CLOCK_MONOTONIC; only profiles that this version of jitprof or a later one \
         saved do"
    )]
    NoClock,
    /// An index leads nowhere.
    #[error("thread {thread}, {field}: an index leads out of its table")]
    Index {
        /// Position of the thread in the file.
        thread: usize,
        /// The column of the thread's table.
        field: &'static str,
    },
}

#[derive(Deserialize)]
struct Saved {
    meta: Meta,
    threads: Vec<Thread>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    start_time: f64,
    interval: f64,
    product: String,
    categories: Vec<Category>,
}

#[derive(Deserialize)]
struct Category {
    name: String,
    /// File names of modules.
    #[serde(default)]
    subcategories: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Thread {
    name: String,
    pid: Value,
    tid: Value,
    samples: Samples,
    stack_table: StackTable,
    frame_table: FrameTable,
    func_table: FuncTable,
    string_array: Vec<String>,
    markers: Markers,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Samples {
    stack: Vec<Option<usize>>,
    time_deltas: Vec<f64>,
    weight: Vec<u64>,
    /// In whole microseconds.
    #[serde(default, rename = "threadCPUDelta")]
    cpu_us: Vec<Option<u64>>,
}

#[derive(Deserialize)]
struct StackTable {
    prefix: Vec<Option<usize>>,
    frame: Vec<usize>,
}

#[derive(Deserialize)]
struct FrameTable {
    func: Vec<usize>,
    category: Vec<Option<usize>>,
    #[serde(default)]
    subcategory: Vec<Option<usize>>,
}

#[derive(Deserialize)]
struct FuncTable {
    name: Vec<usize>,
    #[serde(default, rename = "isJS")]
    is_js: Vec<bool>,
    #[serde(default, rename = "relevantForJS")]
    is_relevant_for_js: Vec<bool>,
}

#[derive(Deserialize)]
struct Markers {
    data: Vec<Value>,
    #[serde(default, rename = "endTime")]
    end_ms: Vec<Option<f64>>,
}

/// Reads a saved profile. Times are the starts of the buckets that it was saved with (1 ms).
///
/// # Errors
/// [`SavedError`].
pub fn read_saved(mut source: impl Read) -> Result<Profile, SavedError> {
    let mut bytes = Vec::new();
    source.by_ref().take(MAX_BYTES).read_to_end(&mut bytes).map_err(serde_json::Error::io)?;
    if bytes.len() as u64 == MAX_BYTES {
        return Err(SavedError::TooLarge);
    }
    let saved: Saved = serde_json::from_slice(&bytes)?;
    drop(bytes);
    let recording = saved.threads.iter().find_map(Recording::of).ok_or(SavedError::NoClock)?;
    let start = recording.text("startNs").and_then(|text| text.parse().ok()).ok_or(SavedError::NoClock)?;
    let how = recording.text("how").unwrap_or_default();
    let kinds = saved.meta.categories.iter().map(|category| (kind_of(&category.name), &*category.subcategories));
    let kinds: Vec<_> = kinds.collect();
    let mut profile = Profile::new(meta(&saved.meta, MonoNs(start), how), 0);
    let mut last_ns = recording.end_ms.map_or(0, nanoseconds);
    for (index, thread) in saved.threads.iter().enumerate() {
        let failed = |field| SavedError::Index { thread: index, field };
        last_ns = last_ns.max(read_thread(&mut profile, thread, &kinds, MonoNs(start)).map_err(failed)?);
    }
    profile.set_duration(Duration::from_nanos(last_ns));
    Ok(profile)
}

/// The marker that says how the recording was made.
struct Recording<'a> {
    thread: &'a Thread,
    data: &'a Value,
    end_ms: Option<f64>,
}

impl<'a> Recording<'a> {
    fn of(thread: &'a Thread) -> Option<Self> {
        let at = thread.markers.data.iter().position(|data| data["type"] == RECORDING)?;
        let end_ms = thread.markers.end_ms.get(at).copied().flatten();
        Some(Self { thread, data: thread.markers.data.get(at)?, end_ms })
    }

    /// A field, which is an index into its thread's strings.
    fn text(&self, field: &str) -> Option<&'a str> {
        let index = usize::try_from(self.data[field].as_u64()?).ok()?;
        self.thread.string_array.get(index).map(String::as_str)
    }
}

fn meta(saved: &Meta, start: MonoNs, how: &str) -> ProfileMeta {
    ProfileMeta {
        title: saved.product.clone(),
        start_time: SystemTime::UNIX_EPOCH + Duration::try_from_secs_f64(saved.start_time / 1e3).unwrap_or_default(),
        start,
        duration: Duration::ZERO,
        frequency_hz: frequency(saved.interval),
        event: if how.contains("(cycles)") { SampledEvent::Cycles } else { SampledEvent::CpuClock },
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to the range of frequencies; the standard library has no checked cast from f64"
)]
fn frequency(interval_ms: f64) -> NonZeroU32 {
    let hz = (1e3 / interval_ms).round().clamp(1.0, 1e9) as u32;
    NonZeroU32::new(hz).unwrap_or(NonZeroU32::MIN)
}

/// Adds the thread's samples; an error is the column whose index leads nowhere. Returns the last time since the start.
fn read_thread(
    profile: &mut Profile,
    thread: &Thread,
    kinds: &[(Option<Kind>, &[String])],
    start: MonoNs,
) -> Result<u64, &'static str> {
    let mut frames: Vec<FrameId> = Vec::with_capacity(thread.frame_table.func.len());
    for (index, &func) in thread.frame_table.func.iter().enumerate() {
        let name = *thread.func_table.name.get(func).ok_or("frameTable.func")?;
        let name = thread.string_array.get(name).ok_or("funcTable.name")?.as_str();
        let category = thread.frame_table.category.get(index).copied().flatten();
        let known = category.and_then(|category| kinds.get(category)).copied();
        let (known, modules) = known.unwrap_or((Some((FrameKind::Native, None, false)), &[]));
        let module = thread.frame_table.subcategory.get(index).copied().flatten().and_then(|at| modules.get(at));
        let (kind, tier, inlined) = known.unwrap_or_else(|| inlined_kind(&thread.func_table, func, (name, module)));
        // The tier's mark was put there when it was written; what an interpreter without tiers runs has none.
        let tier = tier.filter(|tier| name.starts_with(tier.mark()));
        let name = tier.map_or(name, |tier| tier.unmarked(name));
        let frame = Frame { name: Arc::from(name), kind, tier, inlined, module: None, source: None, address: 0 };
        frames.push(profile.intern_frame(&frame));
    }
    let mut stacks: Vec<StackId> = Vec::with_capacity(thread.stack_table.frame.len());
    for (index, &frame) in thread.stack_table.frame.iter().enumerate() {
        let frame = *frames.get(frame).ok_or("stackTable.frame")?;
        // A prefix stands before what was pushed onto it, so a loop cannot be written.
        let prefix = match thread.stack_table.prefix.get(index).copied().flatten() {
            Some(prefix) => *stacks.get(prefix).ok_or("stackTable.prefix")?,
            None => profile.stack_root(),
        };
        stacks.push(profile.push(prefix, frame));
    }
    let number = |value: &Value| match value {
        Value::String(text) => text.split('.').next().and_then(|text| text.parse().ok()),
        value => value.as_u64().and_then(|number| u32::try_from(number).ok()),
    };
    let task = profile.task(Task {
        pid: Pid(number(&thread.pid).unwrap_or(0)),
        process_start: 0,
        tid: Tid(number(&thread.tid).unwrap_or(0)),
        comm: Arc::from(thread.name.as_str()),
        labels: Arc::default(),
    });
    let period_ns = profile.meta().period_ns();
    let columns = thread.samples.time_deltas.iter().zip(&thread.samples.stack).zip(&thread.samples.weight);
    let mut at_ms = 0.0;
    for (index, ((delta, stack), &count)) in columns.enumerate() {
        at_ms += delta;
        let stack = match stack {
            Some(stack) => *stacks.get(*stack).ok_or("samples.stack")?,
            None => profile.stack_root(),
        };
        let time = MonoNs(start.0.saturating_add(nanoseconds(at_ms)));
        // What the frequency says is exact, but the frequency may have changed.
        let by_frequency = count.saturating_mul(period_ns);
        let told = thread.samples.cpu_us.get(index).copied().flatten().filter(|us| *us != by_frequency / 1000);
        let cpu_ns = told.map_or(by_frequency, |us| us.saturating_mul(1000));
        profile.add_row(Row { time, task, stack, count, cpu_ns });
    }
    Ok(nanoseconds(at_ms))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from f64 saturates; the standard library has no checked one"
)]
fn nanoseconds(ms: f64) -> u64 {
    (ms * 1e6).round() as u64
}

/// Kind and tier of a frame, and whether it was inlined.
type Kind = (FrameKind, Option<Tier>, bool);

/// What a category's frames are; `None` for inlined ones, of which it says no more.
fn kind_of(category: &str) -> Option<Kind> {
    let class = Class::ALL.into_iter().find(|class| class.label() == category);
    Some(match class {
        Some(Class::Inlined) => return None,
        Some(Class::Kernel) => (FrameKind::Kernel, None, false),
        Some(Class::Guess) => (FrameKind::Jit, None, true),
        Some(Class::Jit) => (FrameKind::Jit, None, false),
        Some(Class::Optimized) => (FrameKind::Jit, Some(Tier::Optimized), false),
        Some(Class::Mid) => (FrameKind::Jit, Some(Tier::Mid), false),
        Some(Class::Baseline) => (FrameKind::Jit, Some(Tier::Baseline), false),
        Some(Class::Interpreted) => (FrameKind::Interpreter, Some(Tier::Interpreted), false),
        Some(Class::Builtin) => (FrameKind::Builtin, None, false),
        Some(Class::Span) => (FrameKind::Span, None, false),
        Some(Class::Note | Class::Task) => (FrameKind::Note, None, false),
        Some(Class::Native) | None => (FrameKind::Native, None, false),
    })
}

/// What an inlined function is: by its flags, else by its module, which is all that earlier files have. Its tier is in
/// its name.
fn inlined_kind(functions: &FuncTable, func: usize, (name, module): (&str, Option<&String>)) -> Kind {
    let has = |flags: &[bool]| flags.get(func).copied().unwrap_or(false);
    let kind = if has(&functions.is_js) {
        FrameKind::Jit
    } else if has(&functions.is_relevant_for_js) {
        FrameKind::Builtin
    } else {
        guessed_kind(module.map(String::as_str))
    };
    let is_marked = |tier: &Tier| kind == FrameKind::Jit && tier.unmarked(name).len() < name.len();
    (kind, Tier::ALL.into_iter().find(is_marked), true)
}
