//! The model with its view, on a screen that is memory.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::model::{Action, Model, News, Range, View};
use super::source::options;
use super::view::{Look, draw};
use crate::profile::{FrameRef, Profile, ProfileMeta, SampledEvent, Task};
use crate::record::Targets;
use crate::symbol::{FrameKind, Tier};
use jitprof_common::units::{MonoNs, Pid, Tid};

/// A thread (pid, tid, name), its stack from the root, and samples of 10 ms each.
type Sample<'a> = ((u32, u32, &'a str), &'a [&'a str], u64);

/// A second from `at` on. A name that begins with a mark is a JIT's, of that tier.
fn second(at: u64, samples: &[Sample<'_>]) -> News {
    let meta = ProfileMeta {
        title: String::new(),
        start_time: UNIX_EPOCH,
        start: MonoNs(at * 1_000_000_000),
        duration: Duration::from_secs(1),
        frequency_hz: NonZeroU32::new(100).unwrap(),
        event: SampledEvent::CpuClock,
    };
    let mut profile = Profile::new(meta, 100_000_000);
    for &((pid, tid, comm), names, count) in samples {
        let stack = names.iter().fold(profile.stack_root(), |prefix, name| {
            let (kind, tier) = match name.chars().next() {
                Some('*') => (FrameKind::Jit, Some(Tier::Optimized)),
                Some('~') => (FrameKind::Interpreter, Some(Tier::Interpreted)),
                _ => (FrameKind::Native, None),
            };
            let frame = FrameRef { name, kind, tier, inlined: false, module: None, source: None, address: 0 };
            let frame = profile.intern_frame_ref(&frame);
            profile.push(prefix, frame)
        });
        let labels = Arc::new([("comm", format!("app{pid}"))].into_iter().collect());
        let task = Task { pid: Pid(pid), process_start: 0, tid: Tid(tid), comm: Arc::from(comm), labels };
        let task = profile.task(task);
        profile.add(MonoNs(at * 1_000_000_000 + 500_000_000), stack, task, count);
    }
    News { profile, health: None, is_all: false }
}

const SAMPLES: [Sample<'static>; 4] = [
    ((7, 7, "main"), &["run", "*cart"], 40),
    ((7, 7, "main"), &["run", "~cart"], 10),
    ((7, 8, "gc"), &["sweep"], 30),
    ((9, 9, "main"), &["run", "parse", "parse"], 20),
];

fn model(samples: &[Sample<'_>]) -> Model {
    let mut model = Model::new("everything");
    model.take(second(0, samples));
    model.refresh();
    model
}

fn press(model: &mut Model, keys: &str) {
    for c in keys.chars() {
        let code = match c {
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            '↓' => KeyCode::Down,
            c => KeyCode::Char(c),
        };
        let action = model.key_pressed(KeyEvent::new(code, KeyModifiers::NONE));
        assert!(matches!(action, Action::Nothing), "{c}");
    }
}

fn screen(model: &mut Model, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, model, Look { has_colors: true })).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let line = |row: u16| (0..width).map(|column| buffer[(column, row)].symbol()).collect::<String>();
    (0..height).map(|row| line(row).trim_end().to_owned()).collect()
}

#[test]
fn functions_have_their_own_and_total_time_tier_and_process() {
    let mut model = model(&SAMPLES);
    let shown = screen(&mut model, 80, 24);
    assert!(shown[0].starts_with("jitprof top  last 10 s  everything"), "{shown:#?}");
    assert!(shown[1].starts_with("1.00 CPUs busy  100 samples in 1 s"), "{shown:#?}");
    let list: Vec<Vec<&str>> = shown[4..10].iter().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        list,
        [
            vec!["40.0%", "40.0%", "JIT", "*", "app7", "7", "*cart"],
            vec!["30.0%", "30.0%", "native", "app7", "7", "sweep"],
            // A function that calls itself counts once.
            vec!["20.0%", "20.0%", "native", "app9", "9", "parse"],
            vec!["10.0%", "10.0%", "interp", "~", "app7", "7", "~cart"],
            vec!["0.0%", "50.0%", "native", "app7", "7", "run"],
            vec!["0.0%", "20.0%", "native", "app9", "9", "run"],
        ]
    );
    press(&mut model, "s");
    assert!(screen(&mut model, 80, 24)[4].ends_with("run"));
    press(&mut model, "m");
    let merged = screen(&mut model, 80, 24);
    let carts: Vec<&String> = merged.iter().filter(|line| line.contains("cart")).collect();
    assert_eq!(carts.len(), 1, "{merged:#?}");
    assert!(carts[0].trim_start().starts_with("50.0%"), "{merged:#?}");
}

