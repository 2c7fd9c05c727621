//! Reads what a running process' runtime knows of its code, and says what it cost.
//!
//! `read-runtime PID [--print] [--compare MAP] [--lines FILE] [--stacks] [--again SECONDS] [--follow FILE]
//! [--record FILE]`: the names in the
//! form of a perf map; how many of a perf map's lines agree (`jcmd PID Compiler.perfmap`); how many lines of source of
//! another reader's (`ADDRESS METHOD:LINE;...`) agree; the stacks of waiting threads; what a second reading costs and
//! finds; the same, till a file is there; all memory that was read, as a file for tests.

#[path = "shared/modules.rs"]
mod modules;

use std::collections::{BTreeSet, HashMap};
use std::error::Error;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use jitprof_common::units::Avma;
use jitprof_runtimes::hotspot::{BlobName, Change, CodeCache, Kind, Layout, Pc, codelets, waiting_threads};
use jitprof_runtimes::recorded::Recorder;
use jitprof_runtimes::{Budget, Memory, Reader, Symbols, gdb_jit};
use rustix::time::{ClockId, clock_gettime};

/// More than any process that is read here needs.
const BUDGET: Budget = Budget { pages: 4 << 20, steps: 1 << 30 };
/// Modules that a runtime may be.
const MODULES: [&str; 5] = ["libjvm.so", "libLLVM", "libllvmlite.so", "/lli", "python"];

struct Process {
    memory: File,
    symbols: HashMap<String, u64>,
}

impl Memory for Process {
    fn read(&self, address: Avma, into: &mut [u8]) -> io::Result<usize> {
        self.memory
            .read_at(into, address.0)
            .and_then(|count| if count == 0 { Err(io::ErrorKind::NotFound.into()) } else { Ok(count) })
    }
}

impl Symbols for Process {
    fn address_of(&self, name: &str) -> Option<Avma> {
        self.symbols.get(name).copied().map(Avma)
    }
}

impl Process {
    fn open(pid: &str) -> Result<Self, Box<dyn Error>> {
        let mut symbols = HashMap::new();
        let is_looked_at = |path: &str| MODULES.iter().any(|module| path.contains(module));
        let is_kept = |name: &str| name.starts_with("gHotSpot") || name.starts_with("__jit_debug_");
        modules::each(pid, is_looked_at, |file, bias| modules::add_symbols(&mut symbols, (file, bias), is_kept))?;
        Ok(Self { memory: File::open(format!("/proc/{pid}/mem"))?, symbols })
    }
}

/// What this thread has spent, in milliseconds.
fn spent() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0)).as_secs_f64() * 1e3
}

struct Options {
    pid: String,
    flags: Vec<String>,
}

impl Options {
    fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|word| word == flag)
    }

    fn value(&self, flag: &str) -> Option<&str> {
        let at = self.flags.iter().position(|word| word == flag)?;
        self.flags.get(at + 1).map(String::as_str)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let options = Options { pid: words.next().ok_or("no PID")?, flags: words.collect() };
    let process = Recorder::new(Process::open(&options.pid)?);
    if options.has("--record") {
        let words = read(&process, &process, &options)?;
        let mut recorded = process.into_recorded();
        recorded.keep_words(&words);
        let file = recorded.to_file()?;
        println!("recording: {} pages, {} bytes", recorded.page_addresses().count(), file.len());
        fs::write(options.value("--record").ok_or("no file")?, file)?;
    } else {
        let process = Process::open(&options.pid)?;
        read(&process, &process, &options)?;
    }
    Ok(())
}

