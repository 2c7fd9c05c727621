//! A JVM with virtual threads, started without any flag.

use std::process::Command;

use anyhow::Result;
use jitprof_tests::{
    Jitprof, Scratch, Share, Stack, Target, assert_at_least, assert_share, path_from, target_file, wait_until,
};

use crate::bare::{PROMISED, assert_named};

/// Stands for the frames of a virtual thread that are on no stack.
const IN_HEAP: &str = "[callers in the heap]";

#[test]
fn a_mounted_virtual_thread_has_its_chain_down_to_its_carrier() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut command = Command::new(path_from("JITPROF_NEWER_JAVA")?);
    let apart = ["-XX:CompileCommand=quiet", "-XX:CompileCommand=dontinline,Virtual::*"];
    command.args(apart).arg(target_file("java/Virtual.java")?).arg("600");
    let target = Target::start(command, &scratch)?;
    wait_until("HotSpot to compile", || Ok((target.cpu_ms()? >= 3000).then_some(())))?;
    let recording = Jitprof::recording(&scratch, ["--pid", target.said("pid")?])?.record_cpu(target.pid()?, 6)?;
    assert_named(&recording);
    let folded = &recording.folded;
    // What fetches frames from the heap for a return to the barrier has a frame whose size is in a register alone.
    let is_in_barrier = |stack: &Stack| stack.is_cut() && stack.has_written("StubRoutines (continuationstubs)");
    let complete = recording.complete();
    let in_barrier = folded.count(is_in_barrier);
    println!("{in_barrier} of {} cut in the barrier", complete.whole);
    assert_at_least("all but these", Share { part: complete.whole - in_barrier, ..complete }, 0.975);
    assert_at_least("complete stacks", Share { whole: complete.whole - in_barrier, ..complete }, PROMISED);
    let (hot, cold) = ("Virtual.leafHot(I)I", "Virtual.leafCold(I)I");
    assert_share("leafHot", folded.share(hot, cold), 0.75);
    // One that has yielded within `nap` may be continued with its innermost frames alone: `middle` comes back, its callers later.
    let is_leaf = |stack: &Stack| stack.has(hot) || stack.has(cold);
    let is_own = |stack: &Stack| {
        let hot_chain = stack.has_chain(&["Virtual.middle(I)I", hot]);
        let cold_chain = stack.has_chain(&["Virtual.outer(I)I", "Virtual.sideCold(I)I", cold]);
        (hot_chain || cold_chain) && !stack.is_cut()
    };
    let whole = folded.count(is_leaf);
    let part = folded.count(|stack| is_own(stack) && stack.has("start_thread"));
    assert_at_least("chains of virtual threads", Share { part, whole }, PROMISED);
    // What is below the innermost frames is on the stack with them, or said to be in the heap.
    let ends = |stack: &Stack| stack.has("Virtual.outer(I)I") || stack.has(IN_HEAP);
    let part = folded.count(|stack| is_leaf(stack) && ends(stack));
    assert_at_least("callers, there or in the heap", Share { part, whole }, PROMISED);
    // The runtime brings back short stacks as a whole.
    println!("{} of {whole} with callers in the heap", folded.count(|stack| is_leaf(stack) && stack.has(IN_HEAP)));
    Ok(())
}
