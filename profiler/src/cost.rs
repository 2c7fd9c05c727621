//! What jitprof's own work costs, by what causes it, and what each kind of it may cost.
//!
//! ```text
//! record thread, readers, builders, symbolizer ── CPU time ──▶ Ledger ──▶ metrics, account, governor
//!                        ▲                                       │
//!                        └──── what is over its budget waits ────┘
//! ```
//!
//! Each kind of work has a share of the limit for sure; what one leaves, the others may use. Nothing here lowers the
//! frequency: the governor does, and looks at what the frequency causes alone.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::process::apart::spent_for_thread;

/// What work is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activity {
    /// Taking samples, in the kernel and here: what the frequency causes.
    Sampling,
    /// Processes that start, map and end: reading them, identifying their files, building the rows of these.
    Processes,
    /// What runtimes announce: reading it, and making rows of generated code.
    Announcements,
    /// Symbol tables and debug information.
    Names,
    /// What a quiet recording costs.
    Upkeep,
    /// Everything else: HTTP, push, the archive.
    Service,
}

impl Activity {
    /// All of them, in the order of [`Costs`].
    pub const ALL: [Self; 6] =
        [Self::Sampling, Self::Processes, Self::Announcements, Self::Names, Self::Upkeep, Self::Service];

    /// A word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sampling => "sampling",
            Self::Processes => "processes",
            Self::Announcements => "announcements",
            Self::Names => "names",
            Self::Upkeep => "upkeep",
            Self::Service => "service",
        }
    }

    /// Its part of the limit, which nobody else takes from it.
    pub fn share(self) -> f64 {
        match self {
            // 99 samples a second of every CPU at work cost 0.2 to 0.4 % of the machine, whoever runs there.
            Self::Sampling => 0.5,
            Self::Processes => 0.2,
            Self::Announcements => 0.1,
            Self::Names => 0.1,
            Self::Upkeep => 0.05,
            Self::Service => 0.05,
        }
    }
}

/// CPU time since the start, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Costs {
    /// Of [`Activity::Sampling`].
    pub sampling: u64,
    /// Of [`Activity::Processes`].
    pub processes: u64,
    /// Of [`Activity::Announcements`].
    pub announcements: u64,
    /// Of [`Activity::Names`].
    pub names: u64,
    /// Of [`Activity::Upkeep`].
    pub upkeep: u64,
    /// Of [`Activity::Service`].
    pub service: u64,
}

impl Costs {
    /// As numbers in the order of [`Activity::ALL`].
    pub fn values(&self) -> [u64; 6] {
        [self.sampling, self.processes, self.announcements, self.names, self.upkeep, self.service]
    }
}

/// CPU time that may be saved up, as time at an activity's share.
const SAVED: Duration = Duration::from_secs(60);
/// What may be owed at most, as time at an activity's share: one dear thing is not paid for by those who come an hour later.
const OWED: Duration = Duration::from_secs(60);
/// What everything but sampling may use at the start, in seconds of CPU time: symbol tables are loaded and rows built
/// that are then there.
const START_S: f64 = 5.0;

/// What sums of shares may be off by.
const ROUNDING_S: f64 = 1e-6;

/// What may be spent.
#[derive(Debug)]
struct Buckets {
    /// CPU seconds a second.
    rate: f64,
    left_s: [f64; 6],
    /// What nobody has used.
    spare_s: f64,
    at: Instant,
    spent: [u64; 6],
}

impl Buckets {
    fn new(rate: f64, at: Instant, spent: [u64; 6]) -> Self {
        let left_s = Activity::ALL.map(|activity| START_S.max(Self::most(rate, activity)));
        Self { rate, left_s, spare_s: 0.0, at, spent }
    }

    fn most(rate: f64, activity: Activity) -> f64 {
        rate * activity.share() * SAVED.as_secs_f64()
    }

