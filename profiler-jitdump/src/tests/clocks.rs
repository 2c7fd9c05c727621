//! Times: counter ticks, flags that lie, zeros, the past and the future.

use crate::writer::{DumpWriter, HeaderFields, LoadFields};
use crate::{ClockContext, ClockKind, DumpReader, DumpStats, FLAG_ARCH_TIMESTAMP, ReaderOptions, TscConversion};
use jitprof_common::units::MonoNs;

use super::{loads, read_with};

const START: u64 = 5_000_000_000_000;
const NOW: u64 = START + 60_000_000_000;

/// 3 GHz: 1 ns is 3 ticks.
const TSC: TscConversion = TscConversion { mult: 0x5555_5555, shift: 32, zero: 1_000_000, mono_offset: -1_000 };

fn context(tsc: Option<TscConversion>) -> ClockContext {
    ClockContext { process_start: MonoNs(START), now: MonoNs(NOW), tsc }
}

fn times(flags: u64, written: &[u64], clock: Option<ClockContext>) -> (Vec<u64>, DumpStats) {
    let mut dump = DumpWriter::with_header(&HeaderFields { flags, ..HeaderFields::default() });
    for time in written {
        dump.load(*time, &LoadFields { code_addr: 0x1000, name: b"f", code: &[0xc3], code_index: 0 });
    }
    let (events, stats) = read_with(&dump.into_bytes(), ReaderOptions { clock, ..ReaderOptions::default() });
    (loads(&events).iter().map(|load| load.time.0).collect(), stats)
}

#[test]
fn ticks_are_converted() {
    let ticks = (START + 10_000_000_000) * 3;
    let (times, stats) = times(FLAG_ARCH_TIMESTAMP, &[ticks], Some(context(Some(TSC))));
    assert_eq!(stats.clock, ClockKind::Tsc);
    let expected = START + 10_000_000_000 + 1_000_000 - 1_000;
    assert!(times[0].abs_diff(expected) < 10_000, "{} instead of {expected}", times[0]);
    assert_eq!(stats.watermark, MonoNs(times[0]));
}

#[test]
fn a_rate_that_is_known_better_holds_from_then_on() {
    let at = |seconds: u64| (START + seconds * 1_000_000_000) * 3;
    let write = |times: &[u64]| {
        let fields = HeaderFields { flags: FLAG_ARCH_TIMESTAMP, ..HeaderFields::default() };
        let mut dump = DumpWriter::with_header(&fields);
        for time in times {
            dump.load(*time, &LoadFields { code_addr: 0x1000, name: b"f", code: &[0xc3], code_index: 0 });
        }
        dump.into_bytes()
    };
    let options = ReaderOptions { clock: Some(context(Some(TSC))), ..ReaderOptions::default() };
    let (mut reader, mut events) = (DumpReader::new(options), Vec::new());
    reader.read(&write(&[at(10)]), &mut |event| events.push(event));
    reader.set_ticks(TscConversion { mono_offset: TSC.mono_offset - 7_000_000, ..TSC });
    let read = usize::try_from(reader.offset().0).unwrap();
    reader.read(&write(&[at(10), at(20)])[read..], &mut |event| events.push(event));
    let times: Vec<u64> = loads(&events).iter().map(|load| load.time.0).collect();
    assert!((times[1] - times[0]).abs_diff(10_000_000_000 - 7_000_000) < 10_000, "{times:?}");
}

#[test]
fn the_flag_over_nanoseconds_is_not_believed() {
    let written = [START + 1, START + 2];
    for tsc in [Some(TSC), None] {
        let (times, stats) = times(FLAG_ARCH_TIMESTAMP, &written, Some(context(tsc)));
        assert_eq!((times.as_slice(), stats.clock), (written.as_slice(), ClockKind::Monotonic));
    }
}

#[test]
fn ticks_without_a_conversion_are_no_times() {
    let (times, stats) = times(FLAG_ARCH_TIMESTAMP, &[START * 3], Some(context(None)));
    assert_eq!((times[0], stats.clock, stats.times_implausible), (0, ClockKind::Unusable, 1));
}

#[test]
fn garbage_in_the_other_flag_bits_means_nothing() {
    let (times, stats) = times(0xdead_0000_beef_0000, &[START + 5], Some(context(None)));
    assert_eq!((times[0], stats.clock), (START + 5, ClockKind::Monotonic));
}

#[test]
fn zeros_and_the_future_become_the_latest_known_time() {
    let written = [START + 5, 0, NOW + 10_000_000_000, START + 4];
    let (times, stats) = times(0, &written, Some(context(None)));
    assert_eq!(times, [START + 5, START + 5, START + 5, START + 4]);
    assert_eq!((stats.times_implausible, stats.watermark), (2, MonoNs(START + 5)));
}

#[test]
fn records_older_than_the_process_are_dropped() {
    let (times, stats) = times(0, &[START - 1_000_000_000, START + 1], Some(context(None)));
    assert_eq!(times, [START + 1]);
    assert_eq!(stats.skipped.stale_time, 1);
}

#[test]
fn a_stale_tick_does_not_settle_the_clock() {
    let ticks = |ns: u64| ns * 3;
    let written = [7, ticks(START + 1_000_000_000)];
    let (times, stats) = times(FLAG_ARCH_TIMESTAMP, &written, Some(context(Some(TSC))));
    assert_eq!((times.len(), stats.clock), (1, ClockKind::Tsc));
}

#[test]
fn without_a_context_nanoseconds_are_taken_as_written() {
    let (times, _) = times(0, &[3, 2], None);
    assert_eq!(times, [3, 2]);
}
