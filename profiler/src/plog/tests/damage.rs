//! Damaged logs: every byte missing from some point on, every byte changed.

use super::*;

/// Of all kinds of entries, so many times.
const ROUNDS: u64 = 3;
const ENTRIES: u64 = 4 * ROUNDS;

fn log(order: ByteOrder) -> Vec<u8> {
    let entries: Vec<_> = (0..ROUNDS)
        .flat_map(|index| {
            let at = index * 100;
            [
                entry(at, 90, 7, 1, ACQUIRE),
                entry(at + 10, 0, 7, 2, ENTER),
                entry(at + 20, 0, 7, 2, EXIT),
                Entry { designator: index, ..entry(at + 30, 0, 8, 4, VALUE) },
            ]
        })
        .collect();
    fields(order).log(&entries)
}

/// Start, end, thread and trace id of every span.
fn spans(trace: &Trace) -> Vec<(u64, u64, u64, u32)> {
    let mut all = Vec::new();
    let each = |span: &Span| {
        all.push((span.start, span.end, trace.threads[span.thread as usize].id, span.trace_id));
        Ok::<(), PlogError>(())
    };
    trace.spans(each).unwrap();
    all
}

/// Everything that can be asked of a log.
fn use_all(bytes: &[u8]) -> Result<Trace, PlogError> {
    let mut log = Log::open(Cursor::new(bytes))?;
    let trace = Trace::import(&mut log, &ImportOptions::default())?;
    let counts = trace.counts;
    assert!(counts.entries <= bytes.len() as u64 / 40);
    assert!(counts.spans + counts.marks + counts.counters <= counts.entries);
    let profile = span_profile(&trace, &ThreadMap::default(), "log")?;
    assert!(profile.total() <= trace.totals.values().fold(0_u64, |sum, totals| sum.saturating_add(totals.self_ns)));
    assert!(log.warnings().len() < 20);
    Ok(trace)
}

#[test]
fn a_log_cut_anywhere_is_read_as_far_as_it_goes() {
    for order in [ByteOrder::Little, ByteOrder::Big] {
        let whole = log(order);
        let entries_at = fields(order).head(0).len();
        for length in 0..whole.len() {
            let read = import(&whole[..length]);
            assert_eq!(read.is_ok(), length >= HEADER_SIZE, "{length}");
            if let Ok((trace, warnings)) = read {
                assert_eq!(trace.counts.entries, (length.saturating_sub(entries_at) / 40) as u64, "{length}");
                assert!(!warnings.is_empty(), "{length}");
                use_all(&whole[..length]).unwrap();
            }
        }
    }
}

#[test]
fn a_byte_changed_anywhere_costs_what_it_says() {
    for order in [ByteOrder::Little, ByteOrder::Big] {
        let whole = log(order);
        let entries_at = fields(order).head(0).len();
        let undamaged = spans(&import(&whole).unwrap().0);
        for at in 0..whole.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] ^= flip;
                match use_all(&damaged) {
                    Ok(trace) if at >= entries_at => {
                        // One entry is wrong, and with it the span that it begins and the one that it ends.
                        assert_eq!(trace.counts.entries, ENTRIES, "{at}");
                        let same = spans(&trace).iter().filter(|span| undamaged.contains(span)).count();
                        let other_reading = trace.timestamps == Timestamps::End;
                        assert!(same >= undamaged.len() - 2 || other_reading, "{at} {flip:#x}: {same}");
                    }
                    Ok(_) => assert!(at >= 16, "{at}: a damaged magic or mark is no log"),
                    Err(PlogError::NoLog { offset, .. }) => assert!(at < 16 && offset <= 8),
                    Err(PlogError::Field { offset, .. }) => assert!((64..72).contains(&at) && offset == 64),
                    Err(error) => panic!("{at}: {error}"),
                }
            }
        }
    }
}

#[test]
fn an_error_names_field_and_offset() {
    let mut wrong = log(ByteOrder::Little);
    wrong[64..72].copy_from_slice(&39_u64.to_le_bytes());
    assert_eq!(
        import(&wrong).unwrap_err().to_string(),
        "byte 64, size of an entry: 39 is not from 40 to 65536; no entry can be read"
    );
    let wrong = import(b"not a log at all").unwrap_err().to_string();
    assert_eq!(wrong, r#"byte 0, magic: "not a lo" instead of "HQNplog\n"; this is no HQNplog trace log"#);
    let wrong = import(&log(ByteOrder::Little)[..40]).unwrap_err().to_string();
    assert_eq!(wrong, "byte 40, header: it ends after 40 of 80 bytes; this is no HQNplog trace log");
}

#[test]
fn extreme_fields_are_no_overflow() {
    for at in (16..80).step_by(8) {
        for value in [0, 1, 40, 79, 1 << 32, u64::MAX / 2, u64::MAX - 7, u64::MAX] {
            for order in [ByteOrder::Little, ByteOrder::Big] {
                let mut log = log(order);
                log[at..at + 8].copy_from_slice(&order.u64_bytes(value));
                if let Err(error) = use_all(&log) {
                    assert!(matches!(error, PlogError::Field { .. }), "{at} {value}: {error}");
                }
            }
        }
    }
    let extreme = [entry(u64::MAX, u64::MAX, u64::MAX, u32::MAX, u32::MAX), entry(0, u64::MAX, 0, 0, 0)];
    for timestamps in [Timestamps::Start, Timestamps::End] {
        let options = ImportOptions { timestamps: Some(timestamps), ..ImportOptions::default() };
        let fields = LogFields { ticks_per_second: 1, start: u64::MAX, ..fields(ByteOrder::Little) };
        import_with(&fields.log(&extreme), &options).unwrap();
    }
}
