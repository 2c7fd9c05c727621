//! One process: everything that is known of it, in one place, so that evicting it is one call.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

use jitprof_common::units::{MonoNs, Pid, Tid};
use jitprof_jitdump::code::CodeEvent;

use crate::account::{Naming, ProcessNaming};
use crate::engine::announcements::Announcements;
use crate::engine::border::ProcessRead;
use crate::engine::deferred::SnapshotUse;
use crate::engine::dump::START_STEP_NS;
use crate::engine::files::Asked;
use crate::engine::frames::Frames;
use crate::engine::generated::GeneratedCode;
use crate::engine::labels::LabelHistory;
use crate::engine::learned::{Learned, is_in_loop_frame};
use crate::engine::pending::Queue;
use crate::engine::publish::Published;
use crate::engine::resolve::Anonymous;
use crate::engine::runtime_tables::RuntimeTables;
use crate::engine::space::AddressSpace;
use crate::process::ProcessId;
use crate::profile::Holder;
use crate::runtime::Capture;

/// Threads that are kept of one process; the end of one with more may be seen early, and it is then read again.
const MAX_THREADS: usize = 1 << 14;
/// Bytes of a command line that are remembered: the flags stand at its beginning.
const MAX_COMMAND_LINE_BYTES: usize = 16 << 10;
/// Children that late records are passed on to; records arrive seconds late at most, so the oldest can go.
const MAX_CHILDREN: usize = 64;

/// What program a process runs, and for whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Program {
    /// Its executable in its own view.
    pub(super) exe: Option<String>,
    /// Its command line, if that was asked for.
    pub(super) command_line: Option<Vec<String>>,
    /// Flags in its environment that ask for announcements.
    pub(super) environment: Vec<String>,
    /// The name of its first thread when it was read.
    pub(super) comm: String,
    /// Its pid in its own namespace, as dumps and perf maps name it.
    pub(super) own_pid: u32,
    /// Its effective user id.
    pub(super) uid: u32,
}

/// Whose processes are, where what each has is held against what all others have. Root's are of many containers, and one's here:
/// each would be a holder of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Whose {
    /// Nothing is known of them yet, or they were gone before: of whoever starts short ones by the thousand.
    NotKnown,
    /// Root's, or of a user who is not known.
    Root,
    /// Another user's.
    User(u32),
}

/// How far the reading of a process' program has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum ProgramState {
    /// Nobody has asked.
    #[default]
    Unasked,
    /// It is being read.
    Asked,
    /// As it was read last.
    Known(Program),
    /// The process did not let itself be read, or there was no time for it, at this time: it is asked again.
    Stalled(MonoNs),
    /// The process could not be read.
    Unreadable,
}

