//! The generated code of a running process, without recording it.

use std::thread;
use std::time::Duration;

use super::options::CallGraph;
use super::sources::{ReadContext, Sources};
use crate::code::CodeMap;
use crate::process::procfs::ProcError;
use crate::process::{ProcessId, Processes, monotonic_now};
use crate::units::Pid;

/// How long dumps and maps are read that keep growing.
const READ_LIMIT: Duration = Duration::from_secs(10);
/// How long the runtime's unwritten records are looked for: a search of the whole memory that is searched at most
/// takes half a second.
const PEEK_LIMIT: Duration = Duration::from_secs(2);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// What a process has announced.
#[derive(Debug)]
pub struct GeneratedCode {
    /// Whose.
    pub process: ProcessId,
    /// Its code over time.
    pub map: CodeMap,
    /// What could not be read, in words.
    pub remarks: Vec<String>,
    /// Whether there is a dump or a perf map at all.
    pub announced: bool,
}

/// Reads what a process has announced up to now: its dumps, the records that it has not written yet, its perf map.
/// Takes some 10 ms for a dump of 10 MB, and up to 2 s more to find that a runtime holds nothing back.
///
/// # Errors
/// The process is gone, or may not be read.
pub fn generated_code(pid: Pid) -> Result<GeneratedCode, ProcError> {
    let mut processes = Processes::new();
    let id = processes.attach(pid)?;
    let process = processes.get(id).ok_or(ProcError::NoSuchProcess(pid))?;
    // Names are wanted, not rows.
    let mut sources = Sources::new(id, CallGraph::FramePointers);
    let mut remarks = Vec::new();
    let begun = monotonic_now();
    let context = ReadContext { now: begun, tsc: None, peek: true };
    sources.discover(process, context, &mut remarks);
    sources.look_for_perf_map(&mut remarks);
    let announced = sources.any();
    loop {
        let now = monotonic_now();
        let polled = sources.poll(now, true);
        remarks.extend(polled.remarks);
        let waited = Duration::from_nanos(now.0.saturating_sub(begun.0));
        if polled.more {
            if waited >= READ_LIMIT {
                remarks.push(format!("process {pid} announces code faster than it can be read; the newest is missing"));
                break;
            }
            continue;
        }
        if sources.known_until().is_none_or(|until| until >= begun) || waited >= PEEK_LIMIT {
            break;
        }
        thread::sleep(PAUSE);
    }
    sources.finish();
    Ok(GeneratedCode { process: id, map: sources.code.map, remarks, announced })
}
