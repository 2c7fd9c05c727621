//! What `jitprof unwind-info` found, as tables for a terminal.

use std::fmt;

use super::Report;
use super::generated::DumpReport;
use super::image::{AtReport, FileReport, NamedStretch};
use super::process::{MappingReport, ProcessReport};
use crate::profile::printable;
use jitprof_unwind::Stretch;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(report) => report.fmt(f),
            Self::Process(report) => report.fmt(f),
        }
    }
}

impl fmt::Display for FileReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (stats, coverage) = (&self.stats, &self.coverage);
        writeln!(f, "file         {}", printable(&self.path))?;
        writeln!(f, "build id     {}", self.build_id.as_deref().unwrap_or("none"))?;
        writeln!(f, "functions    {} in {} bytes of call frame information", stats.fdes, stats.section_bytes)?;
        for (count, what) in [
            (stats.corrupt, "make no sense and are left out"),
            (stats.outside_code, "are outside of executable segments: the linker has dropped them"),
            (stats.over_limit, "are beyond the limits of a table"),
        ] {
            if count > 0 {
                writeln!(f, "             {count} {what}")?;
            }
        }
        if stats.cut {
            writeln!(f, "             the table is full, or the section too large: it ends early")?;
        }
        if stats.unsearched > 0 {
            let bytes = stats.unsearched;
            writeln!(f, "             {bytes} bytes without were not searched for what signal handlers return to")?;
        }
        writeln!(
            f,
            "rows         {} in {} pages, {} bytes; built in {:.1} ms",
            stats.rows, self.pages, self.table_bytes, self.build_ms
        )?;
        writeln!(
            f,
            "covered      {} of {} bytes of code in {} segments ({})",
            coverage.covered_bytes,
            coverage.code_bytes,
            self.segments,
            percent(coverage.covered_bytes, coverage.code_bytes)
        )?;
        writeln!(f, "\n{:<22} {:>9} {:>12}", "rule", "rows", "bytes")?;
        for (kind, count) in &coverage.by_kind {
            writeln!(f, "{kind:<22} {:>9} {:>12}", count.rows, count.bytes)?;
        }
        self.fmt_unsupported(f)?;
        let title = format!(
            "{} stretches without a row (walked by frame pointer), {} of them shorter than 64 bytes: padding",
            coverage.gap_count, coverage.padding.rows
        );
        fmt_stretches(&title, &self.gaps, f)?;
        self.at.iter().try_for_each(|at| at.fmt(f))
    }
}

impl FileReport {
    fn fmt_unsupported(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reasons = &self.stats.unsupported;
        let reasons: Vec<String> = [
            (reasons.cfa_register, "the CFA is relative to another register"),
            (reasons.cfa_expression, "the CFA is an unknown expression"),
            (reasons.offset, "an offset is no multiple of 8, or beyond 256 KiB"),
            (reasons.return_address, "the return address is elsewhere"),
            (reasons.frame_pointer, "the frame pointer is elsewhere"),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count}: {what}"))
        .collect();
        if reasons.is_empty() {
            return Ok(());
        }
        let title = format!("{} stretches with rules that rows cannot express", self.coverage.unsupported_count);
        fmt_stretches(&title, &self.unsupported, f)?;
        writeln!(f, "  by reason, before neighbours are joined: {}", reasons.join("; "))
    }
}

impl fmt::Display for ProcessReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.mappings.iter().fold(0_u64, |sum, mapping| sum.saturating_add(mapping.rows));
        writeln!(
            f,
            "process {} ({}): {} executable mappings, {rows} rows; {} files, built in {:.1} ms",
            self.pid,
            self.comm,
            self.mappings.len(),
            self.files,
            self.build_ms
        )?;
        writeln!(f, "\n{:<33} {:>12} {:>9} {:>9}  mapping", "addresses", "bytes of code", "covered", "rows")?;
        self.mappings.iter().try_for_each(|mapping| fmt_mapping(mapping, f))?;
        writeln!(f)?;
        if self.dumps.is_empty() {
            writeln!(f, "generated code: no jitdump is mapped; see docs/guide/runtimes.md for the runtimes' flags")?;
        }
        self.dumps.iter().try_for_each(|dump| fmt_dump(dump, f))?;
        if !self.gaps.is_empty() {
            writeln!(f, "\nthe largest stretches without a row (walked by frame pointer)")?;
            for gap in &self.gaps {
                fmt_stretch(&gap.stretch, f)?;
                writeln!(f, "  in {}", gap.what)?;
            }
        }
        self.at.iter().try_for_each(|at| at.fmt(f))
    }
}

fn fmt_mapping(mapping: &MappingReport, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(
        f,
        "{:<33} {:>13} {:>9} {:>9}  {}",
        addresses(mapping.at),
        mapping.code_bytes,
        percent(mapping.covered_bytes, mapping.code_bytes),
        mapping.rows,
        mapping.what
    )?;
    match &mapping.trouble {
        Some(trouble) => writeln!(f, " ({trouble})"),
        None => writeln!(f),
    }
}

fn fmt_dump(dump: &DumpReport, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(
        f,
        "generated code: {}: {} functions; rows by a recorded EH frame {}, by their code {}, none {}",
        dump.path, dump.functions, dump.recorded, dump.from_code, dump.without
    )?;
    dump.trouble.iter().try_for_each(|trouble| writeln!(f, "  {}", printable(trouble)))
}

impl fmt::Display for AtReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\nat {:#x}: {}", self.address, self.function.as_deref().unwrap_or("no function is known here"))?;
        if let Some(what) = &self.what {
            write!(f, " in {what}")?;
        }
        if self.row_address != self.address {
            write!(f, ", {:#x} in the file", self.row_address)?;
        }
        writeln!(f)?;
        for row in &self.rows {
            let mark = if row.holds { '>' } else { ' ' };
            let end = if row.at.end == u64::MAX { "…".to_owned() } else { format!("{:#x}", row.at.end) };
            writeln!(f, "{mark} {:#x} to {end}  {}", row.at.start, row.rule)?;
        }
        writeln!(f, "step: {}", self.step)?;
        writeln!(f, "      (of a return address, the row of the byte before it is used)")
    }
}

fn fmt_stretches(title: &str, stretches: &[NamedStretch], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if stretches.is_empty() {
        return Ok(());
    }
    writeln!(f, "\n{title}")?;
    for stretch in stretches {
        fmt_stretch(stretch, f)?;
        writeln!(f)?;
    }
    Ok(())
}

fn fmt_stretch(stretch: &NamedStretch, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "  {:<33} {:>9} bytes  ", addresses(stretch.at), stretch.at.bytes())?;
    match (stretch.first.as_deref(), stretch.last.as_deref()) {
        (None, None) => write!(f, "no symbol"),
        (Some(first), Some(last)) if first == last => write!(f, "{first}"),
        (first, last) => write!(f, "{} … {}", first.unwrap_or("no symbol"), last.unwrap_or("no symbol")),
    }
}

fn addresses(stretch: Stretch) -> String {
    format!("{:#x}-{:#x}", stretch.start, stretch.end)
}

/// `99.5 %`; never rounded up to 100.
fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "–".to_owned();
    }
    #[expect(clippy::cast_precision_loss, reason = "a percentage for people")]
    let share = (part as f64 * 1000.0 / whole as f64).floor() / 10.0;
    format!("{share:.1} %")
}
