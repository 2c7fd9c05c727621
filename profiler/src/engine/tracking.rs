//! Follows what tasks do: new children, programs, mappings, ends; and what is found out about them.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jitprof_common::units::{Avma, MonoNs, Pid};
use jitprof_jitdump::code::{CodeEvent, CodeOrigin};
use jitprof_jitdump::{FileBytes, FileHeader, TscConversion};
use jitprof_unwind::RowTable;
use rustc_hash::FxHashSet;

use crate::account::LearnStats;
use crate::advice::Runtime;
use crate::engine::announcements::{Announcements, Brought, DumpId, ReadContext};
use crate::engine::border::{
    AnswerBody, CodePieces, OlderMap, Opened, Output, ProcessRead, Registration, Request, Unread, WhyUnread,
};
use crate::engine::copies::Copies;
use crate::engine::dump::START_STEP_NS;
use crate::engine::files::Files;
use crate::engine::fork_log::ForkLog;
use crate::engine::frames::{FrameRoom, FrameRooms, Haste};
use crate::engine::generated::CodeBounds;
use crate::engine::labelling::{Labelling, ask_program, has_any, keeps_frames, runtime_of};
use crate::engine::learned::Learned;
use crate::engine::options::InterpreterFrames;
use crate::engine::place::Place;
use crate::engine::process::{Process, ProgramState};
use crate::engine::processes::{Arriving, Processes};
use crate::engine::requests::{Purpose, Requests};
use crate::engine::resolving::Met;
use crate::engine::runtime_tables::{BesideDump, Change, least_pause};
use crate::engine::selection::Selection;
use crate::engine::unmade::Piece;
use crate::engine::unwinding::Unwinding;
use crate::peek::{Peek, Sight};
use crate::process::ProcessId;
use crate::process::discover::is_marker;
use crate::process::event::{MmapEvent, TaskChange, TaskEvent};
use crate::process::open::FileId;
use crate::profile::Shares;
use crate::runtime::{FoundCode, FoundFrame};

/// How soon what may be gone is looked at again.
const HASTY_LOOK: Duration = Duration::from_millis(10);
/// Children of children that get what is read of a process' code.
const MAX_GENERATIONS: usize = 4;
/// Ancestors that have inherited a dump which are looked at for the one that its writer has made.
const MAX_COPIES: usize = 64;
/// How long a child that has not been sampled waits for a copy of its parent's code.
const INHERIT_NS: u64 = 5_000_000_000;
/// Children of one process that wait for a copy of its code; beyond it those that do not wait any more are looked for, and
/// again when they are twice as many as were left.
const MAX_WAITING_CHILDREN: usize = 64;

/// Said once.
const TOO_MANY_COPIES: &str = "processes with much generated code make children faster than it is copied for them; in some of \
                               these, inherited code has no names";

/// Memory of code of all processes that awaits rows; whoever has much of it leaves others a part.
const MAX_AWAITING_BYTES: usize = 64 << 20;
/// Processes that could not be read in time and are read again, at most.
const MAX_UNREAD: usize = 4096;

/// What tracking works with.
pub(super) struct Parts<'a> {
    pub(super) files: &'a mut Files,
    pub(super) unwinding: Option<&'a mut Unwinding>,
    pub(super) requests: &'a mut Requests,
}

/// A process whose end the run waits for.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    pid: Pid,
    id: Option<ProcessId>,
    is_gone: bool,
}

/// Who is followed, and what is known of them.
pub(super) struct Tracking {
    pub(super) processes: Processes,
    pub(super) selection: Selection,
    pub(super) labelling: Labelling,
    /// Of those that are known no more, too: a log, which has its bound.
    pub(super) forks: ForkLog,
    /// How much generated code is copied for children.
    pub(super) copies: Copies,
    /// Also when they have ended: as many as were ordered.
    awaited: Vec<Awaited>,
    /// Processes that could not be read in time: a work list, also of those of which nothing is known.
    unread: BTreeSet<Pid>,
    /// Processes that are to be looked at between two ticks: a work list; empty in a continuous recording.
    hasty: BTreeSet<ProcessId>,
    tsc: Option<TscConversion>,
    peek: bool,
    read_runtime: bool,
    interpreter: InterpreterFrames,
    /// The runtime's tables are read also where a dump or a perf map names the code, to be compared.
    verify_names: bool,
    /// Command lines are read when they are needed, not beforehand.
    continuous: bool,
    /// Samples since then can wait for what is asked seldom.
    calm_since: Option<MonoNs>,
}

/// Whether a process was made as a copy of another one and runs the same program still: its files lie where the other's
/// do, which those of a program that was started anew hardly ever do.
fn is_copy(child: &Process, parent: &Process) -> bool {
    let exe = |process: &Process| process.known_program().and_then(|program| program.exe.clone());
    let place = |process: &Process, exe: &str| {
        let mut mapped = process.space.live().map(|mapped| &mapped.mapping);
        mapped.find(|mapping| &*mapping.path == exe).map(|mapping| (mapping.start, mapping.inode))
    };
    let Some(exe) = exe(child).filter(|own| exe(parent).as_ref() == Some(own)) else { return false };
    let is_unseen = child.parent.is_none() && child.exec_time.is_none();
    let (own, of_parent) = (place(child, &exe), place(parent, &exe));
    is_unseen && child.is_live() && parent.id.start <= child.id.start && own.is_some() && own == of_parent
}

/// Whether a process says itself what is where a line of its parent's perf map says something: the line has no time, and
/// may be of later.
fn names_better(heir: &Process, event: &CodeEvent) -> bool {
    let CodeEvent::Load(load) = event else { return false };
    load.origin == CodeOrigin::PerfMap && heir.code.map.lookup(load.start, MonoNs(u64::MAX)).is_some()
}

/// Whether a process has memory for generated code by now, or interprets in its own: its runtime's tables are worth a look
/// before it is sampled.
fn may_generate(process: &Process) -> bool {
    runtime_of(process) == Some(Runtime::Node) || keeps_frames(process) || has_memory_for_code(process)
}

fn has_memory_for_code(process: &Process) -> bool {
    process.space.live().any(|mapped| mapped.mapping.may_hold_generated_code())
}

/// Whether a perf map of a process is to be looked for again, in a continuous recording.
fn is_map_due(process: &Process, now: MonoNs) -> bool {
    process.announcements.is_map_due(process.ran_at, now, || has_memory_for_code(process))
}

/// What is asked about frames that a dump of a process names.
fn beside_dump(process: &Process, verify_names: bool) -> BesideDump {
    match runtime_of(process) {
        _ if verify_names => BesideDump::All,
        Some(Runtime::Node | Runtime::V8) => BesideDump::Inlined,
        // Also in a web server that has it for a module.
        _ if has_any(process, &[Runtime::Php]) => BesideDump::Listed,
        _ => BesideDump::Nothing,
    }
}

