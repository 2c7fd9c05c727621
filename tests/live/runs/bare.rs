//! Runtimes that were started without any flag: what they know themselves names their code.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use jitprof_tests::{
    Jitprof, Leftover, Recording, Scratch, Share, Stack, Target, Truth, assert_at_least, assert_at_least_of_few,
    assert_enough, assert_share, compile, path_from, target_file, wait_until,
};

use crate::node::without_maglev_inlining;

/// Samples a second.
const FREQUENCY: &str = "399";
/// What is promised.
pub(super) const PROMISED: f64 = 0.995;
/// Keeps each function of the target in a frame of its own. It says nothing to a profiler.
const APART: &str = "-XX:CompileCommand=dontinline,Burn::*";

fn java(flags: &[&str], program: &str, scratch: &Scratch) -> Result<Recording> {
    java_with(flags, program, scratch, &[])
}

fn java_with(flags: &[&str], program: &str, scratch: &Scratch, how: &[&str]) -> Result<Recording> {
    let mut command = Command::new(path_from("JITPROF_JAVA")?);
    command.args(flags).arg(target_file(program)?).arg("600").current_dir(scratch.path());
    let target = Target::start(command, scratch)?;
    // HotSpot compiles what runs in earnest within its first second of CPU time.
    wait_until("HotSpot to compile", || Ok((target.cpu_ms()? >= 5000).then_some(())))?;
    let words = [&["--pid", target.said("pid")?], how].concat();
    Jitprof::recording_at(scratch, FREQUENCY, words)?.record_cpu(target.pid()?, 6)
}

#[track_caller]
pub(super) fn assert_bare(recording: &Recording) {
    assert_at_least("complete stacks", recording.complete(), PROMISED);
    assert_named(recording);
}

/// That what is in the stacks has names by the runtime's own tables.
#[track_caller]
pub(super) fn assert_named(recording: &Recording) {
    assert_at_least_of_few("named leaves", recording.named_leaves(), PROMISED);
    // What is interpreted is known by words that are taken once the tables are read; the copies of stacks from before that
    // have them of some frames only, and the others are said to be too early. How many those are depends on how long the
    // first reading took.
    let named = recording.named_frames();
    assert_at_least("named frames, early ones too", named, 0.95);
    let unnamed = |why: &str| recording.account["jit"]["unnamed"][why].as_u64().unwrap_or(0);
    let no_words = unnamed("no words of the frame were taken") + unnamed("sampled before its runtime was looked at");
    let copied = no_words.min(recording.number("/deferred/snapshots"));
    assert_at_least("named frames", Share { whole: named.whole - copied, ..named }, PROMISED);
    let jit = |name: &str| recording.number(&format!("/jit/named/{name}"));
    assert_eq!((jit("jitdump"), jit("peeked"), jit("perf_map")), (0, 0, 0));
    assert_enough("frames by the runtime's own tables", jit("runtime"), 100);
}

#[test]
fn a_bare_jvm_has_whole_stacks_with_names_and_tiers() -> Result<()> {
    let scratch = Scratch::new()?;
    for collector in ["-XX:+UseG1GC", "-XX:+UseZGC", "-XX:+UseShenandoahGC"] {
        let recording = java(&[APART, collector], "java/Burn.java", &scratch)?;
        assert_bare(&recording);
        let (hot, cold) = ("Burn.leafHot(I)I", "Burn.leafCold(I)I");
        assert_share(collector, recording.folded.share(hot, cold), 0.75);
        let chains: [&[&str]; 2] =
            [&["Burn.outer(I)I", "Burn.middle(I)I", hot], &["Burn.outer(I)I", "Burn.sideCold(I)I", cold]];
        let whole = recording.folded.count(|stack| stack.has(hot) || stack.has(cold));
        let part = recording.folded.count(|stack| {
            let in_chain = chains.iter().any(|chain| stack.has_chain(chain));
            in_chain && stack.has("JavaMain") && stack.has("start_thread") && !stack.is_cut()
        });
        assert_at_least("whole chains", Share { part, whole }, PROMISED);
        let optimised = |stack: &Stack| stack.frames.iter().any(|frame| frame == "*Burn.leafHot(I)I");
        let (part, whole) = (recording.folded.count(optimised), recording.folded.count(|stack| stack.has(hot)));
        assert_at_least_of_few("compiled by C2", Share { part, whole }, PROMISED);
    }
    Ok(())
}

#[test]
fn frame_pointers_take_nothing_from_a_young_jvm() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut command = Command::new(path_from("JITPROF_JAVA")?);
    let program = target_file("java/Burn.java")?;
    command.arg("-XX:+PreserveFramePointer").arg(program).arg("600").current_dir(scratch.path());
    let target = Target::start(command, &scratch)?;
    // From its first methods on: each has the rows of its size first, and those of its code a moment later.
    let words = ["--pid", target.said("pid")?];
    let recording = Jitprof::recording_at(&scratch, "499", words)?.record_cpu(target.pid()?, 6)?;
    // After a reading of its tables jitprof rests for 49 times as long as that took: where it takes 20 ms, samples wait for a
    // second for rows, and not all of their copies may have room.
    let complete = recording.complete();
    let refused = recording.number("/deferred/refused_for_memory").min(complete.whole - complete.part);
    let with_copies = Share { part: complete.part + refused, ..complete };
    assert_at_least("complete stacks, of those whose copies had room", with_copies, PROMISED);
    let had_room = Share { part: complete.whole - refused, ..complete };
    assert_at_least("stacks whose copies had room", had_room, 0.9);
    recording.assert_named();
    Ok(())
}

