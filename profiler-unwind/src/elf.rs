//! The headers of ELF files, from bounded reads: what names and unwind rows both need.
//!
//! ```text
//! header   e_type u16 @16, e_machine u16 @18, e_phoff u64 @32, e_shoff u64 @40, e_phnum u16 @56, e_shnum u16 @60,
//!          e_shstrndx u16 @62
//! program  p_type u32 @0, p_flags u32 @4, p_offset u64 @8, p_vaddr u64 @16, p_filesz u64 @32, p_memsz @40 (56 bytes each)
//! section  sh_name u32 @0, sh_type u32 @4, sh_flags u64 @8, sh_addr u64 @16, sh_offset u64 @24,
//!          sh_size u64 @32, sh_link u32 @40                                                          (64 bytes each)
//! compressed section   ch_type u32 @0, ch_size u64 @8, data @24
//! ```
//!
//! Only ELFCLASS64, ELFDATA2LSB, ET_EXEC and ET_DYN. Not handled: extended numbering (65280 sections and more; seen in
//! object files only), which reads as a file without sections. Files are read and never mapped, since a truncation
//! would raise SIGBUS.

use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Program header: loaded into memory.
pub const PT_LOAD: u32 = 1;
/// Program header: notes.
pub const PT_NOTE: u32 = 4;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const PF_X: u32 = 1;
const PF_W: u32 = 2;
/// Section: the full symbol table.
pub const SHT_SYMTAB: u32 = 2;
/// Section: without bytes in the file.
pub const SHT_NOBITS: u32 = 8;
/// Section: the dynamic symbol table.
pub const SHT_DYNSYM: u32 = 11;
/// Section flag: compressed.
pub const SHF_COMPRESSED: u64 = 0x800;

const HEADER_BYTES: u64 = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
/// Size of a section header of a 64-bit file.
pub const SECTION_HEADER_BYTES: usize = 64;
/// Linux loads no program whose program headers are larger than this (fs/binfmt_elf.c, load_elf_phdrs).
const MAX_PROGRAM_HEADERS_BYTES: u64 = 65536;
/// Names of sections; the largest seen are 50 kB (C++ with -ffunction-sections).
const MAX_SECTION_NAMES_BYTES: u64 = 4 << 20;
/// Longest note area looked at for the build id. GNU ld puts it into the first 100 bytes.
const MAX_NOTE_BYTES: u64 = 65536;
/// Longest build id; SHA-1 ids have 20 bytes.
const MAX_BUILD_ID_BYTES: usize = 64;
const NT_GNU_BUILD_ID: u32 = 3;

/// Why a file has no layout.
#[derive(Debug, thiserror::Error)]
pub enum ElfError {
    /// The file cannot be read.
    #[error("cannot read the file: {0}")]
    Read(#[from] io::Error),
    /// Neither a program nor a shared object in 64-bit little-endian ELF.
    #[error("not a 64-bit little-endian ELF program or library")]
    NotElf,
    /// Headers reach beyond the file.
    #[error("its ELF headers reach beyond its end")]
    Malformed,
}

/// Where an ELF image is read from.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// By bounded reads.
    File(&'a File),
    /// In memory.
    Bytes(&'a [u8]),
}

impl Source<'_> {
    /// How many bytes there are.
    ///
    /// # Errors
    /// The file cannot be asked.
    pub fn length(&self) -> io::Result<u64> {
        match self {
            Self::File(file) => Ok(file.metadata()?.len()),
            Self::Bytes(image) => Ok(u64::try_from(image.len()).unwrap_or(u64::MAX)),
        }
    }

    /// Exactly these bytes. `length` must have been bounded by the caller; memory is taken only for what the file
    /// holds.
    ///
    /// # Errors
    /// The file ends before (`UnexpectedEof`), or cannot be read.
    pub fn read(&self, start: u64, length: u64) -> io::Result<Vec<u8>> {
        match self {
            Self::File(file) => read_bytes(file, start, length),
            Self::Bytes(image) => {
                let end = start.checked_add(length).ok_or(io::ErrorKind::UnexpectedEof)?;
                let range = usize::try_from(start).ok().zip(usize::try_from(end).ok());
                let bytes = range.and_then(|(start, end)| image.get(start..end));
                Ok(bytes.ok_or(io::ErrorKind::UnexpectedEof)?.to_vec())
            }
        }
    }
}

/// Why a section's contents are not to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentsError {
    /// More bytes than the caller wants.
    TooLarge,
    /// Beyond the file's end, compressed in an unknown way, or not as long as it says.
    Malformed,
}

