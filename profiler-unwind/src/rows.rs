//! The table: pages of encoded rows.

use jitprof_common::row::{CfaKind, FpKind, Row, Rule};
use serde::{Deserialize, Serialize};

/// Address bits inside a page.
pub(super) const PAGE_BITS: u32 = 16;

/// Rules by address, kept the way the BPF program reads them: in pages of 64 KiB, each sorted and complete by itself.
///
/// The first row of a page is at its first byte and carries the rule in effect there, so a search never leaves its
/// page. A page inside of which nothing changes has one row; a page that nothing covers is not there. Memory: 8 bytes
/// a row and 16 a page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowTable {
    /// The page's number and the index of its first row; ascending in both.
    pages: Vec<(u64, u32)>,
    rows: Vec<u64>,
}

/// One page of a [`RowTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page<'a> {
    /// The high 48 bits of its addresses: `address >> 16`.
    pub page: u64,
    /// Encoded rows, ascending by their low 16 bits, the first at 0. Never empty.
    pub rows: &'a [u64],
}

impl RowTable {
    /// Pages in ascending order.
    pub fn pages(&self) -> impl Iterator<Item = Page<'_>> {
        (0..self.pages.len()).filter_map(|index| self.page_at(index))
    }

    /// The encoded rows of one page, if it has any. Costs a binary search.
    pub fn page(&self, page: u64) -> Option<&[u64]> {
        let index = self.pages.binary_search_by_key(&page, |(known, _)| *known).ok()?;
        self.page_at(index).map(|page| page.rows)
    }

    /// Addresses and rules, ascending, no rule twice in a row; addresses before the first and after the last row, which
    /// is a [`Rule::GAP`], are not covered.
    pub fn rows(&self) -> impl Iterator<Item = (u64, Rule)> {
        let mut last = Rule::GAP;
        self.with_page_ends().filter(move |(_, rule)| std::mem::replace(&mut last, *rule) != *rule)
    }

    /// The rule for an address: [`Rule::GAP`] where nothing covers it. Costs two binary searches.
    pub fn rule_at(&self, address: u64) -> Rule {
        let Ok(index) = self.pages.binary_search_by_key(&(address >> PAGE_BITS), |(page, _)| *page) else {
            return Rule::GAP;
        };
        let rows = self.page_at(index).map_or(&[][..], |page| page.rows);
        let after = rows.partition_point(|row| low_of(*row) <= address & low_mask());
        rows[..after].last().map_or(Rule::GAP, |row| decode(*row))
    }

    /// Encoded rows in all pages: what a table takes in the kernel, in units of 8 bytes.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether nothing is covered.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// How many pages have rows.
    pub fn page_count(&self) -> usize {
        self.pages.len()
    }

    /// The same rules for code that lies `distance` bytes further, wrapping: for moved code, and for copies of code
    /// that has a table. Code that would reach beyond the last address is left out. Costs as much as building it.
    #[must_use]
    pub fn shifted(&self, distance: u64) -> Self {
        let mut writer = PageWriter::new(usize::MAX);
        let mut last = 0;
        for (address, rule) in self.rows() {
            let shifted = address.wrapping_add(distance);
            if shifted < last {
                writer.push(u64::MAX, Rule::GAP);
                break;
            }
            writer.push(shifted, rule);
            last = shifted;
        }
        writer.finish()
    }

    /// A table of rules that come in ascending order.
    pub(super) fn of_rows(rows: impl Iterator<Item = (u64, Rule)>) -> Self {
        let mut writer = PageWriter::new(usize::MAX);
        rows.for_each(|(address, rule)| writer.push(address, rule));
        writer.finish()
    }

    /// Memory in bytes.
    pub fn bytes(&self) -> usize {
        size_of::<Self>()
            .saturating_add(self.pages.capacity().saturating_mul(size_of::<(u64, u32)>()))
            .saturating_add(self.rows.capacity().saturating_mul(size_of::<u64>()))
    }

    fn page_at(&self, index: usize) -> Option<Page<'_>> {
        let (page, first) = *self.pages.get(index)?;
        let end = self.pages.get(index.wrapping_add(1)).map_or(self.rows.len(), |(_, next)| *next as usize);
        Some(Page { page, rows: self.rows.get(first as usize..end)? })
    }

    /// All rows, and a gap where a page ends that no other follows.
    fn with_page_ends(&self) -> impl Iterator<Item = (u64, Rule)> {
        (0..self.pages.len()).filter_map(|index| self.page_at(index).map(|page| (index, page))).flat_map(
            |(index, Page { page, rows })| {
                let next = page.wrapping_add(1);
                let follows = self.pages.get(index.wrapping_add(1)).is_some_and(|(page, _)| *page == next);
                let end = (!follows).then_some((next.wrapping_shl(PAGE_BITS), Rule::GAP));
                rows.iter().map(move |row| (page << PAGE_BITS | low_of(*row), decode(*row))).chain(end)
            },
        )
    }
}

