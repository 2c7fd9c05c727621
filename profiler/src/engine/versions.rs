//! Versions of runtimes: asked for once for each program, and remembered.

use std::collections::HashMap;

use crate::advice::{Clues, Runtime, version_files, version_variable};
use crate::engine::border::Request;
use crate::engine::process::Process;
use crate::engine::requests::{Purpose, Requests};
use crate::process::{Device, ProcessId};
use jitprof_common::units::MonoNs;

/// Programs whose versions are remembered.
const MAX_KNOWN: usize = 4096;
/// Programs whose versions are being looked for. Further processes are without a version until they are looked at again.
const MAX_ASKED: usize = 64;
/// Processes that wait for the version of one program.
const MAX_WAITING: usize = 4096;

/// A program: the same file has the same version, in whatever container.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ProgramFile {
    pub(super) device: Device,
    pub(super) inode: u64,
    pub(super) path: String,
}

/// What is known of versions.
#[derive(Debug, Default)]
pub(super) struct Versions {
    known: HashMap<ProgramFile, Option<String>>,
    /// The question for each that is looked for, and who waits for it.
    waiting: HashMap<ProgramFile, (u64, Vec<Waiting>)>,
    last_question: u64,
}

/// A process, and since when it has run the program.
type Waiting = (ProcessId, MonoNs);

impl Versions {
    /// The version, if it is known; else it will be looked for, once for all processes of the program.
    pub(super) fn ask(
        &mut self,
        process: &Process,
        program: ProgramFile,
        (runtime, clues): (Runtime, &Clues<'_>),
        requests: &mut Requests,
    ) -> Option<String> {
        if let Some(known) = self.known.get(&program) {
            return known.clone();
        }
        let who = (process.id, process.runs_since());
        if let Some((_, waiting)) = self.waiting.get_mut(&program) {
            if waiting.len() < MAX_WAITING {
                waiting.push(who);
            }
            return None;
        }
        let (files, variable) = (version_files(runtime, clues), version_variable(runtime));
        if (files.is_empty() && variable.is_none()) || self.waiting.len() >= MAX_ASKED {
            return None;
        }
        self.last_question += 1;
        requests.ask(Purpose::Version(self.last_question), Request::Version { via: process.via, files, variable });
        self.waiting.insert(program, (self.last_question, vec![who]));
        None
    }

    /// Takes up the answer to a question; `None` if the process went away meanwhile, or runs another program, which says
    /// nothing of this one. Returns those who have waited for the version and still run the program.
    pub(super) fn take(
        &mut self,
        question: u64,
        found: Option<Option<String>>,
        still_runs: impl Fn(&Waiting) -> bool,
    ) -> Vec<(ProcessId, String)> {
        let program = self.waiting.iter().find(|(_, (asked, _))| *asked == question);
        let Some(program) = program.map(|(program, _)| program.clone()) else { return Vec::new() };
        let Some((_, waiting)) = self.waiting.remove(&program) else { return Vec::new() };
        // The first one is the one through whom it was looked for.
        let is_its = waiting.first().is_some_and(&still_runs);
        let Some(version) = found.filter(|_| is_its) else { return Vec::new() };
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        self.known.insert(program, version.clone());
        let Some(version) = version else { return Vec::new() };
        waiting.into_iter().filter(still_runs).map(|(id, _)| (id, version.clone())).collect()
    }
}
