//! Source rows and inlined functions, from an object file's DWARF (4 and 5).
//!
//! What damaged or hostile information can cost is bounded: each entry, attribute, range and row is a step, and what the
//! decoder does before it says how much that was is paid for before, or is small.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use gimli::constants::{
    DW_AT_MIPS_linkage_name, DW_AT_abstract_origin, DW_AT_call_file, DW_AT_call_line, DW_AT_linkage_name, DW_AT_name,
    DW_AT_ranges, DW_AT_specification, DW_AT_stmt_list, DW_TAG_inlined_subroutine, DwAt,
};
use gimli::{Abbreviations, AttributeValue, EndianSlice, LittleEndian, SectionId, UnitHeader, UnitOffset};

use super::object_file::ObjectFile;
use super::printable;
use crate::steps::Steps;

/// Bytes of abbreviations that are looked at; a large C++ program has a tenth.
const MAX_ABBREVIATIONS: usize = 256 << 10;
/// Bytes of the header of a unit's source rows, with its files: each becomes a hundred bytes.
const MAX_ROWS_HEADER: usize = 128 << 10;
/// Bytes of a string. The names of C++ templates have some thousand.
const MAX_STRING: usize = 16 << 10;
/// What a unit costs beside what is in it.
const UNIT_STEPS: usize = 64;
/// Bytes that are looked at in the time of a step.
const BYTES_A_STEP: usize = 16;
/// From an inlined part over its declarations to a name.
const MAX_HOPS: usize = 4;

const SECTIONS: [SectionId; 9] = [
    SectionId::DebugAbbrev,
    SectionId::DebugInfo,
    SectionId::DebugLine,
    SectionId::DebugLineStr,
    SectionId::DebugStr,
    SectionId::DebugStrOffsets,
    SectionId::DebugAddr,
    SectionId::DebugRanges,
    SectionId::DebugRngLists,
];

type Bytes<'a> = EndianSlice<'a, LittleEndian>;
type Dwarf<'a> = gimli::Dwarf<Bytes<'a>>;
type Unit<'a> = gimli::Unit<Bytes<'a>>;
type Entry<'a> = gimli::DebuggingInformationEntry<Bytes<'a>>;

/// What the debug information of an object file says.
#[derive(Debug, Default)]
pub(super) struct Source {
    /// By address.
    pub(super) lines: Vec<Line>,
    /// By start, the longer first, of equal ones the outer first.
    pub(super) parts: Vec<Part>,
    /// Names of files and of inlined functions; the first one is the empty one.
    pub(super) texts: Vec<Arc<str>>,
}

/// From here on, the code belongs to this line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    pub(super) address: u64,
    /// 0 for none.
    pub(super) line: u32,
    /// In the texts.
    pub(super) file: u32,
}

/// Code that was inlined.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) start: u64,
    pub(super) end: u64,
    /// The function that it comes from, in the texts.
    pub(super) name: u32,
    pub(super) call: Call,
}

/// Where an inlined function was called.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    /// In the texts.
    pub(super) file: u32,
    pub(super) line: u32,
}

impl Source {
    /// What is said up to where it is damaged, or there are not enough steps.
    pub(super) fn read(file: &ObjectFile<'_>, steps: &mut Steps) -> Self {
        let mut source = Self { texts: vec![Arc::from("")], ..Self::default() };
        fill(&mut source, file, steps);
        source.lines.sort_by_key(|line| line.address);
        // Entries stand behind those around them, so equal ranges stay in order.
        source.parts.sort_by_key(|part| (part.start, std::cmp::Reverse(part.end)));
        source
    }
}

