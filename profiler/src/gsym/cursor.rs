//! Reads the fields of a part of the file one after the other, and knows where in the file it is.

use super::bytes::length_of;
use super::error::GsymError;
use jitprof_jitdump::ByteOrder;

/// A part of the file being read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a> {
    left: &'a [u8],
    /// Where `left` begins in the file.
    offset: u64,
    order: ByteOrder,
}

impl<'a> Cursor<'a> {
    /// `bytes` lie at `offset` of the file.
    pub(super) fn new(bytes: &'a [u8], offset: u64, order: ByteOrder) -> Self {
        Self { left: bytes, offset, order }
    }

    /// Where the next field lies in the file.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// How many bytes are left to read.
    pub(super) fn left(&self) -> u64 {
        length_of(self.left)
    }

    /// Fails if anything is left behind the last field.
    pub(super) fn finish(&self, field: &'static str) -> Result<(), GsymError> {
        match self.left() {
            0 => Ok(()),
            left => Err(GsymError::value(self.offset, field, left, "bytes follow its end")),
        }
    }

    pub(super) fn take(&mut self, length: u64, field: &'static str) -> Result<Self, GsymError> {
        let split = usize::try_from(length).ok().and_then(|length| self.left.split_at_checked(length));
        let Some((taken, left)) = split else {
            return Err(GsymError::truncated(self.offset, field, length, self.left()));
        };
        let part = Self { left: taken, ..*self };
        self.left = left;
        self.offset = self.offset.saturating_add(length);
        Ok(part)
    }

    pub(super) fn bytes(&mut self, length: u64, field: &'static str) -> Result<&'a [u8], GsymError> {
        Ok(self.take(length, field)?.left)
    }

    pub(super) fn u8(&mut self, field: &'static str) -> Result<u8, GsymError> {
        let bytes = self.bytes(1, field)?;
        Ok(bytes.first().copied().unwrap_or_default())
    }

    pub(super) fn u32(&mut self, field: &'static str) -> Result<u32, GsymError> {
        let value = self.uint(4, field)?;
        // The value has four bytes, so it fits.
        Ok(u32::try_from(value).unwrap_or(u32::MAX))
    }

    pub(super) fn u64(&mut self, field: &'static str) -> Result<u64, GsymError> {
        self.uint(8, field)
    }

    /// An integer of `width` bytes, 8 at most.
    pub(super) fn uint(&mut self, width: u8, field: &'static str) -> Result<u64, GsymError> {
        let bytes = self.bytes(u64::from(width), field)?;
        let join = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
        Ok(match self.order {
            ByteOrder::Little => bytes.iter().rev().fold(0, join),
            ByteOrder::Big => bytes.iter().fold(0, join),
        })
    }

    /// An unsigned LEB128 number of 64 bits at most.
    pub(super) fn uleb(&mut self, field: &'static str) -> Result<u64, GsymError> {
        let start = self.offset;
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8(field)?;
            let part = u64::from(byte & 0x7f);
            let shifted = part << shift;
            if shifted >> shift != part {
                break;
            }
            value |= shifted;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(GsymError::value(start, field, value, "is continued beyond 64 bits"))
    }

    /// An unsigned LEB128 number of 32 bits at most.
    pub(super) fn uleb32(&mut self, field: &'static str) -> Result<u32, GsymError> {
        let start = self.offset;
        let value = self.uleb(field)?;
        u32::try_from(value).map_err(|_| GsymError::value(start, field, value, "does not fit into 32 bits"))
    }

    /// A signed LEB128 number of 64 bits at most.
    pub(super) fn sleb(&mut self, field: &'static str) -> Result<i64, GsymError> {
        let start = self.offset;
        let mut value = 0_u64;
        for shift in (0..64_u32).step_by(7) {
            let byte = self.u8(field)?;
            // The tenth byte's upper bits repeat the sign; what else they hold is cut off.
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                let bits = (shift + 7).min(64);
                let unused = 64 - bits;
                return Ok((value << unused).cast_signed() >> unused);
            }
        }
        Err(GsymError::value(start, field, value, "is continued beyond 64 bits"))
    }
}
