//! What goes into the engine and what comes out of it: two enums are the whole border.
//!
//! ```text
//! driver ── Input ──▶ engine ── Output ──▶ driver
//!           samples, task events,          table updates, whom to follow,
//!           answers, names, rows, time     requests, windows, the end
//! ```
//!
//! Everything that goes in can be written down and read again: a capture is the sequence of inputs, and the engine that
//! gets the same sequence gives the same outputs.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use jitprof_common::limits::COMM_LEN;
use jitprof_common::listed::{ListEnd, Record, STATE_WORDS};
use jitprof_common::page::page_elements;
use jitprof_common::table::{PageKey, Span};
use jitprof_common::taken::{FrameSpec, MAX_WORDS};
use jitprof_common::units::{Avma, MonoNs, Pid, Tid};
use jitprof_common::unwind::Frame as UnwindFrame;
use jitprof_jitdump::{FileBytes, NextRead, TscConversion};
use jitprof_unwind::RowTable;
use jitprof_unwind::elf::{Build, Segment};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::account::{Account, OwnCost};
use crate::advice::VersionFile;
use crate::cost::Costs;
use crate::engine::window::Health;
use crate::process::event::TaskEvent;
use crate::process::hierarchy::{Group, GroupQuery};
use crate::process::labels::Cgroup;
pub use crate::process::open::MapPlace;
use crate::process::open::{FileId, FileIdentity};
use crate::process::procfs::Status;
use crate::process::{Mapping, ProcessId};
use crate::profile::Profile;
use crate::runtime::{DescribedFrames, FrameAsk, RuntimeRead};
use crate::symbol::{Digest, NameAnswer, SymbolBudget, SymbolKey, SymbolStats};

/// Something that has happened, or has been found out.
#[derive(Debug, Serialize, Deserialize)]
pub enum Input<'a> {
    /// A sample. It is looked at with the next turn, behind the task events that came with it.
    #[serde(borrow)]
    Sample(Sample<'a>),
    /// A task did something.
    Task(TaskEvent),
    /// Task events of processes that the engine does not know and need not know.
    Unconcerned(u64),
    /// What a request asked for.
    Answer(Answer),
    /// Names that were asked for.
    Names(Vec<NameAnswer>),
    /// Unwind rows of a file.
    Rows(RowsAnswer),
    /// All table updates up to this publication are in force since this time.
    Published {
        /// The number of the publication.
        publication: u64,
        /// A time behind the last of its updates.
        at: MonoNs,
    },
    /// The kernel has not taken a table update.
    Refused(Refused),
    /// Something went wrong that does not end the run.
    Remark(String),
    /// The time-stamp counter on CLOCK_MONOTONIC, whenever more is known of it.
    Ticks(Ticks),
    /// Calls by which processes have registered code with a debugger.
    Registrations(Vec<Registration>),
    /// Counts of the sampler.
    Counters(Counters),
    /// An order.
    Order(Order),
    /// It is this late, and everything that happened before has been handed in.
    Turn(MonoNs),
}

/// One sample.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample<'a> {
    /// When it was taken.
    pub time: MonoNs,
    /// Of which process.
    pub pid: Pid,
    /// Of which thread.
    pub tid: Tid,
    /// The thread's name, padded with zeros.
    pub comm: [u8; COMM_LEN],
    /// Why the user stack ends, as [`StopReason::from_code`](jitprof_common::stop::StopReason::from_code) reads it.
    pub stop: u8,
    /// Kernel addresses, innermost first.
    #[serde(borrow)]
    pub kernel: Cow<'a, [u64]>,
    /// User frames, innermost first, each as [`FramePc`](jitprof_common::sample::FramePc) encodes it.
    #[serde(borrow)]
    pub user: Cow<'a, [u64]>,
    /// What a walk by rows can go on from, if it met code whose rows had not come.
    #[serde(borrow)]
    pub snapshot: Option<StackSnapshot<'a>>,
    /// Words of its frames, if some were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken: Option<Box<TakenWords>>,
    /// Frames that its runtime keeps in a list, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listed: Option<Box<FrameList>>,
}