fn fill(source: &mut Source, file: &ObjectFile<'_>, steps: &mut Steps) -> Option<()> {
    let mut sections: Vec<(SectionId, Cow<'_, [u8]>)> = Vec::new();
    for id in SECTIONS {
        sections.push((id, file.debug(id.name(), steps)?));
    }
    let bytes = |id: SectionId| {
        let found: &[u8] =
            sections.iter().find(|(known, _)| *known == id).map_or(&[][..], |(_, bytes)| bounded(id, bytes));
        Ok::<_, gimli::Error>(EndianSlice::new(found, LittleEndian))
    };
    let dwarf = gimli::Dwarf::load(bytes).ok()?;
    let (mut units, mut known) = (Vec::new(), HashMap::new());
    let mut headers = dwarf.units();
    while let Ok(Some(header)) = headers.next() {
        let Some(unit) = unit(&dwarf, header, &mut known, steps) else { break };
        units.push(unit);
    }
    let mut reader =
        Reader { dwarf: &dwarf, units: &units, source, steps, files: HashMap::new(), names: HashMap::new() };
    for unit in &units {
        reader.lines(unit)?;
    }
    for unit in &units {
        reader.inlined(unit)?;
    }
    Some(())
}

/// As much of a section as is looked at.
fn bounded(id: SectionId, bytes: &[u8]) -> &[u8] {
    match id {
        SectionId::DebugAbbrev => bytes.get(..MAX_ABBREVIATIONS).unwrap_or(bytes),
        // Whatever is asked for ends soon.
        SectionId::DebugStr | SectionId::DebugLineStr => strings(bytes),
        _ => bytes,
    }
}

/// Strings up to the first one that is too long or has no end.
fn strings(bytes: &[u8]) -> &[u8] {
    let is_good = |string: &&[u8]| string.len() <= MAX_STRING && string.last() == Some(&0);
    let end: usize = bytes.split_inclusive(|byte| *byte == 0).take_while(is_good).map(<[u8]>::len).sum();
    bytes.get(..end).unwrap_or_default()
}

/// Abbreviations by where they begin in their section.
type KnownAbbreviations = HashMap<usize, Arc<Abbreviations>>;

/// A unit with its abbreviations and the header of its source rows.
fn unit<'a>(
    dwarf: &Dwarf<'a>,
    header: UnitHeader<Bytes<'a>>,
    known: &mut KnownAbbreviations,
    steps: &mut Steps,
) -> Option<Unit<'a>> {
    steps.take(UNIT_STEPS.saturating_add(header.length_including_self() / BYTES_A_STEP))?;
    let abbreviations = abbreviations(dwarf, &header, known, steps)?;
    check_rows_header(dwarf, &header, &abbreviations, steps)?;
    Unit::new_with_abbreviations(dwarf, header, abbreviations).ok()
}

/// A unit's abbreviations. LLVM has all units use the same.
fn abbreviations<'a>(
    dwarf: &Dwarf<'a>,
    header: &UnitHeader<Bytes<'a>>,
    known: &mut KnownAbbreviations,
    steps: &mut Steps,
) -> Option<Arc<Abbreviations>> {
    let at = header.debug_abbrev_offset().0;
    if let Some(known) = known.get(&at) {
        return Some(Arc::clone(known));
    }
    // Where they end is not said, and a byte of them becomes up to forty, which are kept to the end.
    steps.take(gimli::Section::reader(&dwarf.debug_abbrev).slice().len().saturating_sub(at))?;
    let read = dwarf.abbreviations(header).ok()?;
    known.insert(at, Arc::clone(&read));
    Some(read)
}

/// Whether a unit's source rows have a header that may be read; it is paid for.
fn check_rows_header<'a>(
    dwarf: &Dwarf<'a>,
    header: &UnitHeader<Bytes<'a>>,
    abbreviations: &Abbreviations,
    steps: &mut Steps,
) -> Option<()> {
    let mut entries = header.entries(abbreviations);
    let root = entries.next_dfs().ok()??;
    steps.take(cost(root))?;
    // There may be more than one, and nobody says which of them counts.
    for attr in root.attrs().iter().filter(|attr| attr.name() == DW_AT_stmt_list) {
        let AttributeValue::DebugLineRef(at) = attr.value() else { continue };
        let bytes = rows_header_bytes(gimli::Section::reader(&dwarf.debug_line).slice(), at.0)?;
        // A byte of it may become a file.
        steps.take(bytes.saturating_mul(4)).filter(|()| bytes <= MAX_ROWS_HEADER)?;
    }
    Some(())
}

/// ```text
/// length u32 | version u16 | from 5 on: bytes of an address and a segment u8, u8 | bytes of the header u32
/// ```
fn rows_header_bytes(section: &[u8], at: usize) -> Option<usize> {
    let rows = section.get(at..)?;
    let word = |at: usize| Some(u32::from_le_bytes(*rows.get(at..)?.first_chunk()?));
    let version = u16::from_le_bytes(*rows.get(4..)?.first_chunk()?);
    // In the form of 64 bits, which nobody writes, the length is longer.
    word(0).filter(|length| *length != u32::MAX)?;
    usize::try_from(word(if version < 5 { 6 } else { 8 })?).ok()
}

