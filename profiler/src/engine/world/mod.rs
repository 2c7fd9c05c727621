//! An engine on a [machine](machine) that is made up: its requests are answered from there, as a driver does from a real
//! one, at once, later, with a failure or not in time. For tests and fuzzing; in no program.

pub mod chaos;
pub mod machine;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jitprof_common::limits::COMM_LEN;
use jitprof_common::row::Row;
use jitprof_common::sample::FramePc;
use jitprof_common::table::{PAGE_BITS, PageKey, Region, Span};
use jitprof_common::taken::FrameSpec;
use jitprof_common::units::{MonoNs, Pid, Tid};
use jitprof_common::unwind::PcKind;

use crate::engine::border::{
    Answer, AnswerBody, Counters, Order, Own, Recorded, Refused, Request, RequestId, RowsAnswer, Sample, StackSnapshot,
    TableUpdate, Unread, WhyUnread, Window,
};
use crate::engine::tables::{TableMemory, TableSizes, search_rows};
use crate::engine::{CallGraph, Engine, EngineOptions, Input, InterpreterFrames, Output, Who};
use crate::process::Mapping;
use crate::process::event::{FileKey, MmapEvent, TaskChange, TaskEvent};
use crate::process::open::FileId;
use crate::profile::Profile;
use crate::symbol::{NameAnswer, SymbolKey};
use machine::Machine;

/// When every story begins.
pub const BEGIN: MonoNs = MonoNs(1_000_000_000_000);
/// A millisecond.
pub const MS: u64 = 1_000_000;

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is answered with the next turn.
    Answer,
    /// It is answered when [`World::release`] is called, with what there is then.
    Hold,
    /// It is looked at now and answered when [`World::release`] is called.
    HoldAnswer,
    /// It fails, if it can.
    Fail(WhyUnread),
    /// It takes too long.
    Stall,
}

/// The memory of the kernel's tables.
#[derive(Debug, Default)]
struct Elements {
    rows: Vec<u64>,
    regions: Vec<Region>,
}

/// The engine's way to it.
struct Shared(Arc<Mutex<Elements>>);

impl TableMemory for Shared {
    fn write_rows(&mut self, first: u32, rows: &[u64]) {
        let mut elements = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        write(&mut elements.rows, first, rows, 0);
    }

    fn write_regions(&mut self, first: u32, regions: &[Region]) {
        let mut elements = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        write(&mut elements.regions, first, regions, Region { start: 0, end: 0, bias: 0, object: 0, flags: 0 });
    }

    fn find_row(&self, _file: FileId, address: u64, span: Span) -> Option<u64> {
        let elements = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        search_rows(span, address, |at| elements.rows.get(at as usize).copied().unwrap_or(0))
    }
}

fn write<T: Copy>(all: &mut Vec<T>, first: u32, new: &[T], blank: T) {
    let first = first as usize;
    if all.len() < first + new.len() {
        all.resize(first + new.len(), blank);
    }
    all[first..first + new.len()].copy_from_slice(new);
}

/// What the BPF program knows.
#[derive(Default)]
pub struct Kernel {
    elements: Arc<Mutex<Elements>>,
    /// The rows of each page.
    pub pages: HashMap<PageKey, Span>,
    /// The mappings of each process.
    pub lists: HashMap<Pid, Span>,
    /// What is taken along with frames, and of which process what.
    pub specs: HashMap<u32, FrameSpec>,
    pub takes: HashMap<Pid, u32>,
    /// Whom it follows.
    pub followed: BTreeSet<Pid>,
    /// Table updates to be refused from now on.
    pub refuses: usize,
}

impl Kernel {
    /// The mapping that a walk of a process meets at an address.
    pub fn region(&self, pid: u32, address: u64) -> Option<Region> {
        let span = self.lists.get(&Pid(pid))?;
        let elements = self.elements.lock().unwrap_or_else(PoisonError::into_inner);
        let list = elements.regions.get(span.first as usize..(span.first + span.count) as usize)?;
        list.iter().find(|region| (region.start..region.end).contains(&address)).copied()
    }

    /// The row that a walk of a process meets at an address, if there is one.
    pub fn row(&self, pid: u32, address: u64) -> Option<Row> {
        let region = self.region(pid, address).filter(|region| region.object != 0)?;
        let at = address.wrapping_sub(region.bias);
        let key = PageKey { object: region.object, page: u32::try_from(at >> PAGE_BITS).ok()? };
        let span = *self.pages.get(&key)?;
        let elements = self.elements.lock().unwrap_or_else(PoisonError::into_inner);
        search_rows(span, at, |at| elements.rows.get(at as usize).copied().unwrap_or(0)).map(Row)
    }

