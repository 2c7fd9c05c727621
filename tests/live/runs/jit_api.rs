//! Intel's JIT profiling API: runtimes that announce their code to `libjitprof_agent.so`.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use jitprof_tests::{
    Jitprof, Recording, Scratch, Share, Stack, Target, assert_at_least, assert_share, compile, loads, path_from,
    target_file,
};

/// The program with the agent, which writes its dump into the scratch directory.
fn with_agent(mut command: Command, scratch: &Scratch) -> Result<Command> {
    let agent = path_from("JITPROF_AGENT")?;
    command.env("INTEL_JIT_PROFILER64", agent).env("JITPROF_AGENT_DIR", scratch.path());
    command.current_dir(scratch.path());
    Ok(command)
}

fn record(target: &Target, scratch: &Scratch, cpu_s: u64) -> Result<Recording> {
    Jitprof::recording(scratch, ["--pid", target.said("pid")?])?.record_cpu(target.pid()?, cpu_s)
}

fn exercise(scratch: &Scratch, arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(path_from("JITPROF_JIT_API")?);
    command.args(arguments);
    with_agent(command, scratch)
}

#[test]
fn wasmtime_names_whole_chains() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut command = Command::new(path_from("JITPROF_WASMTIME_PYTHON")?);
    command.arg(target_file("wasmtime/burn.py")?).args(["vtune", "600"]);
    let target = Target::start(with_agent(command, &scratch)?, &scratch)?;
    let recording = record(&target, &scratch, 4)?;
    recording.assert_named();
    let folded = &recording.folded;
    assert_share("leaf_hot", folded.share("leaf_hot", "spin"), 0.75);
    let entry = "wasm[0]::array_to_wasm_trampoline[4]";
    let chains = [["middle", "leaf_hot"], ["side_cold", "spin"]];
    let chains = chains.iter().map(|end| folded.through(&[&[entry, "outer"], &end[..]].concat()));
    assert_at_least("chains", chains.sum(), 0.99);
    Ok(())
}

#[test]
fn an_ittapi_program_has_its_inlined_methods_as_frames() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = Target::start(exercise(&scratch, &["600"])?, &scratch)?;
    // Longer than others, because its time is shared by seven functions.
    let recording = record(&target, &scratch, 12)?;
    recording.assert_named();
    let folded = &recording.folded;
    assert_share("inlined part", folded.share("hot_part", "cold_part"), 0.75);
    let chains: [&[&str]; 4] = [
        &["main", "run", "two_loops", "outer_part", "hot_part"],
        &["run", "two_loops", "cold_part"],
        &["main", "run", "updated"],
        &["main", "first"],
    ];
    assert_at_least("chains", chains.iter().map(|chain| folded.through(chain)).sum(), 0.98);
    assert_share("leaves", folded.share("Leaves::leaf_hot", "Leaves::leaf_cold"), 0.75);
    // One address, announced as one method and unloaded again, then as the other; each for the same time.
    assert_share("first", folded.share("first", "second"), 0.5);
    assert_eq!(folded.count(|stack| stack.has("not its name") || stack.has("bad")), 0);
    let lost = &recording.source(target.pid()?)["dumps"][0]["records"]["records"]["lost"];
    assert_eq!(lost.as_u64(), Some(2), "the two events with bad pointers");
    Ok(())
}

#[test]
fn an_ittapi_program_announces_from_threads_and_forks_without_harm() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut program = exercise(&scratch, &["threads"])?.spawn()?;
    let parent = program.id();
    let status = program.wait()?;
    assert!(status.success(), "{status}");
    let (mut children, mut parents) = (0, 0);
    for entry in std::fs::read_dir(scratch.path())? {
        let path = entry?.path();
        let loads = loads(&path)?;
        if path.ends_with(format!("jit-{parent}.dump")) {
            parents += 1;
            assert_eq!(loads.iter().filter(|load| load.name.starts_with("thread_method_")).count(), 8 * 2000);
            assert!(loads.is_sorted_by_key(|load| load.time_ns), "times ascend in the file");
        } else {
            children += 1;
            let names: Vec<&str> = loads.iter().map(|load| load.name.as_str()).collect();
            assert_eq!(names, ["of_the_child"], "{}", path.display());
        }
    }
    assert_eq!((parents, children), (1, 50), "each child writes a dump of its own");
    Ok(())
}

#[test]
fn an_ittapi_program_goes_on_when_nothing_can_be_written() -> Result<()> {
    let scratch = Scratch::new()?;
    let failing = |change: &dyn Fn(&mut Command)| -> Result<String> {
        let mut command = exercise(&scratch, &["many", "5000"])?;
        change(&mut command);
        let output = command.output()?;
        ensure!(output.status.success(), "{output:?}");
        Ok(String::from_utf8(output.stderr)?)
    };
    let program = path_from("JITPROF_JIT_API")?;
    let program = program.to_str().context("a path of UTF-8")?;
    let nowhere = failing(&|command| {
        command.env("JITPROF_AGENT_DIR", "/nonexistent");
    })?;
    let full = failing(&|command| {
        command.env("JITPROF_AGENT_MAX_MB", "1");
    })?;
    let mut limited = Command::new("sh");
    limited.args(["-c", &format!("ulimit -f 100; exec '{program}' many 5000")]);
    let limited = with_agent(limited, &scratch)?.output()?;
    ensure!(limited.status.success(), "SIGXFSZ: {limited:?}");
    for said in [nowhere, full, String::from_utf8(limited.stderr)?] {
        assert!(said.starts_with("jitprof agent: ") && said.lines().count() == 1, "{said}");
    }
    // Torn records would be an error here.
    let dumps: Vec<_> = std::fs::read_dir(scratch.path())?.collect::<Result<_, _>>()?;
    assert_eq!(dumps.len(), 2, "the one that is full, and the one that is cut");
    for dump in dumps {
        assert!(!loads(&dump.path())?.is_empty());
    }
    Ok(())
}