/// One process, alive or ended.
pub(super) struct Process {
    /// Its identity.
    pub(super) id: ProcessId,
    /// Its parent at the time it was first seen, if it was seen to be made.
    pub(super) parent: Option<ProcessId>,
    /// The number of its parent; 0 if it is not known.
    pub(super) parent_pid: Pid,
    /// The thread through which its /proc is read.
    pub(super) via: Pid,
    /// It was gone before it could be read.
    pub(super) is_gone: bool,
    /// What it has mapped.
    pub(super) space: AddressSpace,
    /// How many files behind it are being looked at. Who asks for them only reads the process: hence the cell.
    pub(super) asked: Cell<Asked>,
    /// When it last ran exec(2), if that was seen.
    pub(super) exec_time: Option<MonoNs>,
    /// When its last thread ended.
    pub(super) exit_time: Option<MonoNs>,
    /// Its place among those that have ended, when it has.
    pub(super) ended_as: u64,
    threads: HashMap<Tid, Arc<str>>,
    /// The name of the first thread when it ended; it may end before the other threads do.
    last_name: Option<Arc<str>>,
    /// What it runs.
    pub(super) program: ProgramState,
    /// Whose it is, as far as that is known: a child is its parent's, and stays so over exec until it is read.
    pub(super) payer: Option<u32>,
    /// What else is known about it, if that is wanted.
    pub(super) labels: LabelHistory,
    /// What its runtime has announced.
    pub(super) code: GeneratedCode,
    /// Who pays for copies of it where it was one itself, or was to be: a child of a child is nobody new.
    copied_for: Option<Holder>,
    /// It was refused a copy of its parent's code, for good: too much was copied for who pays for that.
    pub(super) lacks_inherited: bool,
    /// Where its runtime announces code.
    pub(super) announcements: Announcements,
    /// What its runtime knows of its code.
    pub(super) tables: RuntimeTables,
    /// What its runtime knows of single frames.
    pub(super) frames: Frames,
    /// Code that was read from its memory.
    pub(super) learned: Learned,
    /// Its parent's code, which it has not been given yet, and the time of the fork. A code map is copied in microseconds
    /// a function, and most children call exec at once: the copy waits for a sample.
    pub(super) inherits: Option<(ProcessId, MonoNs)>,
    /// Children that have a copy of the code, and since when: records from before that still arrive are theirs, too.
    pub(super) children: Vec<(ProcessId, MonoNs)>,
    /// Children that had not been given their copy, or refused it, when they were last looked through, and later ones.
    pub(super) waiting_children: Vec<ProcessId>,
    /// With more of them they are looked through.
    pub(super) waiting_until: usize,
    /// Its samples that wait for names.
    pub(super) queue: Queue,
    /// What of it is in the BPF program's tables.
    pub(super) published: Published,
    /// It was sampled because it was named, until its end.
    pub(super) was_followed: bool,
    /// It has ended, and holds no file any more.
    pub(super) has_released: bool,
    /// When it was last sampled.
    pub(super) ran_at: MonoNs,
    /// Frames of generated code without a name.
    pub(super) unnamed: u64,
    /// What named its frames.
    pub(super) naming: Naming,
    /// Its samples in the profile, and those of them that went through an interpreter's loop.
    pub(super) resolved: u64,
    pub(super) interpreted: u64,
    /// What stack snapshots of it were good for.
    pub(super) snapshots: SnapshotUse,
}

impl Process {
    /// One of which nothing but this is known.
    pub(super) fn new(id: ProcessId, space: AddressSpace, code: GeneratedCode) -> Self {
        Self {
            id,
            parent: None,
            parent_pid: Pid(0),
            via: id.pid,
            is_gone: false,
            space,
            asked: Cell::default(),
            exec_time: None,
            exit_time: None,
            ended_as: 0,
            threads: HashMap::new(),
            last_name: None,
            program: ProgramState::default(),
            payer: None,
            labels: LabelHistory::default(),
            code,
            copied_for: None,
            lacks_inherited: false,
            announcements: Announcements::default(),
            tables: RuntimeTables::default(),
            frames: Frames::default(),
            learned: Learned::default(),
            inherits: None,
            children: Vec::new(),
            waiting_children: Vec::new(),
            waiting_until: 0,
            queue: Queue::default(),
            published: Published::default(),
            was_followed: false,
            has_released: false,
            ran_at: MonoNs(0),
            unnamed: 0,
            naming: Naming::default(),
            resolved: 0,
            interpreted: 0,
            snapshots: SnapshotUse::default(),
        }
    }

    /// What samples are to take along with its frames. A dump has more in it, and is believed, but for what it may lack.
    pub(super) fn capture(&self) -> Option<&Capture> {
        self.tables.capture(self.announcements.has_dump())
    }

    /// Whether its runtime is asked what was inlined into optimised code, and nothing else: a dump has the names.
    pub(super) fn asks_inlined_alone(&self) -> bool {
        self.tables.ask_inlined_alone(self.announcements.has_dump())
    }

    /// Whether it has not ended.
    pub(super) fn is_live(&self) -> bool {
        self.exit_time.is_none()
    }

    /// Whether a tick has nothing to do for it: it has no sample that waits, nothing is read of it again and again, nothing of it
    /// is asked about, and no code of it is to be kept or published.
    pub(super) fn is_idle(&self) -> bool {
        let is_read = self.announcements.has_files() || self.tables.was_wanted() || self.interpreted > 0;
        let is_asked_about = self.learned.is_wanting() || !self.frames.is_empty();
        let is_dirty = self.code.rows().is_some_and(|rows| rows.is_dirty());
        let awaits_rows = self.code.awaiting_bytes() > 0;
        let has_code = self.code.is_known() || awaits_rows || is_dirty || self.published.lacks_room();
        self.queue.is_empty() && !is_read && !is_asked_about && !has_code
    }

