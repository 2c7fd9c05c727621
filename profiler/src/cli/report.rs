//! `jitprof report`: recordings read back, merged, selected, compared.

mod source;
#[cfg(test)]
mod tests;
mod time;

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::subcommand::SubcommandError;
use crate::archive::ArchiveError;
use crate::output::{
    ColorScheme, Destination, Format, OutputError, OutputOptions, PprofError, SavedError, check_writable,
    write_changes, write_diff, write_file, write_to, write_top,
};
use crate::plog::PlogError;
use crate::profile::{Diff, Filter, Normalize, Profile};
use source::{Range, Source};

/// Functions in a table.
const DEFAULT_TOP: usize = 40;

/// `report` as typed.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Recordings (pprof of any program; .json that jitprof wrote), or directories of `jitprof serve`; all are merged
    #[arg(value_name = "FILE|DIR", required_unless_present = "diff")]
    paths: Vec<OsString>,

    /// Compare two recordings: each a FILE, a DIR, or DIR@FROM..TO
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

    /// Processes; repeatable, as all of these: several values of one are alternatives
    #[arg(short, long, value_name = "PID", value_delimiter = ',', help_heading = "Selection")]
    pid: Vec<u32>,

    /// Processes of this name
    #[arg(long, value_name = "NAME", help_heading = "Selection")]
    comm: Vec<String>,

    /// Containers
    #[arg(long, value_name = "ID", help_heading = "Selection")]
    container: Vec<String>,

    /// systemd units
    #[arg(long, value_name = "UNIT", help_heading = "Selection")]
    unit: Vec<String>,

    /// Threads of this name
    #[arg(long, value_name = "NAME", help_heading = "Selection")]
    thread: Vec<String>,

    /// Any other label
    #[arg(long, value_name = "NAME=VALUE", value_parser = label, help_heading = "Selection")]
    label: Vec<(String, String)>,

    /// Where to write; repeatable; the extension picks the format (.svg .folded .pb.gz .json); - is standard output
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    output: Vec<PathBuf>,

    /// The format for - and for files of unknown extension
    #[arg(long, value_name = "FORMAT", help_heading = "Output")]
    format: Option<String>,

    /// Print a table of so many functions [default: 40 if nothing is written]
    #[arg(long, value_name = "N", help_heading = "Output")]
    top: Option<usize>,

    /// A frame for each thread at the root of the stacks
    #[arg(long, help_heading = "Output")]
    per_thread: bool,

    /// A frame for each process at the root of the stacks
    #[arg(long, help_heading = "Output")]
    per_process: bool,

    /// Source lines in the frames
    #[arg(long, help_heading = "Output")]
    lines: bool,

    /// Title of the flamegraph
    #[arg(long, value_name = "TEXT", help_heading = "Output")]
    title: Option<String>,

    /// Leave out frames narrower than this many percent of the picture
    #[arg(long, value_name = "PERCENT", default_value_t = 0.01, help_heading = "Output")]
    min_width: f64,

    /// Merge stacks from the leaf instead of the root: who calls the hot functions
    #[arg(long, help_heading = "Output")]
    reverse: bool,

    /// Root at the top
    #[arg(long, help_heading = "Output")]
    icicle: bool,

    /// Colours of the flamegraph: kind (kernel, native, JIT, …) or one of inferno's palettes
    #[arg(long, value_name = "PALETTE", default_value = "kind", help_heading = "Output")]
    color: String,
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
    Open { path: PathBuf, source: PlogError },
    #[error("{}: {source}", path.display())]
    Pprof { path: PathBuf, source: PprofError },
    #[error("{}: {source}", path.display())]
    Saved { path: PathBuf, source: SavedError },
    #[error("{}: {source}", path.display())]
    Archive { path: PathBuf, source: ArchiveError },
    #[error("{} holds no windows of `jitprof serve`; name recordings by their files", .0.display())]
    NoWindows(PathBuf),
    #[error("no samples of that time and selection in {}", list(.0))]
    Nothing(Vec<OsString>),
    #[error("{text:?} is no time; write 2026-11-21T03:12:00Z, 03:12, -15m, or now")]
    Time { text: String },
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error("--normalize says how two recordings are compared; name them with --diff BEFORE AFTER")]
    NothingToNormalize,
    #[error("--output - needs --format (svg, folded, pprof or firefox)")]
    NoFormat,
    #[error("only one output can go to standard output")]
    SeveralStdout,
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
    let outputs = outputs(arguments)?;
    for (destination, _) in &outputs {
        check_writable(destination).map_err(ReportError::from)?;
    }
    let mut options = options(arguments)?;
    let filter = filter(arguments);
    let range = Range::parse(arguments.from.as_deref(), arguments.to.as_deref())?;
    let mut table = Vec::new();
    let rows = arguments.top.unwrap_or(DEFAULT_TOP);
    let written = if let [before_name, after_name] = arguments.diff.as_slice() {
        let side = |name| read(std::slice::from_ref(name), &range, &filter);
        let (before, after) = (side(before_name)?, side(after_name)?);
        let named = format!("{} compared with {}", after_name.to_string_lossy(), before_name.to_string_lossy());
        options.title.get_or_insert(named);
        let diff = Diff::new(&before, &after, arguments.normalize.map(Normalize::from).unwrap_or_default());
        write_changes(&diff, rows, &mut table)?;
        write_all(&outputs, |destination, format| {
            write_to(destination, |writer| write_diff([&before, &after], &diff, format, &options, writer))
        })
    } else if arguments.normalize.is_some() {
        return Err(ReportError::NothingToNormalize.into());
    } else {
        let profile = read(&arguments.paths, &range, &filter)?;
        write_top(&profile, rows, &mut table)?;
        write_all(&outputs, |destination, format| write_file(&profile, format, &options, destination))
    };
    written?;
    if outputs.iter().any(|(destination, _)| *destination == Destination::Stdout) {
        // Data on standard output is not mixed with talk.
        if arguments.top.is_some() {
            eprint!("{}", String::from_utf8_lossy(&table));
        }
    } else if outputs.is_empty() || arguments.top.is_some() {
        out.write_all(&table)?;
        out.flush()?;
    }
    Ok(())
}

