//! The dumps of a running process as files, for those who look at the files themselves.

use std::fs::File;

use crate::jitdump::{ClockContext, ReaderOptions, bias_of_path};
use crate::process::discover::{find_dumps, is_jitdump};
use crate::process::open::open_mapping;
use crate::process::procfs::ProcError;
use crate::process::{ProcessId, Processes, monotonic_now};
use crate::units::Pid;

/// Dumps of one process; as many as a recording follows.
const MAX_DUMPS: usize = 16;

/// A dump that a process has mapped.
#[derive(Debug)]
pub struct MappedDump {
    /// Its path as the process sees it.
    pub path: String,
    /// The very file, open for reading.
    pub file: File,
    /// How to read it: nothing is dropped but what is older than the process.
    pub options: ReaderOptions,
}

/// The dumps of a process.
#[derive(Debug)]
pub struct ProcessDumps {
    /// Whose.
    pub process: ProcessId,
    /// In the order of their mappings.
    pub dumps: Vec<MappedDump>,
    /// What could not be opened, in words.
    pub remarks: Vec<String>,
}

/// Finds a process' dumps as a recording does, by the mappings that mark them.
///
/// # Errors
/// The process is gone, or may not be read.
pub fn dumps_of(pid: Pid) -> Result<ProcessDumps, ProcError> {
    let mut processes = Processes::new();
    let id = processes.attach(pid)?;
    let process = processes.get(id).ok_or(ProcError::NoSuchProcess(pid))?;
    let mut found = ProcessDumps { process: id, dumps: Vec::new(), remarks: Vec::new() };
    for marker in find_dumps(process.space.live()) {
        let path = marker.mapping.path.to_string();
        let opened = match open_mapping(pid, &marker.mapping) {
            Ok(opened) => opened,
            Err(error) => {
                found.remarks.push(error.to_string());
                continue;
            }
        };
        // One whose header is still in its producer's buffer is empty.
        if opened.identity.len > 0 && !is_jitdump(&opened.file).unwrap_or(false) {
            found.remarks.push(format!("{path} is mapped like a jitdump and is none"));
        } else if found.dumps.len() >= MAX_DUMPS {
            found.remarks.push(format!("more than {MAX_DUMPS} dumps are mapped; {path} is left out"));
        } else {
            let clock = ClockContext { process_start: id.start, now: monotonic_now(), tsc: None };
            let options =
                ReaderOptions { clock: Some(clock), debug_bias: bias_of_path(&path), ..ReaderOptions::default() };
            found.dumps.push(MappedDump { path, file: opened.file, options });
        }
    }
    Ok(found)
}
