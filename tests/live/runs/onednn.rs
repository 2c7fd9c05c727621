//! oneDNN: kernels that use the frame pointer as any register and work on stacks of their own.

use std::process::Command;

use anyhow::{Context, Result};
use jitprof_tests::{Jitprof, Recording, Scratch, Share, Target, assert_at_least, assert_share, path_from};

/// One thread, so that every kernel is called from the program's functions.
fn burn(scratch: &Scratch, variables: &[(&str, &str)]) -> Result<Recording> {
    let mut command = Command::new(path_from("JITPROF_ONEDNN")?);
    // The same kernels on every machine, whatever its CPU has.
    let same = [("ONEDNN_MAX_CPU_ISA", "AVX2"), ("DNNL_MAX_CPU_ISA", "AVX2"), ("OMP_NUM_THREADS", "1")];
    command.arg("600").envs(same).envs(variables.iter().copied()).current_dir(scratch.path());
    let target = Target::start(command, scratch)?;
    Jitprof::recording(scratch, ["--pid", target.said("pid")?])?.record_cpu(target.pid()?, 6)
}

#[track_caller]
fn assert_burns(recording: &Recording) {
    // A third of the stacks ended at the matrix kernel when its stack pointer was not followed.
    recording.assert_whole();
    let folded = &recording.folded;
    assert_share("products", folded.share("product_hot", "product_cold"), 0.75);
    assert_share("convolutions", folded.share("convolution_hot", "convolution_cold"), 0.75);
    let callers = ["product_hot", "product_cold", "convolution_hot", "convolution_cold"];
    let whole = folded.count(|stack| stack.has_prefix("jit_"));
    let below = |caller: &str| {
        folded.count(|stack| stack.has_prefix("jit_") && stack.has_chain(&["main", "outer", caller, "times"]))
    };
    let part = callers.iter().map(|caller| below(caller)).sum();
    assert_at_least("kernels below their callers", Share { part, whole }, 0.995);
}

/// With the dump of its own that it writes for a value of its variable.
fn burn_with_dump(value: &str) -> Result<Recording> {
    let scratch = Scratch::new()?;
    let folder = scratch.path().to_str().context("a path of UTF-8")?;
    // Both of its names: the former before oneDNN 2.6.
    burn(&scratch, &[("ONEDNN_JIT_PROFILE", value), ("DNNL_JIT_PROFILE", value), ("JITDUMPDIR", folder)])
}

#[test]
fn onednn_is_unwound_through_its_kernels_by_its_own_dump() -> Result<()> {
    assert_burns(&burn_with_dump("4")?);
    Ok(())
}

#[test]
fn onednn_is_unwound_through_its_kernels_by_its_own_dump_with_the_processors_time() -> Result<()> {
    let recording = burn_with_dump("12")?;
    assert_eq!(
        recording.account["sources"][0]["dumps"][0]["records"]["clock"], "tsc",
        "{}",
        recording.account["sources"]
    );
    assert_burns(&recording);
    Ok(())
}

#[test]
fn onednn_is_unwound_through_its_kernels_by_intels_api() -> Result<()> {
    let scratch = Scratch::new()?;
    let agent = path_from("JITPROF_AGENT")?;
    let agent = agent.to_str().context("a path of UTF-8")?;
    let folder = scratch.path().to_str().context("a path of UTF-8")?;
    assert_burns(&burn(&scratch, &[("INTEL_JIT_PROFILER64", agent), ("JITPROF_AGENT_DIR", folder)])?);
    Ok(())
}
