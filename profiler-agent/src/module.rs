//! What an object in memory says: functions where they were loaded, their lines, what was inlined into them, and their
//! unwinding data.
//!
//! LLVM hands over the relocatable object as it was compiled, and where its sections lie. It does so before it applies
//! relocations (MCJIT of LLVM 22: `notifyObjectLoaded`, then `resolveRelocations`), so `.eh_frame` in memory does not
//! know its functions yet, and the code's operands are not final. Relocations are applied here, to copies.

mod debug;
mod levels;

use object::read::elf::ElfFile64;
use object::{
    Object as _, ObjectKind, ObjectSection as _, ObjectSymbol as _, RelocationFlags, RelocationKind, RelocationTarget,
    SectionIndex, SymbolKind,
};

use crate::record::Range;
use crate::unwinding::Frames;

pub(crate) use levels::Inlined;

/// Functions taken from one object.
const MAX_FUNCTIONS: usize = 1 << 18;
/// The largest `.eh_frame` that is copied.
const MAX_FRAMES: u64 = 16 << 20;

type File<'a> = ElfFile64<'a, object::NativeEndian>;

/// An object that a runtime has loaded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Object {
    /// The module's name; may be empty.
    pub(crate) name: Vec<u8>,
    /// An ELF file.
    pub(crate) file: Vec<u8>,
    /// Where its sections lie.
    pub(crate) sections: Vec<Section>,
}

/// A section in memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Section {
    /// Its name.
    pub(crate) name: Vec<u8>,
    /// Where it lies; 0 if it was not loaded.
    pub(crate) start: u64,
    /// Bytes.
    pub(crate) size: u64,
    /// Where it begins in the file.
    pub(crate) file_offset: u64,
}

impl Section {
    /// The memory of a section that was loaded.
    pub(crate) fn range(&self) -> Option<Range> {
        let size = u32::try_from(self.size).ok().filter(|size| *size > 0)?;
        (self.start != 0).then_some(Range { start: self.start, size })
    }
}

/// A function of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) name: Vec<u8>,
    pub(crate) start: u64,
    pub(crate) size: u32,
    /// `.eh_frame` and its header, and how long the header is.
    pub(crate) unwinding: Option<(Vec<u8>, usize)>,
}

/// The functions of an object, and what its debug information says about all of them.
#[derive(Debug, Default)]
pub(crate) struct Functions {
    pub(crate) list: Vec<Function>,
    /// By address.
    lines: Vec<Line>,
    /// By start, the longer first, of equal ones the outer first.
    parts: Vec<Part>,
    /// Names of files and of inlined functions.
    texts: Vec<Vec<u8>>,
    /// Whether inlined functions were left out because there are too many.
    pub(crate) cut: bool,
}

#[derive(Clone, Copy, Debug)]
struct Line {
    address: u64,
    line: u32,
    /// In `texts`.
    file: usize,
}

/// Code that was inlined.
#[derive(Clone, Copy, Debug)]
struct Part {
    start: u64,
    end: u64,
    /// The function that it comes from, in `texts`.
    name: usize,
    /// Where it was called: in `texts`, and a line.
    call_file: usize,
    call_line: u32,
}

/// Everything that the object says about code; `None` if it is no ELF file of 64 bits.
pub(crate) fn functions(object: &Object) -> Option<Functions> {
    let file = File::parse(object.file.as_slice()).ok()?;
    let mut functions = Functions { list: symbols(object, &file), ..Functions::default() };
    if functions.list.is_empty() {
        return Some(functions);
    }
    if let Some(frames) = frames(object, &file) {
        for function in &mut functions.list {
            function.unwinding = frames.of(function.start, function.size);
        }
    }
    // Damaged debug information costs what it would say from there on.
    debug::read(object, &file, &mut functions);
    Some(functions)
}

