//! Rows of code that was found in processes, made from its bytes by the threads that build those of files.
//!
//! Nobody is held by code: its bytes have been read. It comes by the turns of users, as files do, and costs them the same. A
//! process of root's, or of nobody's, pays for itself, and whoever has containers has ever new ones: what is made for those
//! counts as what is read of them does, too, and waits with it.

use std::collections::VecDeque;
use std::panic::catch_unwind;
use std::time::{Duration, Instant};

use super::{Queue, Shared, TURN_S, compare_work};
use crate::cost::{Activity, Ledger, thread_cpu_time};
use crate::engine::border::{Answer, AnswerBody, CodePieces, RequestId};
use crate::owners::{Holder, Owner};
use crate::process::monotonic_now;
use crate::profile::Shares;
use crate::record::party::NOBODY;
use crate::record::usage::{Charge, Payer, Subject, Usage};

/// Bytes of code that take as long as a function of a file: 15 MB a second.
const BYTES_LIKE_A_FUNCTION: usize = 16;
/// Samples may wait for it: nobody rests behind it, as behind a file that none has met.
const SAMPLES: u64 = 1;
/// Memory of code that waits here, also of programs that are there no more; whoever has much of it leaves others a part.
const MAX_QUEUED_BYTES: usize = 64 << 20;
/// How long code waits for what its owner may spend. With the service's usual limit a process of root's has earned an order
/// in nine seconds; its samples wait for half a minute.
const CODE_GIVES_WAY_AFTER: Duration = Duration::from_secs(20);
/// What a piece takes beside its code, and an order beside its pieces.
const PIECE_BYTES: usize = 64;
const ORDER_BYTES: usize = 4 << 10;

/// Code that waits, and what has become of some.
#[derive(Debug, Default)]
pub(super) struct CodeQueue {
    pub(super) waiting: VecDeque<CodeOrder>,
    /// What each is put down to as well.
    pub(super) answers: Vec<(Charge, Answer)>,
    /// Memory of what waits.
    bytes: usize,
    shares: Shares,
    /// What code of those has cost who are told apart by processes.
    usage: Usage,
    /// What all of them may spend in a second, if all that was left is spent.
    rate_when_spent: Option<f64>,
}

impl CodeQueue {
    /// Looks whether anything is left of what announcements may cost, of which code of those counts as a part who are told apart
    /// by processes.
    pub(super) fn look_at_budget(&mut self, ledger: &Ledger, now: Instant) {
        if self.waiting.is_empty() {
            return;
        }
        let is_spent = !ledger.may_spend_at(Activity::Announcements, now);
        self.rate_when_spent = ledger.rate(Activity::Announcements).filter(|_| is_spent);
        if is_spent {
            self.usage.count(now);
        }
    }

    /// Gives code to a builder.
    pub(super) fn take(&mut self, index: usize) -> Option<CodeOrder> {
        let order = self.waiting.remove(index)?;
        self.leave(&order);
        let is_granted = self.rate_when_spent.is_some() && order.is_of_process_alone();
        Some(CodeOrder { is_granted, ..order })
    }

    /// It waits no more.
    fn leave(&mut self, order: &CodeOrder) {
        self.bytes = self.bytes.saturating_sub(order.bytes);
        self.shares.give_back(Some(order.holder), order.bytes);
    }
}

/// Code that waits for a builder.
#[derive(Debug)]
pub(super) struct CodeOrder {
    request: RequestId,
    code: Box<CodePieces>,
    owner: Owner,
    /// Who takes up room with it, and how much.
    holder: Holder,
    bytes: usize,
    /// All was spent when it was begun with.
    is_granted: bool,
    since: Instant,
}

impl CodeOrder {
    pub(super) fn new(request: RequestId, code: Box<CodePieces>) -> Self {
        let (user, process) = (code.user, code.process);
        let owner = Owner::of_process(user, process.pid);
        let holder = Holder::of_process(user, process.pid, process.start.0);
        let pieces = code.pieces.iter().map(|(_, code)| code.len().saturating_add(PIECE_BYTES));
        let bytes = pieces.fold(ORDER_BYTES, usize::saturating_add);
        Self { request, code, owner, holder, bytes, is_granted: false, since: Instant::now() }
    }

