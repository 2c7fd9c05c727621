//! Each deviation is found where it is, and sound dumps and real ones have no others.

use std::collections::BTreeSet;
use std::io::Write;

use proptest::prelude::*;

use super::examples::{example, sound_dump};
use super::{Deviation, Inspection, Inspector, Severity};
use crate::test_data::{ALL, fixture};
use crate::writer::DumpWriter;
use crate::{ClockContext, Parser, ParserOptions, ReaderOptions, RecordTail, Step};
use jitprof_common::units::MonoNs;

fn inspect_with(bytes: &[u8], options: ReaderOptions) -> Inspection {
    let mut inspector = Inspector::new(options, 5);
    let mut parser = Parser::new(ParserOptions::default());
    loop {
        let at = parser.offset();
        let Some(window) = bytes.get(usize::try_from(at.0).unwrap()..) else { break };
        match parser.step(window) {
            Step::NeedMore { .. } => break,
            step => inspector.step(at, &step, &mut |_| {}),
        }
    }
    inspector.finish(parser.offset(), bytes.len() as u64, false)
}

fn inspect(bytes: &[u8]) -> Inspection {
    inspect_with(bytes, ReaderOptions::default())
}

fn names(inspection: &Inspection) -> BTreeSet<&'static str> {
    inspection.findings.iter().map(|(deviation, _)| deviation.name()).collect()
}

#[test]
fn a_sound_dump_has_no_findings() {
    let inspection = inspect(&sound_dump());
    assert_eq!(names(&inspection), BTreeSet::new());
    assert_eq!((inspection.survey.living, inspection.survey.living_bytes), (2, 64));
    assert_eq!((inspection.survey.first_time, inspection.survey.last_time), (Some(1000), Some(1003)));
}

#[test]
fn every_deviation_is_found_where_it_is() {
    for &deviation in Deviation::ALL {
        let (bytes, offset) = example(deviation);
        let clock = ClockContext { process_start: MonoNs(1), now: MonoNs(2_000_000_000), tsc: None };
        let clock = (deviation == Deviation::FlagOverNanoseconds).then_some(clock);
        let inspection = inspect_with(&bytes, ReaderOptions { clock, ..ReaderOptions::default() });
        let found = inspection.findings.get(deviation);
        let found = found.unwrap_or_else(|| panic!("{} among {:?}", deviation.name(), inspection.findings));
        assert_eq!(found.places[0].offset.0, offset, "{}: {:?}", deviation.name(), inspection.findings);
    }
}

#[test]
fn names_are_unique_and_every_quirk_without_a_known_producer_is_harmless() {
    let names: BTreeSet<_> = Deviation::ALL.iter().map(|deviation| deviation.name()).collect();
    assert_eq!(names.len(), Deviation::ALL.len());
    for deviation in Deviation::ALL {
        assert!(!deviation.meaning().is_empty() && deviation.meaning().len() < 100, "{}", deviation.name());
    }
}

/// What real producers do in working order is no error.
#[test]
fn real_dumps_have_the_quirks_of_their_producers_and_no_errors() {
    for name in ALL {
        let inspection = inspect(&fixture(name));
        let errors = inspection.findings.count(Severity::Error);
        assert_eq!(errors, 0, "{name}: {:?}", inspection.findings);
    }
    let v8 = names(&inspect(&fixture("node20-lines")));
    for quirk in ["header-padding", "debug-bias", "freed-name", "frame-first", "debug-padding", "header-time"] {
        assert!(v8.contains(quirk), "{quirk} in {v8:?}");
    }
    let erlang = names(&inspect(&fixture("otp25-lines")));
    for quirk in ["no-thread", "row-before-code", "line-below-1"] {
        assert!(erlang.contains(quirk), "{quirk} in {erlang:?}");
    }
    let cpython = names(&inspect(&fixture("cpython3.13.0-burn")));
    for quirk in ["mapped-size", "no-machine", "frame-first", "header-time"] {
        assert!(cpython.contains(quirk), "{quirk} in {cpython:?}");
    }
    assert!(names(&inspect(&fixture("llvm14-nofp-g"))).is_superset(&["vma", "debug-bias"].into()));
}

