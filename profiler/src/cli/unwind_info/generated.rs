//! A process' generated code, from the dumps that it maps.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::engine::{RowOrigin, rows_of};
use crate::process::monotonic_now;
use crate::profile::printable;
use crate::record::{Depth, MappedDump, RecordError, announced};
use jitprof_common::units::Pid;
use jitprof_jitdump::code::{CodeEvent, CodeLoad};
use jitprof_jitdump::{DumpTail, ReaderOptions};
use jitprof_unwind::{JitSpace, RowTable, RowTableBuilder};

/// How long a dump is read that keeps growing.
const LIMIT: Duration = Duration::from_secs(10);

/// Functions of one dump by how their rows came to be.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct DumpReport {
    /// The path as the process sees it.
    pub(super) path: String,
    /// Functions that are there now: not replaced, and not moved away.
    pub(super) functions: u64,
    /// Functions with rows by the EH frame that the runtime recorded.
    pub(super) recorded: u64,
    /// Functions with rows by their code bytes.
    pub(super) from_code: u64,
    /// Walked by frame pointer.
    pub(super) without: u64,
    /// Why it could not be read, or not to its end.
    pub(super) trouble: Option<String>,
}

/// What a process' dumps say about its code.
#[derive(Debug, Default)]
pub(super) struct Generated {
    pub(super) dumps: Vec<DumpReport>,
    /// Rows of all functions.
    pub(super) table: RowTable,
    /// Functions by their start: end, and name.
    functions: BTreeMap<u64, (u64, String)>,
}

impl Generated {
    /// Reads every dump that the process maps, up to its present end. What the runtime has not written yet is not in.
    pub(super) fn read(pid: Pid) -> Result<Self, RecordError> {
        let mut generated = Self::default();
        let mut builder = RowTableBuilder::default();
        for dump in announced(pid, Depth::Files)?.dumps {
            let mut reading = Reading::default();
            let trouble = reading.read(&dump).err();
            let mut report = DumpReport {
                path: printable(&dump.path).into_owned(),
                trouble: trouble.or(reading.trouble),
                ..DumpReport::default()
            };
            for (start, end, rows) in reading.space.functions() {
                // Unloaded code has no name any more.
                let Some((origin, name)) = reading.known.remove(&start) else { continue };
                report.functions += 1;
                let count = match origin {
                    RowOrigin::Recorded => &mut report.recorded,
                    RowOrigin::FromCode => &mut report.from_code,
                    RowOrigin::None => &mut report.without,
                };
                *count += 1;
                if let Some(rows) = rows {
                    builder.add_table(&rows);
                }
                generated.functions.insert(start, (end, name));
            }
            generated.dumps.push(report);
        }
        generated.table = builder.finish().0;
        Ok(generated)
    }

    /// The code in a range of addresses: every function, cut to it; ascending.
    pub(super) fn code_in(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let before = self.functions.range(..range.start).next_back();
        let mut code: Vec<Range<u64>> = Vec::new();
        for (start, (end, _)) in before.into_iter().chain(self.functions.range(range.clone())) {
            // Two dumps may claim the same bytes.
            let after = code.last().map_or(range.start, |last| last.end);
            let part = (*start).max(after)..(*end).min(range.end);
            if part.start < part.end {
                code.push(part);
            }
        }
        code
    }

    /// The function at an address.
    pub(super) fn name(&self, address: u64) -> Option<String> {
        let (_, (end, name)) = self.functions.range(..=address).next_back()?;
        (address < *end).then(|| printable(name).into_owned())
    }
}

/// One dump being read.
#[derive(Default)]
struct Reading {
    space: JitSpace,
    /// By start: how its rows came to be, and its name.
    known: HashMap<u64, (RowOrigin, String)>,
    trouble: Option<String>,
}

impl Reading {
    fn read(&mut self, dump: &MappedDump) -> Result<(), String> {
        let options = ReaderOptions { keep_code: true, ..dump.options.clone() };
        let file = dump.file.file.try_clone().map_err(|error| error.to_string())?;
        let mut tail = DumpTail::new(file, options);
        let deadline = Instant::now() + LIMIT;
        while tail.poll(monotonic_now, &mut |event| self.apply(&event)).map_err(|error| error.to_string())?.more {
            if Instant::now() >= deadline {
                self.trouble = Some("not read to its end: it grows faster than it can be read".to_owned());
                break;
            }
        }
        Ok(())
    }

    fn apply(&mut self, event: &CodeEvent) {
        match event {
            CodeEvent::Load(load) => self.load(load),
            CodeEvent::Move { time, old_start, new_start, size } => {
                self.space.relocate(old_start.0, new_start.0, *size, *time);
                if let Some(known) = self.known.remove(&old_start.0) {
                    self.known.insert(new_start.0, known);
                }
            }
            CodeEvent::Unload { time, start, size } => {
                self.space.load(start.0, *size, *time, None);
                self.known.remove(&start.0);
            }
            CodeEvent::Inline(_) | CodeEvent::Close { .. } => {}
        }
    }

    fn load(&mut self, load: &CodeLoad) {
        let (origin, rows) = rows_of(load, true, false);
        self.space.load(load.start.0, load.size, load.time, rows);
        self.known.insert(load.start.0, (origin, load.name.clone()));
    }
}
