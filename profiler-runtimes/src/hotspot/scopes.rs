//! Which methods are at an address of compiled code, and which of their lines.

use std::sync::Arc;

use jitprof_common::units::Avma;

use super::code_cache::{Blob, BlobName, CodeCache, MAX_HEADER};
use super::layout::{Debug, Field, Layout, Metadata, plus};
use super::names::{MethodName, Names, Strings};
use super::numbers::Numbers;
use crate::{Memory, ReadError, Reader};

/// Methods that are inlined into one another; `MaxInlineLevel` is 15, and recursion adds little.
const MAX_DEPTH: usize = 64;
/// Bytes of each of a compiled method's tables.
const MAX_TABLE: u64 = 64 << 20;
/// Bytes of one that is fetched before it is looked at, whole: that is cheaper than one page after another.
const SMALL_TABLE: u64 = 4096;
/// Addresses of a compiled method of which it is looked up whether anything was inlined; large ones have some thousand.
const MAX_LOOKED_UP: u64 = 1 << 14;
/// Entries of a table of lines.
const MAX_LINES: u32 = 1 << 17;
/// The entry of a table of lines that is followed by two whole numbers.
const LONG_ENTRY: u8 = 0xff;
/// What is taken from a `bci` before it is written, for that of a method's entry is -1.
const FIRST_BCI: i64 = -1;

/// A method at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The method.
    pub method: MethodName,
    /// The file that its class was compiled from, if that is known: without a path.
    pub file: Option<Arc<str>>,
    /// Its bytecode; none before the first.
    pub bci: Option<u32>,
    /// The line, if the class was compiled with lines.
    pub line: Option<u32>,
}

/// How an address was come by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pc {
    /// The code will be returned to, from where the runtime knows of it: either all is known of such an address, or which
    /// method it is.
    Return,
    /// The code will be returned to, from anywhere: what is called without the runtime's knowing returns to where the table
    /// has nothing, as if the code was interrupted there.
    Called,
    /// The code would have been returned to, but the frame is no longer valid: the address is another one in the place of its
    /// own. Which method it is, is known; if any was inlined into that, it stands there once more, as a guess.
    Deoptimized,
    /// The code was interrupted there. What is known is known of the places around it where the runtime may stop it.
    Interrupted,
}

/// What is at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The method that was inlined deepest first, the one that was compiled last.
    pub frames: Vec<Frame>,
    /// How many of the first are a guess: what the next place in the table has, which the runtime itself assumes of such an
    /// address, and the last place before it has not. If the next one has nothing that the last has not, the innermost
    /// method that both have stands there once more: it need not be the one that runs.
    pub guessed: usize,
    /// Whether the runtime has this very address in its table.
    pub exact: bool,
}

/// Where a compiled method's tables are, by addresses.
#[derive(Clone, Copy, Debug)]
struct Tables {
    pcs: Avma,
    pcs_count: u64,
    scopes: Avma,
    scopes_bytes: u64,
    metadata: Avma,
    metadata_count: u64,
}

/// An address that a table has, and where its scope is; none at the ends, or where nothing is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PcEntry {
    pc: i64,
    scope: Option<u32>,
}

/// A method, and which of its bytecodes runs, or calls the next one; none if that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Scope {
    method: Avma,
    bci: Option<i64>,
}

impl CodeCache {
    /// The methods at an address of code that was compiled from one.
    ///
    /// # Errors
    /// The code is no longer there (it may have been freed meanwhile), was not compiled from a method, or its tables
    /// could not be read.
    pub fn position<M: Memory>(
        &self,
        layout: &Layout,
        reader: &Reader<M>,
        blob: &Blob,
        (pc, come_by): (Avma, Pc),
    ) -> Result<Position, ReadError> {
        let gone = ReadError::Malformed { what: "code that was there", address: blob.code.0 };
        let mut read = self.positions(layout, reader, &[(blob, pc, come_by)]);
        read.pop().unwrap_or(Ok(None))?.ok_or(gone)
    }

