//! The windows of the last hours: what a continuous recording hands out, kept within bounds, and asked for by time and
//! label.
//!
//! Each window is kept as an encoded profile (gzip pprof), in memory and, with a directory, as a file, with an index of
//! who used the CPU in it. Ten minutes of windows are also kept as one merged profile, from which questions about hours
//! are answered. Encoding happens on the caller's thread; files are written, merged and removed by a thread of the
//! archive. No lock is held while anything is read, written, encoded or decoded.

mod clock;
mod directory;
mod id;
mod index;
#[cfg(feature = "parquet")]
mod slots;
mod store;
#[cfg(test)]
mod tests;
mod timeline;
mod usage;
mod worker;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use clock::{Clock, Now, Relation, system_clock};
use directory::Directory;
use id::{Level, milliseconds};
use index::range_ms;
use store::{Place, Store, Times};
use worker::{Job, Worker};

use crate::profile::{Filter, Profile};
use crate::record::Window;
#[cfg(feature = "parquet")]
pub use slots::Slot;

/// Signals to the worker that wait at most; one is enough for all windows that are there.
const MAX_JOBS: usize = 64;

/// How much is kept, and where.
#[derive(Clone, Debug)]
pub struct ArchiveOptions {
    /// Windows in memory may take this much, with the index of all windows.
    pub memory_bytes: u64,
    /// Where windows are kept as files, if at all.
    pub directory: Option<PathBuf>,
    /// Files older than this are removed.
    pub max_age: Duration,
    /// The oldest files are removed when all together are larger.
    pub max_bytes: u64,
}

/// What is asked for. A window belongs to a range if its middle does; a range within one window gets that window.
#[derive(Clone, Debug)]
pub struct Query {
    /// Where the range begins.
    pub from: SystemTime,
    /// Where the range ends; what begins here is not wanted any more.
    pub to: SystemTime,
    /// The samples whose labels this lets through.
    pub filter: Filter,
}

/// CPU time by label value over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// Where the first step begins.
    pub start: SystemTime,
    /// Length of a step.
    pub step: Duration,
    /// One for each value, the one with the most CPU time first; `[others]` for those beyond the first thousand.
    pub series: Vec<Series>,
}

/// One line of a timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    /// The label's value; empty for tasks without the label.
    pub value: String,
    /// CPU nanoseconds in each step.
    pub cpu_ns: Vec<u64>,
}

/// What the archive holds, and what it could not do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArchiveStats {
    /// Windows that can be asked for.
    pub windows: usize,
    /// How many of the windows are in files.
    pub disk_windows: usize,
    /// Memory of windows and index.
    pub memory_bytes: u64,
    /// Bytes of all files, those of merged windows included.
    pub disk_bytes: u64,
    /// Tries to write or to remove a file that failed.
    pub writes_failed: u64,
    /// Windows that are in memory alone and wait for the disk.
    pub waiting: usize,
    /// Windows that had to wait and were written when the disk was there again.
    pub written_late: u64,
    /// Windows that came into no file, because the memory was full before the disk was there.
    pub dropped: u64,
    /// Files that cannot be read.
    pub unreadable: u64,
    /// Files from before the start that were not looked into yet.
    pub unscanned: u64,
    /// Whether the last write failed.
    pub is_stopped: bool,
    /// When the oldest window begins.
    pub oldest: Option<SystemTime>,
}

/// A directory that cannot be used, or a question that cannot be answered.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// Nothing was recorded then.
    #[error("nothing is kept of that time")]
    Nothing,
    /// The directory is not ours alone.
    #[error(
        "{} is not used as an archive: {why}; give a directory of this user's own that nobody else writes to",
        path.display()
    )]
    Unsafe {
        /// The archive's directory, as configured.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Directory {
        /// What was tried: a verb of the message.
        action: &'static str,
        /// The file or directory that it was tried with.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The system refused the thread that writes files.
    #[error("cannot start the archive's thread: {0}")]
    Thread(io::Error),
}

