//! Where the symbols of runtimes are in a process: of each file that it has mapped, by its tables of symbols.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};
use jitprof_common::units::{Avma, Pid};
use jitprof_runtimes::Symbols;
use jitprof_unwind::elf::{Layout, SHT_DYNSYM, SHT_SYMTAB, Segment, Source, svma_of_mapping};
use jitprof_unwind::functions_of_elf;

use super::CallSite;
use super::known_files::{KnownFiles, Look};
use crate::process::apart::Waits;
use crate::process::open::{FileIdentity, MapPlace, open_mapping};
use crate::process::{Mapping, MappingKind, procfs};

/// Files of one process that are looked at: Python with all of SciPy has 500.
const MAX_MODULES: usize = 2048;
/// Bytes of a table of symbols, of its names, or of functions; those of a large LLVM have 20 MB.
const MAX_TABLE_BYTES: u64 = 64 << 20;
/// Bytes of an entry of a table of symbols.
const SYMBOL_BYTES: usize = 24;
/// Symbols of one file that are kept; HotSpot has about 40 of them, V8 some 700.
const MAX_SYMBOLS: usize = 2048;
/// Bytes of the name of one.
const MAX_NAME_BYTES: usize = 128;
/// How the names of the symbols begin that readers ask for.
const WANTED: [&[u8]; 15] = [
    b"gHotSpotVM",
    b"__jit_debug_descriptor\0",
    b"__register_frame_info_bases\0",
    b"v8dbg_",
    b"v8_Default_embedded_blob_code_",
    b"_ZN2v88internal7Version",
    b"_ZN2v88internal11interpreter9Bytecodes14kBytecodeSizesE\0",
    b"Builtins_InterpreterEntryTrampoline",
    b"Builtins_DeoptimizationEntry_",
    b"Builtins_WideHandler\0",
    b"_PyRuntime\0",
    b"_thread_db_pthread_specific\0",
    b"executor_globals\0",
    b"ruby_version\0",
    b"enif_make_tuple_from_array\0",
];
/// What is wanted of a file that has one of those, and does not make it one that is wanted: each module that was written for
/// CPython, PHP or Ruby has some of these names, and Erlang's emulator not all of them.
const WANTED_BESIDES: [&[u8]; 24] = [
    b"__jit_debug_register_code\0",
    b"Py_Version\0",
    b"Py_NewRef\0",
    b"PyFrame_GetCode\0",
    b"PyCode_NewWithPosOnlyArgs\0",
    b"PyCode_Type\0",
    b"PyUnicode_Type\0",
    b"PyBytes_Type\0",
    b"_PyThreadState_GetCurrent\0",
    b"PyGILState_GetThisThreadState\0",
    b"_PyEval_EvalFrameDefault\0",
    b"get_zend_version\0",
    b"execute_ex\0",
    b"zend_vm_kind\0",
    b"rb_errinfo\0",
    b"rb_gc_count\0",
    b"rb_id2str\0",
    b"rb_vm_exec\0",
    b"the_active_code_index\0",
    b"etp_otp_release\0",
    b"erts_call_dirty_nif\0",
    b"erts_call_dirty_bif\0",
    b"erts_get_scheduler_data\0",
    b"erts_aligned_dirty_cpu_scheduler_data\0",
];
/// The functions whose parts are looked for: the loops over instructions, and what calls what is not run on its own stack.
const SPLIT: [&str; 5] = [EVALUATION_LOOP, PHP_LOOP, RUBY_LOOP, DIRTY_CALLS[0], DIRTY_CALLS[1]];
/// The function in which CPython runs instructions.
pub(super) const EVALUATION_LOOP: &str = "_PyEval_EvalFrameDefault";
/// The function in which PHP does.
pub(super) const PHP_LOOP: &str = "execute_ex";
/// The function in which Ruby handles exceptions; what runs instructions is a part of it, or one that it calls.
pub(super) const RUBY_LOOP: &str = "rb_vm_exec";
/// The functions by which Erlang's emulator calls what runs on its dirty schedulers.
pub(super) const DIRTY_CALLS: [&str; 2] = ["erts_call_dirty_nif", "erts_call_dirty_bif"];
/// What is called when code is registered with a debugger, and what says which.
const REGISTERS: [&str; 2] = ["__jit_debug_register_code", "__jit_debug_descriptor"];
/// The symbol by which Ruby's module is known.
pub(super) const RUBY: &str = "ruby_version";
/// Jumps that lead to where a register or memory says, in a loop over instructions that has no name: Ruby 3.3's has 131.
const MIN_DISPATCHES: usize = 64;
/// The least size of that function, in bytes: of 3.1 it has 17,000.
const MIN_RUN_BYTES: u64 = 8 << 10;
/// Parts that a function may have been split into.
const MAX_PARTS: usize = 8;
/// Bytes of code of one file that are searched for one, and how many are kept. Of libruby it is half a megabyte, and two; a
/// file may say that its functions lie upon each other.
const MAX_SEARCHED_BYTES: u64 = 8 << 20;
const MAX_DISPATCHING: usize = 4;
/// Bytes of one that are looked at; CPython's has 90,000.
const MAX_PART_BYTES: u64 = 1 << 20;
/// How much more a byte of code costs to be looked at than one of a table.
const DECODING: u64 = 16;
/// Functions of one file that are looked at; CPython has 10,000, with what it is linked with.
const MAX_FUNCTIONS: usize = 1 << 19;
/// `e_machine` of the only machine whose jumps are followed.
const X86_64: u16 = 62;

