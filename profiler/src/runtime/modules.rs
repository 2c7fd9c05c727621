//! Where the symbols of runtimes are in a process: of each file that it has mapped, by its tables of symbols.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};

use jitprof_common::units::{Avma, Pid};
use jitprof_runtimes::Symbols;
use jitprof_unwind::elf::{Layout, SHT_DYNSYM, SHT_SYMTAB, Source, svma_of_mapping};

use crate::process::apart::Waits;
use crate::process::open::{FileIdentity, MapPlace, open_mapping};
use crate::process::{Mapping, MappingKind, procfs};

/// Files of one process that are looked at: Python with all of SciPy has 500.
const MAX_MODULES: usize = 2048;
/// Bytes of a table of symbols, or of its names; those of a large LLVM have 20 MB.
const MAX_TABLE_BYTES: u64 = 64 << 20;
/// Bytes of tables after which no further file is read in one look at a process: the next look goes on, as what was read is
/// remembered. Programs with their debug information have some 100 MB.
const MAX_READ_BYTES: u64 = 256 << 20;
/// Bytes of an entry of a table of symbols.
const SYMBOL_BYTES: usize = 24;
/// Symbols of one file that are kept; HotSpot has about 40 of them, V8 some 700.
const MAX_SYMBOLS: usize = 2048;
/// Bytes of the name of one.
const MAX_NAME_BYTES: usize = 128;
/// Files whose symbols are remembered.
const MAX_FILES: usize = 4096;
/// How the names of the symbols begin that readers ask for.
const WANTED: [&[u8]; 8] = [
    b"gHotSpotVM",
    b"__jit_debug_descriptor\0",
    b"v8dbg_",
    b"v8_Default_embedded_blob_code_",
    b"_ZN2v88internal7Version",
    b"_ZN2v88internal11interpreter9Bytecodes14kBytecodeSizesE\0",
    b"Builtins_InterpreterEntryTrampoline",
    b"Builtins_WideHandler\0",
];

/// How the names begin of what V8 says for debuggers.
const OF_V8: &str = "v8dbg_";

/// What a file says of itself: where its code is to be found in memory, and its symbols by the file's own addresses.
#[derive(Debug, Default)]
struct FileSymbols {
    code: Vec<jitprof_unwind::elf::Segment>,
    symbols: HashMap<String, u64>,
    /// Bytes that were read for them.
    read: u64,
}

/// The symbols of files that were looked at before.
#[derive(Default)]
pub(super) struct KnownFiles(Mutex<HashMap<FileIdentity, Arc<FileSymbols>>>);

/// A file in a process that has symbols of a runtime.
pub(super) struct Module {
    file: Arc<FileSymbols>,
    /// What is added to the file's own addresses.
    bias: u64,
}

/// All of them.
pub(super) struct Modules {
    found: Vec<Module>,
    /// Whether files were left for the next look.
    is_partial: bool,
}

impl Symbols for Module {
    fn address_of(&self, name: &str) -> Option<Avma> {
        self.file.symbols.get(name).map(|svma| Avma(svma.wrapping_add(self.bias)))
    }
}

