//! The code cache: what code there is, where, and since when.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use jitprof_common::units::Avma;

use super::layout::{Entries, Extent, Field, HeapLayout, Layout, plus};
use super::names::{MethodName, Names, Strings};
use super::turnover::Turnover;
use crate::{Budget, Memory, ReadError, Reader};

/// Heaps of a code cache: there are one to three, and one more for what is compiled ahead of time.
const MAX_HEAPS: i64 = 8;
/// Pieces of code that are kept; a large JVM has 50,000.
const MAX_BLOBS: usize = 1 << 17;
/// Bytes of a heap; `ReservedCodeCacheSize` is 2 GiB at most.
const MAX_HEAP: u64 = 2 << 30;
/// Bytes of a blob's header that are read: those of a compiled method, the longest, are 224 to 352.
pub(super) const MAX_HEADER: usize = 1024;
/// Bytes of a stack frame that are believed.
const MAX_FRAME: i64 = 1 << 20;
/// Blobs whose headers, or names, are fetched together.
const TOGETHER: usize = 2048;
/// Blobs of which names are read between two looks at their headers: the more there are, the more of them have their names on
/// the same pages.
const BETWEEN_LOOKS: usize = 4 * TOGETHER;
/// Pages that it may take to read one: of two looks at it, and of its name.
const PAGES_OF_ONE: u64 = 8;
/// Segments of which the map is looked at together.
const MARKS: usize = 512;
/// Bytes of a call on x86-64.
const CALL: u32 = 5;
/// A segment that belongs to no block.
const FREE_SEGMENT: u8 = 0xff;
/// The `bci` of an entry at a method's beginning.
const AT_THE_BEGINNING: i32 = -1;

/// Which compiler made code, and how far it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tier {
    /// C1 without counters: what is too small to be worth more.
    C1,
    /// C1 with counters of calls and loops (level 2).
    C1Counting,
    /// C1 with all counters (level 3).
    C1Profiling,
    /// C2, or a compiler in its place.
    C2,
}

/// What a piece of code is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A method that was compiled, whole or from a loop on.
    Method(Tier),
    /// What calls a native method, or a method handle.
    Native,
    /// The interpreter.
    Interpreter,
    /// Between the conventions of compiled and interpreted code.
    Adapter,
    /// Routines of the runtime, several in one blob.
    Stubs,
    /// Calls by table.
    Vtable,
    /// What compiled code calls in the runtime; its frame has a known size.
    Runtime,
    /// What unpacks frames of code that is no longer valid.
    Deoptimization,
}

impl Kind {
    /// Whether it was made for a method of its own.
    fn is_compiled(self) -> bool {
        matches!(self, Self::Method(_) | Self::Native)
    }
}

/// How to come from a frame of this code to its caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrameShape {
    /// From an offset into the code on till its epilogues, a frame has this many bytes, the return address included,
    /// which is the last word of it; the word before is the caller's frame pointer. Elsewhere the code's bytes say.
    Sized {
        /// Bytes from the stack pointer to the caller's.
        bytes: u32,
        /// Where the frame is complete; none if that is not said, as of stubs, whose callees see it complete.
        complete_from: Option<u32>,
    },
    /// The interpreter's, which is laid out from the frame pointer on: see
    /// [`InterpreterFrame`](super::InterpreterFrame).
    Interpreter,
    /// Nothing is said of it. The frame pointer is its caller's, or its own in the usual way.
    Unknown,
}

/// A piece of code. The number is its own for as long as the [`CodeCache`] lives, whatever address is used again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    /// Its number.
    pub id: u64,
    /// Where its header is.
    pub header: Avma,
    /// Where its code begins.
    pub code: Avma,
    /// Bytes of code.
    pub code_bytes: u32,
    /// What it is.
    pub kind: Kind,
    /// The number that the runtime gave to the compilation; 0 of what was not compiled from a method.
    pub compile_id: u32,
    /// Its frame.
    pub frame: FrameShape,
    /// From this distance on is the code that is entered without a check of the receiver's class.
    pub verified_entry: u32,
    /// The bytecode that it begins at, if it is entered within a loop.
    pub osr_bci: Option<u32>,
    /// A return address is replaced by one of these distances if the frame is no longer valid (by the second at calls
    /// of method handles; the third is that behind a call at the first, by which JVMCI's code leads on)...
    pub deopt_handlers: [Option<u32>; 3],
    /// ...and can then be found this many bytes from the stack pointer on.
    pub original_pc: Option<u32>,
    /// The runtime's object for the method; null if there is none.
    pub(super) method: Avma,
    /// What the method is called, or else the blob.
    pub name: BlobName,
}

/// What a blob is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlobName {
    /// The name of the method it was compiled from.
    Method(MethodName),
    /// The runtime's name for it.
    Blob(Arc<str>),
    /// A method's, but it could not be read.
    Unknown(ReadError),
}

impl std::fmt::Display for BlobName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Method(name) => name.fmt(f),
            Self::Blob(name) => f.write_str(name),
            Self::Unknown(error) => write!(f, "[method without a name: {error}]"),
        }
    }
}

