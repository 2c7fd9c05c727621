//! What one process has announced: names for userspace, and rows for the kernel part.

use profiler_common::machine::Machine;

use crate::code::{CodeEvent, CodeLoad, CodeMap, CodeOrigin};
use crate::record::options::CallGraph;
use crate::units::MonoNs;
use crate::unwind::{JitSpace, RowTable, rows_of_code, rows_of_jit};

/// The code of one process.
#[derive(Debug)]
pub(super) struct Announced {
    pub(super) map: CodeMap,
    rows: Option<JitSpace>,
    /// Make rows from code bytes where there is no EH frame.
    from_code: bool,
    /// Since when this program runs: what was announced before is no code of its.
    since: MonoNs,
}

impl Announced {
    /// Nothing yet.
    pub(super) fn new(call_graph: CallGraph) -> Self {
        Self {
            map: CodeMap::new(),
            rows: (call_graph != CallGraph::FramePointers).then(JitSpace::default),
            from_code: call_graph == CallGraph::Auto,
            since: MonoNs(0),
        }
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

    /// A perf map has neither rules nor code, and repeats what a dump beside it says: its lines change no rows.
    fn load_rows(&mut self, load: &CodeLoad) {
        if load.origin == CodeOrigin::PerfMap || load.time < self.since {
            return;
        }
        let Some(space) = &mut self.rows else { return };
        if !space.knows(load.start.0, load.size, load.time) {
            space.load(load.start.0, load.size, load.time, rows_of(load, self.from_code));
        }
    }

    /// What a child made at `time` begins with.
    pub(super) fn fork(&self, time: MonoNs) -> Self {
        let mut rows = self.rows.clone();
        if let Some(rows) = &mut rows {
            rows.touch_all();
        }
        Self { map: self.map.fork(time), rows, from_code: self.from_code, since: self.since }
    }

    /// The process has become another program.
    pub(super) fn end_all(&mut self, time: MonoNs) {
        self.map.end_all(time);
        self.since = time;
        if let Some(rows) = &mut self.rows {
            rows.clear();
        }
    }
}

fn rows_of(load: &CodeLoad, from_code: bool) -> Option<RowTable> {
    let recorded = load.eh_frame.as_ref().and_then(|eh| rows_of_jit(Machine::NATIVE, load.start.0, load.size, eh));
    recorded.or_else(|| {
        let code = load.code.as_deref().filter(|_| from_code)?;
        rows_of_code(Machine::NATIVE, load.start.0, code)
    })
}
