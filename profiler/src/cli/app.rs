//! From the command line to an exit status.

use std::io::{self, IsTerminal, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitCode, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use crate::account::Account;
use crate::cli::args::Args;
use crate::cli::check;
use crate::cli::config::{Config, default_output};
use crate::cli::say::{say, say_part};
use crate::cli::status::StatusLine;
use crate::cli::subcommand::Subcommand;
use crate::cli::trace_log::{TraceLogError, Watch, add_spans};
use crate::kernel::{CommandOutput, Launch, Waker};
use crate::output::{self, Destination, Format, OutputError, check_writable, write_aside, write_file, write_to};
use crate::record::{End, RecordError, Recorded, Recorder, Targets};
use crate::symbol::serve_if_asked;

/// Something failed while running.
const FAILED: u8 = 1;
/// The command line makes no sense.
const USAGE: u8 = 2;
/// The run took no samples.
const NO_SAMPLES: u8 = 3;

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
enum AppError {
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error("{0}; the outputs are written without its spans")]
    Trace(#[from] TraceLogError),
    #[error("cannot start {command}: {source}")]
    Launch { command: String, source: io::Error },
    #[error("{what}: {source}")]
    System { what: &'static str, source: io::Error },
    #[error("no samples: {0}")]
    NothingSampled(String),
    #[error("not everything could be written to its place")]
    NotInPlace,
    #[error("interrupted while attaching; nothing was sampled, and nothing written")]
    Interrupted,
    #[error("the recording thread panicked; please report this with the lines above")]
    Panicked,
}

/// Runs jitprof; the process' exit status is the result.
pub fn run() -> ExitCode {
    if let Some(done) = serve_if_asked() {
        return done;
    }
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => error.exit(),
    };
    if !args.subcommand.as_ref().is_some_and(Subcommand::has_own_log) {
        init_log(args.verbose);
    }
    if let Some(subcommand) = args.subcommand {
        return match subcommand.run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
            Err(error) => complain(&error.to_string(), error.status().unwrap_or(FAILED)),
        };
    }
    if args.check {
        return match check::print() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => complain(&error.to_string(), FAILED),
        };
    }
    let config = match Config::from_args(args) {
        Ok(config) => config,
        Err(error) => return complain(&error.to_string(), USAGE),
    };
    match profile(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error @ AppError::NothingSampled(_)) => complain(&error.to_string(), NO_SAMPLES),
        // The reader of standard output has seen enough.
        Err(AppError::Output(error)) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => complain(&error.to_string(), FAILED),
    }
}

/// Whether all processes or threads that were named have ended.
fn have_ended(targets: &Targets) -> bool {
    // A process that nobody has waited for is still there, and has no program.
    let has_ended = |number: u32| std::fs::read_link(format!("/proc/{number}/exe")).is_err();
    match targets {
        Targets::Processes(pids) => pids.iter().all(|pid| has_ended(pid.0)),
        Targets::Threads(tids) => tids.iter().all(|tid| has_ended(tid.0)),
        _ => false,
    }
}

/// Why there is not one sample in a recording that has lasted so long; `launched`: of a program that it has started itself.
fn nothing_sampled((targets, launched): (&Targets, bool), lasted: Duration, had_ended: bool) -> String {
    match targets {
        _ if had_ended && launched => {
            "the program ended before it was sampled; -F 999 samples it more often".to_owned()
        }
        _ if had_ended => {
            "the target ended before it was sampled; `jitprof -- COMMAND` records a program from its start, \
                           and -F 999 samples it more often"
                .to_owned()
        }
        _ if lasted < BRIEF => format!("the recording was ended after {:.1} s; record longer", lasted.as_secs_f64()),
        Targets::Comm(name) => format!(
            "no process or thread called {name} used a CPU while it was recorded; `ps -eLo pid,comm` lists the names"
        ),
        _ => "the target used no CPU while it was recorded; record longer, or while it works".to_owned(),
    }
}

/// In less time than this even a busy process may not be sampled.
const BRIEF: Duration = Duration::from_millis(200);

fn complain(text: &str, status: u8) -> ExitCode {
    say!("jitprof: {text}");
    ExitCode::from(status)
}

fn init_log(verbose: u8) {
    let level = match verbose {
        0 => "warn",
        1 => "jitprof=debug",
        _ => "debug",
    };
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        // Its own complaint about a stderr that has gone would be a panic.
        .log_internal_errors(false)
        .with_ansi(io::stderr().is_terminal())
        .with_target(verbose > 0)
        .with_env_filter(tracing_subscriber::EnvFilter::new(level))
        .without_time()
        .init();
}

