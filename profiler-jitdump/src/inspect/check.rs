//! The rules of the specification, record by record.

use std::collections::HashMap;

use super::deviation::Deviation as D;
use super::extents::Numbers;
use super::findings::Findings;
use super::survey::Surveyed;
use crate::clock::ClockKind;
use crate::debug_info::DebugInfo;
use crate::header::{FLAG_ARCH_TIMESTAMP, FileHeader};
use crate::parser::{Field, Step};
use crate::record::{Body, Load, Move, Record, RecordId, UnwindingInfo};
use crate::stats::DumpStats;
use jitprof_common::units::FileOffset;

/// The largest thread id of Linux (`PID_MAX_LIMIT`).
const MAX_TID: u32 = 1 << 22;
/// A header is not written that long before its first record.
const DAY_NS: u64 = 86_400_000_000_000;
/// DEBUG_INFO records whose function is waited for, as in the assembler.
const MAX_WAITING: usize = 1 << 16;

/// What the assembler counted so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    debug_repaired: u64,
    debug_cut: u64,
    rows: u64,
    rows_dropped: u64,
    perf_order: u64,
    batches: u64,
    unrecognised: u64,
    rebased: u64,
    unmatched: u64,
    unwinding_unclaimed: u64,
    bias: u64,
}

impl Counted {
    pub(super) fn of(stats: &DumpStats) -> Self {
        Self {
            debug_repaired: stats.debug_repaired,
            debug_cut: stats.debug_cut,
            rows: stats.rows,
            rows_dropped: stats.rows_dropped,
            perf_order: stats.eh.perf_order,
            batches: stats.eh.batches,
            unrecognised: stats.eh.unrecognised,
            rebased: stats.eh.rebased,
            unmatched: stats.eh.unmatched,
            unwinding_unclaimed: stats.unwinding_unclaimed,
            bias: stats.bias.unwrap_or(0),
        }
    }
}

/// A record with what others made of it.
struct Context<'a> {
    record: &'a Record<'a>,
    before: Counted,
    after: Counted,
    surveyed: Surveyed,
}

/// Goes along with the parser and notes deviations.
#[derive(Debug)]
pub(super) struct Checker {
    pub(super) findings: Findings,
    header: Option<FileHeader>,
    /// Where the last record begins.
    last: FileOffset,
    lost: Option<(FileOffset, Field)>,
    closed: bool,
    /// A header's time that no record's was compared with yet.
    header_time: Option<u64>,
    /// DEBUG_INFO without its LOAD, by code address.
    waiting: HashMap<u64, FileOffset>,
    /// Code address of the last DEBUG_INFO since the last LOAD.
    last_debug: Option<u64>,
    last_unwinding: FileOffset,
    last_load: FileOffset,
    numbers: Numbers,
}

impl Checker {
    pub(super) fn new(places: usize) -> Self {
        Self {
            findings: Findings::new(places),
            header: None,
            last: FileOffset(0),
            lost: None,
            closed: false,
            header_time: None,
            waiting: HashMap::new(),
            last_debug: None,
            last_unwinding: FileOffset(0),
            last_load: FileOffset(0),
            numbers: Numbers::default(),
        }
    }

    pub(super) fn step(
        &mut self,
        at: FileOffset,
        step: &Step<'_>,
        before: Counted,
        after: Counted,
        surveyed: Surveyed,
    ) {
        if after.unwinding_unclaimed > before.unwinding_unclaimed {
            self.findings.note(D::UnwindingUnclaimed, self.last_unwinding);
        }
        match step {
            Step::Header(header) => self.header(at, header),
            Step::Record(record) => {
                self.last = record.offset;
                self.record(&Context { record, before, after, surveyed });
            }
            Step::BadRecord { offset, what, .. } => {
                self.findings.note_with(D::DamagedRecord, *offset, || what.describe().to_owned());
            }
            Step::Corrupt { offset, what } => self.lost = Some((*offset, *what)),
            Step::Resynced { skipped } => self.found_again(*skipped),
            Step::Scanned | Step::NeedMore { .. } => {}
        }
    }

