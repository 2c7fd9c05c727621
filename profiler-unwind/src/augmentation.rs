//! Letters in the augmentation of common entries that gimli does not know and rows do not need.
//!
//! AArch64 compilers write `B` where return addresses are signed with the second key, and `G` where frames are tagged.
//! Neither has data. gimli refuses an entry with a letter that it does not know, so they are taken out:
//!
//! ```text
//! length u32, id u32 = 0, version u8, "zRB\0", code align, ... instructions
//! length u32, id u32 = 0, version u8, "zR\0",  code align, ... instructions, nop
//! ```

use std::borrow::Cow;

use jitprof_common::machine::Machine;

use super::eh_frame::{Entry, entries};

/// Offset of the augmentation from the start of an entry with a length of 4 bytes.
const AUGMENTATION_AT: usize = 9;
/// Letters of an augmentation that are looked at; compilers write up to six.
const MAX_LETTERS: usize = 16;

/// An `.eh_frame` without those letters. Copied only if it has any. The pointer to a personality routine, where an
/// entry has both, is another one afterwards; nothing here follows it.
pub(super) fn without_unknown_letters(bytes: &[u8], machine: Machine) -> Cow<'_, [u8]> {
    let mut changed = Cow::Borrowed(bytes);
    if machine != Machine::Aarch64 {
        return changed;
    }
    for (range, entry) in entries(bytes) {
        if entry != Entry::Cie || bytes.get(range.start..).is_some_and(|entry| entry.starts_with(&[0xff; 4])) {
            continue;
        }
        let Some(entry) = bytes.get(range.clone()) else { continue };
        let letters = entry.get(AUGMENTATION_AT..).unwrap_or_default();
        let length = memchr::memchr(0, letters.get(..MAX_LETTERS).unwrap_or(letters)).unwrap_or(0);
        let unknown = letters.iter().take(length).filter(|letter| is_unknown(**letter)).count();
        if unknown == 0 || !letters.starts_with(b"z") {
            continue;
        }
        let (head, rest) = entry.split_at(AUGMENTATION_AT);
        let (letters, rest) = rest.split_at(length);
        let kept = letters.iter().filter(|letter| !is_unknown(**letter));
        // What they leave free at the end is filled with instructions that do nothing.
        let without = head.iter().chain(kept).chain(rest).chain(std::iter::repeat_n(&0, unknown));
        for (place, byte) in changed.to_mut().get_mut(range).unwrap_or_default().iter_mut().zip(without) {
            *place = *byte;
        }
    }
    changed
}

fn is_unknown(letter: u8) -> bool {
    matches!(letter, b'B' | b'G')
}
