//! One consistent look at a FILE, its buffer and the end of its file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use serde::{Deserialize, Serialize};

use crate::peek::chain::{self, Chain, Expect, Implausible};
use crate::peek::stdio::{FILE_BYTES, Memory, StdioFile};
use crate::process::procfs;
use jitprof_common::units::{Avma, Pid};
use jitprof_jitdump::perfmap::PerfMapStream;
use jitprof_jitdump::{DumpStream, FLAG_ARCH_TIMESTAMP};

/// Old bytes that are compared with the file, at most: enough that chance cannot make them equal.
const MAX_OLD_COMPARED: usize = 4096;

/// No producer that writes through a buffer leaves a longer torn record.
const MAX_TORN_BYTES: usize = 1 << 20;

/// What changes whenever bytes are written to the FILE or to the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    pub(super) stdio: StdioFile,
    pub(super) file_len: u64,
}

#[cfg(any(test, feature = "fuzzing"))]
impl Seen {
    /// As of a FILE with so many bytes that are not in the file, for a machine that is made up.
    pub(crate) fn made_up(file_len: u64, pending: usize) -> Self {
        Self { stdio: StdioFile { fd: 3, buffer: Avma(0x6000_0000), capacity: 4096, pending }, file_len }
    }
}

/// Pending bytes that continue the file.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) seen: Seen,
    pub(super) chain: Chain,
    pending: Vec<u8>,
}

impl Snapshot {
    /// The pending bytes up to the end of the last whole record.
    pub(super) fn whole(&self) -> &[u8] {
        self.pending.get(..self.chain.complete).unwrap_or_default()
    }
}

/// Why a FILE's bytes are not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// The target wrote meanwhile; the next look sees a new state.
    Overtaken,
    /// Its memory or its /proc could not be read, or there is no FILE any more.
    Unreadable,
    /// The bytes behind the pending ones are not what the file ends with.
    OldBytes,
    /// The descriptor is another file's, or does not stand at the end of the dump.
    Position,
    /// The file is empty, and the bytes do not begin with a header of this process.
    Header,
    /// A record's type or length makes no sense.
    Shape,
    /// A record is of another process.
    Pid,
    /// A record's time lies outside of the process' life.
    Time,
}

impl From<Implausible> for Refusal {
    fn from(why: Implausible) -> Self {
        match why {
            Implausible::Header => Self::Header,
            Implausible::Shape => Self::Shape,
            Implausible::Pid => Self::Pid,
            Implausible::Time => Self::Time,
        }
    }
}

/// What the dump's reader knows about the end of the file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DumpEnd {
    /// The file's length, all of which has been read.
    pub file_len: u64,
    /// The bytes after the last whole record.
    pub torn: Vec<u8>,
    /// Code bytes of the last record that are not in the file yet and come before anything else; then `torn` is empty.
    pub owed: u64,
    /// Whether the file's header has not been seen yet.
    pub at_start: bool,
    /// Whether the timestamps are ns of CLOCK_MONOTONIC.
    pub monotonic: bool,
    /// It is no dump, but a perf map: text lines.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub lines: bool,
}

impl DumpEnd {
    /// Of a stream; `None` while it has not reached the file's end, or has lost the chain of records.
    pub fn of(stream: &DumpStream) -> Option<Self> {
        let torn = stream.torn_tail();
        let parser = stream.reader().parser();
        let read_to = torn.start.0.checked_add(u64::try_from(torn.bytes.len()).ok()?)?.checked_sub(torn.owed)?;
        if read_to != stream.file_len() || parser.is_lost() || torn.bytes.len() > MAX_TORN_BYTES {
            return None;
        }
        let header = parser.header();
        Some(Self {
            file_len: stream.file_len(),
            torn: torn.bytes.to_vec(),
            owed: torn.owed,
            at_start: header.is_none(),
            monotonic: header.is_some_and(|header| header.flags & FLAG_ARCH_TIMESTAMP == 0),
            lines: false,
        })
    }

    /// Of a perf map that has been read to its end.
    pub fn of_map(stream: &PerfMapStream) -> Option<Self> {
        let (file_len, torn) = stream.read_to()?;
        let torn = torn.to_vec();
        Some(Self { file_len, torn, owed: 0, at_start: false, monotonic: false, lines: true })
    }
}

