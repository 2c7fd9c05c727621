//! `jitprof report`: recordings read back, merged, selected, compared.

mod dataset;
mod directory;
#[cfg(test)]
mod format_tests;
mod source;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::args::NativeFramesArg;
use super::filter::FilterArgs;
use super::look::LookArgs;
use super::outputs::{Formats, OutputsError, stdout_count};
use super::status::columns_of;
use super::subcommand::SubcommandError;
use crate::advice::is_evaluation_loop;
use crate::cli::say::{say, say_part};
use crate::output::frame_names::merge_tiers;
use crate::output::{
    Destination, Format, OutputError, PprofError, SavedError, Sheet, SheetFormat, check_writable, summed_up,
    write_changes, write_diff, write_file, write_to, write_top,
};
use crate::profile::{Diff, Filter, FrameRef, Normalize, Profile};
use crate::symbol::FrameKind;
use crate::times::TimeError;
use source::{Range, Source};

/// Functions in a table.
const DEFAULT_TOP: usize = 40;
/// Columns of a table that is not printed on a terminal.
const TABLE_COLUMNS: usize = 120;

/// `report` as typed.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Recordings (pprof of any program; .json that jitprof wrote), directories of `jitprof serve`, datasets of
    /// `[archive.parquet]` (DIR, s3://…, FILE.parquet); all are merged
    #[arg(value_name = "FILE|DIR|URL", required_unless_present = "diff")]
    paths: Vec<OsString>,

    /// Compare two recordings: each a FILE, DIR or URL, which @FROM..TO and @NAME=VALUE may follow
    #[arg(long, num_args = 2, value_names = ["BEFORE", "AFTER"], conflicts_with = "paths")]
    diff: Vec<OsString>,

    /// What is compared: parts of all CPU time, CPUs busy (CPU time by recorded time), or CPU seconds [default: total]
    #[arg(long, value_enum, value_name = "BY")]
    normalize: Option<NormalizeArg>,

    /// From when on: 2026-11-21T03:12:00Z, 03:12 (the last time it was so, local time), -15m, or now
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, help_heading = "Selection")]
    from: Option<String>,

    /// Until when
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, help_heading = "Selection")]
    to: Option<String>,

    /// Whose samples.
    #[command(flatten)]
    filter: FilterArgs,

    /// Where to write; repeatable; the extension picks the format (.svg .folded .pb.gz .json); - is standard output
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    output: Vec<PathBuf>,

    /// The format for - and for files of unknown extension
    #[arg(long, value_name = "FORMAT", help_heading = "Output")]
    format: Option<String>,

    /// Print a table of so many functions [default: 40 if nothing is written]
    #[arg(long, value_name = "N", allow_negative_numbers = true, help_heading = "Output")]
    top: Option<usize>,

    /// Sum up by a label, such as host, version or container; with --top also functions for each of its values
    #[arg(long, value_name = "LABEL", help_heading = "Output")]
    by: Option<String>,

    /// How the table is printed
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = SheetFormat::Text, help_heading = "Output")]
    table: SheetFormat,

    /// Whether the native frames of an interpreter's evaluation loop are shown
    #[arg(long, value_enum, value_name = "WHICH", default_value_t = NativeFramesArg::Show, help_heading = "Output")]
    native_frames: NativeFramesArg,

    /// How outputs look.
    #[command(flatten)]
    look: LookArgs,
}