/// The unwinding data, with the addresses of functions in it.
fn frames(object: &Object, file: &File<'_>) -> Option<Frames> {
    let section = object.sections.iter().find(|section| section.name == b".eh_frame" && section.start != 0)?;
    if file.kind() == ObjectKind::Relocatable {
        return Some(Frames::parse(relocated(object, file, ".eh_frame"), section.start));
    }
    Frames::read(section.start, section.size.min(MAX_FRAMES))
}

/// Where a section of the file lies.
fn load_address(object: &Object, file: &File<'_>, index: SectionIndex) -> Option<(u64, u64)> {
    let section = file.section_by_index(index).ok()?;
    let (offset, _) = section.file_range()?;
    let name = section.name_bytes().ok()?;
    let known = object.sections.iter().find(|known| known.file_offset == offset && known.name == name);
    let known = known.or_else(|| object.sections.iter().find(|known| known.name == name))?;
    (known.start != 0).then_some((known.start, known.size))
}

/// Where a symbol of a section lies.
fn symbol_address(file: &File<'_>, index: SectionIndex, value: u64, load: u64) -> Option<u64> {
    if file.kind() == ObjectKind::Relocatable {
        return load.checked_add(value);
    }
    load.checked_add(value.checked_sub(file.section_by_index(index).ok()?.address())?)
}

fn symbols(object: &Object, file: &File<'_>) -> Vec<Function> {
    let mut found: Vec<Function> = file
        .symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0)
        .filter_map(|symbol| {
            let index = symbol.section_index()?;
            let (load, length) = load_address(object, file, index)?;
            let start = symbol_address(file, index, symbol.address(), load)?;
            let size = u32::try_from(symbol.size()).ok()?;
            let inside = start.checked_add(u64::from(size))? <= load.checked_add(length)? && start >= load;
            let name = symbol.name_bytes().ok().filter(|name| !name.is_empty())?.to_vec();
            inside.then_some(Function { name, start, size, unwinding: None })
        })
        .take(MAX_FUNCTIONS)
        .collect();
    found.sort_by_key(|function| function.start);
    // Aliases: the first name stands for all.
    found.dedup_by_key(|function| function.start);
    found
}

/// A section with its relocations applied; empty if there is none.
fn relocated(object: &Object, file: &File<'_>, name: &str) -> Vec<u8> {
    let Some(section) = file.section_by_name(name) else { return Vec::new() };
    let mut bytes = section.data().unwrap_or_default().to_vec();
    let own_start = load_address(object, file, section.index()).map_or(0, |(start, _)| start);
    for (offset, relocation) in section.relocations() {
        let RelocationTarget::Symbol(symbol) = relocation.target() else { continue };
        let Ok(symbol) = file.symbol_by_index(symbol) else { continue };
        let Some((relative, length)) = meaning(&relocation) else { continue };
        let from = if relative { own_start.wrapping_add(offset) } else { 0 };
        let load = symbol.section_index().and_then(|index| Some((index, load_address(object, file, index)?.0)));
        let base = load.and_then(|(index, load)| symbol_address(file, index, symbol.address(), load));
        let value = base.unwrap_or(symbol.address()).wrapping_add_signed(relocation.addend()).wrapping_sub(from);
        let value = value.to_ne_bytes();
        let field = usize::try_from(offset).ok().and_then(|at| bytes.get_mut(at..at.checked_add(length)?));
        // Little-endian, like every machine that this is built for: the low bytes come first.
        if let (Some(field), Some(value)) = (field, value.get(..length)) {
            field.copy_from_slice(value);
        }
    }
    bytes
}

/// Whether the field is relative to its own place, and its bytes; `None` for what debug sections do not have.
fn meaning(relocation: &object::Relocation) -> Option<(bool, usize)> {
    // The crate does not know this one, which the large code model's .eh_frame consists of.
    if relocation.flags() == (RelocationFlags::Elf { r_type: object::elf::R_X86_64_PC64 }) {
        return Some((true, 8));
    }
    let length = usize::from(relocation.size() / 8);
    match relocation.kind() {
        RelocationKind::Absolute => Some((false, length)),
        RelocationKind::Relative => Some((true, length)),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
