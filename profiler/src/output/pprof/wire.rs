//! protobuf's wire format, read without copying and with the place of every fault.
//!
//! prost decodes into owned messages, which a file of two-byte messages makes many times larger than itself, and says
//! nothing about where it stopped. Here a message is walked field by field over the bytes of the file.

use super::error::PprofError;

/// A message: its bytes and where they stand in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) offset: usize,
    /// What it is, for errors.
    pub(super) name: &'static str,
}

/// The value of a field.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
    Number(u64),
    Bytes(Message<'a>),
    /// Eight or four bytes, which no field of pprof is.
    Fixed,
}

impl<'a> Message<'a> {
    /// Calls `visit` with the number and value of every field.
    pub(super) fn fields(
        self,
        mut visit: impl FnMut(u32, Value<'a>) -> Result<(), PprofError>,
    ) -> Result<(), PprofError> {
        let mut at = 0;
        while at < self.bytes.len() {
            let key = self.varint(&mut at)?;
            let number = u32::try_from(key >> 3).map_err(|_| self.fault(at, "a field number is out of range"))?;
            let value = match key & 7 {
                0 => Value::Number(self.varint(&mut at)?),
                1 => self.skip(&mut at, 8)?,
                2 => Value::Bytes(self.part(&mut at)?),
                5 => self.skip(&mut at, 4)?,
                _ => return Err(self.fault(at, "a field has a type that pprof does not use")),
            };
            visit(number, value)?;
        }
        Ok(())
    }

    /// The numbers of a packed field.
    pub(super) fn numbers(self, mut visit: impl FnMut(u64) -> Result<(), PprofError>) -> Result<(), PprofError> {
        let mut at = 0;
        while at < self.bytes.len() {
            visit(self.varint(&mut at)?)?;
        }
        Ok(())
    }

    /// The same message, called by a field's name in errors from here on.
    pub(super) fn named(self, name: &'static str) -> Self {
        Self { name, ..self }
    }

    /// An error at a place of this message.
    pub(super) fn fault(&self, at: usize, what: &'static str) -> PprofError {
        PprofError::Wire { field: self.name, offset: self.offset.saturating_add(at), what }
    }

    fn varint(&self, at: &mut usize) -> Result<u64, PprofError> {
        let start = *at;
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.bytes.get(*at).ok_or_else(|| self.fault(start, "a number ends behind its message"))?;
            *at += 1;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(self.fault(start, "a number has more than ten bytes"))
    }

    fn part(&self, at: &mut usize) -> Result<Message<'a>, PprofError> {
        let start = *at;
        let length = self.varint(at)?;
        let rest = &self.bytes[*at..];
        let length = usize::try_from(length).ok().filter(|length| *length <= rest.len());
        let length = length.ok_or_else(|| self.fault(start, "a part is longer than its message"))?;
        let offset = self.offset.saturating_add(*at);
        *at += length;
        Ok(Message { bytes: &rest[..length], offset, name: self.name })
    }

    fn skip(&self, at: &mut usize, length: usize) -> Result<Value<'a>, PprofError> {
        let end = at.saturating_add(length);
        if end > self.bytes.len() {
            return Err(self.fault(*at, "a number ends behind its message"));
        }
        *at = end;
        Ok(Value::Fixed)
    }
}

impl<'a> Value<'a> {
    /// A number; an error for anything else.
    pub(super) fn number(self, of: Message<'_>) -> Result<u64, PprofError> {
        match self {
            Self::Number(number) => Ok(number),
            _ => Err(of.fault(0, "a number is something else")),
        }
    }

    /// A message or a string; an error for anything else.
    pub(super) fn bytes(self, of: Message<'_>, name: &'static str) -> Result<Message<'a>, PprofError> {
        match self {
            Self::Bytes(bytes) => Ok(bytes.named(name)),
            _ => Err(of.fault(0, "a string or a message is something else")),
        }
    }

    /// Repeated numbers, packed or one by one.
    pub(super) fn repeated(
        self,
        of: Message<'_>,
        name: &'static str,
        mut visit: impl FnMut(u64) -> Result<(), PprofError>,
    ) -> Result<(), PprofError> {
        match self {
            Self::Number(number) => visit(number),
            Self::Bytes(bytes) => bytes.named(name).numbers(visit),
            Self::Fixed => Err(of.fault(0, "a list of numbers is something else")),
        }
    }
}
