//! The generated code of one process: names for userspace, and rows for the BPF program.

use std::ops::Range;

use jitprof_common::machine::Machine;
use jitprof_common::row::{CfaKind, FpKind, Rule};
use jitprof_common::units::MonoNs;
use jitprof_jitdump::code::{CodeEvent, CodeHit, CodeLoad, CodeMap, CodeOrigin, SourceRows};
use jitprof_unwind::{
    JitSpace, RecordedFrames, RowTable, RowTableBuilder, Templates, rows_of_called_code, rows_of_code, rows_of_jit,
};
use serde_bytes::ByteBuf;

use crate::engine::border::CodePieces;
use crate::engine::options::CallGraph;
use crate::engine::runtime_tables::Change;
use crate::engine::unmade::{Piece, Unmade};
use crate::runtime::{FoundCode, FoundFrame, FoundRows};

/// Bounds of one process' generated code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CodeBounds {
    /// Memory of the code map, in bytes.
    pub(super) map_bytes: usize,
    /// Functions with unwind rows.
    pub(super) functions: usize,
}

impl CodeBounds {
    /// Of a continuous recording. A large Node or JVM announces 20,000 to 50,000 functions, and 120 bytes of map and
    /// 200 of rows for each.
    pub(super) const CONTINUOUS: Self = Self { map_bytes: 24 << 20, functions: 1 << 16 };
    /// What every process may have even when all together have too much.
    pub(super) const LEAST: Self = Self { map_bytes: 2 << 20, functions: 1 << 13 };
}

/// How generated code is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CodeOptions {
    /// Keep rows at all.
    pub(super) rows: bool,
    /// Make rows from code bytes where there is no EH frame.
    pub(super) from_code: bool,
    /// How much is kept; nothing: as much as a run that ends may keep.
    pub(super) bounds: Option<CodeBounds>,
}

impl CodeOptions {
    /// For a way of walking stacks.
    pub(super) fn of(call_graph: CallGraph) -> Self {
        Self { rows: call_graph != CallGraph::FramePointers, from_code: call_graph == CallGraph::Auto, bounds: None }
    }
}

/// The code of one process.
#[derive(Debug)]
pub(super) struct GeneratedCode {
    pub(super) map: CodeMap,
    /// What the runtime's tables list, where a dump names the code and the two are compared.
    compared: Option<Box<CodeMap>>,
    rows: Option<JitSpace>,
    /// Code whose rows are made elsewhere, and that is not in `rows` until they come.
    unmade: Unmade,
    /// Recorded code that there may be copies of.
    templates: Templates,
    from_code: bool,
    /// It is Erlang's: all code begins with a return address at the stack pointer, also what is jumped to.
    is_of_beam: bool,
    /// Since when this program runs: what was announced before is no code of its.
    since: MonoNs,
    /// It takes up less than others, because it has announced too much.
    is_bounded: bool,
    /// That some of it found no room has been said.
    refusal_said: bool,
    /// Functions that found no room, as far as that has been looked at.
    refused: u64,
}

impl GeneratedCode {
    /// Nothing yet.
    pub(super) fn new(options: CodeOptions) -> Self {
        let mut code = Self {
            map: CodeMap::new(),
            compared: None,
            rows: options.rows.then(JitSpace::default),
            unmade: Unmade::default(),
            templates: Templates::default(),
            from_code: options.from_code,
            is_of_beam: false,
            since: MonoNs(0),
            is_bounded: false,
            refusal_said: false,
            refused: 0,
        };
        if let Some(bounds) = options.bounds {
            code.set_bounds(bounds);
        }
        code
    }

    /// Takes up as much as this from now on.
    pub(super) fn set_bounds(&mut self, bounds: CodeBounds) {
        self.map.set_limit(bounds.map_bytes);
        if let Some(compared) = &mut self.compared {
            compared.set_limit(bounds.map_bytes);
        }
        if let Some(rows) = &mut self.rows {
            rows.set_limit(bounds.functions);
        }
        self.is_bounded = bounds == CodeBounds::LEAST;
    }