    /// Whose process it is: what is made for it, and taking it up, is put down to him as reading is.
    fn charge(&self) -> Charge {
        let (user, subject) = (self.code.user.unwrap_or(NOBODY), Subject::Process(self.code.process.pid));
        let payer = Payer { user: Some(user), subject };
        Charge { payer, activity: Activity::Announcements, granted: self.is_granted }
    }

    /// Nobody makes its rows.
    fn stalled(&self) -> (Charge, Answer) {
        let at = monotonic_now();
        (self.charge(), Answer { request: self.request, begun: at, done: at, body: AnswerBody::Stalled })
    }

    /// Whether its owner is one process alone, of which there may be ever new ones.
    fn is_of_process_alone(&self) -> bool {
        self.owner.payer() == self.owner
    }

    /// How long it will take, in functions of files, and how many samples wait for it.
    fn work(&self) -> (u64, u64) {
        let bytes = self.code.pieces.iter().fold(0_usize, |sum, (_, code)| sum.saturating_add(code.len()));
        (u64::try_from(bytes / BYTES_LIKE_A_FUNCTION).unwrap_or(u64::MAX), SAMPLES)
    }

    fn used(&self, queue: &Queue, rate: f64, now: Instant) -> f64 {
        queue.turns.spent_s(self.owner.payer(), rate, now)
    }

    fn may_spend(&self, queue: &Queue, rate: Option<f64>, now: Instant) -> bool {
        let Some(rate) = rate else { return true };
        let spent = queue.code.rate_when_spent.filter(|_| self.is_of_process_alone());
        let is_left = spent.is_none_or(|all| queue.code.usage.is_within_part(self.charge().payer, all, now));
        is_left && queue.owners.may_spend(self.owner.payer(), rate, now)
    }
}

impl Queue {
    /// Takes up code, as a file, if its holder leaves others room for theirs. Returns whether he does; else it is answered.
    pub(super) fn admit_code(&mut self, order: CodeOrder, rate: Option<f64>) -> bool {
        let (holder, bytes) = (Some(order.holder), order.bytes);
        if !self.code.shares.may_take(holder, bytes, (self.code.bytes, MAX_QUEUED_BYTES)) {
            self.code.answers.push(order.stalled());
            return false;
        }
        if let Some(rate) = rate {
            self.let_in(order.owner, rate, order.since);
        }
        self.code.shares.take(holder, bytes);
        self.code.bytes = self.code.bytes.saturating_add(bytes);
        self.code.waiting.push_back(order);
        true
    }

    /// Whether code of a user waits.
    pub(super) fn has_code_of(&self, owner: Owner) -> bool {
        self.code.waiting.iter().any(|order| order.owner.may_be_of_one_user(owner))
    }

    /// In a continuous recording, code of who has used least, by turns; of that, what came first.
    pub(super) fn choose_code(&self, rate: Option<f64>, now: Instant) -> Option<usize> {
        let fitting = self.code.waiting.iter().enumerate().filter(|(_, order)| order.may_spend(self, rate, now));
        let turn = |order: &CodeOrder| self.turn(order.owner, rate, now);
        fitting.min_by(|(_, a), (_, b)| turn(a).total_cmp(&turn(b))).map(|(index, _)| index)
    }

    /// Whether code comes before a file, by the order in which files come.
    pub(super) fn is_before(&self, code: usize, file: usize, rate: Option<f64>, now: Instant) -> bool {
        let (Some(code), Some(file)) = (self.code.waiting.get(code), self.waiting.get(file)) else { return true };
        let turn_of_file = file.owner.map_or(0.0, |owner| self.turn(owner, rate, now));
        let by_turn = self.turn(code.owner, rate, now).total_cmp(&turn_of_file);
        by_turn.then_with(|| compare_work(code.work(), (file.functions, file.samples))).is_le()
    }

