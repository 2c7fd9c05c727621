//! CPython without any flag: its own list of frames, at its place in the native stack.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use jitprof_tests::{
    Jitprof, Recording, Scratch, Share, Stack, Target, assert_at_least, assert_at_least_of_few, assert_enough,
    assert_share, compile, path_from, target_file, timed_samples, unix_minus_monotonic_ns,
};

/// Samples a second.
pub(super) const FREQUENCY: &str = "499";
/// What is promised.
pub(super) const PROMISED: f64 = 0.995;

fn start(program: &str, scratch: &Scratch) -> Result<Target> {
    let mut command = Command::new(path_from("JITPROF_PYTHON")?);
    command.arg(target_file(program)?).arg("600");
    Target::start(command, scratch)
}

/// Named by the interpreter's own frames alone, each of which has its place.
#[track_caller]
pub(super) fn assert_bare(recording: &Recording) {
    let jit = |name: &str| recording.number(&format!("/jit/named/{name}"));
    assert_eq!((jit("jitdump"), jit("peeked"), jit("perf_map")), (0, 0, 0));
    assert_enough("frames by the runtime's own tables", jit("runtime"), 100);
    assert_placed(recording);
    assert_at_least("named frames", recording.named_frames(), PROMISED);
}

/// All stacks are complete, and the interpreter's frames have their places in them.
#[track_caller]
pub(super) fn assert_placed(recording: &Recording) {
    assert_at_least("complete stacks", recording.complete(), PROMISED);
    let (placed, apart) = (recording.number("/stacks/with_list"), recording.number("/stacks/list_apart"));
    assert_at_least("placed", Share { part: placed, whole: placed + apart }, PROMISED);
    assert_eq!(recording.account["advice"].as_array().map(Vec::len), Some(0), "nothing is to be advised");
}

pub(super) fn function(frame: &str) -> &str {
    let frame = frame.strip_prefix('~').unwrap_or(frame);
    frame.split(" (").next().unwrap_or(frame)
}

/// Of the stacks with the last of these functions, those in which all stand in this order, with others between them.
pub(super) fn chain(recording: &Recording, names: &[&str]) -> Share {
    let folded = &recording.folded;
    let has_leaf = |stack: &Stack| stack.frames.iter().any(|frame| Some(function(frame)) == names.last().copied());
    let in_order = |stack: &Stack| {
        let mut frames = stack.frames.iter().map(|frame| function(frame));
        names.iter().all(|name| frames.any(|frame| frame == *name))
    };
    Share { part: folded.count(|stack| has_leaf(stack) && in_order(stack)), whole: folded.count(has_leaf) }
}

#[test]
fn functions_stand_in_whole_stacks_with_their_shares() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = start("python/burn.py", &scratch)?;
    let recording =
        Jitprof::recording_at(&scratch, FREQUENCY, ["--pid", target.said("pid")?])?.record_cpu(target.pid()?, 5)?;
    assert_bare(&recording);
    assert_share("leaf_hot", recording.folded.share("leaf_hot", "leaf_cold"), 0.75);
    let outer = ["_start", "_PyEval_EvalFrameDefault", "<module>", "main", "outer"];
    let chains = [["middle", "leaf_hot"], ["side_cold", "leaf_cold"]];
    let chains = chains.map(|inner| chain(&recording, &[&outer[..], &inner].concat()));
    assert_at_least("chains", chains.into_iter().sum(), PROMISED);
    // Native functions that were inlined into the loop stand below what it runs.
    let is_loop = |frame: &String| frame.starts_with("_PyEval_EvalFrameDefault");
    let has_inlined = |stack: &Stack| {
        let mut below = stack.frames.iter().skip_while(|frame| !is_loop(frame));
        below.nth(1).is_some_and(|frame| !frame.starts_with('~'))
    };
    let folded = &recording.folded;
    let below = folded.count(|stack| stack.frames.iter().any(is_loop) && !has_inlined(stack));
    let whole = folded.count(|stack| stack.frames.iter().any(is_loop));
    assert_at_least("functions directly below the loop", Share { part: below, whole }, PROMISED);
    Ok(())
}

