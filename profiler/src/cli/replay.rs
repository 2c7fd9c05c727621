//! `jitprof replay`.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::app::write_account;
use super::config::TIMED_BUCKET;
use super::look::LookArgs;
use super::outputs::{Formats, OutputsError, check_places};
use crate::capture::{CaptureError, Replayed, replay};
use crate::cli::say::{say, say_part};
use crate::output::{Destination, Format, OutputError, check_writable, write_file};
use crate::profile::Profile;
use crate::regular_file::open_regular;

/// `replay` as typed.
#[derive(Debug, Args)]
pub struct Arguments {
    /// What `jitprof --capture FILE` wrote
    #[arg(value_name = "FILE")]
    capture: PathBuf,

    /// Where to write; repeatable; the extension picks the format (.svg .folded .pb.gz .json); - is standard output
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    output: Vec<PathBuf>,

    /// The format for - and for files of unknown extension
    #[arg(long, value_name = "FORMAT", help_heading = "Output")]
    format: Option<String>,

    /// How outputs look.
    #[command(flatten)]
    look: LookArgs,

    /// Also write the account (samples taken, lost, unnamed, and why) as JSON
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    account: Option<PathBuf>,
}

/// Why a capture gives nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReplayError {
    #[error("cannot read {}: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("{} is no regular file", path.display())]
    NotRegular { path: PathBuf },
    #[error("{}: {source}", path.display())]
    Capture { path: PathBuf, source: CaptureError },
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error(transparent)]
    Outputs(#[from] OutputsError),
}

impl ReplayError {
    /// Whether the reader of standard output has seen enough.
    pub(super) fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.is_broken_pipe())
    }
}

/// Replays a capture, and writes what was asked for; without an output, the account is all that is shown.
///
/// # Errors
/// [`ReplayError`], in one sentence.
pub(super) fn run(arguments: &Arguments) -> Result<(), ReplayError> {
    let path = arguments.capture.clone();
    let outputs = Formats::of_profile(arguments.format.as_deref())?.outputs(&arguments.output)?;
    let account = arguments.account.as_deref().map(Destination::from_argument);
    check_places(&outputs, account.as_ref())?;
    for destination in outputs.iter().map(|(destination, _)| destination).chain(&account) {
        check_writable(destination)?;
    }
    let opened = open_regular(&path).map_err(|source| ReplayError::Open { path: path.clone(), source })?;
    let file = opened.ok_or_else(|| ReplayError::NotRegular { path: path.clone() })?;
    let timed = outputs.iter().any(|(_, format)| *format == Format::Firefox);
    let bucket = timed.then(|| u64::try_from(TIMED_BUCKET.as_nanos()).unwrap_or(u64::MAX));
    let replayed = replay(file, bucket, |_| {}).map_err(|source| ReplayError::Capture { path, source })?;
    let options = arguments.look.options(replayed.is_of_several)?;
    say_part!("{}", said(&replayed));
    say_part!("{}", replayed.recorded.account);
    if let Some(destination) = &account {
        write_account(destination, &replayed.recorded.account)?;
    }
    let profile = whole(replayed);
    for (destination, format) in &outputs {
        write_file(&profile, *format, &options, destination)?;
        if let Destination::File(path) = destination {
            say!("written    {}", path.display());
        }
    }
    Ok(())
}

/// What there is to say of the capture itself.
fn said(replayed: &Replayed) -> String {
    let mut said = format!("capture    {} inputs, of jitprof {}\n", replayed.inputs, replayed.header.version);
    if replayed.is_truncated {
        said += "           it ends before the recording did: what follows is missing\n";
    }
    let (requests, rows) = (replayed.strayed.requests, replayed.strayed.rows);
    if requests > 0 || rows > 0 {
        said += &format!(
            "           this version asks for more than was captured: {requests} requests and {rows} rows are without an \
             answer\n"
        );
    }
    said
}

/// Windows of a continuous recording as one profile.
fn whole(replayed: Replayed) -> Profile {
    let mut windows = replayed.windows.into_iter().map(|window| window.profile);
    let Some(mut whole) = windows.next() else { return replayed.recorded.profile };
    let mut duration: Duration = whole.meta().duration;
    for window in windows {
        whole.absorb(&window, |row| Some(row.time));
        duration += window.meta().duration;
    }
    whole.set_duration(duration);
    whole
}
