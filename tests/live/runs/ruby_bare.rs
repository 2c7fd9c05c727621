//! Ruby without any flag: its own frames, at their place in the native stack.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use jitprof_tests::{
    Jitprof, Recording, Scratch, Share, Stack, Target, assert_at_least, assert_at_least_of_few, assert_enough,
    assert_share, path_from, target_file, wait_until,
};

/// Samples a second.
const FREQUENCY: &str = "499";
/// What is promised.
const PROMISED: f64 = 0.995;

fn start(program: &str, scratch: &Scratch) -> Result<Target> {
    let mut command = Command::new(path_from("JITPROF_RUBY")?);
    command.arg(target_file(program)?).arg("600");
    Target::start(command, scratch)
}

/// Named by the interpreter's own frames alone, each of which has its place.
#[track_caller]
fn assert_bare(recording: &Recording) {
    let jit = |name: &str| recording.number(&format!("/jit/named/{name}"));
    assert_eq!((jit("jitdump"), jit("peeked"), jit("perf_map")), (0, 0, 0));
    assert_enough("frames by the runtime's own tables", jit("runtime"), 100);
    assert_at_least("named frames", recording.named_frames(), PROMISED);
    let (placed, apart) = (recording.number("/stacks/with_list"), recording.number("/stacks/list_apart"));
    assert_at_least("placed", Share { part: placed, whole: placed + apart }, PROMISED);
    assert_eq!(recording.account["advice"].as_array().map(Vec::len), Some(0), "nothing is to be advised");
}

fn function(frame: &str) -> &str {
    let frame = frame.strip_prefix('~').unwrap_or(frame);
    let end = frame.find(" (/").or_else(|| frame.find(" (<")).unwrap_or(frame.len());
    &frame[..end]
}

/// Of the stacks with the last of these functions, those in which all stand in this order, with others between them.
fn chain(recording: &Recording, names: &[&str]) -> Share {
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
    let target = start("ruby/burn.rb", &scratch)?;
    let recording =
        Jitprof::recording_at(&scratch, FREQUENCY, ["--pid", target.said("pid")?])?.record_cpu(target.pid()?, 5)?;
    assert_bare(&recording);
    assert_at_least("complete stacks", recording.complete(), PROMISED);
    assert_share("leaf_hot", recording.folded.share("leaf_hot", "leaf_cold"), 0.75);
    let outer = ["_start", "rb_vm_exec", "<main>", "outer"];
    let chains = [["middle", "leaf_hot"], ["side_cold", "leaf_cold"]];
    let chains = chains.map(|inner| chain(&recording, &[&outer[..], &inner].concat()));
    assert_at_least("chains", chains.into_iter().sum(), PROMISED);
    Ok(())
}

/// What YJIT makes keeps no frame pointer, and calls itself by jumps.
#[test]
fn jitted_functions_stand_in_whole_stacks_with_their_shares() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut command = Command::new(path_from("JITPROF_RUBY")?);
    command.arg("--yjit").arg(target_file("ruby/burn.rb")?).arg("600");
    let target = Target::start(command, &scratch)?;
    // YJIT compiles what is called for the tenth time.
    wait_until("YJIT to compile", || Ok((target.cpu_ms()? >= 1000).then_some(())))?;
    let words = ["--pid", target.said("pid")?, "--lines"];
    let recording = Jitprof::recording_at(&scratch, FREQUENCY, words)?.record_cpu(target.pid()?, 5)?;
    assert_bare(&recording);
    assert_at_least("complete stacks", recording.complete(), PROMISED);
    assert_enough("pieces of code", recording.number("/learned/of_loops"), 1);
    let is_jitted = |stack: &Stack| stack.has("[YJIT code]");
    let (part, whole) = (recording.folded.count(is_jitted), recording.folded.total());
    assert_at_least("in what YJIT has made", Share { part, whole }, 0.9);
    assert_share("leaf_hot", recording.folded.share("leaf_hot", "leaf_cold"), 0.75);
    let outer = ["_start", "rb_vm_exec", "[YJIT code]", "<main>", "outer"];
    let chains = [["middle", "leaf_hot"], ["side_cold", "leaf_cold"]];
    let chains = chains.map(|inner| chain(&recording, &[&outer[..], &inner].concat()));
    assert_at_least("chains", chains.into_iter().sum(), PROMISED);
    // Where such code is itself, it does not say but where it calls somebody, and it is not interpreted.
    let text = std::fs::read_to_string(target_file("ruby/burn.rb")?)?;
    let call = text.lines().position(|line| line.contains("leaf_hot(n * 3)")).map_or(0, |at| at + 1);
    let first = text.lines().position(|line| line.contains("def leaf_hot")).map_or(0, |at| at + 1);
    let leaf = |stack: &Stack| stack.frames.last().is_some_and(|frame| function(frame) == "leaf_hot");
    let (part, whole) = (
        recording.folded.count(|stack| {
            let middle = stack.frames.iter().find(|frame| function(frame) == "middle");
            let has_line = middle.is_some_and(|frame| frame.ends_with(&format!("/burn.rb:{call})")));
            let lines = (1..=10).map(|at| format!("/burn.rb:{})", first + at)).chain(["/burn.rb)".to_owned()]);
            let ends: Vec<String> = lines.collect();
            let is_unsure =
                |frame: &String| frame.starts_with("leaf_hot") && ends.iter().any(|end| frame.ends_with(end));
            leaf(stack) && has_line && stack.frames.last().is_some_and(is_unsure)
        }),
        recording.folded.count(leaf),
    );
    assert_at_least_of_few("lines", Share { part, whole }, PROMISED);
    Ok(())
}

