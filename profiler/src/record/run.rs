//! The data loop.

mod close;
mod feed;
mod follow;
mod label;
mod late;
mod member;
mod serve;
mod settle;
mod tidy;

use std::io;
use std::num::NonZeroU32;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::account::Account;
use crate::gsym::{GsymStore, StoreError};
use crate::jitdump::TscConversion;
use crate::kernel::{
    Arrivals, Event, KernelError, RawSample, Sampler, SamplerOptions, Selection, SideBand, TickClock, Waker,
};
use crate::process::event::TaskEvent;
use crate::process::procfs::{self, ProcError};
use crate::process::{ProcessId, Processes, monotonic_now};
use crate::profile::{Profile, ProfileMeta, SampledEvent};
use crate::record::copies::Copies;
use crate::record::files::Files;
use crate::record::labels::{Births, History, Labeller};
use crate::record::late::LateSamples;
use crate::record::machine::running_pids;
use crate::record::members::{Members, same_comm};
use crate::record::options::{CallGraph, RecordOptions, Targets};
use crate::record::resolve::Resolver;
use crate::record::sources::{Polled, ReadContext, Sources};
use crate::record::unwinding::Unwinding;
use crate::record::versions::Versions;
use crate::record::waiting::{MAX_WAITING, Queue, Stacks, Waiting};
use crate::symbol::Symbolizer;
use crate::units::{MonoNs, Pid, Tid};
use tidy::Tidy;

/// How often tails are read and samples resolved.
const TICK: Duration = Duration::from_millis(100);
/// Pause after an early wake-up before what has come is taken, so that a storm of task events costs a bounded number of
/// turns, and what comes meanwhile costs none.
const PACE: Duration = Duration::from_millis(2);
/// Between looks for perf maps, stalled files and old code.
const SLOW_NS: u64 = 1_000_000_000;
/// Between looks for processes that a selection means by now.
const MEMBERS_NS: u64 = 500_000_000;
/// How long the end of a run waits for outstanding names.
const NAMES_LIMIT: Duration = Duration::from_secs(20);
/// How long the end of a run reads dumps that keep growing.
const LAST_READ_LIMIT: Duration = Duration::from_secs(10);
/// Code that ended this long ago is forgotten when no waiting sample is older.
const KEEP_ENDED_NS: u64 = 10_000_000_000;

/// A run that cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The kernel part.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A target cannot be followed.
    #[error("{0}")]
    Target(#[from] ProcError),
    /// A target is no user process.
    #[error(
        "{pid} is a kernel thread: it has no user code to unwind; profile the whole machine with --all, or choose a process"
    )]
    KernelThread {
        /// The pid.
        pid: Pid,
    },
    /// No thread with this id.
    #[error("no thread {tid}; see the directories in /proc/PID/task")]
    NoSuchThread {
        /// The tid.
        tid: Tid,
    },
    /// Nobody has this name.
    #[error("there is no user {user} in /etc/passwd; a user of a directory service is chosen by number")]
    NoSuchUser {
        /// As it was given.
        user: String,
    },
    /// No process matches.
    #[error("no running process matches {what}; `systemd-cgls` and `ps -eo pid,user,comm,cgroup` show what there is")]
    NothingMatches {
        /// What was asked.
        what: String,
    },
    /// A GSYM file that was named.
    #[error("--gsym: {0}")]
    Gsym(#[from] StoreError),
    /// The system refuses a thread, a descriptor or the wait for it.
    #[error("{what} failed: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// How far a run is, for a status line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Samples delivered.
    pub samples: u64,
    /// Functions that runtimes have announced.
    pub functions: usize,
    /// Samples that wait for names.
    pub waiting: usize,
    /// Samples lost.
    pub lost: u64,
}

/// What a run leaves behind.
#[derive(Debug)]
pub struct Recorded {
    /// The profile.
    pub profile: Profile,
    /// The account.
    pub account: Account,
}