/// A call by which a process has registered code with a debugger, or that some calls are not told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// When it was made, or that was found out.
    pub time: MonoNs,
    /// Of which process.
    pub pid: Pid,
    /// Calls of the process so far that are not told.
    pub missed: u64,
    /// What it says.
    pub call: Option<RegistrationCall>,
}

/// What such a call says: as the process has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegistrationCall {
    /// What is done, as [`registrations`](jitprof_common::registrations) has it.
    pub action: u32,
    /// To which entry.
    pub entry: Avma,
    /// Where its object file is.
    pub image: Avma,
    /// Bytes of that.
    pub size: u64,
}

/// Frames that a runtime keeps in a list for each thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameList {
    /// What was kept of each, as the description says that was in force; innermost first.
    pub records: Vec<Record>,
    /// The list's end was met.
    pub is_whole: bool,
    /// It has more elements than are kept.
    #[serde(default)]
    pub is_cut: bool,
    /// The runtime's state before, as the description says; 0 where it could not be read.
    #[serde(default)]
    pub state: [u64; STATE_WORDS],
}

impl FrameList {
    /// What was kept of a list, and why it was walked no further.
    pub fn new(records: Vec<Record>, end: ListEnd, state: [u64; STATE_WORDS]) -> Self {
        Self { records, is_whole: end == ListEnd::Last, is_cut: end == ListEnd::TooLong, state }
    }
}

/// Words that a sample has brought along with its frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenWords {
    /// rdi, r9 and r12 of the innermost frame, if it was interrupted in user mode.
    pub registers: Option<[u64; 3]>,
    /// By ascending index.
    pub frames: Vec<FrameWords>,
}

/// Words of one frame, as the description says that was in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameWords {
    /// Which user frame, from the innermost.
    pub index: u16,
    /// Reads that succeeded.
    pub reads: u8,
    /// What was read.
    pub words: [u64; MAX_WORDS],
}

/// A frame in code without rows, and the stack from it on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StackSnapshot<'a> {
    /// Program counter, stack pointer, frame pointer and link register at the frame.
    pub registers: [u64; 4],
    /// What the program counter is, as `SnapshotHeader` encodes it.
    pub kind: u8,
    /// Which user frame it is, from the innermost.
    pub index: u16,
    /// Address of the first byte.
    pub base: u64,
    /// The stack from there on.
    #[serde(borrow, with = "serde_bytes")]
    pub bytes: Cow<'a, [u8]>,
}

impl StackSnapshot<'_> {
    /// The frame that a walk goes on from.
    pub fn frame(&self) -> UnwindFrame {
        let [pc, sp, fp, lr] = self.registers;
        let header = jitprof_common::snapshot::SnapshotHeader {
            pc,
            sp,
            fp,
            lr,
            base: self.base,
            bytes: 0,
            index: self.index,
            kind: self.kind,
            reserved: 0,
        };
        header.frame()
    }
}

/// Names a request, and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RequestId(pub u64);

