//! The parts of an ELF file's headers that rows need.
//!
//! ```text
//! header   e_type u16 @16, e_machine u16 @18, e_phoff u64 @32, e_shoff u64 @40, e_phnum u16 @56, e_shnum u16 @60,
//!          e_shstrndx u16 @62
//! program  p_type u32 @0, p_flags u32 @4, p_offset u64 @8, p_vaddr u64 @16, p_filesz u64 @32        (56 bytes each)
//! section  sh_name u32 @0, sh_type u32 @4, sh_flags u64 @8, sh_addr u64 @16, sh_offset u64 @24,
//!          sh_size u64 @32                                                                            (64 bytes each)
//! compressed section   ch_type u32 @0, ch_size u64 @8, data @24
//! ```
//!
//! A file whose section headers cannot be read is a file without sections: it still has its program headers.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use gimli::BaseAddresses;
use profiler_common::machine::Machine;

use super::elf::{RowsError, Segment};

const PT_LOAD: u32 = 1;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const PF_X: u32 = 1;
const SHT_NOBITS: u32 = 8;
const SHF_COMPRESSED: u64 = 0x800;
const ELFCOMPRESS_ZLIB: u32 = 1;
const ELFCOMPRESS_ZSTD: u32 = 2;

/// Linux loads no program whose program headers are larger than this (fs/binfmt_elf.c, load_elf_phdrs).
const MAX_PROGRAM_HEADERS_BYTES: u64 = 65536;
/// Names of sections; the largest seen are 50 kB (C++ with -ffunction-sections).
const MAX_SECTION_NAMES_BYTES: u64 = 4 << 20;

/// Where an ELF image is read from.
pub(super) enum Source<'a> {
    /// By bounded reads; never mapped, since a truncation would raise SIGBUS.
    File(&'a File),
    /// In memory.
    Bytes(&'a [u8]),
}

impl Source<'_> {
    /// Exactly these bytes. `length` must have been bounded; memory is taken only for what the file holds.
    pub(super) fn read(&self, start: u64, length: u64) -> Option<Vec<u8>> {
        let end = start.checked_add(length)?;
        match self {
            Self::File(file) => {
                if end > file.metadata().ok()?.len() {
                    return None;
                }
                let mut bytes = vec![0; usize::try_from(length).ok()?];
                file.read_exact_at(&mut bytes, start).ok()?;
                Some(bytes)
            }
            Self::Bytes(image) => Some(image.get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)?.to_vec()),
        }
    }

    /// A section's contents, at most `limit` bytes of them, inflated if it is compressed.
    pub(super) fn section(&self, section: &Section, limit: u64) -> Option<Vec<u8>> {
        let bytes = self.read(section.file_offset, section.size.min(limit))?;
        if section.flags & SHF_COMPRESSED == 0 {
            return Some(bytes);
        }
        let mut inflated = Vec::new();
        let data = bytes.get(24..)?;
        let read = match u32_at(&bytes, 0)? {
            ELFCOMPRESS_ZLIB => flate2::read::ZlibDecoder::new(data).take(limit).read_to_end(&mut inflated),
            ELFCOMPRESS_ZSTD => zstd::Decoder::new(data).ok()?.take(limit).read_to_end(&mut inflated),
            _ => return None,
        };
        read.ok().map(|_| inflated)
    }
}

/// A section header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Section {
    /// Cut at 32 bytes, which no name that we look for reaches.
    pub(super) name: String,
    pub(super) flags: u64,
    pub(super) address: u64,
    pub(super) file_offset: u64,
    pub(super) size: u64,
}

/// Where things are in an ELF file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Whose code it holds.
    pub(super) machine: Machine,
    /// Executable segments, ascending by address.
    pub(super) code: Vec<Segment>,
    /// All segments that are loaded.
    loaded: Vec<Segment>,
    /// The address of `.eh_frame_hdr`.
    pub(super) eh_frame_hdr: Option<u64>,
    /// Sections that have contents in the file.
    pub(super) sections: Vec<Section>,
}