impl Blob {
    /// Whether a frame that would return here is no longer valid: where it would have returned to is in the frame then.
    pub fn is_deoptimized(&self, return_address: Avma) -> bool {
        let distance = return_address.0.wrapping_sub(self.code.0);
        self.deopt_handlers.iter().flatten().any(|handler| u64::from(*handler) == distance)
    }

    /// Whether an address is in its code.
    pub fn contains(&self, pc: Avma) -> bool {
        pc.0.checked_sub(self.code.0).is_some_and(|distance| distance < u64::from(self.code_bytes))
    }
}

/// What is different from the reading before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Code that was not there.
    Loaded(Arc<Blob>),
    /// Code that is no longer there: freed, or there is other code in its place.
    Unloaded(Arc<Blob>),
}

/// What a reading found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// What changed, of one address what went before what came.
    pub changes: Vec<Change>,
    /// Blocks that were no blobs that could be understood.
    pub damaged: u32,
    /// Code that came or went while it was read: the next reading will say what became of it.
    pub unsettled: u32,
    /// Compilations were asked for lately that no reading has seen: their code may have come and gone in between, if code
    /// was freed.
    pub unseen: bool,
    /// Why the reading ended before everything was read. What was not come to counts as unchanged.
    pub incomplete: Option<ReadError>,
}

/// What distinguishes a blob from another one at the same address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    code: Avma,
    code_bytes: u32,
    block_bytes: u64,
    name: Avma,
    /// Of a compiled method: its object, the number of the compilation, the bytecode it begins at.
    compiled: Option<(Avma, u32, i32)>,
}

impl Identity {
    /// That of the blob in a block with so many segments, by its header, and the bytes that it has in all.
    fn of(block: Block<'_>, segments: u64, object: &[u8]) -> Option<(Self, u64)> {
        let (layout, header) = (block.layout, block.header());
        let size = u64::try_from(layout.blob.size.of(object)).ok().filter(|size| *size <= MAX_HEAP)?;
        let end = header.checked_add(size)?;
        let (code, code_end) = match layout.blob.extent {
            Extent::Addresses(begin, end) => (begin.address_of(object).0, end.address_of(object).0),
            Extent::Distances(begin, end) => {
                let at = |field: Field| header.checked_add(u64::try_from(field.of(object)).ok()?);
                (at(begin)?, at(end)?)
            }
        };
        let inside = header < code && code <= code_end && code_end <= end;
        let code_bytes = code_end.checked_sub(code).filter(|_| inside).and_then(|bytes| u32::try_from(bytes).ok())?;
        let compiled = (code - header >= layout.compiled.bytes).then(|| {
            let at = &layout.compiled;
            (
                at.method.address_of(object),
                at.compile_id.of(object).cast_unsigned() as u32,
                at.entry_bci.of(object) as i32,
            )
        });
        let name = layout.blob.name.address_of(object);
        Some((Self { code: Avma(code), code_bytes, block_bytes: segments, name, compiled }, size))
    }

    /// How far into the code an address is that is in it.
    fn distance_to(&self, address: u64) -> Option<u32> {
        let distance = u32::try_from(address.checked_sub(self.code.0)?).ok()?;
        (distance < self.code_bytes).then_some(distance)
    }

    /// Whether this blob, which was read before, is that one, of which it is not known yet whether a compiler made it.
    fn is(&self, now: &Self) -> bool {
        let compiled = now.compiled.filter(|_| self.compiled.is_some());
        *self == Self { compiled, ..*now }
    }
}

#[derive(Debug)]
struct Known {
    blob: Arc<Blob>,
    identity: Identity,
    reading: u64,
}

/// The code cache of one process, as it was at the last reading.
#[derive(Debug, Default)]
pub struct CodeCache {
    /// By the address of the header.
    blobs: BTreeMap<u64, Known>,
    heaps: Vec<(Avma, Avma)>,
    strings: Strings,
    turnover: Turnover,
    next_id: u64,
    reading: u64,
}

/// A heap of the code cache.
#[derive(Clone, Copy, Debug)]
struct Heap {
    low: u64,
    high: u64,
    reserved_to: u64,
    map: u64,
    map_end: u64,
    log2_segment: u32,
}

impl CodeCache {
    /// Where the runtime may put code, in use or not.
    pub fn ranges(&self) -> &[(Avma, Avma)] {
        &self.heaps
    }

    /// Whether the next reading comes soon after the last: a compilation that was asked for then may not have led to code yet.
    pub fn comes_soon(&mut self, is_soon: bool) {
        self.turnover.comes_soon(is_soon);
    }

    /// Bytes that are kept, nearly.
    pub fn bytes(&self) -> usize {
        self.blobs.len() * (size_of::<Blob>() + size_of::<Known>() + 96) + self.strings.bytes() + self.turnover.bytes()
    }

    /// All that is known to be there, by address.
    pub fn blobs(&self) -> impl Iterator<Item = &Arc<Blob>> {
        self.blobs.values().map(|known| &known.blob)
    }

    /// The code at an address, as of the last reading.
    pub fn at(&self, pc: Avma) -> Option<&Arc<Blob>> {
        let (_, known) = self.blobs.range(..=pc.0).next_back()?;
        known.blob.contains(pc).then_some(&known.blob)
    }

