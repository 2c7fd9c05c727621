//! Does what the engine asks for, on threads that can be given up.
//!
//! A target can make whoever reads its files or its memory wait: a file system of its own, a page that never comes. So
//! nothing of it is read on the thread of the samples; a read that takes too long is answered as stalled, its thread is
//! left to itself and another one takes its place; and as long as it is stuck, nothing else is read of the same process
//! on the same file system. Who holds one thread does not get another one at the same time, and when all are held there
//! is one more for whoever holds none.
//!
//! What is over its budget waits, but for those who have had less than their part of it; of processes that are new all wait,
//! and those of them are refused that have waited too long. Who has started them is asked for again.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use jitprof_common::units::{MonoNs, Pid};

use crate::cost::{Activity, Ledger, thread_cpu_time};
use crate::engine::border::{Answer, AnswerBody, Request, RequestId};
use crate::kernel::{Prober, Waker};
use crate::owners::Held;
use crate::process::open::FileId;
use crate::process::{Ids, ProcessId, monotonic_now, user_of};
use crate::record::party::{MAX_STUCK_OF_USER, NOBODY, Party, QUICK, Users};
use crate::record::reader::Reader;
use crate::record::usage::{Charge, Payer, Subject, Usage};
use crate::symbol::OpenFiles;

/// Threads that read. Reads are short, and mostly of /proc.
const THREADS: usize = 2;
/// Threads at most, with those that are started because all others are held; nobody has more than [`THREADS`] of them.
const MAX_THREADS: usize = 8;
/// Longest time of a read before it is given up; a search of a process' memory takes 270 ms.
const STALL_LIMIT: Duration = Duration::from_secs(3);
/// Threads that are stuck at most; with more, nothing is read any more until one comes back. So many more may become stuck as
/// read at the time: root's part, which users leave, is larger.
const MAX_STUCK: usize = 64;
/// A reader parses what it reads; it recurses nowhere.
const STACK_BYTES: usize = 512 << 10;
/// Answers after which the asker is woken although there is more to do.
const MANY_ANSWERS: usize = 32;
/// Files at most that have been opened and not been taken up: whoever maps thousands at once gets no more of the
/// descriptors that all others' files need, too.
const MAX_UNTAKEN: usize = 64;

/// How long the ids of a process that were read when it was asked for are not read again.
const KNOWN_FOR: Duration = Duration::from_millis(10);

/// How long threads wait for what they may cost.
const OVER_BUDGET_PAUSE: Duration = Duration::from_millis(100);
/// How long a new process waits to be read while starts of processes are over their budget. A window waits as long for
/// the names of its last samples.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a request is for.
fn activity(request: &Request) -> Activity {
    match request {
        Request::Read { .. }
        | Request::Peek(_)
        | Request::Memory { .. }
        | Request::Digests { .. }
        | Request::ReadRuntime { .. }
        | Request::DescribeFrames { .. }
        | Request::OpenPerfMap { .. } => Activity::Announcements,
        _ => Activity::Processes,
    }
}

/// How soon the answer to a request is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Haste {
    /// With what else comes.
    None,
    /// At once, but in a continuous recording: samples wait for it, which there they can.
    InRuns,
    /// At once, or with what is soon read besides: it is asked for more with what has come.
    Always,
}

impl Haste {
    fn of(request: &Request) -> Self {
        match request {
            Request::Read { .. } | Request::Peek(_) => Self::Always,
            Request::Memory { .. } | Request::ReadRuntime { .. } | Request::DescribeFrames { .. } => Self::InRuns,
            _ => Self::None,
        }
    }
}

/// The file that such a request may open.
fn opens(request: &Request) -> Option<FileId> {
    match request {
        Request::Identify { file, .. } | Request::Open { file, .. } | Request::OpenPerfMap { file, .. } => Some(*file),
        _ => None,
    }
}

/// Whether such an answer holds a file open.
fn holds_file(body: &AnswerBody) -> bool {
    match body {
        AnswerBody::Identified(Ok(found)) => found.opened.is_some(),
        AnswerBody::Opened(opened) => opened.is_ok(),
        _ => false,
    }
}

#[derive(Debug)]
struct Running {
    request: RequestId,
    charge: Charge,
    party: Option<Party>,
    since: Instant,
    begun: MonoNs,
}

/// Something that waits for a thread.
#[derive(Debug)]
struct Waiting {
    request: RequestId,
    what: Request,
    party: Option<Party>,
    since: Instant,
    known: Known,
}

/// The ids of a process, and whose it is, if they have been read when it was asked for.
type Known = Option<Box<Ids>>;

impl Waiting {
    /// As long as it is what the process would be found to be now.
    fn known(&mut self) -> Known {
        self.known.take().filter(|_| self.since.elapsed() < KNOWN_FOR)
    }

    fn payer(&self) -> Payer {
        Payer { user: self.party.map(|party| party.user), subject: Subject::of(&self.what) }
    }

