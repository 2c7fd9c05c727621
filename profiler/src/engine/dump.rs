//! One dump of one process: the stream of what is in the file, and what the runtime has not written yet.

use std::ops::Range;
use std::sync::Arc;

use jitprof_common::units::{MonoNs, Pid};
use jitprof_jitdump::code::CodeEvent;
use jitprof_jitdump::{ClockContext, DumpStream, FileBytes, FileHeader, ReaderOptions, TscConversion, bias_of_path};

use crate::account::DumpAccount;
use crate::engine::announcements::{DumpId, ReadContext};
use crate::engine::border::{Opened, Output, Request, Unread, WhyUnread};
use crate::engine::requests::{Purpose, Requests};
use crate::peek::{DumpEnd, Peek, Sight, is_block_buffered};
use crate::process::open::{FileId, FileIdentity};
use crate::process::{Device, ProcessId};

/// /proc rounds the start of a process down to a clock tick. What its parent announced right before it forked is later
/// than that; what it announced within the same tick after it forked does little harm. A process that was seen to be made
/// has its exact start.
pub(super) const START_STEP_NS: u64 = 10_000_000;

/// What somebody is doing with a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Busy {
    No,
    /// Since when.
    Reading,
    Peeking,
}

/// A followed dump.
#[derive(Debug)]
pub(super) struct Dump {
    file: FileId,
    path: Arc<str>,
    identity: FileIdentity,
    options: ReaderOptions,
    stream: DumpStream,
    peek: Option<Peek>,
    busy: Busy,
    bytes_read: u64,
    /// For a dump inherited over fork: only what was announced before belongs to this process, and code in memory that it
    /// shares with others.
    until: Option<MonoNs>,
    /// When the program that writes it ended, though not its process: by exec(2).
    ended_at: Option<MonoNs>,
    /// Every record up to this time has been read.
    known_until: MonoNs,
    /// The file cannot be read any more.
    failed: bool,
    /// Its writer has ended, and all of it has been read.
    is_over: bool,
    /// When it last brought something.
    grew_at: MonoNs,
}

/// What a dump is opened with.
#[derive(Debug)]
pub(super) struct DumpContext {
    pub(super) process: ProcessId,
    /// If it has inherited the dump: until when what is announced there is its own.
    pub(super) inherits_until: MonoNs,
    /// Its pid in its own namespace.
    pub(super) own_pid: u32,
    pub(super) keep_code: bool,
    /// Where its code is that of others, too.
    pub(super) shared_code: Arc<[Range<u64>]>,
    pub(super) context: ReadContext,
    pub(super) now: MonoNs,
}

impl Dump {
    /// Follows an opened file from its start.
    pub(super) fn new(file: FileId, path: Arc<str>, opened: &Opened, context: &DumpContext) -> Self {
        let DumpContext { process, inherits_until, own_pid, keep_code, ref shared_code, context, now } = *context;
        let header_pid = FileHeader::parse(&opened.head).map(|header| header.pid);
        let inherited_from = header_pid.filter(|pid| *pid != own_pid && *pid != 0);
        let options = ReaderOptions {
            namespace_pid: Some(inherited_from.unwrap_or(own_pid)),
            clock: Some(ClockContext {
                process_start: if inherited_from.is_some() { MonoNs(0) } else { process.start },
                now,
                tsc: context.tsc,
            }),
            keep_code,
            shared_code: Arc::clone(shared_code),
            debug_bias: bias_of_path(&path),
            ..ReaderOptions::default()
        };
        let peek = (context.peek && inherited_from.is_none()).then(|| Peek::new(own_pid, process.start));
        Self {
            file,
            path,
            identity: opened.identity,
            stream: DumpStream::new(options.clone()),
            options,
            peek,
            busy: Busy::No,
            bytes_read: 0,
            until: inherited_from.map(|_| inherits_until),
            ended_at: None,
            known_until: MonoNs(0),
            failed: false,
            is_over: false,
            grew_at: now,
        }
    }

    /// How counter ticks become times is known better.
    pub(super) fn set_ticks(&mut self, tsc: TscConversion) {
        self.stream.set_ticks(tsc);
    }

    /// Memory that waits for the rest of a record.
    pub(super) fn held_bytes(&self) -> usize {
        self.stream.held_bytes()
    }

    /// Waits for it no longer.
    pub(super) fn give_up_torn(&mut self) {
        self.stream.give_up_torn();
    }

    /// Its name among the dumps of its process.
    pub(super) fn id(&self) -> DumpId {
        DumpId(self.file)
    }

    /// As which file it is open, its path, and how it is read.
    pub(super) fn opened_as(&self) -> (FileId, Arc<str>, ReaderOptions) {
        (self.file, Arc::clone(&self.path), self.options.clone())
    }

    /// Whether it is the file of a mapping; another device in maps than stat(2)'s may make it look like another one.
    pub(super) fn is_of(&self, device: Device, inode: u64) -> bool {
        self.identity.inode == inode && self.identity.device == device
    }

    /// Whether it is the same file.
    pub(super) fn is_same(&self, identity: &FileIdentity) -> bool {
        self.identity.inode == identity.inode && self.identity.st_dev == identity.st_dev
    }

    /// Whether it was begun by its process, not by an ancestor.
    pub(super) fn is_own(&self) -> bool {
        self.until.is_none()
    }

    /// Whether it cannot be read any more.
    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Every record up to this time has been read.
    pub(super) fn known_until(&self) -> MonoNs {
        self.known_until
    }

    /// From when on there may be records that its writer has not written yet and that could not be read from its buffer.
    pub(super) fn may_lack_from(&self) -> Option<MonoNs> {
        let has_buffer = self.peek.as_ref().is_some_and(Peek::has_found);
        let is_buffered = has_buffer || is_block_buffered(self.stream.file_len());
        let may_come = !self.is_done() && !self.stream.is_complete() && is_buffered;
        may_come.then_some(self.known_until)
    }