/// What /proc says about a program.
#[derive(Clone, Debug, Default)]
struct Clues {
    comm: String,
    exe: Option<PathBuf>,
    command_line: Vec<String>,
}

/// A run in progress.
pub struct Recorder {
    options: RecordOptions,
    sampler_options: SamplerOptions,
    sampler: Sampler,
    side_band: SideBand,
    tick_clock: TickClock,
    processes: Processes,
    sources: FxHashMap<ProcessId, Sources>,
    unwinding: Option<Unwinding>,
    late: LateSamples,
    copies: Copies,
    symbols: Symbolizer,
    files: Files,
    stacks: Stacks,
    queues: FxHashMap<ProcessId, Queue>,
    /// Samples that wait, those put aside included.
    waiting: usize,
    /// Put aside until the end: they have code without a name.
    unnamed: Vec<Waiting>,
    resolver: Resolver,
    profile: Profile,
    account: Account,
    /// Processes whose samples are wanted one by one.
    followed: FxHashSet<Pid>,
    /// The run ends when all of these have.
    awaited: Vec<ProcessId>,
    /// Processes that were gone before they could be looked at.
    gone: FxHashMap<Pid, MonoNs>,
    /// Children that have not been given their parent's code yet, with the parent and the time of the fork. A code map
    /// is copied in microseconds a function, and most children call exec at once: the copy waits for a sample.
    forked: FxHashMap<ProcessId, (ProcessId, MonoNs)>,
    /// What tells each process' runtime, read while it is there.
    clues: FxHashMap<ProcessId, Clues>,
    /// What else is known about each process, if that is wanted.
    labels: FxHashMap<ProcessId, History>,
    no_labels: History,
    labeller: Option<Labeller>,
    versions: Option<Versions>,
    births: Births,
    /// Who matches a selection.
    members: Members,
    /// Set if the recording has no end.
    endless: Option<Tidy>,
    events: Vec<TaskEvent>,
    arrived: Vec<Waiting>,
    started: Instant,
    slow_at: MonoNs,
    members_at: MonoNs,
}

impl Recorder {
    /// Opens the side band, attaches to the targets and starts sampling.
    ///
    /// # Errors
    /// The kernel refuses, or a target does not exist or may not be read.
    pub fn start(options: RecordOptions) -> Result<Self, RecordError> {
        let members = Members::of(&options.targets)?;
        let sampler_options = SamplerOptions {
            frequency_hz: options.frequency_hz,
            event: options.event,
            selection: match &options.targets {
                Targets::All => Selection::All,
                Targets::Processes(_) => Selection::Processes,
                Targets::Threads(tids) => Selection::Threads(tids.clone()),
                Targets::Comm(name) => Selection::Comm(name.clone()),
                Targets::Matching(_) => members.selection(),
            },
            kernel_stack: options.kernel_stack,
            user_stack: options.user_stack,
            log: options.log_kernel,
            unwind_mib: options.unwind_mib,
            rows: options.user_stack && options.call_graph != CallGraph::FramePointers,
        };
        let awaited = awaited_pids(&options.targets)?;
        let sampler = Sampler::load(&sampler_options)?;
        // Before the targets are read from /proc, so that nothing falls between the two.
        let side_band = SideBand::open(sampler.cpus())?;
        let symbols = Symbolizer::spawn_with_gsym(gsym_of(&options)?)
            .map_err(|source| RecordError::System { what: "starting a thread", source })?;
        let unwinding = if sampler_options.rows { Some(Unwinding::spawn()) } else { None };
        let unwinding =
            unwinding.transpose().map_err(|source| RecordError::System { what: "starting a thread", source })?;
        let versions = options.labels.as_ref().map(|_| Versions::spawn()).transpose();
        let versions = versions.map_err(|source| RecordError::System { what: "starting a thread", source })?;
        let mut recorder = Self {
            tick_clock: TickClock::start(&side_band),
            sampler_options,
            sampler,
            side_band,
            processes: Processes::new(),
            sources: FxHashMap::default(),
            unwinding,
            late: LateSamples::default(),
            copies: Copies::default(),
            symbols,
            files: Files::default(),
            stacks: Stacks::default(),
            queues: FxHashMap::default(),
            waiting: 0,
            unnamed: Vec::new(),
            resolver: Resolver::default(),
            profile: Profile::new(profile_meta(&options, Event::CpuClock), bucket_ns(options.bucket)),
            account: Account::default(),
            followed: FxHashSet::default(),
            awaited: Vec::new(),
            gone: FxHashMap::default(),
            endless: None,
            forked: FxHashMap::default(),
            clues: FxHashMap::default(),
            labels: FxHashMap::default(),
            no_labels: History::default(),
            labeller: options.labels.as_ref().map(|labels| Labeller::new(&labels.host)),
            versions,
            births: Births::default(),
            members,
            events: Vec::new(),
            arrived: Vec::new(),
            started: Instant::now(),
            slow_at: MonoNs(0),
            members_at: MonoNs(0),
            options,
        };
        for pid in awaited {
            recorder.follow(pid)?;
        }
        recorder.follow_named()?;
        recorder.follow_matching()?;
        recorder.prepare_rows();
        recorder.begin()?;
        Ok(recorder)
    }

