//! Names of kernel functions, from `/proc/kallsyms`.
//!
//! ```text
//! ffffffff81000000 T _stext
//! ffffffffc0a01000 t nf_nat_init  [nf_nat]
//! ```
//!
//! blazesym reads this file too (0.2.7, `kernel/ksym.rs`). It keeps every symbol, data included, as a string of its
//! own, drops the module's name, and lets the last symbol reach to the end of the address space. This table keeps
//! functions only, in one string (5 MB rather than 8 MB for 122,000 functions), knows the modules and the ends; a
//! test compares the two. Aliases of one address: a global name before a local one, fewer leading underscores first,
//! then the file's order, which is perf's choice (util/symbol.c, choose_best_symbol) as far as the file tells.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::demangle;
use super::frame::{Frame, FrameKind, Module};
use super::native::Names;
use super::stats::Unresolved;
use jitprof_common::units::Avma;

/// Longest line looked at; KSYM_NAME_LEN is 512.
const MAX_LINE_BYTES: u64 = 4096;
/// Functions kept; a distribution's kernel with all of its debugging options has 250,000.
const MAX_FUNCTIONS: usize = 4_000_000;
/// The last function of the kernel or of a module is taken to end with the page after its own (as perf does).
const PAGE: u64 = 4096;

/// Age at which the table is read again for an address in a module, in a BPF program, or that it does not know: these come
/// and go, and none says so.
const MAX_AGE: Duration = Duration::from_secs(10);

/// The functions of the kernel, read when they are asked for.
#[derive(Debug, Default)]
pub(super) struct KernelNow(Option<(Kernel, Instant)>);

/// The functions of the kernel, or why there are none.
#[derive(Debug)]
pub(super) enum Kernel {
    Functions(Functions),
    Unavailable(Unresolved),
}

/// Sorted by address, one entry an address.
#[derive(Debug)]
pub(super) struct Functions {
    entries: Vec<Entry>,
    names: String,
    modules: Vec<Arc<Module>>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    start: u64,
    name_start: u32,
    /// Bytes of the name, and above them [`LOCAL`] for what is no global symbol.
    name_length: u16,
    /// Index into `modules`; 0 is the kernel itself.
    module: u16,
}

const LOCAL: u16 = 1 << 15;

impl KernelNow {
    /// The functions to look an address up in at a time.
    pub(super) fn for_address(&mut self, address: Avma, now: Instant, load: impl Fn() -> Kernel) -> &Kernel {
        let is_old = |read_at: &Instant| now.saturating_duration_since(*read_at) >= MAX_AGE;
        let known = self.0.take().filter(|(kernel, read_at)| !(is_old(read_at) && kernel.may_change_at(address)));
        &self.0.insert(known.unwrap_or_else(|| (load(), now))).0
    }
}

impl Kernel {
    /// Reads `/proc/kallsyms`: 60 ms and 5 MB for 122,000 functions.
    pub(super) fn load() -> Self {
        File::open("/proc/kallsyms").map_or(Self::Unavailable(Unresolved::KernelUnreadable), Self::read)
    }

    /// Reads text in the format of `/proc/kallsyms`.
    pub(super) fn read(text: impl Read) -> Self {
        match Functions::read(text) {
            Ok((functions, _)) if !functions.entries.is_empty() => Self::Functions(functions),
            Ok((_, true)) => Self::Unavailable(Unresolved::KernelRestricted),
            Ok((_, false)) | Err(_) => Self::Unavailable(Unresolved::KernelUnreadable),
        }
    }

    /// Functions known.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Functions(functions) => functions.entries.len(),
            Self::Unavailable(_) => 0,
        }
    }

    /// Whether another reading may say something else of an address: the kernel's own text stays where it is.
    fn may_change_at(&self, address: Avma) -> bool {
        match self {
            Self::Functions(functions) => functions.find(address.0).is_none_or(|(_, module)| !functions.is_own(module)),
            Self::Unavailable(reason) => *reason == Unresolved::KernelUnreadable,
        }
    }

    /// The frame of an address.
    ///
    /// # Errors
    /// The reason why there is no name.
    pub(super) fn resolve(&self, address: Avma, names: &mut Names) -> Result<Frame, Unresolved> {
        let functions = match self {
            Self::Functions(functions) => functions,
            Self::Unavailable(reason) => return Err(*reason),
        };
        let (name, module) = functions.find(address.0).ok_or(Unresolved::KernelUnknown)?;
        let (name, _) = demangle::demangle(name);
        Ok(frame(names.intern(&name), Some(Arc::clone(module))))
    }
}

/// The frame of a kernel address without a name.
pub fn unnamed_in_kernel() -> Frame {
    frame("[kernel]".into(), None)
}

