//! The account of a dump: what was read, what was lost and why.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use jitprof_common::units::{FileOffset, MonoNs};

use super::clock::ClockKind;
use super::parser::Field;

/// Corrupt stretches that are listed; all are counted.
const MAX_STRETCHES: usize = 32;

/// What was read from one dump, since it was opened, over restarts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DumpStats {
    /// Records by type, the dropped ones included.
    pub records: RecordCounts,
    /// File headers: more than one when several producers append to one file.
    pub headers: u64,
    /// LOAD events given out.
    pub functions: u64,
    /// Their code bytes.
    pub code_bytes: u64,
    /// Their source rows.
    pub rows: u64,
    /// Records that were read and not used.
    pub skipped: SkipCounts,
    /// Damaged records and lost stretches, the first 32 in the order they were met.
    pub corrupt: Vec<CorruptStretch>,
    /// How many there were of each kind.
    pub corrupt_by_field: BTreeMap<Field, u64>,
    /// Bytes in them.
    pub corrupt_bytes: u64,
    /// How often the sequence of records was found again.
    pub resyncs: u64,
    /// DEBUG_INFO records whose names held NULs and could be repaired (V8).
    pub debug_repaired: u64,
    /// DEBUG_INFO records that were cut at the first entry that made no sense.
    pub debug_cut: u64,
    /// Rows without a line, or beyond the end of their function. Erlang ends each function with one.
    pub rows_dropped: u64,
    /// Rows that are not known to be their function's own: V8's of code that was inlined, and of baseline code.
    pub rows_doubtful: u64,
    /// DEBUG_INFO records whose function never came.
    pub debug_unclaimed: u64,
    /// UNWINDING_INFO records whose function never came.
    pub unwinding_unclaimed: u64,
    /// Unwinding data by kind.
    pub eh: EhCounts,
    /// Records with a time of 0, in the future or of an unusable clock; they got the latest known time.
    pub times_implausible: u64,
    /// The debug-address bias in force.
    pub bias: Option<u64>,
    /// The clock in force.
    pub clock: ClockKind,
    /// The latest time of a record.
    #[serde(serialize_with = "as_number")]
    pub watermark: MonoNs,
    /// How often the file began anew: truncated or rewritten.
    pub restarts: u64,
}

/// Records by type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecordCounts {
    /// LOAD records: functions.
    pub load: u64,
    /// MOVE records: code at another address than before.
    #[serde(rename = "move")]
    pub moved: u64,
    /// DEBUG_INFO records: source rows.
    pub debug_info: u64,
    /// CLOSE records: ends in order.
    pub close: u64,
    /// UNWINDING_INFO records: EH frames.
    pub unwinding_info: u64,
    /// UNLOAD, of jitprof's agent.
    pub unload: u64,
    /// INLINE, of jitprof's agent.
    pub inline: u64,
    /// METHOD, of jitprof's agent.
    pub method: u64,
    /// LOST, of jitprof's agent: announcements that it could not write.
    pub lost: u64,
    /// Types that this reader does not know.
    pub unknown: u64,
}

/// Records not used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SkipCounts {
    /// Older than the process: a recycled pid's file.
    pub stale_time: u64,
    /// Another pid.
    pub other_pid: u64,
    /// Damaged, with the next record where the size said.
    pub bad_record: u64,
    /// Incomplete, and so large that there was no room to wait for the rest.
    pub given_up: u64,
}

/// Unwinding data by kind: UNWINDING_INFO records, and below them functions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EhCounts {
    /// Records with nothing but a header: frame pointers.
    pub header_only: u64,
    /// Records `[.eh_frame][.eh_frame_hdr]`.
    pub perf_order: u64,
    /// Records `[.eh_frame_hdr][.eh_frame]`, for a batch of functions.
    pub batches: u64,
    /// Of these, the ones with the section's absolute address.
    pub absolute: u64,
    /// Records without a header where one has to be.
    pub unrecognised: u64,
    /// Functions with unwinding data.
    pub attached: u64,
    /// Of these, the ones whose section was moved to fit its function.
    pub rebased: u64,
    /// Functions whose record or batch covers other addresses.
    pub unmatched: u64,
}

/// A stretch of the file that no record could be read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CorruptStretch {
    /// Where it begins.
    #[serde(serialize_with = "as_offset")]
    pub offset: FileOffset,
    /// Its length; 0 while its end is not found.
    pub bytes: u64,
    /// What was wrong at its beginning.
    pub what: Field,
}

impl DumpStats {
    pub(super) fn note_corrupt(&mut self, stretch: CorruptStretch) {
        let count = self.corrupt_by_field.entry(stretch.what).or_default();
        *count = count.saturating_add(1);
        self.corrupt_bytes = self.corrupt_bytes.saturating_add(stretch.bytes);
        if self.corrupt.len() < MAX_STRETCHES {
            self.corrupt.push(stretch);
        }
    }
}

fn as_number<S: Serializer>(time: &MonoNs, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(time.0)
}

fn as_offset<S: Serializer>(offset: &FileOffset, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(offset.0)
}