    /// The same of several addresses, in their order; nothing of code that is no longer there. Only what is fetched
    /// between two looks at a blob, both of which see the same compilation, is certain to be of that one: all are looked
    /// at before anything is read, and again when everything has been.
    pub fn positions<M: Memory>(
        &self,
        layout: &Layout,
        reader: &Reader<M>,
        asked: &[(&Blob, Avma, Pc)],
    ) -> Vec<Result<Option<Position>, ReadError>> {
        let blobs: Vec<_> = asked.iter().map(|(blob, ..)| *blob).collect();
        let before = self.look_at_each(layout, reader, &blobs, |blob, header| Tables::of(layout, blob, header));
        reader.refresh();
        let mut strings = Strings::default();
        let mut names = Names::new(layout, reader, &mut strings);
        let there = blobs.iter().zip(&before).filter_map(|(blob, tables)| match tables {
            Ok(Some(Ok(tables))) if blob.method.0 != 0 => Some((blob.method, tables)),
            _ => None,
        });
        prefetch(&names, there);
        let read = asked.iter().zip(before).map(|((blob, pc, come_by), tables)| match tables? {
            Some(tables) if blob.method.0 != 0 => position(&mut names, blob, &tables?, (*pc, *come_by)).map(Some),
            _ => Ok(None),
        });
        let read: Vec<_> = read.collect();
        let said = read.iter().zip(&blobs).filter(|(read, _)| says_something(read)).map(|(_, blob)| *blob);
        let said: Vec<_> = said.collect();
        let mut again = self.look_at_each(layout, reader, &said, |_, _| {}).into_iter();
        let certain = read.into_iter().map(|position| {
            let there = if says_something(&position) { again.next().unwrap_or(Ok(None)) } else { Ok(Some(())) };
            if there?.is_some() { position } else { Ok(None) }
        });
        certain.collect()
    }

    /// The addresses of a blob that its table has a scope for.
    ///
    /// # Errors
    /// As [`position`](Self::position).
    pub fn known_pcs<M: Memory>(layout: &Layout, reader: &Reader<M>, blob: &Blob) -> Result<Vec<Avma>, ReadError> {
        let mut header = vec![0; usize::try_from(layout.compiled.bytes).unwrap_or(MAX_HEADER).min(MAX_HEADER)];
        let count = reader.now(blob.header, &mut header)?;
        header.truncate(count);
        let tables = Tables::of(layout, blob, &header)?;
        let mut pcs = Vec::new();
        for index in 0..tables.pcs_count {
            let entry = tables.entry(layout, reader, index)?;
            if let (Some(_), Ok(pc)) = (entry.scope, u64::try_from(entry.pc)) {
                pcs.push(plus(blob.code, pc)?);
            }
        }
        Ok(pcs)
    }
}

/// Whether what was read says something of what was there, if that was still there.
fn says_something(read: &Result<Option<Position>, ReadError>) -> bool {
    matches!(read, Ok(Some(_)) | Err(ReadError::Malformed { .. }))
}

/// Fetches what says where in methods addresses of the code is that was compiled from them, as far as it is known where
/// that is.
fn prefetch<'t, M: Memory>(names: &Names<'_, M>, compiled: impl Iterator<Item = (Avma, &'t Tables)>) {
    let (mut methods, tables): (Vec<Avma>, Vec<&Tables>) = compiled.unzip();
    names.reader.prefetch(tables.iter().flat_map(|tables| tables.small(names.layout)));
    methods.sort_unstable();
    methods.dedup();
    names.prefetch_places(&methods);
}

