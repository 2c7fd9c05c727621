//! What was sampled in a range: windows of the archive, and of the open window what has its names.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustc_hash::FxHashMap;
use tokio::sync::Mutex;

use super::App;
use super::fault::Fault;
use super::params::Selection;
use crate::archive::{Archive, ArchiveError, Query, wall_time};
use crate::process::monotonic_now;
use crate::profile::{Filter, Profile, Row, TaskId};
use crate::units::MonoNs;

/// How old a copy of the open window may be. Copying is done by the recording's thread, so it is not done for each
/// request.
const MAX_AGE: Duration = Duration::from_secs(1);
/// How long a copy is waited for: the recording answers with its next tick, 100 ms later.
const COPY_PATIENCE: Duration = Duration::from_secs(2);
/// How long a closed window may take to the archive.
const QUEUE_PATIENCE: Duration = Duration::from_millis(500);
const QUEUE_POLL: Duration = Duration::from_millis(5);

/// The last copy of the open window. Who comes while one is made waits for it.
#[derive(Default)]
pub(super) struct OpenWindow(Mutex<Option<(Instant, Arc<Profile>)>>);

/// Where the samples of a range are.
pub(super) struct Sources {
    archive: Arc<Archive>,
    /// What is in no window yet; the archive counts up to its start.
    open: Option<Arc<Profile>>,
    selection: Selection,
}

impl App {
    /// Finds the samples of a range that is over, or reaches now.
    pub(super) async fn sources(&self, selection: Selection) -> Sources {
        let closed = self.state.archive.span().map(|(_, end)| end);
        let reaches_open = closed.is_none_or(|end| selection.to > end);
        let open = if reaches_open { self.open_window().await } else { None };
        Sources { archive: Arc::clone(&self.state.archive), open, selection }
    }

    /// The samples of the open window whose names are as good as they will be: all from before the grace.
    async fn open_window(&self) -> Option<Arc<Profile>> {
        let mut kept = self.open_window.0.lock().await;
        if let Some((taken, profile)) = &*kept
            && taken.elapsed() < MAX_AGE
        {
            return Some(Arc::clone(profile));
        }
        let grace_ns = u64::try_from(self.state.window.grace.as_nanos()).unwrap_or(u64::MAX);
        let settled = MonoNs(monotonic_now().0.saturating_sub(grace_ns));
        let copy = self.state.recording.snapshot(MonoNs(0), settled, Duration::ZERO);
        let profile = Arc::new(tokio::time::timeout(COPY_PATIENCE, copy).await.ok()??);
        *kept = Some((Instant::now(), Arc::clone(&profile)));
        drop(kept);
        self.wait_for_windows_until(profile.meta().start_time).await;
        Some(profile)
    }

    /// Waits until the archive has the windows from before `begin`, which may still be on their way to it.
    async fn wait_for_windows_until(&self, begin: SystemTime) {
        let arrived = async {
            while self.state.archive.span().is_some_and(|(_, end)| end < begin) {
                tokio::time::sleep(QUEUE_POLL).await;
            }
        };
        if tokio::time::timeout(QUEUE_PATIENCE, arrived).await.is_err() {
            tracing::debug!("the archive lags behind the recording");
        }
    }

    /// Samples from now on for so long; `None` if nothing records.
    pub(super) async fn record(&self, length: Duration, filter: Filter) -> Option<Sources> {
        let begin = monotonic_now();
        // `go tool pprof` gives up half of the time after its end.
        let patience = self.state.window.grace.min(length / 4);
        let open = self.state.recording.snapshot(begin, begin.after(length), patience).await?;
        // By the recording's clock, which a step of the system's does not move.
        let cut = Duration::from_nanos(open.meta().start.0.saturating_sub(begin.0));
        let from = open.meta().start_time.checked_sub(cut)?;
        let selection = Selection { from, to: from.checked_add(length)?, filter };
        if !cut.is_zero() {
            self.wait_for_windows_until(open.meta().start_time).await;
        }
        Some(Sources { archive: Arc::clone(&self.state.archive), open: Some(Arc::new(open)), selection })
    }
}

impl Sources {
    /// The question to the archive: up to where the open window begins.
    pub(super) fn query(&self) -> Query {
        let Selection { from, to, filter } = self.selection.clone();
        let to = self.open.as_ref().map_or(to, |open| to.min(open.meta().start_time));
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
        let mut passes: FxHashMap<TaskId, bool> = FxHashMap::default();
        for row in open.rows() {
            let time = wall_time(open, row.time);
            if time < self.selection.from || time >= self.selection.to {
                continue;
            }
            let task = || self.selection.filter.passes(open.task_of(row.task));
            if *passes.entry(row.task).or_insert_with(task) {
                visit(open, &row, time);
            }
        }
    }

    /// All samples as one profile, which may be empty. Blocks.
    ///
    /// # Errors
    /// The archive's, but that it has nothing.
    pub(super) fn profile(&self) -> Result<Profile, Fault> {
        let query = self.query();
        let archived = if query.from < query.to { self.archive.query(&query) } else { Err(ArchiveError::Nothing) };
        let mut profile = match (archived, &self.open) {
            (Ok(profile), _) => profile,
            (Err(ArchiveError::Nothing), Some(open)) => open.select(open.meta().start, |_| false),
            (Err(error), _) => return Err(error.into()),
        };
        if let Some(open) = &self.open {
            let (base, base_time) = (profile.meta().start, profile.meta().start_time);
            let mut passes: FxHashMap<TaskId, bool> = FxHashMap::default();
            profile.absorb(open, |row| {
                let time = wall_time(open, row.time);
                let task = || self.selection.filter.passes(open.task_of(row.task));
                let wanted = time >= self.selection.from
                    && time < self.selection.to
                    && *passes.entry(row.task).or_insert_with(task);
                // By the calendar: windows of an earlier run have another clock.
                wanted.then(|| base.after(time.duration_since(base_time).unwrap_or_default()))
            });
        }
        profile.set_duration(self.selection.to.duration_since(self.selection.from).unwrap_or_default());
        Ok(profile)
    }
}
