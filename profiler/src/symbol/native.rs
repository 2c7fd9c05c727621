//! Frames of one ELF file: its GSYM file; its own copy and its separate debug file's, and blazesym on top of each.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashSet;
use std::fs::File;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{self, CodeInfo, Input, Reason, Sym, Symbolized};

use super::debugfile;
use super::demangle::{self, LastNames};
use super::frame::{Frame, FrameKind, Module, SourceLine};
use super::gsym::GsymTable;
use super::image::{Image, layout_of};
use super::open_files::OpenFile;
use super::plt::Plt;
use super::stats::{DebugLoss, SymbolStats, Unresolved};
use super::worker::SymbolBudget;
use crate::gsym::{GsymStore, Place};
use jitprof_common::units::FileOffset;
use jitprof_unwind::elf::{self, Layout};
use jitprof_unwind::functions_of_elf;

/// Functions inlined into one address that are shown; the outermost ones beyond it are left out.
const MAX_INLINED: usize = 256;

/// Errors in one file's debug information after which it is not tried again; a panic is one too many.
const MAX_DEBUG_FAILURES: u8 = 8;

/// Functions of one file whose places are known at most; Chromium has 500,000.
const MAX_FUNCTIONS: usize = 1 << 19;

/// Names and paths, each kept once. What a target chose is hashed with a secret key.
#[derive(Debug, Default)]
pub(super) struct Names {
    all: HashSet<Arc<str>>,
    demangled: LastNames,
}

impl Names {
    pub(super) fn intern(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.all.get(text) {
            return Arc::clone(known);
        }
        let name: Arc<str> = text.into();
        self.all.insert(Arc::clone(&name));
        name
    }

    /// A function's name as [`demangle::demangle`] writes it, and whether it was cut. The addresses of a function have it
    /// from the first one that is asked for.
    fn demangled(&mut self, name: &str) -> (Arc<str>, bool) {
        let is_mangled = demangle::is_mangled(name);
        if let Some(known) = is_mangled.then(|| self.demangled.get(name)).flatten() {
            return known;
        }
        let (written, was_cut) = demangle::demangle(name);
        let written = self.intern(&written);
        if is_mangled {
            self.demangled.note(name, (&written, was_cut));
        }
        (written, was_cut)
    }

    /// Drops what nobody else holds. What was demangled last stays, within its bounds.
    pub(super) fn drop_unused(&mut self) {
        self.all.retain(|name| Arc::strong_count(name) > 1);
        self.all.shrink_to_fit();
    }
}

/// A loaded file.
pub(super) struct Native {
    layout: Layout,
    module: Arc<Module>,
    plt: Plt,
    /// Asked first.
    gsym: Option<GsymTable>,
    /// In order of preference: the separate debug file, the file itself.
    tables: Vec<Table>,
    /// Where its functions are, ascending, once one was asked for.
    functions: Option<Vec<Range<u64>>>,
    /// Memory that the copies take, and the functions.
    pub(super) bytes: u64,
}

/// One copy, and blazesym's view of it.
struct Table {
    symbolizer: symbolize::Symbolizer,
    with_debug: Option<Source<'static>>,
    /// Errors of the parser so far; it starts from nothing after some of them.
    debug_failures: Cell<u8>,
    symbols_only: Source<'static>,
    /// Keeps the path alive that blazesym opens on first use.
    _image: Image,
}

impl Native {
    /// Copies the symbol tables and parses headers; blazesym parses on the first look-up. A file without debug
    /// information gets it from its GSYM file, else from a separate debug file.
    pub(super) fn load(
        origin: &OpenFile,
        known: &GsymStore,
        budget: &SymbolBudget,
        stats: &mut SymbolStats,
    ) -> Result<Self, Unresolved> {
        let layout = layout_of(&origin.file)?;
        let image = Image::copy(&origin.file, &layout, budget)?;
        if let Some(loss) = image.debug_loss {
            stats.count_debug(loss);
        }
        let gsym = (!image.has_debug).then(|| GsymTable::open(origin, known, stats)).flatten();
        let separate = (!image.has_debug && gsym.is_none()).then(|| debugfile::load(origin, budget, stats)).flatten();
        let images = separate.into_iter().chain([image]);
        let images: Vec<Image> = images.filter(|image| image.has_debug || image.has_symbols).collect();
        let bytes = images.iter().fold(0u64, |sum, image| sum.saturating_add(image.bytes));
        stats.bytes_copied = stats.bytes_copied.saturating_add(bytes);
        let parsed = images.iter().fold(0u64, |sum, image| sum.saturating_add(image.parsed_bytes));
        let bytes = bytes.saturating_add(parsed);
        let bytes = bytes.saturating_add(gsym.as_ref().map_or(0, GsymTable::bytes));
        let plt = Plt::read(&origin.file, &layout);
        let tables = images.into_iter().map(Table::new).collect();
        Ok(Self { layout, module: Arc::clone(&origin.module), plt, gsym, tables, functions: None, bytes })
    }

