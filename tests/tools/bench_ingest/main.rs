//! Measures the way of generated code into jitprof: `cargo xtask bench` runs it and shows the figures.
//!
//! ```text
//! bench_ingest make node|erlang FUNCTIONS FILE   writes a dump in that runtime's shape
//! bench_ingest read FILE ROUNDS                  reads it with jitprof and with linux-perf-data, in turns
//! bench_ingest check FILE ROUNDS                 looks at it as `jitprof jitdump --check` does, in turns with them
//! bench_ingest load FILE                         reads it into a code map; one per process, for the memory's sake
//! ```
//!
//! `read`, `check` and `load` print one line of JSON. Files come from the page cache: what is measured is the reader.

mod shapes;

use std::error::Error;
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use jitprof_common::units::MonoNs;
use jitprof_jitdump::code::{CodeEvent, CodeMap};
use jitprof_jitdump::{Body, DebugEntry, DumpTail, Inspector, Parser, ParserOptions, ReaderOptions, RecordTail, Step};
use linux_perf_data::jitdump::{JitDumpReader, JitDumpRecord};
use serde_json::json;

type Failure = Box<dyn Error>;

/// Bytes between two looks at the file's header, as the command has it.
const POLL_BYTES: u64 = 8 << 20;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["make", shape, functions, file] => make(shape, functions, file),
        ["read", file, rounds] => in_turns(Path::new(file), rounds, &READERS),
        ["check", file, rounds] => in_turns(Path::new(file), rounds, &CHECKERS),
        ["load", file] => load(Path::new(file)),
        _ => Err(
            "usage: bench_ingest make node|erlang FUNCTIONS FILE | read FILE ROUNDS | check FILE ROUNDS | load FILE"
                .into(),
        ),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench_ingest: {error}");
            ExitCode::FAILURE
        }
    }
}

fn make(shape: &str, functions: &str, file: &str) -> Result<(), Failure> {
    let functions = functions.parse()?;
    let bytes = match shape {
        "node" => shapes::node(functions),
        "erlang" => shapes::erlang(functions),
        other => return Err(format!("{other} is no shape; there are node and erlang").into()),
    };
    Ok(std::fs::write(file, bytes)?)
}

/// What one pass over a file gave.
#[derive(Clone, Copy, Default)]
struct Pass {
    records: u64,
    functions: u64,
    took: Duration,
}

/// Reads a file from its start to its end.
type Reader = fn(&Path) -> Result<Pass, Failure>;

const READERS: [(&str, Reader); 4] = [
    ("parser", with_parser),
    ("tail", with_tail),
    ("peer_parser", |file| with_linux_perf_data(file, false)),
    ("peer_owned", |file| with_linux_perf_data(file, true)),
];

const CHECKERS: [(&str, Reader); 3] =
    [("check", with_check), ("records", with_records), ("peer_parser", |file| with_linux_perf_data(file, false))];

fn in_turns(file: &Path, rounds: &str, readers: &[(&str, Reader)]) -> Result<(), Failure> {
    let rounds: u32 = rounds.parse()?;
    let mut report = json!({ "bytes": std::fs::metadata(file)?.len() });
    for &(name, reader) in readers {
        // Unmeasured: it fills the page cache.
        let pass = reader(file)?;
        report[name] = json!({"records": pass.records, "functions": pass.functions, "seconds": []});
    }
    for _ in 0..rounds {
        // In turns: what else the machine does meets all of them.
        for &(name, reader) in readers {
            let seconds = reader(file)?.took.as_secs_f64();
            report[name]["seconds"].as_array_mut().ok_or("invariant: made above")?.push(seconds.into());
        }
    }
    println!("{report}");
    Ok(())
}

/// Every record parsed, which borrows, and nothing kept.
fn with_parser(path: &Path) -> Result<Pass, Failure> {
    let start = Instant::now();
    let mut pass = Pass::default();
    let file = File::open(path)?;
    let mut parser = Parser::new(ParserOptions::default());
    let (mut buffer, mut filled, mut position) = (vec![0; 1 << 18], 0_usize, 0_u64);
    loop {
        let used = usize::try_from(parser.offset().0.saturating_sub(position))?;
        match parser.step(buffer.get(used..filled).unwrap_or(&[])) {
            Step::Record(record) => {
                pass.records += 1;
                pass.functions += u64::from(matches!(record.body, Body::Load(_)));
                if let Body::DebugInfo(info) = &record.body {
                    // Something of every field, or the compiler leaves its reading out.
                    let sum = |sum: u64, entry: DebugEntry<'_>| {
                        let rest = u64::from(entry.line.unsigned_abs()) ^ entry.name.len() as u64;
                        sum ^ entry.addr ^ rest ^ u64::from(entry.discrim.unsigned_abs())
                    };
                    black_box(info.entries().fold(0, sum));
                }
                black_box(&record);
            }
            Step::NeedMore { at_least } => {
                let rest = filled.saturating_sub(used);
                buffer.copy_within(filled - rest..filled, 0);
                buffer.resize(buffer.len().max(at_least), 0);
                position = parser.offset().0;
                let got = file.read_at(&mut buffer[rest..], position + rest as u64)?;
                filled = rest + got;
                if got == 0 {
                    break;
                }
            }
            _ => {}
        }
    }
    pass.took = start.elapsed();
    Ok(pass)
}

