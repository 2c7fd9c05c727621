//! `test`: everything that can be checked here, and a table of what was and what was not.

mod live;
mod summary;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::build::{self, Profile};
use crate::command;
use crate::matrix;
use crate::package;
use crate::prepare::{GSYMUTIL, RUNTIMES, Variables};
use crate::tools;
use crate::workspace::Workspace;
pub(crate) use live::steadiness;
use live::{Live, Verdict, Wanted};
use summary::Summary;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Leave out everything that needs root, a kernel with BPF, or a runtime
    #[arg(long)]
    no_live: bool,
    /// Leave out a step, a runtime, or the live tests with NAME in their path; the summary repeats the reason
    #[arg(long, value_name = "NAME=REASON", value_parser = parse_skip)]
    skip: Vec<Skip>,
    /// Go on after a step before the live tests has failed: nothing of what comes then can make the run pass
    #[arg(long)]
    no_fail_fast: bool,
    /// Build, then try these kernels in virtual machines and nothing else: names such as 5.10, 6.1, arm64-6.12, or the
    /// groups short (which is part of every run), all, arm64
    #[arg(long, value_name = "KERNEL", value_delimiter = ',')]
    kernel: Vec<String>,
    /// Build, then run the live tests with NAME in their path and nothing else
    #[arg(long, value_name = "NAME", conflicts_with_all = ["kernel", "no_live"])]
    only: Vec<String>,
    /// Build, then run the live tests that did not pass last time
    #[arg(long, conflicts_with_all = ["kernel", "no_live", "only"])]
    rerun_failed: bool,
    /// Build, run each live test N times (only those with NAME in their path), and print how often each has passed
    #[arg(long, num_args = 1..=2, value_names = ["N", "NAME"], conflicts_with_all = ["kernel", "no_live", "only", "rerun_failed"])]
    repeat: Vec<String>,
    /// Keep N CPUs busy beside the live tests: what passes only on a quiet machine is found
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with_all = ["kernel", "no_live"])]
    beside: u32,
    /// Run N live tests at a time where they bear it: those that look at processes of their own only
    #[arg(long, value_name = "N", default_value_t = jobs(), conflicts_with_all = ["kernel", "no_live", "repeat"])]
    jobs: usize,
}

/// What a command line asks of the live tests alone.
#[derive(Clone, Debug, PartialEq, Eq)]
enum LiveOnly {
    /// Run these.
    Once(Vec<String>),
    /// Run these so often.
    Repeatedly(u32, Vec<String>),
    /// Run the endurance tests in their large form.
    Soak,
}

impl Arguments {
    /// If only live tests are wanted: which, and how often.
    fn live_only(&self, workspace: &Workspace) -> Result<Option<LiveOnly>> {
        if let Some((times, names)) = self.repeat.split_first() {
            let times = times.parse().ok().filter(|times| *times > 0);
            let times = times.context("--repeat wants a number of times, such as `--repeat 20 node::`")?;
            return Ok(Some(LiveOnly::Repeatedly(times, names.to_vec())));
        }
        if self.rerun_failed {
            let failed = live::failed_last_time(workspace);
            if failed.is_empty() {
                bail!("no live test is known to have failed here; run `cargo xtask test` first");
            }
            return Ok(Some(LiveOnly::Once(failed)));
        }
        Ok((!self.only.is_empty()).then(|| LiveOnly::Once(self.only.clone())))
    }
}

/// How many live tests run at a time: each keeps a CPU busy, and with more than these the recordings themselves are what is
/// waited for.
fn jobs() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(2)
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
const LIBRARIES: [&str; 4] = ["jitprof-common", "jitprof-jitdump", "jitprof-runtimes", "jitprof-unwind"];
/// Tests whose storms `soak` makes larger, and the variable that says so to them (tests/live/runs/endurance.rs).
const ENDURANCE: &str = "endurance::";
const SOAK_VARIABLE: &str = "JITPROF_SOAK";
/// The kernels that `soak` tries: those of this machine's processor, and, slowly, those of the other one.
const SOAK_KERNELS: [&str; 2] = ["all", "arm64"];
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
    if let Some(wanted) = arguments.live_only(workspace)? {
        summary.run("build", || build_all(workspace));
        if summary.passed("build") {
            live(workspace, (arguments.beside, arguments.jobs), &mut skips, Some(&wanted), &mut summary);
        }
        return verdict(workspace, &summary);
    }
    for (name, step) in STATIC_STEPS {
        match take(&mut skips, name) {
            Some(skip) => summary.skip(name, &skip.reason),
            None => summary.run(name, || step(workspace)),
        }
        if summary.failures() > 0 && !arguments.no_fail_fast {
            summary.remark("not run", "what comes after the step that failed (--no-fail-fast runs it all the same)");
            return verdict(workspace, &summary);
        }
    }
    let kernels = take(&mut skips, KERNELS);
    if arguments.no_live {
        summary.skip(LIVE, "--no-live");
    } else if let Some(skip) = take(&mut skips, LIVE) {
        summary.skip(LIVE, &skip.reason);
    } else if !summary.passed("build") {
        summary.run(LIVE, || bail!("there is no binary to test, because `build` did not pass"));
    } else {
        live(workspace, (arguments.beside, arguments.jobs), &mut skips, None, &mut summary);
    }
    // Last: a machine that emulates two others is none for live tests.
    match kernels {
        Some(skip) => summary.skip(KERNELS, &skip.reason),
        None if arguments.no_live => summary.skip(KERNELS, "--no-live"),
        None if !summary.passed("build") => {
            summary.run(KERNELS, || bail!("there is no binary to try, because `build` did not pass"));
        }
        None => try_kernels(workspace, &matrix::select(&["short".to_owned()])?, &mut summary),
    }
    for skip in &skips {
        summary.run(&skip.name, || bail!("--skip names no step of this run"));
    }
    verdict(workspace, &summary)
}

