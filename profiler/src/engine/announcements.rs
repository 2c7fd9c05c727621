//! Where one process announces its code: its dumps and its perf map, and how far each of them has been read.
//!
//! It asks for what is to be read, and takes what was read; a recording has that done on threads that can be given up,
//! and so does a look at a process without recording it ([`announced`](crate::record::announced)).

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use jitprof_common::units::{Avma, MonoNs, Pid};
use jitprof_jitdump::code::CodeEvent;
use jitprof_jitdump::perfmap::PerfMapStream;
use jitprof_jitdump::{FileBytes, ReaderOptions, TscConversion};

use crate::account::{DumpAccount, SourceAccount};
use crate::engine::border::{MapPlace, OlderMap, Opened, Output, Request, Unread, WhyUnread};
use crate::engine::dump::{Dump, DumpContext};
use crate::engine::files::Files;
use crate::engine::generated::GeneratedCode;
use crate::engine::process::{Process, Program};
use crate::engine::requests::{Purpose, Requests};
use crate::peek::{DumpEnd, Peek, Sight};
use crate::process::discover::{begins_dump, is_marker};
use crate::process::open::{FileId, FileIdentity};
use crate::process::{Mapping, ProcessId};

/// Dumps followed in one process at most. JITs in one process rarely are two; a target may map thousands.
const MAX_DUMPS: usize = 16;
/// Markers of dumps that are being opened at most.
const MAX_OPENING: usize = 16;
/// How long after a marker's file was asked for in vain, because there was no answer, it is asked for again: four times as
/// long after each time, and so many times.
const STALLED_NS: u64 = 5_000_000_000;
const MAX_TRIES: u32 = 5;
/// A dump that has brought nothing for so long may go for a new one.
const IDLE_DUMP_NS: u64 = 10_000_000_000;
/// Dumps of programs that have ended by exec(2) and are still read at most, and for how long: to the end of a file mostly
/// is one read.
const MAX_LEFT: usize = 16;
const LEFT_NS: u64 = 2_000_000_000;
/// Who has announced something, or run, this lately is looked at with every tick; the others once a second.
const GROWING_NS: u64 = 2_000_000_000;
const IDLE_POLL_NS: u64 = 1_000_000_000;
/// How long a perf map is not looked for again, at most, in a process without memory for generated code; in others that run it is
/// about a second.
const MAX_LOOK_NS: u64 = 16_000_000_000;

/// Names a dump of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DumpId(pub(super) FileId);

/// How announcements are read.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadContext {
    /// How counter ticks become times, as far as it is known.
    pub(super) tsc: Option<TscConversion>,
    /// Read what runtimes have not written yet.
    pub(super) peek: bool,
}

/// A perf map, and whether somebody is reading in it.
#[derive(Debug)]
struct PerfMap {
    file: FileId,
    /// Device and inode.
    identity: (u64, u64),
    stream: PerfMapStream,
    reading: bool,
    /// Mono writes its map through a buffer, and flushes it at its end.
    peek: Option<Peek>,
    peeking: bool,
    /// Its writer has ended, and all of it has been read.
    is_over: bool,
    /// Its first lines are another process', and it is not known how many: up to the last one of what is mapped nowhere,
    /// of what was there at the first look.
    is_mixed: bool,
}

/// A dump that is being opened, or is to be opened again.
#[derive(Debug)]
struct Opening {
    file: FileId,
    place: MapPlace,
    /// How often there was no answer.
    tries: u32,
    /// When it is asked for again; nothing while it is asked for.
    again_at: Option<MonoNs>,
}

