//! The search for a FILE in a process' writable memory, a slice at a time.

use std::ops::Range;

use crate::peek::stdio::{FILE_BYTES, Memory, StdioFile};
use crate::process::{Mapping, MappingKind};
use jitprof_common::units::Avma;

/// What one call may read: 8 MiB take 5 to 8 ms (256 MiB in 161 to 270 ms on two busy CPUs), and the tail of the dump
/// waits for as long.
const SLICE_BYTES: u64 = 8 << 20;
/// What one search may read in all. malloc puts the FILE of an early fopen at the start of the heap.
const SEARCH_BYTES: u64 = 256 << 20;
/// One read; it stays in the second-level cache while it is looked over.
const CHUNK_BYTES: usize = 256 << 10;
/// Candidates that are looked at, so that a target full of forged FILEs costs no more.
const MAX_CANDIDATES: usize = 64;

/// A search under way.
#[derive(Debug)]
pub(super) struct Search {
    fds: Vec<u32>,
    /// What is left to read, next one last.
    ranges: Vec<Range<u64>>,
    left: u64,
    candidates: Vec<Avma>,
    scanned: u64,
    buffer: Vec<u8>,
}

/// How far a search has come.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Call again.
    More,
    /// Everything, or as much as is allowed, has been read.
    Done,
}

impl Search {
    /// Begins a search for FILEs of these descriptors. The brk heap comes first, then other private writable memory
    /// without a file from small to large: thread arenas before managed heaps.
    pub(super) fn new(mappings: &[Mapping], fds: Vec<u32>) -> Self {
        let mut memory: Vec<&Mapping> = mappings.iter().filter(|mapping| is_searched(mapping)).collect();
        memory.sort_by_key(|mapping| (mapping.kind != MappingKind::Heap, mapping.len(), mapping.start));
        let ranges = memory.iter().rev().map(|mapping| mapping.start.0..mapping.end.0).collect();
        Self { fds, ranges, left: SEARCH_BYTES, candidates: Vec::new(), scanned: 0, buffer: Vec::new() }
    }

    /// Reads the next slice, unless candidates are waiting. Memory that is gone or unreadable is passed over.
    pub(super) fn advance(&mut self, memory: &impl Memory) -> Progress {
        if !self.candidates.is_empty() {
            return Progress::More;
        }
        self.buffer.resize(CHUNK_BYTES, 0);
        let mut slice = SLICE_BYTES;
        while let Some(range) = self.ranges.last_mut() {
            if self.left == 0 || self.candidates.len() >= MAX_CANDIDATES {
                self.ranges.clear();
                break;
            }
            if slice == 0 || !self.candidates.is_empty() {
                return Progress::More;
            }
            let wanted = (range.end - range.start).min(self.left).min(slice);
            let wanted = usize::try_from(wanted).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
            let at = range.start;
            let read = memory.read(Avma(at), &mut self.buffer[..wanted]).unwrap_or(0);
            let found = StdioFile::find(&self.buffer[..read], &self.fds);
            self.candidates.extend(found.iter().map(|offset| Avma(at.saturating_add(to_u64(*offset)))));
            let spent = to_u64(read).max(1);
            self.scanned = self.scanned.saturating_add(spent);
            self.left = self.left.saturating_sub(spent);
            slice = slice.saturating_sub(spent);
            if read < wanted || at.saturating_add(spent) >= range.end {
                self.ranges.pop();
            } else {
                // A FILE may lie across the border of two chunks. Chunks are far longer than one, so this advances.
                range.start = at.saturating_add(spent.saturating_sub(OVERLAP_BYTES).max(8)) & !7;
            }
        }
        Progress::Done
    }

    /// Where FILEs of the wanted descriptors were seen so far; drains them.
    pub(super) fn take_candidates(&mut self) -> Vec<Avma> {
        std::mem::take(&mut self.candidates)
    }

    /// Bytes read so far; drains the count.
    pub(super) fn take_scanned(&mut self) -> u64 {
        std::mem::take(&mut self.scanned)
    }
}

const OVERLAP_BYTES: u64 = FILE_BYTES as u64 + 8;
const _: () = assert!(FILE_BYTES < 256 && CHUNK_BYTES > 4096);

fn is_searched(mapping: &Mapping) -> bool {
    let memory = matches!(mapping.kind, MappingKind::Heap | MappingKind::Anonymous | MappingKind::NamedMemory);
    memory && mapping.prot.read && mapping.prot.write && !mapping.prot.shared
}

fn to_u64(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