    /// The frames at a file offset, innermost first.
    ///
    /// # Errors
    /// The reason why there is no name.
    pub(super) fn resolve(
        &self,
        offset: FileOffset,
        names: &mut Names,
        stats: &mut SymbolStats,
    ) -> Result<Vec<Frame>, Unresolved> {
        let vaddr = self.layout.svma_of(offset.0).ok_or(Unresolved::OutsideSegments)?;
        let mut frames = FrameBuilder { names, stats, module: &self.module, address: offset.0 };
        // First, because `_init` has no size and would be taken to reach over the stubs behind it.
        if let Some(name) = self.plt.name_at(vaddr) {
            let name = frames.names.intern(name);
            return Ok(vec![frames.frame(name, None, false)]);
        }
        if let Some(found) = self.gsym.as_ref().and_then(|gsym| gsym.resolve(vaddr, &mut frames)) {
            return Ok(found);
        }
        let mut reason = Unresolved::NoSymbols;
        for table in &self.tables {
            match table.resolve(vaddr, &mut frames) {
                Ok(found) => return Ok(found),
                Err(Unresolved::NoSymbols) => {}
                Err(other) => reason = other,
            }
        }
        Err(reason)
    }

    /// Where the function begins that is at a file offset, as the unwind tables of the file have it. They stay when its
    /// symbols are stripped.
    pub(super) fn begin_of_function(&mut self, offset: FileOffset, file: &File) -> Option<FileOffset> {
        let svma = self.layout.svma_of(offset.0)?;
        let functions = self.functions.get_or_insert_with(|| {
            let functions = functions_of_elf(&elf::Source::File(file), MAX_FUNCTIONS);
            self.bytes = self.bytes.saturating_add(size_of_val(&functions[..]).try_into().unwrap_or(0));
            functions
        });
        let behind = functions.partition_point(|function| function.start <= svma);
        let function = functions.get(behind.checked_sub(1)?).filter(|function| function.contains(&svma))?;
        Some(FileOffset(self.layout.loaded_from(function.start)?.0))
    }
}

impl Table {
    fn new(image: Image) -> Self {
        let mut symbols_only = Elf::new(image.path());
        symbols_only.debug_syms = false;
        // The copy never changes, so it need not be looked at again; debug directories are searched by `debugfile`;
        // names are demangled within bounds by `demangle`.
        let symbolizer = symbolize::Symbolizer::builder()
            .enable_auto_reload(false)
            .enable_code_info(true)
            .enable_inlined_fns(true)
            .enable_demangling(false)
            .set_debug_dirs(Some::<[&str; 0]>([]))
            .build();
        let with_debug = image.has_debug.then(|| Source::from(Elf::new(image.path())));
        let symbols_only = Source::from(symbols_only);
        Self { symbolizer, with_debug, debug_failures: Cell::new(0), symbols_only, _image: image }
    }

    /// Debug information first; where it has no function, no name, an error or a panic, the symbol table.
    fn resolve(&self, vaddr: u64, frames: &mut FrameBuilder<'_>) -> Result<Vec<Frame>, Unresolved> {
        let detailed = self.resolve_with_debug(vaddr, frames);
        if let Some(found) = detailed {
            return Ok(self.with_full_name(found, vaddr, frames));
        }
        let found = self.look_up(&self.symbols_only, vaddr, frames)?.frames;
        let nameless = found.iter().any(|frame| frame.name.is_empty());
        if nameless { Err(Unresolved::NoSymbolHere) } else { Ok(found) }
    }

    fn resolve_with_debug(&self, vaddr: u64, frames: &mut FrameBuilder<'_>) -> Option<Found> {
        let usable = self.debug_failures.get() < MAX_DEBUG_FAILURES;
        let source = self.with_debug.as_ref().filter(|_| usable)?;
        match self.look_up(source, vaddr, frames) {
            Ok(found) => found.frames.last().is_some_and(|frame| !frame.name.is_empty()).then_some(found),
            Err(reason) => {
                let failures = match reason {
                    Unresolved::Panicked => MAX_DEBUG_FAILURES,
                    Unresolved::Malformed => self.debug_failures.get().saturating_add(1),
                    _ => return None,
                };
                self.debug_failures.set(failures);
                frames.stats.count_debug(DebugLoss::ParserFailed);
                None
            }
        }
    }

