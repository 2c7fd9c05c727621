//! Rows of an ELF file, from bounded reads.

use std::fs::File;
use std::ops::Range;

use gimli::{BaseAddresses, LittleEndian};
use profiler_common::row::{CfaKind, Rule};

use super::builder::RowTableBuilder;
use super::eh_frame::compile;
use super::rows::RowTable;
use super::stats::RowStats;
use crate::elf::{ElfError, Layout, SHF_COMPRESSED, SHT_NOBITS, Section, Segment, Source};

/// Most bytes of a section that are read. Node's has 2.7 MB, Chromium's about 30 MB.
const MAX_SECTION_BYTES: u64 = 128 << 20;

/// Bytes of an `.eh_frame_hdr` that say where `.eh_frame` is.
const HDR_BYTES: u64 = 32;

const EM_X86_64: u16 = 62;

/// The rows of one file.
#[derive(Clone, Debug)]
pub struct ElfRows {
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
    /// Code of another machine than x86-64.
    #[error("ELF machine {0} is not supported: rows are made for x86-64 (62)")]
    Machine(u16),
}

/// The rows of an ELF program or library. A file without call frame information gives an empty table.
///
/// `.eh_frame` is found by its section header, or without one through `PT_GNU_EH_FRAME`; functions that only
/// `.debug_frame` knows (Go's) come from there. `.plt` sections that no entry covers (lld writes none) get their known
/// rules. Reads each section once; libc takes a few milliseconds.
///
/// # Errors
/// [`RowsError`], if the file cannot be read or holds no x86-64 code.
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

fn rows_of_source(source: &Source<'_>) -> Result<ElfRows, RowsError> {
    let layout = Layout::read(source)?;
    if layout.machine != EM_X86_64 {
        return Err(RowsError::Machine(layout.machine));
    }
    let segments = layout.code();
    let code: Vec<Range<u64>> = segments.iter().map(Segment::addresses).collect();
    let mut builder = RowTableBuilder::default();
    let mut stats = RowStats::default();
    let bases = bases(&layout);
    if let Some((address, bytes, open_ended)) = eh_frame(source, &layout, &mut stats) {
        let bases = bases.clone().set_eh_frame(address);
        compile(gimli::EhFrame::new(&bytes, LittleEndian), &bases, &code, open_ended, &mut builder, &mut stats);
    }
    if let Some(section) = layout.section(".debug_frame")
        && let Some(bytes) = contents(source, section)
    {
        let mut section = gimli::DebugFrame::new(&bytes, LittleEndian);
        section.set_address_size(8);
        compile(section, &bases, &code, false, &mut builder, &mut stats);
    }
    add_linkage_tables(source, &layout, &code, &mut builder);
    stats.over_limit = stats.over_limit.saturating_add(builder.overflow());
    let (table, cut) = builder.finish();
    stats.cut |= cut;
    stats.rows = u64::try_from(table.len()).unwrap_or(u64::MAX);
    Ok(ElfRows { table, segments, stats })
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
    source.contents(section, MAX_SECTION_BYTES).ok()
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

/// Slots that no call frame information covers: where it does, its entries came first and win.
fn add_linkage_tables(source: &Source<'_>, layout: &Layout, code: &[Range<u64>], builder: &mut RowTableBuilder) {
    for section in layout.sections.iter().filter(|section| section.kind != SHT_NOBITS) {
        let range = section.svma..section.svma.saturating_add(section.size);
        if !code.iter().any(|code| code.start <= range.start && range.end <= code.end) {
            continue;
        }
        match section.name.as_str() {
            ".plt" if is_classic(source, section.file_offset) => {
                let entered = |offset| Rule::with_cfa(CfaKind::Sp, offset);
                let at = |offset| range.start.saturating_add(offset);
                // The first slot is jumped to from the others, with two words on the stack, and pushes a third.
                builder.add(range.clone(), [(at(0), entered(16)), (at(6), entered(24)), (at(16), Rule::PLT)]);
            }
            ".plt.sec" | ".plt.got" => builder.add(range.clone(), [(range.start, Rule::ENTRY)]),
            _ => {}
        }
    }
}

/// Whether the second slot is `jmp *x(%rip); push n; jmp`.
fn is_classic(source: &Source<'_>, file_offset: u64) -> bool {
    let slot = file_offset.checked_add(16).and_then(|offset| source.read(offset, 16).ok());
    slot.is_some_and(|slot| matches!(slot.as_slice(), [0xff, 0x25, _, _, _, _, 0x68, _, _, _, _, 0xe9, ..]))
}