    fn charge(&self, granted: bool) -> Charge {
        Charge { payer: self.payer(), activity: activity(&self.what), granted }
    }
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Waiting>,
    /// What processes have cost, and what they announce.
    processes: Usage,
    announcements: Usage,
    /// What each thread that has not been given up is at.
    running: HashMap<u64, Running>,
    /// Whom threads are stuck at that have been given up.
    stuck: HashMap<u64, (Subject, Option<Party>)>,
    answers: Vec<(Charge, Answer)>,
    /// Files that they hold open.
    untaken: usize,
    /// Somebody waits for one of them.
    prompt: bool,
    /// The asker takes those together that come one soon after the other.
    gathers: bool,
    /// Nobody has been woken for the last answer, as another read would soon be done.
    holds_back: bool,
    last_thread: u64,
    closing: bool,
}

impl State {
    /// Whether a thread is stuck at the same, or too many are with the same party, or it would leave none to others.
    fn is_stuck(&self, subject: Subject, party: Option<Party>) -> bool {
        let Some(party) = party.filter(|_| subject != Subject::Host) else { return false };
        let of_user = self.stuck.values().filter(|stuck| stuck.1.is_some_and(|held| held.may_be_of_one_user(party)));
        let kind = self.stuck.values().filter(|stuck| stuck.1.is_some_and(|held| held.is_of_kind(party))).count();
        let with_party = of_user.clone().filter(|stuck| stuck.1 == Some(party));
        let is_same = with_party.clone().any(|stuck| stuck.0 == subject);
        let held = Held { own: of_user.count(), kind, all: self.stuck.len() };
        let is_greedy = with_party.count() >= party.most() || held.own >= MAX_STUCK_OF_USER;
        is_same || is_greedy || !held.leaves_room(MAX_STUCK, 1)
    }

    /// Whether a party's turn is not now, for it holds a thread or has held one.
    fn is_held_up(&self, party: Option<Party>) -> bool {
        let Some(party) = party else { return false };
        let is_slow = |running: &Running| running.since.elapsed() >= party.quick();
        let of_user = |held: Option<Party>| held.is_some_and(|held| held.may_be_of_one_user(party));
        let users = self.running.values().filter(|running| running.is_busy() && of_user(running.party));
        let its = users.clone().filter(|running| running.party == Some(party));
        let has_held = self.has_held(party);
        let holds = its.clone().any(|running| has_held || is_slow(running)) || its.count() >= THREADS;
        holds || users.filter(|running| is_slow(running)).count() >= THREADS
    }

    /// Whether a party holds a thread that was given up.
    fn has_held(&self, party: Party) -> bool {
        self.stuck.values().any(|stuck| stuck.1 == Some(party))
    }

    /// Puts a thread that is given up down to whose process it is stuck at, and what waits of the same process as well.
    fn give_up(&mut self, thread: u64, subject: Subject, party: Option<Party>, look: impl FnOnce(Pid) -> Option<u32>) {
        let held_by = self.held_by(subject, party, look);
        self.stuck.insert(thread, (subject, held_by));
        let (Some(party), Some(held_by)) = (party, held_by) else { return };
        let of_process = self.queue.iter_mut().filter(|waiting| waiting.payer().subject == subject);
        let of_party = of_process.filter_map(|waiting| waiting.party.as_mut()).filter(|own| own.user == party.user);
        of_party.for_each(|own| own.user = held_by.user);
    }

    /// Who holds a thread, in place of root who has started him within the second for which it is remembered whose processes
    /// are. Whoever was a user stays who he was: he may be root by now who runs `su`. Nobody is who has gone, but not for any
    /// number of threads.
    fn held_by(&self, subject: Subject, party: Option<Party>, look: impl FnOnce(Pid) -> Option<u32>) -> Option<Party> {
        let (Subject::Process(pid), Some(party @ Party { user: 0, .. })) = (subject, party) else { return party };
        let now = Party { user: look(pid).unwrap_or(NOBODY), ..party };
        let of_nobody = self.stuck.values().filter(|stuck| stuck.1.is_some_and(|held| held.user == NOBODY));
        Some(if now.user == NOBODY && of_nobody.count() >= MAX_STUCK_OF_USER { party } else { now })
    }

    /// Whether the asker is to be woken: nothing is left to be read, or soon read, or there is much.
    fn is_enough(&self) -> bool {
        (self.queue.is_empty() && !self.is_more_soon()) || self.answers.len().is_multiple_of(MANY_ANSWERS)
    }

    /// Whether a read that has begun will soon be done, and the asker waits for such.
    fn is_more_soon(&self) -> bool {
        let is_soon_done = |running: &Running| running.is_busy() && running.since.elapsed() < QUICK;
        self.gathers && self.running.values().any(is_soon_done)
    }

    /// Whether one more thread is needed: something waits, and nobody will soon be done.
    fn is_short(&self) -> bool {
        let is_held = |running: &Running| running.is_busy() && running.since.elapsed() >= QUICK;
        !self.queue.is_empty() && self.running.len() < MAX_THREADS && self.running.values().all(is_held)
    }
}

impl Running {
    fn is_busy(&self) -> bool {
        self.request != IDLE
    }
}

/// What is read next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chosen {
    index: usize,
    /// Although all is spent.
    granted: bool,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    files: Arc<OpenFiles>,
    reader: Reader,
    ledger: Arc<Ledger>,
    /// Wakes the asker at once, or when it suits him.
    wake: [Waker; 2],
}

