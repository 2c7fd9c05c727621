//! `jitprof trace`: what a trace log says, and pictures of it.

mod summary;

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use super::outputs::{Formats, OutputsError, stdout_count};
use super::subcommand::SubcommandError;
use super::trace_log::{self, LogOptions, TraceLog, TraceLogError};
use crate::cli::say::{say, say_part};
use crate::output::{
    Destination, Format, OutputError, OutputOptions, SavedError, check_writable, read_saved, write_chrome, write_file,
    write_firefox_spans, write_to,
};
use crate::plog::{Log, PlogError, ThreadMap, Trace, span_profile};
use crate::profile::Profile;
use crate::regular_file::open_regular;

/// What the times of a saved profile are rounded down to.
const SAVED_BUCKET: Duration = Duration::from_millis(1);

/// `trace` as typed.
#[derive(Debug, Args)]
pub struct Arguments {
    /// A log in HQNplog format
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Where to write the spans; repeatable; the extension picks the format: .svg and .folded by thread and name, .pb.gz
    /// for pprof, .json for the Firefox Profiler, .trace.json for Chrome and Perfetto; - is standard output
    #[arg(short, long, value_name = "FILE")]
    output: Vec<PathBuf>,

    /// The format for - and for files of unknown extension: svg, folded, pprof, firefox or chrome
    #[arg(long, value_name = "FORMAT")]
    format: Option<String>,

    /// Put the spans around the samples of this recording (a .json that jitprof wrote) instead of showing them alone
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,

    /// Title of the pictures
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,

    /// Names shown in the summary
    #[arg(long, value_name = "N", default_value_t = 30, allow_negative_numbers = true)]
    top: usize,

    #[command(flatten)]
    options: LogOptions,
}

/// Why a log cannot be shown.
#[derive(Debug, thiserror::Error)]
pub(super) enum TraceError {
    #[error(transparent)]
    Log(#[from] TraceLogError),
    #[error("{}: {source}", path.display())]
    Read { path: PathBuf, source: PlogError },
    #[error("cannot read {}: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("{} is no regular file", path.display())]
    NotRegular { path: PathBuf },
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error("{}: {source}", path.display())]
    Saved { path: PathBuf, source: SavedError },
    #[error(transparent)]
    Outputs(#[from] OutputsError),
    #[error("a recording is written as svg, folded, pprof or firefox; chrome is for spans alone")]
    ChromeOfSamples,
    #[error("the log has no spans, so there is nothing to draw")]
    NoSpans,
}

impl TraceError {
    /// Whether the reader of standard output has seen enough.
    pub(super) fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.is_broken_pipe())
    }
}

/// A profile's formats and one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TraceFormat {
    Chrome,
    Of(Format),
}

/// Reads the log, writes what was asked for, and says on `out` what is in the log, unless that is where an output went.
///
/// # Errors
/// The log or the saved profile cannot be read, or an output not be written.
pub(super) fn run(arguments: &Arguments, out: &mut impl Write) -> Result<(), SubcommandError> {
    let outputs = outputs(arguments)?;
    for (destination, _) in &outputs {
        check_writable(destination).map_err(TraceError::from)?;
    }
    let (mut log, trace) = trace_log::read(&arguments.file, &arguments.options).map_err(TraceError::from)?;
    let map = arguments.options.threads();
    let told = arguments.options.timestamps_told();
    let text = summary::text(&arguments.file, &log, &trace, &map, told, arguments.top);
    // Data on standard output is not mixed with talk.
    if stdout_count(outputs.iter().map(|(destination, _)| destination)) > 0 {
        say_part!("{text}");
    } else {
        write!(out, "{text}")?;
        out.flush()?;
    }
    if outputs.is_empty() && arguments.profile.is_none() {
        return Ok(());
    }
    match &arguments.profile {
        Some(saved) => write_combined(arguments, saved, &outputs)?,
        None => write_spans(arguments, &mut log, &trace, &map, &outputs)?,
    }
    Ok(())
}