#[test]
fn what_is_not_wanted_is_not_there() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = start("python/burn.py", &scratch)?;
    let record = |more: &[&str]| {
        let words = [&["--pid", target.said("pid")?], more].concat();
        Jitprof::recording_at(&scratch, FREQUENCY, words)?.record_cpu(target.pid()?, 4)
    };
    let has = |stack: &Stack, name: &str| stack.frames.iter().any(|frame| function(frame) == name);
    let hidden = record(&["--native-frames", "hide"])?;
    assert_bare(&hidden);
    assert_eq!(hidden.folded.count(|stack| has(stack, "_PyEval_EvalFrameDefault")), 0);
    let chains = chain(&hidden, &["_start", "<module>", "main", "outer", "leaf_hot"]);
    assert_at_least_of_few("chains", chains, PROMISED);
    let native = record(&["--no-vm-frames"])?;
    let taken = native.number("/stacks/with_list") + native.number("/stacks/list_apart");
    assert_eq!((taken, native.number("/jit/named/runtime")), (0, 0));
    assert_eq!(native.folded.count(|stack| has(stack, "leaf_hot")), 0);
    assert_enough("the loop", native.folded.count(|stack| has(stack, "_PyEval_EvalFrameDefault")), 100);
    let advises = |line: &str| line.starts_with("unnamed ") || line.starts_with("tables ");
    assert!(!native.stderr.lines().any(advises), "it is left out on purpose: {}", native.stderr);
    let pid = target.pid()?.to_string();
    let dumped = |more: &[&str]| -> Result<bool> {
        let finished = Jitprof::new(&scratch, [&["dump", &pid], more].concat())?.run()?;
        Ok(finished.stdout.contains("outer"))
    };
    assert!(dumped(&[])? && !dumped(&["--no-read-runtime"])?);
    Ok(())
}

#[test]
fn each_way_to_call_keeps_its_callers() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = start("python/shapes.py", &scratch)?;
    let words = ["--pid", target.said("pid")?];
    let recording = Jitprof::recording_at(&scratch, FREQUENCY, words)?.record_cpu(target.pid()?, 6)?;
    assert_bare(&recording);
    let chains: [&[&str]; 6] = [
        &["main", "through_c", "list_sort", "_PyEval_EvalFrameDefault", "by_c", "leaf_c"],
        &["main", "run", "coroutine", "awaited", "leaf_coroutine"],
        &["main", "drive", "delegate", "generator", "leaf_generator"],
        &["main", "method_of", "Widget.method", "Widget.method.<locals>.<lambda>", "leaf_method"],
        &["main", "down", "down", "leaf_deep"],
        &["Thread._bootstrap", "Thread.run", "worker", "leaf_thread"],
    ];
    for names in chains {
        let chain = chain(&recording, names);
        assert_enough(names.last().unwrap_or(&""), chain.whole, 50);
        assert_at_least_of_few(&names.join(" "), chain, PROMISED);
    }
    let is_deep = |stack: &Stack| stack.frames.iter().any(|frame| function(frame) == "leaf_deep");
    let has_all = |stack: &Stack| stack.frames.iter().filter(|frame| function(frame) == "down").count() == 900;
    let folded = &recording.folded;
    let deep = Share { part: folded.count(|stack| is_deep(stack) && has_all(stack)), whole: folded.count(is_deep) };
    assert_at_least_of_few("900 deep", deep, PROMISED);
    Ok(())
}

/// When a leaf of `chains.py` ran, by CLOCK_MONOTONIC, and the functions of its chain from the innermost.
struct Burnt {
    start_ns: u64,
    end_ns: u64,
    chain: Vec<String>,
}

/// Reads the log of `chains.py`, which may be writing its last line.
fn burnt(log: &Path) -> Result<Vec<Burnt>> {
    let text = std::fs::read_to_string(log)?;
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let read = |line: &str| -> Result<Burnt> {
        let mut words = line.splitn(3, ' ');
        let mut next = || words.next().context("a line of the log has three parts");
        Ok(Burnt {
            start_ns: next()?.parse()?,
            end_ns: next()?.parse()?,
            chain: next()?.split('\t').map(str::to_owned).collect(),
        })
    };
    whole.lines().map(read).collect()
}

