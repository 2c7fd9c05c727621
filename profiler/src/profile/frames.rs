//! Frames with their names, modules and files, each kept once.

use std::num::NonZeroU32;
use std::sync::Arc;

use indexmap::IndexSet;

use super::IdHash;
use super::handle::{FrameId, ModuleId, StringId};
use super::limits::{Limits, MAX_STRING_BYTES, Overflow, shorten};
use super::shares::Shares;
use crate::owners::Holder;
use crate::symbol::{Frame, FrameKind, SourceLine, Tier};

/// What a string costs beyond its bytes: 16 bytes for the counts of its `Arc`, 16 for the pointer to it, 16 for hash and
/// index in the table.
const STRING_OVERHEAD: usize = 48;

/// The name of what stands for frames, stacks and tasks that did not fit.
pub(super) const PROFILE_FULL: &str = "[profile full]";
const NAMES_FULL: &str = "[name table full]";

/// The file that a frame's code was loaded from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModuleRef<'a> {
    /// Path in the target's mount namespace, or a bracketed name.
    pub path: &'a str,
    /// GNU build id in lower-case hex, when the file has one.
    pub build_id: Option<&'a str>,
}

/// A place in source code as the profile holds it; the same fields as [`SourceLine`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceRef<'a> {
    /// The file as the debug information or the runtime names it.
    pub file: &'a str,
    /// Line from 1; 0 when only the file is known.
    pub line: u32,
    /// Column in it, from 1, where that is known.
    pub column: Option<NonZeroU32>,
}

impl<'a> SourceRef<'a> {
    /// A line of a file, without a column.
    pub fn new(file: &'a str, line: u32) -> Self {
        Self { file, line, column: None }
    }
}