    /// Follows a process, and ends the run when it and all others that are followed so have ended.
    ///
    /// # Errors
    /// It does not exist or may not be read.
    pub fn follow(&mut self, pid: Pid) -> Result<(), RecordError> {
        let stat = procfs::stat(pid)?;
        if stat.is_kernel_thread() {
            return Err(RecordError::KernelThread { pid });
        }
        // The filter first: what runs while its mappings are read is sampled already.
        if matches!(self.options.targets, Targets::Processes(_) | Targets::Comm(_)) {
            self.sampler.follow(pid)?;
        }
        self.followed.insert(pid);
        let id = self.attach(pid)?;
        self.ensure_labels(id);
        self.awaited.push(id);
        Ok(())
    }

    /// Follows the running processes that `--comm` names.
    fn follow_named(&mut self) -> Result<(), RecordError> {
        let Targets::Comm(name) = &self.options.targets else { return Ok(()) };
        let name = name.clone();
        for pid in running_pids() {
            if pid.0 != std::process::id() && procfs::comm(pid).is_ok_and(|comm| same_comm(&comm, &name)) {
                self.sampler.follow(pid)?;
                self.followed.insert(pid);
                self.attach_chosen(pid);
            }
        }
        Ok(())
    }

    /// Attaches to a process before it is sampled. It may be gone by now; then there is nothing to follow.
    fn attach_chosen(&mut self, pid: Pid) {
        match self.attach(pid) {
            Ok(id) => self.ensure_labels(id),
            Err(error) => self.account.remark(error.to_string()),
        }
    }

    fn begin(&mut self) -> Result<(), RecordError> {
        self.sampler.start(&self.sampler_options)?;
        self.started = Instant::now();
        let meta = profile_meta(&self.options, self.sampler.event());
        self.profile = Profile::new(meta, bucket_ns(self.options.bucket));
        Ok(())
    }

    /// Records until `stop` is set (`wake` ends the wait for it), or until all targets have ended. `progress` is called
    /// about every tick.
    ///
    /// # Errors
    /// The kernel refuses what it allowed before.
    pub fn run(
        mut self,
        stop: &AtomicBool,
        wake: &Waker,
        mut progress: impl FnMut(Progress),
    ) -> Result<Recorded, RecordError> {
        let arrivals = self.arrivals(wake)?;
        let mut next_tick = Instant::now() + TICK;
        let mut ended = self.all_ended();
        while !stop.load(Ordering::Acquire) && !ended {
            wait_until(next_tick, PACE, &arrivals)?;
            self.gather();
            if Instant::now() >= next_tick {
                let more = self.tick()?;
                next_tick = Instant::now() + if more { Duration::ZERO } else { TICK };
                progress(self.progress()?);
                ended = self.all_ended();
            }
        }
        self.finish()
    }

