//! `fuzz`: the fuzz targets below tests/fuzz, each for a while.
//!
//! A run begins with what earlier runs have found (`corpus/TARGET` beside the package) and with seeds, which the package's
//! example `seeds` makes of real files in `<target>/fuzz/seeds/TARGET`.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command;
use crate::shared_build;
use crate::workspace::Workspace;

/// The packages with fuzz targets, the one that is compiled soonest first.
const PACKAGES: [&str; 2] = ["tests/fuzz/light", "tests/fuzz"];
/// The one whose example makes the seeds of all.
const SEEDS: &str = PACKAGES[0];

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How long each target runs
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// The targets to run; all if none is named
    targets: Vec<String>,
}

/// A fuzz target.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    package: &'static str,
    name: String,
}

pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    if !command::succeeds(workspace.cargo().args(["fuzz", "--version"])) {
        bail!("cargo-fuzz is not installed; run `cargo install cargo-fuzz`");
    }
    let mut known = Vec::new();
    for package in PACKAGES {
        let list = command::output(&mut cargo_fuzz(workspace, "list", package));
        let list = list.with_context(|| format!("cargo-fuzz cannot list {package}"))?;
        known.extend(list.lines().map(|name| Target { package, name: name.to_owned() }));
    }
    let wanted = wanted(known, &arguments.targets)?;
    let seeds = seeds(workspace)?;
    for Target { package, name } in wanted {
        command::progress(&format!("fuzzing {name} for {} s", arguments.seconds));
        // The first folder takes what is found.
        let folders = [workspace.root.join(package).join("corpus").join(&name), seeds.join(&name)];
        for folder in &folders {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        }
        let mut fuzz = cargo_fuzz(workspace, "run", package);
        fuzz.arg(&name).args(folders);
        fuzz.args(["--", &format!("-max_total_time={}", arguments.seconds), "-print_final_stats=1"]);
        command::run(&mut fuzz)
            .with_context(|| format!("{name} found an input that fails; it is in {package}/artifacts/{name}"))?;
    }
    Ok(())
}

/// Those that are named, in the order of the packages; all if none is.
fn wanted(known: Vec<Target>, named: &[String]) -> Result<Vec<Target>> {
    if let Some(unknown) = named.iter().find(|name| !known.iter().any(|target| target.name == **name)) {
        let known: Vec<String> = known.into_iter().map(|target| target.name).collect();
        bail!("no fuzz target `{unknown}`; there are: {}", known.join(", "));
    }
    Ok(known.into_iter().filter(|target| named.is_empty() || named.contains(&target.name)).collect())
}

/// The folder with a folder of seeds for each target that has some.
fn seeds(workspace: &Workspace) -> Result<PathBuf> {
    let folder = workspace.target.join("fuzz/seeds");
    command::progress("making seeds");
    let mut seeds = own_folder(workspace);
    seeds.current_dir(workspace.root.join(SEEDS));
    command::run(seeds.args(["run", "--quiet", "--example", "seeds", "--"]).arg(&folder))?;
    Ok(folder)
}

/// cargo-fuzz asks for unstable sanitizer flags; `RUSTC_BOOTSTRAP` opens them on the pinned stable toolchain.
fn cargo_fuzz(workspace: &Workspace, verb: &str, package: &str) -> Command {
    let mut cargo = own_folder(workspace);
    cargo.args(["fuzz", verb, "--fuzz-dir"]).arg(workspace.root.join(package)).env("RUSTC_BOOTSTRAP", "1");
    cargo
}

/// Sanitized builds share nothing with the others.
fn own_folder(workspace: &Workspace) -> Command {
    let folder = workspace.target.join("fuzz");
    let mut cargo = workspace.cargo();
    cargo.env("CARGO_TARGET_DIR", &folder).env(shared_build::VARIABLE, &folder);
    cargo
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_those_that_are_named_and_an_unknown_one_is_said() {
        let target = |package, name: &str| Target { package, name: name.to_owned() };
        let known = || vec![target("a", "one"), target("a", "two"), target("b", "three")];
        let named = |names: &[&str]| wanted(known(), &names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(named(&[]).unwrap(), known());
        assert_eq!(named(&["three", "one"]).unwrap(), [target("a", "one"), target("b", "three")]);
        let error = named(&["one", "four"]).unwrap_err().to_string();
        assert!(error.contains("`four`") && error.contains("one, two, three"), "{error}");
    }

    #[test]
    fn every_package_names_targets_that_are_there_and_leaves_none_out() {
        for package in PACKAGES {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../").to_owned() + package;
            let manifest = std::fs::read_to_string(format!("{folder}/Cargo.toml")).unwrap();
            let mut named: Vec<&str> = manifest
                .lines()
                .filter_map(|line| line.strip_prefix("path = \"fuzz_targets/")?.strip_suffix('"'))
                .collect();
            let files = std::fs::read_dir(format!("{folder}/fuzz_targets")).unwrap();
            let mut files: Vec<String> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
            named.sort_unstable();
            files.sort_unstable();
            assert_eq!(named, files, "{package}");
        }
    }
}