fn profile(mut config: Config) -> Result<(), AppError> {
    for (destination, _) in &config.outputs {
        check_writable(destination)?;
    }
    if let Some(destination) = &config.account {
        check_writable(destination)?;
    }
    let launch = prepare_command(&mut config)?;
    if config.outputs.is_empty() {
        let path = default_output(&config.record.targets, &config.command);
        let destination = Destination::from_argument(&path);
        if let Err(error) = check_writable(&destination) {
            cancel(launch);
            return Err(error.into());
        }
        config.outputs.push((destination, Format::Svg));
    }
    let (recorder, signals) = match attach(&config) {
        Ok(attached) => attached,
        Err(error) => {
            cancel(launch);
            return Err(error);
        }
    };
    let child = launch
        .map(|launch| launch.release().map_err(|source| AppError::Launch { command: command_text(&config), source }))
        .transpose()?;
    let Finished { mut recorded, watch, had_ended } = record(recorder, signals, &config, child)?;
    let traced = config.trace.as_ref().map(|log| add_spans(&mut recorded.profile, log, watch.as_ref(), 0));
    report(&config, &recorded, had_ended)?;
    let lines = traced.transpose()?;
    if !config.quiet {
        lines.into_iter().flatten().for_each(|line| say!("{line}"));
    }
    Ok(())
}

/// The signals that end a recording. Listening begins before attaching, which may take seconds: what comes then counts.
struct Signals {
    runtime: Runtime,
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let guard = runtime.enter();
        let [interrupt, terminate, hang_up] =
            [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
        drop(guard);
        Ok(Self { interrupt: interrupt?, terminate: terminate?, hang_up: hang_up?, runtime })
    }
}

/// Attaches to the targets, on a thread of its own, so that a signal ends it at once.
fn attach(config: &Config) -> Result<(Recorder, Signals), AppError> {
    let mut signals = Signals::listen().map_err(WAITING)?;
    let (sender, mut attached) = oneshot::channel();
    let options = config.record.clone();
    let starting = move || {
        if sender.send(Recorder::start(options)).is_err() {
            tracing::debug!("nobody waits for it any more");
        }
    };
    std::thread::Builder::new()
        .name("attach".into())
        .spawn(starting)
        .map_err(|source| AppError::System { what: "cannot start a thread", source })?;
    let mut status = StatusLine::new(config.quiet);
    let Signals { runtime, interrupt, terminate, hang_up } = &mut signals;
    let recorder = runtime.block_on(async {
        let soon = async {
            tokio::time::sleep(SOON).await;
            status.attaching();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            recorder = &mut attached => Some(recorder),
            _ = interrupt.recv() => None,
            _ = terminate.recv() => None,
            _ = hang_up.recv() => None,
            () = soon => None,
        }
    });
    status.clear();
    match recorder {
        Some(recorder) => Ok((recorder.map_err(|_| AppError::Panicked)??, signals)),
        None => Err(AppError::Interrupted),
    }
}

/// Nothing is said about attaching before.
const SOON: Duration = Duration::from_millis(700);
const WAITING: fn(io::Error) -> AppError = |source| AppError::System { what: "cannot wait for signals", source };

/// The command must not run when nobody profiles it.
fn cancel(launch: Option<Launch>) {
    if let Some(launch) = launch {
        launch.cancel();
    }
}

/// Makes the process for `-- COMMAND`, which waits until everything else is ready.
fn prepare_command(config: &mut Config) -> Result<Option<Launch>, AppError> {
    if config.command.is_empty() {
        return Ok(None);
    }
    // A command that prints must not print into the data.
    let data_on_stdout = config.outputs.iter().any(|(destination, _)| *destination == Destination::Stdout)
        || config.account.as_ref() == Some(&Destination::Stdout);
    let stdout = if data_on_stdout { CommandOutput::ToStderr } else { CommandOutput::Inherited };
    let launch = Launch::prepare(&config.command, stdout)
        .map_err(|source| AppError::Launch { command: command_text(config), source })?;
    config.record.targets = Targets::Processes(vec![launch.pid()]);
    Ok(Some(launch))
}

fn command_text(config: &Config) -> String {
    config.command.first().map(|program| program.to_string_lossy().into_owned()).unwrap_or_default()
}

/// A recording that is over.
struct Finished {
    recorded: Recorded,
    /// What was seen of a trace log.
    watch: Option<Watch>,
    /// The targets had ended before.
    had_ended: bool,
}

