//! `fuzz`: the fuzz targets of tests/fuzz, each for a while.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command;
use crate::workspace::Workspace;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How long each target runs
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// The targets to run; all if none is named
    targets: Vec<String>,
}

pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    if !workspace.root.join("tests/fuzz/Cargo.toml").is_file() {
        bail!("there are no fuzz targets: tests/fuzz/Cargo.toml does not exist");
    }
    if !command::succeeds(workspace.cargo().args(["fuzz", "--version"])) {
        bail!("cargo-fuzz is not installed; run `cargo install cargo-fuzz`");
    }
    let known = command::output(cargo_fuzz(workspace).arg("list")).context("cargo-fuzz cannot list tests/fuzz")?;
    let known: Vec<&str> = known.lines().collect();
    if let Some(unknown) = arguments.targets.iter().find(|name| !known.contains(&name.as_str())) {
        bail!("no fuzz target `{unknown}`; there are: {}", known.join(", "));
    }
    let wanted =
        known.iter().filter(|name| arguments.targets.is_empty() || arguments.targets.iter().any(|t| t == *name));
    for name in wanted {
        command::progress(&format!("fuzzing {name} for {} s", arguments.seconds));
        let mut fuzz = cargo_fuzz(workspace);
        fuzz.args(["run", name, "--", &format!("-max_total_time={}", arguments.seconds)]);
        command::run(&mut fuzz)
            .with_context(|| format!("{name} found an input that fails; it is in tests/fuzz/artifacts/{name}"))?;
    }
    Ok(())
}

/// cargo-fuzz asks for unstable sanitizer flags; `RUSTC_BOOTSTRAP` opens them on the pinned stable toolchain.
fn cargo_fuzz(workspace: &Workspace) -> Command {
    let mut cargo = workspace.cargo();
    cargo.arg("fuzz").current_dir(workspace.root.join("tests")).env("RUSTC_BOOTSTRAP", "1");
    // Its own folder: sanitized builds share nothing with the others.
    cargo.env("CARGO_TARGET_DIR", workspace.target.join("fuzz"));
    cargo
}
