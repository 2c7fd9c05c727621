//! Tables of functions: what uses the most, and what changed the most. As text for people, as JSON for programs.

use std::io::{self, Write};

use serde::Serialize;

use super::color::Class;
use super::error::OutputError;
use super::look::TOO_MANY_FRAMES;
use super::{Format, OutputOptions, folded, svg};
use crate::profile::printable;
use crate::profile::{
    Amount, Both, CallTree, Change, Diff, Direction, FunctionRef, Guesses, Normalize, Profile, Top, TopRow, TreeLayout,
    shorten,
};

/// Longest name in a table, in bytes.
const MAX_NAME_BYTES: usize = 120;
/// Guesses that are named below a table, and bytes of a name.
const SHOWN_GUESSES: usize = 3;
const MAX_GUESS_BYTES: usize = 60;
/// Nodes of a comparison's tree at most, about 100 MiB of JSON.
const MAX_NODES: usize = 1 << 20;

/// Writes the functions that use the most, at most `rows` of them.
///
/// # Errors
/// Those of the writer.
pub fn write_top(profile: &Profile, rows: usize, mut writer: impl Write) -> io::Result<()> {
    let top = Top::of(profile);
    let all = top.all;
    writeln!(
        writer,
        "{} samples, {:.2} s of CPU in {:.1} s",
        all.samples,
        seconds(all),
        profile.meta().duration.as_secs_f64()
    )?;
    writeln!(writer, "{:>8} {:>9} {:>8} {:>9}  {:<16} function", "own", "s", "total", "s", "kind")?;
    for TopRow { function, own, total } in top.rows.iter().take(rows) {
        writeln!(
            writer,
            "{:>7.2}% {:>9.2} {:>7.2}% {:>9.2}  {:<16} {}",
            percent(*own, all),
            seconds(*own),
            percent(*total, all),
            seconds(*total),
            class(function).label(),
            shown(function)
        )?;
    }
    left_out(top.rows.len(), rows, &mut writer)?;
    guessed(profile, all, writer)
}

/// Says which rows are a guess, and which may have what is theirs.
fn guessed(profile: &Profile, all: Amount, mut writer: impl Write) -> io::Result<()> {
    let Guesses { marked, unmarked, names } = Guesses::of(profile);
    if marked.samples == 0 {
        return Ok(());
    }
    let most =
        names.iter().take(SHOWN_GUESSES).map(|(name, _)| shorten(&printable(name), MAX_GUESS_BYTES).into_owned());
    let most = most.collect::<Vec<_>>().join(", ");
    let more = if names.len() > SHOWN_GUESSES { ", …" } else { "" };
    writeln!(
        writer,
        "{:.2}% of own time is a guess, which is marked ? ({most}{more}): a JVM knows inlined methods at its safepoints \
         only; of {:.2}% in other jitted code of the same processes a part may be that of methods inlined there",
        percent(marked, all),
        percent(unmarked, all)
    )
}

/// Writes the functions that changed the most, at most `rows` of them, with how sure that is.
///
/// # Errors
/// Those of the writer.
pub fn write_changes(diff: &Diff<'_>, rows: usize, mut writer: impl Write) -> io::Result<()> {
    for (name, side) in ["before", "after"].into_iter().zip(diff.sides) {
        let (all, duration) = (side.all, side.duration.as_secs_f64());
        let cpus = if duration > 0.0 { seconds(all) / duration } else { 0.0 };
        let cpu_s = seconds(all);
        writeln!(writer, "{name:<7} {} samples, {cpu_s:.2} s of CPU in {duration:.1} s: {cpus:.3} CPUs", all.samples)?;
    }
    let (unit, scale) = match diff.normalize {
        Normalize::Total => ("% of all CPU time", 100.0),
        Normalize::Duration => ("CPUs, in thousandths", 1000.0),
        Normalize::None => ("CPU seconds", 1.0),
    };
    writeln!(writer, "in {unit}; confidence from the numbers of samples, over all functions that were compared")?;
    writeln!(
        writer,
        "{:>9} {:>9} {:>9} {:>8}  {:>9} {:>8}  {:<16} function",
        "own", "before", "after", "sure", "total", "sure", "kind"
    )?;
    for change in diff.changes.iter().take(rows) {
        let value = |both: Both, side: usize| diff.value(both[side], side) * scale;
        writeln!(
            writer,
            "{:>+9.2} {:>9.2} {:>9.2} {:>8}  {:>+9.2} {:>8}  {:<16} {}",
            diff.change(change.own) * scale,
            value(change.own, 0),
            value(change.own, 1),
            sure(change.own_confidence),
            diff.change(change.total) * scale,
            sure(change.total_confidence),
            class(&change.function).label(),
            shown(&change.function)
        )?;
    }
    left_out(diff.changes.len(), rows, &mut writer)?;
    summed_up(diff).map_or(Ok(()), |said| writeln!(writer, "{said}"))
}

/// Which functions of a comparison are sums, for whoever shows them without the table.
pub fn summed_up(diff: &Diff<'_>) -> Option<String> {
    let (sums, not_told) = (diff.matching.sums(), diff.matching.not_told().join(", "));
    let said = || {
        format!(
            "{sums} functions are sums of several of one name, which one of the two does not tell apart by {not_told}"
        )
    };
    (sums > 0).then(said)
}