    fn found_again(&mut self, skipped: u64) {
        if let Some((offset, what)) = self.lost.take() {
            let deviation = if what == Field::Magic { D::NoMagic } else { D::LostSequence };
            self.findings.note_with(deviation, offset, || format!("{}; {skipped} bytes lost", what.describe()));
        }
    }

    fn header(&mut self, at: FileOffset, header: &FileHeader) {
        let note = &mut self.findings;
        if self.header.is_some() {
            note.note_with(D::AnotherHeader, at, || format!("pid {}", header.pid));
        }
        match header.version {
            1 => {}
            2 => note.note(D::VersionForPerf, at),
            version => note.note_with(D::Version, at, || format!("{version}")),
        }
        if !header.size_is_plausible() {
            note.note_with(D::HeaderSize, at, || format!("{}", header.total_size));
        } else if header.total_size > 40 {
            note.note_with(D::LongHeader, at, || format!("{}", header.total_size));
        }
        if header.elf_mach == 0 {
            note.note(D::NoMachine, at);
        }
        if header.pad1 != 0 {
            note.note_with(D::Padding, at, || format!("{:#x}", header.pad1));
        }
        if header.flags & !FLAG_ARCH_TIMESTAMP != 0 {
            note.note_with(D::Flags, at, || format!("{:#x}", header.flags));
        }
        self.header = Some(*header);
        self.header_time = (header.flags & FLAG_ARCH_TIMESTAMP == 0).then_some(header.timestamp);
        self.closed = false;
        // Another producer counts anew.
        self.numbers = Numbers::default();
        self.leave_waiting();
    }

    /// The functions of those that wait never came.
    fn leave_waiting(&mut self) {
        let mut offsets: Vec<_> = self.waiting.drain().map(|(_, offset)| offset).collect();
        offsets.sort_unstable();
        for offset in offsets {
            self.findings.note(D::DebugUnclaimed, offset);
        }
        self.last_debug = None;
    }

    fn record(&mut self, context: &Context<'_>) {
        let Context { record, surveyed, .. } = context;
        let at = record.offset;
        self.times(record, surveyed.late_by);
        if self.closed {
            self.findings.note(D::AfterClose, at);
        }
        match &record.body {
            Body::Load(load) => self.load(load, context),
            Body::Move(moved) => self.moved(moved, context),
            Body::DebugInfo(info) => self.debug_info(info, context),
            Body::UnwindingInfo(info) => self.unwinding(info, context),
            Body::Close => {
                self.closed = true;
                self.longer_than(record, RecordId::Close.fixed_size());
            }
            Body::Unload(_) | Body::Inline(_) | Body::Method(_) | Body::Lost(_) => {
                self.findings.note(D::Extension, at);
            }
            Body::Unknown { id } => self.findings.note_with(D::UnknownType, at, || format!("type {id}")),
        }
    }

    fn times(&mut self, record: &Record<'_>, late_by: u64) {
        let (at, time) = (record.offset, record.raw_time);
        if time == 0 {
            self.findings.note(D::TimeZero, at);
            return;
        }
        if late_by > 0 {
            self.findings.note_with(D::TimeDescends, at, || format!("by {late_by}"));
        }
        if let Some(created) = self.header_time.take()
            && created.abs_diff(time) > DAY_NS
        {
            self.findings.note_with(D::HeaderTime, FileOffset(0), || format!("{created}, the first record {time}"));
        }
    }

    fn longer_than(&mut self, record: &Record<'_>, size: usize) {
        let excess = u64::from(record.total_size).saturating_sub(size as u64);
        if excess > 0 {
            self.findings.note_with(D::LongRecord, record.offset, || format!("{excess} bytes"));
        }
    }