#[test]
fn an_ittapi_dump_is_accepted_by_linux_perf() -> Result<()> {
    let scratch = Scratch::new()?;
    let perf = path_from("JITPROF_PERF")?;
    let program = path_from("JITPROF_JIT_API")?;
    let mut record = Command::new(&perf);
    record.args(["record", "-q", "-e", "cpu-clock", "-k", "1", "-F", "997", "-N", "-o", "recorded", "--"]);
    record.arg(program).arg("12").env("HOME", scratch.path());
    let recorded = with_agent(record, &scratch)?.output()?;
    ensure!(recorded.status.success(), "{recorded:?}");
    let run = |arguments: &[&str]| -> Result<String> {
        let mut command = Command::new(&perf);
        let output = command.args(arguments).current_dir(scratch.path()).env("HOME", scratch.path()).output()?;
        ensure!(output.status.success(), "{output:?}");
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    run(&["inject", "--jit", "-i", "recorded", "-o", "injected"])?;
    let script = run(&["script", "-i", "injected", "-F", "ip,sym"])?;
    let count = |name: &str| {
        Ok::<_, anyhow::Error>(
            script.lines().filter(|line| line.split_whitespace().nth(1) == Some(name)).count().try_into()?,
        )
    };
    let (hot, cold): (u64, u64) = (count("Leaves::leaf_hot")?, count("Leaves::leaf_cold")?);
    assert_share("leaves by perf", Share { part: hot, whole: hot + cold }, 0.75);
    Ok(())
}

/// numba, announced in one of LLVM's two ways.
fn numba(variables: &[(&str, &str)]) -> Result<(Scratch, Recording)> {
    let scratch = Scratch::new()?;
    let mut command = Command::new(path_from("JITPROF_NUMBA_PYTHON")?);
    command.arg(target_file("numba/burn.py")?).arg("600").env("NUMBA_ENABLE_PROFILING", "1");
    command.env("JITPROF_AGENT_DIR", scratch.path()).envs(variables.iter().copied());
    let target = Target::start(command, &scratch)?;
    let recording = record(&target, &scratch, 4)?;
    Ok((scratch, recording))
}

#[test]
fn functions_inlined_in_an_itt_module_are_frames_with_lines() -> Result<()> {
    let scratch = Scratch::new()?;
    let object = compile(&scratch, "cc", "jit_api/inlined.c", &["-g", "-O2", "-fomit-frame-pointer", "-c"])?;
    let mut command = Command::new(path_from("JITPROF_ITT_MODULE")?);
    command.arg(&object).arg("600").env("INTEL_LIBITTNOTIFY64", path_from("JITPROF_AGENT")?);
    command.env("JITPROF_AGENT_DIR", scratch.path());
    let target = Target::start(command, &scratch)?;
    let recording =
        Jitprof::recording(&scratch, ["--pid", target.said("pid")?, "--lines"])?.record_cpu(target.pid()?, 6)?;
    // The object's own unwinding data lead to the caller: its code keeps no frame pointer.
    recording.assert_whole();
    let folded = &recording.folded;
    let at = |name: &'static str, line: u32| {
        move |frame: &String| frame.starts_with(name) && frame.ends_with(&format!("inlined.c:{line})"))
    };
    // The line of a call is where the inlined function stands in the one around it.
    let hot = |stack: &Stack| {
        let mut frames = stack.frames.iter();
        frames.any(at("run", 35))
            && frames.any(at("outer_part", 21))
            && frames.any(|frame| frame.starts_with("hot_part"))
    };
    let cold = |stack: &Stack| {
        let mut frames = stack.frames.iter();
        frames.any(at("run", 37)) && frames.any(|frame| frame.starts_with("cold_part"))
    };
    let (part, rest) = (folded.count(hot), folded.count(cold));
    assert_share("inlined parts", Share { part, whole: part + rest }, 0.75);
    assert_at_least(
        "inlined parts with lines",
        Share { part: part + rest, whole: folded.count(|stack| stack.has_prefix("run")) },
        0.98,
    );
    Ok(())
}

#[track_caller]
fn assert_numba_burns(recording: &Recording) {
    recording.assert_named();
    let folded = &recording.folded;
    assert_share("leaf_hot", folded.share("__main__::leaf_hot", "__main__::spin"), 0.75);
    let chain = ["cpython::__main__::outer", "__main__::outer", "__main__::middle", "__main__::leaf_hot"];
    assert_at_least("chain of leaf_hot", folded.through(&chain), 0.995);
}

#[test]
fn numba_is_unwound_by_the_frames_of_its_itt_modules() -> Result<()> {
    let agent = path_from("JITPROF_AGENT")?;
    let (_scratch, recording) = numba(&[("INTEL_LIBITTNOTIFY64", agent.to_str().context("a path of UTF-8")?)])?;
    assert_numba_burns(&recording);
    let attached = recording.number("/sources/0/dumps/0/records/eh/attached");
    assert!(attached > 0, "functions have unwinding data of their own");
    Ok(())
}

#[test]
fn numba_is_named_through_the_jit_profiling_api() -> Result<()> {
    let agent = path_from("JITPROF_AGENT")?;
    let agent = agent.to_str().context("a path of UTF-8")?;
    let (_scratch, recording) = numba(&[("INTEL_JIT_PROFILER64", agent), ("INTEL_JIT_BACKWARD_COMPATIBILITY", "1")])?;
    assert_numba_burns(&recording);
    Ok(())
}
