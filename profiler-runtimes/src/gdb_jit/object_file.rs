//! Sections of an object file as they are in the process.
//!
//! LLVM registers a copy of the relocatable file as it was compiled (RuntimeDyld's `createELFDebugObject`, JITLink's
//! `ELFDebugObject`): headers of sections have the addresses at which these were put, and nothing is relocated. So that is
//! done here, to copies, as a debugger does it.

use std::borrow::Cow;

use gimli::Vendor;
use jitprof_common::units::Avma;
use object::elf::{R_X86_64_PC64, SHF_ALLOC, SHF_COMPRESSED, SHF_EXECINSTR};
use object::read::elf::{ElfFile64, ElfSection64, FileHeader, SectionHeader};
use object::{
    Architecture, Endianness, Object, ObjectKind, ObjectSection, ObjectSymbol, Relocation, RelocationFlags,
    RelocationKind, RelocationTarget, SectionIndex, SymbolKind,
};

use crate::steps::Steps;

pub(super) type Elf<'a> = ElfFile64<'a, Endianness>;

/// The sections that are looked at.
const NAMES: [&str; 10] = [
    ".eh_frame",
    ".debug_abbrev",
    ".debug_info",
    ".debug_line",
    ".debug_line_str",
    ".debug_str",
    ".debug_str_offsets",
    ".debug_addr",
    ".debug_ranges",
    ".debug_rnglists",
];
/// Bytes that are copied in the time of a step.
const BYTES_A_STEP: usize = 64;

/// An object file of the machine's byte order.
pub(super) struct ObjectFile<'a> {
    elf: Elf<'a>,
    sections: Vec<(&'static str, SectionIndex)>,
    /// Where its first code was put; 0 if it has none.
    code: u64,
}

impl<'a> ObjectFile<'a> {
    /// None, if it cannot be understood, or there are not enough steps.
    pub(super) fn parse(bytes: &'a [u8], steps: &mut Steps) -> Option<Self> {
        let elf = Elf::parse(bytes).ok().filter(|elf| elf.is_little_endian())?;
        let endian = elf.endian();
        let (mut sections, mut code): (Vec<(&'static str, SectionIndex)>, u64) = (Vec::new(), 0);
        let table = elf.elf_section_table();
        let names = elf.elf_header().section_strings_index(endian, bytes).ok()?;
        let names = table.section(names).ok()?.data(endian, bytes).ok()?;
        for (index, header) in table.enumerate() {
            steps.take(1)?;
            let flags = header.sh_flags(endian).0;
            if code == 0 && flags & SHF_EXECINSTR.0 != 0 {
                code = header.sh_addr(endian);
            }
            let name = known_name(names, header.sh_name(endian)).filter(|_| flags & SHF_COMPRESSED.0 == 0);
            if let Some(name) = name.filter(|name| sections.iter().all(|(known, _)| known != name)) {
                sections.push((name, index));
            }
        }
        Some(Self { elf, sections, code })
    }

    /// `.eh_frame`, and where it lies. It may have been put nowhere, but then code is near to where it could have been, and
    /// that is all that its addresses tell.
    pub(super) fn frames(&self, steps: &mut Steps) -> Option<(Cow<'a, [u8]>, Avma)> {
        let start = self.find(".eh_frame")?.address();
        let start = if start == 0 { self.code } else { start };
        Some((self.relocated(".eh_frame", start, steps)?, Avma(start)))
    }

    /// Who says what call frame information means.
    pub(super) fn vendor(&self) -> Vendor {
        match self.elf.architecture() {
            Architecture::Aarch64 => Vendor::AArch64,
            _ => Vendor::Default,
        }
    }

    /// A section of debug information, empty if there is none. None, if there are not enough steps.
    pub(super) fn debug(&self, name: &str, steps: &mut Steps) -> Option<Cow<'a, [u8]>> {
        self.relocated(name, 0, steps)
    }

    fn find(&self, name: &str) -> Option<ElfSection64<'a, '_, Endianness>> {
        let (_, index) = self.sections.iter().find(|(known, _)| *known == name)?;
        self.elf.section_by_index(*index).ok()
    }

    fn relocated(&self, name: &str, start: u64, steps: &mut Steps) -> Option<Cow<'a, [u8]>> {
        let Some(section) = self.find(name) else { return Some(Cow::Borrowed(&[])) };
        let mut bytes = Cow::Borrowed(section.data().unwrap_or_default());
        // It is looked through at least once.
        steps.take(bytes.len() / BYTES_A_STEP)?;
        if self.elf.kind() != ObjectKind::Relocatable {
            return Some(bytes);
        }
        for (offset, relocation) in section.relocations() {
            steps.take(1)?;
            let Some((value, length)) = self.value(&relocation, start.wrapping_add(offset)) else { continue };
            let Ok(at) = usize::try_from(offset) else { continue };
            let Some(field) = bytes.to_mut().get_mut(at..at.saturating_add(length)) else { continue };
            let value = value.to_le_bytes();
            if let Some(value) = value.get(..length) {
                field.copy_from_slice(value);
            }
        }
        Some(bytes)
    }

    /// What a relocation puts into a field at an address, and how many bytes of it.
    fn value(&self, relocation: &Relocation, place: u64) -> Option<(u64, usize)> {
        let RelocationTarget::Symbol(symbol) = relocation.target() else { return None };
        let symbol = self.elf.symbol_by_index(symbol).ok()?;
        let (is_relative, length) = meaning(relocation)?;
        let value = address_of(&self.elf, &symbol)?.wrapping_add_signed(relocation.addend());
        Some((if is_relative { value.wrapping_sub(place) } else { value }, length))
    }
}

/// The name at an offset if it is one of those that are looked at; how long others are does not matter.
fn known_name(names: &[u8], at: u32) -> Option<&'static str> {
    let text = names.get(usize::try_from(at).ok()?..)?;
    let is_here = |name: &&&str| text.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&0));
    NAMES.iter().find(is_here).copied()
}

/// Where what a symbol stands for is in the process.
///
/// The sections of a relocatable file have the addresses at which they were put; its symbols begin at 0 in their section,
/// or have been given addresses as well. Places in debug information are counted from its sections' begins, wherever those
/// were put.
pub(super) fn address_of<'a>(elf: &Elf<'a>, symbol: &impl ObjectSymbol<'a>) -> Option<u64> {
    let section = symbol.section_index().filter(|_| elf.kind() == ObjectKind::Relocatable);
    let section = section.and_then(|index| elf.section_by_index(index).ok());
    let start = section.map_or(0, |section| {
        let flags = section.elf_section_header().sh_flags(elf.endian()).0;
        let is_put = flags & (SHF_ALLOC.0 | SHF_EXECINSTR.0) != 0 || symbol.kind() == SymbolKind::Text;
        if is_put { section.address() } else { 0 }
    });
    let base = if symbol.address() < start { start } else { 0 };
    base.checked_add(symbol.address())
}

/// Whether the field is relative to its own place, and its bytes; none for what such sections do not have, or where a part
/// of the value is in the field, which may have been relocated already.
fn meaning(relocation: &Relocation) -> Option<(bool, usize)> {
    if relocation.has_implicit_addend() {
        return None;
    }
    // The crate does not know this one, which the large code model's .eh_frame consists of.
    if relocation.flags() == (RelocationFlags::Elf { r_type: R_X86_64_PC64 }) {
        return Some((true, 8));
    }
    let length = usize::from(relocation.size() / 8);
    match relocation.kind() {
        RelocationKind::Absolute => Some((false, length)),
        RelocationKind::Relative => Some((true, length)),
        _ => None,
    }
}
