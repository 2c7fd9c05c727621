//! Running jitprof.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::path_from;
use crate::recording::Recording;
use crate::scratch::Scratch;
use crate::wait::wait_until;

/// Samples per second: a prime, so that no target's own rhythm falls into step with it.
const FREQUENCY: &str = "997";

/// A command line of jitprof, run in a scratch directory.
#[derive(Debug)]
pub struct Jitprof<'a> {
    command: Command,
    scratch: &'a Scratch,
    recording: bool,
}

impl<'a> Jitprof<'a> {
    /// jitprof with these arguments and nothing else.
    ///
    /// # Errors
    /// It is not known where jitprof is.
    pub fn new<S: AsRef<OsStr>>(scratch: &'a Scratch, arguments: impl IntoIterator<Item = S>) -> Result<Self> {
        Ok(Self::at(&path_from("JITPROF_BIN")?, scratch, arguments))
    }

    /// Like [`Self::new`], with another copy of the binary.
    pub fn at<S: AsRef<OsStr>>(binary: &Path, scratch: &'a Scratch, arguments: impl IntoIterator<Item = S>) -> Self {
        let mut command = Command::new(binary);
        command.current_dir(scratch.path()).args(arguments);
        Self { command, scratch, recording: false }
    }

    /// jitprof that writes everything a [`Recording`] holds, and takes these further arguments.
    ///
    /// # Errors
    /// Like [`Self::new`].
    pub fn recording<S: AsRef<OsStr>>(scratch: &'a Scratch, arguments: impl IntoIterator<Item = S>) -> Result<Self> {
        Self::recording_at(scratch, FREQUENCY, arguments)
    }

    /// Like [`Self::recording`], with so many samples a second.
    ///
    /// # Errors
    /// Like [`Self::new`].
    pub fn recording_at<S: AsRef<OsStr>>(
        scratch: &'a Scratch,
        frequency: &str,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<Self> {
        let outputs =
            ["-F", frequency, "-o", "out.folded", "-o", "out.pb.gz", "-o", "out.svg", "--account", "out.account"];
        let mut new = Self::new(scratch, outputs)?;
        new.command.args(arguments);
        new.recording = true;
        Ok(new)
    }

    /// The command, to change what arguments cannot.
    pub fn command(&mut self) -> &mut Command {
        &mut self.command
    }

    /// Starts it.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn spawn(self) -> Result<Running<'a>> {
        let stderr = File::create(self.scratch.file("jitprof.stderr"))?;
        self.spawn_saying_to(stderr)
    }

    /// Starts it with another standard error: what it says there is not read.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn spawn_saying_to(mut self, to: impl Into<Stdio>) -> Result<Running<'a>> {
        let (stdout, stderr) = (self.scratch.file("jitprof.stdout"), self.scratch.file("jitprof.stderr"));
        self.command.stdin(Stdio::null()).stdout(File::create(&stdout)?).stderr(to);
        let child = self.command.spawn().with_context(|| format!("cannot start {:?}", self.command))?;
        Ok(Running { child, scratch: self.scratch, stdout, stderr, recording: self.recording })
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// It cannot be started or does not end.
    pub fn run(self) -> Result<Finished> {
        self.spawn()?.finish()
    }

    /// Runs it to its end and reads what it recorded.
    ///
    /// # Errors
    /// It fails, or writes what cannot be read, or an account that does not add up.
    pub fn record(self) -> Result<Recording> {
        self.spawn()?.record()
    }

    /// Records until `pid` has used so many seconds of CPU time meanwhile, and reads what it recorded. Samples are CPU
    /// time: a busy machine takes longer to as many of them, and what a test asserts of them stays as exact.
    ///
    /// # Errors
    /// Like [`Self::record`], or the process does not get that far.
    pub fn record_cpu(self, pid: u32, cpu_s: u64) -> Result<Recording> {
        self.record_cpu_of(&[pid], cpu_s)
    }

    /// Like [`Self::record_cpu`] with the CPU time of several processes together.
    ///
    /// # Errors
    /// Like there.
    pub fn record_cpu_of(self, pids: &[u32], cpu_s: u64) -> Result<Recording> {
        let mut running = self.spawn()?;
        running.wait_for_samples_of(pids, cpu_s * 1000)?;
        running.signal(libc::SIGINT)?;
        running.record()
    }
}

/// jitprof while it runs. It is killed when the value is dropped.
#[derive(Debug)]
pub struct Running<'a> {
    child: Child,
    scratch: &'a Scratch,
    stdout: PathBuf,
    stderr: PathBuf,
    recording: bool,
}

