//! Rows of the two tables, and how a profile becomes them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use indexmap::IndexSet;
use rustc_hash::FxHashMap;

use crate::profile::{FrameId, FrameRef, Profile, SourceRef, StackId, Task, TaskId, label_of, printable};
use crate::symbol::{FrameKind, Tier};

/// Samples of one stack of one thread name of a process in one step of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleRow {
    /// When the step begins, in microseconds since 1970.
    pub time_us: i64,
    /// How long it is.
    pub length_ms: i32,
    /// What all rows of a process' thread have in common.
    pub tags: Arc<Tags>,
    /// The frames' numbers, the root first.
    pub stack: Arc<[i64]>,
    /// How many samples.
    pub samples: i64,
    /// The CPU time that they stand for.
    pub cpu_ns: i64,
}

/// Whose samples they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tags {
    /// The machine's name.
    pub host: String,
    /// The systemd unit, or else the process' name.
    pub service: String,
    /// The label `version`.
    pub version: String,
    /// The process' name.
    pub comm: String,
    /// The thread's name.
    pub thread: String,
    /// The process' number.
    pub pid: i32,
    /// Everything else, by name.
    pub labels: BTreeMap<String, String>,
}

/// What a number in stacks stands for. Empty texts and line 0: not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameRow {
    /// A digest of all the rest.
    pub frame: i64,
    /// The function's name.
    pub name: String,
    /// `kernel`, `native`, `jit`, `interpreter`, `builtin`, `span` or `note`.
    pub kind: String,
    /// `interpreted`, `baseline`, `mid`, `optimized`.
    pub tier: String,
    /// Whether it was inlined into the frame before it.
    pub inlined: bool,
    /// The file that the code was loaded from.
    pub module: String,
    /// Its GNU build id.
    pub build_id: String,
    /// The source file.
    pub file: String,
    /// The line in it, from 1.
    pub line: i32,
}

const KINDS: [(FrameKind, &str); 7] = [
    (FrameKind::Kernel, "kernel"),
    (FrameKind::Native, "native"),
    (FrameKind::Jit, "jit"),
    (FrameKind::Interpreter, "interpreter"),
    (FrameKind::Builtin, "builtin"),
    (FrameKind::Span, "span"),
    (FrameKind::Note, "note"),
];
const TIERS: [(Tier, &str); 4] = [
    (Tier::Interpreted, "interpreted"),
    (Tier::Baseline, "baseline"),
    (Tier::Mid, "mid"),
    (Tier::Optimized, "optimized"),
];
/// Labels that have columns of their own.
const COLUMNS: [&str; 4] = ["host", "comm", "thread", "version"];

impl FrameRow {
    /// The row of a frame. Its address and its column are left out: the same line is the same row on every host.
    pub fn of(frame: &FrameRef<'_>) -> Self {
        let kind = KINDS.iter().find(|(kind, _)| *kind == frame.kind).map_or("native", |known| known.1);
        let tier = TIERS.iter().find(|(tier, _)| frame.tier == Some(*tier)).map_or("", |known| known.1);
        let SourceRef { file, line, .. } = frame.source.unwrap_or_default();
        let mut row = Self {
            frame: 0,
            name: frame.name.to_owned(),
            kind: kind.to_owned(),
            tier: tier.to_owned(),
            inlined: frame.inlined,
            module: frame.module.map_or_else(String::new, |module| module.path.to_owned()),
            build_id: frame.module.and_then(|module| module.build_id).unwrap_or_default().to_owned(),
            file: file.to_owned(),
            line: i32::try_from(line).unwrap_or(0),
        };
        row.frame = row.digest();
        row
    }

