//! The recording on its own thread, and the handle by which the rest of the service talks to it.

use std::collections::VecDeque;
use std::io;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::oneshot;

use crate::account::Account;
use crate::cost::Ledger;
use crate::kernel::Waker;
use crate::profile::Profile;
use crate::record::{Command, Health, RecordError, RecordOptions, Recorder, Window, WindowOptions, keep_heap_small};
use jitprof_common::units::MonoNs;

/// Commands that wait at most.
const MAX_COMMANDS: usize = 256;

/// Changes of the frequency that are remembered.
const MAX_FREQUENCIES: usize = 256;

/// Why the recording could not begin, or ended.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// The recorder could not be set up, or failed.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The system refuses a thread or a descriptor.
    #[error("{what}: {source}")]
    System {
        /// What was tried, for the message.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// A fault of jitprof.
    #[error("the recording thread panicked; please report this with the lines above")]
    Panicked,
}

/// What the handles share with the recording's thread.
struct Shared {
    stop: AtomicBool,
    commands: SyncSender<Command>,
    wake: Waker,
    health: Mutex<Health>,
    /// When the last window closed; at first, when the recording began.
    last_window: Mutex<Instant>,
    windows_dropped: AtomicU64,
    ended: AtomicBool,
    ledger: Arc<Ledger>,
    /// From when on which frequency was asked for, the last ones.
    frequencies: Mutex<VecDeque<(SystemTime, u32)>>,
}

/// Talks to the recording. Cheap to clone; no method waits for the recording.
#[derive(Clone)]
pub struct Handle(Arc<Shared>);

/// A recording on its thread.
pub struct Recording {
    handle: Handle,
    thread: JoinHandle<Result<Account, RecordError>>,
}

impl Recording {
    /// Attaches and starts. Windows go into `windows`; one for which there is no room is dropped and counted, so that a
    /// slow taker never holds up the samples. `ended` is told when the thread ends.
    ///
    /// # Errors
    /// [`RecordingError`].
    pub fn start(
        options: RecordOptions,
        window: WindowOptions,
        windows: SyncSender<Window>,
        ended: oneshot::Sender<()>,
    ) -> Result<Self, RecordingError> {
        let system = |what| move |source| RecordingError::System { what, source };
        keep_heap_small();
        let frequency_hz = options.frequency_hz;
        let recorder = Recorder::start(options)?;
        let wake = Waker::new().map_err(system("cannot make a descriptor"))?;
        let (commands, orders) = mpsc::sync_channel(MAX_COMMANDS);
        let handle = Handle::new(commands, wake, Arc::clone(recorder.ledger()));
        handle.note_frequency(frequency_hz);
        let shared = handle.clone();
        let run = move || {
            // Also if the recording panics.
            let _ended = Ended(shared.clone());
            let result = recorder.serve(window, &shared.0.stop, &shared.0.wake, &orders, |window| {
                *shared.0.health.lock().unwrap_or_else(PoisonError::into_inner) = window.health.clone();
                *shared.0.last_window.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
                if let Err(TrySendError::Full(_)) = windows.try_send(window) {
                    shared.0.windows_dropped.fetch_add(1, Ordering::Relaxed);
                }
            });
            if ended.send(()).is_err() {
                tracing::debug!("nobody waits for the recording any more");
            }
            result
        };
        let thread =
            std::thread::Builder::new().name("record".into()).spawn(run).map_err(system("cannot start a thread"))?;
        Ok(Self { handle, thread })
    }

    /// A way to talk to it.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Ends it; its last window is handed out before this returns.
    ///
    /// # Errors
    /// [`RecordingError`], also if it ended earlier.
    pub fn stop(self) -> Result<Account, RecordingError> {
        self.handle.0.stop.store(true, Ordering::Release);
        self.handle.0.wake.wake();
        Ok(self.thread.join().map_err(|_| RecordingError::Panicked)??)
    }
}

/// Says when it is dropped that the recording has ended.
struct Ended(Handle);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.0.ended.store(true, Ordering::Release);
    }
}

impl Handle {
    fn new(commands: SyncSender<Command>, wake: Waker, ledger: Arc<Ledger>) -> Self {
        Self(Arc::new(Shared {
            stop: AtomicBool::new(false),
            commands,
            wake,
            health: Mutex::default(),
            last_window: Mutex::new(Instant::now()),
            windows_dropped: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            ledger,
            frequencies: Mutex::default(),
        }))
    }

