//! Which line an instruction is of: the table that code objects have.
//!
//! From 3.11 on each entry is of one to eight instructions, one behind the other. It begins with a byte that has the highest bit set,
//! four bits that say how the place is written, and three that say how many instructions it is of. Lines count from the line
//! before; columns are skipped. Numbers that take more than six bits go on in the next byte. Before, each entry is two bytes: how
//! many bytes of code, and how many lines.

use jitprof_common::units::Avma;

use super::layout::{Layout, LineTable, SIZE, TYPE};
use super::{DATA, UNIT, Unknown, Words};
use crate::{Memory, ReadError, Reader};

/// Bytes of a table.
const MAX_TABLE: u64 = 1 << 20;
/// Bytes of a table that are read at once.
const PART: u64 = 256;
/// What the bytes that are looked at cost: so many are one step.
const BYTES_PER_STEP: u64 = 16;
/// Bits of a number that a byte has.
const BITS: u32 = 6;
/// Stands for lines in a table of ranges: there is none.
const NO_LINE: i8 = i8::MIN;

/// The line of one instruction of a function that begins on line `first`; 0 if it has none.
pub(super) fn line_of<M: Memory>(
    reader: &Reader<M>,
    layout: &Layout,
    table: u64,
    first: u32,
    unit: u64,
) -> Result<u32, Unknown> {
    let object = Words::read(reader, table, DATA)?;
    if layout.types.bytes.is_some_and(|bytes| bytes != object.word(TYPE)) {
        return Err(Unknown::No("table of lines"));
    }
    let length = object.word(SIZE);
    if length > MAX_TABLE {
        return Err(Unknown::TooLarge("table of lines"));
    }
    let at = table.checked_add(DATA as u64).ok_or(Unknown::No("table of lines"))?;
    Table { reader, at, left: length, part: Vec::new(), within: 0 }.line_by(layout.code.line_table, first, unit)
}

/// The rest of a table.
struct Table<'r, M> {
    reader: &'r Reader<M>,
    /// Where what was not read begins, and how much that is.
    at: u64,
    left: u64,
    part: Vec<u8>,
    within: usize,
}

