//! One recording, written in every format that can be read, is the same in each pair of them.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use proptest::prelude::*;

use super::tests::{report, typed};
use super::{Formats, Range, read};
use crate::output::{Format, OutputOptions, read_pprof, read_saved, write, write_changes};
use crate::profile::{Diff, Filter, Normalize, Profile, ProfileMeta, SampledEvent, Task};
use crate::symbol::{Frame, FrameKind, Module, SourceLine, Tier};
use jitprof_common::units::{MonoNs, Pid, Tid};

/// A stack from the root, of which thread, and how often.
type Sampled = (Vec<Frame>, u32, u64);

fn recorded(samples: &[Sampled]) -> Profile {
    let meta = ProfileMeta {
        title: "test".to_owned(),
        start_time: UNIX_EPOCH + Duration::from_secs(1_700_006_400),
        start: MonoNs(7_000_000_000),
        duration: Duration::from_secs(10),
        frequency_hz: NonZeroU32::new(99).unwrap(),
        event: SampledEvent::CpuClock,
    };
    let mut profile = Profile::new(meta, 1_000_000);
    // From half the time on samples weigh more, as where the service has lowered its frequency.
    profile.set_frequency(MonoNs(12_000_000_000), NonZeroU32::new(20).unwrap());
    for (at, (frames, tid, count)) in (0..).zip(samples) {
        let stack = frames.iter().fold(profile.stack_root(), |prefix, frame| {
            let frame = profile.intern_frame(frame);
            profile.push(prefix, frame)
        });
        let (comm, labels) = (Arc::from(format!("t{tid}")), Arc::default());
        let task = profile.task(Task { pid: Pid(1), process_start: 1, tid: Tid(*tid), comm, labels });
        profile.add(MonoNs(7_000_000_000 + at * 1_000_000_000), stack, task, *count);
    }
    profile
}

/// The profile as it is read back from each format.
fn read_back(profile: &Profile, folder: &Path) -> Vec<(&'static str, Profile)> {
    let written = |format| {
        let mut bytes = Vec::new();
        write(profile, format, &OutputOptions::default(), &mut bytes).unwrap();
        bytes
    };
    let mut all = vec![
        ("pprof", read_pprof(&*written(Format::Pprof)).unwrap()),
        ("firefox", read_saved(&*written(Format::Firefox)).unwrap()),
    ];
    all.extend(dataset(profile, folder));
    all
}

#[cfg(feature = "parquet")]
fn dataset(profile: &Profile, folder: &Path) -> Option<(&'static str, Profile)> {
    use std::collections::BTreeMap;

    use crate::dataset::{
        DatasetQuery, Location, Part, Store, Table, Tags, frames_of, load, rows_of, write_frames, write_samples,
    };

    let store = Store::open(&Location::Directory(folder.to_owned()), &[]).unwrap();
    let (frames, numbers) = frames_of(profile);
    let rows = rows_of(profile, 60_000, |task| Tags::of(task, "web1", &BTreeMap::new()), &numbers);
    let part = Part { host: "web1".to_owned(), slot_ms: 1_700_006_400_000, first: 1 };
    store.put(&part.path(Table::Frames, 0), write_frames(&frames).unwrap()).unwrap();
    store.put(&part.path(Table::Samples, 0), write_samples(&rows, 1 << 20).unwrap().remove(0)).unwrap();
    load(&store, None, &DatasetQuery::default()).unwrap().map(|profile| ("dataset", profile))
}

#[cfg(not(feature = "parquet"))]
fn dataset(_profile: &Profile, _folder: &Path) -> Option<(&'static str, Profile)> {
    None
}

fn assert_same(one: &(&str, Profile), other: &(&str, Profile)) {
    for normalize in [Normalize::Total, Normalize::None] {
        let diff = Diff::new(&one.1, &other.1, normalize);
        for change in &diff.changes {
            let is_same = [change.own, change.total].iter().all(|both| diff.change(*both).abs() < 1e-6);
            let sure = change.own_confidence.max(change.total_confidence);
            assert!(is_same && sure < 0.5, "{} and {}: {change:?}", one.0, other.0);
        }
    }
}

fn frame(name: &str, kind: FrameKind, tier: Option<Tier>) -> Frame {
    Frame { name: Arc::from(name), kind, tier, inlined: false, module: None, source: None, address: 0 }
}

fn tiers() -> impl Strategy<Value = Option<Tier>> {
    prop::option::of(prop::sample::select(Tier::ALL.to_vec()))
}

