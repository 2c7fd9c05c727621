//! The rows of one generated function, relative to its first byte: functions of the same shape share them, and one that
//! moves takes them along.

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use jitprof_common::row::{Row, Rule};

use super::rows::{PAGE_BITS, RowTable, decode};

/// Different rows that later functions may share. A runtime's small functions have some hundred shapes, its large ones
/// each their own.
const MAX_SHAPES: usize = 1 << 12;
/// Size of a function whose offsets fit into a row.
const NEAR_BYTES: u64 = 1 << PAGE_BITS;

/// Rows by distance from the function's start.
#[derive(Clone, Debug)]
pub(super) enum CodeRows {
    /// Of a function up to [`NEAR_BYTES`]: ascending by their low 16 bits.
    Near(Arc<[u64]>),
    /// Of a larger one: a table of code that begins at address 0.
    Far(Arc<RowTable>),
}

/// The rows that are shared.
#[derive(Clone, Debug, Default)]
pub(super) struct Shapes(HashSet<Arc<[u64]>>);

impl Shapes {
    /// The rows of a function, of which only what lies inside of it is kept; `None` if that is nothing.
    pub(super) fn rows_of(&mut self, table: &RowTable, start: u64, size: u64) -> Option<CodeRows> {
        if size > NEAR_BYTES {
            let rows = table.shifted(start.wrapping_neg());
            return (!rows.is_empty()).then(|| CodeRows::Far(Arc::new(rows)));
        }
        let mut near: Vec<u64> = Vec::with_capacity(table.len());
        for (address, rule) in table.rows() {
            let Ok(low) = u16::try_from(address.saturating_sub(start)) else { break };
            if u64::from(low) >= size {
                break;
            }
            if near.last().is_some_and(|last| Row(*last).pc_low() == low) {
                near.pop();
            }
            near.push(rule.encode(low));
        }
        (!near.is_empty()).then(|| CodeRows::Near(self.share(&near)))
    }

    fn share(&mut self, rows: &[u64]) -> Arc<[u64]> {
        if let Some(known) = self.0.get(rows) {
            return Arc::clone(known);
        }
        if self.0.len() >= MAX_SHAPES {
            self.0.retain(|known| Arc::strong_count(known) > 2);
            if self.0.len() >= MAX_SHAPES / 2 {
                self.0.clear();
            }
        }
        let rows: Arc<[u64]> = rows.into();
        self.0.insert(Arc::clone(&rows));
        rows
    }
}

impl CodeRows {
    /// The rule so many bytes from the function's start; [`Rule::GAP`] where nothing covers it.
    pub(super) fn rule_at(&self, offset: u64) -> Rule {
        match self {
            Self::Near(rows) => {
                let after = rows.partition_point(|row| u64::from(Row(*row).pc_low()) <= offset);
                rows[..after].last().map_or(Rule::GAP, |row| decode(*row))
            }
            Self::Far(table) => table.rule_at(offset),
        }
    }

    /// Hands over the encoded rows that begin in a part of the function, by their offset; cost: the rows of so many bytes.
    pub(super) fn each(&self, part: RangeInclusive<u64>, mut visit: impl FnMut(u64, u64)) {
        match self {
            Self::Near(rows) => {
                let offsets = rows.iter().map(|row| (u64::from(Row(*row).pc_low()), *row));
                offsets.filter(|(offset, _)| part.contains(offset)).for_each(|(offset, row)| visit(offset, row));
            }
            Self::Far(table) => {
                for page in part.start() >> PAGE_BITS..=part.end() >> PAGE_BITS {
                    let gap = [Rule::GAP.encode(0)];
                    for row in table.page(page).unwrap_or(&gap) {
                        let offset = page << PAGE_BITS | u64::from(Row(*row).pc_low());
                        if part.contains(&offset) {
                            visit(offset, *row);
                        }
                    }
                }
            }
        }
    }

    /// The table of the function where it lies.
    pub(super) fn table(&self, start: u64) -> RowTable {
        match self {
            Self::Near(rows) => RowTable::of_rows(
                rows.iter().map(|row| (start.wrapping_add(u64::from(Row(*row).pc_low())), decode(*row))),
            ),
            Self::Far(table) => table.shifted(start),
        }
    }

    /// Memory in bytes, were they not shared.
    pub(super) fn bytes(&self) -> usize {
        /// Two counters of an `Arc`, and what the allocator takes.
        const ARC: usize = 32;
        match self {
            Self::Near(rows) => ARC + size_of_val(&**rows),
            Self::Far(table) => ARC + table.bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::builder::RowTableBuilder;
    use super::*;

    fn table(start: u64, size: u64, rules: &[(u64, Rule)]) -> RowTable {
        let mut builder = RowTableBuilder::default();
        builder.add(start..start + size, rules.iter().map(|(offset, rule)| (start + offset, *rule)));
        builder.finish().0
    }

    proptest! {
        #[test]
        fn rows_say_what_the_table_says_wherever_the_function_lies(
            start in 0u64..0x5_0000,
            size in prop_oneof![1u64..0x200, 0xfff0u64..0x1_0010, 1u64..0x4_0000],
            at in proptest::collection::btree_set(0u64..0x4_0000, 0..8),
            probes in proptest::collection::vec(0u64..0x4_0000, 32),
        ) {
            let kinds = [Rule::ENTRY, Rule::FRAME_POINTER, Rule::GAP, Rule::OUTERMOST];
            let offsets = at.into_iter().filter(|offset| *offset < size).enumerate();
            let rules: Vec<(u64, Rule)> = offsets.map(|(index, offset)| (offset, kinds[index % kinds.len()])).collect();
            let table = table(start, size, &rules);
            let rows = Shapes::default().rows_of(&table, start, size);
            for probe in probes.into_iter().filter(|probe| *probe < size) {
                let rule = rows.as_ref().map_or(Rule::GAP, |rows| rows.rule_at(probe));
                prop_assert_eq!(rule, table.rule_at(start + probe));
                let moved = rows.as_ref().map_or(Rule::GAP, |rows| rows.table(0x77_0000).rule_at(0x77_0000 + probe));
                prop_assert_eq!(moved, rule);
            }
        }
    }

    #[test]
    fn functions_of_one_shape_share_their_rows_and_not_too_many_shapes_are_kept() {
        let rules = [(0, Rule::ENTRY), (1, Rule::FRAME_POINTER)];
        let mut shapes = Shapes::default();
        let mut near = |start| match shapes.rows_of(&table(start, 64, &rules), start, 64) {
            Some(CodeRows::Near(rows)) => rows,
            other => panic!("{other:?}"),
        };
        assert!(Arc::ptr_eq(&near(0x1000), &near(0x7_fff8)), "also across a page's end");
        let mut shapes = Shapes::default();
        let kept: Vec<_> = (1..20_000)
            .map(|offset| {
                shapes.rows_of(&table(0, 0x8000, &[(0, Rule::ENTRY), (offset, Rule::FRAME_POINTER)]), 0, 0x8000)
            })
            .collect();
        assert!(kept.iter().all(Option::is_some) && shapes.0.len() <= MAX_SHAPES);
    }
}