/// The threads. Dropping this ends them, but for those that are stuck.
pub(super) struct Workers {
    shared: Arc<Shared>,
    users: Mutex<Users>,
}

impl Workers {
    /// Starts them. The first waker is for answers that somebody waits for, the other one for the others; `prober` sets
    /// breakpoints where processes register code.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(super) fn spawn(
        files: Arc<OpenFiles>,
        ledger: Arc<Ledger>,
        wake: [Waker; 2],
        prober: Option<Arc<Prober>>,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            work: Condvar::new(),
            reader: Reader::new(Arc::clone(&files)).probing(prober),
            files,
            ledger,
            wake,
        });
        for _ in 0..THREADS {
            start(&shared, &mut shared.lock())?;
        }
        Ok(Self { shared, users: Mutex::default() })
    }

    /// Has something read.
    pub(super) fn ask(&self, request: RequestId, what: Request) {
        let mut known = None;
        let look = |pid| {
            let found = Ids::of(pid)?;
            Some(known.insert(Box::new(found)).user)
        };
        let user = |pid| self.users().of(pid, Instant::now(), look);
        let party = Party::of(&what, &self.shared.files, user);
        let known = known.filter(|_| matches!(what, Request::Process { .. }));
        let waiting = Waiting { request, what, party, since: Instant::now(), known };
        let mut state = self.shared.lock();
        if state.is_stuck(waiting.payer().subject, party) || state.running.is_empty() {
            let now = monotonic_now();
            let charge = waiting.charge(false);
            state.answers.push((charge, Answer { request, begun: now, done: now, body: AnswerBody::Stalled }));
            drop(state);
            self.shared.wake[1].wake();
            return;
        }
        state.queue.push_back(waiting);
        if state.is_short() {
            start_or_warn(&self.shared, &mut state);
        }
        drop(state);
        self.shared.work.notify_one();
    }

    fn users(&self) -> MutexGuard<'_, Users> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing is being read, and no answer waits to be taken.
    pub(super) fn is_idle(&self) -> bool {
        let state = self.shared.lock();
        let runs = state.running.values().any(Running::is_busy);
        !runs && state.queue.is_empty() && state.answers.is_empty()
    }

    /// From here on the asker is woken once for answers that come one soon after the other: each turn of a continuous recording
    /// looks at what all of them ask for.
    pub(super) fn gather(&self) {
        self.shared.lock().gathers = true;
    }

    /// What was read of a process' runtime is not needed any more.
    pub(super) fn drop_runtime(&self, process: ProcessId) {
        self.shared.reader.drop_runtime(process);
    }

    /// Takes away the breakpoints that were set in processes.
    pub(super) fn remove_breakpoints(&self) {
        self.shared.reader.remove_breakpoints();
    }

    /// Taking up an answer has cost so much as well.
    pub(super) fn charge(&self, charge: Charge, spent: Duration) {
        self.shared.charge(&mut self.shared.lock(), charge, spent);
    }

    /// What has been read since the last call, and what that is put down to.
    pub(super) fn take_answers(&self) -> Vec<(Charge, Answer)> {
        let mut state = self.shared.lock();
        (state.prompt, state.holds_back) = (false, false);
        if std::mem::take(&mut state.untaken) >= MAX_UNTAKEN {
            self.shared.work.notify_all();
        }
        std::mem::take(&mut state.answers)
    }

    /// Gives up reads that take too long. To be called every second or so.
    pub(super) fn check(&self) {
        let mut state = self.shared.lock();
        self.shared.refuse(&mut state);
        // What a storm has made it grow to.
        let usual = (4 * state.queue.len()).max(1024);
        state.queue.shrink_to(usual);
        let late: Vec<u64> = state
            .running
            .iter()
            .filter(|(_, running)| running.is_busy() && running.since.elapsed() >= STALL_LIMIT)
            .map(|(thread, _)| *thread)
            .collect();
        for thread in late {
            let Some(Running { request, charge, party, begun, .. }) = state.running.remove(&thread) else { continue };
            state.give_up(thread, charge.payer.subject, party, user_of);
            let done = monotonic_now();
            let stalled = |charge, request| (charge, Answer { request, begun, done, body: AnswerBody::Stalled });
            state.answers.push(stalled(charge, request));
            let queued = std::mem::take(&mut state.queue);
            let (given_up, rest): (VecDeque<_>, _) =
                queued.into_iter().partition(|waiting| state.is_stuck(waiting.payer().subject, waiting.party));
            state.queue = rest;
            let given_up = given_up.into_iter().map(|waiting| stalled(waiting.charge(false), waiting.request));
            state.answers.extend(given_up);
            self.shared.wake[1].wake();
        }
        // Also for threads that were not replaced when too many were held.
        while state.stuck.len() < MAX_STUCK && (state.running.len() < THREADS || state.is_short()) {
            if !start_or_warn(&self.shared, &mut state) {
                break;
            }
        }
    }
}

impl Drop for Workers {
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

