//! Source rows and inlined functions, from an object's DWARF.
//!
//! It is read here and not by the profiler, because its addresses are right only after relocations that need the places
//! of the sections, and because a dump then holds a few bytes for an inlined function, not the whole object. What damaged
//! or hostile information can cost is bounded: each entry, attribute and range is a step, and steps are counted.

use std::collections::HashMap;

use gimli::constants::{
    DW_AT_MIPS_linkage_name, DW_AT_abstract_origin, DW_AT_call_file, DW_AT_call_line, DW_AT_linkage_name, DW_AT_name,
    DW_AT_specification, DW_TAG_inlined_subroutine, DwAt,
};
use gimli::{AttributeValue, EndianSlice, NativeEndian, SectionId};

use super::{File, Functions, Line, Object, Part, relocated};

/// Source rows read of one object.
const MAX_ROWS: usize = 1 << 20;
/// Inlined parts read of one object.
const MAX_PARTS: usize = 1 << 18;
/// Compilation units.
const MAX_UNITS: usize = 1 << 16;
/// Entries, their attributes, and ranges: a tenth of a second.
const MAX_STEPS: usize = 8 << 20;
/// Bytes of names of files and functions.
const MAX_TEXTS: usize = 16 << 20;
/// From an inlined part over its declarations to a name.
const MAX_HOPS: usize = 4;

type Bytes<'a> = EndianSlice<'a, NativeEndian>;
type Unit<'a> = gimli::Unit<Bytes<'a>>;
type Entry<'a> = gimli::DebuggingInformationEntry<Bytes<'a>>;

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

/// Adds what the debug information says to the functions, up to where it is damaged.
pub(super) fn read(object: &Object, file: &File<'_>, functions: &mut Functions) -> Option<()> {
    let sections = SECTIONS.map(|id| (id, relocated(object, file, id.name())));
    let bytes = |id: SectionId| {
        let found = sections.iter().find(|(known, _)| *known == id);
        Ok::<_, gimli::Error>(EndianSlice::new(found.map_or(&[][..], |(_, bytes)| bytes), NativeEndian))
    };
    let dwarf = gimli::Dwarf::load(bytes).ok()?;
    let mut units = Vec::new();
    let mut headers = dwarf.units();
    while let Ok(Some(header)) = headers.next() {
        let Ok(unit) = dwarf.unit(header) else { break };
        if units.len() >= MAX_UNITS {
            break;
        }
        units.push(unit);
    }
    // The text of index 0 is the empty one.
    functions.texts.push(Vec::new());
    let mut reader = Reader {
        dwarf: &dwarf,
        units: &units,
        functions,
        texts_left: MAX_TEXTS,
        steps_left: MAX_STEPS,
        names: HashMap::new(),
    };
    for unit in &units {
        let mut files = Files { unit, known: HashMap::new() };
        if reader.lines(&mut files).is_none() {
            break;
        }
    }
    for unit in &units {
        let mut files = Files { unit, known: HashMap::new() };
        if reader.inlined(&mut files).is_none() {
            break;
        }
    }
    functions.lines.sort_by_key(|line| line.address);
    // Entries stand behind those around them, so equal ranges stay in order.
    functions.parts.sort_by_key(|part| (part.start, std::cmp::Reverse(part.end)));
    Some(())
}

struct Reader<'r, 'a> {
    dwarf: &'r gimli::Dwarf<Bytes<'a>>,
    /// By place in the section.
    units: &'r [Unit<'a>],
    functions: &'r mut Functions,
    texts_left: usize,
    steps_left: usize,
    /// Names by the entry's place in the section.
    names: HashMap<usize, usize>,
}

/// The files of a unit that have been asked for.
struct Files<'r, 'a> {
    unit: &'r Unit<'a>,
    known: HashMap<u64, usize>,
}