    /// What was sampled in `from..to` and is in no window yet, as soon as it is named, at the latest `patience` after
    /// `to`; `None` if the recording ended or has too much to do. The profile begins where the windows end, so
    /// earlier samples are to be had from them.
    pub async fn snapshot(&self, from: MonoNs, to: MonoNs, patience: Duration) -> Option<Profile> {
        let (sender, receiver) = oneshot::channel();
        let reply = Box::new(move |profile| {
            if sender.send(profile).is_err() {
                tracing::debug!("nobody waits for the snapshot any more");
            }
        });
        self.command(Command::Snapshot { from, to, patience, reply }).then_some(())?;
        receiver.await.ok()
    }

    /// Samples at another frequency from now on. Returns whether the recording will hear of it.
    pub fn set_frequency(&self, frequency_hz: NonZeroU32) -> bool {
        let is_heard = self.command(Command::Frequency(frequency_hz));
        if is_heard {
            self.note_frequency(frequency_hz.get());
        }
        is_heard
    }

    fn note_frequency(&self, frequency_hz: u32) {
        let mut known = self.0.frequencies.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_FREQUENCIES {
            known.pop_front();
        }
        if known.back().is_none_or(|(_, last)| *last != frequency_hz) {
            known.push_back((SystemTime::now(), frequency_hz));
        }
    }

    /// From when on samples are taken at which frequency: the last changes, the oldest one first.
    pub fn frequencies(&self) -> Vec<(SystemTime, u32)> {
        self.0.frequencies.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }

    /// Memory is short, or is so no longer. Returns whether the recording will hear of it.
    pub fn set_tight(&self, tight: bool) -> bool {
        self.command(Command::Tight(tight))
    }

    /// Closes the open window now. Returns whether the recording will hear of it.
    pub fn close_window(&self) -> bool {
        self.command(Command::CloseWindow)
    }

    /// CPU time by what it was for, and what it may cost.
    pub fn ledger(&self) -> &Ledger {
        &self.0.ledger
    }

    /// How the recording stood when it last closed a window.
    pub fn health(&self) -> Health {
        let health = self.0.health.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // The rest is from the end of the last window; this is known before.
        let asked = self.0.frequencies.lock().unwrap_or_else(PoisonError::into_inner).back().map(|(_, hertz)| *hertz);
        Health { frequency_hz: asked.unwrap_or(health.frequency_hz), ..health }
    }

    /// How long ago the last window closed, or the recording began; `None` if it has ended.
    pub fn since_window(&self) -> Option<Duration> {
        let last = *self.0.last_window.lock().unwrap_or_else(PoisonError::into_inner);
        (!self.0.ended.load(Ordering::Acquire)).then(|| last.elapsed())
    }

    /// Windows that nobody took in time.
    pub fn windows_dropped(&self) -> u64 {
        self.0.windows_dropped.load(Ordering::Relaxed)
    }

    fn command(&self, command: Command) -> bool {
        let sent = self.0.commands.try_send(command).is_ok();
        self.0.wake.wake();
        sent
    }
}

#[cfg(test)]
impl Handle {
    /// A handle without a recording: the receiver gets its commands.
    pub(super) fn detached() -> (Self, mpsc::Receiver<Command>) {
        let (commands, orders) = mpsc::sync_channel(MAX_COMMANDS);
        let handle = Self::new(commands, Waker::new().expect("a descriptor"), Arc::default());
        (handle, orders)
    }

    /// Lets the handle believe that the recording has ended.
    pub(super) fn end(&self) {
        drop(Ended(self.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frequency_is_known_before_the_first_window_and_as_soon_as_it_is_another() {
        let (commands, orders) = mpsc::sync_channel(1);
        let handle = Handle::new(commands, Waker::new().unwrap(), Arc::default());
        handle.note_frequency(19);
        assert_eq!(handle.health().frequency_hz, 19);
        assert!(handle.set_frequency(NonZeroU32::new(7).unwrap()));
        assert_eq!((handle.health().frequency_hz, handle.frequencies().len()), (7, 2));
        drop(orders);
        assert!(!handle.set_frequency(NonZeroU32::new(5).unwrap()));
        assert_eq!(handle.health().frequency_hz, 7, "nobody has heard of it");
    }
}
