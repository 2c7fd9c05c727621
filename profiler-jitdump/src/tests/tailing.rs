//! A file that grows, shrinks and is replaced.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};

use jitprof_common::units::MonoNs;
use tempfile::NamedTempFile;

use crate::code::{CodeEvent, CodeOrigin};
use crate::writer::{DumpWriter, LoadFields};
use crate::{DumpTail, ReaderOptions};

use super::{fixture, loads, read};

struct Growing {
    file: NamedTempFile,
    tail: DumpTail,
    events: Vec<CodeEvent>,
}

impl Growing {
    fn new(options: ReaderOptions) -> Self {
        let file = NamedTempFile::new().unwrap();
        let tail = DumpTail::new(File::open(file.path()).unwrap(), options);
        Self { file, tail, events: Vec::new() }
    }

    fn append(&mut self, bytes: &[u8]) -> u64 {
        self.file.as_file_mut().seek(SeekFrom::End(0)).unwrap();
        self.file.as_file_mut().write_all(bytes).unwrap();
        self.poll().bytes_read
    }

    fn poll(&mut self) -> crate::Progress {
        let events = &mut self.events;
        self.tail.poll(|| MonoNs(u64::MAX), &mut |event| events.push(event)).unwrap()
    }
}

fn function(code_addr: u64, name: &[u8]) -> LoadFields<'_> {
    LoadFields { code_addr, name, code: &[0x90; 64], code_index: 0 }
}

#[test]
fn a_growing_file_is_read_once() {
    let bytes = fixture("cpython3.13.0-burn");
    let mut growing = Growing::new(ReaderOptions::default());
    let read_bytes: u64 = bytes.chunks(4096).map(|block| growing.append(block)).sum();
    assert!(read_bytes <= bytes.len() as u64);
    assert_eq!(growing.events, read(&bytes).0);
    assert_eq!(growing.poll(), crate::Progress::default());
}

#[test]
fn an_empty_file_and_a_torn_header_are_waited_for() {
    let bytes = fixture("wasmtime50");
    let mut growing = Growing::new(ReaderOptions::default());
    assert_eq!(growing.poll().bytes_read, 0);
    growing.append(&bytes[..17]);
    assert_eq!(growing.events, []);
    growing.append(&bytes[17..]);
    assert_eq!(loads(&growing.events).len(), 7);
    assert_eq!(growing.tail.stream().stats().restarts, 0);
}

#[test]
fn a_record_that_is_not_waited_for_costs_no_memory_and_not_the_next_one() {
    let large = vec![0x90; 3 << 20];
    let mut dump = DumpWriter::new(1);
    dump.load(5, &function(0x1000, b"first"));
    dump.load(6, &LoadFields { code: &large, ..function(0x10_0000, b"large") });
    let behind_large = dump.len();
    dump.load(7, &function(0x2000, b"last"));
    let bytes = dump.into_bytes();
    let mut growing = Growing::new(ReaderOptions { keep_code: true, ..ReaderOptions::default() });
    growing.tail.give_up_torn();
    growing.append(&bytes[..behind_large / 2]);
    growing.tail.give_up_torn();
    let held = growing.tail.stream().held_bytes();
    assert!(held <= 1 << 20, "{held} bytes");
    // The rest comes, in parts, and is not read.
    for part in bytes[behind_large / 2..behind_large].chunks(100_000) {
        growing.append(part);
        growing.tail.give_up_torn();
    }
    growing.append(&bytes[behind_large..]);
    let names: Vec<&str> = loads(&growing.events).iter().map(|load| &*load.name).collect();
    assert_eq!(names, ["first", "last"]);
    let stats = growing.tail.stream().stats();
    assert_eq!((stats.skipped.given_up, stats.corrupt_bytes), (1, 0));
}

#[test]
fn a_poll_reads_no_more_than_its_budget() {
    let bytes = fixture("otp25-lines");
    let options = ReaderOptions { poll_budget: 10_000, ..ReaderOptions::default() };
    let mut growing = Growing::new(options);
    growing.file.as_file_mut().write_all(&bytes).unwrap();
    let mut polls = 1;
    loop {
        let progress = growing.poll();
        assert!(progress.bytes_read <= 10_000);
        if !progress.more {
            break;
        }
        polls += 1;
    }
    assert!(polls >= bytes.len() / 10_000, "{polls}");
    assert_eq!(growing.events, read(&bytes).0);
}

