//! One piece of generated code as the map keeps it, and what a look-up hands out.

use std::sync::Arc;

use super::event::{CodeOrigin, CodeUnit};
use super::inlines::{InlinedCode, Inlines};
use super::lines::SourceRows;
use super::timeline::PieceRef;
use jitprof_common::units::{Avma, MonoNs};

/// Names one code object of one [`CodeMap`](super::CodeMap) (and of the maps forked from it afterwards) for the life of
/// the map; never used twice, not even after the object has been pruned. A moved object keeps its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CodeId(pub(super) u64);

/// What is known about a code object wherever it lies. Shared by the pieces of a moved object and by forked maps.
#[derive(Clone, Debug)]
pub(super) struct CodeObject {
    pub(super) id: CodeId,
    pub(super) loaded: u64,
    pub(super) name: Box<str>,
    pub(super) lines: Option<Arc<SourceRows>>,
    pub(super) inlines: Option<Arc<Inlines>>,
    pub(super) unit: Option<Arc<CodeUnit>>,
    pub(super) origin: CodeOrigin,
    pub(super) number: u32,
}

impl CodeObject {
    /// Memory in bytes with what hangs off it, as the allocator rounds it.
    pub(super) fn bytes(&self) -> usize {
        /// Two counters of an `Arc`.
        const ARC: usize = 2 * size_of::<usize>();
        /// glibc's malloc: 8 bytes of header, sizes in steps of 16.
        const fn block(size: usize) -> usize {
            (size + 8).next_multiple_of(16)
        }
        let lines = self.lines.as_ref().map_or(0, |lines| block(ARC) + lines.bytes());
        let inlines = self.inlines.as_ref().map_or(0, |inlines| block(ARC) + inlines.bytes());
        block(ARC + size_of::<Self>()) + block(self.name.len()) + lines + inlines
    }
}

/// What lies at an address at a time: the answer of a look-up, borrowed from the map.
#[derive(Clone, Copy, Debug)]
pub struct CodeHit<'a> {
    /// Which object it is.
    pub id: CodeId,
    /// Bytes from the start of the object to the address that was looked up.
    pub offset: u64,
    pub(super) object: &'a CodeObject,
    pub(super) start: u64,
    pub(super) size: u32,
    pub(super) from: u64,
    pub(super) end: u64,
}

impl<'a> CodeHit<'a> {
    pub(super) fn new(object: &'a CodeObject, piece: &PieceRef<'a>, addr: u64) -> Self {
        Self {
            id: object.id,
            offset: addr.saturating_sub(piece.start),
            object,
            start: piece.start,
            size: piece.size,
            from: piece.from,
            end: piece.end,
        }
    }

    /// The runtime's name, unsanitized, possibly empty, cut at [`MAX_NAME_BYTES`](super::MAX_NAME_BYTES).
    pub fn name(&self) -> &'a str {
        &self.object.name
    }

    /// First byte of the object where it lay at that time.
    pub fn start(&self) -> Avma {
        Avma(self.start)
    }

    /// Length in bytes.
    pub fn size(&self) -> u64 {
        u64::from(self.size)
    }

    /// The best input that announced it: a record seen in the file outranks the same record peeked.
    pub fn origin(&self) -> CodeOrigin {
        self.object.origin
    }

    /// The number that the runtime's own tables have it under; 0 if it was not found in such, or has none.
    pub fn number(&self) -> u32 {
        self.object.number
    }

    /// When the runtime announced the object, wherever it lay then; 0 for the first line of a perf map over a range.
    pub fn loaded(&self) -> MonoNs {
        MonoNs(self.object.loaded)
    }

    /// Since when it lies at [`start`](Self::start): later than [`loaded`](Self::loaded) after a move.
    pub fn since(&self) -> MonoNs {
        MonoNs(self.from)
    }

    /// When it was replaced, moved away or ended, if it was.
    pub fn ended(&self) -> Option<MonoNs> {
        (self.end != super::timeline::NEVER).then_some(MonoNs(self.end))
    }

    /// The source file and line of the byte at `offset` from the start, if the runtime recorded them.
    ///
    /// For a return address look up the byte before it: pass an offset one less. Costs a binary search.
    pub fn line(&self, offset: u64) -> Option<(&'a Arc<str>, u32)> {
        self.object.lines.as_deref()?.at(offset)
    }

    /// All source rows, if the runtime recorded any.
    pub fn rows(&self) -> Option<&'a SourceRows> {
        self.object.lines.as_deref()
    }

    /// The inlined methods that the byte at `offset` belongs to, outermost first: each was inlined into the one before
    /// it, the first into this object. Costs a look at each inlined part of the object.
    pub fn inlined(&self, offset: u64) -> impl Iterator<Item = &'a InlinedCode> {
        self.object.inlines.as_deref().into_iter().flat_map(move |inlines| inlines.at(offset))
    }

    /// All inlined methods: each behind those around it, by start, the longer first, of equal ones the parent first.
    pub fn inlines(&self) -> impl Iterator<Item = &'a InlinedCode> {
        self.object.inlines.as_deref().into_iter().flat_map(|inlines| inlines.iter())
    }

    /// The source file, if the runtime said it apart from the lines.
    pub fn source(&self) -> Option<&'a Arc<str>> {
        self.object.unit.as_deref()?.source.as_ref()
    }

    /// The module or engine, if the runtime said it.
    pub fn module(&self) -> Option<&'a Arc<str>> {
        self.object.unit.as_deref()?.module.as_ref()
    }

    /// Whether any source rows are known.
    pub fn has_lines(&self) -> bool {
        self.object.lines.is_some()
    }
}
