//! Every frame right, not only the last one reached: stacks against the call structure that each target is known to
//! have. No target here keeps frame pointers, except where a runtime does.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use jitprof_tests::{
    Folded, Jitprof, Recording, Scratch, Share, Stack, Target, Truth, assert_at_least, compile, path_from, target_file,
};

/// What is promised: complete stacks, and stacks that are right in every frame.
const PROMISED: f64 = 0.995;
/// How many samples of a program that throws all the time may be lost to [`in_unwinder`].
const UNWINDERS_CAP: f64 = 0.015;
const NATIVE: [&str; 2] = ["-O2", "-fomit-frame-pointer"];
const NODE: [&str; 4] =
    ["--perf-prof", "--perf-prof-unwinding-info", "--interpreted-frames-native-stack", "--no-turbo-inlining"];

fn record(command: Command, scratch: &Scratch) -> Result<Recording> {
    let target = Target::start(command, scratch)?;
    let recording = Jitprof::recording(scratch, ["--pid", target.said("pid")?])?.record_cpu(target.pid()?, 4);
    // CPython and Erlang write to /tmp, whatever is asked for.
    for file in [format!("/tmp/jit-{}.dump", target.pid()?), format!("/tmp/perf-{}.map", target.pid()?)] {
        if std::fs::exists(&file)? {
            std::fs::remove_file(file)?;
        }
    }
    recording
}

fn program(path: &Path) -> Command {
    let mut command = Command::new(path);
    command.arg("600");
    command
}

/// Asserts both shares; a failure says why each stack is wrong.
#[track_caller]
fn assert_right(recording: &Recording, truth: &Truth) {
    assert_stacks_right(&recording.folded, truth);
}

#[track_caller]
fn assert_stacks_right(folded: &Folded, truth: &Truth) {
    let agreement = truth.check(folded);
    let (complete, right) = (agreement.complete(), agreement.right());
    println!(
        "complete {} of {}, right {} of {}\n{}",
        complete.part,
        complete.whole,
        right.part,
        right.whole,
        agreement.explanation()
    );
    assert!(right.whole * 2 > folded.total(), "half of all samples are in the target's own functions");
    let why = format!("misses:\n{}", agreement.explanation());
    assert_at_least(&format!("complete stacks; {why}"), complete, PROMISED);
    assert_at_least(&format!("stacks right in every frame; {why}"), right, PROMISED);
}

/// Whether it was taken in libgcc's unwinder itself, which writes over its own frame, return address included, in its last
/// steps: no table says so (docs/design/unwinding.md).
fn in_unwinder(stack: &Stack) -> bool {
    stack.frames.last().is_some_and(|leaf| leaf.starts_with("_Unwind_") || leaf.starts_with("[libgcc_s.so"))
}

#[test]
fn a_program_without_a_name_for_its_start_has_complete_stacks() -> Result<()> {
    let scratch = Scratch::new()?;
    let bare = compile(&scratch, "cc", "native/barestart.c", &["-O1", "-nostartfiles", "-s"])?;
    let recording = record(program(&bare), &scratch)?;
    assert_at_least("complete stacks", recording.complete(), PROMISED);
    Ok(())
}

#[test]
fn a_perf_map_that_its_runtime_has_not_written_names_its_code() -> Result<()> {
    let scratch = Scratch::new()?;
    let recording = record(program(&compile(&scratch, "cc", "native/bufferedmap.c", &["-O1"])?), &scratch)?;
    assert_at_least("named frames", recording.named_frames(), PROMISED);
    let whole = recording.folded.count(|_| true);
    let part = recording.folded.count(|stack| stack.has("in_the_buffer"));
    assert_at_least("in the function that is in the buffer", Share { part, whole }, 0.9);
    Ok(())
}

#[test]
fn native_c_without_frame_pointers_through_the_sort_of_libc() -> Result<()> {
    let scratch = Scratch::new()?;
    let recording = record(program(&compile(&scratch, "cc", "native/deepnofp.c", &NATIVE)?), &scratch)?;
    assert_at_least("complete stacks of all", recording.complete(), PROMISED);
    let truth = Truth::new(
        &[
            "_start .. main > run > l1 > l2 > l3 > l4 > l5 > l6 > l7 > l8 > sort_a .. compare_a > work_a",
            "_start .. main > run > l1 > l2 > l3 > l4 > l5 > l6 > l7 > l8 > sort_b .. compare_b > work_b",
        ],
        &["__libc_start_", "qsort", "__GI___qsort_r", "msort_with_tmp", "[libc.so.6+"],
    );
    assert_right(&recording, &truth);
    Ok(())
}