/// The windows. All methods may be called from any thread.
pub struct Archive {
    store: Arc<Store>,
    clock: Arc<Clock>,
    relation: Mutex<Relation>,
    jobs: Option<SyncSender<Job>>,
    worker: Option<JoinHandle<()>>,
}

impl Archive {
    /// An archive that goes on with what its directory holds. Its files can be asked for at once, by time; who used the
    /// CPU in them is found out in the background.
    ///
    /// # Errors
    /// The directory cannot be used: it is a link, belongs to somebody else, others may write to it, another jitprof
    /// does, or the system says no.
    pub fn open(options: ArchiveOptions) -> Result<Self, ArchiveError> {
        Self::open_with(options, system_clock())
    }

    /// Keeps as much from now on. The directory stays.
    pub fn set_limits(&self, options: &ArchiveOptions) {
        self.store.set_limits(options);
    }

    /// For tests: as on a machine that was started so much earlier than this one.
    #[cfg(test)]
    pub(crate) fn open_with_uptime(options: ArchiveOptions, longer: std::time::Duration) -> Result<Self, ArchiveError> {
        let system = system_clock();
        let clock = move || {
            let now = system();
            Now { mono: jitprof_common::units::MonoNs(now.mono.0 + longer.as_nanos() as u64), ..now }
        };
        Self::open_with(options, Box::new(clock))
    }

    fn open_with(options: ArchiveOptions, clock: Clock) -> Result<Self, ArchiveError> {
        let directory = options.directory.as_deref().map(Directory::open).transpose()?;
        let store = Arc::new(Store::new(&options, directory));
        list(&store, true, clock())?;
        let clock = Arc::new(clock);
        let worker = Worker::new(Arc::clone(&store), Arc::clone(&clock));
        let (jobs, waiting) = mpsc::sync_channel(MAX_JOBS);
        let run = move || worker.run(&waiting);
        let worker =
            std::thread::Builder::new().name("archive-disk".into()).spawn(run).map_err(ArchiveError::Thread)?;
        Ok(Self { store, clock, relation: Mutex::default(), jobs: Some(jobs), worker: Some(worker) })
    }

    /// Takes a window in. Its time on the calendar follows from the clocks as they stand now.
    pub fn add(&self, window: Window) {
        let Window { mut profile, end, .. } = window;
        let start = profile.meta().start;
        let now = (self.clock)();
        let start_time = self.relation.lock().unwrap_or_else(PoisonError::into_inner).wall_time(start, now);
        profile.set_start_time(start_time);
        let length_ms = end.0.saturating_sub(start.0) / 1_000_000;
        let since_ms = now.mono.0.saturating_sub(end.0) / 1_000_000;
        let ended_ms = now.steady_ms.saturating_sub_unsigned(since_ms);
        let place = Place { level: Level::Window, start_ms: milliseconds(start_time), length_ms, ended_ms };
        if let Err(error) = self.store.put(&profile, place, &[]) {
            self.store.counters.dropped.fetch_add(1, Ordering::Relaxed);
            tracing::warn!("cannot encode a window: {error}");
            return;
        }
        // If the worker has that much to do already, it will come to this window too.
        if let Some(Err(TrySendError::Full(_))) = self.jobs.as_ref().map(|jobs| jobs.try_send(Job::Added)) {
            tracing::debug!("the archive's disk is slow; windows wait in memory");
        }
    }

    /// All samples that are asked for, as one profile, without their times.
    ///
    /// # Errors
    /// [`ArchiveError::Nothing`] if there are none.
    pub fn query(&self, query: &Query) -> Result<Profile, ArchiveError> {
        ask(&self.store, query, Times::Together)
    }

    /// The same, with each sample at the start of its window. Takes more memory, and more time: every window is read.
    ///
    /// # Errors
    /// [`ArchiveError::Nothing`] if there are none.
    pub fn query_by_window(&self, query: &Query) -> Result<Profile, ArchiveError> {
        ask(&self.store, query, Times::OfBlocks)
    }

