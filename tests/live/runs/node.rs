//! Node: V8's dump, frame pointers throughout.

use std::process::Command;

use anyhow::{Context, Result};
use jitprof_tests::{
    Jitprof, Recording, Scratch, Share, Stack, Target, Truth, assert_at_least, assert_share, path_from, target_file,
    wait_until,
};

const FLAGS: [&str; 4] =
    ["--perf-prof", "--perf-prof-unwinding-info", "--interpreted-frames-native-stack", "--no-turbo-inlining"];

fn node(flags: &[&str], script: &str, seconds: &str) -> Result<Command> {
    let mut command = Command::new(path_from("JITPROF_NODE")?);
    command.args(flags).args(without_maglev_inlining()?).arg(target_file(&format!("node/{script}"))?).arg(seconds);
    Ok(command)
}

/// The flag that keeps Maglev, which Node has since 22, from inlining.
pub(crate) fn without_maglev_inlining() -> Result<Option<&'static str>> {
    let options = Command::new(path_from("JITPROF_NODE")?).arg("--v8-options").output()?.stdout;
    Ok(String::from_utf8_lossy(&options).contains("--maglev-inlining").then_some("--no-maglev-inlining"))
}

fn record(target: &Target, scratch: &Scratch, arguments: &[&str]) -> Result<Recording> {
    Jitprof::recording(scratch, [&["--pid", target.said("pid")?], arguments].concat())?.record_cpu(target.pid()?, 3)
}

#[track_caller]
fn assert_burns(recording: &Recording) {
    recording.assert_whole();
    assert_share("leafHot", recording.folded.share("leafHot", "leafCold"), 0.75);
    assert_at_least("chain of leafHot", recording.folded.through(&["outer", "middle", "leafHot"]), 0.98);
    assert_at_least("chain of leafCold", recording.folded.through(&["outer", "sideCold", "leafCold"]), 0.95);
}

#[test]
fn shares_names_chains_and_tiers_are_true() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = Target::start(node(&FLAGS, "burn.js", "600")?, &scratch)?;
    let recording = record(&target, &scratch, &[])?;
    assert_burns(&recording);
    let optimised = recording.folded.count(|stack| stack.frames.iter().any(|frame| frame.starts_with("*leafHot")));
    assert!(optimised > 0, "V8 has optimised leafHot, and its frames say so");
    for label in ["pid", "tid", "comm"] {
        assert!(recording.pprof.labels.contains(label), "every sample of the pprof file has a label {label}");
    }
    Ok(())
}

#[test]
fn a_dump_that_appears_while_jitprof_runs_is_found_by_its_mapping() -> Result<()> {
    let scratch = Scratch::new()?;
    let launched = node(&FLAGS, "burn.js", "4")?;
    let mut jitprof = Jitprof::recording(&scratch, ["--"])?;
    jitprof.command().arg(launched.get_program()).args(launched.get_args());
    let recording = jitprof.record()?;
    // Start-up runs code before its name is written, and much that is not this program's.
    assert_at_least("named frames", recording.named_frames(), 0.995);
    assert_share("leafHot", recording.folded.share("leafHot", "leafCold"), 0.75);
    Ok(())
}

#[test]
fn a_dump_is_read_although_its_name_is_gone() -> Result<()> {
    let scratch = Scratch::new()?;
    let flags = [&FLAGS[..], &["--perf-prof-delete-file"]].concat();
    let target = Target::start(node(&flags, "burn.js", "600")?, &scratch)?;
    assert!(!scratch.file(&format!("jit-{}.dump", target.pid()?)).exists(), "Node has removed its dump");
    assert_burns(&record(&target, &scratch, &[])?);
    Ok(())
}

#[test]
fn four_hundred_recursive_calls_are_in_one_stack() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut command = node(&FLAGS, "deep.js", "600")?;
    command.env("DEEP", "400");
    let target = Target::start(command, &scratch)?;
    // A million frames a second are more than a busy machine takes out of the ring: what is left still has to tell something.
    let recording = Jitprof::recording(&scratch, ["--pid", target.said("pid")?])?.record_cpu(target.pid()?, 5)?;
    recording.assert_whole();
    let leaf = |stack: &Stack| stack.has("hotA") || stack.has("hotB");
    let deep = Share {
        // recurse(400) to recurse(0)
        part: recording.folded.count(|stack| leaf(stack) && stack.number_of("recurse") == 401),
        whole: recording.folded.count(leaf),
    };
    assert_at_least("stacks with all 401 calls", deep, 0.995);
    assert_share("hotA", recording.folded.share("hotA", "hotB"), 0.75);
    assert_at_least("chain", recording.folded.through(&["recurse", "driver", "pathA", "a1", "a2", "a3", "hotA"]), 0.98);
    Ok(())
}