    /// Line tables alone (`-gline-tables-only`, the default of Rust release profiles with lines) name a function
    /// `pop` that the symbol table knows as `alloc::vec::Vec<T>::pop`. Inlined functions have no symbol and stay short.
    fn with_full_name(&self, mut found: Found, vaddr: u64, frames: &mut FrameBuilder<'_>) -> Vec<Frame> {
        if !found.is_mangled
            && let Some(outer) = found.frames.last_mut()
            && let Ok(symbol) = self.look_up(&self.symbols_only, vaddr, frames)
            && let Some(named) = symbol.frames.last().filter(|_| symbol.is_mangled)
        {
            (outer.name, outer.kind) = (Arc::clone(&named.name), named.kind);
        }
        found.frames
    }

    fn look_up(&self, source: &Source<'_>, vaddr: u64, frames: &mut FrameBuilder<'_>) -> Result<Found, Unresolved> {
        // blazesym's caches are cells that are filled only with complete values, so a panic leaves them usable.
        let call = AssertUnwindSafe(|| self.symbolizer.symbolize_single(source, Input::VirtOffset(vaddr)));
        let Ok(result) = catch_unwind(call) else {
            frames.stats.panics = frames.stats.panics.saturating_add(1);
            return Err(Unresolved::Panicked);
        };
        match result {
            Ok(Symbolized::Sym(symbol)) => frames.frames_of(&symbol),
            Ok(Symbolized::Unknown(Reason::MissingSyms)) => Err(Unresolved::NoSymbols),
            Ok(Symbolized::Unknown(_)) => Err(Unresolved::NoSymbolHere),
            Err(_) => Err(Unresolved::Malformed),
        }
    }
}

/// What one table says about an address.
struct Found {
    frames: Vec<Frame>,
    /// Whether the function's name was one that only linkers read.
    is_mangled: bool,
}

/// Turns an answer into frames.
pub(super) struct FrameBuilder<'a> {
    names: &'a mut Names,
    pub(super) stats: &'a mut SymbolStats,
    module: &'a Arc<Module>,
    address: u64,
}

impl FrameBuilder<'_> {
    /// blazesym lists inlined functions from the outside in, after the function itself; the source place of each is
    /// the line inside of it, the call of the next one or the instruction.
    fn frames_of(&mut self, symbol: &Sym<'_>) -> Result<Found, Unresolved> {
        let outer = self.demangled(&symbol.name)?;
        let mut frames = Vec::new();
        let surplus = symbol.inlined.len().saturating_sub(MAX_INLINED);
        for inlined in symbol.inlined.iter().skip(surplus).rev() {
            let name = self.demangled(&inlined.name)?;
            let name = self.cut(name);
            frames.push(self.frame(name, inlined.code_info.as_ref().map(source_of), true));
        }
        let name = self.cut(outer);
        let is_mangled = *name != *symbol.name;
        frames.push(self.frame(name, symbol.code_info.as_deref().map(source_of), false));
        Ok(Found { frames, is_mangled })
    }

    /// The same of a GSYM file, which lists them from the inside out and has mangled names.
    pub(super) fn frames_of_places(&mut self, places: &[Place]) -> Option<Vec<Frame>> {
        let (outer, inlined) = places.split_last()?;
        let mut frames = Vec::new();
        for place in inlined.iter().take(MAX_INLINED).chain([outer]) {
            let name = self.demangled(&place.name).ok()?;
            let name = self.cut(name);
            let source = place.file.as_deref().map(|file| (file.into(), place.line));
            frames.push(self.frame(name, source, place.inlined));
        }
        Some(frames)
    }

    fn demangled(&mut self, name: &str) -> Result<(Arc<str>, bool), Unresolved> {
        // A name is taken up when all of it is there.
        let call = AssertUnwindSafe(|| self.names.demangled(name));
        catch_unwind(call).map_err(|_| Unresolved::Panicked)
    }

    fn cut<T>(&mut self, (text, was_cut): (T, bool)) -> T {
        self.stats.names_cut = self.stats.names_cut.saturating_add(u64::from(was_cut));
        text
    }

    fn frame(&mut self, name: Arc<str>, source: Option<(Cow<'_, str>, u32)>, inlined: bool) -> Frame {
        let name = if inlined && name.is_empty() { self.names.intern("[inlined]") } else { name };
        let source = source.map(|(file, line)| {
            let file = demangle::cut(&file);
            let file = self.cut(file);
            SourceLine::new(self.names.intern(&file), line)
        });
        let builtin = builtin_name(&name).map(|builtin| self.names.intern(&builtin));
        Frame {
            kind: if builtin.is_some() { FrameKind::Builtin } else { FrameKind::Native },
            name: builtin.unwrap_or(name),
            tier: None,
            inlined,
            module: Some(Arc::clone(self.module)),
            source,
            address: self.address,
        }
    }
}