/// An entry and its attributes. Its bytes are paid for with the unit's.
fn cost(entry: &Entry<'_>) -> usize {
    1 + entry.attrs().len()
}

struct Reader<'r, 'a> {
    dwarf: &'r Dwarf<'a>,
    /// By place in the section.
    units: &'r [Unit<'a>],
    source: &'r mut Source,
    steps: &'r mut Steps,
    /// Files by their unit's place and their number in it.
    files: HashMap<(usize, u64), u32>,
    /// Names by the entry's place in the section.
    names: HashMap<usize, u32>,
}

/// What gives none has come to damage, or to the end of the steps.
impl<'r, 'a> Reader<'r, 'a> {
    fn lines(&mut self, unit: &'r Unit<'a>) -> Option<()> {
        let Some(program) = unit.line_program.clone() else { return Some(()) };
        self.steps.take(program.header().raw_program_buf().slice().len())?;
        let mut rows = program.rows();
        while let Some((_, row)) = rows.next_row().ok()? {
            self.steps.take(1)?;
            let file = self.file(unit, row.file_index())?;
            let line = row.line().filter(|_| !row.end_sequence()).map_or(0, std::num::NonZero::get);
            let line = u32::try_from(line).unwrap_or(0);
            self.source.lines.push(Line { address: row.address(), line, file });
        }
        Some(())
    }

    fn inlined(&mut self, unit: &'r Unit<'a>) -> Option<()> {
        let mut entries = unit.entries();
        while let Some(entry) = entries.next_dfs().ok()? {
            self.steps.take(cost(entry))?;
            if entry.tag() != DW_TAG_inlined_subroutine {
                continue;
            }
            let line = entry.attr_value(DW_AT_call_line).and_then(|value| value.udata_value());
            let file = match entry.attr_value(DW_AT_call_file) {
                Some(AttributeValue::FileIndex(index)) => self.file(unit, index)?,
                _ => 0,
            };
            let call = Call { file, line: line.and_then(|line| u32::try_from(line).ok()).unwrap_or(0) };
            let name = self.name(unit, entry)?;
            // One without a name would be a frame without a name: its code is the function's around it.
            if name != 0 {
                self.parts(unit, entry, name, call)?;
            }
        }
        Some(())
    }

    fn parts(&mut self, unit: &'r Unit<'a>, entry: &Entry<'a>, name: u32, call: Call) -> Option<()> {
        let Some(list) = entry.attr_value(DW_AT_ranges) else {
            let range = self.dwarf.die_ranges(unit, entry).ok().and_then(|mut ranges| ranges.next().ok()?);
            if let Some(range) = range {
                self.part(range, name, call);
            }
            return Some(());
        };
        let offset = self.dwarf.attr_ranges_offset(unit, list).ok()?;
        let Some(offset) = offset else { return Some(()) };
        let mut ranges = self.dwarf.ranges(unit, offset).ok()?;
        while let Some(raw) = ranges.next_raw().ok()? {
            self.steps.take(2)?;
            if let Some(range) = ranges.convert_raw(raw).ok()? {
                self.part(range, name, call);
            }
        }
        Some(())
    }

    fn part(&mut self, range: gimli::Range, name: u32, call: Call) {
        if range.begin < range.end {
            self.source.parts.push(Part { start: range.begin, end: range.end, name, call });
        }
    }

    /// The name of what a part was inlined from, as symbols are named; 0 if it has none.
    fn name(&mut self, unit: &'r Unit<'a>, part: &Entry<'a>) -> Option<u32> {
        let origin = self.referred(unit, part.attr_value(DW_AT_abstract_origin));
        let Some((unit, at)) = origin else { return Some(0) };
        let Some(key) = at.to_debug_info_offset(&unit.header) else { return Some(0) };
        if let Some(known) = self.names.get(&key.0) {
            return Some(*known);
        }
        let name = self.name_at(unit, at)?;
        self.names.insert(key.0, name);
        Some(name)
    }

