//! When code that is registered with a debugger has come and gone, where each call that says so is told.
//!
//! A reading finds what there is, a call says when that was changed:
//!
//! ```text
//! begin of code = its entry's last registering call, if that was for the object file that the reading has found
//! end of code   = its entry's first call since, if that is an unregistering one
//! ```
//!
//! Neither is believed if calls were missed in between, or if it is not known whether the reading was before them: then the code
//! counts as it does without calls. What a process says is its own choice: several registrations for one address, entries that it
//! ends and keeps, actions that there are not. None of that is more than a time of its own code.

use std::collections::{BTreeMap, VecDeque};

use jitprof_common::registrations::{REGISTER, UNREGISTER};
use jitprof_common::units::{Avma, MonoNs};

use crate::account::ToldAccount;
use crate::engine::border::Registration;
use crate::runtime::Registered;

/// Calls that are remembered between two readings; with more, all are taken for missed.
const MAX_CALLS: usize = 4096;
/// Of them, those for one entry; with more, the oldest are.
const MAX_CALLS_OF_ENTRY: usize = 64;

/// What was said of an entry.
#[derive(Clone, Copy, Debug)]
struct Call {
    time: MonoNs,
    /// The object file's address and size, if it is registered; nothing if it is no more.
    image: Option<(Avma, u64)>,
    /// A reading was asked for since.
    is_asked: bool,
    /// A reading has found what it says.
    is_found: bool,
}

/// Calls of one process since its last reading.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// By entry, in their order.
    calls: BTreeMap<u64, VecDeque<Call>>,
    count: usize,
    /// Between these times some may have been missed.
    missed: Option<(MonoNs, MonoNs)>,
    /// Missed ones, as the BPF program counts them.
    missed_count: u64,
    /// When that was counted.
    counted_at: MonoNs,
    /// When something was said last.
    latest: MonoNs,
    /// Since when they are told.
    since: Option<MonoNs>,
    account: Option<ToldAccount>,
}

impl Told {
    /// A call, or that some were missed. Returns whether it registers something.
    pub(super) fn note(&mut self, told: &Registration) -> bool {
        let missed = self.newly_missed(told);
        if missed > 0 {
            self.miss(self.latest, told.time);
        }
        let account = self.account.get_or_insert_default();
        account.missed = account.missed.saturating_add(missed);
        let Some(call) = told.call else { return false };
        account.calls += 1;
        let image = match call.action {
            REGISTER => Some((call.image, call.size)),
            UNREGISTER => None,
            _ => {
                account.unclear += 1;
                self.miss(told.time, told.time);
                return false;
            }
        };
        self.latest = self.latest.max(told.time);
        self.push(call.entry.0, Call { time: told.time, image, is_asked: false, is_found: false });
        image.is_some()
    }

    /// How many more were missed than was known.
    fn newly_missed(&mut self, told: &Registration) -> u64 {
        // What was written before they were counted last says nothing new.
        if told.time < self.counted_at {
            return 0;
        }
        self.counted_at = told.time;
        let known = std::mem::replace(&mut self.missed_count, told.missed);
        // One that is probed anew is counted anew.
        told.missed.checked_sub(known).unwrap_or(told.missed)
    }

    fn push(&mut self, entry: u64, call: Call) {
        if self.count >= MAX_CALLS {
            self.drop_all();
        }
        let calls = self.calls.entry(entry).or_default();
        calls.push_back(call);
        self.count += 1;
        if calls.len() > MAX_CALLS_OF_ENTRY
            && let Some(dropped) = calls.pop_front()
        {
            self.count -= 1;
            self.miss(dropped.time, dropped.time);
        }
    }

    fn miss(&mut self, from: MonoNs, to: MonoNs) {
        let (first, last) = self.missed.unwrap_or((from, to));
        self.missed = Some((first.min(from), last.max(to)));
    }

    /// Nothing that was said until now is believed.
    pub(super) fn drop_all(&mut self) {
        self.calls.clear();
        self.count = 0;
        if self.account.is_some() {
            self.miss(MonoNs(0), self.latest);
        }
    }

    /// A reading that was done at a time says since when calls are told, if they are.
    pub(super) fn note_since(&mut self, since: Option<MonoNs>, done: MonoNs) {
        if self.since != since {
            self.since = since;
            self.missed_count = 0;
            self.account.get_or_insert_default();
            self.miss(MonoNs(0), since.unwrap_or(done));
        }
    }

    /// When the last call was.
    pub(super) fn latest(&self) -> MonoNs {
        self.latest
    }

    /// A reading is asked for. Returns the entries that were registered and not found since: what a reading knows of them may be
    /// something else by now that is the same to the byte.
    pub(super) fn ask(&mut self) -> Vec<Avma> {
        let mut again = Vec::new();
        for (entry, calls) in &mut self.calls {
            if is_open(calls) {
                again.push(Avma(*entry));
            }
            calls.iter_mut().for_each(|call| call.is_asked = true);
        }
        again
    }

