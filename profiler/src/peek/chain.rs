//! Judges unwritten bytes: do they continue the file, and which whole records do they hold? Pure.

use crate::peek::snapshot::DumpEnd;
use jitprof_jitdump::perfmap::parse_line;
use jitprof_jitdump::{FileHeader, HEADER_SIZE};

/// More than any record of real producers (V8's largest code objects are a few hundred KiB).
const MAX_RECORD_BYTES: usize = 64 << 20;
/// Record types run from 0 to 4; unknown ones are skipped by readers, so a few more are believed.
const MAX_RECORD_ID: u32 = 16;
/// Slack for producers that stamp on one thread and write on another.
const CLOCK_SLACK_NS: u64 = 1_000_000_000;
/// Blocks of code that are believed to have gone past the buffer, when only that there were some is known.
const MAX_BYPASSED_BLOCKS: u64 = 16;
const LOAD: u32 = 0;
const PREFIX: usize = 16;
const LOAD_FIXED: usize = 56;

/// What a record must be like to be believed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expect {
    /// The writer's pid in its own namespace. Integers are in our own byte order: the writer runs on this machine.
    pub(super) own_pid: u32,
    /// The earliest and latest timestamps believed; `None` when the dump counts in ticks. A timestamp of 0 (old Mono) is
    /// always believed.
    pub(super) times: Option<(u64, u64)>,
}

/// The whole records in `torn ++ pending`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Chain {
    /// How many of the pending bytes belong to whole records.
    pub(super) complete: usize,
    /// Whole records.
    pub(super) records: u64,
}

/// Why pending bytes are not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Implausible {
    /// The file is empty, and they do not begin with a jitdump header of this process.
    Header,
    /// A record's type or length makes no sense.
    Shape,
    /// A record is of another process.
    Pid,
    /// A record's time lies outside of the process' life.
    Time,
}

/// Walks the records of `torn ++ pending`. A record that is not whole yet ends the walk; its length, as far as it is
/// known, has to make sense, too.
pub(super) fn walk(end: &DumpEnd, pending: &[u8], expect: &Expect) -> Result<Chain, Implausible> {
    let mut chain = Chain::default();
    let Some((owed, rest)) = usize::try_from(end.owed).ok().and_then(|owed| Some((owed, pending.get(owed..)?))) else {
        return Ok(chain);
    };
    let stream = [&end.torn, rest].concat();
    let mut at = 0;
    if end.at_start {
        if stream.len() < HEADER_SIZE {
            return Ok(chain);
        }
        at = header_len(&stream, expect).ok_or(Implausible::Header)?;
        if at > stream.len() {
            return Ok(chain);
        }
        chain.complete = at.saturating_sub(end.torn.len());
    }
    while let Some(rest) = stream.get(at..).filter(|rest| rest.len() >= PREFIX) {
        let total = check_prefix(rest, expect)?;
        let Some(record) = rest.get(..total) else {
            break;
        };
        if u32_of(record, 0) == Some(LOAD) {
            check_load(record, expect)?;
        }
        chain.records += 1;
        at += total;
        chain.complete = (owed + at).saturating_sub(end.torn.len());
    }
    Ok(chain)
}

/// The whole lines of `torn ++ pending`, each of which has to be one of a perf map's.
pub(super) fn lines(end: &DumpEnd, pending: &[u8]) -> Result<Chain, Implausible> {
    let text = [&end.torn, pending].concat();
    let Some(last) = memchr::memrchr(b'\n', &text) else { return Ok(Chain::default()) };
    let whole = &text[..=last];
    let mut lines = whole.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
    if lines.any(|line| parse_line(line).is_err()) {
        return Err(Implausible::Shape);
    }
    let records = memchr::memchr_iter(b'\n', whole).count();
    let records = u64::try_from(records).unwrap_or(u64::MAX);
    Ok(Chain { complete: whole.len().saturating_sub(end.torn.len()), records })
}