#[test]
fn a_bare_jvm_with_all_that_makes_stacks_hard_has_them_whole() -> Result<()> {
    let scratch = Scratch::new()?;
    let recording = java(&[], "java/Mixed.java", &scratch)?;
    assert_bare(&recording);
    let whole = recording.folded.count(|stack| stack.has_prefix("Mixed."));
    let part = recording.folded.count(|stack| stack.has_prefix("Mixed.") && stack.has("JavaMain"));
    assert_at_least("below the thread's beginning", Share { part, whole }, PROMISED);
    Ok(())
}

#[test]
fn a_string_search_that_moves_the_stack_pointer_has_its_callers() -> Result<()> {
    let scratch = Scratch::new()?;
    let recording = java(&["-XX:CompileCommand=dontinline,Search::*"], "java/Search.java", &scratch)?;
    assert_enough("frames by the runtime's own tables", recording.number("/jit/named/runtime"), 100);
    let (find, outer) = ("Search.find(II)I", "Search.outer(I)I");
    let chains = [[outer, "Search.middle(I)I", find], [outer, "Search.side(I)I", find]];
    let count = |chain: &[&str]| recording.folded.count(|stack| stack.has_chain(chain) && stack.has("JavaMain"));
    let (middle, side) = (count(&chains[0]), count(&chains[1]));
    let whole = recording.folded.count(|stack| stack.has(find));
    // Where the paths have met and the saved pointer is not on the stack yet, a tenth of them, nothing is known.
    assert_at_least("whole chains", Share { part: middle + side, whole }, 0.75);
    assert_share("searches", Share { part: middle, whole: middle + side }, 0.75);
    // Nobody else is ever said to have called it.
    let native =
        recording.folded.count(|stack| stack.has_chain(&["clock_gettime", find]) || stack.has("os::javaTimeNanos"));
    assert_at_least("without wrong callers", Share { part: whole.saturating_sub(native), whole }, 0.99);
    Ok(())
}

/// Of which generation of Generations.java, or worker of successors.js, something is, by the number in its name.
fn generation<'n>(name: &'n str, begins: &[&str]) -> Option<&'n str> {
    let name = in_any_tier(name);
    begins.iter().find_map(|begin| name.strip_prefix(begin)?.get(..6)).filter(|number| number.parse::<u32>().is_ok())
}

/// Samples of threads that each run one generation of a class, as their names say; those that have frames of their own, and those
/// that have frames of another one.
fn by_generation(recording: &Recording) -> (u64, u64, u64) {
    let of_one = |stack: &Stack| generation(&stack.frames[0], &["run"]).is_some();
    let has = |stack: &Stack, is_own: bool| {
        let own = generation(&stack.frames[0], &["run"]);
        let named = stack.frames.iter().filter_map(|frame| {
            let chain = frame.split('.').next_back().unwrap_or(frame);
            generation(frame, &["Generation"]).or_else(|| generation(chain, &["outer", "middle", "leaf"]))
        });
        own.is_some() && named.clone().count() > 0 && named.clone().any(|number| (Some(number) == own) == is_own)
    };
    let count = |is_own| recording.folded.count(|stack| has(stack, is_own));
    (recording.folded.count(of_one), count(true), count(false))
}

#[test]
fn methods_and_code_of_unloaded_classes_are_not_called_by_what_comes_to_their_place() -> Result<()> {
    const UNCOUNTED: &str = "-XX:-UsePerfData";
    for flags in [&["-Xint"][..], &["-XX:TieredStopAtLevel=1"], &["-Xint", UNCOUNTED]] {
        let scratch = Scratch::new()?;
        let recording = java(flags, "java/Generations.java", &scratch)?;
        let (of_one, right, wrong) = by_generation(&recording);
        assert_enough("samples of generations", of_one, 1000);
        println!("{flags:?}: of {of_one} samples {right} are named by their own generation");
        assert_eq!(wrong, 0, "{flags:?}: called by another generation");
        assert_enough("samples that are named", right, 200);
    }
    Ok(())
}

/// Code in one piece, with so little room that what is compiled takes the place of what was.
const SMALL_CACHE: [&str; 2] = ["-XX:-SegmentedCodeCache", "-XX:ReservedCodeCacheSize=4m"];

#[test]
fn a_bare_jvm_with_a_small_code_cache_has_stacks_of_all_that_is_not_new() -> Result<()> {
    let scratch = Scratch::new()?;
    let recording = java(&SMALL_CACHE, "java/Mixed.java", &scratch)?;
    let numbers = ["/stacks/cut", "/jit/unnamed", "/deferred"].map(|at| recording.account.pointer(at));
    println!("{numbers:?}");
    // What was compiled since the last reading has no rows yet, and here that never ends. The next one comes sooner where it is
    // met, as long as rest was saved since the program began.
    assert_at_least("complete stacks", recording.complete(), 0.95);
    let whole = recording.folded.count(|stack| stack.has_prefix("Mixed."));
    let part = recording.folded.count(|stack| stack.has_prefix("Mixed.") && stack.has("JavaMain"));
    assert_at_least("below the thread's beginning", Share { part, whole }, 0.95);
    Ok(())
}

