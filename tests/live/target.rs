//! The program that is profiled.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use anyhow::{Context, Result, bail};

use crate::chance;
use crate::profiler::cpu_ms_of;
use crate::scratch::Scratch;
use crate::wait::{WAIT_LIMIT, wait_until};

/// A running target. It and everything that it started are killed when the value is dropped.
#[derive(Debug)]
pub struct Target {
    child: Child,
    lines: Receiver<String>,
    ready: HashMap<String, String>,
    stderr: PathBuf,
}

impl Target {
    /// Starts it in the scratch directory and waits for its line `ready pid=N …`.
    ///
    /// # Errors
    /// It cannot be started, ends before it is ready, or is not ready in time.
    pub fn start(mut command: Command, scratch: &Scratch) -> Result<Self> {
        let stderr = scratch.file("target.stderr");
        let log = File::create(&stderr).with_context(|| format!("cannot create {}", stderr.display()))?;
        command
            .current_dir(scratch.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            // A group of its own, so that its children end with it.
            .process_group(0);
        // SAFETY: signal is async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                // A shell starts what runs in its background with SIGINT ignored, and a runtime that finds it so leaves it.
                match libc::signal(libc::SIGINT, libc::SIG_DFL) {
                    libc::SIG_ERR => Err(std::io::Error::last_os_error()),
                    _ => Ok(()),
                }
            });
        }
        let mut child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        let stdout = child.stdout.take().context("no pipe")?;
        let (sender, lines) = channel();
        // Ends when the target closes its end, so that a full pipe never stops it.
        std::thread::spawn(move || {
            BufReader::new(stdout).lines().map_while(std::io::Result::ok).try_for_each(|line| sender.send(line))
        });
        let mut target = Self { child, lines, ready: HashMap::new(), stderr };
        target.ready = target.wait_for_ready().with_context(|| format!("starting {command:?}"))?;
        Ok(target)
    }

    fn wait_for_ready(&mut self) -> Result<HashMap<String, String>> {
        loop {
            match self.lines.recv_timeout(WAIT_LIMIT) {
                Ok(line) => {
                    if let Some(words) = line.strip_prefix("ready ") {
                        let pairs = words.split(' ').filter_map(|word| word.split_once('='));
                        return Ok(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect());
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    let words = format!("not ready after {} s", WAIT_LIMIT.as_secs());
                    chance::note(&words);
                    bail!(words)
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let said = std::fs::read_to_string(&self.stderr).unwrap_or_default();
                    bail!("it ended before it was ready: {said}");
                }
            }
        }
    }

    /// A value of the ready line, such as `pid`, `dump` or `child`.
    ///
    /// # Errors
    /// The line has none of this name.
    pub fn said(&self, key: &str) -> Result<&str> {
        self.ready.get(key).map(String::as_str).with_context(|| format!("the target did not say {key}="))
    }

    /// The pid that it says it has. In a pid namespace of its own, it is another one than ours for it.
    ///
    /// # Errors
    /// It did not say one.
    pub fn pid(&self) -> Result<u32> {
        self.said("pid")?.parse().context("the target's pid is no number")
    }

    /// The pid of what was started, which in case of a wrapper is the wrapper's.
    pub fn started_pid(&self) -> u32 {
        self.child.id()
    }

    /// The pid, as we see it, of the only child of what was started.
    ///
    /// # Errors
    /// It has none, or several.
    pub fn only_child(&self) -> Result<u32> {
        match self.children()?[..] {
            [child] => Ok(child),
            ref children => bail!("process {} has not one child but: {children:?}", self.started_pid()),
        }
    }

    /// The pids, as we see them, of the children of what was started.
    ///
    /// # Errors
    /// It has ended.
    pub fn children(&self) -> Result<Vec<u32>> {
        let pid = self.started_pid();
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
        text.split_whitespace().map(|child| Ok(child.parse()?)).collect()
    }

    /// CPU time that it has used so far, in milliseconds.
    ///
    /// # Errors
    /// It has ended.
    pub fn cpu_ms(&self) -> Result<u64> {
        cpu_ms_of(self.pid()?)
    }

    /// CPU time that it and its children have used so far, those that run included, in milliseconds.
    ///
    /// # Errors
    /// It has ended.
    pub fn cpu_ms_with_children(&self) -> Result<u64> {
        // A child that ends meanwhile is nobody's until it is waited for.
        let of_children = self.children()?.into_iter().filter_map(|child| cpu_ms_of(child).ok());
        Ok(self.cpu_ms()? + of_children.sum::<u64>())
    }

    /// Sends SIGINT to what was started: an end that is none by accident, at which runtimes still write their dumps.
    ///
    /// # Errors
    /// It has ended.
    pub fn interrupt(&self) -> Result<()> {
        self.signal(libc::SIGINT)
    }

    /// Sends a signal to what was started.
    ///
    /// # Errors
    /// It has ended.
    pub fn signal(&self, signal: i32) -> Result<()> {
        let pid = i32::try_from(self.child.id())?;
        // SAFETY: kill only takes numbers; the child is not waited for yet, so the pid is still its own.
        if unsafe { libc::kill(pid, signal) } != 0 {
            return Err(std::io::Error::last_os_error()).context("cannot send a signal to the target");
        }
        Ok(())
    }

    /// Whether what was started has not ended yet.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Waits until it ends by itself.
    ///
    /// # Errors
    /// It does not, or it cannot be waited for.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        wait_until("the target's end", || Ok(self.child.try_wait()?))
    }

    /// Waits until it ends by itself, and returns what it said on stdout after it was ready.
    ///
    /// # Errors
    /// It does not end, or not well.
    pub fn finish(&mut self) -> Result<Vec<String>> {
        let status = self.wait()?;
        if !status.success() {
            bail!("the target failed ({status}): {}", std::fs::read_to_string(&self.stderr).unwrap_or_default());
        }
        Ok(self.lines.iter().collect())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Ok(group) = i32::try_from(self.child.id()) {
            // SAFETY: kill only takes numbers; the group is the child's own, made when it was started, and keeps its
            // number at least until the child is waited for below.
            let result = unsafe { libc::kill(-group, libc::SIGKILL) };
            let error = std::io::Error::last_os_error();
            if result != 0 && error.raw_os_error() != Some(libc::ESRCH) {
                eprintln!("target {group} not killed: {error}");
            }
        }
        if let Err(error) = self.child.wait() {
            eprintln!("target not waited for: {error}");
        }
    }
}
