//! Versions of runtimes, read on a thread of its own: a target can make whoever reads its files or its environment wait.

use std::collections::HashMap;
use std::io::{self, Read};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use crate::advice::{Clues, Runtime, VersionFile, version_files, version_in_environment, version_variable};
use crate::process::open::open_in_root;
use crate::process::{Device, ProcessId, procfs};
use crate::units::Pid;

/// Questions that wait at most. Further processes are without a version until they are looked at again.
const MAX_REQUESTS: usize = 64;
/// Programs whose versions are remembered.
const MAX_KNOWN: usize = 4096;
/// Bytes of a file that are read; Node's header has 3 KiB.
const MAX_FILE_BYTES: u64 = 64 << 10;
/// Processes that wait for the version of one program.
const MAX_WAITING: usize = 4096;

/// A program: the same file has the same version, in whatever container.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Program {
    pub(super) device: Device,
    pub(super) inode: u64,
    pub(super) path: String,
}

/// Where to look.
struct Request {
    program: Program,
    pid: Pid,
    files: Vec<VersionFile>,
    variable: Option<&'static str>,
}

/// `None` if the process went away meanwhile.
type Answer = (Program, Option<Option<String>>);

/// Asks for versions, and remembers them.
pub(super) struct Versions {
    requests: SyncSender<Request>,
    answers: Receiver<Answer>,
    known: HashMap<Program, Option<String>>,
    waiting: HashMap<Program, Vec<ProcessId>>,
}

impl Versions {
    /// Starts the thread. It ends with the value, unless a target holds it up; then it ends with jitprof.
    pub(super) fn spawn() -> io::Result<Self> {
        let (requests, orders) = sync_channel(MAX_REQUESTS);
        let (sender, answers) = channel();
        std::thread::Builder::new().name("versions".into()).spawn(move || work(&orders, &sender))?;
        Ok(Self { requests, answers, known: HashMap::new(), waiting: HashMap::new() })
    }

    /// The version, if it is known; else it will be looked for, once for all processes of the program.
    pub(super) fn ask(
        &mut self,
        id: ProcessId,
        program: Program,
        runtime: Runtime,
        clues: &Clues<'_>,
    ) -> Option<String> {
        if let Some(known) = self.known.get(&program) {
            return known.clone();
        }
        if let Some(waiting) = self.waiting.get_mut(&program) {
            if waiting.len() < MAX_WAITING {
                waiting.push(id);
            }
            return None;
        }
        let (files, variable) = (version_files(runtime, clues), version_variable(runtime));
        if files.is_empty() && variable.is_none() {
            return None;
        }
        let request = Request { program: program.clone(), pid: id.pid, files, variable };
        if self.requests.try_send(request).is_ok() {
            self.waiting.insert(program, vec![id]);
        }
        None
    }

    /// Versions that have been found, with the processes that asked.
    pub(super) fn found(&mut self) -> Vec<(ProcessId, String)> {
        let mut found = Vec::new();
        while let Ok((program, answer)) = self.answers.try_recv() {
            let waiting = self.waiting.remove(&program).unwrap_or_default();
            let Some(version) = answer else { continue };
            if let Some(version) = &version {
                found.extend(waiting.into_iter().map(|id| (id, version.clone())));
            }
            if self.known.len() >= MAX_KNOWN {
                self.known.clear();
            }
            self.known.insert(program, version);
        }
        found
    }
}

fn work(orders: &Receiver<Request>, answers: &Sender<Answer>) {
    for request in orders {
        let version = look(&request);
        // What is not found of a process that has gone says nothing of its program.
        let is_certain = version.is_some() || procfs::stat(request.pid).is_ok_and(|stat| !stat.is_dead());
        if answers.send((request.program, is_certain.then_some(version))).is_err() {
            break;
        }
    }
}

fn look(request: &Request) -> Option<String> {
    let in_files = request.files.iter().find_map(|file| {
        let opened = open_in_root(request.pid, Path::new(&file.path)).ok()?;
        let mut text = Vec::new();
        opened.file.take(MAX_FILE_BYTES).read_to_end(&mut text).ok()?;
        file.version(&text)
    });
    in_files.or_else(|| version_in_environment(&procfs::environment(request.pid).ok()?, request.variable?))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::units::MonoNs;

    fn wait(versions: &mut Versions) -> Vec<(ProcessId, String)> {
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            let found = versions.found();
            if !found.is_empty() {
                return found;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Vec::new()
    }

    fn program(inode: u64) -> Program {
        Program { device: Device::default(), inode, path: "/opt/app/bin/node".to_owned() }
    }

    #[test]
    fn a_version_is_read_once_for_all_processes_of_a_program() {
        let mut child = Command::new("sleep");
        let mut child = child.arg("60").env("NODE_VERSION", "9.8.7").stdin(Stdio::null()).spawn().unwrap();
        let id = |start| ProcessId { pid: Pid(child.id()), start: MonoNs(start) };
        let clues = Clues { exe: "/opt/app/bin/node", ..Clues::default() };
        let mut versions = Versions::spawn().unwrap();
        let mut ask = |start, inode| versions.ask(id(start), program(inode), Runtime::Node, &clues);
        assert_eq!((ask(1, 1), ask(2, 1)), (None, None));
        assert_eq!(wait(&mut versions), [(id(1), "9.8.7".to_owned()), (id(2), "9.8.7".to_owned())]);
        assert_eq!(versions.ask(id(3), program(1), Runtime::Node, &clues).as_deref(), Some("9.8.7"));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_process_that_has_gone_says_nothing_of_its_program() {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let id = ProcessId { pid: Pid(child.id()), start: MonoNs(1) };
        let clues = Clues { exe: "/opt/app/bin/node", ..Clues::default() };
        let mut versions = Versions::spawn().unwrap();
        versions.ask(id, program(1), Runtime::Node, &clues);
        let deadline = Instant::now() + Duration::from_secs(10);
        while !versions.waiting.is_empty() && Instant::now() < deadline {
            assert!(versions.found().is_empty());
        }
        assert!(versions.waiting.is_empty() && versions.known.is_empty());
    }
}