    /// The program, as far as it has been read.
    pub(super) fn known_program(&self) -> Option<&Program> {
        match &self.program {
            ProgramState::Known(program) => Some(program),
            ProgramState::Unasked | ProgramState::Asked | ProgramState::Stalled(_) | ProgramState::Unreadable => None,
        }
    }

    /// When it was made, at the latest: of a process that was not seen to be made, /proc says the clock tick.
    pub(super) fn made_at(&self) -> MonoNs {
        let step = if self.parent.is_some() { 0 } else { START_STEP_NS };
        MonoNs(self.id.start.0.saturating_add(step))
    }

    /// Who takes up room for it.
    pub(super) fn holder(&self) -> Holder {
        Holder::of_process(self.payer, self.id.pid, self.id.start.0)
    }

    /// Whose it is among all who have many.
    pub(super) fn whose(&self) -> Whose {
        match self.holder() {
            _ if self.is_gone => Whose::NotKnown,
            Holder::User(user) => Whose::User(user),
            Holder::Named(_) | Holder::Process(..) => Whose::Root,
        }
    }

    /// Whose it is, if that is known.
    pub(super) fn user(&self) -> Option<u32> {
        self.payer
    }

    /// Who pays for copies of its code: its user, or of root's processes the one that has announced it.
    pub(super) fn copy_payer(&self) -> Holder {
        match self.holder() {
            user @ Holder::User(_) => user,
            own => self.copied_for.unwrap_or(own),
        }
    }

    /// Begins with a copy of the code that another one had at a time.
    pub(super) fn copy_code(&mut self, parent: &Self, time: MonoNs) {
        self.copied_for = Some(parent.copy_payer());
        self.code = parent.code.fork(time);
        let exe = self.known_program().and_then(|program| program.exe.clone());
        if exe.is_some() {
            self.code.is_run_by(exe.as_deref());
        }
    }

    /// Is refused that. What it has announced itself it keeps.
    pub(super) fn lack_code(&mut self, parent: &Self) {
        self.copied_for = Some(parent.copy_payer());
        (self.inherits, self.lacks_inherited) = (None, true);
    }

    /// Its name: that of its first thread, or what it was when it was read.
    pub(super) fn name(&self) -> String {
        let leader = self.comm(Tid(self.id.pid.0)).map(|comm| comm.to_string());
        leader.or_else(|| self.known_program().map(|program| program.comm.clone())).unwrap_or_default()
    }

    /// Takes up an announcement. Code that runs in the frame of its interpreter's loop is unwound as all such code is: of that
    /// only the name is of use.
    pub(super) fn take_announced(&mut self, event: CodeEvent) {
        let is_in_loop = |start| is_in_loop_frame(self, start, MonoNs(u64::MAX));
        match event.start().is_some_and(is_in_loop) {
            true => self.code.apply_names(event),
            false => self.code.apply(event),
        }
    }

    /// Nothing more will be read of what it announces.
    pub(super) fn finish_announcements(&mut self) {
        for line in self.announcements.finish() {
            self.take_announced(line);
        }
    }

    /// Whether a sample waits for records that may be there, but cannot be read yet.
    pub(super) fn may_lack_names(&self) -> bool {
        self.queue.newest().is_some_and(|newest| self.announcements.may_lack_before(newest))
    }

    /// Counts what named the frames of a sample.
    pub(super) fn note_naming(&mut self, sample: &Anonymous) {
        let Naming { named, unnamed, in_files } = &mut self.naming;
        named.jitdump += sample.named.jitdump;
        named.peeked += sample.named.peeked;
        named.perf_map += sample.named.perf_map;
        named.runtime += sample.named.runtime;
        *in_files += sample.in_files;
        sample.reasons.iter().for_each(|reason| *unnamed.entry(reason).or_default() += 1);
    }

    /// The same of all of them.
    pub(super) fn naming(&self) -> ProcessNaming {
        let runtime = self.tables.account().map(|tables| tables.runtime).filter(|runtime| !runtime.is_empty());
        let ProcessId { pid, start } = self.id;
        ProcessNaming { pid: pid.0, start, comm: self.name(), runtime, naming: self.naming.clone(), lack: None }
    }

    /// The latest name of a thread; of the first thread also after its end.
    pub(super) fn comm(&self, tid: Tid) -> Option<&Arc<str>> {
        let ended = self.last_name.as_ref().filter(|_| tid.0 == self.id.pid.0);
        self.threads.get(&tid).or(ended)
    }

