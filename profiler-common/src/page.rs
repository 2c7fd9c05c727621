//! How a page's rows lie in their span, and where among them that of an address is searched.
//!
//! A search among hundreds of rows misses the CPU's caches five or six times. An index says between which rows to search: it
//! is looked at in one place, and the rows in one or two. It lies in front of the rows, is written with them and published by
//! the same word, so that no reader has one without the other: the number of elements says whether there is one.
//!
//! ```text
//! elements 0..16  if there are 32 rows or more: one for each 4 KiB of the page, which are cut in three. Four numbers of 16
//!                 bits say which row holds where each third begins, and where the last one ends
//! behind them     the rows
//! ```

use crate::row::Row;
use crate::table::{MAX_PAGE_ROWS, PAGE_BITS, Span};

/// Pages of so many rows have an index. More than an index has elements: fewer elements are rows.
pub const MIN_INDEXED_ROWS: u32 = 32;
/// Elements of an index: one for each part of the page.
pub const INDEX_ELEMENTS: u32 = 16;
/// Elements of a page at most.
pub const MAX_PAGE_ELEMENTS: u32 = MAX_PAGE_ROWS + INDEX_ELEMENTS;

/// Bits of an address within a part.
const PART_BITS: u32 = PAGE_BITS - INDEX_ELEMENTS.ilog2();
/// Into how many pieces a part is cut.
const PIECES: u32 = 3;
/// Bits of a row's number.
const NUMBER_BITS: u32 = 16;
const _: () = assert!(MIN_INDEXED_ROWS > INDEX_ELEMENTS && (PIECES + 1) * NUMBER_BITS == u64::BITS);
const _: () = assert!(MAX_PAGE_ROWS - 1 <= u16::MAX as u32);

/// Elements that a page of so many rows takes.
pub const fn page_elements(rows: u32) -> u32 {
    if rows < MIN_INDEXED_ROWS { rows } else { rows.saturating_add(INDEX_ELEMENTS) }
}

/// How many of a page's elements are its index.
#[inline(always)]
pub const fn index_elements(elements: u32) -> u32 {
    if elements < MIN_INDEXED_ROWS { 0 } else { INDEX_ELEMENTS }
}

/// The index of a page's rows, which are sorted by their addresses; `None` for few rows.
pub fn page_index(rows: &[u64]) -> Option<[u64; INDEX_ELEMENTS as usize]> {
    if rows.len() < MIN_INDEXED_ROWS as usize {
        return None;
    }
    let number = |part: u32, piece: u32| {
        // The first address of the piece, or of what is behind the part.
        let address = (part << PART_BITS) + (piece << PART_BITS).div_ceil(PIECES);
        holding(rows, address) << (piece * NUMBER_BITS)
    };
    Some(core::array::from_fn(|part| (0..=PIECES).fold(0, |element, piece| element | number(part as u32, piece))))
}

/// The number of the row that holds at an address of the page; 0 if there is none.
fn holding(rows: &[u64], address: u32) -> u64 {
    let above = rows.partition_point(|row| u32::from(Row(*row).pc_low()) <= address);
    (above as u64).saturating_sub(1).min(u16::MAX.into())
}

/// Where a row is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Search {
    /// The page's first row.
    pub first: u32,
    /// The first row above the address is not before this one,
    pub low: u32,
    /// and not behind this one, which may be the span's end.
    pub high: u32,
}