/// Frames as they are recorded: of every kind, inlined ones, guesses, and names that several of them have.
fn any_frame() -> impl Strategy<Value = Frame> {
    let names = prop::sample::select(vec!["f", "g", " f", "a\nb", "f (x)"]);
    let marked = prop::sample::select(vec!["*f", "~f", "+f"]);
    let native = |kind| names.clone().prop_map(move |name| frame(name, kind, None));
    let kinds = prop_oneof![
        native(FrameKind::Native),
        native(FrameKind::Kernel),
        native(FrameKind::Builtin),
        (names.clone(), tiers()).prop_map(|(name, tier)| frame(name, FrameKind::Jit, tier)),
        (marked, prop::sample::select(Tier::ALL.to_vec())).prop_map(|(name, tier)| frame(
            name,
            FrameKind::Jit,
            Some(tier)
        )),
        (names.clone(), prop::option::of(Just(Tier::Interpreted))).prop_map(|(name, tier)| frame(
            name,
            FrameKind::Interpreter,
            tier
        )),
        names.clone().prop_map(|name| Frame { inlined: true, ..frame(name, FrameKind::Jit, None) }.as_guess()),
        Just(frame("[stopped]", FrameKind::Note, None)),
    ];
    let files = prop::sample::select(vec![None, Some(""), Some("/app/a.js"), Some("/app/b.js")]);
    (kinds, files, any::<bool>(), 0..3_usize, 1..3_u32).prop_map(|(frame, file, inlined, module, line)| {
        let modules = match frame.kind {
            FrameKind::Native => [Some("/lib/a.so"), Some("/lib/b.so"), None],
            FrameKind::Kernel => [Some("[kernel.kallsyms]"); 3],
            FrameKind::Note => [None; 3],
            _ => [Some("[jit]"), Some("[jit:numba]"), None],
        };
        let module = modules[module].map(|path| Arc::new(Module { path: Arc::from(path), build_id: None }));
        let source = file.filter(|_| frame.kind != FrameKind::Note).map(|file| SourceLine::new(Arc::from(file), line));
        let inlined = frame.inlined || inlined && !matches!(frame.kind, FrameKind::Note | FrameKind::Interpreter);
        Frame { module, source, inlined, address: line.into(), ..frame }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_pair_of_formats_compares_as_no_difference(
        samples in prop::collection::vec((prop::collection::vec(any_frame(), 1..6), 1..3_u32, 1..300_u64), 1..10),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let all = read_back(&recorded(&samples), folder.path());
        for one in &all {
            for other in &all {
                assert_same(one, other);
            }
        }
    }
}

/// The profile as it comes back from a pprof file.
fn from_pprof(profile: &Profile) -> Profile {
    let mut bytes = Vec::new();
    write(profile, Format::Pprof, &OutputOptions::default(), &mut bytes).unwrap();
    read_pprof(&*bytes).unwrap()
}

/// PHP without its JIT, and with it: what is dumped of compiled code has a name alone.
#[test]
fn tiers_of_a_function_stay_apart_where_both_recordings_tell_them() {
    let interpreted = |name| Frame {
        module: Some(Arc::new(Module { path: Arc::from("[jit]"), build_id: None })),
        source: Some(SourceLine::new(Arc::from("/srv/burn.php"), 3)),
        ..frame(name, FrameKind::Interpreter, Some(Tier::Interpreted))
    };
    // What the interpreter keeps of a function that compiled code runs.
    let kept = Frame { tier: None, ..interpreted("outer") };
    let compiled = Frame { source: None, kind: FrameKind::Jit, tier: None, ..interpreted("work") };
    let before = recorded(&[(vec![interpreted("{main}"), interpreted("outer"), interpreted("work")], 1, 100)]);
    let after = recorded(&[(vec![interpreted("{main}"), kept, compiled], 1, 100)]);
    let [before, after] = [before, after].map(|profile| from_pprof(&profile));
    let diff = Diff::new(&before, &after, Normalize::Total);
    let of = |name: &str| {
        let found = diff.changes.iter().filter(|change| change.function.name == name);
        let found =
            found.map(|change| (change.function.kind, change.function.tier, change.total.map(|all| all.samples)));
        found.collect::<BTreeSet<_>>()
    };
    let was = (FrameKind::Interpreter, Some(Tier::Interpreted), [100, 0]);
    assert_eq!(of("work"), BTreeSet::from([was, (FrameKind::Jit, None, [0, 100])]));
    assert_eq!(of("outer"), BTreeSet::from([was, (FrameKind::Interpreter, None, [0, 100])]));
    assert_eq!(of("{main}"), BTreeSet::from([(was.0, was.1, [100, 100])]));
}

#[test]
fn what_was_put_together_from_two_formats_is_no_other_program() {
    let placed = |name, file: &str| Frame {
        module: Some(Arc::new(Module { path: Arc::from("[jit]"), build_id: None })),
        source: Some(SourceLine::new(Arc::from(file), 7)),
        ..frame(name, FrameKind::Jit, Some(Tier::Optimized))
    };
    let (run, render) = (placed("run", "/app/a.js"), placed("render", "/app/b.js"));
    let other = recorded(&[(vec![run, render], 1, 600), (vec![placed("render", "/app/c.js")], 1, 400)]);
    let folder = tempfile::tempdir().unwrap();
    let names = ["a.pb.gz", "b.json", "both.pb.gz"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    let [a, b, both] = &names;
    for path in [a, b] {
        let (format, file) = (Format::from_path(Path::new(path)).unwrap(), std::fs::File::create(path).unwrap());
        write(&other, format, &OutputOptions::default(), file).unwrap();
    }
    report(&[a, b, "-o", both]).unwrap();
    let [both, a] = [both, a].map(|name| read(&[name.into()], &Range::default(), &Filter::default()).unwrap());
    for [before, after] in [[&both, &a], [&a, &both]] {
        let diff = Diff::new(before, after, Normalize::Total);
        assert!(diff.changes.iter().all(|change| diff.change(change.own).abs() < 1e-6), "{:?}", diff.changes);
        assert_eq!((diff.matching.sums(), diff.matching.not_told()), (2, vec!["module", "source file"]));
    }
}

/// What an optimiser inlined, and two functions of one name.
#[test]
fn a_recording_is_compared_with_itself_in_another_format_and_the_table_says_what_is_summed_up() {
    let in_file = |file: &str, inlined| Frame {
        module: Some(Arc::new(Module { path: Arc::from("[jit]"), build_id: None })),
        source: Some(SourceLine::new(Arc::from(file), 7)),
        inlined,
        ..frame("render", FrameKind::Jit, Some(Tier::Optimized))
    };
    let outer = frame("main", FrameKind::Native, None);
    let stack = |leaf: Frame| vec![outer.clone(), leaf];
    let python = frame("handler", FrameKind::Interpreter, None);
    let samples = [
        (stack(in_file("/app/a.js", true)), 1, 600),
        (stack(in_file("/app/b.js", false)), 1, 400),
        (stack(python), 1, 5),
    ];
    let folder = tempfile::tempdir().unwrap();
    let names = ["r.pb.gz", "r.json"].map(|name| folder.path().join(name));
    for path in &names {
        let file = std::fs::File::create(path).unwrap();
        let format = Format::from_path(path).unwrap();
        write(&recorded(&samples), format, &OutputOptions::default(), file).unwrap();
    }
    let folded = folder.path().join("d.folded");
    let diff = [names[0].as_os_str(), names[1].as_os_str()].map(|name| name.to_str().unwrap());
    report(&["--diff", diff[0], diff[1], "--lines", "-o", folded.to_str().unwrap()]).unwrap();
    let lines = std::fs::read_to_string(folded).unwrap();
    assert_eq!(lines, "t1;main;*render 1000 1000\nt1;main;handler 5 5\n");
    let sides = diff.map(|name| read(&[name.into()], &Range::default(), &Filter::default()).unwrap());
    assert_eq!(sides[0].meta().duration, sides[1].meta().duration);
    let [before, after] = &sides;
    let mut table = Vec::new();
    write_changes(&Diff::new(before, after, Normalize::Duration), 10, &mut table).unwrap();
    let table = String::from_utf8(table).unwrap();
    assert!(!table.contains("99.99%") && table.matches("render").count() == 1, "{table}");
    let said = "1 functions are sums of several of one name, which one of the two does not tell apart by module, source \
                file\n";
    assert!(table.ends_with(said), "{table}");
    // Where no such table is written it is said beside it, and so is what was asked for and cannot be.
    let remarks = |line: &[&str]| {
        let arguments = typed(&[&["--diff", diff[0], diff[1]], line].concat()).unwrap();
        let formats = Formats::of_profile(None).unwrap().outputs(&arguments.output).unwrap();
        let formats: Vec<Format> = formats.into_iter().map(|(_, format)| format).collect();
        super::remarks(&arguments, &formats, [before, after], &Diff::new(before, after, Normalize::Total))
    };
    let sums = vec![said.trim_end().to_owned()];
    for line in [&["--table", "csv"][..], &["--by", "thread", "--top", "9"], &["-o", "d.json"]] {
        assert_eq!(remarks(line), sums, "{line:?}");
    }
    for line in [&["--by", "thread"][..], &[], &["-o", "d.svg"], &["-o", "d.json", "--top", "9"]] {
        assert_eq!(remarks(line), Vec::<String>::new(), "{line:?}");
    }
    let no_lines = format!("no lines in the frames: no source files are named in {}", diff[1]);
    assert_eq!(remarks(&["-o", "d.svg", "--lines"]), [no_lines]);
}