/// Lets the recorder run on a thread of its own until it ends, the time is up, or a signal comes.
fn record(recorder: Recorder, signals: Signals, config: &Config, child: Option<Child>) -> Result<Finished, AppError> {
    let wake = Waker::new().map_err(|source| AppError::System { what: "cannot make a descriptor", source })?;
    let end = Arc::new(End::default());
    let (done_sender, done) = oneshot::channel();
    let thread = std::thread::Builder::new()
        .name("record".into())
        .spawn({
            let (end, wake, quiet) = (Arc::clone(&end), wake.clone(), config.quiet);
            let mut watch = config.trace.as_ref().map(|log| Watch::new(log, &config.record.targets));
            move || {
                let mut status = StatusLine::new(quiet);
                let result = recorder.run(&end, &wake, |progress| {
                    status.update(progress);
                    watch.iter_mut().for_each(Watch::tick);
                });
                let result = result.map(|recorded| (recorded, watch.map(Watch::finish)));
                status.clear();
                if done_sender.send(()).is_err() {
                    tracing::debug!("nobody waits for the recording any more");
                }
                result
            }
        })
        .map_err(|source| AppError::System { what: "cannot start a thread", source })?;
    let by_signal = wait_for_end(signals, config, done, (&end, &wake));
    let recorded = thread.join().map_err(|_| AppError::Panicked)?;
    // Before a command is ended that goes on.
    let had_ended = have_ended(&config.record.targets);
    if let Some(child) = child {
        end_command(child, config.quiet, by_signal);
    }
    let (recorded, watch) = recorded?;
    Ok(Finished { recorded, watch, had_ended })
}

/// How long after a Ctrl-C another one means the same.
const SAME_INTENTION: Duration = Duration::from_millis(700);

/// Waits on signals, the clock and the recorder. A second Ctrl-C ends the wait for names, a third one jitprof at once.
/// Returns whether a signal has ended the recording.
fn wait_for_end(
    signals: Signals,
    config: &Config,
    mut done: oneshot::Receiver<()>,
    (end, wake): (&End, &Waker),
) -> bool {
    let Signals { runtime, mut interrupt, mut terminate, mut hang_up } = signals;
    runtime.block_on(async {
        let time_is_up = async {
            match config.duration {
                Some(duration) => tokio::time::sleep(duration).await,
                None => std::future::pending().await,
            }
        };
        let (interrupted, by_signal) = tokio::select! {
            // A signal that ends the targets as well counts, though they have ended.
            biased;
            _ = interrupt.recv() => (true, true),
            _ = terminate.recv() => (false, true),
            _ = hang_up.recv() => (false, true),
            () = time_is_up => (false, false),
            _ = &mut done => return false,
        };
        // Where the targets have ended, it may have been waiting for names for long. The Ctrl-C that ends them is not meant so.
        let mut has_waited = interrupted && end.lasts().is_some_and(|lasts| lasts >= SAME_INTENTION);
        end.want();
        wake.wake();
        loop {
            // Both of `timeout` and a supervisor send it twice at once, to the process and to its group: that is one intention.
            let another = async {
                tokio::time::sleep(SAME_INTENTION).await;
                // What has come meanwhile is one signal, as a tokio stream keeps it.
                let meanwhile = tokio::time::timeout(Duration::ZERO, interrupt.recv()).await;
                drop(meanwhile);
                interrupt.recv().await
            };
            if !std::mem::take(&mut has_waited) {
                tokio::select! {
                    _ = another => {}
                    _ = &mut done => return by_signal,
                }
            }
            if !end.hasten() {
                say!("jitprof: interrupted while finishing; nothing was written");
                std::process::exit(FAILED.into());
            }
            wake.wake();
            if !config.quiet {
                say!("jitprof: writes without the names that are missing; Ctrl-C again ends without writing");
            }
        }
    })
}

/// A launched command that still runs when the recording ends is asked to end, as perf does. That one has failed is said: it may
/// not be the run that is looked for.
fn end_command(mut child: Child, quiet: bool, by_signal: bool) {
    if let Ok(Some(status)) = child.try_wait() {
        if has_failed(status, by_signal) && !quiet {
            say!("jitprof: the command has failed, {status}");
        }
    } else if let Ok(pid) = i32::try_from(child.id()) {
        crate::kernel::terminate(pid);
    }
}