    /// Waits for the next request. `None` to end.
    fn next(&self, thread: u64) -> Option<(RequestId, Charge, Request, Known)> {
        let mut state = self.lock();
        loop {
            if state.closing || !state.running.contains_key(&thread) {
                return None;
            }
            let chosen = self.choose(&mut state, Instant::now());
            if chosen.is_none() && state.holds_back {
                state = self.wait_for_more(state);
                continue;
            }
            if chosen.is_none() && state.running.len() > THREADS {
                // It was started because all others were held; nobody needs it any more.
                state.running.remove(&thread);
                return None;
            }
            if chosen.is_none() && !state.queue.is_empty() {
                let waited = self.work.wait_timeout(state, OVER_BUDGET_PAUSE);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            let granted = chosen.is_some_and(|chosen| chosen.granted);
            if let Some(mut waiting) = chosen.and_then(|chosen| state.queue.remove(chosen.index)) {
                let (charge, known) = (waiting.charge(granted), waiting.known());
                let Waiting { request, what, party, .. } = waiting;
                let running = Running { request, charge, party, since: Instant::now(), begun: monotonic_now() };
                state.running.insert(thread, running);
                return Some((request, charge, what, known));
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits while another read will soon be done. If it is held, the answers before it are not.
    fn wait_for_more<'state>(&self, state: MutexGuard<'state, State>) -> MutexGuard<'state, State> {
        let waited = self.work.wait_timeout(state, QUICK);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        if state.holds_back && !state.is_more_soon() {
            state.holds_back = false;
            self.wake_asker(&state);
        }
        state
    }

    /// Wakes him at once, if somebody waits for one of the answers.
    fn wake_asker(&self, state: &State) {
        self.wake[usize::from(!state.prompt)].wake();
    }

    /// The first request that need not wait for what it costs; those of whom a thread is stuck at come last.
    fn choose(&self, state: &mut State, now: Instant) -> Option<Chosen> {
        let left = |activity| self.ledger.may_spend_at(activity, now);
        let (processes, announcements) = (left(Activity::Processes), left(Activity::Announcements));
        if !processes {
            state.processes.count(now);
        }
        if !announcements {
            state.announcements.count(now);
        }
        let state = &*state;
        let has_room = |what: &Request| state.untaken < MAX_UNTAKEN || opens(what).is_none();
        let is_free = |waiting: &Waiting| has_room(&waiting.what) && !state.is_held_up(waiting.party);
        let comes_last = |waiting: &Waiting| waiting.party.is_some_and(|party| state.has_held(party));
        let may = |waiting: &Waiting| {
            let activity = activity(&waiting.what);
            let is_left = if activity == Activity::Announcements { announcements } else { processes };
            (is_left || self.is_within_part(state, waiting, now)).then_some(!is_left)
        };
        let first = |is_last: bool| {
            state.queue.iter().enumerate().find_map(|(index, waiting)| {
                let is_meant = comes_last(waiting) == is_last && is_free(waiting);
                let granted = is_meant.then(|| may(waiting)).flatten()?;
                Some(Chosen { index, granted })
            })
        };
        first(false).or_else(|| if state.stuck.is_empty() { None } else { first(true) })
    }

    /// Whether somebody has had less than his part of what may be spent. A process that is new has had nothing, and its user may
    /// have started many.
    fn is_within_part(&self, state: &State, waiting: &Waiting, now: Instant) -> bool {
        let (payer, activity) = (waiting.payer(), activity(&waiting.what));
        let usage = if activity == Activity::Announcements { &state.announcements } else { &state.processes };
        let rate = self.ledger.rate(activity);
        payer.subject == Subject::Host || rate.is_none_or(|rate| usage.is_within_part(payer, rate, now))
    }

    /// Puts something down to whose it is.
    fn charge(&self, state: &mut State, charge: Charge, spent: Duration) {
        let Some(rate) = self.ledger.rate(charge.activity).filter(|_| charge.payer.subject != Subject::Host) else {
            return;
        };
        let usage = match charge.activity {
            Activity::Announcements => &mut state.announcements,
            _ => &mut state.processes,
        };
        usage.add(charge, spent, rate, Instant::now());
    }

    /// Does not read new processes that have waited too long for what that may cost, of users who have had their part.
    fn refuse(&self, state: &mut State) {
        if self.ledger.may_spend(Activity::Processes) {
            return;
        }
        let (now, begun) = (monotonic_now(), Instant::now());
        let queued = std::mem::take(&mut state.queue);
        let is_late = |waiting: &Waiting| {
            matches!(waiting.what, Request::Process { .. })
                && waiting.since.elapsed() >= PATIENCE
                && !self.is_within_part(state, waiting, begun)
        };
        let (late, rest): (VecDeque<_>, VecDeque<_>) = queued.into_iter().partition(is_late);
        state.queue = rest;
        if late.is_empty() {
            return;
        }
        for waiting in late {
            self.ledger.refuse();
            let answer = Answer { request: waiting.request, begun: now, done: now, body: AnswerBody::Stalled };
            state.answers.push((waiting.charge(false), answer));
        }
        self.wake[1].wake();
    }

    /// Takes an answer, and what it has cost. Returns whether the thread has not been given up.
    fn answer(&self, thread: u64, (charge, answer): (Charge, Answer), spent: Duration, haste: Haste) -> bool {
        let mut state = self.lock();
        self.charge(&mut state, charge, spent);
        if state.stuck.remove(&thread).is_some() {
            return false;
        }
        state.running.insert(thread, idle());
        state.untaken += usize::from(holds_file(&answer.body));
        state.answers.push((charge, answer));
        state.prompt |= haste > if state.gathers { Haste::InRuns } else { Haste::None };
        let is_enough = state.is_enough();
        state.holds_back = !is_enough && state.queue.is_empty();
        if is_enough {
            self.wake_asker(&state);
        }
        true
    }
}

/// Of a thread that is at nothing.
const IDLE: RequestId = RequestId(u64::MAX);

fn idle() -> Running {
    let payer = Payer { user: None, subject: Subject::Host };
    let charge = Charge { payer, activity: Activity::Upkeep, granted: false };
    Running { request: IDLE, charge, party: None, since: Instant::now(), begun: MonoNs(0) }
}

/// Returns whether it was started.
fn start_or_warn(shared: &Arc<Shared>, state: &mut State) -> bool {
    let started = start(shared, state);
    if let Err(error) = &started {
        tracing::warn!(%error, "cannot start a thread in place of one that a target holds up");
    }
    started.is_ok()
}

fn start(shared: &Arc<Shared>, state: &mut State) -> io::Result<()> {
    state.last_thread += 1;
    let (number, shared) = (state.last_thread, Arc::clone(shared));
    state.running.insert(number, idle());
    let builder = thread::Builder::new().name(format!("reads-{number}")).stack_size(STACK_BYTES);
    let started = builder.spawn(move || {
        while let Some((request, charge, what, known)) = shared.next(number) {
            let begun = monotonic_now();
            let (haste, opened) = (Haste::of(&what), opens(&what));
            let cpu = thread_cpu_time();
            let body = shared.reader.read_knowing(what, known);
            let spent = thread_cpu_time().saturating_sub(cpu);
            shared.ledger.add(charge.activity, spent);
            let answer = Answer { request, begun, done: monotonic_now(), body };
            if !shared.answer(number, (charge, answer), spent, haste) {
                // It was answered as stalled: what it has opened nobody will close.
                opened.into_iter().for_each(|file| shared.reader.close(file));
                return;
            }
        }
    });
    if started.is_err() {
        state.running.remove(&number);
    }
    started.map(drop)
}

#[cfg(test)]
mod tests {
    use jitprof_jitdump::NextRead;

    use super::*;
    use crate::process::procfs::Status;
    use crate::process::{Device, status_and_user};
    use crate::record::party::MAX_STUCK_OF_DEVICE;

    fn shared(ledger: Ledger) -> Shared {
        let wake = Waker::new().unwrap();
        let reader = Reader::new(Arc::default());
        Shared {
            state: Mutex::default(),
            work: Condvar::new(),
            files: Arc::default(),
            reader,
            ledger: Arc::new(ledger),
            wake: [wake.clone(), wake],
        }
    }

    fn waiting(request: u64, what: Request, since: Instant) -> Waiting {
        Waiting { request: RequestId(request), what, party: None, since, known: None }
    }

    fn read(file: u32) -> Request {
        Request::Read { file: FileId(file), next: NextRead { offset: 0, len: 1 } }
    }

    fn process(pid: u32) -> Request {
        Request::Process { pid: Pid(pid), maps: true, cgroup: false, command_line: false }
    }

    fn index_of(shared: &Shared, state: &mut State) -> Option<usize> {
        shared.choose(state, Instant::now()).map(|chosen| chosen.index)
    }

    /// What a look at a process is put down to.
    fn at(pid: u32, party: Option<Party>) -> Charge {
        Waiting { party, ..waiting(0, process(pid), Instant::now()) }.charge(false)
    }

    /// Nothing is left for an activity, and all for the others.
    fn used_up(activity: Activity) -> Ledger {
        let ledger = Ledger::default();
        ledger.set_limit(Some(0.01));
        ledger.add(activity, Duration::from_secs(1000));
        ledger
    }

    #[test]
    fn over_the_budget_of_announcements_who_causes_it_waits_and_the_others_go_on() {
        let shared = shared(used_up(Activity::Announcements));
        let now = Instant::now();
        let mut state = State::default();
        shared.charge(&mut state, waiting(0, read(1), now).charge(false), Duration::from_secs(9));
        state.queue.push_back(waiting(0, read(1), now));
        assert_eq!(shared.choose(&mut state, now), None, "it churns code, and has to wait");
        state.queue.push_back(waiting(1, read(2), now));
        state.queue.push_back(waiting(2, process(7), now));
        assert_eq!(shared.choose(&mut state, now), Some(Chosen { index: 1, granted: true }));
        state.queue.remove(1);
        let paid = |index| Some(Chosen { index, granted: false });
        assert_eq!(shared.choose(&mut state, now), paid(1), "starts of processes have a budget of their own");
        shared.ledger.set_limit(None);
        assert_eq!(shared.choose(&mut state, now), paid(0));
    }

    #[test]
    fn an_answer_that_samples_wait_for_is_taken_at_once_in_runs_alone() {
        let shared = shared(Ledger::default());
        let is_prompt = |gathers: bool, haste: Haste| {
            *shared.lock() = State { gathers, ..State::default() };
            let body = AnswerBody::Stalled;
            let answer = Answer { request: RequestId(0), begun: MonoNs(0), done: MonoNs(0), body };
            assert!(shared.answer(1, (at(7, None), answer), Duration::ZERO, haste));
            shared.lock().prompt
        };
        let all = [Haste::None, Haste::InRuns, Haste::Always];
        assert_eq!(all.map(|haste| is_prompt(false, haste)), [false, true, true]);
        assert_eq!(all.map(|haste| is_prompt(true, haste)), [false, false, true]);
        assert_eq!(Haste::of(&Request::Memory { via: Pid(7), pieces: Vec::new() }), Haste::InRuns);
        assert_eq!((Haste::of(&read(1)), Haste::of(&process(7))), (Haste::Always, Haste::None));
    }

    #[test]
    fn in_a_continuous_recording_who_asks_is_woken_with_the_last_of_answers_that_come_together() {
        let answer = |request| {
            let body = AnswerBody::Stalled;
            (at(7, None), Answer { request: RequestId(request), begun: MonoNs(0), done: MonoNs(0), body })
        };
        let other = |since| {
            let (request, charge, party) = (RequestId(1), at(8, None), None);
            Running { request, charge, party, since, begun: MonoNs(0) }
        };
        // However slowly this is run, the one has just begun.
        let (now, long_ago) = (Instant::now() + STALL_LIMIT, Instant::now().checked_sub(QUICK).unwrap());
        let mut state = State { answers: vec![answer(0)], ..State::default() };
        state.running.insert(1, idle());
        assert!(state.is_enough());
        state.running.insert(2, other(now));
        assert!(state.is_enough(), "in a run each is taken as it comes");
        state.gathers = true;
        assert!(!state.is_enough());
        state.running.insert(2, other(long_ago));
        assert!(state.is_enough(), "what takes long is not waited for");
        state.running.insert(2, other(now));
        state.answers.extend((1..MANY_ANSWERS as u64).map(answer));
        assert!(state.is_enough());
    }

    #[test]
    fn what_a_read_that_is_held_would_have_come_with_is_taken_soon() {
        let shared = Arc::new(shared(Ledger::default()));
        let is_woken = || rustix::io::read(&shared.wake[0], &mut [0_u8; 8]).is_ok();
        // However slowly this is run, the other one has just begun.
        let since = Instant::now() + Duration::from_secs(1);
        let (request, charge, party) = (RequestId(1), at(8, None), None);
        let held = Running { request, charge, party, since, begun: MonoNs(0) };
        *shared.lock() = State { gathers: true, running: HashMap::from([(2, held)]), ..State::default() };
        let answer = Answer { request: RequestId(0), begun: MonoNs(0), done: MonoNs(0), body: AnswerBody::Stalled };
        assert!(shared.answer(1, (at(7, None), answer), Duration::ZERO, Haste::Always));
        assert!(!is_woken(), "more will come soon");
        let idle = Arc::clone(&shared);
        let thread = thread::spawn(move || idle.next(1).is_none());
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut has_been = false;
        while !has_been && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(2));
            has_been = is_woken();
        }
        shared.lock().closing = true;
        shared.work.notify_all();
        assert!(thread.join().unwrap() && has_been);
    }

