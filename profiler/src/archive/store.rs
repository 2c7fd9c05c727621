//! The shelf with the files behind it: encoding, decoding and merging, never under the lock.

use std::io::{self, Cursor};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::clock::Now;
use super::directory::Directory;
use super::id::{Id, Level, Name, system_time};
use super::shelf::{Piece, Shelf};
use super::usage::{Sums, of_process};
use super::{ArchiveError, ArchiveOptions};
use crate::output::{PprofError, PprofFile, ReadLimits, encode_pprof, unpack_pprof};
use crate::profile::{Filter, Limits, Profile, Task};
use crate::units::MonoNs;

/// For windows. On a window of two busy CPUs at 99 Hz (327 kB), zlib's level 6 takes 2.6 times as long for 7 % fewer
/// bytes.
const GZIP_LEVEL: u32 = 3;

/// An answer may take about 100 MiB at the most, the names of a large host some MiB.
const ANSWER_LIMITS: Limits =
    Limits { string_bytes: 24 << 20, frames: 1 << 17, stacks: 1 << 20, tasks: 1 << 14, rows: 1 << 20 };

/// What the archive and its worker share.
pub(super) struct Store {
    limits: Mutex<KeepLimits>,
    shelf: Mutex<Shelf>,
    pub(super) directory: Option<Directory>,
    pub(super) counters: Counters,
}

/// How much is kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeepLimits {
    pub(super) memory_bytes: u64,
    pub(super) max_age: Duration,
    pub(super) max_bytes: u64,
}

impl From<&ArchiveOptions> for KeepLimits {
    fn from(options: &ArchiveOptions) -> Self {
        Self { memory_bytes: options.memory_bytes, max_age: options.max_age, max_bytes: options.max_bytes }
    }
}

/// What went wrong so far, and what is not done yet.
#[derive(Default)]
pub(super) struct Counters {
    /// Tries to write or remove a file that failed.
    pub(super) writes_failed: AtomicU64,
    /// Windows that left the memory without having been written.
    pub(super) dropped: AtomicU64,
    /// Windows that came into files after they had to wait for the disk.
    pub(super) written_late: AtomicU64,
    /// Files that could not be read.
    pub(super) unreadable: AtomicU64,
    /// Files that are not in the index yet.
    pub(super) to_index: AtomicU64,
    /// Whether the last write failed.
    pub(super) is_stopped: AtomicBool,
}

/// When a profile was recorded, and what it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) level: Level,
    /// On the calendar.
    pub(super) start_ms: u64,
    pub(super) length_ms: u64,
    /// On the steady clock.
    pub(super) ended_ms: i64,
}

/// What is made of a merged profile's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Times {
    /// All at the start.
    Together,
    /// Each at the start of its piece.
    OfPieces,
}

impl Store {
    pub(super) fn new(options: &ArchiveOptions, directory: Option<Directory>) -> Self {
        Self { limits: Mutex::new(options.into()), shelf: Mutex::default(), directory, counters: Counters::default() }
    }

    pub(super) fn limits(&self) -> KeepLimits {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_limits(&self, options: &ArchiveOptions) {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner) = options.into();
    }

    pub(super) fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the folder's files on the shelf, without looking into them.
    pub(super) fn list(&self, clean: bool, now: Now) -> io::Result<()> {
        let Some(directory) = &self.directory else { return Ok(()) };
        let found = directory.list(clean)?;
        let mut shelf = self.shelf();
        self.counters.to_index.store(u64::try_from(found.len()).unwrap_or(u64::MAX), Ordering::Relaxed);
        for file in found {
            let Name { id, level, length_ms } = file.name;
            let ended_ms = now.steady_end(id.start_ms().saturating_add(length_ms));
            let mut piece = Piece::new(id, level, length_ms, ended_ms);
            piece.file = Some((Arc::from(file.path), file.bytes));
            shelf.insert(piece);
        }
        Ok(())
    }