/// zlib cannot do better than 1032 to 1, zstd about 10,000 to 1 on constant input; real debug sections reach 10 to 1.
const MAX_INFLATION: u64 = 1100;

impl Source<'_> {
    /// A section's contents, inflated if it is compressed; all of it or nothing.
    pub fn contents(&self, section: &Section, limit: u64) -> Result<Vec<u8>, ContentsError> {
        if section.kind == SHT_NOBITS {
            return Ok(Vec::new());
        }
        if section.size > limit {
            return Err(ContentsError::TooLarge);
        }
        let stored = self.read(section.file_offset, section.size).map_err(|_| ContentsError::Malformed)?;
        if section.flags & SHF_COMPRESSED == 0 { Ok(stored) } else { inflate(&stored, limit) }
    }
}

/// Elf64_Chdr: `{type u32, reserved u32, size u64, align u64}`, then a zlib (type 1) or zstd (type 2) stream.
fn inflate(stored: &[u8], limit: u64) -> Result<Vec<u8>, ContentsError> {
    let kind = u32_at(stored, 0).ok_or(ContentsError::Malformed)?;
    let size = u64_at(stored, 8).ok_or(ContentsError::Malformed)?;
    let stream = stored.get(24..).ok_or(ContentsError::Malformed)?;
    let plausible = u64::try_from(stream.len()).unwrap_or(0).saturating_mul(MAX_INFLATION);
    if size > limit {
        return Err(ContentsError::TooLarge);
    }
    if size > plausible {
        return Err(ContentsError::Malformed);
    }
    let malformed = |_| ContentsError::Malformed;
    let mut bytes = Vec::with_capacity(usize::try_from(size).map_err(|_| ContentsError::TooLarge)?);
    let read = match kind {
        1 => flate2::read::ZlibDecoder::new(stream).take(size).read_to_end(&mut bytes),
        2 => zstd::Decoder::with_buffer(stream).map_err(malformed)?.take(size).read_to_end(&mut bytes),
        _ => return Err(ContentsError::Malformed),
    };
    let read = read.map_err(malformed)?;
    if u64::try_from(read) == Ok(size) { Ok(bytes) } else { Err(ContentsError::Malformed) }
}

/// A program header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Segment {
    /// `p_type`.
    pub kind: u32,
    /// `p_flags`.
    pub flags: u32,
    /// Offset in the file, in bytes.
    pub file_offset: u64,
    /// The address that the file itself gives to the byte at `file_offset`.
    pub svma: u64,
    /// Bytes in the file.
    pub file_size: u64,
    /// Bytes in memory.
    #[serde(default)]
    pub memory_size: u64,
}

impl Segment {
    /// Whether it is loaded executable.
    pub fn is_code(&self) -> bool {
        self.kind == PT_LOAD && self.flags & PF_X != 0
    }

    /// Its addresses, as far as the file has bytes for them.
    pub fn addresses(&self) -> Range<u64> {
        self.svma..self.svma.saturating_add(self.file_size)
    }
}

/// A section header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Cut at 64 bytes, which no name that we look for reaches.
    pub name: String,
    /// `sh_type`.
    pub kind: u32,
    /// `sh_flags`.
    pub flags: u64,
    /// Its address, 0 if it is not loaded.
    pub svma: u64,
    /// Where its contents are.
    pub file_offset: u64,
    /// Their length in bytes.
    pub size: u64,
    /// The index of the section that belongs to it.
    pub link: u32,
}

/// Where things are in an ELF file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// `e_machine`.
    pub machine: u16,
    /// Program headers, in the file's order.
    pub segments: Vec<Segment>,
    /// Section headers, in the file's order; none if they could not be read.
    pub sections: Vec<Section>,
    /// The file says that it has section headers, and they could not be read.
    pub sections_malformed: bool,
}

impl Layout {
    /// Reads headers only: 64 bytes, the program headers, the section headers and their names.
    ///
    /// # Errors
    /// [`ElfError`]; section headers that cannot be read are none, see [`Layout::sections_malformed`].
    pub fn read(source: &Source<'_>) -> Result<Self, ElfError> {
        let (header, segments) = read_segments(source)?;
        let sections = read_sections(source, &header);
        Ok(Self {
            machine: u16_at(&header, 18).ok_or(ElfError::NotElf)?,
            segments,
            sections_malformed: sections.is_none(),
            sections: sections.unwrap_or_default(),
        })
    }

