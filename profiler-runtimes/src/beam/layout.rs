//! Where the emulator keeps its tables, found by their shape.

use std::collections::BTreeMap;
use std::ops::Range;

use jitprof_common::units::Avma;

use super::{Function, MAX_FUNCTIONS, MAX_MODULE_BYTES, NAME, malformed, words, words_of};
use crate::{Memory, ReadError, Reader, Symbols};

/// Bytes of the emulator's own data that are searched; there are 0.4 MB.
const MAX_DATA: u64 = 4 << 20;
/// Generations of the code: one in force, one that is being made, and the one before.
const GENERATIONS: u64 = 3;
/// Bytes of the table of one.
const RANGES_BYTES: u64 = 32;
/// Modules of one generation: some that are part of the emulator, and all that were loaded. A large application has 5,000.
const MODULES: Range<u64> = 8..1 << 15;
/// Nothing that is allocated lies below.
const MIN_ADDRESS: u64 = 1 << 20;
/// The symbol that says which generation is in force, where there is one.
const IN_FORCE: &str = "the_active_code_index";
/// The symbol of the release, where there is one.
const RELEASE: &str = "etp_otp_release";
/// Where in a module's header its functions may be: 96 in OTP 25, 136 in 27, 152 in 29.
const FUNCTIONS: Range<u64> = 80..216;
/// Modules whose headers must have them there.
const TRIED: usize = 40;
/// The module that is part of the emulator, which no table has: what lies below everything on the stack of a process is in it.
const OWN_MODULE: &str = "erts_beamasm";
/// Bytes and functions that it has at most.
const MAX_OWN: u64 = 64 << 10;
/// See [`MAX_OWN`].
const MAX_OWN_FUNCTIONS: u64 = 256;
/// The first atom that there is.
const FIRST_ATOM: &str = "false";
/// Atoms in one segment of their table.
const SEGMENT: u64 = 1024;
/// Bytes of an atom: 255 characters, of four bytes at most.
const MAX_ATOM: u16 = 1020;
/// From an atom to its length, and to where its name is.
const ATOM_LENGTH: u64 = 24;
/// See [`ATOM_LENGTH`].
const ATOM_NAME: u64 = 32;
/// What tells an atom from other terms, and by how many bits its number is shifted.
const ATOM_TAG: u64 = 0x0b;
/// See [`ATOM_TAG`].
const ATOM_SHIFT: u32 = 6;
/// The tag of a cell of a list, of a small number, and of a boxed term.
const LIST_TAG: u64 = 1;
/// See [`LIST_TAG`].
const TAG_BITS: u64 = 3;
/// By how many bits a small number is shifted.
const NUMBER_SHIFT: u32 = 4;

/// Why nothing can be read of an emulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// Its tables are not where they are known to be, or not yet.
    #[error("the emulator's tables of modules and atoms were not found")]
    Missing,
    /// Its memory cannot be read.
    #[error(transparent)]
    Unreadable(#[from] ReadError),
}

/// Where everything is in one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    release: Option<String>,
    /// The tables of modules, one of each generation.
    ranges: Avma,
    in_force: Option<Avma>,
    /// The table of atoms' segments.
    atoms: Avma,
    /// The name of an atom is a term of its own (from OTP 28 on).
    is_boxed: bool,
    /// Where in a module's header its functions are.
    functions: u64,
    /// Where the emulator's own module begins and ends, if it was found.
    own: Option<(u64, u64)>,
}

/// The beginning of a module.
pub(super) struct Header {
    /// What comes before its functions.
    pub(super) fixed: Vec<u64>,
    /// Where they begin, and where the last one ends.
    pub(super) functions: Vec<u64>,
}

impl Layout {
    /// Where in a module's header its line table is.
    pub(super) const LINE_TABLE: u64 = 72;