/// How soon frames of a process are asked about. Samples can wait until the window that they are in ends, but for those with
/// a stack snapshot: these have room for few, and a walk that has ended may show further frames.
fn haste_of(process: &Process, (at_once, calm_since): (bool, Option<MonoNs>), now: MonoNs) -> Haste {
    let can_wait = |since: MonoNs| {
        let mut samples = process.queue.iter();
        process.frames.may_wait(process.asks_inlined_alone(), now)
            && process.queue.first().is_none_or(|first| first >= since)
            && !samples.any(|sample| sample.snapshot.is_some())
    };
    match calm_since {
        _ if at_once => Haste::AtOnce,
        Some(since) if can_wait(since) => Haste::Seldom,
        _ => Haste::Soon,
    }
}

/// When a process is to be looked at between two ticks, if it is: it replaces what it runs, is still being loaded, or runs code
/// that its tables should name.
fn hasty_look(process: &Process, now: MonoNs) -> Option<MonoNs> {
    if !process.is_live() {
        return None;
    }
    // What a dump names keeps its name.
    let loses_names = process.frames.is_losing(now) && !process.asks_inlined_alone();
    let loses = loses_names && process.tables.may_ask_early();
    if loses { Some(now) } else { process.tables.hasty_look(now) }
}

impl Tracking {
    /// Of nobody yet.
    pub(super) fn new(
        processes: Processes,
        selection: Selection,
        labelling: Labelling,
        (peek, read_runtime, verify_names): (bool, bool, bool),
        interpreter: InterpreterFrames,
    ) -> Self {
        Self {
            processes,
            selection,
            labelling,
            forks: ForkLog::default(),
            copies: Copies::default(),
            awaited: Vec::new(),
            unread: BTreeSet::new(),
            hasty: BTreeSet::new(),
            tsc: None,
            peek,
            read_runtime,
            interpreter,
            verify_names,
            continuous: false,
            calm_since: None,
        }
    }

    /// From here on the recording is continuous: of each process so much code is kept.
    pub(super) fn begin_continuous(&mut self, bounds: CodeBounds) {
        self.continuous = true;
        self.copies.begin_continuous();
        self.hasty.clear();
        self.processes.set_bounds(bounds);
    }

    /// Samples since a time can wait for what is asked seldom, or none can.
    pub(super) fn set_calm(&mut self, since: Option<MonoNs>) {
        self.calm_since = since;
    }

    /// How counter ticks become times, from now on.
    pub(super) fn set_ticks(&mut self, tsc: TscConversion) {
        self.tsc = Some(tsc);
    }

    /// Follows a process; with `awaited`, the run ends when it and all others that are followed so have ended.
    pub(super) fn follow(&mut self, pid: Pid, awaited: bool, parts: &mut Parts<'_>) {
        // The filter first: what runs while its mappings are read is sampled already.
        self.selection.follow(pid, parts.requests);
        self.attach(pid, parts.requests);
        if awaited {
            self.awaited.push(Awaited { pid, id: None, is_gone: false });
        }
    }

    /// Has a process read that is not known, or brings one up to date that is.
    pub(super) fn attach(&mut self, pid: Pid, requests: &mut Requests) {
        let asks = match self.processes.arrive(pid, requests.now) {
            Some((arriving, asks)) => {
                arriving.awaited = true;
                asks
            }
            None => false,
        };
        if asks {
            self.ask_process(pid, requests);
        }
    }

    /// Asks for everything about a process.
    pub(super) fn ask_process(&self, pid: Pid, requests: &mut Requests) {
        let request =
            Request::Process { pid, maps: true, cgroup: self.labelling.is_wanted(), command_line: !self.continuous };
        requests.ask(Purpose::Process(pid), request);
    }

    /// Asks for everything about processes that have mapped faster than they are followed. About every second.
    pub(super) fn read_incomplete(&mut self, requests: &mut Requests) {
        let now = requests.now;
        let live = self.processes.iter_mut().filter(|process| process.is_live());
        let incomplete: Vec<Pid> =
            live.filter_map(|process| process.space.take_incomplete(now).then_some(process.id.pid)).collect();
        incomplete.into_iter().for_each(|pid| self.ask_process(pid, requests));
    }

    /// Whether every process that the run waits for has ended.
    pub(super) fn have_all_ended(&self) -> bool {
        let has_ended = |awaited: &Awaited| {
            let known = awaited.id.and_then(|id| self.processes.get(id));
            awaited.is_gone || (awaited.id.is_some() && known.is_none_or(|process| !process.is_live()))
        };
        !self.awaited.is_empty() && self.awaited.iter().all(has_ended)
    }

    /// The live processes that the run waits for.
    pub(super) fn awaited(&self) -> impl Iterator<Item = ProcessId> {
        self.awaited.iter().filter_map(|awaited| awaited.id).filter(|id| self.processes.is_live(*id))
    }

    /// Applies what a task did.
    pub(super) fn apply(&mut self, event: &TaskEvent, parts: &mut Parts<'_>) {
        self.selection.apply(event, parts.requests);
        self.before(event, parts);
        let ended = self.processes.apply(event);
        self.note_replaced(parts);
        self.after(event, ended, parts);
    }

    /// Code of a process is about to go: children that have not been sampled yet get their copy, and its rows, before.
    fn before(&mut self, event: &TaskEvent, parts: &mut Parts<'_>) {
        let pid = match &event.change {
            TaskChange::Comm { pid, exec: true, .. } | TaskChange::Exit { pid, .. } => *pid,
            _ => return,
        };
        if matches!(event.change, TaskChange::Comm { .. })
            && let Some(id) = self.processes.live_of(pid).map(|process| process.id)
            && let Some(process) = self.processes.get_mut(id)
        {
            process.tables.close(id, parts.requests);
        }
        let parent = self.processes.live_of(pid).filter(|process| !process.waiting_children.is_empty());
        let Some(parent) = parent.map(|process| process.id) else { return };
        let is_last = |process: &Process| process.thread_count() <= 1;
        if matches!(event.change, TaskChange::Exit { .. }) && !self.processes.get(parent).is_some_and(is_last) {
            return;
        }
        self.copy_code_to_children(parent, parts);
    }

    fn after(&mut self, event: &TaskEvent, ended: Option<ProcessId>, parts: &mut Parts<'_>) {
        let time = event.time;
        match &event.change {
            TaskChange::Fork { pid, parent_pid, .. } if pid != parent_pid => {
                self.forks.note(*pid, *parent_pid, time);
                self.inherit(*pid, *parent_pid, time, parts);
                self.mappings_changed(*pid, time, parts);
            }
            TaskChange::Comm { pid, tid, comm, exec } => {
                let Some(id) = self.processes.at(*pid, time).map(|process| process.id) else { return };
                let Some(process) = self.processes.get_mut(id) else { return };
                self.labelling.rename(process, *tid, comm, *exec, time);
                if *exec {
                    process.announcements.leave(id, time, parts.requests);
                    if let Some(unwinding) = &mut parts.unwinding {
                        unwinding.exec(process);
                    }
                    // A recording that ends tells of those that have ended, too, and has to read them before.
                    if !self.continuous {
                        ask_program(process, self.labelling.is_wanted(), true, parts.requests);
                    }
                }
            }
            TaskChange::Mmap(mmap) => {
                self.note_mapping(mmap, time, parts);
                self.mappings_changed(mmap.pid, time, parts);
            }
            TaskChange::Exit { .. } => {
                if let Some(id) = ended {
                    self.note_end(id, parts);
                } else {
                    self.unfollow_unknown(event, parts);
                }
            }
            TaskChange::Fork { .. } | TaskChange::Lost { .. } => {}
        }
    }

