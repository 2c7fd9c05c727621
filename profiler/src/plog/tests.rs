use std::io::Cursor;

use super::writer::LogFields;
use super::*;
use jitprof_jitdump::ByteOrder;

mod damage;
mod importing;
mod naming;
mod overlaying;

pub(super) const NAMES: [&str; 5] = ["INVALID", "JOB", "INTERPRET", "RENDER", "FONT_CACHE"];
pub(super) const TYPES: [&str; 6] = ["INVALID", "ENTER", "EXIT", "MARK", "VALUE", "ACQUIRE"];

pub(super) const ENTER: u32 = 1;
pub(super) const EXIT: u32 = 2;
pub(super) const MARK: u32 = 3;
pub(super) const VALUE: u32 = 4;
pub(super) const ACQUIRE: u32 = 5;

pub(super) fn entry(timestamp: u64, duration: u64, thread: u64, trace_id: u32, type_id: u32) -> Entry {
    Entry { timestamp, duration, thread, trace_id, type_id, designator: 0 }
}

pub(super) fn fields(order: ByteOrder) -> LogFields<'static> {
    LogFields { order, names: &NAMES, types: &TYPES, ..LogFields::default() }
}

pub(super) fn import(bytes: &[u8]) -> Result<(Trace, Vec<String>), PlogError> {
    import_with(bytes, &ImportOptions::default())
}

pub(super) fn import_with(bytes: &[u8], options: &ImportOptions) -> Result<(Trace, Vec<String>), PlogError> {
    let mut log = Log::open(Cursor::new(bytes))?;
    let trace = Trace::import(&mut log, options)?;
    Ok((trace, log.warnings().to_vec()))
}

/// Segments as text: `thread start-end A;B`.
pub(super) fn segments(trace: &Trace) -> Vec<String> {
    let mut lines = Vec::new();
    trace
        .segments(|segment| {
            let path: Vec<_> = segment.path.iter().map(|span| trace.names.name(span.trace_id)).collect();
            let id = trace.threads[segment.thread as usize].id;
            lines.push(format!("{id} {}-{} {}", segment.start, segment.end, path.join(";")));
            Ok::<(), PlogError>(())
        })
        .unwrap();
    lines
}
