//! Closures, which are freed sooner than their code.
//!
//! Each closure has a copy of its function's description, which is freed with it: as a rule at once when it was called. Its
//! code is that of the function in which it stands. So closures are remembered by where their code is, with a digest of it:
//! who has the same instructions on the same lines at the same place is the same function.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};

use jitprof_common::units::Avma;

use super::{Described, Function, INSTRUCTION_BYTES, Printed, Unknown, line_at};
use crate::{Memory, ReadError, Reader};

/// Instructions of a closure that is remembered.
const MAX_INSTRUCTIONS: u64 = 4096;
/// Bytes that are remembered before all of it is dropped.
const MAX_REMEMBERED: usize = 4 << 20;
/// Bytes that remembering one takes besides its texts.
const ENTRY: usize = 160;
/// What the bytes that are looked at cost: so many are one step.
const BYTES_PER_STEP: u64 = 16;

/// What is known of one.
#[derive(Debug)]
struct Closure {
    count: u64,
    digest: u64,
    function: Function,
    printed: Printed,
    lines: (u32, u32),
}

/// Those of one process, by where their instructions begin.
#[derive(Debug, Default)]
pub(super) struct Closures {
    known: BTreeMap<u64, Closure>,
    bytes: usize,
}

impl Closures {
    /// Bytes that are remembered, nearly.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Remembers one that has so many instructions from a place on. Of what cannot be read nothing is remembered.
    pub(super) fn learn<M: Memory>(
        &mut self,
        reader: &Reader<M>,
        (start, count): (u64, u64),
        function: &Function,
        printed: Printed,
        lines: (u32, u32),
    ) {
        let Ok(digest) = digest(reader, start, count) else { return };
        let cost = |function: &Function| function.name.len() + function.file.len() + ENTRY;
        if self.bytes + cost(function) > MAX_REMEMBERED {
            *self = Self::default();
        }
        self.bytes += cost(function);
        let closure = Closure { count, digest, function: function.clone(), printed, lines };
        if let Some(before) = self.known.insert(start, closure) {
            self.bytes -= cost(&before.function);
        }
    }

    /// The one that an instruction is of, if its code is still what it was.
    pub(super) fn of<M: Memory>(
        &self,
        reader: &Reader<M>,
        instruction: u64,
    ) -> Result<Option<(Described, Printed)>, ReadError> {
        let Some((start, closure)) = self.known.range(..=instruction).next_back() else { return Ok(None) };
        let offset = instruction - start;
        if offset >= closure.count * INSTRUCTION_BYTES || !offset.is_multiple_of(INSTRUCTION_BYTES) {
            return Ok(None);
        }
        match digest(reader, *start, closure.count) {
            Ok(digest) if digest == closure.digest => {}
            Err(ReadError::OverBudget) => return Err(ReadError::OverBudget),
            _ => return Ok(None),
        }
        match line_at(reader, instruction, closure.lines) {
            Ok(line) => Ok(Some((Described { function: closure.function.clone(), line }, closure.printed))),
            Err(Unknown::Read(error)) => Err(error),
            Err(_) => Ok(None),
        }
    }
}

/// Of instructions with their lines.
fn digest<M: Memory>(reader: &Reader<M>, start: u64, count: u64) -> Result<u64, ReadError> {
    if count == 0 || count > MAX_INSTRUCTIONS {
        return Err(ReadError::Malformed { what: "closure", address: start });
    }
    let length = count * INSTRUCTION_BYTES;
    reader.spend(length / BYTES_PER_STEP)?;
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    reader.bytes(Avma(start), &mut bytes)?;
    let mut hasher = DefaultHasher::new();
    hasher.write(&bytes);
    Ok(hasher.finish())
}
