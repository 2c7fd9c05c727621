//! Names on a thread of their own: asked for, answered when they are found.
//!
//! ```text
//! asker ── ask(keys) ──▶ queue ──▶ worker: load file once, look up ──▶ answers ──▶ asker
//! ```
//!
//! A file can be crafted to hold a parser for hours, or lie where nobody answers. A worker that has been at one for a
//! second is left to its owner's files, and another one goes on with everybody else's. One that has been at it for longer
//! than [`STALL_LIMIT`] is given up with that file; it ends by itself when it gets free.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use jitprof_common::units::{Avma, FileOffset};
use serde::{Deserialize, Serialize};

use super::credit::{Credits, Use};
use super::frame::Frame;
use super::image::{MAX_DEBUG_BYTES, MAX_SYMBOL_BYTES};
use super::loaded::{Loaded, MAX_LOADED_BYTES};
use super::open_files::OpenFiles;
use super::stats::{SymbolStats, Unresolved};
use crate::cost::{Activity, Ledger};
use crate::gsym::GsymStore;
use crate::owners::{Held, Owner};
use crate::process::open::FileId;

/// Distinct addresses of a run that get frames of their own; each takes some 200 bytes. Tests have fewer.
pub const MAX_KEYS: usize = if cfg!(test) { 32 << 10 } else { 1 << 20 };
/// Longest time at one file before the worker is given up. Opening a 500 MB debug build takes 4 s.
pub const STALL_LIMIT: Duration = Duration::from_secs(20);
/// Quiet time after which loaded files are dropped: a steady program has asked for all of its addresses by then.
const IDLE_LIMIT: Duration = Duration::from_secs(30);
/// Time at one file after which a worker is left to the files of its owner.
const SLOW_LIMIT: Duration = Duration::from_secs(1);
/// Workers at most that are left to one owner's files each.
const MAX_APART: usize = 4;
/// Workers at most that are held by their files; with more, names wait until one comes back.
const MAX_STUCK: usize = 32;
/// Of them, those at the files of one owner, fewer where others' hold many; with more, no further file of his is looked into until one comes back.
pub(super) const MAX_STUCK_OF_OWNER: usize = 4;
/// How long a file is left alone that has held a worker, once the worker has come back: a disk that was asleep is no
/// reason to be without names for good.
const REFUSED_FOR: Duration = Duration::from_secs(60);
/// Files at most that are known to be left alone.
const MAX_REFUSED: usize = 4096;
/// Addresses taken at a time, all of one file if possible.
const BATCH: usize = 64;
/// Nested inlining takes a kilobyte a level (see `vet`), names 128 levels; the pages are taken only when touched.
const STACK_BYTES: usize = 16 << 20;

/// An address to be named. For a frame that is not the innermost one, that of its call: return address minus one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SymbolKey {
    /// A place in a file.
    File(FileId, FileOffset),
    /// A virtual address of the kernel.
    Kernel(Avma),
}

impl SymbolKey {
    fn file(self) -> Option<FileId> {
        match self {
            Self::File(file, _) => Some(file),
            Self::Kernel(_) => None,
        }
    }
}

/// What the symbolizer says of an address.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NameAnswer {
    /// Which address.
    pub key: SymbolKey,
    /// The answer.
    pub name: Name,
}

/// The name of an address.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Name {
    /// The frames there, innermost first, never empty.
    Frames(Box<[Frame]>),
    /// It has none, for this reason.
    None(Unresolved),
    /// There is no time for it now: who asks again later may have more luck.
    NotNow,
    /// It has none, for this reason, and its function begins here.
    Within(Unresolved, FileOffset),
}

/// Whose files; nobody's are the kernel and what is not open.
pub(super) type Lane = Option<Owner>;

/// Whether files of two may be slow because of one user: a worker of his own is for all of his.
fn are_of_one_user(one: Lane, other: Lane) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one.may_be_of_one_user(other),
        _ => one == other,
    }
}

/// Addresses that wait, by whose file they are in. Each owner's have their turn.
#[derive(Debug, Default)]
struct Queues(VecDeque<(Lane, VecDeque<SymbolKey>)>);

