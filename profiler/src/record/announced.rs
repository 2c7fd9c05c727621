//! What a running process has announced, found and read as a recording does it, but without one: the engine is driven
//! without a kernel, with no samples.

use std::num::NonZeroU32;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jitprof_common::units::Pid;
use jitprof_jitdump::ReaderOptions;
use jitprof_jitdump::code::CodeMap;

use crate::engine::border::{Order, Request};
use crate::engine::{CallGraph, Engine, EngineOptions, Input, InterpreterFrames, Output, Who};
use crate::kernel::{Arrivals, Waker};
use crate::process::procfs::ProcError;
use crate::process::{Errno, ProcessId, monotonic_now};
use crate::record::recorder::{RecordError, check_target};
use crate::record::workers::Workers;
use crate::symbol::{OpenFile, OpenFiles};

/// How long dumps and maps are read that keep growing.
const READ_LIMIT: Duration = Duration::from_secs(10);
/// How long the runtime's unwritten records are looked for: a search of the whole memory that is searched at most
/// takes half a second.
const PEEK_LIMIT: Duration = Duration::from_secs(2);

/// How much is read of a process' announcements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Its dumps are found and opened, for those who read the files themselves.
    Files,
    /// They are read, and what the runtime has not written yet, and its perf map.
    Code,
}

/// A dump that a process has mapped.
#[derive(Debug)]
pub struct MappedDump {
    /// Its path as the process sees it.
    pub path: String,
    /// The very file, open for reading.
    pub file: Arc<OpenFile>,
    /// How to read it: nothing is dropped but what is older than the process.
    pub options: ReaderOptions,
}

/// What a process has announced.
#[derive(Debug)]
pub struct ProcessCode {
    /// Whose.
    pub process: ProcessId,
    /// Its dumps, in the order in which they were opened.
    pub dumps: Vec<MappedDump>,
    /// Its code over time; empty if only files were asked for.
    pub map: CodeMap,
    /// What could not be read, in words.
    pub remarks: Vec<String>,
    /// Whether there is a dump or a perf map at all.
    pub is_announced: bool,
}

/// Finds what a process has announced up to now. Takes some 10 ms for a dump of 10 MB, and up to 2 s more to find that a
/// runtime holds nothing back.
///
/// # Errors
/// The process is gone, or may not be read; or the system refuses a thread.
pub fn announced(pid: Pid, depth: Depth) -> Result<ProcessCode, RecordError> {
    check_target(pid)?;
    let system = |what| move |source| RecordError::System { what, source };
    let files = Arc::new(OpenFiles::default());
    let wake = Waker::new().map_err(system("making an event descriptor"))?;
    let arrivals = Arrivals::of([], [wake.as_fd()]).map_err(system("epoll"))?;
    let workers = Workers::spawn(Arc::clone(&files), Arc::default(), [wake.clone(), wake.clone()], None)
        .map_err(system("starting a thread"))?;
    let (begun, started) = (monotonic_now(), Instant::now());
    let mut engine = Engine::new(options(), None, begun);
    engine.handle(Input::Order(Order::Follow { pids: vec![pid], awaited: false }));
    let mut remarks = Vec::new();
    loop {
        workers.check();
        workers.take_answers().into_iter().for_each(|(_, answer)| engine.handle(Input::Answer(answer)));
        engine.handle(Input::Turn(monotonic_now()));
        while let Some(output) = engine.poll_output() {
            match output {
                // The files are for somebody else to read.
                Output::Request(_, Request::Read { .. }) if depth == Depth::Files => {}
                Output::Request(id, request) => workers.ask(id, request),
                Output::Close(file) if depth == Depth::Code => files.close(file),
                _ => {}
            }
        }
        let is_known = match depth {
            Depth::Files => workers.is_idle(),
            Depth::Code => workers.is_idle() && engine.knows_until(pid).is_none_or(|until| until >= begun),
        };
        let waited = started.elapsed();
        if is_known || (workers.is_idle() && waited >= PEEK_LIMIT) {
            break;
        }
        if waited >= READ_LIMIT {
            remarks.push(format!("process {pid} announces code faster than it can be read; the newest is missing"));
            break;
        }
        let due = Duration::from_nanos(engine.wake_at().0.saturating_sub(monotonic_now().0));
        arrivals.wait(due, Duration::ZERO).map_err(system("epoll"))?;
    }
    let announced =
        engine.take_announced(pid).ok_or(RecordError::Target(ProcError::NoSuchProcess(pid, Errno::NONE)))?;
    remarks.extend(engine.remarks().iter().cloned());
    let dump = |(file, path, options): (_, Arc<str>, _)| {
        files.get(file).map(|file| MappedDump { path: path.to_string(), file, options })
    };
    Ok(ProcessCode {
        process: announced.process,
        dumps: announced.files.into_iter().filter_map(dump).collect(),
        map: announced.map,
        remarks,
        is_announced: announced.is_announced,
    })
}

/// Names are wanted, not rows.
fn options() -> EngineOptions {
    EngineOptions {
        who: Who::Chosen,
        inherit: false,
        frequency_hz: NonZeroU32::MIN,
        call_graph: CallGraph::FramePointers,
        tables: None,
        peek: true,
        read_runtime: false,
        interpreter: InterpreterFrames::default(),
        verify_names: false,
        labels_host: None,
        title: String::new(),
        walks_lists: false,
        bucket_ns: u64::MAX,
        own: None,
        code_mask: u64::MAX,
    }
}
