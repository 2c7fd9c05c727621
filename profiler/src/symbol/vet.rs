//! What debug information would cost blazesym, found out before it is given any.
//!
//! blazesym (0.2.7) trusts DWARF to be in proportion: it recurses once for each level of inlining
//! (`dwarf/function.rs`, `InlinedFunction::parse`), copies a range list for each entry that refers to it, and runs a
//! line program for each unit that refers to it, and makes a path of its own for each file of it. A megabyte made for the purpose overflows the stack or asks for
//! terabytes, and neither can be caught. One pass over all entries bounds all of it; what fails is left out, and the
//! symbol tables name the code. Cost: see docs/design/symbols.md.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use gimli::{EndianSlice, LittleEndian, Reader as _, UnitRef, UnitType};

use super::stats::DebugLoss;

/// Levels of inlining in one function. LLVM's own sources reach 40 when built with LTO.
pub const MAX_INLINE_DEPTH: usize = 256;
/// Compilation units of one file; Chromium has 40,000. blazesym keeps about 500 bytes for each.
const MAX_UNITS: u64 = 131_072;
/// The pass over all entries takes 7 ms for a megabyte of `.debug_info` in a release build. Tables that overlap on
/// purpose make it quadratic, here as in blazesym, so the time itself is the limit.
const MAX_TIME: Duration = Duration::from_secs(5);
/// How often a line program may be shared: dwz's partial units and type units share that of their unit.
const LINE_SHARING: u64 = 8;
/// How many times the bytes of line programs the paths of their files may come to, and what else there may be; honest ones
/// come to three times.
const PATH_SHARE: u64 = 16;
const PATH_SLACK: u64 = 1 << 20;
/// What a path takes in memory besides its bytes, about.
const PATH_BYTES: u64 = 64;
/// So that tiny files are not measured by their tiny sections.
const SLACK: u64 = 65536;
/// How often the bytes of abbreviations may be read: tables of honest files do not overlap.
const ABBREVIATION_SHARING: u64 = 2;
/// What a parsed abbreviation takes in memory, about.
const ABBREVIATION_BYTES: u64 = 120;
/// Memory for abbreviations: some, and so many times the bytes of the entries that are made of them.
const ABBREVIATION_MEMORY: u64 = 16 << 20;
const ABBREVIATION_MEMORY_SHARE: u64 = 8;

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// What the pass has added up.
struct Tally {
    deadline: Instant,
    units: u64,
    line_bytes: u64,
    path_bytes: u64,
    ranges: u64,
    max_line_bytes: u64,
    max_path_bytes: u64,
    max_ranges: u64,
    /// Entries of each range list seen, by its offset and the section's version.
    range_lists: HashMap<(usize, bool), u64>,
}

/// Looks through the sections that `find` returns (empty where there is none).
pub(super) fn check<'a>(find: impl Fn(&str) -> &'a [u8]) -> Result<(), DebugLoss> {
    let load = |id: gimli::SectionId| Ok::<_, gimli::Error>(EndianSlice::new(find(id.name()), LittleEndian));
    let mut dwarf = gimli::Dwarf::load(load).map_err(|_| DebugLoss::Malformed)?;
    check_abbreviations(&dwarf, find(".debug_abbrev"), find(".debug_info").len())?;
    dwarf.populate_abbreviations_cache(gimli::AbbreviationsCacheStrategy::Duplicates);
    let length = |name: &str| u64::try_from(find(name).len()).unwrap_or(u64::MAX);
    let mut tally = Tally {
        deadline: Instant::now() + MAX_TIME,
        units: 0,
        line_bytes: 0,
        path_bytes: 0,
        ranges: 0,
        max_line_bytes: length(".debug_line").saturating_mul(LINE_SHARING).saturating_add(SLACK),
        max_path_bytes: length(".debug_line").saturating_mul(PATH_SHARE).saturating_add(PATH_SLACK),
        max_ranges: length(".debug_ranges").saturating_add(length(".debug_rnglists")).saturating_add(SLACK),
        range_lists: HashMap::new(),
    };
    let mut headers = dwarf.units();
    while let Some(header) = headers.next().map_err(|_| DebugLoss::Malformed)? {
        if matches!(header.type_(), UnitType::Type { .. } | UnitType::SplitType { .. }) {
            continue;
        }
        tally.unit()?;
        // blazesym passes over units that do not parse, too.
        if let Ok(unit) = dwarf.unit(header) {
            let unit = UnitRef::new(&dwarf, &unit);
            tally.line_program(unit)?;
            tally.entries(unit)?;
        }
    }
    Ok(())
}

