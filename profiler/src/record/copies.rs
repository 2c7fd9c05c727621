//! Rows for generated code that nothing has recorded, from the code itself, read from the target's memory.
//!
//! Two kinds of code are looked at, and only where a walk has met it: what a perf map names (it has neither rules nor
//! bytes), and copies of a template that has been recorded once. What was read is compared with memory again from time
//! to time: code that has changed loses its rows.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use profiler_common::machine::Machine;

use crate::account::CopyStats;
use crate::code::CodeOrigin;
use crate::peek::read_memory;
use crate::process::{Process, ProcessId};
use crate::record::sources::Sources;
use crate::units::{Avma, MonoNs, Pid};
use crate::unwind::rows_of_code;

/// Longest function of a perf map that is read, in bytes.
const MAX_FUNCTION_BYTES: usize = 64 << 10;
/// Addresses looked at in one turn; each costs a system call and some microseconds.
const MAX_PER_TURN: usize = 256;
/// Pieces of code of one process that have rows by this.
const MAX_LEARNED: usize = 16 << 10;
/// Addresses in vain that are remembered, so that they are not read again before the next check.
const MAX_TRIED: usize = 16 << 10;
/// Pieces compared with memory in one check.
const MAX_CHECKED: usize = 512;

/// What was read of all processes.
#[derive(Debug, Default)]
pub(super) struct Copies {
    processes: HashMap<ProcessId, Learned>,
    hasher: RandomState,
    stats: CopyStats,
}

/// What was read of one process.
#[derive(Debug, Default)]
struct Learned {
    /// Length and hash by address.
    pieces: BTreeMap<u64, (usize, u64)>,
    tried: HashSet<u64>,
    checked_up_to: u64,
}

impl Copies {
    /// Looks at code that walks have met at these addresses. Returns whether any of it has rows now, or is known to
    /// have none.
    pub(super) fn learn(
        &mut self,
        process: &Process,
        sources: &mut Sources,
        wanted: &BTreeSet<u64>,
        now: MonoNs,
    ) -> bool {
        let mut learned = false;
        for address in wanted.iter().take(MAX_PER_TURN) {
            let known = self.processes.entry(process.id).or_default();
            if known.pieces.len() >= MAX_LEARNED || known.tried.len() >= MAX_TRIED || !known.tried.insert(*address) {
                continue;
            }
            if sources.code.rows().is_some_and(|rows| rows.row_at(*address, now).is_some()) {
                continue;
            }
            learned |= match listed(sources, *address, now) {
                Some((start, size)) => self.take_listed(process.id, sources, start, size),
                None => self.take_copy(process, sources, *address),
            };
        }
        learned
    }

    /// Forgets what addresses were tried in vain, and compares what was read with memory. Call it about every second.
    pub(super) fn check(&mut self, id: ProcessId, sources: &mut Sources) {
        let Some(known) = self.processes.get_mut(&id) else { return };
        known.tried.clear();
        let first = known.checked_up_to;
        let due: Vec<(u64, usize, u64)> =
            known.pieces.range(first..).take(MAX_CHECKED).map(|(at, (size, hash))| (*at, *size, *hash)).collect();
        known.checked_up_to =
            due.last().filter(|_| due.len() == MAX_CHECKED).map_or(0, |(at, ..)| at.saturating_add(1));
        for (start, size, hash) in due {
            let same =
                read(id.pid, start, size, &mut self.stats).is_some_and(|code| self.hasher.hash_one(&code) == hash);
            if !same {
                known.pieces.remove(&start);
                self.stats.changed += 1;
                sources.code.forget_unrecorded(start, size as u64);
            }
        }
    }

    /// A process has ended or become another program.
    pub(super) fn end(&mut self, id: ProcessId) {
        self.processes.remove(&id);
    }

    /// What was read so far.
    pub(super) fn stats(&self) -> CopyStats {
        self.stats
    }

    fn take_listed(&mut self, id: ProcessId, sources: &mut Sources, start: u64, size: usize) -> bool {
        let Some(code) = read(id.pid, start, size, &mut self.stats) else { return false };
        let rows = rows_of_code(Machine::NATIVE, start, &code);
        if !sources.code.load_unrecorded(start, code.len() as u64, rows.clone()) {
            return false;
        }
        self.note(id, start, &code);
        match rows {
            Some(_) => self.stats.listed_with_rows += 1,
            None => self.stats.listed_without_rows += 1,
        }
        true
    }

    fn take_copy(&mut self, process: &Process, sources: &mut Sources, address: u64) -> bool {
        let reach = sources.code.templates().reach() as u64;
        let Some(mapping) = process.space.live().find(|mapping| mapping.contains(Avma(address))) else { return false };
        if reach == 0 || !mapping.may_hold_generated_code() {
            return false;
        }
        let start = address.saturating_sub(reach).max(mapping.start.0);
        let end = address.saturating_add(reach).min(mapping.end.0);
        let Ok(size) = usize::try_from(end.saturating_sub(start)) else { return false };
        let Some(bytes) = read(process.id.pid, start, size, &mut self.stats) else { return false };
        let Some(copy) = sources.code.templates().find(start, &bytes, address) else { return false };
        if !sources.code.load_unrecorded(copy.start, copy.size as u64, Some(copy.rows)) {
            return false;
        }
        let code = usize::try_from(copy.start - start).ok().and_then(|at| bytes.get(at..at + copy.size));
        self.note(process.id, copy.start, code.unwrap_or_default());
        self.stats.copies += 1;
        true
    }

    fn note(&mut self, id: ProcessId, start: u64, code: &[u8]) {
        let hash = self.hasher.hash_one(code);
        self.processes.entry(id).or_default().pieces.insert(start, (code.len(), hash));
    }
}

/// The function of a perf map that covers an address.
fn listed(sources: &Sources, address: u64, now: MonoNs) -> Option<(u64, usize)> {
    let hit = sources.code.map.lookup(Avma(address), now).filter(|hit| hit.origin() == CodeOrigin::PerfMap)?;
    let size = usize::try_from(hit.size()).ok().filter(|size| (1..=MAX_FUNCTION_BYTES).contains(size))?;
    Some((hit.start().0, size))
}

/// So many bytes of the target's memory, all or none.
fn read(pid: Pid, start: u64, size: usize, stats: &mut CopyStats) -> Option<Vec<u8>> {
    let mut bytes = vec![0; size];
    match read_memory(pid, Avma(start), &mut bytes) {
        Ok(read) if read == size => {
            stats.bytes_read += size as u64;
            Some(bytes)
        }
        _ => {
            stats.read_errors += 1;
            None
        }
    }
}
