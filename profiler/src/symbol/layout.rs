//! The parts of an ELF file's headers that symbolization needs, from bounded reads.
//!
//! ```text
//! header   e_type u16 @16, e_phoff u64 @32, e_shoff u64 @40, e_phnum u16 @56, e_shnum u16 @60, e_shstrndx u16 @62
//! program  p_type u32 @0, p_flags u32 @4, p_offset u64 @8, p_vaddr u64 @16, p_filesz u64 @32        (56 bytes each)
//! section  sh_name u32 @0, sh_type u32 @4, sh_flags u64 @8, sh_addr u64 @16, sh_offset u64 @24,
//!          sh_size u64 @32, sh_link u32 @40, sh_info u32 @44, sh_entsize u64 @56                     (64 bytes each)
//! ```
//!
//! Only ELFCLASS64, ELFDATA2LSB, ET_EXEC and ET_DYN. Not handled: extended numbering (65280 sections and more; seen in
//! object files only), which reads as a file without sections.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::stats::Unresolved;

pub(super) const PT_LOAD: u32 = 1;
pub(super) const PT_NOTE: u32 = 4;
pub(super) const SHT_SYMTAB: u32 = 2;
pub(super) const SHT_NOBITS: u32 = 8;
pub(super) const SHT_DYNSYM: u32 = 11;
pub(super) const SHF_COMPRESSED: u64 = 0x800;

const HEADER_BYTES: u64 = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
pub(super) const SECTION_HEADER_BYTES: usize = 64;
/// Linux loads no program whose program headers are larger than this (fs/binfmt_elf.c, load_elf_phdrs).
const MAX_PROGRAM_HEADERS_BYTES: u64 = 65536;
/// Names of sections; the largest seen are 50 kB (C++ with -ffunction-sections).
const MAX_SECTION_NAMES_BYTES: u64 = 4 << 20;
/// Longest note area looked at for the build id. GNU ld puts it into the first 100 bytes.
const MAX_NOTE_BYTES: u64 = 65536;
/// Longest build id; SHA-1 ids have 20 bytes.
const MAX_BUILD_ID_BYTES: usize = 64;
const NT_GNU_BUILD_ID: u32 = 3;

/// A program header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) kind: u32,
    pub(super) file_offset: u64,
    pub(super) vaddr: u64,
    pub(super) file_size: u64,
}

/// A section header; the name is cut at 64 bytes, which no name that we look for reaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) name: String,
    pub(super) kind: u32,
    pub(super) flags: u64,
    pub(super) vaddr: u64,
    pub(super) file_offset: u64,
    pub(super) size: u64,
    pub(super) link: u32,
}

/// Where things are in an ELF file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) segments: Vec<Segment>,
    pub(super) sections: Vec<Section>,
}

impl Layout {
    /// Reads headers only: 64 bytes, the program headers, the section headers and their names.
    pub(super) fn read(file: &File) -> Result<Self, Unresolved> {
        let (header, segments) = read_segments(file)?;
        let sections = read_sections(file, &header)?;
        Ok(Self { segments, sections })
    }

    /// The address, in the file's own address space, of the byte at a file offset.
    pub(super) fn vaddr_of(&self, file_offset: u64) -> Option<u64> {
        self.segments.iter().filter(|segment| segment.kind == PT_LOAD).find_map(|segment| {
            let inside = file_offset.checked_sub(segment.file_offset)?;
            (inside < segment.file_size).then(|| segment.vaddr.wrapping_add(inside))
        })
    }

    /// The first section of this name that has contents in the file.
    pub(super) fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|section| section.name == name && section.kind != SHT_NOBITS)
    }

    /// The first section of this type.
    pub(super) fn section_of_kind(&self, kind: u32) -> Option<&Section> {
        self.sections.iter().find(|section| section.kind == kind)
    }

    /// The section that another one's `sh_link` names.
    pub(super) fn linked(&self, section: &Section) -> Option<&Section> {
        self.sections.get(usize::try_from(section.link).ok()?)
    }
}

