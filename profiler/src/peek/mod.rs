//! Records that still sit in the target's stdio buffer.
//!
//! CPython, V8 and perf's JVMTI agent write their dumps with fwrite: up to 4 KiB of the newest records are in the
//! process' memory only, and a program that has compiled its hot functions and then compiles nothing more never writes
//! them. [`Peek`] finds glibc's FILE of the dump in the target's memory, which says exactly which bytes of the buffer
//! are not in the file yet, and reads them. It only reads, and it believes nothing that does not continue the file:
//!
//! ```text
//! file    [....|....|....|.torn]                     at the file's length
//! buffer                  [ rest, records ... | old bytes = the file's last block, from here on ]
//!                          <---- pending ---->
//! ```
//!
//! What is checked before anything is reported, and why that is enough: docs/peek.md.

mod chain;
mod remote;
mod search;
mod snapshot;
mod stdio;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use serde::Serialize;

use crate::code::CodeEvent;
use crate::jitdump::{DumpTail, FLAG_ARCH_TIMESTAMP};
use crate::peek::chain::{Expect, LoadRecord, same_code};
use crate::peek::remote::Remote;
use crate::peek::search::{Progress, Search};
use crate::peek::snapshot::{DumpEnd, Refusal, Seen, Snapshot, Source};
use crate::peek::stdio::Memory;
use crate::process::{monotonic_now, procfs};
use crate::units::{Avma, MonoNs, Pid};

/// The pause after a first search that found nothing; it doubles with each further one.
const FIRST_PAUSE_NS: u64 = 1_000_000_000;
/// Searches that find nothing before this dump is given up: its producer has no FILE.
const MAX_FRUITLESS: u32 = 6;
/// Refused states of one FILE before it is searched anew. Refusals pass: after a fork, until the next whole block.
const MAX_REFUSALS: u32 = 64;
/// Code bytes that are compared for one record; producers' functions are smaller by far.
const MAX_CODE_COMPARED: usize = 64 << 10;

/// Reads what is mapped of `into.len()` bytes at an address of a running process, and says how much that was. Needs
/// CAP_SYS_PTRACE or the same user; does not stop the process.
///
/// # Errors
/// The process is gone, its memory may not be read, or nothing is mapped there.
pub fn read_memory(pid: Pid, addr: Avma, into: &mut [u8]) -> io::Result<usize> {
    Remote(pid).read(addr, into)
}

/// What was searched, found and refused. Serialises into the account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PeekStats {
    /// Searches begun.
    pub searches: u64,
    /// Bytes of target memory that searches read.
    pub bytes_scanned: u64,
    /// Searches that found the dump's FILE.
    pub found: u64,
    /// Polls that had to read the buffer because something had changed.
    pub reads: u64,
    /// Whole records reported before they were in the file.
    pub verified_records: u64,
    /// LOADs not reported because memory holds other code at their address.
    pub rejected_code: u64,
    /// Buffers refused because the bytes behind the pending ones are not what the file ends with.
    pub rejected_old_bytes: u64,
    /// Buffers refused because the descriptor is another file's by now, or does not stand at the end of the dump.
    pub rejected_position: u64,
    /// Buffers refused because they do not begin with a header of this process.
    pub rejected_header: u64,
    /// Buffers refused because a record's type or length makes no sense.
    pub rejected_shape: u64,
    /// Buffers refused because of another process' record.
    pub rejected_pid: u64,
    /// Buffers refused because of a time outside of the process' life.
    pub rejected_time: u64,
    /// Reads that the target overtook; they are repeated with the next poll.
    pub overtaken: u64,
    /// Reads of the target's memory or of its /proc that failed.
    pub read_errors: u64,
}

/// Follows the stdio buffer of one dump of one process.
#[derive(Debug)]
pub struct Peek {
    process: Target,
    state: State,
    fruitless: u32,
    stats: PeekStats,
}

/// Whose buffer, of which file.
#[derive(Debug)]
struct Target {
    pid: Pid,
    own_pid: u32,
    start: MonoNs,
    file: File,
    /// `st_dev` and inode of the dump.
    identity: (u64, u64),
}

#[derive(Debug)]
enum State {
    /// No search before this time.
    Paused(MonoNs),
    Searching(Search),
    Found(Found),
    /// The producer has no FILE, or the process may not be read.
    GivenUp,
}

/// The dump's FILE, and what was last seen of it.
#[derive(Debug)]
struct Found {
    file: Avma,
    seen: Option<Seen>,
    /// States refused since the last good one.
    refusals: u32,
    /// Whether the last look saw every byte that was pending then.
    current: bool,
    /// How many events of the bytes pending at this file length have been reported.
    reported: usize,
}

