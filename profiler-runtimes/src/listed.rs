//! The walk over a list of frames as samples make it, for readers of a thread that is held.

use jitprof_common::listed::{ListEnd, ListSpec, MAX_LISTED, MAX_SPAN, Record, Step};
use jitprof_common::units::Avma;

use crate::{Memory, Reader};

/// What a walk has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walked {
    /// What was kept of each element, innermost first.
    pub records: Vec<Record>,
    /// Why it went no further.
    pub end: ListEnd,
    /// The index of the way that led to the first.
    pub base: Option<usize>,
}

/// Walks the list of the thread that has this thread pointer.
pub fn walk<M: Memory>(spec: &ListSpec, thread_pointer: u64, reader: &Reader<M>) -> Walked {
    let mut walked = Walked { records: Vec::new(), end: ListEnd::Empty, base: None };
    let first = |steps: &[Step]| follow(steps, thread_pointer, reader).filter(|first| *first != 0);
    let bases = spec.bases.iter().enumerate().filter(|_| spec.is_some());
    let Some((base, mut element)) = bases.into_iter().find_map(|(at, steps)| Some((at, first(steps)?))) else {
        return walked;
    };
    walked.base = Some(base);
    let mut bytes = [0; MAX_SPAN];
    let span = usize::try_from(spec.span).map_or(MAX_SPAN, |span| span.min(MAX_SPAN));
    while element != 0 {
        if walked.records.len() >= MAX_LISTED {
            walked.end = ListEnd::TooLong;
            return walked;
        }
        if reader.bytes(Avma(element), &mut bytes[..span]).is_err() {
            walked.end = ListEnd::Unreadable;
            return walked;
        }
        let word =
            |offset: usize| bytes.get(offset..).and_then(<[u8]>::first_chunk).copied().map_or(0, u64::from_le_bytes);
        let mut record = Record::default();
        for field in &spec.fields {
            if let Some(to) = record.get_mut(usize::from(field.to)) {
                let bits = word(field.offset.into()) & field.mask;
                *to = to.wrapping_add(bits.checked_shl(field.shift.into()).unwrap_or(0));
            }
        }
        walked.records.push(record);
        element = word(usize::try_from(spec.next).unwrap_or(MAX_SPAN));
    }
    walked.end = ListEnd::Last;
    walked
}

/// Where steps lead to.
fn follow<M: Memory>(steps: &[Step], thread_pointer: u64, reader: &Reader<M>) -> Option<u64> {
    let mut value = 0_u64;
    for step in steps {
        let sum = value.wrapping_add(step.operand);
        value = match step.op {
            Step::ADD => sum,
            Step::ADD_THREAD_POINTER => sum.wrapping_add(thread_pointer),
            Step::LOAD if value == 0 => return None,
            Step::LOAD => reader.u64(Avma(sum)).ok()?,
            _ => break,
        };
    }
    Some(value)
}
