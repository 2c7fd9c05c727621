use proptest::prelude::*;

use super::*;
use crate::output::counted::CountedTree;
use crate::output::look::Looks;

/// The sum of a folded file's counts, read as every reader does it.
pub(super) fn total(folded: &str) -> u64 {
    folded.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
}

fn lines(frames: &[Frame], options: &OutputOptions) -> String {
    let sample = TestSample { time_ns: 0, task: task(1, "x"), frames: frames.to_vec(), count: 3 };
    string(&profile(&[sample]), Format::Folded, options)
}

fn named(name: &str) -> Frame {
    native(name, "/bin/x", 1)
}

#[test]
fn stacks_are_ordered_lines() {
    assert_golden("service.folded", &string(&profile(&service()), Format::Folded, &OutputOptions::default()));
}

#[test]
fn options_add_lines_threads_and_processes() {
    let options = OutputOptions { lines: true, per_thread: true, per_process: true, ..OutputOptions::default() };
    assert_golden("service-options.folded", &string(&profile(&service()), Format::Folded, &options));
}

/// A sample of a thread of a process with these labels.
fn labelled(pid: u32, tid: u32, comm: &str, labels: &[(&str, &str)]) -> TestSample {
    let labels = Arc::new(labels.iter().copied().collect());
    let task = Task { pid: Pid(pid), labels, ..task(tid, comm) };
    TestSample { time_ns: 0, task, frames: vec![named("f")], count: 1 }
}

fn written(samples: &[TestSample], per_process: bool) -> String {
    string(&profile(samples), Format::Folded, &OutputOptions { per_process, ..OutputOptions::default() })
}

#[test]
fn a_process_is_one_frame_with_its_number_and_its_name() {
    let renamed = [("comm", "MainThread"), ("exe", "node")];
    let samples = [
        labelled(7, 7, "sh", &[("comm", "sh")]),
        labelled(7, 7, "MainThread", &renamed),
        labelled(7, 8, "V8Worker", &renamed),
        labelled(9, 10, "worker", &[]),
    ];
    let lines = ["pid-7 (node);MainThread;f", "pid-7 (node);V8Worker;f", "pid-7 (node);sh;f", "pid-9;worker;f", ""];
    assert_eq!(written(&samples, true), lines.join(" 1\n"));
    assert_eq!(written(&shuffled(&samples), true), lines.join(" 1\n"));
    // Of equal times, the first by its name.
    assert!(written(&[samples[0].clone(), samples[2].clone()], true).starts_with("pid-7 (node);V8Worker;f 1\n"));
}

#[test]
fn a_process_name_cannot_make_frames_lines_or_counts() {
    let hostile = |comm| labelled(7, 8, "t", &[("comm", comm)]);
    assert_eq!(written(&[hostile("a;b\n) 5")], true), "pid-7 (a:b\\n) 5);t;f 1\n");
    assert_eq!(written(&[hostile("\u{1b}[2J\u{202e}")], true), "pid-7 (\\x1b[2J\\u{202e});t;f 1\n");
    assert_eq!(written(&[hostile("  ")], true), "pid-7 ([empty]);t;f 1\n");
    let beside = labelled(9, 9, "x", &[]);
    assert_eq!(written(&[hostile("# a;b 5"), beside], false), "_# a:b_5;t;f 1\nx;f 1\n");
}

#[test]
fn threads_of_several_processes_stand_below_their_process() {
    let renamed = [("comm", "MainThread"), ("exe", "/usr/bin/node")];
    let samples = [
        labelled(7, 7, "node", &[("comm", "node")]),
        labelled(7, 8, "pool", &[("comm", "node")]),
        labelled(7, 9, "node", &[("comm", "node")]),
        labelled(11, 11, "MainThread", &renamed),
        // Of which only the first thread's sample says what it is called.
        labelled(11, 12, "gc", &[]),
        labelled(13, 14, "pool", &[("comm", "web")]),
        // Before it runs the program of which its labels are.
        labelled(15, 15, "make", &[("comm", "cc1")]),
        labelled(17, 18, "worker", &[]),
    ];
    let several = written(&samples, false);
    let lines: Vec<&str> = several.lines().collect();
    let below = ["node;MainThread;f 1", "node;f 2", "node;gc;f 1", "node;pool;f 1"];
    assert_eq!(lines, [&["make;f 1"][..], &below, &["web;pool;f 1", "worker;f 1"]].concat());
    assert_eq!(written(&samples[..3], false), "node;f 2\npool;f 1\n", "one process");
}

#[test]
fn processes_of_one_number_on_several_hosts_have_their_own_names() {
    let of_host = |comm, thread| {
        let mut sample = labelled(7, 7, thread, &[("comm", comm)]);
        sample.task.process_start = 0;
        sample
    };
    let samples = [of_host("web", "worker"), of_host("web", "worker"), of_host("db", "worker"), of_host("db", "db")];
    assert_eq!(written(&samples, true), "pid-7 (db);db;f 1\npid-7 (db);worker;f 1\npid-7 (web);worker;f 2\n");
    assert_eq!(written(&samples, false), "db;f 1\ndb;worker;f 1\nweb;worker;f 2\n");
    let mut nameless = labelled(7, 8, "worker", &[]);
    nameless.task.process_start = 0;
    assert_eq!(written(&[nameless], true), "pid-7;worker;f 1\n");
}

#[test]
fn a_profile_that_is_full_is_no_second_process() {
    let full = labelled(0, 0, "[profile full]", &[]);
    let samples = [full, labelled(7, 8, "pool", &[("comm", "node")])];
    assert_eq!(written(&samples, false), "[profile full];f 1\npool;f 1\n");
    assert_eq!(written(&samples, true), "pid-0;[profile full];f 1\npid-7 (node);pool;f 1\n");
}

