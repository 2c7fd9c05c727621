//! One consistent look at a FILE, its buffer and the end of its file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::peek::chain::{self, Chain, Expect, Implausible};
use crate::peek::stdio::{FILE_BYTES, Memory, StdioFile};
use crate::process::procfs;
use crate::units::{Avma, Pid};

/// Old bytes that are compared with the file, at most: enough that chance cannot make them equal.
const MAX_OLD_COMPARED: usize = 4096;

/// What changes whenever bytes are written to the FILE or to the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) stdio: StdioFile,
    pub(super) file_len: u64,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The target wrote meanwhile; the next poll sees a new state.
    Overtaken,
    /// Its memory or its /proc could not be read, or there is no FILE any more.
    Unreadable,
    /// The bytes behind the pending ones are not what the file ends with.
    OldBytes,
    /// The descriptor is another file's, or does not stand at the end of the dump.
    Position,
    /// The records make no sense.
    Implausible(Implausible),
}

/// What the dump's reader knows about the end of the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct DumpEnd<'a> {
    /// The file's length, all of which has been read.
    pub(super) file_len: u64,
    /// The bytes after the last whole record.
    pub(super) torn: &'a [u8],
    /// Code bytes of the last record that are not in the file yet and come before anything else; then `torn` is empty.
    pub(super) owed: u64,
    /// Whether the file's header has not been seen yet.
    pub(super) at_start: bool,
    /// Whether the timestamps are ns of CLOCK_MONOTONIC.
    pub(super) monotonic: bool,
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

/// Reads pointers, buffer and pointers again; the file's length must be what its reader has read up to, before and
/// after.
pub(super) fn take<M: Memory>(
    source: &Source<'_, M>,
    address: Avma,
    end: &DumpEnd<'_>,
    expect: &Expect,
) -> Result<Snapshot, Refusal> {
    if len_of(source.file)? != end.file_len {
        return Err(Refusal::Overtaken);
    }
    let before = seen(source.memory, address, end.file_len).map_err(|_| Refusal::Unreadable)?;
    let stdio = before.stdio;
    let mut buffer = vec![0; stdio.capacity];
    source.memory.read_exact(stdio.buffer, &mut buffer).map_err(|_| Refusal::Unreadable)?;
    let position = procfs::fd_position(source.pid, stdio.fd).map_err(|_| Refusal::Unreadable)?;
    let after = seen(source.memory, address, end.file_len).map_err(|_| Refusal::Unreadable)?;
    if after != before || len_of(source.file)? != end.file_len {
        return Err(Refusal::Overtaken);
    }
    let target = procfs::fd_target(source.pid, stdio.fd).map_err(|_| Refusal::Unreadable)?;
    if position != end.file_len || target != source.identity {
        return Err(Refusal::Position);
    }
    let blocks = old_blocks(source.file, stdio.capacity, end);
    judge(before, buffer, &blocks, end, expect)
}

/// The pure part: whether the buffer's content continues the file. `blocks` are the pieces of the file, of the buffer's
/// length, that its previous content can be.
pub(super) fn judge(
    seen: Seen,
    mut buffer: Vec<u8>,
    blocks: &[Vec<u8>],
    end: &DumpEnd<'_>,
    expect: &Expect,
) -> Result<Snapshot, Refusal> {
    let pending = seen.stdio.pending.min(buffer.len());
    let old = &buffer[pending..buffer.len().min(pending.saturating_add(MAX_OLD_COMPARED))];
    let was = |block: &Vec<u8>| block.get(pending..pending + old.len()) == Some(old);
    if end.file_len != 0 && !blocks.iter().any(was) {
        return Err(Refusal::OldBytes);
    }
    buffer.truncate(pending);
    let chain = chain::walk(end, &buffer, expect).map_err(Refusal::Implausible)?;
    Ok(Snapshot { seen, chain, pending: buffer })
}

fn old_blocks(file: &File, capacity: usize, end: &DumpEnd<'_>) -> Vec<Vec<u8>> {
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
