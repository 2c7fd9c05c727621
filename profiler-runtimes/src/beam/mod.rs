//! Erlang's modules in the memory of a running emulator with its JIT (BeamAsm): which functions there are, where, and from
//! which lines of source their code is.
//!
//! ```text
//! ranges[3]       modules → {start, end}[n], n, allocated, mid      one of each generation of the code, of which one is in force
//! module header   at start: n functions, … line table, … functions → ErtsCodeInfo[n + 1]
//! ErtsCodeInfo    a call, 8 bytes, module, function, arity; 8 bytes behind it code begins
//! ```
//!
//! Debian's OTP 29 exports none of these, so all are found by their shape among the emulator's own data; [`Layout`] says
//! how.

mod layout;
mod reloads;
#[cfg(test)]
mod replay;
mod schedulers;
mod shared;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use jitprof_common::units::Avma;

use self::layout::Header;
pub use self::layout::{Layout, LayoutError};
pub use self::reloads::Reloads;
pub use self::schedulers::Schedulers;
pub use self::shared::{Shared, SharedKind};
use crate::{Memory, ReadError, Reader};

/// Functions of one module that are believed.
const MAX_FUNCTIONS: u64 = 1 << 16;
/// Functions of one process that are kept; a large application has 100,000.
const MAX_ALL_FUNCTIONS: usize = 1 << 17;
/// Bytes of one module's code.
const MAX_MODULE_BYTES: u64 = 64 << 20;
/// Rows of lines of one module.
const MAX_LINES: u64 = 1 << 18;
/// Files that the lines of one module are of: one, but for what it includes.
const MAX_FILES: u64 = 256;
/// Characters of a file's name.
const MAX_FILE_NAME: usize = 512;
/// Functions of a module whose names are compared at each reading.
const DIGESTED: usize = 64;
/// Bytes of the names of atoms that are kept; others are read again.
const MAX_ATOM_BYTES: usize = 4 << 20;
/// Bytes of names and lines of one process. OTP's own modules have 2 MB.
const MAX_BYTES: usize = 32 << 20;
/// Readings in which code that modules share is looked for: the first ones may have used up their budget before.
const MAX_TRIES: u32 = 4;

/// From a function's `ErtsCodeInfo` to what it is called.
const NAME: u64 = 16;

/// A function of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// As Erlang writes it: `lists:map/2`, `'Elixir.Enum':map/2`.
    pub name: Box<str>,
    /// The first byte of what belongs to it: data, and then code.
    pub start: Avma,
    /// Bytes up to the next one.
    pub size: u32,
    /// By offset.
    pub lines: Vec<Line>,
}

/// A line of source, and from where on code is of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Bytes behind the function's first one.
    pub offset: u32,
    /// The line; 0 if it is not known.
    pub line: u32,
    /// Which of the module's files it is of.
    pub file: u32,
}

/// The lines of a module, function by function, and their files.
#[derive(Default)]
struct Lines {
    of_functions: Vec<Vec<Line>>,
    files: Vec<Arc<str>>,
}

/// A module that is loaded.
#[derive(Debug, PartialEq, Eq)]
pub struct Module {
    /// First byte.
    pub start: Avma,
    /// Behind its last byte.
    pub end: Avma,
    /// In order.
    pub functions: Vec<Function>,
    /// The files that it was compiled from.
    pub files: Vec<Arc<str>>,
    /// Of its header, as it was.
    digest: u64,
}

/// What is different from the reading before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A module that was not there.
    Loaded(Arc<Module>),
    /// One that is no longer there.
    Unloaded(Arc<Module>),
}

/// What a reading found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// What changed: first what is gone.
    pub changes: Vec<Change>,
    /// Code that the modules share, the first time that it is found.
    pub shared: Vec<Shared>,
    /// Modules that could not be read.
    pub damaged: u32,
    /// Why not everything was looked at. What was not come to counts as unchanged.
    pub incomplete: Option<ReadError>,
}

