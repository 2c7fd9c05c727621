//! The archive's own thread: writes windows to files, removes old ones, merges, and scans the files of earlier runs.
//! It is niced, and a disk that hangs holds up nothing but it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use rustix::io::Errno;

use super::clock::Clock;
use super::id::{Id, Level};
use super::index::Block;
use super::store::{Place, Store, Times};
use crate::profile::Filter;

/// Between two files that are looked into after a start, or written after they had to wait: half a millisecond of work
/// each, so a few percent of a CPU.
const PACE: Duration = Duration::from_millis(20);
/// Otherwise it wakes for retention by age, and to see whether the disk is there again.
const IDLE: Duration = Duration::from_secs(30);
/// Files that are removed at a time.
const MAX_REMOVED: usize = 10_000;
const NICENESS: i32 = 10;

/// What the worker is asked for.
pub(super) enum Job {
    /// A new window is in the index.
    Added,
    /// Answer when everything before is done.
    Flush(Sender<()>),
}

pub(super) struct Worker {
    pub(super) store: Arc<Store>,
    pub(super) clock: Arc<Clock>,
    /// Files that have to be looked into, the most wanted last.
    to_scan: Vec<(Level, Id)>,
    /// When writing failed last, on the steady clock: what ended earlier is late when it is written.
    failed_ms: i64,
}

impl Worker {
    pub(super) fn new(store: Arc<Store>, clock: Arc<Clock>) -> Self {
        let mut to_scan: Vec<_> = store.index().iter().map(|block| (block.level, block.id)).collect();
        // Merged blocks first: they are few and answer for hours. Then the newest windows.
        to_scan.sort_unstable();
        Self { store, clock, to_scan, failed_ms: i64::MIN }
    }

    /// Works until the archive is gone.
    pub(super) fn run(mut self, jobs: &Receiver<Job>) {
        if let Err(error) = rustix::process::setpriority_process(None, NICENESS) {
            tracing::debug!("the archive's thread keeps its priority: {error}");
        }
        self.expire();
        loop {
            let pace = if self.is_behind() || !self.to_scan.is_empty() { PACE } else { IDLE };
            match jobs.recv_timeout(pace) {
                Ok(Job::Added) => {
                    self.write_next();
                    self.merge();
                }
                Ok(Job::Flush(done)) => {
                    self.catch_up();
                    if done.send(()).is_err() {
                        tracing::debug!("nobody waits for the archive any more");
                    }
                }
                Err(RecvTimeoutError::Timeout) if self.is_behind() || self.to_scan.is_empty() => self.write_next(),
                Err(RecvTimeoutError::Timeout) => self.scan_next(),
                Err(RecvTimeoutError::Disconnected) => {
                    self.catch_up();
                    return;
                }
            }
        }
    }

    /// Whether something waits for the disk that would be written now.
    fn is_behind(&self) -> bool {
        let store = &self.store;
        store.directory.is_some()
            && !store.counters.is_stopped.load(Ordering::Relaxed)
            && store.index().next_unwritten().is_some()
    }

    /// Writes until all is written or the disk does not take it.
    fn catch_up(&mut self) {
        while self.is_behind() {
            self.write_next();
        }
    }

    /// Writes the oldest block that is in no file yet: it is the next to leave the memory.
    fn write_next(&mut self) {
        let next = self.store.index().next_unwritten().cloned();
        if let Some(block) = next {
            self.write(&block);
        }
        self.expire();
    }

