//! The line parser and the tail, on real maps and on damaged ones.

use std::io::{Read, Write};
use std::path::PathBuf;

use std::fs::File;

use super::*;
use crate::FileBytes;
use crate::perfmap::{LineError, MapLine};
use jitprof_common::units::Avma;

fn fixture(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/perfmap").join(name);
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    if !name.ends_with(".gz") {
        return bytes;
    }
    let mut text = Vec::new();
    flate2::read::GzDecoder::new(&*bytes).read_to_end(&mut text).expect("gzip");
    text
}

/// A map that is being written, and its reader.
struct Grown {
    writer: File,
    file: File,
    tail: PerfMapStream,
    out: Vec<CodeEvent>,
    path: tempfile::TempPath,
}

impl Grown {
    fn new() -> Self {
        let (writer, path) = tempfile::NamedTempFile::new().expect("temporary file").into_parts();
        let file = File::open(&path).expect("open");
        Self { writer, file, tail: PerfMapStream::new(), out: Vec::new(), path }
    }

    fn holding(bytes: &[u8]) -> Self {
        let mut grown = Self::new();
        grown.write(bytes);
        grown
    }

    fn write(&mut self, bytes: &[u8]) {
        self.writer.write_all(bytes).expect("write");
    }

    /// Reads to the end of the file.
    fn poll(&mut self, observed: u64) -> Progress {
        let mut whole = Progress::default();
        loop {
            let look = FileBytes::read(&self.file, self.tail.next_read()).expect("read");
            let progress = self.tail.take(look.as_look(), MonoNs(observed), &mut self.out);
            whole.bytes += progress.bytes;
            whole.events += progress.events;
            whole.restarted |= progress.restarted;
            if !progress.more {
                return whole;
            }
        }
    }

    fn loads(&self) -> Vec<(u64, u64, &str)> {
        self.out.iter().map(entry).collect()
    }
}

fn entry(event: &CodeEvent) -> (u64, u64, &str) {
    match event {
        CodeEvent::Load(load) => (load.start.0, load.size, &load.name),
        other => panic!("a perf map says {other:?}"),
    }
}

fn read_whole(bytes: &[u8]) -> (Vec<CodeEvent>, PerfMapStats) {
    let mut grown = Grown::holding(bytes);
    while grown.poll(1).more {}
    grown.tail.finish(&mut grown.out);
    (grown.out, grown.tail.stats)
}

#[test]
fn every_dialect_reads_as_the_same_entry() {
    let cases: &[(&str, u64, u64, &str)] = &[
        ("7f72208c8000 b py::leaf_hot:/srv/app/burn.py", 0x7f72_208c_8000, 0xb, "py::leaf_hot:/srv/app/burn.py"),
        ("0x7f998e364000 68 $global::apply_fun_shared", 0x7f99_8e36_4000, 0x68, "$global::apply_fun_shared"),
        ("0x7f89442bb0c0 0x35 middle", 0x7f89_442b_b0c0, 0x35, "middle"),
        ("0X7F89442BB0C0 0X35 middle", 0x7f89_442b_b0c0, 0x35, "middle"),
        (
            "0x00007f2f64c5b400 0000000000000138 void java.lang.String.<init>(char[], int)",
            0x7f2f_64c5_b400,
            0x138,
            "void java.lang.String.<init>(char[], int)",
        ),
        (
            "00007F53A1B20000 1A4 int32 [app] Program::Fib(int32)[OptimizedTier1]",
            0x7f53_a1b2_0000,
            0x1a4,
            "int32 [app] Program::Fib(int32)[OptimizedTier1]",
        ),
        ("18c4000 300 Builtin:DeoptimizationEntry_Eager\r", 0x18c_4000, 0x300, "Builtin:DeoptimizationEntry_Eager"),
        ("10\t20\ttabs between", 0x10, 0x20, "tabs between"),
        ("10 20  a name with a blank in front", 0x10, 0x20, " a name with a blank in front"),
        ("10 20 ", 0x10, 0x20, ""),
        ("10 0 empty", 0x10, 0, "empty"),
        ("10 20", 0x10, 0x20, ""),
    ];
    for &(line, start, size, name) in cases {
        let expected = MapLine { start: Avma(start), size, name: name.as_bytes() };
        assert_eq!(parse_line(line.as_bytes()), Ok(expected), "{line:?}");
    }
}

#[test]
fn what_is_no_entry_says_which_field_is_wrong() {
    for line in ["", " ", "hello world", "0x 10 f", "-10 20 f", "+10 20 f", "12345678901234567 20 f", "\u{1F600} 1 f"] {
        assert_eq!(parse_line(line.as_bytes()), Err(LineError::Address), "{line:?}");
    }
    for line in ["10", "10 ", "10 name", "10 0x name", "10 10000000000000000 f"] {
        assert_eq!(parse_line(line.as_bytes()), Err(LineError::Size), "{line:?}");
    }
}

