use std::borrow::Cow;
use std::fs;
use std::io::{Read, Write};
use std::num::NonZeroU32;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use jitprof_common::limits::COMM_LEN;
use jitprof_common::units::{MonoNs, Pid, Tid};
use tempfile::TempDir;

use super::*;
use crate::engine::border::{Answer, AnswerBody, Counters, Order, Sample};
use crate::engine::{CallGraph, Engine, InterpreterFrames, Output, Who};

const SECOND: u64 = 1_000_000_000;
const START: MonoNs = MonoNs(SECOND);
/// Samples of the run that is captured here.
const SAMPLES: u64 = 6;
const START_OF_FILE: &[u8] = b"jitprof capture 1\n";

pub(super) fn options() -> EngineOptions {
    EngineOptions {
        who: Who::Chosen,
        inherit: true,
        frequency_hz: NonZeroU32::new(99).unwrap(),
        call_graph: CallGraph::FramePointers,
        tables: None,
        peek: false,
        read_runtime: false,
        interpreter: InterpreterFrames::default(),
        verify_names: false,
        labels_host: None,
        title: "a test".to_owned(),
        walks_lists: false,
        bucket_ns: u64::MAX,
        own: None,
        code_mask: u64::MAX,
    }
}

fn sample(number: u64) -> Sample<'static> {
    Sample {
        time: MonoNs(START.0 + number * 1_000_000),
        pid: Pid(7),
        tid: Tid(7),
        comm: [b'x'; COMM_LEN],
        stop: 0,
        kernel: Cow::Borrowed(&[]),
        user: Cow::Owned((0..=number).map(|frame| 0x1000 + frame * 16).collect()),
        snapshot: None,
        taken: None,
        listed: None,
    }
}

/// A run of a process that cannot be looked at, and its engine.
struct Run {
    engine: Engine,
    capture: CaptureWriter,
    finished: Option<u64>,
    /// Whether anybody answers.
    is_answered: bool,
}

impl Run {
    fn new(mut capture: CaptureWriter) -> Self {
        capture.begin(&options(), START);
        Self { engine: Engine::new(options(), None, START), capture, finished: None, is_answered: true }
    }

    fn feed(&mut self, input: Input<'_>) {
        self.capture.hand_in(&mut self.engine, input);
    }

    fn turn(&mut self, now: MonoNs) {
        self.feed(Input::Turn(now));
        while let Some(output) = self.engine.poll_output() {
            self.capture.look_at(&output);
            match output {
                Output::Request(request, _) if self.is_answered => {
                    self.feed(Input::Answer(Answer { request, begun: now, done: now, body: AnswerBody::Stalled }));
                }
                Output::WantCounters => {
                    self.feed(Input::Counters(Counters { taken: SAMPLES, ..Counters::default() }));
                }
                Output::Finished(recorded) => self.finished = Some(recorded.profile.total()),
                _ => {}
            }
        }
    }

    fn sample(&mut self, samples: u64) {
        self.feed(Input::Order(Order::Follow { pids: vec![Pid(7)], awaited: false }));
        self.feed(Input::Order(Order::Begin { at: START, wall_ns: 0, cycles: false }));
        for number in 0..samples {
            self.feed(Input::Sample(sample(number)));
            self.turn(MonoNs(START.0 + number * 1_000_000));
        }
    }

    fn finish(mut self) -> CaptureWriter {
        let limit = Duration::from_secs(1);
        self.feed(Input::Order(Order::Finish { read_limit: limit, names_limit: limit, duration: limit }));
        for second in 2..5 {
            self.turn(MonoNs(second * SECOND));
        }
        assert_eq!(self.finished, Some(SAMPLES));
        self.capture
    }
}

/// The bytes of a whole capture.
fn captured() -> Vec<u8> {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a.capture");
    let mut run = Run::new(CaptureWriter::create(&path).unwrap());
    run.sample(SAMPLES);
    run.finish().finish().unwrap();
    fs::read(path).unwrap()
}

/// What is compressed in a capture.
fn plain(capture: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    zstd::Decoder::new(&capture[START_OF_FILE.len()..]).unwrap().read_to_end(&mut plain).unwrap();
    plain
}

fn compressed(plain: &[u8]) -> Vec<u8> {
    let mut stream = zstd::Encoder::new(START_OF_FILE.to_vec(), 1).unwrap();
    stream.write_all(plain).unwrap();
    stream.finish().unwrap()
}

fn replayed(capture: &[u8]) -> Result<Replayed, CaptureError> {
    replay(capture, None, |_| {})
}

fn error_of(capture: &[u8]) -> String {
    replayed(capture).expect_err("a capture that cannot be replayed").to_string()
}