    /// Finds it. `data` is where the emulator's own variables are.
    ///
    /// # Errors
    /// There is nothing of that shape: it has not begun to load modules, or is another version; or memory is not readable.
    pub fn find<M: Memory, S: Symbols>(symbols: S, data: Range<Avma>, reader: &Reader<M>) -> Result<Self, LayoutError> {
        let (from, bytes) = (data.start.0.next_multiple_of(8), data.end.0.saturating_sub(data.start.0).min(MAX_DATA));
        let variables = words(reader, Avma(from), bytes / 8)?;
        let address = |at: usize| from + 8 * at as u64;
        let ranges = find_ranges(&variables, reader)?.ok_or(LayoutError::Missing)?;
        let (atoms, is_boxed) = find_atoms(&variables, reader)?.ok_or(LayoutError::Missing)?;
        let release = symbols.address_of(RELEASE).and_then(|at| reader.c_string(at, 4).ok());
        let release = release.and_then(|text| String::from_utf8(text).ok());
        let release = release.filter(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()));
        let mut layout = Self {
            release,
            ranges: Avma(address(ranges)),
            in_force: symbols.address_of(IN_FORCE),
            atoms,
            is_boxed,
            functions: 0,
            own: None,
        };
        let modules = layout.ranges(reader)?;
        let tried: Vec<_> = modules.iter().take(TRIED).map(|(start, end)| (Avma(*start), Avma(*end))).collect();
        for functions in FUNCTIONS.step_by(8) {
            layout.functions = functions;
            // One may be freed memory.
            let fit = tried.iter().filter(|(start, end)| layout.header(*start, *end, reader).is_ok()).count();
            if fit > 0 && fit + 1 >= tried.len() {
                layout.own = layout.find_own(&variables, reader)?;
                return Ok(layout);
            }
        }
        Err(LayoutError::Missing)
    }

    /// The release, as in `25`, if the emulator says it.
    pub fn release(&self) -> Option<&str> {
        self.release.as_deref()
    }

    /// The emulator's own module: variables have the addresses of its functions, whose names lie before them.
    fn find_own<M: Memory>(&self, variables: &[u64], reader: &Reader<M>) -> Result<Option<(u64, u64)>, ReadError> {
        for code in variables.iter().filter(|word| **word >= MIN_ADDRESS && word.is_multiple_of(8)) {
            let info = code.saturating_sub(u64::from(Function::HEAD));
            match self.own_around(info, reader) {
                Ok(Some(own)) => return Ok(Some(own)),
                Err(ReadError::OverBudget) => return Err(ReadError::OverBudget),
                Ok(None) | Err(_) => {}
            }
        }
        Ok(None)
    }

    /// The same, if that is a function of it.
    fn own_around<M: Memory>(&self, info: u64, reader: &Reader<M>) -> Result<Option<(u64, u64)>, ReadError> {
        let module = reader.u64(Avma(info.saturating_add(NAME)))?;
        if self.atom(module, reader)?.as_deref() != Some(OWN_MODULE) {
            return Ok(None);
        }
        for words in 1..MAX_OWN / 8 {
            let start = info.saturating_sub(8 * words);
            if !(1..MAX_OWN_FUNCTIONS).contains(&reader.u64(Avma(start))?) {
                continue;
            }
            match self.header(Avma(start), Avma(start.saturating_add(MAX_OWN)), reader) {
                Ok(header) if header.functions.contains(&info) => {
                    return Ok(header.functions.last().map(|end| (start, *end)));
                }
                Err(ReadError::OverBudget) => return Err(ReadError::OverBudget),
                Ok(_) => {}
                Err(_) => {}
            }
        }
        Ok(None)
    }

    /// Where the emulator's own module begins, if it was found.
    pub(super) fn own(&self) -> Option<u64> {
        self.own.map(|(start, _)| start)
    }

    /// The modules that there are now: where each begins, and ends.
    pub(super) fn ranges<M: Memory>(&self, reader: &Reader<M>) -> Result<BTreeMap<u64, u64>, ReadError> {
        let in_force = self.in_force.and_then(|at| reader.u32(at).ok()).map(u64::from);
        let generations = match in_force.filter(|generation| *generation < GENERATIONS) {
            Some(generation) => generation..generation + 1,
            None => 0..GENERATIONS,
        };
        let mut all: Vec<(u64, u64)> = Vec::new();
        for generation in generations {
            let table = words(reader, Avma(self.ranges.0.saturating_add(generation * RANGES_BYTES)), 4)?;
            let [modules, count, ..] = table[..] else { continue };
            if count >= MODULES.end {
                return Err(malformed("table of modules", self.ranges.0));
            }
            let bounds = words(reader, Avma(modules), 2 * count)?;
            let bounds = bounds.as_chunks::<2>().0.iter().map(|[start, end]| (*start, *end));
            all.extend(bounds.filter(|(start, end)| {
                start.is_multiple_of(8) && *start >= MIN_ADDRESS && end.wrapping_sub(*start) <= MAX_MODULE_BYTES
            }));
        }
        // What is in several generations is one. Where it is not known which is in force, what was freed may be among
        // them, and something else in its place: where two overlap, neither is believed.
        all.extend(self.own);
        all.sort_unstable();
        all.dedup();
        let overlaps = |at: usize| {
            let before = at.checked_sub(1).is_some_and(|before| all[before].1 > all[at].0);
            before || all.get(at + 1).is_some_and(|next| next.0 < all[at].1)
        };
        Ok((0..all.len()).filter(|at| !overlaps(*at)).map(|at| all[at]).collect())
    }

    /// What a module says of itself.
    pub(super) fn header<M: Memory>(&self, start: Avma, end: Avma, reader: &Reader<M>) -> Result<Header, ReadError> {
        let count = reader.u64(start)?;
        if count == 0 || count >= MAX_FUNCTIONS {
            return Err(malformed("module", start.0));
        }
        let functions = words(reader, Avma(start.0.saturating_add(self.functions)), count + 1)?;
        let is_within = functions.first().is_some_and(|first| *first > start.0)
            && functions.last().is_some_and(|last| *last <= end.0)
            && functions.windows(2).all(|pair| pair[0] < pair[1]);
        if !is_within {
            return Err(malformed("module", start.0));
        }
        Ok(Header { fixed: words(reader, start, self.functions / 8)?, functions })
    }

    /// The name of an atom; nothing for another term.
    pub(super) fn atom<M: Memory>(&self, term: u64, reader: &Reader<M>) -> Result<Option<String>, ReadError> {
        let number = term >> ATOM_SHIFT;
        if term & ((1 << ATOM_SHIFT) - 1) != ATOM_TAG || number >= u64::from(u32::MAX) {
            return Ok(None);
        }
        let segment = reader.u64(Avma(self.atoms.0.saturating_add(8 * (number / SEGMENT))))?;
        let atom = reader.u64(Avma(segment.saturating_add(8 * (number % SEGMENT))))?;
        name_of_atom(Avma(atom), self.is_boxed, reader)
    }

    /// A text, as an atom or a list of characters.
    pub(super) fn text<M: Memory>(
        &self,
        term: u64,
        max: usize,
        reader: &Reader<M>,
    ) -> Result<Option<String>, ReadError> {
        if let Some(atom) = self.atom(term, reader)? {
            return Ok(Some(atom));
        }
        let (mut text, mut rest) = (String::new(), term);
        while rest & TAG_BITS == LIST_TAG && text.len() < max {
            let mut cell = [0; 16];
            reader.bytes(Avma(rest - LIST_TAG), &mut cell)?;
            let [head, tail] = words_of(&cell)[..] else { break };
            let letter = u32::try_from(head >> NUMBER_SHIFT).ok().and_then(char::from_u32);
            let Some(letter) = letter.filter(|letter| !letter.is_control()) else { return Ok(None) };
            text.push(letter);
            rest = tail;
        }
        Ok((!text.is_empty()).then_some(text))
    }
}

