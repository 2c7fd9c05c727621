//! What registers its code with a debugger: the list behind `__jit_debug_descriptor`.
//!
//! The interface is GDB's: a version, an action, a pointer to the entry that the action was for and one to the first
//! entry; an entry has the next one, the one before, and the address and the size of an object file in memory. LLVM
//! (MCJIT and ORC), so numba as well, and CPython's JIT fill it without any flag.

mod debug;
mod details;
mod levels;
mod object_file;

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use jitprof_common::units::Avma;
use object::read::elf::{SectionHeader, Sym};
use object::{Object, ObjectSymbol, SymbolKind};

pub use self::details::{Details, Inlined, Lines};
use self::object_file::{Elf, address_of};
use crate::steps::Steps;
use crate::{Memory, ReadError, Reader, Symbols};

/// The symbol of the list's head.
const DESCRIPTOR: &str = "__jit_debug_descriptor";
/// The only version there is.
const VERSION: u32 = 1;
/// Entries of one list.
const MAX_ENTRIES: usize = 1 << 16;
/// Bytes of one object file. LLVM's are a few KiB, with debugging information some MiB.
const MAX_IMAGE: u64 = 16 << 20;
/// Functions of one list that are kept, and bytes of their names.
const MAX_FUNCTIONS: usize = 1 << 16;
const MAX_NAMES: usize = 4 << 20;
/// Bytes of a name; longer ones are cut.
const MAX_NAME: usize = 1 << 10;
/// Bytes of a name that are looked at in the time of a step.
const NAME_BYTES_A_STEP: u64 = 64;
/// Bytes of an object file that are compared at each reading, as the memory of one that was freed is used again: of a
/// larger one, so many of its beginning and of its end, where the headers of sections have the addresses of code.
const COMPARED: usize = 64 << 10;
/// Bytes of a function. What is said to be longer is a place for code: QEMU before 8.0 registers its buffer as one function.
const MAX_FUNCTION: u64 = 16 << 20;
/// No code lies below: the kernel's `mmap_min_addr`.
const MIN_ADDRESS: u64 = 0x10000;

/// An object file in memory. The number is its own for as long as the [`Images`] live.
#[derive(Debug, PartialEq, Eq)]
pub struct Image {
    /// Its number.
    pub id: u64,
    /// Where its entry in the list is.
    pub entry: Avma,
    /// Where it lies.
    pub address: Avma,
    /// Its length in bytes.
    pub size: usize,
    /// Of what is compared of it.
    digest: u64,
    functions: Vec<Function>,
    extent: Extent,
}

/// Which functions of an object file are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// All that it has.
    All,
    /// Not those that could not be understood.
    Part,
    /// There was no room for all: the name of the next one has so many bytes.
    NoRoom(usize),
}

/// A function of an object file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name, as the object file has it.
    pub name: Box<str>,
    /// Where it lies in the process.
    pub address: Avma,
    /// Bytes of its code; 0 if that is not said.
    pub size: u64,
}

impl Image {
    /// Whether this is what lies there now.
    fn is_still_at<M: Memory>(&self, reader: &Reader<M>, address: Avma, size: usize) -> Result<bool, ReadError> {
        if self.address != address || self.size != size {
            return Ok(false);
        }
        let mut digest = DefaultHasher::new();
        for (from, count) in compared(size) {
            let mut now = vec![0; count];
            if reader.now(Avma(address.0.saturating_add(from as u64)), &mut now)? < count {
                return Ok(false);
            }
            digest.write(&now);
        }
        Ok(digest.finish() == self.digest)
    }

    /// The functions that the object file names, with the addresses that its symbols have in the process.
    ///
    /// None, if it is no ELF file of 64 bits that could be understood.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// Whether these are all functions that it has: not if it could not be understood, or one of them has no name or no
    /// address that it could have, or there was no room.
    pub fn names_all(&self) -> bool {
        self.extent == Extent::All
    }

    /// Whether there is room now for one of its functions that found none: for so many, with so many bytes of names.
    fn finds_room(&self, (functions, names): (usize, usize)) -> bool {
        matches!(self.extent, Extent::NoRoom(name) if functions > 0 && name <= names)
    }

    fn name_bytes(&self) -> usize {
        self.functions.iter().map(|function| function.name.len()).sum()
    }
}

/// The parts of an object file that are compared: where in it, and how long.
fn compared(size: usize) -> impl Iterator<Item = (usize, usize)> {
    let part = size.min(COMPARED);
    [(0, part), (size - part, part)].into_iter().take(if part == size { 1 } else { 2 })
}

