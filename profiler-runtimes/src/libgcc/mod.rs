//! Unwinding data that is registered with libgcc (`__register_frame` and its like), as JITs do for exceptions: LLVM's,
//! wasmtime's, LuaJIT's. It says how code is unwound, and has no names.
//!
//! Where libgcc keeps what was registered, no symbol says. So each word of its variables is tried: there are two shapes, up to
//! GCC 12 and from 13 on, and 12.2's and 14.2's were read in processes. LLVM's libunwind has another registry
//! (`__unw_add_dynamic_fde`), which is not read; nor is a libgcc that is a part of a program.

mod search;

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hasher};
use std::ops::Range;

use gimli::Vendor;
use jitprof_common::machine::Machine;
use jitprof_common::units::Avma;

use self::search::Search;
use crate::frames::{Frame, Frames};
use crate::steps::Steps;
use crate::{Memory, ReadError, Reader, Symbols};

/// A function by which libgcc's module is known.
const REGISTER: &str = "__register_frame_info_bases";
/// Bytes of the module's variables; libgcc has some hundred, and a program that it is a part of has too much to be searched.
const MAX_DATA: u64 = 64 << 10;
/// Bytes of one `.eh_frame`; wasmtime registers one for each module.
const MAX_SECTION: u64 = 4 << 20;
/// Functions of one registry that are kept.
const MAX_FUNCTIONS: usize = 1 << 16;
/// Bytes of a function. What is said to be longer is no function.
const MAX_FUNCTION: u32 = 16 << 20;
/// Bytes of a section that are compared in the time of a step.
const BYTES_A_STEP: u64 = 64;
/// Steps with which any section is read that a compiler has made: it needs less than one for each byte, and less than so many for
/// the functions that are kept. Half of what a whole reading may cost is more.
const MAX_STEPS: u64 = 1_700_000;
/// Readings in turn that do not come to their end, after which nothing of what was read before is believed.
const MAX_INCOMPLETE: u32 = 8;

/// A function with unwinding data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its first byte.
    pub start: Avma,
    /// Bytes of its code, one at least.
    pub size: u32,
    /// How it is unwound.
    pub frame: Frame,
}

/// What is different from the reading before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Update {
    /// Functions that are there no more, by their first byte. They went before others came.
    pub gone: Vec<Avma>,
    /// Functions that were not there.
    pub come: Vec<Function>,
    /// Registrations that could not be read, or found no room: all that this reading knows of, not those alone that are new.
    pub damaged: u32,
    /// Why not all was read. What was not come to counts as unchanged.
    pub incomplete: Option<ReadError>,
}

/// A section that is registered.
#[derive(Debug)]
struct Known {
    /// Its bytes, with its end.
    size: usize,
    digest: u64,
    /// The functions that it has, and no other one.
    functions: Vec<u64>,
    /// How many more it has, at least, which found no room, say nothing, or are too dear.
    lost: u32,
    /// Some of these found no room.
    lacks_room: bool,
}

/// What is registered with one libgcc of a process, as it was at the last reading.
#[derive(Debug)]
pub struct Registry {
    data: Range<Avma>,
    /// By address.
    sections: HashMap<u64, Known>,
    /// Which section has the function at an address.
    owners: HashMap<u64, u64>,
    incomplete: u32,
}

impl Registry {
    /// Takes up a module with its variables; none if it is no libgcc of its own.
    pub fn find<S: Symbols>(symbols: S, data: Range<Avma>) -> Option<Self> {
        symbols.address_of(REGISTER)?;
        let size = data.end.0.checked_sub(data.start.0)?;
        let registry = Self { data, sections: HashMap::new(), owners: HashMap::new(), incomplete: 0 };
        (size <= MAX_DATA).then_some(registry)
    }

    /// Where the module's variables are.
    pub fn data(&self) -> &Range<Avma> {
        &self.data
    }

    /// Whether nothing was registered at the last reading.
    pub fn is_empty(&self) -> bool {
        self.sections.is_empty()
    }

    /// Bytes that are kept, nearly.
    pub fn bytes(&self) -> usize {
        self.sections.len() * 96 + self.owners.len() * 32
    }

    /// Whether anything is registered now, or may be: it is being changed, or there was too much to be read.
    pub fn is_used<M: Memory>(&self, reader: &Reader<M>) -> bool {
        let mut search = Search::new(reader);
        search.all(&self.data).is_err() || !search.sections.is_empty()
    }

    /// Reads what there is now. Sections that were there before are compared, and read again where they have changed.
    pub fn update<M: Memory>(&mut self, reader: &Reader<M>) -> Update {
        reader.refresh();
        let mut update = Update::default();
        let mut search = Search::new(reader);
        let mut ended = search.all(&self.data);
        update.damaged = search.damaged;
        let sections = search.sections;
        if ended.is_ok() {
            ended = self.drop_gone(reader, &sections, &mut update.gone);
        }
        if ended.is_ok() {
            ended = self.take_new(reader, &sections, &mut update);
        }
        let lost = self.sections.values().map(|known| known.lost);
        update.damaged = lost.fold(update.damaged, u32::saturating_add);
        update.incomplete = ended.err();
        self.incomplete = if update.incomplete.is_some() { self.incomplete + 1 } else { 0 };
        if self.incomplete >= MAX_INCOMPLETE {
            update.gone.extend(self.owners.drain().map(|(start, _)| Avma(start)));
            self.sections.clear();
            self.incomplete = 0;
        }
        update
    }