    /// Whether it takes up less than others.
    pub(super) fn is_bounded(&self) -> bool {
        self.is_bounded
    }

    /// Memory, estimated, but for [what awaits its rows](Self::awaiting_bytes): that has bounds of its own, and is gone soon.
    pub(super) fn bytes(&self) -> usize {
        let compared = self.compared().map_or(0, CodeMap::bytes);
        self.map.bytes() + compared + self.rows.as_ref().map_or(0, JitSpace::bytes)
    }

    /// Whether something has found no room, which has not been said yet.
    pub(super) fn refuses_first(&mut self) -> bool {
        let full = self.map.stats().dropped_full > 0 || self.rows.as_ref().is_some_and(JitSpace::is_full);
        full && !std::mem::replace(&mut self.refusal_said, true)
    }

    /// Whether further functions have found no room.
    pub(super) fn refuses_more(&mut self) -> bool {
        let refused = self.map.stats().dropped_full;
        std::mem::replace(&mut self.refused, refused) < refused
    }

    /// Whether its functions take up more than half of the room that they have.
    pub(super) fn is_half_full(&self) -> bool {
        self.map.is_half_full()
    }

    /// No sample asks for functions that ended before.
    pub(super) fn keep_from(&mut self, time: MonoNs) {
        self.map.keep_from(time);
        if let Some(compared) = &mut self.compared {
            compared.keep_from(time);
        }
    }

    /// Which runtime it is, by its executable: only where it is known, more can be said of code bytes.
    pub(super) fn is_run_by(&mut self, exe: Option<&str>) {
        let name = exe.and_then(|exe| exe.rsplit('/').next()).unwrap_or_default();
        self.is_of_beam = name.starts_with("beam.");
    }

    /// Whether the executable is Erlang's.
    pub(super) fn is_of_beam(&self) -> bool {
        self.is_of_beam
    }

    /// Whether the code bytes are of use.
    pub(super) fn wants_code(&self) -> bool {
        self.from_code && self.rows.is_some()
    }

    /// Whether anything has been announced.
    pub(super) fn is_known(&self) -> bool {
        self.map.living() + self.map.ended() > 0
    }

    /// Rows of this process' code, if rows are wanted at all.
    pub(super) fn rows(&self) -> Option<&JitSpace> {
        self.rows.as_ref()
    }

    /// The same, to publish what has changed.
    pub(super) fn rows_mut(&mut self) -> Option<&mut JitSpace> {
        self.rows.as_mut()
    }

    /// Whether the BPF program, at a time, unwound the code at an address as it should have; see [`JitSpace::was_true`]. Of code
    /// whose rows are awaited it had none.
    pub(super) fn was_true(&self, address: u64, time: MonoNs) -> bool {
        let Some(rows) = &self.rows else { return true };
        !self.unmade.covers(address, time) && rows.was_true(address, time)
    }

    /// Whether rows are awaited of code that was at an address at a time.
    pub(super) fn awaits_rows(&self, address: u64, time: MonoNs) -> bool {
        self.unmade.covers(address, time)
    }

    /// Another reading of the runtime's tables is taken up: a little of its code has rows at once, and of the rest so much may
    /// wait.
    pub(super) fn begin_reading(&mut self, room: usize) {
        self.unmade.begin_reading(room);
    }

    /// Memory of code whose rows are awaited, and of what is ordered.
    pub(super) fn awaiting_bytes(&self) -> usize {
        self.unmade.bytes()
    }

    /// The next part of the code whose rows are to be made elsewhere, if it is time for it.
    pub(super) fn next_order(&mut self) -> Option<Vec<(Piece, ByteBuf)>> {
        self.unmade.next_order()
    }

