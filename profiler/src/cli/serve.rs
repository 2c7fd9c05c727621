//! `jitprof serve`: the service.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use clap::Args as ClapArgs;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::archive::{Archive, ArchiveError, ArchiveOptions};
use crate::cli::select::SelectArgs;
use crate::record::{CallGraph, LabelOptions, RecordOptions, Targets, WindowOptions};
use crate::serve::http::{HttpError, HttpOptions, Listen, Server, State, router};
use crate::serve::{Intake, Recording, RecordingError};

/// Windows that wait for the archive at most.
const MAX_WINDOWS: usize = 16;

/// What `serve` takes.
#[derive(Debug, ClapArgs)]
pub struct Arguments {
    /// Samples per second and busy CPU
    #[arg(short = 'F', long = "freq", default_value_t = 19, value_name = "HZ")]
    frequency_hz: u32,
    /// Only some processes.
    #[command(flatten)]
    select: SelectArgs,
    /// Address to listen at
    #[arg(long, default_value = "127.0.0.1:7878")]
    listen: SocketAddr,
}

/// Why the service ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The recording.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// The archive.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The HTTP side.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// A thread, or a signal.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Serves until a signal ends it.
///
/// # Errors
/// [`ServeError`].
pub(super) fn run(arguments: &Arguments) -> Result<(), ServeError> {
    let system = |what| move |source| ServeError::System { what, source };
    let archive = Arc::new(Archive::open(ArchiveOptions {
        memory_bytes: 64 << 20,
        directory: None,
        max_age: Duration::from_secs(86_400),
        max_bytes: 1 << 30,
    })?);
    let (window_sender, windows) = mpsc::sync_channel(MAX_WINDOWS);
    let (ended_sender, ended) = oneshot::channel();
    let window = WindowOptions { length: Duration::from_secs(10), grace: Duration::from_secs(3) };
    let recording = Recording::start(record_options(arguments), window, window_sender, ended_sender)?;
    let intake = Arc::new(Intake::new(Arc::clone(&archive)));
    let keeper = {
        let intake = Arc::clone(&intake);
        let run = move || windows.into_iter().for_each(|window| intake.add(window));
        std::thread::Builder::new().name("archive".into()).spawn(run).map_err(system("cannot start a thread"))?
    };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(system("cannot start tokio"))?;
    let state = State { archive, intake, recording: recording.handle(), window };
    let http = HttpOptions { listen: Listen::Tcp(arguments.listen), token: None, hosts: Vec::new() };
    let served = runtime.block_on(async {
        let server = Server::bind(&http).await?;
        tracing::info!("listening at {}", server.address());
        let mut interrupt = signal(SignalKind::interrupt()).map_err(system("cannot wait for signals"))?;
        let mut terminate = signal(SignalKind::terminate()).map_err(system("cannot wait for signals"))?;
        let end = async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = ended => {}
            }
        };
        server.serve(router(state), end).await;
        Ok(())
    });
    recording.stop()?;
    keeper.join().map_err(|_| RecordingError::Panicked)?;
    served
}

fn record_options(arguments: &Arguments) -> RecordOptions {
    RecordOptions {
        targets: arguments.select.targets(true).unwrap_or(Targets::All),
        inherit: true,
        frequency_hz: arguments.frequency_hz,
        event: None,
        kernel_stack: true,
        user_stack: true,
        call_graph: CallGraph::Auto,
        unwind_mib: None,
        peek: true,
        gsym: Vec::new(),
        title: "All processes".to_owned(),
        bucket: Duration::from_millis(100),
        labels: Some(LabelOptions::of_this_host()),
        log_kernel: false,
    }
}