impl Modules {
    /// Of a process as it is now. Files on file systems that may not answer are left out.
    pub(super) fn of(via: Pid, known: &KnownFiles, waits: &Waits) -> Self {
        let Ok(maps) = procfs::maps(via) else { return Self { found: Vec::new(), is_partial: false } };
        let mut read = 0;
        let mut seen = HashSet::new();
        let is_code = |mapping: &&Mapping| mapping.prot.execute && mapping.kind == MappingKind::File;
        let files = maps.mappings.iter().filter(is_code);
        let files = files.filter(|mapping| seen.insert((mapping.device, mapping.inode))).take(MAX_MODULES);
        let modules = files.filter_map(|mapping| {
            let place = MapPlace::of(mapping);
            if waits.may_hold(via, place.device) {
                return None;
            }
            let opened = open_mapping(via, &place).ok()?;
            let file = known.symbols_of(opened.identity, &opened.file, &mut read)?;
            if file.symbols.is_empty() {
                return None;
            }
            let svma = svma_of_mapping(&file.code, mapping.file_offset.0)?;
            Some(Module { file, bias: mapping.start.0.wrapping_sub(svma) })
        });
        let found = modules.collect();
        Self { found, is_partial: read >= MAX_READ_BYTES }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Module> {
        self.found.iter()
    }

    /// Whether there may be files that no look has come to yet.
    pub(super) fn is_partial(&self) -> bool {
        self.is_partial
    }
}

impl KnownFiles {
    /// `None` if it has to be read, and too much has been: `read` is how much.
    fn symbols_of(&self, identity: FileIdentity, file: &File, read: &mut u64) -> Option<Arc<FileSymbols>> {
        let known = |files: &HashMap<FileIdentity, Arc<FileSymbols>>| files.get(&identity).cloned();
        if let Some(found) = known(&self.0.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Some(found);
        }
        if *read >= MAX_READ_BYTES {
            return None;
        }
        let symbols = Arc::new(FileSymbols::read(&Source::File(file)));
        *read += symbols.read;
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if files.len() >= MAX_FILES {
            files.clear();
        }
        files.insert(identity, Arc::clone(&symbols));
        Some(symbols)
    }
}

impl FileSymbols {
    /// Of what is no ELF file there are none.
    fn read(source: &Source<'_>) -> Self {
        let Ok(layout) = Layout::read(source) else { return Self::default() };
        let mut found = Self { code: layout.code(), ..Self::default() };
        for kind in [SHT_DYNSYM, SHT_SYMTAB] {
            // V8's own code has names in the second only.
            let is_enough = !found.symbols.is_empty() && !found.symbols.keys().any(|name| name.starts_with(OF_V8));
            let table = layout.section_of_kind(kind).filter(|_| !is_enough);
            let Some((table, names)) = table.and_then(|table| Some((table, layout.linked(table)?))) else { continue };
            let contents = |section| source.contents(section, MAX_TABLE_BYTES).unwrap_or_default();
            let (table, names) = (contents(table), contents(names));
            found.read += (table.len() + names.len()) as u64;
            // Most files have none, and need not be searched symbol by symbol.
            if WANTED.iter().any(|wanted| memchr::memmem::find(&names, wanted).is_some()) {
                found.symbols.extend(wanted(&table, &names));
            }
        }
        found
    }
}

/// Of `{name u32, info u8, other u8, section u16, value u64, size u64}` those whose names are wanted.
fn wanted(table: &[u8], names: &[u8]) -> HashMap<String, u64> {
    let symbols = table.chunks_exact(SYMBOL_BYTES).filter_map(|symbol| {
        let (name, rest) = symbol.split_first_chunk::<4>()?;
        let name = names.get(u32::from_le_bytes(*name) as usize..)?;
        if !WANTED.iter().any(|wanted| name.starts_with(wanted)) {
            return None;
        }
        let (section, value) = (rest.get(2..4)?, rest.get(4..)?.first_chunk::<8>()?);
        let length = name.iter().take(MAX_NAME_BYTES).position(|byte| *byte == 0)?;
        let name = String::from_utf8(name[..length].to_vec()).ok()?;
        // Undefined ones are another module's.
        (section != [0, 0]).then_some((name, u64::from_le_bytes(*value)))
    });
    symbols.take(MAX_SYMBOLS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(name: u32, section: u16, value: u64) -> Vec<u8> {
        let parts = [&name.to_le_bytes()[..], &[0x11, 0], &section.to_le_bytes(), &value.to_le_bytes(), &[0; 8]];
        parts.concat()
    }

    #[test]
    fn wanted_symbols_are_found_and_what_makes_no_sense_is_left_out() {
        let names = b"\0gHotSpotVMStructs\0main\0__jit_debug_descriptor\0__jit_debug_descriptor2\0gHotSpotVM";
        let at = |name: &[u8]| u32::try_from(memchr::memmem::find(names, name).unwrap()).unwrap();
        let symbols = [
            symbol(at(b"gHotSpotVMStructs"), 7, 0x1000),
            symbol(at(b"main"), 7, 0x2000),
            symbol(at(b"__jit_debug_descriptor\0"), 7, 0x3000),
            symbol(at(b"__jit_debug_descriptor2"), 7, 0x4000),
            // Another module's, one behind the names, one whose name has no end, and one that is cut off.
            symbol(at(b"gHotSpotVMStructs"), 0, 0x5000),
            symbol(u32::MAX, 7, 0x6000),
            symbol(u32::try_from(names.len() - 10).unwrap(), 7, 0x7000),
            vec![0; 23],
        ];
        let found = wanted(&symbols.concat(), names);
        let expected = [("gHotSpotVMStructs", 0x1000), ("__jit_debug_descriptor", 0x3000)];
        assert_eq!(found, expected.map(|(name, address)| (name.to_owned(), address)).into());
    }

    #[test]
    fn a_look_reads_so_much_and_the_next_one_goes_on() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("libruntime.so");
        let mut command = std::process::Command::new("cc");
        command.args(["-shared", "-nostdlib", "-x", "c", "-o"]).arg(&path).arg("/dev/null");
        assert!(command.status().expect("rustc links this test with cc, so it can be run").success());
        let (file, known) = (File::open(&path).unwrap(), KnownFiles::default());
        let identity = FileIdentity::of(&file.metadata().unwrap());
        let mut read = MAX_READ_BYTES;
        assert!(known.symbols_of(identity, &file, &mut read).is_none());
        read = MAX_READ_BYTES - 1;
        assert!(known.symbols_of(identity, &file, &mut read).is_some());
        assert!(read > MAX_READ_BYTES, "its tables count");
        assert!(known.symbols_of(identity, &file, &mut read).is_some(), "it is known by now");
    }

    #[test]
    fn a_file_cut_or_changed_anywhere_has_its_symbols_or_none_of_others() {
        let directory = tempfile::tempdir().unwrap();
        let (source, path) = (directory.path().join("runtime.c"), directory.path().join("libruntime.so"));
        let text = "int __jit_debug_descriptor = 1, v8dbg_parent = 2, gHotSpotVM = 3, other = 4;";
        std::fs::write(&source, text).unwrap();
        let mut command = std::process::Command::new("cc");
        command.args(["-shared", "-nostdlib", "-s", "-o"]).arg(&path).arg(&source);
        assert!(command.status().expect("rustc links this test with cc, so it can be run").success());
        let whole = std::fs::read(&path).unwrap();
        let read = |bytes: &[u8]| FileSymbols::read(&Source::Bytes(bytes)).symbols;
        let expected = read(&whole);
        let mut names: Vec<&str> = expected.keys().map(String::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["__jit_debug_descriptor", "gHotSpotVM", "v8dbg_parent"]);
        for length in (0..whole.len()).step_by(5).chain([whole.len() - 1]) {
            // The table of sections stands at the end: without all of it nothing is known.
            let found = read(&whole[..length]);
            assert!(found.is_empty(), "{length} of {}: {found:?}", whole.len());
        }
        let (mut same, mut less) = (0, 0);
        for at in (0..whole.len()).step_by(3) {
            let mut changed = whole.clone();
            changed[at] ^= 0x55;
            let found = read(&changed);
            let is_wanted = |name: &String| WANTED.iter().any(|wanted| name.as_bytes().starts_with(wanted));
            let of_wanted = found.keys().all(|name| is_wanted(name) || name == "__jit_debug_descriptor");
            assert!(found.len() <= expected.len() && of_wanted, "{at}: {found:?}");
            same += usize::from(found == expected);
            less += usize::from(found != expected);
        }
        assert!(same > less && less > 0, "{same} {less}");
    }
}
