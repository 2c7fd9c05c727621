//! Keeps the service within its own limits: it samples less often when sampling takes too much CPU time, and evicts
//! caches when it takes too much memory. What a build or one process that churns code costs is none of the frequency's
//! doing: that has a budget of its own, within which it waits ([`cost`](crate::cost)).
//!
//! ```text
//! every 5 s   CPU time of sampling, that of the BPF programs included  -> smoothed -> over its part: fewer samples
//!                                                                                  -> far below it: more, up to what was asked for
//!             resident memory                                          -> near the limit: caches are evicted, and stay small
//! ```
//!
//! Samples weigh what they stand for at the frequency at which they were taken, so shares stay true.

use std::io;
use std::num::NonZeroU32;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::recording::Handle;
use crate::cost::{Activity, Costs};

/// Time between two looks at the service's own use.
const EVERY: Duration = Duration::from_secs(5);
/// The lowest frequency. Below it a window of ten seconds says nothing.
const FLOOR_HZ: u32 = 1;
/// Looks before anything is changed: at the start symbol tables are loaded and rows built that are then there.
const SETTLING: u32 = 12;
/// Looks after a change before the next one: its effect has to show in the smoothed figure.
const REST: u32 = 6;
/// Looks with much room before the frequency is raised.
const PATIENCE: u32 = 12;
/// A new measurement's part of the smoothed figure: a change is half seen in it after 12 s.
const NEW_PART: f64 = 0.25;
/// Below this part of the limit there is much room. Raising by [`RAISE`] stays below the limit.
const MUCH_ROOM: f64 = 0.6;
const RAISE: f64 = 1.5;
/// Where a lowered frequency aims at, as a part of the limit, and how much it is lowered at once.
const AIM: f64 = 0.85;
const LOWER: std::ops::RangeInclusive<f64> = 0.5..=0.9;
/// Parts of the memory limit at which it becomes short, and is so no longer.
const SHORT: f64 = 0.9;
const ENOUGH: f64 = 0.7;

/// The service's own limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GovernorOptions {
    /// CPU time of jitprof and its BPF programs, in percent of the machine: of all its CPUs together.
    pub max_cpu_percent: f64,
    /// Resident memory in bytes.
    pub max_memory_bytes: u64,
}

impl Default for GovernorOptions {
    fn default() -> Self {
        Self { max_cpu_percent: 1.0, max_memory_bytes: 256 << 20 }
    }
}

/// What the governor has measured and done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct GovernorStats {
    /// CPU time of sampling, the BPF programs included, smoothed, in percent of the machine.
    pub sampling_percent: f64,
    /// Of everything else, likewise.
    pub others_percent: f64,
    /// Resident memory of the service.
    pub resident_bytes: u64,
    /// Samples per second and busy CPU that are asked for now.
    pub frequency_hz: u32,
    /// Times that the frequency was lowered.
    pub lowered: u64,
    /// Times that it was raised again.
    pub raised: u64,
    /// Whether caches are kept small because memory is short.
    pub memory_short: bool,
    /// Times that memory became short.
    pub memory_shortages: u64,
}

impl GovernorStats {
    /// All CPU time, in percent of the machine.
    pub fn cpu_percent(&self) -> f64 {
        self.sampling_percent + self.others_percent
    }
}

/// What was measured since the last look.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Measured {
    /// CPU time in percent of the machine, in the order of [`Activity::ALL`].
    percent: [f64; 6],
    resident_bytes: u64,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Decision {
    frequency: Option<NonZeroU32>,
    tight: Option<bool>,
}

/// Decides; knows nothing of clocks and threads.
#[derive(Debug)]
struct Controller {
    options: GovernorOptions,
    configured: NonZeroU32,
    stats: GovernorStats,
    /// What was measured, smoothed.
    percent: [f64; 6],
    /// Looks until the next change.
    resting: u32,
    with_room: u32,
    memory_resting: u32,
}

impl Controller {
    fn new(options: GovernorOptions, configured: NonZeroU32) -> Self {
        let stats = GovernorStats { frequency_hz: configured.get(), ..GovernorStats::default() };
        Self { options, configured, stats, percent: [0.0; 6], resting: SETTLING, with_room: 0, memory_resting: 0 }
    }

