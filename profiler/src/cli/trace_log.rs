//! A trace log beside a recording: `--trace` and what belongs to it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};

use crate::plog::{
    ImportOptions, KindRule, LiveThreads, Log, Placed, PlogError, SampleTimes, ThreadMap, ThreadRule, Timestamps,
    Trace, place,
};
use crate::process::procfs;
use crate::profile::Profile;
use crate::profile::printable;
use crate::record::Targets;
use jitprof_common::units::{Pid, Tid};

/// How often a growing log is looked at for new threads.
const LOOK_PERIOD: Duration = Duration::from_secs(1);
/// Threads without a kernel thread that are listed by name.
const MAX_LISTED: usize = 8;

/// `--trace` of a recording.
#[derive(Clone, Debug, Default, Args)]
pub struct TraceArgs {
    /// An HQNplog trace log that the target writes: its spans stand around the samples of the same thread and time
    #[arg(long, value_name = "FILE", help_heading = "Trace log")]
    trace: Option<PathBuf>,

    /// How the log is meant.
    #[command(flatten)]
    options: LogOptions,
}

impl TraceArgs {
    /// The log, if one is asked for. `bucket`: time buckets that the profile gets when the spans are in it.
    pub fn log(self, bucket: Duration) -> Option<TraceLog> {
        let Self { trace, options } = self;
        trace.map(|path| TraceLog { path, options, bucket })
    }
}

/// What the description of the format leaves open.
#[derive(Clone, Debug, Default, Args)]
pub struct LogOptions {
    /// What a trace type means: begin, end, span, mark, counter or ignore; the type by name or number
    #[arg(long, value_name = "TYPE=KIND", help_heading = "Trace log")]
    hqn_types: Vec<KindRule>,

    /// Whether a timestamp is the start or the end of its duration [default: whichever makes fewer spans overlap]
    #[arg(long, value_enum, value_name = "WHICH", help_heading = "Trace log")]
    hqn_timestamp: Option<TimestampArg>,

    /// Nanoseconds from the log's clock (start time and timestamp) to CLOCK_MONOTONIC
    #[arg(long, value_name = "NS", default_value_t = 0, allow_negative_numbers = true, help_heading = "Trace log")]
    hqn_offset_ns: i64,

    /// The kernel's id of a thread of the log, such as 0x7f0123456740=4711; repeatable
    #[arg(long, value_name = "ID=TID", help_heading = "Trace log")]
    trace_thread: Vec<ThreadRule>,
}

/// `--hqn-timestamp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TimestampArg {
    /// Of the start.
    Start,
    /// Of the end.
    End,
}

/// A log that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub(super) struct TraceLogError {
    path: PathBuf,
    source: PlogError,
}

impl LogOptions {
    fn import(&self) -> ImportOptions {
        ImportOptions {
            kinds: self.hqn_types.clone(),
            timestamps: self.hqn_timestamp.map(|which| match which {
                TimestampArg::Start => Timestamps::Start,
                TimestampArg::End => Timestamps::End,
            }),
            ..ImportOptions::default()
        }
    }

    /// Threads as the user maps them.
    pub(super) fn threads(&self) -> ThreadMap {
        ThreadMap::told(&self.trace_thread)
    }

    /// Whether the user decided how timestamps are meant.
    pub(super) fn timestamps_told(&self) -> bool {
        self.hqn_timestamp.is_some()
    }
}

/// Opens and reads a log.
///
/// # Errors
/// [`TraceLogError`].
pub(super) fn read(path: &Path, options: &LogOptions) -> Result<(Log<File>, Trace), TraceLogError> {
    let failed = |source| TraceLogError { path: path.to_owned(), source };
    let mut log = Log::open_path(path).map_err(failed)?;
    let trace = Trace::import(&mut log, &options.import()).map_err(failed)?;
    Ok((log, trace))
}

/// `--trace FILE` of a recording.
#[derive(Clone, Debug)]
pub struct TraceLog {
    /// The log.
    pub path: PathBuf,
    /// How it is meant.
    pub options: LogOptions,
    /// Time buckets that the profile gets when the spans are in it.
    pub bucket: Duration,
}