/// The announcements of one process.
#[derive(Debug, Default)]
pub(super) struct Announcements {
    dumps: Vec<Dump>,
    /// Markers' files that are being opened.
    opening: Vec<Opening>,
    /// Those that nobody has answered for.
    stalled: Vec<Opening>,
    perf_map: Option<PerfMap>,
    /// What the program before has announced, which is read to its end.
    left: Vec<Dump>,
    left_map: Option<(PerfMap, MonoNs)>,
    /// A perf map, and how far its lines are those of somebody before: of another process with this number, or of the
    /// program that this one ran before. CPython goes on in such a file.
    of_others: Option<((u64, u64), PerfMapStream)>,
    /// As which file a perf map is being looked for.
    looking: Option<FileId>,
    /// There is one from before the process, and that has been said.
    has_older_map: bool,
    /// There is one that the process may not read itself, and that has been said.
    has_private_map: bool,
    /// When one was last looked for, and when first for this program.
    looked_at: MonoNs,
    first_looked_at: Option<MonoNs>,
    polled_at: MonoNs,
    /// Dumps are to be read with the next tick: a sample has met what they may announce, or one was being read.
    is_wanted: bool,
    grew_at: MonoNs,
    /// When lines of the perf map were last read...
    lines_at: Option<MonoNs>,
    /// ...and when it was last read to its end, whether it had new ones or not.
    map_read_at: Option<MonoNs>,
}

impl Announcements {
    /// Memory that waits for the rest of records that are not whole.
    pub(super) fn held_bytes(&self) -> usize {
        self.dumps.iter().chain(&self.left).map(Dump::held_bytes).sum()
    }

    /// Waits no longer for the rest of the largest of them.
    pub(super) fn give_up_largest(&mut self) {
        let largest = self.dumps.iter_mut().chain(&mut self.left).max_by_key(|dump| dump.held_bytes());
        if let Some(dump) = largest {
            dump.give_up_torn();
        }
    }
}

impl PerfMap {
    fn read_on(&mut self, id: ProcessId, requests: &mut Requests) {
        self.reading = true;
        let request = Request::Read { file: self.file, next: self.stream.next_read() };
        requests.ask(Purpose::PerfMap(id, self.file), request);
    }

    /// Looks at what the runtime has not written, with the file read to its end.
    fn look_at_buffer(&mut self, id: ProcessId, via: Pid, requests: &mut Requests) {
        let Some(peek) = &mut self.peek else { return };
        let end = DumpEnd::of_map(&self.stream);
        let Some(look) = end.and_then(|end| peek.look((via, self.file, self.identity), end, requests.now)) else {
            return;
        };
        self.peeking = true;
        requests.ask(Purpose::Peek(id, DumpId(self.file)), Request::Peek(Box::new(look)));
    }
}

/// What reading has brought.
#[derive(Debug, Default)]
pub(super) struct Brought {
    /// Code events, in their order; those from before a fork are the children's, too.
    pub(super) events: Vec<CodeEvent>,
    /// The lines of the perf map that were read before were another process'.
    pub(super) drops_lines: bool,
    /// There is something to announce code now, which there was not before.
    pub(super) is_first: bool,
}

impl Announcements {
    /// Whether anything announces this process' code, or may do so when it is opened.
    pub(super) fn any(&self) -> bool {
        !self.dumps.is_empty() || self.perf_map.is_some() || !self.opening.is_empty()
    }

    /// Whether there are files that are read again and again.
    pub(super) fn has_files(&self) -> bool {
        !self.dumps.is_empty() || self.perf_map.is_some() || self.is_leaving()
    }

    /// Whether there is a dump, or may be.
    pub(super) fn has_dump(&self) -> bool {
        self.may_bring_rows()
    }

    /// Whether there is a perf map.
    pub(super) fn has_perf_map(&self) -> bool {
        self.perf_map.is_some()
    }

    /// When lines of the perf map were last read, if any were.
    pub(super) fn lines_at(&self) -> Option<MonoNs> {
        self.lines_at
    }

    /// When the perf map was last read to its end: what was there before it has, if its writer adds a line before code can run.
    pub(super) fn map_read_at(&self) -> Option<MonoNs> {
        self.map_read_at
    }

    /// Whether code that runs may get rows later: from a dump that is still read.
    pub(super) fn may_bring_rows(&self) -> bool {
        !self.opening.is_empty() || self.dumps.iter().any(|dump| !dump.has_failed())
    }