    /// A reading has come to its end that was begun at a time: what was said before it was asked for is taken up.
    pub(super) fn take_up(&mut self, begun: MonoNs) {
        for calls in self.calls.values_mut() {
            calls.retain(|call| !call.is_asked);
        }
        self.calls.retain(|_, calls| !calls.is_empty());
        self.count = self.calls.values().map(VecDeque::len).sum();
        self.missed = self.missed.filter(|(_, last)| *last > begun);
    }

    /// From when on the next reading has to say what there was: since then something was registered that no reading has been
    /// asked for, and none has found.
    pub(super) fn unread_from(&self) -> Option<MonoNs> {
        let open = self.calls.values().filter(|calls| is_open(calls));
        open.filter_map(|calls| calls.front()).map(|call| call.time).min()
    }

    /// Since when what a reading has found between two times is there, if that was told.
    pub(super) fn begin(&mut self, of: &Registered, (begun, done): (MonoNs, MonoNs)) -> Option<MonoNs> {
        let missed = self.missed;
        let calls = self.calls.get_mut(&of.entry.0)?;
        let is_alone = calls.iter().filter(|call| call.time <= done).count() == 1;
        let call = calls.iter_mut().rev().find(|call| call.time <= done)?;
        // Of several calls during the reading it is not known which of them it was before.
        let is_it = call.image == Some((of.image, of.size)) && (call.time <= begun || is_alone);
        let is_certain = missed.is_none_or(|(_, last)| last <= call.time);
        if !is_it || !is_certain {
            return None;
        }
        call.is_found = true;
        let time = call.time;
        self.account.get_or_insert_default().begins += 1;
        Some(time)
    }

    /// Since when what is there since a time, and was seen last at another, is there no more, if that was told.
    pub(super) fn end(&mut self, of: &Registered, since: MonoNs, seen: MonoNs) -> Option<MonoNs> {
        // If it is registered once more, something in between was not told.
        let is_next = |call: &&Call| call.time > since || (call.time == since && call.image.is_none());
        let time = self.calls.get(&of.entry.0)?.iter().find(is_next).filter(|call| call.image.is_none())?.time;
        let from = seen.max(since);
        let is_certain = self.missed.is_none_or(|(first, last)| time <= first || last <= from);
        if is_certain {
            self.account.get_or_insert_default().ends += 1;
        }
        is_certain.then_some(time)
    }

    /// For the account, if calls are told, or were to be.
    pub(super) fn account(&self) -> Option<ToldAccount> {
        self.account
    }
}

/// Whether something was registered that no reading has found.
fn is_open(calls: &VecDeque<Call>) -> bool {
    calls.iter().any(|call| call.image.is_some() && !call.is_found)
}

#[cfg(test)]
mod tests {
    use jitprof_common::units::Pid;

    use super::*;
    use crate::engine::border::RegistrationCall;

    const ENTRY: Avma = Avma(0x1000);
    const OF: Registered = Registered { entry: ENTRY, image: Avma(0x2000), size: 336 };

    fn told(time: u64, missed: u64, action: u32) -> Registration {
        let call = Some(RegistrationCall { action, entry: ENTRY, image: OF.image, size: OF.size });
        Registration { time: MonoNs(time), pid: Pid(1), missed, call }
    }

    /// With calls at these times.
    fn with(calls: &[(u64, u32)]) -> Told {
        let mut all = Told::default();
        for (time, action) in calls {
            assert_eq!(all.note(&told(*time, 0, *action)), *action == REGISTER);
        }
        all
    }

    fn begin(told: &mut Told, begun: u64, done: u64) -> Option<u64> {
        told.begin(&OF, (MonoNs(begun), MonoNs(done))).map(|time| time.0)
    }

    fn end(told: &mut Told, since: u64, seen: u64) -> Option<u64> {
        told.end(&OF, MonoNs(since), MonoNs(seen)).map(|time| time.0)
    }

    #[test]
    fn code_begins_and_ends_when_it_was_told() {
        let mut told = with(&[(10, UNREGISTER), (20, REGISTER)]);
        assert_eq!((end(&mut told, 1, 5), begin(&mut told, 30, 35)), (Some(10), Some(20)));
        assert_eq!(end(&mut told, 20, 30), None, "it was there before");
        let account = told.account().unwrap();
        assert_eq!((account.calls, account.begins, account.ends, account.missed), (2, 1, 1, 0));
    }

    #[test]
    fn what_was_registered_is_what_was_found_or_nothing_is_known() {
        let mut told = with(&[(20, REGISTER)]);
        let other = Registered { image: Avma(0x3000), ..OF };
        assert_eq!(told.begin(&other, (MonoNs(30), MonoNs(35))), None);
        assert_eq!(begin(&mut told, 10, 15), None, "it was not said yet");
        // A call during the reading: it has seen what that says, unless there was something before.
        assert_eq!(begin(&mut told, 10, 25), Some(20));
        assert_eq!(begin(&mut with(&[(12, UNREGISTER), (20, REGISTER)]), 10, 25), None);
        assert_eq!(begin(&mut with(&[(20, REGISTER), (22, UNREGISTER)]), 30, 35), None, "it should be gone");
    }