/// Without its address: a profile has other readers than root, and those must not learn where the kernel lies.
fn frame(name: Arc<str>, module: Option<Arc<Module>>) -> Frame {
    Frame { name, kind: FrameKind::Kernel, tier: None, inlined: false, module, source: None, address: 0 }
}

impl Functions {
    /// The table, and whether a symbol without address was seen.
    fn read(text: impl Read) -> io::Result<(Self, bool)> {
        let mut reader = BufReader::with_capacity(65536, text);
        let kernel = Arc::new(Module { path: "[kernel.kallsyms]".into(), build_id: None });
        let mut table = Self { entries: Vec::new(), names: String::new(), modules: vec![kernel] };
        let mut module_ids = HashMap::new();
        let mut hidden = false;
        let mut line = Vec::new();
        while reader.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line)? > 0 {
            if let Some(symbol) = std::str::from_utf8(&line).ok().and_then(parse_line) {
                hidden |= symbol.start == 0;
                if symbol.start != 0 && table.entries.len() < MAX_FUNCTIONS {
                    table.entries.extend(add(&mut table.names, &mut table.modules, &mut module_ids, &symbol));
                }
            }
            line.clear();
        }
        table.sort();
        Ok((table, hidden))
    }

    /// In place, and without a table of ranks: the peak would be twice the result.
    fn sort(&mut self) {
        let Self { entries, names, .. } = self;
        let rank = |entry: &Entry| {
            let name = entry.name(names);
            let underscores = name.len().saturating_sub(name.trim_start_matches('_').len());
            (entry.name_length & LOCAL, underscores, entry.name_start)
        };
        entries.sort_unstable_by(|left, right| {
            let by_address = left.start.cmp(&right.start);
            by_address.then_with(|| rank(left).cmp(&rank(right)))
        });
        entries.dedup_by_key(|entry| entry.start);
        entries.shrink_to_fit();
        names.shrink_to_fit();
    }

    /// Whether it is no module, but the kernel itself.
    fn is_own(&self, module: &Arc<Module>) -> bool {
        self.modules.first().is_some_and(|own| Arc::ptr_eq(own, module))
    }

    fn find(&self, address: u64) -> Option<(&str, &Arc<Module>)> {
        let after = self.entries.partition_point(|entry| entry.start <= address);
        let entry = self.entries.get(after.checked_sub(1)?)?;
        let next = self.entries.get(after);
        let page_after = (entry.start | (PAGE - 1)).saturating_add(1).saturating_add(PAGE);
        let inside = next.is_some_and(|next| next.module == entry.module) || address < page_after;
        let name = entry.name(&self.names);
        // What follows the kernel's text up to the first module is data.
        (inside && name != "_etext").then_some((name, self.modules.get(usize::from(entry.module))?))
    }
}

impl Entry {
    fn name<'a>(&self, names: &'a str) -> &'a str {
        let start = usize::try_from(self.name_start).unwrap_or(usize::MAX);
        let end = start.saturating_add(usize::from(self.name_length & !LOCAL));
        names.get(start..end).unwrap_or_default()
    }
}

/// The entry of a function, its name and module stored; nothing if these outgrow their tables.
fn add(
    names: &mut String,
    modules: &mut Vec<Arc<Module>>,
    module_ids: &mut HashMap<String, u16>,
    symbol: &Symbol<'_>,
) -> Option<Entry> {
    let module = match symbol.module.map(|name| (name, module_ids.get(name))) {
        None => 0,
        Some((_, Some(id))) => *id,
        Some((name, None)) => {
            let id = u16::try_from(modules.len()).ok()?;
            modules.push(Arc::new(Module { path: format!("[{name}]").into(), build_id: None }));
            module_ids.insert(name.to_owned(), id);
            id
        }
    };
    let name_start = u32::try_from(names.len()).ok()?;
    let length = u16::try_from(symbol.name.len()).ok().filter(|length| length & LOCAL == 0)?;
    names.push_str(symbol.name);
    let local = if symbol.global { 0 } else { LOCAL };
    Some(Entry { start: symbol.start, name_start, name_length: length | local, module })
}

/// One line of the file.
struct Symbol<'a> {
    start: u64,
    name: &'a str,
    module: Option<&'a str>,
    global: bool,
}

/// `address type name [module]`; nothing for data and for lines that are none.
fn parse_line(line: &str) -> Option<Symbol<'_>> {
    let mut words = line.split_ascii_whitespace();
    let start = u64::from_str_radix(words.next()?, 16).ok()?;
    let kind = words.next().filter(|kind| matches!(*kind, "t" | "T" | "w" | "W"))?;
    let name = words.next()?;
    let module = words.next().map(|word| word.trim_start_matches('[').trim_end_matches(']'));
    Some(Symbol { start, name, module, global: kind == "T" })
}

#[cfg(test)]
#[path = "kernel_tests.rs"]
mod tests;
