//! Prints the stacks of the threads of a running CPython, as its own memory has them.
//!
//! ```sh
//! cargo run -p jitprof-runtimes --example python_stack --features recorded -- PID [--record FILE]
//! ```
//!
//! `--record FILE`: keeps what was read, and the threads with their thread pointers beside it (`FILE.threads`), for tests.

use std::collections::HashMap;
use std::error::Error;
use std::fmt::Write;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use jitprof_common::units::Avma;
use jitprof_runtimes::cpython::{Functions, INSTRUCTION, Layout};
use jitprof_runtimes::recorded::Recorder;
use jitprof_runtimes::{Budget, Memory, Reader, Symbols, walk};
use nix::sys::{ptrace, wait};
use nix::unistd::Pid;
use object::{Object, ObjectSymbol};

const BUDGET: Budget = Budget { pages: 1 << 14, steps: 1 << 22 };
/// What a module that is looked at has in its name.
const MODULES: [&str; 3] = ["/python3", "/libpython3", "/libc.so"];
/// How the names of the symbols begin that are kept.
const SYMBOLS: [&str; 4] = ["Py", "_Py", "_thread_db_", "__libc_"];

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A process: its memory by `/proc`, and the symbols of its interpreter and of the C library, where they are loaded.
struct Target {
    memory: File,
    symbols: HashMap<String, u64>,
}

impl Memory for Target {
    fn read(&self, address: Avma, into: &mut [u8]) -> io::Result<usize> {
        self.memory.read_at(into, address.0)
    }
}

impl Symbols for Target {
    fn address_of(&self, name: &str) -> Option<Avma> {
        self.symbols.get(name).copied().map(Avma)
    }
}

fn target(pid: i32) -> Result<Target> {
    let (mut symbols, mut seen) = (HashMap::new(), Vec::new());
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    for line in maps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [range, _, "00000000", _, _, path] = words[..] else { continue };
        if seen.contains(&path) || !MODULES.iter().any(|module| path.contains(module)) {
            continue;
        }
        seen.push(path);
        let (start, end) = range.split_once('-').ok_or("no range")?;
        let (start, end) = (u64::from_str_radix(start, 16)?, u64::from_str_radix(end, 16)?);
        let bytes = fs::read(format!("/proc/{pid}/map_files/{start:x}-{end:x}"))?;
        let file = object::File::parse(bytes.as_slice())?;
        let bias = if file.kind() == object::ObjectKind::Dynamic { start } else { 0 };
        for symbol in file.symbols().chain(file.dynamic_symbols()).filter(|symbol| symbol.is_definition()) {
            let name = symbol.name()?;
            if SYMBOLS.iter().any(|begin| name.starts_with(begin)) {
                symbols.insert(name.to_owned(), bias + symbol.address());
            }
        }
    }
    Ok(Target { memory: File::open(format!("/proc/{pid}/mem"))?, symbols })
}

/// Threads that are held, with their thread pointers.
fn hold(pid: i32) -> Result<Vec<(Pid, u64)>> {
    let mut threads = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let tid = Pid::from_raw(entry?.file_name().to_str().ok_or("no TID")?.parse()?);
        ptrace::seize(tid, ptrace::Options::empty())?;
        ptrace::interrupt(tid)?;
        wait::waitpid(tid, Some(wait::WaitPidFlag::__WALL))?;
        threads.push((tid, ptrace::getregs(tid)?.fs_base));
    }
    threads.sort();
    Ok(threads)
}

fn print<M: Memory, S: Symbols>(memory: M, symbols: &S, threads: &[(Pid, u64)]) -> Result<Functions> {
    let reader = Reader::new(&memory, BUDGET);
    let begun = Instant::now();
    let layout = Layout::read(symbols, Some(symbols), &reader)?;
    println!("CPython {}, {:?}, in {:?}", layout.version(), layout.entry(), begun.elapsed());
    println!("{:x?}", layout.walk());
    let mut functions = Functions::new(layout);
    for (tid, thread_pointer) in threads {
        let begun = Instant::now();
        let walked = walk(functions.layout().walk(), *thread_pointer, &reader);
        println!("thread {tid}: {:?} of {:?} in {:?}", walked.end, walked.base, begun.elapsed());
        for [code, instruction] in walked.records {
            let mark = instruction >> INSTRUCTION.count_ones();
            match functions.describe(&reader, code, instruction) {
                Ok(described) => {
                    println!("{}\t{}\t{}\t{mark}", described.function.name, described.function.file, described.line);
                }
                Err(why) => println!("{code:#x} {instruction:#x}: {why}\t{mark}"),
            }
        }
    }
    Ok(functions)
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let pid = words.first().ok_or("no process")?.parse()?;
    let target = target(pid)?;
    let threads = hold(pid)?;
    if let [_, option, file] = &words[..]
        && option == "--record"
    {
        record(&target, &threads, file)?;
    }
    print(&target, &target, &threads)?;
    for (tid, _) in threads {
        ptrace::detach(tid, None)?;
    }
    Ok(())
}

fn record(target: &Target, threads: &[(Pid, u64)], file: &str) -> Result<()> {
    let recorder = Recorder::new(target);
    let reader = Reader::new(&recorder, BUDGET);
    reader.note_words();
    let layout = Layout::read(&recorder, Some(&recorder), &reader)?;
    layout.thread_pointers(&reader)?;
    let mut functions = Functions::new(layout);
    let mut said = String::new();
    for (tid, thread_pointer) in threads {
        writeln!(said, "{tid} {thread_pointer:x}")?;
        for [code, instruction] in walk(functions.layout().walk(), *thread_pointer, &reader).records {
            // What is no function is asked about as well.
            drop(functions.describe(&reader, code, instruction));
        }
    }
    let words = reader.used_words();
    drop(reader);
    let mut recorded = recorder.into_recorded();
    recorded.keep_words(&words);
    fs::write(file, recorded.to_file()?)?;
    fs::write(format!("{file}.threads"), said)?;
    Ok(())
}