/// Where a snapshot is taken from.
pub(super) struct Source<'a, M> {
    pub(super) pid: Pid,
    /// `st_dev` and inode of `file`.
    pub(super) identity: (u64, u64),
    pub(super) memory: &'a M,
    pub(super) file: &'a File,
}

/// Reads the FILE's pointers only.
pub(super) fn seen(memory: &impl Memory, address: Avma, file_len: u64) -> io::Result<Seen> {
    let mut bytes = [0; FILE_BYTES];
    memory.read_exact(address, &mut bytes)?;
    let stdio = StdioFile::parse(&bytes).ok_or(io::ErrorKind::InvalidData)?;
    Ok(Seen { stdio, file_len })
}

/// Reads the FILE and its buffer; the file's length must be what its reader has read up to, before and after.
pub(super) fn take<M: Memory>(
    source: &Source<'_, M>,
    address: Avma,
    end: &DumpEnd,
    expect: &Expect,
) -> Result<Snapshot, Refusal> {
    if len_of(source.file)? != end.file_len {
        return Err(Refusal::Overtaken);
    }
    let (before, buffer) = consistent(source.memory, address, end.file_len)?;
    let stdio = before.stdio;
    let position = procfs::fd_position(source.pid, stdio.fd).map_err(|_| Refusal::Unreadable)?;
    if len_of(source.file)? != end.file_len {
        return Err(Refusal::Overtaken);
    }
    let target = procfs::fd_target(source.pid, stdio.fd).map_err(|_| Refusal::Unreadable)?;
    if position != end.file_len || target != source.identity {
        return Err(Refusal::Position);
    }
    let blocks = old_blocks(source.file, stdio.capacity, end);
    judge(before, buffer, &blocks, end, expect)
}

/// Reads pointers, buffer, pointers and what is pending again. Where stores may be seen in another order (AArch64), bytes can come
/// after the pointer that covers them: then they are not the same a moment later.
pub(super) fn consistent(memory: &impl Memory, address: Avma, file_len: u64) -> Result<(Seen, Vec<u8>), Refusal> {
    let pointers = || seen(memory, address, file_len).map_err(|_| Refusal::Unreadable);
    let before = pointers()?;
    let content = |bytes: usize| {
        let mut buffer = vec![0; bytes];
        memory.read_exact(before.stdio.buffer, &mut buffer).map(|()| buffer).map_err(|_| Refusal::Unreadable)
    };
    let buffer = content(before.stdio.capacity)?;
    if pointers()? != before || !buffer.starts_with(&content(before.stdio.pending.min(buffer.len()))?) {
        return Err(Refusal::Overtaken);
    }
    Ok((before, buffer))
}

/// The pure part: whether the buffer's content continues the file. `blocks` are the pieces of the file, of the buffer's
/// length, that its previous content can be.
pub(super) fn judge(
    seen: Seen,
    mut buffer: Vec<u8>,
    blocks: &[Vec<u8>],
    end: &DumpEnd,
    expect: &Expect,
) -> Result<Snapshot, Refusal> {
    let pending = seen.stdio.pending.min(buffer.len());
    let old = &buffer[pending..buffer.len().min(pending.saturating_add(MAX_OLD_COMPARED))];
    let was = |block: &Vec<u8>| block.get(pending..pending + old.len()) == Some(old);
    if end.file_len != 0 && !blocks.iter().any(was) {
        return Err(Refusal::OldBytes);
    }
    buffer.truncate(pending);
    let chain = if end.lines { chain::lines(end, &buffer) } else { chain::walk(end, &buffer, expect) };
    let chain = chain.map_err(Refusal::from)?;
    Ok(Snapshot { seen, chain, pending: buffer })
}

fn old_blocks(file: &File, capacity: usize, end: &DumpEnd) -> Vec<Vec<u8>> {
    let ends = chain::flush_ends(end, capacity);
    ends.into_iter().filter_map(|end| read_block(file, end, capacity)).collect()
}

fn read_block(file: &File, end: u64, capacity: usize) -> Option<Vec<u8>> {
    let start = end.checked_sub(u64::try_from(capacity).ok()?)?;
    let mut block = vec![0; capacity];
    // A file that has shrunk has no such block: then nothing matches, and nothing is believed.
    file.read_exact_at(&mut block, start).ok()?;
    Some(block)
}

fn len_of(file: &File) -> Result<u64, Refusal> {
    file.metadata().map(|meta| meta.len()).map_err(|_| Refusal::Unreadable)
}