    /// One that is followed by its name, and of which nothing has come, has ended with its first thread as far as is known.
    fn unfollow_unknown(&mut self, event: &TaskEvent, parts: &mut Parts<'_>) {
        if let TaskChange::Exit { pid, tid } = &event.change
            && pid.0 == tid.0
            && !self.processes.concern(event)
        {
            self.selection.end(*pid, parts.requests);
        }
    }

    /// What a process maps has changed. Which processes the BPF program lets through is not known here beforehand.
    fn mappings_changed(&mut self, pid: Pid, time: MonoNs, parts: &mut Parts<'_>) {
        let Some(unwinding) = &mut parts.unwinding else { return };
        let Some(process) = self.processes.at(pid, time) else { return };
        let sampled = self.selection.is_open() || self.selection.is_followed(pid);
        if sampled || process.published.is_published() {
            unwinding.change(process.id);
        }
    }

    /// A new mapping may mark a dump.
    fn note_mapping(&mut self, mmap: &MmapEvent, time: MonoNs, parts: &mut Parts<'_>) {
        let Some(mapping) = mmap.to_mapping().filter(is_marker) else { return };
        let Some(id) = self.processes.at(mmap.pid, time).map(|process| process.id) else { return };
        self.take_inheritance(id, parts);
        let Some(process) = self.processes.get_mut(id) else { return };
        if process.known_program().is_some() {
            let who = (id, process.via);
            process.announcements.note_mapping(who, &mapping, parts.files, parts.requests);
        } else {
            // It is looked for when it is known what the process calls itself.
            ask_program(process, self.labelling.is_wanted(), !self.continuous, parts.requests);
        }
    }

    /// Looks through a process' mappings for dumps.
    fn discover(process: &mut Process, parts: &mut Parts<'_>) {
        let markers = process.space.live().map(|mapped| &mapped.mapping).filter(|mapping| is_marker(mapping));
        for mapping in markers.cloned().collect::<Vec<_>>() {
            let who = (process.id, process.via);
            process.announcements.note_mapping(who, &mapping, parts.files, parts.requests);
        }
    }

    /// A child's interpreter keeps its frames where its parent's does, from its first instruction on.
    fn inherit_list(&mut self, (child, parent): (ProcessId, ProcessId), parts: &mut Parts<'_>) {
        let Some((child, parent)) = self.processes.pair_mut(child, parent) else { return };
        if !child.tables.inherit(&parent.tables) {
            return;
        }
        if let Some(unwinding) = &mut parts.unwinding {
            unwinding.change(child.id);
        }
        child.frames.may_be_lost(parts.requests.now);
        let child = child.id;
        self.note_hasty(child, parts.requests.now);
    }

    /// Remembers that a child begins with its parent's code.
    fn inherit(&mut self, child_pid: Pid, parent_pid: Pid, time: MonoNs, parts: &mut Parts<'_>) {
        let (Some(child), Some(parent)) = (self.processes.at(child_pid, time), self.processes.at(parent_pid, time))
        else {
            return;
        };
        if child.id.pid == parent.id.pid || child.code.is_known() || child.announcements.any() {
            return;
        }
        self.inherit_list((child.id, parent.id), parts);
        let (Some(child), Some(parent)) = (self.processes.at(child_pid, time), self.processes.at(parent_pid, time))
        else {
            return;
        };
        // A child of a child that has not been sampled has its code from the same ancestor.
        let (ancestor, time) = parent.inherits.unwrap_or((parent.id, time));
        let (child, lacks_inherited) = (child.id, child.lacks_inherited);
        let announces = |process: &Process| process.announcements.any() || process.code.is_known();
        if lacks_inherited || !self.processes.get(ancestor).is_some_and(announces) {
            return;
        }
        let Some((child, ancestor)) = self.processes.pair_mut(child, ancestor) else { return };
        child.inherits = Some((ancestor.id, time));
        ancestor.waiting_children.push(child.id);
        if let Some(unwinding) = &mut parts.unwinding {
            unwinding.share_code(child, ancestor);
        }
        if ancestor.waiting_children.len() > ancestor.waiting_until.max(MAX_WAITING_CHILDREN) {
            let id = ancestor.id;
            let waiting = std::mem::take(&mut ancestor.waiting_children);
            let waiting = waiting.into_iter().filter(|child| {
                self.processes.get(*child).is_some_and(|child| child.is_live() && child.inherits.is_some())
            });
            let waiting: Vec<ProcessId> = waiting.collect();
            if let Some(ancestor) = self.processes.get_mut(id) {
                (ancestor.waiting_until, ancestor.waiting_children) = (2 * waiting.len(), waiting);
            }
        }
    }

    /// Children that have not been sampled yet get their copy of a process' code, and its rows.
    fn copy_code_to_children(&mut self, parent: ProcessId, parts: &mut Parts<'_>) {
        let Some(process) = self.processes.get_mut(parent) else { return };
        for child in std::mem::take(&mut process.waiting_children) {
            let waits = |child: &Process| child.is_live() && child.inherits.is_some();
            if !self.processes.get(child).is_some_and(waits) {
                continue;
            }
            self.take_inheritance(child, parts);
            if let Some(unwinding) = &mut parts.unwinding {
                unwinding.publish_code(&mut self.processes, child, parts.requests);
            }
        }
    }

    /// Gives a child its parent's code, or refuses it, if neither has been done.
    fn take_inheritance(&mut self, child: ProcessId, parts: &mut Parts<'_>) {
        let inherits = self.processes.get_mut(child).and_then(|process| process.inherits.take());
        let Some((parent, time)) = inherits else { return };
        let is_copied = self.copy_code((child, parent), time, parts);
        if let Some((child, parent)) = self.processes.pair_mut(child, parent).filter(|_| is_copied) {
            child.learned.inherit(&parent.learned);
        }
    }

    /// Gives a child a copy of the code that its parent had at a time. Where too much has been copied for who pays for it, the
    /// child goes without for good, and is not walked by it either: what is copied later is of another time than what its
    /// samples were walked by. Returns whether it has been given it.
    fn copy_code(&mut self, (child, parent): (ProcessId, ProcessId), time: MonoNs, parts: &mut Parts<'_>) -> bool {
        let Some((child, parent)) = self.processes.pair_mut(child, parent) else { return false };
        let is_copied = self.copies.take(parent.copy_payer(), parent.code.inherited_bytes(), parts.requests.now);
        if is_copied {
            parent.note_child(child.id, time);
            child.copy_code(parent, time);
        } else {
            child.lack_code(parent);
        }
        if let Some(unwinding) = &mut parts.unwinding {
            match is_copied {
                true => unwinding.change(child.id),
                false => unwinding.unshare_code(child),
            }
        }
        if !is_copied && self.processes.count_refused_copy() {
            self.say_that_copies_are_refused(parts.requests);
        }
        is_copied
    }