impl Queues {
    fn of(&mut self, lane: Lane) -> &mut VecDeque<SymbolKey> {
        let index = self.0.iter().position(|(one, _)| *one == lane).unwrap_or_else(|| {
            self.0.push_back((lane, VecDeque::new()));
            self.0.len() - 1
        });
        &mut self.0[index].1
    }

    /// Addresses of one file, of the next owner whose turn it is among those that `may`.
    fn take(&mut self, may: impl Fn(Lane) -> bool) -> Option<(Lane, Vec<SymbolKey>)> {
        let index = self.0.iter().position(|(lane, _)| may(*lane))?;
        let (lane, mut queue) = self.0.remove(index)?;
        let first = *queue.front()?;
        let batch = take_alike(&mut queue, first);
        if !queue.is_empty() {
            self.0.push_back((lane, queue));
        }
        Some((lane, batch))
    }

    fn len(&self) -> usize {
        self.0.iter().map(|(_, queue)| queue.len()).sum()
    }
}

/// What a worker is at.
#[derive(Clone, Copy, Debug)]
struct At {
    file: Option<FileId>,
    lane: Lane,
    began: Instant,
    /// When it last found something.
    since: Instant,
}

/// A worker that has not been given up.
#[derive(Debug, Default)]
struct Worker {
    /// Whose files are all that it looks into; without any, those of everybody who has no worker of his own.
    apart: Option<Lane>,
    /// Taken and not yet answered.
    in_work: Vec<SymbolKey>,
    at: Option<At>,
    /// It is to drop what it has loaded.
    unload: bool,
}

#[derive(Default)]
struct State {
    queues: Queues,
    answers: Vec<NameAnswer>,
    /// By number.
    workers: BTreeMap<u64, Worker>,
    last_worker: u64,
    /// Files that are not looked into, and since when.
    refused: HashMap<FileId, (Unresolved, Instant)>,
    /// Workers that were given up and have not come back, by number, and what they are at.
    held: HashMap<u64, (Option<FileId>, Lane)>,
    credits: Credits,
    closing: bool,
    stats: SymbolStats,
}

/// Times that tests shorten.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) slow: Duration,
    pub(super) stall: Duration,
    pub(super) idle: Duration,
    pub(super) refused: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { slow: SLOW_LIMIT, stall: STALL_LIMIT, idle: IDLE_LIMIT, refused: REFUSED_FOR }
    }
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
    /// CPU time for names, in percent of one CPU over time, unless the service has a limit of which it gets its share. When it is used up, no further file is loaded for a while,
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
    /// Of a continuous recording, for which an address that was never seen before comes every few seconds for weeks.
    /// node's copy takes 12 MB, and loading it again 60 ms of CPU time: what is idle goes late.
    pub const CONTINUOUS: Self = Self {
        loaded: 48 << 20,
        symbols: 64 << 20,
        debug: 8 << 20,
        idle: Duration::from_secs(120),
        cpu_percent: Some(0.5),
    };
}

/// Calls when answers are there.
type Wake = Box<dyn Fn() + Send + Sync>;

/// What the asker and the worker both see.
pub(super) struct Shared {
    state: Mutex<State>,
    work: Condvar,
    done: Condvar,
    limits: Limits,
    budget: Mutex<SymbolBudget>,
    wake: Wake,
    pub(super) ledger: Arc<Ledger>,
    /// Bytes that all workers have loaded, those included that were given up.
    pub(super) loaded: AtomicU64,
    pub(super) files: Arc<OpenFiles>,
    pub(super) gsym: GsymStore,
}

/// Names addresses of open files and of the kernel.
pub struct Symbolizer {
    shared: Arc<Shared>,
}

