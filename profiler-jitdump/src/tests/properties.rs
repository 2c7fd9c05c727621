//! Any bytes, any growth.

use proptest::prelude::*;

use crate::writer::{DumpWriter, EntryFields, HeaderFields, LoadFields};
use crate::{ByteOrder, DumpReader, Parser, ParserOptions, ReaderOptions, Step};

use super::{ALL, fixture, read, read_in_chunks};

/// Bytes that resemble a dump: records with one word replaced, or random bytes between them.
fn almost_a_dump() -> impl Strategy<Value = Vec<u8>> {
    let piece = (0_u32..7, any::<u64>(), prop::collection::vec(any::<u8>(), 0..80), prop::bool::weighted(0.2));
    (any::<bool>(), prop::collection::vec(piece, 0..20)).prop_map(|(big, pieces)| {
        let order = if big { ByteOrder::Big } else { ByteOrder::Little };
        let mut dump = DumpWriter::with_header(&HeaderFields { order, ..HeaderFields::default() });
        for (id, number, body, stray) in pieces {
            let small = number % 0x1_0000;
            let entries = [EntryFields { addr: small + 8, line: 3, discrim: 1, name: b"f.js" }];
            match id {
                0 => dump.load(small, &LoadFields { code_addr: small, name: b"name", code: &body, code_index: number }),
                1 => dump.debug_info(small, small, &entries, 0),
                2 => dump.unwinding_info(small, &body, body.len() as u64 / 2, 0),
                _ => dump.record(id, number, &body),
            };
            if stray {
                dump.raw(&body);
            }
        }
        dump.into_bytes()
    })
}

/// Steps through everything: every step moves on or asks for more than there is.
fn walk(bytes: &[u8]) -> u64 {
    let mut parser = Parser::new(ParserOptions { want_code: true, whole_records: false });
    let mut steps = 0;
    loop {
        let before = parser.offset().0;
        let Some(window) = usize::try_from(before).ok().and_then(|at| bytes.get(at..)) else {
            return steps;
        };
        steps += 1;
        let step = parser.step(window);
        if let Step::NeedMore { at_least } = step {
            assert!(at_least > window.len(), "asked for {at_least} with {}", window.len());
            return steps;
        }
        let moved = parser.offset().0 > before;
        assert!(moved || matches!(step, Step::Resynced { .. }), "{step:?} at {before}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_in_bounded_steps(bytes in prop::collection::vec(any::<u8>(), 0..4000)) {
        prop_assert!(walk(&bytes) <= bytes.len() as u64 + 2);
        read(&bytes);
    }

    #[test]
    fn almost_dumps_are_read_in_bounded_steps(bytes in almost_a_dump()) {
        prop_assert!(walk(&bytes) <= 2 * bytes.len() as u64 + 2);
        let (events, stats) = read(&bytes);
        prop_assert!(events.len() as u64 >= stats.functions);
        prop_assert!(stats.corrupt_bytes <= bytes.len() as u64);
    }

    #[test]
    fn growth_in_any_steps_gives_the_same_events(
        which in 0..ALL.len(),
        sizes in prop::collection::vec(1_usize..6000, 1..20),
    ) {
        let bytes = fixture(ALL[which]);
        let (whole, whole_stats) = read(&bytes);
        let (grown, grown_stats) = read_in_chunks(&bytes, &sizes, ReaderOptions::default());
        prop_assert_eq!(grown, whole);
        prop_assert_eq!(grown_stats, whole_stats);
    }

    #[test]
    fn tentative_reading_of_any_bytes_changes_nothing(bytes in almost_a_dump(), cut in any::<prop::sample::Index>()) {
        let cut = cut.index(bytes.len() + 1);
        let mut reader = DumpReader::new(ReaderOptions::default());
        reader.read(&bytes[..cut], &mut |_| {});
        let before = (reader.offset(), reader.stats().clone());
        let start = usize::try_from(reader.offset().0).unwrap();
        if let Some(rest) = bytes.get(start..) {
            let parsed = reader.read_tentatively(ReaderOptions::default(), rest, &mut |_| {});
            prop_assert!(parsed <= rest.len());
        }
        prop_assert_eq!((reader.offset(), reader.stats().clone()), before);
    }
}
