//! Prints the stacks of the threads of a running CPython, as its own memory has them.
//!
//! ```sh
//! cargo run -p jitprof-runtimes --example python_stack --features recorded -- PID [--record FILE]
//! ```
//!
//! `--record FILE`: keeps what was read, and the threads with their thread pointers beside it (`FILE.threads`), for tests.

#[path = "shared/modules.rs"]
mod modules;
#[path = "shared/threads.rs"]
mod threads;

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
use nix::sys::ptrace;
use threads::{Thread, hold};

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

fn target(pid: &str) -> Result<Target> {
    let mut symbols = HashMap::new();
    let is_looked_at = |path: &str| MODULES.iter().any(|module| path.contains(module));
    let is_kept = |name: &str| SYMBOLS.iter().any(|begin| name.starts_with(begin));
    modules::each(pid, is_looked_at, |file, bias| modules::add_symbols(&mut symbols, (file, bias), is_kept))?;
    Ok(Target { memory: File::open(format!("/proc/{pid}/mem"))?, symbols })
}

fn print<M: Memory, S: Symbols>(memory: M, symbols: &S, threads: &[Thread]) -> Result<Functions> {
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
    let pid = words.first().ok_or("no process")?;
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

fn record(target: &Target, threads: &[Thread], file: &str) -> Result<()> {
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
