use crate::output::OutputOptions;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use clap::Parser;

use super::*;
use crate::output::{read_pprof, write};
use crate::profile::{ProfileMeta, SampledEvent, Task};
use crate::symbol::{Frame, FrameKind, Tier};
use jitprof_common::units::{MonoNs, Pid, Tid};

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    arguments: Arguments,
}

/// A recording of 10 s that begins so many seconds after midnight of 2023-11-15, with samples of these processes.
fn recording(start_s: u64, processes: &[(u32, &str, u64)]) -> Profile {
    let meta = ProfileMeta {
        title: "test".to_owned(),
        start_time: UNIX_EPOCH + Duration::from_secs(1_700_006_400 + start_s),
        start: MonoNs(7_000_000_000),
        duration: Duration::from_secs(10),
        frequency_hz: NonZeroU32::new(100).unwrap(),
        event: SampledEvent::CpuClock,
    };
    let mut profile = Profile::new(meta, 1_000_000);
    for (at, &(pid, name, count)) in (0..).zip(processes) {
        let frame = profile.intern_frame(&Frame {
            name: Arc::from(name),
            kind: FrameKind::Jit,
            tier: Some(Tier::Optimized),
            inlined: false,
            module: None,
            source: None,
            address: 1,
        });
        let stack = profile.push(profile.stack_root(), frame);
        let comm = Arc::from(format!("app{pid}"));
        let task = profile.task(Task { pid: Pid(pid), process_start: 1, tid: Tid(pid), comm, labels: Arc::default() });
        profile.add(MonoNs(7_000_000_000 + at * 5_000_000_000), stack, task, count);
    }
    profile
}

fn save(folder: &Path, name: &str, profile: &Profile) -> String {
    let path = folder.join(name);
    let format = Format::from_path(&path).unwrap();
    write(profile, format, &OutputOptions::default(), std::fs::File::create(&path).unwrap()).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The arguments, or the error.
pub(super) fn typed(line: &[&str]) -> Result<Arguments, String> {
    let line = [&["report"], line].concat();
    Line::try_parse_from(line).map(|line| line.arguments).map_err(|error| error.to_string())
}

/// What is printed, or the error.
pub(super) fn report(line: &[&str]) -> Result<String, String> {
    let arguments = typed(line)?;
    let mut out = Vec::new();
    run(&arguments, &mut out).map_err(|error| error.to_string())?;
    Ok(String::from_utf8(out).unwrap())
}

#[test]
fn whoever_names_a_process_is_told_what_to_type() {
    let said = report(&["4194304"]).unwrap_err();
    assert!(said.contains("`jitprof 4194304 -d 10 -o 4194304.pb.gz` makes one of process 4194304"), "{said}");
    assert!(report(&["nothing.pb.gz"]).unwrap_err().starts_with("cannot read nothing.pb.gz: "));
}

#[test]
fn a_function_is_one_row_whatever_its_tier_if_that_is_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let mut recorded = recording(0, &[(1, "drive", 3)]);
    let interpreted = Frame {
        name: Arc::from("drive"),
        kind: FrameKind::Interpreter,
        tier: Some(Tier::Interpreted),
        inlined: false,
        module: None,
        source: None,
        address: 9,
    };
    let frame = recorded.intern_frame(&interpreted);
    let stack = recorded.push(recorded.stack_root(), frame);
    let task = Task { pid: Pid(1), process_start: 1, tid: Tid(1), comm: Arc::from("app1"), labels: Arc::default() };
    let task = recorded.task(task);
    recorded.add(MonoNs(7_000_000_000), stack, task, 1);
    let file = save(folder.path(), "a.pb.gz", &recorded);
    let rows = |more: &[&str]| -> Vec<String> {
        let printed = report(&[&[file.as_str(), "--top", "9"], more].concat()).unwrap();
        printed.lines().filter(|line| line.contains("drive")).map(str::to_owned).collect()
    };
    assert_eq!(rows(&[]).len(), 2);
    let merged = rows(&["--merge-tiers"]);
    assert!(merged.len() == 1 && merged[0].starts_with(" 100.00%"), "{merged:?}");
    let sheet = rows(&["--merge-tiers", "--table", "csv"]);
    assert_eq!(sheet.len(), 1, "{sheet:?}");
}

