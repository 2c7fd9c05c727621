//! From records to code events.

use std::collections::HashMap;
use std::sync::Arc;

use crate::code::{CodeEvent, CodeInline, CodeLoad, CodeUnit, EhFrame, LineRow, SourceRows};
use jitprof_common::units::{Avma, MonoNs};

use super::bias::Bias;
use super::byte_order::ByteOrder;
use super::clock::{Clock, TimeVerdict, TscConversion};
use super::debug_info::DebugInfo;
use super::eh_frame::{Batch, EhData, Placed, place_single, take_apart};
use super::extension::{Inline, Method};
use super::header::{AGENT_PAD1, FLAG_ARCH_TIMESTAMP, FileHeader, HEADER_SIZE, V8_PAD1};
use super::options::ReaderOptions;
use super::own_rows::{Judgement, OwnRows};
use super::parser::{Field, Step};
use super::record::{Body, Load, Move, Record, UnwindingInfo};
use super::rows::{FileNames, PendingRows, Repair};
use super::stats::{CorruptStretch, DumpStats};

/// Source rows that wait for their LOADs, in all. LLVM ORC writes the DEBUG_INFO of a whole batch before its first
/// LOAD; everybody else has one waiting.
const MAX_PENDING_ROWS: usize = 1 << 18;

/// DEBUG_INFO records that wait for their LOADs.
const MAX_PENDING_RECORDS: usize = 1 << 16;

/// Joins the records of one dump to code events. Memory: the rows that wait for their function, one waiting
/// `.eh_frame`, and every file name once.
#[derive(Debug)]
pub struct Assembler {
    options: ReaderOptions,
    order: ByteOrder,
    of_v8: bool,
    of_agent: bool,
    clock: Clock,
    bias: Bias,
    files: FileNames,
    own_rows: OwnRows,
    /// The last DEBUG_INFO: nearly always the next LOAD's.
    debug: Option<PendingRows>,
    /// Older ones, by code address.
    older_debug: HashMap<u64, PendingRows>,
    older_rows: usize,
    /// The last METHOD: always the next LOAD's.
    unit: Option<(u64, Arc<CodeUnit>)>,
    last_unit: Option<Arc<CodeUnit>>,
    unwinding: PendingUnwinding,
    /// Where the sequence of records was lost.
    lost: Option<(jitprof_common::units::FileOffset, Field)>,
    stats: DumpStats,
}

#[derive(Clone, Debug)]
enum PendingUnwinding {
    None,
    /// For the next LOAD.
    Next(EhData),
    /// For every LOAD until the next UNWINDING_INFO; and whether one has used it.
    Batch(Batch, bool),
}

impl Assembler {
    /// For a dump read from its start.
    pub fn new(options: ReaderOptions) -> Self {
        Self {
            clock: Clock::new(options.clock),
            bias: Bias::new(options.debug_bias),
            options,
            order: ByteOrder::NATIVE,
            of_v8: false,
            of_agent: false,
            files: FileNames::default(),
            own_rows: OwnRows::default(),
            debug: None,
            older_debug: HashMap::new(),
            older_rows: 0,
            unit: None,
            last_unit: None,
            unwinding: PendingUnwinding::None,
            lost: None,
            stats: DumpStats::default(),
        }
    }

    /// A copy that goes on from the same state, with an own account and an own memory of file names. Cost: what
    /// waits for its LOAD, normally one record.
    pub fn fork(&self, options: ReaderOptions) -> Self {
        Self {
            options,
            order: self.order,
            of_v8: self.of_v8,
            of_agent: self.of_agent,
            clock: self.clock.clone(),
            bias: self.bias.clone(),
            files: FileNames::default(),
            own_rows: self.own_rows.borrowed(),
            debug: self.debug.clone(),
            older_debug: self.older_debug.clone(),
            older_rows: self.older_rows,
            unit: self.unit.clone(),
            last_unit: None,
            unwinding: self.unwinding.clone(),
            lost: self.lost,
            stats: DumpStats { watermark: self.stats.watermark, ..DumpStats::default() },
        }
    }

    /// The account so far.
    pub fn stats(&self) -> &DumpStats {
        &self.stats
    }

    /// Sets the present time, which no record's can exceed.
    pub fn set_now(&mut self, now: MonoNs) {
        self.clock.set_now(now);
    }