/// Whether a command has failed by itself: what ends the recording by a signal, as Ctrl-C does, ends the command by the same one.
fn has_failed(status: ExitStatus, by_signal: bool) -> bool {
    let is_meant = by_signal && matches!(status.signal(), Some(libc::SIGINT | libc::SIGTERM | libc::SIGHUP));
    !status.success() && !is_meant
}

/// Writes everything, what cannot be written to its place to another; the first error is returned after that.
fn report(config: &Config, recorded: &Recorded, had_ended: bool) -> Result<(), AppError> {
    let account = &recorded.account;
    if !config.quiet {
        say_part!("{account}");
    }
    let mut in_place = true;
    if let Some(destination) = &config.account
        && let Err(error) = write_account(destination, account)
    {
        in_place &= aside(destination, &error, |writer| account_to(writer, account));
    }
    for (destination, format) in &config.outputs {
        let (profile, options) = (&recorded.profile, &config.output_options);
        match write_file(profile, *format, options, destination) {
            Ok(()) => {
                if let (false, Destination::File(path)) = (config.quiet, destination) {
                    say!("written    {}", path.display());
                }
            }
            // The same for every output: there is nothing to write.
            Err(OutputError::NoSamples) => {
                let lasted = profile.meta().duration;
                let whose = (&config.record.targets, !config.command.is_empty());
                return Err(AppError::NothingSampled(nothing_sampled(whose, lasted, had_ended)));
            }
            Err(error) => {
                in_place &= aside(destination, &error, |writer| output::write(profile, *format, options, writer));
            }
        }
    }
    if in_place { Ok(()) } else { Err(AppError::NotInPlace) }
}

/// Writes elsewhere what could not be written to its place: the recording cannot be made again. Says where, even if
/// nothing else is to be said. Returns whether that is as good: the reader of standard output has seen enough.
fn aside(
    destination: &Destination,
    error: &OutputError,
    write: impl FnOnce(&mut dyn Write) -> Result<(), OutputError>,
) -> bool {
    let Destination::File(path) = destination else {
        if !error.is_broken_pipe() {
            say!("jitprof: {error}");
        }
        return error.is_broken_pipe();
    };
    match write_aside(path, write) {
        Ok(place) => say!("jitprof: {error}\nwritten    {} instead", place.display()),
        Err(other) => say!("jitprof: {error}\njitprof: nor can it be written elsewhere: {other}"),
    }
    false
}

pub(super) fn write_account(destination: &Destination, account: &Account) -> Result<(), OutputError> {
    write_to(destination, |writer| account_to(writer, account))
}

fn account_to(mut writer: &mut dyn Write, account: &Account) -> Result<(), OutputError> {
    serde_json::to_writer_pretty(&mut writer, account).map_err(io::Error::from)?;
    Ok(writer.write_all(b"\n")?)
}

#[cfg(test)]
mod tests {
    use jitprof_common::units::Pid;

    use super::*;

    #[test]
    fn a_command_that_the_signal_has_ended_that_ends_the_recording_has_not_failed() {
        for status in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP].map(ExitStatus::from_raw) {
            assert!(!has_failed(status, true) && has_failed(status, false), "{status}");
        }
        // A crash, and an exit status of 1.
        for status in [libc::SIGSEGV, 1 << 8].map(ExitStatus::from_raw) {
            assert!(has_failed(status, true) && has_failed(status, false), "{status}");
        }
        assert!(!has_failed(ExitStatus::default(), true) && !has_failed(ExitStatus::default(), false));
    }

    #[test]
    fn why_nothing_was_sampled_is_said_of_who_is_to_blame() {
        let (long, brief) = (Duration::from_secs(5), Duration::from_millis(20));
        let own = Targets::Processes(vec![Pid(std::process::id())]);
        assert!(!have_ended(&own) && nothing_sampled((&own, false), long, false).starts_with("the target used no CPU"));
        assert_eq!(nothing_sampled((&own, false), brief, false), "the recording was ended after 0.0 s; record longer");
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        let gone = Targets::Processes(vec![Pid(ended.id())]);
        while !have_ended(&gone) {
            std::thread::yield_now();
        }
        ended.wait().unwrap();
        assert!(have_ended(&gone));
        for lasted in [long, brief] {
            assert!(nothing_sampled((&gone, false), lasted, true).starts_with("the target ended before"));
            let launched = nothing_sampled((&gone, true), lasted, true);
            assert!(launched.contains("-F 999") && !launched.contains("COMMAND"), "who has just done so: {launched}");
        }
        assert!(nothing_sampled((&Targets::Comm("node".to_owned()), false), long, false).contains("called node"));
    }
}
