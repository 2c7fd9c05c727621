//! The worker's side: files loaded so far, and the answers from them.

use std::collections::HashMap;
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
    credit: Credit,
}

/// CPU time that may be spent on loading.
struct Credit {
    left_s: f64,
    at: Instant,
    spent: Duration,
}

impl Default for Credit {
    fn default() -> Self {
        Self { left_s: MAX_CREDIT_S, at: Instant::now(), spent: thread_cpu_time() }
    }
}

impl Credit {
    /// Whether there is any, of so many percent of one CPU over time.
    fn is_left(&mut self, percent: f64) -> bool {
        let (now, spent) = (Instant::now(), thread_cpu_time());
        let earned = (now - self.at).as_secs_f64() * percent / 100.0;
        let used = spent.saturating_sub(self.spent).as_secs_f64();
        self.left_s = (self.left_s + earned).min(MAX_CREDIT_S) - used;
        (self.at, self.spent) = (now, spent);
        self.left_s > 0.0
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
        if budget.cpu_percent.is_some_and(|percent| !self.credit.is_left(percent)) {
            return Err(Unresolved::NotInTime);
        }
        let origin = shared.objects.origin(id)?;
        let native = Native::load(&origin, &shared.gsym, &budget, stats);
        stats.loads = stats.loads.saturating_add(1);
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