/// The modules of one process, as they were at the last reading.
#[derive(Debug, Default)]
pub struct Modules {
    /// By their first byte.
    known: BTreeMap<u64, Arc<Module>>,
    atoms: HashMap<u64, Arc<str>>,
    atom_bytes: usize,
    functions: usize,
    /// Bytes of names and lines.
    bytes: usize,
    /// How often what modules jump to outside of them is still looked for; it is once.
    tries: u32,
}

impl Modules {
    /// Bytes that are kept, nearly.
    pub fn bytes(&self) -> usize {
        self.bytes + self.atom_bytes + self.known.len() * size_of::<Module>()
    }

    /// The modules that there are.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Module>> {
        self.known.values()
    }

    /// Reads what there is now. Of modules that were there before only the headers are read again.
    pub fn update<M: Memory>(&mut self, layout: &Layout, reader: &Reader<M>) -> Update {
        reader.refresh();
        let mut update = Update { changes: Vec::new(), shared: Vec::new(), damaged: 0, incomplete: None };
        match layout.ranges(reader) {
            Ok(ranges) => update.incomplete = self.read_modules(&ranges, layout, reader, &mut update).err(),
            Err(error) => update.incomplete = Some(error),
        }
        update.changes.sort_by_key(|change| matches!(change, Change::Loaded(_)));
        if update.incomplete.is_none() && self.tries < MAX_TRIES {
            // The modules are known without it, and stay so.
            match self.shared(layout, reader) {
                Ok(shared) => (update.shared, self.tries) = (shared, MAX_TRIES),
                Err(_) => self.tries += 1,
            }
        }
        update
    }

    fn read_modules<M: Memory>(
        &mut self,
        ranges: &BTreeMap<u64, u64>,
        layout: &Layout,
        reader: &Reader<M>,
        update: &mut Update,
    ) -> Result<(), ReadError> {
        let gone: Vec<u64> = self
            .known
            .values()
            .filter(|known| ranges.get(&known.start.0) != Some(&known.end.0))
            .map(|known| known.start.0)
            .collect();
        gone.into_iter().for_each(|start| self.end(start, update));
        for (&start, &end) in ranges {
            match self.read_module(Avma(start), Avma(end), layout, reader, update) {
                Ok(()) => {}
                Err(ReadError::OverBudget) => return Err(ReadError::OverBudget),
                Err(_) => {
                    self.end(start, update);
                    update.damaged = update.damaged.saturating_add(1);
                }
            }
        }
        Ok(())
    }

    fn read_module<M: Memory>(
        &mut self,
        start: Avma,
        end: Avma,
        layout: &Layout,
        reader: &Reader<M>,
        update: &mut Update,
    ) -> Result<(), ReadError> {
        let header = layout.header(start, end, reader)?;
        let digest = digest_of(&header, reader)?;
        if self.known.get(&start.0).is_some_and(|known| known.digest == digest) {
            return Ok(());
        }
        self.end(start.0, update);
        if self.functions.saturating_add(header.functions.len()) > MAX_ALL_FUNCTIONS {
            return Err(ReadError::Malformed { what: "room for so many functions", address: start.0 });
        }
        let mut lines = match self.lines(start, &header.functions, layout, reader) {
            Err(ReadError::OverBudget) => return Err(ReadError::OverBudget),
            // There are none, or none that can be read.
            lines => lines.ok().flatten().unwrap_or_default(),
        };
        let mut functions: Vec<Function> = Vec::with_capacity(header.functions.len());
        let mut bytes = self.bytes;
        for (at, bounds) in header.functions.windows(2).enumerate() {
            let (first, size) = (bounds[0], bounds[1] - bounds[0]);
            let Some(name) = self.name_of(first, layout, reader)? else { continue };
            let size = u32::try_from(size).map_err(|_| malformed("function", first))?;
            let lines = lines.of_functions.get_mut(at).map(std::mem::take).unwrap_or_default();
            let function = Function { name, start: Avma(first), size, lines };
            bytes = bytes.saturating_add(function.bytes());
            if bytes > MAX_BYTES {
                return Err(malformed("room for so long names", start.0));
            }
            functions.push(function);
        }
        let files = lines.files;
        let module = Arc::new(Module { start, end, functions, files, digest });
        self.functions += module.functions.len();
        self.bytes += module.bytes();
        self.known.insert(start.0, Arc::clone(&module));
        update.changes.push(Change::Loaded(module));
        Ok(())
    }

    /// What the modules share.
    fn shared<M: Memory>(&self, layout: &Layout, reader: &Reader<M>) -> Result<Vec<Shared>, ReadError> {
        let Some(own) = layout.own() else { return Ok(Vec::new()) };
        let code = self.known.values().filter_map(|module| {
            let (first, last) = (module.functions.first()?, module.functions.last()?);
            Some(first.start.0..last.start.0.saturating_add(u64::from(last.size)))
        });
        shared::find(own, code, reader)
    }

    /// A module is there no more.
    fn end(&mut self, start: u64, update: &mut Update) {
        if let Some(module) = self.known.remove(&start) {
            self.functions = self.functions.saturating_sub(module.functions.len());
            self.bytes = self.bytes.saturating_sub(module.bytes());
            update.changes.push(Change::Unloaded(module));
        }
    }

    /// What a function is called; nothing for what is no function.
    fn name_of<M: Memory>(
        &mut self,
        info: u64,
        layout: &Layout,
        reader: &Reader<M>,
    ) -> Result<Option<Box<str>>, ReadError> {
        let mut words = [0; 24];
        reader.bytes(Avma(info.saturating_add(NAME)), &mut words)?;
        let [module, function, arity] = words_of(&words)[..] else { return Ok(None) };
        if arity > 255 {
            return Ok(None);
        }
        let (Some(module), Some(function)) = (self.atom(module, layout, reader)?, self.atom(function, layout, reader)?)
        else {
            return Ok(None);
        };
        Ok(Some(format!("{module}:{function}/{arity}").into()))
    }

    /// An atom as Erlang writes it.
    fn atom<M: Memory>(
        &mut self,
        term: u64,
        layout: &Layout,
        reader: &Reader<M>,
    ) -> Result<Option<Arc<str>>, ReadError> {
        if let Some(known) = self.atoms.get(&term) {
            return Ok(Some(Arc::clone(known)));
        }
        let Some(text) = layout.atom(term, reader)? else { return Ok(None) };
        let text: Arc<str> = quoted(&text).into();
        let bytes = size_of::<(u64, Arc<str>)>() + text.len();
        if self.atom_bytes.saturating_add(bytes) <= MAX_ATOM_BYTES {
            self.atom_bytes += bytes;
            self.atoms.insert(term, Arc::clone(&text));
        }
        Ok(Some(text))
    }

    /// The lines of a module, which may have none.
    fn lines<M: Memory>(
        &self,
        start: Avma,
        functions: &[u64],
        layout: &Layout,
        reader: &Reader<M>,
    ) -> Result<Option<Lines>, ReadError> {
        let table = reader.pointer(Avma(start.0.saturating_add(Layout::LINE_TABLE)))?;
        if table.0 == 0 {
            return Ok(None);
        }
        let mut head = [0; 24];
        reader.bytes(table, &mut head)?;
        let [names, width, places] = words_of(&head)[..] else { return Ok(None) };
        let width = width & u64::from(u32::MAX);
        if width != 2 && width != 4 {
            return Ok(None);
        }
        // For each function where its rows begin; behind the last one they end.
        let bounds = words(reader, Avma(table.0.saturating_add(24)), functions.len() as u64)?;
        let (Some(first), Some(last)) = (bounds.first(), bounds.last()) else { return Ok(None) };
        let count = last.checked_sub(*first).map(|bytes| bytes / 8).filter(|count| *count <= MAX_LINES);
        let Some(count) = count.filter(|_| bounds.is_sorted()) else { return Ok(None) };
        let addresses = words(reader, Avma(*first), count)?;
        let mut locations = vec![0; usize::try_from(count * width).unwrap_or(0)];
        reader.bytes(Avma(places), &mut locations)?;
        let location = |at: usize| match width {
            2 => locations.get(2 * at..)?.first_chunk().map(|bytes| u32::from(u16::from_le_bytes(*bytes))),
            _ => locations.get(4 * at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes)),
        };
        let mut used = BTreeMap::new();
        let mut rows = Vec::with_capacity(functions.len());
        for (code, bounds) in functions.windows(2).zip(bounds.windows(2)) {
            let index = |bound: u64| usize::try_from((bound - first) / 8).unwrap_or(usize::MAX);
            let (from, to) = (index(bounds[0]), index(bounds[1]));
            let own = addresses.get(from..to).unwrap_or_default();
            let mut of_function = Vec::with_capacity(own.len());
            for (at, address) in own.iter().enumerate() {
                reader.spend(1)?;
                let Some(location) = location(from + at) else { continue };
                let next_file = u32::try_from(used.len()).unwrap_or(u32::MAX);
                let file = *used.entry(location >> 24).or_insert(next_file);
                let offset = address.clamp(&code[0], &code[1]) - code[0];
                let offset = u32::try_from(offset).unwrap_or(u32::MAX);
                of_function.push(Line { offset, line: location & 0xff_ffff, file });
            }
            of_function.sort_by_key(|line| line.offset);
            rows.push(of_function);
        }
        if used.len() as u64 > MAX_FILES {
            return Ok(None);
        }
        let mut files: Vec<Arc<str>> = vec!["".into(); used.len()];
        for (file, at) in used {
            let term = reader.u64(Avma(names.saturating_add(8 * u64::from(file))))?;
            if let Some(text) = layout.text(term, MAX_FILE_NAME, reader)? {
                files[at as usize] = text.into();
            }
        }
        Ok(Some(Lines { of_functions: rows, files }))
    }
}