    #[test]
    fn where_calls_were_missed_nothing_is_told_until_a_reading_is_begun_afterwards() {
        let mut all = with(&[(10, UNREGISTER), (20, REGISTER)]);
        assert!(!all.note(&Registration { time: MonoNs(25), pid: Pid(1), missed: 3, call: None }));
        assert_eq!((end(&mut all, 1, 5), begin(&mut all, 30, 35)), (Some(10), None), "missed were later ones");
        all.note(&told(40, 3, UNREGISTER));
        assert_eq!(end(&mut all, 20, 22), None);
        assert_eq!(all.account().unwrap().missed, 3);
        all.ask();
        all.take_up(MonoNs(50));
        all.note(&told(60, 3, UNREGISTER));
        assert_eq!(end(&mut all, 20, 50), Some(60));
        // Those that a call says were missed are before it.
        all.note(&told(70, 4, REGISTER));
        all.note(&told(90, 4, UNREGISTER));
        assert_eq!((begin(&mut all, 80, 85), end(&mut all, 65, 66), end(&mut all, 70, 85)), (Some(70), None, Some(90)));
    }

    #[test]
    fn what_is_registered_twice_has_not_ended_when_that_is_undone() {
        let mut told = with(&[(20, REGISTER), (30, UNREGISTER)]);
        assert_eq!((end(&mut told, 20, 25), end(&mut told, 10, 15)), (Some(30), None));
    }

    #[test]
    fn calls_that_were_missed_are_noticed_in_whatever_order_they_are_counted() {
        let mut all = with(&[]);
        all.note(&Registration { time: MonoNs(30), pid: Pid(1), missed: 5, call: None });
        // This one was written before that was known.
        all.note(&told(25, 4, REGISTER));
        all.note(&told(35, 5, UNREGISTER));
        assert_eq!((all.account().unwrap().missed, all.missed), (5, Some((MonoNs(0), MonoNs(30)))));
        // The count begins anew with a new breakpoint.
        all.note(&told(50, 2, REGISTER));
        assert_eq!((all.account().unwrap().missed, all.missed), (7, Some((MonoNs(0), MonoNs(50)))));
        all.note_since(Some(MonoNs(60)), MonoNs(70));
        all.note(&told(80, 2, REGISTER));
        assert_eq!((all.account().unwrap().missed, all.missed), (9, Some((MonoNs(0), MonoNs(80)))));
    }

    #[test]
    fn actions_that_there_are_not_are_as_if_something_was_missed() {
        for action in [0, 3, u32::MAX] {
            let mut all = with(&[(20, REGISTER), (25, action)]);
            assert_eq!((begin(&mut all, 40, 45), begin(&mut with(&[(20, REGISTER)]), 40, 45)), (None, Some(20)));
            all.note(&told(30, 0, UNREGISTER));
            assert_eq!((end(&mut all, 20, 22), end(&mut all, 20, 26)), (None, Some(30)), "{action}");
            assert_eq!(all.account().unwrap().unclear, 1);
        }
    }

    #[test]
    fn an_entry_is_read_anew_until_a_reading_has_found_it_and_waited_for() {
        let mut all = with(&[(10, UNREGISTER), (20, REGISTER)]);
        assert_eq!(all.unread_from(), Some(MonoNs(10)));
        assert_eq!(all.ask(), [ENTRY]);
        // One that comes before the reading begins.
        all.note(&told(25, 0, REGISTER));
        all.take_up(MonoNs(30));
        assert_eq!((all.unread_from(), all.ask()), (Some(MonoNs(25)), vec![ENTRY]));
        assert_eq!(begin(&mut all, 40, 45), Some(25));
        assert_eq!((all.unread_from(), all.ask()), (None, vec![]));
    }

    #[test]
    fn calls_before_the_breakpoint_was_set_were_missed() {
        let mut all = with(&[]);
        all.note_since(None, MonoNs(5));
        assert_eq!(all.account(), None, "nobody has asked for it");
        all.note_since(Some(MonoNs(15)), MonoNs(10));
        all.note(&told(20, 0, UNREGISTER));
        assert_eq!(end(&mut all, 1, 5), None);
        all.ask();
        all.take_up(MonoNs(30));
        all.note_since(Some(MonoNs(15)), MonoNs(35));
        all.note(&told(40, 0, UNREGISTER));
        assert_eq!(end(&mut all, 1, 30), Some(40));
    }

    #[test]
    fn not_more_calls_than_some_are_remembered_and_the_others_count_as_missed() {
        let mut all = Told::default();
        (0..200).for_each(|time| assert!(all.note(&told(time, 0, REGISTER))));
        assert_eq!((all.count, begin(&mut all, 300, 301)), (MAX_CALLS_OF_ENTRY, Some(199)));
        assert_eq!(all.missed, Some((MonoNs(0), MonoNs(135))));
        for entry in 0..3 * MAX_CALLS as u64 {
            let mut one = told(200 + entry, 0, REGISTER);
            one.call.as_mut().unwrap().entry = Avma(entry << 12);
            all.note(&one);
            assert!(all.count <= MAX_CALLS);
        }
        assert_eq!(all.count, all.calls.values().map(VecDeque::len).sum::<usize>());
    }
}
