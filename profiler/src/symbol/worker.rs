//! Names on a thread of their own: asked for during the run, read at its end.
//!
//! ```text
//! data loop ── request(key) ──▶ queue (bounded, no duplicates) ──▶ worker: load file once, look up ──▶ table of frames
//!            ◀─────────────────────────── frames(key) ◀──────────────────────────────────────────────────┘
//! ```
//!
//! A file can be crafted to hold a parser for hours. A worker that has been at one file for longer than
//! [`STALL_LIMIT`] is given up with that file (it ends by itself when it gets free) and the next one goes on without.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::elf::{ObjectId, Objects};
use super::frame::Frame;
use super::image::{MAX_DEBUG_BYTES, MAX_SYMBOL_BYTES};
use super::kernel::Kernel;
use super::loaded::{Loaded, MAX_LOADED_BYTES};
use super::native::{self, Names};
use super::stats::{SymbolStats, Unresolved};
use crate::gsym::GsymStore;
use crate::units::{Avma, FileOffset};

/// Distinct addresses of a run that get frames of their own; each takes some 200 bytes.
pub const MAX_KEYS: usize = 1 << 20;
/// Addresses waiting. What is asked for beyond is taken up by [`Symbolizer::resolve_all`].
pub const MAX_QUEUED: usize = 1 << 16;
/// Longest time at one file before the worker is given up. Opening a 500 MB debug build takes 4 s.
pub const STALL_LIMIT: Duration = Duration::from_secs(20);
/// Quiet time after which loaded files are dropped: a steady program has asked for all of its addresses by then.
const IDLE_LIMIT: Duration = Duration::from_secs(30);
/// Workers given up before names are no longer looked for.
const MAX_STALLS: u64 = 4;
/// Addresses taken at a time, all of one file if possible.
const BATCH: usize = 64;
/// Nested inlining takes a kilobyte a level (see `vet`), names 128 levels; the pages are taken only when touched.
const STACK_BYTES: usize = 16 << 20;

/// An address to be named. For a frame that is not the innermost one, that of its call: return address minus one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SymbolKey {
    /// A place in a file.
    File(ObjectId, FileOffset),
    /// A virtual address of the kernel.
    Kernel(Avma),
}

/// What is known of an address.
struct Known {
    /// Nothing while it is waiting.
    frames: Option<Arc<[Frame]>>,
    /// The turn in which it was last asked for.
    used: u32,
}

#[derive(Default)]
struct State {
    table: FxHashMap<SymbolKey, Known>,
    /// Counts the calls of [`Symbolizer::forget_unused`].
    turn: u32,
    /// The worker is to drop what it has loaded.
    unload: bool,
    queue: VecDeque<SymbolKey>,
    /// Asked for when the queue was full.
    deferred: VecDeque<SymbolKey>,
    /// Taken by the worker and not yet answered.
    in_work: Vec<SymbolKey>,
    /// What the worker is at, and since when.
    busy: Option<(Option<ObjectId>, Instant)>,
    /// Files that are not looked into again.
    refused: HashMap<ObjectId, Unresolved>,
    /// Which worker is the current one.
    generation: u64,
    closing: bool,
    stats: SymbolStats,
}

/// Times that tests shorten.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) stall: Duration,
    pub(super) idle: Duration,
}

/// What the worker may load, in bytes and for how long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SymbolBudget {
    /// Copies of files loaded at once; the least recently used file is dropped, and loaded again when needed. What is
    /// parsed of a copy takes about as much again.
    pub loaded: u64,
    /// Symbol tables of one file; beyond it, its code has no names.
    pub symbols: u64,
    /// Debug information of one file, inflated; beyond it, symbol tables alone give the names.
    pub debug: u64,
    /// How long a file stays loaded that nobody asks for while others are asked for.
    pub idle: Duration,
    /// CPU time for names, in percent of one CPU over time. When it is used up, no further file is loaded for a while,
    /// and addresses that were never asked for before stay without a name: a compiler's symbol tables take 200 ms.
    pub cpu_percent: Option<f64>,
}

impl SymbolBudget {
    /// Of a run that ends.
    pub const RUN: Self = Self {
        loaded: MAX_LOADED_BYTES,
        symbols: MAX_SYMBOL_BYTES,
        debug: MAX_DEBUG_BYTES,
        idle: Duration::MAX,
        cpu_percent: None,
    };
    /// Of a recording without end, for which an address that was never seen before comes every few seconds for weeks.
    /// node's copy takes 12 MB, and loading it again 60 ms of CPU time: what is idle goes late.
    pub const ENDLESS: Self = Self {
        loaded: 40 << 20,
        symbols: 64 << 20,
        debug: 8 << 20,
        idle: Duration::from_secs(120),
        cpu_percent: Some(0.5),
    };
}