/// Reads it all, and returns the words that were taken.
fn read<M: Memory, S: Symbols>(memory: M, symbols: S, options: &Options) -> Result<BTreeSet<u64>, Box<dyn Error>> {
    let reader = Reader::new(&memory, BUDGET);
    if options.has("--record") {
        reader.note_words();
    }
    if symbols.address_of("gHotSpotVMStructs").is_some() {
        hotspot(&reader, symbols, options)?;
        return Ok(reader.used_words());
    }
    let mut images = gdb_jit::Images::find(symbols).ok_or("no runtime that is known")?;
    let before = spent();
    let update = images.update(&reader);
    println!(
        "{} object files, {} damaged, {:?}, {:.1} ms",
        update.changes.len(),
        update.damaged,
        update.incomplete,
        spent() - before
    );
    let mut all: Vec<_> = images.images().collect();
    all.sort_by_key(|image| image.id);
    for image in all {
        for function in image.functions() {
            println!(
                "{:#x} {:x} {} (of {} bytes at {:?})",
                function.address.0, function.size, function.name, image.size, image.address
            );
        }
    }
    Ok(reader.used_words())
}

fn hotspot<M: Memory, S: Symbols>(reader: &Reader<M>, symbols: S, options: &Options) -> Result<(), Box<dyn Error>> {
    let (before, left) = (spent(), reader.left());
    let layout = Layout::read(&symbols, reader)?;
    println!("{}: layout in {:.1} ms, {} steps", layout.version(), spent() - before, left.steps - reader.left().steps);
    let mut cache = CodeCache::default();
    let (before, left) = (spent(), reader.left());
    let update = cache.update(&layout, reader);
    let (took, now) = (spent() - before, reader.left());
    let methods = cache.blobs().filter(|blob| matches!(blob.kind, Kind::Method(_))).count();
    println!(
        "{} blobs, {methods} compiled methods, {} damaged, {:?}: {took:.1} ms, {} pages, {} steps",
        cache.blobs().count(),
        update.damaged,
        update.incomplete,
        left.pages - now.pages,
        left.steps - now.steps
    );
    println!("{} codelets", codelets(&layout, reader)?.len());
    if let Some(file) = options.value("--follow") {
        follow(&layout, reader, &mut cache, file);
    }
    if let Some(map) = options.value("--compare") {
        compare(&cache, map)?;
    }
    if let Some(lines) = options.value("--lines") {
        compare_lines(&layout, reader, &cache, lines)?;
    }
    if options.has("--print") {
        for blob in cache.blobs() {
            println!(
                "{:#018x} {:#018x} {} ({:?} {} {:?})",
                blob.code.0, blob.code_bytes, blob.name, blob.kind, blob.compile_id, blob.frame
            );
        }
    }
    if options.has("--record") {
        // A test may ask for each address.
        for blob in cache.blobs().filter(|blob| matches!(blob.kind, Kind::Method(_))) {
            for pc in CodeCache::known_pcs(&layout, reader, blob)? {
                cache.position(&layout, reader, blob, (Avma(pc.0 - 1), Pc::Interrupted))?;
            }
        }
    }
    if options.has("--stacks") {
        for thread in waiting_threads(&layout, reader, &cache)? {
            let (inlined, compiled, deoptimized) = (thread.inlined, thread.compiled, thread.deoptimized);
            println!("thread {} {compiled} {inlined} {deoptimized} ended={:?}", thread.tid, thread.ended);
            for frame in thread.frames {
                let file = frame.file.as_deref().unwrap_or("?");
                let line = frame.line.map_or_else(|| "?".to_owned(), |line| line.to_string());
                println!("\tat {}.{}({file}:{line})", frame.method.class_in_java(), frame.method.method);
            }
        }
    }
    if let Some(seconds) = options.value("--again") {
        std::thread::sleep(Duration::from_secs_f64(seconds.parse()?));
        let before = spent();
        let update = cache.update(&layout, reader);
        let took = spent() - before;
        let loaded = update.changes.iter().filter(|change| matches!(change, Change::Loaded(_))).count();
        println!(
            "again: {loaded} loaded, {} unloaded, {} damaged, {:?}: {took:.1} ms",
            update.changes.len() - loaded,
            update.damaged,
            update.incomplete
        );
    }
    Ok(())
}