    /// Reads what there is now. Of what was there before only the headers are read again.
    ///
    /// The process runs on meanwhile: what it changes during the reading is found by the next one.
    pub fn update<M: Memory>(&mut self, layout: &Layout, reader: &Reader<M>) -> Update {
        self.reading += 1;
        reader.refresh();
        let mut update = Update { changes: Vec::new(), damaged: 0, unsettled: 0, unseen: false, incomplete: None };
        match heaps(&layout.heap, reader) {
            Err(error) => update.incomplete = Some(error),
            Ok(heaps) => {
                let ranges: Vec<_> = heaps.iter().map(|heap| (Avma(heap.low), Avma(heap.reserved_to))).collect();
                if ranges != self.heaps {
                    let is_in = |header: Avma| ranges.iter().any(|(low, end)| (*low..*end).contains(&header));
                    let gone = self.blobs.extract_if(.., |header, _| !is_in(Avma(*header)));
                    update.changes.extend(gone.map(|(_, known)| Change::Unloaded(known.blob)));
                    self.heaps = ranges;
                }
                for heap in heaps {
                    if let Err(error) = self.read_heap(layout, reader, heap, &mut update) {
                        update.incomplete = update.incomplete.or(Some(error));
                    }
                }
            }
        }
        if update.incomplete.is_none() {
            let reading = self.reading;
            let gone = self.blobs.extract_if(.., |_, known| known.reading != reading);
            update.changes.extend(gone.map(|(_, known)| Change::Unloaded(known.blob)));
            update.unseen = self.turnover.end_reading();
        }
        self.strings.prune();
        update
    }

    /// Whether a blob is still what it was: the question to ask before and after anything is read of it.
    ///
    /// # Errors
    /// The reading has used up what it may cost, and it is not known.
    pub fn is_still_there<M: Memory>(
        &self,
        layout: &Layout,
        reader: &Reader<M>,
        blob: &Blob,
    ) -> Result<bool, ReadError> {
        let mut looks = self.look_at_each(layout, reader, &[blob], |_, _| {});
        looks.pop().unwrap_or(Ok(None)).map(|there| there.is_some())
    }

    /// Looks at several blobs, at each once, and returns in their order what `read` makes of each that is still what it
    /// was, and of its header as it is now; nothing of the others.
    pub(super) fn look_at_each<M: Memory, T: Clone>(
        &self,
        layout: &Layout,
        reader: &Reader<M>,
        blobs: &[&Blob],
        mut read: impl FnMut(&Blob, &[u8]) -> T,
    ) -> Vec<Result<Option<T>, ReadError>> {
        let known = |blob: &&Blob| self.blobs.get(&blob.header.0).filter(|known| known.blob.id == blob.id);
        let mut asked: Vec<&Known> = blobs.iter().filter_map(known).collect();
        asked.sort_unstable_by_key(|known| known.blob.header);
        asked.dedup_by_key(|known| known.blob.header);
        let blocks: Vec<_> = asked.iter().map(|known| Block::of(known.blob.header.0, layout)).collect();
        let mut in_order = asked.iter();
        let looks = Block::show_each(&blocks, reader, |block, object| match (in_order.next(), object) {
            (Some(known), Ok(object)) => {
                let is_there = Look::of(block, object).is_of(known);
                Ok(is_there.then(|| read(&known.blob, block.blob_of(object))))
            }
            (_, Err(ReadError::OverBudget)) => Err(ReadError::OverBudget),
            (_, Err(_)) | (None, _) => Ok(None),
        });
        let look_at = |blob: &Blob| {
            let at = asked.binary_search_by_key(&blob.header, |known| known.blob.header).ok()?;
            looks.get(at).filter(|_| asked[at].blob.id == blob.id).cloned()
        };
        blobs.iter().map(|blob| look_at(blob).unwrap_or(Ok(None))).collect()
    }

    fn read_heap<M: Memory>(
        &mut self,
        layout: &Layout,
        reader: &Reader<M>,
        heap: Heap,
        update: &mut Update,
    ) -> Result<(), ReadError> {
        let (mut unread, mut ahead) = (Vec::new(), Ahead::default());
        let mut segment = 0;
        while let Some(begin) = heap.next_block(reader, segment)? {
            let block = heap.block(begin, layout);
            let look = ahead.look_at(block, reader, || heap.shown(reader, begin, layout))?;
            // A block that is being made or taken apart has any length: the map says where the next begins.
            let fits = look.length > 0 && look.length <= (heap.high - block.start) >> heap.log2_segment;
            segment = begin + if fits { look.length } else { 1 };
            if fits && look.is_used {
                unread.extend(self.look_at(block, look, update));
            }
            if are_enough(unread.len(), reader.left()) {
                self.read_blobs(reader, &mut unread, update)?;
            }
        }
        self.read_blobs(reader, &mut unread, update)
    }

