//! The index with the files behind it: encoding, decoding and merging, never under the lock.

use std::io::{self, Cursor};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::clock::Now;
use super::directory::Directory;
use super::id::{Id, Level, Name, system_time};
use super::index::{Block, Index};
use super::usage::{Sums, of_process};
use super::{ArchiveError, ArchiveOptions};
use crate::output::PprofError;
use crate::output::pprof::read::PprofFile;
use crate::output::pprof::sources::{ReadLimits, unpack};
use crate::output::pprof::{Encoding, encode};
use crate::profile::{Filter, Limits, Profile, Task};
use jitprof_common::units::MonoNs;

/// For windows. On a window of two busy CPUs at 99 Hz (327 kB), zlib's level 6 takes 2.6 times as long for 7 % fewer
/// bytes.
const GZIP_LEVEL: u32 = 3;

/// An answer may take about 100 MiB at the most, the names of a large host some MiB.
const ANSWER_LIMITS: Limits =
    Limits { string_bytes: 24 << 20, frames: 1 << 17, stacks: 1 << 20, tasks: 1 << 14, rows: 1 << 20, in_shares: true };

/// Bytes of the archive's own files, unpacked, as they are read and as they are written.
const MAX_READ_BYTES: u64 = if cfg!(test) { 2 << 20 } else { 64 << 20 };
const MAX_WRITE_BYTES: u64 = if cfg!(test) { 3 << 19 } else { 48 << 20 };
/// How much is read of the archive's own files.
pub(super) const READ_LIMITS: ReadLimits =
    ReadLimits { bytes: MAX_READ_BYTES, entries: 1 << 20, stack_frames: 4 << 10, frames: 1 << 26 };

/// How much is written into one of them: less, so that whatever is written is read again.
const WRITE_LIMITS: ReadLimits =
    ReadLimits { bytes: MAX_WRITE_BYTES, entries: 1 << 19, frames: 1 << 25, ..READ_LIMITS };
/// What is too large is tried again with half as much, so many times.
const MAX_HALVINGS: u32 = 4;

/// What the archive and its worker share.
pub(super) struct Store {
    limits: Mutex<KeepLimits>,
    index: Mutex<Index>,
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
    /// Files of which the index knows the name alone.
    pub(super) unscanned: AtomicU64,
    /// Whether the last write failed.
    pub(super) is_stopped: AtomicBool,
}

/// When a profile was recorded, and what it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) level: Level,
    /// When it begins by the wall clock, in milliseconds since 1970.
    pub(super) start_ms: u64,
    pub(super) length_ms: u64,
    /// When it ended, on the steady clock.
    pub(super) ended_ms: i64,
}

/// What is made of a merged profile's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Times {
    /// All at the start.
    Together,
    /// Each at the start of its block.
    OfBlocks,
    /// Each at the start of its step of so many milliseconds, in which its block begins.
    #[cfg(feature = "parquet")]
    Steps(u64),
}

impl Store {
    pub(super) fn new(options: &ArchiveOptions, directory: Option<Directory>) -> Self {
        Self { limits: Mutex::new(options.into()), index: Mutex::default(), directory, counters: Counters::default() }
    }

    pub(super) fn limits(&self) -> KeepLimits {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_limits(&self, options: &ArchiveOptions) {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner) = options.into();
    }

    pub(super) fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the folder's files into the index, without looking into them.
    pub(super) fn list(&self, clean: bool, now: Now) -> io::Result<()> {
        let Some(directory) = &self.directory else { return Ok(()) };
        let found = directory.list(clean)?;
        let mut index = self.index();
        self.counters.unscanned.store(u64::try_from(found.len()).unwrap_or(u64::MAX), Ordering::Relaxed);
        for file in found {
            let Name { id, level, length_ms } = file.name;
            let ended_ms = now.steady_end(id.start_ms().saturating_add(length_ms));
            let mut block = Block::new(id, level, length_ms, ended_ms);
            block.file = Some((Arc::from(file.path), file.bytes));
            index.insert(block);
        }
        Ok(())
    }

