//! The rows of one process' generated code, by address, as they are now.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Range, RangeInclusive};

use jitprof_common::row::{CfaKind, Row, Rule};
use jitprof_common::table::PAGE_BITS;

use super::code_rows::{CodeRows, Shapes};
use super::jit_history::{Gone, HANDED_OVER, History, NEVER};
use super::rows::RowTable;
use jitprof_common::units::MonoNs;

/// Functions that are kept, unless told otherwise.
const MAX_FUNCTIONS: usize = 1 << 20;
/// What a function takes beside its rows: an entry of a tree, and its place among the unpublished.
const FUNCTION_BYTES: usize = 120;
/// Largest function that is kept; a larger size is a broken record, and would dirty thousands of pages.
pub(super) const MAX_FUNCTION_BYTES: u64 = 16 << 20;
/// Pages of functions, beyond two for each, that are kept, and that change between two publications: 512 MiB of code. A
/// record of 60 bytes may say that its function has 256 pages.
const MAX_WIDE_PAGES: u64 = 8192;

/// How much later than a sample a function may be announced and still be what ran: runtimes stamp a record when they
/// write it, and V8 does so after the code can run. Names of samples are looked up with the same allowance.
const MAX_ANNOUNCEMENT_LAG_NS: u64 = 10_000_000;
/// What was found in a runtime's tables says nothing of the time before.
const NO_LAG: u64 = 0;

/// A function and its rows.
#[derive(Clone, Debug)]
struct JitFunction {
    end: u64,
    /// Since when it is there: what is older never takes its place.
    loaded: MonoNs,
    /// How much later than a sample that may be for it to be what ran.
    lag_ns: u64,
    /// Since when the BPF program has its rows.
    published: MonoNs,
    /// None: its code is walked by frame pointer.
    rows: Option<CodeRows>,
}

impl JitFunction {
    /// The rule at an address of the function, which begins at `start`.
    fn rule_at(&self, start: u64, address: u64) -> Rule {
        self.rows.as_ref().map_or(Rule::GAP, |rows| rows.rule_at(address - start))
    }

    fn row(&self, start: u64, address: u64) -> Row {
        Row(settled(self.rule_at(start, address).encode(low_of(address))))
    }
}

/// From when until when a page's rows were missing.
#[derive(Clone, Copy, Debug)]
struct Missing {
    since: MonoNs,
    until: MonoNs,
    /// They are on their way again.
    is_returning: bool,
}

/// Rows of generated code. Functions never overlap: the newer one ends those that it covers in part or whole, in
/// whatever order they are announced.
#[derive(Clone, Debug)]
pub struct JitSpace {
    functions: BTreeMap<u64, JitFunction>,
    shapes: Shapes,
    with_rows: usize,
    dirty: BTreeSet<u64>,
    /// Functions that have not been handed over.
    unpublished: Vec<u64>,
    /// Functions that have, and are not known to be in force.
    handed_over: Vec<u64>,
    /// Pages of which the BPF program had no rows for a time, whatever was handed over.
    missing: BTreeMap<u64, Missing>,
    history: History,
    /// Whether a function has taken another's place since that was asked last.
    replaced: bool,
    refused: u64,
    limit: usize,
    row_bytes: usize,
    /// Pages of the functions that are there, beyond two for each.
    wide_pages: u64,
    /// Such pages that have been taken up since the last publication.
    new_wide_pages: u64,
}

impl Default for JitSpace {
    fn default() -> Self {
        Self {
            functions: BTreeMap::new(),
            shapes: Shapes::default(),
            with_rows: 0,
            dirty: BTreeSet::new(),
            unpublished: Vec::new(),
            handed_over: Vec::new(),
            missing: BTreeMap::new(),
            history: History::default(),
            replaced: false,
            refused: 0,
            limit: MAX_FUNCTIONS,
            row_bytes: 0,
            wide_pages: 0,
            new_wide_pages: 0,
        }
    }
}

impl JitSpace {
    /// Whether exactly this function is there: then it need not be loaded again.
    pub fn knows(&self, start: u64, size: u64, loaded: MonoNs) -> bool {
        self.functions
            .get(&start)
            .is_some_and(|function| function.loaded == loaded && start.checked_add(size) == Some(function.end))
    }

    /// Takes up a function that is there since `loaded`; without rows, its place is walked by frame pointer. One that
    /// overlaps a newer one is gone already. Of two of the same time the one that comes later counts.
    pub fn load(&mut self, start: u64, size: u64, loaded: MonoNs, rows: Option<RowTable>) {
        let rows = rows.and_then(|rows| self.shapes.rows_of(&rows, start, size));
        self.insert(start, size, (loaded, MAX_ANNOUNCEMENT_LAG_NS), rows);
    }

    /// The same of one that was found in its runtime's tables, and of what is there since one is gone: what ran before that may
    /// have been other code, though nothing is known of it.
    pub fn load_found(&mut self, start: u64, size: u64, loaded: MonoNs, rows: Option<RowTable>) {
        let rows = rows.and_then(|rows| self.shapes.rows_of(&rows, start, size));
        self.insert(start, size, (loaded, NO_LAG), rows);
    }

