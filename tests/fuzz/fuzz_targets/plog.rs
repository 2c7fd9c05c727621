//! A trace log of any bytes: no panic, no standstill, and a sort through a file gives what one in memory does.
//!
//! The first byte says which options apply. A log of `bench_plog make little 20 FILE` with a byte in front is a good seed.
#![no_main]

use std::io::Cursor;

use jitprof::plog::{ImportOptions, Log, PlogError, ThreadMap, Timestamps, Trace, span_profile};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((control, bytes)) = input.split_first() else {
        return;
    };
    let kinds = ["ENTER=span", "1=end", "MARK=counter", "VALUE=begin"];
    let options = ImportOptions {
        kinds: kinds.iter().filter(|_| control & 1 != 0).filter_map(|rule| rule.parse().ok()).collect(),
        timestamps: match control >> 1 & 3 {
            0 => Some(Timestamps::Start),
            1 => Some(Timestamps::End),
            _ => None,
        },
        in_memory: if control & 8 != 0 { 3 } else { 1 << 20 },
    };
    let Some(whole) = read(bytes, &options) else {
        return;
    };
    let in_memory = if options.in_memory == 3 { 1 << 20 } else { 3 };
    let other = read(bytes, &ImportOptions { in_memory, ..options });
    assert_eq!(Some(whole), other);
});

type Stretch = (u32, u64, u64, Vec<u32>);

fn read(bytes: &[u8], options: &ImportOptions) -> Option<Vec<Stretch>> {
    let mut log = Log::open(Cursor::new(bytes)).ok()?;
    let trace = Trace::import(&mut log, options).ok()?;
    assert!(trace.counts.entries <= bytes.len() as u64 / 40);
    let mut stretches = Vec::new();
    let collected = trace.segments(|segment| {
        assert!(segment.start < segment.end && !segment.path.is_empty());
        let path = segment.path.iter().map(|span| span.trace_id).collect();
        stretches.push((segment.thread, segment.start, segment.end, path));
        Ok::<(), PlogError>(())
    });
    assert!(collected.is_ok());
    assert!(span_profile(&trace, &ThreadMap::default(), "fuzz").is_ok());
    Some(stretches)
}
