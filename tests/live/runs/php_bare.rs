//! PHP without any flag: its own list of frames, at its place in the native stack.

use std::process::Command;

use anyhow::Result;
use jitprof_tests::{
    Jitprof, Recording, Scratch, Share, Stack, Target, assert_at_least, assert_at_least_of_few, assert_enough,
    assert_share, path_from, target_file,
};

/// Samples a second.
pub(crate) const FREQUENCY: &str = "499";
/// What is promised.
const PROMISED: f64 = 0.995;
/// With the cache of compiled scripts, as services have it.
const CACHED: &[&str] = &["-d", "opcache.enable=1", "-d", "opcache.enable_cli=1"];
/// Without it.
const PLAIN: &[&str] = &["-d", "opcache.enable_cli=0"];

fn start(program: &str, settings: &[&str], scratch: &Scratch) -> Result<Target> {
    let mut command = Command::new(path_from("JITPROF_PHP")?);
    command.args(settings).arg(target_file(program)?).arg("600");
    Target::start(command, scratch)
}

/// Named by the interpreter's own frames alone, each of which has its place.
#[track_caller]
fn assert_bare(recording: &Recording) {
    let jit = |name: &str| recording.number(&format!("/jit/named/{name}"));
    assert_eq!((jit("jitdump"), jit("peeked"), jit("perf_map")), (0, 0, 0));
    assert_enough("frames by the runtime's own tables", jit("runtime"), 100);
    assert_at_least("named frames", recording.named_frames(), PROMISED);
    assert_at_least("complete stacks", recording.complete(), PROMISED);
    let (placed, apart) = (recording.number("/stacks/with_list"), recording.number("/stacks/list_apart"));
    assert_at_least("placed", Share { part: placed, whole: placed + apart }, PROMISED);
    assert_eq!(recording.account["advice"].as_array().map(Vec::len), Some(0), "nothing is to be advised");
}

fn function(frame: &str) -> &str {
    let frame = frame.strip_prefix('~').unwrap_or(frame);
    frame.split(" (").next().unwrap_or(frame)
}

/// Of the stacks with the last of these functions, those in which all stand in this order, with others between them.
fn chain(recording: &Recording, names: &[&str]) -> Share {
    let folded = &recording.folded;
    let has_leaf = |stack: &Stack| stack.frames.iter().any(|frame| Some(function(frame)) == names.last().copied());
    let in_order = |stack: &Stack| {
        let mut frames = stack.frames.iter().map(|frame| function(frame));
        names.iter().all(|name| frames.any(|frame| frame.starts_with(name)))
    };
    Share { part: folded.count(|stack| has_leaf(stack) && in_order(stack)), whole: folded.count(has_leaf) }
}

/// Of an application as frameworks make them: both leaves with all that leads to them.
#[track_caller]
pub(crate) fn assert_application(recording: &Recording) {
    assert_bare(recording);
    let [hot, cold] = ["App\\Catalog\\Items::leafHot", "App\\Catalog\\Items::leafCold"];
    assert_share("leafHot", recording.folded.share(hot, cold), 0.75);
    // What closures are called depends on the version.
    let begin = [
        "_start",
        "execute_ex",
        "index.php",
        "App\\Kernel::handle",
        "App\\Http\\Pipeline::handle",
        "App\\Http\\Pipeline::",
        "App\\Middleware\\Timing::process",
        "App\\Http\\Pipeline::",
        "App\\Middleware\\Session::process",
        "App\\Http\\Pipeline::",
        "App\\Http\\Router::handle",
    ];
    let page = ["App\\View\\View::render", "page.php"];
    let to_hot = ["App\\Catalog\\Items::rows", hot];
    let to_cold = ["App\\Catalog\\Items::found", "array_map", "App\\Catalog\\Items::", cold];
    let hot = [&begin[..], &["App\\Controller\\ItemController::show"], &page, &to_hot].concat();
    let cold = [&begin[..], &["App\\Controller\\ItemController::search"], &page, &to_cold].concat();
    let chains = [hot, cold].map(|names| chain(recording, &names));
    assert_enough("samples of the leaves", chains.iter().map(|share| share.whole).sum(), 1000);
    assert_at_least("chains", chains.into_iter().sum(), PROMISED);
}

fn record_burning(settings: &[&str]) -> Result<()> {
    let scratch = Scratch::new()?;
    let target = start("php/burn.php", settings, &scratch)?;
    let recording =
        Jitprof::recording_at(&scratch, FREQUENCY, ["--pid", target.said("pid")?])?.record_cpu(target.pid()?, 5)?;
    assert_bare(&recording);
    assert_share("leaf_hot", recording.folded.share("leaf_hot", "leaf_cold"), 0.75);
    let outer = ["_start", "execute_ex", "burn.php", "outer"];
    let chains = [["middle", "leaf_hot"], ["side_cold", "leaf_cold"]];
    let chains = chains.map(|inner| chain(&recording, &[&outer[..], &inner].concat()));
    assert_at_least("chains", chains.into_iter().sum(), PROMISED);
    Ok(())
}

