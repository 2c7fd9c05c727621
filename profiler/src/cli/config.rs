//! What the command line means, checked.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cli::args::{Args, CallGraphArg, EventArg, NativeFramesArg};
use crate::cli::outputs::{Formats, OutputsError, check_places};
use crate::cli::trace_log::TraceLog;
use crate::kernel::Event;
use crate::output::{Destination, Format, OutputError, OutputOptions};
use crate::process::procfs;
use crate::record::{CallGraph, InterpreterFrames, LabelOptions, RecordOptions, Targets};
use jitprof_common::units::{Pid, Tid};

/// Time buckets of outputs that show time.
pub(super) const TIMED_BUCKET: Duration = Duration::from_millis(1);

/// A command line that cannot be carried out.
#[derive(Debug, thiserror::Error)]
pub enum UsageError {
    /// No option says what to profile.
    #[error(
        "say what to profile: --pid PID, --comm NAME, --user USER, --cgroup PATH, --container ID, --unit NAME or several \
         of these, --tid TID, --all, or -- COMMAND"
    )]
    NoTarget,
    /// Several options say what to profile, and exclude each other.
    #[error(
        "choose one of --tid, --all, -- COMMAND, and processes by --pid, --comm, --user, --cgroup, --container and --unit"
    )]
    SeveralTargets,
    /// The palette is unknown.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// An output cannot be written as it is named.
    #[error(transparent)]
    Outputs(#[from] OutputsError),
}

/// A checked command line: what `jitprof` without a subcommand does.
#[derive(Debug)]
pub struct Config {
    /// The command to launch, if any.
    pub command: Vec<OsString>,
    /// How to record; for a launched command the targets are filled in later.
    pub record: RecordOptions,
    /// When the recording ends by itself.
    pub duration: Option<Duration>,
    /// Where to, in which format. Empty: the default name.
    pub outputs: Vec<(Destination, Format)>,
    /// How outputs look.
    pub output_options: OutputOptions,
    /// Where the account goes as JSON.
    pub account: Option<Destination>,
    /// A log whose spans stand around the samples.
    pub trace: Option<TraceLog>,
    /// Neither status line nor account.
    pub quiet: bool,
}

impl Config {
    /// Checks the arguments against each other.
    ///
    /// # Errors
    /// They contradict each other, or name an unknown format or palette.
    pub fn from_args(mut args: Args) -> Result<Self, UsageError> {
        args.select.pid.append(&mut args.pids);
        let formats = Formats::of_profile(args.format.as_deref())?;
        let outputs = args.output.iter().map(|path| formats.output(path)).collect::<Result<Vec<_>, _>>()?;
        let account = args.account.as_deref().map(Destination::from_argument);
        check_places(&outputs, account.as_ref())?;
        let targets = targets(&args)?;
        let timed = outputs.iter().any(|(_, format)| *format == Format::Firefox);
        let bucket = if timed { TIMED_BUCKET } else { Duration::MAX };
        let trace = args.trace.clone().log(bucket);
        // Spans are looked up by the time of each sample.
        let bucket = if trace.is_some() { Duration::ZERO } else { bucket };
        let record = record_options(&args, targets, bucket);
        let several = matches!(&record.targets, Targets::All | Targets::Comm(_) | Targets::Matching(_))
            || matches!(&record.targets, Targets::Processes(pids) if pids.len() > 1);
        Ok(Self {
            command: args.command,
            duration: args.duration.map(|duration| duration.0),
            outputs,
            output_options: args.look.options(several)?,
            account,
            trace,
            quiet: args.quiet,
            record,
        })
    }
}

fn record_options(args: &Args, targets: Targets, bucket: Duration) -> RecordOptions {
    RecordOptions {
        inherit: !args.no_inherit,
        frequency_hz: args.freq,
        event: match args.event {
            EventArg::Auto => None,
            EventArg::Cycles => Some(Event::Cycles),
            EventArg::CpuClock => Some(Event::CpuClock),
        },
        kernel_stack: !args.user_only,
        user_stack: !args.kernel_only,
        call_graph: match args.call_graph {
            CallGraphArg::Auto => CallGraph::Auto,
            CallGraphArg::Eh => CallGraph::EhFrame,
            CallGraphArg::Fp => CallGraph::FramePointers,
        },
        unwind_mib: args.unwind_memory,
        peek: !args.no_peek,
        read_runtime: !args.no_read_runtime,
        probe_registrations: args.probe_registrations,
        interpreter: InterpreterFrames {
            native: args.native_frames == NativeFramesArg::Show,
            listed: !args.no_vm_frames,
        },
        verify_names: args.verify_names,
        #[cfg(feature = "gsym")]
        gsym: args.gsym.clone(),
        #[cfg(not(feature = "gsym"))]
        gsym: Vec::new(),
        title: args.look.title.clone().unwrap_or_else(|| default_title(&targets, &args.command)),
        bucket,
        labels: Some(LabelOptions::of_this_host()),
        continuous: false,
        log_kernel: args.verbose > 1,
        capture: args.capture.clone(),
        targets,
    }
}