    /// The number that everybody gives this frame.
    pub fn digest(&self) -> i64 {
        let mut hasher = blake3::Hasher::new();
        for text in [&self.name, &self.kind, &self.tier, &self.module, &self.build_id, &self.file] {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        hasher.update(&[u8::from(self.inlined)]);
        hasher.update(&self.line.to_le_bytes());
        first_number(&hasher)
    }

    /// The frame kind that the text means; native code for one that a later version wrote.
    pub(super) fn frame_kind(&self) -> FrameKind {
        KINDS.iter().find(|(_, name)| *name == self.kind).map_or(FrameKind::Native, |known| known.0)
    }

    /// The tier that the text means.
    pub(super) fn frame_tier(&self) -> Option<Tier> {
        TIERS.iter().find(|(_, name)| *name == self.tier).map(|known| known.0)
    }
}

/// The number that everybody gives a stack: a digest of its frames' numbers.
pub(super) fn stack_id(stack: &[i64]) -> i64 {
    let mut hasher = blake3::Hasher::new();
    for frame in stack {
        hasher.update(&frame.to_le_bytes());
    }
    first_number(&hasher)
}

fn first_number(hasher: &blake3::Hasher) -> i64 {
    let mut first = [0; 8];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    i64::from_le_bytes(first)
}

impl Tags {
    /// Whose samples a task's are. `add` goes over what is known of the task.
    pub fn of(task: &Task, host: &str, add: &BTreeMap<String, String>) -> Self {
        let mut labels: BTreeMap<String, String> = task
            .labels
            .iter()
            .map(|(name, value)| (name.to_string(), printable(value).into_owned()))
            .chain(add.iter().map(|(name, value)| (name.clone(), value.clone())))
            .collect();
        let comm = label_of(task, "comm").map_or_else(String::new, |comm| printable(&comm).into_owned());
        let service = labels.get("service").or_else(|| labels.get("unit")).unwrap_or(&comm).clone();
        let version = labels.get("version").cloned().unwrap_or_default();
        COLUMNS.iter().for_each(|name| drop(labels.remove(*name)));
        Self {
            host: host.to_owned(),
            service,
            version,
            comm,
            thread: printable(&task.comm).into_owned(),
            pid: i32::try_from(task.pid.0).unwrap_or(0),
            labels,
        }
    }
}

/// The rows of a profile in steps of `step_ms`, ordered by whose they are, then by stack, then by time: what is alike stands
/// together, which halves the files. `numbers` are those of the profile's frames, by handle.
pub fn rows_of(profile: &Profile, step_ms: u32, tags: impl Fn(&Task) -> Tags, numbers: &[i64]) -> Vec<SampleRow> {
    let step_us = i64::from(step_ms.max(1)) * 1000;
    let mut of_task: FxHashMap<TaskId, usize> = FxHashMap::default();
    let mut of_stack: FxHashMap<StackId, usize> = FxHashMap::default();
    let (mut all_tags, mut all_stacks): (IndexSet<Tags>, IndexSet<Arc<[i64]>>) = Default::default();
    let mut sums: FxHashMap<(usize, usize, i64), (i64, i64)> = FxHashMap::default();
    let mut frames: Vec<FrameId> = Vec::new();
    profile.visit_rows(|row| {
        let tags = of_task.entry(row.task).or_insert_with(|| all_tags.insert_full(tags(profile.task_of(row.task))).0);
        let stack = of_stack.entry(row.stack).or_insert_with(|| {
            profile.frames_of(row.stack, &mut frames);
            let stack = frames.iter().filter_map(|frame| numbers.get(frame.index()).copied());
            all_stacks.insert_full(stack.collect()).0
        });
        let time_us = microseconds(profile.wall_time(row.time));
        let sum = sums.entry((*tags, *stack, time_us - time_us.rem_euclid(step_us))).or_default();
        sum.0 = sum.0.saturating_add(i64::try_from(row.count).unwrap_or(i64::MAX));
        sum.1 = sum.1.saturating_add(i64::try_from(row.cpu_ns).unwrap_or(i64::MAX));
    });
    let tag_ranks = ranks(&all_tags);
    let stack_ranks = ranks(&all_stacks);
    let tags: Vec<Arc<Tags>> = all_tags.into_iter().map(Arc::new).collect();
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_unstable_by_key(|((tags, stack, time_us), _)| (tag_ranks[*tags], stack_ranks[*stack], *time_us));
    let length_ms = i32::try_from(step_ms).unwrap_or(i32::MAX);
    let row = |((tag, stack, time_us), (samples, cpu_ns)): ((usize, usize, i64), _)| SampleRow {
        time_us,
        length_ms,
        tags: Arc::clone(&tags[tag]),
        stack: Arc::clone(&all_stacks[stack]),
        samples,
        cpu_ns,
    };
    sums.into_iter().map(row).collect()
}

/// The place of each value when all are ordered.
fn ranks<T: Ord>(values: &IndexSet<T>) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_unstable_by_key(|&at| &values[at]);
    let mut ranks = vec![0; values.len()];
    order.into_iter().enumerate().for_each(|(rank, at)| ranks[at] = rank);
    ranks
}

/// A profile's frames, each once, ordered by number; and the number of each of its handles.
pub fn frames_of(profile: &Profile) -> (Vec<FrameRow>, Vec<i64>) {
    let mut rows = BTreeMap::new();
    let numbers = profile.frame_ids().map(|id| {
        let row = FrameRow::of(&profile.frame(id));
        let number = row.frame;
        rows.entry(number).or_insert(row);
        number
    });
    let numbers = numbers.collect();
    (rows.into_values().collect(), numbers)
}

fn microseconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
