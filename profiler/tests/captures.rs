//! Captures of real processes, replayed: what comes out is byte for byte what was blessed, on any machine of this kind.
//!
//! `tests/live/runs/captures.rs` makes the captures. `JITPROF_BLESS=1` writes what is compared with.

#![cfg(target_arch = "x86_64")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use jitprof::capture::{CaptureReader, Replayed, Strayed, replay};
use jitprof::engine::Input;
use jitprof::engine::border::Order;
use jitprof::output::{Format, OutputOptions, write};
use jitprof::process::event::{TaskChange, TaskEvent};
use jitprof::profile::Profile;
use jitprof::symbol::FrameKind;
use serde_json::Value;

/// Bytes of a capture that is kept.
const MAX_BYTES: usize = 100_000;
/// What a path begins with that says where a capture was made.
const PRIVATE: [&str; 6] = ["/root/", "/home/", "/work/", "/build/", "/Users/", "/sys/fs/"];

/// A capture, and what came of it.
struct Golden {
    bytes: Vec<u8>,
    replayed: Replayed,
    folded: String,
    account: Value,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures")
}

/// Replays a capture, and compares what comes out with what was blessed.
fn golden(name: &str) -> Golden {
    let bytes = fs::read(folder().join(format!("{name}.capture"))).unwrap();
    assert!(bytes.len() <= MAX_BYTES, "{} bytes are too many for the repository", bytes.len());
    let replayed = replay(&bytes[..], None, |_| {}).unwrap();
    assert_eq!(replayed.strayed, Strayed { requests: 0, rows: 0 }, "it has an answer to everything");
    assert!(!replayed.is_truncated, "it was written to its end");
    let folded = folded(&whole(&replayed));
    let account = &replayed.recorded.account;
    let text = serde_json::to_string_pretty(account).unwrap() + "\n";
    assert_eq!(expanded(&shortened(&folded)), folded);
    assert_blessed(&format!("{name}.folded"), &folded, shortened, expanded);
    assert_blessed(&format!("{name}.account.json"), &text, str::to_owned, str::to_owned);
    let samples = &account.samples;
    assert_eq!(samples.taken, samples.delivered + samples.lost_ring_full + samples.lost_malformed);
    assert_eq!(count(&folded, |_| true), samples.delivered, "every delivered sample is in the profile");
    let account = serde_json::from_str(&text).unwrap();
    Golden { bytes, replayed, folded, account }
}

/// Windows of a continuous recording as one profile.
fn whole(replayed: &Replayed) -> Profile {
    let recorded = &replayed.recorded.profile;
    let mut whole = Profile::new(recorded.meta().clone(), u64::MAX);
    for profile in replayed.windows.iter().map(|window| &window.profile).chain([recorded]) {
        whole.absorb(profile, |row| Some(row.time));
    }
    whole
}

fn folded(profile: &Profile) -> String {
    let mut folded = Vec::new();
    write(profile, Format::Folded, &OutputOptions::default(), &mut folded).unwrap();
    String::from_utf8(folded).unwrap()
}

/// Compares with a file that is written by `keep` and read by `load`.
fn assert_blessed(name: &str, got: &str, keep: impl Fn(&str) -> String, load: impl Fn(&str) -> String) {
    let path = folder().join(name);
    if std::env::var_os("JITPROF_BLESS").is_some() {
        fs::write(&path, keep(got)).unwrap();
    }
    let want = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(want.len() <= MAX_BYTES, "{} bytes are too many for the repository", want.len());
    let want = load(&want);
    if got != want {
        let (got, want): (BTreeSet<&str>, BTreeSet<&str>) = (got.lines().collect(), want.lines().collect());
        let new: Vec<_> = got.difference(&want).take(10).collect();
        let gone: Vec<_> = want.difference(&got).take(10).collect();
        panic!("{name} is another one; JITPROF_BLESS=1 blesses it\nnew: {new:#?}\ngone: {gone:#?}");
    }
}

/// Folded stacks with the frames that a line shares with the one before as their number: `=3;caller;leaf 7`. Of deep stacks
/// most is said once.
fn shortened(folded: &str) -> String {
    let mut before: Vec<&str> = Vec::new();
    let mut short = String::new();
    for line in folded.lines() {
        let frames: Vec<&str> = line.split(';').collect();
        let shared = frames.iter().zip(&before).take_while(|(one, other)| one == other).count();
        // One or two frames are read more easily than their number.
        let from = if shared > 2 { shared } else { 0 };
        let number = (from > 0).then(|| format!("={from}"));
        let words: Vec<&str> = number.iter().map(String::as_str).chain(frames[from..].iter().copied()).collect();
        short += &words.join(";");
        short += "\n";
        before = frames;
    }
    short
}

