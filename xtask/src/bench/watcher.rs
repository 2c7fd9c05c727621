//! What a benchmark starts ends with it, and what it changes is changed back, however it ends.
//!
//! A shell reads from a pipe of which this process alone holds the other end. When this process ends, by SIGKILL too,
//! the kernel closes the pipe and the shell does what it was told. It is in a process group of its own, so that a
//! Ctrl-C or `timeout`, which signal a whole group, do not end it before.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

use crate::command;

/// A shell that waits for the end of its scope or of this process.
pub(crate) struct Watcher {
    shell: Child,
}

impl Watcher {
    /// Runs `script` in the end.
    pub(crate) fn start(script: &str) -> Result<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("read -r line; {script}")]).stdin(Stdio::piped()).stdout(Stdio::null());
        let shell = command.process_group(0).spawn().context("cannot start the shell that cleans up in the end")?;
        Ok(Self { shell })
    }

    fn end(&mut self) {
        // Waiting closes the pipe first, and returns at once from the second time on.
        if self.shell.wait().is_err() {
            command::progress("the shell that cleans up could not be waited for");
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.end();
    }
}

/// Programs that are killed in the end, with all that they have started.
pub(crate) struct Group {
    watcher: Watcher,
}

impl Group {
    /// The shell leads the group: its number belongs to nobody else as long as the shell waits.
    pub(crate) fn start() -> Result<Self> {
        Ok(Self { watcher: Watcher::start("kill -9 0")? })
    }

    /// Starts a program of the group.
    pub(crate) fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        let leader = i32::try_from(self.watcher.shell.id()).map_err(io::Error::other)?;
        command.process_group(leader).spawn()
    }

    /// Kills all before the end of the scope.
    pub(crate) fn kill(&mut self) {
        self.watcher.end();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read};

    use super::*;

    #[test]
    fn what_a_program_of_the_group_started_ends_with_the_group() {
        let mut group = Group::start().unwrap();
        let mut command = Command::new("sh");
        // Both hold the pipe: it ends when both have.
        command.args(["-c", "sleep 600 & echo ready; wait"]).stdout(Stdio::piped());
        let mut child = group.spawn(&mut command).unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!((line.as_str(), child.try_wait().unwrap()), ("ready\n", None));
        group.kill();
        assert_eq!(output.read_to_string(&mut line).unwrap(), 0);
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn a_watcher_does_its_work_when_it_goes() {
        let file = std::env::temp_dir().join(format!("xtask-watcher-{}", std::process::id()));
        let watcher = Watcher::start(&format!("rm '{}'", file.display())).unwrap();
        std::fs::write(&file, "").unwrap();
        drop(watcher);
        assert!(!file.exists());
    }
}