    /// Executable segments, ascending by address.
    pub fn code(&self) -> Vec<Segment> {
        code(&self.segments)
    }

    /// The addresses of the writable segment with the most memory, with what the file has no bytes for; none if there is none.
    pub fn data(&self) -> Range<u64> {
        let is_data = |segment: &&Segment| segment.kind == PT_LOAD && segment.flags & PF_W != 0;
        let largest = self.segments.iter().filter(is_data).max_by_key(|segment| segment.memory_size);
        largest.map_or(0..0, |segment| segment.svma..segment.svma.saturating_add(segment.memory_size))
    }

    /// The address, in the file's own address space, of the byte at a file offset.
    pub fn svma_of(&self, file_offset: u64) -> Option<u64> {
        self.segments.iter().filter(|segment| segment.kind == PT_LOAD).find_map(|segment| {
            let inside = file_offset.checked_sub(segment.file_offset)?;
            (inside < segment.file_size).then(|| segment.svma.wrapping_add(inside))
        })
    }

    /// The file offset of an address, and how many bytes of its segment follow there.
    pub fn loaded_from(&self, svma: u64) -> Option<(u64, u64)> {
        self.segments.iter().filter(|segment| segment.kind == PT_LOAD).find_map(|segment| {
            let inside = svma.checked_sub(segment.svma)?;
            let available = segment.file_size.checked_sub(inside).filter(|available| *available > 0)?;
            Some((segment.file_offset.checked_add(inside)?, available))
        })
    }

    /// The address of `.eh_frame_hdr`.
    pub fn eh_frame_hdr(&self) -> Option<u64> {
        self.segments.iter().find(|segment| segment.kind == PT_GNU_EH_FRAME).map(|segment| segment.svma)
    }

    /// The first section of this name that has contents in the file.
    pub fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|section| section.name == name && section.kind != SHT_NOBITS)
    }

    /// The first section of this type.
    pub fn section_of_kind(&self, kind: u32) -> Option<&Section> {
        self.sections.iter().find(|section| section.kind == kind)
    }

    /// The section that another one's `sh_link` names.
    pub fn linked(&self, section: &Section) -> Option<&Section> {
        self.sections.get(usize::try_from(section.link).ok()?)
    }
}

/// The address that the file itself gives to the first byte of an executable mapping at `file_offset`, by its
/// executable segments.
///
/// A mapping begins at its segment's page, the segment itself may begin a little later. Two segments may share a page
/// of the file: the one that begins there is meant.
pub fn svma_of_mapping(code: &[Segment], file_offset: u64) -> Option<u64> {
    let segment = code.iter().rfind(|segment| {
        let page_start = segment.file_offset & !0xfff;
        (page_start..segment.file_offset.saturating_add(segment.file_size)).contains(&file_offset)
    })?;
    Some(segment.svma.wrapping_sub(segment.file_offset).wrapping_add(file_offset))
}

/// What tells one build of a program from another: its build id, and where it says that its code is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Build {
    /// The GNU build id; empty for files without one.
    pub id: Vec<u8>,
    /// Executable segments, ascending by address.
    pub code: Vec<Segment>,
    /// Functions with unwind data, about: by the size of the table of them, 8 bytes each. 0 without one.
    pub functions: u64,
}

impl Build {
    /// Reads the program headers and the notes, some 200 bytes.
    ///
    /// # Errors
    /// [`ElfError`].
    pub fn read(source: &Source<'_>) -> Result<Self, ElfError> {
        let (_, segments) = read_segments(source)?;
        let table = segments.iter().find(|segment| segment.kind == PT_GNU_EH_FRAME);
        Ok(Self {
            id: build_id_of(source, &segments).unwrap_or_default(),
            code: code(&segments),
            functions: table.map_or(0, |table| table.file_size / 8),
        })
    }
}

/// The GNU build id, or nothing for files without one and for what is no ELF file.
pub fn build_id(file: &File) -> Option<Vec<u8>> {
    Build::read(&Source::File(file)).ok().map(|build| build.id).filter(|id| !id.is_empty())
}

/// A build id as it is usually written.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn build_id_of(source: &Source<'_>, segments: &[Segment]) -> Option<Vec<u8>> {
    segments.iter().filter(|segment| segment.kind == PT_NOTE).find_map(|segment| {
        let length = segment.file_size.min(MAX_NOTE_BYTES);
        build_id_in(&source.read(segment.file_offset, length).ok()?)
    })
}