    /// Sets how counter ticks become times from now on.
    pub(super) fn set_ticks(&mut self, tsc: TscConversion) {
        self.clock.set_ticks(tsc);
    }

    /// The file began anew: drops everything but the account.
    pub(super) fn restart(&mut self) {
        let mut stats = std::mem::take(&mut self.stats);
        stats.restarts = stats.restarts.saturating_add(1);
        *self = Self { stats, clock: self.clock.clone(), ..Self::new(self.options.clone()) };
        self.clock.restart(false);
    }

    /// The account of a file that ends at `file_len`: damage at its end, which no record has followed, included.
    pub(super) fn stats_up_to(&self, file_len: u64) -> DumpStats {
        let mut stats = self.stats.clone();
        if let Some((offset, what)) = self.lost {
            stats.note_corrupt(CorruptStretch { offset, bytes: file_len.saturating_sub(offset.0), what });
        }
        stats
    }

    /// Whether the last UNWINDING_INFO still waits for a function.
    pub(super) fn has_unclaimed_unwinding(&self) -> bool {
        matches!(self.unwinding, PendingUnwinding::Next(_) | PendingUnwinding::Batch(_, false))
    }

    /// Takes one step of the parser into account and gives out the events that it completes.
    pub fn step(&mut self, step: &Step<'_>, out: &mut impl FnMut(CodeEvent)) {
        match step {
            Step::Header(header) => self.header(header),
            Step::Record(record) => self.record(record, out),
            Step::BadRecord { offset, total_size, what } => {
                self.stats.skipped.bad_record += 1;
                let bytes = u64::from(*total_size);
                self.stats.note_corrupt(CorruptStretch { offset: *offset, bytes, what: *what });
            }
            Step::Corrupt { offset, what } => self.lost = Some((*offset, *what)),
            Step::Resynced { skipped } => {
                self.stats.resyncs += 1;
                if let Some((offset, what)) = self.lost.take() {
                    self.stats.note_corrupt(CorruptStretch { offset, bytes: *skipped, what });
                }
                // What waited belongs to a record that was lost.
                self.drop_unwinding();
            }
            Step::Scanned | Step::NeedMore { .. } => {}
        }
    }

    /// A record was not waited for. What waited may belong to it.
    pub(super) fn note_given_up(&mut self) {
        self.stats.skipped.given_up += 1;
        self.drop_unwinding();
        self.drop_debug();
    }

    fn header(&mut self, header: &FileHeader) {
        self.stats.headers += 1;
        if !header.size_is_plausible() {
            let offset = jitprof_common::units::FileOffset(0);
            let stretch = CorruptStretch { offset, bytes: HEADER_SIZE as u64, what: Field::HeaderSize };
            self.stats.note_corrupt(stretch);
        }
        self.order = header.order;
        self.of_v8 = header.pad1 == V8_PAD1;
        self.of_agent = header.pad1 == AGENT_PAD1;
        self.clock.restart(header.flags & FLAG_ARCH_TIMESTAMP != 0);
        self.bias.restart(header);
        self.stats.bias = self.bias.value();
        self.drop_unwinding();
        self.drop_debug();
        self.own_rows = OwnRows::default();
        self.unit = None;
    }

    fn record(&mut self, record: &Record<'_>, out: &mut impl FnMut(CodeEvent)) {
        self.count(record);
        let time = self.time_of(record);
        match (&record.body, time) {
            (Body::Load(load), time) => self.load(load, time, out),
            (Body::DebugInfo(info), Some(_)) => self.debug_info(info),
            (Body::UnwindingInfo(info), Some(_)) => self.unwinding_info(info),
            (Body::Move(moved), Some(time)) => self.moved(moved, time, out),
            (Body::Close, Some(time)) => out(CodeEvent::Close { time }),
            (Body::Unload(gone), Some(time)) => {
                out(CodeEvent::Unload { time, start: Avma(gone.code_addr), size: gone.code_size });
            }
            (Body::Inline(inline), Some(time)) => self.inline(inline, time, out),
            (Body::Method(method), Some(_)) => self.method(method),
            (Body::Lost(_) | Body::Unknown { .. }, _) | (_, None) => {}
        }
    }

