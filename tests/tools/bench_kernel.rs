//! Measures a sample that the kernel unwinds itself with `bpf_get_stack`, and how long unwind rows take to make:
//! `cargo xtask bench` runs it and shows the figures.
//!
//! ```text
//! bench_kernel getstack OBJECT PID HZ SECONDS   samples a process with the program in that object
//! bench_kernel rows FILE..                      makes the rows of ELF files, each five times
//! bench_kernel jit DUMP                         makes the rows of a jitdump's functions and a process' table of them
//! ```
//!
//! Each prints one line of JSON.

use std::error::Error;
use std::fs::File;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use aya::EbpfLoader;
use aya::maps::{PerCpuArray, RingBuf};
use aya::programs::PerfEvent;
use aya::programs::perf_event::{PerfEventConfig, PerfEventScope, SamplePolicy, SoftwareEvent};
use aya::util::online_cpus;
use jitprof_common::machine::Machine;
use jitprof_common::units::MonoNs;
use jitprof_jitdump::code::CodeEvent;
use jitprof_jitdump::{DumpTail, ReaderOptions};
use jitprof_unwind::{JitSpace, RecordedFrames, rows_of_code, rows_of_elf, rows_of_jit};
use serde_json::{Value, json};

type Failure = Box<dyn Error>;

/// Rounds of which the quickest counts.
const ROUNDS: u32 = 5;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["getstack", object, pid, hz, seconds] => getstack(object, pid, hz, seconds),
        ["rows", files @ ..] if !files.is_empty() => files.iter().map(|file| rows(file)).collect(),
        ["jit", dump] => jit(dump),
        _ => Err("usage: bench_kernel getstack OBJECT PID HZ SECONDS | rows FILE.. | jit DUMP".into()),
    };
    match result {
        Ok(figures) => {
            println!("{figures}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("bench_kernel: {error}");
            ExitCode::FAILURE
        }
    }
}

fn getstack(object: &str, pid: &str, hz: &str, seconds: &str) -> Result<Value, Failure> {
    let object = std::fs::read(object)?;
    let pid: u32 = pid.parse()?;
    let mut ebpf = EbpfLoader::new().override_global("PID", &pid, true).load(&object)?;
    let mut ring = RingBuf::try_from(ebpf.take_map("SAMPLES").ok_or("no map SAMPLES")?)?;
    let counters: PerCpuArray<_, u64> = PerCpuArray::try_from(ebpf.take_map("COUNTERS").ok_or("no map COUNTERS")?)?;
    let program: &mut PerfEvent = ebpf.program_mut("getstack").ok_or("no program getstack")?.try_into()?;
    program.load()?;
    let policy = SamplePolicy::Frequency(hz.parse()?);
    for cpu in online_cpus().map_err(|(file, error)| format!("{file}: {error}"))? {
        let scope = PerfEventScope::AllProcessesOneCpu { cpu };
        program.attach(PerfEventConfig::Software(SoftwareEvent::CpuClock), scope, policy, false)?;
    }
    let end = Instant::now() + Duration::from_secs(seconds.parse()?);
    while Instant::now() < end {
        while ring.next().is_some() {}
        std::thread::sleep(Duration::from_millis(100));
    }
    program.unload()?;
    let sum = |index| -> Result<f64, Failure> {
        let values = counters.get(&index, 0)?;
        Ok(values.iter().map(|value| u32::try_from(*value).map_or(f64::INFINITY, f64::from)).sum())
    };
    let (samples, ns, frames) = (sum(0)?, sum(1)?, sum(2)?);
    Ok(json!({ "samples": samples, "ns_per_sample": ns / samples, "frames": frames / samples }))
}

fn rows(file: &str) -> Result<Value, Failure> {
    let mut best = Duration::MAX;
    let mut figures = Value::Null;
    for _ in 0..ROUNDS {
        let opened = File::open(file)?;
        let start = Instant::now();
        let made = rows_of_elf(&opened)?;
        best = best.min(start.elapsed());
        figures = json!({ "file": file, "rows": made.table.len(), "bytes": made.table.bytes() });
    }
    figures["ms"] = json!(best.as_secs_f64() * 1e3);
    Ok(figures)
}

fn jit(dump: &str) -> Result<Value, Failure> {
    let options = ReaderOptions { keep_code: true, ..ReaderOptions::default() };
    let mut tail = DumpTail::new(File::open(dump)?, options);
    let mut loads = Vec::new();
    let mut take = |event| {
        if let CodeEvent::Load(load) = event {
            loads.push(load);
        }
    };
    while tail.poll(|| MonoNs(u64::MAX), &mut take)?.more {}
    let start = Instant::now();
    let tables: Vec<_> = loads
        .iter()
        .map(|load| {
            let recorded = load.eh_frame.as_ref().and_then(|eh| {
                rows_of_jit(
                    Machine::NATIVE,
                    load.start.0,
                    load.size,
                    RecordedFrames { bytes: &eh.bytes, section_start: eh.section_start },
                )
            });
            recorded.or_else(|| rows_of_code(Machine::NATIVE, load.start.0, load.code.as_deref()?))
        })
        .collect();
    let making = start.elapsed();
    let with_rows = tables.iter().flatten().count();
    let mut space = JitSpace::default();
    let mut words = 0;
    let mut pages = 0;
    let start = Instant::now();
    for (load, table) in loads.iter().zip(tables) {
        space.load(load.start.0, load.size, load.time, table);
    }
    space.flush(|_, rows| {
        words += rows.len();
        pages += 1;
    });
    let placing = start.elapsed();
    let each = |time: Duration| time.as_secs_f64() * 1e6 / u32::try_from(loads.len()).map_or(f64::NAN, f64::from);
    Ok(json!({
        "functions": loads.len(), "with_rows": with_rows, "rows": words, "pages": pages,
        "us_to_make_one": each(making), "us_to_place_one": each(placing),
    }))
}
