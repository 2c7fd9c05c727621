//! Builds rows on threads of their own: of files, what samples wait for first, and of code that was found in processes.
//!
//! A file can hold whoever reads it, for its file system is its owner's. Another builder takes the place of one that has
//! been at a file for some seconds, and none begins with a further file of the same owner meanwhile; one that is held
//! for long is left to itself, and its file has no rows.

mod code;

use std::collections::HashMap;
use std::io;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jitprof_common::machine::Machine;
use jitprof_unwind::elf::ElfError;
use jitprof_unwind::{ElfRows, RowsError, rows_of_elf, rows_of_elf_bytes};

use crate::cost::{Activity, Ledger, thread_cpu_time};
use crate::engine::border::{Answer, CodePieces, FilePage, FileRows, RequestId, RowsAnswer};
use crate::kernel::Waker;
use crate::owners::{Held, Owner, Owners};
use crate::process::open::{FileId, VDSO};
use crate::process::own_vdso;
use crate::record::usage::Charge;

use self::code::{CodeOrder, CodeQueue};
use crate::symbol::{OpenFile, OpenFiles};

/// Builders at most: rows are wanted soon, and the CPUs are the target's. They run at the usual priority: on a busy
/// machine a niceness of 5 let 9 files be built in 5 seconds instead of 70, and the stacks were cut accordingly.
const MAX_BUILDERS: usize = 4;
/// Files with more functions leave one builder to the others. Node has 76,000 and takes 80 ms, libc 3,700 and 3 ms.
const LARGE_FUNCTIONS: u64 = 20_000;
/// And so do files of more bytes, whatever they say of their functions.
const LARGE_BYTES: u64 = 64 << 20;

/// In the background, a builder rests after a file that no sample has met so many times as long as it took, and not
/// longer than this: a tenth of one CPU for each builder.
const REST: u32 = 9;
const LONGEST_REST: Duration = Duration::from_secs(2);
/// How long builders wait for what files' owners may spend.
const OVER_BUDGET_PAUSE: Duration = Duration::from_millis(100);
/// And gives way to everybody else.
const BACKGROUND_NICE: i32 = 5;

/// Longest time with a file before its builder is left to it. Firefox' largest library takes 2 seconds, and a builder in
/// the background of a busy machine gets a part of a CPU.
const STALL_LIMIT: Duration = Duration::from_secs(30);
/// Bytes of files that are looked into at the same time; a larger file is looked into alone.
const MAX_BYTES_AT_ONCE: u64 = 96 << 20;
/// With so many files waiting, one whose owner may spend nothing gives way after a while.
const MANY_WAITING: usize = 64;
const GIVES_WAY_AFTER: Duration = Duration::from_secs(5);
/// Time with a file after which another builder takes the place of this one.
const SLOW_LIMIT: Duration = Duration::from_secs(2);
/// Builders at most in whose places are others and that are not given up yet.
const MAX_SLOW: usize = 4;
/// Builders at most that are held; with more, no rows of files are built until one comes back.
const MAX_STUCK: usize = 16;
/// Of them, those at the files of one owner; with more, his others have no rows until one comes back.
const MAX_STUCK_OF_OWNER: usize = 2;
/// The same of one user, on whatever file systems; fewer where others' hold many.
const MAX_STUCK_OF_USER: usize = 4;
/// Builders that may be at a user's files for long at the same time.
const MAX_SLOW_OF_USER: usize = 2;
/// CPU seconds that an owner may use at once.
const OWNER_START_S: f64 = 5.0;
/// What an owner may owe at most, as seconds at his rate.
const OWNER_OWED_S: f64 = 60.0;
/// CPU seconds that an owner uses before it is another one's turn: what his files say of the work that they are need not be
/// true.
const TURN_S: f64 = 0.5;

/// Why a file has no rows that holds its builder.
const NO_ANSWER: &str = "its file system does not answer";

/// What rows are made of.
#[derive(Debug)]
enum Image {
    File(Arc<OpenFile>),
    Vdso,
}

/// A file that waits for a builder.
#[derive(Debug)]
struct Order {
    file: FileId,
    image: Image,
    /// How long it will take: its functions, about.
    functions: u64,
    /// Samples that have met it meanwhile.
    samples: u64,
    /// Whose it is; nobody's is the vDSO.
    owner: Option<Owner>,
    bytes: u64,
    since: Instant,
}

/// What a builder is given.
#[derive(Debug)]
enum Work {
    File(Order),
    Code(CodeOrder),
}

/// A builder that has not been left to a file that holds it.
#[derive(Clone, Copy, Debug)]
struct Builder {
    /// Large files are none of its work.
    only_small: bool,
    /// What it is at, and since when.
    at: Option<(FileId, Instant)>,
    /// The bytes of the file, and whose it is.
    bytes: u64,
    owner: Option<Owner>,
    /// Another one has its place: it ends with this file.
    replaced: bool,
}

impl Builder {
    fn new(only_small: bool) -> Self {
        Self { only_small, at: None, bytes: 0, owner: None, replaced: false }
    }

    fn is_at_for(&self, limit: Duration) -> bool {
        self.at.is_some_and(|(_, since)| since.elapsed() >= limit)
    }