    fn name_at(&mut self, mut unit: &'r Unit<'a>, mut at: UnitOffset) -> Option<u32> {
        let (dwarf, mut plain) = (self.dwarf, None);
        for _ in 0..MAX_HOPS {
            let mut entries = unit.entries_at_offset(at).ok()?;
            entries.next_entry().ok()?;
            let entry = entries.current()?;
            // They are looked at once more, and other entries may be said to have the same ones: a form that is said where the
            // value is may say so of the next byte, and that one again.
            let bytes = entries.next_offset().0.saturating_sub(at.0);
            self.steps.take(cost(entry).saturating_add(bytes / BYTES_A_STEP))?;
            let text = |at: DwAt| dwarf.attr_string(unit, entry.attr_value(at)?).ok();
            if let Some(name) = text(DW_AT_linkage_name).or_else(|| text(DW_AT_MIPS_linkage_name)) {
                return self.text(name.slice());
            }
            plain = plain.or_else(|| text(DW_AT_name));
            let next = entry.attr_value(DW_AT_abstract_origin).or_else(|| entry.attr_value(DW_AT_specification));
            let Some(next) = self.referred(unit, next) else { break };
            (unit, at) = next;
        }
        plain.map_or(Some(0), |name| self.text(name.slice()))
    }

    /// The entry that a reference leads to.
    fn referred(
        &self,
        unit: &'r Unit<'a>,
        value: Option<AttributeValue<Bytes<'a>>>,
    ) -> Option<(&'r Unit<'a>, UnitOffset)> {
        match value? {
            AttributeValue::UnitRef(at) => Some((unit, at)),
            AttributeValue::DebugInfoRef(at) => {
                let is_before = |unit: &Unit<'a>| place_of(unit) <= at.0;
                let unit = self.units.get(self.units.partition_point(is_before).checked_sub(1)?)?;
                Some((unit, at.to_unit_offset(&unit.header)?))
            }
            _ => None,
        }
    }

    /// Directory and name of a file, as far as they are said; 0 if they are not.
    fn file(&mut self, unit: &'r Unit<'a>, index: u64) -> Option<u32> {
        let key = (place_of(unit), index);
        if let Some(known) = self.files.get(&key) {
            return Some(*known);
        }
        let text = match self.file_name(unit, index) {
            Some(name) => self.text(&name)?,
            None => 0,
        };
        self.files.insert(key, text);
        Some(text)
    }

    fn file_name(&self, unit: &Unit<'a>, index: u64) -> Option<Vec<u8>> {
        let header = unit.line_program.as_ref()?.header();
        let file = header.file(index)?;
        let text = |value| self.dwarf.attr_string(unit, value).ok().map(|text| text.slice());
        let name = text(file.path_name())?;
        let directory = file.directory(header).and_then(text).unwrap_or_default();
        if name.starts_with(b"/") || directory.is_empty() {
            return Some(name.to_vec());
        }
        Some([directory, &b"/"[..], name].concat())
    }

    /// Keeps a text; 0 if it cannot be printed.
    fn text(&mut self, text: &[u8]) -> Option<u32> {
        self.steps.take(1 + text.len() / BYTES_A_STEP)?;
        let Some(text) = printable(text) else { return Some(0) };
        let index = u32::try_from(self.source.texts.len()).ok()?;
        self.source.texts.push(Arc::from(text));
        Some(index)
    }
}

/// Where a unit begins in its section.
fn place_of(unit: &Unit<'_>) -> usize {
    unit.header.debug_info_offset().map_or(0, |start| start.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_end_before_one_that_is_too_long_or_has_no_end() {
        assert_eq!(strings(b"a\0\0bc\0de"), b"a\0\0bc\0");
        let mut long = b"a\0".to_vec();
        long.extend([b'b'; MAX_STRING]);
        long.extend(b"\0c\0");
        assert_eq!(strings(&long), b"a\0");
        long.remove(2);
        assert_eq!(strings(&long), long);
    }

    #[test]
    fn a_header_of_rows_says_how_long_it_is_in_both_versions() {
        let rows = |version: u8, rest: &[u8]| [&[0x40, 0, 0, 0, version, 0][..], rest].concat();
        assert_eq!(rows_header_bytes(&rows(4, &[7, 0, 0, 0]), 0), Some(7));
        assert_eq!(rows_header_bytes(&[&[0][..], &rows(5, &[8, 0, 9, 0, 0, 0])[..]].concat(), 1), Some(9));
        assert_eq!(rows_header_bytes(&rows(5, &[8, 0, 9, 0, 0]), 0), None, "cut");
        assert_eq!(rows_header_bytes(&[0xff; 16], 0), None, "of the form of 64 bits");
    }
}
