//! The recording as a deterministic core: everything between "what came in" and "what goes out".
//!
//! It opens nothing, asks no clock, and owns no thread. Whoever drives it hands in samples, task events, answers and the
//! time ([`Input`]), and does what comes out ([`Output`]): updates of the BPF program's tables, whom to follow, requests
//! for what has to be read, and in the end the profile. A [driver](crate::record) does it for a kernel; a capture, which is
//! the sequence of inputs of an earlier run, does it without one and gets the same outputs.
//!
//! ```text
//!               Sample, TaskEvent, Answer, Turn
//!                            │
//!   Tracking: who runs, what is mapped where, what is announced ── Announcements, GeneratedCode of each Process
//!                            │
//!   Files: which file lies behind a mapping ──▶ Unwinding: rows and regions ──▶ Tables
//!                            │
//!   Resolving: samples wait until everything up to their time is known ──▶ Profile, Windows, Account
//! ```
//!
//! A turn ends with a call of [`Input::Turn`]: then everything that happened before its time has been handed in.
//!
//! "Not known yet" is never taken for "no": a process, a file, a name or a row that has been asked for and not answered
//! holds its samples back, for as long as a sample waits at most.

mod announcements;
pub mod border;
mod copies;
mod deferred;
mod delays;
mod dump;
mod early;
mod entry;
mod exchanged;
mod extents;
mod files;
mod fork_log;
mod frames;
mod generated;
mod labelling;
mod labels;
mod learned;
mod link;
mod listed;
mod maintenance;
mod mapped_paths;
mod names;
mod options;
mod parked;
mod past;
mod paths;
mod pending;
mod place;
mod process;
mod processes;
mod publish;
mod recent;
mod regions;
mod report;
mod requests;
mod resolve;
mod resolving;
mod row_cache;
mod runtime_tables;
mod selection;
mod space;
mod surplus;
pub mod tables;
#[cfg(test)]
mod tests;
mod told;
mod tracking;
mod unmade;
mod unwinding;
mod verify;
mod versions;
mod window;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod world;

use std::collections::{BTreeSet, HashSet};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jitprof_common::units::{Avma, MonoNs, Pid};
use jitprof_jitdump::code::CodeMap;
use jitprof_jitdump::{FileBytes, ReaderOptions};

pub use self::border::{Input, Output};
pub use self::generated::{RowOrigin, rows_of};
pub use self::options::{CallGraph, EngineOptions, InterpreterFrames, Selector};
#[cfg(feature = "serve")]
pub(crate) use self::resolve::{UNLISTED, UNNAMED_FUNCTION, UNNAMED_JIT};
pub use self::selection::Who;
pub(crate) use self::selection::same_comm;
pub use self::window::Health;
use serde_bytes::ByteBuf;

use crate::account::{Naming, VerifiedNames};
use crate::cost::Activity;
use crate::engine::border::{Answer, AnswerBody, Counters, Opened, Order, Recorded, Sample, Unread, Window};
use crate::engine::files::Files;
use crate::engine::generated::{CodeBounds, CodeOptions};
use crate::engine::labelling::Labelling;
use crate::engine::learned::Learned;
use crate::engine::maintenance::Maintenance;
use crate::engine::pending::Pending;
use crate::engine::process::Process;
use crate::engine::processes::Processes;
use crate::engine::requests::{Purpose, Requests};
use crate::engine::resolving::{Resolving, ask_learned};
use crate::engine::selection::Selection;
use crate::engine::surplus::Surplus;
use crate::engine::tables::TableMemory;
use crate::engine::tracking::{Parts, Tracking};
use crate::engine::unwinding::Unwinding;
use crate::engine::window::{Due, Wanted, Windows};
use crate::process::ProcessId;
use crate::process::event::TaskEvent;
use crate::process::open::FileId;
use crate::profile::{Holder, Limits, Profile, ProfileMeta, SampledEvent};

/// How often announcements are read and samples resolved.
const TICK: Duration = Duration::from_millis(100);
/// Between two ticks of a continuous recording while code is announced, or a sample waits for it. Half as often as in a
/// run: rows come a tenth of a second later, and a sample that meets code before its rows is finished by them all the same.
const GROWING_TICK: Duration = Duration::from_millis(200);
/// Between two ticks while nothing is announced and nothing waits for code.
const QUIET_TICK: Duration = Duration::from_millis(400);
/// Changes of the frequency that the account tells.
const MAX_FREQUENCIES: usize = 256;
/// How long a tick waits for what it has asked to be read before it resolves what it can.
const READ_PATIENCE: Duration = Duration::from_millis(50);
/// How long the end of a run waits for records that a runtime keeps in a buffer which cannot be read.
const UNWRITTEN_LIMIT: Duration = Duration::from_secs(1);
/// How long names are waited for at the end when nobody wants to wait.
const HASTY_NAMES_LIMIT: Duration = Duration::from_secs(1);
/// Between looks for perf maps, stalled files and old code.
const SLOW_NS: u64 = 1_000_000_000;

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
    /// No further sample comes.
    pub is_ending: bool,
}

/// What a process has announced.
#[derive(Debug)]
pub struct Announced {
    /// Whose.
    pub process: ProcessId,
    /// Its code over time.
    pub map: CodeMap,
    /// Its dumps: as which file each is open, its path as the process sees it, and how it is read.
    pub files: Vec<(FileId, Arc<str>, ReaderOptions)>,
    /// Whether there is a dump or a perf map at all.
    pub is_announced: bool,
}

/// Where a run is.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// It goes on.
    Running,
    /// What is announced is read to its end, until then at most; what is announced but not written yet is waited for.
    LastReads { until: MonoNs, unwritten_until: MonoNs, names_limit: Duration },
    /// Names are waited for, until then at most.
    LastNames { until: MonoNs },
    /// Everything is resolved, and the last counts are waited for.
    LastCounts,
    /// It is over.
    Over,
}