impl Running<'_> {
    /// Waits until it samples and `pid` has used this much CPU time since.
    ///
    /// # Errors
    /// It ends before, or never gets there.
    pub fn wait_for_samples(&mut self, pid: u32, cpu_ms: u64) -> Result<()> {
        self.wait_for_samples_of(&[pid], cpu_ms)
    }

    /// Like [`Self::wait_for_samples`] with the CPU time of several processes together.
    ///
    /// # Errors
    /// Like there.
    pub fn wait_for_samples_of(&mut self, pids: &[u32], cpu_ms: u64) -> Result<()> {
        wait_until("jitprof to sample", || {
            if let Some(status) = self.child.try_wait()? {
                bail!("jitprof ended early ({status}): {}", std::fs::read_to_string(&self.stderr).unwrap_or_default());
            }
            Ok(self.samples()?.then_some(()))
        })?;
        let used = || pids.iter().map(|pid| cpu_ms_of(*pid)).sum::<Result<u64>>();
        let start = used()?;
        wait_until("the target to use CPU time", || Ok((used()? >= start + cpu_ms).then_some(())))
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The file of what it says on stderr.
    pub fn said_file(&self) -> &Path {
        &self.stderr
    }

    /// How long its threads have been ready to run and waited for a CPU so far, by the kernel's own account.
    ///
    /// # Errors
    /// It has ended.
    pub fn waited_for_cpu(&self) -> Result<Duration> {
        let mut waited_ns = 0;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            // A thread that has just ended has no file any more.
            if let Ok(text) = std::fs::read_to_string(task?.path().join("schedstat")) {
                waited_ns += text.split(' ').nth(1).context("no time in schedstat")?.parse::<u64>()?;
            }
        }
        Ok(Duration::from_nanos(waited_ns))
    }

    /// Waits until `look` finds something; fails if jitprof ends before.
    ///
    /// # Errors
    /// Like [`wait_until`].
    pub fn wait_for<T>(&mut self, what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        wait_until(what, || {
            if let Some(status) = self.child.try_wait()? {
                bail!("jitprof ended early ({status}): {}", std::fs::read_to_string(&self.stderr).unwrap_or_default());
            }
            look()
        })
    }

    /// Whether the BPF program is attached: a link among jitprof's files for each CPU.
    fn samples(&self) -> Result<bool> {
        let mut links = 0;
        for entry in std::fs::read_dir(format!("/proc/{}/fd", self.child.id()))? {
            // A file that was closed in between has no target any more.
            if let Ok(target) = std::fs::read_link(entry?.path()) {
                links += usize::from(target.to_string_lossy().contains("bpf_link"));
            }
        }
        Ok(links >= std::thread::available_parallelism()?.get())
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// It has ended.
    pub fn signal(&self, signal: i32) -> Result<()> {
        let pid = i32::try_from(self.child.id())?;
        // SAFETY: kill only takes numbers; the child is not waited for yet, so the pid is still its own.
        if unsafe { libc::kill(pid, signal) } != 0 {
            return Err(std::io::Error::last_os_error()).context("cannot send a signal to jitprof");
        }
        Ok(())
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It does not end in time.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        wait_until("jitprof's end", || Ok(self.child.try_wait()?))
    }

    /// Waits for its end and reads what it said.
    ///
    /// # Errors
    /// It does not end in time.
    pub fn finish(mut self) -> Result<Finished> {
        let status = self.wait()?;
        let read = |file: &Path| std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()));
        let finished = Finished { status, stdout: read(&self.stdout)?, stderr: read(&self.stderr)? };
        // Its threads survive what they are given; that is no reason for them to panic.
        if finished.stderr.contains("panicked at") {
            bail!("a thread of jitprof panicked: {}", finished.stderr);
        }
        Ok(finished)
    }

    /// Waits for its end and reads what it recorded.
    ///
    /// # Errors
    /// Like [`Jitprof::record`].
    pub fn record(self) -> Result<Recording> {
        if !self.recording {
            bail!("this command line writes no recording");
        }
        let scratch = self.scratch;
        Recording::read(scratch, self.finish()?)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        // Both fail when it has been waited for, which is as good.
        if self.child.kill().is_ok()
            && let Err(error) = self.child.wait()
        {
            eprintln!("jitprof not waited for: {error}");
        }
    }
}

/// jitprof after its end.
#[derive(Clone, Debug)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// What it wrote to stdout.
    pub stdout: String,
    /// What it wrote to stderr.
    pub stderr: String,
}

/// CPU time of a process, its threads and its children that have ended, in milliseconds.
pub(crate) fn cpu_ms_of(pid: u32) -> Result<u64> {
    let text =
        std::fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| format!("process {pid} is gone"))?;
    // Behind the name, which may hold anything: utime and stime are the 12th and 13th, then those of children that have ended.
    let rest = text.rsplit_once(')').context("no stat")?.1;
    let mut fields = rest.split_whitespace().skip(11);
    let mut ticks = || -> Result<u64> { Ok(fields.next().context("no stat")?.parse()?) };
    // Linux reports 100 ticks a second to userspace on every architecture that jitprof supports.
    Ok((0..4).map(|_| ticks()).sum::<Result<u64>>()? * 10)
}