    /// Ends what was in a place where there is other code since `time`, whose rows come later: until then nothing is known of it.
    /// Returns whether nothing newer is there.
    pub fn vacate(&mut self, start: u64, size: u64, time: MonoNs) -> bool {
        start.checked_add(size).is_some_and(|end| size > 0 && self.make_place(start, end, time))
    }

    /// Moves a function at `time`.
    pub fn relocate(&mut self, old_start: u64, new_start: u64, size: u64, time: MonoNs) {
        let Some(function) = self.functions.get(&old_start).filter(|function| function.loaded <= time).cloned() else {
            // What was there before at the new place is gone all the same.
            self.load(new_start, size, time, None);
            return;
        };
        self.remove(old_start, time);
        self.insert(new_start, function.end - old_start, (time, function.lag_ns), function.rows);
    }

    /// Drops everything: the process has become another program.
    pub fn clear(&mut self) {
        let all: Vec<u64> = self.functions.keys().copied().collect();
        for start in all {
            self.remove(start, MonoNs(0));
        }
        self.history = History::default();
    }

    /// The row that held at an address at that time; `None` if no function is known to have been there then, and
    /// [`Rule::SETTLED_GAP`]'s if it has no rows there.
    pub fn row_at(&self, address: u64, time: MonoNs) -> Option<Row> {
        let live = self.functions.range(..=address).next_back().filter(|(_, function)| address < function.end);
        if let Some((start, function)) = live.filter(|(_, function)| function.loaded <= time) {
            return Some(function.row(*start, address));
        }
        if let (Some(rule), _) = self.history.rules_at(address, time)? {
            return Some(Row(settled(rule.encode(low_of(address)))));
        }
        let soon = live.filter(|(_, function)| function.loaded.0.saturating_sub(time.0) <= function.lag_ns);
        soon.map(|(start, function)| function.row(*start, address))
    }

    /// Marks every page for publication: for a copy of this space in another process.
    pub fn touch_all(&mut self) {
        let all: Vec<(u64, u64)> = self.functions.iter().map(|(start, function)| (*start, function.end)).collect();
        for (start, end) in all {
            self.touch(start, end);
        }
        // What was handed over for the other process is in force for that one.
        self.handed_over.clear();
        self.history.take_back();
        self.unpublished.clear();
        for (start, function) in &mut self.functions {
            function.published = NEVER;
            self.unpublished.push(*start);
        }
    }

    /// Every function as it is now: start, end, and its rows if it has any; ascending, without overlap.
    pub fn functions(&self) -> impl Iterator<Item = (u64, u64, Option<RowTable>)> {
        let table = |start: u64, rows: &CodeRows| rows.table(start);
        self.functions.iter().map(move |(start, function)| {
            (*start, function.end, function.rows.as_ref().map(|rows| table(*start, rows)))
        })
    }

    /// Marks one page for publication.
    pub fn touch_page(&mut self, page: u64) {
        self.dirty.insert(page);
    }

    /// Takes up code that nobody has recorded, if nothing recorded is in its place. Whatever is recorded later, for
    /// whatever time, takes its place. Returns whether it was taken up.
    pub fn load_unrecorded(&mut self, start: u64, size: u64, rows: Option<RowTable>) -> bool {
        let Some(end) = start.checked_add(size).filter(|end| *end > start) else { return false };
        let occupied = self.functions.range(..end).next_back().is_some_and(|(_, function)| function.end > start);
        if !occupied {
            self.load(start, size, MonoNs(0), rows);
        }
        !occupied
    }

    /// Whether so far `sp` is known to lead on at the end of a function that is there since `loaded`: its frame has one size.
    pub fn is_sized(&self, start: u64, loaded: MonoNs) -> bool {
        let function = self.functions.get(&start).filter(|function| function.loaded == loaded);
        function.is_some_and(|function| {
            let rule = function.rule_at(start, function.end - 1);
            rule.cfa == CfaKind::Sp && rule != Rule::ENTRY
        })
    }

    /// Whether a function is there since `loaded`, with rows or without: then it has found room.
    pub fn has(&self, start: u64, loaded: MonoNs) -> bool {
        self.functions.get(&start).is_some_and(|function| function.loaded == loaded)
    }

    /// Whether a function that is there since `loaded` has rows of its own.
    pub fn has_rows(&self, start: u64, loaded: MonoNs) -> bool {
        self.functions.get(&start).is_some_and(|function| function.loaded == loaded && function.rows.is_some())
    }