/// How the names begin of what V8 says for debuggers.
const OF_V8: &str = "v8dbg_";

/// What a file says of itself: where its code is to be found in memory, and its symbols by the file's own addresses.
#[derive(Debug, Default)]
pub(super) struct FileSymbols {
    code: Vec<Segment>,
    /// Where its variables are.
    data: Range<u64>,
    symbols: HashMap<String, Symbol>,
    /// The functions among them that are looked for in parts.
    parts: HashMap<&'static str, Vec<Range<u64>>>,
    /// The parts of the largest function that one of them calls.
    within: HashMap<&'static str, Vec<Range<u64>>>,
    /// The parts of functions that may be a loop over instructions which has no name here.
    dispatching: Vec<Vec<Range<u64>>>,
    /// Bytes that were read for them.
    pub(super) read: u64,
}

/// Where a symbol is, by the file's own addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Symbol {
    svma: u64,
    size: u64,
}

/// A file in a process that has symbols of a runtime.
pub(super) struct Module {
    file: Arc<FileSymbols>,
    /// What is added to the file's own addresses.
    bias: u64,
    /// Where its code is mapped, and which file that is.
    mapped: Option<(MapPlace, FileIdentity)>,
}

/// All of them.
pub(super) struct Modules {
    found: Vec<Module>,
    /// Whether files were left for the next look.
    is_partial: bool,
}

impl Symbols for Module {
    fn address_of(&self, name: &str) -> Option<Avma> {
        self.file.symbols.get(name).map(|symbol| Avma(symbol.svma.wrapping_add(self.bias)))
    }
}

impl Module {
    /// Where the code of a function is: as far as its symbol says, and where the compiler has put the rest of it. First
    /// byte, and length. Of functions that nobody wants in parts there are none.
    pub(super) fn parts_of(&self, name: &str) -> Vec<(Avma, u64)> {
        self.placed(self.file.parts.get(name))
    }

    /// The same of a function that it calls to run instructions.
    pub(super) fn parts_within(&self, name: &str) -> Vec<(Avma, u64)> {
        self.placed(self.file.within.get(name))
    }

    /// The same of the function around an address, if it is one of those that jump by tables again and again.
    pub(super) fn dispatching_at(&self, address: Avma) -> Vec<(Avma, u64)> {
        let svma = address.0.wrapping_sub(self.bias);
        self.placed(self.file.dispatching.iter().find(|parts| parts.iter().any(|part| part.contains(&svma))))
    }

    /// What it calls when it registers code with a debugger.
    pub(super) fn call_site(&self) -> Option<CallSite> {
        let [function, descriptor] = REGISTERS.map(|name| self.address_of(name));
        let (function, descriptor) = (function?, descriptor?);
        let (place, identity) = self.mapped.clone()?;
        let svma = function.0.wrapping_sub(self.bias);
        let distance = |part: &Segment| svma.checked_sub(part.svma).filter(|distance| *distance < part.file_size);
        let offset = self.file.code.iter().find_map(|part| part.file_offset.checked_add(distance(part)?))?;
        Some(CallSite { place, identity, offset, function, descriptor })
    }

