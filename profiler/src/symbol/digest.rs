//! A digest of everything in a file that names and unwind rows are made of: two files with the same one are copies as far
//! as anybody can see.

use std::fs::File;
use std::os::unix::fs::FileExt;

use jitprof_unwind::elf::{Layout, SHT_DYNSYM, SHT_NOBITS, SHT_SYMTAB, Section, Source};
use jitprof_unwind::{BYTES_BEFORE, NUMBER_AND_CALL};
use memchr::memmem::Finder;

/// A keyless digest.
pub type Digest = [u8; 16];

/// Bytes that are digested at most, some 60 ms of CPU time; a file with more has no digest.
const MAX_BYTES: u64 = 64 << 20;
/// Bytes of code that are searched at most; a file with more has no digest.
const MAX_CODE: u64 = 256 << 20;
/// Bytes read at a time.
const CHUNK: usize = 256 << 10;
/// Sections by their type: string tables, relocations (whose targets stubs are named after), notes.
const KINDS: [u32; 6] = [SHT_SYMTAB, SHT_DYNSYM, 3, 4, 9, 7];
/// Sections by the beginning of their names.
const NAMES: [&str; 6] = [".eh_frame", ".debug_", ".zdebug_", ".gnu_debug", ".plt", ".ARM."];

/// The digest; nothing for what is no ELF file with section headers, or has too much in it, or cannot be read, or has its
/// call frame information where only a program header leads.
///
/// Of code it has the place, and of the bytes those that rows are made of: where handlers of signals may return to. What is
/// made of the rest depends on where sections lie, be they used themselves or not: pointers are relative to some, and symbols
/// without a size reach to the end of others.
pub fn contents_digest(file: &File) -> Option<Digest> {
    let layout = Layout::read(&Source::File(file)).ok()?;
    let used: Vec<&Section> = layout.sections.iter().filter(|section| is_used(section)).collect();
    let bytes = used.iter().fold(0_u64, |sum, section| sum.saturating_add(section.size));
    let is_hidden = layout.section(".eh_frame").is_none() && layout.eh_frame_hdr().is_some();
    if used.is_empty() || bytes > MAX_BYTES || is_hidden {
        return None;
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update(&layout.machine.to_le_bytes());
    for segment in &layout.segments {
        let place = [segment.file_offset, segment.svma, segment.file_size];
        hasher.update(&segment.kind.to_le_bytes()).update(&segment.flags.to_le_bytes());
        for number in place {
            hasher.update(&number.to_le_bytes());
        }
    }
    for section in &layout.sections {
        let (kind, link) = (u64::from(section.kind), u64::from(section.link));
        for number in [section.svma, section.file_offset, section.size, section.flags, kind, link] {
            hasher.update(&number.to_le_bytes());
        }
        hasher.update(&(section.name.len() as u64).to_le_bytes()).update(section.name.as_bytes());
    }
    let mut buffer = vec![0; CHUNK];
    for section in used {
        let (mut at, mut left) = (section.file_offset, section.size);
        while left > 0 {
            let wanted = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
            let read = file.read_at(&mut buffer[..wanted], at).ok().filter(|read| *read > 0)?;
            hasher.update(&buffer[..read]);
            at = at.checked_add(read as u64)?;
            left -= read as u64;
        }
    }
    add_restorers(file, &layout, &mut hasher)?;
    Some(shortened(&hasher.finalize()))
}

/// Digests every place in code that looks like what handlers of signals return to, with all that decides whether it is one.
fn add_restorers(file: &File, layout: &Layout, hasher: &mut blake3::Hasher) -> Option<()> {
    let (finder, code) = (Finder::new(&NUMBER_AND_CALL), layout.code());
    if code.iter().fold(0_u64, |sum, segment| sum.saturating_add(segment.file_size)) > MAX_CODE {
        return None;
    }
    let overlap = BYTES_BEFORE + NUMBER_AND_CALL.len() - 1;
    let mut buffer = vec![0; CHUNK];
    for segment in code {
        let end = segment.file_offset.checked_add(segment.file_size)?;
        // The bytes that are kept from the part before.
        let (mut at, mut kept) = (segment.file_offset, 0);
        while at < end {
            let wanted = usize::try_from(end - at).unwrap_or(CHUNK).min(CHUNK - kept);
            let read = file.read_at(buffer.get_mut(kept..kept + wanted)?, at).ok().filter(|read| *read > 0)?;
            let part = buffer.get(..kept + read)?;
            let start = at.wrapping_sub(kept as u64);
            for found in finder.find_iter(part) {
                let behind = found + NUMBER_AND_CALL.len();
                // One that ends in what was kept has been digested.
                if behind > kept {
                    hasher.update(&start.wrapping_add(found as u64).to_le_bytes());
                    hasher.update(part.get(found.saturating_sub(BYTES_BEFORE)..behind)?);
                }
            }
            let filled = part.len();
            kept = filled.min(overlap);
            buffer.copy_within(filled - kept..filled, 0);
            at = at.checked_add(read as u64)?;
        }
    }
    Some(())
}

/// The digest of some bytes.
pub fn digest(bytes: &[u8]) -> Digest {
    shortened(&blake3::hash(bytes))
}

fn shortened(hash: &blake3::Hash) -> Digest {
    let mut digest = Digest::default();
    digest.copy_from_slice(&hash.as_bytes()[..size_of::<Digest>()]);
    digest
}

fn is_used(section: &Section) -> bool {
    let named = NAMES.iter().any(|beginning| section.name.starts_with(beginning));
    section.kind != SHT_NOBITS && section.size > 0 && (named || KINDS.contains(&section.kind))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::fs;
    use std::io::Write;
    use std::path::Path;
    use std::process::Command;

    use jitprof_unwind::elf::Segment;

    use super::*;

    /// The digest of what is searched for in code of so many bytes with something in it.
    fn digest_of_code(bytes: usize, (at, what): (usize, &[u8])) -> Digest {
        let mut code = vec![0x90; bytes];
        code[at..at + what.len()].copy_from_slice(what);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&code).unwrap();
        let segment = Segment {
            kind: 1,
            flags: 5,
            file_offset: 0,
            svma: 0x1000,
            file_size: bytes as u64,
            memory_size: bytes as u64,
        };
        let mut hasher = blake3::Hasher::new();
        add_restorers(&file, &Layout { segments: vec![segment], ..Layout::default() }, &mut hasher).unwrap();
        shortened(&hasher.finalize())
    }

    #[test]
    fn what_handlers_return_to_is_found_once_wherever_parts_that_are_read_end() {
        let restorer = [0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05];
        let none = digest_of_code(2 * CHUNK, (0, &[0x90]));
        let places = (CHUNK - 20..CHUNK + 20).chain([0, 2 * CHUNK - restorer.len()]);
        for place in places {
            let mut once = blake3::Hasher::new();
            once.update(&(place as u64 + 1).to_le_bytes());
            let before = [0x90; BYTES_BEFORE - 1];
            let before = &before[..place.min(before.len())];
            once.update(&[before, &restorer].concat());
            let found = digest_of_code(2 * CHUNK, (place, &restorer));
            assert_eq!(found, shortened(&once.finalize()), "{place:#x}");
            assert_ne!(found, none);
        }
    }

    /// Where the header of a section lies in the file.
    fn header_of(bytes: &[u8], name: &str) -> usize {
        let layout = Layout::read(&Source::Bytes(bytes)).unwrap();
        let section = layout.section(name).unwrap();
        let table = u64::from_le_bytes(bytes[40..48].try_into().unwrap()) as usize;
        let field = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let mut headers = (table..bytes.len() - 63).step_by(64);
        headers.find(|at| field(at + 24) == section.file_offset && field(at + 16) == section.svma).unwrap()
    }

    fn digest_of(folder: &Path, bytes: &[u8]) -> Option<Digest> {
        let path = folder.join("changed");
        fs::write(&path, bytes).unwrap();
        contents_digest(&File::open(&path).unwrap())
    }

    #[test]
    fn files_are_copies_if_everything_that_is_made_of_them_is_the_same() {
        let directory = tempfile::tempdir().unwrap();
        let (source, path) = (directory.path().join("a.c"), directory.path().join("a.so"));
        fs::write(&source, "int two(void) { return 2; } int three(void) { return two() + 1; }").unwrap();
        let mut command = Command::new("cc");
        command.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&path).arg(&source);
        assert!(command.status().expect("rustc links this test with cc, so it can be run").success());
        let whole = fs::read(&path).unwrap();
        let changed = |at: usize| {
            let mut changed = whole.clone();
            changed[at] ^= 8;
            digest_of(directory.path(), &changed)
        };
        let original = digest_of(directory.path(), &whole);
        assert!(original.is_some());
        let layout = Layout::read(&Source::Bytes(&whole)).unwrap();
        let at = |name: &str| layout.section(name).unwrap().file_offset as usize;
        // Nothing is made of the bytes of most code: names and rows are the same, so a patched copy may have them.
        assert_eq!(changed(at(".text")), original);
        // But of what a handler of signals returns to: nop; mov $15, %eax; syscall. So of each of its bytes.
        let restorer = [0x90, 0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05];
        let with = |bytes: &[u8]| {
            let mut changed = whole.clone();
            changed[at(".text")..][..bytes.len()].copy_from_slice(bytes);
            digest_of(directory.path(), &changed)
        };
        let mut seen = HashSet::from([original, with(&restorer)]);
        assert_eq!(seen.len(), 2);
        for changed in [0, 1] {
            let mut other = restorer;
            other[changed] ^= 8;
            assert!(seen.insert(with(&other)), "byte {changed}");
        }
        assert_eq!(with(&[&restorer[..7], &[0x0d]].concat()), original, "it is none any more");
        for name in [".eh_frame", ".symtab", ".strtab", ".dynsym", ".plt", ".note.gnu.build-id"] {
            assert_ne!(changed(at(name) + 9), original, "{name}");
        }
        // The address that pointers are relative to.
        for name in [".text", ".eh_frame", ".symtab"] {
            assert_ne!(changed(header_of(&whole, name) + 17), original, "{name}");
        }
        // By another name, it is found through the program headers only.
        let mut hidden = whole.clone();
        let name = memchr::memmem::rfind(&hidden, b"\0.eh_frame\0").unwrap() + 2;
        hidden[name] = b'x';
        assert_eq!(digest_of(directory.path(), &hidden), None);
    }
}