    /// Whether it brings something now.
    pub(super) fn is_growing(&self, now: MonoNs) -> bool {
        now.0.saturating_sub(self.grew_at.0) < GROWING_NS
    }

    /// Whether its files are to be read now, in a continuous recording: a process that does not run announces nothing,
    /// but samples see only a part of what runs.
    pub(super) fn is_due(&self, ran_at: MonoNs, now: MonoNs) -> bool {
        let any = !self.dumps.is_empty() || self.perf_map.is_some();
        let runs = now.0.saturating_sub(ran_at.0) < GROWING_NS || self.is_growing(now);
        any && (runs || now.0.saturating_sub(self.polled_at.0) >= IDLE_POLL_NS)
    }

    /// Until when every record of every dump is known; samples up to then can be resolved for good. `None` without
    /// dumps: a perf map has no times, and is most true when it is asked at once.
    pub(super) fn known_until(&self) -> Option<MonoNs> {
        if !self.opening.is_empty() {
            return Some(MonoNs(0));
        }
        let read = self.dumps.iter().chain(&self.left).filter(|dump| !dump.has_failed());
        read.map(Dump::known_until).min()
    }

    /// Whether what runs now may have announced something before `time` that cannot be read yet.
    pub(super) fn may_lack_before(&self, time: MonoNs) -> bool {
        self.dumps.iter().filter_map(Dump::may_lack_from).any(|from| from <= time)
    }

    /// Where a dump is mapped that is being opened.
    pub(super) fn place_of(&self, file: FileId) -> Option<Avma> {
        self.opening.iter().find(|opening| opening.file == file).map(|opening| opening.place.start)
    }

    /// Whether a file is a dump that the process itself has begun.
    pub(super) fn writes(&self, identity: &FileIdentity) -> bool {
        self.dumps.iter().any(|dump| dump.is_own() && dump.is_same(identity))
    }

    /// Whether a perf map is to be looked for again, in a continuous recording, of a process that was sampled last at a time: less
    /// and less often where there is no memory for generated code.
    pub(super) fn is_map_due(&self, ran_at: MonoNs, now: MonoNs, may_generate: impl FnOnce() -> bool) -> bool {
        let since_first = self.first_looked_at.map_or(0, |first| self.looked_at.0.saturating_sub(first.0));
        let has_rested = now.0.saturating_sub(self.looked_at.0) >= since_first.min(MAX_LOOK_NS);
        ran_at >= self.looked_at && (has_rested || self.perf_map.is_some() || may_generate())
    }

    /// A sample has met code that it may announce, or waits for its rows.
    pub(super) fn want(&mut self) {
        self.is_wanted = true;
    }

    /// What it follows is closed.
    pub(super) fn close(&mut self, requests: &mut Requests) {
        for dump in std::mem::take(&mut self.dumps).into_iter().chain(std::mem::take(&mut self.left)) {
            dump.close(requests);
        }
        let left = self.left_map.take().map(|(map, _)| map);
        for map in self.perf_map.take().into_iter().chain(left).filter(|map| !map.is_over) {
            requests.output(Output::Close(map.file));
        }
        self.opening.clear();
        self.stalled.clear();
        (self.looking, self.lines_at, self.map_read_at) = (None, None, None);
    }

    /// The process runs another program since `time`: what the one before has announced until then is read to its end.
    pub(super) fn leave(&mut self, id: ProcessId, time: MonoNs, requests: &mut Requests) {
        let dumps = std::mem::take(&mut self.dumps);
        let map = self.perf_map.take().filter(|map| !map.is_over);
        for mut dump in dumps {
            if dump.is_done() || self.left.len() >= MAX_LEFT {
                dump.close(requests);
            } else {
                dump.end(time, id, requests);
                self.left.push(dump);
            }
        }
        let before = map.and_then(|map| self.left_map.replace((map, time)));
        if let Some((map, _)) = before {
            requests.output(Output::Close(map.file));
        }
        self.poll_left_map(id, requests);
        self.opening.clear();
        self.stalled.clear();
        (self.looking, self.lines_at, self.map_read_at) = (None, None, None);
        self.first_looked_at = None;
    }

