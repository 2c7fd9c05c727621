//! What was sampled in a range: windows of the archive, and of the open window what has its names.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustc_hash::FxHashMap;
use tokio::sync::Mutex;

use super::App;
use super::fault::Fault;
use super::params::Selection;
use crate::archive::{Archive, ArchiveError, Query};
use crate::process::monotonic_now;
use crate::profile::{Filter, Profile, Row, TaskId};
use jitprof_common::units::MonoNs;

/// How old a copy of the open window may be. Copying is done by the recording's thread, so it is not done for each
/// request.
const MAX_AGE: Duration = Duration::from_secs(1);
/// How long a copy is waited for: the recording answers with its next tick, 100 ms later.
const COPY_PATIENCE: Duration = Duration::from_secs(2);
/// How long a closed window may take to the archive, which encodes it.
const QUEUE_PATIENCE: Duration = Duration::from_secs(2);
const QUEUE_POLL: Duration = Duration::from_millis(5);

/// The last copy of the open window. Who comes while one is made waits for it.
#[derive(Default)]
pub(super) struct OpenWindow(Mutex<Option<(Instant, Arc<Open>)>>);

/// What is in no window yet.
struct Open {
    profile: Profile,
    /// Where it begins on the calendar, by the clocks as they stand now: the archive does it so with windows.
    start_time: SystemTime,
}

/// Where the samples of a range are.
pub(super) struct Sources {
    archive: Arc<Archive>,
    /// The archive counts up to its start.
    open: Option<Arc<Open>>,
    selection: Selection,
}

impl App {
    /// Finds the samples of a range that is over, or reaches now.
    pub(super) async fn sources(&self, selection: Selection) -> Sources {
        let reaches_open = selection.to > calendar(self.state.intake.kept_until());
        let open = if reaches_open { self.open_window().await } else { None };
        Sources { archive: Arc::clone(&self.state.archive), open, selection }
    }

    /// The samples of the open window whose names are as good as they will be: all from before the grace.
    async fn open_window(&self) -> Option<Arc<Open>> {
        let mut kept = self.open_window.0.lock().await;
        if let Some((taken, open)) = &*kept
            && taken.elapsed() < MAX_AGE
        {
            return Some(Arc::clone(open));
        }
        let grace_ns = u64::try_from(self.state.window.grace.as_nanos()).unwrap_or(u64::MAX);
        let settled = MonoNs(monotonic_now().0.saturating_sub(grace_ns));
        let copy = self.state.recording.snapshot(MonoNs(0), settled, Duration::ZERO);
        let profile = tokio::time::timeout(COPY_PATIENCE, copy).await.ok()??;
        let start = profile.meta().start;
        let open = Arc::new(Open { profile, start_time: calendar(start) });
        // Before the first window there is nothing to wait for.
        let intake = &self.state.intake;
        wait_until(|| intake.kept_until() >= start || intake.kept_until() == MonoNs(0)).await;
        *kept = Some((Instant::now(), Arc::clone(&open)));
        Some(open)
    }

    /// Samples from now on for so long.
    ///
    /// # Errors
    /// [`Fault::Ended`] if nothing records.
    pub(super) async fn record(&self, length: Duration, filter: Filter) -> Result<Profile, Fault> {
        let begin = monotonic_now();
        let watch = self.state.intake.watch(begin, begin.after(length), filter.clone());
        // `go tool pprof` gives up half of the time after its end.
        let patience = self.state.window.grace.min(length / 4);
        let copy = self.state.recording.snapshot(begin, begin.after(length), patience).await;
        let open = copy.ok_or(Fault::Ended)?;
        if open.meta().start > begin {
            // Windows that closed meanwhile may still be on their way.
            wait_until(|| self.state.intake.seen_until() >= open.meta().start).await;
        }
        let mut profile = watch.take().unwrap_or_else(|| open.select(begin, |_| false));
        let mut passes: FxHashMap<TaskId, bool> = FxHashMap::default();
        profile.absorb(&open, |row| {
            let task = || filter.passes(open.task_of(row.task));
            passes.entry(row.task).or_insert_with(task).then_some(row.time)
        });
        profile.set_duration(length);
        Ok(profile)
    }
}