fn write_all(
    outputs: &[(Destination, Format)],
    mut write: impl FnMut(&Destination, Format) -> Result<(), OutputError>,
) -> Result<(), ReportError> {
    for (destination, format) in outputs {
        write(destination, *format)?;
        if let Destination::File(path) = destination {
            eprintln!("written    {}", path.display());
        }
    }
    Ok(())
}

/// Everything that is named, as one profile.
fn read(names: &[OsString], range: &Range, filter: &Filter) -> Result<Profile, ReportError> {
    let sources = names.iter().map(|name| Source::parse(name, range)).collect::<Result<Vec<_>, _>>()?;
    source::merge(&sources, filter)?.ok_or_else(|| ReportError::Nothing(names.to_vec()))
}

fn filter(arguments: &Arguments) -> Filter {
    let mut filter = Filter::default();
    arguments.pid.iter().for_each(|pid| filter.want("pid", &pid.to_string()));
    let named = [
        ("comm", &arguments.comm),
        ("container", &arguments.container),
        ("unit", &arguments.unit),
        ("thread", &arguments.thread),
    ];
    for (name, values) in named {
        values.iter().for_each(|value| filter.want(name, value));
    }
    arguments.label.iter().for_each(|(name, value)| filter.want(name, value));
    filter
}

fn options(arguments: &Arguments) -> Result<OutputOptions, ReportError> {
    Ok(OutputOptions {
        title: arguments.title.clone(),
        subtitle: None,
        min_width_percent: arguments.min_width,
        reverse: arguments.reverse,
        inverted: arguments.icicle,
        colors: arguments.color.parse::<ColorScheme>()?,
        lines: arguments.lines,
        per_thread: arguments.per_thread,
        per_process: arguments.per_process,
        without_labels: false,
    })
}

fn outputs(arguments: &Arguments) -> Result<Vec<(Destination, Format)>, ReportError> {
    let named: Option<Format> = arguments.format.as_deref().map(str::parse).transpose()?;
    let mut outputs = Vec::new();
    for path in &arguments.output {
        let destination = Destination::from_argument(path);
        let format = match (Format::from_path(path), named) {
            (_, named) if destination == Destination::Stdout => named.ok_or(ReportError::NoFormat)?,
            (Ok(format), _) => format,
            (Err(_), Some(named)) => named,
            (Err(error), None) => return Err(error.into()),
        };
        outputs.push((destination, format));
    }
    if outputs.iter().filter(|(destination, _)| *destination == Destination::Stdout).count() > 1 {
        return Err(ReportError::SeveralStdout);
    }
    Ok(outputs)
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

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("wants NAME=VALUE, such as runtime=node".to_owned()),
    }
}
