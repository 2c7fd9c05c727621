//! What is known about the stacks of a process.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Instant;

use serde::Serialize;

use super::UnwindInfoError;
use super::generated::{DumpReport, Generated};
use super::image::{AtReport, Image, NamedStretch, milliseconds};
use super::names::Names;
use super::rules::{describe, rows_around, step};
use crate::process::open::{MapPlace, TargetFile, VDSO, open_mapping};
use crate::process::{Mapping, MappingKind, own_vdso, procfs};
use crate::profile::printable;
use jitprof_common::units::Pid;
use jitprof_unwind::elf::svma_of_mapping;
use jitprof_unwind::{Coverage, Stretch, rows_of_elf, rows_of_elf_bytes};

/// The rows of an executable mapping.
#[derive(Debug, Serialize)]
pub(super) struct MappingReport {
    pub(super) at: Stretch,
    /// The path of a file, or the kind of other code.
    pub(super) what: String,
    /// Bytes of code: of a file what its segments say, of generated code what was announced.
    pub(super) code_bytes: u64,
    pub(super) covered_bytes: u64,
    /// Rows but those of gaps.
    pub(super) rows: u64,
    /// Why there are no rows.
    pub(super) trouble: Option<String>,
}

/// A stretch of a mapping that nothing covers.
#[derive(Debug, Serialize)]
pub(super) struct GapReport {
    /// The stretch by the process' addresses.
    #[serde(flatten)]
    pub(super) stretch: NamedStretch,
    pub(super) what: String,
}

/// The rows of a process, by mapping.
#[derive(Debug, Serialize)]
pub(super) struct ProcessReport {
    pub(super) pid: u32,
    pub(super) comm: String,
    pub(super) mappings: Vec<MappingReport>,
    pub(super) dumps: Vec<DumpReport>,
    /// Distinct files that rows were built of, and the time that took.
    pub(super) files: usize,
    pub(super) build_ms: f64,
    /// The largest, the largest first.
    pub(super) gaps: Vec<GapReport>,
    pub(super) at: Option<AtReport>,
}

/// What lies behind a mapping.
enum Behind<'a> {
    /// A file or the vDSO, and the distance from its addresses to the process'.
    Image(&'a Image, u64),
    Generated,
    Nothing(String),
}

/// Files by device and inode; one that gave no rows says why.
type Images = HashMap<(u64, u64), Result<Image, String>>;

pub(super) fn report(pid: Pid, at: Option<u64>, most: usize) -> Result<ProcessReport, UnwindInfoError> {
    let comm = procfs::comm(pid)?;
    let maps = procfs::maps(pid)?;
    if maps.mappings.is_empty() {
        return Err(UnwindInfoError::NoMemory(pid));
    }
    let mappings: Vec<Mapping> = maps.mappings.into_iter().filter(|mapping| mapping.prot.execute).collect();
    let mut names = Names::spawn().map_err(UnwindInfoError::Thread)?;
    let mut images = Images::new();
    let keys: Vec<Option<(u64, u64)>> =
        mappings.iter().map(|mapping| load(pid, mapping, &mut images, &mut names)).collect();
    let generated = Generated::read(pid)?;
    let behind: Vec<Behind<'_>> =
        mappings.iter().zip(&keys).map(|(mapping, key)| behind(mapping, *key, &images)).collect();

    let mut reports = Vec::new();
    let mut gaps: Vec<(usize, Stretch)> = Vec::new();
    for (index, (mapping, behind)) in mappings.iter().zip(&behind).enumerate() {
        let (report, missing) = mapping_report(mapping, behind, &generated, most);
        reports.push(report);
        gaps.extend(missing.into_iter().map(|gap| (index, gap)));
    }
    gaps.sort_by_key(|(_, gap)| (std::cmp::Reverse(gap.bytes()), gap.start));
    gaps.truncate(most);
    let place = at.map(|address| (address, mappings.iter().position(|mapping| range(mapping).contains(&address))));
    let asked = place.and_then(|(address, index)| Some((index?, Stretch { start: address, end: address + 1 })));
    for (index, stretch) in gaps.iter().chain(&asked) {
        if let Some(Behind::Image(image, bias)) = behind.get(*index) {
            image.ask(moved(*stretch, bias.wrapping_neg()), &mut names);
        }
    }
    names.wait();
    let gaps = gaps.into_iter().filter_map(|(index, gap)| {
        let what = reports.get(index)?.what.clone();
        Some(GapReport { stretch: named(gap, behind.get(index)?, &generated, &names), what })
    });
    Ok(ProcessReport {
        pid: pid.0,
        comm: printable(&comm).into_owned(),
        gaps: gaps.collect(),
        at: place.map(|(address, index)| at_report(address, index, &behind, &reports, &generated, &names)),
        mappings: reports,
        dumps: generated.dumps,
        files: images.values().filter(|image| image.is_ok()).count(),
        build_ms: images.values().flatten().map(|image| image.build_ms).sum(),
    })
}