impl Layout {
    /// Reads headers only: 64 bytes, the program headers, the section headers and their names.
    pub(super) fn read(source: &Source<'_>) -> Result<Self, RowsError> {
        if let Source::File(file) = source {
            // An error of the file itself is worth telling apart from a file that is no ELF file.
            file.read_at(&mut [0; 1], 0)?;
        }
        let header = source.read(0, 64).ok_or(RowsError::NotElf)?;
        let is_program = matches!(u16_at(&header, 16), Some(2 | 3));
        if !header.starts_with(b"\x7fELF\x02\x01") || !is_program {
            return Err(RowsError::NotElf);
        }
        let number = u16_at(&header, 18).unwrap_or_default();
        let machine = Machine::of_elf(number.into()).ok_or(RowsError::Machine(number))?;
        let mut layout = Self { machine, code: vec![], loaded: vec![], eh_frame_hdr: None, sections: vec![] };
        layout.read_segments(source, &header).ok_or(RowsError::NotElf)?;
        layout.sections = sections(source, &header).unwrap_or_default();
        Ok(layout)
    }

    /// The first section of this name.
    pub(super) fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|section| section.name == name)
    }

    /// Addresses of code, ascending.
    pub(super) fn code_ranges(&self) -> Vec<Range<u64>> {
        self.code.iter().map(|segment| segment.svma..segment.svma.saturating_add(segment.file_size)).collect()
    }

    /// The file offset of an address, and how many bytes of its segment follow there.
    pub(super) fn loaded_from(&self, address: u64) -> Option<(u64, u64)> {
        self.loaded.iter().find_map(|segment| {
            let inside = address.checked_sub(segment.svma)?;
            let available = segment.file_size.checked_sub(inside).filter(|available| *available > 0)?;
            Some((segment.file_offset.checked_add(inside)?, available))
        })
    }

    /// What pointers other than pc-relative ones are relative to.
    pub(super) fn bases(&self) -> BaseAddresses {
        let mut bases = BaseAddresses::default();
        if let Some(text) = self.section(".text") {
            bases = bases.set_text(text.address);
        }
        if let Some(got) = self.section(".got") {
            bases = bases.set_got(got.address);
        }
        bases
    }

    fn read_segments(&mut self, source: &Source<'_>, header: &[u8]) -> Option<()> {
        let count = u64::from(u16_at(header, 56)?);
        let bytes = source.read(u64_at(header, 32)?, count.saturating_mul(56).min(MAX_PROGRAM_HEADERS_BYTES))?;
        for header in bytes.chunks_exact(56) {
            let svma = u64_at(header, 16)?;
            match u32_at(header, 0)? {
                PT_LOAD => {
                    let segment = Segment { file_offset: u64_at(header, 8)?, svma, file_size: u64_at(header, 32)? };
                    self.loaded.push(segment);
                    if u32_at(header, 4)? & PF_X != 0 {
                        self.code.push(segment);
                    }
                }
                PT_GNU_EH_FRAME => self.eh_frame_hdr = Some(svma),
                _ => {}
            }
        }
        self.code.sort_by_key(|segment| segment.svma);
        Some(())
    }
}

fn sections(source: &Source<'_>, header: &[u8]) -> Option<Vec<Section>> {
    let start = u64_at(header, 40).filter(|start| *start != 0)?;
    let count = u64::from(u16_at(header, 60)?);
    let bytes = source.read(start, count.checked_mul(64)?)?;
    let names = bytes.chunks_exact(64).nth(usize::from(u16_at(header, 62)?))?;
    let names = source.read(u64_at(names, 24)?, u64_at(names, 32)?.min(MAX_SECTION_NAMES_BYTES))?;
    Some(bytes.chunks_exact(64).filter_map(|bytes| section(bytes, &names)).collect())
}

fn section(bytes: &[u8], names: &[u8]) -> Option<Section> {
    if u32_at(bytes, 4)? == SHT_NOBITS {
        return None;
    }
    let name = names.get(usize::try_from(u32_at(bytes, 0)?).ok()?..)?;
    let name = name.get(..name.len().min(32))?;
    let name_end = memchr::memchr(0, name).unwrap_or(name.len());
    Some(Section {
        name: String::from_utf8_lossy(name.get(..name_end)?).into_owned(),
        flags: u64_at(bytes, 8)?,
        address: u64_at(bytes, 16)?,
        file_offset: u64_at(bytes, 24)?,
        size: u64_at(bytes, 32)?,
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().copied().map(u64::from_le_bytes)
}