/// The opposite of [`shortened`].
fn expanded(short: &str) -> String {
    let mut before: Vec<&str> = Vec::new();
    let mut folded = String::new();
    for line in short.lines() {
        let (number, rest) = line.split_once(';').unwrap_or((line, ""));
        match number.strip_prefix('=').and_then(|number| number.parse::<usize>().ok()) {
            Some(shared) => {
                before.truncate(shared);
                before.extend(rest.split(';'));
            }
            None => before = line.split(';').collect(),
        }
        folded += &before.join(";");
        folded += "\n";
    }
    folded
}

/// Samples whose frames are as wanted.
fn count(folded: &str, wanted: impl Fn(&[&str]) -> bool) -> u64 {
    let samples = folded.lines().filter_map(|line| {
        let (stack, samples) = line.rsplit_once(' ')?;
        let frames: Vec<&str> = stack.split(';').collect();
        wanted(&frames).then(|| samples.parse::<u64>().unwrap())
    });
    samples.sum()
}

impl Golden {
    /// Samples with a frame whose name, without the tier's mark, begins so.
    fn with(&self, name: &str) -> u64 {
        let is_it = |frame: &&str| frame.trim_start_matches(['*', '~', '^', '+']).starts_with(name);
        count(&self.folded, |frames| frames.iter().any(is_it))
    }

    /// A number of the account, or the sum of an object's.
    #[track_caller]
    fn number(&self, pointer: &str) -> u64 {
        match self.account.pointer(pointer) {
            Some(Value::Object(object)) => object.values().filter_map(Value::as_u64).sum(),
            other => other.and_then(Value::as_u64).unwrap_or_else(|| panic!("the account has no {pointer}")),
        }
    }

