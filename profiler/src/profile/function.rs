//! Functions, as tables and comparisons tell them apart.

use super::frames::FrameRef;
use super::merge::MergeBy;
use crate::symbol::{FrameKind, Tier};

/// A function, wherever in it a sample was taken. Each tier of a function is one of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FunctionRef<'p> {
    /// The runtime's or symbol table's name, unsanitized.
    pub name: &'p str,
    /// Which world the code belongs to.
    pub kind: FrameKind,
    /// The runtime's optimisation tier, where known.
    pub tier: Option<Tier>,
    /// Path of the module, or a bracketed name.
    pub module: Option<&'p str>,
    /// The source file that it is from, where known.
    pub file: Option<&'p str>,
}

impl<'p> FunctionRef<'p> {
    /// The function of a frame.
    pub fn of(frame: FrameRef<'p>) -> Self {
        // A builtin is the same whether a record or the program's file says where it is.
        let module = frame.module.filter(|_| frame.kind != FrameKind::Builtin);
        Self {
            name: frame.name,
            kind: frame.kind,
            tier: frame.tier,
            module: module.map(|module| module.path),
            file: frame.source.map(|source| source.file),
        }
    }

    /// A frame of this function, for whoever shows frames. Inlined or not is left open, and so is the place in it.
    pub fn as_frame(&self) -> FrameRef<'p> {
        let Self { name, kind, tier, .. } = *self;
        FrameRef { name, kind, tier, inlined: false, module: None, source: None, address: 0 }
    }

    /// A word of jitprof's own in place of a function.
    pub fn note(name: &'p str) -> Self {
        Self { name, kind: FrameKind::Note, tier: None, module: None, file: None }
    }
}

/// Merges the frames of a function. Who ran it does not matter.
#[derive(Clone, Copy, Debug)]
pub struct ByFunction;

impl<'p> MergeBy<'p> for ByFunction {
    type Frame = FunctionRef<'p>;

    fn frame(&self, frame: FrameRef<'p>) -> FunctionRef<'p> {
        FunctionRef::of(frame)
    }
}
