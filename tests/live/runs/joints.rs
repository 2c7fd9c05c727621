//! Answers that were right a moment ago: libraries that change places, fresh memory, signals, children from before.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use jitprof_tests::{
    Folded, Jitprof, Recording, Scratch, Share, Stack, Target, assert_at_least, assert_enough, assert_share, compile,
    free_address, get,
};

const UNNAMED: &str = "[JIT code without a name]";

fn compile_joints(scratch: &Scratch) -> Result<PathBuf> {
    compile(scratch, "cc", "native/joints.c", &["-O1", "-g", "-ldl"])
}

fn joints(scratch: &Scratch, arguments: &[&str]) -> Result<Target> {
    let mut command = Command::new(compile_joints(scratch)?);
    command.args(arguments).current_dir(scratch.path());
    Target::start(command, scratch)
}

/// A library whose function has this name and so many words of locals; all of them are equally large.
fn plugin(scratch: &Scratch, function: &str, words: u32) -> Result<PathBuf> {
    let (name, words) = (format!("-DWORK={function}"), format!("-DWORDS={words}"));
    let made = compile(scratch, "cc", "native/plugin.c", &["-O1", "-g", "-shared", "-fPIC", &name, &words])?;
    let path = scratch.file(&format!("{function}.so"));
    std::fs::rename(made, &path)?;
    Ok(path)
}

fn record(target: &Target, scratch: &Scratch, more: &[&str]) -> Result<Recording> {
    let arguments = [&["--pid", target.said("pid")?], more].concat();
    Jitprof::recording(scratch, arguments)?.record_cpu(target.pid()?, 3)
}

/// Samples in the two libraries.
struct Named {
    /// With the name of their time.
    own: u64,
    /// With the other's.
    lent: u64,
    /// Of which jitprof says that the file was another one when it was looked at.
    replaced: u64,
    /// All.
    whole: u64,
}

/// Libraries in turns at one address, whose functions have these numbers of words of locals.
pub(crate) fn turns(scratch: &Scratch, mode: &str, words: [u32; 2]) -> Result<Target> {
    plugin(scratch, "work_a", words[0])?;
    plugin(scratch, "work_b", words[1])?;
    joints(scratch, &[mode, "./work_a.so", "./work_b.so"])
}

/// Records them.
fn record_turns(mode: &str, words: [u32; 2]) -> Result<(Recording, Named)> {
    let scratch = Scratch::new()?;
    let target = turns(&scratch, mode, words)?;
    let recording = record(&target, &scratch, &[])?;
    let count = |user: &str, name: &str| recording.folded.count(|stack| stack.has(user) && stack.has(name));
    // Of a stack that is cut only the library is known.
    let of_first = count("use_first", "work_a") + recording.folded.count(|stack| stack.is_cut() && stack.has("work_a"));
    let of_second =
        count("use_second", "work_b") + recording.folded.count(|stack| stack.is_cut() && stack.has("work_b"));
    let own = of_first + of_second;
    let lent = count("use_first", "work_b") + count("use_second", "work_a");
    let replaced = recording.folded.count(|stack| stack.has("[replaced]"));
    let unnamed = recording.folded.count(|stack| ["[both.so", "[work_"].iter().any(|file| stack.has_prefix(file)));
    println!(
        "{own} samples with the name of their time, {lent} with another's, {replaced} replaced, {unnamed} without"
    );
    Ok((recording, Named { own, lent, replaced, whole: own + lent + replaced + unnamed }))
}

#[test]
fn libraries_in_turns_at_one_address_have_their_own_names() -> Result<()> {
    let (recording, Named { own, lent, replaced, whole }) = record_turns("plugins", [24, 60])?;
    assert_eq!(lent, 0, "{}", recording.folded.largest(10));
    assert_at_least("samples with the name of their library", Share { part: own, whole: whole - replaced }, 0.98);
    // A library that was gone before it was looked at has no names. That takes a few milliseconds, or a turn of this machine.
    assert_at_least("samples of libraries that were there", Share { part: whole - replaced, whole }, 0.75);
    let known = recording.folded.count(|stack| stack.has("work_a"));
    assert_share("the library that works three times as long", Share { part: known, whole: own }, 0.75);
    assert_callers_of_turns(&recording.folded);
    Ok(())
}