    fn say_that_copies_are_refused(&self, requests: &mut Requests) {
        if self.continuous {
            tracing::warn!("{TOO_MANY_COPIES}");
        }
        requests.remark(TOO_MANY_COPIES.to_owned());
    }

    /// Children that live on without a sample get their code before the parent drops it. About every second.
    pub(super) fn copy_code_to_unsampled(&mut self, limit: usize, parts: &mut Parts<'_>) {
        let now = parts.requests.now;
        let due = self.processes.iter().filter(|process| {
            process.is_live() && process.inherits.is_some_and(|(_, time)| now.0.saturating_sub(time.0) > INHERIT_NS)
        });
        let due: Vec<_> = due.filter_map(|process| Some((process.id, process.inherits?.0))).collect();
        if due.is_empty() {
            return;
        }
        let mut room = limit.saturating_sub(self.processes.iter().map(|process| process.code.bytes()).sum());
        for (child, parent) in due {
            let bytes = self.processes.get(parent).map_or(0, |parent| parent.code.bytes());
            // Where there is no room for another copy, it waits for a sample, or for room.
            if let Some(rest) = room.checked_sub(bytes) {
                room = rest;
                self.take_inheritance(child, parts);
            }
        }
    }

    /// A process has ended: its last announcements are read while its files are still open.
    pub(super) fn note_end(&mut self, id: ProcessId, parts: &mut Parts<'_>) {
        if self.selection.is_followed(id.pid)
            && let Some(process) = self.processes.get_mut(id)
        {
            process.was_followed = true;
        }
        self.selection.end(id.pid, parts.requests);
        self.let_go(id, parts);
    }

    /// Processes have ended unseen, of which others have the number by now: those are followed as these were.
    fn note_replaced(&mut self, parts: &mut Parts<'_>) {
        for id in self.processes.take_replaced() {
            self.let_go(id, parts);
        }
    }

    /// What an ended process has in the tables goes, and what it has announced is read.
    fn let_go(&mut self, id: ProcessId, parts: &mut Parts<'_>) {
        self.copy_code_to_children(id, parts);
        let Some(process) = self.processes.get_mut(id) else { return };
        if let Some(unwinding) = &mut parts.unwinding {
            unwinding.end(process, parts.requests);
        }
        process.announcements.poll(id, parts.requests);
        process.tables.close(id, parts.requests);
        process.frames.close();
    }

    /// Ends processes whose exits were lost.
    pub(super) fn take_running(&mut self, running: &HashSet<Pid>, begun: MonoNs, parts: &mut Parts<'_>) {
        for id in self.processes.missing(running, begun) {
            self.copy_code_to_children(id, parts);
            self.processes.end(id, begun);
            self.note_end(id, parts);
        }
        self.selection.unfollow_missing(running, begun, parts.requests);
    }

    /// A process was sampled: what it announces is looked at more often. One that was seen to be made is looked at for the
    /// first time with its first sample.
    pub(super) fn note_ran(&mut self, id: ProcessId, time: MonoNs, parts: &mut Parts<'_>) {
        self.take_inheritance(id, parts);
        let Some(process) = self.processes.get_mut(id) else { return };
        process.ran_at = process.ran_at.max(time);
        if process.is_live() {
            ask_program(process, self.labelling.is_wanted(), !self.continuous, parts.requests);
        } else if matches!(process.program, ProgramState::Unasked | ProgramState::Stalled(_)) {
            process.program = ProgramState::Unreadable;
            self.labelling.take_lost(&mut self.processes, id, &self.forks);
        }
    }

    /// Takes up a process that was read as a whole. Returns it, with what has waited for it.
    pub(super) fn take_process(
        &mut self,
        pid: Pid,
        read: Result<Box<ProcessRead>, Unread>,
        begun: MonoNs,
        parts: &mut Parts<'_>,
    ) -> (Option<ProcessId>, Option<Arriving>) {
        let read = match read {
            Ok(read) if !read.is_kernel_thread => read,
            Ok(_) => return self.take_gone(pid, parts.requests.now),
            Err(unread) => {
                if unread.why != WhyUnread::Gone {
                    parts.requests.remark(unread.text);
                }
                // That there was no time for it says nothing of the process.
                if unread.why == WhyUnread::Stalled && self.is_to_be_read(pid) {
                    self.unread.insert(pid);
                    return (None, self.processes.take_gone(pid, parts.requests.now));
                }
                return self.take_gone(pid, parts.requests.now);
            }
        };
        let (id, arriving) = self.processes.take(pid, &read, begun);
        self.note_replaced(parts);
        let Some(id) = id else { return (None, arriving) };
        // It may not have ended after all.
        let live = self.processes.get_mut(id).filter(|process| process.is_live());
        if live.is_some_and(|process| std::mem::take(&mut process.was_followed)) {
            self.selection.follow(id.pid, parts.requests);
        }
        for event in arriving.iter().flat_map(|arriving| &arriving.events) {
            self.before(event, parts);
            let ended = self.processes.apply_early(event);
            self.note_replaced(parts);
            self.after(event, ended, parts);
        }
        for awaited in self.awaited.iter_mut().filter(|awaited| awaited.pid == pid && awaited.id.is_none()) {
            awaited.id = Some(id);
        }
        // It may have run another program since, which is asked for with the next sample.
        if self.processes.get(id).is_some_and(|process| process.runs_since() < begun) {
            self.take_program(id, &read, false, parts);
        }
        if let Some(unwinding) = &mut parts.unwinding {
            unwinding.change(id);
            unwinding.publish_code(&mut self.processes, id, parts.requests);
        }
        if read.is_dead {
            self.processes.end(id, begun);
            self.note_end(id, parts);
        }
        (Some(id), arriving)
    }

    /// Whether a process that could not be read in time has to be read: it is known to run, or the run is made for it.
    fn is_to_be_read(&self, pid: Pid) -> bool {
        let is_awaited = || self.awaited.iter().any(|awaited| awaited.pid == pid && awaited.id.is_none());
        self.unread.len() < MAX_UNREAD && (self.processes.live_of(pid).is_some() || is_awaited())
    }

    /// Processes that could not be read in time, to be read again.
    pub(super) fn take_unread(&mut self) -> BTreeSet<Pid> {
        std::mem::take(&mut self.unread)
    }

    fn take_gone(&mut self, pid: Pid, now: MonoNs) -> (Option<ProcessId>, Option<Arriving>) {
        for awaited in self.awaited.iter_mut().filter(|awaited| awaited.pid == pid && awaited.id.is_none()) {
            awaited.is_gone = true;
        }
        let Some(arriving) = self.processes.take_gone(pid, now) else { return (None, None) };
        (None, Some(arriving))
    }