    /// Somebody is served: what those had used at least whose code waits counts with what those of files had.
    pub(super) fn note_code(&mut self, rate: Option<f64>, now: Instant) {
        let Some(rate) = rate else { return };
        let fitting = self.code.waiting.iter().filter(|order| order.may_spend(self, Some(rate), now));
        let of_files = self.served.filter(|(_, at)| *at == now).map(|(used, _)| used);
        let least = fitting.map(|order| order.used(self, rate, now)).chain(of_files).min_by(f64::total_cmp);
        if let Some(least) = least {
            self.served = Some((least, now));
        }
    }

    /// Gives up code that has waited for what its owner may spend: it is read where it is met. Returns whether there was any.
    pub(super) fn refuse_code(&mut self, rate: Option<f64>, now: Instant) -> bool {
        let waiting = std::mem::take(&mut self.code.waiting);
        let is_late = |order: &CodeOrder| {
            now.saturating_duration_since(order.since) >= CODE_GIVES_WAY_AFTER && !order.may_spend(self, rate, now)
        };
        let (late, rest): (VecDeque<_>, _) = waiting.into_iter().partition(is_late);
        self.code.waiting = rest;
        late.iter().for_each(|order| self.code.leave(order));
        self.code.answers.extend(late.iter().map(CodeOrder::stalled));
        !late.is_empty()
    }

    fn turn(&self, owner: Owner, rate: Option<f64>, now: Instant) -> f64 {
        rate.map_or(0.0, |rate| (self.turns.spent_s(owner.payer(), rate, now) / TURN_S).floor())
    }
}

impl Shared {
    /// Makes rows of code, which its owner pays for.
    pub(super) fn make(&self, order: &CodeOrder) {
        let (begun, cpu) = (monotonic_now(), thread_cpu_time());
        let rows = catch_unwind(|| order.code.rows());
        self.charge_code(order, thread_cpu_time().saturating_sub(cpu));
        let body = rows.map_or(AnswerBody::Stalled, AnswerBody::CodeRows);
        let answer = Answer { request: order.request, begun, done: monotonic_now(), body };
        self.lock().code.answers.push((order.charge(), answer));
        self.wake.wake();
    }

