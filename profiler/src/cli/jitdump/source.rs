//! Which dumps are meant, opened.

use std::fs::File;
use std::io;
use std::path::Path;

use super::JitdumpError;
use crate::cli::say::say;
use crate::process::ProcessId;
use crate::process::discover::is_jitdump;
use crate::record::{Depth, MappedDump, announced};
use crate::regular_file::open_regular;
use jitprof_common::units::{FileOffset, Pid};
use jitprof_jitdump::{Inspection, Inspector, ParserOptions, ReaderOptions, RecordTail, Step, bias_of_path};

/// Bytes read between two looks at the file's header.
pub(super) const POLL_BYTES: u64 = 8 << 20;

/// A dump that is open for reading.
#[derive(Debug)]
pub(super) struct Source {
    /// The path as the user or its process names it.
    pub(super) path: String,
    pub(super) file: File,
    pub(super) options: ReaderOptions,
    /// Who writes it, if it was found by its process.
    pub(super) process: Option<ProcessId>,
}

impl Source {
    /// The file, or the dumps of the process; there is at least one. What is no dump is refused if that is `wanted`.
    pub(super) fn open(target: &str, wanted: bool) -> Result<Vec<Self>, JitdumpError> {
        let sources = match target.parse() {
            Ok(pid) => of_process(Pid(pid))?,
            Err(_) => vec![of_file(target)?],
        };
        for source in sources.iter().filter(|_| wanted) {
            let path = source.path.clone();
            let read = |error| JitdumpError::Read { path: path.clone(), source: error };
            if source.file.metadata().map_err(read)?.len() == 0 {
                return Err(JitdumpError::Empty { path });
            }
            if !is_jitdump(&source.file).map_err(read)? {
                return Err(JitdumpError::NoDump { path });
            }
        }
        Ok(sources)
    }

    /// The one dump, where the output can hold one only.
    pub(super) fn only(sources: &[Self]) -> Result<&Self, JitdumpError> {
        match sources {
            [only] => Ok(only),
            [first, ..] => {
                let pid = first.process.map_or(Pid(0), |process| process.pid);
                // The path in the process' root folder, by which it can be opened from here.
                let path = |source: &Self| format!("/proc/{pid}/root{}", source.path);
                Err(JitdumpError::Several { pid, paths: sources.iter().map(path).collect() })
            }
            [] => Err(JitdumpError::NothingMapped(Pid(0))),
        }
    }

    /// Goes through the whole dump.
    pub(super) fn walk(
        &self,
        options: ParserOptions,
        out: &mut impl FnMut(FileOffset, &Step<'_>),
    ) -> Result<RecordTail, JitdumpError> {
        let mut tail = self.tail(options)?;
        // What a growing dump gets meanwhile is left for another time.
        let end = self.file.metadata().map_err(|source| self.failed(source))?.len();
        while tail.poll(POLL_BYTES, out).map_err(|source| self.failed(source))?.more && tail.offset().0 < end {}
        Ok(tail)
    }

    /// A reader of it from its start.
    pub(super) fn tail(&self, options: ParserOptions) -> Result<RecordTail, JitdumpError> {
        Ok(RecordTail::new(self.file.try_clone().map_err(|source| self.failed(source))?, options))
    }

    /// Looks at all of it.
    pub(super) fn inspect(&self, places: usize) -> Result<Inspection, JitdumpError> {
        let mut inspector = Inspector::new(self.options.clone(), places);
        let tail = self.walk(ParserOptions::default(), &mut |at, step| inspector.step(at, step, &mut |_| {}))?;
        Ok(inspector.finish(tail.offset(), tail.file_len(), self.process.is_some()))
    }

    pub(super) fn failed(&self, source: io::Error) -> JitdumpError {
        JitdumpError::Read { path: self.path.clone(), source }
    }
}

fn of_process(pid: Pid) -> Result<Vec<Source>, JitdumpError> {
    let found = announced(pid, Depth::Files)?;
    for remark in &found.remarks {
        say!("jitprof: {remark}");
    }
    if found.dumps.is_empty() {
        return Err(JitdumpError::NothingMapped(pid));
    }
    let process = Some(found.process);
    let source = |MappedDump { path, file, options }| {
        // Another descriptor of the same open file: it is only read at offsets.
        let file = file.file.try_clone().map_err(|source| JitdumpError::Read { path: path.clone(), source })?;
        Ok(Source { path, file, options, process })
    };
    found.dumps.into_iter().map(source).collect()
}

fn of_file(target: &str) -> Result<Source, JitdumpError> {
    let path = target.to_owned();
    let read = |source| JitdumpError::Read { path: path.clone(), source };
    let Some(file) = open_regular(Path::new(target)).map_err(read)? else {
        return Err(JitdumpError::NotRegular { path });
    };
    let debug_bias = std::fs::canonicalize(target).ok().and_then(|path| bias_of_path(&path.to_string_lossy()));
    Ok(Source { path, file, options: ReaderOptions { debug_bias, ..ReaderOptions::default() }, process: None })
}
