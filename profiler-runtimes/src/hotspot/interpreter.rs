//! Frames of the interpreter, and its code.

use std::sync::Arc;

use jitprof_common::units::Avma;

use super::code_cache::Blob;
use super::layout::{Layout, plus};
use super::names::{Names, Strings, each_once};
use super::scopes::{Frame, frame};
use crate::capture::{Base, CaptureSpec, Take};
use crate::{Memory, ReadError, Reader};

/// Codelets of the interpreter; JDK 17 has 270.
const MAX_CODELETS: usize = 1024;
/// Bytes of the name of one.
const MAX_DESCRIPTION: usize = 64;

/// How a frame of the interpreter is laid out, in bytes from the frame pointer (JDK 9 and later, x86-64).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterpreterFrame;

impl InterpreterFrame {
    /// The caller's frame pointer.
    pub const CALLER_FP: i32 = 0;
    /// The address that is returned to.
    pub const RETURN: i32 = 8;
    /// The stack pointer that the caller has afterwards; it is behind the arguments, which may have been moved.
    pub const CALLER_SP: i32 = -8;
    /// The method.
    pub const METHOD: i32 = -24;
    /// The address of the bytecode that is executed, as of the last call. Null in a native method.
    pub const BYTECODE: i32 = -64;
    /// The register that has it meanwhile (r13), by its number in DWARF.
    pub const BYTECODE_REGISTER: u8 = 13;
    /// What a sample must bring along of a frame in the interpreter's code.
    ///
    /// What a method has that never changes, read at once, tells afterwards whether it is still the same method.
    pub fn capture(layout: &Layout, interpreter: &Blob) -> CaptureSpec {
        let const_method = i32::from(layout.method.const_method.offset());
        let frame = |steps: &[i32]| Take { base: Base::FramePointer, steps: steps.to_vec() };
        CaptureSpec {
            start: interpreter.code,
            end: Avma(interpreter.code.0.saturating_add(u64::from(interpreter.code_bytes))),
            words: vec![
                frame(&[Self::METHOD]),
                frame(&[Self::METHOD, const_method]),
                frame(&[Self::BYTECODE]),
                Take { base: Base::Register(Self::BYTECODE_REGISTER), steps: Vec::new() },
            ],
        }
    }
}

/// The words of [`InterpreterFrame::capture`], as a sample brought them along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interpreted {
    /// The method.
    pub method: Avma,
    /// What it had that never changes, if that was taken along. If it was not, the method is believed if the bytecode
    /// that the frame has is one of its own, or if both have none.
    pub const_method: Option<Avma>,
    /// The bytecode as the frame has it.
    pub saved: Avma,
    /// The bytecode as the register has it, of the frame that was interrupted.
    pub register: Option<Avma>,
}

impl Interpreted {
    /// The method and its line.
    ///
    /// # Errors
    /// The method is no longer there, or there is no method: not every frame in the interpreter's code is complete.
    pub fn frame<M: Memory>(self, layout: &Layout, reader: &Reader<M>) -> Result<Frame, ReadError> {
        let gone = ReadError::Malformed { what: "interpreted method", address: self.method.0 };
        Self::frames(&[self], layout, reader).pop().unwrap_or(Ok(None))?.ok_or(gone)
    }

    /// The same of several frames, in their order; nothing of a method that is no longer there. As of compiled code, only
    /// what is fetched between two looks at a method is certain to be of it.
    pub fn frames<M: Memory>(
        asked: &[Self],
        layout: &Layout,
        reader: &Reader<M>,
    ) -> Vec<Result<Option<Frame>, ReadError>> {
        let before = Self::constants(asked, layout, reader);
        reader.refresh();
        let mut strings = Strings::default();
        let mut names = Names::new(layout, reader, &mut strings);
        let there = asked.iter().zip(&before).filter(|(_, constant)| matches!(constant, Ok(Some(_))));
        let methods = each_once(there.map(|(frame, _)| frame.method));
        names.prefetch(&methods);
        names.prefetch_places(&methods);
        let read = asked.iter().zip(&before).map(|(frame, constant)| match (*constant)? {
            Some(constant) => frame.read(constant, &mut names),
            None => Ok(None),
        });
        let read: Vec<_> = read.collect();
        let after = Self::constants(asked, layout, reader);
        let certain = read.into_iter().zip(before.into_iter().zip(after)).map(|(read, (before, after))| match read {
            Ok(Some(_)) | Err(ReadError::Malformed { .. }) => {
                if after? == before? {
                    read
                } else {
                    Ok(None)
                }
            }
            read => read,
        });
        certain.collect()
    }