impl Peek {
    /// For a process that started at `start` and has the id `own_pid` in its own namespace, and the dump that it
    /// writes, opened for reading. Reads nothing of the process yet.
    ///
    /// # Errors
    /// fstat(2) fails on the file.
    pub fn new(pid: Pid, own_pid: u32, start: MonoNs, file: File) -> io::Result<Self> {
        let meta = file.metadata()?;
        let process = Target { pid, own_pid, start, file, identity: (meta.dev(), meta.ino()) };
        Ok(Self { process, state: State::Paused(MonoNs(0)), fruitless: 0, stats: PeekStats::default() })
    }

    /// Reports records that are not in the file yet and that were not reported before, in the order of the buffer.
    /// The same records come again from the file once they are written, equal but for their origin.
    ///
    /// `tail` is the same dump's, polled just before; if it has not reached the file's end, nothing is read.
    ///
    /// Cost: one read of 116 bytes when nothing has changed; when something has, reads of the buffer, of the file's
    /// last block and of each new function's code; during a search 8 MiB of target memory (5 to 8 ms) a call,
    /// 256 MiB in all, at most six times.
    pub fn poll(&mut self, tail: &DumpTail) -> Vec<CodeEvent> {
        let Some(end) = end_of(tail) else {
            return Vec::new();
        };
        let memory = Remote(self.process.pid);
        if let State::Paused(until) = self.state {
            if monotonic_now() < until || !is_block_buffered(end.file_len) {
                return Vec::new();
            }
            self.begin_search();
        }
        self.search(&memory, &end);
        match self.read(&memory, &end) {
            Some(snapshot) => self.report(&memory, &snapshot, tail),
            None => Vec::new(),
        }
    }

    /// Whether the last poll saw the whole buffer: then file and buffer together hold every record that was written
    /// before that poll began.
    pub fn is_current(&self) -> bool {
        matches!(&self.state, State::Found(found) if found.current)
    }

    /// What was searched, found and refused so far.
    pub fn stats(&self) -> PeekStats {
        self.stats
    }

    fn begin_search(&mut self) {
        let (st_dev, inode) = self.process.identity;
        let fds = procfs::fds_of_file(self.process.pid, st_dev, inode);
        let maps = procfs::maps(self.process.pid);
        let (Ok(fds), Ok(maps)) = (fds, maps) else {
            self.stats.read_errors += 1;
            return self.pause();
        };
        if fds.is_empty() {
            return self.pause();
        }
        self.stats.searches += 1;
        self.state = State::Searching(Search::new(&maps.mappings, fds));
    }

    fn search(&mut self, memory: &impl Memory, end: &DumpEnd<'_>) {
        let State::Searching(search) = &mut self.state else {
            return;
        };
        let progress = search.advance(memory);
        self.stats.bytes_scanned += search.take_scanned();
        let mut candidates = search.take_candidates();
        while let Some(candidate) = candidates.pop() {
            match self.process.snapshot(memory, candidate, end) {
                // The buffer may be empty just now; the old bytes behind it were right all the same.
                Ok(_) => {
                    self.stats.found += 1;
                    self.state =
                        State::Found(Found { file: candidate, seen: None, refusals: 0, current: false, reported: 0 });
                    return;
                }
                Err(Refusal::Overtaken) => {
                    self.stats.overtaken += 1;
                    candidates.push(candidate);
                    if let State::Searching(search) = &mut self.state {
                        search.keep_candidates(candidates);
                    }
                    return;
                }
                Err(refusal) => self.count(refusal),
            }
        }
        if progress == Progress::Done {
            self.pause();
        }
    }

    fn pause(&mut self) {
        self.fruitless += 1;
        self.state = if self.fruitless >= MAX_FRUITLESS {
            State::GivenUp
        } else {
            let pause = FIRST_PAUSE_NS << (self.fruitless - 1);
            State::Paused(MonoNs(monotonic_now().0.saturating_add(pause)))
        };
    }