    /// Takes note of a blob; returns it if more of it is to be read.
    fn look_at<'l>(&mut self, block: Block<'l>, look: Look, update: &mut Update) -> Option<Unread<'l>> {
        let Some(shown) = look.header else {
            update.damaged += 1;
            return None;
        };
        let (header, unread) = (block.header(), Unread { block, shown, named: None });
        if let Some(known) = self.blobs.get_mut(&header)
            && look.is_of(known)
        {
            known.reading = self.reading;
            let unnamed = matches!(known.blob.name, BlobName::Unknown(_));
            return unnamed.then_some(unread);
        }
        // Nothing lay here if the last that begins before its end has ended in front of it.
        let end = header.saturating_add(shown.size);
        let is_here = |(start, known): (&u64, &Known)| *start >= header || known.blob.end() > header;
        if self.blobs.range(..end).next_back().is_some_and(is_here) {
            // It is gone, even if the reading should not come to its end.
            let first = self.blobs.range(..header).next_back().filter(|(_, known)| known.blob.end() > header);
            let first = first.map_or(header, |(start, _)| *start);
            let gone = self.blobs.extract_if(first..end, |_, _| true);
            update.changes.extend(gone.map(|(_, known)| Change::Unloaded(known.blob)));
        }
        Some(unread)
    }

    /// Reads the rest of blobs whose headers were read, and looks at these once more. Where not all can be read, what was is kept.
    fn read_blobs<M: Memory>(
        &mut self,
        reader: &Reader<M>,
        unread: &mut Vec<Unread<'_>>,
        update: &mut Update,
    ) -> Result<(), ReadError> {
        let Some(layout) = unread.first().map(|first| first.block.layout) else { return Ok(()) };
        let starts: Vec<_> = unread.iter().map(|unread| Avma(unread.block.start)).collect();
        let mut strings = std::mem::take(&mut self.strings);
        let mut names = Names::new(layout, reader, &mut strings);
        let read_each = || Unread::read_each(unread, &mut names, TOGETHER);
        let blobs = reader.with_now_each_ahead(&starts, header_bytes(layout), read_each);
        self.strings = strings;
        let none = blobs.iter().filter(|blob| matches!(blob, Ok(None))).count();
        update.damaged = update.damaged.saturating_add(u32::try_from(none).unwrap_or(u32::MAX));
        let mut failed = blobs.iter().find_map(|blob| blob.as_ref().err().copied());
        let read = unread.iter().zip(&blobs).filter(|(_, blob)| matches!(blob, Ok(Some(_))));
        let blocks: Vec<_> = read.map(|(unread, _)| unread.block).collect();
        let mut read = unread.drain(..).zip(blobs).filter_map(|(unread, blob)| Some((unread.shown, blob.ok()??)));
        for blocks in blocks.chunks(TOGETHER) {
            Block::look_at_each(blocks, reader, |_, now| match (read.next(), now) {
                (Some((shown, blob)), Ok(now)) => self.take_up(shown, blob, now, update),
                (_, now) => failed = failed.or(now.err()),
            });
        }
        failed.map_or(Ok(()), Err)
    }

    /// Keeps a blob that was read since its header was, if that is now what it was.
    fn take_up(&mut self, shown: Header, blob: Arc<Blob>, now: Look, update: &mut Update) {
        let Header { identity, is_dead, .. } = shown;
        let compiled = identity.compiled.filter(|_| blob.kind.is_compiled());
        let identity = Identity { compiled, ..identity };
        let known = Known { blob, identity, reading: self.reading };
        if now.is_of(&known) {
            self.keep(known, update);
        } else {
            update.unsettled += u32::from(!(is_dead && known.blob.kind.is_compiled()));
        }
    }

    /// Keeps a blob that was read, unless it is one that still has no name.
    fn keep(&mut self, mut known: Known, update: &mut Update) {
        let is_full = self.blobs.len() >= MAX_BLOBS;
        let place = self.blobs.entry(known.blob.header.0);
        match &place {
            Entry::Occupied(_) if matches!(known.blob.name, BlobName::Unknown(_)) => return,
            Entry::Occupied(unnamed) => update.changes.push(Change::Unloaded(unnamed.get().blob.clone())),
            Entry::Vacant(_) if is_full => {
                update.damaged += 1;
                return;
            }
            Entry::Vacant(_) => {}
        }
        self.turnover.see(known.blob.compile_id);
        self.next_id += 1;
        if let Some(blob) = Arc::get_mut(&mut known.blob) {
            blob.id = self.next_id;
        }
        update.changes.push(Change::Loaded(known.blob.clone()));
        match place {
            Entry::Occupied(mut place) => {
                place.insert(known);
            }
            Entry::Vacant(place) => {
                place.insert(known);
            }
        }
    }
}

/// A blob of which the header was read, and nothing else.
struct Unread<'l> {
    block: Block<'l>,
    shown: Header,
    /// The runtime's name for it, and what it is by that, once it was looked at.
    named: Option<(Arc<str>, Kind)>,
}