    /// Says more exactly of a function how it is unwound: by rows from its code, and where these lead nowhere as before.
    /// Returns whether it is there, since `loaded`.
    pub fn refine(&mut self, start: u64, loaded: MonoNs, from_code: &RowTable) -> bool {
        let Some(function) = self.functions.get(&start).filter(|function| function.loaded == loaded) else {
            return false;
        };
        let (size, lag_ns) = (function.end - start, function.lag_ns);
        let rough = function.rows.as_ref().map(|rows| rows.table(start));
        let rough_rule = |address| rough.as_ref().map_or(Rule::GAP, |rows| rows.rule_at(address));
        let ends = from_code.rows().map(|(address, _)| address).skip(1).chain([u64::MAX]);
        let mut merged: Vec<(u64, Rule)> = Vec::new();
        for ((address, rule), end) in from_code.rows().zip(ends) {
            if !matches!(rule.cfa, CfaKind::Gap | CfaKind::Unsupported) {
                merged.push((address, rule));
                continue;
            }
            let or_rough = |rough| if rough == Rule::GAP { rule } else { rough };
            merged.push((address, or_rough(rough_rule(address))));
            let within = rough.iter().flat_map(RowTable::rows).filter(|(at, _)| *at > address && *at < end);
            merged.extend(within.map(|(at, rough)| (at, or_rough(rough))));
        }
        let merged = RowTable::of_rows(merged.into_iter());
        let rows = self.shapes.rows_of(&merged, start, size);
        self.remove(start, loaded);
        self.insert(start, size, (loaded, lag_ns), rows);
        true
    }

    /// Removes code taken up by [`load_unrecorded`](Self::load_unrecorded) that reaches into a range.
    pub fn remove_unrecorded(&mut self, start: u64, size: u64) {
        let overlapping = self.functions.range(..start.saturating_add(size)).rev();
        let gone: Vec<u64> = overlapping
            .take_while(|(_, function)| function.end > start)
            .filter(|(_, function)| function.loaded == MonoNs(0))
            .map(|(start, _)| *start)
            .collect();
        for start in gone {
            self.remove(start, MonoNs(0));
        }
    }

    /// Removes all code that reaches into a range, as if its rows had never been true.
    pub fn remove_within(&mut self, range: &Range<u64>) {
        let reaching = self.functions.range(..range.end).rev().take_while(|(_, function)| function.end > range.start);
        let gone: Vec<(u64, MonoNs)> = reaching.map(|(start, function)| (*start, function.loaded)).collect();
        gone.into_iter().for_each(|(start, loaded)| self.remove(start, loaded));
    }

    /// Keeps at most so many functions from now on; those that are there stay.
    pub fn set_limit(&mut self, functions: usize) {
        self.limit = functions;
    }

    /// Whether no further function is taken up.
    pub fn is_full(&self) -> bool {
        self.functions.len() >= self.limit
    }

    /// Memory, estimated: rows that functions share count for each of them.
    pub fn bytes(&self) -> usize {
        self.row_bytes + self.functions.len() * FUNCTION_BYTES + self.history.bytes()
    }

    /// Functions with rows.
    pub fn with_rows(&self) -> usize {
        self.with_rows
    }

