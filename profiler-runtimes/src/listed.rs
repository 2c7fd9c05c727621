//! The walk over a list of frames as samples make it, for readers of a thread that is held.

use jitprof_common::listed::{
    ASIDE, ASIDE_WORDS, DETOURED, Detour, ELEMENT_WORDS, Field, ListEnd, ListSpec, MAX_BASES, MAX_LISTED, MAX_SPAN,
    Record, STATE_WORDS, Step, WAY_TO_END, WAY_TO_STATE, straighten,
};
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
    /// The runtime's state before; 0 where it could not be read.
    pub state: [u64; STATE_WORDS],
}

/// The bytes that fields are taken from.
type Element = [u8; ELEMENT_WORDS * 8];

/// Walks the list of the thread that has this thread pointer.
pub fn walk<M: Memory>(spec: &ListSpec, thread_pointer: u64, reader: &Reader<M>) -> Walked {
    let mut walked = Walked { records: Vec::new(), end: ListEnd::Empty, base: None, state: [0; STATE_WORDS] };
    let leads_to = |steps: &[Step]| follow(steps, thread_pointer, reader).filter(|place| *place != 0);
    let bases = spec.ways.iter().take(MAX_BASES).enumerate().filter(|_| spec.is_some());
    let Some((base, at)) = bases.into_iter().find_map(|(at, steps)| Some((at, leads_to(steps)?))) else {
        return walked;
    };
    let Some(end) = (if spec.stride == 0 { Some(u64::MAX) } else { leads_to(&spec.ways[WAY_TO_END]) }) else {
        return walked;
    };
    walked.base = Some(base);
    walked.state = state(spec, reader).unwrap_or_default();
    walked.end = elements(spec, (at, end), reader, &mut walked.records);
    if spec.detour != Detour::default() {
        let count = straighten(&mut walked.records, walked.end);
        walked.records.truncate(count);
    }
    walked
}

/// Keeps what is wanted of the elements from one on; returns why it went no further.
fn elements<M: Memory>(
    spec: &ListSpec,
    (mut at, end): (u64, u64),
    reader: &Reader<M>,
    records: &mut Vec<Record>,
) -> ListEnd {
    let (mut element, mut object) = ([0; ELEMENT_WORDS * 8], 0);
    let of = |object: u64, at: u16| reader.u64(Avma(object.wrapping_add(at.into()))).unwrap_or(0);
    loop {
        // The last object's element was met before.
        if object != 0 && of(object, spec.detour.next) == 0 {
            object = 0;
        }
        let is_detoured = object != 0;
        let from = if is_detoured { of(object, spec.detour.element) } else { at };
        if !is_detoured && (from == 0 || from >= end) {
            return ListEnd::Last;
        }
        if records.len() >= MAX_LISTED {
            return ListEnd::TooLong;
        }
        if read_element(spec, from, reader, &mut element).is_none() {
            return ListEnd::Unreadable;
        }
        let mut record = record(&spec.fields, &element);
        let place = record[0];
        for field in spec.of_first.iter().filter(|field| field.mask != 0) {
            let kept = now(field, place, reader);
            record.get_mut(usize::from(field.to)).into_iter().for_each(|to| *to ^= kept);
        }
        if is_detoured {
            record[1] |= DETOURED;
            object = of(object, spec.detour.next);
        } else {
            at = match spec.stride {
                0 => word(&element, usize::try_from(spec.next).unwrap_or(MAX_SPAN)),
                stride => at.saturating_add(stride.into()),
            };
            object = detour(&spec.detour, &element, from);
        }
        records.push(record);
    }
}

/// The object whose others an element stands for, or 0.
fn detour(detour: &Detour, element: &Element, from: u64) -> u64 {
    let [object, unless] = [detour.object, detour.unless].map(|at| word(element, at.into()));
    let is_own = object.wrapping_add(detour.own.into()) == from;
    if unless == 0 && is_own { object } else { 0 }
}

/// What is kept of a word behind a place, as it is now; 0 where it cannot be read.
fn now<M: Memory>(field: &Field, place: u64, reader: &Reader<M>) -> u64 {
    let word = |at: u64| {
        let mut word = [0; 8];
        let read = reader.now(Avma(at), &mut word);
        read.ok().filter(|count| *count == word.len()).map_or(0, |_| u64::from_le_bytes(word))
    };
    let behind = word(place.wrapping_add(field.offset.into()));
    field.of(match field.through {
        0 => behind,
        words => word(behind.wrapping_add(u64::from(words - 1) * 8)),
    })
}

/// What samples have of the runtime's state.
fn state<M: Memory>(spec: &ListSpec, reader: &Reader<M>) -> Option<[u64; STATE_WORDS]> {
    let place = follow(&spec.ways[WAY_TO_STATE], 0, reader).filter(|place| *place != 0)?;
    let mut state = [0_u64; STATE_WORDS];
    for field in spec.state.iter().filter(|field| field.mask != 0) {
        let sum = state.get_mut(usize::from(field.to))?;
        *sum = sum.wrapping_add(now(field, place, reader));
    }
    Some(state)
}

/// Reads an element, with the words beside it.
fn read_element<M: Memory>(spec: &ListSpec, at: u64, reader: &Reader<M>, into: &mut Element) -> Option<()> {
    let span = usize::try_from(spec.span).map_or(MAX_SPAN, |span| span.min(MAX_SPAN));
    reader.bytes(Avma(at), into.get_mut(..span)?).ok()?;
    if let Some(pointer) = spec.aside.checked_sub(1) {
        let last = word(into, usize::try_from(pointer).ok()?);
        let first = last.wrapping_sub(ASIDE_WORDS as u64 * 8 - 8);
        reader.bytes(Avma(first), into.get_mut(ASIDE.into()..)?.get_mut(..ASIDE_WORDS * 8)?).ok()?;
    }
    Some(())
}

/// What is kept of an element.
fn record(fields: &[Field], element: &Element) -> Record {
    let mut record = Record::default();
    for field in fields.iter().filter(|field| word(element, field.unless.into()) == 0) {
        if let Some(to) = record.get_mut(usize::from(field.to)) {
            let bits = word(element, field.offset.into()) & field.mask;
            *to |= bits.checked_shl(field.shift.into()).unwrap_or(0);
        }
    }
    record
}

fn word(element: &Element, offset: usize) -> u64 {
    element.get(offset..).and_then(<[u8]>::first_chunk).copied().map_or(0, u64::from_le_bytes)
}

/// Where steps lead to.
pub(crate) fn follow<M: Memory>(steps: &[Step], thread_pointer: u64, reader: &Reader<M>) -> Option<u64> {
    let mut value = 0_u64;
    for step in steps {
        let sum = value.wrapping_add(step.operand);
        value = match step.op {
            Step::ADD => sum,
            Step::ADD_THREAD_POINTER => sum.wrapping_add(thread_pointer),
            Step::LOAD if value == 0 => return None,
            Step::LOAD => reader.u64(Avma(sum)).ok()?,
            Step::EXTENT => {
                let count = reader.u64(Avma(value.wrapping_add(8))).ok()?;
                reader.u64(Avma(value)).ok()?.wrapping_add(count.wrapping_mul(step.operand))
            }
            _ => break,
        };
    }
    Some(value)
}
