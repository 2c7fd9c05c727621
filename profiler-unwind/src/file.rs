//! Rows of an ELF file, from bounded reads.

use std::fs::File;
use std::ops::Range;

use gimli::{BaseAddresses, LittleEndian};
use jitprof_common::machine::Machine;

use super::augmentation::without_unknown_letters;
use super::builder::RowTableBuilder;
use super::eh_frame::{Compiler, compile};
use super::linkage::add_linkage_tables;
use super::machine::vendor;
use super::rows::RowTable;
use super::sigreturn::add_sigreturns;
use super::stats::RowStats;
use super::synth::rows_of_code;
use crate::elf::{ElfError, Layout, SHF_COMPRESSED, Section, Segment, Source};

/// Most bytes of a section that are read. Node's has 2.7 MB, Chromium's about 30 MB.
const MAX_SECTION_BYTES: u64 = 128 << 20;

/// The largest `.eh_frame` in which functions are looked for.
const MAX_FUNCTIONS_BYTES: u64 = 48 << 20;

/// Real compressed `.debug_frame` reach 4 to 1.
const MAX_INFLATION: u64 = 32;

/// Bytes of an `.eh_frame_hdr` that say where `.eh_frame` is.
const HDR_BYTES: u64 = 32;

/// Most bytes of an image's symbols that are read; a vDSO has some ten of 24 bytes each.
const MAX_SYMBOL_BYTES: u64 = 64 << 10;
const SYMBOL_BYTES: usize = 24;
const STT_FUNC: u8 = 2;

/// The rows of one file.
#[derive(Clone, Debug)]
pub struct ElfRows {
    /// Whose code it is; the BPF program unwinds that of its own machine only.
    pub machine: Machine,
    /// Rules by the file's own addresses.
    pub table: RowTable,
    /// Executable `PT_LOAD` segments, ascending by address.
    pub segments: Vec<Segment>,
    /// What became of its call frame information.
    pub stats: RowStats,
}

