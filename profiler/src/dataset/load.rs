//! A dataset's rows as a profile, which all outputs of `jitprof report` show.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use indexmap::IndexSet;
use parquet::data_type::ByteArray;

use super::name::Partition;
use super::query::DatasetQuery;
use super::read::{Cells, Opened, Source, Wanted};
use super::rows::{FrameRow, Tags};
use super::store::{Entry, Store};
use super::{DatasetError, Table};
use crate::profile::{
    FrameId, FrameRef, Limits, ModuleRef, Profile, ProfileMeta, Row, SampledEvent, SourceRef, Task, printable,
};
use crate::symbol::FrameKind;
use jitprof_common::units::{MonoNs, Pid, Tid};

/// Distinct stacks, and their frames all together.
const MAX_STACKS: usize = 1 << 20;
const MAX_STACK_FRAMES: usize = 1 << 26;
/// Distinct threads of processes.
const MAX_TAGS: usize = 1 << 18;
/// Distinct pairs of these.
const MAX_SUMS: usize = 1 << 23;
/// Steps of time that count towards the recorded time.
const MAX_STEPS: usize = 1 << 20;
/// Longest text.
const MAX_TEXT: usize = 4096;
/// Labels of one row.
const MAX_LABELS: usize = 64;
/// Deepest stack.
const MAX_DEPTH: usize = 4096;

const SAMPLES: [Wanted; 13] = [
    Wanted::plain("time"),
    Wanted::plain("length_ms"),
    Wanted::plain("pid"),
    Wanted::plain("samples"),
    Wanted::plain("cpu_ns"),
    Wanted::plain("host"),
    Wanted::plain("service"),
    Wanted::plain("version"),
    Wanted::plain("comm"),
    Wanted::plain("thread"),
    Wanted::list("labels", Some("key")),
    Wanted::list("labels", Some("value")),
    Wanted::list("stack", None),
];
const FRAMES: [Wanted; 9] = [
    Wanted::plain("frame"),
    Wanted::plain("line"),
    Wanted::plain("inlined"),
    Wanted::plain("name"),
    Wanted::plain("kind"),
    Wanted::plain("tier"),
    Wanted::plain("module"),
    Wanted::plain("build_id"),
    Wanted::plain("file"),
];

/// Samples as they are summed up.
#[derive(Default)]
struct Sums {
    tags: IndexSet<Tags>,
    stacks: IndexSet<Arc<[i64]>>,
    stack_frames: usize,
    sums: HashMap<(usize, usize), (u64, u64)>,
    steps: BTreeMap<i64, i64>,
    /// Those that did not pass, so that each is looked at once.
    refused: HashSet<Tags>,
}

/// Reads what is wanted of a dataset, or of some of its files alone; `None` if that is nothing.
///
/// # Errors
/// [`DatasetError`].
pub fn load(store: &Store, only: Option<&str>, query: &DatasetQuery) -> Result<Option<Profile>, DatasetError> {
    let may_hold = |path: &str| query.may_hold(path) && only.is_none_or(|only| only.starts_with(path));
    let entries = store.list(Table::Samples.name(), &may_hold)?;
    let mut sums = Sums::default();
    let (mut days, mut hosts) = (BTreeSet::new(), BTreeSet::new());
    for entry in &entries {
        let source = store.source(entry)?;
        let before = sums.sums.len();
        sums.read(entry, &*source, query)?;
        if sums.sums.len() > before || before > 0 {
            let partition = Partition::of(&entry.path);
            days.insert(partition.day);
            hosts.insert(partition.host);
        }
    }
    if sums.sums.is_empty() {
        return Ok(None);
    }
    // A host writes a frame once in a day; files that an engine has put together say less in their paths.
    let may_name = |path: &str| {
        let partition = Partition::of(path);
        let of = |known: &BTreeSet<Option<&str>>, part: Option<&str>| {
            part.is_none() || known.contains(&None) || known.contains(&part)
        };
        of(&days, partition.day) && of(&hosts, partition.host)
    };
    let frames = read_frames(store, &store.list(Table::Frames.name(), &may_name)?, &sums.stacks)?;
    Ok(Some(sums.into_profile(&frames)))
}