/// Hears what the engine is at, before it begins; nothing that the engine does depends on it.
pub type Observer = Box<dyn Fn(Activity) + Send>;

/// The recording.
pub struct Engine {
    options: EngineOptions,
    requests: Requests,
    tracking: Tracking,
    files: Files,
    unwinding: Option<Unwinding>,
    resolving: Resolving,
    maintenance: Maintenance,
    windows: Option<Windows>,
    counters: Counters,
    stage: Stage,
    /// How long samples were taken.
    duration: Duration,
    /// The end is not waited for.
    is_hasty: bool,
    /// Samples may wait for what can be asked between two ticks.
    is_wanting: bool,
    /// Something is to be looked at before the next tick.
    look_at: Option<MonoNs>,
    next_tick: MonoNs,
    slow_at: MonoNs,
    /// A tick has asked for reads; when they have come, or by then, samples are resolved.
    resolve_by: Option<MonoNs>,
    observer: Option<Observer>,
}

impl Engine {
    /// At the time `now`, before anything is sampled. `memory` is where rows and regions are written to; not used if the
    /// options ask for no tables.
    pub fn new(options: EngineOptions, memory: Option<Box<dyn TableMemory>>, now: MonoNs) -> Self {
        let code = CodeOptions::of(options.call_graph);
        let processes = Processes::new(code);
        let selection = Selection::new(options.who.clone(), options.inherit);
        let labelling = Labelling::new(options.labels_host.as_deref());
        let sizes = options.tables;
        let profile = new_profile(profile_meta(&options, SystemTime::UNIX_EPOCH, now, false), options.bucket_ns);
        let mut engine = Self {
            requests: Requests::default(),
            tracking: Tracking::new(
                processes,
                selection,
                labelling,
                (options.peek, options.read_runtime, options.verify_names),
                options.interpreter,
            ),
            files: Files::new(options.own),
            unwinding: sizes
                .zip(memory)
                .map(|(sizes, memory)| Unwinding::new(sizes, memory, options.peek, options.code_mask)),
            resolving: Resolving::new(profile),
            maintenance: Maintenance::default(),
            windows: None,
            counters: Counters::default(),
            stage: Stage::Running,
            duration: Duration::ZERO,
            is_hasty: false,
            is_wanting: false,
            look_at: None,
            next_tick: now,
            slow_at: MonoNs(0),
            resolve_by: None,
            observer: None,
            options,
        };
        engine.requests.now = now;
        engine.resolving.resolve_for(&engine.options);
        engine.resolving.account.verified = engine.options.verify_names.then(VerifiedNames::default);
        engine
    }

    /// Tells somebody from now on what it is at.
    pub fn observe(&mut self, observer: Observer) {
        self.observer = Some(observer);
    }

    fn at(&self, activity: Activity) {
        if let Some(observer) = &self.observer {
            observer(activity);
        }
    }

    /// Takes up what has happened.
    pub fn handle(&mut self, input: Input<'_>) {
        self.at(match &input {
            Input::Sample(_) => Activity::Sampling,
            Input::Names(_) => Activity::Names,
            Input::Counters(_) | Input::Order(_) | Input::Turn(_) | Input::Ticks(_) | Input::Remark(_) => {
                Activity::Upkeep
            }
            Input::Registrations(_) => Activity::Announcements,
            Input::Answer(answer) if answer.body.is_announcement() => Activity::Announcements,
            _ => Activity::Processes,
        });
        match input {
            Input::Sample(sample) => self.take_sample(&sample),
            Input::Task(event) => self.apply(&event),
            Input::Unconcerned(count) => self.tracking.processes.count_unconcerned(count),
            Input::Answer(answer) => self.take_answer(answer),
            Input::Names(names) => {
                for name in names {
                    self.resolving.names.take(name, &self.files);
                }
            }
            Input::Rows(answer) => {
                if let Some(unwinding) = &mut self.unwinding {
                    unwinding.take_rows(answer, &self.files, &mut self.requests);
                }
            }
            Input::Published { publication, at } => {
                if let Some(unwinding) = &mut self.unwinding {
                    unwinding.confirm(publication, at, &mut self.tracking.processes);
                }
            }
            Input::Refused(refused) => {
                if let Some(unwinding) = &mut self.unwinding {
                    unwinding.refused(refused, &mut self.tracking.processes, self.requests.now);
                }
            }
            Input::Remark(text) => self.requests.remark(text),
            Input::Ticks(ticks) => self.tracking.set_ticks(ticks.into()),
            Input::Registrations(told) => self.tracking.note_registrations(&told, self.requests.now),
            Input::Counters(counters) => self.take_counters(counters),
            Input::Order(order) => self.obey(order),
            Input::Turn(now) => self.turn(now),
        }
        for remark in self.requests.take_remarks() {
            self.resolving.account.remark(remark);
        }
    }

