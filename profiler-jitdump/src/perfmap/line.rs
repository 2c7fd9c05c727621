//! One line of a perf map.

use jitprof_common::units::Avma;

/// A line that reads as an address, a length and a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapLine<'a> {
    /// First byte of the code.
    pub start: Avma,
    /// Length in bytes; 0 occurs.
    pub size: u64,
    /// The rest of the line, not necessarily UTF-8, possibly empty.
    pub name: &'a [u8],
}

/// Why a line is no entry. The line is lost, the next one is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineError {
    /// It does not begin with a hexadecimal address of at most 64 bits.
    Address,
    /// The address is not followed by a hexadecimal length of at most 64 bits.
    Size,
}

/// Reads one line, without its newline.
///
/// A second field that is part of a name, not a length, makes the line a [`LineError::Size`]: no producer leaves the
/// length out.
///
/// # Errors
/// [`LineError`] when the first two fields are not hexadecimal numbers.
pub fn parse_line(line: &[u8]) -> Result<MapLine<'_>, LineError> {
    let line = line.strip_suffix(b"\r").unwrap_or(line).trim_ascii_start();
    let (start, rest) = field(line).ok_or(LineError::Address)?;
    let (size, rest) = field(rest.trim_ascii_start()).ok_or(LineError::Size)?;
    // One separator belongs to the format, further blanks to the name.
    let name = rest.split_first().map_or(rest, |(_, name)| name);
    Ok(MapLine { start: Avma(start), size, name })
}

/// A hexadecimal number up to a blank or the end, and what follows it.
fn field(text: &[u8]) -> Option<(u64, &[u8])> {
    let end = text.iter().position(u8::is_ascii_whitespace).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    let digits = digits.strip_prefix(b"0x").or_else(|| digits.strip_prefix(b"0X")).unwrap_or(digits);
    if digits.is_empty() {
        return None;
    }
    let value = digits.iter().try_fold(0_u64, |value, &digit| {
        let digit = char::from(digit).to_digit(16)?;
        Some(value.checked_mul(16)? | u64::from(digit))
    })?;
    Some((value, rest))
}