    /// Whether something of the program before is still read.
    pub(super) fn is_leaving(&self) -> bool {
        !self.left.is_empty() || self.left_map.is_some()
    }

    /// Reads on in what the program before has announced, and gives up what does not come to an end.
    fn poll_left(&mut self, id: ProcessId, requests: &mut Requests) {
        let now = requests.now;
        let is_late = |since: MonoNs| now.0.saturating_sub(since.0) >= LEFT_NS;
        let is_left = |dump: &mut Dump| dump.is_done() || dump.ended_at().is_some_and(is_late);
        let left: Vec<Dump> = self.left.extract_if(.., is_left).collect();
        left.into_iter().for_each(|dump| dump.close(requests));
        if let Some((map, _)) = self.left_map.take_if(|(_, since)| is_late(*since)) {
            requests.output(Output::Close(map.file));
        }
        self.left.iter_mut().for_each(|dump| dump.poll(id, requests));
        self.poll_left_map(id, requests);
    }

    fn poll_left_map(&mut self, id: ProcessId, requests: &mut Requests) {
        if let Some((map, _)) = self.left_map.as_mut().filter(|(map, _)| !map.reading) {
            map.read_on(id, requests);
        }
    }

    /// Opens the dump that a mapping marks, if it does.
    pub(super) fn note_mapping(
        &mut self,
        (id, via): (ProcessId, Pid),
        mapping: &Mapping,
        files: &mut Files,
        requests: &mut Requests,
    ) {
        let known = |dump: &Dump| mapping.inode != 0 && dump.is_of(mapping.device, mapping.inode);
        if !is_marker(mapping) || self.dumps.iter().any(known) {
            return;
        }
        if self.opening.len() >= MAX_OPENING {
            requests.remark(format!("process {} maps too many dumps at once; {} is not read", id.pid, mapping.path));
            return;
        }
        self.open((id, via), (MapPlace::of(mapping), 0), files, requests);
    }

    fn open(
        &mut self,
        (id, via): (ProcessId, Pid),
        (place, tries): (MapPlace, u32),
        files: &mut Files,
        requests: &mut Requests,
    ) {
        let file = files.new_file();
        let purpose = Purpose::OpenDump(id, file, Arc::clone(&place.path));
        requests.ask(purpose, Request::Open { via, place: place.clone(), file, debug: false });
        self.opening.push(Opening { file, place, tries, again_at: None });
    }

    /// Asks again for dumps whose file system did not answer. About every second.
    pub(super) fn open_stalled(&mut self, who: (ProcessId, Pid), files: &mut Files, requests: &mut Requests) {
        let now = requests.now;
        let due = self.stalled.extract_if(.., |stalled| stalled.again_at.is_none_or(|at| at <= now));
        for Opening { place, tries, .. } in due.collect::<Vec<_>>() {
            self.open(who, (place, tries), files, requests);
        }
    }