/// What the data loop and the worker both see.
pub(super) struct Shared {
    state: Mutex<State>,
    work: Condvar,
    done: Condvar,
    limits: Limits,
    budget: Mutex<SymbolBudget>,
    pub(super) objects: Objects,
    pub(super) gsym: GsymStore,
}

/// Names addresses of files and of the kernel. Frames are shared, and stay the same for the run.
pub struct Symbolizer {
    shared: Arc<Shared>,
}

impl Symbolizer {
    /// Starts the worker.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn spawn() -> io::Result<Self> {
        Self::spawn_with_gsym(GsymStore::default())
    }

    /// Starts the worker; files without debug information get it from these GSYM files.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn spawn_with_gsym(gsym: GsymStore) -> io::Result<Self> {
        Self::spawn_within(Limits { stall: STALL_LIMIT, idle: IDLE_LIMIT }, gsym)
    }

    /// Loads within another budget from now on.
    pub fn set_budget(&self, budget: SymbolBudget) {
        *self.shared.budget.lock().unwrap_or_else(PoisonError::into_inner) = budget;
    }

    pub(super) fn spawn_within(limits: Limits, gsym: GsymStore) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            work: Condvar::new(),
            done: Condvar::new(),
            limits,
            budget: Mutex::new(SymbolBudget::RUN),
            objects: Objects::default(),
            gsym,
        });
        start_worker(&shared, 0)?;
        Ok(Self { shared })
    }

    /// The files that keys refer to.
    pub fn objects(&self) -> &Objects {
        &self.shared.objects
    }

    /// Asks for the frames of an address: some 100 ns, never waits for I/O. Asking again costs a look-up. The worker
    /// begins with [`Symbolizer::begin`], so that it is woken once for all that is asked for at a time.
    pub fn request(&self, key: SymbolKey) {
        let mut state = self.shared.lock();
        let turn = state.turn;
        if let Some(known) = state.table.get_mut(&key) {
            known.used = turn;
            return;
        }
        if state.table.len() >= MAX_KEYS {
            return;
        }
        state.table.insert(key, Known { frames: None, used: turn });
        state.stats.requests = state.stats.requests.saturating_add(1);
        if state.queue.len() < MAX_QUEUED {
            state.queue.push_back(key);
        } else {
            state.deferred.push_back(key);
            state.stats.deferred = state.stats.deferred.saturating_add(1);
        }
    }

    /// Has the worker answer what was requested.
    pub fn begin(&self) {
        let state = self.shared.lock();
        let waits = state.busy.is_none() && !state.queue.is_empty();
        drop(state);
        if waits {
            self.shared.work.notify_one();
        }
    }

    /// The frames if they are known already, innermost first.
    pub fn get(&self, key: SymbolKey) -> Option<Arc<[Frame]>> {
        let mut state = self.shared.lock();
        let turn = state.turn;
        let known = state.table.get_mut(&key)?;
        known.used = turn;
        known.frames.clone()
    }

    /// Forgets the frames of addresses that nobody has asked for in the last `turns` calls of this, if more than `keep`
    /// addresses are known. What is forgotten has to be requested again. Returns how many were.
    pub fn forget_unused(&self, keep: usize, turns: u32) -> usize {
        let mut state = self.shared.lock();
        state.turn = state.turn.saturating_add(1);
        if state.table.len() <= keep {
            return 0;
        }
        let (before, oldest) = (state.table.len(), state.turn.saturating_sub(turns));
        state.table.retain(|_, known| known.frames.is_none() || known.used >= oldest);
        if before == state.table.len() {
            return 0;
        }
        if state.table.len() < state.table.capacity() / 4 {
            state.table.shrink_to_fit();
        }
        before - state.table.len()
    }

    /// Closes and forgets the files that are neither in `wanted` nor behind an address that is known.
    pub fn forget_objects(&self, wanted: &HashSet<ObjectId>) {
        let mut state = self.shared.lock();
        let named: HashSet<ObjectId> = state.table.keys().filter_map(|key| object_of(*key)).collect();
        self.shared.objects.retain(|id| wanted.contains(&id) || named.contains(&id));
        state.refused.retain(|id, _| wanted.contains(id) || named.contains(id));
    }

    /// Has the worker drop what it has loaded: it is loaded again when it is needed.
    pub fn unload(&self) {
        self.shared.lock().unload = true;
        self.shared.work.notify_all();
    }

    /// The frames, innermost first and never empty. What was not asked for, or not answered yet, is named
    /// `[file+0x…]` or `[kernel]`, and counted: call [`Symbolizer::resolve_all`] before.
    pub fn frames(&self, key: SymbolKey) -> Arc<[Frame]> {
        let mut state = self.shared.lock();
        if let Some(Known { frames: Some(frames), .. }) = state.table.get(&key) {
            return Arc::clone(frames);
        }
        let turn = state.turn;
        let waiting = state.table.contains_key(&key);
        let full = state.table.len() >= MAX_KEYS;
        let frames = self.shared.unnamed(key, &mut Names::default());
        if self.shared.budget().cpu_percent.is_some() {
            // It may be named yet, for those who ask later.
            state.stats.count(Unresolved::NotInTime);
        } else if waiting || !full {
            let known = Known { frames: Some(Arc::clone(&frames)), used: turn };
            let new = state.table.insert(key, known).is_none();
            state.stats.requests = state.stats.requests.saturating_add(u64::from(new && !waiting));
            state.stats.count(Unresolved::NotInTime);
        } else {
            state.stats.requests = state.stats.requests.saturating_add(1);
            state.stats.count(Unresolved::TableFull);
        }
        frames
    }

    /// Waits until everything asked for is answered, or until `limit` has passed. Returns how many are still waiting.
    pub fn resolve_all(&self, limit: Duration) -> u64 {
        let deadline = Instant::now() + limit;
        let mut state = self.shared.lock();
        loop {
            self.shared.replace_stalled(&mut state);
            let deferred = std::mem::take(&mut state.deferred);
            state.queue.extend(deferred);
            let waiting = state.queue.len().saturating_add(state.in_work.len());
            let left = deadline.saturating_duration_since(Instant::now());
            if waiting == 0 || left.is_zero() {
                return u64::try_from(waiting).unwrap_or(u64::MAX);
            }
            self.shared.work.notify_one();
            let nap = left.min(Duration::from_millis(100));
            (state, _) = self.shared.done.wait_timeout(state, nap).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Gives up a worker that a file holds for too long. For the data loop, once a second or so.
    pub fn check(&self) {
        self.shared.replace_stalled(&mut self.shared.lock());
    }

    /// The account so far.
    pub fn stats(&self) -> SymbolStats {
        let mut stats = self.shared.lock().stats.clone();
        stats.objects = u64::try_from(self.shared.objects.len()).unwrap_or(u64::MAX);
        stats.files_closed = self.shared.objects.closed();
        stats
    }
}

impl Drop for Symbolizer {
    /// The worker ends by itself; one that a file holds is not waited for.
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.work.notify_all();
    }
}