    /// What the loop waits for.
    fn arrivals(&self, wake: &Waker) -> Result<Arrivals, RecordError> {
        let sources = self.side_band.fds().chain([self.sampler.fd(), wake.as_fd()]);
        Arrivals::of(sources).map_err(|source| RecordError::System { what: "epoll", source })
    }

    /// Takes what the kernel has: samples first, then task events, so that every event older than a sample is known
    /// when the sample is assigned.
    fn gather(&mut self) {
        let mut arrived = std::mem::take(&mut self.arrived);
        let (stacks, late) = (&mut self.stacks, &mut self.late);
        let delivered = self.sampler.drain(|sample| arrived.push(waiting_sample(&sample, stacks, late)));
        self.account.samples.delivered += delivered;
        let mut events = std::mem::take(&mut self.events);
        self.side_band.drain(&mut events);
        for event in events.drain(..) {
            self.apply(&event);
        }
        self.events = events;
        self.publish_mappings();
        for sample in arrived.drain(..) {
            self.assign(sample);
        }
        self.arrived = arrived;
        self.symbols.begin();
    }

    /// Finds the process of a sample and queues it.
    fn assign(&mut self, mut sample: Waiting) {
        let pid = sample.process.pid;
        let mut known = self.processes.at(pid, sample.time).map(|process| process.id);
        if known.is_none() && !self.gone.contains_key(&pid) {
            known = self.attach(pid).ok();
        }
        match known {
            Some(id) => {
                sample.process = id;
                self.note_ran(id, sample.time);
            }
            None => {
                self.gone.entry(pid).or_insert(sample.time);
                self.account.samples.process_gone += 1;
            }
        }
        self.ensure_labels(sample.process);
        self.note_demand(sample.process, sample.user, sample.time);
        // What has changed since a stack was asked for, such as a mapping, is asked for when the sample is settled.
        if self.stacks.is_new_to(sample.process, sample.kernel, sample.user) {
            let mut remarks = Vec::new();
            Resolver::prefetch_kernel(self.stacks.frames(sample.kernel), &self.symbols);
            if let Some(process) = known.and_then(|id| self.processes.get(id)) {
                let user = self.stacks.frames(sample.user);
                let unwinding = self.unwinding.as_ref();
                Resolver::prefetch(process, user, sample.time, &mut self.files, &self.symbols, unwinding, &mut remarks);
            }
            self.remark_all(remarks);
        }
        self.queues.entry(sample.process).or_default().push_back(sample);
        self.waiting += 1;
    }

    /// Reads tails and resolves what can be. Returns whether there is more to read at once.
    fn tick(&mut self) -> Result<bool, RecordError> {
        let now = monotonic_now();
        self.refresh(now);
        let slow = self.is_slow_tick(now);
        if slow {
            self.look_for_perf_maps();
            self.settle_forks(now);
            self.check_copies();
            self.check_labels(now);
        }
        self.take_versions();
        if now.0.saturating_sub(self.members_at.0) >= MEMBERS_NS {
            self.members_at = now;
            self.refresh_members()?;
        }
        let more = self.poll_sources(now);
        self.publish_rows(now);
        self.finish_late(now, false);
        self.learn_copies(now);
        self.settle(now, false);
        if self.waiting > MAX_WAITING || self.stacks.is_full() {
            self.settle_early();
        }
        self.symbols.begin();
        if slow {
            self.symbols.check();
            self.forget(now);
            self.tidy(now);
        }
        Ok(more)
    }