/// `soak`: what takes too long for each run of all tests: the endurance tests in their large form, and all kernels.
pub(crate) fn soak(workspace: &Workspace) -> Result<()> {
    let mut summary = Summary::default();
    summary.run("build", || build_all(workspace));
    if summary.passed("build") {
        live(workspace, (0, 1), &mut Vec::new(), Some(&LiveOnly::Soak), &mut summary);
        try_kernels(workspace, &matrix::select(&SOAK_KERNELS.map(str::to_owned))?, &mut summary);
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
    if let Some(line) = summary.closing_line() {
        println!("{line}");
    }
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
    // The profiler alone, without its service: no feature may need another one unsaid.
    let alone = ["clippy", "--package", "jitprof", "--no-default-features", "--lib", "--bins", "--", "-D", "warnings"];
    command::run(workspace.cargo().args(alone))?;
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
    package::pack_and_compare(workspace)
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

/// Prepares the runtimes, then runs the live tests that are not skipped, or those that are asked for.
fn live(
    workspace: &Workspace,
    (beside, jobs): (u32, usize),
    skips: &mut Vec<Skip>,
    only: Option<&LiveOnly>,
    summary: &mut Summary,
) {
    let mut variables = vec![
        ("JITPROF_BIN", workspace.target.join("release/jitprof").into()),
        ("JITPROF_AGENT", workspace.target.join("release/libjitprof_agent.so").into()),
        ("JITPROF_CONTINUOUS", workspace.target.join("release/continuous").into()),
        ("JITPROF_DEMO", workspace.target.join("release/jitdemo").into()),
        ("JITPROF_TARGETS", workspace.targets().into()),
    ];
    // A runtime's tests are left out with it, by the skip of the same name.
    let mut left_out: Vec<Skip> = Vec::new();
    for runtime in &RUNTIMES {
        if let Some(skip) = take(skips, runtime.name) {
            summary.skip(runtime.name, &skip.reason);
            left_out.push(skip);
        } else {
            summary.run(runtime.name, || {
                let found = runtime.prepare(workspace)?;
                let paths = found.iter().map(|(_, path)| path.to_string_lossy()).collect::<Vec<_>>().join(" ");
                variables.extend(found);
                Ok(paths)
            });
        }
    }
    if only.is_none() {
        if summary.passed(GSYMUTIL) {
            summary.run("gsymutil-unit", || unit_with_gsymutil(workspace, &variables));
        }
        summary.run("archive-faults", || archive_faults(workspace));
    }
    let tests = match Live::build(workspace, beside, jobs) {
        Ok(tests) => tests,
        Err(error) => return summary.run(LIVE, || Err(error)),
    };
    let named = skips.iter().filter(|skip| tests.names.iter().any(|test| test.contains(&skip.name))).cloned();
    left_out.extend(named);
    skips.retain(|skip| !left_out.iter().any(|one| one.name == skip.name));
    for skip in &left_out {
        let count = tests.names.iter().filter(|test| test.contains(&skip.name)).count();
        if count > 0 {
            summary.skip(&format!("{LIVE}: {}", skip.name), &format!("{} ({count} tests)", skip.reason));
        }
    }
    let mut wanted = Wanted { left_out: left_out.into_iter().map(|skip| skip.name).collect(), ..Wanted::default() };
    match only {
        Some(LiveOnly::Repeatedly(times, names)) => {
            wanted.only.clone_from(names);
            summary.run(LIVE, || {
                let table = tests.repeat(&variables, &wanted, *times)?;
                print!("{table}");
                Ok(format!("{times} times"))
            });
        }
        Some(LiveOnly::Soak) => {
            wanted.only.push(ENDURANCE.to_owned());
            wanted.is_soak = true;
            variables.push((SOAK_VARIABLE, "1".into()));
            run_live(&tests, &variables, &wanted, summary);
        }
        Some(LiveOnly::Once(names)) => {
            wanted.only.clone_from(names);
            run_live(&tests, &variables, &wanted, summary);
        }
        None => run_live(&tests, &variables, &wanted, summary),
    }
}

fn run_live(tests: &Live<'_>, variables: &Variables, wanted: &Wanted, summary: &mut Summary) {
    let mut verdict = Verdict::default();
    summary.run(LIVE, || {
        verdict = tests.run(variables, wanted)?;
        verdict.conclude()
    });
    for line in &verdict.unsteady {
        summary.remark("unsteady", line);
    }
    summary.count_tests(verdict.passed, verdict.failed.len());
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