#[test]
fn code_at_addresses_that_are_used_again_is_not_taken_for_what_was_there() -> Result<()> {
    let scratch = Scratch::new()?;
    let java = path_from("JITPROF_JAVA")?;
    let jcmd = std::fs::canonicalize(&java)?.with_file_name("jcmd");
    ensure!(jcmd.exists(), "{} is not there: it comes with a JDK, not with a runtime alone", jcmd.display());
    let mut command = Command::new(java);
    let apart = ["-XX:CompileCommand=dontinline,Reuse::*", "-XX:CompileCommand=dontinline,Generation*::*"];
    command.args(SMALL_CACHE).args(apart).arg(target_file("java/Reuse.java")?).arg("600");
    let target = Target::start(command, &scratch)?;
    let pid = target.said("pid")?.to_owned();
    wait_until("HotSpot to compile", || Ok((target.cpu_ms()? >= 5000).then_some(())))?;

    let recording = Jitprof::recording(&scratch, ["--pid", &*pid])?.record_cpu(target.pid()?, 5)?;
    let (of_one, right, wrong) = by_generation(&recording);
    println!("of {of_one} samples of generations {right} are named by their own");
    assert_eq!(wrong, 0, "called by another generation");
    assert_enough("samples that are named", right, 200);
    // What lives for a few readings only has no callers in its first moments.
    println!("{:?} complete", recording.complete());
    assert_stays(&recording);

    let mut running = Jitprof::recording(&scratch, ["--pid", &*pid, "--verify-names"])?.spawn()?;
    running.wait_for_samples(target.pid()?, 500)?;
    std::fs::write(scratch.file("settle"), "")?;
    wait_until("the last class", || Ok(scratch.file("settled").exists().then_some(())))?;
    // The map has no times: what is compiled and freed from here on is hardly any.
    let _map = Leftover::perf_map(target.pid()?);
    let listed = Command::new(jcmd).args([&*pid, "Compiler.perfmap"]).output()?;
    ensure!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    running.wait_for_samples(target.pid()?, 3000)?;
    running.signal(libc::SIGINT)?;
    let recording = running.record()?;
    println!("{}", recording.account["verified"]);
    assert_enough("names of two sources", recording.number("/verified/agreed"), 1000);
    assert_eq!(recording.number("/verified/disagreed"), 0, "{}", recording.account["verified"]);
    Ok(())
}

/// Asserts the chains and their shares of what stays in Reuse.java. Where room is so scarce HotSpot compiles that anew, too, now
/// and then: until the next reading nothing is known of it, and nothing wrong may be said. One of a million samples was wrong so far,
/// for a reason that is not known: such stacks are printed.
#[track_caller]
fn assert_stays(recording: &Recording) {
    let (hot, cold) = ("Reuse.leafHot(I)I", "Reuse.leafCold(I)I");
    assert_share("what stays", recording.folded.share(hot, cold), 0.75);
    let callers = [(hot, "Reuse.middle(I)I"), ("Reuse.middle(I)I", "Reuse.outer(I)I"), (cold, "Reuse.sideCold(I)I")];
    let has_caller = |stack: &Stack, is_right: bool| {
        let frames: Vec<&str> = stack.frames.iter().map(|frame| in_any_tier(frame)).collect();
        frames.windows(2).any(|pair| {
            let own = callers.iter().find(|(callee, _)| *callee == pair[1]);
            own.is_some_and(|(_, caller)| {
                !(pair[0].starts_with('[') || pair[0] == "Interpreter") && (pair[0] == *caller) == is_right
            })
        })
    };
    let (wrong, _) = recording.folded.part(|stack| has_caller(stack, false));
    wrong.stacks.iter().for_each(|stack| println!("called by somebody else: {}", stack.frames.join(";")));
    let whole = recording.folded.count(|stack| stack.has(hot) || stack.has(cold));
    assert_at_least("not called by somebody else", Share { part: whole - wrong.total().min(whole), whole }, 0.9999);
    let part = recording.folded.count(|stack| has_caller(stack, true) && stack.has("start_thread") && !stack.is_cut());
    assert_at_least("whole chains of what stays", Share { part, whole }, 0.5);
}

/// A frame without the mark of its tier: which of its compilers HotSpot has come to depends on the machine.
fn in_any_tier(frame: &str) -> &str {
    frame.trim_start_matches(['~', '^', '+', '*'])
}

/// The same, be it marked as a guess or not.
fn guessed_or_not(frame: &str) -> &str {
    in_any_tier(frame).trim_start_matches('?')
}

/// Which of the methods of Inlined.java have frames of their own, and which have not.
const INLINED: [&str; 7] = [
    "-XX:CompileCommand=quiet",
    "-XX:CompileCommand=dontinline,Inlined::both",
    "-XX:CompileCommand=dontinline,Inlined::spin",
    "-XX:CompileCommand=dontinline,Inlined::hot",
    "-XX:CompileCommand=dontinline,Inlined::cold",
    "-XX:CompileCommand=inline,Inlined::first",
    "-XX:CompileCommand=inline,Inlined::second",
];