    /// Reads what is new in all tails. Returns whether there is more to read at once.
    fn poll_sources(&mut self, now: MonoNs) -> bool {
        let mut all = Polled::default();
        let endless = self.endless.is_some();
        for (id, sources) in &mut self.sources {
            if !endless || sources.is_due(now) {
                all.add(sources.poll(now, is_alive(&self.processes, *id)));
            }
        }
        self.take_up(all)
    }

    /// Applies what a poll brought. Returns whether there is more to read at once.
    fn take_up(&mut self, polled: Polled) -> bool {
        for (heir, event) in polled.inherited {
            if let Some(sources) = self.sources.get_mut(&heir) {
                sources.code.apply(event);
            }
        }
        self.remark_all(polled.remarks);
        polled.more
    }

    /// Ticks may be further apart than in a run; what is done every second is not.
    fn is_slow_tick(&mut self, now: MonoNs) -> bool {
        let due = now.0.saturating_sub(self.slow_at.0) >= SLOW_NS;
        if due {
            self.slow_at = now;
        }
        due
    }

    /// Drops code that ended before every waiting sample.
    fn forget(&mut self, now: MonoNs) {
        let recent = MonoNs(now.0.saturating_sub(KEEP_ENDED_NS));
        for (id, sources) in &mut self.sources {
            let oldest = self.queues.get(id).and_then(Queue::front).map_or(recent, |sample| sample.time.min(recent));
            sources.code.map.prune_before(oldest);
            if let Some(rows) = sources.code.rows_mut() {
                rows.forget_before(oldest);
            }
        }
    }

    fn finish(mut self) -> Result<Recorded, RecordError> {
        let duration = self.started.elapsed();
        self.drain(LAST_READ_LIMIT, NAMES_LIMIT)?;
        self.profile.set_duration(duration);
        self.close_account(duration)?;
        Ok(Recorded { profile: self.profile, account: self.account })
    }

    /// Takes no more samples, and names all that there are, as far as that takes no longer than each limit.
    fn drain(&mut self, read_limit: Duration, names_limit: Duration) -> Result<(), RecordError> {
        self.sampler.stop()?;
        self.gather();
        let deadline = Instant::now() + read_limit;
        loop {
            if !self.poll_sources(monotonic_now()) {
                break;
            }
            if Instant::now() >= deadline {
                self.account
                    .remark("a dump grows faster than it can be read; its newest functions have no names".to_owned());
                break;
            }
        }
        self.sources.values_mut().for_each(Sources::finish);
        self.finish_late(monotonic_now(), true);
        let unanswered = self.symbols.resolve_all(names_limit);
        if unanswered > 0 {
            self.account.remark(format!("{unanswered} addresses were not named in time"));
        }
        self.settle(monotonic_now(), true);
        Ok(())
    }

    /// Samples at another frequency from now on.
    fn set_frequency(&mut self, frequency_hz: NonZeroU32) -> Result<(), RecordError> {
        if frequency_hz.get() == self.options.frequency_hz {
            return Ok(());
        }
        self.sampler.set_frequency(frequency_hz.get())?;
        self.options.frequency_hz = frequency_hz.get();
        self.sampler_options.frequency_hz = frequency_hz.get();
        self.profile.set_frequency(monotonic_now(), frequency_hz);
        Ok(())
    }

    fn progress(&self) -> Result<Progress, RecordError> {
        let counts = self.sampler.counts()?;
        Ok(Progress {
            samples: self.account.samples.delivered,
            functions: self.sources.values().map(|sources| sources.code.map.living()).sum(),
            waiting: self.waiting,
            lost: counts.ring_full,
        })
    }

    /// Whether every process that the run waits for has ended. Threads of a process that was attached late may not be
    /// known, so /proc has the last word.
    fn all_ended(&self) -> bool {
        !self.awaited.is_empty()
            && self.awaited.iter().all(|id| {
                self.processes.get(*id).is_none_or(|process| process.exit_time.is_some())
                    || procfs::stat(id.pid).is_ok_and(|stat| stat.is_dead())
                    || matches!(procfs::stat(id.pid), Err(ProcError::NoSuchProcess { .. }))
            })
    }