    /// A process that is gone, for samples of it; labels are its relatives'.
    pub(super) fn gone(&mut self, pid: Pid, time: MonoNs, now: MonoNs) -> ProcessId {
        let id = self.processes.add_gone(pid, time, now);
        if self.processes.get(id).is_some_and(|process| !process.labels.is_known()) {
            self.labelling.take_lost(&mut self.processes, id, &self.forks);
        }
        id
    }

    /// Takes up what program a process runs, if that is still the one of `since`.
    pub(super) fn take_program_read(
        &mut self,
        (id, since): (ProcessId, MonoNs),
        read: Result<Box<ProcessRead>, Unread>,
        again: bool,
        parts: &mut Parts<'_>,
    ) {
        let Some(process) = self.processes.get_mut(id).filter(|process| process.runs_since() == since) else { return };
        match read {
            Ok(read) if id.has_start(read.start) && !read.is_dead => self.take_program(id, &read, again, parts),
            _ if again => {}
            read => {
                let is_stalled = read.is_err_and(|unread| unread.why == WhyUnread::Stalled) && process.is_live();
                process.program = match is_stalled {
                    true => ProgramState::Stalled(parts.requests.now),
                    false => ProgramState::Unreadable,
                };
                self.labelling.take_lost(&mut self.processes, id, &self.forks);
            }
        }
    }

    fn take_program(&mut self, id: ProcessId, read: &ProcessRead, again: bool, parts: &mut Parts<'_>) {
        let Some(process) = self.processes.get_mut(id) else { return };
        process.take_program(read);
        self.labelling.take(process, read, again, parts.requests);
        if !again && process.is_live() {
            Self::discover(process, parts);
            Announcements::look_for_perf_map(process, parts.files, parts.requests);
            // A perf map would leave no code without a name.
            let is_compared = self.verify_names && process.code.is_of_beam();
            if self.read_runtime && (is_compared || may_generate(process)) {
                let beside_dump = beside_dump(process, self.verify_names);
                process.tables.ask_beside_dump(beside_dump);
                process.tables.want(self.interpreter);
                Self::poll_tables_of(process, parts.requests);
            }
            self.reunite(id, parts);
        }
    }

    /// Gives a process whose making was not seen the code that its parent had by then, and likewise its children: what
    /// ran when it was made it still runs, and CPython ends what it has inherited of dump and map.
    fn reunite(&mut self, id: ProcessId, parts: &mut Parts<'_>) {
        let Some(process) = self.processes.get(id) else { return };
        let parent = self.processes.live_of(process.parent_pid).filter(|parent| is_copy(process, parent));
        let mut pairs: Vec<(ProcessId, ProcessId)> = parent.map(|parent| (id, parent.id)).into_iter().collect();
        let children = self.processes.iter().filter(|child| child.parent_pid == id.pid && is_copy(child, process));
        pairs.extend(children.map(|child| (child.id, id)));
        for (child, parent) in pairs {
            let Some((child, parent)) = self.processes.pair_mut(child, parent) else { continue };
            if child.lacks_inherited || parent.children.iter().any(|(known, _)| *known == child.id) {
                continue;
            }
            // Of its start /proc says the clock tick.
            let (forked, pair) = (MonoNs(child.id.start.0.saturating_add(START_STEP_NS)), (child.id, parent.id));
            if parent.code.is_known() && !child.code.is_known() {
                self.copy_code(pair, forked, parts);
            } else {
                parent.note_child(child.id, forked);
            }
        }
    }

    /// A CPython announces code whose making was not seen: what it runs may be its parent's, who may be no target.
    fn want_parent(&mut self, id: ProcessId, requests: &mut Requests) {
        let Some(process) = self.processes.get(id) else { return };
        let parent = process.parent_pid;
        let is_unseen = process.parent.is_none() && process.exec_time.is_none();
        if is_unseen
            && parent.0 > 1
            && self.processes.live_of(parent).is_none()
            && runtime_of(process) == Some(Runtime::CPython)
        {
            self.attach(parent, requests);
        }
    }

    /// How announcements are read.
    fn context(&self) -> ReadContext {
        ReadContext { tsc: self.tsc, peek: self.peek }
    }

    /// Takes up an opened dump.
    pub(super) fn take_dump(
        &mut self,
        id: ProcessId,
        (file, path): (FileId, &Arc<str>),
        opened: Result<Opened, Unread>,
        parts: &mut Parts<'_>,
    ) {
        let context = self.context();
        let until = opened.as_ref().map_or(MonoNs(0), |opened| self.inherits_until(id, (file, path), opened));
        let Some(process) = self.processes.get_mut(id) else {
            if opened.is_ok() {
                parts.requests.output(Output::Close(file));
            }
            return;
        };
        let program = match &process.program {
            ProgramState::Known(program) => Some(program),
            _ => None,
        };
        let shared = process.space.live().map(|mapped| &mapped.mapping);
        let shared = shared.filter(|mapping| mapping.prot.shared && mapping.may_hold_generated_code());
        let shared = shared.map(|mapping| mapping.start.0..mapping.end.0).collect();
        let (who, how) = ((id, until), (program, process.code.wants_code(), shared));
        let opened = (opened, context);
        let brought = process.announcements.take_dump(who, how, (file, path), opened, parts.requests);
        self.want_list_beside(id, parts);
        self.take_brought(id, brought, parts);
        if let Some(process) = self.processes.get_mut(id) {
            process.announcements.poll(id, parts.requests);
        }
    }

    /// A process has a dump. By then PHP is in it, if that writes it, which may have been loaded since the program was read: its
    /// list is read beside the dump.
    fn want_list_beside(&mut self, id: ProcessId, parts: &mut Parts<'_>) {
        let Some(process) = self.processes.get_mut(id).filter(|_| self.read_runtime) else { return };
        let what = beside_dump(process, self.verify_names);
        if what != BesideDump::Listed || process.tables.beside_dump() == what {
            return;
        }
        process.tables.ask_beside_dump(what);
        process.tables.want(self.interpreter);
        if let Some(unwinding) = &mut parts.unwinding {
            unwinding.change(id);
        }
    }

    /// Until when what is announced in a dump that a process has inherited is its own, too: until it was made, or that one
    /// of its ancestors which the writer has made.
    fn inherits_until(&self, id: ProcessId, (file, path): (FileId, &Arc<str>), opened: &Opened) -> MonoNs {
        let writer = FileHeader::parse(&opened.head).map(|header| header.pid);
        let mut until = MonoNs(u64::MAX);
        let Some(mut process) = self.processes.get(id) else { return until };
        let Some(start) = process.announcements.place_of(file) else { return process.made_at() };
        for _ in 0..MAX_COPIES {
            until = until.min(process.made_at());
            let parent =
                process.parent.map_or_else(|| self.processes.live_of(process.parent_pid), |id| self.processes.get(id));
            let Some(parent) = parent else { break };
            let own_pid = parent.known_program().map_or(parent.id.pid.0, |program| program.own_pid);
            let mapped = parent.space.lookup(start, until);
            let is_copy = mapped.is_some_and(|mapped| mapped.mapping.path == *path);
            if !is_copy || writer == Some(own_pid) || parent.announcements.writes(&opened.identity) {
                break;
            }
            process = parent;
        }
        until
    }

