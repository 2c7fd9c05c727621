//! The line table of a function: a little program of rows.
//!
//! State: address (the function's start), file (1), line (the first one's). `0` ends; `1` sets the file; `2` advances
//! the address and gives a row; `3` advances the line; any other gives a row after
//! `line += min + (op - 4) % range`, `address += (op - 4) / range`, where `range = max - min + 1`.

use super::cursor::Cursor;
use super::error::GsymError;

const FIELD: &str = "line table";

/// From this address on, the code belongs to this line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineEntry {
    /// The row's address as the program sees it.
    pub address: u64,
    /// The file's number in the file table; 0: no file.
    pub file: u32,
    /// The line, counted from 1; 0: unknown.
    pub line: u32,
}

/// Calls `row` with each row in turn until it returns false.
pub(super) fn run(
    cursor: &mut Cursor<'_>,
    start: u64,
    mut row: impl FnMut(LineEntry) -> Result<bool, GsymError>,
) -> Result<(), GsymError> {
    let deltas_at = cursor.offset();
    let minimum = cursor.sleb("line table, least line delta")?;
    let maximum = cursor.sleb("line table, greatest line delta")?;
    let range = maximum.checked_sub(minimum).and_then(|span| span.checked_add(1)).filter(|range| *range > 0);
    let wrong = || GsymError::value(deltas_at, FIELD, maximum.cast_unsigned(), "is less than the least line delta");
    let range = range.map(i64::cast_unsigned).ok_or_else(wrong)?;
    let mut entry = LineEntry { address: start, file: 1, line: cursor.uleb32("line table, first line")? };
    loop {
        let at = cursor.offset();
        match cursor.u8("line table, operation")? {
            0 => return Ok(()),
            1 => {
                entry.file = cursor.uleb32("line table, file")?;
                continue;
            }
            2 => entry.address = advanced(entry.address, cursor.uleb("line table, address delta")?, at)?,
            3 => {
                entry.line = moved(entry.line, cursor.sleb("line table, line delta")?, at)?;
                continue;
            }
            special => {
                let special = u64::from(special - 4);
                // Less than the range, which is a positive i64, and added to the range's own minimum: no overflow.
                let delta = minimum.saturating_add_unsigned(special % range);
                entry.line = moved(entry.line, delta, at)?;
                entry.address = advanced(entry.address, special / range, at)?;
            }
        }
        if !row(entry)? {
            return Ok(());
        }
    }
}

fn advanced(address: u64, delta: u64, at: u64) -> Result<u64, GsymError> {
    address.checked_add(delta).ok_or(GsymError::value(at, FIELD, delta, "leads beyond the last address"))
}

fn moved(line: u32, delta: i64, at: u64) -> Result<u32, GsymError> {
    let moved = i64::from(line).checked_add(delta).and_then(|line| u32::try_from(line).ok());
    moved.ok_or(GsymError::value(at, FIELD, delta.cast_unsigned(), "leads to a line below 0 or beyond 32 bits"))
}