#[test]
fn a_filter_counts_while_it_is_typed_and_esc_ends_it() {
    let mut model = model(&SAMPLES);
    press(&mut model, "/PAR");
    let shown = screen(&mut model, 80, 24);
    assert!(shown[4].ends_with("parse") && shown[5].is_empty() && shown[23].starts_with("/PAR_"), "{shown:#?}");
    press(&mut model, "x\n");
    assert!(screen(&mut model, 80, 24)[4].contains("nothing of this name"));
    press(&mut model, "\x1b");
    assert_eq!(model.lines(), 6);
}

#[test]
fn enter_on_a_function_shows_the_stacks_that_have_it() {
    let mut model = model(&SAMPLES);
    press(&mut model, "↓\n");
    let shown = screen(&mut model, 80, 24);
    assert_eq!(model.view, View::Tree);
    let names: Vec<&str> = shown[4..].iter().filter_map(|line| line.split_whitespace().last()).collect();
    assert_eq!(names[..2], ["7", "sweep"], "{shown:#?}");
    assert!(shown[5].starts_with("100.0% 100.0%"), "{shown:#?}");
    assert!(shown[6].is_empty(), "{shown:#?}");
}

#[test]
fn nodes_of_the_tree_open_and_close_and_stay_so() {
    let mut model = model(&SAMPLES);
    press(&mut model, "t");
    let lines = model.lines();
    press(&mut model, "\n");
    assert!(model.lines() < lines);
    let closed = model.lines();
    model.take(second(1, &SAMPLES));
    model.refresh();
    assert_eq!(model.lines(), closed);
    press(&mut model, "\n");
    assert_eq!(model.lines(), lines);
}

#[test]
fn the_tree_opens_where_calls_part() {
    let deep: Vec<String> = (0..50).map(|depth| format!("call{depth}")).collect();
    let stack = |leaf| deep.iter().map(String::as_str).chain([leaf]).collect::<Vec<_>>();
    let (one, other) = (stack("one"), stack("other"));
    let mut model = model(&[((7, 7, "main"), &one, 3), ((7, 7, "main"), &other, 2)]);
    press(&mut model, "t");
    let shown = screen(&mut model, 80, 24).join("\n");
    assert!(["call49", "one", "other"].iter().all(|name| shown.contains(name)), "{shown}");
}

#[test]
fn a_thread_can_be_looked_at_alone_and_is_what_is_written() {
    let mut model = model(&SAMPLES);
    press(&mut model, "h↓\n");
    let shown = screen(&mut model, 80, 24);
    assert!(shown[2].contains("thread 8") && shown[4].ends_with("sweep") && shown[5].is_empty(), "{shown:#?}");
    let Action::Write(profile, options) = model.key_pressed(KeyEvent::from(KeyCode::Char('o'))) else {
        panic!("nothing to write")
    };
    assert_eq!(profile.total(), 30);
    assert_eq!(options.title.as_deref(), Some("everything · thread 8"));
    press(&mut model, "\x1b/cart\n");
    let Action::Write(profile, _) = model.key_pressed(KeyEvent::from(KeyCode::Char('o'))) else {
        panic!("nothing to write")
    };
    assert_eq!(profile.total(), 50);
}

#[test]
fn that_nothing_has_used_a_cpu_is_said_only_of_what_was_sampled() {
    let mut model = Model::new("everything");
    let line = |model: &mut Model| screen(model, 80, 24)[4].clone();
    assert_eq!(line(&mut model), "  attaching: no samples can have come so far");
    model.take(second(0, &[]));
    assert!(line(&mut model).contains("attaching"), "it is not worked out yet");
    model.refresh();
    assert_eq!(line(&mut model), "  no samples so far: nothing that is recorded has used a CPU");
    model.take(second(1, &SAMPLES));
    model.refresh();
    assert!(line(&mut model).contains("cart"));
}

#[test]
fn a_pause_before_the_first_samples_is_no_attaching() {
    let mut model = Model::new("everything");
    press(&mut model, "p");
    model.take(second(0, &SAMPLES));
    assert!(!model.is_stale());
    let shown = screen(&mut model, 80, 24)[4].clone();
    assert_eq!(shown, "  paused before the first samples were shown; p goes on");
    press(&mut model, "p");
    assert!(screen(&mut model, 80, 24)[4].contains("attaching"), "until it is worked out");
}

#[test]
fn a_pause_holds_the_screen_and_the_recording_goes_on() {
    let mut model = model(&SAMPLES);
    press(&mut model, "p");
    model.take(second(1, &SAMPLES));
    assert!(!model.is_stale());
    assert!(screen(&mut model, 80, 24)[0].contains("PAUSED"));
    press(&mut model, "p");
    assert!(model.is_stale());
    model.refresh();
    assert_eq!(model.figures.samples, 200);
}