#[test]
fn loops_of_interpreters_are_left_out_where_they_are_not_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let mut recorded = recording(0, &[]);
    let mut stack = recorded.stack_root();
    for (name, kind) in [
        ("main", FrameKind::Native),
        ("_PyEval_EvalFrameDefault", FrameKind::Native),
        ("f", FrameKind::Interpreter),
        ("execute_ex", FrameKind::Interpreter),
    ] {
        let (tier, inlined, module, source) = (None, false, None, None);
        let frame = Frame { name: Arc::from(name), kind, tier, inlined, module, source, address: 1 };
        let frame = recorded.intern_frame(&frame);
        stack = recorded.push(stack, frame);
    }
    let (comm, labels) = (Arc::from("python"), Arc::default());
    let task = recorded.task(Task { pid: Pid(1), process_start: 1, tid: Tid(1), comm, labels });
    recorded.add(MonoNs(7_000_000_000), stack, task, 3);
    let file = save(folder.path(), "a.pb.gz", &recorded);
    let folded = |more: &[&str]| {
        let to = folder.path().join("out.folded");
        report(&[&[&file, "-o", to.to_str().unwrap()], more].concat()).unwrap();
        std::fs::read_to_string(&to).unwrap()
    };
    assert_eq!(folded(&[]), "python;main;_PyEval_EvalFrameDefault;f;execute_ex 3\n");
    assert_eq!(folded(&["--native-frames", "hide"]), "python;main;f;execute_ex 3\n", "a function may be called so");
}

#[test]
fn files_of_both_kinds_are_merged_and_selected() {
    let folder = tempfile::tempdir().unwrap();
    let a = save(folder.path(), "a.pb.gz", &recording(0, &[(1, "f", 30), (2, "g", 10)]));
    let b = save(folder.path(), "b.json", &recording(10, &[(1, "f", 5), (2, "h", 7)]));
    let both = report(&[&a, &b]).unwrap();
    assert!(both.starts_with("52 samples, 0.52 s of CPU in "), "{both}");
    assert!(both.contains("67.31%      0.35   67.31%      0.35  JIT optimised *  f\n"), "{both}");
    let first = |line: &[&str]| report(line).map(|text| text.lines().next().unwrap_or_default().to_owned());
    let samples = |line: &[&str]| first(line).unwrap().split(' ').next().unwrap().parse::<u64>().unwrap();
    assert_eq!(samples(&[&a, &b, "--comm", "app2"]), 17);
    assert_eq!(samples(&[&a, &b, "--pid", "1,2", "--thread", "app1"]), 35);
    assert_eq!(samples(&[&b, "--from", "2023-11-15T00:00:13Z"]), 7, "the time of each sample of a .json");
    assert_eq!(samples(&[&a, &b, "--to", "2023-11-15T00:00:10Z"]), 40);
    let error = first(&[&a, "--unit", "none"]).unwrap_err();
    assert!(error.starts_with("no samples of that time and selection in "), "{error}");

    let merged = folder.path().join("merged.pb.gz");
    assert_eq!(report(&[&a, &b, "-o", merged.to_str().unwrap()]).unwrap(), "");
    let merged = read_pprof(std::fs::File::open(merged).unwrap()).unwrap();
    assert_eq!((merged.total(), merged.meta().frequency_hz.get()), (52, 100));
}

#[test]
fn two_recordings_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let a = save(folder.path(), "a.pb.gz", &recording(0, &[(1, "f", 300), (1, "g", 100)]));
    let b = save(folder.path(), "b.json", &recording(10, &[(1, "f", 100), (1, "g", 300)]));
    let svg = folder.path().join("d.svg");
    let text = report(&["--diff", &a, &b, "--top", "1", "-o", svg.to_str().unwrap()]).unwrap();
    assert!(text.contains("-50.00     75.00     25.00  >99.99%"), "{text}");
    assert!(text.ends_with("and 1 more functions\n"), "{text}");
    let svg = std::fs::read_to_string(svg).unwrap();
    assert!(svg.contains("b.json compared with ") && svg.contains("<title>*g ("), "{svg}");
    assert!(report(&["--diff", &a]).is_err());
    assert!(report(&[&a, "--normalize", "duration"]).unwrap_err().contains("--diff"));
}

#[test]
fn what_cannot_be_read_is_said_in_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let error = report(&[path]).unwrap_err();
    if cfg!(feature = "serve") {
        assert_eq!(error, format!("{path} holds no windows of `jitprof serve`; name recordings by their files"));
    } else {
        assert!(error.starts_with(&format!("{path} is a directory, and this jitprof was built without")), "{error}");
    }
    assert!(report(&[&format!("{path}/none")]).unwrap_err().contains("cannot read"));
    std::fs::write(folder.path().join("x.pb.gz"), "text").unwrap();
    assert!(report(&[&format!("{path}/x.pb.gz")]).unwrap_err().contains("it is no pprof file, or damaged"));
    std::fs::write(folder.path().join("x.folded"), "node;main;f 3\n").unwrap();
    let error = report(&[&format!("{path}/x.folded")]).unwrap_err();
    assert!(error.contains("reads pprof files") && error.contains("not folded stacks"), "{error}");
    assert!(report(&[&format!("{path}@yesterday..")]).unwrap_err().contains("is no time"));
    assert!(report(&[]).is_err());
}