    #[test]
    fn nothing_is_opened_while_many_files_wait_to_be_taken_up_and_the_rest_goes_on() {
        let shared = shared(Ledger::default());
        let now = Instant::now();
        let mut state = State::default();
        let map = Request::OpenPerfMap { via: Pid(7), own_pid: 7, uid: 0, file: FileId(9), unless: None };
        state.queue.push_back(waiting(0, map, now));
        state.queue.push_back(waiting(1, process(8), now));
        assert_eq!(index_of(&shared, &mut state), Some(0));
        state.untaken = MAX_UNTAKEN;
        assert_eq!(index_of(&shared, &mut state), Some(1));
        state.queue.pop_back();
        assert_eq!(index_of(&shared, &mut state), None);
    }

    #[test]
    fn over_the_budget_of_processes_new_ones_of_who_starts_many_wait_and_are_refused_in_the_end() {
        let shared = shared(used_up(Activity::Processes));
        let now = Instant::now();
        let of = |request, pid, user, since| Waiting {
            party: Some(Party { device: None, user }),
            ..waiting(request, process(pid), since)
        };
        let long_ago = now.checked_sub(PATIENCE).unwrap();
        let mut state = State::default();
        // One user starts processes all the time, another one has started one.
        for pid in 100..200 {
            shared.charge(&mut state, of(0, pid, 1000, now).charge(true), Duration::from_millis(100));
        }
        state.queue.extend([of(0, 7, 1000, long_ago), of(1, 8, 1000, now), of(2, 9, 1001, long_ago)]);
        assert_eq!(shared.choose(&mut state, now), Some(Chosen { index: 2, granted: true }));
        shared.refuse(&mut state);
        let refused: Vec<_> = state.answers.iter().map(|(_, answer)| answer.request.0).collect();
        assert_eq!((refused, state.queue.len(), shared.ledger.refused()), (vec![0], 2, 1));
        state.queue.pop_back();
        state.queue.push_back(waiting(2, read(1), now));
        assert_eq!(index_of(&shared, &mut state), Some(1), "announcements have a budget of their own");
    }