/// Something that somebody has to find out. Each is answered once, also if it takes too long.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Request {
    /// Who a process is.
    Process {
        /// Which.
        pid: Pid,
        /// Also what it has mapped, and its threads.
        maps: bool,
        /// Also its control group.
        cgroup: bool,
        /// Also its command line, of whose memory the process can make the reader wait.
        command_line: bool,
    },
    /// Every process that runs.
    Running,
    /// Which file lies behind a mapping. It is opened only if nobody has asked for the same file before.
    Identify {
        /// Through whose /proc.
        via: Pid,
        /// Which mapping.
        place: MapPlace,
        /// What it is called if it is opened.
        file: FileId,
    },
    /// Open the file behind a mapping.
    Open {
        /// Through whose /proc.
        via: Pid,
        /// Which mapping.
        place: MapPlace,
        /// What it is called from now on.
        file: FileId,
        /// A debug file below the process' root may name it. Captures need not know: they have the answer.
        #[serde(skip)]
        debug: bool,
    },
    /// Open `/tmp/perf-N.map` in a process' root.
    OpenPerfMap {
        /// Through whose /proc.
        via: Pid,
        /// N.
        own_pid: u32,
        /// Who may own it, besides root.
        uid: u32,
        /// What it is called from now on.
        file: FileId,
        /// Device and inode of the one that is open already.
        unless: Option<(u64, u64)>,
    },
    /// Read on in a followed file.
    Read {
        /// Which.
        file: FileId,
        /// Where.
        next: NextRead,
    },
    /// The digest of everything that names and rows of a file are made of.
    Contents {
        /// Which.
        file: FileId,
    },
    /// Look for records that a runtime has not written yet.
    Peek(Box<crate::peek::Look>),
    /// Read a process' memory; of each piece all or nothing.
    Memory {
        /// Whose.
        via: Pid,
        /// Where, and how many bytes.
        pieces: Vec<(Avma, u32)>,
    },
    /// Digests of a process' memory.
    Digests {
        /// Whose.
        via: Pid,
        /// Where, and how many bytes.
        pieces: Vec<(Avma, u32)>,
    },
    /// Read what a process' runtime knows of its own code.
    ReadRuntime {
        /// Through whose memory.
        via: Pid,
        /// Which process.
        process: ProcessId,
        /// Since when it runs its program.
        since: MonoNs,
        /// Entries of a debugger's list that have been registered since the last reading.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        again: Vec<Avma>,
    },
    /// Say what frames are, by what a process' runtime knows of them.
    DescribeFrames {
        /// Through whose memory.
        via: Pid,
        /// Which process.
        process: ProcessId,
        /// Since when it runs its program.
        since: MonoNs,
        /// The frames.
        frames: Vec<FrameAsk>,
    },
    /// Make rows from code that was found in a process.
    CodeRows(Box<CodePieces>),
    /// The version of a runtime.
    Version {
        /// Of which process.
        via: Pid,
        /// Files that say it.
        files: Vec<VersionFile>,
        /// A variable of the environment that says it.
        variable: Option<&'static str>,
    },
    /// Which processes are in control groups.
    Members {
        /// If groups may have come or gone: which are meant.
        search: Option<GroupQuery>,
        /// Groups as known; of use if they are not searched for.
        groups: Vec<Group>,
        /// Whether to list the processes.
        pids: bool,
        /// Whether to read the processes' names.
        names: bool,
    },
}

/// Code of a process of which nothing but its bytes says how it is unwound.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CodePieces {
    /// Whose code it is.
    pub process: ProcessId,
    /// Whose process, if that is known.
    pub user: Option<u32>,
    /// A return address is at the stack pointer wherever a piece begins.
    pub is_called: bool,
    /// Where each begins, and its bytes.
    pub pieces: Vec<(Avma, ByteBuf)>,
}

/// What a request asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// Which request.
    pub request: RequestId,
    /// A time before it was begun.
    pub begun: MonoNs,
    /// A time after it was done.
    pub done: MonoNs,
    /// The answer.
    pub body: AnswerBody,
}

/// An answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum AnswerBody {
    /// To [`Request::Process`].
    Process(Result<Box<ProcessRead>, Unread>),
    /// To [`Request::Running`].
    Running(Vec<Pid>),
    /// To [`Request::Identify`].
    Identified(Result<Identified, Unread>),
    /// To [`Request::Open`] and [`Request::OpenPerfMap`].
    Opened(Result<Opened, Unread>),
    /// To [`Request::OpenPerfMap`], of one that is not this process' and was not opened.
    OlderMap(OlderMap),
    /// To [`Request::Read`].
    Read(Result<FileBytes, Unread>),
    /// To [`Request::Contents`]; nothing if there is too much of it.
    Contents(Option<Digest>),
    /// To [`Request::Peek`].
    Peeked(crate::peek::Sight),
    /// To [`Request::Memory`].
    Memory(Vec<Option<ByteBuf>>),
    /// To [`Request::Digests`].
    Digests(Vec<Option<Digest>>),
    /// To [`Request::ReadRuntime`]; `None` if somebody is stuck at it.
    Runtime(Option<Box<RuntimeRead>>),
    /// To [`Request::DescribeFrames`]; `None` if the process has gone, or somebody is stuck at it.
    Frames(Option<Box<DescribedFrames>>),
    /// To [`Request::CodeRows`]: those of each piece, where its code shows any.
    CodeRows(Vec<Option<RowTable>>),
    /// To [`Request::Version`]; `None` if the process went away meanwhile.
    Version(Option<Option<String>>),
    /// To [`Request::Members`].
    Members {
        /// The groups, if they were searched for.
        groups: Option<Vec<Group>>,
        /// The processes in them, with their names if those were asked for.
        members: Vec<(Pid, Option<String>)>,
    },
    /// To any: it took too long, and was given up.
    Stalled,
}