impl Shared {
    /// Nothing that runs under the lock can panic half-way through a change.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What may be loaded now.
    pub(super) fn budget(&self) -> SymbolBudget {
        *self.budget.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn unnamed(&self, key: SymbolKey, names: &mut Names) -> Arc<[Frame]> {
        let frame = match key {
            SymbolKey::File(id, offset) => native::unnamed(self.objects.module(id).as_ref(), offset, names),
            SymbolKey::Kernel(address) => Kernel::unnamed(address),
        };
        Arc::from([frame])
    }

    fn replace_stalled(self: &Arc<Self>, state: &mut State) {
        let Some((object, since)) = state.busy else {
            return;
        };
        if since.elapsed() < self.limits.stall || state.stats.stalls >= MAX_STALLS {
            return;
        }
        state.stats.stalls = state.stats.stalls.saturating_add(1);
        if let Some(object) = object {
            state.refused.insert(object, Unresolved::TooSlow);
        }
        let unanswered = std::mem::take(&mut state.in_work);
        state.queue.extend(unanswered);
        state.generation = state.generation.saturating_add(1);
        state.busy = None;
        if let Err(error) = start_worker(self, state.generation) {
            tracing::warn!(%error, "cannot start a thread for symbols; the rest stays without names");
        }
    }

    /// Why a file is not to be looked into.
    pub(super) fn refusal(&self, id: ObjectId) -> Option<Unresolved> {
        self.lock().refused.get(&id).copied()
    }

    pub(super) fn refuse(&self, id: ObjectId, reason: Unresolved) {
        self.lock().refused.insert(id, reason);
    }

    /// The next addresses, all of one file. Waits for them; with files loaded, not longer than [`IDLE_LIMIT`].
    pub(super) fn next_step(&self, generation: u64, is_loaded: bool) -> Step {
        let mut state = self.lock();
        loop {
            if state.closing || state.generation != generation {
                return Step::End;
            }
            if std::mem::take(&mut state.unload) && is_loaded {
                return Step::Unload;
            }
            if let Some(&first) = state.queue.front() {
                let batch = take_alike(&mut state.queue, first);
                state.in_work.clone_from(&batch);
                state.busy = Some((object_of(first), Instant::now()));
                return Step::Answer(batch);
            }
            state.busy = None;
            self.done.notify_all();
            if is_loaded {
                let waited = self.work.wait_timeout(state, self.limits.idle);
                let (woken, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                if timeout.timed_out() && woken.queue.is_empty() {
                    return Step::Unload;
                }
                state = woken;
            } else {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// There is no time for this address now: who asks for it again later may have more luck. Returns whether this worker
    /// is still the current one.
    pub(super) fn postpone(&self, generation: u64, key: SymbolKey) -> bool {
        let mut state = self.lock();
        if state.generation != generation {
            return false;
        }
        state.in_work.retain(|waiting| *waiting != key);
        if state.table.get(&key).is_some_and(|known| known.frames.is_none()) {
            state.table.remove(&key);
        }
        true
    }

    /// Whether this worker is still the current one.
    pub(super) fn answer(&self, generation: u64, key: SymbolKey, answer: Answer, stats: &mut SymbolStats) -> bool {
        let mut state = self.lock();
        if state.generation != generation {
            return false;
        }
        absorb(&mut state.stats, std::mem::take(stats));
        state.in_work.retain(|waiting| *waiting != key);
        if let Some((_, since)) = &mut state.busy {
            *since = Instant::now();
        }
        // `frames` may have given an answer of its own, and counted it.
        if state.table.get(&key).is_some_and(|known| known.frames.is_some()) {
            return true;
        }
        match answer.reason {
            None => state.stats.resolved = state.stats.resolved.saturating_add(1),
            Some(reason) => state.stats.count(reason),
        }
        let lines = u64::from(answer.frames.iter().any(|frame| frame.source.is_some()));
        state.stats.with_lines = state.stats.with_lines.saturating_add(lines);
        let used = state.turn;
        state.table.insert(key, Known { frames: Some(answer.frames), used });
        true
    }
}

/// What the worker does next.
pub(super) enum Step {
    /// Find these names.
    Answer(Vec<SymbolKey>),
    /// Drop what is loaded.
    Unload,
    /// The run is over, or another worker has taken over.
    End,
}

/// What the worker found out about one address.
pub(super) struct Answer {
    pub(super) frames: Arc<[Frame]>,
    /// Why the frames have no name, if they have none.
    pub(super) reason: Option<Unresolved>,
}

fn object_of(key: SymbolKey) -> Option<ObjectId> {
    match key {
        SymbolKey::File(id, _) => Some(id),
        SymbolKey::Kernel(_) => None,
    }
}

/// Takes the addresses of the first one's file out of the start of the queue; the others keep their order.
fn take_alike(queue: &mut VecDeque<SymbolKey>, first: SymbolKey) -> Vec<SymbolKey> {
    let window = queue.len().min(BATCH * 8);
    let start: Vec<SymbolKey> = queue.drain(..window).collect();
    let mut batch = Vec::with_capacity(BATCH);
    let mut others = Vec::new();
    for key in start {
        let alike = object_of(key) == object_of(first) && batch.len() < BATCH;
        if alike { batch.push(key) } else { others.push(key) }
    }
    for key in others.into_iter().rev() {
        queue.push_front(key);
    }
    batch
}

fn absorb(total: &mut SymbolStats, part: SymbolStats) {
    let sums = [
        (&mut total.loads, part.loads),
        (&mut total.evictions, part.evictions),
        (&mut total.bytes_copied, part.bytes_copied),
        (&mut total.debug_files, part.debug_files),
        (&mut total.gsym_files, part.gsym_files),
        (&mut total.names_cut, part.names_cut),
        (&mut total.panics, part.panics),
    ];
    for (sum, more) in sums {
        *sum = sum.saturating_add(more);
    }
    total.kernel_symbols = total.kernel_symbols.max(part.kernel_symbols);
    for (reason, more) in part.debug_losses {
        let sum = total.debug_losses.entry(reason).or_default();
        *sum = sum.saturating_add(more);
    }
}

fn start_worker(shared: &Arc<Shared>, generation: u64) -> io::Result<()> {
    let shared = Arc::clone(shared);
    let builder = thread::Builder::new().name("symbols".into()).stack_size(STACK_BYTES);
    builder.spawn(move || Loaded::default().run(&shared, generation)).map(drop)
}
