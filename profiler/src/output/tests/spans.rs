//! Trace logs as pictures and timelines, and saved recordings read back.

use std::io::Cursor;

use prost::Message;
use serde_json::Value;

use super::super::firefox_spans::write_at_most;
use super::super::proto;
use super::*;
use crate::plog::writer::LogFields;
use crate::plog::{Entry, ImportOptions, Log, PlogError, ThreadMap, Trace, span_profile};
use jitprof_jitdump::ByteOrder;

const ENTRY: Entry = Entry { timestamp: 0, duration: 0, thread: 0xa0, trace_id: 1, type_id: 1, designator: 7 };

/// A job of 5000 ns with two parts, and a mark and a counter; another thread with a job.
fn entries() -> Vec<Entry> {
    vec![
        Entry { timestamp: 1000, duration: 5000, ..ENTRY },
        Entry { timestamp: 2000, duration: 1500, trace_id: 2, ..ENTRY },
        Entry { timestamp: 4000, duration: 1000, trace_id: 3, ..ENTRY },
        Entry { timestamp: 4500, type_id: 2, ..ENTRY },
        Entry { timestamp: 4600, type_id: 3, designator: u64::MAX, ..ENTRY },
        Entry { timestamp: 9000, duration: 1000, thread: 0xb0, ..ENTRY },
    ]
}

fn with_log<T>(entries: &[Entry], see: impl FnOnce(&Trace, &mut Log<Cursor<Vec<u8>>>, &ThreadMap) -> T) -> T {
    let fields = LogFields {
        order: ByteOrder::Big,
        start: 10_000,
        names: &["INVALID", "JOB", "<RENDER>", "a;b"],
        types: &["INVALID", "ACQUIRE", "MARK", "VALUE"],
        ..LogFields::default()
    };
    let mut log = Log::open(Cursor::new(fields.log(entries))).unwrap();
    let trace = Trace::import(&mut log, &ImportOptions::default()).unwrap();
    let map = ThreadMap::told(&["0xb0=77".parse().unwrap()]);
    see(&trace, &mut log, &map)
}

fn spans() -> Profile {
    with_log(&entries(), |trace, _, map| span_profile(trace, map, "log").unwrap())
}

#[test]
fn folded_lines_have_thread_names_and_nanoseconds() {
    assert_eq!(
        string(&spans(), Format::Folded, &OutputOptions::default()),
        "thread 0xa0;JOB 2500\nthread 0xa0;JOB;<RENDER> 1500\nthread 0xa0;JOB;a:b 1000\nthread 0xb0;JOB 1000\n"
    );
}

#[test]
fn the_flamegraph_counts_nanoseconds() {
    let svg = string(&spans(), Format::Svg, &OutputOptions::default());
    assert!(svg.contains("&lt;RENDER&gt; (1,500 ns, 25.00%)"), "{svg}");
    assert!(svg.contains("0.000 s in spans"), "{svg}");
    assert!(!svg.contains(" samples"), "{svg}");
}

