//! From the entries of a DEBUG_INFO record to the source rows of a code object.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use crate::code::SourceRows;

use super::debug_info::{DebugEntries, DebugInfo, intact_part, name_is_overwritten};
use super::own_rows::{Belief, Judgement, Position};

/// Bytes of file names that are remembered; beyond, the memory of them begins anew. Node loads a few thousand files.
const MAX_REMEMBERED: usize = 8 << 20;

/// The longest file name: a path of the kernel's greatest length. The rest of a longer one is cut off.
const MAX_FILE_NAME: usize = 4096;

/// Every file name once. Keys are the target's choice, so the set's hash is the keyed one.
#[derive(Debug, Default)]
pub(super) struct FileNames {
    names: HashSet<Arc<str>>,
    /// The bytes in `names`.
    remembered: usize,
    /// What was last asked for: functions of one file mostly follow each other.
    last: Option<Arc<str>>,
}

impl FileNames {
    pub(super) fn intern(&mut self, bytes: &[u8]) -> Arc<str> {
        let bytes = bytes.get(..MAX_FILE_NAME).unwrap_or(bytes);
        if let Some(last) = &self.last
            && last.as_bytes() == bytes
        {
            return Arc::clone(last);
        }
        let text = String::from_utf8_lossy(bytes);
        let name = self.names.get(&*text).map(Arc::clone).unwrap_or_else(|| self.add(&text));
        self.last = Some(Arc::clone(&name));
        name
    }

    fn add(&mut self, text: &str) -> Arc<str> {
        self.remembered += text.len() + size_of::<Arc<str>>();
        if self.remembered > MAX_REMEMBERED {
            self.names.clear();
            self.remembered = 0;
        }
        let name: Arc<str> = Arc::from(text);
        self.names.insert(Arc::clone(&name));
        name
    }
}

/// A row before its function and its bias are known.
#[derive(Clone, Copy, Debug)]
struct RawRow {
    addr: u64,
    line: u32,
    /// In [`PendingRows::files`].
    file: u32,
    /// V8's column.
    column: i32,
}

/// The rows of one DEBUG_INFO record, waiting for their LOAD.
#[derive(Clone, Debug)]
pub(super) struct PendingRows {
    pub(super) code_addr: u64,
    rows: Vec<RawRow>,
    /// The files of the rows: mostly one.
    files: Vec<Arc<str>>,
    /// The lowest and highest address of rows with lines.
    span: Option<(u64, u64)>,
    pub(super) repair: Repair,
    /// Entries without a line.
    pub(super) lineless: u64,
    lineless_rows: bool,
}

/// The rows of a function.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) rows: SourceRows,
    /// Beyond the code's end.
    pub(super) dropped: u64,
    /// Not known to be the function's own.
    pub(super) doubtful: u64,
}

/// How well the record could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repair {
    /// As the format says.
    Sound,
    /// With the entries found by their stride.
    Repaired,
    /// Up to the first entry that made no sense.
    Cut,
}

impl PendingRows {
    /// Reads a record's entries. `of_v8` allows for V8's overwritten names.
    ///
    /// A row without a line is dropped: most producers mark a function's end by it. With `lineless_rows` it says that
    /// the code from there on has no line.
    pub(super) fn read(info: &DebugInfo<'_>, of_v8: bool, lineless_rows: bool, files: &mut FileNames) -> Self {
        let mut pending = Self {
            code_addr: info.code_addr,
            // The record's size bounds the number.
            rows: Vec::with_capacity(info.nr_entry),
            files: Vec::new(),
            span: None,
            repair: Repair::Sound,
            lineless: 0,
            lineless_rows,
        };
        let sound = pending.fill(info.entries(), of_v8, of_v8, files);
        if sound {
            return pending;
        }
        if let Some(entries) = info.repaired() {
            pending.clear();
            pending.fill(entries, true, false, files);
            pending.repair = Repair::Repaired;
        } else {
            pending.repair = Repair::Cut;
        }
        pending
    }