    /// The pending bytes, if they have changed and continue the file.
    fn read(&mut self, memory: &impl Memory, end: &DumpEnd<'_>) -> Option<Snapshot> {
        let State::Found(found) = &mut self.state else {
            return None;
        };
        let seen = snapshot::seen(memory, found.file, end.file_len).ok();
        if seen.is_some() && seen == found.seen {
            found.current = found.refusals == 0;
            return None;
        }
        found.current = false;
        self.stats.reads += 1;
        let refusal = match self.process.snapshot(memory, found.file, end) {
            Ok(snapshot) => return Some(snapshot),
            Err(refusal) => refusal,
        };
        // What was overtaken is repeated with the next poll; a state that was refused is not looked at again.
        if refusal != Refusal::Overtaken {
            found.refusals += 1;
            // What was reported at another length of the file says nothing about this one.
            if found.seen.map(|seen| seen.file_len) != Some(end.file_len) {
                found.reported = 0;
            }
            found.seen = seen;
            if refusal == Refusal::Unreadable || found.refusals >= MAX_REFUSALS {
                // The process has ended, or the FILE was closed and its memory given back.
                self.pause();
            }
        }
        self.count(refusal);
        None
    }

    fn report(&mut self, memory: &impl Memory, snapshot: &Snapshot, tail: &DumpTail) -> Vec<CodeEvent> {
        let State::Found(found) = &mut self.state else {
            return Vec::new();
        };
        if found.seen.is_none_or(|seen| seen.file_len != snapshot.seen.file_len) {
            found.reported = 0;
        }
        (found.seen, found.refusals, self.fruitless) = (Some(snapshot.seen), 0, 0);
        found.current = true;
        let (events, _) = tail.tentative(snapshot.whole());
        let known = found.reported.min(events.len());
        found.reported = events.len();
        let mut records = snapshot.chain.loads.iter();
        let mut kept = Vec::with_capacity(events.len() - known);
        for (index, event) in events.into_iter().enumerate() {
            // Events and records stand in the same order, so that of two loads at one address each finds its own code.
            let believed = match &event {
                CodeEvent::Load(load) => {
                    let record = records.find(|record| record.code_addr == load.start.0);
                    index < known || record.is_some_and(|record| is_in_memory(memory, record))
                }
                _ => true,
            };
            if !believed {
                self.stats.rejected_code += 1;
            } else if index >= known {
                kept.push(event);
            }
        }
        self.stats.verified_records += u64::try_from(kept.len()).unwrap_or(u64::MAX);
        kept
    }

    fn count(&mut self, refusal: Refusal) {
        let counter = match refusal {
            Refusal::Overtaken => &mut self.stats.overtaken,
            Refusal::Unreadable => &mut self.stats.read_errors,
            Refusal::OldBytes => &mut self.stats.rejected_old_bytes,
            Refusal::Position => &mut self.stats.rejected_position,
            Refusal::Implausible(why) => match why {
                chain::Implausible::Header => &mut self.stats.rejected_header,
                chain::Implausible::Shape => &mut self.stats.rejected_shape,
                chain::Implausible::Pid => &mut self.stats.rejected_pid,
                chain::Implausible::Time => &mut self.stats.rejected_time,
            },
        };
        *counter += 1;
    }
}

impl Target {
    fn snapshot(&self, memory: &impl Memory, address: Avma, end: &DumpEnd<'_>) -> Result<Snapshot, Refusal> {
        let times = end.monotonic.then(|| (self.start.0, monotonic_now().0));
        let expect = Expect { own_pid: self.own_pid, times };
        let source = Source { pid: self.pid, identity: self.identity, memory, file: &self.file };
        snapshot::take(&source, address, end, &expect)
    }
}

/// What the tail knows about the file's end; `None` while it has not reached it, or has lost the chain of records.
fn end_of(tail: &DumpTail) -> Option<DumpEnd<'_>> {
    let torn = tail.torn_tail();
    let parser = tail.reader().parser();
    let read_to = torn.start.0.checked_add(u64::try_from(torn.bytes.len()).ok()?)?.checked_sub(torn.owed)?;
    if read_to != tail.file_len() || parser.is_lost() {
        return None;
    }
    let header = parser.header();
    Some(DumpEnd {
        file_len: tail.file_len(),
        torn: torn.bytes,
        owed: torn.owed,
        at_start: header.is_none(),
        monotonic: header.is_some_and(|header| header.flags & FLAG_ARCH_TIMESTAMP == 0),
    })
}

/// Producers that write without a buffer leave lengths that are no multiple of any block; searching their memory
/// would be in vain.
fn is_block_buffered(file_len: u64) -> bool {
    file_len.is_multiple_of(512)
}

/// Whether the code that the record announces is what the target's memory holds.
fn is_in_memory(memory: &impl Memory, record: &LoadRecord) -> bool {
    let recorded = &record.code[..record.code.len().min(MAX_CODE_COMPARED)];
    let mut now = vec![0; recorded.len()];
    memory.read_exact(Avma(record.code_addr), &mut now).is_ok() && same_code(recorded, &now)
}
