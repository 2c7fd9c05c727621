//! What signal handlers return to on x86-64, where no call frame information says so: musl's `__restore_rt` and whatever
//! programs bring along, known by its bytes.

use std::ops::Range;

use jitprof_common::row::Rule;
use memchr::memmem::Finder;

use super::builder::RowTableBuilder;
use super::stats::RowStats;
use crate::elf::{Layout, Source};

/// `mov $15, %rax` or `mov $15, %eax`, the number of `rt_sigreturn`: both end like this, and `syscall` follows.
pub const NUMBER_AND_CALL: [u8; 6] = [0x0f, 0, 0, 0, 0x0f, 0x05];
const BEFORE_NUMBER: [&[u8]; 2] = [&[0x48, 0xc7, 0xc0], &[0xb8]];
/// So many bytes before them are looked at, too: the rest of the instruction, and the last byte of what stands before.
pub const BYTES_BEFORE: usize = 4;
/// What stands between functions: `nop`, `int3`, and the end of most longer `nop`s.
const PADDING: [u8; 3] = [0x90, 0xcc, 0];

/// Shorter stretches are padding.
const LEAST_STRETCH: u64 = 64;
/// Code of a file that is searched at most; musl has 0.6 MB. A stretched-out file keeps its builder for some milliseconds.
pub const MAX_SEARCHED: u64 = 16 << 20;
/// A program has one or two.
const MAX_PLACES: usize = 8;
/// Bytes that are read at once, and with how many of them the next ones begin again: the byte before a place, and it.
const CHUNK: u64 = 256 << 10;
const OVERLAP: u64 = 16;

/// Adds a signal frame's row for each place in code that nothing covers yet.
pub(super) fn add_sigreturns(
    source: &Source<'_>,
    layout: &Layout,
    code: &[Range<u64>],
    (builder, stats): (&mut RowTableBuilder, &mut RowStats),
) {
    let (finder, mut left, mut places) = (Finder::new(&NUMBER_AND_CALL), MAX_SEARCHED, Vec::new());
    for stretch in builder.gaps(code, LEAST_STRETCH) {
        let end = stretch.end.min(stretch.start.saturating_add(left));
        let mut at = stretch.start;
        while at < end && places.len() < MAX_PLACES {
            let Some((offset, available)) = layout.loaded_from(at) else { break };
            let length = CHUNK.min(end - at).min(available);
            let Ok(bytes) = source.read(offset, length) else { break };
            for place in find(&finder, &bytes, at == stretch.start) {
                let (start, end) = (at.saturating_add(place.start as u64), at.saturating_add(place.end as u64));
                // In the bytes that are read again.
                if places.last().is_none_or(|last: &Range<u64>| last.start < start) {
                    places.push(start..end);
                }
            }
            at = match at + length {
                reached if reached >= end => end,
                reached if length > OVERLAP => reached - OVERLAP,
                _ => break,
            };
        }
        stats.unsearched = stats.unsearched.saturating_add(stretch.end - at);
        left -= end - stretch.start;
    }
    for place in places.into_iter().take(MAX_PLACES) {
        // A handler returns to its first byte, and frames are looked up one byte before where they return to.
        let start = place.start.saturating_sub(1);
        builder.add(start..place.end, [(start, Rule::SIGNAL)]);
    }
}

/// The places in some code, each behind padding or where the code `begins`.
fn find<'a>(finder: &'a Finder<'_>, code: &'a [u8], begins: bool) -> impl Iterator<Item = Range<usize>> + 'a {
    finder.find_iter(code).filter_map(move |number| {
        let before = code.get(..number)?;
        let start = BEFORE_NUMBER.iter().find_map(|bytes| before.strip_suffix(*bytes))?.len();
        let is_apart = match start.checked_sub(1) {
            Some(last) => PADDING.contains(code.get(last)?),
            None => begins,
        };
        is_apart.then_some(start..number + NUMBER_AND_CALL.len())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(code: &[u8], begins: bool) -> Vec<(usize, usize)> {
        find(&Finder::new(&NUMBER_AND_CALL), code, begins).map(|place| (place.start, place.end)).collect()
    }

    #[test]
    fn a_restorer_is_known_by_all_of_its_bytes_behind_padding() {
        let (long, short) = ([0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05], [0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05]);
        assert_eq!(places(&[&[0x90], &long[..]].concat(), false), [(1, 10)]);
        assert_eq!(places(&[&[0xcc], &short[..], &[0], &long[..]].concat(), false), [(1, 8), (9, 18)]);
        assert_eq!((places(&short, true), places(&short, false)), (vec![(0, 7)], vec![]));
        assert_eq!(places(&[&[0xc3], &long[..]].concat(), true), []);
        for (at, bit) in (0..long.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut other = [&[0x90], &long[..]].concat();
            other[1 + at] ^= 1 << bit;
            assert_eq!(places(&other, true), [], "bit {bit} of byte {at}");
            assert_eq!(places(&other[..=at], true), [], "cut at {at}");
        }
    }
}