    /// Where its variables are: first byte, and the one behind.
    pub(super) fn data(&self) -> Range<Avma> {
        Avma(self.file.data.start.wrapping_add(self.bias))..Avma(self.file.data.end.wrapping_add(self.bias))
    }

    fn placed(&self, parts: Option<&Vec<Range<u64>>>) -> Vec<(Avma, u64)> {
        let placed = |part: &Range<u64>| (Avma(part.start.wrapping_add(self.bias)), part.end - part.start);
        parts.into_iter().flatten().map(placed).collect()
    }
}

impl Modules {
    /// Of a process as it is now. Files on file systems that may not answer are left out.
    pub(super) fn of(via: Pid, known: &KnownFiles, waits: &Waits) -> Self {
        let Ok(maps) = procfs::maps(via) else { return Self { found: Vec::new(), is_partial: false } };
        let mut look = Look::of(super::user_of(via));
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
            let file =
                known.symbols_of(opened.identity, &mut look, || FileSymbols::read(&Source::File(&opened.file)))?;
            if file.symbols.is_empty() {
                return None;
            }
            let svma = svma_of_mapping(&file.code, mapping.file_offset.0)?;
            let bias = mapping.start.0.wrapping_sub(svma);
            Some(Module { file, bias, mapped: Some((place, opened.identity)) })
        });
        let found = modules.collect();
        Self { found, is_partial: look.is_over() }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Module> {
        self.found.iter()
    }

    /// Whether there may be files that no look has come to yet.
    pub(super) fn is_partial(&self) -> bool {
        self.is_partial
    }
}

impl FileSymbols {
    /// Bytes that they take up, nearly.
    pub(super) fn bytes(&self) -> usize {
        let parts =
            self.parts.values().chain(self.within.values()).chain(&self.dispatching).map(Vec::len).sum::<usize>();
        self.symbol_bytes() + self.code.len() * size_of::<Segment>() + parts * size_of::<Range<u64>>()
    }

    /// The same of the symbols alone.
    pub(super) fn symbol_bytes(&self) -> usize {
        let names = self.symbols.keys().map(String::capacity).sum::<usize>();
        names + self.symbols.capacity() * size_of::<(String, Symbol)>()
    }

    #[cfg(test)]
    pub(super) fn of_names(names: impl Iterator<Item = String>, read: u64) -> Self {
        let symbols = names.map(|name| (name, Symbol { svma: 1, size: 1 })).collect();
        Self { symbols, read, ..Self::default() }
    }

    /// Of what is no ELF file there are none.
    fn read(source: &Source<'_>) -> Self {
        let Ok(layout) = Layout::read(source) else { return Self::default() };
        let mut found = Self { code: layout.code(), data: layout.data(), ..Self::default() };
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
        let frames = layout.section(".eh_frame").map_or(u64::MAX, |section| section.size);
        let has_functions = layout.machine == X86_64 && frames <= MAX_TABLE_BYTES;
        if has_functions && found.symbols.contains_key(RUBY) && !found.symbols.contains_key(RUBY_LOOP) {
            found.read += frames;
            let (dispatching, decoded) = dispatching(source, &layout);
            found.read += decoded * DECODING;
            found.dispatching = dispatching;
        }
        for name in SPLIT {
            let Some(symbol) = found.symbols.get(name) else { continue };
            let own = symbol.svma..symbol.svma.saturating_add(symbol.size);
            let parts = if has_functions {
                found.read += frames;
                parts(source, &layout, own)
            } else {
                vec![own]
            };
            if name == RUBY_LOOP && has_functions {
                found.read += frames;
                found.within.insert(name, called_to_run(source, &layout, &parts));
            }
            let decoded = parts.iter().chain(found.within.get(name).into_iter().flatten());
            found.read += decoded.map(|part| (part.end - part.start).min(MAX_PART_BYTES) * DECODING).sum::<u64>();
            found.parts.insert(name, parts);
        }
        found
    }
}