    /// Takes up the rows of a part, of as many pieces as have been looked at, where the same code is there still. Whose code is
    /// not looked at has spent what he may, and his samples wait for no more of it. Returns where there is code whose rows
    /// nobody has made, or that has found no room.
    pub(super) fn take_made(&mut self, pieces: &[Piece], made: Vec<Option<RowTable>>) -> Vec<u64> {
        self.unmade.end_order();
        let (mut left, mut is_refused) = (Vec::new(), false);
        let made = made.into_iter().map(Some).chain(std::iter::repeat(None));
        for (piece, rows) in pieces.iter().zip(made) {
            if self.unmade.take(piece) {
                let is_made = rows.is_some();
                let has_room = self.load_made(piece, rows.flatten());
                is_refused |= !is_made;
                left.extend((!is_made || !has_room).then_some(piece.start));
            }
        }
        if is_refused {
            for piece in self.unmade.give_up_waiting() {
                self.load_made(&piece, None);
                left.push(piece.start);
            }
        }
        left
    }

    /// Returns whether there was room.
    fn load_made(&mut self, piece: &Piece, rows: Option<RowTable>) -> bool {
        let Some(space) = &mut self.rows else { return false };
        space.load_found(piece.start, u64::from(piece.size), piece.since, rows);
        space.has(piece.start, piece.since)
    }

    /// Nobody has a use for rows that are awaited.
    pub(super) fn cancel_rows(&mut self) {
        self.unmade.cancel();
    }

    /// Takes up one announcement.
    pub(super) fn apply(&mut self, event: CodeEvent) {
        match &event {
            CodeEvent::Load(load) => self.load_rows(load),
            CodeEvent::Move { time, old_start, new_start, size } if *time >= self.since => {
                self.unmade.make_place(&range_of(new_start.0, *size), *time);
                if let Some(rows) = &mut self.rows {
                    rows.relocate(old_start.0, new_start.0, *size, *time);
                }
            }
            CodeEvent::Unload { time, start, size } if *time >= self.since => {
                self.unmade.make_place(&range_of(start.0, *size), *time);
                if let Some(rows) = &mut self.rows {
                    rows.load(start.0, *size, *time, None);
                }
            }
            CodeEvent::Move { .. } | CodeEvent::Unload { .. } | CodeEvent::Inline(_) | CodeEvent::Close { .. } => {}
        }
        self.map.apply(event);
    }

    /// Takes up the names of one announcement, of code that is unwound by something else.
    pub(super) fn apply_names(&mut self, event: CodeEvent) {
        self.map.apply(event);
    }

    /// Code in a part of memory is unwound by something else: what rows it has were never true.
    pub(super) fn remove_rows(&mut self, range: &Range<u64>) {
        self.unmade.make_place(range, MonoNs(u64::MAX));
        if let Some(rows) = &mut self.rows {
            rows.remove_within(range);
        }
    }

    /// Takes up code that was found in the runtime's own tables.
    pub(super) fn apply_found(&mut self, change: Change) {
        match change {
            Change::Load(mut found, since) => {
                if since >= self.since {
                    self.load_found(&mut found, since);
                }
                self.map.apply(load_of(found, since));
            }
            Change::Inline(inline) => self.apply(CodeEvent::Inline(inline)),
            Change::Unload { time, start, size } => {
                self.unmade.make_place(&range_of(start.0, size), time);
                if let Some(space) = self.rows.as_mut().filter(|_| time >= self.since) {
                    space.load_found(start.0, size, time, None);
                }
                self.map.apply(CodeEvent::Unload { time, start, size });
            }
            Change::Register(found) => self.register(&found),
            Change::Unregister { start, size } => self.remove_unrecorded(start.0, size),
        }
    }

