//! The summary of a log as text.

use std::fmt::Write;
use std::path::Path;

use crate::plog::{Clock, Log, NameTable, NameTotals, ThreadMap, Timestamps, Trace};
use crate::profile::printable;
use jitprof_jitdump::ByteOrder;

/// Threads, types and warnings that are listed.
const MAX_LISTED: usize = 64;

/// What is in the log, as lines for a terminal.
pub(super) fn text<R>(
    file: &Path,
    log: &Log<R>,
    trace: &Trace,
    map: &ThreadMap,
    timestamps_told: bool,
    top: usize,
) -> String
where
    R: std::io::Read + std::io::Seek,
{
    let mut text = String::new();
    let outcome = head(&mut text, file, log, trace)
        .and_then(|()| timestamps(&mut text, trace, timestamps_told))
        .and_then(|()| threads(&mut text, trace, map))
        .and_then(|()| types(&mut text, trace))
        .and_then(|()| names(&mut text, trace, top))
        .and_then(|()| warnings(&mut text, log.warnings()));
    outcome.expect("invariant: writing to a String does not fail");
    text
}

fn head<R: std::io::Read + std::io::Seek>(
    text: &mut String,
    file: &Path,
    log: &Log<R>,
    trace: &Trace,
) -> std::fmt::Result {
    let header = &trace.header;
    let order = match header.order {
        ByteOrder::Little => "little",
        ByteOrder::Big => "big",
    };
    writeln!(text, "log         {}, {} bytes, {order}-endian", printable(&file.to_string_lossy()), log.length())?;
    writeln!(
        text,
        "header      {} bytes; {} entries of {} bytes at {}; {} read",
        header.header_size, header.entry_count, header.entry_size, header.entries_offset, trace.counts.entries
    )?;
    writeln!(
        text,
        "clock       {} ticks per second; start time {} = {}",
        header.ticks_per_second,
        header.start,
        seconds(trace.start_ns())
    )?;
    if let Some((first, last)) = trace.range_ns() {
        let length = last.saturating_sub(first);
        writeln!(text, "time        {} to {} after it, {}", seconds(first), seconds(last), seconds(length))?;
    }
    for (what, table) in [("names", &trace.names), ("types", &trace.types)] {
        writeln!(text, "{what:<11} {}", encoding(table))?;
    }
    Ok(())
}

fn encoding(table: &NameTable) -> String {
    match table.encoding {
        Some(encoding) => format!("{}, read as encoding {encoding}", table.names().len()),
        None => "none".to_owned(),
    }
}

fn timestamps(text: &mut String, trace: &Trace, told: bool) -> std::fmt::Result {
    let which = match trace.timestamps {
        Timestamps::Start => "starts",
        Timestamps::End => "ends",
    };
    let [as_starts, as_ends] = trace.crossings;
    let why = match (told, as_starts, as_ends) {
        (true, ..) => "as told".to_owned(),
        (_, Some(starts), Some(ends)) => format!("{starts} spans overlap as starts, {ends} as ends"),
        _ => "no spans overlap so".to_owned(),
    };
    writeln!(text, "timestamps  taken for {which} of durations: {why}")?;
    let counts = &trace.counts;
    writeln!(
        text,
        "entries     {} spans ({} deep), {} marks, {} counter values",
        counts.spans, counts.deepest, counts.marks, counts.counters
    )
}

fn threads(text: &mut String, trace: &Trace, map: &ThreadMap) -> std::fmt::Result {
    let clock = Clock::new(trace.header.ticks_per_second);
    writeln!(text, "\n{:<20} {:>10} {:>16} {:>16}  kernel thread", "thread", "entries", "first", "last")?;
    for thread in trace.threads.iter().take(MAX_LISTED) {
        let known: Vec<_> = map.get(thread.id).iter().map(|(tid, source)| format!("{tid} ({source})")).collect();
        writeln!(
            text,
            "{:<20} {:>10} {:>16} {:>16}  {}",
            format!("{:#x}", thread.id),
            thread.entries,
            seconds(clock.ns(thread.first)),
            seconds(clock.ns(thread.last)),
            known.join(", ")
        )?;
    }
    more(text, trace.threads.len())
}

fn types(text: &mut String, trace: &Trace) -> std::fmt::Result {
    writeln!(text, "\n{:<20} {:>10}  taken for", "type", "entries")?;
    for (type_id, count) in trace.type_counts.iter().take(MAX_LISTED) {
        let (kind, told) = trace.kind_of(*type_id);
        let told = if told { ", as told" } else { "" };
        let name = trace.types.name(*type_id);
        writeln!(text, "{:<20} {count:>10}  {kind}{told}", printable(&name))?;
    }
    more(text, trace.type_counts.len())
}

/// Lists the names, those with the most time of their own first.
fn names(text: &mut String, trace: &Trace, top: usize) -> std::fmt::Result {
    let mut sums: Vec<(String, &NameTotals)> = trace
        .totals
        .iter()
        .map(
            |(id, sums)| {
                if *id == u32::MAX { ("[all others]".to_owned(), sums) } else { (trace.names.name(*id), sums) }
            },
        )
        .collect();
    sums.sort_by(|a, b| (b.1.self_ns, b.1.spans, &a.0).cmp(&(a.1.self_ns, a.1.spans, &b.0)));
    writeln!(
        text,
        "\n{:<28} {:>10} {:>16} {:>16} {:>16} {:>8} {:>8}",
        "name", "spans", "total", "self", "longest", "marks", "values"
    )?;
    for (name, sum) in sums.iter().take(top) {
        writeln!(
            text,
            "{:<28} {:>10} {:>16} {:>16} {:>16} {:>8} {:>8}",
            printable(name),
            sum.spans,
            seconds(sum.total_ns),
            seconds(sum.self_ns),
            seconds(sum.longest_ns),
            sum.marks,
            sum.counters
        )?;
    }
    if sums.len() > top {
        writeln!(text, "… and {} more; --top N shows more", sums.len() - top)?;
    }
    Ok(())
}

fn warnings(text: &mut String, warnings: &[String]) -> std::fmt::Result {
    if warnings.is_empty() {
        return Ok(());
    }
    writeln!(text)?;
    warnings.iter().take(MAX_LISTED).try_for_each(|warning| writeln!(text, "warning: {}", printable(warning)))
}

fn more(text: &mut String, count: usize) -> std::fmt::Result {
    if count > MAX_LISTED { writeln!(text, "… and {} more", count - MAX_LISTED) } else { Ok(()) }
}

/// Seconds to the nanosecond.
fn seconds(ns: u64) -> String {
    format!("{}.{:09} s", ns / 1_000_000_000, ns % 1_000_000_000)
}