impl AnswerBody {
    /// Whether it is of what a runtime announces.
    pub(super) fn is_announcement(&self) -> bool {
        matches!(
            self,
            Self::Read(_)
                | Self::Peeked(_)
                | Self::Memory(_)
                | Self::Digests(_)
                | Self::Runtime(_)
                | Self::Frames(_)
                | Self::CodeRows(_)
        )
    }
}

/// Why something of a process could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unread {
    /// What kind of reason.
    pub why: WhyUnread,
    /// In words, with what to do.
    pub text: String,
}

/// What kind of reason it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WhyUnread {
    /// The process or the file is not there.
    Gone,
    /// It is another file by now.
    Replaced,
    /// It is the same as the one that is open.
    Same,
    /// The kernel refuses, or anything else.
    Failed,
    /// It took too long.
    Stalled,
    /// The process that it is read for may not read it itself.
    Private,
}

impl Unread {
    /// What took too long.
    pub fn stalled(what: impl Into<String>) -> Self {
        Self { why: WhyUnread::Stalled, text: what.into() }
    }
}

/// Who a process is, as /proc says it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessRead {
    /// A thread through which its /proc can be read: the first one unless it has ended.
    pub via: Pid,
    /// When it started.
    pub start: MonoNs,
    /// Its parent.
    pub parent: Pid,
    /// The name of its first thread.
    pub comm: String,
    /// A thread of the kernel, without user memory.
    pub is_kernel_thread: bool,
    /// It has ended and only waits to be reaped.
    pub is_dead: bool,
    /// Its ids; `None` if they may not be read.
    pub status: Option<Status>,
    /// Whose it is where it takes of what others need, too: all subordinate ids of a user are he.
    #[serde(default)]
    pub payer: Option<u32>,
    /// The name of its real user, or the number.
    pub user: Option<String>,
    /// Its executable in its own view.
    pub exe: Option<String>,
    /// Its command line, if that was asked for.
    pub command_line: Option<Vec<String>>,
    /// Flags in its environment that ask for announcements, if its command line was asked for.
    #[serde(default)]
    pub environment: Vec<String>,
    /// Where it stands among the control groups, if that was asked for.
    pub cgroup: Option<Cgroup>,
    /// Its executable mappings, if those were asked for.
    pub mappings: Option<Vec<Mapping>>,
    /// Its threads, if its mappings were asked for.
    pub threads: Vec<Tid>,
}

/// What stat(2) says of a mapping's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identified {
    /// Which it is.
    pub identity: FileIdentity,
    /// It has not been changed for a minute.
    pub is_settled: bool,
    /// When its contents were changed last, as far as its owner is to be believed.
    #[serde(default)]
    pub modified_at: MonoNs,
    /// If it has been opened.
    pub opened: Option<Opened>,
}

/// An opened file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// Which it is.
    pub identity: FileIdentity,
    /// What tells its build from others; nothing for what is no ELF file.
    pub build: Option<Build>,
    /// Its first bytes, as many as a dump's header has.
    #[serde(with = "serde_bytes")]
    pub head: Vec<u8>,
    /// For a perf map: it was made before the process began, so that its first lines are another one's.
    #[serde(default)]
    pub is_inherited: bool,
    /// A debug file below the process' root may name it, which is not to name copies elsewhere.
    #[serde(default)]
    pub own_debug: bool,
}

/// A perf map from before its process: of another one that had its number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OlderMap {
    /// Its device and inode.
    pub identity: (u64, u64),
    /// Its length: what comes behind is this process', if it goes on in the file.
    pub len: u64,
    /// The last bytes before that.
    pub trail: ByteBuf,
    /// In words.
    pub text: String,
}

/// The rows of a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RowsAnswer {
    /// Which.
    pub file: FileId,
    /// How long they took.
    pub took: Duration,
    /// The rows, or why there are none.
    pub rows: Result<FileRows, String>,
}