#[cfg(feature = "parquet")]
#[test]
fn a_dataset_is_reported_by_host_and_version_as_text_csv_and_json() {
    use std::collections::BTreeMap;

    use crate::dataset::{Location, Part, Store, Table, Tags, frames_of, rows_of, write_frames, write_samples};

    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_str().unwrap().to_owned();
    let store = Store::open(&Location::Directory(folder.path().to_owned()), &[]).unwrap();
    for (host, version, samples) in [("web1", "1.0", 300), ("web2", "1.0", 200), ("web3", "1.1", 500)] {
        let faster = if version == "1.1" { 100 } else { 300 };
        let profile = recording(0, &[(1, "f", samples), (2, "g,\"x\"", faster)]);
        let (frames, numbers) = frames_of(&profile);
        let add = BTreeMap::from([("version".to_owned(), version.to_owned())]);
        let rows = rows_of(&profile, 60_000, |task| Tags::of(task, host, &add), &numbers);
        let part = Part { host: host.to_owned(), slot_ms: 1_700_006_400_000, first: 1 };
        store.put(&part.path(Table::Frames, 0), write_frames(&frames).unwrap()).unwrap();
        store.put(&part.path(Table::Samples, 0), write_samples(&rows, 1 << 20).unwrap().remove(0)).unwrap();
    }
    let text = report(&[&root]).unwrap();
    assert!(text.starts_with("1700 samples, 17.00 s of CPU in 60.0 s"), "{text}");
    let hosts = report(&[&root, "--by", "host", "--table", "csv"]).unwrap();
    let expected = "host,samples,cpu_s,share\r\nweb1,600,6.0,0.352941176\r\nweb3,600,6.0,0.352941176\r\n\
                    web2,500,5.0,0.294117647\r\n";
    assert_eq!(hosts, expected);
    let json = report(&[&root, "--host", "web3", "--by", "version", "--top", "1", "--table", "json"]).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json.as_array().unwrap().len(), 1);
    assert_eq!(
        (&json[0]["version"], &json[0]["function"], &json[0]["samples"]),
        (&"1.1".into(), &"f".into(), &500.into())
    );
    let text = report(&[&root, "--by", "version"]).unwrap();
    assert_eq!(
        text.lines().next().unwrap().split_whitespace().collect::<Vec<_>>(),
        ["version", "samples", "cpu_s", "share"]
    );
    let csv = report(&[&root, "--table", "csv", "--from", "2023-11-15T00:00:00Z"]).unwrap();
    assert!(csv.contains(",\"g,\"\"x\"\"\",") && csv.lines().count() == 3, "{csv}");
    assert!(report(&[&root, "--from", "2023-11-15T00:01:00Z"]).unwrap_err().contains("no samples of that time"));

    // Two versions, one name each; and one file alone.
    let (old, new) = (format!("{root}@version=1.0"), format!("{root}@version=1.1@2023-11-15T00:00:00Z.."));
    let diff = report(&["--diff", &old, &new, "--table", "csv"]).unwrap();
    let f = diff.lines().find(|line| line.contains(",f,")).unwrap();
    assert!(f.starts_with("0.454545454545") && f.contains(",0.83333333333"), "{diff}");
    let by_host = report(&["--diff", &old, &new, "--by", "host", "--table", "csv"]).unwrap();
    assert!(by_host.contains("web3,0,600,0.0,6.0,0.0,1.0\r\n"), "{by_host}");
    let svg = folder.path().join("d.svg");
    report(&["--diff", &old, &new, "-o", svg.to_str().unwrap()]).unwrap();
    assert!(std::fs::read_to_string(svg).unwrap().contains("version=1.1"));
    let file = format!("{root}/samples/day=2023-11-15/hour=00/host=web2/20231115T000000Z-1-0.parquet");
    assert!(report(&[&file]).unwrap().starts_with("500 samples"));
    let alone = folder.path().join("x.parquet");
    std::fs::copy(&file, &alone).unwrap();
    assert!(report(&[alone.to_str().unwrap()]).unwrap_err().contains("no directory above it is called `samples`"));
    assert!(report(&["nfs://host/x"]).unwrap_err().contains("nfs://host"));
}