    fn inputs(&self, mut look: impl FnMut(Input<'_>)) {
        let (_, mut reader) = CaptureReader::new(&self.bytes[..]).unwrap();
        while let Some(entry) = reader.next_entry().unwrap() {
            look(entry.input);
        }
    }

    fn task_events(&self, wanted: impl Fn(&TaskChange) -> bool) -> usize {
        let mut events = 0;
        self.inputs(|input| {
            if let Input::Task(TaskEvent { change, .. }) = input {
                events += usize::from(wanted(&change));
            }
        });
        events
    }

    /// What generated code at one address is called, with its file, for each address.
    fn at_one_address(&self) -> Vec<BTreeSet<(String, String)>> {
        let profile = &self.replayed.recorded.profile;
        let mut named: BTreeMap<u64, BTreeSet<(String, String)>> = BTreeMap::new();
        for row in profile.rows() {
            let mut stack = row.stack;
            while let Some((callers, frame)) = profile.pop(stack) {
                let frame = profile.frame(frame);
                let file = frame.source.map_or("", |source| source.file);
                if frame.kind == FrameKind::Jit {
                    named.entry(frame.address).or_default().insert((frame.name.to_owned(), file.to_owned()));
                }
                stack = callers;
            }
        }
        named.into_values().collect()
    }
}

#[test]
fn code_that_takes_the_place_of_collected_code_has_its_own_name() {
    let golden = golden("node_code_reuse");
    assert_eq!(golden.number("/jit/unnamed"), 0);
    let at_one_address = golden.at_one_address();
    let reused = at_one_address.iter().filter(|names| names.len() > 1);
    assert!(reused.count() > 0, "two functions were sampled at one address: {at_one_address:?}");
}

#[test]
fn generations_at_one_address_have_their_own_names() {
    let golden = golden("jitdemo_generations");
    let at_one_address = golden.at_one_address();
    let hot = |names: &&BTreeSet<(String, String)>| names.iter().all(|(name, _)| name.starts_with("leaf_hot_g"));
    let generations = at_one_address.iter().filter(hot).map(BTreeSet::len).max();
    assert!(generations > Some(2), "{at_one_address:?}");
}

#[test]
fn children_of_a_fork_storm_are_known() {
    let golden = golden("fork_storm");
    let forks = golden.task_events(|change| matches!(change, TaskChange::Fork { .. }));
    let execs = golden.task_events(|change| matches!(change, TaskChange::Comm { exec: true, .. }));
    assert!(forks > 50 && execs > 25, "{forks} forks, {execs} execs");
    assert!(golden.with("storm_burn") > 0);
}

#[test]
fn a_process_that_executes_another_program_has_both() {
    let golden = golden("exec_of_another_program");
    assert_eq!(golden.task_events(|change| matches!(change, TaskChange::Comm { exec: true, .. })), 1);
    let of = |comm: &str, name: &str| count(&golden.folded, |frames| frames[0] == comm && frames.contains(&name));
    assert!(of("storm", "storm_burn") > 0);
    assert_eq!(of("sh", "storm_burn"), 0);
    assert!(count(&golden.folded, |frames| frames[0] == "sh") > 0);
}

#[test]
fn lost_samples_are_counted() {
    let golden = golden("lost_samples");
    assert!(golden.number("/samples/lost_ring_full") > 100);
    assert!(golden.replayed.recorded.account.to_string().contains("ring buffer full"));
    assert!(count(&golden.folded, |frames| frames.iter().filter(|frame| **frame == "down").count() == 500) > 100);
}

#[test]
fn samples_that_met_code_before_its_rows_are_finished() {
    let golden = golden("python_deferred");
    assert!(golden.number("/deferred/finished_by_rows") > 5);
    assert!(golden.with("py::leaf_hot") + golden.with("leaf_hot") > 10);
}

#[test]
fn a_damaged_dump_costs_no_function() {
    let golden = golden("damaged_dump");
    assert!(golden.number("/sources/0/dumps/0/records/resyncs") > 5);
    assert!(golden.number("/sources/0/dumps/0/records/corrupt_bytes") > 1000);
    assert!(golden.with("leaf_hot_g0") + golden.with("leaf_hot_g1") + golden.with("leaf_hot_g2") > 0);
    assert_eq!(golden.number("/jit/unnamed"), 0);
}

#[test]
fn a_replaced_library_has_the_names_of_its_time() {
    let golden = golden("replaced_library");
    assert!(golden.with("old_work") > 10 && golden.with("new_work") > 10);
}

#[test]
fn threads_that_come_and_go_are_of_one_process() {
    let golden = golden("threads_that_come_and_go");
    let ended = golden.task_events(|change| matches!(change, TaskChange::Exit { pid, tid } if pid.0 != tid.0));
    assert!(ended > 5, "{ended} threads ended");
    assert!(golden.with("thread_work") > 30);
    assert_eq!(golden.number("/samples/process_gone"), 0);
}

#[test]
fn threads_go_on_without_their_leader() {
    let golden = golden("leader_ends_before_its_threads");
    assert_eq!(golden.task_events(|change| matches!(change, TaskChange::Exit { pid, tid } if pid.0 == tid.0)), 1);
    assert!(golden.with("outlives_leader") > 30);
    assert_eq!(golden.number("/samples/process_gone"), 0);
}

#[test]
fn a_process_that_becomes_another_user_keeps_its_names() {
    assert!(golden("setuid").with("as_nobody") > 30);
}

#[test]
fn a_perf_map_names_code() {
    let golden = golden("node_perf_map");
    assert!(golden.number("/jit/named/perf_map") > 50);
    assert!(golden.with("leafHot") > 5);
}

#[test]
fn code_announced_by_the_jit_api_has_its_inlined_functions() {
    let golden = golden("ittapi_announcements");
    let nested = ["two_loops", "outer_part", "hot_part"];
    assert!(count(&golden.folded, |frames| frames.windows(3).any(|window| window == nested)) > 5);
    assert!(golden.number("/jit/named/jitdump") > 20);
}

#[test]
fn a_continuous_recording_has_its_windows() {
    let golden = golden("continuous_windows");
    let mut continuous = 0;
    golden.inputs(|input| continuous += usize::from(matches!(input, Input::Order(Order::Continuous { .. }))));
    assert_eq!(continuous, 1);
    let windows = &golden.replayed.windows;
    assert!(windows.len() > 3, "{} windows", windows.len());
    assert!(windows.iter().filter(|window| window.profile.total() > 0).count() > 2);
    assert!(windows.is_sorted_by_key(|window| window.end));
}

#[test]
fn captures_say_nothing_of_the_machine_that_they_were_made_on() {
    for entry in fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "capture") {
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        let stream = bytes.splitn(2, |byte| *byte == b'\n').nth(1).unwrap();
        let mut plain = Vec::new();
        zstd::Decoder::new(stream).unwrap().read_to_end(&mut plain).unwrap();
        let text = String::from_utf8_lossy(&plain);
        for private in PRIVATE {
            let found = text.find(private).map(|at| text[at..].chars().take(60).collect::<String>());
            assert_eq!(found, None, "{}", path.display());
        }
    }
}
