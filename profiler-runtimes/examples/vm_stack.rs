//! Prints what the memory of a running PHP, Ruby or Erlang says: the frames of its threads, or the functions of its modules.
//!
//! ```sh
//! cargo run -p jitprof-runtimes --example vm_stack --features recorded -- PID [--record FILE]
//! ```
//!
//! `--record FILE`: keeps what was read for tests, and beside it what they need as well: of Ruby the threads with their thread
//! pointers (`FILE.threads`), of Erlang where the emulator's variables are (`FILE.data`).

#[path = "shared/modules.rs"]
mod modules;
#[path = "shared/threads.rs"]
mod threads;

use std::collections::HashMap;
use std::error::Error;
use std::fmt::Write;
use std::fs::{self, File};
use std::io;
use std::iter;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use jitprof_common::listed::Record;
use jitprof_common::units::Avma;
use jitprof_runtimes::recorded::Recorder;
use jitprof_runtimes::{Budget, Memory, Reader, Symbols, beam, php, ruby, walk};
use nix::sys::ptrace;
use object::{Object, ObjectSegment};
use threads::{Thread, hold};

const BUDGET: Budget = Budget { pages: 1 << 14, steps: 1 << 22 };
/// How the names of the files begin that may have such a runtime in them.
const MODULES: [&str; 5] = ["php", "libphp", "ruby", "libruby", "beam"];
/// The symbols by which it is known.
const PHP: &str = "executor_globals";
const RUBY: &str = "ruby_version";
const EMULATOR: &str = "enif_make_tuple_from_array";
/// All that readers ask for.
const SYMBOLS: [&str; 9] = [
    PHP,
    RUBY,
    EMULATOR,
    "get_zend_version",
    "rb_errinfo",
    "rb_gc_count",
    "rb_id2str",
    "the_active_code_index",
    "etp_otp_release",
];
/// From which bit on a record's second word says what kind of frame it is of.
const MARK_AT: u32 = 56;
/// How the functions are called of Erlang's modules of which a recording has all: those of `recorded/beam/stacks.erl`, of what
/// that calls, and of the emulator's own.
const KEPT: [&str; 3] = ["stacks:", "orddict:", "erts_beamasm:"];
/// Where in a module the address of its table of lines is.
const LINE_TABLE: u64 = 72;
const WORD: u64 = 8;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A process: its memory by `/proc`, and the symbols of its runtime, where that is loaded.
struct Target {
    memory: File,
    symbols: HashMap<String, u64>,
    /// Where the emulator's variables are.
    data: Range<Avma>,
    /// What is said to be 0.
    hidden: Vec<Range<u64>>,
}

impl Memory for Target {
    fn read(&self, address: Avma, into: &mut [u8]) -> io::Result<usize> {
        let count = self.memory.read_at(into, address.0)?;
        for hidden in &self.hidden {
            let within = |at: u64| usize::try_from(at.saturating_sub(address.0)).map_or(count, |at| at.min(count));
            into[within(hidden.start)..within(hidden.end)].fill(0);
        }
        Ok(count)
    }
}

impl Symbols for Target {
    fn address_of(&self, name: &str) -> Option<Avma> {
        self.symbols.get(name).copied().map(Avma)
    }
}

fn target(pid: &str) -> Result<Target> {
    let mut symbols: HashMap<String, u64> = HashMap::new();
    let mut data = Avma(0)..Avma(0);
    let is_looked_at = |path: &str| {
        let name = path.rsplit('/').next().unwrap_or(path);
        MODULES.iter().any(|module| name.starts_with(module))
    };
    modules::each(pid, is_looked_at, |file, bias| {
        let had_emulator = symbols.contains_key(EMULATOR);
        modules::add_symbols(&mut symbols, (file, bias), |name| SYMBOLS.contains(&name))?;
        if !had_emulator && symbols.contains_key(EMULATOR) {
            let writable = file.segments().filter(|segment| segment.permissions().writable());
            let largest = writable.max_by_key(|segment| segment.size()).ok_or("no variables")?;
            let first = bias + largest.address();
            data = Avma(first)..Avma(first + largest.size());
        }
        Ok(())
    })?;
    Ok(Target { memory: File::open(format!("/proc/{pid}/mem"))?, symbols, data, hidden: Vec::new() })
}

/// All that is read of the runtime that is there.
fn show<M: Memory, S: Symbols>(
    reader: &Reader<M>,
    symbols: &S,
    threads: &[Thread],
    data: Range<Avma>,
) -> Result<String> {
    if symbols.address_of(PHP).is_some() {
        show_php(reader, symbols)
    } else if symbols.address_of(RUBY).is_some() {
        show_ruby(reader, symbols, threads)
    } else {
        show_beam(reader, symbols, data)
    }
}

fn show_php<M: Memory, S: Symbols>(reader: &Reader<M>, symbols: &S) -> Result<String> {
    let mut functions = php::Functions::new(php::Layout::read(symbols, reader)?);
    let walked = walk(functions.layout().walk(), 0, reader);
    let mut text = format!("PHP {}: {:?}\n", functions.layout().version(), walked.end);
    for (at, record) in walked.records.into_iter().enumerate() {
        let described = functions.describe(reader, (record[0], record[1]), at == 0);
        writeln!(text, "{}", frame(&described, record))?;
    }
    Ok(text)
}

