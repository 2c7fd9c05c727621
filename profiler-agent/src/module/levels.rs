//! The source rows of a function, and of each part that was inlined into it.
//!
//! DWARF's rows say where the innermost function is; where one is inlined, the line of the code around it is that of
//! the call:
//!
//! ```text
//! rows      |a 1      |b 7   |c 3 |b 8   |a 2   |        b called in a's line 5, c in b's line 9
//! function  |a 1      |a 5               |a 2   |
//! b                   |b 7   |b 9 |b 8   |
//! c                          |c 3 |
//! ```

use super::{Function, Functions, Line, Part};
use crate::record::Range;
use crate::rows::Row;

/// Inlined parts of one function. The reader keeps as many.
const MAX_PARTS: usize = 4096;

/// An inlined part of a function.
#[derive(Debug)]
pub(crate) struct Inlined<'a> {
    pub(crate) range: Range,
    pub(crate) name: &'a [u8],
    /// The file that its rows are in.
    pub(crate) source: &'a [u8],
    /// Their offsets are from the part's start; line 0 is none.
    pub(crate) rows: Vec<Row>,
    /// The part around it, before it in the list; none if that is the function.
    pub(crate) parent: Option<usize>,
}

/// Rows with their files.
type Rows<'a> = Vec<(Row, &'a [u8])>;

impl Functions {
    /// The rows of a function with their files, and what was inlined into it, outer parts first. Whether all parts are
    /// among them is said last.
    pub(crate) fn levels(&self, function: &Function) -> (Rows<'_>, Vec<Inlined<'_>>, bool) {
        let end = function.start.saturating_add(u64::from(function.size));
        let first = self.parts.partition_point(|part| part.start < function.start);
        let after = self.parts.partition_point(|part| part.start < end);
        let inside = self.parts.get(first..after).unwrap_or_default();
        let inside = inside.iter().filter(|part| part.end <= end);
        let complete = inside.clone().nth(MAX_PARTS).is_none();
        let nested = nested(inside.take(MAX_PARTS));
        let mut children: Vec<Vec<&Part>> = vec![Vec::new(); nested.len()];
        let mut outer = Vec::new();
        for (part, parent) in &nested {
            match parent.and_then(|parent| children.get_mut(parent)) {
                Some(list) => list.push(part),
                None => outer.push(*part),
            }
        }
        let rows = self.rows(function, (function.start, end), &outer);
        let inlined = nested.iter().zip(&children).filter_map(|((part, parent), children)| {
            let rows = self.rows(function, (part.start, part.end), children);
            let source = rows.iter().find(|(row, _)| row.line != 0).map_or(&[][..], |(_, file)| file);
            // A part has one file: what else is in it comes from macros and has no line.
            let line = |(row, file): &(Row, &[u8])| if *file == source { *row } else { Row { line: 0, ..*row } };
            let size = u32::try_from(part.end.checked_sub(part.start)?).ok()?;
            Some(Inlined {
                range: Range { start: part.start, size },
                name: self.text(part.name),
                source,
                rows: rows.iter().map(line).collect(),
                parent: *parent,
            })
        });
        (rows, inlined.collect(), complete)
    }

    /// The rows of a range of a function without those of the parts inlined there.
    fn rows(&self, function: &Function, (start, end): (u64, u64), inlined: &[&Part]) -> Rows<'_> {
        let mut rows: Rows<'_> = Vec::new();
        let mut add = |address: u64, line: u32, file: usize| {
            let Some(offset) = address.checked_sub(start).and_then(|offset| u32::try_from(offset).ok()) else { return };
            // Of rows of one address the last holds: the others are of instructions that are gone.
            rows.pop_if(|(row, _)| row.offset == offset);
            let file = self.text(file);
            if rows.last().is_none_or(|(row, known)| row.line != line || *known != file) {
                rows.push((Row { offset, line }, file));
            }
        };
        let mut at = start;
        for part in inlined.iter().map(Some).chain([None]) {
            let until = part.map_or(end, |part| part.start);
            for line in self.lines_in(function.start, at, until) {
                add(line.address.max(at), line.line, line.file);
            }
            if let Some(part) = part {
                add(part.start, part.call_line, part.call_file);
                at = part.end;
            }
        }
        rows
    }

    /// The lines of a range, and the one in effect where it begins, if that is one of the function's.
    fn lines_in(&self, function: u64, start: u64, end: u64) -> &[Line] {
        let next = self.lines.partition_point(|line| line.address < start);
        let begins = self.lines.get(next).is_some_and(|line| line.address == start);
        let before = next.checked_sub(1).filter(|before| {
            !begins && start < end && self.lines.get(*before).is_some_and(|line| line.address >= function)
        });
        let after = self.lines.partition_point(|line| line.address < end);
        self.lines.get(before.unwrap_or(next)..after).unwrap_or_default()
    }

    fn text(&self, index: usize) -> &[u8] {
        self.texts.get(index).map_or(&[], Vec::as_slice)
    }
}

/// Each part with the place of the one around it. One that is neither inside nor outside of another is left out.
fn nested<'a>(parts: impl Iterator<Item = &'a Part>) -> Vec<(&'a Part, Option<usize>)> {
    let mut nested: Vec<(&Part, Option<usize>)> = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    for part in parts {
        let end_of =
            |index: usize, nested: &[(&Part, Option<usize>)]| nested.get(index).map_or(0, |(part, _)| part.end);
        while open.last().is_some_and(|last| end_of(*last, &nested) <= part.start) {
            open.pop();
        }
        let parent = open.last().copied();
        if parent.is_some_and(|parent| part.end > end_of(parent, &nested)) {
            continue;
        }
        open.push(nested.len());
        nested.push((part, parent));
    }
    nested
}