/// Why a file gives no rows.
#[derive(Debug, thiserror::Error)]
pub enum RowsError {
    /// No ELF program or library that can be read.
    #[error(transparent)]
    Elf(#[from] ElfError),
    /// Code of another machine.
    #[error("ELF machine {0} is not supported: rows are made for x86-64 (62) and AArch64 (183)")]
    Machine(u16),
}

/// The rows of an ELF program or library. A file without call frame information gives an empty table.
///
/// `.eh_frame` is found by its section header, or without one through `PT_GNU_EH_FRAME`; functions that only
/// `.debug_frame` knows (Go's) come from there. `.plt` sections that no entry covers (lld writes none) get their known
/// rules. Reads each section once; libc takes a few milliseconds.
///
/// # Errors
/// [`RowsError`], if the file cannot be read or holds code of another machine than x86-64 and AArch64.
pub fn rows_of_elf(file: &File) -> Result<ElfRows, RowsError> {
    rows_of_source(&Source::File(file))
}

/// The same from an image in memory: the vDSO, which is no file. File offsets are offsets in the image.
///
/// # Errors
/// As [`rows_of_elf`].
pub fn rows_of_elf_bytes(image: &[u8]) -> Result<ElfRows, RowsError> {
    rows_of_source(&Source::Bytes(image))
}

/// Where the functions of an ELF program or library are, or the parts that compilers have split them into, as its
/// `.eh_frame` has them: ascending, those of its first `most` entries. Of what cannot be read there are none.
pub fn functions_of_elf(source: &Source<'_>, most: usize) -> Vec<Range<u64>> {
    let Ok(layout) = Layout::read(source) else { return Vec::new() };
    let Some(machine) = Machine::of_elf(layout.machine.into()) else { return Vec::new() };
    if layout.section(".eh_frame").is_some_and(|section| section.size > MAX_FUNCTIONS_BYTES) {
        return Vec::new();
    }
    let Some((address, bytes, _)) = eh_frame(source, &layout, &mut RowStats::default()) else { return Vec::new() };
    let bases = bases(&layout).set_eh_frame(address);
    let bytes = without_unknown_letters(&bytes, machine);
    let mut section = gimli::EhFrame::new(&bytes, LittleEndian);
    section.set_vendor(vendor(machine));
    let mut compiler = Compiler::new(section, &bases, machine, 0);
    let entries = compiler.functions(most);
    let ranges = entries.filter_map(|at| compiler.range(at));
    let mut functions: Vec<Range<u64>> = ranges.filter(|function| !function.is_empty()).collect();
    functions.sort_unstable_by_key(|function| function.start);
    functions
}

/// Rows from the code bytes of an image's exported functions: AArch64's vDSO has no call frame information, and its
/// functions, which keep their return address in the link register, cannot be left by the frame pointer.
fn add_exported_functions(source: &Source<'_>, layout: &Layout, machine: Machine, builder: &mut RowTableBuilder) {
    let symbols = layout.section(".dynsym").and_then(|section| source.contents(section, MAX_SYMBOL_BYTES).ok());
    for symbol in symbols.unwrap_or_default().as_chunks::<SYMBOL_BYTES>().0 {
        let field = |at: usize| u64::from_le_bytes(*symbol[at..].first_chunk().expect("invariant: fields are inside"));
        let (is_function, start, size) = (symbol[4] & 15 == STT_FUNC, field(8), field(16));
        let Some((offset, available)) = layout.loaded_from(start).filter(|_| is_function) else { continue };
        let rows = source.read(offset, size.min(available)).ok().and_then(|code| rows_of_code(machine, start, &code));
        if let Some(rows) = rows {
            builder.add_table(&rows);
        }
    }
}

/// The addresses of code that is really in the file, ascending and without overlap: what a header says beyond that would
/// take rows for nothing.
fn code_in_file(segments: &[Segment], length: u64) -> Vec<Range<u64>> {
    let mut code: Vec<Range<u64>> = Vec::new();
    let mut left = length;
    for segment in segments {
        let bytes = segment.file_size.min(length.saturating_sub(segment.file_offset)).min(left);
        let start = segment.svma.max(code.last().map_or(0, |before| before.end));
        let end = segment.svma.saturating_add(bytes);
        if start < end {
            left = left.saturating_sub(end.saturating_sub(start));
            code.push(start..end);
        }
    }
    code
}

fn rows_of_source(source: &Source<'_>) -> Result<ElfRows, RowsError> {
    let layout = Layout::read(source)?;
    let machine = Machine::of_elf(layout.machine.into()).ok_or(RowsError::Machine(layout.machine))?;
    let segments = layout.code();
    let code = code_in_file(&segments, source.length().map_err(ElfError::Read)?);
    let code_bytes = code.iter().fold(0_u64, |sum, range| sum.saturating_add(range.end.saturating_sub(range.start)));
    let mut builder = RowTableBuilder::for_code(code_bytes);
    let mut stats = RowStats::default();
    let bases = bases(&layout);
    if let Some((address, bytes, open_ended)) = eh_frame(source, &layout, &mut stats) {
        let bases = bases.clone().set_eh_frame(address);
        let bytes = without_unknown_letters(&bytes, machine);
        let mut section = gimli::EhFrame::new(&bytes, LittleEndian);
        section.set_vendor(vendor(machine));
        compile(section, &bases, machine, &code, open_ended, (&mut builder, &mut stats));
    }
    if let Some(section) = layout.section(".debug_frame")
        && let Some(bytes) = contents(source, section)
    {
        let mut section = gimli::DebugFrame::new(&bytes, LittleEndian);
        section.set_address_size(8);
        section.set_vendor(vendor(machine));
        compile(section, &bases, machine, &code, false, (&mut builder, &mut stats));
    }
    if matches!(source, Source::Bytes(_)) && machine == Machine::Aarch64 {
        add_exported_functions(source, &layout, machine, &mut builder);
    }
    add_linkage_tables(source, &layout, machine, &code, &mut builder);
    if machine == Machine::X86_64 {
        add_sigreturns(source, &layout, &code, (&mut builder, &mut stats));
    }
    stats.over_limit = stats.over_limit.saturating_add(builder.overflow());
    let (table, cut) = builder.finish();
    stats.cut |= cut;
    stats.rows = u64::try_from(table.len()).unwrap_or(u64::MAX);
    Ok(ElfRows { machine, table, segments, stats })
}

/// The address and bytes of `.eh_frame`, and whether they may reach beyond its end.
fn eh_frame(source: &Source<'_>, layout: &Layout, stats: &mut RowStats) -> Option<(u64, Vec<u8>, bool)> {
    if let Some(section) = layout.section(".eh_frame") {
        stats.cut |= section.size > MAX_SECTION_BYTES;
        let bytes = contents(source, section)?;
        return Some((section.svma, bytes, false));
    }
    let hdr_address = layout.eh_frame_hdr()?;
    let (offset, available) = layout.loaded_from(hdr_address)?;
    let bytes = source.read(offset, available.min(HDR_BYTES)).ok()?;
    let bases = BaseAddresses::default().set_eh_frame_hdr(hdr_address);
    // The table is not wanted, so an unknown count is no reason to fail: only the first pointer is decoded.
    let parsed = gimli::EhFrameHdr::new(&bytes, LittleEndian).parse(&bases, 8).ok()?;
    let gimli::Pointer::Direct(address) = parsed.eh_frame_ptr() else {
        return None;
    };
    let (offset, available) = layout.loaded_from(address)?;
    Some((address, source.read(offset, available.min(MAX_SECTION_BYTES)).ok()?, true))
}

/// What is wanted of a section: the front of it, if it is too large; all or nothing if it is compressed.
fn contents(source: &Source<'_>, section: &Section) -> Option<Vec<u8>> {
    if section.flags & SHF_COMPRESSED == 0 {
        return source.read(section.file_offset, section.size.min(MAX_SECTION_BYTES)).ok();
    }
    let plausible = section.size.saturating_mul(MAX_INFLATION);
    source.contents(section, plausible.min(MAX_SECTION_BYTES)).ok()
}

/// What pointers other than pc-relative ones are relative to.
fn bases(layout: &Layout) -> BaseAddresses {
    let mut bases = BaseAddresses::default();
    if let Some(text) = layout.section(".text") {
        bases = bases.set_text(text.svma);
    }
    if let Some(got) = layout.section(".got") {
        bases = bases.set_got(got.svma);
    }
    bases
}