    /// Takes up how code is unwound that was found. Where the code itself shows that, and there is much of it, its rows come
    /// later; what finds no room until then is walked by its frame pointer, and read where it is met.
    fn load_found(&mut self, found: &mut FoundCode, since: MonoNs) {
        let Some(space) = &mut self.rows else { return };
        let (start, size) = (found.start.0, u64::from(found.size));
        if !self.unmade.make_place(&range_of(start, size), since) {
            return;
        }
        if let FoundFrame::Code(code) = &mut found.frame
            && !self.unmade.makes_at_once(code.len())
        {
            let (code, piece) = (std::mem::take(code), Piece { start, size: found.size, since });
            if !self.is_bounded && space.vacate(start, size, since) && self.unmade.add(piece, code) {
                return;
            }
            found.frame = FoundFrame::Unknown;
        }
        space.load_found(start, size, since, rows_of_found(found, self.is_of_beam));
    }

    /// Takes up rows of code that nothing else says anything of.
    fn register(&mut self, found: &FoundRows) {
        let size = u64::from(found.size);
        let frames = RecordedFrames { bytes: &found.bytes, section_start: found.section_start };
        let rows = rows_of_jit(Machine::NATIVE, found.start.0, size, frames);
        if rows.is_some() {
            self.load_unrecorded(found.start.0, size, rows);
        }
    }

    /// From now on what the tables list is kept beside the code, to be compared with it.
    pub(super) fn compare(&mut self) {
        let bytes = CodeBounds::CONTINUOUS.map_bytes;
        self.compared.get_or_insert_with(|| Box::new(CodeMap::with_limit(bytes)));
    }

    /// What the tables list, if that is kept beside the code.
    pub(super) fn compared(&self) -> Option<&CodeMap> {
        self.compared.as_deref()
    }

    /// Takes up what the tables list beside the code; gives it back if that is not wanted.
    pub(super) fn apply_compared(&mut self, change: Change) -> Option<Change> {
        let Some(compared) = &mut self.compared else { return Some(change) };
        compared.apply(match change {
            // Only names are compared.
            Change::Load(found, since) => load_of(FoundCode { lines: None, ..found }, since),
            Change::Inline(_) | Change::Register(_) | Change::Unregister { .. } => return None,
            Change::Unload { time, start, size } => CodeEvent::Unload { time, start, size },
        });
        None
    }

    /// Whether code that is there since a time has frames of one known size.
    pub(super) fn is_sized(&self, start: u64, since: MonoNs) -> bool {
        self.rows.as_ref().is_some_and(|space| space.is_sized(start, since))
    }

    /// Whether code that is there since a time has rows.
    fn has_rows(&self, start: u64, since: MonoNs) -> bool {
        self.rows.as_ref().is_some_and(|space| space.has_rows(start, since))
    }

    /// Whether code that is there since a time has rows, or awaits some.
    pub(super) fn will_have_rows(&self, start: u64, since: MonoNs) -> bool {
        self.has_rows(start, since) || self.unmade.has(start, since)
    }

    /// Whether rows of code that the runtime's tables list would be taken up: it has its place, or there is room for it.
    pub(super) fn has_place_for(&self, hit: &CodeHit<'_>) -> bool {
        let has_place = |rows: &JitSpace| rows.has(hit.start().0, hit.since()) || !rows.is_full();
        self.rows.as_ref().is_some_and(has_place)
    }

    /// Takes up what the code itself shows, which is there since a time: more exactly how it is unwound, or, if it had found no
    /// room, all that is known of it. Returns whether anything is known by that.
    pub(super) fn take_shown(&mut self, (start, size): (u64, u64), since: MonoNs, rows: Option<RowTable>) -> bool {
        let is_free = since >= self.since && !self.unmade.reaches_into(&range_of(start, size));
        let Some(space) = &mut self.rows else { return false };
        if space.has(start, since) {
            return rows.is_some_and(|rows| space.refine(start, since, &rows));
        }
        if is_free {
            space.load_found(start, size, since, rows);
        }
        space.has(start, since)
    }