#[test]
fn a_bare_jvm_has_what_was_inlined_and_what_is_interpreted_as_frames_with_their_lines() -> Result<()> {
    let scratch = Scratch::new()?;
    let source = std::fs::read_to_string(target_file("java/Inlined.java")?)?;
    let line =
        |mark: &str| source.lines().position(|line| line.ends_with(&format!("// {mark}"))).map_or(0, |at| at + 1);
    let frame = |method: &str, mark: &str| format!("Inlined.{method}(I)I (Inlined.java:{})", line(mark));
    let recording = java_with(&INLINED, "java/Inlined.java", &scratch, &["--lines"])?;
    assert_bare(&recording);
    let folded = &recording.folded;
    let chains = [
        ("hot", [frame("both", "both calls small"), frame("small", "small calls hot")]),
        ("cold", [frame("both", "both calls other"), frame("other", "other calls cold")]),
    ];
    let in_lines = chains.iter().map(|(leaf, callers)| {
        let leaf = format!("Inlined.{leaf}(I)I");
        let whole = folded.count(|stack| stack.has(&leaf));
        let part = folded.count(|stack| {
            let frames: Vec<_> = stack.frames.iter().map(|frame| in_any_tier(frame)).collect();
            frames.windows(3).any(|window| window[..2] == *callers && window[2].starts_with(&leaf))
        });
        println!("{part} of {whole} stacks with {leaf} have {callers:?}");
        Share { part, whole }
    });
    let in_lines: Share = in_lines.sum();
    assert_share("calls", folded.share("Inlined.hot(I)I", "Inlined.cold(I)I"), 0.75);
    // Loops that are inlined have the lines of the method that they are in. Between two safepoints they are a guess.
    let [first, second] = ["first", "second"].map(|name| frame(name, &format!("{name} loops")));
    let spin = folded.count(|stack| stack.has("Inlined.spin(I)I"));
    let [first, second] = [first, second]
        .map(|name| folded.count(|stack| stack.frames.iter().any(|frame| guessed_or_not(frame) == name)));
    println!("{first} and {second} of {spin} loops");
    let loops = Share { part: first + second, whole: spin };
    assert_at_least("calls and loops with their lines", [in_lines, loops].into_iter().sum(), 0.99);
    assert_share("loops", Share { part: first, whole: first + second }, 0.75);
    // What runs all the time is interpreted at its outer end, or was replaced on the stack.
    let main = format!("Inlined.main([Ljava/lang/String:)V (Inlined.java:{})", line("main calls"));
    let callees = ["Inlined.both(I)I", "Inlined.spin(I)I"];
    let whole = folded.count(|stack| callees.iter().any(|callee| stack.has(callee)));
    let part = folded.count(|stack| stack.frames.iter().any(|frame| in_any_tier(frame) == main));
    // What the interpreter is in is asked for with its rows. Samples from before that are finished from copies, without it.
    let copied = folded.count(|stack| callees.iter().any(|callee| stack.has_chain(&["Interpreter", callee])));
    assert!(copied <= recording.number("/deferred/snapshots"), "{copied} in an interpreted method without a name");
    // How many are left depends on when the tables were read.
    assert_at_least_of_few("callers", Share { part, whole: whole - copied }, PROMISED);
    assert_at_least("callers that were asked for", Share { part: whole - copied, whole }, 0.5);
    assert_eq!(recording.sum("/jit/not_looked_into"), 0, "{}", recording.account["jit"]);
    Ok(())
}

#[test]
fn a_bare_jvm_marks_the_inlined_methods_that_are_not_certain_and_says_how_many_are() -> Result<()> {
    let scratch = Scratch::new()?;
    let every_instruction = ["-XX:+UnlockDiagnosticVMOptions", "-XX:+DebugNonSafepoints"];
    for (flags, knows_all) in [(&[][..], false), (&every_instruction[..], true)] {
        let recording = java(&[&INLINED[..], flags].concat(), "java/Inlined.java", &scratch)?;
        assert_bare(&recording);
        let [certain, guessed] = ["certain", "guessed"].map(|what| recording.number(&format!("/jit/leaves_{what}")));
        assert_enough("leaves in compiled code", certain + guessed, 100);
        let said = format!("inlined methods are certain in {certain} of {} leaves", certain + guessed);
        assert_eq!(recording.stderr.contains(&said), guessed > 0, "{said}: {}", recording.stderr);
        let is_advised = recording.stderr.contains("-XX:+DebugNonSafepoints` knows what is inlined");
        assert_eq!(is_advised, guessed > 0, "{}", recording.stderr);
        let folded = &recording.folded;
        let is_guess = |stack: &Stack| stack.frames.iter().any(|frame| frame.starts_with('?'));
        // Nothing was inlined into them, and what they were called by is known.
        let is_plain = |stack: &Stack| stack.has("Inlined.hot(I)I") || stack.has("Inlined.cold(I)I");
        let whole = folded.count(is_plain);
        let part = folded.count(|stack| is_plain(stack) && !is_guess(stack));
        assert_at_least_of_few("certain without inlined methods", Share { part, whole }, PROMISED);
        // Loops lie between safepoints of their own, and of what is around them.
        let whole = folded.count(|stack| stack.has("Inlined.spin(I)I"));
        let part = folded.count(|stack| stack.has("Inlined.spin(I)I") && is_guess(stack));
        println!("{part} of {whole} loops are guesses, of {guessed} in all");
        let of_loop = |name: &str| {
            folded
                .count(|stack| stack.frames.iter().any(|frame| guessed_or_not(frame) == format!("Inlined.{name}(I)I")))
        };
        let (first, second) = (of_loop("first"), of_loop("second"));
        assert_share("loops, guessed or not", Share { part: first, whole: first + second }, 0.75);
        if knows_all {
            assert_eq!((part, guessed), (0, 0));
        } else {
            assert_at_least("loops that are marked", Share { part, whole }, 0.5);
            assert!(guessed >= part, "{guessed} {part}");
        }
    }
    Ok(())
}

