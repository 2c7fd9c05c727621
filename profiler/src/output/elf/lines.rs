//! The line table, and the unit that points to it.

use gimli::write::{
    Address, AttributeValue, Dwarf, EndianVec, FileId, LineProgram, LineString, Range, RangeList, Sections, Unit,
};
use gimli::{DW_AT_low_pc, DW_AT_name, DW_AT_producer, DW_AT_ranges, DW_AT_stmt_list, Encoding, Format, LineEncoding};
use rustc_hash::FxHashMap;

use super::{ElfError, ElfFunction};
use crate::output::function_source;
use crate::profile::printable;
use jitprof_jitdump::ByteOrder;
use jitprof_jitdump::code::LineRow;

/// The names of the sections that are made, and their bytes.
pub(super) type Named = Vec<(&'static str, Vec<u8>)>;

/// The sections, and how many rows they have; none without rows.
pub(super) fn sections(order: ByteOrder, functions: &[&ElfFunction]) -> Result<(Named, usize), ElfError> {
    // Version 4, which perf's own readers know, too.
    let encoding = Encoding { format: Format::Dwarf32, version: 4, address_size: 8 };
    let text = |text: &str| LineString::String(text.as_bytes().to_vec());
    let mut program =
        LineProgram::new(encoding, LineEncoding::default(), text("/"), None, text("generated code"), None);
    let mut files = FxHashMap::default();
    let mut ranges = Vec::new();
    let mut rows = 0;
    for function in functions.iter().filter(|function| !function.lines.is_empty()) {
        program.begin_sequence(Some(Address::Constant(function.start)));
        let own = function_source(&function.name);
        for LineRow { offset, line, file } in function.lines.iter().filter(|row| u64::from(row.offset) < function.size)
        {
            let file = file_id(&mut program, &mut files, &file, own.as_deref());
            let row = program.row();
            row.address_offset = u64::from(offset);
            row.file = file;
            row.line = u64::from(line);
            program.generate_row();
            rows += 1;
        }
        program.end_sequence(function.size);
        ranges.push(Range::StartLength { begin: Address::Constant(function.start), length: function.size });
    }
    if rows == 0 {
        return Ok((Named::new(), 0));
    }
    let mut dwarf = Dwarf::new();
    let id = dwarf.units.add(Unit::new(encoding, program));
    let unit = dwarf.units.get_mut(id);
    let ranges = unit.ranges.add(RangeList(ranges));
    let root = unit.get_mut(unit.root());
    root.set(DW_AT_producer, AttributeValue::String(b"jitprof".to_vec()));
    root.set(DW_AT_name, AttributeValue::String(b"generated code".to_vec()));
    root.set(DW_AT_stmt_list, AttributeValue::LineProgramRef);
    root.set(DW_AT_low_pc, AttributeValue::Address(Address::Constant(0)));
    root.set(DW_AT_ranges, AttributeValue::RangeListRef(ranges));
    let endian = match order {
        ByteOrder::Little => gimli::RunTimeEndian::Little,
        ByteOrder::Big => gimli::RunTimeEndian::Big,
    };
    let mut written = Sections::new(EndianVec::new(endian));
    dwarf.write(&mut written).map_err(|error| ElfError::Format(error.to_string()))?;
    let mut named = Named::new();
    let kept: Result<(), ElfError> = written.for_each_mut(|id, section| {
        if !section.slice().is_empty() {
            named.push((id.name(), std::mem::replace(section, EndianVec::new(endian)).into_vec()));
        }
        Ok(())
    });
    kept?;
    Ok((named, rows))
}

/// V8 loses the names of some files; then it is the function's own.
fn file_id(program: &mut LineProgram, files: &mut FxHashMap<String, FileId>, file: &str, own: Option<&str>) -> FileId {
    let name = if file.is_empty() { own.unwrap_or("?") } else { file };
    // No NUL is left, and the name is not empty: both would be a panic.
    let name = printable(name);
    if let Some(known) = files.get(&*name) {
        return *known;
    }
    let directory = program.default_directory();
    let id = program.add_file(LineString::String(name.as_bytes().to_vec()), directory, None);
    files.insert(name.into_owned(), id);
    id
}
