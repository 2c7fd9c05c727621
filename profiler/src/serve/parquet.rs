//! Windows into a dataset: slot after slot out of the archive, however long the dataset was out of reach.
//!
//! A slot is sent when it is over, as one file or some, named by its time and by the number of its first window, so whatever
//! is sent again takes its own place. What has arrived is noted beside the archive's files. A slot that has got more windows
//! since, after the clock was set back or a service was started again within it, is sent again as a whole.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::config::{ParquetSettings, WindowSettings};
use crate::archive::{Archive, ArchiveError, Slot};
use crate::dataset::{
    DatasetError, Part, Store, Table, Tags, empty_samples, frames_of, rows_of, write_frames, write_samples,
};

/// The file beside the windows that says what has arrived.
const NOTE: &str = "parquet.json";
const NOTE_VERSION: u32 = 1;
/// How often it looks whether a slot is over.
const LOOK: Duration = Duration::from_secs(5);
/// After the last window of a slot should be there.
const SETTLE: Duration = Duration::from_secs(10);
/// Between two slots that had to wait: half of a second of work each at the most.
const PACE: Duration = Duration::from_secs(1);
/// Pauses after tries that failed, doubling.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// Between two lines that say so.
const SAY_AGAIN: Duration = Duration::from_secs(600);
/// Frames that are known to be in the dataset; beyond it they are sent again.
const MAX_KNOWN: usize = 1 << 20;
const NICENESS: i32 = 10;

/// A dataset that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ParquetError {
    /// The URL, or the options of its client.
    #[error("archive.parquet: {0}")]
    Place(#[from] DatasetError),
    /// The file with options.
    #[error("archive.parquet.options_file: {0}")]
    Options(String),
    /// The system refused the thread.
    #[error("cannot start the thread that writes Parquet: {0}")]
    Thread(std::io::Error),
}

/// Counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParquetStats {
    /// Files that have arrived.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Rows of samples in them.
    pub rows: u64,
    /// Windows in them.
    pub windows: u64,
    /// Windows of slots that are over and have not arrived.
    pub waiting: u64,
    /// Windows that the archive dropped before they could be sent.
    pub expired: u64,
    /// Tries that failed.
    pub retries: u64,
    /// Whether the last try failed.
    pub failing: bool,
    /// CPU time of the thread.
    pub cpu_ns: u64,
}

#[derive(Default)]
struct Counts {
    files: AtomicU64,
    bytes: AtomicU64,
    rows: AtomicU64,
    windows: AtomicU64,
    waiting: AtomicU64,
    expired: AtomicU64,
    retries: AtomicU64,
    failing: AtomicBool,
    cpu_ns: AtomicU64,
}

/// The thread that sends slots.
pub struct ParquetSender {
    counts: Arc<Counts>,
    end: Mutex<Option<Sender<()>>>,
    ended: Mutex<Receiver<()>>,
}

/// What has arrived, as it is noted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Ledger {
    version: u32,
    /// Where; all that is noted is of there.
    place: String,
    every_ms: u64,
    /// What began before this has arrived in slots of another length.
    before_ms: u64,
    slots: BTreeMap<u64, Arrived>,
}

/// A slot that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Arrived {
    windows: usize,
    first: u64,
    files: usize,
}

struct Worker {
    settings: ParquetSettings,
    host: String,
    store: Store,
    archive: Arc<Archive>,
    counts: Arc<Counts>,
    /// How long after its end a slot is whole.
    settle: Duration,
    ledger: Ledger,
    /// The frames that are in the dataset under this day.
    known: HashSet<i64>,
    known_day: u64,
    /// Windows of slots that waited when it looked last.
    waited: BTreeMap<u64, usize>,
    tries: u32,
    said: Option<Instant>,
}

impl ParquetSender {
    /// Starts the thread.
    ///
    /// # Errors
    /// The place cannot be used at all; that it does not answer is none.
    pub fn start(
        settings: &ParquetSettings,
        window: &WindowSettings,
        archive: Arc<Archive>,
        host: &str,
    ) -> Result<Self, ParquetError> {
        let worker = Worker::new(settings, window, archive, host)?;
        let counts = Arc::clone(&worker.counts);
        let (end, asked) = mpsc::channel();
        let (done, ended) = mpsc::channel();
        let run = move || {
            worker.run(&asked);
            // Whoever waits for the end may have gone.
            if done.send(()).is_err() {
                tracing::debug!("nobody waits for the last Parquet files");
            }
        };
        std::thread::Builder::new().name("parquet".into()).spawn(run).map_err(ParquetError::Thread)?;
        Ok(Self { counts, end: Mutex::new(Some(end)), ended: Mutex::new(ended) })
    }

    /// Sends what there is, also of the slot that is not over, for at most `limit`. What does not arrive is sent after the
    /// next start.
    pub fn close(&self, limit: Duration) {
        drop(self.end.lock().unwrap_or_else(PoisonError::into_inner).take());
        if self.ended.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(limit).is_err() {
            tracing::warn!(
                "ended before all Parquet files had arrived; the archive's files are sent after the next start"
            );
        }
    }