/// Of `{name u32, info u8, other u8, section u16, value u64, size u64}` those whose names are wanted.
fn wanted(table: &[u8], names: &[u8]) -> HashMap<String, Symbol> {
    let symbols = table.chunks_exact(SYMBOL_BYTES).filter_map(|symbol| {
        let (name, rest) = symbol.split_first_chunk::<4>()?;
        let name = names.get(u32::from_le_bytes(*name) as usize..)?;
        if !WANTED.iter().chain(&WANTED_BESIDES).any(|wanted| name.starts_with(wanted)) {
            return None;
        }
        let (section, value) = (rest.get(2..4)?, rest.get(4..)?.first_chunk::<8>()?);
        let symbol = Symbol {
            svma: u64::from_le_bytes(*value),
            size: rest.get(12..)?.first_chunk().copied().map(u64::from_le_bytes)?,
        };
        let length = name.iter().take(MAX_NAME_BYTES).position(|byte| *byte == 0)?;
        let name = String::from_utf8(name[..length].to_vec()).ok()?;
        // Undefined ones are another module's.
        (section != [0, 0]).then_some((name, symbol))
    });
    symbols.take(MAX_SYMBOLS).collect()
}

/// The parts of a function. A compiler that knows which instructions are run keeps the others elsewhere, and the symbol is
/// of one part only: the others are where jumps lead that leave it. A jump to where a function begins is a call that does
/// not return.
fn parts(source: &Source<'_>, layout: &Layout, own: Range<u64>) -> Vec<Range<u64>> {
    parts_among(source, layout, own, &functions_of_elf(source, MAX_FUNCTIONS))
}

/// The same, with the functions of the file.
fn parts_among(source: &Source<'_>, layout: &Layout, own: Range<u64>, functions: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut parts = vec![own];
    // What leads to other modules is one to the tables.
    let linkage = layout.sections.iter().filter(|section| section.name.starts_with(".plt"));
    let linkage = merged(linkage.map(|section| section.svma..section.svma.saturating_add(section.size)).collect());
    let mut looked_at = 0;
    while let Some(part) = parts.get(looked_at).cloned() {
        looked_at += 1;
        for target in jumps_out_of(source, layout, &part) {
            if parts.len() >= MAX_PARTS {
                return parts;
            }
            let before = functions.partition_point(|function| function.start < target);
            let around = before.checked_sub(1).and_then(|at| functions.get(at));
            let Some(around) = around.filter(|around| target < around.end) else { continue };
            let table = linkage.partition_point(|table| table.start <= target).checked_sub(1);
            let is_linkage = table.and_then(|at| linkage.get(at)).is_some_and(|table| target < table.end);
            if !is_linkage && !parts.iter().any(|part| part.contains(&target)) {
                parts.push(around.clone());
            }
        }
    }
    parts
}

/// Ranges in order, those in one that overlap: a file may have as many as it likes.
fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, last| {
        let is_one = next.start <= last.end;
        last.end = last.end.max(if is_one { next.end } else { last.end });
        is_one
    });
    ranges
}

/// The parts of each function that jumps by tables so often that it may be a loop over instructions, and how many bytes of code
/// were looked at.
fn dispatching(source: &Source<'_>, layout: &Layout) -> (Vec<Vec<Range<u64>>>, u64) {
    let functions = functions_of_elf(source, MAX_FUNCTIONS);
    let (mut looked_at, mut dispatching) = (0, Vec::new());
    for function in functions.iter().filter(|function| function.end - function.start >= MIN_RUN_BYTES) {
        looked_at += (function.end - function.start).min(MAX_PART_BYTES);
        if looked_at > MAX_SEARCHED_BYTES || dispatching.len() >= MAX_DISPATCHING {
            break;
        }
        if leads_of(source, layout, function, &[FlowControl::IndirectBranch]).len() >= MIN_DISPATCHES {
            let parts = parts_among(source, layout, function.clone(), &functions);
            looked_at += parts.iter().map(|part| (part.end - part.start).min(MAX_PART_BYTES)).sum::<u64>();
            dispatching.push(parts);
        }
    }
    (dispatching, looked_at)
}

/// The parts of the largest function that the code calls, if it is as large as a loop over instructions.
fn called_to_run(source: &Source<'_>, layout: &Layout, code: &[Range<u64>]) -> Vec<Range<u64>> {
    let functions = functions_of_elf(source, MAX_FUNCTIONS);
    let at = |target: &u64| functions.binary_search_by_key(target, |function| function.start).ok();
    let called = code.iter().flat_map(|part| leads_out_of(source, layout, part, &[FlowControl::Call]));
    let called = called.filter_map(|target| functions.get(at(&target)?));
    let largest = called.max_by_key(|function| function.end - function.start);
    let largest = largest.filter(|function| function.end - function.start >= MIN_RUN_BYTES);
    largest.map_or_else(Vec::new, |function| parts(source, layout, function.clone()))
}