impl Unread<'_> {
    /// Reads the rest of each, in their order, of so many at a time whose methods lie close together: these have more pages in
    /// common than those whose code does. Only what is fetched between two looks at a header, both of which see the same
    /// compilation, is certain to be of that compilation: so pages that were fetched before are not used.
    fn read_each<M: Memory>(
        unread: &mut [Self],
        names: &mut Names<'_, M>,
        together: usize,
    ) -> Vec<Result<Option<Arc<Blob>>, ReadError>> {
        names.reader.refresh();
        let methods: Vec<Option<Avma>> = unread.iter_mut().map(|unread| unread.method(names)).collect();
        let mut order: Vec<usize> = (0..unread.len()).collect();
        order.sort_unstable_by_key(|at| methods[*at]);
        let mut blobs = vec![Ok(None); unread.len()];
        let mut rest = order.as_slice();
        while !rest.is_empty() {
            // Where few pages are left, few are read whole rather than many in part.
            let affordable = u64::from(names.reader.left().pages) / PAGES_OF_ONE;
            let count = usize::try_from(affordable).map_or(together, |affordable| affordable.min(together));
            let (part, behind) = rest.split_at(count.clamp(1, rest.len()));
            rest = behind;
            names.reader.refresh();
            let methods: Vec<Avma> = part.iter().filter_map(|at| methods[*at]).collect();
            names.prefetch(&methods);
            for at in part {
                blobs[*at] = unread[*at].read(names);
            }
        }
        blobs
    }

    /// Looks what it is; returns the method that it was compiled from, if it was from one.
    fn method<M: Memory>(&mut self, names: &mut Names<'_, M>) -> Option<Avma> {
        let name = names.blob(self.shown.identity.name)?;
        let kind = kind(name.as_bytes(), self.shown.level)?;
        self.named = Some((name, kind));
        let (method, ..) = self.shown.identity.compiled.filter(|_| kind.is_compiled())?;
        Some(method)
    }

    /// Reads the rest; none, if it is no blob. It stays where it is put here: many are read before the first is kept.
    fn read<M: Memory>(&self, names: &mut Names<'_, M>) -> Result<Option<Arc<Blob>>, ReadError> {
        let named = self.named.as_ref();
        let blob = named.and_then(|(name, kind)| self.shown.blob(self.block, (name, *kind), names));
        match blob.as_ref().map(|blob| &blob.name) {
            Some(BlobName::Unknown(ReadError::OverBudget)) => Err(ReadError::OverBudget),
            _ => Ok(blob.map(Arc::new)),
        }
    }
}

impl Blob {
    fn end(&self) -> u64 {
        self.code.0.saturating_add(u64::from(self.code_bytes))
    }
}

/// Headers that were read together, in order. What the map shows of blocks is of an earlier moment: those that are not come to are
/// passed over, and those that it does not show are read by themselves.
#[derive(Default)]
struct Ahead {
    looks: VecDeque<(u64, Result<Look, ReadError>)>,
    /// The map could not be read in advance, and is not tried again.
    is_blind: bool,
}

impl Ahead {
    /// The headers of a block, which is behind all that were asked for before.
    fn look_at<'l, M: Memory>(
        &mut self,
        block: Block<'l>,
        reader: &Reader<M>,
        shown: impl FnOnce() -> Vec<Block<'l>>,
    ) -> Result<Look, ReadError> {
        while self.looks.front().is_some_and(|(start, _)| *start < block.start) {
            self.looks.pop_front();
        }
        if self.looks.is_empty() && !self.is_blind {
            let blocks = shown();
            self.is_blind = blocks.is_empty();
            self.looks.reserve(blocks.len());
            Block::look_at_each(&blocks, reader, |block, look| self.looks.push_back((block.start, look)));
        }
        if self.looks.front().is_some_and(|(start, _)| *start == block.start)
            && let Some((_, look)) = self.looks.pop_front()
        {
            return look;
        }
        block.look(reader)
    }
}

/// A block of a heap: a header of the heap's, then one of the blob's.
#[derive(Clone, Copy)]
struct Block<'l> {
    start: u64,
    layout: &'l Layout,
}

impl<'l> Block<'l> {
    /// That of the blob whose header is at an address.
    fn of(header: u64, layout: &'l Layout) -> Self {
        Self { start: header.saturating_sub(layout.heap.block_bytes), layout }
    }

    /// The address of the blob's header.
    fn header(self) -> u64 {
        self.start.saturating_add(self.layout.heap.block_bytes)
    }

    /// What both headers say now.
    fn look<M: Memory>(self, reader: &Reader<M>) -> Result<Look, ReadError> {
        let mut object = vec![0; header_bytes(self.layout)];
        let count = reader.now(Avma(self.start), &mut object)?;
        object.truncate(count);
        Ok(Look::of(self, &object))
    }

    /// Takes the same of several blocks, one after another: kept together they would need room that comes from the
    /// system each time, page by page.
    fn look_at_each<M: Memory>(
        blocks: &[Self],
        reader: &Reader<M>,
        mut take: impl FnMut(Self, Result<Look, ReadError>),
    ) {
        Self::show_each(blocks, reader, |block, object| take(block, object.map(|object| Look::of(block, object))));
    }

    /// Shows both headers of each of several blocks as they are now, as far as they are readable.
    fn show_each<M: Memory, T>(
        blocks: &[Self],
        reader: &Reader<M>,
        mut show: impl FnMut(Self, Result<&[u8], ReadError>) -> T,
    ) -> Vec<T> {
        let Some(layout) = blocks.first().map(|block| block.layout) else { return Vec::new() };
        let starts: Vec<_> = blocks.iter().map(|block| Avma(block.start)).collect();
        reader.now_each(&starts, header_bytes(layout), |start, object| show(Self { start: start.0, layout }, object))
    }

