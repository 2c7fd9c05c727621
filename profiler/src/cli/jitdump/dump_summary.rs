//! What `jitprof jitdump` says of a dump as a whole, for a terminal: the summary, and the result of `--check`.

use std::fmt::Write as _;
use std::io::{self, Write};

use super::item::seconds;
use super::report::{DumpReport, Report};
use crate::profile::printable;
use jitprof_jitdump::{AGENT_PAD1, ClockKind, Deviation, DumpStats, FileHeader, Found, Severity, Survey, V8_PAD1};

/// Writes the header and the statistics of each dump.
pub(super) fn summary(report: &Report, out: &mut impl Write) -> io::Result<()> {
    for (index, dump) in report.dumps.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        writeln!(out, "{}: {} bytes", printable(&dump.path), dump.inspection.file_len)?;
        for (title, text) in lines_of(dump) {
            writeln!(out, "{title:<12}{text}")?;
        }
    }
    Ok(())
}

fn lines_of(dump: &DumpReport) -> Vec<(&'static str, String)> {
    let (stats, survey) = (&dump.inspection.stats, &dump.inspection.survey);
    let mut lines = Vec::new();
    if let Some(header) = &dump.inspection.header {
        lines.push(("header", header_text(header)));
    }
    lines.push(("times", times_text(stats, survey)));
    lines.push(("records", records_text(stats)));
    lines.push(("functions", functions_text(stats, survey)));
    lines.push(("addresses", addresses_text(survey)));
    lines.push(("lines", lines_text(stats, survey)));
    lines.push(("unwinding", unwinding_text(stats)));
    if stats.records.unknown > 0 {
        let types: Vec<_> = survey.unknown_types.iter().map(|(id, count)| format!("{count} of type {id}")).collect();
        lines.push(("unknown", types.join(", ")));
    }
    let skipped = stats.skipped;
    if skipped.stale_time > 0 {
        lines.push(("older", format!("{} records from before the process", skipped.stale_time)));
    }
    if stats.corrupt_bytes > 0 {
        let count = stats.corrupt_by_field.values().sum::<u64>();
        lines.push(("damage", format!("{} bytes in {count} places", stats.corrupt_bytes)));
    }
    let found = &dump.inspection.findings;
    let kinds = |severity| found.iter().filter(|(deviation, _)| deviation.severity() == severity).count() as u64;
    let (errors, quirks) = (counted(kinds(Severity::Error), "kind"), kinds(Severity::Quirk));
    lines.push(("check", format!("{errors} of errors, {quirks} of quirks; --check names them")));
    lines
}

fn header_text(header: &FileHeader) -> String {
    let producer = match header.pad1 {
        V8_PAD1 => ", written by V8",
        AGENT_PAD1 => ", written by jitprof's agent",
        _ => "",
    };
    let order = match header.order {
        jitprof_jitdump::ByteOrder::Little => "little",
        jitprof_jitdump::ByteOrder::Big => "big",
    };
    format!(
        "version {}, {}, {order} endian, pid {}, flags {:#x}{producer}",
        header.version,
        machine(header.elf_mach),
        header.pid,
        header.flags
    )
}

/// The name of an ELF machine.
pub(super) fn machine(number: u32) -> String {
    let name = match number {
        0 => "no machine",
        3 => "x86",
        8 => "MIPS",
        21 => "PowerPC64",
        22 => "S/390",
        40 => "ARM",
        62 => "x86-64",
        183 => "AArch64",
        243 => "RISC-V",
        258 => "LoongArch",
        other => return format!("machine {other}"),
    };
    name.to_owned()
}

fn times_text(stats: &DumpStats, survey: &Survey) -> String {
    let (Some(first), Some(last)) = (survey.first_time, survey.last_time) else {
        return "none".to_owned();
    };
    let span = last.saturating_sub(first);
    let mut text = match stats.clock {
        ClockKind::Monotonic => {
            format!("{} to {} s of CLOCK_MONOTONIC ({} s)", seconds(first), seconds(last), seconds(span))
        }
        _ => format!("{first} to {last} of a counter ({span})"),
    };
    match survey.late_records {
        0 => text.push_str("; in order"),
        late => write_to(&mut text, format_args!("; {late} records late in the file, by {} at most", survey.latest_by)),
    }
    text
}

