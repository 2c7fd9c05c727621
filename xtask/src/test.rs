//! `test`: everything that can be checked here, and a table of what was and what was not.

mod summary;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::build::{self, Profile};
use crate::command::{self, Root};
use crate::matrix;
use crate::prepare::{GSYMUTIL, RUNTIMES, Variables};
use crate::tools;
use crate::workspace::Workspace;
use summary::Summary;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Leave out everything that needs root, a kernel with BPF, or a runtime
    #[arg(long)]
    no_live: bool,
    /// Leave out a step, a runtime, or the live tests with NAME in their path; the summary repeats the reason
    #[arg(long, value_name = "NAME=REASON", value_parser = parse_skip)]
    skip: Vec<Skip>,
    /// Build, then try these kernels in virtual machines and nothing else: names such as 5.10, 6.1, arm64-6.12, or the
    /// groups short (which is part of every run), all, arm64
    #[arg(long, value_name = "KERNEL", value_delimiter = ',')]
    kernel: Vec<String>,
}

/// Something that is left out on purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Skip {
    /// A step, a runtime, or a part of live tests' paths.
    name: String,
    /// Why, in the user's words.
    reason: String,
}

fn parse_skip(text: &str) -> Result<Skip, String> {
    match text.split_once('=') {
        Some((name, reason)) if !name.is_empty() && !reason.trim().is_empty() => {
            Ok(Skip { name: name.to_owned(), reason: reason.trim().to_owned() })
        }
        _ => Err("wants NAME=REASON; nothing is left out without a reason".to_owned()),
    }
}

/// Does one step and returns a note for the summary.
type Step = fn(&Workspace) -> Result<String>;

/// Steps that need neither root nor a runtime, in order.
const STATIC_STEPS: [(&str, Step); 6] = [
    ("fmt", fmt),
    ("clippy", clippy),
    ("clippy-bpf", clippy_bpf),
    ("packages", packages),
    ("unit", unit),
    ("build", build_all),
];
/// The packages that others can use by themselves.
const LIBRARIES: [&str; 3] = ["jitprof-common", "jitprof-jitdump", "jitprof-unwind"];
/// The step that runs the live tests.
const LIVE: &str = "live";
/// The step that tries other kernels in virtual machines.
const KERNELS: &str = "kernels";

pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    let mut summary = Summary::default();
    if !arguments.kernel.is_empty() {
        let kernels = matrix::select(&arguments.kernel)?;
        summary.run("build", || build_all(workspace));
        if summary.passed("build") {
            try_kernels(workspace, &kernels, &mut summary);
        }
        return verdict(workspace, &summary);
    }
    let mut skips = arguments.skip.clone();
    for (name, step) in STATIC_STEPS {
        match take(&mut skips, name) {
            Some(skip) => summary.skip(name, &skip.reason),
            None => summary.run(name, || step(workspace)),
        }
    }
    match take(&mut skips, KERNELS) {
        Some(skip) => summary.skip(KERNELS, &skip.reason),
        None if arguments.no_live => summary.skip(KERNELS, "--no-live"),
        None if !summary.passed("build") => {
            summary.run(KERNELS, || bail!("there is no binary to try, because `build` did not pass"));
        }
        None => try_kernels(workspace, &matrix::select(&["short".to_owned()])?, &mut summary),
    }
    if arguments.no_live {
        summary.skip(LIVE, "--no-live");
    } else if let Some(skip) = take(&mut skips, LIVE) {
        summary.skip(LIVE, &skip.reason);
    } else if !summary.passed("build") {
        summary.run(LIVE, || bail!("there is no binary to test, because `build` did not pass"));
    } else {
        live(workspace, &skips, &mut summary);
        skips.clear();
    }
    for skip in &skips {
        summary.run(&skip.name, || bail!("--skip names no step of this run"));
    }
    verdict(workspace, &summary)
}