/// For some milliseconds a library is walked by the rules of the one that was there before: such a stack ends where it begins,
/// and says why.
#[track_caller]
fn assert_callers_of_turns(folded: &Folded) {
    const TOO_LATELY: &str = "[cut: mapped too lately for its unwind rules]";
    let (mut right, mut cut, mut otherwise) = (0, 0, 0);
    for (user, leaf) in [("use_first", "work_a"), ("use_second", "work_b")] {
        let ends = |stack: &Stack| stack.frames.last().is_some_and(|last| last == leaf);
        let whole = |stack: &Stack| stack.has_chain(&["main", "plugins", user, "use", "work", leaf]);
        right += folded.count(|stack| ends(stack) && whole(stack) && !stack.is_cut());
        cut += folded.count(|stack| ends(stack) && stack.has_chain(&[TOO_LATELY, leaf]));
        cut += folded.count(|stack| ends(stack) && stack.has_chain(&[TOO_LATELY, "work", leaf]));
        otherwise += folded.count(|stack| ends(stack) && stack.is_cut() && !stack.has(TOO_LATELY));
        let wrong = folded.count(|stack| ends(stack) && !whole(stack) && !stack.is_cut());
        assert_eq!(wrong, 0, "{}", folded.largest(10));
    }
    println!("{right} with all callers, {cut} cut as walked by the other's rules, {otherwise} cut otherwise");
    assert_at_least("callers by the rules of their own library", Share { part: right, whole: right + cut }, 0.5);
    assert_at_least("stacks that say so", Share { part: right + cut, whole: right + cut + otherwise }, 0.97);
}

#[test]
fn a_library_that_is_rewritten_in_place_has_the_names_of_its_time_or_none() -> Result<()> {
    let (recording, Named { own, lent, whole, .. }) = record_turns("rewritten", [24, 24])?;
    assert_eq!(lent, 0, "{}", recording.folded.largest(10));
    assert!(whole > recording.folded.total() / 2, "{own} of {whole} have the name of their time");
    Ok(())
}

#[test]
fn a_program_in_the_place_of_another_one_is_not_walked_by_the_others_rules_in_silence() -> Result<()> {
    let scratch = Scratch::new()?;
    for (name, words) in [("a", 4), ("b", 20)] {
        let defines = [format!("-DWORDS={words}"), format!("-DOF(name)=name##_{name}")];
        let flags = ["-O1", "-no-pie", "-fomit-frame-pointer", &defines[0], &defines[1]];
        std::fs::rename(compile(&scratch, "cc", "native/swap.c", &flags)?, scratch.file(name))?;
    }
    let mut command = Command::new(scratch.file("a"));
    command.args(["./a", "./b", "first"]).current_dir(scratch.path());
    let target = Target::start(command, &scratch)?;
    let recording = record(&target, &scratch, &[])?;
    let folded = &recording.folded;
    // What was executed a moment ago is walked by the rules of the program before. Such a stack is cut, and says so.
    for (own, other) in [("a", "b"), ("b", "a")] {
        let [outer, inner, leaf] = ["outer", "inner", "leaf"].map(|name| format!("{name}_{own}"));
        let others = format!("leaf_{other}");
        let ends = |stack: &Stack| stack.has(&leaf) && !stack.is_cut();
        let is_whole = |stack: &Stack| stack.has_chain(&["main", &outer, &inner, &leaf]);
        let whole = folded.count(|stack| ends(stack) && is_whole(stack));
        let wrong = folded.count(|stack| (ends(stack) && !is_whole(stack)) || (stack.has(&leaf) && stack.has(&others)));
        println!("{whole} whole stacks of {own}, {wrong} wrong ones");
        assert!(wrong == 0 && whole > 0, "{}", folded.largest(10));
    }
    Ok(())
}

#[test]
fn a_caller_in_memory_that_was_mapped_a_moment_ago_is_not_skipped() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = joints(&scratch, &["fresh"])?;
    let recording = record(&target, &scratch, &[])?;
    let leaf = recording.folded.count(|stack| stack.has("nofp_leaf") && !stack.is_cut());
    let without = recording
        .folded
        .count(|stack| stack.has("nofp_leaf") && !stack.is_cut() && !stack.has_chain(&[UNNAMED, "nofp_leaf"]));
    println!("{leaf} complete stacks of nofp_leaf, {without} without its caller");
    assert!(leaf > recording.folded.total() / 4, "{leaf} of {}", recording.folded.total());
    assert_eq!(without, 0, "{}", recording.folded.largest(10));
    Ok(())
}

/// The rows of generated code do not hold whatever happens, so the frame pointer is tried where they lead to nothing known.
#[test]
fn generated_code_does_not_skip_such_a_caller_either() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = joints(&scratch, &["fresh_jit"])?;
    let recording = record(&target, &scratch, &[])?;
    let whole = |stack: &Stack| stack.has("generated_leaf") && !stack.is_cut();
    let (leaf, total) = (recording.folded.count(whole), recording.folded.total());
    let without = recording.folded.count(|stack| whole(stack) && !stack.has_chain(&[UNNAMED, "generated_leaf"]));
    println!("{leaf} complete stacks of generated_leaf, {without} without its caller");
    assert_at_least("complete stacks of generated_leaf", Share { part: leaf, whole: total }, 0.25);
    assert_eq!(without, 0, "{}", recording.folded.largest(10));
    Ok(())
}

