//! The tables of a pprof file, over its bytes.

use std::borrow::Cow;
use std::collections::HashMap;

use super::error::PprofError;
use super::sources::ReadLimits;
use super::wire::{Message, Value};

/// Entries by id. Writers count ids from 1, but may choose them.
#[derive(Debug)]
pub(super) struct ById<T> {
    entries: Vec<T>,
    /// Where ids are not their entry's position + 1. Keys come from the file, so the hasher is the default one.
    ids: Option<HashMap<u64, usize>>,
}

impl<T> ById<T> {
    fn new() -> Self {
        Self { entries: Vec::new(), ids: None }
    }

    fn add(&mut self, id: u64, entry: T) {
        let position = self.entries.len();
        if self.ids.is_none() && id != as_u64(position).saturating_add(1) {
            self.ids = Some((0..position).map(|at| (as_u64(at).saturating_add(1), at)).collect());
        }
        if let Some(ids) = &mut self.ids {
            ids.insert(id, position);
        }
        self.entries.push(entry);
    }

    /// The position of an id's entry.
    pub(super) fn position(&self, id: u64) -> Option<usize> {
        match &self.ids {
            Some(ids) => ids.get(&id).copied(),
            None => usize::try_from(id).ok()?.checked_sub(1).filter(|at| *at < self.entries.len()),
        }
    }

    /// The entry of an id.
    pub(super) fn get(&self, id: u64) -> Option<&T> {
        self.entries.get(self.position(id)?)
    }

    /// The entry at a position that [`Self::position`] gave.
    pub(super) fn at(&self, position: usize) -> Option<&T> {
        self.entries.get(position)
    }

    /// The entries in the order of the file.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter()
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

/// A file that code came from.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) file: u64,
    pub(super) build_id: u64,
}

/// A place in code; its lines stand in [`Tables::lines`].
#[derive(Debug)]
pub(super) struct Location {
    pub(super) offset: usize,
    pub(super) mapping: u64,
    pub(super) address: u64,
    pub(super) lines: std::ops::Range<usize>,
    pub(super) inlined: bool,
}

/// A function at a line.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) offset: usize,
    pub(super) function: u64,
    pub(super) line: u64,
    pub(super) column: u64,
}

/// A function, its texts as indices of the string table.
#[derive(Debug, Default)]
pub(super) struct FunctionEntry {
    pub(super) name: u64,
    pub(super) system_name: u64,
    pub(super) file: u64,
    pub(super) kind: u64,
}

/// What a number means.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ValueType {
    pub(super) kind: u64,
    pub(super) unit: u64,
}

/// Everything but the samples, of which only the places are kept.
#[derive(Debug)]
pub(super) struct Tables<'a> {
    pub(super) whole: Message<'a>,
    pub(super) strings: Vec<Cow<'a, str>>,
    pub(super) mappings: ById<Mapping>,
    pub(super) locations: ById<Location>,
    pub(super) lines: Vec<Line>,
    pub(super) functions: ById<FunctionEntry>,
    pub(super) sample_types: Vec<ValueType>,
    pub(super) default_type: u64,
    pub(super) period_type: Option<ValueType>,
    pub(super) period: u64,
    pub(super) time_ns: u64,
    pub(super) duration_ns: u64,
    pub(super) comments: Vec<u64>,
    /// Version of jitprof's own fields; 0 in other programs' files.
    pub(super) jitprof: u64,
    pub(super) parts: Vec<u64>,
    limits: ReadLimits,
}

/// Sample types that are taken; runtimes have four at most.
const MAX_TYPES: usize = 64;

impl<'a> Tables<'a> {
    pub(super) fn parse(raw: &'a [u8], limits: ReadLimits) -> Result<Self, PprofError> {
        let whole = Message { bytes: raw, offset: 0, name: "profile" };
        let mut tables = Self {
            whole,
            strings: Vec::new(),
            mappings: ById::new(),
            locations: ById::new(),
            lines: Vec::new(),
            functions: ById::new(),
            sample_types: Vec::new(),
            default_type: 0,
            period_type: None,
            period: 0,
            time_ns: 0,
            duration_ns: 0,
            comments: Vec::new(),
            jitprof: 0,
            parts: Vec::new(),
            limits,
        };
        whole.fields(|number, value| tables.field(number, value))?;
        if tables.strings.is_empty() {
            return Err(whole.fault(0, "there is no table of strings"));
        }
        Ok(tables)
    }