    /// Takes up what was earned and spent since the last call.
    fn settle(&mut self, now: Instant, spent: [u64; 6]) {
        let passed_s = now.saturating_duration_since(self.at).as_secs_f64();
        for (index, activity) in Activity::ALL.into_iter().enumerate() {
            let most = Self::most(self.rate, activity).max(self.left_s[index].min(START_S));
            let used = Duration::from_nanos(spent[index].saturating_sub(self.spent[index])).as_secs_f64();
            let left = self.left_s[index] + passed_s * self.rate * activity.share() - used;
            self.spare_s += (left - most).max(0.0);
            self.left_s[index] = left.min(most).max(-self.rate * activity.share() * OWED.as_secs_f64());
        }
        self.spare_s = self.spare_s.min(self.rate * SAVED.as_secs_f64());
        for left in self.left_s.iter_mut().filter(|left| **left < 0.0) {
            let lent = self.spare_s.min(-*left);
            *left += lent;
            self.spare_s -= lent;
        }
        (self.at, self.spent) = (now.max(self.at), spent);
    }
}

/// What was spent so far, and what may be.
#[derive(Debug, Default)]
pub struct Ledger {
    spent: [AtomicU64; 6],
    /// Of it, what others have budgets for.
    apart: [AtomicU64; 6],
    /// Of it, in BPF programs.
    kernel_ns: AtomicU64,
    /// Processes that were not read.
    refused: AtomicU64,
    buckets: Mutex<Option<Buckets>>,
}

impl Ledger {
    /// CPU time was spent.
    pub fn add(&self, activity: Activity, spent: Duration) {
        let ns = u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX);
        self.spent[activity as usize].fetch_add(ns, Ordering::Relaxed);
    }

    /// CPU time was spent that somebody else has a budget for.
    pub fn add_apart(&self, activity: Activity, spent: Duration) {
        let ns = u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX);
        self.apart[activity as usize].fetch_add(ns, Ordering::Relaxed);
        self.add(activity, spent);
    }

    /// The BPF programs have spent so much in all, on sampling.
    pub fn set_kernel(&self, total_ns: u64) {
        let before = self.kernel_ns.swap(total_ns, Ordering::Relaxed);
        self.add(Activity::Sampling, Duration::from_nanos(total_ns.saturating_sub(before)));
    }

    /// What the BPF programs have spent, which is on no thread's account.
    pub fn kernel_ns(&self) -> u64 {
        self.kernel_ns.load(Ordering::Relaxed)
    }

    /// A process was not read, because that would have cost too much.
    pub fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// How often that was so.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// All that was spent.
    pub fn costs(&self) -> Costs {
        let [sampling, processes, announcements, names, upkeep, service] = self.values();
        Costs { sampling, processes, announcements, names, upkeep, service }
    }

    fn values(&self) -> [u64; 6] {
        std::array::from_fn(|index| self.spent[index].load(Ordering::Relaxed))
    }

    /// What counts against the budgets.
    fn charged(&self) -> [u64; 6] {
        let spent = self.values();
        std::array::from_fn(|index| spent[index].saturating_sub(self.apart[index].load(Ordering::Relaxed)))
    }

    /// From now on so many seconds of CPU time a second may be spent; without a number, any.
    pub fn set_limit(&self, rate: Option<f64>) {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        match (&mut *buckets, rate) {
            (Some(buckets), Some(rate)) => buckets.rate = rate,
            (buckets, rate) => *buckets = rate.map(|rate| Buckets::new(rate, Instant::now(), self.charged())),
        }
    }

    /// Seconds of CPU time a second that an activity may cost over time, if there is a limit.
    pub fn rate(&self, activity: Activity) -> Option<f64> {
        let buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        buckets.as_ref().map(|buckets| buckets.rate * activity.share())
    }

    /// Whether there is anything left for an activity.
    pub fn may_spend(&self, activity: Activity) -> bool {
        self.may_spend_at(activity, Instant::now())
    }

    /// The same at a time.
    pub fn may_spend_at(&self, activity: Activity, now: Instant) -> bool {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(buckets) = &mut *buckets else { return true };
        buckets.settle(now, self.charged());
        buckets.left_s[activity as usize] > -ROUNDING_S
    }
}

/// Puts the CPU time of one thread down to what it is at.
#[derive(Debug)]
pub struct Phases {
    ledger: Arc<Ledger>,
    activity: AtomicU8,
    /// The thread's CPU time when this phase began.
    since_ns: AtomicU64,
}

impl Phases {
    /// Nothing is put down before [`Self::begin`].
    pub fn new(ledger: Arc<Ledger>) -> Self {
        Self { ledger, activity: AtomicU8::new(Activity::Upkeep as u8), since_ns: AtomicU64::new(0) }
    }