impl Symbolizer {
    /// Starts the worker. Files without debug information get it from the GSYM files. `wake` is called on the worker's
    /// thread when answers are there.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn spawn(files: Arc<OpenFiles>, gsym: GsymStore, ledger: Arc<Ledger>, wake: Wake) -> io::Result<Self> {
        Self::spawn_within(Limits::default(), (files, gsym), ledger, wake)
    }

    pub(super) fn spawn_within(
        limits: Limits,
        (files, gsym): (Arc<OpenFiles>, GsymStore),
        ledger: Arc<Ledger>,
        wake: Wake,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            work: Condvar::new(),
            done: Condvar::new(),
            limits,
            budget: Mutex::new(SymbolBudget::RUN),
            wake,
            ledger,
            loaded: AtomicU64::new(0),
            files,
            gsym,
        });
        start_worker(&shared, &mut shared.lock(), None)?;
        Ok(Self { shared })
    }

    /// Loads within another budget from now on.
    pub fn set_budget(&self, budget: SymbolBudget) {
        *self.shared.budget.lock().unwrap_or_else(PoisonError::into_inner) = budget;
    }

    /// Asks for the frames of addresses. Never waits for I/O. Each is answered once, unless the worker ends before.
    pub fn ask(&self, keys: impl IntoIterator<Item = SymbolKey>) {
        let keys: Vec<(Lane, SymbolKey)> = keys.into_iter().map(|key| (self.shared.lane(key), key)).collect();
        let mut state = self.shared.lock();
        keys.into_iter().for_each(|(lane, key)| state.queues.of(lane).push_back(key));
        self.shared.work.notify_all();
    }

    /// The answers since the last call.
    pub fn take_answers(&self) -> Vec<NameAnswer> {
        std::mem::take(&mut self.shared.lock().answers)
    }

    /// Has the worker drop what it has loaded: it is loaded again when it is needed.
    pub fn unload(&self) {
        self.shared.lock().workers.values_mut().for_each(|worker| worker.unload = true);
        self.shared.work.notify_all();
    }

    /// Waits until everything asked for is answered, or until `limit` has passed. Returns how many are still waiting.
    pub fn wait(&self, limit: Duration) -> usize {
        let deadline = Instant::now() + limit;
        let mut state = self.shared.lock();
        loop {
            self.shared.check(&mut state);
            let in_work: usize = state.workers.values().map(|worker| worker.in_work.len()).sum();
            let waiting = state.queues.len().saturating_add(in_work);
            let left = deadline.saturating_duration_since(Instant::now());
            if waiting == 0 || left.is_zero() {
                return waiting;
            }
            self.shared.work.notify_all();
            let nap = left.min(Duration::from_millis(100));
            (state, _) = self.shared.done.wait_timeout(state, nap).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Leaves workers to files that hold them, and gives up those that are held for too long. To be called once a second
    /// or so.
    pub fn check(&self) {
        self.shared.check(&mut self.shared.lock());
    }

    /// What the worker did so far.
    pub fn stats(&self) -> SymbolStats {
        self.shared.lock().stats.clone()
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

    /// Whose file an address is in.
    pub(super) fn lane(&self, key: SymbolKey) -> Lane {
        let open = self.files.get(key.file()?)?;
        open.owner()
    }

    /// Sees to it that a file which takes long, or never answers, costs only its owner's names.
    fn check(self: &Arc<Self>, state: &mut State) {
        let late = state.workers.iter().filter(|(_, worker)| worker.is_at_for(self.limits.stall, |at| at.since));
        for number in late.map(|(number, _)| *number).collect::<Vec<_>>() {
            if state.held.len() < MAX_STUCK {
                state.give_up(number);
            }
        }
        let has_room = state.workers.values().filter(|worker| worker.apart.is_some()).count() < MAX_APART;
        let slow = state
            .workers
            .values_mut()
            .find(|worker| has_room && worker.apart.is_none() && worker.is_at_for(self.limits.slow, |at| at.began));
        if let Some(worker) = slow {
            worker.apart = worker.at.map(|at| at.lane);
        }
        if state.workers.values().all(|worker| worker.apart.is_some()) {
            self.start(state, None);
        }
        // Of whom a file holds a worker, the others' is not risked with the next one.
        let held: Vec<Lane> = state.held.values().map(|(_, lane)| *lane).collect();
        let waiting = state.queues.0.iter().map(|(lane, _)| *lane);
        let waiting = waiting.filter(|lane| held.iter().any(|held| are_of_one_user(*held, *lane)));
        for lane in waiting.collect::<Vec<_>>() {
            if state.workers.len() <= MAX_APART && !state.has_worker(lane) {
                self.start(state, Some(lane));
            }
        }
    }

    fn start(self: &Arc<Self>, state: &mut State, apart: Option<Lane>) {
        if let Err(error) = start_worker(self, state, apart) {
            tracing::warn!(%error, "cannot start a thread for symbols; the rest stays without names");
        }
    }

    /// Seconds of CPU time a second that names may take, if there is a limit.
    fn rate(&self) -> Option<f64> {
        let percent = self.budget().cpu_percent?;
        Some(self.ledger.rate(Activity::Names).unwrap_or(percent / 100.0))
    }

    /// Puts down what a worker has used.
    pub(super) fn put_down(&self, used: Use) {
        let Some(rate) = self.rate() else { return };
        let (mut state, now) = (self.lock(), Instant::now());
        state.credits.settle(rate, now);
        state.credits.spend(used, rate, now);
    }

    /// Whether a file may be loaded that is not, by a worker that has put down all that it has used.
    pub(super) fn may_load(&self, lane: Lane, again: bool) -> Result<(), Unresolved> {
        let rate = self.rate();
        let mut state = self.lock();
        if let Some(rate) = rate
            && !state.credits.is_left(lane, again, rate, Instant::now())
        {
            return Err(Unresolved::NotInTime);
        }
        // A run that ends would ask at once, and again and again.
        let why = state.why_not_one_more(lane).map(|why| if rate.is_some() { why } else { Unresolved::TooSlow });
        why.map_or(Ok(()), Err)
    }

    /// How many workers there are to share the room for what is loaded.
    pub(super) fn workers(&self) -> u64 {
        u64::try_from(self.lock().workers.len()).unwrap_or(1).max(1)
    }

    /// Why a file is not to be looked into.
    pub(super) fn refusal(&self, file: FileId) -> Option<Unresolved> {
        let mut state = self.lock();
        let (reason, since) = *state.refused.get(&file)?;
        let is_held = state.held.values().any(|(held, _)| *held == Some(file));
        if reason == Unresolved::TooSlow && since.elapsed() >= self.limits.refused && !is_held {
            state.refused.remove(&file);
            return None;
        }
        Some(reason)
    }

    pub(super) fn refuse(&self, file: FileId, reason: Unresolved) {
        self.lock().refuse(file, reason);
    }

    /// The next addresses, all of one file. Waits for them; with files loaded, not longer than [`IDLE_LIMIT`].
    pub(super) fn next_step(&self, number: u64, is_loaded: bool) -> Step {
        let mut state = self.lock();
        if !state.answers.is_empty() {
            (self.wake)();
        }
        loop {
            let closing = state.closing;
            let Some(worker) = state.workers.get_mut(&number).filter(|_| !closing) else { return Step::End };
            if std::mem::take(&mut worker.unload) && is_loaded {
                return Step::Unload;
            }
            let apart = worker.apart;
            if let Some((lane, batch)) = state.take_work(apart) {
                let (began, file) = (Instant::now(), batch.first().and_then(|key| key.file()));
                if let Some(worker) = state.workers.get_mut(&number) {
                    worker.in_work.clone_from(&batch);
                    worker.at = Some(At { file, lane, began, since: began });
                }
                return Step::Answer(lane, batch);
            }
            if let Some(worker) = state.workers.get_mut(&number) {
                worker.at = None;
            }
            self.done.notify_all();
            if is_loaded || apart.is_some() {
                let waited = self.work.wait_timeout(state, self.limits.idle);
                let (woken, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                state = woken;
                if timeout.timed_out() && !state.has_work(apart) {
                    if apart.is_none() {
                        return Step::Unload;
                    }
                    state.workers.remove(&number);
                    return Step::End;
                }
            } else {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Takes an answer. Returns whether this worker has not been given up.
    pub(super) fn answer(&self, number: u64, answer: NameAnswer, stats: &mut SymbolStats) -> bool {
        let mut state = self.lock();
        let Some(worker) = state.workers.get_mut(&number) else { return false };
        worker.in_work.retain(|waiting| *waiting != answer.key);
        if let Some(at) = &mut worker.at {
            at.since = Instant::now();
        }
        state.stats.absorb(&std::mem::take(stats));
        state.answers.push(answer);
        true
    }
}

impl Worker {
    fn is_at_for(&self, limit: Duration, since: impl Fn(&At) -> Instant) -> bool {
        self.at.as_ref().is_some_and(|at| since(at).elapsed() >= limit)
    }
}

impl State {
    fn has_worker(&self, lane: Lane) -> bool {
        self.workers.values().any(|worker| worker.apart.is_some_and(|apart| are_of_one_user(apart, lane)))
    }

    /// Why no further one of an owner's files may hold a worker, if so. Whose files hold none is asked again: others' do, and may
    /// let go.
    fn why_not_one_more(&self, lane: Lane) -> Option<Unresolved> {
        let held = || self.held.values().map(|(_, held)| *held);
        let is_of_kind = |held: &Lane| held.zip(lane).map_or(*held == lane, |(held, own)| held.is_of_kind(own));
        let own = held().filter(|held| are_of_one_user(*held, lane)).count();
        let held = Held { own, kind: held().filter(is_of_kind).count(), all: self.held.len() };
        let may_hold = own < MAX_STUCK_OF_OWNER && held.leaves_room(MAX_STUCK, 1);
        (!may_hold).then_some(if own == 0 { Unresolved::NotInTime } else { Unresolved::TooSlow })
    }

    /// Whether a worker that looks into the files of one owner alone, or into everybody's, may look into his.
    fn is_work_of(&self, apart: Option<Lane>, lane: Lane) -> bool {
        match apart {
            Some(apart) => are_of_one_user(apart, lane),
            None => !self.has_worker(lane) && !self.held.values().any(|(_, held)| are_of_one_user(*held, lane)),
        }
    }

    fn has_work(&self, apart: Option<Lane>) -> bool {
        self.queues.0.iter().any(|(lane, _)| self.is_work_of(apart, *lane))
    }

    fn take_work(&mut self, apart: Option<Lane>) -> Option<(Lane, Vec<SymbolKey>)> {
        let mut queues = std::mem::take(&mut self.queues);
        let taken = queues.take(|lane| self.is_work_of(apart, lane));
        self.queues = queues;
        taken
    }

    /// Leaves a worker to the file that it is at.
    fn give_up(&mut self, number: u64) {
        let Some(Worker { at: Some(at), in_work, .. }) = self.workers.remove(&number) else { return };
        self.stats.stalls = self.stats.stalls.saturating_add(1);
        self.held.insert(number, (at.file, at.lane));
        if let Some(file) = at.file {
            self.refuse(file, Unresolved::TooSlow);
        }
        let queue = self.queues.of(at.lane);
        in_work.into_iter().rev().for_each(|key| queue.push_front(key));
        if queue.is_empty() {
            self.queues.0.retain(|(_, queue)| !queue.is_empty());
        }
    }

    fn refuse(&mut self, file: FileId, reason: Unresolved) {
        if self.refused.len() >= MAX_REFUSED
            && let Some(oldest) = self.refused.iter().min_by_key(|(_, (_, since))| *since).map(|(file, _)| *file)
        {
            self.refused.remove(&oldest);
        }
        self.refused.insert(file, (reason, Instant::now()));
    }
}

/// What the worker does next.
pub(super) enum Step {
    /// Find these names, all in files of this owner.
    Answer(Lane, Vec<SymbolKey>),
    /// Drop what is loaded.
    Unload,
    /// The run is over, or another worker has taken over.
    End,
}

/// Takes the addresses of the first one's file out of the start of the queue; the others keep their order.
fn take_alike(queue: &mut VecDeque<SymbolKey>, first: SymbolKey) -> Vec<SymbolKey> {
    let window = queue.len().min(BATCH * 8);
    let start: Vec<SymbolKey> = queue.drain(..window).collect();
    let mut batch = Vec::with_capacity(BATCH);
    let mut others = Vec::new();
    for key in start {
        let alike = key.file() == first.file() && batch.len() < BATCH;
        if alike { batch.push(key) } else { others.push(key) }
    }
    for key in others.into_iter().rev() {
        queue.push_front(key);
    }
    batch
}

fn start_worker(shared: &Arc<Shared>, state: &mut State, apart: Option<Lane>) -> io::Result<()> {
    state.last_worker += 1;
    let (number, shared) = (state.last_worker, Arc::clone(shared));
    state.workers.insert(number, Worker { apart, ..Worker::default() });
    let builder = thread::Builder::new().name("symbols".into()).stack_size(STACK_BYTES);
    let run = move || {
        Loaded::default().run(&shared, number);
        shared.lock().held.remove(&number);
    };
    let started = builder.spawn(run).map(drop);
    if started.is_err() {
        state.workers.remove(&number);
    }
    started
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(file: u32) -> SymbolKey {
        SymbolKey::File(FileId(file), FileOffset(0))
    }

    fn lane(uid: u32) -> Lane {
        Some(Owner::test(uid))
    }

    #[test]
    fn owners_of_files_take_turns() {
        let mut queues = Queues::default();
        for number in 0..3 * BATCH {
            queues.of(lane(1)).push_back(SymbolKey::File(FileId(1), FileOffset(number as u64)));
        }
        queues.of(lane(2)).push_back(key(2));
        let mut taken = Vec::new();
        while let Some((lane, batch)) = queues.take(|_| true) {
            taken.push((lane.map(|owner| owner == Owner::test(2)), batch.len()));
        }
        assert_eq!(taken, [(Some(false), BATCH), (Some(true), 1), (Some(false), BATCH), (Some(false), BATCH)]);
    }

    #[test]
    fn who_mounts_many_file_systems_has_one_worker_for_what_is_slow() {
        let mut state = State::default();
        let on = |device: u64, uid: u32| Some(Owner::test_on(device, uid));
        state.workers.insert(1, Worker { apart: Some(on(1, 1000)), ..Worker::default() });
        assert!(!state.is_work_of(None, on(2, 1000)) && state.is_work_of(Some(on(1, 1000)), on(2, 1000)));
        assert!(state.is_work_of(None, on(1, 1001)) && state.is_work_of(None, None));
        // Root's are of many containers.
        state.workers.insert(2, Worker { apart: Some(on(1, 0)), ..Worker::default() });
        assert!(state.is_work_of(None, on(2, 0)) && !state.is_work_of(None, on(1, 0)));
    }

    #[test]
    fn however_many_users_files_hold_workers_a_new_one_s_are_looked_into_and_so_are_root_s() {
        let mut state = State::default();
        let mut take = |uid: u32| {
            let before = state.held.len();
            while state.why_not_one_more(lane(uid)).is_none() {
                state.held.insert(state.held.len() as u64, (None, lane(uid)));
            }
            state.held.len() - before
        };
        let taken: Vec<usize> = (1000..1010).map(&mut take).collect();
        assert_eq!(taken, [4, 4, 4, 2, 1, 1, 1, 1, 1, 1]);
        assert_eq!(take(0), 4);
        let more = (2000..3000).take_while(|uid| take(*uid) == 1).count();
        assert!((3..MAX_STUCK).contains(&more), "{more}");
        let whys = [3000, 2000, 1000].map(|uid| state.why_not_one_more(lane(uid)));
        let [later, never] = [Unresolved::NotInTime, Unresolved::TooSlow].map(Some);
        assert_eq!(whys, [later, never, never], "whose files hold none is asked again");
        const { assert!(MAX_APART < MAX_STUCK / 4) };
    }

    #[test]
    fn whose_file_holds_a_worker_holds_no_other_one_s_names() {
        let mut state = State::default();
        state.workers.insert(1, Worker { apart: Some(lane(1)), ..Worker::default() });
        state.queues.of(lane(1)).push_back(key(1));
        state.queues.of(lane(2)).push_back(key(2));
        assert_eq!(state.take_work(None), Some((lane(2), vec![key(2)])));
        assert_eq!(state.take_work(None), None, "his have a worker of their own");
        assert_eq!(state.take_work(Some(lane(1))), Some((lane(1), vec![key(1)])));
        // It never answers.
        let now = Instant::now();
        let at = At { file: Some(FileId(1)), lane: lane(1), began: now, since: now };
        let held = Worker { apart: Some(lane(1)), in_work: vec![key(1)], at: Some(at), unload: false };
        state.workers.insert(1, held);
        state.give_up(1);
        assert!(!state.has_work(None) && state.has_work(Some(lane(1))), "nor is the next one risked");
        assert_eq!(state.stats.stalls, 1);
    }
}