    fn ids(&mut self, at: FileOffset, pid: u32, tid: u32) {
        if self.header.is_some_and(|header| header.pid != pid) {
            self.findings.note_with(D::OtherPid, at, || format!("pid {pid}"));
        }
        if tid > MAX_TID {
            self.findings.note_with(D::NoThread, at, || format!("tid {tid}"));
        }
    }

    fn load(&mut self, load: &Load<'_>, context: &Context<'_>) {
        let Context { record, before, after, .. } = context;
        let at = record.offset;
        self.last_load = at;
        self.ids(at, load.pid, load.tid);
        if load.vma != load.code_addr {
            self.findings.note_with(D::Vma, at, || format!("vma {:#x}, code_addr {:#x}", load.vma, load.code_addr));
        }
        if load.name.is_empty() {
            self.findings.note(D::EmptyName, at);
        }
        if !load.name.is_ascii() {
            self.findings.note(D::NotAscii, at);
        }
        if !self.numbers.insert(load.code_index) {
            self.findings.note_with(D::CodeIndex, at, || format!("{}", load.code_index));
        }
        let named = RecordId::Load.fixed_size() + load.name.len() + 1;
        let payload = u64::from(record.total_size).saturating_sub(named as u64);
        if payload == 0 && load.code_size > 0 {
            self.findings.note(D::WithoutCode, at);
        } else if payload > load.code_size {
            self.findings.note_with(D::LongRecord, at, || format!("{} bytes", payload - load.code_size));
        }
        let debug = self.waiting.remove(&load.code_addr);
        if self.last_debug.take().is_some_and(|address| address != load.code_addr) {
            self.findings.note(D::DebugOfAnother, at);
        }
        if let Some(debug) = debug
            && after.bias > 0
            && after.rows > before.rows
        {
            self.findings.note_with(D::DebugBias, debug, || format!("{:#x}", after.bias));
        }
        for (more, deviation) in [
            (after.rows_dropped > before.rows_dropped, D::RowBehindCode),
            (after.rebased > before.rebased, D::UnwindingShifted),
            (after.unmatched > before.unmatched, D::UnwindingElsewhere),
        ] {
            if more {
                self.findings.note(deviation, at);
            }
        }
    }

    fn moved(&mut self, moved: &Move, context: &Context<'_>) {
        let (at, surveyed) = (context.record.offset, context.surveyed);
        self.ids(at, moved.pid, moved.tid);
        if moved.vma != moved.new_code_addr {
            let (vma, address) = (moved.vma, moved.new_code_addr);
            self.findings.note_with(D::Vma, at, || format!("vma {vma:#x}, new_code_addr {address:#x}"));
        }
        self.longer_than(context.record, RecordId::Move.fixed_size());
        let Some(before) = surveyed.moved else {
            if surveyed.all_known {
                self.findings.note_with(D::MoveOfNothing, at, || format!("from {:#x}", moved.old_code_addr));
            }
            return;
        };
        let size = before.end.saturating_sub(moved.old_code_addr);
        if size != moved.code_size {
            self.findings.note_with(D::MoveSize, at, || format!("{size} became {}", moved.code_size));
        }
        if before.code_index != moved.code_index {
            let (own, named) = (before.code_index, moved.code_index);
            self.findings.note_with(D::MoveIndex, at, || format!("{named}, not {own}"));
        }
    }

    fn debug_info(&mut self, info: &DebugInfo<'_>, context: &Context<'_>) {
        let (at, before, after) = (context.record.offset, context.before, context.after);
        if after.debug_repaired > before.debug_repaired {
            self.findings.note(D::FreedName, at);
        } else if after.debug_cut > before.debug_cut {
            self.findings.note(D::DebugCut, at);
        } else {
            self.entries(info, at);
        }
        if self.waiting.len() >= MAX_WAITING {
            self.leave_waiting();
        }
        if let Some(replaced) = self.waiting.insert(info.code_addr, at) {
            self.findings.note(D::DebugUnclaimed, replaced);
        }
        self.last_debug = Some(info.code_addr);
    }