#[test]
fn a_whole_capture_gives_what_the_run_gave_and_is_whole() {
    let replayed = replayed(&captured()).unwrap();
    assert_eq!(replayed.recorded.profile.total(), SAMPLES);
    assert!(!replayed.is_truncated);
    assert_eq!(replayed.strayed, Strayed { requests: 0, rows: 0 });
    assert_eq!(replayed.header.version, env!("CARGO_PKG_VERSION"));
}

#[test]
fn what_nobody_had_answered_at_the_end_is_no_request_that_was_not_captured() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a.capture");
    let mut run = Run::new(CaptureWriter::create(&path).unwrap());
    run.is_answered = false;
    run.sample(SAMPLES);
    run.finish().finish().unwrap();
    let capture = fs::read(&path).unwrap();
    let (_, mut reader) = CaptureReader::new(&capture[..]).unwrap();
    while reader.next_entry().unwrap().is_some() {}
    assert!(!reader.unanswered().is_empty(), "the process was asked for, and the run has ended without");
    assert_eq!(replayed(&capture).unwrap().strayed, Strayed { requests: 0, rows: 0 });
}

#[test]
fn the_children_of_one_process_make_no_recording_of_several() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a.capture");
    for (second, several) in [(false, false), (true, true)] {
        let mut run = Run::new(CaptureWriter::create(&path).unwrap());
        run.sample(SAMPLES);
        run.feed(Input::Order(Order::Follow { pids: vec![Pid(8), Pid(9)], awaited: second }));
        run.finish().finish().unwrap();
        assert_eq!(replayed(&fs::read(&path).unwrap()).unwrap().is_of_several, several);
    }
}

#[test]
fn a_capture_cut_anywhere_replays_up_to_the_cut_and_says_so() {
    let capture = captured();
    let mut most = 0;
    for length in 0..capture.len() {
        match replayed(&capture[..length]) {
            Ok(replayed) => {
                assert!(replayed.is_truncated, "cut at {length}");
                most = most.max(replayed.recorded.profile.total());
            }
            Err(CaptureError::NotACapture) => assert!(length < START_OF_FILE.len(), "cut at {length}"),
            Err(CaptureError::Empty) => {}
            Err(error) => panic!("cut at {length}: {error}"),
        }
    }
    assert_eq!(most, SAMPLES, "nothing but the last bytes is missing");
}

#[test]
fn a_stream_cut_anywhere_has_every_whole_record_and_replays_more_the_longer_it_is() {
    let plain = plain(&captured());
    let mut last = 0;
    for length in (0..plain.len()).step_by(29) {
        let Ok(replayed) = replayed(&compressed(&plain[..length])) else { continue };
        assert!(replayed.is_truncated, "cut at {length}");
        assert!(replayed.inputs >= last, "cut at {length}");
        assert_eq!(replayed.recorded.account.samples.delivered, replayed.recorded.profile.total());
        last = replayed.inputs;
    }
    assert!(last > 2 * SAMPLES);
}

#[test]
fn damage_is_an_error_or_a_shorter_run_and_crashes_nothing() {
    let capture = captured();
    let whole = replayed(&capture).unwrap();
    for at in START_OF_FILE.len()..capture.len() {
        let mut damaged = capture.clone();
        damaged[at] ^= 0x40;
        // The stream's checksum finds what its decoder does not. A few bits of its head change nothing.
        if let Ok(replayed) = replayed(&damaged) {
            assert!(replayed.is_truncated || replayed.inputs == whole.inputs, "byte {at}");
            assert!(replayed.is_truncated || replayed.header == whole.header, "byte {at}");
        }
    }
    let plain = plain(&capture);
    for at in (0..plain.len()).step_by(2) {
        let mut damaged = plain.clone();
        damaged[at] ^= 1 << (at / 2 % 8);
        // Another number in its place is no error; what counts is that it ends.
        if let Err(error) = replayed(&compressed(&damaged)) {
            assert!(!error.to_string().contains('\n'), "{error}");
        }
    }
}

#[test]
fn a_record_that_claims_to_be_huge_costs_no_memory() {
    let mut huge = plain(&captured());
    let behind_the_header = 4 + u32::from_le_bytes(*huge.first_chunk().unwrap()) as usize;
    huge.truncate(behind_the_header);
    let claims = |bytes: usize| u32::try_from(bytes).unwrap().to_le_bytes();
    let over = [&huge[..], &claims(MAX_RECORD_BYTES + 1)].concat();
    assert!(error_of(&compressed(&over)).contains("record 1: 67108865 bytes"));
    // As long as is allowed, and not there: the run ends before it.
    let missing = [&huge[..], &claims(MAX_RECORD_BYTES)].concat();
    assert!(replayed(&compressed(&missing)).unwrap().is_truncated);
    // A list of 4,294,967,295 elements.
    let list = [&huge[..], &claims(5), &[0xdd, 0xff, 0xff, 0xff, 0xff]].concat();
    assert!(error_of(&compressed(&list)).contains("record 1"));
}