fn records_text(stats: &DumpStats) -> String {
    let records = stats.records;
    let counts = [
        (records.load, "LOAD"),
        (records.moved, "MOVE"),
        (records.debug_info, "DEBUG_INFO"),
        (records.unwinding_info, "UNWINDING_INFO"),
        (records.close, "CLOSE"),
        (records.unload, "UNLOAD"),
        (records.inline, "INLINE"),
        (records.method, "METHOD"),
        (records.lost, "LOST"),
        (records.unknown, "unknown"),
    ];
    let counts: Vec<_> =
        counts.iter().filter(|(count, _)| *count > 0).map(|(count, name)| format!("{count} {name}")).collect();
    if counts.is_empty() { "none".to_owned() } else { counts.join(", ") }
}

fn functions_text(stats: &DumpStats, survey: &Survey) -> String {
    let mut text = format!(
        "{} with {} bytes of code, the largest {}; {} with {} bytes are there at the end",
        stats.functions, stats.code_bytes, survey.largest_function, survey.living, survey.living_bytes
    );
    if survey.empty_functions > 0 {
        write_to(&mut text, format_args!("; {} are empty", survey.empty_functions));
    }
    text
}

fn addresses_text(survey: &Survey) -> String {
    let mut text = format!(
        "{} functions took the place of one at the same address, {} of others",
        survey.same_address, survey.overlapping
    );
    if survey.untracked > 0 {
        write_to(&mut text, format_args!("; for {} it is not known", survey.untracked));
    }
    text
}

fn lines_text(stats: &DumpStats, survey: &Survey) -> String {
    if stats.records.debug_info == 0 {
        return "none".to_owned();
    }
    let mut text = format!("{} rows from {} entries", stats.rows, survey.debug_entries);
    if let Some(bias) = stats.bias.filter(|bias| *bias > 0) {
        write_to(&mut text, format_args!(", addresses {bias:#x} too high"));
    }
    for (count, what) in [
        (stats.debug_repaired, "records repaired"),
        (stats.debug_cut, "records cut"),
        (stats.debug_unclaimed, "records without a function"),
    ] {
        if count > 0 {
            write_to(&mut text, format_args!(", {count} {what}"));
        }
    }
    text
}

fn unwinding_text(stats: &DumpStats) -> String {
    if stats.records.unwinding_info == 0 {
        return "none recorded: frame pointers, or none".to_owned();
    }
    let eh = stats.eh;
    let counts = [
        (eh.header_only, "header only (frame pointers)"),
        (eh.perf_order, ".eh_frame first"),
        (eh.batches, "for batches"),
        (eh.unrecognised, "unreadable"),
    ];
    let counts: Vec<_> =
        counts.iter().filter(|(count, _)| *count > 0).map(|(count, name)| format!("{count} {name}")).collect();
    format!("{}; {} functions have an FDE", counts.join(", "), eh.attached)
}

/// `1 error`, `2 errors`.
pub(super) fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Names each deviation of each dump.
pub(super) fn check(report: &Report, out: &mut impl Write) -> io::Result<()> {
    for dump in &report.dumps {
        let found = &dump.inspection.findings;
        let path = printable(&dump.path);
        let (errors, quirks) = (found.count(Severity::Error), found.count(Severity::Quirk));
        writeln!(out, "{path}: {}, {} of known producers", counted(errors, "error"), counted(quirks, "quirk"))?;
        for (deviation, found) in found.iter() {
            deviation_text(deviation, found, out)?;
        }
    }
    Ok(())
}

fn deviation_text(deviation: Deviation, found: &Found, out: &mut impl Write) -> io::Result<()> {
    let severity = match deviation.severity() {
        Severity::Error => "error",
        Severity::Quirk => "quirk",
    };
    writeln!(out, "{severity}  {}  {} ×: {}", deviation.name(), found.count, deviation.meaning())?;
    if let Some(producers) = deviation.producers() {
        writeln!(out, "       by {producers}")?;
    }
    for place in &found.places {
        let detail = if place.detail.is_empty() { String::new() } else { format!("  {}", place.detail) };
        writeln!(out, "       at {:#x}{detail}", place.offset.0)?;
    }
    let more = found.count.saturating_sub(found.places.len() as u64);
    if more > 0 {
        writeln!(out, "       and {more} more")?;
    }
    Ok(())
}

fn write_to(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing into a String does not fail.
    text.write_fmt(arguments).expect("invariant: memory is written to");
}