impl Function {
    /// Bytes of data before the code of each.
    pub const HEAD: u32 = 40;

    fn bytes(&self) -> usize {
        size_of::<Self>() + self.name.len() + self.lines.capacity() * size_of::<Line>()
    }
}

impl Module {
    fn bytes(&self) -> usize {
        let functions = self.functions.iter().map(Function::bytes).sum::<usize>();
        functions + self.files.iter().map(|file| file.len()).sum::<usize>()
    }
}

/// Of what a header says, and of what so many of its functions are called: of two modules made from one template, which lie
/// at the same place one after the other, nothing else need differ.
fn digest_of<M: Memory>(header: &Header, reader: &Reader<M>) -> Result<u64, ReadError> {
    let mut digest = DefaultHasher::new();
    header.fixed.iter().chain(&header.functions).for_each(|word| digest.write_u64(*word));
    let count = header.functions.len().saturating_sub(1);
    for info in header.functions.iter().take(count).step_by(count.div_ceil(DIGESTED).max(1)) {
        let mut name = [0; 24];
        reader.bytes(Avma(info.saturating_add(NAME)), &mut name)?;
        digest.write(&name);
    }
    Ok(digest.finish())
}

/// So many words from an address on.
fn words<M: Memory>(reader: &Reader<M>, at: Avma, count: u64) -> Result<Vec<u64>, ReadError> {
    let too_many = || ReadError::Malformed { what: "table", address: at.0 };
    let bytes = count.checked_mul(8).and_then(|bytes| usize::try_from(bytes).ok()).ok_or_else(too_many)?;
    reader.spend(count)?;
    let mut read = vec![0; bytes];
    reader.bytes(at, &mut read)?;
    Ok(words_of(&read))
}

fn words_of(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

fn malformed(what: &'static str, address: u64) -> ReadError {
    ReadError::Malformed { what, address }
}

/// An atom in quotes, if it needs any.
fn quoted(atom: &str) -> String {
    let is_plain = |text: &str| {
        let mut letters = text.chars();
        letters.next().is_some_and(|first| first.is_lowercase())
            && letters.all(|letter| letter.is_alphanumeric() || matches!(letter, '_' | '@'))
    };
    if is_plain(atom) { atom.to_owned() } else { format!("'{}'", atom.replace('\\', "\\\\").replace('\'', "\\'")) }
}