    fn update(&mut self, update: TableUpdate) -> Result<(), Refused> {
        let never = matches!(update, TableUpdate::Epoch(..) | TableUpdate::Spec(..));
        let refuses = self.refuses > 0 && !never;
        self.refuses -= usize::from(refuses);
        match update {
            TableUpdate::Page(key, span) => {
                self.pages.remove(&key);
                if refuses {
                    return Err(Refused::Page(key.into()));
                }
                self.pages.extend(span.map(|span| (key, span)));
            }
            TableUpdate::Regions(pid, span) => {
                self.lists.remove(&pid);
                if refuses {
                    return Err(Refused::Regions(pid));
                }
                self.lists.extend(span.map(|span| (pid, span)));
            }
            TableUpdate::Epoch(..) => {}
            TableUpdate::Spec(index, spec) => drop(self.specs.insert(index, *spec)),
            TableUpdate::Take(pid, index) => {
                self.takes.remove(&pid);
                if refuses {
                    return Err(Refused::Take(pid));
                }
                self.takes.extend(index.map(|index| (pid, index)));
            }
        }
        Ok(())
    }
}

/// Decides what becomes of requests.
pub type Decide = Box<dyn FnMut(&Request) -> Fate>;

/// The machine with the engine in it.
pub struct World {
    /// Under test.
    pub engine: Engine,
    /// What it asks about.
    pub machine: Machine,
    /// What it publishes.
    pub kernel: Kernel,
    /// The time.
    pub now: MonoNs,
    /// What becomes of requests.
    pub decide: Decide,
    /// Names are answered when this is unset.
    pub holds_names: bool,
    /// Rows are built when this is unset.
    pub holds_rows: bool,
    /// What is published is said to be in force when this is unset.
    pub holds_publications: bool,
    /// Publications of which that was not said.
    pub unconfirmed: Vec<u64>,
    /// Requests of each turn, in their order.
    pub asked: Vec<Request>,
    /// Windows that were handed out.
    pub windows: Vec<Window>,
    /// Copies that were handed out.
    pub snapshots: Vec<(u64, Profile)>,
    /// What the run left behind.
    pub recorded: Option<Recorded>,
    /// All targets have ended.
    pub have_targets_ended: bool,
    /// Outputs that are only noted, by their names.
    pub noted: BTreeMap<&'static str, u64>,
    /// Samples given in.
    pub given: u64,
    /// Samples lost, as the sampler counts them.
    pub lost: u64,
    answers: Vec<Answer>,
    held: Vec<(RequestId, Request, MonoNs, Option<AnswerBody>)>,
    unnamed: Vec<SymbolKey>,
    unbuilt: Vec<FileId>,
}

/// Options of a run of a process and all that is known about it.
pub fn options() -> EngineOptions {
    EngineOptions {
        who: Who::Chosen,
        inherit: true,
        frequency_hz: NonZeroU32::MIN.saturating_add(98),
        call_graph: CallGraph::Auto,
        tables: Some(TableSizes { rows: 4096, regions: 4096 }),
        peek: true,
        read_runtime: true,
        interpreter: InterpreterFrames::default(),
        verify_names: false,
        labels_host: Some("host".to_owned()),
        title: "story".to_owned(),
        walks_lists: true,
        bucket_ns: MS,
        own: None,
        code_mask: u64::MAX,
    }
}

impl World {
    /// At the beginning, with sampling begun.
    pub fn new(options: EngineOptions) -> Self {
        let kernel = Kernel::default();
        let memory: Box<dyn TableMemory> = Box::new(Shared(Arc::clone(&kernel.elements)));
        let mut world = Self {
            engine: Engine::new(options, Some(memory), BEGIN),
            machine: Machine::default(),
            kernel,
            now: BEGIN,
            decide: Box::new(|_| Fate::Answer),
            holds_names: false,
            holds_rows: false,
            holds_publications: false,
            unconfirmed: Vec::new(),
            asked: Vec::new(),
            windows: Vec::new(),
            snapshots: Vec::new(),
            recorded: None,
            have_targets_ended: false,
            noted: BTreeMap::new(),
            given: 0,
            lost: 0,
            answers: Vec::new(),
            held: Vec::new(),
            unnamed: Vec::new(),
            unbuilt: Vec::new(),
        };
        world.order(Order::Begin { at: BEGIN, wall_ns: 1_700_000_000_000_000_000, cycles: false });
        world
    }