    /// A user has a budget for all his processes. Those who are told apart by processes use up what all may spend on
    /// announcements, as by what is read of them.
    fn charge_code(&self, order: &CodeOrder, spent: Duration) {
        let charge = order.charge();
        let Some(rate) = self.rate().filter(|_| order.is_of_process_alone()) else {
            return self.charge(charge.activity, Some(order.owner), spent);
        };
        self.ledger.add(charge.activity, spent);
        let (now, all) = (Instant::now(), self.ledger.rate(charge.activity));
        let mut queue = self.lock();
        queue.spend(order.owner, rate, now, spent.as_secs_f64());
        if let Some(all) = all {
            queue.code.usage.add(charge, spent, all, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use jitprof_common::units::{Avma, MonoNs, Pid};

    use super::super::{Builders, Image, Order, SLOW_LIMIT, STALL_LIMIT, Work};
    use super::*;
    use crate::kernel::Waker;
    use crate::process::ProcessId;
    use crate::process::open::FileId;

    /// A function with a frame, of so many bytes.
    fn order(request: u64, user: u32, bytes: usize) -> CodeOrder {
        order_of(request, (user, 7), bytes)
    }

    fn order_of(request: u64, (user, pid): (u32, u32), bytes: usize) -> CodeOrder {
        let process = ProcessId { pid: Pid(pid), start: MonoNs(1) };
        let mut code = vec![0x90; bytes];
        code[..4].copy_from_slice(&[0x55, 0x48, 0x89, 0xe5]);
        code[bytes - 2..].copy_from_slice(&[0x5d, 0xc3]);
        let pieces = vec![(Avma(0x1000), code.into())];
        let code = CodePieces { process, user: Some(user), is_called: false, pieces };
        CodeOrder::new(RequestId(request), Box::new(code))
    }

    /// What builders share in a continuous recording, without any.
    fn shared() -> Arc<Shared> {
        let (queue, changed, background, ledger) = Default::default();
        let (wake, slow_limit, stall_limit) = (Waker::new().unwrap(), SLOW_LIMIT, STALL_LIMIT);
        let shared = Shared { queue, changed, wake, ledger, background, slow_limit, stall_limit };
        shared.background.store(true, Ordering::Relaxed);
        shared.ledger.set_limit(Some(0.1));
        Arc::new(shared)
    }

    fn file(number: u32, functions: u64, user: u32) -> Order {
        let (owner, since) = (Some(Owner::test(user)), Instant::now());
        Order { file: FileId(number), image: Image::Vdso, functions, samples: SAMPLES, owner, bytes: 0, since }
    }

    /// What comes first: code by its request, or a file by its number.
    fn next(queue: &mut Queue, rate: Option<f64>, now: Instant) -> Result<u64, u32> {
        match queue.take_work((1, true), rate, now).unwrap() {
            Work::Code(order) => Ok(order.request.0),
            Work::File(order) => Err(order.file.0),
        }
    }

    #[test]
    fn rows_of_code_come_from_the_threads() {
        let builders = Builders::spawn(Arc::default(), Arc::default(), Waker::new().unwrap()).unwrap();
        let CodeOrder { request, code, .. } = order(3, 1000, 64);
        builders.order_code(request, code.clone());
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut answers = Vec::new();
        while answers.is_empty() && Instant::now() < deadline {
            answers = builders.take_code_answers();
            std::thread::sleep(Duration::from_millis(1));
        }
        let [(_, Answer { request: RequestId(3), body: AnswerBody::CodeRows(rows), .. })] = &answers[..] else {
            panic!("{answers:?}")
        };
        assert!(rows.len() == 1 && *rows == code.rows());
        assert!(rows[0].is_some() || !cfg!(target_arch = "x86_64"));
    }

    #[test]
    fn code_and_files_come_by_turns_and_then_by_their_work() {
        let (rate, now) = (Some(0.1), Instant::now());
        let mut queue = Queue::default();
        queue.spend(Owner::of_process(Some(1001), Pid(7)), 0.1, now, TURN_S * 1.5);
        queue.admit_code(order(1, 1001, 64), rate);
        queue.admit_code(order(2, 1000, 256 << 10), rate);
        queue.admit_code(order(3, 1000, 64), rate);
        queue.waiting.extend([file(4, 70, 1000), file(5, 70, 1001), file(6, 19_000, 1000)]);
        assert_eq!(next(&mut queue, rate, now), Err(4), "less work");
        let of_1000 = [0; 3].map(|_| next(&mut queue, rate, now));
        assert_eq!(of_1000, [Ok(2), Ok(3), Err(6)], "code comes as it was found");
        assert_eq!([0; 2].map(|_| next(&mut queue, rate, now)), [Ok(1), Err(5)], "who has used more");
        assert_eq!(queue.builders.len(), 1, "at a file");
    }

    #[test]
    fn who_makes_others_wait_for_his_code_pays_for_it_as_for_his_files() {
        let (rate, now) = (0.1, Instant::now());
        let mut queue = Queue::default();
        let his = Owner::of_process(Some(1000), Pid(7));
        assert!(his.may_be_of_one_user(Owner::test(1000)) && his.payer() != Owner::of_process(Some(0), Pid(7)).payer());
        let [one, other] = [7, 8].map(|pid| Owner::of_process(Some(0), Pid(pid)));
        assert!(!one.may_be_of_one_user(other), "they may be of two containers");
        queue.spend(his, rate, now, 8.0);
        queue.admit_code(order(1, 1000, 64), Some(rate));
        assert!(queue.take_work((1, false), Some(rate), now).is_none());
        assert!(!queue.refuse_code(Some(rate), now) && queue.code.answers.is_empty());
        let later = Instant::now() + CODE_GIVES_WAY_AFTER;
        assert!(queue.refuse_code(Some(rate), later) && queue.code.waiting.is_empty());
        assert_eq!(stalled(&queue), [1]);
    }

    /// What was answered so, by its request.
    fn stalled(queue: &Queue) -> Vec<u64> {
        let is_stalled = |answer: &Answer| matches!(answer.body, AnswerBody::Stalled);
        queue.code.answers.iter().filter(|(_, answer)| is_stalled(answer)).map(|(_, answer)| answer.request.0).collect()
    }

    #[test]
    fn who_has_ever_new_processes_of_root_uses_up_what_announcements_may_cost() {
        let shared = shared();
        let [his, root] = [1000, 0].map(|user| order(1, user, 64));
        let is_left = || shared.ledger.may_spend(Activity::Announcements);
        shared.charge_code(&his, Duration::from_secs(1000));
        assert!(is_left(), "a user has a budget of his own");
        shared.charge_code(&root, Duration::from_secs(1000));
        assert!(!is_left());
        let payer = |user, pid| Payer { user: Some(user), subject: Subject::Process(Pid(pid)) };
        assert_eq!([his, root].map(|order| order.charge().payer), [payer(1000, 7), payer(0, 7)]);
        let next = |order: CodeOrder| {
            let (rate, now) = (shared.rate(), Instant::now());
            let mut queue = shared.lock();
            assert!(queue.admit_code(order, rate));
            queue.code.look_at_budget(&shared.ledger, now);
            let index = queue.choose_code(rate, now)?;
            queue.code.take(index)
        };
        let granted = next(order_of(2, (0, 8), 64)).unwrap();
        assert!(granted.is_granted, "it has had less than its part");
        shared.charge_code(&granted, Duration::from_secs(1));
        assert!(next(order_of(3, (0, 9), 64)).is_none(), "root has had his, however many processes that is");
        assert_eq!(next(order(4, 1001, 64)).map(|order| order.request.0), Some(4));
    }

    #[test]
    fn who_has_much_code_waiting_leaves_others_room_and_is_told_at_once() {
        let mut queue = Queue::default();
        let mut fill =
            |user: u32| (0..64).take_while(|number| queue.admit_code(order(*number, user, 4 << 20), None)).count();
        assert_eq!([fill(1000), fill(1001), fill(1000)], [11, 2, 0]);
        assert_eq!(stalled(&queue), [11, 2, 0]);
        assert!(queue.admit_code(order(20, 1002, 64), None));
        assert!(queue.code.bytes <= MAX_QUEUED_BYTES);
        while queue.code.take(0).is_some() {}
        assert_eq!((queue.code.bytes, &queue.code.shares), (0, &Shares::default()));
        assert!(queue.admit_code(order(21, 1000, 4 << 20), None));
        assert!(stalled(&queue).len() == 3 && !queue.refuse_code(None, Instant::now() + CODE_GIVES_WAY_AFTER));
    }

    #[test]
    fn code_that_waits_in_vain_is_given_up_also_while_all_builders_are_at_work() {
        let shared = shared();
        let builders = Builders { shared: Arc::clone(&shared), files: Arc::default() };
        let since = Instant::now().checked_sub(CODE_GIVES_WAY_AFTER).unwrap();
        for user in [0_u32, 1000] {
            let order = CodeOrder { since, ..order(u64::from(user), user, 64) };
            shared.charge_code(&order, Duration::from_secs(1000));
            assert!(shared.lock().admit_code(order, shared.rate()));
        }
        builders.check();
        let queue = shared.lock();
        assert_eq!((stalled(&queue), queue.code.bytes, queue.code.waiting.len()), (vec![0, 1000], 0, 0));
    }

    #[test]
    fn whose_code_comes_while_others_wait_comes_no_sooner_than_they() {
        let (rate, now) = (0.1, Instant::now());
        let mut queue = Queue::default();
        let root = Owner::of_process(Some(0), Pid(7));
        queue.spend(root, rate, now, TURN_S * 4.5);
        queue.admit_code(order(1, 0, 64), Some(rate));
        queue.admit_code(order(2, 0, 64), Some(rate));
        assert_eq!(next(&mut queue, Some(rate), now), Ok(1));
        queue.admit_code(order(3, 1000, 64), Some(rate));
        assert_eq!([0; 2].map(|_| next(&mut queue, Some(rate), now)), [Ok(2), Ok(3)]);
    }
}
