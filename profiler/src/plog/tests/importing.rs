//! What entries become.

use proptest::prelude::*;

use super::*;

/// A job with two parts on one thread, and a pair of begin and end on another.
fn two_threads() -> Vec<Entry> {
    vec![
        entry(100, 100, 7, 1, ACQUIRE),
        entry(110, 20, 7, 2, ACQUIRE),
        entry(150, 50, 7, 3, ACQUIRE),
        entry(10, 0, 9, 1, ENTER),
        entry(20, 0, 9, 3, ENTER),
        entry(25, 0, 9, 4, MARK),
        Entry { designator: 42, ..entry(26, 0, 9, 4, VALUE) },
        entry(30, 0, 9, 3, EXIT),
        entry(40, 0, 9, 1, EXIT),
    ]
}

const TWO_THREADS: [&str; 7] = [
    "7 100-110 JOB",
    "7 110-130 JOB;INTERPRET",
    "7 130-150 JOB",
    "7 150-200 JOB;RENDER",
    "9 10-20 JOB",
    "9 20-30 JOB;RENDER",
    "9 30-40 JOB",
];

#[test]
fn both_byte_orders_and_all_sizes_give_the_same_spans() {
    for order in [ByteOrder::Little, ByteOrder::Big] {
        for (header_size, entry_size) in [(80, 40), (128, 40), (80, 64), (4096, 48)] {
            let log = LogFields { header_size, entry_size, ..fields(order) }.log(&two_threads());
            let (trace, warnings) = import(&log).unwrap();
            assert_eq!(segments(&trace), TWO_THREADS);
            assert_eq!(warnings, Vec::<String>::new());
            assert_eq!((trace.counts.spans, trace.counts.marks, trace.counts.counters), (5, 1, 1));
            let job = trace.totals[&1];
            assert_eq!((job.spans, job.total_ns, job.self_ns, job.longest_ns), (2, 130, 50, 100));
            assert_eq!(trace.counts.deepest, 2);
        }
    }
}

#[test]
fn ticks_are_converted_and_start_is_kept_apart() {
    let fields = LogFields { ticks_per_second: 1_000_000, start: 5, ..fields(ByteOrder::NATIVE) };
    let (trace, _) = import(&fields.log(&[entry(2, 3, 1, 1, ACQUIRE)])).unwrap();
    assert_eq!(segments(&trace), ["1 2000-5000 JOB"]);
    assert_eq!((trace.start_ns(), trace.range_ns()), (5000, Some((2000, 5000))));
}

#[test]
fn durations_that_only_nest_before_their_timestamps_are_read_so() {
    // Logged at the end: a parent follows its children and has a later timestamp.
    let entries = [entry(130, 20, 7, 2, EXIT), entry(195, 45, 7, 3, EXIT), entry(200, 100, 7, 1, EXIT)];
    let (trace, _) = import(&fields(ByteOrder::Little).log(&entries)).unwrap();
    assert_eq!(trace.timestamps, Timestamps::End);
    assert_eq!(trace.crossings, [Some(1), Some(0)]);
    let nested = ["7 100-110 JOB", "7 110-130 JOB;INTERPRET", "7 130-150 JOB", "7 150-195 JOB;RENDER", "7 195-200 JOB"];
    assert_eq!(segments(&trace), nested);
    let forced = ImportOptions { timestamps: Some(Timestamps::Start), ..ImportOptions::default() };
    let (trace, warnings) = import_with(&fields(ByteOrder::Little).log(&entries), &forced).unwrap();
    assert_eq!((trace.timestamps, trace.crossings), (Timestamps::Start, [Some(1), None]));
    assert!(warnings[0].contains("overlap"), "{warnings:?}");
}