/// A frame as the profile holds it; the same fields as [`Frame`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameRef<'a> {
    /// Function name, unsanitized.
    pub name: &'a str,
    /// Which world the code belongs to.
    pub kind: FrameKind,
    /// The runtime's optimisation tier, where known.
    pub tier: Option<Tier>,
    /// Whether the function was inlined into the next frame towards the root.
    pub inlined: bool,
    /// Where the code came from.
    pub module: Option<ModuleRef<'a>>,
    /// The place that runs, where it is known.
    pub source: Option<SourceRef<'a>>,
    /// File offset of ELF code; virtual address of generated code, but not in a service's profiles, which others than
    /// the target's owner read; 0 for the kernel and for notes.
    pub address: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ModuleKey {
    path: StringId,
    build_id: Option<StringId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SourceKey {
    file: StringId,
    line: u32,
    column: Option<NonZeroU32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FrameKey {
    name: StringId,
    kind: FrameKind,
    tier: Option<Tier>,
    inlined: bool,
    module: Option<ModuleId>,
    source: Option<SourceKey>,
    address: u64,
}

/// The frames of a profile, within its limits.
#[derive(Debug)]
pub(super) struct FrameTable {
    limits: Limits,
    /// Of strings, modules and frames.
    overflow: Overflow,
    strings: IndexSet<Arc<str>>,
    string_bytes: usize,
    modules: IndexSet<ModuleKey, IdHash>,
    frames: IndexSet<FrameKey>,
    /// Who takes up what is new, and what each has: bytes of strings, and entries of the others.
    holder: Option<Holder>,
    string_shares: Shares,
    entry_shares: Shares,
}

impl FrameTable {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            overflow: Overflow::default(),
            strings: IndexSet::default(),
            string_bytes: 0,
            modules: IndexSet::default(),
            frames: IndexSet::default(),
            holder: None,
            string_shares: Shares::default(),
            entry_shares: Shares::default(),
        }
    }

    /// What did not fit, of strings, modules and frames.
    pub(super) fn overflow(&self) -> Overflow {
        self.overflow
    }

    /// Goes on counting what does not fit where another table of the same profile left off.
    pub(super) fn set_overflow(&mut self, overflow: Overflow) {
        self.overflow = overflow;
    }

    /// Who takes up what is new from now on; nobody in particular may have all that is free.
    pub(super) fn set_holder(&mut self, holder: Option<Holder>) {
        self.holder = holder;
    }

    /// How many frames there are; handles count from 0.
    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Bytes of the tables, estimated. `entry` says what an entry costs for a key of so many bytes.
    pub(super) fn bytes(&self, entry: impl Fn(usize) -> usize) -> usize {
        self.string_bytes + self.strings.len() * entry(0) + self.frames.len() * entry(size_of::<FrameKey>())
    }

    /// The handle of a frame; the same for equal frames. Strings are shared with the caller.
    pub(super) fn intern(&mut self, frame: &Frame) -> FrameId {
        let key = FrameKey {
            name: self.intern_string(&frame.name),
            module: frame.module.as_ref().and_then(|module| {
                let (path, build_id) = (&module.path, module.build_id.as_ref());
                let (path, build_id) = (self.intern_string(path), build_id.map(|id| self.intern_string(id)));
                self.intern_module(ModuleKey { path, build_id })
            }),
            source: frame.source.as_ref().map(|&SourceLine { ref file, line, column }| {
                let file = self.intern_string(file);
                SourceKey { file, line, column }
            }),
            kind: frame.kind,
            tier: frame.tier,
            inlined: frame.inlined,
            address: frame.address,
        };
        self.intern_key(key)
    }

    /// The same for borrowed strings, which are copied when they are new.
    pub(super) fn intern_ref(&mut self, frame: &FrameRef<'_>) -> FrameId {
        let key = FrameKey {
            name: self.intern_text(frame.name, None),
            module: frame.module.and_then(|module| {
                let path = self.intern_text(module.path, None);
                let build_id = module.build_id.map(|id| self.intern_text(id, None));
                self.intern_module(ModuleKey { path, build_id })
            }),
            source: frame.source.map(|SourceRef { file, line, column }| {
                let file = self.intern_text(file, None);
                SourceKey { file, line, column }
            }),
            kind: frame.kind,
            tier: frame.tier,
            inlined: frame.inlined,
            address: frame.address,
        };
        self.intern_key(key)
    }

    /// The handle here of another table's frame. Strings are shared with that table.
    pub(super) fn copy(&mut self, other: &Self, frame: FrameId) -> FrameId {
        let text = |id: StringId| &other.strings[id.index()];
        let own = other.frames[frame.index()];
        let key = FrameKey {
            name: self.intern_string(text(own.name)),
            module: own.module.and_then(|id| {
                let ModuleKey { path, build_id } = other.modules[id.index()];
                let path = self.intern_string(text(path));
                let build_id = build_id.map(|id| self.intern_string(text(id)));
                self.intern_module(ModuleKey { path, build_id })
            }),
            source: own.source.map(|source| SourceKey { file: self.intern_string(text(source.file)), ..source }),
            ..own
        };
        self.intern_key(key)
    }

    /// The frame behind a handle.
    pub(super) fn get(&self, id: FrameId) -> FrameRef<'_> {
        let key = &self.frames[id.index()];
        FrameRef {
            name: self.string(key.name),
            kind: key.kind,
            tier: key.tier,
            inlined: key.inlined,
            module: key.module.map(|id| {
                let module = &self.modules[id.index()];
                ModuleRef { path: self.string(module.path), build_id: module.build_id.map(|id| self.string(id)) }
            }),
            source: key.source.map(|SourceKey { file, line, column }| {
                let file = self.string(file);
                SourceRef { file, line, column }
            }),
            address: key.address,
        }
    }

    /// The frame that stands for all that did not fit. It is exempt from the limits: it adds one entry at most.
    pub(super) fn full(&mut self) -> FrameId {
        let key = FrameKey {
            name: StringId::new(self.strings.insert_full(Arc::from(PROFILE_FULL)).0),
            kind: FrameKind::Note,
            tier: None,
            inlined: false,
            module: None,
            source: None,
            address: 0,
        };
        FrameId::new(self.frames.insert_full(key).0)
    }

    fn intern_key(&mut self, key: FrameKey) -> FrameId {
        if let Some(index) = self.frames.get_index_of(&key) {
            return FrameId::new(index);
        }
        if !self.entry_shares.may_take(self.holder, 1, (self.frames.len(), self.limits.frames)) {
            self.overflow.frames += 1;
            return self.full();
        }
        self.entry_shares.take(self.holder, 1);
        FrameId::new(self.frames.insert_full(key).0)
    }

    fn string(&self, id: StringId) -> &str {
        &self.strings[id.index()]
    }

    fn intern_string(&mut self, text: &Arc<str>) -> StringId {
        self.intern_text(text, Some(text))
    }

    fn intern_text(&mut self, text: &str, shared: Option<&Arc<str>>) -> StringId {
        let kept = shorten(text, MAX_STRING_BYTES);
        if let Some(index) = self.strings.get_index_of(&*kept) {
            return StringId::new(index);
        }
        let cost = kept.len() + STRING_OVERHEAD;
        if !self.string_shares.may_take(self.holder, cost, (self.string_bytes, self.limits.string_bytes)) {
            self.overflow.strings += 1;
            return StringId::new(self.strings.insert_full(Arc::from(NAMES_FULL)).0);
        }
        self.string_bytes += cost;
        self.string_shares.take(self.holder, cost);
        let kept = match shared {
            Some(shared) if kept.len() == text.len() => Arc::clone(shared),
            _ => Arc::from(&*kept),
        };
        StringId::new(self.strings.insert_full(kept).0)
    }

    /// `None` when there are as many modules as there may be frames.
    fn intern_module(&mut self, key: ModuleKey) -> Option<ModuleId> {
        if self.modules.len() >= self.limits.frames && !self.modules.contains(&key) {
            self.overflow.modules += 1;
            return None;
        }
        Some(ModuleId::new(self.modules.insert_full(key).0))
    }
}