    /// Functions left out because they were too many, or too large to be true.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Whether anything has changed since the last [`flush`](Self::flush).
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty() || !self.unpublished.is_empty()
    }

    /// Whether a function has taken another's place since the last call: until its rows are published, the BPF program
    /// has its predecessor's.
    pub fn take_replaced(&mut self) -> bool {
        std::mem::take(&mut self.replaced)
    }

    /// Whether what was handed over is not known to be in force: what changes now is to wait for it.
    pub fn is_unconfirmed(&self) -> bool {
        !self.handed_over.is_empty() || self.history.is_unconfirmed()
    }

    /// Hands over each page that has changed since the last call, with its encoded rows; none for a page without
    /// functions. Cost: the rows of the changed pages.
    pub fn flush(&mut self, mut publish: impl FnMut(u64, &[u64])) {
        let mut rows = Vec::new();
        self.new_wide_pages = 0;
        for page in std::mem::take(&mut self.dirty) {
            rows.clear();
            self.page_rows(page, &mut rows);
            self.return_page(page);
            publish(page, &rows);
        }
        for start in std::mem::take(&mut self.unpublished) {
            if let Some(function) = self.functions.get_mut(&start).filter(|function| function.published == NEVER) {
                function.published = HANDED_OVER;
                self.handed_over.push(start);
            }
        }
        self.history.hand_over();
    }

    /// The BPF program has no rows of a page from `since` on: there was no room for them, or the kernel has not taken them.
    /// Its code is walked by frame pointer until the page comes again.
    pub fn miss_page(&mut self, page: u64, since: MonoNs) {
        let missing = Missing { since, until: MonoNs(u64::MAX), is_returning: false };
        // What is known of an earlier time stays: between the two it counts as missing, too.
        let known = self.missing.entry(page).or_insert(missing);
        (known.until, known.is_returning) = (missing.until, false);
    }

    /// The rows of a page are handed over again, as they are. Returns whether they were missing.
    pub fn return_page(&mut self, page: u64) -> bool {
        let missing = self.missing.get_mut(&page).filter(|missing| missing.until == MonoNs(u64::MAX));
        missing.map(|missing| missing.is_returning = true).is_some()
    }

    /// The BPF program has, since `now`, what [`flush`](Self::flush) handed over. `published` is called with the time at
    /// which each new function was announced.
    pub fn mark_published(&mut self, now: MonoNs, mut published: impl FnMut(MonoNs)) {
        for start in std::mem::take(&mut self.handed_over) {
            let function = self.functions.get_mut(&start);
            if let Some(function) = function.filter(|function| function.published == HANDED_OVER) {
                function.published = now;
                published(function.loaded);
            }
        }
        for missing in self.missing.values_mut().filter(|missing| missing.is_returning) {
            (missing.until, missing.is_returning) = (now, false);
        }
        self.history.mark_published(now);
    }

    /// Whether the BPF program, at `time`, unwound the code at `address` as it should have: by the rules of the function
    /// that was there then. Between a function's announcement and its publication it has its predecessor's rules or
    /// none, and what it takes for the caller may be anything. Of what is evicted the answer is no.
    ///
    /// Cost: 0.1 us, and 3 us at most where one page's functions are replaced all the time.
    pub fn was_true(&self, address: u64, time: MonoNs) -> bool {
        let current = self.functions.range(..=address).next_back();
        let current = current.filter(|(_, function)| function.end > address && function.loaded <= time);
        let was_published = current.is_some_and(|(_, function)| function.published <= time);
        let missing = self.missing.get(&(address >> PAGE_BITS));
        let was_missing = missing.is_some_and(|missing| (missing.since..missing.until).contains(&time));
        if was_published && !was_missing {
            return true;
        }
        let Some((held, had)) = self.history.rules_at(address, time) else { return false };
        let now = current.map(|(start, function)| function.rule_at(*start, address));
        // Where nothing is known to have been, the frame pointer is as good as it ever is.
        let is_as = |had| by_frame_pointer(now.or(held).unwrap_or(Rule::GAP)) == by_frame_pointer(had);
        (was_published || is_as(had)) && (!was_missing || is_as(Rule::GAP))
    }

    /// Evicts functions that were gone, and whose rows were withdrawn, before `time`.
    pub fn evict_before(&mut self, time: MonoNs) {
        self.missing.retain(|_, missing| missing.until >= time);
        self.history.evict_before(time);
    }

    /// The encoded rows of a page: every function that reaches into it, gaps between them.
    fn page_rows(&self, page: u64, out: &mut Vec<u64>) {
        let page_start = page << PAGE_BITS;
        let page_last = page_start | ((1 << PAGE_BITS) - 1);
        let first = self
            .functions
            .range(..=page_start)
            .next_back()
            .filter(|(_, function)| function.end > page_start)
            .map_or(page_start, |(start, _)| *start);
        for (start, function) in self.functions.range(first..=page_last) {
            let part = (*start).max(page_start)..=(function.end - 1).min(page_last);
            copy_rows(function, *start, part, out);
            if function.end <= page_last {
                push(out, Rule::GAP.encode(low_of(function.end)));
            }
        }
    }

    fn insert(&mut self, start: u64, size: u64, (loaded, lag_ns): (MonoNs, u64), rows: Option<CodeRows>) {
        let Some(end) = start.checked_add(size).filter(|_| size <= MAX_FUNCTION_BYTES) else {
            self.refused += 1;
            return;
        };
        if size == 0 || !self.make_place(start, end, loaded) {
            return;
        }
        let wide = wide_pages(start, end);
        let is_too_wide = wide > 0 && self.wide_pages.max(self.new_wide_pages).saturating_add(wide) > MAX_WIDE_PAGES;
        if self.functions.len() >= self.limit || is_too_wide {
            self.refused += 1;
            return;
        }
        self.wide_pages += wide;
        self.new_wide_pages += wide;
        self.with_rows += usize::from(rows.is_some());
        self.row_bytes += rows.as_ref().map_or(0, CodeRows::bytes);
        self.touch(start, end);
        self.unpublished.push(start);
        self.functions.insert(start, JitFunction { end, loaded, lag_ns, published: NEVER, rows });
    }

    /// Removes what overlaps and is not newer; false if anything is.
    fn make_place(&mut self, start: u64, end: u64, loaded: MonoNs) -> bool {
        let overlapped: Vec<(u64, MonoNs)> = self
            .functions
            .range(..end)
            .rev()
            .take_while(|(_, function)| function.end > start)
            .map(|(other, function)| (*other, function.loaded))
            .collect();
        for (other, since) in &overlapped {
            if *since <= loaded {
                self.replaced = true;
                self.remove(*other, loaded);
            }
        }
        overlapped.iter().all(|(_, since)| *since <= loaded)
    }

    fn remove(&mut self, start: u64, time: MonoNs) {
        let Some(JitFunction { end, loaded, published, rows, .. }) = self.functions.remove(&start) else { return };
        self.wide_pages = self.wide_pages.saturating_sub(wide_pages(start, end));
        self.with_rows = self.with_rows.saturating_sub(usize::from(rows.is_some()));
        self.row_bytes = self.row_bytes.saturating_sub(rows.as_ref().map_or(0, CodeRows::bytes));
        self.touch(start, end);
        self.history.add(&Gone { start, end, loaded, published, ended: time, withdrawn: NEVER, rows });
    }

    fn touch(&mut self, start: u64, end: u64) {
        self.dirty.extend(start >> PAGE_BITS..=(end - 1) >> PAGE_BITS);
    }
}

/// The pages of a function beyond the two that any may have.
fn wide_pages(start: u64, end: u64) -> u64 {
    ((end - 1) >> PAGE_BITS).saturating_sub(start >> PAGE_BITS).saturating_sub(1)
}

