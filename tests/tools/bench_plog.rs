//! Makes trace logs and measures how they are read: `cargo xtask bench` runs it and shows the figures.
//!
//! ```text
//! bench_plog make little|big ENTRIES FILE    writes a log with that many entries
//! bench_plog read FILE ROUNDS                reads it as `jitprof trace` does; prints one line of JSON
//! ```
//!
//! Files come from the page cache: what is measured is the reader.

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use jitprof::plog::writer::LogFields;
use jitprof::plog::{Entry, ImportOptions, Log, PlogError, Trace};
use jitprof_jitdump::ByteOrder;
use serde_json::json;

type Failure = Box<dyn Error>;

/// Names as the format's public description begins them, and the types that an importer must tell apart.
const NAMES: [&str; 8] =
    ["INVALID", "CORE", "THREAD", "JOB", "INTERPRET", "INTERPRET_LEVEL", "RENDER", "COMPOSITE_BAND"];
const TYPES: [&str; 6] = ["INVALID", "ENTER", "EXIT", "MARK", "VALUE", "ACQUIRE"];
const JOB: u32 = 3;
const THREADS: u64 = 4;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["make", order, entries, file] => make(order, entries, Path::new(file)),
        ["read", file, rounds] => read(Path::new(file), rounds),
        _ => Err("usage: bench_plog make little|big ENTRIES FILE | read FILE ROUNDS".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench_plog: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Four threads in turns. Each does jobs of ten entries: the job as a whole, which is logged when it is over, and within
/// it three spans with a duration, two begins with their ends, a mark and a counter.
fn make(order: &str, entries: &str, file: &Path) -> Result<(), Failure> {
    let order = match order {
        "little" => ByteOrder::Little,
        "big" => ByteOrder::Big,
        other => return Err(format!("{other} is no byte order; there are little and big").into()),
    };
    let entries: u64 = entries.parse()?;
    let fields = LogFields { order, names: &NAMES, types: &TYPES, start: 1_000_000, ..LogFields::default() };
    let mut out = BufWriter::with_capacity(1 << 20, File::create(file)?);
    out.write_all(&fields.head(entries))?;
    for index in 0..entries {
        let (job, step) = (index / 10, index % 10);
        let (thread, start) = (0x7f00_0000_0640 + job % THREADS * 0x1000, job / THREADS * 1000);
        let (at, duration, trace_id, type_id) = match step {
            0 => (start + 100, 200, 4, 5),
            1 => (start + 400, 0, 5, 1),
            2 => (start + 420, 0, 7, 1),
            3 => (start + 450, 0, 7, 2),
            4 => (start + 460, 0, 5, 2),
            5 => (start + 500, 100, 6, 5),
            6 => (start + 520, 20, 7, 5),
            7 => (start + 700, 0, 1, 3),
            8 => (start + 710, 0, 2, 4),
            _ => (start, 900, JOB, 5),
        };
        out.write_all(&fields.entry(&Entry { timestamp: at, duration, thread, trace_id, type_id, designator: job }))?;
    }
    Ok(out.flush()?)
}

fn read(file: &Path, rounds: &str) -> Result<(), Failure> {
    let rounds: u32 = rounds.parse()?;
    let mut seconds = Vec::new();
    let mut spans = 0;
    for round in 0..=rounds {
        let start = Instant::now();
        let mut log = Log::open_path(file)?;
        let trace = Trace::import(&mut log, &ImportOptions::default())?;
        let mut own = 0_u64;
        trace.segments(|segment| {
            own += segment.end - segment.start;
            Ok::<(), PlogError>(())
        })?;
        std::hint::black_box(own);
        // The first round fills the page cache.
        if round > 0 {
            seconds.push(start.elapsed().as_secs_f64());
        }
        spans = trace.counts.spans;
    }
    let report = json!({
        "bytes": std::fs::metadata(file)?.len(),
        "spans": spans,
        "seconds": seconds,
        "peak_bytes": peak_kib()? * 1024,
    });
    println!("{report}");
    Ok(())
}

/// The most memory that this process has had.
fn peak_kib() -> Result<u64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("procfs without memory lines")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