    /// Counts.
    pub fn stats(&self) -> ParquetStats {
        let counts = &self.counts;
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ParquetStats {
            files: of(&counts.files),
            bytes: of(&counts.bytes),
            rows: of(&counts.rows),
            windows: of(&counts.windows),
            waiting: of(&counts.waiting),
            expired: of(&counts.expired),
            retries: of(&counts.retries),
            failing: counts.failing.load(Ordering::Relaxed),
            cpu_ns: of(&counts.cpu_ns),
        }
    }
}

/// Options of the bucket's client.
fn options(settings: &ParquetSettings) -> Result<Vec<(String, String)>, ParquetError> {
    let mut options = settings.options.clone();
    if let Some(path) = &settings.options_file {
        let text = crate::client::secret(path).map_err(|error| ParquetError::Options(error.to_string()))?;
        // What it holds is not shown.
        let more: BTreeMap<String, String> = toml::from_str(&text)
            .map_err(|_| ParquetError::Options(format!("{} is no list of name = \"value\"", path.display())))?;
        options.extend(more);
    }
    Ok(options.into_iter().collect())
}

impl Worker {
    fn new(
        settings: &ParquetSettings,
        window: &WindowSettings,
        archive: Arc<Archive>,
        host: &str,
    ) -> Result<Self, ParquetError> {
        let mut worker = Self {
            settings: settings.clone(),
            host: host.to_owned(),
            store: Store::open(&settings.location(), &options(settings)?)?,
            archive,
            counts: Arc::default(),
            settle: window.length.0 + window.grace.0 + SETTLE,
            ledger: Ledger::default(),
            known: HashSet::new(),
            known_day: 0,
            waited: BTreeMap::new(),
            tries: 0,
            said: None,
        };
        worker.ledger = worker.read_ledger();
        Ok(worker)
    }