/// Unwind rows of a file, by pages.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct FileRows {
    /// Where the file says that its code is.
    pub segments: Vec<Segment>,
    /// Pages by ascending number.
    pub pages: Vec<FilePage>,
}

/// A page of a file's rows.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct FilePage {
    /// Which.
    pub page: u32,
    /// How many rows.
    pub count: u32,
    /// The rows; none in a capture, which holds those that were looked at.
    #[serde(skip)]
    pub rows: Vec<u64>,
}

impl FilePage {
    /// Elements that it takes in the tables.
    pub fn elements(&self) -> u32 {
        page_elements(self.count)
    }
}

/// A table update that the kernel has not taken. What there was before is gone, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refused {
    /// Rows of a page.
    Page(PageNumber),
    /// Mappings of a process.
    Regions(Pid),
    /// What is taken along with a process' frames.
    Take(Pid),
}

/// A page of an object's rows, as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PageNumber {
    /// Which object.
    pub object: u32,
    /// Which page.
    pub page: u32,
}

impl From<PageNumber> for PageKey {
    fn from(PageNumber { object, page }: PageNumber) -> Self {
        Self { object, page }
    }
}

impl From<PageKey> for PageNumber {
    fn from(PageKey { object, page }: PageKey) -> Self {
        Self { object, page }
    }
}

/// How counter ticks become times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticks {
    /// See [`TscConversion::mult`].
    pub mult: u32,
    /// See [`TscConversion::shift`].
    pub shift: u16,
    /// See [`TscConversion::zero`].
    pub zero: u64,
}

impl From<Ticks> for TscConversion {
    fn from(Ticks { mult, shift, zero }: Ticks) -> Self {
        Self { mult, shift, zero, mono_offset: 0 }
    }
}

/// Counts of the sampler and the symbolizer so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// Samples that passed the filter.
    pub taken: u64,
    /// Of these, lost because the ring was full.
    pub ring_full: u64,
    /// Of these, not readable.
    pub malformed: u64,
    /// Nanoseconds that the BPF program spent on taken samples.
    pub cost_ns: u64,
    /// CPU time by what it was for, that of the BPF program included.
    #[serde(default)]
    pub costs: Costs,
    /// Stack snapshots left out because there were too many, or the ring too full.
    pub snapshots_refused: u64,
    /// Lists of frames left out because they were long, and the ring too full.
    #[serde(default)]
    pub lists_refused: u64,
    /// What the symbolizer's worker did.
    pub symbols: Option<Box<SymbolStats>>,
    /// What jitprof itself has used of the machine.
    pub own: Option<Own>,
}

/// jitprof's own use of the machine, as its end is told.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Own {
    /// CPU seconds of this process so far.
    pub cpu_s: f64,
    /// Largest resident size in bytes.
    pub max_rss_bytes: u64,
    /// How the BPF program walks stacks.
    pub walk: String,
    /// Instructions that the verifier walked through, by program.
    pub verified_instructions: BTreeMap<String, Option<u32>>,
    /// The event in use.
    pub event: String,
    /// CPUs that were sampled.
    pub cpus: usize,
}

impl Own {
    /// For the account.
    pub(super) fn cost(&self, counters: &Counters) -> OwnCost {
        OwnCost {
            cpu_s: self.cpu_s,
            max_rss_bytes: self.max_rss_bytes,
            kernel_ns_per_sample: counters.cost_ns.checked_div(counters.taken).unwrap_or(0),
            cpu_ns: counters.costs,
            walk: self.walk.clone(),
            verified_instructions: self.verified_instructions.clone(),
        }
    }
}