#[test]
fn a_caller_that_is_deoptimised_below_its_callee_says_that_what_was_inlined_is_not_known() -> Result<()> {
    let scratch = Scratch::new()?;
    let flags = [
        "-Xbatch",
        "-XX:CompileCommand=quiet",
        "-XX:CompileCommand=dontinline,Deopt::outer",
        "-XX:CompileCommand=dontinline,Deopt::spin",
        "-XX:CompileCommand=dontinline,Deopt::leaf",
        "-XX:CompileCommand=inline,Deopt::middle",
        "-XX:CompileCommand=inline,Deopt::inner",
    ];
    let recording = java_with(&flags, "java/Deopt.java", &scratch, &["--lines"])?;
    assert_bare(&recording);
    let folded = &recording.folded;
    // No line stands behind: that of the handler would be another place's.
    let is_chain = |window: &[String]| {
        let is = |at: usize, name: &str| in_any_tier(&window[at]).starts_with(name);
        let has_line = |frame: &String| frame.contains(".java:");
        is(0, "Deopt.outer(I)I")
            && is(1, "?Deopt.outer(I)I")
            && is(2, "Deopt.spin(I)I")
            && !window[..2].iter().any(has_line)
    };
    let whole = folded.count(|stack| stack.has_prefix("Deopt.leaf(I)I"));
    let part = folded.count(|stack| stack.has_prefix("Deopt.leaf(I)I") && stack.frames.windows(3).any(is_chain));
    assert_at_least("marked callers", Share { part, whole }, PROMISED);
    let inlined = folded.count(|stack| stack.has_prefix("Deopt.middle") || stack.has_prefix("Deopt.inner"));
    assert_eq!(inlined, 0, "what was inlined is not known");
    let counted = recording.sum("/jit/not_looked_into");
    assert!(counted >= part, "{counted} {part}");
    let said = "without what was inlined there: deoptimised";
    assert!(recording.stderr.contains(said), "{}", recording.stderr);
    Ok(())
}

#[test]
fn a_bare_jvm_is_not_read_where_that_is_switched_off() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut command = Command::new(path_from("JITPROF_JAVA")?);
    command.arg(target_file("java/Burn.java")?).arg("600").current_dir(scratch.path());
    let target = Target::start(command, &scratch)?;
    let recording = Jitprof::recording(&scratch, ["--pid", target.said("pid")?, "--no-read-runtime"])?
        .record_cpu(target.pid()?, 3)?;
    assert_eq!(recording.number("/jit/named/runtime"), 0);
    assert!(recording.sum("/jit/unnamed") > 10);
    Ok(())
}

/// What is registered for GDB names LLVM's functions, whatever made it compile.
#[track_caller]
fn assert_burns(recording: &Recording, chain: &[&str], names: (&str, &str)) {
    assert_bare(recording);
    assert_share("shares", recording.folded.share(names.0, names.1), 0.75);
    let whole = recording.folded.count(|stack| stack.has(names.0));
    let part = recording.folded.count(|stack| stack.has_chain(chain) && !stack.is_cut());
    assert_at_least("whole chains", Share { part, whole }, PROMISED);
}

/// Has LLVM run a program that was compiled with these flags, and records it.
fn record_lli(program: &str, flags: &[&str], how: &[&str], scratch: &Scratch) -> Result<Recording> {
    let code = scratch.path().join("program.ll");
    let mut clang = Command::new(path_from("JITPROF_CLANG")?);
    clang.args(flags).args(["-fomit-frame-pointer", "-S", "-emit-llvm", "-o"]).arg(&code).arg(target_file(program)?);
    ensure!(clang.status()?.success(), "clang does not compile the target");
    let mut lli = Command::new(path_from("JITPROF_LLI")?);
    lli.arg("-jit-kind=orc").arg(&code).arg("600").current_dir(scratch.path());
    let target = Target::start(lli, scratch)?;
    let words = [&["--pid", target.said("pid")?], how].concat();
    Jitprof::recording(scratch, words)?.record_cpu(target.pid()?, 6)
}

#[test]
fn llvm_is_named_by_what_it_has_registered_for_gdb() -> Result<()> {
    let scratch = Scratch::new()?;
    let recording = record_lli("llvm/burn.c", &["-O1"], &[], &scratch)?;
    assert_burns(&recording, &["main", "outer", "middle", "leaf_hot"], ("leaf_hot", "leaf_cold"));
    Ok(())
}