/// What an object file names, at most so many functions with so many bytes of names, and which functions these are.
///
/// Costs a step of the reading for each symbol, and what its name costs, as far as that may go, whether it is kept or not.
fn functions_in<M: Memory>(
    bytes: &[u8],
    reader: &Reader<M>,
    (mut functions_left, mut names_left): (usize, usize),
) -> Result<(Vec<Function>, Extent), ReadError> {
    let nothing = || Ok((Vec::new(), Extent::Part));
    let Ok(file) = Elf::parse(bytes) else { return nothing() };
    let endian = file.endian();
    let sections = file.elf_section_table();
    let names = sections.section(file.elf_symbol_table().string_section());
    let Some(names) = names.ok().and_then(|section| section.data(endian, bytes).ok()) else { return nothing() };
    let (mut functions, mut extent) = (Vec::new(), Extent::All);
    for symbol in file.symbols() {
        reader.spend(1)?;
        if symbol.kind() != SymbolKind::Text || !symbol.is_definition() {
            continue;
        }
        if symbol.size() > MAX_FUNCTION {
            extent = Extent::Part;
            continue;
        }
        let address = address_of(&file, &symbol).filter(|address| *address >= MIN_ADDRESS);
        let name = name_at(names, symbol.elf_symbol().st_name(endian)).unwrap_or_default();
        reader.spend(name.len() as u64 / NAME_BYTES_A_STEP)?;
        let (Some(address), Some(name)) = (address, printable(name)) else {
            extent = Extent::Part;
            continue;
        };
        if functions_left == 0 || name.len() > names_left {
            extent = Extent::NoRoom(name.len());
            break;
        }
        (functions_left, names_left) = (functions_left - 1, names_left - name.len());
        functions.push(Function { name: name.into(), address: Avma(address), size: symbol.size() });
    }
    Ok((functions, extent))
}

/// What an object file says of its functions beside their names. Costs no more than half of the steps that are left, whatever
/// there is: the names of other object files matter more.
fn details_in<M: Memory>(bytes: &[u8], functions: &[Function], reader: &Reader<M>) -> Result<Vec<Details>, ReadError> {
    let half = reader.left().steps / 2;
    let mut steps = Steps::new(half);
    let details = details::of_functions(bytes, functions, &mut steps);
    reader.spend(half.saturating_sub(steps.left()))?;
    Ok(details)
}

/// The bytes of a name, as far as it may go.
fn name_at(names: &[u8], at: u32) -> Option<&[u8]> {
    let bytes = names.get(usize::try_from(at).ok()?..)?;
    let bytes = &bytes[..bytes.len().min(MAX_NAME)];
    Some(&bytes[..bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len())])
}

/// A name, cut if it is too long, if it can be printed.
fn printable(bytes: &[u8]) -> Option<&str> {
    let name = match bytes.get(..MAX_NAME) {
        // Cut, perhaps within a character.
        Some(cut) => cut.utf8_chunks().next()?.valid(),
        None => std::str::from_utf8(bytes).ok()?,
    };
    // What is printed shall not be able to control a terminal.
    (!name.is_empty() && !name.contains(char::is_control)).then_some(name)
}

/// What is different from the reading before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// An object file that was not there, and what it says of each of its functions.
    Loaded(Arc<Image>, Vec<Details>),
    /// One that is no longer there.
    Unloaded(Arc<Image>),
}

/// What a reading found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// What changed.
    pub changes: Vec<Change>,
    /// Entries whose object file could not be read.
    pub damaged: u32,
    /// Object files that are there of whose functions some found no room: all of them, not those alone that are new.
    pub without_room: u32,
    /// Why the list was not read to its end. What was not come to counts as unchanged.
    pub incomplete: Option<ReadError>,
}

#[derive(Debug)]
struct Known {
    image: Arc<Image>,
    reading: u64,
    /// It has been registered anew, whatever it is like.
    is_void: bool,
}

/// The object files of one process, as they were at the last reading.
#[derive(Debug)]
pub struct Images {
    descriptor: Avma,
    /// By the address of the entry.
    images: HashMap<u64, Known>,
    /// Functions of all of them, and bytes of their names.
    functions: usize,
    name_bytes: usize,
    next_id: u64,
    reading: u64,
}

impl Images {
    /// Finds the list; none if the module has none.
    pub fn find<S: Symbols>(symbols: S) -> Option<Self> {
        let descriptor = symbols.address_of(DESCRIPTOR)?;
        Some(Self { descriptor, images: HashMap::new(), functions: 0, name_bytes: 0, next_id: 0, reading: 0 })
    }

    /// Where the list's head is.
    pub fn descriptor(&self) -> Avma {
        self.descriptor
    }

    /// Bytes that are kept, nearly.
    pub fn bytes(&self) -> usize {
        self.images.len() * 128 + self.functions * size_of::<Function>() + self.name_bytes
    }

    /// The object files that there are.
    pub fn images(&self) -> impl Iterator<Item = &Arc<Image>> {
        self.images.values().map(|known| &known.image)
    }

