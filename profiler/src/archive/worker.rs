//! The archive's own thread: writes windows to files, removes old ones, merges, and looks into what was there before.
//! It is niced, and a disk that hangs holds up nothing but it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use super::clock::Clock;
use super::id::{Id, Level, milliseconds};
use super::shelf::Piece;
use super::store::{Store, Times};
use crate::profile::Filter;

/// Between two files that are looked into after a start: half a millisecond of work each, so a few percent of a CPU.
const INDEX_PACE: Duration = Duration::from_millis(20);
/// Otherwise it wakes for retention by age.
const IDLE: Duration = Duration::from_secs(30);
/// Files that are removed at a time.
const MAX_REMOVED: usize = 10_000;
const NICENESS: i32 = 10;

/// What the worker is asked for.
pub(super) enum Job {
    /// A new window is on the shelf.
    Added(Id),
    /// Answer when everything before is done.
    Flush(Sender<()>),
}

/// The worker's state.
pub(super) struct Worker {
    pub(super) store: Arc<Store>,
    pub(super) clock: Arc<Clock>,
    /// Files that have to be looked into, the most wanted last.
    to_index: Vec<(Level, Id)>,
}

impl Worker {
    pub(super) fn new(store: Arc<Store>, clock: Arc<Clock>) -> Self {
        let mut to_index: Vec<_> = store.shelf().iter().map(|piece| (piece.level, piece.id)).collect();
        // Merged pieces first: they are few and answer for hours. Then the newest windows.
        to_index.sort_unstable();
        Self { store, clock, to_index }
    }

    /// Works until the archive is gone.
    pub(super) fn run(mut self, jobs: &Receiver<Job>) {
        if let Err(error) = rustix::process::setpriority_process(None, NICENESS) {
            tracing::debug!("the archive's thread keeps its priority: {error}");
        }
        self.expire();
        loop {
            let pace = if self.to_index.is_empty() { IDLE } else { INDEX_PACE };
            match jobs.recv_timeout(pace) {
                Ok(Job::Added(id)) => {
                    self.write(Level::Window, id);
                    self.expire();
                    self.merge();
                }
                Ok(Job::Flush(done)) => {
                    if done.send(()).is_err() {
                        tracing::debug!("nobody waits for the archive any more");
                    }
                }
                Err(RecvTimeoutError::Timeout) if self.to_index.is_empty() => self.expire(),
                Err(RecvTimeoutError::Timeout) => self.index(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn write(&self, level: Level, id: Id) {
        let store = &self.store;
        let Some(directory) = &store.directory else { return };
        let piece = store.shelf().get(level, id).cloned();
        let Some(bytes) = piece.as_ref().and_then(|piece| piece.bytes.clone()) else { return };
        let Some(name) = piece.map(|piece| piece.name()) else { return };
        match directory.write(&name, &bytes) {
            Ok(path) => {
                if store.counters.is_stopped.swap(false, Ordering::Relaxed) {
                    tracing::warn!("windows are written to {} again", directory.path().display());
                }
                let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                let mut shelf = store.shelf();
                if shelf.get(level, id).is_some() {
                    shelf.update(level, id, |piece| piece.file = Some((Arc::from(path), size)));
                } else {
                    // Too little memory even for the newest piece.
                    let mut piece = Piece::new(id, level, name.length_ms);
                    piece.file = Some((Arc::from(path), size));
                    shelf.insert(piece);
                }
            }
            Err(error) => {
                store.counters.writes_failed.fetch_add(1, Ordering::Relaxed);
                if !store.counters.is_stopped.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        "cannot write windows to {}: {error}; recording goes on in memory, and writing when it is \
                         possible again",
                        directory.path().display()
                    );
                }
            }
        }
    }

    /// Removes files that are too old or too much.
    fn expire(&self) {
        let store = &self.store;
        let Some(directory) = &store.directory else { return };
        let now_ms = milliseconds((self.clock)().0);
        let max_age_ms = u64::try_from(store.limits().max_age.as_millis()).unwrap_or(u64::MAX);
        for _ in 0..MAX_REMOVED {
            let piece = {
                let mut shelf = store.shelf();
                let expired = shelf.expired(now_ms, max_age_ms, store.limits().max_bytes);
                let Some((level, id)) = expired else { return };
                shelf.remove(level, id)
            };
            let Some((path, _)) = piece.and_then(|piece| piece.file) else { return };
            if let Err(error) = directory.remove(&path) {
                tracing::debug!("cannot remove {path} from {}: {error}", directory.path().display());
                store.counters.writes_failed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Makes one piece of some minutes of windows.
    fn merge(&self) {
        // Until it is known what the merged pieces of an earlier run hold, their windows could be merged again.
        if self.to_index.last().is_some_and(|(level, _)| *level == Level::Merged) {
            return;
        }
        let Some(windows) = self.store.shelf().mergeable() else { return };
        let (Some(first), Some(last)) = (windows.first(), windows.last()) else { return };
        let parts: Vec<Id> = windows.iter().map(|window| window.id).collect();
        let length_ms = last.end_ms().saturating_sub(first.start_ms());
        let put = match self.store.merge(&windows, &Filter::default(), Times::Together) {
            Ok(profile) if profile.overflow().is_empty() => {
                self.store.put(&profile, Level::Merged, first.start_ms(), length_ms, &parts)
            }
            // Idle windows, or ones that went meanwhile, or too much for one piece: they stay as they are.
            _ => Err(io::ErrorKind::InvalidData.into()),
        };
        match put {
            Ok(id) => self.write(Level::Merged, id),
            Err(_) => self.store.shelf().keep_apart(&parts),
        }
    }

    /// Looks into one file that was there at the start.
    fn index(&mut self) {
        let store = &self.store;
        let Some((level, id)) = self.to_index.pop() else { return };
        store.counters.to_index.store(u64::try_from(self.to_index.len()).unwrap_or(u64::MAX), Ordering::Relaxed);
        let piece = store.shelf().get(level, id).cloned();
        let Some(piece) = piece.filter(|piece| piece.usage.is_none()) else { return };
        if level == Level::Window && store.shelf().memory_bytes() > store.limits().memory_bytes / 2 {
            // Older windows are looked into when somebody asks.
            self.to_index.clear();
            store.counters.to_index.store(0, Ordering::Relaxed);
            return;
        }
        store.index(&piece);
        if self.to_index.is_empty() {
            // What an earlier run had no time for.
            self.merge();
        }
    }
}
