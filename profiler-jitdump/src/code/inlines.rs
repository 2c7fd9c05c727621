//! The inlined parts of one code object.

use std::sync::Arc;

use super::event::CodeInline;
use super::lines::SourceRows;

/// Inlined parts kept of one object. Each look-up in the object goes over them.
pub const MAX_INLINES: usize = 4096;
/// Parts of one range, each inlined into the one before. Each that comes goes over them; compilers inline some ten deep.
const MAX_EQUAL: usize = 128;

/// A part of a code object that was inlined from another method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InlinedCode {
    start: u32,
    size: u32,
    method: u32,
    parent: u32,
    name: Box<str>,
    source: Option<Arc<str>>,
    lines: SourceRows,
}

/// All of them, each behind those around it: by start, the longer first, of equal ones the parent first.
#[derive(Clone, Debug, Default)]
pub(super) struct Inlines {
    /// Each apart, for one that comes before others moves them.
    parts: Vec<Arc<InlinedCode>>,
    /// Their memory, which is asked for before and after each that comes.
    part_bytes: usize,
}

/// What became of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Added {
    New,
    Known,
    TooMany,
}

impl InlinedCode {
    /// The inlined method's name, unsanitized, possibly empty.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes from the object's start to the part's: tells the parts of an object apart, with [`method`](Self::method).
    pub fn start(&self) -> u32 {
        self.start
    }

    /// Bytes of the part.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Its source rows; their offsets count from the part's start.
    pub fn rows(&self) -> &SourceRows {
        &self.lines
    }

    /// The inlined method's number.
    pub fn method(&self) -> u32 {
        self.method
    }

    /// Its source file, if that is known.
    pub fn source(&self) -> Option<&Arc<str>> {
        self.source.as_ref()
    }

    /// File and line of the byte at `offset` from the **object's** start.
    pub fn line(&self, offset: u64) -> Option<(&Arc<str>, u32)> {
        self.lines.at(offset.checked_sub(u64::from(self.start))?)
    }

    fn covers(&self, offset: u64) -> bool {
        offset.checked_sub(u64::from(self.start)).is_some_and(|inside| inside < u64::from(self.size))
    }

    /// With its place among the others.
    fn bytes(&self) -> usize {
        size_of::<Self>() + size_of::<Arc<Self>>() + self.name.len() + self.lines.bytes()
    }

    /// Equal keys are equal ranges.
    fn key(&self) -> (u32, std::cmp::Reverse<u32>) {
        (self.start, std::cmp::Reverse(self.size))
    }
}

impl Inlines {
    /// The parts that hold the byte at `offset`, outermost first.
    pub(super) fn at(&self, offset: u64) -> impl Iterator<Item = &InlinedCode> {
        let before = self.iter().take_while(move |part| u64::from(part.start) <= offset);
        before.filter(move |part| part.covers(offset))
    }

    /// All parts, in the order described above.
    pub(super) fn iter(&self) -> impl Iterator<Item = &InlinedCode> {
        self.parts.iter().map(|part| &**part)
    }

    /// Adds a part that begins `start` bytes into the object and ends in it.
    pub(super) fn add(&mut self, start: u32, inline: CodeInline) -> Added {
        let Ok(size) = u32::try_from(inline.size) else { return Added::TooMany };
        let part = InlinedCode {
            start,
            size,
            method: inline.method,
            parent: inline.parent,
            name: inline.name.into_boxed_str(),
            source: inline.source,
            lines: inline.lines,
        };
        let first = self.parts.partition_point(|known| known.key() < part.key());
        let after = self.parts.partition_point(|known| known.key() <= part.key());
        let equal = self.parts.get(first..after).unwrap_or_default();
        if equal.iter().any(|known| known.method == part.method) {
            return Added::Known;
        }
        if self.parts.len() >= MAX_INLINES || equal.len() >= MAX_EQUAL {
            return Added::TooMany;
        }
        let behind_parent = equal.iter().rposition(|known| known.method == part.parent).map(|at| at + 1);
        let before_child = || equal.iter().position(|known| known.parent == part.method);
        let at = behind_parent.or_else(before_child).unwrap_or(equal.len());
        self.part_bytes += part.bytes();
        self.parts.insert(first + at, Arc::new(part));
        Added::New
    }

    /// Memory in bytes, without the names of files that are shared.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.part_bytes
    }
}