/// Everything that a recording gets from the file: events with owned names, source rows and unwinding data.
fn with_tail(file: &Path) -> Result<Pass, Failure> {
    let start = Instant::now();
    let mut pass = Pass::default();
    let mut tail = DumpTail::new(File::open(file)?, ReaderOptions::default());
    let mut count = |event: CodeEvent| {
        pass.functions += u64::from(matches!(black_box(&event), CodeEvent::Load(_)));
    };
    while tail.poll(|| MonoNs(u64::MAX), &mut count)?.more {}
    pass.took = start.elapsed();
    let counts = tail.stream().stats().records;
    pass.records = counts.load + counts.moved + counts.debug_info + counts.close + counts.unwinding_info;
    Ok(pass)
}

/// Statistics and every rule of the check.
fn with_check(file: &Path) -> Result<Pass, Failure> {
    let start = Instant::now();
    let mut tail = RecordTail::new(File::open(file)?, ParserOptions::default());
    let mut inspector = Inspector::new(ReaderOptions::default(), 5);
    while tail.poll(POLL_BYTES, &mut |at, step| inspector.step(at, step, &mut |event| _ = black_box(event)))?.more {}
    let inspection = inspector.finish(tail.offset(), tail.file_len(), false);
    let counts = inspection.stats.records;
    let records = counts.load + counts.moved + counts.debug_info + counts.close + counts.unwinding_info;
    black_box(&inspection);
    Ok(Pass { records, functions: counts.load, took: start.elapsed() })
}

/// Every record as `jitprof jitdump --records` sees them, of which none is wanted.
fn with_records(file: &Path) -> Result<Pass, Failure> {
    let start = Instant::now();
    let mut pass = Pass::default();
    let mut tail = RecordTail::new(File::open(file)?, ParserOptions::default());
    let mut count = |_, step: &Step<'_>| {
        if let Step::Record(record) = step {
            pass.records += 1;
            pass.functions += u64::from(matches!(black_box(record).body, Body::Load(_)));
        }
    };
    while tail.poll(POLL_BYTES, &mut count)?.more {}
    pass.took = start.elapsed();
    Ok(pass)
}

/// Every record parsed, which borrows; `owned` makes names and rows outlive the buffer, as a profiler needs them.
fn with_linux_perf_data(file: &Path, owned: bool) -> Result<Pass, Failure> {
    let start = Instant::now();
    let mut pass = Pass::default();
    // It does its own buffering, says its documentation, in blocks of 4 KiB.
    let mut reader = JitDumpReader::new(File::open(file)?)?;
    while let Some(raw) = reader.next_record()? {
        pass.records += 1;
        match black_box(raw.parse()) {
            Ok(JitDumpRecord::CodeLoad(load)) => {
                pass.functions += 1;
                if owned {
                    black_box(String::from_utf8_lossy(&load.function_name.as_slice()).into_owned());
                }
            }
            Ok(JitDumpRecord::CodeDebugInfo(info)) if owned => {
                let text = |entry: &linux_perf_data::jitdump::JitCodeDebugInfoEntry<'_>| {
                    (entry.code_addr, entry.line, String::from_utf8_lossy(&entry.file_path.as_slice()).into_owned())
                };
                black_box(info.entries.iter().map(text).collect::<Vec<_>>());
            }
            // A record that it cannot parse, such as V8's debug information with overwritten names, costs it less.
            _ => {}
        }
    }
    pass.took = start.elapsed();
    Ok(pass)
}

fn load(file: &Path) -> Result<(), Failure> {
    let before = memory_kib("VmRSS:")?;
    let start = Instant::now();
    let mut map = CodeMap::new();
    let mut tail = DumpTail::new(File::open(file)?, ReaderOptions::default());
    let mut apply = |event: CodeEvent| {
        map.apply(event);
    };
    while tail.poll(|| MonoNs(u64::MAX), &mut apply)?.more {}
    let took = start.elapsed();
    let report = json!({
        "functions": map.living() + map.ended(),
        "seconds": took.as_secs_f64(),
        "map_bytes": map.bytes(),
        "resident_bytes": (memory_kib("VmRSS:")?.saturating_sub(before)) * 1024,
        "peak_bytes": (memory_kib("VmHWM:")?.saturating_sub(before)) * 1024,
    });
    println!("{report}");
    Ok(())
}

/// A line of this process' memory account, in KiB.
fn memory_kib(name: &str) -> Result<u64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)).ok_or("procfs without memory lines")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
