//! The generated code of a process at one time, as a flat list: what GSYM can say.
//!
//! GSYM knows no time, and its readers take the function with the greatest start at or before an address: a function
//! within another one hides the rest of the outer one, and one without a size reaches to the next. So the list is
//! disjoint, ascending, and without empty functions. Announced code lies disjoint in the code map already; a perf map's
//! line counts where there is no announced code, so it is cut to that, into several parts if need be, exactly as
//! [`CodeMap::lookup`] answers.

use serde::Serialize;

use jitprof_common::units::MonoNs;
use jitprof_jitdump::code::{CodeHit, CodeMap, CodeOrigin};

/// A part of a function: nearly always all of it.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The address of the part's first byte.
    pub start: u64,
    /// Length in bytes, never 0.
    pub size: u32,
    /// The function; its start may lie before the part's.
    pub function: CodeHit<'a>,
}

/// The code at one time.
#[derive(Clone, Debug, Default)]
pub struct Snapshot<'a> {
    /// Ascending and disjoint.
    pub parts: Vec<Part<'a>>,
    /// What is left out, and why.
    pub stats: SnapshotStats,
}

/// What a snapshot left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SnapshotStats {
    /// Functions that were not there yet, or not any more.
    pub other_times: u64,
    /// Functions without a byte of code.
    pub empty: u64,
    /// Lines of a perf map that were cut because a dump announced code over a part of them.
    pub cut: u64,
    /// Lines of a perf map left out because a dump announced code over all of them.
    pub covered: u64,
}

impl<'a> Snapshot<'a> {
    /// What lies where at a time. Costs a sort of the living functions.
    pub fn of(map: &'a CodeMap, at: MonoNs) -> Self {
        let mut snapshot = Self::default();
        let (mut announced, mut listed) = (Vec::new(), Vec::new());
        for function in map.functions() {
            let lives = function.since() <= at && function.ended().is_none_or(|end| end > at);
            let size = u32::try_from(function.size()).unwrap_or(u32::MAX);
            if !lives {
                snapshot.stats.other_times += 1;
            } else if size == 0 {
                snapshot.stats.empty += 1;
            } else {
                let layer = if function.origin() == CodeOrigin::PerfMap { &mut listed } else { &mut announced };
                layer.push(Part { start: function.start().0, size, function });
            }
        }
        announced.sort_unstable_by_key(|part| part.start);
        listed.sort_unstable_by_key(|part| part.start);
        snapshot.join(announced, &listed);
        snapshot
    }

    fn join(&mut self, announced: Vec<Part<'a>>, listed: &[Part<'a>]) {
        let before = announced.len();
        let mut rest = Vec::new();
        for part in listed {
            let found = rest.len();
            cut(part, &announced, &mut rest);
            let whole = rest.get(found).is_some_and(|first: &Part<'_>| first.size == part.size);
            self.stats.covered += u64::from(rest.len() == found);
            self.stats.cut += u64::from(rest.len() > found && !whole);
        }
        self.parts = announced;
        self.parts.append(&mut rest);
        if self.parts.len() > before {
            self.parts.sort_unstable_by_key(|part| part.start);
        }
    }
}

/// What of `part` lies outside of `others`, which are ascending and disjoint.
fn cut<'a>(part: &Part<'a>, others: &[Part<'_>], out: &mut Vec<Part<'a>>) {
    let end = end_of(part);
    let mut at = part.start;
    let first = others.partition_point(|other| end_of(other) <= part.start);
    for other in others.get(first..).unwrap_or_default().iter().take_while(|other| other.start < end) {
        push(part, at, other.start, out);
        at = end_of(other);
    }
    push(part, at, end, out);
}

fn push<'a>(part: &Part<'a>, start: u64, end: u64, out: &mut Vec<Part<'a>>) {
    if start < end
        && let Ok(size) = u32::try_from(end - start)
    {
        out.push(Part { start, size, function: part.function });
    }
}

fn end_of(part: &Part<'_>) -> u64 {
    part.start.saturating_add(part.size.into())
}
