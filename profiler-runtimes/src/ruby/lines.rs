//! Which line an instruction of Ruby's is on.
//!
//! Only where the line changes there is an entry. Which entry counts for an instruction says a table with a bit for each
//! instruction, and counts of those that are set:
//!
//! ```text
//! 6 words: of the first 54 instructions 7 bits each, 9 to a word: the entry and 1
//! blocks of 512 instructions: entries before the block (u32, in 8 bytes) │ 7 × 9 bits: those in its words before │ 8 words
//! ```

use jitprof_common::units::Avma;

use super::Unknown;
use crate::{Memory, Reader};

/// Instructions that have their entry in the first words, how many have it in one of them, and the bits of each.
const FIRST: u64 = 54;
const OF_WORD: u64 = 9;
const ENTRY_BITS: u64 = 7;
/// Bytes of those words, and of a block.
const FIRST_BYTES: u64 = 48;
const BLOCK_BYTES: u64 = 80;
/// Instructions of a block, and of a word of it.
const OF_BLOCK: u64 = 512;
/// Where in a block the counts are, their bits, and where its words begin.
const COUNTS: u64 = 8;
const COUNT_BITS: u64 = 9;
const WORDS: u64 = 16;
/// Bytes of an entry, which begins with its line.
const ENTRY_BYTES: u64 = 12;

/// Where a function has its lines.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lines {
    pub(super) entries: u64,
    pub(super) count: u32,
    pub(super) index: u64,
}

/// The line of the instruction that so many words of code stand before; 0 if there are no lines.
pub(super) fn line_at<M: Memory>(reader: &Reader<M>, lines: Lines, position: u64) -> Result<u32, Unknown> {
    let entry = match lines.count {
        0 => return Ok(0),
        1 => 0,
        _ => entry_of(reader, lines.index, position)?,
    };
    if entry >= u64::from(lines.count) {
        return Err(Unknown::No("line of the function"));
    }
    Ok(reader.u32(place(lines.entries, entry * ENTRY_BYTES)?)?)
}

/// Which entry counts for an instruction.
fn entry_of<M: Memory>(reader: &Reader<M>, index: u64, position: u64) -> Result<u64, Unknown> {
    const NO_ENTRY: Unknown = Unknown::No("line of the function");
    let Some(behind) = position.checked_sub(FIRST) else {
        let word = reader.u64(place(index, position / OF_WORD * 8)?)?;
        let entry = word >> (position % OF_WORD * ENTRY_BITS) & ((1 << ENTRY_BITS) - 1);
        return entry.checked_sub(1).ok_or(NO_ENTRY);
    };
    let at = (behind / OF_BLOCK).checked_mul(BLOCK_BYTES).ok_or(NO_ENTRY)?;
    let block = place(index, FIRST_BYTES)?.0.checked_add(at).ok_or(NO_ENTRY)?;
    let (word, bit) = (behind % OF_BLOCK / 64, behind % 64);
    let before = match word.checked_sub(1) {
        Some(count) => reader.u64(place(block, COUNTS)?)? >> (count * COUNT_BITS) & ((1 << COUNT_BITS) - 1),
        None => 0,
    };
    let up_to = reader.u64(place(block, WORDS + word * 8)?)? << (63 - bit);
    let entries = u64::from(reader.u32(Avma(block))?) + before + u64::from(up_to.count_ones());
    entries.checked_sub(1).ok_or(NO_ENTRY)
}

fn place(from: u64, offset: u64) -> Result<Avma, Unknown> {
    from.checked_add(offset).map(Avma).ok_or(Unknown::No("line of the function"))
}