/// What a launched program has mapped before it runs is not known to the BPF program at its first samples.
#[test]
fn neither_is_skipped_right_after_a_launch() -> Result<()> {
    let scratch = Scratch::new()?;
    let program = compile_joints(&scratch)?;
    for (mode, leaf) in [("fresh", "nofp_leaf"), ("fresh_jit", "generated_leaf")] {
        let mut jitprof = Jitprof::recording(&scratch, ["-d", "500ms", "--"])?;
        jitprof.command().arg(&program).arg(mode);
        let recording = jitprof.record()?;
        let (of_leaf, _) = recording.folded.part(|stack| stack.has(leaf) && !stack.is_cut());
        let without = of_leaf.count(|stack| !stack.has_chain(&[UNNAMED, leaf]));
        println!(
            "{} complete stacks of {leaf} of {}, {without} without its caller",
            of_leaf.total(),
            recording.folded.total()
        );
        assert_enough("complete stacks", of_leaf.total(), 50);
        assert_eq!(without, 0, "{}", recording.folded.largest(10));
    }
    Ok(())
}

#[test]
fn the_service_does_not_skip_such_a_caller_at_any_pace() -> Result<()> {
    let scratch = Scratch::new()?;
    let _target = joints(&scratch, &["fresh"])?;
    for length in ["1s", "5s"] {
        let address = free_address()?.to_string();
        let config = format!("[window]\nlength = \"{length}\"\ngrace = \"1s\"\n[sampling]\nfrequency = 997\n");
        std::fs::write(scratch.file("jitprof.toml"), config)?;
        let arguments = ["serve", "--config", "jitprof.toml", "--token", "none", "--listen", &address];
        let mut service = Jitprof::new(&scratch, arguments)?.spawn()?;
        let at = address.parse()?;
        let stacks = service.wait_for("stacks of fresh code", || {
            let Ok((200, text)) = get(at, "/profile?format=folded&comm=joints&from=-5m") else { return Ok(None) };
            let folded = Folded::parse(&text)?;
            Ok((folded.count(|stack| stack.has("nofp_leaf") && !stack.is_cut()) > 500).then_some(folded))
        })?;
        let without =
            |stack: &Stack| stack.has("nofp_leaf") && !stack.is_cut() && !stack.has_chain(&[UNNAMED, "nofp_leaf"]);
        assert_eq!(stacks.count(without), 0, "windows of {length}: {}", stacks.largest(10));
        service.signal(libc::SIGTERM)?;
        let ended = service.finish()?;
        assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
    }
    Ok(())
}

#[test]
fn the_function_that_a_signal_interrupts_is_looked_up_where_it_was() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = joints(&scratch, &["signal"])?;
    let recording = Jitprof::recording(&scratch, ["--pid", target.said("pid")?])?.record_cpu(target.pid()?, 6)?;
    let handled = recording.folded.count(|stack| stack.has("handler_burn"));
    let over =
        recording.folded.count(|stack| stack.has("handler_burn") && stack.has_chain(&["main", "signals", "spin"]));
    assert!(handled > recording.folded.total() / 5, "{handled} samples in the handler");
    assert_at_least("handlers over the function they interrupted", Share { part: over, whole: handled }, 0.995);
    assert_eq!(recording.folded.count(|stack| stack.has("before")), 0);
    Ok(())
}

#[test]
#[cfg(target_arch = "x86_64")]
fn what_a_handler_returns_to_is_known_by_its_bytes_where_nothing_describes_it() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = joints(&scratch, &["signal_bare"])?;
    let recording = Jitprof::recording(&scratch, ["--pid", target.said("pid")?])?.record_cpu(target.pid()?, 6)?;
    let handled = recording.folded.count(|stack| stack.has("handler_burn"));
    let chain = ["main", "signals", "spin", "bare_restorer", "handler", "handler_burn"];
    let over = recording.folded.count(|stack| stack.has_chain(&chain) && !stack.is_cut());
    assert!(handled > recording.folded.total() / 5, "{handled} samples in the handler");
    let what = format!("handlers over the function they interrupted:\n{}", recording.folded.largest(10));
    assert_at_least(&what, Share { part: over, whole: handled }, 0.995);
    assert_eq!(recording.folded.count(|stack| stack.has("undescribed")), 0);
    Ok(())
}

#[test]
fn a_process_means_the_children_that_it_has_already() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = joints(&scratch, &["children", "2"])?;
    let recording =
        Jitprof::recording(&scratch, ["--pid", target.said("pid")?])?.record_cpu_of(&target.children()?, 3)?;
    let burnt =
        Share { part: recording.folded.count(|stack| stack.has("child_burn")), whole: recording.folded.total() };
    assert_enough("samples", burnt.whole, 500);
    assert_at_least("samples of the children", burnt, 0.99);
    let alone = ["--pid", target.said("pid")?, "-d", "1s", "--no-inherit", "-o", "none.svg"];
    let finished = Jitprof::new(&scratch, alone)?.run()?;
    assert_eq!(finished.status.code(), Some(3), "{}", finished.stderr);
    assert!(finished.stderr.contains("no samples"), "{}", finished.stderr);
    Ok(())
}