#[test]
fn real_maps_are_read_line_for_line() {
    let cases = [
        ("node20-perf.map.gz", 2796, (0x18c_4000, 0x300, "Builtin:DeoptimizationEntry_Eager")),
        ("cpython3.13.0-perf.map.gz", 210, (0x7f72_208c_8000, 0xb, "py::_find_and_load:<frozen importlib._bootstrap>")),
        ("php8.2-tracing.map", 48, (0x55d7_dce0_0000, 0x8b, "JIT$$interrupt_handler")),
        ("wasmtime50.map", 7, (0x7f89_442b_b000, 0x41, "spin")),
        ("otp25-head.map.gz", 4000, (0x7f99_8e36_4000, 0x68, "$global::apply_fun_shared")),
    ];
    for (name, count, first) in cases {
        let text = fixture(name);
        let (events, stats) = read_whole(&text);
        assert_eq!(events.len(), count, "{name}");
        assert_eq!(entry(&events[0]), first, "{name}");
        assert_eq!((stats.lines, stats.bad_lines, stats.bytes), (count as u64, 0, text.len() as u64), "{name}");
    }
}

#[test]
fn a_map_truncated_anywhere_gives_every_line_before_the_cut() {
    let text = fixture("php8.2-tracing.map");
    let (whole, _) = read_whole(&text);
    for cut in 0..text.len() {
        let mut grown = Grown::holding(&text[..cut]);
        grown.poll(1);
        let complete = text[..cut].iter().filter(|byte| **byte == b'\n').count();
        assert_eq!(grown.out, whole[..complete], "cut at {cut}");
        grown.write(&text[cut..]);
        grown.poll(2);
        let names = |events: &[CodeEvent]| events.iter().map(|event| entry(event).2.to_owned()).collect::<Vec<_>>();
        assert_eq!(names(&grown.out), names(&whole), "cut at {cut}");
        assert_eq!(grown.tail.stats.bad_lines, 0);
    }
}

#[test]
fn a_flipped_byte_costs_at_most_two_lines() {
    let mut text = fixture("php8.2-tracing.map");
    let (whole, _) = read_whole(&text);
    for at in 0..text.len() {
        for flip in [0x01, 0x80, 0x2a] {
            text[at] ^= flip;
            let (events, stats) = read_whole(&text);
            let kept = events.iter().filter(|event| whole.contains(event)).count();
            assert!(kept + 2 >= whole.len(), "byte {at} flipped by {flip:#x}: {kept} of {} lines", whole.len());
            // A byte turned into a newline adds a line; a newline turned into something else joins two.
            assert!(stats.lines + stats.bad_lines + 1 >= whole.len() as u64);
            text[at] ^= flip;
        }
    }
}

#[test]
fn a_bad_line_costs_that_line() {
    let (events, stats) = read_whole(b"10 4 a\n20 4 RegExp:x\ny/g\n\n30 4 b\ngarbage\n40 4 c");
    let names: Vec<&str> = events.iter().map(|event| entry(event).2).collect();
    assert_eq!(names, ["a", "RegExp:x", "b", "c"]);
    assert_eq!((stats.lines, stats.bad_lines), (4, 2));
}

#[test]
fn a_torn_last_line_is_kept_until_it_ends() {
    let mut grown = Grown::holding(b"10 4 first\n20 4 sec");
    grown.poll(100);
    assert_eq!(grown.loads(), [(0x10, 4, "first")]);
    grown.poll(200);
    grown.write(b"ond\n30 4 third");
    grown.poll(300);
    assert_eq!(grown.loads(), [(0x10, 4, "first"), (0x20, 4, "second")]);
    let mut out = std::mem::take(&mut grown.out);
    grown.tail.finish(&mut out);
    assert_eq!(entry(&out[2]), (0x30, 4, "third"));
}

#[test]
fn a_line_carries_the_last_time_at_which_it_was_not_there() {
    let mut grown = Grown::holding(b"10 4 a\n");
    grown.poll(100);
    grown.poll(200);
    grown.write(b"20 4 b\n");
    grown.poll(300);
    grown.write(b"30 4 c\n");
    grown.poll(400);
    let times: Vec<u64> =
        grown.out.iter().map(|event| if let CodeEvent::Load(load) = event { load.time.0 } else { 0 }).collect();
    assert_eq!(times, [0, 200, 300]);
}

#[test]
fn growth_is_read_once() {
    let mut grown = Grown::new();
    for round in 0..50_u64 {
        let text = format!("{:x} 10 function_{round}\n", 0x1000 + round * 16);
        grown.write(text.as_bytes());
        assert_eq!(grown.poll(round).bytes, text.len() as u64);
    }
    assert_eq!((grown.out.len(), grown.poll(50)), (50, Progress::default()));
}