#[test]
fn functions_stand_in_whole_stacks_with_their_shares() -> Result<()> {
    record_burning(PLAIN)
}

#[test]
fn functions_of_cached_scripts_do_though_the_innermost_notes_no_instruction() -> Result<()> {
    record_burning(CACHED)
}

/// Namespaces, a loader of classes, interfaces, middleware in closures, a router, generators, a template.
#[test]
fn an_application_has_its_whole_chains() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = start("php/app/public/index.php", CACHED, &scratch)?;
    let words = ["--pid", target.said("pid")?];
    let recording = Jitprof::recording_at(&scratch, FREQUENCY, words)?.record_cpu(target.pid()?, 6)?;
    assert_application(&recording);
    Ok(())
}

#[test]
fn each_way_to_call_keeps_its_callers() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = start("php/shapes.php", PLAIN, &scratch)?;
    let words = ["--pid", target.said("pid")?];
    let recording = Jitprof::recording_at(&scratch, FREQUENCY, words)?.record_cpu(target.pid()?, 6)?;
    assert_bare(&recording);
    let ways: [(&str, &[&str]); 14] = [
        ("leaf_recursive", &["recurse", "recurse", "recurse"]),
        ("leaf_method", &["Shape::method"]),
        ("leaf_static", &["Shape::classMethod"]),
        ("leaf_closure", &["{closure:shapes.php:"]),
        ("leaf_mapped", &["array_map", "execute_ex", "{closure:shapes.php:"]),
        ("leaf_sorted", &["usort", "execute_ex", "{closure:shapes.php:"]),
        ("leaf_generated", &["zend_generator_resume", "execute_ex", "numbers"]),
        // Those that delegate run in no loop of their own.
        (
            "leaf_delegated",
            &["outermost_numbers", "outer_numbers", "zend_generator_resume", "execute_ex", "inner_numbers"],
        ),
        ("leaf_magic", &["execute_ex", "Shape::__toString"]),
        ("leaf_forwarded", &["Shape::__call"]),
        ("leaf_evaluated", &["evaluated"]),
        ("leaf_iterated", &["execute_ex", "Iterated::getIterator"]),
        ("leaf_destroyed", &["execute_ex", "Dying::__destruct"]),
        ("leaf_caught", &[]),
    ];
    let begin = ["_start", "execute_ex", "shapes.php", "turn"];
    let chains = ways.map(|(leaf, way)| chain(&recording, &[&begin[..], way, &[leaf]].concat()));
    for ((leaf, _), share) in ways.iter().zip(&chains) {
        assert_enough(leaf, share.whole, 20);
    }
    assert_at_least("chains", chains.into_iter().sum(), PROMISED);
    Ok(())
}

#[test]
fn forked_workers_are_read_as_their_parents() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = start("php/prefork.php", CACHED, &scratch)?;
    let words = ["--pid", target.said("pid")?];
    let recording = Jitprof::recording_at(&scratch, FREQUENCY, words)?.record_cpu_of(&target.children()?, 7)?;
    assert_bare(&recording);
    assert_share("leaf_hot", recording.folded.share("leaf_hot", "leaf_cold"), 0.75);
    let names = ["_start", "execute_ex", "prefork.php", "burn.php", "outer", "middle", "leaf_hot"];
    assert_at_least("the chain through the fork", chain(&recording, &names), PROMISED);
    Ok(())
}

#[test]
fn a_caller_has_the_line_of_its_call_and_the_innermost_function_none() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = start("php/burn.php", PLAIN, &scratch)?;
    let words = ["--pid", target.said("pid")?, "--lines"];
    let recording = Jitprof::recording_at(&scratch, FREQUENCY, words)?.record_cpu(target.pid()?, 5)?;
    let text = std::fs::read_to_string(target_file("php/burn.php")?)?;
    let line_of = |what: &str| text.lines().position(|line| line.contains(what)).map_or(0, |at| at + 1);
    let call = |what: &str| format!("/burn.php:{})", line_of(what));
    let callers =
        [("middle", call("leaf_hot($n * 3)")), ("outer", call("middle($n);")), ("burn.php", call("^= outer("))];
    let hot = |stack: &Stack| stack.frames.iter().any(|frame| function(frame) == "leaf_hot");
    let right = |stack: &Stack| {
        let of = |name: &str| stack.frames.iter().find(|frame| function(frame) == name);
        of("leaf_hot").is_some_and(|frame| frame.ends_with("/burn.php)"))
            && callers.iter().all(|(name, line)| of(name).is_some_and(|frame| frame.ends_with(line)))
    };
    let folded = &recording.folded;
    let lines = Share { part: folded.count(|stack| hot(stack) && right(stack)), whole: folded.count(hot) };
    assert_at_least_of_few("lines", lines, PROMISED);
    Ok(())
}