/// Where in the file the buffer's previous content can end:
///
/// ```text
/// file_len                the buffer was full and was written
/// k whole blocks before   then the rest of the last code was longer than a buffer, and its whole blocks went past it
/// ```
///
/// The second is possible only while the file ends within that code. Which block it is follows from where the code
/// begins (producers write it with an fwrite of its own); if the reader has that no more, a few are tried.
pub(super) fn flush_ends(end: &DumpEnd, capacity: usize) -> Vec<u64> {
    let len = end.file_len;
    let block = u64::try_from(capacity).unwrap_or(0);
    if block == 0 || len < block {
        return Vec::new();
    }
    // Not zero once a forked child has written what it had inherited, through the same descriptor.
    let phase = len % block;
    let mut ends = vec![len];
    if end.owed > 0 {
        let before = (1..=MAX_BYPASSED_BLOCKS).map_while(|blocks| len.checked_sub(block.checked_mul(blocks)?));
        ends.extend(before.filter(|end| *end >= block));
    } else {
        let begin = u64::try_from(end.torn.len()).ok().and_then(|torn| len.checked_sub(torn));
        let code = begin.zip(payload_start(&end.torn)).and_then(|(begin, start)| begin.checked_add(start));
        let whole = |code: u64| code.saturating_sub(phase).checked_next_multiple_of(block)?.checked_add(phase);
        let bypass = code.and_then(whole);
        ends.extend(bypass.filter(|end| *end < len && *end >= block));
    }
    ends
}

/// Where the code of a torn LOAD begins: producers write it with an fwrite of its own.
fn payload_start(torn: &[u8]) -> Option<u64> {
    if u32_of(torn, 0)? != LOAD {
        return None;
    }
    let total = u64::from(u32_of(torn, 4)?);
    total.checked_sub(u64_of(torn, 40)?)
}

fn header_len(stream: &[u8], expect: &Expect) -> Option<usize> {
    let header = FileHeader::parse(stream)?;
    let total = usize::try_from(header.total_size).ok()?;
    let plausible = header.pid == expect.own_pid && (HEADER_SIZE..=4096).contains(&total);
    plausible.then_some(total)
}

fn check_prefix(rest: &[u8], expect: &Expect) -> Result<usize, Implausible> {
    let id = u32_of(rest, 0).ok_or(Implausible::Shape)?;
    let total = u32_of(rest, 4).and_then(|total| usize::try_from(total).ok()).ok_or(Implausible::Shape)?;
    let least = match id {
        LOAD => LOAD_FIXED + 1,
        1 => 64,
        2 => 32,
        4 => 40,
        _ => PREFIX,
    };
    if id > MAX_RECORD_ID || !(least..=MAX_RECORD_BYTES).contains(&total) {
        return Err(Implausible::Shape);
    }
    let time = u64_of(rest, 8).ok_or(Implausible::Shape)?;
    let in_life = expect.times.is_none_or(|(first, last)| {
        time == 0 || (first.saturating_sub(CLOCK_SLACK_NS)..=last.saturating_add(CLOCK_SLACK_NS)).contains(&time)
    });
    if in_life { Ok(total) } else { Err(Implausible::Time) }
}

fn check_load(record: &[u8], expect: &Expect) -> Result<(), Implausible> {
    if u32_of(record, 16) != Some(expect.own_pid) {
        return Err(Implausible::Pid);
    }
    let size = u64_of(record, 40).and_then(|size| usize::try_from(size).ok()).ok_or(Implausible::Shape)?;
    let name_and_code = record.get(LOAD_FIXED..).ok_or(Implausible::Shape)?;
    let name_len = memchr::memchr(0, name_and_code).ok_or(Implausible::Shape)?;
    // Producers without code bytes (perf's JVMTI agent for a NULL code) end after the name.
    match name_and_code.len().checked_sub(size) {
        Some(begin) if begin > name_len => Ok(()),
        _ if name_and_code.len() == name_len + 1 => Ok(()),
        _ => Err(Implausible::Shape),
    }
}

fn u32_of(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

fn u64_of(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes))
}