    fn entries(&mut self, info: &DebugInfo<'_>, at: FileOffset) {
        let (mut below_1, mut early, mut not_ascii) = (0_u64, 0_u64, 0_u64);
        let mut entries = info.entries();
        let mut last: &[u8] = &[];
        for entry in entries.by_ref() {
            below_1 += u64::from(entry.line < 1);
            early += u64::from(entry.addr < info.code_addr);
            // A repeated name is the very slice of the entry before.
            if !std::ptr::eq(last, entry.name) {
                not_ascii += u64::from(!entry.name.is_ascii());
                last = entry.name;
            }
        }
        let all = info.nr_entry;
        let of_all = [
            (below_1, D::LineBelow1),
            (early, D::RowBeforeCode),
            (not_ascii, D::NotAscii),
            (entries.same_file(), D::SameFile),
        ];
        for (count, deviation) in of_all.into_iter().filter(|(count, _)| *count > 0) {
            self.findings.note_with(deviation, at, || format!("{count} of {all} entries"));
        }
        let padding = entries.bytes_left();
        if padding > 0 {
            self.findings.note_with(D::DebugPadding, at, || format!("{padding} bytes"));
        }
    }

    fn unwinding(&mut self, info: &UnwindingInfo<'_>, context: &Context<'_>) {
        let Context { record, before, after, .. } = context;
        let at = record.offset;
        self.last_unwinding = at;
        if self.header.is_some_and(|header| header.version == 1) {
            self.findings.note(D::UnwindingInVersion1, at);
        }
        for (more, deviation) in [
            (after.perf_order > before.perf_order, D::FrameFirst),
            (after.batches > before.batches, D::UnwindingOfBatch),
            (after.unrecognised > before.unrecognised, D::UnwindingUnreadable),
        ] {
            if more {
                self.findings.note(deviation, at);
            }
        }
        let size = info.bytes.len() as u64;
        if info.mapped_size != 0 && info.mapped_size != size {
            self.findings.note_with(D::MappedSize, at, || format!("{} of {size}", info.mapped_size));
        } else if info.mapped_size == 0 && size > info.hdr_size {
            self.findings.note(D::NotMapped, at);
        }
        let padding = u64::from(record.total_size).saturating_sub(RecordId::UnwindingInfo.fixed_size() as u64 + size);
        if padding > 0 {
            self.findings.note_with(D::UnwindingPadding, at, || format!("{padding} bytes"));
        }
    }

    /// The file ends at `file_len`, and the parser stands at `reached`. What was announced behind the last function may
    /// still be followed by it if the file `grows` or is torn.
    pub(super) fn finish(
        &mut self,
        reached: FileOffset,
        file_len: u64,
        grows: bool,
        clock: ClockKind,
        unclaimed: bool,
    ) {
        let torn = self.lost.is_none() && reached.0 != file_len;
        if let Some((offset, _)) = self.lost {
            self.found_again(file_len.saturating_sub(offset.0));
        } else if torn {
            let (at, detail) = match reached.0.checked_sub(file_len) {
                Some(missing) => (self.last, format!("{missing} bytes of its code are missing")),
                None => (reached, format!("{} bytes of it are there", file_len - reached.0)),
            };
            self.findings.note_with(D::TornEnd, at, || detail);
        }
        let flagged = self.header.is_some_and(|header| header.flags & FLAG_ARCH_TIMESTAMP != 0);
        if flagged && clock == ClockKind::Monotonic {
            self.findings.note(D::FlagOverNanoseconds, FileOffset(0));
        }
        if grows || torn {
            self.waiting.retain(|_, offset| *offset < self.last_load);
        }
        self.leave_waiting();
        if unclaimed && !((grows || torn) && self.last_unwinding > self.last_load) {
            self.findings.note(D::UnwindingUnclaimed, self.last_unwinding);
        }
    }
}
