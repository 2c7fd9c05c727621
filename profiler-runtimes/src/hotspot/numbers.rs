//! HotSpot's compressed numbers: six bits a byte, of which the highest says whether another one follows.

use jitprof_common::units::Avma;

use super::layout::plus;
use crate::{Memory, ReadError, Reader};

/// A byte from which on another one follows, without what is added to each byte.
const MORE: u8 = 192;
/// Bytes of one number.
const MAX_BYTES: u32 = 5;
/// Bits that each byte but the last adds.
const BITS: u32 = 6;
/// Bytes that are taken together from where the reader keeps them.
const TOGETHER: usize = 64;

/// Numbers that are read one after another.
pub(super) struct Numbers<'r, M> {
    reader: &'r Reader<M>,
    at: Avma,
    /// What is added to each byte: 1 from JDK 20 on, so that none is 0.
    bias: u8,
    taken: [u8; TOGETHER],
    /// Which of these are still to come.
    next: usize,
    end: usize,
}

impl<'r, M: Memory> Numbers<'r, M> {
    pub(super) fn new(reader: &'r Reader<M>, at: Avma, bias: u8) -> Self {
        Self { reader, at, bias, taken: [0; TOGETHER], next: 0, end: 0 }
    }

    /// A byte as it is.
    pub(super) fn byte(&mut self) -> Result<u8, ReadError> {
        self.reader.spend(1)?;
        if self.next == self.end {
            (self.next, self.end) = (0, self.reader.part(self.at, &mut self.taken)?);
        }
        let byte = self.taken[self.next];
        self.next += 1;
        self.at = plus(self.at, 1)?;
        Ok(byte)
    }

    pub(super) fn unsigned(&mut self) -> Result<u32, ReadError> {
        let mut sum = 0_u32;
        for index in 0..MAX_BYTES {
            let byte = self.byte()?;
            let Some(part) = byte.checked_sub(self.bias) else {
                return Err(ReadError::Malformed { what: "compressed number", address: self.at.0 - 1 });
            };
            sum = sum.wrapping_add(u32::from(part) << (BITS * index));
            if byte < MORE {
                break;
            }
        }
        Ok(sum)
    }

    /// The lowest bit is the sign.
    pub(super) fn signed(&mut self) -> Result<i32, ReadError> {
        let number = self.unsigned()?;
        Ok((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Budget;
    use crate::replay::Bytes;

    /// The runtime's own way to write them, as its documentation has it.
    fn write(mut number: u32, bias: u8) -> Vec<u8> {
        let mut bytes = Vec::new();
        let low = u32::from(MORE - bias);
        loop {
            if number < low || bytes.len() == 4 {
                bytes.push(u8::try_from(number + u32::from(bias)).unwrap());
                return bytes;
            }
            let part = low + (number - low) % 64;
            bytes.push(u8::try_from(part + u32::from(bias)).unwrap());
            number = (number - part) >> BITS;
        }
    }

    #[test]
    fn what_was_written_is_read() {
        let numbers = [0, 1, 63, 190, 191, 192, 255, 256, 4095, 12479, 12480, 1 << 20, 1 << 31, u32::MAX];
        for bias in [0, 1] {
            let bytes: Vec<u8> = numbers.iter().flat_map(|number| write(*number, bias)).collect();
            let reader = Reader::new(Bytes(bytes), Budget { pages: 1, steps: 1000 });
            let mut read = Numbers::new(&reader, Avma(0x1000), bias);
            for number in numbers {
                assert_eq!(read.unsigned(), Ok(number), "{bias}");
            }
        }
        let signs: Vec<u8> = [0, 1, 2, 3].iter().flat_map(|number| write(*number, 1)).collect();
        let reader = Reader::new(Bytes(signs), Budget { pages: 1, steps: 1000 });
        let mut read = Numbers::new(&reader, Avma(0x1000), 1);
        assert_eq!([(); 4].map(|()| read.signed().unwrap()), [0, -1, 1, -2]);
        assert!(read.signed().is_err());
    }
}