/// What the engine is told to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Follow these processes; the run ends when all of them have, if it is `awaited`.
    Follow {
        /// Which.
        pids: Vec<Pid>,
        /// Whether the run is theirs.
        awaited: bool,
    },
    /// The processes that a selection means at the beginning, and the groups in which to look for more.
    Members {
        /// Which.
        pids: Vec<Pid>,
        /// The groups.
        groups: Vec<Group>,
    },
    /// Sampling has begun.
    Begin {
        /// When.
        at: MonoNs,
        /// The wall clock then, in nanoseconds since 1970.
        wall_ns: u64,
        /// The event that takes the samples is hardware cycles.
        cycles: bool,
    },
    /// Samples are taken at another frequency from now on.
    Frequency(NonZeroU32),
    /// Memory is short, or is so no longer.
    Tight(bool),
    /// From here on the recording is continuous, in windows of this length, each open for this long after its end.
    Continuous {
        /// Length of a window.
        length: Duration,
        /// How long a window stays open for names that come late.
        grace: Duration,
    },
    /// Copy what was sampled in `from..to` and is in no window yet.
    Snapshot {
        /// Names the copy.
        token: u64,
        /// First time.
        from: MonoNs,
        /// First time that is not wanted.
        to: MonoNs,
        /// How long after `to` names are waited for at most.
        patience: Duration,
    },
    /// Hand out what there is now as a window, without a grace.
    CloseWindow,
    /// No further sample comes: read what there is to the end, for this long at most, and name what has no name yet, for
    /// this long at most.
    Finish {
        /// How long dumps are read that keep growing.
        read_limit: Duration,
        /// How long names are waited for.
        names_limit: Duration,
        /// How long samples were taken.
        duration: Duration,
    },
    /// Whoever waits for the end does not want to: no more is read, and names are waited for a second at most.
    Hasten,
}

/// What is to be done, in the order of the outputs.
#[derive(Debug)]
pub enum Output {
    /// Find something out.
    Request(RequestId, Request),
    /// A file is not needed any more.
    Close(FileId),
    /// What was read of a process' runtime is not needed any more.
    DropRuntime(ProcessId),
    /// Name addresses, those asked for first first.
    Name(Vec<SymbolKey>),
    /// Drop what was asked for and not answered, and what is loaded.
    UnloadSymbols,
    /// What the symbolizer may use.
    SymbolBudget(SymbolBudget),
    /// Build the unwind rows of a file.
    BuildRows {
        /// Which.
        file: FileId,
        /// Samples that have met it.
        samples: u64,
        /// How long they take, in functions.
        functions: u64,
    },
    /// A sample waits for the rows of a file.
    HurryRows(FileId),
    /// Build rows that no sample has met slowly from now on.
    BuildInBackground,
    /// Change the BPF program's tables.
    Table(TableUpdate),
    /// Say when all table updates so far are in force.
    Publish(u64),
    /// Take samples of this process.
    Follow(Pid),
    /// Take none of this process any more.
    Unfollow(Pid),
    /// Compare tasks with these control groups.
    Groups(Vec<Group>),
    /// Hand in the counts of the sampler and the symbolizer: the account is closed with them.
    WantCounters,
    /// Give memory that is free back to the system.
    GiveMemoryBack,
    /// A window is complete.
    Window(Box<Window>),
    /// A copy is ready.
    Snapshot {
        /// Which.
        token: u64,
        /// The copy.
        profile: Box<Profile>,
    },
    /// All targets have ended.
    TargetsEnded,
    /// The run is over.
    Finished(Box<Recorded>),
}

/// A change of the BPF program's tables. Rows and regions have been written before, where no reader looks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableUpdate {
    /// The rows of a page; nothing: it has none.
    Page(PageKey, Option<Span>),
    /// The mappings of a process; nothing: it has none.
    Regions(Pid, Option<Span>),
    /// A new epoch of a process: what walks remember of it is void. What it adds, see `Epochs`.
    Epoch(Pid, u64),
    /// A description of what is taken along with frames.
    Spec(u32, Box<FrameSpec>),
    /// The description for a process; nothing: nothing is taken along.
    Take(Pid, Option<u32>),
}

/// What was sampled between two times, every sample named as well as it ever will be. A sample that came later than the
/// grace is in the next window, at its beginning.
#[derive(Debug)]
pub struct Window {
    /// Begins at `meta().start`.
    pub profile: Profile,
    /// Where it ends.
    pub end: MonoNs,
    /// How the recording stood when it was closed.
    pub health: Health,
}

/// What a run leaves behind.
#[derive(Debug)]
pub struct Recorded {
    /// The profile.
    pub profile: Profile,
    /// The account.
    pub account: Account,
}