    fn look(&mut self, measured: Measured) -> Decision {
        for (old, new) in self.percent.iter_mut().zip(measured.percent) {
            *old += (new - *old) * NEW_PART;
        }
        self.stats.sampling_percent = self.percent[Activity::Sampling as usize];
        self.stats.others_percent = self.others().map(|(_, percent)| percent).sum();
        self.stats.resident_bytes = measured.resident_bytes;
        Decision { frequency: self.frequency(), tight: self.tight() }
    }

    fn others(&self) -> impl Iterator<Item = (Activity, f64)> {
        let all = Activity::ALL.into_iter().zip(self.percent);
        all.filter(|(activity, _)| *activity != Activity::Sampling)
    }

    /// What sampling may cost: what the others leave. Who takes more than his share counts with his share only: fewer
    /// samples make neither a build nor a process that churns code any cheaper.
    fn sampling_limit(&self) -> f64 {
        let all = self.options.max_cpu_percent;
        let taken: f64 = self.others().map(|(activity, percent)| percent.min(all * activity.share())).sum();
        (all - taken).max(all * Activity::Sampling.share())
    }

    fn frequency(&mut self) -> Option<NonZeroU32> {
        let (used, now) = (self.stats.sampling_percent, self.stats.frequency_hz);
        let limit = self.sampling_limit();
        self.with_room = if used < limit * MUCH_ROOM { self.with_room.saturating_add(1) } else { 0 };
        self.resting = self.resting.saturating_sub(1);
        if self.resting > 0 {
            return None;
        }
        let wanted = if used > limit && now > FLOOR_HZ {
            let part = (limit * AIM / used).clamp(*LOWER.start(), *LOWER.end());
            odd_step(scaled(now, part)).max(FLOOR_HZ)
        } else if self.with_room >= PATIENCE && now < self.configured.get() {
            scaled(now, RAISE).max(now + 1).min(self.configured.get())
        } else {
            return None;
        };
        self.resting = REST;
        self.with_room = 0;
        if wanted < now {
            self.stats.lowered += 1;
        } else {
            self.stats.raised += 1;
        }
        self.stats.frequency_hz = wanted;
        NonZeroU32::new(wanted)
    }

    #[expect(clippy::cast_precision_loss, reason = "parts of a limit")]
    fn tight(&mut self) -> Option<bool> {
        let part = self.stats.resident_bytes as f64 / self.options.max_memory_bytes.max(1) as f64;
        self.memory_resting = self.memory_resting.saturating_sub(1);
        if part >= SHORT && self.memory_resting == 0 {
            self.memory_resting = REST;
            self.stats.memory_shortages += u64::from(!self.stats.memory_short);
            self.stats.memory_short = true;
            // Also while it is short already: what has grown again goes again.
            return Some(true);
        }
        if part <= ENOUGH && self.stats.memory_short && self.memory_resting == 0 {
            self.memory_resting = PATIENCE;
            self.stats.memory_short = false;
            return Some(false);
        }
        None
    }
}