    /// Gives an order.
    pub fn order(&mut self, order: Order) {
        self.feed(Input::Order(order));
    }

    /// Follows processes.
    pub fn follow(&mut self, pids: &[u32]) {
        self.order(Order::Follow { pids: pids.iter().map(|pid| Pid(*pid)).collect(), awaited: true });
        self.settle();
    }

    /// The recording is continuous from here on.
    pub fn continuous(&mut self, length_ms: u64, grace_ms: u64) {
        self.order(Order::Continuous {
            length: Duration::from_millis(length_ms),
            grace: Duration::from_millis(grace_ms),
        });
    }

    /// A task does something now. Like a driver, hands in only what is of any use.
    pub fn task(&mut self, change: TaskChange) {
        self.task_at(self.now, change);
    }

    /// The same at another time.
    pub fn task_at(&mut self, time: MonoNs, change: TaskChange) {
        let event = TaskEvent { time, change };
        match self.engine.is_concerned(&event) {
            true => self.feed(Input::Task(event)),
            false => self.feed(Input::Unconcerned(1)),
        }
    }

    /// A process is sampled now: the first address is that of an instruction, the others are where its callers return to.
    pub fn sample(&mut self, pid: u32, stack: &[u64]) {
        self.sample_at(self.now, pid, stack);
    }

    /// The same at another time.
    pub fn sample_at(&mut self, time: MonoNs, pid: u32, stack: &[u64]) {
        self.give(&raw_sample(time, pid, stack, None));
    }

    /// The same with a stack snapshot, at the innermost frame, from the stack pointer on.
    pub fn sample_with_stack(&mut self, pid: u32, stack: &[u64], words: &[u64]) {
        const SP: u64 = 0x7f00_0000;
        let snapshot = StackSnapshot {
            registers: [stack.first().copied().unwrap_or(0), SP, 0, 0],
            kind: jitprof_common::snapshot::SnapshotHeader::code_of(PcKind::Instruction),
            index: 0,
            base: SP,
            bytes: Cow::Owned(words.iter().flat_map(|word| word.to_ne_bytes()).collect()),
        };
        self.give(&raw_sample(self.now, pid, stack, Some(snapshot)));
    }

    /// A sample as it is.
    pub fn give(&mut self, sample: &Sample<'_>) {
        self.given += 1;
        self.feed(Input::Sample(sample.clone()));
    }

    /// Hands an input in, and does what comes out.
    pub fn feed(&mut self, input: Input<'_>) {
        self.engine.handle(input);
        self.do_what_comes_out();
    }

    /// It is this late; what was asked is answered.
    pub fn turn(&mut self, now: MonoNs) {
        self.now = self.now.max(now);
        for answer in std::mem::take(&mut self.answers) {
            self.feed(Input::Answer(answer));
        }
        if !self.holds_names && !self.unnamed.is_empty() {
            let keys = std::mem::take(&mut self.unnamed);
            let names = keys.into_iter().map(|key| NameAnswer { key, name: self.machine.name(key) });
            let names = names.collect();
            self.feed(Input::Names(names));
        }
        if !self.holds_rows {
            for file in std::mem::take(&mut self.unbuilt) {
                let rows = self.machine.rows(file);
                self.feed(Input::Rows(RowsAnswer { file, took: Duration::from_millis(1), rows }));
            }
        }
        self.feed(Input::Turn(now));
    }

    /// Lets time pass: turns whenever one is due or something has come.
    pub fn run_for(&mut self, ms: u64) {
        let end = MonoNs(self.now.0 + ms * MS);
        while self.now < end {
            let next = if self.has_news() { MonoNs(0) } else { self.engine.wake_at() };
            self.turn(next.max(MonoNs(self.now.0 + MS)).min(end));
        }
    }

    /// Lets as much time pass as answers take.
    pub fn settle(&mut self) {
        self.turn(MonoNs(self.now.0 + MS));
        while self.has_news() {
            self.turn(MonoNs(self.now.0 + MS));
        }
    }

