//! `jitprof top`: what uses the CPU now, in the terminal, as long as one looks.
//!
//! A pure model (`model`, `figures`) is drawn by `view`; `source` brings what is sampled, `screen` is the terminal.

mod figures;
mod model;
mod screen;
mod source;
#[cfg(test)]
mod tests;
mod view;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[cfg(feature = "serve")]
use clap::ArgGroup;
use clap::Args as ClapArgs;
use jiff::Zoned;
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::terminal::disable_raw_mode;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tokio::signal::unix::{SignalKind, signal};

use super::args::id;
use super::select::SelectArgs;
#[cfg(feature = "serve")]
use super::service::{ServiceArgs, ServiceError};
use crate::output::{Destination, Format, OutputError, OutputOptions, write, write_aside, write_file};
use crate::profile::Profile;
use crate::record::RecordError;
use model::{Action, Model};
use screen::{Said, Screen};
use source::Source;

/// How long a key is waited for before what was sampled is looked at.
const KEY_WAIT: Duration = Duration::from_millis(100);
/// How long after a signal the screen may be drawn, and given back.
const LAST_DRAWING: Duration = Duration::from_secs(3);
/// Working out what is shown takes at most one part in so many of the time.
const IDLE_FACTOR: u32 = 10;

/// What `top` takes. Where a service is and its token mean nothing to a recording.
#[derive(Debug, ClapArgs)]
#[cfg_attr(
    feature = "serve",
    command(group(ArgGroup::new("of_a_service").args(["listen", "token_file"]).multiple(true).requires("service")))
)]
pub struct Arguments {
    /// Processes to look at, as with --pid [default: every process of the machine]
    #[arg(value_name = "PID", value_parser = id, conflicts_with = "pid", help_heading = "What to profile")]
    pids: Vec<u32>,

    /// Processes by what is known of them.
    #[command(flatten)]
    select: SelectArgs,

    /// Every process of the machine, which is what is looked at if nothing is chosen
    #[arg(short, long, help_heading = "What to profile")]
    all: bool,

    /// Samples per second and busy CPU
    #[arg(short = 'F', long, value_name = "HZ", default_value_t = 99, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    #[arg(allow_negative_numbers = true)]
    freq: u32,

    /// Do not read what targets' runtimes know of their own code
    #[arg(long)]
    no_read_runtime: bool,

    /// Look at what a running service samples, and record nothing; of --pid, --comm, --user, --container and --unit
    #[cfg(feature = "serve")]
    #[arg(long, conflicts_with_all = ["all", "freq", "cgroup", "no_read_runtime"], help_heading = "Service")]
    service: bool,

    /// Who is asked.
    #[cfg(feature = "serve")]
    #[command(flatten)]
    at: ServiceArgs,
}