/// Frequencies that divide a second evenly fall into step with timers.
fn odd_step(hz: u32) -> u32 {
    if hz > 4 && hz.is_multiple_of(2) { hz - 1 } else { hz }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a frequency times at most 1.5")]
fn scaled(hz: u32, part: f64) -> u32 {
    (f64::from(hz) * part) as u32
}

/// The governor on its thread; it ends when this is dropped.
#[derive(Debug)]
pub struct Governor {
    stats: Arc<Mutex<GovernorStats>>,
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Governor {
    /// Starts it for a recording that was started at `configured` samples a second. `on_memory` is told when memory is
    /// short (`true`) and when it is so no longer, for what others than the recording keep.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(
        handle: Handle,
        configured: NonZeroU32,
        options: GovernorOptions,
        on_memory: impl Fn(bool) + Send + 'static,
    ) -> io::Result<Self> {
        handle.ledger().set_limit(Some(options.max_cpu_percent / 100.0 * cpus()));
        let controller = Controller::new(options, configured);
        let stats = Arc::new(Mutex::new(controller.stats));
        let (stop, stopped) = sync_channel(0);
        let shown = Arc::clone(&stats);
        let run = move || govern(controller, &handle, &stopped, &shown, &on_memory);
        let thread = std::thread::Builder::new().name("governor".into()).spawn(run)?;
        Ok(Self { stats, stop: Some(stop), thread: Some(thread) })
    }

    /// What it has measured and done so far.
    pub fn stats(&self) -> GovernorStats {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A function that reads the figures, for somebody who may outlive the governor.
    pub fn reader(&self) -> impl Fn() -> GovernorStats + Send + Sync + use<> {
        let stats = Arc::clone(&self.stats);
        move || *stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Governor {
    fn drop(&mut self) {
        drop(self.stop.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the governor's thread panicked; please report this");
        }
    }
}

fn govern(
    mut controller: Controller,
    handle: &Handle,
    stopped: &Receiver<()>,
    shown: &Mutex<GovernorStats>,
    on_memory: &impl Fn(bool),
) {
    let mut meter = Meter::new(handle);
    while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
        let decision = controller.look(meter.read(handle));
        let stats = controller.stats;
        *shown.lock().unwrap_or_else(PoisonError::into_inner) = stats;
        if let Some(frequency) = decision.frequency {
            tracing::info!(
                sampling_percent = stats.sampling_percent,
                others_percent = stats.others_percent,
                limit = controller.options.max_cpu_percent,
                "samples {} times a second now, of {} asked for",
                frequency,
                controller.configured
            );
            if !handle.set_frequency(frequency) {
                tracing::warn!("the recording has too much to do to hear of its new frequency");
            }
        }
        if let Some(tight) = decision.tight {
            if tight {
                let limit = controller.options.max_memory_bytes;
                tracing::warn!(
                    resident = stats.resident_bytes,
                    limit,
                    "memory is short: caches are dropped and kept small"
                );
            } else {
                tracing::info!(resident = stats.resident_bytes, "memory is no longer short");
            }
            if !handle.set_tight(tight) {
                tracing::warn!("the recording has too much to do to hear that memory is short, or no longer");
            }
            on_memory(tight);
        }
    }
}

/// Measures what this process and its BPF programs use, from one look to the next.
struct Meter {
    at: Instant,
    own: Duration,
    costs: Costs,
    cpus: f64,
    kernel_ns: u64,
}

impl Meter {
    fn new(handle: &Handle) -> Self {
        let (own, costs) = (own_cpu_time(), handle.ledger().costs());
        Self { at: Instant::now(), own, costs, cpus: cpus(), kernel_ns: handle.ledger().kernel_ns() }
    }

    fn read(&mut self, handle: &Handle) -> Measured {
        let (now, own) = (Instant::now(), own_cpu_time());
        let ledger = handle.ledger();
        // What no other activity has on its account is the service's.
        let (costs, kernel_ns) = (ledger.costs(), ledger.kernel_ns());
        let known = |costs: &Costs| costs.values().iter().sum::<u64>() - costs.service;
        let spent_ns = known(&costs).saturating_sub(known(&self.costs));
        let spent = Duration::from_nanos(spent_ns.saturating_sub(kernel_ns.saturating_sub(self.kernel_ns)));
        let service = own.saturating_sub(self.own).saturating_sub(spent);
        ledger.add(Activity::Service, service);
        let of_machine = |spent: Duration| percent(spent, now - self.at) / self.cpus;
        let (costs_now, costs_before) = (costs.values(), self.costs.values());
        let mut percent: [f64; 6] = std::array::from_fn(|index| {
            of_machine(Duration::from_nanos(costs_now[index].saturating_sub(costs_before[index])))
        });
        percent[Activity::Service as usize] = of_machine(service);
        let measured = Measured { percent, resident_bytes: resident_bytes() };
        (self.at, self.own, self.costs, self.kernel_ns) = (now, own, costs, kernel_ns);
        measured
    }
}

/// How many CPUs the machine has.
#[expect(clippy::cast_precision_loss, reason = "a number of CPUs")]
pub(super) fn cpus() -> f64 {
    aya::util::online_cpus().map_or(1, |cpus| cpus.len().max(1)) as f64
}

fn percent(spent: Duration, passed: Duration) -> f64 {
    if passed.is_zero() { 0.0 } else { 100.0 * spent.as_secs_f64() / passed.as_secs_f64() }
}

/// User and system time of all threads, ended ones included.
fn own_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let own = Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0));
    own.saturating_add(crate::process::apart::spent())
}