#[test]
fn functions_that_come_and_go_at_the_same_addresses_keep_their_names() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = Target::start(node(&["--perf-prof", "--expose-gc"], "gc.js", "600")?, &scratch)?;
    // Node's own code is 2 MB; a hundred functions between two collections are half of one.
    let dump = scratch.file(&format!("jit-{}.dump", target.pid()?));
    wait_until("code that is replaced", || Ok((std::fs::metadata(&dump)?.len() > 4 << 20).then_some(())))?;
    let recording = record(&target, &scratch, &[])?;
    recording.assert_named();
    let functions = recording.source(target.pid()?)["functions"].as_u64().unwrap_or_default();
    assert!(functions > 1000, "{functions} functions are few for this program");
    // Code that took another's place is walked by its predecessor's rows until its own are in the tables; such a walk is
    // made anew from the sample's snapshot. One for which the ring had no room, because jitprof waited for a CPU, may be cut.
    let folded = &recording.folded;
    let too_new = |stack: &Stack| stack.has_prefix("[cut: generated code too new");
    let cut = &recording.account["stacks"]["cut"];
    let counted = cut["generated code too new for its unwind rules"].as_u64().unwrap_or(0);
    assert_eq!(folded.count(too_new), counted, "{cut}");
    let of_code = |stack: &Stack| stack.has_prefix("(anonymous");
    let part = folded.count(|stack| of_code(stack) && !stack.is_cut());
    let whole = folded.count(of_code);
    let refused = recording.number("/deferred/refused_by_rate").min(whole - part);
    println!("{part} of {whole} complete, {counted} too new, {refused} snapshots refused");
    assert_at_least("complete stacks", Share { part: part + refused, whole }, 0.995);
    assert_at_least("stacks whose copies had room", Share { part: whole - refused, whole }, 0.9);
    assert!(recording.number("/deferred/snapshots") * 2 > whole, "samples bring what they can be finished from");
    Ok(())
}

/// A dump has one piece of code of the whole program, under the name of its outermost function. Node's memory says what is in
/// it.
#[test]
fn functions_that_were_inlined_are_frames_where_there_is_a_dump_too() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut command = Command::new(path_from("JITPROF_NODE")?);
    command.args(&FLAGS[..3]).arg(target_file("node/burn.js")?).arg("600");
    let target = Target::start(command, &scratch)?;
    // V8 optimises what runs in earnest within its first second of CPU time.
    wait_until("V8 to compile", || Ok((target.cpu_ms()? >= 2000).then_some(())))?;
    let recording = record(&target, &scratch, &[])?;
    recording.assert_whole();
    let by_dump = recording.number("/jit/named/jitdump") + recording.number("/jit/named/peeked");
    assert!(by_dump > 0, "the dump has names");
    assert_share("leafHot", recording.folded.share("leafHot", "leafCold"), 0.75);
    let truth = Truth::new(&["outer > middle > leafHot", "outer > sideCold > leafCold"], &[]);
    let agreement = truth.check(&recording.folded);
    // Where a loop begins and ends is its caller's.
    let in_leaves = recording.folded.count(|stack| stack.has("leafHot") || stack.has("leafCold"));
    let whole = recording.folded.total();
    assert_at_least("samples in the loops' functions", Share { part: in_leaves, whole }, 0.95);
    assert_at_least(&format!("right stacks; misses:\n{}", agreement.explanation()), agreement.right(), 0.97);
    // Which is what the dump does not say.
    let scratch = Scratch::new()?;
    let without = record(&target, &scratch, &["--no-read-runtime"])?;
    let agreement = truth.check(&without.folded);
    println!("without its memory: right {:?} of {}", agreement.right(), without.folded.total());
    assert!(without.account["naming"][0]["runtime"].is_null(), "{}", without.account["naming"]);
    Ok(())
}

/// V8 gives rows of inlined code the name of the script that it was inlined into.
#[test]
fn no_line_is_beyond_its_file_or_of_another_function() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut command = Command::new(path_from("JITPROF_NODE")?);
    command.arg("--perf-prof").arg(target_file("node/lines.js")?).arg("600");
    let target = Target::start(command, &scratch)?;
    let recording = record(&target, &scratch, &["--lines"])?;
    // Each begins with its name and ends with a brace at the line's begin.
    let mut seen = std::collections::BTreeSet::new();
    for (function, file, line) in &recording.pprof.lines {
        let Some(script) = ["lines.js", "lines_far.js"]
            .into_iter()
            .find(|script| file.ends_with(&format!("/{script}")) || file == script)
        else {
            continue;
        };
        let text = std::fs::read_to_string(target_file(&format!("node/{script}"))?)?;
        let lines: Vec<&str> = text.lines().collect();
        let line = usize::try_from(*line)?;
        assert!(line <= lines.len(), "{function} has line {line} of the {} of {file}", lines.len());
        if function == "(top level)" || function.starts_with("(anonymous") {
            continue;
        }
        let name = function.trim_start_matches(['*', '^', '~', '+']);
        let begin = lines.iter().position(|line| line.starts_with(&format!("function {name}(")));
        let begin = begin.with_context(|| format!("{function} is no function of {file}"))?;
        let length = lines[begin..].iter().position(|line| *line == "}").context("the function ends")?;
        assert!((begin + 1..=begin + 1 + length).contains(&line), "{function} has line {line} of {file}");
        seen.insert((name.to_owned(), line));
    }
    println!("{seen:?}");
    let of_work = seen.iter().filter(|(name, _)| name == "work").count();
    assert!(of_work > 2, "work is optimised and has lines of its own: {seen:?}");
    Ok(())
}