/// Why there is nothing to look at.
#[derive(Debug, thiserror::Error)]
pub(super) enum TopError {
    /// There is no terminal.
    #[error("top needs a terminal; without one, `jitprof PID -d 10 -o - --format folded` prints what was sampled")]
    NoTerminal,
    /// The recording.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The service gives no answer.
    #[cfg(feature = "serve")]
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// The terminal or the system refuses.
    #[error("{what}: {source}")]
    System { what: &'static str, source: io::Error },
    /// A fault of jitprof.
    #[error("the recording thread panicked; please report this with the lines above")]
    Panicked,
}

/// Shows what is sampled until somebody quits.
///
/// # Errors
/// [`TopError`].
pub(super) fn run(arguments: &Arguments) -> Result<(), TopError> {
    if !screen::has_terminal() {
        return Err(TopError::NoTerminal);
    }
    let said = Said::default();
    said.take_log();
    let ends = Arc::new(AtomicBool::new(false));
    listen(&ends).map_err(|source| TopError::System { what: "cannot wait for signals", source })?;
    let mut source = Source::of(arguments, &ends)?;
    let Some(mut source) = source.take() else { return Ok(()) };
    let failed = |source| TopError::System { what: "the terminal refuses", source };
    let mut screen = Screen::take(&said).map_err(failed)?;
    let mut model = Model::new(&source.title);
    let looked = look(&mut screen, &mut model, &mut source, (&said, &ends));
    drop(screen);
    looked.map_err(failed)?;
    source.end()
}

/// Takes what comes, does what keys say, and draws, until the end.
fn look(
    screen: &mut Screen,
    model: &mut Model,
    source: &mut Source,
    (said, ends): (&Said, &AtomicBool),
) -> io::Result<()> {
    let look = view::Look { has_colors: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) };
    let (mut due, mut warnings, mut is_changed) = (Instant::now(), said.count(), true);
    while !ends.load(Ordering::Acquire) {
        is_changed |= source.poll(model);
        if said.count() != warnings && said.last().is_some_and(|warning| model.warn(&warning)) {
            warnings = said.count();
            is_changed = true;
        }
        if model.is_stale() && Instant::now() >= due {
            let begin = Instant::now();
            model.refresh();
            due = Instant::now() + begin.elapsed() * IDLE_FACTOR;
            is_changed = true;
        }
        if std::mem::take(&mut is_changed) {
            screen.terminal.draw(|frame| view::draw(frame, model, look))?;
        }
        if !wait_for_keys()? {
            continue;
        }
        is_changed = true;
        while event::poll(Duration::ZERO)? {
            let Event::Key(key) = event::read()? else { continue };
            match model.key_pressed(key) {
                Action::Nothing => {}
                Action::Quit => return Ok(()),
                Action::Write(profile, options) => model.answer(&write_svg(&profile, &options)),
            }
        }
    }
    Ok(())
}

/// Waits until something was typed, but not for long. Looked at here: crossterm would read a terminal that has gone again
/// and again, and never return.
fn wait_for_keys() -> io::Result<bool> {
    let stdin = io::stdin();
    let mut terminal = [PollFd::new(&stdin, PollFlags::IN)];
    let wait = Timespec { tv_sec: 0, tv_nsec: i64::try_from(KEY_WAIT.as_nanos()).unwrap_or(i64::MAX) };
    match poll(&mut terminal, Some(&wait)) {
        Ok(0) | Err(Errno::INTR) => Ok(false),
        Ok(_) if terminal[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) => {
            Err(io::Error::from(io::ErrorKind::UnexpectedEof))
        }
        Ok(_) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Writes a flamegraph into the working directory. Returns what is to be said of it.
fn write_svg(profile: &Profile, options: &OutputOptions) -> String {
    let name = format!("jitprof-top-{}.svg", Zoned::now().strftime("%Y%m%d-%H%M%S"));
    let path = PathBuf::from(name);
    match write_file(profile, Format::Svg, options, &Destination::File(path.clone())) {
        Ok(()) => format!("written {}", path.display()),
        Err(error @ OutputError::NoSamples) => error.to_string(),
        Err(error) => match write_aside(&path, |writer| write(profile, Format::Svg, options, writer)) {
            Ok(place) => format!("{error}; written {} instead", place.display()),
            Err(_) => error.to_string(),
        },
    }
}

/// Sets `ends` when a signal says that it is over.
fn listen(ends: &Arc<AtomicBool>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let guard = runtime.enter();
    let [interrupt, terminate, hang_up] =
        [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
    drop(guard);
    let (mut interrupt, mut terminate, mut hang_up) = (interrupt?, terminate?, hang_up?);
    let ends = Arc::clone(ends);
    let wait = move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hang_up.recv() => {}
            }
        });
        ends.store(true, Ordering::Release);
        // A terminal that takes nothing any more must not hold a root process for ever.
        std::thread::sleep(LAST_DRAWING);
        if let Err(error) = disable_raw_mode() {
            tracing::debug!("the terminal has gone: {error}");
        }
        std::process::exit(1);
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait).map(drop)
}