    /// Since when it runs its program: what was read before is that of the one before.
    pub(super) fn runs_since(&self) -> MonoNs {
        self.exec_time.unwrap_or(MonoNs(0))
    }

    /// It runs another program since `time`.
    pub(super) fn exec(&mut self, time: MonoNs) {
        self.space.exec(time);
        self.exec_time = Some(time);
        // exec ends every other thread, and the one that calls it becomes the leader.
        let leader = Tid(self.id.pid.0);
        self.threads.retain(|tid, _| *tid == leader);
        self.via = self.id.pid;
        self.program = ProgramState::Unasked;
        (self.inherits, self.lacks_inherited, self.copied_for) = (None, false, None);
        self.code.end_all(time);
        self.learned = Learned::default();
        self.tables = RuntimeTables::default();
        self.frames.exec();
        (self.unnamed, self.resolved, self.interpreted) = (0, 0, 0);
        self.naming = Naming::default();
    }

    /// It has not ended after all: its runtime, of which nothing was asked any more, is asked again, and its code's rows, which
    /// were withdrawn, are published again.
    pub(super) fn begin_anew(&mut self) {
        self.code.withdrawn();
        for change in self.tables.reopen() {
            if let Some(change) = self.code.apply_compared(change) {
                self.code.apply_found(change);
            }
        }
        self.frames.reopen();
    }

    /// A thread has this name. Returns whether there was room for it.
    pub(super) fn name_thread(&mut self, tid: Tid, comm: Arc<str>) -> bool {
        if self.threads.len() >= MAX_THREADS && !self.threads.contains_key(&tid) {
            return false;
        }
        self.threads.insert(tid, comm);
        true
    }

    /// A thread has ended. Returns whether it was the last one.
    pub(super) fn end_thread(&mut self, tid: Tid) -> bool {
        let name = self.threads.remove(&tid);
        if tid.0 == self.id.pid.0 {
            self.last_name = name;
        }
        if self.via.0 == tid.0
            && let Some(other) = self.threads.keys().min()
        {
            self.via = Pid(other.0);
        }
        self.threads.is_empty()
    }

    /// How many threads of it are known.
    pub(super) fn thread_count(&self) -> usize {
        self.threads.len()
    }

    /// Takes up what was read of its program.
    pub(super) fn take_program(&mut self, read: &ProcessRead) {
        let status = read.status.as_ref();
        self.via = read.via;
        self.parent_pid = read.parent;
        let before = self.known_program().map(|known| (known.command_line.clone(), known.environment.clone()));
        let (line_before, environment_before) = before.unwrap_or_default();
        let environment = if read.command_line.is_some() { read.environment.clone() } else { environment_before };
        self.program = ProgramState::Known(Program {
            exe: read.exe.clone(),
            command_line: read.command_line.clone().map(beginning).or(line_before),
            environment,
            comm: read.comm.clone(),
            own_pid: status.map_or(self.id.pid.0, |status| status.own_pid()),
            uid: status.map_or(0, |status| status.effective_uid),
        });
        self.payer = read.payer.or_else(|| status.map(|status| status.real_uid)).or(self.payer);
        self.code.is_run_by(read.exe.as_deref());
    }

    /// A thread that is new here has its process' name until an event says otherwise: samples bring their own. That the
    /// process itself may have ended is for its exit event to say.
    pub(super) fn take_threads(&mut self, read: &ProcessRead) {
        let name = self.comm(Tid(self.id.pid.0)).map_or_else(|| Arc::from(&*read.comm), Arc::clone);
        for tid in read.threads.iter().take(MAX_THREADS) {
            self.threads.entry(*tid).or_insert_with(|| Arc::clone(&name));
        }
    }

    /// A child has been given a copy of its code.
    pub(super) fn note_child(&mut self, child: ProcessId, time: MonoNs) {
        if self.children.len() >= MAX_CHILDREN {
            self.children.remove(0);
        }
        self.children.push((child, time));
    }
}

/// The first words of a command line.
fn beginning(mut words: Vec<String>) -> Vec<String> {
    let mut bytes = 0;
    let fitting = words.iter().take_while(|word| {
        bytes += word.len();
        bytes <= MAX_COMMAND_LINE_BYTES
    });
    let kept = fitting.count();
    words.truncate(kept);
    words
}