impl Search {
    /// Where in a page's span the row of an address is. `read` gives an element; whatever it is, what follows from it is within
    /// the span.
    #[inline(always)]
    pub fn of(span: Span, pc_low: u16, read: impl FnOnce(u32) -> Option<u64>) -> Option<Self> {
        if span.count < MIN_INDEXED_ROWS {
            return Some(Self { first: span.first, low: span.first, high: span.first.wrapping_add(span.count) });
        }
        let first = span.first.wrapping_add(INDEX_ELEMENTS);
        let rows = (span.count - INDEX_ELEMENTS).min(MAX_PAGE_ROWS);
        let (part, within) = (u32::from(pc_low) >> PART_BITS, u32::from(pc_low) & ((1 << PART_BITS) - 1));
        let piece = (within * PIECES) >> PART_BITS;
        let numbers = read(span.first.wrapping_add(part))? >> (piece * NUMBER_BITS);
        let (low, last) = (u32::from(numbers as u16), u32::from((numbers >> NUMBER_BITS) as u16));
        Some(Self { first, low: first.wrapping_add(low.min(rows)), high: first.wrapping_add((last + 1).min(rows)) })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;
    use crate::row::Rule;

    /// A row for each address.
    fn rows_at(addresses: impl IntoIterator<Item = u16>) -> Vec<u64> {
        addresses.into_iter().map(|address| Rule::ENTRY.encode(address)).collect()
    }

    /// A page's elements behind `before` others, and their span.
    fn page(before: u32, rows: &[u64]) -> (Vec<u64>, Span) {
        let mut elements = std::vec![u64::MAX; before as usize];
        elements.extend(page_index(rows).into_iter().flatten());
        elements.extend(rows);
        let span = Span { first: before, count: elements.len() as u32 - before };
        assert_eq!(span.count, page_elements(rows.len() as u32));
        (elements, span)
    }

    /// The number of the row that a search finds, and how many rows it may be.
    fn found(elements: &[u64], span: Span, pc_low: u16) -> (Option<u32>, u32) {
        let Search { first, mut low, mut high } =
            Search::of(span, pc_low, |at| elements.get(at as usize).copied()).unwrap();
        assert!(first >= span.first && low >= first && high <= span.first + span.count);
        let candidates = high.saturating_sub(low);
        while low < high {
            let middle = low + (high - low) / 2;
            if Row(elements[middle as usize]).pc_low() <= pc_low {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        ((low > first).then(|| low - 1 - first), candidates)
    }

    /// The same without an index.
    fn expected(rows: &[u64], pc_low: u16) -> Option<u32> {
        (rows.partition_point(|row| Row(*row).pc_low() <= pc_low) as u32).checked_sub(1)
    }

    #[test]
    fn few_rows_have_no_index() {
        let few = rows_at(0..MIN_INDEXED_ROWS as u16 - 1);
        assert_eq!((page_index(&few), page_elements(31), index_elements(31)), (None, 31, 0));
        let (elements, span) = page(5, &few);
        assert_eq!(Search::of(span, 7, |_| panic!("there is none")), Some(Search { first: 5, low: 5, high: 36 }));
        assert_eq!(found(&elements, span, 7).0, Some(7));
        assert!(page_index(&rows_at(0..MIN_INDEXED_ROWS as u16)).is_some());
        assert_eq!((page_elements(32), index_elements(48)), (48, 16));
        assert_eq!((page_elements(MAX_PAGE_ROWS), page_elements(u32::MAX)), (MAX_PAGE_ELEMENTS, u32::MAX));
        let largest = Span { first: 1, count: MAX_PAGE_ELEMENTS };
        assert_eq!(Span::decode(largest.encode(3), 3), Some(largest));
    }

    #[test]
    fn each_address_finds_the_row_that_it_finds_without_an_index() {
        let all = rows_at(0..=u16::MAX);
        let one_cluster = rows_at((0..40).map(|at| 0x2fe0 + at));
        // Generated code of a JVM.
        let even = rows_at((0..541).map(|at| at * 121));
        let at_the_borders =
            rows_at((0..16).flat_map(|part| [0, 1365, 1366, 2730, 2731, 4095].map(|at| part * 4096 + at)));
        for rows in [all, one_cluster, even, at_the_borders] {
            let (elements, span) = page(3, &rows);
            for pc_low in 0..=u16::MAX {
                assert_eq!(found(&elements, span, pc_low).0, expected(&rows, pc_low), "{pc_low:#x} of {}", rows.len());
            }
        }
    }

    #[test]
    fn an_index_leaves_few_rows_to_be_searched() {
        let rows = rows_at((0..541).map(|at| at * 121));
        let (elements, span) = page(0, &rows);
        let most = (0..=u16::MAX).map(|pc_low| found(&elements, span, pc_low).1).max();
        // 1366 bytes have twelve, and there is one on each side.
        assert!(most.is_some_and(|most| most <= 14), "{most:?}");
    }

    proptest! {
        #[test]
        fn any_rows_are_found(mut addresses in proptest::collection::vec(any::<u16>(), 0..700), repeats in any::<bool>()) {
            addresses.sort_unstable();
            if !repeats {
                addresses.dedup();
            }
            let rows = rows_at(addresses.iter().copied());
            let (elements, span) = page(9, &rows);
            let near = addresses.iter().flat_map(|at| [at.wrapping_sub(1), *at, at.wrapping_add(1)]);
            for pc_low in near.chain((0..=u16::MAX).step_by(1021)) {
                prop_assert_eq!(found(&elements, span, pc_low).0, expected(&rows, pc_low));
            }
        }

        #[test]
        fn a_wrong_index_leads_nowhere_else(element in any::<u64>(), count in 32..MAX_PAGE_ELEMENTS, pc_low in any::<u16>()) {
            let span = Span { first: 100, count };
            let search = Search::of(span, pc_low, |at| (100..116).contains(&at).then_some(element)).unwrap();
            prop_assert_eq!(search.first, 116);
            prop_assert!((116..=100 + count).contains(&search.low) && (116..=100 + count).contains(&search.high));
        }
    }
}
