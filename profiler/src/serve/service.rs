//! The service from its start to its end.

use std::io::{self, IsTerminal};
use std::num::NonZeroU32;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::Router;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::MissedTickBehavior;

use super::config::{Change, ConfigError, Settings, TokenSetting};
use super::governor::Governor;
use super::http::{HttpError, HttpOptions, Listen, Server, State, Token, TokenError, router};
use super::intake::Intake;
use super::log::LogControl;
use super::metrics::own::open_files;
use super::metrics::{self, Metrics, Sources};
#[cfg(feature = "parquet")]
use super::parquet::{ParquetError, ParquetSender};
use super::push::{PushError, Pushers};
use super::recording::{Handle, Recording, RecordingError};
use super::token_file::TokenFile;
use super::{privileges, supervisor};
use crate::archive::{Archive, ArchiveError, ArchiveOptions};
use crate::client::{ClientError, secret};
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
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The recording did not begin, or failed.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// The archive cannot be opened.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// A push target cannot be used.
    #[error(transparent)]
    Push(#[from] PushError),
    /// The dataset cannot be used.
    #[cfg(feature = "parquet")]
    #[error(transparent)]
    Parquet(#[from] ParquetError),
    /// The HTTP address cannot be listened at.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The file with the token cannot be read.
    #[error("http.token_file: {0}")]
    TokenFile(#[from] ClientError),
    /// The token is too weak or malformed.
    #[error("http.token_file: {0}")]
    Token(#[from] TokenError),
    /// A thread, a signal, a privilege.
    #[error("{what}: {source}")]
    System {
        /// What was tried, for the message.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// A second signal came while the last windows were being written.
    #[error("ended at once by a second signal; what was sampled last is not written")]
    Impatient,
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> ServeError {
    move |source| ServeError::System { what, source }
}

/// How long after a signal to end another one means the same.
const SAME_INTENTION: Duration = Duration::from_millis(700);

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
    #[cfg(feature = "parquet")]
    parquet: Option<Arc<ParquetSender>>,
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
    let (http_options, made) = http_options(&settings)?;
    let server = runtime.block_on(Server::bind(&http_options))?;
    let scraped = settings.metrics.listen.as_ref().map(|listen| runtime.block_on(Server::bind_open(&listen.0)));
    let scraped = scraped.transpose()?;
    let (window_sender, windows) = mpsc::sync_channel(MAX_WINDOWS);
    let (ended_sender, ended) = oneshot::channel();
    let recording =
        Recording::start(settings.record_options(), settings.window_options(), window_sender, ended_sender)?;
    // From here on, so that all that follows comes from a thread without capabilities.
    privileges::drop_capabilities().map_err(system("cannot drop capabilities"))?;
    let archive = Arc::new(Archive::open(settings.archive_options())?);
    let pushers = Arc::new(Pushers::start(&settings.push, &host_name(), runtime.handle().clone())?);
    #[cfg(feature = "parquet")]
    let parquet = settings.archive.parquet.as_ref();
    #[cfg(feature = "parquet")]
    let parquet =
        parquet.map(|parquet| ParquetSender::start(parquet, &settings.window, Arc::clone(&archive), &host_name()));
    #[cfg(feature = "parquet")]
    let parquet = parquet.transpose()?.map(Arc::new);
    let sources = Sources {
        recording: recording.handle(),
        archive: Arc::clone(&archive),
        pushers: Arc::clone(&pushers),
        #[cfg(feature = "parquet")]
        parquet: parquet.clone(),
    };
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
        #[cfg(feature = "parquet")]
        parquet,
        governor: None,
        files_are_scarce: false,
    };
    service.govern()?;
    let token_file = announce(&server, service.settings.sampling.frequency, made.as_ref());
    if let Some(scraped) = &scraped {
        tracing::info!("metrics at {}/metrics, for everybody", scraped.address());
    }
    let servers = Servers { all: server, scraped };
    let result = runtime.block_on(service.serve(servers, ended, recording, keeper));
    drop(token_file);
    // A name that is looked up, or a file that is written, may hang in the kernel: nobody waits for it at the end.
    runtime.shutdown_background();
    result
}

/// What the HTTP side is told, and the token that nobody has yet.
fn http_options(settings: &Settings) -> Result<(HttpOptions, Option<Token>), ServeError> {
    let http = &settings.http;
    let given = http.token_file.as_deref().map(|path| Ok::<_, ServeError>(Token::new(&secret(path)?)?)).transpose()?;
    let is_wanted = given.is_none() && http.token == TokenSetting::Random && matches!(http.listen.0, Listen::Tcp(_));
    let made = is_wanted.then(Token::random).transpose().map_err(system("cannot make a token"))?;
    let token = given.or_else(|| made.clone());
    Ok((HttpOptions { listen: http.listen.0.clone(), token, hosts: http.hosts.clone() }, made))
}

/// Says where the service answers, and the token of this start to those who may know it: in a file, and on a terminal.
/// A log has other readers, and is told only where there can be no file.
fn announce(server: &Server, frequency_hz: u32, made: Option<&Token>) -> Option<TokenFile> {
    let address = server.address();
    let Some((token, port)) = made.zip(server.port()) else {
        tracing::info!("profiling at {frequency_hz} Hz; {address}/");
        return None;
    };
    let file = TokenFile::write(token, port).inspect_err(|error| {
        tracing::warn!("the token of this start is in the log only, as no file of it can be written: {error}");
    });
    let file = file.ok();
    let shown = match &file {
        Some(file) if !io::stderr().is_terminal() => format!("the token is in {}", file.path().display()),
        _ => format!("open {address}/?token={}", token.reveal()),
    };
    tracing::info!("profiling at {frequency_hz} Hz; {address}/; {shown}");
    file
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

/// The sockets.
struct Servers {
    /// With the page, the API and the metrics.
    all: Server,
    /// With the metrics alone, for everybody.
    scraped: Option<Server>,
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
        servers: Servers,
        mut ended: oneshot::Receiver<()>,
        recording: Recording,
        keeper: JoinHandle<()>,
    ) -> Result<(), ServeError> {
        let mut signals = Signals::listen().map_err(system("cannot listen to signals"))?;
        let (http_end, end) = oneshot::channel::<()>();
        // Ends when the other half is dropped.
        let end = async {
            if end.await.is_ok() {
                tracing::debug!("the HTTP side was told to end");
            }
        };
        let http = tokio::spawn(servers.all.serve(self.router(), end));
        // It ends with the runtime: a scrape that is cut off is made again.
        if let Some(scraped) = servers.scraped {
            let routes = metrics::routes(Arc::clone(&self.metrics));
            tokio::spawn(scraped.serve(routes, std::future::pending()));
        }
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
                _ = signals.snapshot.recv() => self.close_window(),
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
                tracing::info!("ended, which took {:.1} s", began.elapsed().as_secs_f64());
                result
            }
            () = async {
                // `timeout` and supervisors send a signal twice at once: that is one intention.
                tokio::time::sleep(SAME_INTENTION).await;
                let meanwhile = tokio::time::timeout(Duration::ZERO, signals.end()).await;
                drop(meanwhile);
                signals.end().await;
            } => Err(ServeError::Impatient),
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
        #[cfg(feature = "parquet")]
        let parquet = self.parquet.clone();
        // On a thread of its own: it waits.
        #[cfg(feature = "parquet")]
        let parquet = tokio::task::spawn_blocking(move || parquet.iter().for_each(|parquet| parquet.close(limit)));
        self.pushers.close(limit).await;
        #[cfg(feature = "parquet")]
        if parquet.await.is_err() {
            tracing::warn!("the thread that writes Parquet failed");
        }
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
    fn close_window(&self) {
        if !self.recording.close_window() {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::config::ListenAt;

    fn has_token(change: impl FnOnce(&mut Settings)) -> bool {
        let mut settings = Settings::default();
        change(&mut settings);
        let (options, made) = http_options(&settings).unwrap();
        assert!(made.is_none() || options.token.is_some());
        options.token.is_some()
    }

    #[test]
    fn a_loopback_address_wants_a_token_of_this_start_unless_everybody_may_ask() {
        assert!(has_token(|_| {}));
        assert!(!has_token(|settings| settings.http.token = TokenSetting::None));
        assert!(!has_token(|settings| settings.http.listen = ListenAt(Listen::Unix("/run/x".into()))));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "0123456789abcdef0123\n").unwrap();
        let mut settings = Settings::default();
        settings.http.token_file = Some(file.path().to_owned());
        let (options, made) = http_options(&settings).unwrap();
        assert!(options.token.is_some() && made.is_none());
    }
}