#[test]
fn threads_are_kept_apart() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = Target::start(node(&FLAGS, "worker.js", "600")?, &scratch)?;
    let recording = record(&target, &scratch, &["--per-thread"])?;
    recording.assert_whole();
    let main = format!("node-{}", target.pid()?);
    let folded = &recording.folded;
    assert!(folded.count(|stack| stack.has("hotMain")) > 0);
    assert_eq!(folded.count(|stack| stack.has("hotMain") && !stack.has(&main)), 0, "hotMain runs in the first thread");
    assert_eq!(folded.count(|stack| stack.has("hotWorker") && stack.has(&main)), 0, "hotWorker runs in the others");
    let workers: std::collections::BTreeSet<&str> = folded
        .stacks
        .iter()
        .filter(|stack| stack.has("hotWorker"))
        .filter_map(|stack| stack.frames.get(1).map(String::as_str))
        .collect();
    assert_eq!(workers.len(), 2, "{workers:?}");
    Ok(())
}

#[test]
fn one_thread_can_be_chosen() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = Target::start(node(&FLAGS, "worker.js", "600")?, &scratch)?;
    let recording = Jitprof::recording(&scratch, ["--tid", target.said("pid")?])?.record_cpu(target.pid()?, 7)?;
    recording.assert_named();
    assert!(recording.folded.count(|stack| stack.has("hotMain")) > 0);
    assert_eq!(recording.folded.count(|stack| stack.has("hotWorker")), 0);
    Ok(())
}

#[test]
fn without_a_dump_the_exact_flag_is_named() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = Target::start(node(&[], "burn.js", "600")?, &scratch)?;
    let recording = Jitprof::recording(&scratch, ["--pid", target.said("pid")?, "--no-read-runtime"])?
        .record_cpu(target.pid()?, 2)?;
    let advice = recording.account["advice"][0]["advice"].as_str().unwrap_or_default();
    assert!(
        advice.contains("node --perf-prof --perf-prof-unwinding-info --interpreted-frames-native-stack"),
        "{advice}"
    );
    assert_eq!(recording.number("/jit/leaves_named"), 0);
    Ok(())
}

#[test]
fn a_flag_in_the_environment_counts_and_what_is_wrong_for_several_is_said_once() -> Result<()> {
    let (scratch, other) = (Scratch::new()?, Scratch::new()?);
    // Nobody can write there, so there is no dump.
    let start = |scratch| {
        let node = node(&[], "burn.js", "600")?;
        let mut shell = Command::new("sh");
        shell.args(["-c", "cd /sys && exec \"$@\"", "sh"]).arg(node.get_program()).args(node.get_args());
        Target::start(
            {
                shell.env("NODE_OPTIONS", FLAGS[..3].join(" "));
                shell
            },
            scratch,
        )
    };
    let (first, second) = (start(&scratch)?, start(&other)?);
    let pids = format!("{},{}", first.said("pid")?, second.said("pid")?);
    let recording = Jitprof::recording(&scratch, ["--pid", &pids, "--no-read-runtime"])?.record_cpu(first.pid()?, 2)?;
    let advice = &recording.account["advice"];
    assert_eq!(advice.as_array().map(Vec::len), Some(1), "{advice}");
    assert_eq!(advice[0]["further_processes"], 1, "{advice}");
    let text = advice[0]["advice"].as_str().unwrap_or_default();
    assert!(text.contains("was started with a flag that announces its code"), "{text}");
    Ok(())
}

#[test]
fn a_stopped_reader_loses_samples_and_counts_each() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut command = node(&FLAGS, "deep.js", "600")?;
    // Samples of some 4 KiB, of which the ring holds a few hundred.
    command.env("DEEP", "400");
    let target = Target::start(command, &scratch)?;
    let mut running = Jitprof::recording(&scratch, ["--pid", target.said("pid")?])?.spawn()?;
    running.wait_for_samples(target.pid()?, 100)?;
    running.signal(libc::SIGSTOP)?;
    running.wait_for_samples(target.pid()?, 2000)?;
    running.signal(libc::SIGCONT)?;
    running.wait_for_samples(target.pid()?, 2000)?;
    running.signal(libc::SIGINT)?;
    // That taken = delivered + lost, and that the outputs hold all that were delivered, is checked here.
    let recording = running.record()?;
    assert!(recording.number("/samples/lost_ring_full") > 0, "the ring was full");
    recording.assert_whole();
    assert!(recording.stderr.contains("ring buffer full"), "{}", recording.stderr);
    Ok(())
}