/// Where the jumps lead that leave a part of the code.
fn jumps_out_of(source: &Source<'_>, layout: &Layout, part: &Range<u64>) -> Vec<u64> {
    leads_out_of(source, layout, part, &[FlowControl::ConditionalBranch, FlowControl::UnconditionalBranch])
}

/// Where the instructions of these kinds lead that leave a part of the code.
fn leads_out_of(source: &Source<'_>, layout: &Layout, part: &Range<u64>, kinds: &[FlowControl]) -> Vec<u64> {
    let mut targets = leads_of(source, layout, part, kinds);
    targets.retain(|target| !part.contains(target));
    targets.sort_unstable();
    targets.dedup();
    targets
}

/// Where each instruction of these kinds leads; 0 where it does not say so itself.
fn leads_of(source: &Source<'_>, layout: &Layout, part: &Range<u64>, kinds: &[FlowControl]) -> Vec<u64> {
    let length = (part.end - part.start).min(MAX_PART_BYTES);
    let code = layout.loaded_from(part.start).and_then(|(at, available)| source.read(at, length.min(available)).ok());
    let code = code.unwrap_or_default();
    let mut decoder = Decoder::with_ip(64, &code, part.start, DecoderOptions::NONE);
    let (mut instruction, mut targets) = (Instruction::default(), Vec::new());
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        if kinds.contains(&instruction.flow_control()) {
            targets.push(instruction.near_branch_target());
        }
    }
    targets
}

#[cfg(test)]
mod tests {
    use jitprof_runtimes::pthread::Keys;

    use super::*;

    fn symbol(name: u32, section: u16, value: u64) -> Vec<u8> {
        let parts = [
            &name.to_le_bytes()[..],
            &[0x11, 0],
            &section.to_le_bytes(),
            &value.to_le_bytes(),
            &0x20_u64.to_le_bytes(),
        ];
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
        assert_eq!(found, expected.map(|(name, svma)| (name.to_owned(), Symbol { svma, size: 0x20 })).into());
    }

    #[test]
    fn what_glibc_says_of_keys_is_wanted() {
        let name = format!("{}\0", Keys::SYMBOL);
        assert!(WANTED.contains(&name.as_bytes()));
    }

    #[test]
    fn ranges_that_overlap_are_one() {
        assert_eq!(merged(vec![5..7, 1..3, 2..4, 9..9, 4..5, 6..6]), [1..7, 9..9]);
        assert_eq!(merged(vec![1..9, 2..3, 12..13]), [1..9, 12..13]);
        assert_eq!(merged(Vec::new()), []);
    }

