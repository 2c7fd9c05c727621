//! Rows of code that was found in processes, made from its bytes by the threads that build those of files.
//!
//! Nobody is held by code: its bytes have been read. It comes by the turns of users, as files do, and costs them the same.

use std::collections::VecDeque;
use std::panic::catch_unwind;
use std::time::Instant;

use super::{GIVES_WAY_AFTER, Queue, Shared, TURN_S, compare_work};
use crate::cost::{Activity, thread_cpu_time};
use crate::engine::border::{Answer, AnswerBody, CodePieces, RequestId};
use crate::owners::Owner;
use crate::process::monotonic_now;

/// Bytes of code that take as long as a function of a file: 15 MB a second.
const BYTES_LIKE_A_FUNCTION: usize = 16;
/// Samples may wait for it: nobody rests behind it, as behind a file that none has met.
const SAMPLES: u64 = 1;

/// Code that waits, and what has become of some.
#[derive(Debug, Default)]
pub(super) struct CodeQueue {
    pub(super) waiting: VecDeque<CodeOrder>,
    pub(super) answers: Vec<Answer>,
}

/// Code that waits for a builder.
#[derive(Debug)]
pub(super) struct CodeOrder {
    request: RequestId,
    code: Box<CodePieces>,
    owner: Owner,
    since: Instant,
}

impl CodeOrder {
    pub(super) fn new(request: RequestId, code: Box<CodePieces>) -> Self {
        let owner = Owner::of_process(code.user, code.process.pid);
        Self { request, code, owner, since: Instant::now() }
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
        rate.is_none_or(|rate| queue.owners.may_spend(self.owner.payer(), rate, now))
    }
}

impl Queue {
    /// Takes up code, as a file.
    pub(super) fn admit_code(&mut self, order: CodeOrder, rate: Option<f64>) {
        if let Some(rate) = rate {
            self.let_in(order.owner, rate, order.since);
        }
        self.code.waiting.push_back(order);
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
            now.saturating_duration_since(order.since) >= GIVES_WAY_AFTER && !order.may_spend(self, rate, now)
        };
        let (late, rest): (VecDeque<_>, _) = waiting.into_iter().partition(is_late);
        let (at, is_any) = (monotonic_now(), !late.is_empty());
        let stalled = |request| Answer { request, begun: at, done: at, body: AnswerBody::Stalled };
        self.code.answers.extend(late.into_iter().map(|order| stalled(order.request)));
        self.code.waiting = rest;
        is_any
    }

    fn turn(&self, owner: Owner, rate: Option<f64>, now: Instant) -> f64 {
        rate.map_or(0.0, |rate| (self.turns.spent_s(owner.payer(), rate, now) / TURN_S).floor())
    }
}

impl Shared {
    /// Makes rows of code, which its owner pays for.
    pub(super) fn make(&self, CodeOrder { request, code, owner, .. }: CodeOrder) {
        let (begun, cpu) = (monotonic_now(), thread_cpu_time());
        let rows = catch_unwind(|| code.rows());
        self.charge(Activity::Announcements, Some(owner), thread_cpu_time().saturating_sub(cpu));
        let body = rows.map_or(AnswerBody::Stalled, AnswerBody::CodeRows);
        self.lock().code.answers.push(Answer { request, begun, done: monotonic_now(), body });
        self.wake.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use jitprof_common::units::{Avma, MonoNs, Pid};

    use super::super::{Builders, Image, Order, Work};
    use super::*;
    use crate::kernel::Waker;
    use crate::process::ProcessId;
    use crate::process::open::FileId;

    /// A function with a frame, of so many bytes.
    fn order(request: u64, user: u32, bytes: usize) -> CodeOrder {
        let process = ProcessId { pid: Pid(7), start: MonoNs(1) };
        let mut code = vec![0x90; bytes];
        code[..4].copy_from_slice(&[0x55, 0x48, 0x89, 0xe5]);
        code[bytes - 2..].copy_from_slice(&[0x5d, 0xc3]);
        let pieces = vec![(Avma(0x1000), code.into())];
        let code = CodePieces { process, user: Some(user), is_called: false, pieces };
        CodeOrder::new(RequestId(request), Box::new(code))
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
        let [Answer { request: RequestId(3), body: AnswerBody::CodeRows(rows), .. }] = &answers[..] else {
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
        queue.spend(his, rate, now, 6.0);
        queue.admit_code(order(1, 1000, 64), Some(rate));
        assert!(queue.take_work((1, false), Some(rate), now).is_none());
        assert!(!queue.refuse_code(Some(rate), now) && queue.code.answers.is_empty());
        let later = Instant::now() + GIVES_WAY_AFTER;
        assert!(queue.refuse_code(Some(rate), later) && queue.code.waiting.is_empty());
        assert!(matches!(queue.code.answers[..], [Answer { request: RequestId(1), body: AnswerBody::Stalled, .. }]));
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