#[test]
fn debug_information_that_llvm_has_registered_for_gdb_says_lines_and_what_was_inlined() -> Result<()> {
    let scratch = Scratch::new()?;
    let recording = record_lli("llvm/parts.c", &["-g", "-O2"], &["--lines"], &scratch)?;
    assert_bare(&recording);
    let folded = &recording.folded;
    let at = |name: &'static str, line: u32| {
        move |frame: &String| frame.starts_with(name) && frame.ends_with(&format!("inlined.c:{line})"))
    };
    let has_line = |name: &'static str| move |frame: &String| frame.starts_with(name) && frame.contains("inlined.c:");
    // The line of a call is where the inlined function stands in the one around it.
    let hot = |stack: &Stack| {
        let mut frames = stack.frames.iter();
        frames.any(at("run", 35)) && frames.any(at("outer_part", 21)) && frames.any(has_line("hot_part"))
    };
    let cold = |stack: &Stack| {
        let mut frames = stack.frames.iter();
        frames.any(at("run", 37)) && frames.any(has_line("cold_part"))
    };
    let (part, rest) = (folded.count(hot), folded.count(cold));
    assert_share("inlined parts", Share { part, whole: part + rest }, 0.75);
    // Of instructions that the compiler has made of several lines, DWARF says none.
    let whole = folded.count(|stack| stack.has_prefix("run"));
    assert_at_least("inlined parts with lines", Share { part: part + rest, whole }, 0.9);
    Ok(())
}

/// What JITs register with libgcc for exceptions names nothing.
#[cfg(target_arch = "x86_64")]
#[test]
fn code_without_a_name_is_unwound_by_what_was_registered_with_libgcc() -> Result<()> {
    let scratch = Scratch::new()?;
    let flags = ["-O1", "-g", "-fomit-frame-pointer", "-shared-libgcc"];
    let program = jitprof_tests::compile(&scratch, "cc", "native/registered.c", &flags)?;
    let record = |how: &[&str]| -> Result<Recording> {
        let mut command = Command::new(&program);
        command.arg("600");
        let target = Target::start(command, &scratch)?;
        let words = [&["--pid", target.said("pid")?], how].concat();
        Jitprof::recording_at(&scratch, FREQUENCY, words)?.record_cpu(target.pid()?, 6)
    };
    let recording = record(&[])?;
    assert_at_least("complete stacks", recording.complete(), PROMISED);
    let (folded, generated) = (&recording.folded, "[JIT code without a name]");
    assert_share("callers of generated code", folded.share("call_hot", "call_cold"), 0.75);
    let whole = folded.count(|stack| stack.has(generated));
    let below =
        |caller: &str| folded.count(|stack| stack.has_chain(&["main", "run", caller, generated]) && !stack.is_cut());
    let part = below("call_hot") + below("call_cold");
    assert_at_least("whole chains", Share { part, whole }, PROMISED);
    assert_eq!(recording.number("/jit/named/runtime"), 0);
    // Nothing else says who has called such code.
    let unread = record(&["--no-read-runtime"])?.complete();
    assert!(unread.part * 10 < unread.whole, "{} of {}", unread.part, unread.whole);
    Ok(())
}

#[test]
fn code_that_takes_turns_at_one_address_is_named_by_when_it_was_registered() -> Result<()> {
    let scratch = Scratch::new()?;
    let flags = ["-O1", "-g", "-fno-omit-frame-pointer"];
    let mut command = Command::new(compile(&scratch, "cc", "native/registers.c", &flags)?);
    command.arg("600").current_dir(scratch.path());
    let target = Target::start(command, &scratch)?;
    let words = ["--pid", target.said("pid")?, "--probe-registrations"];
    let recording = Jitprof::recording_at(&scratch, FREQUENCY, words)?.record_cpu(target.pid()?, 8)?;
    let (folded, hot, cold) = (&recording.folded, "turn_hot", "turn_cold");
    assert_share("turns", folded.share(hot, cold), 0.75);
    // The first one was there before anybody looked; of the others a busy machine may miss some that are soon gone.
    let (part, whole) =
        (folded.count(|stack| stack.has(hot) || stack.has(cold)), folded.count(|stack| stack.has("main")));
    assert_at_least("turns with a name", Share { part, whole }, 0.95);
    let told = |name: &str| recording.number(&format!("/sources/0/tables/told/{name}"));
    assert_enough("calls", told("calls"), 60);
    assert_enough("beginnings", told("begins"), 30);
    assert_eq!((told("missed"), told("unclear")), (0, 0));
    let before = target.cpu_ms()?;
    wait_until("the target to go on without its breakpoint", || Ok((target.cpu_ms()? > before + 500).then_some(())))?;
    Ok(())
}