    fn write(&mut self, block: &Block) {
        let store = &self.store;
        let (Some(directory), Some(bytes)) = (&store.directory, &block.bytes) else { return };
        let Block { level, id, .. } = *block;
        match directory.write(&block.name(), bytes) {
            Ok(path) => {
                if store.counters.is_stopped.swap(false, Ordering::Relaxed) {
                    let waiting = store.index().unwritten_windows();
                    tracing::warn!(
                        "windows are written to {} again, also those that waited: {waiting}",
                        directory.path().display()
                    );
                }
                if level == Level::Window && block.ended_ms <= self.failed_ms {
                    store.counters.written_late.fetch_add(1, Ordering::Relaxed);
                }
                let file = Some((Arc::from(path), u64::try_from(bytes.len()).unwrap_or(u64::MAX)));
                let mut index = store.index();
                if index.get(level, id).is_some() {
                    index.update(level, id, |block| block.file = file);
                } else {
                    // It left the memory meanwhile.
                    let mut block = Block::new(id, level, block.length_ms, block.ended_ms);
                    block.file = file;
                    index.insert(block);
                }
            }
            Err(error) => {
                self.failed_ms = (self.clock)().steady_ms;
                store.counters.writes_failed.fetch_add(1, Ordering::Relaxed);
                if !may_pass(&error) {
                    store.index().update(level, id, |block| block.is_unwritable = true);
                }
                if !store.counters.is_stopped.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        "cannot write windows to {}: {error}; recording goes on in memory, and what is still there is \
                         written when it is possible again",
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
        let steady_ms = (self.clock)().steady_ms;
        let max_age_ms = u64::try_from(store.limits().max_age.as_millis()).unwrap_or(u64::MAX);
        for _ in 0..MAX_REMOVED {
            let block = {
                let mut index = store.index();
                let expired = index.expired(steady_ms, max_age_ms, store.limits().max_bytes);
                let Some((level, id)) = expired else { return };
                index.remove(level, id)
            };
            let Some((path, _)) = block.and_then(|block| block.file) else { return };
            if let Err(error) = directory.remove(&path) {
                tracing::debug!("cannot remove {path} from {}: {error}", directory.path().display());
                store.counters.writes_failed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Makes one block of some minutes of windows.
    fn merge(&self) {
        // Until it is known what the merged blocks of an earlier run hold, their windows could be merged again.
        if self.to_scan.last().is_some_and(|(level, _)| *level == Level::Merged) {
            return;
        }
        let Some(windows) = self.store.index().mergeable() else { return };
        let (Some(first), Some(last)) = (windows.first(), windows.last()) else { return };
        let parts: Vec<Id> = windows.iter().map(|window| window.id).collect();
        let length_ms = last.end_ms().saturating_sub(first.start_ms());
        let ended_ms = windows.iter().map(|window| window.ended_ms).max().unwrap_or(last.ended_ms);
        let place = Place { level: Level::Merged, start_ms: first.start_ms(), length_ms, ended_ms };
        let put = match self.store.merge(&windows, &Filter::default(), Times::Together) {
            Ok(profile) if profile.overflow().is_empty() => self.store.put(&profile, place, &parts),
            // Idle windows, or ones that went meanwhile, or too much for one block: they stay as they are.
            _ => Err(io::ErrorKind::InvalidData.into()),
        };
        // Its file comes with the next turn.
        if put.is_err() {
            self.store.index().keep_apart(&parts);
        }
    }

    /// Looks into one file that was there at the start.
    fn scan_next(&mut self) {
        let store = &self.store;
        let Some((level, id)) = self.to_scan.pop() else { return };
        store.counters.unscanned.store(u64::try_from(self.to_scan.len()).unwrap_or(u64::MAX), Ordering::Relaxed);
        let block = store.index().get(level, id).cloned();
        let Some(block) = block.filter(|block| block.usage.is_none()) else { return };
        if level == Level::Window && store.index().memory_bytes() > store.limits().memory_bytes / 2 {
            // Older windows are looked into when somebody asks.
            self.to_scan.clear();
            store.counters.unscanned.store(0, Ordering::Relaxed);
            return;
        }
        store.scan(&block);
        if self.to_scan.is_empty() {
            // What an earlier run had no time for.
            self.merge();
        }
    }
}

/// Whether writing the same may be possible later. Else something is wrong with this file, and others do not wait for it.
fn may_pass(error: &io::Error) -> bool {
    Errno::from_io_error(error).is_some_and(|errno| {
        matches!(
            errno,
            Errno::NOSPC
                | Errno::DQUOT
                | Errno::ROFS
                | Errno::ACCESS
                | Errno::PERM
                | Errno::NOENT
                | Errno::MFILE
                | Errno::NFILE
                | Errno::NOMEM
                | Errno::AGAIN
                | Errno::BUSY
                | Errno::STALE
                | Errno::TIMEDOUT
        )
    })
}