    #[test]
    fn who_holds_a_thread_holds_no_second_one_and_nothing_of_anybody_else() {
        let shared = shared(Ledger::default());
        let party = |minor, user| Some(Party { device: Some(Device { major: 0, minor }), user });
        let (dead, alive) = (party(77, 1000), party(1, 1000));
        let subject = |pid| Subject::Process(Pid(pid));
        let mut state = State::default();
        let long_ago = Instant::now().checked_sub(STALL_LIMIT).unwrap();
        let running =
            Running { request: RequestId(0), charge: at(7, dead), party: dead, since: long_ago, begun: MonoNs(0) };
        state.running.insert(1, running);
        let of = |request, pid, party| Waiting { party, ..waiting(request, process(pid), Instant::now()) };
        state.queue.extend([of(1, 8, dead), of(2, 7, alive)]);
        assert_eq!(index_of(&shared, &mut state), Some(1), "another process' file on the same file system waits");
        // It is given up: the same is not tried again, others are, one after the other, and not for ever.
        state.running.clear();
        state.stuck.insert(1, (subject(7), dead));
        assert!(state.is_stuck(subject(7), dead) && !state.is_stuck(subject(7), alive));
        assert_eq!(index_of(&shared, &mut state), Some(1), "it comes last");
        state.queue.pop_back();
        assert!(!state.is_stuck(subject(8), dead) && index_of(&shared, &mut state) == Some(0));
        for thread in 2..=MAX_STUCK_OF_DEVICE as u64 {
            state.stuck.insert(thread, (subject(100 + thread as u32), dead));
        }
        assert!(state.is_stuck(subject(8), dead) && !state.is_stuck(subject(8), party(77, 1001)));
    }

