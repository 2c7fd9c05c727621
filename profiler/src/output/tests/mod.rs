use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::*;
use crate::profile::{ProfileMeta, SampledEvent, Task};
use crate::symbol::{Frame, FrameKind, Module, SourceLine, Tier};
use jitprof_common::units::{MonoNs, Pid, Tid};

mod agreement;
mod diff;
mod firefox;
mod folded;
mod format;
mod pprof;
mod pprof_read;
#[cfg(feature = "plog")]
mod spans;
mod speed;
mod svg;

/// One sample of a test: when, by whom, which frames from the root, how often.
#[derive(Clone, Debug)]
pub(super) struct TestSample {
    pub(super) time_ns: u64,
    pub(super) task: Task,
    pub(super) frames: Vec<Frame>,
    pub(super) count: u64,
}

pub(super) fn meta() -> ProfileMeta {
    ProfileMeta {
        title: "node server.js".to_owned(),
        start_time: SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000),
        start: MonoNs(5_000_000_000),
        duration: Duration::from_millis(10_000),
        frequency_hz: NonZeroU32::new(100).unwrap(),
        event: SampledEvent::CpuClock,
    }
}

pub(super) fn profile(samples: &[TestSample]) -> Profile {
    let mut profile = Profile::new(meta(), 10_000_000);
    for sample in samples {
        let stack = sample.frames.iter().fold(profile.stack_root(), |prefix, frame| {
            let frame = profile.intern_frame(frame);
            profile.push(prefix, frame)
        });
        let task = profile.task(sample.task.clone());
        profile.add(MonoNs(5_000_000_000 + sample.time_ns), stack, task, sample.count);
    }
    profile
}

pub(super) fn bytes(profile: &Profile, format: Format, options: &OutputOptions) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(profile, format, options, &mut bytes).unwrap();
    bytes
}

pub(super) fn string(profile: &Profile, format: Format, options: &OutputOptions) -> String {
    String::from_utf8(bytes(profile, format, options)).unwrap()
}

pub(super) fn task(tid: u32, comm: &str) -> Task {
    Task { pid: Pid(4242), process_start: 77, tid: Tid(tid), comm: Arc::from(comm), labels: Arc::default() }
}

pub(super) fn native(name: &str, path: &str, offset: u64) -> Frame {
    Frame {
        name: Arc::from(name),
        kind: FrameKind::Native,
        tier: None,
        inlined: false,
        module: Some(Arc::new(Module { path: Arc::from(path), build_id: Some(Arc::from("c0ffee00")) })),
        source: None,
        address: offset,
    }
}

pub(super) fn kernel(name: &str, address: u64) -> Frame {
    let module = Module { path: Arc::from("[kernel.kallsyms]"), build_id: None };
    Frame { kind: FrameKind::Kernel, module: Some(Arc::new(module)), ..native(name, "", address) }
}

pub(super) fn jit(name: &str, tier: Option<Tier>, address: u64, line: u32) -> Frame {
    let module = Module { path: Arc::from("[jit]"), build_id: None };
    Frame {
        kind: FrameKind::Jit,
        tier,
        module: Some(Arc::new(module)),
        source: Some(SourceLine::new(Arc::from("/app/server.js"), line)),
        ..native(name, "", address)
    }
}

pub(super) fn at_column(frame: Frame, column: u32) -> Frame {
    let place = |source: SourceLine| SourceLine { column: NonZeroU32::new(column), ..source };
    Frame { source: frame.source.map(place), ..frame }
}

pub(super) fn of_kind(kind: FrameKind, name: &str) -> Frame {
    Frame { kind, module: None, ..native(name, "", 0) }
}

pub(super) fn inlined(mut frame: Frame) -> Frame {
    frame.inlined = true;
    frame
}

/// A small service: every class of frame, two threads, two buckets, awkward names.
pub(super) fn service() -> Vec<TestSample> {
    let main = native("main", "/usr/bin/node", 0x1200);
    let run = native("v8::Execution::Call(v8::Isolate*)", "/usr/bin/node", 0x5000);
    let entry = of_kind(FrameKind::Builtin, "JSEntryTrampoline");
    let handle = jit("handle", Some(Tier::Interpreted), 0x7f00_0000_1000, 10);
    let parse = jit("parse", Some(Tier::Baseline), 0x7f00_0000_2000, 20);
    let render = jit("render", Some(Tier::Mid), 0x7f00_0000_3000, 30);
    let hot = jit("leafHot", Some(Tier::Optimized), 0x7f00_0000_4000, 40);
    let hot_cold = jit("leafHot", Some(Tier::Interpreted), 0x7f00_0000_5000, 40);
    let untiered = jit("wasm-function[7]", None, 0x7f00_0000_6000, 0);
    let memcpy = native("memcpy", "/lib/libc.so.6", 0x9_0000);
    let copy = native("Buffer::Copy", "/usr/bin/node", 0x8000);
    let copy_inlined = inlined(native("std::copy<char>", "/usr/bin/node", 0x8000));
    let read = kernel("vfs_read", 0xffff_ffff_8120_0000);
    let syscall = kernel("entry_SYSCALL_64", 0xffff_ffff_8100_0000);
    let note = of_kind(FrameKind::Note, "[stopped: no frame pointer]");
    let node = task(4242, "node");
    let worker = task(4250, "V8Worker");
    let sample = |time_ms: u64, task: &Task, frames: &[&Frame], count| TestSample {
        time_ns: time_ms * 1_000_000,
        task: task.clone(),
        frames: frames.iter().map(|&frame| frame.clone()).collect(),
        count,
    };
    vec![
        sample(0, &node, &[&main, &run, &entry, &handle, &parse, &hot], 30),
        sample(15, &node, &[&main, &run, &entry, &handle, &parse, &hot], 15),
        sample(20, &node, &[&main, &run, &entry, &handle, &parse, &hot_cold], 5),
        sample(30, &node, &[&main, &run, &entry, &handle, &render], 12),
        sample(30, &node, &[&main, &run, &entry, &handle, &render, &untiered], 8),
        sample(40, &node, &[&main, &run, &copy, &copy_inlined, &memcpy], 10),
        sample(40, &node, &[&main, &run, &copy, &syscall, &read], 9),
        sample(50, &worker, &[&note, &memcpy], 6),
        sample(60, &worker, &[&note, &syscall], 3),
        sample(70, &node, &[], 2),
    ]
}

/// The same samples, one by one and in another order.
pub(super) fn shuffled(samples: &[TestSample]) -> Vec<TestSample> {
    let mut single: Vec<_> = samples
        .iter()
        .flat_map(|sample| {
            let count = usize::try_from(sample.count).unwrap();
            std::iter::repeat_n(TestSample { count: 1, ..sample.clone() }, count)
        })
        .collect();
    // A fixed permutation: the odd positions backwards, then the even ones.
    let odd = single.iter().skip(1).step_by(2).rev().cloned().collect::<Vec<_>>();
    single = single.iter().step_by(2).cloned().collect();
    single.splice(0..0, odd);
    single
}

/// Compares with a golden file. `JITPROF_BLESS=1` writes it; without, a missing golden fails.
pub(super) fn assert_golden(name: &str, got: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/output/golden").join(name);
    if std::env::var_os("JITPROF_BLESS").is_some() {
        std::fs::write(&path, got).unwrap();
    }
    let want = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; bless it with JITPROF_BLESS=1", path.display()));
    assert!(got == want, "{name} differs from the golden; got:\n{got}");
}
