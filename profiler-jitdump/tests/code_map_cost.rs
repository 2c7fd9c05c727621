//! Time and memory of a code map of 200,000 functions: `cargo test --release -p jitprof-jitdump --test code_map_cost -- --nocapture`.
//!
//! A test binary of its own, so that the process' memory is that of the map.

use std::time::{Duration, Instant};

use jitprof_common::units::{Avma, MonoNs};
use jitprof_jitdump::code::{Applied, CodeEvent, CodeLoad, CodeMap, CodeOrigin, SourceRows};

const FUNCTIONS: u64 = 200_000;
const BASE: u64 = 0x7f00_0000_0000;

/// Private memory of this process in KiB.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).expect("RssAnon since Linux 4.5");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number of KiB")
}

/// A permutation of the places: 7919 and 200,000 have no common factor.
fn place(index: u64) -> u64 {
    index * 7919 % FUNCTIONS
}

/// Names as long as those of a Node server, 44 to 50 bytes; addresses in an order without a pattern.
fn load(index: u64, generation: u64) -> CodeEvent {
    let place = place(index);
    CodeEvent::Load(CodeLoad {
        time: MonoNs(1_000 + generation * FUNCTIONS + index),
        start: Avma(BASE + place * 512),
        size: 500,
        name: format!("JS:*handler_{index} /srv/app/lib/handlers.js:{}:17", index % 5000),
        code_index: index,
        lines: SourceRows::default(),
        unit: None,
        eh_frame: None,
        code: None,
        origin: CodeOrigin::Jitdump,
    })
}

#[test]
fn two_hundred_thousand_functions_load_in_a_second_and_64_mib() {
    let before = resident_kib();
    let start = Instant::now();
    let mut map = CodeMap::new();
    let mut loaded = 0;
    for index in 0..FUNCTIONS {
        loaded += u64::from(matches!(map.apply(load(index, 0)), Applied::Loaded(_)));
    }
    let took = start.elapsed();
    let resident = (resident_kib() - before) * 1024;
    let estimate = map.bytes() as u64;
    println!(
        "{loaded} functions in {took:?}: {} bytes of memory each, {} estimated",
        resident / FUNCTIONS,
        estimate / FUNCTIONS
    );
    assert_eq!(loaded, FUNCTIONS);
    assert!(resident < 64 << 20, "{resident} bytes");
    assert!(estimate.abs_diff(resident) < resident / 4, "estimated {estimate}, resident {resident}");
    if !cfg!(debug_assertions) {
        assert!(took < Duration::from_secs(1), "{took:?}");
    }

    // The whole code space is generated anew: the first generation has ended and waits for pruning.
    for index in 0..FUNCTIONS {
        map.apply(load(index, 1));
    }
    let both = (resident_kib() - before) * 1024;
    println!("with as many ended: {} bytes for each of these", (both - resident) / map.ended().max(1) as u64);
    let (lookups, per_lookup) = time_lookups(&map);
    println!("{lookups} look-ups: {per_lookup:?} each");
    let start = Instant::now();
    map.prune_before(MonoNs(u64::MAX));
    println!("pruned {} in {:?}", map.stats().pruned, start.elapsed());
    assert_eq!(map.ended(), 0);
    let start = Instant::now();
    let child = map.fork(MonoNs(u64::MAX - 1));
    println!("forked {} functions in {:?}", child.living(), start.elapsed());
}

/// Look-ups of code that lives, that has ended, and of addresses without code, a third each.
fn time_lookups(map: &CodeMap) -> (u64, Duration) {
    const ROUNDS: u32 = 300_000;
    let now = MonoNs(1_000 + 2 * FUNCTIONS);
    let start = Instant::now();
    let mut hits = 0;
    for round in 0..ROUNDS {
        let place = place(u64::from(round));
        let (addr, time) = match round % 3 {
            0 => (BASE + place * 512 + 7, now),
            1 => (BASE + place * 512 + 7, MonoNs(1_000 + FUNCTIONS)),
            _ => (BASE + place * 512 + 505, now),
        };
        hits += u64::from(map.lookup(Avma(addr), time).is_some());
    }
    (hits, start.elapsed() / ROUNDS)
}