/// Reads again and again till a file is there, and once more then: code that was replaced meanwhile must not be left.
fn follow<M: Memory>(layout: &Layout, reader: &Reader<M>, cache: &mut CodeCache, file: &str) {
    let (mut readings, mut unsettled, mut loaded, mut unloaded, mut unknown, mut reused) = (0, 0, 0, 0, 0, 0);
    let mut incomplete = Vec::new();
    let before = spent();
    loop {
        let last = fs::exists(file).unwrap_or(true);
        let update = cache.update(layout, reader);
        readings += 1;
        unsettled += update.unsettled;
        let mut gone = BTreeSet::new();
        for change in update.changes {
            match change {
                Change::Loaded(blob) => {
                    loaded += 1;
                    reused += usize::from(gone.contains(&blob.header.0));
                    unknown += usize::from(matches!(blob.name, BlobName::Unknown(_)));
                }
                Change::Unloaded(blob) => {
                    unloaded += 1;
                    gone.insert(blob.header.0);
                }
            }
        }
        incomplete.extend(update.incomplete);
        if last {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    println!(
        "{readings} readings: {loaded} loaded ({unknown} without a name, {reused} in the place of others), {unloaded} unloaded, {unsettled} unsettled, incomplete {incomplete:?}: {:.1} ms",
        spent() - before
    );
}

fn compare(cache: &CodeCache, map: &str) -> Result<(), Box<dyn Error>> {
    let text = fs::read_to_string(map)?;
    let (mut equal, mut all, mut shown) = (0, 0, 0);
    for line in text.lines() {
        let mut words = line.splitn(3, ' ');
        let mut number = || words.next().and_then(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok());
        let (Some(start), Some(size)) = (number(), number()) else { continue };
        let name = words.next().unwrap_or("");
        all += 1;
        let ours = cache.at(Avma(start));
        if ours.is_some_and(|blob| {
            blob.code.0 == start && u64::from(blob.code_bytes) == size && blob.name.to_string() == name
        }) {
            equal += 1;
        } else if shown < 3 {
            shown += 1;
            println!("  differs: {line}: {:?}", ours.map(|blob| (blob.code, blob.code_bytes, blob.name.to_string())));
        }
    }
    println!("{equal} of {all} lines of the map agree, of {} blobs", cache.blobs().count());
    Ok(())
}

fn compare_lines<M: Memory>(
    layout: &Layout,
    reader: &Reader<M>,
    cache: &CodeCache,
    lines: &str,
) -> Result<(), Box<dyn Error>> {
    let text = fs::read_to_string(lines)?;
    let (mut equal, mut all, mut frames, mut gone, mut shown) = (0, 0, 0, 0, 0);
    let before = spent();
    for line in text.lines() {
        let Some((pc, theirs)) = line.split_once(' ') else { continue };
        let pc = Avma(u64::from_str_radix(pc.trim_start_matches("0x"), 16)?);
        // An address behind the last instruction is that of the one before.
        let Some(blob) = cache.at(pc).or_else(|| cache.at(Avma(pc.0 - 1))) else {
            gone += 1;
            continue;
        };
        all += 1;
        let ours = cache.position(layout, reader, blob, (pc, Pc::Return)).map(|position| {
            frames += position.frames.len();
            let written = position.frames.iter().map(|frame| {
                let line = frame.line.map_or(-1, i64::from);
                format!("{}@{}:{line}", frame.method.in_class_file(), frame.bci.map_or(-1, i64::from))
            });
            written.collect::<Vec<_>>().join(" ")
        });
        if ours.as_deref() == Ok(theirs) {
            equal += 1;
        } else if shown < 3 {
            shown += 1;
            println!("  differs: {line:.300}: {:.300} in {:?}", format!("{ours:?}"), blob.kind);
        }
    }
    println!("{equal} of {all} addresses agree ({frames} frames), {gone} in no known code, {:.1} ms", spent() - before);
    Ok(())
}
