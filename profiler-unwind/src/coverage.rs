//! What a table says about code, and what it does not.

use std::collections::BTreeMap;
use std::ops::Range;

use jitprof_common::row::{CfaKind, Rule};
use serde::Serialize;

use super::rows::RowTable;

/// Gaps shorter than this are padding: functions are aligned to 64 bytes at most.
const PADDING_BYTES: u64 = 64;

/// A stretch of code by addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Stretch {
    /// First address.
    pub start: u64,
    /// One past the last.
    pub end: u64,
}

impl Stretch {
    /// Its length in bytes.
    pub fn bytes(self) -> u64 {
        self.end.saturating_sub(self.start)
    }
}

/// Rows and the bytes that they hold for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KindCount {
    /// Rows; one that goes on over the border of a page counts once.
    pub rows: u64,
    /// Bytes of code.
    pub bytes: u64,
}

/// How much of some code a table covers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Coverage {
    /// Bytes of code.
    pub code_bytes: u64,
    /// Of these, bytes whose caller a row finds.
    pub covered_bytes: u64,
    /// Rows and bytes by the rule's kind, gaps and unsupported rules included.
    pub by_kind: BTreeMap<&'static str, KindCount>,
    /// Stretches without a row, all of them.
    pub gap_count: u64,
    /// Those shorter than 64 bytes: what compilers leave between functions.
    pub padding: KindCount,
    /// The largest of these, the largest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gaps: Vec<Stretch>,
    /// Stretches with a rule that rows cannot express, all of them.
    pub unsupported_count: u64,
    /// The largest of these, the largest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unsupported: Vec<Stretch>,
}

impl Coverage {
    /// Judges the addresses `code` (ascending, without overlap) by `table`, and keeps the `most` largest stretches of
    /// those that are not covered. Costs one pass over the table.
    pub fn of(table: &RowTable, code: &[Range<u64>], most: usize) -> Self {
        let mut coverage = Self {
            code_bytes: code.iter().fold(0, |sum, range| sum.saturating_add(range.end.saturating_sub(range.start))),
            ..Self::default()
        };
        let ends = table.rows().skip(1).map(|(address, _)| address).chain([u64::MAX]);
        // What lies before the first row is a gap, too.
        let rows = [(0, Rule::GAP)].into_iter().chain(table.rows());
        let first = table.rows().next().map_or(u64::MAX, |(address, _)| address);
        for ((start, rule), end) in rows.zip([first].into_iter().chain(ends)) {
            let after = code.partition_point(|range| range.end <= start);
            for range in code.get(after..).unwrap_or_default().iter().take_while(|range| range.start < end) {
                coverage.count(rule, Stretch { start: start.max(range.start), end: end.min(range.end) });
            }
        }
        for stretches in [&mut coverage.gaps, &mut coverage.unsupported] {
            stretches.sort_by_key(|stretch| (std::cmp::Reverse(stretch.bytes()), stretch.start));
            stretches.truncate(most);
        }
        coverage
    }

    /// Covered bytes of all bytes, from 0 to 1; 1 without code.
    pub fn share(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a share for people")]
        let share = self.covered_bytes as f64 / self.code_bytes.max(1) as f64;
        if self.code_bytes == 0 { 1.0 } else { share }
    }

    fn count(&mut self, rule: Rule, stretch: Stretch) {
        if stretch.bytes() == 0 {
            return;
        }
        let kind = self.by_kind.entry(kind_name(rule.cfa)).or_default();
        kind.rows = kind.rows.saturating_add(1);
        kind.bytes = kind.bytes.saturating_add(stretch.bytes());
        match rule.cfa {
            CfaKind::Gap => {
                self.gap_count = self.gap_count.saturating_add(1);
                if stretch.bytes() < PADDING_BYTES {
                    self.padding.rows = self.padding.rows.saturating_add(1);
                    self.padding.bytes = self.padding.bytes.saturating_add(stretch.bytes());
                }
                self.gaps.push(stretch);
            }
            CfaKind::Unsupported => {
                self.unsupported_count = self.unsupported_count.saturating_add(1);
                self.unsupported.push(stretch);
            }
            _ => self.covered_bytes = self.covered_bytes.saturating_add(stretch.bytes()),
        }
    }
}

/// A kind of rule in a few words.
pub fn kind_name(kind: CfaKind) -> &'static str {
    match kind {
        CfaKind::Gap => "gap",
        CfaKind::Sp => "cfa = sp + n",
        CfaKind::Fp => "cfa = fp + n",
        CfaKind::FpDeref => "cfa = *(fp + n)",
        CfaKind::SpFar => "cfa = sp + n, over 256 KiB",
        CfaKind::SpDeref => "cfa = *(sp + n) + 8",
        CfaKind::SpSaved => "cfa = *(sp + n) + m",
        CfaKind::Plt => "linkage table",
        CfaKind::Signal => "signal frame",
        CfaKind::Outermost => "outermost",
        CfaKind::FpAway => "cfa = fp + n, from another stack",
        CfaKind::FpSender => "cfa = *(fp + n), callee at fp",
        CfaKind::Parked => "cfa = parked sp + n",
        CfaKind::Unsupported => "unsupported",
    }
}

#[cfg(test)]
mod tests {
    use super::super::builder::RowTableBuilder;
    use super::*;

    #[test]
    fn bytes_are_covered_a_gap_or_unsupported_and_add_up() {
        let mut builder = RowTableBuilder::default();
        builder.add(0x1010..0x1040, [(0x1010, Rule::ENTRY), (0x1011, Rule::FRAME_POINTER)]);
        builder.add(0x1040..0x1048, [(0x1040, Rule::UNSUPPORTED)]);
        builder.add(0x2_0000..0x4_0000, [(0x2_0000, Rule::ENTRY)]);
        let code = [0x1000..0x1050, 0x1_8000..0x3_0000];
        let coverage = Coverage::of(&builder.finish().0, &code, 2);
        assert_eq!(coverage.code_bytes, 0x50 + 0x1_8000);
        assert_eq!(coverage.covered_bytes, 0x30 + 0x1_0000);
        assert_eq!((coverage.gap_count, coverage.padding), (3, KindCount { rows: 2, bytes: 0x18 }));
        assert_eq!(
            coverage.gaps,
            [Stretch { start: 0x1_8000, end: 0x2_0000 }, Stretch { start: 0x1000, end: 0x1010 }],
            "the largest two, the largest first"
        );
        assert_eq!(coverage.unsupported, [Stretch { start: 0x1040, end: 0x1048 }]);
        assert_eq!(coverage.by_kind["cfa = sp + n"], KindCount { rows: 2, bytes: 1 + 0x1_0000 });
        assert_eq!(coverage.by_kind["cfa = fp + n"], KindCount { rows: 1, bytes: 0x2f });
        let all: u64 = coverage.by_kind.values().map(|kind| kind.bytes).sum();
        assert_eq!(all, coverage.code_bytes);
    }

    #[test]
    fn without_rows_all_code_is_one_gap() {
        let coverage = Coverage::of(&RowTable::default(), std::slice::from_ref(&(0x1000..0x2000)), 5);
        assert_eq!((coverage.covered_bytes, coverage.gap_count), (0, 1));
        assert_eq!(coverage.gaps, [Stretch { start: 0x1000, end: 0x2000 }]);
    }
}
