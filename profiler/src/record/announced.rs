//! What one process has announced: names for userspace, and rows for the kernel part.

use std::ffi::OsStr;
use std::path::Path;

use profiler_common::machine::Machine;

use crate::code::{CodeEvent, CodeLoad, CodeMap, CodeOrigin};
use crate::record::bounds::CodeBounds;
use crate::record::options::CallGraph;
use crate::units::MonoNs;
use crate::unwind::{JitSpace, RowTable, Templates, rows_of_called_code, rows_of_code, rows_of_jit};

/// The code of one process.
#[derive(Debug)]
pub(super) struct Announced {
    pub(super) map: CodeMap,
    rows: Option<JitSpace>,
    /// Recorded code that there may be copies of.
    templates: Templates,
    /// Make rows from code bytes where there is no EH frame.
    from_code: bool,
    /// All code begins with a return address at the stack pointer, also what is jumped to: Erlang's.
    called: bool,
    /// Since when this program runs: what was announced before is no code of its.
    since: MonoNs,
}

impl Announced {
    /// Nothing yet.
    pub(super) fn new(call_graph: CallGraph) -> Self {
        Self {
            map: CodeMap::new(),
            rows: (call_graph != CallGraph::FramePointers).then(JitSpace::default),
            templates: Templates::default(),
            from_code: call_graph == CallGraph::Auto,
            called: false,
            since: MonoNs(0),
        }
    }

    /// Takes up as much as this from now on.
    pub(super) fn set_bounds(&mut self, bounds: CodeBounds) {
        self.map.set_limit(bounds.map_bytes);
        if let Some(rows) = &mut self.rows {
            rows.set_limit(bounds.functions);
        }
    }

    /// Memory, estimated.
    pub(super) fn bytes(&self) -> usize {
        self.map.bytes() + self.rows.as_ref().map_or(0, JitSpace::bytes)
    }

    /// Whether something has found no room.
    pub(super) fn is_full(&self) -> bool {
        self.map.stats().dropped_full > 0 || self.rows.as_ref().is_some_and(JitSpace::is_full)
    }

    /// Which runtime it is, by its executable: only where it is known, more can be said of code bytes.
    pub(super) fn is_run_by(&mut self, executable: Option<&Path>) {
        let name = executable.and_then(Path::file_name).map(OsStr::as_encoded_bytes).unwrap_or_default();
        self.called = name.starts_with(b"beam.");
    }

    /// Whether the code bytes are of use.
    pub(super) fn wants_code(&self) -> bool {
        self.from_code && self.rows.is_some()
    }

    /// Rows of this process' code, if rows are wanted at all.
    pub(super) fn rows(&self) -> Option<&JitSpace> {
        self.rows.as_ref()
    }

    /// The same, to publish what has changed.
    pub(super) fn rows_mut(&mut self) -> Option<&mut JitSpace> {
        self.rows.as_mut()
    }

    /// Takes up one announcement.
    pub(super) fn apply(&mut self, event: CodeEvent) {
        match &event {
            CodeEvent::Load(load) => self.load_rows(load),
            CodeEvent::Move { time, old_start, new_start, size } if *time >= self.since => {
                if let Some(rows) = &mut self.rows {
                    rows.relocate(old_start.0, new_start.0, *size, *time);
                }
            }
            CodeEvent::Unload { time, start, size } if *time >= self.since => {
                if let Some(rows) = &mut self.rows {
                    rows.load(start.0, *size, *time, None);
                }
            }
            CodeEvent::Move { .. } | CodeEvent::Unload { .. } | CodeEvent::Inline(_) | CodeEvent::Close { .. } => {}
        }
        self.map.apply(event);
    }

    /// A perf map has neither rules nor code, and repeats what a dump beside it says: its lines only end what was made
    /// of the code that they named before.
    fn load_rows(&mut self, load: &CodeLoad) {
        let Some(space) = &mut self.rows else { return };
        if load.origin == CodeOrigin::PerfMap {
            space.forget_unrecorded(load.start.0, load.size);
            return;
        }
        if load.time < self.since || space.knows(load.start.0, load.size, load.time) {
            return;
        }
        let rows = rows_of(load, self.from_code, self.called);
        if let (Some(rows), Some(code)) = (&rows, load.code.as_deref()) {
            self.templates.add(load.start.0, code, rows);
        }
        space.load(load.start.0, load.size, load.time, rows);
    }

    /// Recorded code that there may be copies of.
    pub(super) fn templates(&self) -> &Templates {
        &self.templates
    }

    /// Takes up rows for code that nothing has recorded; false if something has.
    pub(super) fn load_unrecorded(&mut self, start: u64, size: u64, rows: Option<RowTable>) -> bool {
        self.rows.as_mut().is_some_and(|space| space.load_unrecorded(start, size, rows))
    }

    /// The code that rows were made for is there no more.
    pub(super) fn forget_unrecorded(&mut self, start: u64, size: u64) {
        if let Some(space) = &mut self.rows {
            space.forget_unrecorded(start, size);
        }
    }

    /// What a child made at `time` begins with.
    pub(super) fn fork(&self, time: MonoNs) -> Self {
        let mut rows = self.rows.clone();
        if let Some(rows) = &mut rows {
            rows.touch_all();
        }
        let templates = self.templates.clone();
        Self {
            map: self.map.fork(time),
            rows,
            templates,
            from_code: self.from_code,
            called: self.called,
            since: self.since,
        }
    }

    /// The process has become another program.
    pub(super) fn end_all(&mut self, time: MonoNs) {
        self.map.end_all(time);
        self.since = time;
        self.templates = Templates::default();
        if let Some(rows) = &mut self.rows {
            rows.clear();
        }
    }
}

fn rows_of(load: &CodeLoad, from_code: bool, called: bool) -> Option<RowTable> {
    let recorded = load.eh_frame.as_ref().and_then(|eh| rows_of_jit(Machine::NATIVE, load.start.0, load.size, eh));
    recorded.or_else(|| {
        let code = load.code.as_deref().filter(|_| from_code)?;
        let rows = if called { rows_of_called_code } else { rows_of_code };
        rows(Machine::NATIVE, load.start.0, code)
    })
}