    /// An entry was registered since the last reading: what lies there counts as new, though it may be the same.
    pub fn read_anew(&mut self, entry: Avma) {
        if let Some(known) = self.images.get_mut(&entry.0) {
            known.is_void = true;
        }
    }

    /// Reads what there is now. Object files that were there before are not read again, but for their beginning.
    pub fn update<M: Memory>(&mut self, reader: &Reader<M>) -> Update {
        self.reading += 1;
        reader.refresh();
        let mut update = Update { changes: Vec::new(), damaged: 0, without_room: 0, incomplete: None };
        update.incomplete = self.read_list(reader, &mut update).err();
        if update.incomplete.is_none() {
            let reading = self.reading;
            let gone: Vec<_> = self.images.extract_if(|_, known| known.reading != reading).collect();
            for (_, known) in gone {
                self.end(known.image, &mut update);
            }
        }
        let without_room = self.images().filter(|image| matches!(image.extent, Extent::NoRoom(_))).count();
        update.without_room = u32::try_from(without_room).unwrap_or(u32::MAX);
        // What came may lie where something went, whatever their places in the list are.
        update.changes.sort_by_key(|change| matches!(change, Change::Loaded(..)));
        update
    }

    fn read_list<M: Memory>(&mut self, reader: &Reader<M>, update: &mut Update) -> Result<(), ReadError> {
        let malformed =
            |address: Avma| ReadError::Malformed { what: "list of a debugger's object files", address: address.0 };
        let version = reader.u32(self.descriptor)?;
        // A list that is not in use yet has no version either.
        if version > VERSION {
            return Err(malformed(self.descriptor));
        }
        let mut next = reader.pointer(Avma(self.descriptor.0.saturating_add(16)))?;
        let mut seen = HashSet::new();
        while next.0 != 0 {
            if seen.len() == MAX_ENTRIES || !seen.insert(next.0) {
                return Err(malformed(next));
            }
            let entry = next;
            next = reader.pointer(entry)?;
            let word = |offset: u64| reader.u64(Avma(entry.0.saturating_add(offset)));
            let (address, size) = (Avma(word(16)?), word(24)?);
            if size == 0 || size > MAX_IMAGE {
                update.damaged += 1;
                continue;
            }
            match self.read_image(reader, entry, (address, size), update) {
                Ok(()) => {}
                Err(ReadError::OverBudget) => return Err(ReadError::OverBudget),
                Err(_) => update.damaged += 1,
            }
        }
        Ok(())
    }

    fn read_image<M: Memory>(
        &mut self,
        reader: &Reader<M>,
        entry: Avma,
        (address, size): (Avma, u64),
        update: &mut Update,
    ) -> Result<(), ReadError> {
        let size = usize::try_from(size).map_err(|_| ReadError::OverBudget)?;
        let room = self.room();
        if let Some(known) = self.images.get_mut(&entry.0)
            && !known.is_void
            && !known.image.finds_room(room)
            && known.image.is_still_at(reader, address, size)?
        {
            known.reading = self.reading;
            return Ok(());
        }
        if let Some(gone) = self.images.remove(&entry.0) {
            self.end(gone.image, update);
        }
        let pages = u64::from(reader.left().pages) * 4096;
        if size as u64 > pages {
            return Err(ReadError::OverBudget);
        }
        let mut bytes = vec![0; size];
        if reader.now(address, &mut bytes)? < size {
            return Err(ReadError::Unreadable(address.0));
        }
        let room = self.room();
        let (functions, extent) = functions_in(&bytes, reader, room)?;
        let details = details_in(&bytes, &functions, reader)?;
        let mut digest = DefaultHasher::new();
        compared(size).for_each(|(from, count)| digest.write(&bytes[from..from + count]));
        self.next_id += 1;
        let (id, digest) = (self.next_id, digest.finish());
        let image = Arc::new(Image { id, entry, address, size, digest, functions, extent });
        self.functions += image.functions.len();
        self.name_bytes += image.name_bytes();
        self.images.insert(entry.0, Known { image: image.clone(), reading: self.reading, is_void: false });
        update.changes.push(Change::Loaded(image, details));
        Ok(())
    }

    /// How many more functions there is room for, and bytes of their names.
    fn room(&self) -> (usize, usize) {
        (MAX_FUNCTIONS.saturating_sub(self.functions), MAX_NAMES.saturating_sub(self.name_bytes))
    }

    /// An object file is there no more.
    fn end(&mut self, image: Arc<Image>, update: &mut Update) {
        self.functions = self.functions.saturating_sub(image.functions.len());
        self.name_bytes = self.name_bytes.saturating_sub(image.name_bytes());
        update.changes.push(Change::Unloaded(image));
    }
}

#[cfg(test)]
mod tests;
