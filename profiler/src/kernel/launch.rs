//! Starts a command that does nothing before the profiler is ready for it.

use std::ffi::OsString;
use std::io::{self, PipeWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::thread::JoinHandle;

use jitprof_common::units::Pid;

/// What the child is told.
const GO: u8 = 1;
const CANCEL: u8 = 0;

/// Where a launched command's standard output goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandOutput {
    /// Where jitprof's goes.
    Inherited,
    /// To standard error, because jitprof writes data to standard output.
    ToStderr,
}

/// A child process that has been made and waits before its exec.
#[derive(Debug)]
pub struct Launch {
    pid: Pid,
    go: PipeWriter,
    spawn: JoinHandle<io::Result<Child>>,
}

impl Launch {
    /// Makes the child.
    ///
    /// # Errors
    /// The system refuses a pipe, a thread or a process.
    ///
    /// # Panics
    /// Never; `command` must not be empty, which is an error.
    pub fn prepare(command: &[OsString], stdout: CommandOutput) -> io::Result<Self> {
        let (program, arguments) =
            command.split_first().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "empty command"))?;
        let (mut wait, go) = io::pipe()?;
        let (mut pid_out, mut pid_in) = io::pipe()?;
        let mut command = Command::new(program);
        command.args(arguments);
        if stdout == CommandOutput::ToStderr {
            command.stdout(io::stderr().as_fd().try_clone_to_owned()?);
        }
        let own_end = go.as_raw_fd();
        // SAFETY: runs between fork and exec; it only reads, writes and closes pipes and asks for its pid, all
        // async-signal-safe, and allocates nothing. `own_end` is the child's copy, which nothing else uses.
        unsafe {
            command.pre_exec(move || {
                // Else the child would keep the pipe open for itself, and wait for ever when the profiler dies.
                libc::close(own_end);
                pid_in.write_all(&std::process::id().to_ne_bytes())?;
                let mut answer = [CANCEL];
                wait.read_exact(&mut answer)?;
                if answer == [GO] { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ECANCELED)) }
            });
        }
        // `spawn` returns when the child has called exec, so it needs a thread of its own.
        let spawn = std::thread::Builder::new().name("launch".into()).spawn(move || command.spawn())?;
        let mut pid = [0; 4];
        match pid_out.read_exact(&mut pid) {
            Ok(()) => Ok(Self { pid: Pid(u32::from_ne_bytes(pid)), go, spawn }),
            // The child was never made: its end of the pipe is gone with the command.
            Err(error) => Err(finished(spawn).err().unwrap_or(error)),
        }
    }

    /// The child's pid.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Lets the child become the command.
    ///
    /// # Errors
    /// The command cannot be executed.
    pub fn release(self) -> io::Result<Child> {
        let Self { mut go, spawn, .. } = self;
        go.write_all(&[GO])?;
        drop(go);
        finished(spawn)
    }

    /// Ends the child without the command having run.
    pub fn cancel(self) {
        let Self { mut go, spawn, .. } = self;
        // Said, not only by closing the pipe: another child made meanwhile may hold a copy of it.
        if let Err(error) = go.write_all(&[CANCEL]) {
            tracing::debug!("cancelling a command: {error}");
        }
        drop(go);
        // Its exec has been refused by us: an error is what is expected here.
        drop(finished(spawn));
    }
}

/// Asks a process to end (SIGTERM). Nothing happens to one that has ended.
pub fn terminate(pid: i32) {
    // SAFETY: no pointers; the pid is that of a child that has not been waited for, so it cannot be another's.
    let result = unsafe { libc::kill(pid, libc::SIGTERM) };
    if result != 0 {
        tracing::debug!("SIGTERM to {pid}: {}", io::Error::last_os_error());
    }
}

fn finished(spawn: JoinHandle<io::Result<Child>>) -> io::Result<Child> {
    spawn.join().unwrap_or_else(|_| Err(io::Error::other("the launching thread panicked")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_starts_when_it_is_released() {
        let launch = Launch::prepare(&["true".into()], CommandOutput::Inherited).unwrap();
        let pid = launch.pid();
        let mut child = launch.release().unwrap();
        assert_eq!(child.id(), pid.0);
        assert!(child.wait().unwrap().success());
    }

    #[test]
    fn a_cancelled_command_never_runs() {
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().join("mark");
        Launch::prepare(&["touch".into(), mark.clone().into()], CommandOutput::Inherited).unwrap().cancel();
        assert!(!mark.exists());
    }

    #[test]
    fn a_command_that_does_not_exist_is_an_error() {
        let launch = Launch::prepare(&["/no/such/command".into()], CommandOutput::Inherited).unwrap();
        assert_eq!(launch.release().unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
