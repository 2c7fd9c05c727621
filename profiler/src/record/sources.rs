//! What one process announces: its dumps, its perf map, and the code map they fill.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::account::{DumpAccount, SourceAccount};
use crate::code::CodeEvent;
use crate::jitdump::{ClockContext, DumpTail, FileHeader, HEADER_SIZE, ReaderOptions, TscConversion};
use crate::peek::Peek;
use crate::perfmap::PerfMapTail;
use crate::process::discover::{DumpMapping, find_dumps, is_jitdump};
use crate::process::open::{FileIdentity, TargetFile, open_mapping, open_perf_map};
use crate::process::{Mapping, Process, ProcessId, monotonic_now, procfs};
use crate::record::announced::Announced;
use crate::record::options::CallGraph;
use crate::units::MonoNs;

/// LLVM's listener adds the ELF header's size to every debug address.
const LLVM_DEBUG_BIAS: u64 = 0x40;
/// Dumps followed in one process at most. JITs in one process rarely are two; a target may map thousands.
const MAX_DUMPS: usize = 16;
/// A dump that has brought nothing for so long may go for a new one.
const IDLE_DUMP_NS: u64 = 10_000_000_000;
/// Who has announced something, or run, this lately is looked at with every tick; the others once a second.
const GROWING_NS: u64 = 2_000_000_000;
const IDLE_POLL_NS: u64 = 1_000_000_000;
/// Children that late records are passed on to; records arrive seconds late at most, so the oldest can go.
const MAX_HEIRS: usize = 64;

/// /proc rounds the start of a process down to a clock tick. What its parent announced right before it forked is later
/// than that; what it announced within the same tick after it forked does little harm.
const START_STEP_NS: u64 = 10_000_000;

/// The announcements of one process, and how far each of them has been read.
#[derive(Debug)]
pub(super) struct Sources {
    pub(super) id: ProcessId,
    pub(super) code: Announced,
    /// Pid in the process' own namespace, as dumps and perf maps name it.
    own_pid: u32,
    uid: u32,
    dumps: Vec<Dump>,
    perf_map: Option<PerfMapTail>,
    /// Children that have a copy of the map, and since when: records from before that still arrive are theirs, too.
    heirs: Vec<(ProcessId, MonoNs)>,
    /// When it was last sampled, looked at for a perf map, read, and found to have announced something.
    ran_at: MonoNs,
    looked_at: MonoNs,
    polled_at: MonoNs,
    grew_at: MonoNs,
    /// Takes up less than others, because it has announced too much.
    pub(super) bounded: bool,
    /// That some of its code found no room has been said.
    pub(super) refusal_said: bool,
}

#[derive(Debug)]
struct Dump {
    tail: DumpTail,
    identity: FileIdentity,
    peek: Option<Peek>,
    path: String,
    bytes_read: u64,
    /// For a dump inherited over fork: only what was announced before belongs to this process.
    until: Option<MonoNs>,
    /// Every record up to this time has been read.
    known_until: MonoNs,
    /// The file cannot be read any more.
    failed: bool,
    /// When it last brought something.
    grew_at: MonoNs,
}

/// What a poll brought.
#[derive(Debug, Default)]
pub(super) struct Polled {
    /// There is more to read at once.
    pub(super) more: bool,
    /// What went wrong, in words.
    pub(super) remarks: Vec<String>,
    /// Late announcements from before a fork, for the children.
    pub(super) inherited: Vec<(ProcessId, CodeEvent)>,
}

impl Polled {
    /// Joins what two polls brought.
    pub(super) fn add(&mut self, other: Self) {
        self.more |= other.more;
        self.remarks.extend(other.remarks);
        self.inherited.extend(other.inherited);
    }
}

/// How dumps are read.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadContext {
    pub(super) now: MonoNs,
    pub(super) tsc: Option<TscConversion>,
    pub(super) peek: bool,
}

