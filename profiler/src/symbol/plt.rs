//! Names of the stubs through which a file calls other files' functions: `foo@plt`.
//!
//! The i-th jump slot relocation belongs to the i-th stub. On x86-64, `.plt.sec` (files built for indirect branch
//! tracking) has stubs only, and `.plt` starts with one entry for the dynamic linker; all entries have 16 bytes. On
//! aarch64 `.plt` starts with 32 bytes. Names are read when the file is loaded: node has 303.

use std::fs::File;

use super::demangle;
use jitprof_unwind::elf::{self, Layout, SHT_DYNSYM, Section};

const STUB_BYTES: u64 = 16;
const HEADER_BYTES: u64 = if cfg!(target_arch = "aarch64") { 32 } else { 16 };
/// Elf64_Rela: `{offset u64, info u64 (symbol in the upper half), addend i64}`.
const RELOCATION_BYTES: usize = 24;
const SYMBOL_BYTES: u64 = 24;
/// Stubs of one file that get a name; LibreOffice's largest library has 20,000.
const MAX_STUBS: u64 = 65536;

/// The stubs of a file.
#[derive(Debug, Default)]
pub(super) struct Plt {
    /// Address of the first stub that has a name.
    start: u64,
    names: Vec<String>,
}

impl Plt {
    /// No names if anything is not as expected.
    pub(super) fn read(file: &File, layout: &Layout) -> Self {
        let secured = layout.section(".plt.sec").map(|section| (section, 0));
        let stubs = secured.or_else(|| layout.section(".plt").map(|section| (section, HEADER_BYTES)));
        stubs.and_then(|(section, skipped)| Self::read_names(file, layout, section, skipped)).unwrap_or_default()
    }

    fn read_names(file: &File, layout: &Layout, stubs: &Section, skipped: u64) -> Option<Self> {
        let relocations = layout.section(".rela.plt")?;
        let symbols = layout.section_of_kind(SHT_DYNSYM)?;
        let strings = layout.linked(symbols)?;
        let count = stubs.size.checked_sub(skipped)?.min(MAX_STUBS * STUB_BYTES) / STUB_BYTES;
        let length = relocations.size.min(count.checked_mul(24)?);
        let relocations = elf::read_bytes(file, relocations.file_offset, length).ok()?;
        let names = relocations.chunks_exact(RELOCATION_BYTES).map(|relocation| {
            let symbol = elf::u64_at(relocation, 8).map_or(0, |info| info >> 32);
            name_of(file, symbols, strings, symbol).unwrap_or_default()
        });
        Some(Self { start: stubs.svma.checked_add(skipped)?, names: names.collect() })
    }

    /// `foo@plt` if the address is in the stub for `foo`.
    pub(super) fn name_at(&self, vaddr: u64) -> Option<&str> {
        let index = usize::try_from(vaddr.checked_sub(self.start)? / STUB_BYTES).ok()?;
        self.names.get(index).map(String::as_str).filter(|name| !name.is_empty())
    }
}

fn name_of(file: &File, symbols: &Section, strings: &Section, index: u64) -> Option<String> {
    let inside = index.checked_mul(SYMBOL_BYTES).filter(|inside| *inside < symbols.size)?;
    let symbol = elf::read_bytes(file, symbols.file_offset.checked_add(inside)?, 4).ok()?;
    let name_start = u64::from(elf::u32_at(&symbol, 0)?);
    let length = strings.size.checked_sub(name_start)?.min(512);
    let name = elf::read_bytes(file, strings.file_offset.checked_add(name_start)?, length).ok()?;
    let end = memchr::memchr(0, &name)?;
    let name = std::str::from_utf8(name.get(..end)?).ok().filter(|name| !name.is_empty())?;
    Some(format!("{}@plt", demangle::demangle(name).0))
}
