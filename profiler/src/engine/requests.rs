//! What the engine has asked for, and its outputs in their order.

use std::collections::VecDeque;
use std::sync::Arc;

use jitprof_common::units::{Avma, MonoNs, Pid};
use rustc_hash::FxHashMap;

use crate::engine::announcements::DumpId;
use crate::engine::border::{MapPlace, Output, Request, RequestId};
use crate::engine::link::Link;
use crate::engine::unmade::Piece;
use crate::process::ProcessId;
use crate::process::open::FileId;

/// Remarks of one turn.
const MAX_REMARKS: usize = 256;

/// Outputs and requests that room is kept for, whatever there was in a storm.
const USUAL: usize = 1024;

/// What an answer is for.
#[derive(Debug)]
pub(super) enum Purpose {
    /// A process that is not known, or known from before events were lost.
    Process(Pid),
    /// The program that a process runs since a time.
    Program(ProcessId, MonoNs),
    /// The same, for a second look at its labels.
    Labels(ProcessId, MonoNs),
    /// Whether a process is there whose end the run waits for.
    Alive(ProcessId),
    /// Exits that were lost.
    Running,
    /// The link of a mapping.
    Link(ProcessId, Arc<Link>, MapPlace, FileId),
    /// A file of the table.
    File(FileId),
    /// What is in a file as a whole.
    Contents(FileId),
    /// A dump that a mapping marks.
    OpenDump(ProcessId, FileId, Arc<str>),
    /// A process' perf map.
    OpenPerfMap(ProcessId, FileId),
    /// What is new in a dump.
    Dump(ProcessId, DumpId),
    /// What is new in a perf map.
    PerfMap(ProcessId, FileId),
    /// Unwritten records of a dump.
    Peek(ProcessId, DumpId),
    /// Code that walks have met: the address that was met, and where what is read for it begins.
    Learn(ProcessId, Vec<(Avma, Avma)>),
    /// Code that has been learned: whether it is still the same.
    Check(ProcessId, Vec<Avma>),
    /// The tables of the runtime of the program that a process runs since a time.
    Runtime(ProcessId, MonoNs),
    /// What frames of the program are that a process runs since a time.
    Frames(ProcessId, MonoNs),
    /// Rows of code of a process.
    CodeRows(ProcessId, Vec<Piece>),
    /// The version of a program, by the number of the question.
    Version(u64),
    /// Processes in the groups of a selection.
    Members,
}

/// Outstanding requests, and outputs that nobody has taken yet.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// The time of the engine.
    pub(super) now: MonoNs,
    outputs: VecDeque<Output>,
    asked: FxHashMap<RequestId, Purpose>,
    next: u64,
    remarks: Vec<String>,
    /// Outstanding requests that announcements wait for.
    reading: usize,
    /// Outstanding requests for rows of code: whoever needs them waits by himself.
    making: usize,
    /// Outstanding requests that names wait for.
    identifying: usize,
    others: usize,
}

impl Requests {
    /// Asks for something.
    pub(super) fn ask(&mut self, purpose: Purpose, request: Request) -> RequestId {
        let id = RequestId(self.next);
        self.next += 1;
        *self.count_of(&purpose) += 1;
        self.asked.insert(id, purpose);
        self.outputs.push_back(Output::Request(id, request));
        id
    }

    /// What an answer is for; nothing if it was not asked for, or answered before.
    pub(super) fn answered(&mut self, request: RequestId) -> Option<Purpose> {
        let purpose = self.asked.remove(&request)?;
        *self.count_of(&purpose) -= 1;
        if self.asked.is_empty() && self.asked.capacity() > USUAL {
            self.asked.shrink_to(USUAL);
        }
        Some(purpose)
    }

    fn count_of(&mut self, purpose: &Purpose) -> &mut usize {
        match purpose {
            Purpose::OpenDump(..)
            | Purpose::OpenPerfMap(..)
            | Purpose::Dump(..)
            | Purpose::PerfMap(..)
            | Purpose::Peek(..)
            | Purpose::Runtime(..)
            | Purpose::Frames(..) => &mut self.reading,
            Purpose::CodeRows(..) => &mut self.making,
            Purpose::Process(_)
            | Purpose::Program(..)
            | Purpose::Link(..)
            | Purpose::File(_)
            | Purpose::Contents(_) => &mut self.identifying,
            Purpose::Labels(..)
            | Purpose::Alive(_)
            | Purpose::Running
            | Purpose::Learn(..)
            | Purpose::Check(..)
            | Purpose::Version(_)
            | Purpose::Members => &mut self.others,
        }
    }

    /// Whether announcements are being read.
    pub(super) fn is_reading(&self) -> bool {
        self.reading > 0
    }

    /// Whether rows of code are being made.
    pub(super) fn is_making(&self) -> bool {
        self.making > 0
    }

    /// Whether processes or files are being looked at.
    pub(super) fn is_identifying(&self) -> bool {
        self.identifying > 0
    }

    /// Has something done.
    pub(super) fn output(&mut self, output: Output) {
        self.outputs.push_back(output);
    }

    /// The next thing to be done.
    pub(super) fn take(&mut self) -> Option<Output> {
        let output = self.outputs.pop_front();
        if output.is_none() && self.outputs.capacity() > USUAL {
            self.outputs.shrink_to(USUAL);
        }
        output
    }

    /// Something went wrong that does not end the run.
    pub(super) fn remark(&mut self, text: String) {
        if self.remarks.len() < MAX_REMARKS {
            self.remarks.push(text);
        }
    }

    /// What went wrong since the last call.
    pub(super) fn take_remarks(&mut self) -> Vec<String> {
        std::mem::take(&mut self.remarks)
    }

    /// Whether anything that was asked for is not answered yet.
    pub(super) fn is_waiting(&self) -> bool {
        !self.asked.is_empty()
    }
}
