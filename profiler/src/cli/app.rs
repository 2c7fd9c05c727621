//! From the command line to an exit status.

use std::io;
use std::process::{Child, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::account::Account;
use crate::cli::args::Args;
use crate::cli::check;
use crate::cli::config::{Config, default_output};
use crate::cli::status::StatusLine;
use crate::cli::subcommand::Subcommand;
use crate::cli::trace_log::{TraceLogError, Watch, add_spans};
use crate::kernel::{CommandOutput, Launch, Waker};
use crate::output::{Destination, Format, OutputError, check_writable, write_file, write_to};
use crate::plog::ThreadMap;
use crate::record::{RecordError, Recorded, Recorder, Targets};

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
    #[error("the recording thread panicked; please report this with the lines above")]
    Panicked,
}

/// Runs jitprof; the process' exit status is the result.
pub fn run() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => error.exit(),
    };
    // The service's log is its own.
    if !matches!(args.subcommand, Some(Subcommand::Serve(_))) {
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
        Err(AppError::Output(OutputError::NoSamples)) => complain(
            "no samples: the target used no CPU while it was recorded; record longer, or while it works",
            NO_SAMPLES,
        ),
        // The reader of standard output has seen enough.
        Err(AppError::Output(error)) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => complain(&error.to_string(), FAILED),
    }
}

fn complain(text: &str, status: u8) -> ExitCode {
    eprintln!("jitprof: {text}");
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
    let recorder = match Recorder::start(config.record.clone()) {
        Ok(recorder) => recorder,
        Err(error) => {
            cancel(launch);
            return Err(error.into());
        }
    };
    let child = launch
        .map(|launch| launch.release().map_err(|source| AppError::Launch { command: command_text(&config), source }))
        .transpose()?;
    let (mut recorded, threads) = record(recorder, &config, child)?;
    let traced = config.trace.as_ref().map(|log| add_spans(&mut recorded.profile, log, threads.as_ref(), 0));
    report(&config, &recorded)?;
    let lines = traced.transpose()?;
    if !config.quiet {
        lines.into_iter().flatten().for_each(|line| eprintln!("{line}"));
    }
    Ok(())
}

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

/// Lets the recorder run on a thread of its own until it ends, the time is up, or a signal comes. Returns also which
/// kernel threads those of a trace log are, as far as that could be seen meanwhile.
fn record(
    recorder: Recorder,
    config: &Config,
    child: Option<Child>,
) -> Result<(Recorded, Option<ThreadMap>), AppError> {
    let wake = Waker::new().map_err(|source| AppError::System { what: "cannot make a descriptor", source })?;
    let stop = Arc::new(AtomicBool::new(false));
    let (done_sender, done) = oneshot::channel();
    let thread = std::thread::Builder::new()
        .name("record".into())
        .spawn({
            let (stop, wake, quiet) = (Arc::clone(&stop), wake.clone(), config.quiet);
            let mut watch = config.trace.as_ref().map(|log| Watch::new(log, &config.record.targets));
            move || {
                let mut status = StatusLine::new(quiet);
                let result = recorder.run(&stop, &wake, |progress| {
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
    let waited = wait_for_end(config.duration, done, &stop, &wake);
    let recorded = thread.join().map_err(|_| AppError::Panicked)?;
    if let Some(child) = child {
        end_command(child);
    }
    waited?;
    Ok(recorded?)
}

/// Waits on signals, the clock and the recorder. A second Ctrl-C ends jitprof at once.
fn wait_for_end(
    duration: Option<Duration>,
    mut done: oneshot::Receiver<()>,
    stop: &AtomicBool,
    wake: &Waker,
) -> Result<(), AppError> {
    let system = |source| AppError::System { what: "cannot wait for signals", source };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(system)?;
    let result = runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hang_up = signal(SignalKind::hangup())?;
        let time_is_up = async {
            match duration {
                Some(duration) => tokio::time::sleep(duration).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hang_up.recv() => {}
            () = time_is_up => {}
            _ = &mut done => return Ok(()),
        }
        stop.store(true, Ordering::Release);
        wake.wake();
        tokio::select! {
            _ = interrupt.recv() => {
                eprintln!("jitprof: interrupted while finishing; nothing was written");
                std::process::exit(FAILED.into());
            }
            _ = &mut done => Ok(()),
        }
    });
    // Whatever happened here, the recorder must not go on alone.
    stop.store(true, Ordering::Release);
    result.map_err(system)
}

/// A launched command that still runs when the recording ends is asked to end, as perf does.
fn end_command(mut child: Child) {
    if !matches!(child.try_wait(), Ok(Some(_)))
        && let Ok(pid) = i32::try_from(child.id())
    {
        crate::kernel::terminate(pid);
    }
}

fn report(config: &Config, recorded: &Recorded) -> Result<(), AppError> {
    let account = &recorded.account;
    if !config.quiet {
        eprint!("{account}");
    }
    if let Some(destination) = &config.account {
        write_account(destination, account)?;
    }
    for (destination, format) in &config.outputs {
        write_file(&recorded.profile, *format, &config.output_options, destination)?;
        if !config.quiet
            && let Destination::File(path) = destination
        {
            eprintln!("written    {}", path.display());
        }
    }
    Ok(())
}

fn write_account(destination: &Destination, account: &Account) -> Result<(), OutputError> {
    write_to(destination, |writer| {
        serde_json::to_writer_pretty(&mut *writer, account).map_err(io::Error::from)?;
        Ok(writer.write_all(b"\n")?)
    })
}