    fn clear(&mut self) {
        self.rows.clear();
        self.files.clear();
        self.span = None;
        self.lineless = 0;
    }

    /// Adds the entries' rows; says whether the walk ended where the record does. With `ascending`, a descending
    /// address shows that it did not: V8 writes its rows in order.
    fn fill(&mut self, mut entries: DebugEntries<'_>, of_v8: bool, ascending: bool, files: &mut FileNames) -> bool {
        let mut last = if ascending { self.code_addr } else { 0 };
        let mut named: Option<(&[u8], u32)> = None;
        let mut span = self.span;
        for entry in entries.by_ref() {
            if ascending && entry.addr < last {
                return false;
            }
            last = entry.addr;
            let Some(line) = u32::try_from(entry.line).ok().filter(|line| *line > 0 || self.lineless_rows) else {
                self.lineless += 1;
                continue;
            };
            let (low, high) = span.unwrap_or((entry.addr, entry.addr));
            span = Some((low.min(entry.addr), high.max(entry.addr)));
            let file = match named {
                // A repeated name is the very slice of the entry before.
                Some((name, file)) if std::ptr::eq(name, entry.name) => file,
                _ => self.file(entry.name, of_v8, files),
            };
            named = Some((entry.name, file));
            self.rows.push(RawRow { addr: entry.addr, line, file, column: entry.discrim });
        }
        self.span = span;
        entries.is_sound()
    }

    /// The index of a file that may be another than the one before.
    fn file(&mut self, name: &[u8], of_v8: bool, files: &mut FileNames) -> u32 {
        let name = if of_v8 && name_is_overwritten(name) { intact_part(name) } else { Cow::Borrowed(name) };
        SourceRows::file_index(&mut self.files, files.intern(&name))
    }

    /// How many rows wait.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The lowest and highest address of a row with a line.
    pub(super) fn span(&self) -> Option<(u64, u64)> {
        self.span
    }

    /// The files that the rows name, in the order in which they are named first.
    pub(super) fn files(&self) -> &[Arc<str>] {
        &self.files
    }

    /// Line and position of each row, as V8 writes them.
    pub(super) fn positions(&self) -> impl ExactSizeIterator<Item = (u32, Option<Position>)> {
        self.rows.iter().map(|row| (row.line, Position::new(row.line, row.column)))
    }

    /// The rows as offsets into the code, ascending, one for each offset, and none that repeats the row before it.
    /// Also how many lay beyond the code's end, and how many are not believed: the code from there on has the line `otherwise`.
    ///
    /// A row before the code holds from its first byte on: Erlang's rows mark return addresses, and a function's
    /// first row is the last of the function before it.
    pub(super) fn finish(mut self, code_size: u64, bias: u64, judgement: &Judgement) -> Finished {
        if !self.rows.is_sorted_by_key(|row| row.addr) {
            self.rows.sort_by_key(|row| row.addr);
        }
        let start = self.code_addr.saturating_add(bias);
        if let Some((index, called)) = judgement.file.zip(judgement.called.as_ref())
            && let Some(file) = self.files.get_mut(index as usize)
        {
            *file = Arc::clone(called);
        }
        let mut done = Finished { rows: SourceRows::of_files(self.files, self.rows.len()), dropped: 0, doubtful: 0 };
        for row in self.rows {
            let offset = u32::try_from(row.addr.saturating_sub(start)).ok();
            let Some(offset) = offset.filter(|offset| u64::from(*offset) < code_size) else {
                done.dropped += 1;
                continue;
            };
            let is_own = match &judgement.belief {
                Belief::All => true,
                Belief::Nothing => false,
                Belief::OneLine(line) => row.line == *line,
                Belief::Of(own) => own.has(Position::new(row.line, row.column)),
            };
            done.doubtful += u64::from(!is_own);
            let line = if is_own { row.line } else { judgement.otherwise };
            done.rows.push(offset, line, judgement.file.unwrap_or(row.file));
        }
        if done.rows.names_nothing() {
            done.rows = SourceRows::default();
        }
        done
    }
}
