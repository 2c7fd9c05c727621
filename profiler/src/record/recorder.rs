//! A recording of this machine: a run that ends, or one in windows.

use std::collections::HashMap;
use std::io;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use jitprof_common::units::{MonoNs, Pid, Tid};

use crate::account::Account;
use crate::capture::CaptureWriter;
use crate::cost::Ledger;
use crate::engine::border::{Order, Recorded, Sample, Window};
use crate::engine::{CallGraph, EngineOptions, Progress, Who};
use crate::gsym::{GsymStore, StoreError};
use crate::kernel::{KernelError, Sampler, SamplerOptions, Selection, Waker, Wakes, code_mask};
use crate::process::Errno;
use crate::process::apart::wait_for_closing;
use crate::process::procfs::{self, ProcError};
use crate::profile::Profile;
use crate::record::driver::{Driver, HandedOut};
use crate::record::end::End;
use crate::record::machine::{descendants_of, is_a_thread_called, own_file, processes_called};
use crate::record::members::Members;
use crate::record::options::{RecordOptions, Targets};
use crate::symbol::prepare_demangling;

/// Pause after an early wake-up before what has come is taken, so that a storm of task events costs a bounded number of
/// turns, and what comes meanwhile costs none.
const PACE: Duration = Duration::from_millis(2);
/// The same of a continuous recording: a build makes hundreds of task events a second, and each turn costs some 40 µs.
/// With a longer one, more of its processes have ended before their files are opened, and have no names.
const CONTINUOUS_PACE: Duration = Duration::from_millis(40);
/// How long the beginning of a run waits for what is known of its targets, their rows above all.
const PREPARE_LIMIT: Duration = Duration::from_secs(3);
/// How long the end of a run reads dumps that keep growing, and then waits for outstanding names.
const LAST_READ_LIMIT: Duration = Duration::from_secs(10);
const NAMES_LIMIT: Duration = Duration::from_secs(20);
/// The same of a continuous recording: whoever ends a service waits for it, and most of the last window has its names.
const CONTINUOUS_LAST_LIMIT: Duration = Duration::from_secs(3);
/// How long it may take until the closing of files has begun.
const CLOSING_LIMIT: Duration = Duration::from_secs(1);

