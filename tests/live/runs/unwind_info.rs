//! What stacks are unwound by, shown and kept within bounds.

use std::process::Command;

use anyhow::{Context, Result};
use jitprof_tests::{Finished, Jitprof, Scratch, Share, Stack, Target, assert_at_least, path_from};
use serde_json::Value;

fn unwind_info(arguments: &[&str]) -> Result<Finished> {
    let scratch = Scratch::new()?;
    Jitprof::new(&scratch, ["unwind-info"].iter().chain(arguments))?.run()
}

fn json(arguments: &[&str]) -> Result<Value> {
    let finished = unwind_info(&[arguments, &["--json"]].concat())?;
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    Ok(serde_json::from_str(&finished.stdout)?)
}

#[track_caller]
fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

#[test]
fn a_program_shows_its_rows_and_what_they_do_not_cover() -> Result<()> {
    let demo = path_from("JITPROF_DEMO")?;
    let report = json(&[demo.to_str().context("path")?])?;
    let file = &report["file"];
    let (code, covered) = (number(&file["coverage"]["code_bytes"]), number(&file["coverage"]["covered_bytes"]));
    assert!(covered * 10 > code * 9 && covered <= code, "{covered} of {code}");
    let kinds = file["coverage"]["by_kind"].as_object().context("no kinds")?;
    let all: u64 = kinds.values().map(|kind| number(&kind["bytes"])).sum();
    assert_eq!(all, code, "every byte is of one kind");
    assert!(file["gaps"].as_array().is_some_and(|gaps| !gaps.is_empty()));

    let text = unwind_info(&[demo.to_str().context("path")?])?.stdout;
    for word in ["build id", "functions", "covered", "cfa = sp + n", "stretches without a row"] {
        assert!(text.contains(word), "{word:?} in {text}");
    }
    Ok(())
}

#[test]
fn a_process_shows_each_mapping_and_how_rows_of_its_code_came_to_be() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut command = Command::new(path_from("JITPROF_DEMO")?);
    command.args(["--secs", "600", "--generations", "1", "--functions", "50"]);
    let target = Target::start(command, &scratch)?;
    let pid = target.said("pid")?;
    let report = json(&[pid])?;
    let process = &report["process"];
    let dump = &process["dumps"][0];
    assert!(number(&dump["functions"]) > 50, "{dump}");
    let by_origin = number(&dump["recorded"]) + number(&dump["from_code"]) + number(&dump["without"]);
    assert_eq!(by_origin, number(&dump["functions"]));
    assert!(number(&dump["recorded"]) > 50, "the demo records an EH frame for each: {dump}");
    let mappings = process["mappings"].as_array().context("no mappings")?;
    let of = |what: &str| mappings.iter().find(|mapping| mapping["what"].as_str().is_some_and(|it| it.contains(what)));
    let libc = of("libc").context("libc is mapped")?;
    assert!(number(&libc["covered_bytes"]) * 10 > number(&libc["code_bytes"]) * 9, "{libc}");
    let generated = of("anonymous").context("generated code is mapped")?;
    assert!(number(&generated["rows"]) > 0, "{generated}");

    let start = number(&generated["at"]["start"]);
    let text = unwind_info(&[pid, "--at", &format!("{start:x}")])?.stdout;
    assert!(text.contains("step: ") && text.contains("\n> "), "{text}");
    Ok(())
}

#[test]
fn what_cannot_be_shown_is_one_sentence() -> Result<()> {
    for (arguments, words) in [
        (&["4194305"][..], "no process 4194305"),
        (&["/no/such/file"], "/no/such/file"),
        (&["/proc"], "no regular file"),
        (&["/proc/self/status"], "not a 64-bit little-endian ELF"),
        (&["2"], "no user memory"),
    ] {
        let finished = unwind_info(arguments)?;
        assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
        assert!(finished.stderr.lines().count() == 1 && finished.stderr.contains(words), "{}", finished.stderr);
    }
    Ok(())
}

#[test]
fn rows_that_no_process_uses_make_room_for_new_ones() -> Result<()> {
    // 1 MiB holds 131,072 rows: those of CPython and libc are 120,000.
    let scratch = Scratch::new()?;
    let (python, demo) = (path_from("JITPROF_PYTHON")?, path_from("JITPROF_DEMO")?);
    let script = format!(
        "{} -c 'import time\nend = time.time() + 3\nwhile time.time() < end: pass'; sleep 3; \
         exec {} --secs 5 --generations 1 --schedule schedule",
        python.display(),
        demo.display()
    );
    let mut jitprof = Jitprof::recording(&scratch, ["--unwind-memory", "1", "--"])?;
    jitprof.command().args(["sh", "-c", &script]);
    let recording = jitprof.record()?;
    let unwinding = &recording.account["unwinding"];
    assert!(number(&unwinding["files_evicted"]) > 0, "{unwinding}");
    assert_eq!(number(&unwinding["files_cut"]), 0, "{unwinding}");
    assert!(number(&recording.account["tables"]["rows"]) <= 131_072, "{}", recording.account["tables"]);
    let is_cut = |stack: &Stack| stack.frames.iter().any(|frame| frame.starts_with("[cut"));
    let whole = recording.folded.count(|stack| stack.has("outer") && !is_cut(stack));
    let all = recording.folded.count(|stack| stack.has("outer"));
    assert_at_least("whole stacks of the demo", Share { part: whole, whole: all }, 0.98);
    Ok(())
}