#[test]
fn a_line_has_a_bounded_length_and_what_is_cut_is_the_same_in_all() {
    let long = |at: usize| named(&format!("{at:04}{}", "é".repeat(2000)));
    // A thousand nested functions with names of four kilobytes, and a leaf that is another one each time.
    let stack = |leaf: usize| (0..1000).map(|at| long(if at == 999 { at + leaf } else { at })).collect();
    let sample = |leaf| TestSample { time_ns: 0, task: task(1, "x"), frames: stack(leaf), count: 1 };
    let folded = string(&profile(&[sample(0), sample(1)]), Format::Folded, &OutputOptions::default());
    let [one, other] = folded.lines().collect::<Vec<_>>()[..] else { panic!("{folded}") };
    assert!(one.len() < 180 << 10, "{}", one.len());
    let frames = |line: &str| line.split(';').map(str::to_owned).collect::<Vec<_>>();
    let (one, other) = (frames(one), frames(other));
    assert_eq!(one.len(), 1001);
    assert!(one[..1000] == other[..1000] && one[1000] != other[1000]);
    assert!(one[1..].iter().zip(0..).all(|(frame, at)| frame.starts_with(&format!("{at:04}é"))));
    assert!(one[1].len() > 4000 && one[1].ends_with('é') && one[999].ends_with('…'));
    // What programs have is whole: five hundred frames with names of sixty bytes.
    let name = "n".repeat(60);
    let deep = lines(&vec![named(&name); 500], &OutputOptions::default());
    assert_eq!(deep.matches(&name).count(), 500);
}

#[test]
fn frames_that_look_alike_are_one_line() {
    let apart = [native("f", "/bin/x", 1), native("f", "/bin/y", 2), jit("f", None, 3, 4)];
    let samples: Vec<_> = apart
        .iter()
        .map(|frame| TestSample { time_ns: 0, task: task(1, "x"), frames: vec![frame.clone()], count: 1 })
        .collect();
    assert_eq!(string(&profile(&samples), Format::Folded, &OutputOptions::default()), "x;f 3\n");
}

#[test]
fn places_in_a_line_are_apart_where_lines_are() {
    let minified = |column| at_column(jit("f", None, 3, 1), column);
    let frames = [minified(5), minified(146_721), minified(0), at_column(jit("f", None, 3, 0), 7)];
    let samples: Vec<_> = frames
        .iter()
        .map(|frame| TestSample { time_ns: 0, task: task(1, "x"), frames: vec![frame.clone()], count: 1 })
        .collect();
    let profile = profile(&samples);
    assert_eq!(string(&profile, Format::Folded, &OutputOptions::default()), "x;f 4\n");
    let apart = string(&profile, Format::Folded, &OutputOptions { lines: true, ..OutputOptions::default() });
    let mut apart: Vec<&str> = apart.lines().collect();
    apart.sort_unstable();
    let at = ["(/app/server.js) 1", "(/app/server.js:1) 1", "(/app/server.js:1:146721) 1", "(/app/server.js:1:5) 1"];
    assert_eq!(apart, at.map(|place| format!("x;f {place}")));
}

#[test]
fn names_are_escaped() {
    let frames = [
        named("a;b\nc\td\r"),
        named("\u{1b}[31mred\u{7f}\u{85}."),
        named("\u{202e}gnp\u{2028}\u{feff}\u{ffff}"),
        named("  "),
        named("ends in 42"),
        named("ends in 4.2"),
    ];
    assert_eq!(
        lines(&frames, &OutputOptions::default()),
        "x;a:b\\nc\\td;\\x1b[31mred\\x7f\\x85.;\\u{202e}gnp\\u{2028}\\u{feff}\\u{ffff};[empty];ends in_42;ends in_4.2 3\n"
    );
}

#[test]
fn a_thread_name_cannot_make_a_comment() {
    let sample = TestSample { time_ns: 0, task: task(1, "# not a comment"), frames: vec![named("f")], count: 1 };
    let folded = string(&profile(&[sample]), Format::Folded, &OutputOptions::default());
    assert_eq!(folded, "_# not a comment;f 1\n");
}

#[test]
fn a_tree_that_is_full_says_so_and_keeps_the_total() {
    let samples: Vec<_> = (0..100)
        .map(|i| TestSample {
            time_ns: 0,
            task: task(1, "x"),
            frames: vec![named(&format!("f{i}")), named(&format!("g{i}")), named("leaf")],
            count: 1,
        })
        .collect();
    let options = OutputOptions::default();
    let profile = profile(&samples);
    let looks = Looks::new(&[&profile], &options, |look| look);
    let tree = CountedTree::with_max_nodes(&profile, &looks, false, 50);
    assert_eq!(tree.total(), 100);
    assert!(tree.samples.len() <= 100);
    assert!((1..tree.samples.len()).any(|node| tree.look(node).name == "[too many frames]"));
}

proptest! {
    #[test]
    fn any_name_gives_one_line_a_stack_with_its_count(names in prop::collection::vec(any::<String>(), 1..5)) {
        let frames: Vec<_> = names.iter().map(|name| named(name)).collect();
        let folded = lines(&frames, &OutputOptions { lines: true, ..OutputOptions::default() });
        prop_assert_eq!(folded.lines().count(), 1);
        prop_assert!(folded.ends_with(" 3\n"));
        let stack = folded.trim_end_matches(" 3\n");
        prop_assert_eq!(stack.split(';').count(), names.len() + 1);
        prop_assert!(!stack.chars().any(char::is_control));
    }
}
