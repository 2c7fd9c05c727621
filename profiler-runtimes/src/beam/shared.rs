//! Code that modules share: what they call to collect garbage, to run functions written in C, to add what is no small number. No
//! table of the emulator has it, or its names; it lies right before the emulator's own module, and where its parts begin is where
//! modules jump to.

use std::collections::BTreeSet;
use std::ops::Range;

use jitprof_common::units::Avma;

use crate::{Memory, ReadError, Reader};

/// Bytes before the emulator's own module that may be of it; it has 8 KiB in OTP 25.
const MAX_BYTES: u64 = 256 << 10;
/// Parts that are believed; there are 90 in OTP 25.
const MAX_PARTS: usize = 4096;
/// Bytes of code that are looked at together.
const TOGETHER: u64 = 64 << 10;
/// Bytes that are searched for as much as taking a value costs: 128 MB in one reading.
const BYTES_PER_STEP: u64 = 32;
const PAGE: u64 = 4096;
/// Where parts begin.
const ALIGNED: u64 = 8;
/// How the scheduler begins, behind seven bytes for its frame: `and $-64, %rsp; mov %rsp, (%rdi)`.
const SCHEDULER: [u8; 7] = [0x48, 0x83, 0xe4, 0xc0, 0x48, 0x89, 0x27];
/// What fills the bytes before a part.
const PADDING: [&[u8]; 7] = [
    &[0x90],
    &[0x66, 0x90],
    &[0x0f, 0x1f, 0x00],
    &[0x0f, 0x1f, 0x40, 0x00],
    &[0x0f, 0x1f, 0x44, 0x00, 0x00],
    &[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00],
    &[0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00],
];
/// Those seven bytes: `sub $…, %rsp`.
const FRAME: [u8; 3] = [0x48, 0x81, 0xec];
/// See [`FRAME`].
const FRAME_BYTES: usize = 7;

/// What a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedKind {
    /// Called or jumped to by modules.
    Part,
    /// What the emulator's own threads call, and never returns: it runs one process after the other.
    Scheduler,
}

/// A part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shared {
    /// First byte.
    pub start: Avma,
    /// Bytes up to the next part.
    pub size: u32,
    /// What it is.
    pub kind: SharedKind,
}

/// Finds the parts before the emulator's own module by the code of all of them.
pub(super) fn find<M: Memory>(
    own: u64,
    code: impl Iterator<Item = Range<u64>>,
    reader: &Reader<M>,
) -> Result<Vec<Shared>, ReadError> {
    let (start, bytes) = before(own, reader)?;
    let mut starts = BTreeSet::new();
    for range in code {
        for from in range.clone().step_by(TOGETHER as usize) {
            // A jump may lie across.
            let to = range.end.min(from.saturating_add(TOGETHER + 8));
            let mut part = vec![0; usize::try_from(to - from).unwrap_or(0)];
            reader.spend((to - from) / BYTES_PER_STEP)?;
            let count = match reader.now(Avma(from), &mut part) {
                Err(ReadError::OverBudget) => return Err(ReadError::OverBudget),
                count => count.unwrap_or(0),
            };
            let targets = targets(from, &part[..count]);
            starts.extend(targets.filter(|at| (start..own).contains(at) && at.is_multiple_of(ALIGNED)).take(MAX_PARTS));
        }
        if starts.len() > MAX_PARTS {
            return Err(ReadError::Malformed { what: "shared code", address: start });
        }
    }
    starts.extend(own_targets(start, &bytes).take(MAX_PARTS));
    let scheduler = scheduler_in(&bytes).map(|at| start + at as u64);
    starts.extend(scheduler);
    let ends = starts.iter().copied().skip(1).chain([own]);
    let parts = starts.iter().zip(ends).filter_map(|(part, end)| {
        let kind = if Some(*part) == scheduler { SharedKind::Scheduler } else { SharedKind::Part };
        Some(Shared { start: Avma(*part), size: u32::try_from(end - part).ok()?, kind })
    });
    Ok(parts.collect())
}

/// What lies before an address, as far as it can be read in one piece, and where that begins.
fn before<M: Memory>(own: u64, reader: &Reader<M>) -> Result<(u64, Vec<u8>), ReadError> {
    let mut start = own;
    let mut pages = Vec::new();
    while own - start < MAX_BYTES && start >= PAGE {
        let from = (start - 1) - (start - 1) % PAGE;
        let mut page = vec![0; usize::try_from(start - from).unwrap_or(0)];
        match reader.now(Avma(from), &mut page) {
            Ok(count) if count == page.len() => {}
            Err(ReadError::OverBudget) => return Err(ReadError::OverBudget),
            Ok(_) | Err(_) => break,
        }
        pages.push(page);
        start = from;
    }
    pages.reverse();
    Ok((start, pages.concat()))
}

/// Where calls and jumps in some code lead. The bytes are not decoded: between functions there is data, and what is no
/// instruction leads as a rule nowhere.
fn targets(from: u64, code: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let displacement = |at: usize| code.get(at..)?.first_chunk().map(|bytes| i64::from(i32::from_le_bytes(*bytes)));
    code.iter().enumerate().filter_map(move |(at, first)| {
        let bytes = match first {
            0xe8 | 0xe9 => 1,
            0x0f => code.get(at + 1).filter(|second| **second & 0xf0 == 0x80).map(|_| 2)?,
            _ => return None,
        };
        let next = from.checked_add(at as u64)?.checked_add(bytes as u64 + 4)?;
        Some(next.wrapping_add_signed(displacement(at + bytes)?))
    })
}

/// Parts that other parts jump to, as a call of a function in C does: what is aligned is padded there, which labels within a
/// part are not.
fn own_targets(start: u64, bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    targets(start, bytes).filter(move |at| {
        let parts = at.checked_sub(start).and_then(|at| bytes.split_at_checked(usize::try_from(at).ok()?));
        let is_padded = |code: &[u8]| PADDING.iter().any(|nop| code.ends_with(nop));
        at.is_multiple_of(ALIGNED) && parts.is_some_and(|(before, part)| !part.is_empty() && is_padded(before))
    })
}

/// Where the scheduler begins among the bytes of shared code.
fn scheduler_in(bytes: &[u8]) -> Option<usize> {
    let is_there = |part: &[u8]| part.starts_with(&FRAME) && part[FRAME_BYTES..] == SCHEDULER;
    bytes.windows(FRAME_BYTES + SCHEDULER.len()).position(is_there)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_only_shared_code_jumps_to_is_known_by_its_padding() {
        // To 0x1018 behind padding, to 0x1010 within a part, to 0x1019.
        let mut bytes = vec![0x50; 0x20];
        for (at, target) in [(0, 0x18), (5, 0x10), (10, 0x19)] {
            bytes[at] = 0xe9;
            bytes[at + 1..at + 5].copy_from_slice(&(target - (at as u32 + 5)).to_le_bytes());
        }
        for (nop, found) in [(&PADDING[0], true), (&PADDING[6], true), (&&[0x00][..], false)] {
            bytes[0x11..0x18].fill(0x50);
            bytes[0x18 - nop.len()..0x18].copy_from_slice(nop);
            let starts: Vec<u64> = own_targets(0x1000, &bytes).collect();
            assert_eq!(starts, if found { vec![0x1018] } else { vec![] }, "{nop:x?}");
            assert_eq!(own_targets(0x1000, &bytes[..0x18]).next(), None, "nothing begins behind the last part");
        }
    }
}