impl Sources {
    /// For a process that has announced nothing yet.
    pub(super) fn new(id: ProcessId, call_graph: CallGraph) -> Self {
        let status = procfs::status(id.pid).ok();
        let mut code = Announced::new(call_graph);
        code.is_run_by(procfs::exe(id.pid).ok().flatten().as_deref());
        Self {
            id,
            code,
            own_pid: status.as_ref().map_or(id.pid.0, |status| status.own_pid()),
            uid: status.as_ref().map_or(0, |status| status.effective_uid),
            dumps: Vec::new(),
            perf_map: None,
            heirs: Vec::new(),
            ran_at: MonoNs(0),
            looked_at: MonoNs(0),
            polled_at: MonoNs(0),
            grew_at: MonoNs(0),
            bounded: false,
            refusal_said: false,
        }
    }

    /// A sample of it was taken at `time`.
    pub(super) fn ran(&mut self, time: MonoNs) {
        self.ran_at = self.ran_at.max(time);
    }

    /// Whether it was sampled since a perf map of it was last looked for.
    pub(super) fn ran_since_look(&self) -> bool {
        self.ran_at >= self.looked_at
    }

    /// Whether it generates code now.
    pub(super) fn is_growing(&self, now: MonoNs) -> bool {
        now.0.saturating_sub(self.grew_at.0) < GROWING_NS
    }

    /// Whether its files are to be read now, in a recording without end: a process that does not run announces nothing,
    /// but samples see only a part of what runs.
    pub(super) fn is_due(&self, now: MonoNs) -> bool {
        let any = !self.dumps.is_empty() || self.perf_map.is_some();
        let runs = now.0.saturating_sub(self.ran_at.0) < GROWING_NS || self.is_growing(now);
        any && (runs || now.0.saturating_sub(self.polled_at.0) >= IDLE_POLL_NS)
    }

    /// For a child made at `time`: it has its parent's code, and announces its own later.
    pub(super) fn forked(&mut self, child: ProcessId, time: MonoNs) -> Self {
        if self.heirs.len() >= MAX_HEIRS {
            self.heirs.remove(0);
        }
        self.heirs.push((child, time));
        // The mode is the parent's, too.
        Self { code: self.code.fork(time), ..Self::new(child, CallGraph::FramePointers) }
    }

    /// Ends all code: the process has become another program.
    pub(super) fn exec(&mut self, time: MonoNs) {
        self.code.end_all(time);
        self.code.is_run_by(procfs::exe(self.id.pid).ok().flatten().as_deref());
        self.dumps.clear();
        self.perf_map = None;
    }

    /// Whether anything names this process' generated code, or may do so when it is read.
    pub(super) fn any(&self) -> bool {
        !self.dumps.is_empty() || self.perf_map.is_some() || self.code.map.living() + self.code.map.ended() > 0
    }

    /// Whether code that runs may get rows later: from a dump that is still read, or from the code itself, if that may
    /// be read from memory.
    pub(super) fn may_bring_rows(&self, read_code: bool) -> bool {
        let from_memory = read_code && self.code.wants_code();
        self.code.rows().is_some() && (from_memory || self.dumps.iter().any(|dump| !dump.failed))
    }

    /// Until when every record of every dump is known; samples up to then can be resolved for good. `None` without
    /// dumps: a perf map has no times, and is most true when it is asked at once.
    pub(super) fn known_until(&self) -> Option<MonoNs> {
        self.dumps.iter().filter(|dump| !dump.failed).map(|dump| dump.known_until).min()
    }

    /// Looks through a process' mappings for dumps.
    pub(super) fn discover(&mut self, process: &Process, context: ReadContext, remarks: &mut Vec<String>) {
        for dump in find_dumps(process.space.live()) {
            self.open_dump(process, &dump, context, remarks);
        }
    }

    /// Follows a new mapping if it marks a dump.
    pub(super) fn mapped(
        &mut self,
        process: &Process,
        mapping: &Mapping,
        context: ReadContext,
        remarks: &mut Vec<String>,
    ) {
        for dump in find_dumps([mapping]) {
            self.open_dump(process, &dump, context, remarks);
        }
    }