    fn is_at_files_of_user(&self, owner: Owner) -> bool {
        self.owner.is_some_and(|own| own.may_be_of_one_user(owner))
    }
}

#[derive(Debug)]
struct Queue {
    waiting: Vec<Order>,
    answers: Vec<RowsAnswer>,
    code: CodeQueue,
    /// By number.
    builders: HashMap<u64, Builder>,
    last_builder: u64,
    owners: Owners,
    /// What each has used, for the order in which they are served.
    turns: Owners,
    /// The least that any of those had used whose turn it might have been when somebody was served last.
    served: Option<(f64, Instant)>,
    /// Builders that are held, by number, and whose files hold them.
    stuck: HashMap<u64, Option<Owner>>,
    /// Places of builders that are held which nobody has taken: whether large files are none of their work.
    vacant: Vec<bool>,
    closing: bool,
}

impl Default for Queue {
    fn default() -> Self {
        let [owners, turns] = [(); 2].map(|()| Owners::starting_with(OWNER_START_S, OWNER_OWED_S));
        let turns = turns.in_turns();
        let (waiting, answers, builders, last_builder, served) = Default::default();
        let (stuck, vacant, closing, code) = Default::default();
        Self { waiting, answers, code, builders, last_builder, owners, turns, served, stuck, vacant, closing }
    }
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Woken for answers.
    wake: Waker,
    ledger: Arc<Ledger>,
    /// Nobody waits for the end of the recording: what no sample has met is built in pauses.
    background: AtomicBool,
    slow_limit: Duration,
    stall_limit: Duration,
}

/// The threads. Dropping this ends them, each behind the file that it is at.
#[derive(Debug)]
pub(super) struct Builders {
    shared: Arc<Shared>,
    files: Arc<OpenFiles>,
}

impl Builders {
    /// Starts them: as many as there are CPUs, at least two so that a large file stops no small one, four at most.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(super) fn spawn(files: Arc<OpenFiles>, ledger: Arc<Ledger>, wake: Waker) -> io::Result<Self> {
        Self::spawn_within([SLOW_LIMIT, STALL_LIMIT], files, ledger, wake)
    }

    fn spawn_within(
        [slow_limit, stall_limit]: [Duration; 2],
        files: Arc<OpenFiles>,
        ledger: Arc<Ledger>,
        wake: Waker,
    ) -> io::Result<Self> {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let (queue, changed, background) = Default::default();
        let shared = Arc::new(Shared { queue, changed, wake, ledger, background, slow_limit, stall_limit });
        for index in 0..cpus.clamp(2, MAX_BUILDERS) {
            start(&shared, &mut shared.lock(), index == 0)?;
        }
        Ok(Self { shared, files })
    }

    /// Has the rows of a file built that `samples` samples have met already and that has so many functions, about.
    pub(super) fn order(&self, file: FileId, samples: u64, functions: u64) {
        let image = match self.files.get(file) {
            _ if file == VDSO => Image::Vdso,
            Some(open) => Image::File(open),
            None => {
                let rows = Err("it has been closed".to_owned());
                self.shared.lock().answers.push(RowsAnswer { file, took: Duration::ZERO, rows });
                self.shared.wake.wake();
                return;
            }
        };
        let (identity, owner) = match &image {
            Image::File(open) => (open.identity(), open.owner()),
            Image::Vdso => (None, None),
        };
        let bytes = identity.map_or(0, |identity| identity.len);
        let order = Order { file, image, functions, samples, owner, bytes, since: Instant::now() };
        let rate = self.shared.rate();
        self.shared.lock().admit(order, rate);
        // Not all builders take large files: one that does must hear of it.
        self.shared.changed.notify_all();
    }

    /// Has rows of code made, for whoever asks for them.
    pub(super) fn order_code(&self, request: RequestId, code: Box<CodePieces>) {
        let (order, rate) = (CodeOrder::new(request, code), self.shared.rate());
        let is_admitted = self.shared.lock().admit_code(order, rate);
        match is_admitted {
            true => self.shared.changed.notify_all(),
            false => self.shared.wake.wake(),
        }
    }

    /// A sample has met a file that waits: it comes sooner.
    pub(super) fn hurry(&self, file: FileId) {
        if let Some(order) = self.shared.lock().waiting.iter_mut().find(|order| order.file == file) {
            order.samples = order.samples.saturating_add(1);
            self.shared.changed.notify_all();
        }
    }

    /// From now on what no sample has met is built slowly.
    pub(super) fn work_in_background(&self) {
        self.shared.background.store(true, Ordering::Relaxed);
    }

    /// Leaves builders to the files that hold them. To be called every second or so.
    pub(super) fn check(&self) {
        let mut queue = self.shared.lock();
        let at = queue.builders.iter().filter(|(_, builder)| builder.is_at_for(self.shared.slow_limit));
        let mut late: Vec<u64> = at.map(|(number, _)| *number).collect();
        late.sort_unstable();
        for number in late {
            let Some(builder) = queue.builders.get(&number).copied() else { continue };
            if builder.is_at_for(self.shared.stall_limit) {
                self.shared.give_up(&mut queue, number);
            } else {
                let replaced = queue.builders.values().filter(|builder| builder.replaced).count();
                if replaced >= MAX_SLOW || queue.stuck.len() >= MAX_STUCK {
                    continue;
                }
                if let Some(builder) = queue.builders.get_mut(&number) {
                    builder.replaced = true;
                }
            }
            if !builder.replaced {
                queue.vacant.push(builder.only_small);
            }
        }
        // Also places that were not filled when too many were held.
        while queue.stuck.len() < MAX_STUCK
            && let Some(only_small) = queue.vacant.pop()
        {
            if let Err(error) = start(&self.shared, &mut queue, only_small) {
                tracing::warn!(%error, "cannot start a thread in place of one that a file holds");
                queue.vacant.push(only_small);
                break;
            }
        }
        // Also while all builders are at work, and none looks who waits in vain.
        let (rate, now) = (self.shared.rate(), Instant::now());
        queue.code.look_at_budget(&self.shared.ledger, now);
        let refused = [queue.refuse_stuck(), queue.refuse_code(rate, now)];
        if refused.contains(&true) {
            self.shared.wake.wake();
        }
    }

    /// What has been built since the last call.
    pub(super) fn take_answers(&self) -> Vec<RowsAnswer> {
        std::mem::take(&mut self.shared.lock().answers)
    }

    /// The same of code, and what that is put down to.
    pub(super) fn take_code_answers(&self) -> Vec<(Charge, Answer)> {
        std::mem::take(&mut self.shared.lock().code.answers)
    }
}