/// Whether the tables of abbreviations are in proportion, before any of them is parsed: each is kept by whoever parses it,
/// and tables that overlap would cost the section's length over and over.
fn check_abbreviations(dwarf: &gimli::Dwarf<Slice<'_>>, section: &[u8], info_bytes: usize) -> Result<(), DebugLoss> {
    let mut offsets = BTreeSet::new();
    let mut headers = dwarf.units();
    while let Some(header) = headers.next().map_err(|_| DebugLoss::Malformed)? {
        offsets.insert(header.debug_abbrev_offset().0);
        if u64::try_from(offsets.len()).unwrap_or(u64::MAX) > MAX_UNITS {
            return Err(DebugLoss::Expands);
        }
    }
    let length = |bytes: usize| u64::try_from(bytes).unwrap_or(u64::MAX);
    let max_bytes = length(section.len()).saturating_mul(ABBREVIATION_SHARING).saturating_add(SLACK);
    let memory = length(info_bytes).saturating_mul(ABBREVIATION_MEMORY_SHARE).saturating_add(ABBREVIATION_MEMORY);
    let (mut bytes, mut declarations) = (0_u64, 0_u64);
    for offset in offsets {
        let table = section.get(offset..).unwrap_or_default();
        let (read, count) = abbreviations_in(table, max_bytes - bytes);
        bytes = bytes.saturating_add(read);
        declarations = declarations.saturating_add(count);
        if bytes >= max_bytes || declarations.saturating_mul(ABBREVIATION_BYTES) > memory {
            return Err(DebugLoss::Expands);
        }
    }
    Ok(())
}

/// Bytes and declarations of the table that `section` begins with, as far as it can be read; not much more than `limit`
/// bytes.
fn abbreviations_in(section: &[u8], limit: u64) -> (u64, u64) {
    let mut rest = EndianSlice::new(section, LittleEndian);
    let left = |rest: &Slice<'_>| u64::try_from(section.len() - rest.len()).unwrap_or(u64::MAX);
    let mut count = 0;
    while left(&rest) < limit {
        match declaration(&mut rest) {
            Ok(true) => count += 1,
            // Its end, or what no parser reads on from.
            Ok(false) | Err(_) => break,
        }
    }
    (left(&rest), count)
}

/// Passes over a declaration. Returns false at the end of the table.
fn declaration(rest: &mut Slice<'_>) -> gimli::Result<bool> {
    if rest.read_uleb128()? == 0 {
        return Ok(false);
    }
    // Tag, and whether there are children.
    rest.read_uleb128()?;
    rest.read_u8()?;
    loop {
        let (name, form) = (rest.read_uleb128()?, rest.read_uleb128()?);
        if form == u64::from(gimli::DW_FORM_implicit_const.0) {
            rest.read_sleb128()?;
        }
        if (name, form) == (0, 0) {
            return Ok(true);
        }
    }
}

impl Tally {
    fn unit(&mut self) -> Result<(), DebugLoss> {
        self.units = self.units.saturating_add(1);
        let expands = self.units > MAX_UNITS || Instant::now() > self.deadline;
        if expands { Err(DebugLoss::Expands) } else { Ok(()) }
    }

    fn line_program(&mut self, unit: UnitRef<'_, Slice<'_>>) -> Result<(), DebugLoss> {
        let Some(program) = &unit.line_program else {
            return Ok(());
        };
        let length = u64::try_from(program.header().unit_length()).unwrap_or(u64::MAX);
        self.line_bytes = self.line_bytes.saturating_add(length);
        if self.line_bytes > self.max_line_bytes {
            return Err(DebugLoss::Expands);
        }
        self.paths(unit, program.header())
    }

