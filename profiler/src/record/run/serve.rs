//! The data loop of a recording without end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use super::{RecordError, Recorder, TICK, wait_until};
use crate::account::Account;
use crate::kernel::Waker;
use crate::process::monotonic_now;
use crate::profile::Profile;
use crate::record::unwinding::Unwinding;
use crate::record::window::{Command, Health, Window, WindowOptions};
use crate::units::MonoNs;

/// Between two ticks while code is announced, or a sample waits for it. Half as often as in a run: rows come a tenth of a
/// second later, and a sample that meets code before its rows is finished by them all the same.
const GROWING_TICK: Duration = Duration::from_millis(200);
/// Between two ticks while nothing is announced and nothing waits for code.
const QUIET_TICK: Duration = Duration::from_millis(400);
/// Pause after an early wake-up: a build makes hundreds of task events a second, and each turn costs some 40 µs. With a
/// longer one, more of its processes have ended before their files are opened, and have no names.
const QUIET_PACE: Duration = Duration::from_millis(40);
/// How long the end waits for dumps that grow, and for outstanding names.
const LAST_LIMIT: Duration = Duration::from_secs(3);
/// Snapshots that wait at most; further ones are answered at once, with what there is.
const MAX_SNAPSHOTS: usize = 64;

/// A copy that somebody waits for.
struct Snapshot {
    from: MonoNs,
    to: MonoNs,
    patience: Duration,
    reply: Box<dyn FnOnce(Profile) + Send>,
}

/// Where the windows stand.
struct Cutter {
    options: WindowOptions,
    /// Where the open window begins.
    begin: MonoNs,
    snapshots: Vec<Snapshot>,
}

impl Cutter {
    fn end(&self) -> MonoNs {
        self.begin.after(self.options.length)
    }
}

impl Recorder {
    /// Records until `stop` is set, and hands every window to `sink`, which is called on this thread and must not wait.
    /// `wake` makes it look at `stop` and `commands`.
    ///
    /// # Errors
    /// The kernel refuses what it allowed before.
    pub fn serve(
        mut self,
        options: WindowOptions,
        stop: &AtomicBool,
        wake: &Waker,
        commands: &Receiver<Command>,
        mut sink: impl FnMut(Window),
    ) -> Result<Account, RecordError> {
        let arrivals = self.arrivals(wake)?;
        self.begin_endless();
        let mut cutter = Cutter { options, begin: self.profile.meta().start, snapshots: Vec::new() };
        let mut next_tick = Instant::now() + TICK;
        while !stop.load(Ordering::Acquire) {
            wait_until(next_tick, QUIET_PACE, &arrivals)?;
            self.gather();
            self.obey(commands, &mut cutter, &mut sink)?;
            if Instant::now() >= next_tick {
                let more = self.tick()?;
                next_tick = Instant::now() + self.pause(more, &cutter);
                self.cut_due(&mut cutter, &mut sink)?;
            }
        }
        let duration = self.started.elapsed();
        // Whoever ends a service waits for it, and most of the last window has its names.
        self.drain(LAST_LIMIT, LAST_LIMIT)?;
        let end = monotonic_now();
        for snapshot in std::mem::take(&mut cutter.snapshots) {
            self.answer(snapshot, cutter.begin);
        }
        self.cut(&mut cutter, end, &mut sink)?;
        self.close_account(duration)?;
        Ok(self.account)
    }

    /// How long until the next tick. Rows of new code reach the kernel part with a tick.
    fn pause(&self, more: bool, cutter: &Cutter) -> Duration {
        let now = monotonic_now();
        let growing = || self.sources.values().any(|sources| sources.is_growing(now));
        let building = || self.unwinding.as_ref().is_some_and(Unwinding::is_building);
        if more {
            Duration::ZERO
        } else if !cutter.snapshots.is_empty() || building() {
            TICK
        } else if !self.late.is_empty() || growing() {
            GROWING_TICK
        } else {
            QUIET_TICK
        }
    }

    fn obey(
        &mut self,
        commands: &Receiver<Command>,
        cutter: &mut Cutter,
        sink: &mut impl FnMut(Window),
    ) -> Result<(), RecordError> {
        loop {
            match commands.try_recv() {
                Ok(Command::Snapshot { from, to, patience, reply }) => {
                    let snapshot = Snapshot { from, to, patience, reply };
                    if cutter.snapshots.len() < MAX_SNAPSHOTS {
                        cutter.snapshots.push(snapshot);
                    } else {
                        self.answer(snapshot, cutter.begin);
                    }
                }
                Ok(Command::Frequency(frequency_hz)) => self.set_frequency(frequency_hz)?,
                Ok(Command::Tight(tight)) => self.set_tight(tight),
                Ok(Command::Cut) => {
                    let now = monotonic_now();
                    self.settle_before(now);
                    self.cut(cutter, now, sink)?;
                }
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return Ok(()),
            }
        }
    }

    /// Answers snapshots and closes windows whose time has come.
    fn cut_due(&mut self, cutter: &mut Cutter, sink: &mut impl FnMut(Window)) -> Result<(), RecordError> {
        let now = monotonic_now();
        let grace = cutter.options.grace;
        let mut open = Vec::new();
        for snapshot in std::mem::take(&mut cutter.snapshots) {
            let latest = snapshot.to.after(snapshot.patience);
            if now >= snapshot.to && (now >= latest || self.is_settled_before(snapshot.to)) {
                self.answer(snapshot, cutter.begin);
            } else {
                open.push(snapshot);
            }
        }
        cutter.snapshots = open;
        if now >= cutter.end().after(grace) {
            let end = cutter.end();
            self.settle_before(end);
            self.cut(cutter, end, sink)?;
        }
        Ok(())
    }

    /// `begin` is where the open window begins: what was sampled earlier is in windows that were handed out.
    fn answer(&mut self, snapshot: Snapshot, begin: MonoNs) {
        self.settle_before(snapshot.to);
        let start = snapshot.from.max(begin);
        let mut copy = self.profile.select(start, |row| row.time >= snapshot.from && row.time < snapshot.to);
        copy.set_duration(Duration::from_nanos(snapshot.to.0.saturating_sub(start.0)));
        (snapshot.reply)(copy);
    }

    fn cut(&mut self, cutter: &mut Cutter, end: MonoNs, sink: &mut impl FnMut(Window)) -> Result<(), RecordError> {
        let mut profile = self.profile.take_before(cutter.begin, end);
        profile.set_duration(Duration::from_nanos(end.0.saturating_sub(cutter.begin.0)));
        cutter.begin = end;
        let health = self.health()?;
        self.tidy_profile(end);
        sink(Window { profile, end, health });
        Ok(())
    }

    fn health(&self) -> Result<Health, RecordError> {
        let counts = self.sampler.counts()?;
        let overflow = self.profile.overflow();
        Ok(Health {
            taken: counts.taken,
            delivered: self.account.samples.delivered,
            lost: counts.ring_full.saturating_add(self.sampler.malformed()),
            kernel_ns: counts.cost_ns,
            waiting: self.waiting,
            complete_stacks: self.account.stacks.complete,
            cut_stacks: self.account.stacks.cut.values().sum(),
            named_jit_frames: self.account.jit.named_total(),
            unnamed_jit_frames: self.account.jit.unnamed_total(),
            processes: self.processes.live().count(),
            functions: self.sources.values().map(|sources| sources.code.map.living()).sum(),
            frequency_hz: self.options.frequency_hz,
            overflowed: overflow.frames.saturating_add(overflow.stacks).saturating_add(overflow.rows),
        })
    }
}