fn position<M: Memory>(
    names: &mut Names<'_, M>,
    blob: &Blob,
    tables: &Tables,
    (pc, come_by): (Avma, Pc),
) -> Result<Position, ReadError> {
    let (layout, reader) = (names.layout, names.reader);
    let distance = pc.0.checked_sub(blob.code.0).filter(|distance| *distance <= u64::from(blob.code_bytes));
    let distance = distance.ok_or(ReadError::Malformed { what: "address in code", address: pc.0 })?.cast_signed();
    if come_by == Pc::Deoptimized {
        let own = Scope { method: blob.method, bci: None }.frame(names, blob)?;
        let guessed = usize::from(tables.have_inlined(layout, reader)?);
        return Ok(Position { frames: vec![own; 1 + guessed], guessed, exact: false });
    }
    let index = tables.first_from(layout, reader, distance)?;
    let at = tables.entry_if_there(layout, reader, Some(index))?;
    // An address that was interrupted may be a listed one by chance.
    let is_listed = at.is_some_and(|at| at.pc == distance);
    let exact = is_listed && at.is_some_and(|at| at.scope.is_some());
    let next = if is_listed { index + 1 } else { index };
    let (before, behind) = match come_by {
        Pc::Return if !exact => {
            // Which method it is, is known; where in it is not.
            let own = Scope { method: blob.method, bci: None }.frame(names, blob)?;
            return Ok(Position { frames: vec![own], guessed: 0, exact });
        }
        Pc::Return | Pc::Called if exact => (Some(index), Some(index)),
        // Each place is the end of instructions that it holds for.
        _ if layout.is_dense => [if exact { index } else { next }; 2].map(Some).into(),
        // Of a call the table has the address behind it, of what else stops its own: what runs there is that, or what follows.
        _ if is_listed => (Some(index), Some(next)),
        _ => (index.checked_sub(1), Some(next)),
    };
    let scopes = |index, bci| match tables.entry_if_there(layout, reader, index)?.and_then(|entry| entry.scope) {
        Some(scope) => tables.scopes(layout, reader, scope),
        None => Ok(vec![Scope { method: blob.method, bci }]),
    };
    // Code begins where the method is entered, and may end anywhere.
    let entered = i64::from(blob.osr_bci.unwrap_or(0));
    let (before, behind) = (scopes(before, Some(entered))?, scopes(behind, None)?);
    between(names, blob, [&before, &behind], exact)
}

/// What is between two places in the table, whose scopes are those of the outermost method first; or at the first of them.
fn between<M: Memory>(
    names: &mut Names<'_, M>,
    blob: &Blob,
    [before, behind]: [&[Scope]; 2],
    exact: bool,
) -> Result<Position, ReadError> {
    let assumed = if exact { before } else { behind };
    // The outermost is the method that was compiled. Another one is in both places only if it was inlined into the same call.
    let calls = before.iter().zip(behind).take_while(|(one, other)| one == other).count();
    let divided = before.get(calls).zip(behind.get(calls)).filter(|(one, other)| one.method == other.method);
    let sure = calls + usize::from(divided.is_some());
    if sure == 0 {
        return Err(ReadError::Malformed {
            what: "outermost scope",
            address: assumed.first().map_or(0, |scope| scope.method.0),
        });
    }
    let is_all_sure = [before.len(), behind.len()] == [sure; 2];
    let mut frames = Vec::with_capacity(assumed.len() + 1);
    for scope in &assumed[..calls] {
        frames.push(scope.frame(names, blob)?);
    }
    if let Some((one, other)) = divided {
        // Which of its bytecodes runs is not known, but they may have the same line.
        let (line, other) = (one.line(names)?, other.frame(names, blob)?);
        frames.push(Frame { bci: None, line: line.filter(|_| line == other.line), ..other });
    }
    let guess = match &assumed[sure..] {
        [] if !is_all_sure => &assumed[sure - 1..],
        guess => guess,
    };
    for scope in guess {
        frames.push(scope.frame(names, blob)?);
    }
    frames.reverse();
    Ok(Position { frames, guessed: guess.len(), exact })
}

impl Scope {
    /// The method in code that was compiled from it, or that it was inlined into.
    fn frame<M: Memory>(self, names: &mut Names<'_, M>, blob: &Blob) -> Result<Frame, ReadError> {
        let line = self.line(names)?;
        let method = match &blob.name {
            // This was read when the code was found, which is still there: other code has another number.
            BlobName::Method(own) if self.method == blob.method => own.clone(),
            _ => names.known_method(self.method)?,
        };
        Ok(Frame { method, file: names.file(self.method)?, bci: self.bci(), line })
    }

    /// Its line, if it is known which bytecode runs.
    fn line<M: Memory>(self, names: &Names<'_, M>) -> Result<Option<u32>, ReadError> {
        match self.bci {
            Some(_) => line(names.layout, names.reader, self.method, self.bci()),
            None => Ok(None),
        }
    }

    fn bci(self) -> Option<u32> {
        self.bci.and_then(|bci| u32::try_from(bci).ok())
    }
}

