//! The profilers that are compared, and how each is told to record a process.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::report::Report;
use crate::command;
use crate::prepare::RUNTIMES;
use crate::workspace::Workspace;

/// What is installed here.
pub(crate) struct Profilers {
    /// The runtime of deep.js.
    pub(crate) node: PathBuf,
    /// linux-perf.
    pub(crate) perf: Option<PathBuf>,
    /// samply.
    pub(crate) samply: Option<PathBuf>,
    /// py-spy, which names CPython's functions without a flag, too.
    pub(crate) py_spy: Option<PathBuf>,
}

/// Looks for the peers and brings Node.
pub(crate) fn find(workspace: &Workspace, report: &mut Report) -> Result<Profilers> {
    let runtime = RUNTIMES.iter().find(|runtime| runtime.name == "node").context("no recipe for node")?;
    let node = runtime.prepare(workspace)?.into_iter().next().context("no path to node")?.1.into();
    let mut peer = |name: &str| {
        let found = command::in_path(name).filter(|path| command::succeeds(Command::new(path).arg("--version")));
        if found.is_none() {
            report.skip(&format!("{name} as a peer"), "is not installed");
        }
        found
    };
    Ok(Profilers { node, perf: peer("perf"), samply: peer("samply"), py_spy: peer("py-spy") })
}

/// `jitprof`, until it is interrupted.
pub(crate) fn jitprof(program: &Path, pid: &str, hz: u32, account: &Path, output: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["--pid", pid, "-F", &hz.to_string(), "--account"]).arg(account).arg("-o").arg(output);
    command
}

/// `perf record` with frame pointers and the clock that jitdumps need, until it is interrupted. `-N` keeps it from
/// copying node into its cache of binaries, a one-time cost that would hide the rest.
pub(crate) fn perf_record(program: &Path, pid: &str, hz: u32, output: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["record", "-g", "-k", "1", "-F", &hz.to_string(), "-N", "-p", pid, "-o"]).arg(output);
    command
}

/// `perf inject --jit` writes an ELF file for each function of the dump, and the recording anew.
pub(crate) fn perf_inject(program: &Path, recorded: &Path, output: &Path, home: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("HOME", home).args(["inject", "--jit", "-i"]).arg(recorded).arg("-o").arg(output);
    command
}

/// `perf script` names every frame; without inlined functions, for which it would start addr2line.
pub(crate) fn perf_script(program: &Path, recorded: &Path, home: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("HOME", home).args(["script", "--no-inline", "-i"]).arg(recorded);
    command
}

/// `py-spy record` of a running process, until it is interrupted. It stops the process for each sample.
pub(crate) fn py_spy(program: &Path, pid: &str, hz: u32, output: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["record", "-r", &hz.to_string(), "-d", "unlimited", "-p", pid, "-o"]).arg(output);
    command
}

/// `samply record` of a running process, until it is interrupted.
pub(crate) fn samply(program: &Path, pid: &str, hz: u32, output: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["record", "--save-only", "-r", &hz.to_string(), "-p", pid, "-o"]).arg(output);
    command
}