#[test]
fn ranges_are_ten_seconds_a_minute_and_all() {
    let mut model = Model::new("x");
    (0..100).for_each(|at| model.take(second(at, &SAMPLES)));
    model.refresh();
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push((model.range, model.figures.samples, model.figures.duration.as_secs()));
        press(&mut model, "w");
    }
    assert_eq!(seen, [(Range::Seconds(10), 1000, 10), (Range::Seconds(60), 6000, 60), (Range::Whole, 10_000, 100)]);
    // What a service answers is all that was asked for, and takes the place of the answer before.
    (0..2).for_each(|_| model.take(News { is_all: true, ..second(0, &SAMPLES) }));
    model.refresh();
    assert_eq!((model.range, model.figures.samples), (Range::Minute, 100));
}

#[test]
fn a_warning_waits_until_what_a_key_has_done_was_seen() {
    let mut model = model(&SAMPLES);
    assert!(model.warn("lost events"));
    model.answer("written app.svg");
    assert!(!model.warn("more lost events"));
    let last = |model: &mut Model| screen(model, 80, 24).join("\n");
    assert!(last(&mut model).contains("written app.svg"));
    press(&mut model, "p");
    assert!(model.warn("more lost events"));
    let shown = last(&mut model);
    assert!(shown.contains("more lost events") && !shown.contains("written"), "{shown}");
}

#[test]
fn what_is_chosen_stays_so_where_the_order_changes() {
    let mut model = model(&SAMPLES);
    press(&mut model, "↓");
    model.take(second(1, &[((9, 9, "main"), &["run", "parse"], 500)]));
    model.refresh();
    assert_eq!(model.figures.functions[model.cursor].name, "sweep");
    assert_eq!(model.cursor, 2);
}

#[test]
fn nothing_that_a_target_chose_reaches_the_terminal_as_it_is() {
    let hostile = "\x1b]0;owned\x07\x1b[2J\u{202e}\u{9b}31m\n\rname";
    let samples: [Sample<'_>; 2] = [((7, 7, hostile), &[hostile], 3), ((8, 8, hostile), &["a\u{301}", hostile], 2)];
    let mut model = Model::new(hostile);
    model.take(second(0, &samples));
    model.say(hostile);
    model.refresh();
    for keys in ["", "t", "h"] {
        press(&mut model, keys);
        model.say(hostile);
        let shown = screen(&mut model, 200, 24).concat();
        assert!(shown.contains("\\x1b"), "{shown}");
        let bad = |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}');
        assert!(!shown.contains(bad), "{shown:?}");
    }
}

#[test]
fn long_names_keep_their_end_and_every_size_can_be_drawn() {
    let long = format!("{}end.js:12", "x".repeat(400));
    let samples: [Sample<'_>; 2] = [((7, 7, "main"), &["run", &long], 3), ((8, 8, "日本語の名前"), &["日本語"], 2)];
    let mut model = model(&samples);
    let shown = screen(&mut model, 80, 24);
    assert!(shown[4].ends_with("end.js:12") && shown[4].contains('…'), "{shown:#?}");
    for keys in ["", "t", "h", "?"] {
        press(&mut model, keys);
        for (width, height) in [(1, 1), (2, 3), (10, 5), (20, 24), (39, 10), (80, 4), (80, 24), (300, 100)] {
            assert_eq!(screen(&mut model, width, height).len(), usize::from(height));
        }
    }
}

#[test]
fn control_c_and_q_end_it_also_while_a_filter_is_typed() {
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    let mut model = model(&SAMPLES);
    press(&mut model, "/x");
    assert!(matches!(model.key_pressed(control_c), Action::Quit));
    press(&mut model, "\n");
    assert!(matches!(model.key_pressed(KeyEvent::from(KeyCode::Char('q'))), Action::Quit));
}

#[derive(Debug, clap::Parser)]
struct Line {
    #[command(flatten)]
    arguments: super::Arguments,
}

fn parse(words: &[&str]) -> Result<Line, clap::Error> {
    <Line as clap::Parser>::try_parse_from([&["top"], words].concat())
}

#[cfg(feature = "serve")]
#[test]
fn where_a_service_is_means_nothing_without_one() {
    for words in
        [&["--listen", "127.0.0.1:7979"][..], &["--token-file", "/run/token"], &["4711", "--listen", "127.0.0.1:1"]]
    {
        let said = parse(words).unwrap_err().to_string();
        assert!(said.contains("--service"), "{said}");
        assert!(parse(&[words, &["--service"]].concat()).is_ok(), "{words:?}");
    }
    assert!(parse(&[]).is_ok() && parse(&["--pid", "1"]).is_ok() && parse(&["--service"]).is_ok());
}

#[test]
fn what_is_not_to_be_read_is_not_read() {
    let reads = |words: &[&str]| options(Targets::All, &parse(words).unwrap().arguments).read_runtime;
    assert!(reads(&[]) && !reads(&["--no-read-runtime"]));
    #[cfg(feature = "serve")]
    assert!(parse(&["--no-read-runtime", "--service"]).is_err(), "the service has read it or not");
}