#[test]
fn one_look_reads_a_bounded_amount_and_says_that_there_is_more() {
    let line = b"7f0000001000 40 some_function_of_a_generated_program\n";
    let count = 3 * CHUNK_BYTES / line.len();
    let mut grown = Grown::holding(&line.repeat(count));
    let look = FileBytes::read(&grown.file, grown.tail.next_read()).expect("read");
    let first = grown.tail.take(look.as_look(), MonoNs(1), &mut grown.out);
    assert!(first.more && first.bytes <= CHUNK_BYTES as u64, "{first:?}");
    // The same bytes again are not what comes next.
    let again = grown.tail.take(look.as_look(), MonoNs(1), &mut grown.out);
    assert_eq!((again.bytes, again.more), (0, true));
    grown.poll(2);
    assert_eq!(grown.out.len(), count);
}

#[test]
fn a_line_without_end_is_cut_and_the_next_one_is_read() {
    let mut text = b"10 4 ".to_vec();
    text.extend(std::iter::repeat_n(b'x', 3 * CHUNK_BYTES));
    text.extend(b"\n20 4 next\n");
    let (events, stats) = read_whole(&text);
    assert_eq!(entry(&events[0]).2.len(), MAX_LINE_BYTES - 5);
    assert_eq!(entry(&events[1]), (0x20, 4, "next"));
    assert_eq!((stats.long_lines, stats.lines), (1, 2));
    let mut grown = Grown::holding(&text[..2 * CHUNK_BYTES]);
    grown.poll(1);
    assert!(grown.tail.torn.capacity() <= 2 * MAX_LINE_BYTES);
}

#[test]
fn what_is_no_perf_map_is_not_read_to_its_end() {
    let mut grown = Grown::holding(b"10 4 a\n");
    grown.writer.set_len(1 << 40).expect("a sparse file");
    let until_hopeless = |grown: &mut Grown| {
        (0..1000).find(|_| {
            let look = FileBytes::read(&grown.file, grown.tail.next_read()).expect("read");
            let progress = grown.tail.take(look.as_look(), MonoNs(1), &mut grown.out);
            assert_eq!(progress.more, !progress.is_hopeless);
            progress.is_hopeless
        })
    };
    assert!(until_hopeless(&mut grown).is_some_and(|reads| reads < 20));
    assert_eq!(grown.loads(), [(0x10, 4, "a")]);
    let bytes = grown.tail.stats().bytes;
    assert!(until_hopeless(&mut grown).is_some() && grown.tail.stats().bytes == bytes, "it stays so");
    let mut text = b"10 4 a\n".to_vec();
    text.extend(b"no entry\n".repeat(2 * MAX_BAD_LINES as usize));
    assert!(until_hopeless(&mut Grown::holding(&text)).is_some());
    text.extend(b"10 4 a\n".repeat(2 * MAX_BAD_LINES as usize));
    let (events, stats) = read_whole(&text[..64 << 10]);
    assert_eq!((events.len(), stats.bad_lines > 1000), (1, true), "some lines may be bad");
}

#[test]
fn a_truncated_file_is_read_again_from_its_beginning() {
    let mut grown = Grown::holding(b"10 4 a\n20 4 b\n30 4 tor");
    grown.poll(1);
    std::fs::write(&grown.path, b"40 4 c\n").expect("rewrite");
    assert!(grown.poll(2).restarted);
    assert_eq!(grown.loads(), [(0x10, 4, "a"), (0x20, 4, "b"), (0x40, 4, "c")]);
}

#[test]
fn a_file_rewritten_to_more_than_before_is_read_again_from_its_beginning() {
    let mut grown = Grown::holding(b"10 4 a\n20 4 b\n");
    grown.poll(1);
    std::fs::write(&grown.path, b"40 4 c\n50 4 d\n60 4 e\n").expect("rewrite");
    assert!(grown.poll(2).restarted);
    assert_eq!(grown.loads()[2..], [(0x40, 4, "c"), (0x50, 4, "d"), (0x60, 4, "e")]);
    assert_eq!(grown.tail.stats.restarts, 1);
}

#[test]
fn a_replaced_file_is_read_from_its_beginning() {
    let mut grown = Grown::holding(b"10 4 a\n");
    grown.poll(1);
    assert_eq!(grown.poll(2).bytes, 0);
    let other = Grown::holding(b"20 4 b\n");
    grown.tail.restart();
    grown.file = File::open(&other.path).expect("open");
    grown.poll(3);
    assert_eq!(grown.loads(), [(0x10, 4, "a"), (0x20, 4, "b")]);
}

#[test]
fn names_that_are_no_utf8_are_kept_as_far_as_they_go() {
    let (events, _) = read_whole(b"10 4 a\xff\xfeb\n");
    assert_eq!(entry(&events[0]).2, "a\u{fffd}\u{fffd}b");
}