    /// The paths of the files of a line program: one short directory after another, or a long one over and over.
    fn paths<'a>(
        &mut self,
        unit: UnitRef<'_, Slice<'a>>,
        header: &gimli::LineProgramHeader<Slice<'a>>,
    ) -> Result<(), DebugLoss> {
        let length = |bytes: usize| u64::try_from(bytes).unwrap_or(u64::MAX);
        let own = unit.comp_dir.map_or(0, |path| length(path.len()));
        for file in header.file_names() {
            let directory = file.directory(header).and_then(|path| unit.attr_string(path).ok());
            let bytes = own.saturating_add(directory.map_or(0, |path| length(path.len())));
            self.path_bytes = self.path_bytes.saturating_add(bytes).saturating_add(PATH_BYTES);
            if self.path_bytes > self.max_path_bytes {
                return Err(DebugLoss::Expands);
            }
        }
        Ok(())
    }

    /// Every entry of a unit: nesting of inlined functions, and what the range lists come to.
    fn entries(&mut self, unit: UnitRef<'_, Slice<'_>>) -> Result<(), DebugLoss> {
        let malformed = |_| DebugLoss::Malformed;
        let mut entries = unit.entries_raw(None).map_err(malformed)?;
        let mut open_inlined = Vec::new();
        while !entries.is_empty() {
            let depth = entries.next_depth();
            let Some(abbreviation) = entries.read_abbreviation().map_err(malformed)? else {
                continue;
            };
            if abbreviation.tag() == gimli::DW_TAG_inlined_subroutine {
                while open_inlined.last().is_some_and(|open| *open >= depth) {
                    open_inlined.pop();
                }
                open_inlined.push(depth);
                if open_inlined.len() > MAX_INLINE_DEPTH {
                    return Err(DebugLoss::TooDeep);
                }
            }
            let attributes = abbreviation.attributes();
            if !attributes.iter().any(|attribute| attribute.name() == gimli::DW_AT_ranges) {
                entries.skip_attributes(attributes).map_err(malformed)?;
                continue;
            }
            for attribute in attributes {
                let attribute = entries.read_attribute(*attribute).map_err(malformed)?;
                if attribute.name() == gimli::DW_AT_ranges {
                    self.range_list(unit, attribute.value())?;
                }
            }
        }
        Ok(())
    }

    fn range_list<'a>(
        &mut self,
        unit: UnitRef<'_, Slice<'a>>,
        value: gimli::AttributeValue<Slice<'a>>,
    ) -> Result<(), DebugLoss> {
        // An offset that leads nowhere is blazesym's to refuse, for that entry alone.
        let Ok(Some(offset)) = unit.attr_ranges_offset(value) else {
            return Ok(());
        };
        let key = (offset.0, unit.header.version() >= 5);
        let count = match self.range_lists.get(&key) {
            Some(count) => *count,
            None => {
                let count = self.count_ranges(unit, offset);
                self.range_lists.insert(key, count);
                count
            }
        };
        self.ranges = self.ranges.saturating_add(count);
        if self.ranges > self.max_ranges || Instant::now() > self.deadline {
            return Err(DebugLoss::Expands);
        }
        Ok(())
    }

    fn count_ranges(&self, unit: UnitRef<'_, Slice<'_>>, offset: gimli::RangeListsOffset<usize>) -> u64 {
        let Ok(mut list) = unit.raw_ranges(offset) else {
            return 0;
        };
        let mut count: u64 = 0;
        while let Ok(Some(_)) = list.next() {
            count = count.saturating_add(1);
            if count > self.max_ranges {
                break;
            }
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITH_CHILDREN: u8 = 1;

    /// One DWARF 4 unit of little-endian, 64-bit code with these entries.
    fn unit(entries: &[u8]) -> Vec<u8> {
        let length = u32::try_from(7 + entries.len()).unwrap();
        [&length.to_le_bytes()[..], &[4, 0], &[0; 4], &[8], entries].concat()
    }

    /// Abbreviations: 1 a unit (0x11), 2 an inlined function (0x1d), both with children and nothing else; 3 a function
    /// (0x2e) with a range list (0x55) by section offset (0x17).
    fn abbreviations() -> Vec<u8> {
        let unit = [1, 0x11, WITH_CHILDREN, 0, 0];
        let inlined = [2, 0x1d, WITH_CHILDREN, 0, 0];
        let function = [3, 0x2e, 0, 0x55, 0x17, 0, 0];
        [&unit[..], &inlined, &function, &[0]].concat()
    }

    fn check_all(info: &[u8], ranges: &[u8]) -> Result<(), DebugLoss> {
        let abbreviations = abbreviations();
        let sections = [(".debug_info", info), (".debug_abbrev", &abbreviations), (".debug_ranges", ranges)];
        check(|name| sections.iter().find(|(known, _)| *known == name).map_or(&[][..], |(_, bytes)| bytes))
    }

    #[test]
    fn inlining_is_allowed_up_to_the_limit_only() {
        let nested = |levels: usize| {
            let mut entries = vec![1];
            entries.extend(vec![2; levels]);
            entries.extend(vec![0; levels + 1]);
            unit(&entries)
        };
        assert_eq!(check_all(&nested(MAX_INLINE_DEPTH), &[]), Ok(()));
        assert_eq!(check_all(&nested(MAX_INLINE_DEPTH + 1), &[]), Err(DebugLoss::TooDeep));
        assert_eq!(check_all(&nested(1 << 20), &[]), Err(DebugLoss::TooDeep));
        // Side by side is no nesting.
        let mut entries = vec![1];
        entries.extend([2, 0].repeat(10 * MAX_INLINE_DEPTH));
        assert_eq!(check_all(&unit(&entries), &[]), Ok(()));
    }

    #[test]
    fn one_long_directory_of_many_files_is_refused() {
        let program = |directory: usize, files: usize| {
            let files = [&b"f"[..], &[0, 1, 0, 0]].concat().repeat(files);
            // Of DWARF 4, without any standard opcode and without a row.
            let tables = [&[1, 1, 1, 0xfb, 14, 1][..], &vec![b'd'; directory][..], &[0, 0], &files[..], &[0]].concat();
            let length = u32::try_from(tables.len()).unwrap();
            let header = [&(length + 6).to_le_bytes()[..], &[4, 0], &length.to_le_bytes()].concat();
            [header, tables].concat()
        };
        let of = |lines: &[u8]| {
            // A unit (0x11) with a line program (0x10) by section offset (0x17).
            let abbreviations = [1, 0x11, 0, 0x10, 0x17, 0, 0, 0];
            let info = unit(&[1, 0, 0, 0, 0]);
            let sections = [(".debug_info", &*info), (".debug_abbrev", &abbreviations), (".debug_line", lines)];
            check(|name| sections.iter().find(|(known, _)| *known == name).map_or(&[][..], |(_, bytes)| bytes))
        };
        assert_eq!(of(&program(60, 10_000)), Ok(()));
        assert_eq!(of(&program(10_000, 60)), Ok(()));
        assert_eq!(of(&program(10_000, 10_000)), Err(DebugLoss::Expands));
    }

    #[test]
    fn one_range_list_used_by_everything_is_refused() {
        // 10,000 ranges of 16 bytes, then the end.
        let list = [[1u64.to_le_bytes(), 2u64.to_le_bytes()].concat().repeat(10_000), vec![0; 16]].concat();
        let users = |count: usize| {
            let mut entries = vec![1];
            entries.extend([3, 0, 0, 0, 0].repeat(count));
            unit(&entries)
        };
        assert_eq!(check_all(&users(1), &list), Ok(()));
        assert_eq!(check_all(&users(10_000), &list), Err(DebugLoss::Expands));
    }

    #[test]
    fn tables_of_abbreviations_that_overlap_are_refused_before_any_is_parsed() {
        let declarations = |count: usize| [[1, 0x2e, 0, 0, 0].repeat(count), vec![0]].concat();
        // So many units, each of whose tables begins one declaration further on.
        let units = |count: u32| -> Vec<u8> {
            (0..count)
                .flat_map(|index| [&7_u32.to_le_bytes()[..], &[4, 0], &(index * 5).to_le_bytes(), &[8]].concat())
                .collect()
        };
        let of = |info: &[u8], abbreviations: &[u8]| {
            let sections = [(".debug_info", info), (".debug_abbrev", abbreviations)];
            check(|name| sections.iter().find(|(known, _)| *known == name).map_or(&[][..], |(_, bytes)| bytes))
        };
        assert_eq!(of(&units(10), &declarations(1000)), Ok(()), "small ones cost nothing");
        let began = Instant::now();
        assert_eq!(of(&units(100), &declarations(100_000)), Err(DebugLoss::Expands));
        assert_eq!(
            of(&units(1), &declarations(800_000)),
            Err(DebugLoss::Expands),
            "nor one without anything made of it"
        );
        assert!(began.elapsed() < MAX_TIME);
    }

    #[test]
    fn more_units_than_any_program_has_are_refused() {
        let many = unit(&[]).repeat(usize::try_from(MAX_UNITS).unwrap() + 1);
        assert_eq!(check_all(&many, &[]), Err(DebugLoss::Expands));
    }

    #[test]
    fn information_cut_at_any_byte_is_refused_or_passes() {
        let whole = unit(&[1, 2, 2, 3, 0, 0, 0, 0, 0, 0, 0]);
        for length in 0..whole.len() {
            let outcome = check_all(&whole[..length], &[0; 16]);
            assert!(length == 0 || outcome == Err(DebugLoss::Malformed), "{length}: {outcome:?}");
        }
        assert_eq!(check_all(&whole, &[0; 16]), Ok(()));
    }
}
