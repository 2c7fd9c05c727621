//! Call frame information to rows.
//!
//! Entries are found by their own lengths, so that a damaged one costs itself; gimli decodes them and their
//! instructions. The instructions are evaluated here, for the three registers that rows need, instead of with gimli's
//! `UnwindContext`, which keeps every register and runs a common entry's instructions again for each function: work
//! that a crafted section can make quadratic.
//!
//! ```text
//! length u32 (or 0xffffffff, length u64) │ id u32 │ ...
//! .eh_frame    id 0 = CIE, else the distance from the id back to the CIE; length 0 = terminator
//! .debug_frame id -1 = CIE, else the CIE's offset
//! ```
//!
//! Bounds: every common entry is evaluated once; over all entries no more instructions are run and rules made than
//! twice the section's bytes, which no honest section needs as its entries do not overlap; rules of linkage slots, of which one
//! instruction makes many, are bounded by the code.

use std::collections::HashMap;
use std::ops::Range;

use gimli::{
    BaseAddresses, CommonInformationEntry, EndianSlice, FrameDescriptionEntry, LittleEndian, Section, UnwindOffset,
    UnwindSection,
};
use jitprof_common::machine::Machine;
use jitprof_common::row::Rule;

use super::builder::{MAX_ROWS, RowTableBuilder};
use super::machine::Registers;
use super::program::{Evaluation, State, run_fde, run_initial};
use super::stats::RowStats;

pub(super) type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// Where an entry is and what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    Fde(usize),
    Cie,
    Terminator,
}

/// The entries of an `.eh_frame` and where they are.
pub(super) fn entries(bytes: &[u8]) -> impl Iterator<Item = (Range<usize>, Entry)> {
    let mut entries = Entries { bytes, at: 0, debug_frame: false, torn: false };
    std::iter::from_fn(move || {
        let start = entries.at;
        entries.next().map(|entry| (start..entries.at, entry))
    })
}

/// Walks over entries by their lengths; ends at one that does not fit.
struct Entries<'a> {
    bytes: &'a [u8],
    at: usize,
    debug_frame: bool,
    /// The walk ended before the section did.
    torn: bool,
}

impl Iterator for Entries<'_> {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        let at = self.at;
        let rest = self.bytes.get(at..).filter(|rest| !rest.is_empty())?;
        let entry = self.read(at, rest);
        self.torn = entry.is_none();
        entry
    }
}

impl Entries<'_> {
    fn read(&mut self, at: usize, rest: &[u8]) -> Option<Entry> {
        let short = u32::from_le_bytes(*rest.first_chunk()?);
        let (header, length) = match short {
            0 => {
                self.at = at.checked_add(4)?;
                return Some(Entry::Terminator);
            }
            u32::MAX => (12_usize, u64::from_le_bytes(*rest.get(4..)?.first_chunk()?)),
            _ => (4, u64::from(short)),
        };
        let end = header.checked_add(usize::try_from(length).ok()?)?;
        let entry = rest.get(header..end)?;
        self.at = at.checked_add(end)?;
        let is_cie = match entry.first_chunk::<4>() {
            Some(id) if self.debug_frame => *id == [0xff; 4],
            Some(id) => *id == [0; 4],
            None => false,
        };
        Some(if is_cie { Entry::Cie } else { Entry::Fde(at) })
    }
}

/// A common entry and the state that its instructions leave.
struct Cie<'a> {
    entry: CommonInformationEntry<Bytes<'a>>,
    initial: State,
}

/// One section being compiled.
pub(super) struct Compiler<'a, S> {
    section: S,
    bytes: &'a [u8],
    bases: &'a BaseAddresses,
    debug_frame: bool,
    registers: Registers,
    /// `None` for one that makes no sense.
    cies: HashMap<usize, Option<Cie<'a>>>,
    /// The same, whatever their instructions are.
    read_cies: HashMap<usize, Option<CommonInformationEntry<Bytes<'a>>>>,
    /// Instructions that may still be run.
    budget: u64,
    /// Rules of linkage slots that may still be written out.
    slot_rules: u64,
    /// Rules that a function may have: one a byte.
    max_rules: usize,
    rules: Vec<(u64, Rule)>,
}

/// Two rules for each 16 bytes of code, and for what the ends of ranges cut.
fn slot_rules(code_bytes: u64) -> u64 {
    (code_bytes / 8).saturating_add(16)
}

/// Instructions that are run and rules that are made: two bytes say `advance` and `restore`, which is three of them.
fn budget(section_bytes: usize) -> u64 {
    u64::try_from(section_bytes).unwrap_or(u64::MAX).saturating_mul(2)
}

/// Compiles a whole section into `builder`, for functions that begin in one of the ranges of `code` (ascending), cut
/// to that range. The section must know the machine's [`vendor`](super::machine::vendor). `until_terminator` is for
/// sections whose end is not known.
pub(super) fn compile<'a, S>(
    section: S,
    bases: &'a BaseAddresses,
    machine: Machine,
    code: &[Range<u64>],
    until_terminator: bool,
    (builder, stats): (&mut RowTableBuilder, &mut RowStats),
) where
    S: Section<Bytes<'a>> + UnwindSection<Bytes<'a>>,
{
    let code_bytes = code.iter().fold(0_u64, |sum, range| sum.saturating_add(range.end.saturating_sub(range.start)));
    let mut compiler = Compiler::new(section, bases, machine, code_bytes);
    let length = u64::try_from(compiler.bytes.len()).unwrap_or(u64::MAX);
    stats.section_bytes = stats.section_bytes.saturating_add(length);
    let mut entries = compiler.entries();
    for entry in entries.by_ref() {
        match entry {
            Entry::Cie => {}
            Entry::Terminator if until_terminator => break,
            Entry::Terminator => {}
            Entry::Fde(at) => compiler.function(at, code, builder, stats),
        }
    }
    stats.corrupt = stats.corrupt.saturating_add(u64::from(entries.torn));
}