    fn open_dump(&mut self, process: &Process, found: &DumpMapping, context: ReadContext, remarks: &mut Vec<String>) {
        let path = &*found.mapping.path;
        let TargetFile { file, identity, .. } = match open_mapping(process.id.pid, &found.mapping) {
            Ok(opened) => opened,
            Err(error) => {
                remarks.push(format!("dump of process {} not read: {error}", process.id.pid));
                return;
            }
        };
        let known = |dump: &Dump| dump.identity.inode == identity.inode && dump.identity.st_dev == identity.st_dev;
        if self.dumps.iter().any(known) {
            return;
        }
        if !self.drop_idle_dump(context.now) {
            remarks.push(format!("process {} maps more than {MAX_DUMPS} dumps; {path} is not read", process.id.pid));
            return;
        }
        // A dump whose header still sits in the producer's buffer is empty; what it is shows later.
        if identity.len > 0 && !is_jitdump(&file).unwrap_or(false) {
            remarks.push(format!("{path} is mapped like a jitdump and is none"));
            return;
        }
        let (Ok(reader), Ok(own)) = (file.try_clone(), file.try_clone()) else {
            remarks.push(format!("{path} not read: no file descriptor left (raise ulimit -n)"));
            return;
        };
        let inherited_from = header_pid(&file).filter(|pid| *pid != self.own_pid && *pid != 0);
        let options = ReaderOptions {
            namespace_pid: Some(inherited_from.unwrap_or(self.own_pid)),
            clock: Some(ClockContext {
                process_start: if inherited_from.is_some() { MonoNs(0) } else { process.id.start },
                // Not the tick's: the tail counts on from here, and what it lags behind makes records look like the future's.
                now: monotonic_now(),
                tsc: context.tsc,
            }),
            keep_code: self.code.wants_code(),
            debug_bias: path.contains("llvm-IR-jit-").then_some(LLVM_DEBUG_BIAS),
            ..ReaderOptions::default()
        };
        let peek = (context.peek && inherited_from.is_none())
            .then(|| Peek::new(process.id.pid, self.own_pid, process.id.start, own).ok())
            .flatten();
        self.dumps.push(Dump {
            tail: DumpTail::new(reader, options),
            identity,
            peek,
            path: path.to_owned(),
            bytes_read: 0,
            until: inherited_from.map(|_| MonoNs(process.id.start.0.saturating_add(START_STEP_NS))),
            known_until: MonoNs(0),
            failed: false,
            grew_at: context.now,
        });
    }

    /// Makes room for a dump: a program may begin a new one again and again. Returns whether there is room.
    fn drop_idle_dump(&mut self, now: MonoNs) -> bool {
        if self.dumps.len() < MAX_DUMPS {
            return true;
        }
        let idle = |dump: &&Dump| dump.failed || now.0.saturating_sub(dump.grew_at.0) >= IDLE_DUMP_NS;
        let oldest = self.dumps.iter().filter(idle).map(|dump| dump.grew_at).min();
        let at = oldest.and_then(|oldest| self.dumps.iter().position(|dump| dump.grew_at == oldest));
        at.map(|at| self.dumps.remove(at)).is_some()
    }

    /// Looks for a perf map, now and then: it may appear late, and be replaced. Returns whether it is a first one.
    pub(super) fn look_for_perf_map(&mut self, remarks: &mut Vec<String>) -> bool {
        self.looked_at = monotonic_now();
        // Absent is the normal case, and one that belongs to somebody else is not this process'.
        let Ok(opened) = open_perf_map(self.id.pid, self.own_pid, self.uid) else { return false };
        let Some(tail) = &mut self.perf_map else {
            self.perf_map = Some(PerfMapTail::new(opened.file));
            return true;
        };
        let replaced = opened.file.metadata().and_then(|metadata| tail.is_same(&metadata)).is_ok_and(|same| !same);
        if replaced && let Err(error) = tail.reopen(opened.file) {
            remarks.push(format!("new perf map of {} not read: {error}", self.id.pid));
        }
        false
    }

    /// Whether there is a perf map.
    pub(super) fn has_perf_map(&self) -> bool {
        self.perf_map.is_some()
    }