    /// A perf map has neither rules nor code, and repeats what a dump beside it says: its lines only end what was made
    /// of the code that they named before.
    fn load_rows(&mut self, load: &CodeLoad) {
        let Some(space) = &mut self.rows else { return };
        if load.origin == CodeOrigin::PerfMap {
            space.remove_unrecorded(load.start.0, load.size);
            return;
        }
        if load.time < self.since || space.knows(load.start.0, load.size, load.time) {
            return;
        }
        self.unmade.make_place(&range_of(load.start.0, load.size), load.time);
        let (_, rows) = rows_of(load, self.from_code, self.is_of_beam);
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
        let is_free = !self.unmade.reaches_into(&range_of(start, size));
        self.rows.as_mut().filter(|_| is_free).is_some_and(|space| space.load_unrecorded(start, size, rows))
    }

    /// The code that rows were made for is there no more.
    pub(super) fn remove_unrecorded(&mut self, start: u64, size: u64) {
        if let Some(space) = &mut self.rows {
            space.remove_unrecorded(start, size);
        }
    }

    /// Evicts code that ended before `time`.
    pub(super) fn evict_before(&mut self, time: MonoNs) {
        self.map.prune_before(time);
        if let Some(compared) = &mut self.compared {
            compared.prune_before(time);
        }
        if let Some(rows) = &mut self.rows {
            rows.evict_before(time);
        }
    }

    /// Memory of what a child begins with, estimated.
    pub(super) fn inherited_bytes(&self) -> usize {
        self.map.bytes() + self.rows.as_ref().map_or(0, JitSpace::bytes)
    }

    /// What a child made at `time` begins with.
    pub(super) fn fork(&self, time: MonoNs) -> Self {
        let mut rows = self.rows.clone();
        if let Some(rows) = &mut rows {
            rows.touch_all();
        }
        Self {
            map: self.map.fork(time),
            // A child's tables are read anew.
            compared: None,
            rows,
            unmade: Unmade::default(),
            templates: self.templates.clone(),
            from_code: self.from_code,
            is_of_beam: self.is_of_beam,
            since: self.since,
            is_bounded: self.is_bounded,
            refusal_said: self.refusal_said,
            refused: self.refused,
        }
    }

    /// What was published of it is there no more.
    pub(super) fn withdrawn(&mut self) {
        if let Some(rows) = &mut self.rows {
            rows.touch_all();
        }
    }

    /// The process has become another program.
    pub(super) fn end_all(&mut self, time: MonoNs) {
        self.map.end_all(time);
        self.compared = None;
        self.since = time;
        self.unmade.cancel();
        self.templates = Templates::default();
        if let Some(rows) = &mut self.rows {
            rows.clear();
        }
    }
}

fn range_of(start: u64, size: u64) -> Range<u64> {
    start..start.saturating_add(size)
}

/// What is found in a runtime's tables, as it is announced. What was inlined into it is announced apart.
fn load_of(found: FoundCode, since: MonoNs) -> CodeEvent {
    CodeEvent::Load(CodeLoad {
        time: since,
        start: found.start,
        size: u64::from(found.size),
        name: found.name,
        code_index: u64::from(found.number),
        lines: found.lines.map(|lines| SourceRows::of(lines.files, lines.rows)).unwrap_or_default(),
        unit: None,
        eh_frame: None,
        code: None,
        origin: CodeOrigin::Runtime,
    })
}

