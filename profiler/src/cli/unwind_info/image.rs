//! What a program or library says about its stacks.

use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use serde::Serialize;

use super::UnwindInfoError;
use super::names::Names;
use super::rules::{RowAt, describe, rows_around, step};
use crate::process::open::FileId;
use crate::regular_file::open_regular;
use jitprof_unwind::elf::{Build, Segment, Source, hex};
use jitprof_unwind::{Coverage, ElfRows, RowStats, Stretch, rows_of_elf};

/// Places at which names are looked for in a stretch.
const PROBES: u64 = 16;

/// A stretch of code and the first and the last function that was found in it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct NamedStretch {
    pub(super) at: Stretch,
    pub(super) first: Option<String>,
    pub(super) last: Option<String>,
}

/// The rows around an address.
#[derive(Clone, Debug, Serialize)]
pub(super) struct AtReport {
    /// The address that was asked for.
    pub(super) address: u64,
    /// The file or the kind of memory, in a process.
    pub(super) what: Option<String>,
    /// The function that has the address, where one is known.
    pub(super) function: Option<String>,
    /// The address that `rows` are given by: the file's own.
    pub(super) row_address: u64,
    /// The rule that holds at the address.
    pub(super) rule: String,
    /// How the caller is found by it.
    pub(super) step: String,
    /// The row that holds, and its neighbours.
    pub(super) rows: Vec<RowAt>,
}

/// The rows of an ELF file.
#[derive(Debug, Serialize)]
pub(super) struct FileReport {
    pub(super) path: String,
    pub(super) build_id: Option<String>,
    /// How many segments of the file are executable.
    pub(super) segments: usize,
    /// What became of its call frame information.
    pub(super) stats: RowStats,
    /// 64 KiB pages with rows.
    pub(super) pages: usize,
    /// What the table takes in memory.
    pub(super) table_bytes: usize,
    pub(super) build_ms: f64,
    pub(super) coverage: Coverage,
    pub(super) gaps: Vec<NamedStretch>,
    pub(super) unsupported: Vec<NamedStretch>,
    pub(super) at: Option<AtReport>,
}

/// Rows of a file, what tells it from others, and what the rows took.
pub(super) struct Image {
    pub(super) rows: ElfRows,
    pub(super) file: Option<FileId>,
    pub(super) build_ms: f64,
}

impl Image {
    /// The code of the file by its own addresses.
    pub(super) fn code(&self) -> Vec<Range<u64>> {
        self.rows.segments.iter().map(Segment::addresses).collect()
    }

    /// Where in the file an address of it is.
    pub(super) fn file_offset(&self, svma: u64) -> Option<u64> {
        let segment = self.rows.segments.iter().find(|segment| segment.addresses().contains(&svma))?;
        svma.checked_sub(segment.svma)?.checked_add(segment.file_offset)
    }

    /// Asks for the names of the functions in a stretch.
    pub(super) fn ask(&self, stretch: Stretch, names: &mut Names) {
        for svma in probes(stretch) {
            if let (Some(file), Some(offset)) = (self.file, self.file_offset(svma)) {
                names.ask(file, offset);
            }
        }
    }

    /// The function at an address of the file, once names have come.
    pub(super) fn name(&self, svma: u64, names: &Names) -> Option<String> {
        names.get(self.file?, self.file_offset(svma)?)
    }

    /// The functions in a stretch, once names have come.
    pub(super) fn named(&self, at: Stretch, names: &Names) -> NamedStretch {
        let mut found = probes(at).filter_map(|svma| self.name(svma, names));
        let first = found.next();
        NamedStretch { at, last: found.last().or_else(|| first.clone()), first }
    }

    /// What its rows say about an address of it.
    pub(super) fn at(&self, address: u64, svma: u64, names: &Names) -> AtReport {
        let rule = self.rows.table.rule_at(svma);
        AtReport {
            address,
            what: None,
            function: self.name(svma, names),
            row_address: svma,
            rule: describe(rule),
            step: step(rule),
            rows: rows_around(&self.rows.table, svma),
        }
    }
}

/// Addresses from a stretch's first byte to its last, at which functions are looked for: its ends are mostly padding.
fn probes(stretch: Stretch) -> impl Iterator<Item = u64> {
    let last = stretch.bytes().saturating_sub(1);
    (0..=PROBES)
        .map(move |index| stretch.start.saturating_add(last / PROBES * index))
        .chain([stretch.end.saturating_sub(1)])
}

pub(super) fn report(path: &Path, at: Option<u64>, most: usize) -> Result<FileReport, UnwindInfoError> {
    let file = open(path)?;
    let mut names = Names::spawn().map_err(UnwindInfoError::Thread)?;
    let build_id = Build::read(&Source::File(&file)).map(|build| hex(&build.id)).unwrap_or_default();
    let started = Instant::now();
    let rows = rows_of_elf(&file).map_err(|source| UnwindInfoError::Rows { path: path.to_owned(), source })?;
    let build_ms = milliseconds(started);
    let shown = path.display().to_string();
    let image = Image { rows, file: Some(names.add(file, &shown)), build_ms };
    let mut coverage = Coverage::of(&image.rows.table, &image.code(), most);
    let (gaps, unsupported) = (std::mem::take(&mut coverage.gaps), std::mem::take(&mut coverage.unsupported));
    let asked = at.map(|address| Stretch { start: address, end: address.saturating_add(1) });
    for stretch in gaps.iter().chain(&unsupported).chain(&asked) {
        image.ask(*stretch, &mut names);
    }
    names.wait();
    let named = |stretches: Vec<Stretch>| stretches.into_iter().map(|at| image.named(at, &names)).collect();
    Ok(FileReport {
        path: shown,
        build_id: Some(build_id).filter(|id| !id.is_empty()),
        segments: image.rows.segments.len(),
        stats: image.rows.stats,
        pages: image.rows.table.page_count(),
        table_bytes: image.rows.table.bytes(),
        build_ms,
        gaps: named(gaps),
        unsupported: named(unsupported),
        at: at.map(|address| image.at(address, address, &names)),
        coverage,
    })
}

fn open(path: &Path) -> Result<File, UnwindInfoError> {
    let opened = open_regular(path).map_err(|source| UnwindInfoError::Open { path: path.to_owned(), source })?;
    opened.ok_or_else(|| UnwindInfoError::NotRegular { path: path.to_owned() })
}

pub(super) fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}