#[test]
fn its_loops_can_be_left_out() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = start("ruby/burn.rb", &scratch)?;
    let words = ["--pid", target.said("pid")?, "--native-frames", "hide"];
    let recording = Jitprof::recording_at(&scratch, FREQUENCY, words)?.record_cpu(target.pid()?, 4)?;
    assert_bare(&recording);
    // Each calls the other directly: nothing is between them but the loop's own frames.
    let called = |stack: &Stack| callee(stack, "outer").is_some();
    let directly = |stack: &Stack| matches!(callee(stack, "outer"), Some("middle" | "side_cold"));
    let of = Share {
        part: recording.folded.count(|stack| called(stack) && directly(stack)),
        whole: recording.folded.count(called),
    };
    assert_at_least_of_few("callees of outer", of, PROMISED);
    let is_loop = |frame: &String| matches!(function(frame), "rb_vm_exec" | "vm_exec_core");
    assert_eq!(recording.folded.count(|stack| stack.frames.iter().any(is_loop)), 0, "{}", recording.folded.largest(5));
    assert!(recording.folded.count(|stack| stack.has("_start")) > 0);
    let of_ruby = |stack: &Stack| stack.frames.iter().any(|frame| frame.starts_with("[libruby"));
    println!("{} stacks have nameless frames of libruby", recording.folded.count(of_ruby));
    Ok(())
}

#[test]
fn each_way_to_call_keeps_its_callers() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = start("ruby/shapes.rb", &scratch)?;
    let words = ["--pid", target.said("pid")?];
    let recording = Jitprof::recording_at(&scratch, FREQUENCY, words)?.record_cpu(target.pid()?, 6)?;
    assert_bare(&recording);
    let turn = ["_start", "rb_vm_exec", "<main>", "turn"];
    let ways: [(&str, &[&str]); 13] = [
        ("leaf_recursive", &["recurse", "recurse", "recurse"]),
        ("leaf_method", &["method_of"]),
        ("leaf_singleton", &["singleton_of"]),
        ("leaf_block", &["with_block", "block in turn"]),
        ("leaf_each", &["each", "rb_vm_exec", "block in turn"]),
        ("leaf_sorted", &["sort_by", "each", "rb_vm_exec", "block in turn"]),
        ("leaf_injected", &["inject", "each", "rb_vm_exec", "block in turn"]),
        ("leaf_lambda", &["block in turn"]),
        ("leaf_evaluated", &["evaluated"]),
        ("leaf_defined", &["block in <class:Shape>"]),
        ("leaf_missing", &["method_missing"]),
        ("leaf_ensured", &["thrower"]),
        ("leaf_rescued", &["rescue in turn"]),
    ];
    let mut chains = ways.map(|(leaf, way)| chain(&recording, &[&turn[..], way, &[leaf]].concat())).to_vec();
    // A fiber has a stack of its own, which begins at its block.
    chains.push(chain(&recording, &["rb_vm_exec", "block in turn", "leaf_fiber"]));
    chains.push(chain(&recording, &["rb_vm_exec", "each", "each", "block in turn", "leaf_enumerated"]));
    for (share, leaf) in chains.iter().zip(ways.iter().map(|(leaf, _)| *leaf).chain(["leaf_fiber", "leaf_enumerated"]))
    {
        assert_enough(leaf, share.whole, 20);
    }
    assert_at_least("chains", chains.into_iter().sum(), PROMISED);
    Ok(())
}

