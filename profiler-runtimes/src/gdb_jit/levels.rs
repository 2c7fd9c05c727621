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

use std::collections::HashMap;

use super::Function;
use super::debug::{Line, Part, Source};
use super::details::{Inlined, Lines};
use crate::steps::Steps;

/// Inlined parts of one function: each look-up in the code map goes over them, and each that is entered there.
const MAX_PARTS: usize = 1024;
/// What a part costs beside its name and rows: to be entered among the others.
const PART_STEPS: usize = 32;

impl Source {
    /// The lines of a function, and what was inlined into it, outer parts first; nothing, if there are not enough steps.
    pub(super) fn levels(&self, function: &Function, steps: &mut Steps) -> Option<(Lines, Vec<Inlined>)> {
        let start = function.address.0;
        let end = start.saturating_add(function.size);
        let first = self.parts.partition_point(|part| part.start < start);
        let after = self.parts.partition_point(|part| part.start < end);
        let inside = self.parts.get(first..after).unwrap_or_default();
        steps.take(1 + inside.len())?;
        let nested = nested(inside.iter().filter(|part| part.end <= end).take(MAX_PARTS));
        let mut children: Vec<Vec<&Part>> = vec![Vec::new(); nested.len()];
        let mut outer = Vec::new();
        for (part, around) in &nested {
            match around.and_then(|around| children.get_mut(around)) {
                Some(list) => list.push(*part),
                None => outer.push(*part),
            }
        }
        let lines = self.rows(start, (start, end), &outer, steps)?;
        let mut inlined = Vec::with_capacity(nested.len());
        for ((part, around), children) in nested.iter().zip(&children) {
            let name = self.texts.get(usize::try_from(part.name).ok()?)?;
            steps.take(PART_STEPS + name.len() / 16)?;
            inlined.push(Inlined {
                start: u32::try_from(part.start - start).ok()?,
                size: u32::try_from(part.end - part.start).ok()?,
                name: name.clone(),
                around: around.and_then(|around| u32::try_from(around).ok()),
                lines: self.rows(start, (part.start, part.end), children, steps)?,
            });
        }
        Some((lines, inlined))
    }

    /// The rows of a range of a function without those of the parts inlined there.
    fn rows(&self, function: u64, (start, end): (u64, u64), inlined: &[&Part], steps: &mut Steps) -> Option<Lines> {
        let mut rows = Rows { source: self, known: HashMap::new(), lines: Lines::default() };
        let mut at = start;
        for part in inlined.iter().map(Some).chain([None]) {
            let lines = self.lines_in(function, at, part.map_or(end, |part| part.start));
            steps.take(2 * (1 + lines.len()))?;
            for line in lines {
                rows.add(line.address.max(at) - start, line.line, line.file);
            }
            if let Some(part) = part {
                rows.add(part.start - start, part.call.line, part.call.file);
                at = part.end;
            }
        }
        Some(rows.finish())
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
}

/// Rows that are put together.
struct Rows<'s> {
    source: &'s Source,
    /// Which of the files a text is.
    known: HashMap<u32, u32>,
    lines: Lines,
}

impl Rows<'_> {
    fn add(&mut self, offset: u64, line: u32, text: u32) {
        let Ok(offset) = u32::try_from(offset) else { return };
        let (line, file) = if line == 0 || text == 0 { (0, 0) } else { (line, self.file(text)) };
        let rows = &mut self.lines.rows;
        // Of rows of one address the last holds: the others are of instructions that are gone.
        rows.pop_if(|row| row.0 == offset);
        if rows.last().is_none_or(|row| (row.1, row.2) != (line, file)) {
            rows.push((offset, line, file));
        }
    }

    fn file(&mut self, text: u32) -> u32 {
        let files = &mut self.lines.files;
        *self.known.entry(text).or_insert_with(|| {
            let name = usize::try_from(text).ok().and_then(|text| self.source.texts.get(text));
            files.push(name.cloned().unwrap_or_default());
            u32::try_from(files.len() - 1).unwrap_or(u32::MAX)
        })
    }

    /// Rows without any line say nothing.
    fn finish(mut self) -> Lines {
        if self.lines.rows.iter().all(|row| row.1 == 0) {
            self.lines.rows.clear();
        }
        self.lines
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
        let around = open.last().copied();
        if around.is_some_and(|around| part.end > end_of(around, &nested)) {
            continue;
        }
        open.push(nested.len());
        nested.push((part, around));
    }
    nested
}