/// A rule with all that mean "the frame pointer leads on" made one.
fn by_frame_pointer(rule: Rule) -> Rule {
    if rule == Rule::FRAME_POINTER { Rule::GAP } else { rule }
}

/// Appends the rows of a part of a function within one page; the first of them begins with it.
fn copy_rows(function: &JitFunction, start: u64, part: RangeInclusive<u64>, out: &mut Vec<u64>) {
    let (first, last) = (*part.start(), *part.end());
    let mut row = function.row(start, first).0;
    push(out, row);
    let Some(rows) = &function.rows else { return };
    rows.each(first - start..=last - start, |offset, next| {
        let next = settled(next & !0xffff | u64::from(low_of(start + offset)));
        if next >> 16 != row >> 16 {
            push(out, next);
            row = next;
        }
    });
}

/// A gap inside of an announced function stays one.
fn settled(row: u64) -> u64 {
    if Row(row).is_unknown() { Rule::SETTLED_GAP.encode(Row(row).pc_low()) } else { row }
}

/// Appends a row; one that begins where the last one does replaces it. The first begins at the start of the page.
fn push(out: &mut Vec<u64>, row: u64) {
    if out.is_empty() && row & 0xffff != 0 {
        out.push(Rule::GAP.encode(0));
    }
    if out.last().is_some_and(|last| last & 0xffff == row & 0xffff) {
        out.pop();
    }
    out.push(row);
}

fn low_of(address: u64) -> u16 {
    u16::try_from(address & 0xffff).expect("invariant: masked to 16 bits")
}

#[cfg(test)]
mod tests {
    use jitprof_common::row::CfaKind;
    use proptest::prelude::*;

    use super::super::builder::RowTableBuilder;
    use super::super::rows::decode;
    use super::*;

    fn rows_by(rules: &[(u64, Rule)], end: u64) -> RowTable {
        let mut builder = RowTableBuilder::default();
        builder.add(rules[0].0..end, rules.iter().copied());
        builder.finish().0
    }

    #[test]
    fn code_says_more_of_a_function_and_what_it_leaves_open_stays() {
        let frame = Rule::with_cfa(CfaKind::Sp, 32);
        let pushed = Rule::with_cfa(CfaKind::Sp, 16);
        let mut space = JitSpace::default();
        let since = MonoNs(100);
        space.load(0x1000, 0x40, since, Some(rows_by(&[(0x1000, Rule::ENTRY), (0x1008, frame)], 0x1040)));
        space.flush(|_, _| {});
        space.mark_published(MonoNs(200), |_| {});
        let from_code =
            rows_by(&[(0x1000, Rule::ENTRY), (0x1001, pushed), (0x1004, Rule::GAP), (0x1030, pushed)], 0x1040);
        assert!(!space.refine(0x1000, MonoNs(99), &from_code));
        assert!(space.refine(0x1000, since, &from_code));
        let rules: Vec<Rule> = [0x1000, 0x1001, 0x1004, 0x1008, 0x102f, 0x1030, 0x103f]
            .iter()
            .map(|address| decode(space.row_at(*address, MonoNs(300)).unwrap().0))
            .collect();
        assert_eq!(rules, [Rule::ENTRY, pushed, Rule::ENTRY, frame, frame, pushed, pushed]);
        // Samples until now were walked by what was there before: right where that says the same.
        assert!(space.was_true(0x1020, MonoNs(300)));
        assert!(!space.was_true(0x1001, MonoNs(300)));
        assert!(!space.take_replaced(), "it is the same code");
        space.flush(|_, _| {});
        space.mark_published(MonoNs(400), |_| {});
        assert!(space.was_true(0x1001, MonoNs(500)));
    }

    #[test]
    fn nothing_is_known_of_a_place_that_other_code_has_taken_until_its_rows_come() {
        let by_sp = Rule::with_cfa(CfaKind::Sp, 32);
        let rows = || Some(rows_by(&[(0x1000, by_sp)], 0x1040));
        let mut space = JitSpace::default();
        space.load_found(0x1000, 0x40, MonoNs(100), rows());
        space.flush(|_, _| {});
        space.mark_published(MonoNs(200), |_| {});
        assert!(space.vacate(0x1000, 0x40, MonoNs(300)) && space.is_dirty());
        assert_eq!(space.row_at(0x1010, MonoNs(350)), None);
        assert_eq!(space.row_at(0x1010, MonoNs(250)).map(|row| decode(row.0)), Some(by_sp));
        assert!(!space.was_true(0x1010, MonoNs(350)), "the tables have what was there");
        space.load_found(0x1000, 0x40, MonoNs(400), rows());
        assert!(!space.vacate(0x1000, 0x40, MonoNs(350)) && space.has_rows(0x1000, MonoNs(400)));
        assert!(!space.vacate(0x1000, 0, MonoNs(500)) && !space.vacate(u64::MAX, 2, MonoNs(500)));
    }