#[test]
fn each_sample_has_the_chain_that_the_program_itself_says_it_had_then() -> Result<()> {
    // A sample's time is known to a millisecond; the clocks of wall and samples are read one after the other.
    const SLACK_NS: u64 = 3_000_000;
    const UNNAMED: &str = "[interpreted function without a name]";
    let scratch = Scratch::new()?;
    let mut command = Command::new(path_from("JITPROF_PYTHON")?);
    command.arg(target_file("python/chains.py")?).args(["chains", "600"]);
    let target = Target::start(command, &scratch)?;
    let words = ["--pid", target.said("pid")?, "-o", "out.json"];
    let recording = Jitprof::recording_at(&scratch, FREQUENCY, words)?.record_cpu(target.pid()?, 6)?;
    assert_placed(&recording);
    let (burnt, offset) = (burnt(&scratch.file("chains"))?, unix_minus_monotonic_ns());
    let mut right = Share { part: 0, whole: 0 };
    let mut named = Share { part: 0, whole: 0 };
    for sample in timed_samples(&scratch.file("out.json"))? {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "times of this century")]
        let time_ns = (sample.unix_ms * 1e6) as u64 - offset;
        let is_within = |one: &&Burnt| one.start_ns + SLACK_NS < time_ns && time_ns + SLACK_NS < one.end_ns;
        let Some(Burnt { chain, .. }) = burnt.iter().find(is_within) else { continue };
        let is_shown = |frame: &&String| frame.starts_with('~') || *frame == UNNAMED;
        let shown: Vec<&str> =
            sample.frames.iter().filter(is_shown).map(|frame| frame.trim_start_matches('~')).collect();
        right.whole += sample.weight;
        named.whole += sample.weight;
        // What exec makes of a string lives as long as its call, which may be over before it is looked at.
        let is_same = |(shown, logged): (&&str, &String)| *shown == UNNAMED && logged == "<module>" || shown == logged;
        if shown.len() == chain.len() && shown.iter().zip(chain).all(is_same) {
            right.part += sample.weight;
            named.part += if shown.contains(&UNNAMED) { 0 } else { sample.weight };
        } else {
            println!("{time_ns}: shown {shown:?}, logged {chain:?}");
        }
    }
    println!("{named:?} have all their names");
    assert_enough("chains", u64::try_from(burnt.len())?, 50);
    assert_at_least("samples with the logged chain", right, PROMISED);
    assert_at_least("samples with all names", named, 0.85);
    Ok(())
}

#[test]
fn long_lists_do_not_cost_other_samples_their_place() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = start("python/deep.py", &scratch)?;
    let words = ["--pid", target.said("pid")?];
    let mut running = Jitprof::recording_at(&scratch, FREQUENCY, words)?.spawn()?;
    running.wait_for_samples(target.pid()?, 100)?;
    // The ring has room for some 70 of these samples with all of their 900 frames.
    running.signal(libc::SIGSTOP)?;
    running.wait_for_samples(target.pid()?, 2000)?;
    running.signal(libc::SIGCONT)?;
    running.wait_for_samples(target.pid()?, 1000)?;
    running.signal(libc::SIGINT)?;
    let recording = running.record()?;
    assert_eq!(recording.number("/samples/lost_ring_full"), 0);
    let refused = recording.number("/stacks/lists_refused");
    assert_enough("refused lists", refused, 100);
    assert!(recording.number("/stacks/list_apart") >= refused, "each is told");
    assert!(recording.stderr.contains("too many for a ring buffer so full"), "{}", recording.stderr);
    let deep = |stack: &Stack| stack.frames.iter().filter(|frame| function(frame) == "down").count() == 900;
    assert_enough("whole ones", recording.folded.count(deep), 100);
    Ok(())
}

