//! The worker's side: files loaded so far, and the answers from them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::elf::ObjectId;
use super::frame::Frame;
use super::kernel::Kernel;
use super::native::{Names, Native};
use super::stats::{SymbolStats, Unresolved};
use super::worker::{Answer, Shared, Step, SymbolKey};
use crate::units::{Avma, FileOffset};

/// Bytes of copies loaded at once; the least recently used file is dropped, and loaded again when needed.
pub const MAX_LOADED_BYTES: u64 = 512 << 20;
/// CPU time that may be saved up for loading, in seconds. The programs of a machine take a second or two of it at the
/// start (node 60 ms, a debug build of 500 MB 4 s); names that are missing then would be missing from what is looked at
/// first.
const MAX_CREDIT_S: f64 = 30.0;
/// The same for files that were loaded before and had to go for others: a build's programs do not fit into the memory
/// together, and would take turns in it at the price of a table for every new address.
const MAX_AGAIN_S: f64 = 3.0;
/// What loading again may take of the CPU time that loading may take.
const AGAIN_PART: f64 = 0.4;
/// Files remembered as loaded before.
const MAX_SEEN: usize = 1 << 16;
/// Files loaded at once; each copy is a descriptor or two.
const MAX_LOADED_FILES: usize = 128;

/// What a worker has loaded. It lives on the worker's thread, because blazesym is made for one thread.
#[derive(Default)]
pub(super) struct Loaded {
    files: HashMap<ObjectId, File>,
    kernel: Option<Kernel>,
    names: Names,
    bytes: u64,
    clock: u64,
    /// Files that have been loaded once.
    seen: HashSet<ObjectId>,
    credit: Credit,
}

/// CPU time that may be spent on loading.
struct Credit {
    left_s: f64,
    /// Of it, for files that were loaded before.
    again_s: f64,
    /// Whether the last file that was loaded is one of these: what is spent until the next one is on its account.
    again: bool,
    at: Instant,
    spent: Duration,
}

impl Default for Credit {
    fn default() -> Self {
        let (at, spent) = (Instant::now(), thread_cpu_time());
        Self { left_s: MAX_CREDIT_S, again_s: MAX_AGAIN_S, again: false, at, spent }
    }
}

impl Credit {
    /// Whether there is any, of so many percent of one CPU over time, for a file that was loaded before (`again`) or for
    /// a new one.
    fn is_left(&mut self, percent: f64, again: bool) -> bool {
        let (now, spent) = (Instant::now(), thread_cpu_time());
        let used = spent.saturating_sub(self.spent).as_secs_f64();
        self.account((now - self.at).as_secs_f64() * percent / 100.0, used);
        (self.at, self.spent) = (now, spent);
        let left = self.left_s > 0.0 && (!again || self.again_s > 0.0);
        if left {
            self.again = again;
        }
        left
    }

    fn account(&mut self, earned_s: f64, used_s: f64) {
        self.left_s = (self.left_s + earned_s).min(MAX_CREDIT_S) - used_s;
        let used_again_s = if self.again { used_s } else { 0.0 };
        self.again_s = (self.again_s + earned_s * AGAIN_PART).min(MAX_AGAIN_S) - used_again_s;
    }
}

fn thread_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

struct File {
    native: Result<Native, Unresolved>,
    last_used: u64,
    used_at: Instant,
}

impl File {
    fn bytes(&self) -> u64 {
        self.native.as_ref().map_or(0, |native| native.bytes)
    }
}

impl Loaded {
    /// Answers until the run is over, or until another worker has taken over.
    pub(super) fn run(mut self, shared: &Shared, generation: u64) {
        let mut stats = SymbolStats::default();
        loop {
            let batch = match shared.next_step(generation, !self.files.is_empty()) {
                Step::Answer(batch) => batch,
                Step::Unload => {
                    (self.files, self.bytes) = (HashMap::new(), 0);
                    self.names.forget_unused();
                    continue;
                }
                Step::End => return,
            };
            for key in batch {
                let answer = match key {
                    SymbolKey::File(id, offset) => self.file_answer(shared, id, offset, &mut stats),
                    SymbolKey::Kernel(address) => self.kernel_answer(address, &mut stats),
                };
                let goes_on = if answer.reason == Some(Unresolved::NotInTime) {
                    shared.postpone(generation, key)
                } else {
                    shared.answer(generation, key, answer, &mut stats)
                };
                if !goes_on {
                    return;
                }
            }
        }
    }