    fn field(&mut self, number: u32, value: Value<'a>) -> Result<(), PprofError> {
        let (whole, limit) = (self.whole, self.limits.entries);
        match number {
            1 => {
                let bytes = value.bytes(whole, "sample type")?;
                fits(self.sample_types.len(), bytes, MAX_TYPES)?;
                self.sample_types.push(value_type(bytes)?);
            }
            3 => self.mapping(value.bytes(whole, "mapping")?)?,
            4 => self.location(value.bytes(whole, "location")?)?,
            5 => self.function(value.bytes(whole, "function")?)?,
            6 => {
                let bytes = value.bytes(whole, "string")?;
                fits(self.strings.len(), bytes, self.limits.entries)?;
                self.strings.push(String::from_utf8_lossy(bytes.bytes));
            }
            9 => self.time_ns = value.number(whole)?,
            10 => self.duration_ns = value.number(whole)?,
            11 => self.period_type = Some(value_type(value.bytes(whole, "period type")?)?),
            12 => self.period = value.number(whole)?,
            13 => value.repeated(whole, "comment", |number| push(&mut self.comments, number, whole, limit))?,
            14 => self.default_type = value.number(whole)?,
            1000 => self.jitprof = value.number(whole)?,
            1001 => value.repeated(whole, "part", |number| push(&mut self.parts, number, whole, limit))?,
            _ => {}
        }
        Ok(())
    }

    fn mapping(&mut self, message: Message<'a>) -> Result<(), PprofError> {
        fits(self.mappings.len(), message, self.limits.entries)?;
        let (mut id, mut file, mut build_id) = (0, 0, 0);
        message.fields(|number, value| {
            match number {
                1 => id = value.number(message)?,
                5 => file = value.number(message)?,
                6 => build_id = value.number(message)?,
                _ => {}
            }
            Ok(())
        })?;
        self.mappings.add(id, Mapping { file, build_id });
        Ok(())
    }

    fn location(&mut self, message: Message<'a>) -> Result<(), PprofError> {
        fits(self.locations.len(), message, self.limits.entries)?;
        let (mut id, first) = (0, self.lines.len());
        let mut location =
            Location { offset: message.offset, mapping: 0, address: 0, lines: first..first, inlined: false };
        message.fields(|number, value| {
            match number {
                1 => id = value.number(message)?,
                2 => location.mapping = value.number(message)?,
                3 => location.address = value.number(message)?,
                4 => {
                    let bytes = value.bytes(message, "line")?;
                    fits(self.lines.len(), bytes, self.limits.entries)?;
                    self.lines.push(line(bytes)?);
                }
                1000 => location.inlined = value.number(message)? != 0,
                _ => {}
            }
            Ok(())
        })?;
        location.lines = first..self.lines.len();
        self.locations.add(id, location);
        Ok(())
    }

    fn function(&mut self, message: Message<'a>) -> Result<(), PprofError> {
        fits(self.functions.len(), message, self.limits.entries)?;
        let (mut id, mut function) = (0, FunctionEntry::default());
        message.fields(|number, value| {
            match number {
                1 => id = value.number(message)?,
                2 => function.name = value.number(message)?,
                3 => function.system_name = value.number(message)?,
                4 => function.file = value.number(message)?,
                1000 => function.kind = value.number(message)?,
                _ => {}
            }
            Ok(())
        })?;
        self.functions.add(id, function);
        Ok(())
    }

    /// A string; an error at `offset` if there is none of that index.
    pub(super) fn string(&self, index: u64, field: &'static str, offset: usize) -> Result<&str, PprofError> {
        let at = usize::try_from(index).ok();
        let string = at.and_then(|at| self.strings.get(at));
        string.map(|string| &**string).ok_or(PprofError::Index { field, offset, what: "string", index })
    }

    /// Calls `visit` with every sample.
    pub(super) fn samples(
        &self,
        mut visit: impl FnMut(Message<'a>) -> Result<(), PprofError>,
    ) -> Result<(), PprofError> {
        self.whole.fields(|number, value| match number {
            2 => visit(value.bytes(self.whole, "sample")?),
            _ => Ok(()),
        })
    }
}

fn line(message: Message<'_>) -> Result<Line, PprofError> {
    let mut line = Line { offset: message.offset, function: 0, line: 0, column: 0 };
    message.fields(|number, value| {
        match number {
            1 => line.function = value.number(message)?,
            2 => line.line = value.number(message)?,
            3 => line.column = value.number(message)?,
            _ => {}
        }
        Ok(())
    })?;
    Ok(line)
}

fn value_type(message: Message<'_>) -> Result<ValueType, PprofError> {
    let mut value_type = ValueType::default();
    message.fields(|number, value| {
        match number {
            1 => value_type.kind = value.number(message)?,
            2 => value_type.unit = value.number(message)?,
            _ => {}
        }
        Ok(())
    })?;
    Ok(value_type)
}

fn fits(count: usize, message: Message<'_>, limit: usize) -> Result<(), PprofError> {
    if count < limit {
        return Ok(());
    }
    Err(PprofError::TooMany { field: message.name, offset: message.offset, limit })
}

fn push(numbers: &mut Vec<u64>, number: u64, message: Message<'_>, limit: usize) -> Result<(), PprofError> {
    fits(numbers.len(), message, limit)?;
    numbers.push(number);
    Ok(())
}

fn as_u64(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
