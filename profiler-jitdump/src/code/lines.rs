//! Source rows of a code object, packed as the reader makes them and the map keeps them.

use std::sync::Arc;

use super::event::LineRow;

/// Which source line the bytes of one code object belong to.
///
/// 12 bytes a row, and one entry for each run of rows of the same file. Rows have ascending offsets, one each, and none
/// repeats file and line of the row before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceRows {
    rows: Vec<Row>,
    files: Vec<Arc<str>>,
    /// Bytes of the files' names that nobody is known to share.
    own_names: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    offset: u32,
    line: u32,
    /// In `files`.
    file: u32,
}

impl SourceRows {
    /// No rows yet, of these files.
    pub(crate) fn of_files(files: Vec<Arc<str>>, capacity: usize) -> Self {
        Self { rows: Vec::with_capacity(capacity), files, own_names: 0 }
    }

    /// Of these files: bytes behind the first one, the line, and which of the files. By ascending offset; others are left out.
    ///
    /// The names of the files count as its own memory, as each reading of a runtime's tables brings others.
    pub fn of(files: Vec<Arc<str>>, rows: impl IntoIterator<Item = (u32, u32, u32)>) -> Self {
        let own_names = files.iter().map(|file| file.len()).sum();
        let mut found = Self { own_names, ..Self::of_files(files, 0) };
        for (offset, line, file) in rows {
            if found.rows.last().is_none_or(|last| last.offset <= offset) {
                found.push(offset, line, file);
            }
        }
        found
    }

    /// The index of `file`, which becomes one of the files if it is not among the last few.
    ///
    /// V8 alternates between the few files of the inlined functions, and a search of all of them would be quadratic for
    /// a target that names a new file in each row.
    pub(crate) fn file_index(files: &mut Vec<Arc<str>>, file: Arc<str>) -> u32 {
        const LOOK_BACK: usize = 8;
        let recent = files.len().saturating_sub(LOOK_BACK);
        let known = files[recent..].iter().rposition(|known| Arc::ptr_eq(known, &file) || *known == file);
        let index = known.map_or(files.len(), |at| recent + at);
        if known.is_none() {
            files.push(file);
        }
        // There are no more files than rows, and readers cap these far below u32::MAX.
        u32::try_from(index).unwrap_or(u32::MAX)
    }

    /// Adds a row, whose offset is not below that of the last. It takes the place of a row at the same offset, and goes
    /// without a trace where it only repeats what holds already.
    pub(crate) fn push(&mut self, offset: u32, line: u32, file: u32) {
        if self.rows.last().is_some_and(|last| last.offset == offset) {
            self.rows.pop();
        }
        if self.rows.last().is_none_or(|last| last.line != line || last.file != file) {
            self.rows.push(Row { offset, line, file });
        }
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Whether no row has a line.
    pub(crate) fn names_nothing(&self) -> bool {
        self.rows.iter().all(|row| row.line == 0)
    }

    /// Drops all rows but the first `count`.
    pub(super) fn truncate(&mut self, count: usize) {
        self.rows.truncate(count);
    }

    /// The rows, unpacked, by ascending offset.
    pub fn iter(&self) -> impl Iterator<Item = LineRow> {
        self.rows.iter().filter_map(|row| {
            let file = Arc::clone(self.file(row)?);
            Some(LineRow { offset: row.offset, line: row.line, file })
        })
    }

    /// File and line of the byte at `offset`. Costs a binary search.
    pub fn at(&self, offset: u64) -> Option<(&Arc<str>, u32)> {
        let after = self.rows.partition_point(|row| u64::from(row.offset) <= offset);
        let row = self.rows[..after].last()?;
        // Line 0 is how producers say "from here on nothing is known" (Erlang closes every function with such a row).
        if row.line == 0 {
            return None;
        }
        Some((self.file(row)?, row.line))
    }

    fn file(&self, row: &Row) -> Option<&Arc<str>> {
        self.files.get(usize::try_from(row.file).ok()?)
    }

    /// For keeping: without unused memory. `None` if there are no rows.
    pub(super) fn kept(mut self) -> Option<Arc<Self>> {
        self.rows.shrink_to_fit();
        self.files.shrink_to_fit();
        (!self.is_empty()).then(|| Arc::new(self))
    }

    /// Own memory in bytes, without the file names that a dump's reader shares between many functions.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.rows) + size_of_val(&*self.files) + self.own_names
    }
}

/// Rows out of order are sorted; of several at one offset the last one holds.
impl FromIterator<LineRow> for SourceRows {
    fn from_iter<T: IntoIterator<Item = LineRow>>(rows: T) -> Self {
        let mut rows: Vec<LineRow> = rows.into_iter().collect();
        rows.sort_by_key(|row| row.offset);
        let mut packed = Self::default();
        for row in rows {
            let file = Self::file_index(&mut packed.files, row.file);
            packed.push(row.offset, row.line, file);
        }
        packed
    }
}
