//! A private copy of the symbol tables and debug information of an ELF file, as a small ELF file in sealed memory.
//!
//! blazesym maps the file that it reads. A mapped file that its owner truncates is a SIGBUS, and ends a profiler that
//! runs as root. So it is given this copy, which nobody else can reach or shrink. The copy holds only what names are
//! made of, under headers of our own:
//!
//! ```text
//! 0    ELF header
//! 64   section contents, each aligned to 64 bytes
//! ...  section names, section headers
//! ```
//!
//! | section | kept |
//! |---|---|
//! | `.symtab` + its strings | symbols of code (FUNC, IFUNC, and NOTYPE with a section), sorted out on the way |
//! | `.dynsym` + its strings | the same, if it has more of them than `.symtab` (which is then a leftover of stripping) |
//! | `.debug_{abbrev,addr,aranges,info,line,line_str,ranges,rnglists,str,str_offsets}` | inflated where compressed |
//!
//! Left out on purpose: `.gnu_debuglink`, `.gnu_debugaltlink` and `.debug_sup`, because blazesym would open the paths
//! that they name (a FIFO blocks, a device may act on being opened); see `debugfile` for what is done instead.
//! `.debug_loc` and types, because nothing reads them. For node 20 that is 12 of 99 MB.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use super::codesyms;
use super::stats::{DebugLoss, Unresolved};
use super::vet;
use super::worker::SymbolBudget;
use jitprof_unwind::elf::{
    self, ContentsError, ElfError, Layout, SECTION_HEADER_BYTES, SHT_DYNSYM, SHT_SYMTAB, Section, Source,
};

/// What part of it symbols may be without their names: 3.7 million of them. Names take more; what is parsed of a symbol takes as
/// much again, and some memory and time are needed even for one without a name.
const SYMBOLS_PART: u64 = 3;
/// Symbol and string tables of one file, together. Chromium has 180 MB with all its symbols.
pub const MAX_SYMBOL_BYTES: u64 = 256 << 20;
/// Debug information of one file, inflated. Beyond it, symbol tables alone give the names.
pub const MAX_DEBUG_BYTES: u64 = 512 << 20;

const SHT_PROGBITS: u32 = 1;
const SHT_STRTAB: u32 = 3;
/// Sections that `vet` looks into, then those that it does not need.
const VETTED: [&str; 7] = [
    ".debug_abbrev",
    ".debug_addr",
    ".debug_info",
    ".debug_line",
    ".debug_ranges",
    ".debug_rnglists",
    ".debug_aranges",
];
const PLAIN: [&str; 3] = [".debug_line_str", ".debug_str", ".debug_str_offsets"];
/// The copy. Dropping it frees the memory, unless blazesym still maps it.
#[derive(Debug)]
pub(super) struct Image {
    file: File,
    /// Size of the copy...
    pub(super) bytes: u64,
    /// ...and of what is parsed of its symbols once one is looked for: as much as they have without their names.
    pub(super) parsed_bytes: u64,
    /// Whether it has debug information.
    pub(super) has_debug: bool,
    /// Whether it has a symbol at all.
    pub(super) has_symbols: bool,
    /// Why debug information that the file has is not in here.
    pub(super) debug_loss: Option<DebugLoss>,
}

/// Where things are in a file; section headers that cannot be read leave nothing to be named by.
pub(super) fn layout_of(file: &File) -> Result<Layout, Unresolved> {
    let layout = Layout::read(&Source::File(file)).map_err(|error| match error {
        ElfError::Read(_) => Unresolved::Unreadable,
        ElfError::NotElf => Unresolved::NotElf,
        ElfError::Malformed => Unresolved::Malformed,
    })?;
    if layout.sections_malformed { Err(Unresolved::Malformed) } else { Ok(layout) }
}