/// The GNU build id, or nothing for files without one and for what is no ELF file.
pub(super) fn build_id(file: &File) -> Option<Vec<u8>> {
    let (_, segments) = read_segments(file).ok()?;
    segments.iter().filter(|segment| segment.kind == PT_NOTE).find_map(|segment| {
        let length = segment.file_size.min(MAX_NOTE_BYTES);
        let notes = read_bytes(file, segment.file_offset, length).ok()?;
        build_id_in(&notes)
    })
}

/// Notes are `{namesz u32, descsz u32, type u32, name, desc}` with name and desc padded to 4 bytes (GNU ld aligns the
/// `.note.gnu.property` segment to 8, but keeps the build id in a segment of its own).
fn build_id_in(notes: &[u8]) -> Option<Vec<u8>> {
    let mut rest = notes;
    loop {
        let name_size = usize::try_from(u32_at(rest, 0)?).ok()?;
        let desc_size = usize::try_from(u32_at(rest, 4)?).ok()?;
        let kind = u32_at(rest, 8)?;
        let desc_start = name_size.checked_next_multiple_of(4)?.checked_add(12)?;
        let desc_end = desc_start.checked_add(desc_size)?;
        let is_gnu = rest.get(12..16) == Some(b"GNU\0") && name_size == 4;
        if is_gnu && kind == NT_GNU_BUILD_ID && (1..=MAX_BUILD_ID_BYTES).contains(&desc_size) {
            return rest.get(desc_start..desc_end).map(<[u8]>::to_vec);
        }
        rest = rest.get(desc_end.checked_next_multiple_of(4)?..)?;
    }
}

fn read_segments(file: &File) -> Result<(Vec<u8>, Vec<Segment>), Unresolved> {
    let header = read_bytes(file, 0, HEADER_BYTES).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => Unresolved::NotElf,
        _ => Unresolved::Unreadable,
    })?;
    let is_elf64_le = header.starts_with(b"\x7fELF\x02\x01");
    let kind = u16_at(&header, 16);
    if !is_elf64_le || !matches!(kind, Some(2 | 3)) {
        return Err(Unresolved::NotElf);
    }
    let start = u64_at(&header, 32).ok_or(Unresolved::NotElf)?;
    let count = u64::from(u16_at(&header, 56).ok_or(Unresolved::NotElf)?);
    let length = count.saturating_mul(56).min(MAX_PROGRAM_HEADERS_BYTES);
    let bytes = read_bytes(file, start, length).map_err(|_| Unresolved::Malformed)?;
    let segments = bytes.chunks_exact(PROGRAM_HEADER_BYTES).filter_map(segment).collect();
    Ok((header, segments))
}

fn segment(bytes: &[u8]) -> Option<Segment> {
    Some(Segment {
        kind: u32_at(bytes, 0)?,
        file_offset: u64_at(bytes, 8)?,
        vaddr: u64_at(bytes, 16)?,
        file_size: u64_at(bytes, 32)?,
    })
}

fn read_sections(file: &File, header: &[u8]) -> Result<Vec<Section>, Unresolved> {
    let malformed = Unresolved::Malformed;
    let start = u64_at(header, 40).ok_or(malformed)?;
    let count = u64::from(u16_at(header, 60).ok_or(malformed)?);
    let names_index = usize::from(u16_at(header, 62).ok_or(malformed)?);
    if start == 0 || count == 0 {
        return Ok(Vec::new());
    }
    let bytes = read_bytes(file, start, count.saturating_mul(64)).map_err(|_| malformed)?;
    let headers: Vec<&[u8]> = bytes.chunks_exact(SECTION_HEADER_BYTES).collect();
    let names = headers.get(names_index).and_then(|names| {
        let size = u64_at(names, 32)?.min(MAX_SECTION_NAMES_BYTES);
        read_bytes(file, u64_at(names, 24)?, size).ok()
    });
    let names = names.ok_or(malformed)?;
    headers.iter().map(|bytes| section(bytes, &names).ok_or(malformed)).collect()
}