#[test]
fn an_exit_with_a_duration_closes_its_enter_once() {
    for stamp in [30, 20] {
        let entries = [entry(20, 0, 1, 3, ENTER), entry(stamp, 10, 1, 3, EXIT), entry(50, 5, 1, 3, EXIT)];
        let options = ImportOptions { timestamps: Some(Timestamps::Start), ..ImportOptions::default() };
        let (trace, warnings) = import_with(&fields(ByteOrder::Little).log(&entries), &options).unwrap();
        assert_eq!(segments(&trace), ["1 20-30 RENDER", "1 50-55 RENDER"]);
        assert_eq!(warnings, Vec::<String>::new());
    }
}

#[test]
fn begins_and_ends_out_of_order_are_matched_by_time() {
    let mut entries = two_threads();
    entries.reverse();
    let (trace, warnings) = import(&fields(ByteOrder::Big).log(&entries)).unwrap();
    let mut sorted = segments(&trace);
    sorted.sort();
    let mut expected = TWO_THREADS.map(str::to_owned).to_vec();
    expected.sort();
    assert_eq!(sorted, expected);
    assert_eq!(warnings, Vec::<String>::new());
}

#[test]
fn recursion_is_matched_last_in_first_out() {
    let entries =
        [entry(1, 0, 1, 1, ENTER), entry(2, 0, 1, 1, ENTER), entry(3, 0, 1, 1, EXIT), entry(9, 0, 1, 1, EXIT)];
    let (trace, _) = import(&fields(ByteOrder::Little).log(&entries)).unwrap();
    assert_eq!(segments(&trace), ["1 1-2 JOB", "1 2-3 JOB;JOB", "1 3-9 JOB"]);
}

#[test]
fn what_is_not_matched_is_counted() {
    let entries = [entry(1, 0, 1, 1, EXIT), entry(2, 0, 1, 2, ENTER), entry(8, 0, 1, 4, MARK)];
    let (trace, warnings) = import(&fields(ByteOrder::Little).log(&entries)).unwrap();
    assert_eq!(segments(&trace), ["1 2-8 INTERPRET"]);
    assert_eq!((trace.counts.unopened, trace.counts.unclosed), (1, 1));
    assert_eq!(warnings.len(), 2);
}

#[test]
fn the_user_overrules_what_a_types_name_suggests() {
    let entries = [entry(1, 0, 1, 1, ACQUIRE), entry(5, 0, 1, 1, MARK), entry(7, 9, 1, 2, VALUE)];
    let rules = ["acquire=begin", "3=end", "VALUE=ignore"].map(|rule| rule.parse().unwrap());
    let options = ImportOptions { kinds: rules.to_vec(), ..ImportOptions::default() };
    let (trace, _) = import_with(&fields(ByteOrder::Little).log(&entries), &options).unwrap();
    assert_eq!(segments(&trace), ["1 1-5 JOB"]);
    assert_eq!(trace.counts.ignored, 1);
}

#[test]
fn spans_that_cross_each_end_at_their_own_time() {
    let entries = [entry(0, 10, 1, 1, ACQUIRE), entry(5, 10, 1, 2, ACQUIRE), entry(12, 1, 1, 3, ACQUIRE)];
    let options = ImportOptions { timestamps: Some(Timestamps::Start), ..ImportOptions::default() };
    let (trace, _) = import_with(&fields(ByteOrder::Little).log(&entries), &options).unwrap();
    assert_eq!(
        segments(&trace),
        ["1 0-5 JOB", "1 5-10 JOB;INTERPRET", "1 10-12 INTERPRET", "1 12-13 INTERPRET;RENDER", "1 13-15 INTERPRET"]
    );
    assert_eq!(trace.counts.crossings, 1);
}

#[test]
fn a_log_that_was_not_closed_is_read_to_its_end() {
    let mut log = fields(ByteOrder::Little).log(&two_threads());
    log[72..80].fill(0);
    log.extend([0; 400]);
    let (trace, warnings) = import(&log).unwrap();
    assert_eq!(segments(&trace), TWO_THREADS);
    assert_eq!(trace.counts.blank, 10);
    assert_eq!(warnings.len(), 2, "{warnings:?}");
}

