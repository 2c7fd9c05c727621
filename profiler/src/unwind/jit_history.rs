//! Functions of generated code that are gone: what their rows said, and until when the kernel part had them.
//!
//! Code is replaced at once, rows a tick later. In between the kernel part unwinds new code with its predecessor's
//! rows, or by frame pointer; afterwards this history can tell.
//!
//! ```text
//! code      A loaded          A ended = B loaded
//!              ├──────────────────┤├─────────────────────▶
//! tables             ├───────────────────────┤├──────────▶
//!            A published      A withdrawn = B published
//! ```

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use profiler_common::row::Rule;
use profiler_common::table::PAGE_BITS;

use super::rows::RowTable;
use crate::units::MonoNs;

/// Functions remembered for one page. At 2,000 replacements a second of one page it is half a second, and samples are
/// looked at within two ticks of 100 ms.
const MAX_OF_PAGE: usize = 1024;
/// Functions remembered in all.
const MAX_GONE: usize = 1 << 16;

/// Not yet.
pub(super) const NEVER: MonoNs = MonoNs(u64::MAX);

/// A function, while it was there.
#[derive(Clone, Debug)]
pub(super) struct Gone {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) loaded: MonoNs,
    pub(super) published: MonoNs,
    pub(super) ended: MonoNs,
    pub(super) withdrawn: MonoNs,
    pub(super) rows: Option<Arc<RowTable>>,
}

impl Gone {
    fn rule_at(&self, address: u64) -> Rule {
        self.rows.as_ref().map_or(Rule::GAP, |rows| rows.rule_at(address))
    }
}

/// What is remembered of one page, in the order of `withdrawn`.
#[derive(Clone, Debug)]
struct OfPage {
    gone: VecDeque<Gone>,
    /// Nothing is known of the time before.
    forgotten_until: MonoNs,
}

/// All that is remembered.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    pages: HashMap<u64, OfPage>,
    count: usize,
    /// Pages with functions that the kernel part still has.
    open: Vec<u64>,
    forgotten_until: MonoNs,
}

impl History {
    /// Remembers a function that has just been removed.
    pub(super) fn add(&mut self, gone: &Gone) {
        if self.count >= MAX_GONE {
            self.forget_all(gone.ended);
        }
        for page in gone.start >> PAGE_BITS..=(gone.end - 1) >> PAGE_BITS {
            let of_page =
                self.pages.entry(page).or_insert_with(|| OfPage { gone: VecDeque::new(), forgotten_until: MonoNs(0) });
            if of_page.gone.len() >= MAX_OF_PAGE
                && let Some(oldest) = of_page.gone.pop_front()
            {
                of_page.forgotten_until = of_page.forgotten_until.max(oldest.withdrawn.min(gone.ended));
                self.count -= 1;
            }
            of_page.gone.push_back(gone.clone());
            self.count += 1;
            self.open.push(page);
        }
    }

    /// The tables say what is true now.
    pub(super) fn settle(&mut self, now: MonoNs) {
        for page in std::mem::take(&mut self.open) {
            let Some(of_page) = self.pages.get_mut(&page) else { continue };
            for gone in of_page.gone.iter_mut().rev().take_while(|gone| gone.withdrawn == NEVER) {
                gone.withdrawn = now;
            }
        }
    }

    /// Forgets what was withdrawn before every sample that may still be asked for.
    pub(super) fn forget_before(&mut self, time: MonoNs) {
        let count = &mut self.count;
        self.pages.retain(|_, of_page| {
            while of_page.gone.front().is_some_and(|gone| gone.withdrawn <= time) {
                of_page.gone.pop_front();
                *count -= 1;
            }
            !of_page.gone.is_empty()
        });
        self.forgotten_until = self.forgotten_until.max(time);
    }

    /// Memory, estimated.
    pub(super) fn bytes(&self) -> usize {
        self.count * size_of::<Gone>()
    }

    fn forget_all(&mut self, time: MonoNs) {
        self.pages.clear();
        self.open.clear();
        self.count = 0;
        self.forgotten_until = self.forgotten_until.max(time);
    }

    /// The rule that was true at an address at `time`, if a function that is gone was there, and the rule that the
    /// kernel part had. `None` if that is forgotten.
    pub(super) fn rules_at(&self, address: u64, time: MonoNs) -> Option<(Option<Rule>, Rule)> {
        if time < self.forgotten_until {
            return None;
        }
        let Some(of_page) = self.pages.get(&(address >> PAGE_BITS)) else { return Some((None, Rule::GAP)) };
        if time < of_page.forgotten_until {
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