/// Writes a comparison: a differential flamegraph, folded lines with two counts, or JSON.
///
/// # Errors
/// [`OutputError::NoDiff`] for pprof, [`OutputError::NoSamples`] if the second profile is empty, those of the writer.
pub fn write_diff(
    profiles: [&Profile; 2],
    diff: &Diff<'_>,
    format: Format,
    options: &OutputOptions,
    mut writer: impl Write,
) -> Result<(), OutputError> {
    if profiles[1].total() == 0 {
        return Err(OutputError::NoSamples);
    }
    match format {
        Format::Svg => svg::write_diff(profiles, diff.factor(), options, writer)?,
        Format::Folded => folded::write_diff(profiles, diff.factor(), options, writer)?,
        Format::Firefox => {
            serde_json::to_writer(&mut writer, &json(profiles, diff)).map_err(io::Error::from)?;
            writer.write_all(b"\n")?;
        }
        Format::Pprof => return Err(OutputError::NoDiff),
    }
    Ok(())
}

#[derive(Serialize)]
struct DiffJson<'d> {
    unit: &'static str,
    sides: Vec<SideJson>,
    functions: Vec<FunctionJson<'d>>,
    nodes: Vec<NodeJson>,
    changes: Vec<ChangeJson<'d>>,
}

#[derive(Serialize)]
struct SideJson {
    samples: u64,
    cpu_ns: u64,
    duration_s: f64,
}

#[derive(Serialize)]
struct FunctionJson<'d> {
    name: std::borrow::Cow<'d, str>,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    module: Option<std::borrow::Cow<'d, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<std::borrow::Cow<'d, str>>,
}

/// Samples before and after.
#[derive(Serialize)]
struct NodeJson {
    parent: usize,
    function: usize,
    own: [u64; 2],
    total: [u64; 2],
}

#[derive(Serialize)]
struct ChangeJson<'d> {
    function: FunctionJson<'d>,
    own: [f64; 2],
    own_confidence: f64,
    total: [f64; 2],
    total_confidence: f64,
}

fn json<'d>(profiles: [&'d Profile; 2], diff: &'d Diff<'_>) -> DiffJson<'d> {
    let rest = FunctionRef::note(TOO_MANY_FRAMES);
    let layout = TreeLayout { direction: Direction::RootFirst, max_nodes: MAX_NODES, rest };
    let tree = CallTree::new(profiles.map(Some), &diff.matching, layout);
    let values = |both: Both| [diff.value(both[0], 0), diff.value(both[1], 1)];
    let samples = |both: Both| both.map(|amount| amount.samples);
    DiffJson {
        unit: match diff.normalize {
            Normalize::Total => "share",
            Normalize::Duration => "cpus",
            Normalize::None => "cpu_s",
        },
        sides: diff
            .sides
            .iter()
            .map(|side| SideJson {
                samples: side.all.samples,
                cpu_ns: side.all.cpu_ns,
                duration_s: side.duration.as_secs_f64(),
            })
            .collect(),
        functions: tree.frames().map(function_json).collect(),
        nodes: tree
            .nodes()
            .iter()
            .map(|node| NodeJson {
                parent: node.parent(),
                function: node.frame(),
                own: samples(node.own),
                total: samples(node.total),
            })
            .collect(),
        changes: diff
            .changes
            .iter()
            .map(|change: &Change<'_>| ChangeJson {
                function: function_json(&change.function),
                own: values(change.own),
                own_confidence: change.own_confidence,
                total: values(change.total),
                total_confidence: change.total_confidence,
            })
            .collect(),
    }
}

fn function_json<'d>(function: &FunctionRef<'d>) -> FunctionJson<'d> {
    FunctionJson {
        name: printable(function.name),
        kind: class(function).label(),
        module: function.module.map(printable),
        file: function.file.map(printable),
    }
}

/// What a function's colour would be; an inlined one counts as what it is.
fn class(function: &FunctionRef<'_>) -> Class {
    Class::of(function.as_frame())
}

fn shown(function: &FunctionRef<'_>) -> String {
    let name = printable(function.name);
    let mut shown = shorten(&name, MAX_NAME_BYTES).into_owned();
    // A bracketed module, such as [jit], says no more than the kind.
    if let Some(place) = function.file.or(function.module.filter(|module| !module.starts_with('['))) {
        shown.push_str("  ");
        shown.push_str(&shorten(&printable(place), MAX_NAME_BYTES));
    }
    shown
}

fn sure(confidence: f64) -> String {
    match confidence {
        _ if confidence >= 0.9999 => ">99.99%".to_owned(),
        _ if confidence >= 0.5 => format!("{:.2}%", (confidence * 1e4).floor() / 100.0),
        _ => "-".to_owned(),
    }
}

fn left_out(all: usize, shown: usize, mut writer: impl Write) -> io::Result<()> {
    match all.saturating_sub(shown) {
        0 => Ok(()),
        more => writeln!(writer, "and {more} more functions"),
    }
}

#[expect(clippy::cast_precision_loss, reason = "for people; more than 2^53 ns are 104 days")]
fn seconds(amount: Amount) -> f64 {
    amount.cpu_ns as f64 / 1e9
}

fn percent(amount: Amount, all: Amount) -> f64 {
    if all.cpu_ns == 0 { 0.0 } else { seconds(amount) / seconds(all) * 100.0 }
}
