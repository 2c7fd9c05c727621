//! A mixed load of real runtimes: what a production machine runs, on two CPUs.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

use crate::bench::report::Report;
use crate::bench::watcher::{Group, Watcher};
use crate::command;
use crate::prepare;
use crate::workspace::Workspace;

/// Longer than any measurement; it ends a load that nobody ends.
const LIFE_S: &str = "14400";

/// The running programs. They end when this goes out of scope.
pub(crate) struct Load {
    children: Vec<(&'static str, Child)>,
    group: Group,
    /// Removes what they leave in /tmp.
    _remains: Watcher,
}

impl Load {
    /// Starts what is installed, and notes what is not.
    pub(crate) fn start(workspace: &Workspace, scratch: &Path, report: &mut Report) -> Result<Self> {
        let folder = scratch.join("load");
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let (group, mut children) = (Group::start()?, Vec::new());
        let targets = workspace.targets();
        for (name, command) in [
            ("Node", node(&targets)),
            ("CPython", python(&targets)),
            ("wasmtime", wasmtime(workspace, &targets)),
            ("Erlang", erlang(&targets, &folder)),
            ("C", c(&targets, &folder)),
            ("a build", build(&targets, &folder)),
        ] {
            match command {
                Some(command) => children.push((name, spawn(&group, &folder, name, command)?)),
                None => {
                    report.skip(&format!("{name} in the load"), "is not installed; `cargo xtask prepare` installs it")
                }
            }
        }
        // Erlang and CPython write to /tmp whatever is asked for.
        let remains = children.iter().map(|(_, child)| child.id());
        let remains: String = remains.map(|pid| format!(" /tmp/jit-{pid}.dump /tmp/perf-{pid}.map")).collect();
        Ok(Self { children, group, _remains: Watcher::start(&format!("rm -f{remains}"))? })
    }

    /// What runs.
    pub(crate) fn names(&self) -> String {
        self.children.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for (name, child) in &mut self.children {
            if !matches!(child.try_wait(), Ok(None)) {
                command::progress(&format!("{name} had ended before its time"));
            }
        }
        self.group.kill();
        for (name, child) in &mut self.children {
            if child.wait().is_err() {
                command::progress(&format!("{name} could not be waited for"));
            }
        }
    }
}

fn spawn(group: &Group, folder: &Path, name: &str, mut command: Command) -> Result<Child> {
    let log = folder.join(format!("{name}.log"));
    let log = File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
    command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    group.spawn(&mut command).with_context(|| format!("cannot start {name}"))
}

fn node(targets: &Path) -> Option<Command> {
    let mut command = Command::new(command::in_path("node")?);
    command.args(["--perf-prof", "--perf-prof-unwinding-info", "--interpreted-frames-native-stack"]);
    command.arg(targets.join("node/burn.js")).arg(LIFE_S);
    Some(command)
}

fn python(targets: &Path) -> Option<Command> {
    let mut command = Command::new(prepare::python_with_perf_jit().ok()?);
    command.args(["-X", "perf_jit"]).arg(targets.join("python/burn.py")).arg(LIFE_S);
    Some(command)
}

fn wasmtime(workspace: &Workspace, targets: &Path) -> Option<Command> {
    let python = workspace.target.join("venv/bin/python");
    let mut command = Command::new(&python);
    let there = command::succeeds(Command::new(&python).args(["-c", "import wasmtime"]));
    command.arg(targets.join("wasmtime/burn.py")).args(["jitdump", LIFE_S]);
    there.then_some(command)
}

fn erlang(targets: &Path, folder: &Path) -> Option<Command> {
    let compiler = command::in_path("erlc")?;
    let source = targets.join("erlang/burn.erl");
    command::succeeds(Command::new(compiler).arg("-o").arg(folder).arg(source)).then_some(())?;
    let mut command = Command::new(command::in_path("erl")?);
    command.args(["-noshell", "+JPperf", "true", "+S", "1", "-pa", ".", "-run", "burn", "main", LIFE_S]);
    Some(command)
}

fn c(targets: &Path, folder: &Path) -> Option<Command> {
    let program = folder.join("storm");
    let mut compiler = Command::new(command::in_path("cc")?);
    compiler.current_dir(targets).arg(command::prefix_map(targets, "tests/targets"));
    compiler.args(["-O1", "-g", "-o"]).arg(&program).arg(targets.join("native/storm.c"));
    command::succeeds(&mut compiler).then_some(())?;
    let mut command = Command::new(program);
    command.args(["burn", LIFE_S]);
    Some(command)
}

/// A file compiled again and again, by a shell as make would.
fn build(targets: &Path, folder: &Path) -> Option<Command> {
    command::in_path("cc")?;
    let script = format!(
        "while :; do cc -O2 -c -o '{}' '{}' && sleep 0.1; done",
        folder.join("storm.o").display(),
        targets.join("native/storm.c").display()
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script]);
    Some(command)
}