/// A method with its name, file and line.
pub(super) fn frame<M: Memory>(names: &mut Names<'_, M>, method: Avma, bci: Option<u32>) -> Result<Frame, ReadError> {
    let line = line(names.layout, names.reader, method, bci)?;
    Ok(Frame { method: names.known_method(method)?, file: names.file(method)?, bci, line })
}

/// The line of a bytecode, or of a method's entry.
fn line<M: Memory>(
    layout: &Layout,
    reader: &Reader<M>,
    method: Avma,
    bci: Option<u32>,
) -> Result<Option<u32>, ReadError> {
    // A method is entered at its first bytecode, in what its synchronisation needs as well.
    let bci = bci.unwrap_or(0);
    let at = &layout.method;
    let constant = at.const_method.pointer(reader, method)?;
    let bytes = at.code_size.read(reader, constant)?.cast_unsigned();
    if at.const_flags.read(reader, constant)? & at.const_has_lines == 0 {
        return Ok(None);
    }
    let table = layout.lines_behind(constant, bytes)?;
    let mut numbers = Numbers::new(reader, table, layout.number_bias());
    let (mut at, mut line) = (0_u32, 0_u32);
    let mut best: Option<(u32, u32)> = None;
    // The table has the order of the class file, which need not be that of bytecodes.
    for _ in 0..MAX_LINES {
        match numbers.byte()? {
            0 => return Ok(best.map(|(_, line)| line)),
            LONG_ENTRY => {
                at = at.wrapping_add_signed(numbers.signed()?);
                line = line.wrapping_add_signed(numbers.signed()?);
            }
            short => {
                at = at.wrapping_add(u32::from(short >> 3));
                line = line.wrapping_add(u32::from(short & 7));
            }
        }
        if at == bci {
            return Ok(Some(line));
        }
        if at < bci && best.is_none_or(|(best, _)| at >= best) {
            best = Some((at, line));
        }
    }
    Err(ReadError::Malformed { what: "end of lines", address: table.0 })
}

impl Tables {
    /// Those of a blob with this header.
    fn of(layout: &Layout, blob: &Blob, object: &[u8]) -> Result<Self, ReadError> {
        let header = blob.header;
        if (object.len() as u64) < layout.compiled.bytes {
            return Err(ReadError::Unreadable(header.0));
        }
        let number = |field: Field| field.of(object).cast_unsigned();
        let between = |from: Avma, to: Avma| {
            let bytes = to.0.checked_sub(from.0).filter(|bytes| *bytes <= MAX_TABLE);
            bytes.ok_or(ReadError::Malformed { what: "table of compiled code", address: from.0 })
        };
        let (pcs, pcs_end, scopes, scopes_end, metadata, metadata_end) = match layout.compiled.debug {
            Debug::Behind { metadata, scopes, pcs, end } => {
                let scopes = scopes.address_of(object);
                let pcs = plus(header, number(pcs))?;
                (pcs, plus(header, number(end))?, scopes, pcs, plus(header, number(metadata))?, scopes)
            }
            Debug::Apart { data, size, pcs, scopes, metadata } => {
                let data = data.address_of(object);
                let scopes = plus(data, number(scopes))?;
                let (metadata, metadata_end) = match metadata {
                    Metadata::Behind(distance) => {
                        let code_end = plus(blob.code, u64::from(blob.code_bytes))?;
                        let end = plus(header, number(layout.blob.size))?;
                        (plus(code_end, number(distance))?, end)
                    }
                    Metadata::Apart { data, size, relocations } => {
                        let data = data.address_of(object);
                        (plus(data, number(relocations))?, plus(data, number(size))?)
                    }
                };
                (plus(data, number(pcs))?, scopes, scopes, plus(data, number(size))?, metadata, metadata_end)
            }
        };
        Ok(Self {
            pcs,
            pcs_count: between(pcs, pcs_end)? / layout.pcs.bytes,
            scopes,
            scopes_bytes: between(scopes, scopes_end)?,
            metadata,
            metadata_count: between(metadata, metadata_end)? / 8,
        })
    }