    fn has_news(&self) -> bool {
        let names = !self.holds_names && !self.unnamed.is_empty();
        let rows = !self.holds_rows && !self.unbuilt.is_empty();
        !self.answers.is_empty() || names || rows
    }

    /// Answers what was held back, and holds nothing back any more.
    pub fn release(&mut self) {
        self.decide = Box::new(|_| Fate::Answer);
        for at in (0..self.held.len()).rev() {
            self.release_one(at);
        }
        self.answers.reverse();
    }

    /// How many requests are held back.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Answers one of them.
    pub fn release_one(&mut self, at: usize) {
        let (request, what, begun, body) = self.held.remove(at);
        let body = body.unwrap_or_else(|| self.machine.answer(&what));
        self.answers.push(Answer { request, begun, done: self.now, body });
    }

    /// Hands in the counts of the sampler.
    pub fn counters(&self) -> Counters {
        let own = Some(Own::default());
        Counters { taken: self.given + self.lost, ring_full: self.lost, own, ..Counters::default() }
    }

    /// Ends the run, which must be whole. Returns what it left behind.
    pub fn finish(&mut self) -> &Recorded {
        let limit = Duration::from_secs(10);
        let duration = Duration::from_nanos(self.now.0 - BEGIN.0);
        self.order(Order::Finish { read_limit: limit, names_limit: limit, duration });
        self.settle();
        for _ in 0..1000 {
            if self.recorded.is_some() {
                break;
            }
            self.run_for(100);
        }
        self.assert_whole();
        match &self.recorded {
            Some(recorded) => recorded,
            None => panic!("the run does not end"),
        }
    }

    /// Invariant 5: taken = delivered + lost, and every delivered sample is in the profile.
    pub fn assert_whole(&self) {
        let Some(Recorded { profile, account }) = &self.recorded else { panic!("the run has not ended") };
        let samples = account.samples;
        assert_eq!(samples.taken, samples.delivered + samples.lost_ring_full + samples.lost_malformed);
        assert_eq!(samples.delivered, self.given);
        let windows: u64 = self.windows.iter().map(|window| window.profile.total()).sum();
        assert_eq!(windows + profile.total(), self.given, "every sample is in the profile, once");
        for one in self.windows.iter().map(|window| &window.profile).chain([profile]) {
            let mut rows = 0;
            one.visit_rows(|row| rows += row.count);
            assert_eq!(rows, one.total());
        }
    }

    fn do_what_comes_out(&mut self) {
        while let Some(output) = self.engine.poll_output() {
            self.obey(output);
        }
    }

    fn obey(&mut self, output: Output) {
        let noted = match output {
            Output::Request(id, request) => return self.take_request(id, request),
            Output::Close(file) => {
                self.machine.open.remove(&file);
                "close"
            }
            Output::DropRuntime(process) => {
                if let Some(made) = self.machine.processes.get_mut(&process.pid.0) {
                    made.runtime.drop_reading();
                }
                "drop runtime"
            }
            Output::Name(keys) => return self.unnamed.extend(keys),
            Output::UnloadSymbols => {
                let names = std::mem::take(&mut self.unnamed);
                let not_now = |key| NameAnswer { key, name: crate::symbol::Name::NotNow };
                self.feed(Input::Names(names.into_iter().map(not_now).collect()));
                "unload symbols"
            }
            Output::SymbolBudget(_) => "symbol budget",
            Output::BuildRows { file, .. } => return self.unbuilt.push(file),
            Output::HurryRows(_) => "hurry rows",
            Output::BuildInBackground => "build in background",
            Output::Table(update) => {
                if let Err(refused) = self.kernel.update(update) {
                    self.feed(Input::Refused(refused));
                }
                "table"
            }
            Output::Publish(publication) if self.holds_publications => return self.unconfirmed.push(publication),
            Output::Publish(publication) => {
                let at = self.now;
                return self.feed(Input::Published { publication, at });
            }
            Output::Follow(pid) => {
                self.kernel.followed.insert(pid);
                "follow"
            }
            Output::Unfollow(pid) => {
                self.kernel.followed.remove(&pid);
                "unfollow"
            }
            Output::Groups(_) => "groups",
            Output::WantCounters => {
                let counters = self.counters();
                return self.feed(Input::Counters(counters));
            }
            Output::GiveMemoryBack => "give memory back",
            Output::Window(window) => return self.windows.push(*window),
            Output::Snapshot { token, profile } => return self.snapshots.push((token, *profile)),
            Output::TargetsEnded => {
                self.have_targets_ended = true;
                "targets ended"
            }
            Output::Finished(recorded) => {
                assert!(self.recorded.is_none(), "a run ends once");
                self.recorded = Some(*recorded);
                return;
            }
        };
        *self.noted.entry(noted).or_default() += 1;
    }