/// A process with this pid has run `burn.py`, and has all of its stacks, whatever others did beside it.
#[track_caller]
fn assert_undisturbed(recording: &Recording, pid: &str, beside: &str) {
    let folded = &recording.folded;
    let is_burnt = |stack: &Stack| stack.is_of(pid);
    let names = ["_start", "_PyEval_EvalFrameDefault", "<module>", "main", "outer"];
    let is_whole = |stack: &Stack| {
        let mut frames = stack.frames.iter().map(|frame| function(frame));
        names.iter().all(|name| frames.any(|frame| frame == *name))
    };
    let whole = folded.count(is_burnt);
    assert_enough("samples of the quiet one", whole, 1800);
    let part = folded.count(|stack| is_burnt(stack) && is_whole(stack));
    assert_at_least(&format!("its stacks beside {beside}"), Share { part, whole }, PROMISED);
    assert_share("leaf_hot", folded.share("leaf_hot", "leaf_cold"), 0.75);
}

/// A process that spoils its own list of frames, and a quiet one beside it.
fn record_beside_spoiled(mode: &str) -> Result<()> {
    let (scratch, other) = (Scratch::new()?, Scratch::new()?);
    let quiet = start("python/burn.py", &scratch)?;
    let mut command = Command::new(path_from("JITPROF_PYTHON")?);
    command.arg(target_file("python/spoiled.py")?).args([mode, "600"]);
    let spoiled = Target::start(command, &other)?;
    let pids = format!("{},{}", quiet.said("pid")?, spoiled.said("pid")?);
    let recording = Jitprof::recording_at(&scratch, FREQUENCY, ["--pid", &pids])?.record_cpu(quiet.pid()?, 5)?;
    assert_eq!(recording.number("/samples/lost_ring_full"), 0, "{mode}");
    assert_undisturbed(&recording, quiet.said("pid")?, mode);
    let folded = &recording.folded;
    // What cannot be walked to its end is told: a circle is deeper than anything, and what leads nowhere is put nowhere.
    let where_told = if mode == "circle" { "/stacks/cut/deeper than a sample holds" } else { "/stacks/list_apart" };
    let told = recording.number(where_told);
    assert_enough("lists that do not end", told, 500);
    let spoiled = spoiled.said("pid")?;
    let of_spoiled = folded.count(|stack| stack.is_of(spoiled));
    assert!(told <= of_spoiled, "{told} of {of_spoiled}");
    Ok(())
}

/// What a function has called.
fn callee<'a>(stack: &'a Stack, caller: &str) -> Option<&'a str> {
    let at = stack.frames.iter().position(|frame| function(frame) == caller)?;
    stack.frames.get(at + 1).map(|frame| function(frame))
}

#[test]
fn freed_code_is_not_taken_for_what_came_to_its_place() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = start("python/replaced.py", &scratch)?;
    let words = ["--pid", target.said("pid")?];
    let recording = Jitprof::recording_at(&scratch, FREQUENCY, words)?.record_cpu(target.pid()?, 6)?;
    let called = |caller: &str, made: &str| recording.folded.count(|stack| callee(stack, caller) == Some(made));
    let right = called("caller_a", "made_a") + called("caller_b", "made_b");
    assert_enough("each calls its own", right, 200);
    assert_eq!(called("caller_a", "made_b") + called("caller_b", "made_a"), 0, "beside {right}");
    let replaced = recording.number("/jit/unnamed/replaced before it was looked at");
    assert_enough("frames of code that another has replaced", replaced, 100);
    Ok(())
}

#[test]
fn a_list_that_is_a_circle_spoils_its_own_stacks_only() -> Result<()> {
    record_beside_spoiled("circle")
}

#[test]
fn a_list_that_leads_anywhere_spoils_its_own_stacks_only() -> Result<()> {
    record_beside_spoiled("anywhere")
}