fn targets(args: &Args) -> Result<Targets, UsageError> {
    let selected = args.select.targets(false);
    let chosen = [selected.is_some(), !args.tid.is_empty(), args.all, !args.command.is_empty()];
    match chosen.iter().filter(|chosen| **chosen).count() {
        0 => return Err(UsageError::NoTarget),
        1 => {}
        _ => return Err(UsageError::SeveralTargets),
    }
    Ok(if args.all {
        Targets::All
    } else if args.tid.is_empty() {
        // A command's process is filled in when there is one.
        selected.unwrap_or(Targets::Processes(Vec::new()))
    } else {
        Targets::Threads(args.tid.iter().copied().map(Tid).collect())
    })
}

/// The output when none was asked for: `jitprof-<comm>-<pid>.svg` in the working directory.
pub(super) fn default_output(targets: &Targets, command: &[OsString]) -> PathBuf {
    let name = match targets {
        Targets::All => "all".to_owned(),
        Targets::Comm(comm) => file_word(comm),
        Targets::Matching(selector) => file_word(&selector.to_string()),
        Targets::Processes(pids) => pids.first().map_or_else(String::new, |pid| {
            let comm = match command.first() {
                Some(program) => Path::new(program).file_name().unwrap_or(program).to_string_lossy().into_owned(),
                None => procfs::comm(*pid).unwrap_or_default(),
            };
            format!("{}-{pid}", file_word(&comm))
        }),
        Targets::Threads(tids) => tids.first().map_or_else(String::new, |tid| {
            format!("{}-{tid}", file_word(&procfs::comm(Pid(tid.0)).unwrap_or_default()))
        }),
    };
    PathBuf::from(format!("jitprof-{name}.svg"))
}

/// A name as part of a file name: the target chose it.
fn file_word(name: &str) -> String {
    let word: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '_' })
        .take(64)
        .collect();
    if word.is_empty() { "process".to_owned() } else { word }
}

pub(super) fn default_title(targets: &Targets, command: &[OsString]) -> String {
    match targets {
        Targets::All => "All processes".to_owned(),
        Targets::Comm(comm) => format!("Processes named {comm}"),
        Targets::Matching(selector) => format!("Processes of {selector}"),
        Targets::Processes(_) if !command.is_empty() => {
            command.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
        }
        Targets::Processes(pids) => {
            let name = |pid: &Pid| format!("{} ({pid})", procfs::comm(*pid).unwrap_or_default());
            pids.iter().take(8).map(name).collect::<Vec<_>>().join(", ")
        }
        Targets::Threads(tids) => {
            let name = |tid: &Tid| format!("thread {tid}");
            tids.iter().take(8).map(name).collect::<Vec<_>>().join(", ")
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn config(words: &[&str]) -> Result<Config, UsageError> {
        Config::from_args(Args::try_parse_from([&["jitprof"], words].concat()).unwrap())
    }

    #[test]
    fn exactly_one_kind_of_target_is_asked_for() {
        assert!(matches!(config(&[]), Err(UsageError::NoTarget)));
        assert!(matches!(config(&["-a", "-p", "1"]), Err(UsageError::SeveralTargets)));
        assert!(matches!(config(&["-p", "1", "--", "true"]), Err(UsageError::SeveralTargets)));
        let targets = |words: &[&str]| config(words).unwrap().record.targets;
        assert_eq!(targets(&["-p", "2,1", "-p", "2"]), Targets::Processes(vec![Pid(1), Pid(2)]));
        assert_eq!(targets(&["--comm", "x"]), Targets::Comm("x".to_owned()));
        let Targets::Matching(asked) = targets(&["-p", "1", "--unit", "nginx", "--user", "0,www-data"]) else {
            panic!("no selection");
        };
        assert_eq!(asked.to_string(), "pid 1 and user 0 or www-data and unit nginx");
        assert!(matches!(config(&["--tid", "1", "--cgroup", "/x"]), Err(UsageError::SeveralTargets)));
    }

    #[test]
    fn breakpoints_are_set_only_where_they_are_asked_for() {
        let probes = |words: &[&str]| config(words).unwrap().record.probe_registrations;
        assert!(!probes(&["-p", "1"]) && probes(&["-p", "1", "--probe-registrations"]));
        let contradicts = ["jitprof", "-p", "1", "--probe-registrations", "--no-read-runtime"];
        assert!(Args::try_parse_from(contradicts).is_err(), "nothing would look at what they tell");
    }

    #[test]
    fn formats_come_from_extensions_and_from_the_option() {
        let formats = |words: &[&str]| {
            config(words).map(|config| config.outputs.into_iter().map(|(_, format)| format).collect::<Vec<_>>())
        };
        assert_eq!(
            formats(&["-a", "-o", "a.svg", "-o", "b.folded", "-o", "c.pb.gz", "-o", "d.json"]).unwrap(),
            [Format::Svg, Format::Folded, Format::Pprof, Format::Firefox]
        );
        assert_eq!(formats(&["-a", "-o", "x", "--format", "folded"]).unwrap(), [Format::Folded]);
        assert_eq!(formats(&["-a", "-o", "-", "--format", "svg"]).unwrap(), [Format::Svg]);
        assert!(matches!(formats(&["-a", "-o", "-"]), Err(UsageError::Outputs(OutputsError::NoFormat { .. }))));
        assert!(matches!(formats(&["-a", "-o", "x.unknown"]), Err(UsageError::Outputs(OutputsError::Format(_)))));
    }

    #[test]
    fn a_hostile_process_name_makes_a_harmless_file_name() {
        assert_eq!(file_word("../../etc/x y"), ".._.._etc_x_y");
        assert_eq!(file_word(""), "process");
    }
}