/// What `top` shows as RES. The BPF programs' tables, which are mapped, are in it.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
    pages.saturating_mul(u64::try_from(rustix::param::page_size()).unwrap_or(4096))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn controller(hz: u32) -> Controller {
        let options = GovernorOptions { max_cpu_percent: 1.0, max_memory_bytes: 100 * MIB };
        Controller::new(options, NonZeroU32::new(hz).unwrap())
    }

    /// CPU time that goes with the frequency, on a base that does not: reading processes.
    fn measured(controller: &Controller, base: f64, per_hz: f64) -> Measured {
        let mut percent = [0.0; 6];
        percent[Activity::Sampling as usize] = per_hz * f64::from(controller.stats.frequency_hz);
        percent[Activity::Processes as usize] = base;
        Measured { percent, resident_bytes: 50 * MIB }
    }

    #[test]
    fn a_build_or_a_process_that_churns_code_does_not_lower_the_frequency() {
        let mut controller = controller(19);
        // What took the frequency from 19 to 1: twenty, and sixty, times the limit, none of it by samples.
        for others in [20.0, 61.0] {
            for _ in 0..200 {
                let measured = measured(&controller, others, 0.01);
                assert_eq!(controller.look(measured).frequency, None);
            }
        }
        assert_eq!((controller.stats.frequency_hz, controller.stats.lowered), (19, 0));
    }

    #[test]
    fn sampling_that_is_within_what_the_others_should_leave_goes_on_beside_one_that_takes_more() {
        // On two busy CPUs 99 Hz cost 0.4 % of the machine, more than the share that sampling has for certain.
        for others in [0.0, 0.1, 3.3, 26.0] {
            let mut controller = controller(99);
            for _ in 0..200 {
                let measured = measured(&controller, others, 0.004);
                assert_eq!(controller.look(measured).frequency, None, "beside {others}");
            }
        }
        // It is lowered where it is too dear itself, and no further than the others' shares make necessary.
        let mut controller = controller(99);
        for _ in 0..200 {
            let measured = measured(&controller, 26.0, 0.01);
            controller.look(measured);
        }
        let all_shares = 1.0 - Activity::Processes.share();
        assert!((0.4..=all_shares).contains(&controller.stats.sampling_percent), "{:?}", controller.stats);
    }

    #[test]
    fn the_frequency_falls_until_the_limit_is_kept_and_then_stays() {
        let mut controller = controller(99);
        for _ in 0..200 {
            let measured = measured(&controller, 0.1, 0.03);
            controller.look(measured);
        }
        let stats = controller.stats;
        assert!(stats.cpu_percent() <= 1.0, "{stats:?}");
        assert!((10..=30).contains(&stats.frequency_hz), "{stats:?}");
        let (lowered, raised) = (stats.lowered, stats.raised);
        for _ in 0..500 {
            let measured = measured(&controller, 0.1, 0.03);
            controller.look(measured);
        }
        assert_eq!((controller.stats.lowered, controller.stats.raised), (lowered, raised), "no swinging");
    }

    #[test]
    fn the_frequency_comes_back_when_there_is_room_and_no_further_than_asked() {
        let mut controller = controller(99);
        for _ in 0..100 {
            let measured = measured(&controller, 3.0, 1.0);
            controller.look(measured);
        }
        assert_eq!(controller.stats.frequency_hz, FLOOR_HZ, "a sample alone is too much: it goes down to the floor");
        for _ in 0..400 {
            let measured = measured(&controller, 0.05, 0.001);
            controller.look(measured);
        }
        assert_eq!(controller.stats.frequency_hz, 99);
    }

    #[test]
    fn a_burst_at_the_start_changes_nothing() {
        let mut controller = controller(19);
        for at in 0..60 {
            let base = if at < 4 { 5.0 } else { 0.1 };
            let measured = measured(&controller, base, 0.01);
            assert_eq!(controller.look(measured), Decision::default(), "look {at}");
        }
    }

    #[test]
    fn short_memory_is_said_once_and_worked_at_until_there_is_enough() {
        let mut controller = controller(19);
        let mut look = |mib: u64| {
            let measured = Measured { percent: [0.1, 0.0, 0.0, 0.0, 0.0, 0.0], resident_bytes: mib * MIB };
            controller.look(measured).tight
        };
        assert_eq!(look(80), None);
        assert_eq!(look(95), Some(true));
        let again: Vec<bool> = (0..12).filter_map(|_| look(96)).collect();
        assert_eq!(again, [true, true], "every half minute, not with every look");
        let back: Vec<bool> = (0..20).filter_map(|_| look(60)).collect();
        assert_eq!(back, [false]);
        assert_eq!((controller.stats.memory_shortages, controller.stats.memory_short), (1, false));
    }
}
