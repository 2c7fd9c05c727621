//! GSYM files: of a running process out, for a stripped program in.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use jitprof_tests::{Finished, Folded, Jitprof, Scratch, Target, assert_at_least, compile, path_from, target_file};
use serde_json::Value;

const FLAGS: [&str; 3] = ["--perf-prof", "--interpreted-frames-native-stack", "--no-turbo-inlining"];

fn jitprof(scratch: &Scratch, arguments: &[&str]) -> Result<Finished> {
    let finished = Jitprof::new(scratch, arguments)?.run()?;
    ensure!(finished.status.success(), "{arguments:?}: {}", finished.stderr);
    Ok(finished)
}

/// Starts Node and exports its code once it burns.
fn exported_node(scratch: &Scratch) -> Result<Vec<Value>> {
    let mut command = Command::new(path_from("JITPROF_NODE")?);
    command.args(FLAGS).arg(target_file("node/burn.js")?).arg("600");
    let target = Target::start(command, scratch)?;
    let said = jitprof(scratch, &["gsym", "export", "--pid", target.said("pid")?, "-o", "node.gsym"])?;
    ensure!(said.stderr.contains("functions of process"), "{}", said.stderr);
    functions(scratch)
}

fn functions(scratch: &Scratch) -> Result<Vec<Value>> {
    let shown: Value = serde_json::from_str(&jitprof(scratch, &["gsym", "show", "node.gsym", "--json"])?.stdout)?;
    Ok(shown["functions"].as_array().context("no functions")?.clone())
}

fn start_and_size(function: &Value) -> Result<(u64, u64)> {
    function["start"].as_u64().zip(function["size"].as_u64()).context("a function without a place")
}

#[test]
fn the_code_of_a_running_node_comes_out_flat_and_with_its_hot_functions() -> Result<()> {
    let scratch = Scratch::new()?;
    let functions = exported_node(&scratch)?;
    assert!(functions.len() > 1000, "{} functions are few for Node", functions.len());
    let mut end = 0;
    for function in &functions {
        let (start, size) = start_and_size(function)?;
        assert!(start >= end && size > 0, "{function} begins before {end:#x} or is empty");
        end = start + size;
    }
    for wanted in ["leafHot", "leafCold", "middle"] {
        let named = |function: &&Value| function["name"].as_str().is_some_and(|name| name.contains(wanted));
        let function = functions.iter().find(named).with_context(|| format!("no {wanted}"))?;
        let (start, size) = start_and_size(function)?;
        let address = format!("{:#x}", start + size / 2);
        let found = jitprof(&scratch, &["gsym", "show", "node.gsym", &address])?.stdout;
        assert!(found.contains(wanted) && found.contains("burn.js:"), "{address}: {found}");
    }
    Ok(())
}

/// LLVM's reader agrees with ours, of which the unit tests show that it is right. It ends with 0 whatever it says.
#[test]
fn gsymutil_finds_every_function_of_a_running_node_where_jitprof_does() -> Result<()> {
    let scratch = Scratch::new()?;
    let functions = exported_node(&scratch)?;
    assert!(functions.len() > 1000, "{} functions are few for Node", functions.len());
    let path = scratch.file("node.gsym");
    let mut asked = Vec::new();
    for function in &functions {
        let (start, size) = start_and_size(function)?;
        asked.extend([0, size / 2, size - 1].map(|offset| (start, offset, function["name"].clone())));
    }
    let tools = path_from("JITPROF_GSYMUTIL")?;
    for tool in tools.to_string_lossy().split(':') {
        let answers = gsymutil(Path::new(tool), &path, asked.iter().map(|(start, offset, _)| start + offset))?;
        let mut lines = answers.lines().filter(|line| !line.is_empty());
        for (start, offset, name) in &asked {
            let distance = if *offset == 0 { String::new() } else { format!(" + {offset}") };
            let expected = format!("{:#018x}: {}{distance}", start + offset, name.as_str().unwrap_or_default());
            // A name with a line break goes on in the next one.
            let line = lines.next().unwrap_or_default();
            assert!(
                line.starts_with(expected.lines().next().unwrap_or_default()),
                "{tool}: {line:?}, not {expected:?}"
            );
            for _ in 1..expected.lines().count() {
                lines.next();
            }
        }
    }
    Ok(())
}

fn gsymutil(tool: &Path, file: &Path, addresses: impl Iterator<Item = u64>) -> Result<String> {
    let asked: String = addresses.map(|address| format!("{address:#x} {}\n", file.display())).collect();
    let mut command = Command::new(tool);
    command.arg("--addresses-from-stdin").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot start {}", tool.display()))?;
    let mut stdin = child.stdin.take().context("no pipe")?;
    let writer = std::thread::spawn(move || stdin.write_all(asked.as_bytes()));
    let output = child.wait_with_output()?;
    writer.join().expect("the writer does not panic")?;
    Ok(String::from_utf8(output.stdout)?)
}

/// Builds the program, strips a copy, and makes the GSYM file of the whole one in a directory below.
fn stripped_program(scratch: &Scratch) -> Result<()> {
    let run = |command: &mut Command| -> Result<()> {
        ensure!(command.status()?.success(), "{command:?} failed");
        Ok(())
    };
    let (whole, stripped) = (scratch.file("whole"), scratch.file("stripped"));
    let built = compile(scratch, "cc", "native/deepnofp.c", &["-O2", "-g", "-Wl,--build-id=sha1"])?;
    std::fs::rename(built, &whole)?;
    run(Command::new("strip").args(["--strip-all", "-o"]).args([&stripped, &whole]))?;
    let converted = gsym_rs::convert::ElfConverter::default().convert_path(&whole)?;
    let directory = scratch.file("symbols/a");
    std::fs::create_dir_all(&directory)?;
    Ok(std::fs::write(directory.join("whole.gsym"), converted.builder.to_bytes()?)?)
}

/// Shares of the samples by the lines of their leaves differ by chance; that the lines are there does not.
#[test]
fn a_stripped_program_is_named_by_its_gsym_file_as_the_whole_one_is() -> Result<()> {
    let scratch = Scratch::new()?;
    stripped_program(&scratch)?;
    let names = |program: &str, arguments: &[&str]| -> Result<(Folded, BTreeSet<String>)> {
        let mut command = Command::new(scratch.file(program));
        command.arg("600");
        let target = Target::start(command, &scratch)?;
        let base = ["--pid", target.said("pid")?, "--lines"];
        let recording = Jitprof::recording(&scratch, [&base, arguments].concat())?.record_cpu(target.pid()?, 2)?;
        let frames = recording.folded.stacks.iter().flat_map(|stack| &stack.frames);
        let own = frames.filter(|frame| frame.contains("deepnofp.c:")).cloned().collect();
        Ok((recording.folded.clone(), own))
    };
    let (_, nothing) = names("stripped", &[])?;
    assert_eq!(nothing, BTreeSet::new(), "the stripped program says nothing by itself");
    let (whole, expected) = names("whole", &[])?;
    let (stripped, found) = names("stripped", &["--gsym", "symbols"])?;
    for folded in [&whole, &stripped] {
        assert_at_least("chain of work_a", folded.through(&["compare_a", "work_a"]), 0.9);
    }
    // Rare lines may be missed by one of the two recordings; what both met often is the same.
    let common = expected.intersection(&found).count();
    assert!(expected.len() > 10 && found.len() > 10, "{expected:?}\n{found:?}");
    assert!(common * 10 >= expected.len().min(found.len()) * 8, "{expected:?}\n{found:?}");
    Ok(())
}
