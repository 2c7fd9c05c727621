//! What drives the engine on a kernel: takes what happens to it, and does what it says.
//!
//! A turn, in this order: answers of the workers are taken, then samples, then task events, so that every event older than
//! a sample is known when the sample is assigned to its process; all of them are handed in, and the time; then everything
//! that comes out is done.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use aya::util::online_cpus;
use jitprof_common::units::MonoNs;
use jitprof_jitdump::TscConversion;

use crate::capture::{CaptureWriter, Witness};
use crate::cost::{Activity, Ledger, Phases, thread_cpu_time};
use crate::engine::border::{Answer, Counters, Order, Own, Recorded, Request, Sample, Ticks, Window};
use crate::engine::tables::TableMemory;
use crate::engine::{Engine, EngineOptions, Input, Output};
use crate::gsym::GsymStore;
use crate::kernel::{
    Arrivals, Event, KernelError, Sampler, SamplerOptions, Sideband, TickAnchor, TickClock, Waker, Wakes,
};
use crate::process::event::TaskEvent;
use crate::process::hierarchy::Group;
use crate::process::{monotonic_now, note_suspension};
use crate::profile::Profile;
use crate::record::RecordError;
use crate::record::builders::Builders;
use crate::record::machine::{self, give_memory_back};
use crate::record::usage::Charge;
use crate::record::workers::Workers;
use crate::symbol::{OpenFiles, Symbolizer};

/// Between looks for stalled threads, and readings of counters.
const SLOW_NS: u64 = 1_000_000_000;
/// Readings of the counter's rate: each is as good as the time since the start is long.
const TICKS_EVERY_NS: u64 = 1_000_000_000;
/// How often it is looked at which CPUs are online.
const CPUS_EVERY_NS: u64 = 2_000_000_000;
/// Longest wait of a turn for which nothing is due.
const LONGEST_WAIT: Duration = Duration::from_millis(500);
/// The least of it while events are held that happened during the last turn.
const HELD_WAIT: Duration = Duration::from_millis(1);

/// What the engine hands out to whoever runs it.
#[derive(Debug)]
pub(super) enum HandedOut {
    /// A window is complete.
    Window(Box<Window>),
    /// A copy that was asked for under this number.
    Snapshot(u64, Box<Profile>),
    /// The run is over.
    Finished(Box<Recorded>),
}

/// The engine, and everything of the system that it has a use for.
pub(super) struct Driver {
    engine: Engine,
    sampler: Sampler,
    sideband: Sideband,
    tick_clock: TickClock,
    ticks: Option<Ticks>,
    ticks_at: MonoNs,
    files: Arc<OpenFiles>,
    workers: Workers,
    builders: Builders,
    symbols: Symbolizer,
    prompt: Waker,
    paced: Waker,
    capture: Option<CaptureWriter>,
    events: Vec<TaskEvent>,
    handed_out: Vec<HandedOut>,
    have_targets_ended: bool,
    slow_at: MonoNs,
    cpus_at: MonoNs,
    /// Samples that were made here, and not by the kernel.
    made: u64,
    ledger: Arc<Ledger>,
    phases: Arc<Phases>,
}

impl Driver {
    /// Opens the sideband and starts the threads; nothing is sampled yet.
    ///
    /// # Errors
    /// The system refuses a thread, a descriptor or an event.
    pub(super) fn new(
        options: EngineOptions,
        mut sampler: Sampler,
        gsym: GsymStore,
        mut capture: Option<CaptureWriter>,
        wakes: Wakes,
    ) -> Result<Self, RecordError> {
        let system = |what| move |source| RecordError::System { what, source };
        let sideband = Sideband::open(sampler.cpus(), wakes)?;
        let tick_clock = TickClock::start(&sideband);
        let prompt = Waker::new().map_err(system("making an event descriptor"))?;
        let paced = Waker::new().map_err(system("making an event descriptor"))?;
        let files = Arc::new(OpenFiles::default());
        let ledger = Arc::new(Ledger::default());
        let phases = Arc::new(Phases::new(Arc::clone(&ledger)));
        let thread = system("starting a thread");
        let wakers = [prompt.clone(), paced.clone()];
        let workers =
            Workers::spawn(Arc::clone(&files), Arc::clone(&ledger), wakers, sampler.prober()).map_err(&thread)?;
        let builders = Builders::spawn(Arc::clone(&files), Arc::clone(&ledger), paced.clone()).map_err(&thread)?;
        let wake = paced.clone();
        let symbols = Symbolizer::spawn(Arc::clone(&files), gsym, Arc::clone(&ledger), Box::new(move || wake.wake()))
            .map_err(&thread)?;
        let memory = sampler.take_shared_tables().map(|tables| -> Box<dyn TableMemory> {
            match &capture {
                Some(capture) => Box::new(Witness::new(tables, capture)),
                None => Box::new(tables),
            }
        });
        let now = monotonic_now();
        if let Some(capture) = &mut capture {
            capture.begin(&options, now);
        }
        let mut engine = Engine::new(options, memory, now);
        let observer = Arc::clone(&phases);
        engine.observe(Box::new(move |activity| observer.enter(activity)));
        Ok(Self {
            engine,
            sampler,
            sideband,
            tick_clock,
            ticks: None,
            ticks_at: MonoNs(0),
            files,
            workers,
            builders,
            symbols,
            prompt,
            paced,
            capture,
            events: Vec::new(),
            handed_out: Vec::new(),
            have_targets_ended: false,
            slow_at: MonoNs(0),
            cpus_at: now,
            made: 0,
            ledger,
            phases,
        })
    }

