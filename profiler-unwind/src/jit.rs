//! Rows from the EH frame that a runtime recorded for one function.

use std::borrow::Cow;

use gimli::{BaseAddresses, LittleEndian};

use jitprof_common::machine::Machine;
use jitprof_common::units::Avma;

use super::augmentation::without_unknown_letters;
use super::builder::RowTableBuilder;
use super::eh_frame::Compiler;
use super::jit_space::MAX_FUNCTION_BYTES;
use super::machine::vendor;
use super::rows::RowTable;
use super::stats::RowStats;

/// Entries looked at in a function's section. V8 and CPython write one function with its common entry; what LLVM
/// records for a batch has been cut to the function before it comes here.
const MAX_ENTRIES: usize = 64;

/// `.eh_frame` bytes that a runtime has recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedFrames<'a> {
    /// The section's bytes, without the `.eh_frame_hdr`.
    pub bytes: &'a [u8],
    /// The address at which pc-relative values in `bytes` resolve.
    pub section_start: Avma,
}

/// The rows of the function at `start`, `size` bytes long, from its recorded EH frame; `None` if no entry of that
/// begins at `start`.
///
/// Entries that begin elsewhere in the function (its cold part) count too. What they do not cover (the padding behind
/// V8's code) is a [`Rule::GAP`](jitprof_common::row::Rule::GAP), where the frame pointer is used.
///
/// Bounded by the length of the bytes and by 64 entries; about 1 µs for the records seen.
pub fn rows_of_jit(machine: Machine, start: u64, size: u64, eh: RecordedFrames<'_>) -> Option<RowTable> {
    let end = start.checked_add(size).filter(|_| size <= MAX_FUNCTION_BYTES)?;
    let bases = BaseAddresses::default().set_eh_frame(eh.section_start.0).set_text(start);
    let bytes = without_omitted_lsda(eh.bytes);
    let bytes = without_unknown_letters(&bytes, machine);
    let mut section = gimli::EhFrame::new(&bytes, LittleEndian);
    section.set_vendor(vendor(machine));
    let mut compiler = Compiler::new(section, &bases, machine, size);
    let mut builder = RowTableBuilder::within(start..end);
    let mut stats = RowStats::default();
    let mut found = false;
    for at in compiler.functions(MAX_ENTRIES) {
        let Some(function) = compiler.parse(at) else { continue };
        let first = function.1.initial_address();
        if !(start..end).contains(&first) {
            continue;
        }
        let last = first.saturating_add(function.1.len()).min(end);
        if let Some(rules) = compiler.evaluate(&function, last, &mut stats) {
            builder.add(first..last, rules.iter().copied());
            found |= first == start;
        }
    }
    found.then(|| builder.finish().0)
}

/// V8 declares language-specific data with the encoding "omitted" (`zLR`, 0xff), which gimli takes for data that it
/// cannot decode. Declared as a second encoding of addresses instead, the byte means nothing: the last one counts.
///
/// ```text
/// length u32, id u32 = 0, version u8, "zLR\0", code align, data align, return address, 2, 0xff, encoding of addresses
/// ```
fn without_omitted_lsda(bytes: &[u8]) -> Cow<'_, [u8]> {
    let is_v8s =
        matches!(bytes, [_, _, _, _, 0, 0, 0, 0, 1 | 3, b'z', b'L', b'R', 0, ..0x80, ..0x80, ..0x80, 2, 0xff, ..]);
    if !is_v8s {
        return Cow::Borrowed(bytes);
    }
    let mut changed = bytes.to_vec();
    if let Some(letter) = changed.get_mut(10) {
        *letter = b'R';
    }
    Cow::Owned(changed)
}
