//! `demo`: a program that generates machine code at run time, and the flamegraph of it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::build;
use crate::command::{self, Root};
use crate::workspace::Workspace;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How long to profile
    #[arg(long, default_value_t = 5, value_name = "SECONDS")]
    seconds: u32,
    /// Where the flamegraph goes [default: <target>/demo/jitprof-demo.svg]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    let folder = workspace.target.join("demo");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let jitprof = build::jitprof_for_demo(workspace, &folder)?;
    let jitdemo = build::jitdemo(workspace)?;
    let svg = arguments.output.clone().unwrap_or_else(|| folder.join("jitprof-demo.svg"));
    let Some(mut profiler) = Root::detect().command(&jitprof) else {
        bail!(
            "profiling needs root, and sudo asks for a password here. Either `sudo -v` and `cargo xtask demo` again, or\n  \
             {} --dir /tmp --secs 60 &\n  sudo {} --pid $! -d {}s -o {}",
            jitdemo.display(),
            jitprof.display(),
            arguments.seconds,
            svg.display()
        );
    };
    if svg.is_file() {
        // One of an earlier run must not pass for this run's.
        std::fs::remove_file(&svg).with_context(|| format!("cannot replace {}", svg.display()))?;
    }
    command::progress("starting the demo JIT");
    let target = Target::start(&jitdemo, &folder, arguments.seconds.saturating_add(60))?;
    command::progress(&format!("profiling pid {} for {} s", target.pid, arguments.seconds));
    profiler.args(["--pid", &target.pid, "-d", &format!("{}s", arguments.seconds), "-o"]).arg(&svg);
    command::run(&mut profiler)?;
    drop(target);
    if !svg.is_file() {
        bail!("jitprof ended without an error, but there is no {}", svg.display());
    }
    command::progress("open the flamegraph in a browser:");
    println!("{}", svg.display());
    Ok(())
}

/// The running demo JIT; ended when it goes out of scope.
struct Target {
    child: Child,
    pid: String,
    dump: PathBuf,
}

impl Target {
    /// Starts it and waits for the line that says that the hot loop begins.
    fn start(program: &Path, folder: &Path, seconds: u32) -> Result<Self> {
        let mut command = Command::new(program);
        command.arg("--secs").arg(seconds.to_string()).arg("--dir").arg(folder);
        // Nobody reads the pipe once the program is ready, so the schedule must not go there.
        command.args(["--schedule", "/dev/null"]);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let mut target = Self { child, pid: String::new(), dump: PathBuf::new() };
        let stdout = target.child.stdout.take().context("the demo JIT has no stdout")?;
        for line in BufReader::new(stdout).lines() {
            let line = line.context("cannot read what the demo JIT prints")?;
            if let (Some(pid), Some(dump)) = (ready(&line, "pid="), ready(&line, "dump=")) {
                (target.pid, target.dump) = (pid.to_owned(), dump.into());
                return Ok(target);
            }
        }
        bail!("`{}` ended before it was ready; run it by hand to see why", command::shown(&command))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Both fail only if the program has ended by itself.
        if self.child.kill().is_ok() && self.child.wait().is_err() {
            command::progress("the demo JIT could not be waited for");
        }
        if self.dump.is_file() && std::fs::remove_file(&self.dump).is_err() {
            command::progress(&format!("{} is left over", self.dump.display()));
        }
    }
}

/// The value of a word in a line such as `ready pid=17 dump=jit-17.dump`.
fn ready<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.strip_prefix("ready ")?.split(' ').find_map(|word| word.strip_prefix(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_from_the_ready_line_only() {
        let line = "ready pid=17 dump=/tmp/jit-17.dump";
        assert_eq!(ready(line, "pid="), Some("17"));
        assert_eq!(ready(line, "dump="), Some("/tmp/jit-17.dump"));
        assert_eq!(ready(line, "child="), None);
        assert_eq!(ready("calls 3 pid=17", "pid="), None);
    }
}