    fn count(&mut self, record: &Record<'_>) {
        let records = &mut self.stats.records;
        let counter = match record.body {
            Body::Load(_) => &mut records.load,
            Body::Move(_) => &mut records.moved,
            Body::DebugInfo(_) => &mut records.debug_info,
            Body::Close => &mut records.close,
            Body::UnwindingInfo(_) => &mut records.unwinding_info,
            Body::Unload(_) => &mut records.unload,
            Body::Inline(_) => &mut records.inline,
            Body::Method(_) => &mut records.method,
            Body::Lost(_) => &mut records.lost,
            Body::Unknown { .. } => &mut records.unknown,
        };
        *counter += 1;
    }

    /// The record's time on CLOCK_MONOTONIC; `None` and a count if it is older than the process. An implausible time
    /// becomes the latest plausible one, 0 if there is none.
    fn time_of(&mut self, record: &Record<'_>) -> Option<MonoNs> {
        let verdict = self.clock.judge(record.raw_time);
        self.stats.clock = self.clock.kind;
        match verdict {
            TimeVerdict::At(time) => {
                self.stats.watermark = self.stats.watermark.max(time);
                Some(time)
            }
            TimeVerdict::Implausible => {
                self.stats.times_implausible += 1;
                Some(self.stats.watermark)
            }
            TimeVerdict::Stale => {
                self.stats.skipped.stale_time += 1;
                None
            }
        }
    }

    fn is_foreign(&mut self, pid: u32, address: u64) -> bool {
        let foreign = self.options.namespace_pid.is_some_and(|own| own != pid) && !self.options.is_shared(address);
        self.stats.skipped.other_pid += u64::from(foreign);
        foreign
    }

    fn load(&mut self, load: &Load<'_>, time: Option<MonoNs>, out: &mut impl FnMut(CodeEvent)) {
        // A dropped function takes along what was announced for it.
        let debug = self.take_debug(load.code_addr);
        let unit = self.unit.take_if(|(code_addr, _)| *code_addr == load.code_addr).map(|(_, unit)| unit);
        let foreign = time.is_some() && self.is_foreign(load.pid, load.code_addr);
        let eh_frame = self.take_unwinding(load);
        let Some(time) = time.filter(|_| !foreign) else {
            return;
        };
        let lines = debug.map_or_else(SourceRows::default, |rows| self.finish_rows(rows, load));
        self.stats.functions += 1;
        self.stats.code_bytes = self.stats.code_bytes.saturating_add(load.code_size);
        out(CodeEvent::Load(CodeLoad {
            time,
            start: Avma(load.code_addr),
            size: load.code_size,
            name: text_of(load.name),
            code_index: load.code_index,
            lines,
            unit,
            eh_frame,
            code: load.code.map(Box::from),
            origin: self.options.origin,
        }));
    }

    fn moved(&mut self, moved: &Move, time: MonoNs, out: &mut impl FnMut(CodeEvent)) {
        if self.is_foreign(moved.pid, moved.new_code_addr) {
            return;
        }
        out(CodeEvent::Move {
            time,
            old_start: Avma(moved.old_code_addr),
            new_start: Avma(moved.new_code_addr),
            size: moved.code_size,
        });
    }

    fn inline(&mut self, inline: &Inline<'_>, time: MonoNs, out: &mut impl FnMut(CodeEvent)) {
        let source = (!inline.source.is_empty()).then(|| self.files.intern(inline.source));
        let row = |(offset, line)| Some(LineRow { offset, line, file: Arc::clone(source.as_ref()?) });
        out(CodeEvent::Inline(CodeInline {
            time,
            start: Avma(inline.start),
            size: u64::from(inline.size),
            method: inline.method,
            parent: inline.parent,
            name: text_of(inline.name),
            lines: inline.rows().filter_map(row).collect(),
            source,
        }));
    }

    fn method(&mut self, method: &Method<'_>) {
        let mut text = |bytes: &[u8]| (!bytes.is_empty()).then(|| self.files.intern(bytes));
        let unit = CodeUnit { source: text(method.source), module: text(method.module) };
        // Mostly the one before it: kept once then.
        let known = self.last_unit.take().filter(|known| **known == unit).unwrap_or_else(|| Arc::new(unit));
        self.unit = Some((method.code_addr, Arc::clone(&known)));
        self.last_unit = Some(known);
    }