#[test]
fn native_cxx_with_exceptions_and_signal_handlers_on_both_stacks() -> Result<()> {
    let scratch = Scratch::new()?;
    let recording = record(program(&compile(&scratch, "c++", "native/unwinder.cpp", &NATIVE)?), &scratch)?;
    let interrupted = [
        "main",
        "run",
        "straight",
        "inner",
        "burn_plain",
        "catcher",
        "middle_throw",
        "deep_throw",
        "burn_throw",
        "raiser",
        "on_signal",
        "signal_work",
        "burn_signal",
        "on_alternate",
        "alternate_work",
        "burn_alternate",
        "deep_throw.cold",
        "middle_throw.cold",
        "catcher.cold",
    ];
    let mut chains = vec![
        "_start .. main > run > straight > inner > burn_plain".to_owned(),
        "_start .. main > run > catcher > middle_throw > deep_throw > burn_throw".to_owned(),
        // What gcc takes apart as unlikely.
        "_start .. main > run > catcher > middle_throw > deep_throw.cold".to_owned(),
        "_start .. main > run > catcher > middle_throw.cold".to_owned(),
        "_start .. main > run > catcher.cold".to_owned(),
        "_start .. main > run > raiser .. on_signal > signal_work > burn_signal".to_owned(),
        "_start .. main > run > raiser .. on_alternate > alternate_work > burn_alternate".to_owned(),
    ];
    chains.extend(interrupted.iter().map(|function| format!(".. {function} .. on_timer > timer_work > burn_timer")));
    // Leaked: the names live as long as the test.
    let chains: Vec<&'static str> = chains.into_iter().map(|chain| &*chain.leak()).collect();
    // The signal's frame stands between; the timer strikes in libraries, too.
    let truth = Truth::new(&chains, &[""]);
    let (unwinders, others) = recording.folded.part(in_unwinder);
    assert_stacks_right(&others, &truth);
    let complete = Share { part: others.count(|stack| !stack.is_cut()), whole: others.total() };
    assert_at_least("complete stacks of all others", complete, PROMISED);
    let agreement = truth.check(&unwinders);
    // Cut, or complete and wrong.
    let lost = unwinders.count(Stack::is_cut) + agreement.complete - agreement.right;
    let whole = recording.folded.total();
    let what = format!("stacks that the unwinder leaves whole; {}", agreement.explanation());
    assert_at_least(&what, Share { part: whole - lost, whole }, 1.0 - UNWINDERS_CAP);
    let at = |name: &str| recording.folded.count(|stack| stack.has(name));
    for name in ["burn_signal", "burn_alternate", "burn_timer", "burn_throw"] {
        assert!(at(name) > 10, "{name} was seen {} times", at(name));
    }
    assert!(recording.folded.count(|stack| stack.has("_Unwind_RaiseException")) > 3, "exceptions were seen");
    Ok(())
}

#[test]
fn native_program_that_spends_its_time_in_system_calls() -> Result<()> {
    let scratch = Scratch::new()?;
    let recording = record(program(&compile(&scratch, "cc", "native/calls.c", &NATIVE)?), &scratch)?;
    assert_at_least("complete stacks of all", recording.complete(), PROMISED);
    let truth = Truth::new(&["_start .. main > copy > block > checksum"], &["__libc_start_"]);
    assert_right(&recording, &truth);
    let in_kernel = recording.folded.count(|stack| stack.has_prefix("entry_SYSCALL_64"));
    assert!(in_kernel * 4 > recording.folded.total(), "{in_kernel} samples hit the kernel");
    Ok(())
}

#[test]
fn rust_without_frame_pointers() -> Result<()> {
    let scratch = Scratch::new()?;
    let recording = record(program(&path_from("JITPROF_DEMO")?.with_file_name("rustburn")), &scratch)?;
    assert_at_least("complete stacks of all", recording.complete(), PROMISED);
    let truth = Truth::new(
        &[
            "_start .. rustburn::run > rustburn::outer > rustburn::sorted .. rustburn::compare > rustburn::leaf_hot",
            "_start .. rustburn::run > rustburn::outer > rustburn::boxed > <rustburn::Task as rustburn::Work>::work \
             > rustburn::leaf_cold",
        ],
        &[""],
    );
    assert_right(&recording, &truth);
    Ok(())
}

#[test]
fn golang_with_its_own_stacks() -> Result<()> {
    let scratch = Scratch::new()?;
    let go = path_from("JITPROF_GO")?;
    let source = target_file("go/burn.go")?;
    let mut build = Command::new(go);
    // Its cache is the test's own.
    build.args(["build", "-trimpath", "-o", "burn"]).arg(source).current_dir(scratch.path());
    build.env("GOCACHE", scratch.file("go-cache")).env("GOFLAGS", "-mod=mod").env("GO111MODULE", "off");
    ensure!(build.status()?.success(), "go build failed");
    let recording = record(program(&scratch.file("burn")), &scratch)?;
    assert_at_least("complete stacks of all", recording.complete(), PROMISED);
    let truth = Truth::new(
        &[
            "runtime.goexit .. main.main > main.loop > main.outer > main.middle > main.leafHot > main.burn",
            "runtime.goexit .. main.main > main.loop > main.outer > main.sideCold > main.leafCold > main.burn",
            "runtime.goexit > main.main.func1 > main.worker > main.workerMiddle > main.workerLeaf > main.burn",
        ],
        &["runtime."],
    );
    assert_right(&recording, &truth);
    Ok(())
}

