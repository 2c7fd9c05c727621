//! The tables of a profile and their handles.

use std::hash::BuildHasherDefault;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use indexmap::{IndexMap, IndexSet};
use rustc_hash::FxHasher;

use super::limits::{Limits, MAX_STRING_BYTES, Overflow, shorten};
use super::meta::{ProfileMeta, Task};
use crate::symbol::{Frame, FrameKind, Module, SourceLine, Tier};
use crate::units::{MonoNs, Pid, Tid};

/// Hashes of our own small ids. Text and addresses, which the target chooses, go to the default hasher.
type IdHash = BuildHasherDefault<FxHasher>;

/// Handles are 32 bits; half of that leaves room for the entries that stand for what did not fit.
const MAX_ENTRIES: usize = 1 << 31;

/// What a string costs beyond its bytes: 16 bytes for the counts of its `Arc`, 16 for the pointer to it, 16 for hash and
/// index in the table.
const STRING_OVERHEAD: usize = 48;

const PROFILE_FULL: &str = "[profile full]";
const NAMES_FULL: &str = "[name table full]";

/// A frame of one profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameId(u32);

/// A stack of one profile: a frame and the stack it was called from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackId(u32);

/// A task of one profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(u32);

macro_rules! index {
    ($($id:ty),*) => {$(
        impl $id {
            fn new(index: usize) -> Self {
                Self(u32::try_from(index).expect("invariant: tables are limited to fewer than 2^32 entries"))
            }

            pub(crate) fn index(self) -> usize {
                usize::try_from(self.0).expect("invariant: usize has at least 32 bits on every supported target")
            }
        }
    )*};
}