    #[test]
    fn a_page_that_is_missing_is_walked_by_frame_pointer() {
        let (by_fp, by_sp) = (Rule::FRAME_POINTER, Rule::with_cfa(CfaKind::Sp, 32));
        let mut space = JitSpace::default();
        space.load(0x1000, 0x40, MonoNs(100), Some(rows_by(&[(0x1000, by_sp), (0x1020, by_fp)], 0x1040)));
        space.flush(|_, _| {});
        space.mark_published(MonoNs(200), |_| {});
        space.miss_page(0, MonoNs(300));
        let was_true = |space: &JitSpace, time| [0x1010, 0x1030].map(|address| space.was_true(address, MonoNs(time)));
        assert_eq!(was_true(&space, 299), [true, true]);
        assert_eq!(was_true(&space, 300), [false, true]);
        assert!(space.return_page(0) && !space.return_page(1));
        assert_eq!(was_true(&space, 400), [false, true], "it is on its way");
        space.mark_published(MonoNs(500), |_| {});
        assert_eq!(was_true(&space, 499), [false, true]);
        assert_eq!(was_true(&space, 500), [true, true]);
        // It is missing again, and comes with other code.
        space.miss_page(0, MonoNs(600));
        space.touch_page(0);
        space.flush(|_, _| {});
        space.mark_published(MonoNs(700), |_| {});
        assert_eq!(was_true(&space, 650), [false, true]);
        assert_eq!(was_true(&space, 700), [true, true]);
        space.evict_before(MonoNs(701));
        assert!(space.missing.is_empty());
    }

    #[test]
    fn code_whose_rows_are_refused_is_walked_by_its_predecessors_until_they_are_withdrawn() {
        let frame = Rule::with_cfa(CfaKind::Sp, 32);
        let mut space = JitSpace::default();
        space.load(0x1000, 0x40, MonoNs(100), Some(rows_by(&[(0x1000, frame)], 0x1040)));
        space.flush(|_, _| {});
        space.mark_published(MonoNs(200), |_| {});
        space.set_limit(0);
        space.load(0x1000, 0x40, MonoNs(300), Some(rows_by(&[(0x1000, Rule::ENTRY)], 0x1040)));
        assert_eq!((space.refused(), space.functions.len()), (1, 0));
        assert!(!space.has(0x1000, MonoNs(300)) && space.is_full());
        assert!(!space.was_true(0x1010, MonoNs(310)));
        space.flush(|_, _| {});
        space.mark_published(MonoNs(400), |_| {});
        assert!(space.was_true(0x1010, MonoNs(410)), "by its frame pointer, as where nothing is known");
    }

    #[test]
    fn records_of_large_functions_touch_a_bounded_number_of_pages() {
        for distance in [16 << 20, 1 << 12] {
            let mut space = JitSpace::default();
            let started = std::time::Instant::now();
            for index in 0..60_000_u64 {
                space.load(0x7000_0000_0000 + index * distance, MAX_FUNCTION_BYTES, MonoNs(index + 1), None);
            }
            let mut pages = 0;
            space.flush(|_, _| pages += 1);
            assert!(pages <= MAX_WIDE_PAGES + 128, "{pages}");
            assert!(space.refused() > 50_000 && space.bytes() < 16 << 20, "{} {}", space.refused(), space.bytes());
            assert!(started.elapsed() < std::time::Duration::from_secs(5), "{:?}", started.elapsed());
            // What is published makes room for others in its place.
            let refused = space.refused();
            space.load(0x7000_0000_0000, MAX_FUNCTION_BYTES, MonoNs(1 << 20), None);
            assert_eq!(space.refused(), refused);
        }
    }

    #[test]
    fn a_copy_of_what_is_being_published_is_published_anew() {
        let mut space = JitSpace::default();
        space.load(0x1000, 64, MonoNs(10), None);
        space.load(0x2000, 64, MonoNs(10), None);
        space.flush(|_, _| ());
        space.mark_published(MonoNs(20), |_| ());
        // One is replaced, and handed over; then a process is forked.
        space.load(0x1000, 32, MonoNs(30), None);
        space.flush(|_, _| ());
        let mut copy = space.clone();
        copy.touch_all();
        assert!(space.is_unconfirmed() && copy.is_dirty() && !copy.is_unconfirmed());
        let mut pages = 0;
        copy.flush(|_, _| pages += 1);
        let mut published = 0;
        copy.mark_published(MonoNs(40), |_| published += 1);
        assert_eq!((pages, published, copy.is_unconfirmed()), (1, 2, false));
        assert!(copy.was_true(0x1008, MonoNs(41)) && copy.was_true(0x2008, MonoNs(41)));
    }

    fn frame_pointer_rows(start: u64) -> RowTable {
        table(start, start + 0x2_0000)
    }

    fn table(start: u64, end: u64) -> RowTable {
        let mut builder = RowTableBuilder::default();
        builder.add(start..end, [(start, Rule::ENTRY), (start + 1, Rule::FRAME_POINTER)]);
        builder.finish().0
    }

    /// What the BPF program would find.
    fn lookup(pages: &BTreeMap<u64, Vec<u64>>, address: u64) -> Row {
        let rows = pages.get(&(address >> PAGE_BITS)).map_or(&[][..], Vec::as_slice);
        let low = address as u16;
        rows.iter().map(|row| Row(*row)).take_while(|row| row.pc_low() <= low).last().unwrap_or(Row::GAP)
    }