    /// Takes up an opened perf map.
    pub(super) fn take_perf_map(
        &mut self,
        id: ProcessId,
        file: FileId,
        opened: Result<Opened, Unread>,
        parts: &mut Parts<'_>,
    ) {
        let Some(process) = self.processes.get_mut(id) else {
            if opened.is_ok() {
                parts.requests.output(Output::Close(file));
            }
            return;
        };
        let own_pid = process.known_program().map_or(id.pid.0, |program| program.own_pid);
        // The other runtimes that are known write each line at once: their memory would be searched in vain.
        let is_buffered = matches!(runtime_of(process), None | Some(Runtime::Mono));
        let peek = (self.peek && is_buffered).then(|| Peek::new(own_pid, id.start));
        let brought = process.announcements.take_perf_map(file, opened, peek, parts.requests);
        process.announcements.poll(id, parts.requests);
        self.take_brought(id, brought, parts);
    }

    /// There is a perf map from before a process.
    pub(super) fn note_older_map(&mut self, id: ProcessId, file: FileId, older: OlderMap, parts: &mut Parts<'_>) {
        if let Some(process) = self.processes.get_mut(id) {
            process.announcements.note_older_map(file, older, parts.requests);
        }
    }

    /// Takes up what was read of a dump.
    pub(super) fn take_read(
        &mut self,
        id: ProcessId,
        dump: DumpId,
        read: (Result<FileBytes, Unread>, MonoNs),
        parts: &mut Parts<'_>,
    ) {
        let Some(process) = self.processes.get_mut(id) else { return };
        let who = (id, process.via, process.exit_time);
        let brought = process.announcements.take_read(who, dump, read, self.tsc, parts.requests);
        self.take_brought(id, brought, parts);
    }

    /// Takes up what was read of a perf map.
    pub(super) fn take_lines(
        &mut self,
        id: ProcessId,
        file: FileId,
        read: (Result<FileBytes, Unread>, MonoNs),
        parts: &mut Parts<'_>,
    ) {
        let Some(process) = self.processes.get_mut(id) else { return };
        let who = (id, process.via, process.exit_time);
        let space = &process.space;
        let is_its = |start| space.lookup(start, MonoNs(u64::MAX)).is_some();
        let brought = process.announcements.take_lines(who, file, read, is_its, parts.requests);
        self.take_brought(id, brought, parts);
    }

    /// Takes up what was seen of a dump's unwritten end.
    pub(super) fn take_sight(&mut self, id: ProcessId, dump: DumpId, sight: (Sight, MonoNs), parts: &mut Parts<'_>) {
        let now = parts.requests.now;
        let Some(process) = self.processes.get_mut(id) else { return };
        let brought = process.announcements.take_sight(dump, sight.0, sight.1, now);
        self.take_brought(id, brought, parts);
    }

    /// Processes have registered code, or some of their calls are not told.
    pub(super) fn note_registrations(&mut self, told: &[Registration], now: MonoNs) {
        for one in told {
            let process = self.processes.at(one.pid, one.time).filter(|process| one.time >= process.runs_since());
            let Some(id) = process.filter(|process| process.is_live()).map(|process| process.id) else { continue };
            if let Some(process) = self.processes.get_mut(id) {
                process.tables.note_registration(one);
                self.note_hasty(id, now);
            }
        }
    }

    /// Takes up what was read of the tables of a process' runtime.
    pub(super) fn take_tables(
        &mut self,
        (id, since): (ProcessId, MonoNs),
        body: AnswerBody,
        times: (MonoNs, MonoNs),
        parts: &mut Parts<'_>,
    ) {
        let pause = least_pause(self.continuous);
        let Some(process) = self.processes.get_mut(id) else { return };
        // Of a child, what its parent knew of that.
        let knew_loop_code = process.tables.list().is_some_and(|list| list.generated.is_some());
        let brought = process.tables.take(since, body, times, pause, parts.requests);
        process.frames.note_unloads(brought.unloads, times);
        process.tables.note_entries(&process.space, &brought.entries, parts.requests.now);
        if brought.is_first {
            process.snapshots = Default::default();
            if !knew_loop_code {
                Learned::give_up_in_loop_frames(process);
            }
            if let Some(unwinding) = &mut parts.unwinding {
                unwinding.change(id);
            }
        }
        // Beside a dump only frames are asked about, or what is listed is compared with it.
        let has_dump = process.announcements.has_dump();
        if has_dump && process.tables.are_listed_beside() {
            process.code.compare();
        }
        // To look at all that awaits rows is worth it for nothing else.
        let room = brought.shows_code().then(|| self.room_for_code(id));
        let Some(process) = self.processes.get_mut(id) else { return };
        if let Some(room) = room {
            process.code.begin_reading(room);
        }
        for change in brought.changes {
            let Some(change) = process.code.apply_compared(change).filter(|_| !has_dump) else { continue };
            let mut shown = None;
            match &change {
                Change::Load(FoundCode { start, frame: FoundFrame::Fixed { .. }, .. }, since) => {
                    process.learned.note_read(*start, *since)
                }
                Change::Load(
                    FoundCode { start, frame: FoundFrame::Code(_) | FoundFrame::Recorded { .. }, .. },
                    since,
                ) => shown = Some((*start, *since)),
                Change::Load(..) | Change::Inline(_) | Change::Unregister { .. } => {}
                Change::Unload { start, .. } => process.learned.note_gone(*start),
                // Files have rows of their own.
                Change::Register(found) => {
                    let place = Place::mapped(&process.space, found.start, parts.requests.now);
                    if matches!(place, Place::File(_)) {
                        continue;
                    }
                }
            }
            process.code.apply_found(change);
            // What is said of it may be of no use, or there is no room for it; then its code is read where it is met.
            if let Some((start, since)) = shown
                && process.code.will_have_rows(start.0, since)
            {
                process.learned.note_read(start, since);
            }
        }
        Self::order_rows(process, parts.requests);
        // In the end, when no tick comes, what was sampled since.
        let at_once = process.tables.is_hurried();
        if process.is_live() && at_once {
            Self::poll_tables_of(process, parts.requests);
        }
        Self::poll_frames_of(process, (at_once, self.calm_since), parts.requests);
        self.note_hasty(id, parts.requests.now);
    }

    /// Takes up rows that were made of code of a process. Where nobody has, the code is read where it is met.
    pub(super) fn take_code_rows(
        &mut self,
        id: ProcessId,
        pieces: &[Piece],
        made: Vec<Option<RowTable>>,
        requests: &mut Requests,
    ) {
        let Some(process) = self.processes.get_mut(id) else { return };
        let left = process.code.take_made(pieces, made);
        process.learned.note_unmade(&left);
        Self::order_rows(process, requests);
    }