    /// CPU time by the values of label `by`. What a window used is spread evenly over its length, so steps that are
    /// shorter than windows show no more. Steps are at least a second, and at most ten thousand.
    pub fn timeline(&self, query: &Query, by: &str, step: Duration) -> Timeline {
        timeline::timeline(&self.store, query, by, step)
    }

    /// What is kept, and what went wrong.
    pub fn stats(&self) -> ArchiveStats {
        let counters = &self.store.counters;
        let index = self.store.index();
        let windows = || index.iter().filter(|block| block.level == Level::Window);
        ArchiveStats {
            windows: windows().count(),
            disk_windows: windows().filter(|block| block.file.is_some()).count(),
            memory_bytes: index.memory_bytes(),
            disk_bytes: index.file_bytes,
            writes_failed: counters.writes_failed.load(Ordering::Relaxed),
            waiting: if self.store.directory.is_some() { index.unwritten_windows() } else { 0 },
            written_late: counters.written_late.load(Ordering::Relaxed),
            dropped: counters.dropped.load(Ordering::Relaxed),
            unreadable: counters.unreadable.load(Ordering::Relaxed),
            unscanned: counters.unscanned.load(Ordering::Relaxed),
            is_stopped: counters.is_stopped.load(Ordering::Relaxed),
            oldest: index.oldest(),
        }
    }

    /// Waits until everything that was added is in files, as far as it can be.
    pub fn flush(&self) {
        let (done, wait) = mpsc::channel();
        let sent = self.jobs.as_ref().is_some_and(|jobs| jobs.send(Job::Flush(done)).is_ok());
        if sent && wait.recv().is_err() {
            tracing::debug!("the archive's thread is gone");
        }
    }
}

impl Drop for Archive {
    /// What was added is written first.
    fn drop(&mut self) {
        self.jobs = None;
        if self.worker.take().is_some_and(|worker| worker.join().is_err()) {
            tracing::warn!("the archive's thread panicked; please report this with the lines above");
        }
    }
}

/// What a directory holds, asked once, also while a service writes there.
///
/// # Errors
/// The directory cannot be read, or has nothing that is asked for.
pub fn read_directory(path: &Path, query: &Query) -> Result<Profile, ArchiveError> {
    let options =
        ArchiveOptions { memory_bytes: u64::MAX, directory: None, max_age: Duration::MAX, max_bytes: u64::MAX };
    let store = Store::new(&options, Some(Directory::open_to_read(path)?));
    list(&store, false, system_clock()())?;
    let merged: Vec<_> = store.index().overlapping(&range_ms(query.from, query.to));
    merged.iter().filter(|block| block.level == Level::Merged).for_each(|block| store.scan(block));
    ask(&store, query, Times::Together)
}

/// When a directory's first window begins and its last one ends.
///
/// # Errors
/// The directory cannot be read, or has no window.
pub fn directory_range(path: &Path) -> Result<(SystemTime, SystemTime), ArchiveError> {
    let directory = Directory::open_to_read(path)?;
    let failed = |source| ArchiveError::Directory { action: "read", path: path.to_owned(), source };
    let found = directory.list(false).map_err(failed)?;
    let start = found.iter().map(|file| file.name.id.start_ms()).min();
    let end = found.iter().map(|file| file.name.id.start_ms().saturating_add(file.name.length_ms)).max();
    start.zip(end).map(|(start, end)| (id::system_time(start), id::system_time(end))).ok_or(ArchiveError::Nothing)
}

fn list(store: &Store, clean: bool, now: Now) -> Result<(), ArchiveError> {
    store.list(clean, now).map_err(|source| {
        let path = store.directory.as_ref().map_or_else(PathBuf::new, |directory| directory.path().to_owned());
        ArchiveError::Directory { action: "read", path, source }
    })
}

fn ask(store: &Store, query: &Query, times: Times) -> Result<Profile, ArchiveError> {
    let plan = store.plan(&range_ms(query.from, query.to), times == Times::Together);
    store.merge(&plan, &query.filter, times)
}