    fn run(mut self, asked: &Receiver<()>) {
        if let Err(error) = rustix::process::setpriority_process(None, NICENESS) {
            tracing::debug!("the thread that writes Parquet keeps its priority: {error}");
        }
        loop {
            let pause = self.look(false);
            self.note_cpu();
            match asked.recv_timeout(pause) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        // Each slot is tried once more.
        while self.look(true) == PACE {}
    }

    /// Sends the oldest slot that waits; returns when to look again. At the end also a slot that is not over.
    fn look(&mut self, is_end: bool) -> Duration {
        let every_ms = milliseconds(self.settings.every.0);
        let slots = self.archive.slots(every_ms);
        let now_ms = milliseconds(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
        let settled = now_ms.saturating_sub(every_ms.saturating_add(milliseconds(self.settle)));
        let wanted: Vec<Slot> = slots
            .iter()
            .filter(|slot| is_end || slot.start_ms <= settled)
            .filter(|slot| self.is_wanted(slot))
            .copied()
            .collect();
        self.count_waiting(&slots, &wanted);
        let Some(slot) = wanted.first() else { return LOOK };
        match self.send(slot) {
            Ok(()) => {
                self.arrived();
                if wanted.len() > 1 || is_end { PACE } else { LOOK }
            }
            Err(error) => {
                self.failed(&error);
                if is_end { LOOK } else { pause(self.tries) }
            }
        }
    }

    fn is_wanted(&self, slot: &Slot) -> bool {
        let has_arrived = self.ledger.slots.get(&slot.start_ms).is_some_and(|arrived| arrived.windows >= slot.windows);
        !has_arrived && slot.start_ms >= self.ledger.before_ms
    }

    fn count_waiting(&mut self, slots: &[Slot], wanted: &[Slot]) {
        let has: BTreeMap<u64, usize> = slots.iter().map(|slot| (slot.start_ms, slot.windows)).collect();
        let lost =
            self.waited.iter().map(|(start, windows)| windows.saturating_sub(has.get(start).copied().unwrap_or(0)));
        let lost: usize = lost.sum();
        self.counts.expired.fetch_add(lost as u64, Ordering::Relaxed);
        self.waited = wanted.iter().map(|slot| (slot.start_ms, slot.windows)).collect();
        let waiting: usize = self.waited.values().sum();
        self.counts.waiting.store(waiting as u64, Ordering::Relaxed);
        // Slots whose windows are gone are not asked for any more.
        let oldest = has.keys().next().copied().unwrap_or(u64::MAX);
        self.ledger.slots.retain(|start, _| *start >= oldest);
    }

    fn send(&mut self, slot: &Slot) -> Result<(), DatasetError> {
        let before = self.ledger.slots.get(&slot.start_ms).copied();
        let every_ms = milliseconds(self.settings.every.0);
        let step_ms = milliseconds(self.settings.step.0);
        let part = Part {
            host: self.host.clone(),
            slot_ms: slot.start_ms,
            first: before.map_or(slot.first, |before| before.first),
        };
        let mut files = 0;
        match self.archive.read_slot(slot.start_ms, every_ms, step_ms) {
            Ok(profile) => {
                let day = slot.start_ms / 86_400_000;
                if self.known_day != day || self.known.len() > MAX_KNOWN {
                    self.known.clear();
                    self.known_day = day;
                }
                let (mut frames, numbers) = frames_of(&profile);
                // A file that is written again has all that it had.
                if before.is_none() {
                    frames.retain(|frame| !self.known.contains(&frame.frame));
                }
                let (host, add) = (&*self.host, &self.settings.add_labels);
                let step = u32::try_from(step_ms).unwrap_or(u32::MAX);
                let rows = rows_of(&profile, step, |task| Tags::of(task, host, add), &numbers);
                drop(profile);
                let target = usize::try_from(self.settings.target_size.0).unwrap_or(usize::MAX);
                let encoded = |error| DatasetError::Remote(format!("cannot encode a slot: {error}"));
                // Frames first: nothing in the dataset refers to what is not there.
                if !frames.is_empty() {
                    self.put(&part.path(Table::Frames, 0), write_frames(&frames).map_err(encoded)?)?;
                }
                for file in write_samples(&rows, target).map_err(encoded)? {
                    self.put(&part.path(Table::Samples, files), file)?;
                    files += 1;
                }
                // What an earlier try wrote beyond that.
                for number in files..before.map_or(0, |before| before.files) {
                    self.put(&part.path(Table::Samples, number), empty_samples().map_err(encoded)?)?;
                }
                self.counts.rows.fetch_add(rows.len() as u64, Ordering::Relaxed);
                self.known.extend(frames.iter().map(|frame| frame.frame));
            }
            Err(ArchiveError::Nothing) => {}
            Err(error) => tracing::warn!("a slot is left out of the Parquet files: {error}"),
        }
        let new = slot.windows.saturating_sub(before.map_or(0, |before| before.windows));
        self.counts.windows.fetch_add(new as u64, Ordering::Relaxed);
        self.ledger.slots.insert(slot.start_ms, Arrived { windows: slot.windows, first: part.first, files });
        self.keep_ledger();
        Ok(())
    }

    fn put(&self, path: &str, bytes: Vec<u8>) -> Result<(), DatasetError> {
        let length = bytes.len() as u64;
        self.store.put(path, bytes)?;
        self.counts.files.fetch_add(1, Ordering::Relaxed);
        self.counts.bytes.fetch_add(length, Ordering::Relaxed);
        Ok(())
    }

    /// What has arrived at this place. Of another place nothing has.
    fn read_ledger(&self) -> Ledger {
        let every_ms = milliseconds(self.settings.every.0);
        let new = Ledger { version: NOTE_VERSION, place: self.settings.shown_name(), every_ms, ..Ledger::default() };
        let note = self.archive.note(NOTE).unwrap_or_else(|error| {
            tracing::warn!("cannot read {NOTE} of the archive: {error}; all windows are sent again");
            None
        });
        let Some(found) = note.and_then(|note| serde_json::from_slice::<Ledger>(&note).ok()) else { return new };
        if found.version != NOTE_VERSION || found.place != new.place {
            return new;
        }
        if found.every_ms != every_ms {
            let end = found.slots.keys().next_back().map_or(0, |start| start.saturating_add(found.every_ms));
            return Ledger { before_ms: end.max(found.before_ms), ..new };
        }
        found
    }

    fn keep_ledger(&self) {
        let kept = serde_json::to_vec(&self.ledger).map_err(std::io::Error::from);
        if let Err(error) = kept.and_then(|note| self.archive.keep_note(NOTE, &note)) {
            tracing::warn!("cannot write {NOTE} of the archive: {error}; after a restart windows are sent again");
        }
    }

    fn arrived(&mut self) {
        self.tries = 0;
        if self.counts.failing.swap(false, Ordering::Relaxed) {
            self.said = None;
            tracing::info!("Parquet files reach {} again", self.settings.shown_name());
        }
    }

    fn failed(&mut self, error: &DatasetError) {
        self.tries = self.tries.saturating_add(1);
        self.counts.retries.fetch_add(1, Ordering::Relaxed);
        self.counts.failing.store(true, Ordering::Relaxed);
        if self.said.is_none_or(|said| said.elapsed() >= SAY_AGAIN) {
            self.said = Some(Instant::now());
            tracing::warn!(
                "cannot write Parquet to {}, will try again: {error}; {} windows wait in the archive",
                self.settings.shown_name(),
                self.counts.waiting.load(Ordering::Relaxed)
            );
        }
    }

    fn note_cpu(&self) {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let ns = u64::try_from(time.tv_sec).unwrap_or(0).saturating_mul(1_000_000_000);
        self.counts.cpu_ns.store(ns.saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0)), Ordering::Relaxed);
    }
}

/// The pause after a failed try: twice as long from try to try, and random between half of it and all of it.
fn pause(tries: u32) -> Duration {
    let longest = FIRST_PAUSE.saturating_mul(1 << tries.min(10)).min(LONGEST_PAUSE);
    longest.mul_f64(0.5 + fastrand::f64() / 2.0)
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
