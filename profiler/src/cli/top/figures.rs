//! What is on the screen, made of a profile: functions, threads, and the tree of calls.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use indexmap::IndexSet;
use rustc_hash::FxHashMap;

use super::model::Sort;
use crate::output::color::Class;
use crate::output::frame_names::{frame_name, merge_tiers};
use crate::output::look::{Look, TOO_MANY_FRAMES};
use crate::profile::{
    CallTree, Direction, FrameRef, FunctionRef, MergeBy, Profile, Task, TaskId, TreeLayout, label_of, printable,
    shorten,
};

/// Nodes of a tree at most: a target that recurses through ever new names chooses how many it would like.
const MAX_NODES: usize = 1 << 16;
/// Longest name that is kept for the screen, in bytes.
const MAX_NAME_BYTES: usize = 512;
/// Nodes with less than this part of the time are not in the tree, in thousandths.
const LEAST_PER_MILLE: u64 = 2;
/// Nodes with at least this part of the time are open as long as nobody closes them, in thousandths.
const OPEN_PER_MILLE: u64 = 50;

/// A function of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FunctionRow {
    pub(super) name: String,
    /// The file that it is from, or its module.
    pub(super) place: String,
    pub(super) class: Class,
    pub(super) process: String,
    /// CPU time of its own, in nanoseconds.
    pub(super) own: u64,
    /// The same with what it called.
    pub(super) total: u64,
}

/// A thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ThreadRow {
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) name: String,
    pub(super) process: String,
    /// CPU time in nanoseconds.
    pub(super) cpu_ns: u64,
}

/// A line of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TreeRow {
    /// Says the same node again in the next tree: made of the names from the root on.
    pub(super) key: u64,
    pub(super) level: usize,
    pub(super) look: Look,
    pub(super) own: u64,
    pub(super) total: u64,
    /// Whether its callees follow; `None` if it has none.
    pub(super) is_open: Option<bool>,
}

/// What of a profile is looked at.
#[derive(Clone, Debug, Default)]
pub(super) struct Question {
    /// In lower case; empty for everything.
    pub(super) filter: String,
    pub(super) thread: Option<(u32, u32)>,
    pub(super) merge_tiers: bool,
}

impl Question {
    /// Whether a name has what is looked for in it.
    pub(super) fn finds(&self, name: &str) -> bool {
        self.filter.is_empty() || name.to_lowercase().contains(&self.filter)
    }

    fn is_of(&self, task: &Task) -> bool {
        self.thread.is_none_or(|(pid, tid)| (task.pid.0, task.tid.0) == (pid, tid))
    }

    fn frame<'p>(&self, frame: FrameRef<'p>) -> FrameRef<'p> {
        if self.merge_tiers { merge_tiers(frame) } else { frame }
    }

    /// The samples of the thread that is looked at.
    pub(super) fn of_thread(&self, profile: &Profile) -> Option<Profile> {
        self.thread.map(|_| profile.select(profile.meta().start, |row| self.is_of(profile.task_of(row.task))))
    }

    /// The samples in whose stacks is what is looked for.
    pub(super) fn of_filter(&self, profile: &Profile) -> Option<Profile> {
        if self.filter.is_empty() {
            return None;
        }
        let found: Vec<bool> =
            profile.frame_ids().map(|id| self.finds(&frame_name(self.frame(profile.frame(id)), false))).collect();
        let mut frames = Vec::new();
        Some(profile.select(profile.meta().start, |row| {
            profile.frames_of(row.stack, &mut frames);
            frames.iter().any(|frame| found[frame.index()])
        }))
    }
}

/// What a process is called on the screen.
pub(super) fn process_name(task: &Task) -> String {
    let comm = label_of(task, "comm").unwrap_or_default();
    format!("{} {}", shorten(&printable(&comm), 32), task.pid)
}

/// The functions of each process, without those whose names have not what is looked for.
pub(super) fn functions(profile: &Profile, question: &Question, sort: Sort) -> Vec<FunctionRow> {
    #[derive(Default)]
    struct Used {
        own: u64,
        total: u64,
        /// The last row in which it was met, so that recursion counts once.
        met: usize,
    }
    let mut known: IndexSet<FunctionRef<'_>> = IndexSet::new();
    let numbers: Vec<usize> =
        profile.frame_ids().map(|id| known.insert_full(FunctionRef::of(question.frame(profile.frame(id)))).0).collect();
    let mut used: FxHashMap<(usize, u32), Used> = FxHashMap::default();
    let mut processes: FxHashMap<u32, TaskId> = FxHashMap::default();
    let (mut frames, mut rows) = (Vec::new(), 0);
    profile.visit_rows(|row| {
        let pid = profile.task_of(row.task).pid.0;
        // Of several, the one that is the first by its value, whatever order rows are in.
        let first = processes.entry(pid).or_insert(row.task);
        if profile.task_of(row.task) < profile.task_of(*first) {
            *first = row.task;
        }
        rows += 1;
        profile.frames_of(row.stack, &mut frames);
        for frame in &frames {
            let used = used.entry((numbers[frame.index()], pid)).or_default();
            if used.met != rows {
                used.met = rows;
                used.total = used.total.saturating_add(row.cpu_ns);
            }
        }
        if let Some(frame) = frames.last() {
            let used = used.entry((numbers[frame.index()], pid)).or_default();
            used.own = used.own.saturating_add(row.cpu_ns);
        }
    });
    let processes: FxHashMap<u32, String> =
        processes.into_iter().map(|(pid, task)| (pid, process_name(profile.task_of(task)))).collect();
    let mut shown: Vec<FunctionRow> = used
        .into_iter()
        .filter_map(|((function, pid), used)| {
            let function = known.get_index(function)?;
            let frame = function.as_frame();
            let name = frame_name(frame, false);
            // A bracketed module, such as [jit], says no more than the kind.
            let place = function.file.or(function.module.filter(|module| !module.starts_with('[')));
            question.finds(&name).then(|| FunctionRow {
                name: shorten(&name, MAX_NAME_BYTES).into_owned(),
                place: place.map_or_else(String::new, |place| shorten(&printable(base(place)), 64).into_owned()),
                class: Class::of(frame),
                process: processes.get(&pid).cloned().unwrap_or_default(),
                own: used.own,
                total: used.total,
            })
        })
        .collect();
    shown.sort_by(|one, other| {
        let by_amount = match sort {
            Sort::Own => (other.own, other.total).cmp(&(one.own, one.total)),
            Sort::Total => (other.total, other.own).cmp(&(one.total, one.own)),
            Sort::Name => std::cmp::Ordering::Equal,
        };
        by_amount.then_with(|| {
            (&one.name, &one.process, one.class, &one.place).cmp(&(
                &other.name,
                &other.process,
                other.class,
                &other.place,
            ))
        })
    });
    shown
}

fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The threads, the one with the most CPU time first.
pub(super) fn threads(profile: &Profile, question: &Question) -> Vec<ThreadRow> {
    let mut sums: HashMap<(u32, u32), ThreadRow> = HashMap::new();
    for (id, cpu_ns) in profile.cpu_by_task() {
        let task = profile.task_of(id);
        let name = shorten(&printable(&task.comm), 64).into_owned();
        let row = sums.entry((task.pid.0, task.tid.0)).or_insert_with(|| ThreadRow {
            pid: task.pid.0,
            tid: task.tid.0,
            name: name.clone(),
            process: process_name(task),
            cpu_ns: 0,
        });
        row.cpu_ns = row.cpu_ns.saturating_add(cpu_ns);
        // A thread that has renamed itself has several: which one is shown must not depend on the order.
        if name < row.name {
            row.name = name;
        }
    }
    let mut rows: Vec<_> = sums.into_values().filter(|row| question.finds(&row.name)).collect();
    rows.sort_by_key(|row| (std::cmp::Reverse(row.cpu_ns), row.pid, row.tid));
    rows
}

struct Looks<'q>(&'q Question);

impl<'p> MergeBy<'p> for Looks<'_> {
    type Frame = Look;

    fn frame(&self, frame: FrameRef<'p>) -> Look {
        let frame = self.0.frame(frame);
        let name = frame_name(frame, false);
        Look { name: shorten(&name, MAX_NAME_BYTES).into_owned(), class: Class::of(frame) }
    }

    fn task(&self, task: &Task) -> Vec<Look> {
        vec![Look { name: process_name(task), class: Class::Task }]
    }
}

/// The lines of the tree of calls. `opened` says what of it somebody has opened or closed.
pub(super) fn tree(profile: &Profile, question: &Question, opened: &HashMap<u64, bool>) -> Vec<TreeRow> {
    let rest = Look::note(TOO_MANY_FRAMES);
    let layout = TreeLayout { direction: Direction::RootFirst, max_nodes: MAX_NODES, rest };
    let tree = CallTree::new([Some(profile), None], &Looks(question), layout);
    let all = tree.all()[0].cpu_ns;
    let part = |per_mille: u64| u64::try_from(u128::from(all) * u128::from(per_mille) / 1000).unwrap_or(u64::MAX);
    let (least, open) = (part(LEAST_PER_MILLE).max(1), part(OPEN_PER_MILLE));
    let total = |node: usize| tree.nodes()[node].total[0].cpu_ns;
    let mut children: HashMap<usize, Vec<usize>> = HashMap::new();
    for node in (1..tree.nodes().len()).filter(|&node| total(node) >= least) {
        children.entry(tree.nodes()[node].parent()).or_default().push(node);
    }
    for list in children.values_mut() {
        list.sort_by_key(|&node| (std::cmp::Reverse(total(node)), tree.frame_of(node)));
    }
    let mut lines = Vec::new();
    let below = |node: usize| children.get(&node).map_or(&[][..], Vec::as_slice);
    let mut waiting: Vec<(usize, usize, u64)> = below(0).iter().rev().map(|&node| (node, 0, 0)).collect();
    while let Some((node, level, caller)) = waiting.pop() {
        let look = tree.frame_of(node).clone();
        let mut hasher = DefaultHasher::new();
        (caller, &look).hash(&mut hasher);
        let key = hasher.finish();
        let callees = below(node);
        let is_open = opened.get(&key).copied().unwrap_or(total(node) >= open);
        if is_open {
            // Only where calls part is there another level: stacks are deeper than screens are wide.
            let next = level + usize::from(callees.len() > 1);
            waiting.extend(callees.iter().rev().map(|&callee| (callee, next, key)));
        }
        let own = tree.nodes()[node].own[0].cpu_ns;
        let is_open = (!callees.is_empty()).then_some(is_open);
        lines.push(TreeRow { key, level, look, own, total: total(node), is_open });
    }
    lines
}