impl Sums {
    fn read(&mut self, entry: &Entry, source: &dyn Source, query: &DatasetQuery) -> Result<(), DatasetError> {
        let opened = Opened::open(&entry.path, source)?;
        let range = query.range_us();
        for group in opened.groups(range.clone(), &query.texts()) {
            opened.visit(group, &SAMPLES, |rows, cells| {
                let mut last: Option<(usize, Option<usize>)> = None;
                for row in 0..rows {
                    let time = cells[0].number(row);
                    if !range.contains(&time) {
                        continue;
                    }
                    let tag = match last {
                        Some((of, tag)) if same_tags(cells, of, row) => tag,
                        _ => self.tag(cells, row, query)?,
                    };
                    last = Some((row, tag));
                    let Some(tag) = tag else { continue };
                    let stack = self.stack(cells[12].numbers(row))?;
                    if self.sums.len() >= MAX_SUMS && !self.sums.contains_key(&(tag, stack)) {
                        return Err(DatasetError::TooMuch { what: "rows", limit: MAX_SUMS });
                    }
                    let sum = self.sums.entry((tag, stack)).or_default();
                    sum.0 = sum.0.saturating_add(u64::try_from(cells[3].number(row)).unwrap_or(0));
                    sum.1 = sum.1.saturating_add(u64::try_from(cells[4].number(row)).unwrap_or(0));
                    if self.steps.len() < MAX_STEPS {
                        let length = self.steps.entry(time).or_default();
                        *length = cells[1].number(row).clamp(*length, 86_400_000);
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Whose a row is; `None` if it is not wanted.
    fn tag(&mut self, cells: &[Cells], row: usize, query: &DatasetQuery) -> Result<Option<usize>, DatasetError> {
        let labels = cells[10].texts(row).iter().zip(cells[11].texts(row)).take(MAX_LABELS);
        let tags = Tags {
            host: text(cells[5].text(row)),
            service: text(cells[6].text(row)),
            version: text(cells[7].text(row)),
            comm: text(cells[8].text(row)),
            thread: text(cells[9].text(row)),
            pid: i32::try_from(cells[2].number(row)).unwrap_or(0),
            labels: labels.map(|(name, value)| (text(name.data()), text(value.data()))).collect(),
        };
        if let Some(at) = self.tags.get_index_of(&tags) {
            return Ok(Some(at));
        }
        if self.refused.contains(&tags) {
            return Ok(None);
        }
        if !query.filter.is_empty() && !query.filter.passes(&task(&tags)) {
            if self.refused.len() < MAX_TAGS {
                self.refused.insert(tags);
            }
            return Ok(None);
        }
        if self.tags.len() >= MAX_TAGS {
            return Err(DatasetError::TooMuch { what: "threads of processes", limit: MAX_TAGS });
        }
        Ok(Some(self.tags.insert_full(tags).0))
    }

    fn stack(&mut self, frames: &[i64]) -> Result<usize, DatasetError> {
        // The callers that are beyond it go.
        let frames = &frames[frames.len().saturating_sub(MAX_DEPTH)..];
        if let Some(at) = self.stacks.get_index_of(frames) {
            return Ok(at);
        }
        self.stack_frames += frames.len();
        if self.stacks.len() >= MAX_STACKS {
            return Err(DatasetError::TooMuch { what: "stacks", limit: MAX_STACKS });
        }
        if self.stack_frames > MAX_STACK_FRAMES {
            return Err(DatasetError::TooMuch { what: "frames of all stacks", limit: MAX_STACK_FRAMES });
        }
        Ok(self.stacks.insert_full(Arc::from(frames)).0)
    }

    fn into_profile(self, frames: &HashMap<i64, FrameRow>) -> Profile {
        let total = self
            .sums
            .values()
            .fold((0_u64, 0_u64), |sum, one| (sum.0.saturating_add(one.0), sum.1.saturating_add(one.1)));
        let start_us = self.steps.keys().next().copied().unwrap_or(0);
        let meta = ProfileMeta {
            title: "Dataset".to_owned(),
            start_time: UNIX_EPOCH + Duration::from_micros(u64::try_from(start_us).unwrap_or(0)),
            start: MonoNs(0),
            duration: covered(&self.steps),
            frequency_hz: frequency(total),
            event: SampledEvent::CpuClock,
        };
        let limits = Limits { tasks: MAX_TAGS, rows: MAX_SUMS, ..Limits::default() };
        let mut profile = Profile::with_limits(meta, u64::MAX, limits);
        let mut known: HashMap<i64, FrameId> = HashMap::new();
        let stacks = self.stacks.iter().map(|numbers| {
            numbers.iter().fold(profile.stack_root(), |stack, number| {
                let frame = *known.entry(*number).or_insert_with(|| intern(&mut profile, frames.get(number), *number));
                profile.push(stack, frame)
            })
        });
        let stacks: Vec<_> = stacks.collect();
        let tasks: Vec<_> = self.tags.iter().map(|tags| profile.task(task(tags))).collect();
        let mut sums: Vec<_> = self.sums.into_iter().collect();
        sums.sort_unstable();
        for ((tag, stack), (count, cpu_ns)) in sums {
            profile.add_row(Row { time: MonoNs(0), task: tasks[tag], stack: stacks[stack], count, cpu_ns });
        }
        profile
    }
}

fn same_tags(cells: &[Cells], one: usize, other: usize) -> bool {
    cells[2].number(one) == cells[2].number(other)
        && cells[5..10].iter().all(|column| column.text(one) == column.text(other))
        && cells[10..12].iter().all(|column| column.texts(one) == column.texts(other))
}

/// The thread that outputs see. Processes of two hosts may have the same number; the host is among the labels.
fn task(tags: &Tags) -> Task {
    let own = [("host", &tags.host), ("service", &tags.service), ("version", &tags.version), ("comm", &tags.comm)];
    let labels = tags.labels.iter().map(|(name, value)| (&**name, value));
    let pid = u32::try_from(tags.pid).unwrap_or(0);
    Task {
        pid: Pid(pid),
        process_start: 0,
        tid: Tid(pid),
        comm: Arc::from(&*tags.thread),
        labels: Arc::new(own.into_iter().chain(labels).map(|(name, value)| (name, &**value)).collect()),
    }
}

fn intern(profile: &mut Profile, row: Option<&FrameRow>, number: i64) -> FrameId {
    let note = format!("[frame {number:016x} is not in the dataset]");
    let some = |text: &'static str| FrameRef {
        name: text,
        kind: FrameKind::Note,
        tier: None,
        inlined: false,
        module: None,
        source: None,
        address: 0,
    };
    let Some(row) = row else { return profile.intern_frame_ref(&FrameRef { name: &note, ..some("") }) };
    let build_id = (!row.build_id.is_empty()).then_some(&*row.build_id);
    // As files have them: else a function with a line feed in its name would be another one than theirs.
    let [name, path, file] = [&row.name, &row.module, &row.file].map(|text| printable(text));
    let path: &str = if row.module.is_empty() { "" } else { &path };
    let module = (!row.module.is_empty() || build_id.is_some()).then_some(ModuleRef { path, build_id });
    profile.intern_frame_ref(&FrameRef {
        name: if row.name.is_empty() { "[unknown]" } else { &name },
        kind: row.frame_kind(),
        tier: row.frame_tier(),
        inlined: row.inlined,
        module,
        source: (!row.file.is_empty()).then(|| SourceRef::new(&file, u32::try_from(row.line).unwrap_or(0))),
        address: 0,
    })
}

/// The frames that stacks have, by number.
fn read_frames(
    store: &Store,
    entries: &[Entry],
    stacks: &IndexSet<Arc<[i64]>>,
) -> Result<HashMap<i64, FrameRow>, DatasetError> {
    let mut wanted: HashSet<i64> = stacks.iter().flat_map(|stack| stack.iter().copied()).collect();
    let mut found = HashMap::new();
    for entry in entries {
        if wanted.is_empty() {
            break;
        }
        let source = store.source(entry)?;
        visit_frames(&entry.path, &*source, |row| {
            if wanted.remove(&row.0) {
                found.insert(row.0, row.1());
            }
        })?;
    }
    Ok(found)
}

/// Gives each row's number, and the row if it is wanted.
fn visit_frames(
    name: &str,
    source: &dyn Source,
    mut visit: impl FnMut((i64, &dyn Fn() -> FrameRow)),
) -> Result<(), DatasetError> {
    let opened = Opened::open(name, source)?;
    for group in opened.groups(i64::MIN..i64::MAX, &[]) {
        opened.visit(group, &FRAMES, |rows, cells| {
            for row in 0..rows {
                let make = || FrameRow {
                    frame: cells[0].number(row),
                    line: i32::try_from(cells[1].number(row)).unwrap_or(0),
                    inlined: cells[2].number(row) != 0,
                    name: text(cells[3].text(row)),
                    kind: text(cells[4].text(row)),
                    tier: text(cells[5].text(row)),
                    module: text(cells[6].text(row)),
                    build_id: text(cells[7].text(row)),
                    file: text(cells[8].text(row)),
                };
                visit((cells[0].number(row), &make));
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_TEXT)]).into_owned()
}

impl Cells {
    fn number(&self, row: usize) -> i64 {
        match self {
            Self::Numbers(numbers) => numbers.get(row).copied().unwrap_or(0),
            _ => 0,
        }
    }

    fn text(&self, row: usize) -> &[u8] {
        match self {
            Self::Texts(texts) => texts.get(row).map_or(&[], some_data),
            _ => &[],
        }
    }

    fn numbers(&self, row: usize) -> &[i64] {
        match self {
            Self::NumberLists(values, ends) => values.get(bounds(ends, row)).unwrap_or(&[]),
            _ => &[],
        }
    }

    fn texts(&self, row: usize) -> &[ByteArray] {
        match self {
            Self::TextLists(values, ends) => values.get(bounds(ends, row)).unwrap_or(&[]),
            _ => &[],
        }
    }
}

/// A null is an empty text.
fn some_data(text: &ByteArray) -> &[u8] {
    if text.is_empty() { &[] } else { text.data() }
}

fn bounds(ends: &[usize], row: usize) -> std::ops::Range<usize> {
    let start = row.checked_sub(1).and_then(|before| ends.get(before)).copied().unwrap_or(0);
    start..ends.get(row).copied().unwrap_or(start)
}

/// How much time the steps hold; what two of them hold counts once.
fn covered(steps: &BTreeMap<i64, i64>) -> Duration {
    let (mut sum_us, mut known_to) = (0_i64, i64::MIN);
    for (&start, &length_ms) in steps {
        let end = start.saturating_add(length_ms.saturating_mul(1000));
        sum_us = sum_us.saturating_add(end.saturating_sub(start.max(known_to)).max(0));
        known_to = known_to.max(end);
    }
    Duration::from_micros(u64::try_from(sum_us).unwrap_or(0))
}

/// What one sample stands for, turned round.
fn frequency((samples, cpu_ns): (u64, u64)) -> NonZeroU32 {
    let hz = u128::from(samples) * 1_000_000_000 / u128::from(cpu_ns.max(1));
    u32::try_from(hz).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN)
}

/// All rows of a file's bytes.
#[cfg(test)]
pub(super) fn sample_rows(file: &[u8]) -> Result<Vec<super::SampleRow>, DatasetError> {
    let mut found = Vec::new();
    let source = axum::body::Bytes::copy_from_slice(file);
    let opened = Opened::open("a file", &source)?;
    for group in opened.groups(i64::MIN..i64::MAX, &[]) {
        opened.visit(group, &SAMPLES, |rows, cells| {
            for row in 0..rows {
                let labels = cells[10].texts(row).iter().zip(cells[11].texts(row));
                let text = |at: usize| String::from_utf8_lossy(cells[at].text(row)).into_owned();
                let whole = |text: &ByteArray| String::from_utf8_lossy(some_data(text)).into_owned();
                let tags = Tags {
                    host: text(5),
                    service: text(6),
                    version: text(7),
                    comm: text(8),
                    thread: text(9),
                    pid: i32::try_from(cells[2].number(row)).unwrap_or(0),
                    labels: labels.map(|(name, value)| (whole(name), whole(value))).collect(),
                };
                found.push(super::SampleRow {
                    time_us: cells[0].number(row),
                    length_ms: i32::try_from(cells[1].number(row)).unwrap_or(0),
                    tags: Arc::new(tags),
                    stack: Arc::from(cells[12].numbers(row)),
                    samples: cells[3].number(row),
                    cpu_ns: cells[4].number(row),
                });
            }
            Ok(())
        })?;
    }
    Ok(found)
}

/// All frames of a file's bytes.
#[cfg(test)]
pub(super) fn frame_rows(file: &[u8]) -> Result<Vec<FrameRow>, DatasetError> {
    let mut found = Vec::new();
    visit_frames("a file", &axum::body::Bytes::copy_from_slice(file), |row| found.push(row.1()))?;
    Ok(found)
}
