//! Targets that are compiled when a test starts.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::scratch::Scratch;
use crate::{path_from, target_file};

/// Compiles a file among the targets into the scratch directory: `compile(&scratch, "cc", "native/calls.c", &["-O2"])`.
/// Returns the program's path. Its debug information says `tests/targets` for the folder of the targets, wherever that is.
///
/// # Errors
/// There is no such compiler, or it fails; the error holds what it said.
pub fn compile(scratch: &Scratch, compiler: &str, source: &str, flags: &[&str]) -> Result<PathBuf> {
    let source = target_file(source)?;
    let program = scratch.file(source.file_stem().context("a source has a name")?.to_str().context("in ASCII")?);
    let targets = path_from("JITPROF_TARGETS")?;
    let mut command = Command::new(compiler);
    command.arg(format!("-ffile-prefix-map={}=tests/targets", targets.display())).current_dir(&targets);
    command.args(flags).arg("-o").arg(&program).arg(&source);
    let output = command.output().with_context(|| format!("cannot start {command:?}; install it"))?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(program)
}
