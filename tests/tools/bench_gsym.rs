//! Measures the export of generated code as GSYM: `cargo xtask bench` runs it and shows the figures.
//!
//! ```text
//! bench_gsym DUMP ROUNDS
//! ```
//!
//! Each round reads the dump, makes a snapshot of its end and writes it; then gsym-rs alone encodes the same functions,
//! which are ready in its own types. One line of JSON. The dump comes from the page cache.

use std::error::Error;
use std::fs::File;
use std::hint::black_box;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use gsym_rs::{FileEntry, Function, FunctionSetPolicy, Gsym, GsymBuilder};
use jitprof::output::gsym::{Snapshot, Uuid, write};
use jitprof_common::units::MonoNs;
use jitprof_jitdump::code::{CodeEvent, CodeMap};
use jitprof_jitdump::{DumpTail, ReaderOptions};
use serde_json::json;

type Failure = Box<dyn Error>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        [file, rounds] => measure(Path::new(file), rounds),
        _ => Err("usage: bench_gsym DUMP ROUNDS".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench_gsym: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(file: &Path, rounds: &str) -> Result<(), Failure> {
    let rounds: u32 = rounds.parse()?;
    // Unmeasured: it fills the page cache.
    let bytes = export(file)?;
    let (files, functions) = decoded(&bytes)?;
    let (mut whole, mut alone) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        // In turns: what else the machine does meets both.
        let start = Instant::now();
        black_box(export(file)?);
        whole.push(start.elapsed().as_secs_f64());
        let ready = functions.clone();
        let start = Instant::now();
        let peer = encode(&files, ready)?;
        alone.push(start.elapsed().as_secs_f64());
        if peer != bytes {
            return Err("gsym-rs alone wrote another file".into());
        }
    }
    let report = json!({
        "functions": functions.len(),
        "rows": functions.iter().map(|function| function.lines.len()).sum::<usize>(),
        "bytes": bytes.len(),
        "export": whole,
        "gsym_rs": alone,
    });
    println!("{report}");
    Ok(())
}

/// From the dump to the bytes of the GSYM file.
fn export(file: &Path) -> Result<Vec<u8>, Failure> {
    let mut map = CodeMap::new();
    let mut tail = DumpTail::new(File::open(file)?, ReaderOptions::default());
    let mut apply = |event: CodeEvent| {
        map.apply(event);
    };
    while tail.poll(|| MonoNs(u64::MAX), &mut apply)?.more {}
    let mut bytes = Vec::new();
    write(&Snapshot::of(&map, MonoNs(u64::MAX - 1)), Uuid::of(&[]), &mut bytes)?;
    Ok(bytes)
}

/// The same functions in gsym-rs' types.
fn decoded(bytes: &[u8]) -> Result<(Vec<FileEntry>, Vec<Function>), Failure> {
    let gsym = Gsym::parse(bytes)?;
    let count = jitprof::gsym::Gsym::parse(bytes.to_vec())?.header().num_files;
    let files = (0..count).map(|index| {
        let (directory, name) = gsym.file(index)?;
        Ok(FileEntry::new(directory, name))
    });
    let functions = gsym.functions().map(|function| function?.decode());
    Ok((files.collect::<gsym_rs::Result<_>>()?, functions.collect::<gsym_rs::Result<_>>()?))
}

fn encode(files: &[FileEntry], functions: Vec<Function>) -> Result<Vec<u8>, Failure> {
    let uuid = Uuid::of(&[]);
    let mut builder = GsymBuilder::new().build_id(uuid.0).function_set(FunctionSetPolicy::Preserve);
    for file in files {
        builder.add_file(file.clone())?;
    }
    for function in functions {
        builder.add_function(function)?;
    }
    Ok(builder.to_bytes()?)
}
