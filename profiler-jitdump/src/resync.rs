//! Finding the next record after damage.
//!
//! `os.fork()` under CPython's `-X perf_jit` writes the inherited stdio buffer twice, and the second copy begins inside
//! of a record: the file goes on with good records after some stray bytes. What follows is accepted as a record if its
//! prefix is plausible and so are the prefixes that its size leads to, or if it is a LOAD whose process, name and sizes
//! all agree.

use super::byte_order::ByteOrder;
use super::header::{FileHeader, MAGIC};
use super::parser::MAX_LOAD;
use super::record::{PREFIX_SIZE, RecordId};

/// Prefixes in a row that are enough. Random bytes pass one prefix with less than 2^-40.
const CHAIN: usize = 3;

/// The longest record that a chain is followed over, so that the wait for a chain is bounded.
const MAX_CHAIN_RECORD: u32 = 1 << 20;

/// Times this far apart are of different clocks or damaged: 4.9 hours in nanoseconds, 1.6 hours in ticks at 3 GHz.
const MAX_TIME_GAP: u64 = 1 << 44;

/// Names up to this length are searched for stray NULs at every candidate, so that the scan stays linear.
const MAX_CHECKED_NAME: usize = 512;

/// An undecided scan is repeated when the window has grown by this part of it: soon for a few bytes, and without
/// going over a large window for every few bytes that are added.
const RETRY_GROWTH: usize = 64;

/// The times of the last two records: one damaged time does not make the following ones implausible.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TimeTrack {
    last: u64,
    before: u64,
}

impl TimeTrack {
    pub(super) fn note(&mut self, time: u64) {
        self.before = self.last;
        self.last = time;
    }

    fn is_near(&self, time: u64) -> bool {
        // One time alone may be the damaged one, and would make everything that follows implausible.
        let unknown = self.before == 0 && time < 1 << 62;
        unknown
            || time.abs_diff(self.last) < MAX_TIME_GAP && self.last != 0
            || time.abs_diff(self.before) < MAX_TIME_GAP && self.before != 0
    }
}

/// What a scan found.
pub(super) enum Scan {
    /// A record or header begins here.
    Found(usize),
    /// Nothing begins before `until`; from there on it needs `at_least` bytes of window (counted from the window's
    /// start, if `until` is 0).
    Nothing { until: usize, at_least: usize },
}

#[derive(PartialEq)]
enum Verdict {
    Yes,
    No,
    Undecided,
}

/// Looks for the first record whose chain is complete in the window. Cost: at most `CHAIN` prefixes per byte.
///
/// A chain that ends outside of the window does not hide a complete one behind it.
pub(super) fn scan(window: &[u8], order: ByteOrder, pid: Option<u32>, times: &TimeTrack) -> Scan {
    let mut waiting = None;
    for at in 0..window.len().saturating_sub(PREFIX_SIZE - 1) {
        match judge(window, at, order, pid, times) {
            Verdict::Yes => return Scan::Found(at),
            Verdict::Undecided => {
                waiting.get_or_insert(at);
            }
            Verdict::No => {}
        }
    }
    let until = waiting.unwrap_or(window.len().saturating_sub(PREFIX_SIZE - 1));
    Scan::Nothing { until, at_least: window.len() + 1 + window.len() / RETRY_GROWTH }
}

/// Whether the bytes begin with a plausible prefix or header; `next` holds at least a prefix.
pub(super) fn plausible_at(next: &[u8], order: ByteOrder, times: &TimeTrack) -> bool {
    prefix(next, 0, order, times, MAX_LOAD).is_some() || order.u32(next, 0) == Some(MAGIC)
}

/// The type and size at `at`, if they could be a record's.
fn prefix(window: &[u8], at: usize, order: ByteOrder, times: &TimeTrack, max_size: u32) -> Option<(RecordId, usize)> {
    let id = RecordId::from_number(order.u32(window, at)?)?;
    let total = order.u32(window, at + 4)?;
    let size = usize::try_from(total).ok()?;
    let size_fits = match id {
        RecordId::Close | RecordId::Move | RecordId::Unload | RecordId::Lost => size == id.fixed_size(),
        _ => size >= id.fixed_size() && total <= max_size,
    };
    (size_fits && times.is_near(order.u64(window, at + 8)?)).then_some((id, size))
}

fn judge(window: &[u8], start: usize, order: ByteOrder, pid: Option<u32>, times: &TimeTrack) -> Verdict {
    let mut at = start;
    for _ in 0..CHAIN {
        if at + PREFIX_SIZE > window.len() {
            return Verdict::Undecided;
        }
        let Some((id, size)) = prefix(window, at, order, times, MAX_CHAIN_RECORD) else {
            return judge_header(window.get(at..).unwrap_or(&[]));
        };
        if id == RecordId::Load && load_agrees(window, at, size, order, pid) {
            return Verdict::Yes;
        }
        at += size;
    }
    Verdict::Yes
}

fn judge_header(bytes: &[u8]) -> Verdict {
    let has_magic = [ByteOrder::Little, ByteOrder::Big].iter().any(|order| order.u32(bytes, 0) == Some(MAGIC));
    match FileHeader::parse(bytes) {
        Some(header) if header.is_plausible() => Verdict::Yes,
        None if has_magic => Verdict::Undecided,
        _ => Verdict::No,
    }
}

/// Whether a LOAD's pid is the header's and its only NUL-terminated name ends exactly where its code begins.
fn load_agrees(window: &[u8], at: usize, size: usize, order: ByteOrder, pid: Option<u32>) -> bool {
    let check = || {
        let record = window.get(at..)?;
        let name_start = RecordId::Load.fixed_size();
        let code_size = usize::try_from(order.u64(record, 40)?).ok()?;
        let name_end = size.checked_sub(code_size)?.checked_sub(1)?;
        let name = record.get(name_start..name_end).filter(|name| name.len() <= MAX_CHECKED_NAME)?;
        let agrees = order.u32(record, 16) == Some(pid?)
            && record.get(name_end) == Some(&0)
            && !name.is_empty()
            && memchr::memchr(0, name).is_none();
        Some(agrees)
    };
    check().unwrap_or(false)
}
