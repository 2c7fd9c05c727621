//! Copies that are none: the build id, the length and the owner of a file say nothing of what is in it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use jitprof_tests::{Jitprof, Recording, Scratch, Share, Target, assert_at_least, compile};

const NAME: &str = "silent_burn";
const PATCHED: &str = "burn_silent";

/// The program, and a copy with another function's name in the place of the hot one's.
pub(crate) fn program_and_copy(scratch: &Scratch) -> Result<(PathBuf, PathBuf)> {
    let flags = ["-O1", "-fno-omit-frame-pointer", "-Wl,--build-id=0x0123456789abcdef0123456789abcdef01234567"];
    let program = compile(scratch, "cc", "native/silent.c", &flags)?;
    let mut bytes = std::fs::read(&program)?;
    let at: Vec<usize> =
        bytes.windows(NAME.len()).enumerate().filter(|(_, w)| *w == NAME.as_bytes()).map(|(at, _)| at).collect();
    ensure!(!at.is_empty(), "the program has the name of its function");
    for at in at {
        bytes[at..at + NAME.len()].copy_from_slice(PATCHED.as_bytes());
    }
    let copy = scratch.file("copy");
    std::fs::copy(&program, &copy)?;
    std::fs::write(&copy, bytes)?;
    ensure!(std::fs::metadata(&copy)?.len() == std::fs::metadata(&program)?.len(), "they are equally long");
    Ok((program, copy))
}

pub(crate) fn start(scratch: &Scratch, program: &Path) -> Result<Target> {
    let mut command = Command::new(program);
    command.args(["burn", "1"]);
    Target::start(command, scratch)
}

fn assert_has(recording: &Recording, pid: u32, wanted: &str) {
    let of_it = recording.folded.stacks.iter().filter(|stack| stack.is_of(pid));
    let (mut part, mut whole) = (0, 0);
    for stack in of_it {
        whole += stack.count;
        part += if stack.has(wanted) { stack.count } else { 0 };
    }
    println!("{part} of {whole} stacks of process {pid} have {wanted}");
    assert_at_least(wanted, Share { part, whole }, 0.99);
}

/// Records both, the one that is started first and the other one, and then again what runs: rows and names are shared, or
/// not, whoever comes first.
fn check(first: (&Target, &str), second: (&Target, &str), scratch: &Scratch) -> Result<()> {
    let recording = Jitprof::recording(scratch, ["--all"])?.record_cpu(second.0.pid()?, 3)?;
    assert_has(&recording, first.0.pid()?, first.1);
    assert_has(&recording, second.0.pid()?, second.1);
    Ok(())
}

#[test]
fn a_patched_copy_neither_gives_nor_takes_names() -> Result<()> {
    let (scratch, out) = (Scratch::new()?, Scratch::new()?);
    let (program, copy) = program_and_copy(&scratch)?;
    let (original, patched) = (start(&scratch, &program)?, start(&scratch, &copy)?);
    check((&original, NAME), (&patched, PATCHED), &out)?;
    // The other way round.
    drop((original, patched));
    let (patched, original) = (start(&scratch, &copy)?, start(&scratch, &program)?);
    check((&patched, PATCHED), (&original, NAME), &out)
}

#[test]
fn a_patched_copy_at_the_same_path_of_another_mount_namespace_neither_gives_nor_takes_names() -> Result<()> {
    let (scratch, out) = (Scratch::new()?, Scratch::new()?);
    let (program, copy) = program_and_copy(&scratch)?;
    let original = start(&scratch, &program)?;
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", "mount --bind \"$1\" \"$2\" && exec \"$2\" burn 1", "sh"]);
    command.arg(&copy).arg(&program);
    let patched = Target::start(command, &scratch)?;
    check((&original, NAME), (&patched, PATCHED), &out)
}