    /// Reads what is new everywhere.
    pub(super) fn poll(&mut self, now: MonoNs, alive: bool) -> Polled {
        let mut polled = Polled::default();
        self.polled_at = now;
        let (code, heirs) = (&mut self.code, &self.heirs);
        let version = code.map.version();
        for dump in self.dumps.iter_mut().filter(|dump| !dump.failed) {
            if let Err(error) = dump.poll(code, heirs, now, alive, &mut polled) {
                dump.failed = true;
                polled.remarks.push(format!("{} cannot be read any more: {error}", dump.path));
            }
        }
        if let Some(tail) = &mut self.perf_map {
            let mut lines = Vec::new();
            match tail.poll(now, &mut lines) {
                Ok(progress) => polled.more |= progress.more,
                Err(error) => {
                    polled.remarks.push(format!("perf map of {} cannot be read any more: {error}", self.id.pid));
                    self.perf_map = None;
                }
            }
            for line in lines {
                code.apply(line);
            }
        }
        if code.map.version() != version || polled.more {
            self.grew_at = now;
        }
        polled
    }

    /// Takes a last line without its end, once nothing more will be read.
    pub(super) fn finish(&mut self) {
        if let Some(tail) = &mut self.perf_map {
            let mut lines = Vec::new();
            tail.finish(&mut lines);
            for line in lines {
                self.code.apply(line);
            }
        }
    }

    /// For the account.
    pub(super) fn account(&self, comm: String) -> SourceAccount {
        SourceAccount {
            pid: self.id.pid.0,
            comm,
            functions: self.code.map.living() + self.code.map.ended(),
            map_bytes: self.code.map.bytes(),
            map: *self.code.map.stats(),
            dumps: self.dumps.iter().map(Dump::account).collect(),
            perf_map: self.perf_map.as_ref().map(|tail| *tail.stats()),
        }
    }
}

impl Dump {
    fn poll(
        &mut self,
        code: &mut Announced,
        heirs: &[(ProcessId, MonoNs)],
        now: MonoNs,
        alive: bool,
        polled: &mut Polled,
    ) -> std::io::Result<()> {
        let until = self.until;
        let inherited = &mut polled.inherited;
        let mut apply = |event: CodeEvent| {
            let time = event_time(&event);
            if until.is_some_and(|until| time > until) {
                return;
            }
            for (heir, _) in heirs.iter().filter(|(_, forked)| time <= *forked) {
                inherited.push((*heir, event.clone()));
            }
            code.apply(event);
        };
        let progress = self.tail.poll(&mut apply)?;
        self.bytes_read = self.bytes_read.saturating_add(progress.bytes_read);
        if progress.bytes_read > 0 {
            self.grew_at = now;
        }
        polled.more |= progress.more;
        self.known_until = self.known_until.max(self.tail.stats().watermark);
        if until.is_some_and(|until| self.known_until >= until) {
            self.known_until = MonoNs(u64::MAX);
        }
        if !progress.more && self.tail.is_complete() {
            self.known_until = self.known_until.max(now);
        } else if !progress.more
            && alive
            && let Some(peek) = &mut self.peek
        {
            for event in peek.poll(&self.tail) {
                apply(event);
            }
            if peek.is_current() {
                // File and buffer together hold every record written before this poll began.
                self.known_until = self.known_until.max(now);
            }
        }
        Ok(())
    }

    fn account(&self) -> DumpAccount {
        DumpAccount {
            path: self.path.clone(),
            bytes_read: self.bytes_read,
            records: self.tail.stats_so_far(),
            peek: self.peek.as_ref().map(Peek::stats),
        }
    }
}

fn event_time(event: &CodeEvent) -> MonoNs {
    match event {
        CodeEvent::Load(load) => load.time,
        CodeEvent::Inline(inline) => inline.time,
        CodeEvent::Move { time, .. } | CodeEvent::Unload { time, .. } | CodeEvent::Close { time } => *time,
    }
}

/// The pid that a dump's header names.
fn header_pid(file: &File) -> Option<u32> {
    let mut head = [0; HEADER_SIZE];
    file.read_exact_at(&mut head, 0).ok()?;
    FileHeader::parse(&head).map(|header| header.pid)
}