    #[test]
    fn a_thread_that_a_process_holds_which_root_has_started_for_a_user_is_held_by_the_user() {
        let party = |user| Party { device: None, user };
        let [root, user, other] = [0, 1000, 1001].map(party);
        let subject = |pid| Subject::Process(Pid(pid));
        let mut state = State::default();
        state.queue.push_back(Waiting { party: Some(root), ..waiting(1, process(7), Instant::now()) });
        state.queue.push_back(Waiting { party: Some(root), ..waiting(2, process(8), Instant::now()) });
        state.give_up(1, subject(7), Some(root), |_| Some(1000));
        assert!(state.has_held(user) && !state.has_held(root));
        let waiting: Vec<_> = state.queue.iter().map(|waiting| waiting.party).collect();
        assert_eq!(waiting, [Some(user), Some(root)], "what waits of the same process is his");
        state.give_up(2, subject(9), Some(other), |_| Some(0));
        assert!(state.has_held(other) && !state.has_held(root), "it runs `su`");
        for thread in 0..MAX_STUCK_OF_USER as u64 {
            state.give_up(100 + thread, subject(10), Some(root), |_| None);
        }
        assert!(state.has_held(party(NOBODY)) && !state.has_held(root), "they have gone");
        state.give_up(3, subject(11), Some(root), |_| None);
        assert!(state.has_held(root), "there are too many of them");
    }

    #[test]
    fn who_mounts_many_file_systems_that_do_not_answer_leaves_threads_to_the_others() {
        let shared = shared(Ledger::default());
        let party = |minor, user| Some(Party { device: Some(Device { major: 0, minor }), user });
        let of = |request, pid, party| Waiting { party, ..waiting(request, process(pid), Instant::now()) };
        let long_ago = Instant::now().checked_sub(STALL_LIMIT).unwrap();
        let mut state = State::default();
        state.queue.extend([of(1, 8, party(90, 1000)), of(2, 9, party(90, 1001)), of(3, 10, party(90, 0))]);
        for number in 0..THREADS as u64 {
            assert_eq!(index_of(&shared, &mut state), Some(0), "{number} of his are held");
            let (request, party) = (RequestId(0), party(number as u32, 1000));
            let running = Running { request, charge: at(7, party), party, since: long_ago, begun: MonoNs(0) };
            state.running.insert(number, running);
        }
        assert_eq!(index_of(&shared, &mut state), Some(1));
        let subject = Subject::Process(Pid(7));
        for number in 0..MAX_STUCK_OF_USER as u64 {
            assert!(!state.is_stuck(subject, party(90, 1000)));
            state.stuck.insert(number, (subject, party(number as u32, 1000)));
            state.stuck.insert(100 + number, (subject, party(number as u32, 0)));
        }
        assert!(state.is_stuck(subject, party(90, 1000)) && !state.is_stuck(subject, party(90, 1001)));
        assert!(!state.is_stuck(subject, party(90, 0)), "root's are of many containers");
    }