/// Looks at the log while the recording runs.
#[derive(Debug)]
pub(super) struct Watch {
    live: LiveThreads,
    last: Option<Instant>,
}

impl Watch {
    /// Watches for the processes that are profiled.
    pub(super) fn new(log: &TraceLog, targets: &Targets) -> Self {
        let process_of = |tid: &Tid| procfs::status(Pid(tid.0)).ok().map(|status| status.tgid);
        let mut pids = match targets {
            Targets::Processes(pids) => pids.clone(),
            Targets::Threads(tids) => tids.iter().filter_map(process_of).collect(),
            // Which of many processes wrote the log is not known.
            Targets::All | Targets::Comm(_) | Targets::Matching(_) => Vec::new(),
        };
        pids.dedup();
        Self { live: LiveThreads::new(&log.path, pids), last: None }
    }

    /// Looks once a second.
    pub(super) fn tick(&mut self) {
        if self.last.is_none_or(|last| last.elapsed() >= LOOK_PERIOD) {
            self.live.look();
            self.last = Some(Instant::now());
        }
    }

    /// Looks for the last time.
    pub(super) fn finish(mut self) -> Self {
        self.live.look();
        self
    }
}

/// Puts the log's spans around the samples of a finished recording, and says on how many.
///
/// # Errors
/// The log cannot be read; the profile is as it was.
pub(super) fn add_spans(
    profile: &mut Profile,
    config: &TraceLog,
    learnt: Option<&Watch>,
    slack_ns: u64,
) -> Result<Vec<String>, TraceLogError> {
    let (log, trace) = read(&config.path, &config.options)?;
    let mut map = config.options.threads();
    if let Some(learnt) = learnt {
        map.merge(learnt.live.map());
    }
    let bucket_ns = u64::try_from(config.bucket.as_nanos()).unwrap_or(u64::MAX);
    let times = SampleTimes { offset_ns: config.options.hqn_offset_ns, slack_ns, bucket_ns };
    let placed = place(profile, &trace, &mut map, times)
        .map_err(|source| TraceLogError { path: config.path.clone(), source })?;
    let mut lines = described(&placed, profile, &trace, &map);
    lines.extend(log.warnings().iter().map(|warning| format!("  warning: {}", printable(warning))));
    Ok(lines)
}

fn described(placed: &Placed, profile: &Profile, trace: &Trace, map: &ThreadMap) -> Vec<String> {
    let mut lines = vec![format!(
        "trace log  {} spans around {} of {} samples ({} of threads in the log)",
        trace.counts.spans, placed.samples, placed.of_all, placed.of_known_threads
    )];
    for thread in &trace.threads {
        let known = map.get(thread.id).iter();
        lines.extend(known.map(|(tid, source)| format!("  thread {:#x} is {tid}: {source}", thread.id)));
    }
    let unknown = &placed.unknown_threads;
    if !unknown.is_empty() {
        let mut ids: Vec<_> = unknown.iter().take(MAX_LISTED).map(|id| format!("{id:#x}")).collect();
        if unknown.len() > MAX_LISTED {
            ids.push("…".to_owned());
        }
        lines.push(format!(
            "  {} threads of the log have no kernel thread ({}); name them with --trace-thread ID=TID",
            unknown.len(),
            ids.join(" ")
        ));
    }
    if let (false, Some((first, last))) = (placed.overlaps, placed.log_range) {
        let start = profile.meta().start.0;
        let end = start.saturating_add(u64::try_from(profile.meta().duration.as_nanos()).unwrap_or(u64::MAX));
        lines.push(format!(
            "  the log's times, {} to {} ns, do not meet the recording's, {start} to {end} ns of CLOCK_MONOTONIC; move \
             them with --hqn-offset-ns",
            first.0, last.0
        ));
    } else if !placed.start_added && placed.overlaps {
        lines.push("  the log's start time is left out: only without it the log meets the recording".to_owned());
    }
    lines
}