/// The first of three tables of modules beside one another: `{modules, n, allocated, mid}`.
fn find_ranges<M: Memory>(variables: &[u64], reader: &Reader<M>) -> Result<Option<usize>, ReadError> {
    let is_table = |at: usize| {
        let Some([modules, count, allocated, mid]) = variables.get(at..).and_then(|rest| rest.first_chunk()) else {
            return false;
        };
        let fits = MODULES.contains(count) && count <= allocated && *allocated < 2 * MODULES.end;
        fits && *modules >= MIN_ADDRESS && mid.wrapping_sub(*modules) < 16 * count
    };
    let words_each = RANGES_BYTES as usize / 8;
    for at in 0..variables.len() {
        if !(0..GENERATIONS as usize).all(|generation| is_table(at + generation * words_each)) {
            continue;
        }
        let is_sorted = |generation: usize| {
            let table = &variables[at + generation * words_each..];
            words(reader, Avma(table[0]), 2 * table[1]).map(|bounds| bounds.is_sorted())
        };
        let sorted: Result<Vec<bool>, ReadError> = (0..GENERATIONS as usize).map(is_sorted).collect();
        match sorted {
            Ok(sorted) if sorted.iter().all(|is_sorted| *is_sorted) => return Ok(Some(at)),
            Err(ReadError::OverBudget) => return Err(ReadError::OverBudget),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(None)
}

/// The table of atoms' segments, by the first atom, and whether the names of atoms are terms.
fn find_atoms<M: Memory>(variables: &[u64], reader: &Reader<M>) -> Result<Option<(Avma, bool)>, ReadError> {
    for table in variables.iter().filter(|word| **word >= MIN_ADDRESS && word.is_multiple_of(8)) {
        let first = || {
            let segment = reader.u64(Avma(*table))?;
            let atom = Avma(reader.u64(Avma(segment))?);
            for is_boxed in [false, true] {
                match name_of_atom(atom, is_boxed, reader) {
                    Ok(Some(name)) if name == FIRST_ATOM => return Ok(Some(is_boxed)),
                    Err(ReadError::OverBudget) => return Err(ReadError::OverBudget),
                    Ok(_) | Err(_) => {}
                }
            }
            Ok(None)
        };
        match first() {
            Ok(Some(is_boxed)) => return Ok(Some((Avma(*table), is_boxed))),
            Err(ReadError::OverBudget) => return Err(ReadError::OverBudget),
            Ok(None) | Err(_) => {}
        }
    }
    Ok(None)
}

fn name_of_atom<M: Memory>(atom: Avma, is_boxed: bool, reader: &Reader<M>) -> Result<Option<String>, ReadError> {
    let length = reader.u16(Avma(atom.0.saturating_add(ATOM_LENGTH)))?;
    if length > MAX_ATOM {
        return Ok(None);
    }
    let name = reader.u64(Avma(atom.0.saturating_add(ATOM_NAME)))?;
    // A header, and how many bits there are, come first.
    let name = if is_boxed { (name & !7).saturating_add(16) } else { name };
    let mut bytes = vec![0; usize::from(length)];
    reader.bytes(Avma(name), &mut bytes)?;
    let name = String::from_utf8(bytes).ok();
    Ok(name.filter(|name| !name.contains(char::is_control)))
}