impl Drop for Builders {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.closing = true;
        queue.waiting.clear();
        queue.code.waiting.clear();
        drop(queue);
        self.shared.changed.notify_all();
    }
}

impl Shared {
    /// Nothing panics while the lock is held.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves a builder to its file, which has no rows.
    fn give_up(&self, queue: &mut Queue, number: u64) {
        let Some(builder) = queue.builders.remove(&number) else { return };
        let Some((file, since)) = builder.at else { return };
        queue.stuck.insert(number, builder.owner);
        queue.answers.push(RowsAnswer { file, took: since.elapsed(), rows: Err(NO_ANSWER.to_owned()) });
        self.wake.wake();
    }

    /// Takes an answer of a builder. Returns whether it has neither been left to its file nor been replaced.
    fn answer(&self, number: u64, answer: RowsAnswer) -> bool {
        let mut queue = self.lock();
        let Some(builder) = queue.builders.get_mut(&number) else {
            queue.stuck.remove(&number);
            return false;
        };
        let stays = !builder.replaced;
        *builder = Builder::new(builder.only_small);
        if !stays {
            queue.builders.remove(&number);
        }
        queue.answers.push(answer);
        self.wake.wake();
        stays
    }

    /// Waits for a while, unless a sample comes to wait for something.
    fn rest(&self, pause: Duration) {
        let is_calm =
            |queue: &Queue| queue.waiting.iter().all(|order| order.samples == 0) && queue.code.waiting.is_empty();
        let rested = |queue: &mut Queue| !queue.closing && is_calm(queue);
        let waited = self.changed.wait_timeout_while(self.lock(), pause, rested);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits for the next order; `None` to end.
    fn next(&self, number: u64, only_small: bool) -> Option<Work> {
        let mut queue = self.lock();
        loop {
            if queue.closing {
                return None;
            }
            let (rate, now) = (self.rate(), Instant::now());
            queue.code.look_at_budget(&self.ledger, now);
            if let Some(work) = queue.take_work((number, only_small), rate, now) {
                return Some(work);
            }
            let gave_way = [queue.give_way(rate, now), queue.refuse_code(rate, now)];
            if gave_way.contains(&true) {
                self.wake.wake();
            }
            queue = match queue.waiting.is_empty() && queue.code.waiting.is_empty() {
                true => self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
                // An owner will have something to spend again, or room comes.
                false => self.changed.wait_timeout(queue, OVER_BUDGET_PAUSE).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }

    /// What each owner of files may spend, in seconds a second; none in a run that ends.
    fn rate(&self) -> Option<f64> {
        let is_limited = self.background.load(Ordering::Relaxed);
        is_limited.then(|| self.ledger.rate(Activity::Processes)).flatten()
    }

    /// A file was looked into, or rows of code were made.
    fn charge(&self, activity: Activity, owner: Option<Owner>, spent: Duration) {
        let (Some(rate), Some(owner)) = (self.rate(), owner) else {
            return self.ledger.add(activity, spent);
        };
        self.ledger.add_apart(activity, spent);
        self.lock().spend(owner, rate, Instant::now(), spent.as_secs_f64());
    }
}

impl Queue {
    /// Takes up a file. Whoever had none that waited has saved nothing up meanwhile, and comes no sooner than those who waited
    /// when somebody was served last: somebody may be many users, each of whom has used nothing.
    fn admit(&mut self, order: Order, rate: Option<f64>) {
        if let Some((rate, owner)) = rate.zip(order.owner) {
            self.let_in(owner, rate, order.since);
        }
        self.waiting.push(order);
    }

    fn let_in(&mut self, owner: Owner, rate: f64, since: Instant) {
        if !self.waiting.iter().any(|other| other.is_of_user(owner)) && !self.has_code_of(owner) {
            let least = self.least_used(rate, since);
            self.turns.raise(owner.payer(), least, rate, since);
        }
    }

    /// What those had used at least who waited when somebody was served last, less what anybody has earned since.
    fn least_used(&self, rate: f64, now: Instant) -> f64 {
        let earned = |since: Instant| now.saturating_duration_since(since).as_secs_f64() * rate;
        self.served.map_or(0.0, |(used, at)| (used - earned(at)).max(0.0))
    }

    /// A file of an owner has taken so many seconds.
    fn spend(&mut self, owner: Owner, rate: f64, now: Instant, seconds: f64) {
        self.owners.spend(owner.payer(), rate, now, seconds);
        self.turns.spend(owner.payer(), rate, now, seconds);
    }

    /// The file or the code that comes first. At a file its builder may be held.
    fn take_work(&mut self, (number, only_small): (u64, bool), rate: Option<f64>, now: Instant) -> Option<Work> {
        let (file, code) = (self.choose(only_small, rate, now), self.choose_code(rate, now));
        if file.or(code).is_some() {
            self.note_code(rate, now);
        }
        if let Some(code) = code.filter(|code| file.is_none_or(|file| self.is_before(*code, file, rate, now))) {
            return self.code.take(code).map(Work::Code);
        }
        let order = self.waiting.swap_remove(file?);
        let (at, owner) = (Some((order.file, now)), order.owner);
        self.builders.insert(number, Builder { at, bytes: order.bytes, owner, ..Builder::new(only_small) });
        Some(Work::File(order))
    }

    /// In a continuous recording, a file of who has used least, by turns; of those, the least work for each sample that waits for
    /// it: this order leaves the fewest samples without rows, and libc does not wait for a browser.
    fn choose(&mut self, only_small: bool, rate: Option<f64>, now: Instant) -> Option<usize> {
        let Self { waiting, builders, owners, turns, served, stuck, .. } = self;
        // What a file says of its length must not keep everybody waiting for as long as it holds its builder.
        let bytes =
            |builder: &Builder| if builder.replaced { builder.bytes.min(LARGE_BYTES / 2) } else { builder.bytes };
        let in_work = builders.values().fold(0_u64, |sum, builder| sum.saturating_add(bytes(builder)));
        let is_held_up = |order: &Order| {
            let Some(owner) = order.owner else { return false };
            // Those that are slow may be held soon.
            let slow = builders.values().filter(|one| one.is_at_for(SLOW_LIMIT)).filter_map(|one| one.owner);
            if !held_by(owner, stuck.values().flatten().copied().chain(slow)).leaves_room(MAX_STUCK, 1) {
                return true;
            }
            let at_his = |builder: &&Builder| builder.at.is_some() && builder.is_at_files_of_user(owner);
            let (mut his, mut slow) = (builders.values().filter(at_his), 0);
            his.any(|one| {
                slow += usize::from(one.is_at_for(SLOW_LIMIT));
                let is_dear = one.is_at_for(SLOW_LIMIT) || stuck.values().any(|held| *held == one.owner);
                (one.owner == Some(owner) && is_dear) || slow >= MAX_SLOW_OF_USER
            })
        };
        let is_mine = |order: &Order| !only_small || (order.functions < LARGE_FUNCTIONS && order.bytes < LARGE_BYTES);
        let has_room = |order: &Order| in_work == 0 || in_work.saturating_add(order.bytes) <= MAX_BYTES_AT_ONCE;
        let fitting = |order: &Order| has_room(order) && !is_held_up(order) && may_spend(owners, order, rate, now);
        let used = |order: &Order| rate.zip(order.owner).map(|(rate, owner)| turns.spent_s(owner.payer(), rate, now));
        let turn = |order: &Order| used(order).map_or(0.0, |used| (used / TURN_S).floor());
        let first = |a: &Order, b: &Order| turn(a).total_cmp(&turn(b)).then_with(|| a.compare_work(b));
        let mine = waiting.iter().enumerate().filter(|(_, order)| is_mine(order) && fitting(order));
        let (index, _) = mine.min_by(|(_, a), (_, b)| first(a, b))?;
        // Also of those whose files are another builder's work, but not of who keeps one waiting that cannot be begun with.
        let all = waiting.iter().filter(|order| rate.is_some() && fitting(order));
        if let Some(least) = all.filter_map(used).min_by(f64::total_cmp) {
            *served = Some((least, now));
        }
        Some(index)
    }

    /// Answers those whose owner's files hold too many builders. Whose hold none wait for room, for a while. Returns whether there
    /// were any.
    fn refuse_stuck(&mut self) -> bool {
        let Self { waiting, stuck, answers, .. } = self;
        let before = waiting.len();
        waiting.retain(|order| {
            let Some(owner) = order.owner else { return true };
            let held = || stuck.values().flatten();
            let of_owner = held().filter(|held| **held == owner).count();
            let of_user = held().filter(|held| held.may_be_of_one_user(owner)).count();
            let has_waited = of_user > 0 || order.since.elapsed() >= GIVES_WAY_AFTER;
            let is_greedy = has_waited && !held_by(owner, held().copied()).leaves_room(MAX_STUCK, 1);
            let is_refused = of_owner >= MAX_STUCK_OF_OWNER || of_user >= MAX_STUCK_OF_USER || is_greedy;
            if is_refused {
                let rows = Err(NO_ANSWER.to_owned());
                answers.push(RowsAnswer { file: order.file, took: Duration::ZERO, rows });
            }
            !is_refused
        });
        waiting.len() < before
    }

    /// Answers those that wait in vain and in the way of others. Returns whether there were any.
    fn give_way(&mut self, rate: Option<f64>, now: Instant) -> bool {
        if self.waiting.len() < MANY_WAITING {
            return false;
        }
        let Self { waiting, owners, answers, .. } = self;
        let before = waiting.len();
        waiting.retain(|order| {
            let stays = now.duration_since(order.since) < GIVES_WAY_AFTER || may_spend(owners, order, rate, now);
            if !stays {
                let rows = Err("its owner's files take too long".to_owned());
                answers.push(RowsAnswer { file: order.file, took: Duration::ZERO, rows });
            }
            stays
        });
        waiting.len() < before
    }
}

/// What files hold, as an owner of one more sees it.
fn held_by(owner: Owner, held: impl Iterator<Item = Owner>) -> Held {
    let nothing = Held { own: 0, kind: 0, all: 0 };
    held.fold(nothing, |sum, other| Held {
        own: sum.own + usize::from(other.may_be_of_one_user(owner)),
        kind: sum.kind + usize::from(other.is_of_kind(owner)),
        all: sum.all + 1,
    })
}

/// Whether a file's owner has something left to spend.
fn may_spend(owners: &Owners, order: &Order, rate: Option<f64>, now: Instant) -> bool {
    let (Some(rate), Some(owner)) = (rate, order.owner) else { return true };
    owners.may_spend(owner.payer(), rate, now)
}

impl Order {
    fn is_of_user(&self, owner: Owner) -> bool {
        self.owner.is_some_and(|own| own.may_be_of_one_user(owner))
    }

    fn compare_work(&self, other: &Self) -> std::cmp::Ordering {
        compare_work((self.functions, self.samples), (other.functions, other.samples))
    }
}

/// By functions for each sample. A file that no sample has met counts like half a sample: its process runs.
fn compare_work(one: (u64, u64), other: (u64, u64)) -> std::cmp::Ordering {
    let half_samples = |(_, samples): (u64, u64)| u128::from(samples) * 2 + 1;
    let work = |(functions, _): (u64, u64)| u128::from(functions) + 1;
    (work(one) * half_samples(other)).cmp(&(work(other) * half_samples(one)))
}

fn start(shared: &Arc<Shared>, queue: &mut Queue, only_small: bool) -> io::Result<()> {
    queue.last_builder += 1;
    let (number, shared) = (queue.last_builder, Arc::clone(shared));
    queue.builders.insert(number, Builder::new(only_small));
    let started =
        std::thread::Builder::new().name(format!("rows-{number}")).spawn(move || build(&shared, number, only_small));
    if started.is_err() {
        queue.builders.remove(&number);
    }
    started.map(drop)
}

fn build(shared: &Shared, number: u64, only_small: bool) {
    let mut polite = false;
    while let Some(work) = shared.next(number, only_small) {
        let background = shared.background.load(Ordering::Relaxed);
        if background && !std::mem::replace(&mut polite, true) {
            // Of this thread alone: Linux takes a niceness for each.
            if let Err(error) = rustix::process::setpriority_process(None, BACKGROUND_NICE) {
                tracing::debug!("a builder keeps its priority: {error}");
            }
        }
        let Order { file, image, samples, owner, .. } = match work {
            Work::File(order) => order,
            Work::Code(order) => {
                shared.make(&order);
                continue;
            }
        };
        let (started, cpu) = (Instant::now(), thread_cpu_time());
        let rows = catch_unwind(move || match &image {
            Image::File(open) => open.file.reading(|| rows_of(&image)),
            Image::Vdso => rows_of(&image),
        });
        let rows = rows.unwrap_or_else(|_| Err("its reader panicked".to_owned()));
        let took = started.elapsed();
        shared.charge(Activity::Processes, owner, thread_cpu_time().saturating_sub(cpu));
        if !shared.answer(number, RowsAnswer { file, took, rows }) {
            return;
        }
        if background && samples == 0 {
            shared.rest(took.saturating_mul(REST).min(LONGEST_REST));
        }
    }
}

fn rows_of(image: &Image) -> Result<FileRows, String> {
    let rows = match image {
        Image::File(open) => {
            let rows = rows_of_elf(&open.file);
            if !open.is_unchanged() {
                return Err("it was written over in its place".to_owned());
            }
            rows
        }
        Image::Vdso => own_vdso()
            .map_err(|error| RowsError::Elf(ElfError::Read(error)))
            .and_then(|image| rows_of_elf_bytes(&image)),
    };
    let ElfRows { table, segments, machine, .. } = rows.map_err(|error| error.to_string())?;
    if machine != Machine::NATIVE {
        return Err("it is of another machine".to_owned());
    }
    let pages = table.pages().filter_map(|page| {
        let number = u32::try_from(page.page).ok()?;
        Some(FilePage { page: number, count: u32::try_from(page.rows.len()).ok()?, rows: page.rows.to_vec() })
    });
    Ok(FileRows { pages: pages.collect(), segments })
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn order(file: u32, functions: u64, samples: u64) -> Order {
        let (owner, bytes, since) = (None, 0, Instant::now());
        Order { file: FileId(file), image: Image::Vdso, functions, samples, owner, bytes, since }
    }

    #[test]
    fn the_least_work_for_each_waiting_sample_comes_first() {
        let waiting =
            vec![order(1, 9, 0), order(2, 70_000, 300), order(3, 3_700, 100), order(4, 50, 0), order(5, 60, 3)];
        let mut queue = Queue { waiting, ..Queue::default() };
        let mut chosen = Vec::new();
        while let Some(index) = queue.choose(false, None, Instant::now()) {
            chosen.push(queue.waiting.swap_remove(index).file.0);
        }
        assert_eq!(chosen, [5, 1, 3, 4, 2]);
    }

    #[test]
    fn files_of_who_has_used_much_come_after_another_s_whatever_they_say_of_their_work() {
        let [his, other] = [1000, 0].map(|uid| Some(Owner::test(uid)));
        let of = |file, functions, owner| Order { owner, ..order(file, functions, 0) };
        let mut queue = Queue { waiting: vec![of(1, 1, his), of(2, 20_000, other)], ..Queue::default() };
        let (rate, now) = (0.1, Instant::now());
        assert_eq!(queue.choose(false, Some(rate), now), Some(0), "neither has used anything");
        queue.spend(his.unwrap(), rate, now, TURN_S * 0.9);
        assert_eq!(queue.choose(false, Some(rate), now), Some(0));
        queue.spend(his.unwrap(), rate, now, TURN_S * 0.2);
        assert_eq!(queue.choose(false, Some(rate), now), Some(1));
        assert_eq!(queue.choose(false, None, now), Some(0), "in a run that ends all are the same");
        queue.spend(other.unwrap(), rate, now, TURN_S * 1.1);
        assert_eq!(queue.choose(false, Some(rate), now), Some(0));
    }

    #[test]
    fn who_has_many_users_does_not_come_before_whoever_has_been_served() {
        let (root, rate, now) = (Owner::test(0), 0.1, Instant::now());
        let of = |file, functions, owner| Order { owner: Some(owner), ..order(file, functions, 0) };
        let mut queue = Queue::default();
        let next = |queue: &mut Queue| {
            let index = queue.choose(false, Some(rate), now).unwrap();
            queue.waiting.swap_remove(index).file.0
        };
        queue.spend(root, rate, now, TURN_S * 4.5);
        queue.admit(of(1, 9, root), Some(rate));
        assert_eq!(next(&mut queue), 1);
        // Nothing waits when they come.
        (1000..1100).for_each(|uid| queue.admit(of(uid, 20_000, Owner::test(uid)), Some(rate)));
        queue.admit(of(2, 1, root), Some(rate));
        assert_eq!(next(&mut queue), 2, "none of them has used less, and it is the least work");
        queue.spend(root, rate, now, TURN_S);
        queue.admit(of(3, 1, root), Some(rate));
        assert_eq!(next(&mut queue), 1000, "now they have");
        queue.spend(Owner::test(1001), rate, now, TURN_S * 2.0);
        let served: Vec<u32> = (0..99).map(|_| next(&mut queue)).collect();
        assert_eq!((served[98], next(&mut queue)), (3, 1001), "what they use counts from there");
        let spent_s = queue.owners.spent_s(Owner::test(1000).payer(), rate, now);
        assert!(spent_s.abs() < 1e-9, "nobody pays for that");
    }

    #[test]
    fn who_has_more_users_than_are_known_comes_no_sooner_by_that() {
        let (root, rate, now) = (Owner::test(0), 0.1, Instant::now());
        let of = |file, functions, owner| Order { owner: Some(owner), since: now, ..order(file, functions, 0) };
        let mut queue = Queue { served: Some((TURN_S * 4.5, now)), ..Queue::default() };
        queue.spend(root, rate, now, TURN_S * 4.5);
        (1000..2100).for_each(|uid| queue.admit(of(uid, 20_000, Owner::test(uid)), Some(rate)));
        queue.admit(of(1, 1, root), Some(rate));
        assert_eq!(queue.choose(false, Some(rate), now), Some(1100), "none of them has used less, and it is less work");
        queue.spend(root, rate, now, TURN_S);
        (1000..2100).for_each(|uid| queue.spend(Owner::test(uid), rate, now, TURN_S));
        assert_eq!(queue.choose(false, Some(rate), now), Some(1100), "nor has any of them now");
    }

    #[test]
    fn who_comes_while_another_s_large_file_waits_does_not_come_behind_all_that_he_has() {
        let ([large, small, new], rate, now) = ([1000, 1001, 1002].map(Owner::test), 0.1, Instant::now());
        let of = |file, functions, owner| Order { owner: Some(owner), since: now, ..order(file, functions, 0) };
        let mut queue = Queue::default();
        queue.spend(small, rate, now, TURN_S * 4.5);
        queue.admit(of(1, LARGE_FUNCTIONS, large), Some(rate));
        queue.admit(of(2, 1, small), Some(rate));
        assert_eq!(queue.choose(true, Some(rate), now), Some(1), "the large one is none of this builder's work");
        queue.admit(of(3, 1, new), Some(rate));
        assert!(queue.turns.spent_s(new.payer(), rate, now).abs() < 1e-9);
        // Who keeps one waiting that cannot be begun with lets nobody come sooner.
        queue.builders.insert(1, Builder { bytes: MAX_BYTES_AT_ONCE, ..Builder::new(false) });
        queue.waiting.retain(|order| order.file != FileId(3));
        queue.waiting.iter_mut().filter(|order| order.file == FileId(1)).for_each(|order| order.bytes = 1);
        assert_eq!(queue.choose(true, Some(rate), now), Some(1));
        assert!((queue.least_used(rate, now) - TURN_S * 4.5).abs() < 1e-9);
    }

    #[test]
    fn who_comes_when_all_have_earned_what_they_used_begins_anew() {
        let (root, rate, now) = (Owner::test(0), 0.1, Instant::now());
        let mut queue = Queue { served: Some((2.0, now)), ..Queue::default() };
        assert!((queue.least_used(rate, now + Duration::from_secs(5)) - 1.5).abs() < 1e-9);
        let later = now + Duration::from_secs(30);
        queue.admit(Order { owner: Some(root), since: later, ..order(1, 9, 0) }, Some(rate));
        assert!(queue.turns.spent_s(root.payer(), rate, later).abs() < 1e-9);
    }

    #[test]
    fn one_builder_is_kept_free_of_large_files() {
        let waiting = vec![order(1, LARGE_FUNCTIONS, 90_000), order(2, 5, 0)];
        let mut queue = Queue { waiting, ..Queue::default() };
        assert_eq!(
            queue.choose(true, None, Instant::now()).map(|index| queue.waiting.swap_remove(index).file.0),
            Some(2)
        );
        assert_eq!(queue.choose(true, None, Instant::now()), None);
        assert_eq!(queue.choose(false, None, Instant::now()), Some(0));
    }

    #[test]
    fn files_that_hold_their_builders_cost_the_others_nothing() {
        let files = Arc::new(OpenFiles::default());
        let long = 8..8 + MAX_BUILDERS as u32;
        for number in long.clone() {
            files.insert(FileId(number), OpenFile::new(File::open("/proc/self/exe").unwrap(), "own", None));
        }
        // Nobody builds the rows of this test's own binary in this time, so it is taken for a file that never ends.
        let limit = Duration::from_millis(20);
        let builders =
            Builders::spawn_within([limit, limit], Arc::clone(&files), Arc::default(), Waker::new().unwrap()).unwrap();
        long.clone().for_each(|number| builders.order(FileId(number), 9, 1));
        builders.order(VDSO, 0, LARGE_FUNCTIONS - 1);
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut answers = Vec::new();
        while answers.len() <= MAX_BUILDERS && Instant::now() < deadline {
            builders.check();
            answers.extend(builders.take_answers());
            std::thread::sleep(Duration::from_millis(1));
        }
        answers.sort_by_key(|answer| answer.file);
        let given_up = answers.iter().filter(|answer| answer.rows.is_err()).map(|answer| answer.file.0);
        assert_eq!(given_up.collect::<Vec<_>>(), long.collect::<Vec<_>>());
        assert_eq!(answers.len(), MAX_BUILDERS + 1);
        // Their threads end by themselves, and their answers are not taken for somebody else's.
        while !builders.shared.lock().stuck.is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(builders.take_answers().is_empty());
    }

    #[test]
    fn whose_file_holds_a_builder_gets_no_second_one() {
        let (dead, other) = (Some(Owner::test(1000)), Some(Owner::test(0)));
        let of = |file, owner| Order { owner, bytes: 1 << 40, ..order(file, 5, 90) };
        let mut queue = Queue { waiting: vec![of(1, dead), of(2, dead)], ..Queue::default() };
        assert!(queue.choose(false, None, Instant::now()).is_some());
        let since = Instant::now().checked_sub(SLOW_LIMIT).unwrap();
        let at = Builder { at: Some((FileId(9), since)), bytes: 1 << 40, owner: dead, ..Builder::new(false) };
        queue.builders.insert(1, Builder { replaced: true, ..at });
        assert_eq!(queue.choose(false, None, Instant::now()), None);
        // Whatever it says of its length.
        queue.waiting.push(Order { bytes: 1 << 20, ..of(3, other) });
        assert_eq!(queue.choose(false, None, Instant::now()), Some(2));
        queue.builders.clear();
        queue.stuck.extend((0..MAX_STUCK_OF_OWNER as u64).map(|number| (number, dead)));
        assert!(queue.refuse_stuck());
        assert_eq!(queue.waiting.iter().map(|order| order.file.0).collect::<Vec<_>>(), [3]);
        assert_eq!(queue.answers.iter().map(|answer| answer.file.0).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn who_mounts_many_file_systems_that_do_not_answer_leaves_builders_to_the_others() {
        let dead = |device| Some(Owner::test_on(device, 1000));
        let of = |file, owner| Order { owner, ..order(file, 5, 90) };
        let other = Some(Owner::test(1001));
        let since = Instant::now().checked_sub(SLOW_LIMIT).unwrap();
        let mut queue = Queue { waiting: vec![of(1, dead(90)), of(2, other)], ..Queue::default() };
        for device in 0..MAX_SLOW_OF_USER as u64 {
            assert!(queue.choose(false, None, Instant::now()) == Some(0), "{device} of his are slow");
            let at = Builder { at: Some((FileId(9), since)), owner: dead(device), ..Builder::new(false) };
            queue.builders.insert(device, at);
        }
        assert_eq!(queue.choose(false, None, Instant::now()), Some(1));
        queue.stuck.extend((0..MAX_STUCK_OF_USER as u64).map(|device| (100 + device, dead(device))));
        assert!(queue.refuse_stuck());
        assert_eq!(queue.waiting.iter().map(|order| order.file.0).collect::<Vec<_>>(), [2]);
        const { assert!(MAX_STUCK_OF_USER < MAX_STUCK && MAX_SLOW_OF_USER < MAX_SLOW) };
    }

    #[test]
    fn however_many_users_files_hold_builders_a_new_one_s_are_built_and_so_are_root_s() {
        let mut queue = Queue::default();
        let mut take = |uid: u32| {
            let before = queue.stuck.len();
            loop {
                let owner = Some(Owner::test_on(queue.stuck.len() as u64, uid));
                queue.waiting = vec![Order { owner, ..order(uid, 5, 90) }];
                let is_chosen = queue.choose(false, None, Instant::now()).is_some();
                if queue.refuse_stuck() || !is_chosen {
                    return queue.stuck.len() - before;
                }
                queue.stuck.insert(queue.stuck.len() as u64, owner);
            }
        };
        let taken: Vec<usize> = (1000..1009).map(&mut take).collect();
        assert_eq!(taken, [4, 2, 1, 1, 1, 1, 1, 1, 0]);
        assert!(take(0) > 0);
        // Whose files hold none waits for one that comes back, and who holds one is told.
        let [new, greedy] = [5000, 1003].map(|uid| Order { owner: Some(Owner::test(uid)), ..order(uid, 5, 90) });
        queue.waiting = vec![new, greedy];
        assert!(queue.refuse_stuck() && queue.choose(false, None, Instant::now()).is_none());
        assert_eq!(queue.waiting.iter().map(|order| order.file.0).collect::<Vec<_>>(), [5000]);
        queue.stuck.retain(|_, owner| !owner.is_some_and(|owner| owner.may_be_of_one_user(Owner::test(1000))));
        assert!(!queue.refuse_stuck() && queue.choose(false, None, Instant::now()).is_some());
        // One that is slow may be held soon.
        let owner = Some(Owner::test(1000));
        let since = Instant::now().checked_sub(SLOW_LIMIT).unwrap();
        let mut queue = Queue { waiting: vec![Order { owner, ..order(1, 5, 90) }], ..Queue::default() };
        let of = |uid: u64| Some(Owner::test(2000 + uid as u32));
        queue.stuck.extend((0..11).map(|number| (number, of(number))));
        assert!(queue.choose(false, None, Instant::now()).is_some());
        queue.builders.insert(20, Builder { at: Some((FileId(9), since)), owner: of(20), ..Builder::new(false) });
        assert!(queue.choose(false, None, Instant::now()).is_none());
    }

    #[test]
    fn places_that_were_not_filled_are_when_a_builder_comes_back() {
        let (queue, changed, background) = Default::default();
        let (wake, ledger) = (Waker::new().unwrap(), Arc::default());
        let (slow_limit, stall_limit) = (SLOW_LIMIT, STALL_LIMIT);
        let shared = Arc::new(Shared { queue, changed, wake, ledger, background, slow_limit, stall_limit });
        let builders = Builders { shared: Arc::clone(&shared), files: Arc::default() };
        shared.lock().stuck.extend((0..MAX_STUCK as u64).map(|number| (1000 + number, None)));
        shared.lock().vacant = vec![true, false];
        builders.check();
        assert!(shared.lock().builders.is_empty(), "too many are held");
        let late = RowsAnswer { file: FileId(1), took: Duration::ZERO, rows: Err(String::new()) };
        assert!(!shared.answer(1000, late), "it was given up");
        builders.check();
        let queue = shared.lock();
        let mut roles: Vec<bool> = queue.builders.values().map(|builder| builder.only_small).collect();
        roles.sort_unstable();
        assert_eq!((roles, queue.vacant.len()), (vec![false, true], 0));
    }

    #[test]
    fn rows_come_from_the_threads() {
        let files = Arc::new(OpenFiles::default());
        let own = OpenFile::new(File::open("/proc/self/exe").unwrap(), "own", None);
        files.insert(FileId(8), own);
        let builders = Builders::spawn(files, Arc::default(), Waker::new().unwrap()).unwrap();
        builders.order(VDSO, 0, 0);
        builders.order(FileId(8), 0, 100_000);
        builders.order(FileId(9), 0, 0);
        builders.hurry(FileId(8));
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut answers = Vec::new();
        while answers.len() < 3 && Instant::now() < deadline {
            answers.extend(builders.take_answers());
            std::thread::sleep(Duration::from_millis(1));
        }
        answers.sort_by_key(|answer| answer.file);
        let rows: Vec<_> = answers.iter().map(|answer| (answer.file, answer.rows.is_ok())).collect();
        assert_eq!(rows, [(VDSO, true), (FileId(8), true), (FileId(9), false)]);
        let pages = &answers[1].rows.as_ref().unwrap().pages;
        assert!(!pages.is_empty() && pages.iter().all(|page| page.rows.len() == page.count as usize));
    }
}