/// Rows of code whose frames are known; before they are complete there is only the return address. `called` as in [`rows_of`].
fn rows_of_found(found: &FoundCode, called: bool) -> Option<RowTable> {
    let frame = &found.frame;
    if Machine::NATIVE != Machine::X86_64 && !matches!(frame, FoundFrame::Code(_) | FoundFrame::Recorded { .. }) {
        return None;
    }
    let (start, size) = (found.start.0, u64::from(found.size));
    let end = start.checked_add(size)?;
    let mut builder = RowTableBuilder::default();
    match *frame {
        FoundFrame::Unknown => return None,
        FoundFrame::Code(ref code) => {
            let of_code = if called { rows_of_called_code } else { rows_of_code };
            return of_code(Machine::NATIVE, start, code);
        }
        FoundFrame::Recorded { ref bytes, section_start } => {
            return rows_of_jit(Machine::NATIVE, start, size, RecordedFrames { bytes, section_start });
        }
        FoundFrame::None => builder.add(start..end, [(start, Rule::ENTRY)]),
        FoundFrame::Outermost => builder.add(start..end, [(start, Rule::OUTERMOST)]),
        FoundFrame::Interpreter => builder.add(start..end, [(start, Rule::INTERPRETER)]),
        FoundFrame::OfCaller => builder.add(start..end, [(start, Rule::FRAME_POINTER)]),
        FoundFrame::Fixed { bytes } => builder.add(start..end, [(start, whole_frame(bytes))]),
        FoundFrame::Sized { bytes, complete_from } => {
            let whole_from = start.saturating_add(u64::from(complete_from));
            builder.add(start..end, [(start, Rule::ENTRY), (whole_from, whole_frame(bytes))]);
        }
    }
    Some(builder.finish().0)
}

/// The rule of a frame of so many bytes that is complete.
fn whole_frame(bytes: u32) -> Rule {
    Rule::with_cfa(CfaKind::Sp, i64::from(bytes)).with_fp(FpKind::AtCfa, -16)
}

impl CodePieces {
    /// The rows of each piece, where its code shows any.
    pub fn rows(&self) -> Vec<Option<RowTable>> {
        let of_code = if self.is_called { rows_of_called_code } else { rows_of_code };
        self.pieces.iter().map(|(start, code)| of_code(Machine::NATIVE, start.0, code)).collect()
    }
}

/// How a function's rows came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOrigin {
    /// From the EH frame that its runtime recorded.
    Recorded,
    /// From its code bytes.
    FromCode,
    /// It has none: it is walked by frame pointer.
    None,
}

/// The rows of a function: from its EH frame, or else, if that is wanted, from its code bytes; `called` if a return
/// address is at the stack pointer wherever it begins.
pub fn rows_of(load: &CodeLoad, from_code: bool, called: bool) -> (RowOrigin, Option<RowTable>) {
    let recorded = load.eh_frame.as_ref().and_then(|eh| {
        let frames = RecordedFrames { bytes: &eh.bytes, section_start: eh.section_start };
        rows_of_jit(Machine::NATIVE, load.start.0, load.size, frames)
    });
    if let Some(rows) = recorded {
        return (RowOrigin::Recorded, Some(rows));
    }
    let of_code = if called { rows_of_called_code } else { rows_of_code };
    let code = load.code.as_deref().filter(|_| from_code);
    match code.and_then(|code| of_code(Machine::NATIVE, load.start.0, code)) {
        Some(rows) => (RowOrigin::FromCode, Some(rows)),
        None => (RowOrigin::None, None),
    }
}

#[cfg(test)]
mod tests {
    use jitprof_common::units::Avma;

    use super::*;

    #[test]
    fn what_is_found_has_rows_for_as_long_as_it_has_its_name() {
        let mut code = GeneratedCode::new(CodeOptions::of(CallGraph::Auto));
        let frame = FoundFrame::Sized { bytes: 32, complete_from: 8 };
        let found = FoundCode {
            start: Avma(0x1000),
            size: 64,
            name: "f".to_owned(),
            frame,
            number: 0,
            lines: None,
            registered: None,
        };
        code.apply_found(Change::Load(found, MonoNs(100_000_000)));
        let has_row =
            |code: &GeneratedCode, address, time| code.rows().unwrap().row_at(address, MonoNs(time)).is_some();
        assert_eq!([99_999_999, 100_000_000].map(|time| has_row(&code, 0x1008, time)), [false, true]);
        code.apply_found(Change::Unload { time: MonoNs(200_000_000), start: Avma(0x1000), size: 128 });
        assert_eq!([0x1008, 0x1048].map(|address| has_row(&code, address, 199_999_999)), [true, false]);
    }
}
