//! The way of a closed window: to those who record just now, then to the archive.
//!
//! A window in the archive is a block of ten seconds, without times within. A recording over HTTP begins and ends
//! anywhere, so it takes its samples from the windows as they pass.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;

use crate::archive::Archive;
use crate::profile::{Filter, Profile, TaskId};
use crate::record::Window;
use jitprof_common::units::MonoNs;

/// Takes closed windows in and hands each to the archive and to the push targets.
pub struct Intake {
    archive: Arc<Archive>,
    watches: Mutex<Vec<Arc<Watched>>>,
    /// Ends of the last window that was looked through, and that is in the archive; nanoseconds.
    seen_until: AtomicU64,
    kept_until: AtomicU64,
}

struct Watched {
    from: MonoNs,
    to: MonoNs,
    filter: Filter,
    found: Mutex<Option<Profile>>,
}

/// Samples of a range that are collected from windows as they close. It ends with the value.
pub(super) struct Watch<'a> {
    intake: &'a Intake,
    watched: Arc<Watched>,
}

impl Intake {
    /// Windows will go to this archive.
    pub fn new(archive: Arc<Archive>) -> Self {
        let (seen_until, kept_until) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { archive, watches: Mutex::default(), seen_until, kept_until }
    }

    /// Takes a window in. Blocks; not for the recording's thread.
    pub fn add(&self, window: Window) {
        let end = window.end.0;
        let watches = self.watches().clone();
        for watched in watches {
            watched.look_through(&window.profile);
        }
        self.seen_until.fetch_max(end, Ordering::Release);
        self.archive.add(window);
        self.kept_until.fetch_max(end, Ordering::Release);
    }

    /// Collects samples of a range from now on.
    pub(super) fn watch(&self, from: MonoNs, to: MonoNs, filter: Filter) -> Watch<'_> {
        let watched = Arc::new(Watched { from, to, filter, found: Mutex::default() });
        self.watches().push(Arc::clone(&watched));
        Watch { intake: self, watched }
    }

    /// Where the last window ended that was looked through.
    pub(super) fn seen_until(&self) -> MonoNs {
        MonoNs(self.seen_until.load(Ordering::Acquire))
    }

    /// Where the last window ended that is in the archive; 0 before the first.
    pub(super) fn kept_until(&self) -> MonoNs {
        MonoNs(self.kept_until.load(Ordering::Acquire))
    }

    fn watches(&self) -> MutexGuard<'_, Vec<Arc<Watched>>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watched {
    fn look_through(&self, window: &Profile) {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let found = found.get_or_insert_with(|| window.select(self.from, |_| false));
        let mut passes: FxHashMap<TaskId, bool> = FxHashMap::default();
        found.absorb(window, |row| {
            let is_in_range = row.time >= self.from && row.time < self.to;
            let task = || self.filter.passes(window.task_of(row.task));
            (is_in_range && *passes.entry(row.task).or_insert_with(task)).then_some(row.time)
        });
    }
}

impl Watch<'_> {
    /// What was found; `None` if no window closed.
    pub(super) fn take(self) -> Option<Profile> {
        self.watched.found.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.intake.watches().retain(|watched| !Arc::ptr_eq(watched, &self.watched));
    }
}