    fn take_request(&mut self, request: RequestId, what: Request) {
        let body = match (self.decide)(&what) {
            Fate::Answer => Some(self.machine.answer(&what)),
            Fate::Fail(why) => Some(failure(&what, why)),
            Fate::Stall => Some(AnswerBody::Stalled),
            Fate::Hold => {
                self.held.push((request, what.clone(), self.now, None));
                None
            }
            Fate::HoldAnswer => {
                let body = self.machine.answer(&what);
                self.held.push((request, what.clone(), self.now, Some(body)));
                None
            }
        };
        self.asked.push(what);
        self.answers.extend(body.map(|body| Answer { request, begun: self.now, done: self.now, body }));
    }

    /// A profile's stacks by time and process, root first, times in ms since the beginning.
    pub fn told(profile: &Profile) -> BTreeMap<(u64, u32), Vec<String>> {
        let mut told: BTreeMap<(u64, u32), Vec<String>> = BTreeMap::new();
        profile.visit_rows(|row| {
            let mut frames = Vec::new();
            profile.frames_of(row.stack, &mut frames);
            let names: Vec<&str> = frames.iter().map(|frame| profile.frame(*frame).name).collect();
            let at = row.time.0.saturating_sub(BEGIN.0) / MS;
            let pid = profile.task_of(row.task).pid.0;
            for _ in 0..row.count {
                told.entry((at, pid)).or_default().push(names.join(";"));
            }
        });
        told
    }
}

/// The event of a mapping, as the kernel reports it. Without a generation its inode was never used before.
pub fn mmap_event(pid: u32, mapping: &Mapping) -> MmapEvent {
    MmapEvent {
        pid: Pid(pid),
        tid: Tid(pid),
        start: mapping.start,
        len: mapping.len(),
        file_offset: mapping.file_offset,
        file: FileKey::Inode {
            device: mapping.device,
            inode: mapping.inode,
            generation: mapping.generation.unwrap_or(1),
        },
        prot: mapping.prot,
        path: if mapping.path.is_empty() { Arc::from("//anon") } else { Arc::clone(&mapping.path) },
    }
}

/// A sample with these frames.
pub fn raw_sample<'a>(time: MonoNs, pid: u32, stack: &[u64], snapshot: Option<StackSnapshot<'a>>) -> Sample<'a> {
    let innermost = |(index, pc): (usize, &u64)| match index {
        0 => FramePc::new(*pc, PcKind::Instruction).0,
        _ => *pc,
    };
    Sample {
        time,
        pid: Pid(pid),
        tid: Tid(pid),
        comm: [0; COMM_LEN],
        stop: 0,
        kernel: Cow::Borrowed(&[]),
        user: Cow::Owned(stack.iter().enumerate().map(innermost).collect()),
        snapshot,
        taken: None,
        listed: None,
    }
}

/// How a request fails.
pub fn failure(what: &Request, why: WhyUnread) -> AnswerBody {
    let unread = Unread { why, text: "it failed".to_owned() };
    match what {
        Request::Process { .. } => AnswerBody::Process(Err(unread)),
        Request::Identify { .. } => AnswerBody::Identified(Err(unread)),
        Request::Open { .. } | Request::OpenPerfMap { .. } => AnswerBody::Opened(Err(unread)),
        Request::Read { .. } => AnswerBody::Read(Err(unread)),
        Request::Contents { .. } => AnswerBody::Contents(None),
        Request::Peek(_) => AnswerBody::Peeked(crate::peek::Sight::Unreadable),
        Request::Memory { pieces, .. } => AnswerBody::Memory(vec![None; pieces.len()]),
        Request::Digests { pieces, .. } => AnswerBody::Digests(vec![None; pieces.len()]),
        Request::ReadRuntime { .. } => AnswerBody::Runtime(None),
        Request::DescribeFrames { .. } => AnswerBody::Frames(None),
        Request::Version { .. } => AnswerBody::Version(None),
        Request::Running | Request::CodeRows(_) | Request::Members { .. } => AnswerBody::Stalled,
    }
}
