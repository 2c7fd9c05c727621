//! The readings of name tables.

use proptest::prelude::*;

use super::*;

fn encodings() -> Vec<Encoding> {
    let mut all = vec![Encoding::CountedOffsets, Encoding::CountedStrings, Encoding::Offsets, Encoding::Strings];
    for width in [4, 8] {
        for nul in [false, true] {
            for align in [1, 4, 8] {
                all.push(Encoding::LengthPrefixed { width, nul, align });
            }
        }
    }
    all
}

fn named(names: &[&str], encoding: Encoding, order: ByteOrder) -> (Trace, Vec<String>) {
    let fields = LogFields { order, names, types: &TYPES, encoding, ..LogFields::default() };
    let last = u32::try_from(names.len() - 1).unwrap();
    import(&fields.log(&[entry(1, 1, 1, last, ACQUIRE)])).unwrap()
}

#[test]
fn every_encoding_is_read_in_both_byte_orders() {
    for encoding in encodings() {
        for order in [ByteOrder::Little, ByteOrder::Big] {
            let (trace, warnings) = named(&NAMES, encoding, order);
            assert_eq!(trace.names.names(), NAMES, "{encoding}");
            assert_eq!(trace.types.names(), TYPES, "{encoding}");
            assert_eq!(warnings, Vec::<String>::new(), "{encoding}");
        }
    }
}

#[test]
fn a_single_name_and_an_empty_one_in_the_middle_are_read() {
    for encoding in encodings() {
        assert_eq!(named(&["ONE"], encoding, ByteOrder::Little).0.names.names(), ["ONE"], "{encoding}");
        let (trace, _) = named(&["A", "", "CD"], encoding, ByteOrder::Big);
        assert_eq!(
            (trace.names.name(0), trace.names.name(1), trace.names.name(2)),
            ("A".into(), "trace#1".into(), "CD".into()),
            "{encoding}"
        );
    }
}

#[test]
fn a_table_that_is_none_costs_the_names_only() {
    let mut log = fields(ByteOrder::Little).log(&[entry(1, 2, 3, 4, 5)]);
    log[80..88].fill(0xff);
    let (trace, warnings) = import(&log).unwrap();
    assert_eq!((trace.names.name(4), trace.types.name(5)), ("trace#4".to_owned(), "ACQUIRE".to_owned()));
    assert_eq!(segments(&trace), ["3 1-3 trace#4"]);
    assert!(warnings[0].starts_with("byte 80, trace name table: none"), "{warnings:?}");
}

#[test]
fn an_index_beyond_the_table_keeps_the_other_names() {
    let (trace, warnings) =
        import(&fields(ByteOrder::Little).log(&[entry(1, 2, 3, 1, ACQUIRE), entry(9, 2, 3, 77, ACQUIRE)])).unwrap();
    assert_eq!(segments(&trace), ["3 1-3 JOB", "3 9-11 trace#77"]);
    assert_eq!(warnings, ["byte 80, trace name table: 5 names, and entries use number 77"]);
}

#[test]
fn entries_on_a_page_of_their_own_do_not_hide_the_names() {
    // A mapped log may have its tables rounded up further than to 8 bytes.
    let fields = fields(ByteOrder::Little);
    let head = fields.head(1);
    let mut log = head.clone();
    log.resize(4096, 0);
    log[56..64].copy_from_slice(&4096_u64.to_le_bytes());
    log.extend(fields.entry(&entry(1, 2, 3, 1, ACQUIRE)));
    let (trace, warnings) = import(&log).unwrap();
    assert_eq!(trace.types.names(), TYPES);
    assert_eq!(warnings, Vec::<String>::new());
}

proptest! {
    #[test]
    fn any_printable_names_survive_any_encoding(
        names in prop::collection::vec("[A-Z_a-z][ -~]{0,30}", 1..60),
        which in 0..16_usize,
        big in any::<bool>(),
    ) {
        let encoding = encodings()[which];
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let order = if big { ByteOrder::Big } else { ByteOrder::Little };
        let (trace, _) = named(&names, encoding, order);
        prop_assert_eq!(trace.names.names(), &names[..]);
    }

    #[test]
    fn any_bytes_are_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), offset in any::<u64>(), largest in any::<u32>()) {
        for order in [ByteOrder::Little, ByteOrder::Big] {
            let (table, _) = NameTable::read(order, &bytes, offset, "trace", largest);
            prop_assert!(table.names().len() <= bytes.len());
        }
    }
}
