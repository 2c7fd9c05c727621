//! A trace log as Chrome's trace events, for Perfetto, chrome://tracing and speedscope. Written as it is read, so that
//! a log of any size needs no memory.

use std::io::{Read, Seek, Write};

use serde_json::Value;

use super::error::OutputError;
use crate::plog::{Kind, Log, ThreadMap, Trace, thread_name};
use crate::profile::printable;

/// Nothing in the format is larger than its one process.
const PID: u32 = 1;

/// Writes every span, mark and counter. `log` is the one that `trace` was imported from.
///
/// # Errors
/// The log cannot be read, or the writer fails.
pub fn write_chrome<R: Read + Seek>(
    trace: &Trace,
    log: &mut Log<R>,
    map: &ThreadMap,
    title: &str,
    mut writer: impl Write,
) -> Result<(), OutputError> {
    let tids: Vec<u32> = (0..trace.threads.len()).map(|index| tid(trace, map, index)).collect();
    let tid_of = |thread: u32| usize::try_from(thread).ok().and_then(|index| tids.get(index)).copied().unwrap_or(0);
    let start = trace.start_ns();
    let micros = |ns: u64| decimal(ns.saturating_add(start));
    let name_of = |trace_id: u32| Value::from(&*printable(&trace.names.name(trace_id)));
    let type_of = |type_id: u32| Value::from(&*printable(&trace.types.name(type_id)));

    let title = Value::from(&*printable(title));
    write!(writer, r#"{{"displayTimeUnit":"ns","traceEvents":["#)?;
    write!(writer, "\n{{\"ph\":\"M\",\"pid\":{PID},\"name\":\"process_name\",\"args\":{{\"name\":{title}}}}}")?;
    for (thread, tid) in trace.threads.iter().zip(&tids) {
        let name = Value::from(thread_name(thread.id));
        let event = format!(r#"{{"ph":"M","pid":{PID},"tid":{tid},"name":"thread_name","args":{{"name":{name}}}}}"#);
        write!(writer, ",\n{event}")?;
    }
    trace.spans(|span| -> Result<(), OutputError> {
        let (name, kind, tid) = (name_of(span.trace_id), type_of(span.type_id), tid_of(span.thread));
        let (at, length) = (micros(span.start), decimal(span.end - span.start));
        let designator = span.designator;
        Ok(write!(
            writer,
            ",\n{{\"ph\":\"X\",\"pid\":{PID},\"tid\":{tid},\"ts\":{at},\"dur\":{length},\"name\":{name},\"cat\":{kind},\
             \"args\":{{\"designator\":\"{designator:#x}\"}}}}"
        )?)
    })?;
    trace.marks(log, |mark| -> Result<(), OutputError> {
        let (name, kind, tid) = (name_of(mark.trace_id), type_of(mark.type_id), tid_of(mark.thread));
        let (at, designator) = (micros(mark.time), mark.designator);
        write!(writer, ",\n{{\"pid\":{PID},\"tid\":{tid},\"ts\":{at},\"name\":{name},\"cat\":{kind},")?;
        match mark.kind {
            // The producer hands designators over as signed.
            Kind::Counter => write!(writer, r#""ph":"C","args":{{"value":{}}}}}"#, designator.cast_signed())?,
            _ => write!(writer, r#""ph":"i","s":"t","args":{{"designator":"{designator:#x}"}}}}"#)?,
        }
        Ok(())
    })?;
    writer.write_all(b"\n]}\n")?;
    Ok(())
}

/// The kernel's id where it is known, else the thread's number in the log: a pointer is no number of JavaScript's.
pub(super) fn tid(trace: &Trace, map: &ThreadMap, index: usize) -> u32 {
    let number = u32::try_from(index).map_or(u32::MAX, |index| index.saturating_add(1));
    let known = trace.threads.get(index).and_then(|thread| map.get(thread.id).first());
    known.map_or(number, |(tid, _)| tid.0)
}

/// Microseconds to the nanosecond.
fn decimal(ns: u64) -> String {
    format!("{}.{:03}", ns / 1000, ns % 1000)
}