    /// Puts a profile on the shelf.
    pub(super) fn put(&self, profile: &Profile, place: Place, parts: &[Id]) -> io::Result<()> {
        let Place { level, start_ms, length_ms, ended_ms } = place;
        let numbers: Vec<u64> = parts.iter().map(|part| part.0).collect();
        let mut bytes = Vec::new();
        encode_pprof(profile, GZIP_LEVEL, &numbers, &mut bytes)?;
        let usage = Sums::of(profile).into_usage();
        let mut shelf = self.shelf();
        let mut piece = Piece::new(shelf.free_id(level, start_ms), level, length_ms, ended_ms);
        piece.bytes = Some(Arc::from(bytes));
        piece.usage = Some(Arc::new(usage));
        piece.parts = Arc::from(parts);
        shelf.insert(piece);
        let lost = shelf.shrink(self.limits().memory_bytes);
        drop(shelf);
        if self.directory.is_some() {
            self.counters.dropped.fetch_add(lost, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The bytes of a piece; `None` if it went meanwhile.
    pub(super) fn bytes(&self, piece: &Piece) -> Option<Arc<[u8]>> {
        if let Some(bytes) = &piece.bytes {
            return Some(Arc::clone(bytes));
        }
        let (path, _) = piece.file.as_ref()?;
        match self.directory.as_ref()?.read(path) {
            Ok(bytes) => Some(Arc::from(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                self.damaged(piece, &error);
                None
            }
        }
    }

    /// Leaves a piece out from now on.
    fn damaged(&self, piece: &Piece, why: &dyn std::fmt::Display) {
        let path = piece.file.as_ref().map_or("a window in memory", |(path, _)| path);
        let folder =
            self.directory.as_ref().map_or_else(String::new, |directory| directory.path().display().to_string());
        tracing::warn!("left out from now on: {path} of the archive {folder}: {why}");
        self.counters.unreadable.fetch_add(1, Ordering::Relaxed);
        self.shelf().update(piece.level, piece.id, |piece| piece.is_damaged = true);
    }

    /// Calls `look` with the decoded file of a piece, if there is one. A piece that cannot be read is left out from
    /// then on.
    pub(super) fn decode<T>(
        &self,
        piece: &Piece,
        raw: &mut Vec<u8>,
        look: impl FnOnce(&PprofFile<'_>) -> Result<T, PprofError>,
    ) -> Option<T> {
        let bytes = self.bytes(piece)?;
        let unpacked = unpack_pprof(Cursor::new(&*bytes), &ReadLimits::ARCHIVE, raw);
        let looked = unpacked.and_then(|()| look(&PprofFile::parse(raw, ReadLimits::ARCHIVE)?));
        looked.inspect_err(|error| self.damaged(piece, error)).ok()
    }

    /// All samples of the pieces that pass, as one profile.
    pub(super) fn merge(&self, pieces: &[Piece], filter: &Filter, times: Times) -> Result<Profile, ArchiveError> {
        let process_filter = of_process(filter);
        let mut merged: Option<Profile> = None;
        let mut raw = Vec::new();
        let start_ms = pieces.iter().map(Piece::start_ms).min().unwrap_or(0);
        for piece in pieces.iter().filter(|piece| Shelf::may_pass(piece, &process_filter)) {
            self.decode(piece, &mut raw, |file| {
                let bucket_ns = if times == Times::Together { u64::MAX } else { 1_000_000 };
                let into =
                    merged.get_or_insert_with(|| Profile::with_limits(file.meta().clone(), bucket_ns, ANSWER_LIMITS));
                let since_ms = piece.start_ms().saturating_sub(start_ms);
                let time = MonoNs(if times == Times::Together { 0 } else { since_ms.saturating_mul(1_000_000) });
                file.merge_into(into, time, |task: &Task| filter.passes(task))
            });
        }
        let mut merged = merged.filter(|merged| merged.total() > 0).ok_or(ArchiveError::Nothing)?;
        merged.set_start_time(system_time(start_ms));
        merged.set_duration(covered(pieces));
        Ok(merged)
    }

    /// Looks into a file: who used the CPU, and what was merged into it.
    pub(super) fn index(&self, piece: &Piece) {
        let looked = self.decode(piece, &mut Vec::new(), |file| {
            let mut sums = Sums::default();
            file.cpu_by_task(|task, cpu_ns| sums.add(task, cpu_ns))?;
            let parts: Arc<[Id]> = file.parts().iter().map(|part| Id(*part)).collect();
            Ok((sums.into_usage(), parts))
        });
        if let Some((usage, parts)) = looked {
            self.shelf().update(piece.level, piece.id, |piece| {
                piece.usage = Some(Arc::new(usage));
                piece.parts = parts;
            });
        }
    }

    /// The pieces that answer for a time.
    pub(super) fn plan(&self, range_ms: &Range<u64>, use_merged: bool) -> Vec<Piece> {
        self.shelf().plan(range_ms, use_merged)
    }
}

/// How much time the pieces hold; what two of them hold counts once.
fn covered(pieces: &[Piece]) -> Duration {
    let mut spans: Vec<_> = pieces.iter().map(|piece| (piece.start_ms(), piece.end_ms())).collect();
    spans.sort_unstable();
    let (mut sum_ms, mut known_to) = (0_u64, 0_u64);
    for (start, end) in spans {
        sum_ms = sum_ms.saturating_add(end.saturating_sub(start.max(known_to)));
        known_to = known_to.max(end);
    }
    Duration::from_millis(sum_ms)
}