    /// The blob's header within what was read.
    fn blob_of(self, object: &[u8]) -> &[u8] {
        usize::try_from(self.layout.heap.block_bytes).ok().and_then(|from| object.get(from..)).unwrap_or_default()
    }
}

/// What the headers of a block say: the heap's, and that of the blob in it.
#[derive(Clone, Copy, Debug)]
struct Look {
    /// Segments of the block.
    length: u64,
    is_used: bool,
    /// Nothing if there can be no blob.
    header: Option<Header>,
}

impl Look {
    fn of(block: Block<'_>, object: &[u8]) -> Self {
        let heap = &block.layout.heap;
        let length = heap.block_length.of(object).cast_unsigned();
        let is_used = heap.block_used.of(object) & 1 != 0;
        Self { length, is_used, header: Header::of(block, length, block.blob_of(object)) }
    }

    /// Whether this is a blob that was read before, and is still used.
    fn is_of(&self, known: &Known) -> bool {
        let Some(shown) = self.header.filter(|_| self.is_used) else { return false };
        !(shown.is_dead && known.blob.kind.is_compiled()) && known.identity.is(&shown.identity)
    }
}

/// What the header of a blob says. From `level` on it is of a compiled method only, and means nothing if it is none.
#[derive(Clone, Copy, Debug)]
struct Header {
    identity: Identity,
    /// Bytes of the blob, those of the header included.
    size: u64,
    frame_words: i64,
    frame_complete: i64,
    level: i64,
    /// Nothing uses it any more.
    is_dead: bool,
    orig_pc: i64,
    /// These are addresses.
    verified_entry: u64,
    deopt: u64,
    deopt_handle: Option<u64>,
}

impl Header {
    /// That of a block with so many segments.
    fn of(block: Block<'_>, segments: u64, object: &[u8]) -> Option<Self> {
        let (layout, header) = (block.layout, block.header());
        let (identity, size) = Identity::of(block, segments, object)?;
        let at = &layout.compiled;
        let handler = |field: Field| match layout.blob.extent {
            Extent::Addresses(..) => field.of(object).cast_unsigned(),
            Extent::Distances(..) => header.saturating_add(field.of(object).cast_unsigned()),
        };
        Some(Self {
            identity,
            size,
            frame_words: layout.blob.frame_size.of(object),
            frame_complete: layout.blob.frame_complete.of(object),
            level: at.level.of(object),
            is_dead: layout.is_dead(object),
            orig_pc: at.orig_pc.of(object),
            verified_entry: match at.verified_entry {
                Entries::Address(field) => field.address_of(object).0,
                Entries::Distance(field) => identity.code.0.saturating_add(field.of(object).cast_unsigned()),
            },
            deopt: handler(at.deopt),
            deopt_handle: at.deopt_handle.map(handler),
        })
    }

    /// The blob that has it, which the runtime calls so.
    fn blob<M: Memory>(
        &self,
        block: Block<'_>,
        (name, kind): (&Arc<str>, Kind),
        names: &mut Names<'_, M>,
    ) -> Option<Blob> {
        let identity = self.identity;
        let frame_bytes = self.frame_words.checked_mul(8)?;
        let frame = match kind {
            Kind::Interpreter => FrameShape::Interpreter,
            Kind::Stubs | Kind::Vtable | Kind::Adapter => FrameShape::Unknown,
            _ if (8..=MAX_FRAME).contains(&frame_bytes) => FrameShape::Sized {
                bytes: u32::try_from(frame_bytes).ok()?,
                complete_from: u32::try_from(self.frame_complete).ok().filter(|from| *from <= identity.code_bytes),
            },
            _ => FrameShape::Unknown,
        };
        let mut blob = Blob {
            id: 0,
            header: Avma(block.header()),
            code: identity.code,
            code_bytes: identity.code_bytes,
            kind,
            compile_id: 0,
            frame,
            verified_entry: 0,
            osr_bci: None,
            deopt_handlers: [None; 3],
            original_pc: None,
            method: Avma(0),
            name: BlobName::Blob(Arc::clone(name)),
        };
        if let Some((method, compile_id, entry_bci)) = identity.compiled.filter(|_| kind.is_compiled()) {
            blob.compile_id = compile_id;
            blob.method = method;
            blob.verified_entry = identity.distance_to(self.verified_entry).unwrap_or(0);
            blob.osr_bci = u32::try_from(entry_bci).ok().filter(|_| entry_bci != AT_THE_BEGINNING);
            blob.original_pc = u32::try_from(self.orig_pc).ok().filter(|offset| i64::from(*offset) < frame_bytes);
            blob.deopt_handlers = self.deopt_handlers(block.layout);
            blob.name = names.method(method).map_or_else(BlobName::Unknown, BlobName::Method);
        }
        Some(blob)
    }