    /// Those of which a look needs nearly all pages there are, so that they may be fetched before it.
    fn small(&self, layout: &Layout) -> impl Iterator<Item = (Avma, usize)> {
        let pcs = (self.pcs, self.pcs_count * layout.pcs.bytes);
        let tables = [pcs, (self.scopes, self.scopes_bytes), (self.metadata, 8 * self.metadata_count)];
        let small = tables.into_iter().filter(|(_, bytes)| *bytes <= SMALL_TABLE);
        small.filter_map(|(start, bytes)| Some((start, usize::try_from(bytes).ok()?)))
    }

    /// The numbers of a scope: its caller's, its method, and more.
    fn numbers<'r, M: Memory>(
        &self,
        layout: &Layout,
        reader: &'r Reader<M>,
        scope: u32,
    ) -> Result<Numbers<'r, M>, ReadError> {
        if u64::from(scope) >= self.scopes_bytes {
            return Err(ReadError::Malformed { what: "scope", address: self.scopes.0 });
        }
        Ok(Numbers::new(reader, plus(self.scopes, u64::from(scope))?, layout.number_bias()))
    }

    /// Whether anything was inlined where the runtime may stop the method. Of more places than are looked at it is assumed.
    fn have_inlined<M: Memory>(&self, layout: &Layout, reader: &Reader<M>) -> Result<bool, ReadError> {
        if self.pcs_count > MAX_LOOKED_UP {
            return Ok(true);
        }
        for index in 0..self.pcs_count {
            let Some(scope) = self.entry(layout, reader, index)?.scope else { continue };
            if self.numbers(layout, reader, scope)?.unsigned()? != 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The scopes that one leads to, the outermost method's first.
    fn scopes<M: Memory>(&self, layout: &Layout, reader: &Reader<M>, mut scope: u32) -> Result<Vec<Scope>, ReadError> {
        let mut scopes = Vec::new();
        // Scopes are written before those that refer to them, so that each lies further to the front than the last.
        while scopes.len() < MAX_DEPTH {
            let mut numbers = self.numbers(layout, reader, scope)?;
            let (caller, method) = (numbers.unsigned()?, numbers.unsigned()?);
            let bci = i64::from(numbers.unsigned()?) + FIRST_BCI;
            let slot = u64::from(method).checked_sub(1).filter(|slot| *slot < self.metadata_count);
            let slot = slot.ok_or(ReadError::Malformed { what: "method of a scope", address: self.metadata.0 })?;
            let method = reader.pointer(plus(self.metadata, 8 * slot)?)?;
            scopes.push(Scope { method, bci: Some(bci) });
            if caller == 0 {
                scopes.reverse();
                return Ok(scopes);
            }
            if caller >= scope {
                return Err(ReadError::Malformed { what: "scope of a caller", address: self.scopes.0 });
            }
            scope = caller;
        }
        Err(ReadError::Malformed { what: "end of scopes", address: self.scopes.0 })
    }

    fn entry_if_there<M: Memory>(
        &self,
        layout: &Layout,
        reader: &Reader<M>,
        index: Option<u64>,
    ) -> Result<Option<PcEntry>, ReadError> {
        let index = index.filter(|index| *index < self.pcs_count);
        index.map(|index| self.entry(layout, reader, index)).transpose()
    }

    fn entry<M: Memory>(&self, layout: &Layout, reader: &Reader<M>, index: u64) -> Result<PcEntry, ReadError> {
        let at = plus(self.pcs, index * layout.pcs.bytes)?;
        let scope = u32::try_from(layout.pcs.scope.read(reader, at)?).ok().filter(|scope| *scope > 0);
        Ok(PcEntry { pc: layout.pcs.pc.read(reader, at)?, scope })
    }

    /// The first entry at or behind a distance from the code's start; the table is in the order of addresses.
    fn first_from<M: Memory>(&self, layout: &Layout, reader: &Reader<M>, distance: i64) -> Result<u64, ReadError> {
        let (mut low, mut high) = (0, self.pcs_count);
        while low < high {
            let middle = low + (high - low) / 2;
            let pc = layout.pcs.pc.read(reader, plus(self.pcs, middle * layout.pcs.bytes)?)?;
            if pc < distance { low = middle + 1 } else { high = middle }
        }
        Ok(low)
    }
}