    /// How much code of a process may come to wait for its rows, beside that of all processes.
    pub(super) fn room_for_code(&self, id: ProcessId) -> usize {
        let (mut shares, mut all) = (Shares::default(), 0_usize);
        for process in self.processes.busy() {
            let bytes = process.code.awaiting_bytes();
            if bytes > 0 {
                shares.take(Some(process.holder()), bytes);
                all = all.saturating_add(bytes);
            }
        }
        shares.room(self.processes.get(id).map(Process::holder), (all, MAX_AWAITING_BYTES))
    }

    /// Has the next rows made of code that awaits them. Of a process that has ended they are of use to samples that wait.
    fn order_rows(process: &mut Process, requests: &mut Requests) {
        // Its last samples come with its end.
        let has_ended = process.exit_time.is_some_and(|end| end < requests.now);
        if has_ended && process.queue.is_empty() {
            process.code.cancel_rows();
        }
        while let Some(order) = process.code.next_order() {
            let (ids, pieces): (Vec<_>, Vec<_>) =
                order.into_iter().map(|(piece, code)| (piece, (Avma(piece.start), code))).unzip();
            let (user, is_called) = (process.user(), process.code.is_of_beam());
            let code = CodePieces { process: process.id, user, is_called, pieces };
            requests.ask(Purpose::CodeRows(process.id, ids), Request::CodeRows(Box::new(code)));
        }
    }

    /// Has the tables of runtimes read again where that is due; with `at_once`, where it is of any use.
    pub(super) fn poll_tables(&mut self, at_once: bool, requests: &mut Requests) {
        if at_once {
            self.processes.make_all_busy();
        }
        for process in self.processes.busy_mut().filter(|process| process.is_live()) {
            // An interpreter whose library was loaded later than its program was read.
            if self.read_runtime && process.interpreted > 0 && !process.tables.was_wanted() {
                Self::want_tables(process, (self.interpreter, self.verify_names));
            }
            if at_once {
                process.tables.hurry();
            }
            Self::order_rows(process, requests);
            Self::poll_tables_of(process, requests);
        }
    }

    /// What samples up to now were named by is looked at again with the next tick.
    pub(super) fn look_at_tables(&mut self, now: MonoNs) {
        self.processes
            .iter_mut()
            .filter(|process| process.is_live())
            .for_each(|process| process.tables.look_at_once(now));
    }

    /// Takes up what frames of a process are; with `at_once`, what is left is asked for at once.
    pub(super) fn take_frames(
        &mut self,
        (id, since): (ProcessId, MonoNs),
        answer: (AnswerBody, (MonoNs, MonoNs)),
        at_once: bool,
        requests: &mut Requests,
    ) {
        let Some(process) = self.processes.get_mut(id) else { return };
        if since == process.runs_since() {
            if let AnswerBody::Frames(Some(described)) = &answer.0 {
                process.tables.note_entries(&process.space, &described.entries, requests.now);
            }
            process.tables.note_shown();
        }
        let holder = process.holder();
        for (start, size) in process.frames.take((holder, since), answer, requests.now) {
            Learned::note_place(process, start, size);
        }
        if at_once {
            Self::poll_frames_of(process, (true, None), requests);
            Self::poll_tables_of(process, requests);
        }
        self.note_hasty(id, requests.now);
    }

    /// An answer or a sample may show that a process is to be looked at before the next tick, where that is done.
    fn note_hasty(&mut self, id: ProcessId, now: MonoNs) {
        if !self.continuous && self.processes.get(id).is_some_and(|process| hasty_look(process, now).is_some()) {
            self.hasty.insert(id);
        }
    }

    /// Has frames asked about that samples wait for; with `shared`, all processes of a holder as fast as one.
    pub(super) fn poll_frames(&mut self, (at_once, shared): (bool, bool), requests: &mut Requests) {
        let mut rooms = FrameRooms::default();
        for process in self.processes.busy().filter(|process| process.frames.room() != FrameRoom::default()) {
            rooms.add(process.holder(), process.frames.room());
            if shared && process.frames.has_asked(requests.now) {
                rooms.add_asking(process.holder());
            }
        }
        for process in self.processes.busy_mut() {
            let share = rooms.share(process.holder());
            process.frames.compact(&mut process.queue, share);
            Self::poll_frames_of(process, (at_once, self.calm_since), requests);
        }
    }

    /// When it is to be looked between two ticks what there is: before a program has replaced what it runs, while one is loaded,
    /// and where one makes code.
    pub(super) fn next_look(&mut self, now: MonoNs) -> Option<MonoNs> {
        let mut next = None;
        self.hasty.retain(|id| {
            let look = self.processes.get(*id).and_then(|process| hasty_look(process, now));
            next = next.into_iter().chain(look).min();
            look.is_some()
        });
        next.map(|look| look.max(now.after(HASTY_LOOK)))
    }

    /// Has those read again, where that is due, that were looked at while they were loaded, or in which code was met that their
    /// tables should name.
    pub(super) fn poll_hasty(&mut self, requests: &mut Requests) {
        let now = requests.now;
        let is_due = |process: &Process| process.tables.hasty_look(now).is_some_and(|look| look <= now);
        for id in &self.hasty {
            if let Some(process) = self.processes.get_mut(*id).filter(|process| process.is_live() && is_due(process)) {
                Self::poll_tables_of(process, requests);
            }
        }
    }

    /// Has asked between two ticks what frames are, where no lists are to be read at the same time. Returns whether samples
    /// wait for more.
    pub(super) fn ask_frames_early(&mut self, requests: &mut Requests) -> bool {
        let is_meant = |process: &&mut Process| process.frames.is_wanting() && process.tables.may_ask_early();
        let mut is_wanting = false;
        for process in self.processes.busy_mut().filter(is_meant) {
            Self::poll_frames_of(process, (false, None), requests);
            is_wanting |= process.frames.is_wanting();
        }
        is_wanting
    }

    /// Has asked what samples have come to wait for since.
    pub(super) fn ask_frames(&mut self, requests: &mut Requests) {
        for process in self.processes.busy_mut().filter(|process| process.frames.is_wanting()) {
            Self::poll_frames_of(process, (false, self.calm_since), requests);
        }
    }

    /// Whether frames are to be asked about by a time.
    pub(super) fn asks_frames_by(&self, time: MonoNs, now: MonoNs) -> bool {
        let mut wanting = self.processes.busy().filter(|process| process.frames.is_wanting());
        let due_at = |process: &Process| process.frames.due_at(haste_of(process, (false, self.calm_since), now));
        wanting.any(|process| due_at(process).is_some_and(|due| due <= time))
    }

    fn poll_frames_of(process: &mut Process, how: (bool, Option<MonoNs>), requests: &mut Requests) {
        if process.frames.is_wanting() && !process.tables.is_reading() {
            let who = (process.id, process.via, process.runs_since());
            let haste = haste_of(process, how, requests.now);
            process.frames.poll(who, haste, requests);
        }
    }

    /// Wants the tables of a process' runtime read, which was loaded, or has made code, since its program was read.
    fn want_tables(process: &mut Process, (interpreter, verify_names): (InterpreterFrames, bool)) {
        if !process.tables.was_wanted() {
            process.tables.ask_beside_dump(beside_dump(process, verify_names));
        }
        process.tables.want(interpreter);
    }