/// `--normalize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum NormalizeArg {
    /// Parts of all CPU time.
    Total,
    /// CPUs busy.
    Duration,
    /// CPU seconds.
    None,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReportError {
    #[error("cannot read {}: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("{} is no regular file", path.display())]
    NotRegular { path: PathBuf },
    #[error(
        "there is no file {0}; `report` reads recordings: `jitprof {0} -d 10 -o {0}.pb.gz` makes one of process {0}, \
         which `jitprof report {0}.pb.gz` shows"
    )]
    NoRecording(u32),
    #[error("{}: {source}{}", path.display(), what_is_read(source))]
    Pprof { path: PathBuf, source: PprofError },
    #[error("{}: {source}", path.display())]
    Saved { path: PathBuf, source: SavedError },
    #[cfg(feature = "serve")]
    #[error("{}: {source}", path.display())]
    Archive { path: PathBuf, source: crate::archive::ArchiveError },
    #[cfg(not(feature = "serve"))]
    #[error("{} is a directory, and this jitprof was built without the feature `serve`, which reads them", .0.display())]
    NoArchive(PathBuf),
    #[cfg(feature = "serve")]
    #[error("{} holds no windows of `jitprof serve`; name recordings by their files", .0.display())]
    NoWindows(PathBuf),
    #[cfg(feature = "parquet")]
    #[error(transparent)]
    Dataset(#[from] crate::dataset::DatasetError),
    #[cfg(not(feature = "parquet"))]
    #[error("{} is a dataset, and this jitprof was built without the feature `parquet`, which reads them", .0.display())]
    NoDataset(PathBuf),
    #[error("no samples of that time and selection in {}", list(.0))]
    Nothing(Vec<OsString>),
    #[error(transparent)]
    Time(#[from] TimeError),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error("--normalize says how two recordings are compared; name them with --diff BEFORE AFTER")]
    NothingToNormalize,
    #[error(transparent)]
    Outputs(#[from] OutputsError),
}

/// What can be read, for a file that is something else.
fn what_is_read(error: &PprofError) -> &'static str {
    match error {
        PprofError::Wire { .. } | PprofError::Index { .. } => {
            "; `report` reads pprof files (.pb.gz), profiles saved for the Firefox Profiler (.json) and directories of \
             `jitprof serve`, not folded stacks or SVG"
        }
        _ => "",
    }
}

fn list(names: &[OsString]) -> String {
    names.iter().map(|name| name.to_string_lossy()).collect::<Vec<_>>().join(", ")
}

impl ReportError {
    /// Whether the reader of standard output has seen enough.
    pub(super) fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.is_broken_pipe())
    }
}

/// Reads what is named, writes what was asked for, and prints the table on `out`.
///
/// # Errors
/// Something cannot be read or written, or there are no samples.
pub(super) fn run(arguments: &Arguments, out: &mut impl Write) -> Result<(), SubcommandError> {
    let formats = Formats::of_profile(arguments.format.as_deref()).map_err(ReportError::from)?;
    let outputs = formats.outputs(&arguments.output).map_err(ReportError::from)?;
    for (destination, _) in &outputs {
        check_writable(destination).map_err(ReportError::from)?;
    }
    let mut options = arguments.look.options(false).map_err(ReportError::from)?;
    let filter = arguments.filter.filter();
    let range = Range::parse(arguments.from.as_deref(), arguments.to.as_deref()).map_err(ReportError::from)?;
    let shown = |profile: Profile| match arguments.native_frames {
        NativeFramesArg::Show => profile,
        NativeFramesArg::Hide => profile.without(is_native_loop),
    };
    // Files are written with the tiers or without as each format has it.
    let merged = |profile: &Profile| arguments.look.shape.merge_tiers.then(|| profile.showing(merge_tiers));
    let is_data = stdout_count(outputs.iter().map(|(destination, _)| destination)) > 0;
    let columns = if is_data { columns_of(io::stderr()) } else { columns_of(io::stdout()) };
    let room = columns.unwrap_or(TABLE_COLUMNS);
    let mut table = Vec::new();
    let rows = arguments.top.unwrap_or(DEFAULT_TOP);
    let written = if let [before_name, after_name] = arguments.diff.as_slice() {
        let side = |name| read(std::slice::from_ref(name), &range, &filter).map(shown);
        let side = |name| side(name).map(|profile| merged(&profile).unwrap_or(profile));
        let (before, after) = (side(before_name)?, side(after_name)?);
        // Names with places are no names of a file that has none.
        options.lines &= has_places(&before) && has_places(&after);
        let formats: Vec<Format> = outputs.iter().map(|(_, format)| *format).collect();
        let named = format!("{} compared with {}", after_name.to_string_lossy(), before_name.to_string_lossy());
        options.title.get_or_insert(named);
        let diff = Diff::new(&before, &after, arguments.normalize.map(Normalize::from).unwrap_or_default());
        remarks(arguments, &formats, [&before, &after], &diff).iter().for_each(|remark| say!("{remark}"));
        match (&arguments.by, arguments.table) {
            (None, SheetFormat::Text) => write_changes(&diff, rows, &mut table)?,
            (by, format) => {
                let sheet = match (by, arguments.top) {
                    (Some(by), None) => Sheet::of_value_changes(&before, &after, by),
                    (by, _) => Sheet::of_changes(&before, &after, diff.normalize, (rows, by.as_deref())),
                };
                sheet.write(format, room, &mut table)?;
            }
        }
        write_all(&outputs, |destination, format| {
            write_to(destination, |writer| write_diff([&before, &after], &diff, format, &options, writer))
        })
    } else if arguments.normalize.is_some() {
        return Err(ReportError::NothingToNormalize.into());
    } else {
        let profile = shown(read(&arguments.paths, &range, &filter)?);
        let merged = merged(&profile);
        let of_table = merged.as_ref().unwrap_or(&profile);
        match (&arguments.by, arguments.table) {
            (None, SheetFormat::Text) => write_top(of_table, rows, &mut table)?,
            (by, format) => {
                let sheet = match (by, arguments.top) {
                    (Some(by), None) => Sheet::of_values(of_table, by),
                    (by, _) => Sheet::of_functions(of_table, rows, by.as_deref()),
                };
                sheet.write(format, room, &mut table)?;
            }
        }
        write_all(&outputs, |destination, format| write_file(&profile, format, &options, destination))
    };
    written?;
    if is_data {
        // Data on standard output is not mixed with talk.
        if arguments.top.is_some() {
            say_part!("{}", String::from_utf8_lossy(&table));
        }
    } else if outputs.is_empty() || arguments.top.is_some() {
        out.write_all(&table)?;
        out.flush()?;
    }
    Ok(())
}