    /// When it last brought something.
    pub(super) fn grew_at(&self) -> MonoNs {
        self.grew_at
    }

    /// The program that writes it has ended at `time`, by exec(2): it is read to the end, and nobody's memory belongs to
    /// it.
    pub(super) fn end(&mut self, time: MonoNs, process: ProcessId, requests: &mut Requests) {
        self.ended_at = Some(time);
        self.poll(process, requests);
    }

    /// When the program that writes it ended, though not its process.
    pub(super) fn ended_at(&self) -> Option<MonoNs> {
        self.ended_at
    }

    /// Whether all of it has been read that will ever be.
    pub(super) fn is_done(&self) -> bool {
        self.is_over || self.failed
    }

    /// Whether somebody is reading it.
    pub(super) fn is_busy(&self) -> bool {
        self.busy != Busy::No
    }

    /// It is followed no more.
    pub(super) fn close(self, requests: &mut Requests) {
        if !self.is_over {
            requests.output(Output::Close(self.file));
        }
    }

    /// Has read what is new.
    pub(super) fn poll(&mut self, process: ProcessId, requests: &mut Requests) {
        if self.failed || self.is_over || self.busy != Busy::No {
            return;
        }
        self.busy = Busy::Reading;
        let request = Request::Read { file: self.file, next: self.stream.next_read() };
        requests.ask(Purpose::Dump(process, self.id()), request);
    }

    /// Takes up what was read since `begun`, and goes on: with the file if there is more of it, else with what the
    /// runtime has not written. Returns whether it has brought anything.
    pub(super) fn take_read(
        &mut self,
        (process, via, exit_time): (ProcessId, Pid, Option<MonoNs>),
        (read, begun): (Result<FileBytes, Unread>, MonoNs),
        events: &mut Vec<CodeEvent>,
        requests: &mut Requests,
    ) -> bool {
        if self.busy != Busy::Reading {
            return false;
        }
        self.busy = Busy::No;
        let bytes = match read {
            Ok(bytes) => bytes,
            // There was no time for it, or its file system holds it up: it is read with the next turn, as far as it goes.
            Err(unread) if unread.why == WhyUnread::Stalled && exit_time.is_none() => return false,
            Err(unread) => {
                self.failed = true;
                requests.remark(format!("{} cannot be read any more: {}", self.path, unread.text));
                return false;
            }
        };
        let (until, ended_at, options) = (self.until, self.ended_at, &self.options);
        let progress = self.stream.take(bytes.as_look(), requests.now, &mut |event: CodeEvent| {
            let is_shared = || event.start().is_some_and(|start| options.is_shared(start.0));
            let is_its = ended_at.is_none_or(|end| event.time() < end);
            if is_its && (until.is_none_or(|until| event.time() <= until) || is_shared()) {
                events.push(event);
            }
        });
        self.bytes_read = self.bytes_read.saturating_add(progress.bytes_read);
        if progress.bytes_read > 0 {
            self.grew_at = requests.now;
        }
        self.know_until(self.stream.stats().watermark);
        if progress.more {
            self.poll(process, requests);
        } else if self.stream.is_complete() && ended_at.is_none() {
            self.know_until(begun);
        } else if ended_at.or(exit_time).is_some_and(|end| end <= begun) {
            // Nobody writes any more.
            self.know_until(MonoNs(u64::MAX));
            self.is_over = true;
            requests.output(Output::Close(self.file));
        } else if ended_at.is_some() {
            self.poll(process, requests);
        } else if exit_time.is_none() {
            self.look_at_buffer(process, via, requests);
        }
        progress.bytes_read > 0
    }

    fn know_until(&mut self, time: MonoNs) {
        self.known_until = self.known_until.max(time);
        if self.options.shared_code.is_empty() && self.until.is_some_and(|until| self.known_until >= until) {
            self.known_until = MonoNs(u64::MAX);
        }
    }

    /// Looks at the runtime's buffer, if the stream is at the file's end.
    fn look_at_buffer(&mut self, process: ProcessId, via: Pid, requests: &mut Requests) {
        let end = DumpEnd::of(&self.stream);
        let Some(peek) = &mut self.peek else { return };
        let identity = (self.identity.st_dev, self.identity.inode);
        let Some(look) = end.and_then(|end| peek.look((via, self.file, identity), end, requests.now)) else { return };
        self.busy = Busy::Peeking;
        requests.ask(Purpose::Peek(process, DumpId(self.file)), Request::Peek(Box::new(look)));
    }

    /// Takes up what was seen of the runtime's buffer since `begun`.
    pub(super) fn take_sight(&mut self, sight: Sight, begun: MonoNs, now: MonoNs, events: &mut Vec<CodeEvent>) {
        let Some(peek) = self.peek.as_mut().filter(|_| self.busy == Busy::Peeking) else { return };
        self.busy = Busy::No;
        let (until, ended_at) = (self.until, self.ended_at);
        let seen = peek.take(sight, &self.stream, now);
        let is_its = |event: &CodeEvent| {
            until.is_none_or(|until| event.time() <= until) && ended_at.is_none_or(|end| event.time() < end)
        };
        events.extend(seen.into_iter().filter(is_its));
        if peek.is_current() && ended_at.is_none() {
            // File and buffer together hold every record written before this look began.
            self.know_until(begun);
        }
    }

    /// For the account.
    pub(super) fn account(&self) -> DumpAccount {
        DumpAccount {
            path: self.path.to_string(),
            bytes_read: self.bytes_read,
            records: self.stream.stats_so_far(),
            peek: self.peek.as_ref().map(Peek::stats),
        }
    }
}