#[test]
fn a_caller_has_the_line_of_its_call() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = start("ruby/burn.rb", &scratch)?;
    let words = ["--pid", target.said("pid")?, "--lines"];
    let recording = Jitprof::recording_at(&scratch, FREQUENCY, words)?.record_cpu(target.pid()?, 5)?;
    let text = std::fs::read_to_string(target_file("ruby/burn.rb")?)?;
    let line_of = |what: &str| text.lines().position(|line| line.contains(what)).map_or(0, |at| at + 1);
    let call = |what: &str| format!("/burn.rb:{})", line_of(what));
    let callers =
        [("middle", call("leaf_hot(n * 3)")), ("outer", call("a = middle(n)")), ("<main>", call("^= outer("))];
    let hot = |stack: &Stack| stack.frames.iter().any(|frame| function(frame) == "leaf_hot");
    let right = |stack: &Stack| {
        let of = |name: &str| stack.frames.iter().find(|frame| function(frame) == name);
        callers.iter().all(|(name, line)| of(name).is_some_and(|frame| frame.ends_with(line)))
    };
    let folded = &recording.folded;
    let lines = Share { part: folded.count(|stack| hot(stack) && right(stack)), whole: folded.count(hot) };
    assert_at_least_of_few("lines", lines, PROMISED);
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
    let target = start("ruby/replaced.rb", &scratch)?;
    let words = ["--pid", target.said("pid")?];
    let recording = Jitprof::recording_at(&scratch, FREQUENCY, words)?.record_cpu(target.pid()?, 6)?;
    let called = |caller: &str, made: &str| recording.folded.count(|stack| callee(stack, caller) == Some(made));
    let right = called("caller_a", "made_a") + called("caller_b", "made_b");
    assert_enough("each calls its own", right, 200);
    assert_eq!(called("caller_a", "made_b") + called("caller_b", "made_a"), 0, "beside {right}");
    let collected = recording.number("/jit/unnamed/a garbage collection ran before it was looked at");
    assert_enough("frames of code that may have been freed", collected, 100);
    Ok(())
}

#[test]
fn names_outlast_a_collector_that_runs_a_hundred_times_a_second() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = start("ruby/litter.rb", &scratch)?;
    let words = ["--pid", target.said("pid")?];
    let recording = Jitprof::recording_at(&scratch, FREQUENCY, words)?.record_cpu(target.pid()?, 6)?;
    // Every second, six collections are major ones.
    let named = recording.named_frames();
    assert!(named.part * 100 >= named.whole * 98, "{named:?}");
    assert_share("leaf_hot", recording.folded.share("leaf_hot", "leaf_cold"), 0.75);
    Ok(())
}

/// A root that is no mount of its own, with Ruby and the libraries that it needs.
fn chrooted(scratch: &Scratch) -> Result<Command> {
    let (ruby, root) = (std::fs::canonicalize(path_from("JITPROF_RUBY")?)?, scratch.file("root"));
    let copy = |from: &Path, to: &Path| -> Result<()> {
        let to = root.join(to.strip_prefix("/")?);
        std::fs::create_dir_all(to.parent().context("no parent")?)?;
        std::fs::copy(from, to).map(drop).map_err(Into::into)
    };
    let libraries = String::from_utf8(Command::new("ldd").arg(&ruby).output()?.stdout)?;
    for library in libraries.split_whitespace().filter(|word| word.starts_with('/')).map(Path::new) {
        copy(library, library)?;
    }
    copy(&ruby, &ruby)?;
    copy(&target_file("ruby/burn.rb")?, Path::new("/burn.rb"))?;
    let mut command = Command::new("chroot");
    command.arg(&root).arg(&ruby).args(["--disable-gems", "/burn.rb", "600"]);
    Ok(command)
}

#[test]
fn a_root_in_which_nothing_is_mounted_is_like_any_other() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = Target::start(chrooted(&scratch)?, &scratch)?;
    let words = ["--pid", target.said("pid")?];
    let recording = Jitprof::recording_at(&scratch, FREQUENCY, words)?.record_cpu(target.pid()?, 5)?;
    assert_bare(&recording);
    assert_share("leaf_hot", recording.folded.share("leaf_hot", "leaf_cold"), 0.75);
    Ok(())
}
