//! Functions of generated code that are gone: what their rows said, and until when the BPF program had them.
//!
//! Code is replaced at once, rows a tick later. In between the BPF program unwinds new code with its predecessor's
//! rows, or by frame pointer; afterwards this history can tell.
//!
//! ```text
//! code      A loaded          A ended = B loaded
//!              ├──────────────────┤├─────────────────────▶
//! tables             ├───────────────────────┤├──────────▶
//!            A published      A withdrawn = B published
//! ```

use std::collections::{HashMap, VecDeque};

use jitprof_common::row::Rule;
use jitprof_common::table::PAGE_BITS;

use super::code_rows::CodeRows;
use jitprof_common::units::MonoNs;

/// Functions remembered for one page. At 2,000 replacements a second of one page it is half a second, and samples are
/// looked at within two ticks of 100 ms.
const MAX_OF_PAGE: usize = 1024;
/// Functions remembered in all.
const MAX_GONE: usize = 1 << 16;

/// Not yet.
pub(super) const NEVER: MonoNs = MonoNs(u64::MAX);
/// Handed over, and not yet known to be in force.
pub(super) const HANDED_OVER: MonoNs = MonoNs(u64::MAX - 1);

/// A function, while it was there.
#[derive(Clone, Debug)]
pub(super) struct Gone {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) loaded: MonoNs,
    pub(super) published: MonoNs,
    pub(super) ended: MonoNs,
    pub(super) withdrawn: MonoNs,
    pub(super) rows: Option<CodeRows>,
}

impl Gone {
    fn rule_at(&self, address: u64) -> Rule {
        self.rows.as_ref().map_or(Rule::GAP, |rows| rows.rule_at(address - self.start))
    }
}

/// What is remembered of one page, in the order of `withdrawn`.
#[derive(Clone, Debug)]
struct OfPage {
    gone: VecDeque<Gone>,
    /// Nothing is known of the time before.
    evicted_until: MonoNs,
}

/// All that is remembered.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    pages: HashMap<u64, OfPage>,
    count: usize,
    /// Pages with functions that the BPF program still has.
    open: Vec<u64>,
    /// Pages that have been handed over without them.
    handed_over: Vec<u64>,
    evicted_until: MonoNs,
}

impl History {
    /// Remembers a function that has just been removed.
    pub(super) fn add(&mut self, gone: &Gone) {
        if self.count >= MAX_GONE {
            self.evict_all(gone.ended);
        }
        for page in gone.start >> PAGE_BITS..=(gone.end - 1) >> PAGE_BITS {
            let of_page =
                self.pages.entry(page).or_insert_with(|| OfPage { gone: VecDeque::new(), evicted_until: MonoNs(0) });
            if of_page.gone.len() >= MAX_OF_PAGE
                && let Some(oldest) = of_page.gone.pop_front()
            {
                of_page.evicted_until = of_page.evicted_until.max(oldest.withdrawn.min(gone.ended));
                self.count -= 1;
            }
            of_page.gone.push_back(gone.clone());
            self.count += 1;
            self.open.push(page);
        }
    }

    /// What is true now has been handed over.
    pub(super) fn hand_over(&mut self) {
        for page in std::mem::take(&mut self.open) {
            let Some(of_page) = self.pages.get_mut(&page) else { continue };
            for gone in of_page.gone.iter_mut().rev().take_while(|gone| gone.withdrawn == NEVER) {
                gone.withdrawn = HANDED_OVER;
            }
            self.handed_over.push(page);
        }
    }

    /// What was handed over is not, as far as this process goes.
    pub(super) fn take_back(&mut self) {
        for page in std::mem::take(&mut self.handed_over) {
            let Some(of_page) = self.pages.get_mut(&page) else { continue };
            let newest_first = of_page.gone.iter_mut().rev().take_while(|gone| gone.withdrawn >= HANDED_OVER);
            newest_first.for_each(|gone| gone.withdrawn = NEVER);
            self.open.push(page);
        }
    }

    /// Whether what was handed over is not known to be in force.
    pub(super) fn is_unconfirmed(&self) -> bool {
        !self.handed_over.is_empty()
    }

    /// The tables say what was handed over.
    pub(super) fn mark_published(&mut self, now: MonoNs) {
        for page in std::mem::take(&mut self.handed_over) {
            let Some(of_page) = self.pages.get_mut(&page) else { continue };
            let newest_first = of_page.gone.iter_mut().rev().skip_while(|gone| gone.withdrawn == NEVER);
            for gone in newest_first.take_while(|gone| gone.withdrawn == HANDED_OVER) {
                gone.withdrawn = now;
            }
        }
    }

    /// Evicts what was withdrawn before every sample that may still be asked for.
    pub(super) fn evict_before(&mut self, time: MonoNs) {
        let count = &mut self.count;
        self.pages.retain(|_, of_page| {
            while of_page.gone.front().is_some_and(|gone| gone.withdrawn <= time) {
                of_page.gone.pop_front();
                *count -= 1;
            }
            !of_page.gone.is_empty()
        });
        self.evicted_until = self.evicted_until.max(time);
    }

    /// Memory, estimated.
    pub(super) fn bytes(&self) -> usize {
        self.count * size_of::<Gone>()
    }

    fn evict_all(&mut self, time: MonoNs) {
        self.pages.clear();
        self.open.clear();
        self.handed_over.clear();
        self.count = 0;
        self.evicted_until = self.evicted_until.max(time);
    }

    /// The rule that was true at an address at `time`, if a function that is gone was there, and the rule that the
    /// BPF program had. `None` if that is evicted.
    pub(super) fn rules_at(&self, address: u64, time: MonoNs) -> Option<(Option<Rule>, Rule)> {
        if time < self.evicted_until {
            return None;
        }
        let Some(of_page) = self.pages.get(&(address >> PAGE_BITS)) else { return Some((None, Rule::GAP)) };
        if time < of_page.evicted_until {
            return None;
        }
        let (mut held, mut had) = (None, Rule::GAP);
        let first = of_page.gone.partition_point(|gone| gone.withdrawn <= time);
        for gone in of_page.gone.range(first..).filter(|gone| (gone.start..gone.end).contains(&address)) {
            if (gone.loaded..gone.ended).contains(&time) {
                held = Some(gone.rule_at(address));
            }
            if (gone.published..gone.withdrawn).contains(&time) {
                had = gone.rule_at(address);
            }
        }
        Some((held, had))
    }
}