#[test]
fn deeper_spans_than_can_be_shown_are_counted() {
    let entries: Vec<_> = (0..300).map(|depth| entry(depth, 1000 - 2 * depth, 1, 1, ACQUIRE)).collect();
    let (trace, warnings) = import(&fields(ByteOrder::Little).log(&entries)).unwrap();
    assert_eq!((trace.counts.too_deep, trace.counts.deepest), (300 - MAX_DEPTH as u64, MAX_DEPTH));
    assert_eq!(warnings.len(), 1);
}

#[test]
fn more_threads_than_are_kept_apart_share_one() {
    let count = MAX_THREADS as u64 + 10;
    let entries: Vec<_> = (0..count).map(|thread| entry(thread * 10, 5, thread + 1, 1, ACQUIRE)).collect();
    let (trace, warnings) = import(&fields(ByteOrder::Little).log(&entries)).unwrap();
    assert_eq!(trace.threads.len(), MAX_THREADS + 1);
    assert_eq!(trace.threads.iter().map(|thread| thread.entries).sum::<u64>(), count);
    assert_eq!(trace.totals[&1].self_ns, count * 5);
    assert!(warnings[0].contains("threads"));
}

/// The stacks at a time, found the slow way.
fn naive(entries: &[Entry], at: u64) -> Vec<u32> {
    let mut open: Vec<(u64, std::cmp::Reverse<u64>, usize, u32)> = entries
        .iter()
        .enumerate()
        .filter(|(_, entry)| entry.timestamp <= at && at < entry.timestamp + entry.duration)
        .map(|(place, entry)| {
            (entry.timestamp, std::cmp::Reverse(entry.timestamp + entry.duration), place, entry.trace_id)
        })
        .collect();
    open.sort_unstable();
    open.into_iter().map(|(_, _, _, id)| id).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_time_has_the_spans_that_were_open_then(
        raw in prop::collection::vec((0..60_u64, 0..20_u64, 1..5_u32), 0..40),
        in_memory in 1..50_usize,
    ) {
        let entries: Vec<_> = raw.iter().map(|&(at, length, id)| entry(at, length, 1, id, ACQUIRE)).collect();
        let options = ImportOptions { timestamps: Some(Timestamps::Start), in_memory, ..ImportOptions::default() };
        let (trace, _) = import_with(&fields(ByteOrder::Little).log(&entries), &options).unwrap();
        let mut stacks = vec![Vec::new(); 100];
        let mut before: Vec<u32> = Vec::new();
        trace.segments(|segment| {
            let path: Vec<_> = segment.path.iter().map(|span| span.trace_id).collect();
            assert!(segment.kept <= before.len() && before[..segment.kept] == path[..segment.kept]);
            for at in segment.start..segment.end {
                assert!(stacks[at as usize].is_empty());
                stacks[at as usize].clone_from(&path);
            }
            before = path;
            Ok::<(), PlogError>(())
        }).unwrap();
        for (at, stack) in stacks.iter().enumerate() {
            prop_assert_eq!(stack, &naive(&entries, at as u64), "at {}", at);
        }
        let own: u64 = trace.totals.values().map(|sums| sums.self_ns).sum();
        prop_assert_eq!(own, stacks.iter().filter(|stack| !stack.is_empty()).count() as u64);
    }

    #[test]
    fn a_sort_through_a_file_gives_what_one_in_memory_does(
        raw in prop::collection::vec((any::<u64>(), any::<u64>(), 0..4_u64, 0..5_u32, 0..6_u32), 0..200),
        in_memory in 1..64_usize,
    ) {
        let entries: Vec<_> =
            raw.iter().map(|&(at, length, thread, id, kind)| entry(at, length % 99, thread, id, kind)).collect();
        let log = fields(ByteOrder::Big).log(&entries);
        let (small, few) = import_with(&log, &ImportOptions { in_memory, ..ImportOptions::default() }).unwrap();
        let (large, many) = import(&log).unwrap();
        prop_assert_eq!(segments(&small), segments(&large));
        prop_assert_eq!((small.counts, few), (large.counts, many));
        prop_assert_eq!(small.totals, large.totals);
    }
}