impl<M: Memory> Table<'_, M> {
    fn line_by(self, written: LineTable, first: u32, unit: u64) -> Result<u32, Unknown> {
        match written {
            LineTable::Places => self.line(first, unit),
            LineTable::Ranges => self.line_of_range(first, unit.saturating_mul(UNIT)),
            LineTable::Steps => self.line_after_steps(first, unit.saturating_mul(UNIT)),
        }
    }

    fn line(mut self, first: u32, unit: u64) -> Result<u32, Unknown> {
        let (mut line, mut covered) = (i64::from(first), 0);
        while let Some(head) = self.next()? {
            let has_line = match head >> 3 & 15 {
                // A short form: the column is in the code and the next byte.
                0..=9 => self.skip(1)?,
                // One, or the next but one, on the same line or further.
                kind @ 10..=12 => {
                    line = line.wrapping_add(i64::from(kind) - 10);
                    self.skip(2)?
                }
                13 => {
                    line = line.wrapping_add(self.signed()?);
                    true
                }
                14 => {
                    line = line.wrapping_add(self.signed()?);
                    for _ in 0..3 {
                        self.unsigned()?;
                    }
                    true
                }
                _ => false,
            };
            covered += u64::from(head & 7) + 1;
            if covered > unit {
                return Ok(if has_line { u32::try_from(line).unwrap_or(0) } else { 0 });
            }
        }
        Ok(0)
    }

    /// The line of the range in which a byte of code is.
    fn line_of_range(mut self, first: u32, byte: u64) -> Result<u32, Unknown> {
        let (mut line, mut end) = (i64::from(first), 0);
        while let Some(bytes) = self.next()? {
            let lines = self.need()?.cast_signed();
            end += u64::from(bytes);
            if lines != NO_LINE {
                line = line.wrapping_add(lines.into());
            }
            if byte < end {
                return Ok(if lines == NO_LINE { 0 } else { u32::try_from(line).unwrap_or(0) });
            }
        }
        Ok(0)
    }

    /// The line after all steps up to a byte of code.
    fn line_after_steps(mut self, first: u32, byte: u64) -> Result<u32, Unknown> {
        let (mut line, mut at) = (i64::from(first), 0);
        while let Some(bytes) = self.next()? {
            let lines = self.need()?.cast_signed();
            at += u64::from(bytes);
            if at > byte {
                break;
            }
            line = line.wrapping_add(lines.into());
        }
        Ok(u32::try_from(line).unwrap_or(0))
    }

    fn next(&mut self) -> Result<Option<u8>, Unknown> {
        if self.within == self.part.len() {
            let count = self.left.min(PART);
            if count == 0 {
                return Ok(None);
            }
            self.reader.spend(count / BYTES_PER_STEP)?;
            self.part.resize(usize::try_from(count).unwrap_or(0), 0);
            self.reader.bytes(Avma(self.at), &mut self.part)?;
            self.at = self.at.checked_add(count).ok_or(ReadError::Unreadable(self.at))?;
            (self.left, self.within) = (self.left - count, 0);
        }
        self.within += 1;
        Ok(self.part.get(self.within - 1).copied())
    }

    fn need(&mut self) -> Result<u8, Unknown> {
        self.next()?.ok_or(Unknown::No("whole table of lines"))
    }

    /// Leaves out so many bytes; true, so that it can stand for a place that has a line.
    fn skip(&mut self, count: usize) -> Result<bool, Unknown> {
        for _ in 0..count {
            self.need()?;
        }
        Ok(true)
    }

    /// Six bits a byte, the lowest first. Bits that no number of 64 bits has are left out.
    fn unsigned(&mut self) -> Result<u64, Unknown> {
        let (mut number, mut shift) = (0, 0_u32);
        loop {
            let byte = self.need()?;
            number |= u64::from(byte & 63).checked_shl(shift).unwrap_or(0);
            shift = shift.saturating_add(BITS);
            if byte & 64 == 0 {
                return Ok(number);
            }
        }
    }

    /// The lowest bit is the sign.
    fn signed(&mut self) -> Result<i64, Unknown> {
        let number = self.unsigned()?;
        let size = (number >> 1).cast_signed();
        Ok(if number & 1 == 1 { -size } else { size })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Budget;
    use crate::replay::Bytes;

    fn line(table: &[u8], first: u32, unit: u64) -> Result<u32, Unknown> {
        let reader = Reader::new(Bytes(table.to_vec()), Budget { pages: 9, steps: 1000 });
        let left = table.len() as u64;
        Table { reader: &reader, at: 0x1000, left, part: Vec::new(), within: 0 }.line(first, unit)
    }

    #[test]
    fn each_form_of_an_entry_is_read() {
        let table = [
            0x80 | 3 << 3 | 1,
            0x12, // two instructions on the first line
            0x80 | 11 << 3,
            1,
            2, // one on the next
            0x80 | 12 << 3 | 7,
            1,
            2,              // eight, two lines on
            0x80 | 15 << 3, // one that has no line
            0x80 | 13 << 3,
            64 | 8,
            40, // 1284 lines on
            0x80 | 14 << 3,
            7,
            64 | 1,
            1,
            2,
            3, // three lines back, with the line of the end and columns
            0x80,
            0, // the same line
        ];
        let lines: Vec<u32> = (0..15).map(|unit| line(&table, 10, unit).unwrap()).collect();
        assert_eq!(lines, [10, 10, 11, 13, 13, 13, 13, 13, 13, 13, 13, 0, 1297, 1294, 1294]);
        assert_eq!(line(&table, 10, 15), Ok(0), "behind the table");
        assert_eq!(line(&table[..table.len() - 1], 10, 14), Err(Unknown::No("whole table of lines")));
    }

    #[test]
    fn tables_of_two_bytes_an_entry_are_read() {
        let line = |table: &[u8], written, unit| {
            let reader = Reader::new(Bytes(table.to_vec()), Budget { pages: 9, steps: 1000 });
            let left = table.len() as u64;
            Table { reader: &reader, at: 0x1000, left, part: Vec::new(), within: 0 }.line_by(written, 10, unit)
        };
        // 3.10: four bytes on the first line; two, 127 and 43 lines on; none for two; eight on one before it.
        let ranges = [4, 0, 0, 127, 2, 43, 2, 0x80, 8, 0xff];
        let lines = [0, 1, 2, 3, 4, 7, 8].map(|unit| line(&ranges, LineTable::Ranges, unit).unwrap());
        assert_eq!(lines, [10, 10, 180, 0, 179, 179, 0]);
        // Up to 3.9: after four bytes 127 and 43 lines on, after two more one back.
        let steps = [4, 127, 0, 43, 2, 0xff];
        let lines = [0, 1, 2, 3, 40].map(|unit| line(&steps, LineTable::Steps, unit).unwrap());
        assert_eq!(lines, [10, 10, 180, 179, 179]);
        let cut = Err(Unknown::No("whole table of lines"));
        assert_eq!(line(&ranges[..1], LineTable::Ranges, 0), cut);
        assert_eq!(line(&steps[..5], LineTable::Steps, 9), cut);
        assert_eq!(line(&[0, 0x80], LineTable::Steps, 0), Ok(0), "no line");
    }

    #[test]
    fn a_table_is_read_in_parts_and_paid_for() {
        let table = [0x80 | 11 << 3, 1, 2].repeat(5000);
        assert_eq!(line(&table, 1, 4999), Ok(5001));
        assert_eq!(line(&table[..15], 1, 4), Ok(6));
        assert_eq!(line(&table.repeat(10), 1, 49_999), Err(Unknown::Read(ReadError::OverBudget)));
    }

    #[test]
    fn numbers_that_nobody_writes_do_no_harm() {
        let endless = [&[0x80 | 13 << 3][..], &[0x7f; 500]].concat();
        assert_eq!(line(&endless, 1, 0), Err(Unknown::No("whole table of lines")));
        let large = [&[0x80 | 13 << 3][..], &[0x7f; 30], &[0]].concat();
        assert_eq!(line(&large, 1, 0), Ok(0), "no line");
    }
}