    /// What a process announces in a dump has more in it than the tables.
    fn poll_tables_of(process: &mut Process, requests: &mut Requests) {
        let has_dump = process.announcements.has_dump();
        let are_read = process.tables.are_read(has_dump) || process.tables.are_listed_beside();
        if are_read && !process.frames.is_asked() {
            let (who, ran_at) = ((process.id, process.via, process.runs_since()), process.ran_at);
            process.tables.poll(who, ran_at, requests);
        }
    }

    /// Notes what stacks of a process have met that more is to be read of.
    pub(super) fn note_met(&mut self, id: ProcessId, met: &Met, now: MonoNs) {
        let Some(process) = self.processes.get_mut(id) else { return };
        if met.unnamed {
            process.announcements.want();
        }
        if !self.read_runtime {
            return;
        }
        if met.unnamed {
            Self::want_tables(process, (self.interpreter, self.verify_names));
        }
        met.code.iter().for_each(|address| process.learned.want(*address));
        met.missed.iter().for_each(|(address, time)| process.tables.note_missed(*address, *time));
        if !met.missed.is_empty() {
            self.note_hasty(id, now);
        }
    }

    /// Applies code events, to the children, too, that have a copy of the code from after them.
    fn take_brought(&mut self, id: ProcessId, brought: Brought, parts: &mut Parts<'_>) {
        if brought.is_first {
            self.want_parent(id, parts.requests);
        }
        let Some(process) = self.processes.get_mut(id) else { return };
        if brought.is_first {
            // What was in vain before says nothing.
            process.snapshots = Default::default();
            if let Some(unwinding) = &mut parts.unwinding {
                unwinding.change(id);
            }
        }
        let heirs = match brought.events.is_empty() {
            true => Vec::new(),
            false => self.heirs(id),
        };
        for event in &brought.events {
            let time = event.time();
            for (heir, _) in heirs.iter().filter(|(_, forked)| time <= *forked) {
                if let Some(heir) = self.processes.get_mut(*heir)
                    && !names_better(heir, event)
                {
                    heir.take_announced(event.clone());
                }
            }
        }
        if let Some(process) = self.processes.get_mut(id) {
            if brought.drops_lines {
                process.code.map.drop_listed();
            }
            brought.events.into_iter().for_each(|event| process.take_announced(event));
        }
    }

    /// Who has a copy of a process' code, its children's children included, and from when.
    fn heirs(&self, id: ProcessId) -> Vec<(ProcessId, MonoNs)> {
        let mut heirs: Vec<(ProcessId, MonoNs)> = Vec::new();
        let mut next = vec![(id, MonoNs(u64::MAX))];
        for _ in 0..MAX_GENERATIONS {
            let found = next.iter().filter_map(|(parent, forked)| Some((self.processes.get(*parent)?, *forked)));
            let found = found.flat_map(|(parent, forked)| {
                parent.children.iter().map(move |(child, own)| (*child, forked.min(*own)))
            });
            next = found.collect();
            heirs.extend(&next);
        }
        heirs
    }

    /// Evicts a process that has ended, and everything that stands with it.
    pub(super) fn evict(&mut self, id: ProcessId, parts: &mut Parts<'_>) -> LearnStats {
        let Some(process) = self.processes.get_mut(id) else { return LearnStats::default() };
        process.announcements.close(parts.requests);
        let learned = process.learned.stats();
        self.processes.evict(id);
        learned
    }

    /// Processes were evicted: nobody counts them among his children any more.
    pub(super) fn remove_gone(&mut self, gone: &FxHashSet<ProcessId>) {
        self.hasty.retain(|id| !gone.contains(id));
        for process in self.processes.iter_mut() {
            process.children.retain(|(child, _)| !gone.contains(child));
            process.waiting_children.retain(|child| !gone.contains(child));
        }
    }

    /// What names processes here, and how many; without the log of forks.
    #[cfg(test)]
    pub(super) fn rooms(&self) -> Vec<(&'static str, usize)> {
        let own = [
            ("awaited", self.awaited.len()),
            ("unread", self.unread.len()),
            ("hasty", self.hasty.len()),
            ("holders of copies", self.copies.holders()),
        ];
        own.into_iter().chain(self.selection.rooms()).chain(self.processes.rooms()).collect()
    }

    /// Has read what is new in the announcements of all processes; seldom, where that is enough for samples from before the time
    /// since which they can wait, and for those since.
    pub(super) fn poll_announcements(&mut self, requests: &mut Requests) {
        let now = requests.now;
        for process in self.processes.busy_mut() {
            let own = &mut process.announcements;
            let is_due = own.any() && (!self.continuous || own.is_due(process.ran_at, now));
            if !is_due && !own.is_leaving() {
                continue;
            }
            match self.calm_since {
                Some(ended) => own.poll_seldom(process.id, ended, requests),
                None => own.poll(process.id, requests),
            }
        }
    }

    /// The same of all that can be read still: no further sample comes.
    pub(super) fn poll_announcements_to_the_end(&mut self, requests: &mut Requests) {
        for process in self.processes.iter_mut() {
            process.announcements.poll(process.id, requests);
        }
    }

    /// Nothing more will be read.
    pub(super) fn finish_announcements(&mut self) {
        for process in self.processes.iter_mut() {
            process.finish_announcements();
        }
    }

    /// The end of a process whose threads are not all known may be missed: whom the run waits for is asked after. About
    /// every second.
    pub(super) fn check_awaited(&mut self, parts: &mut Parts<'_>) {
        for id in self.awaited().collect::<Vec<_>>() {
            let request = Request::Process { pid: id.pid, maps: false, cgroup: false, command_line: false };
            parts.requests.ask(Purpose::Alive(id), request);
        }
    }

    /// Takes up whether a process that the run waits for is there.
    pub(super) fn take_alive(&mut self, id: ProcessId, read: &Result<Box<ProcessRead>, Unread>, parts: &mut Parts<'_>) {
        let has_ended = match read {
            Ok(read) => read.is_dead || !id.has_start(read.start),
            Err(unread) => unread.why == WhyUnread::Gone,
        };
        if has_ended && self.processes.is_live(id) {
            let now = parts.requests.now;
            self.copy_code_to_children(id, parts);
            self.processes.end(id, now);
            self.note_end(id, parts);
        }
    }

    /// Looks for perf maps of processes that have run since they were last looked for, and for dumps whose file system did
    /// not answer. About every second.
    pub(super) fn look_for_perf_maps(&mut self, parts: &mut Parts<'_>) {
        for process in self.processes.iter_mut().filter(|process| process.is_live()) {
            let looks = !self.continuous || is_map_due(process, parts.requests.now);
            if looks && process.ran_at > MonoNs(0) {
                Announcements::look_for_perf_map(process, parts.files, parts.requests);
            }
            let who = (process.id, process.via);
            process.announcements.open_stalled(who, parts.files, parts.requests);
        }
    }
}
