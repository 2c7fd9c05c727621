//! The stacks of threads that wait, from where the runtime itself says that their last frame of Java is: proof that
//! frames are laid out as the readers say, against what `jstack` prints of the same threads.

use jitprof_common::units::Avma;

use super::code_cache::{CodeCache, FrameShape, Kind};
use super::interpreter::{Interpreted, InterpreterFrame};
use super::layout::{Layout, ThreadLayout, plus};
use super::scopes::{Frame, Pc};
use crate::{Memory, ReadError, Reader};

/// Threads that are read.
const MAX_THREADS: u64 = 1024;
/// Frames of one.
const MAX_FRAMES: usize = 1024;

/// A thread and its frames of Java, the innermost first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingThread {
    /// The thread's id in its own pid namespace.
    pub tid: u32,
    /// Its frames, as far as they could be followed.
    pub frames: Vec<Frame>,
    /// The words of those that are interpreted.
    pub interpreted: Vec<Interpreted>,
    /// How many of them were inlined into others.
    pub inlined: usize,
    /// Frames of compiled code that were come through.
    pub compiled: u32,
    /// Of these, frames that are no longer valid.
    pub deoptimized: u32,
    /// Why it ended before the thread's first frame.
    pub ended: Option<ReadError>,
}

/// The threads that wait outside of Java's code.
///
/// # Errors
/// The list of threads could not be read.
pub fn waiting_threads<M: Memory>(
    layout: &Layout,
    reader: &Reader<M>,
    cache: &CodeCache,
) -> Result<Vec<WaitingThread>, ReadError> {
    reader.refresh();
    let at = layout.threads.ok_or(ReadError::Malformed { what: "list of threads", address: 0 })?;
    let list = reader.pointer(at.list)?;
    let count = at.length.read(reader, list)?.cast_unsigned().min(MAX_THREADS);
    let array = at.threads.pointer(reader, list)?;
    let mut threads = Vec::new();
    for index in 0..count {
        let thread = reader.pointer(plus(array, 8 * index)?)?;
        let tid = at.thread_id.read(reader, at.os_thread.pointer(reader, thread)?)? as u32;
        let anchor = at.anchor.within(thread)?;
        if at.last_sp.pointer(reader, anchor)?.0 == 0 {
            continue;
        }
        let mut walk = Walk {
            layout,
            reader,
            cache,
            at,
            found: WaitingThread {
                tid,
                frames: Vec::new(),
                interpreted: Vec::new(),
                inlined: 0,
                compiled: 0,
                deoptimized: 0,
                ended: None,
            },
        };
        walk.found.ended = walk.from(anchor).err();
        threads.push(walk.found);
    }
    Ok(threads)
}

struct Walk<'a, M> {
    layout: &'a Layout,
    reader: &'a Reader<M>,
    cache: &'a CodeCache,
    at: ThreadLayout,
    found: WaitingThread,
}

/// The registers of a frame.
#[derive(Clone, Copy)]
struct Registers {
    pc: Avma,
    sp: Avma,
    fp: Avma,
}

impl<M: Memory> Walk<'_, M> {
    fn from(&mut self, mut anchor: Avma) -> Result<(), ReadError> {
        let mut first = true;
        for _ in 0..MAX_FRAMES {
            let sp = self.at.last_sp.pointer(self.reader, anchor)?;
            if sp.0 == 0 {
                return Ok(());
            }
            let pc = self.at.last_pc.pointer(self.reader, anchor)?;
            let pc = if pc.0 == 0 { self.word(sp, -8)? } else { pc };
            let fp = self.at.last_fp.pointer(self.reader, anchor)?;
            let mut at = Registers { pc, sp, fp };
            while at.pc != Avma(self.reader.u64(self.at.call_stub_return)?) {
                at = self.step(at, first)?;
                first = false;
                if self.found.frames.len() > MAX_FRAMES {
                    return Err(ReadError::OverBudget);
                }
            }
            let wrapper = self.word(at.fp, i32::try_from(self.at.entry_wrapper_words * 8).unwrap_or(0))?;
            anchor = self.at.wrapper_anchor.within(wrapper)?;
        }
        Err(ReadError::OverBudget)
    }

    fn word(&self, base: Avma, offset: i32) -> Result<Avma, ReadError> {
        let at = base.0.checked_add_signed(i64::from(offset)).ok_or(ReadError::Unreadable(base.0))?;
        self.reader.pointer(Avma(at))
    }

    fn step(&mut self, at: Registers, first: bool) -> Result<Registers, ReadError> {
        let blob = self.cache.at(at.pc).ok_or(ReadError::Malformed { what: "code", address: at.pc.0 })?;
        match (blob.kind, blob.frame) {
            (Kind::Interpreter, _) => {
                let frame = |offset| self.word(at.fp, offset);
                let method = frame(InterpreterFrame::METHOD)?;
                let saved = frame(InterpreterFrame::BYTECODE)?;
                let const_method = self.layout.method.const_method.pointer(self.reader, method)?;
                let words = Interpreted { method, const_method: Some(const_method), saved, register: None };
                let next = Registers {
                    pc: frame(InterpreterFrame::RETURN)?,
                    sp: frame(InterpreterFrame::CALLER_SP)?,
                    fp: frame(InterpreterFrame::CALLER_FP)?,
                };
                self.found.frames.push(words.frame(self.layout, self.reader)?);
                self.found.interpreted.push(words);
                Ok(next)
            }
            (kind, FrameShape::Sized { bytes, .. }) => {
                let top = plus(at.sp, u64::from(bytes))?;
                let mut pc = at.pc;
                if blob.is_deoptimized(pc)
                    && let Some(original) = blob.original_pc
                {
                    pc = Avma(self.reader.u64(plus(at.sp, u64::from(original))?)?);
                    self.found.deoptimized += 1;
                }
                if matches!(kind, Kind::Method(_) | Kind::Native) {
                    let position = self.cache.position(self.layout, self.reader, blob, (pc, Pc::Return))?;
                    // Where a native method has no table, it has no line either.
                    if !position.exact && kind != Kind::Native && !first {
                        return Err(ReadError::Malformed { what: "known address", address: pc.0 });
                    }
                    self.found.compiled += 1;
                    self.found.inlined += position.frames.len().saturating_sub(1);
                    self.found.frames.extend(position.frames);
                }
                Ok(Registers { pc: self.word(top, -8)?, sp: top, fp: self.word(top, -16)? })
            }
            _ => Err(ReadError::Malformed { what: "frame of a known size", address: at.pc.0 }),
        }
    }
}