#[test]
fn pprof_has_nanoseconds_alone() {
    let bytes = bytes(&spans(), Format::Pprof, &OutputOptions::default());
    let mut plain = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&bytes[..]), &mut plain).unwrap();
    let profile = proto::Profile::decode(&plain[..]).unwrap();
    let text = |index: i64| profile.string_table[index as usize].as_str();
    let types: Vec<_> = profile.sample_type.iter().map(|kind| (text(kind.r#type), text(kind.unit))).collect();
    assert_eq!(types, [("span", "nanoseconds")]);
    assert_eq!(profile.period, 1);
    assert!(profile.comment.iter().any(|comment| text(*comment).contains("trace log")));
}

#[test]
fn chrome_gets_every_entry_to_the_nanosecond() {
    let mut out = Vec::new();
    with_log(&entries(), |trace, log, map| write_chrome(trace, log, map, "t\"itle", &mut out)).unwrap();
    let json: Value = serde_json::from_slice(&out).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    let of = |phase: &str| events.iter().filter(|event| event["ph"] == phase).collect::<Vec<_>>();
    assert_eq!(of("M").len(), 3);
    let spans = of("X");
    assert_eq!(spans.len(), 4);
    assert_eq!((&spans[1]["name"], &spans[1]["cat"]), (&"<RENDER>".into(), &"ACQUIRE".into()));
    assert_eq!((&spans[1]["ts"], &spans[1]["dur"], &spans[1]["tid"]), (&12.0.into(), &1.5.into(), &1.into()));
    assert_eq!(spans[3]["tid"], 77);
    assert_eq!((of("i").len(), &of("C")[0]["args"]["value"]), (1, &(-1).into()));
}

#[test]
fn firefox_gets_a_marker_for_each_span_and_their_stacks_with_times() {
    let mut out = Vec::new();
    let left_out = with_log(&entries(), |trace, _, map| write_firefox_spans(trace, map, "log", &mut out)).unwrap();
    assert_eq!(left_out, 0);
    let json: Value = serde_json::from_slice(&out).unwrap();
    let thread = &json["threads"][0];
    assert_eq!(thread["name"], "thread 0xa0");
    assert_eq!(thread["markers"]["length"], 3);
    // Job, render, job, a;b, job, and idle at the end.
    assert_eq!(thread["samples"]["weight"], serde_json::json!([1, 1, 1, 1, 1, 0]));
    assert_eq!(thread["samples"]["stack"][5], Value::Null);
    assert_eq!(json["threads"][1]["tid"], "77");
}

#[test]
fn firefox_leaves_out_the_shortest_of_too_many() {
    // Half of these are twice as long as the others.
    let entries: Vec<_> = (0..2000_u64)
        .map(|index| Entry { timestamp: index * 4000, duration: 1000 + index % 2 * 1500, ..ENTRY })
        .collect();
    let mut out = Vec::new();
    let left_out = with_log(&entries, |trace, _, map| write_at_most(1500, trace, map, "log", &mut out)).unwrap();
    assert_eq!(left_out, entries.len() as u64 / 2);
    let json: Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(json["threads"][0]["markers"]["length"], entries.len() / 2);
    // The time of those that are shown is all there.
    let weights = json["threads"][0]["samples"]["weight"].as_array().unwrap();
    let total: u64 = weights.iter().filter_map(Value::as_u64).sum();
    let expected = entries.len() as u64 / 2 * 5 / 2;
    assert!(total.abs_diff(expected) <= entries.len() as u64 / 4, "{total} of {expected} us");
}

#[test]
fn a_log_without_spans_is_a_timeline_still() {
    for entries in [&[][..], &[Entry { type_id: 2, ..ENTRY }]] {
        with_log(entries, |trace, log, map| {
            write_chrome(trace, log, map, "", std::io::sink()).unwrap();
            write_firefox_spans(trace, map, "", std::io::sink()).unwrap();
            assert_eq!(span_profile(trace, map, "").unwrap().total(), 0);
        });
    }
}

fn saved() -> Profile {
    let frames = |names: &[&str]| names.iter().map(|name| native(name, "/bin/x", 0)).collect::<Vec<_>>();
    let mut jitted = frames(&["main", "hot"]);
    jitted[1].kind = FrameKind::Jit;
    jitted[1].tier = Some(Tier::Optimized);
    profile(&[
        TestSample { time_ns: 10_000_000, task: task(4242, "main"), frames: frames(&["main", "f"]), count: 3 },
        TestSample { time_ns: 30_000_000, task: task(4243, "worker"), frames: jitted, count: 2 },
        TestSample { time_ns: 30_000_000, task: task(4243, "worker"), frames: vec![], count: 1 },
    ])
}

#[test]
fn a_saved_recording_comes_back_with_times_threads_and_names() {
    let before = saved();
    let json = bytes(&before, Format::Firefox, &OutputOptions::default());
    let after = read_saved(&json[..]).unwrap();
    let folded = |profile| {
        string(
            profile,
            Format::Folded,
            &OutputOptions { per_thread: true, per_process: true, ..OutputOptions::default() },
        )
    };
    assert_eq!(folded(&after), folded(&before));
    let times = |profile: &Profile| profile.rows().iter().map(|row| (row.time, row.count)).collect::<Vec<_>>();
    assert_eq!(times(&after), times(&before));
    assert_eq!((after.meta().start, after.meta().frequency_hz), (before.meta().start, before.meta().frequency_hz));
}

#[test]
fn a_saved_recording_cut_or_changed_anywhere_is_an_error_or_a_profile() {
    // Of one thread: all that it has, each other one has as well.
    let mut hot = native("hot", "/bin/x", 0);
    (hot.kind, hot.tier) = (FrameKind::Jit, Some(Tier::Optimized));
    let stack = vec![native("main", "/bin/x", 0), hot];
    let profile = profile(&[
        TestSample { time_ns: 10_000_000, task: task(4242, "main"), frames: stack, count: 3 },
        TestSample { time_ns: 30_000_000, task: task(4242, "main"), frames: vec![], count: 1 },
    ]);
    let json = bytes(&profile, Format::Firefox, &OutputOptions::default());
    assert_eq!(read_saved(&json[..]).unwrap().total(), 4);
    for length in 0..json.len() {
        assert!(read_saved(&json[..length]).is_err());
    }
    for at in 0..json.len() {
        let mut changed = json.clone();
        // Another number or another word; where neither is, another end of one.
        changed[at] = if json[at].is_ascii_alphanumeric() || b"-.".contains(&json[at]) { b'9' } else { b'"' };
        if let Ok(profile) = read_saved(&changed[..]) {
            assert!(profile.rows().len() <= 2);
        }
    }
}

#[test]
fn a_profile_without_its_clock_is_refused_with_the_reason() {
    let json = string(&saved(), Format::Firefox, &OutputOptions::default());
    let error = read_saved(json.replace("startNs", "other").as_bytes()).unwrap_err();
    assert!(error.to_string().contains("CLOCK_MONOTONIC"), "{error}");
    let other = with_log(&entries(), |trace, _, map| {
        let mut out = Vec::new();
        write_firefox_spans(trace, map, "log", &mut out)?;
        Ok::<_, OutputError>(out)
    });
    assert!(matches!(read_saved(&other.unwrap()[..]), Err(SavedError::NoClock)));
    assert!(matches!(read_saved(&b"{}"[..]), Err(SavedError::Json(_))));
}

#[test]
fn an_error_of_the_log_is_one_of_the_output() {
    let error = OutputError::from(PlogError::Io { action: "read the log", source: std::io::Error::other("gone") });
    assert_eq!(error.to_string(), "cannot read the log: gone");
}