    /// The sampler.
    pub(super) fn sampler(&mut self) -> &mut Sampler {
        &mut self.sampler
    }

    /// The engine.
    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// What a turn is made for. `wake` ends a wait at once.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub(super) fn arrivals(&mut self, wake: Option<&Waker>) -> Result<Arrivals, RecordError> {
        self.sideband.take_new_fds().for_each(drop);
        let paced = self.sideband.fds().chain([self.sampler.fd(), self.paced.as_fd()]);
        let paced = paced.chain(self.sampler.registrations_fd());
        let prompt = [self.prompt.as_fd()].into_iter().chain(wake.map(AsFd::as_fd));
        Arrivals::of(paced, prompt).map_err(|source| RecordError::System { what: "epoll", source })
    }

    /// Waits until something arrives, and for `pause` if it can wait that long; or until the next turn is due.
    ///
    /// # Errors
    /// As `epoll_wait(2)`.
    pub(super) fn wait(&mut self, arrivals: &mut Arrivals, pause: Duration) -> Result<(), RecordError> {
        let epoll = |source| RecordError::System { what: "epoll", source };
        self.sideband.take_new_fds().try_for_each(|fd| arrivals.add(fd)).map_err(epoll)?;
        let left = self.engine.wake_at().0.saturating_sub(monotonic_now().0);
        // Events that are held wait no longer than others do, and make no further turns: a storm of them always has some.
        let longest = if self.sideband.is_holding() { pause.max(HELD_WAIT) } else { LONGEST_WAIT };
        let limit = Duration::from_nanos(left).min(longest);
        arrivals.wait(limit, pause).map_err(epoll)
    }

    /// What the engine has handed out since the last call.
    pub(super) fn take_handed_out(&mut self) -> Vec<HandedOut> {
        std::mem::take(&mut self.handed_out)
    }

    /// Whether all processes have ended for whom the run is made.
    pub(super) fn have_targets_ended(&self) -> bool {
        self.have_targets_ended
    }

    /// Gives an order. It is obeyed with the next turn.
    pub(super) fn order(&mut self, order: Order) {
        self.feed(Input::Order(order));
    }

    /// Samples are taken from here on.
    ///
    /// # Errors
    /// The kernel refuses the events.
    pub(super) fn start(&mut self, options: &SamplerOptions) -> Result<(), RecordError> {
        self.sampler.start(options)?;
        let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        self.order(Order::Begin {
            at: monotonic_now(),
            wall_ns: u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX),
            cycles: self.sampler.event() == Event::Cycles,
        });
        Ok(())
    }

    /// Takes what has happened, hands it in, and does what comes out.
    ///
    /// # Errors
    /// The kernel refuses what it allowed before.
    pub(super) fn turn(&mut self) -> Result<(), RecordError> {
        self.phases.begin(Activity::Upkeep);
        let done = self.turn_within_phases();
        self.phases.settle();
        done
    }

    /// CPU time by what it was for.
    pub(super) fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    fn turn_within_phases(&mut self) -> Result<(), RecordError> {
        let now = monotonic_now();
        let slow = now.0.saturating_sub(self.slow_at.0) >= SLOW_NS;
        if slow {
            self.slow_at = now;
            note_suspension();
            self.workers.check();
            self.symbols.check();
            self.builders.check();
            self.look_at_cpus(now)?;
        }
        let (answers, names, rows) =
            (self.workers.take_answers(), self.symbols.take_answers(), self.builders.take_answers());
        self.phases.enter(Activity::Sampling);
        let Self { sampler, engine, capture, .. } = self;
        sampler.drain(|sample| hand_in(engine, capture, Input::Sample(sample)));
        let told = self.sampler.take_registrations()?;
        if !told.is_empty() {
            self.feed(Input::Registrations(told));
        }
        self.phases.enter(Activity::Processes);
        self.take_events();
        for (charge, answer) in answers {
            self.feed_charged(charge, answer);
        }
        if !names.is_empty() {
            self.feed(Input::Names(names));
        }
        rows.into_iter().for_each(|rows| self.feed(Input::Rows(rows)));
        for (charge, answer) in self.builders.take_code_answers() {
            self.feed_charged(charge, answer);
        }
        self.measure_ticks(now);
        self.phases.enter(Activity::Upkeep);
        if slow {
            let counters = self.counters()?;
            self.feed(Input::Counters(counters));
        }
        self.feed(Input::Turn(now));
        self.do_what_comes_out()
    }

    /// Hands in a sample that the kernel has not taken.
    pub(super) fn hand_in_sample(&mut self, sample: Sample<'_>) {
        self.made += 1;
        self.feed(Input::Sample(sample));
    }

    fn feed(&mut self, input: Input<'_>) {
        hand_in(&mut self.engine, &mut self.capture, input);
    }

    /// Hands in an answer; taking it up is put down to whom it was asked for.
    fn feed_charged(&mut self, charge: Charge, answer: Answer) {
        let cpu = thread_cpu_time();
        self.feed(Input::Answer(answer));
        self.workers.charge(charge, thread_cpu_time().saturating_sub(cpu));
    }

    fn take_events(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        self.sideband.drain(&mut events);
        let mut unconcerned = 0;
        for event in events.drain(..) {
            if self.engine.is_concerned(&event) {
                self.feed(Input::Task(event));
            } else {
                unconcerned += 1;
            }
        }
        if unconcerned > 0 {
            self.feed(Input::Unconcerned(unconcerned));
        }
        self.events = events;
    }

    /// CPUs come and go, and take their events along.
    fn look_at_cpus(&mut self, now: MonoNs) -> Result<(), RecordError> {
        if now.0.saturating_sub(self.cpus_at.0) < CPUS_EVERY_NS {
            return Ok(());
        }
        self.cpus_at = now;
        let Ok(online) = online_cpus() else { return Ok(()) };
        let mut ended = self.sideband.ended();
        ended.retain(|cpu| online.contains(cpu));
        let has_all = |cpus: &[u32]| online.iter().all(|cpu| cpus.contains(cpu)) && cpus.len() == online.len();
        let rings: Vec<u32> = self.sideband.cpus().collect();
        if ended.is_empty() && has_all(&rings) && has_all(self.sampler.cpus()) {
            return Ok(());
        }
        let new: Vec<u32> = online.iter().filter(|cpu| ended.contains(cpu) || !rings.contains(cpu)).copied().collect();
        if !new.is_empty() {
            // Once a second it may be due.
            let seconds = CPUS_EVERY_NS / 1_000_000_000 + 1;
            tracing::warn!("CPUs {new:?} have come back or are new: up to {seconds} s of their samples are missing");
        }
        self.sideband.set_cpus(&online, &ended);
        Ok(self.sampler.set_cpus(online, &ended)?)
    }

    /// Says how counter ticks become times as soon as it is known, and again when it is known better.
    fn measure_ticks(&mut self, now: MonoNs) {
        let due = self.ticks.is_none() || now.0.saturating_sub(self.ticks_at.0) >= TICKS_EVERY_NS;
        let Some(anchor) = due.then(|| self.tick_clock.anchor()).flatten() else { return };
        self.ticks_at = now;
        let ticks = ticks_of(&anchor);
        if self.ticks != Some(ticks) {
            self.ticks = Some(ticks);
            self.feed(Input::Ticks(ticks));
        }
    }

    fn do_what_comes_out(&mut self) -> Result<(), RecordError> {
        while let Some(output) = self.engine.poll_output() {
            if let Some(capture) = &mut self.capture {
                capture.look_at(&output);
            }
            match output {
                Output::Request(id, Request::CodeRows(code)) => self.builders.order_code(id, code),
                Output::Request(id, request) => self.workers.ask(id, request),
                Output::Close(file) => self.files.close(file),
                Output::DropRuntime(process) => self.workers.drop_runtime(process),
                Output::Name(keys) => self.symbols.ask(keys),
                Output::UnloadSymbols => self.symbols.unload(),
                Output::SymbolBudget(budget) => self.symbols.set_budget(budget),
                Output::BuildRows { file, samples, functions } => self.builders.order(file, samples, functions),
                Output::HurryRows(file) => self.builders.hurry(file),
                Output::BuildInBackground => {
                    self.builders.work_in_background();
                    self.workers.gather();
                }
                Output::Table(update) => {
                    if let Err(refused) = self.sampler.apply(update) {
                        self.feed(Input::Refused(refused));
                    }
                }
                Output::Publish(publication) => self.feed(Input::Published { publication, at: monotonic_now() }),
                Output::Follow(pid) => {
                    if let Err(error) = self.sampler.follow(pid) {
                        self.feed(Input::Remark(format!("process {pid} not followed: {error}")));
                    }
                }
                Output::Unfollow(pid) => self.sampler.unfollow(pid),
                Output::Groups(groups) => self.compare_with(&groups)?,
                Output::WantCounters => {
                    let counters = self.last_counters()?;
                    self.feed(Input::Counters(counters));
                }
                Output::GiveMemoryBack => give_memory_back(),
                Output::Window(window) => self.handed_out.push(HandedOut::Window(window)),
                Output::Snapshot { token, profile } => self.handed_out.push(HandedOut::Snapshot(token, profile)),
                Output::TargetsEnded => self.have_targets_ended = true,
                Output::Finished(recorded) => self.handed_out.push(HandedOut::Finished(recorded)),
            }
        }
        Ok(())
    }

    /// Has the BPF program compare with these groups. One that has gone meanwhile is left out.
    fn compare_with(&mut self, groups: &[Group]) -> Result<(), KernelError> {
        let directories: Vec<File> = groups.iter().filter_map(|group| File::open(&group.directory).ok()).collect();
        self.sampler.set_cgroups(&directories)
    }

    fn counters(&self) -> Result<Counters, RecordError> {
        let counts = self.sampler.counts()?;
        self.ledger.set_kernel(counts.cost_ns);
        Ok(Counters {
            taken: counts.taken.saturating_add(self.made),
            ring_full: counts.ring_full,
            malformed: self.sampler.malformed(),
            cost_ns: counts.cost_ns,
            costs: self.ledger.costs(),
            snapshots_refused: counts.snapshots_refused,
            lists_refused: counts.lists_refused,
            symbols: None,
            own: None,
        })
    }

    /// With what is only wanted in the end.
    fn last_counters(&self) -> Result<Counters, RecordError> {
        let (cpu_s, max_rss_bytes) = machine::own_cost();
        let verified = self.sampler.verified().iter();
        let own = Own {
            cpu_s,
            max_rss_bytes,
            walk: self.sampler.variant().describe().to_owned(),
            verified_instructions: verified.map(|one| (one.program.to_owned(), one.instructions)).collect(),
            event: self.sampler.event().name().to_owned(),
            cpus: self.sampler.cpus().len(),
        };
        Ok(Counters { symbols: Some(Box::new(self.symbols.stats())), own: Some(own), ..self.counters()? })
    }

    /// Takes away the breakpoints that were set in processes.
    pub(super) fn remove_breakpoints(&self) {
        self.workers.remove_breakpoints();
    }

    /// Lets go of all files.
    pub(super) fn close_files(&self) {
        self.files.close_all();
    }

    /// Ends the capture, if one is written.
    ///
    /// # Errors
    /// It could not be written to its end.
    pub(super) fn finish_capture(&mut self) -> io::Result<()> {
        self.capture.take().map_or(Ok(()), CaptureWriter::finish)
    }
}

fn hand_in(engine: &mut Engine, capture: &mut Option<CaptureWriter>, input: Input<'_>) {
    match capture {
        Some(capture) => capture.hand_in(engine, input),
        None => engine.handle(input),
    }
}

fn ticks_of(anchor: &TickAnchor) -> Ticks {
    let base = TscConversion { mult: anchor.mult, shift: anchor.shift, zero: 0, mono_offset: 0 };
    Ticks { mult: anchor.mult, shift: anchor.shift, zero: anchor.at.0.wrapping_sub(base.to_mono(anchor.ticks).0) }
}