/// What is said beside a comparison: that names have no lines where they shall, and which functions are sums where no table
/// in words says so.
fn remarks(arguments: &Arguments, formats: &[Format], sides: [&Profile; 2], diff: &Diff<'_>) -> Vec<String> {
    let without = arguments.diff.iter().zip(sides).filter(|(_, side)| !has_places(side));
    let without: Vec<OsString> = without.map(|(name, _)| name.clone()).collect();
    let no_lines = arguments.look.shape.lines && !without.is_empty();
    let no_lines = no_lines.then(|| format!("no lines in the frames: no source files are named in {}", list(&without)));
    let is_printed = formats.is_empty() || arguments.top.is_some();
    let is_told = is_printed && arguments.by.is_none() && arguments.table == SheetFormat::Text;
    // Sums of a label's values have no functions, and pictures and folded lines have names alone.
    let has_functions = is_printed && (arguments.by.is_none() || arguments.top.is_some());
    let is_shown = has_functions || formats.contains(&Format::Firefox);
    no_lines.into_iter().chain(summed_up(diff).filter(|_| is_shown && !is_told)).collect()
}

/// Whether it says of anything which file it is from.
fn has_places(profile: &Profile) -> bool {
    profile.frame_ids().any(|id| profile.frame(id).source.is_some())
}

/// Whether a frame is the native one of an interpreter's loop.
fn is_native_loop(frame: FrameRef<'_>) -> bool {
    frame.kind == FrameKind::Native && is_evaluation_loop(frame.name)
}

fn write_all(
    outputs: &[(Destination, Format)],
    mut write: impl FnMut(&Destination, Format) -> Result<(), OutputError>,
) -> Result<(), ReportError> {
    for (destination, format) in outputs {
        write(destination, *format)?;
        if let Destination::File(path) = destination {
            say!("written    {}", path.display());
        }
    }
    Ok(())
}

/// Everything that is named, as one profile.
fn read(names: &[OsString], range: &Range, filter: &Filter) -> Result<Profile, ReportError> {
    let sources = names.iter().map(|name| Source::parse(name, range, filter)).collect::<Result<Vec<_>, _>>()?;
    source::merge(&sources)?.ok_or_else(|| ReportError::Nothing(names.to_vec()))
}

impl From<NormalizeArg> for Normalize {
    fn from(argument: NormalizeArg) -> Self {
        match argument {
            NormalizeArg::Total => Self::Total,
            NormalizeArg::Duration => Self::Duration,
            NormalizeArg::None => Self::None,
        }
    }
}
