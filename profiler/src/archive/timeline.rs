//! CPU time over time: who used how much, from the index, and from the files where the index does not say.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::id::{milliseconds, system_time};
use super::index::{Block, Index, MERGED_MS};
use super::store::Store;
use super::usage::{OTHERS, Usage, is_of_thread, of_process};
use super::{Query, Series, Timeline};
use crate::profile::{Filter, Task, label_of};

/// Steps of a timeline at most; longer ones get longer steps.
const MAX_STEPS: u64 = 10_000;
/// Numbers of a timeline at most, which bounds the series: the rest is summed up.
const MAX_CELLS: usize = 2 << 20;
const MAX_SERIES: usize = 1000;
/// Files that are decoded for one timeline; beyond, merged blocks answer.
const MAX_DECODED: usize = 4000;
/// Half of the longest window whose part at the ends of a range is counted.
const MAX_HALF_MS: u64 = 60_000;
/// (Block, value) pairs at most; further ones are counted as [`OTHERS`].
const MAX_SHARES: usize = 4 << 20;

/// CPU time of one value in one block.
struct Share {
    value: usize,
    block: usize,
    cpu_ns: u64,
}

/// The values met so far and what each has.
#[derive(Default)]
struct Shares {
    values: HashMap<String, usize>,
    totals: Vec<u64>,
    shares: Vec<Share>,
}

/// What is asked of every block.
struct Question<'q> {
    filter: &'q Filter,
    process_filter: Filter,
    by: &'q str,
    /// Whether the index is too coarse, since the question is about threads.
    of_threads: bool,
    /// Whether it is too coarse where it sums up processes.
    of_pids: bool,
}

impl Question<'_> {
    fn needs_file(&self, block: &Block) -> bool {
        let is_coarse = |usage: &Arc<Usage>| {
            (self.of_pids && !usage.is_complete) || (!self.process_filter.is_empty() && usage.has_others)
        };
        self.of_threads || block.usage.as_ref().is_none_or(is_coarse)
    }
}

pub(super) fn timeline(store: &Store, query: &Query, by: &str, step: Duration) -> Timeline {
    let range_ms = milliseconds(query.from)..milliseconds(query.to).max(milliseconds(query.from));
    let length_ms = range_ms.end - range_ms.start;
    let step_ms = u64::try_from(step.as_millis()).unwrap_or(u64::MAX);
    let step_ms = step_ms.max(1000).max(length_ms.div_ceil(MAX_STEPS));
    let steps = usize::try_from(length_ms.div_ceil(step_ms)).unwrap_or(0);
    let names = || query.filter.iter().map(|(name, _)| name).chain([by]);
    let question = Question {
        filter: &query.filter,
        process_filter: of_process(&query.filter),
        by,
        of_threads: names().any(is_of_thread),
        of_pids: names().any(|name| name == "pid"),
    };
    // Windows at the ends count as far as they lie within.
    let wide_ms = range_ms.start.saturating_sub(MAX_HALF_MS)..range_ms.end.saturating_add(MAX_HALF_MS);
    let mut plan = store.plan(&wide_ms, step_ms >= MERGED_MS);
    if plan.iter().filter(|block| question.needs_file(block)).count() > MAX_DECODED {
        plan = store.plan(&wide_ms, true);
    }
    plan.retain(|block| block.start_ms() < range_ms.end && block.end_ms() > range_ms.start);
    let shares = gather(store, &plan, &question);
    Timeline {
        start: system_time(range_ms.start),
        step: Duration::from_millis(step_ms),
        series: draw(shares, &plan, &range_ms, step_ms, steps),
    }
}

fn gather(store: &Store, plan: &[Block], question: &Question<'_>) -> Shares {
    let mut shares = Shares::default();
    let mut raw = Vec::new();
    for (at, block) in plan.iter().enumerate() {
        if !Index::may_pass(block, &question.process_filter) {
            continue;
        }
        let mut count = |task: &Task, cpu_ns| {
            if question.filter.passes(task) {
                shares.add(&label_of(task, question.by).unwrap_or_default(), at, cpu_ns);
            }
        };
        match &block.usage {
            Some(usage) if !question.needs_file(block) => {
                usage.entries.iter().for_each(|(process, cpu_ns)| count(process, *cpu_ns));
            }
            // A file that went meanwhile has nothing more to say.
            _ => drop(store.decode(block, &mut raw, |file| file.cpu_by_task(count))),
        }
    }
    shares
}

impl Shares {
    fn add(&mut self, value: &str, block: usize, cpu_ns: u64) {
        let value = if self.shares.len() < MAX_SHARES { value } else { OTHERS };
        let value = match self.values.get(value) {
            Some(value) => *value,
            None => {
                self.totals.push(0);
                *self.values.entry(value.to_owned()).or_insert(self.totals.len() - 1)
            }
        };
        self.totals[value] = self.totals[value].saturating_add(cpu_ns);
        match self.shares.last_mut() {
            Some(last) if (last.value, last.block) == (value, block) => {
                last.cpu_ns = last.cpu_ns.saturating_add(cpu_ns);
            }
            _ => self.shares.push(Share { value, block, cpu_ns }),
        }
    }
}

/// Spreads every share evenly over the length of its block.
fn draw(shares: Shares, plan: &[Block], range_ms: &Range<u64>, step_ms: u64, steps: usize) -> Vec<Series> {
    let Shares { values, totals, shares } = shares;
    let mut names: Vec<(String, usize)> = values.into_iter().collect();
    names.sort_unstable_by(|one, other| (totals[other.1], &one.0).cmp(&(totals[one.1], &other.0)));
    let most = MAX_SERIES.min(MAX_CELLS / steps.max(1)).max(1);
    let mut places = vec![most; totals.len()];
    names.iter().enumerate().for_each(|(place, (_, value))| places[*value] = place.min(most));
    let mut series: Vec<Series> = Vec::new();
    let name = |place: usize| names.get(place).filter(|_| place < most).map_or(OTHERS, |(name, _)| name).to_owned();
    for place in 0..names.len().min(most.saturating_add(1)) {
        series.push(Series { value: name(place), cpu_ns: vec![0; steps] });
    }
    for share in shares {
        let block = &plan[share.block];
        if let Some(series) = series.get_mut(places[share.value]) {
            spread(&mut series.cpu_ns, block, range_ms, step_ms, share.cpu_ns);
        }
    }
    series
}

fn spread(cells: &mut [u64], block: &Block, range_ms: &Range<u64>, step_ms: u64, cpu_ns: u64) {
    let length_ms = block.end_ms().saturating_sub(block.start_ms()).max(1);
    // What the block has used up to a time, in whole nanoseconds, so that the steps of one block add up to all of it.
    let used = |time_ms: u64| {
        let since = u128::from(time_ms.saturating_sub(block.start_ms()).min(length_ms));
        u64::try_from(u128::from(cpu_ns) * since / u128::from(length_ms)).unwrap_or(u64::MAX)
    };
    let (start, end) =
        (block.start_ms().max(range_ms.start), block.start_ms().saturating_add(length_ms).min(range_ms.end));
    let mut at = start;
    while at < end {
        let Ok(step) = usize::try_from((at - range_ms.start) / step_ms) else { return };
        let next = (at - (at - range_ms.start) % step_ms).saturating_add(step_ms).min(end);
        if let Some(cell) = cells.get_mut(step) {
            *cell = cell.saturating_add(used(next) - used(at));
        }
        at = next;
    }
}