impl Image {
    /// Copies from an open file. Time and memory are proportional to the sections kept.
    pub(super) fn copy(file: &File, layout: &Layout, budget: &SymbolBudget) -> Result<Self, Unresolved> {
        let unreadable = |_| Unresolved::Unreadable;
        let mut writer = Writer::new().map_err(unreadable)?;
        let parsed_bytes = copy_symbols(file, layout, budget.symbols, &mut writer)?;
        let debug = collect_debug(file, layout, budget.debug);
        let debug_loss = debug.as_ref().err().copied();
        let debug = debug.unwrap_or_default();
        for (name, bytes) in &debug {
            writer.section(name, SHT_PROGBITS, 0, bytes).map_err(unreadable)?;
        }
        let (file, bytes) = writer.finish().map_err(unreadable)?;
        Ok(Self { file, bytes, parsed_bytes, has_debug: !debug.is_empty(), has_symbols: parsed_bytes > 0, debug_loss })
    }

    /// A path under which this process can open the copy, as long as the image lives.
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }
}

/// Copies the better of the symbol tables, and returns how many bytes of symbols that were.
fn copy_symbols(file: &File, layout: &Layout, limit: u64, writer: &mut Writer) -> Result<u64, Unresolved> {
    let full = symbols_of(file, layout, SHT_SYMTAB, limit)?;
    let dynamic = symbols_of(file, layout, SHT_DYNSYM, limit)?;
    let mut copied = 0;
    let wanted_dynamic = dynamic.filter(|dynamic| full.as_ref().is_none_or(|full| full.0.len() < dynamic.0.len()));
    for (table, names) in [(full, [".symtab", ".strtab"]), (wanted_dynamic, [".dynsym", ".dynstr"])] {
        let Some((symbols, strings)) = table.filter(|(symbols, _)| !symbols.is_empty()) else {
            continue;
        };
        let kind = if names[0] == ".symtab" { SHT_SYMTAB } else { SHT_DYNSYM };
        let unreadable = |_| Unresolved::Unreadable;
        let strings = elf::read_bytes(file, strings.file_offset, strings.size).map_err(|_| Unresolved::Malformed)?;
        writer.section(names[0], kind, codesyms::SYMBOL_BYTES, &symbols).map_err(unreadable)?;
        writer.section(names[1], SHT_STRTAB, 0, &strings).map_err(unreadable)?;
        copied += u64::try_from(symbols.len()).unwrap_or(0);
    }
    Ok(copied)
}

/// The symbols of code, and the section of their names.
fn symbols_of<'a>(
    file: &File,
    layout: &'a Layout,
    kind: u32,
    limit: u64,
) -> Result<Option<(Vec<u8>, &'a Section)>, Unresolved> {
    let Some(table) = layout.section_of_kind(kind) else {
        return Ok(None);
    };
    let strings = layout.linked(table).ok_or(Unresolved::Malformed)?;
    if strings.kind != SHT_STRTAB {
        return Ok(None);
    }
    if table.size.saturating_add(strings.size) > limit || table.size > limit / SYMBOLS_PART {
        return Err(Unresolved::TooLarge);
    }
    let mut symbols = elf::read_bytes(file, table.file_offset, table.size).map_err(|_| Unresolved::Malformed)?;
    codesyms::keep(&mut symbols, &layout.sections);
    Ok(Some((symbols, strings)))
}