/// Jitted code runs in the frame of the loop, and keeps no frame pointer.
#[test]
fn jitted_code_that_nobody_announces_has_its_functions_in_whole_stacks() -> Result<()> {
    for jit in ["opcache.jit=1205", "opcache.jit=tracing"] {
        let scratch = Scratch::new()?;
        let settings = [CACHED, &["-d", "opcache.jit_buffer_size=64M", "-d", jit]].concat();
        let target = start("php/burn.php", &settings, &scratch)?;
        let words = ["--pid", target.said("pid")?];
        let recording = Jitprof::recording_at(&scratch, FREQUENCY, words)?.record_cpu(target.pid()?, 5)?;
        assert_bare(&recording);
        assert_at_least("complete stacks", recording.complete(), PROMISED);
        assert_enough("pieces of code", recording.number("/learned/of_loops"), 1);
        let is_jitted = |stack: &Stack| stack.has("[PHP JIT code]");
        let (part, whole) = (recording.folded.count(is_jitted), recording.folded.total());
        assert_at_least(jit, Share { part, whole }, 0.9);
        assert_share("leaf_hot", recording.folded.share("leaf_hot", "leaf_cold"), 0.75);
        let outer = ["_start", "[PHP JIT code]", "burn.php", "outer"];
        let chains = [["middle", "leaf_hot"], ["side_cold", "leaf_cold"]];
        let chains = chains.map(|inner| chain(&recording, &[&outer[..], &inner].concat()));
        assert_at_least("chains", chains.into_iter().sum(), PROMISED);
    }
    Ok(())
}

/// Without a cache of compiled scripts: what a sample has met is freed before it is looked at.
#[test]
fn requests_that_last_five_milliseconds_have_their_functions() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut command = Command::new(path_from("JITPROF_PYTHON")?);
    command.arg(target_file("php/scripts.py")?).arg("--app").arg(target_file("php/app/public")?);
    command.arg("600").arg(path_from("JITPROF_PHP")?).args(["-d", "opcache.enable=0"]);
    let target = Target::start(command, &scratch)?;
    let pid = target.said("pid")?;
    let recording = Jitprof::recording_at(&scratch, FREQUENCY, ["--pid", pid])?.record_cpu(pid.parse()?, 4)?;
    assert_bare(&recording);
    let names = ["_start", "execute_ex", "index.php", "App\\Kernel::handle", "App\\Http\\Pipeline::handle"];
    assert_at_least_of_few("the way to a handler", chain(&recording, &names), PROMISED);
    Ok(())
}

#[test]
fn functions_of_scripts_that_take_each_others_places_are_not_mixed() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut command = Command::new(path_from("JITPROF_PYTHON")?);
    command.arg(target_file("php/scripts.py")?).arg(scratch.path()).arg("600").arg(path_from("JITPROF_PHP")?);
    command.args(["-d", "opcache.enable=0"]);
    let target = Target::start(command, &scratch)?;
    let pid = target.said("pid")?;
    let recording = Jitprof::recording_at(&scratch, "999", ["--pid", pid])?.record_cpu(pid.parse()?, 5)?;
    let number = |part: &str| {
        let number = ["in_", "met_", "K_", "s_"].iter().find_map(|prefix| part.strip_prefix(prefix))?;
        number.trim_end_matches(".php").parse::<u32>().ok()
    };
    let of_frame = |frame: &String| function(frame).split("::").filter_map(number).collect::<Vec<_>>();
    let numbers = |stack: &Stack| stack.frames.iter().flat_map(of_frame).collect::<Vec<_>>();
    let has_two = |stack: &Stack| numbers(stack).len() >= 2;
    let is_mixed = |stack: &Stack| numbers(stack).windows(2).any(|pair| pair[0] != pair[1]);
    let folded = &recording.folded;
    let (whole, mixed) = (folded.count(has_two), folded.count(is_mixed));
    let unnamed = recording.account["jit"]["unnamed"].to_string();
    println!("{whole} stacks with names of both functions, {mixed} of two scripts; without names: {unnamed}");
    assert_enough("stacks with names of both functions", whole, 500);
    assert_eq!(mixed, 0);
    Ok(())
}
