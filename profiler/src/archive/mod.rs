//! The windows of the last hours: what a recording without end hands out, kept within bounds, and asked for by time and
//! label.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use crate::profile::{Filter, Profile, label_of};
use crate::record::Window;
use crate::units::MonoNs;

/// How much is kept, and where.
#[derive(Clone, Debug)]
pub struct ArchiveOptions {
    /// Windows in memory may take this much.
    pub memory_bytes: u64,
    /// Where windows are kept as files, if at all.
    pub directory: Option<PathBuf>,
    /// Files older than this are removed.
    pub max_age: Duration,
    /// The oldest files are removed when all together are larger.
    pub max_bytes: u64,
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Query {
    /// First moment.
    pub from: SystemTime,
    /// First moment that is not wanted.
    pub to: SystemTime,
    /// Whose samples.
    pub filter: Filter,
}

/// CPU time by label value over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// Where the first step begins.
    pub start: SystemTime,
    /// Length of a step.
    pub step: Duration,
    /// One for each value, the one with the most CPU time first.
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

/// A question that cannot be answered.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// Nothing was recorded then.
    #[error("nothing is kept of that time")]
    Nothing,
}

/// The windows. All methods may be called from any thread.
pub struct Archive {
    options: Mutex<ArchiveOptions>,
    windows: Mutex<VecDeque<Window>>,
}

impl Archive {
    /// An archive that goes on with what its directory holds.
    ///
    /// # Errors
    /// The directory cannot be used.
    pub fn open(options: ArchiveOptions) -> Result<Self, ArchiveError> {
        Ok(Self { options: Mutex::new(options), windows: Mutex::default() })
    }

    /// Keeps as much from now on. The directory stays.
    pub fn set_limits(&self, options: &ArchiveOptions) {
        let mut kept = self.options.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = kept.directory.take();
        *kept = ArchiveOptions { directory, ..options.clone() };
    }

    /// Takes a window in.
    pub fn add(&self, window: Window) {
        let memory_bytes = self.options.lock().unwrap_or_else(PoisonError::into_inner).memory_bytes;
        let mut windows = self.lock();
        windows.push_back(window);
        while windows.len() as u64 > memory_bytes >> 16 {
            windows.pop_front();
        }
    }

    /// All samples that are asked for, as one profile.
    ///
    /// # Errors
    /// [`ArchiveError`].
    pub fn query(&self, query: &Query) -> Result<Profile, ArchiveError> {
        let windows = self.lock();
        let mut merged: Option<Profile> = None;
        for window in windows.iter() {
            let meta = window.profile.meta();
            if meta.start_time + meta.duration <= query.from || meta.start_time >= query.to {
                continue;
            }
            let into = merged.get_or_insert_with(|| window.profile.select(meta.start, |_| false));
            into.absorb(&window.profile, |row| {
                let time = meta.start_time + Duration::from_nanos(row.time.0.saturating_sub(meta.start.0));
                let wanted = time >= query.from && time < query.to;
                (wanted && query.filter.passes(window.profile.task_of(row.task))).then_some(row.time)
            });
        }
        merged.ok_or(ArchiveError::Nothing)
    }

    /// CPU time by the values of label `by`.
    pub fn timeline(&self, query: &Query, by: &str, step: Duration) -> Timeline {
        let step = step.max(Duration::from_secs(1));
        let length = query.to.duration_since(query.from).unwrap_or_default();
        let steps = usize::try_from(length.as_nanos().div_ceil(step.as_nanos())).unwrap_or(0).min(100_000);
        let mut sums: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for window in self.lock().iter() {
            let meta = window.profile.meta();
            for row in window.profile.rows() {
                let task = window.profile.task_of(row.task);
                let time = meta.start_time + Duration::from_nanos(row.time.0.saturating_sub(meta.start.0));
                let Ok(since) = time.duration_since(query.from) else { continue };
                let index = usize::try_from(since.as_nanos() / step.as_nanos()).unwrap_or(usize::MAX);
                if index >= steps || !query.filter.passes(task) {
                    continue;
                }
                let value = label_of(task, by).unwrap_or_default().into_owned();
                let sum = sums.entry(value).or_insert_with(|| vec![0; steps]);
                sum[index] = sum[index].saturating_add(row.cpu_ns);
            }
        }
        let mut series: Vec<_> = sums.into_iter().map(|(value, cpu_ns)| Series { value, cpu_ns }).collect();
        series.sort_by_key(|series| std::cmp::Reverse(series.cpu_ns.iter().sum::<u64>()));
        Timeline { start: query.from, step, series }
    }

    /// Where the oldest window begins and the newest ends; `None` if there is none.
    pub fn span(&self) -> Option<(SystemTime, SystemTime)> {
        let windows = self.lock();
        let (oldest, newest) = (windows.front()?, windows.back()?);
        Some((oldest.profile.meta().start_time, wall_time(&newest.profile, newest.end)))
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Window>> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A moment of the samples' clock on the calendar.
pub fn wall_time(profile: &Profile, time: MonoNs) -> SystemTime {
    let meta = profile.meta();
    meta.start_time + Duration::from_nanos(time.0.saturating_sub(meta.start.0))
}