/// The debug sections, inflated and found harmless; empty if there are none.
fn collect_debug(file: &File, layout: &Layout, limit: u64) -> Result<Vec<(&'static str, Vec<u8>)>, DebugLoss> {
    if layout.section(".debug_info").is_none() {
        return Ok(Vec::new());
    }
    let wanted = || VETTED.into_iter().chain(PLAIN).filter_map(|name| layout.section(name));
    // As they are in the file, compressed perhaps: what is too large already need not be read.
    if wanted().fold(0_u64, |sum, section| sum.saturating_add(section.size)) > limit {
        return Err(DebugLoss::TooLarge);
    }
    let mut left = limit;
    let mut sections = Vec::new();
    for name in VETTED.into_iter().chain(PLAIN) {
        let Some(section) = layout.section(name) else {
            continue;
        };
        let bytes = read_section(file, section, left)?;
        left = left.saturating_sub(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        sections.push((name, bytes));
    }
    let find = |name: &str| sections.iter().find(|(known, _)| *known == name).map_or(&[][..], |(_, bytes)| bytes);
    vet::check(find)?;
    Ok(sections)
}

fn read_section(file: &File, section: &Section, limit: u64) -> Result<Vec<u8>, DebugLoss> {
    Source::File(file).contents(section, limit).map_err(|error| match error {
        ContentsError::TooLarge => DebugLoss::TooLarge,
        ContentsError::Malformed => DebugLoss::Malformed,
    })
}

/// Writes an ELF file of sections front to back; the header comes last, when the place of the tables is known.
#[derive(Debug)]
struct Writer {
    file: File,
    at: u64,
    headers: Vec<u8>,
    names: Vec<u8>,
}

impl Writer {
    fn new() -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut file = File::from(memfd_create("jitprof-symbols", flags)?);
        file.write_all(&[0; 64])?;
        Ok(Self { file, at: 64, headers: vec![0; SECTION_HEADER_BYTES], names: vec![0] })
    }

    fn section(&mut self, name: &str, kind: u32, entry_size: usize, bytes: &[u8]) -> io::Result<()> {
        let start = self.pad()?;
        self.file.write_all(bytes)?;
        let size = u64::try_from(bytes.len()).map_err(|_| io::ErrorKind::OutOfMemory)?;
        self.at = start.saturating_add(size);
        let name_at = u32::try_from(self.names.len()).map_err(|_| io::ErrorKind::OutOfMemory)?;
        self.names.extend_from_slice(name.as_bytes());
        self.names.push(0);
        for word in [name_at, kind] {
            self.headers.extend_from_slice(&word.to_le_bytes());
        }
        let entry_size = u64::try_from(entry_size).map_err(|_| io::ErrorKind::OutOfMemory)?;
        for word in [0, 0, start, size, 0, 64, entry_size] {
            self.headers.extend_from_slice(&word.to_le_bytes());
        }
        Ok(())
    }

    fn pad(&mut self) -> io::Result<u64> {
        let aligned = self.at.next_multiple_of(64);
        let padding = usize::try_from(aligned - self.at).map_err(|_| io::ErrorKind::OutOfMemory)?;
        self.file.write_all(&[0; 64][..padding])?;
        self.at = aligned;
        Ok(aligned)
    }

    fn finish(mut self) -> io::Result<(File, u64)> {
        let name_table = b".shstrtab";
        let names = [&self.names[..], name_table, b"\0"].concat();
        self.section(".shstrtab", SHT_STRTAB, 0, &names)?;
        let headers_at = self.pad()?;
        let headers = std::mem::take(&mut self.headers);
        self.file.write_all(&headers)?;
        let count = u16::try_from(headers.len() / SECTION_HEADER_BYTES).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let header = elf_header(headers_at, count);
        std::os::unix::fs::FileExt::write_all_at(&self.file, &header, 0)?;
        fcntl_add_seals(&self.file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL)?;
        let size = self.file.metadata()?.len();
        Ok((self.file, size))
    }
}

/// A shared object (so that no relocation is applied) without program headers; the names are the last section.
fn elf_header(headers_at: u64, sections: u16) -> Vec<u8> {
    let mut header = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    header.extend_from_slice(&3u16.to_le_bytes());
    header.extend_from_slice(&62u16.to_le_bytes());
    header.extend_from_slice(&1u32.to_le_bytes());
    for word in [0, 0, headers_at] {
        header.extend_from_slice(&word.to_le_bytes());
    }
    header.extend_from_slice(&0u32.to_le_bytes());
    for half in [64, 0, 0, 64, sections, sections - 1] {
        header.extend_from_slice(&u16::to_le_bytes(half));
    }
    header
}