#[test]
fn numba_without_any_flag_is_named_by_what_it_has_registered_for_gdb() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut command = Command::new(path_from("JITPROF_NUMBA_PYTHON")?);
    command.arg(target_file("numba/burn.py")?).arg("600").current_dir(scratch.path());
    let target = Target::start(command, &scratch)?;
    let recording = Jitprof::recording(&scratch, ["--pid", target.said("pid")?])?.record_cpu(target.pid()?, 4)?;
    assert_bare(&recording);
    let folded = &recording.folded;
    assert_share("leaf_hot", folded.share("__main__::leaf_hot", "__main__::spin"), 0.75);
    // What is between is inlined into the outermost, and nothing says where. Below it are the functions of Python.
    let chain = ["cpython::__main__::outer", "__main__::outer", "__main__::leaf_hot"];
    assert_at_least("chain of leaf_hot", folded.through(&chain), PROMISED);
    let module = |frame: &String| in_any_tier(frame).starts_with("<module>");
    let below = |stack: &Stack| stack.has("__main__::outer") && stack.frames.iter().any(module) && stack.has("_start");
    let (part, whole) = (folded.count(below), folded.count(|stack| stack.has("__main__::outer")));
    assert_at_least("with its callers", Share { part, whole }, PROMISED);
    Ok(())
}

/// Keeps each function of the target in a frame of its own. It says nothing to a profiler.
const NOT_INLINED: &str = "--no-turbo-inlining";

fn node(flags: &[&str], script: &str) -> Result<Command> {
    let mut command = Command::new(path_from("JITPROF_NODE")?);
    command.args(flags).arg(NOT_INLINED).args(without_maglev_inlining()?);
    command.arg(target_file(&format!("node/{script}"))?).arg("600");
    Ok(command)
}

fn record_node(command: Command, scratch: &Scratch) -> Result<Recording> {
    let target = Target::start(command, scratch)?;
    // V8 optimises what runs in earnest within its first second of CPU time.
    wait_until("V8 to compile", || Ok((target.cpu_ms()? >= 2000).then_some(())))?;
    Jitprof::recording_at(scratch, FREQUENCY, ["--pid", target.said("pid")?])?.record_cpu(target.pid()?, 6)
}

/// Asserts names, whole stacks, both chains of the known program, and what its leaves are marked with.
#[track_caller]
fn assert_burns_bare(recording: &Recording, mark: &str) {
    assert_bare(recording);
    assert_share("leafHot", recording.folded.share("leafHot", "leafCold"), 0.75);
    let truth = Truth::new(&["outer > middle > leafHot", "outer > sideCold > leafCold"], &[]);
    let agreement = truth.check(&recording.folded);
    assert!(agreement.own * 2 > recording.folded.total(), "half of all samples are in the target's own functions");
    assert_at_least(&format!("right stacks; misses:\n{}", agreement.explanation()), agreement.right(), PROMISED);
    let (leaf, marked) = ("leafHot", format!("{mark}leafHot"));
    let part = recording.folded.count(|stack| stack.frames.contains(&marked));
    let whole = recording.folded.count(|stack| stack.has(leaf));
    assert_at_least_of_few(&marked, Share { part, whole }, PROMISED);
    assert_eq!(recording.account["advice"].as_array().map(Vec::len), Some(0), "nobody is told to use a flag");
}

fn assert_burns_in_tier(flags: &[&str], mark: &str) -> Result<()> {
    let scratch = Scratch::new()?;
    assert_burns_bare(&record_node(node(flags, "burn.js")?, &scratch)?, mark);
    Ok(())
}

#[test]
fn a_bare_node_has_the_names_tiers_and_stacks_that_its_flags_would_give() -> Result<()> {
    assert_burns_in_tier(&[], "*")
}

#[test]
fn a_bare_node_without_optimisation_has_names_and_stacks_of_its_baseline_code() -> Result<()> {
    assert_burns_in_tier(&["--no-opt", "--always-sparkplug"], "^")
}

#[test]
fn a_bare_node_that_interprets_has_names_and_stacks() -> Result<()> {
    assert_burns_in_tier(&["--no-opt", "--no-sparkplug"], "~")
}

#[test]
fn a_bare_node_whose_interpreter_is_copied_for_each_function_has_names_and_stacks() -> Result<()> {
    assert_burns_in_tier(&["--no-opt", "--no-sparkplug", "--interpreted-frames-native-stack"], "~")
}

/// As anybody starts it. TurboFan makes one piece of code of the whole program: nothing but its loops says whose they are.
#[test]
fn a_node_that_inlines_has_the_functions_whose_loops_run() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut command = Command::new(path_from("JITPROF_NODE")?);
    command.arg(target_file("node/burn.js")?).arg("600");
    let recording = record_node(command, &scratch)?;
    assert_bare(&recording);
    assert_share("leafHot", recording.folded.share("leafHot", "leafCold"), 0.75);
    let truth = Truth::new(&["outer > middle > leafHot", "outer > sideCold > leafCold"], &[]);
    let agreement = truth.check(&recording.folded);
    println!("right {:?} of {}", agreement.right(), recording.folded.total());
    // Where a loop begins and ends is its caller's.
    let in_leaves = recording.folded.count(|stack| stack.has("leafHot") || stack.has("leafCold"));
    let what = "samples in the loops' functions";
    assert_at_least(what, Share { part: in_leaves, whole: recording.folded.total() }, 0.97);
    assert_at_least(&format!("right stacks; misses:\n{}", agreement.explanation()), agreement.right(), PROMISED);
    Ok(())
}