#[test]
fn what_cannot_be_replayed_is_refused_with_what_to_do() {
    let refused = error_of(b"main;f 1\n");
    assert!(refused.contains("it is no capture") && refused.contains("--capture"), "{refused}");
    let capture = captured();
    let refused = error_of(&[b"jitprof capture 23\n", &capture[START_OF_FILE.len()..]].concat());
    assert!(refused.contains("format 23") && refused.contains("replay it with the version that made it"), "{refused}");
    assert!(error_of(START_OF_FILE).contains("ends before it has begun"));

    let with_header = |header: &[u8]| {
        let length = u32::try_from(header.len()).unwrap().to_le_bytes();
        compressed(&[&length[..], header].concat())
    };
    let header = Header { version: "9.8.7".to_owned(), machine: "VAX".to_owned(), options: options(), now: MonoNs(0) };
    let refused = error_of(&with_header(&rmp_serde::to_vec_named(&header).unwrap()));
    assert!(refused.contains("made on VAX") && refused.contains("replay it on such a machine"), "{refused}");
    // What a later version has made of the header, as long as it says its version.
    let other = [("version", "9.8.7"), ("machine", machine_name()), ("options", "other")];
    let other: std::collections::BTreeMap<_, _> = other.into();
    let refused = error_of(&with_header(&rmp_serde::to_vec_named(&other).unwrap()));
    assert!(refused.contains("cannot read what 9.8.7 has written: record 0"), "{refused}");
}

#[test]
fn a_capture_ends_at_its_bound_and_says_so() {
    const BOUND: u64 = 300_000;
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a.capture");
    let mut run = Run::new(CaptureWriter::bounded(&path, BOUND).unwrap());
    run.sample(SAMPLES);
    // Nothing that can be compressed by much.
    let mut noise = 1_u64;
    for _ in 0..50 {
        let text = (0..20_000).map(|_| {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            char::from((noise >> 57) as u8)
        });
        run.feed(Input::Remark(text.collect()));
    }
    let error = run.finish().finish().unwrap_err().to_string();
    assert!(error.contains("bound"), "{error}");
    let written = fs::metadata(&path).unwrap().len();
    // What the compressor holds back, and a record, may come on top.
    assert!((BOUND..BOUND + 500_000).contains(&written), "{written} bytes");
    let replayed = replayed(&fs::read(&path).unwrap()).unwrap();
    assert!(replayed.is_truncated);
    assert_eq!(replayed.recorded.profile.total(), SAMPLES, "what was written before the bound is all there");
}

#[test]
fn a_capture_that_has_ended_early_keeps_nothing() {
    let directory = TempDir::new().unwrap();
    let mut run = Run::new(CaptureWriter::bounded(&directory.path().join("a.capture"), 0).unwrap());
    run.sample(SAMPLES);
    assert!(run.capture.is_empty());
    let ended = run.finish();
    assert!(ended.is_empty());
    ended.finish().unwrap_err();
}

fn create(path: &Path) -> std::io::Result<()> {
    CaptureWriter::create(path)?.finish()
}

#[test]
fn a_capture_is_its_owners_alone_also_in_place_of_an_older_file() {
    let directory = TempDir::new().unwrap();
    let (path, other) = (directory.path().join("a.capture"), directory.path().join("other"));
    let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    create(&path).unwrap();
    assert_eq!(mode(), 0o600);
    // Everybody may read the older file, and somebody has it under another name.
    fs::write(&path, "older").unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    fs::hard_link(&path, &other).unwrap();
    create(&path).unwrap();
    assert_eq!(mode(), 0o600);
    assert_eq!(fs::read_to_string(&other).unwrap(), "older");
}

#[test]
fn links_and_what_is_no_file_are_left_alone() {
    let directory = TempDir::new().unwrap();
    let [target, link, dangling] = ["target", "link", "dangling"].map(|name| directory.path().join(name));
    fs::write(&target, "precious").unwrap();
    symlink(&target, &link).unwrap();
    symlink(directory.path().join("new"), &dangling).unwrap();
    for path in [&link, &dangling, directory.path(), Path::new("/dev/null")] {
        let error = create(path).unwrap_err().to_string();
        assert!(error.contains("no regular file"), "{}: {error}", path.display());
    }
    assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
    assert!(link.is_symlink() && dangling.is_symlink() && !directory.path().join("new").exists());
}
