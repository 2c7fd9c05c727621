//! The service from its start to its end.

use std::io;
use std::num::NonZeroU32;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::Router;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::MissedTickBehavior;

use super::config::{Change, ConfigError, Settings};
use super::governor::Governor;
use super::http::{HttpError, HttpOptions, Server, State, Token, TokenError, router};
use super::intake::Intake;
use super::log::LogControl;
use super::metrics::own::open_files;
use super::metrics::{self, Metrics, Sources};
use super::push::{ClientError, PushError, Pushers, secret};
use super::recording::{Handle, Recording, RecordingError};
use super::{privileges, supervisor};
use crate::archive::{Archive, ArchiveError, ArchiveOptions};
use crate::record::Window;

/// Windows that wait for the archive at most.
const MAX_WINDOWS: usize = 16;
/// How often the service looks after itself.
const LOOK: Duration = Duration::from_secs(5);
/// How long the recording may take to name its last samples.
const LAST_WINDOW_LIMIT: Duration = Duration::from_secs(20);
/// File descriptors that should always be free: a look at one process takes a few.
const SPARE_FILES: u64 = 8;

/// Why the service did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The recording.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// The archive.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// A push target.
    #[error(transparent)]
    Push(#[from] PushError),
    /// The HTTP side.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The token's file.
    #[error("http.token_file: {0}")]
    TokenFile(#[from] ClientError),
    /// The token.
    #[error("http.token_file: {0}")]
    Token(#[from] TokenError),
    /// A thread, a signal, a privilege.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The second signal.
    #[error("ended at once by a second signal; what was sampled last is not written")]
    Impatient,
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> ServeError {
    move |source| ServeError::System { what, source }
}

/// The service at work.
struct Service<'a> {
    settings: Settings,
    source: Option<&'a dyn Fn() -> Result<Settings, ConfigError>>,
    log: &'a LogControl,
    recording: Handle,
    archive: Arc<Archive>,
    intake: Arc<Intake>,
    pushers: Arc<Pushers>,
    metrics: Arc<Metrics>,
    governor: Option<Governor>,
    files_are_scarce: bool,
}

/// Serves until a signal ends it. `source` gives the configuration anew when it is to be reloaded; without one, SIGHUP
/// ends the service, as it does when its terminal is closed.
///
/// # Errors
/// [`ServeError`].
pub fn run(
    settings: Settings,
    source: Option<&dyn Fn() -> Result<Settings, ConfigError>>,
    log: &LogControl,
) -> Result<(), ServeError> {
    privileges::gain_no_privileges().map_err(system("cannot give up privileges"))?;
    if let Err(error) = privileges::raise_open_files() {
        tracing::warn!("the number of open files stays as it is: {error}");
    }
    privileges::warn_if_files_are_out_of_reach();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_name("serve")
        .build()
        .map_err(system("cannot start tokio"))?;
    let server = runtime.block_on(Server::bind(&http_options(&settings)?))?;
    let (window_sender, windows) = mpsc::sync_channel(MAX_WINDOWS);
    let (ended_sender, ended) = oneshot::channel();
    let recording =
        Recording::start(settings.record_options(), settings.window_options(), window_sender, ended_sender)?;
    // From here on, so that all that follows comes from a thread without capabilities.
    privileges::drop_capabilities().map_err(system("cannot drop capabilities"))?;
    let archive = Arc::new(Archive::open(settings.archive_options())?);
    let pushers = Arc::new(Pushers::start(&settings.push, &host_name(), runtime.handle().clone())?);
    let sources =
        Sources { recording: recording.handle(), archive: Arc::clone(&archive), pushers: Arc::clone(&pushers) };
    let metrics = Arc::new(Metrics::new(sources, &settings.metrics, &settings.window));
    let intake = Arc::new(Intake::new(Arc::clone(&archive)));
    let keeper = keep(windows, &intake, &pushers, &metrics)?;
    let mut service = Service {
        settings,
        source,
        log,
        recording: recording.handle(),
        archive,
        intake,
        pushers,
        metrics,
        governor: None,
        files_are_scarce: false,
    };
    service.govern()?;
    let result = runtime.block_on(service.serve(server, ended, recording, keeper));
    // A name that is looked up, or a file that is written, may hang in the kernel: nobody waits for it at the end.
    runtime.shutdown_background();
    result
}

fn http_options(settings: &Settings) -> Result<HttpOptions, ServeError> {
    let token = match &settings.http.token_file {
        Some(path) => Some(Token::new(&secret(path)?)?),
        None => None,
    };
    Ok(HttpOptions { listen: settings.http.listen.0.clone(), token, hosts: settings.http.hosts.clone() })
}

/// Starts the thread that gives windows to those who keep them.
fn keep(
    windows: mpsc::Receiver<Window>,
    intake: &Arc<Intake>,
    pushers: &Arc<Pushers>,
    metrics: &Arc<Metrics>,
) -> Result<JoinHandle<()>, ServeError> {
    let (intake, pushers, metrics) = (Arc::clone(intake), Arc::clone(pushers), Arc::clone(metrics));
    let run = move || {
        for window in windows {
            metrics.note(&window);
            pushers.offer(&window);
            intake.add(window);
        }
    };
    std::thread::Builder::new().name("archive".into()).spawn(run).map_err(system("cannot start a thread"))
}

/// The signals that mean something.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
    snapshot: Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            snapshot: signal(SignalKind::user_defined1())?,
        })
    }

    async fn end(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

impl Service<'_> {
    async fn serve(
        &mut self,
        server: Server,
        mut ended: oneshot::Receiver<()>,
        recording: Recording,
        keeper: JoinHandle<()>,
    ) -> Result<(), ServeError> {
        let mut signals = Signals::listen().map_err(system("cannot listen to signals"))?;
        let (http_end, end) = oneshot::channel::<()>();
        tracing::info!("profiling at {} Hz; {}/", self.settings.sampling.frequency, server.address());
        // Ends when the other half is dropped.
        let end = async {
            if end.await.is_ok() {
                tracing::debug!("the HTTP side was told to end");
            }
        };
        let http = tokio::spawn(server.serve(self.router(), end));
        supervisor::ready();
        let mut look = tokio::time::interval(supervisor::watchdog().map_or(LOOK, |limit| (limit / 3).min(LOOK)));
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = signals.interrupt.recv() => break,
                _ = signals.terminate.recv() => break,
                _ = &mut ended => break,
                _ = signals.hang_up.recv() => match self.source {
                    Some(source) => self.reload(source),
                    None => break,
                },
                _ = signals.snapshot.recv() => self.cut(),
                _ = look.tick() => self.look(),
            }
        }
        supervisor::stopping();
        tracing::info!("ending");
        let began = Instant::now();
        // Whoever waits for an answer gets it, or not; an error only says that nobody serves any more.
        drop(http_end);
        tokio::select! {
            result = self.finish(recording, keeper, http) => {
                tracing::info!("ended after {:.1} s", began.elapsed().as_secs_f64());
                result
            }
            () = signals.end() => Err(ServeError::Impatient),
        }
    }

    fn router(&self) -> Router {
        let window = self.settings.window_options();
        let state = State {
            archive: Arc::clone(&self.archive),
            intake: Arc::clone(&self.intake),
            recording: self.recording.clone(),
            window,
        };
        metrics::counted(router(state).merge(metrics::routes(Arc::clone(&self.metrics))), Arc::clone(&self.metrics))
    }

    /// The last window goes to the archive and to the targets.
    async fn finish(
        &self,
        recording: Recording,
        keeper: JoinHandle<()>,
        http: tokio::task::JoinHandle<()>,
    ) -> Result<(), ServeError> {
        let limit = self.settings.shutdown.deadline.0;
        let deadline = tokio::time::Instant::now() + limit;
        let archive = Arc::clone(&self.archive);
        let last = tokio::task::spawn_blocking(move || {
            let stopped = recording.stop();
            keeper.join().map_err(|_| RecordingError::Panicked)?;
            archive.flush();
            stopped
        });
        let stopped = match tokio::time::timeout(LAST_WINDOW_LIMIT, last).await {
            Ok(stopped) => stopped.map_err(|_| RecordingError::Panicked)?.map(drop),
            Err(_) => {
                tracing::warn!("the last window is not written: its names took too long");
                Ok(())
            }
        };
        self.pushers.close(limit).await;
        match tokio::time::timeout_at(deadline, http).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!("the HTTP side failed: {error}"),
            Err(_) => tracing::debug!("some clients did not take their answers in time"),
        }
        Ok(stopped?)
    }

    /// Takes over what can change while running.
    fn reload(&mut self, source: &dyn Fn() -> Result<Settings, ConfigError>) {
        supervisor::reloading();
        match source() {
            Ok(new) => self.change_to(&new),
            Err(error) => {
                tracing::error!("the configuration stays as it was: {error}");
                self.metrics.note_reload(false);
            }
        }
        supervisor::ready();
    }

    fn change_to(&mut self, new: &Settings) {
        let mut next = self.settings.with_running_changes(new);
        let changes = self.settings.changes(new);
        let mut succeeded = true;
        for change in &changes {
            match change {
                Change::Frequency => {
                    if let Some(frequency_hz) = NonZeroU32::new(new.sampling.frequency)
                        && !self.recording.set_frequency(frequency_hz)
                    {
                        tracing::error!("the frequency stays as it was: the recording has too much to do");
                        next.sampling.frequency = self.settings.sampling.frequency;
                        succeeded = false;
                    }
                }
                Change::Limits => {}
                Change::Push => {
                    if let Err(error) = self.pushers.replace(&new.push) {
                        tracing::error!("the push targets stay as they were: {error}");
                        next.push.clone_from(&self.settings.push);
                        succeeded = false;
                    }
                }
                Change::Retention => self.archive.set_limits(&next.archive_options()),
                Change::LogLevel => self.log.set_level(new.log.level),
                Change::Shutdown => {}
                Change::Restart(key) => tracing::warn!("`{key}` has changed, which takes a restart"),
            }
        }
        let is_governed_anew =
            changes.iter().any(|change| matches!(change, Change::Frequency | Change::Limits | Change::Retention));
        self.settings = next;
        if is_governed_anew && let Err(error) = self.govern() {
            tracing::error!("{error}; nobody watches the limits now");
            succeeded = false;
        }
        self.metrics.note_reload(succeeded);
        tracing::info!("configuration reloaded, {} changes", changes.len());
    }

    /// Begins to keep the limits, from the frequency that is asked for.
    fn govern(&mut self) -> Result<(), ServeError> {
        self.governor = None;
        let frequency_hz = NonZeroU32::new(self.settings.sampling.frequency).unwrap_or(NonZeroU32::MIN);
        let archive = Arc::clone(&self.archive);
        let options = self.settings.archive_options();
        // While memory is short, half of the windows in memory go: they are the largest thing that nobody waits for.
        let on_memory = move |is_short| {
            let memory_bytes = if is_short { options.memory_bytes / 2 } else { options.memory_bytes };
            archive.set_limits(&ArchiveOptions { memory_bytes, ..options.clone() });
        };
        let governor =
            Governor::start(self.recording.clone(), frequency_hz, self.settings.governor_options(), on_memory)
                .map_err(system("cannot start a thread"))?;
        self.metrics.set_governor(governor.reader());
        self.governor = Some(governor);
        Ok(())
    }

    /// Hands out what there is now.
    fn cut(&self) {
        if !self.recording.cut() {
            tracing::error!("nothing is written now: the recording has too much to do; try again");
            return;
        }
        match &self.settings.storage.directory {
            Some(directory) => tracing::info!("the open window is written to {}", directory.display()),
            None => tracing::info!("the open window is closed; it is kept in memory, as storage.directory is not set"),
        }
    }

    fn look(&mut self) {
        self.look_after_files();
        let health = self.recording.health();
        let text = format!(
            "{} Hz, {} processes, {} windows, {} samples, {} lost",
            health.frequency_hz,
            health.processes,
            self.metrics.windows(),
            health.delivered,
            health.lost
        );
        supervisor::status(&text, self.metrics.is_alive());
    }

    /// Says once that file descriptors run out, and once that there are enough again.
    fn look_after_files(&mut self) {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        let open = open_files().map(|open| open as u64);
        // What comes and goes must not make a line each time.
        let spare = if self.files_are_scarce { (limit / 4).max(SPARE_FILES) } else { SPARE_FILES };
        let is_scarce = open.is_none_or(|open| open.saturating_add(spare) >= limit);
        if is_scarce == self.files_are_scarce {
            return;
        }
        self.files_are_scarce = is_scarce;
        if is_scarce {
            tracing::warn!(
                "{} of {limit} file descriptors are in use: some processes will not be named; raise LimitNOFILE",
                open.map_or_else(|| "all".to_owned(), |open| open.to_string())
            );
        } else {
            tracing::info!("there are enough file descriptors again");
        }
    }
}

/// This machine's name, as everybody calls it.
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
