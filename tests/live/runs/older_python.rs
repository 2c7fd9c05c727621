//! CPython before 3.11, without any flag: its frames are objects, and each runs in a native frame of its own.

use std::process::Command;

use anyhow::{Context, Result};
use jitprof_tests::{Jitprof, Scratch, Share, Stack, Target, assert_at_least_of_few, assert_enough, target_file};

use super::python_bare::{FREQUENCY, PROMISED, assert_bare, chain, function};

#[test]
fn versions_in_which_each_function_has_a_native_frame_are_read_too() -> Result<()> {
    let pythons = std::env::var_os("JITPROF_OLDER_PYTHONS").context("`cargo xtask prepare older_python` finds them")?;
    for python in std::env::split_paths(&pythons) {
        let scratch = Scratch::new()?;
        let record = |program: &str, seconds: u64| {
            let mut command = Command::new(&python);
            command.arg(target_file(program)?).arg("600");
            let target = Target::start(command, &scratch)?;
            let words = ["--pid", target.said("pid")?, "--lines"];
            Jitprof::recording_at(&scratch, FREQUENCY, words)?.record_cpu(target.pid()?, seconds)
        };
        let recording = record("python/burn.py", 4)?;
        assert_bare(&recording);
        let folded = &recording.folded;
        let text = std::fs::read_to_string(target_file("python/burn.py")?)?;
        let call = text.lines().position(|line| line.contains("return middle(n)")).map_or(0, |at| at + 1);
        let (call, is_loop) =
            (format!("/burn.py:{call})"), |frame: &str| frame.starts_with("_PyEval_EvalFrameDefault"));
        let is_right = |stack: &Stack| {
            let own = stack.frames.iter().filter(|frame| frame.contains(".py:")).count();
            let loops = stack.frames.iter().filter(|frame| is_loop(frame)).count();
            own == loops && stack.frames.iter().any(|frame| function(frame) == "outer" && frame.ends_with(&call))
        };
        let names = ["_start", "<module>", "main", "outer", "middle", "leaf_hot"];
        let is_hot = |stack: &Stack| stack.frames.iter().any(|frame| function(frame) == "leaf_hot");
        let right = Share { part: folded.count(|stack| is_hot(stack) && is_right(stack)), whole: folded.count(is_hot) };
        assert_at_least_of_few(&format!("{}: one loop each, and lines", python.display()), right, PROMISED);
        assert_at_least_of_few(&format!("{}: chains", python.display()), chain(&recording, &names), PROMISED);
        let recording = record("python/shapes.py", 5)?;
        let chains: [&[&str]; 5] = [
            &["main", "through_c", "_PyEval_EvalFrameDefault", "by_c", "leaf_c"],
            &["main", "run", "coroutine", "awaited", "leaf_coroutine"],
            &["main", "drive", "delegate", "generator", "leaf_generator"],
            &["main", "method_of", "method", "<lambda>", "leaf_method"],
            &["_bootstrap", "run", "worker", "leaf_thread"],
        ];
        for names in chains {
            let chain = chain(&recording, names);
            assert_enough(names.last().unwrap_or(&""), chain.whole, 20);
            assert_at_least_of_few(&format!("{}: {}", python.display(), names.join(" ")), chain, PROMISED);
        }
    }
    Ok(())
}