#[test]
fn a_dump_that_still_grows_is_not_blamed_for_what_may_come() {
    let bytes = sound_dump();
    let debug_only = 40 + 32 + 2 * 21;
    let mut inspector = Inspector::new(ReaderOptions::default(), 5);
    let mut parser = Parser::new(ParserOptions::default());
    // The DEBUG_INFO is only believed when a record follows, of which a prefix is there.
    let window = &bytes[..debug_only + 16];
    while let Some(rest) = window.get(usize::try_from(parser.offset().0).unwrap()..) {
        let at = parser.offset();
        match parser.step(rest) {
            Step::NeedMore { .. } => break,
            step => inspector.step(at, &step, &mut |_| {}),
        }
    }
    let inspection = inspector.finish(parser.offset(), window.len() as u64, true);
    assert_eq!(names(&inspection), ["torn-end"].into());
}

#[test]
fn a_file_without_the_magic_needs_no_whole_header_to_say_so() {
    let little = DumpWriter::new(1).into_bytes();
    let big: Vec<u8> = little[..4].iter().rev().copied().collect();
    let cases: [(&[u8], Option<&str>); 8] = [
        (b"", None),
        (&little[..1], Some("torn-end")),
        (&little[..39], Some("torn-end")),
        (&big[..3], Some("torn-end")),
        (&big, Some("torn-end")),
        (b"x", Some("no-magic")),
        (b"DTix", Some("no-magic")),
        (b"no such dump", Some("no-magic")),
    ];
    for (bytes, name) in cases {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        let mut tail = RecordTail::new(file.reopen().unwrap(), ParserOptions::default());
        let mut inspector = Inspector::new(ReaderOptions::default(), 5);
        while tail.poll(1, &mut |at, step| inspector.step(at, step, &mut |_| {})).unwrap().more {}
        let inspection = inspector.finish(tail.offset(), tail.file_len(), false);
        assert_eq!(names(&inspection), name.into_iter().collect(), "{bytes:?}");
        assert_eq!(names(&inspect(bytes)), names(&inspection), "{bytes:?}");
    }
}

#[test]
fn a_file_is_walked_through_like_bytes() {
    for name in ALL {
        let bytes = fixture(name);
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&bytes).unwrap();
        let mut tail = RecordTail::new(file.reopen().unwrap(), ParserOptions::default());
        let mut inspector = Inspector::new(ReaderOptions::default(), 5);
        while tail.poll(1000, &mut |at, step| inspector.step(at, step, &mut |_| {})).unwrap().more {}
        let streamed = inspector.finish(tail.offset(), tail.file_len(), false);
        assert_eq!(format!("{streamed:?}"), format!("{:?}", inspect(&bytes)), "{name}");
    }
}

#[test]
fn a_dump_cut_or_changed_at_any_byte_is_checked_all_the_same() {
    for bytes in Deviation::ALL.iter().map(|deviation| example(*deviation).0).chain([sound_dump()]) {
        for at in 0..bytes.len() {
            inspect(&bytes[..at]);
            for flip in [0x01, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] ^= flip;
                let inspection = inspect(&changed);
                assert!(inspection.survey.living <= inspection.stats.records.load + inspection.stats.records.moved);
            }
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_checked(bytes in prop::collection::vec(any::<u8>(), 0..2000), sound in any::<bool>()) {
        let bytes = if sound { [sound_dump(), bytes].concat() } else { bytes };
        let inspection = inspect(&bytes);
        prop_assert!(inspection.findings.iter().all(|(_, found)| found.count > 0 && found.places.len() <= 5));
    }
}
