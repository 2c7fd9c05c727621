//! Merged stacks: the JSON of the page.

use std::io::Read;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, header};
use flate2::read::GzDecoder;
use serde_json::Value;

use super::{Service, run};
use crate::output::{Format, OutputOptions, write};
use crate::process::monotonic_now;
use crate::profile::{FrameRef, SourceRef, Task};
use crate::record::{Health, Window};
use crate::serve::http::flame::{Flame, Shape};
use crate::serve::http::flame_json::flame_json;
use crate::symbol::{FrameKind, Tier};
use jitprof_common::units::{MonoNs, Pid, Tid};

/// `depth name self/total`, a line for each node.
fn nodes(json: &Value) -> Vec<String> {
    let text = |column: &str, index: usize| json["nodes"][column][index].as_u64().unwrap();
    let name = |frame: u64| {
        let name = json["frames"]["name"][usize::try_from(frame).unwrap()].as_u64().unwrap();
        json["strings"][usize::try_from(name).unwrap()].as_str().unwrap()
    };
    let ms = |column: &str, index: usize| json["nodes"][column][index].as_u64().map_or(0, |ns| ns / 1_000_000);
    let is_diff = json["cpu_ns"].as_array().unwrap().len() == 2;
    (0..json["nodes"]["depth"].as_array().unwrap().len())
        .map(|index| {
            let other =
                if is_diff { format!(" {}/{}", ms("self_b", index), ms("total_b", index)) } else { String::new() };
            let (depth, name) = (text("depth", index), name(text("frame", index)));
            format!("{depth} {name} {}/{}{other}", ms("self", index), ms("total", index))
        })
        .collect()
}

#[test]
fn stacks_are_merged_in_preorder_by_name() {
    run(async {
        let service = Service::new();
        service.window(5, &[("p", &["main", "b"], 5), ("p", &["main", "a", "b"], 2), ("p", &["main"], 1)]);
        let json = service.get("/api/flame?from=-1m").await.json();
        assert_eq!(nodes(&json), ["0 p 0/80", "1 main 10/80", "2 a 0/20", "3 b 20/20", "2 b 50/50"]);
        assert_eq!(json["samples"], serde_json::json!([8]));
        let json = service.get("/api/flame?from=-1m&group=none&reverse=1").await.json();
        assert_eq!(nodes(&json), ["0 b 0/70", "1 a 0/20", "2 main 20/20", "1 main 50/50", "0 main 10/10"]);
        let top = service.get("/api/top?from=-1m&sort=total&rows=1").await.json();
        assert_eq!(top["functions"][0]["name"], "main");
        assert_eq!(top["more"], 2);
    });
}

#[test]
fn two_sides_stand_in_one_tree() {
    run(async {
        let service = Service::new();
        service.window(5, &[("a", &["f", "old"], 4), ("b", &["f", "new"], 6)]);
        let json = service.get("/api/diff?from=-1m&comm=a&b.from=-1m&b.comm=b&group=none").await.json();
        assert_eq!(nodes(&json), ["0 f 0/40 0/60", "1 new 0/0 60/60", "1 old 40/40 0/0"]);
        assert_eq!(json["cpu_ns"], serde_json::json!([40_000_000, 60_000_000]));
        let changed = &json["changes"][0];
        assert_eq!((changed["name"].as_str(), &changed["self"]), (Some("new"), &serde_json::json!([0, 60_000_000])));
        assert!(changed["self_confidence"].as_f64().is_some_and(|sure| (0.0..=1.0).contains(&sure)));
        let json = service.get("/api/diff?from=100&to=200&b.from=-1m&group=none").await.json();
        assert_eq!(json["cpu_ns"], serde_json::json!([0, 100_000_000]), "a side without samples is no error");
    });
}

#[test]
fn what_changed_is_called_as_it_is_in_the_tree() {
    use std::collections::BTreeSet;

    run(async {
        let start = MonoNs(monotonic_now().0 - 15_000_000_000);
        let mut profile = super::profile(start, &[]);
        // A runtime without its JIT, and with it, of which the interpreter's own list does not say what is compiled.
        for (pid, comm, kind, tier) in [
            (1, "a", FrameKind::Interpreter, Some(Tier::Interpreted)),
            (2, "b", FrameKind::Interpreter, None),
            (2, "b", FrameKind::Jit, Some(Tier::Optimized)),
        ] {
            let frame = FrameRef { name: "work", kind, tier, inlined: false, module: None, source: None, address: 1 };
            let frame = profile.intern_frame_ref(&frame);
            let stack = profile.push(profile.stack_root(), frame);
            let labels = Default::default();
            let task = Task { pid: Pid(pid), process_start: 0, tid: Tid(pid), comm: comm.into(), labels };
            let task = profile.task(task);
            profile.add(start.after(Duration::from_millis(500)), stack, task, 4);
        }
        let service = Service::new();
        let end = start.after(Duration::from_secs(10));
        service.state.intake.add(Window { profile, end, health: Health::default() });
        let json = service.get("/api/diff?from=-1m&comm=a&b.from=-1m&b.comm=b&group=none").await.json();
        let at = |number: &Value| usize::try_from(number.as_u64().unwrap()).unwrap();
        let frames = &json["frames"];
        let names = frames["name"].as_array().unwrap().iter().map(|name| json["strings"][at(name)].clone());
        let kinds = frames["kind"].as_array().unwrap().iter().map(|kind| json["kinds"][at(kind)]["label"].clone());
        let text = |value: Value| value.as_str().unwrap().to_owned();
        let in_tree: BTreeSet<_> = names.map(text).zip(kinds.map(text)).collect();
        let changes = json["changes"].as_array().unwrap().iter();
        let changed = changes.map(|change| (text(change["name"].clone()), text(change["kind"].clone())));
        assert_eq!(changed.collect::<BTreeSet<_>>(), in_tree);
        assert_eq!(in_tree.len(), 3, "{in_tree:?}");
    });
}

