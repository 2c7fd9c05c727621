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
//! What is checked before anything is reported, and why that is enough: docs/design/peek.md.
//!
//! [`Peek`] says what to look at and judges what was seen; it does no I/O. [`look`] looks.

mod chain;
mod look;
mod remote;
mod search;
mod snapshot;
mod stdio;
#[cfg(test)]
mod tests;

use std::io;

use jitprof_common::units::{Avma, MonoNs, Pid};
use jitprof_jitdump::DumpStream;
use jitprof_jitdump::code::CodeEvent;
use jitprof_jitdump::perfmap::PerfMapStream;
use serde::Serialize;

pub use crate::peek::look::{Look, Sight, What, look};
use crate::peek::remote::Remote;
pub use crate::peek::snapshot::{DumpEnd, Refusal, Seen};
use crate::peek::stdio::Memory;
use crate::process::open::FileId;

/// The pause after a first search that found nothing; it doubles with each further one.
const FIRST_PAUSE_NS: u64 = 1_000_000_000;
/// Searches that find nothing before this dump is given up: its producer has no FILE.
const MAX_FRUITLESS: u32 = 6;
/// Refused states of one FILE before it is searched anew. Refusals pass: after a fork, until the next whole block.
const MAX_REFUSALS: u32 = 64;

/// Reads what is mapped of `into.len()` bytes at an address of a running process, and says how much that was. Needs
/// CAP_SYS_PTRACE or the same user; does not stop the process.
///
/// # Errors
/// The process is gone, its memory may not be read, or nothing is mapped there.
pub fn read_memory(pid: Pid, addr: Avma, into: &mut [u8]) -> io::Result<usize> {
    Remote(pid).read(addr, into)
}

/// Reads several places of another process with few calls, as many bytes of each as are mapped from its address on. Returns how
/// many that were.
pub fn read_memory_of_each(pid: Pid, reads: &mut [(Avma, &mut [u8])]) -> Vec<usize> {
    Remote(pid).read_each(reads)
}

/// The reader of what is being followed: it knows what is in the file, and what further bytes would bring.
pub trait Ahead {
    /// The file's length, all of which has been read.
    fn file_len(&self) -> u64;
    /// What these bytes would bring if they came next, and how many of them were understood.
    fn tentative(&self, bytes: &[u8]) -> (Vec<CodeEvent>, usize);
}

impl Ahead for DumpStream {
    fn file_len(&self) -> u64 {
        DumpStream::file_len(self)
    }

    fn tentative(&self, bytes: &[u8]) -> (Vec<CodeEvent>, usize) {
        let (events, complete) = DumpStream::tentative(self, bytes);
        // The file's torn end counts as well there.
        (events, complete.saturating_sub(self.torn_tail().bytes.len()))
    }
}

impl Ahead for PerfMapStream {
    fn file_len(&self) -> u64 {
        self.read_to().map_or(0, |(offset, _)| offset)
    }

    fn tentative(&self, bytes: &[u8]) -> (Vec<CodeEvent>, usize) {
        (PerfMapStream::tentative(self, bytes), bytes.len())
    }
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
    /// Looks that had to read the buffer because something had changed.
    pub reads: u64,
    /// Whole records reported before they were in the file.
    pub verified_records: u64,
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
    /// Reads that the target overtook; they are repeated with the next look.
    pub overtaken: u64,
    /// Reads of the target's memory or of its /proc that failed.
    pub read_errors: u64,
}

/// Follows the stdio buffer of one dump, or perf map, of one process.
#[derive(Debug)]
pub struct Peek {
    own_pid: u32,
    start: MonoNs,
    state: State,
    fruitless: u32,
    stats: PeekStats,
}

#[derive(Debug)]
enum State {
    /// No search before this time.
    Paused(MonoNs),
    Found(Found),
    /// The producer has no FILE, or the process may not be read.
    GivenUp,
}

/// The dump's FILE, and what was last seen of it.
#[derive(Debug)]
struct Found {
    address: Avma,
    seen: Option<Seen>,
    /// States refused since the last good one.
    refusals: u32,
    /// Whether the last look saw every byte that was pending then.
    current: bool,
    /// How many events of the bytes pending at this file length have been reported.
    reported: usize,
}

impl Peek {
    /// For a process that started at `start` and has the id `own_pid` in its own namespace.
    pub fn new(own_pid: u32, start: MonoNs) -> Self {
        let state = State::Paused(MonoNs(0));
        Self { own_pid, start, state, fruitless: 0, stats: PeekStats::default() }
    }

    /// What to look at now, if anything: `end` is what the dump's reader knows of the file's end, all of which it has
    /// read. `file` is the dump, of this device and inode.
    ///
    /// Cost of the look: one read of 116 bytes when nothing has changed; when something has, reads of the buffer, of what
    /// is pending in it, and of the file's last block; of a search up to 256 MiB of target memory (160 to 270 ms), at most
    /// six times.
    pub fn look(
        &mut self,
        (via, file, identity): (Pid, FileId, (u64, u64)),
        end: DumpEnd,
        now: MonoNs,
    ) -> Option<Look> {
        let what = match &self.state {
            State::GivenUp => return None,
            State::Paused(until) if now < *until || !is_block_buffered(end.file_len) => return None,
            State::Paused(_) => {
                self.stats.searches += 1;
                What::Search
            }
            State::Found(found) => What::Read { address: found.address, seen: found.seen },
        };
        Some(Look { via, own_pid: self.own_pid, start: self.start, file, identity, end, what })
    }