impl<'a> Reader<'_, 'a> {
    /// The unit's source rows; `None` if it is damaged.
    fn lines(&mut self, files: &mut Files<'_, 'a>) -> Option<()> {
        let Some(program) = files.unit.line_program.clone() else { return Some(()) };
        let mut rows = program.rows();
        while let Some((_, row)) = rows.next_row().ok()? {
            if self.functions.lines.len() >= MAX_ROWS {
                return None;
            }
            let file = self.file(files, row.file_index());
            let line = row.line().filter(|_| !row.end_sequence()).map_or(0, std::num::NonZero::get);
            self.functions.lines.push(Line { address: row.address(), line: u32::try_from(line).unwrap_or(0), file });
        }
        Some(())
    }

    /// The unit's inlined parts; `None` if it is damaged, or there are too many.
    fn inlined(&mut self, files: &mut Files<'_, 'a>) -> Option<()> {
        let mut entries = files.unit.entries();
        while let Some(entry) = entries.next_dfs().ok()? {
            self.step(1 + entry.attrs().len())?;
            if entry.tag() != DW_TAG_inlined_subroutine {
                continue;
            }
            let number = |at: DwAt| entry.attr_value(at).and_then(|value| value.udata_value());
            let call_line = number(DW_AT_call_line).and_then(|line| u32::try_from(line).ok()).unwrap_or(0);
            let call_file = match entry.attr_value(DW_AT_call_file) {
                Some(AttributeValue::FileIndex(index)) => self.file(files, index),
                _ => 0,
            };
            let name = self.name(files.unit, entry);
            // One without a name would be a frame without a name: its code is the function's around it.
            if name != 0 {
                self.parts(files.unit, entry, (name, call_file, call_line))?;
            }
        }
        Some(())
    }

    /// The ranges of an inlined part.
    fn parts(
        &mut self,
        unit: &Unit<'a>,
        entry: &Entry<'a>,
        (name, call_file, call_line): (usize, usize, u32),
    ) -> Option<()> {
        let Ok(mut ranges) = self.dwarf.die_ranges(unit, entry) else { return Some(()) };
        while let Ok(Some(range)) = ranges.next() {
            self.step(1)?;
            if range.begin >= range.end {
                continue;
            }
            if self.functions.parts.len() >= MAX_PARTS {
                self.functions.cut = true;
                return None;
            }
            self.functions.parts.push(Part { start: range.begin, end: range.end, name, call_file, call_line });
        }
        Some(())
    }

    fn step(&mut self, steps: usize) -> Option<()> {
        match self.steps_left.checked_sub(steps) {
            Some(left) => self.steps_left = left,
            None => {
                self.functions.cut = true;
                return None;
            }
        }
        Some(())
    }

    /// The name of what a part was inlined from, as symbols are named; 0 if it has none.
    fn name(&mut self, unit: &Unit<'a>, part: &Entry<'a>) -> usize {
        let Some((unit, at)) = self.referred(unit, part.attr_value(DW_AT_abstract_origin)) else { return 0 };
        let Some(key) = at.to_debug_info_offset(&unit.header) else { return 0 };
        if let Some(known) = self.names.get(&key.0) {
            return *known;
        }
        let name = self.name_at(unit, at).unwrap_or(0);
        self.names.insert(key.0, name);
        name
    }

    fn name_at<'u>(&mut self, mut unit: &'u Unit<'a>, mut at: gimli::UnitOffset) -> Option<usize>
    where
        Self: 'u,
    {
        let mut plain = None;
        for _ in 0..MAX_HOPS {
            let entry = unit.entry(at).ok()?;
            self.step(1 + entry.attrs().len())?;
            let text = |at: DwAt| self.dwarf.attr_string(unit, entry.attr_value(at)?).ok();
            if let Some(linkage) = text(DW_AT_linkage_name).or_else(|| text(DW_AT_MIPS_linkage_name)) {
                return Some(self.text(linkage.slice()));
            }
            plain = plain.or_else(|| text(DW_AT_name));
            let next = entry.attr_value(DW_AT_abstract_origin).or_else(|| entry.attr_value(DW_AT_specification));
            let Some(next) = self.referred(unit, next) else { break };
            (unit, at) = next;
        }
        plain.map(|name| self.text(name.slice()))
    }

    /// The entry that a reference leads to.
    fn referred<'u>(
        &self,
        unit: &'u Unit<'a>,
        value: Option<AttributeValue<Bytes<'a>>>,
    ) -> Option<(&'u Unit<'a>, gimli::UnitOffset)>
    where
        Self: 'u,
    {
        match value? {
            AttributeValue::UnitRef(at) => Some((unit, at)),
            AttributeValue::DebugInfoRef(at) => {
                let place = |unit: &Unit<'a>| unit.header.debug_info_offset().is_some_and(|start| start.0 <= at.0);
                let unit = self.units.get(self.units.partition_point(place).checked_sub(1)?)?;
                Some((unit, at.to_unit_offset(&unit.header)?))
            }
            _ => None,
        }
    }

    /// Directory and name of a file, as far as the line program says them.
    fn file(&mut self, files: &mut Files<'_, 'a>, index: u64) -> usize {
        if let Some(known) = files.known.get(&index) {
            return *known;
        }
        let text = self.file_name(files.unit, index).map_or(0, |name| self.text(&name));
        files.known.insert(index, text);
        text
    }

    fn file_name(&self, unit: &Unit<'a>, index: u64) -> Option<Vec<u8>> {
        let header = unit.line_program.as_ref()?.header();
        let file = header.file(index)?;
        let text = |value| self.dwarf.attr_string(unit, value).ok().map(|text| text.slice().to_vec());
        let name = text(file.path_name())?;
        let directory = file.directory(header).and_then(text).unwrap_or_default();
        if name.starts_with(b"/") || directory.is_empty() {
            return Some(name);
        }
        Some([&directory, &b"/"[..], &name].concat())
    }

    /// Keeps a text; the empty one if there is no room.
    fn text(&mut self, text: &[u8]) -> usize {
        let Some(left) = self.texts_left.checked_sub(text.len()) else { return 0 };
        if text.is_empty() {
            return 0;
        }
        self.texts_left = left;
        self.functions.texts.push(text.to_vec());
        self.functions.texts.len() - 1
    }
}