/// Tries kernels in virtual machines: a row for what they need, and one for each.
fn try_kernels(workspace: &Workspace, kernels: &[&'static matrix::Kernel], summary: &mut Summary) {
    summary.run(KERNELS, || matrix::prepare(workspace, kernels));
    if summary.passed(KERNELS) {
        for tried in matrix::run(workspace, kernels) {
            summary.add(&format!("kernel {}", tried.kernel), tried.took, tried.verdict);
        }
    }
}

/// Shows the table; an error if a step failed.
fn verdict(workspace: &Workspace, summary: &Summary) -> Result<()> {
    eprint!("\n{summary}");
    match summary.failures() {
        0 => Ok(()),
        count => {
            let disk = free_room(&workspace.target).ok().and_then(full_disk).unwrap_or_default();
            bail!("{count} failed\n\n{}{disk}", summary.reasons())
        }
    }
}

/// The least room on the disk at which a step that failed may well have failed for another reason.
const ROOM_BYTES: u64 = 1 << 30;

/// What is said of a disk with so much room, if that explains failures.
fn full_disk(free: u64) -> Option<String> {
    let left = free >> 20;
    (free < ROOM_BYTES).then(|| format!("\n\nthe disk is full ({left} MiB left): a whole run builds some 10 GB"))
}

/// How many bytes can still be written below a folder.
fn free_room(folder: &Path) -> Result<u64> {
    let printed = command::output(Command::new("df").args(["--output=avail", "-B1"]).arg(folder))?;
    let number = printed.lines().last().unwrap_or_default().trim();
    number.parse().with_context(|| format!("`df` printed {number:?} for the room below {}", folder.display()))
}

fn take(skips: &mut Vec<Skip>, name: &str) -> Option<Skip> {
    let index = skips.iter().position(|skip| skip.name == name)?;
    Some(skips.remove(index))
}

fn fmt(workspace: &Workspace) -> Result<String> {
    tools::ensure_component(workspace, "rustfmt")?;
    command::run(workspace.cargo().args(["fmt", "--all", "--check"]))?;
    command::run(workspace.cargo().args(["fmt", "--all", "--check"]).current_dir(workspace.ebpf()))?;
    Ok(String::new())
}

fn clippy(workspace: &Workspace) -> Result<String> {
    tools::ensure_component(workspace, "clippy")?;
    command::run(workspace.cargo().args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    Ok(String::new())
}

fn clippy_bpf(workspace: &Workspace) -> Result<String> {
    tools::ensure_component(workspace, "clippy")?;
    build::bpf_clippy(workspace)?;
    Ok(String::new())
}

/// Whether what others use can be published, and its documentation read.
fn packages(workspace: &Workspace) -> Result<String> {
    let libraries = LIBRARIES.iter().flat_map(|library| ["--package", library]);
    let mut documented = workspace.cargo();
    command::run(documented.args(["doc", "--no-deps"]).args(libraries).env("RUSTDOCFLAGS", "-D warnings"))?;
    // Not built a second time from what was packed: that takes minutes, and what is missing there is mostly a version.
    command::run(workspace.cargo().args(["package", "--workspace", "--no-verify", "--allow-dirty", "--quiet"]))?;
    Ok(String::new())
}

fn unit(workspace: &Workspace) -> Result<String> {
    command::run_tests(workspace.cargo().arg("test"))?;
    // The rest of what needs no root: xtask's own tests, and those of the programs that the live tests profile.
    command::run_tests(workspace.cargo().args(["test", "--package", "xtask", "--package", "jitprof-tests", "--bins"]))?;
    Ok(String::new())
}

fn build_all(workspace: &Workspace) -> Result<String> {
    build::jitprof(workspace, Profile::Release)?;
    build::continuous(workspace)?;
    build::jitdemo(workspace)?;
    build::agent(workspace, Profile::Release)?;
    Ok(String::new())
}

/// Prepares the runtimes, then runs the live tests that are not skipped.
fn live(workspace: &Workspace, skips: &[Skip], summary: &mut Summary) {
    let mut variables = vec![
        ("JITPROF_BIN", workspace.target.join("release/jitprof").into()),
        ("JITPROF_AGENT", workspace.target.join("release/libjitprof_agent.so").into()),
        ("JITPROF_CONTINUOUS", workspace.target.join("release/continuous").into()),
        ("JITPROF_DEMO", workspace.target.join("release/jitdemo").into()),
        ("JITPROF_TARGETS", workspace.targets().into()),
    ];
    for runtime in &RUNTIMES {
        if let Some(skip) = skips.iter().find(|skip| skip.name == runtime.name) {
            summary.skip(runtime.name, &skip.reason);
        } else {
            summary.run(runtime.name, || {
                let found = runtime.prepare(workspace)?;
                let paths = found.iter().map(|(_, path)| path.to_string_lossy()).collect::<Vec<_>>().join(" ");
                variables.extend(found);
                Ok(paths)
            });
        }
    }
    if summary.passed(GSYMUTIL) {
        summary.run("gsymutil-unit", || unit_with_gsymutil(workspace, &variables));
    }
    summary.run("archive-faults", || archive_faults(workspace));
    let tests = match list(workspace) {
        Ok(tests) => tests,
        Err(error) => return summary.run(LIVE, || Err(error)),
    };
    for skip in skips {
        let count = tests.iter().filter(|test| test.contains(&skip.name)).count();
        if count > 0 {
            summary.skip(&format!("{LIVE}: {}", skip.name), &format!("{} ({count} tests)", skip.reason));
        } else if RUNTIMES.iter().all(|runtime| runtime.name != skip.name) {
            summary.run(&skip.name, || bail!("--skip names no step, no runtime and no live test"));
        }
    }
    let wanted = tests.iter().filter(|test| !skips.iter().any(|skip| test.contains(&skip.name))).count();
    summary.run(LIVE, || run_live(workspace, skips, variables, wanted));
}

/// The unit tests that need LLVM's own GSYM tool. Of no package by its name, so that they are what `unit` has built:
/// another choice of packages is another choice of features, and all is built once more.
fn unit_with_gsymutil(workspace: &Workspace, variables: &Variables) -> Result<String> {
    let mut cargo = workspace.cargo();
    cargo.args(["test", "--lib", "--", "--ignored", "llvm"]);
    command::run_tests(cargo.envs(variables.iter().map(|(name, value)| (name, value))))?;
    Ok(String::new())
}

/// The test of the archive on a full disk, which mounts one; built by `unit`, as those above.
fn archive_faults(workspace: &Workspace) -> Result<String> {
    let mut cargo = workspace.cargo();
    cargo.args(["test", "--test", "archive_faults", "--", "--ignored"]);
    command::run_tests(&mut cargo)?;
    Ok(String::new())
}

/// The paths of all live tests.
fn list(workspace: &Workspace) -> Result<Vec<String>> {
    command::progress("building the live tests");
    let listed = command::output(live_cargo(workspace).args(["--", "--list", "--format", "terse"]))?;
    Ok(listed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

fn run_live(workspace: &Workspace, skips: &[Skip], variables: Variables, wanted: usize) -> Result<String> {
    if wanted == 0 {
        bail!("no live test is left to run; say `--skip live=REASON` if that is meant");
    }
    let mut cargo = live_cargo(workspace);
    match Root::detect() {
        Root::Already => {}
        Root::Sudo => {
            // Cargo stays this user's, only the tests become root's.
            cargo.env(runner_variable(), "sudo -n -E");
        }
        Root::Unavailable => bail!(
            "the live tests need root, and sudo asks for a password here; run `sudo -v` and try again, or leave them \
             out with --no-live"
        ),
    }
    cargo.envs(variables);
    // One after the other: they share the machine's CPUs, and shares are what they assert.
    cargo.args(["--", "--test-threads=1"]);
    for skip in skips {
        cargo.args(["--skip", &skip.name]);
    }
    command::run_tests(&mut cargo)?;
    Ok(format!("{wanted} tests"))
}

/// `cargo test` of the live tests, and not of the unit tests in the programs that they profile.
fn live_cargo(workspace: &Workspace) -> Command {
    let mut cargo = workspace.cargo();
    cargo.args(["test", "--package", "jitprof-tests", "--lib"]);
    for target in &workspace.live_targets {
        cargo.args(["--test", target]);
    }
    cargo
}

/// Cargo's variable for the program that starts test binaries on this machine.
fn runner_variable() -> String {
    format!("CARGO_TARGET_{}_UNKNOWN_LINUX_GNU_RUNNER", std::env::consts::ARCH.to_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_without_a_reason_is_refused() {
        assert!(parse_skip("php").is_err());
        assert!(parse_skip("php=").is_err());
        assert!(parse_skip("php= ").is_err());
        assert!(parse_skip("=no package").is_err());
        let skip = parse_skip("php=no package = no test").unwrap();
        assert_eq!((skip.name.as_str(), skip.reason.as_str()), ("php", "no package = no test"));
    }

    #[test]
    fn a_full_disk_is_named_and_an_empty_one_is_not() {
        assert!(full_disk(5 << 20).unwrap().contains("5 MiB left"));
        assert_eq!(full_disk(ROOM_BYTES), None);
        assert!(free_room(&std::env::temp_dir()).unwrap() > 0);
        assert!(free_room(Path::new("/no/such/folder")).is_err());
    }

    #[test]
    fn a_skip_is_used_up_by_the_step_it_names() {
        let mut skips = vec![parse_skip("unit=slow").unwrap(), parse_skip("fmt=old").unwrap()];
        assert_eq!(take(&mut skips, "fmt").unwrap().reason, "old");
        assert_eq!(take(&mut skips, "fmt"), None);
        assert_eq!(skips.len(), 1);
    }
}
