use super::*;
use crate::profile::{Diff, Normalize, Top};

/// `main` calls `a` and `b`, so many samples each, in so many seconds.
fn split(a: u64, b: u64, duration_s: u64) -> Profile {
    let frames = |leaf| vec![native("main", "/bin/x", 1), jit(leaf, Some(Tier::Optimized), 2, 3)];
    let sample = |leaf, count| TestSample { time_ns: 0, task: task(1, "node"), frames: frames(leaf), count };
    let mut profile = profile(&[sample("a", a), sample("b", b)]);
    profile.set_duration(Duration::from_secs(duration_s));
    profile
}

fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut bytes = Vec::new();
    write(&mut bytes);
    String::from_utf8(bytes).unwrap()
}

#[test]
fn the_top_table_has_own_and_total_and_counts_recursion_once() {
    let f = jit("f", Some(Tier::Optimized), 2, 3);
    let main = native("main", "/bin/x", 1);
    let sample = |frames: &[&Frame], count| TestSample {
        time_ns: 0,
        task: task(1, "node"),
        frames: frames.iter().map(|&frame| frame.clone()).collect(),
        count,
    };
    let elsewhere = Frame { address: 77, ..f.clone() };
    let profile = profile(&[sample(&[&main, &f, &elsewhere, &f], 30), sample(&[&main], 10), sample(&[], 60)]);
    let top = Top::of(&profile);
    assert_eq!(top.all.samples, 100);
    let rows: Vec<_> = top.rows.iter().map(|row| (row.function.name, row.own.samples, row.total.samples)).collect();
    assert_eq!(rows, [("f", 30, 30), ("main", 10, 40)]);
    let table = text(|out| write_top(&profile, 1, out).unwrap());
    assert_eq!(
        table,
        "100 samples, 1.00 s of CPU in 10.0 s\n\
         \u{20}    own         s    total         s  kind             function\n\
         \u{20} 30.00%      0.30   30.00%      0.30  JIT optimised *  f  /app/server.js\n\
         and 1 more functions\n"
    );
}

#[test]
fn a_change_is_told_by_share_time_and_seconds() {
    // Twice as long, with the same load but for `b`, which costs four times as much.
    let (before, after) = (split(300, 100, 10), split(600, 800, 20));
    let change = |normalize| {
        let diff = Diff::new(&before, &after, normalize);
        let change = *diff.changes.iter().find(|change| change.function.name == "b").unwrap();
        ([diff.value(change.own[0], 0), diff.value(change.own[1], 1)], change.own_confidence, diff.factor())
    };
    let near = |(values, confidence, factor): ([f64; 2], f64, f64), want: [f64; 2], want_factor: f64| {
        assert!((values[0] - want[0]).abs() + (values[1] - want[1]).abs() < 1e-9, "{values:?} {want:?}");
        assert!((factor - want_factor).abs() < 1e-9, "{factor} {want_factor}");
        assert!(confidence > 0.9999, "{confidence}");
    };
    near(change(Normalize::Total), [0.25, 800.0 / 1400.0], 3.5);
    near(change(Normalize::Duration), [0.1, 0.4], 2.0);
    near(change(Normalize::None), [1.0, 8.0], 1.0);
    let diff = Diff::new(&before, &after, Normalize::Duration);
    let a = diff.changes.iter().find(|change| change.function.name == "a").unwrap();
    assert!(a.own_confidence < 0.1, "the same by time: {}", a.own_confidence);
    assert_eq!(diff.changes[0].function.name, "b");
}

#[test]
fn the_tree_has_both_sides_and_adds_up() {
    let (before, after) = (split(30, 10, 10), split(0, 5, 10));
    let diff = Diff::new(&before, &after, Normalize::Total);
    let json = text(|out| {
        write_diff([&before, &after], &diff, Format::Firefox, &OutputOptions::default(), out).unwrap();
    });
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let nodes = json["nodes"].as_array().unwrap();
    assert_eq!(nodes[0]["total"], serde_json::json!([40, 5]));
    let node = |name| {
        let function = json["functions"].as_array().unwrap().iter().position(|function| function["name"] == name);
        nodes.iter().skip(1).find(|node| node["function"].as_u64() == function.map(|at| at as u64)).unwrap()
    };
    assert_eq!(
        (&node("main")["own"], &node("main")["total"]),
        (&serde_json::json!([0, 0]), &serde_json::json!([40, 5]))
    );
    assert_eq!((&node("a")["own"], &node("b")["own"]), (&serde_json::json!([30, 0]), &serde_json::json!([10, 5])));
    assert!(nodes.iter().enumerate().skip(1).all(|(at, node)| node["parent"].as_u64().unwrap() < at as u64));
}