fn llvm(flag: &str) -> Result<Recording> {
    let scratch = Scratch::new()?;
    let code = scratch.file("burn.ll");
    let mut clang = Command::new(path_from("JITPROF_CLANG")?);
    clang.args(["-O1", flag, "-S", "-emit-llvm"]).arg(target_file("llvm/burn.c")?).arg("-o").arg(&code);
    ensure!(clang.status()?.success(), "{clang:?} failed");
    let mut lli = Command::new(path_from("JITPROF_LLI")?);
    lli.env("JITDUMPDIR", scratch.path()).arg("-jit-kind=mcjit").arg(&code).arg("600");
    record(lli, &scratch)
}

#[test]
fn llvm_without_frame_pointers() -> Result<()> {
    let recording = llvm("-fomit-frame-pointer")?;
    assert_at_least("complete stacks of all", recording.complete(), PROMISED);
    let truth = Truth::new(
        &[
            "_start .. main .. main > outer > middle > leaf_hot",
            "_start .. main .. main > outer > side_cold > leaf_cold",
        ],
        &[""],
    );
    assert_right(&recording, &truth);
    Ok(())
}

#[test]
fn python_whose_interpreter_keeps_no_frame_pointers() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut command = Command::new(path_from("JITPROF_PYTHON")?);
    command.args(["-X", "perf_jit"]).arg(target_file("python/burn.py")?).arg("600");
    let recording = record(command, &scratch)?;
    assert_at_least("complete stacks of all", recording.complete(), PROMISED);
    let truth = Truth::new(
        &["main .. outer .. middle .. leaf_hot", "main .. outer .. side_cold .. leaf_cold"],
        &["_PyEval_EvalFrame", "PyObject_Vectorcall", "_PyObject_VectorcallTstate", "py_trampoline_evaluator"],
    );
    assert_right(&recording, &truth);
    Ok(())
}

fn node(flags: &[&str], script: &str) -> Result<Command> {
    let mut command = Command::new(path_from("JITPROF_NODE")?);
    command.args(NODE).args(flags).arg(target_file(&format!("node/{script}"))?).arg("600");
    Ok(command)
}

/// burn.js; the module's own function is one of several without a name.
fn burn_js() -> Truth {
    Truth::new(&["outer > middle > leafHot", "outer > sideCold > leafCold"], &[])
}

#[test]
fn node_with_optimised_code() -> Result<()> {
    let scratch = Scratch::new()?;
    let recording = record(node(&[], "burn.js")?, &scratch)?;
    assert_at_least("complete stacks of all", recording.complete(), PROMISED);
    assert_right(&recording, &burn_js());
    Ok(())
}

#[test]
fn node_without_optimised_code() -> Result<()> {
    let scratch = Scratch::new()?;
    let recording = record(node(&["--no-opt"], "burn.js")?, &scratch)?;
    assert_at_least("complete stacks of all", recording.complete(), PROMISED);
    assert_right(&recording, &burn_js());
    Ok(())
}

#[test]
fn node_with_four_hundred_recursive_calls() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut command = node(&[], "deep.js")?;
    command.env("DEEP", "400");
    let recording = record(command, &scratch)?;
    assert_at_least("complete stacks of all", recording.complete(), PROMISED);
    let truth = Truth::new(
        &[
            "main > recurse > recurse > driver > pathA > a1 > a2 > a3 > hotA",
            "main > recurse > recurse > driver > pathB > b1 > b2 > b3 > hotB",
        ],
        &[],
    );
    assert_right(&recording, &truth);
    Ok(())
}

#[test]
fn wasmtime_below_an_interpreter_without_frame_pointers() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut command = Command::new(path_from("JITPROF_WASMTIME_PYTHON")?);
    command.arg(target_file("wasmtime/burn.py")?).args(["jitdump", "600"]);
    let recording = record(command, &scratch)?;
    assert_at_least("complete stacks of all", recording.complete(), PROMISED);
    let truth = Truth::new(
        &[
            "_start .. wasm[0]::array_to_wasm_trampoline[4] > outer > middle > leaf_hot",
            "_start .. wasm[0]::array_to_wasm_trampoline[4] > outer > side_cold > spin",
        ],
        &[""],
    );
    assert_right(&recording, &truth);
    Ok(())
}

#[test]
fn erlang() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut compiler = Command::new(path_from("JITPROF_ERLC")?);
    compiler.arg(target_file("erlang/burn.erl")?).current_dir(scratch.path());
    ensure!(compiler.status()?.success(), "erlc failed");
    let mut command = Command::new(path_from("JITPROF_ERL")?);
    command.args(["-noshell", "+JPperf", "true", "+S", "1", "-pa", ".", "-run", "burn", "main", "600"]);
    let recording = record(command, &scratch)?;
    let truth = Truth::new(
        &[
            "burn:loop/3 > burn:outer/1 > burn:middle/1 > burn:leaf_hot/2",
            "burn:loop/3 > burn:outer/1 > burn:side_cold/1 > burn:leaf_cold/2",
        ],
        &[],
    );
    assert_right(&recording, &truth);
    Ok(())
}