fn show_ruby<M: Memory, S: Symbols>(reader: &Reader<M>, symbols: &S, threads: &[Thread]) -> Result<String> {
    let functions = ruby::Functions::new(ruby::Layout::read(symbols, reader)?);
    let layout = functions.layout();
    let (handler, entries) = (functions.first_handler(reader), functions.first_entries(reader));
    let mut text = format!("Ruby {}: {:x?} {handler:x?} {entries:x?}\n", layout.version(), functions.progress(reader)?);
    for (tid, thread_pointer) in threads {
        let walked = walk(layout.walk(), *thread_pointer, reader);
        writeln!(text, "thread {tid}: {:?} {:?}", walked.end, walked.state)?;
        for record in walked.records {
            // What is no function is asked about as well.
            let described = functions.describe(reader, (record[0], record[1])).map(|looked| looked.described);
            writeln!(text, "{}", frame(&described, record))?;
        }
    }
    Ok(text)
}

/// Name, file, line, and what is said of the frame.
fn frame(described: &std::result::Result<php::Described, php::Unknown>, [place, instruction]: Record) -> String {
    let mark = instruction >> MARK_AT;
    match described {
        Ok(php::Described { function, line }) => format!("{}\t{}\t{line}\t{mark:x}", function.name, function.file),
        Err(why) => format!("{place:#x} {instruction:#x}: {why}\t{mark:x}"),
    }
}

fn show_beam<M: Memory, S: Symbols>(reader: &Reader<M>, symbols: &S, data: Range<Avma>) -> Result<String> {
    let layout = beam::Layout::find(symbols, data, reader)?;
    let mut modules = beam::Modules::default();
    let beam::Update { shared, damaged, incomplete, .. } = modules.update(&layout, reader);
    let (count, shared) = (modules.iter().count(), shared.len());
    let mut text = format!("Erlang/OTP {:?}: {count} modules, {damaged} damaged, ", layout.release());
    writeln!(text, "incomplete: {incomplete:?}, {shared} parts of shared code")?;
    for function in modules.iter().flat_map(|module| &module.functions) {
        let (start, lines) = (function.start.0, function.lines.len());
        writeln!(text, "{start:#x} {:x} {}: {lines} rows", function.size, function.name)?;
    }
    Ok(text)
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let pid = words.first().ok_or("no process")?;
    let mut target = target(pid)?;
    let threads = hold(pid)?;
    let shown = if let [_, option, file] = &words[..]
        && option == "--record"
    {
        record(&mut target, &threads, file)?
    } else {
        show(&Reader::new(&target, BUDGET), &target, &threads, target.data.clone())?
    };
    print!("{shown}");
    for (tid, _) in threads {
        ptrace::detach(tid, None)?;
    }
    Ok(())
}

/// Reads, and keeps what was read.
fn record(target: &mut Target, threads: &[Thread], file: &str) -> Result<String> {
    let is_beam = target.address_of(EMULATOR).is_some();
    if is_beam {
        narrow(target)?;
    }
    let target = &*target;
    let recorder = Recorder::new(target);
    let reader = Reader::new(&recorder, BUDGET);
    reader.note_words();
    let shown = show(&reader, &recorder, threads, target.data.clone())?;
    let words = reader.used_words();
    drop(reader);
    let mut recorded = recorder.into_recorded();
    recorded.keep_words(&words);
    fs::write(file, recorded.to_file()?)?;
    if is_beam {
        fs::write(format!("{file}.data"), format!("{:x} {:x}\n", target.data.start.0, target.data.end.0))?;
    }
    if target.address_of(RUBY).is_some() {
        let lines: Vec<String> = threads.iter().map(|(tid, pointer)| format!("{tid} {pointer:x}\n")).collect();
        fs::write(format!("{file}.threads"), lines.concat())?;
    }
    Ok(shown)
}

/// Leaves of Erlang what a recording has room for: of the variables those among which all is found, of most modules where their
/// functions are.
fn narrow(target: &mut Target) -> Result<()> {
    let reader = Reader::new(&*target, BUDGET);
    let layout = beam::Layout::find(&*target, target.data.clone(), &reader)?;
    let mut modules = beam::Modules::default();
    modules.update(&layout, &reader);
    drop(reader);
    target.data = narrowed(target, &layout);
    target.hidden = modules.iter().filter(|module| !is_kept(module)).flat_map(|module| hidden(module)).collect();
    Ok(())
}

fn is_kept(module: &beam::Module) -> bool {
    module.functions.iter().any(|function| KEPT.iter().any(|kept| function.name.starts_with(kept)))
}

/// Of a module all names, lines and code.
fn hidden(module: &beam::Module) -> Vec<Range<u64>> {
    let table = module.start.0 + LINE_TABLE;
    let functions = module.functions.first().map(|first| first.start.0..module.end.0);
    functions.into_iter().chain(iter::once(table..table + WORD)).collect()
}

/// The least part of the variables in which the same is found as in all of them.
fn narrowed(target: &Target, layout: &beam::Layout) -> Range<Avma> {
    let is_enough = |from: u64, to: u64| {
        let found = beam::Layout::find(target, Avma(from)..Avma(to), &Reader::new(target, BUDGET));
        found.is_ok_and(|found| found == *layout)
    };
    let (first, end) = (target.data.start.0.next_multiple_of(WORD), target.data.end.0);
    let from = first + WORD * most((end - first) / WORD, |words| is_enough(first + WORD * words, end));
    let to = end - WORD * most((end - from) / WORD, |words| is_enough(from, end - WORD * words));
    Avma(from)..Avma(to)
}

/// The largest number below an end for which something holds, which does for 0, and for all numbers up to some.
fn most(end: u64, holds: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, end);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        (low, high) = if holds(middle) { (middle, high) } else { (low, middle) };
    }
    low
}