#[test]
fn equal_profiles_differ_in_nothing() {
    let diff_text = |normalize| {
        let (a, b) = (profile(&service()), profile(&service()));
        let diff = Diff::new(&a, &b, normalize);
        assert!(
            diff.changes.iter().all(|change| diff.change(change.own).abs() < 1e-12 && change.own_confidence < 1e-6)
        );
        text(|out| write_changes(&diff, 100, out).unwrap())
    };
    assert!(diff_text(Normalize::Total).contains("     -"));
    assert!(diff_text(Normalize::Duration).contains("CPUs"));
}

#[test]
fn a_difference_is_drawn_in_red_and_blue_and_folded_with_two_counts() {
    let (before, after) = (split(30, 10, 10), split(30, 50, 10));
    let diff = Diff::new(&before, &after, Normalize::Total);
    let options = OutputOptions::default();
    let written = |format| text(|out| write_diff([&before, &after], &diff, format, &options, out).unwrap());
    assert_eq!(written(Format::Folded), "node;main;*a 60 30\nnode;main;*b 20 50\n");
    let svg = written(Format::Svg);
    let color = |name: &str| {
        let title = format!("<title>{name} \n");
        let rest = &svg[svg.find(&title).unwrap_or_else(|| panic!("no {name} in {svg}"))..];
        let fill = &rest[rest.find("fill=\"").unwrap() + 6..];
        fill[..fill.find('"').unwrap()].to_owned()
    };
    assert_eq!(
        (color("*a"), color("*b"), color("main")),
        ("rgb(100,100,255)".into(), "rgb(255,100,100)".into(), "rgb(250,250,250)".into())
    );
    assert!(svg.contains("more\u{a0}than\u{a0}before"), "{svg}");
    let json: serde_json::Value = serde_json::from_str(&written(Format::Firefox)).unwrap();
    assert_eq!(json["nodes"][0]["total"], serde_json::json!([40, 80]));
    assert_eq!(json["changes"][0]["own_confidence"].as_f64().map(|sure| sure > 0.95), Some(true));
    let pprof = write_diff([&before, &after], &diff, Format::Pprof, &options, Vec::new());
    assert!(matches!(pprof, Err(OutputError::NoDiff)));
}

#[test]
fn what_vanished_is_no_frame_of_the_picture() {
    let (before, after) = (split(30, 10, 10), split(0, 40, 10));
    let diff = Diff::new(&before, &after, Normalize::Total);
    let svg = text(|out| write_diff([&before, &after], &diff, Format::Svg, &OutputOptions::default(), out).unwrap());
    assert!(svg.contains("<title>*b \n") && !svg.contains("<title>*a \n"), "{svg}");
    let empty = Profile::new(meta(), u64::MAX);
    let diff = Diff::new(&before, &empty, Normalize::Duration);
    let result = write_diff([&before, &empty], &diff, Format::Svg, &OutputOptions::default(), Vec::new());
    assert!(matches!(result, Err(OutputError::NoSamples)));
}

#[test]
fn a_table_says_which_of_its_rows_are_a_guess_whatever_file_it_is_read_from() {
    let compiled = |name| jit(name, Some(Tier::Optimized), 2, 3);
    let guess = |name| inlined(jit(name, None, 2, 3)).as_guess();
    let outer = compiled("A.outer()V");
    let jvm = |frames: &[&Frame], count| TestSample {
        time_ns: 0,
        task: task(1, "java"),
        frames: frames.iter().map(|&frame| frame.clone()).collect(),
        count,
    };
    // Another program, whose code is no guess.
    let node = Task { pid: Pid(9), ..task(9, "node") };
    let others = TestSample { task: node, ..jvm(&[&compiled("f")], 20) };
    let certain = profile(&[jvm(&[&outer], 50), others.clone()]);
    assert!(!text(|out| write_top(&certain, 9, out).unwrap()).contains('?'));
    let [a, b, c, d] = ["A.a()V", "A.b()V", "A.c()V", "A.d()V"].map(guess);
    let samples = [
        jvm(&[&outer], 50),
        jvm(&[&outer, &a], 12),
        jvm(&[&outer, &b], 9),
        jvm(&[&outer, &c], 6),
        jvm(&[&d], 3),
        others,
    ];
    let recorded = profile(&samples);
    let written = |format| bytes(&recorded, format, &OutputOptions::default());
    let read = [read_pprof(&*written(Format::Pprof)).unwrap(), read_saved(&*written(Format::Firefox)).unwrap()];
    for profile in [&recorded, &read[0], &read[1]] {
        let table = text(|out| write_top(profile, 9, out).unwrap());
        let said = "\n30.00% of own time is a guess, which is marked ? (?A.a()V, ?A.b()V, ?A.c()V, …): a JVM knows \
                    inlined methods at its safepoints only; of 50.00% in other jitted code of the same processes a \
                    part may be that of methods inlined there\n";
        assert!(table.ends_with(said), "{table}");
    }
}