/// A run that cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The BPF program and its events.
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
    /// A process that has ended and that nobody has waited for.
    #[error(
        "process {pid} has ended: it is a zombie until its parent, process {parent}, waits for it, and runs nothing any more"
    )]
    Ended {
        /// The process.
        pid: Pid,
        /// Its parent.
        parent: Pid,
    },
    /// No thread with this id.
    #[error("no thread {tid}{errno}; see the directories in /proc/PID/task")]
    NoSuchThread {
        /// The tid.
        tid: Tid,
        /// What the kernel said.
        errno: Errno,
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
    /// Nobody is called like that, no thread either.
    #[error("no process or thread is called {name}; `ps -eLo pid,comm` lists the names")]
    NobodyCalled {
        /// What was asked.
        name: String,
    },
    /// A GSYM file that was named.
    #[error("--gsym: {0}")]
    Gsym(#[from] StoreError),
    /// The file for the capture.
    #[error("--capture {}: {source}", path.display())]
    Capture {
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The system refuses a thread, a descriptor or the wait for it.
    #[error("{what} failed: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// How a continuous recording is divided.
#[derive(Clone, Copy, Debug)]
pub struct WindowOptions {
    /// Length of a window.
    pub length: Duration,
    /// How long a window stays open after its end for names that come late.
    pub grace: Duration,
}

/// What a continuous recording is told.
pub enum Command {
    /// Copy what was sampled in `from..to` and is in no window yet. Answered when all of it is named. The copy begins
    /// at `from`, or where the last window ended if that is later.
    Snapshot {
        /// First time.
        from: MonoNs,
        /// First time that is not wanted.
        to: MonoNs,
        /// How long after `to` names are waited for at most.
        patience: Duration,
        /// Takes the copy. Called on the recording's thread: it must not wait.
        reply: Box<dyn FnOnce(Profile) + Send>,
    },
    /// Sample at another frequency from now on.
    Frequency(NonZeroU32),
    /// Memory is short, or is so no longer: keep less of what can be had again.
    Tight(bool),
    /// Hand out what there is now as a window, without a grace.
    CloseWindow,
}

/// A run in progress.
pub struct Recorder {
    options: RecordOptions,
    sampler_options: SamplerOptions,
    driver: Driver,
    started: Instant,
}

impl Recorder {
    /// Attaches to the targets and starts sampling.
    ///
    /// # Errors
    /// The kernel refuses, or a target does not exist or may not be read.
    pub fn start(options: RecordOptions) -> Result<Self, RecordError> {
        prepare_demangling();
        Sampler::check_machine()?;
        let members = Members::of(&options.targets)?;
        let awaited = awaited_pids(&options.targets)?;
        awaited.iter().try_for_each(|pid| check_target(*pid))?;
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
            children: options.inherit && !members.asks_for_groups(),
            kernel_stack: options.kernel_stack,
            user_stack: options.user_stack,
            log: options.log_kernel,
            registrations: options.probe_registrations && options.read_runtime,
            unwind_mib: options.unwind_mib,
            rows: options.user_stack && options.call_graph != CallGraph::FramePointers,
        };
        let gsym = gsym_of(&options)?;
        let sampler = Sampler::load(&sampler_options)?;
        let capture = options.capture.as_ref().map(|path| {
            CaptureWriter::create(path).map_err(|source| RecordError::Capture { path: path.clone(), source })
        });
        let engine_options = engine_options(&options, &sampler);
        let wakes = if options.continuous { Wakes::WithMany } else { Wakes::WithEach };
        let driver = Driver::new(engine_options, sampler, gsym, capture.transpose()?, wakes)?;
        let mut recorder = Self { options, sampler_options, driver, started: Instant::now() };
        recorder.choose(members, awaited)?;
        recorder.prepare()?;
        recorder.driver.start(&recorder.sampler_options)?;
        recorder.started = Instant::now();
        Ok(recorder)
    }

    /// Names the processes that are sampled from the start.
    fn choose(&mut self, members: Members, awaited: Vec<Pid>) -> Result<(), RecordError> {
        if !awaited.is_empty() {
            let inherits = self.options.inherit && matches!(self.options.targets, Targets::Processes(_));
            let children = if inherits { descendants_of(&awaited) } else { Vec::new() };
            self.driver.order(Order::Follow { pids: awaited, awaited: true });
            self.follow_all(children);
        }
        if let Targets::Comm(name) = &self.options.targets {
            let own = Pid(std::process::id());
            let mut pids = processes_called(name);
            if self.options.inherit {
                let children = descendants_of(&pids);
                pids.extend(children.into_iter().filter(|pid| *pid != own));
            }
            if pids.is_empty() && !is_a_thread_called(name) {
                return Err(RecordError::NobodyCalled { name: name.clone() });
            }
            self.follow_all(pids);
        }
        if let Some(selector) = members.selector().cloned() {
            let pids = members.pids();
            if pids.is_empty() && !selector.may_come_later {
                return Err(RecordError::NothingMatches { what: selector.to_string() });
            }
            self.driver.order(Order::Members { pids, groups: members.into_groups() });
        }
        Ok(())
    }

    /// Takes samples of processes whose end nobody waits for.
    fn follow_all(&mut self, pids: Vec<Pid>) {
        if !pids.is_empty() {
            self.driver.order(Order::Follow { pids, awaited: false });
        }
    }

    /// Waits until what is known of the targets is in the tables, if that does not take too long.
    fn prepare(&mut self) -> Result<(), RecordError> {
        let mut arrivals = self.driver.arrivals(None)?;
        let deadline = Instant::now() + PREPARE_LIMIT;
        loop {
            self.driver.turn()?;
            if self.driver.engine().is_prepared() || Instant::now() >= deadline {
                return Ok(());
            }
            self.driver.wait(&mut arrivals, Duration::ZERO)?;
        }
    }

    /// CPU time by what it was for, and what it may cost.
    pub fn ledger(&self) -> &Arc<Ledger> {
        self.driver.ledger()
    }

    /// Follows a process, and ends the run when it and all others that are followed so have ended.
    ///
    /// # Errors
    /// It does not exist or may not be read.
    pub fn follow(&mut self, pid: Pid) -> Result<(), RecordError> {
        check_target(pid)?;
        self.driver.order(Order::Follow { pids: vec![pid], awaited: true });
        self.prepare()
    }

    /// Records until the end is wanted (`wake` ends the wait for it), or until all targets have ended. `progress` is called
    /// about every tick, and while what was sampled is named.
    ///
    /// # Errors
    /// The kernel refuses what it allowed before.
    pub fn run(mut self, end: &End, wake: &Waker, mut progress: impl FnMut(Progress)) -> Result<Recorded, RecordError> {
        let mut arrivals = self.driver.arrivals(Some(wake))?;
        while !end.is_wanted() && !self.driver.have_targets_ended() {
            self.driver.wait(&mut arrivals, PACE)?;
            self.driver.turn()?;
            progress(self.driver.engine().progress());
        }
        end.begin();
        let is_urgent = |now| {
            progress(now);
            end.is_urgent()
        };
        self.finish((LAST_READ_LIMIT, NAMES_LIMIT), is_urgent, |_| {})
    }

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
        let mut arrivals = self.driver.arrivals(Some(wake))?;
        self.driver.order(Order::Continuous { length: options.length, grace: options.grace });
        let mut replies = Replies::default();
        while !stop.load(Ordering::Acquire) {
            self.driver.wait(&mut arrivals, CONTINUOUS_PACE)?;
            self.obey(commands, &mut replies)?;
            self.driver.turn()?;
            for handed_out in self.driver.take_handed_out() {
                replies.hand_over(handed_out, &mut sink);
            }
        }
        let limits = (CONTINUOUS_LAST_LIMIT, CONTINUOUS_LAST_LIMIT);
        let finished = self.finish(limits, |_| false, |handed_out| replies.hand_over(handed_out, &mut sink));
        Ok(finished?.account)
    }

    fn obey(&mut self, commands: &Receiver<Command>, replies: &mut Replies) -> Result<(), RecordError> {
        loop {
            let order = match commands.try_recv() {
                Ok(Command::Snapshot { from, to, patience, reply }) => {
                    let token = replies.wait_for(reply);
                    Order::Snapshot { token, from, to, patience }
                }
                Ok(Command::Frequency(frequency_hz)) => {
                    if frequency_hz.get() == self.sampler_options.frequency_hz {
                        continue;
                    }
                    self.driver.sampler().set_frequency(frequency_hz.get())?;
                    self.sampler_options.frequency_hz = frequency_hz.get();
                    Order::Frequency(frequency_hz)
                }
                Ok(Command::Tight(tight)) => Order::Tight(tight),
                Ok(Command::CloseWindow) => Order::CloseWindow,
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return Ok(()),
            };
            self.driver.order(order);
        }
    }

    /// What drives the engine.
    pub(super) fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Gives the engine a sample that the kernel has not taken.
    pub(super) fn hand_in(&mut self, sample: Sample<'_>) {
        self.driver.hand_in_sample(sample);
    }

    /// Records until `is_over`.
    pub(super) fn turn_until(&mut self, is_over: impl Fn() -> bool) -> Result<(), RecordError> {
        let mut arrivals = self.driver.arrivals(None)?;
        while !is_over() && !self.driver.have_targets_ended() {
            self.driver.wait(&mut arrivals, PACE)?;
            self.driver.turn()?;
        }
        Ok(())
    }

    /// Ends the recording as a run that has nothing to wait for.
    pub(super) fn finish_now(self) -> Result<Recorded, RecordError> {
        self.finish((LAST_READ_LIMIT, NAMES_LIMIT), |_| false, |_| {})
    }

    /// Takes no more samples, and names all that there are, as far as that takes no longer than each limit, and is not urgent.
    fn finish(
        mut self,
        (read_limit, names_limit): (Duration, Duration),
        mut is_urgent: impl FnMut(Progress) -> bool,
        mut sink: impl FnMut(HandedOut),
    ) -> Result<Recorded, RecordError> {
        let duration = self.started.elapsed();
        // Nothing waits any more but the user.
        self.driver.ledger().set_limit(None);
        self.driver.sampler().stop()?;
        // What waits in the rings is handed in before the end is.
        self.driver.turn()?;
        self.driver.order(Order::Finish { read_limit, names_limit, duration });
        let mut arrivals = self.driver.arrivals(None)?;
        let mut is_hasty = false;
        loop {
            if !is_hasty && is_urgent(self.driver.engine().progress()) {
                is_hasty = true;
                self.driver.order(Order::Hasten);
            }
            self.driver.turn()?;
            for handed_out in self.driver.take_handed_out() {
                match handed_out {
                    HandedOut::Finished(recorded) => {
                        self.end_capture();
                        self.driver.remove_breakpoints();
                        self.driver.close_files();
                        wait_for_closing(CLOSING_LIMIT);
                        return Ok(*recorded);
                    }
                    other => sink(other),
                }
            }
            self.driver.wait(&mut arrivals, Duration::ZERO)?;
        }
    }

    fn end_capture(&mut self) {
        if let (Err(error), Some(path)) = (self.driver.finish_capture(), &self.options.capture) {
            tracing::warn!("the capture {} is not complete: {error}", path.display());
        }
    }
}

/// Who waits for copies.
#[derive(Default)]
struct Replies {
    waiting: HashMap<u64, Box<dyn FnOnce(Profile) + Send>>,
    last: u64,
}

impl Replies {
    fn wait_for(&mut self, reply: Box<dyn FnOnce(Profile) + Send>) -> u64 {
        self.last += 1;
        self.waiting.insert(self.last, reply);
        self.last
    }

    fn hand_over(&mut self, handed_out: HandedOut, sink: &mut impl FnMut(Window)) {
        match handed_out {
            HandedOut::Window(window) => sink(*window),
            HandedOut::Snapshot(token, profile) => {
                if let Some(reply) = self.waiting.remove(&token) {
                    reply(*profile);
                }
            }
            HandedOut::Finished(_) => {}
        }
    }
}

fn engine_options(options: &RecordOptions, sampler: &Sampler) -> EngineOptions {
    EngineOptions {
        who: match &options.targets {
            Targets::All => Who::All,
            Targets::Processes(_) | Targets::Threads(_) => Who::Chosen,
            Targets::Comm(name) => Who::Comm(name.clone()),
            Targets::Matching(selector) => Who::Matching(selector.clone()),
        },
        inherit: options.inherit,
        frequency_hz: NonZeroU32::new(options.frequency_hz).unwrap_or(NonZeroU32::MIN),
        call_graph: options.call_graph,
        tables: sampler.table_sizes(),
        peek: options.peek,
        read_runtime: options.read_runtime,
        interpreter: options.interpreter,
        verify_names: options.verify_names,
        labels_host: options.labels.as_ref().map(|labels| labels.host.clone()),
        title: options.title.clone(),
        walks_lists: sampler.variant().walks_lists(),
        bucket_ns: u64::try_from(options.bucket.as_nanos()).unwrap_or(u64::MAX),
        own: own_file(),
        code_mask: code_mask(),
    }
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

/// Whether a process can be a target.
pub(super) fn check_target(pid: Pid) -> Result<(), RecordError> {
    let stat = procfs::stat(pid)?;
    if stat.is_kernel_thread() {
        return Err(RecordError::KernelThread { pid });
    }
    // The first thread may have ended before the others: what is mapped is to be seen through another one.
    let via = match stat.is_dead() {
        true => {
            let other = procfs::threads(pid)?.into_iter().find(|tid| tid.0 != pid.0);
            Pid(other.ok_or(RecordError::Ended { pid, parent: stat.parent })?.0)
        }
        false => pid,
    };
    Ok(procfs::may_read_maps(via)?)
}

fn process_of(tid: Tid) -> Result<Pid, RecordError> {
    // /proc has a directory for each thread, unlisted, whose status names the process.
    procfs::status(Pid(tid.0)).map(|status| status.tgid).map_err(|error| match error {
        ProcError::NoSuchProcess(_, errno) => RecordError::NoSuchThread { tid, errno },
        error => RecordError::Target(error),
    })
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