#[test]
fn truncation_and_rewriting_begin_anew() {
    let first = fixture("wasmtime50");
    let second = fixture("php-tracing");
    let mut growing = Growing::new(ReaderOptions::default());
    growing.append(&first);
    growing.file.as_file_mut().set_len(0).unwrap();
    assert!(growing.poll().restarted);
    growing.append(&second);
    assert_eq!(loads(&growing.events).len(), 7 + 48);

    // Longer than before, so only the header tells.
    growing.file.as_file_mut().set_len(0).unwrap();
    growing.file.as_file_mut().rewind().unwrap();
    let longer = fixture("cpython3.13.0-burn");
    growing.file.as_file_mut().write_all(&longer).unwrap();
    assert!(growing.poll().restarted);
    assert_eq!(loads(&growing.events).len(), 7 + 48 + 210);
    assert_eq!((growing.tail.stream().stats().restarts, growing.tail.stream().stats().functions), (2, 265));
}

#[test]
fn the_torn_tail_continues_tentatively_and_then_for_real() {
    let mut dump = DumpWriter::new(1);
    dump.load(5, &function(0x1000, b"written"));
    let torn_at = dump.len();
    dump.load(6, &function(0x2000, b"torn")).load(7, &function(0x3000, b"buffered"));
    let bytes = dump.into_bytes();
    // Torn in the prefix, in the name and in the code.
    for cut in [torn_at, torn_at + 7, torn_at + 58, torn_at + 70] {
        let mut growing = Growing::new(ReaderOptions::default());
        growing.append(&bytes[..cut]);
        let torn = growing.tail.stream().torn_tail();
        let torn_len = torn.bytes.len();
        assert_eq!(growing.tail.stream().file_len() + torn.owed, torn.start.0 + torn_len as u64);
        let (peeked, parsed) = growing.tail.stream().tentative(&bytes[cut..]);
        assert_eq!(parsed, torn_len + bytes.len() - cut, "cut at {cut}");
        let expected = if cut == torn_at + 70 { 1 } else { 2 };
        assert_eq!(loads(&peeked).len(), expected, "cut at {cut}");
        assert!(loads(&peeked).iter().all(|load| load.origin == CodeOrigin::Peeked));
        let (cut_short, _) = growing.tail.stream().tentative(&bytes[cut..bytes.len() - 1]);
        assert_eq!(cut_short.len(), expected - 1, "an incomplete record");
        growing.append(&bytes[cut..]);
        assert_eq!(growing.events, read(&bytes).0, "cut at {cut}");
    }
}

#[test]
fn lines_in_the_file_are_joined_to_a_peeked_function() {
    let bytes = fixture("llvm14-nofp-g");
    let debug_end = 40 + 632 + 16;
    let mut growing = Growing::new(ReaderOptions::default());
    growing.append(&bytes[..debug_end]);
    let (peeked, _) = growing.tail.stream().tentative(&bytes[debug_end..780]);
    assert_eq!(loads(&peeked)[0].name, "leaf_hot");
    assert!(!loads(&peeked)[0].lines.is_empty());
}

#[test]
fn code_that_is_not_wanted_is_not_read() {
    let code = vec![0x90; 4 << 20];
    let mut dump = DumpWriter::new(1);
    dump.load(5, &LoadFields { code_addr: 0x1000_0000, name: b"large", code: &code, code_index: 0 })
        .load(6, &function(0x2000, b"small"));
    let mut growing = Growing::new(ReaderOptions::default());
    let read_bytes = growing.append(&dump.into_bytes());
    assert_eq!(loads(&growing.events).len(), 2);
    assert!(read_bytes < 600 << 10, "{read_bytes}");
}

#[test]
fn a_large_hole_is_passed_in_turns() {
    let mut growing = Growing::new(ReaderOptions { poll_budget: 1 << 20, ..ReaderOptions::default() });
    growing.append(&fixture("wasmtime50"));
    growing.file.as_file_mut().set_len(8 << 20).unwrap();
    let mut polls = 0;
    while growing.poll().more {
        polls += 1;
        assert!(polls < 20);
    }
    let mut dump = DumpWriter::new(0x7645);
    dump.load(1_182_914_400_000, &function(0x9000, b"behind"));
    growing.append(&dump.into_bytes()[40..]);
    assert_eq!(loads(&growing.events).last().unwrap().name, "behind");
}
