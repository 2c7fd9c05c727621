//! The line table of the API: each entry says where its line **ends**.
//!
//! ```text
//! entry i = (offset, line)      bytes offset(i-1) .. offset(i) belong to line(i), with offset(-1) = 0
//! (1,2) (12,4) (15,2) (18,1) (21,30)      0..1 → 2   1..12 → 4   12..15 → 2   15..18 → 1   18..21 → 30
//! ```
//!
//! LLVM's first entry is `(0, first line)`, an empty range. numba announces ranges of line 0, which say that there is
//! no line.

/// Bytes of one entry.
pub(crate) const ENTRY_BYTES: usize = 8;

/// Entries read of one table. The reader keeps as many rows of one function.
pub(crate) const MAX_ENTRIES: u32 = 1 << 16;

/// From this offset on, the code belongs to this line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// Bytes from the code's start.
    pub(crate) offset: u32,
    /// Line from 1; 0 for none.
    pub(crate) line: u32,
}

/// The rows of a table over `size` bytes of code, ascending. Entries may come in any order; of two with the same
/// offset the first holds. Behind the last entry there is no line.
pub(crate) fn rows(table: &[u8], size: u32) -> Vec<Row> {
    let mut entries: Vec<(u32, u32)> = Vec::new();
    if entries.try_reserve_exact(table.len() / ENTRY_BYTES).is_err() {
        return Vec::new();
    }
    entries.extend(table.chunks_exact(ENTRY_BYTES).filter_map(|entry| {
        let word = |at: usize| entry.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
        Some((word(0)?, word(4)?))
    }));
    entries.sort_by_key(|(end, _)| *end);
    let mut rows = Vec::new();
    if rows.try_reserve_exact(entries.len() + 1).is_err() {
        return Vec::new();
    }
    let mut start = 0;
    for (end, line) in entries {
        if end > start && start < size {
            rows.push(Row { offset: start, line });
            start = end;
        }
    }
    if start < size && !rows.is_empty() {
        rows.push(Row { offset: start, line: 0 });
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(entries: &[(u32, u32)]) -> Vec<u8> {
        entries.iter().flat_map(|(end, line)| [end.to_ne_bytes(), line.to_ne_bytes()].concat()).collect()
    }

    fn lines(entries: &[(u32, u32)], size: u32) -> Vec<(u32, u32)> {
        rows(&table(entries), size).iter().map(|row| (row.offset, row.line)).collect()
    }

    #[test]
    fn an_entry_s_offset_is_the_end_of_its_range() {
        let documented = [(1, 2), (12, 4), (15, 2), (18, 1), (21, 30)];
        assert_eq!(lines(&documented, 21), [(0, 2), (1, 4), (12, 2), (15, 1), (18, 30)]);
    }

    #[test]
    fn the_empty_first_range_of_llvm_is_left_out() {
        assert_eq!(lines(&[(0, 7), (4, 7), (9, 8)], 9), [(0, 7), (4, 8)]);
    }

    #[test]
    fn entries_are_sorted_and_of_equal_ones_the_first_holds() {
        assert_eq!(lines(&[(8, 2), (4, 1), (8, 3)], 8), [(0, 1), (4, 2)]);
    }

    #[test]
    fn behind_the_table_there_is_no_line_and_behind_the_code_no_row() {
        assert_eq!(lines(&[(4, 1)], 10), [(0, 1), (4, 0)]);
        assert_eq!(lines(&[(4, 1), (20, 2), (30, 3)], 10), [(0, 1), (4, 2)]);
        assert_eq!(lines(&[], 10), []);
        assert_eq!(lines(&[(4, 0), (6, 5)], 6), [(0, 0), (4, 5)]);
    }
}