    fn read_context(&self, now: MonoNs) -> ReadContext {
        let tsc = self.tick_clock.anchor().map(|anchor| {
            let base = TscConversion { mult: anchor.mult, shift: anchor.shift, zero: 0, mono_offset: 0 };
            TscConversion { zero: anchor.at.0.wrapping_sub(base.to_mono(anchor.ticks).0), ..base }
        });
        ReadContext { now, tsc, peek: self.options.peek }
    }

    fn remark_all(&mut self, remarks: Vec<String>) {
        for remark in remarks {
            self.account.remark(remark);
        }
    }
}

/// Waits until then, or until `pace` after something has come.
fn wait_until(then: Instant, pace: Duration, arrivals: &Arrivals) -> Result<(), RecordError> {
    let left = || then.saturating_duration_since(Instant::now());
    let failed = |source| RecordError::System { what: "epoll", source };
    if arrivals.wait(left()).map_err(failed)? {
        std::thread::sleep(pace.min(left()));
        arrivals.forget().map_err(failed)?;
    }
    Ok(())
}

/// The processes whose end is the run's, checked so that a wrong id is an error before anything is loaded.
fn awaited_pids(targets: &Targets) -> Result<Vec<Pid>, RecordError> {
    match targets {
        Targets::Processes(pids) => Ok(pids.clone()),
        Targets::Threads(tids) => {
            let mut pids = tids.iter().map(|tid| process_of(*tid)).collect::<Result<Vec<_>, _>>()?;
            pids.sort_unstable();
            pids.dedup();
            Ok(pids)
        }
        Targets::All | Targets::Comm(_) | Targets::Matching(_) => Ok(Vec::new()),
    }
}

fn process_of(tid: Tid) -> Result<Pid, RecordError> {
    // /proc has a directory for each thread, unlisted, whose status names the process.
    procfs::status(Pid(tid.0)).map(|status| status.tgid).map_err(|_| RecordError::NoSuchThread { tid })
}

/// Finds the GSYM files, and says which of them are of no use.
fn gsym_of(options: &RecordOptions) -> Result<GsymStore, RecordError> {
    let store = GsymStore::find(&options.gsym)?;
    for skipped in store.skipped() {
        tracing::warn!("--gsym: {skipped}");
    }
    if store.is_empty() && !options.gsym.is_empty() {
        tracing::warn!("--gsym: no GSYM file with a uuid was found");
    }
    Ok(store)
}

fn is_alive(processes: &Processes, id: ProcessId) -> bool {
    processes.get(id).is_some_and(|process| process.exit_time.is_none())
}

fn waiting_sample(sample: &RawSample<'_>, stacks: &mut Stacks, late: &mut LateSamples) -> Waiting {
    Waiting {
        time: sample.time(),
        process: ProcessId { pid: Pid(sample.header.pid), start: MonoNs(0) },
        tid: Tid(sample.header.tid),
        comm: sample.header.comm,
        kernel: stacks.intern(sample.kernel).0,
        user: stacks.intern(sample.user).0,
        stop: sample.stop,
        true_from: usize::MAX,
        late: sample.late.as_ref().and_then(|piece| late.keep(piece)),
    }
}

fn bucket_ns(bucket: Duration) -> u64 {
    u64::try_from(bucket.as_nanos()).unwrap_or(u64::MAX)
}

fn profile_meta(options: &RecordOptions, event: Event) -> ProfileMeta {
    ProfileMeta {
        title: options.title.clone(),
        start_time: SystemTime::now(),
        start: monotonic_now(),
        duration: Duration::ZERO,
        frequency_hz: NonZeroU32::new(options.frequency_hz).unwrap_or(NonZeroU32::MIN),
        event: match event {
            Event::Cycles => SampledEvent::Cycles,
            Event::CpuClock => SampledEvent::CpuClock,
        },
    }
}