    #[test]
    fn a_function_across_pages_is_found_in_both() {
        let mut space = JitSpace::default();
        space.load(0x1fff8, 0x10, MonoNs(1), Some(frame_pointer_rows(0x1fff8)));
        let mut pages = BTreeMap::new();
        space.flush(|page, rows| {
            pages.insert(page, rows.to_vec());
        });
        assert_eq!(lookup(&pages, 0x1fff8).0 >> 16, Rule::ENTRY.encode(0) >> 16);
        for address in [0x1fff9, 0x20000, 0x20007] {
            assert_eq!(lookup(&pages, address).0 >> 16, Rule::FRAME_POINTER.encode(0) >> 16, "{address:#x}");
        }
        assert!(lookup(&pages, 0x20008).is_unknown());
        assert!(lookup(&pages, 0x1fff7).is_unknown());
    }

    #[test]
    fn a_moved_function_is_found_at_its_new_place_only() {
        let mut space = JitSpace::default();
        space.load(0x1_0010, 0x10, MonoNs(1), Some(frame_pointer_rows(0x1_0010)));
        space.relocate(0x1_0010, 0x5_fff8, 0x10, MonoNs(2));
        let mut pages = BTreeMap::new();
        space.flush(|page, rows| {
            pages.insert(page, rows.to_vec());
        });
        assert!(lookup(&pages, 0x1_0011).is_unknown());
        assert_eq!(lookup(&pages, 0x5_fff8).0 >> 16, Rule::ENTRY.encode(0) >> 16);
        assert_eq!(lookup(&pages, 0x6_0007).0 >> 16, Rule::FRAME_POINTER.encode(0) >> 16);
        assert_eq!(lookup(&pages, 0x6_0008).cfa_kind(), 0);
        assert_eq!(space.with_rows(), 1);
    }

    /// Loads at 0x1_0010 and publishes at once; the second function begins later than its rows are published.
    fn replaced() -> JitSpace {
        let mut space = JitSpace::default();
        space.load(0x1_0010, 0x10, MonoNs(10), Some(frame_pointer_rows(0x1_0010)));
        space.flush(|_, _| {});
        space.mark_published(MonoNs(20), |_| {});
        // Its prologue is where the other one's body was.
        space.load(0x1_0018, 0x10, MonoNs(30), Some(frame_pointer_rows(0x1_0018)));
        space.flush(|_, _| {});
        space.mark_published(MonoNs(40), |loaded| assert_eq!(loaded, MonoNs(30)));
        space
    }

    #[test]
    fn code_was_unwound_truly_once_its_own_rows_were_published() {
        let space = replaced();
        // Before its rows were there, the first function was walked by frame pointer, which its prologue is not for.
        assert!(!space.was_true(0x1_0010, MonoNs(15)));
        assert!(space.was_true(0x1_0011, MonoNs(15)));
        assert!(space.was_true(0x1_0010, MonoNs(20)));
        // The second one's first instruction had the first one's frame until its rows came.
        assert!(space.was_true(0x1_0018, MonoNs(29)));
        assert!(!space.was_true(0x1_0018, MonoNs(30)));
        assert!(!space.was_true(0x1_0018, MonoNs(39)));
        assert!(space.was_true(0x1_0018, MonoNs(40)));
        // Where both say the same, it does not matter whose rule it was.
        assert!(space.was_true(0x1_0019, MonoNs(35)));
        // Nothing is there any more; what the tables still said leads nowhere worse than the frame pointer.
        assert!(space.was_true(0x1_0011, MonoNs(35)));
    }

    #[test]
    fn what_is_removed_from_a_range_has_no_rows_at_any_time() {
        let mut space = JitSpace::default();
        for start in [0x1_0000, 0x2_0000, 0x3_0000] {
            space.load(start, 0x100, MonoNs(10), Some(frame_pointer_rows(start)));
        }
        space.flush(|_, _| {});
        space.mark_published(MonoNs(20), |_| {});
        space.remove_within(&(0x1_00ff..0x2_0001));
        let has_row = |address: u64| [15, 30].map(|time| space.row_at(address, MonoNs(time)).is_some());
        assert_eq!([0x1_0001, 0x2_0001, 0x3_0001].map(has_row), [[false; 2], [false; 2], [true; 2]]);
        assert!(space.is_dirty() && space.with_rows() == 1, "the BPF program's are withdrawn");
        assert!(space.load_unrecorded(0x1_0000, 0x100, None));
    }

    #[test]
    fn what_is_evicted_was_not_true() {
        let mut space = replaced();
        space.evict_before(MonoNs(45));
        assert!(!space.was_true(0x1_0018, MonoNs(35)));
        assert!(space.was_true(0x1_0018, MonoNs(40)), "what is there needs no memory");
        let mut crowded = replaced();
        for time in 0..3000 {
            crowded.load(0x1_0018, 0x10, MonoNs(50 + time), None);
        }
        assert!(!crowded.was_true(0x1_0018, MonoNs(35)), "one page remembers 1024 functions");
    }