/// Builds the rows of a mapping's file, once. Returns its key, if it has a file that can be opened.
fn load(pid: Pid, mapping: &Mapping, images: &mut Images, names: &mut Names) -> Option<(u64, u64)> {
    match mapping.kind {
        MappingKind::Vdso => {
            images.entry((0, 0)).or_insert_with(|| {
                let started = Instant::now();
                let image = own_vdso().map_err(|error| error.to_string())?;
                let rows = rows_of_elf_bytes(&image).map_err(|error| error.to_string())?;
                Ok(Image { rows, file: Some(VDSO), build_ms: milliseconds(started) })
            });
            Some((0, 0))
        }
        MappingKind::File => {
            let key = (u64::from(mapping.device.major) << 32 | u64::from(mapping.device.minor), mapping.inode);
            images.entry(key).or_insert_with(|| {
                let TargetFile { file, .. } =
                    open_mapping(pid, &MapPlace::of(mapping)).map_err(|error| error.to_string())?;
                let started = Instant::now();
                let rows = rows_of_elf(&file).map_err(|error| error.to_string())?;
                let build_ms = milliseconds(started);
                Ok(Image { rows, file: Some(names.add(file, &mapping.path)), build_ms })
            });
            Some(key)
        }
        _ => None,
    }
}

fn behind<'a>(mapping: &Mapping, key: Option<(u64, u64)>, images: &'a Images) -> Behind<'a> {
    match key.and_then(|key| images.get(&key)) {
        Some(Ok(image)) => {
            let offset = if mapping.kind == MappingKind::Vdso { 0 } else { mapping.file_offset.0 };
            match svma_of_mapping(&image.rows.segments, offset) {
                Some(svma) => Behind::Image(image, mapping.start.0.wrapping_sub(svma)),
                None => Behind::Nothing("no executable segment of the file is mapped here".to_owned()),
            }
        }
        Some(Err(trouble)) => Behind::Nothing(trouble.clone()),
        None if matches!(mapping.kind, MappingKind::Vsyscall | MappingKind::Special) => {
            Behind::Nothing("the kernel's own".to_owned())
        }
        None => Behind::Generated,
    }
}

/// The report, and the stretches that are not covered, by the process' addresses.
fn mapping_report(
    mapping: &Mapping,
    behind: &Behind<'_>,
    generated: &Generated,
    most: usize,
) -> (MappingReport, Vec<Stretch>) {
    let range = range(mapping);
    let (coverage, bias, trouble) = match behind {
        Behind::Image(image, bias) => {
            let mapped = range.start.wrapping_sub(*bias)..range.end.wrapping_sub(*bias);
            let code: Vec<Range<u64>> = image
                .code()
                .into_iter()
                .map(|code| code.start.max(mapped.start)..code.end.min(mapped.end))
                .filter(|code| code.start < code.end)
                .collect();
            (Coverage::of(&image.rows.table, &code, most), *bias, None)
        }
        Behind::Generated => {
            let code = generated.code_in(range.clone());
            let trouble = code.is_empty().then(|| "no dump announces code here".to_owned());
            (Coverage::of(&generated.table, &code, most), 0, trouble)
        }
        Behind::Nothing(trouble) => (Coverage::default(), 0, Some(printable(trouble).into_owned())),
    };
    let missing = coverage.gaps.iter().map(|gap| moved(*gap, bias)).collect();
    let rows = coverage.by_kind.iter().filter(|(kind, _)| **kind != "gap").map(|(_, count)| count.rows);
    let report = MappingReport {
        at: Stretch { start: range.start, end: range.end },
        what: what(mapping),
        code_bytes: coverage.code_bytes,
        covered_bytes: coverage.covered_bytes,
        rows: rows.sum(),
        trouble,
    };
    (report, missing)
}

fn named(at: Stretch, behind: &Behind<'_>, generated: &Generated, names: &Names) -> NamedStretch {
    match behind {
        Behind::Image(image, bias) => NamedStretch { at, ..image.named(moved(at, bias.wrapping_neg()), names) },
        _ => NamedStretch { at, first: generated.name(at.start), last: generated.name(at.end.saturating_sub(1)) },
    }
}

fn at_report(
    address: u64,
    index: Option<usize>,
    behind: &[Behind<'_>],
    reports: &[MappingReport],
    generated: &Generated,
    names: &Names,
) -> AtReport {
    let what = index.and_then(|index| reports.get(index)).map(|report| report.what.clone());
    match index.and_then(|index| behind.get(index)) {
        Some(Behind::Image(image, bias)) => AtReport { what, ..image.at(address, address.wrapping_sub(*bias), names) },
        Some(_) => {
            let rule = generated.table.rule_at(address);
            AtReport {
                address,
                what,
                function: generated.name(address),
                row_address: address,
                rule: describe(rule),
                step: step(rule),
                rows: rows_around(&generated.table, address),
            }
        }
        None => AtReport {
            address,
            what: None,
            function: None,
            row_address: address,
            rule: "no executable mapping".to_owned(),
            step: "a return address here is none: the stack is cut before it".to_owned(),
            rows: Vec::new(),
        },
    }
}

fn what(mapping: &Mapping) -> String {
    let deleted = if mapping.deleted { " (deleted)" } else { "" };
    match mapping.kind {
        MappingKind::Anonymous => "anonymous memory".to_owned(),
        _ => format!("{}{deleted}", printable(&mapping.path)),
    }
}

fn range(mapping: &Mapping) -> Range<u64> {
    mapping.start.0..mapping.end.0
}

fn moved(stretch: Stretch, distance: u64) -> Stretch {
    Stretch { start: stretch.start.wrapping_add(distance), end: stretch.end.wrapping_add(distance) }
}
