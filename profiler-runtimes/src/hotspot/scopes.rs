//! Which methods are at an address of compiled code, and which of their lines.

use std::sync::Arc;

use jitprof_common::units::Avma;

use super::code_cache::{Blob, CodeCache};
use super::layout::{Debug, Field, Layout, Metadata, plus};
use super::names::{MethodName, Names, Strings};
use super::numbers::Numbers;
use crate::{Memory, ReadError, Reader};

/// Methods that are inlined into one another; `MaxInlineLevel` is 15, and recursion adds little.
const MAX_DEPTH: usize = 64;
/// Bytes of each of a compiled method's tables.
const MAX_TABLE: u64 = 64 << 20;
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
    /// The code will be returned to: what is known of such an address is exact.
    Return,
    /// The code was interrupted there. What is known is known of the next place where the runtime may stop it, which is
    /// what the runtime itself assumes of such an address.
    Interrupted,
}

/// What is at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The method that was inlined deepest first, the one that was compiled last.
    pub frames: Vec<Frame>,
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
        let is_there = |blob: &Blob| match blob.method.0 {
            0 => Ok(false),
            _ => self.is_still_there(layout, reader, blob),
        };
        let before: Vec<_> = asked.iter().map(|(blob, ..)| is_there(blob)).collect();
        reader.refresh();
        let mut strings = Strings::default();
        let mut names = Names::new(layout, reader, &mut strings);
        let read = asked.iter().zip(before).map(|((blob, pc, come_by), is_there)| {
            if is_there? { position(&mut names, blob, *pc, *come_by).map(Some) } else { Ok(None) }
        });
        let read: Vec<_> = read.collect();
        let certain = read.into_iter().zip(asked).map(|(position, (blob, ..))| match position {
            Ok(Some(_)) | Err(ReadError::Malformed { .. }) => {
                if is_there(blob)? {
                    position
                } else {
                    Ok(None)
                }
            }
            position => position,
        });
        certain.collect()
    }

    /// The addresses of a blob that its table has a scope for.
    ///
    /// # Errors
    /// As [`position`](Self::position).
    pub fn known_pcs<M: Memory>(layout: &Layout, reader: &Reader<M>, blob: &Blob) -> Result<Vec<Avma>, ReadError> {
        let tables = Tables::of(layout, reader, blob)?;
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

fn position<M: Memory>(names: &mut Names<'_, M>, blob: &Blob, pc: Avma, come_by: Pc) -> Result<Position, ReadError> {
    let (layout, reader) = (names.layout, names.reader);
    let own = |names: &mut Names<'_, M>| {
        // Which method it is, is known; where in it is not.
        let frame = Frame { line: None, ..frame(names, blob.method, None)? };
        Ok(Position { frames: vec![frame], exact: false })
    };
    let distance = pc.0.checked_sub(blob.code.0).filter(|distance| *distance <= u64::from(blob.code_bytes));
    let distance = distance.ok_or(ReadError::Malformed { what: "address in code", address: pc.0 })?.cast_signed();
    let tables = Tables::of(layout, reader, blob)?;
    let index = tables.first_from(layout, reader, distance)?;
    if index == tables.pcs_count {
        return own(names);
    }
    let mut entry = tables.entry(layout, reader, index)?;
    // An address that was interrupted may be a known one by chance.
    let exact = entry.pc == distance;
    if !exact && come_by == Pc::Return {
        return own(names);
    }
    if exact && entry.scope.is_none() && come_by == Pc::Interrupted && index + 1 < tables.pcs_count {
        entry = tables.entry(layout, reader, index + 1)?;
    }
    let Some(mut scope) = entry.scope else { return own(names) };
    let mut frames = Vec::new();
    // Scopes are written before those that refer to them, so that each lies further to the front than the last.
    while frames.len() < MAX_DEPTH {
        if u64::from(scope) >= tables.scopes_bytes {
            return Err(ReadError::Malformed { what: "scope", address: tables.scopes.0 });
        }
        let mut numbers = Numbers::new(reader, plus(tables.scopes, u64::from(scope))?, layout.number_bias());
        let (caller, method) = (numbers.unsigned()?, numbers.unsigned()?);
        let bci = i64::from(numbers.unsigned()?) + FIRST_BCI;
        let slot = u64::from(method).checked_sub(1).filter(|slot| *slot < tables.metadata_count);
        let slot = slot.ok_or(ReadError::Malformed { what: "method of a scope", address: tables.metadata.0 })?;
        let method = reader.pointer(plus(tables.metadata, 8 * slot)?)?;
        frames.push(frame(names, method, u32::try_from(bci).ok())?);
        if caller == 0 {
            return Ok(Position { frames, exact });
        }
        if caller >= scope {
            return Err(ReadError::Malformed { what: "scope of a caller", address: tables.scopes.0 });
        }
        scope = caller;
    }
    Err(ReadError::Malformed { what: "end of scopes", address: tables.scopes.0 })
}