#[test]
fn what_pretends_to_be_a_cpython_spoils_its_own_stacks_only() -> Result<()> {
    let scratch = Scratch::new()?;
    let quiet = start("python/burn.py", &scratch)?;
    let program = scratch.file("python3.13");
    std::fs::rename(compile(&scratch, "cc", "native/pretender.c", &["-O2", "-rdynamic", "-pthread"])?, &program)?;
    let mut pretenders = Vec::new();
    for mode in ["circle", "anywhere", "changing"] {
        let own = Scratch::new()?;
        let mut command = Command::new(&program);
        command.args([mode, "600"]);
        pretenders.push((Target::start(command, &own)?, own));
    }
    let mut pids = quiet.said("pid")?.to_owned();
    for (pretender, _) in &pretenders {
        pids += &format!(",{}", pretender.said("pid")?);
    }
    let recording = Jitprof::recording_at(&scratch, FREQUENCY, ["--pid", &pids])?.record_cpu(quiet.pid()?, 4)?;
    assert_eq!(recording.number("/samples/lost_ring_full"), 0);
    assert_undisturbed(&recording, quiet.said("pid")?, "what pretends to be one");
    for (pretender, _) in &pretenders {
        let pid = pretender.said("pid")?;
        let count = recording.folded.count(|stack| stack.is_of(pid));
        assert_enough(&format!("samples of {pid}"), count, 20);
    }
    Ok(())
}

#[test]
fn forked_workers_are_read_as_their_parents() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = start("python/prefork.py", &scratch)?;
    let child: u32 = target.said("child")?.parse()?;
    let recording = Jitprof::recording_at(&scratch, FREQUENCY, ["--pid", target.said("pid")?])?.record_cpu(child, 4)?;
    assert_bare(&recording);
    assert_share("leaf_hot", recording.folded.share("leaf_hot", "leaf_cold"), 0.75);
    let names = ["_start", "<module>", "serve", "work", "main", "outer", "middle", "leaf_hot"];
    assert_at_least("the chain through the fork", chain(&recording, &names), PROMISED);
    Ok(())
}

#[test]
fn a_line_is_the_one_that_runs() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = start("python/burn.py", &scratch)?;
    let words = ["--pid", target.said("pid")?, "--lines"];
    let recording = Jitprof::recording_at(&scratch, FREQUENCY, words)?.record_cpu(target.pid()?, 7)?;
    let text = std::fs::read_to_string(target_file("python/burn.py")?)?;
    let line_of = |what: &str| text.lines().position(|line| line.contains(what)).map_or(0, |at| at + 1);
    let (first, last) = (line_of("def leaf_hot"), line_of("def leaf_cold"));
    let call = format!("/burn.py:{})", line_of("return middle(n)"));
    let hot = |stack: &Stack| stack.frames.iter().any(|frame| function(frame) == "leaf_hot");
    let right = |stack: &Stack| {
        let line = |frame: &String| frame.rsplit_once(':')?.1.trim_end_matches(')').parse::<usize>().ok();
        let leaf = stack.frames.iter().find(|frame| function(frame) == "leaf_hot").and_then(line);
        leaf.is_some_and(|line| line > first && line < last)
            && stack.frames.iter().any(|frame| function(frame) == "outer" && frame.ends_with(&call))
    };
    let folded = &recording.folded;
    let lines = Share { part: folded.count(|stack| hot(stack) && right(stack)), whole: folded.count(hot) };
    assert_at_least("lines", lines, PROMISED);
    Ok(())
}

#[test]
fn children_that_end_before_they_are_looked_at_have_their_frames_or_it_is_said() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = start("python/brief.py", &scratch)?;
    let words = ["--pid", target.said("pid")?];
    let recording = Jitprof::recording_at(&scratch, FREQUENCY, words)?.record_cpu(target.pid()?, 6)?;
    let in_loop = |stack: &Stack| stack.frames.iter().any(|frame| frame.starts_with("_PyEval_EvalFrameDefault"));
    let says = |frame: &String| {
        frame.starts_with("[interpreted function") || ["<module>", "main", "task", "leaf"].contains(&function(frame))
    };
    let folded = &recording.folded;
    let part = folded.count(|stack| in_loop(stack) && stack.frames.iter().any(says));
    assert_at_least("functions, or that they are missing", Share { part, whole: folded.count(in_loop) }, PROMISED);
    let named = folded.count(|stack| stack.frames.iter().any(|frame| function(frame) == "task"));
    assert_enough("samples of children with their functions", named, 100);
    assert_eq!(recording.account["advice"].as_array().map(Vec::len), Some(0), "nothing is to be advised");
    Ok(())
}
