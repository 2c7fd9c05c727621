//! A program whose use of the machine is measured: CPU, memory, bytes written, and how long it takes to end.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::watcher::Group;
use crate::command;

/// Clock ticks in /proc/PID/stat a second; the same on every Linux machine (USER_HZ).
const TICKS: f64 = 100.0;
/// Longest time from a program's start to its first event.
const START: Duration = Duration::from_secs(30);
/// Longest time for a program to end; `perf inject` of many functions takes minutes.
const END: Duration = Duration::from_secs(300);

/// A running program.
pub(crate) struct Running {
    child: Child,
    line: String,
    log: PathBuf,
    /// Ends it in any case.
    _group: Group,
}

/// What a program used in all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Used {
    /// User and system time in seconds, in steps of 0.01.
    pub(crate) cpu_s: f64,
    /// Largest resident size.
    pub(crate) rss_bytes: f64,
    /// Bytes of files that it changed and a disk has to take. Pages, so a small file counts 4096; files in memory do
    /// not count, so the scratch folder has to be on a disk.
    pub(crate) written_bytes: f64,
    /// From the signal, or from the start if there was none, to the exit.
    pub(crate) wall_s: f64,
}

impl Running {
    /// Starts it; what it prints goes to `log`.
    pub(crate) fn start(command: &mut Command, log: &Path) -> Result<Self> {
        let line = command::shown(command);
        let output = File::create(log).with_context(|| format!("cannot create {}", log.display()))?;
        let errors = output.try_clone().context("cannot share the log")?;
        let group = Group::start()?;
        let child = group.spawn(command.stdin(Stdio::null()).stdout(output).stderr(errors));
        let child = child.with_context(|| format!("cannot start `{line}`"))?;
        Ok(Self { child, line, log: log.to_owned(), _group: group })
    }

    /// Runs it to its end.
    pub(crate) fn complete(command: &mut Command, log: &Path) -> Result<Used> {
        let start = Instant::now();
        Self::start(command, log)?.ended(start)
    }

    /// Waits until it has perf events, or says that it samples: py-spy needs none.
    pub(crate) fn wait_for_events(&mut self) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < START {
            if self.child.try_wait().context("cannot wait")?.is_some() {
                bail!("`{}` ended at once: {}", self.line, self.printed());
            }
            if has_perf_events(self.child.id()) || self.printed().contains("py-spy> Sampling process") {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        bail!("`{}` has opened no perf event after {} s: {}", self.line, START.as_secs(), self.printed())
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// User and system time so far, in seconds.
    pub(crate) fn cpu_s(&self) -> Result<f64> {
        Ok(Stat::read(self.child.id())?.cpu_s)
    }

    /// Interrupts it, as Ctrl-C does, and waits for its end.
    pub(crate) fn stop(self) -> Result<Used> {
        // The shell's start is in the figure, about a millisecond.
        let start = Instant::now();
        command::output(Command::new("sh").args(["-c", &format!("kill -INT {}", self.child.id())]))?;
        self.ended(start)
    }

    /// Polls until it is a zombie, whose account can still be read, and only then takes it off the process table.
    pub(crate) fn ended(mut self, start: Instant) -> Result<Used> {
        let pid = self.child.id();
        let mut rss_bytes: f64 = 0.0;
        let (wall_s, cpu_s) = loop {
            let stat = Stat::read(pid)?;
            let now = start.elapsed();
            if stat.ended {
                break (now.as_secs_f64(), stat.cpu_s);
            }
            // No memory is listed once it is exiting.
            if let Some(bytes) = field(&format!("/proc/{pid}/status"), "VmHWM:") {
                rss_bytes = rss_bytes.max(bytes * 1024.0);
            }
            if now > END {
                bail!("`{}` does not end", self.line);
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let written_bytes = field(&format!("/proc/{pid}/io"), "write_bytes:").unwrap_or(f64::NAN);
        let status: ExitStatus = self.child.wait().context("cannot wait")?;
        if !status.success() && !interrupted(status) {
            bail!("`{}` failed ({status}): {}", self.line, self.printed());
        }
        Ok(Used { cpu_s, rss_bytes, written_bytes, wall_s })
    }

    fn printed(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default().trim().to_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Only after an error: whoever ended has been waited for.
        if matches!(self.child.try_wait(), Ok(None)) && self.child.kill().is_ok() && self.child.wait().is_err() {
            command::progress(&format!("`{}` could not be waited for", self.line));
        }
    }
}

/// perf ends with the signal that it was told to end with.
fn interrupted(status: ExitStatus) -> bool {
    const SIGINT: i32 = 2;
    std::os::unix::process::ExitStatusExt::signal(&status) == Some(SIGINT)
}

fn has_perf_events(pid: u32) -> bool {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    descriptors
        .flatten()
        .filter_map(|descriptor| fs::read_link(descriptor.path()).ok())
        .any(|link| link.as_os_str() == "anon_inode:[perf_event]")
}

/// The number behind `name` in a file of such lines.
fn field(path: &str, name: &str) -> Option<f64> {
    let text = fs::read_to_string(path).ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// What is used of /proc/PID/stat.
#[derive(Debug, PartialEq)]
struct Stat {
    /// All its threads have ended, and nobody has waited for it yet.
    ended: bool,
    cpu_s: f64,
}

impl Stat {
    fn read(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/stat");
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        Self::parse(&text).with_context(|| format!("{path} has another form"))
    }

    /// `pid (comm) state ppid … utime (14th) stime (15th) … num_threads (20th)`; comm may hold anything.
    fn parse(text: &str) -> Option<Self> {
        let (_, rest) = text.rsplit_once(')')?;
        let words: Vec<&str> = rest.split_whitespace().collect();
        let number = |place: usize| words.get(place - 3)?.parse::<f64>().ok();
        Some(Self { ended: *words.first()? == "Z" && number(20)? <= 1.0, cpu_s: (number(14)? + number(15)?) / TICKS })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_behind_the_last_parenthesis() {
        let text = "7 (a) Z (b) Z 1 7 7 0 -1 4228100 1 0 0 0 150 25 0 0 20 0 1 0 9 0 0";
        assert_eq!(Stat::parse(text), Some(Stat { ended: true, cpu_s: 1.75 }));
        assert_eq!(Stat::parse(&text.replace(") Z 1", ") S 1")), Some(Stat { ended: false, cpu_s: 1.75 }));
    }

    #[test]
    fn a_program_that_ends_has_an_account() {
        let log = std::env::temp_dir().join(format!("xtask-running-{}", std::process::id()));
        let busy = "i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done; echo done";
        let used = Running::complete(Command::new("sh").args(["-c", busy]), &log).unwrap();
        assert_eq!(fs::read_to_string(&log).unwrap(), "done\n");
        fs::remove_file(&log).unwrap();
        assert!(used.cpu_s > 0.0 && used.rss_bytes > 0.0 && used.wall_s >= used.cpu_s - 0.02, "{used:?}");
    }
}