/// A method with its name, file and line.
pub(super) fn frame<M: Memory>(names: &mut Names<'_, M>, method: Avma, bci: Option<u32>) -> Result<Frame, ReadError> {
    // A method is entered at its first bytecode, in what its synchronisation needs as well.
    let line = line(names.layout, names.reader, method, bci.unwrap_or(0))?;
    Ok(Frame { method: names.method(method)?, file: names.file(method)?, bci, line })
}

/// The line of a bytecode.
fn line<M: Memory>(layout: &Layout, reader: &Reader<M>, method: Avma, bci: u32) -> Result<Option<u32>, ReadError> {
    let at = &layout.method;
    let constant = at.const_method.pointer(reader, method)?;
    let bytes = at.code_size.read(reader, constant)?.cast_unsigned();
    if at.const_flags.read(reader, constant)? & at.const_has_lines == 0 {
        return Ok(None);
    }
    let table = plus(plus(constant, at.const_method_bytes)?, bytes)?;
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
    fn of<M: Memory>(layout: &Layout, reader: &Reader<M>, blob: &Blob) -> Result<Self, ReadError> {
        let header = blob.header;
        let number = |field: Field| field.read(reader, header).map(i64::cast_unsigned);
        let between = |from: Avma, to: Avma| {
            let bytes = to.0.checked_sub(from.0).filter(|bytes| *bytes <= MAX_TABLE);
            bytes.ok_or(ReadError::Malformed { what: "table of compiled code", address: from.0 })
        };
        let (pcs, pcs_end, scopes, scopes_end, metadata, metadata_end) = match layout.compiled.debug {
            Debug::Behind { metadata, scopes, pcs, end } => {
                let scopes = scopes.pointer(reader, header)?;
                let pcs = plus(header, number(pcs)?)?;
                (pcs, plus(header, number(end)?)?, scopes, pcs, plus(header, number(metadata)?)?, scopes)
            }
            Debug::Apart { data, size, pcs, scopes, metadata } => {
                let data = data.pointer(reader, header)?;
                let scopes = plus(data, number(scopes)?)?;
                let (metadata, metadata_end) = match metadata {
                    Metadata::Behind(distance) => {
                        let code_end = plus(blob.code, u64::from(blob.code_bytes))?;
                        let end = plus(header, number(layout.blob.size)?)?;
                        (plus(code_end, number(distance)?)?, end)
                    }
                    Metadata::Apart { data, size, relocations } => {
                        let data = data.pointer(reader, header)?;
                        (plus(data, number(relocations)?)?, plus(data, number(size)?)?)
                    }
                };
                (plus(data, number(pcs)?)?, scopes, scopes, plus(data, number(size)?)?, metadata, metadata_end)
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
            if self.entry(layout, reader, middle)?.pc < distance { low = middle + 1 } else { high = middle }
        }
        Ok(low)
    }
}
