//! A continuous recording, as the service makes it, and what its windows say.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::chance;
use crate::path_from;
use crate::scratch::Scratch;
use crate::wait::WAIT_LIMIT;

/// `tests/tools/continuous.rs` while it runs. It is killed when the value is dropped.
#[derive(Debug)]
pub struct Continuous {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    windows: Vec<Value>,
}

/// All that it said.
#[derive(Debug)]
pub struct Ended {
    /// One value for each window.
    pub windows: Vec<Value>,
    /// The account of the whole recording.
    pub account: Value,
    /// What the governor did.
    pub governor: Value,
}

impl Continuous {
    /// Starts it and waits for its first window.
    ///
    /// # Errors
    /// It cannot be started, or ends.
    pub fn start(scratch: &Scratch, arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(path_from("JITPROF_CONTINUOUS")?);
        command.args(arguments).current_dir(scratch.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().context("no pipe")?);
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            BufReader::new(stdout).lines().map_while(std::io::Result::ok).try_for_each(|line| sender.send(line))
        });
        let mut continuous = Self { child, stdin, lines, windows: Vec::new() };
        continuous.window()?;
        Ok(continuous)
    }

    /// Waits for the next window.
    ///
    /// # Errors
    /// None comes.
    pub fn window(&mut self) -> Result<&Value> {
        let value = self.line()?;
        if value.get("account").is_some() {
            bail!("it has ended: {value}");
        }
        self.windows.push(value);
        self.windows.last().context("just pushed")
    }

    /// Waits for so many windows and returns the last of them.
    ///
    /// # Errors
    /// They do not come.
    pub fn skip(&mut self, windows: usize) -> Result<Value> {
        for _ in 0..windows {
            self.window()?;
        }
        self.windows.last().cloned().context("no window yet")
    }

    /// Waits until a window is as wanted, and returns it.
    ///
    /// # Errors
    /// None of the next `limit` windows is.
    pub fn until(&mut self, what: &str, limit: usize, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        for _ in 0..limit {
            let window = self.window()?;
            if wanted(window) {
                return Ok(window.clone());
            }
        }
        let words = format!("not within {limit} windows: {what}");
        chance::note(&words);
        bail!("{words}; the last one is {:?}", self.windows.last())
    }

    /// Tells it something.
    ///
    /// # Errors
    /// It has ended.
    pub fn tell(&mut self, command: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("it was stopped")?;
        writeln!(stdin, "{command}").context("it has ended")
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Stops it, and checks that every sample taken was delivered or counted as lost.
    ///
    /// # Errors
    /// It does not end well, or samples are missing.
    pub fn stop(mut self) -> Result<Ended> {
        drop(self.stdin.take());
        let last = loop {
            let value = self.line()?;
            if value.get("account").is_some() {
                break value;
            }
            self.windows.push(value);
        };
        let status = self.child.wait()?;
        if !status.success() {
            bail!("it ended with {status}");
        }
        let ended = Ended {
            windows: std::mem::take(&mut self.windows),
            account: last["account"].clone(),
            governor: last["governor"].clone(),
        };
        ended.check_sums()?;
        Ok(ended)
    }

    fn line(&mut self) -> Result<Value> {
        match self.lines.recv_timeout(WAIT_LIMIT) {
            Ok(line) => serde_json::from_str(&line).with_context(|| format!("no JSON: {line}")),
            Err(RecvTimeoutError::Timeout) => {
                let words = format!("no window in {} s", WAIT_LIMIT.as_secs());
                chance::note(&words);
                bail!(words)
            }
            Err(RecvTimeoutError::Disconnected) => bail!("it ended early"),
        }
    }
}

impl Ended {
    /// A number of the account, such as `/samples/taken`.
    ///
    /// # Errors
    /// There is none.
    pub fn number(&self, path: &str) -> Result<u64> {
        self.account.pointer(path).and_then(Value::as_u64).with_context(|| format!("no {path} in {}", self.account))
    }

    fn check_sums(&self) -> Result<()> {
        let taken = self.number("/samples/taken")?;
        let delivered = self.number("/samples/delivered")?;
        let (lost, malformed) = (self.number("/samples/lost_ring_full")?, self.number("/samples/lost_malformed")?);
        let in_windows: u64 = self.windows.iter().filter_map(|window| window["samples"].as_u64()).sum();
        if taken != delivered + lost || malformed != 0 || delivered != in_windows {
            bail!("{taken} taken, {delivered} delivered, {lost} lost, {malformed} malformed, {in_windows} in windows");
        }
        Ok(())
    }
}

impl Drop for Continuous {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- last window\n{:?}", self.windows.last());
        }
        // Both fail when it has been waited for, which is as good.
        if self.child.kill().is_ok()
            && let Err(error) = self.child.wait()
        {
            eprintln!("continuous not waited for: {error}");
        }
    }
}