    fn finish_rows(&mut self, rows: PendingRows, load: &Load<'_>) -> SourceRows {
        let Some((lowest, highest)) = rows.span() else {
            return SourceRows::default();
        };
        let bias = self.bias.of_function(rows.code_addr, load.code_size, lowest, highest);
        self.stats.bias = self.bias.value();
        let judgement = match self.of_v8 {
            true => self.own_rows.judge(load.name, rows.files(), rows.positions()),
            false => Judgement::ALL,
        };
        let done = rows.finish(load.code_size, bias, &judgement);
        self.stats.rows_dropped += done.dropped;
        self.stats.rows_doubtful += done.doubtful;
        self.stats.rows = self.stats.rows.saturating_add(done.rows.len() as u64);
        done.rows
    }

    fn debug_info(&mut self, info: &DebugInfo<'_>) {
        let rows = PendingRows::read(info, self.of_v8, self.of_v8 || self.of_agent, &mut self.files);
        self.stats.debug_repaired += u64::from(rows.repair == Repair::Repaired);
        self.stats.debug_cut += u64::from(rows.repair == Repair::Cut);
        self.stats.rows_dropped += rows.lineless;
        let Some(older) = self.debug.replace(rows) else {
            return;
        };
        if self.older_debug.len() >= MAX_PENDING_RECORDS || self.older_rows + older.len() > MAX_PENDING_ROWS {
            self.stats.debug_unclaimed += self.older_debug.len() as u64;
            self.older_debug.clear();
            self.older_rows = 0;
        }
        self.older_rows += older.len();
        if let Some(replaced) = self.older_debug.insert(older.code_addr, older) {
            self.older_rows -= replaced.len();
            self.stats.debug_unclaimed += 1;
        }
    }

    fn take_debug(&mut self, code_addr: u64) -> Option<PendingRows> {
        if self.debug.as_ref().is_some_and(|rows| rows.code_addr == code_addr) {
            return self.debug.take();
        }
        if self.older_debug.is_empty() {
            return None;
        }
        let rows = self.older_debug.remove(&code_addr)?;
        self.older_rows -= rows.len();
        Some(rows)
    }

    fn drop_debug(&mut self) {
        let dropped = self.older_debug.len() + usize::from(self.debug.is_some());
        self.stats.debug_unclaimed += dropped as u64;
        self.debug = None;
        self.older_debug.clear();
        self.older_rows = 0;
    }

    fn unwinding_info(&mut self, info: &UnwindingInfo<'_>) {
        self.drop_unwinding();
        let data = take_apart(info.bytes, info.hdr_size, self.order);
        let eh = &mut self.stats.eh;
        match &data {
            EhData::HeaderOnly => eh.header_only += 1,
            EhData::Single(_) => eh.perf_order += 1,
            EhData::Unrecognised => eh.unrecognised += 1,
            EhData::Batch(batch) => {
                eh.batches += 1;
                eh.absolute += u64::from(batch.absolute);
            }
        }
        self.unwinding = match data {
            EhData::Batch(batch) => PendingUnwinding::Batch(batch, false),
            data => PendingUnwinding::Next(data),
        };
    }

    fn drop_unwinding(&mut self) {
        self.stats.unwinding_unclaimed += u64::from(self.has_unclaimed_unwinding());
        self.unwinding = PendingUnwinding::None;
    }

    fn take_unwinding(&mut self, load: &Load<'_>) -> Option<EhFrame> {
        let order = self.order;
        let placed = match &mut self.unwinding {
            PendingUnwinding::None => return None,
            PendingUnwinding::Batch(batch, used) => {
                *used = true;
                batch.place(load.code_addr, load.code_size, order)
            }
            PendingUnwinding::Next(data) => {
                let single: Option<Arc<[u8]>> = match data {
                    EhData::Single(bytes) => Some(Arc::clone(bytes)),
                    _ => None,
                };
                self.unwinding = PendingUnwinding::None;
                place_single(&single?, load.code_addr, load.code_size, order)
            }
        };
        let eh = &mut self.stats.eh;
        let (frame, rebased) = match placed {
            Placed::Exact(frame) => (frame, false),
            Placed::Rebased(frame) => (frame, true),
            Placed::Absent => {
                eh.unmatched += 1;
                return None;
            }
        };
        eh.attached += 1;
        eh.rebased += u64::from(rebased);
        Some(frame)
    }
}

/// As text, with replacement characters where the bytes are none. Whole names are checked first: the lossy walk costs
/// three times as much, and nearly no name needs it.
fn text_of(name: &[u8]) -> String {
    match std::str::from_utf8(name) {
        Ok(text) => text.to_owned(),
        Err(_) => String::from_utf8_lossy(name).into_owned(),
    }
}