#[test]
fn recursion_counts_once_in_the_total_of_a_function() {
    let profile = super::profile(MonoNs(1), &[("p", &["f", "g", "f", "f"], 3), ("p", &["g", "f"], 1)]);
    let flame = Flame::new([Some(&profile), None], &Shape::default());
    let used = flame.tree.used();
    let of = |name: &str| {
        let used = used[flame.tree.frames().position(|look| look.name == name).unwrap()];
        (used.own[0].cpu_ns, used.total[0].cpu_ns)
    };
    assert_eq!((of("f"), of("g")), ((40_000_000, 40_000_000), (0, 40_000_000)));
}

#[test]
fn a_line_is_said_of_the_file_that_it_is_in() {
    let mut profile = super::profile(MonoNs(1), &[]);
    let mut sample = |file: &str, line: u32| {
        let (kind, source) = (FrameKind::Jit, Some(SourceRef::new(file, line)));
        let frame = FrameRef { name: "get", kind, tier: None, inlined: false, module: None, source, address: 1 };
        let frame = profile.intern_frame_ref(&frame);
        let stack = profile.push(profile.stack_root(), frame);
        let (comm, labels) = ("p".into(), Default::default());
        let task = profile.task(Task { pid: Pid(1), process_start: 1, tid: Tid(1), comm, labels });
        profile.add(MonoNs(1), stack, task, 1);
    };
    sample("/b.js", 1);
    sample("/a.js", 9);
    let flame = Flame::new([Some(&profile), None], &Shape::default());
    let json = serde_json::to_value(flame_json(&flame, 0.0, false)).unwrap();
    let file = json["frames"]["file"][0].as_u64().unwrap();
    assert_eq!(json["strings"][usize::try_from(file).unwrap()], "/a.js");
    assert_eq!(json["frames"]["line"], serde_json::json!([9]));
    let svg = {
        let mut bytes = Vec::new();
        write(&profile, Format::Svg, &OutputOptions::default(), &mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    };
    assert!(svg.contains("<title>get \n/a.js:9, /b.js:1 (2 samples, 100.00%)</title>"), "{svg}");
}

#[test]
fn narrow_nodes_are_summed_up_where_they_were() {
    let samples: Vec<(String, u64)> = (0..50).map(|index| (format!("narrow{index}"), 1)).collect();
    let paths: Vec<[&str; 2]> = samples.iter().map(|(name, _)| ["main", name.as_str()]).collect();
    let mut all: Vec<(&str, &[&str], u64)> = paths.iter().map(|path| ("p", &path[..], 1)).collect();
    all.push(("p", &["main", "wide", "leaf"], 950));
    let profile = super::profile(MonoNs(1), &all);
    let flame = Flame::new([Some(&profile), None], &Shape::default());
    let json = serde_json::to_value(flame_json(&flame, 0.01, false)).unwrap();
    assert_eq!(nodes(&json), ["0 main 0/10000", "1 wide 0/9500", "2 leaf 9500/9500", "1 (50 more) 500/500"]);
    // The table still has them.
    let strings = json["strings"].as_array().unwrap();
    assert!(strings.iter().any(|text| text == "narrow7"));
}

#[test]
fn ten_thousand_stacks_fit_and_all_time_is_there() {
    let names: Vec<String> = (0..12_000).map(|index| format!("function_{index}")).collect();
    let chunks: Vec<Vec<&str>> =
        (0..10_000).map(|index| names[index..index + 9].iter().map(String::as_str).collect()).collect();
    let all: Vec<(&str, &[&str], u64)> = chunks.iter().map(|path| ("p", &path[..], 1)).collect();
    let profile = super::profile(MonoNs(1), &all);
    let flame = Flame::new([Some(&profile), None], &Shape::default());
    let json = serde_json::to_value(flame_json(&flame, 0.0, false)).unwrap();
    let depth = json["nodes"]["depth"].as_array().unwrap();
    assert!(depth.len() <= 80_001, "{}", depth.len());
    let own: u64 = json["nodes"]["self"].as_array().unwrap().iter().filter_map(Value::as_u64).sum();
    assert_eq!(own, 10_000 * 10_000_000);
}

#[test]
fn long_answers_are_compressed_for_who_can_read_it() {
    run(async {
        let service = Service::new();
        let names: Vec<String> = (0..500).map(|index| format!("function_{index}")).collect();
        let paths: Vec<[&str; 1]> = names.iter().map(|name| [name.as_str()]).collect();
        let samples: Vec<(&str, &[&str], u64)> = paths.iter().map(|path| ("p", &path[..], 1)).collect();
        service.window(5, &samples);
        let plain = service.get("/api/flame?from=-1m").await;
        let request = Request::get("/api/flame?from=-1m").header(header::ACCEPT_ENCODING, "gzip");
        let packed = service.ask(request.body(Body::empty()).unwrap()).await;
        assert_eq!(packed.headers[header::CONTENT_ENCODING], "gzip");
        assert_eq!(packed.headers[header::VARY], "accept-encoding");
        let mut bytes = Vec::new();
        GzDecoder::new(&*packed.body).read_to_end(&mut bytes).unwrap();
        assert!(bytes.len() > packed.body.len() && bytes == plain.body);
    });
}

#[test]
fn a_comparison_is_written_for_tools_and_people() {
    run(async {
        let service = Service::new();
        service.window(5, &[("a", &["f", "old"], 40), ("a", &["f", "same"], 60), ("b", &["f", "same"], 7)]);
        service.window(45, &[("a", &["f", "new"], 30), ("a", &["f", "same"], 20)]);
        let ask = |format: &str| format!("/profile?from=-30s&comm=a&b.from=-70s&b.to=-30s&b.comm=a&{format}");
        let folded = service.get(&ask("format=folded")).await;
        // The first side's 100 samples count as the 50 of the second.
        assert_eq!(folded.text(), "a;f;new 0 30\na;f;old 20 0\na;f;same 30 20\n");
        let plain = service.get(&ask("format=folded&normalize=none")).await;
        assert_eq!(plain.text(), "a;f;new 0 30\na;f;old 40 0\na;f;same 60 20\n");
        let svg = service.get(&ask("format=svg&flame=1&download=1")).await;
        assert_eq!(svg.headers[header::CONTENT_TYPE], "image/svg+xml");
        assert_eq!(svg.headers[header::CONTENT_DISPOSITION], "attachment; filename=\"jitprof-diff.svg\"");
        assert!(svg.headers[header::CONTENT_SECURITY_POLICY].to_str().unwrap().starts_with("sandbox"));
        assert!(
            svg.text().contains("UTC, comm=a</text>") && svg.text().contains(">compared with 20"),
            "{}",
            svg.text()
        );
        let text = service.get(&ask("format=text&rows=2")).await;
        assert_eq!(text.headers[header::CONTENT_TYPE], "text/plain; charset=utf-8");
        assert!(text.text().starts_with("before  100 samples") && text.text().contains("\nafter   50 samples"));
        assert!(text.text().contains("+60.00      0.00     60.00"), "{}", text.text());
        assert!(text.text().ends_with("and 2 more functions\n"), "{}", text.text());
        let json = service.get(&ask("format=json&group=none")).await.json();
        assert_eq!(json["changes"][0]["name"], "new");
        let top = service.get("/profile?from=-30s&format=text&rows=1").await.text();
        assert!(top.starts_with("107 samples, 1.07 s of CPU"), "{top}");
    });
}

#[test]
fn a_comparison_that_cannot_be_made_says_why() {
    run(async {
        let service = Service::new();
        service.window(5, &[("a", &["f"], 5)]);
        for (query, status, why) in [
            ("b.comm=a&from=100&to=200", 404, "side A has no samples"),
            ("from=-1m&b.comm=none", 404, "side B has no samples"),
            ("from=-1m&b.from=-1m&format=pprof", 400, "go tool pprof -diff_base"),
            ("from=-1m&b.from=-1m&format=firefox", 400, "svg, folded, json or text"),
            ("from=-1m&b.from=-1m&normalize=half", 400, "`normalize`: must be total, duration or none"),
            ("from=-1m&b.from=-1m&rows=5", 400, "`rows`: is not known here"),
            ("from=-1m&normalize=total", 400, "`normalize`: is not known here"),
            ("from=-1m&b.from=-1m&b.to=-2m", 400, "`b.from`: must lie before `b.to`"),
            ("from=-1m&b.format=svg", 400, "`b.format`: is not known here"),
            ("from=-1m&format=text&rows=1001", 400, "`rows`: must be a number from 1 to 1000"),
        ] {
            let got = service.get(&format!("/profile?{query}")).await;
            assert_eq!(got.status.as_u16(), status, "{query}: {}", got.text());
            assert!(got.json()["error"].as_str().unwrap().contains(why), "{query}: {}", got.text());
        }
    });
}