    /// Judges what was seen. Gives records that are not in the file yet and that were not reported before, in the order of
    /// the buffer. The same records come again from the file once they are written, equal but for their origin.
    ///
    /// `stream` is the same dump's, as it was when the look was asked for.
    pub fn take(&mut self, sight: Sight, stream: &impl Ahead, now: MonoNs) -> Vec<CodeEvent> {
        match sight {
            Sight::Found { address, scanned, then } => {
                self.stats.bytes_scanned += scanned;
                self.stats.found += 1;
                self.state = State::Found(Found { address, seen: None, refusals: 0, current: false, reported: 0 });
                self.take(*then, stream, now)
            }
            Sight::Nothing { scanned, refusals } => {
                self.stats.bytes_scanned += scanned;
                let overtaken = refusals.contains(&Refusal::Overtaken);
                refusals.into_iter().for_each(|refusal| self.count(refusal));
                // What the target was writing to is looked at again at once.
                if !overtaken {
                    self.pause(now);
                }
                Vec::new()
            }
            Sight::NoDescriptor => {
                self.stats.searches = self.stats.searches.saturating_sub(1);
                self.pause(now);
                Vec::new()
            }
            Sight::Unreadable => {
                self.stats.read_errors += 1;
                self.pause(now);
                Vec::new()
            }
            Sight::Unchanged => {
                if let State::Found(found) = &mut self.state {
                    found.current = found.refusals == 0;
                }
                Vec::new()
            }
            Sight::Refused { refusal, seen } => {
                self.refuse(refusal, seen, stream.file_len(), now);
                Vec::new()
            }
            Sight::Pending { seen, bytes } => self.report(seen, &bytes, stream),
        }
    }

    /// Whether the last look saw the whole buffer: then file and buffer together hold every record that was written
    /// before that look began.
    pub fn is_current(&self) -> bool {
        matches!(&self.state, State::Found(found) if found.current)
    }

    /// Whether the dump's FILE is known.
    pub fn has_found(&self) -> bool {
        matches!(self.state, State::Found(_))
    }

    /// What was searched, found and refused so far.
    pub fn stats(&self) -> PeekStats {
        self.stats
    }

    fn pause(&mut self, now: MonoNs) {
        self.fruitless += 1;
        self.state = if self.fruitless >= MAX_FRUITLESS {
            State::GivenUp
        } else {
            let pause = FIRST_PAUSE_NS << (self.fruitless - 1);
            State::Paused(MonoNs(now.0.saturating_add(pause)))
        };
    }

    fn refuse(&mut self, refusal: Refusal, seen: Option<Seen>, file_len: u64, now: MonoNs) {
        self.stats.reads += 1;
        self.count(refusal);
        let State::Found(found) = &mut self.state else { return };
        found.current = false;
        // What was overtaken is repeated with the next look; a state that was refused is not looked at again.
        if refusal == Refusal::Overtaken {
            return;
        }
        found.refusals += 1;
        // What was reported at another length of the file says nothing about this one.
        if found.seen.map(|seen| seen.file_len) != Some(file_len) {
            found.reported = 0;
        }
        found.seen = seen;
        if refusal == Refusal::Unreadable || found.refusals >= MAX_REFUSALS {
            // The process has ended, or the FILE was closed and its memory given back.
            self.pause(now);
        }
    }

    /// Code that is announced and in memory no more was there at its time: its record counts as it will in the file.
    fn report(&mut self, seen: Seen, bytes: &[u8], stream: &impl Ahead) -> Vec<CodeEvent> {
        self.stats.reads += 1;
        let State::Found(found) = &mut self.state else { return Vec::new() };
        if found.seen.is_none_or(|before| before.file_len != seen.file_len) {
            found.reported = 0;
        }
        (found.seen, found.refusals, self.fruitless) = (Some(seen), 0, 0);
        let (mut events, understood) = stream.tentative(bytes);
        found.current = understood == bytes.len();
        let known = found.reported.min(events.len());
        found.reported = events.len();
        let new = events.split_off(known);
        self.stats.verified_records += u64::try_from(new.len()).unwrap_or(u64::MAX);
        new
    }

    fn count(&mut self, refusal: Refusal) {
        let counter = match refusal {
            Refusal::Overtaken => &mut self.stats.overtaken,
            Refusal::Unreadable => &mut self.stats.read_errors,
            Refusal::OldBytes => &mut self.stats.rejected_old_bytes,
            Refusal::Position => &mut self.stats.rejected_position,
            Refusal::Header => &mut self.stats.rejected_header,
            Refusal::Shape => &mut self.stats.rejected_shape,
            Refusal::Pid => &mut self.stats.rejected_pid,
            Refusal::Time => &mut self.stats.rejected_time,
        };
        *counter += 1;
    }
}

/// Producers that write without a buffer leave lengths that are no multiple of any block; searching their memory
/// would be in vain.
pub(crate) fn is_block_buffered(file_len: u64) -> bool {
    file_len.is_multiple_of(512)
}