fn source_of<'a>(place: &CodeInfo<'_>) -> (Cow<'a, str>, u32) {
    (place.to_path().to_string_lossy().into_owned().into(), place.line.unwrap_or(0))
}

/// The name that V8's own records have for a builtin or a bytecode handler, which it embeds into the binary's text under
/// another one: a function has one name, whether a process writes records or not. `None` for all else.
fn builtin_name(symbol: &str) -> Option<String> {
    let name = symbol.strip_prefix("Builtins_")?;
    let Some(bytecode) = name.strip_suffix("Handler") else { return Some(format!("Builtin:{name}")) };
    // Of operands of two and of four bytes; but some bytecodes are called so themselves.
    let (bytecode, scale) = match bytecode {
        "Wide" | "ExtraWide" | "DebugBreakWide" | "DebugBreakExtraWide" => (bytecode, ""),
        _ => ["ExtraWide", "Wide"]
            .into_iter()
            .find_map(|scale| Some((bytecode.strip_suffix(scale)?, scale)))
            .unwrap_or((bytecode, "")),
    };
    let dot = if scale.is_empty() { "" } else { "." };
    Some(format!("BytecodeHandler:{bytecode}{dot}{scale}"))
}

#[cfg(test)]
#[test]
fn builtins_are_called_as_v8s_own_records_call_them() {
    for (symbol, name) in [
        ("Builtins_JSEntry", Some("Builtin:JSEntry")),
        ("Builtins_LdaSmiHandler", Some("BytecodeHandler:LdaSmi")),
        ("Builtins_LdaSmiWideHandler", Some("BytecodeHandler:LdaSmi.Wide")),
        ("Builtins_LdaSmiExtraWideHandler", Some("BytecodeHandler:LdaSmi.ExtraWide")),
        ("Builtins_ExtraWideHandler", Some("BytecodeHandler:ExtraWide")),
        ("Builtins_DebugBreakWideHandler", Some("BytecodeHandler:DebugBreakWide")),
        ("v8::internal::Builtins_JSEntry", None),
        ("main", None),
    ] {
        assert_eq!(builtin_name(symbol).as_deref(), name, "{symbol}");
    }
}

#[cfg(test)]
#[test]
fn the_addresses_of_a_function_have_its_name_from_the_first_one() {
    let mut names = Names::default();
    let (first, _) = names.demangled("_Z1fv");
    assert_eq!(names.demangled.get("_Z1fv"), Some((Arc::clone(&first), false)));
    names.drop_unused();
    let (second, _) = names.demangled("_Z1fv");
    assert!(&*first == "f" && Arc::ptr_eq(&first, &second) && Arc::ptr_eq(&first, &names.intern("f")));
    assert_eq!((&*names.demangled("main").0, names.demangled.get("main")), ("main", None));
}

/// The frame of code without a name: `[libc.so.6+0x1234]`, with the file offset.
pub fn unnamed_in_file(module: Option<&Arc<Module>>, offset: FileOffset) -> Frame {
    unnamed_in_function(module, offset, offset)
}

/// The same where it is known that its function begins at a file offset, which it is called by: else each address would
/// be a function of its own.
pub fn unnamed_in_function(module: Option<&Arc<Module>>, offset: FileOffset, begin: FileOffset) -> Frame {
    Frame {
        name: format!("{}{:#x}]", before_offset(module), begin.0).into(),
        kind: FrameKind::Native,
        tier: None,
        inlined: false,
        module: module.cloned(),
        source: None,
        address: offset.0,
    }
}

/// `[libc.so.6+`: how what has no name is called.
fn before_offset(module: Option<&Arc<Module>>) -> String {
    let path = module.map_or("unknown", |module| &module.path);
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    let file = path.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("unknown");
    let (file, _) = demangle::cut(file);
    let file = file.trim_start_matches('[').trim_end_matches(']');
    format!("[{file}+")
}

/// A frame of a file as a process has it that maps the file under this path; nothing if it is as it is. Who has mapped
/// the file first may be anybody, and may have called it anything.
pub fn mapped_as(frame: &Frame, path: &Arc<str>) -> Option<Frame> {
    let known = frame.module.as_ref().filter(|known| known.path != *path)?;
    let module = Arc::new(Module { path: Arc::clone(path), build_id: known.build_id.clone() });
    let offset = frame.name.strip_prefix(&before_offset(Some(known))).filter(|offset| offset.starts_with("0x"));
    let name = offset.map(|offset| (before_offset(Some(&module)) + offset).into());
    Some(Frame { name: name.unwrap_or_else(|| Arc::clone(&frame.name)), module: Some(module), ..frame.clone() })
}
