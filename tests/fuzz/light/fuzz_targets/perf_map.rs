//! A perf map of any bytes that grows in any steps: what is read of it is what stands in its lines, however it was cut, and no
//! more of a line is kept than may be.
//!
//! The first byte says how many steps there are, the next ones where each ends. Good seeds are real maps with such a head.
#![no_main]

use jitprof_common::units::MonoNs;
use jitprof_jitdump::FileLook;
use jitprof_jitdump::code::{CodeEvent, CodeMap};
use jitprof_jitdump::perfmap::{PerfMapStream, TRAIL_BYTES, parse_line};
use libfuzzer_sys::fuzz_target;

/// What is kept of a line.
const MAX_LINE_BYTES: usize = 4 << 10;
const CHUNK_BYTES: usize = 256 << 10;
/// Little enough that functions have to go.
const MAP_BYTES: usize = 16 << 10;
/// What a map takes for one function, more than which it cannot be over its limit: a name of 4 KiB, badly decoded.
const ONE_FUNCTION: usize = 3 * MAX_LINE_BYTES + 4096;
const STEPS: u8 = 16;
/// The file is only read, not timed.
const NOW: MonoNs = MonoNs(7);

type Entry = (u64, u64, String);

fuzz_target!(|input: &[u8]| {
    let Some((control, rest)) = input.split_first() else {
        return;
    };
    let Some((ends, text)) = rest.split_at_checked(usize::from(control % STEPS)) else {
        return;
    };
    let mut ends: Vec<usize> = ends.iter().map(|end| text.len() * usize::from(*end) / 255).collect();
    ends.sort_unstable();
    ends.push(text.len());

    let all = expected(text);
    let mut stream = PerfMapStream::new();
    let (mut events, mut read) = (Vec::new(), 0);
    for (step, end) in ends.iter().enumerate() {
        let (written, before) = (&text[..*end], events.len());
        follow(&mut stream, written, &mut events);
        let whole = whole_lines(written).len();
        assert_eq!(entries(&events[before..]), expected(&text[read..whole]));
        read = whole;
        if step == usize::from(control / STEPS) {
            let state =
                |stream: &PerfMapStream| (stream.read_to().map(|(at, torn)| (at, torn.to_vec())), *stream.stats());
            let before = state(&stream);
            assert_eq!(entries(&stream.tentative(&text[*end..])), expected(&text[whole..whole_lines(text).len()]));
            assert_eq!(before, state(&stream));
        }
    }
    stream.finish(&mut events);
    let stats = *stream.stats();
    assert_eq!(entries(&events), all);
    assert_eq!((stats.bytes, stats.lines, stats.restarts), (text.len() as u64, events.len() as u64, 0));
    map(&events);

    // Written anew and shorter: read from its beginning, as if it had never been another.
    let Some(shorter) = text.len().checked_sub(1).map(|len| &text[text.len() - len..]) else {
        return;
    };
    let mut events = Vec::new();
    follow(&mut stream, shorter, &mut events);
    assert_eq!(stream.stats().restarts, 1);
    assert_eq!(entries(&events), expected(whole_lines(shorter)));
});

/// Reads a file as far as it goes.
fn follow(stream: &mut PerfMapStream, file: &[u8], events: &mut Vec<CodeEvent>) {
    loop {
        let next = stream.next_read();
        assert!(next.len <= CHUNK_BYTES + TRAIL_BYTES);
        let from = usize::try_from(next.offset).unwrap().min(file.len());
        let bytes = &file[from..file.len().min(from + next.len)];
        let look = FileLook { file_len: file.len() as u64, head: &[], offset: next.offset, bytes };
        let progress = stream.take(look, NOW, events);
        assert!(stream.read_to().is_none_or(|(_, torn)| torn.len() <= MAX_LINE_BYTES));
        if !progress.more {
            return;
        }
        assert!(progress.bytes > 0 || progress.restarted, "no standstill");
    }
}

fn whole_lines(text: &[u8]) -> &[u8] {
    &text[..text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1)]
}

/// What a reader that has it all at once finds.
fn expected(text: &[u8]) -> Vec<Entry> {
    let lines = text.split(|byte| *byte == b'\n').map(|line| &line[..line.len().min(MAX_LINE_BYTES)]);
    let entries = lines.filter_map(|line| parse_line(line).ok());
    entries.map(|line| (line.start.0, line.size, String::from_utf8_lossy(line.name).into_owned())).collect()
}

fn entries(events: &[CodeEvent]) -> Vec<Entry> {
    events.iter().map(entry).collect()
}

fn entry(event: &CodeEvent) -> Entry {
    match event {
        CodeEvent::Load(load) => (load.start.0, load.size, load.name.clone()),
        other => panic!("a perf map has no {other:?}"),
    }
}

/// What is listed is found where it lies, and what is kept is bounded.
fn map(events: &[CodeEvent]) {
    let mut map = CodeMap::with_limit(MAP_BYTES);
    for event in events {
        map.apply(event.clone());
        assert!(map.bytes() <= MAP_BYTES + ONE_FUNCTION, "{} bytes", map.bytes());
        let (start, size, _) = entry(event);
        for address in [start, start.wrapping_add(size.wrapping_sub(1)), start.wrapping_add(size)] {
            if let Some(hit) = map.lookup(jitprof_common::units::Avma(address), NOW) {
                let (at, len) = (hit.start().0, hit.size());
                assert!(address.checked_sub(at).is_some_and(|inside| inside < len));
            }
        }
    }
}