    /// Where a compiled method is returned to that is no longer valid.
    fn deopt_handlers(&self, layout: &Layout) -> [Option<u32>; 3] {
        let within = |handler: u64| self.identity.distance_to(handler).filter(|distance| *distance > 0);
        let first = within(self.deopt);
        // Those of other compilers are longer, and nothing of them is returned to there.
        let behind_call = first.filter(|_| layout.compiled.is_deopt_begin).and_then(|begin| begin.checked_add(CALL));
        let behind_call = behind_call.filter(|distance| *distance < self.identity.code_bytes);
        [first, self.deopt_handle.and_then(within), behind_call]
    }
}

/// Whether no more than so many blobs are to be read between two looks. Where the budget has little left, few are read whole
/// rather than many in part.
fn are_enough(count: usize, left: Budget) -> bool {
    let with_more = (count + TOGETHER) as u64;
    count >= BETWEEN_LOOKS || (count >= TOGETHER && u64::from(left.pages) < PAGES_OF_ONE * with_more)
}

/// Bytes of both headers of a block.
fn header_bytes(layout: &Layout) -> usize {
    let bytes = layout.heap.block_bytes.saturating_add(layout.compiled.bytes.max(layout.blob.bytes));
    usize::try_from(bytes).unwrap_or(MAX_HEADER).min(MAX_HEADER)
}

/// What a blob is, by the runtime's name for it.
fn kind(name: &[u8], level: i64) -> Option<Kind> {
    Some(match name {
        b"nmethod" => match level {
            1 => Kind::Method(Tier::C1),
            2 => Kind::Method(Tier::C1Counting),
            3 => Kind::Method(Tier::C1Profiling),
            4 => Kind::Method(Tier::C2),
            // A method without a level is one that no compiler made.
            0 => Kind::Native,
            _ => return None,
        },
        b"native nmethod" => Kind::Native,
        b"Interpreter" => Kind::Interpreter,
        b"I2C/C2I adapters" | b"MethodHandles adapters" => Kind::Adapter,
        b"vtable chunks" => Kind::Vtable,
        b"DeoptimizationBlob" => Kind::Deoptimization,
        _ if name.starts_with(b"Stub") || name.starts_with(b"StubRoutines") => Kind::Stubs,
        _ => Kind::Runtime,
    })
}

/// The heaps of the code cache.
fn heaps<M: Memory>(at: &HeapLayout, reader: &Reader<M>) -> Result<Vec<Heap>, ReadError> {
    let array = reader.pointer(at.heaps)?;
    if array.0 == 0 {
        // The process has only just begun.
        return Ok(Vec::new());
    }
    let count = at.array_length.read(reader, array)?;
    if !(0..=MAX_HEAPS).contains(&count) {
        return Err(ReadError::Malformed { what: "array of heaps", address: array.0 });
    }
    let data = at.array_data.pointer(reader, array)?;
    let mut heaps: Vec<Heap> = Vec::new();
    for index in 0..count.cast_unsigned() {
        let object = reader.pointer(plus(data, 8 * index)?)?;
        let (memory, map) = (at.memory.within(object)?, at.segment_map.within(object)?);
        let heap = Heap {
            low: at.space_low.pointer(reader, memory)?.0,
            high: at.space_high.pointer(reader, memory)?.0,
            reserved_to: at.space_end.pointer(reader, memory)?.0,
            map: at.space_low.pointer(reader, map)?.0,
            map_end: at.space_high.pointer(reader, map)?.0,
            log2_segment: u32::try_from(at.log2_segment.read(reader, object)?).unwrap_or(u32::MAX),
        };
        let ordered = heap.low <= heap.high && heap.high <= heap.reserved_to && heap.map <= heap.map_end;
        let sized = (3..=12).contains(&heap.log2_segment) && ordered && heap.reserved_to - heap.low <= MAX_HEAP;
        if !sized || heaps.iter().any(|other| heap.low < other.reserved_to && other.low < heap.reserved_to) {
            return Err(ReadError::Malformed { what: "heap of code", address: object.0 });
        }
        heaps.push(heap);
    }
    Ok(heaps)
}