fn code(segments: &[Segment]) -> Vec<Segment> {
    let mut code: Vec<Segment> = segments.iter().copied().filter(Segment::is_code).collect();
    code.sort_by_key(|segment| segment.svma);
    code
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

fn read_segments(source: &Source<'_>) -> Result<(Vec<u8>, Vec<Segment>), ElfError> {
    let header = source.read(0, HEADER_BYTES).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => ElfError::NotElf,
        _ => ElfError::Read(error),
    })?;
    let is_program = matches!(u16_at(&header, 16), Some(2 | 3));
    if !header.starts_with(b"\x7fELF\x02\x01") || !is_program {
        return Err(ElfError::NotElf);
    }
    let start = u64_at(&header, 32).ok_or(ElfError::NotElf)?;
    let count = u64::from(u16_at(&header, 56).ok_or(ElfError::NotElf)?);
    let length = count.saturating_mul(56).min(MAX_PROGRAM_HEADERS_BYTES);
    let bytes = source.read(start, length).map_err(|_| ElfError::Malformed)?;
    Ok((header, bytes.chunks_exact(PROGRAM_HEADER_BYTES).filter_map(segment).collect()))
}

fn segment(bytes: &[u8]) -> Option<Segment> {
    Some(Segment {
        kind: u32_at(bytes, 0)?,
        flags: u32_at(bytes, 4)?,
        file_offset: u64_at(bytes, 8)?,
        svma: u64_at(bytes, 16)?,
        file_size: u64_at(bytes, 32)?,
        memory_size: u64_at(bytes, 40)?,
    })
}

/// `None` if they cannot be read, or their names cannot.
fn read_sections(source: &Source<'_>, header: &[u8]) -> Option<Vec<Section>> {
    let start = u64_at(header, 40)?;
    let count = u64::from(u16_at(header, 60)?);
    let names_index = usize::from(u16_at(header, 62)?);
    if start == 0 || count == 0 {
        return Some(Vec::new());
    }
    let bytes = source.read(start, count.checked_mul(64)?).ok()?;
    let names = bytes.chunks_exact(SECTION_HEADER_BYTES).nth(names_index)?;
    let names = source.read(u64_at(names, 24)?, u64_at(names, 32)?.min(MAX_SECTION_NAMES_BYTES)).ok()?;
    bytes.chunks_exact(SECTION_HEADER_BYTES).map(|bytes| section(bytes, &names)).collect()
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
        svma: u64_at(bytes, 16)?,
        file_offset: u64_at(bytes, 24)?,
        size: u64_at(bytes, 32)?,
        link: u32_at(bytes, 40)?,
    })
}

/// Exactly these bytes of the file, or an error; `length` must have been bounded by the caller, and memory is taken
/// only for what the file can hold.
pub fn read_bytes(file: &File, start: u64, length: u64) -> io::Result<Vec<u8>> {
    let end = start.checked_add(length).ok_or(io::ErrorKind::UnexpectedEof)?;
    if end > file.metadata()?.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut bytes = vec![0; usize::try_from(length).map_err(|_| io::ErrorKind::OutOfMemory)?];
    file.read_exact_at(&mut bytes, start)?;
    Ok(bytes)
}

/// The little-endian number at an offset; `None` behind the end.
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at.checked_add(2)?)?.try_into().ok().map(u16::from_le_bytes)
}

/// The little-endian number at an offset; `None` behind the end.
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_le_bytes)
}

/// The little-endian number at an offset; `None` behind the end.
pub fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
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
        let text = Segment {
            kind: PT_LOAD,
            flags: 5,
            file_offset: 0x1000,
            svma: 0x40_1000,
            file_size: 0x100,
            memory_size: 0x100,
        };
        let last = Segment {
            kind: PT_LOAD,
            flags: 5,
            file_offset: u64::MAX,
            svma: u64::MAX,
            file_size: u64::MAX,
            memory_size: 0,
        };
        let note = Segment { kind: PT_NOTE, flags: 4, file_offset: 0, svma: 0, file_size: 0x1000, memory_size: 0 };
        let layout = Layout { segments: vec![note, text, last], ..Layout::default() };
        assert_eq!(layout.svma_of(0x1000), Some(0x40_1000));
        assert_eq!(layout.svma_of(0x10ff), Some(0x40_10ff));
        assert_eq!(layout.svma_of(0x1100), None);
        assert_eq!(layout.svma_of(0x10), None);
        assert_eq!(layout.svma_of(u64::MAX), Some(u64::MAX));
    }
}