    #[test]
    fn a_cleared_space_withdraws_its_pages() {
        let mut space = JitSpace::default();
        space.load(0x1_0010, 0x10, MonoNs(1), Some(frame_pointer_rows(0x1_0010)));
        space.flush(|_, rows| assert!(!rows.is_empty()));
        assert!(space.is_unconfirmed() && !space.is_dirty(), "when it was published is still to be said");
        space.mark_published(MonoNs(2), |_| {});
        assert!(!space.is_dirty());
        space.clear();
        let mut withdrawn = Vec::new();
        space.flush(|page, rows| withdrawn.push((page, rows.len())));
        assert_eq!(withdrawn, [(1, 0)]);
    }

    #[test]
    fn a_waiting_sample_gets_the_rows_of_its_time() {
        let mut space = JitSpace::default();
        let (first, second) = (MonoNs(100_000_000), MonoNs(200_000_000));
        space.load(0x1_0000, 0x10, first, Some(frame_pointer_rows(0x1_0000)));
        space.load(0x1_0008, 0x10, second, None);
        let kind = |address, time| space.row_at(address, MonoNs(time)).map(|row| Row(row.0 & !0xffff));
        let rule = |rule: Rule| Some(Row(rule.encode(0)));
        assert_eq!(kind(0x1_0000, 150_000_000), rule(Rule::ENTRY));
        assert_eq!(kind(0x1_0008, 199_999_999), rule(Rule::FRAME_POINTER));
        assert_eq!(kind(0x1_0008, 200_000_000), rule(Rule::SETTLED_GAP));
        assert_eq!(kind(0x1_0000, 200_000_000), None, "it ended when its neighbour took its place");
        assert_eq!(kind(0x1_0010, 195_000_000), rule(Rule::SETTLED_GAP), "announced a little later");
        assert_eq!(kind(0x1_0010, 150_000_000), None);
    }

    #[test]
    fn what_was_found_has_no_rows_a_moment_before() {
        let mut space = JitSpace::default();
        let (found, replaced, gone) = (MonoNs(100_000_000), MonoNs(200_000_000), MonoNs(300_000_000));
        space.load_found(0x1_0000, 0x10, found, Some(frame_pointer_rows(0x1_0000)));
        let has_row = |space: &JitSpace, address, time| space.row_at(address, MonoNs(time)).is_some();
        assert_eq!([99_999_999, 100_000_000].map(|time| has_row(&space, 0x1_0008, time)), [false, true]);
        assert!(space.refine(0x1_0000, found, &frame_pointer_rows(0x1_0000)));
        assert!(!has_row(&space, 0x1_0008, 99_999_999), "more is known of its frame, and not of the time before");
        // Other code is found in its place, and more of it.
        space.load_found(0x1_0000, 0x20, replaced, Some(frame_pointer_rows(0x1_0000)));
        assert_eq!([0x1_0008, 0x1_0018].map(|address| has_row(&space, address, 199_999_999)), [true, false]);
        space.load_found(0x1_0010, 0x20, gone, None);
        assert_eq!([0x1_0018, 0x1_0028].map(|address| has_row(&space, address, 299_999_999)), [true, false]);
    }

    proptest! {
        #[test]
        fn published_pages_say_what_the_newest_functions_say(
            loads in proptest::collection::vec((0u64..0x4_0000, 1u64..0x2_0000, any::<bool>(), 0u64..20), 1..40),
            probes in proptest::collection::vec(0u64..0x6_0000, 64),
        ) {
            let mut space = JitSpace::default();
            let mut pages: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
            // The functions alive, by the plainest of means.
            let mut alive: Vec<(u64, u64, bool, u64)> = Vec::new();
            for load in &loads {
                let (start, size, with_rows, time) = *load;
                space.load(start, size, MonoNs(time), with_rows.then(|| frame_pointer_rows(start)));
                space.flush(|page, rows| {
                    prop_assert_sorted(rows);
                    pages.insert(page, rows.to_vec());
                });
                let overlaps = |other: &(u64, u64, bool, u64)| other.0 < start + size && start < other.0 + other.1;
                let hidden = alive.iter().any(|other| overlaps(other) && other.3 > time);
                alive.retain(|other| !overlaps(other) || other.3 > time);
                if !hidden {
                    alive.push(*load);
                }
            }
            prop_assert_eq!(space.with_rows(), alive.iter().filter(|load| load.2).count());
            for probe in probes {
                let found = alive.iter().find(|(start, size, ..)| (*start..start + size).contains(&probe));
                let expected = match found {
                    None => Rule::GAP,
                    Some((_, _, false, _)) => Rule::SETTLED_GAP,
                    Some((start, ..)) if *start == probe => Rule::ENTRY,
                    Some(_) => Rule::FRAME_POINTER,
                };
                prop_assert_eq!(lookup(&pages, probe).0 >> 16, expected.encode(0) >> 16, "at {:#x}", probe);
            }
        }
    }

    fn prop_assert_sorted(rows: &[u64]) {
        assert!(rows.is_sorted_by(|a, b| a & 0xffff < b & 0xffff), "{rows:x?}");
        assert!(rows.first().is_none_or(|row| row & 0xffff == 0));
    }
}