    /// What the method of each has that never changes, if it is what it had when the frame was taken.
    fn constants<M: Memory>(
        asked: &[Self],
        layout: &Layout,
        reader: &Reader<M>,
    ) -> Vec<Result<Option<Avma>, ReadError>> {
        let place = |frame: &Self| layout.method.const_method.within(frame.method).unwrap_or(Avma(0));
        let places: Vec<Avma> = asked.iter().map(place).collect();
        let mut frames = asked.iter();
        reader.now_each(&places, size_of::<u64>(), |_, now| match (frames.next(), now) {
            (_, Err(ReadError::OverBudget)) => Err(ReadError::OverBudget),
            (Some(frame), Ok(now)) => Ok(frame.constant(now)),
            _ => Ok(None),
        })
    }

    /// The same of one, whose method has this now.
    fn constant(&self, now: &[u8]) -> Option<Avma> {
        let constant = Avma(u64::from_le_bytes(*now.first_chunk()?));
        let is_it = self.const_method.is_none_or(|taken| taken == constant);
        (constant.0 != 0 && is_it).then_some(constant)
    }

    fn read<M: Memory>(self, constant: Avma, names: &mut Names<'_, M>) -> Result<Option<Frame>, ReadError> {
        let (layout, reader) = (names.layout, names.reader);
        let at = &layout.method;
        let first = plus(constant, at.const_method_bytes)?;
        let bytes = at.code_size.read(reader, constant)?.cast_unsigned();
        let within = |bytecode: Avma| {
            let bci = bytecode.0.checked_sub(first.0).filter(|bci| *bci < bytes)?;
            u32::try_from(bci).ok()
        };
        // The register is used for other things by whatever the interpreter calls.
        let bci = self.register.and_then(within).or_else(|| within(self.saved));
        // A native method has no bytecodes, and its frame is at none, or at where they would be.
        let is_native = bytes == 0 && (self.saved.0 == 0 || self.saved == first);
        if self.const_method.is_none() && bci.is_none() && !is_native {
            return Ok(None);
        }
        let mut frame = frame(names, self.method, bci)?;
        // Without a bytecode, as in a native method, there is no line either.
        frame.line = frame.line.filter(|_| bci.is_some());
        Ok(Some(frame))
    }
}

/// A part of the interpreter: what executes one bytecode, enters or leaves a method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Codelet {
    /// Where it begins.
    pub start: Avma,
    /// Where it ends.
    pub end: Avma,
    /// What the runtime calls it.
    pub name: Arc<str>,
}

impl Codelet {
    /// Whether the frame of the method that is executed is there at each of its instructions: it executes a bytecode that
    /// neither returns nor throws. What enters and leaves methods has words in between; bytecodes are single words.
    pub fn keeps_frame(&self) -> bool {
        let is_bytecode = self.name.bytes().all(|letter| letter.is_ascii_alphanumeric() || letter == b'_');
        is_bytecode && !self.name.contains("return") && !self.name.contains("throw")
    }
}

/// The parts of the interpreter. They stay as they are once the runtime has started.
///
/// # Errors
/// They could not be read.
pub fn codelets<M: Memory>(layout: &Layout, reader: &Reader<M>) -> Result<Vec<Codelet>, ReadError> {
    let at = &layout.codelets;
    let mut codelets = Vec::new();
    let queue = reader.pointer(at.queue)?;
    if queue.0 == 0 {
        return Ok(codelets);
    }
    let buffer = at.buffer.pointer(reader, queue)?;
    let (begin, end) = (at.begin.read(reader, queue)?, at.end.read(reader, queue)?);
    let mut next = plus(buffer, begin.cast_unsigned())?;
    let end = plus(buffer, end.cast_unsigned())?;
    while next < end && codelets.len() < MAX_CODELETS {
        let size = u64::try_from(at.size.read(reader, next)?).unwrap_or(0);
        let after = plus(next, size)?;
        if size == 0 || after > end {
            return Err(ReadError::Malformed { what: "part of the interpreter", address: next.0 });
        }
        let description = at.description.pointer(reader, next)?;
        let name = reader.c_string(description, MAX_DESCRIPTION)?;
        let name = String::from_utf8_lossy(&name).chars().filter(|letter| !letter.is_control()).collect::<String>();
        codelets.push(Codelet { start: next, end: after, name: name.into() });
        next = after;
    }
    Ok(codelets)
}