    #[test]
    fn the_ids_of_a_new_process_are_read_once() {
        let shared = Arc::new(shared(Ledger::default()));
        let workers = Workers { shared: Arc::clone(&shared), users: Mutex::default() };
        // However slowly this is run, it has come now.
        let since = Instant::now() + Duration::from_secs(60);
        shared.lock().running.insert(1, Running { request: RequestId(9), since, ..idle() });
        let own = Pid(std::process::id());
        workers.ask(RequestId(0), process(own.0));
        let mut asked = shared.lock().queue.pop_front().unwrap();
        asked.since = since;
        assert_eq!(asked.known().map(|known| (known.status, known.user)), status_and_user(own));
        // What was found then is what is answered, unless it is long ago, or another process had its number.
        let other = Status::parse(b"Tgid:\t1\nUid:\t4001\t4001\t4001\t4001\n").unwrap();
        let found = |pid| {
            let mut ids = Ids::of(pid).unwrap();
            (ids.status, ids.user) = (other.clone(), 4000);
            ids
        };
        let answered = |known| match shared.reader.read_knowing(process(own.0), Some(Box::new(known))) {
            AnswerBody::Process(Ok(read)) => read.status.zip(read.payer),
            other => panic!("{other:?}"),
        };
        assert_eq!(answered(found(own)), Some((other.clone(), 4000)));
        assert_eq!(answered(found(Pid(1))), status_and_user(own));
        let since = Instant::now().checked_sub(KNOWN_FOR).unwrap();
        let mut late = Waiting { known: Some(Box::new(found(own))), ..waiting(0, process(own.0), since) };
        assert!(late.known().is_none());
        shared.lock().closing = true;
    }

    #[test]
    fn whoever_holds_none_gets_one_however_many_hold_what_they_may_and_so_does_root() {
        let party = |user| Some(Party { device: None, user });
        let mut state = State::default();
        let mut take = |user: u32| {
            let before = state.stuck.len();
            while !state.is_stuck(Subject::Process(Pid(state.stuck.len() as u32)), party(user)) {
                state.stuck.insert(state.stuck.len() as u64, (Subject::Process(Pid(u32::MAX)), party(user)));
            }
            state.stuck.len() - before
        };
        let taken: Vec<usize> = (1000..1022).map(&mut take).collect();
        assert_eq!(taken[..5], [16, 8, 4, 2, 1], "each has no more than the half of what is left");
        assert!(taken[5..].iter().all(|taken| *taken == 1), "{taken:?}");
        assert_eq!(take(1022), 0, "the rest is root's");
        assert!(take(0) >= THREADS && state.stuck.len() < MAX_STUCK);
        const { assert!(MAX_THREADS < MAX_STUCK / 4) };
    }

    #[test]
    fn when_all_threads_are_held_there_is_one_more_for_who_holds_none() {
        let shared = Arc::new(shared(Ledger::default()));
        let workers = Workers { shared: Arc::clone(&shared), users: Mutex::default() };
        let party = |user| Some(Party { device: None, user });
        let ago = |time| Instant::now().checked_sub(time).unwrap();
        let running = |number: u64, user, since| {
            let (request, party) = (RequestId(number), party(user));
            Running { request, charge: at(number as u32, party), party, since, begun: MonoNs(0) }
        };
        let of = |request, user| Waiting { party: party(user), ..waiting(request, process(90), Instant::now()) };
        {
            let mut state = shared.lock();
            state.running.extend((0..THREADS as u64).map(|number| (number, running(number, 7, ago(2 * QUICK)))));
            state.last_thread = 100;
            state.queue.push_back(of(10, 7));
            assert_eq!(index_of(&shared, &mut state), None, "he has all that he may have");
            state.queue.push_back(of(11, 8));
            assert_eq!(index_of(&shared, &mut state), Some(1));
        }
        // The thread that is started reads what the other wants, and ends when nobody needs it any more.
        workers.check();
        let deadline = Instant::now() + Duration::from_secs(20);
        let is_done = || {
            let state = shared.lock();
            state.answers.len() == 1 && state.running.len() == THREADS
        };
        while !is_done() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(2));
        }
        assert!(is_done(), "{:?}", shared.lock());
        {
            let state = shared.lock();
            assert_eq!((state.queue.len(), state.answers[0].1.request), (1, RequestId(11)));
        }
        // Whoever has held a thread comes last.
        let mut state = State::default();
        state.stuck.insert(1, (Subject::Process(Pid(91)), party(7)));
        state.queue.extend([of(10, 7), of(11, 8)]);
        assert_eq!(index_of(&shared, &mut state), Some(1));
        shared.lock().closing = true;
    }

    #[test]
    fn threads_that_were_not_replaced_are_when_one_comes_back() {
        let shared = Arc::new(shared(Ledger::default()));
        let workers = Workers { shared: Arc::clone(&shared), users: Mutex::default() };
        let held = Subject::Process(Pid(7));
        shared.lock().stuck.extend((0..MAX_STUCK as u64).map(|thread| (1000 + thread, (held, None))));
        workers.check();
        assert!(shared.lock().running.is_empty(), "too many are held");
        let late = Answer { request: RequestId(0), begun: MonoNs(0), done: MonoNs(0), body: AnswerBody::Stalled };
        assert!(!shared.answer(1000, (at(7, None), late), Duration::ZERO, Haste::None), "it was given up");
        workers.check();
        assert_eq!(shared.lock().running.len(), THREADS);
    }
}