#[test]
fn a_bare_node_whose_functions_are_moved_all_the_time_has_right_stacks() -> Result<()> {
    let scratch = Scratch::new()?;
    assert_burns_bare(&record_node(node(&[], "pressure.js")?, &scratch)?, "*");
    Ok(())
}

#[test]
fn a_recursion_deeper_than_words_are_taken_of_keeps_its_names_and_those_below_it() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut command = node(&[], "deep.js")?;
    command.env("DEEP", "400");
    let recording = record_node(command, &scratch)?;
    assert_bare(&recording);
    let folded = &recording.folded;
    let is_leaf = |stack: &Stack| stack.has("hotA") || stack.has("hotB");
    let is_whole =
        |stack: &Stack| is_leaf(stack) && stack.has_chain(&["main", "recurse"]) && stack.number_of("recurse") == 401;
    let whole = Share { part: folded.count(is_whole), whole: folded.count(is_leaf) };
    assert_at_least("stacks with all 401 calls, and who called", whole, PROMISED);
    assert_share("hotA", folded.share("hotA", "hotB"), 0.75);
    Ok(())
}

#[test]
fn a_bare_node_names_the_code_of_its_workers() -> Result<()> {
    let scratch = Scratch::new()?;
    let recording = record_node(node(&[], "worker.js")?, &scratch)?;
    assert_bare(&recording);
    let (main, workers) = ("hotMain", "hotWorker");
    assert_share(workers, recording.folded.share(workers, main), 2.0 / 3.0);
    let whole = recording.folded.count(|stack| stack.has(main) || stack.has(workers));
    let part = recording.folded.count(|stack| stack.has_chain(&["burn", main]) || stack.has_chain(&["burn", workers]));
    assert_at_least("whole chains", Share { part, whole }, PROMISED);
    Ok(())
}

/// Each worker's thread says in its name which function is the worker's own.
#[test]
fn a_worker_is_not_called_by_what_comes_to_its_place() -> Result<()> {
    let scratch = Scratch::new()?;
    let recording = record_node(node(&[], "successors.js")?, &scratch)?;
    let worker = |frame: &str| generation(frame, &["run"]).map(str::to_owned);
    let has = |stack: &Stack, is_own: bool| {
        let own = worker(&stack.frames[0]);
        let mut named = stack.frames[1..].iter().filter_map(|frame| worker(frame));
        own.is_some() && named.any(|number| (Some(&number) == own.as_ref()) == is_own)
    };
    let (right, wrong) =
        (recording.folded.count(|stack| has(stack, true)), recording.folded.count(|stack| has(stack, false)));
    assert_eq!(wrong, 0, "called by another worker's function; {right} by their own");
    assert_enough("samples that are named", right, 400);
    Ok(())
}

/// V8 puts the address of an exit at the end of a caller's code into the place of the return address. It lies behind all that
/// the caller has inlined.
#[test]
fn a_caller_whose_code_is_given_up_while_it_waits_has_its_line_and_what_it_has_inlined() -> Result<()> {
    let scratch = Scratch::new()?;
    let program = target_file("node/given_up.js")?;
    let text = std::fs::read_to_string(&program)?;
    let call = text.lines().enumerate().find(|(_, line)| line.contains("// outer calls middle"));
    let (before, call) = call.context("the call's line")?;
    let end = format!(":{}:{})", before + 1, call.find("middle(").context("the call")? + 1);
    let mut command = Command::new(path_from("JITPROF_NODE")?);
    command.arg("--allow-natives-syntax").arg(program).arg("600");
    let target = Target::start(command, &scratch)?;
    let words = ["--lines", "--pid", target.said("pid")?];
    let recording = Jitprof::recording_at(&scratch, FREQUENCY, words)?.record_cpu(target.pid()?, 6)?;
    let folded = &recording.folded;
    let is_given_up = |stack: &Stack| stack.has("spin") && stack.frames.iter().any(|frame| frame.starts_with("*outer"));
    let is_at_call =
        |stack: &Stack| stack.frames.iter().any(|frame| frame.starts_with("*outer (") && frame.ends_with(&end));
    let whole = folded.count(is_given_up);
    assert_enough("samples below code that is given up", whole, 400);
    let through_middle = |stack: &Stack| stack.has_chain(&["outer", "middle", "spin"]) && is_at_call(stack);
    let part = folded.count(|stack| is_given_up(stack) && through_middle(stack));
    assert_at_least("right callers and lines", Share { part, whole }, 0.97);
    // That takes a moment, in which hardly a sample falls.
    let through_last = folded.count(|stack| stack.has_chain(&["last", "spin"]));
    assert!(through_last * 200 <= whole, "{through_last} of {whole} samples of spin are below last");
    Ok(())
}

#[test]
fn a_bare_node_is_not_read_where_that_is_switched_off() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = Target::start(node(&[], "burn.js")?, &scratch)?;
    let recording = Jitprof::recording(&scratch, ["--pid", target.said("pid")?, "--no-read-runtime"])?
        .record_cpu(target.pid()?, 3)?;
    assert_eq!(recording.number("/jit/named/runtime"), 0);
    assert!(recording.sum("/jit/unnamed") > 10);
    assert_eq!(recording.account["advice"].as_array().map(Vec::len), Some(1));
    Ok(())
}
