//! Lists the functions of a jitdump by name and size, the largest first.
//!
//! ```text
//! cargo run --example read_jitdump -- /tmp/jit-4711.dump
//! ```

use std::error::Error;
use std::fs::File;
use std::io::Write as _;

use jitprof_common::units::MonoNs;
use jitprof_jitdump::code::CodeEvent;
use jitprof_jitdump::{DumpTail, ReaderOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: read_jitdump DUMP")?;
    let mut loads = Vec::new();
    let mut tail = DumpTail::new(File::open(path)?, ReaderOptions::default());
    // Each poll reads some megabytes. A program that follows a runtime would go on polling.
    while tail
        .poll(|| MonoNs(u64::MAX), &mut |event| {
            if let CodeEvent::Load(load) = event {
                loads.push(load);
            }
        })?
        .more
    {}

    loads.sort_by_key(|load| std::cmp::Reverse(load.size));
    let mut out = std::io::stdout().lock();
    for load in &loads {
        // Names are the target's choice: they may hold anything.
        writeln!(out, "{:8} {:#x} {}", load.size, load.start.0, load.name.escape_debug())?;
    }
    let stats = tail.stream().stats_so_far();
    eprintln!("{} functions, {} source rows, {} bytes lost", stats.functions, stats.rows, stats.corrupt_bytes);
    Ok(())
}