    /// Drops what is registered no more, or has changed.
    fn drop_gone<M: Memory>(
        &mut self,
        reader: &Reader<M>,
        sections: &BTreeSet<u64>,
        gone: &mut Vec<Avma>,
    ) -> Result<(), ReadError> {
        let (mut ended, mut lost) = (Ok(()), Vec::new());
        for (address, known) in &self.sections {
            let is_there = if sections.contains(address) { known.is_still_at(*address, reader) } else { Ok(false) };
            match is_there {
                Ok(true) => {}
                Ok(false) => lost.push(*address),
                Err(error) => {
                    ended = Err(error);
                    break;
                }
            }
        }
        for address in lost {
            let Some(known) = self.sections.remove(&address) else { continue };
            self.disown(&known.functions);
            gone.extend(known.functions.into_iter().map(Avma));
        }
        ended
    }

    /// Takes those that are new, and of those that are known what had found no room.
    fn take_new<M: Memory>(
        &mut self,
        reader: &Reader<M>,
        sections: &BTreeSet<u64>,
        update: &mut Update,
    ) -> Result<(), ReadError> {
        let mut ended = Ok(());
        for address in sections {
            let has_room = self.owners.len() < MAX_FUNCTIONS;
            if self.sections.get(address).is_some_and(|known| !(known.lacks_room && has_room)) {
                continue;
            }
            match self.take_section(reader, *address, update) {
                Ok(()) => {}
                // Those behind it may need less.
                Err(ReadError::OverBudget) => ended = Err(ReadError::OverBudget),
                Err(_) => update.damaged += 1,
            }
        }
        ended
    }

    fn take_section<M: Memory>(
        &mut self,
        reader: &Reader<M>,
        address: u64,
        update: &mut Update,
    ) -> Result<(), ReadError> {
        let bytes = section(reader, address)?;
        let (size, digest) = (bytes.len(), digest(&bytes));
        let before = self.sections.get(&address);
        if before.is_some_and(|before| before.digest != digest) {
            // It has changed since it was compared, which the next reading finds.
            return Ok(());
        }
        let mut known = Known { size, digest, functions: Vec::new(), lost: 0, lacks_room: false };
        let half = reader.left().steps / 2;
        let mut steps = Steps::new(half);
        let come = self.take_functions((bytes.as_slice(), address), &mut known, &mut steps);
        reader.spend(half.saturating_sub(steps.left()))?;
        if steps.were_too_few() && half < MAX_STEPS.min(size as u64) {
            // Another reading has more of them.
            self.disown(&known.functions);
            return Err(ReadError::OverBudget);
        }
        if let Some(before) = self.sections.remove(&address) {
            known.functions.extend(before.functions);
        }
        self.sections.insert(address, known);
        update.come.extend(come);
        Ok(())
    }

    /// Takes the functions of a section that nobody has yet, as far as the steps go.
    fn take_functions(&mut self, (bytes, at): (&[u8], u64), known: &mut Known, steps: &mut Steps) -> Vec<Function> {
        let frames = Frames::read((Cow::Borrowed(bytes), Avma(at)), vendor(), steps);
        // Nobody knows how many were not come to.
        known.lost = u32::from(steps.were_too_few());
        let mut come = Vec::new();
        for (start, size) in frames.functions() {
            let size = u32::try_from(size).ok().filter(|size| (1..=MAX_FUNCTION).contains(size));
            let is_new = search::is_address(start) && !self.owners.contains_key(&start);
            let Some(size) = size.filter(|_| is_new) else { continue };
            let has_room = self.owners.len() < MAX_FUNCTIONS;
            known.lacks_room |= !has_room;
            let Some(frame) = has_room.then(|| frames.of(start, steps)).flatten() else {
                known.lost += 1;
                continue;
            };
            self.owners.insert(start, at);
            known.functions.push(start);
            come.push(Function { start: Avma(start), size, frame });
        }
        come
    }

    /// Nobody has these functions any more.
    fn disown(&mut self, functions: &[u64]) {
        functions.iter().for_each(|start| {
            self.owners.remove(start);
        });
    }
}

impl Known {
    /// Whether this is what lies there now.
    fn is_still_at<M: Memory>(&self, address: u64, reader: &Reader<M>) -> Result<bool, ReadError> {
        reader.spend(self.size as u64 / BYTES_A_STEP)?;
        let mut now = vec![0; self.size];
        match reader.bytes(Avma(address), &mut now) {
            Ok(()) => Ok(digest(&now) == self.digest),
            Err(ReadError::OverBudget) => Err(ReadError::OverBudget),
            Err(_) => Ok(false),
        }
    }
}

/// A whole section, with the entry of no length that ends it.
fn section<M: Memory>(reader: &Reader<M>, address: u64) -> Result<Vec<u8>, ReadError> {
    let mut size = 4;
    loop {
        let length = reader.u32(Avma(address.saturating_add(size - 4)))?;
        if length == 0 {
            break;
        }
        size += 4 + u64::from(length);
        if size > MAX_SECTION {
            return Err(ReadError::Malformed { what: "end of unwinding data", address });
        }
    }
    let mut bytes = vec![0; usize::try_from(size).map_err(|_| ReadError::OverBudget)?];
    reader.bytes(Avma(address), &mut bytes)?;
    Ok(bytes)
}

fn digest(bytes: &[u8]) -> u64 {
    let mut digest = DefaultHasher::new();
    digest.write(bytes);
    digest.finish()
}

/// Who says what call frame information means: the process runs on this machine.
fn vendor() -> Vendor {
    match Machine::NATIVE {
        Machine::X86_64 => Vendor::Default,
        Machine::Aarch64 => Vendor::AArch64,
    }
}

#[cfg(test)]
mod tests;
