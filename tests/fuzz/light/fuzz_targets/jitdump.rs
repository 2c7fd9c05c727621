//! A dump of any bytes that grows in two steps: no panic, no standstill, and tentative reading changes nothing.
//!
//! The first byte says where the growth is cut and which options apply. Good seeds are the unpacked dumps of
//! `profiler-jitdump/fixtures/jitdump`, each with one byte in front.
#![no_main]

use jitprof_common::units::MonoNs;
use jitprof_jitdump::{ClockContext, DumpReader, Parser, ParserOptions, ReaderOptions, Step, TscConversion};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((control, bytes)) = input.split_first() else {
        return;
    };
    walk(bytes, *control);

    let tsc = TscConversion { mult: 0x5555_5555, shift: 32, zero: 0, mono_offset: 0 };
    let clock = ClockContext { process_start: MonoNs(1), now: MonoNs(1 << 45), tsc: Some(tsc) };
    let options = ReaderOptions {
        keep_code: control & 1 != 0,
        clock: (control & 2 != 0).then_some(clock),
        ..ReaderOptions::default()
    };
    let cut = bytes.len() * usize::from(control >> 2) / 64;
    let mut reader = DumpReader::new(options.clone());
    let mut events = 0_u64;
    reader.read(&bytes[..cut], &mut |_| events += 1);
    let start = usize::try_from(reader.offset().0).unwrap_or(usize::MAX);
    if let Some(rest) = bytes.get(start..) {
        let before = (reader.offset(), reader.stats().clone());
        let parsed = reader.read_tentatively(options, rest, &mut |_| {});
        assert!(parsed <= rest.len());
        assert_eq!(before, (reader.offset(), reader.stats().clone()));
        reader.read(rest, &mut |_| events += 1);
    }
    let stats = reader.stats();
    assert!(stats.functions <= events);
    assert!(stats.corrupt_bytes <= bytes.len() as u64);
});

/// Every step moves on, or asks for more than there is.
fn walk(bytes: &[u8], control: u8) {
    let options = ParserOptions { want_code: control & 1 != 0, whole_records: control & 2 != 0 };
    let mut parser = Parser::new(options);
    loop {
        let before = parser.offset().0;
        let Some(window) = usize::try_from(before).ok().and_then(|at| bytes.get(at..)) else {
            return;
        };
        let step = parser.step(window);
        if let Step::NeedMore { at_least } = step {
            assert!(at_least > window.len());
            return;
        }
        assert!(parser.offset().0 > before || matches!(step, Step::Resynced { .. }));
    }
}