fn section(bytes: &[u8], names: &[u8]) -> Option<Section> {
    let name_start = usize::try_from(u32_at(bytes, 0)?).ok()?;
    let name = names.get(name_start..).unwrap_or_default();
    let name = name.get(..name.len().min(64)).unwrap_or_default();
    let name_end = memchr::memchr(0, name).unwrap_or(name.len());
    Some(Section {
        name: String::from_utf8_lossy(name.get(..name_end)?).into_owned(),
        kind: u32_at(bytes, 4)?,
        flags: u64_at(bytes, 8)?,
        vaddr: u64_at(bytes, 16)?,
        file_offset: u64_at(bytes, 24)?,
        size: u64_at(bytes, 32)?,
        link: u32_at(bytes, 40)?,
    })
}

/// Exactly these bytes of the file, or an error; `length` must have been bounded by the caller, and memory is taken
/// only for what the file can hold.
pub(super) fn read_bytes(file: &File, start: u64, length: u64) -> io::Result<Vec<u8>> {
    let end = start.checked_add(length).ok_or(io::ErrorKind::UnexpectedEof)?;
    if end > file.metadata()?.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut bytes = vec![0; usize::try_from(length).map_err(|_| io::ErrorKind::OutOfMemory)?];
    file.read_exact_at(&mut bytes, start)?;
    Ok(bytes)
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at.checked_add(2)?)?.try_into().ok().map(u16::from_le_bytes)
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_le_bytes)
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at.checked_add(8)?)?.try_into().ok().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(name: &[u8], kind: u32, desc: &[u8]) -> Vec<u8> {
        let size = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap().to_le_bytes();
        let padded = |bytes: &[u8]| [bytes, &vec![0; bytes.len().next_multiple_of(4) - bytes.len()]].concat();
        [&size(name)[..], &size(desc), &kind.to_le_bytes(), &padded(name), &padded(desc)].concat()
    }

    #[test]
    fn the_build_id_is_found_among_other_notes() {
        let other = note(b"Xen\0", 3, b"12345");
        let abi = note(b"GNU\0", 1, &[0; 16]);
        let id = note(b"GNU\0", NT_GNU_BUILD_ID, &[0xab; 20]);
        assert_eq!(build_id_in(&[other, abi, id].concat()), Some(vec![0xab; 20]));
        assert_eq!(build_id_in(&note(b"GNU\0", NT_GNU_BUILD_ID, &[])), None);
        assert_eq!(build_id_in(&note(b"GNU\0", NT_GNU_BUILD_ID, &[1; MAX_BUILD_ID_BYTES + 1])), None);
    }

    #[test]
    fn notes_that_lie_about_their_size_give_nothing() {
        let id = note(b"GNU\0", NT_GNU_BUILD_ID, &[0xab; 20]);
        for length in 0..id.len() {
            assert_eq!(build_id_in(&id[..length]), None);
        }
        for field in 0..2 {
            let mut lying = id.clone();
            lying[field * 4..field * 4 + 4].fill(0xff);
            assert_eq!(build_id_in(&lying), None);
        }
    }

    #[test]
    fn offsets_map_to_addresses_within_loaded_segments_only() {
        let text = Segment { kind: PT_LOAD, file_offset: 0x1000, vaddr: 0x40_1000, file_size: 0x100 };
        let last = Segment { kind: PT_LOAD, file_offset: u64::MAX, vaddr: u64::MAX, file_size: u64::MAX };
        let note = Segment { kind: PT_NOTE, file_offset: 0, vaddr: 0, file_size: 0x1000 };
        let layout = Layout { segments: vec![note, text, last], sections: Vec::new() };
        assert_eq!(layout.vaddr_of(0x1000), Some(0x40_1000));
        assert_eq!(layout.vaddr_of(0x10ff), Some(0x40_10ff));
        assert_eq!(layout.vaddr_of(0x1100), None);
        assert_eq!(layout.vaddr_of(0x10), None);
        assert_eq!(layout.vaddr_of(u64::MAX), Some(u64::MAX));
    }
}