fn outputs(arguments: &Arguments) -> Result<Vec<(Destination, TraceFormat)>, TraceError> {
    let of_name = |name: &str| match name {
        "chrome" => Ok(TraceFormat::Chrome),
        name => name.parse().map(TraceFormat::Of),
    };
    let named = arguments.format.as_deref().map(of_name).transpose()?;
    let formats = Formats { names: "svg, folded, pprof, firefox or chrome", of_path, named };
    let outputs = formats.outputs(&arguments.output)?;
    if arguments.profile.is_some() && outputs.iter().any(|(_, format)| *format == TraceFormat::Chrome) {
        return Err(TraceError::ChromeOfSamples);
    }
    Ok(outputs)
}

fn of_path(path: &Path) -> Result<TraceFormat, OutputError> {
    let name = path.to_string_lossy().to_ascii_lowercase();
    if name.ends_with(".trace.json") { Ok(TraceFormat::Chrome) } else { Format::from_path(path).map(TraceFormat::Of) }
}

/// Draws the log's spans alone, without a profile.
fn write_spans(
    arguments: &Arguments,
    log: &mut Log<File>,
    trace: &Trace,
    map: &ThreadMap,
    outputs: &[(Destination, TraceFormat)],
) -> Result<(), TraceError> {
    let name = arguments.file.file_name().unwrap_or(arguments.file.as_os_str()).to_string_lossy();
    let title = arguments.title.as_deref().unwrap_or(&name);
    let read = |source| TraceError::Read { path: arguments.file.clone(), source };
    let mut spans: Option<Profile> = None;
    for (destination, format) in outputs {
        match format {
            TraceFormat::Chrome => {
                write_to(destination, |writer| write_chrome(trace, log, map, title, writer))?;
            }
            TraceFormat::Of(Format::Firefox) => {
                let mut left_out = 0;
                write_to(destination, |writer| {
                    left_out = write_firefox_spans(trace, map, title, writer)?;
                    Ok(())
                })?;
                if left_out > 0 {
                    say!("the Firefox profile leaves out the shortest {left_out} spans; .trace.json has all");
                }
            }
            TraceFormat::Of(format) => {
                let profile = match &spans {
                    Some(profile) => profile,
                    None => spans.insert(span_profile(trace, map, title).map_err(read)?),
                };
                if profile.total() == 0 {
                    return Err(TraceError::NoSpans);
                }
                // Threads have names of their own, which the kernel's ids would only lengthen.
                write_file(profile, *format, &OutputOptions::default(), destination)?;
            }
        }
        announce(destination);
    }
    Ok(())
}

/// The log around the samples of a recording.
fn write_combined(
    arguments: &Arguments,
    saved: &Path,
    outputs: &[(Destination, TraceFormat)],
) -> Result<(), TraceError> {
    let failed = |source| TraceError::Saved { path: saved.to_owned(), source };
    let opened = open_regular(saved).map_err(|source| TraceError::Open { path: saved.to_owned(), source })?;
    let file = opened.ok_or_else(|| TraceError::NotRegular { path: saved.to_owned() })?;
    let mut profile = read_saved(BufReader::new(file)).map_err(failed)?;
    let log = TraceLog { path: arguments.file.clone(), options: arguments.options.clone(), bucket: SAVED_BUCKET };
    let slack = u64::try_from(SAVED_BUCKET.as_nanos()).unwrap_or(u64::MAX);
    for line in trace_log::add_spans(&mut profile, &log, None, slack)? {
        say!("{line}");
    }
    let options = OutputOptions { title: arguments.title.clone(), ..OutputOptions::default() };
    for (destination, format) in outputs {
        if let TraceFormat::Of(format) = format {
            write_file(&profile, *format, &options, destination)?;
            announce(destination);
        }
    }
    Ok(())
}

fn announce(destination: &Destination) {
    if let Destination::File(path) = destination {
        say!("written    {}", path.display());
    }
}