impl<'a, S> Compiler<'a, S>
where
    S: Section<Bytes<'a>> + UnwindSection<Bytes<'a>>,
{
    pub(super) fn new(section: S, bases: &'a BaseAddresses, machine: Machine, code_bytes: u64) -> Self {
        let bytes = section.reader().slice();
        Self {
            section,
            bytes,
            bases,
            debug_frame: S::id() == gimli::SectionId::DebugFrame,
            registers: Registers::of(machine),
            cies: HashMap::new(),
            read_cies: HashMap::new(),
            budget: budget(bytes.len()),
            slot_rules: slot_rules(code_bytes),
            max_rules: usize::try_from(code_bytes).unwrap_or(MAX_ROWS).min(MAX_ROWS),
            rules: Vec::new(),
        }
    }

    fn entries(&self) -> Entries<'a> {
        Entries { bytes: self.bytes, at: 0, debug_frame: self.debug_frame, torn: false }
    }

    /// Offsets of the first `limit` entries that are functions.
    pub(super) fn functions(&self, limit: usize) -> impl Iterator<Item = usize> + use<'a, S> {
        self.entries().take(limit).filter_map(|entry| match entry {
            Entry::Fde(at) => Some(at),
            Entry::Cie | Entry::Terminator => None,
        })
    }

    /// Where the function is whose entry is at an offset. No instructions are run for it.
    pub(super) fn range(&mut self, at: usize) -> Option<Range<u64>> {
        let cies = &mut self.read_cies;
        let fde = self.section.fde_from_offset(self.bases, S::Offset::from(at), |section, bases, offset| {
            let cie = cies.entry(UnwindOffset::into(offset));
            let cie = cie.or_insert_with(|| section.cie_from_offset(bases, offset).ok());
            cie.clone().ok_or(gimli::Error::NotCieId(0))
        });
        let fde = fde.ok()?;
        Some(fde.initial_address()..fde.initial_address().saturating_add(fde.len()))
    }

    /// The function's entry at an offset, if it and its common entry make sense.
    pub(super) fn parse(&mut self, at: usize) -> Option<(usize, FrameDescriptionEntry<Bytes<'a>>)> {
        let mut cie_at = 0;
        let (section, bases, cies, budget) = (&self.section, self.bases, &mut self.cies, &mut self.budget);
        let registers = self.registers;
        let fde = section.fde_from_offset(bases, S::Offset::from(at), |section, bases, offset| {
            cie_at = UnwindOffset::into(offset);
            let known = cies.entry(cie_at).or_insert_with(|| {
                let entry = section.cie_from_offset(bases, offset).ok()?;
                let initial = run_initial(section, bases, &entry, registers, budget)?;
                Some(Cie { entry, initial })
            });
            // The caller counts a failure, whatever its reason.
            known.as_ref().map(|cie| cie.entry.clone()).ok_or(gimli::Error::NotCieId(0))
        });
        fde.ok().map(|fde| (cie_at, fde))
    }

    /// Rules of a function, in a buffer that the next call uses again; cut to `code`.
    pub(super) fn evaluate(
        &mut self,
        (cie_at, fde): &(usize, FrameDescriptionEntry<Bytes<'a>>),
        end: u64,
        stats: &mut RowStats,
    ) -> Option<&[(u64, Rule)]> {
        let cie = self.cies.get(cie_at)?.as_ref()?;
        self.rules.clear();
        let mut evaluation = Evaluation {
            registers: self.registers,
            initial: cie.initial,
            end,
            budget: &mut self.budget,
            slot_rules: &mut self.slot_rules,
            max_rules: self.max_rules,
            rules: &mut self.rules,
            unsupported: &mut stats.unsupported,
        };
        run_fde(&self.section, self.bases, fde, &mut evaluation)?;
        Some(&self.rules)
    }

    fn function(&mut self, at: usize, code: &[Range<u64>], builder: &mut RowTableBuilder, stats: &mut RowStats) {
        if self.budget == 0 {
            stats.over_limit = stats.over_limit.saturating_add(1);
            return;
        }
        let Some(function) = self.parse(at) else {
            stats.corrupt = stats.corrupt.saturating_add(1);
            return;
        };
        let start = function.1.initial_address();
        let Some(range) = covering(code, start) else {
            stats.outside_code = stats.outside_code.saturating_add(1);
            return;
        };
        let end = start.saturating_add(function.1.len()).min(range.end);
        match self.evaluate(&function, end, stats) {
            Some(rules) => {
                builder.add(start..end, rules.iter().copied());
                stats.fdes = stats.fdes.saturating_add(1);
            }
            None => stats.corrupt = stats.corrupt.saturating_add(1),
        }
    }
}

fn covering(code: &[Range<u64>], address: u64) -> Option<&Range<u64>> {
    let after = code.partition_point(|range| range.start <= address);
    code[..after].last().filter(|range| address < range.end)
}