    /// Takes up an opened dump.
    pub(super) fn take_dump(
        &mut self,
        (process, inherits_until): (ProcessId, MonoNs),
        (program, keep_code, shared_code): (Option<&Program>, bool, Arc<[Range<u64>]>),
        (file, path): (FileId, &Arc<str>),
        (opened, context): (Result<Opened, Unread>, ReadContext),
        requests: &mut Requests,
    ) -> Brought {
        let refuse = |requests: &mut Requests, text: Option<fmt::Arguments<'_>>| {
            requests.output(Output::Close(file));
            if let Some(text) = text {
                requests.remark(text.to_string());
            }
            Brought::default()
        };
        let Some(at) = self.opening.iter().position(|opening| opening.file == file) else {
            // It belonged to the program before.
            return if opened.is_ok() { refuse(requests, None) } else { Brought::default() };
        };
        let opening = self.opening.swap_remove(at);
        let opened = match opened {
            Ok(opened) => opened,
            Err(unread) => {
                if unread.why == WhyUnread::Stalled && opening.tries < MAX_TRIES && self.stalled.len() < MAX_OPENING {
                    let wait = STALLED_NS.saturating_mul(4_u64.saturating_pow(opening.tries));
                    let again_at = Some(MonoNs(requests.now.0.saturating_add(wait)));
                    self.stalled.push(Opening { tries: opening.tries + 1, again_at, ..opening });
                }
                if unread.why != WhyUnread::Gone {
                    requests.remark(format!("dump of process {} not read: {}", process.pid, unread.text));
                }
                return Brought::default();
            }
        };
        if self.dumps.iter().any(|dump| dump.is_same(&opened.identity)) {
            return refuse(requests, None);
        }
        // A dump whose header still sits in the producer's buffer is empty; what it is shows later.
        if !opened.head.is_empty() && !begins_dump(&opened.head) {
            return refuse(requests, Some(format_args!("{path} is mapped like a jitdump and is none")));
        }
        if !self.make_place(requests) {
            return refuse(
                requests,
                Some(format_args!("process {} maps more than {MAX_DUMPS} dumps; {path} is not read", process.pid)),
            );
        }
        let own_pid = program.map_or(process.pid.0, |program| program.own_pid);
        let context =
            DumpContext { process, inherits_until, own_pid, keep_code, shared_code, context, now: requests.now };
        let is_first = !self.any();
        self.dumps.push(Dump::new(file, Arc::clone(path), &opened, &context));
        Brought { is_first, ..Brought::default() }
    }

    /// Makes room for a dump: a program may begin a new one again and again. Returns whether there is room.
    fn make_place(&mut self, requests: &mut Requests) -> bool {
        if self.dumps.len() < MAX_DUMPS {
            return true;
        }
        let idle = |dump: &Dump| dump.has_failed() || requests.now.0.saturating_sub(dump.grew_at().0) >= IDLE_DUMP_NS;
        let dumps = self.dumps.iter().enumerate().filter(|(_, dump)| idle(dump));
        let Some(oldest) = dumps.min_by_key(|(_, dump)| dump.grew_at()).map(|(index, _)| index) else { return false };
        self.dumps.remove(oldest).close(requests);
        true
    }

    /// Looks for a perf map: it may appear late, and be replaced.
    pub(super) fn look_for_perf_map(process: &mut Process, files: &mut Files, requests: &mut Requests) {
        let Some((own_pid, uid)) = process.known_program().map(|program| (program.own_pid, program.uid)) else {
            return;
        };
        let own = &mut process.announcements;
        own.looked_at = requests.now;
        own.first_looked_at.get_or_insert(requests.now);
        if own.looking.is_some() {
            return;
        }
        let (file, unless) = (files.new_file(), own.perf_map.as_ref().map(|map| map.identity));
        own.looking = Some(file);
        let request = Request::OpenPerfMap { via: process.via, own_pid, uid, file, unless };
        requests.ask(Purpose::OpenPerfMap(process.id, file), request);
    }

    /// Takes up an opened perf map.
    pub(super) fn take_perf_map(
        &mut self,
        file: FileId,
        opened: Result<Opened, Unread>,
        peek: Option<Peek>,
        requests: &mut Requests,
    ) -> Brought {
        // One that was looked for on behalf of the program before is none of this one's.
        let was_looking = self.looking.take_if(|looking| *looking == file).is_some();
        // Absent is the normal case, and one that belongs to somebody else is not this process'.
        let opened = match opened {
            Ok(opened) => opened,
            Err(unread) => {
                if unread.why == WhyUnread::Private && !std::mem::replace(&mut self.has_private_map, true) {
                    requests.remark(unread.text);
                }
                return Brought::default();
            }
        };
        let identity = (opened.identity.st_dev, opened.identity.inode);
        let close = Output::Close;
        let is_known = |map: &PerfMap| map.identity == identity;
        // What is still read as the program's before is looked at again when that is done.
        let is_left = self.left_map.as_ref().is_some_and(|(map, _)| is_known(map));
        if !was_looking || is_left || self.perf_map.as_ref().is_some_and(is_known) {
            requests.output(close(file));
            return Brought::default();
        }
        let is_first = !self.any();
        let of_others = self.of_others.as_ref().filter(|(others, _)| *others == identity);
        let is_mixed = opened.is_inherited && of_others.is_none();
        let stream = of_others.map_or_else(PerfMapStream::new, |(_, stream)| stream.behind());
        match &mut self.perf_map {
            Some(map) => {
                requests.output(close(std::mem::replace(&mut map.file, file)));
                map.identity = identity;
                (map.reading, map.peeking, map.peek, map.is_mixed) = (false, false, peek, is_mixed);
                map.stream.restart();
                self.map_read_at = None;
            }
            None => {
                let (reading, peeking, is_over) = (false, false, false);
                self.perf_map = Some(PerfMap { file, identity, stream, reading, peek, peeking, is_over, is_mixed });
            }
        }
        Brought { is_first, ..Brought::default() }
    }

    /// There is one from before the process: what the process writes into it begins where it ends now.
    pub(super) fn note_older_map(&mut self, file: FileId, older: OlderMap, requests: &mut Requests) {
        if self.looking.take_if(|looking| *looking == file).is_none() {
            return;
        }
        if !std::mem::replace(&mut self.has_older_map, true) {
            requests.remark(format!("{}, so it is not read", older.text));
        }
        self.of_others = Some((older.identity, PerfMapStream::beginning_at(older.len, &older.trail)));
    }

    /// Has read what is new everywhere.
    pub(super) fn poll(&mut self, id: ProcessId, requests: &mut Requests) {
        self.polled_at = requests.now;
        self.is_wanted = self.dumps.iter().any(Dump::is_busy);
        for dump in &mut self.dumps {
            dump.poll(id, requests);
        }
        self.poll_perf_map(id, requests);
        self.poll_left(id, requests);
    }

    /// The same, but for dumps that have brought nothing lately, for which samples can wait: those once a second, and soon after
    /// a window has ended, as one has at `ended`.
    pub(super) fn poll_seldom(&mut self, id: ProcessId, ended: MonoNs, requests: &mut Requests) {
        if self.is_quiet(ended, requests.now) {
            self.poll_perf_map(id, requests);
            self.poll_left(id, requests);
        } else {
            self.poll(id, requests);
        }
    }

    fn is_quiet(&self, ended: MonoNs, now: MonoNs) -> bool {
        let was_polled = self.polled_at >= ended && now.0.saturating_sub(self.polled_at.0) < IDLE_POLL_NS;
        was_polled && !self.is_wanted && !self.is_growing(now)
    }

    fn poll_perf_map(&mut self, id: ProcessId, requests: &mut Requests) {
        if let Some(map) = self.perf_map.as_mut().filter(|map| !map.reading && !map.peeking && !map.is_over) {
            map.read_on(id, requests);
        }
    }

    /// Takes up what was read of a dump since `begun`.
    pub(super) fn take_read(
        &mut self,
        (id, via, exit_time): (ProcessId, Pid, Option<MonoNs>),
        dump: DumpId,
        (read, begun): (Result<FileBytes, Unread>, MonoNs),
        tsc: Option<TscConversion>,
        requests: &mut Requests,
    ) -> Brought {
        let mut brought = Brought::default();
        let mut dumps = self.dumps.iter_mut().chain(&mut self.left);
        let Some(dump) = dumps.find(|known| known.id() == dump) else { return brought };
        if let Some(tsc) = tsc {
            dump.set_ticks(tsc);
        }
        if dump.take_read((id, via, exit_time), (read, begun), &mut brought.events, requests) {
            self.grew_at = requests.now;
        }
        brought
    }

    /// Takes up what was seen of a dump's unwritten end.
    pub(super) fn take_sight(&mut self, dump: DumpId, sight: Sight, begun: MonoNs, now: MonoNs) -> Brought {
        let mut brought = Brought::default();
        if let Some(map) = self.perf_map.as_mut().filter(|map| map.peeking && map.file == dump.0) {
            map.peeking = false;
            if let Some(peek) = &mut map.peek {
                brought.events = peek.take(sight, &map.stream, now);
            }
            if !brought.events.is_empty() {
                self.grew_at = now;
            }
        } else if let Some(dump) = self.dumps.iter_mut().chain(&mut self.left).find(|known| known.id() == dump) {
            dump.take_sight(sight, begun, now, &mut brought.events);
            if !brought.events.is_empty() {
                self.grew_at = now;
            }
        }
        brought
    }

    /// Takes up what was read of the perf map since `begun`. `is_its` says whether something is mapped there.
    pub(super) fn take_lines(
        &mut self,
        (id, via, exit_time): (ProcessId, Pid, Option<MonoNs>),
        file: FileId,
        (read, begun): (Result<FileBytes, Unread>, MonoNs),
        is_its: impl Fn(Avma) -> bool,
        requests: &mut Requests,
    ) -> Brought {
        let mut brought = Brought::default();
        if self.left_map.as_ref().is_some_and(|(map, _)| map.file == file) {
            self.take_last_lines(id, (read, begun), &mut brought.events, requests);
            return brought;
        }
        // What was read of the one before says nothing about this one.
        let Some(map) = self.perf_map.as_mut().filter(|map| map.reading && map.file == file) else { return brought };
        map.reading = false;
        match read {
            Ok(bytes) => {
                let progress = map.stream.take(bytes.as_look(), begun, &mut brought.events);
                if map.is_mixed {
                    let is_others = |event: &CodeEvent| event.start().is_some_and(|start| !is_its(start));
                    if let Some(last) = brought.events.iter().rposition(is_others) {
                        brought.events.drain(..=last);
                        brought.drops_lines = true;
                    }
                    map.is_mixed = progress.more && !progress.restarted;
                }
                if progress.events > 0 {
                    self.lines_at = Some(begun);
                }
                if !progress.more {
                    self.map_read_at = Some(begun);
                }
                if progress.events > 0 || progress.more {
                    self.grew_at = requests.now;
                }
                if progress.is_hopeless {
                    map.is_over = true;
                    requests.output(Output::Close(map.file));
                    requests.remark(format!("perf map of {} is none: not read any further", id.pid));
                } else if progress.more {
                    self.poll_perf_map(id, requests);
                } else if exit_time.is_some_and(|exit| exit <= begun) {
                    map.stream.finish(&mut brought.events);
                    map.is_over = true;
                    requests.output(Output::Close(map.file));
                } else if exit_time.is_none() {
                    map.look_at_buffer(id, via, requests);
                }
            }
            // There was no time for it, or its file system holds it up: it is read with the next turn.
            Err(unread) if unread.why == WhyUnread::Stalled && exit_time.is_none() => {}
            Err(unread) => {
                requests.remark(format!("perf map of {} cannot be read any more: {}", id.pid, unread.text));
                requests.output(Output::Close(map.file));
                self.perf_map = None;
            }
        }
        brought
    }

    /// Takes up what was read of the map of the program before, whose lines are all from before its end.
    fn take_last_lines(
        &mut self,
        id: ProcessId,
        (read, begun): (Result<FileBytes, Unread>, MonoNs),
        events: &mut Vec<CodeEvent>,
        requests: &mut Requests,
    ) {
        let Some((mut map, end)) = self.left_map.take() else { return };
        map.reading = false;
        let mut goes_on = false;
        if let Ok(bytes) = read {
            let last = MonoNs(end.0.saturating_sub(1));
            let progress = map.stream.take(bytes.as_look(), begun.min(last), events);
            goes_on = (progress.more || begun < end) && !progress.is_hopeless;
            if !goes_on {
                map.stream.finish(events);
            }
            // Lines of an unknown time would be the new program's.
            for event in events {
                if let CodeEvent::Load(load) = event {
                    load.time = load.time.max(MonoNs(1));
                }
            }
        }
        if goes_on {
            self.left_map = Some((map, end));
            self.poll_left_map(id, requests);
        } else {
            self.of_others = Some((map.identity, map.stream.behind()));
            requests.output(Output::Close(map.file));
        }
    }

    /// The last line of a map, which has no end, once nothing more will be read.
    pub(super) fn finish(&mut self) -> Vec<CodeEvent> {
        let mut lines = Vec::new();
        if let Some(map) = &mut self.perf_map {
            map.stream.finish(&mut lines);
        }
        lines
    }

    /// The dumps: as which file each is open, its path, and how it is read.
    pub(super) fn files(&self) -> Vec<(FileId, Arc<str>, ReaderOptions)> {
        self.dumps.iter().map(Dump::opened_as).collect()
    }

    /// For the account.
    pub(super) fn account(&self, pid: Pid, comm: String, code: &GeneratedCode) -> SourceAccount {
        SourceAccount {
            pid: pid.0,
            comm,
            functions: code.map.living() + code.map.ended(),
            map_bytes: code.map.bytes(),
            map: *code.map.stats(),
            dumps: self.dumps.iter().map(Dump::account).collect::<Vec<DumpAccount>>(),
            perf_map: self.perf_map.as_ref().map(|map| *map.stream.stats()),
            tables: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_bytes::ByteBuf;

    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn dumps_rest_while_they_bring_nothing_unless_a_window_has_ended_or_a_sample_wants_them() {
        let mut announcements = Announcements { polled_at: MonoNs(10_000 * MS), ..Announcements::default() };
        let quiet = |own: &Announcements, ended: u64, now: u64| own.is_quiet(MonoNs(ended * MS), MonoNs(now * MS));
        assert_eq!([10_000, 10_999, 11_000].map(|now| quiet(&announcements, 9_000, now)), [true, true, false]);
        assert!(!quiet(&announcements, 10_200, 10_400), "samples of the window wait for them");
        announcements.want();
        assert!(!quiet(&announcements, 9_000, 10_400));
        (announcements.is_wanted, announcements.grew_at) = (false, MonoNs(8_500 * MS));
        assert!(!quiet(&announcements, 9_000, 10_400) && quiet(&announcements, 9_000, 10_500));
    }

    #[test]
    fn a_perf_map_is_looked_for_less_and_less_often_where_no_code_is_generated() {
        let looks = |may_generate: bool| {
            let (mut announcements, mut looks) = (Announcements::default(), Vec::new());
            for second in 10..80 {
                let now = MonoNs(second * 1000 * MS);
                if announcements.is_map_due(now, now, || may_generate) {
                    looks.push(second);
                    announcements.looked_at = now;
                    announcements.first_looked_at.get_or_insert(now);
                }
            }
            looks
        };
        assert_eq!(looks(false), [10, 11, 12, 14, 18, 26, 42, 58, 74]);
        assert_eq!(looks(true).len(), 70);
    }

    #[test]
    fn a_perf_map_from_before_the_process_announces_nothing_and_is_remarked_on_once() {
        let (mut announcements, mut requests) = (Announcements::default(), Requests::default());
        for _ in 0..3 {
            let text = "/tmp/perf-7.map is older than the process 7".to_owned();
            let older = OlderMap { identity: (1, 2), len: 100, trail: ByteBuf::new(), text };
            announcements.looking = Some(FileId(1));
            announcements.note_older_map(FileId(1), older, &mut requests);
        }
        assert!(!announcements.any());
        assert_eq!(requests.take_remarks(), ["/tmp/perf-7.map is older than the process 7, so it is not read"]);
    }
    #[test]
    fn a_perf_map_that_the_process_may_not_read_is_remarked_on_once_and_other_failures_are_not() {
        let (mut announcements, mut requests) = (Announcements::default(), Requests::default());
        for why in [WhyUnread::Failed, WhyUnread::Private, WhyUnread::Gone, WhyUnread::Private] {
            announcements.looking = Some(FileId(1));
            let refused = Err(Unread { why, text: format!("{why:?}") });
            announcements.take_perf_map(FileId(1), refused, None, &mut requests);
        }
        assert!(!announcements.any());
        assert_eq!(requests.take_remarks(), ["Private"]);
    }
}