index!(FrameId, StackId, TaskId, StrId, ModuleId);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct StrId(u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ModuleId(u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ModuleKey {
    path: StrId,
    build_id: Option<StrId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FrameKey {
    name: StrId,
    kind: FrameKind,
    tier: Option<Tier>,
    inlined: bool,
    module: Option<ModuleId>,
    source: Option<(StrId, u32)>,
    address: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct StackNode {
    prefix: StackId,
    frame: FrameId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RowKey {
    pub(super) bucket: u64,
    pub(super) stack: StackId,
    pub(super) task: TaskId,
}

/// How often a row was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) samples: u64,
    pub(super) cpu_ns: u64,
}

/// The file that a frame's code was loaded from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModuleRef<'a> {
    /// Path in the target's mount namespace, or a bracketed name.
    pub path: &'a str,
    /// GNU build id in lower-case hex, when the file has one.
    pub build_id: Option<&'a str>,
}

/// A frame as the profile holds it; the same fields as [`Frame`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameRef<'a> {
    /// Function name, unsanitized.
    pub name: &'a str,
    /// Which world the code belongs to.
    pub kind: FrameKind,
    /// The runtime's optimisation tier, where known.
    pub tier: Option<Tier>,
    /// Whether the function was inlined into the next frame towards the root.
    pub inlined: bool,
    /// Where the code came from.
    pub module: Option<ModuleRef<'a>>,
    /// Source file and line from 1 (0 when only the file is known).
    pub source: Option<(&'a str, u32)>,
    /// File offset of ELF code, virtual address of kernel and generated code, 0 for notes.
    pub address: u64,
}

/// Interned stacks and counts of one run.
#[derive(Debug)]
pub struct Profile {
    meta: ProfileMeta,
    bucket_ns: u64,
    limits: Limits,
    overflow: Overflow,
    strings: IndexSet<Arc<str>>,
    string_bytes: usize,
    modules: IndexSet<ModuleKey, IdHash>,
    frames: IndexSet<FrameKey>,
    stacks: IndexSet<StackNode, IdHash>,
    tasks: IndexSet<Task>,
    pub(super) counts: IndexMap<RowKey, Count, IdHash>,
    total: u64,
    /// The CPU time that one sample stands for from each of these times on, ascending; `meta` says it for earlier ones.
    periods: Vec<(MonoNs, u64)>,
}

impl Profile {
    /// An empty profile. Counts are kept apart for each `bucket_ns` nanoseconds since the start (`u64::MAX`: one
    /// bucket for the whole run, 0 means 1: the exact time of every sample).
    pub fn new(meta: ProfileMeta, bucket_ns: u64) -> Self {
        Self::with_limits(meta, bucket_ns, Limits::default())
    }

    /// An empty profile with limits of the caller's choice.
    pub fn with_limits(meta: ProfileMeta, bucket_ns: u64, limits: Limits) -> Self {
        Self {
            meta,
            bucket_ns: bucket_ns.max(1),
            limits: Limits {
                frames: limits.frames.min(MAX_ENTRIES),
                stacks: limits.stacks.min(MAX_ENTRIES),
                tasks: limits.tasks.min(MAX_ENTRIES),
                string_bytes: limits.string_bytes.min(MAX_ENTRIES),
                ..limits
            },
            overflow: Overflow::default(),
            strings: IndexSet::default(),
            string_bytes: 0,
            modules: IndexSet::default(),
            frames: IndexSet::default(),
            stacks: IndexSet::default(),
            tasks: IndexSet::default(),
            counts: IndexMap::default(),
            total: 0,
            periods: Vec::new(),
        }
    }

    /// An empty profile of the same run, with its own start.
    pub(super) fn empty_like(&self, start: MonoNs) -> Self {
        let since = Duration::from_nanos(start.0.saturating_sub(self.meta.start.0));
        let start_time = self.meta.start_time.checked_add(since).unwrap_or(self.meta.start_time);
        let mut empty =
            Self::with_limits(ProfileMeta { start, start_time, ..self.meta.clone() }, self.bucket_ns, self.limits);
        empty.periods.clone_from(&self.periods);
        empty
    }

    /// What the profile says about the run.
    pub fn meta(&self) -> &ProfileMeta {
        &self.meta
    }

    /// Sets how long the recording took, which is known only at its end.
    pub fn set_duration(&mut self, duration: Duration) {
        self.meta.duration = duration;
    }

    /// From `from` on, samples are taken at another frequency. Times must ascend.
    pub fn set_frequency(&mut self, from: MonoNs, frequency_hz: NonZeroU32) {
        self.periods.push((from, 1_000_000_000 / u64::from(frequency_hz.get())));
    }

    /// The CPU time that one sample taken at `time` stands for, in nanoseconds.
    pub fn period_at(&self, time: MonoNs) -> u64 {
        let known = self.periods.iter().rev().find(|(from, _)| *from <= time);
        known.map_or_else(|| self.meta.period_ns(), |(_, period)| *period)
    }

    /// Forgets everything but what it says about the run; all handles become void.
    pub fn clear(&mut self) {
        let mut empty = self.empty_like(self.meta.start);
        empty.overflow = self.overflow;
        *self = empty;
    }

    /// Forgets frames, stacks, tasks and names that no row refers to; all handles become void.
    pub fn compact(&mut self) {
        let mut compact = self.select(self.meta.start, |_| true);
        compact.overflow = self.overflow;
        *self = compact;
    }

    /// Forgets at which frequency samples from before `time` were taken.
    pub fn forget_frequencies_before(&mut self, time: MonoNs) {
        let holding = self.periods.partition_point(|(from, _)| *from <= time).saturating_sub(1);
        self.periods.drain(..holding);
    }

    /// Bytes of all tables, estimated.
    pub fn bytes(&self) -> usize {
        // An entry of an index map is the key, its hash and an index.
        let entry = |key: usize| key + 3 * size_of::<usize>();
        self.string_bytes
            + self.strings.len() * entry(0)
            + self.frames.len() * entry(size_of::<FrameKey>())
            + self.stacks.len() * entry(size_of::<StackNode>())
            + self.tasks.len() * entry(size_of::<Task>())
            + self.counts.len() * entry(size_of::<(RowKey, Count)>())
    }

    /// What did not fit.
    pub fn overflow(&self) -> Overflow {
        self.overflow
    }

    /// The handle of a frame; the same for equal frames. Strings are shared with the caller, not copied, unless they
    /// are longer than [`MAX_STRING_BYTES`].
    pub fn intern_frame(&mut self, frame: &Frame) -> FrameId {
        let name = self.intern_string(&frame.name);
        let module = frame.module.as_ref().and_then(|module| self.intern_module(module));
        let source = frame.source.as_ref().map(|source| (self.intern_string(&source.file), source.line));
        let key = FrameKey {
            name,
            kind: frame.kind,
            tier: frame.tier,
            inlined: frame.inlined,
            module,
            source,
            address: frame.address,
        };
        if let Some(index) = self.frames.get_index_of(&key) {
            return FrameId::new(index);
        }
        if self.frames.len() >= self.limits.frames {
            self.overflow.frames += 1;
            return self.full_frame();
        }
        FrameId::new(self.frames.insert_full(key).0)
    }

    /// The empty stack.
    pub fn stack_root(&self) -> StackId {
        StackId(0)
    }

    /// The stack `prefix` with `frame` called from its last frame: frames are added root first.
    pub fn push(&mut self, prefix: StackId, frame: FrameId) -> StackId {
        let node = StackNode { prefix, frame };
        if let Some(index) = self.stacks.get_index_of(&node) {
            return StackId::new(index + 1);
        }
        if self.stacks.len() >= self.limits.stacks {
            self.overflow.stacks += 1;
            return self.full_stack();
        }
        StackId::new(self.stacks.insert_full(node).0 + 1)
    }

    /// The handle of a task; the same for equal tasks.
    pub fn task(&mut self, task: Task) -> TaskId {
        if let Some(index) = self.tasks.get_index_of(&task) {
            return TaskId::new(index);
        }
        if self.tasks.len() >= self.limits.tasks {
            self.overflow.tasks += 1;
            return self.full_task();
        }
        TaskId::new(self.tasks.insert_full(task).0)
    }

    /// Counts `count` samples of a stack. Times before the start belong to the first bucket.
    pub fn add(&mut self, time: MonoNs, stack: StackId, task: TaskId, count: u64) {
        self.add_weighted(time, stack, task, count, count.saturating_mul(self.period_at(time)));
    }

    /// The same for samples that stand for `cpu_ns` nanoseconds together.
    pub fn add_weighted(&mut self, time: MonoNs, stack: StackId, task: TaskId, count: u64, cpu_ns: u64) {
        if count == 0 {
            return;
        }
        let bucket = time.0.saturating_sub(self.meta.start.0) / self.bucket_ns;
        let mut key = RowKey { bucket, stack, task };
        if self.counts.len() >= self.limits.rows && !self.counts.contains_key(&key) {
            self.overflow.rows += 1;
            key = RowKey { bucket: 0, stack: self.full_stack(), task: self.full_task() };
        }
        let row = self.counts.entry(key).or_default();
        row.samples = row.samples.saturating_add(count);
        row.cpu_ns = row.cpu_ns.saturating_add(cpu_ns);
        self.total = self.total.saturating_add(count);
    }

    /// Forgets all counts but no stack, frame or task.
    pub(super) fn start_counting_anew(&mut self, bucket_ns: u64) {
        self.bucket_ns = bucket_ns.max(1);
        self.counts.clear();
        self.total = 0;
    }

    /// Takes samples off the total whose row was taken away.
    pub(super) fn uncount(&mut self, samples: u64) {
        self.total = self.total.saturating_sub(samples);
    }

    /// The handle here of another profile's frame.
    pub(super) fn copy_frame(&mut self, other: &Self, frame: FrameId) -> FrameId {
        let key = other.frames[frame.index()];
        let text = |id: StrId| Arc::clone(&other.strings[id.index()]);
        let module = key.module.map(|id| {
            let module = &other.modules[id.index()];
            Arc::new(Module { path: text(module.path), build_id: module.build_id.map(text) })
        });
        self.intern_frame(&Frame {
            name: text(key.name),
            kind: key.kind,
            tier: key.tier,
            inlined: key.inlined,
            module,
            source: key.source.map(|(file, line)| SourceLine { file: text(file), line }),
            address: key.address,
        })
    }

    /// All samples counted.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The frame behind a handle.
    ///
    /// # Panics
    /// If the handle comes from another profile. The same holds for every handle below.
    pub fn frame(&self, id: FrameId) -> FrameRef<'_> {
        let key = &self.frames[id.index()];
        FrameRef {
            name: self.string(key.name),
            kind: key.kind,
            tier: key.tier,
            inlined: key.inlined,
            module: key.module.map(|id| {
                let module = &self.modules[id.index()];
                ModuleRef { path: self.string(module.path), build_id: module.build_id.map(|id| self.string(id)) }
            }),
            source: key.source.map(|(file, line)| (self.string(file), line)),
            address: key.address,
        }
    }

    /// How many frames there are; handles count from 0.
    pub fn frame_count(&self) -> usize {
        self.frames.len()
    }

    /// How many stacks there are, the empty one included; handles count from 0.
    pub fn stack_count(&self) -> usize {
        self.stacks.len() + 1
    }

    /// All frames in order of their handles.
    pub(crate) fn frame_ids(&self) -> impl Iterator<Item = FrameId> + use<> {
        (0..self.frames.len()).map(FrameId::new)
    }

    /// All stacks but the empty one in order of their handles: a prefix comes before what was pushed onto it.
    pub(super) fn stack_ids(&self) -> impl Iterator<Item = StackId> + use<> {
        (1..=self.stacks.len()).map(StackId::new)
    }

    /// All tasks in order of their handles.
    pub(super) fn task_ids(&self) -> impl Iterator<Item = TaskId> + use<> {
        (0..self.tasks.len()).map(TaskId::new)
    }

    /// The stack without its last frame, and that frame; `None` for the empty stack.
    pub fn pop(&self, stack: StackId) -> Option<(StackId, FrameId)> {
        let node = &self.stacks[stack.index().checked_sub(1)?];
        Some((node.prefix, node.frame))
    }

    /// Replaces the contents of `frames` by the stack's frames, root first.
    pub fn frames_of(&self, stack: StackId, frames: &mut Vec<FrameId>) {
        frames.clear();
        let mut rest = stack;
        while let Some((prefix, frame)) = self.pop(rest) {
            frames.push(frame);
            rest = prefix;
        }
        frames.reverse();
    }

    /// The task behind a handle.
    pub fn task_of(&self, id: TaskId) -> &Task {
        &self.tasks[id.index()]
    }

    /// When a time bucket begins.
    pub(super) fn bucket_start(&self, bucket: u64) -> MonoNs {
        MonoNs(self.meta.start.0.saturating_add(bucket.saturating_mul(self.bucket_ns)))
    }

    fn string(&self, id: StrId) -> &str {
        &self.strings[id.index()]
    }

    fn intern_string(&mut self, text: &Arc<str>) -> StrId {
        let kept = shorten(text, MAX_STRING_BYTES);
        if let Some(index) = self.strings.get_index_of(&*kept) {
            return StrId::new(index);
        }
        let cost = kept.len() + STRING_OVERHEAD;
        if self.string_bytes.saturating_add(cost) > self.limits.string_bytes {
            self.overflow.strings += 1;
            return StrId::new(self.strings.insert_full(Arc::from(NAMES_FULL)).0);
        }
        self.string_bytes += cost;
        let kept = if kept.len() == text.len() { Arc::clone(text) } else { Arc::from(&*kept) };
        StrId::new(self.strings.insert_full(kept).0)
    }

    /// `None` when there are as many modules as there may be frames.
    fn intern_module(&mut self, module: &Module) -> Option<ModuleId> {
        let path = self.intern_string(&module.path);
        let build_id = module.build_id.as_ref().map(|id| self.intern_string(id));
        let key = ModuleKey { path, build_id };
        if self.modules.len() >= self.limits.frames && !self.modules.contains(&key) {
            self.overflow.modules += 1;
            return None;
        }
        Some(ModuleId::new(self.modules.insert_full(key).0))
    }

    // The entries below stand for everything that did not fit, so they themselves are exempt from the limits: each adds
    // at most one entry to its table.

    fn full_frame(&mut self) -> FrameId {
        let key = FrameKey {
            name: StrId::new(self.strings.insert_full(Arc::from(PROFILE_FULL)).0),
            kind: FrameKind::Note,
            tier: None,
            inlined: false,
            module: None,
            source: None,
            address: 0,
        };
        FrameId::new(self.frames.insert_full(key).0)
    }

    fn full_stack(&mut self) -> StackId {
        let node = StackNode { prefix: self.stack_root(), frame: self.full_frame() };
        StackId::new(self.stacks.insert_full(node).0 + 1)
    }

    fn full_task(&mut self) -> TaskId {
        let task =
            Task { pid: Pid(0), process_start: 0, tid: Tid(0), comm: Arc::from(PROFILE_FULL), labels: Arc::default() };
        TaskId::new(self.tasks.insert_full(task).0)
    }
}