    /// A library of a program in C, without its symbols.
    fn library(text: &str, options: &[&str]) -> Vec<u8> {
        let directory = tempfile::tempdir().unwrap();
        let (source, path) = (directory.path().join("runtime.c"), directory.path().join("libruntime.so"));
        std::fs::write(&source, text).unwrap();
        let mut command = std::process::Command::new("cc");
        command.args(["-shared", "-nostdlib", "-fPIC", "-s"]).args(options).arg("-o").arg(&path).arg(&source);
        assert!(command.status().expect("rustc links this test with cc, so it can be run").success());
        std::fs::read(&path).unwrap()
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_rest_of_a_split_function_is_found_by_its_jumps() {
        let text = "int _PyRuntime; void out(int), other(int); __attribute__((cold)) void rare(int);
            void _PyEval_EvalFrameDefault(int a, volatile int *b) {
                for (int i = 0; i < a; i++) {
                    if (b[0]) { do { rare(2); } while (b[1]); }
                    if (b[2]) { do { rare(3); } while (b[3]); }
                    b[4] += i;
                }
                if (b[5]) out(1);
                else other(1);
            }
            __attribute__((noinline)) void other(int a) { out(a); out(a); }";
        let read = |options: &[&str]| {
            let image = library(text, &[&["-O2", "-fno-semantic-interposition"], options].concat());
            FileSymbols::read(&Source::Bytes(&image))
        };
        let whole = read(&["-fno-reorder-blocks-and-partition"]);
        let symbol = whole.symbols[EVALUATION_LOOP];
        let own = symbol.svma..symbol.svma + symbol.size;
        assert_eq!(whole.parts[EVALUATION_LOOP], [own]);
        let split = read(&["-freorder-blocks-and-partition"]);
        let symbol = split.symbols[EVALUATION_LOOP];
        let [first, rest] = &split.parts[EVALUATION_LOOP][..] else { panic!("{:?}", split.parts) };
        assert_eq!(*first, symbol.svma..symbol.svma + symbol.size);
        assert!(rest.end <= first.start || first.end <= rest.start, "{rest:x?} {first:x?}");
        assert!((20..200).contains(&(rest.end - rest.start)), "{rest:x?}");
        let module = Module { file: Arc::new(split), bias: 0x1000, mapped: None };
        let placed = module.parts_of(EVALUATION_LOOP);
        assert_eq!(placed[0], (Avma(symbol.svma + 0x1000), symbol.size));
        assert_eq!((placed.len(), module.parts_of("other")), (2, Vec::new()));
        // Without what says where functions are, the symbol's own.
        let without = read(&["-freorder-blocks-and-partition", "-fno-asynchronous-unwind-tables"]);
        assert_eq!(without.parts[EVALUATION_LOOP].len(), 1);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_largest_function_that_a_loop_calls_is_within_it() {
        let text = "int ruby_version; void out(void);
            __attribute__((noinline)) static void small(void) { out(); out(); }
            __attribute__((noinline)) static int run(volatile int *a) { asm(\".skip 9000, 0x90\"); return a[0]; }
            int rb_vm_exec(volatile int *a) { small(); return run(a) + run(a + 1); }";
        let read = |text: &str| {
            let image = library(text, &["-O1", "-fno-semantic-interposition", "-fno-ipa-icf"]);
            Module { file: Arc::new(FileSymbols::read(&Source::Bytes(&image))), bias: 0x1000, mapped: None }
        };
        let module = read(text);
        let [(start, size)] = module.parts_within(RUBY_LOOP)[..] else { panic!("{:?}", module.file.within) };
        assert!((9000..9100).contains(&size), "{size}");
        let (own, _) = module.parts_of(RUBY_LOOP)[0];
        assert!(start.0 + size <= own.0 || own.0 < start.0);
        // None of them is as large.
        let module = read(&text.replace("9000", "90"));
        assert_eq!((module.parts_of(RUBY_LOOP).len(), module.parts_within(RUBY_LOOP)), (1, Vec::new()));
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_loop_without_a_name_is_found_by_where_it_jumps() {
        let jumps = |count: usize| "jmp *%rax; ".repeat(count);
        let text = |count: usize| {
            format!(
                "int ruby_version;
                 __attribute__((noinline, used)) static void large(void) {{ asm(\".skip 9000, 0x90\"); }}
                 __attribute__((noinline, used)) static void run(void) {{ asm(\"{}.skip 9000, 0x90\"); }}",
                jumps(count)
            )
        };
        let read = |text: &str| {
            let image = library(text, &["-O1"]);
            Module { file: Arc::new(FileSymbols::read(&Source::Bytes(&image))), bias: 0x1000, mapped: None }
        };
        let module = read(&text(100));
        let [parts] = &module.file.dispatching[..] else { panic!("{:?}", module.file.dispatching) };
        let inside = Avma(parts[0].start + 0x1000 + 50);
        let [(start, size)] = module.dispatching_at(inside)[..] else { panic!("{parts:?}") };
        assert!(start.0 == parts[0].start + 0x1000 && (9200..9300).contains(&size), "{start:?} {size}");
        assert_eq!(module.dispatching_at(Avma(start.0 - 1)), []);
        assert!(read(&text(60)).file.dispatching.is_empty());
        // However many there are, a few are kept.
        let many: String = (0..2 * MAX_DISPATCHING)
            .map(|at| {
                text(100)
                    .replace("int ruby_version;", "")
                    .replace("run(", &format!("run{at}("))
                    .replace("large(", &format!("large{at}("))
            })
            .collect();
        let many = read(&("int ruby_version;".to_owned() + &many));
        assert_eq!(many.file.dispatching.len(), MAX_DISPATCHING);
        // What has a name is no other one.
        let named = text(100) + "void rb_vm_exec(void) {}";
        assert!(read(&named).file.dispatching.is_empty());
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