impl Heap {
    fn block<'l>(&self, segment: u64, layout: &'l Layout) -> Block<'l> {
        Block { start: self.low + (segment << self.log2_segment), layout }
    }

    /// The blocks that the map shows from a segment on, some of them, as far as it can be read.
    fn shown<'l, M: Memory>(&self, reader: &Reader<M>, from: u64, layout: &'l Layout) -> Vec<Block<'l>> {
        let (mut blocks, mut marks) = (Vec::new(), [0; MARKS]);
        for first in (from..self.segments()).step_by(MARKS) {
            let marks = &mut marks[..usize::try_from(self.segments() - first).unwrap_or(MARKS).min(MARKS)];
            if plus(Avma(self.map), first).and_then(|at| reader.bytes(at, marks)).is_err() {
                break;
            }
            let used = marks.iter().position(|mark| *mark == FREE_SEGMENT).unwrap_or(marks.len());
            let begins = (first..).zip(&marks[..used]).filter(|(_, mark)| **mark == 0);
            blocks.extend(begins.map(|(segment, _)| self.block(segment, layout)));
            if used < marks.len() || blocks.len() >= TOGETHER {
                break;
            }
        }
        blocks
    }

    fn segments(&self) -> u64 {
        ((self.high - self.low) >> self.log2_segment).min(self.map_end - self.map)
    }

    /// The first segment from one on that begins a block; none if there is no more of them.
    fn next_block<M: Memory>(&self, reader: &Reader<M>, from: u64) -> Result<Option<u64>, ReadError> {
        for segment in from..self.segments() {
            match reader.u8(plus(Avma(self.map), segment)?)? {
                0 => return Ok(Some(segment)),
                // Nothing was ever put from here on, or this is a block that was just put together with the last one.
                FREE_SEGMENT => return Ok(None),
                _ => {}
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hotspot::tests::{ENOUGH, memory};
    use crate::recorded::Recorded;

    /// All blobs, of which nothing but the headers is read.
    fn unread<'l>(reader: &Reader<&Recorded>, (layout, cache): (&'l Layout, &CodeCache)) -> Vec<Unread<'l>> {
        let blocks: Vec<_> = cache.blobs.keys().map(|header| Block::of(*header, layout)).collect();
        let mut unread = Vec::new();
        Block::look_at_each(&blocks, reader, |block, look| {
            unread.push(Unread { block, shown: look.unwrap().header.unwrap(), named: None });
        });
        unread
    }

    /// Pages that are fetched for the names of all blobs, of so many at a time.
    fn pages_of_names(memory: &Recorded, (layout, cache): (&Layout, &CodeCache), together: usize) -> u32 {
        let (reader, mut strings) = (Reader::new(memory, ENOUGH), Strings::default());
        let mut unread = unread(&reader, (layout, cache));
        let before = reader.left().pages;
        let blobs = Unread::read_each(&mut unread, &mut Names::new(layout, &reader, &mut strings), together);
        assert_eq!(blobs.len(), cache.blobs.len());
        for (known, blob) in cache.blobs.values().zip(blobs) {
            assert_eq!(blob.unwrap().unwrap().name, known.blob.name);
        }
        before - reader.left().pages
    }

    /// The same where they are read in the order of their code.
    fn pages_in_order(memory: &Recorded, (layout, cache): (&Layout, &CodeCache), together: usize) -> u32 {
        let (reader, mut strings) = (Reader::new(memory, ENOUGH), Strings::default());
        let names = Names::new(layout, &reader, &mut strings);
        let methods: Vec<Avma> = cache.blobs().map(|blob| blob.method).filter(|method| method.0 != 0).collect();
        for part in methods.chunks(together) {
            reader.refresh();
            names.prefetch(part);
        }
        ENOUGH.pages - reader.left().pages
    }

    #[test]
    fn where_pages_run_out_the_blobs_that_were_read_are_kept() {
        for recording in ["jdk17", "jdk21"] {
            let memory = memory(recording);
            let reader = Reader::new(&memory, ENOUGH);
            let layout = Layout::read(&memory, &reader).unwrap();
            let (mut whole, mut cache) = (CodeCache::default(), CodeCache::default());
            whole.update(&layout, &reader);
            let mut unread = unread(&reader, (&layout, &whole));
            let mut update = Update { changes: Vec::new(), damaged: 0, unsettled: 0, unseen: false, incomplete: None };
            let pages = pages_of_names(&memory, (&layout, &whole), TOGETHER) - 1;
            let poor = Reader::new(&memory, Budget { pages, ..ENOUGH });
            assert_eq!(cache.read_blobs(&poor, &mut unread, &mut update), Err(ReadError::OverBudget));
            assert!(!cache.blobs.is_empty() && update.changes.len() == cache.blobs.len(), "{recording}");
            for (header, known) in &cache.blobs {
                assert_eq!(known.blob.name, whole.blobs[header].blob.name);
            }
            assert!(unread.is_empty() && cache.update(&layout, &reader).incomplete.is_none());
            assert_eq!(cache.blobs.len(), whole.blobs.len());
        }
    }

    #[test]
    fn names_of_methods_that_lie_close_together_are_read_together() {
        for recording in ["jdk17", "jdk21"] {
            let memory = memory(recording);
            let reader = Reader::new(&memory, ENOUGH);
            let layout = Layout::read(&memory, &reader).unwrap();
            let mut cache = CodeCache::default();
            cache.update(&layout, &reader);
            // What more is fetched of some at a time than of all at once.
            let [ours, in_order] = [pages_of_names, pages_in_order].map(|pages| {
                let [some, all] = [8, usize::MAX].map(|together| pages(&memory, (&layout, &cache), together));
                some - all
            });
            assert!(ours > 0 && 3 * ours < 2 * in_order, "{recording}: {ours} {in_order}");
        }
    }

    #[test]
    fn as_many_are_read_between_two_looks_as_there_may_be_room_for() {
        let counts = [0, TOGETHER - 1, TOGETHER, BETWEEN_LOOKS - 1, BETWEEN_LOOKS];
        let are_enough = |pages| counts.map(|count| are_enough(count, Budget { pages, steps: 0 }));
        assert_eq!(are_enough(u32::MAX), [false, false, false, false, true]);
        assert_eq!(are_enough(0), [false, false, true, true, true]);
        let of_two = u32::try_from(PAGES_OF_ONE * 2 * TOGETHER as u64).unwrap();
        assert_eq!([of_two, of_two - 1].map(|pages| are_enough(pages)[2]), [false, true]);
    }
}