    fn file_answer(&mut self, shared: &Shared, id: ObjectId, offset: FileOffset, stats: &mut SymbolStats) -> Answer {
        let key = SymbolKey::File(id, offset);
        let refused = shared.refusal(id);
        let found = match refused {
            Some(reason) => Err(reason),
            None => self.resolve(shared, id, offset, stats),
        };
        match found {
            Ok(frames) => Answer { frames: frames.into(), reason: None },
            Err(reason) => Answer { frames: shared.unnamed(key, &mut self.names), reason: Some(reason) },
        }
    }

    /// Loads the file if need be, and looks the offset up. A panic in a parser refuses the file from then on.
    fn resolve(
        &mut self,
        shared: &Shared,
        id: ObjectId,
        offset: FileOffset,
        stats: &mut SymbolStats,
    ) -> Result<Vec<Frame>, Unresolved> {
        // Whatever the panic left behind is dropped with the file; `names` and `stats` are never half-changed.
        let call = std::panic::AssertUnwindSafe(|| {
            self.load(shared, id, stats)?;
            let file = self.files.get(&id).ok_or(Unresolved::FileClosed)?;
            file.native.as_ref().map_err(|reason| *reason)?.resolve(offset, &mut self.names, stats)
        });
        let found = std::panic::catch_unwind(call).unwrap_or_else(|_| {
            stats.panics = stats.panics.saturating_add(1);
            Err(Unresolved::Panicked)
        });
        if found == Err(Unresolved::Panicked) {
            shared.refuse(id, Unresolved::Panicked);
            self.unload(id);
        }
        found
    }

    fn load(&mut self, shared: &Shared, id: ObjectId, stats: &mut SymbolStats) -> Result<(), Unresolved> {
        self.clock = self.clock.saturating_add(1);
        if let Some(file) = self.files.get_mut(&id) {
            (file.last_used, file.used_at) = (self.clock, Instant::now());
            return Ok(());
        }
        let budget = shared.budget();
        self.unload_idle(budget.idle);
        let again = self.seen.contains(&id);
        if budget.cpu_percent.is_some_and(|percent| !self.credit.is_left(percent, again)) {
            return Err(Unresolved::NotInTime);
        }
        let origin = shared.objects.origin(id)?;
        let native = Native::load(&origin, &shared.gsym, &budget, stats);
        stats.loads = stats.loads.saturating_add(1);
        if self.seen.len() >= MAX_SEEN {
            self.seen.clear();
        }
        self.seen.insert(id);
        let file = File { native, last_used: self.clock, used_at: Instant::now() };
        self.bytes = self.bytes.saturating_add(file.bytes());
        self.files.insert(id, file);
        while self.files.len() > 1 && (self.bytes > budget.loaded || self.files.len() > MAX_LOADED_FILES) {
            let oldest = self.files.iter().min_by_key(|(_, file)| file.last_used).map(|(id, _)| *id);
            let Some(oldest) = oldest else { break };
            self.unload(oldest);
            stats.evictions = stats.evictions.saturating_add(1);
        }
        Ok(())
    }

    /// Files that nobody has asked for in a long time.
    fn unload_idle(&mut self, limit: Duration) {
        let idle = self.files.iter().filter(|(_, file)| file.used_at.elapsed() > limit);
        let idle: Vec<ObjectId> = idle.map(|(id, _)| *id).collect();
        if !idle.is_empty() {
            idle.into_iter().for_each(|id| self.unload(id));
            self.names.forget_unused();
        }
    }

    fn unload(&mut self, id: ObjectId) {
        if let Some(file) = self.files.remove(&id) {
            self.bytes = self.bytes.saturating_sub(file.bytes());
        }
    }

    fn kernel_answer(&mut self, address: Avma, stats: &mut SymbolStats) -> Answer {
        let kernel = self.kernel.get_or_insert_with(Kernel::load);
        stats.kernel_symbols = u64::try_from(kernel.len()).unwrap_or(u64::MAX);
        match kernel.resolve(address, &mut self.names) {
            Ok(frame) => Answer { frames: Arc::from([frame]), reason: None },
            Err(reason) => Answer { frames: Arc::from([Kernel::unnamed(address)]), reason: Some(reason) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_loaded_before_does_not_use_up_what_new_files_need() {
        let mut credit = Credit { again: true, ..Credit::default() };
        credit.account(0.0, 4.0);
        assert!(credit.again_s < 0.0 && credit.left_s > MAX_CREDIT_S - 5.0);
        // It comes back slowly, and never above its limit.
        credit.account(2.5, 0.0);
        assert!(credit.again_s <= 1e-9, "{}", credit.again_s);
        credit.account(1000.0, 0.0);
        assert!((credit.again_s - MAX_AGAIN_S).abs() < 1e-9);
        credit.again = false;
        credit.account(0.0, 5.0);
        assert!((credit.again_s - MAX_AGAIN_S).abs() < 1e-9 && credit.left_s < MAX_CREDIT_S - 4.0);
    }
}
