//! Measurements, run on purpose: `cargo test --release -p jitprof --lib jitdump -- --ignored --nocapture throughput`.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use linux_perf_data::jitdump::JitDumpReader;

use jitprof_common::units::MonoNs;

use crate::writer::{DumpWriter, EntryFields, LoadFields};
use crate::{DumpTail, ReaderOptions};

fn ours(path: &Path) -> (u64, Duration) {
    let begin = Instant::now();
    let mut tail = DumpTail::new(File::open(path).unwrap(), ReaderOptions::default());
    let mut events = 0_u64;
    while tail
        .poll(|| MonoNs(u64::MAX), &mut |event| {
            std::hint::black_box(&event);
            events += 1;
        })
        .unwrap()
        .more
    {}
    let took = begin.elapsed();
    let counts = tail.stream().stats().records;
    assert!(events > 0);
    (counts.load + counts.moved + counts.debug_info + counts.close + counts.unwinding_info, took)
}

fn theirs(path: &Path) -> (u64, Duration) {
    let begin = Instant::now();
    let mut reader = JitDumpReader::new(File::open(path).unwrap()).unwrap();
    let mut records = 0;
    while let Ok(Some(raw)) = reader.next_record() {
        let _parsed = std::hint::black_box(raw.parse());
        records += 1;
    }
    (records, begin.elapsed())
}

fn compare(name: &str, path: &Path) {
    let bytes = std::fs::metadata(path).unwrap().len();
    let best = |read: fn(&Path) -> (u64, Duration)| (0..15).map(|_| read(path)).min_by_key(|run| run.1).unwrap();
    let (our_records, our_time) = best(ours);
    let (their_records, their_time) = best(theirs);
    let rate = |records: u64, time: Duration| {
        let seconds = time.as_secs_f64();
        format!(
            "{time:9.3?} {:6.2} M records/s {:5.2} GB/s",
            records as f64 / seconds / 1e6,
            bytes as f64 / seconds / 1e9
        )
    };
    println!("{name} ({bytes} bytes)");
    println!("  jitprof          {our_records} records {}", rate(our_records, our_time));
    println!("  linux-perf-data  {their_records} records {}", rate(their_records, their_time));
    println!("  ratio {:.2}", their_time.as_secs_f64() / our_time.as_secs_f64());
}

fn synthetic(functions: u64, code_len: usize, rows: u64) -> Vec<u8> {
    let mut dump = DumpWriter::new(1);
    let code = vec![0x90; code_len];
    for index in 0..functions {
        let start = 0x1000_0000 + index * 0x1000;
        let entries: Vec<_> = (0..rows)
            .map(|row| EntryFields {
                addr: start + row * 8,
                line: 1 + row as i32,
                discrim: 0,
                name: b"/srv/app/lib/module.js",
            })
            .collect();
        if rows > 0 {
            dump.debug_info(1_000 + index, start, &entries, 0);
        }
        let name = format!("JS:*function{index} /srv/app/lib/module.js:{index}:1");
        dump.load(
            1_000 + index,
            &LoadFields { code_addr: start, name: name.as_bytes(), code: &code, code_index: index },
        );
    }
    dump.into_bytes()
}

#[test]
#[ignore = "a measurement; only release figures mean anything"]
fn throughput() {
    for (name, bytes) in [
        ("200,000 functions, 512 bytes of code", synthetic(200_000, 512, 0)),
        ("200,000 functions, 256 bytes of code, 10 rows", synthetic(200_000, 256, 10)),
    ] {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&bytes).unwrap();
        compare(name, file.path());
    }
    // A colon-separated list of dumps to measure besides.
    for path in std::env::var("JITPROF_DUMPS").unwrap_or_default().split(':').filter(|path| !path.is_empty()) {
        compare(path, Path::new(path));
    }
}