/// Writes rows that come in ascending order into pages.
#[derive(Debug)]
pub(super) struct PageWriter {
    table: RowTable,
    max_rows: usize,
    /// The rule in effect behind what has been written.
    rule: Rule,
    full: bool,
}

impl PageWriter {
    pub(super) fn new(max_rows: usize) -> Self {
        // Row indices are 32 bits wide.
        let max_rows = max_rows.min(u32::MAX as usize);
        Self { table: RowTable::default(), max_rows, rule: Rule::GAP, full: false }
    }

    /// `rule` holds from `address` on, which is not below the last one's. Costs a row for each page in between.
    pub(super) fn push(&mut self, address: u64, rule: Rule) {
        if rule == self.rule || self.full {
            return;
        }
        let page = address >> PAGE_BITS;
        self.cover_up_to(page);
        let low = address & low_mask();
        if low != 0 || rule != Rule::GAP {
            if self.current_page() != Some(page) {
                self.open(page, if low == 0 { rule } else { self.rule });
            }
            if low != 0 {
                self.write(low, rule);
            }
        }
        self.rule = rule;
    }

    /// The table, and whether rows were left out because it was full.
    pub(super) fn finish_counted(mut self) -> (RowTable, bool) {
        if self.full {
            // The last page may lack its later rows; what stands in their place would be the wrong rule.
            if let Some((_, first)) = self.table.pages.pop() {
                self.table.rows.truncate(first as usize);
            }
        }
        self.table.rows.shrink_to_fit();
        self.table.pages.shrink_to_fit();
        (self.table, self.full)
    }

    pub(super) fn finish(self) -> RowTable {
        self.finish_counted().0
    }

    fn current_page(&self) -> Option<u64> {
        self.table.pages.last().map(|(page, _)| *page)
    }

    /// Opens the pages before `page` that the rule in effect reaches into.
    fn cover_up_to(&mut self, page: u64) {
        let Some(current) = self.current_page().filter(|_| self.rule != Rule::GAP) else {
            return;
        };
        for between in current.saturating_add(1)..page {
            self.open(between, self.rule);
            if self.full {
                return;
            }
        }
    }

    fn open(&mut self, page: u64, rule: Rule) {
        let first = u32::try_from(self.table.rows.len()).unwrap_or(u32::MAX);
        self.write(0, rule);
        if !self.full {
            self.table.pages.push((page, first));
        }
    }

    fn write(&mut self, low: u64, rule: Rule) {
        if self.table.rows.len() >= self.max_rows {
            self.full = true;
            return;
        }
        self.table.rows.push(rule.encode(low as u16));
    }
}

const fn low_mask() -> u64 {
    (1 << PAGE_BITS) - 1
}

fn low_of(row: u64) -> u64 {
    u64::from(Row(row).pc_low())
}

/// The rule that an encoded row carries; rows in a table were encoded from rules.
pub(super) fn decode(row: u64) -> Rule {
    let row = Row(row);
    let cfa = match row.cfa_kind() {
        0 => CfaKind::Gap,
        1 => CfaKind::Sp,
        2 => CfaKind::Fp,
        3 => CfaKind::FpDeref,
        4 => CfaKind::Plt,
        5 => CfaKind::Signal,
        6 => CfaKind::Outermost,
        8 => CfaKind::SpDeref,
        9 => CfaKind::SpSaved,
        10 => CfaKind::FpAway,
        11 => CfaKind::FpSender,
        12 => CfaKind::Parked,
        13 => CfaKind::SpFar,
        _ => CfaKind::Unsupported,
    };
    let fp = match row.fp_kind() {
        0 => FpKind::Same,
        1 => FpKind::AtCfa,
        2 => FpKind::AtFp,
        _ => FpKind::Lost,
    };
    let slots = |bytes: i64| i16::try_from(bytes / 8).unwrap_or_default();
    Rule {
        cfa,
        cfa_offset: slots(row.cfa_offset_bytes()),
        fp,
        fp_offset: slots(row.fp_offset_bytes()),
        return_address: row.return_address(),
    }
}