    /// This thread begins with something.
    pub fn begin(&self, activity: Activity) {
        self.activity.store(activity as u8, Ordering::Relaxed);
        self.since_ns.store(now_ns(), Ordering::Relaxed);
    }

    /// The thread goes on with something, perhaps the same.
    pub fn enter(&self, activity: Activity) {
        if self.activity.load(Ordering::Relaxed) != activity as u8 {
            self.settle();
            self.activity.store(activity as u8, Ordering::Relaxed);
        }
    }

    /// Puts down what was spent since the phase began.
    pub fn settle(&self) {
        let now = now_ns();
        let spent = now.saturating_sub(self.since_ns.swap(now, Ordering::Relaxed));
        if let Some(ns) = self.ledger.spent.get(usize::from(self.activity.load(Ordering::Relaxed))) {
            ns.fetch_add(spent, Ordering::Relaxed);
        }
    }
}

/// CPU time of this thread, and of what is done apart for it.
pub fn thread_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let own = Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0));
    own.saturating_add(spent_for_thread())
}

fn now_ns() -> u64 {
    u64::try_from(thread_cpu_time().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    /// After the start's credit is used up.
    fn used_up(rate: f64) -> (Buckets, Instant) {
        let start = Instant::now();
        let mut buckets = Buckets::new(rate, start, [0; 6]);
        buckets.left_s = [0.0; 6];
        (buckets, start)
    }

    #[test]
    fn who_exceeds_its_share_has_nothing_left_and_the_others_have_theirs() {
        let (mut buckets, start) = used_up(0.1);
        let announcements = Activity::Announcements as usize;
        for second in 1..=100 {
            let mut spent = [0; 6];
            // One process that churns code: half a CPU.
            spent[announcements] = second * S / 2;
            // The others use what is theirs.
            for (index, activity) in Activity::ALL.into_iter().enumerate().filter(|(index, _)| *index != announcements)
            {
                spent[index] = (second as f64 * 0.1 * activity.share() * S as f64) as u64;
            }
            buckets.settle(start + Duration::from_secs(second), spent);
        }
        for activity in Activity::ALL {
            let owes = buckets.left_s[activity as usize] < -ROUNDING_S;
            assert_eq!(owes, activity == Activity::Announcements, "{buckets:?}");
        }
    }

    #[test]
    fn what_nobody_uses_may_be_used_by_whoever_needs_it() {
        let (mut buckets, start) = used_up(0.1);
        let processes = Activity::Processes as usize;
        buckets.settle(start + Duration::from_secs(1000), [0; 6]);
        // Nobody else has anything to do, so it may have the whole limit, not a quarter of it.
        for second in 1..=1000 {
            let mut spent = [0; 6];
            spent[processes] = second * S * 9 / 100;
            buckets.settle(start + Duration::from_secs(1000 + second), spent);
        }
        assert!(buckets.left_s[processes] >= 0.0, "{buckets:?}");
        for second in 1..=1000 {
            let mut spent = [0; 6];
            spent[processes] = 90 * S + second * S * 2 / 10;
            buckets.settle(start + Duration::from_secs(2000 + second), spent);
        }
        assert!(buckets.left_s[processes] < 0.0, "{buckets:?}");
    }

    #[test]
    fn a_thread_s_time_is_put_down_to_what_it_is_at() {
        let ledger = Arc::new(Ledger::default());
        let phases = Phases::new(Arc::clone(&ledger));
        phases.begin(Activity::Names);
        let busy = |until: Duration| while thread_cpu_time() < until {};
        busy(thread_cpu_time() + Duration::from_millis(3));
        phases.enter(Activity::Sampling);
        busy(thread_cpu_time() + Duration::from_millis(1));
        phases.settle();
        let costs = ledger.costs();
        assert!((3_000_000..30_000_000).contains(&costs.names) && costs.sampling >= 1_000_000, "{costs:?}");
        assert_eq!((costs.processes, costs.announcements), (0, 0));
        assert!(ledger.may_spend(Activity::Processes), "without a limit");
    }

    #[test]
    fn shares_are_a_whole() {
        let sum: f64 = Activity::ALL.iter().map(|activity| activity.share()).sum();
        assert!((sum - 1.0).abs() < 1e-9, "{sum}");
    }
}