/// A timestamp of the samples as a time of the calendar, by the clocks as they stand now.
fn calendar(time: MonoNs) -> SystemTime {
    let (now, wall) = (monotonic_now(), SystemTime::now());
    let moved = if time <= now {
        wall.checked_sub(Duration::from_nanos(now.0 - time.0))
    } else {
        wall.checked_add(Duration::from_nanos(time.0 - now.0))
    };
    moved.unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Waits for what should happen soon, but not for long.
async fn wait_until(is_so: impl Fn() -> bool) {
    let polled = async {
        while !is_so() {
            tokio::time::sleep(QUEUE_POLL).await;
        }
    };
    if tokio::time::timeout(QUEUE_PATIENCE, polled).await.is_err() {
        tracing::debug!("the archive lags behind the recording");
    }
}

impl Open {
    /// How much of it lies between two times.
    fn within(&self, from: SystemTime, to: SystemTime) -> Duration {
        let end = self.start_time + self.profile.meta().duration;
        to.min(end).duration_since(from.max(self.start_time)).unwrap_or_default()
    }

    fn time_of(&self, row: &Row) -> SystemTime {
        self.start_time + Duration::from_nanos(row.time.0.saturating_sub(self.profile.meta().start.0))
    }
}

impl Sources {
    /// The question to the archive: up to where the open window begins.
    pub(super) fn query(&self) -> Query {
        let Selection { from, to, filter } = self.selection.clone();
        let to = self.open.as_ref().map_or(to, |open| to.min(open.start_time));
        Query { from, to, filter }
    }

    /// The archive that holds the closed windows.
    pub(super) fn archive(&self) -> &Archive {
        &self.archive
    }

    /// What was asked for.
    pub(super) fn selection(&self) -> &Selection {
        &self.selection
    }

    /// The rows of the open window that are asked for, each with its time.
    pub(super) fn open_rows(&self, mut visit: impl FnMut(&Profile, &Row, SystemTime)) {
        let Some(open) = &self.open else { return };
        let mut wanted = self.wanted(open);
        open.profile.visit_rows(|row| {
            if wanted(&row) {
                visit(&open.profile, &row, open.time_of(&row));
            }
        });
    }

    fn wanted<'a>(&'a self, open: &'a Open) -> impl FnMut(&Row) -> bool {
        let mut passes: FxHashMap<TaskId, bool> = FxHashMap::default();
        move |row| {
            let time = open.time_of(row);
            let task = || self.selection.filter.passes(open.profile.task_of(row.task));
            let is_in_range = time >= self.selection.from && time < self.selection.to;
            is_in_range && *passes.entry(row.task).or_insert_with(task)
        }
    }

    /// All samples as one profile, without their times. Blocks.
    ///
    /// # Errors
    /// [`Fault::Nothing`] if nothing is kept of that time, and the archive's.
    pub(super) fn profile(&self) -> Result<Profile, Fault> {
        self.samples()?.ok_or(Fault::Nothing)
    }

    /// As [`Self::profile`], but that nothing is kept of the time is no error.
    ///
    /// # Errors
    /// What the archive cannot do.
    pub(super) fn samples(&self) -> Result<Option<Profile>, Fault> {
        let query = self.query();
        let archived = if query.from < query.to { self.archive.query(&query) } else { Err(ArchiveError::Nothing) };
        let (mut profile, mut covered) = match (archived, &self.open) {
            (Ok(profile), _) => {
                let covered = profile.meta().duration;
                (profile, covered)
            }
            (Err(ArchiveError::Nothing), Some(open)) => {
                (open.profile.select(open.profile.meta().start, |_| false), Duration::ZERO)
            }
            (Err(ArchiveError::Nothing), None) => return Ok(None),
            (Err(error), _) => return Err(error.into()),
        };
        if let Some(open) = &self.open {
            covered += open.within(self.selection.from, self.selection.to);
            let start = profile.meta().start;
            let mut wanted = self.wanted(open);
            profile.absorb(&open.profile, |row| wanted(row).then_some(start));
        }
        // Windows of the archive are given whole, so that is more than what was asked for at its ends; and less where that
        // reaches back before the service's start, or behind what is kept.
        profile.set_duration(covered);
        Ok(Some(profile))
    }
}