    /// Puts a profile into the index.
    pub(super) fn put(&self, profile: &Profile, place: Place, parts: &[Id]) -> io::Result<()> {
        let Place { level, start_ms, length_ms, ended_ms } = place;
        let numbers: Vec<u64> = parts.iter().map(|part| part.0).collect();
        let encoding = Encoding { gzip_level: GZIP_LEVEL, parts: &numbers, ..Encoding::default() };
        let bytes = encode_readable(profile, encoding, level == Level::Window)?;
        let usage = Sums::of(profile).into_usage();
        let mut index = self.index();
        let mut block = Block::new(index.free_id(level, start_ms), level, length_ms, ended_ms);
        block.bytes = Some(Arc::from(bytes));
        block.usage = Some(Arc::new(usage));
        block.parts = Arc::from(parts);
        index.insert(block);
        let lost = index.evict(self.limits().memory_bytes);
        drop(index);
        if self.directory.is_some() {
            self.counters.dropped.fetch_add(lost, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The bytes of a block; `None` if it went meanwhile.
    pub(super) fn bytes(&self, block: &Block) -> Option<Arc<[u8]>> {
        if let Some(bytes) = &block.bytes {
            return Some(Arc::clone(bytes));
        }
        let (path, _) = block.file.as_ref()?;
        match self.directory.as_ref()?.read(path) {
            Ok(bytes) => Some(Arc::from(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                self.damaged(block, &error);
                None
            }
        }
    }

    /// Leaves a block out from now on.
    fn damaged(&self, block: &Block, why: &dyn std::fmt::Display) {
        let path = block.file.as_ref().map_or("a window in memory", |(path, _)| path);
        let folder =
            self.directory.as_ref().map_or_else(String::new, |directory| directory.path().display().to_string());
        tracing::warn!("left out from now on: {path} of the archive {folder}: {why}");
        self.counters.unreadable.fetch_add(1, Ordering::Relaxed);
        self.index().update(block.level, block.id, |block| block.is_damaged = true);
    }

    /// Calls `look` with the decoded file of a block, if there is one. A block that cannot be read is left out from
    /// then on.
    pub(super) fn decode<T>(
        &self,
        block: &Block,
        raw: &mut Vec<u8>,
        look: impl FnOnce(&PprofFile<'_>) -> Result<T, PprofError>,
    ) -> Option<T> {
        let bytes = self.bytes(block)?;
        let unpacked = unpack(Cursor::new(&*bytes), &READ_LIMITS, raw);
        let looked = unpacked.and_then(|()| look(&PprofFile::parse(raw, READ_LIMITS)?));
        looked.inspect_err(|error| self.damaged(block, error)).ok()
    }

    /// All samples of the blocks that pass, as one profile.
    pub(super) fn merge(&self, blocks: &[Block], filter: &Filter, times: Times) -> Result<Profile, ArchiveError> {
        let process_filter = of_process(filter);
        let mut merged: Option<Profile> = None;
        let mut raw = Vec::new();
        let start_ms = blocks.iter().map(Block::start_ms).min().unwrap_or(0);
        for block in blocks.iter().filter(|block| Index::may_pass(block, &process_filter)) {
            self.decode(block, &mut raw, |file| {
                let bucket_ns = if times == Times::Together { u64::MAX } else { 1_000_000 };
                let into =
                    merged.get_or_insert_with(|| Profile::with_limits(file.meta().clone(), bucket_ns, ANSWER_LIMITS));
                let time_ms = match times {
                    Times::Together => start_ms,
                    Times::OfBlocks => block.start_ms(),
                    #[cfg(feature = "parquet")]
                    Times::Steps(step_ms) => block.start_ms() / step_ms.max(1) * step_ms,
                };
                let time = MonoNs(time_ms.saturating_sub(start_ms).saturating_mul(1_000_000));
                file.merge_into(into, time, |task: &Task| filter.passes(task))
            });
        }
        let mut merged = merged.filter(|merged| merged.total() > 0).ok_or(ArchiveError::Nothing)?;
        merged.set_start_time(system_time(start_ms));
        merged.set_duration(covered(blocks));
        Ok(merged)
    }

    /// Looks into a file: who used the CPU, and what was merged into it.
    pub(super) fn scan(&self, block: &Block) {
        let looked = self.decode(block, &mut Vec::new(), |file| {
            let mut sums = Sums::default();
            file.cpu_by_task(|task, cpu_ns| sums.add(task, cpu_ns))?;
            let parts: Arc<[Id]> = file.parts().iter().map(|part| Id(*part)).collect();
            Ok((sums.into_usage(), parts))
        });
        if let Some((usage, parts)) = looked {
            self.index().update(block.level, block.id, |block| {
                block.usage = Some(Arc::new(usage));
                block.parts = parts;
            });
        }
    }

    /// The blocks that answer for a time.
    pub(super) fn plan(&self, range_ms: &Range<u64>, use_merged: bool) -> Vec<Block> {
        self.index().plan(range_ms, use_merged)
    }
}

/// The bytes of a profile that a reader takes. What is too large for one is written with as many of its samples as fit, those
/// that were seen most often first, if it may be, and else refused.
fn encode_readable(profile: &Profile, encoding: Encoding<'_>, may_shorten: bool) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if encode(profile, encoding, &mut bytes)?.is_within(&WRITE_LIMITS) {
        return Ok(bytes);
    }
    for halvings in 0..if may_shorten { MAX_HALVINGS } else { 0 } {
        // A name is written twice, and a frame of a stack takes up to 16 bytes.
        let most = usize::try_from(WRITE_LIMITS.bytes).unwrap_or(usize::MAX) >> halvings;
        let limits = Limits { string_bytes: most / 8, frames: most / 512, tasks: most / 8192, ..Limits::in_shares() };
        bytes.clear();
        if encode(&profile.within(limits, most / 32), encoding, &mut bytes)?.is_within(&WRITE_LIMITS) {
            tracing::warn!(
                "a window has more names and stacks than a file of the archive holds; those of its samples that were \
                 seen least stand under [profile full] or [name table full]"
            );
            return Ok(bytes);
        }
    }
    Err(io::Error::new(io::ErrorKind::FileTooLarge, "more names and stacks than a file of the archive holds"))
}

/// How much time the blocks hold; what two of them hold counts once.
fn covered(blocks: &[Block]) -> Duration {
    let mut spans: Vec<_> = blocks.iter().map(|block| (block.start_ms(), block.end_ms())).collect();
    spans.sort_unstable();
    let (mut sum_ms, mut known_to) = (0_u64, 0_u64);
    for (start, end) in spans {
        sum_ms = sum_ms.saturating_add(end.saturating_sub(start.max(known_to)));
        known_to = known_to.max(end);
    }
    Duration::from_millis(sum_ms)
}