    /// The next thing to be done.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.requests.take()
    }

    /// When the next turn is due, even if nothing happens.
    pub fn wake_at(&self) -> MonoNs {
        [self.resolve_by, self.look_at].into_iter().flatten().fold(self.next_tick, Ord::min)
    }

    /// Whether an event is of any use: those about processes that are not known need not be handed in, but counted.
    pub fn is_concerned(&self, event: &TaskEvent) -> bool {
        self.tracking.processes.concern(event) || self.tracking.selection.is_concerned(event)
    }

    /// Whether what is known of the targets before the first sample is in the tables.
    pub fn is_prepared(&self) -> bool {
        !self.requests.is_waiting() && !self.unwinding.as_ref().is_some_and(Unwinding::is_building)
    }

    /// Whether the runtime of a process keeps its frames in lists that samples take along.
    pub fn keeps_lists(&self, pid: Pid) -> bool {
        let process = self.tracking.processes.live_of(pid);
        process.is_some_and(|process| {
            process.tables.capture(process.announcements.has_dump()).is_some_and(|capture| capture.list.is_some())
        })
    }

    /// What a process has announced up to now. Nothing of it is read any more.
    pub fn take_announced(&mut self, pid: Pid) -> Option<Announced> {
        let id = self.tracking.processes.live_of(pid).map(|process| process.id)?;
        let process = self.tracking.processes.get_mut(id)?;
        let files = process.announcements.files();
        let is_announced = process.announcements.any();
        process.finish_announcements();
        let map = std::mem::take(&mut process.code.map);
        Some(Announced { process: id, map, files, is_announced })
    }

    /// Until when everything is known that a process announces: its dumps are read up to then.
    pub fn knows_until(&self, pid: Pid) -> Option<MonoNs> {
        self.tracking.processes.live_of(pid)?.announcements.known_until()
    }

    /// What went wrong so far.
    pub fn remarks(&self) -> &[String] {
        &self.resolving.account.remarks
    }

    /// When sampling began.
    pub fn began_at(&self) -> MonoNs {
        self.resolving.profile.meta().start
    }

    /// How far the run is.
    pub fn progress(&self) -> Progress {
        Progress {
            samples: self.resolving.account.samples.delivered,
            functions: self.functions(),
            waiting: self.resolving.pending(),
            lost: self.counters.ring_full,
            is_ending: !matches!(self.stage, Stage::Running),
        }
    }

    /// The rows that a process' generated code has now at some addresses.
    #[cfg(test)]
    pub(crate) fn rows_of(&self, pid: u32, addresses: &[u64]) -> Vec<jitprof_common::row::Row> {
        let rows = self.tracking.processes.live_of(Pid(pid)).and_then(|process| process.code.rows());
        addresses.iter().filter_map(|address| rows?.row_at(*address, self.requests.now)).collect()
    }

    /// How many frames of a process are remembered.
    #[cfg(test)]
    pub(crate) fn frames_of(&self, pid: u32) -> usize {
        self.tracking.processes.live_of(Pid(pid)).map_or(0, |process| process.frames.len())
    }

    /// All that names processes, and how many: what is new is told in `Maintenance::remove_gone`, and counted here.
    #[cfg(test)]
    pub(crate) fn rooms(&self) -> Vec<(&'static str, usize)> {
        let mut rooms = self.tracking.rooms();
        rooms.extend(self.unwinding.iter().flat_map(Unwinding::rooms));
        rooms.extend(self.resolving.rooms());
        rooms.extend(self.files.rooms());
        rooms.extend(self.maintenance.rooms());
        rooms.retain(|(_, count)| *count > 0);
        rooms
    }

    /// Asserts that its counts fit together and are within their bounds.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn assert_sound(&self) {
        self.tracking.processes.assert_sound();
        self.resolving.assert_sound(&self.tracking.processes);
        self.files.assert_sound(self.tracking.processes.iter());
        if let Some(unwinding) = &self.unwinding {
            unwinding.assert_sound(&self.tracking.processes);
        }
    }

    fn functions(&self) -> usize {
        self.tracking.processes.iter().map(|process| process.code.map.living()).sum()
    }

    fn take_sample(&mut self, sample: &Sample<'_>) {
        let process = sample.snapshot.as_ref().and_then(|_| self.tracking.processes.sampled(sample.pid, sample.time));
        let holder = process.map_or(Holder::Process(sample.pid, 0), Process::holder);
        self.resolving.take(sample, holder);
    }

    fn apply(&mut self, event: &TaskEvent) {
        let (tracking, mut parts) = self.tracking_parts();
        tracking.apply(event, &mut parts);
    }

    fn tracking_parts(&mut self) -> (&mut Tracking, Parts<'_>) {
        let parts = Parts { files: &mut self.files, unwinding: self.unwinding.as_mut(), requests: &mut self.requests };
        (&mut self.tracking, parts)
    }

    fn take_answer(&mut self, answer: Answer) {
        let Some(purpose) = self.requests.answered(answer.request) else { return };
        let Answer { begun, done, body, .. } = answer;
        match purpose {
            Purpose::Process(pid) => self.take_process(pid, body, begun),
            Purpose::Program(id, since) | Purpose::Labels(id, since) => {
                let again = matches!(purpose, Purpose::Labels(..));
                let read = match body {
                    AnswerBody::Process(read) => read,
                    _ => Err(Unread::stalled(format!("process {} could not be read in time", id.pid))),
                };
                let (tracking, mut parts) = self.tracking_parts();
                tracking.take_program_read((id, since), read, again, &mut parts);
            }
            Purpose::Alive(id) => {
                if let AnswerBody::Process(read) = body {
                    let (tracking, mut parts) = self.tracking_parts();
                    tracking.take_alive(id, &read, &mut parts);
                }
            }
            Purpose::Running => {
                if let AnswerBody::Stalled = body {
                    self.maintenance.ask_running_again(self.requests.now);
                }
                if let AnswerBody::Running(pids) = body {
                    let running: HashSet<Pid> = pids.into_iter().collect();
                    let (tracking, mut parts) = self.tracking_parts();
                    tracking.take_running(&running, begun, &mut parts);
                }
            }
            Purpose::Link(id, link, place, file) => {
                let found = match body {
                    AnswerBody::Identified(found) => found,
                    _ => Err(Unread::stalled("its file system does not answer")),
                };
                let process = self.tracking.processes.get(id);
                self.files.take_identity((id, process), (&link, place, file), found, (begun, done), &mut self.requests);
            }
            Purpose::File(file) => {
                let (opened, requests) = (opened(body), &mut self.requests);
                if !self.files.open_elsewhere(file, &opened, self.tracking.processes.iter(), requests) {
                    self.files.take_opened(file, opened, requests);
                }
            }
            Purpose::Contents(file) => {
                let digest = if let AnswerBody::Contents(digest) = body { digest } else { None };
                self.files.take_contents(file, digest);
            }
            Purpose::OpenDump(id, file, path) => {
                let (tracking, mut parts) = self.tracking_parts();
                tracking.take_dump(id, (file, &path), opened(body), &mut parts);
            }
            Purpose::OpenPerfMap(id, file) => {
                let (tracking, mut parts) = self.tracking_parts();
                match body {
                    AnswerBody::OlderMap(older) => tracking.note_older_map(id, file, older, &mut parts),
                    body => tracking.take_perf_map(id, file, opened(body), &mut parts),
                }
            }
            Purpose::Dump(id, dump) => {
                let (tracking, mut parts) = self.tracking_parts();
                tracking.take_read(id, dump, (read(body), begun), &mut parts);
            }
            Purpose::PerfMap(id, file) => {
                let (tracking, mut parts) = self.tracking_parts();
                tracking.take_lines(id, file, (read(body), begun), &mut parts);
            }
            Purpose::Peek(id, dump) => {
                let sight = if let AnswerBody::Peeked(sight) = body { sight } else { crate::peek::Sight::Unreadable };
                let (tracking, mut parts) = self.tracking_parts();
                tracking.take_sight(id, dump, (sight, begun), &mut parts);
            }
            Purpose::Learn(id, met) => {
                let bytes = if let AnswerBody::Memory(bytes) = body { bytes } else { Vec::new() };
                self.take_code(id, &met, bytes);
            }
            Purpose::Check(id, starts) => {
                let digests = if let AnswerBody::Digests(digests) = body { digests } else { Vec::new() };
                if let Some(process) = self.tracking.processes.get_mut(id) {
                    Learned::take_check(process, &starts, &digests);
                }
            }
            Purpose::Runtime(id, since) => {
                let (tracking, mut parts) = self.tracking_parts();
                tracking.take_tables((id, since), body, (begun, done), &mut parts);
                if let Some(unwinding) = &mut self.unwinding {
                    unwinding.publish_code(&mut self.tracking.processes, id, &mut self.requests);
                }
            }
            Purpose::Frames(id, since) => {
                let at_once = !matches!(self.stage, Stage::Running);
                self.tracking.take_frames((id, since), (body, (begun, done)), at_once, &mut self.requests);
            }
            Purpose::CodeRows(id, pieces) => {
                let made = if let AnswerBody::CodeRows(made) = body { made } else { Vec::new() };
                self.tracking.take_code_rows(id, &pieces, made, &mut self.requests);
                if let Some(unwinding) = &mut self.unwinding {
                    unwinding.publish_code(&mut self.tracking.processes, id, &mut self.requests);
                }
            }
            Purpose::Version(question) => {
                let found = if let AnswerBody::Version(found) = body { found } else { None };
                let tracking = &mut self.tracking;
                tracking.labelling.take_version(&mut tracking.processes, question, found);
            }
            Purpose::Members => {
                let (groups, members) = match body {
                    AnswerBody::Members { groups, members } => (groups, members),
                    // Nobody is known to have come or gone; it is looked again.
                    _ => return self.tracking.selection.give_up_looking(),
                };
                let new = self.tracking.selection.take(groups, &members, begun, &mut self.requests);
                new.into_iter().for_each(|pid| self.tracking.attach(pid, &mut self.requests));
            }
        }
    }

    fn take_process(&mut self, pid: Pid, body: AnswerBody, begun: MonoNs) {
        let read = match body {
            AnswerBody::Process(read) => read,
            _ => Err(Unread::stalled(format!("process {pid} could not be read in time"))),
        };
        let (tracking, mut parts) = self.tracking_parts();
        let (known, arriving) = tracking.take_process(pid, read, begun, &mut parts);
        let Some(arriving) = arriving else { return };
        for sample in arriving.samples {
            let of_its_time = known.and_then(|_| self.tracking.processes.at(pid, sample.time)).map(|known| known.id);
            self.assign_to(of_its_time, pid, sample);
        }
    }

    fn take_code(&mut self, id: ProcessId, met: &[(Avma, Avma)], bytes: Vec<Option<ByteBuf>>) {
        let now = self.requests.now;
        let Some(process) = self.tracking.processes.get_mut(id) else { return };
        if Learned::take(process, met, bytes, now) {
            // The walk may go on now, to the next code of which nothing is known.
            self.finish_deferred_of(id, MonoNs(0));
            if let Some(process) = self.tracking.processes.get_mut(id).filter(|process| process.is_live()) {
                Learned::ask(process, &mut self.requests);
            }
            if let Some(unwinding) = &mut self.unwinding {
                unwinding.publish_code(&mut self.tracking.processes, id, &mut self.requests);
            }
        }
    }

    fn take_counters(&mut self, counters: Counters) {
        self.counters = counters;
        if matches!(self.stage, Stage::LastCounts) {
            self.close();
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Follow { pids, awaited } => {
                let (tracking, mut parts) = self.tracking_parts();
                pids.into_iter().for_each(|pid| tracking.follow(pid, awaited, &mut parts));
            }
            Order::Members { pids, groups } => {
                self.tracking.selection.begin(groups, &mut self.requests);
                let left_to_kernel = self.tracking.selection.is_left_to_kernel();
                for pid in pids {
                    if !left_to_kernel {
                        self.tracking.selection.follow(pid, &mut self.requests);
                    }
                    self.tracking.attach(pid, &mut self.requests);
                }
            }
            Order::Begin { at, wall_ns, cycles } => self.begin(at, wall_ns, cycles),
            Order::Frequency(frequency_hz) => self.set_frequency(frequency_hz),
            Order::Tight(tight) => {
                let (maintenance, tracking, resolving) =
                    (&mut self.maintenance, &mut self.tracking, &mut self.resolving);
                maintenance.set_tight(tight, tracking, resolving, &mut self.requests);
            }
            Order::Continuous { length, grace } => self.begin_continuous(length, grace),
            Order::Snapshot { token, from, to, patience } => {
                let wanted = Wanted { token, from, to, patience };
                let surplus = match &mut self.windows {
                    Some(windows) => windows.want(wanted),
                    None => Some(wanted),
                };
                surplus.into_iter().for_each(|wanted| self.answer_snapshot(wanted));
            }
            Order::CloseWindow => {
                let now = self.requests.now;
                self.resolving.resolve_before(&mut self.tracking.processes, &self.files, now);
                self.close_window(now);
            }
            Order::Finish { read_limit, names_limit, duration } => self.finish(read_limit, names_limit, duration),
            Order::Hasten => self.hasten(),
        }
    }

    fn begin(&mut self, at: MonoNs, wall_ns: u64, cycles: bool) {
        let wall = SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(wall_ns)).unwrap_or(SystemTime::UNIX_EPOCH);
        let meta = profile_meta(&self.options, wall, at, cycles);
        self.resolving.profile = new_profile(meta, self.options.bucket_ns);
        self.resolving.clear_profile();
        self.next_tick = at.after(TICK);
        if let Some(unwinding) = &mut self.unwinding {
            unwinding.begin(at);
        }
    }

    fn set_frequency(&mut self, frequency_hz: NonZeroU32) {
        if self.options.frequency_hz != frequency_hz {
            self.options.frequency_hz = frequency_hz;
            let since = Duration::from_nanos(self.requests.now.0.saturating_sub(self.began_at().0));
            let changes = &mut self.resolving.account.frequencies;
            if changes.len() < MAX_FREQUENCIES {
                changes.push((since.as_secs_f64(), frequency_hz.get()));
            }
            self.resolving.profile.set_frequency(self.requests.now, frequency_hz);
        }
    }

    fn begin_continuous(&mut self, length: Duration, grace: Duration) {
        self.windows = Some(Windows::new(length, grace, self.resolving.profile.meta().start));
        self.look_at = None;
        self.tracking.begin_continuous(CodeBounds::CONTINUOUS);
        self.resolving.begin_continuous();
        self.maintenance.begin_continuous(&mut self.requests);
    }

    fn turn(&mut self, now: MonoNs) {
        self.requests.now = now.max(self.requests.now);
        let calm_since = self.calm_since();
        self.tracking.set_calm(calm_since);
        self.at(Activity::Sampling);
        let arrived = self.resolving.take_arrived();
        self.is_wanting |= !arrived.is_empty();
        for (pid, sample) in arrived {
            let known = self.tracking.processes.sampled(pid, sample.time).map(|process| process.id);
            match known {
                Some(_) => self.assign_to(known, pid, sample),
                None => self.wait_for(pid, sample),
            }
        }
        if self.windows.is_none() {
            // A process that ends takes along what its last frames were.
            if self.is_wanting {
                self.is_wanting = self.tracking.ask_frames_early(&mut self.requests);
            }
            self.tracking.poll_hasty(&mut self.requests);
            self.look_at = self.tracking.next_look(self.requests.now);
        }
        self.at(Activity::Upkeep);
        if self.requests.now >= self.next_tick {
            self.tick();
        }
        self.at(Activity::Processes);
        self.publish();
        let has_read = self.resolve_by.is_some_and(|by| self.requests.now >= by || !self.requests.is_reading());
        if has_read {
            self.resolve_by = None;
            self.resolve();
        }
        self.at(Activity::Sampling);
        self.resolving.ask_names(&mut self.files, &mut self.requests);
        self.close_due_windows();
        self.go_on_finishing();
        self.at(Activity::Processes);
        if let Some(unwinding) = &mut self.unwinding {
            unwinding.commit(&mut self.requests);
        }
    }

    /// A sample of a process that is not known.
    fn wait_for(&mut self, pid: Pid, sample: Pending) {
        let now = self.requests.now;
        let asks = match self.tracking.processes.arrive(pid, now) {
            Some((arriving, asks)) => {
                arriving.samples.push(sample);
                asks
            }
            None => return self.assign_to(None, pid, sample),
        };
        if asks {
            self.tracking.ask_process(pid, &mut self.requests);
        }
    }

    /// Samples of processes that could not be read until the end, or until there is no room for them, are in the profile all the
    /// same. Returns what they are queued with.
    fn give_up_arriving(&mut self, is_meant: impl Fn(&Pending) -> bool) -> BTreeSet<ProcessId> {
        let mut ids = BTreeSet::new();
        for (pid, sample) in self.tracking.processes.take_arriving_samples(is_meant) {
            let id = self.stand_in(pid, sample.time);
            self.assign_to(Some(id), pid, sample);
            ids.insert(id);
        }
        ids
    }

    /// What stands for a process that is gone, for a sample of it.
    fn stand_in(&mut self, pid: Pid, time: MonoNs) -> ProcessId {
        self.resolving.account.samples.process_gone += 1;
        self.tracking.gone(pid, time, self.requests.now)
    }

    /// Queues a sample with its process; without one, with what stands for a process that is gone.
    fn assign_to(&mut self, known: Option<ProcessId>, pid: Pid, mut sample: Pending) {
        let now = self.requests.now;
        let id = known.unwrap_or_else(|| self.stand_in(pid, sample.time));
        let (tracking, mut parts) = self.tracking_parts();
        tracking.note_ran(id, sample.time, &mut parts);
        self.resolving.ask_frames(&mut self.tracking.processes, id, &mut sample);
        let Some(process) = self.tracking.processes.get_mut(id) else { return };
        let mut met = self.resolving.prefetch(process, &sample, &mut self.files, &mut self.requests);
        if let Some(unwinding) = self.unwinding.as_mut().filter(|unwinding| unwinding.is_wanting(process)) {
            for addr in self.resolving.ends(&sample) {
                if let Some(mapped) = process.space.lookup(addr, sample.time) {
                    unwinding.meet(&mut process.published, mapped, &self.files, &mut self.requests);
                }
            }
        }
        if sample.time >= process.runs_since() {
            process.frames.want_listed(&mut sample.asked, std::mem::take(&mut met.listed), sample.time);
        }
        if sample.snapshot.is_some() {
            process.announcements.want();
        }
        process.queue.samples.push_back(sample);
        self.tracking.note_met(id, &met, now);
    }

    /// Asks for what is new.
    fn tick(&mut self) {
        let now = self.requests.now;
        self.tracking.processes.leave_idle();
        self.maintenance.refresh(&mut self.tracking, &mut self.requests);
        Maintenance::keep_code(&mut self.tracking, &mut self.resolving, &self.files, now);
        Maintenance::bound_torn(&mut self.tracking);
        let slow = now.0.saturating_sub(self.slow_at.0) >= SLOW_NS;
        if slow {
            self.slow_at = now;
            self.slow_tick();
        }
        self.tracking.selection.look(&mut self.requests);
        self.at(Activity::Announcements);
        self.tracking.poll_announcements(&mut self.requests);
        if self.windows.as_mut().is_some_and(|windows| windows.takes_last_look(now)) {
            self.tracking.look_at_tables(now);
        }
        self.tracking.poll_tables(false, &mut self.requests);
        self.tracking.poll_frames((false, self.windows.is_some()), &mut self.requests);
        self.at(Activity::Upkeep);
        if let Some(unwinding) = &mut self.unwinding {
            unwinding.retry(&mut self.tracking.processes, &mut self.requests);
            unwinding.make_room(&mut self.tracking.processes, &self.files, &mut self.requests);
        }
        self.resolve_by = Some(now.after(READ_PATIENCE));
        self.next_tick = now.after(self.pause());
        if matches!(self.stage, Stage::Running) && self.tracking.have_all_ended() {
            self.requests.output(Output::TargetsEnded);
        }
    }

    /// About every second, however far apart ticks are.
    fn slow_tick(&mut self) {
        let limit = if self.windows.is_some() { maintenance::ALL_CODE_BYTES } else { usize::MAX };
        for link in self.files.take_stalled(self.requests.now) {
            // Whoever was forked since has the same one; who has asked may have ended.
            let again = Arc::new(link.again());
            let processes = self.tracking.processes.iter_mut().filter(|process| process.is_live());
            let holders = processes.filter_map(|process| process.space.renew_link(&link, &again).then_some(process.id));
            if let Some(one) = holders.min() {
                self.files.ask_again(one);
            }
        }
        let (tracking, mut parts) = self.tracking_parts();
        tracking.read_incomplete(parts.requests);
        tracking.look_for_perf_maps(&mut parts);
        tracking.copies.drop_earned(parts.requests.now);
        tracking.copy_code_to_unsampled(limit, &mut parts);
        tracking.check_awaited(&mut parts);
        tracking.labelling.check(&mut tracking.processes, parts.requests);
        for process in tracking.processes.iter_mut().filter(|process| process.is_live()) {
            Learned::check(process, parts.requests);
        }
        let parts =
            &mut Parts { files: &mut self.files, unwinding: self.unwinding.as_mut(), requests: &mut self.requests };
        self.maintenance.run(&mut self.tracking, &mut self.resolving, parts);
        if let Some(unwinding) = &mut self.unwinding {
            unwinding.sweep(&mut self.files, &mut self.requests);
        } else {
            self.files.sweep(|_| false, &mut self.requests);
        }
    }

    /// Since when samples can wait for what is asked seldom, in a continuous recording: there is room for them.
    fn calm_since(&self) -> Option<MonoNs> {
        let is_calm = matches!(self.stage, Stage::Running) && !self.resolving.is_filling();
        self.windows.as_ref().filter(|_| is_calm)?.calm_since(self.requests.now)
    }

    /// How long until the next tick. Rows of new code are published with a tick.
    fn pause(&self) -> Duration {
        let now = self.requests.now;
        let Some(windows) = &self.windows else { return TICK };
        let is_growing = || {
            self.tracking.processes.busy().any(|process| process.announcements.is_growing(now))
                || self.tracking.asks_frames_by(now.after(GROWING_TICK), now)
        };
        if windows.has_snapshots() || self.unwinding.as_ref().is_some_and(Unwinding::is_building) {
            TICK
        } else if self.resolving.has_deferred() || is_growing() {
            GROWING_TICK
        } else {
            QUIET_TICK
        }
    }

    /// Publishes mappings that have changed.
    fn publish(&mut self) {
        let reopened = self.files.take_reopened();
        self.resolving.retry(&reopened);
        let Some(unwinding) = &mut self.unwinding else {
            // Nobody waits for them: samples ask again.
            self.files.take_news();
            self.files.take_unanswered();
            return;
        };
        unwinding.retry_files(&reopened);
        unwinding.publish(&mut self.tracking.processes, &mut self.files, &mut self.requests);
    }

    /// What was asked for has come: new code is published, walks are finished, samples resolved.
    fn resolve(&mut self) {
        self.at(Activity::Announcements);
        if let Some(unwinding) = &mut self.unwinding {
            unwinding.publish_all_code(&mut self.tracking.processes, &mut self.requests);
        }
        self.at(Activity::Processes);
        self.publish();
        self.at(Activity::Sampling);
        self.finish_deferred(false);
        if self.options.peek {
            ask_learned(&mut self.tracking.processes, &mut self.files, &mut self.requests);
        }
        self.resolving.resolve_ready(&mut self.tracking.processes, &mut self.files, &mut self.requests, false);
        self.tracking.ask_frames(&mut self.requests);
        self.make_room_for_stacks();
        self.make_room_for_lists();
        self.make_room_for_samples();
    }

    /// Too many stacks cost the samples of who has the most of them their wait, and nobody else's.
    fn make_room_for_stacks(&mut self) {
        let surplus = self.resolving.with_too_many_stacks(&mut self.tracking.processes);
        if surplus.is_empty() {
            return;
        }
        self.resolve_surplus(surplus);
        self.resolving.drop_unused_stacks(&mut self.tracking.processes);
    }

    /// The same of too many frames of lists.
    fn make_room_for_lists(&mut self) {
        let surplus = self.resolving.with_too_many_listed(&self.tracking.processes);
        self.resolve_surplus(surplus);
    }

    /// The same of too many samples.
    fn make_room_for_samples(&mut self) {
        let surplus = self.resolving.with_too_many_samples(&self.tracking.processes);
        self.resolve_surplus(surplus);
    }

    fn resolve_surplus(&mut self, surplus: Surplus) {
        if surplus.is_empty() {
            return;
        }
        let Surplus { queued, arriving } = surplus;
        let stand_ins = self.give_up_arriving(|sample| sample.time < arriving);
        for (id, until) in queued.into_iter().chain(stand_ins.into_iter().map(|id| (id, arriving))) {
            self.finish_deferred_of(id, until);
            self.resolving.resolve_early(&mut self.tracking.processes, (id, until), &self.files);
        }
    }

    fn finish_deferred(&mut self, last: bool) {
        if !self.resolving.has_deferred() {
            return;
        }
        let waiting = self.tracking.processes.busy().filter(|process| !process.queue.is_empty());
        let waiting: Vec<ProcessId> = waiting.map(|process| process.id).collect();
        let last_until = MonoNs(if last { u64::MAX } else { 0 });
        waiting.into_iter().for_each(|id| self.finish_deferred_of(id, last_until));
    }

    fn finish_deferred_of(&mut self, id: ProcessId, last_until: MonoNs) {
        let Some(unwinding) = &mut self.unwinding else { return };
        let lookup = unwinding.lookup(&self.files);
        let (changed, turned) =
            self.resolving.finish_deferred(&mut self.tracking.processes, id, (lookup, last_until), &mut self.requests);
        if turned {
            unwinding.change(id);
        }
        if let Some(process) = self.tracking.processes.get(id) {
            let of = (&mut self.files, &mut self.requests);
            let met = self.resolving.prefetch_changed(process, changed, of.0, of.1);
            self.tracking.note_met(id, &met, self.requests.now);
        }
    }

    fn close_due_windows(&mut self) {
        let Some(windows) = self.windows.as_mut().filter(|_| matches!(self.stage, Stage::Running)) else { return };
        let (resolving, processes) = (&self.resolving, &self.tracking.processes);
        for due in windows.due(self.requests.now, |time| resolving.is_resolved_before(processes, time)) {
            match due {
                Due::Snapshot(wanted) => self.answer_snapshot(wanted),
                Due::Window => {
                    let Some(end) = self.windows.as_ref().map(Windows::end) else { return };
                    self.resolving.resolve_before(&mut self.tracking.processes, &self.files, end);
                    self.close_window(end);
                }
            }
        }
    }

    fn answer_snapshot(&mut self, wanted: Wanted) {
        self.resolving.resolve_before(&mut self.tracking.processes, &self.files, wanted.to);
        let profile = match &self.windows {
            Some(windows) => windows.copy(&self.resolving.profile, &wanted),
            None => self.resolving.profile.select(wanted.from, |row| row.time >= wanted.from && row.time < wanted.to),
        };
        self.requests.output(Output::Snapshot { token: wanted.token, profile: Box::new(profile) });
    }

    fn close_window(&mut self, end: MonoNs) {
        let Some(windows) = &mut self.windows else { return };
        let begin = windows.begin();
        let mut profile = self.resolving.profile.take_before(begin, end);
        profile.set_duration(Duration::from_nanos(end.0.saturating_sub(begin.0)));
        windows.close(end);
        let health = self.health();
        self.maintenance.after_window(&mut self.resolving, end);
        self.requests.output(Output::Window(Box::new(Window { profile, end, health })));
    }

    fn health(&self) -> Health {
        let (account, overflow) = (&self.resolving.account, self.resolving.profile.overflow());
        Health {
            taken: self.counters.taken,
            delivered: account.samples.delivered,
            lost: self.counters.ring_full.saturating_add(self.counters.malformed),
            kernel_ns: self.counters.cost_ns,
            costs: self.counters.costs,
            waiting: self.resolving.pending(),
            complete_stacks: account.stacks.complete,
            cut_stacks: account.stacks.cut.values().sum(),
            jit_frames: Naming { named: account.jit.named, unnamed: account.jit.unnamed.clone(), in_files: 0 },
            naming: report::naming(&self.tracking.processes, self.options.read_runtime),
            processes: self.tracking.processes.live_count(),
            functions: self.functions(),
            frequency_hz: self.options.frequency_hz.get(),
            overflowed: overflow.frames.saturating_add(overflow.stacks).saturating_add(overflow.rows),
        }
    }

    fn finish(&mut self, read_limit: Duration, names_limit: Duration, duration: Duration) {
        self.duration = duration;
        let now = self.requests.now;
        let (until, unwritten_until) = (now.after(read_limit), now.after(read_limit.min(UNWRITTEN_LIMIT)));
        self.stage = Stage::LastReads { until, unwritten_until, names_limit };
        self.tracking.poll_announcements_to_the_end(&mut self.requests);
        self.tracking.poll_tables(true, &mut self.requests);
        self.tracking.poll_frames((true, false), &mut self.requests);
        self.next_tick = self.requests.now.after(TICK);
    }

    /// Waits no longer at the end than it has to.
    fn hasten(&mut self) {
        let now = self.requests.now;
        let soon = now.after(HASTY_NAMES_LIMIT);
        match &mut self.stage {
            Stage::LastReads { until, unwritten_until, names_limit } => {
                (*until, *unwritten_until) = (now.min(*until), now.min(*unwritten_until));
                *names_limit = HASTY_NAMES_LIMIT.min(*names_limit);
            }
            Stage::LastNames { until } => *until = soon.min(*until),
            Stage::Running | Stage::LastCounts | Stage::Over => return,
        }
        self.is_hasty = true;
    }

    /// Goes from one stage of the end to the next when its time has come.
    fn go_on_finishing(&mut self) {
        let now = self.requests.now;
        match self.stage {
            Stage::Running | Stage::LastCounts | Stage::Over => {}
            Stage::LastReads { until, unwritten_until, names_limit } => {
                let is_coming = self.requests.is_reading() || self.requests.is_making();
                let waiting = is_coming || self.tracking.processes.arriving() > 0;
                if waiting && now < until {
                    return;
                }
                // They are looked for with each tick.
                if now < unwritten_until && self.tracking.processes.iter().any(Process::may_lack_names) {
                    return;
                }
                if now < until {
                    // What walks find is asked about.
                    self.finish_deferred(false);
                    self.resolving.want_listed(&mut self.tracking.processes);
                    self.tracking.poll_frames((true, false), &mut self.requests);
                    let is_wanting = self.tracking.processes.iter().any(|process| process.frames.is_wanting());
                    if is_wanting || self.requests.is_reading() || self.requests.is_making() {
                        return;
                    }
                }
                if let Some(why) = self.what_has_not_come() {
                    self.resolving.account.remark(why.to_owned());
                }
                self.give_up_arriving(|_| true);
                self.tracking.finish_announcements();
                self.finish_deferred(true);
                self.resolving.want_all(&self.tracking.processes, &mut self.files, &mut self.requests);
                self.resolving.ask_names(&mut self.files, &mut self.requests);
                self.stage = Stage::LastNames { until: now.after(names_limit) };
                self.go_on_finishing();
            }
            Stage::LastNames { until } => {
                // A link that was set meanwhile leads to further names.
                self.resolving.want_all(&self.tracking.processes, &mut self.files, &mut self.requests);
                self.resolving.ask_names(&mut self.files, &mut self.requests);
                let unanswered = self.resolving.names.waiting();
                if (unanswered > 0 || self.requests.is_identifying()) && now < until {
                    return;
                }
                if unanswered > 0 {
                    self.resolving.account.remark(format!("{unanswered} addresses were not named in time"));
                }
                self.resolving.resolve_ready(&mut self.tracking.processes, &mut self.files, &mut self.requests, true);
                self.stage = Stage::LastCounts;
                self.requests.output(Output::WantCounters);
            }
        }
    }

    /// What the end does not wait for any more.
    fn what_has_not_come(&self) -> Option<&'static str> {
        match (self.requests.is_reading(), self.is_hasty) {
            (true, true) => Some("interrupted while what was announced was read; the newest functions have no names"),
            (true, false) => Some("a dump grows faster than it can be read; its newest functions have no names"),
            (false, _) => {
                self.requests.is_making().then_some("rows of generated code were not made in time; stacks end in it")
            }
        }
    }

    fn close(&mut self) {
        self.stage = Stage::Over;
        let end = self.requests.now;
        if let Some(windows) = &mut self.windows {
            for wanted in windows.take_all() {
                self.answer_snapshot(wanted);
            }
            self.close_window(end);
        }
        self.resolving.profile.set_duration(self.duration);
        let closing = report::Closing {
            processes: &self.tracking.processes,
            unwinding: self.unwinding.as_ref(),
            files: &self.files,
            counters: &self.counters,
            reads_runtimes: self.options.read_runtime,
            walks_lists: self.options.walks_lists,
            frequency_hz: self.options.frequency_hz.get(),
            duration: self.duration,
            learned: self.maintenance.learned(),
        };
        let account = report::close(&mut self.resolving, &closing);
        let meta = self.resolving.profile.meta().clone();
        let profile = std::mem::replace(&mut self.resolving.profile, new_profile(meta, self.options.bucket_ns));
        self.requests.output(Output::Finished(Box::new(Recorded { profile, account })));
    }
}

fn opened(body: AnswerBody) -> Result<Opened, Unread> {
    match body {
        AnswerBody::Opened(opened) => opened,
        _ => Err(Unread::stalled("its file system does not answer")),
    }
}

fn read(body: AnswerBody) -> Result<FileBytes, Unread> {
    match body {
        AnswerBody::Read(read) => read,
        _ => Err(Unread::stalled("its file system does not answer")),
    }
}

/// An empty profile of processes that do not trust each other.
fn new_profile(meta: ProfileMeta, bucket_ns: u64) -> Profile {
    Profile::with_limits(meta, bucket_ns, Limits::in_shares())
}

fn profile_meta(options: &EngineOptions, start_time: SystemTime, start: MonoNs, cycles: bool) -> ProfileMeta {
    ProfileMeta {
        title: options.title.clone(),
        start_time,
        start,
        duration: Duration::ZERO,
        frequency_hz: options.frequency_hz,
        event: if cycles { SampledEvent::Cycles } else { SampledEvent::CpuClock },
    }
}
